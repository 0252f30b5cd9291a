"""Read recorded conversations and agents.

A turn begins when the answer before has ended and the user or a tool has taken its time.

References
----------
.. [1] ShareGPT, https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered (a JSON array of
   `conversations`, each turn with `from` and `value`).
.. [2] AIPerf, https://github.com/ai-dynamo/aiperf docs/tutorials/custom-dataset.md (JSON lines with `session_id` and
   `turns`, each with `text`, `delay` [ms] and `timestamp` [ms]; Mooncake rows with `session_id` and `delay`), and its
   `profile_export.jsonl` (`metadata`, `metrics`).
.. [3] WEKA's kv-cache-tester, https://github.com/callanjfox/kv-cache-tester docs/trace_replay_tester.md (a JSON object
   of `requests` with `t` and `api_time` [s], `in`, `out`, `hash_ids`, and nested entries of the type `subagent`); the
   two clocks of nested requests: AIPerf, docs/tutorials/weka-trace.md.
.. [4] Applied Compute's trie, https://github.com/Applied-Compute/trie README.md (JSON lines with `num_turns` and the
   lengths and tool latencies [s] of each turn).
.. [5] NVIDIA Dynamo, https://docs.nvidia.com/dynamo/dev/observability/request-traces (JSON lines of the schema
   `dynamo.request.trace.v1`), and its Agentic Mooncake: version 1 (Mooncake rows with `request_id`, `wait_for`, `delay`
   and `tool_wait_ms` [ms]) of dynamo-data-gen 1.3; version 2 (a header of the schema `dynamo.agentic_mooncake`, then
   rows with `play_id`, `not_before_ms` and `dependencies` [ms]) of AISimulate of ai-dynamo, `replay/loadgen`.
.. [6] OpenAI, "What are tokens and how to count them", https://help.openai.com/en/articles/4936856 (one token is
   about four characters of English).
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from glmplan.catalog.files import text_lines, understood
from glmplan.errors import SpecError
from glmplan.simulation.traffic.traces import MOONCAKE_BLOCK, blocks, json_rows, seconds_of, whole_of
from glmplan.units import TokenCount

__all__ = ["CHARACTERS", "Conversation", "Turn", "conversation_form", "read_conversations"]

#: characters of a token where a file holds text and no counts, [-]
CHARACTERS = 4.0
#: roles whose turns are answers
_ANSWERS = ("gpt", "assistant", "chatgpt", "bard", "bing", "model")
#: what an entry of each form holds, by the name that tells it
_FORMS_CONVERSATIONS = {
    "conversations": ("ShareGPT", '{"conversations": [{"from": "human", "value": "..."}, ...]}'),
    "turns": ("AIPerf multi-turn", '{"session_id": "...", "turns": [{"text": "..."}, ...]}'),
    "metadata": ("AIPerf export", '{"metadata": {...}, "metrics": {...}}'),
    "requests": ("WEKA", '{"block_size": 64, "requests": [{"t": 0.0, "in": ..., "out": ..., "hash_ids": [...]}, ...]}'),
    "num_turns": (
        "Applied Compute",
        '{"num_turns": 1, "input_prompt_length": ..., "assistant_response_length": [...]}',
    ),
    "event_type": ("Dynamo", '{"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": {...}}'),
    "event": ("Dynamo", '{"event": {"schema": "dynamo.request.trace.v1", ...}}'),
}
#: turns and parts of prompts that are kept in memory, [-]
_MOST_PARTS = 5_000_000
#: names of a row of a Mooncake trace, one of which it must have to be taken for one
_MOONCAKE = ("timestamp", "input_length", "output_length", "hash_ids")
#: `schema` of the header of Agentic Mooncake since version 2
_AGENTIC = "dynamo.agentic_mooncake"
#: columns of a table of our own: a turn begins so long after the answer before
_OWN = ("session", "wait_s", "input_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a conversation."""

    wait: float  # time between the end of the answer before and this turn, [s]
    input_tokens: int  # whole prompt, earlier turns included, [token]
    output_tokens: int  # answer, [token]
    #: parts of the prompt, as in `Request`; empty where all turns share one growing context
    content: tuple[tuple[object, int], ...] = ()
    #: places of the turns that end before this one begins; None for the turn before, () for none: the pause then counts
    #: from the start of the conversation
    after: tuple[int, ...] | None = None
    #: pause behind each of `after` instead of `wait`, [s], and True if it counts from the time at which that turn was
    #: sent; `wait` is then the earliest time since the start of the conversation
    pauses: tuple[tuple[float, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """The turns of one user."""

    start: float | None  # when the first turn arrives; None where the file does not say, [s]
    turns: tuple[Turn, ...]  # the turns, in order


def conversation_form(path: str | Path) -> str:
    """Which form of conversations a file has.

    Returns: Its form by the names in its first entry; empty if it holds no conversations.
    """
    file = Path(path)
    if file.suffix not in (".json", ".jsonl"):
        head = next(text_lines(file), "").strip().split(",")
        return "own table" if set(_OWN) <= set(head) else ""
    line, first = next(json_rows(file), (1, {}))
    for key, (name, _) in _FORMS_CONVERSATIONS.items():
        if key in first:
            return name
    if first.get("schema") == _AGENTIC:
        return "Agentic Mooncake"
    if first and not set(_MOONCAKE) & set(first):
        raise _of_no_form(file, line, first)
    if "request_id" in first and any("wait_for" in row for _, row in json_rows(file)):
        return "Agentic Mooncake"
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
    Where a file holds text, a token is taken for four characters [6]_: lengths are then good to some tens of per cent.
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
    stat = os.stat(path) if os.path.isfile(path) else None
    # the samples of one answer read the same file twenty times
    return list(_conversations_of(Path(path), answer, stat and (stat.st_mtime_ns, stat.st_size)))


@lru_cache(maxsize=2)
def _conversations_of(file: Path, answer: TokenCount, changed: object) -> tuple[Conversation, ...]:
    form = conversation_form(file)
    readers: dict[str, Callable[[Path], Iterable[Conversation]]] = {
        "own table": _own,
        "ShareGPT": _sharegpt,
        "AIPerf multi-turn": partial(_multi_turn, answer=answer),
        "AIPerf export": _export,
        "Mooncake sessions": _mooncake_conversations,
        "WEKA": _weka,
        "Applied Compute": _applied_compute,
        "Dynamo": _dynamo,
        "Agentic Mooncake": _agentic_mooncake,
    }
    if form not in readers:
        raise SpecError("holds no conversations of a known form", file=file, choices=tuple(readers))
    with understood(file, "trace"):
        found = [one for one in readers[form](file) if one.turns]
    if not found:
        raise SpecError("holds no requests", file=file)
    return tuple(sorted(found, key=lambda one: one.start or 0.0))


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
        prompt, answer = (whole_of(row[name], file, line, name) for name in _OWN[2:])
        if min(prompt, answer) > 0:
            turns.setdefault(who, []).append(Turn(max(wait, 0.0), prompt, answer))
    for who, made in turns.items():
        yield Conversation(starts[who], tuple(made))


def _mooncake_lengths(entry: dict[str, Any], file: Path, line: int) -> list[int]:
    names = ("input", "output")
    return [whole_of(entry.get(f"{n}_length", entry.get(f"{n}_tokens")), file, line, f"{n}_length") for n in names]


def _mooncake_conversations(file: Path) -> Iterator[Conversation]:
    turns: dict[str, list[Turn]] = {}
    starts: dict[str, float | None] = {}
    for line, entry in json_rows(file):
        who = str(_part(entry, "session_id", object, file, line, "the name of the session"))
        inputs, outputs = _mooncake_lengths(entry, file, line)
        wait = seconds_of(entry.get("delay", entry.get("delay_ms")) or 0.0, file, line, "delay") / 1000
        if who not in turns:
            at = entry.get("timestamp")
            starts[who] = None if at is None else seconds_of(at, file, line, "timestamp") / 1000
        if inputs and outputs:
            turns.setdefault(who, []).append(Turn(wait, inputs, outputs))
    for who, made in turns.items():
        yield Conversation(starts[who], tuple(made))


# Recorded agents, whose requests may wait for several others.


@dataclass(frozen=True, slots=True)
class _Call:
    """One recorded request of an agent, with its beginning and end [s]."""

    agent: object
    parent: object
    start: float
    end: float
    turn: Turn


def _linked(calls: list[_Call]) -> tuple[Turn, ...]:
    """Return the turns of an agent and its subagents with their order.

    A request waits for the one before of its agent, and for the subagents that ended in between. The first request of
    a subagent waits for the latest one of its parent. The pause is the recorded one since the latest of these ends.
    """
    calls.sort(key=lambda one: one.start)
    over: dict[object, float] = {}
    for one in calls:
        over[one.agent] = max(over.get(one.agent, 0.0), one.end)
    latest: dict[object, int] = {}
    children: dict[object, list[object]] = {}
    turns = []
    for place, one in enumerate(calls):
        before = latest.get(one.agent if one.agent in latest else one.parent)
        after = [] if before is None else [before]
        if one.agent in latest:
            joined = [child for child in children.get(one.agent, ()) if over[child] <= one.start]
            children[one.agent] = [child for child in children.get(one.agent, ()) if over[child] > one.start]
            after += [latest[child] for child in joined]
        elif before is not None:
            children.setdefault(one.parent, []).append(one.agent)
        latest[one.agent] = place
        wait = max(one.start - max((calls[i].end for i in after), default=calls[0].start), 0.0)
        turns.append(replace(one.turn, wait=wait, after=tuple(after)))
    return tuple(turns)


def _merged(
    hashes: list[Any], block: int, length: TokenCount, scope: object, rest: object
) -> tuple[tuple[object, int], ...]:
    """Return the parts of a prompt; consecutive blocks are one part."""
    runs: list[tuple[object, int]] = []
    last: object = None
    for (name, tokens), number in zip(blocks(hashes, block, length, scope, rest), [*hashes, None], strict=False):
        if isinstance(number, int) and isinstance(last, int) and number == last + 1:
            runs[-1] = (runs[-1][0], runs[-1][1] + tokens)
        else:
            runs.append((name, tokens))
        last = number
    return tuple(runs)


def _within(parts: int, file: Path, line: int) -> int:
    if parts > _MOST_PARTS:
        raise SpecError(f"holds more than {_MOST_PARTS:,} turns and parts of prompts: take a part of it", file=file,
                        field=f"line {line}")  # fmt: skip
    return parts


def _hashes(entry: dict[str, Any], name: str, file: Path, line: int) -> list[Any]:
    found = entry.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, int | str) for one in found):
        raise SpecError("is not a list of block names, as [1, 2]", file=file, field=f"line {line}: {name}")
    return found


def _block_of(value: object, file: Path, line: int, name: str) -> int:
    block = whole_of(value, file, line, name)
    if not block:
        raise SpecError("must be at least 1", file=file, field=f"line {line}: {name}", value=value)
    return block


def _weka(file: Path) -> Iterator[Conversation]:
    parts = 0
    for line, trace in json_rows(file):
        block = _block_of(trace.get("block_size", 64), file, line, "block_size")
        scope = "block" if trace.get("hash_id_scope") == "global" else ("play", line)
        entries = _part(trace, "requests", list, file, line, '[{"t": 0.0, "in": ..., "out": ...}, ...]')
        main = ("agent", line, -1)
        agents: list[tuple[object, object, float, list[Any]]] = [(main, None, 0.0, entries)]
        for place, one in enumerate(entries):
            if isinstance(one, dict) and one.get("type") == "subagent":
                inner = _part(one, "requests", list, file, line, "the requests of a subagent")
                begun = seconds_of(one.get("t"), file, line, "t")
                times = [seconds_of(each.get("t"), file, line, "t") for each in inner if isinstance(each, dict)]
                # times of a subagent count from its own start in some files, from that of the trace in others
                zero = begun if min(times, default=begun) < begun else 0.0
                agents.append((("agent", line, place), main, zero, inner))
        calls: list[_Call] = []
        for agent, parent, zero, requests in agents:
            for place, one in enumerate(requests):
                if not isinstance(one, dict):
                    raise SpecError("is no request, as {...}", file=file, field=f"line {line}: requests", value=one)
                if one.get("type") == "subagent":
                    continue
                start = zero + seconds_of(one.get("t"), file, line, "t")
                end = start + max(seconds_of(one.get("api_time") or 0.0, file, line, "api_time"), 0.0)
                inputs, outputs = (whole_of(one.get(name), file, line, name) for name in ("in", "out"))
                hashes = _hashes(one, "hash_ids", file, line)
                content = _merged(hashes, block, inputs, scope, (agent, place)) if hashes else ((agent, inputs),)
                parts = _within(parts + 1 + len(content), file, line)
                if inputs and outputs:
                    calls.append(_Call(agent, parent, start, end, Turn(0.0, inputs, outputs, content)))
        yield Conversation(None, _linked(calls))


def _applied_compute(file: Path) -> Iterator[Conversation]:
    total = 0
    for line, row in json_rows(file):
        count = whole_of(row.get("num_turns"), file, line, "num_turns")
        parts = []
        for name in ("assistant_response_length", "tool_call_output_length", "tool_call_latency"):
            parts.append(_part(row, name, list, file, line, f"a list of {count} numbers"))
            if len(parts[-1]) != count:
                raise SpecError(
                    f"has {len(parts[-1])} entries for {count} turns", file=file, field=f"line {line}: {name}"
                )
        answers = [whole_of(one, file, line, "assistant_response_length") for one in parts[0]]
        answers.append(
            whole_of(row.get("final_assistant_response_length"), file, line, "final_assistant_response_length")
        )
        tools = [whole_of(one, file, line, "tool_call_output_length") for one in parts[1]]
        waits = [0.0, *(max(seconds_of(one, file, line, "tool_call_latency"), 0.0) for one in parts[2])]
        total = _within(total + count, file, line)
        context, turns = whole_of(row.get("input_prompt_length"), file, line, "input_prompt_length"), []
        for answer, wait, tool in zip(answers, waits, [*tools, 0], strict=True):
            turns.append(Turn(wait, max(context, 1), max(answer, 1)))
            context += answer + tool
        yield Conversation(None, tuple(turns))


def _dynamo(file: Path) -> Iterator[Conversation]:
    agents: dict[str, list[_Call]] = {}
    parents: dict[str, str] = {}
    parts = 0
    for line, row in json_rows(file):
        event = row["event"] if isinstance(row.get("event"), dict) else row
        if event.get("event_type") != "request_end":
            continue
        said = _part(event, "request", dict, file, line, "the metrics of a request")
        replay = _part(said, "replay", dict, file, line, "the lengths and block hashes of the prompt")
        who, parent = f"line {line}", None
        if event.get("agent_context") is not None:
            context = _part(event, "agent_context", dict, file, line, '{"session_id": ...}')
            who = _part(context, "session_id", str, file, line, "the name of the session")
            parent = context.get("parent_session_id")
            if isinstance(parent, str) and parent != who:
                parents[who] = parent
        received = said.get("request_received_ms", event.get("event_time_unix_ms"))
        start = seconds_of(received, file, line, "request_received_ms") / 1000
        end = start + max(seconds_of(said.get("total_time_ms") or 0.0, file, line, "total_time_ms"), 0.0) / 1000
        inputs = whole_of(replay.get("input_length"), file, line, "input_length")
        outputs = whole_of(said.get("output_tokens"), file, line, "output_tokens")
        block = _block_of(replay.get("trace_block_size"), file, line, "trace_block_size")
        hashes = _hashes(replay, "input_sequence_hashes", file, line)
        turn = Turn(0.0, inputs, outputs, _merged(hashes, block, inputs, "block", ("line", line)))
        parts = _within(parts + 1 + len(turn.content), file, line)
        if inputs and outputs:
            agents.setdefault(who, []).append(_Call(who, parent, start, end, turn))
    plays: dict[str, list[_Call]] = {}
    for who, calls in agents.items():
        root, seen = who, {who}
        while parents.get(root) in agents and parents[root] not in seen:
            root = parents[root]
            seen.add(root)
        plays.setdefault(root, []).extend(calls)
    first = min((one.start for calls in plays.values() for one in calls), default=0.0)
    for calls in plays.values():
        yield Conversation(min(one.start for one in calls) - first, _linked(calls))


@dataclass(frozen=True, slots=True)
class _Row:
    """One request of Agentic Mooncake, with the requests that it waits for."""

    line: int
    play: str
    turn: Turn
    needs: dict[str, tuple[float, bool]]  # pause behind each, and True if it counts from its sending


def _needs(row: dict[str, Any], file: Path, line: int) -> dict[str, tuple[float, bool]]:
    """Return the dependencies of a row of version 2."""
    expected = '[{"request_id": "...", "trigger": "completion", "delay_ms": 0.0}, ...]'
    listed = row.get("dependencies", [])
    found = {}
    for one in _part({"dependencies": listed}, "dependencies", list, file, line, expected):
        who = _part(one, "request_id", str, file, line, expected)
        if (trigger := one.get("trigger")) not in ("dispatch", "completion"):
            raise SpecError("is not a trigger", file=file, field=f"line {line}: trigger", value=trigger,
                            choices=("dispatch", "completion"))  # fmt: skip
        found[who] = max(seconds_of(one.get("delay_ms"), file, line, "delay_ms") / 1000, 0.0), trigger == "dispatch"
    return found


def _agentic_rows(file: Path) -> Iterator[tuple[str, _Row]]:
    """Read the rows of both versions of Agentic Mooncake."""
    block, later, parts = MOONCAKE_BLOCK, False, 0
    for line, row in json_rows(file):
        if row.get("schema") == _AGENTIC:
            later, block = True, _block_of(row.get("block_size"), file, line, "block_size")
            if row.get("version") != 2:
                raise SpecError("is not a version that is read", file=file, field=f"line {line}: version",
                                value=row.get("version"), choices=("2",))  # fmt: skip
            continue
        who = _part(row, "request_id", str, file, line, "the name of the request")
        lengths = _mooncake_lengths(row, file, line)
        play = _part(row, "play_id", str, file, line, "the name of the play") if later else ""
        if later:
            wait, needs = (
                seconds_of(row.get("not_before_ms"), file, line, "not_before_ms") / 1000,
                _needs(row, file, line),
            )
        else:
            names = list(dict.fromkeys(map(str, _hashes(row, "wait_for", file, line))))
            fields = ("delay", "tool_wait_ms") if names else ("timestamp",)
            wait = sum(seconds_of(row.get(name) or 0.0, file, line, name) for name in fields) / 1000
            needs = dict.fromkeys(names, (max(wait, 0.0), False))
        scope = ("play", play) if later else "block"
        content = _merged(_hashes(row, "hash_ids", file, line), block, lengths[0], scope, ("line", line))
        parts = _within(parts + 1 + len(content) + len(needs), file, line)
        turn = Turn(max(wait, 0.0), max(lengths[0], 1), max(lengths[1], 1), content)
        yield who, _Row(line, play, turn, needs)


def _agentic_mooncake(file: Path) -> Iterator[Conversation]:
    import networkx as nx

    rows: dict[str, _Row] = {}
    graph: nx.DiGraph[str] = nx.DiGraph()
    for who, row in _agentic_rows(file):
        if who in rows:
            raise SpecError("is the name of two requests", file=file, field=f"line {row.line}: request_id", value=who)
        rows[who] = row
        graph.add_node(who)
    for who, row in rows.items():
        field = f"line {row.line}: {'dependencies' if row.play else 'wait_for'}"
        for one in row.needs:
            if one not in rows or rows[one].play != row.play:
                raise SpecError("names no request of the file", file=file, field=field, value=one)
            graph.add_edge(one, who)
    if not nx.is_directed_acyclic_graph(graph):
        raise SpecError("has requests that wait for each other", file=file, field="wait_for")
    for some in nx.weakly_connected_components(graph):
        members = sorted(some, key=lambda who: rows[who].line)
        place = {who: i for i, who in enumerate(members)}
        start = min(rows[who].turn.wait for who in members if not rows[who].needs)
        turns = []
        for who in members:
            row = rows[who]
            after, pauses = tuple(place[one] for one in row.needs), tuple(row.needs.values()) if row.play else ()
            wait = row.turn.wait - (start if pauses or not after else 0.0)
            turns.append(replace(row.turn, wait=max(wait, 0.0), after=after, pauses=pauses))
        yield Conversation(start, tuple(turns))
