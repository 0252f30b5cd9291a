"""Step times as a table, which the simulator reads at every step.

The time of a mixed step is taken apart into three tables, exact wherever attention adds to the rest of the step:

    T(n, c, p, a) = D(n, c) + X(n, p) + A(p, a)

with n decoding requests of mean context c, p prompt tokens that attend a keys each in the mean. D is kept at every
integer n and is affine in c between knots, so a run of equal decode steps has a closed form. Work that only steps of
few tokens hide ends at one number of them, which no knots can hold: D has it at every n, X is kept as if prompts left
it hidden, and a step that they make too long pays it back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glmplan.errors import SpecError
from glmplan.units import Ratio, Seconds, SecondsArray, TokenCount, Tokens, TokensArray

__all__ = ["ShortSteps", "StepTable", "context_knots"]


#: Cells of the decode table that are evaluated one by one; beyond it the batch axis is thinned and interpolated.
_CHEAP_CELLS = 40_000
#: fields of a table that are times
_TIMES = ("decode", "extra", "attention", "hidden")


def context_knots(largest: Tokens, per_octave: int = 2, smallest: Tokens = 64.0) -> TokensArray:
    """Return knots 1, `smallest` and then some for each doubling.

    Examples
    --------
    >>> context_knots(256).tolist()
    [1.0, 64.0, 96.0, 128.0, 192.0, 256.0]
    """
    knots, start = [1.0], smallest
    while knots[-1] < largest:
        knots += [start * (1 + i / per_octave) for i in range(per_octave)]
        start *= 2
    # a set, because `np.unique` imports the masked arrays of numpy, which takes longer than the table
    return np.array(sorted({*(k for k in knots if k < largest), float(max(largest, 2.0))}))


@dataclass(frozen=True, slots=True)
class ShortSteps:
    """Times of mixed steps of which short ones hide the same work.

    Parameters
    ----------
    seconds : callable
        Takes the arrays `decode_requests`, `decode_context`, `prefill_tokens`, `prefill_context` by name and returns
        seconds for each point.
    level : callable
        The same if no step hid anything.
    tokens : float
        Tokens of the longest step that hides it, [token]
    per_request : int
        Tokens of a decoding request in a step, [token]

    Examples
    --------
    >>> def level(*, decode_requests, decode_context, prefill_tokens, prefill_context):
    ...     return 0.01 + 1e-5 * (decode_requests + prefill_tokens)
    >>> def seconds(**points):
    ...     return level(**points) - np.where(points["decode_requests"] + points["prefill_tokens"] <= 100, 0.002, 0.0)
    >>> steps = ShortSteps(seconds, level, 100.0, 1)
    >>> round(steps.hidden(), 6)
    0.002
    >>> StepTable.tabulate(steps, max_requests=8, max_context=4096, max_prefill=2048).worst_error < 1e-9
    True
    """

    seconds: Callable[..., np.ndarray]
    level: Callable[..., np.ndarray]
    tokens: float
    per_request: int

    def __call__(self, **points: np.ndarray) -> SecondsArray:
        """Seconds of each point."""
        return self.seconds(**points)

    def hidden(self) -> Seconds:
        """Return the time that each step of few tokens hides."""
        one = np.ones(1)
        point = {"decode_requests": 0 * one, "decode_context": one, "prefill_tokens": one, "prefill_context": one}
        return float(self.level(**point)[0] - self.seconds(**point)[0])


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """Tabulated time of a mixed step.

    Parameters
    ----------
    context : ndarray
        Knots of the mean context of a decoding request, shape (m,), [token]
    decode : ndarray
        Seconds of a pure decode step of row n requests, shape (N + 1, m); row 0 is zero, [s]
    prefill : ndarray
        Knots of the prompt tokens in a step, shape (q,), [token]
    extra : ndarray
        Seconds that prompt tokens add to a step with row n decoding requests, at one key each, shape (N + 1, q), [s]
    keys : ndarray
        Knots of the mean number of keys a prompt token attends, shape (r,), [token]
    attention : ndarray
        Seconds that those keys add, shape (q, r), [s]
    hidden : float, optional
        What prompt tokens add where they make a step too long to hide it; the decode table and `extra` are without, [s]
    short : float, optional
        Tokens of the longest step that hides it, [token]
    per_request : int, optional
        Tokens of a decoding request in a step, [token]
    worst_error : float, optional
        Largest relative error found at random mixed steps when the table was made, [-]

    Examples
    --------
    >>> table = StepTable.affine(base=0.01, per_request=1e-4, per_context_token=1e-8, per_prefill_token=1e-5)
    >>> table.seconds(decode_requests=2, decode_context=1000, prefill_tokens=100, prefill_context=50)
    0.01122
    """

    context: np.ndarray
    decode: np.ndarray
    prefill: np.ndarray
    extra: np.ndarray
    keys: np.ndarray
    attention: np.ndarray
    hidden: float = 0.0
    short: float = math.inf
    per_request: int = 1
    worst_error: float = 0.0

    @property
    def max_requests(self) -> int:
        """Largest number of decoding requests the table holds, [-]"""
        return len(self.decode) - 1

    @classmethod
    def affine(
        cls,
        *,
        base: Seconds,
        per_request: Seconds = 0.0,
        per_context_token: Seconds = 0.0,
        per_prefill_token: Seconds = 0.0,
        per_prefill_square: Seconds = 0.0,
        max_requests: int = 1024,
    ) -> StepTable:
        """Return the exact table of a step time that is affine in everything.

        - `per_context_token`: Each token of context of each decoding request.
        - `per_prefill_square`: Each pair of a prompt token and a key it attends.
        """
        n = np.arange(max_requests + 1.0)[:, None]
        context, prefill, keys = np.array([1.0, 1e6]), np.array([0.0, 1e5]), np.array([1.0, 1e6])
        decode = np.where(n > 0, base + per_request * n + per_context_token * n * context, 0.0)
        extra = np.where(n > 0, 0.0, base) + (per_prefill_token + per_prefill_square) * prefill
        attention = per_prefill_square * prefill[:, None] * (keys - 1.0)
        return cls(context, decode, prefill, extra, keys, attention)

    @classmethod
    def tabulate(
        cls,
        step_seconds: Callable[..., np.ndarray],
        *,
        max_requests: int,
        max_context: TokenCount,
        max_prefill: TokenCount,
        rows: int | None = None,
    ) -> StepTable:
        """Ask a step-time function for a grid and keep the answers.

        - `step_seconds`: Takes the arrays `decode_requests`, `decode_context`, `prefill_tokens`, `prefill_context` by
          name and returns seconds for each point.
        - `rows`: Decoding requests up to which the table is wanted, with the same times; a few more may be in it.
        - Returns: The table, with the worst relative error at 200 random mixed steps.

        Examples
        --------
        >>> def step(*, decode_requests, decode_context, prefill_tokens, prefill_context):
        ...     return 0.01 + 1e-4 * decode_requests + 1e-5 * prefill_tokens
        >>> StepTable.tabulate(step, max_requests=8, max_context=4096, max_prefill=2048).worst_error < 1e-9
        True
        """
        for name, bound in [("max_requests", max_requests), ("max_context", max_context), ("max_prefill", max_prefill)]:
            if bound < 1:
                raise SpecError("must be at least 1", field=name, value=bound)

        context = context_knots(max_context)
        prefill = context_knots(max_prefill, per_octave=4, smallest=8.0)
        keys = context_knots(max_context)
        few = _thinned(max_requests, 8, 4)
        some = np.arange(1, max_requests + 1)
        if len(some) * len(context) > _CHEAP_CELLS:
            some = _thinned(max_requests, 128, 16)
        if rows is not None and rows < max_requests:
            # times between known rows need both of them
            few = few[: np.searchsorted(few, rows) + 1]
            max_requests = int(few[-1])
            some = some[: np.searchsorted(some, max_requests) + 1]
        every = np.arange(1, max_requests + 1)
        zero, one = np.zeros((1, 1)), np.ones((1, 1))
        generator = np.random.default_rng(0)
        n = generator.integers(1, max_requests + 1, 200)
        c, p, a = (np.exp(generator.uniform(0, np.log(top), 200)) for top in (max_context, max_prefill, max_context))
        p = np.ceil(p)
        alone_at = (zero, zero, prefill[None, :], one)
        beside_at = (few[:, None], one, prefill[None, :], one)
        attention_at = (zero, zero, prefill[:, None], keys[None, :])
        pure, alone, beside, read, true = _asked(
            step_seconds,
            [(some[:, None], context[None, :], zero, zero), alone_at, beside_at, attention_at, (n, c, p, a)],
        )
        hidden, short, per_request = 0.0, math.inf, 1
        if isinstance(step_seconds, ShortSteps):
            hidden, short, per_request = step_seconds.hidden(), step_seconds.tokens, step_seconds.per_request

        def hides(requests: np.ndarray, tokens: np.ndarray | float = 0.0) -> np.ndarray:
            return np.where(per_request * requests + tokens <= short, hidden, 0.0)

        decode = np.zeros((max_requests + 1, len(context)))
        level = _rows(every, some, pure + hides(some)[:, None])
        decode[1:] = level - hides(every)[:, None]
        extra = np.empty((max_requests + 1, len(prefill)))
        extra[0] = alone[0] + hides(zero[0], prefill) - hidden
        extra[1:] = _rows(every, few, beside + hides(few[:, None], prefill) - level[few - 1, :1])
        table = cls(context, decode, prefill, extra, keys, read - alone[0][:, None], hidden, short, per_request)
        here = table.seconds_at(n, c, p, a)
        return replace(table, worst_error=float(np.max(np.abs(here / true - 1))))

    def seconds_at(self, n: np.ndarray, c: TokensArray, p: TokensArray, a: TokensArray) -> SecondsArray:
        """Seconds of many mixed steps at once.

        `a`: Keys that each of them attends in the mean.
        """
        n, c, p, a = np.broadcast_arrays(*(np.asarray(x, dtype=float) for x in (n, c, p, a)))
        rows = np.arange(len(self.decode), dtype=float)
        seconds = _bilinear(rows, self.context, self.decode, n, np.maximum(c, 1.0))
        added = _bilinear(rows, self.prefill, self.extra, n, p) + _bilinear(
            self.prefill, self.keys, self.attention, p, np.maximum(a, 1.0)
        )
        room = self.short - self.per_request * n
        added = added + np.where((room >= 0) & (room < p), self.hidden, 0.0)
        return np.where(n > 0, seconds, 0.0) + np.where(p > 0, added, 0.0)

    def seconds(
        self, *, decode_requests: Ratio, decode_context: Tokens, prefill_tokens: Tokens = 0, prefill_context: Tokens = 0
    ) -> Seconds:
        """Seconds of one mixed step.

        `prefill_context`: Keys that each of them attends in the mean.
        """
        points = (np.array(x) for x in (decode_requests, decode_context, prefill_tokens, prefill_context))
        return float(self.seconds_at(*points))

    def scaled(self, factor: Ratio) -> StepTable:
        """The same machine, slower or faster throughout."""
        return replace(self, **{name: getattr(self, name) * factor for name in _TIMES})

    def between(self, other: StepTable, share: Ratio) -> StepTable:
        """The times between those of two tables of the same steps.

        `share`: Weight of the other one, from 0 to 1.
        """
        return replace(
            self, **{name: getattr(self, name) * (1 - share) + getattr(other, name) * share for name in _TIMES}
        )


def _asked(
    step_seconds: Callable[..., np.ndarray], grids: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]
) -> list[np.ndarray]:
    """Return the seconds of the steps of several grids, each as broadcast."""
    shapes = [np.broadcast_shapes(*(x.shape for x in grid)) for grid in grids]
    names = ("decode_requests", "decode_context", "prefill_tokens", "prefill_context")
    columns = {
        name: np.concatenate(
            [
                np.broadcast_to(grid[place], shape).ravel().astype(float)
                for grid, shape in zip(grids, shapes, strict=True)
            ]
        )
        for place, name in enumerate(names)
    }
    seconds = np.asarray(step_seconds(**columns), dtype=float)
    if not np.all(np.isfinite(seconds)) or np.any(seconds <= 0):
        raise SpecError("the step time is not a positive number everywhere", field="step_seconds")
    seconds = np.broadcast_to(seconds, columns[names[0]].shape)
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
    return [part.reshape(shape) for part, shape in zip(np.split(seconds, ends), shapes, strict=True)]


def _thinned(largest: int, dense: int, per_octave: int) -> np.ndarray:
    """Return every integer up to `dense`, then `per_octave` each doubling."""
    octaves = max(np.log2(largest / dense), 0.0)
    sparse = dense * 2 ** np.linspace(0, octaves, int(np.ceil(octaves * per_octave)) + 1)
    rounded = np.minimum(np.round(sparse), largest).astype(int).tolist()
    return np.array(sorted({*range(1, min(dense, largest) + 1), *rounded, largest}))


def _rows(wanted: np.ndarray, known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Rows at integer batch sizes, linear between the known ones."""
    i = np.clip(np.searchsorted(known, wanted, side="right") - 1, 0, max(len(known) - 2, 0))
    j = np.minimum(i + 1, len(known) - 1)
    x = ((wanted - known[i]) / np.maximum(known[j] - known[i], 1))[:, None]
    result: np.ndarray = values[i] * (1 - x) + values[j] * x
    return result


def _bilinear(u: np.ndarray, v: np.ndarray, values: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Bilinear interpolation on knots, linear beyond them."""
    i = np.clip(np.searchsorted(u, x, side="right") - 1, 0, len(u) - 2)
    j = np.clip(np.searchsorted(v, y, side="right") - 1, 0, len(v) - 2)
    s, t = (x - u[i]) / (u[i + 1] - u[i]), (y - v[j]) / (v[j + 1] - v[j])
    low = values[i, j] * (1 - t) + values[i, j + 1] * t
    high = values[i + 1, j] * (1 - t) + values[i + 1, j + 1] * t
    result: np.ndarray = low * (1 - s) + high * s
    return result
