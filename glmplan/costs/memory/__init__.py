"""Memory of a launch: ranks, the KV pool, and the requests in it.

`weights` and `activations` compute the parts of `ranks`; `settings` has the settings of a launch, observed terms and
the memory of an accelerator; `pool` the KV pool, contexts, requests and budgets; `shards` checks quantisation blocks.
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
