"""What a closed-loop benchmark makes an engine do, step by step, before anybody knows how long a step takes.

With a fixed number of requests in flight the schedule depends on token counts only, not on times: whoever finishes is
followed by the next prompt. So the schedule is run once, and mean TTFT, TPOT and throughput become weighted sums of the
step time over a few kinds of step. The weights are exact; kinds of step that are nearly alike are merged.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from glmplan.simulation.closed_run import ClosedLoop
from glmplan.simulation.closed_schedule import closed_schedule
from glmplan.units import TokensArray

__all__ = [
    "MOST_REQUESTS",
    "KnownRuns",
    "ManyMixes",
    "StepMix",
    "closed_loop_mix",
    "distinct_rows",
    "group_of_steps",
    "many_mixes",
]


@dataclass(frozen=True, eq=False)
class StepMix:
    """Kinds of step of a run, with the weight of each in what is measured.

    Attributes
    ----------
    decode_requests, decode_context, prefill_tokens, prefill_context : (k,) array
        What a step of each kind holds, as in `glmplan.costs.points.StepPoints`.
    ttft : (k,) array
        Steps of this kind that a request waits through until its first token, mean over requests, [-]
    ttft_median : (k,) array
        The same for the fifth of the requests around the median, [-]
    tpot : (k,) array
        Steps of this kind for each output token after the first, mean over requests, [-]
    itl_median : (k,) array
        The same for the fifth of the tokens around the one with the median gap, [-]
    wall : (k,) array
        Steps of this kind in what counts, [-]
    output_tokens, input_tokens : float
        Tokens that are generated in them, and those of the prompts, [token]
    peak_requests : int
        Largest number of requests that ran at once, [-]
    """

    decode_requests: np.ndarray
    decode_context: np.ndarray
    prefill_tokens: np.ndarray
    prefill_context: np.ndarray
    ttft: np.ndarray
    ttft_median: np.ndarray
    tpot: np.ndarray
    itl_median: np.ndarray
    wall: np.ndarray
    output_tokens: float
    input_tokens: float
    peak_requests: int


@lru_cache(maxsize=4096)
def closed_loop_mix(run: ClosedLoop) -> StepMix:
    """Run the schedule and count its kinds of step.

    Notes
    -----
    Lengths come from a generator seeded with a constant, so that the same run gives the same mix. Not modelled:
    eviction and recomputation; clients that pause before the next prompt.

    Examples
    --------
    One user: the prompt is one step, then one step for each further token.

    >>> mix = closed_loop_mix(ClosedLoop(concurrency=1, input_tokens=1000, output_tokens=101, requests=4))
    >>> round(float(mix.ttft.sum()), 6), round(float(mix.tpot.sum()), 6)
    (1.0, 1.0)
    """
    inputs, outputs = _lengths(run)
    if run.staggered:
        users = int(min(run.concurrency, run.requests))
        outputs[:users] = [-(-outputs[one] * (one + 1) // users) for one in range(users)]
    blocks, spans = closed_schedule(run, inputs, outputs)
    table = np.array(blocks, dtype=float)
    span = np.array(spans, dtype=np.int64).T
    return _merge(run, table, span, np.array(inputs, dtype=float), np.array(outputs, dtype=float))


def _lengths(run: ClosedLoop) -> tuple[list[int], list[int]]:
    """Prompt and answer of each request [token]; drawn only where they are not all alike."""
    nominal = max(int(run.input_tokens), 1), max(int(run.output_tokens), 1)
    if run.shortest == 1.0:
        return [nominal[0]] * run.requests, [nominal[1]] * run.requests
    rng = np.random.default_rng(20260320)
    inputs, outputs = (
        rng.integers(max(int(tokens * run.shortest), 1), most, size=run.requests, endpoint=True).tolist()
        for tokens, most in zip((run.input_tokens, run.output_tokens), nominal, strict=True)
    )
    return inputs, outputs


def _merge(run: ClosedLoop, table: np.ndarray, span: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> StepMix:
    steps = table[:, 4]
    counted, inside = _counted(run, span, len(table))
    tokens_out, tokens_in = float(outputs.sum()), float(inputs.sum())
    if not inside.all():
        first_tokens = float(inside[span[:, 1] - 1].sum())
        tokens_out = float((table[:, 0] * steps * inside).sum()) * run.tokens_per_step + first_tokens
        tokens_in = float((table[:, 2] * steps * inside).sum())
    span, outputs = span[counted], outputs[counted]
    start, first, end = span[:, 0], span[:, 1], span[:, 2]
    # a rough step time, only to say which requests wait, and which tokens take, about as long as the median one
    rough = steps * (1.0 + table[:, 2] / 500.0 + table[:, 0] / 200.0)
    elapsed = np.concatenate([[0.0], np.cumsum(rough)])
    wait = elapsed[first] - elapsed[start]
    order = np.argsort(wait, kind="stable")
    count = len(order)
    middle = order[int(count * 0.4) : max(int(np.ceil(count * 0.6)), int(count * 0.4) + 1)]

    def weight(begin: np.ndarray, stop: np.ndarray, value: np.ndarray) -> np.ndarray:
        begun, over = (np.bincount(one, weights=value, minlength=len(table) + 1) for one in (begin, stop))
        result: np.ndarray = np.cumsum(begun - over)[:-1] * steps
        return result

    ones = np.ones(count)
    ttft = weight(start, first, ones / count)
    median = weight(start[middle], first[middle], np.ones(len(middle)) / len(middle))
    many = outputs > 1
    per_token = 1.0 / np.maximum(outputs - 1.0, 1.0) / max(int(many.sum()), 1)
    tpot = weight(first[many], end[many], per_token[many])

    key = group_of_steps(table[:, 0], table[:, 2], table[:, 3])
    _, group = np.unique(key, return_inverse=True)
    size = int(group.max()) + 1

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(group, weights=values, minlength=size)

    mass = summed(steps)
    mean = [summed(table[:, column] * steps) / mass for column in range(4)]
    return StepMix(
        decode_requests=mean[0],
        decode_context=mean[1],
        prefill_tokens=mean[2],
        prefill_context=mean[3],
        ttft=summed(ttft),
        ttft_median=summed(median),
        tpot=summed(tpot),
        itl_median=summed(_median_gap(rough / np.maximum(steps, 1.0), table[:, 0] * steps * inside)),
        wall=summed(steps * inside),
        output_tokens=tokens_out,
        input_tokens=tokens_in,
        peak_requests=int(table[:, 0].max()),
    )


def group_of_steps(requests: np.ndarray, prompt: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Steps of equal numbers are nearly alike: a third of an octave of requests, an octave of prompt tokens and keys.

    `requests`, `prompt`, `keys`: Decoding requests [-], prompt tokens and the keys that they see in the mean [token].

    Examples
    --------
    >>> group = group_of_steps(np.array([8.0, 8.1, 32.0]), np.zeros(3), np.zeros(3))
    >>> bool(group[0] == group[1]), bool(group[0] == group[2])
    (True, False)
    """

    def level(values: np.ndarray, per_octave: float) -> np.ndarray:
        return np.where(values > 0, np.round(np.log2(np.maximum(values, 1e-9) + 1.0) * per_octave) + 1, 0)

    result: np.ndarray = (level(requests, 3) * 1000 + level(prompt, 1)) * 1000 + level(keys, 1)
    return result


def _median_gap(length: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Share of each block in the fifth of the tokens around the one with the median gap, by a rough step length."""
    order = np.argsort(length, kind="stable")
    passed = np.cumsum(tokens[order])
    if not len(passed) or passed[-1] <= 0:
        return np.zeros(len(tokens))
    low, high = 0.4 * passed[-1], 0.6 * passed[-1]
    inside = np.clip(passed, low, high) - np.clip(passed - tokens[order], low, high)
    share = np.zeros(len(tokens))
    share[order] = inside / (high - low)
    return share


def _counted(run: ClosedLoop, span: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Which requests count, and which blocks of steps."""
    users, place = int(min(run.concurrency, run.requests)), np.arange(blocks)
    if not run.staggered or run.requests < 3 * users:
        return np.arange(len(span)), np.ones(blocks, dtype=bool)
    begin, stop = int(span[:users, 2].max()), int(span[-1, 0])
    return np.arange(users, run.requests - users), (place >= begin) & (place < stop)


# The kinds of step of many closed loops at once: `closed_schedule` with one entry of an array for each run.
#
# All runs take their turns together, one engine step with a prompt or one stretch of decoding steps each, so that numpy
# sees as many entries as there are runs. What a run measures follows from the counts at each turn: who waits for a
# first
# token, and who decodes.

#: requests times runs that are looked at together: the arrays of more would leave the cache of the processor [-]
_AT_ONCE, _RUNS = 1 << 20, 4096
#: codes that are looked up rather than sorted: at most so many for each, or so many [-]
_SPARSE, _SMALL = 16, 4096
#: requests of a run at most: four for each user, and no fewer than eight [-]
MOST_REQUESTS = 20_000
#: when what is never due is due
_NEVER = 1 << 62
#: columns of a turn
_COLUMNS = ("decode_requests", "decode_context", "prefill_tokens", "prefill_context", "steps", "waiting", "answering")


@dataclass(frozen=True, eq=False)
class ManyMixes:
    """Kinds of step of many runs, one after the other.

    Attributes
    ----------
    requests : (n,) array of int
        Requests of each run, [-]
    run : (k,) array of int
        Run of each kind of step, ascending, [-]
    decode_requests, decode_context, prefill_tokens, prefill_context : (k,) array
        What a step of the kind holds, as in `glmplan.simulation.closed_loop.StepMix`.
    ttft, tpot, wall : (k,) array
        Steps of the kind that each figure counts, as in `glmplan.simulation.closed_loop.StepMix`, [-]
    """

    requests: np.ndarray
    run: np.ndarray
    decode_requests: np.ndarray
    decode_context: np.ndarray
    prefill_tokens: np.ndarray
    prefill_context: np.ndarray
    ttft: np.ndarray
    tpot: np.ndarray
    wall: np.ndarray

    def of(self, runs: np.ndarray) -> ManyMixes:
        """Some of the runs."""
        ends = np.searchsorted(self.run, np.arange(len(self.requests) + 1))
        sizes = np.diff(ends)[runs]
        first = np.cumsum(sizes) - sizes
        rows = np.repeat(ends[runs] - first, sizes) + np.arange(sizes.sum())
        columns = {one.name: getattr(self, one.name)[rows] for one in fields(self) if one.name != "requests"}
        return ManyMixes(self.requests[runs], **columns | {"run": np.repeat(np.arange(len(runs)), sizes)})

    def and_then(self, more: ManyMixes) -> ManyMixes:
        """These runs, and others behind them."""
        more = replace(more, run=more.run + len(self.requests))
        both = {one.name: np.concatenate([getattr(self, one.name), getattr(more, one.name)]) for one in fields(self)}
        return ManyMixes(**both)


class KnownRuns:
    """Runs that are counted once: data-parallel ranks and servers of a service make many that are alike.

    Examples
    --------
    >>> known, one = KnownRuns(), np.array([1])
    >>> mix = known.of(np.array([1, 1]), np.array([1000, 1000]), np.array([101, 101]), budget=8192)
    >>> mix.run.tolist() == [0] * (len(mix.run) // 2) + [1] * (len(mix.run) // 2)
    True
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[np.ndarray, ManyMixes]] = {}

    def of(self, concurrency: np.ndarray, inputs: TokensArray, outputs: TokensArray, **packing: Any) -> ManyMixes:
        """Count the kinds of step of runs, four requests for each user."""
        key = tuple(sorted(packing.items()))
        known, mix = self._known.get(key, (np.zeros((0, 3), dtype=np.int64), None))
        rows = np.concatenate([known, np.stack([concurrency, inputs, outputs], axis=1)])
        # of equal ones the first: those that are known stand before those that are asked for
        first, which = distinct_rows(*rows.T)
        new = first >= len(known)
        at = np.where(new, len(known) + np.cumsum(new) - 1, first)
        if new.any():
            counts, lengths, answers = rows[first[new]].T
            more = many_mixes(counts, lengths, answers, np.clip(4 * counts, 8, MOST_REQUESTS), **packing)
            mix = more if mix is None else mix.and_then(more)
            self._known[key] = np.concatenate([known, rows[first[new]]]), mix
        assert mix is not None
        return mix.of(at[which[len(known) :]])


def distinct_rows(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different rows of columns, ascending by the first column, then the next: without comparing rows as wholes.

    Examples
    --------
    >>> first, places = distinct_rows(np.array([2, 1, 2, 1]), np.array([0.5, 7.0, 0.5, 3.0]))
    >>> first.tolist(), places.tolist()
    ([3, 1, 0], [2, 1, 2, 0])
    """
    places = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, which = np.unique(column, return_inverse=True)
        _, places = _numbered(places * len(values) + which.ravel())
    first = np.empty(int(places.max(initial=-1)) + 1, dtype=np.int64)
    first[places[::-1]] = np.arange(len(places))[::-1]
    return first, places


def many_mixes(
    concurrency: np.ndarray,
    inputs: TokensArray,
    outputs: TokensArray,
    requests: np.ndarray,
    *,
    budget: int,
    prefill_first: bool = False,
    whole_prompts: bool = False,
    late: int = 0,
    tokens_per_step: float = 1.0,
) -> ManyMixes:
    """Count the kinds of step of closed loops whose requests are alike and find a place at once.

    Notes
    -----
    Not modelled: a cache pool or places that fill up, and clients that engines look for in intervals; those runs go
    through `glmplan.simulation.closed_schedule.closed_schedule`.

    Examples
    --------
    >>> one = np.array([1])
    >>> mix = many_mixes(one, 1000 * one, 101 * one, 4 * one, budget=8192)
    >>> round(float(mix.ttft.sum()), 6), round(float(mix.tpot.sum()), 6)
    (1.0, 1.0)
    """
    # runs of about as many turns go together: the last of a group would go on alone
    turns = requests * np.maximum(inputs / budget, 1.0 / np.maximum(concurrency, 1)) + requests
    order = np.argsort(turns, kind="stable")
    gain, parts, start = tokens_per_step, [], 0
    while start < len(order):
        # the longest of the group decides the memory of its queues
        stop = min(start + _RUNS, len(order))
        while stop > start + 1 and (stop - start) * int(concurrency[order[start:stop]].max()) > _AT_ONCE:
            stop = start + (stop - start) // 2
        some = order[start:stop]
        turn = _Turns(concurrency[some], inputs[some], outputs[some], requests[some], budget, gain)
        table = turn.all(prefill_first=prefill_first, whole_prompts=whole_prompts, late=late)
        parts.append(_merged(table, some, outputs, requests))
        start = stop
    columns = [np.concatenate([one[place] for one in parts]) for place in range(len(parts[0]))]
    by_run = np.argsort(columns[0], kind="stable")
    return ManyMixes(requests, *(one[by_run] for one in columns))


def _merged(
    table: dict[str, np.ndarray], some: np.ndarray, outputs: np.ndarray, requests: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Turns that are nearly alike as one kind of step, with what it holds in the mean."""
    steps = table["steps"]
    key = group_of_steps(table["decode_requests"], table["prefill_tokens"], table["prefill_context"])
    _, kind = _numbered(key.astype(np.int64))
    most = int(kind.max(initial=0)) + 1
    kinds, group = _numbered(table["run"] * most + kind)

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(group, weights=values, minlength=len(kinds))

    mass = summed(steps)
    mean = [summed(table[name] * steps) / mass for name in _COLUMNS[:4]]
    of = some[kinds // most]
    ttft = summed(table["waiting"] * steps) / requests[of]
    tpot = summed(table["answering"] * steps) / requests[of] / np.maximum(outputs[of] - 1.0, 1.0)
    return of, *mean, ttft, tpot, mass


def _numbered(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different codes, ascending, and the number of each: `np.unique` without sorting where codes are small."""
    most = int(codes.max(initial=0)) + 1
    if most > max(_SPARSE * len(codes), _SMALL):
        found, place = np.unique(codes, return_inverse=True)
        return found, place
    there = np.zeros(most, dtype=bool)
    there[codes] = True
    found = np.flatnonzero(there)
    number = np.empty(most, dtype=np.int64)
    number[found] = np.arange(len(found))
    return found, number[codes]


class _Queue:
    """First in, first out, one for each run: when, and how many."""

    #: when the first entry of each run is due; far off where there is none
    first: np.ndarray

    def __init__(self, runs: int, most: int) -> None:
        # a power of two, so that places go round without a division
        size = 1 << (most + 1).bit_length()
        self.last = size - 1
        self.at, self.count = (np.zeros(runs * size, dtype=np.int64) for _ in range(2))
        self.start = np.arange(runs) * size
        self.head, self.tail = (np.zeros(runs, dtype=np.int64) for _ in range(2))
        self.first = np.full(runs, _NEVER)

    def append(self, runs: np.ndarray, at: np.ndarray, count: np.ndarray) -> None:
        """Add to the end; what is due when the last entry is joins it."""
        tail, start = self.tail[runs], self.start[runs]
        last = start + ((tail - 1) & self.last)
        some = tail > self.head[runs]
        joins = some & (self.at[last] == at)
        place = np.where(joins, last, start + (tail & self.last))
        self.at[place] = at
        self.count[place] = np.where(joins, self.count[place] + count, count)
        self.tail[runs] = tail + ~joins
        self.first[runs] = np.where(some, self.first[runs], at)

    def due(self, now: np.ndarray, runs: np.ndarray) -> np.ndarray:
        """Take off all that is due at runs, and count it for each of them."""
        total = np.zeros(len(runs), dtype=np.int64)
        place = np.flatnonzero(self.first[runs] <= now)
        while len(place):
            here = runs[place]
            total[place] += self.count[self.start[here] + (self.head[here] & self.last)]
            self.head[here] += 1
            place = place[self._next(here) <= now[place]]
        return total

    def take_one(self, runs: np.ndarray) -> None:
        """Take one off the first entry."""
        place = self.start[runs] + (self.head[runs] & self.last)
        self.count[place] -= 1
        self.head[runs] += self.count[place] == 0
        self._next(runs)

    def clear(self, runs: np.ndarray) -> None:
        """Take all off."""
        self.head[runs] = self.tail[runs]
        self.first[runs] = _NEVER

    def only(self, left: np.ndarray) -> None:
        """Leave out runs that are over."""
        for name in ("start", "head", "tail", "first"):
            setattr(self, name, getattr(self, name)[left])

    def _next(self, runs: np.ndarray) -> np.ndarray:
        head = self.head[runs]
        at = self.at[self.start[runs] + (head & self.last)]
        self.first[runs] = found = np.where(head < self.tail[runs], at, _NEVER)
        return found


class _Turns:
    """State of the runs; attributes are as the variables of `glmplan.simulation.closed_schedule.closed_schedule`."""

    def __init__(self, users: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, requests: np.ndarray,
                 budget: int, gain: float) -> None:  # fmt: skip
        self.run = self.place = np.arange(len(users))
        self.prompt, answer, self.requests = (one.astype(np.int64) for one in (inputs, outputs, requests))
        self.length = self.prompt + answer
        self.budget, self.gain = budget, gain
        self.more = np.ceil((answer - 1) / gain).astype(np.int64)
        self.sent = np.minimum(users, requests).astype(np.int64)
        most = int(self.sent.max(initial=1))
        self.ends, self.there = _Queue(len(users), most), _Queue(len(users), most)
        self.there.append(self.run, np.zeros(len(users), dtype=np.int64), self.sent)
        names = ("seen", "first", "ended", "done", "clock", "rounds", "decoding")
        self.seen, self.first, self.ended, self.done, self.clock, self.rounds, self.decoding = (
            np.zeros(len(users), dtype=np.int64) for _ in names
        )
        self.context = np.zeros(len(users))
        self._columns = ("run", "prompt", "length", "requests", "more", "sent", *names, "context")

    def all(self, *, prefill_first: bool, whole_prompts: bool, late: int) -> dict[str, np.ndarray]:
        """Every turn of every run: its run, and `_COLUMNS`."""
        rows: dict[str, list[np.ndarray]] = {name: [] for name in ("run", *_COLUMNS)}
        while len(self.run):
            waiting, answering = self.sent - self.first, self.first - self.ended
            self._look(late)
            room = self.budget - (0 if prefill_first else 1) * self.decoding
            prompts = (self.seen > self.first) & (room > 0)
            tokens, keys, newcomers = self._prompts(prompts, room, whole_prompts)
            steps = self._steps(prompts)
            mixed = np.where(prompts, 0 if prefill_first else self.decoding, self.decoding)
            context = self.context / np.maximum(self.decoding, 1) + self.gain * (steps - 1) / 2
            content = (mixed, np.where(mixed > 0, context, 0.0), tokens, keys, steps, waiting, answering)
            for name, values in zip(rows, (self.run, *content), strict=True):
                rows[name].append(values)
            self.rounds += steps
            moved = np.where(prompts & prefill_first, 0, steps)
            self.clock += moved
            self.context += self.decoding * self.gain * moved
            self._end(newcomers, late)
            self._leave()
        return {name: np.concatenate(values) for name, values in rows.items()}

    def _look(self, late: int) -> None:
        """Requests that the engine sees by now; an idle one starts with whoever is there first."""
        some = np.flatnonzero(self.seen < self.sent)
        idle = (self.decoding[some] == 0) & (self.seen[some] == self.first[some])
        if not late:
            # nothing is on its way: whoever was sent is seen
            here = some[idle]
            self.there.clear(here)
            self.seen[here] = self.sent[here]
        else:
            self.there.take_one(some[idle])
            self.seen[some[idle]] += 1
        busy = some[~idle]
        self.seen[busy] += self.there.due(self.rounds[busy], busy)

    def _prompts(
        self, prompts: np.ndarray, room: np.ndarray, whole_prompts: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Prompt tokens of the turn, their mean keys, and requests that get their first token."""
        here = np.flatnonzero(prompts)
        all_tokens, all_newcomers = (np.zeros(len(prompts), dtype=np.int64) for _ in range(2))
        all_keys = np.zeros(len(prompts))
        prompt, done, room = self.prompt[here], self.done[here], room[here]
        waiting, own = self.seen[here] - self.first[here], prompt * ((prompt + 1) / 2)
        if whole_prompts:
            newcomers = np.minimum(np.maximum(room // prompt, 1), waiting)
            tokens, keys = newcomers * prompt, own / prompt
        else:
            rest = prompt - done
            cut = rest > room
            whole = np.where(cut, 0, np.minimum((room - rest) // prompt, waiting - 1))
            newcomers = np.where(cut, 0, 1 + whole)
            part = np.where(cut | (waiting <= newcomers), 0, np.minimum(room - rest - whole * prompt, prompt))
            head = np.minimum(rest, room)
            tokens = head + whole * prompt + part
            keys = head * (done + (head + 1) / 2) + whole * own + part * ((part + 1) / 2)
            keys = keys / np.maximum(tokens, 1)
            self.done[here] = np.where(cut, done + head, part)
        all_tokens[here], all_keys[here], all_newcomers[here] = tokens, keys, newcomers
        return all_tokens, all_keys, all_newcomers

    def _steps(self, prompts: np.ndarray) -> np.ndarray:
        """One step with a prompt, or decoding steps until somebody ends or is looked at."""
        steps = np.maximum(self.ends.first - self.clock, 1)
        look = np.maximum(self.there.first - self.rounds, 1)
        return np.where(prompts, 1, np.minimum(steps, np.where(self.seen < self.sent, look, steps)))

    def _end(self, newcomers: np.ndarray, late: int) -> None:
        """Whoever has its answer ends, whoever got a first token decodes, and who ended sends the next prompt."""
        gone = self.ends.due(self.clock, self.place)
        self.decoding -= gone
        self.context -= gone * self.length
        self.first += newcomers
        here = np.flatnonzero((newcomers > 0) & (self.more > 0))
        come = newcomers[here]
        self.ends.append(here, (self.clock + self.more)[here], come)
        self.decoding[here] += come
        self.context[here] += come * (self.prompt[here] + 1)
        self.context[self.decoding == 0] = 0.0
        gone += newcomers
        gone[here] -= come
        self.ended += gone
        following = np.minimum(gone, self.requests - self.sent)
        here = np.flatnonzero(following > 0)
        self.there.append(here, self.rounds[here] + late, following[here])
        self.sent += following

    def _leave(self) -> None:
        """Runs that are over are left out."""
        left = self.ended < self.sent
        if not left.all():
            for name in self._columns:
                setattr(self, name, getattr(self, name)[left])
            self.ends.only(left)
            self.there.only(left)
            self.place = np.arange(len(self.run))
