"""Token lengths of public traces, by name.

Read from `hardware_db/use_cases.toml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from glmplan.catalog.files import data_folder, read_entries
from glmplan.errors import SpecError
from glmplan.units import TokenCount

__all__ = ["UseCase", "use_case", "use_cases"]


@dataclass(frozen=True, slots=True)
class UseCase:
    """Mean token lengths of the requests of a public trace."""

    name: str
    title: str
    input: TokenCount
    output: TokenCount
    source: str


@cache
def use_cases() -> dict[str, UseCase]:
    """Return the use cases, by name."""
    file = data_folder("hardware_db") / "use_cases.toml"
    fields = {"name", "title", "input", "output"}
    return {entry["name"]: UseCase(**entry) for entry in read_entries(file, "use_cases", fields)}


def use_case(name: str) -> UseCase:
    """Return a use case; SpecError names the known ones.

    Examples
    --------
    >>> rag = use_case("rag")
    >>> rag.input, rag.output
    (2944, 283)
    """
    if name not in use_cases():
        raise SpecError("is not a use case", field="--use-case", value=name, choices=use_cases())
    return use_cases()[name]
