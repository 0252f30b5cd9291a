"""Send one streamed request to an OpenAI-compatible server and time it.

Times are as `vllm bench serve` defines them.
"""

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
    "PAGE_SECONDS",
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


#: a prompt is text, or token numbers if the server accepts them
Prompt = str | list[int]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address of a server and the request fields it accepts.

    A malformed address raises `SpecError` without the password in its message.
    """

    url: str  # base address, such as `http://127.0.0.1:8000/v1`
    model: str  # name on the server
    chat: bool = False  # chat completions instead of completions
    ignore_eos: bool = True  # ask the server not to stop at the end token: lengths are as requested
    stream_usage: bool = True  # ask for `usage` in the stream
    verify: bool = True  # check the server's certificate
    login: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url.strip())
            login, _, place = parts.netloc.rpartition("@")
            bare = urlunsplit(parts._replace(netloc=place))
            valid = parts.scheme in ("http", "https") and bool(httpx.URL(bare).host) and parts.port != 0
        except (ValueError, TypeError, httpx.InvalidURL):
            valid, bare, login = False, "", ""
        if not valid:
            shown = re.sub(r"[^/]*@", "***@", self.url) or "(missing)"
            raise SpecError("is not an address such as http://host:8000/v1", field="--url", value=shown)
        if parts.query or parts.fragment:
            raise SpecError("ends in a query or a fragment, which would go lost", field="--url", value=parts.netloc)
        object.__setattr__(self, "url", bare)
        object.__setattr__(self, "login", unquote(login) or self.login)

    def told(self) -> dict[str, Any]:
        """Return all fields but the login, for records."""
        return {one.name: getattr(self, one.name) for one in fields(self) if one.name != "login"}

    @property
    def outside(self) -> Outside:
        """Return the redactor of this server's key and login."""
        user, _, password = self.login.partition(":")
        return Outside(filter(None, (api_key(), self.login, password or user)))

    @property
    def root(self) -> str:
        """Return the address without version, where engines serve their own pages."""
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


#: fields of a chat chunk that hold reasoning
_REASONING = ("reasoning_content", "reasoning")
#: a line, or the lines of one event [B]
_LONGEST = 4 * 2**20
#: byte order mark, which may begin a stream
_BOM = b"\xef\xbb\xbf"
#: protocol lines without data
_FIELDS = (b":", b"event:", b"id:", b"retry:")
#: characters of an error that are read
_MOST_SAID = 1 << 14


class MalformedStream(ValueError):
    """Bytes that are not server-sent events of this protocol.

    `got` holds the raw bytes: redact before printing.
    """

    def __init__(self, message: str, got: bytes = b"") -> None:
        super().__init__(message)
        self.got = got


class EventParser:
    r"""Split a byte stream into the data of events, wherever it is cut.

    Examples
    --------
    >>> parser = EventParser()
    >>> list(parser.feed(b"data: one\n\nda")), list(parser.feed(b"ta:two\r\n\r\n: comment\n\n"))
    ([b'one'], [b'two'])
    """

    __slots__ = ("_begun", "_cr", "_data", "_held", "_rest", "_waiting")

    def __init__(self) -> None:
        # parts of an unfinished line, joined once instead of with every byte
        self._rest: list[bytes] = []
        self._waiting = 0
        self._data: list[bytes] = []
        self._held = 0
        self._begun = self._cr = False

    def feed(self, received: bytes) -> Iterator[bytes]:
        """Yield the data of every event that the received bytes complete."""
        if self._cr and received.startswith(b"\n"):  # the second half of a line's end
            received, self._cr = received[1:], False
        if b"\r" in received:  # a line ends with LF, CR LF or CR
            self._cr = received.endswith(b"\r")
            received = received.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        elif received:
            self._cr = False
        lines = received.split(b"\n")
        if len(lines) > 1:
            lines[0] = b"".join([*self._rest, lines[0]])
            self._rest, self._waiting = [], 0
        self._rest.append(lines.pop())
        self._waiting += len(self._rest[-1])
        for line in lines:
            if not self._begun:
                self._begun, line = True, line.removeprefix(_BOM)
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
        line = b"".join(self._rest)
        if line.startswith(b"data:"):
            self._data.append(line[5:].lstrip(b" "))
        elif line and not line.startswith(_FIELDS) and not b"data:".startswith(line):
            raise MalformedStream("expected a server-sent event", line)
        return [b"\n".join(self._data)] if self._data else []


@dataclass(frozen=True, slots=True)
class Chunk:
    """Content of one event."""

    has_token: bool  # False for the role chunk and the usage chunk
    finished: bool  # last chunk of the answer
    prompt_tokens: TokenCount | None = None  # counts are from `usage`
    completion_tokens: TokenCount | None = None
    cached_tokens: TokenCount | None = None
    reasoning_tokens: TokenCount | None = None
    reasons: bool = False  # the text is reasoning
    stopped: bool = False  # the server ended the answer before the requested length
    model: str = ""  # as the server names it
    error: str = ""  # error inside the stream


def read_chunk(data: bytes) -> Chunk:
    """Return the content of one event.

    A completion has no role chunk: an unfinished chunk with empty text is a token whose bytes are held back. A chat
    chunk needs text, reasoning or a tool call. `usage` may come with the last choice, in a chunk of its own with
    `choices: []`, or in every chunk.

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
        message = error.get("message", error) if isinstance(error, dict) else error
        return Chunk(False, True, error=str(message)[:_MOST_SAID])
    choices = value.get("choices")
    if choices is None and "usage" not in value and "timings" not in value:
        raise MalformedStream("expected 'choices'", data)
    choice = choices[0] if isinstance(choices, list) and choices else {}
    if not isinstance(choice, dict):
        raise MalformedStream("expected a choice", data)
    finished = choice.get("finish_reason") is not None
    usage = value.get("usage")
    model = value.get("model")
    delta = choice.get("delta")
    return Chunk(
        _has_token(choice, finished),
        finished,
        *_usage(usage if isinstance(usage, dict) else {}),
        reasons=isinstance(delta, dict) and any(map(delta.get, _REASONING)),
        stopped=choice.get("finish_reason") in ("stop", "tool_calls", "content_filter"),
        model=model if isinstance(model, str) else "",
    )


def _has_token(choice: dict[str, Any], finished: bool) -> bool:
    text = choice.get("text")
    if isinstance(text, str):
        return bool(text) or not finished
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return False
    return any(delta.get(name) for name in ("content", *_REASONING, "tool_calls", "refusal"))


def _usage(usage: dict[str, Any]) -> tuple[int | None, int | None, int | None, int | None]:
    """Return tokens of prompt, answer, prefix cache and reasoning."""

    def detail(name: str, of: str) -> Any:
        details = usage.get(f"{of}_tokens_details")
        return details.get(name) if isinstance(details, dict) else None

    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    more = (detail("cached_tokens", "prompt"), detail("reasoning_tokens", "completion"))
    prompt, answer, cached, reasoning = map(_count, (*counts, *more))
    return prompt, answer, cached, reasoning


def _count(value: Any) -> int | None:
    """Return a count, or -1 if it is invalid, which differs from missing."""
    if value is None:
        return None
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else -1


class Outcome(StrEnum):
    """Result of a request, counted by name; see `is_fault`."""

    DONE = "done"
    REFUSED = "refused"  # no connection
    LOST = "lost"  # connection broken, or stream ended before the answer
    LATE = "no first token"  # first-token limit exceeded
    STALLED = "stalled"  # no complete chunk within the limit
    THROTTLED = "throttled"  # 429 or 503, also after the requested wait
    REJECTED = "rejected"  # another 4xx
    FAILED = "failed"  # a 5xx, or an error inside the stream
    MALFORMED = "malformed"  # not this protocol
    TLS = "tls"  # untrusted certificate, or no TLS
    UNFINISHED = "unfinished"  # still running at the end of the step
    UNFORESEEN = "unforeseen"  # unexpected client error, named in the detail
    EMPTY = "empty"  # complete answer without a token
    CANCELLED = "cancelled"  # stopped by the user or the guard

    @property
    def is_fault(self) -> bool:
        """Return True if the server or its connection failed."""
        return self not in (Outcome.DONE, Outcome.CANCELLED)


@dataclass(slots=True)
class RequestRecord:
    """Times, token counts and outcome of one request."""

    start: Seconds  # sent (the last time, if resent), from the start of the run
    outcome: Outcome = Outcome.CANCELLED
    ttft: Seconds = 0.0
    e2e: Seconds = 0.0  # to the last token
    input_tokens: TokenCount = 0  # from `usage`, else as requested
    output_tokens: TokenCount = 0  # from `usage`, else counted chunks
    chunks: int = 0  # with tokens
    counted_by: str = "usage"  # `usage`, `chunks` or `chunks, usage is wrong`
    cached_tokens: TokenCount = 0  # prompt tokens from the prefix cache
    hidden_tokens: TokenCount = 0  # reasoning among the output tokens that was generated before the stream began
    stopped: bool = False  # the server ended the answer before the requested length
    reasoned: bool = False  # reasoning was streamed
    other_model: str = ""  # name in the stream, where it differs from the requested one
    retries: int = 0  # resent before the first byte
    throttled: int = 0  # answers 429 or 503
    late: Seconds = 0.0  # sent later than scheduled (open loop)
    status: int = 0  # HTTP status; 0 if none
    detail: str = ""  # fault
    doubt: str = ""  # why the token counts are impossible
    gaps: list[Seconds] = field(default_factory=list)  # between chunks; emptied into the statistics

    @property
    def end(self) -> float:
        """Return the time of the last token, or of the abort [s]"""
        return self.start + self.e2e

    @property
    def tpot(self) -> float | None:
        """Return (e2e - ttft) / (streamed tokens - 1); None for one token [s]"""
        streamed = self.output_tokens - self.hidden_tokens
        return (self.e2e - self.ttft) / (streamed - 1) if streamed > 1 else None


#: tokens that a chat template may add to the prompt [token]
_TEMPLATE = 64
#: prompts too short to check against usage [token]
_SHORT = 32


def count_tokens(record: RequestRecord, usage: Chunk | None, asked: TokenCount) -> None:
    """Set the token counts of a record from usage or chunks, and check them.

    Notes
    -----
    A chunk holds at least one token: fewer tokens than chunks is impossible. More chunks than requested tokens (but for
    a final one), and prompts far longer or shorter than sent, are impossible too; ``doubt`` then gives the reason.

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
        hidden = usage.reasoning_tokens or 0
        if not record.reasoned and 0 < hidden <= record.output_tokens - record.chunks:
            record.hidden_tokens = hidden
    if record.chunks > asked + 1:
        record.doubt = f"{record.chunks} chunks with text for {asked} tokens"
    prompt, cached = (usage.prompt_tokens or 0, usage.cached_tokens or 0) if usage is not None else (0, 0)
    if prompt > most_prompt_tokens(record.input_tokens):
        count_text = f"{prompt:,}" if prompt < 10**12 else "10¹² or more"
        record.doubt = f"usage tells of {count_text} prompt tokens where {record.input_tokens:,} were sent"
    elif 0 < prompt < least_prompt_tokens(record.input_tokens):
        record.doubt = f"usage tells of {prompt:,} prompt tokens where {record.input_tokens:,} were sent"
    elif prompt > 0:
        record.input_tokens = prompt
    if 0 < cached <= record.input_tokens:
        record.cached_tokens = cached
    elif cached > record.input_tokens and not record.doubt:
        record.doubt = "usage tells of more cached tokens than the prompt has"


def most_prompt_tokens(sent: TokenCount) -> Tokens:
    """Return the upper bound of prompt tokens, chat template included.

    `sent` is counted with the server's tokenizer; 0 if unknown.

    Examples
    --------
    >>> most_prompt_tokens(64)
    144.0
    """
    return 1.25 * sent + _TEMPLATE if sent > 0 else 1e9


def least_prompt_tokens(sent: TokenCount) -> Tokens:
    """Return the lower bound of prompt tokens.

    Prompts are words whose cost comes from this server's own counts. 0 for prompts so short that a begin token matters.

    Examples
    --------
    >>> least_prompt_tokens(1000), least_prompt_tokens(8)
    (800.0, 0.0)
    """
    return sent / 1.25 if sent >= _SHORT else 0.0


_RESENT = 2
_STREAMS_OF_A_POOL = 16
#: limits of a page: size [B] and time [s]
_LARGEST_PAGE, PAGE_SECONDS = 8 * 2**20, 10.0
#: bytes read of a rejection [B]
_REFUSAL = 4096
#: `httpx` messages of a closed connection; other protocol errors mean that the server does not speak HTTP
_CLOSED = re.compile("disconnected|closed", re.IGNORECASE)
#: text chunks beyond the requested tokens after which an answer counts as endless [-]
_MUCH_MORE = 64


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits of a request."""

    connect: Seconds = 10.0
    first_token: Seconds = 300.0  # queueing included
    stall: Seconds = 60.0  # between two chunks
    throttle: Seconds = 30.0  # sum of all `Retry-After` waits of a request
    throttled: int = 3  # resends after 429 or 503
    whole: Seconds = float("inf")  # complete answer; in a run of load steps the step limit applies


class _Throttled(Exception):
    def __init__(self, status: int, wait: float) -> None:
        self.status, self.wait = status, wait


class Client:
    """Send streamed requests; an asynchronous context manager.

    `clock` returns the seconds since the start of the run.
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
        # requests are independent users; stored cookies would also grow without limit
        no_cookies = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        self._new: Callable[[], httpx.AsyncClient] = lambda: httpx.AsyncClient(
            headers=headers,
            verify=context,
            cookies=no_cookies,
            # `_receive` has its own watchdog: a stream may be silent for longer than a fixed read timeout
            timeout=httpx.Timeout(self.patience.first_token, connect=self.patience.connect, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=4.0),
            follow_redirects=False,
            trust_env=not _is_local(endpoint.url),
        )
        try:
            self.http = self._new()
        except (ValueError, ImportError, httpx.InvalidURL):
            # the error text may hold the proxy's password
            message = "cannot be used: a proxy is http://host:port, and SOCKS is not spoken"
            raise SpecError(message, field="HTTP_PROXY, HTTPS_PROXY, ALL_PROXY or NO_PROXY") from None
        # httpx scans all connections of a pool for each request: many streams share several pools
        self._pools, self._in_use = [self.http], [0]
        kind = "chat/completions" if endpoint.chat else "completions"
        self._address = f"{endpoint.url.rstrip('/')}/{kind}"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *unused: object) -> None:
        for pool in self._pools:
            await pool.aclose()

    async def page(self, address: str, *, body: Any = None, seconds: Seconds = PAGE_SECONDS) -> tuple[int, bytes]:
        """Return status and body of a page; bounded in time and size.

        With `body` the JSON is posted.
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
        """Send one request, read its stream and return the record.

        Every failure is an outcome, not an exception. `prompt_tokens` is used if the server reports none. `on_chunk`
        gets the
        time of each chunk with tokens [s].
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
                record.detail = self._said(error, record)
                if record.outcome is Outcome.LOST and not record.status and record.retries < _RESENT:
                    # the server had closed a kept-alive connection; nothing was received
                    record.retries += 1
                    continue
            except Exception as error:
                # any other failure is a named fault and does not end the run
                record.outcome, record.detail = Outcome.UNFORESEEN, self._said(error, record)
            if record.outcome is not Outcome.DONE:
                record.e2e = max(self.clock() - record.start, record.e2e)
            return record

    def _said(self, error: BaseException, record: RequestRecord) -> str:
        """Return the error text, server output last and redacted before cutting."""
        if not str(error):  # a time limit has no text of its own
            return self._limit(error, record)
        got = (
            f", got {self.outside.clean(error.got.decode(errors='replace'), 80)!r}"
            if isinstance(error, MalformedStream) and error.got
            else ""
        )
        return self.outside.clean(f"{type(error).__name__}: {error}") + got

    def _limit(self, error: BaseException, record: RequestRecord) -> str:
        patience = self.patience
        if isinstance(error, httpx.ConnectTimeout):
            return f"no connection within {patience.connect:g} s"
        if not isinstance(error, TimeoutError | httpx.TimeoutException):
            return type(error).__name__
        if self.clock() - record.start >= patience.whole:
            return f"no end of the answer within {patience.whole:g} s"
        if record.chunks:
            return f"no token for {patience.stall:g} s after {record.chunks} chunks"
        return f"no first token within {patience.first_token:g} s"

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
        pool = next((n for n, used in enumerate(self._in_use) if used < _STREAMS_OF_A_POOL), len(self._pools))
        if pool == len(self._pools):
            self._pools.append(self._new())
            self._in_use.append(0)
        self._in_use[pool] += 1
        try:
            async with self._pools[pool].stream("POST", self._address, content=content, headers=headers) as response:
                yield response
        finally:
            self._in_use[pool] -= 1

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
                record.reasoned = record.reasoned or chunk.reasons
                record.stopped = record.stopped or chunk.stopped
                if chunk.model not in ("", self.endpoint.model):
                    record.other_model = self.outside.clean(chunk.model, 80)
                if chunk.has_token:
                    # limit between chunks, not bytes: a trickle of bytes must not keep a stream alive
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
        record.stopped = record.stopped and record.output_tokens < asked
        if not record.chunks:
            # an answer with empty text throughout: tokens may exist, but no first token was seen
            record.outcome, record.detail = Outcome.EMPTY, "the answer carried no token"
        elif not finished:
            record.outcome, record.detail = Outcome.LOST, "the stream ended before the answer did"
        else:
            record.outcome = Outcome.DONE

    async def _chunks(self, response: httpx.Response, parser: EventParser) -> AsyncIterator[tuple[Chunk | None, float]]:
        """Yield each chunk with its time; None for `[DONE]`."""
        done = False
        async for received in response.aiter_raw():
            now = self.clock()
            for data in () if done else parser.feed(received):
                if data.strip() == b"[DONE]":
                    # read the response to its end so that the connection can be reused
                    done = True
                    break
                yield read_chunk(data), now
        if done:
            yield None, self.clock()
            return
        for data in parser.rest():
            if data.strip() == b"[DONE]":
                yield None, self.clock()
                return
            try:
                chunk = read_chunk(data)
            except MalformedStream:
                raise ConnectionError("the stream ended within an event") from None
            yield chunk, self.clock()

    async def _refused(self, response: httpx.Response, record: RequestRecord) -> None:
        body = b""
        async for received in response.aiter_raw():
            body += received
            if len(body) > _REFUSAL:
                break
        if response.status_code in (429, 503):
            wait = _retry_after(response.headers.get("retry-after"), response.headers.get("date"))
            raise _Throttled(response.status_code, wait)
        rejected = 300 <= response.status_code < 500
        record.outcome = Outcome.REJECTED if rejected else Outcome.FAILED
        record.detail = self.outside.clean(f"HTTP {response.status_code} {body[:_REFUSAL].decode(errors='replace')}")


def _retry_after(header: str | None, sent: str | None = None) -> float:
    """Return the seconds to wait by `Retry-After`; 1 if unreadable.

    A date counts from the date of the server, `sent`.
    """
    if header is None:
        return 1.0
    try:
        wait = finite_number(header.strip(), "Retry-After")
    except SpecError:
        from email.utils import parsedate_to_datetime

        try:
            wait = (parsedate_to_datetime(header) - parsedate_to_datetime(sent or "")).total_seconds()
        except (ValueError, TypeError, OverflowError, IndexError, OSError):
            return 1.0
    return max(wait, 0.0)


def _certificates(endpoint: Endpoint) -> ssl.SSLContext:
    try:
        return httpx.create_ssl_context(verify=endpoint.verify)
    except (OSError, ValueError) as error:
        # the certificate file of the environment is missing or holds no certificates
        why = getattr(error, "strerror", None) or "it holds no certificates"
        file = printable(os.environ.get("SSL_CERT_FILE", ""))
        raise SpecError(f"cannot be used: {why}", field="SSL_CERT_FILE", value=file) from None


def _is_local(url: str) -> bool:
    return httpx.URL(url).host in ("localhost", "127.0.0.1", "::1")
