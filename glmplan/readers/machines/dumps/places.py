"""Where the accelerators of a machine sit: from its PCI tree, or from what `topo -m` says about pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from glmplan.readers.machines.dumps.findings import PciDevice, PciTree, Relations

__all__ = ["Places", "places_from_pci", "places_from_relations"]

_ALONG = {"display": "display", "nic": "nic", "nvme": "nvme"}


@dataclass(slots=True)
class Places:
    """Parts of a host description, in the form of `facts.schema.host`.

    `cards` has one entry for each accelerator: parent, link, address, NUMA node.
    """

    roots: list[dict[str, Any]] = field(default_factory=list)
    switches: list[dict[str, Any]] = field(default_factory=list)
    cards: list[dict[str, Any]] = field(default_factory=list)
    devices: list[dict[str, Any]] = field(default_factory=list)
    redirect: bool | None = None
    notes: list[str] = field(default_factory=list)


def _bus(address: str) -> str:
    """Return domain and bus of an address."""
    return address.rsplit(":", 1)[0]


def _chain(device: PciDevice, behind: dict[str, PciDevice]) -> list[PciDevice]:
    """Return the bridges above a device, from the root port down."""
    chain: list[PciDevice] = []
    bus = _bus(device.address)
    while bus in behind and behind[bus] not in chain:
        chain.insert(0, behind[bus])
        bus = _bus(behind[bus].address)
    return chain


def _link(*ends: PciDevice) -> dict[str, int] | None:
    """Return what both ends of a link can do."""
    generations = [end.generation for end in ends if end.generation]
    lanes = [end.lanes for end in ends if end.lanes]
    return {"generation": min(generations), "lanes": min(lanes)} if generations and lanes else None


def _plain(address: str) -> str:
    """Return a bus for names: without domain 0000."""
    return address.removeprefix("0000:").replace(":", "-")


def places_from_pci(tree: PciTree, sockets_of: dict[int, int]) -> Places:
    """Read roots, switches, cards and what sits beside them off a PCI tree.

    Parameters
    ----------
    tree : PciTree
        From `lspci -vvv` or `lspci -tv`.
    sockets_of : dict
        NUMA node → number of its socket.

    Returns
    -------
    Places
        Cards in the order of their addresses, as vendor tools number them.

    Notes
    -----
    A root complex is a bus without a bridge above it. Below its root port, every upstream port is a switch; in a tree
    without port types every second bridge is one. Virtual switches of one chip cannot be told from separate switches.

    Examples
    --------
    >>> devices = (PciDevice("0000:00:01.1", "port", "bridge", "01", "root", 5, 16, 0),
    ...            PciDevice("0000:01:00.0", "NVIDIA card", "gpu", None, None, 5, 16, 0))
    >>> places = places_from_pci(PciTree(devices, True), {0: 0})
    >>> places.roots, places.cards[0]["link"]
    ([{'name': 'root-00', 'socket': 'cpu0', 'address': '0000:00'}], {'generation': 5, 'lanes': 16})
    """
    places = Places()
    behind = {f"{device.address[:5]}{device.secondary}": device for device in tree.devices if device.secondary}
    numa_of_bus = {_bus(device.address): device.numa for device in tree.devices if device.numa is not None}
    made: dict[str, dict[str, Any]] = {}
    redirects: list[bool] = []
    for device in tree.devices:
        if device.kind != "gpu" and device.kind not in _ALONG:
            continue
        if device.kind in _ALONG and not device.address.endswith(".0"):
            continue
        chain = _chain(device, behind)
        top = _bus(chain[0].address if chain else device.address)
        root = f"root-{_plain(top)}"
        if root not in made:
            node = numa_of_bus.get(top, device.numa)
            socket = sockets_of.get(node if node is not None else 0, 0)
            made[root] = {"name": root, "socket": f"cpu{socket}", "address": top}
            places.roots.append(made[root])
        if chain and chain[0].redirect is not None:
            redirects.append(chain[0].redirect)
        parent = root
        for depth, bridge in enumerate(chain):
            upstream = bridge.port == "upstream" if tree.described else depth % 2 == 1  # root, upstream, downstream, …
            if not upstream:
                continue
            name = f"switch-{_plain(_bus(bridge.address))}"
            if name not in made:
                switch: dict[str, Any] = {"name": name, "parent": parent}
                uplink = _link(bridge, *chain[depth - 1 : depth])
                if uplink:
                    switch["uplink"] = uplink
                if tree.described:
                    switch["model"] = bridge.name.partition(" (rev")[0]
                made[name] = switch
                places.switches.append(switch)
            if tree.described and depth + 1 < len(chain) and chain[depth + 1].redirect is not None:
                made[name]["acs_redirect"] = bool(made[name].get("acs_redirect")) or chain[depth + 1].redirect
            parent = name
        entry: dict[str, Any] = {"parent": parent, "address": device.address}
        link = _link(device, *chain[-1:])
        if link:
            entry["link"] = link
        if device.kind == "gpu":
            places.cards.append(entry | {"name": device.name})
        else:
            places.devices.append(
                {"name": f"{device.kind}-{_plain(device.address)}", "kind": _ALONG[device.kind]} | entry
            )
    places.cards.sort(key=lambda card: card["address"])
    places.redirect = any(redirects) if redirects else None
    if tree.described and not places.switches:
        return places
    if tree.described:
        places.notes.append("virtual switches of one chip are listed as switches: `chip` can say that they meet inside")
    return places


def _groups(count: int, together: set[tuple[int, int]]) -> list[list[int]]:
    """Return the connected groups of `count` things, each and all in ascending order."""
    group = list(range(count))
    for one, other in sorted(together):
        low, high = sorted((group[one], group[other]))
        group = [low if value == high else value for value in group]
    return [[index for index in range(count) if group[index] == key] for key in sorted(set(group))]


def places_from_relations(relations: Relations, sockets_of: dict[int, int]) -> Places:
    """Guess roots and switches from how pairs reach each other.

    Parameters
    ----------
    relations : Relations
        From `nvidia-smi topo -m`.
    sockets_of : dict
        NUMA node → number of its socket.

    Returns
    -------
    Places
        PIX: one switch. PXB: switches below a common one. PHB: one root complex. NODE: one socket. SYS: several.

    Examples
    --------
    >>> cells = {(0, 0): "X", (0, 1): "NODE", (1, 0): "NODE", (1, 1): "X"}
    >>> places = places_from_relations(Relations(2, cells), {})
    >>> [card["parent"] for card in places.cards]
    ['root0', 'root1']
    """
    places = Places(notes=list(relations.notes))
    pairs = {
        kind: {pair for pair, cell in relations.cells.items() if cell in kind} for kind in (("PIX",), ("PIX", "PXB"))
    }
    near = {pair for pair, cell in relations.cells.items() if cell in ("PIX", "PXB", "PHB")}
    same_socket = {pair for pair, cell in relations.cells.items() if cell in ("PIX", "PXB", "PHB", "NODE")}
    sockets = _groups(relations.count, same_socket)
    parents: dict[int, str] = {}
    for number, root in enumerate(_groups(relations.count, near)):
        guess = next(index for index, members in enumerate(sockets) if root[0] in members)
        socket = sockets_of.get(relations.numa.get(root[0], -1), guess)
        places.roots.append({"name": f"root{number}", "socket": f"cpu{socket}"})
        for upper in (group for group in _groups(relations.count, pairs["PIX", "PXB"]) if group[0] in root):
            leaves = [group for group in _groups(relations.count, pairs["PIX",]) if group[0] in upper]
            parent = f"root{number}"
            if len(leaves) > 1:
                parent = f"switch{len(places.switches)}"
                places.switches.append({"name": parent, "parent": f"root{number}"})
            for leaf in leaves:
                place = parent
                if len(leaf) > 1:
                    place = f"switch{len(places.switches)}"
                    places.switches.append({"name": place, "parent": parent})
                parents.update({slot: place for slot in leaf})
    places.cards = [{"parent": parents[slot]} for slot in range(relations.count)]
    places.notes.append("roots and switches are inferred from `topo -m`: the rates of uplinks are not in it")
    return places
