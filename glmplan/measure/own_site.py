"""Predicting the steps of a ladder, also calibrated on some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from glmplan.calibrate.step.observations import Design, design_of
from glmplan.calibrate.step.own_site import SiteFit, left_open, update_site
from glmplan.calibrate.step.processors import MISSED
from glmplan.errors import GlmplanError, SpecError
from glmplan.measure.predicted_steps import Case
from glmplan.measure.verdict import METRICS, PredictedStep
from glmplan.prediction.from_row import Question
from glmplan.prediction.predict import predict
from glmplan.prediction.step_models import runs_on_accelerators
from glmplan.readers.runs.figures import FIGURES
from glmplan.readers.runs.record import Run
from glmplan.units import QUANTILE_90

__all__ = ["fit_site", "predicted_steps"]


def _design(cases: Sequence[Case], measured: Sequence[Mapping[str, float]]) -> Design:
    questions = []
    for case, row in zip(cases, measured, strict=True):
        d = case.deployment
        figures = {metric: row[metric] for metric in METRICS if metric in row}
        run = Run(f"{case.level:g}", d.model.name, d.accelerator.name, engine=d.engine, observed=figures)
        questions.append(Question(run, d, case.load, ()))
    return design_of(questions)


def fit_site(cases: Sequence[Case], measured: Sequence[Mapping[str, float]]) -> SiteFit:
    """Fit the effects of one site to measured steps, as `glmplan calibrate --from` does.

    Parameters
    ----------
    cases : sequence of Case
        Steps, all of one deployment.
    measured : sequence of mapping
        Their measured figures, in the columns of the tables.

    Returns
    -------
    SiteFit
        Effects with their covariance.

    Raises
    ------
    SpecError
        If no step has a figure that is predicted, or all are faster than can be.
    """
    if not all(runs_on_accelerators(case.deployment) for case in cases):
        part = cases[0].deployment.accelerator.full_name
        words = f"cannot be done on {part}: its steps are timed by bytes alone, which have no effects to fit"
        raise SpecError(words, field="--calibrate-on")
    try:
        return update_site(_design(cases, measured))
    except GlmplanError as error:
        raise SpecError(str(error), field="--calibrate-on") from None


def predicted_steps(cases: Sequence[Case], *, site: SiteFit | None = None) -> tuple[list[PredictedStep], list[str]]:
    """Predict the steps of a ladder with their 90 % intervals.

    Parameters
    ----------
    cases : sequence of Case
        The steps.
    site : SiteFit, optional
        A site calibration; the shipped fit by default.

    Returns
    -------
    tuple
        Predictions, and what they rest on.

    Raises
    ------
    SpecError
        If a step cannot be predicted.
    """
    steps, rests = [], []
    for case in cases:
        effects = None if site is None else site.effects[case.deployment.engine]
        try:
            found = predict(case.deployment, case.load, effects=effects)
        except GlmplanError as error:
            raise SpecError(f"cannot be predicted: {error}", field=case.deployment.model.name) from None
        kinds = [FIGURES[metric] for metric in METRICS if FIGURES[metric].predicted in found.figures]
        figures = {one.column: found.figures[one.predicted].scaled(1.0 / one.factor) for one in kinds}
        middle = {m: f.value for m, f in figures.items()}
        low, high = {m: f.low for m, f in figures.items()}, {m: f.high for m, f in figures.items()}
        if site is None:
            rests += [text for text in (found.basis, found.out_of_domain) if text]
        else:
            for metric, half in _half_widths(case, site, middle).items():
                low[metric], high[metric] = middle[metric] * float(np.exp(-half)), middle[metric] * float(np.exp(half))
        steps.append(PredictedStep(case.level, middle, low, high))
    return steps, ["calibrated on this server"] if site is not None else list(dict.fromkeys(rests))


def _half_widths(case: Case, site: SiteFit, middle: Mapping[str, float]) -> dict[str, float]:
    """Half width of each figure's 90 % interval in logarithms: what the fit leaves open, and what its form misses."""
    design = _design([case], [middle])
    if case.deployment.structure.part.is_processor:
        missed = {kind: QUANTILE_90 * deviation for kind, deviation in MISSED.items()}
    else:
        ends = site.effects[case.deployment.engine].intervals["site"]
        missed = {kind: (high - low) / 2.0 for kind, (low, high) in ends.items()}
    pairs = zip(design.figure.tolist(), left_open(site, design), strict=True)
    return {metric: float(np.hypot(QUANTILE_90 * open_, missed[FIGURES[metric].interval])) for metric, open_ in pairs}
