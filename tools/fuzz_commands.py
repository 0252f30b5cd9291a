"""Give well-formed files and options with wrong values to whole commands.

`make fuzz` runs this after the broken bytes of `tools/fuzz.py`. A mutant replaces, drops, doubles or retypes one to
three values inside a parsed file, or the values of options. A command must answer or refuse (exit codes 0, 1 and 2)
within two seconds of CPU. `python tools/fuzz_commands.py --only KIND --seed SEED --first NUMBER --mutants 1` makes a
mutant again.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import csv
import io
import json
import random
import resource
import signal
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from fuzz import (
    CONFIG,
    DRAFTER,
    LSCPU,
    MEMORY,
    NUMACTL,
    PORTFOLIO,
    QUOTE,
    ROOT,
    SIZED,
    SWEEP,
    TOPO,
    TRACES,
    Late,
)

#: CPU of one command, and of a search over machines; imports are done before [s]
CPU, CPU_OF_A_SEARCH = 2.0, 15.0
#: kinds whose commands take most of the time: one turn in eight is theirs
SLOW, RARELY = ("size", "plan.json"), 8
MODEL, MACHINE, SLO = "llama-3.1-8b", "2xh100-sxm", "ttft p95 < 2 s, tpot p95 < 50 ms"

#: values of every type and size
VALUES: tuple[Any, ...] = (
    0, 1, -1, 2, 3, 7, 127, 1000, 10**6, 10**9, 10**24, -(10**24), 0.0, -0.0, 0.5, 1.5, -1.5, 1e-300, 1e300,
    float("nan"), float("inf"), True, False, "", " ", "a", "-1", "1e9", "10 GB", "1 GB/s", "0 B", "=1+1", "@a", "a/b",
    "A" * 3000, "é", "\u0661", "none", "fp8", "h100-sxm", [], [0], [[1]], ["a", "b"], [10**9], {}, {"a": 1},
    {"name": "x"}, ",".join(map(str, range(1, 3000))), "1..4096", "../prices/api", "a\\b", "a\tb\nc", "\u202e",
    "\x1b[31m", {"a": {"a": {"a": [[[]]]}}}, [True], "2026-02-30", "1d", "-1 s", "1e400 s", "100 %", "x" * 60 + "=1",
    "9" * 5000, "mtp " + "9" * 5000, "0." + "9" * 5000,
)  # fmt: skip


def nodes(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside parsed data, containers too."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from nodes(inner, (*path, key))


def changed(data: Any, chance: random.Random) -> Any:
    """Return parsed data with one to three values replaced, dropped, doubled or retyped."""
    data = copy.deepcopy(data)
    for _ in range(chance.choice((1, 1, 2, 3))):
        paths = list(nodes(data))
        if not paths:
            break
        *way, last = chance.choice(paths)
        holder = data
        for key in way:
            holder = holder[key]
        how = chance.randrange(8)
        if how == 0:
            del holder[last]
        elif how == 1 and isinstance(holder, list):
            holder.extend([copy.deepcopy(holder[last])] * chance.choice((1, 40)))
        elif how == 2:
            holder[last] = [holder[last]]
        elif how == 3 and isinstance(holder[last], int | float) and not isinstance(holder[last], bool):
            holder[last] = holder[last] * chance.choice((-1, 0.5, 3, 1000, 10**18))
        elif how == 4 and isinstance(holder, dict):
            holder[f"{last}x"] = holder[last]
        else:
            holder[last] = copy.deepcopy(chance.choice(VALUES))
    return data


def toml_of(data: dict[str, Any]) -> str:
    """Return TOML; a value that TOML cannot hold is left out."""
    import tomlkit

    return tomlkit.dumps(data)


def table_of(rows: list[list[Any]]) -> str:
    """Return rows as CSV."""
    out = io.StringIO()
    csv.writer(out).writerows(row if isinstance(row, list) else [row] for row in rows)
    return out.getvalue()


def lines_of(lines: list[Any]) -> str:
    """Return lines of `key: value` pairs."""
    return "\n".join(": ".join(map(str, line)) if isinstance(line, list) else str(line) for line in lines)


class Kind(NamedTuple):
    """Parsed samples of one kind of file, how a mutant is written, and the command that reads it."""

    name: str
    samples: list[Any]
    write: Callable[[Any], str]
    command: Callable[[str], list[str]]


def _tomls(folder: str, pattern: str = "*.toml") -> list[Any]:
    return [tomllib.loads(path.read_text()) for path in sorted((ROOT / folder).glob(pattern))]


def _recorded(name: str) -> list[Any]:
    text = (ROOT / "tests/data/traces" / name).read_text()
    return [json.loads(text)] if name.endswith(".json") else [json.loads(line) for line in text.splitlines()[:20]]


def _lines(rows: Any) -> str:
    return "\n".join(map(json.dumps, rows)) if isinstance(rows, list) else json.dumps(rows)


def _cells(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


def _pairs(text: str) -> list[list[str]]:
    return [line.split(": ") for line in text.splitlines()]


def _results() -> list[Path]:
    """Return results of benchmark clients that are one JSON value."""
    paths = sorted((ROOT / "tests/data/clients").rglob("*.json"))
    return [path for path in paths if path.name != "inputs.json" and path.stat().st_size < 50_000]


def kinds() -> dict[str, Kind]:
    """Return every kind of file with its command."""
    from glmplan.planner.ask import fit
    from glmplan.present.json_answers import fit_json

    runs = (ROOT / "calibration" / "measurements" / "field-reports-glm.csv").read_text().splitlines()[:4]
    traces = {name: text for name, text in TRACES.items() if name.endswith(".csv")}
    lines = [json.loads(line) for line in TRACES["mooncake.jsonl"].splitlines()]
    trace = ("--on", MACHINE, "--requests", "20", "--slo", SLO)
    size = ("--model", MODEL, "--users", "4", "--slo", SLO, "--only", "h100-sxm", "--machines", "1")
    mapping = tomllib.loads('header_row = 1\ncurrency = "EUR"\n[columns]\nhardware = "B"\n[rates]\nEUR = 1.1\n')
    (Path(tempfile.gettempdir()) / "glmplan-fuzz-quote.csv").write_text(QUOTE)
    quote = str(Path(tempfile.gettempdir()) / "glmplan-fuzz-quote.csv")
    found = [
        Kind("host.toml", _tomls("hardware_db/hosts"), toml_of, lambda f: ["fit", MODEL, "--on", f]),
        Kind("accelerator.toml", _tomls("hardware_db/accelerators"), toml_of,
             lambda f: ["fit", MODEL, "--on", f"2x{f}"]),
        Kind("model.toml", _tomls("model_specs"), toml_of, lambda f: ["fit", f, "--on", "2xh200-sxm"]),
        Kind("config.json", [CONFIG], json.dumps, lambda f: ["fit", f, "--on", MACHINE]),
        Kind("map.toml", [mapping], toml_of, lambda f: ["sheet", "check", quote, "--map", f, "--model", MODEL]),
        Kind("quote.csv", [_cells(QUOTE)], table_of, lambda f: ["sheet", "check", f, "--model", MODEL]),
        Kind("sweep.toml", [tomllib.loads(SWEEP)], toml_of, lambda f: ["sweep", f, "--most", "40"]),
        Kind("portfolio.toml", [tomllib.loads(PORTFOLIO)], toml_of, lambda f: ["hybrid", f]),
        Kind("runs.csv", [_cells("\n".join(runs))], table_of, lambda f: ["predict", "--runs", f]),
        Kind("trace.csv", [_cells(text) for text in traces.values()], table_of,
             lambda f: ["simulate", MODEL, "--traffic", f"trace:{f}", *trace]),
        Kind("trace.jsonl", [lines], lambda rows: "\n".join(map(json.dumps, rows)),
             lambda f: ["simulate", MODEL, "--traffic", f"trace:{f}", *trace]),
        Kind("lscpu.txt", [_pairs(LSCPU)], lines_of,
             lambda f: ["hardware", "import", f, "--accelerator", "h100-sxm"]),
        Kind("numactl.txt", [_pairs(NUMACTL)], lines_of,
             lambda f: ["hardware", "import", f, "--accelerator", "h100-sxm"]),
        Kind("topo.txt", [[line.split("\t") for line in TOPO.splitlines()]],
             lambda rows: "\n".join("\t".join(map(str, row)) if isinstance(row, list) else str(row) for row in rows),
             lambda f: ["hardware", "import", f, "--accelerator", "h100-sxm"]),
        Kind("plan.json", [json.loads(fit_json(fit(MODEL, MACHINE, users=(1, 8))))], json.dumps,
             lambda f: ["report", f, "--out", "report.md"]),
        Kind("fleet.toml", _tomls("docs/guide/examples", "fleet.toml"), toml_of,
             lambda f: ["simulate", "--fleet", f, "--requests", "50"]),
        Kind("inventory.toml", _tomls("docs/guide/examples", "machines.toml"), toml_of,
             lambda f: ["sweep", "--inventory", f, "--output", "200", "--most", "20"]),
        Kind("drafter.json", [json.loads(DRAFTER)], json.dumps,
             lambda f: ["fit", "qwen3-32b", "--on", MACHINE, "--drafter", f, "--mtp", "2", "--users", "1"]),
        Kind("sized.json", [SIZED], json.dumps,
             lambda f: ["sheet", "new", "sized.xlsx", "--model", MODEL, "--options", f]),
        Kind("prices.csv", [_cells(path.read_text())[:6] for path in (ROOT / "hardware_db/prices").glob("*y.csv")],
             table_of, lambda f: ["sheet", "check", quote, "--model", MODEL, "--price", f]),
        Kind("recorded.jsonl", [_recorded(name) for name in (
            "agentic-mooncake.jsonl", "applied-compute.jsonl", "dynamo-request-trace.jsonl", "weka-subagents.json")],
             _lines, lambda f: ["simulate", MODEL, "--traffic", f"trace:{f}", *trace]),
        Kind("results.json", [json.loads(path.read_text()) for path in _results()], json.dumps,
             lambda f: ["runs", "import", f, "--model", MODEL, "--on", MACHINE]),
        Kind("options", [dict(OPTIONS)], json.dumps, _options),
        Kind("size", [dict(SIZE_OPTIONS)], json.dumps, lambda f: ["size", *size, *_options(f)[4:]]),
    ]  # fmt: skip
    return {kind.name: kind for kind in found}


OPTIONS = {
    "--users": "4",
    "--input": "1000",
    "--output": "200",
    "--tp": "2",
    "--pp": "1",
    "--dp": "1",
    "--ep": "1",
    "--dcp": "1",
    "--replicas": "1",
    "--context": "4000",
    "--mtp": "0",
    "--acceptance": "0.7",
    "--memory-fraction": "0.9",
    "--max-num-seqs": "64",
    "--max-num-batched-tokens": "8192",
    "--max-model-len": "8000",
    "--lora": "1",
    "--lora-rank": "16",
    "--power-limit": "500 W",
    "--engine": "vllm",
    "--kv": "fp8",
    "--weights": "fp8",
    "--host-tokens": "1000",
    "--host-bandwidth": "20 GB/s",
    "--engine-version": "0.30.0",
}
SIZE_OPTIONS = {
    "--input": "1000",
    "--output": "200",
    "--jitter": "0.1",
    "--input-cv": "0.5",
    "--think": "2 s",
    "--shared-prefix": "10",
    "--budget": "120k",
    "--power": "20 kW",
    "--probability": "0.9",
    "--growth": "0.1",
    "--answers": "3",
    "--term": "pue=1.2",
    "--today": "2026-11-20",
    "--price": "h100-sxm=30000",
}


def _options(file: str) -> list[str]:
    """Return a `fit` with a few of the options that a file holds."""
    said = json.loads(Path(file).read_text())
    chance = random.Random(json.dumps(said, sort_keys=True, default=str))
    kept = chance.sample(sorted(said), min(len(said), 5)) if isinstance(said, dict) else []
    words = [word for name in kept for word in (str(name), str(said[name])) if "\0" not in word]
    return ["fit", MODEL, "--on", MACHINE, *words]


def _late(signum: int, frame: FrameType | None) -> None:
    raise Late


def judged(words: list[str], codes: Sequence[int | None] = (None, 0, 1, 2)) -> str:
    """Run a command and return the fault: a foreign exception, too much CPU, another exit code; empty if none."""
    from glmplan.cli import main

    out, begin = io.StringIO(), time.process_time()
    most = CPU_OF_A_SEARCH if words[0] in ("size", "sweep") else CPU
    signal.setitimer(signal.ITIMER_PROF, 2 * most)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            main(words)
    except SystemExit as end:
        if end.code not in codes:
            return f"exit code {end.code}: {out.getvalue()[-300:]}"
    except Late:
        return f"took more than {2 * most:.0f} s of CPU"
    except BaseException as error:
        return f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__)[-3:])}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    spent = time.process_time() - begin
    return f"took {spent:.1f} s of CPU" if spent > most else ""


def findings(mutants: int, *, seed: int = 0, first: int = 0, only: str = "", until: float = 1e99) -> Iterator[str]:
    """Give mutants to the commands in turn; yield the fault of each, empty if there is none."""
    known = {name: kind for name, kind in kinds().items() if not only or name == only}
    rest = [kind for kind in known.values() if kind.name not in SLOW]
    old = signal.signal(signal.SIGPROF, _late)
    try:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            for name, kind in known.items():  # imports are no part of a command's time
                Path(folder, name).write_text(kind.write(kind.samples[0]))
                # an unchanged file is answered: mutants of one that is refused reach no further
                wrong = judged(kind.command(name), (None, 0, 1, 2) if name == "options" else (None, 0))
                if wrong and not wrong.startswith("took "):
                    yield f"{name}, unchanged: {wrong}"
            for number in range(first, first + mutants):
                if time.monotonic() > until:
                    break
                kind = list(known.values())[number % len(known)]
                if kind.name in SLOW and number // len(known) % RARELY and not only:
                    kind = rest[number % len(rest)]
                chance = random.Random(f"{seed} {kind.name} {number}")
                try:
                    text = kind.write(changed(chance.choice(kind.samples), chance))
                except (TypeError, ValueError, AttributeError, RecursionError):
                    continue  # the form cannot hold such a value
                Path(folder, kind.name).write_text(text, errors="replace")
                wrong = judged(kind.command(kind.name))
                yield wrong and f"{kind.name}, seed {seed}, number {number}: {wrong}"
    finally:
        signal.signal(signal.SIGPROF, old)


def main() -> None:
    """Fuzz and exit with 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("error", RuntimeWarning)  # of numpy: a number that no reader may let through
    begin, given, count = time.monotonic(), 0, 0
    until = begin + asked.seconds
    for found in findings(asked.mutants, seed=asked.seed, first=asked.first, only=asked.only, until=until):
        given += 1
        if found:
            count += 1
            sys.stdout.write(f"{found}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{given} mutants, {count} findings, {time.monotonic() - begin:.0f} s\n")
    raise SystemExit(1 if count else 0)


if __name__ == "__main__":
    main()
