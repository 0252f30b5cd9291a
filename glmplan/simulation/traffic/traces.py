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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from glmplan.catalog.files import MOST_OF_RUNS, parse_json, read_json, text_lines, understood
from glmplan.errors import SpecError
from glmplan.simulation.traffic.request import Request
from glmplan.units import Ratio, Seconds, TokenCount, finite_number

__all__ = [
    "CHARACTERS",
    "Conversation",
    "Turn",
    "conversation_form",
    "json_rows",
    "read_conversations",
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

_MOONCAKE_BLOCK = 512


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
            names = [("block", name) for name in hashes]
            hash(tuple(names))
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


# Recorded conversations, whose turns begin when the answer before has ended and the user or a tool has taken its time.
#
# References
# ----------
# .. [1] ShareGPT, https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered (a JSON array of
#    `conversations`, each turn with `from` and `value`).
# .. [2] AIPerf, https://github.com/ai-dynamo/aiperf docs/tutorials/custom-dataset.md (JSON lines with `session_id` and
#    `turns`, each with `text`, `delay` [ms] and `timestamp` [ms]; Mooncake rows with `session_id` and `delay`), and its
#    `profile_export.jsonl` (`metadata`, `metrics`).
# .. [3] OpenAI, "What are tokens and how to count them", https://help.openai.com/en/articles/4936856 (one token is
# about
#    four characters of English).

#: characters of a token where a file holds text and no counts, [-]
CHARACTERS = 4.0
#: roles whose turns are answers
_ANSWERS = ("gpt", "assistant", "chatgpt", "bard", "bing", "model")
#: what an entry of each form holds, by the name that tells it
_FORMS_CONVERSATIONS = {
    "conversations": ("ShareGPT", '{"conversations": [{"from": "human", "value": "..."}, ...]}'),
    "turns": ("AIPerf multi-turn", '{"session_id": "...", "turns": [{"text": "..."}, ...]}'),
    "metadata": ("AIPerf export", '{"metadata": {...}, "metrics": {...}}'),
}
#: names of a row of a Mooncake trace, one of which it must have to be taken for one
_MOONCAKE = ("timestamp", "input_length", "output_length", "hash_ids")
#: columns of a table of our own: a turn begins so long after the answer before
_OWN = ("session", "wait_s", "input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation.

    Parameters
    ----------
    wait : float
        Time between the end of the answer before and this turn, [s]
    input_tokens : int
        Whole prompt, earlier turns included, [token]
    output_tokens : int
        Answer, [token]
    """

    wait: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of one user.

    Parameters
    ----------
    start : float or None
        When the first turn arrives; None where the file does not say, [s]
    turns : tuple of Turn
        The turns, in order.
    """

    start: float | None
    turns: tuple[Turn, ...]


def conversation_form(path: str | Path) -> str:
    """Which form of conversations a file has.

    Returns: Its form by the names in its first entry; empty if it holds no conversations.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "t.jsonl"
    >>> _ = file.write_text('{"session_id": "a", "turns": [{"text": "Hello"}]}')
    >>> conversation_form(file)
    'AIPerf multi-turn'
    """
    file = Path(path)
    if file.suffix not in (".json", ".jsonl"):
        head = next(text_lines(file), "").strip().split(",")
        return "own table" if set(_OWN) <= set(head) else ""
    line, first = next(json_rows(file), (1, {}))
    for key, (name, _) in _FORMS_CONVERSATIONS.items():
        if key in first:
            return name
    if first and not set(_MOONCAKE) & set(first):
        raise _of_no_form(file, line, first)
    return "Mooncake sessions" if "session_id" in first and "input_length" in first else ""


def _of_no_form(file: Path, line: int, first: dict[str, Any]) -> SpecError:
    """Return the columns of an entry and those of the nearest form."""
    near = next((key for own in first for key in get_close_matches(str(own), _FORMS_CONVERSATIONS, 1)), None)
    mooncake = ("Mooncake", "{" + ", ".join(f'"{name}": ...' for name in _MOONCAKE) + "}")
    forms = [_FORMS_CONVERSATIONS[near]] if near else [*_FORMS_CONVERSATIONS.values(), mooncake]
    expected = "; ".join(f"{name} has {holds}" for name, holds in forms)
    has = ", ".join(sorted(map(str, first)))[:80]
    return SpecError(
        f"is an entry of no known form of trace (it has {has}): {expected}", file=file, field=f"line {line}"
    )


def read_conversations(path: str | Path, answer: TokenCount = 512) -> list[Conversation]:
    """Read recorded conversations.

    - `path`: A file of one of the forms of `conversation_form`.
    - `answer`: Length of an answer where a data set only holds prompts.
    - Returns: Those with at least one turn, in the order of their start.

    Notes
    -----
    Where a file holds text, a token is taken for four characters [3]_: lengths are then good to some tens of per cent.
    The table of our own has the columns `session,wait_s,input_tokens,output_tokens` and may have `arrival_s`, which
    counts in the first row of a session.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "t.jsonl"
    >>> _ = file.write_text('{"session_id": "a", "turns": [{"text": "Hello world!"}, {"text": "More", "delay": 500}]}')
    >>> [(turn.wait, turn.input_tokens) for turn in read_conversations(file)[0].turns]
    [(0.0, 3), (0.5, 516)]
    >>> [turn.input_tokens for turn in read_conversations(file, answer=100)[0].turns]
    [3, 104]
    """
    file, form = Path(path), conversation_form(path)
    readers: dict[str, Callable[[Path], Iterable[Conversation]]] = {
        "own table": _own,
        "ShareGPT": _sharegpt,
        "AIPerf multi-turn": partial(_multi_turn, answer=answer),
        "AIPerf export": _export,
        "Mooncake sessions": _mooncake_conversations,
    }
    if form not in readers:
        raise SpecError("holds no conversations of a known form", file=file, choices=tuple(readers))
    found = [one for one in readers[form](file) if one.turns]
    if not found:
        raise SpecError("holds no requests", file=file)
    return sorted(found, key=lambda one: one.start or 0.0)


def _tokens(text: str) -> int:
    return max(round(len(text) / CHARACTERS), 1)


def _part(entry: Any, key: str, kind: type, file: Path, line: int, expected: str) -> Any:
    """A value of an entry that has to be there."""
    value = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(value, kind):
        raise SpecError(f"is missing: expected {expected}", file=file, field=f"line {line}: {key}")
    return value


def _sharegpt(file: Path) -> Iterator[Conversation]:
    for line, entry in json_rows(file):
        said = _part(entry, "conversations", list, file, line, '[{"from": "human", "value": "..."}, ...]')
        turns, context, prompt = [], 0, 0
        for one in said:
            text = _part(one, "value", str, file, line, "the text of a turn")
            if str(one.get("from")) not in _ANSWERS:
                prompt += _tokens(text)
            elif prompt:
                answer = _tokens(text)
                turns.append(Turn(0.0, context + prompt, answer))
                context, prompt = context + prompt + answer, 0
        yield Conversation(None, tuple(turns))


def _multi_turn(file: Path, answer: int) -> Iterator[Conversation]:
    for line, entry in json_rows(file):
        said = _part(entry, "turns", list, file, line, '[{"text": "..."}, ...]')
        turns, context, start = [], 0, None
        for place, one in enumerate(said):
            texts = one.get("texts") if isinstance(one, dict) else None
            text = " ".join(texts) if isinstance(texts, list) else _part(one, "text", str, file, line, "a prompt")
            if place == 0 and one.get("timestamp") is not None:
                start = seconds_of(one["timestamp"], file, line, "timestamp") / 1000
            wait = seconds_of(one.get("delay") or 0.0, file, line, "delay") / 1000
            length = whole_of(one.get("output_length") or answer, file, line, "output_length")
            turns.append(Turn(wait, context + _tokens(text), max(length, 1)))
            context = turns[-1].input_tokens + turns[-1].output_tokens
        yield Conversation(start, tuple(turns))


def _export(file: Path) -> Iterator[Conversation]:
    """Requests that AIPerf measured, each with its beginning and end."""
    sent: dict[str, list[tuple[float, float, int, int]]] = {}
    for line, entry in json_rows(file):
        about = _part(entry, "metadata", dict, file, line, "who sent the request, and when")
        found = _part(entry, "metrics", dict, file, line, "what was measured")
        if entry.get("error") or about.get("was_cancelled"):
            continue
        begin, end = (seconds_of(about.get(f"request_{when}_ns"), file, line, when) / 1e9 for when in ("start", "end"))
        prompt = found.get("usage_prompt_tokens") or found.get("input_sequence_length")
        answer = found.get("usage_completion_tokens") or found.get("output_sequence_length")
        lengths = (
            whole_of(_part({key: one}, key, dict, file, line, '{"value": 512}').get("value"), file, line, key)
            for key, one in (("usage_prompt_tokens", prompt), ("usage_completion_tokens", answer))
        )
        inputs, outputs = lengths
        if inputs and outputs:
            sent.setdefault(str(about.get("conversation_id")), []).append((begin, end, inputs, outputs))
    first = min((turns[0][0] for turns in sent.values()), default=0.0)
    for turns in sent.values():
        turns.sort()
        ends = [turns[0][0], *(turn[1] for turn in turns)]
        made = (Turn(max(turn[0] - end, 0.0), turn[2], turn[3]) for turn, end in zip(turns, ends, strict=False))
        yield Conversation(turns[0][0] - first, tuple(made))


def _own(file: Path) -> Iterator[Conversation]:
    turns: dict[str, list[Turn]] = {}
    starts: dict[str, float | None] = {}
    for line, row in enumerate(csv.DictReader(text_lines(file)), 2):
        who, at = str(row["session"]), row.get("arrival_s")
        if who not in turns:
            starts[who] = seconds_of(at, file, line, "arrival_s") if at else None
        wait = seconds_of(row["wait_s"] or 0.0, file, line, "wait_s")
        lengths = [whole_of(row[name], file, line, name) for name in _OWN[2:]]
        if min(lengths) > 0:
            turns.setdefault(who, []).append(Turn(max(wait, 0.0), *lengths))
    for who, made in turns.items():
        yield Conversation(starts[who], tuple(made))


def _mooncake_conversations(file: Path) -> Iterator[Conversation]:
    turns: dict[str, list[Turn]] = {}
    starts: dict[str, float | None] = {}
    for line, entry in json_rows(file):
        who = str(_part(entry, "session_id", object, file, line, "the name of the session"))
        inputs = whole_of(entry.get("input_length"), file, line, "input_length")
        outputs = whole_of(entry.get("output_length"), file, line, "output_length")
        wait = seconds_of(entry.get("delay") or 0.0, file, line, "delay") / 1000
        if who not in turns:
            at = entry.get("timestamp")
            starts[who] = None if at is None else seconds_of(at, file, line, "timestamp") / 1000
        if inputs and outputs:
            turns.setdefault(who, []).append(Turn(wait, inputs, outputs))
    for who, made in turns.items():
        yield Conversation(starts[who], tuple(made))
