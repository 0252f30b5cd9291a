"""The client: one streamed request to an OpenAI-compatible server, timed as `vllm bench serve` times it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from http.cookiejar import CookieJar, DefaultCookiePolicy
from math import isfinite
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

import httpx

from glmplan.errors import SpecError, printable
from glmplan.measure.redaction import Outside, api_key
from glmplan.units import Seconds, TokenCount, Tokens, finite_number

__all__ = [
    "Chunk",
    "Client",
    "Endpoint",
    "EventParser",
    "MalformedStream",
    "Outcome",
    "Patience",
    "Prompt",
    "RequestRecord",
    "count_tokens",
    "least_prompt_tokens",
    "most_prompt_tokens",
    "read_chunk",
]


# Where requests go: the address without what is secret in it, and what the server there understands.

#: A prompt is text, or token numbers where the server takes them.
Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go and what the server understands.

    Parameters
    ----------
    url : str
        Base address, such as `http://127.0.0.1:8000/v1`.
    model : str
        Name of the model as the server knows it.
    chat : bool, optional
        Chat completions instead of completions.
    ignore_eos : bool, optional
        Ask the server not to stop at the end token, so that lengths are those asked for.
    stream_usage : bool, optional
        Ask for `usage` in the stream.
    verify : bool, optional
        Check the server's certificate.
    login : str, optional
        User and password, `user:password`; taken out of the address if they stand there.

    Raises
    ------
    SpecError
        If the address is none; the message does not hold the password.
    """

    url: str
    model: str
    chat: bool = False
    ignore_eos: bool = True
    stream_usage: bool = True
    verify: bool = True
    login: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url.strip())
            login, _, place = parts.netloc.rpartition("@")
            bare = urlunsplit(parts._replace(netloc=place))
            known = parts.scheme in ("http", "https") and bool(httpx.URL(bare).host) and parts.port != 0
        except (ValueError, TypeError, httpx.InvalidURL):
            known, bare, login = False, "", ""
        if not known:
            shown = re.sub(r"[^/]*@", "***@", self.url) or "(missing)"
            raise SpecError("is not an address such as http://host:8000/v1", field="--url", value=shown)
        if parts.query or parts.fragment:
            raise SpecError("ends in a query or a fragment, which would go lost", field="--url", value=parts.netloc)
        object.__setattr__(self, "url", bare)
        object.__setattr__(self, "login", unquote(login) or self.login)

    def told(self) -> dict[str, Any]:
        """Return what a record may hold of it: everything but the login."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "login"}

    @property
    def outside(self) -> Outside:
        """What keeps the key and the login out of all that is kept of this server."""
        user, _, password = self.login.partition(":")
        return Outside(filter(None, (api_key(), self.login, password or user)))

    @property
    def root(self) -> str:
        """Address of the server without the version part, where engines put their own pages."""
        return self.url.rstrip("/").removesuffix("/v1")

    def body(self, prompt: Prompt, output_tokens: TokenCount) -> dict[str, Any]:
        """Return the JSON of one request."""
        body: dict[str, Any] = {"model": self.model, "max_tokens": output_tokens, "temperature": 0.0, "stream": True}
        if self.stream_usage:
            body["stream_options"] = {"include_usage": True}
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.chat:
            return body | {"messages": [{"role": "user", "content": prompt}]}
        return body | {"prompt": prompt}


# Server-sent events of the OpenAI protocol: from bytes to tokens, whatever the server's habits.

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
        """Take bytes and yield the data of every event that is now whole."""
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


# One request as the client saw it: its times, its tokens, and how it ended.


class Outcome(StrEnum):
    """How a request ended; every one but `DONE` is a fault and is counted."""

    DONE = "done"
    REFUSED = "refused"  # no connection
    LOST = "lost"  # the connection broke, or the stream ended before its answer did
    LATE = "no first token"  # nothing within the time for a first token
    STALLED = "stalled"  # a stream that stopped, or trickled without ever finishing a chunk
    THROTTLED = "throttled"  # 429 or 503, also after waiting as the server asked
    REJECTED = "rejected"  # another 4xx
    FAILED = "failed"  # a 5xx, or an error inside the stream
    MALFORMED = "malformed"  # not the protocol
    TLS = "tls"  # no trust, or no TLS
    UNFINISHED = "unfinished"  # still going on when the time of the step was over
    UNFORESEEN = "unforeseen"  # an error of the client that nobody thought of; its detail names it
    EMPTY = "empty"  # a whole answer without one token
    CANCELLED = "cancelled"  # by the user or by the guard; not the server's fault

    @property
    def is_fault(self) -> bool:
        """Whether the server or the way to it is to blame."""
        return self not in (Outcome.DONE, Outcome.CANCELLED)


@dataclass(slots=True)
class RequestRecord:
    """One request. Times are in seconds; `start` counts from the begin of the run.

    Parameters
    ----------
    start : float
        When the request was sent (the last time, if it was sent again), [s]
    outcome : Outcome
        How it ended.
    ttft : float
        From sending to the first token, [s]
    e2e : float
        From sending to the last token, [s]
    input_tokens, output_tokens : int
        As `usage` says, else as asked and as counted from chunks, [token]
    chunks : int
        Chunks that carried tokens, [-]
    counted_by : str
        `usage`, `chunks` where it is missing, or `chunks, usage is wrong`.
    cached_tokens : int
        Prompt tokens the server took from its cache, [token]
    retries : int
        Times it was sent again before its first byte came, [-]
    throttled : int
        Times the server said 429 or 503, [-]
    late : float
        How much later than planned it was sent; only for open loops, [s]
    status : int
        HTTP status; 0 if there was none, [-]
    detail : str
        What went wrong, in words.
    doubt : str
        Why its counts cannot be, in words.
    gaps : list of float
        Times between chunks; emptied once they are in the statistics, [s]
    """

    start: float
    outcome: Outcome = Outcome.CANCELLED
    ttft: float = 0.0
    e2e: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    chunks: int = 0
    counted_by: str = "usage"
    cached_tokens: int = 0
    retries: int = 0
    throttled: int = 0
    late: float = 0.0
    status: int = 0
    detail: str = ""
    doubt: str = ""
    gaps: list[float] = field(default_factory=list)

    @property
    def end(self) -> float:
        """When its last token came, or when it was given up, [s]"""
        return self.start + self.e2e

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, (e2e - ttft) / (output_tokens - 1); None for a single token, [s]"""
        return (self.e2e - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None


# How many tokens a request had: what the server says of it, held against what can be.

#: tokens of a prompt beyond those sent that a template may add [token]
_TEMPLATE = 64
#: prompts too short to be held against what usage tells [token]
_SHORT = 32


def count_tokens(record: RequestRecord, usage: Chunk | None, asked: TokenCount) -> None:
    """Decide how many tokens there were.

    Notes
    -----
    A chunk holds one token or more, so fewer tokens than chunks is impossible. More chunks than tokens asked for are
    impossible too, but for one that ends the answer, and so are prompts of far more or far fewer tokens than were
    sent: then nobody knows what was measured, and ``doubt`` says why.

    Examples
    --------
    >>> from glmplan.measure.client import Outcome
    >>> record = RequestRecord(0.0, Outcome.DONE, input_tokens=64)
    >>> count_tokens(record, Chunk(False, False, prompt_tokens=1_000_000, completion_tokens=1), 1)
    >>> record.doubt
    'usage tells of 1,000,000 prompt tokens where 64 were sent'
    """
    if usage is None or usage.completion_tokens is None:
        record.output_tokens, record.counted_by = record.chunks, "chunks"
    elif not record.chunks - 1 <= usage.completion_tokens <= max(asked, 1) or usage.completion_tokens < 1:
        record.output_tokens, record.counted_by = record.chunks, "chunks, usage is wrong"
    else:
        record.output_tokens = usage.completion_tokens
    if record.chunks > asked + 1:
        record.doubt = f"{record.chunks} chunks with text for {asked} tokens"
    prompt, cached = (usage.prompt_tokens or 0, usage.cached_tokens or 0) if usage is not None else (0, 0)
    if prompt > most_prompt_tokens(record.input_tokens):
        told = f"{prompt:,}" if prompt < 10**12 else "10¹² or more"
        record.doubt = f"usage tells of {told} prompt tokens where {record.input_tokens:,} were sent"
    elif 0 < prompt < least_prompt_tokens(record.input_tokens):
        record.doubt = f"usage tells of {prompt:,} prompt tokens where {record.input_tokens:,} were sent"
    elif prompt > 0:
        record.input_tokens = prompt
    if 0 < cached <= record.input_tokens:
        record.cached_tokens = cached
    elif cached > record.input_tokens and not record.doubt:
        record.doubt = "usage tells of more cached tokens than the prompt has"


def most_prompt_tokens(sent: TokenCount) -> Tokens:
    """Return what a prompt can have in tokens at most, the server's template included.

    `sent`: Tokens that were sent, as counted with the server's tokenizer; 0 where that is not known.

    Examples
    --------
    >>> most_prompt_tokens(64)
    144.0
    """
    return 1.25 * sent + _TEMPLATE if sent > 0 else 1e9


def least_prompt_tokens(sent: TokenCount) -> Tokens:
    """Return what a prompt must have in tokens at least: prompts are words whose cost this server's own counts told.

    - `sent`: Tokens that were sent; 0 where that is not known.
    - Returns: Bound; 0 for prompts so short that a begin token more or less is a large part of them.

    Examples
    --------
    >>> least_prompt_tokens(1000), least_prompt_tokens(8)
    (800.0, 0.0)
    """
    return sent / 1.25 if sent >= _SHORT else 0.0


_RESENT = 2
_STREAMS_OF_A_POOL = 16
#: what a page may hold [B], and how long it may take [s]
_LARGEST_PAGE, _PAGE_SECONDS = 8 * 2**20, 10.0
#: what is read of a refusal [B]
_REFUSAL = 4096
#: how `httpx` says that a server closed a connection; whatever else it says of the protocol is no HTTP
_CLOSED = re.compile("disconnected|closed", re.IGNORECASE)
#: chunks with text beyond those asked for, after which an answer counts as one without end [-]
_MUCH_MORE = 64


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for what.

    Parameters
    ----------
    connect : float, optional
        For a connection, [s]
    first_token : float, optional
        For the first token, queueing included, [s]
    stall : float, optional
        Between two chunks, [s]
    throttle : float, optional
        The longest `Retry-After` that is waited for, all waits of one request together, [s]
    throttled : int, optional
        How often a request is sent again after 429 or 503, [-]
    whole : float, optional
        For a whole answer, however steadily it comes; in the ladder the limit of the step bounds it, [s]
    """

    connect: float = 10.0
    first_token: float = 300.0
    stall: float = 60.0
    throttle: float = 30.0
    throttled: int = 3
    whole: float = float("inf")


class _Throttled(Exception):
    def __init__(self, status: int, wait: float) -> None:
        self.status, self.wait = status, wait


class Client:
    """Sends streamed requests. Use it as an asynchronous context.

    Parameters
    ----------
    endpoint : Endpoint
        The server.
    patience : Patience, optional
        Time limits.
    clock : callable, optional
        Seconds from the begin of the run, [s]
    """

    def __init__(
        self, endpoint: Endpoint, patience: Patience | None = None, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.endpoint, self.patience, self.clock = endpoint, patience or Patience(), clock
        self.outside = endpoint.outside
        headers = {"Accept-Encoding": "identity", "User-Agent": "glmplan"}
        if endpoint.login:
            headers["Authorization"] = f"Basic {base64.b64encode(endpoint.login.encode()).decode()}"
        elif key := api_key():
            headers["Authorization"] = f"Bearer {key}"
        context = _certificates(endpoint)
        # requests are those of users who know nothing of each other; kept cookies would also grow without end
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        self._new: Callable[[], httpx.AsyncClient] = lambda: httpx.AsyncClient(
            headers=headers,
            verify=context,
            cookies=no_cookies,
            # the own watch below bounds reading; a stream may rightly be silent for longer than any fixed number
            timeout=httpx.Timeout(self.patience.first_token, connect=self.patience.connect, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=4.0),
            follow_redirects=False,
            trust_env=not _is_local(endpoint.url),
        )
        try:
            self.http = self._new()
        except (ValueError, ImportError, httpx.InvalidURL):
            # their words may hold the proxy's password
            words = "cannot be used: a proxy is http://host:port, and SOCKS is not spoken"
            raise SpecError(words, field="HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or NO_PROXY") from None
        # the pool of a client looks at all its connections for each request, so many streams share several pools
        self._pools, self._in_use = [self.http], [0]
        kind = "chat/completions" if endpoint.chat else "completions"
        self._address = f"{endpoint.url.rstrip('/')}/{kind}"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *unused: object) -> None:
        for pool in self._pools:
            await pool.aclose()

    async def page(self, address: str, *, body: Any = None, seconds: Seconds = _PAGE_SECONDS) -> tuple[int, bytes]:
        """Ask for a page, bounded in time and size.

        `body`: JSON to send with it; without it the page is only asked for.
        """
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        method = "GET" if body is None else "POST"
        held = bytearray()
        async with (
            asyncio.timeout(seconds),
            self.http.stream(method, address, content=content, headers=headers) as response,
        ):
            if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
                raise MalformedStream("the page is packed, which was not asked for")
            async for received in response.aiter_raw():
                held += received
                if len(held) > _LARGEST_PAGE:
                    raise MalformedStream(f"the page holds more than {_LARGEST_PAGE >> 20} MiB")
            return response.status_code, bytes(held)

    async def send(
        self,
        prompt: Prompt,
        output_tokens: TokenCount,
        *,
        prompt_tokens: TokenCount = 0,
        on_chunk: Callable[[float], None] = lambda now: None,
    ) -> RequestRecord:
        """Send one request and read its stream. Every way it can end is an outcome, none is an exception.

        - `prompt_tokens`: Length of the prompt, for servers that do not tell.
        - `on_chunk`: Called with the time of each chunk that carries tokens, [s].
        """
        record = RequestRecord(self.clock(), input_tokens=prompt_tokens)
        content = json.dumps(self.endpoint.body(prompt, output_tokens)).encode()
        waited = 0.0
        while True:
            record.start, record.detail = self.clock(), ""
            try:
                await self._stream(record, content, output_tokens, on_chunk)
            except _Throttled as answer:
                record.throttled += 1
                record.status, record.outcome = answer.status, Outcome.THROTTLED
                record.detail = f"HTTP {answer.status}"
                waited += answer.wait
                if record.throttled <= self.patience.throttled and waited <= self.patience.throttle:
                    await asyncio.sleep(answer.wait)
                    continue
            except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError, TimeoutError, MalformedStream) as error:
                record.outcome = self._why(error, record)
                record.detail = self._said(error)
                if record.outcome is Outcome.LOST and not record.status and record.retries < _RESENT:
                    # a kept-alive connection that the server had closed: nothing was received, so send again
                    record.retries += 1
                    continue
            except Exception as error:
                # whatever else a server can make of this client is a fault with a name, never the end of the ladder
                record.outcome, record.detail = Outcome.UNFORESEEN, self._said(error)
            if record.outcome is not Outcome.DONE:
                record.e2e = max(self.clock() - record.start, record.e2e)
            return record

    def _said(self, error: BaseException) -> str:
        """An error in words; what a server sent stands at its end, blotted before it is cut."""
        got = (
            f", got {self.outside.clean(error.got.decode(errors='replace'), 80)!r}"
            if isinstance(error, MalformedStream) and error.got
            else ""
        )
        return self.outside.clean(f"{type(error).__name__}: {error}") + got

    def _why(self, error: BaseException, record: RequestRecord) -> Outcome:
        if isinstance(error, MalformedStream | httpx.DecodingError | httpx.LocalProtocolError):
            return Outcome.MALFORMED
        causes = [error]
        while (under := causes[-1].__cause__ or causes[-1].__context__) is not None and under not in causes:
            causes.append(under)
        if any(isinstance(cause, ssl.SSLError) for cause in causes) or "SSL" in str(error):
            return Outcome.TLS
        if isinstance(error, TimeoutError | httpx.ReadTimeout | httpx.WriteTimeout):
            return Outcome.STALLED if record.chunks else Outcome.LATE
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
            return Outcome.REFUSED
        if isinstance(error, httpx.RemoteProtocolError) and not _CLOSED.search(str(error)):
            return Outcome.MALFORMED
        return Outcome.LOST

    @asynccontextmanager
    async def _open(self, content: bytes) -> AsyncIterator[httpx.Response]:
        headers = {"Content-Type": "application/json"}
        place = next((n for n, used in enumerate(self._in_use) if used < _STREAMS_OF_A_POOL), len(self._pools))
        if place == len(self._pools):
            self._pools.append(self._new())
            self._in_use.append(0)
        self._in_use[place] += 1
        try:
            async with self._pools[place].stream("POST", self._address, content=content, headers=headers) as response:
                yield response
        finally:
            self._in_use[place] -= 1

    async def _stream(
        self, record: RequestRecord, content: bytes, asked: int, on_chunk: Callable[[float], None]
    ) -> None:
        loop = asyncio.get_running_loop()
        limit = self.patience.first_token
        last = record.start
        usage: Chunk | None = None
        finished = False
        async with (
            asyncio.timeout(self.patience.whole if isfinite(self.patience.whole) else None),
            asyncio.timeout(limit) as watch,
            self._open(content) as response,
        ):
            record.status = response.status_code
            if response.status_code != 200:
                await self._refused(response, record)
                return
            kind = response.headers.get("content-type", "").lower()
            if "html" in kind or response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
                raise MalformedStream(f"expected server-sent events, got the type {self.outside.clean(kind, 60)!r}")
            parser = EventParser()
            async for chunk, now in self._chunks(response, parser):
                if chunk is None:
                    finished = True
                    break
                if chunk.error:
                    record.outcome, record.detail = Outcome.FAILED, self.outside.clean(chunk.error)
                    return
                if chunk.has_token:
                    # a limit between chunks, not between bytes: a trickle of bytes must not keep a stream alive
                    watch.reschedule(loop.time() + self.patience.stall)
                    record.chunks += 1
                    if record.chunks > 4 * asked + _MUCH_MORE:
                        raise MalformedStream(f"the answer goes on after {record.chunks} chunks for {asked} tokens")
                    if record.chunks == 1:
                        record.ttft = now - record.start
                    else:
                        record.gaps.append(now - last)
                    last = now
                    on_chunk(now)
                if chunk.completion_tokens is not None:
                    usage = chunk
                finished = finished or chunk.finished
            record.e2e = last - record.start
        count_tokens(record, usage, asked)
        if not record.chunks:
            # an answer whose text is empty throughout: tokens may have been made, but no first one was seen
            record.outcome, record.detail = Outcome.EMPTY, "the answer carried no token"
        elif not finished:
            record.outcome, record.detail = Outcome.LOST, "the stream ended before the answer did"
        else:
            record.outcome = Outcome.DONE

    async def _chunks(self, response: httpx.Response, parser: EventParser) -> AsyncIterator[tuple[Chunk | None, float]]:
        """Yield each chunk with its time; None for `[DONE]`, after which the rest of the response is read."""
        done = False
        async for received in response.aiter_raw():
            now = self.clock()
            for data in () if done else parser.feed(received):
                if data.strip() == b"[DONE]":
                    # go on reading to the end of the response, so that the connection can be used again
                    done = True
                    break
                yield read_chunk(data), now
        if done:
            yield None, self.clock()
            return
        for data in parser.rest():
            if data.strip() == b"[DONE]":
                yield None, self.clock()
            else:
                yield read_chunk(data), self.clock()

    async def _refused(self, response: httpx.Response, record: RequestRecord) -> None:
        said = b""
        async for received in response.aiter_raw():
            said += received
            if len(said) > _REFUSAL:
                break
        if response.status_code in (429, 503):
            raise _Throttled(response.status_code, _retry_after(response.headers.get("retry-after")))
        rejected = 300 <= response.status_code < 500
        record.outcome = Outcome.REJECTED if rejected else Outcome.FAILED
        record.detail = self.outside.clean(f"HTTP {response.status_code} {said[:_REFUSAL].decode(errors='replace')}")


def _retry_after(header: str | None) -> float:
    """Return the seconds of a `Retry-After`, which may be a number or a date; a second if it says neither."""
    if header is None:
        return 1.0
    try:
        wait = finite_number(header.strip(), "Retry-After")
    except SpecError:
        from email.utils import parsedate_to_datetime

        try:
            wait = parsedate_to_datetime(header).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError, IndexError, OSError):
            return 1.0
    return max(wait, 0.0)


def _certificates(endpoint: Endpoint) -> ssl.SSLContext:
    try:
        return httpx.create_ssl_context(verify=endpoint.verify)
    except (OSError, ValueError) as error:
        # the file that the surroundings name is not there, or holds no certificates
        why = getattr(error, "strerror", None) or "it holds no certificates"
        file = printable(os.environ.get("SSL_CERT_FILE", ""))
        raise SpecError(f"cannot be used: {why}", field="SSL_CERT_FILE", value=file) from None


def _is_local(url: str) -> bool:
    return httpx.URL(url).host in ("localhost", "127.0.0.1", "::1")
