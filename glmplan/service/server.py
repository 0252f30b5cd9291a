"""The service as a process: bound to an address, logged as lines of JSON, ended without breaking off answers."""

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

__all__ = ["ARRIVAL", "CONNECTIONS", "JsonLines", "Punctual", "Server", "bound", "check_token", "server"]


# Connections that must ask in time: whoever opens many and says nothing keeps nobody else out.

#: connections at once [-]
CONNECTIONS = 512
#: time for a request to come whole, head and body, and for what is written to be taken [s]
ARRIVAL = 20.0


class Punctual(H11Protocol):
    """A connection over HTTP/1.1 that is closed when a request does not come whole in time, or an answer is not taken.

    When all places are taken, the connection that has waited longest without a whole request gives up its own; so
    one that asks is turned away only where as many others are being answered.
    """

    _late: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None
    #: when it began to wait for a request; None while one is answered [s]
    _idle: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._idle = self.loop.time()
        self._late = self.loop.call_later(ARRIVAL, self._give_up)
        if len(self.connections) >= CONNECTIONS:
            waiting: list[Any] = [one for one in self.connections if getattr(one, "_idle", None) is not None]
            others = [one for one in waiting if one is not self and not one.transport.is_closing()]
            if others:
                min(others, key=lambda one: one._idle).transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes; a request has its time from its first byte, however many come."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._punctual()
            self._idle = None
        elif self._late is None and not self.transport.is_closing():
            self._late = self.loop.call_later(ARRIVAL, self._give_up)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._idle = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Give whoever asked some time to take what is written."""
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(ARRIVAL, self._give_up)

    def resume_writing(self) -> None:
        """Go on writing."""
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def connection_lost(self, exc: Exception | None) -> None:
        """End the clocks."""
        self._punctual()
        if self._stuck is not None:
            self._stuck.cancel()
        super().connection_lost(exc)

    def _punctual(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        self.transport.abort()


#: letters of a token at least [-]
_SHORTEST = 16
#: time that answers under way are given when the service is told to stop [s]
_LAST = 10


class JsonLines(logging.Formatter):
    """Each record as one line of JSON: time, level, and what is said."""

    def format(self, record: logging.LogRecord) -> str:
        """Write one record."""
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        text = record.getMessage()
        found |= json.loads(text) if text.startswith('{"event"') else {"event": "note", "message": text}
        if record.exc_info:
            # where, and of which kind: the words of an error may hold what was asked
            trace, kind = record.exc_info[2], record.exc_info[0]
            while trace is not None and trace.tb_next is not None:
                trace = trace.tb_next
            found["fault"] = kind.__name__ if kind is not None else ""
            found["at"] = f"{trace.tb_frame.f_globals.get('__name__')}:{trace.tb_lineno}" if trace is not None else ""
        return json.dumps(found)


class Server(uvicorn.Server):
    """A server that ends quietly when it is told to stop, and says when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def check_token(token: str) -> str:
    """Check a token."""
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise SpecError(f"needs at least {_SHORTEST} letters and digits without blanks", field="token")
    return token


def bound(host: str, port: int) -> socket.socket:
    """Take an address."""
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
    """Make the server.

    - `host`: Name or address that it is bound to.
    - `token`: What must be sent; needed everywhere but on loopback.
    - Returns: To be run with a socket of `bound`.
    """
    if token:
        check_token(token)
    elif not is_loopback(host):
        raise SpecError("is reached from other machines: a token is needed", field="--host", value=host)
    config = uvicorn.Config(
        application(limits, token),
        http=Punctual,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_LAST,
        limit_concurrency=CONNECTIONS,
        lifespan="on",
    )
    return Server(config, ready)
