"""Refit all constants from shipped measurements: `glmplan calibrate`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glmplan.calibrate.links.fit import write_link_fits
from glmplan.calibrate.memory import write_memory_fit
from glmplan.calibrate.offload import hybrid_runs, write_offload_fit
from glmplan.calibrate.step.crossvalidate import FILE as BEYOND
from glmplan.calibrate.step.crossvalidate import Fit, exchanged, write_beyond
from glmplan.calibrate.step.intervals import stretches, write_refused_widths
from glmplan.calibrate.step.observations import build_design
from glmplan.calibrate.step.write import FILE_LEFT_OUT as FILE
from glmplan.calibrate.step.write import (
    Calibrated,
    calibrate,
    errors_again,
    left_out_of,
    write_fit,
    write_left_out,
    write_widths,
)
from glmplan.catalog.entries.models import load_model
from glmplan.catalog.files import data_folder, write_atomically
from glmplan.costs.step.acceptance import EFFECTS, branches, text_kind, yielded
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.runs.ledger import Acceptance, held_out, load_acceptance, load_measurements, split_held_out
from glmplan.io.runs.record import Run
from glmplan.units import Ratio, TokenCount, Tokens

__all__ = [
    "AcceptanceFit",
    "accepted_logit",
    "calibrate_everything",
    "calibrate_steps",
    "calibrate_widths",
    "development_fit",
    "fit_acceptance",
    "write_acceptance_fit",
]


def calibrate_steps(
    runs: Iterable[Run],
    folder: Path,
    *,
    fit: Fit | None = None,
    processes: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Calibrated, list[Path]]:
    """Fit the step time, cross-validate, write; return fit and paths.

    `fit` defaults to the procedure of the shipped fit. `progress` gets the phase, the state and the total.
    """
    calibrated = calibrate(build_design(runs), fit=fit, processes=processes, progress=progress)
    written = [write_left_out(left_out_of(calibrated), folder / FILE), write_beyond(calibrated.beyond, folder / BEYOND)]
    return calibrated, [*write_fit(calibrated, folder), *written]


def calibrate_everything(
    out: Path | None = None,
    *,
    without_holdout: bool = False,
    processes: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Path]:
    """Refit all constants but kernels and return the written paths.

    Acceptance lengths come first, since the step time rests on them. The shipped fit uses all runs; `without_holdout`
    (development) leaves the groups of `calibration/holdout.toml` out of fits, spreads, cross-validation and interval
    widths. Links and memory do not use tables of runs. Reproducible byte for byte.
    """
    folder = out or data_folder("calibration") / "fits"
    return _everything(folder, without_holdout, processes, progress)[1]


def calibrate_widths(
    out: Path | None = None, *, without_holdout: bool = False, again: Iterable[str] = (), processes: int = 1
) -> list[Path]:
    """Refit the intervals from stored errors and return the written paths.

    Effects, links and memory stay as they are. `again`: ways of leaving out whose errors are made again first, because
    a rule changed since they were written.
    """
    folder = out or data_folder("calibration") / "fits"
    runs = split_held_out(load_measurements())[0] if without_holdout else load_measurements()
    with exchanged(fits=folder):
        for mode in again:
            left_out = errors_again(folder / "step", mode, load_measurements(), processes=processes)
            write_left_out(left_out, folder / "step" / FILE)
        return write_widths(folder / "step", runs=runs)


def development_fit(
    folder: Path, *, processes: int = 1, progress: Callable[[str, int, int], None] | None = None
) -> Calibrated:
    """Return a fit of everything without the held-out groups."""
    return _everything(folder, True, processes, progress)[0]


def _everything(
    folder: Path, without_holdout: bool, processes: int, progress: Callable[[str, int, int], None] | None
) -> tuple[Calibrated, list[Path]]:
    everything = [*load_measurements(), *hybrid_runs()]
    without = held_out(everything) if without_holdout else frozenset()
    small: dict[str, Callable[[], Path]] = {
        "acceptance lengths": lambda: write_acceptance_fit(folder / "acceptance.toml", without=without),
        "links": lambda: write_link_fits(folder / "links.toml"),
        "memory": lambda: write_memory_fit(folder / "memory.toml"),
        "offload": lambda: write_offload_fit(folder / "offload.toml", without=without),
    }
    written = []
    for place, (name, write) in enumerate(small.items()):
        if progress is not None:
            progress(name, place, len(small))
        written.append(write())
    if progress is not None:
        progress("runs to arrays", 0, 1)
    # steps rest on the fits just written
    with exchanged(fits=folder):
        runs = split_held_out(load_measurements())[0] if without_holdout else load_measurements()
        found, files = calibrate_steps(runs, folder / "step", processes=processes, progress=progress)
    with exchanged(fits=folder):
        files.append(write_refused_widths(stretches(found.design.refused), folder))
    return found, [*written, *files]


# Fit the acceptance of draft tokens to cited acceptance lengths.

#: prior of the logit: 0.7 of the draft tokens, between 0.3 and 0.93 [-]
_LEVEL, _LEVEL_SPREAD = float(np.log(0.7 / 0.3)), 0.8
#: prior deviation of an effect, and of the slope by log branches [-]
_SPREAD = {"method": 0.4, "family": 0.4, "text": 0.4}
_BRANCH_SPREAD = 0.5
#: tried values of the decay [-]
_DECAYS = np.arange(0.0, 1.55, 0.05)
#: deviation between two like measurements, at least [-]
_LEAST_NOISE = 0.2
_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class AcceptanceFit:
    """Effects on the logit of the acceptance probability, with covariance."""

    names: tuple[
        tuple[str, str], ...
    ]  # group and key of each effect; `("level", "")` and `("branches", "")` come first
    value: np.ndarray
    covariance: np.ndarray
    noise: float  # deviation of a measurement from its effects
    decay: float  # fall of the logit with the log of the position in the chain
    rows: int  # measurements
    pages: int  # measurements that are no repetition


def accepted_logit(length: Tokens, draft_tokens: TokenCount, decay: Ratio = 0.0) -> Ratio:
    """Return the acceptance logit of the first token from the mean length.

    `length` is the mean tokens of a step, between 1 and ``draft_tokens + 1``; `decay` is the fall of the logit with the
    log of the position in the chain.

    Examples
    --------
    >>> round(accepted_logit(1.75, 2), 6) + 0.0
    0.0
    """
    from scipy.optimize import brentq

    if not 1.0 < length < draft_tokens + 1.0:
        raise SpecError(f"cannot come from {draft_tokens} drafted tokens", field="acceptance_length", value=length)
    return float(brentq(lambda logit: yielded(logit, draft_tokens, decay) - length, -40.0, 40.0))


def fit_acceptance(rows: Iterable[Acceptance] | None = None) -> AcceptanceFit:
    """Return the effects, fitted by ridge regression with residual noise.

    Repeated values of one page (same model, method, chain and text) share one weight; values without text or method
    have less. Rows without a chain length are left out.
    """
    used: list[tuple[dict[str, str], float, int, int]] = []
    unsaid: list[float] = []
    alike: dict[tuple[object, ...], int] = {}
    figures: list[tuple[object, ...]] = []
    protocol = {run.id: run.protocol for run in load_measurements()}
    for row in load_acceptance() if rows is None else rows:
        if not row.draft_tokens or row.acceptance_length >= row.draft_tokens + 1:
            continue
        try:
            family = load_model(row.model).family
        except GlmplanError:
            family = ""
        text = text_kind(row.text)
        if not text and protocol.get(row.run or "") == "decode-grid":
            text = text_kind("decode-grid")  # the benchmark has one prompt, also if the page does not repeat it
        keys = {"method": row.method, "family": family, "text": text}
        used.append((keys, row.acceptance_length, row.draft_tokens, row.verify_tokens or 0))
        unsaid.append(sum(_SPREAD[name] ** 2 for name in EFFECTS if not keys[name]))
        identity = (*keys.values(), row.model, row.draft_tokens, row.verify_tokens, row.acceptance_length)
        figures.append(identity)
        alike[identity] = alike.get(identity, 0) + 1
    extra_names = sorted({(name, keys[name]) for keys, *_ in used for name in EFFECTS if keys[name]})
    names = (("level", ""), ("branches", ""), *extra_names)
    column = {name: place for place, name in enumerate(names)}
    matrix = np.zeros((len(used), len(names)))
    for place, (keys, _, draft, verify) in enumerate(used):
        matrix[place, :2] = 1.0, branches(draft, verify)
        for name in EFFECTS:
            if keys[name]:
                matrix[place, column[name, keys[name]]] = 1.0
    share = np.array([1.0 / alike[identity] for identity in figures])
    # an unstated property adds the variance of its effect
    open_variance = np.array(unsaid)
    mean = np.zeros(len(names))
    mean[0] = _LEVEL
    prior = np.array([_LEVEL_SPREAD, _BRANCH_SPREAD, *(_SPREAD[name] for name, _ in extra_names)])
    found_best: tuple[float, AcceptanceFit] | None = None
    for decay in _DECAYS.tolist():
        target = np.array([accepted_logit(length, draft, decay) for _, length, draft, _ in used])
        noise = 0.5
        for _ in range(_ROUNDS):
            weight = share / (noise**2 + open_variance)
            information = (matrix.T * weight) @ matrix
            covariance = np.linalg.inv(information + np.diag(prior**-2))
            value = mean + covariance @ (matrix.T @ (weight * (target - matrix @ mean)))
            residual = target - matrix @ value
            effective_parameters = float(np.trace(covariance @ information))
            ratio = float((weight * residual**2).sum()) / max(float(share.sum()) - effective_parameters, 1.0)
            noise = max(noise * float(np.sqrt(ratio)), _LEAST_NOISE)
        # choose the decay by lengths: logits of different decays are not comparable
        lengths = [yielded(x, d, decay) for x, (_, _, d, _) in zip((matrix @ value).tolist(), used, strict=True)]
        miss = np.log(lengths) - np.log([length for _, length, _, _ in used])
        cost = float((share * miss**2).sum())
        if found_best is None or cost < found_best[0]:
            found_best = cost, AcceptanceFit(names, value, covariance, noise, decay, len(used), len(alike))
    if found_best is None:
        raise SpecError("has no length to fit", field="acceptance_length")
    return found_best[1]


def write_acceptance_fit(path: str | Path | None = None, *, without: Collection[str] = ()) -> Path:
    """Fit, write `calibration/fits/acceptance.toml` and return its path."""
    fit = fit_acceptance([row for row in load_acceptance() if row.run not in without])
    pairs = {name: f"{v:.3f}" for name, v in zip(fit.names, fit.value.tolist(), strict=True)}
    lines = [
        "# Written by `glmplan calibrate`; observations: calibration/measurements/acceptance.csv.",
        "# Logit of the chance that a drafted token is accepted, as a sum of effects: docs/physics/calibration.md.",
        f"rows = {fit.rows}",
        f"distinct = {fit.pages}",
        f"noise = {fit.noise:.3f}",
        f"decay = {fit.decay:.2f}",
        "",
        "[spread]",
        *(f"{name} = {_SPREAD[name]}" for name in EFFECTS),
        "",
        "[effects]",
        *(f'"{" ".join(name).strip()}" = {text}' for name, text in pairs.items()),
        "",
    ]
    order = ", ".join(f'"{" ".join(name).strip()}"' for name in fit.names)
    lines += ["[covariance]", f"of = [{order}]", "rows = ["]
    lines += [f"  [{', '.join(f'{value:.4f}' for value in row)}]," for row in fit.covariance.tolist()]
    lines += ["]", ""]
    target = Path(path) if path is not None else data_folder("calibration") / "fits" / "acceptance.toml"
    write_atomically(target, "\n".join(lines))
    return target
