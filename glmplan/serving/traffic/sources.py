"""From a traffic spec to a stream of requests and to what follows each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, repeat

import numpy as np

from glmplan.errors import SpecError
from glmplan.serving.traffic.arrivals import arrival_times, draw_lengths, request_chunks
from glmplan.serving.traffic.conversations import conversation_form, read_conversations
from glmplan.serving.traffic.drafting import Acceptance
from glmplan.serving.traffic.request import Request, apart
from glmplan.serving.traffic.spec import Traffic
from glmplan.serving.traffic.traces import read_trace

__all__ = ["Source", "request_source"]

_CHUNK = 4096
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Source:
    """A stream of requests.

    Parameters
    ----------
    arrivals : iterator of Request
        Requests whose arrival is known beforehand, in order.
    after : callable or None
        Takes a request that ended and the time; returns the one that follows, or None.
    """

    arrivals: Iterator[Request]
    after: Callable[[Request, float], Request | None] | None


def request_source(
    traffic: Traffic,
    count: int,
    generator: np.random.Generator,
    acceptance: Acceptance | None = None,
    lag: float = 0.0,
) -> Source:
    """Make the stream of requests of a traffic spec.

    Parameters
    ----------
    traffic : Traffic
        The spec.
    count : int
        Requests in all; a trace may hold fewer, [-]
    generator : Generator
        Source of randomness.
    acceptance : Acceptance, optional
        Speculation, which turns answer tokens into fewer steps.
    lag : float, optional
        Time of the front end before the engine sees a request, [s]

    Returns
    -------
    Source
        The stream; arrivals are those at the engine.

    Examples
    --------
    >>> source = request_source(Traffic(kind="closed", users=2), 3, np.random.default_rng(0))
    >>> [r.arrival for r in source.arrivals]
    [0.0, 0.0]
    >>> source.after(Request(0, 0.0, 1, 1), 7.5).arrival
    7.5
    """
    if traffic.urgent or traffic.patience is not None:
        return _marked(traffic, request_source(traffic.unmarked, count, generator, acceptance, lag), lag)
    if lag:
        source = request_source(traffic, count, generator, acceptance)
        if traffic.users is None:
            return Source(_late(source.arrivals, lag), _late_after(source.after, lag) if source.after else None)
        began = list(_late(source.arrivals, lag, apart(lag)))
        # users who send at once what answers the last: in order, as nobody pauses
        last = began[-1].arrival if began and traffic.kind == "closed" and not traffic.think else None
        return Source(iter(began), _late_after(source.after, lag, last) if source.after else None)
    if traffic.kind == "trace" and conversation_form(str(traffic.file)):
        return _conversations(traffic, count, generator, acceptance)
    if traffic.kind == "trace":
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


def _late(arrivals: Iterator[Request], lag: float, gap: float = 0.0) -> Iterator[Request]:
    last = -gap
    for request in arrivals:
        request.arrival = last = max(request.arrival + lag, last + gap)
        yield request


def _late_after(
    after: Callable[[Request, float], Request | None], lag: float, last: float | None = None
) -> Callable[[Request, float], Request | None]:
    """What follows, after the front end; behind `last` and each other where those who follow come in order."""

    def later(request: Request, now: float) -> Request | None:
        nonlocal last
        follow = after(request, now)
        if follow is not None:
            follow.arrival += lag
            if last is not None:
                follow.arrival = last = max(follow.arrival, last + apart(lag))
        return follow

    return later


def _marked(traffic: Traffic, source: Source, lag: float) -> Source:
    """The stream with what distinguishes its requests: who is urgent, and when clients lose patience."""

    def mark(request: Request) -> Request:
        who = request.session if request.session >= 0 else request.number
        # evenly among all, so that no randomness is spent: every part of a golden ratio lies in another place
        request.priority = int((who + 1) * _GOLDEN % 1.0 >= traffic.urgent) if traffic.urgent else 0
        if traffic.patience is not None:
            request.leaves = request.arrival - lag + traffic.patience
        return request

    def follows(request: Request, now: float) -> Request | None:
        follow = source.after(request, now) if source.after else None
        return mark(follow) if follow is not None else None

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
    """Recorded conversations: a turn begins when the answer before has ended and its pause is over."""
    recorded = read_conversations(str(traffic.file), traffic.output)
    waiting = iter(enumerate(recorded))
    issued = 0

    def turn(at: float, who: int, number: int) -> Request | None:
        nonlocal issued
        if issued >= count:
            return None
        one = recorded[who].turns[number]
        steps = _steps(np.array([one.output_tokens]), acceptance, generator)[0]
        issued += 1
        runs = ((("session", who), one.input_tokens),)
        return Request(issued - 1, at, one.input_tokens, one.output_tokens, steps, runs, who, number)

    def begin(at: float) -> Request | None:
        who, _ = next(waiting, (-1, None))
        return turn(at, who, 0) if who >= 0 else None

    def after(request: Request, now: float) -> Request | None:
        turns = recorded[request.session].turns
        if request.finish >= 0 and request.turn + 1 < len(turns):
            return turn(now + turns[request.turn + 1].wait / traffic.speed, request.session, request.turn + 1)
        return begin(now) if traffic.users is not None else None

    def arrivals() -> Iterator[Request]:
        if traffic.users is not None:
            yield from filter(None, (begin(traffic.ramp * user / traffic.users) for user in range(traffic.users)))
            return
        if traffic.rate is None and any(one.start is None for one in recorded):
            raise SpecError(
                "does not say when conversations begin: give users or a rate, as in trace:FILE,users=16",
                file=str(traffic.file),
            )
        times = arrival_times(traffic, generator) if traffic.rate is not None else None
        for one in recorded:
            request = begin(float(times(1)[0]) if times else (one.start or 0.0) / traffic.speed)
            if request is None:
                return
            yield request

    return Source(arrivals(), after)


def _sessions(traffic: Traffic, count: int, generator: np.random.Generator, acceptance: Acceptance | None) -> Source:
    """Agents: each turn sends the whole conversation so far and some new tokens, then waits for a tool."""
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
