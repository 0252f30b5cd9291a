"""The search for the largest load that keeps a promise: loads are tried until it is known where services break."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from glmplan.serving.beside import beside
from glmplan.serving.crowding import CRESTS, FULL, MEANS, POOL, Breaks, Crowd, DrawnEdges
from glmplan.serving.load_answer import LoadPoint, SafeLoad, unit_of, why_broken
from glmplan.serving.load_edge import BENDING
from glmplan.serving.load_trial import OPEN, OVERLOAD, SETTLED, THRASH, Trial, crowd
from glmplan.serving.load_tries import BORDER, DRAWS, LoadTries
from glmplan.serving.service import Service
from glmplan.units import QUANTILE_90

__all__ = ["ENOUGH", "LoadSearch"]


class _Draws(NamedTuple):
    """Draws of the arrivals under which it is followed to where it breaks: a first, and pairs of others."""

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
    """Where the service breaks under a draw, what breaks, by how much it rises, and what was tried."""

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


#: where means break a promise, where crests do (percentiles), where a pool runs over, and under bursts
_OF_MEANS, _OF_CRESTS = _Draws(5, 13, 0.0075, 0.05), _Draws(7, 65, 0.005, 0.08)
#: and where a time does that grows at once from some load on
_OF_BENDING = _Draws(9, 97, 0.0042, 0.05)
_OF_POOLS, _OF_BURSTS = _Draws(11, 25, 0.0055, 0.06), _Draws(17, 129, 0.004, 0.08)
#: how far from the usual load the first may break for the crowds under its load to be those of all
_FAR = 0.05
#: share of a load to which each draw is bracketed where no line tells it, and its first step [-]
_CLOSE, _STRIDE = 0.041, 1.04
#: services that are counted at the answer, and how many of them may fail: 3 of 60 are 5 %
_COUNTED, _ALLOWED = 60, 3
#: services in a row, from the slow end, that keep a promise: the rest then does [-]
ENOUGH = 4
#: standard error of a load below which it is known well enough, in users who are there at once [-]
_OF_A_USER = 0.003
#: shares of an answer at which it is looked whether less is kept too [-]
_BELOW = (0.9, 0.75)
#: share of a pool in use up to which it is nowhere near running over
_ROOMY = 0.7
#: where no stream arrives, how many are there at once is no chance of it
_NOBODY = np.zeros(3)
#: draws from which it is seen whether the first one is far from what is usual [-]
_AT_FIRST = 20
_STEP = 0.03  # between rates at which services are counted


@dataclass(slots=True)
class LoadSearch(LoadTries):
    """A search for the largest safe load."""

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
        first = self._follow(BORDER)
        if not self._whole:
            rough = self._follow(BORDER, rough=True)
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
        steep = [self._slope(end, first.breaks, rise)]
        plan, known, news = self._draws(first.breaks), 0, [*first.others, first.seen]
        # of hardly anybody a part of a user is a large share
        close = _OF_A_USER / max(usual * last.summary.get("e2e_mean_ms", 0.0) * 1e-3, _OF_A_USER)
        with beside(_Follower(self, []), copied=self.known.copied) as two:
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
                        return found.end
                    rise, news = found.rise | rise, [*news, found.seen]
                    edges.add(found.end, over)
                    if plan is _OF_MEANS and found.breaks == THRASH:
                        plan = _OF_POOLS
                    steep.append(self._slope(found.end, found.breaks, rise))
        slope = float(np.mean(steep))
        found = math.exp(edges.mean - QUANTILE_90 * (math.sqrt(slope**2 + edges.chance) - slope))
        # somewhere above it something breaks that can be named
        above = found
        while above < self.limit and not any(one.load > found and one.margin > 0 for one in self.tried.values()):
            above = min(float(math.floor(above)) + 1.0 if self._whole else above * _STRIDE, self.limit)
            self._at(BORDER, above)
        return found

    def drawn(self, job: _Draw, others: list[list[Trial]]) -> _Drawn:
        """Follow the service that 5 of 100 are slower than to where it breaks under one draw of the arrivals.

        Parameters
        ----------
        job : tuple
            The draw, and what is known beforehand.
        others : list of list of Trial
            What was tried under other draws.

        Returns
        -------
        tuple
            Where it breaks.
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
        service = self._service(BORDER)
        room = service.pool.tokens * (service.settings.replicas - service.settings.prefill_replicas)
        stay = tried.summary.get("e2e_mean_ms", 0.0) * 1e-3
        return crowd(self.traffic, load, stay, self.settled, room if breaks is POOL else 0.0, **draws)

    def _edges_of(self, there: Crowd | None, end: float, breaks: Breaks) -> DrawnEdges:
        """Where draws break, of which the first is known."""
        edges = DrawnEdges(there.spread if there is not None else np.zeros((3, 3)), breaks)
        edges.add(end, there.over(self._seed(BORDER, 0)) if there is not None else _NOBODY)
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
        tried = (key for key in self.tried if key[:2] == (BORDER, draw))
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
