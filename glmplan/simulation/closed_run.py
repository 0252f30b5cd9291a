"""The record of a closed-loop run: requests and packing of steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = ["UNLIMITED_POOL", "UNLIMITED_REQUESTS", "ClosedLoop", "settled_requests"]

#: requests at once and KV pool of an engine without limits [-], [token]
UNLIMITED_REQUESTS = 1 << 30
UNLIMITED_POOL = float(1 << 60)


def settled_requests(users: int) -> int:
    """Return the requests of a steady run, without each user's first one.

    Examples
    --------
    >>> settled_requests(8), settled_requests(1000)
    (408, 3000)
    """
    return users + max(400, min(6 * users, max(2000, 2 * users)))


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Describe a closed-loop run: requests and packing of steps."""

    concurrency: float  # requests in flight, [-]; a schedule has a whole number of them
    #: `input_tokens`, `output_tokens`: nominal lengths, [token]
    input_tokens: float
    output_tokens: float
    requests: int = 0  # requests in all, [-]
    shortest: float = 1.0  # lengths are uniform between this share of the nominal and the nominal, [-]
    budget: int = 8192  # prompt tokens (and decoding ones where mixed) that a step may hold, [token]
    #: True if prompts run in steps of their own and decoding waits (SGLang); otherwise they share steps (vLLM,
    #: TensorRT-LLM)
    prefill_first: bool = False
    #: True if prompts are never split over steps (TensorRT-LLM without ``enable_chunked_prefill``)
    whole_prompts: bool = False
    max_requests: int = UNLIMITED_REQUESTS  # requests that may run at once, [-]
    pool_tokens: float = UNLIMITED_POOL  # KV pool, [token]
    #: share of the answer that must fit besides the prompt before a request is admitted: 1 where nothing may be evicted
    #: (TensorRT-LLM), about half of it where requests in all phases share the pool (vLLM, SGLang), [-]
    reserve: float = 0.5
    poll_interval: int = 1  # steps between two checks for new requests (SGLang ``--scheduler-recv-interval``), [-]
    #: steps that new requests wait for others while some decode, so that they prefill together (TensorRT-LLM
    #: ``attention_dp_config.timeout_iters`` and ``batch_wait_timeout_iters``), [-]
    gather_steps: int = 0
    #: prompt tokens, with one for each decoding request, that end this wait early (TensorRT-LLM
    #: ``batch_wait_max_tokens_ratio`` of the budget), [token]
    gather_tokens: int = 1 << 60
    #: Steps that have begun when the next prompt of a user arrives, because the engine goes on while the client reads
    #: the end of the answer; two where steps are formed ahead; none while nothing runs. With 0 every prompt is seen at
    #: the instant it is sent, as in the simulator without a front end, [-]
    late: int = 0
    #: True if the first answers are cut to shares of their length, so that users end one after another, and only the
    #: steady state between these and the last prompt counts; else all users start together and all counts
    staggered: bool = False
    #: True if the first request of each user does not count: they all start together, which happens once
    settled: bool = False
    #: True if only means are counted: no median, percentile, gap between tokens or time of a whole request
    means: bool = False
    #: tokens that a request gains in a step (acceptance length of speculative decoding), [token]
    tokens_per_step: float = 1.0
    #: Tokens drafted one after the other in a step, [-]. With them, requests of equal length differ in the steps that
    #: they take, see `glmplan.simulation.closed_loop.decode_steps`; 0 gives every step `tokens_per_step` tokens.
    draft_tokens: int = 0

    def without_idle_limits(self) -> ClosedLoop:
        """Return the run without limits that it never reaches.

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
        pool = UNLIMITED_POOL if self.pool_tokens >= most else self.pool_tokens
        places = UNLIMITED_REQUESTS if self.max_requests >= self.concurrency else self.max_requests
        return replace(self, pool_tokens=pool, max_requests=places)
