"""Which files may be written: never one that is there, unless it was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from glmplan.errors import SpecError

__all__ = ["writable"]


def writable(path: str | Path, endings: Sequence[str], *, overwrite: bool) -> None:
    """Refuse a file that is there, or whose name says that it is something else.

    Parameters
    ----------
    path : path
        Where something shall be written.
    endings : sequence of str
        How its name may end.
    overwrite : bool
        Whether a file that is there may go.

    Raises
    ------
    SpecError
        If it must not be written.

    Examples
    --------
    >>> writable("plan.doc", (".xlsx",), overwrite=False)
    Traceback (most recent call last):
    glmplan.errors.SpecError: plan.doc: '.doc' ends in none of the ways that can be written...
    """
    found = Path(path)
    if found.suffix.lower() not in endings:
        raise SpecError("ends in none of the ways that can be written", file=path, value=found.suffix, choices=endings)
    if found.exists() and not overwrite:
        raise SpecError("is there already: give another name, or say --overwrite", file=path)
