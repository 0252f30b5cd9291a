"""What llama.cpp's own server finds of a prompt, in its slots and in host memory, token by token."""

from __future__ import annotations

import json
import random
import sys
import urllib.request
from collections import deque
from pathlib import Path

import pytest

pytest.importorskip("xllamacpp", reason="the real server comes from the package xllamacpp")
sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

from llama_server import llama_server
from random_gguf import Shape, write

from glmplan.simulation.engine.in_order import Slots
from glmplan.simulation.traffic.request import Request

_SYSTEM, _CONVERSATIONS = 25, 5


def _asked(url: str, prompt: list[int], answer: int) -> tuple[list[int], int]:
    """The answer of a server, and how much of the prompt it did not compute [token]"""
    body = {"prompt": prompt, "n_predict": answer, "ignore_eos": True, "return_tokens": True, "temperature": 0.0}
    asked = urllib.request.Request(f"{url}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=120) as response:
        told = json.loads(response.read())
    return told["tokens"], told["timings"]["cache_n"]


@pytest.mark.parametrize("count", [2, 3])
def test_turns_of_conversations_find_what_the_real_server_finds(count, tmp_path):
    """More conversations than slots, which all begin alike: slots are chosen, lost and restored."""
    write(tmp_path / "model.gguf", Shape(embed=128, layers=2, heads=4, kv_heads=4, feed_forward=256))
    chance = random.Random(count)

    def text(tokens: int) -> list[int]:
        return [chance.randrange(20, 250) for _ in range(tokens)]

    system = text(_SYSTEM)
    said = {name: system + text(chance.randrange(30, 150)) for name in range(_CONVERSATIONS)}
    slots, found = Slots(count, reuse=True, kept=1e6), []
    with llama_server(tmp_path / "model.gguf", slots=count, context=1024) as (address, _):
        for number in range(40):
            name = chance.randrange(_CONVERSATIONS)
            prompt = said[name]
            answer, real = _asked(address.removesuffix("/v1"), prompt, chance.randrange(3, 12))
            runs = (("system", _SYSTEM), (name, len(prompt) - _SYSTEM))
            request = Request(number, float(number), len(prompt), len(answer), runs=runs)
            slots.assign(deque([request]))
            found.append((request.done, real))
            request.finish = number + 0.5
            slots.leave([request], deque())
            said[name] = prompt + answer + text(chance.randrange(2, 60))
    assert [ours for ours, _ in found] == [real for _, real in found]
    assert sum(real > _SYSTEM for _, real in found) > 20 and any(real == _SYSTEM for _, real in found)
