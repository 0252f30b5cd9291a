"""What every rank of a layout holds: weights by tensor class, cache for a token, state for a sequence, activations.

Ranks that hold the same are counted once: all tensor-parallel ranks of a pipeline stage are alike, so there is one
`StageMemory` for each stage, for its fullest rank. Points are arrays; stages and layers are looped over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from glmplan.facts.engines.loading import ExpertKernel
from glmplan.facts.engines.memory import MemoryRule, pipeline_layers
from glmplan.facts.formats import weight_format
from glmplan.facts.schema.model import Checkpoint, ModelSpec
from glmplan.physics.blocks.features import is_indexed
from glmplan.physics.blocks.kinds import mixer_of
from glmplan.physics.blocks.lookup import TABLE
from glmplan.physics.blocks.stack import vocabulary_tensors
from glmplan.physics.blocks.storage import Segment, segments, tensor_format
from glmplan.physics.blocks.tensor import Tensor
from glmplan.physics.memory.loaded import (
    HeldTensor,
    allocated_bytes,
    expert_padding,
    kept_format,
    rotary_table_bytes,
    rounding_bytes,
)
from glmplan.physics.memory.padding import padding_apart
from glmplan.physics.memory.pages import CachedLayers
from glmplan.physics.memory.passes import PassStep, pass_bytes, stage_peak, trial_run
from glmplan.physics.memory.profiling import TrialStep
from glmplan.physics.memory.settings import MemorySettings
from glmplan.physics.points import Layout

__all__ = ["RankMemory", "StageMemory", "rank_memory"]


@dataclass(frozen=True, slots=True)
class StageMemory:
    """The fullest rank of one pipeline stage; every field is an (n,) array unless said otherwise.

    Attributes
    ----------
    index : int
        Stage, from 0, [-]
    held : (n,) bool array
        Whether a layout has this stage.
    layers : array
        Layers on it, MTP layers included, [-]
    weights : dict of str to array
        Weights by tensor class; ``mtp`` for draft layers, ``absorbed`` for second copies of up-projections,
        ``rotary`` for tables of positions, ``rounding`` for what an allocator adds, [B]
    host : array
        Weights of this rank that stay in host memory, [B]
    per_token : array
        Cache that grows with every token, [B]
    windows : tuple of (int, array)
        Sliding windows [token] and their bytes for each token, [B]
    state : array
        Cache for each sequence, whatever its length, [B]
    activation : array
        Peak of activations and logits, [B]
    kinds : tuple of CachedLayers
        Its layers by what they cache; empty where one of them keeps what no page holds.
    """

    index: int
    held: np.ndarray
    layers: np.ndarray
    weights: dict[str, np.ndarray]
    host: np.ndarray
    per_token: np.ndarray
    windows: tuple[tuple[int, np.ndarray], ...]
    state: np.ndarray
    activation: np.ndarray
    kinds: tuple[CachedLayers, ...] = ()

    @property
    def weight_bytes(self) -> np.ndarray:
        """All weights on the accelerator, [B]"""
        return sum(self.weights.values(), np.zeros_like(self.per_token))

    def request_bytes(self, context: np.ndarray | float) -> np.ndarray:
        """Cache of one request.

        Parameters
        ----------
        context : numeric
            Its tokens, [token]

        Returns
        -------
        (n,) array
            [B]
        """
        tokens = np.asarray(context, dtype=float)
        total = self.per_token * tokens + self.state
        for window, held in self.windows:
            total = total + held * np.minimum(tokens, window)
        return total


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Memory of all ranks of some layouts.

    Attributes
    ----------
    layout : Layout
        Degrees as (n,) arrays, [-]
    stages : tuple of StageMemory
        As many as the deepest layout has.
    settings : MemorySettings
        Settings of the launch.
    draft : bool
        Whether draft layers are loaded.
    sparse : bool
        Whether the model caches index keys (then cache blocks are the larger ones).
    experts : int
        Routed experts of a layer, [-]
    budget : numeric
        Tokens of a step, [token]
    estimates_graphs : bool
        Whether an engine that takes its estimate of CUDA graphs from the pool makes one for this model.
    smaller, larger : float
        Shares by which the weights may be smaller or larger than computed (ends of a 90 % interval), [-]
    indexed : bool
        Whether the model has an indexer, cached or left out.
    tower : tuple of int or None
        Layers and width of the vision tower as the config names them, [-]; None without a tower.
    """

    layout: Layout
    stages: tuple[StageMemory, ...]
    settings: MemorySettings
    draft: bool
    sparse: bool
    experts: int
    smaller: float = 0.0
    larger: float = 0.0
    budget: np.ndarray | float = 0.0
    estimates_graphs: bool = True
    indexed: bool = False
    tower: tuple[int | None, int | None] | None = None

    @property
    def weights(self) -> np.ndarray:
        """Weights of the rank that holds most, [B]"""
        return np.max([np.where(stage.held, stage.weight_bytes, 0.0) for stage in self.stages], axis=0)

    @property
    def per_token(self) -> np.ndarray:
        """Growing cache for each token on the rank that holds most of it, [B]"""
        return np.max([np.where(stage.held, stage.per_token, 0.0) for stage in self.stages], axis=0)


@dataclass(frozen=True)
class _Degrees:
    tp: np.ndarray
    pp: np.ndarray
    dp: np.ndarray
    ep: np.ndarray
    dcp: np.ndarray

    def share(self, tensor: Tensor) -> np.ndarray:
        return tensor.share(tp=self.tp, ep=self.ep, expert_ranks=self.tp * self.dp)


def rank_memory(
    model: ModelSpec,
    checkpoint: Checkpoint,
    *,
    layout: Layout,
    kv: str,
    settings: MemorySettings | None = None,
    mtp: bool = False,
    memory: float | None = None,
) -> RankMemory:
    """Memory of the fullest rank of every pipeline stage.

    Parameters
    ----------
    model : ModelSpec
        The model.
    checkpoint : Checkpoint
        How its weights are stored.
    layout : Layout
        Parallel degrees; fields numbers or (n,) arrays, [-]
    kv : str
        KV cache format.
    settings : MemorySettings, optional
        Settings of the launch; vLLM's defaults if not given.
    mtp : bool, optional
        Whether MTP layers are loaded.
    memory : float, optional
        Memory of the part [B], by which some engines choose their defaults.

    Returns
    -------
    RankMemory
        One `StageMemory` for each stage.

    Raises
    ------
    SpecError
        If there are more stages than layers, or the formats do not exist.

    Notes
    -----
    The first stage holds the embedding, the last one the head (with a tied one: a copy) and the MTP layers, which share
    both. The vocabulary is padded. Latent caches are the same on all TP ranks and only split by DCP; KV heads are
    repeated when TP exceeds them. Kernels pad experts, and what an allocator adds counts where the engine counts it
    (`glmplan.physics.memory.loaded`). Not modelled: padding of scales, page sizes that vLLM unifies for hybrid models,
    copies that loaders forget to free.

    Examples
    --------
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.facts.schema.model import DenseFfn, GroupedQuery, LayerKind
    >>> layer = LayerKind(mixer=GroupedQuery(heads=32, kv_heads=8, head_dim=128), ffn=(DenseFfn(inner=14336),))
    >>> llama = ModelSpec(name="8b", family="llama", hidden=4096, vocabulary=128256, max_context=8192,
    ...                   layers={"full": layer}, stack="full*32", source="example")
    >>> found = rank_memory(llama, uniform_checkpoint("bf16"), layout=Layout(tp=np.array([1, 2])), kv="bf16")
    >>> (found.weights / 2**30).round(2).tolist(), found.per_token.tolist()
    ([14.96, 7.48], [131072.0, 65536.0])
    """
    settings = settings or MemorySettings()
    rule = settings.rule
    names = ("tp", "pp", "dp", "ep", "dcp")
    every = np.broadcast_arrays(*(np.asarray(getattr(layout, name), dtype=float) for name in names))
    degrees = _Degrees(*(np.atleast_1d(one) for one in every))
    depths, where = np.unique(degrees.pp.astype(int), return_inverse=True)
    bounds = [np.cumsum((0, *pipeline_layers(len(model.layer_names), int(depth), rule.pipeline))) for depth in depths]
    deepest = int(depths[-1])
    parts = segments(model, checkpoint, mtp=mtp)
    offloaded = (1.0 if rule.host_experts else 0.0) if settings.offloaded is None else settings.offloaded
    held = [_segment_weights(model.name, part, degrees, settings, offloaded) for part in parts]
    stages = []
    for index in range(deepest):
        counts = np.array([[_within(part, edges, index) for part in parts] for edges in bounds])[where]
        stages.append(_stage(model, checkpoint, index, counts, parts, held, degrees, kv, settings, memory))
    named = Layout(*(one.astype(int) for one in (degrees.tp, degrees.pp, degrees.dp, degrees.ep, degrees.dcp)))
    sparse = settings.layout.index_keys and is_indexed(model)
    experts = max((t.copies for part in parts for t in part.tensors if t.shard == "experts"), default=0)
    drafts = mtp and model.draft_layers is not None
    trial = trial_run(model, settings)
    return RankMemory(
        named,
        tuple(stages),
        settings,
        drafts,
        sparse,
        experts,
        *_apart(model.name, checkpoint, parts, degrees, settings, stages),
        settings.budget(memory),
        trial is None or trial.estimates_graphs,
        is_indexed(model),
        (model.tower_layers, model.tower_width) if model.extra_parameters else None,
    )


def _within(part: Segment, edges: np.ndarray, stage: int) -> int:
    """Layers of a segment on a stage; draft layers stand on the last one."""
    if stage >= len(edges) - 1:
        return 0
    last = stage == len(edges) - 2
    upper = np.inf if last else edges[stage + 1]
    return sum(edges[stage] <= layer < upper for layer in part.layers)


def _apart(
    model: str,
    checkpoint: Checkpoint,
    parts: tuple[Segment, ...],
    degrees: _Degrees,
    settings: MemorySettings,
    stages: list[StageMemory],
) -> tuple[float, float]:
    """Shares by which the weights may be smaller or larger: of the files, and by padding that no source tells, [-]"""
    smaller, larger = padding_apart(model, parts, degrees.tp * degrees.dp / degrees.ep, settings)
    held = ((stage.weights.get("routed_experts", 0.0), np.maximum(stage.weight_bytes, 1.0)) for stage in stages)
    share = max(float(np.max(experts / every)) for experts, every in held) if smaller or larger else 0.0
    return float(np.hypot(checkpoint.smaller, share * smaller)), float(np.hypot(checkpoint.larger, share * larger))


def _segment_weights(
    model: str, part: Segment, degrees: _Degrees, settings: MemorySettings, offloaded: float
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Weights of one layer on a rank, by class, and those in host memory."""
    held, host = _held_tensors(model, part, degrees, settings, offloaded)
    zero = np.zeros_like(degrees.tp)
    found: dict[str, np.ndarray] = {}
    draft = part.name == "mtp"
    for one in held:
        name = "mtp" if draft else one.tensor.tensor_class
        found[name] = found.get(name, zero) + one.size
    rule, mixer = settings.rule, mixer_of(part.kind)
    if rule.absorbed_copy and mixer.absorbed_values:
        copies = mixer.absorbed_values * weight_format("bf16").bytes
        found["absorbed"] = copies / np.minimum(degrees.tp, mixer.heads)
    more = rounding_bytes(held, rule.loading)
    if np.any(more):
        name = "mtp" if draft else "rounding"
        found[name] = found.get(name, zero) + more
    return found, host


def _held_tensors(
    model: str, part: Segment, degrees: _Degrees, settings: MemorySettings, offloaded: float
) -> tuple[list[HeldTensor], np.ndarray]:
    """Every tensor of one layer as a rank's accelerator keeps it, and the bytes that stay in host memory."""
    loading = settings.rule.loading
    kernels: dict[str, ExpertKernel | None] = {}
    shares: dict[tuple[object, ...], np.ndarray] = {}
    left_out = not settings.indexer and mixer_of(part.kind).indexed
    held, host = [], np.zeros_like(degrees.tp)
    for tensor, stored in zip(part.tensors, part.formats, strict=True):
        if left_out and tensor.tensor_class == "indexer":
            continue
        key = (tensor.shard, tensor.units, tensor.copies if tensor.shard == "experts" else 1)
        if key not in shares:
            shares[key] = degrees.share(tensor)
        form = kept_format(loading, model, tensor, stored)
        size = tensor.parameters * form.bytes * shares[key]
        if tensor.name == TABLE and settings.tables_on_host:
            host = host + size
            continue
        if tensor.tensor_class == "routed_experts":
            if form.name not in kernels:
                kernels[form.name] = settings.expert_kernel(form.name)
            size = size * expert_padding(tensor, kernels[form.name], degrees.tp * degrees.dp / degrees.ep)
            host = host + offloaded * size
            size = (1.0 - offloaded) * size
        held.append(HeldTensor(tensor, form, size))
    return held, host


def _stage(
    model: ModelSpec,
    checkpoint: Checkpoint,
    index: int,
    counts: np.ndarray,
    parts: tuple[Segment, ...],
    held: list[tuple[dict[str, np.ndarray], np.ndarray]],
    degrees: _Degrees,
    kv: str,
    settings: MemorySettings,
    memory: float | None,
) -> StageMemory:
    rule = settings.rule
    zero = np.zeros_like(degrees.tp)
    exists, last = degrees.pp > index, degrees.pp == index + 1
    weights: dict[str, np.ndarray] = {}
    host, per_token, state, activation = zero, zero, zero, zero
    windows: dict[int, np.ndarray] = {}
    run, each = trial_run(model, settings), PassStep(settings.budget(memory), degrees.tp, degrees.dp, degrees.ep)
    for number, part in enumerate(parts):
        count = counts[:, number]
        for name, size in held[number][0].items():
            weights[name] = weights.get(name, zero) + count * size
        host = host + count * held[number][1]
        cache = mixer_of(part.kind).cache(kv, settings.layout)
        cached = 0.0 if part.name == "mtp" and not rule.draft_cache_in_pool else 1.0
        share = cached * count / np.minimum(degrees.tp, cache.units)
        per_token = per_token + share * cache.per_token / degrees.dcp
        if cache.window is not None:
            windows[cache.window] = windows.get(cache.window, zero) + share * cache.in_window / degrees.dcp
        state = state + share * cache.state
        widest = pass_bytes(model, part.kind, run, settings, each)
        activation = np.maximum(activation, np.where(count > 0, widest, 0.0))
    _add_vocabulary(weights, model, checkpoint, degrees, rule, index == 0, last)
    _add_rotary(weights, model, parts, counts, rule)
    if model.draft_head is not None and "mtp" in weights:  # which has an output head of its own
        own = np.ceil(model.vocabulary / degrees.tp) * model.hidden * weight_format("bf16").bytes
        weights["mtp"] = weights["mtp"] + np.where(last, own, 0.0)
    step = TrialStep(
        settings.budget(memory) + zero, settings.requests(memory, degrees.tp) + zero, last, "mtp" in weights
    )
    activation = stage_peak(model, activation, settings, step, tp=degrees.tp, first=index == 0)
    ordered = tuple(sorted(windows.items()))
    kinds = _kinds(parts, counts, degrees, kv, settings) if ordered or state.any() else ()
    return StageMemory(index, exists, counts.sum(axis=1), weights, host, per_token, ordered, state, activation, kinds)


def _kinds(
    parts: tuple[Segment, ...], counts: np.ndarray, degrees: _Degrees, kv: str, settings: MemorySettings
) -> tuple[CachedLayers, ...]:
    """The layers of a stage by what they cache on a rank."""
    drafted = int(settings.drafted(any(part.name == "mtp" for part in parts)))
    each_tp, where = np.unique(degrees.tp, return_inverse=True)
    found: dict[tuple[float, ...], CachedLayers] = {}
    for number, part in enumerate(parts):
        mixer = mixer_of(part.kind)
        cache = mixer.cache(kv, settings.layout)
        if cache.per_token and cache.in_window:
            return ()
        if part.name == "mtp" and not settings.rule.draft_cache_in_pool:
            continue
        pages = np.array([mixer.state_page(tp=int(tp), draft_tokens=drafted) for tp in each_tp])
        each = cache.per_token + cache.in_window
        if not each and not pages.any():
            continue
        key = (each, cache.window or 0, cache.units, *pages.tolist())
        if key in found:
            found[key] = replace(found[key], count=found[key].count + counts[:, number])
            continue
        token = each / np.minimum(degrees.tp, cache.units)
        found[key] = CachedLayers(counts[:, number].astype(float), token, cache.window, pages[where])
    return tuple(found.values())


def _add_vocabulary(
    weights: dict[str, np.ndarray],
    model: ModelSpec,
    checkpoint: Checkpoint,
    degrees: _Degrees,
    rule: MemoryRule,
    first: bool,
    last: np.ndarray,
) -> None:
    zero = np.zeros_like(degrees.tp)
    padded = -(-model.vocabulary // rule.vocabulary_multiple) * rule.vocabulary_multiple
    on_last = np.where(last, 1.0, 0.0)
    # the embedding stands on the first stage; a tied head needs a copy of it on the last
    embedding = zero + 1.0 if first else on_last * model.tied_embedding
    for tensor in vocabulary_tensors(model):
        size = tensor_format(checkpoint, tensor, None).bytes
        if tensor.tensor_class == "norm":
            held = tensor.parameters * size * on_last
        else:
            copies = embedding if tensor.tensor_class == "embedding" else on_last
            alone = np.ceil(padded / degrees.tp) * tensor.columns * size
            held = alone * copies
            if rule.loading.allocator != "files":
                rounded = allocated_bytes(alone, reserved=rule.loading.allocator == "reserved")
                weights["rounding"] = weights.get("rounding", zero) + (rounded - alone) * copies
        weights[tensor.tensor_class] = weights.get(tensor.tensor_class, zero) + held
    if model.extra_parameters and first and rule.loading.tower:
        whole = model.extra_replicated
        extra = (whole + (model.extra_parameters - whole) / degrees.tp) * weight_format("bf16").bytes
        weights["other"] = weights.get("other", zero) + extra


def _add_rotary(
    weights: dict[str, np.ndarray],
    model: ModelSpec,
    parts: tuple[Segment, ...],
    counts: np.ndarray,
    rule: MemoryRule,
) -> None:
    """Tables of rotary positions: one on every stage that has a layer of their width."""
    widths: dict[int, np.ndarray] = {}
    for number, part in enumerate(parts):
        if rotary := mixer_of(part.kind).rotary_values:
            here = counts[:, number] > 0
            widths[rotary] = widths.get(rotary, np.zeros_like(here)) | here
    for rotary, here in widths.items():
        size = rotary_table_bytes([rotary], model.max_context, rule.loading, multimodal=model.multimodal_positions)
        if size:
            weights["rotary"] = weights.get("rotary", np.zeros(here.shape)) + np.where(here, size, 0.0)
