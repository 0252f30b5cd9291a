"""Memory of a launch: what every rank holds, the KV cache pool the engine makes, and what fits into it.

The parts live in `memory_ranks` (weights, cache, state, activations of every rank), `memory_rules` (rules of the
engines and observed terms), `memory_pool` (pool, contexts, requests) and `memory_budget` (bars of every rank).
"""

from __future__ import annotations

from glmplan.memory_budget import MemoryBudget, budget_rows
from glmplan.memory_pool import KvPool, PartMemory, kv_pool, largest_context, part_memory, requests_that_fit
from glmplan.memory_ranks import LayerCache, MemorySettings, RankMemory, StageMemory, layer_cache, rank_memory

__all__ = [
    "KvPool",
    "LayerCache",
    "MemoryBudget",
    "MemorySettings",
    "PartMemory",
    "RankMemory",
    "StageMemory",
    "budget_rows",
    "kv_pool",
    "largest_context",
    "layer_cache",
    "part_memory",
    "rank_memory",
    "requests_that_fit",
]
