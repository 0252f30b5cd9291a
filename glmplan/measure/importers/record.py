"""What an importer gives back: rows in the column form of the measurement tables, and what was wrong in the file."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "RUN_COLUMNS",
    "BadRecord",
    "Document",
    "Fields",
    "Imported",
    "Problem",
    "Source",
    "array_elements",
    "documents",
    "milliseconds",
    "row_identifier",
]

#: The columns of a measured run in the order they are written, as in the tables of `calibration/measurements`.
# fmt: off
RUN_COLUMNS: tuple[str, ...] = (
    "id", "campaign", "measured_on", "model", "checkpoint", "weights", "kv_cache", "accelerator", "accelerator_count",
    "nodes", "host", "tp", "pp", "dp", "ep", "dcp", "engine", "engine_version", "attention_backend", "moe_backend",
    "cuda_graphs", "speculative", "acceptance_length", "power_limit_w", "phase", "protocol",
    "scenario", "concurrency", "running_limit",
    "concurrency_effective", "request_rate_per_s", "num_requests", "input_tokens", "output_tokens", "context_depth",
    "shared_prompt", "output_tokens_per_s", "output_tokens_per_s_per_request", "total_tokens_per_s",
    "prefill_tokens_per_s", "wall_s", "ttft_mean_ms", "ttft_p50_ms", "ttft_p99_ms",
    "tpot_mean_ms", "tpot_p50_ms", "tpot_p99_ms", "tpot_incl_ttft_mean_ms", "itl_mean_ms", "itl_p50_ms", "itl_p99_ms",
    "e2e_mean_ms", "e2e_p99_ms", "kv_pool_tokens", "weights_gib_per_accelerator", "gpu_power_total_w",
    "joules_per_output_token", "uncertainty_pct", "trust", "source", "notes",
)
# fmt: on


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
class Imported:
    """The runs of one file.

    Parameters
    ----------
    kind : str
        The tool that wrote the file, as recognised by its content.
    rows : list of dict
        Runs; keys are among `RUN_COLUMNS`.
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
        rows: list[dict[str, Any]] = []
        for document in found:
            try:
                for row in read(Fields(document.value, document.line, problems)):
                    rows.append({"id": row_identifier(self.text, len(rows)), **row})
            except BadRecord as error:
                problems.append(error.problem)
        return Imported("", rows, problems)


class BadRecord(ValueError):
    """A record that cannot become a run; carries the problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


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
    while True:
        position = gap.match(text, position).end()  # type: ignore[union-attr]
        line, counted = line + text.count("\n", counted, position), position
        if position >= len(text) or text[position] == "]":
            return found, problems, position
        try:
            value, end = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError) as error:
            at = getattr(error, "pos", position)
            cut = at >= len(text.rstrip()) or str(error).startswith("Unterminated string")
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
                found = float(value) if not isinstance(value, bool | list | dict) else math.nan
            except (TypeError, ValueError):
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
            kept = [float(v) for v in value if isinstance(v, int | float) and not isinstance(v, bool)]
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
    return "imp-" + hashlib.sha256(f"{index}:{content}".encode()).hexdigest()[:10]
