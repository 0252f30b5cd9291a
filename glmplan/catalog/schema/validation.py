"""Validate the content of a file as a record.

Errors name file, field, value and nearest choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from glmplan.errors import SpecError

__all__ = ["Frozen", "validated"]


#: most characters of a record's one-line text
_LINE = 100


class Frozen(BaseModel):
    """Base of records from files: immutable, without unknown fields.

    Quantities are finite. ``repr`` is one line, ``print`` shows every field.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", str_strip_whitespace=True, defer_build=True, allow_inf_nan=False
    )

    def __repr__(self) -> str:
        plain = [getattr(self, name) for name in type(self).model_fields]
        said = ", ".join(f"{item}" for item in plain if isinstance(item, str | int | float) and item not in ("", False))
        return f"<{type(self).__name__} {' '.join(said.split())[:_LINE]}>"


Record = TypeVar("Record", bound=BaseModel)


def validated(kind: type[Record], content: Mapping[str, Any], file: str | Path | None = None) -> Record:
    """Return the validated record of a file's content.

    Examples
    --------
    >>> class Card(Frozen):
    ...     lanes: int
    >>> validated(Card, {"lanes": 16}).lanes
    16
    >>> validated(Card, {"lines": 16}, "card.toml")
    Traceback (most recent call last):
    glmplan.errors.SpecError: card.toml: lanes: Field required (and 1 more)
    """
    if not isinstance(content, Mapping):
        raise SpecError("is no table of fields", file=file, value=str(content), choices=list(kind.model_fields))
    try:
        return kind.model_validate(dict(content))
    except ValidationError as error:
        problems = error.errors()
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    field = ".".join(str(part) for part in first["loc"]) or None
    if first["type"] == "extra_forbidden":
        choices = list(kind.model_fields) if len(first["loc"]) == 1 else []
        word = str(first["loc"][-1])
        raise SpecError(f"is not a field{more}", file=file, field=field, value=word, choices=choices)
    message = first["msg"].removeprefix("Value error, ")
    value = first.get("input")
    plain = isinstance(value, str | int | float) and first["type"] != "missing" and repr(value) not in message
    raise SpecError(message + more, file=file, field=field, value=value if plain else None)
