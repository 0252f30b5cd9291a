"""What a closed-loop benchmark makes an engine do, step by step, before anybody knows how long a step takes.

With a fixed number of requests in flight the schedule depends on token counts only, not on times: whoever finishes is
followed by the next prompt. So the schedule is run once, and mean TTFT, TPOT and throughput become weighted sums of the
step time over a few kinds of step. The weights are exact; kinds of step that are nearly alike are merged.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np

from glmplan.serving.alike_loop import ClosedLoop, alike_schedule

__all__ = ["ClosedLoop", "StepMix", "closed_loop_mix", "group_of_steps"]


@dataclass(frozen=True, eq=False)
class StepMix:
    """Kinds of step of a run, with the weight of each in what is measured.

    Attributes
    ----------
    decode_requests, decode_context, prefill_tokens, prefill_context : (k,) array
        What a step of each kind holds, as in `glmplan.physics.points.StepPoints`.
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

    Parameters
    ----------
    run : ClosedLoop
        The run.

    Returns
    -------
    StepMix
        Kinds of step and their weights.

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
    after which it was sent, had its first token, and ended."""
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
        return np.cumsum(begun - over)[:-1] * steps

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

    Parameters
    ----------
    requests, prompt, keys : (n,) array
        Decoding requests [-], prompt tokens and the keys that they see in the mean [token]

    Returns
    -------
    (n,) array
        Whole numbers below a thousand million, [-]

    Examples
    --------
    >>> group = group_of_steps(np.array([8.0, 8.1, 32.0]), np.zeros(3), np.zeros(3))
    >>> bool(group[0] == group[1]), bool(group[0] == group[2])
    (True, False)
    """

    def level(values: np.ndarray, per_octave: float) -> np.ndarray:
        return np.where(values > 0, np.round(np.log2(np.maximum(values, 1e-9) + 1.0) * per_octave) + 1, 0)

    return (level(requests, 3) * 1000 + level(prompt, 1)) * 1000 + level(keys, 1)


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
