"""A server process that does harm: `python hostile_server.py HABIT` prints its address and serves until it is killed.

It behaves well but for one habit, so that the client gets as far as the habit lets it.
"""

import asyncio
import base64
import gzip
import html
import json
import sys
from urllib.parse import quote

ANSWERS_BEFORE = 1  # the first answer shows the client what the server takes; after it some habits begin
ZEROS = gzip.compress(bytes(256 << 20), 9)


def event(value):
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def token(text="x ", finish=None, **more):
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}], **more})


def page(body, status="200 OK", kind="application/json", *more):
    body = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close", *more]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
OPEN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
DEEP = "[" * 100_000
LONG = "9" * 400


def writings(secret):
    """A secret as servers, proxies and loggers write it."""
    yield secret
    yield from (secret[:12], secret[5:], secret.upper(), quote(secret, safe=""), html.escape(secret), " ".join(secret))
    yield from (base64.b64encode(f"{'x' * shift}{secret}".encode()).decode() for shift in range(3))
    yield from ("".join(f"\\u{ord(letter):04x}" for letter in secret), secret.encode().hex(), "\x1b[31m".join(secret))


class Hostile:
    def __init__(self, habit):
        self.habit, _, self.other = habit.partition("=")
        self.posts, self.spoken = 0, 0

    async def serve(self, reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode(errors="replace").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
            content = await reader.readexactly(int(headers.get("content-length", 0)))
            method, path, _ = lines[0].split(" ", 2)
            if method == "POST" and path.endswith("completions"):
                self.posts += 1
                await self.answer(writer, json.loads(content), headers)
            else:
                await self.tell(writer, path, headers)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def flood(self, writer, piece, pause=0.0):
        while True:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)

    def secrets(self, headers):
        """What came in the header: the key, and what stands in a login."""
        kind, _, value = headers.get("authorization", "").partition(" ")
        if kind == "Basic":
            user, _, password = base64.b64decode(value).decode().partition(":")
            return [password, f"{user}:{password}", value]
        return [value] if value else []

    def said(self, headers):
        """One writing after another of what must not be told."""
        found = [one for secret in self.secrets(headers) for one in writings(secret)] or ["nothing"]
        self.spoken += 1
        return found[self.spoken % len(found)]

    async def tell(self, writer, path, headers):
        habit, models = self.habit, {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 8192, "root": "org/M"}]}
        if habit == "endless-models" and path.endswith("/models"):
            writer.write(OPEN)
            await self.flood(writer, b"[" * 65536)
        if habit == "endless-metrics" and path == "/metrics":
            writer.write(OPEN)
            await self.flood(writer, b"vllm:num_requests_running 1\n" * 1000)
        if habit == "bomb" and not path.endswith("/tokenize"):
            writer.write(page(ZEROS, "200 OK", "application/json", "Content-Encoding: gzip"))
            return
        if habit == "drip" and not path.endswith("/tokenize"):
            writer.write(b"HTTP/1.1 200 OK\r\n")
            await self.flood(writer, b"X: y\r\n", 1.0)
        if habit == "echo":
            said = self.said(headers)
            models["data"][0] |= {"root": f"org/{said}", "owned_by": said}
            models["data"] += [{"id": one} for secret in self.secrets(headers) for one in writings(secret)]
            if path == "/version":
                writer.write(page({"version": said}))
                return
        if habit == "markup":
            models["data"][0] |= {"root": "org/[red]M[/blue]\x1b]0;owned\x07 \x1b[8m hidden \u202e"}
            if path == "/version":
                writer.write(page({"version": "m[/red]\x1b[2J:smile:"}))
                return
        if habit == "odd" and path.endswith("/models"):
            writer.write(page('{"data": null}'))
            return
        if habit == "odd" and path in ("/get_server_info", "/props", "/slots", "/version"):
            writer.write(page({"/props": DEEP, "/slots": "null"}.get(path, f'{{"tp_size": {LONG}, "version": 1e999}}')))
            return
        if path.endswith("/models"):
            writer.write(page(models))
        elif path == "/metrics":
            wild = f"vllm:num_requests_running NaN\nvllm:num_preemptions_total 1e999\nvllm:x {LONG}\n"
            writer.write(page(wild if habit == "odd" else "vllm:num_requests_running 2\n", "200 OK", "text/plain"))
        else:
            writer.write(page({}, "404 Not Found"))

    async def answer(self, writer, asked, headers):
        habit, count = self.habit, asked["max_tokens"]
        prompt = str(asked.get("prompt") or asked["messages"][0]["content"])
        told = {"usage": {"prompt_tokens": len(prompt.split()) + 3, "completion_tokens": count}}
        learning = count <= 2  # the client finds out what the server takes and how it counts
        if habit == "endless-first" or (habit == "endless" and not learning):
            writer.write(STREAM)
            await self.flood(writer, token())
        if habit == "slow-endless" and not learning:
            writer.write(STREAM)
            await self.flood(writer, token(), 0.2)
        if habit == "pings" and not learning:
            writer.write(STREAM)
            await self.flood(writer, b": ping\n\n", 0.2)
        if habit == "elsewhere" and not learning:
            # whoever follows takes the key to another server
            writer.write(page("", "307 Temporary Redirect", "text/plain", f"Location: {self.other}/v1/completions"))
            return
        if habit == "html" and not learning:
            writer.write(page("<html>a proxy's page</html>", "200 OK", "text/html"))
            return
        if habit == "echo" and self.posts % 2 and not learning:
            said = self.said(headers)
            bodies = [page(f"no such key: {said}", "401 Unauthorized"), STREAM + event({"error": {"message": said}}),
                      STREAM + event(f"{{broken {said}".encode()), page(f"{'y' * 4088}{said}", "500 X")]  # fmt: skip
            writer.write(bodies[self.posts // 2 % len(bodies)])
            return
        if habit == "odd" and self.posts % 2 and not learning:
            far = "Retry-After: Fri, 31 Dec 999999999999 23:59:59 GMT"
            bodies = [
                page("", "429 Too Many Requests", "text/plain", far),
                page("", "503 X", "text/plain", f"Retry-After: {LONG}"),
                STREAM + event(b'{"data": null}'),
                STREAM + event(b'{"choices": ' + DEEP.encode() + b"}"),
                STREAM + event(f'{{"choices": [], "usage": {{"completion_tokens": {"9" * 5000}}}}}'.encode()),
                STREAM + token() + token("x", "length", usage={"prompt_tokens": int(LONG), "completion_tokens": 1}),
            ]
            writer.write(bodies[self.posts // 2 % len(bodies)])
            return
        if habit == "cut" and self.posts % 2 and not learning:
            # within an event: the stream ends, a chunk of the transfer is missing, the connection is reset
            half, long = token()[:-20], b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            whole = [STREAM + token() + half, long + b"Transfer-Encoding: chunked\r\n\r\nff\r\n" + token() + half,
                     long + b"Content-Length: 4000\r\n\r\n" + token() + half, STREAM + token() + b"da"]  # fmt: skip
            writer.write(whole[self.posts // 2 % len(whole)])
            await writer.drain()
            if self.posts % 4 == 3:
                await asyncio.sleep(0.02)
                writer.transport.abort()
            return
        if habit == "lies" and not learning:
            told["usage"]["prompt_tokens"] = 1_000_000
        times = 2 if habit == "doubles" and not learning else 1
        writer.write(STREAM + token() * (times * (count - 1)) + token("x", "length", **told) * times + event(b"[DONE]"))


async def main(habit):
    server = await asyncio.start_server(Hostile(habit).serve, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
