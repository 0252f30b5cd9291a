"""The largest load that machines carry as surely as a buyer asks, and what is expected of those that do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from glmplan.plan.safe_loads import kept_of, safe_of
from glmplan.plan.service import Described
from glmplan.serving.load_tries import Tries
from glmplan.serving.safe_load import Kept, kept_share
from glmplan.serving.traffic.promises import Target
from glmplan.serving.traffic.spec import Traffic

__all__ = ["carried_by", "judged_by"]

#: the probability with which `glmplan.safe` answers [-]
_SAFE = 0.95
#: how near a rate is found, and the smallest that is looked at over the largest [-]
_NEAR, _LEAST = 1.01, 1e-3


def carried_by(
    described: Described,
    traffic: Traffic,
    targets: Sequence[Target],
    *,
    most: float,
    probability: float,
    start: float | None = None,
) -> tuple[float, str, bool]:
    """Find the largest load of one machine that keeps a promise with a probability.

    Parameters
    ----------
    described : Described
        The machine, with its plan.
    traffic : Traffic
        What arrives; its number of users or rate is what is varied.
    targets : sequence of Target
        The promise.
    most : float
        Largest load to look at, [-] or [1/s]
    probability : float
        How surely it is kept, [-]
    start : float, optional
        Load that is kept as surely, from which on it is looked for, [-] or [1/s]

    Returns
    -------
    tuple of (float, str, bool)
        The load [-] or [1/s], what breaks beyond it, and whether more than `most` may be carried.

    Notes
    -----
    With 95 % it is what `glmplan.safe` says. With another probability the span is halved until loads lie within 1 %,
    or next to each other; a larger load is taken to be kept less surely.
    """
    if probability == _SAFE:
        found = safe_of(described, traffic, targets, most=most, begun=Tries(start=start))
        return found.load, found.breaks_first, not found.breaks_first
    whole = traffic.users is not None
    low, high = start or 0.0, float(int(most)) if whole else most
    broken = _broken(described, traffic, targets, high, probability)
    if broken is None:
        return high, "", True
    while high - low > 1 if whole else high > max(_NEAR * low, _LEAST * most):
        load = (low + high) // 2 if whole else (low + high) / 2
        fails = _broken(described, traffic, targets, load, probability)
        if fails is None:
            low = load
        else:
            high, broken = load, fails
    return low, broken, False


def _broken(
    described: Described, traffic: Traffic, targets: Sequence[Target], load: float, probability: float
) -> str | None:
    """What breaks under a load; None where the promise is kept as surely as asked."""
    found = kept_of(described, traffic.at_load(load), targets, least=probability)
    return None if found.probability >= probability else found.broken


def judged_by(described: Described, traffic: Traffic, targets: Sequence[Target]) -> Kept:
    """How surely a machine keeps a promise, and what is expected of each target.

    Parameters
    ----------
    described : Described
        The machine, with its plan.
    traffic : Traffic
        What arrives.
    targets : sequence of Target
        The promise.

    Returns
    -------
    Kept
        As `glmplan.kept` says it, always with the statistics of a run: sums tell nothing of percentiles.
    """
    sure = kept_of(described, traffic, targets)
    if "requests" in sure.summary:
        return sure
    return replace(sure, summary=kept_share(described.service, traffic, tuple(targets), factors=(1.0,)).summary)
