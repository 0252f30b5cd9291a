"""How many requests are in flight at once by chance of their arrivals: it tells where one draw of them breaks.

Means over a run follow the mean number in flight, percentiles and preemptions its crests. A draw of arrivals in which
more than usual are there together breaks at a load that is lower by as much; knowing how many usually are there, that
chance is taken out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from glmplan.serving.traffic.arrivals import request_chunks
from glmplan.serving.traffic.spec import Traffic

__all__ = ["Crowd", "DrawnEdges"]

#: draws of the arrivals from which it is known what is usual, at least, and how well its mean is known then [-]
_DRAWS, _ERROR = 200, 0.005
#: the crest is the number in flight that one in 20 requests finds more of beside it, in the mean over its stay
_CREST = 0.95
#: how the load at which a draw breaks follows mean and crest as long as nothing is seen of it, where means break and
#: where crests do, and how surely [-]
_MEANS, _CRESTS, _SURE = np.array([-1.0, 0.0]), np.array([-0.6, -0.4]), 0.15
#: what chance is left beside them as long as nothing is seen of it, of means and of crests, and as how many loads that
#: counts [-]
_LEFT, _AS_MANY = (0.012, 0.02), 3.0


@dataclass(frozen=True, slots=True)
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

    Examples
    --------
    >>> crowd = Crowd(Traffic(kind="poisson", rate=1.0), 2.0, 5.0, 1700, 200)
    >>> mean, spread = crowd.usual()
    >>> np.exp(mean).round(1), np.sqrt(np.diag(spread)).round(2)
    (array([1. , 1.5]), array([0.03, 0.04]))
    >>> crowd.foreseen(3).round(2)
    array([-0.02,  0.39])
    """

    traffic: Traffic
    rate: float
    stay: float
    count: int
    skipped: int

    def foreseen(self, seed: int) -> np.ndarray:
        """How many there will be in a simulation, before it is run: the same arrivals are drawn.

        Parameters
        ----------
        seed : int
            Seed of the simulation, [-]

        Returns
        -------
        (2,) array
            Logarithms of the mean number and of the crest over `rate` times `stay`, as Little's law has it, [-]
        """
        return self._of(np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0]))

    def usual(self) -> tuple[np.ndarray, np.ndarray]:
        """How many there are in the mean over draws of the arrivals.

        Returns
        -------
        mean : (2,) array
            Of what `foreseen` returns, [-]
        spread : (2, 2) array
            Its covariance, [-]
        """
        generator, found = np.random.default_rng(0), list[np.ndarray]()
        while len(found) < _DRAWS or np.std(found, axis=0)[0] > _ERROR * len(found) ** 0.5:
            found += [self._of(generator) for _ in range(_DRAWS)]
        return np.mean(found, axis=0), np.cov(found, rowvar=False)

    def _of(self, generator: np.random.Generator) -> np.ndarray:
        at = self.traffic.at_load(self.rate).busiest
        chunk, rate = next(request_chunks(at, self.count, generator)), float(at.rate or self.rate)
        mean_stay = max(self.stay, 1.0 / rate)
        arrivals = np.zeros(0) if chunk.arrival is None else chunk.arrival
        stay = mean_stay * chunk.output_tokens / chunk.output_tokens.mean()
        leave = arrivals + stay
        left = np.sort(leave, kind="stable")  # of lengths that are alike they leave almost in the order of arrival
        came, gone = np.concatenate(([0.0], arrivals.cumsum())), np.concatenate(([0.0], left.cumsum()))

        def spent(at: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
            """Time that all have spent until then, of whom so many have come and so many are gone."""
            return (at * first - came[first]) - (at * last - gone[last])

        number = np.arange(len(arrivals))
        ended = np.searchsorted(left, arrivals)
        until = spent(leave, np.searchsorted(arrivals, leave), np.searchsorted(left, leave))
        beside = (until - spent(arrivals, number, ended)) / stay
        there = (number - ended)[self.skipped :].mean()
        beside = beside[self.skipped :]
        place = int(_CREST * len(beside))
        crest = np.partition(beside, place)[place]
        return np.log(np.maximum([there, crest], 1.0 / self.count) / (rate * mean_stay))


@dataclass(slots=True)
class DrawnEdges:
    """Loads at which a service breaks under some draws of the arrivals, and their mean with less chance in it.

    Parameters
    ----------
    usual : (2,) array
        What `Crowd.foreseen` returns in the mean over draws, [-]
    spread : (2, 2) array
        Its covariance, [-]
    logs : list of float
        Logarithms of the loads, [-]
    there : list of ndarray
        What `Crowd.foreseen` says of each draw, [-]
    crests : bool
        Whether crests break the promise, as of percentiles and preemptions, and not means.

    Notes
    -----
    Mean and crest of the number in flight are control variates, whose means are known [1]_. Twice as many are there
    under twice the load, so that their weights are about one together; the more the draws differ, the more the weights
    are fitted to them (ridge regression towards what is known before).

    References
    ----------
    .. [1] S. Asmussen, P. Glynn, "Stochastic Simulation: Algorithms and Analysis", Springer 2007, section V.2.

    Examples
    --------
    >>> edges = DrawnEdges(np.zeros(2), 0.01 * np.eye(2))
    >>> for there in (-0.1, 0.0, 0.1):
    ...     edges.add(2.0 * float(np.exp(-there)), np.array([there, 0.0]))
    >>> round(float(np.exp(edges.mean)), 3), round(edges.error, 3), round(edges.chance**0.5, 3)
    (2.0, 0.006, 0.101)
    """

    usual: np.ndarray
    spread: np.ndarray
    logs: list[float] = field(default_factory=list)
    there: list[np.ndarray] = field(default_factory=list)
    crests: bool = False

    def add(self, load: float, there: np.ndarray) -> None:
        """Take in where one draw breaks.

        Parameters
        ----------
        load : float
            The load, [-] or [1/s]
        there : (2,) array
            What `Crowd.foreseen` says of it, [-]
        """
        self.logs.append(float(np.log(load)))
        self.there.append(there)

    def guess(self, there: np.ndarray) -> float:
        """Where a draw will break, as the others say.

        Parameters
        ----------
        there : (2,) array
            What `Crowd.foreseen` says of it, [-]

        Returns
        -------
        float
            [-] or [1/s]
        """
        return float(np.exp(self.mean + self._fit[0] @ (there - self.usual)))

    @property
    def mean(self) -> float:
        """Mean of the logarithm of the load if as many are there as usual, [-]"""
        return float(np.mean(self.logs) - self._fit[0] @ (np.mean(self.there, axis=0) - self.usual))

    @property
    def error(self) -> float:
        """Standard error of `mean`, [-]"""
        return float((self._variance / len(self.logs)) ** 0.5)

    @property
    def chance(self) -> float:
        """Variance of the logarithm over draws of the arrivals, [-]"""
        weights = self._fit[0]
        return float(self._variance + weights @ self.spread @ weights)

    @property
    def _fit(self) -> tuple[np.ndarray, float]:
        """The weights, and as how many numbers they were fitted."""
        there, logs = np.array(self.there), np.array(self.logs)
        there, logs = there - there.mean(axis=0), logs - logs.mean()
        before = _CRESTS if self.crests else _MEANS
        seen, known = there.T @ there, (_LEFT[self.crests] / _SURE) ** 2 * np.eye(2)
        weights = np.linalg.solve(seen + known, there.T @ logs + known @ before)
        return weights, float(np.trace(np.linalg.solve(seen + known, seen)))

    @property
    def _variance(self) -> float:
        """Of what is left of the logarithms without the chance that is known."""
        weights, fitted = self._fit
        left = np.array(self.logs) - np.array(self.there) @ weights
        free = max(len(left) - 1 - fitted, 0.0)
        return float((_AS_MANY * _LEFT[self.crests] ** 2 + np.sum((left - left.mean()) ** 2)) / (_AS_MANY + free))
