"""Replay recorded traffic on a real server made here: step times are calibrated on the spot, then simulated.

A llama.cpp server with random weights is asked alone and by several users: that says how far to stretch published
traces (`tests/data/traces`), whose requests are then sent at their times. The server logs every step with its rows; a
step time is fitted to the steps of this very replay, because machines move, and the same requests are simulated with
it, as they were sent. So what is compared is which requests share a step, wait and finish when, and nothing else. The
small server cannot answer what the recorded ones did: all lengths of a trace are multiplied by one factor, so that
its longest request has `LONGEST` tokens, and all gaps between arrivals by another, so that a share of what the server
can answer is offered. Requests of one instant are sent a little apart in the order of the trace: nobody could say
else which of them a server takes first. Slots are used in turn, so that the simulated server is made to begin with
those that the real one begins with. With `--passes` each trace is sent several times, with other texts of the same
lengths, because the server itself does not take the same time twice. Prints means of TTFT, TPOT and E2E of both and
exits with 1 where one, over all passes, differs by more than `--within`; the last line says how far the machine moved
from the begin to the end.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import random
import re
import statistics
import sys
import tempfile
from dataclasses import astuple, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from llama_server import llama_server
from random_gguf import Shape, write
from scipy.optimize import nnls

from glmplan.measure.client import Client, Endpoint, Outcome, RequestRecord
from glmplan.measure.prompts import PromptMaker, prepare_prompts
from glmplan.simulation.engine.settings import KvPool, scheduler_settings
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import Service, simulate
from glmplan.simulation.traffic.spec import Traffic
from glmplan.simulation.traffic.traces import read_trace

SHAPE = Shape(embed=512, layers=8, heads=8, kv_heads=8, feed_forward=1408)
SLOTS, CONTEXT = 8, 2048
#: prompts [token] that one user sends alone; users who ask at the same time, and their prompts [token]
ALONE = (16, 64, 256, 768)
TOGETHER = ((2, 16), (4, 16), (2, 256), (4, 256), (8, 16), (8, 128))
#: tokens of a step: llama-server's `--batch-size`
BATCH = 2048
#: traces, and which share of what the server can answer each offers [-]
TRACES = {"azure-2023-conv.csv": 0.3, "azure-2023-code.csv": 0.5, "mooncake-conversation.jsonl": 0.7}
#: longest request of a trace when its lengths are scaled, and the least that is sent [token]
LONGEST, LEAST = 1000, 4
#: requests that a trace gives one instant are sent in its order so far apart, and never nearer than that [s]
APART = 0.05
#: a step begins where results are asked for and ends at the next or where all slots are idle; in between the server
#: names slots that decode, with their context, and prompts that begin, with their lengths
_STEP = re.compile(
    r"^(\d+)\.(\d\d)\.(\d{3})\.(\d{3}) . "
    r"(?:srv +update_slots: (?:(?P<posting>posting NEXT_RESPONSE)|all slots are idle)"
    r"|slot +handle_last_: id +(?P<slot>\d+) .*slot decode token,.* n_tokens = (?P<context>\d+)"
    r"|srv +(?P<asked>server_strea): conv_id="
    r"|slot +operator\(\): id +(?P<started>\d+) .*new prompt,.* task\.n_tokens = (?P<prompt>\d+))",
    re.MULTILINE,
)
#: a request gets a slot
_SLOT = re.compile(r"slot launch_slot_: id +(\d+) .*processing task")
#: rounds in which steps are weighted anew, and no step counts as shorter than that [s]
_ROUNDS, _SHORTEST = 10, 1e-4
#: requests that put the simulated slots in order are done so long before the first of a trace [s]
_BEFORE = 60.0
#: answers of the requests before a trace [token]
_ANSWER = 32
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

    @classmethod
    def over(cls, passes: list[Means]) -> Means:
        """Means over passes of one trace."""
        return cls(*np.mean([astuple(one) for one in passes], axis=0))


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
    """A step time: its terms [s], the wait of a request before its first step [s], by which share steps are off [-]"""

    terms: np.ndarray
    front_end: float
    off: np.ndarray

    def table(self) -> StepTable:
        """As the simulator reads it: a time of its own for each number of decoding requests."""
        prompt, token, pair = self.terms[2 * SLOTS :]
        table = StepTable.affine(base=0.0, per_prefill_token=token, per_prefill_square=pair, max_requests=SLOTS)
        start, context = (np.concatenate([[0.0], one]) for one in (self.terms[:SLOTS], self.terms[SLOTS : 2 * SLOTS]))
        decode = start[:, None] + context[:, None] * table.context
        return replace(table, decode=decode, extra=table.extra + prompt)


@dataclass(frozen=True)
class Steps:
    """Steps: decoding requests and their contexts, prompts, their tokens and pairs of a token and a key; times [s]

    `waits`: from the arrival of a request at an idle server to its first step [s]
    `slots`: those that were used longest ago, as the first requests get them
    """

    rows: list[tuple[int, float, int, int, float]]
    times: list[float]
    waits: list[float]
    slots: list[int]

    def fitted(self) -> Fitted:
        """The step time whose squared errors, over the time that it says itself, are least.

        All steps together then take what they took: over measured times those that chance made slow would count for
        less, and all together would come out short.

        A processor multiplies one row with other kernels than several, so each number of decoding requests has its own
        time and its own slope over the context; numbers that are rare are drawn to their neighbours.
        """
        times = np.array(self.times)
        decoding, context, prompts, tokens, pairs = np.array(self.rows, dtype=float).T
        many = (decoding[:, None] == np.arange(1, SLOTS + 1)).astype(float)
        matrix = np.column_stack([many, many * context[:, None], prompts > 0, tokens, pairs])
        # second differences over the number of requests, as heavy as one step
        bend = np.diff(np.eye(SLOTS), 2, axis=0)
        nothing = np.zeros((len(bend), SLOTS))
        size = float(np.median(times)) ** -0.5
        smooth = np.column_stack([np.vstack([bend, nothing]), np.vstack([nothing, bend * float(context.mean())]),
                                  np.zeros((2 * len(bend), 3))])  # fmt: skip
        said = times
        for _ in range(_ROUNDS):
            weight = 1.0 / np.sqrt(np.maximum(said, _SHORTEST))
            terms, _ = nnls(np.vstack([matrix * weight[:, None], size * smooth]),
                            np.concatenate([times * weight, np.zeros(len(smooth))]))  # fmt: skip
            said = matrix @ terms
        return Fitted(terms, float(np.median(self.waits)), np.abs(said / times - 1))


def steps_of_log(text: str) -> Steps:
    """Steps of a server by its log: each says which slots decode and which prompts begin, with its time."""
    rows: list[tuple[int, float, int, int, float]] = []
    times: list[float] = []
    waits: list[float] = []
    left: dict[int, list[int]] = {}  # prompts under way: computed, and in all [token]
    begin, arrived, decoding = None, None, list[int]()
    for found in _STEP.finditer(text):
        minutes, seconds, milli, micro = (int(one) for one in found.group(1, 2, 3, 4))
        now = 60 * minutes + seconds + milli * 1e-3 + micro * 1e-6
        if found["slot"] is not None:
            decoding.append(int(found["context"]))
        elif found["asked"] is not None:
            arrived = arrived or now
        elif found["started"] is not None:
            left[int(found["started"])] = [0, int(found["prompt"])]
        else:
            if begin is not None and (decoding or left):
                room, parts = BATCH - len(decoding), list[tuple[int, int]]()
                for slot in sorted(left):
                    part = min(left[slot][1] - left[slot][0], room)
                    if part:
                        parts.append((left[slot][0], part))
                    room, left[slot][0] = room - part, left[slot][0] + part
                left = {slot: one for slot, one in left.items() if one[0] < one[1]}
                tokens = sum(part for _, part in parts)
                pairs = sum(part * (before + part / 2) for before, part in parts)
                mean = sum(decoding) / len(decoding) if decoding else 0.0
                rows.append((len(decoding), mean, len(parts), tokens, pairs))
                times.append(now - begin)
            if begin is None and arrived is not None and found["posting"]:
                waits.append(now - arrived)
            begin, arrived, decoding = (now if found["posting"] else None), None, []
    return Steps(rows, times, waits, list(dict.fromkeys([*map(int, _SLOT.findall(text)), *range(SLOTS)])))


async def asked(client: Client, maker: PromptMaker, each: int, chance: random.Random) -> Means:
    """Ask alone and with several users; means of the last and largest group."""
    for users, prompt in [(1, one) for one in ALONE] + list(TOGETHER):
        found = Means.of(await closed(client, maker, users, prompt, each, chance))  # stops where a request failed
    return found


@dataclass(frozen=True)
class Log:
    """What the server says of its steps"""

    file: Path

    async def since(self, place: int) -> Steps:
        """Steps since a place of the file, once the server is idle."""
        await asyncio.sleep(0.5)
        with self.file.open("rb") as file:
            file.seek(place)
            return steps_of_log(file.read().decode(errors="replace"))

    def end(self) -> int:
        """Where the file ends."""
        return self.file.stat().st_size


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
    # what a request keeps the server busy with while half of the slots decode
    half, (whole, each, _) = SLOTS // 2, fitted.terms[2 * SLOTS :]
    step = fitted.terms[half - 1] + fitted.terms[SLOTS + half - 1] * LONGEST / 4
    busy = sum(whole + each * prompt + answer * step / half for prompt, answer in lengths)
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


def replayed(path: Path, fitted: Fitted, slots: list[int]) -> Means:
    """Simulate a trace with a step time, on a server whose slots were used last in an order."""
    settings = scheduler_settings("llama.cpp", max_num_seqs=SLOTS, max_num_batched_tokens=BATCH, max_model_len=CONTEXT)
    service = Service(fitted.table(), KvPool(SLOTS * CONTEXT, 1), settings, front_end=fitted.front_end)
    # a new server gives its last slot first: each answer before the trace is as long as its slot is late in the order
    first = [(0.0, LEAST, 1 + slots.index(slot)) for slot in reversed(range(SLOTS))]
    trace = [(_BEFORE + one.arrival, one.input, one.output) for one in read_trace(path)]
    with tempfile.TemporaryDirectory() as place:
        write_trace(file := Path(place) / "trace.csv", first + trace)
        traffic = Traffic(kind="trace", file=str(file))
        found = simulate(service, traffic, requests=len(first) + len(trace), warmup=len(first)).summary
    return Means(*(found[f"{name}_mean_ms"] * 1e-3 for name in ("ttft", "tpot", "e2e")))


def _apart(real: Means, ours: Means) -> list[float]:
    """By which shares simulated means differ from measured ones."""
    return [one / other - 1.0 for one, other in zip(astuple(ours), astuple(real), strict=True)]


def told_step(fitted: Fitted) -> None:
    """Print what the steps of a pass take and how far off they are."""
    row, token = (1e3 * fitted.terms[place] for place in (0, 2 * SLOTS + 1))
    print(f"a prompt token takes {token:.2f} ms, a step of one decoding request {row:.2f} ms and its context")
    middle, most = np.quantile(fitted.off, [0.5, 0.9])
    print(f"of {len(fitted.off)} steps it is off by {middle:.1%} in the median, {most:.1%} at the 90th percentile")


def told_means(load: float, real: Means, ours: Means) -> list[float]:
    """Print means of both and return the shares by which they differ."""
    for word, one in (("measured", real), ("replayed", ours)):
        print(f"{load:6.0%}  {word:12}{one.ttft * 1e3:10.1f}{one.tpot * 1e3:10.2f}{one.e2e * 1e3:10.0f}")
    apart = _apart(real, ours)
    print(f"{'':6}  {'apart':12}" + "".join(f"{one:+10.1%}" for one in apart), flush=True)
    return apart


async def replays(url: str, folder: Path, log: Log, *, requests: int, passes: int, each: int, within: float) -> bool:
    """Send and replay; whether every mean came within a share."""
    chance = random.Random(0)  # one for all, so that no prompt comes twice and is found in the cache
    async with Client(Endpoint(url, "random")) as client:
        maker = await prepare_prompts(client)
        place = log.end()
        begin = await asked(client, maker, each, chance)
        before = (await log.since(place)).fitted()
        print(f"{'load':>6}{'':14}{'TTFT ms':>10}{'TPOT ms':>10}{'E2E ms':>10}")
        good = True
        for name, load in TRACES.items():
            path, how = scaled(_RECORDED / name, folder, before, load, requests)
            print(how)
            trace, real, ours = path.read_text(), list[Means](), list[Means]()
            for _ in range(passes):
                path.write_text(trace)
                place = log.end()
                real.append(await served(client, maker, path, chance))
                steps = await log.since(place)
                fitted = steps.fitted()
                ours.append(replayed(path, fitted, steps.slots))
                told_step(fitted)
                told_means(load, real[-1], ours[-1])
            if passes > 1:
                spread = [max(told) / min(told) - 1.0 for told in zip(*map(astuple, real), strict=True)]
                print(f"{'':6}  {'server':12}" + "".join(f"{one:10.1%}" for one in spread) + "  between passes")
                print(f"{'':6}  all {passes} passes")
            apart = told_means(load, Means.over(real), Means.over(ours)) if passes > 1 else _apart(real[0], ours[0])
            good = good and all(abs(one) <= within for one in apart)
        last = await asked(client, maker, each, chance)
        moved = {name: getattr(last, name) / getattr(begin, name) - 1.0 for name in ("ttft", "tpot", "e2e")}
        said = ", ".join(f"{name.upper()} {one:+.1%}" for name, one in moved.items())
        print(f"the machine meanwhile, {TOGETHER[-1][0]} users at the begin and at the end: {said}")
    return good


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=75, help="requests of each trace")
    parser.add_argument("--passes", type=int, default=1, help="how often each trace is sent; means are over all")
    parser.add_argument("--each", type=int, default=2, help="requests of each user before and after the traces")
    parser.add_argument("--within", type=float, default=0.05, help="share by which a mean may differ")
    chosen = parser.parse_args()
    if chosen.passes < 1:
        parser.error(f"--passes must be at least 1, not {chosen.passes}")
    with tempfile.TemporaryDirectory() as place:
        write(Path(place) / "dense.gguf", SHAPE)
        log = Path(place) / "log"
        with llama_server(Path(place) / "dense.gguf", slots=SLOTS, context=CONTEXT, unified=True, log=log) as (
            address,
            _,
        ):
            work = replays(
                address,
                Path(place),
                Log(log),
                requests=chosen.requests,
                passes=chosen.passes,
                each=chosen.each,
                within=chosen.within,
            )
            sys.exit(0 if asyncio.run(work) else 1)
