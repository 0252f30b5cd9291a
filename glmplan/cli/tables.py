"""Tables of runs that a command is given, and tables that it prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from glmplan.cli.forms import Form
from glmplan.cli.screen import say

if TYPE_CHECKING:
    import pandas as pd

    from glmplan.readers.runs.record import Runs

__all__ = ["frame_text", "read_table"]


def read_table(path: Path) -> Runs:
    """Read a table of runs and say on the error stream what of it is ignored or taken for granted.

    Parameters
    ----------
    path : path
        The table.

    Returns
    -------
    Runs
        Its rows.

    Raises
    ------
    SpecError
        If it is no table of runs.
    """
    from glmplan.readers.runs.known_names import with_known_names
    from glmplan.readers.runs.table import read_runs

    found = with_known_names(read_runs(path))
    for warning in found.warnings:
        say(f"warning: {warning}", err=True)
    return found


def frame_text(frame: pd.DataFrame, form: Form) -> str:
    """A table in one of the forms of `--format`.

    Parameters
    ----------
    frame : pandas.DataFrame
        The table.
    form : Form
        The form; `Form.text` is CSV.

    Returns
    -------
    str
        Text that ends with a line break; figures have six digits.
    """
    if form is Form.json:
        return str(frame.to_json(orient="records", double_precision=6, indent=1)) + "\n"
    if form is Form.md:
        lines = ["| " + " | ".join(frame.columns) + " |", "|---" * len(frame.columns) + "|"]
        for row in frame.itertuples(index=False):
            lines.append("| " + " | ".join(_cell(value) for value in row) + " |")
        return "\n".join(lines) + "\n"
    return str(frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def _cell(value: object) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("|", "\\|")
