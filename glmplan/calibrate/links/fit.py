"""Fit the link constants: launch, hop and efficiency.

Each collective algorithm has its own. Robust least squares on log time from a fixed start: small and deterministic.
Reads the two ledgers of measured transfers, writes `calibration/fits/links.toml` with errors and sources, and predicts
held-out rows and machines.
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
#: start and bounds: launch [s], hop [s], hop of whole chunks [s], efficiency [-]
_START = {"launch": 8e-6, "hop": 1e-6, "bulk_hop": 3e-6, "efficiency": 0.6}
_LOW = {"launch": 1e-7, "hop": 1e-9, "bulk_hop": 1e-9, "efficiency": 0.02}
_HIGH = {"launch": 1e-3, "hop": 1e-4, "bulk_hop": 1e-3, "efficiency": 1.0}
#: step of the central differences, in the log of a constant [-]. scipy's own step of 1.5e-8 turns the last digits of
#: exp and log, which differ between processors, into the eighth digit of a derivative; where a ring changes its
#: protocol they fall on either side of it.
_DIFFERENCE = 1e-4


@dataclass(frozen=True, slots=True)
class ProtocolFit:
    """Fitted constants of one protocol and their rows."""

    key: _Key  # link kind, algorithm, condition
    protocol: Protocol
    errors: dict[str, float]  # constant → standard error; fixed ones are absent
    median_error: float  # relative, on the fitted rows; NaN without rows
    rows: tuple[Observation, ...]
    inner: Protocol | None = None  # constants of steps inside a machine, for protocols between machines
    note: str = ""  # not measured here


def predicted_seconds(
    rows: Sequence[Observation],
    protocol: Protocol,
    *,
    shares: Mapping[str, float] | None = None,
    inner: Protocol | None = None,
) -> NDArray[np.float64]:
    """Return the predicted times of all-reduces, (n,) [s]

    `shares` are link shares under contention on PCIe (default: none); `inner` are the constants inside a machine for
    groups that span machines. NVLink kernels take one step or two, whichever is faster.

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
    """Return launch, hops and efficiency of one protocol, with errors.

    `two_speeds` fits one hop for each of NCCL's protocols LL and Simple. `fixed` gives constants that these rows do not
    show [s].

    Notes
    -----
    Soft L1 at 20 % on log time, so that one outlying machine does not dominate.

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
    """Return the lookup key of a row; NVLink kernels by link generation.

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
    """Return the fit of every measured protocol, sorted by name.

    Notes
    -----
    NVLink one-shot kernels are fitted for all line rates and for each, because generations differ in launch time.
    Infinity Fabric has two rows: one gives the share of its line, the other the launch time; its one-shot kernels take
    NVLink's constants. Rings over PCIe have two speeds, NCCL's protocols LL and Simple; one-shot kernels over PCIe have
    the link contention of copies among all GPUs. Rings between machines start like those inside one; only the crossing
    steps are fitted.

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
    fits: dict[_Key, ProtocolFit] = {}
    # first the protocols whose constants others use
    for key in sorted(groups, key=lambda key: (_BORROWED.index(key) if key in _BORROWED else len(_BORROWED), key)):
        rows = groups[key]
        if key[0] != "xgmi" and len(rows) >= 3 and (key[0] != "fabric" or _INSIDE in fits):
            fits[key] = _fit_group(key, rows, shares, fits)
    if ("xgmi", "ring", "direct") in groups and _SHOTS in fits:
        fits |= {fit.key: fit for fit in _infinity_fabric(groups["xgmi", "ring", "direct"], fits)}
    return sorted(fits.values(), key=lambda fit: fit.key)


_DIRECT: _Key = ("pcie", "ring", "direct")
_INSIDE: _Key = ("nvlink", "ring", "direct")
_SHOTS: _Key = ("nvlink", "one-shot", "450 GB/s")
_BORROWED = (_DIRECT, _INSIDE, _SHOTS)
#: NCCL's default rings across two sockets use protocol Simple only, on two channels (github.com/voipmonitor/rtx6kpro
#: @29f3863 optimization/nccl-tuning.md)
_BULK_ONLY: _Key = ("pcie", "ring", "two-sockets")
#: share of a protocol's best rate below which a row shows launch and hops, not only bytes [-]
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
    """Return group sizes with rows at half the best byte rate or below.

    In other rows the bytes hide launch and hops: with one such size only launch + hops x hop is measured, and a fit of
    both would end at an arbitrary point.
    """
    moved = [2 * (row.ranks - 1) / row.ranks * row.message / row.ring_rate for row in rows]
    best = max(bytes_ / row.seconds for bytes_, row in zip(moved, rows, strict=True))
    return {row.ranks for bytes_, row in zip(moved, rows, strict=True) if bytes_ / row.seconds < _HOPS_SHOW * best}


def _infinity_fabric(rows: list[Observation], found: dict[_Key, ProtocolFit]) -> list[ProtocolFit]:
    """Return the constants of Infinity Fabric from its two rows."""
    row, hop = rows[0], found[_DIRECT].protocol.hop
    constant = next(item for item in read_transfers("collectives.csv") if item["library"] == "rccl topology constant")
    share = float(constant["value"]) / 64.0
    moved = 2 * (row.ranks - 1) / row.ranks * row.message / (row.ring_rate * share)
    ring = Protocol(max(row.seconds - moved - 2 * (row.ranks - 1) * hop, 0.0), hop, share)
    note = f"two rows only: share of the line from {constant['source']}"
    borrowed = f"not measured: borrowed from {'/'.join(_SHOTS)}"
    return [
        ProtocolFit(row.key, ring, {}, 0.0, (row,), note=note),
        ProtocolFit(("xgmi", "one-shot", "direct"), found[_SHOTS].protocol, {}, float("nan"), (), note=borrowed),
    ]


#: folds of held-out rows, and the seed of their shuffle
_FOLDS, _SEED = 5, 20260320


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Prediction of one held-out row."""

    row: str
    group: str  # p2p, collapse, host-dma or all-reduce
    machine: str  # see `machine_of`
    key: tuple[str, str, str] | None  # protocol; None for transfers
    error: float | None  # predicted / measured - 1; None if only held-out rows show a needed constant


def machine_of(host: str) -> str:
    """Return the machine of a host name; different cablings are one machine.

    Examples
    --------
    >>> machine_of("wrx90-3-switches-8") == machine_of("wrx90-2-switches-8")
    True
    >>> machine_of("turin-2s-direct-8-tuned")
    'turin-2s-direct-8'
    """
    return "wrx90" if host.startswith("wrx90") else host.removesuffix("-tuned")


def predicted_transfer(transfer: Transfer, fits: LinkFits) -> BytesPerSecond:
    """Return the rate of a set of transfers, summed as in its row."""
    rates = flow_rates(transfer.host, transfer.flows, writes=not transfer.reads, fits=fits)
    # `finish`: the tool divides all bytes by the time of the slowest transfer
    totals: dict[str, Callable[[], float]] = {
        "sum": lambda: float(np.sum(rates)),
        "mean": lambda: float(np.mean(rates)),
        "finish": lambda: len(rates) * float(np.min(rates)),
    }
    return totals[transfer.row["total"]]()


def _deals(by: str) -> Iterator[tuple[Callable[[str], bool], Callable[[str], bool]]]:
    """Yield the held-out tests of each fold, for hosts and for rows."""
    transfers, observations = measured_transfers(), all_reduce_observations()
    if by == "machine":
        hosts = {transfer.host.name for transfer in transfers} | {row.host for row in observations}
        for machine in sorted({machine_of(host) for host in hosts}):
            yield lambda host, machine=machine: machine_of(host) == machine, lambda row: False  # type: ignore[misc]
        return
    rows = sorted({transfer.row["id"] for transfer in transfers} | {row.row for row in observations})
    order = np.random.default_rng(_SEED).permutation(len(rows))
    for fold in range(_FOLDS):
        held_out = {rows[index] for index in order[fold::_FOLDS]}
        yield lambda host: False, lambda row, held_out=held_out: row in held_out  # type: ignore[misc]


def held_out_errors(by: Literal["machine", "row"], *, doubtful_as: int | None = None) -> list[HeldOut]:
    """Return the errors of all rows, predicted by fits without them.

    Left out together are the rows of a machine, or a random fifth of all rows. Rows of doubtful group size are read as
    size `doubtful_as`, or skipped.
    """
    errors: list[HeldOut] = []
    doubtful = doubtful_observations(doubtful_as) if doubtful_as else ()
    transfers, observations = measured_transfers(), (*all_reduce_observations(), *doubtful)
    for host_held, row_held in _deals(by):

        def out(host: str, row: str, *, hosts=host_held, rows=row_held) -> bool:  # type: ignore[no-untyped-def]
            return bool(hosts(host) or rows(row))

        training = [one for one in transfers if not out(one.host.name, one.row["id"])]
        seen = [one for one in observations if not out(one.host, one.row)]
        scalars = {share.name: share.value for share in fit_shares(training)}
        fitted = {fit.key: fit for fit in fit_links(seen, training)}
        fits = LinkFits({key: fit.protocol for key, fit in fitted.items()}, scalars)
        errors += _transfers_held((one for one in transfers if out(one.host.name, one.row["id"])), fits)
        for row in (one for one in observations if out(one.host, one.row)):
            fit = fitted.get(fitted_key(row))
            error = None
            if fit is not None:
                seconds = predicted_seconds([row], fit.protocol, shares=scalars, inner=fit.inner)
                error = float(relative_error(seconds[0], row.seconds))
            errors.append(HeldOut(row.row, "all-reduce", machine_of(row.host), fitted_key(row), error))
    return errors


def _transfers_held(transfers: Iterable[Transfer], fits: LinkFits) -> Iterator[HeldOut]:
    for one in transfers:
        try:
            error = float(relative_error(predicted_transfer(one, fits), one.measured))
        except KeyError:  # a share that no other row shows
            error = None
        yield HeldOut(one.row["id"], one.row["kind"], machine_of(one.host.name), None, error)


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
        # mostly one machine's rows: no test on another machine
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
    """Return the TOML text of all fitted link constants.

    Examples
    --------
    >>> link_record().count("[[scalar]]")
    11
    """
    held_out = held_out_errors("machine")
    protocols = (_protocol(fit, held_out) for fit in fit_links())
    return "\n".join([_HEAD, *protocols, *map(_share, fit_shares())])


def write_link_fits(file: str | Path | None = None) -> Path:
    """Fit and write all link constants and return the path.

    Examples
    --------
    >>> import tempfile
    >>> write_link_fits(Path(tempfile.mkdtemp()) / "links.toml").name
    'links.toml'
    """
    path = Path(file) if file else data_folder("calibration") / "fits" / "links.toml"
    write_atomically(path, link_record())
    return path
