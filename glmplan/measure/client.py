"""The client: one streamed request to an OpenAI-compatible server, timed as `vllm bench serve` times it."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from math import isfinite
from typing import Any

import httpx

from glmplan.errors import SpecError, printable
from glmplan.measure.endpoint import Endpoint, Prompt
from glmplan.measure.outside import api_key
from glmplan.measure.request_result import Outcome, RequestRecord
from glmplan.measure.server_sent_events import Chunk, EventParser, MalformedStream, read_chunk
from glmplan.measure.usage import count_tokens
from glmplan.units import finite_number

__all__ = ["Client", "Endpoint", "Patience", "Prompt"]


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

    async def page(self, address: str, *, body: Any = None, seconds: float = _PAGE_SECONDS) -> tuple[int, bytes]:
        """Ask for a page, bounded in time and size.

        Parameters
        ----------
        address : str
            Its address.
        body : object, optional
            JSON to send with it; without it the page is only asked for.
        seconds : float, optional
            Limit from sending to the last byte, [s]

        Returns
        -------
        (int, bytes)
            Status, [-], and content.

        Raises
        ------
        httpx.HTTPError, OSError, TimeoutError
            If there is no answer in time.
        MalformedStream
            If it holds more than 8 MiB, or is packed although that was not asked for.
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
        output_tokens: int,
        *,
        prompt_tokens: int = 0,
        on_chunk: Callable[[float], None] = lambda now: None,
    ) -> RequestRecord:
        """Send one request and read its stream. Every way it can end is an outcome, none is an exception.

        Parameters
        ----------
        prompt : str or list of int
            The prompt, text or token numbers, [-]
        output_tokens : int
            Tokens to generate, [token]
        prompt_tokens : int, optional
            Length of the prompt, for servers that do not tell, [token]
        on_chunk : callable, optional
            Called with the time of each chunk that carries tokens, [s]

        Returns
        -------
        RequestRecord
            The request.
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
