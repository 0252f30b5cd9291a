"""Replay recorded traffic on a real server made here: step times are calibrated on the spot, then simulated.

A llama.cpp server with random weights is asked alone and by several users, and a step time is fitted to these steps.
Then requests are sent at the times of published traces (`tests/data/traces`), and the same requests are simulated with
that step time, as they were sent. The small server cannot answer what the recorded ones did: all lengths of a trace are
multiplied by one factor, so that its longest request has `LONGEST` tokens, and all gaps between arrivals by another, so
that a share of what the server can answer is offered. Requests of one instant are sent a little apart in the order of
the trace: nobody could say else which of them a server takes first. Steps are asked for before and after each trace,
and both decide its step time, because machines move. Prints means of TTFT, TPOT and E2E of both and exits with 1 where
one differs by more than `--within`; the last line says how far the machine moved from the begin to the end.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from llama_server import llama_server
from random_gguf import Shape, write
from scipy.optimize import nnls

from glmplan.measure.client import Client, Endpoint
from glmplan.measure.prompts import PromptMaker, prepare_prompts
from glmplan.measure.request_result import Outcome, RequestRecord
from glmplan.serving.engine.settings import KvPool, scheduler_settings
from glmplan.serving.engine.step_table import StepTable
from glmplan.serving.service import Service
from glmplan.serving.simulate import simulate
from glmplan.serving.traffic.spec import Traffic
from glmplan.serving.traffic.traces import read_trace

SHAPE = Shape(embed=512, layers=8, heads=8, kv_heads=8, feed_forward=1408)
SLOTS, CONTEXT = 8, 2048
#: prompts [token] that one user sends alone; users who ask at the same time, and their prompts [token]
ALONE = (16, 64, 256, 768)
TOGETHER = ((2, 16), (4, 16), (2, 256), (4, 256), (8, 128), (8, 16))
#: traces, and which share of what the server can answer each offers [-]
TRACES = {"azure-2023-conv.csv": 0.3, "azure-2023-code.csv": 0.5, "mooncake-conversation.jsonl": 0.7}
#: longest request of a trace when its lengths are scaled, and the least that is sent [token]
LONGEST, LEAST = 1000, 4
#: requests that a trace gives one instant are sent in its order so far apart, and never nearer than that [s]
APART = 0.05
#: answers of calibration steps [token]
_ANSWER = 32
#: terms of a step time, as `StepTable.affine` names them; `single` and `prompt` stand in the table beside
_TERMS = ("base", "single", "per_request", "per_context_token", "prompt", "per_prefill_token", "per_prefill_square")
_RECORDED = Path(__file__).parents[1] / "tests" / "data" / "traces"


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


async def closed(
    client: Client, maker: PromptMaker, users: int, prompt: int, each: int, chance: random.Random
) -> list[RequestRecord]:
    """Users who send the next request when the last is answered; the first of each is not counted."""

    async def user() -> list[RequestRecord]:
        return [await client.send(maker.make(prompt, chance), _ANSWER, prompt_tokens=prompt) for _ in range(each + 1)]

    found = await asyncio.gather(*(user() for _ in range(users)))
    return [one for records in found for one in records[1:]]


@dataclass(frozen=True)
class Fitted:
    """A step time: of what it consists [s], and the largest share by which a calibration step is off [-]"""

    terms: dict[str, float]
    worst: float

    def table(self) -> StepTable:
        """As the simulator reads it."""
        terms = dict(self.terms)
        single, prompt = terms.pop("single"), terms.pop("prompt")
        table = StepTable.affine(**terms, max_requests=1024)
        decode, extra = table.decode.copy(), table.extra + prompt
        decode[1] += single
        extra[1] -= single  # with a prompt beside it one request is not the only row
        return replace(table, decode=decode, extra=extra)


@dataclass(frozen=True)
class Steps:
    """Calibration steps: what each held, its time [s], and the requests of the last"""

    rows: list[tuple[float, ...]]
    times: list[float]
    last: list[RequestRecord]

    def fitted(self, other: Steps) -> Fitted:
        """A step time for what lies between these steps and others."""
        times = np.array(self.times + other.times)
        matrix = np.array(self.rows + other.rows, dtype=float) / times[:, None]
        terms, _ = nnls(matrix, np.ones(len(times)))
        return Fitted(dict(zip(_TERMS, terms.tolist(), strict=True)), float(np.abs(matrix @ terms - 1).max()))


async def calibrated(client: Client, maker: PromptMaker, each: int, chance: random.Random) -> Steps:
    """Steps of one and of several users.

    A processor multiplies one row with other kernels than several, so a step of one request has a term of its own, as
    has what a prompt costs whatever its length. Gaps between tokens in which the prompt of another user was computed
    are no decoding steps and do not count.
    """
    rows: list[tuple[float, ...]] = []
    times: list[float] = []
    for users, prompt in [(1, one) for one in ALONE] + list(TOGETHER):
        found = await closed(client, maker, users, prompt, each, chance)
        first = Means.of(found).ttft  # stops where a request failed
        if users == 1:
            rows.append((1, 0, 0, 0, 1, prompt, prompt * prompt / 2))
            times.append(first)
        gaps = np.array([gap for one in found for gap in one.gaps])
        rows.append((1, users == 1, users, users * (prompt + _ANSWER / 2), 0, 0, 0))
        times.append(float(gaps[gaps < 1.5 * np.median(gaps)].mean()))
    return Steps(rows, times, found)


def write_trace(path: Path, requests: list[tuple[float, int, int]]) -> None:
    """Arrivals [s] and lengths [token] as the simulator reads them."""
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("arrival_s", "input_tokens", "output_tokens"))
        rows.writerows((f"{arrival:.6f}", *lengths) for arrival, *lengths in requests)


def scaled(path: Path, folder: Path, fitted: Fitted, load: float, requests: int) -> tuple[Path, str]:
    """The first requests of a trace with lengths and times that fit the server, and in words how they were scaled."""
    recorded = list(islice(read_trace(path), requests))
    shrink = min(LONGEST / max(one.input + one.output for one in recorded), 1.0)
    lengths = [(max(round(one.input * shrink), LEAST), max(round(one.output * shrink), 1)) for one in recorded]
    terms = fitted.terms
    # what a request keeps the server busy with while half of the slots decode
    token = terms["base"] / (SLOTS / 2) + terms["per_request"]
    busy = sum(terms["prompt"] + terms["per_prefill_token"] * prompt + answer * token for prompt, answer in lengths)
    slower = busy / load / recorded[-1].arrival
    out = folder / f"{path.stem}.csv"
    at, arrivals = -APART, list[float]()
    for one in recorded:
        at = max(one.arrival * slower, at + APART)
        arrivals.append(at)
    write_trace(out, [(at, *pair) for at, pair in zip(arrivals, lengths, strict=True)])
    return out, f"{path.name}: {len(recorded)} requests, lengths × {shrink:.3g}, gaps × {slower:.3g}"


async def served(client: Client, maker: PromptMaker, path: Path, chance: random.Random) -> Means:
    """Send a trace to the server, each request at its time; its arrivals become those at which they were sent."""
    begin = asyncio.get_running_loop().time()

    async def one(row: dict[str, str]) -> RequestRecord:
        prompt = maker.make(int(row["input_tokens"]), chance)
        await asyncio.sleep(max(begin + float(row["arrival_s"]) - asyncio.get_running_loop().time(), 0.0))
        return await client.send(prompt, int(row["output_tokens"]), prompt_tokens=int(row["input_tokens"]))

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    done = list(await asyncio.gather(*(one(row) for row in rows)))
    first = min(one.start for one in done)
    sent = sorted(zip((one.start - first for one in done), rows, strict=True), key=lambda pair: pair[0])
    write_trace(path, [(at, int(row["input_tokens"]), int(row["output_tokens"])) for at, row in sent])
    return Means.of(done)


def replayed(path: Path, fitted: Fitted) -> Means:
    """Simulate a trace with a step time."""
    settings = scheduler_settings("llama.cpp", max_num_seqs=SLOTS, max_num_batched_tokens=2048, max_model_len=CONTEXT)
    service = Service(fitted.table(), KvPool(SLOTS * CONTEXT, 1), settings)
    found = simulate(service, Traffic(kind="trace", file=str(path)), requests=1 << 40).summary
    return Means(*(found[f"{name}_mean_ms"] * 1e-3 for name in ("ttft", "tpot", "e2e")))


async def replays(url: str, folder: Path, *, requests: int, each: int, within: float) -> bool:
    """Calibrate, send and replay; whether every mean came within a share."""
    chance = random.Random(0)  # one for all, so that no prompt comes twice and is found in the cache
    async with Client(Endpoint(url, "random")) as client:
        maker = await prepare_prompts(client)
        begin = before = await calibrated(client, maker, each, chance)
        print(f"{'load':>6}{'':14}{'TTFT ms':>10}{'TPOT ms':>10}{'E2E ms':>10}")
        good = True
        for name, load in TRACES.items():
            path, how = scaled(_RECORDED / name, folder, before.fitted(before), load, requests)
            real = await served(client, maker, path, chance)
            after = await calibrated(client, maker, each, chance)
            fitted, before = before.fitted(after), after
            ours = replayed(path, fitted)
            print(how)
            print("step time: " + ", ".join(f"{name} {value:.3g} s" for name, value in fitted.terms.items()))
            print(f"of the calibration steps before and after it is off by {fitted.worst:.1%} at most")
            apart = [getattr(ours, one) / getattr(real, one) - 1.0 for one in ("ttft", "tpot", "e2e")]
            for word, one in (("measured", real), ("replayed", ours)):
                print(f"{load:6.0%}  {word:12}{one.ttft * 1e3:10.1f}{one.tpot * 1e3:10.2f}{one.e2e * 1e3:10.0f}")
            print(f"{'':6}  {'apart':12}" + "".join(f"{one:+10.1%}" for one in apart), flush=True)
            good = good and all(abs(one) <= within for one in apart)
        first, last = Means.of(begin.last), Means.of(before.last)
        moved = {name: getattr(last, name) / getattr(first, name) - 1.0 for name in ("ttft", "tpot", "e2e")}
        said = ", ".join(f"{name.upper()} {one:+.1%}" for name, one in moved.items())
        print(f"the machine meanwhile, {TOGETHER[-1][0]} users at the begin and at the end: {said}")
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=75, help="requests of each trace")
    parser.add_argument("--each", type=int, default=2, help="requests of each user of a calibration step")
    parser.add_argument("--within", type=float, default=0.05, help="share by which a mean may differ")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        write(Path(place) / "dense.gguf", SHAPE)
        with llama_server(Path(place) / "dense.gguf", slots=SLOTS, context=CONTEXT, unified=True) as (address, _):
            asked = replays(address, Path(place), requests=chosen.requests, each=chosen.each, within=chosen.within)
            sys.exit(0 if asyncio.run(asked) else 1)
