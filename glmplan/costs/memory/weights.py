"""Return the weights of one rank as an engine holds them.

Padded, widened, in blocks of the allocator. Layers, vocabulary and rotary tables. The facts of each engine are in
`glmplan.catalog.engines.memory`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glmplan.catalog.engines.memory import ExpertKernel, Loading, MemoryRule
from glmplan.catalog.formats import WeightFormat, weight_format
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.blocks.auxiliary import ADAPTER_BYTES, TABLE, adapter_factors
from glmplan.costs.blocks.kinds import mixer_of, streams_of
from glmplan.costs.blocks.stack import EXPERTS, Segment, tensor_format, vocabulary_tensors
from glmplan.costs.blocks.tensor import Tensor
from glmplan.costs.memory.settings import MemorySettings
from glmplan.costs.points import Layout
from glmplan.units import Bytes, BytesArray, Ratio, TokenCount, TokensArray

__all__ = [
    "HeldTensor",
    "add_rotary",
    "add_stream_buffer",
    "add_vocabulary",
    "allocated_bytes",
    "expert_padding",
    "kept_format",
    "layer_weights",
    "padding_apart",
    "rotary_table_bytes",
    "rounding_bytes",
]


_MIB = 2**20
#: PyTorch's caching allocator: every size is a multiple of 512 B; from 10 MiB on a tensor gets a segment of its own, a
#: multiple of 2 MiB; a rest of more than 1 MiB is split off and may be used by other tensors
_SMALLEST, _OWN_SEGMENT, _SEGMENT, _SPLIT = 512, 10 * _MIB, 2 * _MIB, _MIB


@dataclass(frozen=True, slots=True, eq=False)
class HeldTensor:
    """One tensor as a rank keeps it."""

    tensor: Tensor
    form: WeightFormat
    size: BytesArray  # on the fullest rank


def allocated_bytes(size: BytesArray, *, reserved: bool = False) -> BytesArray:
    """Return the bytes that PyTorch's allocator counts for one tensor [1]_.

    `reserved`: segments taken from the driver, not only blocks given out. Not modelled: rests of segments that later
    tensors of 1 to 10 MiB fill, leftovers of conversions after loading.

    References
    ----------
    .. [1] pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp: kMinBlockSize, kMinLargeAlloc, kRoundLarge, should_split.

    Examples
    --------
    A down projection of Qwen3-32B on two cards asks for 125 MiB and gets 126; 12.5 MiB leave 1.5 to others:

    >>> (allocated_bytes(np.array([125.0, 12.5]) * 2**20) / 2**20).tolist()
    [126.0, 12.5]
    >>> (allocated_bytes(np.array([12.5]) * 2**20, reserved=True) / 2**20).tolist()
    [14.0]
    """
    small = np.ceil(size / _SMALLEST) * _SMALLEST
    segment = np.ceil(size / _SEGMENT) * _SEGMENT
    own = segment if reserved else np.where(segment - size > _SPLIT, small, segment)
    return np.where(size >= _OWN_SEGMENT, own, small)


#: parts of one parameter in engines that fuse projections of the same input
_FUSED = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
)


def rounding_bytes(held: Sequence[HeldTensor], loading: Loading) -> BytesArray | Bytes:
    """Return the allocator overhead of a layer's tensors.

    0 for engines that log the bytes of the files. Projections of the same input are one parameter; quantised values and
    their scales are two.
    """
    if loading.allocator == "files":
        return 0.0
    sizes: dict[object, tuple[np.ndarray, WeightFormat]] = {}
    for item in held:
        group = next((names for names in _FUSED if item.tensor.name in names), item.tensor.name)
        key = (group, item.form.name)
        before = sizes[key][0] if key in sizes else 0.0
        sizes[key] = (before + item.size, item.form)
    more: np.ndarray | float = 0.0
    for size, form in sizes.values():
        values = size * (2.0 ** np.floor(np.log2(form.bits))) / form.bits
        for piece in (values, size - values):
            more = more + allocated_bytes(piece, reserved=loading.allocator == "reserved") - piece
    return more


def expert_padding(tensor: Tensor, kernel: ExpertKernel | None, ranks: np.ndarray) -> np.ndarray | float:
    """Return the padding factor of a kernel on a routed expert tensor.

    Examples
    --------
    An expert of gpt-oss, 2880 wide both ways, on two ranks under Marlin: 1536 of 1440 and 3072 of 2880.

    >>> marlin = ExpertKernel("marlin", ("mxfp4",), 128, 256, "example")
    >>> down = Tensor("mlp.experts.down_proj", "routed_experts", 2880, 2880, 128, "experts", splits_input=True)
    >>> expert_padding(down, marlin, np.array([1.0, 2.0])).round(4).tolist()
    [1.0904, 1.1378]
    """
    if kernel is None or tensor.shard != "experts" or not tensor.matmul:
        return 1.0
    inner, hidden = (tensor.columns, tensor.rows) if tensor.splits_input else (tensor.rows, tensor.columns)
    # gate and up are one tensor of two inner widths
    doubled = 2.0 if not tensor.splits_input and tensor.name.endswith("gate_up_proj") else 1.0
    width = inner / doubled / ranks
    padded = np.ceil(width / kernel.inner) * kernel.inner
    multiple = (kernel.output or kernel.hidden) if tensor.splits_input else kernel.hidden
    wide = np.ceil(hidden / multiple) * multiple
    result: np.ndarray | float = padded * wide / (width * hidden)
    return result


def rotary_table_bytes(widths: Sequence[int], context: TokenCount, loading: Loading, *, multimodal: bool) -> Bytes:
    """Return the rotary tables; equal layers share one.

    `widths`: values of a head that the positions rotate, one for each table.

    Examples
    --------
    Qwen3-30B-A3B-2507 in vLLM: 262,144 positions of 128 values.

    >>> from glmplan.catalog.engines.memory import load_memory_rule
    >>> rotary_table_bytes([128], 262144, load_memory_rule("vllm").loading, multimodal=False) / 2**20
    64.0
    """
    positions = context * (loading.multimodal_positions if multimodal else 1)
    return positions * loading.rotary_bytes * sum(widths)


def kept_format(loading: Loading, model: str, tensor: Tensor, stored: WeightFormat) -> WeightFormat:
    """Return the format in which an engine keeps a tensor.

    The wider of the engine's and the files' format.
    """
    kept = loading.kept(model, tensor.tensor_class, tensor.name)
    return stored if kept is None or not tensor.matmul else max(kept, stored, key=lambda one: one.bits)


def layer_weights(
    model: str, part: Segment, degrees: Layout, settings: MemorySettings, offloaded: Ratio, moved: str = EXPERTS
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return a layer's weights on a rank by class, and on the host [B].

    Some engines keep tensors of a `model` wider. `offloaded`: share of the matrices of class `moved` in host memory.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> from glmplan.costs.blocks.stack import segments
    >>> llama, one = load_model("llama-3.1-8b"), np.array([1.0, 2.0])
    >>> layer = segments(llama, llama.checkpoint("bf16"))[0]
    >>> held, _ = layer_weights(llama.name, layer, Layout(tp=one), MemorySettings(), 0.0)
    >>> (sum(held.values()) / 2**20).round().tolist()
    [416.0, 208.0]
    """
    held, host = _held_tensors(model, part, degrees, settings, (moved, offloaded))
    zero = np.zeros_like(degrees.tp)
    result: dict[str, np.ndarray] = {}
    draft = part.name == "mtp"
    for item in held:
        name = "mtp" if draft else item.tensor.tensor_class
        result[name] = result.get(name, zero) + item.size
    rule, mixer = settings.rule, mixer_of(part.kind)
    if rule.absorbed_copy and mixer.absorbed_values and rule.caches_latents(settings.version):
        copies = mixer.absorbed_values * weight_format("bf16").bytes
        result["absorbed"] = copies / np.minimum(degrees.tp, mixer.heads)
    more = rounding_bytes(held, rule.loading)
    if np.any(more):
        name = "mtp" if draft else "rounding"
        result[name] = result.get(name, zero) + more
    if settings.adapters and not draft:
        factors = adapter_factors(part.tensors, tp=degrees.tp, ep=degrees.ep, expert_ranks=degrees.expert_ranks)
        result["adapters"] = settings.adapters * settings.adapter_rank * ADAPTER_BYTES * factors.values
    return result, host


def _held_tensors(
    model: str, part: Segment, degrees: Layout, settings: MemorySettings, away: tuple[str, Ratio]
) -> tuple[list[HeldTensor], np.ndarray]:
    """Return a layer's tensors on an accelerator, and host bytes."""
    loading = settings.rule.loading
    kernels: dict[str, ExpertKernel | None] = {}
    shares: dict[tuple[object, ...], np.ndarray] = {}
    left_out, whole = not settings.indexer and mixer_of(part.kind).indexed, mixer_of(part.kind).pieces == 1
    held, host = [], np.zeros_like(degrees.tp)
    for tensor, stored in zip(part.tensors, part.formats, strict=True):
        if left_out and tensor.tensor_class == "indexer":
            continue
        # over all layers, ranks hold the same number of pieces
        spread = tensor.shard == "heads" or (whole and tensor.tensor_class in ("latent_down", "indexer"))
        spread = spread and settings.unequal_pieces
        key = (spread, tensor.shard, tensor.units, tensor.copies if tensor.shard == "experts" else 1)
        if key not in shares:
            one = replace(tensor, shard="split") if spread else tensor
            shares[key] = one.share(tp=degrees.tp, ep=degrees.ep, expert_ranks=degrees.expert_ranks)
        form = kept_format(loading, model, tensor, stored)
        size = tensor.parameters * form.bytes * shares[key]
        if tensor.name == TABLE and settings.tables_on_host:
            host = host + size
            continue
        if tensor.tensor_class == EXPERTS:
            if form.name not in kernels:
                kernels[form.name] = settings.expert_kernel(form.name, model)
            size = size * expert_padding(tensor, kernels[form.name], degrees.expert_ranks / degrees.ep)
            size = size * (1.0 + settings.copied_scales(form.name) / form.bits)
        if tensor.tensor_class == away[0]:
            host = host + away[1] * size
            size = (1.0 - away[1]) * size
        held.append(HeldTensor(tensor, form, size))
    return held, host


def add_vocabulary(
    weights: dict[str, np.ndarray],
    model: ModelSpec,
    checkpoint: Checkpoint,
    degrees: Layout,
    settings: MemorySettings,
    ends: tuple[bool, np.ndarray],
) -> None:
    """Add embedding, output head and last norm of a stage to its `weights`.

    `ends`: the stage is the first; for each layout, it is the last.
    """
    first, last = ends
    rule, zero = settings.rule, np.zeros_like(degrees.tp)
    padded = rule.vocabulary_rows(model.vocabulary)
    on_last = np.where(last, 1.0, 0.0)
    # the embedding is on the first stage; a tied head needs a copy of it on the last
    embedding = zero + 1.0 if first else on_last * model.tied_embedding
    for tensor in vocabulary_tensors(model):
        form = kept_format(rule.loading, model.name, tensor, tensor_format(checkpoint, tensor, None))
        size = form.bytes
        if tensor.shard == "replicated":  # the last norm, and the fold of residual streams: no row for each token
            held = tensor.parameters * size * on_last
        else:
            copies = embedding if tensor.tensor_class == "embedding" else on_last
            alone = np.ceil(padded / degrees.tp) * tensor.columns * size
            held = alone * copies
            if rule.loading.allocator != "files":
                rounded = allocated_bytes(alone, reserved=rule.loading.allocator == "reserved")
                weights["rounding"] = weights.get("rounding", zero) + (rounded - alone) * copies
        weights[tensor.tensor_class] = weights.get(tensor.tensor_class, zero) + held
    if model.extra_parameters and checkpoint.includes_tower and first and rule.loading.tower:
        whole = model.extra_parameters if settings.whole_tower else model.extra_replicated
        extra = (whole + (model.extra_parameters - whole) / degrees.tp) * weight_format("bf16").bytes
        weights["other"] = weights.get("other", zero) + extra


def add_stream_buffer(
    weights: dict[str, np.ndarray], model: ModelSpec, loading: Loading, tokens: TokensArray, last: np.ndarray
) -> None:
    """Add the buffer of the residual streams on the last stage to `weights`.

    Made with the model, so logs count it with the weights; drafting layers read it.
    """
    if loading.buffers_streams(model.name):
        streams = streams_of(model.layers[model.layer_names[-1]]).streams
        size = tokens * streams * model.hidden * weight_format("bf16").bytes
        weights["other"] = weights.get("other", np.zeros(last.shape)) + np.where(last, size, 0.0)


def add_rotary(
    weights: dict[str, np.ndarray],
    model: ModelSpec,
    parts: tuple[Segment, ...],
    counts: np.ndarray,
    rule: MemoryRule,
) -> None:
    """Add rotary tables to `weights`, one for each width on a stage.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> from glmplan.costs.blocks.stack import segments
    >>> llama, held = load_model("llama-3.1-8b"), {}
    >>> layers = segments(llama, llama.checkpoint("bf16"))
    >>> add_rotary(held, llama, layers, np.array([[32]]), MemorySettings().rule)
    >>> round(float(held["rotary"][0]) / 2**20)
    32
    """
    widths: dict[int, np.ndarray] = {}
    for number, part in enumerate(parts):
        if rotary := mixer_of(part.kind).rotary_values:
            here = counts[:, number] > 0
            widths[rotary] = widths.get(rotary, np.zeros_like(here)) | here
    for rotary, here in widths.items():
        size = rotary_table_bytes([rotary], model.max_context, rule.loading, multimodal=model.multimodal_positions)
        if size:
            weights["rotary"] = weights.get("rotary", np.zeros(here.shape)) + np.where(here, size, 0.0)


def padding_apart(
    model: str, parts: Iterable[Segment], cut: np.ndarray, settings: MemorySettings
) -> tuple[float, float]:
    """Return the shares by which routed experts may be smaller or larger.

    Down to the bytes of the files, up to the widest padding that a source states for the format or a second copy of the
    scales that some builds keep; 0 where the kernel is known. The widest padding of a matrix counts for all.

    Examples
    --------
    gpt-oss on two ranks where no source says which kernel runs: Marlin makes 1536 of 1440 and 3072 of 2880.

    >>> from glmplan.catalog.entries.models import load_model
    >>> from glmplan.costs.blocks.stack import segments
    >>> gpt = load_model("gpt-oss-20b")
    >>> parts = segments(gpt, gpt.checkpoint("mxfp4"), mtp=False)
    >>> known = MemorySettings(engine="vllm", accelerator="h100-sxm")
    >>> padding_apart(gpt.name, parts, np.array([2.0]), known)
    (0.0, 0.0)
    >>> untold = MemorySettings(engine="sglang", accelerator="h100-sxm")
    >>> padding_apart(gpt.name, parts, np.array([2.0]), untold)[1] > 0.13
    True
    """
    smaller, larger = 0.0, 0.0
    for part in parts:
        for tensor, stored in zip(part.tensors, part.formats, strict=True):
            if tensor.tensor_class != "routed_experts":
                continue
            form = kept_format(settings.rule.loading, model, tensor, stored).name
            larger = max(larger, settings.copied_scales(form, certain=False) / weight_format(form).bits)
            possible = settings.possible_kernels(form, model)
            if not possible:
                continue
            taken = np.asarray(expert_padding(tensor, settings.expert_kernel(form, model), cut))
            widest = [float(np.max(expert_padding(tensor, item, cut) / taken)) for item in possible]
            larger = max(larger, max(widest) - 1.0)
            smaller = max(smaller, float(np.max(1.0 - 1.0 / taken)))
    return smaller, larger
