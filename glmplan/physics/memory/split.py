"""A pool that an engine splits between layers that keep all tokens, windows or states, or leaves room beside."""

from __future__ import annotations

import numpy as np

from glmplan.physics.memory.ranks import StageMemory

__all__ = ["beside_expanded", "longest_held", "requests_held", "split_pool"]


def split_pool(
    stage: StageMemory, pool: np.ndarray, context: np.ndarray, split: tuple[float, float, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that the layers hold which keep all of them, and requests of which the others hold the rest.

    Parameters
    ----------
    stage : StageMemory
        The rank.
    pool : (n,) array
        Its pool, [B]; negative where nothing is left
    context : (n,) array
        Tokens of a request, [token]
    split : tuple of float
        As in `RankMemory.split`, [-]

    Returns
    -------
    (n,) array, (n,) array
        Tokens [token]; requests [-], infinite where neither windows nor states limit them.

    Notes
    -----
    SGLang gives states a fixed share of the pool and window layers a fixed share of the tokens of the others, whatever
    the requests need [1]_. Not modelled: states that are kept of each drafted token.

    References
    ----------
    .. [1] sgl-project/sglang, python/sglang/srt/model_executor/pool_configurator.py (HybridSWAPoolConfigurator),
       model_runner_kv_cache_mixin.py (handle_max_mamba_cache).

    Examples
    --------
    gpt-oss-20b, 24 layers of 8 heads of 64, half of them with a window of 128: 10 GB hold 80 % of the tokens there.

    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.physics.memory.ranks import rank_memory
    >>> from glmplan.physics.memory.settings import MemorySettings
    >>> from glmplan.physics.points import Layout
    >>> model, told = load_model("gpt-oss-20b"), MemorySettings(engine="sglang", version="0.5.9")
    >>> held = rank_memory(model, model.checkpoint("mxfp4"), layout=Layout(), kv="bf16", settings=told)
    >>> full, requests = split_pool(held.stages[0], np.array([1e10]), np.array([4096.0]), held.split)
    >>> round(float(full[0]) * 12 * 2048 * 1.8), int(requests[0] / full[0] * 128 * 10)
    (10000000000, 8)
    """
    states, states_each, windows = split
    room = np.maximum(pool, 0.0)
    limit = np.full_like(room, np.inf)
    cache = room
    if stage.state.any():
        cache = room / (1.0 + states)
        budget = room - cache
        each = np.where(stage.state > 0, stage.state, 1.0) * states_each
        limit = np.where(stage.state > 0, np.floor(budget / each), np.inf)
    in_windows = sum((held for _, held in stage.windows), np.zeros_like(stage.per_token))
    token = stage.per_token + windows * in_windows
    full = np.where(token > 0, cache / np.where(token > 0, token, 1.0), np.inf)
    if windows < 1.0:
        for window, _ in stage.windows:
            limit = np.minimum(limit, windows * full / np.minimum(context, window))
    return full, limit


def requests_held(
    stage: StageMemory, pool: np.ndarray, context: np.ndarray, split: tuple[float, float, float]
) -> np.ndarray:
    """Whole requests that a split pool holds.

    Parameters
    ----------
    stage, pool, context, split
        As for `split_pool`.

    Returns
    -------
    (n,) array
        [-]

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.physics.memory.ranks import rank_memory
    >>> from glmplan.physics.memory.settings import MemorySettings
    >>> from glmplan.physics.points import Layout
    >>> model, told = load_model("gpt-oss-20b"), MemorySettings(engine="sglang", version="0.5.9")
    >>> held = rank_memory(model, model.checkpoint("mxfp4"), layout=Layout(), kv="bf16", settings=told)
    >>> requests_held(held.stages[0], np.array([1e10]), np.array([4096.0]), held.split).tolist()
    [55.0]
    """
    full, requests = split_pool(stage, pool, context, split)
    found: np.ndarray = np.floor(np.minimum(full / context, requests))
    return found


def longest_held(stage: StageMemory, pool: np.ndarray, split: tuple[float, float, float]) -> np.ndarray:
    """The longest request that a split pool holds.

    Parameters
    ----------
    stage, pool, split
        As for `split_pool`.

    Returns
    -------
    (n,) array
        [token]; infinite where no layer keeps all tokens, 0 where the others do not hold one request.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.physics.memory.ranks import rank_memory
    >>> from glmplan.physics.memory.settings import MemorySettings
    >>> from glmplan.physics.points import Layout
    >>> model, told = load_model("gpt-oss-20b"), MemorySettings(engine="sglang", version="0.5.9")
    >>> held = rank_memory(model, model.checkpoint("mxfp4"), layout=Layout(), kv="bf16", settings=told)
    >>> int(longest_held(held.stages[0], np.array([1e10]), held.split)[0])
    226056
    """
    full, requests = split_pool(stage, pool, np.ones_like(pool), split)
    return np.where(requests >= 1.0, np.where(stage.per_token > 0, full, np.inf), 0.0)


def beside_expanded(stage: StageMemory, budget: np.ndarray) -> np.ndarray | float:
    """Share of a budget that becomes the pool beside room to expand its latents.

    Parameters
    ----------
    stage : StageMemory
        The rank.
    budget : (n,) array
        Pool and room together, [B]; negative where nothing is left

    Returns
    -------
    (n,) array
        [-]; 1 where the engine leaves no room.

    Notes
    -----
    Room for as many tokens as the pool holds, and never for more than a step may hold [1]_.

    References
    ----------
    .. [1] NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/_util.py (get_mla_context_workspace_reserve).

    Examples
    --------
    DeepSeek-R1 on eight ranks: 61 layers of 576 B beside 16 heads of 192 + 128 values.

    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.physics.memory.ranks import rank_memory
    >>> from glmplan.physics.memory.settings import MemorySettings
    >>> from glmplan.physics.points import Layout
    >>> model, told = load_model("deepseek-r1"), MemorySettings(engine="trtllm", version="1.3.0rc23")
    >>> held = rank_memory(model, model.checkpoint("fp8"), layout=Layout(tp=8), kv="fp8", settings=told)
    >>> round(float(beside_expanded(held.stages[0], np.array([4e10]))[0]), 4), round(35136 / (35136 + 5120), 4)
    (0.8728, 0.8728)
    """
    if not np.any(stage.expanded):
        return 1.0
    each = stage.per_token + stage.expanded
    tokens = np.minimum(budget / np.where(each > 0, each, 1.0), stage.expanded_tokens)
    left: np.ndarray = np.where(budget > 0, 1.0 - stage.expanded * tokens / np.where(budget > 0, budget, 1.0), 1.0)
    return left
