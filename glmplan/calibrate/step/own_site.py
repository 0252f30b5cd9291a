"""Calibrate for a site: update the shipped hierarchy with its own runs.

The update is Gaussian, without a refit. Effects unknown to the shipped fit (this model on this engine, this accelerator
with this model, …) or beyond it (this machine) have mean zero and the spread of their level; the runs move them
according to their information. No shipped run is on a CPU: its prior is `processor_prior`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glmplan.calibrate.step.joint_fit import evaluate
from glmplan.calibrate.step.observations import Design, build_design, domains_of, part_of, sweeps_of
from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.files import write_atomically
from glmplan.costs.step.model import PARAMETERS
from glmplan.io.runs.columns import FIGURES
from glmplan.io.runs.record import Run
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import (
    COLUMNS,
    LEVELS,
    RELEASES,
    SITE_NOISE,
    Effects,
    keys_of,
    load_effects,
    of_machine,
    site_spread,
)
from glmplan.prediction.step_models import with_site

__all__ = [
    "MISSED",
    "Prior",
    "SiteFit",
    "calibrate_site",
    "left_open",
    "processor_prior",
    "site_errors",
    "update_site",
    "write_site",
]


#: log deviation of the step model on a CPU, and of its steps from minute to minute. Calibrated at 1 and 4 of 1 to 8
#: users, RMS errors on two Xeon cores were 7 and 8 % in TPOT and 4 % in TTFT for 200 MB models, and 17 and 6 % for 52
#: MB models, which fit a cache at times; 10 and 11 % on two cores with AVX-512, 4 and 6 % with AVX2 [-]
MISSED: dict[str, float] = {"decode": 0.15, "ttft": 0.08, "prefill": 0.05}

#: one process with its kernels: no launches, no Python front end. Orders of magnitude of llama.cpp's server on one
#: core: a step of a 1 MB model takes 0.1 ms, admission of a request up to 2 ms. Costs per decoding request and per
#: prompt are counted in each layer as elsewhere: 0.2 ms in a model of eight [s]
_ONE_PROCESS = {
    "host_seconds": 1e-4, "layer_seconds": 1e-5, "moe_layer_seconds": 1e-5, "state_layer_seconds": 1e-5,
    "request_seconds": 2.5e-5, "arrival_seconds": 2e-4, "prompt_token_seconds": 2e-6, "wake_seconds": 1e-4,
}  # fmt: skip
#: log deviations: of these times, of kernels against the probed rates, and of whole steps, because a server may use
#: other threads than the probe [-]
_OF_SECONDS, _OF_KERNELS, _OF_STEPS, _OF_TTFT = 1.0, 0.4, 0.5, 0.1
#: of products and experts, from the differences between the three processors of `glmplan.costs.step.structure`: one
#: row, bandwidth, rate [-]
_OF_PRODUCTS = {
    "gemm_fixed_slowdown": 0.7, "gemm_bytes_slowdown": 0.4, "expert_bytes_slowdown": 0.4,
    "gemm_flop_slowdown": 0.9, "expert_flop_slowdown": 0.9,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prior:
    """Start of a site calibration."""

    mean: np.ndarray  # (22,), as `deviation`, in the order of `COLUMNS` of glmplan.prediction.effects
    deviation: np.ndarray


def processor_prior(deployment: Deployment) -> Prior | None:
    """Return the prior of a deployment on a CPU; None for accelerators.

    Kernels have the parameters of their own forms; accelerators start at the shipped fit.
    """
    if not deployment.structure.part.is_processor:
        return None
    mean = load_effects(deployment.engine).sum_of(("all",) * len(LEVELS))[0]
    deviation = np.full(len(COLUMNS), _OF_KERNELS)
    running = load_engine(deployment.engine).running if deployment.engine in engine_names() else None
    one_process = running is not None and running.one_process
    for place, name in enumerate(PARAMETERS):
        if name.endswith("_seconds"):
            deviation[place] = _OF_SECONDS
            if one_process:
                mean[place] = np.log(_ONE_PROCESS[name])
        else:
            mean[place] = 0.0
        deviation[place] = _OF_PRODUCTS.get(name, deviation[place])
    mean[len(PARAMETERS) :] = 0.0
    deviation[len(PARAMETERS) :] = _OF_STEPS, _OF_TTFT
    return Prior(mean, deviation)


#: Student's degrees of freedom: an outlying row (a queue, a disturbed run) has less weight [-]
_FREEDOM = 4.0
_CONFIGURATION = LEVELS.index("configuration")
_ROUNDS = 20
#: rounds with equal weights, before outliers can be identified
_TRUSTED = 5
#: halvings of a step that lowers the posterior
_HALVINGS = 5
#: largest change of a parameter in one round [-]
_FARTHEST = 0.7


@dataclass(frozen=True)
class SiteFit:
    """Effects fitted to a site's runs."""

    values: dict[str, dict[str, np.ndarray]]  # level → key → effects (22,) on top of the shipped ones
    deviation: dict[str, dict[str, np.ndarray]]  # their posterior deviation
    effects: dict[str, Effects]  # engine → shipped effects with the site's
    used: tuple[str, ...]  # runs
    refused: tuple[tuple[str, str], ...]  # runs and reasons
    before: np.ndarray  # log(measured / predicted), also `after`
    after: np.ndarray
    domain: dict[str, list[float]]  # group → measured range of concurrency and lengths
    keys: tuple[tuple[int, str], ...]  # level and key of each moved effect
    covariance: np.ndarray  # of these, 22 columns for each key


@dataclass(frozen=True)
class _Solved:
    """Keys as (level, key), their effects and covariance, and the residuals."""

    keys: list[tuple[int, int]]
    effect: np.ndarray
    covariance: np.ndarray
    residual: np.ndarray


def _update(
    design: Design,
    base: np.ndarray,
    keys: list[dict[tuple[int, int], np.ndarray]],
    use: np.ndarray | slice = slice(None),
) -> _Solved:
    """Return the effects of some keys, fitted to the observations in use.

    Gauss-Newton on the posterior; Student noise by reweighting, so that outlying rows have less weight.
    """
    names = sorted({key for row in keys for key in row})
    width = len(COLUMNS)
    index = {key: number for number, key in enumerate(names)}
    member = np.zeros((len(keys), len(names)))
    for run, row in enumerate(keys):
        member[run, [index[key] for key in row]] = 1.0
    spread = {key: row for one in keys for key, row in one.items()}
    sigma = np.concatenate([spread[key] for key in names])
    on_cpu = np.array([one.deployment.structure.part.is_processor for one in design.cases])[design.observation_run]
    kinds = [FIGURES[name].interval for name in design.figure]
    # the step model's error differs between measured and other steps
    noise = np.array([np.hypot(SITE_NOISE[kind], MISSED[kind] * cpu) for kind, cpu in zip(kinds, on_cpu, strict=True)])
    effect = np.zeros((len(names), width))
    inverse = np.eye(len(sigma))
    share = member[design.observation_run]

    def scaled_at(effect: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        log_seconds, slope = evaluate(design, base + member @ effect)
        return (design.log_seconds - log_seconds) / noise, slope

    def cost(scaled: np.ndarray, effect: np.ndarray, trusted: bool) -> float:
        square = scaled[use] ** 2
        misfit = square if trusted else (_FREEDOM + 1.0) * np.log1p(square / _FREEDOM)
        return float(misfit.sum() + ((effect.ravel() / sigma) ** 2).sum())

    scaled, slope = scaled_at(effect)
    for round_ in range(_ROUNDS):
        trusted = round_ < _TRUSTED
        weight = np.ones(len(scaled)) if trusted else (_FREEDOM + 1.0) / (_FREEDOM + scaled**2)
        root = np.sqrt(weight)[use]
        jacobian = (share[:, :, None] * (slope / noise[:, None])[:, None, :]).reshape(len(scaled), -1)[use]
        jacobian = jacobian * sigma * root[:, None]
        target = scaled[use] * root + jacobian @ (effect.ravel() / sigma)
        inverse = np.linalg.inv(jacobian.T @ jacobian + np.eye(len(sigma)))
        move = (inverse @ (jacobian.T @ target) * sigma).reshape(effect.shape) - effect
        move = np.clip(move, -_FARTHEST, _FARTHEST)
        before = cost(scaled, effect, trusted)
        for _ in range(_HALVINGS):
            scaled, slope = scaled_at(effect + move)
            if cost(scaled, effect + move, trusted) <= before:
                break
            move = move / 2.0
        effect = effect + move
        scaled, slope = scaled_at(effect)
        if not trusted and np.abs(move).max() < 1e-6:
            break
    return _Solved(names, effect, inverse * np.outer(sigma, sigma), scaled * noise)


def calibrate_site(runs: Iterable[Run], *, effects: Callable[[str], Effects] = load_effects) -> SiteFit:
    """Return the shipped fit updated with a site's runs.

    `effects` maps an engine to its effects before (default: shipped).

    References
    ----------
    .. [1] Maximum a posteriori of a linear-Gaussian model around its optimum: C. E. Rasmussen, C. K. I. Williams,
           "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.1.
    """
    return update_site(build_design([_in_flight(run) for run in runs]), effects=effects)


def _in_flight(run: Run) -> Run:
    """Return a row with a request rate with the concurrency its times imply.

    Little's law: concurrency is arrivals per second times the seconds of each request (J. D. C. Little, "A proof for
    the queuing formula L = λW", Operations Research 9, 1961).
    """
    rate, seen = run.request_rate_per_s, run.observed
    if run.concurrency is not None or not rate or not np.isfinite(rate) or "concurrency_effective" in seen:
        return run
    outputs = run.output_tokens or 0.0
    stays = seen.get("e2e_mean_ms")
    if stays is None and {"ttft_mean_ms", "tpot_mean_ms"} <= set(seen):
        stays = seen["ttft_mean_ms"] + seen["tpot_mean_ms"] * max(outputs - 1.0, 0.0)
    if stays is None:
        return run
    # completed rate, if stated: an overloaded server completes less than arrives
    answered = seen["output_tokens_per_s"] / outputs if outputs and "output_tokens_per_s" in seen else rate
    return replace(run, observed={**seen, "concurrency_effective": min(rate, answered) * stays * 1e-3})


def update_site(whole: Design, *, effects: Callable[[str], Effects] = load_effects) -> SiteFit:
    """Return the shipped fit updated with measured cases; others are refused.

    `effects` maps an engine to its effects before (default: shipped).
    """
    refused = [(run.id, reason) for run, reason in whole.refused]
    chosen = np.unique(whole.observation_run[whole.fitted])
    silent = [case.run.id for n, case in enumerate(whole.cases) if n not in chosen]
    refused += [(name, "has no figure that is predicted") for name in silent]
    design = part_of(whole, chosen, fitted=True)
    # all engines have the same spreads
    wide, base, keys = site_spread(effects(design.cases[0].deployment.engine).spread), [], []
    shift: dict[tuple[int, int], np.ndarray] = {}
    for run, case in enumerate(design.cases):
        # date and exact build are not part of later requests: the configuration takes their effect
        names = tuple(
            "" if level in RELEASES else key for level, key in zip(LEVELS, keys_of(case.deployment), strict=True)
        )
        total, known = effects(case.deployment.engine).sum_of(names)
        own = (_CONFIGURATION, int(design.keys[run, _CONFIGURATION]))
        prior = processor_prior(case.deployment)
        if prior is not None and not known[_CONFIGURATION]:
            # the fit's constants are of accelerators and their hosts
            shift[own] = prior.mean - total
            base.append(prior.mean)
            keys.append({own: prior.deviation})
            continue
        base.append(total)
        own_levels = of_machine(names, known)
        keys.append({(level, int(design.keys[run, level])): wide[level] for level in own_levels})
    solved = _update(design, np.array(base), keys)
    before, _ = evaluate(design, np.array(base))
    spread = np.sqrt(np.diag(solved.covariance)).reshape(solved.effect.shape)
    values: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    deviation: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    named = [(level, design.key_names[level][key]) for level, key in solved.keys]
    for number, (level, name) in enumerate(named):
        values[LEVELS[level]][name] = solved.effect[number] + shift.get(solved.keys[number], 0.0)
        deviation[LEVELS[level]][name] = spread[number]
    domain = dict(sorted(domains_of(design.cases).items()))
    engines = {case.deployment.engine for case in design.cases}
    return SiteFit(
        values=dict(values),
        deviation=dict(deviation),
        effects={name: with_site(effects(name), dict(values), domain=domain) for name in sorted(engines)},
        used=tuple(case.run.id for case in design.cases),
        refused=tuple(refused),
        before=design.log_seconds - before,
        after=solved.residual,
        domain=domain,
        keys=tuple(named),
        covariance=solved.covariance,
    )


def left_open(found: SiteFit, design: Design) -> np.ndarray:
    """Return the posterior log deviation of metrics that were not measured.

    Measured values in `design` have no influence.
    """
    effects = [found.effects[case.deployment.engine] for case in design.cases]
    sums = [fit.sum_of(keys_of(one.deployment))[0] for fit, one in zip(effects, design.cases, strict=True)]
    _, slope = evaluate(design, np.array(sums))
    member = np.array([
        [float(design.key_names[level][row[level]] == name) for level, name in found.keys] for row in design.keys
    ])  # fmt: skip
    jacobian = (member[design.observation_run][:, :, None] * slope[:, None, :]).reshape(len(slope), -1)
    result: np.ndarray = np.sqrt(np.einsum("ij,jk,ik->i", jacobian, found.covariance, jacobian))
    return result


def site_errors(design: Design, base: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return log errors of the update on every sweep, and the sweep numbers.

    A sweep is one build on one day: model, accelerator, engine release, weights, layout and lengths, at four
    concurrencies or more. Its lowest and middle concurrency are given to the update, the others are predicted; NaN for
    all other observations. `base` are effects of a fit without the sweep's model on its accelerator and engine.
    """
    errors, sweep = np.full(len(design.figure), np.nan), np.full(len(design.figure), -1)
    wide = site_spread(spread)
    levels = [level for level in range(len(LEVELS) - 1) if LEVELS[level] in ("engine_model", "group", "configuration")]
    for number, members in enumerate(sweeps_of(design.cases)):
        runs = np.array(members)
        subset = part_of(design, runs, fitted=True)
        users = sorted({case.load.concurrency for case in subset.cases})
        first: dict[float, int] = {}
        for place, case in enumerate(subset.cases):
            if case.load.concurrency in (users[0], users[len(users) // 2]):
                first.setdefault(case.load.concurrency, place)
        use = np.isin(subset.observation_run, list(first.values()))
        keys = [{(level, int(row[level])): wide[level] for level in levels} for row in subset.keys]
        solved = _update(subset, base[runs], keys, use)
        rows = np.flatnonzero(np.isin(design.observation_run, runs) & design.fitted)
        errors[rows[~use]], sweep[rows[~use]] = solved.residual[~use], number
    return errors, sweep


def write_site(found: SiteFit, path: str | Path) -> Path:
    """Write a site's calibration, reproducible byte for byte.

    `glmplan.prediction.step_models.load_site` reads it.
    """

    def quoted(name: str) -> str:
        return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def table(title: str, rows: dict[str, np.ndarray]) -> list[str]:
        lines = [f"{quoted(key)} = [{', '.join(f'{x:.4f}' for x in row)}]" for key, row in sorted(rows.items())]
        return [f"[{title}]", *lines, ""]

    lines = [
        "# Written by `glmplan calibrate --from`, for `--calibration`. Effects come on top of the shipped ones.",
        f"runs = [{', '.join(quoted(name) for name in found.used)}]",
        f"columns = [{', '.join(quoted(name) for name in COLUMNS)}]",
        "",
    ]
    for level in LEVELS:
        if level in found.values:
            lines += table(f"effects.{level}", found.values[level])
            lines += table(f"deviation.{level}", found.deviation[level])
    lines += ["[domain]", *(f"{quoted(key)} = {ends}" for key, ends in found.domain.items()), ""]
    lines += ["[refused]", *(f"{quoted(name)} = {quoted(reason)}" for name, reason in found.refused), ""]
    file = Path(path)
    write_atomically(file, "\n".join(lines))
    return file
