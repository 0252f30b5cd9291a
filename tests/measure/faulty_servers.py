"""Servers on raw local sockets that misbehave in one way each."""

import asyncio
import json
from contextlib import asynccontextmanager

#: What takes longer hangs; far beyond what anything here takes on a busy machine, [s]
HANGS = 300.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def event(value):
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def token(text="x ", finish=None, **more):
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}], **more})


def usage(prompt=8, answer=3):
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": answer}}


WHOLE = token() * 2 + token("x ", "length", **usage()) + event(b"[DONE]")


async def read_request(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
    )
    return head, await reader.readexactly(length)


@asynccontextmanager
async def server(behave, **options):
    """Run `behave(reader, writer, number)` for each connection; yields the base address."""
    count = 0
    held = set()

    async def serve(reader, writer):
        nonlocal count
        count += 1
        held.add(writer)
        try:
            await behave(reader, writer, count)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            held.discard(writer)
            writer.close()

    running = await asyncio.start_server(serve, "127.0.0.1", 0, **options)
    port = running.sockets[0].getsockname()[1]
    try:
        yield f"{'https' if 'ssl' in options else 'http'}://127.0.0.1:{port}/v1"
    finally:
        running.close()
        for writer in held:
            writer.transport.abort()
        await asyncio.sleep(0)


async def once(ready, act):
    """Act as soon as something is so, however long this machine takes to get there."""
    while not ready():
        await asyncio.sleep(0.01)
    act()


def answering(*parts, pause=0.0, stay=0.0):
    """Answer each request with parts, a pause after each, and stay connected for a while."""

    async def behave(reader, writer, number):
        await read_request(reader)
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)
        await asyncio.sleep(stay)

    return behave
