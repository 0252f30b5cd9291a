"""What a sweep goes over: words of the command or of a file, read into axes, counted before anything is computed."""

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
from glmplan.simulation.safe_load import outcome_range
from glmplan.simulation.simulate import simulate
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import whole_number

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


# Loads of a sweep that are simulated: what `glmplan simulate` says of each, and how surely a promise is kept.

#: statistics of a simulated load that become columns, under the names that `glmplan simulate` gives them
STATISTICS: tuple[str, ...] = (
    *(f"{time}_{part}_ms" for time in ("ttft", "tpot", "itl", "e2e") for part in ("p50", "p95", "p99")),
    *("queue_p95_ms", "requests_per_s", "batch_mean", "kv_occupancy_max", "cached_share", "preemptions", "rejected"),
)
#: columns that need a promise
PROMISED: tuple[str, ...] = ("goodput_share", "probability")
#: kinds of traffic that count users, and so may take them from the axis of users
_USERS = ("closed", "sessions")
#: requests that are simulated of traffic that is no closed loop, as `glmplan simulate` does [-]
_REQUESTS = 1000
#: requests that are simulated for each user of a closed loop [-]
_EACH = 10
#: more requests than any trace holds: it is replayed whole, as by `glmplan simulate` [-]
_WHOLE_TRACE = 1 << 40
#: fields of traffic that name files
_FILES = ("file", "lengths")


class Arriving(NamedTuple):
    """A load of a simulated sweep.

    Attributes
    ----------
    traffic : str
        Kind of traffic with its number, as `glmplan simulate` takes it.
    input, output : int
        Prompt and answer of a request, [token]
    """

    traffic: str
    input: int
    output: int


@dataclass(frozen=True)
class Simulation:
    """How the loads of a sweep are simulated.

    Attributes
    ----------
    slo : str
        A promise; empty for none.
    requests : int or None
        Requests of each load, [-]; None takes as many as `glmplan simulate` does
    seed : int
        Seed, [-]
    shape : dict
        Further fields of `glmplan.simulation.traffic.spec.Traffic`.
    places : dict of str to str
        File that was written → where it lies; only where that is elsewhere, as on a worker of a cluster.
    """

    slo: str = ""
    requests: int | None = None
    seed: int = 0
    shape: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)

    def traffic(self, load: Arriving) -> Traffic:
        """What arrives.

        Examples
        --------
        >>> Simulation(shape={"think": "2 s"}).traffic(Arriving("closed:8", 1000, 200)).think
        2.0
        """
        kind = load.traffic.partition(":")[0]
        if kind.endswith(".toml"):
            message = "stands in a file: write its kind and its fields with commas, as in poisson:2/s,jitter=0.2"
            raise SpecError(message, field="--traffic", value=load.traffic)
        # a recording has lengths of its own, which are no words of the question
        lengths = {} if kind == "trace" else {"input": load.input, "output": load.output}
        found = read_traffic(load.traffic, **lengths, **self.shape)
        moved = {name: self.places[one] for name in _FILES if (one := getattr(found, name)) in self.places}
        return found.model_copy(update=moved) if moved else found

    def files(self, loads: Iterable[Arriving]) -> dict[str, bytes]:
        """Content of the files that loads are read from.

        Returns: File, as it was written → what stands in it.
        """
        found = [getattr(self.traffic(one), name) for one in loads for name in _FILES]
        return {name: read_bytes(name) for name in dict.fromkeys(found) if name is not None}


@dataclass(frozen=True)
class Simulated:
    """What came out of a simulated load.

    Attributes
    ----------
    planned : Deployed
        The plan under that traffic.
    figures : dict of str to float
        Means with the ends of their 90 % range in base units, [s] and [token/s], and `STATISTICS`.
    """

    planned: Deployed
    figures: dict[str, float]


def arrivals_of(
    kinds: tuple[str, ...], users: tuple[int, ...] | None, lengths: list[tuple[int, int]]
) -> list[Arriving]:
    """Every load of a simulated sweep.

    - `kinds`: Kinds of traffic, with their number or, of those that count users, without.
    - `users`: Users for kinds that do not say how many.
    - `lengths`: Prompt and answer of a request, [token].

    Examples
    --------
    >>> [one.traffic for one in arrivals_of(("sessions,turns=4", "poisson:2/s"), (4, 8), [(1000, 200)])]
    ['sessions:4,turns=4', 'sessions:8,turns=4', 'poisson:2/s']
    """
    found, used = [], False
    for inputs, outputs in lengths:
        for word in kinds:
            kind, comma, rest = word.partition(",")
            if kind not in _USERS:
                found.append(Arriving(word, inputs, outputs))
                continue
            used = True
            found += [Arriving(f"{kind}:{count}{comma}{rest}", inputs, outputs) for count in users or (1,)]
    if users is not None and not used:
        message = (
            f"is said beside --traffic {', '.join(kinds)}, of which each has its own number: write closed or sessions"
        )
        raise SpecError(message, field="--users", value=", ".join(map(str, users)))
    return found


def _usual_requests(arriving: Traffic) -> int:
    if arriving.kind == "trace":
        return _WHOLE_TRACE
    return _EACH * arriving.users if arriving.kind == "closed" and arriving.users else _REQUESTS


def simulated(model: str, on: str, said: Mapping[str, Any], load: Arriving, how: Simulation) -> Simulated:
    """Plan for a load and simulate it.

    - `said`: Further words of the question, as `PlanRequest` takes them.
    - Returns: The same plan and statistics as of `glmplan simulate` with the same words.

    Examples
    --------
    >>> load = Arriving("poisson:2/s", 500, 50)
    >>> found = simulated("llama-3.1-8b", "1xh100-sxm", {}, load, Simulation(requests=50, slo="ttft p95 < 2 s"))
    >>> found.figures["probability"], found.figures["ttft_low"] < found.figures["ttft"] < found.figures["ttft_high"]
    (1.0, True)
    """
    described, [arriving] = described_under(PlanRequest(model, on, **said), [how.traffic(load)])
    targets = parse_slo(how.slo) if how.slo else ()
    requests = how.requests or _usual_requests(arriving)
    outcome = simulate(described.service, arriving, requests=requests, seed=how.seed, targets=targets)
    if outcome.interrupted:
        raise KeyboardInterrupt
    summary = outcome.summary
    ranges: dict[str, tuple[float, float]] = {}
    if summary["requests"]:
        interval = (described.low, described.high)
        ranges = outcome_range(
            described.service, arriving, summary, interval=interval, requests=requests, seed=how.seed
        )
    figures = {name: float(summary.get(name, math.nan)) for name in STATISTICS}
    for name, title, factor in (("ttft", "ttft_mean_ms", 1e-3), ("tpot", "tpot_mean_ms", 1e-3),
                                ("output_rate", "output_tokens_per_s", 1.0)):  # fmt: skip
        low, high = ranges.get(title, (math.nan, math.nan))
        ends = (("", summary.get(title, math.nan)), ("_low", low), ("_high", high))
        figures |= {name + end: factor * float(value) for end, value in ends}
    if targets:
        figures["goodput_share"] = float(summary.get("goodput_share", math.nan))
        figures["probability"] = kept_of(described, arriving, targets, seed=how.seed).probability
    assert described.plan is not None  # nothing is told to the simulator alone
    asked, holding = described.plan
    return Simulated(Deployed(asked, holding, deployment_of(asked, holding.terms)), figures)


#: points that a sweep has at most unless it is told otherwise [-]
MOST = 20_000_000
#: the same where each is simulated [-]
MOST_SIMULATED = 20_000
#: what a combination of the axes takes to plan, a load to write as steps, a point of both, and a load to be simulated:
#: by these the time is told beforehand [s]
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
#: a comma that ends a kind of traffic: what follows is no further field of it
_KINDS_END = re.compile(r",(?![^,:]*=)")
_COUNTS = re.compile(r"(\d+)\.\.(\d+)x(.+)")


@dataclass(frozen=True)
class Sweep:
    """Every combination of some values.

    Attributes
    ----------
    axes : dict of str to tuple
        Axis of `STRUCTURE_AXES` → its values; None is what the plan chooses. Where loads are simulated, they are the
        axis ``load`` behind these.
    users, inputs, outputs : (n,) array of int
        Loads that each combination of the axes is asked for: users [-], prompt and answer of a request [token]; a
        single one that counts for nothing where loads are simulated
    simulation : Simulation or None
        How loads are simulated; None where they are predicted.
    """

    axes: dict[str, tuple[Any, ...]]
    users: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    simulation: Simulation | None = None

    @property
    def structures(self) -> int:
        """Combinations of the axes, [-]"""
        return int(np.prod([len(values) for values in self.axes.values()], dtype=object))

    @property
    def points(self) -> int:
        """Combinations of everything, [-]"""
        return self.structures * len(self.users)

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Each combination of the axes; the last axis changes fastest."""
        for values in product(*self.axes.values()):
            yield dict(zip(self.axes, values, strict=True))


def read_sweep(
    said: Mapping[str, Any],
    *,
    file: str | Path | None = None,
    most: int | None = None,
    instead: str = "or allow them with --most",
) -> Sweep:
    """Read what a sweep goes over.

    - `said`: Axis → values: text with commas, ``1..8`` for all whole numbers between, ``1..1024*20`` for twenty in
      equal ratios, ``1..8xPART`` for machines with one to eight; or a list. None is left out. With ``traffic`` all
      loads are simulated; ``slo``, ``requests``, ``seed`` and further fields of traffic then hold for all of them.
    - `file`: A TOML file with the same names; what is said beside it takes the place of what it says.
    - `most`: Points that are too many; `MOST` by default, `MOST_SIMULATED` where loads are simulated.
    - `instead`: What can be done beside naming fewer, where they are too many.

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
            raise SpecError("is needed: a sweep goes over at least one", field=f"--{name}")
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
        lasts = f"about {minutes:,.0f} minutes" if minutes >= 1 else "less than a minute"
        raise SpecError(f"makes {count:,} points, {lasts} on one core: name fewer, {instead}", field="sweep")
    if simulation is None:
        return Sweep(axes, *_loads(values))
    none = np.ones(1, dtype=int)
    return Sweep(axes | {"load": tuple(_arriving(values, simulation))}, none, none, none, simulation)


def _simulation(content: Mapping[str, Any]) -> Simulation | None:
    """What is said of simulated loads; None where none is."""
    said = {name: content[name] for name in SIMULATION if content.get(name) is not None}
    if "traffic" not in content:
        if said:
            name = next(iter(said))
            message = "is about loads that are simulated: say which with --traffic"
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
    """Simulated loads, each of which can be read."""
    lengths = {name: values[name] for name in values if name != "users"}
    _, inputs, outputs = _loads(lengths)
    pairs = list(dict.fromkeys(zip(inputs.tolist(), outputs.tolist(), strict=True)))
    found, own = [], 0
    for one in arrivals_of(values["traffic"], values.get("users"), pairs):
        traffic = simulation.traffic(one)
        if traffic.kind == "trace":
            own += 1
            one = Arriving(one.traffic, *mean_request(traffic)[:2])
        found.append(one)
    said = next((name for name in ("context", "input", "output") if name in values), None)
    if said is not None and own == len(found):
        message = "is said beside recordings alone, which have their own lengths"
        raise SpecError(message, field=f"--{said}", value=", ".join(map(str, values[said])))
    return list(dict.fromkeys(found))


def _values(name: str, given: Any) -> tuple[Any, ...]:
    field = f"--{name.replace('_', '-')}"
    parts: list[Any] = []
    for one in given if isinstance(given, list | tuple) else [given]:
        words = _KINDS_END.split(one) if name == "traffic" and isinstance(one, str) else None
        parts += [word.strip() for word in words or one.split(",")] if isinstance(one, str) else [one]
    found: list[Any] = []
    for part in parts:
        if part == "":
            raise SpecError("holds nothing between commas", field=field, value=given)
        found += _expanded(name, part, field)
    if not found:
        raise SpecError("is empty: name at least one value", field=field, value=given)
    return tuple(dict.fromkeys(found))


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
    """The whole numbers between two ends, which are not made where they are too many."""
    low, high = (whole_number(end, field, least=least) for end in (match[1], match[2]))
    if high < low:
        raise SpecError("is not a rising range", field=field, value=part)
    if most is not None and high - low >= most:
        words = f"names {high - low + 1:,} values, at most {most:,}: name fewer"
        raise SpecError(words + f", or some in equal ratios as in {low}..{high}*20" * (most > _MACHINES), field=field)
    return range(low, high + 1)


def _check(axes: dict[str, tuple[Any, ...]]) -> None:
    """Names are known; that a combination of known names does not work is an answer of the sweep."""
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
        message = "is said beside --input: the context is the prompt with its answer, so one of them follows"
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
