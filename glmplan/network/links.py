"""Which class of links a group of accelerators sees on a host, and the fitted constants that go with it.

Reading a host needs no graph library: the PCIe tree of a machine is small, and each link carries `k (n - k)` flows of
an all-to-all when it separates `k` of `n` ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmplan.datafolders import data_folder
from glmplan.errors import SpecError, UnknownFact
from glmplan.files import read_toml
from glmplan.network.collectives import LinkClass, Protocol
from glmplan.units import parse_quantity

if TYPE_CHECKING:
    from glmplan.schema.host import Host

__all__ = [
    "CUSTOM_ALL_REDUCE_RANKS",
    "LinkFits",
    "link_for_group",
    "load_link_fits",
    "path_to_root",
    "pcie_rates",
    "shared_ring_rates",
]

#: Group sizes that vLLM's own all-reduce kernel accepts (vllm-project/vllm, custom_all_reduce.py, release 0.19).
CUSTOM_ALL_REDUCE_RANKS = (2, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class LinkFits:
    """Constants fitted to measured transfers.

    Parameters
    ----------
    protocols : dict
        (link kind, algorithm, condition) → `Protocol`.
    scalars : dict
        Name → share of a line rate, [-]

    Examples
    --------
    >>> LinkFits({("pcie", "ring", "direct"): Protocol(5e-6, 1e-6, 0.7)}, {}).protocol("pcie", "ring", "direct").launch
    5e-06
    """

    protocols: dict[tuple[str, str, str], Protocol]
    scalars: dict[str, float]

    def protocol(self, kind: str, algorithm: str, condition: str) -> Protocol | None:
        """Return the constants of one protocol, None if it was never measured there."""
        return self.protocols.get((kind, algorithm, condition))


@cache
def load_link_fits(file: str | Path | None = None) -> LinkFits:
    """Read the fitted constants of links.

    Parameters
    ----------
    file : path, optional
        The file; by default `calibration/fits/links.toml`.

    Returns
    -------
    LinkFits
        All protocols and scalars of the file.

    Raises
    ------
    SpecError
        If the file is missing or lacks a field.

    Examples
    --------
    >>> fits = load_link_fits()
    >>> fits.protocol("pcie", "ring", "direct").efficiency < 1
    True
    """
    path = Path(file) if file else data_folder("calibration") / "fits" / "links.toml"
    content = read_toml(path)
    protocols: dict[tuple[str, str, str], Protocol] = {}
    scalars: dict[str, float] = {}
    try:
        for entry in content.get("protocol", []):
            protocols[entry["kind"], entry["algorithm"], entry["condition"]] = Protocol(
                parse_quantity(entry["launch"], "seconds"),
                parse_quantity(entry["hop"], "seconds"),
                float(entry["efficiency"]),
            )
        for entry in content.get("scalar", []):
            scalars[entry["name"]] = float(entry["value"])
    except KeyError as error:
        raise SpecError("a fit lacks this field", file=path, field=str(error.args[0])) from None
    return LinkFits(protocols, scalars)


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
    >>> from glmplan.schema.host import Host
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


def link_for_group(
    host: Host, group_size: int, *, fits: LinkFits | None = None, members: tuple[int, ...] | None = None
) -> LinkClass:
    """Return what a group of ranks sees of the links of a host.

    Parameters
    ----------
    host : Host
        The machine.
    group_size : int
        Number of ranks, one accelerator each, [-]
    fits : LinkFits, optional
        Fitted constants; by default those of the data folder.
    members : tuple of int, optional
        Numbers of the accelerators, [-]. By default the host is cut into consecutive groups and the slowest one counts,
        because all groups of a layout wait for each other.

    Returns
    -------
    LinkClass
        Line rates, protocols and what they rest on. On PCIe `algorithm` is `ring`, because stock engines leave their
        one-shot kernels off there; where `one_shot` is present it can run (peers reach each other's memory and the
        group has a size that the kernels accept), and `replace(link, algorithm="best")` uses it.

    Raises
    ------
    SpecError
        If the group is larger than the machine.
    UnknownFact
        If the links between the members are not known.

    Notes
    -----
    Not modelled: two groups that use the same uplink at the same time (see `network.topology`), rings that a library
    lays out badly on a machine not marked so.

    Examples
    --------
    >>> from glmplan.catalog_hosts import load_host
    >>> link = link_for_group(load_host("hgx-b200-8"), 8)
    >>> link.kind, link.bandwidth
    ('nvlink', 900000000000.0)
    >>> link_for_group(load_host("wrx90-2-switches-8"), 8).kind
    'pcie'
    """
    fits = fits or load_link_fits()
    if group_size < 1 or group_size > host.accelerator_count:
        raise SpecError(f"is not a group size on {host.name}: it has {host.accelerator_count}", value=group_size)
    per_node = host.accelerators_per_node
    inside = host.scale_up
    if (
        group_size > 1
        and inside is not None
        and group_size <= inside.domain
        and (inside.topology != "bridge" or group_size == 2)
    ):
        return _scale_up_class(host, group_size, fits)
    if group_size == 1 and (inside is not None or host.unified_memory):
        return _nowhere(host)
    if group_size > per_node:
        return _fabric_class(host, group_size, fits)
    groups = [members] if members else [
        tuple(range(start, start + group_size)) for start in range(0, per_node - group_size + 1, group_size)
    ]  # fmt: skip
    return min((_pcie_class(host, group, fits) for group in groups), key=_slowness)


def _nowhere(host: Host) -> LinkClass:
    """Return the class of a group of one where no link matters: its times are 0 whatever the rates."""
    kind = "unified" if host.unified_memory else host.scale_up.kind if host.scale_up else "pcie"
    return LinkClass(kind, 1.0, 1.0, Protocol(0.0, 0.0, 1.0), algorithm="ring", basis="a group of one")


def _slowness(link: LinkClass) -> tuple[float, float]:
    return link.bandwidth * link.ring.efficiency, link.mesh_bandwidth


def _needed(fits: LinkFits, kind: str, algorithm: str, condition: str) -> Protocol:
    found = fits.protocol(kind, algorithm, condition)
    if found is None:
        raise SpecError("is not in calibration/fits/links.toml", value=f"{kind}/{algorithm}/{condition}")
    return found


def _scale_up_class(host: Host, group_size: int, fits: LinkFits) -> LinkClass:
    """Return the class of a group inside one scale-up domain."""
    inside = host.scale_up
    assert inside is not None  # the caller has looked
    share = (group_size - 1) / (inside.domain - 1) if inside.topology == "mesh" else 1.0
    kind = "xgmi" if inside.kind == "xgmi" else "nvlink"
    rate = inside.bandwidth * share
    ring = _needed(fits, kind, "ring", "direct")
    generation = fits.protocol(kind, "one-shot", f"{inside.bandwidth / 1e9:g} GB/s")
    shot = generation or fits.protocol(kind, "one-shot", "direct")
    return LinkClass(
        kind,
        rate,
        rate,
        ring,
        one_shot=shot if group_size in CUSTOM_ALL_REDUCE_RANKS else None,
        switch=fits.protocol(kind, "switch", "direct") if inside.reduces else None,
        algorithm="best",
        basis=f"{kind}/ring/direct" + (f", {kind}/one-shot/{inside.bandwidth / 1e9:g} GB/s" if generation else ""),
        calibrated=inside.kind == "nvlink",
    )


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
    >>> from glmplan.catalog_hosts import load_host
    >>> ring, mesh, crosses = pcie_rates(load_host("wrx90-2-switches-8"), tuple(range(8)))
    >>> round(ring / 1e9), round(mesh / 1e9, 1), crosses
    (63, 27.6, False)
    """
    own, links = _link_use(host, group)
    ring_rate = min((link.rate / max(link.leaving, 1) for link in links), default=own)
    mesh_rate = min((link.rate * (len(group) - 1) / link.pairs for link in links), default=own)
    sockets = {_socket_of(host, slot) for slot in group}
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
    uses = []
    for name, ranks in below.items():
        # Virtual switches of one chip meet inside it: their traffic does not cross the uplinks.
        twins = [other for other, chip in chip_of.items() if other in below and chip == chip_of.get(name)]
        near = ranks.union(*(below[other] for other in twins))
        if len(near) < count:
            leaving = sum((rank + 1) % count not in near for rank in ranks)
            uses.append(_Use(name, rates[name], leaving, len(ranks) * (count - len(near))))
    return min(rates[f"slot {slot}"] for slot in group), uses


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
    >>> from glmplan.catalog_hosts import load_host
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


def _fabric_class(host: Host, group_size: int, fits: LinkFits) -> LinkClass:
    """Return the class of a group that spans nodes: as many rings as a node has members, each through its own port."""
    if host.fabric is None:
        raise UnknownFact(f"{host.name}: unknown: the network between nodes, which a group of {group_size} needs")
    on_node = (
        host.accelerators_per_node if host.scale_up is None else min(host.accelerators_per_node, host.scale_up.domain)
    )
    inside = host.scale_up.bandwidth if host.scale_up else float("inf")
    ring_rate = min(host.fabric.bandwidth * on_node, max(inside, host.fabric.bandwidth))
    mesh_rate = host.fabric.bandwidth * (group_size - 1) / (group_size - on_node)
    ring = _needed(fits, "fabric", "ring", "direct")
    return LinkClass("fabric", ring_rate, mesh_rate, ring, algorithm="ring", basis="fabric/ring/direct")


def _pcie_class(host: Host, group: tuple[int, ...], fits: LinkFits) -> LinkClass:
    """Return the class of one group of accelerators that meet over PCIe."""
    if len(group) == 1:
        return _nowhere(host)
    ring_rate, mesh_rate, crosses = pcie_rates(host, group)
    condition = _condition(host, crosses)
    ring = _needed(fits, "pcie", "ring", condition)
    one_shot = None
    if condition == "direct" and len(group) in CUSTOM_ALL_REDUCE_RANKS:
        one_shot = fits.protocol("pcie", "one-shot", "direct")
    basis = f"pcie/ring/{condition}"
    return LinkClass("pcie", ring_rate, mesh_rate, ring, one_shot=one_shot, algorithm="ring", basis=basis)


def _condition(host: Host, crosses: bool) -> str:
    """Return the named condition under which the PCIe links of a group run."""
    if host.conditions.p2p == "missing":
        return "staged"
    if not crosses:
        return "direct"
    return "two-sockets-tuned" if host.conditions.nccl_graph == "tuned" else "two-sockets"


def _socket_of(host: Host, slot: int) -> Any:
    """Return the socket that an accelerator hangs on, None when it is not known."""
    parents = {switch.name: switch.parent for switch in host.switches}
    sockets = {root.name: root.socket for root in host.roots}
    parent = host.slots[slot].parent
    while parent in parents:
        parent = parents[parent]
    return sockets.get(parent or "")
