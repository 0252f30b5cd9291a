"""Scores beyond cross-validation: runs measured after all that a fit had seen, by how long after, and refused runs."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.backtest.scores import GROUPS, Score, score
from glmplan.calibrate.step.beyond import LATER, REFUSED, Beyond
from glmplan.readers.runs.figures import COMPARED
from glmplan.readers.runs.ledger import day_of
from glmplan.readers.runs.record import Run

__all__ = ["ALL", "LaterScore", "later_scores", "refused_scores", "signed"]

#: months after the last day that the fit had seen: upper ends, [month]
_MONTHS = (1, 3, 6)
_BANDS = ("to 1 month", "2 to 3 months", "4 to 6 months", "more than 6 months")
#: all reasons together
ALL = "all"


@dataclass(frozen=True, slots=True)
class LaterScore:
    """Errors on runs so long after all that a fit had seen.

    Attributes
    ----------
    until : str
        Last day that the fit had seen.
    months : str
        How long after it the runs were measured.
    figure : str
        One of `glmplan.calibrate.backtest.scores.GROUPS`.
    score : Score
        Errors; their bias is the drift.
    """

    until: str
    months: str
    figure: str
    score: Score


def signed(one: Beyond) -> float:
    """Logarithm of predicted over measured in the unit of the figure.

    Parameters
    ----------
    one : Beyond
        An error, which is of seconds.

    Returns
    -------
    float
        [-]

    Examples
    --------
    >>> signed(Beyond(LATER, "a", "tpot_mean_ms", 0.1, "pair", "2026-03-01"))
    -0.1
    """
    return one.error if COMPARED[one.figure].rate else -one.error


def _months(first: str, last: str) -> int:
    """Months from one day to a later one, [month]"""
    pairs = [[int(part) for part in day.split("-")[:2]] for day in (first, last)]
    return 12 * (pairs[1][0] - pairs[0][0]) + pairs[1][1] - pairs[0][1]


def later_scores(beyond: Sequence[Beyond], runs: Iterable[Run]) -> tuple[LaterScore, ...]:
    """Score later runs by the day that the fit ends and by how long after it they were measured.

    Parameters
    ----------
    beyond : sequence of Beyond
        Errors.
    runs : iterable of Run
        The runs, for their days.

    Returns
    -------
    tuple of LaterScore
        Those with any run.
    """
    day = {run.id: day_of(run) for run in runs}
    found: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for one in beyond:
        if one.way == LATER and day.get(one.run):
            band = bisect_left(_MONTHS, _months(one.note, day[one.run]))
            found[one.note, COMPARED[one.figure].group, band].append(signed(one))
    order = sorted(found, key=lambda key: (key[0], GROUPS.index(key[1]), key[2]))
    return tuple(LaterScore(key[0], _BANDS[key[2]], key[1], score(np.array(found[key]))) for key in order)


def refused_scores(beyond: Sequence[Beyond]) -> tuple[tuple[str, str, Score], ...]:
    """Score runs that no fit takes, by why.

    Parameters
    ----------
    beyond : sequence of Beyond
        Errors.

    Returns
    -------
    tuple of (str, str, Score)
        Reason, figure and errors; all reasons together first, then the commonest.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for one in beyond:
        if one.way == REFUSED:
            for reason in (ALL, _why(one.note)):
                found[reason, COMPARED[one.figure].group].append(signed(one))
    size = Counter({reason: sum(len(found[key]) for key in found if key[0] == reason) for reason, _ in found})
    order = sorted(found, key=lambda key: (-size[key[0]], key[0] != ALL, key[0], GROUPS.index(key[1])))
    return tuple((*key, score(np.array(found[key]))) for key in order)


def _why(note: str) -> str:
    """A reason without what it says of one row."""
    if "faster than the" in note:
        return "faster than the part can be, or in a table of which a third is"
    return note.partition(":")[0].partition(";")[0]
