"""End to end on this machine: real llama.cpp servers with random weights, measured and predicted.

Two steps of each ladder calibrate, the others are predicted. Prints the tables of `glmplan validate` and exits with 1
when the figures of the remaining steps lie outside their 90 % intervals more often, or farther, than chance allows.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from llama_server import llama_server
from random_gguf import Shape, write

from glmplan.measure.predicted_steps import Compared, consistent
from glmplan.present.validation_page import standing

#: of 26 M weights for every eight layers
SHAPES = {
    "dense": Shape(embed=512, layers=8, heads=8, kv_heads=8, feed_forward=1408),
    "moe": Shape(kind="moe", embed=512, layers=8, heads=8, kv_heads=8, experts=16, expert_feed_forward=384),
    "mla": Shape(kind="mla", embed=512, layers=8, heads=8, feed_forward=1408, latent=128, query_latent=192, rope=32),
}


def ladder(
    folder: Path, kind: str, *, users: str, calibrate_on: str, seconds: float, layers: int = 8
) -> dict[str, object]:
    """Serve one model, validate it and return the record."""
    model, out = folder / f"{kind}.gguf", folder / kind
    write(model, replace(SHAPES[kind], layers=layers))
    # as llama-server does unless it is told a number of slots: with a cache for each slot, busy slots that are no
    # neighbours run one after another, and the step time depends on which slots happen to be busy
    with llama_server(model, slots=8, unified=True) as (url, _):
        command = [sys.executable, "-c", "from glmplan.cli import main; main()", "validate", str(model), "--url", url]
        command += ["--on", "this-machine", "--users", users, "--calibrate-on", calibrate_on, "--falling", "0"]
        # short prompts: a prompt of another user holds up everybody's tokens, the more the longer it is
        command += ["--input", "16", "--output", "32", "--seconds-per-step", str(seconds), "--out", str(out)]
        subprocess.run(command, check=True)
    found: dict[str, object] = json.loads((out / "record.json").read_text())
    return found


def figures_of(record: dict[str, object]) -> list[Compared]:
    """Return the figures of the steps that were not calibrated on."""
    compared = record["compared"]
    assert isinstance(compared, dict)
    names = ("level", "metric", "measured", "predicted", "low", "high", "measured_error")
    return [Compared(*(one[name] for name in names)) for one in compared["figures"]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default="dense,moe,mla")
    parser.add_argument("--users", default="1,2,4,8")
    parser.add_argument("--calibrate-on", default="1,4")
    parser.add_argument("--seconds", type=float, default=10.0)
    # the 52 MB of eight layers lie in the last-level cache of some machines until a prompt or a neighbour drives them
    # out: on a Xeon a step of two users took 3.2 to 7 ms, of 32 layers 32 to 34 ms
    parser.add_argument("--layers", type=int, default=32)
    chosen = parser.parse_args()
    found: list[Compared] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.kinds.split(","):
            print(f"--- {name}", flush=True)
            made = ladder(
                Path(folder), name, users=chosen.users, calibrate_on=chosen.calibrate_on, seconds=chosen.seconds,
                layers=chosen.layers,
            )  # fmt: skip
            found += figures_of(made)
    print(f"--- together: {standing(found)}")
    sys.exit(0 if consistent(found) else 1)
