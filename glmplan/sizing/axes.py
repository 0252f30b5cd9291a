"""What a sweep goes over: words of the command or of a file, read into axes, counted before anything is computed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.errors import SpecError
from glmplan.facts.files import read_toml
from glmplan.plan.arriving import mean_request
from glmplan.plan.asked_parts import named_cache
from glmplan.plan.engine_asked import named_engine
from glmplan.plan.question import DEFAULT_INPUT, DEFAULT_OUTPUT
from glmplan.readers.machines.resolve import resolve_machine
from glmplan.readers.models.resolve import resolve_model
from glmplan.serving.traffic.promises import parse_slo
from glmplan.sizing.simulated import Arriving, Simulation, arrivals_of
from glmplan.units import finite_number, read_watts, whole_number

__all__ = ["MOST", "MOST_SIMULATED", "POINT_AXES", "SIMULATION", "STRUCTURE_AXES", "Sweep", "read_sweep"]

#: points that a sweep has at most unless it is told otherwise [-]
MOST = 20_000_000
#: the same where each is simulated [-]
MOST_SIMULATED = 20_000
#: what a combination of the axes takes to plan, a load to write as steps, a point of both, and a load to be simulated:
#: by these the time is told beforehand [s]
_COMBINATION, _LOAD, _POINT, _SIMULATED = 0.05, 0.0003, 0.00001, 3.0
#: axes that decide which formula applies: each combination is planned
STRUCTURE_AXES: tuple[str, ...] = (
    "model", "on", "weights", "kv", "engine", "engine_version", "tp", "pp", "dp", "ep", "dcp", "mtp", "memory_fraction",
    "max_num_seqs", "power_limit",
)  # fmt: skip
#: axes that are numbers put into it
POINT_AXES: tuple[str, ...] = ("context", "input", "output", "users")
#: what is said of all loads that are simulated, beside the axis of their traffic
SIMULATION: tuple[str, ...] = (
    "slo", "requests", "seed", "jitter", "input_cv", "output_cv", "lengths", "think", "ramp", "shared_prefix", "turns",
    "tool_wait", "start",
)  # fmt: skip
_WHOLE = ("tp", "pp", "dp", "ep", "dcp", "mtp", "max_num_seqs", *POINT_AXES)
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

    Parameters
    ----------
    said : mapping
        Axis → values: text with commas, ``1..8`` for all whole numbers between, ``1..1024*20`` for twenty in equal
        ratios, ``1..8xPART`` for machines with one to eight; or a list. None is left out. With ``traffic`` all loads
        are simulated; ``slo``, ``requests``, ``seed`` and further fields of traffic then hold for all of them.
    file : path, optional
        A TOML file with the same names; what is said beside it takes the place of what it says.
    most : int, optional
        Points that are too many; `MOST` by default, `MOST_SIMULATED` where loads are simulated, [-]
    instead : str, optional
        What can be done beside naming fewer, where they are too many.

    Returns
    -------
    Sweep
        Axes and points.

    Raises
    ------
    SpecError
        If an axis is unknown or empty, a name or number cannot be read, lengths contradict each other, or the sweep is
        too large: says how many points it has and how long they take.

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
    if name in _WHOLE:
        match = _RANGE.fullmatch(part) if isinstance(part, str) else None
        if match is None:
            return [whole_number(part, field, least=0 if name == "mtp" else 1)]
        if match[3] is None:
            return list(_range(match, part, field, 0 if name == "mtp" else 1, _VALUES))
        ends, count = _range(match, part, field, 1), whole_number(match[3], field, most=_VALUES)
        return sorted(set(np.geomspace(ends[0], ends[-1], count).round().astype(int).tolist()))
    if name == "memory_fraction":
        return [finite_number(part, field)]
    if name == "power_limit":
        return [read_watts(f"{part} W" if isinstance(part, str) and part.replace(".", "").isdigit() else part, field)]
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
