"""From a planned deployment to the service that the simulator runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.catalog.engines.defaults import block_tokens, engine_defaults, free_slots
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.costs.blocks.stack import mixers_of
from glmplan.errors import DoesNotFit, SpecError, UnknownFact, nearest
from glmplan.planner.capacity import MAY_START, Holding
from glmplan.planner.launch import slots_of
from glmplan.planner.layouts import apart_basis, not_together, transfer_link
from glmplan.planner.question import Asked, read_words
from glmplan.planner.ranking import (
    completed_words,
    deployment_of,
    load_on,
    predicted,
    prompts_timed,
    typical_users,
    untimed_words,
)
from glmplan.planner.users import Solution, count_users, danger_under, solve
from glmplan.prediction.deployment import Deployment, experts_of
from glmplan.prediction.distribution import NORMAL, SHOWN, SURE, Spread, linear_quantile, middles
from glmplan.prediction.predict import Figure, front_end_seconds, predict, step_seconds, steps_apart, wake_seconds
from glmplan.prediction.step_models import site_calibration, step_model_of
from glmplan.request.option import MOST_USERS
from glmplan.request.plan import PlanRequest
from glmplan.simulation.engine.settings import FirstTokens, KvPool, ServingInputs, scheduler_settings
from glmplan.simulation.engine.step_table import ShortSteps, StepTable
from glmplan.simulation.load_search import DRAWS, Tries
from glmplan.simulation.load_trial import SafeLoad, try_load, unit_of
from glmplan.simulation.safe_load import (
    WHOLE,
    Cutoff,
    Draws,
    Kept,
    Level,
    RunSize,
    Uncertainty,
    check_search,
    foreseen_load,
    kept_share,
    outcome_range,
    safe_load,
)
from glmplan.simulation.seeds import stream_seed
from glmplan.simulation.simulate import Service
from glmplan.simulation.traffic.drafting import Acceptance
from glmplan.simulation.traffic.slo import Target
from glmplan.simulation.traffic.spec import Traffic
from glmplan.simulation.unused import check_used
from glmplan.units import Ratio, TokenCount, counted_unit

if TYPE_CHECKING:
    from glmplan.catalog.schema.model import ModelSpec
    from glmplan.planner.capacity import Holding
    from glmplan.planner.question import Asked
    from glmplan.simulation.traffic.slo import Target

__all__ = [
    "Described",
    "check_images",
    "chosen",
    "concurrency_class",
    "inputs_of",
    "kept_of",
    "loads_at",
    "safe_of",
    "searched_traffic",
    "service_of",
    "serving_inputs",
    "with_experts_apart",
]


#: contexts of recorded requests for which step times are tabulated; longer ones are extrapolated [token]
_LONGEST_RECORDED = 262_144
#: searches for a safe rate, each with the intervals at the answer of the one before [-]
_PASSES = 3
#: loads over the one that a single arrival sample predicts, between which the answer lies [-]
_FORESEEN = (0.9, 1.1)
#: halvings of the loads between two classes of concurrency [-]
_HALVINGS = 8


@dataclass(frozen=True, slots=True)
class Described:
    """A service and the uncertainty of its step times."""

    service: Service  # the simulated service
    #: `low`, `high`: 90 % interval of the step time relative to its prediction, [-]
    low: float
    high: float
    basis: str  # evidence of the step time
    first: tuple[float, float] = (1.0, 1.0)  # 90 % interval of TTFT relative to its prediction, [-]
    pool: tuple[float, float] = (1.0, 1.0)  # 90 % interval of the KV pool relative to its prediction, [-]
    slo: str = ""  # default SLO of `fit`; empty for a custom step time
    #: request and layout if the service is exactly the plan of `fit`, without options of the simulator
    plan: tuple[Asked, Holding] | None = None
    #: quantiles over the ends of the intervals of the step time and of TTFT, see `glmplan.prediction.distribution`
    tails: tuple[tuple[float, ...], tuple[float, ...]] = (NORMAL, NORMAL)
    #: quantiles of step time and TTFT over their predictions at a number of users; None if they are the same at all
    by_users: Callable[[float, Ratio], tuple[Ratio, Ratio]] | None = field(default=None, compare=False)
    #: trials so far, by traffic at any load, SLO, seed and probability
    tries: dict[tuple[Any, ...], Tries] = field(default_factory=dict, compare=False)

    def known(self, traffic: Traffic, targets: Sequence[Target], draws: Draws) -> Tries:
        """Return the trials of traffic that differs in its load only.

        `safe_load` and `kept_share` add to them. `draws` are the services that they try.
        """
        services = (draws.level.probability, *draws.factors, *draws.waits)
        return self.tries.setdefault((traffic.at_load(1.0), tuple(targets), draws.seed, services), Tries())

    def quantiles(self, share: Ratio, users: float | None = None) -> tuple[Ratio, Ratio]:
        """Return step time and TTFT relative to the prediction.

        `users`: Requests in flight; by default the reference concurrency of the machine.
        """
        if users is None or self.by_users is None:
            step, first = self.spreads
            return step.quantile(share), first.quantile(share)
        return self.by_users(users, share)

    def ends(self, traffic: Traffic, summary: Mapping[str, float]) -> Uncertainty:
        """Return the 90 % intervals at the simulated load."""
        users = self.in_flight(traffic, summary)
        (low, early), (high, late) = self.quantiles(0.05, users), self.quantiles(0.95, users)
        return Uncertainty((low, high), (early, late), self.pool)

    def in_flight(self, traffic: Traffic, summary: Mapping[str, float]) -> float | None:
        """Return the users, or the mean number of requests in flight.

        Little's law gives it for a rate, to the nearest power of two; engines run `max_num_seqs` of them, the others
        wait. None if no request was answered.
        """
        if traffic.users is not None:
            return float(traffic.users)
        settings = self.service.settings
        found = summary.get("requests_per_s", math.nan) * summary.get("e2e_mean_ms", math.nan) / 1000
        if not math.isfinite(found):
            return None
        return concurrency_class(min(found, float(settings.max_num_seqs * settings.replicas)))

    def at(self, share: Ratio, users: float | None, traffic: Traffic) -> Service:
        """Return the service at a quantile; `users` as for `quantiles`."""
        step, first = self.quantiles(share, users)
        found = self.service.scaled(step) if step != 1.0 else self.service
        found = replace(found, first=replace(found.first, times=first / step))
        return found.with_room(linear_quantile(1.0 - share, *self.pool), traffic)

    @property
    def spreads(self) -> tuple[Spread, Spread]:
        """Predictive distributions of the step time and of TTFT."""
        return Spread(self.low, self.high, self.tails[0]), Spread(*self.first, self.tails[1])

    def ranges(
        self, traffic: Traffic, summary: dict[str, float], *, requests: int, warmup: int = 0, seed: int = 0
    ) -> dict[str, tuple[float, float]]:
        """Return the 90 % range of each statistic of a simulation."""
        size = RunSize(requests, warmup, seed)
        return outcome_range(self.service, traffic, summary, self.ends(traffic, summary), size)

    def draws(self, probability: Ratio = SURE, seed: int = 0, users: float | None = None) -> Draws:
        """Return the uncertainty as equally probable machines, the worst first.

        - `probability`: Share of the machines that have to meet an SLO; the slowest of them has a machine of its own.
        - `users`: As for `quantiles`.
        """
        places = middles(DRAWS)
        steps, waits = zip(*(self.quantiles(share, users) for share in places), strict=True)
        rooms = tuple(linear_quantile(1.0 - share, *self.pool) for share in places)
        room = linear_quantile(1.0 - probability, *self.pool)
        level = Level(probability, *self.quantiles(probability, users), room, self.by_users)
        return Draws(steps, waits, rooms, level, seed)

    def draws_at(self, traffic: Traffic, targets: Sequence[Target], seed: int, probability: Ratio) -> Draws:
        """Return the draws at the load of the traffic.

        A rate or trace is simulated once, as predicted, for its requests in flight: with the same arrivals for every
        `seed`, so that chance does not decide between two powers of two. Users have the draws of the reference
        concurrency; their trials take their own intervals.
        """
        if self.by_users is None or traffic.users is not None:
            return self.draws(probability, seed)
        load = traffic.rate or traffic.speed
        found = try_load(self.service, traffic, tuple(targets), load, stream_seed(0)).summary
        return self.draws(probability, seed, self.in_flight(traffic, found))


def concurrency_class(users: float) -> float:
    """Return the nearest power of two: nearby loads share predictions.

    Examples
    --------
    >>> concurrency_class(0.2), concurrency_class(5.0), concurrency_class(6.0)
    (1.0, 4.0, 8.0)
    """
    return float(2.0 ** round(math.log2(max(users, 1.0))))


def service_of(
    inputs: ServingInputs,
    traffic: Traffic,
    *,
    kv_tokens: TokenCount | None = None,
    block_size: TokenCount | None = None,
    scheduler: Mapping[str, Any] | None = None,
    users: int | None = None,
) -> Described:
    """Tabulate the step time of a planned deployment for the simulator.

    - `traffic`: Bounds the contexts of the table.
    - `kv_tokens`, `block_size`: KV pool and tokens per block, instead of the predicted ones.
    - `scheduler`: Fields of `EngineSettings` instead of the engine's own.
    - `users`: Concurrency up to which steps are tabulated first; higher ones follow if needed.
    """
    settings, pool = inputs.settings, inputs.pool
    changes = dict(scheduler or {})
    ranks = inputs.ranks  # a requested replica contains all data-parallel ranks
    changes |= {name: changes[name] * ranks for name in ("replicas", "prefill_replicas") if name in changes}
    budget = changes.get("max_num_batched_tokens")
    if budget is not None and "max_num_seqs" not in changes:
        changes["max_num_seqs"] = max(1, min(settings.max_num_seqs, budget // settings.tokens_per_decode))
    if not settings.chunked_prefill and _may_exceed(traffic, settings.max_num_batched_tokens):
        settings = replace(settings, chunked_prefill=True)  # as the launch command does: the server would refuse them
    settings = replace(settings, **changes)
    check_used(settings, traffic, changes)
    if kv_tokens is not None or block_size is not None:
        pool = replace(pool, tokens=kv_tokens or pool.tokens, block_size=block_size or pool.block_size)
    longest = 4 * (traffic.input + traffic.output) * (traffic.turns if traffic.kind == "sessions" else 1)
    longest += traffic.start + traffic.shared_prefix
    if traffic.kind == "trace" or traffic.lengths:
        longest = _LONGEST_RECORDED
    sizes = {
        "max_requests": -(-settings.max_num_seqs // settings.pipeline_stages),
        "max_context": max(1024, min(settings.max_model_len, pool.tokens, longest)),
        "max_prefill": settings.max_num_batched_tokens,
    }

    @cache
    def spread(busy: int) -> StepTable:
        assert inputs.step_of_few is not None
        return StepTable.tabulate(inputs.step_of_few(busy), **sizes)

    shared = spread if settings.lockstep > 1 and inputs.step_of_few is not None else None
    whole = None
    if users is not None and users < sizes["max_requests"]:
        whole = cache(lambda: StepTable.tabulate(inputs.step_seconds, **sizes))
    table = StepTable.tabulate(inputs.step_seconds, **sizes, rows=users)
    return Described(
        Service(table, pool, settings, inputs.front_end, inputs.cold_start, inputs.first, shared, whole),
        inputs.low,
        inputs.high,
        inputs.basis,
        (inputs.first_low, inputs.first_high),
        (inputs.pool_low, inputs.pool_high),
        tails=(inputs.tail or NORMAL, inputs.first_tail or NORMAL),
        by_users=inputs.by_users,
    )


def _may_exceed(traffic: Traffic, budget: TokenCount) -> bool:
    """Return True if a prompt with its answer may exceed a step."""
    drawn = traffic.kind in ("sessions", "trace") or traffic.lengths or traffic.input_cv or traffic.output_cv
    return bool(drawn) or traffic.input + traffic.output > budget


def serving_inputs(question: PlanRequest | Asked) -> ServingInputs:
    """Plan a deployment as `fit` and return the inputs of the simulator.

    The best layout that fits, as one engine per data-parallel rank. Ranks that share the experts of a mixture are in
    lockstep, dense ones are independent; requests are spread over pipeline stages.

    Examples
    --------
    >>> inputs = serving_inputs(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"))
    >>> inputs.settings.scheduler, inputs.low < 1 < inputs.high
    ('vllm', True)
    """
    asked = question if isinstance(question, Asked) else read_words(question)
    from glmplan.planner.moved_search import with_moved_experts

    with site_calibration(asked.calibration):
        solution = with_moved_experts(solve(asked, sole=True))
        asked, best = solution.asked, chosen(solution.asked, solution)
        return inputs_of(asked, best, deployment_of(asked, best.terms))


def chosen(asked: Asked, solution: Solution) -> Holding:
    """Return the layout that `fit` chooses; raise if it has no step times.

    `solution`: Its layouts, as `glmplan.planner.traffic_search.solve_under` ranks them for traffic.
    """
    best, what = solution.best, f"{asked.model.name} {asked.checkpoint.name}"
    if best.terms.blocked is not None:
        raise DoesNotFit(f"{what} does not run with {asked.engine}: {best.terms.blocked.title}")
    if best.verdict == "does_not_fit":
        perhaps = f", {MAY_START}" if best.may_start else ""
        raise DoesNotFit(f"{what} does not fit {asked.machine.text}{perhaps}: `glmplan fit` shows the shortfall")
    if solution.ranked[0].alone == 0.0:
        part = asked.machine.accelerator
        fact = f"bandwidth of {part.name}" if part.memory_bandwidth is None else "memory bandwidth of the host"
        why = solution.ranked[0].unknown or f"the {fact} is unknown"
        next_step = f"; {completed_words(asked)}" if part.memory_bandwidth is None else ""
        raise UnknownFact(f"{why}: no prediction is possible{next_step}")
    if asked.mtp > best.terms.mtp:
        titles = (wall.title for wall in best.terms.limitations if wall.instead.mtp == best.terms.mtp)
        raise SpecError(
            f"{next(titles, f'{asked.engine} would use {best.terms.mtp} speculative tokens here')}; "
            "`glmplan fit` shows the plan without, --mtp 0 simulates it",
            field="--mtp",
            value=asked.mtp,
        )
    return best


def inputs_of(asked: Asked, best: Holding, deployment: Deployment) -> ServingInputs:
    """Return the inputs of the simulator for a planned layout."""
    if not (prompts_timed(asked) and step_model_of(deployment).times_prompts):
        raise UnknownFact(f"{untimed_words(asked)}, no simulation of requests with prompts; {completed_words(asked)}")
    servers, terms = best.terms.decoding, best.terms
    sent = best.pool_for(asked.request_tokens)
    load = load_on(asked, deployment, best, typical_users(asked))
    found = predict(deployment, load)
    # interval of a step: answers of a single token have TTFT only
    first = found.figures["ttft"]
    figure = found.figures.get("tpot", first)
    defaults, ranks = asked.defaults, deployment.dp
    pool = sent.tokens / (servers * ranks)
    drafted = deployment.draft_tokens
    budget, places = defaults.budget_of(ranks) // ranks, slots_of(asked, best) // ranks
    most = max(min(places, budget // (1 + drafted), int(pool)), 1)
    settings = scheduler_settings(
        defaults.scheduler,
        max_num_batched_tokens=budget,
        max_num_seqs=most,
        chunked_prefill=not defaults.whole_prompts,
        max_model_len=asked.settings.max_model_len or asked.context or asked.model.max_context,
        acceptance=Acceptance.of_mean(drafted, deployment.tokens_per_step) if drafted else None,
        replicas=ranks * terms.replicas,
        lockstep=ranks if experts_of(asked.model) else 1,  # dense ranks exchange nothing
        prefill_replicas=ranks * terms.prefill,
        link=transfer_link(asked, terms) if terms.prefill else None,
        routing=defaults.routing,
        prefix_caching=_reuses(asked),
        async_scheduling=deployment.defaults.ahead,
        reserve_full_isl=defaults.whole_prompt,
        min_free_slots=0 if terms.prefill or not drafted else _free_slots(asked, most),
        schedule_conservativeness=defaults.rank_conservativeness if ranks > 1 else 1.0,
    )
    low, high = not_together(asked, deployment, load, "decode", (figure.low / figure.value, figure.high / figure.value))
    first_ends = not_together(asked, deployment, load, "ttft", (first.low / first.value, first.high / first.value))
    return ServingInputs(
        step_seconds=_of_rank(step_seconds(deployment), ranks),
        step_of_few=lambda busy: _of_rank(step_seconds(deployment, busy_ranks=busy), busy),
        # every rank transfers its own part, copies of a latent included
        pool=KvPool(
            int(pool),
            block_tokens(asked.engine, sparse=best.memory.sparse),
            best.pool_bytes / sent.tokens * terms.server * servers,
        ),
        settings=settings,
        front_end=front_end_seconds(deployment, asked.input_tokens),
        cold_start=wake_seconds(deployment),
        low=low,
        high=high,
        first=FirstTokens(found.first_scale, ranks),
        first_low=first_ends[0],
        first_high=first_ends[1],
        tail=figure.tail,
        first_tail=first.tail,
        by_users=None if terms.prefill else _by_users(asked, best),
        pool_low=sent.low / sent.tokens,
        pool_high=sent.high / sent.tokens,
        ranks=ranks,
        basis=f"{asked.checkpoint.name}, {best.terms.name}, {asked.engine}, KV cache {best.terms.kv}; "
        f"{apart_basis(asked, found.basis)}",
    )


def _free_slots(asked: Asked, slots: int) -> int:
    """Return the free slots that prompts wait for with the draft head."""
    head = asked.model.draft_head
    return free_slots(asked.engine, head.method if head else "", slots, version=asked.engine_version)


def with_experts_apart(inputs: ServingInputs, deployment: Deployment, cards: int, rate: float) -> ServingInputs:
    """Return the inputs with the routed experts on cards of their own.

    `rate`: Network of one card, [B/s].
    """
    together = steps_apart(deployment, cards, rate)
    return replace(
        inputs,
        step_seconds=_of_rank(together, deployment.dp),
        step_of_few=None,
        basis=f"{inputs.basis}; experts apart on {cards} cards at {rate / 1e9:,.1f} GB/s each: no measured system",
    )


def _by_users(asked: Asked, best: Holding) -> Callable[[float, Ratio], tuple[Ratio, Ratio]]:
    """Return the relative quantiles of step time and TTFT by users."""

    @cache
    def figures(users: int) -> tuple[Figure, Figure]:
        found = predicted(asked, [(best, users)])[0].figures
        return found.get("tpot", found["ttft"]), found["ttft"]

    def at(users: float, share: Ratio) -> tuple[Ratio, Ratio]:
        step, first = figures(int(min(max(users, 1.0), MOST_USERS)))
        return step.quantile(share) / step.value, first.quantile(share) / first.value

    return at


def _reuses(asked: Asked) -> bool:
    """Return True if the engine caches prefixes of this model by default."""
    part = asked.machine.accelerator
    recurrent = any(one.state_page(tp=1, draft_tokens=0) for one in mixers_of(asked.model))
    found = engine_defaults(
        asked.engine, version=asked.engine_version, accelerator=part.name, memory=part.memory, recurrent=recurrent
    )
    return found.prefix_caching


def _of_rank(together: Callable[..., np.ndarray], ranks: float) -> Callable[..., np.ndarray]:
    """Return the step time of one of several equally loaded ranks."""
    if ranks == 1:
        return together
    if isinstance(together, ShortSteps):  # short steps are defined by the tokens of a rank
        return replace(together, seconds=_of_rank(together.seconds, ranks), level=_of_rank(together.level, ranks))

    def alone(
        *,
        decode_requests: np.ndarray,
        decode_context: np.ndarray,
        prefill_tokens: np.ndarray,
        prefill_context: np.ndarray,
    ) -> np.ndarray:
        return together(
            decode_requests=np.asarray(decode_requests) * ranks,
            decode_context=decode_context,
            prefill_tokens=np.asarray(prefill_tokens) * ranks,
            prefill_context=prefill_context,
        )

    return alone


def check_images(model: ModelSpec, traffic: Traffic) -> None:
    """Refuse traffic with images for a model that reads text only."""
    if traffic.images and not model.takes_images:
        others = [name for name in model_names() if load_model(name).takes_images]
        message = f"needs a model that takes images: {model.name} has no vision tower"
        choices = nearest(model.name, others, 3, alike=0.0)
        raise SpecError(message, field="--images", value=traffic.images, choices=choices)


#: start value of a search, by kind of traffic
_BEGINNINGS = {"closed": "1", "sessions": "1"} | dict.fromkeys(
    ("poisson", "constant", "gamma", "onoff", "daily"), "1/s"
)


def searched_traffic(spec: str | None) -> tuple[list[str], bool]:
    """Return the traffic of a load search, and True if its number is open.

    - `spec`: As in `glmplan.simulation.traffic.spec.parse_traffic`, also without its number; None is users and Poisson.
    - Returns: A start value per search; an open number means a plan for the reference concurrency.

    Examples
    --------
    >>> searched_traffic("sessions,turns=4"), searched_traffic("closed:8")
    ((['sessions:1,turns=4'], True), (['closed:8'], False))
    """
    if not spec:
        return [f"{kind}:{_BEGINNINGS[kind]}" for kind in ("closed", "poisson")], True
    kind, comma, rest = spec.partition(",")
    if ":" in kind or kind not in _BEGINNINGS:
        return [spec], False
    return [f"{kind}:{_BEGINNINGS[kind]}{comma}{rest}"], True


def safe_of(
    described: Described,
    traffic: Traffic,
    targets: Sequence[Target],
    *,
    probability: Ratio = SURE,
    most: float | None = None,
    seed: int = 0,
    begun: Tries | None = None,
) -> SafeLoad:
    """Return the largest load that meets the SLO at a probability.

    Under an SLO of means the users of a closed loop are the safe users of `fit`.

    - `traffic`: Its number of users, rate or speed is varied.
    - `most`: Largest load to try, [-] or [1/s].
    - `begun`: Start value, and permission to fork a worker.
    """
    service, targets = described.service, tuple(targets)
    check_search(targets, most, seed)
    begun = begun or Tries()

    def draws_of(load: float) -> Draws:
        if not load:
            return described.draws(probability, seed, 1.0 if traffic.users is None else None)
        return described.draws_at(traffic.at_load(load), targets, seed, probability)

    def foreseen(most: float | None) -> Draws:
        """Return the draws to begin with.

        They are those at the answer where it lies well inside a class of concurrency.
        """
        usual = described.draws(probability, seed)
        if described.by_users is None or traffic.users is not None:
            return usual
        known = described.known(traffic, targets, usual)
        if not (about := foreseen_load(service, traffic, targets, usual, most=most, known=known)):
            return usual
        below, above = (draws_of(about * share) for share in _FORESEEN)
        return below if below == above else usual

    def searched(most: float | None) -> SafeLoad:
        loads, draws = dict[Level, SafeLoad](), foreseen(most)
        while draws.level not in loads and len(loads) < _PASSES:
            known = replace(described.known(traffic, targets, draws), start=begun.start, copied=begun.copied)
            found = safe_load(service, traffic, targets, draws, most=most, known=known)
            loads[draws.level] = found
            draws = draws_of(found.load)
        if loads.get(draws.level) is found:
            return found
        return _between_classes(loads, lambda load: draws_of(load).level)

    if described.plan is None:
        return searched(most)
    if (danger := danger_under(*described.plan)) is not None:
        return SafeLoad(0, unit_of(traffic), "hazard", f"not safe: {danger.words}", ())
    counted = count_users(*described.plan, traffic, targets, probability)
    if counted is None:
        return searched(most)
    if counted.final or not counted.safe.users:
        return counted.load(most)
    found = searched(most)
    return found if found.load >= counted.safe.users else counted.load(most)


def _between_classes(loads: Mapping[Level, SafeLoad], level_of: Callable[[float], Level]) -> SafeLoad:
    """Return the largest load that is safe with the intervals at that load.

    Wider intervals above some number of requests in flight allow less than those below it do.
    """
    found = min(loads.values(), key=lambda one: one.load)
    low, high = found.load, max(one.load for one in loads.values())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        there = loads.get(level_of(middle))
        low, high = (middle, high) if there is not None and middle <= there.load else (low, middle)
    reason = f"above {low:.4g} {found.unit} more requests are in flight, for which the measured runs spread more"
    return replace(found, load=float(f"{low:.4g}"), reason=reason)


def loads_at(
    described: Described,
    traffic: Traffic,
    targets: Sequence[Target],
    *,
    probability: Ratio = SURE,
    most: float | None = None,
    seed: int = 0,
    begun: Tries | None = None,
) -> SafeLoad:
    """Return the answer of `safe_of` with the loads at other probabilities.

    A smaller probability has at least the load of a larger one.
    """
    found, at = {}, dict[float, float]()
    for share in sorted({probability, *SHOWN}, reverse=True):
        # a load that passes at the probability of the question is none to start from at a larger one
        start = begun if share <= probability else None
        found[share] = safe_of(described, traffic, targets, probability=share, most=most, seed=seed, begun=start)
        at[share] = max(found[share].load, *at.values()) if at else found[share].load
    answer = replace(found[probability], load=at[probability], probability=probability, at=tuple(at.items()))
    return replace(answer, reason=f"{answer.reason}{_wider_above(described, answer)}")


#: growth of a slow bound with one more user that is stated as a step [-]
_STEP = 1.05


def _wider_above(described: Described, found: SafeLoad) -> str:
    """Return the intervals that are wider with one more user, as text.

    Intervals are fitted by classes of concurrency, so that a load often ends at the last user of a class.
    """
    if described.by_users is None or found.unit != "users" or not found.load:
        return ""
    before, after = (described.by_users(found.load + more, found.probability) for more in (0.0, 1.0))
    steps = [
        f"{name} may be {slow:.2g} times the prediction instead of {fast:.2g}"
        for name, fast, slow in zip(("TPOT", "TTFT"), before, after, strict=True)
        if slow > _STEP * fast
    ]
    above = f"; above {counted_unit(found.load, 'users')} the measured runs spread more"
    return f"{above}: {', '.join(steps)}" if steps else ""


def kept_of(
    described: Described,
    traffic: Traffic,
    targets: Sequence[Target],
    *,
    seed: int = 0,
    cutoff: Cutoff = WHOLE,
    probability: Ratio | None = None,
) -> Kept:
    """Return the probability that a load meets the SLO.

    At least `probability` exactly for the loads that `safe_of` returns for it; by default that of `cutoff`, else 95 %.
    """
    targets = tuple(targets)
    if described.plan is not None and targets:
        if danger_under(*described.plan) is not None:
            return Kept(0.0, "hazard", {})
        counted, users = count_users(*described.plan, traffic, targets), traffic.users
        few = counted is not None and users is not None and users <= counted.safe.users
        if counted is not None and users is not None and (few or counted.covers(users)):
            return counted.kept(users)
    draws = described.draws_at(traffic, targets, seed, probability or cutoff.least or SURE)
    known = described.known(traffic, targets, draws)
    return kept_share(described.service, traffic, targets, draws, cutoff=cutoff, known=known)
