"""Fit the constants of links: launch, hop and efficiency of each way to run a collective.

The fit is small and deterministic: robust least squares on the logarithm of time, from a fixed start. It reads the two
ledgers of measured transfers and writes `calibration/fits/links.toml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from glmplan.calibrate.links.ledger import read_transfers
from glmplan.calibrate.links.observations import Observation, all_reduce_observations
from glmplan.calibrate.links.shares import Transfer, fit_shares
from glmplan.physics.network.collectives import Algorithm, LinkClass, Protocol, all_reduce_time
from glmplan.physics.network.crowding import crowding
from glmplan.physics.network.links import across_nodes
from glmplan.prediction.comparison import relative_error

__all__ = ["ProtocolFit", "fit_links", "fit_protocol", "fitted_key", "predicted_seconds"]

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

    Parameters
    ----------
    rows : sequence of Observation
        Measurements of one protocol.
    protocol : Protocol
        Its constants.
    shares : mapping, optional
        Fitted shares of links, for crowding on PCIe; without them cards keep all of their links, [-]
    inner : Protocol, optional
        Constants of the steps inside a machine, for groups that span machines.

    Returns
    -------
    ndarray
        Shape (n,), [s]. NVLink kernels take one step or two, whichever is faster.

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

    Parameters
    ----------
    rows : iterable of Observation
        Measurements of one protocol.
    two_speeds : bool, optional
        Whether NCCL's protocols LL and Simple are told apart, with a hop each.
    fixed : mapping, optional
        Constants that these rows do not show, from others: `launch`, `hop`, `bulk_hop`, [s]
    shares, inner : optional
        As in `predicted_seconds`.

    Returns
    -------
    ProtocolFit
        Constants, standard errors and the median relative error.

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

    Parameters
    ----------
    row : Observation
        A measured all-reduce.

    Returns
    -------
    tuple of str
        Link kind, algorithm and condition.

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

    Parameters
    ----------
    observations : iterable of Observation, optional
        Measured all-reduces; by default those of the ledgers.
    transfers : sequence of Transfer, optional
        Measured transfers, for crowding; by default those of the ledgers.

    Returns
    -------
    list of ProtocolFit
        In the order of their names. NVLink one-shot kernels are fitted together and for each line rate alone, because
        generations differ in launch time. Infinity Fabric has two rows only: one gives the share of its line, the
        other the launch time, and its one-shot kernels borrow NVLink's constants.

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
