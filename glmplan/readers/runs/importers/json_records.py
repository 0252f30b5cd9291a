"""JSON values out of a file that may be cut off or hold several, each with the line it begins on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Document", "Problem", "array_elements", "documents"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a file.

    Parameters
    ----------
    line : int
        Where it stands; 0 for the file as a whole, [-]
    field : str
        The field; empty if none.
    message : str
        What was expected and what was found.

    Examples
    --------
    >>> print(Problem(3, "duration", "expected a number, got 'abc'"))
    line 3: duration: expected a number, got 'abc'
    """

    line: int
    field: str
    message: str

    def __str__(self) -> str:
        where = [f"line {self.line}"] if self.line else []
        return ": ".join([*where, *([self.field] if self.field else []), self.message])


@dataclass(frozen=True, slots=True)
class Document:
    """One JSON value of a file and the line it begins on."""

    value: Any
    line: int


def _resume(text: str, position: int) -> int:
    """Return where the record after a broken one can begin: the next line that opens an object, indented as it was."""
    indent = re.match(r"[ \t]*", text[text.rfind("\n", 0, position) + 1 : position])[0]  # type: ignore[index]
    found = re.compile(rf"\n{indent}(?=\{{)").search(text, position)
    return found.end() if found else len(text)


def _values(text: str, start: int, base_line: int) -> tuple[list[Document], list[Problem], int]:
    """Read JSON values from a place on, skipping what is broken; stops at the `]` that closes an enclosing array."""
    decoder = json.JSONDecoder()
    found: list[Document] = []
    problems: list[Problem] = []
    gap = re.compile(r"[\s,\x00\ufeff]*")
    position, counted, line = start, start, base_line
    whole = len(text.rstrip())
    while True:
        position = gap.match(text, position).end()  # type: ignore[union-attr]
        line, counted = line + text.count("\n", counted, position), position
        if position >= len(text) or text[position] == "]":
            return found, problems, position
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            at = getattr(error, "pos", position)
            cut = at >= whole or str(error).startswith("Unterminated string")
            found_line = line + text.count("\n", position, at)
            why = f"found {text[at : at + 20]!r}" + (f" on line {found_line}" if found_line != line else "")
            why = "the record is cut off" if cut else why
            problems.append(Problem(line, "", f"expected a whole JSON record, {why}"))
            position = _resume(text, position)
            continue
        found.append(Document(value, line))
        position = end


def documents(text: str) -> tuple[list[Document], list[Problem]]:
    r"""Read every JSON record of a text: one object, an array, one object each line, or objects one after another.

    A broken record is left out and reported with its line; the records after it survive.

    Parameters
    ----------
    text : str
        Content of a file.

    Returns
    -------
    tuple
        Records, each with its line, and problems.

    Examples
    --------
    >>> good, bad = documents('{"a": 1}\n{"a": \n{"a": 3}\n')
    >>> [document.value["a"] for document in good], bad[0].line
    ([1, 3], 2)
    """
    start = len(text) - len(text.lstrip("\ufeff \t\r\n"))
    line = 1 + text.count("\n", 0, start)
    if text[start : start + 1] == "[":
        found, problems, end = _values(text, start + 1, line)
        if end >= len(text):
            problems.append(Problem(1 + text.count("\n"), "", "expected ']' at the end of the array, the file ends"))
        return found, problems
    found, problems, end = _values(text, start, line)
    if end < len(text):
        problems.append(Problem(1 + text.count("\n", 0, end), "", "expected a JSON record, found ']'"))
    return found, problems


def array_elements(text: str, key: str) -> tuple[list[Document], list[Problem]]:
    """Read the elements of one array out of a JSON text that is cut off.

    Parameters
    ----------
    text : str
        Content of a file whose end is missing.
    key : str
        Name of the array.

    Returns
    -------
    tuple
        Whole elements, and problems.

    Examples
    --------
    >>> [d.value for d in array_elements('{"runs": [{"a": 1}, {"a": 2', "runs")[0]]
    [{'a': 1}]
    """
    best: tuple[list[Document], list[Problem]] = ([], [])
    for begin in re.finditer(rf'"{re.escape(key)}"\s*:\s*\[', text):
        # settings may hold a list of the same name; the records are the list of the larger objects
        found, problems, _ = _values(text, begin.end(), 1 + text.count("\n", 0, begin.end()))
        objects = [document for document in found if isinstance(document.value, Mapping)]
        if sum(len(d.value) for d in objects) >= sum(len(d.value) for d in best[0]):
            best = (objects, problems)
    return best
