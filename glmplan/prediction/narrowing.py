"""How far a run of a deployment would narrow the intervals of its figures, before anybody has measured it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from glmplan.physics.step.model import FrontPoints
from glmplan.physics.step.time import PARAMETERS, step_time
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import COLUMNS, FRONT, LEVELS, SCALE, TTFT_SCALE, Effects, keys_of, load_effects
from glmplan.prediction.intervals import features_of, kind_at
from glmplan.prediction.load import Load
from glmplan.prediction.observables import observables
from glmplan.prediction.site_prior import SITE_NOISE, site_spread
from glmplan.prediction.step_models import runs_on_accelerators, step_parameters
from glmplan.prediction.step_table import step_tables
from glmplan.units import QUANTILE_90

__all__ = ["narrowed", "site_deviation"]

#: figure that a step of a ladder measures → its kind of interval
_MEASURED: dict[str, str] = {"ttft": "ttft", "tpot": "decode"}
_CONFIGURATION, _RELEASE = LEVELS.index("configuration"), LEVELS.index("release")


def site_deviation(deployment: Deployment, fit: Effects) -> np.ndarray:
    """How far a machine may differ from the fit, in each column: all levels that nobody measured, and its own.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    fit : Effects
        The fit.

    Returns
    -------
    (22,) array
        Standard deviation, in the order of `glmplan.prediction.effects.COLUMNS`, [-]
    """
    _, known = fit.sum_of(keys_of(deployment))
    levels = [level for level in range(_RELEASE) if level == _CONFIGURATION or not known[level]]
    return np.asarray(np.sqrt((site_spread(fit.spread)[levels] ** 2).sum(axis=0)))


def narrowed(
    deployment: Deployment, loads: Sequence[Load], *, effects: Effects | None = None
) -> list[list[dict[str, float]]]:
    """Compute how wide intervals would be after a run under each load.

    Parameters
    ----------
    deployment : Deployment
        The deployment, which nobody has measured.
    loads : sequence of Load
        Loads that may be measured, and of which figures are asked.
    effects : Effects, optional
        The fit; the shipped one by default.

    Returns
    -------
    list of list of dict of str to float
        For each load that is measured, for each load that is asked of: ``ttft`` and ``tpot`` → half the width of the
        90 % interval of the logarithm, [-]; empty where a site's runs move nothing (experts on processors, one memory).

    Notes
    -----
    Around the fit the logarithm of a figure is linear in the effects: its slopes are the shares of its time. What a
    machine may differ by has the prior of `site_deviation`, a run the noise of `SITE_NOISE`; the covariance after it,
    `(P⁻¹ + J' N⁻¹ J)⁻¹`, does not depend on what will be measured [1]_. To what it leaves open is added what the form
    of a step misses between the points of a sweep, the interval of class ``site``, as `glmplan validate
    --calibrate-on` does. Not modelled: a run that is disturbed, and a middle that moves.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.1.
    """
    fit = effects or load_effects(deployment.engine)
    if not runs_on_accelerators(deployment) or deployment.structure.part.is_processor or "site" not in fit.intervals:
        return []
    slopes = _slopes(deployment, loads, fit)
    deviation = site_deviation(deployment, fit)
    missed = [_missed(deployment, load, fit) for load in loads]
    found = []
    for measured in slopes:
        # effects over their deviation have the unit covariance before the run
        seen = np.array([row * deviation / SITE_NOISE[_MEASURED[name]] for name, row in measured.items()])
        after = np.linalg.inv(np.eye(len(COLUMNS)) + seen.T @ seen)
        found.append([
            {name: float(np.hypot(QUANTILE_90 * np.sqrt(row * deviation @ after @ (row * deviation)), missed[n][name]))
             for name, row in asked.items()}
            for n, asked in enumerate(slopes)
        ])  # fmt: skip
    return found


def _missed(deployment: Deployment, load: Load, fit: Effects) -> Mapping[str, float]:
    """Half the width of what two points of a sweep leave of its others, for each figure."""
    features, ends = features_of(deployment, load), fit.intervals["site"]
    kinds = {name: kind_at(kind, features["load"], features["cached"]) for name, kind in _MEASURED.items()}
    pairs = {name: ends.get(kind, ends[_MEASURED[name]]) for name, kind in kinds.items()}
    return {name: (high - low) / 2.0 for name, (low, high) in pairs.items()}


def _slopes(deployment: Deployment, loads: Sequence[Load], fit: Effects) -> list[dict[str, np.ndarray]]:
    """For each load: figure → derivative of its logarithm by each column, (22,), [-]"""
    total, _ = fit.sum_of(keys_of(deployment))
    parameters = step_parameters(deployment, total)
    seen = [observables(load) for load in loads]
    fronts = [
        FrontPoints(one.arrivals, one.prompt, load.pass_tokens, one.arrivals * load.idle)
        for one, load in zip(seen, loads, strict=True)
    ]
    tables = step_tables([deployment] * len(loads), [one.points for one in seen], fronts)
    ((_, table),) = tables  # one deployment is alike to itself
    ends = np.concatenate([[0], np.cumsum([len(one.decode_requests) for one in seen])])
    found = []
    for place, (one, load) in enumerate(zip(seen, loads, strict=True)):
        work = table[int(ends[place]) : int(ends[place + 1])]
        rows: dict[str, np.ndarray] = {}
        for name in _MEASURED:
            if name not in one.figures or not (whole := one.figures[name].weights @ work).any():
                continue
            # a step time is a sum over work, so a sum of step times is one, too
            shares = step_time(whole[None, :], parameters[None, :]).shares[0]
            rows[name] = np.zeros(len(COLUMNS))
            rows[name][: len(PARAMETERS)] = shares
            rows[name][SCALE] = shares.sum() - shares[list(FRONT)].sum()
            rows[name][TTFT_SCALE] = load.waiting * (name == "ttft")
        found.append(rows)
    return found
