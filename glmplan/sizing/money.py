"""Prices and terms together, as a buyer gives them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from glmplan.errors import UnknownFact
from glmplan.facts.catalogue.prices import Price, Quotation, prices_with
from glmplan.readers.machines.resolve import Machine
from glmplan.sizing.cost import Month, owned_month, rented_month
from glmplan.sizing.purchase import Purchase, accelerator_watts, purchase_of, rent_of, wall_watts
from glmplan.sizing.terms import Terms, in_usd, read_terms

__all__ = ["Money", "Way", "money_facts", "money_of", "watts_of", "ways_of"]


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
    """

    prices: tuple[Price, ...]
    terms: Terms
    today: date


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
) -> Money:
    """Read prices and terms.

    Parameters
    ----------
    prices : sequence of str, optional
        As `glmplan.facts.catalogue.prices.given_prices` takes them.
    terms : mapping or iterable of str, optional
        As `glmplan.sizing.terms.read_terms` takes them.
    today : date
        The day of the question.
    region : str, optional
        Place of the colocation.
    folder : Path, optional
        Published prices, in place of the shipped ones.

    Returns
    -------
    Money
        Both.

    Raises
    ------
    SpecError
        If a price or a term cannot be read.

    Examples
    --------
    >>> money_of(["electricity=0.3"], ["pue=1.2"], today=date(2026, 11, 22)).terms.electricity
    0.3
    """
    found = prices_with(prices, today=today, folder=folder)
    return Money(found, read_terms(terms, prices=found, today=today, region=region), today)


def ways_of(
    machine: Machine,
    money: Money,
    *,
    machines: int = 1,
    limit: float | None = None,
    kinds: Sequence[str] = ("buy", "rent"),
    rent_term: str | None = None,
) -> tuple[Way, ...]:
    """What a machine costs each month, bought and rented.

    Parameters
    ----------
    machine : Machine
        The machine.
    money : Money
        Prices and terms.
    machines : int, optional
        How many of it, [-]
    limit : float, optional
        Power limit of each accelerator, [W]
    kinds : sequence of str, optional
        ``buy``, ``rent`` or both.
    rent_term : str, optional
        Term of the rent; by default the first that has a price.

    Returns
    -------
    tuple of Way
        The cheapest first; those that lack a price last.

    Raises
    ------
    SpecError
        If a currency or a term of a rent is wrong.

    Examples
    --------
    >>> from glmplan.readers.machines.resolve import resolve_machine
    >>> money = money_of(today=date(2026, 8, 1))
    >>> [way.paid for way in ways_of(resolve_machine("8xh100-sxm"), money)]
    ['buy', 'rent on demand']
    """
    found = []
    if "buy" in kinds:
        found.append(_bought(machine, money, machines, limit))
    if "rent" in kinds:
        found.append(_rented(machine, money, machines, rent_term))
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


def watts_of(machine: Machine, money: Money, limit: float | None = None) -> tuple[float | None, float | None]:
    """Draw of a machine that serves.

    Parameters
    ----------
    machine : Machine
        The machine.
    money : Money
        Terms.
    limit : float, optional
        Power limit of each accelerator, [W]

    Returns
    -------
    tuple of (float or None, float or None)
        At the wall, and of the accelerators alone; None when the rating is not published, [W]
    """
    try:
        return (
            wall_watts(machine, terms=money.terms, limit=limit),
            accelerator_watts(machine, terms=money.terms, limit=limit),
        )
    except UnknownFact:
        return None, None


def money_facts(machine: Machine, money: Money, limit: float | None) -> dict[str, Any]:
    """Power and money of a machine for a month.

    Parameters
    ----------
    machine : Machine
        The machine.
    money : Money
        Prices and terms.
    limit : float or None
        Power limit of each accelerator, [W]

    Returns
    -------
    dict
        ``usd_purchase``, ``usd_month``, ``paid``, ``wall_w``, ``accelerator_w``, ``utilisation`` and ``price_missing``;
        None where a price or a rating is not known. The month is the cheaper one of buying and renting.
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
