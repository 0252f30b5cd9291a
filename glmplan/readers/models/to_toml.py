"""A ModelSpec as TOML text in the form of `model_specs/`: fields at their default are left out."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from glmplan.facts.schema.model import ModelSpec

__all__ = ["model_toml"]


def model_toml(model: ModelSpec) -> str:
    """Write a model as TOML.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    str
        Text that `load_model_file` reads back to an equal model.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> model_toml(load_model("llama-3.1-8b")).splitlines()[0]
    'name = "llama-3.1-8b"'
    """
    tower = ("tower_layers", "tower_width", "tower_inner", "tower_patch_values", "tower_patches", "tower_merge")
    last = ("extra_parameters", "extra_replicated", *tower, "tower_output", "extra_note", "source")
    tables = ("layers", "mtp", "published", "checkpoints", "disagreements", *last)
    content = _plain(model)
    lines = [f"{key} = {_value(value)}" for key, value in content.items() if key not in tables]
    for key in last:
        if key in content:
            lines.append(f"{key} = {_value(content[key])}")
    if "disagreements" in content:
        lines += ["disagreements = [", *(f"    {_value(text)}," for text in content["disagreements"]), "]"]
    for name, kind in content["layers"].items():
        lines += ["", f"[layers.{_key(name)}]", *(f"{key} = {_value(value)}" for key, value in kind.items())]
    for key in ("mtp", "published"):
        if key in content:
            lines += ["", f"[{key}]", *(f"{inner} = {_value(value)}" for inner, value in content[key].items())]
    for checkpoint in content.get("checkpoints", ()):
        lines += ["", "[[checkpoints]]"]
        lines += [f"{key} = {_value(value)}" for key, value in checkpoint.items() if key != "exceptions"]
        for exception in checkpoint.get("exceptions", ()):
            lines += ["[[checkpoints.exceptions]]", *(f"{key} = {_value(value)}" for key, value in exception.items())]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> Any:
    """Turn records into dicts without their defaults; `kind`, which tells records apart, stays."""
    if isinstance(value, BaseModel):
        found = {}
        for name, field in type(value).model_fields.items():
            inner = getattr(value, name)
            usual = field.get_default(call_default_factory=True, validated_data=dict(value))
            if name == "kind" or (inner is not None and inner != usual):
                found[name] = _plain(inner)
        return found
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return value


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else json.dumps(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {_value(inner)}" for name, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_value(inner) for inner in value) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    return repr(value)
