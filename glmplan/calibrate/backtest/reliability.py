"""Stated probabilities of left-out runs against observed frequencies.

A plan states the probability that a metric keeps within an SLO. Here the distribution of each left-out prediction
states it for multiples of the prediction and for usual SLOs, and the measured value tells the outcome. In each bin of
stated probabilities each group has one vote, over all ways of leaving out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.step.intervals import vote
from glmplan.prediction.distribution import PROBABILITIES, standard
from glmplan.units import QUANTILE_90, Ratio

__all__ = ["EDGES", "MULTIPLES", "SLOS", "Bin", "Reliability", "reliability_of", "stated_of"]

#: thresholds over the predicted time [-]
MULTIPLES: tuple[float, ...] = (0.25, 0.5, 0.75, 0.9, 1.0, 1 / 0.9, 1 / 0.75, 2.0, 4.0)
#: metric of the report → usual SLOs of it [ms]
SLOS: dict[str, tuple[float, ...]] = {
    "TPOT": (10.0, 20.0, 33.3, 50.0, 100.0),
    "TTFT": (500.0, 1000.0, 2000.0, 5000.0, 10_000.0),
}
#: bounds of the bins of stated probabilities: a tenth wide around 10, 20, ... 90 %, and both ends [-]
EDGES: tuple[float, ...] = (0.0, 0.05, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.95, 1.0)


@dataclass(frozen=True, slots=True)
class Bin:
    """Outcomes of one bin of stated probabilities."""

    stated: Ratio  # mean over votes
    frequency: Ratio  # share of votes within the threshold
    chance: Ratio  # distance of the two that independent groups exceed in one of ten bins
    groups: int
    outcomes: int  # rows times thresholds


@dataclass(frozen=True, slots=True)
class Reliability:
    """Stated probabilities of one metric; lower scores are better."""

    name: str  # kind of interval, or metric and ``SLO``
    groups: int
    outcomes: int
    brier: float
    base: float  # Brier score of the observed frequency of each threshold, known only afterwards
    log_score: float  # mean of -log(probability of the outcome)
    distance: Ratio  # mean of |frequency - stated| over bins, weighted by groups
    bins: tuple[Bin, ...]


def stated_of(distance: np.ndarray, ends: tuple[np.ndarray, np.ndarray, np.ndarray]) -> np.ndarray:
    """Return the stated probabilities of thresholds, between 1 and 99 %.

    Errors say nothing beyond these two. `distance`: (rows, thresholds), log(threshold / prediction). `ends`: low, high
    and tails of each row.

    Examples
    --------
    >>> from glmplan.prediction.distribution import NORMAL
    >>> ends = np.array([-0.2]), np.array([0.4]), np.array([NORMAL])
    >>> stated_of(np.array([[-9.0, -0.2, 0.0, 0.4, 9.0]]), ends).round(2).tolist()
    [[0.01, 0.05, 0.5, 0.95, 0.99]]
    """
    from scipy.special import ndtr

    low, high, tail = ends
    half = len(PROBABILITIES) // 2
    scale = np.concatenate([np.repeat(low[:, None], half, axis=1), np.repeat(high[:, None], half, axis=1)], axis=1)
    table = np.insert(scale * tail, half, 0.0, axis=1)
    places = np.insert([standard(one) for one in PROBABILITIES], half, 0.0)
    found = np.empty(distance.shape)
    row = np.arange(len(distance))
    # as `glmplan.prediction.distribution.share_below`, for all rows together
    for column, apart in enumerate(distance.T):
        before = np.clip((table <= apart[:, None]).sum(axis=1) - 1, 0, len(places) - 2)
        first, last = table[row, before], table[row, before + 1]
        # equal quantiles are a step
        part = np.where(apart >= last, 1.0, np.clip((apart - first) / np.maximum(last - first, 1e-300), 0.0, 1.0))
        found[:, column] = ndtr(places[before] + part * (places[before + 1] - places[before]))
    return found


def reliability_of(
    name: str,
    residual: np.ndarray,
    distance: np.ndarray,
    ends: tuple[np.ndarray, np.ndarray, np.ndarray],
    votes: tuple[np.ndarray, np.ndarray],
) -> Reliability:
    """Return frequencies and scores; `votes` are group and credit of rows.

    `residual` is log(measured / predicted time); the outcome is that it is at most `distance`, see `stated_of`.

    References
    ----------
    .. [1] G. W. Brier, "Verification of Forecasts Expressed in Terms of Probability", Monthly Weather Review 78 (1950).

    Examples
    --------
    >>> from glmplan.prediction.distribution import NORMAL
    >>> ends = np.full(2, -0.2), np.full(2, 0.2), np.tile(NORMAL, (2, 1))
    >>> found = reliability_of("x", np.array([0.1, -0.1]), np.zeros((2, 1)), ends, (np.array(["a", "b"]), np.ones(2)))
    >>> found.brier, [(one.stated, one.frequency, one.groups) for one in found.bins]
    (0.25, [(0.5, 0.5, 2)])
    """
    stated = stated_of(distance, ends)
    outcome = (residual[:, None] <= distance).astype(float)
    row = np.repeat(np.arange(len(residual)), distance.shape[1])
    names, numbers = np.unique(votes[0], return_inverse=True)  # numbers sort faster than names
    group, credit = numbers[row], votes[1][row]
    flat, came = stated.ravel(), outcome.ravel()
    weight = vote(group, credit)
    share = weight / weight.sum()
    of_row = vote(numbers, votes[1])
    usual = np.broadcast_to(of_row @ outcome / of_row.sum(), outcome.shape).ravel()
    bins = []
    place = np.searchsorted(EDGES[1:-1], flat, side="right")
    for number in np.unique(place):
        mine = place == number
        bins.append(_bin(flat[mine], came[mine], group[mine], credit[mine]))
    counts = np.array([one.groups for one in bins], dtype=float)
    apart = np.array([abs(one.frequency - one.stated) for one in bins])
    return Reliability(
        name=name,
        groups=len(names),
        outcomes=len(flat),
        brier=float(share @ (flat - came) ** 2),
        base=float(share @ (usual - came) ** 2),
        log_score=float(-share @ np.log(np.where(came > 0.0, flat, 1.0 - flat))),
        distance=float(counts @ apart / counts.sum()),
        bins=tuple(bins),
    )


def _bin(stated: np.ndarray, came: np.ndarray, group: np.ndarray, credit: np.ndarray) -> Bin:
    """Return one bin, with one vote for each of its groups."""
    weight = vote(group, credit)
    share = weight / weight.sum()
    mean, groups = float(share @ stated), len(np.unique(group))
    chance = float(QUANTILE_90 * np.sqrt(mean * (1.0 - mean) / groups))
    return Bin(mean, float(share @ came), chance, groups, len(stated))
