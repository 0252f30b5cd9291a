"""Predict every transfer and all-reduce of the topology ledgers and compare with what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from glmplan.calibrate.links import Observation, all_reduce_observations, fit_protocol
from glmplan.calibrate.shares import Transfer, measured_transfers
from glmplan.files import write_atomically
from glmplan.network.collectives import Algorithm, LinkClass, Protocol, all_reduce_time
from glmplan.network.conditions import CONDITIONS, measured_cost
from glmplan.network.links import LinkFits, load_link_fits
from glmplan.network.topology import flow_rates

__all__ = [
    "TopologyRow",
    "left_out_errors",
    "median_error",
    "topology_backtest",
    "topology_page",
    "write_topology_page",
]

#: Median relative error that the backtest aims at, [-]
GOAL = 0.15


@dataclass(frozen=True, slots=True)
class TopologyRow:
    """One measured row beside its prediction.

    Parameters
    ----------
    row : str
        Identifier in its ledger.
    group : str
        `p2p`, `collapse`, `host-dma` or `all-reduce`.
    host, what : str
        The machine, and what ran on it.
    measured, predicted : float
        Values in `unit`.
    unit : str
        `GB/s` or `us`.
    error : float
        Predicted over measured, less one, [-]
    source : str
        Where the measurement comes from.
    """

    row: str
    group: str
    host: str
    what: str
    measured: float
    predicted: float
    unit: str
    error: float
    source: str


def topology_backtest(fits: LinkFits | None = None) -> list[TopologyRow]:
    """Predict every row whose transfers or group are known.

    Parameters
    ----------
    fits : LinkFits, optional
        Fitted constants; by default those of the data folder.

    Returns
    -------
    list of TopologyRow
        In the order of the ledgers.

    Examples
    --------
    >>> rows = topology_backtest()
    >>> median_error(rows, "p2p") < 0.15 and median_error(rows, "collapse") < 0.15
    True
    """
    fits = fits or load_link_fits()
    rows = [_transfer_row(transfer, fits) for transfer in measured_transfers()]
    for observation in all_reduce_observations():
        protocol = fits.protocol(*_fitted_key(observation, fits))
        if protocol is not None:
            rows.append(_all_reduce_row(observation, protocol))
    return rows


def _fitted_key(observation: Observation, fits: LinkFits) -> tuple[str, str, str]:
    kind, algorithm, condition = observation.key
    generation = (kind, algorithm, f"{observation.ring_rate / 1e9:g} GB/s")
    return generation if generation in fits.protocols else (kind, algorithm, condition)


def _transfer_row(transfer: Transfer, fits: LinkFits) -> TopologyRow:
    """Predict a set of transfers as its row adds them up."""
    row = transfer.row
    rates = flow_rates(transfer.host, transfer.flows, writes=not transfer.reads, fits=fits)
    # `finish`: the tool divides all bytes by the time of the slowest transfer.
    total = {"sum": np.sum(rates), "mean": np.mean(rates), "finish": len(rates) * np.min(rates)}[row["total"]]
    way = f" ({row['direction']})" if row["direction"] else ""
    predicted, measured = float(total) / 1e9, transfer.measured / 1e9
    what, error = row["pattern"] + way, predicted / measured - 1
    return TopologyRow(
        row["id"], row["kind"], transfer.host.name, what, measured, predicted, "GB/s", error, row["source"]
    )


def _predicted_time(observation: Observation, protocol: Protocol) -> float:
    names: list[Algorithm] = [observation.key[1]]  # type: ignore[list-item]
    if observation.key[:2] == ("nvlink", "one-shot"):
        names = ["one-shot", "two-shot"]
    rates = observation.ring_rate, observation.mesh_rate
    times = []
    for name in names:
        link = LinkClass(observation.key[0], *rates, protocol, one_shot=protocol, switch=protocol, algorithm=name)
        times.append(float(all_reduce_time(message_bytes=observation.message, ranks=observation.ranks, link=link)))
    return min(times)


def _all_reduce_row(observation: Observation, protocol: Protocol) -> TopologyRow:
    predicted = _predicted_time(observation, protocol)
    error = predicted / observation.seconds - 1
    what = f"{'/'.join(observation.key)}, {observation.ranks} ranks, {observation.message:.0f} B"
    measured = observation.seconds * 1e6
    return TopologyRow(
        observation.row,
        "all-reduce",
        observation.host,
        what,
        measured,
        predicted * 1e6,
        "us",
        error,
        observation.source,
    )


def median_error(rows: Iterable[TopologyRow], group: str) -> float:
    """Return the median absolute relative error of a group.

    Parameters
    ----------
    rows : iterable of TopologyRow
        The backtest.
    group : str
        `p2p`, `collapse`, `host-dma` or `all-reduce`.

    Returns
    -------
    float
        Median, [-]

    Examples
    --------
    >>> row = TopologyRow("t1", "p2p", "h", "w", 50.0, 55.0, "GB/s", 0.1, "s")
    >>> median_error([row], "p2p")
    0.1
    """
    return median(abs(row.error) for row in rows if row.group == group)


def left_out_errors() -> dict[tuple[str, str, str], float]:
    """Predict the all-reduces of each machine with constants fitted on the other machines.

    Returns
    -------
    dict
        Protocol → median absolute relative error over machines left out, [-]; protocols seen on one machine are absent.
    """
    groups: dict[tuple[str, str, str], list[Observation]] = {}
    for observation in all_reduce_observations():
        groups.setdefault(observation.key, []).append(observation)
    errors = {}
    for key, rows in sorted(groups.items()):
        hosts = sorted({row.host for row in rows})
        off = []
        for host in hosts:
            others = [row for row in rows if row.host != host]
            if len(hosts) < 2 or len({row.ranks for row in others}) < 2 or len(others) < 6:
                continue
            protocol = fit_protocol(others).protocol
            off += [abs(_predicted_time(row, protocol) / row.seconds - 1) for row in rows if row.host == host]
        if off:
            errors[key] = median(off)
    return errors


def topology_page() -> str:
    """Return the accuracy page of the topology model.

    Returns
    -------
    str
        Markdown; the same ledgers and fits give the same text.
    """
    rows = topology_backtest()
    lines = [
        "# How well link speeds are predicted",
        "",
        "Generated from `calibration/measurements/pcie-topologies.csv` and `collectives.csv` by",
        "`glmplan.backtest.topology.write_topology_page`. Goal: 15 % median in each group.",
        "",
        "| group | rows | median error | within 15 % | worst |",
        "|---|---|---|---|---|",
    ]
    for group in ("p2p", "collapse", "all-reduce", "host-dma"):
        mine = [abs(row.error) for row in rows if row.group == group]
        inside = sum(error <= GOAL for error in mine) / len(mine)
        lines.append(f"| {group} | {len(mine)} | {median(mine):.1%} | {inside:.0%} | {max(mine):.0%} |")
    lines += [
        "",
        "The constants were fitted on these rows, so the table above says how well the form of the model holds.",
        "For all-reduces, machines were also left out one by one and predicted from the others:",
        "",
        "| protocol | median error on machines left out |",
        "|---|---|",
        *(f"| {'/'.join(key)} | {error:.1%} |" for key, error in left_out_errors().items()),
        "",
        "## What named conditions cost where they were measured",
        "",
        "| condition | measured | with | without | ratio |",
        "|---|---|---|---|---|",
    ]
    for condition in CONDITIONS:
        for cost in measured_cost(condition):
            figures = f"{cost.with_condition:g} {cost.unit} | {cost.without:g} {cost.unit} | {cost.ratio:.2f}"
            lines.append(f"| {condition.name} | {cost.what} | {figures} |")
    lines += [
        "",
        "## Rows that are off by more than a quarter",
        "",
        "Known gaps: reads from several switches into one, which exceed one uplink in some rows; reads in a full mesh;",
        "a limit of 56 GB/s on writes to host memory of one machine that its links do not explain; 16-card meshes.",
        "",
        "| row | machine | what | measured | predicted | error |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        if abs(row.error) > 0.25:
            figures = f"{row.measured:.1f} {row.unit} | {row.predicted:.1f} {row.unit} | {row.error:+.0%}"
            lines.append(f"| {row.row} | {row.host} | {row.what} | {figures} |")
    return "\n".join(lines) + "\n"


def write_topology_page(file: str | Path) -> None:
    """Write the accuracy page.

    Parameters
    ----------
    file : path
        Where to, usually `docs/topology-accuracy.md`.

    Raises
    ------
    SpecError
        If it cannot be written.
    """
    write_atomically(file, topology_page())
