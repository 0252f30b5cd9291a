"""The PCIe tree of a host in closed form: which links a group of accelerators uses, and how many transfers share each.

Needs no graph library: a link carries `k (n - k)` transfers of an all-to-all when it separates `k` of `n` ranks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glmplan.errors import UnknownFact

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host

__all__ = ["path_to_root", "pcie_rates", "shared_ring_rates", "socket_of", "transfer_rate"]


def path_to_root(host: Host, slot: int) -> list[tuple[str, float]]:
    """Return the links between an accelerator and its root complex, the accelerator's own link first.

    Parameters
    ----------
    host : Host
        The machine.
    slot : int
        Number of the accelerator, [-]

    Returns
    -------
    list of (str, float)
        Name of each link and its line rate, [B/s]; the name of an uplink is the name of its switch.

    Raises
    ------
    UnknownFact
        If generation and lanes of one of the links are not known.

    Examples
    --------
    >>> from glmplan.facts.schema.host import Host
    >>> host = Host(name="one", title="one card", source="an example", sockets=[{"name": "cpu0"}],
    ...             roots=[{"name": "r0", "socket": "cpu0"}],
    ...             switches=[{"name": "s0", "parent": "r0", "uplink": {"generation": 4, "lanes": 16}}],
    ...             cards=[{"accelerator": "l40s", "parent": "s0", "link": {"generation": 4, "lanes": 16}}])
    >>> [name for name, _ in path_to_root(host, 0)]
    ['slot 0', 's0']
    """
    card = host.slots[slot]
    if card.link is None:
        raise UnknownFact(f"{host.name}: unknown: PCIe generation and lanes of accelerator {slot} ({card.accelerator})")
    path = [(f"slot {slot}", card.link.bandwidth)]
    switches = {switch.name: switch for switch in host.switches}
    parent = card.parent
    while parent in switches:
        switch = switches[parent]
        if switch.uplink is None:
            raise UnknownFact(f"{host.name}: unknown: PCIe generation and lanes of the uplink of {switch.name}")
        path.append((switch.name, switch.uplink.bandwidth))
        parent = switch.parent
    return path


def pcie_rates(host: Host, group: tuple[int, ...]) -> tuple[float, float, bool]:
    """Return the line rates that a group of accelerators finds on the PCIe tree.

    Parameters
    ----------
    host : Host
        The machine.
    group : tuple of int
        Numbers of the accelerators in the order of the ring, [-]

    Returns
    -------
    tuple of (float, float, bool)
        Rate towards the next in the ring, rate of one rank when all send to all, [B/s], and whether the group spans
        sockets.

    Raises
    ------
    UnknownFact
        If a link's generation and lanes are not known.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> ring, mesh, crosses = pcie_rates(load_host("wrx90-2-switches-8"), tuple(range(8)))
    >>> round(ring / 1e9), round(mesh / 1e9, 1), crosses
    (63, 27.6, False)
    """
    own, links = _link_use(host, group)
    ring_rate = min((link.rate / max(link.leaving, 1) for link in links), default=own)
    mesh_rate = min((link.rate * (len(group) - 1) / link.pairs for link in links), default=own)
    sockets = {socket_of(host, slot) for slot in group}
    return min(ring_rate, own), min(mesh_rate, own), len(sockets) > 1


@dataclass(frozen=True, slots=True)
class _Use:
    """How a group uses one link: line rate [B/s], ring transfers that leave through it, pairs that it separates."""

    name: str
    rate: float
    leaving: int
    pairs: int


def _link_use(host: Host, group: tuple[int, ...]) -> tuple[float, list[_Use]]:
    """Return the slowest link of the members' own, [B/s], and the use of every link that separates some of them."""
    count = len(group)
    rates: dict[str, float] = {}
    below: dict[str, set[int]] = {}
    for rank, slot in enumerate(group):
        for name, rate in path_to_root(host, slot):
            rates[name] = rate
            below.setdefault(name, set()).add(rank)
    chip_of = {switch.name: switch.chip for switch in host.switches if switch.chip}
    redirecting = _redirecting(host)
    uses = []
    for name, ranks in below.items():
        if name in redirecting:
            # Every transfer of the members goes up to the root port first, also to a neighbour on the switch.
            uses.append(_Use(name, rates[name], len(ranks), len(ranks) * (count - 1)))
            continue
        # Virtual switches of one chip meet inside it: their traffic does not cross the uplinks.
        twins = [other for other, chip in chip_of.items() if other in below and chip == chip_of.get(name)]
        near = ranks.union(*(below[other] for other in twins))
        if len(near) < count:
            leaving = sum((rank + 1) % count not in near for rank in ranks)
            uses.append(_Use(name, rates[name], leaving, len(ranks) * (count - len(near))))
    return min(rates[f"slot {slot}"] for slot in group), uses


def _redirecting(host: Host) -> set[str]:
    """Return the switches that send every transfer up to the root port first."""
    return {
        switch.name
        for switch in host.switches
        if (switch.acs_redirect if switch.acs_redirect is not None else host.conditions.acs_redirect)
    }


def transfer_rate(host: Host, pairs: Sequence[tuple[int, int]]) -> tuple[float, bool]:
    """Return what each of several transfers finds on the PCIe tree while all run at the same time.

    Parameters
    ----------
    host : Host
        The machine.
    pairs : sequence of (int, int)
        Numbers of the accelerators of one node that send and receive, [-]

    Returns
    -------
    tuple of (float, bool)
        Line rate of the slowest, [B/s], and whether any of them crosses sockets.

    Raises
    ------
    UnknownFact
        If a link's generation and lanes are not known.

    Notes
    -----
    Links are shared evenly, each direction by itself. Not modelled: that a transfer which is slower elsewhere leaves
    more to the others (`network.topology` does that, with a graph library).

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> host = load_host("wrx90-2-switches-8")
    >>> [round(transfer_rate(host, pairs)[0] / 1e9, 1) for pairs in ([(0, 1)], [(0, 4), (1, 5)])]
    [63.0, 31.5]
    """
    used: Counter[tuple[str, bool]] = Counter()
    rates: dict[tuple[str, bool], float] = {}
    for sender, receiver in pairs:
        for rising, one, other in ((True, sender, receiver), (False, receiver, sender)):
            for name, rate in _way_out(host, one, other):
                used[name, rising] += 1
                rates[name, rising] = rate
    crosses = any(socket_of(host, sender) != socket_of(host, receiver) for sender, receiver in pairs)
    return min(rates[link] / count for link, count in used.items()), crosses


def _way_out(host: Host, slot: int, other: int) -> list[tuple[str, float]]:
    """Return the links that a transfer uses between an accelerator and the switch or socket where it turns round."""
    chips = {switch.name: switch.chip for switch in host.switches if switch.chip}
    above = {name for name, _ in path_to_root(host, other)}
    chips_above = {chips[name] for name in above if name in chips}
    redirecting = _redirecting(host)
    way = []
    for name, rate in path_to_root(host, slot):
        if (name in above or chips.get(name) in chips_above) and name not in redirecting:
            break
        way.append((name, rate))
    return way


def shared_ring_rates(host: Host, groups: tuple[tuple[int, ...], ...]) -> list[float]:
    """Return what each of several rings finds when all run at the same time.

    Parameters
    ----------
    host : Host
        The machine.
    groups : tuple of tuple of int
        Numbers of the accelerators of each ring, in its order, [-]

    Returns
    -------
    list of float
        Line rate towards the next in each ring, [B/s]

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> host = load_host("wrx90-2-switches-8")
    >>> apart, mixed = ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 1, 4, 5), (2, 3, 6, 7))
    >>> round(shared_ring_rates(host, apart)[0] / shared_ring_rates(host, mixed)[0])
    2
    """
    found = [_link_use(host, group) for group in groups]
    total: dict[str, int] = {}
    for _, links in found:
        for link in links:
            total[link.name] = total.get(link.name, 0) + link.leaving
    return [min([own, *(link.rate / max(total[link.name], 1) for link in links)]) for own, links in found]


def socket_of(host: Host, slot: int) -> str | None:
    """Return the socket that an accelerator hangs on.

    Parameters
    ----------
    host : Host
        The machine.
    slot : int
        Number of the accelerator, [-]

    Returns
    -------
    str or None
        Name of the socket, None when it is not known.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> socket_of(load_host("turin-2s-direct-8"), 7)
    'cpu1'
    """
    parents = {switch.name: switch.parent for switch in host.switches}
    sockets = {root.name: root.socket for root in host.roots}
    parent = host.slots[slot].parent
    while parent in parents:
        parent = parents[parent]
    return sockets.get(parent or "")
