"""A Host or an accelerator as TOML text in the form of `hardware_db/`: what is at its default is left out."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

__all__ = ["record_toml"]


def record_toml(record: BaseModel, *, leave_out: tuple[str, ...] = ("name",)) -> str:
    """Write a record as TOML.

    Parameters
    ----------
    record : pydantic.BaseModel
        A Host or an Accelerator.
    leave_out : tuple of str, optional
        Fields that are not written; the name of an entry is the name of its file.

    Returns
    -------
    str
        Text that the catalogue reads back to an equal record; quantities carry their unit.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> print(record_toml(load_host("strix-halo")).splitlines()[-1])
    accelerator = "ryzen-ai-max-395"
    """
    content = record.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
    lines: list[str] = []
    tables: list[str] = []
    for key, value in content.items():
        if key in leave_out:
            continue
        if isinstance(value, dict):
            tables += ["", f"[{key}]", *_pairs(value)]
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for entry in value:
                tables += ["", f"[[{key}]]", *_pairs(entry)]
        else:
            lines.append(f"{key} = {_value(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _pairs(entry: dict[str, Any]) -> list[str]:
    return [f"{json.dumps(key) if '.' in key else key} = {_value(value)}" for key, value in entry.items()]


def _value(value: Any) -> str:
    """Return a TOML value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
