"""Data-parallel ranks of one server whose steps end together.

Ranks that share the experts of a mixture exchange tokens in every layer, so no rank ends a step before the slowest.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import Final

from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.reference import SteppingEngine
from glmplan.simulation.engine.step_clock import StepClock
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.traffic.request import Request
from glmplan.units import Ratio, Seconds, TokenCount, Tokens

__all__ = ["Lockstep", "SharedClock", "SteppingLockstep"]

_NEVER: Final = math.inf


class SharedClock:
    """Step times of a rank, by the work of all ranks of its server.

    A rank computes attention for its own tokens and its share of the experts for the tokens of all ranks.

    Parameters
    ----------
    table : StepTable
        Time of a step of a rank if all ranks have as much to do.
    ranks : int
        Data-parallel ranks of the server, [-]
    spread : callable, optional
        Takes a number of ranks and returns the time of a step of one of these if no other rank has work; without it
        every step takes as long as if all ranks had as much to do.
    microbatches : int, optional
        Pipeline stages, [-]

    Notes
    -----
    A server whose ranks have b times the tokens of one rank together does the same expert work as b equal ranks. Tables
    are made for 1, 2, 4, ... ranks and read by linear interpolation between them.

    Examples
    --------
    >>> spread = lambda ranks: StepTable.affine(base=0.01 + 0.001 * ranks)
    >>> clock = SharedClock(spread(8), 8, spread)
    >>> [round(clock.mixed(busy, 1, 100.0, 0, 0.0), 6) for busy in (1.0, 3.0, 8.0)]
    [0.011, 0.013, 0.018]
    """

    __slots__ = ("_at", "_clocks", "_microbatches", "_spread")

    def __init__(
        self, table: StepTable, ranks: int, spread: Callable[[int], StepTable] | None = None, microbatches: int = 1
    ) -> None:
        self._at = [float(ranks)]
        self._spread, self._microbatches = spread, microbatches
        below = 1
        while spread is not None and below < ranks:
            self._at.insert(len(self._at) - 1, float(below))
            below *= 2
        self._clocks: list[StepClock | None] = [None for _ in self._at]
        self._clocks[-1] = StepClock(table, microbatches)

    def _clock(self, place: int) -> StepClock:
        clock = self._clocks[place]
        if clock is None:
            assert self._spread is not None
            clock = self._clocks[place] = StepClock(self._spread(int(self._at[place])), self._microbatches)
        return clock

    def decode(self, busy: Ratio, n: int, total: Tokens) -> tuple[float, float, float]:
        """Time of a pure decode step and how it grows, as `StepClock.decode`.

        `busy`: Tokens of all ranks over those of this rank.
        """
        at = self._at
        place = bisect_right(at, busy) - 1
        if place < 0 or place == len(at) - 1:
            return self._clock(max(place, 0)).decode(n, total)
        seconds, slope, edge = self._clock(place).decode(n, total)
        share = (busy - at[place]) / (at[place + 1] - at[place])
        if share == 0.0:
            return seconds, slope, edge
        more, rise, other = self._clock(place + 1).decode(n, total)
        return seconds + share * (more - seconds), slope + share * (rise - slope), min(edge, other)

    def mixed(self, busy: Ratio, n: int, total: Tokens, p: TokenCount, weight: Tokens) -> Seconds:
        """Time of one step, as `StepClock.mixed`.

        - `busy`: Tokens of all ranks over those of this rank.
        - `weight`: Sum over the prompt tokens of the keys each attends.
        """
        at = self._at
        place = bisect_right(at, busy) - 1
        if place < 0 or place == len(at) - 1:
            return self._clock(max(place, 0)).mixed(n, total, p, weight)
        seconds = self._clock(place).mixed(n, total, p, weight)
        share = (busy - at[place]) / (at[place + 1] - at[place])
        if share == 0.0:
            return seconds
        return seconds + share * (self._clock(place + 1).mixed(n, total, p, weight) - seconds)


class Lockstep:
    """Ranks of one server that begin and end their steps together.

    Ranks with nothing to do join at the next step.

    Parameters
    ----------
    ranks : list of SkippingEngine
        The ranks.
    clock : SharedClock
        Time of a step of each; the server's step is the longest of them.

    References
    ----------
    .. [1] vLLM at 00746147, `vllm/v1/worker/dp_utils.py` (_synchronize_dp_ranks: one all-reduce over all ranks before
       each step; token counts are padded to the largest only with CUDA graphs or micro-batches).

    Notes
    -----
    Not modelled: tokens of padding, and the time between the end of a wave of requests and the stop of idle ranks.
    """

    __slots__ = ("_busy", "_clock", "_every", "_made", "_ranks", "end", "now")

    def __init__(self, ranks: list[SkippingEngine], clock: SharedClock) -> None:
        self._ranks, self._clock = ranks, clock
        # steps since all ranks were idle, of which every so many may begin with prompts
        self._made, self._every = 0, ranks[0].settings.prefill_schedule_interval
        self._busy: list[SkippingEngine] = []
        self.now, self.end = 0.0, _NEVER

    def came(self, rank: SkippingEngine, now: Seconds) -> None:
        """Let the ranks follow one whose planned steps changed."""
        if self.end == _NEVER:
            self.now = max(self.now, now)
            return
        if rank.end == _NEVER:  # it joins behind the step under way
            rank = self._busy[0]
            rank.stop_after(now)
        if rank.end != self.end:
            self.end = rank.end
            for other in self._busy:
                if other is not rank:
                    other.follow(rank)

    def plan(self) -> Seconds:
        """Plan the next steps of all ranks.

        Returns: When they end; infinite if there is nothing to do.
        """
        busy: list[SkippingEngine] = []
        steps = 1 << 60
        for rank in self._ranks:
            if rank.end == _NEVER and not rank.waiting:
                continue
            rank.now = self.now
            if self._every > 1:
                rank.owe(-self._made % self._every)
            if rank.plan() < _NEVER:
                busy.append(rank)
                steps = min(steps, rank.planned)
        self._busy = busy
        if not busy:
            self.end, self._made = _NEVER, 0
        elif steps:
            self._plan_run(steps)
        else:
            self._plan_step()
        return self.end

    def _plan_step(self) -> None:
        """Plan one step in which a rank has prompt tokens."""
        everyone = 0.0
        for rank in self._busy:
            everyone += rank.step_tokens
        longest = 0.0
        for rank in self._busy:
            n, total, tokens, weight = rank.contents
            seconds = self._clock.mixed(everyone / rank.step_tokens, n, total, tokens, weight)
            longest = max(longest, rank.loaded(seconds))
        pieces = [(self.now, 1, longest, 0.0)]
        self.end = self.now + longest
        for rank in self._busy:
            rank.hold(pieces, 1, self.end)

    def _plan_run(self, steps: int) -> None:
        """Plan equal decode steps of all ranks."""
        clock, at, pieces, everyone = self._clock, self.now, list[tuple[float, int, float, float]](), 0
        batches: list[int] = []
        totals: list[float] = []
        growth = self._busy[0].growth
        for rank in self._busy:
            n, total, _, _ = rank.contents
            batches.append(n)
            totals.append(total)
            everyone += n
        left = steps
        while left:
            here, longest, rise = left, 0.0, 0.0
            others: list[tuple[float, float]] = []
            for place, n in enumerate(batches):
                total = totals[place]
                seconds, slope, edge = clock.decode(everyone / n, n, total)
                slope *= growth
                if edge < 1e300:
                    here = min(here, max(1, math.ceil((edge - total / n) / growth)))
                if seconds > longest or (seconds == longest and slope > rise):
                    longest, rise = seconds, slope
                others.append((seconds, slope))
            for seconds, slope in others:  # another rank is the slowest from here on
                if slope > rise and longest + rise * here < seconds + slope * here:
                    here = max(1, min(here, int((longest - seconds) / (slope - rise)) + 1))
            pieces.append((at, here, longest, rise))
            at += here * longest + rise * (here * (here - 1) / 2)
            left -= here
            for place, n in enumerate(batches):
                totals[place] += here * n * growth
        self.end = at
        for rank in self._busy:
            rank.hold(pieces, steps, at)

    def commit(self) -> list[tuple[int, list[Request]]]:
        """Make what was planned happen.

        Returns: Number of each rank that had work, and its finished requests.
        """
        self._made += max(self._busy[0].planned, 1)
        self.now, self.end = self.end, _NEVER
        return [(rank.replica, rank.commit()) for rank in self._busy]


class SteppingLockstep:
    """The same ranks, one step after another.

    Parameters
    ----------
    ranks : list of SteppingEngine
        The ranks.
    clock : SharedClock
        Time of a step of each.
    """

    def __init__(self, ranks: list[SteppingEngine], clock: SharedClock) -> None:
        self._ranks, self._clock = ranks, clock
        self._made, self._every = 0, ranks[0].settings.prefill_schedule_interval
        self._busy: list[SteppingEngine] = []
        self.now, self.end = 0.0, _NEVER

    def came(self, rank: SteppingEngine, now: Seconds) -> None:
        """Begin with a request if no step is under way.

        `rank`: The rank that it came to.
        """
        if self.end == _NEVER:
            self.now = max(self.now, now)

    def plan(self) -> Seconds:
        """Form the next step of all ranks.

        Returns: When it ends; infinite if there is nothing to do.
        """
        for rank in self._ranks:
            rank.now = self.now
            if self._every > 1:
                rank.owe(-self._made % self._every)
            rank.plan()
        self._busy = [rank for rank in self._ranks if rank.end < _NEVER]
        self.end = _NEVER
        self._made = self._made + 1 if self._busy else 0
        if self._busy:
            everyone = sum(rank.step_tokens for rank in self._busy)
            self.end = self.now + max(
                rank.loaded(self._clock.mixed(everyone / rank.step_tokens, *rank.contents)) for rank in self._busy
            )
        for rank in self._busy:
            rank.end = self.end
        return self.end

    def commit(self) -> list[tuple[int, list[Request]]]:
        """End the step.

        Returns: Number of each rank that had work, and its finished requests.
        """
        self.now, self.end = self.end, _NEVER
        return [(rank.replica, rank.commit()) for rank in self._busy]
