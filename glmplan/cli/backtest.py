"""Define `glmplan backtest`: prediction errors on held-out runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from glmplan.cli.options import Format
from glmplan.cli.screen import Form, say

__all__ = ["command"]


def command(
    form: Format = Form.text,
    against: Annotated[
        Path | None, typer.Option(help="An older fit (its folder or a file in it): show which predictions moved.")
    ] = None,
    refit: Annotated[bool, typer.Option("--refit", help="Cross-validate again instead of reading the errors.")] = False,
    fit: Annotated[Path | None, typer.Option(help="Folder of a fit; the shipped one by default.")] = None,
    page: Annotated[Path | None, typer.Option(help="File of the page; docs/accuracy.md in a checkout.")] = None,
    holdout: Annotated[
        bool,
        typer.Option("--holdout", help="Fit without the held-out groups, score them, add to docs/accuracy-holdout.md."),
    ] = False,
) -> None:
    """Print prediction errors of held-out runs and write docs/accuracy.md.

    Errors come from the cross-validation of `glmplan calibrate`: rows left out at random, whole groups (engine,
    accelerator, model shape, format), whole models and whole accelerators. `--holdout` takes as long as
    `glmplan calibrate`. Run it a few times per release: each look weakens the held-out test.
    """
    if holdout:
        _holdout(page)
        return
    if against is not None:
        from glmplan.calibrate.backtest.fit_diff import moved
        from glmplan.cli.screen import bar
        from glmplan.present.accuracy_text import moved_table, moved_text

        with bar("predicting with both fits") as progress:
            moves = moved(against, fit, progress=progress)
        say(moved_text(moves) if form is Form.text else moved_table(moves, form), end="")
        return
    from glmplan.calibrate.backtest.accuracy import accuracy
    from glmplan.calibrate.step.crossvalidate import FILE as BEYOND
    from glmplan.calibrate.step.crossvalidate import read_beyond
    from glmplan.calibrate.step.write import FILE_LEFT_OUT as FILE
    from glmplan.calibrate.step.write import left_out_of, read_constants, read_left_out
    from glmplan.catalog.files import data_folder
    from glmplan.present.accuracy_text import (
        accuracy_csv,
        accuracy_json,
        accuracy_page,
        accuracy_text,
        write_accuracy_page,
    )

    if refit:
        from glmplan.calibrate.step.observations import build_design
        from glmplan.calibrate.step.write import calibrate
        from glmplan.cli.screen import steps
        from glmplan.io.runs.ledger import load_measurements

        with steps("cross-validating") as progress:
            again = calibrate(build_design(load_measurements()), processes=os.cpu_count() or 1, progress=progress)
        errors, constants, beyond = left_out_of(again), again.posterior.engines, again.beyond
    else:
        errors, constants = read_left_out(fit / FILE if fit is not None else None), read_constants(fit)
        beyond = read_beyond(fit / BEYOND if fit is not None else None)
    found = accuracy(errors, constants=constants, beyond=beyond)
    write = {Form.text: accuracy_text, Form.json: accuracy_json, Form.csv: accuracy_csv, Form.md: accuracy_page}
    say(write[form](found), end="")
    docs = data_folder("calibration").parent / "docs"
    if page is None and os.path.isdir(docs) and fit is None:
        page = docs / "accuracy.md"
    if page is not None:
        from glmplan.present.accuracy_plots import accuracy_plots

        for file in write_accuracy_page(found, page, accuracy_plots(found)):
            say(f"written: {file}", err=True)


def _holdout(page: Path | None) -> None:
    """Fit without the held-out groups and add their errors to the page."""
    import datetime
    import tempfile

    from glmplan.calibrate.all_fits import development_fit
    from glmplan.calibrate.backtest.holdout import holdout_lines, holdout_page, record_holdout
    from glmplan.calibrate.step.crossvalidate import exchanged
    from glmplan.catalog.files import data_folder
    from glmplan.cli.screen import steps
    from glmplan.io.runs.ledger import load_measurements, split_held_out

    root = data_folder("calibration").parent
    with tempfile.TemporaryDirectory() as name, steps("fitting without the held-out groups") as progress:
        folder = Path(name)
        found = development_fit(folder, processes=os.cpu_count() or 1, progress=progress)
        with exchanged(fits=folder):
            _, held = split_held_out(load_measurements())
            day = datetime.date.today().isoformat()
            lines = holdout_lines(found, held, date=day, commit=_commit(root))
    say(holdout_page(lines), end="")
    if page is None and os.path.isdir(root / "docs"):
        page = root / "docs" / "accuracy-holdout.md"
    if page is not None:
        for file in record_holdout(lines, page):
            say(f"written: {file}", err=True)


def _commit(root: Path) -> str:
    """Return the commit of the checkout, marked if files differ."""
    import subprocess

    asked = ["git", "-C", str(root), "describe", "--always", "--dirty=, with changes", "--exclude=*"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "no commit"
