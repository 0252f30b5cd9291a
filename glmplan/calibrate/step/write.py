"""Fit the step time, cross-validate, and write the fits.

`glmplan calibrate` runs it on all measured runs. The posterior covariance of thousands of effects is never formed: the
normal equations give the covariance of one key's parameters, and of an engine's constants, which are sums of a few
keys. Cross-validation errors are stored, so that the backtest needs no fit.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from glmplan.calibrate.step.crossvalidate import (
    MODES,
    AsFitted,
    Beyond,
    Errors,
    Fit,
    cross_validate,
    later_runs,
    refused_runs,
)
from glmplan.calibrate.step.intervals import Intervals, fit_intervals, scored_of, site_intervals
from glmplan.calibrate.step.joint_fit import Solution, linearised, write_spreads
from glmplan.calibrate.step.observations import Design, domains_of
from glmplan.calibrate.step.own_site import site_errors
from glmplan.calibrate.step.spread_factors import solve_with_spreads
from glmplan.catalog.files import fits_folder, read_packed, read_text, read_toml, write_atomically
from glmplan.errors import SpecError
from glmplan.prediction.effects import COLUMNS, KNOWLEDGE, LEVELS

__all__ = [
    "FILE",
    "FILE_LEFT_OUT",
    "Calibrated",
    "Constants",
    "LeftOut",
    "Posterior",
    "calibrate",
    "left_out_of",
    "posterior",
    "read_constants",
    "read_left_out",
    "write_covariance",
    "write_fit",
    "write_left_out",
]


FILE = "covariance.toml"


@dataclass(frozen=True)
class Constants:
    """Constants of an engine without accelerator, model and format."""

    engine: str
    value: np.ndarray  # (22,): log of `glmplan.costs.step.model.PARAMETERS` and the two factors
    covariance: np.ndarray  # (22, 22)


@dataclass(frozen=True)
class Posterior:
    """Posterior uncertainty of the effects."""

    deviation: tuple[np.ndarray, ...]  # (keys, 22) for each level
    engines: tuple[Constants, ...]  # constants of every engine


def posterior(design: Design, solution: Solution, *, spread: np.ndarray | None = None) -> Posterior:
    """Return the posterior deviations, and the covariance of the constants.

    Notes
    -----
    Laplace's approximation with Gauss-Newton curvature and the final Student weights. Not modelled: uncertainty of
    spreads and noise; their errors are in `spreads.toml`.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.1
           and equation A.9.
    """
    normal = linearised(design, solution, spread=spread)
    first = normal.cells.first

    def between(one: tuple[int, int], two: tuple[int, int]) -> np.ndarray:
        """Return the covariance of the effects of two keys, (22, 22)."""
        return normal.covariance(int(first[one[0]]) + one[1], int(first[two[0]]) + two[1])

    deviation = []
    for level, names in enumerate(design.key_names):
        own = [np.diag(between((level, key), (level, key))) for key in range(len(names))]
        deviation.append(np.sqrt(np.maximum(np.array(own), 0.0)))
    engines = []
    index = {name: level for level, name in enumerate(LEVELS)}
    for engine in sorted({case.deployment.engine for case in design.cases}):
        wanted = (("all", "all"), ("engine", engine))
        path = [
            (index[level], design.key_names[index[level]].index(key))
            for level, key in wanted
            if key in design.key_names[index[level]]
        ]
        value = np.sum([solution.effects[level][key] for level, key in path], axis=0)
        covariance = np.sum([between(one, two) for one in path for two in path], axis=0)
        engines.append(Constants(engine, value, (covariance + covariance.T) / 2.0))
    return Posterior(tuple(deviation), tuple(engines))


def _row(values: Iterable[float]) -> str:
    return f"[{', '.join(f'{value:.3g}' for value in values)}]"


def write_covariance(found: Posterior, design: Design, file: str | Path, *, head: Iterable[str] = ()) -> Path:
    """Write the posterior, reproducible byte for byte."""
    lines = [*head, f"columns = [{', '.join(repr(one) for one in COLUMNS)}]".replace("'", '"'), ""]
    for one in found.engines:
        lines += [f'[engine."{one.engine}"]', f"value = {_row(one.value)}", "lower_triangle = ["]
        lines += [f"  {_row(one.covariance[place, : place + 1])}," for place in range(len(COLUMNS))] + ["]", ""]
    for level, names, rows in zip(LEVELS, design.key_names, found.deviation, strict=True):
        lines += [f"[deviation.{level}]"]
        lines += [f'"{name}" = {_row(row)}' for name, row in sorted(zip(names, rows, strict=True), key=lambda x: x[0])]
        lines += [""]
    path = Path(file)
    write_atomically(path, "\n".join(lines))
    return path


def read_constants(folder: str | Path | None = None) -> tuple[Constants, ...]:
    """Return the constants of engines in a fit's folder (default: shipped).

    Examples
    --------
    >>> {one.engine for one in read_constants()} >= {"vllm", "sglang", "trtllm"}
    True
    """
    path = (Path(folder) if folder is not None else fits_folder() / "step") / FILE
    content = read_toml(path)
    if content.get("columns") != list(COLUMNS):
        raise SpecError("was written by another version of glmplan: run `glmplan calibrate`", file=path)
    constants = []
    for engine, table in content["engine"].items():
        covariance = np.zeros((len(COLUMNS), len(COLUMNS)))
        for place, row in enumerate(table["lower_triangle"]):
            covariance[place, : place + 1] = covariance[: place + 1, place] = row
        constants.append(Constants(engine, np.array(table["value"]), covariance))
    return tuple(constants)


#: smaller effects are not written [-]
_NEGLIGIBLE = 0.0005
_WRITTEN = "# Written by `glmplan calibrate`; do not edit."


@dataclass(frozen=True)
class Calibrated:
    """A fit with its errors on held-out runs."""

    design: Design
    solution: Solution
    errors: tuple[Errors, ...]  # one for each way of leaving out
    intervals: Intervals
    site: np.ndarray  # (m,): log errors after a site's update with two points of each sweep; NaN if not tried
    posterior: Posterior
    beyond: tuple[Beyond, ...] = ()  # errors on later and refused runs


def calibrate(
    design: Design,
    *,
    fit: Fit | None = None,
    processes: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> Calibrated:
    """Return the fit of a design with its cross-validation.

    Nothing outside the design is used. `fit` (default: estimate the spreads from these runs) is used for all folds with
    the same spreads. `progress` gets the phase, the state and the total.
    """

    def round_done(what: str, done: int, said: float) -> None:
        if progress is not None:
            # the number of rounds is known at the end only
            progress(f"{what} {said:.2f}", done, done + 1)

    if fit is None:
        solution = solve_with_spreads(design, progress=round_done)
    else:
        solution = fit(design)
    again = AsFitted(solution.spreads)
    unseen = np.zeros((len(design.cases), len(COLUMNS)))

    def keep(out: np.ndarray, effects: np.ndarray) -> None:
        unseen[out] = effects

    errors = tuple(
        cross_validate(design, mode, again, processes=processes, progress=progress,
                       keep=keep if mode == "group" else None)
        for mode in MODES
    )  # fmt: skip
    site, sweep = site_errors(design, unseen, solution.spreads.effect)
    scored = scored_of(design.cases, design.observation_run, design.figure)
    intervals = fit_intervals(errors, scored)
    intervals.base["site"] = site_intervals(site, sweep, scored.kind, intervals.base["configuration"])
    later = later_runs(design, again, processes=processes, progress=progress)
    beyond = (*later, *refused_runs(design, solution))
    return Calibrated(design, solution, errors, intervals, site, posterior(design, solution), beyond)


def _row_write(values: np.ndarray, digits: int = 3) -> str:
    cells = []
    for value in values.tolist():
        rounded = round(value, digits)
        cells.append("0" if abs(rounded) < _NEGLIGIBLE else f"{rounded:g}")
    return f"[{', '.join(cells)}]"


def _table(title: str, rows: dict[str, str]) -> list[str]:
    return [f"[{title}]", *(f'"{key}" = {text}' for key, text in sorted(rows.items())), ""]


def write_fit(found: Calibrated, folder: Path) -> list[Path]:
    """Write the common file and one for each engine; return the paths.

    Reproducible byte for byte.
    """
    design, solution = found.design, found.solution
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy"))
    head = [
        f"{_WRITTEN} Effects are logarithms: docs/physics/calibration.md.",
        f'libraries = "{libraries}"',
        f"runs = {len(design.cases)}",
        f"observations = {len(design.log_seconds)}",
        "",
    ]
    engines = sorted({case.deployment.engine for case in design.cases})
    shared_levels = ("all", "model")
    lines = [*head]
    lines += [f"levels = [{', '.join(repr(one) for one in LEVELS)}]".replace("'", '"')]
    lines += [f"columns = [{', '.join(repr(one) for one in COLUMNS)}]".replace("'", '"')]
    lines += ["spread = [", *(f"  {_row(row)}," for row in solution.spreads.effect), "]", ""]
    for name, kinds in found.intervals.base.items():
        lines += [f"[intervals.{name}]", *(f"{kind} = [{low}, {high}]" for kind, (low, high) in kinds.items()), ""]
    lines += _table("widths", {name: f"{value:g}" for name, value in found.intervals.widths.items()})
    written = []
    for level in shared_levels:
        index = LEVELS.index(level)
        digits = 4 if level == "all" else 3
        rows = {
            key: _row_write(solution.effects[index][number], digits)
            for number, key in enumerate(design.key_names[index])
        }
        lines += _table(f"effects.{level}", rows)
    written.append(folder / "shared.toml")
    write_atomically(written[-1], "\n".join(lines))
    for engine in engines:
        lines = [*head]
        for index, level in enumerate(LEVELS):
            if level in shared_levels:
                continue
            rows = {
                key: _row_write(solution.effects[index][number])
                for number, key in enumerate(design.key_names[index])
                if key == engine or key.startswith(engine + " ")
            }
            lines += _table(f"effects.{level}", rows)
        ranges = domains_of(case for case in design.cases if case.deployment.engine == engine)
        rows = {key: f"[{', '.join(f'{one:g}' for one in ends)}]" for key, ends in ranges.items()}
        lines += _table("domain", rows)
        written.append(folder / f"{engine}.toml")
        write_atomically(written[-1], "\n".join(lines))
    written.append(write_covariance(found.posterior, design, folder / FILE, head=head))
    written.append(write_spreads(solution.spreads, folder / "spreads.toml", head=head))
    used = sorted(case.run.id for case in design.cases)
    lines = [_WRITTEN, "# Runs that the fit rests on.", "runs = [", *(f'  "{one}",' for one in used), "]", ""]
    written.append(folder / "runs.toml")
    write_atomically(written[-1], "\n".join(lines))
    for file in set(folder.glob("*.toml")) - set(written):
        # an engine without runs
        if read_text(file).startswith(_WRITTEN):
            file.unlink()
    return written


FILE_LEFT_OUT = "errors.csv.gz"
_HEAD = ("run", "figure", *(f"{mode}_{part}" for mode in MODES for part in ("error", "knowledge")), "site_error")


@dataclass(frozen=True)
class LeftOut:
    """Errors on held-out runs."""

    run: tuple[str, ...]  # of each observation
    figure: np.ndarray  # (m,): metric
    errors: tuple[Errors, ...]  # one for each way of leaving out
    site: np.ndarray  # (m,): errors after a site's update; NaN if not tried


def left_out_of(found: Calibrated) -> LeftOut:
    """Return the errors of a calibration."""
    design = found.design
    runs = tuple(design.cases[place].run.id for place in design.observation_run)
    return LeftOut(runs, design.figure, found.errors, found.site)


def write_left_out(left_out: LeftOut, file: str | Path) -> Path:
    """Write errors, reproducible byte for byte."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_HEAD)
    for place, (run, figure) in enumerate(zip(left_out.run, left_out.figure.tolist(), strict=True)):
        cells = []
        for one in left_out.errors:
            error, known = float(one.residual[place]), str(one.knowledge[place])
            cells += [f"{error:.4f}" if error == error else "", known]
        site = float(left_out.site[place])
        writer.writerow([run, figure, *cells, f"{site:.4f}" if site == site else ""])
    path = Path(file)
    write_atomically(path, gzip.compress(text.getvalue().encode(), mtime=0))
    return path


def read_left_out(file: str | Path | None = None) -> LeftOut:
    """Return the errors of a file (default: shipped)."""
    path = Path(file) if file is not None else fits_folder() / "step" / FILE_LEFT_OUT
    try:
        rows = list(csv.reader(io.StringIO(read_packed(path).decode())))
    except SpecError as error:
        raise SpecError(f"{error.message}; `glmplan calibrate` writes it", file=path) from None
    if not rows or tuple(rows[0]) != _HEAD:
        raise SpecError("is not a file of left-out errors: run `glmplan calibrate`", file=path)
    body = rows[1:]
    errors = []
    for place, mode in enumerate(MODES):
        column = 2 + 2 * place
        residual = np.array([float(row[column] or "nan") for row in body])
        levels = np.array([row[column + 1] for row in body])
        if not set(levels.tolist()) <= {"", *KNOWLEDGE}:
            raise SpecError("was written by another version of glmplan: run `glmplan calibrate`", file=path)
        errors.append(Errors(mode, residual, levels))
    site = np.array([float(row[-1] or "nan") for row in body])
    return LeftOut(tuple(row[0] for row in body), np.array([row[1] for row in body]), tuple(errors), site)
