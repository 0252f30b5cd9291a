"""Hold the KV pool of a plan in requests of one length, and its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.catalog.tables import frame_of, table_text
from glmplan.costs.memory.pool import MemoryBudget
from glmplan.units import GIB, TokenCount, Tokens

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MEMORY_COLUMNS", "MemoryPlan", "Pool", "memory_rows"]


#: columns of a rank's memory beside its label, in order
MEMORY_COLUMNS: tuple[str, ...] = (
    "weights_gib", "weights_by_class_gib", "activation_gib", "graphs_gib", "graph_estimate_gib", "communication_gib",
    "reserve_gib", "cache_gib", "host_gib", "total_gib", "usable_gib", "capacity_gib", "cache_bytes_per_token",
    "state_bytes_per_sequence",
)  # fmt: skip


def memory_rows(ranks: tuple[MemoryBudget, ...]) -> list[dict[str, Any]]:
    """Return one row per rank: every memory term, [GiB] and [B]."""
    return [
        {
            "rank": rank.label,
            "weights_gib": sum(rank.weights.values()) / GIB,
            "weights_by_class_gib": "; ".join(f"{name} {size / GIB:.3f}" for name, size in rank.weights.items()),
            "activation_gib": rank.activation / GIB,
            "graphs_gib": rank.graphs / GIB,
            "graph_estimate_gib": rank.graph_estimate / GIB,
            "communication_gib": rank.communication / GIB,
            "reserve_gib": rank.reserve / GIB,
            "cache_gib": rank.cache / GIB,
            "host_gib": rank.host / GIB,
            "total_gib": rank.total / GIB,
            "usable_gib": rank.usable / GIB,
            "capacity_gib": rank.capacity / GIB,
            "cache_bytes_per_token": rank.per_token,
            "state_bytes_per_sequence": rank.state,
        }
        for rank in ranks
    ]


@dataclass(frozen=True, slots=True)
class Pool:
    """KV pool of all decoding servers in requests of one length.

    Notes
    -----
    With windows, recurrent states or compressed caches a token of a short request takes more bytes than one of a long
    request. The record has no order, so that its tokens are not compared with those of another length.
    """

    length: TokenCount  # tokens of each request, [token]
    #: `tokens`, `low`, `high`: tokens of such requests with the 90 % interval, [token]
    tokens: Tokens
    low: Tokens = 0.0
    high: Tokens = 0.0
    #: `held`, `held_low`: whole requests, mean and lower bound, [-]
    held: float = np.inf
    held_low: float = np.inf

    def tokens_of(self, length: TokenCount) -> Tokens:
        """Return the tokens; raise ValueError for requests of another length.

        Examples
        --------
        >>> Pool(800, 4000.0).tokens_of(800)
        4000.0
        """
        if length != self.length:
            raise ValueError(f"a KV pool for requests of {self.length} tokens is used for requests of {length}")
        return self.tokens

    def of_server(self, servers: int) -> Pool:
        """Return the pool of one of several servers."""
        parts = (self.tokens, self.low, self.high, self.held, self.held_low)
        return Pool(self.length, *(one / servers for one in parts))


@dataclass(frozen=True, repr=False)
class MemoryPlan:
    """Memory of every rank of a plan.

    Attributes
    ----------
    title : str
        Model, checkpoint and layout.
    ranks : tuple of MemoryBudget
        The parts of each rank, [B]
    pool, pool_low, pool_high : float
        KV cache pool in requests of the asked length, and its 90 % interval, [token]
    """

    title: str
    ranks: tuple[MemoryBudget, ...]
    pool: float
    pool_low: float
    pool_high: float

    def to_frame(self) -> pd.DataFrame:
        """Return one row per rank; the column names carry the units."""
        return frame_of(memory_rows(self.ranks))

    def __repr__(self) -> str:
        return (
            f"<MemoryPlan {self.title}: pool {self.pool:,.0f} tokens ({self.pool_low:,.0f} to {self.pool_high:,.0f}), "
            f"{len(self.ranks)} ranks>"
        )

    def __str__(self) -> str:
        return f"{self!r}\n{table_text(memory_rows(self.ranks))}"
