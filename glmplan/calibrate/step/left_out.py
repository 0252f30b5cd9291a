"""The errors of cross-validation as a small file, so that the backtest needs no fit."""

from __future__ import annotations

import csv
import gzip
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glmplan.calibrate.step.crossvalidate import MODES, Errors
from glmplan.calibrate.step.write import Calibrated
from glmplan.errors import SpecError
from glmplan.facts.files import read_packed, write_atomically
from glmplan.facts.folders import fits_folder
from glmplan.prediction.effects import KNOWLEDGE

__all__ = ["FILE", "LeftOut", "left_out_of", "read_left_out", "write_left_out"]

#: name of the file beside the fit
FILE = "errors.csv.gz"
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
    """Take the errors out of a calibration.

    Parameters
    ----------
    found : Calibrated
        The calibration.

    Returns
    -------
    LeftOut
        Its errors.
    """
    design = found.design
    runs = tuple(design.questions[place].run.id for place in design.observation_run)
    return LeftOut(runs, design.figure, found.errors, found.site)


def write_left_out(left_out: LeftOut, file: str | Path) -> Path:
    """Write errors; the same errors give the same bytes.

    Parameters
    ----------
    left_out : LeftOut
        The errors.
    file : path
        Where to; CSV, compressed.

    Returns
    -------
    pathlib.Path
        The file.
    """
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
    """Read errors.

    Parameters
    ----------
    file : path, optional
        The file; the shipped one by default.

    Returns
    -------
    LeftOut
        The errors.

    Raises
    ------
    SpecError
        If there is no such file or it is not one of errors.
    """
    path = Path(file) if file is not None else fits_folder() / "step" / FILE
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
