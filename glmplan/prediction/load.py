"""The load of a measurement: how many requests, how long, and how an engine takes them in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from glmplan.catalog.engines.defaults import EngineDefaults
from glmplan.costs.points import StepPoints
from glmplan.simulation.closed_loop import ClosedLoop, StepMix, closed_loop_mix
from glmplan.simulation.engine.settings import waiting_share
from glmplan.units import Ratio, Tokens

__all__ = ["ENDLESS", "TOGETHER", "Load", "Observable", "Observables", "observables", "user_load"]


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
        Requests in flight on each replica; no whole number where replicas differ by one, which
        `glmplan.prediction.replicas.whole_loads` splits, [-]
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
        learnt among many, [-]
        """
        in_step = self.phase == "serving" and not self.joins
        return float(waiting_share(np.asarray(self.concurrency))) if in_step else 0.0

    def decoding(self) -> Load:
        """The decoding of this load alone, where prompts cannot be timed.

        Returns: Of as many requests as find a place in the cache pool, by the rule that admits them where prompts are
          timed.
        """
        held = self.input_tokens + self.reserve * self.output_tokens + self.context
        places = int(self.pool_tokens // max(held, 1.0))
        return replace(self, phase="decode", max_requests=max(min(self.max_requests, places), 1))


# The load that a number of users make on a server: plans, tables, simulator and calibration all build it here.

#: a cache pool that never fills [token]
ENDLESS = float(1 << 60)


def user_load(
    packing: EngineDefaults,
    *,
    users: Ratio,
    input_tokens: Tokens,
    output_tokens: Tokens,
    ranks: int = 1,
    **details: Any,
) -> Load:
    """Describe what users ask of a server; what is left out is as its engine packs steps.

    - `packing`: How the engine packs the steps of one data-parallel rank.
    - `users`: Requests in flight: each user sends the next one when the last is answered.
    - `ranks`: Data-parallel ranks, which have as many steps and places each; a request takes one of them.
    - `**details`: Further fields of `Load`, such as ``pool_tokens``; ``max_requests`` is of all ranks together.

    Examples
    --------
    >>> from glmplan.catalog.engines.defaults import engine_defaults
    >>> found = user_load(engine_defaults("vllm"), users=8, input_tokens=1024, output_tokens=256, ranks=2)
    >>> found.concurrency, found.max_requests == 2 * engine_defaults("vllm").places
    (8.0, True)
    """
    # a pool that is never full is the same to every layout
    longest = max(details.get("longest", 1.0), 1.0)
    filled = (users + 1.0) * (input_tokens + output_tokens + details.get("context", 0.0)) * longest
    pool = details.pop("pool_tokens", ENDLESS)
    return Load(
        phase=details.pop("phase", "serving"),
        concurrency=float(users),
        input_tokens=float(input_tokens),
        output_tokens=float(output_tokens),
        budget=packing.budget_of(ranks),
        prefill_first=packing.prefill_first,
        whole_prompts=packing.whole_prompts,
        late=packing.steps_late,
        max_requests=details.pop("max_requests", packing.places * ranks),
        pool_tokens=pool if pool < filled else ENDLESS,
        reserve=packing.reserve,
        ranks=ranks,
        **details,
    )


# What a run measures, written as weighted sums of step times, before any step time is known.
#
# Mean TTFT, TPOT, throughput and prefill speed of a benchmark are sums over the kinds of step its protocol makes the
# engine do. `calibrate` fits the step time through these sums and `predict` evaluates them: the same sums for both.


@dataclass(frozen=True, slots=True, eq=False)
class Observable:
    """One figure as a sum over steps: `scale` × Σ weights × step time, or for a rate `scale` over that sum.

    Attributes
    ----------
    weights : (k,) array
        Steps of each kind, [-]
    scale : float
        1 for seconds; the counted tokens for a rate.
    rate : bool
        Whether the figure is `scale` divided by the sum.
    """

    weights: np.ndarray
    scale: float = 1.0
    rate: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Observables:
    """Kinds of step of a run and every figure on them.

    Attributes
    ----------
    decode_requests, decode_context, prefill_tokens, prefill_context, decode_shared, arrivals, prompt : (k,) array
        What each kind of step holds; the last two are work of the front end outside of steps.
    figures : dict of str to Observable
        ``ttft``, ``ttft_p50``, ``tpot``, ``itl_p50`` [s]; ``output_rate``, ``user_rate``, ``total_rate``,
        ``prefill_rate`` [token/s].
    running : float
        Largest number of requests that one server runs at once, [-]
    busy_ranks : float
        Data-parallel ranks that have requests, [-]
    """

    decode_requests: np.ndarray
    decode_context: np.ndarray
    prefill_tokens: np.ndarray
    prefill_context: np.ndarray
    decode_shared: np.ndarray
    arrivals: np.ndarray
    prompt: np.ndarray
    figures: dict[str, Observable]
    running: float
    busy_ranks: float = np.inf

    @property
    def points(self) -> StepPoints:
        """What the steps hold."""
        return StepPoints(
            self.decode_requests, self.decode_context, self.prefill_tokens, self.prefill_context, self.decode_shared,
            self.busy_ranks,
        )  # fmt: skip


@lru_cache(maxsize=512)  # the changes of a plan are under the load of the plan
def observables(load: Load) -> Observables:
    """Write what a load measures as sums over steps.

    Examples
    --------
    >>> found = observables(Load("decode", 8, 1000, 200))
    >>> found.decode_requests.tolist(), found.figures["tpot"].weights.tolist()
    ([8.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    """
    found = _under(load)
    for one in _arrays(found):
        one.setflags(write=False)  # who asks next gets the same arrays
    return found


def _arrays(found: Observables) -> Iterator[np.ndarray]:
    yield from (found.decode_requests, found.decode_context, found.prefill_tokens, found.prefill_context)
    yield from (found.decode_shared, found.arrivals, found.prompt)
    yield from (one.weights for one in found.figures.values())


def _under(load: Load) -> Observables:
    found = _on_own_ranks(load) if load.ranks > 1 else _of_phase(load)
    if load.replicas > 1:
        # a request sees one server; tokens of all servers are counted
        together = {name: found.figures[name] for name in TOGETHER if name in found.figures}
        scaled = {name: replace(one, scale=one.scale * load.replicas) for name, one in together.items()}
        found = replace(found, figures={**found.figures, **scaled})
    if load.phase in ("prefill", "decode") or load.bunched == 1.0:
        return found
    # the work of a micro-batch is what the engine does; even spreading is undone here
    return replace(
        found,
        decode_requests=found.decode_requests * load.bunched,
        prefill_tokens=found.prefill_tokens * load.bunched,
    )


def _on_own_ranks(load: Load) -> Observables:
    """The steps of one data-parallel rank and its share of the users, on as many ranks at once as have users."""
    ranks = load.ranks
    each = max(load.concurrency / ranks, 1.0)
    each = float(round(each)) if load.phase == "serving" else each
    times = max(load.concurrency, 1.0) / each
    share = {name: max(getattr(load, name) // ranks, 1) for name in ("budget", "max_requests")}
    pool = load.pool_tokens / ranks
    found = _of_phase(
        replace(load, concurrency=each, requests=math.ceil(load.requests / times), pool_tokens=pool, **share)
    )
    rates = {name: replace(one, scale=one.scale * times) for name, one in found.figures.items() if name in TOGETHER}
    return replace(
        found,
        decode_requests=found.decode_requests * times,
        prefill_tokens=found.prefill_tokens * times,
        figures={**found.figures, **rates},
        running=found.running * times,
        busy_ranks=load.busy_ranks,
    )


#: rates of all requests together
TOGETHER = ("output_rate", "total_rate", "prefill_rate")


def _of_phase(load: Load) -> Observables:
    if load.joins:
        return _joining(load)
    if load.phase == "prefill":
        return _prefill(load)
    return _decode(load) if load.phase == "decode" else _serving(load)


def _chunks(tokens: float, before: float, budget: int) -> tuple[np.ndarray, np.ndarray]:
    count = max(int(np.ceil(tokens / budget)), 1)
    starts = np.arange(count) * budget
    sizes = np.minimum(budget, tokens - starts)
    return sizes, before + starts + (sizes + 1.0) / 2


def _prefill(load: Load) -> Observables:
    together = max(load.concurrency, 1.0)
    tokens = load.input_tokens * together
    sizes, keys = _chunks(load.input_tokens, load.context, load.budget)
    if together > 1:
        # prompts of several requests share chunks; every prompt token still sees its own prompt only
        sizes, _ = _chunks(tokens, 0.0, load.budget)
        keys = np.full(len(sizes), load.context + load.input_tokens / 2)
    zero = np.zeros(len(sizes) + 1)
    weights = np.ones(len(sizes) + 1)
    steps = np.append(np.ones(len(sizes)), 0.0)
    front = np.zeros(len(sizes) + 1)
    front[-1] = 1.0
    return Observables(
        decode_requests=zero,
        decode_context=zero,
        prefill_tokens=np.append(sizes, 0.0),
        prefill_context=np.append(keys, 0.0),
        decode_shared=zero,
        arrivals=front,
        prompt=front * load.input_tokens,
        figures={
            "ttft": Observable(weights),
            "ttft_p50": Observable(weights),
            "prefill_rate": Observable(steps, scale=tokens, rate=True),
        },
        running=together,
    )


def _decode(load: Load) -> Observables:
    running = min(load.concurrency, float(load.max_requests))
    before = load.context + load.input_tokens
    context = before + load.output_tokens / 2
    fresh, together = load.fresh_tokens, load.pass_tokens
    chunks = max(np.ceil(together / load.budget), 1.0)
    decode, prefill, front = np.eye(3)
    steps = decode / load.tokens_per_step
    figures = {
        "tpot": Observable(steps),
        "itl_p50": Observable(steps),
        "ttft": Observable(prefill * chunks + front),
        "output_rate": Observable(steps, scale=running, rate=True),
        "user_rate": Observable(steps, rate=True),
    }
    return Observables(
        decode_requests=decode * running,
        decode_context=decode * context,
        prefill_tokens=prefill * together / chunks,
        prefill_context=prefill * max(before - fresh / 2.0 if load.prefix_cached else load.context + fresh / 2.0, 1.0),
        decode_shared=decode * (before if load.shared_prompt else 0.0),
        arrivals=front,
        prompt=front * load.input_tokens * together / fresh,
        figures=figures,
        running=running,
    )


def _joining(load: Load) -> Observables:
    """One request that comes while others decode: what is left of steps that have begun, then its own chunks."""
    others = max(load.concurrency - 1.0, 0.0)
    sizes, keys = _chunks(max(load.input_tokens, 1.0), load.context, max(round(load.budget - others), 1))
    none, chunks = np.zeros(1), len(sizes)
    # it may come at any time in a step: half of one is left in the mean, and those that are formed by then
    begun = max(load.late, 1) - 0.5
    return Observables(
        decode_requests=np.concatenate([np.full(chunks + 1, others), none]),
        decode_context=np.concatenate([np.full(chunks + 1, load.input_tokens + load.output_tokens / 2.0), none]),
        prefill_tokens=np.concatenate([none, sizes, none]),
        prefill_context=np.concatenate([none, keys, none]),
        decode_shared=np.zeros(chunks + 2),
        arrivals=np.append(np.zeros(chunks + 1), 1.0),
        prompt=np.append(np.zeros(chunks + 1), load.input_tokens),
        figures={"ttft": Observable(np.concatenate([[begun], np.ones(chunks + 1)]))},
        running=load.concurrency,
    )


def _then(values: np.ndarray, last: float) -> np.ndarray:
    """The values of steps, and that of the front end behind them."""
    found = np.empty(len(values) + 1)
    found[:-1], found[-1] = values, last
    return found


def _serving(load: Load) -> Observables:
    concurrency = max(round(load.concurrency), 1)
    requests = load.requests or min(max(4 * concurrency, 8), 20000)
    prompt = 1 if load.prefix_cached else max(round(load.input_tokens * load.longest), 1)
    mix: StepMix = closed_loop_mix(
        ClosedLoop(
            concurrency=concurrency,
            input_tokens=prompt,
            output_tokens=max(round(load.output_tokens * load.longest), 1),
            requests=max(requests, 1),
            shortest=load.shortest / load.longest,
            budget=load.budget,
            prefill_first=load.prefill_first,
            whole_prompts=load.whole_prompts,
            max_requests=load.max_requests,
            pool_tokens=int(min(load.pool_tokens, 1 << 60)),
            reserve=load.reserve,
            poll_interval=load.poll_interval,
            gather_steps=load.gather_steps,
            gather_tokens=load.gather_tokens,
            late=load.late,
            staggered=load.staggered,
            tokens_per_step=round(load.tokens_per_step, 2),
        ).without_idle_limits()
    )
    depth = load.context + (load.input_tokens if load.prefix_cached else 0.0)
    # a user's next request passes the front end while the others' are served: alone it waits, among many it is hidden
    wall = _then(mix.wall, requests / concurrency)
    tpot, decoding, none = _then(mix.tpot, 0.0), mix.decode_requests > 0, np.zeros(len(wall))
    figures = {
        "ttft": Observable(_then(mix.ttft, 1.0)),
        "ttft_p50": Observable(_then(mix.ttft_median, 1.0)),
        "tpot": Observable(tpot),
        "itl_p50": Observable(_then(mix.itl_median, 0.0)),
        "output_rate": Observable(wall, scale=mix.output_tokens, rate=True),
        "user_rate": Observable(tpot, rate=True),
        "total_rate": Observable(wall, scale=mix.output_tokens + mix.input_tokens, rate=True),
    }
    if not mix.tpot.any():
        del figures["tpot"], figures["itl_p50"], figures["user_rate"]
    return Observables(
        decode_requests=_then(mix.decode_requests, 0.0),
        decode_context=_then(mix.decode_context + depth * decoding, 0.0),
        prefill_tokens=_then(mix.prefill_tokens, 0.0),
        prefill_context=_then(mix.prefill_context + depth * (mix.prefill_tokens > 0), 0.0),
        decode_shared=_then(depth * decoding, 0.0) if load.shared_prompt else none,
        arrivals=_then(none[:-1], 1.0),
        prompt=_then(none[:-1], load.input_tokens),
        figures=figures,
        running=float(mix.peak_requests),
    )
