"""The distribution of a prediction error.

It has a location, a scale on each side, and a tail.

The ends of the 90 % interval give the scale of each side. The tail is the quantiles of left-out errors over these ends,
for each kind of metric: one table for all evidence levels, because their errors over their ends have one shape.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from glmplan.errors import SpecError
from glmplan.units import QUANTILE_90, Ratio, finite_number

__all__ = [
    "EXPECTED", "INNER", "NORMAL", "PLACES", "PROBABILITIES", "SHOWN", "SURE", "Spread", "linear_quantile",
    "log_quantile", "middles", "probability_asked", "quantile_table", "share_below", "standard",
]  # fmt: skip

#: probabilities of the table; the ends of the interval are those of 5 and 95 % [-]
PROBABILITIES: tuple[float, ...] = (0.01, 0.05, 0.1, 0.25, 0.75, 0.9, 0.95, 0.99)
#: the same table of a normal distribution, for fits without a tail [-]
NORMAL: tuple[float, ...] = (1.414, 1.0, 0.779, 0.41, 0.41, 0.779, 1.0, 1.414)
#: probabilities of the inner interval, which holds half of the outcomes [-]
INNER: tuple[float, float] = (0.25, 0.75)
#: probability of meeting an SLO that is asked for by default, and the one at which nothing is added for ignorance [-]
SURE, EXPECTED = 0.95, 0.5
#: probabilities of meeting an SLO at which every answer gives its load, falling [-]
SHOWN: tuple[float, ...] = (SURE, 0.8, EXPECTED)
_STANDARD = NormalDist()
#: probabilities of the table with the median, in standard deviations
PLACES = (*(_STANDARD.inv_cdf(one) for one in PROBABILITIES[:4]), 0.0,
          *(_STANDARD.inv_cdf(one) for one in PROBABILITIES[4:]))  # fmt: skip


def standard(share: Ratio) -> float:
    """Return a probability as standard deviations of a normal distribution.

    Examples
    --------
    >>> round(standard(0.95), 3), standard(0.5)
    (1.645, 0.0)
    """
    return _STANDARD.inv_cdf(share)


def probability_asked(given: object, field: str = "--probability") -> Ratio:
    """Read a probability of meeting an SLO, from above 0 to 0.99.

    Errors say nothing beyond 99 %: a larger probability is refused.

    Examples
    --------
    >>> probability_asked("0.8"), probability_asked(None)
    (0.8, 0.95)
    """
    if given is None:
        return SURE
    found = finite_number(given, field)
    if not 0.0 < found <= PROBABILITIES[-1]:
        raise SpecError(f"must be above 0 and at most {PROBABILITIES[-1]:g}", field=field, value=given)
    return found


def quantile_table(tail: Sequence[Ratio], ends: tuple[Ratio, Ratio] = (-1.0, 1.0)) -> list[float]:
    """Return the log distances at `PLACES`, by default over those of the ends."""
    low, high = ends
    return [*(low * ratio for ratio in tail[:4]), 0.0, *(high * ratio for ratio in tail[4:])]


def log_quantile(share: Ratio, ends: tuple[Ratio, Ratio], tail: Sequence[Ratio] = NORMAL) -> Ratio:
    """Return the log distance from the prediction to a quantile.

    `ends`: log distance to the lower and the upper end of the 90 % interval. Between the probabilities of the table
    linear in standard deviations, as a normal distribution is; 0 at the median; constant beyond 1 and 99 %, where
    errors say nothing.

    Examples
    --------
    >>> [round(log_quantile(share, (-0.2, 0.4)), 3) for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
    [-0.2, -0.082, 0.0, 0.164, 0.4]
    """
    values = quantile_table(tail, ends)
    if share <= PROBABILITIES[0] or share >= PROBABILITIES[-1]:
        return values[0] if share <= PROBABILITIES[0] else values[-1]
    place = standard(share)
    after = bisect_left(PLACES, place)
    before = after - 1
    part = (place - PLACES[before]) / (PLACES[after] - PLACES[before])
    return values[before] + part * (values[after] - values[before])


def share_below(distance: Ratio, ends: tuple[Ratio, Ratio], tail: Sequence[Ratio] = NORMAL) -> Ratio:
    """Return the probability up to a log distance, inverse to `log_quantile`.

    All outcomes lie between the quantiles of 1 and 99 %, where the table ends.

    Examples
    --------
    >>> [round(share_below(distance, (-0.2, 0.4)), 3) for distance in (-0.2, 0.0, 0.164, 0.4, 0.9)]
    [0.05, 0.5, 0.75, 0.95, 1.0]
    """
    values = quantile_table(tail, ends)
    if distance < values[0] or distance >= values[-1]:
        return float(distance >= values[-1])
    after = bisect_right(values, distance)
    before = after - 1
    part = (distance - values[before]) / (values[after] - values[before])
    # the probabilities of the table are met to the last digit
    return round(_STANDARD.cdf(PLACES[before] + part * (PLACES[after] - PLACES[before])), 12)


@dataclass(frozen=True, slots=True)
class Spread:
    """Predictive distribution of a quantity, relative to its prediction."""

    #: `low`, `high`: 90 % interval over the prediction, [-]
    low: Ratio = 1.0
    high: Ratio = 1.0
    tail: tuple[Ratio, ...] = NORMAL  # quantiles over the ends, [-]

    def quantile(self, share: Ratio) -> Ratio:
        """Return the ratio that this share of outcomes is below.

        Examples
        --------
        >>> [round(Spread(0.5, 1.25).quantile(share), 3) for share in (0.05, 0.5, 0.95)]
        [0.5, 1.0, 1.25]
        """
        return math.exp(log_quantile(share, (math.log(self.low), math.log(self.high)), self.tail))

    def quantiles(self, shares: Sequence[Ratio]) -> tuple[Ratio, ...]:
        """Return the ratios of several shares."""
        return tuple(self.quantile(share) for share in shares)


def linear_quantile(share: Ratio, low: Ratio, high: Ratio) -> Ratio:
    """Return a relative quantile of a quantity with normal errors.

    `low`, `high`: 90 % interval over the prediction, as that of a KV pool.

    Examples
    --------
    >>> round(linear_quantile(0.05, 0.8, 1.1), 3), linear_quantile(0.5, 0.8, 1.1)
    (0.8, 1.0)
    """
    place = standard(share) / QUANTILE_90
    return max(1.0 + place * ((1.0 - low) if place < 0 else (high - 1.0)), 0.0)


def middles(count: int) -> tuple[Ratio, ...]:
    """Return the middles of equal parts of a distribution, the largest first.

    Examples
    --------
    >>> middles(4)
    (0.875, 0.625, 0.375, 0.125)
    """
    return tuple(1.0 - (place + 0.5) / count for place in range(count))
