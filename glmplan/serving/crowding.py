"""How many requests are in flight at once by chance of their arrivals: it tells where one draw of them breaks.

Means over a run follow the mean number in flight. A draw of arrivals in which more than usual are there together breaks
at a load that is lower by as much; knowing how many usually are there, that chance is taken out.
"""

from __future__ import annotations

import numpy as np

from glmplan.serving.traffic.arrivals import arrival_times, draw_lengths
from glmplan.serving.traffic.spec import Traffic

__all__ = ["crowd", "usual_crowd"]

#: draws of the arrivals from which it is known what is usual [-]
_DRAWS = 200


def crowd(arrivals: np.ndarray, outputs: np.ndarray, rate: float, stay: float, skipped: int) -> float:
    """Requests that are there when one arrives, if each stays as long as its answer is long, over those expected.

    Parameters
    ----------
    arrivals : (n,) array
        When each arrives, rising, [s]
    outputs : (n,) array
        Its answer over the mean answer, [-]
    rate : float
        Requests that arrive in the mean over all draws, [1/s]
    stay : float
        How long one with a mean answer stays, [s]; as long as it takes until the next one comes, if that is longer.
    skipped : int
        Requests at the start that are not looked at, [-]

    Returns
    -------
    float
        Logarithm of the mean number over `rate` times `stay`, as Little's law has it, [-]; 0 where there is nobody to
        look at.

    Examples
    --------
    >>> round(float(np.exp(crowd(np.arange(10.0), np.ones(10), 1.0, 2.5, 4))), 6)  # two each, where 2.5 are expected
    0.8
    """
    if len(arrivals) <= skipped:
        return 0.0
    stay = max(stay, 1.0 / rate)
    before = np.arange(len(arrivals)) - np.searchsorted(np.sort(arrivals + stay * outputs), arrivals)
    return float(np.log(max(before[skipped:].mean(), 1.0 / len(arrivals)) / (rate * stay)))


def usual_crowd(traffic: Traffic, stay: float, count: int, skipped: int) -> tuple[float, float]:
    """What `crowd` says in the mean over draws of the arrivals.

    Parameters
    ----------
    traffic : Traffic
        An open stream.
    stay : float
        How long one with a mean answer stays, [s]
    count : int
        Requests, [-]
    skipped : int
        Those at the start that are not looked at, [-]

    Returns
    -------
    mean, deviation : float
        Of the logarithm, [-]

    Examples
    --------
    >>> mean, deviation = usual_crowd(Traffic(kind="poisson", rate=2.0), 5.0, 1700, 200)
    >>> round(float(np.exp(mean)), 2), round(deviation, 2)
    (1.0, 0.03)
    """
    generator, found, rate = np.random.default_rng(0), [], float(traffic.rate or 1.0)
    draw = draw_lengths(traffic)
    for _ in range(_DRAWS):
        _, outputs = draw(count, generator)
        arrivals = arrival_times(traffic, generator)(count)
        found.append(crowd(arrivals, outputs / outputs.mean(), rate, stay, skipped))
    return float(np.mean(found)), float(np.std(found))
