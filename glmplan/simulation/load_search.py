"""Search of the largest load that meets an SLO.

Loads are tried until the saturation of each service is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from glmplan.simulation.forked_worker import forked_worker
from glmplan.simulation.load_trial import (
    FULL,
    JUMPS,
    MEANS,
    OPEN,
    OVERLOAD,
    PERCENTILES,
    POOL,
    SETTLED,
    THRASH,
    UNFINISHED,
    Breaks,
    DrawnEdges,
    InFlight,
    LoadPoint,
    SafeLoad,
    Trial,
    capacity,
    enough,
    in_flight,
    places,
    try_load,
    unit_of,
    why_broken,
)
from glmplan.simulation.seeds import stream_seed
from glmplan.simulation.simulate import Service
from glmplan.simulation.traffic.slo import Target
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import Ratio

__all__ = [
    "BENDING",
    "BORDER",
    "CLOSE",
    "DRAWS",
    "ENOUGH",
    "EdgeSearch",
    "LoadSearch",
    "LoadTries",
    "Tries",
    "most_placed",
    "place_of",
]


# Saturation load of one service: the secant method on the SLO margin over the load, from a guess on.

#: share of a load to which rates are bracketed where no line tells them better [-]
CLOSE = 0.01
#: share of a load from the one tried last within which a line is believed [-]
_NEAR = 0.006
#: and that of preemptions: they come in lumps [-]
_NEAR_POOL = 0.08
#: share of a load that two points of a line are apart at least: nearer ones differ by chance [-]
_APART, _POOL_APART = 0.01, 0.05
#: what is broken of times that grow without end as a queue does, where a target begins so
_QUEUES = ("ttft", "queue")
#: and of those that some load on multiplies: tokens late by a prompt become more than a percentile leaves out
BENDING = (*_QUEUES, "itl")
#: logarithm over its bound from which such a time tells of no load but its own, because a queue grew all through the
#: run from some load on; and how near to the bound it must be for a line to be believed that bends so [-]
_GROWN, _NEAR_BOUND = 0.5, 0.05
#: share of a load from the end within which such a time is a line, and pairs of loads that tell it, so far apart [-]
_BESIDE_END, _PAIRS, _PAIR_APART = 0.1, 5, 0.04
#: just below what is served at most: a load that is kept there is kept up to it [-]
_BELOW_FULL = 0.992
#: least rate that is looked at, and as a share of what is served at most: hardly ever two meet there [1/s] and [-]
_LEAST, _LEAST_SHARE = 1e-6, 1e-4
#: logarithm over its bound within which a target tells of loads nearby; beyond, preemptions are few, or all [-]
_TOLD, _POOL_TOLD = 3.0, (-2.0, 1.0)
#: and within which one may be what breaks where another came nearest [-]
_BESIDE = 0.7
#: first step from a guess that is known to be near [-]
_FORETOLD = 1.1
#: loads between brackets that are chosen by lines before the rest is halved [-]
_LINES = 5


@dataclass(slots=True)
class EdgeSearch:
    """A search for the load at which one service breaks.

    Examples
    --------
    >>> from glmplan.simulation.load_trial import Trial
    >>> tried = []
    >>> def at(load):
    ...     tried.append(load)
    ...     margin = 0.2 * (load - 8.0)
    ...     return Trial(load, margin, "tpot" if load > 8 else "", {}, nearest="tpot", margins={"tpot": margin})
    >>> round(EdgeSearch(at, 1e6, whole=False).find(1.0), 3), len(tried)
    (8.0, 3)
    """

    at: Callable[[float], Trial]  # tries a load
    limit: float  # largest load to look at, [-] or [1/s]
    whole: bool  # True if loads are numbers of users
    full: float = math.inf  # load from which on more arrives than is served, [1/s]
    #: slope of each target over the load, from other samples: see `slopes`, [1/load]
    rise: dict[str, float] = field(default_factory=dict)
    #: trials under other arrival samples: together they give the slope of preemptions
    others: list[list[Trial]] = field(default_factory=list)
    close: float = CLOSE  # share of a load to which it is bracketed, [-]
    near: float = _NEAR  # share of a load from the one tried last within which a line is believed, [-]
    stride: float = 2.0  # first step from a guess without a slope; smaller if other samples predict the load, [-]
    seen: list[Trial] = field(default_factory=list)
    low: Trial | None = None
    high: Trial | None = None
    breaks: str = ""  # target that is missed at the saturation load

    def find(self, guess: float) -> float:
        """Find the load.

        - `guess`: A first load to try, [-] or [1/s].
        - Returns: Between the last load that is kept and the first that is not; 0 if none is kept, the limit if all
          are, [-] or [1/s].
        """
        load, stride, inside = self._possible(guess), self.stride, 0
        while True:
            one = self._try(load)
            low, high = self.low, self.high
            if low is not None and low.load >= self.limit:
                return low.load
            if high is not None and high.load <= self._least:
                return 0.0
            told = self._aim()
            if low is not None and high is not None:
                if high.load - low.load <= self._narrow(high):
                    self.breaks = high.broken
                    return self._between(low, high)
                inside += 1
            if told is not None and self._told(one, told):
                self.breaks = told[0]
                return min(max(told[1], low.load if low else 0.0), high.load if high else self.limit)
            aim = told[1] if told is not None else None
            if low is not None and high is not None:
                load = self._inside(low, high, aim if inside <= _LINES else None)
                continue
            aim = self._by_capacity(one, stride) if aim is None else aim
            if low is not None:
                load = self._above(low, aim, stride)
                stride = min(stride * stride, 8.0)
            else:
                load = self._below(one, aim, stride)
                stride = min(stride * stride, 8.0)

    def _narrow(self, high: Trial) -> float:
        """Return the width of the bracket: one user, else a share of the load."""
        if not self.whole:
            return self.close * high.load
        return max(1.0, self.close * high.load) if self.near > _NEAR else 1.0

    def _told(self, one: Trial, aim: tuple[str, float]) -> bool:
        """Return True if the last load is so near that its line is exact enough."""
        if self.whole and self.near <= _NEAR:
            return False  # it lies between two users who are both tried
        nearest = all(abs(one.margin) <= abs(other.margin) for other in self.seen)
        near = min(self.near, _NEAR_POOL) if aim[0] == THRASH else self.near
        pools = (two.load for seen in self.others for two in seen if two.broken == THRASH)
        if aim[0] != THRASH and min(pools, default=math.inf) <= aim[1]:
            near = min(near, _NEAR)  # a pool that runs over shows in no line of another target
        if aim[0].startswith(BENDING) and not self.whole:
            known = self.near <= _NEAR or _steepness([*self.others, self.seen], aim[0]) > 0
            if not known or abs(one.margin) > _NEAR_BOUND:
                return False
        return nearest and _tells(one, aim[0]) and abs(aim[1] - one.load) <= near * one.load

    @property
    def _least(self) -> float:
        if self.whole:
            return 1.0
        return _LEAST if self.full == math.inf else max(_LEAST, _LEAST_SHARE * self.full)

    def _possible(self, load: float) -> float:
        load = max(min(load, self.limit, self.full * _BELOW_FULL), self._least)
        return float(round(load)) if self.whole else load

    def _try(self, load: float) -> Trial:
        """Try a load and note it where it narrows the bracket."""
        one = self.at(load)
        self.seen.append(one)
        if one.margin <= 0:
            self.low = one if self.low is None or load > self.low.load else self.low
        elif self.high is None or load < self.high.load:
            self.high = one
        return one

    def _between(self, low: Trial, high: Trial) -> float:
        """Where it breaks inside a bracket that is narrow enough."""
        if not high.broken.startswith(BENDING) or high.margin < _GROWN or high.broken not in low.margins:
            return _zero(low, high)
        # the queue begins to grow somewhere, at the latest where the time would have broken without
        told = sorted((one for one in self.seen if _tells(one, high.broken)), key=lambda one: -one.load)
        slope = _slope(told, high.broken) if told else 0.0
        last = low.load - low.margins[high.broken] / slope if slope > 0 else high.load
        return (low.load + min(last, high.load)) / 2

    def slopes(self) -> dict[str, float]:
        """Return the known slope of each target over the load near its end.

        Returns: Slope of the line through the logarithms of a target over its bound at the two loads nearest to the
          end; of preemptions, of which there are many times more at a little more load, and of waits, through all
          that tell, also under other draws, [1/load].
        """
        found = dict(self.rise)
        for name in {name for one in self.seen for name in one.margins}:
            told = sorted((one for one in self.seen if _tells(one, name)), key=lambda one: abs(one.margins[name]))
            pooled = _steepness([*self.others, self.seen], name) if name.startswith((THRASH, *BENDING)) else 0.0
            slope = pooled if pooled or name == THRASH or not told else _slope(told, name)
            if slope > 0:
                found[name] = slope
        return found

    def _aim(self) -> tuple[str, float] | None:
        """Return the target that the slopes say is missed first, and its load.

        It is None without a slope for the nearest target.
        """
        smooth = [one for one in self.seen if _tells(one, one.nearest)]
        one = min(smooth, key=lambda one: abs(one.margin), default=None)
        slopes, aims = self.slopes(), list[tuple[float, str]]()
        if one is None or one.nearest not in slopes:
            return None
        for name, slope in slopes.items():
            told = [two for two in self.seen if _tells(two, name)]
            near = min(told, key=lambda two: abs(two.margins[name]), default=None)
            if near is not None and (name == one.nearest or abs(near.margins[name]) < _BESIDE):
                aims.append((near.load - near.margins[name] / slope, name))
        aim, name = min(aims)
        return name, aim

    def _by_capacity(self, one: Trial, stride: float) -> float | None:
        """Return the load at which one trial says that the SLO is just met.

        It is None if that trial is too far.

        Times of a queue grow like one over what is left of its capacity.
        """
        if self.full == math.inf or one.load >= self.full or not one.nearest.startswith(_QUEUES):
            return None
        aim = self.full - (self.full - one.load) * math.exp(one.margin)
        return aim if aim * stride >= one.load else None

    def _above(self, low: Trial, aim: float | None, stride: float) -> float:
        """The next load where all were kept."""
        most = low.load * stride
        load = most if aim is None else min(max(aim, low.load * (1 + self.close)), most)
        served = self.full * _BELOW_FULL
        if load >= served:
            # no more than is served can be kept: that is known without a simulation
            load = served if low.load < served else self.full
        load = max(load, low.load + 1.0) if self.whole else load
        return float(min(math.floor(load), self.limit)) if self.whole else min(load, self.limit)

    def _below(self, high: Trial, aim: float | None, stride: float) -> float:
        """The next load where none was kept."""
        if aim is not None and aim <= self._least and self.stride > _FORETOLD:
            return self._least  # no load at all seems to be kept: that is seen at the least
        least = high.load / stride
        load = least if aim is None else max(min(aim, high.load * (1 - self.close)), least)
        load = min(load, self.full * _BELOW_FULL)
        load = min(math.floor(load), high.load - 1.0) if self.whole else load
        return float(max(load, self._least))

    def _inside(self, low: Trial, high: Trial, aim: float | None) -> float:
        """The next load inside a bracket."""
        width, served = high.load - low.load, self.full * _BELOW_FULL
        if aim is None or not low.load < min(aim, served) < high.load:
            aim = low.load + 0.5 * width
        if self.whole:
            return float(min(max(round(aim), low.load + 1), high.load - 1))
        edge = min(0.1 * width, self.close / 2 * high.load)
        return min(max(min(aim, served), low.load + edge), high.load - edge)


def _tells(one: Trial, name: str) -> bool:
    """Return True if a target says something of nearby loads.

    Clients leave at once, and overload has no length.
    """
    margin = one.margins.get(name, -math.inf)
    if name == THRASH:
        return _POOL_TOLD[0] < margin < _POOL_TOLD[1]
    most = _GROWN if name.startswith(BENDING) else _TOLD
    return -_TOLD < margin < most and (one.broken == THRASH or one.broken not in JUMPS)


def _slope(told: list[Trial], name: str) -> float:
    """Return the slope of the line through two trials far enough apart."""
    one = told[0]
    other = next((two for two in told[1:] if abs(two.load - one.load) > _APART * one.load), None)
    return 0.0 if other is None else (other.margins[name] - one.margins[name]) / (other.load - one.load)


def _steepness(draws: list[list[Trial]], name: str) -> float:
    """Return the pooled slope of lines, one for each arrival sample."""
    across = along = most = 0.0
    bends = name.startswith(BENDING)
    for seen in draws:
        told = [one for one in seen if _tells(one, name)]
        if bends and told:
            end = min(told, key=lambda one: abs(one.margins[name])).load
            told = [one for one in told if abs(one.load - end) <= _BESIDE_END * end]
        if len(told) < 2:
            continue
        # sums of squares by hand: the module `statistics` does them in fractions, a hundred times slower
        loads, logs = [one.load for one in told], [one.margins[name] for one in told]
        middle = math.fsum(loads) / len(loads)
        apart = [load - middle for load in loads]
        # counts of fewer requests scatter more
        weight = told[0].summary.get("requests", SETTLED) / SETTLED
        across += weight * math.fsum(one * one for one in apart)
        along += weight * math.fsum(one * log for one, log in zip(apart, logs, strict=True))
        most = max(most, *loads)
    # few pairs of loads tell little: those that differ by chance give no line
    pairs, far = (_PAIRS, _PAIR_APART) if bends else (1, _POOL_APART)
    return along / across if across > pairs * 0.5 * (far * most) ** 2 else 0.0


def _zero(low: Trial, high: Trial) -> float:
    """Where the margin vanishes between two loads if it is straight."""
    one, two = low.margin, high.margin
    share = -one / (two - one) if two > one else 0.5
    return low.load + (high.load - low.load) * min(max(share, 0.0), 0.999)


# Cache of trials of services under loads, and the saturation load of one of them.

#: services of different speed that are drawn from what is not known [-]
DRAWS = 20
#: stands for the service that 5 of 100 are slower than
BORDER = DRAWS
#: arrival samples over which the margin of that service is averaged [-]
ARRIVAL_SAMPLES = 16
#: requests that are judged where it is only looked for where to begin, and how near to the end that is [-]
_ROUGH, _NEAR_ROUGH = 300, 0.1


@dataclass
class Tries:
    """Cache of trials of the same services, traffic, SLO and seed."""

    #: (service, draw of the arrivals, load) → what the simulation of it did
    trials: dict[tuple[int, int, float], Trial] = field(default_factory=dict)
    #: users that are known to be safe for uniform requests, to begin with if no pool decides, [-]
    start: float | None = None
    copied: bool = False  # True if a copy of this process may try every other draw of the arrivals


@dataclass(slots=True)
class LoadTries:
    """Services under loads; remembers what was tried."""

    variants: list[Service]  # services within the interval, slowest first
    traffic: Traffic
    targets: tuple[Target, ...]  # the SLO
    limit: float  # largest load to look at, [-] or [1/s]
    seed: int
    late: tuple[float, ...] = ()  # of each service, how much later its first tokens come than its steps say, [-]
    served: float = math.inf  # capacity of the service as predicted, [1/s]
    why_limited: str = ""
    tried: dict[tuple[int, int, float], Trial] = field(default_factory=dict)
    known: Tries = field(default_factory=Tries)  # trials of other searches
    #: the service that 5 of 100 are slower than, where the services are parts of a spread of speeds
    border: Service | None = None
    border_late: float = 1.0  # how much later its first tokens come than its steps say, [-]
    #: share of the services that have to meet the SLO
    probability: Ratio = 0.95
    #: service in the middle; step time and TTFT of a share of the services, relative to its own, at so many users
    middle_service: Service | None = None
    by_users: Callable[[float, Ratio], tuple[Ratio, Ratio]] | None = None
    #: requests of an open stream that are judged
    settled: int = SETTLED

    def __post_init__(self) -> None:
        if self._whole:
            # a part of a user is never tried, and would never be reached
            self.limit = float(max(math.floor(self.limit), 1))

    @property
    def _whole(self) -> bool:
        """Return True if loads are numbers of users."""
        return self.traffic.users is not None

    def _bound(self, service: Service) -> None:
        """Limit the load by throughput or by the concurrency of the engine."""
        rates = self.traffic.kind in OPEN or (self.traffic.kind == "sessions" and not self._whole)
        if rates and self.served == math.inf:
            self.served = capacity(service, self.traffic)
            self.settled = enough(self.traffic, self.served)
        if (most := most_placed(service, self.traffic, self.targets)) < self.limit:
            self.limit = most
            room = places(service)
            self.why_limited = f": further ones wait for one of {room} places (max_num_seqs), outside the SLO"

    def _start(self, service: Service) -> float:
        """A first load to try."""
        if self._whole or self.traffic.kind == "trace":
            return 1.0
        return min(self.limit, self.served / 2) if self.served > 0 else 1.0

    def _at(self, which: int, load: float, draw: int = 0, *, verdict: bool = False) -> Trial:
        """Try a load on one of the services, once."""
        key = (which, draw, load)
        found = self.known.trials.get(key)
        if found is None or (found.margin == UNFINISHED and not verdict):
            found = self.known.trials[key] = self._try(which, load, draw, verdict=verdict)
        if found.margin != UNFINISHED:
            self.tried[key] = found
        return found

    def _try(
        self, which: int, load: float, draw: int = 0, *, verdict: bool = False, settled: int | None = None
    ) -> Trial:
        service, late = self._service(which), 1.0
        if self.by_users is not None and self.middle_service is not None and self._whole:
            share = self.probability if which == BORDER else 1.0 - (which + 0.5) / len(self.variants)
            step, wait = self.by_users(load, share)
            scaled = self.middle_service.scaled(step)
            service, late = replace(scaled, pool=service.pool, settings=service.settings), wait / step
        elif which == BORDER:
            late = self.border_late
        elif self.late:
            late = self.late[which]
        # all times scale with the factor of the service, and what it serves at most with its inverse
        most = self.served / self._speed(which)
        return try_load(
            service, self.traffic, self.targets, load, self._seed(which, draw),
            most=most, late=late, verdict=verdict, settled=settled or self.settled,
        )  # fmt: skip

    def _seed(self, which: int, draw: int) -> int:
        """Return the seed of one arrival sample of one service."""
        return stream_seed(self.seed, which, draw)

    def _service(self, which: int) -> Service:
        return self.border if which == BORDER and self.border is not None else self.variants[which]

    def _speed(self, which: int) -> float:
        middle = self.variants[len(self.variants) // 2].table
        row, column = middle.max_requests // 2 or 1, len(middle.context) // 2
        return float(self._service(which).table.decode[row, column] / middle.decode[row, column])

    def _edge(self, which: int, guess: float) -> float:
        """Return the saturation load of one service, or 0.

        It lies between the last load that is met and the first that is not.
        """
        return self._follow(which).find(guess)

    def _follow(self, which: int, draw: int = 0, *, rough: bool = False) -> EdgeSearch:
        """Search of the saturation load of one service under one arrival sample."""
        full = math.inf if self._whole else self.served / self._speed(which)
        if rough:
            judged = _ROUGH * self.settled // SETTLED
            few = EdgeSearch(lambda load: self._try(which, load, draw, settled=judged), self.limit, self._whole, full)
            few.near = few.close = _NEAR_ROUGH
            return few
        return EdgeSearch(lambda load: self._at(which, load, draw), self.limit, self._whole, full)

    @property
    def alike(self) -> bool:
        """Return True if only the interval of the service is random."""
        drawn = self.traffic.lengths or self.traffic.jitter or self.traffic.input_cv or self.traffic.output_cv
        return self.traffic.kind == "closed" and not drawn

    def roomy(self, load: Ratio) -> bool:
        """Return True if the smallest pool holds a whole request of every user.

        It is for uniform requests; one user more is counted for each replica, because their shares may differ.
        """
        service, traffic = self.variants[0], self.traffic
        replicas = service.settings.replicas - service.settings.prefill_replicas
        pool = min(one.pool.tokens for one in self.variants)
        length = traffic.input + traffic.output + service.pool.block_size
        return (math.ceil(load / replicas) + 1) * length <= pool


class _Draws(NamedTuple):
    """Number of arrival samples under which a service is followed.

    There is a first one, and pairs of others.
    """

    least: int
    most: int
    #: standard error of the logarithm of the load that suffices [-]
    error: float
    #: share of a load within which a line is believed that finds one; more of many, whose errors are evened out [-]
    near: float


class _Draw(NamedTuple):
    """A draw of the arrivals, and what is known of it before it is followed."""

    draw: int
    #: where it will break, as the others say
    guess: float
    rise: dict[str, float]
    near: float
    #: draws of which is known already what was tried, and of those since
    known: int
    news: list[list[Trial]]


class _Drawn(NamedTuple):
    """Saturation load of a service under a sample, its cause, and the trials."""

    draw: int
    end: float
    breaks: str
    rise: dict[str, float]
    seen: list[Trial]


@dataclass(slots=True)
class _Follower:
    """Follows one draw after the other; remembers what was tried under them."""

    search: LoadSearch
    others: list[list[Trial]]

    def __call__(self, job: _Draw) -> _Drawn:
        self.others[job.known :] = job.news
        return self.search.drawn(job, self.others)


#: loads at which means miss the SLO, percentiles do, a pool runs over, and loads under bursts
_OF_MEANS, _OF_PERCENTILES = _Draws(5, 13, 0.0075, 0.05), _Draws(7, 65, 0.005, 0.08)
#: and where a time does that grows at once from some load on
_OF_BENDING = _Draws(9, 97, 0.0042, 0.05)
_OF_POOLS, _OF_BURSTS = _Draws(11, 25, 0.0055, 0.06), _Draws(17, 129, 0.004, 0.08)
#: distance of the first saturation load from the usual one within which numbers in flight under it hold for all [-]
_FAR = 0.05
#: share of a load to which each draw is bracketed where no line tells it, and its first step [-]
_CLOSE, _STRIDE = 0.041, 1.04
#: share of a pool in use up to which it is nowhere near running over
_ROOMY = 0.7
#: arrival samples of conversations under which services are tried: first, and at most where the share is near [-]
_SAMPLES, _MOST_SAMPLES = 3, 9
#: services in a row, from the slow end, that meet the SLO: the rest then does [-]
ENOUGH = 4
#: margin of a service from which the next one, which is quicker, hardly ever meets the SLO [-]
_BY_FAR = 0.1
#: standard error of a load below which it is known well enough, in users who are there at once [-]
_OF_A_USER = 0.003
#: where no stream arrives, how many are there at once is no chance of it
_NOBODY = np.zeros(3)
#: draws from which it is seen whether the first one is far from what is usual [-]
_AT_FIRST = 20
_STEP = 0.03  # between rates at which services are tried


def most_placed(service: Service, traffic: Traffic, targets: Sequence[Target]) -> float:
    """Return the users from which requests wait for a place, outside the SLO.

    Infinite where the SLO has a time that counts waiting, or users pause.
    """
    waits = any(target.metric in ("ttft", "e2e", "queue") for target in targets)
    if traffic.users is None or waits or traffic.think:
        return math.inf
    at_work = 1.0 if traffic.kind == "closed" else 4.0  # agents wait for their tools between turns
    return float(math.ceil(at_work * places(service)))


@dataclass(slots=True)
class LoadSearch(LoadTries):
    """A search for the largest safe load."""

    def largest(self, service: Service) -> SafeLoad:
        """The largest load that is safe."""
        self._bound(service)
        if self.traffic.kind == "sessions":
            slow = BORDER if self.border is not None else min(1, len(self.variants) - 1)
            load = self._counted(max(self._edge(slow, self._start(service)), 1.0 if self._whole else 1e-6))
        elif self.border is None:
            load = self._edge(min(1, len(self.variants) - 1), self._start(service))
        elif self.recorded:
            load = self._edge(BORDER, self._start(service))
        elif self.traffic.kind == "closed" and self.traffic.uniform:
            start = self.known.start if self.roomy(self.limit) else None
            load = self._edge(BORDER, self._start(service) if start is None else start)
        else:
            load = self._of_the_border(self._start(service))
        return self._answer(load, service)

    def foreseen(self, service: Service) -> float:
        """Return about the load of `largest` for a rate, else 0.

        From few arrival samples instead of as many as the load takes to be known.
        """
        self._bound(service)
        if self._whole or self.border is None or self.recorded:
            return 0.0
        start = self._start(service)
        return self._edge(BORDER, start) if self.traffic.kind == "sessions" else self._sampled(start)[1]

    def trials(self, service: Service, load: float) -> Iterator[Trial]:
        """Try one load on one service after the other, the slowest first.

        `load`: The load, [-] or [1/s].
        """
        self._bound(service)
        for place in range(len(self.variants)):
            yield self._at(place, load)

    def trial(self, service: Service, load: float, place: int) -> Trial:
        """Try one load on one of the services.

        `load`: The load, [-] or [1/s].
        """
        self._bound(service)
        return self._at(place, load)

    def border_margin(self, service: Service, load: float) -> Ratio:
        """Return the SLO margin at the 95 % level, the mean over arrival samples.

        `load`: The load, [-] or [1/s].
        """
        self._bound(service)
        samples = 1 if self.recorded or self.alike and self.traffic.uniform else ARRIVAL_SAMPLES
        return float(np.mean([self._at(BORDER, load, sample).margin for sample in range(samples)]))

    def breaks(self, service: Service, load: float, place: int) -> bool:
        """Return True if a service misses the SLO under a load.

        `load`: The load, [-] or [1/s].
        """
        self._bound(service)
        return self._at(place, load, verdict=True).margin > 0

    def middle(self, load: float) -> Trial:
        """Try one load on the service in the middle.

        `load`: The load, [-] or [1/s].
        """
        return self._at(len(self.variants) // 2, load)

    @property
    def recorded(self) -> bool:
        """Return True if recorded arrivals are judged once at the 95 % step time."""
        return self.traffic.kind == "trace" and self.border is not None

    def _of_the_border(self, start: float) -> float:
        """Return the load that 5 of 100 services cannot serve within the SLO.

        It is the one at which the service breaks that 5 of 100 are slower than, in the mean over arrivals; and a little
        below, because by chance of their arrivals slightly quicker ones break there too.
        """
        first, end = self._sampled(start)
        if end == 0.0 or end >= self.limit:
            return end
        # at which load a draw breaks follows how many are there at once in it: of that, what is usual is known
        last, rise = self._nearest(end, 0), first.slopes()
        breaks = self._breaks(first.breaks)
        # numbers in flight under the load of a first sample that is far from usual do not hold for all
        at_first = self._edges_of(self._in_flight(end, last, breaks, draws=_AT_FIRST), end, breaks)
        usual = math.exp(at_first.mean) if abs(at_first.mean - math.log(end)) > _FAR else end
        there = self._in_flight(usual, last, breaks)
        edges = self._edges_of(there, end, breaks)
        steep = [self._slope(end, first.breaks, rise)]
        plan, known, news = self._draws(first.breaks), 0, [*first.others, first.seen]
        # with few users in flight a part of a user is a large share
        close = _OF_A_USER / max(usual * last.summary.get("e2e_mean_ms", 0.0) * 1e-3, _OF_A_USER)
        with forked_worker(_Follower(self, []), copied=self.known.copied) as two:
            while (draw := len(edges.logs)) < plan.most:
                if draw >= plan.least and edges.error <= max(plan.error, close):
                    break
                overs = [
                    there.over(self._seed(BORDER, one)) if there is not None else _NOBODY for one in (draw, draw + 1)
                ]
                one, other = (
                    _Draw(draw + place, edges.guess(over), rise, plan.near, known, news)
                    for place, over in enumerate(overs)
                )
                known, news = known + len(news), []
                for over, found in zip(overs, two.both(one, other), strict=True):
                    self._note(found)
                    if found.end == 0.0 or found.end >= self.limit:
                        result: float = found.end
                        return result
                    rise, news = found.rise | rise, [*news, found.seen]
                    edges.add(found.end, over)
                    if plan is _OF_MEANS and found.breaks == THRASH:
                        plan = _OF_POOLS
                    steep.append(self._slope(found.end, found.breaks, rise))
        slope = float(np.mean(steep))
        depth = NormalDist().inv_cdf(self.probability)
        found = math.exp(edges.mean - depth * (math.sqrt(slope**2 + edges.chance) - slope))
        # somewhere above it something breaks that can be named
        above = found
        while above < self.limit and not any(one.load > found and one.margin > 0 for one in self.tried.values()):
            above = min(float(math.floor(above)) + 1.0 if self._whole else above * _STRIDE, self.limit)
            self._at(BORDER, above)
        return found

    def _sampled(self, start: float) -> tuple[EdgeSearch, float]:
        """Follow the service at the 95 % level under the first arrival sample."""
        first = self._follow(BORDER)
        if not self._whole:
            rough = self._follow(BORDER, rough=True)
            start = rough.find(start) or start
            first.near, first.close, first.stride = self._draws(rough.breaks).near, _CLOSE, _STRIDE
            first.rise, first.others = rough.slopes(), [rough.seen]
        return first, first.find(start)

    def drawn(self, job: _Draw, others: list[list[Trial]]) -> _Drawn:
        """Follow the service at the 95 % level to its saturation load.

        It is under one arrival sample.
        """
        search = self._follow(BORDER, job.draw)
        search.others, search.rise, search.near = others, job.rise, job.near
        search.close, search.stride = _CLOSE, _STRIDE
        end = search.find(job.guess)
        return _Drawn(job.draw, end, search.breaks, search.slopes(), search.seen)

    def _note(self, found: _Drawn) -> None:
        """Remember what was tried under a draw, here or in another process."""
        for trial in found.seen:
            key = (BORDER, found.draw, trial.load)
            self.tried[key] = self.known.trials[key] = trial

    def _breaks(self, name: str) -> Breaks:
        """How a target breaks."""
        if name in (THRASH, OVERLOAD):
            return POOL if name == THRASH else FULL
        return PERCENTILES if any(str(one) == name and one.statistic != "mean" for one in self.targets) else MEANS

    def _draws(self, name: str) -> _Draws:
        """Return the number of arrival samples for a service that misses a target."""
        if self.settled > SETTLED:
            return _OF_BURSTS
        if name.startswith(BENDING):
            return _OF_BENDING
        return {FULL: _OF_MEANS, MEANS: _OF_MEANS, PERCENTILES: _OF_PERCENTILES, POOL: _OF_POOLS}[self._breaks(name)]

    def _in_flight(self, load: float, tried: Trial, breaks: Breaks, **draws: int) -> InFlight | None:
        """Return the numbers in flight under a load; None without a stream.

        Requests stay as long as in a trial.
        """
        service = self._service(BORDER)
        room = service.pool.tokens * (service.settings.replicas - service.settings.prefill_replicas)
        stay = tried.summary.get("e2e_mean_ms", 0.0) * 1e-3
        return in_flight(self.traffic, load, stay, self.settled, room if breaks is POOL else 0.0, **draws)

    def _edges_of(self, there: InFlight | None, end: float, breaks: Breaks) -> DrawnEdges:
        """Where draws break, of which the first is known."""
        edges = DrawnEdges(there.spread if there is not None else np.zeros((3, 3)), breaks)
        edges.add(end, there.over(self._seed(BORDER, 0)) if there is not None else _NOBODY)
        return edges

    def _slope(self, load: float, name: str, rise: dict[str, float]) -> float:
        """Return the slope of the log saturation load over the rank of speed, [-]

        A service that is slower in everything does at a lower load what a quicker one does, only later. How many are
        preempted does not scale with the times of a service.
        """
        slower = math.log(self._speed(0) / self._speed(1)) / (place_of(0) - place_of(1))
        if name == THRASH or name not in rise:
            return slower
        return slower * (1.0 + 1.0 / (load * rise[name]))

    def _nearest(self, load: float, draw: int) -> Trial:
        """Return the trial nearest to a load under one arrival sample."""
        tried = (key for key in self.tried if key[:2] == (BORDER, draw))
        return self.tried[min(tried, key=lambda key: abs(key[2] - load))]

    def shared(self, service: Service, load: float, least: Ratio) -> tuple[Ratio, str]:
        """Return `share` of a service, with all parts of the spread."""
        self._bound(service)
        return self.share(load, least, evicts=True)

    def share(self, load: float, least: Ratio, *, evicts: bool) -> tuple[Ratio, str]:
        """Return the share of services that meet the SLO, the mean over arrivals.

        Conversations are random even at a fixed number of users, so that every service is tried under several arrival
        samples. Their margins are straight between one service and the next; the one at the level of the probability is
        among them. If several services in a row meet the SLO, all faster services do.

        More arrival samples are tried while the mean is within two standard errors of the probability.

        - `least`: The result is an upper bound where it is below.
        - `evicts`: Simulate faster services too, because a pool that evicts requests may do so at any speed.
        - Returns: The share, and the target that the last service that fails misses most.
        """
        rows = [(place_of(which, len(self.variants)), which) for which in range(len(self.variants))]
        if self.border is not None:
            rows.append((NormalDist().inv_cdf(self.probability), BORDER))
        rows.sort(reverse=True)
        missed, broken = list[float](), ""
        for draw in range(_MOST_SAMPLES):
            if draw >= _SAMPLES:
                apart = abs(float(np.mean(missed)) - 1.0 + self.probability)
                if apart >= 2.0 * float(np.std(missed, ddof=1)) / draw**0.5:
                    break
            told: list[tuple[float, float]] = []
            passes, before, last = 0, BORDER, 0.0
            for place, which in rows:
                # behind a service that misses the SLO by far the verdict suffices; beside one that meets it the margin
                trial = self._at(which, load, draw, verdict=last == UNFINISHED or last > _BY_FAR)
                if last == UNFINISHED and trial.margin <= 0:
                    whole = self._at(before, load, draw)
                    told[-1], broken = (told[-1][0], whole.margin), whole.broken
                before, last = which, trial.margin
                told.append((place, last))
                broken = trial.broken if trial.margin > 0 else broken
                if (sum(missed) + _missed(told)) / _MOST_SAMPLES > 1.0 - least + 1e-9:
                    return 1.0 - (sum(missed) + _missed(told)) / _MOST_SAMPLES, broken
                roomy = not evicts or trial.summary.get("kv_occupancy_max", 1.0) < _ROOMY
                passes = passes + 1 if trial.margin <= 0 and roomy else 0
                if passes >= ENOUGH:
                    missed.append(_missed(told))
                    break
            else:  # all that are quicker than the last one do as it does
                broken = self._at(before, load, draw).broken or broken
                missed.append(_missed(told) + NormalDist().cdf(told[-1][0]) * (told[-1][1] > 0))
        return 1.0 - float(np.mean(missed)), broken

    def _counted(self, guess: float) -> float:
        """Return the largest load that enough of the services meet.

        It is bracketed from a guess on, and no smaller than a load that is known to be met.
        """
        start = self.known.start if self._whole and self.known.start is not None else 0.0
        least, first = (1.0, float(max(math.floor(guess + 1e-9), start))) if self._whole else (1e-6, guess)

        def at(place: int) -> float:
            return first + place if self._whole else first * (1 + _STEP) ** place

        def keeps(place: int, *, evicts: bool = False) -> bool:
            load = at(place)
            return load < least or (
                load <= self.limit and self.share(load, self.probability, evicts=evicts)[0] >= self.probability - 1e-9
            )

        low, high, stride, known = (0, 1, 1, 0) if keeps(0) else (-1, 0, -1, int(start - first) if start else None)
        while keeps(high if stride > 0 else low) == (stride > 0):
            stride *= 2
            low, high = (high, high + stride) if stride > 0 else (low + stride, low)
            low = low if known is None else max(low, known)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if keeps(middle) else (low, middle)
        while not keeps(low, evicts=True):
            low -= 1
        return at(low) if at(low) >= least else 0.0

    def _answer(self, load: float, service: Service) -> SafeLoad:
        """Say what was found."""
        safe = float(math.floor(load + 1e-9)) if self._whole else load
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
        shown: float = int(safe) if self._whole else safe
        broken = [one for one in points if one.load > safe and one.broken]
        unit = unit_of(self.traffic)
        if safe >= self.limit or not broken:
            return SafeLoad(shown, unit, "", f"nothing breaks up to {safe:g} {unit}{self.why_limited}", points)
        why, peak = why_broken(broken[0], service, unit), self.traffic.peak
        day = f"; judged is the busiest part of the day, with {peak:.3g} times the mean" if peak != 1.0 else ""
        return SafeLoad(shown, unit, broken[0].broken, why + day, points)


def place_of(which: int, count: int = DRAWS) -> float:
    """Return the place of an equal part of a spread in standard deviations."""
    return NormalDist().inv_cdf(1 - (which + 0.5) / count)


def _missed(told: Sequence[tuple[float, float]]) -> Ratio:
    """Return the share of services that miss an SLO, up to the last one tried.

    - `told`: Place in standard deviations and margin of services, slowest first. Margins are straight between two of
      them, and beyond the slowest two.

    Examples
    --------
    >>> round(_missed([(2.0, 0.1), (1.0, 0.1), (0.0, -0.1)]), 2), round(_missed([(1.0, -0.1), (0.0, -0.2)]), 2)
    (0.31, 0.02)
    """
    normal = NormalDist()
    (place, margin), found = told[0], 0.0
    if margin > 0 or len(told) == 1 or margin <= told[1][1]:
        found = (1.0 - normal.cdf(place)) * (margin > 0)
    else:
        found = 1.0 - normal.cdf(place + (place - told[1][0]) * -margin / (margin - told[1][1]))
    for (slow, more), (quick, less) in pairwise(told):
        border = quick + (slow - quick) * -less / (more - less) if (more > 0) != (less > 0) else slow
        if more > 0:
            found += normal.cdf(slow) - normal.cdf(quick if less > 0 else border)
        elif less > 0:
            found += normal.cdf(border) - normal.cdf(quick)
    return found
