"""The cheapest mix of machines and APIs: a mixed-integer programme over the hours of a day.

Machines come in whole numbers and are paid whether used or not; an API is paid by the request. Classes that can wait
are moved within the day, classes that are sensitive stay in the house.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, linprog, milp

from glmplan.errors import Infeasible, SpecError
from glmplan.sizing.cost import HOURS
from glmplan.sizing.portfolio import Portfolio, RequestClass

__all__ = ["SCALES", "Mix", "best_mix", "break_even_scale", "one_more", "owns_at", "portfolio_of_offered"]

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


def best_mix(portfolio: Portfolio, *, scale: float = 1.0) -> Mix:
    """Find the cheapest mix.

    Parameters
    ----------
    portfolio : Portfolio
        Classes, machines and APIs.
    scale : float, optional
        Multiplies all volumes, [-]

    Returns
    -------
    Mix
        The optimum.

    Raises
    ------
    Infeasible
        If a class can be served by nothing: says which and why.

    Notes
    -----
    Minimise ``Σ n m + Σ y p`` over whole numbers of machines ``n`` and rates ``x, y >= 0``, such that in each hour the
    rates of a class add up to its demand (of a class that can wait: over the day), and the time that a machine spends,
    ``Σ x / carried``, is at most ``n``. The shadow price of a machine is the dual of its capacity with ``n`` held,
    summed over the day.

    Examples
    --------
    >>> from glmplan.sizing.portfolio import Local, RequestClass, Seller
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

    Parameters
    ----------
    portfolio : Portfolio
        Classes, machines and APIs.
    mix : Mix
        Their cheapest mix.

    Returns
    -------
    dict of str to float
        Machine → what the APIs cost less in a month, also where no more of it is allowed, [USD]

    Examples
    --------
    >>> from glmplan.sizing.portfolio import Local, RequestClass, Seller
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

    Parameters
    ----------
    portfolio : Portfolio
        Classes, machines and APIs.

    Returns
    -------
    Portfolio
        With the classes that an API may serve.

    Examples
    --------
    >>> from glmplan.sizing.portfolio import Local, RequestClass, Seller
    >>> both = [RequestClass(name=name, requests_per_day=9, input=9, output=9) for name in ("chat", "secret")]
    >>> api = Seller("api", {"chat": 0.001}, {"secret": "may not leave the house"})
    >>> [one.name for one in portfolio_of_offered(Portfolio(tuple(both), (), (api,))).classes]
    ['chat']
    """
    offered = {name for seller in portfolio.sellers for name in seller.per_request}
    return Portfolio(
        tuple(one for one in portfolio.classes if one.name in offered), portfolio.locals, portfolio.sellers
    )


def break_even_scale(portfolio: Portfolio, *, report: Callable[[float], None] = lambda scale: None) -> float | None:
    """The volume, over that of the portfolio, from which the first machine is worth its cost.

    Parameters
    ----------
    portfolio : Portfolio
        Classes, machines and APIs.
    report : callable, optional
        Called with each volume that is looked at, [-]

    Returns
    -------
    float or None
        Factor on all volumes; None when a machine is needed at any volume of `SCALES`, or is worth it at none, [-]

    Raises
    ------
    SpecError
        If there is no machine or no API: nothing to break even between.

    Examples
    --------
    >>> from glmplan.sizing.portfolio import Local, RequestClass, Seller
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


def owns_at(portfolio: Portfolio, scale: float) -> bool:
    """Whether the cheapest mix has a machine at a volume.

    Parameters
    ----------
    portfolio : Portfolio
        Classes, machines and APIs.
    scale : float
        Factor on all volumes, [-]

    Returns
    -------
    bool
        True also where more may not leave the house than the machines that are allowed can carry.

    Examples
    --------
    >>> from glmplan.sizing.portfolio import Local, RequestClass, Seller
    >>> chat = RequestClass(name="chat", requests_per_day=86400, input=1000, output=100, profile=(1.0,) * 24)
    >>> machine, api = Local("box", 1000.0, "buy", 4, {"chat": 5.0}), Seller("api", {"chat": 0.001}, {})
    >>> [owns_at(Portfolio((chat,), (machine,), (api,)), scale) for scale in (0.1, 1.0)]
    [False, True]
    """
    try:
        return any(best_mix(portfolio, scale=scale).machines.values())
    except Infeasible:
        return True
