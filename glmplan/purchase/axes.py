"""Axes of a sweep: parsing, limits, and simulation of one load.

The number of points is limited.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from glmplan.catalog.files import read_bytes, read_toml
from glmplan.errors import SpecError
from glmplan.io.machines.resolve import resolve_machine
from glmplan.io.models.resolve import resolve_model
from glmplan.planner.ask import Deployed
from glmplan.planner.question import DEFAULT_INPUT, DEFAULT_OUTPUT, named_cache, named_engine
from glmplan.planner.ranking import deployment_of
from glmplan.planner.service import kept_of
from glmplan.planner.traffic_search import described_under, mean_request, read_traffic
from glmplan.request.option import Option, options_of
from glmplan.request.plan import PlanRequest
from glmplan.request.traffic import TrafficSpec
from glmplan.simulation.load_trial import default_requests, default_warmup
from glmplan.simulation.simulate import SimulationOptions, simulate
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import TokenCount, TokensArray, whole_number

__all__ = [
    "MOST",
    "MOST_SIMULATED",
    "POINT_AXES",
    "PROMISED",
    "SIMULATION",
    "STATISTICS",
    "STRUCTURE_AXES",
    "Arriving",
    "Simulated",
    "Simulation",
    "Sweep",
    "arrivals_of",
    "read_sweep",
    "simulated",
]


#: statistics of `glmplan simulate` that become columns
STATISTICS: tuple[str, ...] = (
    *(f"{time}_{part}_ms" for time in ("ttft", "tpot", "itl", "e2e") for part in ("p50", "p95", "p99")),
    *("queue_p95_ms", "requests_per_s", "batch_mean", "kv_occupancy_max", "cached_share", "preemptions", "rejected"),
)
#: columns that need an SLO
PROMISED: tuple[str, ...] = ("goodput_share", "probability")
#: kinds of traffic that take their number from the axis of users
_USERS = ("closed", "sessions")
#: fields of `Traffic` with a file
_FILES = ("file", "lengths")


class Arriving(NamedTuple):
    """Load of a simulated sweep.

    `traffic` is the text that `glmplan simulate --traffic` takes.
    """

    traffic: str
    input: TokenCount
    output: TokenCount


@dataclass(frozen=True)
class Simulation:
    """Settings of all simulated loads of a sweep."""

    slo: str = ""
    #: requests of each load; None for the default of `glmplan simulate`
    requests: int | None = None
    seed: int = 0
    #: further fields of `glmplan.simulation.traffic.spec.Traffic`
    shape: dict[str, Any] = field(default_factory=dict)
    #: file of the traffic → its copy on a worker of a cluster
    places: dict[str, str] = field(default_factory=dict)

    def traffic(self, load: Arriving) -> Traffic:
        """Return the traffic of a load.

        Examples
        --------
        >>> Simulation(shape={"think": "2 s"}).traffic(Arriving("closed:8", 1000, 200)).think
        2.0
        """
        kind = load.traffic.partition(":")[0]
        if kind.endswith(".toml"):
            message = "is a file: write kind and fields with commas, as in poisson:2/s,jitter=0.2"
            raise SpecError(message, field="--traffic", value=load.traffic)
        # a trace has its own lengths
        lengths = {} if kind == "trace" else {"input": load.input, "output": load.output}
        traffic = read_traffic(load.traffic, **lengths, **self.shape)
        copies = {name: self.places[file] for name in _FILES if (file := getattr(traffic, name)) in self.places}
        return traffic.model_copy(update=copies) if copies else traffic

    def files(self, loads: Iterable[Arriving]) -> dict[str, bytes]:
        """Return the content of each file that the traffic of the loads names."""
        names = [getattr(self.traffic(load), name) for load in loads for name in _FILES]
        return {name: read_bytes(name) for name in dict.fromkeys(names) if name is not None}


@dataclass(frozen=True)
class Simulated:
    """Plan and metrics of a simulated load."""

    planned: Deployed
    #: `STATISTICS`, and means with their 90 % range in s and token/s
    figures: dict[str, float]


def arrivals_of(
    kinds: tuple[str, ...], users: tuple[int, ...] | None, lengths: list[tuple[int, int]]
) -> list[Arriving]:
    """Return every load of a simulated sweep.

    `users` complete kinds of traffic without a number.

    Examples
    --------
    >>> [load.traffic for load in arrivals_of(("sessions,turns=4", "poisson:2/s"), (4, 8), [(1000, 200)])]
    ['sessions:4,turns=4', 'sessions:8,turns=4', 'poisson:2/s']
    """
    loads, used = [], False
    for inputs, outputs in lengths:
        for text in kinds:
            kind, comma, rest = text.partition(",")
            if kind not in _USERS:
                loads.append(Arriving(text, inputs, outputs))
                continue
            used = True
            loads += [Arriving(f"{kind}:{count}{comma}{rest}", inputs, outputs) for count in users or (1,)]
    if users is not None and not used:
        message = f"conflicts with --traffic {', '.join(kinds)}, which has numbers: write closed or sessions"
        raise SpecError(message, field="--users", value=", ".join(map(str, users)))
    return loads


def simulated(model: str, on: str, said: Mapping[str, Any], load: Arriving, how: Simulation) -> Simulated:
    """Plan for a load and simulate it as `glmplan simulate` does.

    Results are the same for the same options.

    Examples
    --------
    >>> load = Arriving("poisson:2/s", 500, 50)
    >>> result = simulated("llama-3.1-8b", "1xh100-sxm", {}, load, Simulation(requests=50, slo="ttft p95 < 2 s"))
    >>> figures = result.figures
    >>> figures["probability"], figures["ttft_low"] < figures["ttft"] < figures["ttft_high"]
    (1.0, True)
    """
    described, [arriving] = described_under(PlanRequest(model, on, **said), [how.traffic(load)])
    targets = parse_slo(how.slo) if how.slo else ()
    requests = how.requests or default_requests(arriving)
    warmup, options = default_warmup(arriving, targets, requests), SimulationOptions(targets=targets)
    outcome = simulate(described.service, arriving, requests=requests, warmup=warmup, seed=how.seed, options=options)
    if outcome.interrupted:
        raise KeyboardInterrupt
    summary = outcome.summary
    ranges: dict[str, tuple[float, float]] = {}
    if summary["requests"]:
        ranges = described.ranges(arriving, summary, requests=requests, warmup=warmup, seed=how.seed)
    figures = {name: float(summary.get(name, math.nan)) for name in STATISTICS}
    for name, title, factor in (("ttft", "ttft_mean_ms", 1e-3), ("tpot", "tpot_mean_ms", 1e-3),
                                ("output_rate", "output_tokens_per_s", 1.0)):  # fmt: skip
        low, high = ranges.get(title, (math.nan, math.nan))
        ends = (("", summary.get(title, math.nan)), ("_low", low), ("_high", high))
        figures |= {name + end: factor * float(value) for end, value in ends}
    if targets:
        figures["goodput_share"] = float(summary.get("goodput_share", math.nan))
        figures["probability"] = kept_of(described, arriving, targets, seed=how.seed).probability
    assert described.plan is not None
    asked, holding = described.plan
    return Simulated(Deployed(asked, holding, deployment_of(asked, holding.terms)), figures)


#: default limits of the number of points, predicted and simulated
MOST = 20_000_000
MOST_SIMULATED = 20_000
#: estimated time of a plan, a step histogram, a predicted point and a simulated load [s]
_COMBINATION, _LOAD, _POINT, _SIMULATED = 0.05, 0.0003, 0.00001, 3.0
_OPTIONS = options_of(PlanRequest)
#: the axis of kinds of traffic
_TRAFFIC = Option(help="")
#: axes that decide which formula applies: each combination is planned
STRUCTURE_AXES: tuple[str, ...] = tuple(name for name, one in _OPTIONS.items() if one.axis and not one.point)
#: axes that are numbers put into it
POINT_AXES: tuple[str, ...] = tuple(name for name, one in _OPTIONS.items() if one.axis and one.point)
#: options of all loads that are simulated, beside the axis of their traffic
SIMULATION: tuple[str, ...] = (
    "slo", "requests", "seed", *(name for name, one in options_of(TrafficSpec).items() if "sweep" in one.commands)
)  # fmt: skip
#: values that a range of an axis has at most, and one of machines, each of which is looked up [-]
_VALUES, _MACHINES = 100_000, 4_096
_RANGE = re.compile(r"(\d+)\.\.(\d+)(?:\*(\d+))?")
#: a comma between kinds of traffic, not between the fields of one
_KINDS_END = re.compile(r",(?![^,:]*=)")
_COUNTS = re.compile(r"(\d+)\.\.(\d+)x(.+)")


@dataclass(frozen=True)
class Sweep:
    """The axes of a sweep and the loads of each of their combinations."""

    #: axis of `STRUCTURE_AXES` → values; None lets the plan choose. Simulated loads are the last axis, ``load``
    axes: dict[str, tuple[Any, ...]]
    #: predicted loads, with prompt and output lengths; a single dummy if loads are simulated
    users: np.ndarray
    inputs: TokensArray
    outputs: TokensArray
    #: None if loads are predicted
    simulation: Simulation | None = None

    @property
    def structures(self) -> int:
        """Return the number of combinations of the axes."""
        return int(np.prod([len(values) for values in self.axes.values()], dtype=object))

    @property
    def points(self) -> int:
        """Return the number of points: combinations times loads."""
        return self.structures * len(self.users)

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield each combination of the axes; the last axis changes fastest."""
        for values in product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))


def read_sweep(
    said: Mapping[str, Any],
    *,
    file: str | Path | None = None,
    most: int | None = None,
    instead: str = "or allow them with --most",
) -> Sweep:
    """Return the sweep of some axes.

    - `said`: Axis → list, or text with commas; ``1..8`` is a range of integers, ``1..1024*20`` twenty values in equal
      ratios, ``1..8xPART`` machines with one to eight accelerators. With ``traffic`` all loads are simulated; the
      names of `SIMULATION` then hold for all of them.
    - `file`: TOML file with the same names; `said` takes precedence.
    - `most`: Limit of the points; `MOST` or `MOST_SIMULATED` by default.
    - `instead`: Remedy in the message for too many points.

    Examples
    --------
    >>> sweep = read_sweep({"model": "glm-5.1-nvfp4", "on": "4..6xrtx-pro-6000-ws", "users": "1..8", "input": 2048})
    >>> sweep.structures, sweep.points, sweep.axes["on"][0]
    (3, 24, '4xrtx-pro-6000-ws')
    """
    content = dict(read_toml(file)) if file is not None else {}
    content |= {name: value for name, value in said.items() if value is not None}
    known = (*STRUCTURE_AXES, *POINT_AXES, "traffic", *SIMULATION)
    for name in content:
        if name.replace("-", "_") not in known:
            raise SpecError("is not an axis of a sweep", file=file, value=name, choices=known)
    content = {name.replace("-", "_"): given for name, given in content.items()}
    simulation = _simulation(content)
    values = {name: _values(name, given) for name, given in content.items() if name not in SIMULATION}
    for name in ("model", "on"):
        if name not in values:
            raise SpecError("needs at least one value", field=f"--{name}")
    axes = {name: values.get(name, (None,)) for name in STRUCTURE_AXES}
    _check(axes)
    sizes = [len(values.get(name, (0,))) for name in (*STRUCTURE_AXES, *POINT_AXES, "traffic")]
    count = 1
    for size in sizes:
        count *= size
    if count > (most or (MOST if simulation is None else MOST_SIMULATED)):
        structures = math.prod(sizes[: len(STRUCTURE_AXES)])
        minutes = (structures * _COMBINATION + count // structures * _LOAD + count * _POINT) / 60
        if simulation is not None:
            minutes = count * _SIMULATED / 60
        duration = f"about {minutes:,.0f} minutes" if minutes >= 1 else "less than a minute"
        raise SpecError(f"makes {count:,} points, {duration} on one core: name fewer, {instead}", field="sweep")
    if simulation is None:
        return Sweep(axes, *_loads(values))
    dummy = np.ones(1, dtype=int)
    return Sweep(axes | {"load": tuple(_arriving(values, simulation))}, dummy, dummy, dummy, simulation)


def _simulation(content: Mapping[str, Any]) -> Simulation | None:
    """Return the settings of simulated loads; None if loads are predicted."""
    said = {name: content[name] for name in SIMULATION if content.get(name) is not None}
    if "traffic" not in content:
        if said:
            name = next(iter(said))
            message = "applies to simulated loads only: add --traffic"
            raise SpecError(message, field=f"--{name.replace('_', '-')}", value=said[name])
        return None
    slo, requests, seed = (said.pop(name, None) for name in ("slo", "requests", "seed"))
    if slo is not None:
        parse_slo(slo)
    return Simulation(
        slo=slo or "",
        requests=None if requests is None else whole_number(requests, "--requests"),
        seed=0 if seed is None else whole_number(seed, "--seed", least=0),
        shape=said,
    )


def _arriving(values: Mapping[str, tuple[Any, ...]], simulation: Simulation) -> list[Arriving]:
    """Return the simulated loads.

    A trace has the mean lengths of its requests.
    """
    lengths = {name: values[name] for name in values if name != "users"}
    _, inputs, outputs = _loads(lengths)
    pairs = list(dict.fromkeys(zip(inputs.tolist(), outputs.tolist(), strict=True)))
    loads, traces = [], 0
    for load in arrivals_of(values["traffic"], values.get("users"), pairs):
        traffic = simulation.traffic(load)
        if traffic.kind == "trace":
            traces += 1
            loads.append(Arriving(load.traffic, *mean_request(traffic)[:2]))
        else:
            loads.append(load)
    name = next((name for name in ("context", "input", "output") if name in values), None)
    if name is not None and traces == len(loads):
        message = "has no effect: traces have their own lengths"
        raise SpecError(message, field=f"--{name}", value=", ".join(map(str, values[name])))
    return list(dict.fromkeys(loads))


def _values(name: str, given: Any) -> tuple[Any, ...]:
    field = f"--{name.replace('_', '-')}"
    parts: list[Any] = []
    for item in given if isinstance(given, list | tuple) else [given]:
        if not isinstance(item, str):
            parts.append(item)
            continue
        texts = _KINDS_END.split(item) if name == "traffic" else item.split(",")
        parts += [text.strip() for text in texts]
    values: list[Any] = []
    for part in parts:
        if part == "":
            raise SpecError("has an empty value between commas", field=field, value=given)
        values += _expanded(name, part, field)
    if not values:
        raise SpecError("is empty: name at least one value", field=field, value=given)
    return tuple(dict.fromkeys(values))


def _expanded(name: str, part: Any, field: str) -> list[Any]:
    option = _OPTIONS.get(name, _TRAFFIC)
    if option.kind in ("whole", "counts"):
        match = _RANGE.fullmatch(part) if isinstance(part, str) else None
        if match is None:
            return [whole_number(part, field, least=option.least)]
        if match[3] is None:
            return list(_range(match, part, field, option.least, _VALUES))
        ends, count = _range(match, part, field, 1), whole_number(match[3], field, most=_VALUES)
        return sorted(set(np.geomspace(ends[0], ends[-1], count).round().astype(int).tolist()))
    if option.kind == "power":
        part = f"{part} W" if isinstance(part, str) and part.replace(".", "").isdigit() else part
    if option.kind != "name":
        return [option.read(part, field)]
    if not isinstance(part, str):
        raise SpecError("is no name", field=field, value=part)
    match = _COUNTS.fullmatch(part) if name == "on" else None
    if match is None:
        return [part]
    return [f"{count}x{match[3]}" for count in _range(match, part, field, 1, _MACHINES)]


def _range(match: re.Match[str], part: str, field: str, least: int, most: int | None = None) -> range:
    """Return the integers of a range; SpecError if they are too many."""
    low, high = (whole_number(end, field, least=least) for end in (match[1], match[2]))
    if high < low:
        raise SpecError("is not a rising range", field=field, value=part)
    if most is not None and high - low >= most:
        message = f"has {high - low + 1:,} values, at most {most:,}: name fewer"
        raise SpecError(message + f", or equal ratios as in {low}..{high}*20" * (most > _MACHINES), field=field)
    return range(low, high + 1)


def _check(axes: dict[str, tuple[Any, ...]]) -> None:
    """Raise for unknown names.

    Infeasible combinations of known names are results of the sweep.
    """
    for model in axes["model"]:
        resolve_model(model)
    for machine in axes["on"]:
        resolve_machine(machine)
    for engine in axes["engine"]:
        if engine is not None:
            named_engine(engine)
    for cache in axes["kv"]:
        if cache is not None:
            named_cache(cache)


def _loads(values: Mapping[str, tuple[Any, ...]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    context, inputs = values.get("context"), values.get("input")
    if context is not None and inputs is not None:
        message = "conflicts with --input: the context is the prompt plus the output"
        raise SpecError(message, field="--context")
    outputs, users = values.get("output", (DEFAULT_OUTPUT,)), values.get("users", (1,))
    rows = []
    for length, output, count in product(context or inputs or (DEFAULT_INPUT,), outputs, users):
        prompt = length - output if context is not None else length
        if prompt < 1:
            raise SpecError(f"is not longer than --output {output}", field="--context", value=length)
        rows.append((count, prompt, output))
    table = np.array(rows, dtype=int)
    return table[:, 0], table[:, 1], table[:, 2]
