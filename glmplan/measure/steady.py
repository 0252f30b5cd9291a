"""Where a load step stops changing: the start-up transient is found, not assumed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["TokenClock", "is_steady", "transient_end"]


def transient_end(series: Sequence[float], *, batch: int = 5) -> int:
    """Return where the transient of a series ends, by MSER-5.

    Of all truncations up to half of the series the one is taken that leaves the smallest standard error of the mean
    of what remains, over means of `batch` neighbours.

    Parameters
    ----------
    series : sequence of float
        Observations at equal distances, shape (n,), in one unit [-]
    batch : int, optional
        Neighbours in one mean, [-]

    Returns
    -------
    int
        Index of the first observation of the steady part, [-]

    References
    ----------
    .. [1] K. P. White, M. J. Cobb, S. C. Spratt, "A comparison of five steady-state truncation heuristics for
       simulation", Winter Simulation Conference, 2000.

    Examples
    --------
    >>> transient_end([0.0] * 10 + [5.0, 5.1, 4.9, 5.0, 5.1] * 8)
    10
    """
    values = np.asarray(series, dtype=float)
    means = values[: values.size // batch * batch].reshape(-1, batch).mean(axis=1)
    if means.size < 4:
        return 0
    ends = np.arange(means.size // 2 + 1)
    left = means.size - ends
    spread = np.array([np.square(means[end:] - means[end:].mean()).sum() for end in ends])
    scores = spread / np.square(left)
    # what differs by rounding only is equal, and of equals the shortest transient counts
    equal = scores <= scores.min() + 1e-12 * float(np.square(means.mean()))
    return int(ends[np.argmax(equal)]) * batch


def is_steady(series: Sequence[float], *, tolerance: float = 0.05, batch: int = 5) -> bool:
    """Tell whether what follows the transient no longer drifts.

    Its first and second half must agree within a tolerance or within two standard errors of their difference.

    Parameters
    ----------
    series : sequence of float
        Observations at equal distances, shape (n,), in one unit [-]
    tolerance : float, optional
        Allowed difference of the halves over the mean, [-]
    batch : int, optional
        Neighbours in one mean, [-]

    Returns
    -------
    bool
        Whether the series is steady. Fewer than four batches after the transient never are.

    Examples
    --------
    >>> is_steady([5.0, 5.1, 4.9, 5.0, 5.1] * 8), is_steady(range(40))
    (True, False)
    """
    values = np.asarray(series, dtype=float)
    begin = transient_end(values.tolist(), batch=batch)
    # a transient that fills all that may be cut is a drift that has not ended
    if begin >= values.size // batch // 2 * batch > 0:
        return False
    kept = values[begin : begin + (values.size - begin) // batch * batch].reshape(-1, batch).mean(axis=1)
    if kept.size < 4:
        return False
    first, second = kept[: kept.size // 2], kept[kept.size // 2 :]
    difference = abs(float(first.mean() - second.mean()))
    error = float(np.sqrt(first.var(ddof=1) / first.size + second.var(ddof=1) / second.size))
    return difference <= max(tolerance * float(kept.mean()), min(2.0 * error, 4 * tolerance * float(kept.mean())))


class TokenClock:
    """Counts tokens in bins of equal length while a step runs.

    Parameters
    ----------
    bin : float, optional
        Length of a bin, [s]

    Examples
    --------
    >>> clock = TokenClock(bin=1.0)
    >>> clock.add(0.5, 3), clock.add(2.1, 1), clock.rates(3.0)
    (None, None, [3.0, 0.0, 1.0])
    """

    def __init__(self, *, bin: float = 0.5) -> None:
        self.bin = bin
        self.counts: list[float] = []

    def add(self, at: float, tokens: float = 1.0) -> None:
        """Count tokens.

        Parameters
        ----------
        at : float
            When they came, from the begin of the step, [s]
        tokens : float, optional
            How many, [token]
        """
        place = math.floor(at / self.bin)
        if place < 0:
            return
        if place >= len(self.counts):
            self.counts.extend([0.0] * (place + 1 - len(self.counts)))
        self.counts[place] += tokens

    def rates(self, until: float, *, least: float = 0.0) -> list[float]:
        """Return the rate in each whole bin.

        Parameters
        ----------
        until : float
            End of what is known, from the begin of the step, [s]
        least : float, optional
            Bins are put together until they hold so many tokens on average: fewer are chance, not a rate, [token]

        Returns
        -------
        list of float
            Rates, [token/s]
        """
        whole = int(until / self.bin)
        counts = self.counts[:whole] + [0.0] * max(whole - len(self.counts), 0)
        width = self.width(until, least=least)
        merged = [sum(counts[i : i + width]) for i in range(0, whole - width + 1, width)]
        return [count / (self.bin * width) for count in merged]

    def width(self, until: float, *, least: float) -> int:
        """Return how many bins `rates` puts together.

        Parameters
        ----------
        until : float
            End of what is known, [s]
        least : float
            Tokens that a bin holds on average, [token]

        Returns
        -------
        int
            Bins, [-]
        """
        mean = sum(self.counts) / max(int(until / self.bin), 1)
        return max(math.ceil(least / mean), 1) if mean > 0 else 1
