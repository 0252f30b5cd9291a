"""One trial of a load: the SLO margin of a simulated service."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from glmplan.catalog.tables import frame_of
from glmplan.errors import SpecError
from glmplan.simulation.closed_run import settled_requests
from glmplan.simulation.engine.settings import FirstTokens
from glmplan.simulation.simulate import LARGEST, Service, SimulationOptions, alone_on_server, simulate
from glmplan.simulation.traffic.slo import Target
from glmplan.simulation.traffic.sources import CHUNK, dispersion, request_chunks
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import PerSecond, Ratio, Seconds, SecondsArray, Tokens, counted_unit

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "FULL",
    "JUMPS",
    "MEANS",
    "OPEN",
    "OVERLOAD",
    "PERCENTILES",
    "POOL",
    "SETTLED",
    "THRASH",
    "UNFINISHED",
    "Breaks",
    "DrawnEdges",
    "InFlight",
    "LoadPoint",
    "Missed",
    "Misses",
    "SafeLoad",
    "Trial",
    "capacity",
    "default_requests",
    "default_warmup",
    "enough",
    "exceeded",
    "in_flight",
    "judged_requests",
    "one_server",
    "places",
    "start_judged",
    "try_load",
    "unit_of",
    "why_broken",
]


# Control variates of the search for a safe load: numbers in flight by chance of the arrivals.
#
# Means over a run follow the mean number in flight, percentiles its high values, preemptions the use of the KV pool.
# An arrival sample with more requests in flight than usual misses the SLO at a load that is lower by as much. The usual
# numbers are known, so that this part of the chance is subtracted.

#: draws of the arrivals from which it is known what is usual, at least, and how well its mean is known then [-]
_DRAWS, _ERROR = 200, 0.005
#: draws under which it is looked by how much each number rises with the load, and by how much more of it [-]
_RISEN, _MORE = 10, 1.05
#: least rise that is believed [-]
_LEAST_RISE = 0.2
#: high number in flight: one in 20 requests finds more requests beside it, in the mean over its stay
_HIGH = 0.95
#: share of the pool within which an end that finds it fuller presses e times as hard [-]
_NEARLY = 0.1


@dataclass(frozen=True, slots=True)
class Breaks:
    """Cause of a missed SLO, and prior weights of the numbers in flight."""

    statistics: tuple[int, int]  # the two numbers of `InFlight.foreseen` that explain it, [-]
    #: how the load at which a draw breaks follows them as long as nothing is seen of it, [-]
    weights: tuple[float, float]
    left: float  # prior of the residual standard deviation, [-]


#: means over a run, percentiles, a pool that runs over
MEANS = Breaks((0, 1), (-1.0, 0.0), 0.012)
PERCENTILES = Breaks((0, 1), (-0.6, -0.4), 0.02)
POOL = Breaks((1, 2), (-0.4, -0.6), 0.025)
#: and a load above the throughput limit
FULL = Breaks((0, 1), (0.0, 0.0), 0.012)
#: standard error of the prior weights, and the number of loads that the prior of the residual counts as [-]
_SURE, _AS_MANY = 0.15, 3.0


@dataclass(slots=True)
class InFlight:
    """Numbers in flight at arrivals of an open stream.

    Each request stays as long as its answer is long.

    Examples
    --------
    >>> numbers = InFlight(Traffic(kind="poisson", rate=1.0), 2.0, 5.0, 1700, 200)
    >>> np.exp(numbers.usual[:2]).round(1), np.sqrt(np.diag(numbers.spread)[:2]).round(2)
    (array([1. , 1.5]), array([0.03, 0.05]))
    >>> numbers.over(3)[:2].round(2)
    array([-0.02, -0.05])
    """

    traffic: Traffic  # an open stream
    rate: float  # requests that arrive in the mean over all draws, [1/s]; of a day as `Traffic.at_load` has it
    #: how long one with a mean answer stays, [s]; as long as it takes until the next one comes, if that is longer
    stay: float
    count: int  # requests of a run, [-]
    skipped: int  # those at its start that are not looked at, [-]
    pool: float = 0.0  # tokens that all replicas hold together, [token]
    draws: int = 0  # arrival samples for the usual numbers; by default as many as their standard error needs, [-]
    usual: np.ndarray = field(init=False)  # mean of `foreseen` over samples, [-]
    rise: np.ndarray = field(init=False)  # by how much its numbers rise with the logarithm of the load, [-]
    spread: np.ndarray = field(init=False)  # covariance of what `over` returns, [-]

    def __post_init__(self) -> None:
        generator, again = np.random.default_rng(0), np.random.default_rng(0)
        found = [self._of(generator) for _ in range(self.draws or _DRAWS)]
        while not self.draws and np.std(found, axis=0)[0] > _ERROR * len(found) ** 0.5:
            found += [self._of(generator) for _ in range(_DRAWS)]
        before = np.array(found[:_RISEN])
        risen = np.array([self._of(again, _MORE) for _ in before]) - before
        self.usual = np.mean(found, axis=0)
        self.rise = np.maximum(risen.mean(axis=0) / np.log(_MORE), _LEAST_RISE)
        self.spread = np.cov((np.array(found) - self.usual) / self.rise, rowvar=False)

    def foreseen(self, seed: int) -> np.ndarray:
        """Return the numbers in flight of a simulation before it is run.

        The same arrivals are sampled.

        Returns: Logarithms of the mean and the high number over `rate` times `stay`, as Little's law has it, and of the
           use of the pool when a request ends; 0 without a pool.
        """
        return self._of(np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0]))

    def over(self, seed: int) -> np.ndarray:
        """Return the excess of the numbers in flight over the usual ones.

        Returns: Excess of `foreseen` over the usual numbers, as logarithms of the load at which so much is usual.
        """
        beyond: np.ndarray = (self.foreseen(seed) - self.usual) / self.rise
        return beyond

    def _of(self, generator: np.random.Generator, more: float = 1.0) -> np.ndarray:
        at = self.traffic.at_load(self.rate).busiest
        chunk, rate = next(request_chunks(at, self.count, generator)), float(at.rate or self.rate)
        mean_stay = max(self.stay, 1.0 / rate)
        arrivals = np.zeros(0) if chunk.arrival is None else chunk.arrival / more
        stay = mean_stay * chunk.output_tokens / chunk.output_tokens.mean()
        leave = arrivals + stay
        order = np.argsort(leave, kind="stable")  # with similar lengths they leave almost in the order of arrival
        left = leave[order]
        came, gone = _sums(arrivals), _sums(left)

        def spent(at: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
            """Return the time that all requests have spent until then."""
            result: np.ndarray = (at * first - came[first]) - (at * last - gone[last])
            return result

        number = np.arange(len(arrivals))
        ended = np.searchsorted(left, arrivals)
        first, last = np.searchsorted(arrivals, leave), np.searchsorted(left, leave)
        beside = (spent(leave, first, last) - spent(arrivals, number, ended)) / stay
        there = (number - ended)[self.skipped :].mean()
        beside = beside[self.skipped :]
        place = int(_HIGH * len(beside))
        crest = np.partition(beside, place)[place]
        numbers = np.log(np.maximum([there, crest], 1.0 / self.count) / (rate * mean_stay))
        if not self.pool:
            return np.append(numbers, 0.0)
        # prompts of those who are there when one ends, and what they have written meanwhile
        prompts = _sums(chunk.input_tokens)[first] - _sums(chunk.input_tokens[order])[last]
        ages = (leave * first - came[first]) - (leave * last - _sums(arrivals[order])[last])
        held = prompts + chunk.output_tokens.mean() / mean_stay * ages
        pressed = np.exp(np.minimum((held[self.skipped :] / self.pool - 1.0) / _NEARLY, 0.0)).mean()
        return np.append(numbers, np.log(pressed))


def _sums(values: np.ndarray) -> np.ndarray:
    """Sums of the first so many, none first."""
    return np.concatenate(([0.0], values.cumsum()))


@dataclass(slots=True)
class DrawnEdges:
    """Saturation loads under arrival samples, and their mean.

    Control variates take a part of the chance out.

    Notes
    -----
    Mean and high number in flight, and the use of a pool, are control variates, whose means are known
    [1]_. Each is twice as high where twice the load is usual, so that their weights are about one together; the more
    the draws differ, the more the weights are fitted to them (ridge regression towards what is known before).

    References
    ----------
    .. [1] S. Asmussen, P. Glynn, "Stochastic Simulation: Algorithms and Analysis", Springer 2007, section V.2.

    Examples
    --------
    >>> edges = DrawnEdges(0.01 * np.eye(3))
    >>> for there in (-0.1, 0.0, 0.1):
    ...     edges.add(2.0 * float(np.exp(-there)), np.array([there, 0.0, 0.0]))
    >>> round(float(np.exp(edges.mean)), 3), round(edges.error, 3), round(edges.chance**0.5, 3)
    (2.0, 0.006, 0.101)
    """

    spread: np.ndarray  # covariance of what `InFlight.over` returns, [-]
    breaks: Breaks = MEANS  # cause of the missed SLO
    logs: list[float] = field(default_factory=list)  # logarithms of the loads, [-]
    #: control variates of each sample, out of `InFlight.over`, [-]
    there: list[np.ndarray] = field(default_factory=list)
    _weights: np.ndarray = field(default_factory=lambda: np.zeros(2))
    _fitted: float = 0.0

    def add(self, load: float, there: np.ndarray) -> None:
        """Take in where one draw breaks.

        `load`: The load, [-] or [1/s].
        """
        self.logs.append(float(np.log(load)))
        self.there.append(there[list(self.breaks.statistics)])
        told, logs = np.array(self.there), np.array(self.logs)
        told, logs = told - told.mean(axis=0), logs - logs.mean()
        seen, known = told.T @ told, (self.breaks.left / _SURE) ** 2 * np.eye(2)
        self._weights = np.linalg.solve(seen + known, told.T @ logs + known @ np.array(self.breaks.weights))
        self._fitted = float(np.trace(np.linalg.solve(seen + known, seen)))

    def guess(self, there: np.ndarray) -> float:
        """Where a draw will break, as the others say.

        Returns: [-] or [1/s].
        """
        return float(np.exp(self.mean + self._weights @ there[list(self.breaks.statistics)]))

    @property
    def mean(self) -> float:
        """Mean of the logarithm of the load if as many are there as usual, [-]"""
        return float(np.mean(self.logs) - self._weights @ np.mean(self.there, axis=0))

    @property
    def error(self) -> float:
        """Standard error of `mean`, [-]"""
        return float((self._variance / len(self.logs)) ** 0.5)

    @property
    def chance(self) -> float:
        """Variance of the logarithm over draws of the arrivals, [-]"""
        told = list(self.breaks.statistics)
        return float(self._variance + self._weights @ self.spread[np.ix_(told, told)] @ self._weights)

    @property
    def _variance(self) -> float:
        """Return the residual variance after the control variates."""
        left = np.array(self.logs) - np.array(self.there) @ self._weights
        free = max(len(left) - 1 - self._fitted, 0.0)
        return float((_AS_MANY * self.breaks.left**2 + np.sum((left - left.mean()) ** 2)) / (_AS_MANY + free))


# An SLO that is missed whatever the rest of the run brings.

#: share of a bound by which a time must be beyond it: more than roundings come to [-]
_SURELY = 1e-9


class Missed(Exception):
    """The SLO is missed, whatever the rest of a run brings.

    - `target`: Excess.
    """

    def __init__(self, target: Target) -> None:
        super().__init__(str(target))
        self.target = target


class Misses:
    """Counts requests beyond their targets, until the SLO cannot be met.

    - `targets`: The SLO; means and gaps between tokens are judged at the end only.
    - `most`: Requests that are judged at most, [-]
    - `warmup`: Requests at the start that are not judged, [-]
    - `late`: How many times later first tokens come than the records say, [-]

    Examples
    --------
    >>> watch = Misses((Target("e2e", "p90", 1.0),), most=20, warmup=0)
    >>> slow = {name: np.full(2, value) for name, value in
    ...         {"number": 1, "arrival": 0.0, "started": 0.0, "first": 1.0, "finish": 2.0, "output_tokens": 3}.items()}
    >>> watch(slow, 0.0)  # two of twenty may be
    >>> watch(slow, 0.0)
    Traceback (most recent call last):
    glmplan.simulation.load_trial.Missed: e2e p90 < 1000 ms

    Notes
    -----
    A percentile of n values lies at or above the one in place ⌊(n - 1) · percent / 100⌋, counted from zero. It is
    beyond a bound when n less this place are. Fewer values, because some requests do not fit, allow no more.
    """

    def __init__(self, targets: tuple[Target, ...], most: int, warmup: int, late: float = 1.0) -> None:
        self._warmup, self._late = warmup, late
        percents = {target: int(target.statistic[1:]) for target in targets if target.statistic[1:].isdigit()}
        self._left = {
            target: most - math.floor((most - 1) * percent / 100)
            for target, percent in percents.items()
            if target.metric != "itl"
        }

    def __call__(self, columns: dict[str, np.ndarray], late: SecondsArray | Seconds) -> None:
        """Look at requests that have finished.

        - `columns`: Columns of their records, times in [s].
        - `late`: Delay of first tokens after the times of the records.
        """
        counted = columns["number"] >= self._warmup
        arrival, first, finish = columns["arrival"], columns["first"], columns["finish"]
        for target in self._left:
            judged, factor = counted, 1.0
            if target.metric == "ttft":
                times, factor = first - arrival + late, self._late
            elif target.metric == "e2e":
                times = finish - arrival + late
            elif target.metric == "queue":
                times = columns["started"] - arrival
            else:
                more = columns["output_tokens"] - 1
                judged, times = counted & (more > 0), (finish - first) / np.maximum(more, 1)
            self._left[target] -= int((judged & (factor * times > target.bound * (1 + _SURELY))).sum())
            if self._left[target] <= 0:
                raise Missed(target)


#: kinds of traffic whose arrivals do not wait for answers
OPEN = ("poisson", "constant", "gamma", "onoff", "daily")
#: what is broken where more arrives than is served
OVERLOAD = "overload"
#: what is broken where requests compute again
THRASH = "kv thrash"
#: what breaks at once, so that no margin tells it beforehand
JUMPS = (THRASH, "clients leave", OVERLOAD, "requests do not fit")

_THRASH = 0.05  # preemptions for each request from which the pool thrashes
_LEFT = 0.05  # share of the clients that leave from which a load is not safe
_FAR = 3.0  # a margin that says no more than "far away"
UNFINISHED = 1e-9  # margin of a run that ended once its SLO could not be met: the amount is not known
UNJUDGED = 200  # first requests of a synthetic stream, which are not judged
_MOST_SKIPPED = 10_000  # requests of conversations that are not judged at most
SETTLED = 1500  # requests of an open stream that are judged
_QUEUED = 0.01  # share of a run that requests wait from which it is looked whether the queue grows without end
_MOST_USERS = 1024  # users of the closed loop that finds what can be served


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of one simulated service under one load."""

    load: float  # users, [-], rate, [1/s], or speed of a trace, [-]
    #: logarithm of the worst statistic over its bound, preemptions among them: below 0 the SLO is met, [-]
    margin: float
    #: the target that is missed by most, `kv thrash`, `clients leave`, `overload` or `requests do not fit`; empty if
    #: none
    broken: str
    summary: dict[str, float]  # statistics, in the units of their names
    nearest: str = ""  # target that is missed, or is nearest to it if none is
    #: logarithm of each statistic over its bound by target, and of preemptions where there are some, [-]
    margins: dict[str, float] = field(default_factory=dict)


def places(service: Service) -> int:
    """Requests that run at once on all replicas.

    Examples
    --------
    >>> from glmplan.simulation.engine.settings import EngineSettings, KvPool
    >>> from glmplan.simulation.engine.step_table import StepTable
    >>> places(Service(StepTable.affine(base=0.01), KvPool(1000), EngineSettings(max_num_seqs=8, replicas=2)))
    16
    """
    settings = service.settings
    return settings.running_limit * (settings.replicas - settings.prefill_replicas)


def capacity(service: Service, traffic: Traffic) -> PerSecond:
    """Return the throughput limit in requests or sessions per second.

    Returns: The rate, [1/s]; 0 if no request fits. For a day, the mean rate at which its busiest part is just
        finished.
    """
    held = service.pool.tokens * service.settings.replicas / (traffic.input + traffic.output / 2)
    users = int(min(2 * max(min(places(service), held), 1), _MOST_USERS))
    changes: dict[str, object] = {"users": users, "rate": None, "ramp": 0.0}
    if traffic.kind != "sessions":
        changes |= {"kind": "closed", "think": 0.0}
    # uniform lengths make waves, whose peaks exceed the mean rate
    saturated, alike = traffic.unmarked.model_copy(update=changes), 1
    if saturated.plain and not service.settings.prefill_replicas:
        # replicas that are all as full serve as much as one does, each
        alike, service = service.settings.replicas, service.under(saturated)
        users = math.ceil(users / alike)
        saturated = saturated.model_copy(update={"users": users})
        service = replace(service, settings=replace(service.settings, replicas=1, lockstep=1), spread=None)
    outcome = simulate(service, saturated, requests=6 * users, options=SimulationOptions(keep=True))
    if outcome.interrupted:
        raise KeyboardInterrupt  # a part of a run is no measure of it
    rows = outcome.requests
    if rows is None or len(rows["finish"]) < 4 * users:
        return 0.0
    ends = np.sort(rows["finish"])
    first, last = users, len(ends) - users
    served = alike * float((last - first) / (ends[last - 1] - ends[first - 1])) / traffic.peak
    return served / traffic.turns if traffic.kind == "sessions" else served


def exceeded(service: Service, traffic: Traffic, summary: Mapping[str, float]) -> PerSecond | None:
    """Return the throughput limit if more arrives, else None.

    Times then grow with the length of a run.

    - `summary`: Statistics of the simulation, [ms] and [s] as their names say.
    - Returns: Requests, or sessions; None where it bears what arrives.

    Examples
    --------
    >>> from glmplan.simulation.engine.settings import EngineSettings, KvPool
    >>> from glmplan.simulation.engine.step_table import StepTable
    >>> service = Service(StepTable.affine(base=0.01), KvPool(10**6), EngineSettings(max_num_seqs=4))
    >>> for rate in (3.0, 8.0):
    ...     traffic = Traffic(kind="poisson", rate=rate, input=16, output=100)
    ...     found = exceeded(service, traffic, simulate(service, traffic, requests=400).summary)
    ...     print(found and round(found, 1))
    None
    4.0
    """
    if traffic.rate is None or not summary["requests"]:
        return None
    if not summary["queue_p95_ms"] * 1e-3 > _QUEUED * summary["duration_s"]:
        return None
    most = capacity(service, traffic)
    return most if traffic.rate > most else None


def try_load(
    service: Service,
    traffic: Traffic,
    targets: tuple[Target, ...],
    load: float,
    seed: int,
    *,
    most: PerSecond = math.inf,
    late: Ratio = 1.0,
    verdict: bool = False,
    settled: int = SETTLED,
) -> Trial:
    """Simulate one load and compare its latencies with the SLO.

    - `load`: Users, [-], rate, [1/s], or speed of a trace, [-].
    - `late`: Factor on the time to the first token that steps alone give.
    - `verdict`: True if only the verdict on the SLO is wanted: a run that cannot meet it may end early.
    - Returns: Statistics and margin; of a run that ended early `UNFINISHED`.

    Notes
    -----
    Synthetic traffic is judged in its steady state: without the start-up burst of a closed loop, and without the first
    200 arrivals of a stream, or more where more of it is judged. Every request of a trace is judged. A day is judged in
    its busiest part, as if that lasted. Uniform users of several servers are judged on one of them (`one_server`).
    """
    service, at = one_server(service, traffic.at_load(load).busiest)
    warm, count = judged_requests(at, settled)
    if load >= most:
        # where no request fits at all, every load is as far too large as another
        above = math.log(load / most) + 0.01 if most > 0 else _FAR
        return Trial(load, min(above, _FAR), OVERLOAD, {"requests": 0.0})
    watch = Misses(targets, count - warm, warm, late) if verdict and _tells(at) else None
    try:
        outcome = simulate(service, at, requests=count, warmup=warm, seed=seed, options=SimulationOptions(watch=watch))
    except Missed as missed:
        return Trial(load, UNFINISHED, str(missed.target), {"requests": 0.0})
    if outcome.interrupted:
        raise KeyboardInterrupt  # a part of a run judges no load
    summary = outcome.summary
    if at.kind == "trace" and not summary["requests"] and not summary["rejected"]:
        raise SpecError(f"holds no more requests than the {warm} users begin with", file=str(at.file))
    summary |= {name: late * each for name, each in summary.items() if name.startswith("ttft_")}
    if at.users is not None and at.users < load:
        summary |= {name: load / at.users * each for name, each in summary.items() if name.endswith("_per_s")}
    margin, nearest, margins = _margin(summary, targets)
    broken = nearest if margin > 0 else ""
    return Trial(load, margin, broken, outcome.summary, nearest, margins)


def one_server(service: Service, traffic: Traffic) -> tuple[Service, Traffic]:
    """Return the fullest of several servers with its share of uniform users.

    Both unchanged for other traffic, on one server, and where servers compute prompts for others.

    Notes
    -----
    Predictions count servers with equal shares of the users. In a simulation of all servers, requests of equal length
    keep in step or not by the remainder of users over servers: 53 users of two servers had a third of the mean TTFT of
    54, and 19 % more TPOT. No load is largest then. Requests of a measured run are never so equal.
    """
    settings, users = service.settings, traffic.users
    ranks = settings.lockstep
    servers = settings.replicas // ranks
    if users is None or servers < 2 or settings.prefill_replicas or not (traffic.kind == "closed" and traffic.uniform):
        return service, traffic
    # what depends on the users of all servers is that of all of them
    later = service.first.times * service.first.later(float(users), settings.replicas)
    first, cold_start = FirstTokens(ranks=ranks, times=later), service.cold_start * alone_on_server(service, traffic)
    alone = replace(service, settings=replace(settings, replicas=ranks), first=first, cold_start=cold_start)
    return alone, traffic.at_load(math.ceil(users / servers))


def judged_requests(at: Traffic, settled: int = SETTLED) -> tuple[int, int]:
    """Return the number of requests not judged, and of all of a trial.

    Returns: Warm-up and whole. A trace is replayed whole and has no warm-up, since its requests came as recorded;
      only the burst of users who begin recorded conversations together is left out. A stream that begins in a burst
      settles more slowly.

    Notes
    -----
    Conversations settle when the first ones have ended: only then does the pool hold what it holds from then on. A full
    one that evicts prefixes makes requests longer, so that more conversations overlap. Within the first conversation
    of each user a load passes at which the cache no longer helps later.

    Examples
    --------
    >>> judged_requests(Traffic(kind="poisson", rate=1.0)), judged_requests(Traffic(kind="closed", users=8))
    ((200, 1700), (8, 408))
    >>> judged_requests(Traffic(kind="sessions", users=50, turns=8))
    (400, 1900)
    >>> judged_requests(Traffic(kind="trace", file="t.csv"))[0]
    0
    """
    if at.kind == "trace":
        return at.users or 0, LARGEST
    if at.kind == "sessions":
        # requests of the conversations that begin before the first of them ends; an answer takes about a tool's wait
        lasts = at.users or (at.rate or 0.0) * 2 * at.turns * at.tool_wait
        skipped = min(max(math.ceil(at.turns * lasts), UNJUDGED), _MOST_SKIPPED)
        return skipped, skipped + max(settled, 2 * skipped)
    if at.users is not None:
        return at.users, settled_requests(at.users)
    skipped = round(UNJUDGED * max(settled / SETTLED, 1.0))
    return skipped, skipped + settled


#: requests of a day that are simulated at most [-]
_MOST_OF_A_DAY = 200_000
_DAY = 86_400.0  # [s]


def default_requests(traffic: Traffic) -> int:
    """Return the requests that `simulate` runs by default.

    A trace whole, ten for each user of a closed loop, a day up to 200,000, settled sessions, else 1,000.

    Examples
    --------
    >>> default_requests(Traffic(kind="closed", users=8)), default_requests(Traffic(kind="daily", rate=0.5))
    (80, 43200)
    """
    if traffic.kind == "trace":
        return LARGEST
    if traffic.kind == "closed" and traffic.users:
        return 10 * traffic.users
    if traffic.kind == "sessions":
        return judged_requests(traffic)[1]
    if traffic.kind == "daily" and traffic.rate:
        return max(min(round(traffic.rate * _DAY), _MOST_OF_A_DAY), 1000)
    return 1000


def default_warmup(traffic: Traffic, targets: Sequence[Target], requests: int) -> int:
    """Return the requests at the start that an SLO does not count.

    The first one of each user of a closed loop, unless users start one after another (`ramp`), and the first
    conversation of each user of sessions: all of them start together, which happens once. Without an SLO every request
    counts, as in a run that ends before them (`start_judged`).

    Examples
    --------
    >>> from glmplan.simulation.traffic.slo import parse_slo
    >>> default_warmup(Traffic(kind="closed", users=8), parse_slo("ttft p95 < 2 s"), 80)
    8
    """
    begin = _begin(traffic) if targets else 0
    return begin if requests > begin else 0


def start_judged(traffic: Traffic, targets: Sequence[Target], requests: int) -> int:
    """Return the requests of the start that an SLO judges in a short run.

    0 if the run is longer than its start, or without an SLO.

    Examples
    --------
    >>> from glmplan.simulation.traffic.slo import parse_slo
    >>> sessions = Traffic(kind="sessions", users=20, turns=33)
    >>> [start_judged(sessions, parse_slo("ttft p95 < 2 s"), requests) for requests in (150, 2000)]
    [660, 0]
    """
    begin = _begin(traffic) if targets else 0
    return begin if requests <= begin else 0


def _begin(traffic: Traffic) -> int:
    """Return the requests of users or sessions that start together."""
    if traffic.kind == "sessions":
        return judged_requests(traffic)[0]
    return traffic.users or 0 if traffic.kind == "closed" and not traffic.ramp else 0


def enough(traffic: Traffic, rate: PerSecond) -> int:
    """Return the judged requests of an open stream: more under bursts.

    Returns: Those of a Poisson stream times the square root of the index of dispersion, up to what is drawn at once.
      For means of a run to scatter no more than under a Poisson stream it would take as many times more as the index
      itself says.

    Examples
    --------
    >>> enough(Traffic(kind="poisson", rate=1.0), 5.0), enough(Traffic(kind="gamma", rate=1.0, cv=3.0), 5.0)
    (1500, 4500)
    """
    if traffic.kind not in OPEN or not 0 < rate < math.inf:
        return SETTLED
    longer = math.sqrt(max(dispersion(traffic.at_load(rate)), 1.0))
    return round(min(SETTLED * longer, CHUNK * SETTLED / (SETTLED + UNJUDGED)))


def in_flight(
    traffic: Traffic, load: PerSecond, stay: Seconds, settled: int, pool: Tokens = 0.0, **draws: int
) -> InFlight | None:
    """How many are there at once under the arrivals that trials draw.

    `pool`: Tokens that all replicas hold, where it is asked how hard they are pressed.

    Examples
    --------
    >>> in_flight(Traffic(kind="closed", users=3), 3.0, 2.0, 1500) is None
    True
    """
    if traffic.kind not in OPEN:
        return None
    skipped, count = judged_requests(traffic, settled)
    return InFlight(traffic, load, stay, count, skipped, pool, **draws)


def _tells(at: Traffic) -> bool:
    """Return True if late requests decide a run, as no client leaves."""
    return at.kind in ("closed", "sessions") and not at.think and at.patience is None


def _margin(summary: dict[str, float], targets: tuple[Target, ...]) -> tuple[float, str, dict[str, float]]:
    """Return the log of the worst statistic over its bound, its name, and all."""
    if not summary["requests"]:
        return _FAR, "requests do not fit", {}
    margins = {}
    for target in targets:
        value = summary[target.name] / (target.bound * 1000)
        margins[str(target)] = math.log(value) if value > 0 else -_FAR if value == 0 else _FAR
    share = summary["preemptions"] / summary["requests"]
    if share > 0:
        margins[THRASH] = math.log(share / _THRASH)
    name = max(margins, key=lambda name: margins[name])
    worst = margins[name]
    if margins.get(THRASH, 0.0) > 0:
        return min(worst, _FAR), THRASH, margins
    gone = summary.get("left", 0.0) / (summary["requests"] + summary.get("left", 0.0))
    if gone > _LEFT:
        return min(max(worst, math.log(gone / _LEFT)), _FAR), "clients leave", margins
    return min(worst, _FAR), name, margins


# Answer of a search for the largest safe load, and the reason that limits it, as text.


def unit_of(traffic: Traffic) -> str:
    """Return the unit of loads of a kind of traffic.

    Examples
    --------
    >>> unit_of(Traffic(kind="poisson", rate=1.0))
    'requests/s'
    """
    if traffic.users is not None:
        return "users"
    if traffic.kind == "trace":
        return "times the recorded speed"
    return "sessions/s" if traffic.kind == "sessions" else "requests/s"


@dataclass(frozen=True, slots=True, repr=False)
class LoadPoint:
    """Result of one load."""

    load: float  # users, [-], or rate, [1/s]
    safe: bool  # True if the SLO is met
    summary: dict[str, float]  # statistics of the last simulation at this load
    broken: str = ""  # the first target that fails, or `kv thrash`; empty if none

    def __repr__(self) -> str:
        return f"<LoadPoint {self.load:g}: {'safe' if self.safe else self.broken or 'not safe'}>"


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
        Target that fails at the next load; empty if none does up to the largest load.
    reason : str
        Why, in words.
    points : tuple of LoadPoint
        Every load that was looked at, rising.
    probability : float, optional
        Probability with which the load meets the SLO, [-]
    at : tuple of (float, float), optional
        Largest load by probability, the largest probability first, [-] and [-] or [1/s]
    """

    load: float
    unit: str
    breaks_first: str
    reason: str
    points: tuple[LoadPoint, ...]
    probability: Ratio = 0.95
    at: tuple[tuple[Ratio, float], ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row for each tried load, with statistics."""
        return frame_of(
            {"load": one.load, "safe": one.safe, "broken": one.broken, **one.summary} for one in self.points
        )

    def __repr__(self) -> str:
        return f"<SafeLoad {self.load:.4g} {self.unit}: {self.reason}>"

    def __str__(self) -> str:
        return f"{self.load:.4g} {self.unit}: {self.reason}"


def why_broken(point: LoadPoint, service: Service, unit: str) -> str:
    """Say in words what fails first.

    Examples
    --------
    >>> from glmplan.simulation.engine.settings import EngineSettings, KvPool
    >>> from glmplan.simulation.engine.step_table import StepTable
    >>> service = Service(StepTable.affine(base=0.01), KvPool(1000), EngineSettings())
    >>> why_broken(LoadPoint(1.0, False, {}, "requests do not fit"), service, "users")
    'at 1 user no request fits the KV pool or the context'
    """
    summary, load = point.summary, "1 user" if (point.load, unit) == (1, "users") else f"{point.load:.4g} {unit}"
    if point.broken == "requests do not fit":
        return f"at {load} no request fits the KV pool or the context"
    if point.broken == OVERLOAD:
        return f"at {load} more arrives than can be served: the queue grows without end"
    if point.broken == "kv thrash":
        share = summary["preemptions"] / summary["requests"]
        return f"at {load} the KV pool runs over: {share:.2g} preemptions for each request"
    if point.broken == "clients leave":
        left = summary["left"] / (summary["requests"] + summary["left"])
        return f"at {load} {left:.0%} of the clients leave before their first token"
    metric, statistic = point.broken.split()[:2]
    value = summary[f"{metric}_{statistic}_ms"]
    text = f"at {load} {metric} {statistic} reaches {value:,.0f} ms"
    if metric in ("tpot", "itl"):
        most = counted_unit(round(summary["batch_max"]), "requests")
        return f"{text}: steps of up to {most} and the prompts beside them take too long"
    if summary["queue_mean_ms"] > 0.5 * summary["ttft_mean_ms"]:
        if summary["batch_max"] >= service.settings.running_limit:
            return f"{text}: requests wait for one of the {service.settings.running_limit} places (max_num_seqs)"
        if summary["kv_occupancy_max"] > 0.85:
            return f"{text}: requests wait for free blocks of the KV pool"
        return f"{text}: requests wait for their turn to be prefilled"
    return f"{text}: prompts take too long"
