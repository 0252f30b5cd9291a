"""`glmplan calibrate kernels`: fit the utilisation of kernels from the installed kernel tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from glmplan.cli.screen import console

__all__ = ["run"]


def run(accelerators: Sequence[str] = (), out: Path | None = None, page: Path | None = None) -> list[Path]:
    """Fit the kernels and write the fits and the page of their errors.

    Parameters
    ----------
    accelerators : sequence of str, optional
        Parts to fit again; all, with the priors and the page, by default.
    out : path, optional
        Folder of the fits; `calibration/fits/kernels` by default.
    page : path, optional
        The page; `docs/kernels.md` beside the calibration folder by default. Only written when all parts are fitted.

    Returns
    -------
    list of Path
        The files written.

    Raises
    ------
    SpecError
        If the tables are not installed or a part has none.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from glmplan.calibrate.kernels.all_parts import calibrate_kernels, write_kernel_fits
    from glmplan.calibrate.kernels.page import kernels_page
    from glmplan.calibrate.kernels.tables import PARTS
    from glmplan.errors import SpecError
    from glmplan.facts.files import write_atomically
    from glmplan.facts.folders import data_folder

    for name in accelerators:
        if name not in PARTS.values():
            raise SpecError("has no kernel tables", field="--accelerator", value=name, choices=PARTS.values())
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading")
        found = calibrate_kernels(accelerators, progress=lambda what: progress.update(task, description=what))
    calibration = data_folder("calibration")
    written = write_kernel_fits(found, out or calibration / "fits" / "kernels")
    if not accelerators:
        written.append(page or calibration.parent / "docs" / "kernels.md")
        write_atomically(written[-1], kernels_page(found))
    return written
