"""The step table as plain lists, for loops that read one step at a time."""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

import numpy as np

from glmplan.catalog.caching import remembered
from glmplan.simulation.engine.step_table import StepTable
from glmplan.units import Seconds, TokenCount, Tokens

__all__ = ["KnotRows", "StepClock", "clock_of"]

#: a piece of the decode table: where it begins and ends, its knot, seconds and slopes by requests
_Piece: TypeAlias = tuple[float, float, float, list[float], list[float]]
#: a piece of the prompt tables: where it begins and ends in tokens and in keys, then what is read of it
_PromptPiece: TypeAlias = tuple[
    float, float, float, float, float, float, list[float], list[float], float, float, float, float, float, float
]  # fmt: skip


class KnotRows(dict[int, list[float]]):
    """Rows of a table as lists, which plain Python reads faster; made lazily.

    Parameters
    ----------
    table : ndarray
        The table, in any unit.

    Examples
    --------
    >>> rows = KnotRows(np.array([[1.0, 2.0], [3.0, 4.0]]))
    >>> rows[1], len(rows)
    ([3.0, 4.0], 1)
    """

    def __init__(self, table: np.ndarray) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, row: int) -> list[float]:
        made: list[float] = self._table[row].tolist()
        self[row] = made
        return made


class StepClock:
    """The table as plain lists, for loops that read one step at a time.

    Parameters
    ----------
    table : StepTable
        Step times.
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
        self.microbatches = microbatches
        self._knots: list[float] = table.context.tolist()
        self._last = len(self._knots) - 1
        # what belongs to one knot side by side: rows are requests
        self._decode = KnotRows(table.decode.T)
        self._slopes = KnotRows((np.diff(table.decode, axis=1) / np.diff(table.context)).T)
        self._prefill: list[float] = table.prefill.tolist()
        self._widths: list[float] = np.diff(table.prefill).tolist()
        self._extra, self._steeps = KnotRows(table.extra.T), KnotRows(np.diff(table.extra, axis=1).T)
        self._keys: list[float] = table.keys.tolist()
        self._spans: list[float] = np.diff(table.keys).tolist()
        self._attention, self._rises = KnotRows(table.attention), KnotRows(np.diff(table.attention, axis=1))
        self._hidden = float(table.hidden)
        self._short = float(table.short)
        self._per_request = float(table.per_request)
        self._prompt_pieces: dict[tuple[int, int], _PromptPiece] = {}
        # the pieces of the axes that the last step lay in, and where they end: the next step mostly lies there too
        self._here: _Piece = self.context_piece(1.0)
        self._there: _PromptPiece = self._prompt_piece(1.0, 1.0)

    def context_piece(self, mean: Tokens) -> _Piece:
        """Find the piece of the decode table that holds a mean context.

        Returns: Where it begins and ends, and its knot, [token]; seconds at the knot and for each further token of
          mean context, both by requests of a micro-batch, [s].
        """
        knots, last = self._knots, self._last
        j = bisect_right(knots, mean, 1, last) - 1
        low, high = knots[j] if j else -1e300, knots[j + 1] if j < last - 1 else 1e300
        self._here = low, high, knots[j], self._decode[j], self._slopes[j]
        return self._here

    def _prompt_piece(self, tokens: float, a: float) -> _PromptPiece:
        """Return the piece of the prompt tables for so many tokens and keys."""
        knots, keys, widths = self._prefill, self._keys, self._widths
        i, m = bisect_right(knots, tokens, 1, len(widths)) - 1, bisect_right(keys, a, 1, len(keys) - 1) - 1
        found = self._prompt_pieces.get((i, m))
        if found is not None:
            self._there = found
            return found
        self._there = self._prompt_pieces[i, m] = (
            knots[i] if i else -1e300, knots[i + 1] if i < len(widths) - 1 else 1e300,
            keys[m] if m else -1e300, keys[m + 1] if m < len(keys) - 2 else 1e300,
            knots[i], widths[i], self._extra[i], self._steeps[i], keys[m], self._spans[m],
            self._attention[i][m], self._rises[i][m], self._attention[i + 1][m], self._rises[i + 1][m],
        )  # fmt: skip
        return self._there

    def decode(self, n: int, total: Tokens) -> tuple[float, float, float]:
        """Time of a pure decode step and how it grows.

        Returns: Seconds, [s]; seconds for each further token of mean context, [s]; the mean context up to which this
          holds, [token].
        """
        mean = total / n
        low, high, knot, seconds, slopes = self._here
        if not low <= mean < high:
            low, high, knot, seconds, slopes = self.context_piece(mean)
        row = -(-n // self.microbatches)
        slope = slopes[row]
        return seconds[row] + slope * (mean - knot), slope, high

    def mixed(self, n: int, total: Tokens, p: TokenCount, weight: Tokens) -> Seconds:
        """Time of one step of decoding requests and prompt tokens.

        `weight`: Sum over the prompt tokens of the keys each attends.
        """
        microbatches = self.microbatches
        row, seconds = -(-n // microbatches), 0.0
        if n:  # as `decode` does
            mean = total / n
            low, high, knot, decode, slopes = self._here
            if not low <= mean < high:
                _, _, knot, decode, slopes = self.context_piece(mean)
            seconds = decode[row] + slopes[row] * (mean - knot)
        if p:
            tokens, a = p / microbatches, weight / p
            low, high, low_k, high_k, knot, width, extra, steeps, key, span, here, rise, there, climb = self._there
            if not (low <= tokens < high and low_k <= a < high_k):
                piece = self._prompt_piece(tokens, a)
                _, _, _, _, knot, width, extra, steeps, key, span, here, rise, there, climb = piece
            x, y = (tokens - knot) / width, (a - key) / span
            left = here + y * rise
            seconds += extra[row] + x * steeps[row]
            seconds += left + x * (there + y * climb - left)
            if 0.0 <= self._short - self._per_request * row < tokens:
                seconds += self._hidden
        return seconds


@remembered(most=4)
def clock_of(table: StepTable, microbatches: int = 1) -> StepClock:
    """Clock of a table, made once for all replicas and loads of a search.

    Returns: The clock, whose answers depend on no state.

    Examples
    --------
    >>> table = StepTable.affine(base=0.01)
    >>> clock_of(table, 1) is clock_of(table, 1)
    True
    """
    return StepClock(table, microbatches)
