"""Memory of a launch: what every rank holds, the KV cache pool the engine makes, and what fits into it.

The parts live in `memory_ranks` (weights, cache, state, activations of every rank), `memory_settings` (what a launch is
told), `memory_rules` (rules of the engines), `memory_observed` (terms that only a launch shows), `memory_part` (what an
engine sees of a part), `memory_pool` (pool, contexts, requests) and `memory_budget` (bars of every rank).
"""

from __future__ import annotations

from glmplan.costs.memory.pool import KvPool, MemoryBudget, budget_rows, kv_pool, largest_context, requests_that_fit
from glmplan.costs.memory.ranks import RankMemory, StageMemory, rank_memory
from glmplan.costs.memory.settings import MemorySettings, PartMemory, part_memory

__all__ = [
    "KvPool",
    "MemoryBudget",
    "MemorySettings",
    "PartMemory",
    "RankMemory",
    "StageMemory",
    "budget_rows",
    "kv_pool",
    "largest_context",
    "part_memory",
    "rank_memory",
    "requests_that_fit",
]
