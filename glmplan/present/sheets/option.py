"""Build the options of a workbook: layouts, memory, speeds and prices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glmplan.catalog.engines.limitations import load_engine
from glmplan.catalog.entries.prices import Quotation
from glmplan.catalog.files import read_json, understood
from glmplan.costs.memory.pool import MemoryBudget, stage_pools
from glmplan.errors import GlmplanError, SpecError, UnknownFact
from glmplan.io.runs.columns import INTERVAL_KINDS
from glmplan.planner.ask import Deployed, deployment
from glmplan.planner.capacity import LOW, Holding
from glmplan.planner.launch import seats_of
from glmplan.planner.ranking import completed_words, load_of, prompts_timed, untimed_words
from glmplan.prediction.distribution import quantile_table
from glmplan.prediction.effects import load_effects
from glmplan.prediction.evidence import BANDS, PROMPTS, evidence_of_points
from glmplan.prediction.load import Load, metrics_of
from glmplan.prediction.predict import predict_many
from glmplan.prediction.replicas import whole_loads
from glmplan.prediction.step_models import least_of, runs_on_accelerators
from glmplan.purchase.money import Money, Purchase, ways_of
from glmplan.purchase.size_answer import OFFERED
from glmplan.purchase.step_histograms import (
    Columns,
    StepHistograms,
    columns_of,
    exact_columns,
    packing_key,
    step_histograms_of,
)
from glmplan.units import Bytes, SecondsArray, TokenCount, Tokens

__all__ = [
    "TERMS",
    "Axes",
    "Cached",
    "Option",
    "Spreads",
    "Stage",
    "Surface",
    "Surfaces",
    "Wanted",
    "axes_of",
    "options_of",
    "read_wanted",
]


# Tabulated speeds: predictions over a grid of users and lengths that formulas of a sheet interpolate.
#
# If prefill fills some of the steps, TTFT does not depend on the output length, and decode takes the rest of the
# service time. If prefill fills every step, decode takes full steps and TTFT is the rest. Both regimes are nearly
# linear in users and lengths, the crossover is not. The TTFT of the first regime and the decode time of the second are
# tabulated beside the service time, and a sheet interpolates all three before it takes the minimum:
#
#     further = min(served − first_least, further_most)        first = served − further
#
# Input lengths at which a prefill takes one step more, or no longer fits a CUDA graph, have points on both sides. The
# grid ignores the KV pool: a sheet compares the users with the pool itself.

#: terms of an interval bound, as of `glmplan.prediction.evidence.IntervalTerms`
TERMS: tuple[str, ...] = ("inside", "widest", "independent", "stages")
#: limits of the largest number of users per machine in the grid
_LEAST_USERS, _MOST_USERS = 64, 512
#: additional points where step times bend most between powers of two
_FEW = (3, 6)
#: octaves of the grid around the lengths of the load
_PROMPT_OCTAVES, _ANSWER_OCTAVES = (-3, 3), (-2, 2)
_RATES = ("output_rate", "tpot")
#: users, inputs and outputs
_Points = tuple[np.ndarray, np.ndarray, np.ndarray]
#: shortest input and output of a grid [token]
_SHORTEST = 16
#: largest number of prefill steps whose boundary has points on both sides
_MOST_STEPS = 8
#: tokens of a step that decode may take at such a boundary [token]
_ANSWERING = 16
#: output lengths, over the one at which prefill fills every step, that isolate each of the two regimes [-]
_LONG, _SHORT = 2.0, 0.75
#: ratio of TTFT to that of the first regime from which prefills wait for each other [-]
_WAITED = 1.02


@dataclass(frozen=True, slots=True)
class Axes:
    """Axes of the grid, ascending: users per machine, input and output length."""

    users: tuple[int, ...]
    inputs: tuple[TokenCount, ...]
    outputs: tuple[TokenCount, ...]
    #: input and output length of the load
    lengths: tuple[TokenCount, TokenCount]

    @property
    def points(self) -> _Points:
        """Return users, inputs and outputs of every point.

        Users vary fastest, inputs slowest.
        """
        inputs, outputs, users = np.meshgrid(self.inputs, self.outputs, self.users, indexing="ij")
        return users.ravel(), inputs.ravel(), outputs.ravel()


def axes_of(
    load: tuple[int, TokenCount, TokenCount],
    longest: TokenCount,
    *,
    capacity: float = 0.0,
    servers: Iterable[int] = (1,),
    budgets: Iterable[float] = (),
    graphs: Iterable[float] = (),
) -> Axes:
    """Return a grid around a load (users, input, output).

    Users up to four times the load and to `capacity` (64 to 512), input from 1/8 to 8 times, output from 1/4 to 4
    times. The load itself has points, and users at which intervals have other widths on each of `servers`. Inputs
    around multiples of `budgets` (token budget of a step) and of `graphs` (longest prefill in a CUDA graph) are added,
    where the time jumps.

    Examples
    --------
    >>> axes_of((8, 2048, 512), 131072).outputs
    (128, 256, 512, 1024, 2048)
    >>> axes_of((20, 2048, 512), 131072, capacity=100.0).users
    (1, 2, 3, 4, 5, 6, 8, 16, 17, 20, 32, 64, 65, 128)
    >>> axes_of((8, 1000, 500), 131072, budgets=[4096], graphs=[512]).inputs
    (125, 250, 500, 512, 513, 1000, 2000, 4000, 4080, 4097, 8000)
    """
    users, input_tokens, output_tokens = load
    most = int(min(max(_LEAST_USERS, 4 * users, capacity), _MOST_USERS))
    powers = [1 << bit for bit in range((most - 1).bit_length() + 1)]
    bands = [math.ceil(end) * number for end in BANDS for number in servers]
    count = sorted({*_FEW, *powers, *(one for one in (*bands, users) if one < powers[-1])})
    outputs = _octaves(output_tokens, _ANSWER_OCTAVES, longest // 2)
    inputs = _octaves(input_tokens, _PROMPT_OCTAVES, longest - outputs[-1])
    jumps = {int(length) + more for length in graphs for more in (0, 1)}
    for budget in budgets:
        for steps in range(1, _MOST_STEPS + 1):
            jumps |= {steps * (int(budget) - _ANSWERING), steps * int(budget) + 1}
    inputs = tuple(sorted({*inputs, *(length for length in jumps if inputs[0] < length < inputs[-1])}))
    return Axes(tuple(count), inputs, outputs, (input_tokens, output_tokens))


def _octaves(middle: TokenCount, octaves: tuple[int, int], most: TokenCount) -> tuple[TokenCount, ...]:
    lengths = {round(middle * 2.0**power) for power in range(octaves[0], octaves[1] + 1)}
    inside = sorted(length for length in lengths if _SHORTEST <= length <= most)
    return tuple(inside if len(inside) > 1 else (middle, 2 * middle))


@dataclass(frozen=True, slots=True, eq=False)
class Spreads:
    """90 % prediction intervals of a deployment."""

    #: metric → `TERMS` of both bounds of log(measured / predicted time), away from zero, at the users of the grid in
    #: each band of inputs (n, 5, 2, 4)
    bands: dict[str, np.ndarray]
    #: calibrated domains: minimum and maximum of users, input and output; the farthest widens the interval
    domains: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """Predicted times of a deployment over the grid (inputs, outputs, users)."""

    axes: Axes
    #: users times output tokens over the throughput
    request: SecondsArray
    #: mean TTFT plus mean decode time
    served: SecondsArray
    #: TTFT if prefills do not wait for each other
    first_least: SecondsArray
    #: decode time if prefill fills every step
    further_most: SecondsArray
    #: TTFT and decode time without the first request of each user, as safe users are judged, over those with it: at the
    #: users of the grid, for the lengths of the load (2, n)
    steady: np.ndarray
    #: quantiles of both times at the same points over their bounds, at `prediction.distribution.PLACES` (2, n, 9)
    tails: np.ndarray
    #: lower bounds by the published rates of the machine
    least_request: SecondsArray
    least_further: SecondsArray
    spreads: Spreads
    #: evidence level and its text
    knowledge: str
    basis: str


class Surfaces:
    """Surfaces of several deployments with shared step histograms.

    `progress` is called with the surfaces done and their total.
    """

    def __init__(self, axes: Axes, progress: Callable[[int, int], None] | None = None) -> None:
        self.axes = axes
        self._mixes: dict[object, StepHistograms] = {}
        self._progress, self._done = progress, 0

    def of(self, planned: Deployed, left: int = 0) -> Surface:
        """Return the surface of a deployment; `left` surfaces follow it."""
        points = self._points(planned)
        users, inputs, outputs = points
        columns = self._columns(planned, points)
        per_token, per_step = self._least(planned, points)
        least_request, least_further = users * outputs * per_token, per_step * (outputs - 1)
        request = np.maximum(users * outputs / columns.figures["output_rate"], least_request)
        served, first_least, further_most = self._times(columns, least_further, outputs)
        steady, tails = self._settled(planned)
        surface = Surface(
            axes=self.axes,
            request=self._shaped(request),
            served=served,
            first_least=first_least,
            further_most=further_most,
            steady=steady,
            tails=tails,
            least_request=self._shaped(least_request),
            least_further=self._shaped(least_further),
            spreads=self._spreads(planned, columns),
            knowledge=columns.knowledge,
            basis=columns.basis,
        )
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._done + left)
        return surface

    def _points(self, planned: Deployed) -> _Points:
        """Return the grid points, then points of long and of short outputs.

        The latter lie in each of the two regimes.
        """
        axes, deployed = self.axes, planned.deployment
        inputs, users = (axis.ravel() for axis in np.meshgrid(axes.inputs, axes.users, indexing="ij"))
        servers = np.minimum(planned.holding.terms.replicas, users)
        # output length at which decode takes as many steps as the prefill of all users
        even = users / servers * inputs / deployed.defaults.budget_of(deployed.dp) * deployed.tokens_per_step
        long = np.maximum(np.ceil(_LONG * even), axes.outputs[-1])
        short = np.maximum(np.floor(_SHORT * even), 2)
        points = [np.concatenate(parts) for parts in zip(
            axes.points, (users, inputs, long.astype(int)), (users, inputs, short.astype(int)), strict=True
        )]  # fmt: skip
        return points[0], points[1], points[2]

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        """Return values of grid points as an array (inputs, outputs, users)."""
        axes = self.axes
        shape = (len(axes.inputs), len(axes.outputs), len(axes.users))
        return values[: shape[0] * shape[1] * shape[2]].reshape(shape)

    def _times(
        self, columns: Columns, least_further: np.ndarray, outputs: np.ndarray
    ) -> tuple[SecondsArray, SecondsArray, SecondsArray]:
        """Return `Surface.served`, `Surface.first_least`, `Surface.further_most`.

        At every grid point the formula of the sheet returns the prediction itself.
        """
        axes, first = self.axes, columns.figures["ttft"]
        further = np.maximum(np.nan_to_num(columns.figures["tpot"]) * (outputs - 1), least_further)
        count = len(axes.points[0])
        no_wait, _ = (half.reshape(len(axes.inputs), 1, -1) for half in np.split(first[count:], 2))
        _, full = (half.reshape(len(axes.inputs), 1, -1) for half in np.split((further / (outputs - 1))[count:], 2))
        _, short = (half.reshape(len(axes.inputs), 1, -1) for half in np.split(outputs[count:], 2))
        after = np.array(axes.outputs)[None, :, None] - 1.0
        first, further = self._shaped(first), self._shaped(further)
        waits = first > _WAITED * no_wait
        first_least = np.where(waits, np.minimum(first, no_wait), first)
        filled = waits | (short - 1 >= after)
        return first + further, first_least, np.where(filled, further, np.maximum(further, full * after))

    def _spreads(self, planned: Deployed, columns: Columns) -> Spreads:
        """Return the intervals at the users of the grid in each band of inputs."""
        deployed, prompts = planned.deployment, np.array([1.0, *(end + 1.0 for end in PROMPTS)])
        shape = len(self.axes.users), len(prompts), 2, len(TERMS)
        if not runs_on_accelerators(deployed):
            # intervals of Apple machines and host offload depend little on the lengths: take the widest of the grid
            widest = {}
            for name in ("ttft", "tpot", "output_rate"):
                ends = [columns.figures[name + end] / columns.figures[name] for end in ("_low", "_high")]
                logs = np.log(ends if name != "output_rate" else [1 / ends[1], 1 / ends[0]])
                low, high = (
                    np.nanmax(sign * self._shaped(log), axis=(0, 1)) for sign, log in zip((-1, 1), logs, strict=True)
                )
                none = np.zeros(len(low))
                terms = [(end, none + np.inf, none, none) for end in (low, high)]
                widest[name] = np.broadcast_to(np.moveaxis(np.array(terms), -1, 0)[:, None], shape)
            return Spreads(widest, ())
        busy = np.array(self.axes.users) / np.minimum(self.axes.users, planned.holding.terms.replicas)
        of_users, of_prompts = (axis.ravel() for axis in np.meshgrid(busy, prompts, indexing="ij"))
        known = evidence_of_points(
            deployed, of_users, of_prompts, np.ones(len(of_users)), fit=load_effects(deployed.engine)
        )
        bands = {}
        for name in ("ttft", "tpot", "output_rate"):
            of = known.terms[INTERVAL_KINDS[name]]
            rows = [
                (sign * of.inside[end], sign * of.farthest[end], of.apart[end], of.stages)
                for end, sign in enumerate((-1, 1))
            ]
            bands[name] = np.moveaxis(np.array(rows), -1, 0).reshape(shape)
        return Spreads(bands, known.domains)

    def _settled(self, planned: Deployed) -> tuple[np.ndarray, np.ndarray]:
        """Return `Surface.steady` and `Surface.tails`."""
        users = np.array(self.axes.users)
        inputs, outputs = (np.full(len(users), length) for length in self.axes.lengths)
        loads = self._loads(planned, (users, inputs, outputs))
        loads += [load.steady() for load in loads]
        found = [one.figures for one in predict_many([(planned.deployment, load, None) for load in loads])]
        times = np.array([[one[name].value for one in found] for name in ("ttft", "tpot")]).reshape(2, 2, -1)
        tails = [[quantile_table(one[name].tail) for one in found[len(users) :]] for name in ("ttft", "tpot")]
        return times[:, 1] / times[:, 0], np.array(tails)

    def _columns(self, planned: Deployed, points: _Points) -> Columns:
        deployed, replicas = planned.deployment, planned.holding.terms.replicas
        if replicas == 1 and runs_on_accelerators(deployed):
            return columns_of(deployed, self._mixes_of(planned, points))
        return exact_columns(deployed, self._loads(planned, points))

    def _mixes_of(self, planned: Deployed, points: _Points) -> StepHistograms:
        deployed = planned.deployment
        key = packing_key(
            deployed.defaults, ranks=deployed.dp, tokens_per_step=deployed.tokens_per_step,
            draft_tokens=deployed.draft_chain,
        )  # fmt: skip
        if key not in self._mixes:
            self._mixes[key] = step_histograms_of(*points, key)
        return self._mixes[key]

    def _loads(self, planned: Deployed, points: _Points) -> list[Load]:
        """Return the loads of all points, for replicas and host offload."""
        asked, replicas = planned.asked, planned.holding.terms.replicas
        return [
            load_of(asked.but(input_tokens=int(i), output_tokens=int(o)), planned.deployment, None, int(u), replicas)
            for u, i, o in zip(*points, strict=True)
        ]

    def _least(self, planned: Deployed, points: _Points) -> tuple[np.ndarray, np.ndarray]:
        """Return lower bounds of the time per output token, and of TPOT."""
        deployed = planned.deployment
        if not runs_on_accelerators(deployed):
            return np.zeros(len(points[0])), np.zeros(len(points[0]))
        if planned.holding.terms.replicas > 1:
            parts = [whole_loads(load) for load in self._loads(planned, points)]
            seen = [metrics_of(load) for loads in parts for load in loads]
            least = least_of([deployed] * len(seen), [load.points for load in seen])
            times = [
                [float(load.figures[name].weights @ seconds) if name in load.figures else 0.0 for name in _RATES]
                for load, seconds in zip(seen, least, strict=True)
            ]
            total, token = np.array(times).T
            first = np.cumsum([0, *(len(loads) for loads in parts)])[:-1]
            rates = np.array([load.figures["output_rate"].scale for load in seen]) / total
            return 1.0 / np.add.reduceat(rates, first), np.minimum.reduceat(token, first)
        mixes = self._mixes_of(planned, points)
        column = mixes.table.values(least_of([deployed], [mixes.table.points])[0])
        return mixes.matrices["output_rate"] @ column / mixes.tokens, mixes.matrices["tpot"] @ column


@dataclass(frozen=True, slots=True)
class Wanted:
    """A requested option."""

    on: str
    machines: int = 1
    #: ``buy``, ``rent``, or empty for the default
    paid: str = ""
    #: further arguments of `glmplan.deployment`
    said: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Memory of an accelerator of one pipeline stage."""

    weights: Bytes
    activation: Bytes
    graphs: Bytes
    buffers: Bytes
    reserve: Bytes
    #: limit of the engine
    usable: Bytes
    capacity: Bytes
    #: KV pool, expected and at the lower bound of the 90 % interval
    pool: Bytes
    pool_low: Bytes
    #: KV cache per token
    per_token: Bytes
    #: state of a request of any length
    state: Bytes
    #: sliding windows and their bytes per token
    windows: tuple[tuple[Tokens, Bytes], ...]


@dataclass(frozen=True)
class Cached:
    """An option with one format of the KV cache."""

    planned: Deployed
    stages: tuple[Stage, ...]
    #: block size of the KV pool
    block: Tokens
    #: separate KV pools: attention data parallelism times replicas
    copies: float
    #: largest number of running requests
    seats: float
    #: longest request that a pool holds alone, expected and at the lower bound
    longest: Tokens
    longest_low: Tokens
    surface: Surface

    @property
    def kv(self) -> str:
        """Return the format of the KV cache."""
        return self.planned.holding.terms.kv


@dataclass(frozen=True)
class Option:
    """One row of the sheet Options."""

    wanted: Wanted
    #: one for each KV cache format, that of the plan first
    cached: tuple[Cached, ...]
    #: price of one machine; None if it has none, with the reason in `purchase_missing`
    purchase: Purchase | None
    purchase_missing: str
    #: price of an accelerator hour
    rent: Quotation | None
    rent_term: str
    rent_missing: str
    #: the way of least monthly cost
    cheapest: str

    @property
    def planned(self) -> Deployed:
        """Return the deployment with the default KV cache format."""
        return self.cached[0].planned

    @property
    def way(self) -> str:
        """Return the way to pay, the cheapest by default."""
        return self.wanted.paid or self.cheapest


def read_wanted(words: str | None, on: str | None, model: str) -> tuple[Wanted, ...]:
    """Return the requested options of a workbook, each once.

    - `words`: Machines with commas, ``3*MACHINE`` for several of one, or the file of ``glmplan size --format json``.
    - `model`: Must be the model of that file.

    Examples
    --------
    >>> [(option.on, option.machines) for option in read_wanted("2*8xh200-sxm", "6xrtx-pro-6000-ws", "glm-5.1")]
    [('6xrtx-pro-6000-ws', 1), ('8xh200-sxm', 2)]
    """
    wanted = [_counted(on)] if on else []
    if words is not None and words.lower().endswith(".json"):
        wanted += _from_size(words, model)
    else:
        wanted += [_counted(text) for text in (words or "").split(",") if text.strip()]
    if not wanted:
        raise SpecError("names no machine: add --on MACHINE or --options A,B,C", field="--on")
    return tuple(dict.fromkeys(wanted))


def _counted(text: str) -> Wanted:
    count, star, machine = text.strip().partition("*")
    if not star:
        return Wanted(text.strip())
    if not count.strip().isdigit() or int(count) < 1:
        raise SpecError("is no number of machines, as in 2*8xh200-sxm", field="--options", value=text)
    return Wanted(machine.strip(), int(count))


def _from_size(path: str, model: str) -> list[Wanted]:
    content = read_json(path)
    with understood(path, "answer of glmplan size --format json"):
        if not str(model).startswith(str(content["model"])):
            raise SpecError(f"is about {content['model']}, not about {model}", file=path, field="model")
        rows = [row for row in content["options"] if row["role"] in OFFERED]
        wanted = []
        for row in rows:
            paid = str(row["paid"]).partition(" ")[0]
            said: dict[str, Any] = {
                "weights": str(row["weights"]),
                "engine": str(row["engine"]),
                "kv": str(row["cache"]),
            }
            said |= {name: int(degree) for name, degree in row.get("degrees", {}).items()}
            said |= {"mtp": int(row["speculative_tokens"])} if row.get("speculative_tokens") else {}
            said |= {"power_limit": float(row["power_limit_w"])} if row.get("limited") else {}
            wanted.append(Wanted(str(row["machine"]), int(row["machines"]), paid, tuple(said.items())))
    if not wanted:
        raise SpecError("holds no machine that meets the SLO", file=path, field="options")
    return wanted


def options_of(
    model: str,
    wanted: Sequence[Wanted],
    money: Money,
    *,
    load: tuple[int, int, int],
    said: Mapping[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Option, ...]:
    """Plan, tabulate and price options for a load (users, input, output)."""
    users, inputs, outputs = load
    plans = [_plans(model, option, load, said) for option in wanted]
    longest = min(formats[0].asked.longest_request for formats in plans)
    share = max(-(-users // option.machines) for option in wanted)
    deployed = [plan.deployment for formats in plans for plan in formats]
    budgets = {float(one.defaults.budget_of(one.dp)) for one in deployed}
    graphs = {float(one.graph_tokens) for one in deployed}
    capacity = max(min(plan.holding.held, _seats(plan)) for formats in plans for plan in formats)
    servers = {plan.holding.terms.replicas for formats in plans for plan in formats}
    axes = axes_of(
        (share, inputs, outputs), longest, capacity=capacity, servers=servers, budgets=budgets, graphs=graphs
    )
    surfaces = Surfaces(axes, progress)
    money = money.at_one_term(formats[0].asked.machine for formats in plans)
    left = sum(map(len, plans))
    options = []
    for option, formats in zip(wanted, plans, strict=True):
        cached = []
        for planned in formats:
            left -= 1
            cached.append(_cached(planned, surfaces.of(planned, left)))
        options.append(_priced(option, tuple(cached), money))
    return tuple(options)


def _plans(model: str, wanted: Wanted, load: tuple[int, int, int], said: Mapping[str, Any]) -> list[Deployed]:
    """Return the plan of an option in each KV cache format of its engine.

    Format and layout are those of `fit` for the users of one machine.
    """
    users, inputs, outputs = load
    share = (-(-users // wanted.machines),)
    given: dict[str, Any] = {"users": share, "input": inputs, "output": outputs} | dict(said) | dict(wanted.said)
    first = deployment(model, wanted.on, **given)
    if not prompts_timed(first.asked):
        words = "cells of a workbook compute with both: leave it out, or"
        raise UnknownFact(f"{wanted.on}: {untimed_words(first.asked)}, and {words} {completed_words(first.asked)}")
    terms = first.holding.terms
    layout = {name: getattr(terms, name) for name in ("tp", "pp", "dp", "ep", "dcp", "replicas")}
    plans = [first]
    for form in load_engine(first.asked.engine).cache_formats:
        part = first.asked.machine.accelerator
        if form.format == terms.kv or (form.silicon is not None and not part.supports(form.silicon)):
            continue
        try:
            other = deployment(model, wanted.on, **(given | layout | {"kv": form.format}))
        except GlmplanError:  # no kernels on this accelerator, or the cache does not fit
            continue
        if other.holding.terms.kv not in [plan.holding.terms.kv for plan in plans]:
            plans.append(other)
    return plans


def _cached(planned: Deployed, surface: Surface) -> Cached:
    holding, terms = planned.holding, planned.holding.terms
    memory = holding.memory
    return Cached(
        planned=planned,
        stages=tuple(_stages(holding)),
        block=float(memory.settings.block(memory.sparse)) * terms.dcp,
        copies=float(terms.dp * terms.replicas),
        seats=_seats(planned),
        longest=holding.context,
        longest_low=holding.context_low,
        surface=surface,
    )


def _seats(planned: Deployed) -> float:
    """Return the largest number of running requests."""
    terms = planned.holding.terms
    return float(seats_of(planned.asked, terms.dp) * terms.replicas)


def _stages(holding: Holding) -> list[Stage]:
    memory, point = holding.memory, holding.point
    rows: dict[str, MemoryBudget] = {}
    for row in holding.rows():  # the fullest rank of each stage
        name = row.label.partition("stage ")[2].partition(",")[0] or "0"
        if name not in rows or sum(row.weights.values()) > sum(rows[name].weights.values()):
            rows[name] = row
    stages = []
    for number, (stage, terms) in enumerate(zip(memory.stages, stage_pools(memory, holding.part), strict=True)):
        if not bool(stage.held[point]):
            continue
        row = rows[str(number)]
        stages.append(
            Stage(
                weights=float(stage.weight_bytes[point]),
                activation=row.activation,
                graphs=row.graphs,
                buffers=row.communication,
                reserve=row.reserve,
                usable=row.usable,
                capacity=row.capacity,
                pool=max(float(terms.pool[point]), 0.0),
                pool_low=max(float((terms.pool + LOW * terms.deviation(LOW))[point]), 0.0),
                per_token=float(stage.per_token[point]),
                state=float(stage.state[point]),
                windows=tuple((float(window[point]), float(held[point])) for window, held in stage.windows),
            )
        )
    return stages


def _priced(wanted: Wanted, cached: tuple[Cached, ...], money: Money) -> Option:
    asked = cached[0].planned.asked
    ways = ways_of(asked.machine, money, machines=wanted.machines, limit=asked.power_limit)
    (rented,) = ways_of(asked.machine, money, kinds=("rent",))
    (bought,) = ways_of(asked.machine, money, kinds=("buy",))
    assert bought.purchase is not None
    cheapest = "rent" if ways[0].usd is not None and ways[0].purchase is None else "buy"
    missing = "; ".join(bought.purchase.missing)
    term = rented.paid.removeprefix("rent").strip()
    return Option(wanted, cached, bought.purchase, missing, rented.hourly, term, rented.missing, cheapest)
