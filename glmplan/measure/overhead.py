"""Overhead of the client, measured against a server that answers at once."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from glmplan.measure.client import Client, Endpoint, Outcome, RequestRecord
from glmplan.units import Milliseconds, Ratio, Seconds, TokenCount

__all__ = ["NullServer", "Overhead", "measure_overhead", "null_server_process"]


#: time to start a process on a busy machine [s]
_PATIENCE = 60.0


class NullServer:
    """OpenAI-compatible local server that sends fixed chunks at a fixed pace.

    `pace` is the time between chunks (0: all at once) and `first` that before the first one [s]; `chat` sends chat
    completion chunks. It reads `max_tokens`, counts prompts by words, and knows nothing else of a model.
    """

    def __init__(self, *, pace: float = 0.0, first: float = 0.0, chat: bool = False) -> None:
        self.pace, self.first, self.chat = pace, first, chat
        self.requests = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """Return the base address."""
        assert self._server is not None, "start the server first"
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def __aenter__(self) -> NullServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=2048)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._open):
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while (head := await reader.readuntil(b"\r\n\r\n")) and await self._answer(head, reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass  # client gone or server closing: only this connection ends
        finally:
            self._open.discard(writer)
            writer.close()

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = head.split(b"\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(b":") for line in lines[1:])}
        body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
        if not lines[0].startswith(b"POST"):
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return True
        self.requests += 1
        request = json.loads(body)
        count = int(request.get("max_tokens", 16))
        prompt = request.get("prompt", "x")
        words = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        content = {"delta": {"content": "x "}} if self.chat else {"text": "x "}
        token = _frame({"choices": [{"index": 0, "finish_reason": None, **content}]})
        usage = {"prompt_tokens": words, "completion_tokens": count, "total_tokens": words + count}
        ending = _frame({"choices": [{"index": 0, "finish_reason": "length", "delta": {}, "text": ""}], "usage": usage})
        if self.first:
            await writer.drain()
            await asyncio.sleep(self.first)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        for index in range(count):
            writer.write(token)
            if self.pace and index + 1 < count:
                await writer.drain()
                # relative to the schedule, so that delays do not add up
                await asyncio.sleep(max(begin + (index + 1) * self.pace - loop.time(), 0))
        writer.write(ending + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        await writer.drain()
        return headers.get(b"connection", b"").lower() != b"close"


@asynccontextmanager
async def null_server_process(*, pace: Seconds = 0.0, first: Seconds = 0.0, chat: bool = False) -> AsyncIterator[str]:
    """Run the server in its own process and yield its address.

    It does not compete with the client for one core. A signal waits neither for its start nor for its end.
    """
    # -P: modules are never taken from the folder of the user, which may hold a json.py of other people
    command = [sys.executable, "-P", "-m", "glmplan.measure.overhead", str(pace), str(first), str(int(chat))]
    root = str(Path(__file__).parents[2])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths}
    )
    assert process.stdin is not None and process.stdout is not None
    late = threading.Timer(_PATIENCE, process.kill)
    late.start()
    try:
        url = (await asyncio.to_thread(process.stdout.readline)).decode().strip()
        late.cancel()
        yield url
    finally:
        late.cancel()
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


async def _serve_until_stdin_closes(pace: float, first: float, chat: bool) -> None:
    async with NullServer(pace=pace, first=first, chat=chat) as server:
        sys.stdout.write(server.url + "\n")
        sys.stdout.flush()
        gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), gone.set)
        await gone.wait()


def _frame(value: object) -> bytes:
    return _chunk(b"data: " + json.dumps(value).encode() + b"\n\n")


def _chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


if __name__ == "__main__":
    asyncio.run(_serve_until_stdin_closes(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3] == "1"))


@dataclass(frozen=True, slots=True)
class Overhead:
    """Client overhead of the measured values."""

    streams: int  # concurrency
    ttft: Seconds  # mean
    tpot: Seconds  # mean
    cpu: float  # CPU seconds per second
    faults: int  # failed requests, although nothing can fail

    def share(self, ttft_ms: Milliseconds, tpot_ms: Milliseconds) -> Ratio:
        """Return the larger share of the overhead in two measured means.

        Examples
        --------
        >>> Overhead(8, 0.001, 0.0002, 0.1, 0).share(100.0, 10.0)
        0.02
        """
        shares = [o * 1e3 / m for o, m in ((self.ttft, ttft_ms), (self.tpot, tpot_ms)) if m > 0]
        return max(shares, default=0.0)


async def measure_overhead(
    streams: int, *, chat: bool = False, together: bool = False, tokens: TokenCount = 40, pace: Seconds = 0.025
) -> Overhead:
    """Return the client's overhead against a null server in its own process.

    `together` starts all streams at once, as a burst does, instead of over the length of an answer. The result includes
    the null server's delays: it is an upper bound.
    """
    async with (
        null_server_process(pace=pace, chat=chat) as url,
        Client(Endpoint(url, "null", chat=chat)) as client,
    ):
        await client.send("warm up", 2)
        apart = 0.0 if together else tokens * pace / streams

        async def one(number: int) -> RequestRecord:
            await asyncio.sleep(number * apart)
            return await client.send("a b c d", tokens)

        begin, busy = time.perf_counter(), time.process_time()
        records = await asyncio.gather(*(one(number) for number in range(streams)))
        wall, busy = time.perf_counter() - begin, time.process_time() - busy
    done = [record for record in records if record.outcome is Outcome.DONE]
    count = max(len(done), 1)
    return Overhead(
        streams,
        sum(record.ttft for record in done) / count,
        max(sum(record.tpot or 0.0 for record in done) / count - pace, 0.0),
        busy / max(wall, 1e-9),
        len(records) - len(done),
    )
