"""Goodput over load, its knee and the safe rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from glmplan.errors import SpecError
from glmplan.units import PerSecond, Ratio, finite_number

__all__ = ["GoodputCurve", "GoodputPoint", "goodput_curve", "swept_rates"]

#: rates of a sweep without their number, and at most [-]
_POINTS, _MOST = 10, 200
#: share of services that a safe rate has to satisfy [-]
_SAFE = 0.95
#: share of further requests that still meet the SLO at the knee [-]
_MARGINAL = 0.5


@dataclass(frozen=True, slots=True)
class GoodputPoint:
    """One load."""

    rate: float  # requests that arrive, [1/s]
    #: `goodput`, `low`, `high`: requests that meet every target of the SLO: median, 5 % and 95 % quantile, [1/s]
    goodput: float
    low: float
    high: float
    attainment: float  # share of requests that meet every target, median, [-]
    kept: float  # probability that every target is met, as `safe` understands it, [-]


@dataclass(frozen=True, slots=True)
class GoodputCurve:
    """Goodput at several loads."""

    points: tuple[GoodputPoint, ...]  # the loads, rising
    knee: float  # largest rate up to which at least half of the further requests meet the SLO, [1/s]
    safe: float  # largest rate of the sweep up to which the SLO is met with 95 % probability; 0 if at none, [1/s]
    interrupted: bool = False  # True if Ctrl-C ended the sweep before its last rate


def swept_rates(text: str) -> tuple[float, ...]:
    """Read the rates of a sweep: `LOW:HIGH`, `LOW:HIGH:POINTS` or a list.

    Examples
    --------
    >>> swept_rates("1:3:5"), swept_rates("0.5, 2")
    ((1.0, 1.5, 2.0, 2.5, 3.0), (0.5, 2.0))
    """
    field = "--sweep-rate"
    if ":" not in text:
        rates = [finite_number(part, field) for part in text.split(",")]
    else:
        low, high, *more = [finite_number(part, field) for part in text.split(":")]
        points = float(more[0] if more else _POINTS)
        if len(more) > 1 or not points.is_integer() or not 2 <= points <= _MOST:
            raise SpecError(f"is LOW:HIGH:POINTS, with 2 to {_MOST} points", field=field, value=text)
        rates = np.linspace(low, high, int(points)).tolist()
    if min(rates) <= 0 or rates != sorted(set(rates)) or len(rates) > _MOST:
        raise SpecError("must be rising rates above zero, as in 1:20:8 or 1,2,5", field=field, value=text)
    return tuple(rates)


def goodput_curve(
    run: Callable[[PerSecond, Ratio, int], tuple[float, float, bool]],
    rates: Sequence[PerSecond],
    shares: Sequence[Ratio],
) -> GoodputCurve:
    """Return the goodput over load of equally probable services.

    - `run`: Takes a rate, a quantile of the uncertainty and a number for the arrivals; returns goodput, the share of
      requests that meet every target, and True if every target is met.
    - `shares`: Quantiles of equally probable services; each has arrivals of its own.

    Examples
    --------
    >>> def run(rate: float, share: float, which: int) -> tuple[float, float, bool]:
    ...     met = min(rate, 11 - 2 * share)
    ...     return met, met / rate, met == rate
    >>> curve = goodput_curve(run, (4.0, 8.0, 12.0, 16.0), (0.95, 0.5, 0.05))
    >>> curve.knee, curve.safe, round(curve.points[2].goodput, 2), round(curve.points[3].kept, 2)
    (12.0, 8.0, 10.0, 0.0)
    """
    points: list[GoodputPoint] = []
    for rate in rates:
        try:
            found = [run(rate, share, which) for which, share in enumerate(shares)]
        except KeyboardInterrupt:
            if not points:
                raise
            return GoodputCurve(tuple(points), _knee(points), _safe(points), interrupted=True)
        goodput, attainment, kept = (np.array(column, dtype=float) for column in zip(*found, strict=True))
        low, middle, high = np.percentile(goodput, (5, 50, 95)).tolist()
        points.append(GoodputPoint(rate, middle, low, high, float(np.median(attainment)), float(kept.mean())))
    return GoodputCurve(tuple(points), _knee(points), _safe(points))


def _knee(points: Sequence[GoodputPoint]) -> float:
    rate, goodput = 0.0, 0.0
    for point in points:
        if point.goodput - goodput < _MARGINAL * (point.rate - rate):
            break
        rate, goodput = point.rate, point.goodput
    return rate


def _safe(points: Sequence[GoodputPoint]) -> float:
    safe = 0.0
    for point in points:
        if point.kept < _SAFE:
            break
        safe = point.rate
    return safe
