"""Errors beyond cross-validation: of runs measured after all that a fit has seen, and of runs that no fit takes.

What cross-validation leaves out was measured in the same months as what it keeps; a plan is asked about builds of
tomorrow. And the rows that a fit refuses are asked about as well.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glmplan.calibrate.step.crossvalidate import leave_out
from glmplan.calibrate.step.joint_fit import Solution
from glmplan.calibrate.step.observations import Design, design_unchecked
from glmplan.calibrate.step.unseen import Fit, alone, unseen
from glmplan.errors import GlmplanError, SpecError
from glmplan.facts.files import read_packed, read_toml, write_atomically
from glmplan.facts.folders import data_folder, fits_folder
from glmplan.prediction.effects import KNOWLEDGE
from glmplan.prediction.from_row import question_of
from glmplan.readers.runs.ledger import day_of
from glmplan.readers.runs.record import Run

__all__ = [
    "FILE",
    "LATER",
    "REFUSED",
    "Beyond",
    "fitted_up_to",
    "later_runs",
    "read_beyond",
    "refused_runs",
    "write_beyond",
]

#: name of the file beside the fit
FILE = "beyond.csv.gz"
LATER, REFUSED = "later", "refused"
#: days up to which runs are fitted, in the calibration folder: what is measured after is predicted
_DAYS = "later.toml"
#: fewest runs of either side [-]
_FEWEST = 10
_HEAD = ("way", "run", "figure", "error", "knowledge", "note")


@dataclass(frozen=True, slots=True)
class Beyond:
    """The error of one figure.

    Attributes
    ----------
    way : str
        `LATER` or `REFUSED`.
    run, figure : str
        Run and column.
    error : float
        Measured minus predicted in logarithms, of seconds, [-]
    knowledge : str
        What was known of the run.
    note : str
        Day up to which runs were fitted; or why no fit takes the run.
    """

    way: str
    run: str
    figure: str
    error: float
    knowledge: str
    note: str


def fitted_up_to() -> tuple[str, ...]:
    """Days up to which runs are fitted to predict the later ones: fixed, so that no row and no refit moves the test.

    Returns
    -------
    tuple of str
        As ``2026-03-29``, the earliest first.

    Examples
    --------
    >>> fitted_up_to()[0]
    '2026-03-29'
    """
    return tuple(sorted(read_toml(data_folder("calibration") / _DAYS)["fitted_up_to"]))


def later_runs(
    design: Design,
    fit: Fit,
    *,
    up_to: Sequence[str] | None = None,
    processes: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Beyond, ...]:
    """Fit the runs up to a day and predict those after it, for each day of `calibration/later.toml`.

    Parameters
    ----------
    design : Design
        The runs; those whose month is not known are in no fit.
    fit : callable
        How tables are fitted.
    up_to : sequence of str, optional
        Other days than those of the file.
    processes : int, optional
        How many are fitted at once, [-]
    progress : callable, optional
        Called with what is done, how far it is, and out of how much.

    Returns
    -------
    tuple of Beyond
        Empty where too few runs are dated.
    """
    days = np.array([day_of(question.run) for question in design.questions])
    dated = np.flatnonzero(days != "")
    table, days = alone(design, dated), days[dated]
    outs = {last: np.flatnonzero(days > last) for last in (fitted_up_to() if up_to is None else up_to)}
    outs = {last: out for last, out in outs.items() if _FEWEST <= len(out) <= len(days) - _FEWEST}
    found: list[Beyond] = []
    each = leave_out(table, list(outs.values()), fit, processes=processes)
    for done, ((last, out), one) in enumerate(zip(outs.items(), each, strict=True)):
        others = alone(table, out)
        found += _beyond(LATER, others, one.residual, one.knowledge, [last] * len(out))
        if progress is not None:
            progress("later runs", done + 1, len(outs))
    return tuple(found)


def refused_runs(
    design: Design, solution: Solution, refused: Sequence[tuple[Run, str]] | None = None
) -> tuple[Beyond, ...]:
    """Predict what no fit takes, as far as it can be asked about; repetitions of other rows are left out.

    Parameters
    ----------
    design : Design
        The runs of the fit.
    solution : Solution
        The fit, which has not seen the refused ones.
    refused : sequence of (Run, str), optional
        Runs that no fit takes, with the reason; those that the design refused by default.

    Returns
    -------
    tuple of Beyond
        The errors.
    """
    questions, reasons = [], []
    for run, reason in design.refused if refused is None else refused:
        if reason.startswith("repeats "):
            continue
        try:
            question = question_of(run)
            question.deployment.structure.part.rate("bf16")
            design_unchecked([question])
        except GlmplanError:
            continue
        questions.append(question)
        reasons.append(reason)
    if not questions:
        return ()
    others = design_unchecked(questions)
    one = unseen(design, solution, others)
    return tuple(_beyond(REFUSED, others, one.residual, one.knowledge, reasons))


def _beyond(
    way: str, others: Design, residual: np.ndarray, knowledge: np.ndarray, notes: Sequence[str]
) -> list[Beyond]:
    return [
        Beyond(way, others.questions[run].run.id, figure, float(error), str(knowledge[run]), notes[run])
        for run, figure, error in zip(
            others.observation_run.tolist(), others.figure.tolist(), residual.tolist(), strict=True
        )
        if error == error
    ]


def write_beyond(found: Sequence[Beyond], file: str | Path) -> Path:
    """Write errors; the same errors give the same bytes.

    Parameters
    ----------
    found : sequence of Beyond
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
    for one in found:
        writer.writerow([one.way, one.run, one.figure, f"{one.error:.4f}", one.knowledge, one.note])
    path = Path(file)
    write_atomically(path, gzip.compress(text.getvalue().encode(), mtime=0))
    return path


def read_beyond(file: str | Path | None = None) -> tuple[Beyond, ...]:
    """Read errors.

    Parameters
    ----------
    file : path, optional
        The file; the shipped one by default. Where there is none, nothing is known.

    Returns
    -------
    tuple of Beyond
        The errors.

    Raises
    ------
    SpecError
        If the file is not one of such errors.
    """
    path = Path(file) if file is not None else fits_folder() / "step" / FILE
    if not path.exists():
        return ()
    rows = list(csv.reader(io.StringIO(read_packed(path).decode())))
    if not rows or tuple(rows[0]) != _HEAD or any(row[4] not in KNOWLEDGE for row in rows[1:]):
        raise SpecError("is not a file of errors beyond cross-validation: run `glmplan calibrate`", file=path)
    return tuple(
        Beyond(way, run, figure, float(error), known, note) for way, run, figure, error, known, note in rows[1:]
    )
