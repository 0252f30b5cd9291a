"""Predict measured transfers and all-reduces by fits that have not seen them: machines left out, rows left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glmplan.calibrate.links.fit import fit_links, fitted_key, predicted_seconds
from glmplan.calibrate.links.observations import all_reduce_observations, doubtful_observations
from glmplan.calibrate.links.shares import Transfer, fit_shares, measured_transfers
from glmplan.physics.network.links import LinkFits
from glmplan.physics.network.topology import flow_rates
from glmplan.prediction.comparison import relative_error

__all__ = ["HeldOut", "held_out_errors", "machine_of", "predicted_transfer"]

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

    Parameters
    ----------
    host : str
        Name of a host.

    Returns
    -------
    str
        Name of the machine.

    Examples
    --------
    >>> machine_of("wrx90-3-switches-8") == machine_of("wrx90-2-switches-8")
    True
    >>> machine_of("turin-2s-direct-8-tuned")
    'turin-2s-direct-8'
    """
    return "wrx90" if host.startswith("wrx90") else host.removesuffix("-tuned")


def predicted_transfer(transfer: Transfer, fits: LinkFits) -> float:
    """Return what a set of transfers reaches, added up as its row does.

    Parameters
    ----------
    transfer : Transfer
        The transfers.
    fits : LinkFits
        Fitted shares.

    Returns
    -------
    float
        [B/s]
    """
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

    Parameters
    ----------
    by : {'machine', 'row'}
        What is left out together: all rows of a machine, or a fifth of all rows, dealt at random.
    doubtful_as : int, optional
        Group size to read the rows as whose size is in doubt; without it they are kept out, [-]

    Returns
    -------
    list of HeldOut
        One for each transfer and all-reduce that the model predicts.
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
