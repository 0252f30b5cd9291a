"""Fit the step time, cross-validate, and write the fits.

`glmplan calibrate` runs it on all measured runs. The posterior covariance of thousands of effects is never formed: the
normal equations give the covariance of one key's parameters, and of an engine's constants, which are sums of a few
keys. Cross-validation errors are stored, so that the backtest needs no fit.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np

from glmplan.calibrate.step.crossvalidate import FILE as BEYOND
from glmplan.calibrate.step.crossvalidate import (
    LATER,
    MODES,
    AsFitted,
    Beyond,
    Errors,
    Fit,
    cross_validate,
    later_runs,
    levels_left_out,
    read_beyond,
    refused_runs,
)
from glmplan.calibrate.step.intervals import (
    GROUPS_OF_PRIOR,
    Intervals,
    credit_of,
    fit_intervals,
    scored_of,
    site_intervals,
    vote,
)
from glmplan.calibrate.step.joint_fit import Solution, linearised, read_spreads, write_spreads
from glmplan.calibrate.step.observations import Design, build_design, domains_of, sweeps_of
from glmplan.calibrate.step.own_site import site_errors
from glmplan.calibrate.step.spread_factors import solve_with_spreads
from glmplan.catalog.files import fits_folder, read_packed, read_text, read_toml, write_atomically
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.runs.columns import FIGURES
from glmplan.io.runs.ledger import day_of, group_key
from glmplan.io.runs.record import Run
from glmplan.prediction.effects import COLUMNS, KNOWLEDGE, LEVELS, keys_of
from glmplan.prediction.evidence import features_of, kind_at
from glmplan.prediction.from_row import RunCase, question_of
from glmplan.units import QUANTILE_90

__all__ = [
    "FILE",
    "FILE_LEFT_OUT",
    "Calibrated",
    "Constants",
    "LeftOut",
    "Posterior",
    "calibrate",
    "cases_of",
    "errors_again",
    "left_out_of",
    "posterior",
    "read_constants",
    "read_left_out",
    "released",
    "sweep_numbers",
    "width_lines",
    "write_covariance",
    "write_fit",
    "write_left_out",
    "write_widths",
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


_CONFIGURATION = LEVELS.index("configuration")
#: fewest groups beyond the interval of their sweep that say what a later release adds to a side [-]
_FEWEST_BEYOND = 3
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
    again = AsFitted.from_whole(design, solution)
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
    intervals.base["site"] = site_intervals(site, sweep, scored.kind, intervals.base["sweep"])
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


def width_lines(intervals: Intervals, later: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the tables of intervals in the common file of a fit."""
    lines: list[str] = []
    for name, kinds in intervals.base.items():
        lines += [f"[intervals.{name}]", *(f"{kind} = [{low}, {high}]" for kind, (low, high) in kinds.items()), ""]
    lines += _table("widths", {name: f"{value:g}" for name, value in intervals.widths.items()})
    tails = {kind: f"[{', '.join(f'{value:g}' for value in row)}]" for kind, row in intervals.tails.items()}
    lines += _table("tails", tails)
    return lines + _table("later", {kind: f"[{low:g}, {high:g}]" for kind, (low, high) in later.items()})


def cases_of(runs: Iterable[Run], wanted: Iterable[str]) -> list[RunCase]:
    """Return the cases of the wanted runs that can be asked, each once."""
    names, cases = set(wanted), []
    for run in runs:
        if run.id in names:
            names.remove(run.id)
            try:
                cases.append(question_of(run))
            except GlmplanError:
                continue
    return cases


def sweep_numbers(cases: Sequence[RunCase]) -> np.ndarray:
    """Return the number of each run's sweep; -1 outside of sweeps."""
    numbers = np.full(len(cases), -1)
    for number, members in enumerate(sweeps_of(cases)):
        numbers[members] = number
    return numbers


def released(
    intervals: Intervals, beyond: Sequence[Beyond], cases: Sequence[RunCase]
) -> dict[str, tuple[float, float]]:
    """Return what an unmeasured release adds to each side of an interval.

    Forward-in-time errors of configurations that the same campaign had measured before hold the error of a sweep and
    that of the new release, independent of each other. The mean square of each side over the groups, less that of the
    sweep, is shrunk towards 0 as by ten groups: few groups were measured again. A side with too few of them has none.
    Rows of kinds of their own (settings not stated, TTFT of many users) do not count: their errors are not the
    release's.
    """
    first: dict[tuple[str, str], str] = {}
    known = {}
    for case in cases:
        day, key = day_of(case.run), (case.run.campaign or "", keys_of(case.deployment)[_CONFIGURATION])
        known[case.run.id] = (case, key)
        if day:
            first[key] = min(first.get(key, day), day)
    rows: dict[str, list[tuple[float, str, float]]] = {}
    for one in beyond:
        if one.way != LATER or one.run not in known:
            continue
        case, key = known[one.run]
        if first.get(key, "9") > one.note:
            continue
        kind, of = FIGURES[one.figure].interval, features_of(case.deployment, case.load)
        if kind_at(kind, of["load"], of["cached"], of["stated"]) == kind and of["stated"] == "yes":
            rows.setdefault(kind, []).append((one.error, group_key(case.run), credit_of(case.run)))
    apart = {}
    for kind, found in rows.items():
        error, group, credit = (np.array(column) for column in zip(*found, strict=True))
        weight, groups = vote(group, credit), len(np.unique(group))
        shrunk = QUANTILE_90 * np.sqrt(groups / (groups + GROUPS_OF_PRIOR))
        sides = []
        for end, side in zip(intervals.base["sweep"][kind], (np.minimum, np.maximum), strict=True):
            part = side(error, 0.0)
            square = float((weight * part**2).sum() / weight.sum()) - (end / QUANTILE_90) ** 2 / 2.0
            enough = len(np.unique(group[np.abs(part) > abs(end)])) >= _FEWEST_BEYOND
            sides.append(round(float(shrunk * np.sqrt(max(square, 0.0))), 3) if enough else 0.0)
        if any(sides):
            apart[kind] = (sides[0], sides[1])
    return dict(sorted(apart.items()))


def errors_again(folder: Path, mode: str, runs: Iterable[Run], *, processes: int = 1) -> LeftOut:
    """Return the stored errors of a folder.

    Those of one way of leaving out are made again.

    With the spreads and noise of the fit, and the rules of today.
    """
    left_out = read_left_out(folder / FILE_LEFT_OUT)
    used = set(left_out.run)
    design = build_design(run for run in runs if run.id in used)
    errors = cross_validate(design, mode, AsFitted(read_spreads(folder / "spreads.toml")), processes=processes)
    names = [design.cases[place].run.id for place in design.observation_run]
    row = {pair: number for number, pair in enumerate(zip(names, design.figure.tolist(), strict=True))}
    where = np.array([row.get(pair, -1) for pair in zip(left_out.run, left_out.figure.tolist(), strict=True)])
    residual = np.where(where >= 0, errors.residual[where], np.nan)
    made = Errors(mode, residual, np.where(np.isnan(residual), "", errors.knowledge[where]))
    return replace(left_out, errors=tuple(made if one.mode == mode else one for one in left_out.errors))


def write_widths(folder: Path, *, runs: Iterable[Run]) -> list[Path]:
    """Refit the intervals of a fit's folder from its stored left-out errors.

    Effects stay: only the tables of widths in the common file and the evidence levels of the errors are written.
    """
    left_out, beyond = read_left_out(folder / FILE_LEFT_OUT), read_beyond(folder / BEYOND)
    cases = cases_of(runs, left_out.run)
    place = {case.run.id: number for number, case in enumerate(cases)}
    rows = np.array([name in place for name in left_out.run])
    run = np.array([place[name] for name in left_out.run if name in place])
    errors = []
    for one in left_out.errors:
        residual, known = one.residual[rows], levels_left_out(cases, one.mode)[run]
        known = np.where(np.isnan(residual), "", known)
        errors.append(Errors(one.mode, np.where(known == "", np.nan, residual), known))
    figure, site = left_out.figure[rows], left_out.site[rows]
    scored = scored_of(cases, run, figure)
    intervals = fit_intervals(errors, scored)
    intervals.base["site"] = site_intervals(site, sweep_numbers(cases)[run], scored.kind, intervals.base["sweep"])
    text = read_text(folder / "shared.toml")
    head, _, rest = text.partition("[intervals.")
    _, start, tail = rest.partition("[effects.")
    widths = "\n".join(width_lines(intervals, released(intervals, beyond, cases)))
    write_atomically(folder / "shared.toml", f"{head}{widths}\n{start}{tail}")
    kept = LeftOut(tuple(cases[number].run.id for number in run), figure, tuple(errors), site)
    return [folder / "shared.toml", write_left_out(kept, folder / FILE_LEFT_OUT)]


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
    lines += width_lines(found.intervals, released(found.intervals, found.beyond, design.cases))
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
