"""The search for the largest load that keeps a promise: loads are tried until it is known where services break."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from glmplan.serving.crowding import CRESTS, FULL, MEANS, POOL, Breaks, Crowd, DrawnEdges
from glmplan.serving.load_answer import LoadPoint, SafeLoad, unit_of, why_broken
from glmplan.serving.load_edge import BENDING, EdgeSearch
from glmplan.serving.load_trial import (
    OPEN,
    OVERLOAD,
    SETTLED,
    THRASH,
    UNFINISHED,
    Trial,
    capacity,
    crowd,
    enough,
    places,
    try_load,
)
from glmplan.serving.service import Service
from glmplan.serving.traffic.promises import Target
from glmplan.serving.traffic.spec import Traffic
from glmplan.units import QUANTILE_90

__all__ = ["DRAWS", "ENOUGH", "LoadSearch", "Tries"]

#: services of different speed that are drawn from what is not known [-]
DRAWS = 20
#: stands for the service that 5 of 100 are slower than
_BORDER = DRAWS


class _Draws(NamedTuple):
    """Draws of the arrivals under which it is followed to where it breaks."""

    least: int
    most: int
    #: standard error of the logarithm of the load that suffices [-]
    error: float
    #: share of a load within which a line is believed that finds one; more of many, whose errors are evened out [-]
    near: float


#: where means break a promise, where crests do (percentiles), where a pool runs over, and under bursts
_OF_MEANS, _OF_CRESTS = _Draws(4, 12, 0.0075, 0.05), _Draws(7, 64, 0.0055, 0.08)
#: and where a time does that grows at once from some load on
_OF_BENDING = _Draws(8, 96, 0.0042, 0.05)
_OF_POOLS, _OF_BURSTS = _Draws(9, 18, 0.0065, 0.06), _Draws(16, 128, 0.004, 0.08)
#: how far from the usual load the first may break for the crowds under its load to be those of all
_FAR = 0.05
#: requests that are judged where it is only looked for where to begin, and how near to the end that is [-]
_ROUGH, _NEAR_ROUGH = 300, 0.1
#: share of a load to which each draw is bracketed where no line tells it, and its first step [-]
_CLOSE, _STRIDE = 0.041, 1.04
#: services that are counted at the answer, and how many of them may fail: 3 of 60 are 5 %
_COUNTED, _ALLOWED = 60, 3
#: services in a row, from the slow end, that keep a promise: the rest then does [-]
ENOUGH = 4
#: shares of an answer at which it is looked whether less is kept too [-]
_BELOW = (0.9, 0.75)
#: share of a pool in use up to which it is nowhere near running over
_ROOMY = 0.7
#: where no stream arrives, how many are there at once is no chance of it
_NOBODY = np.zeros(3)
#: draws from which it is seen whether the first one is far from what is usual [-]
_AT_FIRST = 20
_STEP = 0.03  # between rates at which services are counted


@dataclass
class Tries:
    """What was tried of the same services, traffic, promise and seed by other searches; what is tried is added.

    Attributes
    ----------
    trials : dict
        (service, draw of the arrivals, load) → what the simulation of it did.
    start : float or None
        Users who are known to be safe where all requests are alike, to begin with where no pool decides, [-]
    """

    trials: dict[tuple[int, int, float], Trial] = field(default_factory=dict)
    start: float | None = None


@dataclass(slots=True)
class LoadSearch:
    """A search for the largest safe load; remembers what was tried.

    Parameters
    ----------
    variants : list of Service
        What the service may be, slowest first.
    traffic : Traffic
        What arrives.
    targets : tuple of Target
        The promise.
    limit : float
        Largest load to look at, [-] or [1/s]
    seed : int
        Seed, [-]
    late : tuple of float, optional
        Of each service, how much later its first tokens come than its steps say, [-]
    served : float, optional
        What the service as predicted can serve, [1/s]
    known : Tries, optional
        What other searches tried.
    border : Service, optional
        The service that 5 of 100 are slower than, where the services are parts of a spread of speeds.
    border_late : float, optional
        How much later its first tokens come than its steps say, [-]
    """

    variants: list[Service]
    traffic: Traffic
    targets: tuple[Target, ...]
    limit: float
    seed: int
    late: tuple[float, ...] = ()
    served: float = math.inf
    why_limited: str = ""
    tried: dict[tuple[int, int, float], Trial] = field(default_factory=dict)
    known: Tries = field(default_factory=Tries)
    border: Service | None = None
    border_late: float = 1.0
    #: requests of an open stream that are judged
    settled: int = SETTLED

    def __post_init__(self) -> None:
        if self._whole:
            # a part of a user is never tried, and would never be reached
            self.limit = float(max(math.floor(self.limit), 1))

    def largest(self, service: Service) -> SafeLoad:
        """The largest load that is safe.

        Parameters
        ----------
        service : Service
            The service as predicted.

        Returns
        -------
        SafeLoad
            The load, and what breaks first.
        """
        self._bound(service)
        if self.traffic.kind == "sessions":
            load = self._edge(min(1, len(self.variants) - 1), self._start(service))
            load = self._counted(load) if load > 0 else 0.0
        elif self.traffic.kind == "trace" or len(self.variants) != DRAWS:
            load = self._edge(min(1, len(self.variants) - 1), self._start(service))
        elif self.border is None or (self.alike and self.traffic.plain):
            start = self.known.start if self.roomy(self.limit) else None
            load = self._between_the_slowest(self._start(service) if start is None else start)
        else:
            load = self._of_the_border(self._start(service))
        return self._answer(load, service)

    def trials(self, service: Service, load: float) -> Iterator[Trial]:
        """Try one load on one service after the other, the slowest first.

        Parameters
        ----------
        service : Service
            The service as predicted.
        load : float
            The load, [-] or [1/s]

        Yields
        ------
        Trial
            What each did.
        """
        self._bound(service)
        for place in range(len(self.variants)):
            yield self._at(place, load)

    def trial(self, service: Service, load: float, place: int) -> Trial:
        """Try one load on one of the services.

        Parameters
        ----------
        service : Service
            The service as predicted.
        load : float
            The load, [-] or [1/s]
        place : int
            Which, from the slowest on, [-]

        Returns
        -------
        Trial
            What it did.
        """
        self._bound(service)
        return self._at(place, load)

    def breaks(self, service: Service, load: float, place: int) -> bool:
        """Whether one of the services breaks the promise under a load: by how much is not looked at.

        Parameters
        ----------
        service : Service
            The service as predicted.
        load : float
            The load, [-] or [1/s]
        place : int
            Which, from the slowest on, [-]

        Returns
        -------
        bool
            As the margin of `trial` says.
        """
        self._bound(service)
        return self._at(place, load, verdict=True).margin > 0

    def middle(self, load: float) -> Trial:
        """Try one load on the service in the middle.

        Parameters
        ----------
        load : float
            The load, [-] or [1/s]

        Returns
        -------
        Trial
            What it did.
        """
        return self._at(len(self.variants) // 2, load)

    @property
    def _whole(self) -> bool:
        """Whether loads are numbers of users."""
        return self.traffic.users is not None

    def _bound(self, service: Service) -> None:
        """Find loads beyond which nothing is left to be seen: what is served at most, or the places in the engine."""
        rates = self.traffic.kind in OPEN or (self.traffic.kind == "sessions" and not self._whole)
        if rates:
            self.served = capacity(service, self.traffic)
            self.settled = enough(self.traffic, self.served)
        waits = any(target.metric in ("ttft", "e2e", "queue") for target in self.targets)
        room = places(service)
        if self._whole and not waits and room < self.limit and not self.traffic.think:
            at_work = 1.0 if self.traffic.kind == "closed" else 4.0  # agents wait for their tools between turns
            self.limit = min(self.limit, math.ceil(at_work * room))
            self.why_limited = f": further ones wait for one of {room} places (max_num_seqs), which is not promised"

    def _start(self, service: Service) -> float:
        """A first load to try."""
        if self._whole or self.traffic.kind == "trace":
            return 1.0
        return min(self.limit, self.served / 2) if self.served > 0 else 1.0

    def _at(self, which: int, load: float, draw: int = 0, *, verdict: bool = False) -> Trial:
        """Try a load on one of the services, once."""
        key = (which, draw, load)
        found = self.known.trials.get(key)
        if found is None:
            found = self._try(which, load, draw, verdict=verdict)
            if found.margin == UNFINISHED:
                return found
            self.known.trials[key] = found
        self.tried[key] = found
        return found

    def _try(
        self, which: int, load: float, draw: int = 0, *, verdict: bool = False, settled: int | None = None
    ) -> Trial:
        late = self.border_late if which == _BORDER else self.late[which] if self.late else 1.0
        # all times scale with the factor of the service, and what it serves at most with its inverse
        most = self.served / self._speed(which)
        return try_load(
            self._service(which), self.traffic, self.targets, load, self._seed(which, draw),
            most=most, late=late, verdict=verdict, settled=settled or self.settled,
        )  # fmt: skip

    def _seed(self, which: int, draw: int) -> int:
        """The seed of one draw of the arrivals at one service."""
        return self.seed * 1000 + which + DRAWS * draw

    def _service(self, which: int) -> Service:
        return self.border if which == _BORDER and self.border is not None else self.variants[which]

    def _speed(self, which: int) -> float:
        middle = self.variants[len(self.variants) // 2].table
        row, column = middle.max_requests // 2 or 1, len(middle.context) // 2
        return float(self._service(which).table.decode[row, column] / middle.decode[row, column])

    def _edge(self, which: int, guess: float) -> float:
        """The load at which one service breaks, between the last that is kept and the first that is not; 0 if none."""
        return self._follow(which).find(guess)

    def _follow(self, which: int, draw: int = 0, *, rough: bool = False) -> EdgeSearch:
        """A search for the load at which one service breaks under one draw of the arrivals."""
        full = math.inf if self._whole else self.served / self._speed(which)
        if rough:
            judged = _ROUGH * self.settled // SETTLED
            few = EdgeSearch(lambda load: self._try(which, load, draw, settled=judged), self.limit, self._whole, full)
            few.near = few.close = _NEAR_ROUGH
            return few
        return EdgeSearch(lambda load: self._at(which, load, draw), self.limit, self._whole, full)

    @property
    def alike(self) -> bool:
        """Whether nothing is left to chance but what is not known of the service."""
        drawn = self.traffic.lengths or self.traffic.jitter or self.traffic.input_cv or self.traffic.output_cv
        return self.traffic.kind == "closed" and not drawn

    def roomy(self, load: float) -> bool:
        """Whether the smallest pool holds a whole request of every user, so that no pool decides anything.

        Parameters
        ----------
        load : float
            Users, [-]

        Returns
        -------
        bool
            Of requests that are alike; one user more is counted for each replica, because their shares may differ.
        """
        service, traffic = self.variants[0], self.traffic
        replicas = service.settings.replicas - service.settings.prefill_replicas
        pool = min(one.pool.tokens for one in self.variants)
        length = traffic.input + traffic.output + service.pool.block_size
        return (math.ceil(load / replicas) + 1) * length <= pool

    def _between_the_slowest(self, start: float) -> float:
        """The load at which 5 of 100 services break, between those at which 2.5 and 7.5 of 100 do."""
        second = self._edge(1, start)
        first = self._edge(0, second) if second > 0 else 0.0
        ends = [_place(0), _place(1)]
        return second + (first - second) * (QUANTILE_90 - ends[1]) / (ends[0] - ends[1])

    def kept_between_the_slowest(self, load: float) -> float:
        """Share of the services that keep a load which the slowest breaks and the next one does not.

        Parameters
        ----------
        load : float
            The load, [-] or [1/s]

        Returns
        -------
        float
            95 % where the answer of `largest` lies, [-]
        """
        second = self._edge(1, load)
        first = self._edge(0, second)
        if second <= first:
            return NormalDist().cdf(_place(1))
        share = min(max((second - load) / (second - first), 0.0), 1.0)
        return NormalDist().cdf(_place(1) + share * (_place(0) - _place(1)))

    def _of_the_border(self, start: float) -> float:
        """The load that 5 of 100 services of different speed and arrivals do not bear.

        It is the one at which the service breaks that 5 of 100 are slower than, in the mean over arrivals; and a little
        below, because by chance of their arrivals slightly quicker ones break there too.
        """
        first = self._follow(_BORDER)
        if not self._whole:
            rough = self._follow(_BORDER, rough=True)
            start = rough.find(start) or start
            first.near, first.close, first.stride = self._draws(rough.breaks).near, _CLOSE, _STRIDE
            first.rise, first.others = rough.slopes(), [rough.seen]
        end = first.find(start)
        if end == 0.0 or end >= self.limit:
            return end
        # at which load a draw breaks follows how many are there at once in it: of that, what is usual is known
        last, rise = self._nearest(end, 0), first.slopes()
        breaks = self._breaks(first.breaks)
        # crowds under the load of a first draw that is far from usual are not those of all
        at_first = self._edges_of(self._crowd(end, last, breaks, draws=_AT_FIRST), end, breaks)
        usual = math.exp(at_first.mean) if abs(at_first.mean - math.log(end)) > _FAR else end
        there = self._crowd(usual, last, breaks)
        edges = self._edges_of(there, end, breaks)
        steep, seen = [self._slope(end, first.breaks, rise)], [*first.others, first.seen]
        plan = self._draws(first.breaks)
        while (draw := len(edges.logs)) < plan.most:
            if draw >= plan.least and edges.error <= plan.error:
                break
            search = self._follow(_BORDER, draw)
            search.others, search.rise, search.near = seen, rise, plan.near
            search.close, search.stride = _CLOSE, _STRIDE
            over = there.over(self._seed(_BORDER, draw)) if there is not None else _NOBODY
            end = search.find(edges.guess(over))
            if end == 0.0 or end >= self.limit:
                return end
            rise, seen = search.slopes() | rise, [*seen, search.seen]
            edges.add(end, over)
            if plan is _OF_MEANS and search.breaks == THRASH:
                plan = _OF_POOLS
            steep.append(self._slope(end, search.breaks, rise))
        slope = float(np.mean(steep))
        found = math.exp(edges.mean - QUANTILE_90 * (math.sqrt(slope**2 + edges.chance) - slope))
        # somewhere above it something breaks that can be named
        above = found
        while above < self.limit and not any(one.load > found and one.margin > 0 for one in self.tried.values()):
            above = min(float(math.floor(above)) + 1.0 if self._whole else above * _STRIDE, self.limit)
            self._at(_BORDER, above)
        return found

    def _breaks(self, name: str) -> Breaks:
        """How a target breaks."""
        if name in (THRASH, OVERLOAD):
            return POOL if name == THRASH else FULL
        return CRESTS if any(str(one) == name and one.statistic != "mean" for one in self.targets) else MEANS

    def _draws(self, name: str) -> _Draws:
        """Under how many draws of the arrivals a service is followed of which this target breaks."""
        if self.settled > SETTLED:
            return _OF_BURSTS
        if name.startswith(BENDING):
            return _OF_BENDING
        return {FULL: _OF_MEANS, MEANS: _OF_MEANS, CRESTS: _OF_CRESTS, POOL: _OF_POOLS}[self._breaks(name)]

    def _crowd(self, load: float, tried: Trial, breaks: Breaks, **draws: int) -> Crowd | None:
        """How many are there at once under a load, if they stay as long as in a trial; None without a stream."""
        service = self._service(_BORDER)
        room = service.pool.tokens * (service.settings.replicas - service.settings.prefill_replicas)
        stay = tried.summary.get("e2e_mean_ms", 0.0) * 1e-3
        return crowd(self.traffic, load, stay, self.settled, room if breaks is POOL else 0.0, **draws)

    def _edges_of(self, there: Crowd | None, end: float, breaks: Breaks) -> DrawnEdges:
        """Where draws break, of which the first is known."""
        edges = DrawnEdges(there.spread if there is not None else np.zeros((3, 3)), breaks)
        edges.add(end, there.over(self._seed(_BORDER, 0)) if there is not None else _NOBODY)
        return edges

    def _slope(self, load: float, name: str, rise: dict[str, float]) -> float:
        """How the logarithm of the load at which a service breaks falls with its place in the spread of speeds, [-]

        A service that is slower in everything does at a lower load what a quicker one does, only later. How many are
        preempted does not scale with the times of a service.
        """
        slower = math.log(self._speed(0) / self._speed(1)) / (_place(0) - _place(1))
        if name == THRASH or name not in rise:
            return slower
        return slower * (1.0 + 1.0 / (load * rise[name]))

    def _nearest(self, load: float, draw: int) -> Trial:
        """What was tried nearest to a load under one draw of the arrivals."""
        tried = (key for key in self.tried if key[:2] == (_BORDER, draw))
        return self.tried[min(tried, key=lambda key: abs(key[2] - load))]

    def _keeps(self, load: float, *, surely: bool) -> bool:
        """Whether no more than 5 of 100 services of different speed and arrivals break under a load.

        The slowest come first. It ends when too many break, and where it need not be sure when some in a row keep the
        load under all arrivals: what is faster then does too.
        """
        draws, failed, passes, roomy = max(_COUNTED // len(self.variants), 1), 0, 0, 0
        for which in range(len(self.variants)):
            before, full = failed, 0.0
            for draw in range(draws):
                trial = self._at(which, load, draw)
                failed += trial.margin > 0
                full = max(full, trial.summary.get("kv_occupancy_max", 1.0))
                if failed > _ALLOWED:
                    return False
            passes = passes + 1 if failed == before else 0
            roomy = roomy + 1 if failed == before and full < _ROOMY else 0
            if (passes >= ENOUGH and not surely) or roomy >= ENOUGH:
                return True
        return True

    def _counted(self, guess: float) -> float:
        """The load that 95 of 100 services bear: bracketed from a guess on by the slow ones, then all are counted.

        A larger load may do better than a smaller one by chance: it is looked at some below the answer too.
        """
        least, first = (1.0, float(math.floor(guess + 1e-9))) if self._whole else (1e-6, guess)

        def at(place: int) -> float:
            return first + place if self._whole else first * (1 + _STEP) ** place

        def keeps(place: int, surely: bool = False) -> bool:
            return at(place) < least or (at(place) <= self.limit and self._keeps(at(place), surely=surely))

        low, high, stride = (0, 1, 1) if keeps(0) else (-1, 0, -1)
        while keeps(high if stride > 0 else low) == (stride > 0):
            stride *= 2
            low, high = (high, high + stride) if stride > 0 else (low + stride, low)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if keeps(middle) else (low, middle)
        while not keeps(low, surely=True):
            low -= 1
        found = at(low)
        if found < least:
            return 0.0
        # a stream of single requests has nothing that a larger load could find by chance and a smaller one not
        for share in () if self.traffic.kind in OPEN and self.traffic.plain else _BELOW:
            below = float(math.floor(share * found)) if self._whole else share * found
            if below >= least and not self._keeps(below, surely=False):
                return self._counted(below)
        return found

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


def _place(which: int) -> float:
    """Where one of the equal parts of a spread lies in standard deviations, the slowest first."""
    return NormalDist().inv_cdf(1 - (which + 0.5) / DRAWS)
