"""The table over users, and how many users are safe."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from glmplan.catalog.caching import remembered
from glmplan.catalog.engines.limitations import load_engine
from glmplan.catalog.engines.memory import load_memory_rule
from glmplan.catalog.formats import kv_format
from glmplan.catalog.schema.model import ModelSpec
from glmplan.planner.capacity import Holding, Obstacles, Ranks, Terms, contexts_of
from glmplan.planner.hazards import Hazard, PlanFacts, hazards_for, is_safe
from glmplan.planner.launch import launch_context, slots_of
from glmplan.planner.layouts import layouts, servers_of
from glmplan.planner.plan import LEAST_GAIN, Limit, Safe, UserRow, Warn, as_well_known
from glmplan.planner.question import Asked
from glmplan.planner.ranking import FLOOR, Scored, needless_stages, predicted, rank_layouts, speed_known
from glmplan.prediction.deployment import cache_choice
from glmplan.prediction.distribution import EXPECTED, NORMAL, SHOWN, SURE, share_below, standard
from glmplan.prediction.predict import Figure, Prediction
from glmplan.units import QUANTILE_90, Ratio, TokenCount, counted_unit, duration

if TYPE_CHECKING:
    from glmplan.simulation.load_trial import SafeLoad
    from glmplan.simulation.safe_load import Kept
    from glmplan.simulation.traffic.slo import Target
    from glmplan.simulation.traffic.spec import Traffic

__all__ = [
    "LOOKED_AT",
    "SUMMED",
    "TARGET_TPOT",
    "TARGET_TTFT",
    "Counted",
    "Score",
    "Solution",
    "best_first",
    "binding_words",
    "chance_within",
    "count_users",
    "danger_under",
    "facts_of",
    "foremost",
    "grid_of",
    "hazard_warnings",
    "hazards_of",
    "is_steady",
    "mean_bounds",
    "model_warnings",
    "no_less",
    "peers_of",
    "places_of",
    "predictions_of",
    "ranked_layouts",
    "safe_number",
    "safe_users",
    "solve",
    "user_table",
    "users_within",
    "usual_bounds",
    "usual_promise",
    "verdict_under",
    "without_danger",
]


#: slowest usable speed for a reader: 10 tokens per second [s]
TARGET_TPOT = 0.1
#: TTFT above which requests count as queued, unless a single user waits a third of it [s]
TARGET_TTFT = 10.0
#: highest concurrency that is predicted first: enough for all but small models [-]
LOOKED_AT = 512
_WORDS = {
    "launch": "launch/CPU overhead",
    "weights": "weight reads",
    "compute": "matrix compute",
    "cache": "KV cache reads",
    "links": "communication between GPUs",
    "host": "weights in host memory",
}


def predictions_of(
    asked: Asked, holding: Holding, counts: tuple[int, ...], *, settled: bool = False
) -> dict[int, Prediction]:
    """Predict the means of several numbers of users at once.

    `settled`: In their steady state, in which an SLO is judged: without the first request of each.
    """
    found = predicted(asked, [(holding, number) for number in counts], settled=settled)
    return _no_sooner(dict(zip(counts, found, strict=True)))


def _no_sooner(found: dict[int, Prediction]) -> dict[int, Prediction]:
    """Return predictions whose TTFT does not fall with concurrency.

    In a closed loop of uniform requests the mean TTFT of a bounded run falls by up to 1 % from two users to four: an
    effect of how the load is counted.
    """
    out: dict[int, Prediction] = {}
    before: Figure | None = None
    for number in sorted(found):
        one = found[number]
        first = one.figures.get("ttft")
        if first is not None:
            before = no_less(first, before)
            one = replace(one, figures={**one.figures, "ttft": before})
        out[number] = one
    return out


def no_less(figure: Figure, before: Figure | None) -> Figure:
    """Return a time of at least `before`, at both interval bounds too."""
    if before is None:
        return figure
    ends = {name: max(getattr(figure, name), getattr(before, name)) for name in ("value", "low", "high")}
    return replace(figure, **ends)


def grid_of(asked: Asked, holding: Holding, most: float = LOOKED_AT, *, waits: bool = False) -> tuple[int, ...]:
    """Return the concurrencies to predict: powers of two up to the limit.

    The limit does not depend on the rows that are requested.

    - `waits`: Also users above max_num_seqs, who wait for a request to end.
    """
    most = int(max(min(holding.held, math.inf if waits else places_of(asked, holding), most), 1))
    powers = {1 << bit for bit in range(most.bit_length())}
    return tuple(sorted({*powers, most, 1}))


def user_table(asked: Asked, holding: Holding, found: dict[int, Prediction]) -> tuple[UserRow, ...]:
    """Return the table over users: one row per requested concurrency."""
    contexts = contexts_of(asked, holding, asked.users)
    rows = []
    for number, context in zip(asked.users, contexts, strict=True):
        one = found[number]
        tpot = one.figures.get("tpot")
        held = _running(asked, holding)
        rows.append(
            UserRow(
                users=number,
                running=int(min(number, held)),
                ttft=one.figures.get("ttft"),
                tpot=tpot,
                user_rate=tpot and tpot.inverse(),
                total_rate=one.figures["output_rate"],
                context=context,
                outside=one.out_of_domain,
                shares=one.shares,
            )
        )
    return tuple(rows)


def places_of(asked: Asked, holding: Holding) -> int:
    """Return the running requests that the engine allows on decoding ranks."""
    return slots_of(asked, holding) * holding.terms.decoding


def _running(asked: Asked, holding: Holding) -> float:
    """Return the running requests: limited by the KV pool and max_num_seqs."""
    return max(min(holding.pool_for(asked.request_tokens).held, places_of(asked, holding)), 1.0)


def _largest(values: Iterable[tuple[int, float]], target: float) -> int:
    """Return the highest concurrency within a target, interpolated in logs.

    `values`: Ascending concurrencies with a time each; none counts less than those before it.
    """
    last, time = 0, 0.0
    for count, found in values:
        if (value := max(found, time)) > target:
            if not last:
                return 0
            low, high = math.log(last), math.log(count)
            a, b = math.log(max(time, 1e-12)), math.log(max(value, 1e-12))
            share = (math.log(target) - a) / (b - a) if b > a else 0.0
            return max(int(math.exp(low + share * (high - low)) + 1e-9), last)
        last, time = count, value
    return last


def safe_users(
    asked: Asked, holding: Holding, found: Mapping[int, Prediction], bounds: Mapping[str, float] | None = None,
    probability: Ratio = SURE,
) -> Safe:  # fmt: skip
    """Return the users that meet an SLO at a probability, and the limits.

    `bounds` are the longest means of ``ttft`` and ``tpot``, by default `usual_bounds` with the limits of the request.

    Notes
    -----
    Three limits, each at the quantile of its predictive distribution: the pool holds the whole request of every user
    (``kv``); TPOT is within its bound (``tpot``; answers of one token have no such limit); TTFT is within its bound
    and, unless that bound is stated, no request waits for max_num_seqs (``queue``). Times are interpolated between
    predicted concurrencies. The quantiles are taken as fully correlated: a slow machine has the small pool too.
    """
    bounds = _bounds_of(asked, found, bounds)
    mean, limits = _limits_of(asked, holding, found, bounds, probability)
    bad = limits[probability]
    words = _limit_words(bad, bounds, probability, asked.user_tokens, most=max(found))
    places = places_of(asked, holding)
    if bad["queue"] >= places and not _waits(found, bounds):
        words["queue"] = f"max_num_seqs lets {counted_unit(places, 'requests')} run at once"
    users = _numbers(limits)
    return Safe(
        users=users[probability],
        expected=max(min(mean.values()), 0),
        # users above the requests that run wait for one to end: it is not a token that is late
        limit=min(words, key=lambda name: (bad[name], name == "tpot" and bad[name] >= places)),
        limits=tuple(Limit(name, int(bad[name]), text) for name, text in words.items()),
        target_tpot=bounds.get("tpot", TARGET_TPOT),
        target_ttft=bounds.get("ttft"),
        probability=probability,
        at=tuple(users.items()),
        curve=tuple(
            (number, min(_chances(asked, holding, found, bounds, number).values()))
            for number in sorted({*found, *asked.users, *_beyond(asked, holding, found, bounds)})
        ),
    )


def _bounds_of(
    asked: Asked, found: Mapping[int, Prediction], bounds: Mapping[str, float] | None
) -> Mapping[str, float]:
    """Return the bounds of an SLO, by default the usual ones, [s]."""
    if bounds is not None:
        return bounds
    return usual_bounds(found[min(found)], asked.slo_limits)


def _waits(found: Mapping[int, Prediction], bounds: Mapping[str, float]) -> bool:
    """Return True if a stated TTFT lets users wait for max_num_seqs."""
    return "ttft" in bounds and bounds != usual_bounds(found[min(found)])


def _limits_of(
    asked: Asked, holding: Holding, found: Mapping[int, Prediction], bounds: Mapping[str, float], probability: Ratio
) -> tuple[dict[str, int], dict[Ratio, dict[str, int]]]:
    """Return the limits on users in the mean, and at each probability."""
    mean = _limits_at(EXPECTED, asked, holding, found, mean_bounds(found[min(found)], bounds))

    def at(share: Ratio) -> dict[str, int]:
        # three times a long single-user TTFT is not a useful SLO: a load that misses the bound in the mean is not safe
        return {
            name: min(limit, mean[name]) if share > EXPECTED else limit
            for name, limit in _limits_at(share, asked, holding, found, bounds).items()
        }

    return mean, {share: at(share) for share in sorted({probability, *SHOWN}, reverse=True)}


def _numbers(limits: Mapping[Ratio, Mapping[str, int]]) -> dict[Ratio, int]:
    """Return the users within every limit, by probability."""
    return {share: max(min(one.values()), 0) for share, one in limits.items()}


def _beyond(asked: Asked, holding: Holding, found: Mapping[int, Prediction], bounds: Mapping[str, float]) -> set[int]:
    """Return concurrencies above the predicted ones that end a curve.

    One more; the upper bound of the pool, and a number that none holds; and the first above the places of the engine.
    """
    spread, most = holding.held - holding.held_low, max(found)
    ends = [most + 1, holding.held + spread + 1, holding.held + 5.0 * spread + 1]
    if not _waits(found, bounds):
        ends.append(places_of(asked, holding) + 1)
    return {math.ceil(one) for one in ends if most < one < math.inf}


def _limit_words(
    bad: Mapping[str, int], bounds: Mapping[str, float], probability: Ratio, tokens: TokenCount, *, most: int
) -> dict[str, str]:
    """Return the text of each limit on users at a probability."""
    case = "the pessimistic case" if probability == SURE else f"all but {100 * (1 - probability):.3g} % of cases"
    kv = f"lower bound of the KV pool: {counted_unit(bad['kv'], 'requests')} of {tokens:,} tokens"
    last = " (the largest number evaluated)" if bad.get("tpot") == most else ""
    tpot, ttft = bounds.get("tpot", TARGET_TPOT), bounds.get("ttft", TARGET_TTFT)
    words = {
        "kv": kv if probability == SURE else f"in {case} the {kv.removeprefix('lower bound of the ')}",
        "tpot": f"in {case} {_stay(bad.get('tpot', 0))} above {1 / tpot:.3g} tok/s{last}",
        "queue": f"in {case} a mean TTFT within {duration(ttft)} up to {counted_unit(bad['queue'], 'users')}",
    }
    return {name: text for name, text in words.items() if name in bad}


def _limits_at(
    share: Ratio, asked: Asked, holding: Holding, found: Mapping[int, Prediction], bounds: Mapping[str, float]
) -> dict[str, int]:
    """Return the limits on users at a quantile of the distribution."""
    seats = max(found) if _waits(found, bounds) else places_of(asked, holding)
    limits = {"kv": int(_held_at(holding, share)), "queue": seats}
    for metric, name in (("ttft", "queue"), ("tpot", "tpot")):
        times = {number: found[number].figures.get(metric) for number in sorted(found)}
        if metric in bounds and times[min(times)] is not None:
            values = ((number, one.quantile(share)) for number, one in times.items() if one is not None)
            limits[name] = min(seats, _largest(values, bounds[metric]))
    return limits


def _held_at(holding: Holding, share: Ratio) -> float:
    """Return the requests that the pool holds at a probability, [-]."""
    if share in (SURE, EXPECTED):
        return holding.held_low if share == SURE else holding.held
    return max(holding.held - standard(share) / QUANTILE_90 * (holding.held - holding.held_low), 0.0)


def _stay(users: int) -> str:
    """Return the number of users that keep a decode rate."""
    return {0: "no user stays", 1: "only 1 user stays"}.get(users, f"{users:,} users stay")


def usual_bounds(alone: Prediction, stated: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the default SLO: the longest means that count as usable, [s].

    ``ttft`` if prompts can be timed, ``tpot`` if answers have a second token.
    - `stated`: Limits of the request, which replace the usual ones.

    Notes
    -----
    TTFT may take 10 s, or three times the single-user TTFT if that is longer, on a machine as slow as the interval
    allows: the wait of a single user is not a queue. Rounded up to four digits, so that the SLO can be written.

    Examples
    --------
    >>> slow = Figure(4.0, 2.0, 5.00001)
    >>> usual_bounds(Prediction({"ttft": slow}, {}, 1.0, "", "", ""))
    {'ttft': 15.01}
    """
    bounds = {}
    if (first := alone.figures.get("ttft")) is not None:
        longest = _longest_wait(first.high)
        digit = 10.0 ** (math.floor(math.log10(longest)) - 3)
        bounds["ttft"] = float(f"{math.ceil(longest / digit - 1e-9) * digit:.4g}")
    if "tpot" in alone.figures:
        bounds["tpot"] = TARGET_TPOT
    return {name: (stated or {}).get(name, limit) for name, limit in bounds.items()}


def mean_bounds(alone: Prediction, bounds: Mapping[str, float]) -> dict[str, float]:
    """Return the bounds that predicted means must meet, [s].

    The same as `bounds`; the TTFT bound is at most the usable wait after the expected single-user TTFT, unless the SLO
    allows a longer wait than usual.
    """
    found, first = dict(bounds), alone.figures.get("ttft")
    if first is not None and "ttft" in found and found["ttft"] <= usual_bounds(alone)["ttft"]:
        found["ttft"] = min(found["ttft"], _longest_wait(first.value))
    return found


def _longest_wait(alone: float) -> float:
    """Return the longest usable mean TTFT for a single-user TTFT, [s]."""
    return max(TARGET_TTFT, 3.0 * alone)


def usual_promise(alone: Prediction, stated: Mapping[str, float] | None = None) -> str:
    """Return the SLO of `safe_users` in the syntax of `glmplan safe --slo`.

    `stated`: As for `usual_bounds`.

    Examples
    --------
    >>> figures = {"ttft": Figure(4.0, 3.0, 5.0), "tpot": Figure(0.02, 0.01, 0.03)}
    >>> usual_promise(Prediction(figures, {}, 1.0, "", "", ""))
    'ttft mean < 15 s, tpot mean < 100 ms'
    """
    bounds, words = usual_bounds(alone, stated), []
    if "ttft" in bounds:
        words.append(f"ttft mean < {bounds['ttft']:g} s")
    if "tpot" in bounds:
        words.append(f"tpot mean < {bounds['tpot'] * 1e3:g} ms")
    return ", ".join(words)


def binding_words(rows: tuple[UserRow, ...]) -> str:
    """Return the largest step components at lowest and highest concurrency."""
    parts = []
    for row in (rows[0], rows[-1]) if len(rows) > 1 else rows:
        top = sorted(row.shares.items(), key=lambda one: -one[1])[:2]
        text = ", ".join(f"{_WORDS.get(name, name)} {100 * share:.0f} %" for name, share in top)
        parts.append(f"{row.users} user{'s' if row.users > 1 else ''}: {text}")
    return "; ".join(parts)


def facts_of(asked: Asked, holding: Holding, *, users: int, longest: TokenCount) -> PlanFacts:
    """Return the facts of a plan that hazards depend on."""
    host, terms = asked.machine.host, holding.terms
    same = [n for n, name in enumerate(host.accelerator_names) if name == host.accelerator]
    on_node = same[: min(terms.accelerators, len(same))]
    return PlanFacts(
        members=tuple(on_node),
        tp=terms.tp,
        # weights are mapped from the file, and pages of a file are no pinned memory; caches leave them less
        pinned=0.0 if asked.settings.on_host else holding.host,
        host_used=holding.host_weights + cached if (cached := holding.host_requests(min(users, holding.held))) else 0.0,
        users=max(users, 1),
        longest_tokens=float(longest),
        longest_held=holding.context,
        beside=holding.beside(longest),
        pools=holding.terms.dp * holding.terms.decoding,
        power_limit=asked.machine.limit_of(asked.power_limit),
        free_wanted=asked.settings.memory_fraction if load_memory_rule(asked.engine).checks_free else None,
    )


def hazards_of(asked: Asked, holding: Holding, *, users: int, longest: TokenCount) -> tuple[Hazard, ...]:
    """Return the hazards of a plan, the worst first."""
    return hazards_for(asked.machine.host, facts_of(asked, holding, users=users, longest=longest))


def danger_under(asked: Asked, holding: Holding) -> Hazard | None:
    """Return the worst hazard that makes a plan unsafe at any load, or None.

    The number of users affects warnings only.
    """
    hazards = hazards_of(asked, holding, users=1, longest=launch_context(asked, holding))
    return None if is_safe(hazards) else hazards[0]


def verdict_under(asked: Asked, holding: Holding) -> str:
    """Return the verdict of a plan, with everything that must hold.

    It fits if the engine runs there, one full-length request fits in every memory, the pool holds every user that was
    requested, and no hazard is a danger. Every command takes this verdict.
    """
    if holding.terms.blocked is not None:
        return "does_not_fit"
    if holding.verdict != "fits":
        return holding.verdict
    if asked.users_given and holding.held_low < asked.users[-1]:
        return "tight"
    return "fits" if danger_under(asked, holding) is None else "tight"


def hazard_warnings(hazards: tuple[Hazard, ...]) -> tuple[Warn, ...]:
    """Return hazards as warnings of the answer."""
    return tuple(
        Warn(
            "hazard",
            hazard.severity,
            hazard.id,
            hazard.named,
            f"{hazard.effect}: {hazard.numbers}",
            hazard.change,
            hazard.source,
        )
        for hazard in hazards
    )


def model_warnings(model: ModelSpec) -> tuple[Warn, ...]:
    """Return a warning for config fields that glmplan does not know.

    Empty for models of the catalogue.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> model = load_model("glm-5.1").model_copy(update={"not_understood": ("use_magic_routing",)})
    >>> [one.title for one in model_warnings(model)]
    ['fields of the config that glmplan does not know: use_magic_routing']
    """
    if not model.not_understood:
        return ()
    names = ", ".join(model.not_understood)
    effect = "not modelled: sizes and speeds are those of the architecture without these fields"
    do = "check if a field changes weights or KV cache; others can be ignored"
    title = f"fields of the config that glmplan does not know: {names}"
    return (Warn("model", "warning", "fields-not-understood", title, effect, do, model.source),)


def without_danger(safe: Safe, hazards: tuple[Hazard, ...]) -> Safe:
    """Return the safe number, or 0 with the hazard as limit."""
    if is_safe(hazards):
        return safe
    worst = hazards[0]
    limit = Limit("hazard", 0, worst.words)
    none = tuple((share, 0) for share, _ in safe.at)
    curve = tuple((users, 0.0) for users, _ in safe.curve)
    return replace(safe, users=0, limit="hazard", limits=(*safe.limits, limit), at=none, curve=curve)


# `fit`, `safe` and `size` print the same safe number of users. An SLO of means is judged by the sums of the run that is
# simulated for percentiles, rates, sessions and distributions of lengths: without the first request of each user, which
# all start together. The table of `fit` counts these too, as a benchmark does.

#: highest concurrency that is predicted if none below is a limit [-]
_MOST = 4096
#: probability below which larger loads are not predicted [-]
_RARE = 1e-3
#: times that the numbers found are predicted themselves [-]
_REFINED = 6


def is_steady(traffic: Traffic) -> bool:
    """Return True if requests are uniform and share no prefix.

    Steady-state sums cover such traffic only: no sessions, traces, length distributions or pauses.

    Examples
    --------
    >>> from glmplan.simulation.traffic.spec import parse_traffic
    >>> is_steady(parse_traffic("closed:4")), is_steady(parse_traffic("sessions:4"))
    (True, False)
    """
    return traffic.uniform


def safe_number(
    asked: Asked,
    holding: Holding,
    *,
    bounds: Mapping[str, float] | None = None,
    probability: Ratio = SURE,
) -> tuple[Safe, tuple[Hazard, ...]]:
    """Return the safe users of a plan, and its hazards.

    The number does not depend on the rows that are requested; it is 0 if a hazard is a danger.

    - `bounds`: Longest means of ``ttft`` and ``tpot``, by default the usual ones, [s].
    """
    safe, _ = _counted(asked, holding, bounds, probability)
    hazards = hazards_of(asked, holding, users=safe.users, longest=launch_context(asked, holding))
    return without_danger(safe, hazards), hazards


def _counted(
    asked: Asked, holding: Holding, bounds: Mapping[str, float] | None, probability: Ratio
) -> tuple[Safe, Mapping[int, Prediction]]:
    """Return the safe users before hazards, and the predictions behind them."""
    known = predictions_of(asked, holding, grid_of(asked, holding), settled=True)

    limits = _bounds_of(asked, known, bounds)
    waits = _waits(known, limits)

    def numbers(known: Mapping[int, Prediction]) -> set[int]:
        return set(_numbers(_limits_of(asked, holding, known, limits, probability)[1]).values())

    at = numbers(known)
    wider = grid_of(asked, holding, math.inf if waits else _MOST, waits=waits)
    last = max(known)
    goes_on = waits and min(_chances(asked, holding, known, limits, last).values()) > _RARE
    if last < max(wider) and (last == max(at) or goes_on):
        more = tuple(one for one in wider if one not in known)
        known = _no_sooner({**known, **predictions_of(asked, holding, more, settled=True)})
        at = numbers(known)
    for _ in range(_REFINED):
        # between powers of two times are no lines: the numbers that were found are predicted too
        found = {min(max(users, 1), max(known)) for users in at} - set(known)
        if not found:
            break
        # an interval that widens at some load makes a step: its place is halved
        middles = {(max(one for one in known if one < users) + users) // 2 for users in found}
        more = tuple(sorted((found | middles) - set(known)))
        known = _no_sooner({**known, **predictions_of(asked, holding, more, settled=True)})
        at = numbers(known)
    return safe_users(asked, holding, known, limits, probability), known


def chance_within(asked: Asked, holding: Holding, users: int) -> Ratio:
    """Return the probability that users meet the SLO of `fit`, [-].

    The same as `Safe.chance_of` of `safe_number`. If the next number of the grid is safe at every probability shown,
    `safe_number` would predict larger numbers only, and they are left out.
    """
    grid = grid_of(asked, holding)
    near = next((one for one in grid if one >= users), None)
    if near is not None and danger_under(asked, holding) is None:
        known = predictions_of(asked, holding, tuple(one for one in grid if one <= near), settled=True)
        safe = safe_users(asked, holding, known, probability=asked.probability)
        if min(number for _, number in safe.at) >= near:
            return safe.chance_of(users)
    return safe_number(asked, holding, probability=asked.probability)[0].chance_of(users)


def users_within(asked: Asked, holding: Holding, probability: Ratio, bounds: Mapping[str, float] | None = None) -> int:
    """Return an estimate of the users that meet bounds on means, [-].

    - `bounds`: As for `safe_number`.
    """
    known = predictions_of(asked, holding, grid_of(asked, holding), settled=True)
    bounds = {name: bound for name, bound in _bounds_of(asked, known, bounds).items() if name in known[1].figures}
    return max(min(_limits_at(probability, asked, holding, known, bounds).values()), 0)


def count_users(
    asked: Asked, holding: Holding, traffic: Traffic, targets: Sequence[Target], probability: Ratio = SURE
) -> Counted | None:
    """Return the users of a closed loop under an SLO of means.

    None if steady-state sums do not cover the traffic or one of the targets. The lengths of the traffic may differ from
    those of the request.
    """
    if traffic.kind != "closed" or not is_steady(traffic):
        return None
    if any(target.statistic != "mean" or target.metric not in _TIMES for target in targets):
        return None
    bounds = {target.metric: target.bound for target in targets}
    if (traffic.input, traffic.output) != (asked.input_tokens, asked.output_tokens):
        asked = asked.but(input_tokens=traffic.input, output_tokens=traffic.output)
        terms = holding.terms
        holding = Ranks(asked, [(terms.tp, terms.pp, terms.dp, terms.ep, terms.dcp)]).hold(terms)
    usual = usual_bounds(predictions_of(asked, holding, (1,))[1])
    if not bounds or not set(bounds) <= set(usual):
        return None
    safe, known = _counted(asked, holding, bounds, probability)
    return Counted(asked, holding, bounds, tuple(targets), safe, known, bounds == usual)


@dataclass(frozen=True, slots=True)
class Counted:
    """Users counted by steady-state sums.

    Notes
    -----
    The sums are those of a simulation in its steady state, in which several servers have equal shares of the users
    (`glmplan.simulation.load_trial.try_load`). Where users wait for the KV pool, or for max_num_seqs without a limit on
    TTFT, the loads of an SLO are simulated.
    """

    asked: Asked  # the request, with the lengths of the traffic
    holding: Holding  # the layout and its memory for such requests
    bounds: dict[str, float]  # longest means of the SLO, [s]
    targets: tuple[Target, ...]  # the SLO
    safe: Safe  # the number and its limits
    known: Mapping[int, Prediction]  # predictions by concurrency
    usual: bool  # True for the SLO of `fit`, whose users each have a place in the KV pool and in the batch

    @property
    def in_mean(self) -> dict[str, float]:
        """Bounds that predicted means must meet, [s]"""
        return mean_bounds(self.known[1], self.bounds)

    @property
    def final(self) -> bool:
        """True if the number is the answer, and no simulation is needed."""
        return self.usual or (self.safe.limit != "kv" and not self._by_places)

    def covers(self, users: int) -> bool:
        """Return True if no user waits for a place, so that `kept` is right."""
        return self.usual or self.kept(users).broken not in (_NAMES["kv"], _NAMES["queue"])

    @property
    def _by_places(self) -> bool:
        if _waits(self.known, self.bounds):
            return False
        queue = next(limit.users for limit in self.safe.limits if limit.name == "queue")
        return self.safe.limit == "queue" and queue >= places_of(self.asked, self.holding)

    def load(self, most: Ratio | None = None) -> SafeLoad:
        """Return the result as a `SafeLoad`, as the simulated search returns it.

        Every predicted load is given at the quantile of the probability.
        """
        from glmplan.simulation.load_trial import LoadPoint, SafeLoad

        users = self.safe.users if most is None else min(self.safe.users, math.floor(most))
        points = []
        for number, one in self.known.items():
            if most is not None and number > most:
                continue
            summary = {
                f"{name}_mean_ms": figure.quantile(self.safe.probability) * 1e3
                for name, figure in one.figures.items()
                if name in _TIMES
            }
            broken = "" if number <= users else self._breaks(one)
            points.append(LoadPoint(float(number), number <= users, summary, broken))
        if users < self.safe.users:
            return SafeLoad(users, "users", "", f"no limit reached up to {counted_unit(users, 'users')}", tuple(points))
        return SafeLoad(users, "users", *self.why(), tuple(points))

    def _breaks(self, one: Prediction) -> str:
        """Return the target or limit that a load above the safe one misses first."""
        over = {}
        for target in self.targets:
            figure = one.figures.get(target.metric)
            if figure is not None and target.metric in self.bounds:
                over[str(target)] = figure.quantile(self.safe.probability) / target.bound
        worst = max(over, key=lambda name: over[name], default="")
        return worst if worst and over[worst] > 1.0 else _NAMES[self.safe.limit]

    def why(self) -> tuple[str, str]:
        """Return the target or limit that one more user misses, and why.

        Both are empty if none was found.
        """
        safe, users = self.safe, self.safe.users
        limit = next(one for one in safe.limits if one.name == safe.limit)
        more = f"above {counted_unit(users, 'users')}"
        if safe.limit == "kv":
            return _NAMES["kv"], f"{more} the lower bound of the KV pool does not hold every request"
        if self._by_places:
            return _NAMES["queue"], f"{more} requests wait: max_num_seqs is {limit.users:,}"
        metric = "tpot" if safe.limit == "tpot" else "ttft"
        target = min((one for one in self.targets if one.metric == metric), key=lambda one: one.bound)
        figures = {number: one.figures[metric] for number, one in sorted(self.known.items()) if number > users}
        for number, one in figures.items():
            if one.value > self.in_mean[metric]:
                return str(target), f"{more} {metric} mean is too high: {duration(one.value)} at {number:,}"
            if (late := one.quantile(safe.probability)) > self.bounds[metric]:
                end = f"{duration(late)} at {number:,}"
                return str(target), f"{more} the upper bound of {metric} mean is too high: {end}"
        return "", f"no limit reached up to {counted_unit(users, 'users')}, the largest number evaluated"

    def kept(self, users: int) -> Kept:
        """Return the probability that so many users meet the SLO.

        As high as asked for if and only if so many users are safe.
        """
        from glmplan.simulation.safe_load import Kept

        targets: dict[str, str] = {}
        for target in sorted(self.targets, key=lambda one: one.bound, reverse=True):
            targets[target.metric] = str(target)
        found = _chances(self.asked, self.holding, self.known, self.bounds, users)
        chances = {targets.get(name, name): chance for name, chance in found.items()}
        worst = min(chances, key=lambda name: chances[name])
        # times exist only for concurrencies that were predicted
        figures = self.known[users].figures if users in self.known else {}
        summary = {f"{name}_mean_ms": figure.value * 1e3 for name, figure in figures.items() if name in _TIMES}
        return Kept(chances[worst], worst if chances[worst] < 1.0 else "", summary)


def _chances(
    asked: Asked, holding: Holding, known: Mapping[int, Prediction], bounds: Mapping[str, float], users: int
) -> dict[str, float]:
    """Return the probability of meeting each limit with so many users, [-].

    Over the predictive distributions of times and of the pool, which are taken as fully correlated: a slow machine has
    the small pool too.
    """
    chances = {
        _NAMES["kv"]: _pool_holds(holding, users),
        _NAMES["queue"]: float(_waits(known, bounds) or users <= places_of(asked, holding)),
    }
    chances |= {metric: _in_time(known, metric, users, bound) for metric, bound in bounds.items()}
    for metric, bound in mean_bounds(known[min(known)], bounds).items():
        # a load that misses the bound in the mean is not safe
        if bound < bounds[metric] and (chance := _in_time(known, metric, users, bound)) < EXPECTED:
            chances[f"{metric} mean"] = chance
    return chances


def _pool_holds(holding: Holding, users: int) -> float:
    """Return the probability that the pool holds all requests, [-]."""
    held, low = holding.held, holding.held_low
    if held <= low:
        return float(users <= low)
    return share_below((held - users) / (held - low), (-1.0, 1.0), NORMAL)


#: metrics that are times of a request
_TIMES = ("ttft", "tpot")
#: limit of a plan → printed name
_NAMES = {"kv": "kv pool", "queue": "max_num_seqs", "tpot": "tpot"}


def _in_time(known: Mapping[int, Prediction], metric: str, users: int, bound: float) -> float:
    """Return the probability that a mean is within its bound, [-]."""
    counts, logs, times, tails = _times_of(known, metric)
    if not tails:
        return 1.0
    place = min(int(np.searchsorted(counts, users)), len(tails) - 1)
    middle, slow, fast = (float(np.exp(np.interp(math.log(users), logs, ends))) for ends in times)
    return Figure(middle, min(fast, middle), max(slow, middle), tail=tails[place]).share_below(bound * _ROUNDED)


@remembered(most=8)
def _times_of(
    known: Mapping[int, Prediction], metric: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[tuple[float, ...]]]:
    """Return concurrencies, their logarithms, logarithms of a time and tails.

    The time in the mean, and at the slow and the fast bound, each of them no less than at fewer users.
    """
    counts = [number for number in sorted(known) if metric in known[number].figures]
    figures = [known[number].figures[metric] for number in counts]
    ends = [[getattr(one, end) for one in figures] for end in ("value", "high", "low")]
    times = np.log(np.maximum.accumulate(np.array(ends, dtype=float).reshape(3, -1), axis=1))
    return np.array(counts), np.log(np.array(counts, dtype=float)), times, [one.tail for one in figures]


#: relative error of sums by which a time may be beyond its bound
_ROUNDED = 1.0 + 1e-9


@dataclass(frozen=True, slots=True)
class Solution:
    """All layouts of a question, the best first."""

    asked: Asked  # the request
    ranked: tuple[Scored, ...]  # layouts, the chosen one first
    left_out: tuple[str, ...]  # layouts that were not evaluated, and why
    kv_why: str  # reason for the KV cache format
    options: frozenset[str] = frozenset()  # options and patches that are switched on

    @property
    def best(self) -> Holding:
        """The chosen layout."""
        return self.ranked[0].holding

    @property
    def speed_known(self) -> bool:
        """True if the bandwidth is published and a speed can be computed."""
        return speed_known(self.asked)


def ranked_layouts(
    asked: Asked, *, options: frozenset[str] = frozenset(), quick: bool = False, sole: bool = False
) -> Solution:
    """Return the layouts of a request, ranked by speed as in `rank_layouts`.

    - `quick`: Leave out layouts that do not fit as long as any does.
    - `sole`: Leave out layouts that cannot be the best.
    """
    obstacles = Obstacles(asked, options)
    found, left_out = layouts(asked)
    ranks = Ranks(asked, found)
    chosen = cache_choice(asked.checkpoint, asked.engine, model=asked.model, accelerator=asked.machine.accelerator)
    preferred, kv_why = (asked.kv, "as given") if asked.kv else chosen
    ranked = _ranked(asked, obstacles, ranks, preferred, quick, sole)
    smaller = load_engine(asked.engine).small_cache(asked.machine.accelerator)
    saves = smaller and kv_format(smaller).bytes < kv_format(preferred).bytes
    if asked.kv is None and saves and ranked[0].holding.verdict != "fits":
        other = _ranked(asked, obstacles, ranks, smaller, quick, sole)
        if _is_better(other[0], ranked[0]):
            ranked, kv_why, preferred = other, f"{preferred.upper()} does not fit", smaller
    if (terms := ranked[0].holding.terms).kv != preferred:
        forced = next((wall.title for wall in terms.limitations if wall.instead.kv == terms.kv), "an engine limitation")
        kv_why = f"{preferred.upper()} is not supported here: {forced}"
    return Solution(asked, tuple(ranked), tuple(left_out), kv_why, options)


def _ranked(asked: Asked, obstacles: Obstacles, ranks: Ranks, kv: str, quick: bool, sole: bool) -> list[Scored]:
    wanted = [obstacles.wanted(layout, kv, servers_of(asked, layout)) for layout in ranks.found]
    if quick:
        # graphs and draft layers take memory: looked at without them, no layout is lost that fits in the end
        light = [ranks.hold(replace(terms, graphs=False, mtp=0)) for terms in wanted]
        wanted = [terms for terms, one in zip(wanted, light, strict=True) if one.lacking <= 0] or wanted[:1]
    settled: dict[str, Terms] = {}
    for terms in wanted:
        terms = obstacles.settle(terms, mtp_given=asked.mtp > 0, ep_given=asked.ep is not None)
        settled.setdefault(terms.name, terms)
    holdings = [ranks.hold(terms) for terms in settled.values()]
    return rank_layouts(asked, holdings, sole=sole)


#: score of a layout at a probability: its users, its rate or its margin to the SLO
Score: TypeAlias = Callable[[Scored, Ratio], float]

#: layouts that are compared by the sums of `fit`, and the most of them whose users are counted exactly [-]
SUMMED = (24, 3)


def solve(asked: Asked, *, options: frozenset[str] = frozenset(), quick: bool = False, sole: bool = False) -> Solution:
    """Find the best layout, for the default SLO.

    Arguments as for `ranked_layouts`.

    Notes
    -----
    The first layout of `ranked_layouts` is replaced by the one with the most safe users: not fewer at the probability
    asked for, at least 5 % more in the geometric mean over the probabilities of `Safe.at`, so that no single point of
    the curve decides, and at least 70 % of the best speed for a single user. Layouts with more users than `grid_of`
    has count as equal.

    Examples
    --------
    >>> from glmplan.planner.question import read_words
    >>> from glmplan.request.plan import PlanRequest
    >>> solve(read_words(PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"))).best.terms.name
    'TP2×PP3'
    """
    solution = ranked_layouts(asked, options=options, quick=quick, sole=sole)

    def about(one: Scored, share: Ratio) -> float:
        return float(users_within(asked, one.holding, share))

    peers = peers_of(solution)
    fast = [one for one in peers if one is peers[0] or one.alone >= FLOOR * max(other.alone for other in peers)]
    if len(found := foremost(asked, fast, (about,), asked.probability, SUMMED)) < 2:
        return solution
    at = {id(one): dict(safe_number(asked, one.holding, probability=asked.probability)[0].at) for one in found}

    def users(one: Scored, share: Ratio) -> float:
        return float(at[id(one)][share] if share == EXPECTED else np.exp(np.log1p([*at[id(one)].values()]).mean()))

    least = at[id(found[0])][asked.probability]
    found = [one for one in found if at[id(one)][asked.probability] >= least]
    return best_first(solution, found, users, asked.probability)


def peers_of(solution: Solution) -> list[Scored]:
    """Return the layouts that are worth comparing with the first one.

    They have its verdict and no needless stages; it is alone where it has no speed.
    """
    first = solution.ranked[0]
    if not first.alone or first.holding.terms.blocked is not None or solution.asked.prefill:
        return [first]
    staged = needless_stages(solution.asked, [one.holding for one in solution.ranked])
    return [
        one
        for place, one in enumerate(solution.ranked)
        if one.alone and one.holding.verdict == first.holding.verdict and (place == 0 or place not in staged)
    ]


def foremost(
    asked: Asked, peers: list[Scored], measures: Sequence[Score], probability: Ratio, most: tuple[int, int]
) -> list[Scored]:
    """Return the first layout and those that may serve more, the most first.

    At the probability or in the median: steady sums tell little where hardly one user meets the SLO.

    - `measures`: Estimates of the users or of the rate of a layout.
    - `most`: Layouts that are compared, and those that each of them adds to the first one, [-]
    """
    compared, added = most
    if len(peers := peers[:compared]) < 2:
        return peers
    # one call takes less than one for each layout; the measures find the predictions cached
    predicted(asked, [(one.holding, users) for one in peers for users in grid_of(asked, one.holding)], settled=True)
    shares = tuple(dict.fromkeys((probability, EXPECTED)))
    places: list[int] = []
    for measure in measures:
        loads = [[measure(one, share) for share in shares] for one in peers]
        more = [
            place
            for place, found in enumerate(loads)
            if any(one > chosen * (1.0 + LEAST_GAIN) for one, chosen in zip(found, loads[0], strict=True))
        ]
        places += sorted(more, key=lambda place: -math.prod(one + 1.0 for one in loads[place]))[:added]
    return [peers[0], *(peers[place] for place in dict.fromkeys(places))]


def best_first(solution: Solution, peers: list[Scored], score: Score, probability: Ratio) -> Solution:
    """Return the layouts with the best of `peers` first.

    The first of them stays unless another one scores 5 % more. A layout of weaker evidence has to be better in the
    median too: its own ignorance wins nothing.
    """
    if len(peers) < 2:
        return solution
    first = best = peers[0]
    most, usual = score(first, probability), None
    for one in peers[1:]:
        found = score(one, probability)
        if found <= most * (1.0 + LEAST_GAIN):
            continue
        if not as_well_known(one.knowledge, first.knowledge):
            usual = score(first, EXPECTED) if usual is None else usual
            if score(one, EXPECTED) <= usual:
                continue
        best, most = one, found
    if best is first:
        return solution
    rest = [replace(one, why=one.why or "fewer users meet the SLO") for one in solution.ranked if one is not best]
    return replace(solution, ranked=(replace(best, why=""), *rest))


def _is_better(other: Scored, first: Scored) -> bool:
    classes = {"fits": 0, "tight": 1, "does_not_fit": 2}
    before, after = classes[first.holding.verdict], classes[other.holding.verdict]
    return after < before or (after == before < 2 and other.holding.held_low > first.holding.held_low)
