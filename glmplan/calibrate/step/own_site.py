"""A site's own runs: a Gaussian update of the shipped hierarchy, not a refit.

What the shipped fit has never seen (this model on this engine, this part with this model, …) and what it cannot see
(this machine) stands at zero with the spread of its level; the site's runs move it as far as they say.
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
from glmplan.prediction.effects import COLUMNS, LEVELS, SITE_NOISE, Effects, keys_of, load_effects, site_spread
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


# What is taken of an engine on a processor before a site measures it: no row of the shipped fit ran on one.

#: what the form of a step misses on a processor and what its steps differ by from minute to minute, standard deviation
#: of the logarithm. Calibrated on 1 and 4 of 1 to 8 users, models of 200 MB on two cores of a Xeon were off by 7 and
#: 8 % in TPOT and 4 % in TTFT (root mean square), models of 52 MB, which a cache holds now and then, by 17 and 6 %, on
#: two cores with AVX-512 by 10 and 11 %, with AVX2 by 4 and 6 % [-]
MISSED: dict[str, float] = {"decode": 0.15, "ttft": 0.08, "prefill": 0.05}

#: an engine in one process with its kernels: no launches, no front end in Python; orders of magnitude for llama.cpp's
#: server on one core (a step of a 1 MB model takes 0.1 ms, a request is taken in within 2 ms; what a decoding request
#: adds to a step is counted in each layer, as everywhere: 0.2 ms in a model of eight; so is what a prompt adds) [s]
_ONE_PROCESS = {
    "host_seconds": 1e-4, "layer_seconds": 1e-5, "moe_layer_seconds": 1e-5, "state_layer_seconds": 1e-5,
    "request_seconds": 2.5e-5, "arrival_seconds": 2e-4, "prompt_token_seconds": 2e-6, "wake_seconds": 1e-4,
}  # fmt: skip
#: standard deviations of the logarithm: of these times, of kernels against the rates that the probe measured, and of
#: whole steps, because a server may use other threads than the probe [-]
_OF_SECONDS, _OF_KERNELS, _OF_STEPS, _OF_TTFT = 1.0, 0.4, 0.5, 0.1
#: of products and experts, as they differ between the three processors of `glmplan.costs.step.structure`: one row,
#: bandwidth, rate [-]
_OF_PRODUCTS = {
    "gemm_fixed_slowdown": 0.7, "gemm_bytes_slowdown": 0.4, "expert_bytes_slowdown": 0.4,
    "gemm_flop_slowdown": 0.9, "expert_flop_slowdown": 0.9,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prior:
    """Where a site calibration starts.

    Attributes
    ----------
    mean, deviation : (22,) array
        In the order of `glmplan.prediction.effects.COLUMNS`, [log s] or [-]
    """

    mean: np.ndarray
    deviation: np.ndarray


def processor_prior(deployment: Deployment) -> Prior | None:
    """Where a site calibration of a deployment on a processor starts.

    Returns: Kernels as their own forms say; None for accelerators, where the shipped fit is the start.
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


#: Student's degrees of freedom: a row that does not go with the others (a queue, a disturbed run) weighs less [-]
_FREEDOM = 4.0
_CONFIGURATION = LEVELS.index("configuration")
_ROUNDS = 20
#: rounds that follow all rows alike: which row does not go with the others shows only then
_TRUSTED = 5
#: how often a move that makes the posterior worse is halved
_HALVINGS = 5
#: farthest that a parameter moves in one round, [-]
_FARTHEST = 0.7


@dataclass(frozen=True)
class SiteFit:
    """What a site's runs say.

    Attributes
    ----------
    values, deviation : dict of str to dict of str to (22,) array
        Level → key → effects on top of the shipped ones, and what their standard deviation still is, [-]
    effects : dict of str to Effects
        Engine → shipped effects with the site's.
    used : tuple of str
        Runs that it rests on.
    refused : tuple of (str, str)
        Runs that it does not, with the reason.
    before, after : (m,) array
        Measured minus predicted in logarithms, before and after, [-]
    domain : dict of str to list of float
        Group → range of concurrency and lengths measured.
    keys : tuple of (int, str)
        Level and key of each effect that was moved.
    covariance : (n, n) array
        Of these effects, 22 columns for each key, [-]
    """

    values: dict[str, dict[str, np.ndarray]]
    deviation: dict[str, dict[str, np.ndarray]]
    effects: dict[str, Effects]
    used: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]
    before: np.ndarray
    after: np.ndarray
    domain: dict[str, list[float]]
    keys: tuple[tuple[int, str], ...]
    covariance: np.ndarray


@dataclass(frozen=True)
class _Solved:
    """Keys as (level, key), their effects with the covariance, and what they leave."""

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
    """Move the effects of some keys to the observations in use; Gauss-Newton on the whole posterior.

    Noise is Student's, by reweighting: rows that the others leave far off weigh less.
    """
    names = sorted({key for row in keys for key in row})
    width = len(COLUMNS)
    place = {key: number for number, key in enumerate(names)}
    member = np.zeros((len(keys), len(names)))
    for run, row in enumerate(keys):
        member[run, [place[key] for key in row]] = 1.0
    spread = {key: row for one in keys for key, row in one.items()}
    sigma = np.concatenate([spread[key] for key in names])
    on_cpu = np.array([one.deployment.structure.part.is_processor for one in design.questions])[design.observation_run]
    kinds = [FIGURES[name].interval for name in design.figure]
    # what the form misses in the steps that were measured, it does not miss alike in the others
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
    """Update the shipped fit with a site's runs.

    - `effects`: From an engine to what is known so far; the shipped fit by default.
    - Returns: Effects of this site and the shipped effects with them.

    References
    ----------
    .. [1] Maximum a posteriori of a linear-Gaussian model around its optimum: C. E. Rasmussen, C. K. I. Williams,
       "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.1.
    """
    return update_site(build_design([_in_flight(run) for run in runs]), effects=effects)


def _in_flight(run: Run) -> Run:
    """A row that gives a rate instead of users, with the requests in flight that its own times imply.

    Little's law: as many are in flight as arrive in a second times the seconds that each stays (J. D. C. Little,
    "A proof for the queuing formula L = λW", Operations Research 9, 1961).
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
    # what was answered, where it is told: a server that falls behind answers less than arrives
    answered = seen["output_tokens_per_s"] / outputs if outputs and "output_tokens_per_s" in seen else rate
    return replace(run, observed={**seen, "concurrency_effective": min(rate, answered) * stays * 1e-3})


def update_site(whole: Design, *, effects: Callable[[str], Effects] = load_effects) -> SiteFit:
    """Update the shipped fit with what a site measured; rows that cannot be are refused.

    - `effects`: From an engine to what is known so far; the shipped fit by default.
    - Returns: Effects of this site and the shipped effects with them.
    """
    refused = [(run.id, reason) for run, reason in whole.refused]
    chosen = np.unique(whole.observation_run)
    silent = [question.run.id for n, question in enumerate(whole.questions) if n not in chosen]
    refused += [(name, "has no figure that is predicted") for name in silent]
    design = part_of(whole, chosen)
    # spreads are the same for all engines
    wide, base, keys = site_spread(effects(design.questions[0].deployment.engine).spread), [], []
    shift: dict[tuple[int, int], np.ndarray] = {}
    for run, question in enumerate(design.questions):
        # the date and the exact build are not asked for later: what they would explain belongs to the configuration
        total, known = effects(question.deployment.engine).sum_of((*keys_of(question.deployment)[:-1], ""))
        own = (_CONFIGURATION, int(design.keys[run, _CONFIGURATION]))
        prior = processor_prior(question.deployment)
        if prior is not None and not known[_CONFIGURATION]:
            # what the fit holds are constants of accelerators and of the hosts beside them
            shift[own] = prior.mean - total
            base.append(prior.mean)
            keys.append({own: prior.deviation})
            continue
        base.append(total)
        levels = [n for n in range(len(LEVELS) - 1) if n == _CONFIGURATION or not known[n]]
        keys.append({(level, int(design.keys[run, level])): wide[level] for level in levels})
    solved = _update(design, np.array(base), keys)
    before, _ = evaluate(design, np.array(base))
    spread = np.sqrt(np.diag(solved.covariance)).reshape(solved.effect.shape)
    values: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    deviation: dict[str, dict[str, np.ndarray]] = defaultdict(dict)
    named = [(level, design.key_names[level][key]) for level, key in solved.keys]
    for number, (level, name) in enumerate(named):
        values[LEVELS[level]][name] = solved.effect[number] + shift.get(solved.keys[number], 0.0)
        deviation[LEVELS[level]][name] = spread[number]
    domain = dict(sorted(domains_of(design.questions).items()))
    engines = {question.deployment.engine for question in design.questions}
    return SiteFit(
        values=dict(values),
        deviation=dict(deviation),
        effects={name: with_site(effects(name), dict(values), domain=domain) for name in sorted(engines)},
        used=tuple(question.run.id for question in design.questions),
        refused=tuple(refused),
        before=design.log_seconds - before,
        after=solved.residual,
        domain=domain,
        keys=tuple(named),
        covariance=solved.covariance,
    )


def left_open(found: SiteFit, design: Design) -> np.ndarray:
    """What a site's runs leave open of figures that it did not measure.

    - `design`: The figures; the measured values do not matter.
    - Returns: Standard deviation of the logarithm of each observation.
    """
    effects = [found.effects[question.deployment.engine] for question in design.questions]
    sums = [fit.sum_of(keys_of(one.deployment))[0] for fit, one in zip(effects, design.questions, strict=True)]
    _, slope = evaluate(design, np.array(sums))
    member = np.array([
        [float(design.key_names[level][row[level]] == name) for level, name in found.keys] for row in design.keys
    ])  # fmt: skip
    jacobian = (member[design.observation_run][:, :, None] * slope[:, None, :]).reshape(len(slope), -1)
    result: np.ndarray = np.sqrt(np.einsum("ij,jk,ik->i", jacobian, found.covariance, jacobian))
    return result


def site_errors(design: Design, base: np.ndarray, spread: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Test the update on every sweep: two points of it are measured, the others predicted.

    A sweep is one build on one day: model, accelerator, engine and its release, weights, layout and lengths, at four
    concurrencies or more. Its lowest and its middle concurrency are given to the update.

    - `base`: Effects from a fit that has not seen the sweep's model on its part and engine.
    - Returns: Measured minus predicted in logarithms, NaN for observations that are no such point; number of the
      sweep.
    """
    errors, sweep = np.full(len(design.figure), np.nan), np.full(len(design.figure), -1)
    wide = site_spread(spread)
    levels = [level for level in range(len(LEVELS) - 1) if LEVELS[level] in ("engine_model", "group", "configuration")]
    for number, members in enumerate(sweeps_of(design.questions)):
        runs = np.array(members)
        part = part_of(design, runs)
        users = sorted({question.load.concurrency for question in part.questions})
        first: dict[float, int] = {}
        for place, question in enumerate(part.questions):
            if question.load.concurrency in (users[0], users[len(users) // 2]):
                first.setdefault(question.load.concurrency, place)
        use = np.isin(part.observation_run, list(first.values()))
        keys = [{(level, int(row[level])): wide[level] for level in levels} for row in part.keys]
        solved = _update(part, base[runs], keys, use)
        rows = np.flatnonzero(np.isin(design.observation_run, runs))
        errors[rows[~use]], sweep[rows[~use]] = solved.residual[~use], number
    return errors, sweep


def write_site(found: SiteFit, path: str | Path) -> Path:
    """Write a site's calibration for `glmplan.prediction.step_models.load_site`.

    Returns: The file; the same runs give the same bytes.
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
