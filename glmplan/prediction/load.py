"""Loads, and their metrics as weighted sums of step times.

A load has the concurrency, lengths and scheduling of a measurement. Mean TTFT, TPOT, throughput and prefill rate of a
benchmark are sums over the kinds of step that its protocol causes. `calibrate` fits the step time through these sums
and `predict` evaluates the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np

from glmplan.catalog.schema.engine import EngineDefaults
from glmplan.costs.points import StepPoints
from glmplan.simulation.closed_loop import StepMix, closed_loop_mix
from glmplan.simulation.closed_run import UNLIMITED_POOL, ClosedLoop, settled_requests
from glmplan.simulation.traffic.waiting import waiting_share
from glmplan.units import Ratio, Tokens

__all__ = ["ENDLESS", "TOGETHER", "Load", "LoadMetrics", "MetricWeights", "metrics_of", "slots_held", "user_load"]


#: chat template and question: prompts of tables that say "context 0" are not empty [token]
_SHORTEST_PROMPT = 32.0
#: fields of the run of a load
_RUN = tuple(one.name for one in fields(ClosedLoop))


@dataclass(frozen=True, slots=True)
class Load(ClosedLoop):
    """Describe the load on a server during a measurement.

    A closed-loop run, and the metrics that are taken of it. `concurrency` is that of each replica, a fraction if
    replicas differ by one (see `glmplan.prediction.replicas.whole_loads`). With `requests` 0 their number follows from
    the concurrency.

    Attributes
    ----------
    phase : str
        ``serving`` (whole requests), ``decode`` (steady decoding) or ``prefill``.
    context : float
        Cached tokens before the prompt, [token]
    longest : float
        Lengths are uniform between `shortest` and this multiple of the stated ones, [-]
    prefix_cached : bool
        True if prompts are cached: the first token needs a short step only.
    cached_rest : float
        Tokens of a cached prompt that are recomputed, [token]
    bunched : float
        Requests of a pipeline micro-batch over those of an even distribution, [-]: requests admitted together stay in
        one micro-batch.
    shared_prompt : bool
        True if all requests have one context and prompt, cached once.
    replicas : float
        Servers with this load each, [-]; rates are their sum. A share if only some of the ranks have this load.
    ranks : int
        Data-parallel ranks, [-], each with its share of users, budget and pool; 1 models all as one engine with evenly
        distributed requests.
    joins : bool
        True for a single request that arrives while the others decode.
    """

    phase: str = "serving"
    context: float = 0.0
    longest: float = 1.0
    prefix_cached: bool = False
    cached_rest: float = 64.0
    bunched: float = 1.0
    shared_prompt: bool = False
    replicas: float = 1
    ranks: int = 1
    joins: bool = False

    @property
    def run(self) -> ClosedLoop:
        """Return the run alone, without what is measured of it."""
        return ClosedLoop(*(getattr(self, name) for name in _RUN))

    @property
    def busy_ranks(self) -> float:
        """Return the data-parallel ranks with requests; infinite if unlimited [-]

        Limited only if each request has a rank of its own.
        """
        busy = max(self.concurrency, 1.0)
        return busy if busy <= self.ranks and self.ranks > 1 else np.inf

    @property
    def fresh_tokens(self) -> float:
        """Return the computed tokens of a prompt [token]"""
        fresh = min(self.input_tokens, self.cached_rest) if self.prefix_cached else self.input_tokens
        return max(fresh, _SHORTEST_PROMPT)

    @property
    def pass_tokens(self) -> float:
        """Return the tokens computed before a first token [token]

        Prompts that arrive together are included.
        """
        if self.phase == "decode":
            # all requests arrive together; each waits for about half of the others
            return self.fresh_tokens * (min(self.concurrency, float(self.max_requests)) + 1.0) / 2.0
        return self.input_tokens * max(self.concurrency, 1.0) if self.phase == "prefill" else self.input_tokens

    @property
    def idle(self) -> float:
        """Return the share of requests that arrive at an idle engine [-]

        All of a single user's, none at a higher concurrency.
        """
        return float(self.concurrency <= 1.0)

    @property
    def waiting(self) -> float:
        """Return the weight of `ttft_scale`: 0 at concurrency 1, 1 at high [-]

        It covers the queueing that the closed-loop model misses.
        """
        in_step = self.phase == "serving" and not self.joins
        return float(waiting_share(np.asarray(self.concurrency))) if in_step else 0.0

    def decoding(self) -> Load:
        """Return the decode part of this load, if prompts cannot be timed.

        Its concurrency is the number of requests that the KV pool admits.
        """
        held = self.input_tokens + self.reserve * self.output_tokens + self.context
        places = int(self.pool_tokens // max(held, 1.0))
        return replace(self, phase="decode", max_requests=max(min(self.max_requests, places), 1))

    def steady(self) -> Load:
        """Return this load without the first request of each user.

        First requests all start together. Only whole requests have a steady state.
        """
        if self.phase != "serving":
            return self
        each = round(max(self.concurrency / self.ranks, 1.0))
        return replace(self, settled=True, requests=settled_requests(each) * self.ranks)


#: an unlimited KV pool [token]
ENDLESS = UNLIMITED_POOL


def user_load(
    packing: EngineDefaults,
    *,
    users: Ratio,
    input_tokens: Tokens,
    output_tokens: Tokens,
    ranks: int = 1,
    **details: Any,
) -> Load:
    """Return the load of users that send the next request after an answer.

    Fields not in `details` follow the engine's scheduler settings (of one data-parallel rank); ``max_requests`` counts
    all ranks.

    Examples
    --------
    >>> from glmplan.catalog.engines.defaults import engine_defaults
    >>> found = user_load(engine_defaults("vllm"), users=8, input_tokens=1024, output_tokens=256, ranks=2)
    >>> found.concurrency, found.max_requests == 2 * engine_defaults("vllm").places
    (8.0, True)
    """
    # a pool that never fills is the same for every layout
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


def slots_held(packing: EngineDefaults, seats: int, held_low: np.ndarray, *, stated: bool) -> np.ndarray:
    """Return the requests that a server runs at once.

    Slots of equal context (llama.cpp) whose number is not `stated` are as many as the lower bound of the pool holds:
    the server allocates all of them at start, and stops without the memory.

    - `seats`: Requests that the settings of the server allow, [-].
    - `held_low`: Requests that its pool holds at the lower bound, [-].

    Examples
    --------
    >>> from glmplan.catalog.engines.defaults import engine_defaults
    >>> held = np.array([0.4, 7.9, 900.0])
    >>> slots_held(engine_defaults("llama.cpp"), 256, held, stated=False).tolist()
    [1.0, 7.0, 256.0]
    >>> slots_held(engine_defaults("vllm"), 256, held, stated=False).tolist()
    [256.0, 256.0, 256.0]
    """
    if stated or packing.admission != "slot":
        return np.full_like(held_low, seats)
    result: np.ndarray = np.minimum(seats, np.maximum(np.floor(held_low), 1.0))
    return result


@dataclass(frozen=True, slots=True, eq=False)
class MetricWeights:
    """A metric as a weighted sum of step times.

    `scale` × Σ weights × step time, or for a rate `scale` over the sum.
    """

    weights: np.ndarray  # steps of each kind
    first: np.ndarray | None = None  # of these, steps up to the first token, in which other prompts are waited for
    scale: float = 1.0  # 1 for seconds; counted tokens for a rate
    rate: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class LoadMetrics:
    """Kinds of step of a run and the metrics on them."""

    decode_requests: np.ndarray
    decode_context: np.ndarray
    prefill_tokens: np.ndarray
    prefill_context: np.ndarray
    decode_shared: np.ndarray
    arrivals: np.ndarray  # front-end work outside of steps, as `prompt`
    prompt: np.ndarray
    figures: dict[
        str, MetricWeights
    ]  # statistics of ttft, tpot, itl, e2e [s]; output_rate, user_rate, total_rate, prefill_rate [token/s]
    running: float  # largest number of running requests on one server
    busy_ranks: float = np.inf  # data-parallel ranks with requests

    @property
    def points(self) -> StepPoints:
        """Return the contents of the steps."""
        return StepPoints(
            self.decode_requests, self.decode_context, self.prefill_tokens, self.prefill_context, self.decode_shared,
            self.busy_ranks,
        )  # fmt: skip


@lru_cache(maxsize=512)  # all changes of a plan have the load of the plan
def metrics_of(load: Load) -> LoadMetrics:
    """Return the metrics of a load as sums over steps.

    Examples
    --------
    >>> found = metrics_of(Load(8, 1000, 200, phase="decode"))
    >>> found.decode_requests.tolist(), found.figures["tpot"].weights.tolist()
    ([8.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    """
    metrics = _under(load)
    for one in _arrays(metrics):
        one.setflags(write=False)  # cached arrays are shared
    return metrics


def _arrays(found: LoadMetrics) -> Iterator[np.ndarray]:
    yield from (found.decode_requests, found.decode_context, found.prefill_tokens, found.prefill_context)
    yield from (found.decode_shared, found.arrivals, found.prompt)
    yield from (one.weights for one in found.figures.values())


def _under(load: Load) -> LoadMetrics:
    metrics = _on_own_ranks(load) if load.ranks > 1 else _of_phase(load)
    if load.replicas != 1:
        # a request sees one server; rates count all servers
        together = {name: metrics.figures[name] for name in TOGETHER if name in metrics.figures}
        scaled = {name: replace(one, scale=one.scale * load.replicas) for name, one in together.items()}
        metrics = replace(metrics, figures={**metrics.figures, **scaled})
    if load.phase in ("prefill", "decode") or load.bunched == 1.0:
        return metrics
    # a pipeline engine runs micro-batches; this undoes the even distribution
    return replace(
        metrics,
        decode_requests=metrics.decode_requests * load.bunched,
        prefill_tokens=metrics.prefill_tokens * load.bunched,
    )


def _on_own_ranks(load: Load) -> LoadMetrics:
    """Return the steps of one data-parallel rank with its share of the users."""
    ranks = load.ranks
    each = max(load.concurrency / ranks, 1.0)
    each = float(round(each)) if load.phase == "serving" else each
    times = max(load.concurrency, 1.0) / each
    share = {name: max(getattr(load, name) // ranks, 1) for name in ("budget", "max_requests")}
    pool = load.pool_tokens / ranks
    metrics = _of_phase(
        replace(load, concurrency=each, requests=math.ceil(load.requests / times), pool_tokens=pool, **share)
    )
    rates = {name: replace(one, scale=one.scale * times) for name, one in metrics.figures.items() if name in TOGETHER}
    return replace(
        metrics,
        decode_requests=metrics.decode_requests * times,
        prefill_tokens=metrics.prefill_tokens * times,
        figures={**metrics.figures, **rates},
        running=metrics.running * times,
        busy_ranks=load.busy_ranks,
    )


#: rates of all requests together
TOGETHER = ("output_rate", "total_rate", "prefill_rate")


def _of_phase(load: Load) -> LoadMetrics:
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


def _prefill(load: Load) -> LoadMetrics:
    together = max(load.concurrency, 1.0)
    tokens = load.input_tokens * together
    sizes, keys = _chunks(load.input_tokens, load.context, load.budget)
    if together > 1:
        # prompts share chunks, but each prompt token attends to its own prompt only
        sizes, _ = _chunks(tokens, 0.0, load.budget)
        keys = np.full(len(sizes), load.context + load.input_tokens / 2)
    zero = np.zeros(len(sizes) + 1)
    weights = np.ones(len(sizes) + 1)
    steps = np.append(np.ones(len(sizes)), 0.0)
    front = np.zeros(len(sizes) + 1)
    front[-1] = 1.0
    return LoadMetrics(
        decode_requests=zero,
        decode_context=zero,
        prefill_tokens=np.append(sizes, 0.0),
        prefill_context=np.append(keys, 0.0),
        decode_shared=zero,
        arrivals=front,
        prompt=front * load.input_tokens,
        figures={
            "ttft": MetricWeights(weights),
            "ttft_p50": MetricWeights(weights),
            "prefill_rate": MetricWeights(steps, scale=tokens, rate=True),
        },
        running=together,
    )


def _decode(load: Load) -> LoadMetrics:
    running = min(load.concurrency, float(load.max_requests))
    before = load.context + load.input_tokens
    context = before + load.output_tokens / 2
    fresh, together = load.fresh_tokens, load.pass_tokens
    chunks = max(np.ceil(together / load.budget), 1.0)
    decode, prefill, front = np.eye(3)
    steps = decode / load.tokens_per_step
    figures = {
        **{name: MetricWeights(steps) for name in ("tpot", "tpot_p50", "itl", "itl_p50")},
        "ttft": MetricWeights(prefill * chunks + front),
        "output_rate": MetricWeights(steps, scale=running, rate=True),
        "user_rate": MetricWeights(steps, rate=True),
    }
    if load.tokens_per_step > 1:
        figures = _without_gaps(figures)
    return LoadMetrics(
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


def _without_gaps(figures: dict[str, MetricWeights]) -> dict[str, MetricWeights]:
    """Return the metrics without the gaps between chunks.

    Clients count a chunk of several tokens as one gap, or as one for each token.
    """
    return {name: one for name, one in figures.items() if not name.startswith("itl")}


def _joining(load: Load) -> LoadMetrics:
    """Return the steps of a request that arrives while others decode.

    It waits for the started steps, then runs its own chunks.
    """
    others = max(load.concurrency - 1.0, 0.0)
    sizes, keys = _chunks(max(load.input_tokens, 1.0), load.context, max(round(load.budget - others), 1))
    none, chunks = np.zeros(1), len(sizes)
    # it arrives at any time in a step: on average half a step and the steps already formed remain
    begun = max(load.late, 1) - 0.5
    return LoadMetrics(
        decode_requests=np.concatenate([np.full(chunks + 1, others), none]),
        decode_context=np.concatenate([np.full(chunks + 1, load.input_tokens + load.output_tokens / 2.0), none]),
        prefill_tokens=np.concatenate([none, sizes, none]),
        prefill_context=np.concatenate([none, keys, none]),
        decode_shared=np.zeros(chunks + 2),
        arrivals=np.append(np.zeros(chunks + 1), 1.0),
        prompt=np.append(np.zeros(chunks + 1), load.input_tokens),
        figures={"ttft": MetricWeights(np.concatenate([[begun], np.ones(chunks + 1)]))},
        running=load.concurrency,
    )


def _then(values: np.ndarray, last: float) -> np.ndarray:
    """Return the values of steps followed by that of the front end."""
    joined = np.empty(len(values) + 1)
    joined[:-1], joined[-1] = values, last
    return joined


def _serving(load: Load) -> LoadMetrics:
    concurrency = max(round(load.concurrency), 1)
    requests = load.requests or min(max(4 * concurrency, 8), 20000)
    prompt = 1 if load.prefix_cached else max(round(load.input_tokens * load.longest), 1)
    run = replace(
        load.run,
        concurrency=concurrency,
        input_tokens=prompt,
        output_tokens=max(round(load.output_tokens * load.longest), 1),
        requests=max(requests, 1),
        shortest=load.shortest / load.longest,
        pool_tokens=math.floor(min(load.pool_tokens, UNLIMITED_POOL)),
        tokens_per_step=round(load.tokens_per_step, 2),
    )
    mix: StepMix = closed_loop_mix(run.without_idle_limits())
    depth = load.context + (load.input_tokens if load.prefix_cached else 0.0)
    # at higher concurrency the front end overlaps with the other users' steps
    wall = _then(mix.counted, requests / concurrency)
    tpot, decoding, none = _then(mix.tpot, 0.0), mix.decode_requests > 0, np.zeros(len(wall))
    first = MetricWeights(_then(mix.ttft, 1.0))
    figures = {
        "ttft": first,
        "tpot": MetricWeights(tpot),
        "output_rate": MetricWeights(wall, scale=mix.output_tokens, rate=True),
    }
    if not load.means:
        figures |= {
            "ttft_p50": MetricWeights(_then(mix.ttft_median, 1.0)),
            "ttft_p99": MetricWeights(_then(mix.ttft_late, 1.0)),
            "tpot_p50": MetricWeights(_then(mix.tpot_median, 0.0)),
            "tpot_p99": MetricWeights(_then(mix.tpot_late, 0.0)),
            "itl": MetricWeights(_then(mix.itl, 0.0)),
            "itl_p50": MetricWeights(_then(mix.itl_median, 0.0)),
            "itl_p99": MetricWeights(_then(mix.itl_late, 0.0)),
            "e2e": MetricWeights(_then(mix.stay, 1.0), first.weights),
            "e2e_p99": MetricWeights(_then(mix.stay_late, 1.0), _then(mix.stay_late_first, 1.0)),
            "user_rate": MetricWeights(tpot, rate=True),
            "total_rate": MetricWeights(wall, scale=mix.output_tokens + mix.input_tokens, rate=True),
        }
    if load.tokens_per_step > 1:
        figures = _without_gaps(figures)
    if not mix.tpot.any():
        figures = {name: one for name, one in figures.items() if not name.startswith(("tpot", "itl", "user"))}
    return LoadMetrics(
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
