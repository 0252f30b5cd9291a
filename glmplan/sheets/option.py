"""One machine that a buyer may take: its layout, what it holds in each cache format, its speeds and its prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glmplan.errors import GlmplanError, SpecError, UnknownFact
from glmplan.facts.catalogue.prices import Quotation
from glmplan.facts.engines.walls import load_engine
from glmplan.facts.files import read_json, understood
from glmplan.physics.memory.budget import MemoryBudget
from glmplan.physics.memory.pool import stage_pools
from glmplan.plan.ask import Deployed, deployment
from glmplan.plan.capacity import LOW, Holding
from glmplan.plan.ranking import seats_of
from glmplan.sheets.surface import Surface, Surfaces, axes_of
from glmplan.sizing.money import Money
from glmplan.sizing.purchase import Purchase, purchase_of, rent_of

__all__ = ["Cached", "Option", "Stage", "Wanted", "options_of", "read_wanted"]

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

    Parameters
    ----------
    words : str or None
        Machines with commas, ``3*MACHINE`` for several of one, or the file of ``glmplan size --format json``.
    on : str or None
        The first machine.
    model : str
        The model, which a file must be about.

    Returns
    -------
    tuple of Wanted
        Each once, in the order in which they were said.

    Raises
    ------
    SpecError
        If there is none, a number of machines is none, or the file is no answer of `size`.

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

    Parameters
    ----------
    model : str
        The model.
    wanted : sequence of Wanted
        The options.
    money : Money
        Prices and terms.
    load : tuple of int
        Users [-], prompt and answer [token]
    said : mapping
        Arguments of `glmplan.deployment` for all of them.
    progress : callable, optional
        Called with how many surfaces are done and how many there will be.

    Returns
    -------
    tuple of Option
        In the same order.

    Raises
    ------
    GlmplanError
        If an option cannot be planned: names it.
    """
    users, inputs, outputs = load
    plans = [_plans(model, one, inputs, outputs, said) for one in wanted]
    longest = min(found[0].asked.longest_request for found in plans)
    share = max(-(-users // one.machines) for one in wanted)
    deployed = [one.deployment for found in plans for one in found]
    budgets = {float(one.defaults.budget_of(one.dp)) for one in deployed}
    graphs = {float(one.graph_tokens) for one in deployed}
    surfaces = Surfaces(axes_of(share, inputs, outputs, longest, budgets=budgets, graphs=graphs), progress)
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
        term, rent = rent_of(machine.accelerator.name, money.prices, today=money.today)
        return Option(wanted, cached, purchase, missing, rent, term, "")
    except UnknownFact as error:
        return Option(wanted, cached, purchase, missing, None, "", str(error))
