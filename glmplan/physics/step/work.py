"""The work of one engine step: the kernels it launches, with the times that such kernels take on the part.

Kernel times come from the fits of single kernels (`glmplan.physics.kernels.fits`), split into what is fixed, what bytes
cost and what FLOP cost. `glmplan.physics.step.time` adds what no kernel table sees: launches, hosts, small kernels,
engines. Structure (model, formats, part) is looped over; points are arrays.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial

import numpy as np

from glmplan.facts.formats import WEIGHT_FORMATS
from glmplan.facts.schema.model import ExpertsFfn
from glmplan.physics.blocks.adapters import ADAPTER_BYTES, adapter_factors
from glmplan.physics.blocks.experts import busiest_rank
from glmplan.physics.blocks.kinds import routed_of, streams_of
from glmplan.physics.kernels.counts import expert_work, gemm_work
from glmplan.physics.kernels.slots import Degrees, Tokens, add_kernel
from glmplan.physics.kernels.state_counts import mixing_work
from glmplan.physics.kernels.utilisation import kernel_terms
from glmplan.physics.points import Layout, StepPoints
from glmplan.physics.step.attention import add_attention
from glmplan.physics.step.collectives import all_reduce_seconds, hand_over_seconds, over_links
from glmplan.physics.step.on_processor import product_terms
from glmplan.physics.step.products import Product, Products
from glmplan.physics.step.structure import Layers, StepWork

__all__ = ["KERNELS", "SLOTS", "step_work"]

#: blocks of a layer that read and write residual streams: its attention and its feed-forward part [-]
_SITES = 2.0
#: points from which on it is worth looking whether they differ [-]
_MANY = 64

#: columns of the work table: times of kernels as measured alone [s], or counts [-]
SLOTS: tuple[str, ...] = (
    "host",  # engine steps, 1 a pass [-]
    "layer",  # layers launched [-]
    "moe_layer",  # mixture-of-experts layers launched [-]
    "state_layer",  # latent, sparse and recurrent layers launched [-]
    "request",  # tokens of decoding requests, in each layer [-]
    "activation",  # one pass over the hidden states of every layer, not split by TP [s]
    "gemm_fixed",  # dense products: what each takes whatever its size [s]
    "gemm_bytes",  # their share of time that bytes cost [s]
    "gemm_flop",  # and that FLOP cost [s]
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
    "wake",  # requests that find nobody there, outside of steps too [-]
)

#: those that kernels fill, whose parameters may be looked at in several sets at once
KERNELS: frozenset[str] = frozenset(
    (*(name for name in SLOTS if name.startswith(("gemm_", "expert_", "attention_"))), "cache", "prefill_attention")
)


def step_work(structure: StepWork, *, layout: Layout, points: StepPoints) -> dict[str, np.ndarray]:
    """Kernel times and counts of each step on its busiest accelerator.

    Parameters
    ----------
    structure : StepWork
        Model, formats, part.
    layout : Layout
        Parallel degrees; fields numbers or (n,) arrays, [-]
    points : StepPoints
        What the step holds; fields (n,) arrays.

    Returns
    -------
    dict of str to (n,) array
        One array for each of `SLOTS`, [s] or [-]; those of `KERNELS` are (lanes, n) where the structure looks at
        several sets of parameters at once

    Notes
    -----
    With pipeline stages, the requests and prompt tokens are taken as split evenly over as many micro-batches as there
    are stages; the table then holds the passage of one micro-batch through all stages, so a single request gains
    nothing. Ranks that share the context of decoding requests (DCP) gather each other's query heads, so that each reads
    its share of the keys for the heads of all of them. Expert-parallel ranks wait for the busiest
    (`glmplan.physics.blocks.experts.busiest_rank`). A request is on one data-parallel rank, so of fewer requests than
    ranks each takes a rank of its own, while all ranks hold experts for it. Not modelled: overlap of communication with
    compute; what idle ranks add: vLLM lets them decode as many tokens as the busiest while graphs are replayed, and one
    beside a prompt without [1]_.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/v1/worker/dp_utils.py at 00746147 (`_synchronize_dp_ranks`: ranks are padded to the
       longest while all replay graphs) and vllm/v1/worker/gpu_worker.py (`execute_dummy_batch`).

    Examples
    --------
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.facts.schema.model import DenseFfn, GroupedQuery, LayerKind, ModelSpec
    >>> from glmplan.facts.catalogue.hosts import load_machine
    >>> from glmplan.physics.network.groups import links_of_layout
    >>> from glmplan.physics.step.structure import Part
    >>> layer = LayerKind(mixer=GroupedQuery(heads=32, kv_heads=8, head_dim=128), ffn=(DenseFfn(inner=14336),))
    >>> llama = ModelSpec(name="8b", family="llama", hidden=4096, vocabulary=128256, max_context=8192,
    ...                   layers={"full": layer}, stack="full*32", source="example")
    >>> part = Part("h100-sxm", bandwidth=3.35e12, peaks={"bf16": 989e12}, family="9")
    >>> structure = StepWork(llama, uniform_checkpoint("bf16"), part, links_of_layout(load_machine("h100-sxm")))
    >>> one = np.array([1.0])
    >>> points = StepPoints(one, one * 1000, one * 0, one * 0)
    >>> round(float(step_work(structure, layout=Layout(), points=points)["gemm_bytes"][0]) * 1e3, 1)  # ms
    5.4
    """
    tp = np.asarray(layout.tp, dtype=float)
    pp = np.asarray(layout.pp, dtype=float)
    dp = np.asarray(layout.dp, dtype=float)
    ep = np.asarray(layout.ep, dtype=float)
    dcp = np.asarray(layout.dcp, dtype=float)
    n = np.asarray(points.decode_requests, dtype=float)
    prefill = np.asarray(points.prefill_tokens, dtype=float)
    zero = np.zeros(np.broadcast_shapes(n.shape, prefill.shape, tp.shape, pp.shape, dp.shape))
    n, prefill, tp, pp, dp, ep = n + zero, prefill + zero, tp + zero, pp + zero, dp + zero, ep + zero
    each = np.zeros(structure.lanes + zero.shape) if structure.lanes else zero
    total = {name: (each if name in KERNELS else zero).copy() for name in SLOTS}

    # requests on the fullest replica and micro-batch: never less than one if there is any
    ranks = np.minimum(dp, points.busy_ranks)
    replica = np.maximum(n / ranks, np.minimum(n, 1.0))
    requests = np.maximum(replica / pp, np.minimum(replica, 1.0))
    prompt = prefill / (ranks * pp)
    verify = 1.0 + structure.draft_tokens
    degrees = Degrees(tp, pp, dp, ep, tp * dp, dcp + zero)
    context = np.asarray(points.decode_context, dtype=float) + zero
    shared = np.minimum(np.asarray(points.decode_shared, dtype=float) + zero, context)
    if structure.cells:
        # all read the same cells
        context = shared = structure.cells * np.ceil(requests * context / structure.cells)
    keys = np.asarray(points.prefill_context, dtype=float) + zero

    everyone = np.maximum(n / pp, np.minimum(n, 1.0))
    step = Tokens(requests, requests * verify, prompt, everyone * verify + prefill / pp, context, keys, shared)
    # some layers only read what earlier ones cached of a prompt
    decoding_only = replace(step, prompt=zero, everywhere=everyone * verify)
    for decode_only, layers in structure.stacks:
        _add_layers(total, structure, layers, decoding_only if decode_only else step, degrees)
    if structure.adapters:
        _add_adapters(total, structure, step, degrees)
    _add_products(total, structure, structure.ends, step.decode, degrees)
    total["host"] += 1.0
    total["request"] += step.decode * len(structure.model.layer_names)
    if structure.draft:
        # each draft pass reads the layers that draft and the head once: for one token a request, or for a block
        block = float(structure.draft_tokens) if structure.drafts_in_blocks else 1.0
        passes = float(structure.draft_tokens) / block
        one = Tokens(requests * passes, requests * passes, zero, everyone * passes, context, zero, shared)
        once = {name: np.zeros_like(value) for name, value in total.items()}
        single = Tokens(requests, requests * block, zero, everyone * block, context, zero, shared)
        _add_layers(once, structure, structure.drafting, single, degrees)
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
    total: dict[str, np.ndarray], structure: StepWork, layers: Layers, step: Tokens, degrees: Degrees
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
    # a pass over the hidden states is one over all residual streams, but where kernels of their own pass over these
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
    # replicas hand their tokens to the experts and take them back: an all-gather and a reduce-scatter
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
    degrees: Degrees,
) -> None:
    """Add products that every token takes; those of one format together, one line of an array for each."""
    part, (tokens, degrees, places) = structure.part, _different(tokens, degrees)
    active, some = np.minimum(tokens, 1.0), np.maximum(tokens, 1e-9)
    # lines of products come first, then sets of kernel parameters where several are looked at, then points
    line = (slice(None), None) if structure.lanes else ()
    for group in groups:
        rule = structure.runs_as(group.format, "gemm")
        share = group.share(tp=degrees.tp, ep=degrees.ep, expert_ranks=degrees.expert_ranks)
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


def _different(
    tokens: np.ndarray, degrees: Degrees
) -> tuple[np.ndarray, Degrees, np.ndarray | slice[None, None, None]]:
    """Tokens and degrees without repetitions of the point before, and the place of each point among them.

    Only attention sees contexts: in a grid over them the rest of a step stands many times in a row.
    """
    if len(tokens) < _MANY:
        return tokens, degrees, slice(None)
    seen = (tokens, *(getattr(degrees, one.name) for one in fields(Degrees)))
    new = np.zeros(max(len(tokens) - 1, 0), dtype=bool)
    for one in seen:
        new |= one[1:] != one[:-1]
    if 2 * np.count_nonzero(new) + 2 > len(tokens):
        return tokens, degrees, slice(None)
    places = np.concatenate([[0], np.cumsum(new)])
    first = np.concatenate([[0], np.flatnonzero(new) + 1])
    return tokens[first], Degrees(*(one[first] for one in seen[1:])), places


def _add_experts(
    total: dict[str, np.ndarray],
    structure: StepWork,
    run: tuple[Product, ExpertsFfn, int],
    everywhere: np.ndarray,
    degrees: Degrees,
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


def _add_adapters(total: dict[str, np.ndarray], structure: StepWork, step: Tokens, degrees: Degrees) -> None:
    """Add the factors of low-rank adapters: as many different ones as requests may name are read, each token takes one.

    Nobody measured them: two launches a matrix as small products take them, bytes and FLOP at the part's full rates.
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
