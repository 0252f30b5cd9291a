"""Fit the constants of links: launch, hop and efficiency of each way to run a collective.

The fit is small and deterministic: robust least squares on the logarithm of time, from a fixed start. It reads the two
ledgers of measured transfers and writes `calibration/fits/links.toml`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from glmplan.catalog_hosts import load_host
from glmplan.datafolders import data_folder
from glmplan.errors import UnknownName
from glmplan.network.collectives import Algorithm, LinkClass, Protocol, all_reduce_time
from glmplan.network.tree import pcie_rates

if TYPE_CHECKING:
    from glmplan.schema.host import Host

__all__ = ["Observation", "ProtocolFit", "all_reduce_observations", "fit_links", "fit_protocol", "read_transfers"]

#: The ledgers, in `calibration/measurements`.
LEDGERS = ("pcie-topologies.csv", "collectives.csv")


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
        Line rates of the group, [B/s]
    source : str
        Where it comes from.
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


@dataclass(frozen=True, slots=True)
class ProtocolFit:
    """Fitted constants of one protocol, with what they rest on."""

    key: tuple[str, str, str]
    protocol: Protocol
    errors: tuple[float, float, float]
    median_error: float
    rows: tuple[Observation, ...]
    note: str = ""


@lru_cache(maxsize=4)
def read_transfers(name: str) -> tuple[dict[str, str], ...]:
    """Read a ledger of measured transfers.

    Parameters
    ----------
    name : str
        File name in `calibration/measurements`.

    Returns
    -------
    tuple of dict
        One for each row, column → text.

    Examples
    --------
    >>> len(read_transfers("pcie-topologies.csv"))
    622
    """
    with open(data_folder("calibration") / "measurements" / name, newline="") as stream:
        return tuple(csv.DictReader(stream))


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
    if row["note"].startswith("outlier") or "looks like an outlier" in row["note"]:
        return None
    if "collapse" in row["note"] or "ForceP2P missing" in pattern:
        return None
    if library == "one-shot":
        return ("pcie", "one-shot", "direct") if not crosses else None
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
    if row["host"] in ("wrx90-2-switches-8", "wrx90-3-switches-8") and library == "nccl":
        return "pcie", "ring", "untuned"
    staged = row["host"].startswith("asus") and "SYS" not in library + pattern
    return "pcie", "ring", "staged" if staged else "direct"


def _rates(row: dict[str, str], host: Host | None, ranks: int) -> tuple[float, float, bool]:
    """Return the line rates of the group of a row and whether it spans sockets."""
    if row["pattern"] == "two nodes":
        per_rank = float(row["note"].split()[2]) * 1e9
        on_node = ranks // 2
        return per_rank * on_node, per_rank * (ranks - 1) / (ranks - on_node), False
    if row["accelerator"] == "rtx-5090":
        from glmplan.schema.host import PcieLink

        rate = PcieLink(generation=5, lanes=16).bandwidth
        return rate, rate, False
    assert host is not None  # rows without a host have been dropped
    if host.scale_up is not None:
        return host.scale_up.bandwidth, host.scale_up.bandwidth, False
    return pcie_rates(host, tuple(range(ranks)))


@lru_cache(maxsize=1)
def all_reduce_observations() -> tuple[Observation, ...]:
    """Return all measured all-reduces that name a machine, a group size and a message size.

    Returns
    -------
    tuple of Observation
        One for each row.

    Examples
    --------
    >>> {observation.key[0] for observation in all_reduce_observations()} >= {"pcie", "nvlink", "fabric"}
    True
    """
    found = []
    for ledger in LEDGERS:
        for row in read_transfers(ledger):
            if row["kind"] not in ("all-reduce", "nccl-setting") or not row["message_bytes"] or not row["ranks"]:
                continue
            host, ranks, message = _host_of(row), int(row["ranks"]), float(row["message_bytes"])
            seconds = _time(row, ranks, message)
            if seconds is None or (host is None and row["pattern"] != "two nodes" and row["accelerator"] != "rtx-5090"):
                continue
            ring_rate, mesh_rate, crosses = _rates(row, host, ranks)
            key = _key(row, crosses)
            if key is not None:
                found.append(
                    Observation(
                        row["id"], row["host"], key, ranks, message, seconds, ring_rate, mesh_rate, row["source"]
                    )
                )
    return tuple(found)


def _predicted(rows: list[Observation], algorithm: Algorithm, protocol: Protocol) -> NDArray[np.float64]:
    """Return the times that a protocol predicts, [s]. NVLink kernels take one step or two, whichever is faster."""
    times = []
    for row in rows:
        link = LinkClass(row.key[0], row.ring_rate, row.mesh_rate, protocol, one_shot=protocol, switch=protocol)
        steps = row.key[:2] == ("nvlink", "one-shot")
        names: list[Algorithm] = ["one-shot", "two-shot"] if steps else [algorithm]
        ways = [replace(link, algorithm=name) for name in names]
        times.append(min(float(all_reduce_time(message_bytes=row.message, ranks=row.ranks, link=way)) for way in ways))
    return np.array(times)


def fit_protocol(rows: Iterable[Observation], *, hop: float | None = None) -> ProtocolFit:
    """Fit launch, hop and efficiency of one protocol.

    Parameters
    ----------
    rows : iterable of Observation
        Measurements of one protocol.
    hop : float, optional
        Fixed time for each hop, where only one group size was measured, [s]

    Returns
    -------
    ProtocolFit
        Constants, standard errors (nan where a constant was fixed) and the median relative error.

    Notes
    -----
    Robust least squares (soft L1 at 20 %) on log time, so that one odd machine does not pull the rest.

    Examples
    --------
    >>> def row(n, m):
    ...     seconds = 5e-6 + 2 * (n - 1) * 1e-6 + 2 * (n - 1) / n * m / 40e9
    ...     return Observation("x", "h", ("pcie", "ring", "direct"), n, m, seconds, 50e9, 50e9, "planted")
    >>> fit = fit_protocol([row(n, m) for n in (2, 4, 8) for m in (1e3, 1e5, 1e7)])
    >>> round(fit.protocol.launch * 1e6, 2), round(fit.protocol.hop * 1e6, 2), round(fit.protocol.efficiency, 3)
    (5.0, 1.0, 0.8)
    """
    from scipy.optimize import least_squares

    measured = list(rows)
    algorithm: Algorithm = measured[0].key[1]  # type: ignore[assignment]
    target = np.log([row.seconds for row in measured])

    def unpack(x: NDArray[np.float64]) -> Protocol:
        return Protocol(float(np.exp(x[0])), float(np.exp(x[1])) if hop is None else hop, float(np.exp(x[-1])))

    def misfit(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.log(_predicted(measured, algorithm, unpack(x))) - target

    start = np.log([8e-6, 1e-6, 0.6] if hop is None else [8e-6, 0.6])
    low = np.log([1e-7, 1e-9, 0.02] if hop is None else [1e-7, 0.02])
    high = np.log([1e-3, 1e-4, 1.0] if hop is None else [1e-3, 1.0])
    solved = least_squares(misfit, start, bounds=(low, high), loss="soft_l1", f_scale=0.2)
    best = unpack(solved.x)
    off = _predicted(measured, algorithm, best) / np.exp(target) - 1
    jacobian = np.asarray(solved.jac, dtype=np.float64)
    spread = float(np.sum(off**2)) / max(len(measured) - len(solved.x), 1)
    relative = np.sqrt(np.diag(np.linalg.pinv(jacobian.T @ jacobian) * spread))
    hop_error = float("nan") if hop is not None else float(relative[1]) * best.hop
    errors = (float(relative[0]) * best.launch, hop_error, float(relative[-1]) * best.efficiency)
    return ProtocolFit(measured[0].key, best, errors, float(np.median(np.abs(off))), tuple(measured))


def fit_links() -> list[ProtocolFit]:
    """Fit every protocol that the ledgers measure.

    Returns
    -------
    list of ProtocolFit
        In the order of their names. NVLink one-shot kernels are fitted together and for each line rate alone, because
        generations differ in launch time. Infinity Fabric has two rows only: one gives the share of its line, the
        other the launch time, and its one-shot kernels borrow NVLink's constants.

    Examples
    --------
    >>> [fit.key for fit in fit_links() if fit.key[0] == "fabric"]
    [('fabric', 'ring', 'direct')]
    """
    groups: dict[tuple[str, str, str], list[Observation]] = {}
    for row in all_reduce_observations():
        groups.setdefault(row.key, []).append(row)
        if row.key[:2] == ("nvlink", "one-shot"):
            groups.setdefault((*row.key[:2], f"{row.ring_rate / 1e9:g} GB/s"), []).append(row)
    hop = fit_protocol(groups["pcie", "ring", "direct"]).protocol.hop
    fits = []
    for key, rows in sorted(groups.items()):
        if len(rows) >= 3:
            one_size = len({row.ranks for row in rows}) == 1
            fit = fit_protocol(rows, hop=hop if one_size else None)
            note = "one group size measured: hop taken from pcie/ring/direct" if one_size else ""
            fits.append(replace(fit, key=key, note=note))
    return sorted([*fits, *_infinity_fabric(groups["xgmi", "ring", "direct"], hop, fits)], key=lambda fit: fit.key)


def _infinity_fabric(rows: list[Observation], hop: float, fits: list[ProtocolFit]) -> list[ProtocolFit]:
    """Return the constants of Infinity Fabric: one measured all-reduce and one link constant."""
    row = rows[0]
    constant = next(item for item in read_transfers("collectives.csv") if item["library"] == "rccl topology constant")
    share = float(constant["value"]) / 64.0
    moved = 2 * (row.ranks - 1) / row.ranks * row.message / (row.ring_rate * share)
    ring = Protocol(max(row.seconds - moved - 2 * (row.ranks - 1) * hop, 0.0), hop, share)
    none = float("nan")
    shot = next(fit for fit in fits if fit.key == ("nvlink", "one-shot", "450 GB/s")).protocol
    said = f"two rows only: share of the line from {constant['source']}"
    borrowed = "not measured: borrowed from nvlink/one-shot/450 GB/s"
    return [
        ProtocolFit(row.key, ring, (none, none, none), 0.0, (row,), said),
        ProtocolFit(("xgmi", "one-shot", "direct"), shot, (none, none, none), none, (), borrowed),
    ]
