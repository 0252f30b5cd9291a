"""Predict load steps, compare them with measurements, calibrate a site."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import comb, hypot, inf, log
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.calibrate.step.observations import Design, design_of
from glmplan.calibrate.step.own_site import MISSED, SiteFit, left_open, update_site
from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.costs.points import Layout
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.runs.columns import FIGURES
from glmplan.io.runs.record import Run
from glmplan.measure.ladder import LadderPlan, StepResult
from glmplan.measure.server_facts import ServerFacts
from glmplan.prediction.deployment import Deployment, default_kv, deploy
from glmplan.prediction.from_row import RunCase
from glmplan.prediction.load import ENDLESS, Load, user_load
from glmplan.prediction.predict import predict
from glmplan.prediction.reproduce import REPRODUCED, relative_error, verdict_of
from glmplan.prediction.step_models import runs_on_accelerators
from glmplan.units import QUANTILE_90, Ratio

__all__ = [
    "METRICS",
    "Case",
    "Compared",
    "PredictedStep",
    "by_chance",
    "compare",
    "consistent",
    "fit_site",
    "ladder_cases",
    "predicted_pool",
    "predicted_steps",
    "worst",
]


@dataclass(frozen=True, slots=True)
class Case:
    """A load step to predict."""

    level: float  # users [-] or rate [1/s]
    deployment: Deployment
    load: Load


@lru_cache(maxsize=1)
def _this_machine() -> Accelerator:
    from glmplan.catalog.entries.accelerators import load_accelerator
    from glmplan.io.machines.this_machine import probe_machine

    probed = probe_machine(seconds=0.5)
    return probed.part if probed.part is not None else load_accelerator(probed.host.accelerator)


def _deployment_of_files(facts: Mapping[str, Any], served: ServerFacts) -> tuple[Deployment, list[str]]:
    """Return the deployment of a model or machine file, or of this machine."""
    from glmplan.catalog.entries.accelerators import load_accelerator
    from glmplan.catalog.entries.names import kv_name
    from glmplan.io.models.checkpoints import checkpoint_for, read_by
    from glmplan.io.models.resolve import resolve_model
    from glmplan.prediction.from_row import STAND_IN

    choice = resolve_model(str(facts["model"]))
    where = str(facts["accelerator"])
    if where == "this-machine":
        accelerator = _this_machine()
    else:
        accelerator = load_accelerator(Path(where) if where.endswith(".toml") else where)
    weights = facts.get("weights") if not os.path.exists(str(facts["model"])) else None
    checkpoint = choice.checkpoint if weights is None else checkpoint_for(choice.model, str(weights))
    layout = Layout(*(int(float(facts.get(name) or 1)) for name in ("tp", "pp", "dp", "ep", "dcp")))
    engine_name = facts.get("engine") or served.engine
    engine = str(engine_name or STAND_IN)
    if choice.exact_bytes is None:
        checkpoint = read_by(choice.model, checkpoint, engine)
    kv = kv_name(str(facts.get("kv_cache") or "")) or default_kv(
        checkpoint, engine, model=choice.model, accelerator=accelerator
    )
    deployment = deploy(choice.model, checkpoint, accelerator, kv=kv, engine=engine, layout=layout)
    return deployment, [*([] if engine_name else [f"engine {engine}"]), f"kv {kv}", f"machine {accelerator.full_name}"]


def _deployment_of_names(facts: Mapping[str, Any], plan: LadderPlan) -> tuple[Deployment, list[str]]:
    from glmplan.io.runs.table import run_from_row
    from glmplan.prediction.from_row import question_of

    request = {key: f"{value:g}" if isinstance(value, float) else str(value) for key, value in facts.items()}
    # the load steps fix the lengths
    lengths = {"input_tokens": f"{plan.lengths.input_tokens}", "output_tokens": f"{plan.lengths.output_tokens}"}
    ladder = {"id": "ladder", "phase": "serving", "protocol": "closed-loop", "concurrency": "1", **lengths}
    run = run_from_row(ladder | request)
    question = question_of(run)
    return question.deployment, list(question.assumed)


def ladder_cases(
    plan: LadderPlan,
    facts: Mapping[str, Any],
    *,
    served: ServerFacts,
    measured: Mapping[float, Mapping[str, float]] | None = None,
) -> tuple[list[Case], list[str]]:
    """Return the load steps as cases, and the assumptions.

    `facts` are columns of a run that name the deployment; `model` may be a file (config.json, .gguf), `accelerator` a
    TOML file or `this-machine`. KV pool and batch limit are those reported by the server, lengths those `measured`
    (level → metrics).
    """
    model, part = str(facts.get("model")), str(facts.get("accelerator"))
    if os.path.exists(model) or part == "this-machine" or part.endswith(".toml"):
        deployment, assumed = _deployment_of_files(facts, served)
    else:
        deployment, assumed = _deployment_of_names(facts, plan)
    mean = (1.0 + plan.lengths.shortest) / 2.0
    cases = []
    for level in [rate for rate, _ in plan.schedules] or [float(users) for users in plan.users]:
        seen = (measured or {}).get(level, {})
        users = max(seen.get("concurrency_effective", level), 1.0) if plan.schedules else level
        load = user_load(
            deployment.defaults,
            ranks=deployment.dp,
            tokens_per_step=deployment.tokens_per_step,
            draft_tokens=deployment.draft_chain,
            users=users,
            input_tokens=seen.get("input_tokens", plan.lengths.input_tokens * mean),
            output_tokens=seen.get("output_tokens", plan.lengths.output_tokens * mean),
            requests=max(plan.requests or round(50 * users), 1),
            staggered=plan.requests is None,
            shortest=min(plan.lengths.shortest / mean, 1.0),
            longest=max(1.0 / mean, 1.0),
            pool_tokens=served.kv_tokens or ENDLESS,
            **({"max_requests": int(served.max_sequences)} if served.max_sequences else {}),
        )
        cases.append(Case(level, deployment, load))
    return cases, assumed


def predicted_pool(case: Case, served: ServerFacts) -> tuple[float, float, float] | None:
    """Return the predicted KV pool with its 90 % interval [token]

    The server's longest request matters for sliding windows and recurrent states. None if memory cannot be computed, as
    on a CPU, whose pool is a setting.
    """
    from glmplan.catalog.engines.memory import load_memory_rule, memory_engines
    from glmplan.costs.memory import kv_pool, part_memory, rank_memory

    d = case.deployment
    # engines with a fixed reserve, and all engines on a CPU, take the pool size as a setting
    if d.engine not in memory_engines() or d.accelerator.kind == "cpu-socket":
        return None
    if load_memory_rule(d.engine).pool == "rest":
        return None
    settings = d.settings.memory(
        engine=d.engine, version=d.version, accelerator=d.accelerator.name, draft_tokens=d.draft_tokens
    )
    try:
        ranks = rank_memory(
            d.model,
            d.checkpoint,
            layout=d.layout,
            kv=d.kv,
            settings=settings,
            mtp=d.draft_tokens > 0,
            memory=d.accelerator.memory,
        )
        pool = kv_pool(ranks, part_memory(d.accelerator), context=served.max_context or float(d.model.max_context))
    except GlmplanError:
        return None
    return float(pool.tokens[0]), float(pool.tokens_low[0]), float(pool.tokens_high[0])


#: compared metrics of a load step
METRICS = ("ttft_mean_ms", "tpot_mean_ms", "output_tokens_per_s")
#: expected share of misses of a 90 % interval; significance level of more misses [-]
_MISSED, _BY_CHANCE = 0.1, 0.05
#: distance in half-widths (3.3 standard deviations) beyond which a single miss is significant [-]
_FAR = 2.0


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """Prediction of one step."""

    level: float  # users [-] or rate [1/s]
    middle: Mapping[str, float]  # metrics in the units of their names
    low: Mapping[str, float] = field(default_factory=dict)
    high: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric of one step, measured and predicted."""

    level: float  # users [-] or rate [1/s]
    metric: str  # name with unit
    measured: float
    predicted: float
    low: float | None = None
    high: float | None = None
    error: float = 0.0  # standard error of the measured value

    @property
    def difference(self) -> float:
        """Return predicted / measured - 1 [-]"""
        return float(relative_error(self.predicted, self.measured))

    @property
    def verdict(self) -> str:
        """Return the verdict on the metric, see `verdict_of`."""
        return verdict_of(self.difference)

    @property
    def inside(self) -> bool:
        """Return True if the measured value is in the predicted interval.

        The interval is widened by the measurement error; without an interval the verdict ``reproduced`` counts.
        """
        return self.distance <= 1.0

    @property
    def distance(self) -> float:
        """Return the deviation in half-widths of the interval [-]

        Prediction and measurement errors widen the interval together; without an interval the bound of ``reproduced``
        is 1.
        """
        apart = log(self.measured / self.predicted)
        end = self.high if apart > 0 else self.low
        if end is None:
            return abs(self.difference) / REPRODUCED
        half = hypot(log(end / self.predicted), QUANTILE_90 * self.error / self.measured)
        return abs(apart) / half if half else inf if apart else 0.0


def compare(steps: Sequence[StepResult], predicted: Sequence[PredictedStep]) -> list[Compared]:
    """Return each metric that measured and predicted steps share."""
    by_level = {step.level: step for step in predicted}
    pairs = []
    for step in steps:
        other = by_level.get(step.level)
        for metric in METRICS if other is not None else ():
            measured = step.figures.get(metric)
            assert other is not None
            if measured and metric in other.middle:
                interval = (other.low.get(metric), other.high.get(metric))
                error = step.errors.get(metric, 0.0)
                pairs.append(Compared(step.level, metric, measured, other.middle[metric], *interval, error))
    return pairs


def worst(compared: Sequence[Compared]) -> Ratio:
    """Return the largest relative difference."""
    return max((abs(one.difference) for one in compared), default=0.0)


def by_chance(figures: int) -> int:
    """Return the number of misses that correct 90 % intervals may have.

    The smallest number that chance exceeds with a probability of at most 5 %.

    Examples
    --------
    >>> [by_chance(n) for n in (1, 3, 6, 18)]
    [1, 1, 2, 4]
    """
    left, outside = 1.0, -1
    while left > _BY_CHANCE:
        outside += 1
        left -= comb(figures, outside) * _MISSED**outside * (1 - _MISSED) ** (figures - outside)
    return outside


def consistent(compared: Sequence[Compared]) -> bool:
    """Return True if predictions and intervals agree with the measurements.

    One in ten values misses a correct 90 % interval. Significant are more misses than `by_chance`, or one at twice the
    distance. False without any value.

    Examples
    --------
    >>> near, out, far = (Compared(1, "tpot_mean_ms", x, 10.0, 9.0, 11.0) for x in (10.5, 11.5, 13.0))
    >>> consistent([near, near, out]), consistent([near, out, out]), consistent([near, near, far]), consistent([])
    (True, False, False, False)
    """
    outside = sum(not one.inside for one in compared)
    return bool(compared) and outside <= by_chance(len(compared)) and all(one.distance <= _FAR for one in compared)


def _design(cases: Sequence[Case], measured: Sequence[Mapping[str, float]]) -> Design:
    run_cases = []
    for case, row in zip(cases, measured, strict=True):
        d = case.deployment
        figures = {metric: row[metric] for metric in METRICS if metric in row}
        run = Run(f"{case.level:g}", d.model.name, d.accelerator.name, engine=d.engine, observed=figures)
        run_cases.append(RunCase(run, d, case.load, ()))
    return design_of(run_cases)


def fit_site(cases: Sequence[Case], measured: Sequence[Mapping[str, float]]) -> SiteFit:
    """Return the site effects of measured steps, as `calibrate --from`."""
    if not all(runs_on_accelerators(case.deployment) for case in cases):
        accelerator = cases[0].deployment.accelerator.full_name
        message = f"cannot be done on {accelerator}: its steps are timed by bytes alone, which have no effects to fit"
        raise SpecError(message, field="--calibrate-on")
    try:
        return update_site(_design(cases, measured))
    except GlmplanError as error:
        raise SpecError(str(error), field="--calibrate-on") from None


def predicted_steps(cases: Sequence[Case], *, site: SiteFit | None = None) -> tuple[list[PredictedStep], list[str]]:
    """Return the predicted steps with 90 % intervals, and notes.

    Uses the site calibration `site`, if given, instead of the shipped fit.
    """
    steps, rests = [], []
    for case in cases:
        effects = None if site is None else site.effects[case.deployment.engine]
        try:
            prediction = predict(case.deployment, case.load, effects=effects)
        except GlmplanError as error:
            raise SpecError(f"cannot be predicted: {error}", field=case.deployment.model.name) from None
        kinds = [FIGURES[metric] for metric in METRICS if FIGURES[metric].predicted in prediction.figures]
        figures = {one.column: prediction.figures[one.predicted].scaled(1.0 / one.factor) for one in kinds}
        middle = {m: f.value for m, f in figures.items()}
        low, high = {m: f.low for m, f in figures.items()}, {m: f.high for m, f in figures.items()}
        if site is None:
            rests += [text for text in (prediction.basis, prediction.out_of_domain) if text]
        else:
            for metric, half in _half_widths(case, site, middle).items():
                low[metric], high[metric] = middle[metric] * float(np.exp(-half)), middle[metric] * float(np.exp(half))
        steps.append(PredictedStep(case.level, middle, low, high))
    return steps, ["calibrated on this server"] if site is not None else list(dict.fromkeys(rests))


def _half_widths(case: Case, site: SiteFit, middle: Mapping[str, float]) -> dict[str, float]:
    """Return the log half-width of each metric: posterior and model error."""
    design = _design([case], [middle])
    if case.deployment.structure.part.is_processor:
        missed = {kind: QUANTILE_90 * deviation for kind, deviation in MISSED.items()}
    else:
        intervals = site.effects[case.deployment.engine].intervals["site"]
        missed = {kind: (high - low) / 2.0 for kind, (low, high) in intervals.items()}
    pairs = zip(design.figure.tolist(), left_open(site, design), strict=True)
    return {metric: float(np.hypot(QUANTILE_90 * open_, missed[FIGURES[metric].interval])) for metric, open_ in pairs}
