"""Choose the layout that serves the most load within an SLO."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from glmplan.errors import GlmplanError
from glmplan.planner.capacity import Holding
from glmplan.planner.hazards import Hazard
from glmplan.planner.plan import Limit, Safe
from glmplan.planner.question import Asked
from glmplan.planner.ranking import Scored, deployment_of, predicted
from glmplan.planner.users import (
    SUMMED,
    Solution,
    best_first,
    foremost,
    is_steady,
    peers_of,
    predictions_of,
    safe_number,
    users_within,
    usual_promise,
)
from glmplan.prediction.distribution import EXPECTED, SURE
from glmplan.units import Ratio

if TYPE_CHECKING:
    from glmplan.planner.service import Described
    from glmplan.simulation.traffic.slo import Target
    from glmplan.simulation.traffic.spec import Traffic

__all__ = ["contenders", "safe_under_limits", "solve_for_slo"]

#: as `SUMMED`, where loads are simulated [-]
_RUN = (8, 2)
#: layouts that are compared under sessions [-]
_SIMULATED = 4
#: mean TTFT of a closed loop over a percentile of it, to compare layouts [-]
_MEAN_FIRST = 0.5


def solve_for_slo(
    solution: Solution,
    traffic: Traffic,
    targets: Sequence[Target],
    *,
    probability: Ratio = SURE,
    searched: bool = False,
) -> Solution:
    """Return the layouts of a request, the best for an SLO first.

    `searched`: The rate of the traffic is searched for, and its value says nothing.

    Notes
    -----
    Layouts with the verdict of the first one are compared: for users of uniform requests by how many meet the SLO with
    the probability, searched for those with the most by steady sums; for sessions and stated request rates by how far
    the simulated statistics lie below their bounds, for the slowest service that has to meet them; for searched rates
    by the highest that meets the SLO. For request rates those with the highest rate within the bound on decode are
    compared too. `best_first` decides.
    """
    from glmplan.simulation.load_trial import OPEN

    score = _load if traffic.kind == "closed" or (searched and traffic.kind in OPEN) else _margin
    return best_first(
        solution,
        contenders(solution, traffic, targets, probability=probability),
        lambda one, share: score(solution.asked, one, traffic, targets, share),
        probability,
    )


def contenders(
    solution: Solution, traffic: Traffic, targets: Sequence[Target], *, probability: Ratio = SURE
) -> list[Scored]:
    """Return the layouts that `solve_for_slo` compares, without searches.

    The first one of the solution comes first; it is alone where nothing can be compared.
    """
    from glmplan.simulation.load_trial import OPEN

    steady = is_steady(traffic) if traffic.kind == "closed" else traffic.kind in OPEN
    if not targets or (not steady and (traffic.kind != "sessions" or traffic.users is None)):
        return [solution.ranked[0]]
    peers = peers_of(solution)
    if not steady:
        return peers[:_SIMULATED]
    summed = traffic.kind == "closed" and all(target.statistic == "mean" for target in targets)
    asked = _of_lengths(solution.asked, traffic)

    def users(one: Scored, share: Ratio) -> float:
        return _users(asked, one, targets, share)

    def rate(one: Scored, share: Ratio) -> float:
        return _rate(asked, one, targets, share)

    # users of a closed loop wait for each other's prompts, so that a bound on TTFT hides the rate of a data-parallel
    # layout: for request rates the layouts with the highest rate are returned too
    return foremost(
        asked, peers, (users, rate) if traffic.kind in OPEN else (users,), probability, SUMMED if summed else _RUN
    )


def _load(asked: Asked, one: Scored, traffic: Traffic, targets: Sequence[Target], probability: Ratio) -> float:
    """Return the users or the rate that meet the SLO, as `safe` finds them."""
    from glmplan.planner.service import safe_of

    try:
        described = replace(_described(asked, one.holding, traffic), plan=(asked, one.holding))
        return float(safe_of(described, traffic, targets, probability=probability).load)
    except GlmplanError:
        return 0.0


def _users(asked: Asked, one: Scored, targets: Sequence[Target], probability: Ratio) -> float:
    """Return about how many users meet the SLO with a probability."""
    bounds: dict[str, float] = {}
    for target in targets:
        name = "tpot" if target.metric == "itl" else target.metric
        share = 1.0 if target.statistic == "mean" or name != "ttft" else _MEAN_FIRST
        if name in ("ttft", "tpot"):
            bounds[name] = min(bounds.get(name, math.inf), share * target.bound)
    return float(users_within(asked, one.holding, probability, bounds))


def _rate(asked: Asked, one: Scored, targets: Sequence[Target], probability: Ratio) -> float:
    """Return about how many requests per second meet the bounds on decode."""
    users = int(_users(asked, one, [target for target in targets if target.metric != "ttft"], probability))
    if users < 1:
        return 0.0
    times = predicted(asked, [(one.holding, users)], settled=True)[0].figures
    first, later = (times[name].quantile(probability) if name in times else 0.0 for name in ("ttft", "tpot"))
    return users / (first + later * (asked.output_tokens - 1))


def _of_lengths(asked: Asked, traffic: Traffic) -> Asked:
    """Return the request with the lengths of the traffic."""
    if (traffic.input, traffic.output) == (asked.input_tokens, asked.output_tokens):
        return asked  # deployments are cached by their request
    return asked.but(input_tokens=traffic.input, output_tokens=traffic.output)


def _margin(asked: Asked, one: Scored, traffic: Traffic, targets: Sequence[Target], probability: Ratio) -> float:
    """Return the smallest bound over its statistic of the slowest service."""
    from glmplan.simulation.load_trial import try_load

    try:
        service = _described(asked, one.holding, traffic)
        level = service.draws(probability).level
        slow = service.service.scaled(level.step or 1.0).with_room(level.room or 1.0, traffic)
        late = (level.wait or 1.0) / (level.step or 1.0)
        trial = try_load(slow, traffic, tuple(targets), float(traffic.users or traffic.rate or 1), 0, late=late)
    except GlmplanError:
        return 0.0
    return math.exp(-trial.margin)


def _described(asked: Asked, holding: Holding, traffic: Traffic) -> Described:
    from glmplan.planner.service import inputs_of, service_of

    return service_of(inputs_of(asked, holding, deployment_of(asked, holding.terms)), traffic)


def safe_under_limits(asked: Asked, holding: Holding) -> tuple[Safe, tuple[Hazard, ...]]:
    """Return safe users and hazards, as `safe` answers for stated limits.

    Simulated where requests wait for the KV pool, which a stated limit on TTFT allows; else `safe_number`.
    """
    safe, hazards = safe_number(asked, holding, probability=asked.probability)
    if not asked.slo_limits or safe.limit == "hazard":
        return safe, hazards
    from glmplan.planner.service import kept_of, loads_at
    from glmplan.simulation.traffic.slo import parse_slo
    from glmplan.simulation.traffic.spec import Traffic

    traffic = Traffic(kind="closed", users=1, input=asked.input_tokens, output=asked.output_tokens)
    targets = parse_slo(usual_promise(predictions_of(asked, holding, (1,))[1], asked.slo_limits))
    described = replace(_described(asked, holding, traffic), plan=(asked, holding))
    found = loads_at(described, traffic, targets, probability=asked.probability)
    at = tuple((share, int(load)) for share, load in found.at)
    if at == safe.at:
        return safe, hazards

    few = dict(at)[asked.probability]
    curve = {users: max(chance, asked.probability) for users, chance in safe.curve if users < few}
    for share, users in at:
        curve[users] = max(curve.get(users, 0.0), share)
    for users in {one for one in asked.users if one > few} - set(curve):
        curve[users] = kept_of(described, traffic.at_load(users), targets).probability
    counts = sorted(curve)
    chances = np.minimum.accumulate([curve[users] for users in counts]).tolist()
    name = {"tpot": "tpot", "ttft": "queue"}.get(found.breaks_first.partition(" ")[0], "kv")
    limits = {one.name: one for one in safe.limits if one.name != "kv"} | {name: Limit(name, few, found.reason)}
    return replace(
        safe, users=few, expected=dict(at)[EXPECTED], limit=name, limits=tuple(limits.values()), at=at,
        curve=tuple(zip(counts, chances, strict=True)),
    ), hazards  # fmt: skip
