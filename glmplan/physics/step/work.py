"""The work of one engine step: the kernels it launches, with the times that such kernels take on the part.

Kernel times come from the fits of single kernels (`glmplan.physics.kernels.fits`), split into what is fixed, what bytes
cost and what FLOP cost. `glmplan.physics.step.time` adds what no kernel table sees: launches, hosts, small kernels,
engines. Structure (model, formats, part) is looped over; points are arrays.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glmplan.facts.schema.model import ExpertsFfn, LayerKind
from glmplan.physics.blocks.experts import busiest_rank
from glmplan.physics.blocks.kinds import mixer_of, routed_of, streams_of
from glmplan.physics.kernels.counts import expert_work, gemm_work
from glmplan.physics.kernels.slots import Degrees, Tokens, add_kernel
from glmplan.physics.kernels.utilisation import KernelWork
from glmplan.physics.points import Layout, StepPoints
from glmplan.physics.step.attention import add_attention
from glmplan.physics.step.collectives import all_reduce_seconds, hand_over_seconds, over_links
from glmplan.physics.step.structure import Product, StepWork

__all__ = ["SLOTS", "step_work"]

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
        One array for each of `SLOTS`, [s] or [-]

    Notes
    -----
    With pipeline stages, the requests and prompt tokens are taken as split evenly over as many micro-batches as there
    are stages; the table then holds the passage of one micro-batch through all stages, so a single request gains
    nothing. Ranks that share the context of decoding requests (DCP) gather each other's query heads, so that each reads
    its share of the keys for the heads of all of them. Expert-parallel ranks wait for the busiest
    (`glmplan.physics.blocks.experts.busiest_rank`). Not modelled: overlap of communication with compute.

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
    total = {name: zero.copy() for name in SLOTS}

    # requests on the fullest replica and micro-batch: never less than one if there is any
    replica = np.maximum(n / dp, np.minimum(n, 1.0))
    requests = np.maximum(replica / pp, np.minimum(replica, 1.0))
    prompt = prefill / (dp * pp)
    verify = 1.0 + structure.draft_tokens
    degrees = Degrees(tp, pp, dp, ep, tp * dp, dcp + zero)
    context = np.asarray(points.decode_context, dtype=float) + zero
    keys = np.asarray(points.prefill_context, dtype=float) + zero
    shared = np.minimum(np.asarray(points.decode_shared, dtype=float) + zero, context)

    everyone = np.maximum(n / pp, np.minimum(n, 1.0))
    step = Tokens(requests, requests * verify, prompt, everyone * verify + prefill / pp, context, keys, shared)
    # some layers only read what earlier ones cached of a prompt
    decoding_only = replace(step, prompt=zero, everywhere=everyone * verify)
    for part, products in structure.main:
        _add_layers(total, structure, part.kind, part.count, products,
                    decoding_only if part.kind.decode_only else step, degrees)  # fmt: skip
    _add_products(total, structure, structure.head, step.decode, step.decode, degrees, None)
    total["host"] += 1.0
    total["request"] += step.decode * len(structure.model.layer_names)
    if structure.draft:
        # each draft pass reads the layers that draft and the head once: for one token a request, or for a block
        block = float(structure.draft_tokens) if structure.drafts_in_blocks else 1.0
        passes = float(structure.draft_tokens) / block
        one = Tokens(requests * passes, requests * passes, zero, everyone * passes, context, zero, shared)
        once = {name: zero.copy() for name in SLOTS}
        single = Tokens(requests, requests * block, zero, everyone * block, context, zero, shared)
        for part, products in structure.draft:
            _add_layers(once, structure, part.kind, part.count, products, single, degrees)
        _add_products(once, structure, structure.head, single.decode, single.decode, degrees, None)
        _add_products(total, structure, structure.joined, step.decode, step.decode, degrees, None)
        once["host"] += 0.25  # a draft pass launches no scheduler step of its own; its share is fitted with `layer`
        decoding = np.minimum(one.requests, 1.0)
        for name in SLOTS:
            total[name] += passes * once[name] * decoding
    streams = streams_of(structure.model.layers[structure.model.layer_names[0]]).streams
    handed = (step.decode + prompt) * structure.model.hidden * 2.0 * streams
    latency, payload = over_links(structure, "hand_over", hand_over_seconds, handed, pp)
    total["collective"] += latency
    total["collective_bytes"] += payload
    return total


def _add_layers(
    total: dict[str, np.ndarray],
    structure: StepWork,
    kind: LayerKind,
    count: int,
    products: tuple[Product, ...],
    step: Tokens,
    degrees: Degrees,
) -> None:
    part, hidden = structure.part, structure.model.hidden
    tokens = step.decode + step.prompt
    experts = routed_of(kind)
    layer: dict[str, np.ndarray] = dict(zip(SLOTS, np.zeros((len(SLOTS), *tokens.shape)), strict=True))
    _add_products(layer, structure, products, tokens, step.everywhere, degrees, experts)
    add_attention(layer, structure, kind, step, degrees)
    layer["layer"] = layer["layer"] + 1.0
    layer["moe_layer"] = layer["moe_layer"] + (1.0 if experts else 0.0)
    layer["state_layer"] = layer["state_layer"] + mixer_of(kind).extra_launches
    # a pass over the hidden states is one over all residual streams
    layer["activation"] = tokens * hidden * 2.0 * streams_of(kind).streams / part.bandwidth
    # one all-reduce after the mixer and one after the feed-forward part, each over the ranks that share the layer
    if kind.mixer is not None:
        _add_reduce(layer, structure, "tensor", tokens, degrees.tp)
    if experts is not None:
        # replicas hand their tokens to the experts and take them back: an all-gather and a reduce-scatter
        wide, calls = degrees.expert_ranks, 1.0 + np.minimum(degrees.dp - 1.0, 1.0)
        _add_reduce(layer, structure, "experts", step.everywhere, wide, calls)
    elif kind.ffn:
        _add_reduce(layer, structure, "tensor", tokens, degrees.tp)
    for name, value in layer.items():
        total[name] += count * value


def _add_reduce(
    layer: dict[str, np.ndarray],
    structure: StepWork,
    group: str,
    tokens: np.ndarray,
    ranks: np.ndarray,
    calls: np.ndarray | float = 1.0,
) -> None:
    latency, payload = over_links(structure, group, all_reduce_seconds, tokens * structure.model.hidden * 2.0, ranks)
    layer["collective"] = layer["collective"] + calls * latency
    layer["collective_bytes"] = layer["collective_bytes"] + payload


def _add_products(
    layer: dict[str, np.ndarray],
    structure: StepWork,
    products: tuple[Product, ...],
    tokens: np.ndarray,
    everywhere: np.ndarray,
    degrees: Degrees,
    experts: ExpertsFfn | None,
) -> None:
    part = structure.part
    active = np.minimum(tokens, 1.0)
    some = np.maximum(tokens, 1e-9)
    for product in products:
        share = product.tensor.share(tp=degrees.tp, ep=degrees.ep, expert_ranks=degrees.expert_ranks)
        routed = experts if product.tensor.tensor_class == "routed_experts" else None
        rule = structure.runs_as(product.format, "gemm" if routed is None else "experts")
        rate = part.rate(rule.compute)
        if routed is not None:
            width = product.tensor.columns
            ranks = degrees.expert_ranks
            all_tokens = np.maximum(everywhere, 1e-9)
            touched, pairs = busiest_rank(routed, all_tokens, degrees.ep)
            work = expert_work(
                tokens=all_tokens,
                experts=routed.experts / degrees.ep,
                assignments=pairs,
                slots=pairs,
                touched=np.maximum(touched, 1e-9),
                hidden=float(width),
                inner=routed.inner * degrees.ep / ranks,
                weight_bytes=product.format.bytes,
                activation_bytes=rule.activation_bytes,
                matrices=3.0 if routed.gated else 2.0,
            )
            work = _single_rows(work) if part.is_processor else work
            add_kernel(
                layer, work, structure.kernel("experts", rule), peak_flop=rate, bandwidth=part.bandwidth,
                slots=("expert_fixed", "expert_bytes", "expert_flop"), active=np.minimum(everywhere, 1.0),
            )  # fmt: skip
            continue
        inner = product.tensor.splits_input
        n = product.rows * (1.0 if inner else share)
        k = product.columns * (share if inner else 1.0)
        work = gemm_work(some, n, k, weight_bytes=product.format.bytes, activation_bytes=rule.activation_bytes)
        work = _single_rows(work) if part.is_processor else work
        add_kernel(
            layer, work, structure.kernel("gemm", rule), peak_flop=rate, bandwidth=part.bandwidth,
            slots=("gemm_fixed", "gemm_bytes", "gemm_flop"), active=active,
        )  # fmt: skip


def _single_rows(work: KernelWork) -> KernelWork:
    """On a processor a single row is a matrix-vector product, which has no tiles to waste."""
    return replace(work, rows=work.rows / np.clip(work.rows - 1.0, 1e-9, 1.0))
