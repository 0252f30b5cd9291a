"""When a promise is surely missed, though the run that judges it is not over."""

from __future__ import annotations

import math

import numpy as np

from glmplan.serving.traffic.promises import Target

__all__ = ["Missed", "Misses"]

#: share of a bound by which a time must be beyond it: more than roundings come to [-]
_SURELY = 1e-9


class Missed(Exception):
    """A promise is missed, whatever the rest of a run brings.

    Parameters
    ----------
    target : Target
        What of it.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(str(target))
        self.target = target


class Misses:
    """Counts requests that are beyond what is promised of them, until too many are.

    Parameters
    ----------
    targets : tuple of Target
        The promise; of means and of gaps between tokens nothing is told early.
    most : int
        Requests that are judged at most, [-]
    warmup : int
        Requests at the start that are not judged, [-]
    late : float, optional
        How many times later first tokens come than the records say, [-]

    Examples
    --------
    >>> watch = Misses((Target("e2e", "p90", 1.0),), most=20, warmup=0)
    >>> slow = {name: np.full(2, value) for name, value in
    ...         {"number": 1, "arrival": 0.0, "started": 0.0, "first": 1.0, "finish": 2.0, "output_tokens": 3}.items()}
    >>> watch(slow, 0.0)  # two of twenty may be
    >>> watch(slow, 0.0)
    Traceback (most recent call last):
    glmplan.serving.misses.Missed: e2e p90 < 1000 ms

    Notes
    -----
    A percentile of n values lies at or above the one in place ⌊(n - 1) · percent / 100⌋, counted from zero. It is
    beyond a bound when n less this place are. Fewer values, because some requests do not fit, allow no more.
    """

    def __init__(self, targets: tuple[Target, ...], most: int, warmup: int, late: float = 1.0) -> None:
        self._warmup, self._late = warmup, late
        percents = {target: int(target.statistic[1:]) for target in targets if target.statistic[1:].isdigit()}
        self._left = {
            target: most - math.floor((most - 1) * percent / 100)
            for target, percent in percents.items()
            if target.metric != "itl"
        }

    def __call__(self, columns: dict[str, np.ndarray], late: np.ndarray | float) -> None:
        """Look at requests that have finished.

        Parameters
        ----------
        columns : dict of ndarray
            Columns of their records, times in [s]
        late : ndarray or float
            What first tokens come later by than the records say, [s]

        Raises
        ------
        Missed
            If too many requests are beyond a bound.
        """
        counted = columns["number"] >= self._warmup
        arrival, first, finish = columns["arrival"], columns["first"], columns["finish"]
        for target in self._left:
            judged, factor = counted, 1.0
            if target.metric == "ttft":
                times, factor = first - arrival + late, self._late
            elif target.metric == "e2e":
                times = finish - arrival + late
            elif target.metric == "queue":
                times = columns["started"] - arrival
            else:
                more = columns["output_tokens"] - 1
                judged, times = counted & (more > 0), (finish - first) / np.maximum(more, 1)
            self._left[target] -= int((judged & (factor * times > target.bound * (1 + _SURELY))).sum())
            if self._left[target] <= 0:
                raise Missed(target)
