"""The distribution of a prediction error.

It has a location, a scale on each side, and a tail.

The ends of the 90 % interval give the scale of each side. The tail is the quantiles of left-out errors over these ends,
for each kind of metric: one table for all evidence levels, because their errors over their ends have one shape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from glmplan.units import Ratio

__all__ = ["INNER", "NORMAL", "PROBABILITIES", "log_quantile"]

#: probabilities of the table; the ends of the interval are those of 5 and 95 % [-]
PROBABILITIES: tuple[float, ...] = (0.01, 0.05, 0.1, 0.25, 0.75, 0.9, 0.95, 0.99)
#: the same table of a normal distribution, for fits without a tail [-]
NORMAL: tuple[float, ...] = (1.414, 1.0, 0.779, 0.41, 0.41, 0.779, 1.0, 1.414)
#: probabilities of the inner interval, which holds half of the outcomes [-]
INNER: tuple[float, float] = (0.25, 0.75)


def log_quantile(share: Ratio, ends: tuple[Ratio, Ratio], tail: Sequence[Ratio] = NORMAL) -> Ratio:
    """Return the log distance from the prediction to a quantile.

    `ends`: log distance to the lower and the upper end of the 90 % interval. Linear between the probabilities of the
    table, in probability; 0 at the median; constant beyond 1 and 99 %, where errors say nothing.

    Examples
    --------
    >>> [round(log_quantile(share, (-0.2, 0.4)), 3) for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
    [-0.2, -0.082, 0.0, 0.164, 0.4]
    """
    low, high = ends
    lower = [low * ratio for ratio in tail[:4]]
    upper = [high * ratio for ratio in tail[4:]]
    places = (*PROBABILITIES[:4], 0.5, *PROBABILITIES[4:])
    values = (*lower, 0.0, *upper)
    if share <= places[0] or share >= places[-1]:
        return values[0] if share <= places[0] else values[-1]
    after = bisect_left(places, share)
    before = after - 1
    part = (share - places[before]) / (places[after] - places[before])
    return values[before] + part * (values[after] - values[before])
