"""Rows of a table whose names `glmplan fit` and `glmplan runs import` would take, read as they read them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from glmplan.errors import GlmplanError
from glmplan.facts.catalogue.accelerators import accelerator_names, split_count
from glmplan.facts.catalogue.models import load_model, model_names
from glmplan.facts.catalogue.names import accelerator_name
from glmplan.readers.models.checkpoints import checkpoint_for
from glmplan.readers.models.resolve import resolve_model
from glmplan.readers.runs.record import Run, Runs

__all__ = ["known_names", "with_known_names"]


def known_names(run: Run) -> Run:
    """Read the names of a row as a plan reads them, where the catalogue has none of that spelling.

    Parameters
    ----------
    run : Run
        The row.

    Returns
    -------
    Run
        ``name-format`` names a model and its weights, ``NxACCELERATOR`` a part and its number, a repository or a name
        of the catalogue in `checkpoint` the weights; what is stated in columns of their own stays, and names that
        nobody knows stay as they are.

    Examples
    --------
    >>> found = known_names(Run("a", "glm-5.1-nvfp4", "6xrtx-pro-6000-ws", engine="vllm"))
    >>> found.model, found.weights, found.accelerator, found.accelerator_count
    ('glm-5.1', 'nvfp4', 'rtx-pro-6000-ws', 6)
    """
    if run.model not in model_names():
        try:
            choice = resolve_model(run.model)
        except GlmplanError:
            choice = None
        if choice is not None:
            stated = choice.checkpoint.name if choice.stated else None
            run = replace(run, model=choice.model.name, weights=run.weights or stated)
    if run.weights is None and run.weights_bits is None and run.checkpoint and run.model in model_names():
        run = replace(run, weights=_published_as(run.model, run.checkpoint))
    if run.accelerator not in accelerator_names():
        try:
            count, part = split_count(run.accelerator)
        except GlmplanError:
            return run
        part = accelerator_name(part)
        if part in accelerator_names() and part != run.accelerator:
            run = replace(run, accelerator=part, accelerator_count=run.accelerator_count or count)
    return run


def with_known_names(table: Runs) -> Runs:
    """Read the names of all rows, and say of which rows the weights are not stated.

    Parameters
    ----------
    table : Runs
        A table.

    Returns
    -------
    Runs
        The same rows, with a warning for each checkpoint that is taken because none was stated.
    """
    rows = tuple(known_names(run) for run in table)
    taken: dict[str, list[str]] = defaultdict(list)
    for run in rows:
        if run.weights is not None or run.weights_bits is not None:
            continue
        try:
            name = checkpoint_for(resolve_model(run.model).model, None, engine=run.engine or None).name
        except GlmplanError:
            continue
        unknown = f" and its checkpoint {run.checkpoint!r} is not in the catalogue" if run.checkpoint else ""
        taken[f"{unknown}: taken as {run.model} {name}"].append(run.id)
    said = [
        f"the column weights is empty in {_rows(names)}{what}, the model's default" for what, names in taken.items()
    ]
    return replace(table, runs=rows, warnings=(*table.warnings, *said))


def _published_as(model: str, checkpoint: str) -> str | None:
    """Name of the weights that are published under a repository, or are named so; None if nobody knows them."""
    given = checkpoint.lower()
    for one in load_model(model).checkpoints:
        if given in (one.name.lower(), (one.repository or "").lower()):
            return one.name
    return None


def _rows(names: list[str]) -> str:
    shown = ", ".join(names[:3]) + (" …" if len(names) > 3 else "")
    return f"row {shown}" if len(names) == 1 else f"{len(names)} rows ({shown})"
