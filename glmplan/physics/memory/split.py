"""A pool that an engine splits between layers that keep all tokens, windows or states."""

from __future__ import annotations

import numpy as np

from glmplan.physics.memory.ranks import StageMemory

__all__ = ["longest_held", "requests_held", "split_pool"]


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
