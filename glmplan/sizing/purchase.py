"""What a machine costs to buy or to rent, what it draws, and which price is missing."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date

from glmplan.errors import SpecError, UnknownFact
from glmplan.facts.catalogue.hosts import host_names, load_host
from glmplan.facts.catalogue.prices import Price, Quotation, quotation
from glmplan.facts.folders import plain_name
from glmplan.readers.machines.resolve import Machine
from glmplan.sizing.terms import Terms, in_usd

__all__ = ["RENT_TERMS", "Line", "Purchase", "accelerator_watts", "purchase_of", "rent_of", "wall_watts"]

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
        """The line of several machines.

        Parameters
        ----------
        machines : int
            How many, [-]

        Returns
        -------
        Line
            The same with a larger count.
        """
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

    Parameters
    ----------
    machine : Machine
        The machine.
    prices : iterable of Price
        All prices.
    terms : Terms
        Share of the network.
    today : date
        The day of the question.

    Returns
    -------
    Purchase
        Its lines: the price of the whole system where one is known; else the accelerators and what they are put into.

    Raises
    ------
    SpecError
        If prices are in several currencies.

    Notes
    -----
    Accelerators are priced new; where nobody sells them new, as they are sold, which the line says. A card goes into a
    workstation host as far as its slots reach; the host of anything else has a price only as part of a system.

    Examples
    --------
    >>> from glmplan.facts.catalogue.prices import load_prices
    >>> from glmplan.readers.machines.resolve import resolve_machine
    >>> from glmplan.sizing.terms import read_terms
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


def rent_of(part: str, prices: Iterable[Price], *, today: date, term: str | None = None) -> tuple[str, Quotation]:
    """What an accelerator hour costs.

    Parameters
    ----------
    part : str
        Name of the accelerator.
    prices : iterable of Price
        All prices.
    today : date
        The day of the question.
    term : str, optional
        One of `RENT_TERMS`; by default the first of them that has a price.

    Returns
    -------
    tuple of (str, Quotation)
        Term and price, with host, network and power.

    Raises
    ------
    UnknownFact
        If nobody is known to rent it: says how to give a price.
    SpecError
        If the term is none.

    Examples
    --------
    >>> from glmplan.facts.catalogue.prices import load_prices
    >>> rent_of("h100-sxm", load_prices(), today=date(2026, 8, 1), term="3 years")[1].value
    2.0
    """
    if term is not None and term not in RENT_TERMS:
        raise SpecError("is not a term of a rent", field="--rent-term", value=term, choices=RENT_TERMS)
    for one in RENT_TERMS if term is None else (term,):
        try:
            return one, quotation(prices, "rent", part, terms=(one,), today=today)
        except UnknownFact:
            continue
    which = f" for {term}" if term else ""
    raise UnknownFact(f"no rent of {part}{which} is known: give one with --price {part}:rent=NUMBER")


def accelerator_watts(machine: Machine, *, terms: Terms, limit: float | None = None) -> float:
    """What the accelerators of a machine draw while they serve.

    Parameters
    ----------
    machine : Machine
        The machine.
    terms : Terms
        Share of the rating that is drawn.
    limit : float, optional
        Power limit of each; below the draw it binds, [W]

    Returns
    -------
    float
        [W]

    Raises
    ------
    UnknownFact
        If the rating is not published.

    Examples
    --------
    >>> from glmplan.facts.catalogue.prices import load_prices
    >>> from glmplan.readers.machines.resolve import resolve_machine
    >>> from glmplan.sizing.terms import read_terms
    >>> terms = read_terms({"power_share": 0.8}, prices=load_prices(), today=date(2026, 6, 1))
    >>> accelerator_watts(resolve_machine("4xrtx-pro-6000-ws"), terms=terms, limit=300.0)
    1200.0
    """
    rating = machine.accelerator.tdp
    if rating is None:
        raise UnknownFact(f"the power of {machine.accelerator.full_name} is not published")
    each = min(terms.power_share * rating, math.inf if limit is None else limit)
    return machine.count * each


def wall_watts(machine: Machine, *, terms: Terms, limit: float | None = None) -> float:
    """What a machine draws at the wall while it serves.

    Parameters
    ----------
    machine : Machine
        The machine.
    terms : Terms
        Shares, and the draw beside the accelerators.
    limit : float, optional
        Power limit of each accelerator, [W]

    Returns
    -------
    float
        [W]

    Raises
    ------
    UnknownFact
        If the rating of the part is not published.

    Examples
    --------
    >>> from glmplan.facts.catalogue.prices import load_prices
    >>> from glmplan.readers.machines.resolve import resolve_machine
    >>> from glmplan.sizing.terms import read_terms
    >>> said = {"power_share": 1.0, "supply_efficiency": 0.8, "rest_watts": 400}
    >>> terms = read_terms(said, prices=load_prices(), today=date(2026, 6, 1))
    >>> wall_watts(resolve_machine("2xrtx-pro-6000-ws"), terms=terms)  # (2 x 600 + 400) / 0.8
    2000.0
    """
    cards = accelerator_watts(machine, terms=terms, limit=limit)
    whole = machine.accelerator.kind in ("soc", "system")
    rest = 0.0 if whole else terms.rest_watts * machine.host.nodes
    return (cards + rest) / terms.supply_efficiency
