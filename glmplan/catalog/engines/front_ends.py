"""Programs that run another engine with defaults of their own, by name.

Ollama and LM Studio run llama.cpp. Engines without facts are known by name, so that their refusal says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from glmplan.catalog.files import data_folder, read_entries
from glmplan.units import GIB, Bytes, TokenCount

__all__ = ["FrontEnd", "front_end"]


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """One program known by the name of an engine."""

    name: str
    source: str
    engine: str | None = None  # engine that it runs; None: an engine without facts
    nearest: str | None = None  # known engine that is most like it
    context_below: tuple[tuple[float, TokenCount], ...] = ()  # memory of all accelerators [GiB] and context below it
    context_above: TokenCount | None = None
    parallel: int | None = None  # requests that run at once
    kv: str | None = None
    settings: str = ""  # where a user changes the defaults

    def context(self, memory: Bytes) -> TokenCount | None:
        """Return the default context for the memory of all accelerators.

        Examples
        --------
        >>> [front_end("ollama").context(gib * GIB) for gib in (16, 24, 47)]
        [4096, 32768, 262144]
        """
        return next((tokens for limit, tokens in self.context_below if memory < limit * GIB), self.context_above)


def _bare(word: str) -> str:
    return "".join(mark for mark in word.lower() if mark not in " .-_")


@cache
def _by_name() -> dict[str, FrontEnd]:
    fields = {"name", "called", "engine", "nearest", "context_below", "context_above", "parallel", "kv", "settings"}
    result: dict[str, FrontEnd] = {}
    for entry in read_entries(data_folder("hardware_db") / "front_ends.toml", "front_ends", fields):
        plain: dict[str, Any] = {key: value for key, value in entry.items() if key not in ("called", "in_view")}
        below: Sequence[Sequence[float]] = plain.pop("context_below", ())
        limits = tuple((float(limit), int(tokens)) for limit, tokens in below)
        made = FrontEnd(**plain, context_below=limits)
        result |= {_bare(word): made for word in (made.name, *entry.get("called", ()))}
    return result


def front_end(text: str) -> FrontEnd | None:
    """Return the program of a name in any spelling, or None.

    Examples
    --------
    >>> front_end("LM-Studio").engine, front_end("vllm")
    ('llama.cpp', None)
    """
    return _by_name().get(_bare(text))
