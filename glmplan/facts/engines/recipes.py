"""Published recipes: which release of an engine serves which checkpoint on which part, with which options.

One file for each model, `hardware_db/recipes/<model>.csv`, read only when asked for; `tools/recipes.py` writes it.
The names of the options of a release stand in `hardware_db/engines/flags` (`tools/engine_flags.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from glmplan.errors import SpecError
from glmplan.facts.files import read_table, read_toml
from glmplan.facts.folders import data_folder

__all__ = [
    "Recipe",
    "best_recipe",
    "known_flags",
    "option_groups",
    "option_name",
    "options_file",
    "options_of_plans",
    "recipes_of",
]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One published command.

    Attributes
    ----------
    engine, since : str
        Engine, and the first release that it is for; empty where the recipe does not say.
    checkpoint, precision : str
        Repository of the weights, and their format in the recipe's words.
    accelerator : str
        Part, as the catalogue names it.
    cards : int or None
        How many it is for, [-]
    verified : bool
        Whether its publisher says that it was run.
    flags, env : str
        Options, and environment variables.
    date, source : str
        When, and where.
    """

    engine: str
    since: str
    checkpoint: str
    precision: str
    accelerator: str
    cards: int | None
    verified: bool
    flags: str
    env: str
    date: str
    source: str


@cache
def recipes_of(model: str) -> tuple[Recipe, ...]:
    """Return the recipes of a model.

    Parameters
    ----------
    model : str
        Its name in the catalogue.

    Returns
    -------
    tuple of Recipe
        Empty where none is known.

    Examples
    --------
    >>> {one.accelerator for one in recipes_of("glm-5.1") if one.engine == "vllm"}
    {'h200-sxm'}
    """
    file = data_folder("hardware_db") / "recipes" / f"{model}.csv"
    if not file.is_file():
        return ()
    header, *lines = read_table(file)
    return tuple(_recipe(dict(zip(header, line, strict=True))) for line in lines)


def _recipe(row: dict[str, str]) -> Recipe:
    cards = int(row["cards"]) if row["cards"].isdigit() else None
    return Recipe(
        engine=row["engine"], since=row["since"], checkpoint=row["checkpoint"], precision=row["precision"],
        accelerator=row["accelerator"], cards=cards, verified=row["verified"] == "yes", flags=row["flags"],
        env=row["env"], date=row["date"], source=row["source"],
    )  # fmt: skip


def best_recipe(
    model: str, *, engine: str, version: str | None, accelerator: str, checkpoint: str | None = None, cards: int = 1
) -> Recipe | None:
    """Return the recipe nearest to a plan.

    Parameters
    ----------
    model, engine, accelerator : str
        What is served by what on what.
    version : str or None
        Release of the engine; recipes for later ones do not count. None takes all.
    checkpoint : str, optional
        Repository of the weights.
    cards : int, optional
        Cards of the plan, [-]

    Returns
    -------
    Recipe or None
        One for the same part before others, then one for the same weights, one that was verified, and one for as many
        cards; None without any.

    Examples
    --------
    >>> found = best_recipe("glm-5.1", engine="vllm", version="0.33.0", accelerator="rtx-pro-6000-ws")
    >>> found.accelerator, found.since
    ('h200-sxm', '0.19.1')
    >>> best_recipe("glm-5.1", engine="vllm", version="0.11.0", accelerator="h200-sxm") is None
    True
    """

    def rank(one: Recipe) -> tuple[Any, ...]:
        apart = abs((one.cards or 0) - cards)
        return one.accelerator == accelerator, one.checkpoint == checkpoint, one.verified, -apart, one.date

    found = [one for one in recipes_of(model) if one.engine == engine and not _later(one.since, version)]
    return max(found, key=rank, default=None)


def _later(since: str, version: str | None) -> bool:
    from glmplan.facts.schema.versions import version_key

    try:
        return bool(since) and version is not None and version_key(since) > version_key(version)
    except SpecError:
        return False


def option_groups(text: str) -> tuple[str, ...]:
    """Cut options into groups of one name with its value.

    Parameters
    ----------
    text : str
        Options as a command has them.

    Returns
    -------
    tuple of str
        One for each option, in order.

    Examples
    --------
    >>> option_groups('--a 1 --b {"x": [1, 2]} --c')
    ('--a 1', '--b {"x": [1, 2]}', '--c')
    """
    return tuple(one.strip() for one in re.split(r"\s+(?=--?[A-Za-z])", text.strip()) if one.strip())


def option_name(group: str) -> str:
    """Return the name of an option without its value.

    Parameters
    ----------
    group : str
        Option with its value.

    Returns
    -------
    str
        Its name with hyphens; of one field of a group the whole name.

    Examples
    --------
    >>> option_name("--max-num-seqs 4"), option_name("--attention_config.backend=X"), option_name("--config_format=y")
    ('--max-num-seqs', '--attention-config.backend', '--config-format')
    """
    return re.split(r"[\s=]", group, maxsplit=1)[0].replace("_", "-")


@cache
def known_flags(engine: str, version: str | None) -> tuple[str, frozenset[str]] | None:
    """Return the options of the last release that was read up to a version.

    Parameters
    ----------
    engine : str
        The engine.
    version : str or None
        Its version; None takes the newest.

    Returns
    -------
    str, frozenset of str
        Release and names; the oldest release for versions before it. None where no release of the engine was read.

    Examples
    --------
    >>> release, names = known_flags("vllm", "0.30.0")
    >>> release, "--kv-cache-dtype" in names
    ('0.24.0', True)
    """
    from glmplan.facts.schema.versions import version_key

    file = data_folder("hardware_db") / "engines" / "flags" / f"{engine}.toml"
    if not file.is_file():
        return None
    listed = read_toml(file)["versions"]
    reached = [one for one in listed if version is None or version_key(one["version"]) <= version_key(version)]
    chosen = max(reached, key=lambda one: version_key(one["version"])) if reached else listed[0]
    return chosen["version"], frozenset(option_name(one) for one in chosen["flags"])


@cache
def options_of_plans(engine: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the options that a plan decides, and those that belong to a model.

    Parameters
    ----------
    engine : str
        The engine.

    Returns
    -------
    frozenset of str, frozenset of str
        Names; empty for engines without recipes.

    Examples
    --------
    >>> decided, of_model = options_of_plans("vllm")
    >>> "--tensor-parallel-size" in decided, "--reasoning-parser" in of_model
    (True, True)
    """
    found = read_toml(data_folder("hardware_db") / "recipes" / "options.toml").get(engine, {})
    return frozenset(found.get("decided", ())), frozenset(found.get("of_model", ()))


def options_file(engine: str) -> str | None:
    """Return the file that holds what recipes of an engine say and its server has no option for.

    Parameters
    ----------
    engine : str
        The engine.

    Returns
    -------
    str or None
        Name of the file that a launch command gives; None of engines that have options for all.

    Examples
    --------
    >>> options_file("trtllm"), options_file("vllm")
    ('options.yaml', None)
    """
    found = read_toml(data_folder("hardware_db") / "recipes" / "options.toml").get(engine, {})
    return str(found["rest_in"]) if "rest_in" in found else None
