"""The work of one engine step: what is read, computed, sent and launched, at data-sheet peaks.

The rows are ideal times and counts, without any efficiency: `glmplan.step` turns them into a step time with fitted
efficiencies and latencies. Structure (model, formats, part) is looped over; points are arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from glmplan.blocks import grouped_query, latent, recurrent
from glmplan.blocks.feed_forward import distinct_experts
from glmplan.blocks.stack import vocabulary_tensors
from glmplan.blocks.storage import Segment, segments, tensor_format
from glmplan.blocks.tensor import Tensor
from glmplan.columns import Layout, StepPoints
from glmplan.errors import UnknownFact
from glmplan.formats import WeightFormat
from glmplan.schema.model import Checkpoint, ExpertsFfn, GroupedQuery, LatentAttention, LayerKind, ModelSpec, Recurrent

__all__ = ["SLOTS", "LinkPeak", "Part", "StepWork", "step_work"]

#: columns of the work table; seconds at peak rates, or counts [-]
SLOTS: tuple[str, ...] = (
    "host",  # engine steps, 1 a pass [-]
    "layer",  # layers launched [-]
    "moe_layer",  # mixture-of-experts layers launched [-]
    "state_layer",  # latent, sparse and recurrent layers launched [-]
    "request",  # tokens sampled on this replica [-]
    "activation",  # one pass over the hidden states of every layer, not split by TP [s]
    "wide_bytes",  # dense weights stored in 16 bit, read once [s]
    "wide_flop",  # products with them [s]
    "quantised_bytes",  # dense weights stored in fewer bits [s]
    "quantised_flop",
    "expert_bytes",  # routed experts that the batch visits [s]
    "expert_flop",
    "cache_bytes",  # KV cache, index keys and recurrent state read by decoding requests [s]
    "cache_flop",  # their scores and sums [s]
    "prefill_attention",  # attention of prompt tokens [s]
    "collective",  # collectives, weighted by 0.5 + 0.5 log2(ranks) [-]
    "collective_bytes",  # their payload over the link [s]
    "arrival",  # requests that the front end takes in, outside of steps [-]
    "prompt_token",  # prompt tokens that the front end reads, outside of steps [-]
)

#: tokens of padding that a grouped product wastes on each visited expert; CUTLASS and Triton tiles start at 16 rows
EXPERT_TILE_TOKENS = 16
#: recurrent states are kept in FP32 by vLLM and SGLang (`mamba_ssm_cache_dtype`), read and written once a step [B]
STATE_VALUE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Part:
    """Peak rates of an accelerator as the cost functions need them.

    Attributes
    ----------
    bandwidth : float
        Memory bandwidth, [B/s]
    peaks : dict
        Dense matrix rate for each precision that the part has, [FLOP/s]
    """

    bandwidth: float
    peaks: dict[str, float]

    def rate(self, compute: str) -> float:
        """Rate at which weights meant for a precision are multiplied; formats without hardware run in BF16.

        Parameters
        ----------
        compute : str
            Precision the format is meant for.

        Returns
        -------
        float
            [FLOP/s]

        Raises
        ------
        UnknownFact
            If no matrix rate of the part is published.

        Examples
        --------
        >>> Part(bandwidth=3.35e12, peaks={"bf16": 989e12, "fp8": 1978e12}).rate("fp4") / 1e12
        989.0
        """
        found = self.peaks.get(compute) or self.peaks.get("bf16") or self.peaks.get("fp8") or self.peaks.get("fp4")
        if not found:
            raise UnknownFact("no matrix rate of this part is published")
        return found


@dataclass(frozen=True, slots=True)
class LinkPeak:
    """The link that a tensor-parallel group crosses.

    Attributes
    ----------
    kind : str
        ``nvlink``, ``pcie``, ``fabric`` or ``unified``.
    bandwidth : float
        One direction for each rank, [B/s]
    """

    kind: str
    bandwidth: float


@dataclass(frozen=True)
class _Matrices:
    """Matrices of one layer that share class, format and sharding: parameters in all of them."""

    tensor: Tensor
    format: WeightFormat
    parameters: float


@dataclass(frozen=True)
class StepWork:
    """Everything that decides the work of a step except the points.

    Attributes
    ----------
    model : ModelSpec
        The model.
    checkpoint : Checkpoint
        How its weights are stored.
    part : Part
        Peak rates.
    link : LinkPeak
        Link of the tensor-parallel group.
    kv_bytes : float
        Bytes for each cached value of ordinary attention, [B]
    latent_bytes : float
        Bytes for each token and layer of a latent cache in the engine's layout, [B]; 0 takes values × `kv_bytes`
    sparse : bool
        Whether sparse attention kernels run; without them an indexed model attends densely.
    draft_tokens : int
        Tokens that MTP or a draft head proposes for each request and step, [-]
    verify_only : bool
        Leave the draft passes out (for engines whose draft is a separate model).
    """

    model: ModelSpec
    checkpoint: Checkpoint
    part: Part
    link: LinkPeak
    kv_bytes: float = 2.0
    latent_bytes: float = 0.0
    sparse: bool = True
    draft_tokens: int = 0
    verify_only: bool = False

    @cached_property
    def main(self) -> tuple[tuple[Segment, tuple[_Matrices, ...]], ...]:
        """Segments of the main model with their matrices grouped."""
        return tuple((part, _grouped(part.tensors, part.formats)) for part in segments(self.model, self.checkpoint))

    @cached_property
    def draft(self) -> tuple[tuple[Segment, tuple[_Matrices, ...]], ...]:
        """Segments of the MTP layers; empty without drafting."""
        if not self.draft_tokens or self.verify_only or self.model.mtp is None:
            return ()
        parts = segments(self.model, self.checkpoint, mtp=True)
        return tuple((part, _grouped(part.tensors, part.formats)) for part in parts if part.name == "mtp")

    @cached_property
    def head(self) -> tuple[_Matrices, ...]:
        """The output head."""
        rows = [tensor for tensor in vocabulary_tensors(self.model) if tensor.matmul]
        return _grouped(tuple(rows), tuple(tensor_format(self.checkpoint, tensor, None) for tensor in rows))


def _grouped(tensors: tuple[Tensor, ...], formats: tuple[WeightFormat, ...]) -> tuple[_Matrices, ...]:
    groups: dict[tuple[object, ...], _Matrices] = {}
    for tensor, form in zip(tensors, formats, strict=True):
        if not tensor.matmul:
            continue
        routed = tensor.tensor_class == "routed_experts"
        key = (routed, form.name, tensor.shard, tensor.units, tensor.copies if routed else 1)
        before = groups[key].parameters if key in groups else 0.0
        groups[key] = _Matrices(tensor, form, before + tensor.parameters)
    return tuple(groups.values())


def step_work(structure: StepWork, *, layout: Layout, points: StepPoints) -> dict[str, np.ndarray]:
    """Work of each step on its busiest accelerator.

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
    nothing. Not modelled: uneven routing between expert-parallel ranks, overlap of communication with compute.

    Examples
    --------
    >>> from glmplan.blocks.storage import uniform_checkpoint
    >>> from glmplan.schema.model import DenseFfn, GroupedQuery, LayerKind, ModelSpec
    >>> layer = LayerKind(mixer=GroupedQuery(heads=32, kv_heads=8, head_dim=128), ffn=(DenseFfn(inner=14336),))
    >>> llama = ModelSpec(name="8b", family="llama", hidden=4096, vocabulary=128256, max_context=8192,
    ...                   layers={"full": layer}, stack="full*32", source="example")
    >>> part = Part(bandwidth=3.35e12, peaks={"bf16": 989e12})
    >>> structure = StepWork(llama, uniform_checkpoint("bf16"), part, LinkPeak("nvlink", 450e9))
    >>> one = np.array([1.0])
    >>> points = StepPoints(one, one * 1000, one * 0, one * 0)
    >>> round(float(step_work(structure, layout=Layout(), points=points)["wide_bytes"][0]) * 1e3, 2)  # ms
    4.48
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
    degrees = _Degrees(tp, pp, dp, ep, tp * dp, dcp + zero)
    context = np.asarray(points.decode_context, dtype=float) + zero
    keys = np.asarray(points.prefill_context, dtype=float) + zero

    everyone = np.maximum(n / pp, np.minimum(n, 1.0))
    step = _Tokens(requests, requests * verify, prompt, everyone * verify + prefill / pp, context, keys)
    for part, matrices in structure.main:
        _add_layers(total, structure, part.kind, part.count, matrices, step, degrees)
    _add_matrices(total, structure, structure.head, step.decode, step.decode, degrees, None)
    total["host"] += 1.0
    total["request"] += step.decode
    if structure.draft:
        # each draft pass reads the MTP layers and the head once, for one token a request
        passes = float(structure.draft_tokens)
        one = _Tokens(requests * passes, requests * passes, zero, everyone * passes, context, zero)
        once = {name: zero.copy() for name in SLOTS}
        single = _Tokens(requests, requests, zero, everyone, context, zero)
        for part, matrices in structure.draft:
            _add_layers(once, structure, part.kind, part.count, matrices, single, degrees)
        _add_matrices(once, structure, structure.head, single.decode, single.decode, degrees, None)
        once["host"] += 0.25  # a draft pass launches no scheduler step of its own; its share is fitted with `layer`
        decoding = np.minimum(one.requests, 1.0)
        for name in SLOTS:
            total[name] += passes * once[name] * decoding
    stages = pp - 1.0
    total["collective"] += stages
    total["collective_bytes"] += (
        stages * (step.decode + prompt) * structure.model.hidden * 2.0 / structure.link.bandwidth
    )
    return total


@dataclass(frozen=True, slots=True)
class _Degrees:
    tp: np.ndarray
    pp: np.ndarray
    dp: np.ndarray
    ep: np.ndarray
    expert_ranks: np.ndarray
    dcp: np.ndarray


@dataclass(frozen=True, slots=True)
class _Tokens:
    requests: np.ndarray  # decoding on the fullest replica
    decode: np.ndarray  # their tokens, verified ones included
    prompt: np.ndarray  # prompt tokens on the replica
    everywhere: np.ndarray  # tokens of all replicas, which the experts see
    context: np.ndarray
    keys: np.ndarray


def _add_layers(
    total: dict[str, np.ndarray],
    structure: StepWork,
    kind: LayerKind,
    count: int,
    matrices: tuple[_Matrices, ...],
    step: _Tokens,
    degrees: _Degrees,
) -> None:
    part, hidden = structure.part, structure.model.hidden
    tokens = step.decode + step.prompt
    experts = next((block for block in kind.ffn if isinstance(block, ExpertsFfn)), None)
    layer: dict[str, Any] = dict.fromkeys(SLOTS, 0.0)
    _add_matrices(layer, structure, matrices, tokens, step.everywhere, degrees, experts)
    _add_attention(layer, structure, kind, step, degrees)
    layer["layer"] = 1.0
    layer["moe_layer"] = 1.0 if experts else 0.0
    recurrent_or_latent = isinstance(kind.mixer, LatentAttention | Recurrent)
    layer["state_layer"] = 1.0 if recurrent_or_latent else 0.0
    layer["activation"] = tokens * hidden * 2.0 / part.bandwidth
    # one all-reduce after the mixer and one after the feed-forward part, each over the ranks that share the layer
    reduces = (kind.mixer is not None) * 1.0 + (len(kind.ffn) > 0) * 1.0
    wide = np.where(degrees.dp > 1, degrees.expert_ranks, degrees.tp)
    several = np.minimum(wide - 1.0, 1.0)
    layer["collective"] = reduces * several * (0.5 + 0.5 * np.log2(wide))
    # a ring or switch all-reduce sends 2 (r-1)/r of the payload in and out of every rank
    layer["collective_bytes"] = reduces * 2.0 * (wide - 1.0) / wide * tokens * hidden * 2.0 / structure.link.bandwidth
    layer["collective"] = layer["collective"] + np.minimum(degrees.dcp - 1.0, 1.0) * 2.0
    for name, value in layer.items():
        total[name] += count * value


def _add_matrices(
    layer: dict[str, Any],
    structure: StepWork,
    matrices: tuple[_Matrices, ...],
    tokens: np.ndarray,
    everywhere: np.ndarray,
    degrees: _Degrees,
    experts: ExpertsFfn | None,
) -> None:
    part = structure.part
    for group in matrices:
        share = group.tensor.share(tp=degrees.tp, ep=degrees.ep, expert_ranks=degrees.expert_ranks)
        held = group.parameters * share
        rate = part.rate(group.format.compute)
        if group.tensor.tensor_class == "routed_experts" and experts is not None:
            visited = distinct_experts(experts, everywhere)
            read = visited / experts.experts * held * group.format.bytes
            rows = everywhere * experts.topk + visited * (EXPERT_TILE_TOKENS - 1) / 2
            flop = 2.0 * rows * group.parameters / experts.experts / degrees.expert_ranks
            layer["expert_bytes"] = layer["expert_bytes"] + read / part.bandwidth
            layer["expert_flop"] = layer["expert_flop"] + flop / rate
            continue
        slot = "wide" if group.format.bits >= 16 else "quantised"
        active = np.minimum(tokens, 1.0)
        layer[f"{slot}_bytes"] = layer[f"{slot}_bytes"] + held * group.format.bytes / part.bandwidth * active
        layer[f"{slot}_flop"] = layer[f"{slot}_flop"] + 2.0 * held * tokens / rate


def _add_attention(
    layer: dict[str, Any], structure: StepWork, kind: LayerKind, step: _Tokens, degrees: _Degrees
) -> None:
    part, mixer = structure.part, kind.mixer
    rate = part.rate("bf16")
    if isinstance(mixer, GroupedQuery):
        split = np.minimum(degrees.tp, mixer.kv_heads)
        keys = grouped_query.attended(mixer, step.context)
        width = mixer.kv_heads * (mixer.head_dim + (mixer.v_head_dim or mixer.head_dim))
        layer["cache_bytes"] = step.requests * keys * width * structure.kv_bytes / split / degrees.dcp / part.bandwidth
        layer["cache_flop"] = step.decode * grouped_query.core_flop(mixer, keys) / degrees.tp / rate
        seen = grouped_query.attended(mixer, step.keys)
        layer["prefill_attention"] = step.prompt * grouped_query.core_flop(mixer, seen) / degrees.tp / rate
    elif isinstance(mixer, LatentAttention):
        row = structure.latent_bytes or latent.cache_values_per_token(mixer) * structure.kv_bytes
        keys = latent.attended(mixer, step.context, sparse=structure.sparse)
        index = latent.index_key_bytes(mixer) if structure.sparse else 0
        read = step.requests * (keys * row + step.context * index) / degrees.dcp
        layer["cache_bytes"] = read / part.bandwidth
        scores = latent.absorbed_core_flop(mixer, keys) / degrees.tp
        if structure.sparse:
            scores = scores + latent.indexer_flop(mixer, step.context)
        layer["cache_flop"] = step.decode * scores / degrees.dcp / rate
        seen = latent.attended(mixer, step.keys, sparse=structure.sparse)
        prompt = latent.expanded_core_flop(mixer, seen) / degrees.tp
        if structure.sparse:
            prompt = prompt + latent.indexer_flop(mixer, step.keys)
        layer["prefill_attention"] = step.prompt * prompt / rate
    elif isinstance(mixer, Recurrent):
        split = np.minimum(degrees.tp, mixer.value_heads)
        state = recurrent.state_values(mixer) * STATE_VALUE_BYTES + recurrent.conv_values(mixer) * 2.0
        layer["cache_bytes"] = step.requests * 2.0 * state / split / part.bandwidth
        layer["prefill_attention"] = (step.prompt + step.decode) * recurrent.core_flop(mixer) / split / rate
