"""Fit which share of a line's rate payload reaches: alone, both ways, in a mesh, across sockets, in a collapse.

Each share is the median over the rows of the ledger that show it and nothing else: one odd machine moves little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from glmplan.calibrate.links.ledger import LEDGERS, read_transfers
from glmplan.facts.catalogue.hosts import load_host
from glmplan.facts.schema.host import Host
from glmplan.physics.network.topology import HOST, Flow, link_graph, route
from glmplan.physics.network.tree import pcie_rates

__all__ = ["ShareFit", "Transfer", "fit_shares", "measured_transfers"]


_Wanted = Callable[["Transfer"], bool]

#: An exchange of all with all shows the crowding of the cards' own links where uplinks could pass its bytes in less
#: than this share of its time, [-]
_UPLINKS_IDLE = 0.85


@dataclass(frozen=True, slots=True)
class Transfer:
    """One row of the ledger whose transfers are known.

    Parameters
    ----------
    row : dict
        The row as it stands in the ledger.
    host : Host
        The machine.
    flows : tuple of (start, end)
        Which way data moves; for rows that read, from the accelerator that is read.
    reads : bool
        Whether the receivers pull.
    measured : float
        The value, [B/s]
    """

    row: dict[str, str]
    host: Host
    flows: tuple[Flow, ...]
    reads: bool
    measured: float


@dataclass(frozen=True, slots=True)
class ShareFit:
    """A fitted share of a line rate, the scatter of the rows behind it, and those rows."""

    name: str
    value: float
    low: float
    high: float
    rows: tuple[str, ...]
    sources: tuple[str, ...]
    means: str


def measured_transfers() -> list[Transfer]:
    """Return the rows of the ledgers that say which transfers ran on which machine.

    Returns
    -------
    list of Transfer
        In the order of the ledgers.

    Examples
    --------
    >>> len(measured_transfers()) > 250
    True
    """
    found = []
    for row in (row for ledger in LEDGERS for row in read_transfers(ledger)):
        if not row["flows"]:
            continue
        ends = [flow.split(">") for flow in row["flows"].split()]
        flows: list[Flow] = [(HOST if a == HOST else int(a), HOST if b == HOST else int(b)) for a, b in ends]
        reads = row["direction"] == "read"
        if reads:
            flows = [(b, a) for a, b in flows]
        host = load_host(row["host"])
        if "ACS ON" in row["pattern"]:
            switches = [switch.model_copy(update={"acs_redirect": True}) for switch in host.switches]
            host = host.model_copy(update={"switches": tuple(switches)})
        found.append(Transfer(row, host, tuple(flows), reads, float(row["value"]) * 1e9))
    return found


def _line(transfer: Transfer) -> float:
    """Return the line rate of the first accelerator of a row, [B/s]."""
    number = next(end for flow in transfer.flows for end in flow if end != HOST)
    link = transfer.host.slots[int(number)].link
    assert link is not None  # all hosts of the ledger say their links
    return link.bandwidth


def _across(transfer: Transfer) -> bool:
    graph = link_graph(transfer.host)
    return any(graph.edges[edge]["kind"] == "socket" for flow in transfer.flows for edge in route(transfer.host, *flow))


def _both_ways(flows: Sequence[Flow]) -> bool:
    return len(flows) == 2 and flows[0] == flows[1][::-1]


def _all_to_all(transfer: Transfer, cards: int, alone: float, *, reads: bool) -> bool:
    """Say whether so many cards exchange with all others and nothing they share fills up before their own links."""
    members = tuple(sorted({int(end) for flow in transfer.flows for end in flow if end != HOST}))
    if transfer.reads != reads or len(members) != cards or len(transfer.flows) != cards * (cards - 1):
        return False
    own, mesh, _ = pcie_rates(transfer.host, members)
    collapses = bool(transfer.host.conditions.posted_write_collapse) and mesh < own and not reads
    return transfer.measured / cards < _UPLINKS_IDLE * mesh * alone and not collapses


def _collapsed(transfer: Transfer, model: str) -> bool:
    """Say whether a row shows the collapse of one uplink on a machine with such switches."""
    switches = transfer.host.switches
    same = bool(transfer.host.conditions.posted_write_collapse) and all(
        model in (switch.model or "") for switch in switches
    )
    starts, ends = {start for start, _ in transfer.flows}, {end for _, end in transfer.flows}
    few = len(starts) in (2, 3) and len(ends) in (2, 3)
    shown = (
        "COLLAPSE" in transfer.row["pattern"] or "older" in transfer.host.title and "->SW" in transfer.row["pattern"]
    )
    several = len({route(transfer.host, *flow)[-1][0] for flow in transfer.flows}) > 1
    return same and few and shown and several and not transfer.reads


def fit_shares(transfers: Sequence[Transfer] | None = None) -> list[ShareFit]:
    """Fit all shares.

    Parameters
    ----------
    transfers : sequence of Transfer, optional
        Measured transfers; by default those of the ledgers.

    Returns
    -------
    list of ShareFit
        One for each share that `physics.network.topology` asks for and some row shows.

    Examples
    --------
    >>> {share.name for share in fit_shares()} >= {"payload", "duplex", "across_sockets"}
    True
    """
    rows = measured_transfers() if transfers is None else list(transfers)
    found: list[ShareFit] = []

    def share(name: str, means: str, wanted: _Wanted, value: Callable[[Transfer], float]) -> None:
        chosen = [row for row in rows if wanted(row)]
        if chosen:
            values = sorted(value(row) for row in chosen)
            sources = tuple(sorted({row.row["source"] for row in chosen}))
            ids = tuple(row.row["id"] for row in chosen)
            found.append(ShareFit(name, median(values), values[0], values[-1], ids, sources, means))

    share(
        "payload",
        "one transfer between two accelerators of a socket, of the line rate",
        lambda t: len(t.flows) == 1 and HOST not in t.flows[0] and not _across(t) and not t.reads,
        lambda t: t.measured / _line(t),
    )
    alone = found[0].value
    share(
        "duplex",
        "each way when an accelerator sends and receives, of what one way reaches alone",
        lambda t: _both_ways(t.flows) and not _across(t) and "ACS ON" not in t.row["pattern"],
        lambda t: t.measured / 2 / _line(t) / alone,
    )
    share(
        "across_sockets",
        "what one root port passes to another socket, of what one way reaches alone",
        lambda t: len(t.flows) == 1 and _across(t) and not t.reads,
        lambda t: t.measured / _line(t) / alone,
    )
    for cards in (4, 8):
        for way, word in (("write", "writes to"), ("read", "reads from")):
            share(
                f"mesh_{way}" + ("_8" if cards == 8 else ""),
                f"each way when each of {cards} accelerators {word} all others at once, of what one way reaches alone",
                lambda t, cards=cards, way=way: _all_to_all(t, cards, alone, reads=way == "read"),  # type: ignore[misc]
                lambda t, cards=cards: t.measured / cards / _line(t) / alone,  # type: ignore[misc]
            )
    share(
        "root_to_memory",
        "what one root complex with several ports passes to and from memory, of the line rate of one port",
        lambda t: t.row["kind"] == "host-dma" and len(t.flows) == 8 and len(t.host.roots) == 1,
        lambda t: t.measured / _line(t),
    )
    for name, model in (("broadcom", "Broadcom"), ("microchip", "Microchip")):
        share(
            f"collapse_{name}",
            f"what an uplink carries while several accelerators write to several root complexes, {model} switches",
            lambda t, model=model: _collapsed(t, model),  # type: ignore[misc]
            lambda t: t.measured / _line(t),
        )
    return [*found, _scale_up_share()]


def _scale_up_share() -> ShareFit:
    """Return the share of a scale-up link, from the two figures that its makers' engineers give."""
    rows = {row["id"]: row for row in read_transfers("collectives.csv") if row["metric"] in ("uni_bw", "busbw")}
    values, names, sources = [], [], []
    for row in rows.values():
        line = {"nccl ring": 450.0, "rccl topology constant": 64.0}.get(row["library"])
        if line:
            values.append(float(row["value"]) / line)
            names.append(row["id"])
            sources.append(row["source"])
    means = "payload of a scale-up link after protocol overhead, of the line rate"
    return ShareFit("scale_up", median(values), min(values), max(values), tuple(names), tuple(sources), means)
