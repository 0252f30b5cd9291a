"""The schedule of a closed-loop run, counted without a clock.

`hatch_build.py` compiles this module.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from glmplan.simulation.closed_run import ClosedLoop

__all__ = ["closed_schedule"]

_MASK: Final = (1 << 32) - 1


def closed_schedule(
    run: ClosedLoop, inputs: list[int], outputs: list[int]
) -> tuple[list[tuple[float, float, float, float, float]], list[list[int]]]:
    """Run the schedule of a closed loop.

    Requests are sent, seen, admitted and prefilled in one order, so that counts say which of them are where.

    - `inputs`, `outputs`: Prompt and answer of each request, [token].
    - `list of tuple of float`: Blocks of equal steps: requests [-], mean context [token], prompt tokens [token], mean
      keys [token], steps [-].
    - `list of list of int`: Blocks after which each request was sent, those after which it had its first token, and
      those after which it ended.

    Examples
    --------
    One prompt, then the four further tokens of its answer.

    >>> run = ClosedLoop(concurrency=1, input_tokens=10, output_tokens=5, requests=1)
    >>> blocks, spans = closed_schedule(run, [10], [5])
    >>> [[float(one) for one in block] for block in blocks], spans
    ([[0.0, 0.0, 10.0, 5.5, 1.0], [1.0, 12.5, 0.0, 0.0, 4.0]], [[0], [1], [2]])
    """
    gain, whole, budget, prefill_first = run.tokens_per_step, run.whole_prompts, run.budget, run.prefill_first
    places, pool, late = run.max_requests, run.pool_tokens, run.late
    gathers, poll_interval, count = run.gather_steps > 0, run.poll_interval, len(inputs)
    held = [inputs[one] + run.reserve * outputs[one] for one in range(count)]
    blocks: list[tuple[float, float, float, float, float]] = []
    sent_at, first_at, ended_at = [0] * count, [0] * count, [0] * count
    there = [0] * count  # round from which the engine can see each
    ends: list[int] = []  # decode step at which a request ends · 2³² + the request
    alive = sent = int(min(run.concurrency, count))
    seen = admitted = first = 0  # requests that the engine has looked at, admitted, and computed the prompt of
    done = 0  # tokens of the next prompt that are computed
    clock = 0  # decode steps so far
    rounds = 0  # steps of any kind so far
    since = 0  # round at which the first of those that are not seen was sent
    decoding = now = 0
    context = 0.0  # of all decoding requests together
    pool_used = 0.0
    while alive:
        idle = not decoding and seen == first
        if seen < sent:
            # an idle engine starts with whoever is there first; where prompts travel, the others find it busy
            before, look = seen, rounds % poll_interval == 0
            if gathers:
                look = rounds >= _gathered(run, inputs, there[seen:sent], seen, since, decoding)
            while seen < sent and ((not late or seen == before) if idle else look and there[seen] <= rounds):
                seen += 1
            since = rounds if seen > before else since
        while admitted < seen:
            running = decoding + admitted - first
            if running >= places or (pool_used + held[admitted] > pool and running):
                break
            pool_used += held[admitted]
            admitted += 1
        room, begun = budget if prefill_first else budget - decoding, first
        if first < admitted and room > 0:
            tokens, keys = 0, 0.0
            while first < admitted and tokens < room:
                rest, left = inputs[first] - done, room - tokens
                if whole and tokens and rest > left:
                    break
                chunk = rest if whole or rest < left else left
                keys += chunk * (done + (chunk + 1) / 2)
                tokens += chunk
                done += chunk
                if chunk == rest:
                    first, done = first + 1, 0
            mixed = 0 if prefill_first else decoding
            blocks.append((mixed, context / decoding if mixed else 0.0, tokens, keys / tokens, 1))
            if not prefill_first:
                clock += 1
                context += decoding * gain
        else:
            steps = max((ends[0] >> 32) - clock, 1)
            if seen < sent:
                # up to the first look at which the first of them is there
                look_at = max(there[seen], rounds + 1)
                if gathers:
                    look_at = max(look_at, _gathered(run, inputs, there[seen:sent], seen, since, decoding))
                else:
                    look_at = -(-look_at // poll_interval) * poll_interval
                steps = min(steps, look_at - rounds)
            blocks.append((decoding, context / decoding + gain * (steps - 1) / 2, 0, 0.0, steps))
            clock += steps
            rounds += steps - 1
            context += decoding * gain * steps
        rounds += 1
        now += 1
        freed = 0
        while ends and ends[0] >> 32 <= clock:
            request = heappop(ends) & _MASK
            ended_at[request] = now
            decoding -= 1
            context -= inputs[request] + outputs[request]
            pool_used -= held[request]
            freed += 1
        for request in range(begun, first):
            first_at[request] = now
            if outputs[request] > 1:
                heappush(ends, (clock + int(-(-(outputs[request] - 1) // gain)) << 32) + request)
                decoding += 1
                context += inputs[request] + 1
            else:
                ended_at[request] = now
                pool_used -= held[request]
                freed += 1
        if decoding == 0:
            context = 0.0
        for _ in range(freed):
            alive -= 1
            if sent < count:
                sent_at[sent] = now
                if seen == sent:
                    since = rounds
                there[sent] = rounds + late
                sent += 1
                alive += 1
    return blocks, [sent_at, first_at, ended_at]


def _gathered(run: ClosedLoop, inputs: list[int], there: list[int], seen: int, since: int, tokens: int) -> int:
    """Round at which those who were sent and not seen have waited long enough, or are enough."""
    last = since + run.gather_steps
    for place, at in enumerate(there, seen):
        tokens += inputs[place]
        if at >= last:
            break
        if tokens >= run.gather_tokens:
            return at
    return last
