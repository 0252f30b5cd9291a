"""Replay recorded traffic on predicted and on calibrated services, beside what was measured.

python tools/replay_recordings.py FOLDER [--requests N]

FOLDER holds one trace for each recording (`arrival_s,input_tokens,output_tokens,...`) and `measured.csv` with model,
layout, engine and the measured means. A trace that has measured times in columns of its own
(`session,turn,agent_depth,measured_ttft_s,measured_tpot_s,measured_e2e_s`) needs no row there; its name begins with the
question, as in `agentx-glm5.1-fp4-mi355x-tp2-sglang-c4`. Turns of a session are sent when the answer before has ended
and the recorded pause has passed. Recordings of models that the catalogue does not have are named and left out.

The second table calibrates the step times on the first third of a recording and predicts the rest. Where only means of
stages were recorded, the first of two stages is that third; recordings of the same server are calibrated together.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glmplan.errors import GlmplanError
from glmplan.planner.service import Described
from glmplan.planner.traffic_search import described_under
from glmplan.request.plan import PlanRequest
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import Service, SimulationOptions, simulate
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
#: options of the server that `measured.csv` does not have: `exp-config.yaml` of each experiment in
#: https://github.com/inference-sim/training @ed5c1d26
STATED = {"blis": {"max_model_len": 4096, "max_num_batched_tokens": 2048, "max_num_seqs": 128}}
#: share of a recording that is calibrated on [-]
FIRST = 1 / 3
#: mean queueing relative to the decoding of an answer, from which a recording counts as overloaded [-]
OVERLOADED = 0.5


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded population of requests: trace, question and measured means of the whole [s].

    `turns` holds the measured times of each request by session and turn, where they were recorded.
    """

    name: str
    trace: Path
    request: PlanRequest
    means: dict[str, float]
    turns: dict[tuple[int, int], tuple[float, ...]]

    @property
    def overloaded(self) -> bool:
        """Requests waited longer than half of their decoding."""
        return self.means["ttft"] > OVERLOADED * (self.means["e2e"] - self.means["ttft"])


Found = tuple[Recording, Described, Traffic]
#: of `calibrated`
Factors = tuple[float, float, float, float]


def recordings(folder: Path, made: Path) -> Iterator[Recording]:
    """Yield the recordings of a folder; traces of sessions are written to `made`."""
    with (folder / "measured.csv").open() as file:
        rows = {row["recording"]: row for row in csv.DictReader(file)}
    for path in sorted(folder.glob("*.csv")):
        name = path.stem
        if row := rows.get(name):
            stated = next((one for prefix, one in STATED.items() if name.startswith(prefix)), {})
            request = PlanRequest(
                row["model"].removesuffix("-v0-1"), f"{row['tp']}x{row['accelerator']}",
                engine=row["engine"], tp=int(row["tp"]), weights="bf16", **stated,
            )  # fmt: skip
            yield Recording(name, path, request, _measured(row), {})
        for prefix, (model, on, options) in NAMED.items():
            if name.startswith(prefix):
                trace, turns = _sessions(path, made)
                means = dict(zip(METRICS, map(statistics.fmean, zip(*turns.values(), strict=True)), strict=True))
                yield Recording(name, trace, PlanRequest(model, on, **options), means, turns)


def _measured(row: dict[str, str]) -> dict[str, float]:
    return {m: float(row[f"{m}_mean_s"]) for m in METRICS} | {"ttft_p50": float(row["ttft_p50_s"])}


def _sessions(path: Path, made: Path) -> tuple[Path, dict[tuple[int, int], tuple[float, ...]]]:
    """Write the turns of each context with their pauses.

    A session starts a new context (another agent, or a compacted history) where its turns are counted from 0 again. A
    context begins when it was recorded, every further turn a recorded pause after the answer before.
    """
    contexts: dict[tuple[str, str, int], list[dict[str, str]]] = {}
    begun: dict[tuple[str, str], int] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            agent = row["session"], row["agent_depth"]
            begun[agent] = begun.get(agent, 0) + (row["turn"] == "0")
            contexts.setdefault((*agent, begun[agent]), []).append(row)
    found: dict[tuple[int, int], tuple[float, ...]] = {}
    out = made / path.name
    with out.open("w") as file:
        file.write("session,wait_s,input_tokens,output_tokens,arrival_s\n")
        # as the trace reader numbers conversations: by their start
        for number, rows in enumerate(sorted(contexts.values(), key=lambda rows: float(rows[0]["arrival_s"]))):
            end = float(rows[0]["arrival_s"])
            for turn, row in enumerate(rows):
                at, wait = float(row["arrival_s"]), max(float(row["arrival_s"]) - end, 0.0)
                file.write(f"{number},{wait:.4f},{row['input_tokens']},{row['output_tokens']},{at:.4f}\n")
                found[number, turn] = tuple(float(row[f"measured_{m}_s"]) for m in METRICS)
                end = at + found[number, turn][2]
    return out, found


# Calibration: a factor on the steps and time for each request in a step, or a factor on prompts where their lengths
# differ; and the time of the front end. TTFT enters as a median, because the first requests warm the server up.


def calibrated(service: Service, decode: float, prompts: float, request: float, front_end: float) -> Service:
    """Return the service with other step times and front-end latency.

    `decode` and `prompts` are factors on both parts of a step, `request` is time for each decoding request [s].
    """

    def scaled(table: StepTable) -> StepTable:
        added = request * np.arange(len(table.decode))[:, None]
        return replace(
            table, decode=np.maximum(table.decode * decode + added, 0.0), extra=table.extra * prompts,
            attention=table.attention * prompts, hidden=table.hidden * prompts,
        )  # fmt: skip

    whole = service.whole
    return replace(
        service,
        table=scaled(service.table),
        whole=None if whole is None else lambda: scaled(whole()),
        front_end=front_end,
        cold_start=0.0,
    )


def solved(run: Callable[[Factors], Sequence[float]], measured: Sequence[float], factors: Callable[..., Factors],
           size: int) -> Factors:  # fmt: skip
    """Return the factors at which the simulated values are nearest to the measured ones."""
    from scipy.optimize import least_squares

    # around 1, because the solver takes its differences relative to x: over a tiny one, steps of whole tokens are noise
    found = least_squares(
        lambda x: np.log(np.array(run(factors(*x))) / np.array(measured)), np.ones(size), bounds=(-2.0, 4.0),
        diff_step=0.03, max_nfev=40,
    )  # fmt: skip
    return factors(*found.x)


def values_of(service: Service, traffic: Traffic, requests: int) -> dict[str, float]:
    """Return the simulated means and the median TTFT [s]."""
    found = simulate(service, traffic, requests=requests).summary
    return {m: found[f"{m}_mean_ms"] / 1000 for m in METRICS} | {"ttft_p50": found["ttft_p50_ms"] / 1000}


def rest_of_stages(
    first: Sequence[Found], rest: Sequence[Found], requests: int
) -> Iterator[tuple[Recording, list[float], list[float]]]:
    """Yield measured and simulated means of further stages of a server, calibrated on the first ones."""
    measured = [one.means[name] for one, _, _ in first for name in ("ttft_p50", "tpot")]
    wait = first[0][1].service.front_end

    def run(x: Factors) -> list[float]:
        made = [values_of(calibrated(found.service, *x), traffic, requests) for _, found, traffic in first]
        return [values[name] for values in made for name in ("ttft_p50", "tpot")]

    def factors(steps: float, request: float, front: float) -> Factors:
        step = float(np.exp(steps - 1))
        return step, step, 1e-4 * (float(request) - 1), wait * float(np.exp(front - 1))

    x = solved(run, measured, factors, 3)
    names = ", ".join(one.name for one, _, _ in first)
    print(f"  steps x {x[0]:.2f} {1e6 * x[2]:+.0f} us a request, front end {x[3]:.4f} s, from {names}")
    for one, found, traffic in rest:
        after = values_of(calibrated(found.service, *x), traffic, requests)
        yield one, [one.means[m] for m in METRICS], [after[m] for m in METRICS]


def turns_of(service: Service, traffic: Traffic) -> dict[tuple[int, int], tuple[float, ...]]:
    """Return TTFT, time per token and E2E of each simulated turn [s], and its tokens."""
    run = simulate(service, traffic, requests=1 << 40, options=SimulationOptions(keep=True)).requests
    assert run is not None
    ttft, e2e, tokens = run["first"] - run["arrival"], run["finish"] - run["arrival"], run["output_tokens"] - 1
    keys = zip(run["session"].tolist(), run["turn"].tolist(), strict=True)
    values = zip(ttft, (e2e - ttft) / np.maximum(tokens, 1), e2e, tokens, strict=True)
    return {key: tuple(map(float, value)) for key, value in zip(keys, values, strict=True)}


def rest_of_turns(one: Recording, found: Described, traffic: Traffic) -> tuple[list[float], list[float]]:
    """Return measured and simulated means of the last two thirds, calibrated on the first.

    TPOT is that of the mean token: one of six tokens beside a long prompt would decide a mean over requests.
    """
    with one.trace.open() as file:
        arrival = dict(zip(one.turns, (float(row["arrival_s"]) for row in csv.DictReader(file)), strict=True))
    end, service = max(arrival.values()) * FIRST, found.service
    early, late = [t for t in one.turns if arrival[t] <= end], [t for t in one.turns if arrival[t] > end]

    def three(turns: dict[tuple[int, int], tuple[float, ...]]) -> list[float]:
        ttft, tpot, *_ = zip(*(turns[t] for t in early), strict=True)
        return [statistics.fmean(ttft), statistics.median(tpot), statistics.median(ttft)]

    def factors(decode: float, prompts: float, front: float) -> Factors:
        decode, prompts, front = (float(np.exp(x - 1)) for x in (decode, prompts, front))
        return decode, prompts, 0.0, front * service.front_end

    x = solved(lambda x: three(turns_of(calibrated(service, *x), traffic)), three(one.turns), factors, 3)
    print(f"  decoding x {x[0]:.2f}, prompts x {x[1]:.2f}, front end {x[3]:.3f} s, from the first third of {one.name}")
    after = turns_of(calibrated(service, *x), traffic)
    tokens = sum(after[t][3] for t in late)
    both = []
    for turns in (one.turns, after):
        ttft, e2e = (sum(turns[t][place] for t in late) for place in (0, 2))
        both.append([ttft / len(late), (e2e - ttft) / tokens, e2e / len(late)])
    return both[0], both[1]


def main(words: list[str]) -> int:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--requests", type=int, default=1 << 40)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as made:
        found: list[Found] = []
        for one in recordings(options.folder, Path(made)):
            try:
                described, [arriving] = described_under(one.request, [parse_traffic(f"trace:{one.trace}")])
            except GlmplanError as error:
                print(f"{one.name}: left out: {error}")
                continue
            found.append((one, described, arriving))
        as_predicted(found, options.requests)
        as_calibrated(found, options.requests)
    return 0


def as_predicted(found: Sequence[Found], requests: int) -> None:
    """Print the recordings on the services as predicted."""
    inside = total = 0
    for one, described, arriving in found:
        outcome = simulate(described.service, arriving, requests=requests)
        ranges = described.ranges(arriving, outcome.summary, requests=int(outcome.summary["requests"]))
        for name in METRICS:
            value, (low, high) = 1000 * one.means[name], ranges[f"{name}_mean_ms"]
            held = low <= value <= high
            inside, total = inside + held, total + 1
            print(
                f"{one.name:<42} {name:<5} measured {value:>12,.1f} ms, simulated "
                f"{outcome.summary[f'{name}_mean_ms']:>12,.1f} ({low:,.1f} to {high:,.1f}){'' if held else '  OUTSIDE'}"
            )
    print(f"{inside} of {total} means inside their 90 % range")


def as_calibrated(found: Sequence[Found], requests: int) -> None:
    """Print the rest of each recording after a calibration on its first third."""
    print("step times calibrated on the first third, the rest predicted:")
    servers: dict[str, list[Found]] = {}
    told: list[tuple[Recording, list[float], list[float]]] = []
    for one, described, traffic in found:
        if one.turns:
            told.append((one, *rest_of_turns(one, described, traffic)))
        else:
            servers.setdefault(one.name.rsplit("_", 2)[0], []).append((one, described, traffic))
    for stages in servers.values():
        names = {one.name for one, _, _ in stages}
        first = [s for s in stages if s[0].name.endswith("_0") and s[0].name[:-1] + "1" in names]
        if first:
            told += rest_of_stages(first, [s for s in stages if s not in first], requests)
    errors: dict[bool, list[list[float]]] = {}
    for one, measured, simulated in told:
        error = [s / m - 1 for s, m in zip(simulated, measured, strict=True)]
        errors.setdefault(one.overloaded, []).append([abs(e) for e in error])
        values = ", ".join(
            f"{name} {1000 * m:,.1f} and {1000 * s:,.1f} ms ({e:+.1%})"
            for name, m, s, e in zip(METRICS, measured, simulated, error, strict=True)
        )
        print(f"{one.name:<42} {values}{'  overloaded' if one.overloaded else ''}")
    for overloaded, rows in errors.items():
        medians = (f"{name} {statistics.median(r[place] for r in rows):.1%}" for place, name in enumerate(METRICS))
        print(f"median error of {len(rows)} {'overloaded' if overloaded else 'others'}: {', '.join(medians)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
