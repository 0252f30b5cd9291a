"""Prices and terms together, as a buyer gives them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from glmplan.catalog.entries.hosts import host_names, load_host
from glmplan.catalog.entries.prices import GIVEN, Quotation, prices_with, quotation
from glmplan.catalog.files import plain_name
from glmplan.catalog.schema.price import Price
from glmplan.errors import SpecError, UnknownFact
from glmplan.io.machines.resolve import Machine
from glmplan.purchase.cost import Month, Terms, in_usd, owned_month, read_terms, rented_month
from glmplan.units import Tokens, Usd, Watts

__all__ = [
    "RENT_TERMS",
    "Line",
    "Money",
    "Offer",
    "Purchase",
    "Way",
    "accelerator_watts",
    "cheapest_offer",
    "check_rent_term",
    "common_term",
    "money_facts",
    "money_of",
    "offers_of",
    "purchase_of",
    "rent_of",
    "wall_watts",
    "watts_of",
    "ways_of",
]


# What a machine costs to buy or to rent, what it draws, and which price is missing.

#: the entry of the price list for what a card is put into
_HOST = "workstation-host"
#: terms of a rent that anybody gets, cheapest commitment last
RENT_TERMS: tuple[str, ...] = ("on demand", "marketplace", "spot", "1 year", "3 years")
_GIGABYTES = re.compile(r"(\d+) GB")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a purchase.

    Attributes
    ----------
    name : str
        What is bought.
    count : float
        How many, [-]
    quotation : Quotation or None
        What one costs; None when no price is known.
    note : str
        What it contains, or how to give the price that is missing.
    """

    name: str
    count: float
    quotation: Quotation | None
    note: str = ""

    def times(self, machines: int) -> Line:
        """The line of several machines."""
        return replace(self, count=self.count * machines)


@dataclass(frozen=True, slots=True)
class Purchase:
    """What is bought.

    Attributes
    ----------
    lines : tuple of Line
        Parts of it.
    network_share : float
        Network between machines over the other lines, [-]
    """

    lines: tuple[Line, ...]
    network_share: float = 0.0

    @property
    def missing(self) -> tuple[str, ...]:
        """Prices that are not known, and how to give them."""
        return tuple(line.note for line in self.lines if line.quotation is None)

    @property
    def stale(self) -> tuple[str, ...]:
        """Lines of which all prices are older than 180 days."""
        found = [(line.name, line.quotation) for line in self.lines if line.quotation is not None]
        return tuple(f"{name}: {one.words}" for name, one in found if one.stale)

    @property
    def currency(self) -> str:
        """Of all lines; SpecError where they differ."""
        found = {line.quotation.currency for line in self.lines if line.quotation is not None}
        if len(found) > 1:
            each = ", ".join(f"{line.name} in {line.quotation.currency}" for line in self.lines if line.quotation)
            raise SpecError(f"{each}: all figures are in USD, convert what is not", field="--price")
        return found.pop() if found else "USD"

    @property
    def value(self) -> float | None:
        """Sum of all lines with the network; None when a price is missing, [USD]"""
        return None if self.missing else self.known

    @property
    def known(self) -> float:
        """Sum of the lines whose price is known, with the network, [USD]"""
        return self._sum("value")

    @property
    def low(self) -> float:
        """The same at the lowest prices, [USD]"""
        return self._sum("low")

    @property
    def high(self) -> float:
        """The same at the highest prices, [USD]"""
        return self._sum("high")

    def _sum(self, end: str) -> float:
        whole = sum(line.count * getattr(line.quotation, end) for line in self.lines if line.quotation is not None)
        return float(whole) * (1.0 + self.network_share)


def purchase_of(machine: Machine, prices: Iterable[Price], *, terms: Terms, today: date) -> Purchase:
    """What a machine costs to buy.

    Returns: Its lines: the price of the whole system where one is known; else the accelerators and what they are put
      into.

    Notes
    -----
    Accelerators are priced new; where nobody sells them new, as they are sold, which the line says. A card goes into a
    workstation host as far as its slots reach; the host of anything else has a price only as part of a system.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> from glmplan.purchase.cost import read_terms
    >>> prices, day = load_prices(), date(2026, 6, 1)
    >>> terms = read_terms(prices=prices, today=day)
    >>> found = purchase_of(resolve_machine("4xrtx-pro-6000-ws"), prices, terms=terms, today=day)
    >>> [(line.name, line.count) for line in found.lines]
    [('rtx-pro-6000-ws', 4), ('workstation-host', 1)]
    """
    prices = tuple(one for one in prices if one.kind == "buy")
    nodes = machine.host.nodes
    share = terms.network_share if nodes > 1 else 0.0
    system = _system(machine, prices)
    if system is not None:
        entries = [one for one in prices if one.part == system]
        count = machine.count / (entries[0].accelerators or machine.count) if not entries[0].given else 1.0
        found = quotation(entries, "buy", system, today=today)
        made = Purchase((Line(system, count, found, f"a system: {entries[0].contains}"),), share)
    else:
        part = _part(machine, prices, today)
        lines = [part] if _stands_alone(part) else [part, _host(machine, prices, terms, today)]
        made = Purchase(tuple(lines), share)
    if made.known:
        in_usd(machine.text, made.currency)
    return made


def _system(machine: Machine, prices: tuple[Price, ...]) -> str | None:
    """Name of the entry for the whole machine: named as it was typed, its host, or a host that holds the same."""
    named = {plain_name(machine.text), machine.host.name}
    known = set(host_names())
    for one in prices:
        if one.of == "host" and one.part in named:
            return one.part
    if machine.named:
        return None
    for one in prices:
        if one.of == "host" and one.accelerators == machine.count and one.part in known:
            host = load_host(one.part)
            if host.accelerator == machine.accelerator.name:
                return one.part
    return None


def _part(machine: Machine, prices: tuple[Price, ...], today: date) -> Line:
    part = machine.accelerator
    entries = [one for one in prices if one.part == part.name and _as_large(one, part.memory)]
    for term in ("new", "refurbished", "used"):
        try:
            found = quotation(entries, "buy", part.name, terms=(term,), today=today)
        except UnknownFact:
            continue
        note = found.entries[0].contains + ("" if term == "new" else f"; {term}: no price of a new one is known")
        return Line(part.name, machine.count, found, note)
    return Line(part.name, machine.count, None, f"no price of {part.name}: give one with --price {part.name}=NUMBER")


def _as_large(one: Price, memory: float | None) -> bool:
    """Whether a machine is sold with the memory that the catalogue's part has."""
    said = _GIGABYTES.search(one.contains) if one.whole_machine else None
    return said is None or memory is None or float(said[1]) * 1e9 >= 0.9 * memory


def _stands_alone(part: Line) -> bool:
    return part.quotation is not None and part.quotation.entries[0].whole_machine


def _host(machine: Machine, prices: tuple[Price, ...], terms: Terms, today: date) -> Line:
    nodes = machine.host.nodes
    card = machine.accelerator.scaleup == "pcie" and machine.count <= nodes * terms.host_slots
    if not card:
        text = plain_name(machine.text)
        how = f"give that of the whole machine with --price {text}=NUMBER"
        return Line(f"host of {text}", nodes, None, f"no price of a host for {text}: {how}")
    found = quotation(prices, "buy", _HOST, today=today)
    return Line(_HOST, nodes, found, found.entries[0].contains)


def check_rent_term(term: str | None) -> None:
    """Refuse a term that no rent has."""
    if term is not None and term not in RENT_TERMS:
        raise SpecError("is not a term of a rent", field="--rent-term", value=term, choices=RENT_TERMS)


def rent_of(part: str, prices: Iterable[Price], *, today: date, term: str | None = None) -> tuple[str, Quotation]:
    """What an accelerator hour costs.

    - `term`: One of `RENT_TERMS`; by default the first of them that has a price.
    - Returns: Term and price, with host, network and power.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> rent_of("h100-sxm", load_prices(), today=date(2026, 8, 1), term="3 years")[1].value
    2.0
    """
    check_rent_term(term)
    for one in RENT_TERMS if term is None else (term,):
        try:
            return one, quotation(prices, "rent", part, terms=(one,), today=today)
        except UnknownFact:
            continue
    which = f" for {term}" if term else ""
    raise UnknownFact(f"no rent of {part}{which} is known: give one with --price {part}:rent=NUMBER")


def common_term(parts: Iterable[str], prices: Iterable[Price], *, today: date) -> str | None:
    """Return the term at which rents of several accelerators are compared.

    Returns: The first of `RENT_TERMS` with a price for all of them; where there is none, the one with a price for
      most. None where no accelerator has a rent.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> common_term(["h200-sxm", "mi355x"], load_prices(), today=date(2026, 11, 22))  # the second is let for years only
    '3 years'
    """
    names, known = set(parts), tuple(prices)
    offered = dict.fromkeys(RENT_TERMS, 0)
    for term in RENT_TERMS:
        for part in names:
            try:
                rent_of(part, known, today=today, term=term)
            except UnknownFact:
                continue
            offered[term] += 1
    best = max(RENT_TERMS, key=lambda term: offered[term])
    return best if offered[best] else None


def accelerator_watts(machine: Machine, *, terms: Terms, limit: Watts | None = None) -> Watts:
    """What the accelerators of a machine draw while they serve.

    `limit`: Power limit of each; below the draw it binds.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> from glmplan.purchase.cost import read_terms
    >>> terms = read_terms({"power_share": 0.8}, prices=load_prices(), today=date(2026, 6, 1))
    >>> accelerator_watts(resolve_machine("4xrtx-pro-6000-ws"), terms=terms, limit=300.0)
    1200.0
    """
    rating = machine.accelerator.tdp
    if rating is None:
        raise UnknownFact(f"the power of {machine.accelerator.full_name} is not published")
    each = min(terms.power_share * rating, math.inf if limit is None else limit)
    return machine.count * each


def wall_watts(machine: Machine, *, terms: Terms, limit: Watts | None = None) -> Watts:
    """What a machine draws at the wall while it serves.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> from glmplan.purchase.cost import read_terms
    >>> said = {"power_share": 1.0, "supply_efficiency": 0.8, "rest_watts": 400}
    >>> terms = read_terms(said, prices=load_prices(), today=date(2026, 6, 1))
    >>> wall_watts(resolve_machine("2xrtx-pro-6000-ws"), terms=terms)  # (2 x 600 + 400) / 0.8
    2000.0
    """
    cards = accelerator_watts(machine, terms=terms, limit=limit)
    whole = machine.accelerator.kind in ("soc", "system")
    rest = 0.0 if whole else terms.rest_watts * machine.host.nodes
    return (cards + rest) / terms.supply_efficiency


@dataclass(frozen=True)
class Money:
    """Prices and terms of a question.

    Attributes
    ----------
    prices : tuple of Price
        All prices.
    terms : Terms
        What a cost needs besides.
    today : date
        The day of the question.
    rent_term : str or None
        Term of every rent; None takes the first that has a price for the accelerator.
    """

    prices: tuple[Price, ...]
    terms: Terms
    today: date
    rent_term: str | None = None

    def at_one_term(self, machines: Iterable[Machine]) -> Money:
        """Return the same with one term of rent for machines that are compared.

        Returns: At the term that was asked for, else at `glmplan.purchase.money.common_term`.
        """
        if self.rent_term is not None:
            return self
        parts = [one.accelerator.name for one in machines]
        return replace(self, rent_term=common_term(parts, self.prices, today=self.today))


@dataclass(frozen=True)
class Way:
    """One way to come by a machine.

    Attributes
    ----------
    paid : str
        ``buy``, or ``rent`` with its term.
    month : Month or None
        What it costs; None when a price is missing, [USD]
    purchase : Purchase or None
        What is bought.
    low, high : float or None
        The month at the lowest and the highest of the published prices, [USD]
    missing : str
        The price that is missing, and how to give it; empty if none.
    stale : tuple of str
        Prices older than 180 days.
    hourly : Quotation or None
        Price of a rented accelerator hour; None when it is missing, or what is bought.
    """

    paid: str
    month: Month | None
    purchase: Purchase | None = None
    low: float | None = None
    high: float | None = None
    missing: str = ""
    stale: tuple[str, ...] = ()
    hourly: Quotation | None = None

    @cached_property
    def usd(self) -> float | None:
        """The month, [USD]"""
        return None if self.month is None else float(self.month.total)


def money_of(
    prices: Sequence[str] = (),
    terms: Mapping[str, Any] | Iterable[str] = (),
    *,
    today: date,
    region: str | None = None,
    folder: Path | None = None,
    rent_term: str | None = None,
) -> Money:
    """Read prices and terms.

    `folder`: Published prices, in place of the shipped ones.

    Examples
    --------
    >>> money_of(["electricity=0.3"], ["pue=1.2"], today=date(2026, 11, 22)).terms.electricity
    0.3
    """
    check_rent_term(rent_term)
    found = prices_with(prices, today=today, folder=folder)
    return Money(found, read_terms(terms, prices=found, today=today, region=region), today, rent_term)


def ways_of(
    machine: Machine,
    money: Money,
    *,
    machines: int = 1,
    limit: Watts | None = None,
    kinds: Sequence[str] = ("buy", "rent"),
    rent_term: str | None = None,
) -> tuple[Way, ...]:
    """What a machine costs each month, bought and rented.

    - `rent_term`: Term of the rent; by default that of `money`.
    - Returns: The cheapest first; those that lack a price last.

    Examples
    --------
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> money = money_of(today=date(2026, 8, 1))
    >>> [way.paid for way in ways_of(resolve_machine("8xh100-sxm"), money)]
    ['buy', 'rent on demand']
    """
    found = []
    if "buy" in kinds:
        found.append(_bought(machine, money, machines, limit))
    if "rent" in kinds:
        found.append(_rented(machine, money, machines, rent_term or money.rent_term))
    return tuple(sorted(found, key=lambda way: (way.usd is None, way.usd or 0.0, way.paid)))


def _bought(machine: Machine, money: Money, machines: int, limit: float | None) -> Way:
    terms = money.terms
    one = purchase_of(machine, money.prices, terms=terms, today=money.today)
    # several machines of one service, however each is built, are joined by a network
    share = terms.network_share if machines * machine.host.nodes > 1 else 0.0
    bought = Purchase(tuple(line.times(machines) for line in one.lines), share)
    missing = list(bought.missing)
    try:
        watts = machines * wall_watts(machine, terms=terms, limit=limit)
    except UnknownFact as error:
        missing.append(str(error))
    if missing:
        return Way("buy", None, bought, missing="; ".join(missing), stale=bought.stale)
    count = machines * machine.count
    ends = [owned_month(price, watts, count, terms=terms) for price in (bought.known, bought.low, bought.high)]
    return Way("buy", ends[0], bought, float(ends[1].total), float(ends[2].total), stale=bought.stale)


def _rented(machine: Machine, money: Money, machines: int, rent_term: str | None) -> Way:
    part = machine.accelerator.name
    try:
        term, hourly = rent_of(part, money.prices, today=money.today, term=rent_term)
    except UnknownFact as error:
        return Way("rent", None, missing=str(error))
    in_usd(f"{part}:rent", hourly.currency)
    count = machines * machine.count
    ends = [rented_month(price, count, terms=money.terms) for price in (hourly.value, hourly.low, hourly.high)]
    stale = (f"{part}: {hourly.words}",) if hourly.stale else ()
    return Way(f"rent {term}", ends[0], None, float(ends[1].total), float(ends[2].total), stale=stale, hourly=hourly)


def watts_of(machine: Machine, money: Money, limit: Watts | None = None) -> tuple[float | None, float | None]:
    """Draw of a machine that serves.

    Returns: At the wall, and of the accelerators alone; None when the rating is not published, [W].
    """
    try:
        return (
            wall_watts(machine, terms=money.terms, limit=limit),
            accelerator_watts(machine, terms=money.terms, limit=limit),
        )
    except UnknownFact:
        return None, None


def money_facts(machine: Machine, money: Money, limit: Watts | None) -> dict[str, Any]:
    """Power and money of a machine for a month.

    Returns: ``usd_purchase``, ``usd_month``, ``paid``, ``wall_w``, ``accelerator_w``, ``utilisation`` and
      ``price_missing``; None where a price or a rating is not known. The month is the cheaper one of buying and
      renting.
    """
    ways = ways_of(machine, money, limit=limit)
    wall, cards = watts_of(machine, money, limit)
    bought = next(way.purchase for way in ways if way.purchase is not None)
    return {
        "wall_w": wall,
        "accelerator_w": cards,
        "utilisation": money.terms.utilisation,
        "usd_purchase": bought.value,
        "usd_month": ways[0].usd,
        "paid": ways[0].paid if ways[0].usd is not None else "",
        "price_missing": "" if ways[0].usd is not None else "; ".join(way.missing for way in ways),
    }


# Paying for each token: offers of APIs, and the bill of a month.


@dataclass(frozen=True, slots=True)
class Offer:
    """What a seller takes for a model.

    Attributes
    ----------
    model, seller : str
        Who sells what.
    input, output, cached : float
        A million tokens, [USD]; cached ones cost as much as others where no price of theirs is published
    currency : str
        Of all three.
    date : str
        Of the oldest of the three.
    stale : bool
        Whether any is older than 180 days.
    source : str
        Where the output price was read.
    """

    model: str
    seller: str
    input: float
    output: float
    cached: float
    currency: str
    date: str
    stale: bool
    source: str

    def bill(self, inputs: Tokens, outputs: Tokens, cached: Tokens = 0.0) -> Usd:
        """What tokens cost.

        `cached`: Prompt tokens that were seen before, part of `inputs`

        Examples
        --------
        >>> offer = Offer("glm-5.1", "z.ai", 1.4, 4.4, 0.26, "USD", "2026-11-21", False, "docs.z.ai")
        >>> round(offer.bill(100e6, 20e6), 2), round(offer.bill(100e6, 20e6, cached=50e6), 2)
        (228.0, 171.0)
        """
        if cached > inputs:
            raise SpecError("is more than all prompt tokens", field="cached", value=cached)
        return ((inputs - cached) * self.input + cached * self.cached + outputs * self.output) / 1e6

    def mixed(self, inputs: Tokens, outputs: Tokens, cached: Tokens = 0.0) -> Usd:
        """Price of a million tokens in a mix."""
        return self.bill(inputs, outputs, cached) / (inputs + outputs) * 1e6


def offers_of(model: str, prices: Iterable[Price], *, today: date) -> tuple[Offer, ...]:
    """Offers for a model; of a seller whose price several people wrote down, the newest.

    - `model`: Catalogue name, or the name of the list of prices.
    - Returns: Sorted by seller; without those that lack a price of input or output.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> found = offers_of("glm-5.1", load_prices(), today=date(2026, 11, 22))
    >>> [(one.input, one.output) for one in found if one.seller == "deepinfra"]
    [(1.05, 3.5)]
    """
    rows = [one for one in prices if one.kind == "api" and one.part == model]
    found = []
    for seller in sorted({one.seller or GIVEN for one in rows}):
        mine = [one for one in rows if (one.seller or GIVEN) == seller]
        by = {term: max((one for one in mine if one.term == term), key=lambda one: one.date, default=None)
              for term in ("input", "output", "cached")}  # fmt: skip
        first, last = by["input"], by["output"]
        if first is None or last is None:
            continue
        used = [one for one in by.values() if one is not None]
        if len({one.currency for one in used}) > 1:
            raise SpecError("is priced in several currencies", field="--price", value=f"{model} of {seller}")
        in_usd(f"{model} of {seller}", first.currency)
        cached = by["cached"] or first
        found.append(
            Offer(model, seller, first.price, last.price, cached.price, first.currency, min(one.date for one in used),
                  any(one.stale(today) for one in used), last.source)
        )  # fmt: skip
    if not found:
        raise UnknownFact(
            f"no API price of {model} is known: give it with --price {model}:input=NUMBER --price {model}:output=NUMBER"
        )
    return tuple(found)


def cheapest_offer(offers: Iterable[Offer], inputs: Tokens, outputs: Tokens, cached: Tokens = 0.0) -> Offer:
    """The offer with the smallest bill.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> offers = offers_of("glm-5.1", load_prices(), today=date(2026, 11, 22))
    >>> cheapest_offer(offers, 100e6, 20e6).seller
    'openrouter'
    """
    return min(offers, key=lambda one: (one.bill(inputs, outputs, cached), one.seller))
