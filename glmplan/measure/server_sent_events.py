"""Server-sent events of the OpenAI protocol: from bytes to tokens, whatever the server's habits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

__all__ = ["Chunk", "EventParser", "MalformedStream", "read_chunk"]

#: a line, or the lines of one event [B]
_LONGEST = 4 * 2**20
#: other lines of the protocol
_FIELDS = (b":", b"event:", b"id:", b"retry:")
#: letters of an error that are looked at
_MOST_SAID = 1 << 14


class MalformedStream(ValueError):
    """Bytes that are not server-sent events of this protocol.

    Parameters
    ----------
    message : str
        What was expected.
    got : bytes, optional
        What came instead, as it came; whoever shows it blots out secrets first.
    """

    def __init__(self, message: str, got: bytes = b"") -> None:
        super().__init__(message)
        self.got = got


class EventParser:
    r"""Splits a byte stream into the data of events, however the bytes are cut.

    Examples
    --------
    >>> parser = EventParser()
    >>> list(parser.feed(b"data: one\n\nda")), list(parser.feed(b"ta:two\r\n\r\n: comment\n\n"))
    ([b'one'], [b'two'])
    """

    __slots__ = ("_data", "_held", "_rest", "_waiting")

    def __init__(self) -> None:
        # pieces of a line that has no end yet: joined once, not for each byte that comes
        self._rest: list[bytes] = []
        self._waiting = 0
        self._data: list[bytes] = []
        self._held = 0

    def feed(self, received: bytes) -> Iterator[bytes]:
        """Take bytes and yield the data of every event that is now whole.

        Parameters
        ----------
        received : bytes
            What arrived.

        Yields
        ------
        bytes
            Data of whole events, in order.

        Raises
        ------
        MalformedStream
            If a line is none of this protocol, or grows without end; the events before it were yielded.
        """
        lines = received.split(b"\n")
        if len(lines) > 1:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest, self._waiting = [], 0
        self._rest.append(lines.pop())
        self._waiting += len(self._rest[-1])
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line[5:6] == b" " else line[5:])
                self._held += len(line)
                if self._held > _LONGEST:
                    raise MalformedStream(f"one event is longer than {_LONGEST} bytes")
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data, self._held = [], 0
            elif line and not line.startswith(_FIELDS):
                raise MalformedStream("expected a server-sent event", line)
        if self._waiting > _LONGEST:
            raise MalformedStream(f"one line is longer than {_LONGEST} bytes")

    def rest(self) -> list[bytes]:
        """Return the data of a last event that no blank line closed."""
        line = b"".join(self._rest).rstrip(b"\r")
        if line.startswith(b"data:"):
            self._data.append(line[5:].lstrip(b" "))
        elif line and not line.startswith(_FIELDS):
            raise MalformedStream("expected a server-sent event", line)
        return [b"\n".join(self._data)] if self._data else []


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one event says.

    Parameters
    ----------
    has_token : bool
        Whether it carries a real token; the role chunk and the usage chunk do not.
    finished : bool
        Whether it ends the answer.
    prompt_tokens, completion_tokens, cached_tokens : int or None
        From `usage`, wherever the server puts it, [token]
    error : str
        An error inside the stream; empty if none.
    """

    has_token: bool
    finished: bool
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    error: str = ""


def read_chunk(data: bytes) -> Chunk:
    """Read one event.

    A completion has no role chunk, so an unfinished chunk with empty text is a token whose bytes are held back; a
    chat chunk needs text, reasoning or a tool call. `usage` may come with the last choice, in a chunk of its own
    with `choices: []`, or in every chunk.

    Parameters
    ----------
    data : bytes
        Data of the event.

    Returns
    -------
    Chunk
        Its content.

    Raises
    ------
    MalformedStream
        If it is not a JSON object of this protocol.

    Examples
    --------
    >>> read_chunk(b'{"choices": [{"delta": {"role": "assistant", "content": null}}]}').has_token
    False
    >>> read_chunk(b'{"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}').completion_tokens
    3
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise MalformedStream("expected JSON", data) from None
    if not isinstance(value, dict):
        raise MalformedStream("expected an object", data)
    if value.get("error"):
        error = value["error"]
        words = error.get("message", error) if isinstance(error, dict) else error
        return Chunk(False, True, error=str(words)[:_MOST_SAID])
    choices = value.get("choices")
    if choices is None and "usage" not in value and "timings" not in value:
        raise MalformedStream("expected 'choices'", data)
    choice = choices[0] if isinstance(choices, list) and choices else {}
    if not isinstance(choice, dict):
        raise MalformedStream("expected a choice", data)
    finished = choice.get("finish_reason") is not None
    usage = value.get("usage")
    prompt, answer, cached = _usage(usage if isinstance(usage, dict) else {})
    return Chunk(_has_token(choice, finished), finished, prompt, answer, cached)


def _has_token(choice: dict[str, Any], finished: bool) -> bool:
    text = choice.get("text")
    if isinstance(text, str):
        return bool(text) or not finished
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    return any(delta.get(name) for name in ("content", "reasoning_content", "reasoning", "tool_calls", "refusal"))


def _usage(usage: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens")), _count(cached)


def _count(value: Any) -> int | None:
    """Return a count, or -1 for what cannot be one, so that a wrong usage is not mistaken for a missing one."""
    if value is None:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else -1
