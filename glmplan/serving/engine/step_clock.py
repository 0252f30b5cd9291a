"""The step table as plain lists, for loops that read one step at a time."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from glmplan.facts.remembered import remembered
from glmplan.serving.engine.step_table import StepTable

__all__ = ["StepClock", "clock_of"]


class StepClock:
    """The table as plain lists, for loops that read one step at a time.

    Parameters
    ----------
    table : StepTable
        What to read from.
    microbatches : int, optional
        Pipeline stages; a step is split into as many equal micro-batches that follow each other through the stages, so
        the round takes as long as one of them, [-]

    Examples
    --------
    >>> clock = StepClock(StepTable.affine(base=0.01, per_request=1e-3))
    >>> clock.mixed(4, 4000.0, 0, 0.0)
    0.014
    """

    def __init__(self, table: StepTable, microbatches: int = 1) -> None:
        self._microbatches = microbatches
        self._knots = table.context.tolist()
        self._last = len(self._knots) - 1
        self._decode = table.decode.tolist()
        self._slopes = (np.diff(table.decode, axis=1) / np.diff(table.context)).tolist()
        self._prefill = table.prefill.tolist()
        self._extra = table.extra.tolist()
        self._keys, self._attention = table.keys.tolist(), table.attention.tolist()
        self._last_prefill, self._last_key = len(self._prefill) - 1, len(self._keys) - 1
        self._steeps, self._rises = np.diff(table.extra, axis=1).tolist(), np.diff(table.attention, axis=1).tolist()

    def decode(self, n: int, total: float) -> tuple[float, float, float]:
        """Time of a pure decode step and how it grows.

        Parameters
        ----------
        n : int
            Decoding requests, at least one, [-]
        total : float
            Sum of their contexts, [token]

        Returns
        -------
        tuple of float
            Seconds, [s]; seconds for each further token of mean context, [s]; the mean context up to which this holds,
            [token]
        """
        mean = total / n
        knots, last = self._knots, self._last
        row = -(-n // self._microbatches)
        j = bisect_right(knots, mean, 1, last) - 1
        slope = self._slopes[row][j]
        return self._decode[row][j] + slope * (mean - knots[j]), slope, knots[j + 1] if j < last - 1 else 1e300

    def mixed(self, n: int, total: float, p: int, weight: float) -> float:
        """Time of one step of decoding requests and prompt tokens.

        Parameters
        ----------
        n : int
            Decoding requests, [-]
        total : float
            Sum of their contexts, [token]
        p : int
            Prompt tokens, [token]
        weight : float
            Sum over the prompt tokens of the keys each attends, [token]

        Returns
        -------
        float
            Time of the step, [s]
        """
        seconds = self.decode(n, total)[0] if n else 0.0
        if p:
            row, tokens, a = -(-n // self._microbatches), p / self._microbatches, weight / p
            knots, keys = self._prefill, self._keys
            i = bisect_right(knots, tokens, 1, self._last_prefill) - 1
            x = (tokens - knots[i]) / (knots[i + 1] - knots[i])
            j = bisect_right(keys, a, 1, self._last_key) - 1
            y = (a - keys[j]) / (keys[j + 1] - keys[j])
            attention, rises = self._attention, self._rises
            left = attention[i][j] + y * rises[i][j]
            seconds += self._extra[row][i] + x * self._steeps[row][i]
            seconds += left + x * (attention[i + 1][j] + y * rises[i + 1][j] - left)
        return seconds


@remembered(most=4)
def clock_of(table: StepTable, microbatches: int = 1) -> StepClock:
    """The clock of a table, made once: replicas of a service read the same, and a search runs it under many loads.

    Parameters
    ----------
    table : StepTable
        What to read from.
    microbatches : int, optional
        As in `StepClock`, [-]

    Returns
    -------
    StepClock
        The clock, which keeps no state.

    Examples
    --------
    >>> table = StepTable.affine(base=0.01)
    >>> clock_of(table, 1) is clock_of(table, 1)
    True
    """
    return StepClock(table, microbatches)
