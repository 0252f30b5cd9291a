"""Read records of benchmark files as rows of measurement tables.

JSON may be cut off or hold several values; CSV and tables with bars are read too. Every problem is reported with its
line.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from glmplan.io.runs.columns import COLUMNS
from glmplan.units import Milliseconds, Ratio, Seconds

__all__ = [
    "BadRecord",
    "Document",
    "Fields",
    "Imported",
    "Importer",
    "Problem",
    "Source",
    "array_elements",
    "bar_table",
    "by_keys",
    "by_text",
    "csv_table",
    "documents",
    "few_requests",
    "latencies",
    "load",
    "mean_lengths",
    "metric_columns",
    "milliseconds",
    "notes",
    "row_identifier",
]


@dataclass(frozen=True, slots=True)
class Problem:
    """Problem of a file; line 0 is the file as a whole.

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
    """One JSON value of a file and its first line."""

    value: Any
    line: int


def _resume(text: str, position: int) -> int:
    """Return the start of the record after a broken one.

    It is the next line that opens an object at its indentation.
    """
    indent = re.match(r"[ \t]*", text[text.rfind("\n", 0, position) + 1 : position])[0]  # type: ignore[index]
    match = re.compile(rf"\n{indent}(?=\{{)").search(text, position)
    return match.end() if match else len(text)


def _values(text: str, start: int, base_line: int) -> tuple[list[Document], list[Problem], int]:
    """Read JSON values from a position up to the enclosing `]`.

    Broken ones are skipped.
    """
    decoder = json.JSONDecoder()
    result: list[Document] = []
    problems: list[Problem] = []
    gap = re.compile(r"[\s,\x00\ufeff]*")
    position, counted, line = start, start, base_line
    whole = len(text.rstrip())
    while True:
        position = gap.match(text, position).end()  # type: ignore[union-attr]
        line, counted = line + text.count("\n", counted, position), position
        if position >= len(text) or text[position] == "]":
            return result, problems, position
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
        result.append(Document(value, line))
        position = end


def documents(text: str) -> tuple[list[Document], list[Problem]]:
    r"""Return every JSON record of a text.

    One object, an array, one object each line, or objects in sequence. A broken record is left out and reported with
    its line; the records after it are kept.

    Examples
    --------
    >>> good, bad = documents('{"a": 1}\n{"a": \n{"a": 3}\n')
    >>> [document.value["a"] for document in good], bad[0].line
    ([1, 3], 2)
    """
    start = len(text) - len(text.lstrip("\ufeff \t\r\n"))
    line = 1 + text.count("\n", 0, start)
    if text[start : start + 1] == "[":
        result, problems, end = _values(text, start + 1, line)
        if end >= len(text):
            problems.append(Problem(1 + text.count("\n"), "", "expected ']' at the end of the array, the file ends"))
        return result, problems
    result, problems, end = _values(text, start, line)
    if end < len(text):
        problems.append(Problem(1 + text.count("\n", 0, end), "", "expected a JSON record, found ']'"))
    return result, problems


def array_elements(text: str, key: str) -> tuple[list[Document], list[Problem]]:
    """Return the elements of one array of a JSON text whose end is missing.

    Examples
    --------
    >>> [d.value for d in array_elements('{"runs": [{"a": 1}, {"a": 2', "runs")[0]]
    [{'a': 1}]
    """
    best: tuple[list[Document], list[Problem]] = ([], [])
    for begin in re.finditer(rf'"{re.escape(key)}"\s*:\s*\[', text):
        # settings may hold a list of the same name; the records are the list of the larger objects
        result, problems, _ = _values(text, begin.end(), 1 + text.count("\n", 0, begin.end()))
        objects = [document for document in result if isinstance(document.value, Mapping)]
        if sum(len(d.value) for d in objects) >= sum(len(d.value) for d in best[0]):
            best = (objects, problems)
    return best


#: longest content whose rows are not named by its digest [character]
_LONG = 1 << 16
#: above every time, size or count
_LARGEST = 1e300


@dataclass(frozen=True, slots=True)
class Imported:
    """Runs of one file."""

    kind: str  # tool that wrote the file, recognised by content
    rows: list[dict[str, Any]] = field(default_factory=list)  # keys are among `glmplan.io.runs.columns.COLUMNS`
    problems: list[Problem] = field(default_factory=list)  # records and fields that could not be used
    logged: Any = None  # the `StartupLog` of a startup log


@dataclass(frozen=True, slots=True)
class Source:
    """File as an importer sees it; `name` serves messages and hidden facts.

    Some formats hide a fact in the name.
    """

    name: str
    text: str

    def has_keys(self, *keys: str) -> bool:
        """Return True if all of some JSON keys occur, also in truncated files."""
        return all(re.search(rf'"{re.escape(key)}"\s*:', self.text) for key in keys)

    def collect(self, read: Callable[[Fields], Iterable[dict[str, Any]]], array: str = "") -> Imported:
        """Return the runs of each JSON record; broken ones become problems.

        `array`: name of the array that holds the records when the file is one big object.
        """
        result, problems = documents(self.text)
        if array:
            nested, cut = array_elements(self.text, array) if problems or not result else ([], [])
            whole = [d for d in result if isinstance(d.value, dict) and isinstance(d.value.get(array), list)]
            result = [Document(v, d.line) for d in whole for v in d.value[array]] or nested
            problems = [] if whole else (cut or problems)
        return self.gather([*problems, *result], read)

    def gather(
        self, records: Iterable[Document | Problem], read: Callable[[Fields], Iterable[dict[str, Any]]]
    ) -> Imported:
        """Return the runs of each record; broken ones become problems."""
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


class Importer(NamedTuple):
    """Reader of one kind of file, and the test of its content."""

    name: str
    recognise: Callable[[Source], bool]
    read: Callable[[Source], Imported]


def by_keys(*keys: str, without: str = "") -> Callable[[Source], bool]:
    """Return a test of a `Source` for JSON keys, also in truncated files.

    Examples
    --------
    >>> by_keys("tput", without="isl")(Source("", '{"tput": 1'))
    True
    """
    return lambda source: source.has_keys(*keys) and not (without and source.has_keys(without))


def by_text(pattern: str) -> Callable[[Source], bool]:
    """Return a test of a `Source` for a line that matches.

    `^` and `$` are those of a line.

    Examples
    --------
    >>> by_text("^pp")(Source("", "tg\\npp 5"))
    True
    """
    compiled = re.compile(pattern, re.M)
    return lambda source: compiled.search(source.text) is not None


class BadRecord(ValueError):
    """A record that cannot become a run, with its problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


#: cells that say that there is no value
_ABSENT = ("", "-", "n/a", "none", "null")
#: number with separators of thousands, as GenAI-Perf writes it
_THOUSANDS = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?")

#: larger numbers are no measurement; sums and units of those below stay finite
_MOST = 1e30


class Fields:
    """Reader of a record's fields.

    Missing or wrong ones become problems with line and name. `prefix` is the name of the enclosing field.
    """

    def __init__(self, value: Any, line: int, problems: list[Problem], prefix: str = "") -> None:
        if not isinstance(value, Mapping):
            raise BadRecord(Problem(line, prefix.rstrip("."), f"expected an object, got {_short(value)}"))
        self.value, self.line, self.problems, self.prefix = value, line, problems, prefix

    def __contains__(self, key: str) -> bool:
        return self.value.get(key) is not None

    def number(self, *keys: str) -> float | None:
        """Return the first present of several fields as a number, or None."""
        for key in keys:
            value = self.value.get(key)
            if value is None or (isinstance(value, str) and value.strip().lower() in _ABSENT):
                continue
            try:
                result = _float(value)
            except (TypeError, ValueError, OverflowError):
                result = math.nan
            if abs(result) < _MOST:
                return result
            self.problems.append(Problem(self.line, self.prefix + key, f"expected a number, got {_short(value)}"))
        return None

    def positive(self, *keys: str) -> float | None:
        """Return a number above zero, else None.

        These tools write zero for "not measured".
        """
        result = self.number(*keys)
        if result is not None and result < 0:
            self.problems.append(Problem(self.line, self.prefix + keys[0], f"expected a positive number, got {result}"))
        return result if result is not None and result > 0 else None

    def rate(self, *keys: str) -> float | None:
        """Return a rate above zero; None for `inf`, which means no limit.

        Examples
        --------
        >>> Fields({"request_rate": "inf"}, 1, []).rate("request_rate")
        """
        unlimited = any(str(self.value.get(key)).lower() in ("inf", "infinity") for key in keys)
        return None if unlimited else self.positive(*keys)

    def require(self, *keys: str) -> float:
        """Return a number without which the record is unusable."""
        before = len(self.problems)
        result = self.number(*keys)
        if result is None:
            if len(self.problems) > before:
                raise BadRecord(self.problems.pop())
            raise BadRecord(Problem(self.line, self.prefix + keys[0], "expected a number, the field is missing"))
        return result

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
            kept = [float(v) for v in value if type(v) in (int, float) and abs(v) < _MOST]
            if len(kept) == len(value):
                return kept
            self.problems.append(Problem(self.line, self.prefix + key, "expected a list of numbers"))
        return []

    def inside(self, *keys: str) -> Fields:
        """Return a nested record, empty where it is missing."""
        value, prefix = self.value, self.prefix
        for key in keys:
            value, prefix = (value.get(key) if isinstance(value, Mapping) else None) or {}, f"{prefix}{key}."
        return Fields(value if isinstance(value, Mapping) else {}, self.line, self.problems, prefix)


def _float(value: Any) -> float:
    if isinstance(value, bool | list | dict) or (isinstance(value, str) and not value.isascii()):
        raise ValueError
    if isinstance(value, str) and _THOUSANDS.fullmatch(value.strip()):
        value = value.replace(",", "")
    return float(value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def milliseconds(value: Seconds | None) -> Milliseconds | None:
    """Return seconds as milliseconds; None stays None.

    Examples
    --------
    >>> milliseconds(0.25), milliseconds(None)
    (250.0, None)
    """
    return None if value is None else value * 1e3


def row_identifier(content: str, index: int) -> str:
    """Return the name of a run from its content.

    Importing a file twice gives the same names.

    Examples
    --------
    >>> row_identifier("abc", 0)
    'imp-af933b6265'
    """
    if len(content) > _LONG:
        # the digest of a long file is not computed again for each of its rows
        content = _digest(content)
    return "imp-" + hashlib.sha256(f"{index}:{content}".encode(errors="replace")).hexdigest()[:10]


@lru_cache(maxsize=1)
def _digest(content: str) -> str:
    return hashlib.sha256(content.encode(errors="replace")).hexdigest()


#: with so few requests one slow first request changes every mean; medians are safer
_FEW = 10


def latencies(fields: Fields, *, e2e: str = "e2el", suffix: str = "_ms", scale: float = 1.0) -> dict[str, float | None]:
    """Return `mean_ttft_ms`-like fields as columns like `ttft_mean_ms`.

    `scale` converts to ms.

    Examples
    --------
    >>> latencies(Fields({"mean_ttft": 0.5}, 1, []), suffix="", scale=1000)["ttft_mean_ms"]
    500.0
    """
    columns: dict[str, float | None] = {}
    for ours, theirs in {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": e2e}.items():
        for quantile, words in {"mean": ("mean",), "p50": ("median", "p50"), "p99": ("p99",)}.items():
            if (ours, quantile) == ("e2e", "p50"):
                continue
            value = fields.positive(*(f"{word}_{theirs}{suffix}" for word in words))
            columns[f"{ours}_{quantile}_ms"] = None if value is None else value * scale
    return columns


def metric_columns(
    names: Mapping[str, str], read: Callable[[str, str], float | None], statistics: tuple[str, str, str]
) -> dict[str, float | None]:
    """Return the latency columns in ms that `read` finds.

    It looks for a tool's names of metric and statistic. `names`: metric of a column → its name; `statistics`: names of
    mean, median and 99th percentile.

    Examples
    --------
    >>> metric_columns({"ttft": "time_to_first_token"}, lambda *names: len(names[1]), ("avg", "median", "p99"))
    {'ttft_mean_ms': 3, 'ttft_p50_ms': 6, 'ttft_p99_ms': 3}
    """
    columns = {
        f"{metric}_{short}_ms": (name, statistic)
        for metric, name in names.items()
        for short, statistic in zip(("mean", "p50", "p99"), statistics, strict=True)
    }
    return {column: read(*place) for column, place in columns.items() if column in COLUMNS}


def mean_lengths(fields: Fields, completed: Ratio) -> dict[str, float | None]:
    """Return the tokens of each request from totals.

    Random lengths have other means than the nominal ones.
    """
    return {
        "input_tokens": fields.require("total_input_tokens") / completed,
        "output_tokens": fields.require("total_output_tokens") / completed,
    }


def load(fields: Fields, prompts: Ratio | None) -> dict[str, float | None]:
    """Return the offered load: a concurrency or a request rate.

    Without limit and rate all `prompts` are in flight at once.

    Examples
    --------
    >>> load(Fields({"max_concurrency": 64, "request_rate": "inf"}, 1, []), 12)
    {'concurrency': 12, 'request_rate_per_s': None}
    """
    limit, rate = fields.positive("max_concurrency"), fields.rate("request_rate")
    users = limit if limit is not None else (None if rate is not None else prompts)
    if users is not None and prompts is not None:
        users = min(users, prompts)
    return {"concurrency": users, "request_rate_per_s": rate}


def few_requests(completed: Ratio) -> str:
    """Return a warning for runs too short for their means, or ""."""
    return f"only {completed:.0f} requests: prefer medians to means" if completed <= _FEW else ""


def notes(*parts: Any) -> str:
    """Join notes, without empty ones.

    Examples
    --------
    >>> notes("a", "", None, "b")
    'a; b'
    """
    return "; ".join(str(part) for part in parts if part)


def _record(header: list[str], cells: list[str], line: int) -> Document | Problem:
    if len(cells) != len(header):
        return Problem(line, "", f"expected {len(header)} cells, got {len(cells)}")
    # of columns with one name the first counts
    return Document(dict(zip(reversed(header), reversed(cells), strict=True)), line)


def csv_table(text: str, *, headers: int = 1) -> Iterator[Document | Problem]:
    """Yield the records of a CSV, or the problem of a line.

    `headers`: lines of the header; the names of a column in them are joined by bars.

    Examples
    --------
    >>> [record.value for record in csv_table("a,a\\nb,\\n1,2", headers=2)]
    [{'a': '2', 'a|b': '1'}]
    """
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")))
    head = list(islice(reader, headers))
    if len(head) < headers:
        yield Problem(len(head), "", f"expected {headers} header rows, the file ends")
        return
    names = ["|".join(part for part in cell if part) for cell in zip(*head, strict=False)]
    for cells in reader:
        if any(cells):
            yield _record(names, cells, reader.line_num)


def bar_table(text: str, header: str, *, ends: bool = True) -> Iterator[Document | Problem]:
    """Yield the records, or problems, of every table between bars.

    `header`: regular expression for the begin of a header line. `ends`: a line without bars ends a table; False: log
    lines may stand in it.

    Examples
    --------
    >>> [record.value for record in bar_table("| a | b |\\n|---|---|\\n| 1 | 2 |", r"\\| a")]
    [{'b': '2', 'a': '1'}]
    """
    names: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        cells = [cell.strip() for cell in bare.strip("|").split("|")] if bare.startswith("|") else []
        if re.match(header, line):
            names = cells
        elif not cells:
            names = [] if ends else names
        elif names and set("".join(cells)) - set("-: "):
            yield _record(names, cells, number)
