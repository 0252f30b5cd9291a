"""Streams of requests and their followers from a traffic spec."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, repeat

import numpy as np

from glmplan.catalog.files import read_table
from glmplan.errors import SpecError
from glmplan.simulation.traffic.conversations import Conversation, Turn, conversation_form, read_conversations
from glmplan.simulation.traffic.drafting import Acceptance
from glmplan.simulation.traffic.request import Request, apart, linked, together
from glmplan.simulation.traffic.spec import Traffic
from glmplan.simulation.traffic.traces import read_trace
from glmplan.units import Ratio, Seconds, finite_number

__all__ = [
    "CHUNK",
    "Chunk",
    "Source",
    "arrival_times",
    "dispersion",
    "draw_lengths",
    "request_chunks",
    "request_source",
]


# Sample traffic: arrival times and lengths, chunk by chunk, so ten million requests need no more memory than a few.

#: requests that are drawn at once: how many decides how random numbers are spent [-]
CHUNK = 16_384
#: longest prompt or answer that is drawn, far beyond any context [token]
_LONGEST = 1 << 31


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Some consecutive requests."""

    arrival: np.ndarray | None  # when each arrives; None in a closed loop, where a finish decides, [s]
    input_tokens: np.ndarray  # prompt lengths, [token]
    output_tokens: np.ndarray  # answer lengths, [token]


def _length_file(path: str) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of a CSV with `input_tokens` and `output_tokens`."""
    header, *lines = read_table(path) or [[]]
    places = []
    for column in ("input_tokens", "output_tokens"):
        if column not in header:
            raise SpecError("is missing", file=path, field=column, choices=header)
        places.append(header.index(column))
    rows = []
    for number, line in enumerate(lines, 2):
        try:
            rows += [[finite_number(line[place], header[place]) for place in places]] if line else []
        except (IndexError, SpecError):
            raise SpecError("holds a length that is not a finite number", file=path, field=f"line {number}") from None
    table = np.array(rows, dtype=float)
    if not len(table):
        raise SpecError("holds no requests", file=path)
    if np.any(table < 1):
        bad = int(np.argmax((table < 1).any(axis=1)))
        raise SpecError("is not a length of at least 1", file=path, field=f"line {bad + 2}", value=rows[bad])
    return table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)


def draw_lengths(traffic: Traffic) -> Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]:
    """Make the sampler of prompt and answer lengths.

    Returns: Takes a count and a generator; returns input and output lengths, [token].

    Examples
    --------
    >>> draw = draw_lengths(Traffic(kind="closed", users=1, input=100, output=10, jitter=0.2))
    >>> inputs, outputs = draw(1000, np.random.default_rng(0))
    >>> int(inputs.min()), int(inputs.max())
    (80, 100)
    """
    if traffic.lengths:
        inputs, outputs = _length_file(traffic.lengths)

        def resample(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
            rows = generator.integers(len(inputs), size=count)
            return inputs[rows], outputs[rows]

        return resample

    def one(nominal: int, cv: float, count: int, generator: np.random.Generator) -> np.ndarray:
        if cv:
            sigma = np.sqrt(np.log1p(cv * cv))
            drawn = generator.lognormal(np.log(nominal) - sigma * sigma / 2, sigma, count)
            return np.clip(np.rint(drawn), 1, _LONGEST).astype(np.int64)
        least = max(1, int(round(nominal * (1 - traffic.jitter))))
        return generator.integers(least, nominal + 1, count)

    def draw(count: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        return (
            one(traffic.input, traffic.input_cv, count, generator),
            one(traffic.output, traffic.output_cv, count, generator),
        )

    return draw


def arrival_times(traffic: Traffic, generator: np.random.Generator) -> Callable[[int], np.ndarray]:
    """Make the sampler of arrival times of an open stream.

    - `traffic`: Spec of kind `poisson`, `constant`, `gamma`, `onoff` or `daily`, or sessions with a rate.
    - Returns: Takes a count; returns the next so many times, rising, [s].

    Notes
    -----
    Bursts and silences of `onoff` last exponential times; within a burst arrivals are Poisson at the rate that makes
    the mean over both the rate of the spec. `daily` maps a Poisson stream of rate one through the inverse of the
    accumulated load of the profile.

    Examples
    --------
    >>> times = arrival_times(Traffic(kind="poisson", rate=2.0), np.random.default_rng(0))
    >>> bool(450 < times(1000)[-1] < 550)
    True
    """
    rate = float(traffic.rate or 0)
    last = 0.0

    def renewal(gaps: Callable[[int], np.ndarray]) -> Callable[[int], np.ndarray]:
        def take(count: int) -> np.ndarray:
            nonlocal last
            times = last + gaps(count).cumsum()
            last = float(times[-1]) if count else last
            return times

        return take

    if traffic.kind == "constant":
        sent = 0

        def equal(count: int) -> np.ndarray:
            nonlocal sent
            times: np.ndarray = np.arange(sent + 1, sent + count + 1) / rate
            sent += count
            return times

        return equal
    if traffic.kind == "gamma":
        shape = 1 / traffic.cv**2
        return renewal(lambda count: generator.gamma(shape, 1 / (shape * rate), count))
    if traffic.kind == "onoff":
        busy = renewal(lambda count: generator.exponential(traffic.on / (traffic.on + traffic.off) / rate, count))
        on_end, silence = generator.exponential(traffic.on), 0.0

        def bursts(count: int) -> np.ndarray:
            nonlocal on_end, silence
            within = busy(count)
            ends, before = [on_end], [silence]
            while ends[-1] <= within[-1]:
                ends.append(ends[-1] + generator.exponential(traffic.on))
                before.append(before[-1] + generator.exponential(traffic.off))
            on_end, silence = ends[-1], before[-1]
            result: np.ndarray = within + np.array(before)[np.searchsorted(ends, within, side="right")]
            return result

        return bursts
    if traffic.kind == "daily":
        load = np.array(traffic.profile) / np.mean(traffic.profile)
        edges = np.linspace(0, 86_400, len(load) + 1)
        reached = np.r_[0, (load * np.diff(edges) * rate).cumsum()]
        keep = np.r_[True, np.diff(reached) > 0]
        unit = renewal(lambda count: generator.exponential(1.0, count))

        def through_the_day(count: int) -> np.ndarray:
            days, rest = np.divmod(unit(count), reached[-1])
            return days * 86_400 + np.interp(rest, reached[keep], edges[keep])

        return through_the_day
    return renewal(lambda count: generator.exponential(1 / rate, count))


def dispersion(traffic: Traffic) -> Ratio:
    """Return the index of dispersion of arrivals: variance over mean.

    References
    ----------
    .. [1] D. Cox, P. Lewis, "The Statistical Analysis of Series of Events", Methuen 1966: of a renewal stream it is the
       square of the coefficient of variation of its gaps.
    .. [2] W. Fischer, K. Meier-Hellstern, "The Markov-modulated Poisson process (MMPP) cookbook", Performance
       Evaluation 18 (1993) 149-171: of bursts and silences that last exponential times.

    Examples
    --------
    >>> dispersion(Traffic(kind="gamma", rate=1.0, cv=3.0))
    9.0
    >>> dispersion(Traffic(kind="onoff", rate=2.0, on=10.0, off=30.0))
    91.0
    """
    if traffic.kind == "constant":
        return 0.0
    if traffic.kind == "gamma":
        return traffic.cv**2
    if traffic.kind == "onoff":
        return 1.0 + 2.0 * float(traffic.rate or 0.0) * traffic.off**2 / (traffic.on + traffic.off)
    return 1.0


def request_chunks(traffic: Traffic, count: int, generator: np.random.Generator, size: int = CHUNK) -> Iterator[Chunk]:
    """Sample requests that have nothing to do with each other.

    `traffic`: Spec of any kind but `trace` and `sessions`.

    Examples
    --------
    >>> chunks = request_chunks(Traffic(kind="poisson", rate=1.0), 10, np.random.default_rng(0), 4)
    >>> [len(chunk.input_tokens) for chunk in chunks]
    [4, 4, 2]
    """
    lengths = draw_lengths(traffic)
    times = arrival_times(traffic, generator) if traffic.kind != "closed" else None
    while count > 0:
        some = min(count, size)
        inputs, outputs = lengths(some, generator)
        yield Chunk(times(some) if times else None, inputs, outputs)
        count -= some


_CHUNK = 4096
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Source:
    """A stream of requests."""

    arrivals: Iterator[Request]  # requests whose arrival is known beforehand, in order
    #: takes a request that ended and the time; returns the one that follows, or None
    after: Callable[[Request, float], Request | None] | None


def request_source(
    traffic: Traffic,
    count: int,
    generator: np.random.Generator,
    acceptance: Acceptance | None = None,
    lag: Seconds = 0.0,
    ranks: int = 1,
) -> Source:
    """Make the stream of requests of a traffic spec.

    - `count`: Requests in all; a trace may hold fewer.
    - `acceptance`: Speculation, which turns answer tokens into fewer steps.
    - `lag`: Time of the front end before the engine sees a request.
    - `ranks`: Ranks in lockstep, to which users who send at the same instant come together.
    - Returns: The stream; arrivals are those at the engine.

    Examples
    --------
    >>> source = request_source(Traffic(kind="closed", users=2), 3, np.random.default_rng(0))
    >>> [r.arrival for r in source.arrivals]
    [0.0, 0.0]
    >>> source.after(Request(0, 0.0, 1, 1), 7.5).arrival
    7.5
    """
    if traffic.marked:
        return _marked(traffic, request_source(traffic.unmarked, count, generator, acceptance, lag, ranks), lag)
    if lag:
        source = request_source(traffic, count, generator, acceptance)
        if traffic.users is None:
            return Source(_late(source.arrivals, lag), _late_after(source.after, lag) if source.after else None)
        began = list(_late(source.arrivals, lag, apart(lag), ranks))
        # users who send at once what answers the last: in order, without pauses
        last = began[-1].arrival if began and traffic.kind == "closed" and not traffic.think else None
        return Source(iter(began), _late_after(source.after, lag, last, ranks) if source.after else None)
    if traffic.kind == "trace" and conversation_form(str(traffic.file)):
        return _conversations(traffic, count, generator, acceptance)
    if traffic.kind == "trace":
        for name in ("users", "rate"):
            if getattr(traffic, name) is not None:
                message = "has no effect on recorded arrivals, only on conversations: speed=2 sends them twice as fast"
                raise SpecError(message, file=str(traffic.file), field=name, value=getattr(traffic, name))
        return Source(_replayed(traffic, count, generator, acceptance), None)
    if traffic.kind == "sessions":
        return _sessions(traffic, count, generator, acceptance)
    stream = _independent(traffic, count, generator, acceptance)
    if traffic.kind != "closed":
        return Source(stream, None)
    users = min(int(traffic.users or 1), count)

    def first() -> Iterator[Request]:
        for user in range(users):
            request = next(stream)
            request.arrival = traffic.ramp * user / users
            yield request

    pauses = _exponentials(traffic.think, generator)

    def after(_: Request, now: float) -> Request | None:
        follow = next(stream, None)
        if follow is not None:
            follow.arrival = now + next(pauses) if traffic.think else now
        return follow

    return Source(iter(list(first())), after)


def _late(arrivals: Iterator[Request], lag: float, gap: float = 0.0, ranks: int = 1) -> Iterator[Request]:
    last = -gap
    for number, request in enumerate(arrivals):
        request.arrival = last = max(request.arrival + lag, last + (0.0 if number % ranks else gap))
        yield request


def _late_after(
    after: Callable[[Request, float], Request | None], lag: float, last: float | None = None, ranks: int = 1
) -> Callable[[Request, float], Request | None]:
    """Return the following requests after the front end, in order.

    They stay behind `last` and each other; on ranks in lockstep, behind those that follow requests of the same rank.
    """
    behind: dict[int, float] = {}

    def later(request: Request, now: float) -> Request | None:
        follow = first = after(request, now)
        while follow is not None:
            follow.arrival += lag
            if last is not None:
                rank = request.replica if ranks > 1 else 0
                follow.arrival = behind[rank] = max(follow.arrival, behind.get(rank, last) + apart(lag))
            follow = follow.then
        return first

    return later


def _marked(traffic: Traffic, source: Source, lag: float) -> Source:
    """Return the stream with priorities, images and patience of its requests."""

    def mark(request: Request) -> Request:
        who = request.session if request.session >= 0 else request.number
        # evenly among all, so that no randomness is spent: every part of a golden ratio lies in another place
        request.priority = int((who + 1) * _GOLDEN % 1.0 >= traffic.urgent) if traffic.urgent else 0
        request.images = int(traffic.images + (request.number + 1) * _GOLDEN % 1.0)
        if traffic.patience is not None:
            request.leaves = request.arrival - lag + traffic.patience
        return request

    def follows(request: Request, now: float) -> Request | None:
        return linked([mark(one) for one in together(source.after(request, now) if source.after else None)])

    return Source(map(mark, source.arrivals), follows if source.after else None)


def _exponentials(mean: float, generator: np.random.Generator) -> Iterator[float]:
    """Endless pauses; no randomness is spent where there is none."""
    while True:
        yield from (generator.exponential(mean, _CHUNK) if mean else np.zeros(_CHUNK)).tolist()


def _steps(outputs: np.ndarray, acceptance: Acceptance | None, generator: np.random.Generator) -> list[int]:
    rest: list[int] = (acceptance.steps(outputs - 1, generator) if acceptance else outputs - 1).tolist()
    return rest


def _independent(
    traffic: Traffic, count: int, generator: np.random.Generator, acceptance: Acceptance | None
) -> Iterator[Request]:
    return chain.from_iterable(_independent_chunks(traffic, count, generator, acceptance))


def _independent_chunks(
    traffic: Traffic, count: int, generator: np.random.Generator, acceptance: Acceptance | None
) -> Iterator[Iterable[Request]]:
    number, shared = 0, traffic.shared_prefix
    for chunk in request_chunks(traffic, count, generator):
        steps = _steps(chunk.output_tokens, acceptance, generator)
        times = chunk.arrival.tolist() if chunk.arrival is not None else [0.0] * len(steps)
        lengths = chunk.input_tokens.tolist(), chunk.output_tokens.tolist()
        numbers = range(number, number + len(steps))
        number += len(steps)
        if shared:
            yield map(Request, numbers, times, *lengths, steps, map(_shared_head, repeat(shared), numbers, lengths[0]))
        else:
            yield map(Request, numbers, times, *lengths, steps)


def _shared_head(shared: int, number: int, inputs: int) -> tuple[tuple[object, int], ...]:
    """The runs of a prompt that begins as all others do."""
    common = min(shared, inputs - 1)
    return (("prefix", common), (("request", number), inputs - common)) if common else ()


def _replayed(
    traffic: Traffic, count: int, generator: np.random.Generator, acceptance: Acceptance | None
) -> Iterator[Request]:
    for request in read_trace(str(traffic.file), traffic.speed):
        if request.number >= count:
            return
        if acceptance is not None and request.output > 1:
            request.steps = request.left = int(acceptance.steps(np.array([request.output - 1]), generator)[0])
        yield request


def _conversations(
    traffic: Traffic, count: int, generator: np.random.Generator, acceptance: Acceptance | None
) -> Source:
    """Recorded conversations: a turn follows an answer and a pause."""
    recorded = read_conversations(str(traffic.file), traffic.output)
    waiting = iter(range(len(recorded)))
    issued = 0
    running: dict[int, _Running] = {}

    def turns(who: int, ready: list[tuple[int, float]]) -> list[Request]:
        nonlocal issued
        made = []
        for number, begins in ready:
            if issued >= count:
                break
            ready += running[who].released(number, begins, sent=True)
            one = recorded[who].turns[number]
            steps = _steps(np.array([one.output_tokens]), acceptance, generator)[0]
            runs = one.content or ((("session", who), one.input_tokens),)
            made.append(Request(issued, begins, one.input_tokens, one.output_tokens, steps, runs, who, number))
            issued += 1
        running[who].open += len(made)
        return made

    def begin(at: float) -> list[Request]:
        who = next(waiting, None)
        if who is None:
            return []
        running[who] = _Running(recorded[who].turns, at, traffic.speed)
        return turns(who, running[who].first)

    def after(request: Request, now: float) -> Request | None:
        who = request.session
        conversation = running[who]
        conversation.open -= 1
        ready = conversation.released(request.turn, now) if request.finish >= 0 else []
        follows = turns(who, ready)
        if conversation.open:
            return linked(follows)
        del running[who]
        return linked(begin(now)) if traffic.users is not None else None

    def arrivals() -> Iterator[Request]:
        later: list[tuple[float, int, Request]] = []  # first turns that begin after the conversation
        for at in _starts(traffic, recorded, generator):
            for request in begin(at):
                heappush(later, (request.arrival, request.number, request))
            while later and later[0][0] <= at:
                yield heappop(later)[2]
        while later:
            yield heappop(later)[2]

    return Source(arrivals(), after)


def _starts(traffic: Traffic, recorded: list[Conversation], generator: np.random.Generator) -> Iterator[float]:
    """When the conversations begin that follow no other, [s]."""
    if traffic.users is not None:
        yield from (traffic.ramp * user / traffic.users for user in range(traffic.users))
    elif traffic.rate is not None:
        times = arrival_times(traffic, generator)
        yield from (float(times(1)[0]) for _ in recorded)
    elif any(one.start is None for one in recorded):
        raise SpecError(
            "does not say when conversations begin: give users or a rate, as in trace:FILE,users=16",
            file=str(traffic.file),
        )
    else:
        yield from ((one.start or 0.0) / traffic.speed for one in recorded)


class _Running:
    """Which turns of a conversation wait for which."""

    __slots__ = ("_begins", "_follow", "_missing", "first", "open")

    def __init__(self, turns: tuple[Turn, ...], at: Seconds, speed: Ratio) -> None:
        self.open = 0  # turns that are under way
        self.first: list[tuple[int, float]] = []  # turns that wait for none, and when they begin
        self._begins, self._missing = [at] * len(turns), [0] * len(turns)
        self._follow: dict[int, list[tuple[int, float, bool]]] = {}  # turns behind a turn, as `Turn.pauses`
        for i, turn in enumerate(turns):
            before = turn.after if turn.after is not None else (i - 1,) if i else ()
            self._missing[i] = len(before)
            if turn.pauses:
                self._begins[i] += turn.wait / speed
            elif not before:
                self.first.append((i, at + turn.wait / speed * (turn.after is not None)))
            for one, (pause, sent) in zip(before, turn.pauses or [(turn.wait, False)] * len(before), strict=True):
                self._follow.setdefault(one, []).append((i, pause / speed, sent))

    def released(self, turn: int, now: Seconds, sent: bool = False) -> list[tuple[int, float]]:
        """Return the turns that waited for this one alone, and when they begin.

        `sent`: True if it was sent now, False if it ended.
        """
        ready = []
        for i, pause, of_sending in self._follow.get(turn, ()):
            if of_sending is sent:
                self._missing[i] -= 1
                self._begins[i] = max(self._begins[i], now + pause)
                if not self._missing[i]:
                    ready.append((i, self._begins[i]))
        return ready


def _sessions(traffic: Traffic, count: int, generator: np.random.Generator, acceptance: Acceptance | None) -> Source:
    """Agents: each turn sends the whole conversation and some new tokens."""
    lengths = draw_lengths(traffic)
    waits = _exponentials(traffic.tool_wait, generator)
    system = traffic.shared_prefix
    issued, session = 0, -1
    left: dict[int, int] = {}

    def pieces() -> Iterator[tuple[int, int, int]]:
        while True:
            inputs, outputs = lengths(_CHUNK, generator)
            yield from zip(inputs.tolist(), outputs.tolist(), _steps(outputs, acceptance, generator), strict=True)

    piece = pieces()

    def turn(at: float, who: int, number: int, context: int) -> Request | None:
        nonlocal issued
        if issued >= count:
            return None
        fresh, outputs, steps = next(piece)
        inputs = context + fresh
        runs: tuple[tuple[object, int], ...] = ((("session", who), inputs - system),)
        if system:
            runs = (("system", system), *runs)
        issued += 1
        return Request(issued - 1, at, inputs, outputs, steps, runs, who, number)

    def begin(at: float) -> Request | None:
        nonlocal session
        session += 1
        left[session] = int(generator.geometric(1 / traffic.turns)) - 1
        return turn(at, session, 0, system + traffic.start)

    def after(request: Request, now: float) -> Request | None:
        rest = left.get(request.session, 0)
        if rest and request.finish >= 0:
            left[request.session] = rest - 1
            context = request.input + request.output
            return turn(now + next(waits), request.session, request.turn + 1, context)
        left.pop(request.session, None)
        return begin(now + next(waits)) if traffic.users is not None else None

    def arrivals() -> Iterator[Request]:
        if traffic.users is not None:
            for user in range(traffic.users):
                request = begin(traffic.ramp * user / traffic.users)
                if request is None:
                    return
                yield request
            return
        times = arrival_times(traffic, generator)
        while issued < count:
            at = float(times(1)[0])
            request = begin(at)
            if request is None:
                return
            yield request

    return Source(arrivals(), after)
