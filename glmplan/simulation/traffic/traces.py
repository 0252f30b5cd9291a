"""Replay recorded traffic: own columns, Azure, BurstGPT and Mooncake.

References
----------
.. [1] Azure LLM inference traces 2023 and 2024, https://github.com/Azure/AzurePublicDataset
   (`TIMESTAMP,ContextTokens,GeneratedTokens`).
.. [2] BurstGPT, https://github.com/HPMLL/BurstGPT (`Timestamp` [s], `Request tokens`, `Response tokens`, later releases
   also `Session ID`).
.. [3] Mooncake, https://github.com/kvcache-ai/Mooncake (JSON lines: `timestamp` [ms], `input_length`, `output_length`,
   `hash_ids` of 512-token blocks).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from glmplan.catalog.files import MOST_OF_RUNS, parse_json, read_json, text_lines, understood
from glmplan.errors import SpecError
from glmplan.simulation.traffic.request import Request
from glmplan.units import Ratio, Seconds, TokenCount, finite_number

__all__ = [
    "MOONCAKE_BLOCK",
    "blocks",
    "json_rows",
    "read_trace",
    "seconds_of",
    "whole_of",
]


# Lines of a trace file, and numbers in them; an error names its line and the expected value.


def json_rows(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read JSON lines, or the entries of a JSON array.

    Yields: Line, or place in the array, and what stands there.
    """
    first = next((line for line in text_lines(file) if line.strip()), "")
    if first.lstrip().startswith("["):
        for place, entry in enumerate(read_json(file, most=MOST_OF_RUNS), 1):
            yield place, _object(entry, file, place)
        return
    if first.strip() == "{":
        whole = read_json(file, most=MOST_OF_RUNS) if file.suffix == ".json" else {}
        if "requests" in whole:
            yield 1, whole
            return
        raise SpecError("is one JSON object over many lines: a trace has one object in each line, or is a list of them",
                        file=file, field="line 1")  # fmt: skip
    for number, line in enumerate(text_lines(file), 1):
        if line.strip():
            yield number, _object(parse_json(line, file=file, field=f"line {number}"), file, number)


def _object(entry: object, file: Path, line: int) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise SpecError("is no JSON object, as {...}", file=file, field=f"line {line}", value=str(entry)[:40])
    return entry


def whole_of(value: object, file: Path, line: int, column: str) -> TokenCount:
    """Read a number of tokens.

    Examples
    --------
    >>> whole_of("12", Path("t.csv"), 2, "input_tokens")
    12
    """
    try:
        number = finite_number(value, column)
    except SpecError:
        number = math.nan
    if not math.isfinite(number) or number < 0 or number != int(number):
        raise SpecError("is not a whole number of tokens", file=file, field=f"line {line}: {column}", value=value)
    return int(number)


def seconds_of(value: object, file: Path, line: int, column: str) -> Seconds:
    """Read a moment or a duration.

    Examples
    --------
    >>> seconds_of("1970-01-01 00:01:00.0000000", Path("t.csv"), 2, "TIMESTAMP")
    60.0
    """
    try:
        number = finite_number(value, column)
    except SpecError:
        try:
            # Azure writes seven decimals, one more than datetime reads
            moment = datetime.fromisoformat(str(value).strip()[:26])
            number = (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
        except (AttributeError, TypeError, ValueError):
            number = math.nan
    if not math.isfinite(number):
        raise SpecError("is neither seconds nor a date", file=file, field=f"line {line}: {column}", value=value)
    return number


#: columns of each form: arrival, input, output, session, prefix
_FORMS = {
    "glmplan": ("arrival_s", "input_tokens", "output_tokens", "session", "prefix_tokens"),
    "Azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens", None, None),
    "BurstGPT": ("Timestamp", "Request tokens", "Response tokens", "Session ID", None),
}

#: tokens of a block hash [token]
MOONCAKE_BLOCK = 512


def read_trace(path: str | Path, speed: Ratio = 1.0) -> Iterator[Request]:
    """Read a trace as requests; the first arrives at time zero.

    - `path`: A CSV with `arrival_s,input_tokens,output_tokens[,session,prefix_tokens]`, an Azure or BurstGPT CSV, or
      Mooncake JSON lines; the form is recognised by its columns.
    - `speed`: How much faster than recorded it is replayed.
    - Yields: Requests in the order of arrival. Rows that record a failure (no answer tokens) are left out.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "t.csv"
    >>> _ = file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\\n2023-11-16 18:15:46.6805900,374,44\\n")
    >>> [(r.arrival, r.input, r.output) for r in read_trace(file)]
    [(0.0, 374, 44)]
    """
    file = Path(path)
    start = last = -math.inf
    number = 0
    with understood(file, "trace"):
        rows = _mooncake(file) if file.suffix in (".jsonl", ".json") else _csv(file)
        for line, arrival, inputs, outputs, runs, session, shareable in rows:
            if start == -math.inf:
                start = arrival
            if arrival < last:
                raise SpecError(
                    "is earlier than the line before", file=file, field=f"line {line}: arrival", value=arrival
                )
            last = arrival
            if outputs < 1 or inputs < 1:
                continue
            request = Request(number, (arrival - start) / speed, inputs, outputs, None, runs, session)
            if shareable is not None:
                request.shareable = shareable
            yield request
            number += 1
    if not number:
        raise SpecError("holds no requests", file=file)


_Row = tuple[int, float, int, int, tuple[tuple[object, int], ...], int, int | None]


def _csv(file: Path) -> Iterator[_Row]:
    reader = csv.DictReader(text_lines(file))
    try:
        names = reader.fieldnames or []
        yield from _rows(reader, list(names), file)
    except csv.Error as error:
        raise SpecError(f"is no CSV: {error}", file=file, field=f"line {reader.line_num}") from None


def _rows(reader: csv.DictReader[str], names: list[str], file: Path) -> Iterator[_Row]:
    form = next((f for f in _FORMS.values() if f[0] in names and f[1] in names and f[2] in names), None)
    if form is None:
        expected = "; ".join(",".join(c for c in f[:3] if c) for f in _FORMS.values())
        raise SpecError(
            f"has none of the known headers ({expected})", file=file, field="columns", value=",".join(names)
        )
    at, inputs, outputs, session, prefix = form
    assert at and inputs and outputs
    numbers: dict[str, int] = {}
    for line, row in enumerate(reader, 2):
        length = whole_of(row[inputs], file, line, inputs)
        name = (row.get(session) or "").strip() if session else ""
        shared = whole_of(row[prefix], file, line, prefix) if prefix and row.get(prefix) else None
        who = numbers.setdefault(name, len(numbers)) if name else -1
        runs: tuple[tuple[object, int], ...] = ()
        if name:
            runs = ((("session", who), length),)
        elif shared:
            runs = (("prefix", min(shared, length)), (("line", line), length - min(shared, length)))
        yield (
            line,
            seconds_of(row[at], file, line, at),
            length,
            whole_of(row[outputs], file, line, outputs),
            runs,
            who,
            shared if name else None,
        )


def _mooncake(file: Path) -> Iterator[_Row]:
    for line, row in json_rows(file):
        try:
            at, hashes = row["timestamp"], row.get("hash_ids", [])
            inputs, outputs = row["input_length"], row["output_length"]
            if not isinstance(hashes, list):
                raise TypeError
            hash(tuple(hashes))
        except (KeyError, TypeError) as error:
            expected = '{"timestamp": ..., "input_length": ..., "output_length": ..., "hash_ids": [...]}'
            why = f"it has no {error.args[0]}" if isinstance(error, KeyError) else "its fields are not of that kind"
            raise SpecError(
                f"is not a Mooncake row ({why}): expected {expected}", file=file, field=f"line {line}"
            ) from None
        length = whole_of(inputs, file, line, "input_length")
        runs = blocks(hashes, MOONCAKE_BLOCK, length, "block", ("line", line))
        seconds = seconds_of(at, file, line, "timestamp") / 1000
        yield line, seconds, length, whole_of(outputs, file, line, "output_length"), runs, -1, None


def blocks(
    hashes: list[Any], block: int, length: TokenCount, scope: object, rest: object
) -> tuple[tuple[object, int], ...]:
    """Return the parts of a prompt from the names of its blocks.

    `rest` names the tokens behind the last block.
    """
    runs: list[tuple[object, int]] = [
        ((scope, name), min(block, length - i * block)) for i, name in enumerate(hashes[: -(-length // block)])
    ]
    left = length - len(runs) * block
    return (*runs, (rest, left)) if left > 0 else tuple(runs)
