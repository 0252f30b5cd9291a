"""Load a model of `model_specs/` by name, alias or Hugging Face name.

A catalogue name reads one file. Aliases and Hugging Face names are looked up in the heads of all files, without parsing
the rest.
"""

from __future__ import annotations

import os
from functools import lru_cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import rtoml

from glmplan.catalog.files import data_folder, read_toml, text_lines
from glmplan.catalog.schema.model import ModelSpec
from glmplan.catalog.schema.validation import validated
from glmplan.errors import UnknownName
from glmplan.units import given_text

__all__ = ["load_model", "load_model_file", "model_aliases", "model_key", "model_names", "model_repositories"]


def model_key(name: str) -> str:
    """Return a model name for comparison: lower case, without the owner.

    Examples
    --------
    >>> model_key(" zai-org/GLM-5.1 ")
    'glm-5.1'
    """
    return name.strip().rstrip("/").rsplit("/", 1)[-1].lower()


@lru_cache(maxsize=1)
def model_names() -> tuple[str, ...]:
    """Return the names of all models of the catalogue, sorted.

    Examples
    --------
    >>> "glm-5.1" in model_names()
    True
    """
    return tuple(sorted(path.stem for path in data_folder("model_specs").glob("*.toml")))


@lru_cache(maxsize=1)
def model_aliases() -> dict[str, str]:
    """Return lower-case alias or Hugging Face name → name of the catalogue.

    Examples
    --------
    >>> model_aliases()["qwen3-235b"]
    'qwen3-235b-a22b'
    """
    folder = data_folder("model_specs")
    names = model_names()
    aliases: dict[str, str] = {}
    own: dict[str, str] = {}
    for name in names:
        head = _head(folder / f"{name}.toml")
        for alias in head.get("aliases", ()):
            aliases[model_key(str(alias))] = name
        if head.get("hugging_face"):
            own[model_key(str(head["hugging_face"]))] = name
    return {alias: name for alias, name in {**own, **aliases}.items() if alias not in names}


@lru_cache(maxsize=1)
def model_repositories() -> dict[str, str]:
    """Return lower-case repository of a checkpoint → first model naming it.

    Examples
    --------
    >>> model_repositories()["nvidia/glm-5.1-nvfp4"]
    'glm-5.1'
    """
    folder = data_folder("model_specs")
    result: dict[str, str] = {}
    for name in model_names():
        for line in text_lines(folder / f"{name}.toml"):
            if line.startswith("repository = "):
                result.setdefault(line.partition("=")[2].strip().strip('"').lower(), name)
    return result


def _head(path: Path) -> dict[str, Any]:
    """Return the content of a file before its first table."""
    lines = list(takewhile(lambda line: not line.startswith("["), text_lines(path)))
    try:
        return rtoml.loads("".join(lines))
    except rtoml.TomlParsingError:
        return {}


@lru_cache(maxsize=64)
def load_model(name: str) -> ModelSpec:
    """Load a model of the catalogue by name or alias.

    Parameters
    ----------
    name : str
        Name, alias or Hugging Face name; case does not matter.

    Returns
    -------
    ModelSpec
        The model.

    Raises
    ------
    UnknownName
        If there is no such model; the nearest names are listed and nothing is substituted.
    SpecError
        If its file is wrong.

    Examples
    --------
    >>> load_model("zai-org/GLM-5.1").hidden
    6144
    >>> load_model("glm-6")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    glmplan.errors.UnknownName: 'glm-6' is not a model of the catalogue; nearest: glm-4.6, ...
    """
    key = model_key(given_text(name, "model"))
    folder = data_folder("model_specs")
    path = folder / f"{key}.toml"
    if "\\" not in key and os.path.isfile(path):
        return load_model_file(path)
    aliases = model_aliases()
    if key in aliases:
        return load_model_file(folder / f"{aliases[key]}.toml")
    raise UnknownName("is not a model of the catalogue", value=name, choices=[*model_names(), *aliases])


def load_model_file(path: str | Path) -> ModelSpec:
    """Read and check one model file in the form of `model_specs/`.

    Examples
    --------
    >>> load_model_file(data_folder("model_specs") / "glm-5.1.toml").name
    'glm-5.1'
    """
    return validated(ModelSpec, read_toml(path), path)
