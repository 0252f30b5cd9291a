"""Give broken files to every reader: each must answer, or refuse with an error of glmplan, in bounded time and memory.

`make fuzz` makes 10,000 mutants of real samples; the tests make some hundred. A finding names reader, sample and
number: `python tools/fuzz.py --only READER --seed SEED --first NUMBER --mutants 1` makes the same mutant again.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from glmplan.errors import GlmplanError

ROOT = Path(__file__).resolve().parents[1]
CLIENTS = ROOT / "tests" / "data" / "clients"
#: what one mutant may take: time [s]; and what all of them may take together: memory [B]
PATIENCE, MEMORY = 20.0, 6 * 2**30

LSCPU = """Architecture: x86_64
CPU(s): 64
Thread(s) per core: 2
Core(s) per socket: 16
Socket(s): 2
Model name: Example CPU
NUMA node(s): 2
NUMA node0 CPU(s): 0-15,32-47
NUMA node1 CPU(s): 16-31,48-63
"""
NUMACTL = """available: 2 nodes (0-1)
node 0 cpus: 0 1 2 3
node 0 size: 128 MB
node 1 cpus: 4 5 6 7
node 1 size: 128 MB
node distances:
node   0   1
  0:  10  21
  1:  21  10
"""
QUOTE = """Pos,Description,Quantity,Unit price (USD),Delivery
1,NVIDIA L40S 48 GB,2,7500,6 weeks
2,NVIDIA H100 SXM 80 GB,8,27500,in stock
"""
MAPPING = """header_row = 1
currency = "EUR"
[columns]
hardware = "B"
[rates]
EUR = 1.1
"""
SIZED = {
    "model": "llama-3.1-8b",
    "options": [
        {"role": "answer", "machine": "1xl40s", "machines": 2, "paid": "buy", "weights": "fp8", "engine": "vllm",
         "cache": "bf16"},
    ],
}  # fmt: skip
TOPO = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPIX\t0-15\t0\nGPU1\tPIX\t X \t0-15\t0\n\nLegend:\n"
LOG = """INFO [api_server.py:1] vLLM API server version 0.11.0
INFO [core.py:1] Initializing a V1 LLM engine (v0.11.0) with config: model='some/Model', tensor_parallel_size=2
INFO [gpu_model_runner.py:1] Model loading took 20.50 GiB and 9.1 seconds
INFO [gpu_worker.py:1] Available KV cache memory: 40.25 GiB
INFO [kv_cache_utils.py:1] GPU KV cache size: 655,360 tokens
INFO [gpu_model_runner.py:1] Graph capturing finished in 20 secs, took 1.50 GiB
"""
FLEET = """duration = "10 min"
[router]
routing = "least-requests"
[[group]]
name = "a"
step-time = "base=12 ms"
[group.cold-start]
weights = "65 GB"
weights-rate = "2 GB/s"
[group.autoscaler]
metric = "concurrency"
target = 24
max = 10
[[tenant]]
name = "chat"
traffic = "poisson:3/s"
[[fault]]
kind = "crash"
group = "a"
at = "200 s"
"""
TRACES = {
    "own.csv": "arrival_s,input_tokens,output_tokens,session,prefix_tokens\n0,10,5,a,0\n1.5,20,5,b,4\n2,30,5,a,8\n",
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47,9,8",
    "mooncake.jsonl": '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n' * 3,
}
DRAFTER = """{"model_type": "qwen3", "hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 5,
"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "block_size": 16,
"dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 16, 31]}, "tie_word_embeddings": false,
"max_position_embeddings": 40960}"""
CONFIG = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 4,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 6144,
    "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "vocab_size": 151936,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 40960, "torch_dtype": "bfloat16",
    "tie_word_embeddings": False, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
#: a machine whose load is given, so that nothing is simulated for it
PORTFOLIO = """[[classes]]
name = "chat"
requests_per_day = 12000
input = 2000
output = 400
slo = "ttft p95 < 10 s, tpot p95 < 120 ms"

[[local]]
name = "appliance"
usd_month = 9000
kind = "buy"
most = 12
requests_per_s = { chat = 0.5 }

[[api]]
name = "maker"
input = 0.6
output = 2.2
promises = "ttft p95 < 5 s, tpot p95 < 50 ms"
"""
SWEEP = """model = ["llama-3.1-8b", "qwen3-8b"]
on = "1..2xh100-sxm"
users = [1, 8]
input = [500, 4000]
output = 150
"""
SITE = """columns = {columns}

[effects.configuration]
"vllm some model" = {values}

[domain]
"vllm" = [1, 16, 1000, 8000, 500, 900]
"""
JOURNAL = '{"kind": "begin", "settings": {"url": "http://h/v1"}}\n{"kind": "request", "ttft": 0.1, "outcome": "done"}\n'
PLAN = {"schema": "glmplan.fit/1", "question": {"model": "glm-5.1", "accelerator": "b200-sxm"}, "plan": {"tp": 8}}


class Reader(NamedTuple):
    """A reader of files, and the samples that are broken for it: name → content."""

    read: Callable[[Path], Any]
    samples: dict[str, bytes]


def safetensors_file() -> bytes:
    """A small file of two tensors."""
    header = {"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
              "b": {"dtype": "F32", "shape": [4], "data_offsets": [12, 28]}}  # fmt: skip
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(28)


def gguf_file() -> bytes:
    """A small model of llama.cpp's format."""
    sys.path.insert(0, str(ROOT / "tools"))
    from random_gguf import Shape, write

    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder) / "a.gguf", Shape(kind="dense", layers=1, embed=32, heads=4, kv_heads=2, feed_forward=64))
        return (Path(folder) / "a.gguf").read_bytes()


def table() -> bytes:
    """The header and some rows of a table of runs."""
    lines = (ROOT / "calibration" / "measurements" / "field-reports-glm.csv").read_bytes().split(b"\n")
    return b"\n".join(lines[:20])


def part_of_a_sweep() -> bytes:
    """What is kept of a sweep that was stopped."""
    import numpy as np

    from glmplan.purchase.sweep import Block, Checkpoints

    column = np.array([1.0, 2.0, float("nan")])
    block = Block(3, {"model": "a"}, {"layout": "TP1"}, np.array([0, 1, 2]), column, {"tpot_ms": column})
    with tempfile.TemporaryDirectory() as folder:
        kept = Checkpoints.__new__(Checkpoints)
        kept.folder = Path(folder)
        kept.keep(block)
        return (Path(folder) / "00000003.npz").read_bytes()


def texts(folder: str, count: int) -> dict[str, bytes]:
    """Some of our own data files."""
    return {path.name: path.read_bytes() for path in sorted((ROOT / folder).glob("*.toml"))[:count]}


def workbook(text: str) -> bytes:
    """A quote as a workbook."""
    import openpyxl

    book, out = openpyxl.Workbook(), io.BytesIO()
    for line in text.splitlines():
        book.active.append([float(cell) if cell.isdigit() else cell for cell in line.split(",")])
    book.save(out)
    return out.getvalue()


def readers() -> dict[str, Reader]:
    """Every reader of files that people bring, with real samples."""
    from glmplan.catalog.entries.accelerators import load_accelerator
    from glmplan.catalog.entries.hosts import load_host
    from glmplan.catalog.entries.models import load_model
    from glmplan.catalog.entries.prices import given_prices
    from glmplan.catalog.files import parse_json, read_log, understood
    from glmplan.io.machines.dump_kinds import read_dump
    from glmplan.io.machines.dump_merge import host_from_dumps
    from glmplan.io.models.drafters import with_drafter
    from glmplan.io.models.resolve import resolve_model
    from glmplan.io.models.safetensors_header import read_safetensors
    from glmplan.io.runs.importers import import_file
    from glmplan.io.runs.table import read_runs
    from glmplan.measure.journal import Journal
    from glmplan.measure.validation import deployment_facts
    from glmplan.planner.ask import fit
    from glmplan.prediction.effects import COLUMNS
    from glmplan.prediction.step_models import load_site
    from glmplan.present.decision import decision
    from glmplan.present.decision_parts import read_plan
    from glmplan.present.json_answers import fit_json
    from glmplan.present.page import markdown_of
    from glmplan.present.sheets.fill import Quoted, checked
    from glmplan.present.sheets.option import read_wanted
    from glmplan.present.sheets.quote_table import Mapped, read_mapping
    from glmplan.purchase.axes import read_sweep
    from glmplan.purchase.hybrid import read_portfolio
    from glmplan.purchase.inventory import read_inventory
    from glmplan.purchase.money import money_of
    from glmplan.purchase.sweep import read_part
    from glmplan.simulation.fleets.spec import read_fleet
    from glmplan.simulation.traffic.conversations import read_conversations
    from glmplan.simulation.traffic.sources import draw_lengths
    from glmplan.simulation.traffic.spec import Traffic, parse_traffic
    from glmplan.simulation.traffic.traces import read_trace

    example = ROOT / "docs/guide/examples/machines.toml"

    def quoted(path: Path) -> object:
        return checked(path, Quoted("llama-3.1-8b", 8, money, Mapped(), {}))

    def reported(path: Path) -> str:
        with understood(path, "plan"):
            return markdown_of(decision([read_plan(path)], money_of(today=date(2026, 11, 22)), pictures=False))

    def with_shard(path: Path) -> Path:
        path.with_name("model.safetensors").write_bytes(safetensors_file())
        return path

    def beside(path: Path, dumps: dict[str, bytes]) -> list[Any]:
        """The other dumps of a machine, whole."""
        folder = path.parent / "whole"
        folder.mkdir(exist_ok=True)
        for name, content in dumps.items():
            (folder / name).write_bytes(content)
        return [read_dump(folder / name) for name in dumps if name != path.name]

    clients = {path.name: path.read_bytes() for path in sorted(CLIENTS.rglob("*")) if path.is_file()}
    recorded = {
        name: (CLIENTS.parent / "traces" / name).read_bytes()
        for name in (
            "agentic-mooncake.jsonl",
            "applied-compute.jsonl",
            "dynamo-request-trace.jsonl",
            "weka-subagents.json",
        )
    }
    dumps = {"lscpu.txt": LSCPU.encode(), "numactl.txt": NUMACTL.encode(), "topo.txt": TOPO.encode()}
    config = json.dumps(CONFIG).encode()
    money = money_of(today=date(2026, 11, 22))
    lists = sorted((ROOT / "hardware_db" / "prices").glob("*.csv"))
    price_lists = {path.name: b"\n".join(path.read_bytes().split(b"\n")[:9]) for path in lists}
    site = SITE.format(columns=json.dumps(list(COLUMNS)), values=json.dumps([0.1] * len(COLUMNS)))
    index = {
        "index.json": json.dumps(
            {"metadata": {}, "weight_map": {"a": "model.safetensors", "b": "model.safetensors"}}
        ).encode()
    }
    return {
        "accelerator": Reader(load_accelerator, texts("hardware_db/accelerators", 6)),
        "config": Reader(lambda path: resolve_model(str(path)), {"config.json": config}),
        "drafter": Reader(
            lambda path: with_drafter(load_model("qwen3-32b"), str(path), []), {"config.json": DRAFTER.encode()}
        ),
        "dump": Reader(
            read_dump,
            dumps
            | {
                "lscpu.gz": gzip.compress(dumps["lscpu.txt"]),
                "bare.csv": b"0, NVIDIA L4, 23034 MiB\n1, NVIDIA L4, 23034 MiB\n",
            },
        ),
        "gguf": Reader(lambda path: resolve_model(str(path)), {"a.gguf": gguf_file()}),
        "host": Reader(load_host, texts("hardware_db/hosts", 6)),
        "index": Reader(
            lambda path: read_safetensors(with_shard(path)),
            {"model.safetensors." + name: held for name, held in index.items()},
        ),
        "journal": Reader(Journal.read, {"journal.jsonl": JOURNAL.encode()}),
        "json": Reader(lambda path: parse_json(read_log(path)), {"a.json": config, "a.json.gz": gzip.compress(config)}),
        "lengths": Reader(
            lambda path: draw_lengths(Traffic(kind="closed", users=1, lengths=str(path))),
            {"l.csv": b"input_tokens,output_tokens\n10,5\n20,6\n"},
        ),
        "mapping": Reader(lambda path: read_mapping(str(path)), {"m.toml": MAPPING.encode()}),
        "machine": Reader(
            lambda path: host_from_dumps([read_dump(path), *beside(path, dumps)], name="x", accelerator="h100-sxm"),
            dumps,
        ),
        "model": Reader(lambda path: resolve_model(str(path)), texts("model_specs", 6)),
        "part": Reader(read_part, {"00000003.npz": part_of_a_sweep()}),
        "plan": Reader(lambda path: deployment_facts(plan=path), {"plan.json": json.dumps(PLAN).encode()}),
        "portfolio": Reader(lambda path: read_portfolio(path, money), {"p.toml": PORTFOLIO.encode()}),
        "prices": Reader(lambda path: given_prices([str(path)], date(2026, 11, 22)), price_lists),
        "quote": Reader(quoted, {"q.csv": QUOTE.encode(), "q.xlsx": workbook(QUOTE)}),
        "report": Reader(reported, {"plan.json": fit_json(fit("llama-3.1-8b", "1xh100-sxm", users=(1, 8))).encode()}),
        "runs": Reader(import_file, clients | {"vllm.log": LOG.encode()}),
        "safetensors": Reader(read_safetensors, {"model.safetensors": safetensors_file()}),
        "sized": Reader(
            lambda path: read_wanted(str(path), None, "llama-3.1-8b"), {"size.json": json.dumps(SIZED).encode()}
        ),
        "site": Reader(lambda path: load_site(path, "vllm"), {"site.toml": site.encode()}),
        "sweep": Reader(lambda path: read_sweep({}, file=path), {"sweep.toml": SWEEP.encode()}),
        "table": Reader(read_runs, {"runs.csv": table()}),
        "fleet": Reader(read_fleet, {"fleet.toml": FLEET.encode()}),
        "inventory": Reader(read_inventory, {"machines.toml": example.read_bytes()}),
        "conversations": Reader(read_conversations, recorded),
        "trace": Reader(lambda path: sum(1 for _ in read_trace(path)), {n: t.encode() for n, t in TRACES.items()}),
        "traffic": Reader(
            lambda path: parse_traffic(str(path)),
            {"t.toml": b'kind = "poisson"\nrate = 2.0\ninput = 100\n'}
            | {path.name: path.read_bytes() for path in sorted((CLIENTS.parent / "traces").glob("*.yaml"))},
        ),
    }


#: pieces that break readers: lengths, depths, digits, encodings, keys of other types
PIECES = (
    b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x1f\x8b", b"\x1b[31m", b"-1", b"-0", b"0", b"1e999", b"-1e999",
    b"NaN", b"Infinity", b"9" * 400, b"9" * 5000, b"null", b"true", b"[]", b"{}", b'""', b"[" * 2000, b'{"a":' *
    2000, b'"' * 99, b"\\ud800", b"\r\n", b"\n" * 50, b",", b";", b"\t", b"=", b"'", b"A" * 100_000,
    "\u0661\u0662".encode(), b"%s", b"../", struct.pack("<Q", 2**60), struct.pack("<Q", 2**64 - 1),
    struct.pack("<I", 2**32 - 1), b"1.5", b'"1"', b"inf", b"nan",
)  # fmt: skip


def mutant(sample: bytes, chance: random.Random) -> bytes:
    """Break a sample in one to four places."""
    data = bytearray(sample)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        place = chance.randrange(len(data) + 1)
        span = min(chance.choice((0, 1, 1, 4, 8, 40)), len(data) - place)
        how = chance.randrange(9)
        if how == 0:
            del data[place:]
        elif how == 1 and data:
            data[place % len(data)] ^= 1 << chance.randrange(8)
        elif how == 2:
            del data[place : place + span]
        elif how == 3:
            data[place:place] = bytes(data[place : place + 200]) * chance.choice((1, 3, 50))
        elif how == 4:
            data[place:place] = chance.randbytes(span)
        elif how in (5, 6):
            # a value in place of a value: what stands between two marks
            ends = [n for n in range(place, min(place + 60, len(data))) if data[n] in b",:\n=}] "]
            end = chance.choice(ends) if ends else place
            data[place:end] = chance.choice(PIECES)
        else:
            data[place : place + span] = chance.choice(PIECES)
    return bytes(data)


class Late(BaseException):
    """A reader took too long; no `except Exception` may catch it."""


def _late(signum: int, frame: FrameType | None) -> None:
    raise Late


def judged(reader: Reader, path: Path) -> str:
    """What is wrong with how a reader takes a file; empty if nothing is."""
    begin = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, PATIENCE)
    try:
        reader.read(path)
    except GlmplanError as error:
        if not str(error) or "\x1b" in str(error):
            return f"an error that says nothing or says too much: {error!r}"
    except Late:
        return f"took more than {time.monotonic() - begin:.0f} s"
    except BaseException as error:
        return f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__)[-3:])}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return ""


def findings(mutants: int, *, seed: int = 0, first: int = 0, only: str = "", until: float = 1e99) -> Iterator[str]:
    """Give mutants to the readers in turn; yields what went wrong."""
    kept = {name: one for name, one in readers().items() if not only or name == only}
    tasks = [(name, sample) for name, one in kept.items() for sample in one.samples]
    old = signal.signal(signal.SIGALRM, _late)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(first, first + mutants):
                if time.monotonic() > until:
                    break
                # every reader is as often broken as every other, however many samples it has
                name = list(kept)[number % len(kept)]
                sample = chosen(tasks, name, number // len(kept))
                chance = random.Random(f"{seed} {name} {number}")
                path = Path(folder) / sample
                path.write_bytes(mutant(kept[name].samples[sample], chance))
                if wrong := judged(kept[name], path):
                    yield f"{name}, {sample}, seed {seed}, number {number}: {wrong}"
                path.unlink()
    finally:
        signal.signal(signal.SIGALRM, old)


def chosen(tasks: list[tuple[str, str]], name: str, turn: int) -> str:
    """The sample of a reader whose turn it is."""
    mine = [sample for reader, sample in tasks if reader == name]
    return mine[turn % len(mine)]


def main() -> None:
    """Fuzz and exit with 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("error", RuntimeWarning)  # of numpy: a number that no reader may let through
    begin, count = time.monotonic(), 0
    until = begin + asked.seconds
    for found in findings(asked.mutants, seed=asked.seed, first=asked.first, only=asked.only, until=until):
        count += 1
        sys.stdout.write(f"{found}\n")
    sys.stdout.write(f"at most {asked.mutants} mutants, {count} findings, {time.monotonic() - begin:.0f} s\n")
    raise SystemExit(1 if count else 0)


if __name__ == "__main__":
    main()
