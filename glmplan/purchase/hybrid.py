"""Find the cheapest mix of machines and APIs.

A mixed-integer linear programme over the hours of a day. Machines are integers with a fixed cost, APIs are paid per
request. Batchable classes are moved within the day; sensitive classes never go to an API.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from glmplan.catalog.files import read_toml
from glmplan.catalog.schema.validation import Frozen, validated
from glmplan.errors import Infeasible, SpecError
from glmplan.io.machines.resolve import resolve_machine
from glmplan.io.models.resolve import resolve_model
from glmplan.planner.ask import deployment, predict, safe
from glmplan.planner.service import loads_at
from glmplan.planner.traffic_search import described_under
from glmplan.planner.users import places_of
from glmplan.prediction.distribution import SURE
from glmplan.purchase.cost import HOURS
from glmplan.purchase.money import KINDS, Money, offers_of, ways_of
from glmplan.request.plan import PlanRequest
from glmplan.simulation.traffic.slo import METRICS, Target, parse_slo
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import PerSecond, Ratio, Usd

__all__ = [
    "SCALES",
    "ApiEntry",
    "Local",
    "Mix",
    "Portfolio",
    "RequestClass",
    "Seller",
    "best_mix",
    "break_even_scale",
    "one_more",
    "owns_at",
    "portfolio_of_offered",
    "read_portfolio",
]


#: intervals of a day
_DAY = 24
#: larger volumes are not solved exactly [1/day]
_MOST_REQUESTS = 1e12


class RequestClass(Frozen):
    """Class of uniform requests: volume, lengths, SLO, API allowed or not."""

    name: str = Field(min_length=1)
    requests_per_day: PositiveFloat = Field(le=_MOST_REQUESTS, allow_inf_nan=False)
    input: PositiveInt
    output: PositiveInt
    cached: NonNegativeInt = 0
    slo: str = ""
    sensitive: bool = False
    batchable: bool = False
    profile: tuple[float, ...] = ()

    @property
    def rates(self) -> tuple[float, ...]:
        """Return the request rate in each hour of a day [1/s]."""
        day = self.profile or Traffic.model_fields["profile"].default
        mean = sum(day) / len(day)
        return tuple(self.requests_per_day / 86_400 * load / mean for load in day)


class _LocalEntry(Frozen):
    name: str = Field(min_length=1)
    model: str = ""
    on: str = ""
    kind: str = "any"
    most: NonNegativeInt = 8
    usd_month: NonNegativeFloat | None = Field(default=None, allow_inf_nan=False)
    requests_per_s: dict[str, NonNegativeFloat] = Field(default_factory=dict)


class ApiEntry(Frozen):
    """API of the file, and its guaranteed latencies (`promises`).

    A seller of the price list, or given prices.
    """

    name: str = Field(min_length=1)
    model: str = ""
    seller: str = ""
    input: NonNegativeFloat | None = Field(default=None, allow_inf_nan=False)
    output: NonNegativeFloat | None = Field(default=None, allow_inf_nan=False)
    cached: NonNegativeFloat | None = Field(default=None, allow_inf_nan=False)
    batch_discount: float = Field(default=0.0, ge=0, lt=1)
    promises: str = ""


@dataclass(frozen=True)
class Local:
    """A type of machine that may be bought or rented several times."""

    name: str
    #: cost of one machine
    usd_month: Usd
    #: `Way.paid`, or ``as given``
    paid: str
    #: largest number of machines
    most: int
    #: class → request rate at which one machine meets the SLO of that class alone
    carries: dict[str, PerSecond]
    #: notes of prices that are defaults
    assumed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Seller:
    """An API."""

    name: str
    #: class that it may serve → price of a request
    per_request: dict[str, Usd]
    #: class that it may not serve → reason
    refused: dict[str, str]


@dataclass(frozen=True)
class Portfolio:
    """Request classes with the machines and APIs that may serve them."""

    classes: tuple[RequestClass, ...]
    locals: tuple[Local, ...]
    sellers: tuple[Seller, ...]


def read_portfolio(file: str | Path, money: Money, *, probability: Ratio = SURE) -> Portfolio:
    """Read a portfolio, with each machine's cost and capacity for a class.

    `file`: TOML with ``[[classes]]``, ``[[local]]`` and ``[[api]]``. Machines meet the SLO of a class with
    `probability`.

    Notes
    -----
    The capacity is the rate of `glmplan.safe` for that class alone with Poisson arrivals, in the layout of the plan or
    in that for the SLO, whichever serves more; without an SLO it is the lower bound of the throughput at the largest
    concurrency. A machine divides its time among classes: gains of common batches, delays of short prompts by long
    ones, and one layout for classes with different ones are not modelled. All rents are at one term.
    """
    classes, entries, apis = _entries(file)
    money = money.at_one_term(resolve_machine(entry.on) for entry in entries if entry.usd_month is None)
    return Portfolio(
        classes,
        tuple(_local(entry, classes, money, file, probability) for entry in entries),
        tuple(_seller(api, classes, money, file) for api in apis),
    )


def _entries(file: str | Path) -> tuple[tuple[RequestClass, ...], list[_LocalEntry], list[ApiEntry]]:
    """Return the checked entries of the file."""
    content = read_toml(file)
    for name in content:
        if name not in ("classes", "local", "api"):
            raise SpecError("is not a table of a portfolio", file=file, value=name, choices=("classes", "local", "api"))
    classes = tuple(validated(RequestClass, table, file) for table in _tables(content, "classes", file))
    if not classes:
        raise SpecError("is empty: give at least one class of requests", file=file, field="classes")
    _once([kind.name for kind in classes], file, "classes")
    for kind in classes:
        _check(kind, file)
    entries = [validated(_LocalEntry, table, file) for table in _tables(content, "local", file)]
    apis = [validated(ApiEntry, table, file) for table in _tables(content, "api", file)]
    _once([*(entry.name for entry in entries), *(api.name for api in apis)], file, "name")
    if not entries and not apis:
        raise SpecError("names neither a machine nor an API", file=file, field="local")
    return classes, entries, apis


def _tables(content: dict[str, Any], name: str, file: str | Path) -> list[dict[str, Any]]:
    tables = content.get(name, [])
    if not isinstance(tables, list):
        raise SpecError(f"is not a list of tables, as in [[{name}]]", file=file, field=name)
    return tables


def _once(names: list[str], file: str | Path, field: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise SpecError("is there twice", file=file, field=field, value=name)


def _check(kind: RequestClass, file: str | Path) -> None:
    if kind.cached > kind.input:
        raise SpecError("is more than the prompt", file=file, field=f"{kind.name}.cached", value=kind.cached)
    if kind.profile and (len(kind.profile) != _DAY or min(kind.profile) < 0 or max(kind.profile) <= 0):
        message = "must hold 24 numbers of at least 0, not all of them 0"
        raise SpecError(message, file=file, field=f"{kind.name}.profile", value=str(kind.profile))
    if kind.slo:
        try:
            parse_slo(kind.slo)
        except SpecError as error:
            raise SpecError(error.message, file=file, field=f"{kind.name}.slo", value=error.value,
                            choices=error.choices) from None  # fmt: skip


def _local(
    entry: _LocalEntry, classes: tuple[RequestClass, ...], money: Money, file: str | Path, probability: Ratio
) -> Local:
    if entry.kind not in KINDS:
        raise SpecError("is not one of buy, rent and any", file=file, field=f"{entry.name}.kind", value=entry.kind,
                        choices=KINDS)  # fmt: skip
    usd, paid = entry.usd_month, "as given"
    assumed: tuple[str, ...] = ()
    if usd is None:
        way = ways_of(resolve_machine(entry.on), money, kinds=None if entry.kind == "any" else KINDS[entry.kind])[0]
        if way.usd is None:
            raise SpecError(f"has no price: {way.missing}", file=file, field=f"{entry.name}.usd_month")
        usd, paid, assumed = way.usd, way.paid, way.assumed
    given, names = entry.requests_per_s, {kind.name for kind in classes}
    for name in given:
        if name not in names:
            raise SpecError("is no class", file=file, field=f"{entry.name}.requests_per_s", value=name, choices=names)
    rates = {
        kind.name: given[kind.name] if kind.name in given else _capacity(entry, kind, probability) for kind in classes
    }
    return Local(entry.name, usd, paid, entry.most, rates, assumed)


def _capacity(entry: _LocalEntry, kind: RequestClass, probability: Ratio) -> PerSecond:
    """Return the request rate of a class that one machine serves alone."""
    if not entry.model or not entry.on:
        raise SpecError(f"needs model and on, or requests_per_s of {kind.name}", field=entry.name)
    planned = deployment(entry.model, entry.on, input=kind.input, output=kind.output)
    if not kind.slo:
        holding = planned.holding
        concurrency = int(max(min(holding.held_low, places_of(planned.asked, holding)), 1))
        rate = predict(planned, users=min(concurrency, 4096)).figures["output_rate"]
        return rate.quantile(1.0 - probability) / kind.output
    traffic = Traffic(kind="poisson", rate=1.0, input=kind.input, output=kind.output, shared_prefix=kind.cached)
    load = float(safe(planned, kind.slo, traffic=traffic, probability=probability).load)
    # the layout for the SLO is the best one at the rate that the usual layout serves
    words = PlanRequest(entry.model, entry.on, input=kind.input, output=kind.output, probability=probability)
    at = traffic.at_load(load or kind.requests_per_day / 86_400)
    described, _ = described_under(words, [at], slo=kind.slo)
    if described.plan is None or described.plan[1].terms == planned.holding.terms:
        return load
    return max(load, float(loads_at(described, at, parse_slo(kind.slo), probability=probability).load))


def _seller(api: ApiEntry, classes: tuple[RequestClass, ...], money: Money, file: str | Path) -> Seller:
    inputs, outputs, cached = _prices(api, money, file)
    targets = parse_slo(api.promises) if api.promises else ()
    prices, refused = {}, {}
    for kind in classes:
        if kind.sensitive:
            refused[kind.name] = "must stay on premises"
        elif reason := _not_guaranteed(kind, targets):
            refused[kind.name] = reason
        else:
            usd = (kind.input - kind.cached) * inputs + kind.cached * cached + kind.output * outputs
            prices[kind.name] = usd / 1e6 * (1.0 - (api.batch_discount if kind.batchable else 0.0))
    return Seller(api.name, prices, refused)


def _prices(api: ApiEntry, money: Money, file: str | Path) -> tuple[Usd, Usd, Usd]:
    """Return the prices of a million input, output and cached tokens."""
    if api.input is not None and api.output is not None:
        return api.input, api.output, api.input if api.cached is None else api.cached
    if not api.model:
        raise SpecError("needs input and output prices, or a model of the price list", file=file, field=api.name)
    name = resolve_model(api.model).model.name
    offers = offers_of(name, money.prices, today=money.today)
    if api.seller:
        sellers = sorted({offer.seller for offer in offers})
        offers = tuple(offer for offer in offers if offer.seller == api.seller)
        if not offers:
            raise SpecError("is not known to sell it", file=file, field=f"{api.name}.seller", value=api.seller,
                            choices=sellers)  # fmt: skip
    best = min(offers, key=lambda offer: (offer.input + offer.output, offer.seller))
    return best.input, best.output, best.cached


def _not_guaranteed(kind: RequestClass, guaranteed: tuple[Target, ...]) -> str:
    """Return why an API does not guarantee a class's SLO, else empty."""
    best = {target.metric: target.bound for target in guaranteed}
    for target in parse_slo(kind.slo) if kind.slo else ():
        if target.metric not in METRICS or target.metric not in best:
            return f"{target.metric} is not guaranteed"
        if best[target.metric] > target.bound:
            return f"{target.metric} is guaranteed within {best[target.metric] * 1000:g} ms only"
    return ""


#: seconds of one hour of the day in a month [s]
_SLOT = HOURS * 3600.0 / _DAY
#: range of volume scales in which the break-even is searched [-]
SCALES = (1e-4, 1e4)
#: cost that is added to each machine, so that mixes of equal cost prefer fewer machines [USD]
_TIE_BREAK = 1e-4


@dataclass(frozen=True)
class Mix:
    """The cheapest mix and its monthly cost."""

    machines: dict[str, int]
    usd_month: Usd
    #: cost of the machines
    usd_local: Usd
    #: API → bill
    usd_api: dict[str, Usd]
    #: class → machine or API → share of the requests
    shares: dict[str, dict[str, Ratio]]
    #: machine → utilisation in each hour; 0 without machines
    used: dict[str, tuple[Ratio, ...]]
    #: machine → shadow price of its capacity, an upper bound of the saving of one more machine before its own cost
    shadow: dict[str, Usd]


@dataclass(frozen=True)
class _Programme:
    """Linear programme of a portfolio.

    Its variables are the machines, then the rate of each pair of class and server in each hour.
    """

    portfolio: Portfolio
    pairs: tuple[tuple[int, bool, int], ...]
    cost: np.ndarray
    demand: sparse.csr_array
    wanted: np.ndarray
    capacity: sparse.csr_array

    @property
    def machines(self) -> int:
        return len(self.portfolio.locals)


def best_mix(portfolio: Portfolio, *, scale: Ratio = 1.0) -> Mix:
    """Return the cheapest mix with all volumes multiplied by `scale`.

    Notes
    -----
    Minimise ``Σ n m + Σ y p`` over integer machines ``n`` and rates ``x, y >= 0`` such that the rates of a class meet
    its demand in each hour (batchable: over the day), and the machine time ``Σ x / capacity`` is at most ``n``. The
    shadow price of a machine is the dual of its capacity at fixed ``n``, summed over the day.

    Examples
    --------
    >>> from glmplan.purchase.hybrid import Local, RequestClass, Seller
    >>> chat = RequestClass(name="chat", requests_per_day=86400, input=1000, output=100, profile=(1.0,) * 24)
    >>> machine, api = Local("box", 1000.0, "buy", 4, {"chat": 0.6}), Seller("api", {"chat": 9e-4}, {})
    >>> mix = best_mix(Portfolio((chat,), (machine,), (api,)))
    >>> mix.machines, round(mix.usd_month)  # one box serves 0.6 requests per second, the API the other 0.4
    ({'box': 1}, 1946)
    """
    if reason := _unserved(portfolio):
        raise Infeasible(reason)
    programme = _programme(portfolio, scale)
    count, free = programme.machines, len(programme.cost) - programme.machines
    upper = np.concatenate([[float(local.most) for local in portfolio.locals], np.full(free, np.inf)])
    tie_break = np.concatenate([np.full(count, _TIE_BREAK), np.zeros(free)])
    result = milp(
        programme.cost + tie_break,
        constraints=[
            LinearConstraint(programme.demand, programme.wanted, programme.wanted),
            LinearConstraint(programme.capacity, -np.inf, 0.0),
        ],
        integrality=np.concatenate([np.ones(count), np.zeros(free)]),
        bounds=Bounds(np.zeros(len(upper)), upper),
        options={"mip_rel_gap": 1e-9},
    )
    if result.x is None:
        raise Infeasible(_TOO_FEW)
    machines = np.round(result.x[:count]).astype(int)
    return _mix(programme, machines, scale)


def _programme(portfolio: Portfolio, scale: float) -> _Programme:
    classes, locals_, sellers = portfolio.classes, portfolio.locals, portfolio.sellers
    pairs = [
        (c, True, number)
        for c, kind in enumerate(classes)
        for number, local in enumerate(locals_)
        if local.carries.get(kind.name, 0.0) > 0
    ]
    pairs += [
        (c, False, number)
        for c, kind in enumerate(classes)
        for number, seller in enumerate(sellers)
        if kind.name in seller.per_request
    ]
    cost = [local.usd_month for local in locals_]
    demand: list[tuple[int, int]] = []
    used: list[tuple[int, int, float]] = [
        (local * _DAY + hour, local, -1.0) for local in range(len(locals_)) for hour in range(_DAY)
    ]
    for index, (c, is_local, number) in enumerate(pairs):
        kind = classes[c]
        for hour in range(_DAY):
            column = len(locals_) + index * _DAY + hour
            demand.append((c * _DAY + (0 if kind.batchable else hour), column))
            if is_local:
                used.append((number * _DAY + hour, column, 1.0 / locals_[number].carries[kind.name]))
            cost.append(0.0 if is_local else sellers[number].per_request[kind.name] * _SLOT)
    wanted = np.concatenate([_demand(kind, scale) for kind in classes])
    rows, columns = np.array(demand, dtype=int).reshape(-1, 2).T
    shape = (len(wanted), len(cost))
    matrix = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    places, where, values = (np.array(part) for part in zip(*used, strict=True)) if used else (np.empty(0),) * 3
    capacity = sparse.csr_array(
        (values, (places.astype(int), where.astype(int))), shape=(len(locals_) * _DAY, len(cost))
    )
    return _Programme(portfolio, tuple(pairs), np.array(cost), matrix, wanted, capacity)


def _demand(kind: RequestClass, scale: Ratio) -> np.ndarray:
    """Return the demand in each hour.

    A batchable class has all of it in the first.
    """
    rates = scale * np.array(kind.rates)
    if not kind.batchable:
        return rates
    day = np.zeros(_DAY)
    day[0] = rates.sum()
    return day


def _unserved(portfolio: Portfolio) -> str:
    """Return a class that no machine and no API can serve, with the reason.

    The text is empty if all classes can be served.
    """
    for kind in portfolio.classes:
        by_api = any(kind.name in seller.per_request for seller in portfolio.sellers)
        by_machine = any(local.carries.get(kind.name, 0.0) > 0 and local.most for local in portfolio.locals)
        if not by_api and not by_machine:
            reasons = [f"{seller.name}: {seller.refused.get(kind.name, '')}" for seller in portfolio.sellers]
            return "; ".join([f"{kind.name} cannot be served: no machine meets its SLO", *reasons])
    return ""


_TOO_FEW = "the allowed machines cannot serve the requests that must not go to an API: raise most"


def _mix(programme: _Programme, machines: np.ndarray, scale: float) -> Mix:
    """Return the mix at fixed machines, with its shadow prices.

    A linear programme.
    """
    portfolio, count = programme.portfolio, programme.machines
    free = slice(count, None)
    capacity = -(programme.capacity[:, :count] @ machines) if count else np.zeros(0)
    result = linprog(
        programme.cost[free],
        A_ub=programme.capacity[:, free] if count else None,
        b_ub=capacity if count else None,
        A_eq=programme.demand[:, free],
        b_eq=programme.wanted,
        method="highs",
    )
    if result.x is None:
        raise Infeasible(_TOO_FEW)
    rates = result.x.reshape(-1, _DAY)
    duals = -np.asarray(result.ineqlin.marginals).reshape(count, _DAY) if count else np.zeros((0, _DAY))
    time = (programme.capacity[:, free] @ result.x).reshape(count, _DAY) if count else np.zeros((0, _DAY))
    names = [local.name for local in portfolio.locals]
    shares: dict[str, dict[str, float]] = {kind.name: {} for kind in portfolio.classes}
    bills = {seller.name: 0.0 for seller in portfolio.sellers}
    for index, (c, is_local, number) in enumerate(programme.pairs):
        kind, rate = portfolio.classes[c], float(rates[index].sum())
        server = names[number] if is_local else portfolio.sellers[number].name
        if rate > 1e-12:
            shares[kind.name][server] = rate / (scale * sum(kind.rates))
        if not is_local:
            bills[server] += rate * _SLOT * portfolio.sellers[number].per_request[kind.name]
    owned = float(machines @ programme.cost[:count]) if count else 0.0
    return Mix(
        machines={name: int(number) for name, number in zip(names, machines, strict=True)},
        usd_month=owned + sum(bills.values()),
        usd_local=owned,
        usd_api=bills,
        shares=shares,
        used={
            name: tuple((time[index] / machines[index]).tolist() if machines[index] else [0.0] * _DAY)
            for index, name in enumerate(names)
        },
        shadow={name: float(duals[index].sum()) for index, name in enumerate(names)},
    )


def one_more(portfolio: Portfolio, mix: Mix) -> dict[str, float]:
    """Return the API cost that one more machine of each type would save.

    The cost is that of a month; `most` does not count.
    """
    programme = _programme(portfolio, 1.0)
    saved = {}
    for index, more in enumerate(portfolio.locals):
        machines = np.array([mix.machines[local.name] for local in portfolio.locals], dtype=int)
        machines[index] += 1
        bill = sum(_mix(programme, machines, 1.0).usd_api.values())
        saved[more.name] = max(sum(mix.usd_api.values()) - bill, 0.0)
    return saved


def portfolio_of_offered(portfolio: Portfolio) -> Portfolio:
    """Return the portfolio with only those classes that an API may serve.

    All other classes need machines at any volume and have no break-even.

    Examples
    --------
    >>> from glmplan.purchase.hybrid import Local, RequestClass, Seller
    >>> both = [RequestClass(name=name, requests_per_day=9, input=9, output=9) for name in ("chat", "secret")]
    >>> api = Seller("api", {"chat": 0.001}, {"secret": "must stay on premises"})
    >>> [kind.name for kind in portfolio_of_offered(Portfolio(tuple(both), (), (api,))).classes]
    ['chat']
    """
    offered = {name for seller in portfolio.sellers for name in seller.per_request}
    classes = tuple(kind for kind in portfolio.classes if kind.name in offered)
    return Portfolio(classes, portfolio.locals, portfolio.sellers)


def break_even_scale(portfolio: Portfolio, *, report: Callable[[float], None] = lambda scale: None) -> Ratio | None:
    """Return the volume scale from which the cheapest mix has a machine.

    None if it has one at all `SCALES` or at none. `report` is called with each scale that is tested.
    """
    if not portfolio.locals or not portfolio.sellers:
        raise SpecError("needs a machine and an API to break even between", field="portfolio")

    def owns(scale: float) -> bool:
        report(scale)
        return owns_at(portfolio, scale)

    low, high = SCALES
    if owns(low) or not owns(high):
        return None
    while high / low > 1.0005:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if owns(middle) else (middle, high)
    return float(np.sqrt(low * high))


def owns_at(portfolio: Portfolio, scale: Ratio) -> bool:
    """Return True if the cheapest mix at a scale has a machine.

    Also if it needs more machines than are allowed.
    """
    try:
        return any(best_mix(portfolio, scale=scale).machines.values())
    except Infeasible:
        return True
