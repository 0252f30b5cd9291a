"""Define `glmplan calibrate`: refit all, or update the fit of a site."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from glmplan.cli.screen import console, say

__all__ = ["command", "run"]


class What(StrEnum):
    """Scope of a refit."""

    everything = "everything"
    kernels = "kernels"
    widths = "widths"


def command(
    what: Annotated[
        What,
        typer.Argument(
            help="Steps, links, memory and acceptance lengths; kernels (extra: kernels); or widths: the intervals, "
            "from the stored left-out errors."
        ),
    ] = What.everything,
    runs: Annotated[
        Path | None, typer.Option("--from", help="Your own runs: CSV in the column form of calibration/measurements.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="File for the calibration of your site, with --from.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the fits; calibration/fits by default.")] = None,
    accelerator: Annotated[
        list[str] | None, typer.Option(help="With kernels: fit only this accelerator; repeatable.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="With kernels: file for the page of errors.")] = None,
    wheel: Annotated[
        Path | None, typer.Option(help="With kernels: a wheel with kernel tables, instead of the installed package.")
    ] = None,
    again: Annotated[
        list[str] | None,
        typer.Option(help="With widths: a way of leaving out whose errors are made again; may be repeated."),
    ] = None,
    without_holdout: Annotated[
        bool,
        typer.Option("--without-holdout", help="For development: leave the groups of calibration/holdout.toml out."),
    ] = False,
) -> None:
    """Refit to the shipped measurements, or update the fit with your runs.

    `--from` leaves the shipped fits unchanged: `--save` writes the calibration of your site, which `--calibration` of
    other commands applies. The shipped fits use all runs. `--without-holdout` is for development: it keeps the held-out
    groups for `glmplan backtest --holdout`. The same input gives the same files, byte for byte, on one kind of CPU.
    """
    if runs is not None:
        _site(runs, save)
        return
    if what is What.kernels:
        written, changed = run(accelerator or (), out, page, wheel=wheel)
        for line in changed:
            say(line)
    elif what is What.widths:
        from glmplan.calibrate.all_fits import calibrate_widths

        written = calibrate_widths(
            out, without_holdout=without_holdout, again=again or (), processes=os.cpu_count() or 1
        )
    else:
        from glmplan.calibrate.all_fits import calibrate_everything
        from glmplan.cli.screen import steps

        with steps("calibrating") as progress:
            written = calibrate_everything(
                out, without_holdout=without_holdout, processes=os.cpu_count() or 1, progress=progress
            )
    for file in written:
        say(str(file))


def _site(runs: Path, save: Path | None) -> None:
    """Update the fit with a site's runs and print the change."""
    import numpy as np

    from glmplan.calibrate.step.own_site import calibrate_site, write_site
    from glmplan.cli.screen import read_table

    found = calibrate_site(read_table(runs))
    for name, reason in found.refused:
        say(f"not used: {name}: {reason}", err=True)
    before, after = (100 * float(np.median(np.abs(np.expm1(-one)))) for one in (found.before, found.after))
    say(f"{len(found.used)} runs used, {len(found.refused)} not used")
    say(f"median error of these runs: {before:.1f} % with the shipped fit, {after:.1f} % with the site's")
    if save is not None:
        say(f"written: {write_site(found, save)}")


# `glmplan calibrate kernels`: fit the utilisation of kernels from kernel tables, installed or in a wheel.


def run(
    accelerators: Sequence[str] = (), out: Path | None = None, page: Path | None = None, *, wheel: Path | None = None
) -> tuple[list[Path], list[str]]:
    """Fit the kernels; return the files written, and the changes.

    Without `accelerators` all are fitted, and the priors and the page are written too. `page` is by default
    `docs/kernels.md` beside the calibration folder, or `kernels.md` in `out`. `wheel` holds the kernel tables; the
    installed package by default.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from glmplan.calibrate.kernels.all_parts import (
        calibrate_kernels,
        kernel_changes,
        kernels_page,
        tables_of_wheel,
        write_kernel_fits,
    )
    from glmplan.calibrate.kernels.tables import package_root
    from glmplan.catalog.files import data_folder, write_atomically
    from glmplan.costs.kernels.utilisation import kernel_fits

    # before the progress bar: a bar that ends at once leaves an empty line above the error
    tables = nullcontext((package_root(), None)) if wheel is None else tables_of_wheel(wheel)
    calibration = data_folder("calibration")
    shipped = calibration / "fits" / "kernels"
    before = {file.stem: kernel_fits(file.stem) for file in sorted(shipped.glob("*.toml")) if file.stem != "priors"}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task("reading")
        with tables as (root, package):
            found = calibrate_kernels(
                accelerators, root=root, package=package, progress=lambda what: progress.update(task, description=what)
            )
            changed = kernel_changes(before, found, root)
    written = write_kernel_fits(found, out or shipped)
    if not accelerators:
        written.append(page or (out / "kernels.md" if out else calibration.parent / "docs" / "kernels.md"))
        write_atomically(written[-1], kernels_page(found))
    return written, changed
