"""Replay recorded traffic: our own columns, and the published forms of the Azure, BurstGPT and Mooncake traces.

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

from glmplan.errors import SpecError
from glmplan.facts.files import parse_json, text_lines, understood
from glmplan.serving.traffic.request import Request
from glmplan.units import finite_number

__all__ = ["read_trace"]

#: columns of each form: arrival, input, output, session, prefix
_FORMS = {
    "glmplan": ("arrival_s", "input_tokens", "output_tokens", "session", "prefix_tokens"),
    "Azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens", None, None),
    "BurstGPT": ("Timestamp", "Request tokens", "Response tokens", "Session ID", None),
}

_MOONCAKE_BLOCK = 512


def _whole(value: object, file: Path, line: int, column: str) -> int:
    try:
        number = finite_number(value, column)
    except SpecError:
        number = math.nan
    if not math.isfinite(number) or number < 0 or number != int(number):
        raise SpecError("is not a whole number of tokens", file=file, field=f"line {line}: {column}", value=value)
    return int(number)


def _seconds(value: str, file: Path, line: int, column: str) -> float:
    try:
        number = finite_number(value, column)
    except SpecError:
        try:
            # Azure writes seven decimals, one more than datetime reads
            moment = datetime.fromisoformat(value.strip()[:26])
            number = (moment.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds()
        except (AttributeError, TypeError, ValueError):
            number = math.nan
    if not math.isfinite(number):
        raise SpecError("is neither seconds nor a date", file=file, field=f"line {line}: {column}", value=value)
    return number


def read_trace(path: str | Path, speed: float = 1.0) -> Iterator[Request]:
    """Read a trace as requests; the first arrives at time zero.

    Parameters
    ----------
    path : path
        A CSV with `arrival_s,input_tokens,output_tokens[,session,prefix_tokens]`, an Azure or BurstGPT CSV, or Mooncake
        JSON lines; the form is recognised by its columns.
    speed : float, optional
        How much faster than recorded it is replayed, [-]

    Yields
    ------
    Request
        Requests in the order of arrival. Rows that record a failure (no answer tokens) are left out.

    Raises
    ------
    SpecError
        If the file is empty, its columns are not known, times run backwards or a number is not one; names the line.

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
    stream = text_lines(file)
    with understood(file, "trace"):
        rows = _mooncake(stream, file) if file.suffix in (".jsonl", ".json") else _csv(stream, file)
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


def _csv(stream: Any, file: Path) -> Iterator[_Row]:
    reader = csv.DictReader(stream)
    names = reader.fieldnames or []
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
        length = _whole(row[inputs], file, line, inputs)
        name = (row.get(session) or "").strip() if session else ""
        shared = _whole(row[prefix], file, line, prefix) if prefix and row.get(prefix) else None
        who = numbers.setdefault(name, len(numbers)) if name else -1
        runs: tuple[tuple[object, int], ...] = ()
        if name:
            runs = ((("session", who), length),)
        elif shared:
            runs = (("prefix", min(shared, length)), (("line", line), length - min(shared, length)))
        yield (
            line,
            _seconds(row[at], file, line, at),
            length,
            _whole(row[outputs], file, line, outputs),
            runs,
            who,
            shared if name else None,
        )


def _mooncake(stream: Any, file: Path) -> Iterator[_Row]:
    for line, text in enumerate(stream, 1):
        if not text.strip():
            continue
        try:
            row = parse_json(text, file=file, field=f"line {line}")
            at, hashes = row["timestamp"], row.get("hash_ids", [])
            inputs, outputs = row["input_length"], row["output_length"]
        except (KeyError, TypeError, AttributeError) as error:
            raise SpecError(f"is not a Mooncake row: {error!r}", file=file, field=f"line {line}") from None
        length, runs, left = _whole(inputs, file, line, "input_length"), [], 0
        left = length
        for name in hashes:
            part = min(_MOONCAKE_BLOCK, left)
            runs.append((("block", name), part))
            left -= part
        if left:
            runs.append((("line", line), left))
        seconds = _seconds(at, file, line, "timestamp") / 1000
        yield line, seconds, length, _whole(outputs, file, line, "output_length"), tuple(runs), -1, None
