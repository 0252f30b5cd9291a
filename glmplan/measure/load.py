"""Offering load to a server: users in a closed loop, or requests at given times, in one step at one level."""

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
from glmplan.units import Ratio, Seconds, Tokens

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


# Where a load step stops changing: the start-up transient is found, not assumed.


def transient_end(series: Sequence[float], *, batch: int = 5) -> int:
    """Return where the transient of a series ends, by MSER-5.

    Of all truncations up to half of the series the one is taken that leaves the smallest standard error of the mean
    of what remains, over means of `batch` neighbours.

    - `series`: Observations at equal distances, shape (n,), in one unit.
    - Returns: Index of the first observation of the steady part.

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
    ends = np.arange(means.size // 2 + 1)
    left = means.size - ends
    spread = np.array([np.square(means[end:] - means[end:].mean()).sum() for end in ends])
    scores = spread / np.square(left)
    # what differs by rounding only is equal, and of equals the shortest transient counts
    equal = scores <= scores.min() + 1e-12 * float(np.square(means.mean()))
    return int(ends[np.argmax(equal)]) * batch


def is_steady(series: Sequence[float], *, tolerance: Ratio = 0.05, batch: int = 5) -> bool:
    """Tell whether what follows the transient no longer drifts.

    Its first and second half must agree within a tolerance or within two standard errors of their difference.

    - `series`: Observations at equal distances, shape (n,), in one unit.
    - `tolerance`: Allowed difference of the halves over the mean.
    - Returns: Whether the series is steady. Fewer than four batches after the transient never are.

    Examples
    --------
    >>> is_steady([5.0, 5.1, 4.9, 5.0, 5.1] * 8), is_steady(range(40))
    (True, False)
    """
    values = np.asarray(series, dtype=float)
    begin = transient_end(values.tolist(), batch=batch)
    # a transient that fills all that may be cut is a drift that has not ended
    if begin >= values.size // batch // 2 * batch > 0:
        return False
    kept = values[begin : begin + (values.size - begin) // batch * batch].reshape(-1, batch).mean(axis=1)
    if kept.size < 4:
        return False
    first, second = kept[: kept.size // 2], kept[kept.size // 2 :]
    difference = abs(float(first.mean() - second.mean()))
    error = float(np.sqrt(first.var(ddof=1) / first.size + second.var(ddof=1) / second.size))
    return difference <= max(tolerance * float(kept.mean()), min(2.0 * error, 4 * tolerance * float(kept.mean())))


class TokenClock:
    """Counts tokens in bins of equal length while a step runs.

    Parameters
    ----------
    bin : float, optional
        Length of a bin, [s]

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
        """Count tokens.

        `at`: When they came, from the begin of the step.
        """
        place = math.floor(at / self.bin)
        if place < 0:
            return
        if place >= len(self.counts):
            self.counts.extend([0.0] * (place + 1 - len(self.counts)))
        self.counts[place] += tokens

    def rates(self, until: Seconds, *, least: Tokens = 0.0) -> list[float]:
        """Return the rate in each whole bin.

        - `until`: End of what is known, from the begin of the step.
        - `least`: Bins are put together until they hold so many tokens on average: fewer are chance, not a rate.
        - Returns: Rates, [token/s].
        """
        whole = int(until / self.bin)
        counts = self.counts[:whole] + [0.0] * max(whole - len(self.counts), 0)
        width = self.width(until, least=least)
        merged = [sum(counts[i : i + width]) for i in range(0, whole - width + 1, width)]
        return [count / (self.bin * width) for count in merged]

    def width(self, until: Seconds, *, least: Tokens) -> int:
        """Return how many bins `rates` puts together."""
        mean = sum(self.counts) / max(int(until / self.bin), 1)
        return max(math.ceil(least / mean), 1) if mean > 0 else 1


# Statistics of many requests in little memory: exact means, percentiles of request figures, a histogram of gaps.

#: Gaps fall into bins 1 % wide from a microsecond up, so that 10,000 requests of 1,000 tokens need a few kB.
_BIN = math.log(1.01)
_SHORTEST = 1e-6
_BINS = 2200
#: percentiles that a promise may bound
_PERCENTS = (50, 90, 95, 99)


class Tally:
    """Figures of a set of requests, each by its definition in `vllm bench serve`.

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
        self._ttft, self._tpot, self._e2e, self._late = array("d"), array("d"), array("d"), array("d")
        self._gaps = np.zeros(_BINS, dtype=np.int64)
        self._gap_sum, self._gap_count = 0.0, 0

    @property
    def done(self) -> int:
        """Requests that ended well, [-]"""
        return self.outcomes[Outcome.DONE]

    @property
    def faults(self) -> int:
        """Requests that ended in a fault, [-]"""
        return sum(count for name, count in self.outcomes.items() if Outcome(name).is_fault)

    def add(self, record: RequestRecord) -> None:
        """Take one request; times count only of requests that ended well."""
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
        """Return the latency figures in the columns of the measurement tables.

        Returns: `ttft_mean_ms` and so on, `input_tokens` and `output_tokens` for each request.
        """
        found: dict[str, float] = {}
        for name, values in (("ttft", self._ttft), ("tpot", self._tpot), ("e2e", self._e2e)):
            if values:
                p50, p99 = np.percentile(values, [50, 99])
                found[f"{name}_mean_ms"] = float(np.mean(values)) * 1e3
                if name != "e2e":
                    found[f"{name}_p50_ms"] = float(p50) * 1e3
                found[f"{name}_p99_ms"] = float(p99) * 1e3
        if self._gap_count:
            found["itl_mean_ms"] = self._gap_sum / self._gap_count * 1e3
            found["itl_p50_ms"], found["itl_p99_ms"] = self._gap_quantile(0.5) * 1e3, self._gap_quantile(0.99) * 1e3
        if self.done:
            found["input_tokens"] = self.input_tokens / self.done
            found["output_tokens"] = self.output_tokens / self.done
        return found

    def quantiles(self) -> dict[str, float]:
        """Return every percentile that a promise may bound.

        Returns: `ttft_p95_ms` and so on for TTFT, TPOT, ITL and whole answers, [ms].
        """
        found: dict[str, float] = {}
        for name, values in (("ttft", self._ttft), ("tpot", self._tpot), ("e2e", self._e2e)):
            if values:
                for share, value in zip(_PERCENTS, np.percentile(values, _PERCENTS), strict=True):
                    found[f"{name}_p{share}_ms"] = float(value) * 1e3
        if self._gap_count:
            found |= {f"itl_p{share}_ms": self._gap_quantile(share / 100) * 1e3 for share in _PERCENTS}
        return found

    def errors(self) -> dict[str, float]:
        """Return the standard errors of the means of TTFT and TPOT, [ms]

        Requests of one moment share what disturbs the machine, so the error is also taken over batches in time and
        the larger one counts.
        """
        pairs = (("ttft_mean_ms", self._ttft), ("tpot_mean_ms", self._tpot))
        return {n: max(mean_error(v), batch_error(v)) * 1e3 for n, v in pairs if len(v) > 1}

    def late_p99(self) -> float:
        """Return how late the client sent at the 99th percentile, [s]"""
        return float(np.percentile(self._late, 99)) if self._late else 0.0

    def faults_by_name(self) -> dict[str, Any]:
        """Return the count of each outcome that occurred."""
        return dict(sorted(self.outcomes.items()))

    def _gap_quantile(self, share: float) -> float:
        place = int(np.searchsorted(np.cumsum(self._gaps), share * self._gap_count))
        return _SHORTEST * math.exp((place + 0.5) * _BIN)


def mean_error(values: Iterable[float]) -> float:
    """Return the standard error of a mean, s / sqrt(n).

    - `values`: Observations, shape (n,), [any unit].
    - Returns: Standard error, [unit of the values]; infinite for fewer than two.

    Examples
    --------
    >>> mean_error([1.0, 3.0])
    1.0
    """
    kept = np.asarray(list(values), dtype=float)
    return float(np.std(kept, ddof=1) / math.sqrt(kept.size)) if kept.size > 1 else math.inf


def batch_error(values: Iterable[float], *, batches: int = 5) -> Ratio:
    """Return the standard error of the mean of a series whose neighbours are alike, by batch means.

    - `values`: Observations in time order, shape (n,), in one unit.
    - Returns: Standard error, in the unit of the values; zero for fewer than two observations in a batch.

    Examples
    --------
    >>> batch_error([1.0, 1.0, 3.0, 3.0], batches=2)
    1.0
    """
    kept = np.asarray(list(values), dtype=float)
    length = kept.size // batches
    if length < 2:
        return 0.0
    return mean_error(kept[: length * batches].reshape(batches, length).mean(axis=1).tolist())


# The nouns of a load step: what is offered, what is running, what was measured.


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long prompts and answers are.

    Parameters
    ----------
    input_tokens, output_tokens : int
        The longest, [token]
    shortest : float, optional
        Lengths are uniform from this share of the longest up, as InferenceX draws them (0.8), [-]
    shared : int, optional
        Tokens at the beginning that all prompts share, [token]
    """

    input_tokens: int
    output_tokens: int
    shortest: float = 1.0
    shared: int = 0

    def draw(self, chance: random.Random) -> tuple[int, int]:
        """Draw the lengths of one request.

        Returns: Tokens of the prompt and of the answer, [token].

        Examples
        --------
        >>> Lengths(64, 32).draw(random.Random(0))
        (64, 32)
        """
        low = [max(round(self.shortest * n), 1) for n in (self.input_tokens, self.output_tokens)]
        return chance.randint(low[0], max(self.input_tokens, 1)), chance.randint(low[1], max(self.output_tokens, 1))


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request of an open loop.

    Parameters
    ----------
    at : float
        When it is sent, from the begin of the step, [s]
    input_tokens, output_tokens : int
        Its lengths, [token]
    """

    at: float
    input_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Measured:
    """What one step of the load gave.

    Parameters
    ----------
    tally : Tally
        Requests that count.
    everything : Tally
        All requests of the step, transient and faults included.
    wall : float
        Length of what counts, [s]
    output_rate, input_rate : float
        Tokens while it was counted, [token/s]
    output_error : float
        Standard error of the output rate, [token/s]
    transient : float
        How long the start-up took that does not count, [s]
    steady : bool
        Whether the step reached a steady state (always true where a number of requests was asked for).
    mean_running : float
        Requests in flight on average, [-]
    """

    tally: Tally = field(default_factory=Tally)
    everything: Tally = field(default_factory=Tally)
    wall: float = 0.0
    output_rate: float = 0.0
    input_rate: float = 0.0
    output_error: float = 0.0
    transient: float = 0.0
    steady: bool = True
    mean_running: float = 0.0


@dataclass(slots=True)
class Running:
    """The running figures of a step, for a progress bar.

    Parameters
    ----------
    elapsed, share : float
        Time since the step began [s] and how far it is [-]
    done, faults : int
        Requests so far, [-]
    rate : float
        Output tokens in the last seconds, [token/s]
    ttft : float
        Of the last requests, [s]
    state : str
        `starting`, `measuring` or `draining`.
    """

    elapsed: float = 0.0
    share: float = 0.0
    done: int = 0
    faults: int = 0
    rate: float = 0.0
    ttft: float = 0.0
    state: str = "starting"


#: How often a step is looked at, [s]
_TICK = 0.1
#: Unfinished requests of an open loop beyond which no more are sent: the server has long lost.
_MOST_OPEN = 4096
#: Tokens in a bin of the rate whose steadiness is tested, [token]
_LEAST = 4.0


def _over(longest: float) -> str:
    return f"still going on when the {longest:g} s of the step were over"


class Loader:
    """Sends requests and counts what comes back.

    Parameters
    ----------
    client : Client
        The server.
    maker : PromptMaker
        Makes the prompts.
    lengths : Lengths
        How long prompts and answers are.
    guard : Guard
        Stops the load.
    journal : Journal
        Keeps every request.
    stop : asyncio.Event
        Set from outside to end early with what there is.
    seed : int, optional
        Seed of lengths and prompts, [-]
    look : callable, optional
        Called with the running figures some times a second.
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
        self._waiting: list[RequestRecord] | None = None  # ended requests while the transient lasts
        self._window = 0.0
        self._until = float("inf")
        self._asked = 0
        self._open = 0
        self._open_time = self._open_since = 0.0
        self._finished: list[int] = []
        self._mixed: float | None = None  # when every user had ended a first request
        self._ttft = 0.0
        self._overdue = ""  # why what is still going on is a fault, once the time of the step is over

    async def until_steady(self, users: int, *, seconds: Seconds, longest: Seconds) -> Measured:
        """Keep a number of users going until the load is steady, then count for some seconds.

        All users start anew, and their first answers are cut to different shares of their length: users who end
        together would send their next prompts together and stay in step for ever, which is no steady state but a memory
        of the start. A request counts if it began after these and ended within the counted time; tokens count when they
        arrive.
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
            # stopped before it was steady: what there is counts, and says so
            self._measured.steady = False
            self._count_from(0.0)
        if self._now() >= longest and not self._measured.everything.done:
            self._overdue = _over(longest)
            await self.leave()
        self._fail_loudly(self._users)
        return self._end(self._window, self._now())

    async def requests(self, users: int, *, count: int, longest: Seconds = math.inf) -> Measured:
        """Send a number of requests, at most so many at once, all users starting together, and count them all.

        - `longest`: Time for the whole step; what is unfinished then is a fault.
        - Returns: The step; its time is from the first request to the last token.
        """
        await self.leave()
        self._start()
        self._asked = count
        self._finished = [0] * users
        self._users = [asyncio.create_task(self._user(n, limited=True)) for n in range(min(users, count))]
        await self._watch(self._users, count, longest)
        return self._end(0.0, self._now())

    async def arrivals(self, schedule: Sequence[Arrival], *, longest: Seconds = math.inf) -> Measured:
        """Send requests at given times, whatever is still in flight, and count them all.

        `longest`: Time for the whole step; what is unfinished then is a fault.
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
        """End all users; requests in flight are given up and counted as cancelled."""
        for user in self._users:
            user.cancel()
        await asyncio.gather(*self._users, return_exceptions=True)
        self._users = []

    # --- inside ---------------------------------------------------------------------------------------------------

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
        """Count what ended a task that should have gone on: nothing dies silently."""
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                said = self.client.outside.clean(f"{type(error).__name__}: {error}")
                self._take(RequestRecord(self._now(), Outcome.UNFORESEEN, detail=said))

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
                # a server that refuses must not be hammered
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
        for name in ("retries", "throttled", "cached_tokens", "detail", "doubt"):
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
        found = self._measured
        found.transient = begin
        found.wall = max(end - begin, 1e-9)
        found.mean_running = self._open_time / max(self._now(), 1e-9)
        if found.tally.done:
            tokens_per_chunk = found.everything.output_tokens / max(found.everything.chunks, 1)
            first, last = round(begin / self._clock.bin), int(end / self._clock.bin)
            whole = self._clock.counts[first:last]
            found.output_error = batch_error(whole) * tokens_per_chunk / self._clock.bin
            if begin > 0 and whole:
                # tokens by arrival: requests cut by the edges of the window count with their part
                found.output_rate = sum(whole) * tokens_per_chunk / (len(whole) * self._clock.bin)
            else:
                found.output_rate = found.tally.output_tokens / found.wall
            ratio = found.tally.input_tokens / max(found.tally.output_tokens, 1)
            found.input_rate = found.output_rate * ratio
        return found
