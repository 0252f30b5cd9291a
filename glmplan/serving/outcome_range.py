"""Between which ends the statistics of a simulation lie: over what is not known of the step time, and over seeds."""

from __future__ import annotations

import math

import numpy as np

from glmplan.serving.safe_load import speed_factors
from glmplan.serving.service import Service
from glmplan.serving.simulate import simulate
from glmplan.serving.traffic.spec import Traffic
from glmplan.units import QUANTILE_90

__all__ = ["outcome_range"]

_DRAWS = 8
_ENOUGH = 4000  # requests of a draw
#: statistics that are shares or counts, whose range is a difference
_SHARES = ("goodput_share", "utilisation", "kv_occupancy_mean", "kv_occupancy_max", "cached_share")


def outcome_range(
    service: Service,
    traffic: Traffic,
    summary: dict[str, float],
    *,
    interval: tuple[float, float] = (1.0, 1.0),
    requests: int,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """The 90 % range of each statistic.

    Parameters
    ----------
    service : Service
        What serves.
    traffic : Traffic
        What arrives.
    summary : dict
        Statistics of the simulation that is asked about, by name.
    interval : tuple of float, optional
        90 % interval of the step time relative to its prediction, [-]
    requests : int
        Requests of that simulation; a draw has at most 4,000 of them, [-]
    seed : int, optional
        Seed; draws take others, [-]

    Returns
    -------
    dict
        Lower and upper end by name, in the units of the names; around the statistics that were given.

    Notes
    -----
    Eight draws differ in their seed and in their speed, which takes the middles of eight equal parts of the interval.
    Times and rates are spread in the logarithm, shares as they are; the ends lie 1.64 standard deviations off.

    Examples
    --------
    >>> from glmplan.serving.engine.settings import EngineSettings, KvPool
    >>> from glmplan.serving.engine.step_table import StepTable
    >>> service = Service(StepTable.affine(base=0.01), KvPool(10**6), EngineSettings())
    >>> traffic = Traffic(kind="closed", users=4, input=16, output=64)
    >>> summary = simulate(service, traffic, requests=40).summary
    >>> low, high = outcome_range(service, traffic, summary, interval=(0.9, 1.1), requests=40)["tpot_mean_ms"]
    >>> 8.9 < low < summary["tpot_mean_ms"] < high < 11.2
    True
    """
    count = max(min(requests, _ENOUGH), min(requests, 2 * (traffic.users or 1)))
    found = []
    for number, factor in enumerate(speed_factors(*interval, count=_DRAWS)):
        draw = service.scaled(factor)
        outcome = simulate(draw, traffic, requests=count, seed=seed + 7919 * (number + 1), fast=False)
        if outcome.interrupted:
            raise KeyboardInterrupt  # a part of a run is no draw of it
        found.append(outcome.summary)
    ranges = {}
    for name, value in summary.items():
        draws = np.array([one[name] for one in found if name in one])
        shown = name.endswith(("_ms", "_per_s", *_SHARES))
        if not shown or len(draws) < _DRAWS or not np.isfinite([*draws, value]).all():
            continue
        if name in _SHARES:
            half = QUANTILE_90 * float(draws.std(ddof=1))
            ranges[name] = (max(value - half, 0.0), min(value + half, 1.0))
        elif value > 0 and np.all(draws > 0):
            half = QUANTILE_90 * float(np.log(draws).std(ddof=1))
            ranges[name] = (value * math.exp(-half), value * math.exp(half))
        else:
            ranges[name] = (min(value, float(draws.min())), max(value, float(draws.max())))
    return ranges
