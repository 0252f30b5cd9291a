"""What a closed-loop benchmark makes an engine do, step by step, before anybody knows how long a step takes.

With a fixed number of requests in flight the schedule depends on token counts only, not on times: whoever finishes is
followed by the next prompt. So the schedule is run once, and mean TTFT, TPOT and throughput become weighted sums of the
step time over a few kinds of step. The weights are exact; kinds of step that are nearly alike are merged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from heapq import heappop, heappush
from typing import Any

import numpy as np

from glmplan.units import TokensArray

__all__ = [
    "MOST_REQUESTS",
    "ClosedLoop",
    "KnownRuns",
    "ManyMixes",
    "StepMix",
    "alike_schedule",
    "closed_loop_mix",
    "distinct_rows",
    "group_of_steps",
    "many_mixes",
]


# A closed-loop run, and its schedule where requests are alike: they keep their order, so that counts say all.
#
# The same blocks as the schedule of one request after the other in `closed_loop`, with one turn of the loop for each
# step
# that holds a prompt instead of one for each request.

#: places and tokens of an engine without limits [-], [token]
_NO_PLACES, _NO_POOL = 1 << 30, 1 << 60


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A closed-loop run: who sends what, and how the engine packs it into steps.

    Attributes
    ----------
    concurrency : int
        Requests in flight, [-]
    input_tokens, output_tokens : int
        Nominal lengths, [token]
    requests : int
        Requests in all, [-]
    shortest : float
        Lengths are uniform between this share of the nominal and the nominal, [-]
    budget : int
        Prompt tokens (and decoding ones where mixed) that a step may hold, [token]
    prefill_first : bool
        Prompts run in steps of their own and decoding waits (SGLang); otherwise they ride along (vLLM, TensorRT-LLM).
    max_requests : int
        Requests that may run at once, [-]
    pool_tokens : int
        KV cache, [token]
    reserve : float
        Share of the answer that must fit besides the prompt before a request is admitted: 1 where nothing may be
        evicted (TensorRT-LLM), about half of it where requests in all phases share the pool (vLLM, SGLang), [-]
    poll_interval : int
        Steps between two looks at newly arrived requests (SGLang ``--scheduler-recv-interval``), [-]
    late : int
        Steps that have begun when the next prompt of a user arrives, because the engine goes on while the client reads
        the end of the answer; two where steps are formed ahead; none while nothing runs. With 0 every prompt is seen at
        the instant it is sent, as in the simulator without a front end, [-]
    staggered : bool
        The first answers are cut to shares of their length, so that users end one after another, and only what lies
        between these and the last prompt counts: the steady state. Else all users start together and all counts.
    tokens_per_step : float
        Tokens a request gains in a step (acceptance length of speculative decoding), [token]
    whole_prompts : bool
        Prompts are never split over steps (TensorRT-LLM without ``enable_chunked_prefill``).
    gather_steps : int
        Steps that new requests wait for others while some decode, so that they prefill together (TensorRT-LLM
        ``attention_dp_config.timeout_iters`` and ``batch_wait_timeout_iters``), [-]
    gather_tokens : int
        Prompt tokens, with one for each who decodes, at which the wait ends early (TensorRT-LLM
        ``batch_wait_max_tokens_ratio`` of the budget), [token]
    """

    concurrency: int
    input_tokens: int
    output_tokens: int
    requests: int
    shortest: float = 1.0
    budget: int = 8192
    prefill_first: bool = False
    max_requests: int = _NO_PLACES
    pool_tokens: int = _NO_POOL
    reserve: float = 0.5
    poll_interval: int = 1
    late: int = 0
    staggered: bool = False
    tokens_per_step: float = 1.0
    whole_prompts: bool = False
    gather_steps: int = 0
    gather_tokens: int = 1 << 60

    def without_idle_limits(self) -> ClosedLoop:
        """The same run without a limit on the pool or on places that its requests never reach.

        Runs that differ in nothing else are then equal, so that their schedule is made once.

        Examples
        --------
        >>> run = ClosedLoop(concurrency=4, input_tokens=100, output_tokens=10, requests=16)
        >>> roomy = ClosedLoop(4, 100, 10, 16, max_requests=64, pool_tokens=1000)
        >>> tight = ClosedLoop(4, 100, 10, 16, max_requests=64, pool_tokens=400)
        >>> roomy.without_idle_limits() == run, tight.without_idle_limits() == run
        (True, False)
        """
        # one request more than there are: sums of fractions of tokens may be rounded up
        most = (self.concurrency + 1) * (max(self.input_tokens, 1) + self.reserve * max(self.output_tokens, 1))
        pool = _NO_POOL if self.pool_tokens >= most else self.pool_tokens
        places = _NO_PLACES if self.max_requests >= self.concurrency else self.max_requests
        return replace(self, pool_tokens=pool, max_requests=places)


def alike_schedule(run: ClosedLoop, requests: int) -> tuple[list[tuple[float, float, float, float, float]], np.ndarray]:
    """The schedule of a closed loop whose requests are all of one length and do not wait for company.

    - `run`: The run; `shortest` 1, not `staggered`, no `gather_steps`.
    - `list of tuple of float`: Blocks of equal steps: requests [-], mean context [token], prompt tokens [token], mean
      keys [token], steps [-].
    - `(requests, 3) array of int`: Blocks after which each request was sent, had its first token, and ended.

    Examples
    --------
    >>> blocks, spans = alike_schedule(ClosedLoop(concurrency=1, input_tokens=10, output_tokens=5, requests=1), 1)
    >>> [(block[0], block[2], block[4]) for block in blocks], spans.tolist()
    ([(0, 10, 1), (1, 0, 4)], [[0, 1, 2]])
    """
    prompt, gain, bounded = run.input_tokens, run.tokens_per_step, run.pool_tokens < _NO_POOL
    budget, places, pool, late, interval = run.budget, run.max_requests, run.pool_tokens, run.late, run.poll_interval
    whole_prompts, apart = run.whole_prompts, run.prefill_first
    more = int(-(-(run.output_tokens - 1) // gain)) if run.output_tokens > 1 else 0
    held, whole_keys = prompt + run.reserve * run.output_tokens, prompt * ((prompt + 1) / 2)
    blocks: list[tuple[float, float, float, float, float]] = []
    # requests come to each stage in order: (block, how many) when they were sent, had their first token, and ended
    stages: tuple[list[tuple[int, int]], ...] = ([(0, min(run.concurrency, requests))], [], [])
    ends: deque[tuple[int, int]] = deque()  # (step at which they end, how many)
    sent = min(run.concurrency, requests)
    there: deque[tuple[int, int]] = deque([(0, sent)])  # (round at which they can be seen, how many)
    seen = admitted = first = ended = done = 0  # requests in order; prompt tokens of the next to get its first token
    clock = rounds = decoding = 0
    context = pool_used = 0.0
    while ended < sent:
        if seen < sent:
            new = 0
            if not decoding and seen == first:
                new = 1 if late else sent - seen
            elif rounds % interval == 0:
                for at, count in there:
                    if at > rounds:  # the others were sent later
                        break
                    new += count
            seen += new
            while new:
                at, count = there.popleft()
                if count > new:
                    there.appendleft((at, count - new))
                    break
                new -= count
        if admitted < seen:
            room = places - decoding - (admitted - first)
            if not bounded:
                if room > 0:
                    admitted = seen if seen - admitted < room else admitted + room
            else:
                while admitted < seen and room > 0:
                    if pool_used + held > pool and (decoding or admitted > first):
                        break
                    pool_used += held
                    admitted += 1
                    room -= 1
        newcomers = 0
        # with prompts in steps of their own nobody decodes beside them
        mixed = 0 if apart else decoding
        if admitted > first and mixed < budget:
            room, rest = budget - mixed, prompt - done
            if whole_prompts:
                newcomers = min(max(room // prompt, 1), admitted - first)
                tokens, keys = newcomers * prompt, newcomers * whole_keys
            elif rest > room:
                tokens, keys = room, room * (done + (room + 1) / 2)
                done += room
            else:
                whole, part = (room - rest) // prompt, 0
                if whole >= admitted - first:
                    whole = admitted - first - 1
                newcomers = 1 + whole
                if admitted - first > newcomers:
                    part = room - rest - whole * prompt
                    part = part if part < prompt else prompt
                tokens = rest + whole * prompt + part
                keys = rest * (done + (rest + 1) / 2) + whole * whole_keys + part * ((part + 1) / 2)
                done = part
            blocks.append((mixed, context / mixed if mixed else 0.0, tokens, keys / tokens, 1))
            if not apart:
                clock += 1
                context += decoding * gain
        else:
            steps = max(ends[0][0] - clock, 1)
            if seen < sent:
                look_at = -(-max(there[0][0], rounds + 1) // interval) * interval
                steps = min(steps, look_at - rounds)
            blocks.append((decoding, context / decoding + gain * (steps - 1) / 2, 0, 0.0, steps))
            clock += steps
            rounds += steps - 1
            context += decoding * gain * steps
        rounds += 1
        now, before = len(blocks), ended
        while ends and ends[0][0] <= clock:
            count = ends.popleft()[1]
            decoding -= count
            context -= count * (prompt + run.output_tokens)
            ended += count
        if newcomers:
            stages[1].append((now, newcomers))
            first += newcomers
            if more:
                ends.append((clock + more, newcomers))
                decoding += newcomers
                context += newcomers * (prompt + 1)
            else:
                ended += newcomers
        if decoding == 0:
            context = 0.0
        if ended > before:
            stages[2].append((now, ended - before))
            for _ in range(ended - before if bounded else 0):
                pool_used -= held
            next_ones = min(ended - before, requests - sent)
            if next_ones:
                stages[0].append((now, next_ones))
                there.append((rounds + late, next_ones))
                sent += next_ones
    return blocks, np.stack([_each(stage, requests) for stage in stages], axis=1)


def _each(stage: list[tuple[int, int]], requests: int) -> np.ndarray:
    """The block at which each request came to a stage; 0 for those that never did."""
    blocks, counts = np.array(stage, dtype=np.int64).reshape(-1, 2).T
    found = np.repeat(blocks, counts)
    return np.concatenate([found, np.zeros(requests - len(found), dtype=np.int64)])


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
        users = min(run.concurrency, run.requests)
        outputs[:users] = [-(-outputs[one] * (one + 1) // users) for one in range(users)]
    alike = run.shortest == 1.0 and not run.staggered and not run.gather_steps
    blocks, spans = alike_schedule(run, len(inputs)) if alike else _schedule(run, inputs, outputs)
    table = np.array(blocks, dtype=float)
    span = np.asarray(spans, dtype=np.int64)
    return _merge(run, table, span, np.array(inputs, dtype=float), np.array(outputs, dtype=float))


def _lengths(run: ClosedLoop) -> tuple[list[int], list[int]]:
    """Prompt and answer of each request [token]; drawn only where they are not all alike."""
    nominal = max(run.input_tokens, 1), max(run.output_tokens, 1)
    if run.shortest == 1.0:
        return [nominal[0]] * run.requests, [nominal[1]] * run.requests
    rng = np.random.default_rng(20260320)
    inputs, outputs = (
        rng.integers(max(int(tokens * run.shortest), 1), most, size=run.requests, endpoint=True).tolist()
        for tokens, most in zip((run.input_tokens, run.output_tokens), nominal, strict=True)
    )
    return inputs, outputs


def _schedule(
    run: ClosedLoop, inputs: list[int], outputs: list[int]
) -> tuple[list[tuple[float, float, float, float, float]], list[list[int]]]:
    """Blocks of equal steps (requests, mean context, prompt tokens, mean keys, steps) and for each request the blocks
    after which it was sent, had its first token, and ended.
    """
    gain = run.tokens_per_step
    blocks: list[tuple[float, float, float, float, float]] = []
    spans = [[0, 0, 0] for _ in inputs]
    waiting: deque[int] = deque()
    prefilling: deque[list[int]] = deque()  # [request, prompt tokens done]
    ends: list[tuple[int, int]] = []  # (step at which it ends, request)
    clock = 0  # decode steps so far
    rounds = 0  # steps of any kind so far
    unseen: deque[int] = deque()  # sent, but the engine has not looked yet
    there: deque[int] = deque()  # rounds at which they can be seen, in order
    since = 0  # round at which the first of them was sent
    held = [inputs[one] + run.reserve * outputs[one] for one in range(len(inputs))]
    decoding = 0
    context = 0.0  # of all decoding requests together
    pool_used = 0.0
    sent = min(run.concurrency, len(inputs))
    unseen.extend(range(sent))
    there.extend([0] * sent)
    alive = sent

    def gathered() -> int:
        """Round at which those who were sent have waited long enough, or are enough."""
        tokens = decoding
        for one, at in zip(unseen, there, strict=True):
            tokens += inputs[one]
            if at >= since + run.gather_steps:
                break
            if tokens >= run.gather_tokens:
                return at
        return since + run.gather_steps

    while alive:
        idle = not (decoding or prefilling or waiting)
        if unseen:
            # an idle engine starts with whoever is there first; where prompts travel, the others find it busy
            look = rounds >= gathered() if run.gather_steps else rounds % run.poll_interval == 0
            seen = (1 if run.late else len(unseen)) if idle else sum(at <= rounds for at in there) if look else 0
            for _ in range(seen):
                waiting.append(unseen.popleft())
                there.popleft()
            since = rounds if seen else since
        while waiting:
            head = waiting[0]
            need = held[head]
            running = decoding + len(prefilling)
            if running >= run.max_requests or (pool_used + need > run.pool_tokens and running):
                break
            pool_used += need
            prefilling.append([waiting.popleft(), 0])
        room = run.budget if run.prefill_first else run.budget - decoding
        if prefilling and room > 0:
            tokens, keys, finished = 0, 0.0, []
            for item in prefilling:
                if tokens >= room:
                    break
                request, done = item
                rest = inputs[request] - done
                if run.whole_prompts and tokens and rest > room - tokens:
                    break
                chunk = rest if run.whole_prompts else min(rest, room - tokens)
                keys += chunk * (done + (chunk + 1) / 2)
                tokens += chunk
                item[1] = done + chunk
                if item[1] == inputs[request]:
                    finished.append(request)
            for _ in finished:
                prefilling.popleft()
            mixed = 0 if run.prefill_first else decoding
            blocks.append((mixed, context / decoding if mixed else 0.0, tokens, keys / tokens, 1))
            if not run.prefill_first:
                clock += 1
                context += decoding * gain
            newcomers = finished
        else:
            steps = max(ends[0][0] - clock, 1)
            if unseen:
                # up to the first look at which the first of them is there
                look_at = max(there[0], rounds + 1)
                if run.gather_steps:
                    look_at = max(look_at, gathered())
                else:
                    look_at = -(-look_at // run.poll_interval) * run.poll_interval
                steps = min(steps, look_at - rounds)
            blocks.append((decoding, context / decoding + gain * (steps - 1) / 2, 0, 0.0, steps))
            clock += steps
            rounds += steps - 1
            context += decoding * gain * steps
            newcomers = []
        rounds += 1
        now = len(blocks)
        freed = 0
        while ends and ends[0][0] <= clock:
            request = heappop(ends)[1]
            spans[request][2] = now
            decoding -= 1
            context -= inputs[request] + outputs[request]
            pool_used -= held[request]
            freed += 1
        for request in newcomers:
            spans[request][1] = now
            more = -(-(outputs[request] - 1) // gain) if outputs[request] > 1 else 0
            if more:
                heappush(ends, (clock + int(more), request))
                decoding += 1
                context += inputs[request] + 1
            else:
                spans[request][2] = now
                pool_used -= held[request]
                freed += 1
        if decoding == 0:
            context = 0.0
        for _ in range(freed):
            alive -= 1
            if sent < len(inputs):
                spans[sent][0] = now
                if not unseen:
                    since = rounds
                unseen.append(sent)
                there.append(rounds + run.late)
                sent += 1
                alive += 1
    return blocks, spans


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
    users, place = min(run.concurrency, run.requests), np.arange(blocks)
    if not run.staggered or run.requests < 3 * users:
        return np.arange(len(span)), np.ones(blocks, dtype=bool)
    begin, stop = int(span[:users, 2].max()), int(span[-1, 0])
    return np.arange(users, run.requests - users), (place >= begin) & (place < stop)


# The kinds of step of many closed loops at once: the schedule of `alike_loop` with one entry of an array for each run.
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
    through `glmplan.simulation.closed_loop.alike_schedule`.

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
    """State of the runs; attributes are as the variables of `glmplan.simulation.closed_loop.alike_schedule`."""

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
