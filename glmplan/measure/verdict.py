"""Measured beside predicted: how far apart, and whether that is reproduced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import comb, hypot, inf, log

from glmplan.measure.ladder import StepResult
from glmplan.prediction.comparison import REPRODUCED, relative_error, verdict_of
from glmplan.units import QUANTILE_90

__all__ = [
    "METRICS",
    "Compared",
    "PredictedStep",
    "by_chance",
    "compare",
    "consistent",
    "worst",
]

#: The figures of a ladder that are compared, by their column.
METRICS = ("ttft_mean_ms", "tpot_mean_ms", "output_tokens_per_s")
#: share of figures that 90 % intervals miss [-]; chance below which so many misses are no chance any more [-]
_MISSED, _BY_CHANCE = 0.1, 0.05
#: half widths of an interval beyond which no figure lies by chance: 3.3 standard deviations [-]
_FAR = 2.0


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """What is predicted for one step.

    Parameters
    ----------
    level : float
        Users [-] or rate [1/s]
    middle, low, high : dict
        Figures and their interval, in the units of their names.
    """

    level: float
    middle: Mapping[str, float]
    low: Mapping[str, float] = field(default_factory=dict)
    high: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of one step.

    Parameters
    ----------
    level : float
        Users [-] or rate [1/s]
    metric : str
        Name of the figure, unit included.
    measured, predicted : float
        The two values.
    low, high : float or None
        Predicted interval.
    error : float
        Standard error of the measured value, in its unit [-]
    """

    level: float
    metric: str
    measured: float
    predicted: float
    low: float | None = None
    high: float | None = None
    error: float = 0.0

    @property
    def difference(self) -> float:
        """Predicted over measured, less one, [-]"""
        return float(relative_error(self.predicted, self.measured))

    @property
    def verdict(self) -> str:
        """Whether the figure was reproduced."""
        return verdict_of(self.difference)

    @property
    def inside(self) -> bool:
        """Whether the measured value lies in the predicted interval, widened by its own error; without an interval,
        whether it was reproduced."""
        return self.distance <= 1.0

    @property
    def distance(self) -> float:
        """How far the measured value lies from the predicted one: 1 at the end of the interval, which prediction and
        measurement widen together; without an interval 1 is the end of `reproduced`, [-]"""
        apart = log(self.measured / self.predicted)
        end = self.high if apart > 0 else self.low
        if end is None:
            return abs(self.difference) / REPRODUCED
        half = hypot(log(end / self.predicted), QUANTILE_90 * self.error / self.measured)
        return abs(apart) / half if half else inf if apart else 0.0


def compare(steps: Sequence[StepResult], predicted: Sequence[PredictedStep]) -> list[Compared]:
    """Compare measured steps with predicted ones.

    Parameters
    ----------
    steps : sequence of StepResult
        Measured; steps without a figure are left out.
    predicted : sequence of PredictedStep
        Predicted, matched by level.

    Returns
    -------
    list of Compared
        One for each figure that both sides have, in the order of the steps.
    """
    by_level = {step.level: step for step in predicted}
    found = []
    for step in steps:
        other = by_level.get(step.level)
        for metric in METRICS if other is not None else ():
            measured = step.figures.get(metric)
            assert other is not None
            if measured and metric in other.middle:
                interval = (other.low.get(metric), other.high.get(metric))
                error = step.errors.get(metric, 0.0)
                found.append(Compared(step.level, metric, measured, other.middle[metric], *interval, error))
    return found


def worst(compared: Sequence[Compared]) -> float:
    """Return the largest relative difference.

    Parameters
    ----------
    compared : sequence of Compared
        Figures.

    Returns
    -------
    float
        Its absolute value, [-]; zero without figures.
    """
    return max((abs(one.difference) for one in compared), default=0.0)


def by_chance(figures: int) -> int:
    """Return how many figures may lie outside 90 % intervals that are right.

    Parameters
    ----------
    figures : int
        Figures compared, [-]

    Returns
    -------
    int
        The largest number that chance exceeds in less than one of twenty comparisons, [-]

    Examples
    --------
    >>> [by_chance(n) for n in (1, 3, 6, 18)]
    [1, 1, 2, 4]
    """
    left, outside = 1.0, -1
    while left > _BY_CHANCE:
        outside += 1
        left -= comb(figures, outside) * _MISSED**outside * (1 - _MISSED) ** (figures - outside)
    return outside


def consistent(compared: Sequence[Compared]) -> bool:
    """Tell whether predictions and their intervals stand up to what was measured.

    Of many figures one in ten lies outside a right 90 % interval, so one outside is no error yet; more than `by_chance`
    are, and so is a single one at twice the distance.

    Parameters
    ----------
    compared : sequence of Compared
        Figures.

    Returns
    -------
    bool
        False also where there is nothing to compare.

    Examples
    --------
    >>> near, out, far = (Compared(1, "tpot_mean_ms", x, 10.0, 9.0, 11.0) for x in (10.5, 11.5, 13.0))
    >>> consistent([near, near, out]), consistent([near, out, out]), consistent([near, near, far]), consistent([])
    (True, False, False, False)
    """
    outside = sum(not one.inside for one in compared)
    return bool(compared) and outside <= by_chance(len(compared)) and all(one.distance <= _FAR for one in compared)
