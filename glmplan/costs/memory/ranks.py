"""Return the memory of every rank: weights, cache, state, activations.

All tensor-parallel ranks of a pipeline stage are equal, so there is one `StageMemory` for each stage, for its fullest
rank. Points are (n,) arrays; stages and layers are looped over.

vLLM prints fewer tokens than the bytes of its pool would hold when layers of different kinds share its pages: layers
with the same cache are one kind, a kind with more layers than a group holds makes several groups, all groups draw pages
of one size from one pool, and a block is a page for each layer of a group [1]_.

References
----------
.. [1] vllm-project/vllm, vllm/v1/core/kv_cache_utils.py (`_get_kv_cache_groups_uniform_page_size`,
   `unify_kv_cache_spec_page_size`, `get_max_concurrency_for_kv_cache_config`), vllm/v1/kv_cache_interface.py
   (`SlidingWindowSpec`, `MambaSpec`), vllm/model_executor/models/config.py (`HybridAttentionMambaModelConfig`).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np

from glmplan.catalog.engines.defaults import drafting_limit
from glmplan.catalog.engines.memory import Paging, PoolSplit, ProfilingRun, pipeline_layers
from glmplan.catalog.formats import weight_format
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.blocks.kinds import mixer_of
from glmplan.costs.blocks.mixer import CachePage, LayerCache, Mixer
from glmplan.costs.blocks.stack import EXPERTS, Segment, is_indexed, moved_class, segments
from glmplan.costs.memory.activations import (
    PassStep,
    TrialStep,
    attention_bytes,
    expert_workspace_bytes,
    indexer_bytes,
    pass_bytes,
    pass_with_workspace,
    stage_peak,
    trial_run,
)
from glmplan.costs.memory.pages import PagedLayers
from glmplan.costs.memory.settings import MemorySettings
from glmplan.costs.memory.weights import (
    add_rotary,
    add_stream_buffer,
    add_vocabulary,
    layer_weights,
    padding_apart,
)
from glmplan.costs.points import Layout
from glmplan.units import Bytes, BytesArray, Ratio, TokenCount, Tokens, TokensArray

__all__ = [
    "CachedLayers",
    "PagedLaunch",
    "PoolShares",
    "RankMemory",
    "StageMemory",
    "keeps_index",
    "printed_tokens",
    "rank_memory",
    "shares_pages",
]


#: a kind with up to so many times the fewest layers makes one group with it; older versions took 1.25
_NEARLY_EQUAL = 1.5
#: an attention block that grows to the size of a state is a multiple of this [token]
_ALIGNED = 16.0


@dataclass(frozen=True, slots=True, eq=False)
class CachedLayers:
    """Layers of one stage with the same cache."""

    count: np.ndarray
    token: BytesArray  # of a token in one layer on a rank; 0 for recurrent layers
    window: TokenCount | None  # tokens after which it keeps no more
    state: BytesArray  # page for the state of a request, 0 for attention


@dataclass(frozen=True, slots=True, eq=False)
class PagedLaunch:
    """Settings of a launch that decide the printed cache size."""

    block: Tokens  # of an attention block, before it grows to the size of a state
    longest: TokensArray  # ``max_model_len``
    budget: TokensArray  # of a step
    drafted: Tokens = 0.0  # speculative tokens of a step, each with a state of its own
    dcp: np.ndarray | float = 1.0  # ranks that share the tokens of a block


def shares_pages(kinds: tuple[CachedLayers, ...]) -> bool:
    """Return True if groups of layers share pages.

    Some layers have a window or a state; the pool is printed by groups.

    Examples
    --------
    >>> one = np.ones(1)
    >>> shares_pages((CachedLayers(one, one, None, 0 * one),)), shares_pages((CachedLayers(one, one, 128, 0 * one),))
    (False, True)
    """
    return any(kind.window is not None or kind.state.any() for kind in kinds)


def printed_tokens(
    pool: BytesArray, kinds: tuple[CachedLayers, ...], paging: Paging, launch: PagedLaunch
) -> TokensArray:
    """Return the tokens that vLLM prints as the size of its KV cache.

    Not modelled: models whose kinds of layers have no common page (compressed attention), prefix caching switched off
    (a request then has one state and not two).

    Examples
    --------
    gpt-oss-120b on two ranks: 18 layers of full attention and 18 with a window of 128, 4 KV heads of 64 on each rank;
    a log of vLLM 0.22.1 says 2,560,976 tokens of 88.77 GiB at 2,068.

    >>> from glmplan.catalog.engines.memory import load_memory_rule
    >>> one = np.ones(1)
    >>> kinds = tuple(CachedLayers(18 * one, 1024 * one, window, 0 * one) for window in (None, 128))
    >>> rule = load_memory_rule("vllm").paging_of("0.22.1")
    >>> int(printed_tokens(88.77 * 2**30 * one, kinds, rule, PagedLaunch(16, 2068 * one, 8192 * one))[0])
    2560841
    """
    zero = np.zeros_like(pool)
    widest = np.max([np.where(kind.count > 0, kind.token, 0.0) for kind in kinds], axis=0)
    state = np.max([np.where(kind.count > 0, kind.state, 0.0) for kind in kinds], axis=0)
    per_token = np.where(widest > 0, widest, 1.0)
    own = np.maximum(launch.block, _ALIGNED * np.ceil(state / (_ALIGNED * per_token)))
    page = np.where(widest > 0, own * widest, state)
    fewest = np.min([np.where(kind.count > 0, kind.count, np.inf) for kind in kinds], axis=0)
    most = np.max([kind.count for kind in kinds], axis=0)
    group = np.where(most < _NEARLY_EQUAL * fewest, most, fewest)
    group = np.where(np.isfinite(group) & (group > 0), group, 1.0)
    blocks = np.floor(np.maximum(pool, 0.0) / np.where(page > 0, page * group, 1.0))
    groups, needed = zero, zero
    for item in kinds:
        share = np.ceil(item.count / group)
        # a stage of another layout may hold none of these layers, and then no page
        paged = (item.token > 0) & (page > 0)
        tokens = np.where(paged, page / np.where(paged, item.token, 1.0), own)
        if item.state.any():
            each = paging.states + launch.drafted + zero
        elif item.window is None:
            each = np.ceil(launch.longest / (tokens * launch.dcp))
        else:
            held = np.minimum(item.window - 1.0 + paging.batches * launch.budget, launch.longest)
            each = np.ceil(held / tokens) + 1.0
        groups, needed = groups + share, needed + share * each
    result: np.ndarray
    if paging.printed == "blocks":
        result = np.floor(blocks / np.maximum(groups, 1.0)) * own * launch.dcp
        return result
    result = np.floor(blocks / np.maximum(needed, 1.0) * launch.longest)
    return result


#: tokens of the window page for which SGLang keeps one ring of a compressor's states
_STATE_WINDOW = 128.0
#: hidden state and residual of a token, in 16 bit, for each value of the hidden size [B]
_STATES = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class StageMemory:
    """Memory of the fullest rank of one pipeline stage."""

    index: int
    held: np.ndarray  # True where a layout has this stage
    layers: np.ndarray  # MTP layers included
    #: by tensor class; ``mtp`` draft layers, ``absorbed`` second copies of up-projections, ``rotary`` position tables,
    #: ``rounding`` added by an allocator
    weights: dict[str, BytesArray]
    host: BytesArray  # weights of this rank in host memory
    per_token: BytesArray  # cache that grows with every token
    windows: tuple[tuple[np.ndarray, np.ndarray], ...]  # window layers: tokens kept of a request, bytes of each [B]
    state: BytesArray  # cache of each sequence, whatever its length
    activation: BytesArray  # peak of activations and logits
    kinds: tuple[CachedLayers, ...] = ()  # layers by cache; empty where one of them has a cache that no page holds
    pages: tuple[PagedLayers, ...] = ()  # caches by page, where those of one layer differ in page size
    expanded: np.ndarray | float = 0.0  # bytes of a token that the engine reserves for expanded latents, else 0 [B]
    expanded_tokens: np.ndarray | float = 0.0  # most tokens that one step may expand, else 0 [token]
    late_state: np.ndarray | float = 0.0  # of `state`: what compressors of many tokens have not pooled yet [B]

    @property
    def weight_bytes(self) -> BytesArray:
        """Return all weights on the accelerator."""
        return sum(self.weights.values(), np.zeros_like(self.per_token))

    def request_bytes(self, context: TokensArray | Tokens) -> BytesArray:
        """Return the cache of one request."""
        tokens = np.asarray(context, dtype=float)
        total = self.per_token * tokens + self.state
        for window, held in self.windows:
            total = total + held * np.minimum(tokens, window)
        result: np.ndarray = total
        return result


@dataclass(frozen=True, slots=True, eq=False)
class PoolShares:
    """Shares of a pool that the kinds of layers have, in SGLang."""

    states: Ratio  # memory of recurrent states over memory of keys and values
    states_each: float  # states that a request may take
    windows: Ratio  # tokens of window layers over tokens of the others
    #: states of compressors that a token of a window holds, over those of a request; 0: no compressed attention
    state_tokens: Ratio = 0.0
    requests: np.ndarray | float = 0.0  # requests with states of their own for late compressors; 0: as other states
    #: tokens of the pool over those without a draft layer, for which every token is widened
    drafted: Ratio = 1.0
    kept: np.ndarray | float = 0.0  # states of speculative tokens that are kept for all requests that may run


@dataclass(frozen=True, slots=True, eq=False)
class RankMemory:
    """Memory of all ranks of some layouts."""

    layout: Layout
    stages: tuple[StageMemory, ...]  # as many as the deepest layout has
    settings: MemorySettings
    draft: bool  # True: draft layers are loaded
    sparse: bool  # True: index keys are cached (then cache blocks are the larger ones)
    experts: int  # routed experts of a layer
    smaller: Ratio = 0.0  # 90 % interval of the weights towards less
    larger: Ratio = 0.0  # towards more
    budget: np.ndarray | float = 0.0  # tokens of a step [token]
    #: True: an engine that takes an estimate of CUDA graphs from the pool makes one for this model
    estimates_graphs: bool = True
    indexed: bool = False  # True: the model has an indexer, cached or left out
    #: layers and width of the vision tower as the config names them; None without a tower
    tower: tuple[int | None, int | None] | None = None
    split: PoolShares | None = None  # of an engine whose kinds of layers have pools of their own
    host_cache: StageMemory | None = None  # caches of layers in host memory, of all ranks; None: there are none

    @property
    def by_length(self) -> bool:
        """Return True if request lengths change the tokens of a pool.

        Windows and states do so.
        """
        return any(stage.windows or stage.state.any() or shares_pages(stage.kinds) for stage in self.stages)

    def caches_on(self, stage: StageMemory) -> np.ndarray:
        """Return True where a stage has caches in the accelerators' memory."""
        every = np.ones(stage.held.shape, dtype=bool)
        return every if self.host_cache is None else every & (stage.request_bytes(1.0) > 0)

    @property
    def weights(self) -> np.ndarray:
        """Return the weights of the fullest rank [B]."""
        result: np.ndarray = np.max([np.where(stage.held, stage.weight_bytes, 0.0) for stage in self.stages], axis=0)
        return result

    @property
    def per_token(self) -> np.ndarray:
        """Return the growing cache of a token on the rank with most of it [B]."""
        result: np.ndarray = np.max([np.where(stage.held, stage.per_token, 0.0) for stage in self.stages], axis=0)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """One layer of a segment on a rank, in bytes.

    `in_window`: of each token of a `window`; `state`: of each sequence; `buffers` stay after passes.
    """

    part: Segment
    weights: dict[str, np.ndarray]
    host: np.ndarray
    per_token: np.ndarray
    window: int | None
    in_window: np.ndarray
    state: np.ndarray
    activation: np.ndarray
    buffers: np.ndarray | float


def rank_memory(
    model: ModelSpec,
    checkpoint: Checkpoint,
    *,
    layout: Layout,
    kv: str,
    settings: MemorySettings | None = None,
    mtp: bool = False,
    memory: Bytes | None = None,
) -> RankMemory:
    """Return the memory of the fullest rank of every pipeline stage.

    `settings` default to vLLM's. `memory` of the accelerator decides defaults of some engines.

    Notes
    -----
    The first stage holds the embedding, the last one the head (with a tied one: a copy) and the MTP layers, which share
    both. The vocabulary is padded. Latent caches are the same on all TP ranks and only split by DCP; KV heads are
    repeated when TP exceeds them. Kernels pad experts, and allocator overhead counts where the engine counts it
    (`glmplan.costs.memory.weights`). Not modelled: padding of scales, page sizes that vLLM unifies for hybrid models,
    copies that loaders forget to free.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> llama = load_model("llama-3.1-8b")
    >>> memory = rank_memory(llama, llama.checkpoint("bf16"), layout=Layout(tp=np.array([1, 2])), kv="bf16")
    >>> (memory.weights / 2**30).round(2).tolist(), memory.per_token.tolist()
    ([14.99, 7.51], [131072.0, 65536.0])
    """
    settings = settings or MemorySettings()
    rule = settings.rule
    every = np.broadcast_arrays(*(np.asarray(item, dtype=float) for item in layout.degrees))
    degrees = Layout(*(np.atleast_1d(item) for item in every))
    bounds, where = _bounds_by_layout(model, settings, np.asarray(degrees.pp, dtype=int))
    deepest = int(np.max(degrees.pp))
    parts = segments(model, checkpoint, mtp=mtp)
    # options that move experts of layers count from the first layer, and MTP layers come after the last
    away = (1.0 if rule.host_experts else 0.0,) * 2 if settings.offloaded is None else (settings.offloaded, 0.0)
    moved = EXPERTS if settings.offloaded is None else moved_class(model)
    trial = trial_run(model, settings, quantised=_is_quantised(parts))
    step = PassStep(settings.budget(memory), degrees.tp, degrees.dp, degrees.ep)
    held = [
        _layer(
            part,
            kv,
            degrees,
            settings,
            weights=layer_weights(model.name, part, degrees, settings, away[part.name == "mtp"], moved),
            passing=_passing(model, part, trial, settings, step),
        )
        for part in parts
    ]
    stages = []
    for index in range(deepest):
        counts = np.array([[_within(part, edges, index) for part in parts] for edges in bounds])[where]
        stages.append(_stage(model, checkpoint, index, counts, held, degrees, kv, settings, memory, trial))
    stages, host_cache = _with_host_layers(stages, held, degrees, settings, memory)
    named = Layout(*(np.asarray(item, dtype=int) for item in degrees.degrees))
    sparse = settings.layout.index_keys and is_indexed(model)
    experts = max((t.copies for part in parts for t in part.tensors if t.shard == "experts"), default=0)
    drafts = mtp and bool(model.draft_runs)
    split = rule.split_of(settings.version)
    if split is not None and not split.applies(model.name, recurrent=any(stage.state.any() for stage in stages)):
        split = None
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
        None if split is None else _pool_shares(split, model, stages, settings, memory, drafts),
        host_cache,
    )


def _bounds_by_layout(
    model: ModelSpec, settings: MemorySettings, pp: np.ndarray
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return different `_stage_bounds`, and which of them each layout has."""
    if settings.partitions:
        bounds = [np.cumsum((0, *layers)) for layers in settings.partitions]
        return bounds, np.arange(len(pp)) % len(bounds)
    depths, where = np.unique(pp, return_inverse=True)
    return [_stage_bounds(model, settings, int(depth)) for depth in depths], where


def _stage_bounds(model: ModelSpec, settings: MemorySettings, depth: int) -> np.ndarray:
    """Return the first layer of each stage, and the number of layers."""
    left = max(len(model.layer_names) - settings.host_layers, 1)  # the output alone is a stage, too
    dealt = pipeline_layers(left, depth, settings.rule.pipeline)
    bounds: np.ndarray = settings.host_layers + np.cumsum((0, *dealt))
    return bounds


def _with_host_layers(
    stages: list[StageMemory], held: list[_Layer], degrees: Layout, settings: MemorySettings, memory: float | None
) -> tuple[list[StageMemory], StageMemory | None]:
    """Return the stages with leading layers on the host, and its caches.

    The first stage has the host memory of these layers. Without a cache on accelerators, that of every layer is there.
    None where the accelerators have all layers and caches.
    """
    if not settings.host_layers and not settings.host_cache:
        return stages, None
    zero = np.zeros_like(degrees.tp)
    host, per_token, state = stages[0].host, zero, zero
    windows: dict[int, np.ndarray] = {}
    for one in held:
        away = bisect_left(one.part.layers, settings.host_layers)
        host = host + away * (sum(one.weights.values(), zero) + one.host)
        cached = degrees.tp * (len(one.part.layers) if settings.host_cache else away)
        per_token, state = per_token + cached * one.per_token, state + cached * one.state
        if one.window is not None:
            windows[one.window] = windows.get(one.window, zero) + cached * one.in_window
    kept = tuple((_kept_tokens(one, settings, memory) + zero, size) for one, size in sorted(windows.items()))
    caches = StageMemory(-1, zero == 0, zero, {}, zero, per_token, kept, state, zero)
    stages = [replace(stages[0], host=host), *stages[1:]]
    if settings.host_cache:
        stages = [
            replace(one, per_token=zero, windows=(), state=zero, kinds=(), pages=(), late_state=0.0) for one in stages
        ]
    return stages, caches


def _pool_shares(
    split: PoolSplit,
    model: ModelSpec,
    stages: list[StageMemory],
    settings: MemorySettings,
    memory: float | None,
    drafts: bool,
) -> PoolShares:
    """Return the shares of the kinds of layers in a model's pool."""
    if not any(np.any(stage.late_state) for stage in stages):
        limit = drafting_limit(settings.engine) or 0
        running = limit if settings.max_requests is None else settings.max_requests
        kept = running * (1.0 + settings.drafted(drafts)) if drafts else 0.0
        return PoolShares(split.states, split.states_of(model.name), split.window_tokens(model.name), kept=kept)
    layers = len(model.layer_names)
    requests = settings.requests(memory) + 2.0 if split.late_states_each else 0.0
    return PoolShares(
        0.0,
        0.0,
        split.compressed,
        (2.0 if drafts else 1.0) / _STATE_WINDOW,
        requests,
        layers / (layers + 1.0) if drafts else 1.0,
    )


def _within(part: Segment, edges: np.ndarray, stage: int) -> int:
    """Return a segment's layers on a stage; draft layers are on the last."""
    if stage >= len(edges) - 1:
        return 0
    last = stage == len(edges) - 2
    upper = np.inf if last else edges[stage + 1]
    return bisect_left(part.layers, upper) - bisect_left(part.layers, edges[stage])  # their numbers rise


def _apart(
    model: str,
    checkpoint: Checkpoint,
    parts: tuple[Segment, ...],
    degrees: Layout,
    settings: MemorySettings,
    stages: list[StageMemory],
) -> tuple[float, float]:
    """Return the shares by which weights may be smaller or larger.

    The files decide, and padding without a source.
    """
    smaller, larger = padding_apart(model, parts, degrees.expert_ranks / degrees.ep, settings)
    held = ((stage.weights.get("routed_experts", 0.0), np.maximum(stage.weight_bytes, 1.0)) for stage in stages)
    share = max(float(np.max(experts / every)) for experts, every in held) if smaller or larger else 0.0
    return float(np.hypot(checkpoint.smaller, share * smaller)), float(np.hypot(checkpoint.larger, share * larger))


def _layer(
    part: Segment,
    kv: str,
    degrees: Layout,
    settings: MemorySettings,
    *,
    weights: tuple[dict[str, np.ndarray], np.ndarray],
    passing: tuple[np.ndarray, np.ndarray | float],
) -> _Layer:
    mixer = mixer_of(part.kind)
    cache = mixer.cache(kv, settings.layout)
    cached = 0.0 if part.name == "mtp" and not settings.rule.draft_cache_in_pool else 1.0
    share = cached / _cache_ranks(mixer, cache, degrees, settings)
    return _Layer(
        part,
        *weights,
        share * cache.per_token / degrees.dcp,
        cache.window,
        share * cache.in_window / degrees.dcp,
        share * cache.state,
        *passing,
    )


def _cache_ranks(mixer: Mixer, cache: LayerCache, degrees: Layout, settings: MemorySettings) -> np.ndarray:
    """Return the ranks over which the caches of such layers spread."""
    all_ranks = settings.unequal_pieces and cache.units >= mixer.pieces
    result: np.ndarray = np.minimum(degrees.tp, np.inf if all_ranks else cache.units)
    return result


def _passing(
    model: ModelSpec, part: Segment, run: ProfilingRun | None, settings: MemorySettings, step: PassStep
) -> tuple[np.ndarray, np.ndarray | float]:
    """Return the memory of one layer's pass, and the kept buffers.

    Its experts and its indexer keep buffers.
    """
    widest = pass_bytes(model, part.kind, run, settings, step)
    buffers = expert_workspace_bytes(part, model, settings=settings, step=step)
    if np.any(buffers):
        widest = np.maximum(widest, pass_with_workspace(part.kind, model.hidden, buffers, step))
    longest = model.max_context if settings.longest is None else settings.longest
    gathered, logits = indexer_bytes(part.kind, longest=longest, settings=settings)
    if not np.any(gathered):
        return widest, buffers
    attention = attention_bytes(model, part.kind, run, settings, step)
    if np.any(buffers):  # one allocation for both
        buffers = np.maximum(buffers, gathered)
        widest = pass_with_workspace(part.kind, model.hidden, buffers, step)
    else:
        buffers, widest = gathered, widest + gathered
    scoring = _STATES * np.asarray(step.tokens) * model.hidden + logits
    if mixer_of(part.kind).padded_values:  # the indexer runs beside queries and results, which exist before it
        attention = attention + logits
    return np.maximum(widest, buffers + np.maximum(attention, scoring)), buffers


def keeps_index(model: ModelSpec, settings: MemorySettings) -> bool:
    """Return True if a launch keeps index keys of its longest requests.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> glm = load_model("glm-5.1")
    >>> [keeps_index(glm, MemorySettings(engine=one)) for one in ("vllm", "sglang")]
    [True, False]
    """
    if not settings.indexer or settings.rule.indexer_of(settings.version) is None:
        return False
    return any(mixer_of(model.layers[name]).gathered_bytes for name, _ in model.runs)


def _is_quantised(parts: tuple[Segment, ...]) -> bool:
    """Return True if any weight matrix is stored in less than 16 bit."""
    return any(
        form.bits < 16
        for part in parts
        for tensor, form in zip(part.tensors, part.formats, strict=True)
        if tensor.matmul
    )


def _stage(
    model: ModelSpec,
    checkpoint: Checkpoint,
    index: int,
    counts: np.ndarray,
    held: list[_Layer],
    degrees: Layout,
    kv: str,
    settings: MemorySettings,
    memory: float | None,
    trial: ProfilingRun | None,
) -> StageMemory:
    parts = tuple(item.part for item in held)
    zero = np.zeros_like(degrees.tp)
    exists, last = degrees.pp > index, degrees.pp == index + 1
    weights: dict[str, np.ndarray] = {}
    host, per_token, state, late, activation, kept = zero, zero, zero, zero, zero, zero
    windows: dict[int, np.ndarray] = {}
    for one, count in zip(held, counts.T, strict=True):
        for name, size in one.weights.items():
            weights[name] = weights.get(name, zero) + count * size
        host = host + count * one.host
        per_token = per_token + count * one.per_token
        if one.window is not None:
            windows[one.window] = windows.get(one.window, zero) + count * one.in_window
        state = state + count * one.state
        late = late + count * one.state * mixer_of(one.part.kind).state_is_late
        activation = np.maximum(activation, np.where(count > 0, one.activation, 0.0))
        kept = np.maximum(kept, np.where(count > 0, one.buffers, 0.0))
    add_vocabulary(weights, model, checkpoint, degrees, settings, (index == 0, last))
    add_rotary(weights, model, parts, counts, settings.rule)
    add_stream_buffer(weights, model, settings.rule.loading, settings.budget(memory) + zero, last)
    head = model.draft_head
    if head is not None and head.method == "eagle3" and head.vocabulary is None and "mtp" in weights:
        # an output head as long as the model's
        own = np.ceil(model.vocabulary / degrees.tp) * model.hidden * weight_format("bf16").bytes
        tables = 1 + settings.rule.loading.keeps_draft_embedding(head, settings.version)
        weights["mtp"] = weights["mtp"] + np.where(last, tables * own, 0.0)
    requests = settings.requests(memory, degrees.tp) + zero
    step = TrialStep(settings.budget(memory) + zero, requests, last, "mtp" in weights, kept, index == 0)
    activation = stage_peak(model, activation, settings, step, run=trial, tp=degrees.tp)
    ordered = tuple((_kept_tokens(one, settings, memory) + zero, held) for one, held in sorted(windows.items()))
    buffer = settings.rule.step_of(settings.version)
    if buffer is not None and buffer.draft_states:
        state = state * (1.0 + settings.drafted("mtp" in weights))
    kinds = _kinds(parts, counts, degrees, kv, settings) if ordered or state.any() else ()
    pages = _pages(parts, counts, kv, settings) if ordered and settings.rule.paging else ()
    layers = counts.sum(axis=1)
    result = StageMemory(
        index, exists, layers, weights, host, per_token, ordered, state, activation, kinds, pages, late_state=late
    )
    expanded = _expanded(parts, counts, degrees, kv, settings)
    if not np.any(expanded):
        return result
    longest = model.max_context if settings.longest is None else settings.longest
    return replace(result, expanded=expanded, expanded_tokens=np.minimum(requests, step.tokens) * longest)


def _expanded(
    parts: tuple[Segment, ...], counts: np.ndarray, degrees: Layout, kv: str, settings: MemorySettings
) -> np.ndarray | float:
    """Return the bytes of a token reserved for expanded latents.

    The widest layer that attends densely decides.
    """
    reserve = settings.rule.expansion_of(settings.version, kv) if settings.rule.expansion else None
    if reserve is None:
        return 0.0
    widest: np.ndarray = np.zeros_like(degrees.tp)
    for part, count in zip(parts, counts.T, strict=True):
        mixer = mixer_of(part.kind)
        if mixer.expanded_values and not (mixer.indexed and settings.indexer):
            values = mixer.expanded_values + mixer.heads * mixer.rotary_values
            each = reserve.value * values / np.minimum(degrees.tp, mixer.heads)
            widest = np.maximum(widest, np.where(count > 0, each, 0.0))
    return widest


def _kept_tokens(window: int, settings: MemorySettings, memory: float | None) -> np.ndarray:
    """Return the tokens that a window layer keeps of a long request.

    A step more where slots are fixed at the start.
    """
    buffer = settings.rule.step_of(settings.version)
    if buffer is None:
        return np.asarray(float(window))
    multiple = buffer.window_multiple
    return np.ceil((window + settings.budget(memory)) / multiple) * multiple


def _pages(
    parts: tuple[Segment, ...], counts: np.ndarray, kv: str, settings: MemorySettings
) -> tuple[PagedLayers, ...]:
    """Return the caches of a stage by page, where a layer has several."""
    drafted = int(settings.drafted(any(part.name == "mtp" for part in parts)))
    result: dict[CachePage, np.ndarray] = {}
    for number, part in enumerate(parts):
        for page in mixer_of(part.kind).pages(kv, settings.layout, draft_tokens=drafted):
            result[page] = result.get(page, np.zeros(len(counts))) + counts[:, number]
    return tuple(PagedLayers(count, page) for page, count in result.items())


def _kinds(
    parts: tuple[Segment, ...], counts: np.ndarray, degrees: Layout, kv: str, settings: MemorySettings
) -> tuple[CachedLayers, ...]:
    """Return the layers of a stage by their cache on a rank."""
    drafted = int(settings.drafted(any(part.name == "mtp" for part in parts)))
    each_tp, where = np.unique(degrees.tp, return_inverse=True)
    result: dict[tuple[float, ...], CachedLayers] = {}
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
        if key in result:
            result[key] = replace(result[key], count=result[key].count + counts[:, number])
            continue
        token = each / _cache_ranks(mixer, cache, degrees, settings)
        result[key] = CachedLayers(counts[:, number].astype(float), token, cache.window, pages[where])
    return tuple(result.values())
