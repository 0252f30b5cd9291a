"""Figures of many loads on one deployment, with their intervals, from matrices that all machines share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.physics.points import StepPoints
from glmplan.physics.step.model import FrontPoints, StepModel
from glmplan.physics.step.time import StepTime
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import load_effects
from glmplan.prediction.known import known_of_points
from glmplan.prediction.load import Load
from glmplan.prediction.predict import Prediction, predict_many, wake_seconds
from glmplan.prediction.step_models import may_hide, runs_on_accelerators, step_model_of, without_hiding
from glmplan.prediction.step_table import least_of
from glmplan.readers.runs.figures import INTERVAL_KINDS
from glmplan.serving.engine.first_tokens import waiting_share
from glmplan.sizing.mixes import FIGURES, NODES, Mixes, StepSeconds

__all__ = ["TOLERANCE", "Columns", "columns_of", "exact_columns"]

#: how far tables may be from the step time itself before they are not used [-]
TOLERANCE = 0.001
#: loads of one deployment that are computed one by one, which takes no longer than a table for them [-]
_FEW = 8
_ENDS = ("", "_low", "_high")


@dataclass(frozen=True, slots=True)
class Columns:
    """Figures of loads.

    Attributes
    ----------
    figures : dict of str to (n,) array
        ``ttft``, ``tpot`` [s] and ``output_rate`` [token/s], each with ``_low`` and ``_high`` of its 90 % interval; NaN
        where there is none
    knowledge, basis : str
        What they rest on.
    exact : bool
        Whether every step was timed, instead of read from a table.
    error : float
        Largest difference between table and step time on the loads that were looked at, [-]
    """

    figures: dict[str, np.ndarray]
    knowledge: str
    basis: str
    exact: bool
    error: float


def columns_of(deployment: Deployment, mixes: Mixes, *, exact: bool = False) -> Columns:
    """Predict many loads on one deployment.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    mixes : Mixes
        The loads, as its engine packs them.
    exact : bool, optional
        Time every step instead of reading a table.

    Returns
    -------
    Columns
        What `glmplan.predict` says of each load: of few loads itself, of more within `TOLERANCE`. Some of these are
        computed one by one, and where the table is farther off, all are.
    """
    # the table leaves the front end out of rates, which answers of one token wait for most
    alone = exact or len(mixes.users) <= _FEW
    if alone or not runs_on_accelerators(deployment) or (mixes.outputs == 1).any():
        return exact_columns(deployment, [mixes.load(place) for place in range(len(mixes.users))])
    found = _tabulated(deployment, step_model_of(deployment), mixes)
    if found.error > TOLERANCE:
        return exact_columns(deployment, [mixes.load(place) for place in range(len(mixes.users))])
    return found


def _tabulated(deployment: Deployment, model: StepModel, mixes: Mixes) -> Columns:
    seconds, front = _seconds(deployment, model, mixes)
    steps, [least] = _step_seconds(deployment, model, mixes, seconds), least_of([deployment], [mixes.table.points])
    bounds = StepSeconds(least, least, np.zeros(1))
    known = known_of_points(deployment, mixes.users, mixes.inputs, mixes.outputs, fit=load_effects(deployment.engine))
    waiting = waiting_share(mixes.users)
    figures: dict[str, np.ndarray] = {}
    for name in FIGURES:
        total, bound = mixes.figure(name, steps), mixes.figure(name, bounds)
        total = total + mixes.fronts[name] * front
        if name == "ttft":
            total = total * np.exp(waiting * known.ttft_scale)
            # how long prompts wait for each other is a model and no bound
            bound = np.where(waiting == 0.0, bound, 0.0)
        low, high = known.ends[INTERVAL_KINDS[name]]
        times = [np.maximum(one, bound) for one in (total, total * np.exp(low), total * np.exp(high))]
        if name == "output_rate":
            times = [mixes.tokens / one for one in (times[0], times[2], times[1])]
        figures |= {name + end: np.where(total > 0, one, np.nan) for end, one in zip(_ENDS, times, strict=True)}
    return Columns(figures, known.knowledge, known.basis, exact=False, error=mixes.error(steps))


def _seconds(deployment: Deployment, model: StepModel, mixes: Mixes) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the steps of the table, and of the front end of one request of each load."""
    points = mixes.table.points
    lengths, places = np.unique(mixes.inputs, return_inverse=True)
    # graphs hold the pass of a short prompt, and of no other: two calls only where there are both
    short = lengths <= deployment.graph_tokens
    front, seconds = np.empty(len(lengths)), np.empty(0)
    for here in (short, ~short):
        if not here.any():
            continue
        steps = points if not len(seconds) else StepPoints(*[np.empty(0)] * 4)
        timed = _timed(model, steps, lengths[here].astype(float))
        front[here] = timed.seconds[len(timed.seconds) - int(here.sum()) :]
        if not len(seconds):
            count = len(points.decode_requests)
            seconds = timed.seconds[:count]
    return seconds, front[places] + np.where(mixes.users <= 1.0, wake_seconds(deployment), 0.0)


def _step_seconds(deployment: Deployment, model: StepModel, mixes: Mixes, seconds: np.ndarray) -> StepSeconds:
    """Times of steps, those that hide shared experts beside the routed ones apart."""
    found, hidden = without_hiding(model), np.zeros(len(mixes.sizes.decode_requests))
    if found is None:
        return StepSeconds(seconds, seconds, hidden)
    level, tokens = found
    some = np.flatnonzero(may_hide(deployment, mixes.sizes, tokens))
    if len(some):
        sizes = StepPoints(*(getattr(mixes.sizes, name)[some] for name in NODES))
        hidden[some] = level.times(sizes).seconds - model.times(sizes).seconds
    return StepSeconds(seconds, level.times(mixes.table.points).seconds, hidden)


def _timed(model: StepModel, points: StepPoints, lengths: np.ndarray) -> StepTime:
    """Steps, and behind them the front end of one request of each length."""
    count, zero, one = len(points.decode_requests), np.zeros(len(lengths)), np.ones(len(lengths))
    ranks = np.concatenate([np.broadcast_to(points.busy_ranks, count), np.full(len(lengths), np.inf)])
    both = StepPoints(**{name: np.concatenate([getattr(points, name), zero]) for name in NODES}, busy_ranks=ranks)
    none = np.zeros(count)
    front = FrontPoints(np.concatenate([none, one]), np.concatenate([none, lengths]), float(lengths[0]))
    return model.times(both, front)


def exact_columns(deployment: Deployment, loads: list[Load], *, timed: bool = True) -> Columns:
    """Predict loads one by one.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    loads : list of Load
        The loads.
    timed : bool, optional
        Whether prompts can be timed. Without prompts between the answers a rate is a bound, which no other machine may
        be compared with: all but the time per token is left out.

    Returns
    -------
    Columns
        What `glmplan.prediction.predict` says.
    """
    found = predict_many([(deployment, load, None) for load in loads])
    names = [name for name in FIGURES if timed or "tpot" in name]
    lacking = {name + end: np.full(len(loads), np.nan) for name in FIGURES for end in _ENDS}
    figures = lacking | {
        name + end: np.array([_figure(one, name, end) for one in found]) for name in names for end in _ENDS
    }
    return Columns(figures, found[0].knowledge, found[0].basis, exact=True, error=0.0)


def _figure(found: Prediction, name: str, end: str) -> float:
    one = found.figures.get(name)
    if one is None:
        return float("nan")
    value: float = getattr(one, end[1:] or "value")
    return value
