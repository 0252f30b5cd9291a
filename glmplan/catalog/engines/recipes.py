"""Published recipes: engine release, checkpoint, accelerator, options.

Known engine versions, too. One file for each model, `hardware_db/recipes/<model>.csv`, read on demand;
`tools/recipes.py` writes it. The option names of a release are in `hardware_db/engines/flags`
(`tools/engine_flags.py`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from glmplan.catalog.engines.limitations import load_engine
from glmplan.catalog.files import data_folder, entry_file, read_table, read_toml
from glmplan.errors import SpecError

__all__ = [
    "LATEST",
    "Recipe",
    "best_recipe",
    "known_flags",
    "known_version",
    "option_groups",
    "option_name",
    "options_file",
    "options_of_plans",
    "recipes_of",
]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One published command."""

    engine: str
    since: str  # first release that it is for; empty: not stated
    checkpoint: str  # repository of the weights
    precision: str  # their format in the recipe's words
    accelerator: str  # catalogue name
    cards: int | None  # accelerators that it is for
    verified: bool  # its publisher says that it was run
    flags: str
    env: str
    date: str
    source: str


@cache
def recipes_of(model: str) -> tuple[Recipe, ...]:
    """Return the recipes of a model.

    Examples
    --------
    >>> {one.accelerator for one in recipes_of("glm-5.1") if one.engine == "vllm"}
    {'h200-sxm'}
    """
    file = entry_file(data_folder("hardware_db") / "recipes", f"{model}.csv")
    if file is None:
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
    """Return the recipe nearest to a plan, or None.

    Recipes for releases after `version` do not count. One for the same accelerator comes first, then one for the same
    weights, a verified one, and one for as many cards.

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

    result = [one for one in recipes_of(model) if one.engine == engine and not _later(one.since, version)]
    return max(result, key=rank, default=None)


def _later(since: str, version: str | None) -> bool:
    from glmplan.catalog.schema.engine import version_key

    try:
        return bool(since) and version is not None and version_key(since) > version_key(version)
    except SpecError:
        return False


def option_groups(text: str) -> tuple[str, ...]:
    """Return options as groups of one name with its value.

    Examples
    --------
    >>> option_groups('--a 1 --b {"x": [1, 2]} --c')
    ('--a 1', '--b {"x": [1, 2]}', '--c')
    """
    return tuple(word.strip() for word in re.split(r"\s+(?=--?[A-Za-z])", text.strip()) if word.strip())


def option_name(group: str) -> str:
    """Return an option's name without value; of a group's field in full.

    Examples
    --------
    >>> option_name("--max-num-seqs 4"), option_name("--attention_config.backend=X"), option_name("--config_format=y")
    ('--max-num-seqs', '--attention-config.backend', '--config-format')
    """
    return re.split(r"[\s=]", group, maxsplit=1)[0].replace("_", "-")


@cache
def known_flags(engine: str, version: str | None) -> tuple[str, frozenset[str]] | None:
    """Return release and options of the last release read up to a version.

    None: no such release was read. Versions before the first one get the oldest release.

    Examples
    --------
    >>> release, names = known_flags("vllm", "0.30.0")
    >>> release, "--kv-cache-dtype" in names
    ('0.24.0', True)
    """
    from glmplan.catalog.schema.engine import version_key

    file = entry_file(data_folder("hardware_db") / "engines" / "flags", f"{engine}.toml")
    if file is None:
        return None
    listed = read_toml(file)["versions"]
    reached = [one for one in listed if version is None or version_key(one["version"]) <= version_key(version)]
    chosen = max(reached, key=lambda one: version_key(one["version"])) if reached else listed[0]
    return chosen["version"], frozenset(option_name(one) for one in chosen["flags"])


@cache
def options_of_plans(engine: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return options that a plan decides, and options that a model decides.

    Examples
    --------
    >>> decided, of_model = options_of_plans("vllm")
    >>> "--tensor-parallel-size" in decided, "--reasoning-parser" in of_model
    (True, True)
    """
    result = read_toml(data_folder("hardware_db") / "recipes" / "options.toml").get(engine, {})
    return frozenset(result.get("decided", ())), frozenset(result.get("of_model", ()))


def options_file(engine: str) -> str | None:
    """Return the file for settings without a server option, or None.

    None: every setting of the engine has an option.

    Examples
    --------
    >>> options_file("trtllm"), options_file("vllm")
    ('options.yaml', None)
    """
    result = read_toml(data_folder("hardware_db") / "recipes" / "options.toml").get(engine, {})
    return str(result["rest_in"]) if "rest_in" in result else None


#: name of the newest release with evidence
LATEST = "latest"


def known_version(engine: str, version: str | None) -> str | None:
    """Return the checked version of an engine, None for the newest.

    Examples
    --------
    >>> known_version("vllm", "0.19.0"), known_version("vllm", "latest")
    ('0.19.0', None)
    >>> known_version("vllm", "9999.0")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    glmplan.errors.SpecError: '9999.0' is later than any release of vLLM that evidence covers; nearest: ...
    >>> known_version("trtllm", "0.33.0")
    Traceback (most recent call last):
    glmplan.errors.SpecError: '0.33.0' is no version of TensorRT-LLM that was published; nearest: 0.21.0
    """
    from glmplan.catalog.schema.engine import version_key

    if version is None or version.strip().lower() == LATEST:
        return None
    key, known = version_key(version), load_engine(engine)
    newest = known.newest
    if newest is not None and newest.startswith("b") and "." in version:
        raise SpecError(f"is no build of {known.full_name}; nearest: {newest}", value=version)
    if newest is not None and key > version_key(newest):
        patch = newest.endswith(".0") and version.lstrip("vV").startswith(newest.removesuffix("0"))
        if not patch:
            message = f"is later than any release of {known.full_name} that evidence covers; nearest: {newest}"
            raise SpecError(message, value=version)
        return version
    if known.published is not None and not known.published.holds(version):
        before = [item for item in known.published.versions if version_key(item) <= key]
        nearest = before[-1] if before else known.published.versions[0]
        built = ""
        if before and version_key(nearest)[0][:2] == key[0][:2] and known.published.holds(f"{version}rc1"):
            built = f" (a build after {nearest} is called {version}rc1)"
        message = f"is no version of {known.full_name} that was published{built}; nearest: {nearest}"
        raise SpecError(message, value=version)
    return version
