"""How many users of a plan are safe: the one number that `fit`, `safe` and `size` say.

Users of a closed loop who are promised means are counted by steady sums, each limit at the bad end of its interval.
What those sums do not reach (percentiles, rates, conversations, lengths that differ) is searched for by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from glmplan.plan.capacity import Holding, Ranks
from glmplan.plan.hazard_warnings import hazards_of, without_danger
from glmplan.plan.hazards import Hazard, is_safe
from glmplan.plan.launch import launch_context
from glmplan.plan.plan import Safe
from glmplan.plan.question import Asked
from glmplan.plan.users import grid_of, mean_bounds, places_of, predictions_of, safe_users, usual_bounds
from glmplan.prediction.predict import Prediction
from glmplan.units import QUANTILE_90, counted_unit

if TYPE_CHECKING:
    from glmplan.serving.load_answer import SafeLoad
    from glmplan.serving.safe_load import Kept
    from glmplan.serving.traffic.promises import Target
    from glmplan.serving.traffic.spec import Traffic

__all__ = ["Counted", "count_users", "danger_of", "is_steady", "safe_number"]

#: users that are looked at where no limit is found among fewer [-]
_MOST = 4096
#: statistics that a mean does not exceed: a promise of them is no easier to keep than one of the mean
_ABOVE_MEAN = ("mean", "p90", "p95", "p99")


def is_steady(traffic: Traffic) -> bool:
    """Whether requests of a kind of traffic are all alike and share nothing, as steady sums have them.

    Parameters
    ----------
    traffic : Traffic
        What arrives.

    Returns
    -------
    bool
        False of conversations, traces, drawn lengths and users who pause.

    Examples
    --------
    >>> from glmplan.serving.traffic.spec import parse_traffic
    >>> is_steady(parse_traffic("closed:4")), is_steady(parse_traffic("sessions:4"))
    (True, False)
    """
    return traffic.plain and not (traffic.lengths or traffic.jitter or traffic.input_cv or traffic.output_cv)


def safe_number(
    asked: Asked,
    holding: Holding,
    *,
    bounds: Mapping[str, float] | None = None,
    found: Mapping[int, Prediction] | None = None,
) -> tuple[Safe, tuple[Hazard, ...]]:
    """Count the users of a plan who are safe.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The layout.
    bounds : mapping of str to float, optional
        Longest means of ``ttft`` and ``tpot`` that are promised; the usual ones by default, [s]
    found : mapping of int to Prediction, optional
        Predictions of the numbers of `glmplan.plan.users.grid_of`, where they are there already.

    Returns
    -------
    Safe
        The number, and what limits it; of the same numbers of users whichever rows of a table are asked for.
    tuple of Hazard
        What is known to be wrong with the plan; where that is a danger, nobody is safe.
    """
    safe, _ = _counted(asked, holding, bounds, found)
    hazards = hazards_of(asked, holding, users=safe.users, longest=launch_context(asked, holding))
    return without_danger(safe, hazards), hazards


def _counted(
    asked: Asked, holding: Holding, bounds: Mapping[str, float] | None, found: Mapping[int, Prediction] | None
) -> tuple[Safe, Mapping[int, Prediction]]:
    """The number by cache, times and places, and the predictions that it was found among."""
    known = found or predictions_of(asked, holding, grid_of(asked, holding))
    safe = safe_users(asked, holding, known, bounds)
    if safe.users == max(known) and len(wider := grid_of(asked, holding, _MOST)) > len(known):
        known = {**known, **predictions_of(asked, holding, tuple(one for one in wider if one not in known))}
        safe = safe_users(asked, holding, known, bounds)
    return safe, known


def danger_of(asked: Asked, holding: Holding) -> Hazard | None:
    """The danger under which no load of a plan is safe.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The layout.

    Returns
    -------
    Hazard or None
        The worst, of as many users as else were safe; None where there is none.
    """
    _, hazards = safe_number(asked, holding)
    return None if is_safe(hazards) else hazards[0]


def count_users(asked: Asked, holding: Holding, traffic: Traffic, targets: Sequence[Target]) -> Counted | None:
    """Count the users of a closed loop who are promised something, by steady sums.

    Parameters
    ----------
    asked : Asked
        The question of the plan.
    holding : Holding
        The layout.
    traffic : Traffic
        What arrives; its lengths may be other than those of the question.
    targets : sequence of Target
        The promise.

    Returns
    -------
    Counted or None
        What steady sums say; None where they say nothing of such traffic, or of any of the targets.
    """
    if traffic.kind != "closed" or not is_steady(traffic):
        return None
    bounds: dict[str, float] = {}
    for one in targets:
        if one.metric in ("ttft", "tpot") and one.statistic in _ABOVE_MEAN:
            bounds[one.metric] = min(one.bound, bounds.get(one.metric, math.inf))
    if (traffic.input, traffic.output) != (asked.input_tokens, asked.output_tokens):
        asked = asked.but(input_tokens=traffic.input, output_tokens=traffic.output)
        terms = holding.terms
        holding = Ranks(asked, [(terms.tp, terms.pp, terms.dp, terms.ep, terms.dcp)]).hold(terms)
    found = predictions_of(asked, holding, grid_of(asked, holding))
    usual = usual_bounds(found[1])
    if not bounds or not set(bounds) <= set(usual):
        return None
    safe, known = _counted(asked, holding, bounds, found)
    means = all(one.statistic == "mean" and one.metric in usual for one in targets)
    patient = bounds.get("ttft", math.inf) > usual.get("ttft", math.inf)
    return Counted(asked, holding, bounds, tuple(targets), safe, known, means, patient)


@dataclass(frozen=True, slots=True)
class Counted:
    """Users counted by steady sums.

    Parameters
    ----------
    asked : Asked
        The question, with the lengths of the traffic.
    holding : Holding
        The layout, with what it holds of such requests.
    bounds : dict of str to float
        Longest means that are promised, [s]
    targets : tuple of Target
        The promise.
    safe : Safe
        The number, and what limits it.
    known : mapping of int to Prediction
        Predictions of the numbers of users that were looked at.
    means : bool
        Whether the promise is of means alone. Else further targets may allow fewer users, and never more.
    patient : bool
        Whether users accept to wait longer than usual, or however long: then some may wait for room in the cache.
    """

    asked: Asked
    holding: Holding
    bounds: dict[str, float]
    targets: tuple[Target, ...]
    safe: Safe
    known: Mapping[int, Prediction]
    means: bool
    patient: bool

    @property
    def in_mean(self) -> dict[str, float]:
        """What must hold in the mean, [s]"""
        return mean_bounds(self.known[1], self.bounds)

    @property
    def final(self) -> bool:
        """Whether the number is the answer: of means, and limited by them where users are patient."""
        waits = self.safe.limit == "kv" or self._by_places
        return self.means and not (self.patient and waits)

    @property
    def _by_places(self) -> bool:
        queue = next(one.users for one in self.safe.limits if one.name == "queue")
        return self.safe.limit == "queue" and queue >= places_of(self.asked, self.holding)

    def load(self, most: float | None = None) -> SafeLoad:
        """The answer as the search gives it.

        Parameters
        ----------
        most : float, optional
            Largest number of users to look at, [-]

        Returns
        -------
        SafeLoad
            The number, what breaks first, and the loads that were predicted, each at the slow end of its interval.
        """
        from glmplan.serving.load_answer import LoadPoint, SafeLoad

        users = self.safe.users if most is None else min(self.safe.users, math.floor(most))
        points = []
        for number, one in self.known.items():
            if most is not None and number > most:
                continue
            summary = {f"{name}_mean_ms": figure.high * 1e3 for name, figure in one.figures.items() if name in _TIMES}
            broken = "" if number <= users else self._breaks(one)
            points.append(LoadPoint(float(number), number <= users, summary, broken))
        if users < self.safe.users:
            return SafeLoad(users, "users", "", f"nothing breaks up to {counted_unit(users, 'users')}", tuple(points))
        return SafeLoad(users, "users", *self.why(), tuple(points))

    def _breaks(self, one: Prediction) -> str:
        """What a number of users above the safe one breaks first: a target by its slow end, else the limit."""
        over = {}
        for target in self.targets:
            figure = one.figures.get(target.metric)
            if figure is not None and target.metric in self.bounds:
                over[str(target)] = figure.high / target.bound
        worst = max(over, key=lambda name: over[name], default="")
        return worst if worst and over[worst] > 1.0 else _NAMES[self.safe.limit]

    def why(self) -> tuple[str, str]:
        """Say what one user more breaks.

        Returns
        -------
        str
            The target or the limit; empty where none was found.
        str
            The same in words.
        """
        safe, users = self.safe, self.safe.users
        limit = next(one for one in safe.limits if one.name == safe.limit)
        more = f"beyond {users:,} user{'s' * (users != 1)}"
        if safe.limit == "kv":
            return _NAMES["kv"], f"{more} the low end of the cache pool does not hold a whole request of each"
        if self._by_places:
            return _NAMES["queue"], f"{more} requests wait for one of {limit.users} places (max_num_seqs)"
        metric = "tpot" if safe.limit == "tpot" else "ttft"
        target = min((one for one in self.targets if one.metric == metric), key=lambda one: one.bound)
        figures = {number: one.figures[metric] for number, one in sorted(self.known.items()) if number > users}
        for number, one in figures.items():
            if one.value > self.in_mean[metric]:
                return str(target), f"{more} {metric} mean is too long: {one.value * 1e3:,.0f} ms at {number:,}"
            if one.high > self.bounds[metric]:
                end = f"{one.high * 1e3:,.0f} ms at {number:,}"
                return str(target), f"{more} {metric} mean is too long at the slow end of its interval: {end}"
        return "", f"nothing breaks up to {users:,} user{'s' * (users != 1)}: no more were looked at"

    def kept(self, users: int) -> Kept:
        """How surely so many users keep the promise.

        Parameters
        ----------
        users : int
            Users at once, [-]

        Returns
        -------
        Kept
            Probability, over the intervals of times and of the pool, which go together: a slow machine is taken to have
            the small pool too. At 95 % and above exactly where so many users are safe.
        """
        from glmplan.serving.safe_load import Kept

        chances = {
            _NAMES["kv"]: self._room(users),
            _NAMES["queue"]: float(users <= places_of(self.asked, self.holding)),
        }
        known = self.known
        for target in self.targets:
            chances[str(target)] = _in_time(known, target.metric, users, target.bound)
        for metric, bound in self.in_mean.items():
            # what fails in the mean is not safe, whatever its slow end
            if bound < self.bounds[metric] and (chance := _in_time(known, metric, users, bound)) < 0.5:
                chances[f"{metric} mean"] = chance
        worst = min(chances, key=lambda name: chances[name])
        # of a number that was not predicted itself another one's times say nothing
        figures = known[users].figures if users in known else {}
        summary = {f"{name}_mean_ms": figure.value * 1e3 for name, figure in figures.items() if name in _TIMES}
        return Kept(chances[worst], worst if chances[worst] < 1.0 else "", summary)

    def _room(self, users: int) -> float:
        """Probability that the pool holds a request of every user, whose room is spread normally, [-]"""
        held, low = self.holding.held, self.holding.held_low
        deviation = (held - low) / QUANTILE_90
        return NormalDist().cdf((held - users) / deviation) if deviation > 0 else float(users <= low)


#: figures that are times of a request
_TIMES = ("ttft", "tpot")
#: limit of a plan → what breaks
_NAMES = {"kv": "kv pool", "queue": "places", "tpot": "tpot"}


def _in_time(known: Mapping[int, Prediction], metric: str, users: int, bound: float) -> float:
    """Probability that a mean stays within its bound, interpolated as the limits are, [-]"""
    counts = [number for number in sorted(known) if metric in known[number].figures]
    if not counts:
        return 1.0
    at = math.log(users)
    ends = []
    for end in ("value", "high"):
        times = np.maximum.accumulate([getattr(known[number].figures[metric], end) for number in counts])
        ends.append(float(np.interp(at, np.log(counts), np.log(times))))
    middle, slow = ends
    deviation = (slow - middle) / QUANTILE_90
    room = math.log(bound) - middle
    return NormalDist().cdf(room / deviation) if deviation > 0 else float(room >= -1e-12)
