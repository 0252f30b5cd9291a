"""Connections that must ask in time: whoever opens many and says nothing keeps nobody else out."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["ARRIVAL", "CONNECTIONS", "Punctual"]

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
