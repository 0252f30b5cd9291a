"""Plans whose routed experts are computed on the processors of the host."""

from __future__ import annotations

from glmplan.facts.engines.memory import load_memory_rule, memory_engines
from glmplan.physics.offload.hosted_steps import Offload
from glmplan.physics.offload.time import Placement, host_side
from glmplan.plan.capacity import Holding
from glmplan.plan.question import Asked

__all__ = ["experts_on_host", "offload_of", "pinned_bytes"]


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
    return asked.engine in memory_engines() and load_memory_rule(asked.engine).host_experts


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


def offload_of(asked: Asked, cards: int) -> Offload | None:
    """What a plan keeps in host memory.

    Parameters
    ----------
    asked : Asked
        The question.
    cards : int
        Accelerators of the layout, [-]

    Returns
    -------
    Offload or None
        All routed experts, computed there; None where the engine keeps nothing in host memory.

    Raises
    ------
    UnknownFact
        If the memory bandwidth of the host, or a link on the way to it, is not known.
    """
    if not experts_on_host(asked):
        return None
    host = asked.machine.host
    return Offload(Placement(1.0, "experts"), host_side(host, min(cards, host.accelerators_per_node)))
