"""A closed-loop run, and its schedule where requests are alike: they keep their order, so that counts say all.

The same blocks as the schedule of one request after the other in `closed_loop`, with one turn of the loop for each step
that holds a prompt instead of one for each request.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

__all__ = ["ClosedLoop", "alike_schedule"]

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

        Returns
        -------
        ClosedLoop
            One with the same schedule.

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

    Parameters
    ----------
    run : ClosedLoop
        The run; `shortest` 1, not `staggered`, no `gather_steps`.
    requests : int
        Requests in all, [-]

    Returns
    -------
    list of tuple of float
        Blocks of equal steps: requests [-], mean context [token], prompt tokens [token], mean keys [token], steps [-]
    (requests, 3) array of int
        Blocks after which each request was sent, had its first token, and ended, [-]

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
