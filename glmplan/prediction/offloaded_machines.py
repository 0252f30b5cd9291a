"""The machines behind rows that say only "cpu-gpu-hybrid", and which of them a row ran on."""

from __future__ import annotations

import re
from functools import cache

from glmplan.facts.files import read_toml
from glmplan.facts.folders import data_folder
from glmplan.facts.schema.hybrid_system import HybridSystem
from glmplan.facts.schema.validation import validated
from glmplan.readers.runs.record import Run

__all__ = ["hybrid_systems", "systems_of"]


@cache
def hybrid_systems() -> tuple[HybridSystem, ...]:
    """Read the machines behind hybrid rows, `calibration/offload/systems.toml`.

    Returns
    -------
    tuple of HybridSystem
        The machines.

    Raises
    ------
    SpecError
        If an entry is wrong.

    Examples
    --------
    >>> any(system.name == "epyc-9355-rtx-5090" for system in hybrid_systems())
    True
    """
    path = data_folder("calibration") / "offload" / "systems.toml"
    return tuple(validated(HybridSystem, entry, path) for entry in read_toml(path)["systems"])


def systems_of(run: Run) -> tuple[tuple[HybridSystem, ...], str]:
    """Find the machine of a row.

    Parameters
    ----------
    run : Run
        The row.

    Returns
    -------
    tuple of HybridSystem
        The machines that it may have run on; one where its page says so.
    str
        How they were found: ``stated``, ``one of several of its page``, ``named in the row`` or ``not stated``.

    Examples
    --------
    >>> from glmplan.readers.runs.table import run_from_row
    >>> row = {"id": "a", "model": "deepseek-v3", "accelerator": "cpu-gpu-hybrid", "notes": "1 x 5090, 2 x EPYC 9355"}
    >>> [system.name for system in systems_of(run_from_row(row))[0]]
    ['epyc-9355-rtx-5090', 'epyc-9355-qwen3-coder-next']
    """
    every = hybrid_systems()
    page = [
        one
        for one in every
        if one.match.page in (run.source or "") and re.search(one.match.scenario or "", run.scenario or "")
    ]
    named = [one for one in page if run.id in one.match.rows]
    if named or len(page) == 1:
        return tuple(named or page), "stated"
    if page:
        return tuple(page), "one of several of its page"
    text = f"{run.scenario} {run.notes} {run.host or ''} {run.accelerator_given} {run.cells.get('system', '')}".lower()
    named = [one for one in every if one.name in text or any(word in text for word in _cpu_words(one))]
    if named:
        return tuple(named), "named in the row"
    return tuple(one for one in every if one.accelerator and one.sockets <= 2), "not stated"


def _cpu_words(system: HybridSystem) -> list[str]:
    """Words that name the CPU of a machine, as in ``9355`` or ``6454s``."""
    before = system.title.split(",")[0].lower()
    return [word for word in re.findall(r"\b[a-z]?\d{4}[a-z]{0,2}\b", before)]
