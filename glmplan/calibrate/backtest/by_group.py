"""Errors with one vote for each group: a group of a thousand rows is one configuration that somebody measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["FAR", "GroupBias", "GroupsScore", "group_biases", "groups_score"]

#: a group that is off by more is badly predicted [-]
FAR = 0.30


@dataclass(frozen=True, slots=True)
class GroupBias:
    """How far off one group is.

    Attributes
    ----------
    group : str
        Engine, part, model shape and bits of the format.
    rows : int
        Its figures, [-]
    bias : float
        Median of predicted over measured, less one, [-]
    coverage : float
        Share of its figures inside of the 90 % interval; NaN where there was none, [-]
    """

    group: str
    rows: int
    bias: float
    coverage: float


@dataclass(frozen=True, slots=True)
class GroupsScore:
    """Groups, each counted once.

    Attributes
    ----------
    groups, rows : int
        How many, [-]
    median, p75, p90 : float
        Quantiles of the absolute bias of a group, [-]
    far : float
        Share of groups off by more than `FAR`, [-]
    coverage : float
        Mean coverage of a group, [-]
    """

    groups: int
    rows: int
    median: float
    p75: float
    p90: float
    far: float
    coverage: float


def group_biases(predicted: np.ndarray, inside: np.ndarray, group: np.ndarray) -> tuple[GroupBias, ...]:
    """Bias and coverage of each group.

    Parameters
    ----------
    predicted : (n,) array
        Logarithm of predicted over measured, NaN of what was not predicted, [-]
    inside : (n,) array of bool
        Whether the measured lies in its interval.
    group : (n,) array of str
        Its group.

    Returns
    -------
    tuple of GroupBias
        The least covered first, among those alike the farthest off.

    Examples
    --------
    >>> logs, inside = np.log([1.2, 1.2, 0.9]), np.array([False, True, True])
    >>> [(one.group, round(one.bias, 2), one.coverage) for one in group_biases(logs, inside, np.array(["a", "a", "b"]))]
    [('a', 0.2, 0.5), ('b', -0.1, 1.0)]
    """
    found = []
    there = ~np.isnan(predicted)
    for name in np.unique(group[there]):
        mine = there & (group == name)
        bias = float(np.expm1(np.median(predicted[mine])))
        found.append(GroupBias(str(name), int(mine.sum()), bias, float(inside[mine].mean())))
    return tuple(sorted(found, key=lambda one: (one.coverage, -abs(one.bias))))


def groups_score(found: tuple[GroupBias, ...]) -> GroupsScore:
    """Summarise groups, each once.

    Parameters
    ----------
    found : tuple of GroupBias
        The groups.

    Returns
    -------
    GroupsScore
        NaN where there are none.

    Examples
    --------
    >>> groups_score((GroupBias("a", 9, 0.4, 0.5), GroupBias("b", 1, -0.1, 1.0))).far
    0.5
    """
    if not found:
        nan = float("nan")
        return GroupsScore(0, 0, nan, nan, nan, nan, nan)
    size = np.abs([one.bias for one in found])
    median, p75, p90 = (float(np.quantile(size, share)) for share in (0.5, 0.75, 0.9))
    coverage = float(np.mean([one.coverage for one in found]))
    return GroupsScore(
        len(found), sum(one.rows for one in found), median, p75, p90, float((size > FAR).mean()), coverage
    )
