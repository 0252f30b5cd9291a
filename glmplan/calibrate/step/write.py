"""`glmplan calibrate`: fit the step time to all measured runs, cross-validate, and write the fits."""

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


# How well the joint fit knows its effects: the posterior covariance around its optimum.
#
# The posterior of thousands of effects is never formed: the normal equations of the fit give what is asked of it, the
# covariance of one key's parameters, and that of an engine's constants, which are sums of a few keys.

#: name of the file beside the fit
FILE = "covariance.toml"


@dataclass(frozen=True)
class Constants:
    """Constants of an engine of which nothing else is known: neither part nor model nor format.

    Attributes
    ----------
    engine : str
        Its name.
    value : (22,) array
        Logarithms of `glmplan.costs.step.model.PARAMETERS` and the two factors, [log s] or [-]
    covariance : (22, 22) array
        Of these, [-]
    """

    engine: str
    value: np.ndarray
    covariance: np.ndarray


@dataclass(frozen=True)
class Posterior:
    """What is left open of the effects.

    Attributes
    ----------
    deviation : tuple of (keys, 22) array
        For each level the standard deviation of each effect, [-]
    engines : tuple of Constants
        The constants of every engine.
    """

    deviation: tuple[np.ndarray, ...]
    engines: tuple[Constants, ...]


def posterior(design: Design, solution: Solution, *, spread: np.ndarray | None = None) -> Posterior:
    """Posterior covariance of the effects around the optimum.

    - `solution`: Effects fitted to them, with the weight that each figure had.
    - `spread`: Prior standard deviations; those of the fit by default.
    - Returns: Deviations of all effects, covariance of the engines' constants.

    Notes
    -----
    Laplace's approximation, Gauss-Newton: the figures' curvature is left out, and Student's weights are taken as they
    ended. Not modelled: that spreads and noise are estimates, too; their errors stand in `spreads.toml`.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.1
       and equation A.9.
    """
    normal = linearised(design, solution, spread=spread)
    first = normal.cells.first

    def between(one: tuple[int, int], two: tuple[int, int]) -> np.ndarray:
        """Covariance of the effects of two keys, (22, 22)."""
        return normal.covariance(int(first[one[0]]) + one[1], int(first[two[0]]) + two[1])

    deviation = []
    for level, names in enumerate(design.key_names):
        own = [np.diag(between((level, key), (level, key))) for key in range(len(names))]
        deviation.append(np.sqrt(np.maximum(np.array(own), 0.0)))
    engines = []
    place = {name: level for level, name in enumerate(LEVELS)}
    for engine in sorted({question.deployment.engine for question in design.questions}):
        wanted = (("all", "all"), ("engine", engine))
        path = [
            (place[level], design.key_names[place[level]].index(key))
            for level, key in wanted
            if key in design.key_names[place[level]]
        ]
        value = np.sum([solution.effects[level][key] for level, key in path], axis=0)
        covariance = np.sum([between(one, two) for one in path for two in path], axis=0)
        engines.append(Constants(engine, value, (covariance + covariance.T) / 2.0))
    return Posterior(tuple(deviation), tuple(engines))


def _row(values: Iterable[float]) -> str:
    return f"[{', '.join(f'{value:.3g}' for value in values)}]"


def write_covariance(found: Posterior, design: Design, file: str | Path, *, head: Iterable[str] = ()) -> Path:
    """Write what is left open; the same posterior gives the same bytes.

    `design`: The runs, for the names of the keys.
    """
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
    """Read the constants of engines with their covariance.

    `folder`: Folder of a fit; the shipped one by default.

    Examples
    --------
    >>> {one.engine for one in read_constants()} >= {"vllm", "sglang", "trtllm"}
    True
    """
    path = (Path(folder) if folder is not None else fits_folder() / "step") / FILE
    content = read_toml(path)
    if content.get("columns") != list(COLUMNS):
        raise SpecError("was written by another version of glmplan: run `glmplan calibrate`", file=path)
    found = []
    for engine, table in content["engine"].items():
        covariance = np.zeros((len(COLUMNS), len(COLUMNS)))
        for place, row in enumerate(table["lower_triangle"]):
            covariance[place, : place + 1] = covariance[: place + 1, place] = row
        found.append(Constants(engine, np.array(table["value"]), covariance))
    return tuple(found)


#: an effect smaller than this is not written [-]
_NEGLIGIBLE = 0.0005
_WRITTEN = "# Written by `glmplan calibrate`; do not edit."


@dataclass(frozen=True)
class Calibrated:
    """A fit with its errors on runs it has not seen.

    Attributes
    ----------
    design : Design
        The runs.
    solution : Solution
        Effects fitted to all of them.
    errors : tuple of Errors
        One for each way of leaving runs out.
    intervals : Intervals
        Intervals from these errors.
    site : (m,) array
        Errors after a site's update with two points of each sweep, in logarithms; NaN where that was not tried, [-]
    posterior : Posterior
        How well the effects are known.
    beyond : tuple of Beyond
        Errors on later runs of fits to the runs before a day, and on runs that no fit takes.
    """

    design: Design
    solution: Solution
    errors: tuple[Errors, ...]
    intervals: Intervals
    site: np.ndarray
    posterior: Posterior
    beyond: tuple[Beyond, ...] = ()


def calibrate(
    design: Design,
    *,
    fit: Fit | None = None,
    processes: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> Calibrated:
    """Fit and cross-validate.

    - `design`: The runs. Nothing else is looked at: what is held out must not be among them.
    - `fit`: How this table is fitted, with its spreads; estimated from these runs by default. Folds are solved with
      the same spreads.
    - `progress`: Called with what is being done, how far it is, and out of how much.
    """

    def round_done(what: str, done: int, said: float) -> None:
        if progress is not None:
            # how many rounds there will be is known when they are over
            progress(f"{what} {said:.2f}", done, done + 1)

    if fit is None:
        solution = solve_with_spreads(design, progress=round_done)
    else:
        solution = fit(design)
    again = AsFitted(solution.spreads)
    unseen = np.zeros((len(design.questions), len(COLUMNS)))

    def keep(out: np.ndarray, effects: np.ndarray) -> None:
        unseen[out] = effects

    errors = tuple(
        cross_validate(design, mode, again, processes=processes, progress=progress,
                       keep=keep if mode == "group" else None)
        for mode in MODES
    )  # fmt: skip
    site, sweep = site_errors(design, unseen, solution.spreads.effect)
    scored = scored_of(design.questions, design.observation_run, design.figure)
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
    """Write the fit: what all engines share in one file, and one file for each engine.

    Returns: Files written; the same fit gives the same bytes.
    """
    design, solution = found.design, found.solution
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy"))
    head = [
        f"{_WRITTEN} Effects are logarithms: docs/physics/calibration.md.",
        f'libraries = "{libraries}"',
        f"runs = {len(design.questions)}",
        f"observations = {len(design.log_seconds)}",
        "",
    ]
    engines = sorted({question.deployment.engine for question in design.questions})
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
        place = LEVELS.index(level)
        digits = 4 if level == "all" else 3
        rows = {
            key: _row_write(solution.effects[place][number], digits)
            for number, key in enumerate(design.key_names[place])
        }
        lines += _table(f"effects.{level}", rows)
    written.append(folder / "shared.toml")
    write_atomically(written[-1], "\n".join(lines))
    for engine in engines:
        lines = [*head]
        for place, level in enumerate(LEVELS):
            if level in shared_levels:
                continue
            rows = {
                key: _row_write(solution.effects[place][number])
                for number, key in enumerate(design.key_names[place])
                if key == engine or key.startswith(engine + " ")
            }
            lines += _table(f"effects.{level}", rows)
        ranges = domains_of(question for question in design.questions if question.deployment.engine == engine)
        rows = {key: f"[{', '.join(f'{one:g}' for one in ends)}]" for key, ends in ranges.items()}
        lines += _table("domain", rows)
        written.append(folder / f"{engine}.toml")
        write_atomically(written[-1], "\n".join(lines))
    written.append(write_covariance(found.posterior, design, folder / FILE, head=head))
    written.append(write_spreads(solution.spreads, folder / "spreads.toml", head=head))
    used = sorted(question.run.id for question in design.questions)
    lines = [_WRITTEN, "# Runs that the fit rests on.", "runs = [", *(f'  "{one}",' for one in used), "]", ""]
    written.append(folder / "runs.toml")
    write_atomically(written[-1], "\n".join(lines))
    for file in set(folder.glob("*.toml")) - set(written):
        # an engine of which no run is left
        if read_text(file).startswith(_WRITTEN):
            file.unlink()
    return written


# The errors of cross-validation as a small file, so that the backtest needs no fit.

#: name of the file beside the fit
FILE_LEFT_OUT = "errors.csv.gz"
_HEAD = ("run", "figure", *(f"{mode}_{part}" for mode in MODES for part in ("error", "knowledge")), "site_error")


@dataclass(frozen=True)
class LeftOut:
    """Errors on left-out runs.

    Attributes
    ----------
    run : tuple of str
        Run of each observation.
    figure : (m,) array of str
        Its figure.
    errors : tuple of Errors
        One for each way of leaving out.
    site : (m,) array
        Errors after a site's update with two points of each sweep; NaN where that was not tried, [-]
    """

    run: tuple[str, ...]
    figure: np.ndarray
    errors: tuple[Errors, ...]
    site: np.ndarray


def left_out_of(found: Calibrated) -> LeftOut:
    """Take the errors out of a calibration."""
    design = found.design
    runs = tuple(design.questions[place].run.id for place in design.observation_run)
    return LeftOut(runs, design.figure, found.errors, found.site)


def write_left_out(left_out: LeftOut, file: str | Path) -> Path:
    """Write errors; the same errors give the same bytes."""
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
    """Read errors."""
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
        known = np.array([row[column + 1] for row in body])
        if not set(known.tolist()) <= {"", *KNOWLEDGE}:
            raise SpecError("was written by another version of glmplan: run `glmplan calibrate`", file=path)
        errors.append(Errors(mode, residual, known))
    site = np.array([float(row[-1] or "nan") for row in body])
    return LeftOut(tuple(row[0] for row in body), np.array([row[1] for row in body]), tuple(errors), site)
