"""What an importer gives back: rows in the column form of the measurement tables, and what was wrong in the file."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from glmplan.readers.runs.importers.json_records import Document, Problem, array_elements, documents

__all__ = [
    "BadRecord",
    "Document",
    "Fields",
    "Imported",
    "Problem",
    "Source",
    "by_keys",
    "by_text",
    "milliseconds",
    "row_identifier",
]

#: content beyond which rows are named by its digest [character]
_LONG = 1 << 16
#: what no time, size or count reaches
_LARGEST = 1e300


@dataclass(frozen=True, slots=True)
class Imported:
    """The runs of one file.

    Parameters
    ----------
    kind : str
        The tool that wrote the file, as recognised by its content.
    rows : list of dict
        Runs; keys are among `glmplan.readers.runs.columns.COLUMNS`.
    problems : list of Problem
        Records and fields that could not be used.
    logged : object, optional
        For a startup log: what the engine said of its memory (`startup.StartupLog`).
    """

    kind: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    logged: Any = None


@dataclass(frozen=True, slots=True)
class Source:
    """A file as an importer sees it.

    Parameters
    ----------
    name : str
        Name of the file, only for messages and for what a format hides in it.
    text : str
        Its content.
    """

    name: str
    text: str

    def has_keys(self, *keys: str) -> bool:
        """Tell whether all of some JSON keys occur, which works on truncated files too."""
        return all(re.search(rf'"{re.escape(key)}"\s*:', self.text) for key in keys)

    def collect(self, read: Callable[[Fields], Iterable[dict[str, Any]]], array: str = "") -> Imported:
        """Read each JSON record with a function; a record that is broken is a problem, the others survive.

        Parameters
        ----------
        read : callable
            From the fields of a record to its runs.
        array : str, optional
            Name of the array that holds the records when the file is one big object.

        Returns
        -------
        Imported
            Runs and problems; `kind` is left empty.
        """
        found, problems = documents(self.text)
        if array:
            nested, cut = array_elements(self.text, array) if problems or not found else ([], [])
            whole = [d for d in found if isinstance(d.value, dict) and isinstance(d.value.get(array), list)]
            found = [Document(v, d.line) for d in whole for v in d.value[array]] or nested
            problems = [] if whole else (cut or problems)
        return self.gather([*problems, *found], read)

    def gather(
        self, records: Iterable[Document | Problem], read: Callable[[Fields], Iterable[dict[str, Any]]]
    ) -> Imported:
        """Read records with a function; one that is broken is a problem, the others survive.

        Parameters
        ----------
        records : iterable of Document or Problem
            The records, and what was wrong where there should have been one.
        read : callable
            From the fields of a record to its runs.

        Returns
        -------
        Imported
            Runs and problems; `kind` is left empty.
        """
        rows: list[dict[str, Any]] = []
        problems: list[Problem] = []
        for record in records:
            if isinstance(record, Problem):
                problems.append(record)
                continue
            try:
                for row in read(Fields(record.value, record.line, problems)):
                    rows.append({"id": row_identifier(self.text, len(rows)), **row})
            except BadRecord as error:
                problems.append(error.problem)
        return Imported("", rows, problems)


def by_keys(*keys: str, without: str = "") -> Callable[[Source], bool]:
    """Return a test whether a file holds some JSON keys, which works on truncated files too.

    Parameters
    ----------
    *keys : str
        All of these.
    without : str, optional
        And not this one.

    Returns
    -------
    callable
        From a `Source` to whether it is of that kind.

    Examples
    --------
    >>> by_keys("tput", without="isl")(Source("", '{"tput": 1'))
    True
    """
    return lambda source: source.has_keys(*keys) and not (without and source.has_keys(without))


def by_text(pattern: str) -> Callable[[Source], bool]:
    """Return a test whether a text holds a line that matches.

    Parameters
    ----------
    pattern : str
        Regular expression; `^` and `$` are those of a line.

    Returns
    -------
    callable
        From a `Source` to whether it is of that kind.

    Examples
    --------
    >>> by_text("^pp")(Source("", "tg\\npp 5"))
    True
    """
    compiled = re.compile(pattern, re.M)
    return lambda source: compiled.search(source.text) is not None


class BadRecord(ValueError):
    """A record that cannot become a run; carries the problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


class Fields:
    """Reads fields of one record; what is missing or of the wrong type is a problem with its line and its name.

    Parameters
    ----------
    value : mapping
        The record.
    line : int
        Where it begins, [-]
    problems : list of Problem
        Where problems go.
    prefix : str, optional
        Name of the enclosing field.
    """

    def __init__(self, value: Any, line: int, problems: list[Problem], prefix: str = "") -> None:
        if not isinstance(value, Mapping):
            raise BadRecord(Problem(line, prefix.rstrip("."), f"expected an object, got {_short(value)}"))
        self.value, self.line, self.problems, self.prefix = value, line, problems, prefix

    def __contains__(self, key: str) -> bool:
        return self.value.get(key) is not None

    def number(self, *keys: str) -> float | None:
        """Return the first of several fields that is there, as a number; None if none is."""
        for key in keys:
            value = self.value.get(key)
            if value is None or value == "":
                continue
            try:
                found = _float(value)
            except (TypeError, ValueError, OverflowError):
                found = math.nan
            if not math.isnan(found):
                return found
            self.problems.append(Problem(self.line, self.prefix + key, f"expected a number, got {_short(value)}"))
        return None

    def positive(self, *keys: str) -> float | None:
        """Return a number above zero; None where it is missing or zero, which these tools write for "not measured"."""
        found = self.number(*keys)
        if found is not None and found < 0:
            self.problems.append(Problem(self.line, self.prefix + keys[0], f"expected a positive number, got {found}"))
        return found if found is not None and found > 0 else None

    def require(self, *keys: str) -> float:
        """Return a number that the record cannot do without.

        Raises
        ------
        BadRecord
            If it is missing or not a number.
        """
        before = len(self.problems)
        found = self.number(*keys)
        if found is None:
            if len(self.problems) > before:
                raise BadRecord(self.problems.pop())
            raise BadRecord(Problem(self.line, self.prefix + keys[0], "expected a number, the field is missing"))
        return found

    def text(self, *keys: str) -> str | None:
        """Return the first of several fields that holds text."""
        for key in keys:
            value = self.value.get(key)
            if isinstance(value, str) and value:
                return value
        return None

    def numbers(self, key: str) -> list[float]:
        """Return a list of numbers; empty if it is missing or holds anything else."""
        value = self.value.get(key)
        if isinstance(value, Sequence) and not isinstance(value, str):
            kept = [
                float(v) for v in value if isinstance(v, int | float) and not isinstance(v, bool) and abs(v) < 1e300
            ]
            if len(kept) == len(value):
                return kept
            self.problems.append(Problem(self.line, self.prefix + key, "expected a list of numbers"))
        return []

    def inside(self, *keys: str) -> Fields:
        """Return a nested record; an empty one if it is not there."""
        value, prefix = self.value, self.prefix
        for key in keys:
            value, prefix = (value.get(key) if isinstance(value, Mapping) else None) or {}, f"{prefix}{key}."
        return Fields(value if isinstance(value, Mapping) else {}, self.line, self.problems, prefix)


def _float(value: Any) -> float:
    if isinstance(value, bool | list | dict) or (isinstance(value, str) and not value.isascii()):
        raise ValueError
    return float(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def milliseconds(value: float | None) -> float | None:
    """Turn seconds into milliseconds, keeping what is missing.

    Parameters
    ----------
    value : float or None
        A time, [s]

    Returns
    -------
    float or None
        The same time, [ms]

    Examples
    --------
    >>> milliseconds(0.25), milliseconds(None)
    (250.0, None)
    """
    return None if value is None else value * 1e3


def row_identifier(content: str, index: int) -> str:
    """Name a run by the content it came from, so that importing a file twice gives the same names.

    Parameters
    ----------
    content : str
        Content of the file.
    index : int
        Which run of the file, [-]

    Returns
    -------
    str
        The identifier.

    Examples
    --------
    >>> row_identifier("abc", 0)
    'imp-af933b6265'
    """
    if len(content) > _LONG:
        # a long file is not gone through again for each of its rows
        content = _digest(content)
    return "imp-" + hashlib.sha256(f"{index}:{content}".encode(errors="replace")).hexdigest()[:10]


@lru_cache(maxsize=1)
def _digest(content: str) -> str:
    return hashlib.sha256(content.encode(errors="replace")).hexdigest()
