"""How many requests are in flight at once by chance of their arrivals: it tells where one draw of them breaks.

Means over a run follow the mean number in flight. A draw of arrivals in which more than usual are there together breaks
at a load that is lower by as much, and one in which the number goes up and down more than usual where crests break a
promise; knowing how many usually are there, that chance is taken out.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from glmplan.serving.traffic.arrivals import request_chunks
from glmplan.serving.traffic.spec import Traffic

__all__ = ["Crowd", "DrawnEdges"]

#: draws of the arrivals from which it is known what is usual, at least, and how well its mean is known then [-]
_DRAWS, _ERROR = 200, 0.005
#: how the load at which a draw breaks follows mean and variance of the number in flight as long as nothing is seen of
#: it, how surely that is known, and what chance is left beside it [-]
_WEIGHTS, _SURE, _LEFT = np.array([-1.0, 0.0]), np.array([0.3, 0.1]), 0.03


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
    >>> np.exp(mean).round(1), np.sqrt(np.diag(spread)).round(2)  # in the mean ten, with a variance of as many
    (array([ 1., 10.]), array([0.03, 0.11]))
    >>> crowd.foreseen(3).round(3)
    array([-0.022,  2.236])
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
            Logarithms of the mean number over `rate` times `stay`, as Little's law has it, and of its variance, [-]
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
        # of lengths that are alike they leave almost in the order in which they came
        leave = np.sort(arrivals + mean_stay * chunk.output_tokens / chunk.output_tokens.mean(), kind="stable")
        there = (np.arange(len(arrivals)) - np.searchsorted(leave, arrivals))[self.skipped :]
        least = 1.0 / self.count
        return np.log([max(there.mean(), least) / (rate * mean_stay), max(there.var(), least)])


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

    Notes
    -----
    Mean and variance of the number in flight are control variates, whose means are known [1]_. Twice as many are there
    under twice the load, so that the weight of the first is about one; the more the draws differ, the more both weights
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
    (2.0, 0.0, 0.1)
    """

    usual: np.ndarray
    spread: np.ndarray
    logs: list[float] = field(default_factory=list)
    there: list[np.ndarray] = field(default_factory=list)

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
        """Standard error of `mean`; infinite for less than three loads, [-]"""
        if len(self.logs) < 3:
            return float(np.inf)
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
        seen, known = there.T @ there, np.diag((_LEFT / _SURE) ** 2)
        weights = np.linalg.solve(seen + known, there.T @ logs + known @ _WEIGHTS)
        return weights, float(np.trace(np.linalg.solve(seen + known, seen)))

    @property
    def _variance(self) -> float:
        """Of what is left of the logarithms without the chance that is known."""
        weights, fitted = self._fit
        left = np.array(self.logs) - np.array(self.there) @ weights
        return float(np.sum((left - left.mean()) ** 2) / max(len(left) - 1 - fitted, 0.5))
