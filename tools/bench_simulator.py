"""Simulated requests per second of processor time beside the step-by-step form and the peers that are installed.

python tools/bench_simulator.py [--requests N] [--node-modules FOLDER]

Peers are run if they are there: the Python package `aisimulate`, and the npm package `@doublewordai/inference-lab`
(`make bench` installs it). All in one run on one machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from glmplan.simulation.engine import engine
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.fleets.run import FleetOptions, simulate_fleet
from glmplan.simulation.fleets.spec import fleet_of
from glmplan.simulation.safe_load import Draws, safe_load, speed_factors
from glmplan.simulation.simulate import Service, SimulationOptions, simulate
from glmplan.simulation.traffic.drafting import Acceptance
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import Traffic, parse_traffic

TABLE = StepTable.affine(
    base=0.0123, per_request=1.1e-4, per_context_token=1.3e-8, per_prefill_token=1.7e-5, per_prefill_square=1.9e-9
)
USERS, INPUT, OUTPUT = 128, 1024, 512
PLAIN = Service(TABLE, KvPool(1_000_000), EngineSettings())
FULL = Service(TABLE, KvPool(170_000), EngineSettings(prefix_caching=True, acceptance=Acceptance(3, 0.7)))

#: the same shape of load for inference-lab 0.2: 70 B dense on four accelerators of 80 GB
LAB = """
import init, {{ run_simulation }} from {module};
import {{ readFileSync }} from 'node:fs';
await init({{ module_or_path: readFileSync({wasm}) }});
const config = {config};
const start = process.cpuUsage();
run_simulation(JSON.stringify(config));
const used = process.cpuUsage(start);
console.log((used.user + used.system) / 1e6);
"""
LAB_CONFIG = {
    "hardware": {
        "name": "4x80GB",
        "compute_flops": 3.96e15,
        "memory_bandwidth": 1.34e13,
        "memory_capacity": 320_000_000_000,
        "kv_cache_capacity": 150_000_000_000,
        "gpu_memory_utilization": 0.9,
        "bytes_per_param": 2,
    },
    "model": {
        "name": "70b",
        "num_parameters": 70_000_000_000,
        "num_layers": 80,
        "hidden_dim": 8192,
        "num_heads": 64,
        "num_kv_heads": 8,
        "max_seq_len": 8192,
    },
    "scheduler": {
        "max_num_batched_tokens": 8192,
        "max_num_seqs": 256,
        "policy": "fcfs",
        "enable_chunked_prefill": True,
        "long_prefill_token_threshold": 0,
        "max_num_partial_prefills": 1,
        "block_size": 16,
    },
    "workload": {
        "arrival_pattern": "closed_loop",
        "arrival_rate": 1.0,
        "num_concurrent_users": USERS,
        "input_len_dist": {"type": "fixed", "value": INPUT},
        "output_len_dist": {"type": "fixed", "value": OUTPUT},
        "seed": 0,
    },
    "simulation": {"log_interval": 1_000_000},
}


def rate(action: Callable[[], object], requests: int, runs: int = 3) -> float:
    """Requests per second of processor time, median of several runs: other programs take none of it."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return requests / statistics.median(times)


def fleet_rates(count: int) -> list[tuple[str, float | str]]:
    """Requests per second with 1 and with 100 replicas at the same load of each, plain and with all features."""
    found: list[tuple[str, float | str]] = []
    for replicas in (1, 100):
        traffic = Traffic(kind="poisson", rate=9.0 * replicas, input=INPUT, output=OUTPUT // 2, jitter=0.2)
        service = Service(TABLE, KvPool(1_000_000), EngineSettings(replicas=replicas, routing="least-loaded"))
        run = rate(lambda s=service, t=traffic: simulate(s, t, requests=3 * count), 3 * count)  # type: ignore[misc]
        found.append((f"Poisson, {replicas} replicas, least-loaded", run))
        spec = fleet_of(
            {
                "router": {"routing": "least-requests", "max-outstanding": 200, "retries": 2},
                "group": [{"name": "a", "replicas": replicas, "cold-start": {"compile": "20 s"}}],
                "tenant": [{"name": name, "traffic": "poisson:1/s"} for name in ("a", "b")],
                "fault": [{"kind": "mtbf", "group": "a", "mean": "1000 s"}],
            }
        )
        kinds = [traffic.at_load(4.5 * replicas)] * 2
        one = Service(TABLE, KvPool(1_000_000), EngineSettings(prefix_caching=True))
        size = FleetOptions(requests=3 * count)
        run = rate(lambda: simulate_fleet(spec, [one], kinds, [(), ()], size), 3 * count)  # noqa: B023
        found.append((f"fleet of {replicas}: 2 tenants, gateway, failures, retries, prefix cache", run))
    return found


def day(part: int = 40) -> str:
    """Return the time of a day at 400 requests/s on 50 replicas, from a part of it that runs at the mean rate."""
    count = 400 * 86_400 // part
    service = Service(TABLE, KvPool(1_000_000), EngineSettings(replicas=50, routing="least-loaded"))
    traffic = Traffic(kind="poisson", rate=400.0, input=INPUT, output=OUTPUT // 2, jitter=0.2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    simulate(service, traffic, requests=count)
    minutes = (time.process_time() - start) * part / 60
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return f"a day at 400 requests/s on 50 replicas: {minutes:.1f} minutes ({count:,} simulated; {grown:.0f} MiB more)"


def inference_lab(folder: Path, requests: int) -> float | str:
    """Requests per second of the npm package under node, or why there is none."""
    package = folder.resolve() / "@doublewordai" / "inference-lab"
    node = shutil.which("node")
    if node is None or not (package / "package.json").exists():
        return "not installed: `make bench` installs it where there is npm"
    main = package / json.loads((package / "package.json").read_text())["main"]
    config = json.loads(json.dumps(LAB_CONFIG))
    config["workload"]["num_requests"] = requests
    script = LAB.format(
        module=json.dumps(str(main)),
        wasm=json.dumps(str(main.with_name(main.stem + "_bg.wasm"))),
        config=json.dumps(config),
    )
    with tempfile.NamedTemporaryFile("w", suffix=".mjs") as file:
        file.write(script)
        file.flush()
        run = subprocess.run([node, file.name], capture_output=True, text=True, check=False)
    if run.returncode:
        return f"failed: {run.stderr.strip().splitlines()[-1] if run.stderr.strip() else run.returncode}"
    return requests / float(run.stdout.split()[-1])


def aisimulate() -> str:
    """Whether the Python peer is there; it brings no run of its own that needs no model files."""
    if importlib.util.find_spec("aisimulate") is None:
        return "not installed: pip install aisimulate (its wheels are not in the package index)"
    return "installed; run its own replay on the same load and compare by hand: it needs model files"


def main(words: list[str]) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--node-modules", type=Path, default=Path(".peers/node_modules"))
    options = parser.parse_args(words)
    count = options.requests
    fixed = Traffic(kind="closed", users=USERS, input=INPUT, output=OUTPUT)
    spread = Traffic(kind="closed", users=USERS, input=INPUT, output=OUTPUT, jitter=0.2)
    few = max(256, count // 20)
    found: list[tuple[str, float | str]] = []
    found.append(
        (
            "step by step",
            rate(lambda: simulate(PLAIN, fixed, requests=few, options=SimulationOptions(reference=True)), few, 1),
        )
    )
    form = "pure Python" if str(engine.__file__).endswith(".py") else "compiled"
    for name, traffic in (("fixed lengths", fixed), ("lengths 0.8 to 1.0", spread)):
        run = rate(lambda traffic=traffic: simulate(PLAIN, traffic, requests=count), count)  # type: ignore[misc]
        found.append((f"{form}, {name}", run))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("r.parquet" if importlib.util.find_spec("pyarrow") else "r.csv")
        for name, traffic in (("fixed lengths", fixed), ("lengths 0.8 to 1.0", spread)):
            run = rate(
                lambda traffic=traffic: simulate(  # type: ignore[misc]
                    FULL, traffic, requests=count, options=SimulationOptions(records=path)
                ),
                count,
            )
            found.append((f"prefix cache, preemption, speculation, records, {name}", run))
    found += fleet_rates(count)
    found.append(("inference-lab (npm, WASM)", inference_lab(options.node_modules, few)))
    found.append(("aisimulate", aisimulate()))

    base = next(value for name, value in found if name == "step by step")
    lab = next(value for name, value in found if name.startswith("inference-lab"))
    assert isinstance(base, float)
    print(f"closed loop, {USERS} users, {INPUT}/{OUTPUT} tokens: simulated requests per second of processor time")
    for name, value in found:
        if isinstance(value, str):
            print(f"  {name:<66} {value}")
            continue
        beside = f"  {value / lab:8.1f} x inference-lab" if isinstance(lab, float) else ""
        print(f"  {name:<66} {value:>12,.0f}  {value / base:8.1f} x step by step{beside}")
    print(f"  {day()}")
    targets = parse_slo("ttft p95 < 2 s, tpot p95 < 30 ms")
    factors = speed_factors(0.85, 1.18)
    for spec in ("closed:1", "poisson:1/s"):
        start = time.perf_counter()
        answer = safe_load(PLAIN, parse_traffic(spec, jitter=0.2), targets, Draws(factors))
        print(f"  safe: {answer.load:g} {answer.unit} found in {time.perf_counter() - start:.2f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  peak memory of all of this: {peak:,.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
