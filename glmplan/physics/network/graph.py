"""The links of a host as a directed graph, and the way between any two ends.

networkx is imported when a graph is built, not before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from glmplan.errors import SpecError, UnknownFact

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host

__all__ = ["HOST", "Edge", "End", "Flow", "accelerator_node", "link_graph", "route"]

#: The far end of a transfer to or from the memory of the accelerator's own socket.
HOST: Literal["host"] = "host"
End = int | Literal["host"]
Flow = tuple[End, End]
Edge = tuple[str, str]


def accelerator_node(number: int) -> str:
    """Return the name of an accelerator in the graph.

    Parameters
    ----------
    number : int
        Its number, from 0, [-]

    Returns
    -------
    str
        Name of its node.
    """
    return f"accelerator {number}"


@lru_cache(maxsize=64)
def link_graph(host: Host) -> Any:
    """Build the directed graph of a host's links.

    Parameters
    ----------
    host : Host
        The machine.

    Returns
    -------
    networkx.DiGraph
        Nodes have `kind`; edges have `line` (line rate, [B/s]) and `kind` (`pcie`, `internal`, `socket`, `memory`,
        `scale-up`, `network`). Accelerators are numbered through all nodes. Links inside a chip or a socket that no
        source gives a rate for have an infinite one.

    Raises
    ------
    UnknownFact
        If an accelerator has no known place and no scale-up network joins it to the others.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
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
            # Heavier than any way inside a node.
            join(accelerator_node(number), "network", host.fabric.bandwidth, "network", 20.0)
    return networkx.freeze(graph)


def _add_node(graph: Any, host: Host, node: int, join: Callable[..., None]) -> None:
    """Add what is inside one node; names in nodes after the first carry its number."""
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
        # A way of its own to memory, because transfers to memory have a limit that transfers between roots have not.
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
        for one in numbers:
            for other in range(one + 1, numbers.stop):
                if mesh or (one % 2 == 0 and other == one + 1):
                    join(accelerator_node(one), accelerator_node(other), line, "scale-up", 0.1)


@lru_cache(maxsize=8192)
def route(host: Host, start: End, end: End) -> tuple[Edge, ...]:
    """Return the links that a transfer crosses.

    Parameters
    ----------
    host : Host
        The machine.
    start, end : int or 'host'
        Number of an accelerator [-], or the memory of the other end's socket.

    Returns
    -------
    tuple of (str, str)
        Directed links from start to end.

    Raises
    ------
    SpecError
        If there is no such accelerator.
    UnknownFact
        If nothing known joins the two.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
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
    """Insert the detour that ACS request redirection forces: up to the parent of a switch and down again."""
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
