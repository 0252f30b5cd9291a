"""Offering load to a server: users in a closed loop, or requests at given times, in one step at one level."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable, Sequence

from glmplan.measure.client import Client
from glmplan.measure.guard import Guard
from glmplan.measure.journal import Journal
from glmplan.measure.load_records import Arrival, Lengths, Measured, Running
from glmplan.measure.prompts import PromptMaker
from glmplan.measure.request_result import Outcome, RequestRecord
from glmplan.measure.statistics import batch_error
from glmplan.measure.steady import TokenClock, is_steady, transient_end

__all__ = ["Loader"]


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

    async def until_steady(self, users: int, *, seconds: float, longest: float) -> Measured:
        """Keep a number of users going until the load is steady, then count for some seconds.

        All users start anew, and their first answers are cut to different shares of their length: users who end
        together would send their next prompts together and stay in step for ever, which is no steady state but a memory
        of the start. A request counts if it began after these and ended within the counted time; tokens count when they
        arrive.

        Parameters
        ----------
        users : int
            Requests kept in flight, [-]
        seconds : float
            Counted time, [s]
        longest : float
            Time for the whole step, [s]

        Returns
        -------
        Measured
            The step.
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

    async def requests(self, users: int, *, count: int, longest: float = math.inf) -> Measured:
        """Send a number of requests, at most so many at once, all users starting together, and count them all.

        Parameters
        ----------
        users : int
            Requests in flight, [-]
        count : int
            Requests in all, [-]
        longest : float, optional
            Time for the whole step; what is unfinished then is a fault, [s]

        Returns
        -------
        Measured
            The step; its time is from the first request to the last token.
        """
        await self.leave()
        self._start()
        self._asked = count
        self._finished = [0] * users
        self._users = [asyncio.create_task(self._user(n, limited=True)) for n in range(min(users, count))]
        await self._watch(self._users, count, longest)
        return self._end(0.0, self._now())

    async def arrivals(self, schedule: Sequence[Arrival], *, longest: float = math.inf) -> Measured:
        """Send requests at given times, whatever is still in flight, and count them all.

        Parameters
        ----------
        schedule : sequence of Arrival
            Requests in order of time.
        longest : float, optional
            Time for the whole step; what is unfinished then is a fault, [s]

        Returns
        -------
        Measured
            The step.
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
