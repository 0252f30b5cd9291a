"""Drive the plain loop: read requests in chunks, run in Python or compiled, hand over where blocks may run out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from heapq import heapify
from itertools import chain
from typing import Any

import numpy as np

from glmplan.simulation.engine import plain_loop as kernel
from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import KnotRows, StepTable
from glmplan.simulation.traffic.request import Request, apart
from glmplan.simulation.traffic.sources import Chunk

__all__ = ["PlainRun", "Served", "compiled"]


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """What came out of one piece of a run: columns of finished requests, and runs of equal steps.

    Parameters
    ----------
    records : dict of ndarray
        Columns by name.
    segments : ndarray
        Start [s], steps, seconds of the first [s], growth [s], decoding requests, their contexts [token],
        prompt tokens, blocks in use (−1 where not counted).
    stalls : ndarray
        Gaps between tokens that are not one step long [s], and how many; a negative number takes back what the runs say
        of them, [-]
    """

    records: dict[str, np.ndarray]
    segments: np.ndarray
    stalls: np.ndarray = field(default_factory=lambda: np.zeros((2, 0)))


@cache
def compiled() -> Any:
    """The loop compiled with numba.

    Returns: Takes what `kernel.advance` takes but the segments, arrays for lists and the heap with its length in
      front; returns the code and the segments as columns. None without numba.
    """
    try:
        from numba import njit
    except ImportError:
        return None

    inside = njit(kernel.advance)

    def outer(columns: Any, heap: Any, tables: Any, limits: Any, state: Any, clock: Any) -> Any:
        entries = [heap[1 + i] for i in range(heap[0])]
        kept = [(0.0, 1, 0.0, 0.0, 1, 1, 1) for _ in range(0)]
        code = inside(columns, kept, entries, tables, limits, state, clock)
        heap[0] = len(entries)
        for i in range(len(entries)):
            heap[1 + i] = entries[i]
        rows = np.empty((8, len(kept)))
        for i in range(len(kept)):
            at, steps, seconds, slope, n, total, tokens = kept[i]
            rows[0, i], rows[1, i], rows[2, i], rows[3, i] = at, steps, seconds, slope
            rows[4, i], rows[5, i], rows[6, i], rows[7, i] = n, total, tokens, -1.0
        return code, rows

    return njit(outer)


@lru_cache(maxsize=32)
def _by_knot(table: StepTable, fast: bool) -> tuple[Any, ...]:
    """The step table as the loop reads it: what belongs to one knot side by side, and how much it rises to the next.

    Kept, since a search asks the same services again and again.
    """
    context, prefill, keys = np.diff(table.context), np.diff(table.prefill), np.diff(table.keys)
    slopes = np.diff(table.decode, axis=1) / context
    columns = (
        *(table.context, table.decode.T, slopes.T),
        *(table.prefill, prefill, table.extra.T, np.diff(table.extra, axis=1).T),
        *(table.keys, keys, table.attention, np.diff(table.attention, axis=1)),
    )
    arrays = [np.ascontiguousarray(a, dtype=float) for a in columns]
    hiding = (table.hidden, float(table.short), float(table.per_request))
    return (*(arrays if fast else (KnotRows(a) if a.ndim == 2 else a.tolist() for a in arrays)), *hiding)


class PlainRun:
    """One replica under traffic without common content, from chunk to chunk.

    Parameters
    ----------
    table : StepTable
        Time of a step.
    pool : KvPool
        Room for keys and values.
    settings : EngineSettings
        A plain engine.
    users : ndarray or None
        Arrivals of the first request of each user of a closed loop; None when arrivals are given, [s]
    fast : bool, optional
        Whether to use the compiled loop; it must exist.
    lag : float, optional
        Time of the front end between an answer and the next request of the same user, [s]
    """

    def __init__(
        self,
        table: StepTable,
        pool: KvPool,
        settings: EngineSettings,
        users: np.ndarray | None,
        fast: bool = False,
        lag: float = 0.0,
    ) -> None:
        self._tables: Any = _by_knot(table, fast)
        self._loop = compiled() if fast else None
        self._settings, self._pool, self._users, self._lag = settings, pool, users, lag
        self._state = [0, 0, 0, 0, 0, 0, -1, 0, 0, 0]
        self._clock = [0.0, 0.0]
        self._heap: list[int] = []
        self._number = np.zeros(0, dtype=np.int64)
        self._columns: list[np.ndarray] = [np.zeros(0)] + [np.zeros(0, dtype=np.int64)] * 2 + [np.zeros(0)] * 3
        self._next = 0
        self.tight = False

    def serve(self, chunk: Chunk, more: bool, fits: np.ndarray) -> Served:
        """Run until the requests of the chunk are not enough to go on.

        - `fits`: Which requests of the chunk can be served at all.
        - Returns: What finished meanwhile. `tight` is true afterwards if the run must go on in the full engine.
        """
        count = len(chunk.input_tokens)
        number = np.arange(self._next, self._next + count)[fits]
        self._next += count
        fresh = [np.zeros(count) if chunk.arrival is None else chunk.arrival, chunk.input_tokens, chunk.output_tokens]
        nothing = np.full(len(number), -1.0)
        old, state = len(self._number), self._state
        self._number = np.concatenate([self._number, number])
        if not fits.all():
            fresh = [column[fits] for column in fresh]
        pairs = zip(self._columns, [*fresh, nothing, nothing, nothing], strict=True)
        self._columns = [np.concatenate(pair) for pair in pairs]
        if self._users is None:
            state[1] = len(self._number)
        elif state[1] < len(self._number) and old == 0:
            released = min(len(self._users), len(self._number))
            self._columns[0][:released] = self._users[:released]
            state[1] = released
        segments = self._advance(more)
        done = self._columns[5] >= 0
        records = self._records(np.flatnonzero(done))
        self._carry(~done)
        return Served(records, segments)

    def _advance(self, more: bool) -> np.ndarray:
        settings, state = self._settings, self._state
        closed = self._users is not None
        limits = (
            settings.max_num_batched_tokens,
            settings.max_num_seqs,
            self._pool.blocks,
            closed,
            more,
            self._lag,
            int(settings.async_scheduling),
            apart(self._lag),
        )
        arrival, inputs, outputs, started, first, finish = self._columns
        columns: Any = (arrival, inputs, started, first, finish, *self._known())
        if self._loop is None:
            columns = tuple(c.tolist() for c in columns)
            kept: list[tuple[float, ...]] = []
            code = kernel.advance(columns, kept, self._heap, self._tables, limits, state, self._clock)
            written = [np.array(columns[place]) for place in (0, 2, 3, 4)]
            self._columns = [written[0], inputs, outputs, *written[1:]]
            flat = np.fromiter(chain.from_iterable(kept), dtype=float, count=7 * len(kept))
            segments = np.full((8, len(kept)), -1.0)
            segments[:7] = flat.reshape(-1, 7).T
        else:
            heap = np.zeros(settings.max_num_seqs + 1, dtype=np.int64)
            heap[0] = len(self._heap)
            heap[1 : 1 + len(self._heap)] = self._heap
            numbers, clock = np.array(state), np.array(self._clock)
            code, segments = self._loop(columns, heap, self._tables, limits, numbers, clock)
            self._state = state = numbers.tolist()
            self._clock = clock.tolist()
            self._heap = heap[1 : 1 + heap[0]].tolist()
        self.tight = code == kernel.TIGHT
        return segments

    def _known(self) -> tuple[np.ndarray, ...]:
        """What the loop reads of each request, made for all of them at once."""
        _, inputs, outputs, *_ = self._columns
        ends = (outputs - 1 << 32) + np.arange(len(outputs))
        needs = (inputs + outputs - 2) // self._pool.block_size + 1
        return ends, needs, inputs + outputs, inputs * (inputs + 1) * 0.5

    def _records(self, which: np.ndarray) -> dict[str, np.ndarray]:
        names = ("arrival", "input_tokens", "output_tokens", "started", "first", "finish")
        records = {name: column[which] for name, column in zip(names, self._columns, strict=True)}
        zeros = np.zeros(len(which), dtype=np.int64)
        return (
            {"number": self._number[which], **records}
            | dict.fromkeys(("turn", "priority", "preemptions", "cached", "replica"), zeros)
            | {"session": zeros - 1}
        )

    def _carry(self, left: np.ndarray) -> None:
        """Keep what is not finished, under new indices."""
        state, which = self._state, np.flatnonzero(left)
        state[0], state[1] = np.searchsorted(which, state[:2]).tolist()
        mask = (1 << 32) - 1
        if state[6] >= 0:
            state[6] = int(np.searchsorted(which, state[6]))
        index = np.searchsorted(which, [entry & mask for entry in self._heap]).tolist()
        self._heap = [(entry >> 32 << 32) + place for entry, place in zip(self._heap, index, strict=True)]
        heapify(self._heap)
        self._columns = [c[which] for c in self._columns]
        self._number = self._number[which]

    def hand_over(self, table: StepTable) -> tuple[SkippingEngine, Iterator[Request]]:
        """Continue in the full engine.

        Returns: The engine in the state of this run, and requests that have arrived or will, in order.
        """
        engine = SkippingEngine(table, self._pool, self._settings)
        q, released, step, _, _, _, partial, rest, *late = self._state
        arrival, inputs, outputs, started, first, _ = (c.tolist() for c in self._columns)
        last = {entry & ((1 << 32) - 1): entry >> 32 for entry in self._heap}
        made = []
        for i, number in enumerate(self._number.tolist()):
            request = Request(number, arrival[i], int(inputs[i]), int(outputs[i]))
            request.started, request.first = started[i], first[i]
            made.append(request)
        running = [(made[i], last[i]) for i in sorted(last)]
        left = (made[partial], rest) if partial >= 0 else None
        engine.adopt((self._clock[0], self._clock[1]), step, running, left, (late[0], late[1]))
        return engine, iter(made[q:released] if self._users is not None else made[q:])

    @property
    def last_released(self) -> float:
        """When the request of a closed loop that was sent last arrives, [s]"""
        return float(self._columns[0][self._state[1] - 1]) if self._state[1] else 0.0

    @property
    def unreleased(self) -> list[tuple[int, int, int]]:
        """Requests of a closed loop that are read but not sent: number, input and output, [token]"""
        columns = (self._number, self._columns[1], self._columns[2])
        return list(zip(*(c[self._state[1] :].tolist() for c in columns), strict=True))
