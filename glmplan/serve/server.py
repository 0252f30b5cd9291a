"""The service as a process: bound to an address, logged as lines of JSON, ended without breaking off answers."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import uvicorn

from glmplan.errors import SpecError
from glmplan.serve.application import application
from glmplan.serve.connections import CONNECTIONS, Punctual
from glmplan.serve.guard import is_loopback
from glmplan.serve.limits import Limits

__all__ = ["JsonLines", "Server", "bound", "check_token", "server"]

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
    """Check a token.

    Parameters
    ----------
    token : str
        The token.

    Returns
    -------
    str
        The same.

    Raises
    ------
    SpecError
        If it is too short to be a secret, or cannot be sent in a header.
    """
    if len(token) < _SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise SpecError(f"needs at least {_SHORTEST} letters and digits without blanks", field="token")
    return token


def bound(host: str, port: int) -> socket.socket:
    """Take an address.

    Parameters
    ----------
    host : str
        Name or address.
    port : int
        Port; 0 for any that is free, [-]

    Returns
    -------
    socket
        Bound.

    Raises
    ------
    SpecError
        If it is taken or not of this machine.
    """
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

    Parameters
    ----------
    host : str
        Name or address that it is bound to.
    limits : Limits, optional
        Limits.
    token : str, optional
        What must be sent; needed everywhere but on loopback.
    ready : callable
        Called when it answers.

    Returns
    -------
    Server
        To be run with a socket of `bound`.

    Raises
    ------
    SpecError
        If it is bound elsewhere than on loopback without a token.
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
