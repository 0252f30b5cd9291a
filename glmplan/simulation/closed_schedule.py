"""The schedule of a closed-loop run, counted without a clock.

`hatch_build.py` compiles this module.
"""

from __future__ import annotations

from bisect import insort
from typing import Final

from glmplan.simulation.closed_run import ClosedLoop

__all__ = ["COLUMNS", "closed_schedule"]

#: numbers of a block of steps [-]
COLUMNS: Final = 7
_MASK: Final = (1 << 32) - 1


def closed_schedule(
    run: ClosedLoop, inputs: list[int], outputs: list[int], decode_steps: list[int]
) -> tuple[list[float], list[list[int]]]:
    """Return the blocks of equal steps of a closed loop and of its requests.

    Requests are sent, seen, admitted and prefilled in one order, so that counts say which of them are where.

    - `inputs`, `outputs`: Prompt and answer of each request, [token].
    - `decode_steps`: Steps of each request after its first token, [-].
    - `list of float`: `COLUMNS` numbers for each block: requests [-], mean context [token], prompt tokens [token], mean
      keys [token], steps [-], requests without and with a first token at its begin [-]. One flat list: lists of tuples
      take longer to make and to convert.
    - `list of list of int`: Blocks after which each request was sent, had its first token, and ended.

    Examples
    --------
    One prompt, then the four further tokens of its answer.

    >>> run = ClosedLoop(concurrency=1, input_tokens=10, output_tokens=5, requests=1)
    >>> blocks, spans = closed_schedule(run, [10], [5], [4])
    >>> blocks[:COLUMNS], blocks[COLUMNS:], spans
    ([0.0, 0.0, 10.0, 5.5, 1.0, 1.0, 0.0], [1.0, 12.5, 0.0, 0.0, 4.0, 0.0, 1.0], [[0], [1], [2]])
    """
    gain, whole, budget, prefill_first = run.tokens_per_step, run.whole_prompts, run.budget, run.prefill_first
    places, pool, late = run.max_requests, run.pool_tokens, run.late
    gathers, poll_interval, count = run.gather_steps > 0, run.poll_interval, len(inputs)
    reserve = run.reserve
    blocks: list[float] = []
    sent_at, first_at, ended_at = [0] * count, [0] * count, [0] * count
    there = [0] * count  # round from which the engine can see each
    ends: list[int] = []  # ascending: decode step at which a request ends · 2³² + the request
    over = 0  # of these, requests that have ended
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
        waiting, answering = sent - first, decoding
        if seen < sent:
            # an idle engine starts with the first prompt; if prompts arrive late, the others find it busy
            before, look = seen, rounds % poll_interval == 0
            if gathers:
                look = rounds >= _gathered(run, inputs, there[seen:sent], seen, since, decoding)
            while seen < sent and ((not late or seen == before) if idle else look and there[seen] <= rounds):
                seen += 1
            since = rounds if seen > before else since
        while admitted < seen:
            running = decoding + admitted - first
            if running >= places or (pool_used + inputs[admitted] + reserve * outputs[admitted] > pool and running):
                break
            pool_used += inputs[admitted] + reserve * outputs[admitted]
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
            blocks.append(float(mixed))
            blocks.append(context / decoding if mixed else 0.0)
            blocks.append(float(tokens))
            blocks.append(keys / tokens)
            blocks.append(1.0)
            if not prefill_first:
                clock += 1
                context += decoding * gain
        else:
            steps = (ends[over] >> 32) - clock
            if steps < 1:
                steps = 1
            if seen < sent:
                # up to the first look at which the first of them is there
                look_at = max(there[seen], rounds + 1)
                if gathers:
                    look_at = max(look_at, _gathered(run, inputs, there[seen:sent], seen, since, decoding))
                else:
                    look_at = -(-look_at // poll_interval) * poll_interval
                steps = min(steps, look_at - rounds)
            blocks.append(float(decoding))
            blocks.append(context / decoding + gain * (steps - 1) / 2)
            blocks.append(0.0)
            blocks.append(0.0)
            blocks.append(float(steps))
            clock += steps
            rounds += steps - 1
            context += decoding * gain * steps
        blocks.append(float(waiting))
        blocks.append(float(answering))
        rounds += 1
        now += 1
        freed = 0
        while over < len(ends) and ends[over] >> 32 <= clock:
            request = ends[over] & _MASK
            over += 1
            ended_at[request] = now
            decoding -= 1
            context -= inputs[request] + 1 + gain * decode_steps[request]
            pool_used -= inputs[request] + reserve * outputs[request]
            freed += 1
        for request in range(begun, first):
            first_at[request] = now
            if outputs[request] > 1:
                end = (clock + decode_steps[request] << 32) + request
                if over == len(ends) or end > ends[-1]:
                    ends.append(end)
                else:
                    insort(ends, end, over)
                decoding += 1
                context += inputs[request] + 1
            else:
                ended_at[request] = now
                pool_used -= inputs[request] + reserve * outputs[request]
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
    """Return the round at which new requests have waited long enough."""
    last = since + run.gather_steps
    for place, at in enumerate(there, seen):
        tokens += inputs[place]
        if at >= last:
            break
        if tokens >= run.gather_tokens:
            return at
    return last
