"""Forget what was looked up before, where the rules or the fits that answers rest on are exchanged."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from glmplan.facts.engines.walls import engine_names
from glmplan.facts.files import read_toml
from glmplan.facts.folders import data_folder, fits_in
from glmplan.facts.in_view import FIELD, gone, out_of_view

__all__ = ["RULE_FILES", "exchanged", "forget", "rules_in_view", "rules_lost"]

#: files whose entries decide predictions and were written by people: folder, file, tables
RULE_FILES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("hardware_db", "kernels.toml",
     ("kernels", "attention", "experts", "latent_prompts", "collectives", "beside", "sparse_latent")),
    ("hardware_db", "refused.toml", ("refused",)),
    ("calibration", "protocols.toml", ("settings", "requests")),
    ("calibration", "sessions.toml", ("sessions",)),
)  # fmt: skip


@cache
def rules_in_view() -> tuple[dict[str, Any], ...]:
    """Entries of the files of rules that decide predictions, walls with a price of their own among them.

    Returns
    -------
    tuple of dict
        The entries as they stand in the files.

    Examples
    --------
    >>> len(rules_in_view()) > 50
    True
    """
    found: list[dict[str, Any]] = []
    for folder, name, tables in RULE_FILES:
        content = read_toml(data_folder(folder) / name)
        found += [entry for table in tables for entry in content.get(table, ())]
    for engine in engine_names():
        walls = read_toml(data_folder("hardware_db") / "engines" / f"{engine}.toml").get("walls", ())
        found += [wall for wall in walls if wall.get("apart")]
    return tuple(found)


def rules_lost(groups: frozenset[str]) -> int:
    """Count the rules that would not have been written without some groups.

    Parameters
    ----------
    groups : frozenset of str
        Groups of runs, as `glmplan.readers.runs.holdout.group_key` names them.

    Returns
    -------
    int
        How many, [-]

    Examples
    --------
    >>> rules_lost(frozenset())
    0
    """
    return sum(gone(entry.get(FIELD, ()), groups) for entry in rules_in_view())


def forget() -> None:
    """Empty every memory of the package's functions."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "glmplan":
            for one in list(vars(module).values()):
                if callable(clear := getattr(one, "cache_clear", None)):
                    clear()


@contextmanager
def exchanged(*, without: frozenset[str] = frozenset(), fits: Path | None = None) -> Iterator[None]:
    """Answer as if some groups had never been measured, or with the fits of another folder.

    Parameters
    ----------
    without : frozenset of str, optional
        Groups whose rules are not there.
    fits : pathlib.Path, optional
        Folder of the fits.

    Yields
    ------
    None
        While that holds; nothing that was computed inside is remembered outside, nor the other way.
    """
    with ExitStack() as stack:
        if without:
            stack.enter_context(out_of_view(without))
        if fits is not None:
            stack.enter_context(fits_in(fits))
        forget()
        try:
            yield
        finally:
            forget()
