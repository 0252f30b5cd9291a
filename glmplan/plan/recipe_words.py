"""What a launch command takes from walls and from the recipe for its model, part and release."""

from __future__ import annotations

import shlex

from glmplan.facts.engines.recipes import (
    Recipe,
    best_recipe,
    known_flags,
    option_groups,
    option_name,
    options_file,
    options_of_plans,
)
from glmplan.plan.capacity import Holding
from glmplan.plan.question import Asked

__all__ = ["recipe_for", "with_recipe"]


def recipe_for(asked: Asked, cards: int) -> Recipe | None:
    """Return the recipe nearest to a plan.

    Parameters
    ----------
    asked : Asked
        The question.
    cards : int
        Cards of the plan, [-]

    Returns
    -------
    Recipe or None
        As `best_recipe` chooses it.
    """
    return best_recipe(
        asked.model.name, engine=asked.engine, version=asked.runs_as, accelerator=asked.machine.accelerator.name,
        checkpoint=asked.checkpoint.repository, cards=cards,
    )  # fmt: skip


def with_recipe(
    asked: Asked, holding: Holding, words: tuple[str, ...], notes: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Add what the recipe for the model says beside what the plan decides.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The chosen layout.
    words, notes : tuple of str
        The command of the plan, and what to know about it.

    Returns
    -------
    tuple of str, tuple of str
        Both with what the recipe adds. Options that the release does not know are left out and named.
    """
    release, names = known_flags(asked.engine, asked.runs_as) or ("", frozenset())
    walls = holding.terms.walls
    asks = [
        option
        for option in dict.fromkeys(option for wall in walls for option in wall.told)
        if option_name(option) not in _said(words) and _knows(names, option_name(option))
    ]
    words = (*words, *asks)
    variables = {one.partition("=")[0]: one for wall in walls for one in wall.environment}
    recipe = recipe_for(asked, holding.terms.accelerators)
    if recipe is None:
        return _started_with(variables, words), notes
    decided, of_model = options_of_plans(asked.engine)
    own_part = recipe.accelerator == asked.machine.accelerator.name
    file = options_file(asked.engine)
    added, unknown, filed = [], [], []
    for group in option_groups(recipe.flags):
        name = option_name(group)
        if name in decided | _said(words) or not (own_part or name in of_model):
            continue
        if not _knows(names, name):
            unknown.append(name)
            filed.append(group.removeprefix("--").replace(" ", ": ", 1))
            continue
        added.append(_quoted(group))
    if recipe.env and own_part:
        variables = {one.partition("=")[0]: one for one in shlex.split(recipe.env)} | variables
    notes += (f"options beside the plan's: {recipe.source}, for {recipe.accelerator}",) if added else ()
    if unknown and file is not None:
        notes += (f"{file} of that recipe ({recipe.source}) also holds: {'; '.join(filed)}",)
    elif unknown:
        notes += (f"left out, unknown to {asked.engine} {release}: {', '.join(unknown)}",)
    return _started_with(variables, (*words, *added)), notes


def _said(words: tuple[str, ...]) -> set[str]:
    return {option_name(one) for group in words for one in option_groups(group)}


def _knows(names: frozenset[str], name: str) -> bool:
    """Whether a release knows an option; one whose options nobody listed is taken to."""
    plain = name.partition(".")[0]
    return not names or bool({plain, plain.replace("--no-", "--", 1)} & names)


def _started_with(variables: dict[str, str], words: tuple[str, ...]) -> tuple[str, ...]:
    """The command with the variables of its environment before the program, as a shell takes them."""
    quoted = (f"{name}={shlex.quote(one.partition('=')[2])}" for name, one in variables.items())
    return (*quoted, *words)


def _quoted(group: str) -> str:
    """The value of an option as a shell needs it."""
    name, _, value = group.partition(" ")
    return f"{name} {value if not value or value.startswith(chr(39)) else shlex.quote(value)}".rstrip()
