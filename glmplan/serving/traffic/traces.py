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
from pathlib import Path

from glmplan.errors import SpecError
from glmplan.facts.files import text_lines, understood
from glmplan.serving.traffic.request import Request
from glmplan.serving.traffic.trace_lines import json_rows, seconds_of, whole_of

__all__ = ["read_trace"]

#: columns of each form: arrival, input, output, session, prefix
_FORMS = {
    "glmplan": ("arrival_s", "input_tokens", "output_tokens", "session", "prefix_tokens"),
    "Azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens", None, None),
    "BurstGPT": ("Timestamp", "Request tokens", "Response tokens", "Session ID", None),
}

_MOONCAKE_BLOCK = 512


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
            names = [("block", name) for name in hashes]
        except (KeyError, TypeError) as error:
            expected = '{"timestamp": ..., "input_length": ..., "output_length": ..., "hash_ids": [...]}'
            why = f"it has no {error.args[0]}" if isinstance(error, KeyError) else "its fields are not of that kind"
            raise SpecError(
                f"is not a Mooncake row ({why}): expected {expected}", file=file, field=f"line {line}"
            ) from None
        length, runs = whole_of(inputs, file, line, "input_length"), []
        left = length
        for name in names:
            part = min(_MOONCAKE_BLOCK, left)
            runs.append((name, part))
            left -= part
        if left:
            runs.append((("line", line), left))
        seconds = seconds_of(at, file, line, "timestamp") / 1000
        yield line, seconds, length, whole_of(outputs, file, line, "output_length"), tuple(runs), -1, None
