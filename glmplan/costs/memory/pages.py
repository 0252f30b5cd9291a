"""Compute the blocks of vLLM's pool for layers with several page sizes.

A layer of DeepSeek-V4 has up to five caches: a window, compressed entries, index keys, and the tokens that two
compressors have not pooled yet. vLLM puts caches that need the same tokens into one group, splits groups so that they
take about as many layers, and hands out blocks of one size to all of them. A group that is smaller than the block
leaves the rest of it empty. Before 0.24 a block has as many slots of every page size as any group has layers of one
size, until 0.28 as many of each size as any group has of that size [1]_; from 0.29 on it is as large as the largest
group [2]_. A request takes whole blocks of each group; window caches count the tokens of the steps in flight, in
blocks of 4 to 64 tokens, so that a short request takes many.

References
----------
.. [1] vllm-project/vllm, vllm/v1/core/kv_cache_utils.py (`_get_kv_cache_groups_uniform_groups`, `_approximate_gcd`,
   `_get_kv_cache_config_deepseek_v4`, `_get_kv_cache_config_packed`, `get_max_concurrency_for_kv_cache_config`,
   `_max_memory_usage_bytes_from_groups`), packages of 0.21.0 to 0.28.0.
.. [2] The same, `_get_packed_kv_cache_groups`, `_get_kv_cache_bytes_per_block`, package of 0.29.0; kv_cache_planning.py
   in that of 0.33.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import Any

import numpy as np

from glmplan.catalog.engines.memory import Paging
from glmplan.costs.blocks.mixer import CachePage
from glmplan.units import Bytes, BytesArray, Tokens, TokensArray

__all__ = ["BlockPlan", "PageGroup", "PagedLayers", "block_plan", "block_requests", "block_tokens",
           "longest_request", "longest_requests", "plans_of",
           "request_blocks"]  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PagedLayers:
    """Layers of one stage that share a page, for each layout."""

    count: np.ndarray
    page: CachePage


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Layers that share a block table, and the page that decides its blocks."""

    page: CachePage
    layers: tuple[tuple[int, int], ...]  # page size [B], layers

    @property
    def size(self) -> Bytes:
        """Return the bytes of one block of the group."""
        return float(sum(size * count for size, count in self.layers))


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Blocks of a pool: their size, and the groups that take them."""

    block: Bytes
    groups: tuple[PageGroup, ...]
    #: bytes that the check of ``max_model_len`` counts for each block of a request
    checked: Bytes
    by_bytes: bool  # True: a request is the bytes of its pages over a block of the first group, not its pages


def _smallest_padding(values: Sequence[int], least: int) -> int:
    """Return the divisor from `least` on that pads `values` least.

    The largest of equals (`_approximate_gcd`).
    """
    best = min(
        range(max(least, 1), max(*values, least, 1) + 1),
        key=lambda one: (sum(-value % one for value in values), -one),
    )
    return best


def _split(count: int, groups: int) -> list[int]:
    """Return the layers of each of `groups` as even as possible."""
    return [len(range(first, count, groups)) for first in range(groups)]


def _buckets(layers: tuple[tuple[int, CachePage], ...]) -> list[tuple[CachePage, dict[int, int]]]:
    """Return caches that need the same tokens, full caches first."""
    result: dict[tuple[str, int, int], tuple[CachePage, dict[int, int]]] = {}
    for count, page in sorted(layers, key=lambda one: one[1].kind != "full"):
        if count:
            key = (page.kind, page.block, page.window)
            sizes = result.setdefault(key, (page, {}))[1]
            sizes[page.size] = sizes.get(page.size, 0) + count
    return list(result.values())


def _slots(layers: tuple[tuple[int, CachePage], ...], packing: str) -> BlockPlan:
    """Return the blocks of vLLM before 0.29: slots for page sizes."""
    buckets = _buckets(layers)
    sizes = sorted(buckets[0][1])
    repeats = [max(counts.values()) for _, counts in buckets]
    wide = _smallest_padding(repeats, repeats[0])
    groups = [PageGroup(buckets[0][0], tuple(buckets[0][1].items()))]
    for page, counts in buckets[1:]:
        number = ceil(max(counts.values()) / wide)
        padded: dict[int, int] = {}
        for size, count in counts.items():
            slot = min(one for one in sizes if one >= size)
            padded[slot] = padded.get(slot, 0) + count
        split = [_split(count, number) for count in padded.values()]
        groups += [PageGroup(page, tuple(zip(padded, share, strict=True))) for share in zip(*split, strict=True)]
    most: dict[int, int] = {}
    for group in groups:
        for size, count in group.layers:
            most[size] = max(most.get(size, 0), count)
    tuples = float(max(most.values()) * sum(sizes))
    block = tuples if packing == "tuples" else float(sum(size * count for size, count in most.items()))
    return BlockPlan(block, tuple(groups), tuples, packing != "slots")


def _packed(layers: tuple[tuple[int, CachePage], ...]) -> BlockPlan:
    """Return the blocks of vLLM from 0.29 on: as large as the largest group."""
    buckets = _buckets(layers)
    repeats = [max(counts.values()) for _, counts in buckets]
    balanced = [len(set(counts.values())) == 1 for _, counts in buckets]
    mixed = [repeat for repeat, (_, counts), even in zip(repeats, buckets, balanced, strict=True)
             if even and len(counts) > 1]  # fmt: skip
    wide = (
        _smallest_padding([one for one, even in zip(repeats, balanced, strict=True) if even], max(mixed))
        if mixed
        else 0
    )
    numbers = [ceil(one / wide) if wide and even else 1 for one, even in zip(repeats, balanced, strict=True)]
    # rings, and windows where nothing else repeats, are split until they fit into a block that the others need
    loose = [page.kind == "ring" or (not wide and page.kind == "window") for page, _ in buckets]
    anchor = max(
        sum(ceil(count / (sum(counts.values()) if free else number)) * size for size, count in counts.items())
        for (_, counts), free, number in zip(buckets, loose, numbers, strict=True)
    )
    groups = []
    for (page, counts), free, number in zip(buckets, loose, numbers, strict=True):
        if free:
            number = max(number, ceil(sum(counts.values()) / max(anchor // page.size, 1)))
        split = [_split(count, number) for count in counts.values()]
        groups += [PageGroup(page, tuple(zip(counts, share, strict=True))) for share in zip(*split, strict=True)]
    block = max(group.size for group in groups)
    return BlockPlan(block, tuple(groups), block, False)


@lru_cache(maxsize=512)
def block_plan(layers: tuple[tuple[int, CachePage], ...], packing: str) -> BlockPlan | None:
    """Return the blocks of a stage by a release's packing, or None.

    Examples
    --------
    DeepSeek-V4-Flash with its draft layer: 44 windows make two groups of 22, and a block has 22, 21 and 20 slots.

    >>> layers = ((21, CachePage("full", 256, 37440)), (21, CachePage("full", 256, 8640)),
    ...           (20, CachePage("full", 256, 1728)), (44, CachePage("window", 64, 37440, 128)))
    >>> found = block_plan(layers, "slots by bytes")
    >>> int(found.block), [int(group.size) for group in found.groups]
    (1039680, [1002240, 823680, 823680])
    """
    if not any(count for count, _ in layers):
        return None
    return _packed(layers) if packing == "widest group" else _slots(layers, packing)


def request_blocks(plan: BlockPlan, longest: Tokens, in_flight: Tokens) -> int:
    """Return the blocks that a request of this length takes.

    Examples
    --------
    >>> plan = block_plan(((21, CachePage("full", 256, 37440)),), "slots")
    >>> request_blocks(plan, 1000, 8192)
    4
    """
    pages = [(group.page.pages(longest, in_flight), group.size) for group in plan.groups]
    if not plan.by_bytes:
        return sum(count for count, _ in pages)
    return ceil(sum(count * size for count, size in pages) / pages[0][1])


def longest_request(plan: BlockPlan, pool: Bytes, in_flight: Tokens) -> Tokens:
    """Return the largest ``max_model_len`` with which the engine starts.

    In whole blocks; 0: it does not start.

    Examples
    --------
    DeepSeek-V4-Flash-0731 on two H20: vLLM 0.26 refuses more than 121,344 tokens in 7.01 GiB, of which two steps of
    8,192 tokens in flight take 6.5: https://github.com/vllm-project/vllm/issues/51041

    >>> layers = ((21, CachePage("full", 256, 37440)), (21, CachePage("full", 256, 8640)),
    ...           (20, CachePage("full", 256, 1728)), (44, CachePage("window", 64, 37440, 128)),
    ...           (21, CachePage("window", 4, 32832, 8)), (21, CachePage("window", 4, 8640, 8)),
    ...           (20, CachePage("window", 8, 32832, 128)))
    >>> longest_request(block_plan(layers, "slots by bytes"), 7.01 * 2**30, 16384)
    121344.0
    """
    full = plan.groups[0].page
    low, high = 0, int(pool / plan.checked)

    def fits(blocks: int) -> bool:
        longest = float(blocks * full.block)
        return sum(group.page.pages(longest, in_flight) for group in plan.groups) * plan.checked <= pool

    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return float(low * full.block)


def plans_of(layers: Sequence[PagedLayers], paging: Paging) -> list[BlockPlan | None]:
    """Return the blocks of each layout of a stage."""
    counts = np.stack([item.count for item in layers]).astype(int)
    pages = [item.page for item in layers]
    return [block_plan(tuple(zip(column.tolist(), pages, strict=True)), paging.packing) for column in counts.T]


def _together(plans: Sequence[BlockPlan | None], *columns: np.ndarray | float) -> list[tuple[Any, ...]]:
    """Return rows of plans and columns, broadcast against each other."""
    boxes = np.empty(len(plans), dtype=object)
    boxes[:] = plans
    return list(zip(*(item.tolist() for item in np.broadcast_arrays(boxes, *columns)), strict=True))


def block_tokens(
    plans: Sequence[BlockPlan | None], pool: BytesArray, longest: TokensArray, in_flight: TokensArray
) -> TokensArray:
    """Return the tokens of a pool in requests of this length.

    Blocks of the pool / blocks of a request x length.
    """
    result = [
        np.inf if plan is None else max(size, 0.0) // plan.block / request_blocks(plan, length, flight) * length
        for plan, size, length, flight in _together(plans, pool, longest, in_flight)
    ]
    return np.array(result)


def block_requests(
    plans: Sequence[BlockPlan | None], pool: BytesArray, longest: TokensArray, in_flight: TokensArray
) -> np.ndarray:
    """Return the whole requests of this length that a pool holds."""
    result = [
        np.inf if plan is None else max(size, 0.0) // plan.block // request_blocks(plan, length, flight)
        for plan, size, length, flight in _together(plans, pool, longest, in_flight)
    ]
    return np.array(result)


def longest_requests(
    plans: Sequence[BlockPlan | None], pool: BytesArray, in_flight: TokensArray, *, null_block: bool
) -> TokensArray:
    """Return the largest ``max_model_len`` of each layout.

    `null_block`: a block of the pool is never given out.
    """
    result = [
        np.inf if plan is None else longest_request(plan, max(size - null_block * plan.block, 0.0), flight)
        for plan, size, flight in _together(plans, pool, in_flight)
    ]
    return np.array(result)
