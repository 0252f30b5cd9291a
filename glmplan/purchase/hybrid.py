"""The cheapest mix of machines and APIs: a mixed-integer programme over the hours of a day.

Machines come in whole numbers and are paid whether used or not; an API is paid by the request. Classes that can wait
are moved within the day, classes that are sensitive stay in the house.
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
from glmplan.planner.ranking import seats_of
from glmplan.purchase.cost import HOURS
from glmplan.purchase.money import Money, offers_of, ways_of
from glmplan.purchase.size_question import KINDS
from glmplan.simulation.traffic.slo import METRICS, Target, parse_slo
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import Ratio

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


# A portfolio: classes of requests, machines that may be bought or rented, APIs that may be paid; read from TOML.

_HOURS = 24

#: more than all requests of the world: beyond it no programme is solved exactly [1/day]
_MOST_REQUESTS = 1e12


class RequestClass(Frozen):
    """Requests that are alike: how many in a day, how long, what is promised, and whether they may leave the house."""

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
        """Requests in a second in each hour of a day, [1/s]"""
        day = self.profile or Traffic.model_fields["profile"].default
        mean = sum(day) / len(day)
        return tuple(self.requests_per_day / 86_400 * part / mean for part in day)


class _LocalEntry(Frozen):
    name: str = Field(min_length=1)
    model: str = ""
    on: str = ""
    kind: str = "any"
    most: NonNegativeInt = 8
    usd_month: NonNegativeFloat | None = Field(default=None, allow_inf_nan=False)
    requests_per_s: dict[str, NonNegativeFloat] = Field(default_factory=dict)


class ApiEntry(Frozen):
    """An API as the file names it: a seller of the price list, or prices of its own; what it promises of latency."""

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
    """A machine that may be had several times.

    Attributes
    ----------
    name : str
        What the file calls it.
    usd_month : float
        One of it for a month, [USD]
    paid : str
        Bought or rented.
    most : int
        How many at most, [-]
    carries : dict of str to float
        Class → requests in a second that one machine carries with its promise, alone, [1/s]
    """

    name: str
    usd_month: float
    paid: str
    most: int
    carries: dict[str, float]


@dataclass(frozen=True)
class Seller:
    """An API.

    Attributes
    ----------
    name : str
        What the file calls it.
    per_request : dict of str to float
        Class that it may serve → price of a request, [USD]
    refused : dict of str to str
        Class that it may not serve → why.
    """

    name: str
    per_request: dict[str, float]
    refused: dict[str, str]


@dataclass(frozen=True)
class Portfolio:
    """What is to be served, and by what it may be.

    Attributes
    ----------
    classes : tuple of RequestClass
        Requests.
    locals : tuple of Local
        Machines.
    sellers : tuple of Seller
        APIs.
    """

    classes: tuple[RequestClass, ...]
    locals: tuple[Local, ...]
    sellers: tuple[Seller, ...]


def read_portfolio(file: str | Path, money: Money) -> Portfolio:
    """Read a portfolio, price what it names and find what each machine carries of each class.

    `file`: TOML with ``[[classes]]``, ``[[local]]`` and ``[[api]]``.

    Notes
    -----
    What a machine carries is the safe rate of `glmplan.safe` of that class alone, with Poisson arrivals; of a class
    that is promised nothing, the low end of its throughput with as many requests at once as it holds. A machine that
    serves several classes is taken to divide its time among them: neither what they gain from a common batch nor what
    long prompts cost short ones is modelled.
    """
    classes, entries, apis = _entries(file)
    return Portfolio(
        classes,
        tuple(_local(one, classes, money, file) for one in entries),
        tuple(_seller(one, classes, money, file) for one in apis),
    )


def _entries(file: str | Path) -> tuple[tuple[RequestClass, ...], list[_LocalEntry], list[ApiEntry]]:
    """What the file says, checked."""
    content = read_toml(file)
    for name in content:
        if name not in ("classes", "local", "api"):
            raise SpecError("is not a table of a portfolio", file=file, value=name, choices=("classes", "local", "api"))
    classes = tuple(validated(RequestClass, one, file) for one in _tables(content, "classes", file))
    if not classes:
        raise SpecError("is empty: say what is to be served", file=file, field="classes")
    _once([one.name for one in classes], file, "classes")
    for one in classes:
        _check(one, file)
    entries = [validated(_LocalEntry, one, file) for one in _tables(content, "local", file)]
    apis = [validated(ApiEntry, one, file) for one in _tables(content, "api", file)]
    _once([*(one.name for one in entries), *(one.name for one in apis)], file, "name")
    if not entries and not apis:
        raise SpecError("names neither a machine nor an API", file=file, field="local")
    return classes, entries, apis


def _tables(content: dict[str, Any], name: str, file: str | Path) -> list[dict[str, Any]]:
    found = content.get(name, [])
    if not isinstance(found, list):
        raise SpecError(f"is not a list of tables, as in [[{name}]]", file=file, field=name)
    return found


def _once(names: list[str], file: str | Path, field: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise SpecError("is there twice", file=file, field=field, value=name)


def _check(one: RequestClass, file: str | Path) -> None:
    if one.cached > one.input:
        raise SpecError("is more than the prompt", file=file, field=f"{one.name}.cached", value=one.cached)
    if one.profile and (len(one.profile) != _HOURS or min(one.profile) < 0 or max(one.profile) <= 0):
        message = "must hold 24 numbers of at least 0, not all of them 0"
        raise SpecError(message, file=file, field=f"{one.name}.profile", value=str(one.profile))
    if one.slo:
        try:
            parse_slo(one.slo)
        except SpecError as error:
            raise SpecError(error.message, file=file, field=f"{one.name}.slo", value=error.value,
                            choices=error.choices) from None  # fmt: skip


def _local(one: _LocalEntry, classes: tuple[RequestClass, ...], money: Money, file: str | Path) -> Local:
    if one.kind not in KINDS:
        raise SpecError("is not a way to come by a machine", file=file, field=f"{one.name}.kind", value=one.kind,
                        choices=KINDS)  # fmt: skip
    usd, paid = one.usd_month, "as given"
    if usd is None:
        way = ways_of(resolve_machine(one.on), money, kinds=KINDS[one.kind])[0]
        if way.usd is None:
            raise SpecError(f"has no price: {way.missing}", file=file, field=f"{one.name}.usd_month")
        usd, paid = way.usd, way.paid
    known = {each.name for each in classes}
    for name in one.requests_per_s:
        if name not in known:
            raise SpecError("is no class", file=file, field=f"{one.name}.requests_per_s", value=name, choices=known)
    carries = {
        each.name: one.requests_per_s[each.name] if each.name in one.requests_per_s else _carried(one, each)
        for each in classes
    }
    return Local(one.name, usd, paid, one.most, carries)


def _carried(one: _LocalEntry, each: RequestClass) -> float:
    """Requests in a second that one machine carries of a class, alone."""
    if not one.model or not one.on:
        raise SpecError(f"says neither a model and a machine nor what it carries of {each.name}", field=one.name)
    planned = deployment(one.model, one.on, input=each.input, output=each.output)
    if not each.slo:
        # nothing is promised: as many at once as the machine holds, and what it then does in a second
        holding = planned.holding
        most = int(max(min(holding.held_low, seats_of(planned.asked, holding.terms.dp)), 1))
        return predict(planned, users=min(most, 4096)).figures["output_rate"].low / each.output
    traffic = Traffic(kind="poisson", rate=1.0, input=each.input, output=each.output, shared_prefix=each.cached)
    return float(safe(planned, each.slo, traffic=traffic).load)


def _seller(one: ApiEntry, classes: tuple[RequestClass, ...], money: Money, file: str | Path) -> Seller:
    inputs, outputs, cached = _prices(one, money, file)
    targets = parse_slo(one.promises) if one.promises else ()
    prices, refused = {}, {}
    for each in classes:
        if each.sensitive:
            refused[each.name] = "may not leave the house"
        elif why := _unpromised(each, targets):
            refused[each.name] = why
        else:
            whole = (each.input - each.cached) * inputs + each.cached * cached + each.output * outputs
            prices[each.name] = whole / 1e6 * (1.0 - (one.batch_discount if each.batchable else 0.0))
    return Seller(one.name, prices, refused)


def _prices(one: ApiEntry, money: Money, file: str | Path) -> tuple[float, float, float]:
    if one.input is not None and one.output is not None:
        return one.input, one.output, one.input if one.cached is None else one.cached
    if not one.model:
        raise SpecError("needs input and output prices, or a model of the price list", file=file, field=one.name)
    name = resolve_model(one.model).model.name
    offers = offers_of(name, money.prices, today=money.today)
    if one.seller:
        offers = tuple(offer for offer in offers if offer.seller == one.seller)
        if not offers:
            sellers = sorted({offer.seller for offer in offers_of(name, money.prices, today=money.today)})
            raise SpecError("is not known to sell it", file=file, field=f"{one.name}.seller", value=one.seller,
                            choices=sellers)  # fmt: skip
    best = min(offers, key=lambda offer: (offer.input + offer.output, offer.seller))
    return best.input, best.output, best.cached


def _unpromised(each: RequestClass, promised: tuple[Target, ...]) -> str:
    """Why an API does not keep what a class needs; empty if it does. What nobody promises is not taken for granted."""
    best = {one.metric: one.bound for one in promised}
    for target in parse_slo(each.slo) if each.slo else ():
        if target.metric not in METRICS or target.metric not in best:
            return f"{target.metric} is not promised"
        if best[target.metric] > target.bound:
            return f"{target.metric} is promised within {best[target.metric] * 1000:g} ms only"
    return ""


_DAY = 24
#: seconds of one hour of the day in a month [s]
_SLOT = HOURS * 3600.0 / _DAY
#: how far volumes are scaled to look for the break-even [-]
SCALES = (1e-4, 1e4)
#: what a machine counts for in the month beside its cost, so that none is taken without need [USD]
_OF_EQUALS = 1e-4


@dataclass(frozen=True)
class Mix:
    """The cheapest mix.

    Attributes
    ----------
    machines : dict of str to int
        Machine → how many, [-]
    usd_month : float
        All of it for a month, [USD]
    usd_local : float
        Machines, [USD]
    usd_api : dict of str to float
        API → its bill, [USD]
    shares : dict of str to dict of str to float
        Class → machine or API → share of its requests, [-]
    used : dict of str to tuple of float
        Machine → its use in each hour of the day; 0 where there is none, [-]
    shadow : dict of str to float
        Machine → shadow price of its capacity: what a little more of it saves in a month, for a whole one, before its
        own cost; a whole one saves no more than that, and often far less, [USD]
    """

    machines: dict[str, int]
    usd_month: float
    usd_local: float
    usd_api: dict[str, float]
    shares: dict[str, dict[str, float]]
    used: dict[str, tuple[float, ...]]
    shadow: dict[str, float]


@dataclass(frozen=True)
class _Programme:
    """The programme: machines first, then the rate of each pair of class and server in each hour."""

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
    """Find the cheapest mix.

    Notes
    -----
    Minimise ``Σ n m + Σ y p`` over whole numbers of machines ``n`` and rates ``x, y >= 0``, such that in each hour the
    rates of a class add up to its demand (of a class that can wait: over the day), and the time that a machine spends,
    ``Σ x / carried``, is at most ``n``. The shadow price of a machine is the dual of its capacity with ``n`` held,
    summed over the day.

    Examples
    --------
    >>> from glmplan.purchase.hybrid import Local, RequestClass, Seller
    >>> chat = RequestClass(name="chat", requests_per_day=86400, input=1000, output=100, profile=(1.0,) * 24)
    >>> machine, api = Local("box", 1000.0, "buy", 4, {"chat": 0.6}), Seller("api", {"chat": 9e-4}, {})
    >>> mix = best_mix(Portfolio((chat,), (machine,), (api,)))
    >>> mix.machines, round(mix.usd_month)  # one box carries 0.6 of each second's request, the API the rest
    ({'box': 1}, 1946)
    """
    if lost := _unserved(portfolio):
        raise Infeasible(lost)
    programme = _programme(portfolio, scale)
    count, free = programme.machines, len(programme.cost) - programme.machines
    upper = np.concatenate([[float(one.most) for one in portfolio.locals], np.full(free, np.inf)])
    # of mixes that cost the same, the one of fewest machines: of those that cost nothing all would be taken
    few = np.concatenate([np.full(count, _OF_EQUALS), np.zeros(free)])
    found = milp(
        programme.cost + few,
        constraints=[
            LinearConstraint(programme.demand, programme.wanted, programme.wanted),
            LinearConstraint(programme.capacity, -np.inf, 0.0),
        ],
        integrality=np.concatenate([np.ones(count), np.zeros(free)]),
        bounds=Bounds(np.zeros(len(upper)), upper),
        options={"mip_rel_gap": 1e-9},
    )
    if found.x is None:
        raise Infeasible(_TOO_FEW)
    machines = np.round(found.x[:count]).astype(int)
    return _mix(programme, machines, scale)


def _programme(portfolio: Portfolio, scale: float) -> _Programme:
    classes, locals_, sellers = portfolio.classes, portfolio.locals, portfolio.sellers
    pairs = [
        (c, True, number)
        for c, one in enumerate(classes)
        for number, local in enumerate(locals_)
        if local.carries.get(one.name, 0.0) > 0
    ]
    pairs += [
        (c, False, number)
        for c, one in enumerate(classes)
        for number, seller in enumerate(sellers)
        if one.name in seller.per_request
    ]
    cost = [one.usd_month for one in locals_]
    demand: list[tuple[int, int]] = []
    used: list[tuple[int, int, float]] = [
        (local * _DAY + hour, local, -1.0) for local in range(len(locals_)) for hour in range(_DAY)
    ]
    for place, (c, local, number) in enumerate(pairs):
        one = classes[c]
        for hour in range(_DAY):
            column = len(locals_) + place * _DAY + hour
            demand.append((c * _DAY + (0 if one.batchable else hour), column))
            if local:
                used.append((number * _DAY + hour, column, 1.0 / locals_[number].carries[one.name]))
            cost.append(0.0 if local else sellers[number].per_request[one.name] * _SLOT)
    wanted = np.concatenate([_demand(one, scale) for one in classes])
    rows, columns = np.array(demand, dtype=int).reshape(-1, 2).T
    shape = (len(wanted), len(cost))
    matrix = sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    places, where, values = (np.array(part) for part in zip(*used, strict=True)) if used else (np.empty(0),) * 3
    capacity = sparse.csr_array(
        (values, (places.astype(int), where.astype(int))), shape=(len(locals_) * _DAY, len(cost))
    )
    return _Programme(portfolio, tuple(pairs), np.array(cost), matrix, wanted, capacity)


def _demand(one: RequestClass, scale: float) -> np.ndarray:
    rates = scale * np.array(one.rates)
    if not one.batchable:
        return rates
    day = np.zeros(_DAY)
    day[0] = rates.sum()
    return day


def _unserved(portfolio: Portfolio) -> str:
    """The class that nothing serves, and why; empty if there is none."""
    for one in portfolio.classes:
        bought = any(one.name in seller.per_request for seller in portfolio.sellers)
        carried = any(local.carries.get(one.name, 0.0) > 0 and local.most for local in portfolio.locals)
        if not bought and not carried:
            whys = [f"{seller.name}: {seller.refused.get(one.name, '')}" for seller in portfolio.sellers]
            return "; ".join([f"{one.name} can be served by nothing: no machine keeps its promise", *whys])
    return ""


_TOO_FEW = "the machines that are allowed do not carry what may not go to an API: allow more of them (most)"


def _mix(programme: _Programme, machines: np.ndarray, scale: float) -> Mix:
    """The linear programme with the machines held: rates, and what one more machine would save."""
    portfolio, count = programme.portfolio, programme.machines
    free = slice(count, None)
    room = -(programme.capacity[:, :count] @ machines) if count else np.zeros(0)
    found = linprog(
        programme.cost[free],
        A_ub=programme.capacity[:, free] if count else None,
        b_ub=room if count else None,
        A_eq=programme.demand[:, free],
        b_eq=programme.wanted,
        method="highs",
    )
    if found.x is None:
        raise Infeasible(_TOO_FEW)
    rates = found.x.reshape(-1, _DAY)
    duals = -np.asarray(found.ineqlin.marginals).reshape(count, _DAY) if count else np.zeros((0, _DAY))
    time = (programme.capacity[:, free] @ found.x).reshape(count, _DAY) if count else np.zeros((0, _DAY))
    names = [one.name for one in portfolio.locals]
    shares: dict[str, dict[str, float]] = {one.name: {} for one in portfolio.classes}
    bills = {seller.name: 0.0 for seller in portfolio.sellers}
    for place, (c, local, number) in enumerate(programme.pairs):
        one, asked = portfolio.classes[c], float(rates[place].sum())
        server = names[number] if local else portfolio.sellers[number].name
        if asked > 1e-12:
            shares[one.name][server] = asked / (scale * sum(one.rates))
        if not local:
            bills[server] += asked * _SLOT * portfolio.sellers[number].per_request[one.name]
    owned = float(machines @ programme.cost[:count]) if count else 0.0
    return Mix(
        machines={name: int(number) for name, number in zip(names, machines, strict=True)},
        usd_month=owned + sum(bills.values()),
        usd_local=owned,
        usd_api=bills,
        shares=shares,
        used={
            name: tuple((time[place] / machines[place]).tolist() if machines[place] else [0.0] * _DAY)
            for place, name in enumerate(names)
        },
        shadow={name: float(duals[place].sum()) for place, name in enumerate(names)},
    )


def one_more(portfolio: Portfolio, mix: Mix) -> dict[str, float]:
    """What one more machine of each kind would save, before its own cost.

    Returns: Machine → what the APIs cost less in a month, also where no more of it is allowed, [USD].

    Examples
    --------
    >>> from glmplan.purchase.hybrid import Local, RequestClass, Seller
    >>> chat = RequestClass(name="chat", requests_per_day=86400, input=1000, output=100, profile=(1.0,) * 24)
    >>> machine, api = Local("box", 1000.0, "buy", 4, {"chat": 5.0}), Seller("api", {"chat": 1e-4}, {})
    >>> both = Portfolio((chat,), (machine,), (api,))
    >>> round(one_more(both, best_mix(both))["box"])  # the bill of the API: 730 h of 3,600 requests
    263
    """
    programme = _programme(portfolio, 1.0)
    saved = {}
    for place, one in enumerate(portfolio.locals):
        machines = np.array([mix.machines[local.name] for local in portfolio.locals], dtype=int)
        machines[place] += 1
        bill = sum(_mix(programme, machines, 1.0).usd_api.values())
        saved[one.name] = max(sum(mix.usd_api.values()) - bill, 0.0)
    return saved


def portfolio_of_offered(portfolio: Portfolio) -> Portfolio:
    """The part of a portfolio that has a choice: what no API may serve needs machines at any volume.

    Returns: With the classes that an API may serve.

    Examples
    --------
    >>> from glmplan.purchase.hybrid import Local, RequestClass, Seller
    >>> both = [RequestClass(name=name, requests_per_day=9, input=9, output=9) for name in ("chat", "secret")]
    >>> api = Seller("api", {"chat": 0.001}, {"secret": "may not leave the house"})
    >>> [one.name for one in portfolio_of_offered(Portfolio(tuple(both), (), (api,))).classes]
    ['chat']
    """
    offered = {name for seller in portfolio.sellers for name in seller.per_request}
    return Portfolio(
        tuple(one for one in portfolio.classes if one.name in offered), portfolio.locals, portfolio.sellers
    )


def break_even_scale(portfolio: Portfolio, *, report: Callable[[float], None] = lambda scale: None) -> Ratio | None:
    """The volume, over that of the portfolio, from which the first machine is worth its cost.

    - `report`: Called with each volume that is looked at.
    - Returns: Factor on all volumes; None when a machine is needed at any volume of `SCALES`, or is worth it at none.

    Examples
    --------
    >>> from glmplan.purchase.hybrid import Local, RequestClass, Seller
    >>> chat = RequestClass(name="chat", requests_per_day=86400, input=1000, output=100, profile=(1.0,) * 24)
    >>> machine, api = Local("box", 1000.0, "buy", 4, {"chat": 5.0}), Seller("api", {"chat": 0.001}, {})
    >>> scale = break_even_scale(Portfolio((chat,), (machine,), (api,)))
    >>> round(scale * 730 * 3600 * 0.001)  # the bill of a month at that volume is the cost of the box
    1000
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
    """Whether the cheapest mix has a machine at a volume.

    Returns: True also where more may not leave the house than the machines that are allowed can carry.

    Examples
    --------
    >>> from glmplan.purchase.hybrid import Local, RequestClass, Seller
    >>> chat = RequestClass(name="chat", requests_per_day=86400, input=1000, output=100, profile=(1.0,) * 24)
    >>> machine, api = Local("box", 1000.0, "buy", 4, {"chat": 5.0}), Seller("api", {"chat": 0.001}, {})
    >>> [owns_at(Portfolio((chat,), (machine,), (api,)), scale) for scale in (0.1, 1.0)]
    [False, True]
    """
    try:
        return any(best_mix(portfolio, scale=scale).machines.values())
    except Infeasible:
        return True
