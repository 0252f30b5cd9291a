"""Return the work of one engine step: its kernels and their times.

Kernel times come from the fits of single kernels (`glmplan.costs.kernels.utilisation`), split into fixed, byte and FLOP
time. `glmplan.costs.step.model` adds costs outside the kernel tables: launches, hosts, small kernels, engines.
Structure (model, formats, accelerator) is looped over; points are arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glmplan.catalog.formats import WEIGHT_FORMATS
from glmplan.catalog.schema.model import ExpertsFfn, LayerKind
from glmplan.costs.blocks.auxiliary import ADAPTER_BYTES, adapter_factors
from glmplan.costs.blocks.feed_forward import busiest_rank
from glmplan.costs.blocks.kinds import mixer_of, routed_of, streams_of
from glmplan.costs.blocks.mixer import CoreKernel, CoreStep
from glmplan.costs.kernels.counts import expert_work, gemm_work, mixing_work
from glmplan.costs.kernels.utilisation import (
    KernelParams,
    KernelWork,
    Tokens,
    add_kernel,
    collective_terms,
    kernel_terms,
)
from glmplan.costs.network.collectives import LinkClass, all_gather_time, all_reduce_time, point_to_point_time
from glmplan.costs.network.links import ALONE
from glmplan.costs.points import Layout, StepPoints
from glmplan.costs.step.structure import Layers, Product, Products, StepWork, product_terms
from glmplan.units import BytesArray, TokensArray

__all__ = [
    "KERNELS",
    "SLOTS",
    "add_attention",
    "all_gather_seconds",
    "all_reduce_seconds",
    "context_exchange_seconds",
    "hand_over_seconds",
    "over_links",
    "step_work",
]


_BF16 = 2.0
#: links inside one scale-up domain; the accelerator's kernel table has their collectives as its engine runs them
_TABLED = ("nvlink", "xgmi")

_Times = tuple[NDArray[np.float64], NDArray[np.float64]]


def over_links(structure: StepWork, group: str, seconds: Callable[..., _Times], *sizes: ArrayLike) -> _Times:
    """Return a collective's latency and payload time over own links [s].

    Each point crosses the links of its layout. `seconds` is a function of this module that takes the structure, a link
    and `sizes`, numbers or (n,) arrays.
    """
    classes = structure.link.classes(group)
    if len(classes) == 1:
        return seconds(structure, classes[0][0], *sizes)
    arrays = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in sizes))
    latency, payload = np.zeros_like(arrays[0]), np.zeros_like(arrays[0])
    for link, points in classes:
        latency[points], payload[points] = seconds(structure, link, *(array[points] for array in arrays))
    return latency, payload


def all_reduce_seconds(structure: StepWork, link: LinkClass, message: BytesArray, ranks: ArrayLike) -> _Times:
    """Return latency and payload time of an all-reduce [s].

    0 for a group of one. Over PCIe and between machines the constants of the network apply, which several machines
    measured (`glmplan.costs.network`); inside a scale-up domain the collective of the accelerator's kernel table. Not
    modelled: contention with other groups.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_machine
    >>> from glmplan.costs.network.links import links_of_layout
    >>> from glmplan.costs.step.structure import Part
    >>> from glmplan.costs.blocks.stack import uniform_checkpoint
    >>> from glmplan.catalog.entries.models import load_model
    >>> part = Part("rtx-pro-6000-ws", bandwidth=1.79e12, peaks={"bf16": 5e14}, family="12")
    >>> links = links_of_layout(load_machine("4xrtx-pro-6000-ws"), tp=4)
    >>> cards = StepWork(load_model("llama-3.1-8b"), uniform_checkpoint("bf16"), part, links)
    >>> latency, payload = all_reduce_seconds(cards, links.tensor, 8192.0, [1.0, 4.0])
    >>> (1e6 * latency).round(1).tolist(), (1e6 * payload).round(1).tolist()
    ([0.0, 11.1], [0.0, 0.5])
    """
    bytes_, count = np.asarray(message, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    if not _tabled(link, count):
        return _over_network(all_reduce_time, bytes_, count, link)
    return collective_terms(bytes_, count, link_bandwidth=link.bandwidth, params=structure.collective())


def all_gather_seconds(structure: StepWork, link: LinkClass, gathered: BytesArray, ranks: ArrayLike) -> _Times:
    """Return latency and payload time of an all-gather [s].

    A reduce-scatter, its mirror image, takes as long. Where only all-reduces were measured, a gather has the latency of
    one of
    them and half of its payload.
    """
    bytes_, count = np.asarray(gathered, dtype=np.float64), np.asarray(ranks, dtype=np.float64)
    if not _tabled(link, count):
        return _over_network(all_gather_time, bytes_, count, link)
    p = structure.collective()
    latency, _ = collective_terms(0.0, count, link_bandwidth=link.bandwidth, params=p)
    rate = link.bandwidth * (2.0 / np.maximum(count, 2.0)) ** p.crowding
    return latency, (count - 1.0) / count * bytes_ / rate / p.two_shot


def hand_over_seconds(structure: StepWork, link: LinkClass, message: BytesArray, stages: ArrayLike) -> _Times:
    """Return latency and payload time of all hand-overs [s].

    A micro-batch crosses every border of stages. One after the other, each as slow as the slowest; 0 for one stage.
    `message`:
    hidden states from a rank to its successor. Inside a scale-up domain a hand-over has the latency of a collective of
    two ranks and the rate of the link. Not modelled: sends that other micro-batches hide.
    """
    bytes_, count = np.asarray(message, dtype=np.float64), np.asarray(stages, dtype=np.float64)
    if not _tabled(link, count):
        return _over_network(point_to_point_time, bytes_, count, link)
    latency, _ = collective_terms(0.0, 2.0, link_bandwidth=link.bandwidth, params=structure.collective())
    return (count - 1.0) * latency, (count - 1.0) * bytes_ / link.bandwidth


def context_exchange_seconds(
    structure: StepWork, link: LinkClass, tokens: ArrayLike, query: ArrayLike, out: ArrayLike, ranks: ArrayLike
) -> _Times:
    """Return latency and payload time of a layer's DCP exchange [s].

    Three collectives: all-gathers of queries and of the sums of their weights, and a reduce-scatter of the attention
    output [1]_. `query`, `out`: values of a token's queries and attention output, heads of all ranks.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/v1/attention/backends/mla/common.py (`forward`, `dcp_world_size > 1`) and
       vllm/v1/attention/ops/common.py (`cp_lse_ag_out_rs`); sparse latent attention also for prompts:
       vllm/model_executor/layers/attention/mla_attention.py at 0014ca6b (`forward_impl`).

    Notes
    -----
    Measured: 34 µs a layer more with eight ranks than with one (Kimi-K2.5 on eight RTX PRO 6000, 68 and 79 tokens/s);
    three gathers over the ring take 36 µs, 41 µs with payload. Not modelled: latents that ranks gather for prompts of
    dense attention, or of sparse attention in builds that fetch them a layer ahead (`StepWork.gathers_latents`).
    """
    latency, payload = all_gather_seconds(structure, link, 0.0, ranks)
    for values in (query, out):
        one = all_gather_seconds(structure, link, np.asarray(tokens) * np.asarray(values) * _BF16, ranks)
        latency, payload = latency + one[0], payload + one[1]
    return latency, payload


def _tabled(link: LinkClass, ranks: NDArray[np.float64]) -> bool:
    """Return True if the kernel table has the collectives of a link."""
    if link.basis == ALONE and (ranks > 1.0).any():
        raise ValueError("the link of a group of one was given for a group of several")
    return link.kind in _TABLED


def _over_network(
    time: Callable[..., NDArray[np.float64]],
    message: NDArray[np.float64],
    ranks: NDArray[np.float64],
    link: LinkClass,
) -> _Times:
    """Return a collective's latency and added payload time on a network."""
    latency = time(message_bytes=0.0, ranks=ranks, link=link)
    return latency, time(message_bytes=message, ranks=ranks, link=link) - latency


def add_attention(
    layer: dict[str, np.ndarray], structure: StepWork, kind: LayerKind, step: Tokens, degrees: Layout
) -> None:
    """Add the work of a layer's mixer.

    Attention over keys and values or latents, or a recurrence. `layer` is changed in place. The mixer says which
    kernels there are (`glmplan.costs.blocks.mixer.Mixer.core`); here they get the accelerator's fits and the engine's
    way to run them: padded tiles, packed heads, prefixes read once.
    """
    part = structure.part
    rate, bandwidth = part.rate("bf16"), part.bandwidth
    decoding, prompting = np.minimum(step.requests, 1.0), np.minimum(step.prompt, 1.0)
    requests, prompt = np.maximum(step.requests, 1e-9), np.maximum(step.prompt, 1.0)
    verify = np.maximum(step.decode, 1e-9) / requests
    drafted = bool(np.any(verify > 1.0))
    mixer = mixer_of(kind)
    core = mixer.core(
        CoreStep(
            tokens=step,
            degrees=degrees.dealt(mixer.pieces) if structure.unequal_pieces else degrees,
            requests=requests,
            verify=verify,
            prompt=prompt,
            kv_bytes=structure.kv_bytes,
            packed_bytes=structure.latent_bytes,
            sparse=structure.sparse,
            splits=structure.attention.verify_splits if drafted else structure.attention.splits,
            engine=structure.engine,
            family=part.family,
        )
    )
    if core.exchange is not None and structure.counts_links and np.any(degrees.dcp > 1.0):
        prompts = core.prompt_exchanges and not structure.gathers_latents
        tokens = step.decode + step.prompt if prompts else step.decode
        _add_exchange(layer, structure, tokens, degrees.dcp, *core.exchange)
    for item in core.decode:
        work, params = _as_run(item, structure, step, verify if drafted else None)
        add_kernel(layer, work, params, peak_flop=rate, bandwidth=bandwidth, active=decoding,
                   slots=("attention_fixed", "cache", "cache"))  # fmt: skip
    for item in core.prompt:
        params = structure.kernel(item.kernel, "bf16")
        add_kernel(layer, _no_negative_bytes(item.work), params, peak_flop=rate, bandwidth=bandwidth, active=prompting,
                   slots=("attention_fixed", "prefill_attention", "prefill_attention"))  # fmt: skip
    if core.index is not None:
        layer["cache"] = layer["cache"] + core.index.decode_bytes / bandwidth + core.index.decode_flop / rate
        layer["prefill_attention"] = layer["prefill_attention"] + core.index.prompt_flop / rate


def _as_run(
    one: CoreKernel, structure: StepWork, step: Tokens, drafted: np.ndarray | None
) -> tuple[KernelWork, KernelParams]:
    """Return work and parameters of a decode kernel as the engine runs it.

    `drafted`: tokens verified for each request, or None.
    """
    if not one.reads:
        return one.work, structure.kernel(one.kernel, "bf16")
    work, params = one.work, structure.attention_kernel(one.kernel)
    if one.reads == "heads" and drafted is not None:
        work, params = _padded(work, params, structure, drafted, step, one.readers)
    if one.reads == "latent" and structure.attention.latent_rows:
        work, params = _packed(work, params, structure)
    return _shared_once(work, params, step), params


#: requests from which vLLM reads a prefix common to all of them once (`use_cascade_attention`)
_CASCADE = 8.0


def _padded(
    work: KernelWork,
    params: KernelParams,
    structure: StepWork,
    verify: np.ndarray,
    step: Tokens,
    readers: np.ndarray | float,
) -> tuple[KernelWork, KernelParams]:
    """Return verification by blocks that compute a full tile of rows.

    Each block serves one head at one core's rate.
    """
    rows, part = structure.attention.tile_rows, structure.part
    if not rows or not part.multiprocessors:
        return work, params
    together = np.where((step.shared > 0) & (step.requests >= _CASCADE), step.requests, 1.0)
    padded = work.flop * np.maximum(rows / (verify * together), 1.0)
    # a key and a value of a head: 4 * width FLOP for each row, 2 * width values; the product is that of prompts
    share = structure.kernel("prefill-attention", "bf16").flop
    rate = share * part.rate("bf16") / part.multiprocessors / rows * structure.kv_bytes / 2.0
    # such blocks read a tile of keys, then multiply it; blocks of heads that share keys read them at once, all but one
    # from the cache
    alone, cached = (1.0 / (1.0 / rate + 1.0 / read) for read in (params.block, params.block * params.block_gain))
    first = 1.0 / readers + (1.0 - 1.0 / readers) * alone / cached
    return (
        replace(work, flop=padded, rows=np.inf, block_bytes=work.block_bytes * first),
        replace(params, block=alone, block_gain=1.0),
    )


def _packed(work: KernelWork, params: KernelParams, structure: StepWork) -> tuple[KernelWork, KernelParams]:
    """Return heads and queries of one latent in blocks of full height.

    They multiply as the prompt kernel does. A second block finds the latents in the cache.
    """
    height = structure.attention.latent_rows
    rows = np.ceil(work.rows / height) * height
    share = structure.kernel("prefill-attention", "bf16").flop
    return replace(work, flop=work.flop * rows / work.rows, rows=rows), replace(params, flop=share)


def _shared_once(work: KernelWork, params: KernelParams, step: Tokens) -> KernelWork:
    """Return work whose common keys come from memory once.

    Further reads hit the cache as far as they fit.
    """
    if not step.shared.any():
        return work
    requests, share = np.maximum(step.requests, 1.0), step.shared / np.maximum(step.context, 1.0)
    return params.from_cache(work, work.bytes * share / requests, share * (1.0 - 1.0 / requests))


def _no_negative_bytes(work: KernelWork) -> KernelWork:
    """Return the work with cache bytes of at least 0.

    Short prompts in one chunk see fewer keys than a long one.
    """
    return replace(work, bytes=np.maximum(work.bytes, 0.0))


def _add_exchange(
    layer: dict[str, np.ndarray],
    structure: StepWork,
    tokens: TokensArray,
    dcp: np.ndarray,
    query: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add the gather of queries and the scatter of results.

    The ranks hold parts of a context.
    """
    latency, payload = over_links(structure, "context", context_exchange_seconds, tokens, query, out, dcp)
    layer["collective"] = layer["collective"] + np.minimum(tokens, 1.0) * latency
    layer["collective_bytes"] = layer["collective_bytes"] + payload


#: blocks of a layer that read and write residual streams: attention and feed-forward
_SITES = 2.0
#: number of points from which repetitions are looked for
_MANY = 64

#: columns of the work table: times of kernels as measured alone [s], or counts
SLOTS: tuple[str, ...] = (
    "host",  # engine steps, 1 a pass [-]
    "layer",  # layers launched [-]
    "moe_layer",  # mixture-of-experts layers launched [-]
    "state_layer",  # latent, sparse and recurrent layers launched [-]
    "request",  # tokens of decoding requests, in each layer [-]
    "activation",  # one pass over the hidden states of every layer, not split by TP [s]
    "gemm_fixed",  # dense products: fixed time of each [s]
    "gemm_bytes",  # their byte time [s]
    "gemm_flop",  # and FLOP time [s]
    "expert_fixed",  # grouped products of the routed experts, the same three [s]
    "expert_bytes",
    "expert_flop",
    "attention_fixed",  # attention of decoding requests [s]
    "cache",  # reading KV cache, index keys and recurrent states [s]
    "prefill_attention",  # attention of prompt tokens [s]
    "collective",  # collectives: latency [s]
    "collective_bytes",  # and payload [s]
    "arrival",  # layers that the first pass of a request launches kernel by kernel, see `front_end` [-]
    "prompt_token",  # prompt tokens that the front end reads, outside of steps [-]
    "wake",  # requests that arrive at an idle engine, outside of steps too
)

#: columns filled by kernels, whose parameters may be evaluated in several sets at once
KERNELS: frozenset[str] = frozenset(
    (*(name for name in SLOTS if name.startswith(("gemm_", "expert_", "attention_"))), "cache", "prefill_attention")
)


def step_work(structure: StepWork, *, layout: Layout, points: StepPoints) -> dict[str, np.ndarray]:
    """Return an array for each of `SLOTS`, on the busiest accelerator.

    Kernel times and counts of each step.

    [s] or [-]; those of `KERNELS` are (lanes, n) where the structure evaluates several sets of parameters at once.

    Notes
    -----
    With pipeline stages, requests and prompt tokens are split evenly over as many micro-batches as stages; the table
    then holds the passage of one micro-batch through all stages, so a single request gains nothing. Ranks that share
    the context of decoding requests (DCP) gather each other's query heads, so that each reads its share of the keys for
    the heads of all of them. Expert-parallel ranks wait for the busiest
    (`glmplan.costs.blocks.feed_forward.busiest_rank`). A request is on one data-parallel rank: with fewer requests than
    ranks each request has a rank of its own, while all ranks hold experts for it. Not modelled: overlap of
    communication with compute; work of idle ranks: vLLM lets them decode as many tokens as the busiest while graphs are
    replayed, and one beside a prompt without [1]_.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/v1/worker/dp_utils.py at 00746147 (`_synchronize_dp_ranks`: ranks are padded to the
       longest while all replay graphs) and vllm/v1/worker/gpu_worker.py (`execute_dummy_batch`).
    """
    tp = np.asarray(layout.tp, dtype=float)
    pp = np.asarray(layout.pp, dtype=float)
    dp = np.asarray(layout.dp, dtype=float)
    # experts are pieces too: each is whole on one rank
    ep = np.asarray(layout.tp if structure.unequal_pieces else layout.ep, dtype=float)
    dcp = np.asarray(layout.dcp, dtype=float)
    n = np.asarray(points.decode_requests, dtype=float)
    prefill = np.asarray(points.prefill_tokens, dtype=float)
    zero = np.zeros(np.broadcast_shapes(n.shape, prefill.shape, tp.shape, pp.shape, dp.shape))
    n, prefill, tp, pp, dp, ep = n + zero, prefill + zero, tp + zero, pp + zero, dp + zero, ep + zero
    each = np.zeros(structure.lanes + zero.shape) if structure.lanes else zero
    total = {name: (each if name in KERNELS else zero).copy() for name in SLOTS}

    # requests on the fullest replica and micro-batch: at least one if there is any
    ranks = np.minimum(dp, points.busy_ranks)
    replica = np.maximum(n / ranks, np.minimum(n, 1.0))
    requests = np.maximum(replica / pp, np.minimum(replica, 1.0))
    prompt = prefill / (ranks * pp)
    verify = 1.0 + structure.draft_tokens
    degrees = Layout(tp, pp, dp, ep, dcp + zero)
    context = np.asarray(points.decode_context, dtype=float) + zero
    shared = np.minimum(np.asarray(points.decode_shared, dtype=float) + zero, context)
    if structure.cells:
        # every request reads the same cells
        context = shared = structure.cells * np.ceil(requests * context / structure.cells)
    keys = np.asarray(points.prefill_context, dtype=float) + zero

    everyone = np.maximum(n / pp, np.minimum(n, 1.0))
    step = Tokens(requests, requests * verify, prompt, everyone * verify + prefill / pp, context, keys, shared)
    # some layers only read cache that earlier layers made of a prompt, and an engine may run them on its end alone
    tail = np.minimum(prompt, structure.prompt_tail)
    ends = replace(step, prompt=tail, everywhere=everyone * verify + tail * ranks)
    for decode_only, layers in structure.stacks:
        _add_layers(total, structure, layers, ends if decode_only else step, degrees)
    if structure.adapters:
        _add_adapters(total, structure, step, degrees)
    _add_products(total, structure, structure.ends, step.decode, degrees)
    total["host"] += 1.0
    total["request"] += step.decode * len(structure.model.layer_names)
    if structure.draft:
        # each draft pass reads the draft layers and the head once: for one token a request, or for a block
        block = float(structure.draft_tokens) if structure.drafts_in_blocks else 1.0
        passes = float(structure.draft_tokens) / block
        one = Tokens(requests * passes, requests * passes, zero, everyone * passes, context, zero, shared)
        once = {name: np.zeros_like(value) for name, value in total.items()}
        single = Tokens(requests, requests * block, zero, everyone * block, context, zero, shared)
        _add_layers(once, structure, structure.drafting, single, degrees)
        if not structure.drafts_with_own_head:
            _add_products(once, structure, structure.ends, single.decode, degrees)
        _add_products(total, structure, structure.entry, step.decode, degrees)
        once["host"] += 0.25  # a draft pass launches no scheduler step of its own; its share is fitted with `layer`
        decoding = np.minimum(one.requests, 1.0)
        for name in SLOTS:
            total[name] += passes * once[name] * decoding
    if structure.counts_links and (pp > 1.0).any():
        streams = streams_of(structure.model.layers[structure.model.layer_names[0]]).streams
        handed = (step.decode + prompt) * structure.model.hidden * 2.0 * streams
        latency, payload = over_links(structure, "hand_over", hand_over_seconds, handed, pp)
        total["collective"] += latency
        total["collective_bytes"] += payload
    return total


def _add_layers(
    total: dict[str, np.ndarray], structure: StepWork, layers: Layers, step: Tokens, degrees: Layout
) -> None:
    part, hidden = structure.part, structure.model.hidden
    tokens = step.decode + step.prompt
    mixed = structure.mixing_kernels() if layers.mixing else ()
    _add_products(total, structure, layers.unmixed if mixed else layers.dense, tokens, degrees)
    for product, experts, count in layers.routed:
        _add_experts(total, structure, (product, experts, count), step.everywhere, degrees)
    nothing = np.zeros(1)
    for kind, count in layers.mixers:
        mixer = dict.fromkeys(SLOTS, nothing)
        add_attention(mixer, structure, kind, step, degrees)
        for name, value in mixer.items():
            if value is not nothing:
                total[name] += count * value
    total["layer"] += layers.count
    total["moe_layer"] += layers.moe
    total["state_layer"] += layers.state
    # a pass over the hidden states covers all residual streams, unless these have kernels of their own
    passes = layers.streams
    for streams, count in layers.mixing if mixed else ():
        passes -= float((streams - 1) * count)
        for which, params in mixed:
            work = mixing_work(tokens, streams=streams, hidden=hidden, part=which)
            add_kernel(
                total, work, params, peak_flop=part.rate("bf16"), bandwidth=part.bandwidth,
                slots=("gemm_fixed", "gemm_bytes", "gemm_flop"), active=_SITES * count * np.minimum(tokens, 1.0),
            )  # fmt: skip
    total["activation"] += tokens * hidden * 2.0 * passes / part.bandwidth
    if not structure.counts_links:
        return
    _add_reduces(total, structure, "tensor", tokens, degrees.tp, layers.tensor_reduces)
    # replicas send their tokens to the experts and receive them back: an all-gather and a reduce-scatter
    calls = 1.0 + np.minimum(degrees.dp - 1.0, 1.0)
    _add_reduces(total, structure, "experts", step.everywhere, degrees.expert_ranks, layers.expert_reduces, calls)


def _add_reduces(
    total: dict[str, np.ndarray],
    structure: StepWork,
    group: str,
    tokens: np.ndarray,
    ranks: np.ndarray,
    count: float,
    calls: np.ndarray | float = 1.0,
) -> None:
    if not count or not (ranks > 1.0).any():
        return
    latency, payload = over_links(structure, group, all_reduce_seconds, tokens * structure.model.hidden * 2.0, ranks)
    total["collective"] += count * calls * latency
    total["collective_bytes"] += count * payload


def _add_products(
    total: dict[str, np.ndarray],
    structure: StepWork,
    groups: tuple[Products, ...],
    tokens: np.ndarray,
    degrees: Layout,
) -> None:
    """Add products of every token, one array line for each product."""
    part, (tokens, degrees, places) = structure.part, _different(tokens, degrees)
    active, some = np.minimum(tokens, 1.0), np.maximum(tokens, 1e-9)
    # lines of products come first, then sets of kernel parameters where there are several, then points
    line = (slice(None), None) if structure.lanes else ()
    for group in groups:
        rule = structure.runs_as(group.format, "gemm")
        share = group.share(degrees, unequal=structure.unequal_pieces)
        outputs, inputs = group.rows * np.where(group.splits_input, 1.0, share), group.columns
        inputs = inputs * np.where(group.splits_input, share, 1.0)
        kernel = partial(kernel_terms, peak_flop=part.rate(rule.compute), peak_bandwidth=part.bandwidth,
                         params=structure.kernel("gemm", rule))  # fmt: skip
        of_rows = partial(gemm_work, n=outputs[line], k=inputs[line],
                          weight_bytes=group.format.bytes, activation_bytes=rule.activation_bytes)  # fmt: skip
        if part.is_processor:
            terms = product_terms(kernel, of_rows, some, tiled=group.format.bits >= 16.0)
        else:
            terms = kernel(of_rows(some))
        if structure.shared_beside:
            hidden = group.shared[line] & (tokens <= structure.shared_beside)
            terms = (np.where(hidden, 0.0, terms[0]), *terms[1:])
        counts = group.counts[line]
        for slot, seconds in zip(("gemm_fixed", "gemm_bytes", "gemm_flop"), terms, strict=True):
            total[slot] += (active * (counts * seconds).sum(axis=0))[..., places]


def _different(tokens: np.ndarray, degrees: Layout) -> tuple[np.ndarray, Layout, np.ndarray | slice[None, None, None]]:
    """Return tokens and degrees without repetitions, and point indices.

    Only attention depends on the context: in a grid of contexts the rest of a step repeats many times in a row.
    """
    if len(tokens) < _MANY:
        return tokens, degrees, slice(None)
    seen = (tokens, *degrees.degrees)
    new = np.zeros(max(len(tokens) - 1, 0), dtype=bool)
    for one in seen:
        new |= one[1:] != one[:-1]
    if 2 * np.count_nonzero(new) + 2 > len(tokens):
        return tokens, degrees, slice(None)
    places = np.concatenate([[0], np.cumsum(new)])
    first = np.concatenate([[0], np.flatnonzero(new) + 1])
    return tokens[first], Layout(*(item[first] for item in degrees.degrees)), places


def _add_experts(
    total: dict[str, np.ndarray],
    structure: StepWork,
    run: tuple[Product, ExpertsFfn, int],
    everywhere: np.ndarray,
    degrees: Layout,
) -> None:
    part, (product, routed, count) = structure.part, run
    everywhere, degrees, places = _different(everywhere, degrees)
    rule = structure.runs_as(product.format, "experts")
    all_tokens = np.maximum(everywhere, 1e-9)
    touched, pairs = busiest_rank(routed, all_tokens, degrees.ep)
    work = expert_work(
        tokens=all_tokens,
        experts=routed.experts / degrees.ep,
        assignments=pairs,
        slots=pairs,
        touched=np.maximum(touched, 1e-9),
        hidden=float(product.tensor.columns),
        inner=routed.inner * degrees.ep / degrees.expert_ranks,
        weight_bytes=product.format.bytes,
        activation_bytes=rule.activation_bytes,
        matrices=3.0 if routed.gated else 2.0,
    )
    slots = ("expert_fixed", "expert_bytes", "expert_flop")
    grouped = dict.fromkeys(slots, np.zeros(1))
    add_kernel(
        grouped, work, structure.kernel("experts", rule), peak_flop=part.rate(rule.compute), bandwidth=part.bandwidth,
        slots=slots, active=count * np.minimum(everywhere, 1.0),
    )  # fmt: skip
    for slot in slots:
        total[slot] += grouped[slot][..., places]


def _add_adapters(total: dict[str, np.ndarray], structure: StepWork, step: Tokens, degrees: Layout) -> None:
    """Add the factors of LoRA adapters.

    All that requests may name are read, each token uses one. Without measurement: two launches a matrix with the time
    of small products, bytes and FLOP at the full rates.
    """
    part, rank = structure.part, float(structure.adapter_rank)
    tokens = step.decode + step.prompt
    named = np.minimum(float(structure.adapters), np.maximum(step.requests, np.minimum(tokens, 1.0)))
    launch = structure.kernel("gemm", structure.runs_as(WEIGHT_FORMATS["bf16"], "gemm")).floor
    for segment, _ in structure.main:
        one = adapter_factors(segment.tensors, tp=degrees.tp, ep=degrees.ep, expert_ranks=degrees.expert_ranks)
        routed = routed_of(segment.kind)
        pairs = tokens * routed.topk / degrees.ep if routed is not None else 0.0 * tokens
        read = named * one.dense + np.minimum(pairs, named * one.experts) * one.expert
        work = tokens * one.dense + pairs * one.expert
        matrices = one.matrices + (2 if routed is not None else 0)
        total["gemm_fixed"] += segment.count * 2.0 * matrices * launch * np.minimum(tokens, 1.0)
        total["gemm_bytes"] += segment.count * rank * ADAPTER_BYTES * read / part.bandwidth
        total["gemm_flop"] += segment.count * 2.0 * rank * work / part.rate("bf16")
