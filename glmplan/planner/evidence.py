"""Evidence that an engine serves a model on an accelerator."""

from __future__ import annotations

import csv
import io
import re
from functools import cache

from glmplan.catalog.engines.limitations import another_program, kernels_of_others
from glmplan.catalog.engines.recipes import Recipe
from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.files import MOST_OF_RUNS, data_folder, read_text
from glmplan.catalog.schema.engine import Wall
from glmplan.costs.blocks.stack import model_shape
from glmplan.planner.capacity import experts_on_host
from glmplan.planner.launch import recipe_for
from glmplan.planner.question import Asked
from glmplan.prediction.deployment import bulk_format
from glmplan.prediction.effects import load_effects

__all__ = ["EVIDENCE", "basis_words", "evidence_words"]

#: the four levels, the best first
EVIDENCE: tuple[str, ...] = (
    "measured",
    "measured on another accelerator",
    "recipe only, not measured",
    "no published run",
)
#: continuation of a longer shape in a key of the fit (`glmplan.costs.blocks.stack.model_shape`)
_MORE_SHAPE = re.compile(r"e\d+k\d+ |sparse ")
#: evidence levels (`glmplan.prediction.effects.KNOWN_AS`) of a model that was measured on the accelerator
_MEASURED = frozenset({"site", "configuration", "release", "group", "group_release", "adapters"})


def evidence_words(asked: Asked, cards: int, knowledge: str = "") -> str:
    """Return the evidence of model, accelerator and engine as text.

    It begins with one of `EVIDENCE`, followed by differences from the request, or the source of a recipe. Layout and
    memory do not matter. Runs of the engine do not count if another program or other kernels replace it on the
    accelerator. `knowledge` is the evidence level of the step time; empty if no speed was computed.
    """
    part = asked.machine.accelerator
    other = another_program(asked.engine, vendor=part.vendor, kind=part.kind)
    if other is not None:
        return _of_others(asked, cards, f"with {other.another_program}, which replaces {asked.engine} there")
    # speeds from runs of hosts have no evidence level
    by_host = part.runs_on_one_memory or experts_on_host(asked)
    place, differs = (None, "") if by_host else _of_fit(asked, knowledge)
    if place != 0 and (published := _of_runs(asked)) is not None and published != place:
        place, differs = published, "" if by_host or published else ", but those runs were not used for the calibration"
    kernels = kernels_of_others(asked.engine, vendor=part.vendor, kind=part.kind)
    if kernels is not None and place != 0 and not _measured_behind(asked, kernels):
        words = f"with {kernels.kernels_of}, whose kernels replace those of {asked.engine} there"
        return _of_others(asked, cards, words)
    if place is not None:
        return EVIDENCE[place] + differs
    recipe = recipe_for(asked, cards)
    if recipe is None:
        return EVIDENCE[3]
    if recipe.accelerator != part.name:
        return f"{EVIDENCE[3]}; recipe for {recipe.accelerator}: {recipe.source}"
    return f"{_of_recipe(recipe)}: {recipe.source}"


def _of_others(asked: Asked, cards: int, words: str) -> str:
    """Return the evidence if another program or other kernels serve."""
    recipe = recipe_for(asked, cards)
    if recipe is None or recipe.accelerator != asked.machine.accelerator.name:
        return f"{EVIDENCE[3]} {words}"
    return f"{_of_recipe(recipe)} {words}: {recipe.source}"


def _measured_behind(asked: Asked, wall: Wall) -> bool:
    """Return True if the model was measured with the same foreign kernels."""
    named = _parts_measured().get((asked.engine, asked.model.name), set()) & set(accelerator_names())
    parts = (load_accelerator(name) for name in named)
    return any(kernels_of_others(asked.engine, vendor=part.vendor, kind=part.kind) == wall for part in parts)


def _of_recipe(recipe: Recipe) -> str:
    """Return the evidence of a recipe for the accelerator itself."""
    run = "run by its publisher" if recipe.verified else "not stated to be run"
    return f"{EVIDENCE[2]} ({run})"


def basis_words(asked: Asked, basis: str, knowledge: str = "") -> str:
    """Return the basis of speeds, with a remark on replaced engines.

    The remark says that another program or other kernels serve in place of the engine. `knowledge` is the evidence
    level; empty without a calibrated step time.
    """
    part = asked.machine.accelerator
    if another_program(asked.engine, vendor=part.vendor, kind=part.kind) is not None:
        return f"computed as if {asked.engine} ran there: {basis}"
    by_host = part.runs_on_one_memory or experts_on_host(asked)
    if by_host or knowledge in _MEASURED or kernels_of_others(asked.engine, vendor=part.vendor, kind=part.kind) is None:
        return basis
    return f"computed as if {asked.engine} had its own kernels there: {basis}"


def _of_fit(asked: Asked, knowledge: str) -> tuple[int | None, str]:
    """Return the index in `EVIDENCE` by calibration runs, and differences."""
    if knowledge in _MEASURED:
        return 0, ""
    values, shape = load_effects(asked.engine).values, model_shape(asked.model)
    begins = f"{asked.engine} {asked.machine.accelerator.name} {shape} "
    ends = [key.removeprefix(begins) for key in values.get("group", {}) if key.startswith(begins)]
    # a shape with experts or an indexer begins as the one without
    formats = {end.split()[0] for end in ends if not _MORE_SHAPE.match(end)}
    if bulk_format(asked.checkpoint) in formats:
        return 0, ", with other settings" if knowledge else ""
    if formats:
        return 0, f", in other weight formats ({', '.join(sorted(formats))})"
    return (1 if f"{asked.engine} {shape}" in values.get("engine_model", {}) else None), ""


def _of_runs(asked: Asked) -> int | None:
    """Return the index in `EVIDENCE` by published runs, or None."""
    parts = _parts_measured().get((asked.engine, asked.model.name))
    if parts is None:
        return None
    return 0 if asked.machine.accelerator.name in parts else 1


@cache
def _parts_measured() -> dict[tuple[str, str], set[str]]:
    """Return the accelerators with runs, by engine and model."""
    found: dict[tuple[str, str], set[str]] = {}
    for file in sorted((data_folder("calibration") / "measurements").glob("*.csv")):
        rows = csv.reader(io.StringIO(read_text(file, most=MOST_OF_RUNS)))
        columns = next(rows, [])
        if not {"engine", "model", "accelerator"} <= set(columns):  # a table of acceptance has no parts
            continue
        engine, model, part = (columns.index(name) for name in ("engine", "model", "accelerator"))
        for row in rows:
            if len(row) > max(engine, model, part):
                found.setdefault((row[engine], row[model]), set()).add(row[part])
    return found
