"""Scores of whole distributions on left-out runs.

Winkler score, CRPS, coverage and width, beside a constant interval.

All scores are of logarithms, so that a factor of two costs the same on either side; each group has one vote in each way
of leaving out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.step.intervals import vote
from glmplan.prediction.distribution import PROBABILITIES
from glmplan.units import Ratio

__all__ = ["CLASSES", "Sharpness", "constant_ratio", "crps", "sharpness_of", "winkler"]

#: share of outcomes outside of the interval [-]
_OUTSIDE = 0.10
#: probabilities at which the quantile score is averaged [-]
_SHARES = np.linspace(0.005, 0.995, 100)
#: class of evidence → the way of leaving out and the levels of its errors
CLASSES: dict[str, tuple[str, tuple[str, ...]]] = {
    "another load of a sweep": ("random", ("sweep",)),
    "another layout of a campaign": ("layout", ("layout",)),
    "measured elsewhere": ("campaign", ("configuration", "group")),
    "pair": ("group", ("pair",)),
    "new format": ("group", ("format",)),
    "new model": ("model", ("accelerator",)),
    "new accelerator": ("accelerator", ("model",)),
}


def winkler(residual: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the Winkler score of 90 % intervals.

    It is the width, plus twenty times the distance of the values outside.

    References
    ----------
    .. [1] R. L. Winkler, "A Decision-Theoretic Approach to Interval Estimation", JASA 67 (1972).

    Examples
    --------
    >>> winkler(np.array([0.0, 0.3]), np.array([-0.1, -0.1]), np.array([0.2, 0.2])).round(2).tolist()
    [0.3, 2.3]
    """
    missed = np.maximum(low - residual, 0.0) + np.maximum(residual - high, 0.0)
    result: np.ndarray = (high - low) + 2.0 / _OUTSIDE * missed
    return result


def crps(residual: np.ndarray, low: np.ndarray, high: np.ndarray, tail: np.ndarray) -> np.ndarray:
    """Return the CRPS of distributions given by their quantiles.

    Twice the mean quantile score over a hundred probabilities. `tail`: (n, 8), quantiles over the ends.

    References
    ----------
    .. [1] T. Gneiting, A. E. Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 102 (2007).

    Examples
    --------
    >>> from glmplan.prediction.distribution import NORMAL
    >>> ends = np.array([-1.645]), np.array([1.645]), np.array([NORMAL])
    >>> crps(np.array([0.0]), *ends).round(2).tolist()  # a standard normal distribution, at its median: 0.234
    [0.23]
    """
    half = len(PROBABILITIES) // 2
    ends = np.concatenate([np.repeat(low[:, None], half, axis=1), np.repeat(high[:, None], half, axis=1)], axis=1)
    shares = np.insert(np.array(PROBABILITIES), half, 0.5)
    # linear in probability between those of the table
    between = np.stack([np.interp(_SHARES, shares, unit) for unit in np.eye(len(shares))])
    apart = residual[:, None] - np.insert(ends * tail, half, 0.0, axis=1) @ between
    result: np.ndarray = 2.0 * np.maximum(_SHARES * apart, (_SHARES - 1.0) * apart).mean(axis=1)
    return result


@dataclass(frozen=True, slots=True)
class Sharpness:
    """Scores of the distributions of one class."""

    name: str  # a key of CLASSES, or ``all``
    kind: str  # ``decode``, ``ttft`` or ``prefill``
    stated: bool | None  # True: all settings stated; None: both
    groups: int
    rows: int
    winkler: float
    crps: float
    inner: float  # share of votes inside the 50 % interval
    coverage: float  # share of votes inside the 90 % interval
    ratio: float  # median of upper over lower bound
    constant: float  # the same of the narrowest interval of one width that holds 90 % of the votes


def constant_ratio(residual: np.ndarray, weight: np.ndarray) -> Ratio:
    """Return high over low of the narrowest interval with 90 % of the votes.

    Examples
    --------
    >>> round(constant_ratio(np.log([1.0, 1.1, 1.2, 9.0]), np.array([1.0, 1.0, 1.0, 0.1])), 2)
    1.2
    """
    order = np.argsort(residual, kind="stable")
    values, votes = residual[order], np.concatenate([[0.0], np.cumsum(weight[order])])
    wanted = (1.0 - _OUTSIDE) * votes[-1]
    ends = np.searchsorted(votes[1:], votes[:-1] + wanted - 1e-9)
    there = ends < len(values)
    return float(np.exp((values[ends[there]] - values[there]).min()))


def _median(values: np.ndarray, weight: np.ndarray) -> float:
    order = np.argsort(values, kind="stable")
    votes = np.cumsum(weight[order])
    return float(values[order][np.searchsorted(votes, votes[-1] / 2.0)])


def sharpness_of(
    named: tuple[str, str, bool | None],
    residual: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray, np.ndarray],
    group: np.ndarray,
    credit: np.ndarray,
) -> Sharpness:
    """Return the scores of errors; `ends` are low, high and tails."""
    low, high, tail = ends
    weight = vote(group, credit)
    share = weight / weight.sum()
    half = len(PROBABILITIES) // 2
    place = PROBABILITIES.index(0.25), PROBABILITIES.index(0.75)
    assert place == (half - 1, half)
    within = (residual >= low * tail[:, place[0]]) & (residual <= high * tail[:, place[1]])
    inside = (residual >= low) & (residual <= high)
    return Sharpness(
        *named,
        groups=len(np.unique(group)),
        rows=len(residual),
        winkler=float(share @ winkler(residual, low, high)),
        crps=float(share @ crps(residual, low, high, tail)),
        inner=float(share @ within),
        coverage=float(share @ inside),
        ratio=float(np.exp(_median(high - low, weight))),
        constant=constant_ratio(residual, weight),
    )
