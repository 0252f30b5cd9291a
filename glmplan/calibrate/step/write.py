"""`glmplan calibrate`: fit the step time to all measured runs, cross-validate, and write the fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

from glmplan.calibrate.step.beyond import Beyond, later_runs, refused_runs
from glmplan.calibrate.step.covariance import FILE, Posterior, posterior, write_covariance
from glmplan.calibrate.step.crossvalidate import MODES, Errors, cross_validate
from glmplan.calibrate.step.domain import domains_of
from glmplan.calibrate.step.intervals import Intervals, fit_intervals, scored_of, site_intervals
from glmplan.calibrate.step.joint_fit import Solution
from glmplan.calibrate.step.observations import Design
from glmplan.calibrate.step.own_site import site_errors
from glmplan.calibrate.step.spread_factors import solve_with_spreads
from glmplan.calibrate.step.spreads import write_spreads
from glmplan.calibrate.step.unseen import AsFitted, Fit
from glmplan.facts.files import read_text, write_atomically
from glmplan.prediction.effects import COLUMNS, LEVELS

__all__ = ["Calibrated", "calibrate", "write_fit"]

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

    Parameters
    ----------
    design : Design
        The runs. Nothing else is looked at: what is held out must not be among them.
    fit : callable, optional
        How this table is fitted, with its spreads; estimated from these runs by default. Folds are solved with the
        same spreads.
    processes : int, optional
        Folds that are fitted at once, [-]
    progress : callable, optional
        Called with what is being done, how far it is, and out of how much.

    Returns
    -------
    Calibrated
        The fit.
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


def _row(values: np.ndarray, digits: int = 3) -> str:
    cells = []
    for value in values.tolist():
        rounded = round(value, digits)
        cells.append("0" if abs(rounded) < _NEGLIGIBLE else f"{rounded:g}")
    return f"[{', '.join(cells)}]"


def _table(title: str, rows: dict[str, str]) -> list[str]:
    return [f"[{title}]", *(f'"{key}" = {text}' for key, text in sorted(rows.items())), ""]


def write_fit(found: Calibrated, folder: Path) -> list[Path]:
    """Write the fit: what all engines share in one file, and one file for each engine.

    Parameters
    ----------
    found : Calibrated
        The fit.
    folder : pathlib.Path
        Folder of the fits.

    Returns
    -------
    list of pathlib.Path
        Files written; the same fit gives the same bytes.
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
            key: _row(solution.effects[place][number], digits) for number, key in enumerate(design.key_names[place])
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
                key: _row(solution.effects[place][number])
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
