"""Compute the KV pool of a layout and the requests that it holds.

Weights, cache and state follow from the model (`glmplan.costs.memory.ranks`), the sizing rule from the engine
(`glmplan.catalog.engines.memory`). Driver context, buffers and workspaces are observed means with a spread, so every
pool has an interval. All arrays are (n,), one entry for each layout.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from glmplan.catalog.engines.memory import Paging, static_fraction, tower_factor
from glmplan.costs.memory.pages import block_requests, block_tokens, longest_requests, plans_of
from glmplan.costs.memory.ranks import PagedLaunch, PoolShares, RankMemory, StageMemory, printed_tokens, shares_pages
from glmplan.costs.memory.settings import MemoryFit, PartMemory, Spread, load_memory_fit
from glmplan.units import GIB, QUANTILE_90, Bytes, BytesArray, Ratio, Tokens, TokensArray

__all__ = [
    "DEFAULT_GRAPHS",
    "KvPool",
    "MemoryBudget",
    "PoolTerms",
    "budget_rows",
    "graph_estimate",
    "keys_share",
    "kv_pool",
    "largest_context",
    "launch_kinds",
    "longest_held",
    "printed_of_bytes",
    "requests_by_states",
    "requests_held",
    "requests_that_fit",
    "share_beside_expansion",
    "split_pool",
    "stage_pools",
    "weights_interval",
]


#: tokens of a window page, for which SGLang keeps one ring of a compressor's states
_STATE_PAGE = 128.0
#: blocks of the cache that LMDeploy keeps when it chooses its step
_LEAST_BLOCKS = 16.0
#: halvings after which no step is left, for all steps below 2^32 tokens [-]
_HALVINGS = 32


def split_pool(
    stage: StageMemory, pool: BytesArray, context: TokensArray, split: PoolShares
) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens in full-attention layers, and requests in the others.

    The requests are infinite where neither windows nor states limit them. SGLang gives states a fixed share of the
    pool and window layers a fixed share of the tokens of the others [1]_. In compressed attention every token of a
    window holds its share of the states of compressors, and the draft layer widens every token by that of a layer;
    from 0.5.15 on compressors of 128 tokens keep a ring for every request that may run [2]_. When it drafts, recurrent
    layers keep a state of each drafted token of every request that may run. Not modelled: the ring buffers of 0.5.23.

    References
    ----------
    .. [1] sgl-project/sglang, python/sglang/srt/model_executor/pool_configurator.py (HybridSWAPoolConfigurator),
       model_runner_kv_cache_mixin.py (handle_max_mamba_cache).
    .. [2] The same, DSV4PoolConfigurator, and arg_groups/deepseek_v4_hook.py, packages of 0.5.12 to 0.5.15: 1,868,800
       tokens of DeepSeek-V4-Pro in 41.1 GiB of each of four GB300 are 23.6 kB each, this gives 23.7.
    """
    windows = split.windows
    room = np.maximum(pool - stage.state * split.kept, 0.0)
    limit = np.full_like(room, np.inf)
    cache = room
    in_windows = sum((held for _, held in stage.windows), np.zeros_like(stage.per_token))
    if split.state_tokens:
        drafting = split.state_tokens * _STATE_PAGE
        cache = np.maximum(room - stage.late_state * drafting * split.requests, 0.0) * split.drafted
        scoped = np.asarray(split.requests) > 0
        in_windows = in_windows + split.state_tokens * (stage.state - stage.late_state * scoped)
    elif stage.state.any():
        cache = room / (1.0 + split.states)
        limit = _state_slots(stage, room - cache, split)
    token = stage.per_token + windows * in_windows
    full = np.where(token > 0, cache / np.where(token > 0, token, 1.0), np.inf)
    if windows < 1.0:
        for window, _ in stage.windows:
            limit = np.minimum(limit, windows * full / np.minimum(context, window))
    return full, limit


def _state_slots(stage: StageMemory, budget: BytesArray, split: PoolShares) -> np.ndarray:
    """Return the requests whose recurrent states fit into their share."""
    each = np.where(stage.state > 0, stage.state, 1.0) * split.states_each
    return np.where(stage.state > 0, np.floor(budget / each), np.inf)


def requests_by_states(
    memory: RankMemory, part: PartMemory, *, prefix_cache: bool = True, fit: MemoryFit | None = None
) -> np.ndarray:
    """Return the most requests that run at once by their recurrent states.

    The sum over all replicas. Infinite where states have no part of the pool of their own. SGLang runs no more
    requests than it has slots for states, however short they are; without `prefix_cache` a request takes one [1]_.

    References
    ----------
    .. [1] sgl-project/sglang, python/sglang/srt/model_executor/model_runner_kv_cache_mixin.py (init_memory_pool,
       _calculate_mamba_ratio), packages of 0.5.9 to 0.5.15.

    Examples
    --------
    Qwen3.5-397B on eight ranks of 141 GB:

    >>> from glmplan.catalog.entries.models import load_model
    >>> from glmplan.costs.memory.ranks import rank_memory
    >>> from glmplan.costs.memory.settings import MemorySettings
    >>> from glmplan.costs.points import Layout
    >>> model, told = load_model("qwen3.5-397b-a17b"), MemorySettings(engine="sglang", version="0.5.9")
    >>> held = rank_memory(model, model.checkpoint("fp8"), layout=Layout(tp=8), kv="bf16", settings=told)
    >>> bool(np.isfinite(requests_by_states(held, PartMemory(150e9, 149e9, 0.0, "nvlink"))[0]))
    True
    """
    most = np.full_like(np.asarray(memory.layout.tp, dtype=float), np.inf)
    split = memory.split
    if split is None or split.state_tokens:
        return most
    for stage, terms in zip(memory.stages, stage_pools(memory, part, fit), strict=True):
        room = np.maximum(terms.pool - stage.state * split.kept, 0.0)
        slots = _state_slots(stage, room * split.states / (1.0 + split.states), split)
        most = np.minimum(most, slots if prefix_cache else np.floor(slots * split.states_each))
    return most * np.asarray(memory.layout.dp, dtype=float)  # type: ignore[no-any-return]


def requests_held(stage: StageMemory, pool: np.ndarray, context: np.ndarray, split: PoolShares) -> np.ndarray:
    """Return the whole requests that a split pool holds."""
    full, requests = split_pool(stage, pool, context, split)
    result: np.ndarray = np.floor(np.minimum(full / context, requests))
    return result


def longest_held(stage: StageMemory, pool: np.ndarray, split: PoolShares) -> TokensArray:
    """Return the longest request of a split pool.

    Infinite where no layer keeps all tokens, 0 where the other layers do not hold one request.
    """
    full, requests = split_pool(stage, pool, np.ones_like(pool), split)
    return np.where(requests >= 1.0, np.where(stage.per_token > 0, full, np.inf), 0.0)


def share_beside_expansion(stage: StageMemory, budget: BytesArray) -> np.ndarray | float:
    """Return the pool's share of a budget that expansions also need.

    Expansions cover the tokens of the pool, at most those of a step [1]_. The share is 1 if the engine reserves none.
    The budget is negative where nothing is left.

    References
    ----------
    .. [1] NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/_util.py (get_mla_context_workspace_reserve).

    Examples
    --------
    DeepSeek-R1 on eight ranks: 61 layers of 576 B beside 16 heads of 192 + 128 values.

    >>> from glmplan.catalog.entries.models import load_model
    >>> from glmplan.costs.memory.ranks import rank_memory
    >>> from glmplan.costs.memory.settings import MemorySettings
    >>> from glmplan.costs.points import Layout
    >>> model, told = load_model("deepseek-r1"), MemorySettings(engine="trtllm", version="1.3.0rc23")
    >>> held = rank_memory(model, model.checkpoint("fp8"), layout=Layout(tp=8), kv="fp8", settings=told)
    >>> round(float(share_beside_expansion(held.stages[0], np.array([4e10]))[0]), 4), round(35136 / (35136 + 5120), 4)
    (0.8728, 0.8728)
    """
    if not np.any(stage.expanded):
        return 1.0
    each = stage.per_token + stage.expanded
    tokens = np.minimum(budget / np.where(each > 0, each, 1.0), stage.expanded_tokens)
    left: np.ndarray = np.where(budget > 0, 1.0 - stage.expanded * tokens / np.where(budget > 0, budget, 1.0), 1.0)
    return left


#: CUDA graphs of a default vLLM launch: sizes 1, 2, 4, then every 8 to 256 and every 16 to 512
DEFAULT_GRAPHS = 51


@dataclass(frozen=True, slots=True, eq=False)
class KvPool:
    """KV pool of a layout."""

    bytes: BytesArray  # on the rank that limits; negative when the launch does not fit
    tokens: TokensArray  # of all data-parallel ranks together, whole blocks
    tokens_low: TokensArray  # this and the next: 90 % interval
    tokens_high: TokensArray
    sd: BytesArray  # standard deviation of `bytes` towards less
    stage: np.ndarray  # pipeline stage that limits
    fits: np.ndarray  # True where at least one block is left on every rank
    #: cache size that one engine process prints; differs from `tokens` where windows or states share pages
    printed: TokensArray
    printed_low: TokensArray  # this and the next: 90 % interval
    printed_high: TokensArray
    #: excess over the memory of the fullest rank, pool and concurrent use included; at most 0 where it fits
    over: BytesArray
    over_low: BytesArray  # the same at the low end of the 90 % intervals of observed terms and graphs


@dataclass(frozen=True, slots=True, eq=False)
class PoolTerms:
    """Memory of a stage's rank besides weights and cache.

    `pool` is the rest that the engine's rule leaves.
    """

    context: BytesArray  # driver context and communication buffers
    remainder: BytesArray  # further use of the engine
    graphs: BytesArray
    limit: BytesArray  # limit of the launch by the rule
    pool: BytesArray  # negative when nothing is left
    variance: np.ndarray  # of `pool` by observed terms [B²]
    less: np.ndarray  # variance of `pool` towards less, from the weights [B²]
    more: np.ndarray  # the same towards more [B²]
    graphs_sd: BytesArray
    estimate: BytesArray  # taken from the pool for graphs before they are captured; 0 where it is not
    share: np.ndarray  # of the remaining memory that becomes the pool
    activation: BytesArray  # of a step, which some engines make smaller where little memory is left

    def deviation(self, quantile: Ratio) -> BytesArray:
        """Return the standard deviation of `pool` below (< 0) or above the mean."""
        return np.sqrt(self.variance + (self.less if quantile < 0 else self.more))


@dataclass(frozen=True, slots=True, eq=False)
class _OtherMemory:
    """Memory besides weights and activations: mean [B], variance [B²]."""

    context: np.ndarray
    variance: np.ndarray
    remainder: Spread


@dataclass(frozen=True, slots=True, eq=False)
class _Launch:
    """Terms that all stages of a launch share.

    See `_observed`, `_fraction`, `_graphs`, `weights_interval`.
    """

    beside: _OtherMemory
    fraction: np.ndarray
    graphs: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
    weights: tuple[float, float]


def _observed(fit: MemoryFit, memory: RankMemory, part: PartMemory) -> _OtherMemory:
    """Return context and buffers of each layout, and the engine's remainder."""
    alone = np.asarray(memory.layout.accelerators) == 1
    engine = memory.settings.engine
    trial = memory.settings.rule.profiling_of(memory.settings.version, dense=True)
    if engine in fit.outside and trial is not None:
        context, sd = _by_kind(memory, part, fit.outside[engine])
        held, least = _counted_communicators(fit, memory, part)
        if any(stage.pages for stage in memory.stages) and "several" in fit.outside[engine]:
            # no fit but that of compute capability 10 has a log with kernels of compressed attention
            least = np.maximum(least, fit.outside[engine]["several"].sd)
        return _OtherMemory(context + held, np.maximum(sd, least) ** 2, Spread(0.0, 0.0, 0))
    # the system's own use of a shared memory counts in pools of free memory; Metal's limit is below that
    shares_free = part.link == "unified" and part.capability and memory.settings.rule.pool != "total"
    single = fit.context["single"]
    single = fit.context.get("unified", single) if shares_free else single
    linked = single if part.link == "unified" else fit.context.get(part.link, fit.context["pcie"])
    more = _of_rocm(fit, part)
    context = np.where(alone, single.mean, linked.mean + more.mean)
    variance = np.where(alone, single.sd**2, linked.sd**2 + more.sd**2)
    others = fit.remainder["pooled"]
    if memory.settings.rule.pool == "rest":  # its margin stands in the rule, and there is no trial run that takes more
        others = replace(others, mean=0.0)
    own = fit.remainder.get(engine, others)
    if part.capability.startswith("gfx"):  # every logged remainder is of CUDA: its spread says nothing of ROCm
        own = replace(own, sd=max(own.sd, others.sd))
    return _OtherMemory(context, variance, own)


def _counted_communicators(fit: MemoryFit, memory: RankMemory, part: PartMemory) -> tuple[np.ndarray, np.ndarray]:
    """Return communicators that an older release takes from its pool.

    Mean and least standard deviation; 0 for later releases, which make communicators before they look at the memory
    first [1]_. The mean is what a launch holds before weights beyond one on a single accelerator. No log of the fit is
    of such a launch, so its spread is that of all launches on several accelerators.

    Notes
    -----
    Without peer-to-peer access the buffers are in host memory. Replicas of attention alone are left out: eight of them
    log 0.1 GiB less than computed without communicators [2]_, although the source makes one for their group, too.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/v1/worker/gpu_worker.py (init_device), packages of 0.9.2, 0.10.2 and 0.11.0; pull
       request 25359. Two H200 under 0.10.2 log 1.38 GiB outside torch, two H100 under 0.11.0 log 0.55.
    .. [2] https://github.com/vllm-project/recipes/pull/12 (0.10.1, eight H20: 48.66 GiB at 0.90 and 55.65 at 0.95)
    """
    linked = fit.context.get(part.link)
    counted = memory.settings.rule.counts_communicators(memory.settings.version)
    if not counted or linked is None or part.link == "unified" or not part.peer_to_peer:
        return (zero := np.zeros_like(np.asarray(memory.layout.tp, dtype=float))), zero
    group = np.asarray(memory.layout.tp) * np.asarray(memory.layout.pp) > 1
    seen = fit.outside[memory.settings.engine]
    more, spread = max(linked.mean - fit.context["single"].mean, 0.0), seen["several"].sd if "several" in seen else 0.0
    return np.where(group, more, 0.0), np.where(group, spread, 0.0)


def _of_rocm(fit: MemoryFit, part: PartMemory) -> Spread:
    """Return the memory of ROCm communicators beyond those of CUDA.

    Over the same kind of link. They are the library's, so vLLM's logs, the only ones on ROCm in the fit, tell them for
    every engine.
    """
    seen = fit.outside.get("vllm", {})
    if not part.capability.startswith("gfx") or part.link != "nvlink" or not {"nvlink-rocm", "nvlink"} <= set(seen):
        return Spread(0.0, 0.0, 0)
    own, other = seen["nvlink-rocm"], seen["nvlink"]
    return Spread(own.mean - other.mean, float(np.hypot(own.sd, other.sd)), own.count)


def launch_kinds(part: PartMemory, *, several: bool, indexed: bool) -> tuple[str, ...]:
    """Return the kinds of a launch for observed memory terms, narrowest first.

    They are keys of `MemoryFit.outside`, `MemoryFit.estimate` and `MemoryFit.captured`; the last one always has a
    value.

    Notes
    -----
    Models with an indexer run over PCIe from community images, either sparsely with their own kernels and arenas or
    densely with the indexer patched out; all logs are of the first. Communicators hold buffers on the accelerators
    where these reach each other over PCIe, otherwise in host memory. On compute capability 10 attention, experts and
    all-reduce run on FlashInfer kernels with workspaces of their own. ROCm has libraries and communicators of its own.
    Where host and accelerator share one memory, free memory changes with the use of the host and its page cache, and so
    does every difference that the engine computes from it: one kind for one accelerator and several.

    Examples
    --------
    >>> one = PartMemory(80e9, 79e9, 0.0, "nvlink", capability="10.3")
    >>> launch_kinds(one, several=True, indexed=False), launch_kinds(one, several=False, indexed=False)
    (('nvlink-10', 'nvlink', 'several'), ('single-10', 'single'))
    >>> launch_kinds(PartMemory(80e9, 79e9, 0.0, "nvlink", capability="gfx950"), several=True, indexed=False)
    ('nvlink-rocm', 'nvlink', 'several')
    """
    flashinfer = part.link == "nvlink" and part.capability.startswith("10.")
    link = part.link
    if link == "unified":
        return link, "several" if several else "single"
    if not several:
        own = "single-10" if flashinfer else "single-rocm" if part.capability.startswith("gfx") else "single"
        return tuple(dict.fromkeys((own, "single")))
    if link == "pcie":
        link = "pcie-sparse" if indexed else "pcie-peer" if part.peer_to_peer else "pcie"
    elif flashinfer:
        link = "nvlink-10"
    elif part.capability.startswith("gfx"):
        link = "nvlink-rocm"
    return tuple(dict.fromkeys((link, part.link, "several")))


def weights_interval(memory: RankMemory, fit: MemoryFit) -> tuple[float, float]:
    """Return the shares by which logged weights may differ from computed.

    Smaller and larger. Ends of a 90 % interval: uncertainty of the files and of loading, added in quadrature. An engine
    with too few logged sources takes the widest interval of the others.
    """
    result = fit.loaded.get(memory.settings.engine)
    apart = max((item.share for item in fit.loaded.values()), default=0.0) if result is None else result.share
    return float(np.hypot(memory.smaller, apart)), float(np.hypot(memory.larger, apart))


def _by_kind(memory: RankMemory, part: PartMemory, seen: dict[str, Spread]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation over launches of each layout's kind.

    Without logs of the kind itself the next wider kind gives the mean. Its spread says nothing about the narrower kind,
    so the spread is at least that of all launches on several accelerators, as for a kind with one source.
    """
    alone = np.asarray(memory.layout.accelerators) == 1
    result = []
    for several in (False, True):
        kinds = launch_kinds(part, several=several, indexed=memory.indexed)
        kind = next(each for each in kinds if each in seen)
        wide = seen["several"].sd if kind != kinds[0] and "several" in seen else 0.0
        mean, sd = seen[kind].mean, max(seen[kind].sd, wide)
        if several and kind == "unified" and {"single", "several"} <= set(seen):  # with communicators, as elsewhere
            mean += max(seen["several"].mean - seen["single"].mean, 0.0)
            sd = float(np.hypot(sd, wide or seen["several"].sd))
        result.append((mean, sd))
    return np.where(alone, result[0][0], result[1][0]), np.where(alone, result[0][1], result[1][1])


def _graphs(
    fit: MemoryFit, memory: RankMemory, part: PartMemory
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return captured graphs and their estimate, each with its deviation.

    The estimate is taken from the pool. Both hardly depend on the number of captured sizes where they were observed for
    the engine itself.
    """
    settings = memory.settings
    zero = np.zeros_like(np.asarray(memory.layout.tp, dtype=float))
    count = np.asarray(DEFAULT_GRAPHS if settings.graphs is None else settings.graphs, dtype=float) + zero
    count = count * settings.rule.captures_graphs
    captured, captured_sd = fit.graph.mean * count, fit.graph.sd * count
    if settings.engine in fit.captured:
        mean, sd = _by_kind(memory, part, fit.captured[settings.engine])
        captured, captured_sd = np.where(count > 0, mean, 0.0), np.where(count > 0, sd, 0.0)
    if not (settings.graphs_in_pool and memory.estimates_graphs):
        return captured, captured_sd, zero, zero
    if settings.engine not in fit.estimate:
        return captured, captured_sd, captured, captured_sd
    mean, sd = graph_estimate(memory, part, fit)
    return captured, captured_sd, np.where(count > 0, mean, 0.0), np.where(count > 0, sd, 0.0)


def graph_estimate(memory: RankMemory, part: PartMemory, fit: MemoryFit) -> tuple[np.ndarray, np.ndarray]:
    """Return the engine's graph estimate before capture [B].

    Mean and standard deviation. Independent of whether the engine takes the estimate from its pool; 0 for engines
    without an observed estimate.
    """
    seen = fit.estimate.get(memory.settings.engine)
    if seen is None:
        return (zero := np.zeros_like(np.asarray(memory.layout.tp, dtype=float))), zero
    return _by_kind(memory, part, seen)


def _fraction(memory: RankMemory, part: PartMemory) -> np.ndarray:
    settings, rule = memory.settings, memory.settings.rule
    if settings.fraction is not None:
        return np.asarray(settings.fraction, dtype=float)
    if rule.fraction_rule is not None:
        tp, pp, dp = (np.asarray(getattr(memory.layout, name)) for name in ("tp", "pp", "dp"))
        result = static_fraction(
            rule.fraction_rule,
            memory=part.total,
            accelerators=tp * dp * pp,
            token_budget=settings.budget(part.listed),
            graph_requests=settings.graph_requests(part.listed, tp * dp),
            draft=memory.draft,
            replicas=dp,
        )
        return result if memory.tower is None else result * tower_factor(rule.fraction_rule, *memory.tower)
    default = settings.default("fraction", part.listed)
    return np.asarray(1.0 if default is None else default)


def stage_pools(memory: RankMemory, part: PartMemory, fit: MemoryFit | None = None) -> tuple[PoolTerms, ...]:
    """Apply the engine's rule to each of ``memory.stages``, in order."""
    fit = fit or load_memory_fit()
    parts = part.stages or (part,) * len(memory.stages)
    least = min(parts, key=lambda one: one.total)  # an engine that looks at all ranks takes its share of the smallest
    launches = {}
    for one in parts:
        launches[one] = _Launch(
            _observed(fit, memory, one),
            _fraction(memory, least if memory.settings.rule.pool == "before_load" else one),
            _graphs(fit, memory, one),
            weights_interval(memory, fit),
        )
    pools = tuple(
        _stage_pool(memory, stage, one, launches[one]) for stage, one in zip(memory.stages, parts, strict=True)
    )
    if not part.stages or memory.settings.rule.pool != "before_load":
        return pools
    return _of_least_free(pools, launches[parts[0]].fraction)


def _of_least_free(pools: tuple[PoolTerms, ...], fraction: np.ndarray) -> tuple[PoolTerms, ...]:
    """Return the pools of unlike stages in SGLang: equal bytes on all.

    Free memory before and after loading is the least of all ranks, and the smallest number of tokens counts [1]_.

    References
    ----------
    .. [1] sgl-project/sglang at 001ccef0, python/sglang/srt/model_executor/model_runner_kv_cache_mixin.py
       (profile_max_num_token: get_available_gpu_memory over the world group).
    """
    # a launch leaves 1 - share of the memory that is free before it loads
    before = [terms.limit / fraction for terms in pools]
    after = [terms.pool + free - terms.limit for terms, free in zip(pools, before, strict=True)]
    first, place = np.min(before, axis=0), np.argmin(after, axis=0)
    limit = fraction * first
    pool = np.min(after, axis=0) - (first - limit)
    rows = np.arange(len(place))
    columns = {
        name: np.stack([getattr(terms, name) for terms in pools])[place, rows] for name in ("variance", "less", "more")
    }
    return tuple(replace(terms, limit=limit, pool=pool, **columns) for terms in pools)


def _stage_pool(memory: RankMemory, stage: StageMemory, part: PartMemory, launch: _Launch) -> PoolTerms:
    rule, beside, fraction = memory.settings.rule, launch.beside, launch.fraction
    context, context_variance, remainder = beside.context, beside.variance, beside.remainder
    zero = np.zeros_like(stage.per_token)
    graphs, graphs_sd, estimate, estimate_sd = launch.graphs
    weights = stage.weight_bytes
    if not rule.draft_in_pool:
        weights = weights - stage.weights.get("mtp", zero)
    free = part.total - context if part.free_before_load is None else part.free_before_load + zero
    known = context_variance if part.free_before_load is None else zero
    total_variance = (part.total_sd**2 if part.free_before_load is None else 0.0) + zero
    share: np.ndarray | float = 1.0
    activation = stage.activation
    if rule.pool == "total":
        limit = fraction * part.total + zero
        pool = limit - weights - stage.activation - context - remainder.mean - estimate
        variance = fraction**2 * total_variance + known + remainder.sd**2 + estimate_sd**2
    elif rule.pool == "before_load":
        limit = fraction * free
        pool = limit - weights - remainder.mean
        variance = fraction**2 * (total_variance + known) + remainder.sd**2
    elif rule.pool == "after_load":
        before = rule.graphs_before_pool
        left = free - weights - stage.activation - remainder.mean - before * graphs
        limit, share = free, fraction * share_beside_expansion(stage, fraction * left)
        pool, variance = share * left, share**2 * (total_variance + known + remainder.sd**2 + before * graphs_sd**2)
    elif rule.pool == "after_weights":
        limit, share = free, fraction
        if rule.reserved_logits:
            activation = _smaller_step(memory, stage, part, share, free - weights - remainder.mean)
        pool = share * (free - weights - activation * bool(rule.reserved_logits) - remainder.mean)
        variance = share**2 * (total_variance + known + remainder.sd**2)
    else:
        limit = part.total - rule.free_target + zero
        pool = limit - weights - stage.activation - context - remainder.mean
        variance = total_variance + known + remainder.sd**2
    less, more = ((share * side * weights / QUANTILE_90) ** 2 for side in reversed(launch.weights))
    return PoolTerms(
        context + zero, remainder.mean + zero, graphs, limit, pool, variance, less, more, graphs_sd, estimate,
        share + zero, activation,
    )  # fmt: skip


def _smaller_step(
    memory: RankMemory, stage: StageMemory, part: PartMemory, share: np.ndarray, left: BytesArray
) -> BytesArray:
    """Return the reserve for logits after the engine has halved its steps.

    LMDeploy halves ``max_prefill_token_num`` until 16 blocks of the cache remain [1]_. Where fewer do with every step,
    the engine does not start, and the reserve is that of the largest step.

    References
    ----------
    .. [1] https://github.com/InternLM/lmdeploy at 1263d5cd: lmdeploy/pytorch/engine/executor/base.py
       (`_get_runtime_size`, `_reserve_runtime_mem`)
    """
    requests = 2.0 * memory.settings.requests(part.listed)
    tokens = np.floor(memory.settings.budget(part.listed) / 2.0 ** np.arange(_HALVINGS)[:, None])
    reserves = stage.activation * (tokens + requests) / (memory.budget + requests)
    blocks = _LEAST_BLOCKS * stage.request_bytes(memory.settings.block(memory.sparse))
    enough = (share * (left - reserves) >= blocks) & (tokens > 0)
    found: BytesArray = np.take_along_axis(reserves, np.argmax(enough, axis=0)[None], axis=0)[0]
    return found


def _tokens(memory: RankMemory, stage: StageMemory, pool: np.ndarray, context: np.ndarray) -> np.ndarray:
    """Return the tokens of a pool for requests of a context, whole blocks.

    On one data-parallel rank.
    """
    block = memory.settings.block(memory.sparse)
    paging = _paging(memory, stage)
    if paging is not None:  # a decoding request has the tokens of the steps in flight besides its windows
        held = block_tokens(plans_of(stage.pages, paging), pool, context, _decoded(memory, stage, paging))
        blocks_held: np.ndarray = np.floor(held / block) * block
        return blocks_held
    growing_only = not stage.windows and not stage.state.any()
    if memory.split is not None and not growing_only:
        full, requests = split_pool(stage, pool, context, memory.split)
        whole = np.floor(np.minimum(full, requests * context) / block) * block
        return np.where(stage.per_token > 0, whole, np.inf)
    each = stage.per_token if growing_only else stage.request_bytes(context) / context
    # a group of decode context-parallel ranks splits the tokens of a block between its ranks
    wide = block * np.asarray(memory.layout.dcp, dtype=float)
    size = each * wide
    blocks = np.floor(np.maximum(pool, 0.0) / np.where(size > 0, size, 1.0))
    return np.where(size > 0, blocks * wide, np.inf)


def _paging(memory: RankMemory, stage: StageMemory) -> Paging | None:
    """Return the paging of a stage with pages of several sizes, or None."""
    return memory.settings.rule.paging_of(memory.settings.version) if stage.pages else None


def _decoded(memory: RankMemory, stage: StageMemory, paging: Paging) -> TokensArray:
    """Return the tokens in flight of a decoding request, with its drafts."""
    return np.full_like(stage.per_token, paging.batches * (1.0 + memory.settings.drafted(memory.draft)))


def _in_flight(memory: RankMemory, stage: StageMemory, paging: Paging) -> TokensArray:
    """Return the tokens in flight that a start counts: whole steps."""
    return paging.batches * memory.budget + np.zeros_like(stage.per_token)


def _longest_paged(memory: RankMemory, stage: StageMemory, paging: Paging, pool: BytesArray) -> TokensArray:
    """Return the largest ``max_model_len`` of a stage of several page sizes."""
    plans, flight = plans_of(stage.pages, paging), _in_flight(memory, stage, paging)
    return longest_requests(plans, pool, flight, null_block=paging.null_block)


def _requests_paged(
    memory: RankMemory, stage: StageMemory, paging: Paging, pool: BytesArray, context: TokensArray
) -> np.ndarray:
    """Return the decoding requests on a stage of several page sizes."""
    count = block_requests(plans_of(stage.pages, paging), pool, context, _decoded(memory, stage, paging))
    return np.where(_longest_paged(memory, stage, paging, pool) >= context, count, 0.0)


def _printed(
    memory: RankMemory, stage: StageMemory, pool: np.ndarray, context: np.ndarray, usable: np.ndarray
) -> TokensArray:
    """Return the tokens that the engine prints.

    They are the usable tokens if all layers are of one kind.
    """
    settings = memory.settings
    if memory.split is not None and (stage.windows or stage.state.any()):  # the log prints it as max_total_num_tokens
        full, _ = split_pool(stage, pool, context, memory.split)
        return np.where(stage.per_token > 0, np.floor(full / (block := settings.block(memory.sparse))) * block, usable)
    paging = settings.rule.paging_of(settings.version) if settings.rule.paging else None
    if paging is not None and stage.pages:
        longest = (context if settings.longest is None else np.asarray(settings.longest, dtype=float)) + 0.0 * pool
        held = block_tokens(plans_of(stage.pages, paging), pool, longest, _in_flight(memory, stage, paging))
        return np.floor(held)
    if paging is None or not shares_pages(stage.kinds):
        return usable
    zero = np.zeros_like(pool)
    launch = PagedLaunch(
        block=settings.block(memory.sparse),
        longest=(context if settings.longest is None else np.asarray(settings.longest, dtype=float)) + zero,
        budget=memory.budget + zero,
        drafted=settings.drafted(memory.draft),
        dcp=np.asarray(memory.layout.dcp, dtype=float),
    )
    return printed_tokens(pool, stage.kinds, paging, launch)


def keys_share(memory: RankMemory, stage: StageMemory) -> Ratio:
    """Return the share of keys and values in a pool.

    Below 1 where states of recurrent layers have a pool of their own.
    """
    return 1.0 / (1.0 + memory.split.states) if memory.split is not None and stage.state.any() else 1.0


def printed_of_bytes(memory: RankMemory, stage: StageMemory, size: Bytes, context: Tokens) -> Tokens:
    """Return the tokens that the engine prints for a pool of this size.

    On a stage of the first layout.
    """
    pool, length = np.full_like(stage.per_token, size), np.full_like(stage.per_token, context)
    usable = _tokens(memory, stage, pool, length)
    return float(_printed(memory, stage, pool, length, usable)[0])


def kv_pool(
    memory: RankMemory,
    part: PartMemory,
    *,
    context: TokensArray | Tokens = 32768.0,
    fit: MemoryFit | None = None,
    pools: tuple[PoolTerms, ...] | None = None,
) -> KvPool:
    """Return the KV pool of each layout with 90 % intervals.

    `context` of a request matters only with sliding windows or recurrent states. `pools` are the `stage_pools` of this
    memory where they exist already; then `fit` is not used.

    All ranks take the smallest number of blocks of any rank. For hybrid models `tokens` counts requests of `context`
    tokens by their bytes; `printed` is the engine's number for requests of ``max_model_len``.

    Examples
    --------
    >>> from glmplan.costs.memory.ranks import rank_memory
    >>> from glmplan.costs.blocks.stack import uniform_checkpoint
    >>> from glmplan.costs.points import Layout
    >>> from glmplan.catalog.schema.model import DenseFfn, GroupedQuery, LayerKind, ModelSpec
    >>> layer = LayerKind(mixer=GroupedQuery(heads=32, kv_heads=8, head_dim=128), ffn=(DenseFfn(inner=14336),))
    >>> llama = ModelSpec(name="8b", family="llama", hidden=4096, vocabulary=128256, max_context=8192,
    ...                   layers={"full": layer}, stack="full*32", source="example")
    >>> held = rank_memory(llama, uniform_checkpoint("bf16"), layout=Layout(tp=np.array([1, 2])), kv="bf16")
    >>> small = PartMemory(16 * 2**30, 15.6 * 2**30, 0.0, "pcie")
    >>> kv_pool(held, small).fits.tolist()
    [False, True]
    """
    length = np.asarray(context, dtype=float)
    dp = np.asarray(memory.layout.dp, dtype=float)
    result: list[tuple[np.ndarray, ...]] = []
    for stage, terms in zip(memory.stages, pools or stage_pools(memory, part, fit), strict=True):
        rows = [terms.pool, terms.deviation(-1.0)]
        for shift in (0.0, -QUANTILE_90, QUANTILE_90):
            left = terms.pool + shift * terms.deviation(shift)
            usable = _tokens(memory, stage, left, length)
            printed = _printed(memory, stage, left, length, usable)
            rows += [np.where(stage.held, item, np.inf) for item in (usable, printed)]
        beside = terms.context + np.maximum(terms.remainder, 0.0) + terms.graphs + terms.activation
        held = stage.weight_bytes + beside + np.maximum(terms.pool, 0.0)
        # lower use of memory leaves more to the pool, so only memory that no pool contained counts
        least = held + np.clip(terms.pool, -QUANTILE_90 * terms.deviation(1.0), 0.0) - QUANTILE_90 * terms.graphs_sd
        result.append(
            (*rows, *(np.where(stage.held, item - part.on(stage.index).total, -np.inf) for item in (held, least)))
        )
    rooms, sds, means, print_mean, lows, print_low, highs, print_high, over, over_low = (
        np.stack(column) for column in zip(*result, strict=True)
    )
    # a stage without a growing cache (recurrent layers only) limits by its bytes
    ranked = np.where(np.stack([stage.held for stage in memory.stages]), rooms, np.inf)
    stage_index = np.lexsort((ranked, np.where(np.isfinite(means), means, np.inf)), axis=0)[0]
    pick = (stage_index, np.arange(stage_index.size))
    least = [np.where(np.isfinite(item.min(axis=0)), item.min(axis=0), 0.0) * dp for item in (means, lows, highs)]
    fits = (ranked.min(axis=0) > 0) & (least[0] > 0)
    said = [
        np.where(np.isfinite(item.min(axis=0)), item.min(axis=0), 0.0) for item in (print_mean, print_low, print_high)
    ]
    return KvPool(
        rooms[pick], least[0] * fits, least[1], least[2], sds[pick], stage_index, fits, said[0] * fits, said[1],
        said[2], over.max(axis=0), over_low.max(axis=0),
    )  # fmt: skip


def requests_that_fit(
    memory: RankMemory,
    part: PartMemory,
    context: TokensArray | Tokens,
    *,
    fit: MemoryFit | None = None,
    quantile: Ratio = 0.0,
    pools: tuple[PoolTerms, ...] | None = None,
) -> np.ndarray:
    """Return the requests of a context in the pools of all replicas.

    `quantile`: standard deviations added to the pool; ``-QUANTILE_90`` gives the low end of the 90 % interval.
    """
    block = memory.settings.block(memory.sparse)
    wide = block * np.asarray(memory.layout.dcp, dtype=float)
    whole = np.ceil(np.asarray(context, dtype=float) / wide) * wide
    least = np.full_like(np.asarray(memory.layout.tp, dtype=float), np.inf)
    for stage, terms in zip(memory.stages, pools or stage_pools(memory, part, fit), strict=True):
        pool = np.maximum(terms.pool + quantile * terms.deviation(quantile), 0.0)
        if (paging := _paging(memory, stage)) is not None:
            count = _requests_paged(memory, stage, paging, pool, whole)
            least = np.minimum(least, np.where(stage.held, count, np.inf))
            continue
        size = stage.request_bytes(whole)
        count = np.where(size > 0, np.floor(pool / np.where(size > 0, size, 1.0)), np.inf)
        if memory.split is not None and (stage.windows or stage.state.any()):
            count = np.where(size > 0, requests_held(stage, pool, whole, memory.split), np.inf)
        least = np.minimum(least, np.where(stage.held, count, np.inf))
    return least * np.asarray(memory.layout.dp, dtype=float)  # type: ignore[no-any-return]


def largest_context(
    memory: RankMemory,
    part: PartMemory,
    *,
    fit: MemoryFit | None = None,
    quantile: Ratio = 0.0,
    pools: tuple[PoolTerms, ...] | None = None,
) -> TokensArray:
    """Return the longest single request of one data-parallel rank's pool.

    The model's own limit is not applied. 0 when nothing fits, infinite when no layer's cache grows.
    """
    block = memory.settings.block(memory.sparse)
    wide = block * np.asarray(memory.layout.dcp, dtype=float)
    least = np.full_like(wide + np.asarray(memory.layout.tp, dtype=float), np.inf)
    for stage, terms in zip(memory.stages, pools or stage_pools(memory, part, fit), strict=True):
        left = terms.pool + quantile * terms.deviation(quantile)
        if (paging := _paging(memory, stage)) is not None:
            least = np.minimum(least, np.where(stage.held, _longest_paged(memory, stage, paging, left), np.inf))
            continue
        if memory.split is not None and (stage.windows or stage.state.any()):
            full = longest_held(stage, left, memory.split)
            least = np.minimum(least, np.where(stage.held, full, np.inf))
            continue
        room = left - stage.state
        # The cache of a request is the minimum of lines, one for each set of full windows: the longest context is the
        # largest that any of the lines allows.
        slope = stage.per_token + sum((held for _, held in stage.windows), np.zeros_like(room))
        best = np.zeros_like(room)
        for window, held in ((0, np.zeros_like(room)), *stage.windows):
            slope, room = slope - held, room - held * window
            inside = np.where(slope > 1e-9, room / np.where(slope > 1e-9, slope, 1.0), np.where(room >= 0, np.inf, 0.0))
            best = np.maximum(best, inside)
        least = np.minimum(least, np.where(stage.held, best, np.inf))
    return np.where(np.isfinite(least), np.floor(np.maximum(least, 0.0) / wide) * wide, least)


@dataclass(frozen=True, slots=True, repr=False)
class MemoryBudget:
    """Memory of one rank, component by component."""

    label: str
    weights: dict[str, Bytes]  # by tensor class
    activation: Bytes  # peak
    graphs: Bytes
    communication: Bytes  # with the driver context
    reserve: Bytes  # further use of the engine
    graph_estimate: Bytes  # left out of the pool for graphs before capture; not in the sum
    pool: Bytes  # by the engine's rule; negative where nothing is left
    cache: Bytes  # KV pool, 0 when nothing is left
    per_token: Bytes  # cache of a token
    state: Bytes  # cache of a sequence
    host: Bytes  # weights of this rank in host memory
    total: Bytes  # pool included
    usable: Bytes  # limit of the engine's rule
    capacity: Bytes  # addressable by an engine

    def __repr__(self) -> str:
        weights = sum(self.weights.values()) / GIB
        held = f"weights {weights:.1f} + cache {self.cache / GIB:.1f} of {self.capacity / GIB:.1f} GiB"
        return f"<MemoryBudget {self.label}: {held}>"

    @property
    def parts(self) -> dict[str, float]:
        """Return all components by name, in the order of a bar [B]."""
        return {
            **self.weights,
            "activation": self.activation,
            "graphs": self.graphs,
            "communication": self.communication,
            "reserve": self.reserve,
            "cache": self.cache,
        }

    @property
    def free(self) -> float:
        """Return the unused capacity; negative if the rank does not fit [B]."""
        return self.capacity - self.total


def budget_rows(
    memory: RankMemory, part: PartMemory, *, fit: MemoryFit | None = None, point: int = 0
) -> list[MemoryBudget]:
    """Return the budget of every rank of one layout.

    Experts that do not divide over the expert-parallel ranks go to the first ranks.
    """
    tp, pp, dp, ep = (int(np.atleast_1d(getattr(memory.layout, name))[point]) for name in ("tp", "pp", "dp", "ep"))
    rows = []
    for stage, terms in zip(memory.stages[:pp], stage_pools(memory, part, fit)[:pp], strict=True):
        weights = {name: float(size[point]) for name, size in stage.weights.items() if size[point] > 0}
        used = {
            "activation": float(terms.activation[point]),
            "graphs": float(terms.graphs[point]),
            "communication": float(terms.context[point]),
            "reserve": max(float(terms.remainder[point]), 0.0),
        }
        cache = max(float(terms.pool[point]), 0.0) * bool(memory.caches_on(stage)[point])
        total = sum(weights.values()) + sum(used.values()) + cache
        rows.append(
            MemoryBudget(
                label="",
                weights=weights,
                **used,
                graph_estimate=float(terms.estimate[point]),
                pool=float(terms.pool[point]),
                cache=cache,
                per_token=float(_each(memory, stage)[point]),
                state=float(stage.state[point]),
                host=float(stage.host[point]),
                total=total,
                usable=float(terms.limit[point]),
                capacity=part.on(stage.index).total,
            )
        )
    shares = _expert_shares(memory, tp * dp, ep)
    return [
        _named(rows[stage], shares[replica * tp + rank], replica, stage, rank, (tp, pp, dp))
        for replica in range(dp)
        for stage in range(pp)
        for rank in range(tp)
    ]


def _each(memory: RankMemory, stage: StageMemory) -> BytesArray:
    """Return a token's cache with its share of a separate window pool."""
    windows = 0.0 if memory.split is None else memory.split.windows
    return stage.per_token + windows * sum((held for _, held in stage.windows), np.zeros_like(stage.per_token))


def _expert_shares(memory: RankMemory, ranks: int, ep: int) -> list[float]:
    """Return the experts of each rank relative to the fullest rank."""
    experts = memory.experts
    fullest = -(-experts // ep) if experts else 1
    group = ranks // ep
    return [((experts // ep + (rank // group < experts % ep)) / fullest if experts else 1.0) for rank in range(ranks)]


def _named(
    row: MemoryBudget, share: float, replica: int, stage: int, rank: int, degrees: tuple[int, int, int]
) -> MemoryBudget:
    tp, pp, dp = degrees
    words = [f"replica {replica}"] * (dp > 1) + [f"stage {stage}"] * (pp > 1) + [f"rank {rank}"] * (tp > 1)
    weights = dict(row.weights)
    less = 0.0
    if "routed_experts" in weights:
        less = weights["routed_experts"] * (1.0 - share)
        weights["routed_experts"] -= less
    return replace(row, label=", ".join(words) or "the only rank", weights=weights, total=row.total - less)
