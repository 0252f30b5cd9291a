"""The load at which one service breaks: tried from a guess on, each time where a straight line through what was seen
says that the promise is just kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import linear_regression

from glmplan.serving.load_trial import JUMPS, Trial

__all__ = ["CLOSE", "EdgeSearch"]

#: share of a load to which rates are bracketed where no line tells them better [-]
CLOSE = 0.01
#: share of a load from the one tried last within which a line is believed [-]
_NEAR = 0.006
#: and that of preemptions: they come in lumps [-]
_NEAR_POOL = 0.03
#: share of a load that two points of a line are apart at least: nearer ones differ by chance [-]
_APART = 0.01
#: what is broken of times that grow without end as a queue does, where a target begins so
_QUEUES = ("ttft", "queue")
#: just below what is served at most: a load that is kept there is kept up to it [-]
_BELOW_FULL = 0.992
#: least rate that is looked at [1/s]
_LEAST = 1e-6
#: logarithm of preemptions over those allowed within which they tell of loads nearby: beyond, they are few, or all [-]
_TOLD = 1.5
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
    rise : tuple of (bool, float) or None, optional
        Whether the pool breaks, and by how much what breaks rises with the load, as others foretell: see `slope`,
        [1/load]
    close : float, optional
        Share of a load to which it is bracketed, [-]
    near : float, optional
        Share of a load from the one tried last within which a line is believed, [-]
    stride : float, optional
        First step from a guess where no line tells one; smaller where others foretell the load, [-]

    Examples
    --------
    >>> from glmplan.serving.load_trial import Trial
    >>> tried = []
    >>> def at(load):
    ...     tried.append(load)
    ...     return Trial(load, 0.2 * (load - 8.0), "tpot" if load > 8 else "", {})
    >>> round(EdgeSearch(at, 1e6, whole=False).find(1.0), 3), len(tried)
    (8.0, 3)
    """

    at: Callable[[float], Trial]
    limit: float
    whole: bool
    full: float = math.inf
    rise: tuple[bool, float] | None = None
    close: float = CLOSE
    near: float = _NEAR
    stride: float = 2.0
    seen: list[Trial] = field(default_factory=list)
    low: Trial | None = None
    high: Trial | None = None

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
            aim = self._aim()
            if low is not None and high is not None:
                if high.load - low.load <= self._narrow(high):
                    return _zero(low, high)
                inside += 1
            if aim is not None and self._told(one, aim):
                return min(max(aim, low.load if low else 0.0), high.load if high else self.limit)
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

    def _told(self, one: Trial, aim: float) -> bool:
        """Whether the load tried last is so near to the end that a line from it tells the rest."""
        if self.whole and self.near <= _NEAR:
            return False  # it lies between two users who are both tried
        nearest = all(abs(one.margin) <= abs(other.margin) for other in self.seen)
        near = min(self.near, _NEAR_POOL) if _of_pool(one) else self.near
        return nearest and _smooth(one) and abs(aim - one.load) <= near * one.load

    @property
    def _least(self) -> float:
        return 1.0 if self.whole else _LEAST

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

    @property
    def slope(self) -> tuple[bool, float] | None:
        """Whether the pool breaks, and by how much what breaks rises with the load near the end; None if unknown.

        It is that of the line through the margins of the two loads nearest to the end, or of the logarithm of
        preemptions, of which there are many times more at a little more load, [1/load]
        """
        smooth = sorted((one for one in self.seen if _smooth(one)), key=lambda one: abs(one.margin))
        if not smooth:
            return self.rise
        one = smooth[0]
        pool = _of_pool(one)
        if pool:  # two counts of few preemptions tell less than all together
            return self.rise if self.rise is not None and self.rise[0] else self._steepness()
        # one target rises with another slope than the next
        alike = (
            two
            for two in smooth[1:]
            if not _of_pool(two) and two.nearest == one.nearest and abs(two.load - one.load) > _APART * one.load
        )
        other = next(alike, None)
        slope = (other.margin - one.margin) / (other.load - one.load) if other is not None else 0.0
        if slope > 0:
            return False, slope
        return self.rise if self.rise is not None and not self.rise[0] else None

    def _steepness(self) -> tuple[bool, float] | None:
        """By how much the logarithm of preemptions rises with the load: the line through all that tell of them."""
        told = [one for one in self.seen if _of_pool(one)]
        loads = [one.load for one in told]
        if max(loads) - min(loads) <= _APART * max(loads):
            return None
        rise = linear_regression(loads, [one.thrash for one in told]).slope
        return (True, rise) if rise > 0 else None

    def _aim(self) -> float | None:
        """Where a line says that the promise is just kept; None where there is none."""
        smooth = [one for one in self.seen if _smooth(one)]
        slope = self.slope
        if not smooth or slope is None:
            return None
        one = min(smooth, key=lambda one: abs(one.margin))
        return one.load - one.margin / slope[1] if _of_pool(one) == slope[0] else None

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
        if aim is not None and aim <= self._least:
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


def _of_pool(one: Trial) -> bool:
    """Whether preemptions come nearest to what breaks, and are told by those at loads nearby."""
    return one.thrash == one.margin and abs(one.thrash) < _TOLD


def _smooth(one: Trial) -> bool:
    """Whether a margin tells of loads nearby: clients leave at once, and a queue without end has no length."""
    return _of_pool(one) or (one.broken not in JUMPS and abs(one.margin) < 3.0)


def _zero(low: Trial, high: Trial) -> float:
    """Where the margin vanishes between two loads if it is straight."""
    one, two = low.margin, high.margin
    share = -one / (two - one) if two > one else 0.5
    return low.load + (high.load - low.load) * min(max(share, 0.0), 0.999)
