"""A portfolio: classes of requests, machines that may be bought or rented, APIs that may be paid; read from TOML."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from glmplan.errors import SpecError
from glmplan.facts.files import read_toml
from glmplan.facts.schema.validation import Frozen, validated
from glmplan.plan.ask import deployment, predict, safe
from glmplan.plan.ranking import seats_of
from glmplan.readers.machines.resolve import resolve_machine
from glmplan.readers.models.resolve import resolve_model
from glmplan.serving.traffic.promises import METRICS, Target, parse_slo
from glmplan.serving.traffic.spec import Traffic
from glmplan.sizing.money import Money, ways_of
from glmplan.sizing.offers import offers_of
from glmplan.sizing.size_question import KINDS

__all__ = ["ApiEntry", "Local", "Portfolio", "RequestClass", "Seller", "read_portfolio"]

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

    Parameters
    ----------
    file : path
        TOML with ``[[classes]]``, ``[[local]]`` and ``[[api]]``.
    money : Money
        Prices and terms.

    Returns
    -------
    Portfolio
        Everything that the optimum needs.

    Raises
    ------
    SpecError
        If the file is wrong: names the entry and the field.
    UnknownFact
        If a price is missing.

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
