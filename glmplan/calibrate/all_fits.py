"""Refit all constants from the measurements that ship: what `glmplan calibrate` does."""

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
from glmplan.calibrate.step.write import Calibrated, calibrate, left_out_of, write_fit, write_left_out
from glmplan.catalog.files import data_folder
from glmplan.io.runs.ledger import held_out, load_measurements, split_held_out
from glmplan.io.runs.record import Run

__all__ = ["calibrate_everything", "calibrate_steps", "development_fit"]


def calibrate_steps(
    runs: Iterable[Run],
    folder: Path,
    *,
    fit: Fit | None = None,
    processes: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Calibrated, list[Path]]:
    """Fit the step time to runs, cross-validate, and write the fit with its errors.

    - `fit`: How the runs are fitted, with their spreads; as what ships by default.
    - `progress`: Called with what is being done, how far it is, and out of how much.
    """
    found = calibrate(build_design(runs), fit=fit, processes=processes, progress=progress)
    written = [write_left_out(left_out_of(found), folder / FILE), write_beyond(found.beyond, folder / BEYOND)]
    return found, [*write_fit(found, folder), *written]


def calibrate_everything(
    out: Path | None = None,
    *,
    without_holdout: bool = False,
    processes: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> list[Path]:
    """Refit links, memory, offloading, acceptance lengths and the step time; kernels have a command of their own.

    The acceptance lengths come first, the step time rests on them. What ships is fitted to all runs. During development
    the held-out groups (`calibration/holdout.toml`) are left out: of the fits, their spreads, their cross-validation
    and the widths of intervals. Links and memory rest on no table of runs.

    - `progress`: Called with what is being done, how far it is, and out of how much.
    - Returns: Files written; the same measurements give the same bytes.
    """
    folder = out or data_folder("calibration") / "fits"
    return _everything(folder, without_holdout, processes, progress)[1]


def development_fit(
    folder: Path, *, processes: int = 1, progress: Callable[[str, int, int], None] | None = None
) -> Calibrated:
    """Fit everything without the held-out groups, as what ships is fitted.

    `progress`: Called with what is being done, how far it is, and out of how much.
    """
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
    # what a step rests on is what was just written
    with exchanged(fits=folder):
        runs = split_held_out(load_measurements())[0] if without_holdout else load_measurements()
        found, files = calibrate_steps(runs, folder / "step", processes=processes, progress=progress)
    with exchanged(fits=folder):
        files.append(write_refused_widths(stretches(found.design.refused), folder))
    return found, [*written, *files]
