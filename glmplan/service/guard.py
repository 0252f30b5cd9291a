"""Checks of HTTP requests (host, origin, token, size), metrics, log.

- A service on loopback answers only requests with a loopback name in the Host header. DNS rebinding, where another site
  resolves its own name to 127.0.0.1, is refused because its requests name the other host.
- A service bound to another address requires a token, whatever the Host header is.
- Requests from pages of other sites are refused: no CORS header is sent, and cross-site fetch metadata is rejected.
- The log has time, method, route, status and milliseconds, never the query, the body or a header.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from glmplan.units import ByteCount, Seconds

__all__ = ["HEADERS", "Guard", "Limits", "Metrics", "is_loopback", "resident_bytes"]


#: upper bounds of the histogram of response times [s]
_ENDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_PAGE = 4096


def resident_bytes(pid: int | str = "self") -> ByteCount:
    """Return the resident memory of a process; 0 if the system has no /proc."""
    from glmplan.catalog.files import read_text

    with suppress(Exception):
        return int(read_text(f"/proc/{pid}/statm").split()[1]) * _PAGE
    return 0


class Metrics:
    """Counters since the start."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._classes: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        self.running = 0
        self.kept = 0

    def add(self, method: str, route: str, status: int, seconds: Seconds) -> None:
        """Count one request.

        `route` is the declared route, not the requested path: a path may hold private names.
        """
        self._counts[method, route, status] += 1
        classes = self._classes.setdefault(route, [0] * (len(_ENDS) + 1))
        classes[next((place for place, end in enumerate(_ENDS) if seconds <= end), len(_ENDS))] += 1
        self._sums[route] = self._sums.get(route, 0.0) + seconds

    def text(self, gauges: Mapping[str, tuple[str, Iterable[tuple[str, float]]]]) -> str:
        """Return all metrics in the text format of Prometheus.

        `gauges`: Name → (help, pairs of labels and value) of gauges of other modules.

        Examples
        --------
        >>> metrics = Metrics()
        >>> metrics.add("POST", "/v1/fit", 200, 0.03)
        >>> 'glmplan_requests_total{method="POST",route="/v1/fit",status="200"} 1' in metrics.text({})
        True
        """
        lines = ["# HELP glmplan_requests_total Requests answered.", "# TYPE glmplan_requests_total counter"]
        for (method, route, status), count in sorted(self._counts.items()):
            lines.append(f'glmplan_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}')
        lines += ["# HELP glmplan_request_seconds Time of a request.", "# TYPE glmplan_request_seconds histogram"]
        for route, classes in sorted(self._classes.items()):
            below = 0
            for end, count in zip((*map(str, _ENDS), "+Inf"), classes, strict=True):
                below += count
                lines.append(f'glmplan_request_seconds_bucket{{route="{route}",le="{end}"}} {below}')
            lines.append(f'glmplan_request_seconds_sum{{route="{route}"}} {self._sums[route]:.6f}')
            lines.append(f'glmplan_request_seconds_count{{route="{route}"}} {below}')
        own = {
            "glmplan_requests_running": ("Requests in progress.", [("", float(self.running))]),
            "glmplan_answers_given_again": ("Answers served from the cache.", [("", float(self.kept))]),
        }
        for name, (words, pairs) in {**own, **gauges}.items():
            lines += [f"# HELP {name} {words}", f"# TYPE {name} gauge"]
            lines += [f"{name}{labels} {value:g}" for labels, value in pairs]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the service."""

    body: int = 256 * 1024  # maximum body of a request, [B]
    points: int = 20_000  # points of a sweep, [-]
    requests: int = 50_000  # requests of a simulation, all replications together, [-]
    rows: int = 1_000  # rows of a table to predict, [-]
    models: int = 20  # models of a search for machines, [-]
    #: `quick_seconds`, `long_seconds`, `job_seconds`: time limits of a quick answer (`fit`, `predict`, `compare`), of a
    #: longer one and of a job, [s]
    quick_seconds: float = 20.0
    long_seconds: float = 60.0
    job_seconds: float = 900.0
    #: `quick_workers`, `long_workers`, `job_workers`: processes for quick answers, longer ones and jobs, [-]
    quick_workers: int = min(4, os.cpu_count() or 1)
    long_workers: int = 1
    job_workers: int = min(4, os.cpu_count() or 1)
    waiting: int = 64  # maximum questions waiting for a process of each kind, [-]
    jobs: int = 100  # maximum jobs that wait, run or are kept with their answers, [-]
    kept_seconds: float = 3600.0  # time until an ended job is deleted, [s]
    memory: int = 4_000_000_000  # address space of a worker process, [B]
    answers: int = 512  # maximum cached answers, [-]
    calibration: str = ""  # path of the calibration of a site, applied to every prediction; empty for none
    job_file: str = ""  # path of the SQLite file of jobs; empty to keep them in memory


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_LOG = logging.getLogger("glmplan.service.requests")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT")
#: routes without a token: the pages, which have no answers, and the health check
_OPEN = ("/", "/buy", "/check", "/docs", "/health", "/favicon.ico")
#: security headers of every response: no foreign content, no frames, no sniffing
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


def is_loopback(host: str) -> bool:
    """Return True for ``localhost``, ``::1`` and addresses in 127.0.0.0/8.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("0.0.0.0"), is_loopback("127.evil.example")
    (True, False, False)
    """
    import ipaddress

    plain = host.strip("[]").rstrip(".").lower()
    if plain in _LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(plain).is_loopback
    except ValueError:
        return False


def _host_of(value: str) -> str:
    """Return the name in a Host header without its port."""
    if value.startswith("["):
        return value.partition("]")[0] + "]"
    return value.rpartition(":")[0] if value.count(":") == 1 else value


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


class Guard:
    """The outermost ASGI layer of the service.

    - `app`: ASGI application that answers.
    - `limits`: Limits of the service.
    - `metrics`: Counters of requests.
    - `token`: Required token; empty on loopback, where the Host header is checked instead.
    - `takes_posts`: Returns True if a path accepts POST; the application answers the others (405).
    """

    def __init__(
        self,
        app: App,
        limits: Limits,
        metrics: Metrics,
        token: str = "",
        takes_posts: Callable[[str], bool] = lambda path: True,
    ) -> None:
        self._app, self._limits, self._metrics, self._token = app, limits, metrics, token
        self._takes_posts = takes_posts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request to the application, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, begun = time.perf_counter(), [500], []
        self._metrics.running += 1

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                status[0] = message["status"]
                begun.append(True)
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        # HEAD returns the headers of GET: LibreOffice sends HEAD first
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        try:
            body = await self._checked(scope, receive)
            await self._app(scope, body, sent)
        except _Refused as refused:
            await _refuse(sent, refused)
        except asyncio.CancelledError:
            # shutdown: the time limit for requests in progress is over
            if begun:
                raise
            await _refuse(sent, _Refused(503, "the service is shutting down: try again later"))
        finally:
            self._metrics.running -= 1
            seconds = time.perf_counter() - started
            route = getattr(scope.get("route"), "path", "other")
            # a client may invent methods without end
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.add(method, route, status[0], seconds)
            entry = {"event": "request", "method": method, "route": route, "status": status[0]}
            _LOG.info(json.dumps(entry | {"ms": round(1000 * seconds, 1)}))

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))
        self._check_origin(scope, headers)
        if self._token and not scope["path"].startswith("/page/") and scope["path"] not in _OPEN:
            self._check_token(scope, headers)
        if "transfer-encoding" in headers and "content-length" in headers:
            # the length of such a body is ambiguous (RFC 9112, 6.1): nothing more is read from this connection
            raise _Refused(400, "the request has both Content-Length and Transfer-Encoding")
        if scope["method"] in ("GET", "HEAD"):
            return receive
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if scope["method"] == "POST" and kind != "application/json" and self._takes_posts(scope["path"]):
            raise _Refused(415, "send JSON, with content-type: application/json")
        return await self._body(headers, receive)

    def _check_origin(self, scope: Scope, headers: dict[str, str]) -> None:
        host = headers.get("host", "")
        if not self._token and not is_loopback(_host_of(host)):
            raise _Refused(421, "this service answers for localhost and 127.0.0.1 only")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise _Refused(403, "requests from pages of other sites are refused")
        # following a link from another site to the page is allowed
        follows = headers.get("sec-fetch-mode") == "navigate" and scope["path"] == "/"
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not follows:
            raise _Refused(403, "requests from pages of other sites are refused")

    def _check_token(self, scope: Scope, headers: dict[str, str]) -> None:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            # functions of spreadsheets send no headers
            try:
                query = parse_qs(scope.get("query_string", b"").decode("latin-1"), max_num_fields=200)
            except ValueError:
                raise _Refused(422, "the address has more than 200 fields") from None
            given = query.get("token", [""])[0]
        if not hmac.compare_digest(given.strip().encode(), self._token.encode()):
            raise _Refused(401, "a token is needed: Authorization: Bearer TOKEN, or token=TOKEN in the address")

    async def _body(self, headers: dict[str, str], receive: Receive) -> Receive:
        """Return a replay of the body; refuse it above the limit."""
        limit = self._limits.body
        stated = headers.get("content-length", "0")
        if stated.isdigit() and int(stated) > limit:
            raise _Refused(413, f"the body is larger than {limit:,} bytes")
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _Refused(400, "the body is incomplete")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise _Refused(413, f"the body is larger than {limit:,} bytes")
            if not message.get("more_body"):
                break
        whole: list[Message] = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        return replay


async def _refuse(send: Send, refused: _Refused) -> None:
    body = json.dumps({"error": {"kind": "Refused", "message": refused.text}}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if refused.status == 400:
        headers.append((b"connection", b"close"))
    if refused.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
