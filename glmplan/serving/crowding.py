"""How many requests are in flight at once by chance of their arrivals: it tells where one draw of them breaks.

Means over a run follow the mean number in flight, percentiles its crests, and preemptions how full those who are there
together make the pool. A draw of arrivals in which more than usual are there breaks at a load that is lower by as much;
knowing what is usual, that chance is taken out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from glmplan.serving.traffic.arrivals import request_chunks
from glmplan.serving.traffic.spec import Traffic

__all__ = ["CRESTS", "FULL", "MEANS", "POOL", "Breaks", "Crowd", "DrawnEdges"]

#: draws of the arrivals from which it is known what is usual, at least, and how well its mean is known then [-]
_DRAWS, _ERROR = 200, 0.005
#: draws under which it is looked by how much each number rises with the load, and by how much more of it [-]
_RISEN, _MORE = 10, 1.05
#: least rise that is believed [-]
_LEAST_RISE = 0.2
#: the crest is the number in flight that one in 20 requests finds more of beside it, in the mean over its stay
_CREST = 0.95
#: share of the pool within which an end that finds it fuller presses e times as hard [-]
_NEARLY = 0.1


@dataclass(frozen=True, slots=True)
class Breaks:
    """What breaks a promise, and what is known of such loads beforehand.

    Parameters
    ----------
    told : tuple of int
        Which two of the numbers of `Crowd.foreseen` tell it, [-]
    weights : tuple of float
        How the load at which a draw breaks follows them as long as nothing is seen of it, [-]
    left : float
        What chance is left beside them as long as nothing is seen of it, [-]
    """

    told: tuple[int, int]
    weights: tuple[float, float]
    left: float


#: means over a run, its crests (percentiles), a pool that runs over
MEANS = Breaks((0, 1), (-1.0, 0.0), 0.012)
CRESTS = Breaks((0, 1), (-0.6, -0.4), 0.02)
POOL = Breaks((1, 2), (-0.4, -0.6), 0.025)
#: and more than is served at most, whoever is there
FULL = Breaks((0, 1), (0.0, 0.0), 0.012)
#: how surely the weights are known, and as how many loads it counts what chance is left [-]
_SURE, _AS_MANY = 0.15, 3.0


@dataclass(slots=True)
class Crowd:
    """How many requests of an open stream are there when one arrives, if each stays as long as its answer is long.

    Parameters
    ----------
    traffic : Traffic
        An open stream.
    rate : float
        Requests that arrive in the mean over all draws, [1/s]; of a day as `Traffic.at_load` has it.
    stay : float
        How long one with a mean answer stays, [s]; as long as it takes until the next one comes, if that is longer.
    count : int
        Requests of a run, [-]
    skipped : int
        Those at its start that are not looked at, [-]
    pool : float, optional
        Tokens that all replicas hold together, [token]
    draws : int, optional
        Draws of the arrivals from which it is told what is usual; by default as many as it takes to know it, [-]
    usual : (3,) array
        What `foreseen` returns in the mean over draws, [-]
    rise : (3,) array
        By how much its numbers rise with the logarithm of the load, [-]
    spread : (3, 3) array
        Covariance of what `over` returns, [-]

    Examples
    --------
    >>> crowd = Crowd(Traffic(kind="poisson", rate=1.0), 2.0, 5.0, 1700, 200)
    >>> np.exp(crowd.usual[:2]).round(1), np.sqrt(np.diag(crowd.spread)[:2]).round(2)
    (array([1. , 1.5]), array([0.03, 0.05]))
    >>> crowd.over(3)[:2].round(2)
    array([-0.02, -0.05])
    """

    traffic: Traffic
    rate: float
    stay: float
    count: int
    skipped: int
    pool: float = 0.0
    draws: int = 0
    usual: np.ndarray = field(init=False)
    rise: np.ndarray = field(init=False)
    spread: np.ndarray = field(init=False)

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
        """How many there will be in a simulation, before it is run: the same arrivals are drawn.

        Parameters
        ----------
        seed : int
            Seed of the simulation, [-]

        Returns
        -------
        (3,) array
            Logarithms of the mean number and of the crest over `rate` times `stay`, as Little's law has it, and of how
            hard the pool is pressed by those who are there when one ends; 0 without a pool, [-]
        """
        return self._of(np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0]))

    def over(self, seed: int) -> np.ndarray:
        """By how much more is there in a simulation than usual.

        Parameters
        ----------
        seed : int
            Seed of the simulation, [-]

        Returns
        -------
        (3,) array
            What `foreseen` returns beyond what is usual, as logarithms of the load at which so much is usual, [-]
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
        order = np.argsort(leave, kind="stable")  # of lengths that are alike they leave almost in the order of arrival
        left = leave[order]
        came, gone = _sums(arrivals), _sums(left)

        def spent(at: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
            """Time that all have spent until then, of whom so many have come and so many are gone."""
            return (at * first - came[first]) - (at * last - gone[last])

        number = np.arange(len(arrivals))
        ended = np.searchsorted(left, arrivals)
        first, last = np.searchsorted(arrivals, leave), np.searchsorted(left, leave)
        beside = (spent(leave, first, last) - spent(arrivals, number, ended)) / stay
        there = (number - ended)[self.skipped :].mean()
        beside = beside[self.skipped :]
        place = int(_CREST * len(beside))
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
    """Loads at which a service breaks under some draws of the arrivals, and their mean with less chance in it.

    Parameters
    ----------
    spread : (3, 3) array
        Covariance of what `Crowd.over` returns, [-]
    breaks : Breaks, optional
        What breaks the promise.
    logs : list of float
        Logarithms of the loads, [-]
    there : list of ndarray
        What tells where each draw breaks, of what `Crowd.over` says of it, [-]

    Notes
    -----
    Mean and crest of the number in flight, and how hard a pool is pressed, are control variates, whose means are known
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

    spread: np.ndarray
    breaks: Breaks = MEANS
    logs: list[float] = field(default_factory=list)
    there: list[np.ndarray] = field(default_factory=list)
    _weights: np.ndarray = field(default_factory=lambda: np.zeros(2))
    _fitted: float = 0.0

    def add(self, load: float, there: np.ndarray) -> None:
        """Take in where one draw breaks.

        Parameters
        ----------
        load : float
            The load, [-] or [1/s]
        there : (3,) array
            What `Crowd.over` says of it, [-]
        """
        self.logs.append(float(np.log(load)))
        self.there.append(there[list(self.breaks.told)])
        told, logs = np.array(self.there), np.array(self.logs)
        told, logs = told - told.mean(axis=0), logs - logs.mean()
        seen, known = told.T @ told, (self.breaks.left / _SURE) ** 2 * np.eye(2)
        self._weights = np.linalg.solve(seen + known, told.T @ logs + known @ np.array(self.breaks.weights))
        self._fitted = float(np.trace(np.linalg.solve(seen + known, seen)))

    def guess(self, there: np.ndarray) -> float:
        """Where a draw will break, as the others say.

        Parameters
        ----------
        there : (3,) array
            What `Crowd.over` says of it, [-]

        Returns
        -------
        float
            [-] or [1/s]
        """
        return float(np.exp(self.mean + self._weights @ there[list(self.breaks.told)]))

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
        told = list(self.breaks.told)
        return float(self._variance + self._weights @ self.spread[np.ix_(told, told)] @ self._weights)

    @property
    def _variance(self) -> float:
        """Of what is left of the logarithms without the chance that is known."""
        left = np.array(self.logs) - np.array(self.there) @ self._weights
        free = max(len(left) - 1 - self._fitted, 0.0)
        return float((_AS_MANY * self.breaks.left**2 + np.sum((left - left.mean()) ** 2)) / (_AS_MANY + free))
