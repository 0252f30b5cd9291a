"""Replay recorded traffic on predicted services, beside what was measured.

python tools/replay_recordings.py FOLDER [--requests N]

FOLDER holds one trace for each recording (`arrival_s,input_tokens,output_tokens,...`) and `measured.csv` with model,
layout, engine and the measured means. A trace that has measured times in columns of its own
(`measured_ttft_s,measured_tpot_s,measured_e2e_s`) needs no row there; its name begins with the question, as in
`agentx-glm5.1-fp4-mi355x-tp2-sglang-c4`. Recordings of models that the catalogue does not have are named and left out.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from pathlib import Path

from glmplan.errors import GlmplanError
from glmplan.planner.traffic_search import described_under
from glmplan.request.plan import PlanRequest
from glmplan.simulation.simulate import simulate
from glmplan.simulation.traffic.spec import Traffic, parse_traffic

METRICS = ("ttft", "tpot", "e2e")
#: recordings without a row in `measured.csv`: model, machine and options
NAMED = {
    "agentx-glm5.1-fp4-mi355x-tp2-sglang": (
        "glm-5.1-mxfp4",
        "2xmi355x",
        {"engine": "sglang", "tp": 2},
    ),
}


def questions(folder: Path) -> list[tuple[Path, PlanRequest, dict[str, float]]]:
    """Return the trace, the question and the measured means of each recording."""
    with (folder / "measured.csv").open() as file:
        rows = {row["recording"]: row for row in csv.DictReader(file)}
    found = []
    for path in sorted(folder.glob("*.csv")):
        name = path.stem
        if name in rows:
            row = rows[name]
            request = PlanRequest(
                row["model"].removesuffix("-v0-1"), f"{row['tp']}x{row['accelerator']}",
                engine=row["engine"], tp=int(row["tp"]), weights="bf16",
            )  # fmt: skip
            found.append((path, request, {f"{m}_mean_ms": 1000 * float(row[f"{m}_mean_s"]) for m in METRICS}))
        for prefix, (model, on, options) in NAMED.items():
            if name.startswith(prefix):
                with path.open() as file:
                    table = list(csv.DictReader(file))
                means = {
                    f"{m}_mean_ms": 1000 * statistics.fmean(float(row[f"measured_{m}_s"]) for row in table)
                    for m in METRICS
                }
                found.append((path, PlanRequest(model, on, **options), means))
    return found


def main(words: list[str]) -> int:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=1 << 40)
    options = parser.parse_args(words)
    inside = total = 0
    for path, request, measured in questions(options.folder):
        traffic: Traffic = parse_traffic(f"trace:{path}")
        try:
            described, [arriving] = described_under(request, [traffic])
        except GlmplanError as error:
            print(f"{path.stem}: left out: {error}")
            continue
        outcome = simulate(described.service, arriving, requests=options.requests)
        count = int(outcome.summary["requests"])
        ranges = described.ranges(arriving, outcome.summary, requests=count)
        for name, value in measured.items():
            low, high = ranges[name]
            held = low <= value <= high
            inside, total = inside + held, total + 1
            print(
                f"{path.stem:<42} {name.removesuffix('_mean_ms'):<5} measured {value:>12,.1f} ms, simulated "
                f"{outcome.summary[name]:>12,.1f} ({low:,.1f} to {high:,.1f}){'' if held else '  OUTSIDE'}"
            )
    print(f"{inside} of {total} means inside their 90 % range")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
