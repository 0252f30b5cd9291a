"""The largest load that keeps a promise, over the randomness of arrivals and over what is not known about the machine.

A load is safe if at least 19 of 20 simulated services keep every target. The twenty differ in their arrivals and in
their speed, which is spread over the prediction's own interval in equal parts. The slowest are tried first: two
failures, or several passes in a row from the slow end, settle a load without the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from glmplan.errors import SpecError
from glmplan.facts.tables import frame_of
from glmplan.serving.engine.step_table import StepTable
from glmplan.serving.simulate import Service, simulate
from glmplan.serving.traffic.promises import Target
from glmplan.serving.traffic.spec import Traffic
from glmplan.units import finite_number, whole_number

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Kept", "LoadPoint", "SafeLoad", "kept_share", "load_curve", "safe_load", "speed_factors"]

_DRAWS = 20
_ENOUGH = 4  # passes in a row from the slow end
_THRASH = 0.05  # preemptions for each request from which the pool thrashes


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


def _variants(service: Service, factors: Sequence[float], tables: Sequence[StepTable]) -> list[Service]:
    """Services from the slowest to the fastest."""
    if not tables:
        return [service.scaled(factor) if factor != 1 else service for factor in sorted(factors, reverse=True)]
    middle = service.table.max_requests // 2 or 1
    order = sorted(tables, key=lambda table: -float(table.decode[middle, len(table.context) // 2]))
    chosen = [order[int((i + 0.5) * len(order) / _DRAWS)] for i in range(_DRAWS)]
    return [Service(table, service.pool, service.settings, service.front_end) for table in chosen]


def safe_load(
    service: Service,
    traffic: Traffic,
    targets: tuple[Target, ...],
    *,
    factors: Sequence[float] = (1.0,) * _DRAWS,
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
    Loads are compared under the same random numbers. Closed loops are judged after their start-up burst. Rates are
    found to 1 %.

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
    whole = traffic.users is not None
    variants = _variants(service, factors, tables)
    seen: dict[float, LoadPoint] = {}

    def at(load: float) -> LoadPoint:
        if load not in seen:
            seen[load] = _judge(variants, traffic.at_load(load), targets, load, seed)
        return seen[load]

    alone = simulate(service, Traffic(kind="closed", users=1, input=traffic.input, output=traffic.output), requests=1)
    start = 1000 / alone.summary["e2e_mean_ms"] if alone.summary["requests"] else 1.0
    low, high = _bracket(at, 1.0 if whole or traffic.kind == "trace" else start, most)
    while high - low > (1 if whole else 0.01 * high):
        middle = (low + high) / 2 if not whole else (low + high) // 2
        low, high = (middle, high) if at(middle).safe else (low, middle)
    points = tuple(seen[load] for load in sorted(seen))
    unit = "users" if whole else ("times the recorded speed" if traffic.kind == "trace" else "requests/s")
    if traffic.kind == "sessions" and not whole:
        unit = "sessions/s"
    failed = [point for point in points if not point.safe and point.load > low]
    if not failed:
        reason = f"nothing breaks up to {low:g} {unit}"
        return SafeLoad(int(low) if whole else low, unit, "", reason, points)
    first = failed[0]
    return SafeLoad(int(low) if whole else low, unit, first.broken, _why(first, service, unit), points)


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
    variants = _variants(service, factors, ())
    warm = traffic.users if traffic.users is not None else 200
    count = warm + max(400, 6 * traffic.users if traffic.users is not None else 1500)

    def at(place: int) -> dict[str, float]:
        return simulate(
            variants[place], traffic, requests=count, warmup=warm, seed=seed * 1000 + place, fast=False, targets=targets
        ).summary

    failures, passes, broken = 0, 0, ""
    for place in range(len(variants)):
        problem = _problem(at(place), targets)
        failures, passes = (failures + 1, 0) if problem else (failures, passes + 1)
        broken = problem or broken
        if passes >= _ENOUGH or 1.0 - failures / len(variants) < least - 1e-9:
            break
    kept = 1.0 - failures / len(variants)
    return Kept(kept, broken, at(len(variants) // 2) if kept >= least - 1e-9 else {})


def _bracket(at: Callable[[float], LoadPoint], start: float, most: float | None) -> tuple[float, float]:
    """A safe load (or 0) and one that is not (or the same, if everything up to the largest is safe)."""
    limit = most if most is not None else 1e6
    low, high = 0.0, min(start, limit)
    factor = 8.0 if start >= 1 else 2.0
    while at(high).safe:
        low = high
        if high >= limit:
            return low, low
        high = min(high * factor, limit)
        factor = max(2.0, factor / 2)
    return low, high


def _judge(variants: list[Service], traffic: Traffic, targets: tuple[Target, ...], load: float, seed: int) -> LoadPoint:
    """Try a load on services from the slowest to the fastest until it is settled."""
    allowed = math.floor(len(variants) * 0.05 + 1e-9)
    failures, passes, last, broken = 0, 0, {}, ""
    warm = traffic.users if traffic.users is not None else 200
    count = warm + max(400, 6 * traffic.users if traffic.users is not None else 1500)
    for number, service in enumerate(variants):
        summary = simulate(
            service, traffic, requests=count, warmup=warm, seed=seed * 1000 + number, fast=False, targets=targets
        ).summary
        problem = _problem(summary, targets)
        if problem:
            failures, passes = failures + 1, 0
            last, broken = summary, problem
            if failures > allowed:
                return LoadPoint(load, False, summary, problem)
        else:
            passes += 1
            last = summary if not failures else last
            if passes >= _ENOUGH:
                break
    return LoadPoint(load, True, last, broken)


def _problem(summary: dict[str, float], targets: tuple[Target, ...]) -> str:
    """The target that is missed by the largest factor; empty if none."""
    if not summary["requests"]:
        return "requests do not fit"
    if summary["preemptions"] > _THRASH * summary["requests"]:
        return "kv thrash"
    missed = [(summary[t.name] / (t.bound * 1000), str(t)) for t in targets if not summary[t.name] <= t.bound * 1000]
    return max(missed)[1] if missed else ""


def _why(point: LoadPoint, service: Service, unit: str) -> str:
    """Say in words what fails first."""
    summary, load = point.summary, f"{point.load:.4g} {unit}"
    if point.broken == "requests do not fit":
        return f"at {load} no request fits the KV pool or the context"
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
        Requests at each load, [-]
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
        outcome = simulate(service, at, requests=max(requests, 5 * warm), warmup=warm, seed=seed, fast=False)
        rows.append({"load": float(load), **outcome.summary})
    return rows
