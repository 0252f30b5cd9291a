"""The memory of every rank of a plan as one record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glmplan.facts.tables import frame_of, table_text
from glmplan.physics.memory.budget import MemoryBudget
from glmplan.units import GIB

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MEMORY_COLUMNS", "MemoryPlan", "memory_rows"]


#: columns of a rank's memory beside its label, in order
MEMORY_COLUMNS: tuple[str, ...] = (
    "weights_gib", "weights_by_class_gib", "activation_gib", "graphs_gib", "graph_estimate_gib", "communication_gib",
    "reserve_gib", "cache_gib", "host_gib", "total_gib", "usable_gib", "capacity_gib", "cache_bytes_per_token",
    "state_bytes_per_sequence",
)  # fmt: skip


def memory_rows(ranks: tuple[MemoryBudget, ...]) -> list[dict[str, Any]]:
    """One row for each rank, every term of its memory, in the units that their names say.

    Parameters
    ----------
    ranks : tuple of MemoryBudget
        Memory of the ranks.

    Returns
    -------
    list of dict
        Column → value, [GiB] and [B]
    """
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


@dataclass(frozen=True, repr=False)
class MemoryPlan:
    """What every rank holds.

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
        """One row for each rank, GiB and bytes as the names of the columns say."""
        return frame_of(memory_rows(self.ranks))

    def __repr__(self) -> str:
        return (
            f"<MemoryPlan {self.title}: pool {self.pool:,.0f} tokens ({self.pool_low:,.0f} to {self.pool_high:,.0f}), "
            f"{len(self.ranks)} ranks>"
        )

    def __str__(self) -> str:
        return f"{self!r}\n{table_text(memory_rows(self.ranks))}"
