"""The engine gives the same answers as machine code and as pure Python, and never runs code of other sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import glmplan
from glmplan.simulation.compiled import GROUP, MODULES, PURE, compiled_folder

PACKAGE = Path(glmplan.__file__).parent
TRACES = Path(__file__).parents[1] / "data" / "traces"
LIBRARY = compiled_folder(PACKAGE) / f"{GROUP}__mypyc{EXTENSION_SUFFIXES[0]}"

#: serves random traffic on random services and prints which modules did, and every number that came out, exactly
DRAWN = """
import random, sys
import numpy as np
from glmplan.simulation.closed_schedule import closed_schedule
from glmplan.simulation.closed_loop import decode_steps
from glmplan.simulation.closed_run import ClosedLoop
from glmplan.simulation.engine.settings import CacheTier, KvPool, TransferLink, scheduler_settings
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import pieces
from glmplan.simulation.simulate import Service
from glmplan.simulation.traffic.drafting import Acceptance
from glmplan.simulation.traffic.spec import parse_traffic

def shown(value):
    return float(value).hex()

draw = random.Random(20261127)
table = StepTable.affine(
    base=0.0123, per_request=1.1e-4, per_context_token=1.3e-8, per_prefill_token=1.7e-5, per_prefill_square=1.9e-9
)
kinds = ["closed:17", "closed:40,think=2", "poisson:4/s", "gamma:3/s,cv=3", "sessions:0.5/s"]
kinds.append("sessions:6,shared_prefix=64")
kinds += [f"trace:{sys.argv[1]}", f"trace:{sys.argv[2]},users=3"]
for number in range(120):
    scheduler = draw.choice(["vllm", "sglang", "trtllm", "llama.cpp"])
    changes = {"max_num_seqs": draw.choice([3, 8, 40])}
    changes["replicas"] = draw.choice([1, 1, 2, 3])
    changes["routing"] = draw.choice(["round-robin", "least-loaded", "prefix-aware", "waiting-penalty"])
    changes["prefix_caching"] = draw.random() < 0.6
    if scheduler != "llama.cpp":
        changes["acceptance"] = draw.choice([None, None, Acceptance(3, 0.7)])
        changes["pipeline_stages"] = draw.choice([1, 1, 2])
        changes["max_num_batched_tokens"] = draw.choice([256, 2048])
    if scheduler in ("vllm", "sglang"):
        changes["order"] = draw.choice([None, "priority"])
    if scheduler == "vllm":
        changes["long_prefill_token_threshold"] = draw.choice([None, 200])
        changes["watermark"] = draw.choice([0.0, 0.1])
        if not changes["order"] and not changes["long_prefill_token_threshold"]:
            changes["prefill_schedule_interval"] = draw.choice([1, 4])
    if scheduler == "sglang":
        changes["prefill_decode_interval"] = draw.choice([0, 3])
        changes["min_free_slots"] = draw.choice([0, 4])
    if scheduler == "sglang" and changes["prefix_caching"]:
        changes |= {"host_tokens": 3000, "host_link": TransferLink(bandwidth=1e9)}
        tiers = [CacheTier("drive", 9000, TransferLink(1e9)), CacheTier("peers", 0, TransferLink(2e9, 1e-4))]
        changes["tiers"] = tuple([*tiers, CacheTier("shared", 50_000, TransferLink(1e8))][draw.randrange(4) :])
    changes |= {"image_seconds": 0.03, "encoder_cards": draw.choice([0, 2])}
    kind = draw.choice(kinds)
    more = {"urgent": 0.3} if draw.random() < 0.3 else {}
    if draw.random() < 0.2:
        more["patience"] = 0.5
    if draw.random() < 0.3:
        more["images"] = 0.4
    if not kind.startswith("trace"):
        more |= {"input": 300, "input_cv": 0.8, "output_cv": 0.8}
    traffic = parse_traffic(kind, output=100, **more)
    pool = KvPool(draw.choice([2500, 9000, 200_000]), draw.choice([1, 16, 64]), bytes_per_token=1e5)
    service = Service(table, pool, scheduler_settings(scheduler, **changes), front_end=draw.choice([0.0, 0.02]))
    rejected = {}
    for piece in pieces(service.under(traffic), traffic, 150, np.random.default_rng(number), rejected):
        for columns in (*piece.records.values(), *piece.segments, *piece.stalls):
            print(number, *map(shown, columns))
    print(number, sorted(rejected.items()))
    run = ClosedLoop(
        concurrency=draw.choice([1, 7, 40]), input_tokens=draw.choice([30, 1000]), output_tokens=draw.choice([1, 77]),
        requests=90, budget=draw.choice([64, 512, 8192]), prefill_first=draw.random() < 0.5,
        whole_prompts=draw.random() < 0.3, max_requests=draw.choice([4, 1 << 30]), late=draw.choice([0, 1, 3]),
        pool_tokens=draw.choice([3000, 1 << 60]), poll_interval=draw.choice([1, 4]),
        tokens_per_step=draw.choice([1.0, 2.35]), draft_tokens=draw.choice([0, 3]), gather_steps=draw.choice([0, 25]),
    )
    inputs, outputs = ([draw.randint(1, most) for _ in range(90)] for most in (run.input_tokens, run.output_tokens))
    blocks, spans = closed_schedule(run, inputs, outputs, decode_steps(run, outputs))
    print(number, [shown(number) for number in blocks], spans)
import glmplan.simulation.engine.engine
print(glmplan.simulation.engine.engine.__file__, file=sys.stderr)
"""


def drawn(root: Path, **environment: str) -> tuple[str, str]:
    """What `DRAWN` prints, and the file that the engine was loaded from."""
    inherited = {name: value for name, value in os.environ.items() if name != PURE}
    done = subprocess.run(
        [sys.executable, "-P", "-c", DRAWN, TRACES / "agentic-mooncake.jsonl", TRACES / "weka-subagents.json"],
        env={**inherited, "PYTHONPATH": str(root), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.strip().splitlines()[-1]


@pytest.mark.skipif(not LIBRARY.exists(), reason="not compiled: `make compile`")
def test_compiled_and_pure_python_give_the_same_answers_to_the_last_digit():
    compiled, its_file = drawn(PACKAGE.parent)
    pure, source = drawn(PACKAGE.parent, **{PURE: "1"})
    assert its_file.endswith(EXTENSION_SUFFIXES[0]) and source.endswith("engine.py")
    assert len(pure) > 10**6
    assert hashlib.sha256(compiled.encode()).hexdigest() == hashlib.sha256(pure.encode()).hexdigest()


@pytest.fixture
def checkout(tmp_path):
    """The package with a compiled folder that must not be loaded: its library is no library."""
    shutil.copytree(PACKAGE, tmp_path / "glmplan", ignore=shutil.ignore_patterns("__pycache__", "_compiled", "_data"))
    folder = compiled_folder(tmp_path / "glmplan")
    for name in (*MODULES, f"{GROUP}__mypyc"):
        file = folder.joinpath(*name.split("."))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_name(file.name + EXTENSION_SUFFIXES[0]).write_bytes(b"no library")
    return tmp_path


def loaded(root: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """An interpreter that imports the engine."""
    inherited = {name: value for name, value in os.environ.items() if name != PURE}
    return subprocess.run(
        [sys.executable, "-P", "-c", "import glmplan.simulation.engine.engine as e; print(e.__file__)"],
        env={**inherited, "PYTHONPATH": str(root), **environment},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("name", [MODULES[0], MODULES[4], "glmplan.simulation.engine.settings"])
def test_a_changed_source_is_never_served_by_code_that_was_compiled_before(checkout, name):
    assert "ImportError" in loaded(checkout).stderr
    source = checkout.joinpath(*name.split(".")).with_suffix(".py")
    source.write_text(source.read_text(encoding="utf-8") + "\nchanged = True\n", encoding="utf-8")
    assert loaded(checkout).stdout.strip() == str(checkout / "glmplan/simulation/engine/engine.py")


def test_pure_python_can_be_asked_for(checkout):
    done = loaded(checkout, **{PURE: "1"})
    assert done.stdout.strip() == str(checkout / "glmplan/simulation/engine/engine.py"), done.stderr


def test_an_unfinished_folder_is_not_used(checkout):
    next((checkout / "glmplan/_compiled").rglob("prefix_cache*")).unlink()
    assert loaded(checkout).stdout.strip() == str(checkout / "glmplan/simulation/engine/engine.py")
