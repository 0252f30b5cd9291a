"""HTTP server of the service: address, connections, JSON log, shutdown."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from glmplan.errors import SpecError
from glmplan.service.application import application
from glmplan.service.guard import Limits, is_loopback

__all__ = ["ARRIVAL", "CONNECTIONS", "JsonLines", "Server", "TimedConnection", "bound", "check_token", "server"]


#: maximum concurrent connections [-]
CONNECTIONS = 512
#: time limit for receiving a complete request, and for the client to read a response [s]
ARRIVAL = 20.0


class TimedConnection(H11Protocol):
    """HTTP/1.1 connection with time limits for request and response.

    At the maximum of connections the one idle for longest is closed, so a new request is rejected only if all
    connections have a request in progress.
    """

    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    #: start of the wait for a request; None while one is answered [s]
    _idle: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time limit of the first request."""
        super().connection_made(transport)
        self._idle = self.loop.time()
        self._late = self.loop.call_later(ARRIVAL, self._abort)
        if len(self.connections) >= CONNECTIONS:
            waiting: list[Any] = [
                connection for connection in self.connections if getattr(connection, "_idle", None) is not None
            ]
            others = [one for one in waiting if one is not self and not one.transport.is_closing()]
            if others:
                min(others, key=lambda one: one._idle).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Receive bytes; the time limit starts with the first byte of a request."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._request_complete()
            self._idle = None
        elif self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(ARRIVAL, self._abort)

    def on_response_complete(self) -> None:
        """Start the wait for the next request."""
        self._idle = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Start the time limit for the client to read the response."""
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(ARRIVAL, self._abort)

    def resume_writing(self) -> None:
        """Stop the time limit of the response."""
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limits."""
        self._request_complete()
        if self._stuck is not None:
            self._stuck.cancel()
        super().connection_lost(exc)

    def _request_complete(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _abort(self) -> None:
        self.transport.abort()


#: minimum length of a token [-]
_SHORTEST = 16
#: time limit of requests in progress at shutdown [s]
_LAST = 10


class JsonLines(logging.Formatter):
    """Log format: one line of JSON per record with time, level and message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        text = record.getMessage()
        found |= json.loads(text) if text.startswith('{"event"') else {"event": "note", "message": text}
        if record.exc_info:
            # only kind and location: the message of an error may hold parts of the question
            trace, kind = record.exc_info[2], record.exc_info[0]
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            found["fault"] = kind.__name__ if kind is not None else ""
            found["at"] = f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}" if trace is not None else ""
        return json.dumps(found)


class Server(uvicorn.Server):
    """A server that calls `ready` after its start."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def check_token(token: str) -> str:
    """Return a token; raise SpecError if it is too short or has blanks."""
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise SpecError(f"needs at least {_SHORTEST} letters and digits without blanks", field="token")
    return token


def bound(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        found.close()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SpecError(f"cannot be taken: {reason.lower()}", field="--port", value=f"{host}:{port}") from None
    return found


def server(host: str, *, limits: Limits | None = None, token: str = "", ready: Callable[[], None]) -> Server:
    """Return the server, to be run with a socket of `bound`.

    - `host`: Name or address of the socket.
    - `token`: Token of each question; required except on loopback.
    """
    if token:
        check_token(token)
    elif not is_loopback(host):
        raise SpecError("is reached from other machines: a token is needed", field="--host", value=host)
    config = uvicorn.Config(
        application(limits, token),
        http=TimedConnection,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_LAST,
        limit_concurrency=CONNECTIONS,
        lifespan="on",
    )
    return Server(config, ready)
