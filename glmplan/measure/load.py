"""Generate load: closed loop (fixed concurrency) or scheduled arrivals.

One step is at one level, with statistics.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glmplan.measure.client import Client, Outcome, RequestRecord
from glmplan.measure.guard import Guard
from glmplan.measure.journal import Journal
from glmplan.measure.prompts import PromptMaker
from glmplan.units import Ratio, Seconds, TokenCount, Tokens, TokensPerSecond

__all__ = [
    "Arrival",
    "Lengths",
    "Loader",
    "Measured",
    "Running",
    "Tally",
    "TokenClock",
    "batch_error",
    "is_steady",
    "mean_error",
    "transient_end",
]


def transient_end(series: Sequence[float], *, batch: int = 5) -> int:
    """Return the index at which the transient of a series ends, by MSER-5.

    The result is the truncation, up to half of the series, with the smallest standard error of the remaining mean over
    means of `batch` neighbours. Observations are equidistant.

    References
    ----------
    .. [1] K. P. White, M. J. Cobb, S. C. Spratt, "A comparison of five steady-state truncation heuristics for
           simulation", Winter Simulation Conference, 2000.

    Examples
    --------
    >>> transient_end([0.0] * 10 + [5.0, 5.1, 4.9, 5.0, 5.1] * 8)
    10
    """
    values = np.asarray(series, dtype=float)
    means = values[: values.size // batch * batch].reshape(-1, batch).mean(axis=1)
    if means.size < 4:
        return 0
    cuts = np.arange(means.size // 2 + 1)
    remaining = means.size - cuts
    spread = np.array([np.square(means[end:] - means[end:].mean()).sum() for end in cuts])
    scores = spread / np.square(remaining)
    # ignore rounding differences; among equal scores take the shortest transient
    equal = scores <= scores.min() + 1e-12 * float(np.square(means.mean()))
    return int(cuts[np.argmax(equal)]) * batch


def is_steady(series: Sequence[float], *, tolerance: Ratio = 0.05, batch: int = 5) -> bool:
    """Return True if the series after its transient does not drift.

    Its halves must agree within `tolerance` (relative) or two standard errors of their difference; fewer than four
    batches are never steady.

    Examples
    --------
    >>> is_steady([5.0, 5.1, 4.9, 5.0, 5.1] * 8), is_steady(range(40))
    (True, False)
    """
    values = np.asarray(series, dtype=float)
    begin = transient_end(values.tolist(), batch=batch)
    # a transient at the largest allowed cut is an unfinished drift
    if begin >= values.size // batch // 2 * batch > 0:
        return False
    steady = values[begin : begin + (values.size - begin) // batch * batch].reshape(-1, batch).mean(axis=1)
    if steady.size < 4:
        return False
    first, second = steady[: steady.size // 2], steady[steady.size // 2 :]
    difference = abs(float(first.mean() - second.mean()))
    error = float(np.sqrt(first.var(ddof=1) / first.size + second.var(ddof=1) / second.size))
    return difference <= max(tolerance * float(steady.mean()), min(2.0 * error, 4 * tolerance * float(steady.mean())))


class TokenClock:
    """Count tokens in bins of `bin` seconds while a step runs.

    Examples
    --------
    >>> clock = TokenClock(bin=1.0)
    >>> clock.add(0.5, 3), clock.add(2.1, 1), clock.rates(3.0)
    (None, None, [3.0, 0.0, 1.0])
    """

    def __init__(self, *, bin: float = 0.5) -> None:
        self.bin = bin
        self.counts: list[float] = []

    def add(self, at: Seconds, tokens: Tokens = 1.0) -> None:
        """Count tokens that arrived `at` seconds into the step."""
        index = math.floor(at / self.bin)
        if index < 0:
            return
        if index >= len(self.counts):
            self.counts.extend([0.0] * (index + 1 - len(self.counts)))
        self.counts[index] += tokens

    def rates(self, until: Seconds, *, least: Tokens = 0.0) -> list[float]:
        """Return the rate in each complete bin [token/s]

        Bins are merged until they hold `least` tokens on average: fewer are chance, not a rate.
        """
        complete = int(until / self.bin)
        counts = self.counts[:complete] + [0.0] * max(complete - len(self.counts), 0)
        width = self.width(until, least=least)
        merged = [sum(counts[i : i + width]) for i in range(0, complete - width + 1, width)]
        return [count / (self.bin * width) for count in merged]

    def width(self, until: Seconds, *, least: Tokens) -> int:
        """Return the number of bins that `rates` merges."""
        mean = sum(self.counts) / max(int(until / self.bin), 1)
        return max(math.ceil(least / mean), 1) if mean > 0 else 1


#: histogram bins 1 % wide from 1 µs: 10,000 requests of 1,000 tokens need a few kB
_BIN = math.log(1.01)
_SHORTEST = 1e-6
_BINS = 2200
#: percentiles that an SLO may limit
_PERCENTS = (50, 90, 95, 99)


class Tally:
    """Metrics of requests in little memory, defined as in `vllm bench serve`.

    Examples
    --------
    >>> tally = Tally()
    >>> tally.add(RequestRecord(0.0, Outcome.DONE, ttft=0.1, e2e=1.1, input_tokens=8, output_tokens=11))
    >>> tally.figures()["tpot_mean_ms"]
    100.0
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.counted_by: Counter[str] = Counter()
        self.retries = self.throttled = self.doubtful = 0
        self.doubt = ""
        self.input_tokens = self.output_tokens = self.cached_tokens = self.chunks = 0
        self.hidden_tokens = self.stopped = 0
        self.other_model = ""
        self._ttft, self._tpot, self._e2e, self._late = array("d"), array("d"), array("d"), array("d")
        self._gaps = np.zeros(_BINS, dtype=np.int64)
        self._gap_sum, self._gap_count = 0.0, 0

    @property
    def done(self) -> int:
        """Return the number of completed requests."""
        return self.outcomes[Outcome.DONE]

    @property
    def faults(self) -> int:
        """Return the number of failed requests."""
        return sum(count for name, count in self.outcomes.items() if Outcome(name).is_fault)

    def add(self, record: RequestRecord) -> None:
        """Add one request; only completed ones count in times."""
        self.outcomes[str(record.outcome)] += 1
        self.retries += record.retries
        self.throttled += record.throttled
        if record.outcome is not Outcome.DONE:
            return
        self.counted_by[record.counted_by] += 1
        if record.doubt:
            self.doubtful += 1
            self.doubt = self.doubt or record.doubt
        self.input_tokens += record.input_tokens
        self.output_tokens += record.output_tokens
        self.cached_tokens += record.cached_tokens
        self.chunks += record.chunks
        self.hidden_tokens += record.hidden_tokens
        self.stopped += record.stopped
        self.other_model = self.other_model or record.other_model
        self._ttft.append(record.ttft)
        self._e2e.append(record.e2e)
        self._late.append(record.late)
        if record.tpot is not None:
            self._tpot.append(record.tpot)
        if record.gaps:
            gaps = np.asarray(record.gaps)
            places = (np.log(np.maximum(gaps, _SHORTEST) / _SHORTEST) / _BIN).astype(np.int64)
            np.add.at(self._gaps, np.minimum(places, _BINS - 1), 1)
            self._gap_sum += float(gaps.sum())
            self._gap_count += len(gaps)

    def figures(self) -> dict[str, float]:
        """Return latency and length metrics by column, such as `ttft_mean_ms`."""
        metrics: dict[str, float] = {}
        for name, values in (("ttft", self._ttft), ("tpot", self._tpot), ("e2e", self._e2e)):
            if values:
                p50, p99 = np.percentile(values, [50, 99])
                metrics[f"{name}_mean_ms"] = float(np.mean(values)) * 1e3
                if name != "e2e":
                    metrics[f"{name}_p50_ms"] = float(p50) * 1e3
                metrics[f"{name}_p99_ms"] = float(p99) * 1e3
        if self._gap_count:
            metrics["itl_mean_ms"] = self._gap_sum / self._gap_count * 1e3
            metrics["itl_p50_ms"], metrics["itl_p99_ms"] = self._gap_quantile(0.5) * 1e3, self._gap_quantile(0.99) * 1e3
        if self.done:
            metrics["input_tokens"] = self.input_tokens / self.done
            metrics["output_tokens"] = self.output_tokens / self.done
        return metrics

    def quantiles(self) -> dict[str, float]:
        """Return percentiles of TTFT, TPOT, ITL and E2E, as `ttft_p95_ms` [ms]"""
        percentiles: dict[str, float] = {}
        for name, values in (("ttft", self._ttft), ("tpot", self._tpot), ("e2e", self._e2e)):
            if values:
                for share, value in zip(_PERCENTS, np.percentile(values, _PERCENTS), strict=True):
                    percentiles[f"{name}_p{share}_ms"] = float(value) * 1e3
        if self._gap_count:
            percentiles |= {f"itl_p{share}_ms": self._gap_quantile(share / 100) * 1e3 for share in _PERCENTS}
        return percentiles

    def errors(self) -> dict[str, float]:
        """Return the standard errors of mean TTFT and TPOT [ms]

        Simultaneous requests share disturbances: the larger of the plain error and the error over batches in time
        counts.
        """
        pairs = (("ttft_mean_ms", self._ttft), ("tpot_mean_ms", self._tpot))
        return {n: max(mean_error(v), batch_error(v)) * 1e3 for n, v in pairs if len(v) > 1}

    def late_p99(self) -> float:
        """Return the 99th percentile of the client's send delay [s]"""
        return float(np.percentile(self._late, 99)) if self._late else 0.0

    def faults_by_name(self) -> dict[str, Any]:
        """Return the count of each outcome that occurred."""
        return dict(sorted(self.outcomes.items()))

    def _gap_quantile(self, share: float) -> float:
        index = int(np.searchsorted(np.cumsum(self._gaps), share * self._gap_count))
        return _SHORTEST * math.exp((index + 0.5) * _BIN)


def mean_error(values: Iterable[float]) -> float:
    """Return the standard error of a mean, s / sqrt(n).

    Infinite for fewer than two values.

    Examples
    --------
    >>> mean_error([1.0, 3.0])
    1.0
    """
    array = np.asarray(list(values), dtype=float)
    return float(np.std(array, ddof=1) / math.sqrt(array.size)) if array.size > 1 else math.inf


def batch_error(values: Iterable[float], *, batches: int = 5) -> Ratio:
    """Return the standard error of the mean of a correlated series.

    Uses batch means over time-ordered values; zero for fewer than two in a batch.

    Examples
    --------
    >>> batch_error([1.0, 1.0, 3.0, 3.0], batches=2)
    1.0
    """
    array = np.asarray(list(values), dtype=float)
    length = array.size // batches
    if length < 2:
        return 0.0
    return mean_error(array[: length * batches].reshape(batches, length).mean(axis=1).tolist())


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths of prompts and answers; uniform between a share and the maximum."""

    input_tokens: TokenCount  # maximum
    output_tokens: TokenCount  # maximum
    shortest: Ratio = 1.0  # minimum over maximum; InferenceX draws from 0.8
    shared: TokenCount = 0  # common prefix of all prompts

    def draw(self, chance: random.Random) -> tuple[int, int]:
        """Return random prompt and answer tokens of one request.

        Examples
        --------
        >>> Lengths(64, 32).draw(random.Random(0))
        (64, 32)
        """
        low = [max(round(self.shortest * n), 1) for n in (self.input_tokens, self.output_tokens)]
        return chance.randint(low[0], max(self.input_tokens, 1)), chance.randint(low[1], max(self.output_tokens, 1))


@dataclass(frozen=True, slots=True)
class Arrival:
    """One scheduled request of an open loop."""

    at: Seconds  # from the start of the step
    input_tokens: TokenCount
    output_tokens: TokenCount


@dataclass(slots=True)
class Measured:
    """Results of one load step."""

    tally: Tally = field(default_factory=Tally)  # counted requests
    everything: Tally = field(default_factory=Tally)  # all requests: transient and faults too
    wall: Seconds = 0.0  # counted time
    output_rate: TokensPerSecond = 0.0
    input_rate: TokensPerSecond = 0.0
    output_error: TokensPerSecond = 0.0  # standard error
    transient: Seconds = 0.0  # uncounted start-up
    steady: bool = True  # True for steps of a fixed number of requests
    mean_running: float = 0.0  # mean concurrency


@dataclass(slots=True)
class Running:
    """Live values of a step, for a progress bar."""

    elapsed: Seconds = 0.0
    share: Ratio = 0.0  # progress
    done: int = 0
    faults: int = 0
    rate: TokensPerSecond = 0.0  # output in the last seconds
    ttft: Seconds = 0.0  # latest requests
    state: str = "starting"  # starting, measuring or draining


#: interval between checks of a step [s]
_TICK = 0.1
#: unfinished open-loop requests above which sending stops: the server is overloaded
_MOST_OPEN = 4096
#: tokens per bin for the steadiness test [token]
_LEAST = 4.0


def _over(longest: float) -> str:
    return f"still going on when the {longest:g} s of the step were over"


class Loader:
    """Send requests at one load level and count the responses.

    `stop` ends a step early with the results so far; `look` gets the live values several times a second; `seed` fixes
    lengths and prompts.
    """

    def __init__(
        self,
        client: Client,
        maker: PromptMaker,
        lengths: Lengths,
        *,
        guard: Guard,
        journal: Journal,
        stop: asyncio.Event,
        seed: int = 0,
        look: Callable[[Running], None] = lambda running: None,
    ) -> None:
        self.client, self.maker, self.lengths = client, maker, lengths
        self.guard, self.journal, self.stop, self.look = guard, journal, stop, look
        self._chance = random.Random(seed)
        self._users: list[asyncio.Task[None]] = []
        self._clock = TokenClock()
        self._begin = 0.0
        self._measured = Measured()
        self._waiting: list[RequestRecord] | None = None  # completed requests during the transient
        self._window = 0.0
        self._until = float("inf")
        self._asked = 0
        self._open = 0
        self._open_time = self._open_since = 0.0
        self._finished: list[int] = []
        self._mixed: float | None = None  # time by which every user completed a request
        self._ttft = 0.0
        self._overdue = ""  # fault text of requests unfinished at the end of the step

    async def until_steady(self, users: int, *, seconds: Seconds, longest: Seconds) -> Measured:
        """Hold a concurrency until the load is steady, then count for `seconds`.

        The first answers are cut to different shares of their length: users that end together would send their next
        prompts
        together and stay synchronised, which is an effect of the start and not a steady state. Requests count if they
        started after these and ended within the counted time; tokens count on arrival.
        """
        await self.leave()
        self._start(bin=min(max(seconds / 20, 0.05), 0.5))
        self._waiting = []
        self._finished = [0] * users
        self._users = [asyncio.create_task(self._user(n, share=(n + 1) / users)) for n in range(users)]
        counting = None
        while not self._ended():
            await asyncio.sleep(_TICK)
            elapsed = self._now()
            if counting is None:
                rates = self._clock.rates(elapsed, least=_LEAST)
                settled = self._mixed is not None and is_steady(rates, tolerance=0.1)
                if settled or elapsed > longest - seconds:
                    self._measured.steady = settled
                    width = self._clock.bin * self._clock.width(elapsed, least=_LEAST)
                    counting = max(transient_end(rates) * width, self._mixed or 0.0) if settled else elapsed - 1e-9
                    self._count_from(counting)
            end = seconds if counting is None else counting + seconds
            self._show(elapsed / max(end, 1e-9), "starting" if counting is None else "measuring")
            few = self._measured.tally.done < min(users, 3)
            if counting is not None and elapsed >= end and not (few and elapsed < longest):
                break
        if counting is None:
            # stopped before it was steady: results so far, marked as not steady
            self._measured.steady = False
            self._count_from(0.0)
        if self._now() >= longest and not self._measured.everything.done:
            self._overdue = _over(longest)
            await self.leave()
        self._fail_loudly(self._users)
        return self._end(self._window, self._now())

    async def requests(self, users: int, *, count: int, longest: Seconds = math.inf) -> Measured:
        """Send `count` requests at a limited concurrency and count them all.

        All users start together. After `longest` seconds unfinished requests are faults. The time is from the first
        request
        to the last token.
        """
        await self.leave()
        self._start()
        self._asked = count
        self._finished = [0] * users
        self._users = [asyncio.create_task(self._user(n, limited=True)) for n in range(min(users, count))]
        await self._watch(self._users, count, longest)
        return self._end(0.0, self._now())

    async def arrivals(self, schedule: Sequence[Arrival], *, longest: Seconds = math.inf) -> Measured:
        """Send requests on schedule, whatever is in flight, and count them all.

        After `longest` seconds unfinished requests are faults.
        """
        await self.leave()
        self._start()
        tasks: list[asyncio.Task[None]] = []
        sender = asyncio.create_task(self._send_on_time(schedule, tasks))
        self._users = tasks
        await self._watch([sender], len(schedule), longest)
        sender.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sender
        await self._watch(tasks, len(schedule), longest)
        return self._end(0.0, self._now())

    async def leave(self) -> None:
        """Stop all users; requests in flight count as cancelled."""
        for user in self._users:
            user.cancel()
        await asyncio.gather(*self._users, return_exceptions=True)
        self._users = []

    def _start(self, *, bin: float = 0.5) -> None:
        self._begin = self.client.clock()
        self._clock, self._measured, self._waiting = TokenClock(bin=bin), Measured(), None
        self._window, self._until, self._mixed = 0.0, float("inf"), None
        self._open_time, self._open_since, self._overdue = 0.0, self._begin, ""

    def _now(self) -> float:
        return self.client.clock() - self._begin

    def _ended(self) -> bool:
        return self.stop.is_set() or bool(self.guard.reason)

    async def _watch(self, tasks: list[asyncio.Task[None]], count: int, longest: float) -> None:
        while not self._ended() and any(not task.done() for task in tasks):
            if self._now() >= longest:
                self._overdue = _over(longest)
                break
            done = sum(self._measured.everything.outcomes.values())
            self._show(done / max(count, 1), "measuring")
            await asyncio.wait([task for task in tasks if not task.done()], timeout=_TICK)
        if self._ended() or self._overdue:
            for task in tasks:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail_loudly(tasks)

    def _fail_loudly(self, tasks: list[asyncio.Task[None]]) -> None:
        """Count the error of a task that ended unexpectedly."""
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                message = self.client.outside.clean(f"{type(error).__name__}: {error}")
                self._take(RequestRecord(self._now(), Outcome.UNFORESEEN, detail=message))

    async def _user(self, number: int, *, limited: bool = False, share: float = 1.0) -> None:
        pause = 0.1
        while not self._ended() and not self._overdue:
            if limited:
                if self._asked <= 0:
                    return
                self._asked -= 1
            prompt, answer = self.lengths.draw(self._chance)
            record = await self._one(prompt, max(math.ceil(answer * share), 1))
            share = 1.0
            if number < len(self._finished):
                self._finished[number] += 1
            if self._mixed is None and min(self._finished, default=0) > 0:
                self._mixed = self._now()
            if record.outcome.is_fault:
                # pause before the next request to a server that rejects
                await asyncio.sleep(pause)
                pause = min(2 * pause, 5.0)
            else:
                pause = 0.1

    async def _send_on_time(self, schedule: Sequence[Arrival], tasks: list[asyncio.Task[None]]) -> None:
        for arrival in schedule:
            await asyncio.sleep(max(arrival.at - self._now(), 0.0))
            if self._open >= _MOST_OPEN:
                lost = RequestRecord(self._now(), Outcome.CANCELLED, detail=f"{_MOST_OPEN} requests are in flight")
                self._take(lost)
                continue
            tasks.append(asyncio.create_task(self._at(arrival)))

    async def _at(self, arrival: Arrival) -> None:
        await self._one(arrival.input_tokens, arrival.output_tokens, due=arrival.at)

    async def _one(self, input_tokens: int, output_tokens: int, due: float | None = None) -> RequestRecord:
        late = max(self._now() - due, 0.0) if due is not None else 0.0
        sent = self.client.clock()
        self._count_open(+1)
        record = RequestRecord(sent, Outcome.CANCELLED, input_tokens=input_tokens)
        try:
            prompt = self.maker.make(input_tokens, self._chance, shared=self.lengths.shared)
            record = await self.client.send(prompt, output_tokens, prompt_tokens=input_tokens, on_chunk=self._chunk)
        except Exception as error:
            record.outcome = Outcome.UNFORESEEN
            record.detail = self.client.outside.clean(f"{type(error).__name__}: {error}")
        finally:
            self._count_open(-1)
            if record.outcome is Outcome.CANCELLED:
                record.e2e = self.client.clock() - sent
                if self._overdue:
                    record.outcome, record.detail = Outcome.UNFINISHED, self._overdue
            record.late = late
            record.start -= self._begin
            self._take(record)
        return record

    def _chunk(self, now: float) -> None:
        self._clock.add(now - self._begin)

    def _count_open(self, change: int) -> None:
        now = self.client.clock()
        self._open_time += self._open * (now - max(self._open_since, self._begin))
        self._open_since = now
        self._open += change

    def _take(self, record: RequestRecord) -> None:
        self._measured.everything.add(record)
        self._write(record)
        self.guard.request(record)
        if record.outcome is Outcome.DONE:
            self._ttft = record.ttft if not self._ttft else 0.8 * self._ttft + 0.2 * record.ttft
        if self._waiting is not None:
            self._waiting.append(record)
        else:
            self._count(record)

    def _count(self, record: RequestRecord) -> None:
        if record.start >= self._window and record.end <= self._until:
            self._measured.tally.add(record)
        record.gaps = []

    def _count_from(self, begin: float) -> None:
        self._window = begin
        waiting, self._waiting = self._waiting or [], None
        for record in waiting:
            self._count(record)

    def _write(self, record: RequestRecord) -> None:
        values = {
            "start": round(record.start, 6),
            "ttft": round(record.ttft, 6),
            "e2e": round(record.e2e, 6),
            "in": record.input_tokens,
            "out": record.output_tokens,
            "outcome": str(record.outcome),
        }
        for name in ("retries", "throttled", "cached_tokens", "hidden_tokens", "detail", "doubt"):
            if getattr(record, name):
                values[name] = getattr(record, name)
        if record.counted_by != "usage":
            values["counted_by"] = record.counted_by
        self.journal.write("request", **values)

    def _show(self, share: float, state: str) -> None:
        elapsed = self._now()
        last = self._clock.rates(elapsed)[-4:]
        seen = self._measured.everything
        self.look(
            Running(
                elapsed,
                min(share, 1.0),
                seen.done,
                seen.faults,
                sum(last) / len(last) if last else 0.0,
                self._ttft,
                state,
            )
        )

    def _end(self, begin: float, end: float) -> Measured:
        self._count_open(0)
        measured = self._measured
        measured.transient = begin
        measured.wall = max(end - begin, 1e-9)
        measured.mean_running = self._open_time / max(self._now(), 1e-9)
        if measured.tally.done:
            tokens_per_chunk = measured.everything.output_tokens / max(measured.everything.chunks, 1)
            first, last = round(begin / self._clock.bin), int(end / self._clock.bin)
            counted = self._clock.counts[first:last]
            measured.output_error = batch_error(counted) * tokens_per_chunk / self._clock.bin
            if begin > 0 and counted:
                # tokens by arrival: requests that cross the window count in part
                measured.output_rate = sum(counted) * tokens_per_chunk / (len(counted) * self._clock.bin)
            else:
                measured.output_rate = measured.tally.output_tokens / measured.wall
            ratio = measured.tally.input_tokens / max(measured.tally.output_tokens, 1)
            measured.input_rate = measured.output_rate * ratio
        return measured
