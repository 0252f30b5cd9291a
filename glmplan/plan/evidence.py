"""Whether a model was ever served on a part by an engine: measured, measured elsewhere, in a recipe, or by nobody."""

from __future__ import annotations

import csv
import io
from functools import cache

from glmplan.facts.files import MOST_OF_RUNS, read_text
from glmplan.facts.folders import data_folder
from glmplan.plan.question import Asked
from glmplan.plan.recipe_words import recipe_for

__all__ = ["EVIDENCE", "evidence_words"]

#: the four answers, from most to least
EVIDENCE: tuple[str, ...] = ("measured", "measured on another part", "recipe only", "nobody ran it")
#: class of what the fit knows (`glmplan.prediction.effects.KNOWLEDGE`) → place in `EVIDENCE`; others are not measured
_MEASURED = {
    "site": 0,
    "configuration": 0,
    "release": 0,
    "group": 0,
    "group_release": 0,
    "adapters": 0,
    "pair": 1,
    "format": 1,
    "model": 1,
}


def evidence_words(asked: Asked, knowledge: str, *, by_host: bool, cards: int) -> str:
    """Say what is known of a model on a part with an engine, whatever the layout.

    Parameters
    ----------
    asked : Asked
        The question.
    knowledge : str
        Class of what the fit of the step time knows.
    by_host : bool
        Whether the speeds come from runs of hosts, whose fit has no classes.
    cards : int
        Cards of the plan, [-]

    Returns
    -------
    str
        One of `EVIDENCE`, and of a recipe where it stands.
    """
    part = asked.machine.accelerator.name
    place = _of_host(asked) if by_host else _MEASURED.get(knowledge)
    if place is not None:
        return EVIDENCE[place]
    recipe = recipe_for(asked, cards)
    if recipe is None:
        return EVIDENCE[3]
    if recipe.accelerator != part:
        return f"{EVIDENCE[3]}; a recipe for {recipe.accelerator} stands in {recipe.source}"
    run = "its publisher ran it" if recipe.verified else "not said to be run"
    return f"{EVIDENCE[2]} ({run}): {recipe.source}"


def _of_host(asked: Asked) -> int | None:
    """Place in `EVIDENCE` by the published runs themselves, None where they have not the model."""
    parts = _parts_measured(asked.engine, asked.model.name)
    if not parts:
        return None
    return 0 if asked.machine.accelerator.name in parts else 1


@cache
def _parts_measured(engine: str, model: str) -> frozenset[str]:
    """Parts that have runs of a model with an engine."""
    found = set()
    for file in sorted((data_folder("calibration") / "measurements").glob("*.csv")):
        text = read_text(file, most=MOST_OF_RUNS)
        # most tables have nothing of the model, and reading their columns takes long
        if f",{model}," in text and f",{engine}," in text:
            runs = [
                r for r in csv.DictReader(io.StringIO(text)) if (r.get("engine"), r.get("model")) == (engine, model)
            ]
            found |= {run["accelerator"] for run in runs if "accelerator" in run}  # a table of acceptance has no parts
    return frozenset(found)
