"""What any set of simultaneous transfers on a host leaves for each of them.

Shared links are divided by max-min fairness. Line rates come from the host's description; which share of a line payload
reaches under which circumstances is fitted (`calibration/fits/links.toml`) and taken as `LinkFits.scalars`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from glmplan.errors import UnknownFact
from glmplan.physics.network.crowding import crowding
from glmplan.physics.network.graph import HOST, Edge, End, Flow, accelerator_node, link_graph, route
from glmplan.physics.network.links import LinkFits, load_link_fits

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host

__all__ = ["HOST", "End", "Flow", "LinkLoad", "flow_rates", "link_graph", "link_loads", "route"]


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """What one direction of one link carries.

    Parameters
    ----------
    start, end : str
        The nodes it joins.
    capacity : float
        What payload it can carry, [B/s]
    load : float
        What it carries, [B/s]
    flows : int
        Number of transfers on it, [-]
    """

    start: str
    end: str
    capacity: float
    load: float
    flows: int


def _capacities(
    host: Host, flows: Sequence[Flow], routes: Sequence[tuple[Edge, ...]], shares: dict[str, float], writes: bool
) -> tuple[list[list[Edge]], dict[Edge, float]]:
    """Return the resources that each transfer uses and what payload each resource can carry, [B/s].

    Beside the links there are three kinds of limits, which have a name instead of two nodes: what one root complex lets
    through to another socket, what it lets through to memory, and the collapse of posted writes.
    """
    graph = link_graph(host)
    sends, receives = Counter(a for a, _ in flows), Counter(b for _, b in flows)
    used: list[list[Edge]] = []
    capacity: dict[Edge, float] = {}
    for path in routes:
        mine = list(path)
        for edge in path:
            data = graph.edges[edge]
            capacity[edge] = data["line"] * shares[_share_name(data["kind"])]
            if data["kind"] == "root-memory":
                ports = _port_rates(graph, edge[0] if graph.nodes[edge[0]]["kind"] == "root" else edge[1])
                if len(ports) > 1:
                    capacity[edge] = max(ports) * shares["root_to_memory"]
        if any(graph.edges[edge]["kind"] == "socket" for edge in path):
            port = next(edge for edge in path if graph.nodes[edge[1]]["kind"] == "root")
            limit = ("across sockets", port[1])
            capacity[limit] = graph.edges[port]["line"] * shares["payload"] * shares["across_sockets"]
            mine.append(limit)
        used.append(mine)
    for number in sorted({end for flow in flows for end in flow if end != HOST}):
        busy = sends[number], receives[number]
        if min(busy) > 0:
            factor = float(crowding(min(busy), shares, writes=writes))
            for edge in capacity:
                if accelerator_node(int(number)) in edge and graph.edges[edge]["kind"] == "pcie":
                    capacity[edge] *= factor
    if writes and host.conditions.posted_write_collapse:
        _collapse(host, routes, shares, capacity)
    return used, capacity


def _port_rates(graph: Any, root: str) -> list[float]:
    """Return the line rates of the ports of a root complex, [B/s]."""
    return [data["line"] for _, _, data in graph.out_edges(root, data=True) if data["kind"] == "pcie"]


def _shares(fits: LinkFits) -> dict[str, float]:
    """Return the share of a line for every kind of link; a network between nodes has that of its rings."""
    network = fits.protocol("fabric", "ring", "direct")
    return {"internal": 1.0, "network": network.efficiency if network else 1.0, **fits.scalars}


def _share_name(kind: str) -> str:
    """Return which fitted share applies to a kind of link."""
    return {"scale-up": "scale_up", "pcie": "payload", "network": "network"}.get(kind, "internal")


def _collapse(
    host: Host, routes: Sequence[tuple[Edge, ...]], shares: dict[str, float], capacity: dict[Edge, float]
) -> None:
    """Lower the uplinks over which several accelerators write to several root complexes."""
    graph = link_graph(host)
    for switch, data in graph.nodes(data=True):
        up = (switch, data.get("parent", ""))
        if data["kind"] != "switch" or up not in capacity:
            continue
        sources = {path[0][0] for path in routes if up in path}
        crossed = {edge[0] for path in routes if up in path for edge in path}
        roots = {node for node in crossed if graph.nodes[node]["kind"] == "root"} - {up[1]}
        if len(sources) >= 2 and len(roots) >= 2:
            name = "collapse_broadcom" if "Broadcom" in data["model"] else "collapse_microchip"
            capacity[up] = graph.edges[up]["line"] * shares[name]


def flow_rates(
    host: Host, flows: Sequence[Flow], *, writes: bool = True, fits: LinkFits | None = None
) -> NDArray[np.float64]:
    """Return what each of a set of simultaneous transfers reaches.

    Parameters
    ----------
    host : Host
        The machine.
    flows : sequence of (start, end)
        Numbers of accelerators, or `'host'` for the memory next to the other end.
    writes : bool, optional
        Whether the sender pushes (posted writes) or the receiver pulls (reads); reads never collapse.
    fits : LinkFits, optional
        Fitted shares; by default those of the data folder.

    Returns
    -------
    ndarray
        Payload rate of each transfer, shape (len(flows),), [B/s]

    Raises
    ------
    SpecError
        If an accelerator does not exist.
    UnknownFact
        If nothing known joins two ends, or no rate is known anywhere on the way.

    Notes
    -----
    Max-min fairness: all rates rise together until a link is full; its transfers stop there, the others go on. Not
    modelled: latency, small transfers, arbitration that favours one port, congestion inside switches and sockets.

    References
    ----------
    .. [1] D. Bertsekas, R. Gallager, "Data Networks", 2nd ed., section 6.5.2.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> host = load_host("wrx90-2-switches-8")
    >>> alone, shared = flow_rates(host, [(0, 4)])[0], flow_rates(host, [(0, 4), (1, 5)])[0]
    >>> round(float(alone / shared), 2)
    2.0
    """
    shares = _shares(fits or load_link_fits())
    through = _staged_route if host.conditions.p2p == "missing" else route
    routes = [through(host, a, b) for a, b in flows]
    used, capacity = _capacities(host, flows, routes, shares, writes)
    rates = np.zeros(len(flows))
    left, open_flows = dict(capacity), set(range(len(flows)))
    while open_flows:
        crowd = Counter(edge for index in open_flows for edge in used[index])
        step, full = min(((left[edge] / count, edge) for edge, count in crowd.items()), key=lambda item: item[0])
        if not np.isfinite(step):
            raise UnknownFact(f"{host.name}: unknown: the rate of every link between {flows[next(iter(open_flows))]}")
        for index in open_flows:
            rates[index] += step
        for edge, count in crowd.items():
            left[edge] -= step * count
        open_flows -= {index for index in open_flows if full in used[index]}
    return rates


def _staged_route(host: Host, start: End, end: End) -> tuple[Edge, ...]:
    """Return the links of a copy through host memory, for machines whose cards do not reach each other."""
    if HOST in (start, end) or host.scale_up is not None:
        return route(host, start, end)
    return route(host, start, HOST) + route(host, HOST, end)


def link_loads(
    host: Host, flows: Sequence[Flow], *, writes: bool = True, fits: LinkFits | None = None
) -> list[LinkLoad]:
    """Return how loaded each link is while a set of transfers runs.

    Parameters
    ----------
    host : Host
        The machine.
    flows : sequence of (start, end)
        The transfers.
    writes : bool, optional
        Whether senders push or receivers pull.
    fits : LinkFits, optional
        Fitted shares; by default those of the data folder.

    Returns
    -------
    list of LinkLoad
        One for each direction of each link with a known rate, the fullest first.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> link_loads(load_host("wrx90-2-switches-8"), [(0, 4), (1, 5)])[0].flows
    2
    """
    shares = _shares(fits or load_link_fits())
    through = _staged_route if host.conditions.p2p == "missing" else route
    routes = [through(host, a, b) for a, b in flows]
    used, capacity = _capacities(host, flows, routes, shares, writes)
    rates = flow_rates(host, flows, writes=writes, fits=fits)
    loads = []
    for edge, limit in capacity.items():
        if not np.isfinite(limit):
            continue
        crossing = [index for index, edges in enumerate(used) if edge in edges]
        loads.append(LinkLoad(*edge, limit, float(sum(rates[index] for index in crossing)), len(crossing)))
    return sorted(loads, key=lambda item: (-item.load / item.capacity, item.start))
