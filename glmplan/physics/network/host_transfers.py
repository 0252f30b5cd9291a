"""What accelerators reach to and from host memory when several of them transfer at once.

The limits that `physics.network.topology` applies, as closed forms over the tree: a plan needs no graph library.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from glmplan.errors import SpecError, UnknownFact
from glmplan.physics.network.links import LinkFits, load_link_fits
from glmplan.physics.network.tree import path_to_root

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host

__all__ = ["host_transfer_rate"]


def host_transfer_rate(
    host: Host, *, count: int = 1, members: tuple[int, ...] | None = None, fits: LinkFits | None = None
) -> float:
    """Return what each accelerator reaches to or from host memory while others do the same.

    Parameters
    ----------
    host : Host
        The machine.
    count : int, optional
        How many accelerators transfer at once: the first ones of a node, [-]
    members : tuple of int, optional
        Which accelerators, instead of a count, [-]
    fits : LinkFits, optional
        Fitted shares; by default those of the data folder.

    Returns
    -------
    float
        Rate of the slowest of them in one direction, [B/s]

    Raises
    ------
    SpecError
        If the machine has fewer accelerators in a node.
    UnknownFact
        If a link's generation and lanes are not known.

    Notes
    -----
    Limits: each link on the way, shared by those below it; what one root complex with several ports passes to memory;
    the memory of each socket, if its bandwidth is known. Not modelled: pageable memory, transfers to the other socket.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> host = load_host("wrx90-2-switches-8")
    >>> alone, together = host_transfer_rate(host), host_transfer_rate(host, count=8)
    >>> round(alone / together)
    4
    """
    slots = members if members is not None else tuple(range(count))
    if not slots or max(slots) >= host.accelerators_per_node:
        raise SpecError(f"is not a number of accelerators in a node of {host.name}", value=len(slots))
    if host.unified_memory:
        raise UnknownFact(f"{host.name} has one memory for CPU and accelerator: nothing is transferred")
    shares = (fits or load_link_fits()).scalars
    parents = {switch.name: switch.parent for switch in host.switches}
    sockets = {root.name: root.socket for root in host.roots}
    users: Counter[str] = Counter()
    limit: dict[str, float] = {}
    for slot in slots:
        for name, rate in path_to_root(host, slot):
            users[name] += 1
            limit[name] = rate * shares["payload"]
        root = host.slots[slot].parent
        while root in parents:
            root = parents[root]
        if root is None:
            continue
        users[root] += 1
        ports = [switch.uplink.bandwidth for switch in host.switches if switch.parent == root and switch.uplink]
        ports += [card.link.bandwidth for card in host.slots if card.parent == root and card.link]
        if len(ports) > 1:
            limit[root] = max(ports) * shares["root_to_memory"]
        socket = sockets[root]
        users[socket] += 1
        memory = next(entry.memory_bandwidth for entry in host.sockets if entry.name == socket)
        if memory is not None:
            limit[socket] = memory
    return min(rate / users[name] for name, rate in limit.items())
