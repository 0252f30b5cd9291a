"""End to end on this machine: real llama.cpp servers with random weights, measured and predicted.

Two steps of each ladder calibrate, the others are predicted. Prints the tables of `glmplan validate` and exits with 1
when a figure of a remaining step lies outside its interval.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from llama_server import llama_server
from random_gguf import Shape, write

SHAPES = {
    "dense": Shape(embed=512, layers=8, heads=8, kv_heads=8, feed_forward=1408),
    "moe": Shape(kind="moe", embed=512, layers=8, heads=8, kv_heads=8, experts=16, expert_feed_forward=384),
    "mla": Shape(kind="mla", embed=512, layers=8, heads=8, feed_forward=1408, latent=128, query_latent=192, rope=32),
}


def ladder(folder: Path, kind: str, *, users: str, calibrate_on: str, seconds: float) -> dict[str, object]:
    """Serve one model, validate it and return the record."""
    model, out = folder / f"{kind}.gguf", folder / kind
    write(model, SHAPES[kind])
    with llama_server(model, slots=8) as (url, _):
        command = [sys.executable, "-c", "from glmplan.cli import main; main()", "validate", str(model), "--url", url]
        command += ["--on", "this-machine", "--users", users, "--calibrate-on", calibrate_on, "--falling", "0"]
        # short prompts: a prompt of another user holds up everybody's tokens, the more the longer it is
        command += ["--input", "16", "--output", "64", "--seconds-per-step", str(seconds), "--out", str(out)]
        subprocess.run(command, check=True)
    found: dict[str, object] = json.loads((out / "record.json").read_text())
    return found


def outside(record: dict[str, object]) -> list[str]:
    """Return the figures of the steps not calibrated on that lie outside their interval."""
    compared = record["compared"]
    assert isinstance(compared, dict)
    return [f"{one['metric']} at {one['level']:g} users" for one in compared["figures"] if not one["inside"]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default="dense,moe,mla")
    parser.add_argument("--users", default="1,2,4,8")
    parser.add_argument("--calibrate-on", default="1,4")
    parser.add_argument("--seconds", type=float, default=6.0)
    chosen = parser.parse_args()
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.kinds.split(","):
            print(f"--- {name}", flush=True)
            made = ladder(
                Path(folder), name, users=chosen.users, calibrate_on=chosen.calibrate_on, seconds=chosen.seconds
            )
            missed += [f"{name}: {one}" for one in outside(made)]
    print("outside the interval: " + "; ".join(missed) if missed else "all remaining steps lie inside their intervals")
    sys.exit(1 if missed else 0)
