"""Tokens that vLLM prints for its KV cache when layers of different kinds share the pages of one pool.

Layers that keep the same are one kind. A kind with more layers than a group holds makes several groups, all groups draw
pages of one size from one pool, and a block is a page for each layer of a group [1]_. So a model with windows or
recurrent states prints fewer tokens than its bytes would hold.

References
----------
.. [1] vllm-project/vllm, vllm/v1/core/kv_cache_utils.py (`_get_kv_cache_groups_uniform_page_size`,
   `unify_kv_cache_spec_page_size`, `get_max_concurrency_for_kv_cache_config`), vllm/v1/kv_cache_interface.py
   (`SlidingWindowSpec`, `MambaSpec`), vllm/model_executor/models/config.py (`HybridAttentionMambaModelConfig`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.facts.engines.memory import Paging

__all__ = ["CachedLayers", "PagedLaunch", "printed_tokens", "shares_pages"]

#: a kind with up to so many times the fewest layers makes one group with it; older versions took 1.25 [-]
_NEARLY_EQUAL = 1.5
#: tokens that a block of attention is a multiple of where it grows to the size of a state [token]
_ALIGNED = 16.0


@dataclass(frozen=True, slots=True, eq=False)
class CachedLayers:
    """Layers of one stage that keep the same; arrays are (n,).

    Attributes
    ----------
    count : array
        Layers, [-]
    token : array
        Bytes that one of them keeps for a token on a rank; 0 for recurrent layers, [B]
    window : int or None
        Tokens after which it keeps no more, [token]
    state : array
        Bytes of its page for the state of a request, 0 for attention, [B]
    """

    count: np.ndarray
    token: np.ndarray
    window: int | None
    state: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class PagedLaunch:
    """What a launch is told that decides what it prints; arrays are (n,).

    Attributes
    ----------
    block : float
        Tokens of a block of attention, before it grows to the size of a state, [token]
    longest : array
        ``max_model_len``, [token]
    budget : array
        Tokens of a step, [token]
    drafted : float
        Drafted tokens of a step, each of which keeps a state of its own, [token]
    dcp : numeric
        Ranks that the tokens of a block are dealt to, [-]
    """

    block: float
    longest: np.ndarray
    budget: np.ndarray
    drafted: float = 0.0
    dcp: np.ndarray | float = 1.0


def shares_pages(kinds: tuple[CachedLayers, ...]) -> bool:
    """Whether the pool is printed by groups of layers: one of them has a window or a state.

    Parameters
    ----------
    kinds : tuple of CachedLayers
        The kinds of a stage.

    Returns
    -------
    bool

    Examples
    --------
    >>> one = np.ones(1)
    >>> shares_pages((CachedLayers(one, one, None, 0 * one),)), shares_pages((CachedLayers(one, one, 128, 0 * one),))
    (False, True)
    """
    return any(one.window is not None or one.state.any() for one in kinds)


def printed_tokens(
    pool: np.ndarray, kinds: tuple[CachedLayers, ...], paging: Paging, launch: PagedLaunch
) -> np.ndarray:
    """Tokens that vLLM prints as the size of its KV cache.

    Parameters
    ----------
    pool : (n,) array
        The pool on a rank, [B]
    kinds : tuple of CachedLayers
        Its kinds of layers, draft layers included.
    paging : Paging
        How the version pages and prints.
    launch : PagedLaunch
        What the launch is told.

    Returns
    -------
    (n,) array
        [token]; 0 for an empty pool.

    Notes
    -----
    Not modelled: models whose kinds of layers cannot be brought to one page (compressed attention), prefix caching
    switched off (a request then has one state and not two).

    Examples
    --------
    gpt-oss-120b on two ranks: 18 layers of full attention and 18 with a window of 128, 4 KV heads of 64 on each rank;
    a log of vLLM 0.22.1 says 2,560,976 tokens of 88.77 GiB at 2,068.

    >>> from glmplan.facts.engines.memory import load_memory_rule
    >>> one = np.ones(1)
    >>> kinds = tuple(CachedLayers(18 * one, 1024 * one, window, 0 * one) for window in (None, 128))
    >>> rule = load_memory_rule("vllm").paging_of("0.22.1")
    >>> int(printed_tokens(88.77 * 2**30 * one, kinds, rule, PagedLaunch(16, 2068 * one, 8192 * one))[0])
    2560841
    """
    zero = np.zeros_like(pool)
    widest = np.max([np.where(one.count > 0, one.token, 0.0) for one in kinds], axis=0)
    state = np.max([np.where(one.count > 0, one.state, 0.0) for one in kinds], axis=0)
    per_token = np.where(widest > 0, widest, 1.0)
    own = np.maximum(launch.block, _ALIGNED * np.ceil(state / (_ALIGNED * per_token)))
    page = np.where(widest > 0, own * widest, state)
    fewest = np.min([np.where(one.count > 0, one.count, np.inf) for one in kinds], axis=0)
    most = np.max([one.count for one in kinds], axis=0)
    group = np.where(most < _NEARLY_EQUAL * fewest, most, fewest)
    group = np.where(np.isfinite(group) & (group > 0), group, 1.0)
    blocks = np.floor(np.maximum(pool, 0.0) / np.where(page > 0, page * group, 1.0))
    groups, needed = zero, zero
    for one in kinds:
        share = np.ceil(one.count / group)
        # a stage of another layout may hold none of these layers, and then no page
        paged = (one.token > 0) & (page > 0)
        tokens = np.where(paged, page / np.where(paged, one.token, 1.0), own)
        if one.state.any():
            each = paging.states + launch.drafted + zero
        elif one.window is None:
            each = np.ceil(launch.longest / (tokens * launch.dcp))
        else:
            held = np.minimum(one.window - 1.0 + paging.batches * launch.budget, launch.longest)
            each = np.ceil(held / tokens) + 1.0
        groups, needed = groups + share, needed + share * each
    if paging.printed == "blocks":
        return np.floor(blocks / np.maximum(groups, 1.0)) * own * launch.dcp
    return np.floor(blocks / np.maximum(needed, 1.0) * launch.longest)
