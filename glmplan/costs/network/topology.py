"""Compute simultaneous transfers on the link graph of a host.

Placements and named conditions of links are here, too. Transfers share links by max-min fairness. Line rates come from
the host's
description; the share of a line rate that payload reaches is fitted (`calibration/fits/links.toml`,
`LinkFits.scalars`). networkx is imported when a graph is built, not before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from itertools import permutations
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from glmplan.catalog.files import data_folder, read_rows, read_toml
from glmplan.costs.network.collectives import LinkClass, all_reduce_time
from glmplan.costs.network.links import LinkFits, crowding, link_for_group, load_link_fits, shared_ring_rates
from glmplan.errors import SpecError, UnknownFact
from glmplan.units import Bytes, BytesPerSecond, Seconds

if TYPE_CHECKING:
    from glmplan.catalog.schema.host import Host

__all__ = [
    "HOST",
    "Condition",
    "Edge",
    "End",
    "Flow",
    "LinkLoad",
    "MeasuredCost",
    "Placement",
    "Score",
    "accelerator_node",
    "conditions_of",
    "flow_rates",
    "link_graph",
    "link_loads",
    "measured_cost",
    "named_conditions",
    "place",
    "plan_flows",
    "plan_loads",
    "route",
    "score_placement",
]


#: other end of a transfer to or from the memory of the accelerator's own socket
HOST: Literal["host"] = "host"
End = int | Literal["host"]
Flow = tuple[End, End]
Edge = tuple[str, str]


def accelerator_node(number: int) -> str:
    """Return the name of an accelerator in the graph."""
    return f"accelerator {number}"


@lru_cache(maxsize=64)
def link_graph(host: Host) -> Any:
    """Build the directed graph of a host's links.

    Nodes have `kind`; edges have `line` (line rate [B/s]) and `kind` (`pcie`, `internal`, `socket`, `memory`,
    `scale-up`, `network`). Accelerators are numbered through all nodes. A link inside a chip or a socket without a
    published rate has an infinite one.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> graph = link_graph(load_host("wrx90-2-switches-8"))
    >>> graph.nodes["switch0"]["kind"], round(graph.edges["switch0", "root0"]["line"] / 1e9)
    ('switch', 63)
    """
    import networkx

    graph: Any = networkx.DiGraph(name=host.name)

    def join(one: str, other: str, line: float, kind: str, weight: float = 1.0) -> None:
        graph.add_edge(one, other, line=line, kind=kind, weight=weight)
        graph.add_edge(other, one, line=line, kind=kind, weight=weight)

    for node in range(host.nodes):
        _add_node(graph, host, node, join)
    _add_scale_up(graph, host, join)
    if host.fabric is not None and host.nodes > 1:
        graph.add_node("network", kind="network")
        for number in range(host.accelerator_count):
            # heavier than any path inside a node
            join(accelerator_node(number), "network", host.fabric.bandwidth, "network", 20.0)
    return networkx.freeze(graph)


def _add_node(graph: Any, host: Host, node: int, join: Callable[..., None]) -> None:
    """Add one node; names in nodes after the first carry its number."""
    free = float("inf")
    at = f"node {node}: " if node else ""
    for socket in host.sockets:
        graph.add_node(at + socket.name, kind="socket")
        graph.add_node(f"{at}memory {socket.name}", kind="memory")
        line = socket.memory_bandwidth or free
        join(at + socket.name, f"{at}memory {socket.name}", line, "memory", 3.0)
    for link in host.socket_links:
        known = link.count is not None and link.bandwidth is not None
        line = (link.count or 0) * (link.bandwidth or 0.0) if known else free
        join(at + link.ends[0], at + link.ends[1], line, "socket")
    for root in host.roots:
        graph.add_node(at + root.name, kind="root")
        join(at + root.name, at + root.socket, free, "internal")
        # separate path to memory: transfers to memory have a limit that transfers between roots do not have
        join(at + root.name, f"{at}memory {root.socket}", free, "root-memory", 1.5)
    for switch in host.switches:
        redirect = switch.acs_redirect if switch.acs_redirect is not None else host.conditions.acs_redirect
        parent = at + switch.parent
        graph.add_node(
            at + switch.name, kind="switch", parent=parent, model=switch.model or "", redirect=bool(redirect)
        )
        join(at + switch.name, parent, switch.uplink.bandwidth if switch.uplink else free, "pcie")
        if switch.chip:
            graph.add_node(f"{at}chip {switch.chip}", kind="chip")
            join(at + switch.name, f"{at}chip {switch.chip}", free, "internal", 0.5)
    for device in host.devices:
        graph.add_node(at + device.name, kind=device.kind)
        if device.parent:
            join(at + device.name, at + device.parent, device.link.bandwidth if device.link else free, "pcie")
    for number, card in enumerate(host.slots, node * host.accelerators_per_node):
        graph.add_node(accelerator_node(number), kind="accelerator", accelerator=card.accelerator)
        if card.parent:
            line = card.link.bandwidth if card.link else free
            join(accelerator_node(number), at + card.parent, line, "pcie")


def _add_scale_up(graph: Any, host: Host, join: Callable[..., None]) -> None:
    """Add the scale-up network of every domain."""
    inside = host.scale_up
    if inside is None:
        return
    mesh = inside.topology == "mesh"
    line = inside.bandwidth / (inside.domain - 1 if mesh else 1)
    for first in range(0, host.accelerator_count, inside.domain):
        numbers = range(first, min(first + inside.domain, host.accelerator_count))
        if inside.topology == "switch":
            hub = (
                f"scale-up switch {first // inside.domain}"
                if host.accelerator_count > inside.domain
                else "scale-up switch"
            )
            graph.add_node(hub, kind="scale-up")
            for number in numbers:
                join(accelerator_node(number), hub, inside.bandwidth, "scale-up", 0.1)
            continue
        for item in numbers:
            for other in range(item + 1, numbers.stop):
                if mesh or (item % 2 == 0 and other == item + 1):
                    join(accelerator_node(item), accelerator_node(other), line, "scale-up", 0.1)


@lru_cache(maxsize=8192)
def route(host: Host, start: End, end: End) -> tuple[Edge, ...]:
    """Return the links that a transfer crosses.

    `start`, `end`: number of an accelerator, or `HOST`.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> [edge[1] for edge in route(load_host("wrx90-2-switches-8"), 0, 1)]
    ['switch0', 'accelerator 1']
    """
    import networkx

    graph = link_graph(host)
    for number in (start, end):
        if number != HOST and not 0 <= number < host.accelerator_count:
            raise SpecError(f"is not an accelerator of {host.name}, which has {host.accelerator_count}", value=number)
    first = _memory_of(graph, host, end) if start == HOST else accelerator_node(int(start))
    last = _memory_of(graph, host, start) if end == HOST else accelerator_node(int(end))
    try:
        nodes = networkx.shortest_path(graph, first, last, weight="weight")
    except networkx.NetworkXException:
        raise UnknownFact(f"{host.name}: unknown: what joins {first} and {last}") from None
    path = _redirected(graph, nodes)
    return tuple(zip(path, path[1:], strict=False))


def _redirected(graph: Any, nodes: list[str]) -> list[str]:
    """Insert the detour that ACS request redirection forces.

    Up to the parent of a switch and down again.
    """
    path: list[str] = []
    for before, node, after in zip(["", *nodes], nodes, [*nodes[1:], ""], strict=False):
        path.append(node)
        turns = before.startswith("accelerator") and after.startswith("accelerator")
        if turns and graph.nodes[node].get("redirect"):
            path += [graph.nodes[node]["parent"], node]
    return path


def _memory_of(graph: Any, host: Host, number: End) -> str:
    """Return the memory node nearest to an accelerator."""
    import networkx

    memories = [node for node, data in graph.nodes(data=True) if data["kind"] == "memory"]
    if number == HOST or not memories:
        raise UnknownFact(f"{host.name}: unknown: host memory")
    reach = networkx.single_source_dijkstra_path_length(graph, accelerator_node(int(number)), weight="weight")
    near = [node for node in memories if node in reach]
    if not near:
        raise UnknownFact(f"{host.name}: unknown: which socket accelerator {number} hangs on")
    return str(min(near, key=lambda node: reach[node]))


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """Load of one direction of one link."""

    start: str
    end: str
    capacity: BytesPerSecond  # of payload
    load: BytesPerSecond
    flows: int  # transfers on it


def _capacities(
    host: Host, flows: Sequence[Flow], routes: Sequence[tuple[Edge, ...]], shares: dict[str, float], writes: bool
) -> tuple[list[list[Edge]], dict[Edge, float]]:
    """Return the resources of each transfer, and their capacities [B/s].

    Payload capacities. Besides the links there are three kinds of limits with a name instead of two nodes: of one root
    complex to another socket, of one root complex to memory, and the collapse of posted writes.
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
    """Return the line rates of the ports of a root complex [B/s]."""
    return [data["line"] for _, _, data in graph.out_edges(root, data=True) if data["kind"] == "pcie"]


def _shares(fits: LinkFits) -> dict[str, float]:
    """Return the share of a line for each kind of link.

    A network between nodes has that of its rings.
    """
    network = fits.protocol("fabric", "ring", "direct")
    return {"internal": 1.0, "network": network.efficiency if network else 1.0, **fits.scalars}


def _share_name(kind: str) -> str:
    """Return the name of the fitted share of a kind of link."""
    return {"scale-up": "scale_up", "pcie": "payload", "network": "network"}.get(kind, "internal")


def _collapse(
    host: Host, routes: Sequence[tuple[Edge, ...]], shares: dict[str, float], capacity: dict[Edge, float]
) -> None:
    """Lower uplinks on which accelerators write to several root complexes."""
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
    """Return the payload rate of each of several simultaneous transfers [B/s].

    `flows`: numbers of accelerators, or `'host'` for the memory next to the other end. `writes`: the sender pushes
    (posted writes); False: the receiver pulls (reads), which never collapse.

    Notes
    -----
    Max-min fairness [1]_: all rates rise together until a link is full; its transfers stop there, the others go on. Not
    modelled: latency, small transfers, arbitration that favours one port, congestion inside switches and sockets.

    References
    ----------
    .. [1] D. Bertsekas, R. Gallager, "Data Networks", 2nd ed., section 6.5.2.
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
    """Return the links of a copy through host memory.

    Cards without peer access use it.
    """
    if HOST in (start, end) or host.scale_up is not None:
        return route(host, start, end)
    return route(host, start, HOST) + route(host, HOST, end)


def link_loads(host: Host, flows: Sequence[Flow], *, writes: bool = True) -> list[LinkLoad]:
    """Return the load of each link direction, the fullest first.

    Links without a known rate are left out.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> link_loads(load_host("wrx90-2-switches-8"), [(0, 4), (1, 5)])[0].flows
    2
    """
    shares = _shares(load_link_fits())
    through = _staged_route if host.conditions.p2p == "missing" else route
    routes = [through(host, a, b) for a, b in flows]
    used, capacity = _capacities(host, flows, routes, shares, writes)
    rates = flow_rates(host, flows, writes=writes)
    loads = []
    for edge, limit in capacity.items():
        if not np.isfinite(limit):
            continue
        crossing = [index for index, edges in enumerate(used) if edge in edges]
        loads.append(LinkLoad(*edge, limit, float(sum(rates[index] for index in crossing)), len(crossing)))
    return sorted(loads, key=lambda item: (-item.load / item.capacity, item.start))


#: most cuts that are tried; above it only cuts along the tree
_CUTS = 3000
#: most equally fast cuts whose hand-overs are compared
_TIES = 200


@dataclass(frozen=True, slots=True)
class Score:
    """Cost of a placement."""

    all_reduce: Seconds  # in the slowest group
    hand_over: Seconds  # slowest between stages, all groups at once


@dataclass(frozen=True, slots=True)
class Placement:
    """Accelerators by rank."""

    stages: tuple[tuple[int, ...], ...]  # accelerators of each pipeline stage, in the order of tensor-parallel ranks
    score: Score
    worst: tuple[tuple[int, ...], ...]  # worst placement that was tried
    worst_score: Score
    tried: int  # placements compared

    @property
    def order(self) -> tuple[int, ...]:
        """Return the accelerators in the order of ranks."""
        return tuple(slot for stage in self.stages for slot in stage)

    @property
    def visible_devices(self) -> str:
        """Return `CUDA_VISIBLE_DEVICES` for `CUDA_DEVICE_ORDER=PCI_BUS_ID`."""
        return ",".join(map(str, self.order))

    @property
    def gain(self) -> float:
        """Return the all-reduce time of the worst placement over that of this one."""
        return self.worst_score.all_reduce / self.score.all_reduce if self.score.all_reduce else 1.0


def plan_flows(stages: tuple[tuple[int, ...], ...]) -> dict[str, list[Flow]]:
    """Return the simultaneous transfers of a plan.

    `all-reduce` rings in the groups, `hand-over` between stages. Empty kinds are left out.

    Examples
    --------
    >>> plan_flows(((0, 1), (2, 3)))
    {'all-reduce': [(0, 1), (1, 0), (2, 3), (3, 2)], 'hand-over': [(0, 2), (1, 3)]}
    """
    rings: list[Flow] = [
        (stage[rank], stage[(rank + 1) % len(stage)])
        for stage in stages
        if len(stage) > 1
        for rank in range(len(stage))
    ]
    overs: list[Flow] = [
        pair for one, other in zip(stages, stages[1:], strict=False) for pair in zip(one, other, strict=True)
    ]
    return {kind: flows for kind, flows in (("all-reduce", rings), ("hand-over", overs)) if flows}


def plan_loads(host: Host, stages: tuple[tuple[int, ...], ...]) -> dict[str, list[LinkLoad]]:
    """Return the load of each link in each phase of a plan.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> sorted(plan_loads(load_host("wrx90-2-switches-8"), ((0, 1, 2, 3), (4, 5, 6, 7))))
    ['all-reduce', 'hand-over']
    """
    return {kind: link_loads(host, flows) for kind, flows in plan_flows(stages).items()}


def score_placement(
    host: Host, stages: tuple[tuple[int, ...], ...], *, message_bytes: Bytes, fits: LinkFits | None = None
) -> Score:
    """Return the cost of a placement.

    `message_bytes` of one all-reduce and of one hand-over. All groups and all hand-overs run at once, as with a full
    pipeline; the two kinds do not meet.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> host = load_host("wrx90-2-switches-8")
    >>> good = score_placement(host, ((0, 1, 2, 3), (4, 5, 6, 7)), message_bytes=1e6)
    >>> bad = score_placement(host, ((0, 4, 1, 5), (2, 6, 3, 7)), message_bytes=1e6)
    >>> good.all_reduce < bad.all_reduce
    True
    """
    constants = fits or load_link_fits()
    slowest = max(_group_times(host, stages, message_bytes, constants))
    overs = plan_flows(stages).get("hand-over", [])
    hand_over = message_bytes / float(np.min(flow_rates(host, overs, fits=constants))) if overs else 0.0
    return Score(slowest, hand_over)


def _group_times(host: Host, stages: tuple[tuple[int, ...], ...], message: float, fits: LinkFits) -> list[float]:
    """Return the all-reduce time of each group while all run theirs [s]."""
    width = len(stages[0])
    links = [_link(host, width, stage, fits) for stage in stages]
    if width > 1 and links[0].kind == "pcie":
        shared = shared_ring_rates(host, stages)
        links = [replace(link, bandwidth=rate) for link, rate in zip(links, shared, strict=True)]
    return [float(all_reduce_time(message_bytes=message, ranks=width, link=link)) for link in links]


@lru_cache(maxsize=65536)
def _known_link(host: Host, width: int, stage: tuple[int, ...]) -> LinkClass:
    return link_for_group(host, width, members=stage)


def _link(host: Host, width: int, stage: tuple[int, ...], fits: LinkFits) -> LinkClass:
    """Return the links of a group; cached for the shipped constants."""
    if fits is load_link_fits():
        return _known_link(host, width, stage)
    return link_for_group(host, width, fits=fits, members=stage)


def place(
    host: Host, *, tp: int, pp: int = 1, message_bytes: Bytes = 12288.0 * 64, fits: LinkFits | None = None
) -> Placement:
    """Return the accelerators of a layout's groups on one node, in order.

    Every cut into equal groups that respects the machine's tree is scored: a layout is as fast as the all-reduce of its
    slowest group, then as its slowest hand-over. `message_bytes` defaults to 64 tokens of 6144 BF16 values.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> found = place(load_host("turin-2s-direct-6-mixed"), tp=2, pp=3)
    >>> found.stages[0], found.gain >= 1
    ((0, 1), True)
    """
    count = host.accelerators_per_node
    if tp < 1 or pp < 1 or tp * pp > count:
        text = f"needs {tp * pp} accelerators, {host.name} has {count} in a node"
        raise SpecError(text, field="tp × pp", value=f"{tp} × {pp}")
    constants = fits or load_link_fits()
    compared = []
    for stages in _candidates(count, tp, pp):
        times = _group_times(host, stages, message_bytes, constants)
        compared.append(((max(times), sum(times)), stages))
    # hand-overs decide only between cuts whose groups are equally fast
    least, most = min(compared, key=lambda item: item[0])[0], max(compared, key=lambda item: item[0])
    tied = [stages for cost, stages in compared if cost[0] <= least[0] * 1.001 and cost[1] <= least[1] * 1.001][:_TIES]
    scored = [(score_placement(host, stages, message_bytes=message_bytes, fits=constants), stages) for stages in tied]
    score, best = min(scored, key=lambda item: item[0].hand_over)
    worst = score_placement(host, most[1], message_bytes=message_bytes, fits=constants)
    return Placement(best, score, most[1], worst, len(compared))


def _candidates(count: int, tp: int, pp: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield placements: numbered, interleaved, then all cuts if few."""
    used = tp * pp
    natural = tuple(tuple(range(stage * tp, (stage + 1) * tp)) for stage in range(pp))
    seen = {natural}
    yield natural
    strided = tuple(tuple(range(stage, used, pp)) for stage in range(pp))
    half = [index // 2 + (index % 2) * (count // 2) for index in range(count)]
    zipped = tuple(tuple(half[stage * tp : (stage + 1) * tp]) for stage in range(pp))
    for stages in (strided, zipped):
        if stages not in seen and len({slot for stage in stages for slot in stage}) == used:
            seen.add(stages)
            yield stages
    for tried, stages in enumerate(_cuts(tuple(range(count)), tp, pp)):
        if tried >= _CUTS:
            return
        if stages not in seen:
            seen.add(stages)
            yield stages


def _cuts(left: tuple[int, ...], tp: int, pp: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the ways to take `pp` ordered groups of `tp`.

    Each set once, in ring orders that differ.
    """
    if pp == 0:
        yield ()
        return
    from itertools import combinations

    for members in combinations(left, tp):
        rest = tuple(slot for slot in left if slot not in members)
        for order in _ring_orders(members):
            for others in _cuts(rest, tp, pp - 1):
                yield (order, *others)


def _ring_orders(members: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield orders of a ring that matter.

    All up to four members, else ascending and interleaved.
    """
    first, rest = members[0], members[1:]
    if len(members) <= 4:
        for order in permutations(rest):
            if len(order) < 2 or order[0] < order[-1]:  # a ring read backwards is the same ring
                yield (first, *order)
        return
    yield members
    middle = len(members) // 2
    yield (
        tuple(slot for pair in zip(members[:middle], members[middle:], strict=False) for slot in pair)
        + members[2 * middle :]
    )


@dataclass(frozen=True, slots=True)
class Condition:
    """Named state of a machine that changes its links.

    `hardware_db/link_conditions.toml` lists them. `pairs` are rows of `pcie-topologies.csv`, each (with the condition,
    without it); the costs are read from there.
    """

    name: str
    effect: str
    remedy: str
    pairs: tuple[tuple[str, str], ...]
    source: str


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """Measurement with a condition and without it; `ratio` is with/without."""

    what: str
    unit: str
    with_condition: float
    without: float
    ratio: float
    source: str


@cache
def named_conditions() -> tuple[Condition, ...]:
    """Return all named conditions.

    Examples
    --------
    >>> named_conditions()[0].name
    'acs-redirect'
    """
    file = data_folder("hardware_db") / "link_conditions.toml"
    try:
        return tuple(
            Condition(
                entry["name"], entry["effect"], entry["remedy"], tuple((bad, good) for bad, good in entry["measured"]),
                entry["source"],
            )
            for entry in read_toml(file)["conditions"]
        )  # fmt: skip
    except KeyError as error:
        raise SpecError("a condition lacks this field", file=file, field=str(error.args[0])) from None


@cache
def _ledger() -> dict[str, dict[str, str]]:
    ledger = data_folder("calibration") / "measurements" / "pcie-topologies.csv"
    return {row["id"]: row for row in read_rows(ledger)}


def measured_cost(condition: Condition) -> list[MeasuredCost]:
    """Return the measured costs of a condition.

    Examples
    --------
    >>> acs = next(item for item in named_conditions() if item.name == "acs-redirect")
    >>> round(measured_cost(acs)[0].ratio, 2)
    0.49
    """
    costs = []
    for bad, good in condition.pairs:
        one, other = _ledger()[bad], _ledger()[good]
        what = f"{one['pattern']}, {one['metric']}" + (f", {one['message_bytes']} B" if one["message_bytes"] else "")
        high, low = float(one["value"]), float(other["value"])
        costs.append(MeasuredCost(what, one["unit"], high, low, high / low, one["source"]))
    return costs


def conditions_of(host: Host) -> list[Condition]:
    """Return the named conditions that a host's description shows.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_host
    >>> [item.name for item in conditions_of(load_host("asus-esc8000a-e13p"))]
    ['misdetected-ring', 'posted-write-collapse']
    """
    state = host.conditions
    roots = [root.name for root in host.roots]
    crowded = len(roots) == 1 and sum(switch.parent == roots[0] for switch in host.switches) > 1
    redirect = state.acs_redirect or any(switch.acs_redirect for switch in host.switches)
    uplinks = [switch.uplink for switch in host.switches if switch.uplink]
    slow = bool(uplinks) and any(link.bandwidth < max(up.bandwidth for up in uplinks) for link in uplinks)
    shown = {
        "acs-redirect": bool(redirect),
        "no-force-p2p": state.p2p == "missing",
        "misdetected-ring": len(host.sockets) > 1 and state.nccl_graph == "default" and host.scale_up is None,
        "posted-write-collapse": bool(state.posted_write_collapse),
        "shared-root-complex": crowded,
        "slow-uplink": slow,
    }
    return [condition for condition in named_conditions() if shown.get(condition.name)]
