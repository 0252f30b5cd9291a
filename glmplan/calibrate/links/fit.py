"""Fit the constants of links: launch, hop and efficiency of each way to run a collective.

The fit is small and deterministic: robust least squares on the logarithm of time, from a fixed start. It reads the two
ledgers of measured transfers and writes `calibration/fits/links.toml`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from glmplan.calibrate.links.observations import (
    Observation,
    ShareFit,
    Transfer,
    all_reduce_observations,
    doubtful_observations,
    fit_shares,
    measured_transfers,
    read_transfers,
)
from glmplan.catalog.files import data_folder, write_atomically
from glmplan.costs.network.collectives import Algorithm, LinkClass, Protocol, all_reduce_time
from glmplan.costs.network.links import LinkFits, across_nodes, crowding
from glmplan.costs.network.topology import flow_rates
from glmplan.prediction.reproduce import relative_error
from glmplan.units import BytesPerSecond, format_quantity

__all__ = [
    "HeldOut",
    "ProtocolFit",
    "fit_links",
    "fit_protocol",
    "fitted_key",
    "held_out_errors",
    "link_record",
    "machine_of",
    "predicted_seconds",
    "predicted_transfer",
    "write_link_fits",
]


_Key = tuple[str, str, str]
#: Start and bounds of the fits of launch [s], hop [s], hop of whole chunks [s] and efficiency [-].
_START = {"launch": 8e-6, "hop": 1e-6, "bulk_hop": 3e-6, "efficiency": 0.6}
_LOW = {"launch": 1e-7, "hop": 1e-9, "bulk_hop": 1e-9, "efficiency": 0.02}
_HIGH = {"launch": 1e-3, "hop": 1e-4, "bulk_hop": 1e-3, "efficiency": 1.0}
#: Step of the central differences that stand for derivatives, in parts of the logarithm of a constant, [-]. Differences
#: of scipy's own step of 1.5e-8 turn the last digits of exp and log, in which processors differ, into the eighth digit
#: of a derivative, and where a ring changes its protocol they fall on either side of it.
_DIFFERENCE = 1e-4


@dataclass(frozen=True, slots=True)
class ProtocolFit:
    """Fitted constants of one protocol, with what they rest on.

    Parameters
    ----------
    key : tuple of str
        Link kind, algorithm and condition.
    protocol : Protocol
        The constants.
    errors : dict
        Constant → standard error, in its unit; constants that were fixed are absent.
    median_error : float
        Median relative error on the rows of the fit, [-]; nan without rows.
    rows : tuple of Observation
        What it rests on.
    inner : Protocol, optional
        Constants of the steps inside a machine, for protocols between machines.
    note : str, optional
        What was not measured here.
    """

    key: _Key
    protocol: Protocol
    errors: dict[str, float]
    median_error: float
    rows: tuple[Observation, ...]
    inner: Protocol | None = None
    note: str = ""


def predicted_seconds(
    rows: Sequence[Observation],
    protocol: Protocol,
    *,
    shares: Mapping[str, float] | None = None,
    inner: Protocol | None = None,
) -> NDArray[np.float64]:
    """Return the times that a protocol predicts for all-reduces of its kind.

    - `shares`: Fitted shares of links, for crowding on PCIe; without them cards keep all of their links.
    - `inner`: Constants of the steps inside a machine, for groups that span machines.
    - Returns: Shape (n,), [s]. NVLink kernels take one step or two, whichever is faster.

    Examples
    --------
    >>> row = Observation("x", "h", ("pcie", "ring", "direct"), 2, 1e6, 1e-4, 50e9, 50e9, "planted")
    >>> predicted_seconds([row], Protocol(5e-6, 1e-6, 0.8)).round(8).tolist()
    [3.2e-05]
    """
    kind, algorithm = rows[0].key[:2]
    ranks = np.array([row.ranks for row in rows], dtype=float)
    message = np.array([row.message for row in rows], dtype=float)
    ring = np.array([row.ring_rate for row in rows], dtype=float)
    mesh = np.array([row.mesh_rate for row in rows], dtype=float)
    if kind == "pcie" and shares:
        mesh = np.minimum(mesh, ring * crowding(ranks - 1, shares))
    if inner is not None:
        protocol = across_nodes(protocol, inner, ranks / np.array([row.nodes for row in rows], dtype=float))
    names: list[Algorithm] = [algorithm]  # type: ignore[list-item]
    if (kind, algorithm) == ("nvlink", "one-shot"):
        names = ["one-shot", "two-shot"]
    link = LinkClass(kind, ring, mesh, protocol, one_shot=protocol, switch=protocol)  # type: ignore[arg-type]
    times = [all_reduce_time(message_bytes=message, ranks=ranks, link=replace(link, algorithm=name)) for name in names]
    return np.asarray(np.minimum.reduce(times))


def fit_protocol(
    rows: Iterable[Observation],
    *,
    two_speeds: bool = False,
    fixed: Mapping[str, float] | None = None,
    shares: Mapping[str, float] | None = None,
    inner: Protocol | None = None,
) -> ProtocolFit:
    """Fit launch, hops and efficiency of one protocol.

    - `two_speeds`: Whether NCCL's protocols LL and Simple are told apart, with a hop each.
    - `fixed`: Constants that these rows do not show, from others: `launch`, `hop`, `bulk_hop`, [s].
    - Returns: Constants, standard errors and the median relative error.

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

    measured, given = list(rows), dict(fixed or {})
    target = np.log([row.seconds for row in measured])
    names = [name for name in _START if name not in given and (two_speeds or name != "bulk_hop")]

    def unpack(x: NDArray[np.float64]) -> Protocol:
        return Protocol(**given, **dict(zip(names, map(float, np.exp(x)), strict=True)))

    def misfit(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.log(predicted_seconds(measured, unpack(x), shares=shares, inner=inner)) - target

    start, low, high = (np.log([bound[name] for name in names]) for bound in (_START, _LOW, _HIGH))
    solved = least_squares(
        misfit, start, bounds=(low, high), loss="soft_l1", f_scale=0.2, jac="3-point", diff_step=_DIFFERENCE
    )
    best = unpack(solved.x)
    off = relative_error(predicted_seconds(measured, best, shares=shares, inner=inner), np.exp(target))
    jacobian = np.asarray(solved.jac, dtype=np.float64)
    spread = float(np.sum(off**2)) / max(len(measured) - len(solved.x), 1)
    relative = np.sqrt(np.diag(np.linalg.pinv(jacobian.T @ jacobian) * spread))
    errors = {name: float(share) * getattr(best, name) for name, share in zip(names, relative, strict=True)}
    return ProtocolFit(measured[0].key, best, errors, float(np.median(np.abs(off))), tuple(measured), inner)


def fitted_key(row: Observation) -> _Key:
    """Return under which key plans look up the constants of a row: NVLink kernels by the generation of the link.

    Examples
    --------
    >>> fitted_key(Observation("x", "h", ("nvlink", "one-shot", "direct"), 8, 1e3, 5e-6, 450e9, 450e9, "planted"))
    ('nvlink', 'one-shot', '450 GB/s')
    """
    if row.key[:2] == ("nvlink", "one-shot"):
        return *row.key[:2], f"{row.ring_rate / 1e9:g} GB/s"
    return row.key


def fit_links(
    observations: Iterable[Observation] | None = None, transfers: Sequence[Transfer] | None = None
) -> list[ProtocolFit]:
    """Fit every protocol that the ledgers measure.

    - `observations`: Measured all-reduces; by default those of the ledgers.
    - `transfers`: Measured transfers, for crowding; by default those of the ledgers.
    - Returns: In the order of their names. NVLink one-shot kernels are fitted together and for each line rate alone,
      because generations differ in launch time. Infinity Fabric has two rows only: one gives the share of its line,
      the other the launch time, and its one-shot kernels borrow NVLink's constants.

    Notes
    -----
    Rings over PCIe have two speeds, NCCL's protocols LL and Simple; one-shot kernels over PCIe find the links as
    crowded as copies among all cards do. Rings between machines start like those inside one, and only the steps that
    cross are fitted.

    Examples
    --------
    >>> [fit.key for fit in fit_links() if fit.key[0] == "fabric"]
    [('fabric', 'ring', 'direct')]
    """
    shares = {share.name: share.value for share in fit_shares(transfers)}
    groups: dict[_Key, list[Observation]] = {}
    for row in all_reduce_observations() if observations is None else observations:
        for key in dict.fromkeys((row.key, fitted_key(row))):
            groups.setdefault(key, []).append(row)
    found: dict[_Key, ProtocolFit] = {}
    # those first from which others borrow
    for key in sorted(groups, key=lambda key: (_BORROWED.index(key) if key in _BORROWED else len(_BORROWED), key)):
        rows = groups[key]
        if key[0] != "xgmi" and len(rows) >= 3 and (key[0] != "fabric" or _INSIDE in found):
            found[key] = _fit_group(key, rows, shares, found)
    if ("xgmi", "ring", "direct") in groups and _SHOTS in found:
        found |= {fit.key: fit for fit in _infinity_fabric(groups["xgmi", "ring", "direct"], found)}
    return sorted(found.values(), key=lambda fit: fit.key)


_DIRECT: _Key = ("pcie", "ring", "direct")
_INSIDE: _Key = ("nvlink", "ring", "direct")
_SHOTS: _Key = ("nvlink", "one-shot", "450 GB/s")
_BORROWED = (_DIRECT, _INSIDE, _SHOTS)
#: Rings that NCCL lays over two sockets unaided run by its protocol Simple only, on two channels
#: (github.com/voipmonitor/rtx6kpro @29f3863 optimization/nccl-tuning.md).
_BULK_ONLY: _Key = ("pcie", "ring", "two-sockets")
#: Share of the best rate of a protocol below which a row shows launch and hops and not only bytes, [-]
_HOPS_SHOW = 0.5


def _fit_group(
    key: _Key, rows: list[Observation], shares: dict[str, float], found: dict[_Key, ProtocolFit]
) -> ProtocolFit:
    two_speeds = key[:2] == ("pcie", "ring") and key != _BULK_ONLY
    fixed: dict[str, float] = {}
    inner, note = None, ""
    if key[0] == "fabric":
        inner = found[_INSIDE].protocol
        fixed, note = {"launch": inner.launch}, "launch, and hops inside a machine, taken from nvlink/ring/direct"
    elif key == _BULK_ONLY:
        fixed = {"hop": found[_DIRECT].protocol.bulk_hop or found[_DIRECT].protocol.hop}
        note = "one group size measured: hop of whole chunks taken from pcie/ring/direct"
    elif len(_sizes_that_show_hops(rows)) == 1:
        lender = _SHOTS if key[1] == "one-shot" else _DIRECT
        source = found[lender].protocol
        fixed = {"hop": source.hop}
        alone = len({row.ranks for row in rows}) == 1
        if two_speeds and alone and source.bulk_hop is not None:
            fixed["bulk_hop"] = source.bulk_hop
        note = f"one group size {'measured' if alone else 'shows hops'}: hop taken from {'/'.join(lender)}"
    fit = fit_protocol(rows, two_speeds=two_speeds, fixed=fixed, shares=shares, inner=inner)
    return replace(fit, key=key, note=note)


def _sizes_that_show_hops(rows: Sequence[Observation]) -> set[int]:
    """Group sizes with rows that take twice as long as their bytes at the best rate seen, or longer.

    In the others launch and hops hide behind the bytes: with one such size left, only launch + hops x hop is measured,
    and a fit of both would end wherever its steps happened to lead.
    """
    moved = [2 * (row.ranks - 1) / row.ranks * row.message / row.ring_rate for row in rows]
    best = max(bytes_ / row.seconds for bytes_, row in zip(moved, rows, strict=True))
    return {row.ranks for bytes_, row in zip(moved, rows, strict=True) if bytes_ / row.seconds < _HOPS_SHOW * best}


def _infinity_fabric(rows: list[Observation], found: dict[_Key, ProtocolFit]) -> list[ProtocolFit]:
    """Return the constants of Infinity Fabric: one measured all-reduce and one link constant."""
    row, hop = rows[0], found[_DIRECT].protocol.hop
    constant = next(item for item in read_transfers("collectives.csv") if item["library"] == "rccl topology constant")
    share = float(constant["value"]) / 64.0
    moved = 2 * (row.ranks - 1) / row.ranks * row.message / (row.ring_rate * share)
    ring = Protocol(max(row.seconds - moved - 2 * (row.ranks - 1) * hop, 0.0), hop, share)
    said = f"two rows only: share of the line from {constant['source']}"
    borrowed = f"not measured: borrowed from {'/'.join(_SHOTS)}"
    return [
        ProtocolFit(row.key, ring, {}, 0.0, (row,), note=said),
        ProtocolFit(("xgmi", "one-shot", "direct"), found[_SHOTS].protocol, {}, float("nan"), (), note=borrowed),
    ]


# Predict measured transfers and all-reduces by fits that have not seen them: machines left out, rows left out.

#: Parts that rows are dealt into at random, and the seed of the deal.
_FOLDS, _SEED = 5, 20260320


@dataclass(frozen=True, slots=True)
class HeldOut:
    """One row predicted by a fit that had not seen it.

    Parameters
    ----------
    row : str
        Identifier in its ledger.
    group : str
        `p2p`, `collapse`, `host-dma` or `all-reduce`.
    machine : str
        The machine, see `machine_of`.
    key : tuple of str or None
        Which protocol; None for transfers.
    error : float or None
        Predicted over measured, less one, [-]; None where only the rows held out show what the prediction needs.
    """

    row: str
    group: str
    machine: str
    key: tuple[str, str, str] | None
    error: float | None


def machine_of(host: str) -> str:
    """Return the machine behind the name of a host: one that was cabled in several ways counts once.

    Examples
    --------
    >>> machine_of("wrx90-3-switches-8") == machine_of("wrx90-2-switches-8")
    True
    >>> machine_of("turin-2s-direct-8-tuned")
    'turin-2s-direct-8'
    """
    return "wrx90" if host.startswith("wrx90") else host.removesuffix("-tuned")


def predicted_transfer(transfer: Transfer, fits: LinkFits) -> BytesPerSecond:
    """Return what a set of transfers reaches, added up as its row does."""
    rates = flow_rates(transfer.host, transfer.flows, writes=not transfer.reads, fits=fits)
    # `finish`: the tool divides all bytes by the time of the slowest transfer.
    totals: dict[str, Callable[[], float]] = {
        "sum": lambda: float(np.sum(rates)),
        "mean": lambda: float(np.mean(rates)),
        "finish": lambda: len(rates) * float(np.min(rates)),
    }
    return totals[transfer.row["total"]]()


def _deals(by: str) -> Iterator[tuple[Callable[[str], bool], Callable[[str], bool]]]:
    """Yield pairs of questions, for hosts and for rows: is it held out in this part of the deal?"""
    transfers, observations = measured_transfers(), all_reduce_observations()
    if by == "machine":
        hosts = {transfer.host.name for transfer in transfers} | {row.host for row in observations}
        for machine in sorted({machine_of(host) for host in hosts}):
            yield lambda host, machine=machine: machine_of(host) == machine, lambda row: False  # type: ignore[misc]
        return
    rows = sorted({transfer.row["id"] for transfer in transfers} | {row.row for row in observations})
    order = np.random.default_rng(_SEED).permutation(len(rows))
    for fold in range(_FOLDS):
        held = {rows[index] for index in order[fold::_FOLDS]}
        yield lambda host: False, lambda row, held=held: row in held  # type: ignore[misc]


def held_out_errors(by: Literal["machine", "row"], *, doubtful_as: int | None = None) -> list[HeldOut]:
    """Predict every row of the ledgers by constants fitted without it.

    - `by`: What is left out together: all rows of a machine, or a fifth of all rows, dealt at random.
    - `doubtful_as`: Group size to read the rows as whose size is in doubt; without it they are kept out.
    - Returns: One for each transfer and all-reduce that the model predicts.
    """
    found: list[HeldOut] = []
    doubtful = doubtful_observations(doubtful_as) if doubtful_as else ()
    transfers, observations = measured_transfers(), (*all_reduce_observations(), *doubtful)
    for host_held, row_held in _deals(by):

        def out(host: str, row: str, *, hosts=host_held, rows=row_held) -> bool:  # type: ignore[no-untyped-def]
            return bool(hosts(host) or rows(row))

        known = [one for one in transfers if not out(one.host.name, one.row["id"])]
        seen = [one for one in observations if not out(one.host, one.row)]
        scalars = {share.name: share.value for share in fit_shares(known)}
        fitted = {fit.key: fit for fit in fit_links(seen, known)}
        fits = LinkFits({key: fit.protocol for key, fit in fitted.items()}, scalars)
        found += _transfers_held((one for one in transfers if out(one.host.name, one.row["id"])), fits)
        for row in (one for one in observations if out(one.host, one.row)):
            fit = fitted.get(fitted_key(row))
            error = None
            if fit is not None:
                seconds = predicted_seconds([row], fit.protocol, shares=scalars, inner=fit.inner)
                error = float(relative_error(seconds[0], row.seconds))
            found.append(HeldOut(row.row, "all-reduce", machine_of(row.host), fitted_key(row), error))
    return found


def _transfers_held(transfers: Iterable[Transfer], fits: LinkFits) -> Iterator[HeldOut]:
    for one in transfers:
        try:
            error = float(relative_error(predicted_transfer(one, fits), one.measured))
        except KeyError:  # a share that no other row shows
            error = None
        yield HeldOut(one.row["id"], one.row["kind"], machine_of(one.host.name), None, error)


# Write the fitted constants of links to `calibration/fits/links.toml`, with errors, domain and what they rest on.

_HEAD = """\
# Constants of links, fitted to calibration/measurements/pcie-topologies.csv and collectives.csv.
# Written by `glmplan.calibrate.links.fit.write_link_fits`; do not edit.
# Time of a collective = launch + hops x hop + bytes moved / (line rate x efficiency), see glmplan/costs/network.
# With a bulk_hop the ring has two speeds: short hops and twice the bytes (NCCL's LL), or long hops (Simple).
# left_out_error is the median relative error on machines left out; without it one machine decides.
"""


def _seconds(value: float) -> str:
    return format_quantity(value, "seconds", 4, unit="us")


def _protocol(fit: ProtocolFit, held_out: list[HeldOut]) -> str:
    kind, algorithm, condition = fit.key
    lines = [
        "[[protocol]]",
        f"kind = {json.dumps(kind)}",
        f"algorithm = {json.dumps(algorithm)}",
        f"condition = {json.dumps(condition)}",
        f"launch = {json.dumps(_seconds(fit.protocol.launch))}",
        f"hop = {json.dumps(_seconds(fit.protocol.hop))}",
    ]
    if fit.protocol.bulk_hop is not None:
        lines.append(f"bulk_hop = {json.dumps(_seconds(fit.protocol.bulk_hop))}")
    lines.append(f"efficiency = {fit.protocol.efficiency:.4f}")
    for name, error in fit.errors.items():
        lines.append(f"{name}_error = {f'{error:.4f}' if name == 'efficiency' else json.dumps(_seconds(error))}")
    if math.isfinite(fit.median_error):
        lines.append(f"median_relative_error = {fit.median_error:.3f}")
    if fit.rows:
        mine = {row.row for row in fit.rows}
        errors = [abs(one.error) for one in held_out if one.row in mine and one.error is not None]
        # a protocol whose rows are mostly those of one machine has not been tried on another
        if len(errors) > len(mine) / 2:
            lines.append(f"left_out_error = {median(errors):.3f}")
        lines.append(f"machines = {json.dumps(sorted({machine_of(row.host) for row in fit.rows}))}")
        sizes = [row.message for row in fit.rows]
        lines.append(f"ranks = {sorted({row.ranks for row in fit.rows})}")
        lines.append(f"messages = {json.dumps([format_quantity(size, 'bytes') for size in (min(sizes), max(sizes))])}")
        lines.append(f"rows = {json.dumps([row.row for row in fit.rows])}")
        lines.append(f"sources = {json.dumps(sorted({row.source for row in fit.rows}))}")
    if fit.note:
        lines.append(f"note = {json.dumps(fit.note)}")
    return "\n".join(lines) + "\n"


def _share(fit: ShareFit) -> str:
    return "\n".join(
        [
            "[[scalar]]",
            f"name = {json.dumps(fit.name)}",
            f"means = {json.dumps(fit.means)}",
            f"value = {fit.value:.4f}",
            f"range = [{fit.low:.4f}, {fit.high:.4f}]",
            f"rows = {json.dumps(list(fit.rows))}",
            f"sources = {json.dumps(list(fit.sources))}",
            "",
        ]
    )


def link_record() -> str:
    """Fit all constants of links and return the record.

    Returns: TOML text; the same ledgers give the same text.

    Examples
    --------
    >>> link_record().count("[[scalar]]")
    11
    """
    held_out = held_out_errors("machine")
    protocols = (_protocol(fit, held_out) for fit in fit_links())
    return "\n".join([_HEAD, *protocols, *map(_share, fit_shares())])


def write_link_fits(file: str | Path | None = None) -> Path:
    """Fit all constants of links and write them.

    Examples
    --------
    >>> import tempfile
    >>> write_link_fits(Path(tempfile.mkdtemp()) / "links.toml").name
    'links.toml'
    """
    path = Path(file) if file else data_folder("calibration") / "fits" / "links.toml"
    write_atomically(path, link_record())
    return path
