"""The largest load that keeps a promise, over the randomness of arrivals and over what is not known about the machine.

A load is safe if 95 of 100 services keep every target. Services differ in their arrivals and in their speed, which is
spread over the prediction's own interval. For traffic whose margin moves smoothly with the load, each of a few services
is followed to the load at which it breaks, and the 5 % quantile of these loads is taken. Conversations thrash or do not
by chance, so that a larger load may do better than a smaller one: there services are counted, at the answer and below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from glmplan.errors import SpecError
from glmplan.facts.tables import frame_of
from glmplan.serving.engine.step_table import StepTable
from glmplan.serving.load_trial import OPEN, OVERLOAD, Trial, capacity, places, spread_of_arrivals, try_load
from glmplan.serving.simulate import Service, simulate
from glmplan.serving.traffic.promises import Target
from glmplan.serving.traffic.spec import Traffic
from glmplan.units import QUANTILE_90, finite_number, whole_number

if TYPE_CHECKING:
    import pandas as pd

    from glmplan.serving.engine.settings import KvPool

__all__ = [
    "Kept",
    "LoadPoint",
    "SafeLoad",
    "kept_share",
    "load_curve",
    "room_factors",
    "safe_load",
    "speed_factors",
]

_DRAWS = 20
_ENOUGH = 4  # services in a row, from the slow end, that keep a promise: the rest then does
#: of these services, slowest first, which are followed to where they break
_FOLLOWED = (1, 0, 3, 5, 8, 11, 14, 16, 19)
_CLOSE = 0.01  # rates are found to this share
#: services that are counted at the answer, and how many of them may fail: 3 of 60 are 5 %
_COUNTED, _ALLOWED = 60, 3
#: loads about a first answer at which services are tried, [-], and how many; margins that are near enough to be fitted
_AROUND, _TRIED, _NEAR = (0.75, 1.0, 1.3), 8, 1.2
_STEP = 0.03  # between rates at which services are counted
_LARGEST = 1e6  # the largest load that is looked at
_DRAWN = 10_000  # most users that a curve shows


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """What one load does.

    Parameters
    ----------
    load : float
        Users, [-], or rate, [1/s]
    safe : bool
        Whether the promise holds.
    summary : dict
        Statistics of the last simulation at this load.
    broken : str
        The first target that fails, or `kv thrash`; empty if none.
    """

    load: float
    safe: bool
    summary: dict[str, float]
    broken: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class SafeLoad:
    """The answer.

    Parameters
    ----------
    load : float
        Largest safe load; 0 if even the smallest is not, [-] or [1/s]
    unit : str
        `users` or `requests/s`.
    breaks_first : str
        What fails at the next load; empty if nothing does up to the largest load looked at.
    reason : str
        Why, in words.
    points : tuple of LoadPoint
        Every load that was looked at, rising.
    """

    load: float
    unit: str
    breaks_first: str
    reason: str
    points: tuple[LoadPoint, ...]

    def to_frame(self) -> pd.DataFrame:
        """One row for each load that was looked at, with its statistics in the units of their names."""
        return frame_of(
            {"load": one.load, "safe": one.safe, "broken": one.broken, **one.summary} for one in self.points
        )

    def __repr__(self) -> str:
        return f"<SafeLoad {self.load:.4g} {self.unit}: {self.reason}>"

    def __str__(self) -> str:
        return f"{self.load:.4g} {self.unit}: {self.reason}"


def speed_factors(low: float, high: float, count: int = _DRAWS, coverage: float = 0.9) -> tuple[float, ...]:
    """Equal parts of a log-normal spread of step times.

    Parameters
    ----------
    low, high : float
        Interval of the step time relative to its prediction, [-]
    count : int, optional
        Parts, [-]
    coverage : float, optional
        Probability that the interval covers, [-]

    Returns
    -------
    tuple of float
        The middle of each part, slowest first, [-]

    Raises
    ------
    SpecError
        If the interval is empty or not positive.

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


def room_factors(low: float, high: float, count: int = _DRAWS, coverage: float = 0.9) -> tuple[float, ...]:
    """Equal parts of a normal spread of the room for keys and values.

    Parameters
    ----------
    low, high : float
        Interval of the pool relative to its prediction, [-]
    count : int, optional
        Parts, [-]
    coverage : float, optional
        Probability that the interval covers, [-]

    Returns
    -------
    tuple of float
        The middle of each part, smallest first; none below zero, [-]

    Examples
    --------
    >>> [round(f, 3) for f in room_factors(0.8, 1.2, 3)]
    [0.882, 1.0, 1.118]
    """
    normal = NormalDist()
    end = normal.inv_cdf(0.5 + coverage / 2)
    parts = (normal.inv_cdf((i + 0.5) / count) / end for i in range(count))
    return tuple(max(1.0 + one * ((1.0 - low) if one < 0 else (high - 1.0)), 0.0) for one in parts)


def _variants(
    service: Service, factors: Sequence[float], rooms: Sequence[float], tables: Sequence[StepTable]
) -> list[Service]:
    """Services from the slowest with the smallest pool to the fastest with the largest."""
    if not tables:
        found = [service.scaled(factor) if factor != 1 else service for factor in sorted(factors, reverse=True)]
        pools = [_pool(service, room) for room in rooms] or [service.pool] * len(found)
        return [Service(one.table, pool, one.settings, one.front_end) for one, pool in zip(found, pools, strict=True)]
    middle = service.table.max_requests // 2 or 1
    order = sorted(tables, key=lambda table: -float(table.decode[middle, len(table.context) // 2]))
    chosen = [order[int((i + 0.5) * len(order) / _DRAWS)] for i in range(_DRAWS)]
    return [Service(table, service.pool, service.settings, service.front_end) for table in chosen]


def _pool(service: Service, room: float) -> KvPool:
    """The pool with more or less room; at least a block."""
    pool = service.pool
    return replace(pool, tokens=max(int(pool.tokens * room), pool.block_size))


def safe_load(
    service: Service,
    traffic: Traffic,
    targets: tuple[Target, ...],
    *,
    factors: Sequence[float] = (1.0,) * _DRAWS,
    waits: Sequence[float] = (),
    rooms: Sequence[float] = (),
    tables: Sequence[StepTable] = (),
    most: float | None = None,
    seed: int = 0,
) -> SafeLoad:
    """Find the largest load that keeps a promise with 95 % probability.

    Parameters
    ----------
    service : Service
        The service as predicted.
    traffic : Traffic
        What arrives; its number of users, rate or speed is what is varied.
    targets : tuple of Target
        The promise.
    factors : sequence of float, optional
        Step times relative to the prediction, as `speed_factors` makes them, [-]
    waits : sequence of float, optional
        Times to the first token relative to what steps alone say, one for each factor; the factors by default, [-]
    rooms : sequence of float, optional
        Room of the pool relative to the prediction, smallest first, one for each factor, [-]
    tables : sequence of StepTable, optional
        Step tables drawn from the prediction's interval, instead of factors.
    most : float, optional
        Largest load to look at, such as one set by a hazard, [-] or [1/s]
    seed : int, optional
        Seed, [-]

    Returns
    -------
    SafeLoad
        The load, and what breaks first.

    Raises
    ------
    SpecError
        If no target is given, or the largest load or the seed is none.

    Notes
    -----
    The slowest draw also has the latest first tokens and the smallest pool: as careful as the limits of a plan, each of
    which holds at its own bad end. Loads are compared under the same random numbers. Closed loops are judged after
    their start-up burst. Rates are found to 1 %.

    Examples
    --------
    >>> from glmplan.serving.engine.settings import EngineSettings, KvPool
    >>> from glmplan.serving.traffic.promises import parse_slo
    >>> service = Service(StepTable.affine(base=0.01, per_request=0.001), KvPool(10**6), EngineSettings())
    >>> traffic = Traffic(kind="closed", users=1, input=16, output=64)
    >>> safe_load(service, traffic, parse_slo("tpot p95 < 30.5 ms")).load
    20
    """
    if not targets:
        raise SpecError("needs at least one target, as in 'ttft p95 < 2 s'", field="--slo")
    if most is not None and finite_number(most, "--most") <= 0:
        raise SpecError("must be more than zero", field="--most", value=most)
    whole_number(seed, "--seed", least=0)
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
    variants = _variants(service, factors, rooms, tables)
    search = _Search(variants, traffic, targets, most or _LARGEST, seed, _late(factors, waits))
    search.bound(service)
    if not traffic.plain and traffic.kind != "trace":
        load = search.counted(search.start(service))
    elif traffic.kind == "trace" or len(search.variants) != _DRAWS:
        load = search.edge(min(1, len(search.variants) - 1), search.start(service))
    else:
        load = search.followed(search.start(service))
    return search.answer(load, service)


@dataclass(slots=True)
class _Search:
    """A search for the largest safe load; remembers what was tried."""

    variants: list[Service]
    traffic: Traffic
    targets: tuple[Target, ...]
    limit: float
    seed: int
    late: tuple[float, ...] = ()  # of each service, how much later its first tokens come than its steps say [-]
    served: float = math.inf  # what the service as predicted can serve [1/s]
    why_limited: str = ""
    tried: dict[tuple[int, int, float], Trial] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether loads are numbers of users."""
        return self.traffic.users is not None

    @property
    def unit(self) -> str:
        """What loads are counted in."""
        if self.whole:
            return "users"
        if self.traffic.kind == "trace":
            return "times the recorded speed"
        return "sessions/s" if self.traffic.kind == "sessions" else "requests/s"

    def bound(self, service: Service) -> None:
        """Find loads beyond which nothing is left to be seen: what is served at most, or the places in the engine."""
        rates = self.traffic.kind in OPEN or (self.traffic.kind == "sessions" and not self.whole)
        if rates:
            self.served = capacity(service, self.traffic)
        waits = any(target.metric in ("ttft", "e2e", "queue") for target in self.targets)
        room = places(service)
        if self.whole and not waits and room < self.limit and not self.traffic.think:
            at_work = 1.0 if self.traffic.kind == "closed" else 4.0  # agents wait for their tools between turns
            self.limit = min(self.limit, math.ceil(at_work * room))
            self.why_limited = f": further ones wait for one of {room} places (max_num_seqs), which is not promised"

    def start(self, service: Service) -> float:
        """A first load to try."""
        if self.whole or self.traffic.kind == "trace":
            return 1.0
        return min(self.limit, self.served / 2) if self.served > 0 else 1.0

    def at(self, which: int, load: float, draw: int = 0) -> Trial:
        """Try a load on one of the services."""
        key = (which, draw, load)
        if key not in self.tried:
            service = self.variants[which]
            # all times scale with the factor of the service, and what it serves at most with its inverse
            slower = self._speed(which)
            self.tried[key] = try_load(
                service, self.traffic, self.targets, load, self.seed * 1000 + which + _DRAWS * draw,
                most=self.served / slower, late=self.late[which] if self.late else 1.0,
            )  # fmt: skip
        return self.tried[key]

    def _speed(self, which: int) -> float:
        middle = self.variants[len(self.variants) // 2].table
        row, column = middle.max_requests // 2 or 1, len(middle.context) // 2
        return float(self.variants[which].table.decode[row, column] / middle.decode[row, column])

    def edge(self, which: int, guess: float) -> float:
        """The load at which one service breaks, between the last that is kept and the first that is not; 0 if none."""
        step = 2.0 if guess <= 1 or not self.tried else 1.08
        low, high = 0.0, min(max(guess, 1.0 if self.whole else 0.0), self.limit)
        high = float(round(high)) if self.whole else high
        while self.at(which, high).margin <= 0:
            low = high
            if high >= self.limit:
                return low
            high = min(max(high * step, high + 1) if self.whole else high * step, self.limit)
            high = float(math.floor(high)) if self.whole else high
            step = min(step * step, 8.0)
        below, step = high / 1.08, 1.2
        while low == 0.0:
            below = float(math.floor(below)) if self.whole else below
            if below < (1 if self.whole else 1e-6):
                return 0.0
            if self.at(which, below).margin <= 0:
                low = below
            else:
                high, below, step = below, below / step, min(step * step, 8.0)
        while high - low > (1 if self.whole else _CLOSE * high):
            middle = self._between(which, low, high)
            low, high = (middle, high) if self.at(which, middle).margin <= 0 else (low, middle)
        return self._zero(which, low, high)

    def _zero(self, which: int, low: float, high: float) -> float:
        one, two = self.at(which, low).margin, self.at(which, high).margin
        share = -one / (two - one) if two > one else 0.5
        return low + (high - low) * min(max(share, 0.0), 0.999)

    def _between(self, which: int, low: float, high: float) -> float:
        """The next load to try: where the margin would vanish if it were straight, but well inside."""
        width = high - low
        found = min(max(self._zero(which, low, high), low + 0.2 * width), high - 0.2 * width)
        return float(min(max(round(found), low + 1), high - 1)) if self.whole else found

    def followed(self, start: float) -> float:
        """The 5 % quantile of the loads at which services of different speed and arrivals break."""
        ends, guess = {}, start
        for which in _FOLLOWED:
            ends[which] = self.edge(which, guess)
            if which == _FOLLOWED[0] and (ends[which] == 0.0 or ends[which] >= self.limit):
                return ends[which]
            if which == _FOLLOWED[0]:
                first = ends[which]
            place = _FOLLOWED.index(which) + 1
            if place < len(_FOLLOWED):
                guess = first * self._speed(_FOLLOWED[0]) / self._speed(_FOLLOWED[place])
        if min(ends.values()) <= 0 or max(ends.values()) >= self.limit:
            return ends[_FOLLOWED[0]]
        # what arrived by chance above the mean shifts the load at which this service breaks
        places_ = np.array([NormalDist().inv_cdf(1 - (which + 0.5) / _DRAWS) for which in ends])
        shift = np.array([self.at(which, self._nearest(which, end)).surplus for which, end in ends.items()])
        logs = np.log(np.array(list(ends.values()))) + shift
        slope = 0.0
        if self._speed(0) > self._speed(_DRAWS - 1):
            slope = float(np.polyfit(places_, logs, 1)[0])
        rest = logs - slope * places_
        chance = float(rest.var(ddof=2)) + spread_of_arrivals(self.traffic) ** 2
        found = math.exp(float(rest.mean()) - QUANTILE_90 * math.sqrt(slope**2 + chance))
        if not any(trial.broken == "kv thrash" for trial in self.tried.values()):
            return found
        # a pool runs over at once: no margin tells beforehand, so that services are counted
        found = float(math.floor(found)) if self.whole else found
        while found >= 1e-6 and self.failures(found, _COUNTED, _ALLOWED) > _ALLOWED:
            found = self._next(found, -1)
        return max(found, 0.0)

    def _nearest(self, which: int, load: float) -> float:
        return min((key[2] for key in self.tried if key[0] == which), key=lambda tried: abs(tried - load))

    def failures(self, load: float, count: int, allowed: int) -> int:
        """How many of so many services break under a load, of different speed and arrivals; ends when too many do."""
        failed = 0
        for number in range(count):
            # the slow ones first, then again with other arrivals
            which = number * 7 % len(self.variants) if count >= _DRAWS else number * len(self.variants) // count
            failed += self.at(which, load, number // len(self.variants)).margin > 0
            if failed > allowed:
                break
        return failed

    def counted(self, start: float) -> float:
        """The load that 95 of 100 services bear, by how their margins spread around it, and by counting them there."""
        middle = self.edge(min(1, len(self.variants) - 1), start)
        if middle <= 0:
            return 0.0
        near = self._margins(middle, _AROUND, _TRIED)
        middle = min(near if near is not None else middle, self.limit)
        found = float(math.floor(middle + 1e-9)) if self.whole else middle
        kept = found >= (1 if self.whole else 1e-6) and self.failures(found, _COUNTED, _ALLOWED) <= _ALLOWED
        while kept and (more := self._next(found, 1)) <= self.limit:
            if self.failures(more, _COUNTED, _ALLOWED) > _ALLOWED:
                return found
            found = more
        while not kept and found >= (1 if self.whole else 1e-6):
            found = self._next(found, -1)
            kept = found > 0 and self.failures(found, _COUNTED, _ALLOWED) <= _ALLOWED
        return max(found, 0.0)

    def _next(self, load: float, way: int) -> float:
        """The load a step above (1) or below (-1)."""
        return load + way if self.whole else load * (1 + _STEP) ** way

    def _margins(self, middle: float, around: Sequence[float], count: int) -> float | None:
        """Where margins vanish for 95 of 100 services, from so many of them at loads about one."""
        loads = [middle * share for share in around]
        loads = sorted({float(max(round(load), 1)) if self.whole else load for load in loads if load <= self.limit})
        normal, rows = NormalDist(), []
        for load in loads:
            for number in range(count):
                which = number * len(self.variants) // count
                margin = self.at(which, load).margin
                if abs(margin) < _NEAR:
                    place = normal.inv_cdf(1 - (which + 0.5) / len(self.variants))
                    rows.append((margin, 1.0, math.log(load), place))
        return _where_margins_vanish(np.array(rows), loads)

    def answer(self, load: float, service: Service) -> SafeLoad:
        """Say what was found."""
        safe = float(math.floor(load + 1e-9)) if self.whole else load
        by_load: dict[float, Trial] = {}
        for trial in self.tried.values():
            known = by_load.get(trial.load)
            if known is None or (trial.margin > known.margin) == (trial.load > safe):
                by_load[trial.load] = trial
        points = tuple(
            LoadPoint(one.load, one.load <= safe, one.summary, "" if one.load <= safe else one.broken)
            for _, one in sorted(by_load.items())
            if "ttft_mean_ms" in one.summary or one.load > safe
        )
        shown: float = int(safe) if self.whole else safe
        broken = [one for one in points if one.load > safe and one.broken]
        if safe >= self.limit or not broken:
            return SafeLoad(
                shown, self.unit, "", f"nothing breaks up to {safe:g} {self.unit}{self.why_limited}", points
            )
        return SafeLoad(shown, self.unit, broken[0].broken, _why(broken[0], service, self.unit), points)


def _where_margins_vanish(rows: np.ndarray, loads: Sequence[float]) -> float | None:
    """The load at which 95 of 100 margins are below 0, if they spread normally about a line; None if they do not.

    `rows` are margin, 1, logarithm of the load and place of the service in the spread of speeds.
    """
    if len(rows) < 8 or len(np.unique(rows[:, 2])) < 2:
        return None
    margins, causes = rows[:, 0], rows[:, 1:]
    weights, *_ = np.linalg.lstsq(causes, margins, rcond=None)
    level, slope, speed = weights.tolist()
    rest = float(((margins - causes @ weights) ** 2).sum()) / max(len(rows) - 3, 1)
    if slope <= 0:
        return None
    found = math.exp(-(level + QUANTILE_90 * math.sqrt(speed**2 + rest)) / slope)
    return min(max(found, 0.7 * loads[0]), 1.1 * loads[-1])


def _why(point: LoadPoint, service: Service, unit: str) -> str:
    """Say in words what fails first."""
    summary, load = point.summary, f"{point.load:.4g} {unit}"
    if point.broken == "requests do not fit":
        return f"at {load} no request fits the KV pool or the context"
    if point.broken == OVERLOAD:
        return f"at {load} more arrives than can be served: the queue grows without end"
    if point.broken == "kv thrash":
        share = summary["preemptions"] / summary["requests"]
        return f"at {load} the KV pool runs over: {share:.2g} preemptions for each request"
    metric, statistic = point.broken.split()[:2]
    value = summary[f"{metric}_{statistic}_ms"]
    text = f"at {load} {metric} {statistic} reaches {value:,.0f} ms"
    if metric in ("tpot", "itl"):
        return f"{text}: steps of up to {summary['batch_max']:.0f} requests and the prompts beside them take too long"
    if summary["queue_mean_ms"] > 0.5 * summary["ttft_mean_ms"]:
        if summary["batch_max"] >= service.settings.max_num_seqs:
            return f"{text}: requests wait for one of the {service.settings.max_num_seqs} places (max_num_seqs)"
        if summary["kv_occupancy_max"] > 0.85:
            return f"{text}: requests wait for room in the KV pool"
        return f"{text}: requests wait for their turn to be prefilled"
    return f"{text}: prompts take too long"


@dataclass(frozen=True, slots=True)
class Kept:
    """How surely a load keeps a promise.

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


def kept_share(
    service: Service,
    traffic: Traffic,
    targets: tuple[Target, ...],
    *,
    factors: Sequence[float],
    waits: Sequence[float] = (),
    rooms: Sequence[float] = (),
    seed: int = 0,
    least: float = 0.0,
) -> Kept:
    """The probability that a load keeps a promise, over arrivals and the interval of the step time.

    Parameters
    ----------
    service : Service
        The service as predicted.
    traffic : Traffic
        What arrives.
    targets : tuple of Target
        The promise.
    factors : sequence of float
        Step times relative to the prediction, as `speed_factors` makes them, [-]
    waits, rooms : sequence of float, optional
        As in `safe_load`, [-]
    seed : int, optional
        Seed, [-]
    least : float, optional
        Probability below which it does not matter how low it is: the rest is not simulated, and counts as kept, [-]

    Returns
    -------
    Kept
        Share of the services, and what fails first.

    Raises
    ------
    SpecError
        If no target is given.

    Notes
    -----
    The slowest services are tried first; after several in a row that keep the promise the rest is taken to keep it too,
    as `safe_load` does.

    Examples
    --------
    >>> from glmplan.serving.engine.settings import EngineSettings, KvPool
    >>> from glmplan.serving.traffic.promises import parse_slo
    >>> service = Service(StepTable.affine(base=0.01, per_request=0.001), KvPool(10**6), EngineSettings())
    >>> traffic = Traffic(kind="closed", users=10, input=16, output=64)
    >>> kept_share(service, traffic, parse_slo("tpot p95 < 20.5 ms"), factors=speed_factors(0.8, 1.25)).probability
    0.55
    """
    if not targets:
        raise SpecError("needs at least one target, as in 'ttft p95 < 2 s'", field="--slo")
    load = float(traffic.users or traffic.rate or traffic.speed)
    search = _Search(_variants(service, factors, rooms, ()), traffic, targets, _LARGEST, seed, _late(factors, waits))
    search.bound(service)
    failures, passes, broken = 0, 0, ""
    for place in range(len(search.variants)):
        trial = search.at(place, load)
        failed = trial.margin > 0
        failures, passes = (failures + 1, 0) if failed else (failures, passes + 1)
        broken = trial.broken if failed else broken
        kept = 1.0 - failures / len(search.variants)
        if passes >= _ENOUGH or kept < least - 1e-9:
            break
    return Kept(kept, broken, search.at(len(search.variants) // 2, load).summary if kept >= least - 1e-9 else {})


def _late(factors: Sequence[float], waits: Sequence[float]) -> tuple[float, ...]:
    """How much later first tokens come than steps alone say, of services from the slowest to the fastest."""
    pairs = sorted(zip(factors, waits, strict=True), reverse=True) if waits else []
    return tuple(wait / factor for factor, wait in pairs)


def load_curve(
    service: Service, traffic: Traffic, loads: np.ndarray, *, requests: int = 1000, seed: int = 0
) -> list[dict[str, float]]:
    """Statistics against load.

    Parameters
    ----------
    service : Service
        The service.
    traffic : Traffic
        What arrives.
    loads : ndarray
        Users, [-], or rates, [1/s]
    requests : int, optional
        Requests at each load; at most four times as many where users are many, [-]
    seed : int, optional
        Seed, [-]

    Returns
    -------
    list of dict
        A summary for each load, with `load`.
    """
    rows = []
    for load in loads:
        at = traffic.at_load(float(load))
        warm = at.users or requests // 10
        if warm > _DRAWN:
            continue  # a burst of so many users says nothing about a steady load, and takes long
        count = warm + max(requests, min(4 * warm, 4 * requests))
        outcome = simulate(service, at, requests=count, warmup=warm, seed=seed, fast=False)
        rows.append({"load": float(load), **outcome.summary})
    return rows
