"""The measured all-reduces of the ledgers: which way of running each shows, and on which links."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from glmplan.calibrate.links.ledger import LEDGERS, read_transfers
from glmplan.errors import UnknownName
from glmplan.facts.catalogue.hosts import load_host
from glmplan.physics.network.tree import pcie_rates

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host

__all__ = ["UNFIT", "Observation", "all_reduce_observations", "doubtful_observations"]

#: How notes begin that keep a row out of fits and scores.
UNFIT = ("reprint", "group size in doubt")


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured all-reduce.

    Parameters
    ----------
    row : str
        Identifier in its ledger.
    host : str
        The machine.
    key : tuple of str
        Link kind, algorithm and condition.
    ranks : int
        Group size, [-]
    message : float
        Message size, [B]
    seconds : float
        Measured time, [s]
    ring_rate, mesh_rate : float
        Line rates of the group; what crowding leaves of them is not in here, [B/s]
    source : str
        Where it comes from.
    nodes : int, optional
        Machines that the group spans, [-]
    """

    row: str
    host: str
    key: tuple[str, str, str]
    ranks: int
    message: float
    seconds: float
    ring_rate: float
    mesh_rate: float
    source: str
    nodes: int = 1


def _host_of(row: dict[str, str]) -> Host | None:
    try:
        return load_host(row["host"]) if row["host"] else None
    except UnknownName:
        return None


def _time(row: dict[str, str], ranks: int, message: float) -> float | None:
    """Return the measured time of an all-reduce row, [s]; None for rows that give no time."""
    value = float(row["value"])
    if row["metric"] == "latency" and row["unit"] == "us":
        return value * 1e-6
    if row["metric"] == "busbw":
        return 2 * (ranks - 1) / ranks * message / (value * 1e9)
    return None


def _key(row: dict[str, str], crosses: bool) -> tuple[str, str, str] | None:
    """Return which protocol a row measures; None where the row does not say."""
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
    """Return the line rates of the group of a row and whether it spans sockets."""
    if row["pattern"] == "two nodes":
        per_rank = float(row["note"].split()[2]) * 1e9
        on_node = ranks // 2
        return per_rank * on_node, per_rank * (ranks - 1) / (ranks - on_node), False
    if row["accelerator"] == "rtx-5090":
        from glmplan.facts.schema.host import PcieLink

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
    """Return all measured all-reduces that name a machine, a group size and a message size.

    Returns
    -------
    tuple of Observation
        One for each row. Rows whose notes begin as in `UNFIT` are left out.

    Examples
    --------
    >>> {observation.key[0] for observation in all_reduce_observations()} >= {"pcie", "nvlink", "fabric"}
    True
    """
    rows = (row for row in _sized_rows() if not row["note"].startswith(UNFIT))
    return tuple(found for row in rows if (found := _observation(row, int(row["ranks"]))) is not None)


def doubtful_observations(ranks: int) -> tuple[Observation, ...]:
    """Return the all-reduces whose group size their own page puts in doubt, read as a given size.

    Parameters
    ----------
    ranks : int
        Size to read them as, [-]

    Returns
    -------
    tuple of Observation
        One for each row.

    Examples
    --------
    >>> len(doubtful_observations(4)) == len(doubtful_observations(8)) > 0
    True
    """
    rows = (row for row in _sized_rows() if row["note"].startswith(UNFIT[1]))
    return tuple(found for row in rows if (found := _observation(row, ranks)) is not None)
