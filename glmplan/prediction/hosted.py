"""What an engine keeps in the memory of the host that a deployment runs on: of plans and of rows alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glmplan.facts.engines.memory import load_memory_rule, memory_engines
from glmplan.facts.schema.host import Host

if TYPE_CHECKING:
    from glmplan.physics.offload.hosted_steps import Offload

__all__ = ["keeps_experts_on_host", "offload_of"]


def keeps_experts_on_host(engine: str) -> bool:
    """Whether an engine keeps routed experts in host memory.

    Parameters
    ----------
    engine : str
        Name.

    Returns
    -------
    bool
        As its memory rule says.

    Examples
    --------
    >>> keeps_experts_on_host("ktransformers"), keeps_experts_on_host("vllm")
    (True, False)
    """
    return engine in memory_engines() and load_memory_rule(engine).host_experts


def offload_of(engine: str, host: Host, cards: int) -> Offload | None:
    """What a deployment keeps in host memory.

    Parameters
    ----------
    engine : str
        Engine.
    host : Host
        The machine.
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

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> offload_of("ktransformers", load_host("genoa-2s-direct-8"), 8).placement.unit
    'experts'
    """
    if not keeps_experts_on_host(engine):
        return None
    from glmplan.physics.offload.hosted_steps import Offload
    from glmplan.physics.offload.time import Placement, host_side

    return Offload(Placement(1.0, "experts"), host_side(host, min(cards, host.accelerators_per_node)))
