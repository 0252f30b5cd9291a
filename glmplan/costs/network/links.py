"""Return the links of an accelerator group, with fitted constants.

Links of the PCIe tree are computed in closed form, without a graph library: a link carries `k (n - k)` transfers of an
all-to-all when it separates `k` of `n` ranks. `glmplan.costs.network.topology` computes any set of transfers on a
graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from glmplan.catalog.files import fits_folder, read_toml
from glmplan.costs.network.collectives import LinkClass, Protocol
from glmplan.errors import SpecError, UnknownFact
from glmplan.units import BytesPerSecond, Ratio, parse_quantity

if TYPE_CHECKING:
    from glmplan.catalog.schema.host import Host

__all__ = [
    "ALONE",
    "CUSTOM_ALL_REDUCE_RANKS",
    "LayoutLinks",
    "LinkFits",
    "LinksByPoint",
    "across_nodes",
    "crowding",
    "hand_over_link",
    "host_transfer_rate",
    "link_for_group",
    "link_of_transfers",
    "links_of_layout",
    "load_link_fits",
    "path_to_root",
    "pcie_rates",
    "shared_ring_rates",
    "socket_of",
    "transfer_rate",
]


def path_to_root(host: Host, slot: int) -> list[tuple[str, float]]:
    """Return name and line rate [B/s] of the links to the root complex.

    The accelerator's own link comes first; an uplink has the name of its switch.

    Examples
    --------
    >>> from glmplan.catalog.schema.host import Host
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
    """Return ring rate, all-to-all rate [B/s], and True across sockets.

    The all-to-all rate is that of one rank. `group`: numbers of the accelerators in the order of the ring.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
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
    """Use of one link by a group.

    Line rate [B/s], ring transfers that leave through it, pairs that it separates.
    """

    name: str
    rate: float
    leaving: int
    pairs: int


def _link_use(host: Host, group: tuple[int, ...]) -> tuple[float, list[_Use]]:
    """Return the slowest own link [B/s], and the use of shared links."""
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
            # every transfer of the members goes up to the root port first, also to a neighbour on the switch
            uses.append(_Use(name, rates[name], len(ranks), len(ranks) * (count - 1)))
            continue
        # virtual switches of one chip meet inside it: their traffic does not cross the uplinks
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
    """Return the slowest of simultaneous transfers [B/s]; True across sockets.

    Links are shared evenly, each direction by itself. Not modelled: a transfer that is slower elsewhere leaves more to
    the others (`network.topology` models it).

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
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
    """Return the links from an accelerator to the turn of a transfer.

    The turn is a switch or socket.
    """
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
    """Return the line rate of each of several simultaneous rings [B/s].

    A ring sends towards the next rank. `groups`: numbers of the accelerators of each ring, in its order.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> host = load_host("wrx90-2-switches-8")
    >>> apart, mixed = ((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 1, 4, 5), (2, 3, 6, 7))
    >>> round(shared_ring_rates(host, apart)[0] / shared_ring_rates(host, mixed)[0])
    2
    """
    result = [_link_use(host, group) for group in groups]
    total: dict[str, int] = {}
    for _, links in result:
        for link in links:
            total[link.name] = total.get(link.name, 0) + link.leaving
    return [min([own, *(link.rate / max(total[link.name], 1) for link in links)]) for own, links in result]


def socket_of(host: Host, slot: int) -> str | None:
    """Return the socket of an accelerator, None when it is not known.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> socket_of(load_host("turin-2s-direct-8"), 7)
    'cpu1'
    """
    return host.slot_sockets[slot]


#: peers of the measured exchanges: pairs, groups of four, groups of eight
_PEERS = (1.0, 3.0, 7.0)


def crowding(peers: ArrayLike, shares: Mapping[str, float], *, writes: bool = True) -> NDArray[np.float64]:
    """Return the share of a one-way rate left in exchanges with `peers`.

    Exchanging with one peer leaves nearly all of it, with three peers six tenths, with seven less than half, whatever
    the switches above the card. Uplinks shared by peers are counted apart. Linear in the logarithm of the peers between
    the measured numbers, constant outside them.

    Examples
    --------
    >>> measured = {"duplex": 0.98, "mesh_write": 0.62, "mesh_write_8": 0.45}
    >>> crowding([1, 3, 7, 15], measured).tolist()
    [0.98, 0.62, 0.45, 0.45]
    """
    names = ("duplex", "mesh_write", "mesh_write_8") if writes else ("duplex", "mesh_read", "mesh_read_8")
    # one way alone and both ways were measured with different tools: more peers never make a card faster
    known = np.minimum([shares[name] for name in names], 1.0)
    count = np.maximum(np.asarray(peers, dtype=np.float64), 1.0)
    return np.asarray(np.interp(np.log(count), np.log(_PEERS), known))


#: basis of the class of a group of one, which crosses no link
ALONE = "a group of one"

#: group sizes of vLLM's own all-reduce kernel (vllm-project/vllm, custom_all_reduce.py, release 0.19)
CUSTOM_ALL_REDUCE_RANKS = (2, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class LinkFits:
    """Constants fitted to transfers, by (link kind, algorithm, condition)."""

    protocols: dict[tuple[str, str, str], Protocol]
    scalars: dict[str, Ratio]  # shares of a line rate by name
    #: median relative error on held-out machines; without protocols measured on one machine only
    errors: dict[tuple[str, str, str], Ratio] = field(default_factory=dict)

    def protocol(self, kind: str, algorithm: str, condition: str) -> Protocol | None:
        """Return the constants of a protocol, None if not measured there."""
        return self.protocols.get((kind, algorithm, condition))


@cache
def load_link_fits() -> LinkFits:
    """Read the fitted constants of links.

    Examples
    --------
    >>> fits = load_link_fits()
    >>> fits.protocol("pcie", "ring", "direct").efficiency < 1
    True
    """
    path = fits_folder() / "links.toml"
    content = read_toml(path)
    protocols: dict[tuple[str, str, str], Protocol] = {}
    scalars: dict[str, float] = {}
    errors: dict[tuple[str, str, str], float] = {}
    try:
        for entry in content.get("protocol", []):
            key = entry["kind"], entry["algorithm"], entry["condition"]
            protocols[key] = Protocol(
                parse_quantity(entry["launch"], "seconds"),
                parse_quantity(entry["hop"], "seconds"),
                float(entry["efficiency"]),
                parse_quantity(entry["bulk_hop"], "seconds") if "bulk_hop" in entry else None,
            )
            if "left_out_error" in entry:
                errors[key] = float(entry["left_out_error"])
        for entry in content.get("scalar", []):
            scalars[entry["name"]] = float(entry["value"])
    except KeyError as error:
        raise SpecError("a fit lacks this field", file=path, field=str(error.args[0])) from None
    return LinkFits(protocols, scalars, errors)


def across_nodes(between: Protocol, inside: Protocol, on_node: ArrayLike) -> Protocol:
    """Return the constants of rings over several nodes.

    The mean hop of the ring is part of them. `on_node`: ranks on each node; one step in as many leaves it. Launch and
    efficiency
    are those of `between`.

    Examples
    --------
    >>> across_nodes(Protocol(8e-6, 20e-6, 0.8), Protocol(8e-6, 1e-6, 0.8), 1).hop
    2e-05
    >>> round(float(across_nodes(Protocol(8e-6, 20e-6, 0.8), Protocol(8e-6, 1e-6, 0.8), 8).hop) * 1e6, 3)
    3.375
    """
    crossing = 1.0 / np.asarray(on_node, dtype=np.float64)
    hop = crossing * between.hop + (1.0 - crossing) * inside.hop
    # an array passes through the closed forms like a number
    return replace(between, hop=hop if hop.ndim else float(hop))  # type: ignore[arg-type]


def link_for_group(
    host: Host, group_size: int, *, fits: LinkFits | None = None, members: tuple[int, ...] | None = None
) -> LinkClass:
    """Return the class of links that a group of ranks sees on a host.

    Without `members` the host is cut into consecutive groups and the slowest one counts, because all groups of a layout
    wait for each other. On PCIe `algorithm` is `ring`, because stock engines disable their one-shot kernels there;
    where `one_shot` is present it can run (peers reach each other's memory and a kernel accepts the group size), and
    `replace(link, algorithm="best")` uses it.

    Not modelled: two groups on one uplink at the same time (see `network.topology`), rings that a library lays out
    badly on a machine not marked so.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
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


def link_of_transfers(host: Host, pairs: Sequence[tuple[int, int]], *, fits: LinkFits | None = None) -> LinkClass:
    """Return the link of the slowest of several simultaneous transfers.

    Each is between two accelerators. `pairs`: numbers counted over all nodes. Not modelled: several transfers between
    the same two nodes by fewer ports than accelerators.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> link_of_transfers(load_host("mi300x-8"), [(0, 4)]).bandwidth  # a mesh: each pair has a link of its own
    64000000000.0
    """
    fits = fits or load_link_fits()
    inside, per_node = host.scale_up, host.accelerators_per_node

    def joined(one: int, other: int) -> bool:
        if inside is None:
            return False
        if inside.topology == "bridge":
            return one % 2 == 0 and other == one + 1
        return one // inside.domain == other // inside.domain

    if inside is not None and all(joined(*pair) for pair in pairs):
        return _scale_up_class(host, 2, fits)
    outside = [pair for pair in pairs if not joined(*pair)]
    if any(one // per_node != other // per_node for one, other in outside):
        return _network_class(host, fits)
    slots = [(one % per_node, other % per_node) for one, other in outside]
    rate, crosses = transfer_rate(host, slots)
    condition = _condition(host, crosses)
    key = "pcie", "ring", condition
    return LinkClass("pcie", rate, rate, _needed(fits, *key), algorithm="ring", basis="/".join(key),
                     error=fits.errors.get(key))  # fmt: skip


def _nowhere(host: Host) -> LinkClass:
    """Return the class of a group of one: its times are 0 at any rate."""
    kind = "unified" if host.unified_memory else host.scale_up.kind if host.scale_up else "pcie"
    return LinkClass(kind, 1.0, 1.0, Protocol(0.0, 0.0, 1.0), algorithm="ring", basis=ALONE)


def _slowness(link: LinkClass) -> tuple[float, float]:
    return link.bandwidth * link.ring.efficiency, link.mesh_bandwidth


def _needed(fits: LinkFits, kind: str, algorithm: str, condition: str) -> Protocol:
    result = fits.protocol(kind, algorithm, condition)
    if result is None:
        raise SpecError("is not in calibration/fits/links.toml", value=f"{kind}/{algorithm}/{condition}")
    return result


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
        error=fits.errors.get((kind, "ring", "direct")),
    )


#: where the rate between nodes is stated
_STATED = "the file of the machine states it ([fabric] with kind and bandwidth, --on FILE)"


def _fabric_class(host: Host, group_size: int, fits: LinkFits) -> LinkClass:
    """Return the class of a group over several nodes.

    One ring for each member of a node, each through its own port.
    """
    if host.fabric is None:
        lacks = f"{host.name}: unknown: the network between nodes, which a group of {group_size} needs"
        raise UnknownFact(f"{lacks}; {_STATED}")
    on_node = (
        host.accelerators_per_node if host.scale_up is None else min(host.accelerators_per_node, host.scale_up.domain)
    )
    inside = host.scale_up.bandwidth if host.scale_up else float("inf")
    ring_rate = min(host.fabric.bandwidth * on_node, max(inside, host.fabric.bandwidth))
    mesh_rate = host.fabric.bandwidth * (group_size - 1) / (group_size - on_node)
    key = "fabric", "ring", "direct"
    inner = _needed(fits, "nvlink", "ring", "direct")
    ring = across_nodes(_needed(fits, *key), inner, min(on_node, group_size))
    error = fits.errors.get(key)
    return LinkClass("fabric", ring_rate, mesh_rate, ring, algorithm="ring", basis="/".join(key), error=error)


def _network_class(host: Host, fits: LinkFits) -> LinkClass:
    """Return the class of one accelerator's port to another node."""
    if host.fabric is None:
        lacks = f"{host.name}: unknown: the network between nodes, which a hand-over between stages needs"
        raise UnknownFact(f"{lacks}; {_STATED}")
    key, rate = ("fabric", "ring", "direct"), host.fabric.bandwidth
    error = fits.errors.get(key)
    return LinkClass("fabric", rate, rate, _needed(fits, *key), algorithm="ring", basis="/".join(key), error=error)


def _pcie_class(host: Host, group: tuple[int, ...], fits: LinkFits) -> LinkClass:
    """Return the class of one group of accelerators that meet over PCIe."""
    if len(group) == 1:
        return _nowhere(host)
    ring_rate, mesh_rate, crosses = pcie_rates(host, group)
    condition = _condition(host, crosses)
    ring = _needed(fits, "pcie", "ring", condition)
    one_shot = None
    # where posted writes collapse, all-to-all exchanges over shared uplinks do not count as possible
    collapses = bool(host.conditions.posted_write_collapse) and mesh_rate < ring_rate
    if condition != "staged" and len(group) in CUSTOM_ALL_REDUCE_RANKS and not collapses:
        one_shot = fits.protocol("pcie", "one-shot", "direct")
    mesh_rate = min(mesh_rate, ring_rate * float(crowding(len(group) - 1, fits.scalars)))
    key = "pcie", "ring", condition
    error = fits.errors.get(key)
    return LinkClass("pcie", ring_rate, mesh_rate, ring, one_shot, algorithm="ring", basis="/".join(key), error=error)


def _condition(host: Host, crosses: bool) -> str:
    """Return the named condition under which the PCIe links of a group run."""
    if host.conditions.p2p == "missing":
        return "staged"
    if not crosses:
        return "direct"
    return "two-sockets-tuned" if host.conditions.nccl_graph == "tuned" else "two-sockets"


@dataclass(frozen=True, slots=True, repr=False)
class LayoutLinks:
    """Links that the groups of a layout cross; a group of one crosses none."""

    tensor: LinkClass  # ranks that share a layer (TP)
    experts: LinkClass  # ranks that share the experts (TP × DP)
    context: LinkClass  # ranks that share a context (DCP)
    hand_over: LinkClass  # a rank and its successor in the next pipeline stage (PP)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{name} {getattr(self, name).kind}" for name in self.__slots__)
        return f"<LayoutLinks {kinds}>"

    def classes(self, group: str) -> tuple[tuple[LinkClass, np.ndarray | slice], ...]:
        """Return the link of a kind of group, and the points that cross it: all."""
        return ((getattr(self, group), slice(None)),)


@dataclass(frozen=True, slots=True, eq=False)
class LinksByPoint:
    """Links of points whose layouts cross different ones.

    `of` is the index in `layouts` of each point.
    """

    layouts: tuple[LayoutLinks, ...]
    of: np.ndarray

    def classes(self, group: str) -> tuple[tuple[LinkClass, np.ndarray | slice], ...]:
        """Return the links of a kind of group, and the points that cross each."""
        places: dict[LinkClass, list[int]] = {}
        for place, layout in enumerate(self.layouts):
            places.setdefault(getattr(layout, group), []).append(place)
        if len(places) == 1:
            return ((next(iter(places)), slice(None)),)
        number = len(self.layouts)
        return tuple(
            (link, np.bincount(result, minlength=number).astype(bool)[self.of]) for link, result in places.items()
        )


def links_of_layout(
    host: Host, *, tp: int = 1, pp: int = 1, dp: int = 1, dcp: int = 1, one_shot: bool = False
) -> LayoutLinks:
    """Return the links of a layout's groups, the slowest of each kind.

    `one_shot`: the engine's one-shot all-reduce runs over PCIe, where stock engines disable it; the ring runs where the
    group has none. Ranks take the accelerators in the order of their numbers: first those of a TP group, then its DP
    replicas, then the next pipeline stage. Not modelled: other orders (`network.topology.place` compares them), groups
    that compete for an uplink.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_machine
    >>> links = links_of_layout(load_machine("6xrtx-pro-6000-ws"), tp=2, pp=3)
    >>> links.tensor.basis, links.hand_over.kind, links.context.basis
    ('pcie/ring/direct', 'pcie', 'a group of one')
    """
    return _known(host, tp, pp, dp, dcp, one_shot)


@lru_cache(maxsize=4096)
def _known(host: Host, tp: int, pp: int, dp: int, dcp: int, one_shot: bool) -> LayoutLinks:
    if tp * pp * dp > host.accelerator_count:
        raise SpecError(
            f"needs {tp * pp * dp} accelerators, {host.name} has {host.accelerator_count}", field="tp × pp × dp",
            value=f"{tp} × {pp} × {dp}",
        )  # fmt: skip

    def reduces(ranks: int) -> LinkClass:
        link = link_for_group(host, ranks)
        return replace(link, algorithm="best") if one_shot and link.one_shot is not None else link

    tensor = reduces(tp)
    return LayoutLinks(
        tensor=tensor,
        experts=tensor if dp == 1 else reduces(tp * dp),
        context=link_for_group(host, dcp),
        hand_over=hand_over_link(host, tp * dp, pp),
    )


def hand_over_link(host: Host, width: int, stages: int) -> LinkClass:
    """Return the link of the slowest hand-over to the next stage.

    `width`: ranks of a stage; each sends to its counterpart in the next stage, all at once, so the rate is the one left
    for each sender.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> host = load_host("wrx90-2-switches-8")
    >>> round(hand_over_link(host, 4, 2).bandwidth / hand_over_link(host, 1, 8).bandwidth, 2)  # four share an uplink
    0.25
    """
    constants = load_link_fits()
    if stages == 1:
        return link_for_group(host, 1, fits=constants)
    result: Iterable[LinkClass] = (
        link_of_transfers(host, [(start + rank, start + width + rank) for rank in range(width)], fits=constants)
        for start in range(0, width * (stages - 1), width)
    )
    return min(result, key=lambda link: link.bandwidth * link.ring.efficiency)


def host_transfer_rate(host: Host, *, count: int = 1, members: tuple[int, ...] | None = None) -> BytesPerSecond:
    """Return the slowest simultaneous transfer rate to or from the host.

    The rate is that of one direction. `count`: the first accelerators of a node transfer at once. Limits, as in
    `network.topology`: each
    link on the way, shared by those below it; the rate at which one root complex with several ports passes data to
    memory; the memory of each socket, if its bandwidth is known. Not modelled: pageable memory, transfers to the other
    socket.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
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
    shares = load_link_fits().scalars
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
