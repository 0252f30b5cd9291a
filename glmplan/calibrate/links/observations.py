"""Return measured transfers of the ledgers, and fitted link shares.

All-reduces are transfers, too. A share is the fraction of a line rate that payload reaches: alone, in both directions,
in a mesh, across sockets, at the collapse of an uplink. It is the median over the rows that show this effect alone, so
that one outlying machine has little influence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import TYPE_CHECKING

from glmplan.catalog.entries.hosts import load_host
from glmplan.catalog.files import data_folder, read_rows
from glmplan.catalog.schema.host import Host
from glmplan.costs.network.links import pcie_rates
from glmplan.costs.network.topology import HOST, Flow, link_graph, route
from glmplan.errors import UnknownName
from glmplan.units import Bytes, BytesPerSecond, Seconds

if TYPE_CHECKING:
    from glmplan.catalog.schema.host import Host

__all__ = [
    "LEDGERS",
    "UNFIT",
    "Observation",
    "ShareFit",
    "Transfer",
    "all_reduce_observations",
    "doubtful_observations",
    "fit_shares",
    "measured_transfers",
    "read_transfers",
]


#: ledgers in `calibration/measurements`
LEDGERS = ("pcie-topologies.csv", "collectives.csv")


@lru_cache(maxsize=4)
def read_transfers(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a ledger of transfers.

    Examples
    --------
    >>> len(read_transfers("pcie-topologies.csv"))
    622
    """
    return tuple(read_rows(data_folder("calibration") / "measurements" / name))


#: notes with these beginnings exclude a row from fits and scores
UNFIT = ("reprint", "group size in doubt")


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured all-reduce."""

    row: str
    host: str
    key: tuple[str, str, str]  # link kind, algorithm, condition
    ranks: int  # group size
    message: Bytes
    seconds: Seconds
    ring_rate: BytesPerSecond  # line rates of the group, without contention
    mesh_rate: BytesPerSecond
    source: str
    nodes: int = 1  # machines of the group


def _host_of(row: dict[str, str]) -> Host | None:
    try:
        return load_host(row["host"]) if row["host"] else None
    except UnknownName:
        return None


def _time(row: dict[str, str], ranks: int, message: float) -> float | None:
    """Return the measured time of an all-reduce row [s]; None without one."""
    value = float(row["value"])
    if row["metric"] == "latency" and row["unit"] == "us":
        return value * 1e-6
    if row["metric"] == "busbw":
        return 2 * (ranks - 1) / ranks * message / (value * 1e9)
    return None


def _key(row: dict[str, str], crosses: bool) -> tuple[str, str, str] | None:
    """Return the protocol of a row; None if not stated."""
    library, pattern, message = row["library"], row["pattern"], float(row["message_bytes"])
    if any(word in row["note"] for word in ("outlier", "collapse")) or "ForceP2P missing" in pattern:
        return None
    if library == "one-shot":
        return "pcie", "one-shot", "direct"
    if library.startswith(("vllm", "sglang")):
        return "nvlink", "one-shot", "direct"
    if library == "nccl nvls" or (
        library == "nccl" and row["accelerator"] == "h100-sxm" and message >= 2**20 and "nodes" not in pattern
    ):
        return "nvlink", "switch", "direct"
    if row["accelerator"] == "rtx-5090":
        return "pcie", "ring", "staged"
    if row["accelerator"].startswith("h100") and row["pattern"] != "two nodes":
        return ("nvlink", "ring", "direct") if message <= 2**19 or library == "nccl ring" else None
    if row["pattern"] == "two nodes":
        return "fabric", "ring", "direct"
    if row["accelerator"] == "mi300x":
        return "xgmi", "ring", "direct"
    if not row["host"]:
        return None
    tuned = "XML" in pattern and "no XML" not in pattern or pattern.startswith(("baseline", "LL128"))
    if crosses:
        return "pcie", "ring", "two-sockets-tuned" if tuned else "two-sockets"
    staged = row["host"].startswith("asus") and "SYS" not in library + pattern
    return "pcie", "ring", "staged" if staged else "direct"


def _rates(row: dict[str, str], host: Host | None, ranks: int) -> tuple[float, float, bool]:
    """Return line rates of the group, and True if it spans sockets."""
    if row["pattern"] == "two nodes":
        per_rank = float(row["note"].split()[2]) * 1e9
        on_node = ranks // 2
        return per_rank * on_node, per_rank * (ranks - 1) / (ranks - on_node), False
    if row["accelerator"] == "rtx-5090":
        from glmplan.catalog.schema.host import PcieLink

        rate = PcieLink(generation=5, lanes=16).bandwidth
        return rate, rate, False
    assert host is not None  # rows without a host have been dropped
    if host.scale_up is not None:
        return host.scale_up.bandwidth, host.scale_up.bandwidth, False
    return pcie_rates(host, tuple(range(ranks)))


def _observation(row: dict[str, str], ranks: int) -> Observation | None:
    host, message, apart = _host_of(row), float(row["message_bytes"]), row["pattern"] == "two nodes"
    seconds = _time(row, ranks, message)
    if seconds is None or (host is None and not apart and row["accelerator"] != "rtx-5090"):
        return None
    ring_rate, mesh_rate, crosses = _rates(row, host, ranks)
    key = _key(row, crosses)
    if key is None:
        return None
    source = row["source"]
    nodes = 2 if apart else 1
    return Observation(row["id"], row["host"], key, ranks, message, seconds, ring_rate, mesh_rate, source, nodes)


def _sized_rows() -> list[dict[str, str]]:
    rows = (row for ledger in LEDGERS for row in read_transfers(ledger))
    kinds = ("all-reduce", "nccl-setting")
    return [row for row in rows if row["kind"] in kinds and row["message_bytes"] and row["ranks"]]


@lru_cache(maxsize=1)
def all_reduce_observations() -> tuple[Observation, ...]:
    """Return all measured all-reduces with machine, group and message size.

    Rows with notes as in `UNFIT` are left out.

    Examples
    --------
    >>> {observation.key[0] for observation in all_reduce_observations()} >= {"pcie", "nvlink", "fabric"}
    True
    """
    rows = (row for row in _sized_rows() if not row["note"].startswith(UNFIT))
    return tuple(found for row in rows if (found := _observation(row, int(row["ranks"]))) is not None)


def doubtful_observations(ranks: int) -> tuple[Observation, ...]:
    """Return the all-reduces of doubtful group size, read as `ranks`.

    Examples
    --------
    >>> len(doubtful_observations(4)) == len(doubtful_observations(8)) > 0
    True
    """
    rows = (row for row in _sized_rows() if row["note"].startswith(UNFIT[1]))
    return tuple(found for row in rows if (found := _observation(row, ranks)) is not None)


_Wanted = Callable[["Transfer"], bool]

#: an all-to-all exchange measures the GPUs' own links if uplinks could carry its bytes in less than this share of its
#: time [-]
_UPLINKS_IDLE = 0.85


@dataclass(frozen=True, slots=True)
class Transfer:
    """One ledger row with known transfers."""

    row: dict[str, str]
    host: Host
    flows: tuple[Flow, ...]  # direction of the data; from the accelerator that is read, if `reads`
    reads: bool  # receivers pull
    measured: BytesPerSecond


@dataclass(frozen=True, slots=True)
class ShareFit:
    """A fitted link share with its scatter and rows."""

    name: str
    value: float
    low: float
    high: float
    rows: tuple[str, ...]
    sources: tuple[str, ...]
    means: str


def measured_transfers() -> list[Transfer]:
    """Return the ledger rows with known transfers and machine.

    Examples
    --------
    >>> len(measured_transfers()) > 250
    True
    """
    measured = []
    for row in (row for ledger in LEDGERS for row in read_transfers(ledger)):
        if not row["flows"]:
            continue
        pairs = [flow.split(">") for flow in row["flows"].split()]
        flows: list[Flow] = [(HOST if a == HOST else int(a), HOST if b == HOST else int(b)) for a, b in pairs]
        reads = row["direction"] == "read"
        if reads:
            flows = [(b, a) for a, b in flows]
        host = load_host(row["host"])
        if "ACS ON" in row["pattern"]:
            switches = [switch.model_copy(update={"acs_redirect": True}) for switch in host.switches]
            host = host.model_copy(update={"switches": tuple(switches)})
        measured.append(Transfer(row, host, tuple(flows), reads, float(row["value"]) * 1e9))
    return measured


def _line(transfer: Transfer) -> float:
    """Return the line rate of a row's first accelerator [B/s]"""
    number = next(end for flow in transfer.flows for end in flow if end != HOST)
    link = transfer.host.slots[int(number)].link
    assert link is not None  # every host of the ledger has links
    return link.bandwidth


def _across(transfer: Transfer) -> bool:
    graph = link_graph(transfer.host)
    return any(graph.edges[edge]["kind"] == "socket" for flow in transfer.flows for edge in route(transfer.host, *flow))


def _both_ways(flows: Sequence[Flow]) -> bool:
    return len(flows) == 2 and flows[0] == flows[1][::-1]


def _all_to_all(transfer: Transfer, cards: int, alone: float, *, reads: bool) -> bool:
    """Return True for an all-to-all limited by the GPUs' own links."""
    members = tuple(sorted({int(end) for flow in transfer.flows for end in flow if end != HOST}))
    if transfer.reads != reads or len(members) != cards or len(transfer.flows) != cards * (cards - 1):
        return False
    own, mesh, _ = pcie_rates(transfer.host, members)
    collapses = bool(transfer.host.conditions.posted_write_collapse) and mesh < own and not reads
    return transfer.measured / cards < _UPLINKS_IDLE * mesh * alone and not collapses


def _collapsed(transfer: Transfer, model: str) -> bool:
    """Return True if a row shows the uplink collapse of such switches."""
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
    """Return each share that `physics.network.topology` needs and rows show.

    Examples
    --------
    >>> {share.name for share in fit_shares()} >= {"payload", "duplex", "across_sockets"}
    True
    """
    rows = measured_transfers() if transfers is None else list(transfers)
    shares: list[ShareFit] = []

    def share(name: str, means: str, wanted: _Wanted, value: Callable[[Transfer], float]) -> None:
        chosen = [row for row in rows if wanted(row)]
        if chosen:
            values = sorted(value(row) for row in chosen)
            sources = tuple(sorted({row.row["source"] for row in chosen}))
            ids = tuple(row.row["id"] for row in chosen)
            shares.append(ShareFit(name, median(values), values[0], values[-1], ids, sources, means))

    share(
        "payload",
        "one transfer between two accelerators of a socket, of the line rate",
        lambda t: len(t.flows) == 1 and HOST not in t.flows[0] and not _across(t) and not t.reads,
        lambda t: t.measured / _line(t),
    )
    alone = shares[0].value
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
    return [*shares, _scale_up_share()]


def _scale_up_share() -> ShareFit:
    """Return the share of a scale-up link, from its vendors' two rates."""
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
