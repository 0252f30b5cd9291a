"""Plans whose routed experts are computed on the processors of the host."""

from __future__ import annotations

from glmplan.plan.capacity import Holding
from glmplan.plan.question import Asked
from glmplan.prediction.hosted import keeps_experts_on_host

__all__ = ["experts_on_host", "pinned_bytes"]


def experts_on_host(asked: Asked) -> bool:
    """Whether the engine keeps routed experts in host memory.

    Parameters
    ----------
    asked : Asked
        The question.

    Returns
    -------
    bool
        As the engine's memory rule says.
    """
    return keeps_experts_on_host(asked.engine)


def pinned_bytes(holding: Holding) -> float:
    """Weights of a plan in host memory.

    Parameters
    ----------
    holding : Holding
        The layout.

    Returns
    -------
    float
        All ranks together, [B]
    """
    return sum(row.host for row in holding.rows())
