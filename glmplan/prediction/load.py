"""The load of a measurement: how many requests, how long, and how an engine takes them in."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from glmplan.serving.engine.first_tokens import waiting_share

__all__ = ["Load"]

#: a chat template and a question: prompts of tables that say "context 0" are not empty [token]
_SHORTEST_PROMPT = 32.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked of a server while it is measured.

    Attributes
    ----------
    phase : str
        ``serving`` (whole requests), ``decode`` (steady decoding) or ``prefill``.
    concurrency : float
        Requests in flight, [-]
    input_tokens, output_tokens : float
        Of a request, [token]
    context : float
        Tokens already in the cache before the prompt, [token]
    requests : int
        Requests of the whole run, [-]
    shortest, longest : float
        Lengths are uniform between these shares of the stated ones, [-]
    budget : int
        Tokens that a step may hold, [token]
    prefill_first : bool
        Prompts run in steps of their own.
    whole_prompts : bool
        Prompts are never split over steps.
    max_requests : int
        Requests that may run at once, [-]
    pool_tokens : float
        KV cache, [token]
    reserve : float
        Share of the answer that must fit before a request is admitted, [-]
    poll_interval : int
        Steps between two looks at newly arrived requests, [-]
    gather_steps : int
        Steps that new requests wait for others, [-]
    gather_tokens : int
        Tokens of a step at which that wait ends early, [token]
    late : int
        Steps that have begun when the next prompt of a user arrives, [-]
    staggered : bool
        Users are out of step with each other and only the steady state counts; else all start together and all counts.
    tokens_per_step : float
        Tokens a request gains in a step, [-]
    prefix_cached : bool
        Prompts are in the cache already: the first token needs a short step only.
    cached_rest : float
        Tokens of a cached prompt that are computed again, [token]
    bunched : float
        How many times more requests a micro-batch of a pipeline holds than if they were spread evenly over the stages:
        requests that are admitted together stay in one micro-batch, [-]
    shared_prompt : bool
        All requests have the same context and prompt, of which the cache keeps one copy.
    replicas : int
        Independent servers of this load each; rates are of all of them together, [-]
    ranks : int
        Data-parallel ranks of a server, each with its share of users, budget, places and pool; 1 takes all there are as
        one engine whose requests are spread over them evenly, [-]
    joins : bool
        One request comes, at any time, while the others decode; nobody follows another.
    """

    phase: str
    concurrency: float
    input_tokens: float
    output_tokens: float
    context: float = 0.0
    requests: int = 0
    shortest: float = 1.0
    longest: float = 1.0
    budget: int = 8192
    prefill_first: bool = False
    whole_prompts: bool = False
    max_requests: int = 1 << 30
    pool_tokens: float = float(1 << 60)
    reserve: float = 0.5
    poll_interval: int = 1
    gather_steps: int = 0
    gather_tokens: int = 1 << 60
    late: int = 0
    staggered: bool = False
    tokens_per_step: float = 1.0
    prefix_cached: bool = False
    cached_rest: float = 64.0
    bunched: float = 1.0
    shared_prompt: bool = False
    replicas: int = 1
    ranks: int = 1
    joins: bool = False

    @property
    def busy_ranks(self) -> float:
        """Data-parallel ranks that have requests, where each request has one of its own; else without a bound, [-]"""
        busy = max(self.concurrency, 1.0)
        return busy if busy <= self.ranks and self.ranks > 1 else np.inf

    @property
    def fresh_tokens(self) -> float:
        """Tokens of a prompt that are computed, [token]"""
        fresh = min(self.input_tokens, self.cached_rest) if self.prefix_cached else self.input_tokens
        return max(fresh, _SHORTEST_PROMPT)

    @property
    def pass_tokens(self) -> float:
        """Tokens that are computed before a first token, with those of the requests that come with it, [token]"""
        if self.phase == "decode":
            # all requests arrive together; one waits for about half of the others
            return self.fresh_tokens * (min(self.concurrency, float(self.max_requests)) + 1.0) / 2.0
        return self.input_tokens * max(self.concurrency, 1.0) if self.phase == "prefill" else self.input_tokens

    @property
    def idle(self) -> float:
        """Share of the requests that find nobody there: all of a single user's, none among others, [-]"""
        return float(self.concurrency <= 1.0)

    @property
    def waiting(self) -> float:
        """How far a prompt waits for others in a way that the closed loop does not count: nothing alone, all that was
        learnt among many, [-]"""
        in_step = self.phase == "serving" and not self.joins
        return float(waiting_share(np.asarray(self.concurrency))) if in_step else 0.0

    def decoding(self) -> Load:
        """The decoding of this load alone, where prompts cannot be timed.

        Returns
        -------
        Load
            Of as many requests as find a place in the cache pool, by the rule that admits them where prompts are timed.
        """
        held = self.input_tokens + self.reserve * self.output_tokens + self.context
        places = int(self.pool_tokens // max(held, 1.0))
        return replace(self, phase="decode", max_requests=max(min(self.max_requests, places), 1))
