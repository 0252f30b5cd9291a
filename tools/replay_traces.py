"""Replay recorded traffic of a real server made here: step times are calibrated on the spot, then simulated.

A llama.cpp server with random weights is asked alone and by several users; its step time is fitted to that, as
`glmplan simulate --step-time` takes it. Then requests are sent at the times of a trace, and the same trace is simulated
with the fitted step time. Prints means of TTFT, TPOT and E2E of both and exits with 1 where one differs by more than
`--within`. The last calibration step is asked for twice, before and after the traces: how far these two differ is how
far the machine itself moved meanwhile, and no replay can be expected to be nearer.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llama_server import llama_server
from random_gguf import Shape, write

from glmplan.measure.client import Client, Endpoint
from glmplan.measure.prompts import PromptMaker, prepare_prompts
from glmplan.measure.request_result import Outcome, RequestRecord
from glmplan.serving.engine.settings import KvPool, scheduler_settings
from glmplan.serving.engine.step_table import StepTable
from glmplan.serving.service import Service
from glmplan.serving.simulate import simulate
from glmplan.serving.traffic.spec import Traffic

SHAPE = Shape(embed=512, layers=8, heads=8, kv_heads=8, feed_forward=1408)
SLOTS, CONTEXT = 8, 2048
#: prompts [token] that one user sends alone, and users who send short ones together
ALONE, TOGETHER = (16, 64, 256, 768), (2, 4, 8)
#: share of what the server can answer that each trace offers [-]
LOADS = (0.3, 0.5, 0.7)


@dataclass(frozen=True)
class Means:
    """Means of finished requests, [s]"""

    ttft: float
    tpot: float
    e2e: float

    @classmethod
    def of(cls, done: list[RequestRecord]) -> Means:
        """Those of measured requests; all must have finished."""
        bad = [one for one in done if one.outcome is not Outcome.DONE]
        if bad:
            sys.exit(f"{len(bad)} of {len(done)} requests failed: {bad[0].outcome} {bad[0].detail}")
        later = [one.tpot for one in done if one.tpot is not None]
        first, whole = (statistics.mean(getattr(one, name) for one in done) for name in ("ttft", "e2e"))
        return cls(first, statistics.mean(later), whole)


async def closed(client: Client, maker: PromptMaker, users: int, tokens: tuple[int, int], each: int) -> Means:
    """Users who send the next request when the last is answered; the first of each is not counted."""
    chance = random.Random(users)

    async def user() -> list[RequestRecord]:
        return [
            await client.send(maker.make(tokens[0], chance), tokens[1], prompt_tokens=tokens[0])
            for _ in range(each + 1)
        ]

    found = await asyncio.gather(*(user() for _ in range(users)))
    return Means.of([one for records in found for one in records[1:]])


async def calibrated(client: Client, maker: PromptMaker, each: int) -> tuple[dict[str, float], Means]:
    """Arguments of `StepTable.affine`, fitted to steps of one and of several users, and the last step."""
    rows: list[tuple[float, ...]] = []
    times: list[float] = []
    for prompt in ALONE:
        found = await closed(client, maker, 1, (prompt, 32), each)
        rows += [(1, 0, 0, prompt, prompt * prompt / 2), (1, 1, prompt + 16, 0, 0)]
        times += [found.ttft, found.tpot]
    for users in TOGETHER:
        found = await closed(client, maker, users, (16, 64), each)
        # of a round of 64 steps one is joined by a prompt of each other user
        joined = (users - 1) * 16 / 64
        rows.append((1, users, users * 48, joined, 0))
        times.append(found.tpot)
    weights = 1.0 / np.array(times)
    fitted = np.linalg.lstsq(np.array(rows) * weights[:, None], np.array(times) * weights, rcond=None)[0]
    names = ("base", "per_request", "per_context_token", "per_prefill_token", "per_prefill_square")
    return {name: max(float(one), 1e-12) for name, one in zip(names, fitted, strict=True)}, found


def trace(folder: Path, table: dict[str, float], load: float, requests: int, seed: int) -> Path:
    """Arrivals as independent as users are, with lengths that differ, at a share of what the server can answer."""
    chance = random.Random(seed)
    lengths = [(chance.choice((32, 64, 128, 256)), chance.choice((16, 32, 64))) for _ in range(requests)]
    busy = statistics.mean(
        table["per_prefill_token"] * prompt + answer * (table["base"] / (SLOTS / 2) + table["per_request"])
        for prompt, answer in lengths
    )
    path, now = folder / f"trace-{load}.csv", 0.0
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(("arrival_s", "input_tokens", "output_tokens"))
        for prompt, answer in lengths:
            out.writerow((f"{now:.4f}", prompt, answer))
            now += chance.expovariate(load / busy)
    return path


async def served(client: Client, maker: PromptMaker, path: Path) -> Means:
    """Send a trace to the server, each request at its time."""
    chance, begin = random.Random(1), asyncio.get_running_loop().time()

    async def one(row: dict[str, str]) -> RequestRecord:
        prompt = maker.make(int(row["input_tokens"]), chance)
        await asyncio.sleep(max(begin + float(row["arrival_s"]) - asyncio.get_running_loop().time(), 0.0))
        return await client.send(prompt, int(row["output_tokens"]), prompt_tokens=int(row["input_tokens"]))

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return Means.of(list(await asyncio.gather(*(one(row) for row in rows))))


def replayed(path: Path, table: dict[str, float]) -> Means:
    """Simulate a trace with a step time."""
    settings = scheduler_settings("llama.cpp", max_num_seqs=SLOTS, max_num_batched_tokens=2048, max_model_len=CONTEXT)
    service = Service(StepTable.affine(**table, max_requests=1024), KvPool(SLOTS * CONTEXT, 1), settings)
    found = simulate(service, Traffic(kind="trace", file=str(path)), requests=1 << 40).summary
    return Means(*(found[f"{name}_mean_ms"] * 1e-3 for name in ("ttft", "tpot", "e2e")))


async def replays(url: str, folder: Path, *, requests: int, each: int, within: float) -> bool:
    """Calibrate, record and replay; whether every mean came within a share."""
    async with Client(Endpoint(url, "random")) as client:
        maker = await prepare_prompts(client)
        table, before = await calibrated(client, maker, each)
        print("step time: " + ", ".join(f"{name} {value:.3g} s" for name, value in table.items()))
        print(f"{'load':>6}{'':14}{'TTFT ms':>10}{'TPOT ms':>10}{'E2E ms':>10}")
        good = True
        for number, load in enumerate(LOADS):
            path = trace(folder, table, load, requests, number)
            real, ours = await served(client, maker, path), replayed(path, table)
            apart = [getattr(ours, name) / getattr(real, name) - 1.0 for name in ("ttft", "tpot", "e2e")]
            for word, one in (("measured", real), ("replayed", ours)):
                print(f"{load:6.0%}  {word:12}{one.ttft * 1e3:10.1f}{one.tpot * 1e3:10.2f}{one.e2e * 1e3:10.0f}")
            print(f"{'':6}  {'apart':12}" + "".join(f"{one:+10.1%}" for one in apart))
            good = good and all(abs(one) <= within for one in apart)
        after = await closed(client, maker, TOGETHER[-1], (16, 64), each)
        moved = {name: getattr(after, name) / getattr(before, name) - 1.0 for name in ("ttft", "tpot", "e2e")}
        said = ", ".join(f"{name.upper()} {one:+.1%}" for name, one in moved.items())
        print(f"the machine meanwhile, {TOGETHER[-1]} users before and after: {said}")
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200, help="requests of each trace")
    parser.add_argument("--each", type=int, default=8, help="requests of each user of a calibration step")
    parser.add_argument("--within", type=float, default=0.05, help="share by which a mean may differ")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        write(Path(place) / "dense.gguf", SHAPE)
        with llama_server(Path(place) / "dense.gguf", slots=SLOTS, context=CONTEXT, unified=True) as (address, _):
            asked = replays(address, Path(place), requests=chosen.requests, each=chosen.each, within=chosen.within)
            sys.exit(0 if asyncio.run(asked) else 1)
