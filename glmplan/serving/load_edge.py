"""The load at which one service breaks: tried from a guess on, each time where a straight line through what was seen
says that the promise is just kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from glmplan.serving.load_trial import JUMPS, SETTLED, THRASH, Trial

__all__ = ["BENDING", "CLOSE", "EdgeSearch"]

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

    Parameters
    ----------
    at : callable
        Tries a load.
    limit : float
        Largest load to look at, [-] or [1/s]
    whole : bool
        Whether loads are numbers of users.
    full : float, optional
        Load from which on more arrives than is served, [1/s]
    rise : dict, optional
        By how much each target rises with the load, as others foretell: see `slopes`, [1/load]
    others : list of list of Trial, optional
        What was tried under other draws of the arrivals: together they tell how preemptions rise.
    close : float, optional
        Share of a load to which it is bracketed, [-]
    near : float, optional
        Share of a load from the one tried last within which a line is believed, [-]
    stride : float, optional
        First step from a guess where no line tells one; smaller where others foretell the load, [-]
    breaks : str
        What breaks at the load that was found.

    Examples
    --------
    >>> from glmplan.serving.load_trial import Trial
    >>> tried = []
    >>> def at(load):
    ...     tried.append(load)
    ...     margin = 0.2 * (load - 8.0)
    ...     return Trial(load, margin, "tpot" if load > 8 else "", {}, nearest="tpot", margins={"tpot": margin})
    >>> round(EdgeSearch(at, 1e6, whole=False).find(1.0), 3), len(tried)
    (8.0, 3)
    """

    at: Callable[[float], Trial]
    limit: float
    whole: bool
    full: float = math.inf
    rise: dict[str, float] = field(default_factory=dict)
    others: list[list[Trial]] = field(default_factory=list)
    close: float = CLOSE
    near: float = _NEAR
    stride: float = 2.0
    seen: list[Trial] = field(default_factory=list)
    low: Trial | None = None
    high: Trial | None = None
    breaks: str = ""

    def find(self, guess: float) -> float:
        """Find the load.

        Parameters
        ----------
        guess : float
            A first load to try, [-] or [1/s]

        Returns
        -------
        float
            Between the last load that is kept and the first that is not; 0 if none is kept, the limit if all are, [-]
            or [1/s]
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
        """How wide a bracket may be: a user where one is asked for exactly, else a share of the load."""
        if not self.whole:
            return self.close * high.load
        return max(1.0, self.close * high.load) if self.near > _NEAR else 1.0

    def _told(self, one: Trial, aim: tuple[str, float]) -> bool:
        """Whether the load tried last is so near to the end that a line from it tells the rest."""
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
        """By how much each target rises with the load near its end, as far as it is known.

        Returns
        -------
        dict
            Slope of the line through the logarithms of a target over its bound at the two loads nearest to the end; of
            preemptions, of which there are many times more at a little more load, and of waits, through all that tell,
            also under other draws, [1/load]
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
        """Which target breaks first as lines say, and where; None without a line for the one that comes nearest."""
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
        """Where the promise is just kept as one load says alone; None if it says nothing, or is too far from there.

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
    """Whether a target tells of loads nearby: clients leave at once, and a queue without end has no length."""
    margin = one.margins.get(name, -math.inf)
    if name == THRASH:
        return _POOL_TOLD[0] < margin < _POOL_TOLD[1]
    most = _GROWN if name.startswith(BENDING) else _TOLD
    return -_TOLD < margin < most and (one.broken == THRASH or one.broken not in JUMPS)


def _slope(told: list[Trial], name: str) -> float:
    """Slope of the line through the nearest to the end and the next that is not so near to it that chance decides."""
    one = told[0]
    other = next((two for two in told[1:] if abs(two.load - one.load) > _APART * one.load), None)
    return 0.0 if other is None else (other.margins[name] - one.margins[name]) / (other.load - one.load)


def _steepness(draws: list[list[Trial]], name: str) -> float:
    """Slope of what scatters: of lines through all that tell, one beside the other for each draw of the arrivals."""
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
        most = max(most, max(loads))
    # few pairs of loads tell little: those that differ by chance give no line
    pairs, far = (_PAIRS, _PAIR_APART) if bends else (1, _POOL_APART)
    return along / across if across > pairs * 0.5 * (far * most) ** 2 else 0.0


def _zero(low: Trial, high: Trial) -> float:
    """Where the margin vanishes between two loads if it is straight."""
    one, two = low.margin, high.margin
    share = -one / (two - one) if two > one else 0.5
    return low.load + (high.load - low.load) * min(max(share, 0.0), 0.999)
