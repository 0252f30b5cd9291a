"""Predicting the steps of a ladder, and calibrating the prediction on some of them: a site calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.deployment import Deployment, link_of, runs_sparse
from glmplan.errors import GlmplanError, SpecError
from glmplan.hierarchy import LEVELS, Effects, keys_of, load_effects
from glmplan.measure.ladder import LadderPlan
from glmplan.measure.server_facts import ServerFacts
from glmplan.measure.verdict import PredictedStep
from glmplan.observables import Load
from glmplan.predict import predict, predict_many
from glmplan.schema.hardware import Accelerator

__all__ = ["Case", "SiteFit", "fit_site", "ladder_cases", "predicted_pool", "predicted_steps"]

#: figure of the tables → figure of a prediction, from base units to the table's, kind of its interval
_FIGURES = {
    "ttft_mean_ms": ("ttft", 1e3, "ttft"),
    "tpot_mean_ms": ("tpot", 1e3, "decode"),
    "output_tokens_per_s": ("output_rate", 1.0, "decode"),
}
#: standard normal quantile of a 90 % interval, [-]
_QUANTILE_90 = 1.6449


@dataclass(frozen=True, slots=True)
class Case:
    """One step of a ladder as a question.

    Parameters
    ----------
    level : float
        Users [-] or rate [1/s]
    deployment : Deployment
        What serves.
    load : Load
        What is asked of it.
    """

    level: float
    deployment: Deployment
    load: Load


@dataclass(frozen=True, slots=True)
class SiteFit:
    """Effects fitted to a few steps of one server.

    Parameters
    ----------
    effects : Effects
        The shipped effects with those of this site at the level of the configuration.
    place : ndarray
        The site's effects, shape (21,), [-]
    covariance : ndarray
        Their covariance, shape (21, 21), [-]
    noise : dict
        Kind of figure → standard deviation of the logarithm of what the fit does not explain, [-]
    """

    effects: Effects
    place: np.ndarray
    covariance: np.ndarray
    noise: Mapping[str, float]


@lru_cache(maxsize=1)
def _this_machine() -> Accelerator:
    from glmplan.catalog_hardware import load_accelerator
    from glmplan.probe.machine import probe_machine

    found = probe_machine(seconds=0.5)
    return found.part if found.part is not None else load_accelerator(found.host.accelerator)


def _deployment_of_files(facts: Mapping[str, Any], served: ServerFacts) -> tuple[Deployment, list[str]]:
    """Return the deployment of a model or a machine that is described by a file, or of this machine."""
    from glmplan.catalog_hardware import load_accelerator
    from glmplan.naming import kv_name
    from glmplan.resolve_model import checkpoint_for, resolve_model

    choice = resolve_model(str(facts["model"]))
    where = str(facts["accelerator"])
    if where == "this-machine":
        part = _this_machine()
    else:
        part = load_accelerator(Path(where) if where.endswith(".toml") else where)
    weights = facts.get("weights") if not Path(str(facts["model"])).exists() else None
    checkpoint = choice.checkpoint if weights is None else checkpoint_for(choice.model, str(weights))
    size = {name: int(float(facts.get(name) or 1)) for name in ("tp", "pp", "dp", "ep", "dcp")}
    engine = str(facts.get("engine") or served.engine or "vllm")
    kv = kv_name(str(facts.get("kv_cache") or "")) or ("f16" if engine == "llama.cpp" else "bf16")
    deployment = Deployment(
        model=choice.model,
        checkpoint=checkpoint,
        accelerator=part,
        count=size["tp"] * size["pp"] * size["dp"],
        tp=size["tp"],
        pp=size["pp"],
        dp=size["dp"],
        ep=size["ep"],
        dcp=size["dcp"],
        kv=kv,
        engine=engine,
        release=None,
        graphs=True,
        draft_tokens=0,
        acceptance=None,
        sparse=runs_sparse(part, None),
        link=link_of(part, size["tp"] * size["dp"]),
    )
    return deployment, [f"kv {kv}", f"machine {part.full_name}"]


def _deployment_of_names(facts: Mapping[str, Any]) -> tuple[Deployment, list[str]]:
    from glmplan.question import question_of
    from glmplan.runs import run_from_row

    words = {key: f"{value:g}" if isinstance(value, float) else str(value) for key, value in facts.items()}
    run = run_from_row({"id": "ladder", "phase": "serving", "protocol": "closed-loop", "concurrency": "1", **words})
    question = question_of(run)
    return question.deployment, list(question.assumed)


def ladder_cases(
    plan: LadderPlan,
    facts: Mapping[str, Any],
    *,
    served: ServerFacts,
    measured: Mapping[float, Mapping[str, float]] | None = None,
) -> tuple[list[Case], list[str]]:
    """Turn the steps of a ladder into questions.

    Parameters
    ----------
    plan : LadderPlan
        The steps.
    facts : mapping
        Columns of a run that name the deployment. `model` may be a file (config.json, .gguf), `accelerator` a TOML
        file or `this-machine`.
    served : ServerFacts
        What the server tells: pool and largest batch are taken from it where it tells them.
    measured : mapping, optional
        Level → figures that were measured, for the real lengths.

    Returns
    -------
    tuple
        Questions, and what was assumed.

    Raises
    ------
    SpecError
        If the deployment does not hold together.
    """
    from glmplan.packing import engine_defaults

    model, part = str(facts.get("model")), str(facts.get("accelerator"))
    if Path(model).exists() or part == "this-machine" or part.endswith(".toml"):
        deployment, assumed = _deployment_of_files(facts, served)
    else:
        deployment, assumed = _deployment_of_names(facts)
    packing = engine_defaults(deployment.engine)
    mean = (1.0 + plan.lengths.shortest) / 2.0
    cases = []
    for level in [rate for rate, _ in plan.schedules] or [float(users) for users in plan.users]:
        seen = (measured or {}).get(level, {})
        users = max(seen.get("concurrency_effective", level), 1.0) if plan.schedules else level
        load = Load(
            phase="serving",
            concurrency=users,
            input_tokens=seen.get("input_tokens", plan.lengths.input_tokens * mean),
            output_tokens=seen.get("output_tokens", plan.lengths.output_tokens * mean),
            # a steady state has no start-up burst: so many requests that the burst does not show
            requests=max(plan.requests or round(50 * users), 1),
            shortest=min(plan.lengths.shortest / mean, 1.0),
            longest=max(1.0 / mean, 1.0),
            budget=packing.budget,
            prefill_first=packing.prefill_first,
            max_requests=int(served.max_sequences or packing.max_requests),
            pool_tokens=served.kv_tokens or float(1 << 60),
            tokens_per_step=deployment.tokens_per_step,
        )
        cases.append(Case(level, deployment, load))
    return cases, assumed


def predicted_pool(case: Case, served: ServerFacts) -> tuple[float, float, float] | None:
    """Predict the KV pool of the deployment, to be compared with the server's own.

    Parameters
    ----------
    case : Case
        A step of the ladder.
    served : ServerFacts
        What the server tells: its longest request matters for sliding windows and recurrent states.

    Returns
    -------
    tuple of float or None
        Tokens and the ends of their 90 % interval, [token]; None where memory cannot be computed, as on a processor
        whose pool is whatever it was told.
    """
    from glmplan.memory import MemorySettings, kv_pool, part_memory, rank_memory
    from glmplan.memory_rules import memory_engines

    d = case.deployment
    # llama.cpp and engines on a processor take the pool they are told to take
    if d.engine not in memory_engines() or d.engine == "llama.cpp" or d.accelerator.kind == "cpu-socket":
        return None
    version = ".".join(map(str, d.release)) if d.release else None
    settings = MemorySettings(engine=d.engine, version=version, accelerator=d.accelerator.name, indexer=d.indexer)
    try:
        held = rank_memory(
            d.model,
            d.checkpoint,
            layout=d.layout,
            kv=d.kv,
            settings=settings,
            mtp=d.draft_tokens > 0,
            memory=d.accelerator.memory,
        )
        pool = kv_pool(held, part_memory(d.accelerator), context=served.max_context or float(d.model.max_context))
    except GlmplanError:
        return None
    return float(pool.tokens[0]), float(pool.tokens_low[0]), float(pool.tokens_high[0])


def _logarithms(cases: Sequence[Case], effects: Effects) -> np.ndarray:
    """Return the logarithms of the predicted figures, shape (cases, figures), NaN where there is none."""
    found = predict_many([(case.deployment, case.load, None) for case in cases], effects=effects)
    names = [name for name, _, _ in _FIGURES.values()]
    rows = [[one.figures[n].value if n in one.figures else np.nan for n in names] for one in found]
    return np.log(np.array(rows))


def _with_site(effects: Effects, key: str, place: np.ndarray) -> Effects:
    level = dict(effects.values.get("configuration", {}))
    level[key] = level.get(key, 0.0) + place
    return replace(effects, values={**effects.values, "configuration": level})


def fit_site(
    cases: Sequence[Case],
    measured: Sequence[Mapping[str, float]],
    *,
    errors: Sequence[Mapping[str, float]] | None = None,
) -> SiteFit:
    """Fit the effects of one site to measured steps.

    The effects of the levels that were never measured for this deployment are unknown; their prior is the spread that
    the shipped fit found between keys of each level. The steps move them as far as they say, and what the steps do not
    say keeps its spread. Figures that no parameter explains differ by the noise of a known configuration.

    Parameters
    ----------
    cases : sequence of Case
        Steps, all of one deployment.
    measured : sequence of mapping
        Their measured figures, in the columns of the tables.
    errors : sequence of mapping, optional
        Standard errors of these figures, in the same units; what has none counts as exact.

    Returns
    -------
    SiteFit
        Effects with their covariance.

    Raises
    ------
    SpecError
        If no step has a figure that is predicted.

    References
    ----------
    .. [1] Maximum a posteriori of a linear-Gaussian model around its optimum: C. E. Rasmussen, C. K. I. Williams,
       "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.1.
    """
    from scipy.optimize import least_squares

    from glmplan.calibrate.site import SITE_NOISE

    deployment = cases[0].deployment
    shipped = load_effects(deployment.engine)
    keys = keys_of(deployment)
    _, known = shipped.sum_of(keys)
    # the release of an engine on a site is never known
    unknown = [not found or level in ("configuration", "release") for level, found in zip(LEVELS, known, strict=True)]
    if not known[LEVELS.index("engine_accelerator")]:
        # a part that no engine was measured on: what holds for the others is no more than a prior for it
        unknown = [True] * len(LEVELS)
    spread = np.sqrt(np.square(shipped.spread[unknown]).sum(axis=0)) + 1e-6
    noise = {
        kind: (high - low) / 2.0 / _QUANTILE_90 for kind, (low, high) in shipped.intervals["configuration"].items()
    }
    target = np.log(
        np.array([[row.get(name, np.nan) / unit for name, (_, unit, _) in _FIGURES.items()] for row in measured])
    )
    # the same server measured again differs by little; what the form of the step time misses widens the predictions
    floor = np.array([SITE_NOISE[kind] for _, _, kind in _FIGURES.values()])
    relative = np.array(
        [[error.get(name, 0.0) / row.get(name, np.inf) for name in _FIGURES] for error, row in
         zip(errors or [{}] * len(cases), measured, strict=True)]
    )  # fmt: skip
    deviation = np.sqrt(floor**2 + relative**2)
    usable = np.isfinite(target) & np.isfinite(_logarithms(cases, shipped))
    if not usable.any():
        raise SpecError("no measured step has a figure to calibrate with", field="--calibrate-on")
    key = keys[LEVELS.index("configuration")]

    def misfit(scaled: np.ndarray) -> np.ndarray:
        found = _logarithms(cases, _with_site(shipped, key, scaled * spread))
        return np.concatenate([((found - target) / deviation)[usable], scaled])

    solved = least_squares(misfit, np.zeros(spread.size), max_nfev=200)
    slopes = np.asarray(solved.jac)
    precision = slopes.T @ slopes
    covariance = np.linalg.inv(precision) * np.outer(spread, spread)
    place = solved.x * spread
    return SiteFit(_with_site(shipped, key, place), place, covariance, noise)


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
        try:
            found = predict(case.deployment, case.load, effects=None if site is None else site.effects)
        except GlmplanError as error:
            raise SpecError(f"cannot be predicted: {error}", field=case.deployment.model.name) from None
        figures = {m: found.figures[n].scaled(s) for m, (n, s, _) in _FIGURES.items() if n in found.figures}
        low, high = {m: f.low for m, f in figures.items()}, {m: f.high for m, f in figures.items()}
        middle = {m: f.value for m, f in figures.items()}
        if site is None:
            rests += [text for text in (found.basis, found.out_of_domain) if text]
        else:
            for metric, half in _half_widths(case, site).items():
                if metric in middle:
                    low[metric] = float(middle[metric] * np.exp(-half))
                    high[metric] = float(middle[metric] * np.exp(half))
        steps.append(PredictedStep(case.level, middle, low, high))
    return steps, ["calibrated on this server"] if site is not None else list(dict.fromkeys(rests))


def _half_widths(case: Case, site: SiteFit) -> dict[str, float]:
    """Return the half width of each figure's 90 % interval in logarithms: what the fit leaves open, and noise."""
    key = keys_of(case.deployment)[LEVELS.index("configuration")]
    base = _logarithms([case], site.effects)[0]
    step = 0.01
    slope = np.array(
        [
            (_logarithms([case], _with_site(site.effects, key, step * unit))[0] - base) / step
            for unit in np.eye(site.place.size)
        ]
    )
    found = {}
    for column, (metric, (_, _, kind)) in enumerate(_FIGURES.items()):
        variance = slope[:, column] @ site.covariance @ slope[:, column]
        noise = site.noise.get(kind, site.noise["decode"])
        found[metric] = float(_QUANTILE_90 * np.sqrt(variance + noise**2))
    return found
