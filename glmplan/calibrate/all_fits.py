"""Refit all constants from shipped measurements: `glmplan calibrate`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from glmplan.calibrate.acceptance import write_acceptance_fit
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
from glmplan.catalog.files import data_folder
from glmplan.io.runs.ledger import held_out, load_measurements, split_held_out
from glmplan.io.runs.record import Run

__all__ = ["calibrate_everything", "calibrate_steps", "calibrate_widths", "development_fit"]


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
