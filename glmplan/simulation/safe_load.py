"""The largest load that meets an SLO at 95 % confidence.

It is over the randomness of arrivals and the prediction interval.

A load is safe if 95 of 100 services keep every target. Services differ in their arrivals and in their speed, which is
spread over the prediction's own interval. For requests without a past the service that 5 of 100 are slower than is
followed to its saturation load, under several arrivals; once for a closed loop of uniform requests.
Conversations thrash or do not by chance: there the share of the services is the mean over several arrivals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from glmplan.errors import SpecError
from glmplan.simulation.load_search import DRAWS, ENOUGH, LoadSearch, Tries, most_placed, place_of
from glmplan.simulation.load_trial import LoadPoint, SafeLoad, judged_requests
from glmplan.simulation.seeds import stream_seed
from glmplan.simulation.simulate import Service, simulate
from glmplan.simulation.traffic.slo import Target
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import QUANTILE_90, Ratio, finite_number, whole_number

__all__ = [
    "WHOLE",
    "Cutoff",
    "Draws",
    "Kept",
    "Level",
    "LoadPoint",
    "RunSize",
    "SafeLoad",
    "Uncertainty",
    "check_search",
    "foreseen_load",
    "kept_share",
    "load_curve",
    "outcome_range",
    "safe_load",
    "speed_factors",
]


_LARGEST = 1e6  # the largest load that is looked at
_DRAWN = 10_000  # most users that a curve shows


def speed_factors(low: Ratio, high: Ratio, count: int = DRAWS, coverage: Ratio = 0.9) -> tuple[float, ...]:
    """Equal parts of a log-normal spread of step times.

    `low`, `high`: Interval of the step time relative to its prediction.

    Examples
    --------
    >>> [round(f, 3) for f in speed_factors(0.8, 1.25, 3)]
    [1.14, 1.0, 0.877]
    """
    if not 0 < low <= high:
        raise SpecError("must be a positive interval", field="interval", value=(low, high))
    normal = NormalDist()
    sigma = math.log(high / low) / (2 * normal.inv_cdf(0.5 + coverage / 2))
    middle = math.sqrt(low * high)
    return tuple(middle * math.exp(sigma * normal.inv_cdf(1 - (i + 0.5) / count)) for i in range(count))


def _variants(service: Service, traffic: Traffic, factors: Sequence[float], rooms: Sequence[float]) -> list[Service]:
    """Return services from the slowest and smallest to the fastest."""
    found = [service.scaled(factor) if factor != 1 else service for factor in sorted(factors, reverse=True)]
    if not rooms:
        return found
    return [one.with_room(room, traffic) for one, room in zip(found, rooms, strict=True)]


@dataclass(frozen=True, slots=True)
class Level:
    """The service that has to meet an SLO: so many of 100 are quicker."""

    probability: Ratio = 0.95  # share of the services that are at least as quick, [-]
    #: `step`, `wait`: its step time and its TTFT relative to the prediction; by default between those of the drawn
    #: services, [-]
    step: Ratio | None = None
    wait: Ratio | None = None
    #: its KV pool relative to the prediction; by default between those of the drawn services, [-]
    room: Ratio | None = None
    #: step time and TTFT of a share of the services relative to the prediction, at a number of users; by default the
    #: same at every load
    by_users: Callable[[float, Ratio], tuple[Ratio, Ratio]] | None = None


@dataclass(frozen=True, slots=True)
class Draws:
    """Services that are simulated, and the seed of their arrivals."""

    #: step times relative to the prediction, as `speed_factors` makes them [-]
    factors: Sequence[Ratio] = (1.0,) * DRAWS
    #: TTFT relative to that of the steps alone, one for each factor; the factors by default [-]
    waits: Sequence[Ratio] = ()
    #: KV pool relative to the prediction, smallest first, one for each factor [-]
    rooms: Sequence[Ratio] = ()
    #: the probability, and the service that has to meet the SLO for it
    level: Level = Level()
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Cutoff:
    """Probability below which a trial of a load ends."""

    #: the rest is not simulated below it, and counts as kept
    least: Ratio = 0.0
    #: the cause matters even below `least`
    named: bool = True


#: every trial counts
WHOLE = Cutoff()


def _border(
    service: Service, traffic: Traffic, level: Level, factors: Sequence[float], rooms: Sequence[float],
    late: Sequence[float],
) -> tuple[Service, float]:  # fmt: skip
    """Return the service at a probability, and the factor on its TTFT.

    Without a step time of its own it lies between two of the drawn services: at 95 %, the two slowest of twenty.
    """
    if level.step is not None:
        found = service.scaled(level.step)
        later = 1.0 if level.wait is None or not late else level.wait / level.step
        return found if level.room is None or not rooms else found.with_room(level.room, traffic), later
    place, count = NormalDist().inv_cdf(level.probability), len(factors)
    which = next((one for one in range(1, count - 1) if place_of(one, count) <= place), count - 1)
    ends = [place_of(one, count) for one in (which - 1, which)]
    share = (place - ends[1]) / (ends[0] - ends[1])

    def between(values: Sequence[float]) -> float:
        slower, quicker = values[which - 1], values[which]
        result: float = slower**share * quicker ** (1 - share)
        return result

    found = service.scaled(between(sorted(factors, reverse=True)))
    if rooms:
        found = found.with_room(rooms[which] + share * (rooms[which - 1] - rooms[which]), traffic)
    return found, between(late) if late else 1.0


def safe_load(
    service: Service,
    traffic: Traffic,
    targets: tuple[Target, ...],
    draws: Draws = Draws(),
    *,
    most: float | None = None,
    known: Tries | None = None,
) -> SafeLoad:
    """Find the largest load that meets the SLO at a probability.

    - `traffic`: The traffic; its number of users, rate or speed is varied.
    - `most`: Largest load to look at, such as one set by a hazard, [-] or [1/s].
    - `known`: Trials of other searches of this service, traffic, SLO and seed, and a start; new trials are added.

    Notes
    -----
    The slowest draw also has the latest first tokens and the smallest pool: as careful as the limits of a plan, each of
    which holds at its own bad end. Loads are compared under the same random numbers. Closed loops are judged after
    their start-up burst. Rates are followed under 5 draws of the arrivals and more, until their mean is known to
    0.75 % (0.5 % under bursts, of which more requests are judged). How many a draw happens to put in flight at once is
    taken out of the load at which it breaks (a control variate, whose mean is known).

    References
    ----------
    .. [1] S. Asmussen, P. Glynn, "Stochastic Simulation: Algorithms and Analysis", Springer 2007, section V.2.

    Examples
    --------
    >>> from glmplan.simulation.engine.settings import EngineSettings, KvPool
    >>> from glmplan.simulation.engine.step_table import StepTable
    >>> from glmplan.simulation.traffic.slo import parse_slo
    >>> service = Service(StepTable.affine(base=0.01, per_request=0.001), KvPool(10**6), EngineSettings())
    >>> traffic = Traffic(kind="closed", users=1, input=16, output=64)
    >>> safe_load(service, traffic, parse_slo("tpot p95 < 30.5 ms")).load
    20
    """
    check_search(targets, most, draws.seed)
    if (
        traffic.output == 1
        and not traffic.output_cv
        and not traffic.lengths
        and traffic.kind not in ("trace", "sessions")
    ):
        single = next((one for one in targets if one.metric in ("tpot", "itl")), None)
        if single is not None:
            raise SpecError(
                "is about the tokens after the first: answers of one token have none", field="--slo", value=str(single)
            )
    return _searching(service, traffic, targets, draws, most or _LARGEST, known or Tries()).largest(service)


def foreseen_load(
    service: Service,
    traffic: Traffic,
    targets: tuple[Target, ...],
    draws: Draws,
    *,
    most: float | None = None,
    known: Tries | None = None,
) -> float:
    """Return about the answer of `safe_load` for a rate, else 0.

    One arrival sample is followed, whose load differs from that of many by some per cent.
    """
    return _searching(service, traffic, targets, draws, most or _LARGEST, known or Tries()).foreseen(service)


def _searching(
    service: Service, traffic: Traffic, targets: tuple[Target, ...], draws: Draws, most: float, known: Tries
) -> LoadSearch:
    """Return the search with the service at the level of its probability."""
    factors, rooms, level = draws.factors, draws.rooms, draws.level
    variants, late = _variants(service, traffic, factors, rooms), _late(factors, draws.waits)
    search = LoadSearch(variants, traffic, targets, most, draws.seed, late, known=known)
    search.probability, search.middle_service, search.by_users = level.probability, service, level.by_users
    if len(factors) == DRAWS:
        search.border, search.border_late = _border(service, search.traffic, level, factors, rooms, search.late)
    return search


def check_search(targets: Sequence[Target], most: float | None, seed: int) -> None:
    """Refuse a search for nothing.

    `most`: Largest load to look at, [-] or [1/s].
    """
    if not targets:
        raise SpecError("needs at least one target, as in 'ttft p95 < 2 s'", field="--slo")
    if most is not None and finite_number(most, "--most") <= 0:
        raise SpecError("must be more than zero", field="--most", value=most)
    whole_number(seed, "--seed", least=0)


@dataclass(frozen=True, slots=True, repr=False)
class Kept:
    """Probability that a load meets the SLO.

    Parameters
    ----------
    probability : float
        Share of the simulated services that keep every target, [-]
    broken : str
        The target that the fastest service that fails misses most, or `kv thrash`; empty if none fails.
    summary : dict
        Statistics of the service in the middle.
    """

    probability: float
    broken: str
    summary: dict[str, float]

    def __repr__(self) -> str:
        broken = f", {self.broken} breaks first" * bool(self.broken)
        return f"<Kept with probability {self.probability:.3g}{broken}>"


def kept_share(
    service: Service,
    traffic: Traffic,
    targets: tuple[Target, ...],
    draws: Draws,
    *,
    cutoff: Cutoff = WHOLE,
    known: Tries | None = None,
) -> Kept:
    """Return the probability that a load meets the SLO.

    - Returns: Share of the services, and what fails first.

    Notes
    -----
    The slowest services are tried first. After several in a row that meet the SLO the rest is assumed to meet it, as in
    `safe_load`; after a single one if they differ in speed only and the smallest pool holds all requests. If only the
    speed is random, the share lies between two of the services. The service that `safe_load` follows is one of them, so
    that the share is at least 95 % exactly up to its answer.

    Examples
    --------
    >>> from glmplan.simulation.engine.settings import EngineSettings, KvPool
    >>> from glmplan.simulation.engine.step_table import StepTable
    >>> from glmplan.simulation.traffic.slo import parse_slo
    >>> service = Service(StepTable.affine(base=0.01, per_request=0.001), KvPool(10**6), EngineSettings())
    >>> traffic = Traffic(kind="closed", users=10, input=16, output=64)
    >>> found = kept_share(service, traffic, parse_slo("tpot p95 < 20.5 ms"), Draws(speed_factors(0.8, 1.25)))
    >>> round(found.probability, 2)
    0.57
    """
    if not targets:
        raise SpecError("needs at least one target, as in 'ttft p95 < 2 s'", field="--slo")
    load = float(traffic.users or traffic.rate or traffic.speed)
    if load > most_placed(service, traffic, targets):
        return Kept(0.0, "max_num_seqs", {})
    search = _searching(service, traffic, targets, draws, _LARGEST, known or Tries())
    count, least, level = len(search.variants), cutoff.least, draws.level
    if traffic.kind == "sessions":
        kept, broken = search.shared(service, load, least)
        return Kept(kept, broken, {} if kept < least - 1e-9 else search.middle(load).summary)
    failures, passes, broken, nearest, margins = 0, 0, "", "", list[tuple[float, float]]()
    # where only its speed tells services apart, a slower one fails too: the first whose failure is one too many is
    # tried alone
    many = math.floor((1.0 - least) * count + 1e-9) + 1
    if search.alike and many <= count and not cutoff.named and search.breaks(service, load, many - 1):
        return Kept(1.0 - many / count, "", {})
    if search.alike and 1 < many <= count:
        trial = search.trial(service, load, many - 1)
        if trial.margin > 0:
            return Kept(1.0 - many / count, trial.broken, {})
    enough = 1 if search.alike and search.roomy(load) else ENOUGH
    for trial in search.trials(service, load):
        margins.append((place_of(len(margins), count), trial.margin))
        failed = trial.margin > 0
        failures, passes = (failures + 1, 0) if failed else (failures, passes + 1)
        broken, nearest = trial.broken if failed else broken, nearest or trial.nearest
        kept = 1.0 - failures / count
        if passes >= enough or kept < least - 1e-9:
            break
    # twenty services have no step finer than 5 %: among the slowest the one that `safe_load` follows decides
    at = NormalDist().inv_cdf(level.probability)
    # beyond 97.5 % it is slower than all of them: none is above
    above = sum(place > at for place, _ in margins)
    decides = failures == above and (not above or margins[0][1] > 0) and len(margins) > above
    alike = search.alike or search.recorded
    followed = alike and failures in (above, 0 if above == 1 else -1) or decides
    if search.border is not None and followed:
        margins.insert(above, (at, search.border_margin(service, load)))
    if alike or followed:
        kept = _between_services(margins, kept)
    if kept < least - 1e-9:
        return Kept(kept, broken or nearest, {})
    return Kept(kept, broken, search.middle(load).summary)


def _between_services(margins: Sequence[tuple[float, float]], kept: float) -> float:
    """Return the share of services that meet an SLO if speed decides.

    It follows from place and margin of the slowest ones:
    between the last that fails and the first that does not, or beyond the two slowest where none fails.
    """
    fails = next((place for place, (_, margin) in enumerate(margins) if margin <= 0), len(margins))
    if fails == len(margins) or len(margins) < 2:
        return kept
    (slow_at, slow), (quick_at, quick) = margins[max(fails - 1, 0) :][:2]
    if slow <= quick:
        return kept
    return NormalDist().cdf(quick_at + (slow_at - quick_at) * -quick / (slow - quick))


def _late(factors: Sequence[float], waits: Sequence[float]) -> tuple[float, ...]:
    """Return the factors on TTFT of services, slowest first."""
    pairs = sorted(zip(factors, waits, strict=True), reverse=True) if waits else []
    return tuple(wait / factor for factor, wait in pairs)


#: requests at each load of a curve; at most four times as many where users are many [-]
_CURVE = 1000


def load_curve(service: Service, traffic: Traffic, loads: np.ndarray) -> list[dict[str, float]]:
    """Statistics against load.

    - `loads`: Users, [-], or rates, [1/s].
    """
    rows = []
    for load in loads:
        at = traffic.at_load(float(load))
        warm = at.users or _CURVE // 10
        if warm > _DRAWN:
            continue  # a burst of so many users says nothing about a steady load, and takes long
        count = warm + max(_CURVE, min(4 * warm, 4 * _CURVE))
        if at.kind in ("trace", "sessions"):
            warm, count = judged_requests(at)
        outcome = simulate(service, at, requests=count, warmup=warm)
        rows.append({"load": float(load), **outcome.summary})
    return rows


# Between which ends the statistics of a simulation lie: over what is not known of the service, and over seeds.

#: quantiles of the service that are simulated: the first and the last are the 5 and 95 % ones [-]
_QUANTILES = tuple(place / 20 for place in range(1, 20))
#: requests of a run under each quantile; longer ones are simulated at the outer two only, with so many in all [-]
_ENOUGH, _MOST = 4000, 80_000
#: statistics without a unit that have a range
_SHARES = ("goodput_share", "utilisation", "kv_occupancy_mean", "kv_occupancy_max", "cached_share")


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """The 90 % intervals of a service, relative to its prediction."""

    #: `step`, `pool`: of the step time and the KV pool, [-]
    step: tuple[float, float] = (1.0, 1.0)
    first: tuple[float, float] | None = None  # of the time to the first token, that of the step time by default, [-]
    pool: tuple[float, float] = (1.0, 1.0)

    def quantile(self, service: Service, traffic: Traffic, share: Ratio) -> Service:
        """Return the service at a quantile of its uncertainty."""
        slow, late = (_log_quantile(low, high, share) for low, high in (self.step, self.first or self.step))
        place = NormalDist().inv_cdf(share) / QUANTILE_90
        room = 1.0 - place * (1.0 - self.pool[0] if place > 0 else self.pool[1] - 1.0)
        found = service if slow == 1.0 else service.scaled(slow)
        found = replace(found, first=replace(found.first, times=late / slow))
        return found if room == 1.0 else found.with_room(max(room, 0.0), traffic)


def _log_quantile(low: Ratio, high: Ratio, share: Ratio) -> Ratio:
    """Return a quantile of a log-normal spread by its 90 % interval."""
    if not 0 < low <= high:
        raise SpecError("must be a positive interval", field="interval", value=(low, high))
    place = NormalDist().inv_cdf(share) / QUANTILE_90
    return math.exp(0.5 * (math.log(low * high) + place * math.log(high / low)))


@dataclass(frozen=True, slots=True)
class RunSize:
    """Requests of a simulation, its warm-up requests and its seed."""

    requests: int
    warmup: int = 0
    seed: int = 0


def outcome_range(
    service: Service, traffic: Traffic, summary: dict[str, float], uncertain: Uncertainty, size: RunSize
) -> dict[str, tuple[float, float]]:
    """The 90 % range of each statistic.

    - `summary`: Statistics of the simulation that is asked about, by name.
    - `size`: Requests of that simulation; only the first 40,000 of more are simulated.
    - Returns: Lower and upper end by name, in the units of the names; the statistics that were given lie between them.

    Notes
    -----
    The 5, 10, ... 95 % quantiles of the service are simulated, each with a seed of its own. The least and the greatest
    of 19 results are the 5 and 95 % quantile of a statistic if it rises with the speed, or is random alone. A
    percentile never passes a higher one, and no run gives more than arrives. Runs of
    more than 4,000 requests are simulated at the outer two quantiles only, at full length, because a queue that grows
    depends on the length of the run. At a quantile whose pool holds no request none is answered: its latencies are
    infinite and its rates 0.
    """
    few = size.requests <= _ENOUGH
    count = size.requests if few else min(size.requests, max(_MOST // 2, 2 * (traffic.users or 1)))
    found = []
    for number, share in enumerate(_QUANTILES):
        if not few and share not in (_QUANTILES[0], _QUANTILES[-1]):
            continue
        at = uncertain.quantile(service, traffic, share)
        seed = stream_seed(size.seed, number) if few else size.seed
        outcome = simulate(at, traffic, requests=count, warmup=min(size.warmup, count - 1), seed=seed)
        if outcome.interrupted:
            raise KeyboardInterrupt  # a part of a run says nothing of the whole
        found.append(outcome.summary)
    ranges = {}
    for name, value in summary.items():
        unanswered = math.inf if name.endswith("_ms") else value if name.endswith(_SHARES) else 0.0
        values = [one.get(name, math.nan) for one in found] + [value]
        values = [one if math.isfinite(one) else unanswered for one in values]
        if name.endswith(("_ms", "_per_s", *_SHARES)) and math.isfinite(value):
            ranges[name] = (min(values), max(values))
    return ranges
