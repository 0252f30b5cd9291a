"""Tables of runs that a command is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from glmplan.cli.screen import say

if TYPE_CHECKING:
    from glmplan.readers.runs.record import Runs

__all__ = ["read_table"]


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
