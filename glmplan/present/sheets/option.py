"""One machine that a buyer may take: its layout, what it holds in each cache format, its speeds and its prices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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
from glmplan.planner.ranking import load_of, seats_of
from glmplan.prediction.effects import LEVELS, keys_of, load_effects
from glmplan.prediction.evidence import BANDS, PROMPTS, known_of_points
from glmplan.prediction.load import ENDLESS, Load, observables
from glmplan.prediction.replicas import whole_loads
from glmplan.prediction.step_models import least_of, runs_on_accelerators
from glmplan.purchase.money import Money, Purchase, purchase_of, rent_of
from glmplan.purchase.step_histograms import (
    Columns,
    StepHistograms,
    columns_of,
    exact_columns,
    packing_key,
    step_histograms_of,
)
from glmplan.units import TokenCount

__all__ = [
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


# What is predicted over a grid of users and lengths, so that a sheet can read between the points of the grid.
#
# Where prompts fill some of the steps, a request waits for its first token as long as for any length of answer, and its
# further tokens take what is left of its time. Where prompts fill every step, a token takes a full step, and the wait
# is
# what is left. Each of the two is nearly linear in users and lengths; what lies at the change between them is not. So
# the
# first token of the one kind and the further tokens of the other are tabulated beside the time of a request, and a
# sheet
# reads all three along straight lines before it takes the smaller:
#
#     further = min(served − first_least, further_most)        first = served − further
#
# Prompts that take one step more, or no longer fit into graphs, have points on both sides. No cache pool limits what is
# tabulated: a sheet compares users with what the pool holds by itself, and shows no speed beyond.

#: least and most users of one machine that are tabulated, [-]
_LEAST_USERS, _MOST_USERS = 64, 512
#: few users share steps in ways that bend most between powers of two [-]
_FEW = (3, 6)
#: how often lengths are halved and doubled from those that were asked for, [-]
_PROMPT_OCTAVES, _ANSWER_OCTAVES = (-3, 3), (-2, 2)
_RATES = ("output_rate", "tpot")
#: users, prompts and answers
_Points = tuple[np.ndarray, np.ndarray, np.ndarray]
#: shortest prompt and answer of a grid [token]
_SHORTEST = 16
#: prompts of so many steps have points where they take one more [-]
_MOST_STEPS = 8
#: tokens of a step that requests take which already answer, while one more step matters [token]
_ANSWERING = 16
#: answers so much longer than prompts fill steps that prompts do not wait for each other, and so much shorter that they
#: fill every step [-]
_LONG, _SHORT = 2.0, 0.75
#: a first token that comes so much later has waited for other prompts [-]
_WAITED = 1.02


@dataclass(frozen=True, slots=True)
class Axes:
    """The points of the grid.

    Attributes
    ----------
    users, inputs, outputs : tuple of int
        Rising: users of one machine [-], prompt and answer [token]
    """

    users: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def points(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Users, inputs and outputs of every point; inputs first, then outputs, then users, [-] and [token]"""
        inputs, outputs, users = np.meshgrid(self.inputs, self.outputs, self.users, indexing="ij")
        return users.ravel(), inputs.ravel(), outputs.ravel()


def axes_of(
    users: int,
    input_tokens: TokenCount,
    output_tokens: TokenCount,
    longest: TokenCount,
    *,
    budgets: Iterable[float] = (),
    graphs: Iterable[float] = (),
) -> Axes:
    """A grid around a load.

    - `budgets`: Tokens of a step: a prompt that is one token longer takes one more, which a straight line would
      smear, [token].
    - `graphs`: Longest prompts that are replayed from graphs: one that is longer is launched kernel by kernel,
      [token].
    - Returns: Users in powers of two, and finer where they are few, to four times those asked for (64 to 512);
      prompts from an eighth to eight times, answers from a quarter to four times what was asked for.

    Examples
    --------
    >>> axes_of(8, 2048, 512, 131072).outputs
    (128, 256, 512, 1024, 2048)
    >>> axes_of(8, 1000, 500, 131072, budgets=[4096], graphs=[512]).inputs
    (125, 250, 500, 512, 513, 1000, 2000, 4000, 4080, 4097, 8000)
    """
    most = min(max(_LEAST_USERS, 4 * users), _MOST_USERS)
    count = sorted({*_FEW, *(1 << bit for bit in range(most.bit_length()))})
    outputs = _octaves(output_tokens, _ANSWER_OCTAVES, longest // 2)
    inputs = _octaves(input_tokens, _PROMPT_OCTAVES, longest - outputs[-1])
    breaks = {int(one) + more for one in graphs for more in (0, 1)}
    for one in budgets:
        for steps in range(1, _MOST_STEPS + 1):
            breaks |= {steps * (int(one) - _ANSWERING), steps * int(one) + 1}
    inputs = tuple(sorted({*inputs, *(one for one in breaks if inputs[0] < one < inputs[-1])}))
    return Axes(tuple(count), inputs, outputs)


def _octaves(middle: int, octaves: tuple[int, int], most: int) -> tuple[int, ...]:
    found = {round(middle * 2.0**power) for power in range(octaves[0], octaves[1] + 1)}
    inside = sorted(one for one in found if _SHORTEST <= one <= most)
    return tuple(inside if len(inside) > 1 else (middle, 2 * middle))


@dataclass(frozen=True, slots=True, eq=False)
class Spreads:
    """Ends of the 90 % intervals: by bands of users and prompts, and wider outside of what was measured.

    Attributes
    ----------
    bands : dict of str to (6, 5, 2) array
        ``ttft``, ``tpot``, ``output_rate`` → for each band of users and of prompts the logarithm of measured over
        predicted time at both ends, [-]
    domain : tuple of float or None
        Least and most of users [-], prompts and answers [token] that were measured; None where nothing is widened
    """

    bands: dict[str, np.ndarray]
    domain: tuple[float, ...] | None


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """Predicted times of one deployment.

    Attributes
    ----------
    axes : Axes
        The grid.
    request : (inputs, outputs, users) array
        Time of all tokens that the machine makes while it serves one request of each user, [s]
    served : (inputs, outputs, users) array
        Time until the first token and of all after it, mean over requests, [s]
    first_least : (inputs, outputs, users) array
        Time until the first token where prompts wait for no others, [s]
    further_most : (inputs, outputs, users) array
        Time of all tokens after the first where prompts fill every step, [s]
    least_request, least_further : (inputs, outputs, users) array
        What no end of an interval beats: the published rates of the machine allow no less, [s]
    spreads : Spreads
        Ends of their intervals.
    knowledge, basis : str
        What they rest on.
    """

    axes: Axes
    request: np.ndarray
    served: np.ndarray
    first_least: np.ndarray
    further_most: np.ndarray
    least_request: np.ndarray
    least_further: np.ndarray
    spreads: Spreads
    knowledge: str
    basis: str


class Surfaces:
    """Surfaces of several deployments; loads are packed into steps once for all that pack them alike.

    Parameters
    ----------
    axes : Axes
        The grid of all.
    progress : callable, optional
        Called with how many surfaces are done and how many there will be, [-]
    """

    def __init__(self, axes: Axes, progress: Callable[[int, int], None] | None = None) -> None:
        self.axes = axes
        self._mixes: dict[object, StepHistograms] = {}
        self._progress, self._done = progress, 0

    def of(self, planned: Deployed, left: int = 0) -> Surface:
        """Tabulate a deployment."""
        points = self._points(planned)
        users, inputs, outputs = points
        found = self._columns(planned, points)
        whole, token = self._least(planned, points)
        least_request, least_further = users * outputs * whole, token * (outputs - 1)
        request = np.maximum(users * outputs / found.figures["output_rate"], least_request)
        further = np.maximum(np.nan_to_num(found.figures["tpot"]) * (outputs - 1), least_further)
        first_least, further_most = self._branches(found.figures["ttft"], further, outputs)
        surface = Surface(
            axes=self.axes,
            request=self._shaped(request),
            served=self._shaped(found.figures["ttft"] + further),
            first_least=first_least,
            further_most=further_most,
            least_request=self._shaped(least_request),
            least_further=self._shaped(least_further),
            spreads=_spreads(planned, found),
            knowledge=found.knowledge,
            basis=found.basis,
        )
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._done + left)
        return surface

    def _points(self, planned: Deployed) -> _Points:
        """The grid, and behind it for all users and prompts answers so long that prompts do not wait for each other,
        and so short that they fill every step.
        """
        axes, deployed = self.axes, planned.deployment
        inputs, users = (one.ravel() for one in np.meshgrid(axes.inputs, axes.users, indexing="ij"))
        servers = np.minimum(planned.holding.terms.replicas, users)
        # answers whose tokens take as many steps as the prompts of all users
        even = users / servers * inputs / deployed.defaults.budget_of(deployed.dp) * deployed.tokens_per_step
        long = np.maximum(np.ceil(_LONG * even), axes.outputs[-1])
        short = np.maximum(np.floor(_SHORT * even), 2)
        found = [np.concatenate(parts) for parts in zip(
            axes.points, (users, inputs, long.astype(int)), (users, inputs, short.astype(int)), strict=True
        )]  # fmt: skip
        return found[0], found[1], found[2]

    def _shaped(self, values: np.ndarray) -> np.ndarray:
        """Values of the points of the grid, (inputs, outputs, users)."""
        axes = self.axes
        shape = (len(axes.inputs), len(axes.outputs), len(axes.users))
        return values[: shape[0] * shape[1] * shape[2]].reshape(shape)

    def _branches(self, first: np.ndarray, further: np.ndarray, outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First token where prompts wait for no others, and further tokens where prompts fill every step, [s]

        At every point of the grid the smaller of the two branches is what was predicted there.
        """
        axes = self.axes
        count = len(axes.points[0])
        alone, _ = (one.reshape(len(axes.inputs), 1, -1) for one in np.split(first[count:], 2))
        _, full = (one.reshape(len(axes.inputs), 1, -1) for one in np.split((further / (outputs - 1))[count:], 2))
        _, short = (one.reshape(len(axes.inputs), 1, -1) for one in np.split(outputs[count:], 2))
        after = np.array(axes.outputs)[None, :, None] - 1.0
        first, further = self._shaped(first), self._shaped(further)
        waits = first > _WAITED * alone
        first_least = np.where(waits, np.minimum(first, alone), first)
        filled = waits | (short - 1 >= after)
        return first_least, np.where(filled, further, np.maximum(further, full * after))

    def _columns(self, planned: Deployed, points: _Points) -> Columns:
        deployed, replicas = planned.deployment, planned.holding.terms.replicas
        if replicas == 1 and runs_on_accelerators(deployed):
            return columns_of(deployed, self._mixes_of(planned, points))
        return exact_columns(deployed, self._loads(planned, points))

    def _mixes_of(self, planned: Deployed, points: _Points) -> StepHistograms:
        deployed = planned.deployment
        key = packing_key(deployed.defaults, ranks=deployed.dp, tokens_per_step=deployed.tokens_per_step)
        if key not in self._mixes:
            self._mixes[key] = step_histograms_of(*points, key)
        return self._mixes[key]

    def _loads(self, planned: Deployed, points: _Points) -> list[Load]:
        """Loads of all points where servers share the users, or weights stay in host memory."""
        asked, replicas = planned.asked, planned.holding.terms.replicas
        return [
            load_of(asked.but(input_tokens=int(i), output_tokens=int(o)), planned.deployment, ENDLESS, int(u), replicas)
            for u, i, o in zip(*points, strict=True)
        ]

    def _least(self, planned: Deployed, points: _Points) -> tuple[np.ndarray, np.ndarray]:
        """Least time of an answer token of all users, and of one user's further token, at every point, [s]"""
        deployed = planned.deployment
        if not runs_on_accelerators(deployed):
            return np.zeros(len(points[0])), np.zeros(len(points[0]))
        if planned.holding.terms.replicas > 1:
            parts = [whole_loads(load) for load in self._loads(planned, points)]
            seen = [observables(load) for loads in parts for load in loads]
            least = least_of([deployed] * len(seen), [one.points for one in seen])
            times = [
                [float(one.figures[name].weights @ seconds) if name in one.figures else 0.0 for name in _RATES]
                for one, seconds in zip(seen, least, strict=True)
            ]
            whole, token = np.array(times).T
            first = np.cumsum([0, *(len(loads) for loads in parts)])[:-1]
            rates = np.array([one.figures["output_rate"].scale for one in seen]) / whole
            return 1.0 / np.add.reduceat(rates, first), np.minimum.reduceat(token, first)
        mixes = self._mixes_of(planned, points)
        column = mixes.table.values(least_of([deployed], [mixes.table.points])[0])
        return mixes.matrices["output_rate"] @ column / mixes.tokens, mixes.matrices["tpot"] @ column


def _band_points() -> tuple[np.ndarray, np.ndarray]:
    """A number of users in each band, and a prompt length in each band."""
    users = np.ceil([1.0, *(end + 0.5 for end in BANDS)])
    return users, np.array([1.0, *(end + 1.0 for end in PROMPTS)])


def _spreads(planned: Deployed, found: Columns) -> Spreads:
    deployed = planned.deployment
    users, prompts = _band_points()
    if not runs_on_accelerators(deployed):
        # intervals of these depend little on the load: the widest of the grid
        widest = {}
        for name in INTERVAL_KINDS.keys() & {"ttft", "tpot", "output_rate"}:
            ends = [found.figures[name + end] / found.figures[name] for end in ("_low", "_high")]
            logs = np.log(ends if name != "output_rate" else [1 / ends[1], 1 / ends[0]])
            pair = (np.nanmin(logs[0]), np.nanmax(logs[1]))
            widest[name] = np.broadcast_to(pair, (len(users), len(prompts), 2)).copy()
        return Spreads(widest, None)
    fit = load_effects(deployed.engine)
    domain = fit.domain.get(keys_of(deployed)[LEVELS.index("group")])
    of_users, of_prompts = (one.ravel() for one in np.meshgrid(users, prompts, indexing="ij"))
    known = known_of_points(deployed, of_users, of_prompts, np.ones(len(of_users)), fit=replace(fit, domain={}))
    bands = {}
    for name in ("ttft", "tpot", "output_rate"):
        pairs = np.stack(known.ends[INTERVAL_KINDS[name]], axis=-1)
        bands[name] = pairs.reshape(len(users), len(prompts), 2)
    return Spreads(bands, None if not domain else tuple(float(one) for one in domain))


#: what may be said of an option beside model and machine
_DETAILS = ("weights", "kv", "engine", "engine_version", "tp", "pp", "dp", "ep", "mtp", "acceptance", "calibration")


@dataclass(frozen=True, slots=True)
class Wanted:
    """An option as it was asked for.

    Attributes
    ----------
    on : str
        The machine.
    machines : int
        How many, [-]
    paid : str
        ``buy`` or ``rent``.
    said : tuple of (str, object)
        Further arguments of `glmplan.deployment`.
    """

    on: str
    machines: int = 1
    paid: str = ""
    said: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """Memory of the accelerators of one pipeline stage.

    Attributes
    ----------
    weights, activation, graphs, buffers, reserve : float
        What they hold beside the cache, [B]
    usable, capacity : float
        What the engine's rule allows, and what there is, [B]
    pool, pool_low : float
        What is left for the cache, mean and low end of the 90 % interval, [B]
    per_token, state : float
        Cache of a token, and of a request whatever its length, [B]
    windows : tuple of (float, float)
        Sliding windows [token] and their bytes for each token [B]
    """

    weights: float
    activation: float
    graphs: float
    buffers: float
    reserve: float
    usable: float
    capacity: float
    pool: float
    pool_low: float
    per_token: float
    state: float
    windows: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Cached:
    """An option with its cache in one format.

    Attributes
    ----------
    planned : Deployed
        The deployment.
    stages : tuple of Stage
        Memory of each pipeline stage.
    block : float
        Tokens that the cache is dealt out in, [token]
    copies : float
        Caches of their own: attention in data parallel, times servers, [-]
    seats : float
        Requests that the engine runs at once, [-]
    longest, longest_low : float
        Longest request that a cache holds alone, mean and low end, [token]
    surface : Surface
        Its speeds.
    """

    planned: Deployed
    stages: tuple[Stage, ...]
    block: float
    copies: float
    seats: float
    longest: float
    longest_low: float
    surface: Surface

    @property
    def kv(self) -> str:
        """Format of the cache."""
        return self.planned.holding.terms.kv


@dataclass(frozen=True)
class Option:
    """One row of the sheet of options.

    Attributes
    ----------
    wanted : Wanted
        As it was asked for.
    cached : tuple of Cached
        By format of the cache, the one that the plan takes first.
    purchase : Purchase or None
        What one machine costs; None where it cannot be priced.
    purchase_missing : str
        Which price is missing.
    rent : Quotation or None
        An accelerator hour.
    rent_term, rent_missing : str
        Term of the rent, or what is missing.
    """

    wanted: Wanted
    cached: tuple[Cached, ...]
    purchase: Purchase | None
    purchase_missing: str
    rent: Quotation | None
    rent_term: str
    rent_missing: str

    @property
    def planned(self) -> Deployed:
        """The deployment in the format that the plan takes."""
        return self.cached[0].planned

    @property
    def way(self) -> str:
        """``buy`` unless only a rent is known, or as it was asked for."""
        if self.wanted.paid:
            return self.wanted.paid
        return "rent" if self.purchase_missing and self.rent is not None else "buy"


def read_wanted(words: str | None, on: str | None, model: str) -> tuple[Wanted, ...]:
    """Read which options a workbook shall have.

    - `words`: Machines with commas, ``3*MACHINE`` for several of one, or the file of ``glmplan size --format json``.
    - `model`: The model, which a file must be about.
    - Returns: Each once, in the order in which they were said.

    Examples
    --------
    >>> [(one.on, one.machines) for one in read_wanted("2*8xh200-sxm", "6xrtx-pro-6000-ws", "glm-5.1")]
    [('6xrtx-pro-6000-ws', 1), ('8xh200-sxm', 2)]
    """
    found = [_counted(on)] if on else []
    if words is not None and words.lower().endswith(".json"):
        found += _from_size(words, model)
    else:
        found += [_counted(one) for one in (words or "").split(",") if one.strip()]
    if not found:
        raise SpecError("names no machine: say --on MACHINE or --options A,B,C", field="--on")
    return tuple(dict.fromkeys(found))


def _counted(word: str) -> Wanted:
    count, star, machine = word.strip().partition("*")
    if not star:
        return Wanted(word.strip())
    if not count.strip().isdigit() or int(count) < 1:
        raise SpecError("is no number of machines, as in 2*8xh200-sxm", field="--options", value=word)
    return Wanted(machine.strip(), int(count))


def _from_size(path: str, model: str) -> list[Wanted]:
    content = read_json(path)
    with understood(path, "answer of glmplan size --format json"):
        if not str(model).startswith(str(content["model"])):
            raise SpecError(f"is about {content['model']}, not about {model}", file=path, field="model")
        rows = [one for one in content["options"] if one["role"] != "next cheaper"]
        found = []
        for one in rows:
            paid = str(one["paid"]).partition(" ")[0]
            said = (("weights", str(one["weights"])), ("engine", str(one["engine"])), ("kv", str(one["cache"])))
            found.append(Wanted(str(one["machine"]), int(one["machines"]), paid, said))
    if not found:
        raise SpecError("holds no machine that keeps the promise", file=path, field="options")
    return found


def options_of(
    model: str,
    wanted: Sequence[Wanted],
    money: Money,
    *,
    load: tuple[int, int, int],
    said: Mapping[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Option, ...]:
    """Plan, tabulate and price options.

    - `load`: Users [-], prompt and answer [token].
    - `progress`: Called with how many surfaces are done and how many there will be.
    """
    users, inputs, outputs = load
    plans = [_plans(model, one, inputs, outputs, said) for one in wanted]
    longest = min(found[0].asked.longest_request for found in plans)
    share = max(-(-users // one.machines) for one in wanted)
    deployed = [one.deployment for found in plans for one in found]
    budgets = {float(one.defaults.budget_of(one.dp)) for one in deployed}
    graphs = {float(one.graph_tokens) for one in deployed}
    surfaces = Surfaces(axes_of(share, inputs, outputs, longest, budgets=budgets, graphs=graphs), progress)
    money = money.at_one_term(found[0].asked.machine for found in plans)
    left = sum(map(len, plans))
    made = []
    for one, found in zip(wanted, plans, strict=True):
        cached = []
        for planned in found:
            left -= 1
            cached.append(_cached(planned, surfaces.of(planned, left)))
        made.append(_priced(one, tuple(cached), money))
    return tuple(made)


def _plans(model: str, wanted: Wanted, inputs: int, outputs: int, said: Mapping[str, Any]) -> list[Deployed]:
    """The plan of an option, and the same layout with the other formats of the cache that its engine has."""
    given = dict(said) | dict(wanted.said)
    first = deployment(model, wanted.on, input=inputs, output=outputs, **given)
    terms = first.holding.terms
    layout = {name: getattr(terms, name) for name in ("tp", "pp", "dp", "ep", "dcp", "replicas")}
    found = [first]
    for form in load_engine(first.asked.engine).cache_formats:
        part = first.asked.machine.accelerator
        if form.format == terms.kv or (form.silicon is not None and not part.supports(form.silicon)):
            continue
        try:
            other = deployment(model, wanted.on, input=inputs, output=outputs, **(given | layout | {"kv": form.format}))
        except GlmplanError:  # an engine that has no kernels for it here, or a cache that does not fit
            continue
        if other.holding.terms.kv not in [one.holding.terms.kv for one in found]:
            found.append(other)
    return found


def _cached(planned: Deployed, surface: Surface) -> Cached:
    holding, terms = planned.holding, planned.holding.terms
    memory = holding.memory
    return Cached(
        planned=planned,
        stages=tuple(_stages(holding)),
        block=float(memory.settings.block(memory.sparse)) * terms.dcp,
        copies=float(terms.dp * terms.replicas),
        seats=float(seats_of(planned.asked, terms.dp) * terms.replicas),
        longest=holding.context,
        longest_low=holding.context_low,
        surface=surface,
    )


def _stages(holding: Holding) -> list[Stage]:
    memory, point = holding.memory, holding.point
    rows: dict[str, MemoryBudget] = {}
    for row in holding.rows():  # the ranks of a stage are alike: the fullest stands for them
        name = row.label.partition("stage ")[2].partition(",")[0] or "0"
        if name not in rows or sum(row.weights.values()) > sum(rows[name].weights.values()):
            rows[name] = row
    found = []
    for number, (stage, terms) in enumerate(zip(memory.stages, stage_pools(memory, holding.part), strict=True)):
        if not bool(stage.held[point]):
            continue
        row = rows[str(number)]
        found.append(
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
    return found


def _priced(wanted: Wanted, cached: tuple[Cached, ...], money: Money) -> Option:
    machine = cached[0].planned.asked.machine
    missing, purchase = "", None
    try:
        purchase = purchase_of(machine, money.prices, terms=money.terms, today=money.today)
        missing = "; ".join(purchase.missing)
    except (UnknownFact, SpecError) as error:
        missing = str(error)
    try:
        term, rent = rent_of(machine.accelerator.name, money.prices, today=money.today, term=money.rent_term)
        return Option(wanted, cached, purchase, missing, rent, term, "")
    except UnknownFact as error:
        return Option(wanted, cached, purchase, missing, None, "", str(error))
