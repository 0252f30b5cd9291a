"""Reading fields of a foreign JSON config: every mistake names the file, the field and the nearest field there is."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glmplan.errors import SpecError, UnknownArchitecture, nearest
from glmplan.readers.models.unread_fields import STRUCTURAL, is_harmless, may_be_a_shape

__all__ = ["ConfigFields"]

#: layers that a config may state: each becomes an entry, and a slip of the finger must not fill the memory [-]
_MOST_LAYERS = 10_000
#: values of a field that is as good as absent
_UNSET: tuple[object, ...] = (None, 0, False, [], {}, "")


class ConfigFields:
    """The fields of one JSON object, read with checks; remembers which were read.

    Parameters
    ----------
    content : mapping
        The object.
    file : path, optional
        Where it is from, for messages.
    prefix : str, optional
        Where in the file it stands.

    Examples
    --------
    >>> ConfigFields({"hidden_size": 6144}, "config.json").whole("hidden_size")
    6144
    >>> ConfigFields({"hiden_size": 6144}, "config.json").whole("hidden_size")
    Traceback (most recent call last):
    glmplan.errors.SpecError: config.json: hidden_size: is missing; nearest field there: hiden_size
    """

    def __init__(self, content: Mapping[str, Any], file: str | Path | None = None, prefix: str = "") -> None:
        self.content, self.file, self.prefix = content, file, prefix
        self.read: set[str] = set()
        self.parts: list[ConfigFields] = []

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        self.read.add(name)
        return self.content.get(name) is not None

    def raw(self, name: str, default: Any = None) -> Any:
        """Return the value as it stands."""
        self.read.add(name)
        value = self.content.get(name)
        return default if value is None else value

    def whole(self, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """Return a whole number from the first of the names that is there."""
        for name in names:
            self.read.add(name)
            value = self.content.get(name)
            if value is None:
                continue
            if isinstance(value, float) and math.isfinite(value) and value == int(value):
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int):
                raise SpecError("is not a whole number", file=self.file, field=self.prefix + name, value=value)
            most = _MOST_LAYERS if name.endswith("_layers") else 10**9
            if not minimum <= value <= most:
                raise SpecError(
                    f"is not between {minimum} and {most:,}", file=self.file, field=self.prefix + name, value=value
                )
            return value
        if default is not None:
            return default
        if names[0] in self.content:
            raise SpecError("is null", file=self.file, field=self.prefix + names[0])
        close = nearest(names[0], [str(key) for key in self.content], 3)
        hint = f"; nearest field there: {', '.join(close)}" if close else ""
        raise SpecError(f"is missing{hint}", file=self.file, field=self.prefix + names[0])

    def optional(self, *names: str) -> int | None:
        """Return a positive whole number, or None when the field is absent, null or 0."""
        return self.whole(*names, default=0, minimum=0) or None

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a truth value."""
        value = self.raw(name, default)
        if not isinstance(value, bool):
            raise SpecError("is not true or false", file=self.file, field=self.prefix + name, value=value)
        return value

    def words(self, name: str) -> list[str]:
        """Return a text, or a list of texts, as a list; empty when absent."""
        value = self.raw(name, [])
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
            raise SpecError("is not a text", file=self.file, field=self.prefix + name)
        return list(found)

    def wholes(self, name: str) -> list[int]:
        """Return a list of whole numbers, such as layers; empty when absent."""
        value = self.raw(name, [])
        plain = isinstance(value, list) and all(isinstance(one, int) and not isinstance(one, bool) for one in value)
        if not plain or any(not 0 <= one < 2**40 for one in value):
            raise SpecError("is not a list of whole numbers", file=self.file, field=self.prefix + name)
        return list(value)

    def listing(self, name: str, count: int, choices: Sequence[Any] | None = None) -> list[Any]:
        """Return a list with one entry for each of `count` layers."""
        value = self.raw(name)
        if not isinstance(value, list) or len(value) < count:
            found = f"has {len(value)} entries" if isinstance(value, list) else "is not a list"
            raise SpecError(
                f"{found}; one for each of the {count} layers is needed", file=self.file, field=self.prefix + name
            )
        if choices is not None:
            for entry in value[:count]:
                if entry not in choices:
                    raise SpecError(
                        "is not a known kind of layer",
                        file=self.file,
                        field=self.prefix + name,
                        value=entry,
                        choices=[str(choice) for choice in choices],
                    )
        return value[:count]

    def part(self, name: str) -> ConfigFields:
        """Return the fields of an inner object."""
        value = self.raw(name)
        if not isinstance(value, Mapping):
            raise SpecError("is missing or not an object", file=self.file, field=self.prefix + name)
        self.parts.append(ConfigFields(value, self.file, f"{self.prefix}{name}."))
        return self.parts[-1]

    def blamed(self, message: str) -> SpecError:
        """An error about values that do not go together, with the last field that holds one which the message names."""
        numbers = set(re.findall(r"\d+", message))
        named = [name for name in self.content if name in self.read and str(self.content[name]) in numbers]
        field = self.prefix + named[-1] if named else None
        return SpecError(message, file=self.file, field=field)

    def not_understood(self, architecture: str) -> list[str]:
        """Names of fields that are set and that nobody knows; one that may change a shape is refused."""
        found = []
        for name, value in self.content.items():
            if name in self.read or value in _UNSET or is_harmless(name):
                continue
            if name in STRUCTURAL or may_be_a_shape(value):
                raise UnknownArchitecture(
                    f"is set, and glmplan does not know what it means for the architecture {architecture!r}; "
                    "if it changes neither weights nor cache, take it out of the file",
                    file=self.file,
                    field=self.prefix + name,
                    value=value if isinstance(value, int | float | str) else None,
                )
            found.append(self.prefix + name)
        for part in self.parts:
            found += [] if is_harmless(part.prefix.split(".")[-2]) else part.not_understood(architecture)
        return found
