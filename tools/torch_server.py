"""A loop in PyTorch behind the OpenAI interface: random weights of a Llama, every running request a token in each step.

It is no engine: one step decodes all requests at once with a cache of fixed length, prompts run alone before it. It is
there to measure a server on a machine for which no engine is at hand.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from validate_vllm import CONFIG

from glmplan.measure.overhead import NullServer

#: requests that decode together, and tokens that each may have [-]
SLOTS, LONGEST = 64, 1024


def config(large: bool) -> dict[str, object]:
    """Shape of the model: some 1.4 billion weights for a GPU, 35 million for a processor."""
    if not large:
        return dict(CONFIG)
    shape = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 20, "num_attention_heads": 16}
    return CONFIG | shape | {"num_key_value_heads": 4, "head_dim": 128}


class Model:
    """The weights and the cache."""

    def __init__(self, torch: Any, shape: dict[str, Any], device: str) -> None:
        self.torch, self.device = torch, device
        self.heads, self.kv, self.dim = shape["num_attention_heads"], shape["num_key_value_heads"], shape["head_dim"]
        wide, inner = shape["hidden_size"], shape["intermediate_size"]
        self.embedding = self._matrix(shape["vocab_size"], wide)
        self.head = self._matrix(shape["vocab_size"], wide)
        q, kv = self.heads * self.dim, self.kv * self.dim
        sizes = ((q + 2 * kv, wide), (wide, q), (2 * inner, wide), (wide, inner))
        self.layers = [tuple(self._matrix(*size) for size in sizes) for _ in range(shape["num_hidden_layers"])]
        self.parts = (q, kv, kv)
        self.cache = torch.zeros(
            len(self.layers), 2, SLOTS, self.kv, LONGEST, self.dim, device=device, dtype=torch.bfloat16
        )

    def _matrix(self, rows: int, columns: int) -> Any:
        made = self.torch.randn(rows, columns, device=self.device, dtype=self.torch.bfloat16)
        return made / columns**0.5

    def run(self, tokens: Any, slots: Any, places: Any) -> Any:
        """The next token of each row of `tokens`, (requests, new); `places` are their places, likewise."""
        torch = self.torch
        x = self.embedding[tokens]
        count, new = tokens.shape
        longest = int(places.max()) + 1
        seen = torch.arange(longest, device=self.device)[None, None] <= places[:, :, None]
        for layer, (qkv, out, up, down) in enumerate(self.layers):
            normal = torch.nn.functional.rms_norm(x, (x.shape[-1],))
            query, key, value = (normal @ qkv.T).split(self.parts, dim=-1)
            for which, held in enumerate((key, value)):
                self.cache[layer, which, slots[:, None], :, places] = held.view(count, new, self.kv, self.dim)
            keys, values = (self.cache[layer, which, slots, :, :longest] for which in (0, 1))
            query = query.view(count, new, self.heads, self.dim).transpose(1, 2)
            found = torch.nn.functional.scaled_dot_product_attention(
                query, keys, values, attn_mask=seen[:, None], enable_gqa=self.heads != self.kv
            )
            x = x + found.transpose(1, 2).reshape(count, new, -1) @ out.T
            gate, rest = (torch.nn.functional.rms_norm(x, (x.shape[-1],)) @ up.T).chunk(2, dim=-1)
            x = x + (torch.nn.functional.silu(gate) * rest) @ down.T
        return (x[:, -1] @ self.head.T).argmax(dim=-1)


class Loop:
    """Runs the model in a thread of its own; requests come and go between steps."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.waiting: list[dict[str, Any]] = []
        self.running: dict[int, dict[str, Any]] = {}
        self.change = threading.Condition()
        threading.Thread(target=self._forever, daemon=True).start()

    def ask(self, prompt: list[int], count: int, said: Any) -> None:
        """Queue a request; `said` is called after each of its tokens."""
        with self.change:
            self.waiting.append({"prompt": prompt, "left": count, "said": said})
            self.change.notify()

    def _forever(self) -> None:
        while True:
            with self.change:
                while not self.waiting and not self.running:
                    self.change.wait()
                free = [slot for slot in range(SLOTS) if slot not in self.running]
                begun = {slot: self.waiting.pop(0) for slot, _ in zip(free, list(self.waiting), strict=False)}
            self.step(begun)

    def step(self, begun: dict[int, dict[str, Any]]) -> None:
        """Prompts of those that begin, one after another, then a token for everybody else."""
        torch, device = self.model.torch, self.model.device
        before = sorted(self.running)
        with torch.inference_mode():
            for slot, one in begun.items():
                tokens = torch.tensor([one["prompt"]], device=device)
                places = torch.arange(tokens.shape[1], device=device)[None]
                one["token"] = int(self.model.run(tokens, torch.tensor([slot], device=device), places)[0])
                one["place"] = tokens.shape[1]
                self._told(slot, one)
            if before:
                rows = [self.running[slot] for slot in before]
                tokens = torch.tensor([[one["token"]] for one in rows], device=device)
                places = torch.tensor([[one["place"]] for one in rows], device=device)
                found = self.model.run(tokens, torch.tensor(before, device=device), places).tolist()
                for slot, one, token in zip(before, rows, found, strict=True):
                    one["token"], one["place"] = token, one["place"] + 1
                    self._told(slot, one)

    def _told(self, slot: int, one: dict[str, Any]) -> None:
        one["left"] -= 1
        self.running[slot] = one
        if one["left"] <= 0 or one["place"] + 1 >= LONGEST:
            del self.running[slot]
        one["said"](slot not in self.running)


class TorchServer(NullServer):
    """The protocol of the empty server, with the tokens of a model."""

    def __init__(self, loop: Loop, vocabulary: int) -> None:
        super().__init__()
        self.loop, self.vocabulary = loop, vocabulary

    async def _answer(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        lines = head.split(b"\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(b":") for line in lines[1:])}
        body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
        if not lines[0].startswith(b"POST"):
            found = json.dumps({"object": "list", "data": [{"id": "random", "object": "model"}]}).encode()
            if b"/models" not in lines[0]:
                writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                return True
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
            writer.write(f"Content-Length: {len(found)}\r\n\r\n".encode() + found)
            return True
        asked = json.loads(body)
        given = asked.get("prompt", "x")
        words = given if isinstance(given, list) else [hash(word) for word in str(given).split() or ["x"]]
        prompt = [int(word) % self.vocabulary for word in words][: LONGEST // 2]
        count = min(int(asked.get("max_tokens", 16)), LONGEST - len(prompt) - 1)
        here, told = asyncio.get_running_loop(), asyncio.Queue[bool]()
        self.loop.ask(prompt, count, lambda last: here.call_soon_threadsafe(told.put_nowait, last))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        sent, last = 0, False
        while not last:
            last = await told.get()
            sent += 1
            choice = {"index": 0, "text": "x ", "finish_reason": None}
            writer.write(_chunk({"choices": [choice]}))
            await writer.drain()
        usage = {"prompt_tokens": len(prompt), "completion_tokens": sent, "total_tokens": len(prompt) + sent}
        writer.write(_chunk({"choices": [{"index": 0, "text": "", "finish_reason": "length"}], "usage": usage}))
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await writer.drain()
        return headers.get(b"connection", b"").lower() != b"close"


def _chunk(value: object) -> bytes:
    data = b"data: " + json.dumps(value).encode() + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@contextmanager
def torch_server(path: Path, *, device: str, log: Path) -> Iterator[str]:
    """Run it in a process of its own and yield its base address."""
    root = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with log.open("wb") as heard:
        process = subprocess.Popen(
            [sys.executable, __file__, str(path), device], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=heard,
            env=os.environ | {"PYTHONPATH": paths},
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            url = process.stdout.readline().decode().strip()
            if not url:
                raise SystemExit(f"the loop did not start; its last words:\n{log.read_text()[-2000:]}")
            yield url
        finally:
            process.stdin.close()
            process.stdout.close()
            process.wait(30)


async def _serve(path: Path, device: str) -> None:
    import torch

    shape = json.loads(path.read_text())
    loop = Loop(Model(torch, shape, device))
    async with TorchServer(loop, shape["vocab_size"]) as server:
        print(server.url, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(_serve(Path(sys.argv[1]), sys.argv[2]))
