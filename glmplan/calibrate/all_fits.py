"""Refit all constants from the measurements that ship: what `glmplan calibrate` does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from glmplan.calibrate.acceptance import write_acceptance_fit
from glmplan.calibrate.links.record import write_link_fits
from glmplan.calibrate.memory_starts import write_memory_fit
from glmplan.calibrate.offload import write_offload_fit
from glmplan.calibrate.step.left_out import FILE, left_out_of, write_left_out
from glmplan.calibrate.step.observations import build_design
from glmplan.calibrate.step.write import Calibrated, calibrate, write_fit
from glmplan.facts.folders import data_folder
from glmplan.readers.runs.ledger import load_measurements
from glmplan.readers.runs.record import Run

__all__ = ["calibrate_everything", "calibrate_steps"]


def calibrate_steps(
    runs: Iterable[Run], folder: Path, *, progress: Callable[[str, int, int], None] | None = None
) -> tuple[Calibrated, list[Path]]:
    """Fit the step time to runs, cross-validate, and write the fit with its errors.

    Parameters
    ----------
    runs : iterable of Run
        The runs.
    folder : pathlib.Path
        Folder of the fit.
    progress : callable, optional
        Called with what is being done, how far it is, and out of how much.

    Returns
    -------
    Calibrated, list of pathlib.Path
        The fit and the files written.
    """
    found = calibrate(build_design(runs), progress=progress)
    return found, [*write_fit(found, folder), write_left_out(left_out_of(found), folder / FILE)]


def calibrate_everything(
    out: Path | None = None, *, progress: Callable[[str, int, int], None] | None = None
) -> list[Path]:
    """Refit links, memory, offloading, acceptance lengths and the step time; kernels have a command of their own.

    The acceptance lengths come first, the step time rests on them.

    Parameters
    ----------
    out : pathlib.Path, optional
        Folder of the fits; `calibration/fits` by default.
    progress : callable, optional
        Called with what is being done, how far it is, and out of how much.

    Returns
    -------
    list of pathlib.Path
        Files written; the same measurements give the same bytes.
    """
    folder = out or data_folder("calibration") / "fits"
    small = {
        "acceptance lengths": lambda: write_acceptance_fit(folder / "acceptance.toml"),
        "links": lambda: write_link_fits(folder / "links.toml"),
        "memory": lambda: write_memory_fit(folder / "memory.toml"),
        "offload": lambda: write_offload_fit(folder / "offload.toml"),
    }
    written = []
    for place, (name, write) in enumerate(small.items()):
        if progress is not None:
            progress(name, place, len(small))
        written.append(write())
    if progress is not None:
        progress("runs to arrays", 0, 1)
    return [*written, *calibrate_steps(load_measurements(), folder / "step", progress=progress)[1]]
