"""Monthly cost of machines, bought or rented, their power, and API offers."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, cached_property, lru_cache
from typing import Any

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.hosts import host_names, load_host
from glmplan.catalog.entries.prices import GIVEN, Quotation, load_prices, prices_with, quotation
from glmplan.catalog.files import plain_name
from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.catalog.schema.host import Host
from glmplan.catalog.schema.price import Price
from glmplan.errors import SpecError, UnknownFact
from glmplan.io.machines.resolve import Machine
from glmplan.purchase.cost import Month, Terms, in_usd, owned_month, read_terms, rented_month
from glmplan.units import Bytes, Ratio, Tokens, Usd, Watts, finite_number, number

__all__ = [
    "KINDS",
    "RENT_TERMS",
    "Line",
    "Market",
    "Money",
    "Offer",
    "Purchase",
    "Way",
    "accelerator_watts",
    "cards_of",
    "check_rent_term",
    "common_term",
    "kinds_of",
    "market_of",
    "money_facts",
    "money_of",
    "offers_of",
    "purchase_of",
    "rack_units",
    "read_rates",
    "rent_of",
    "server_draw",
    "wall_watts",
    "wall_words",
    "watts_of",
    "ways_of",
]


#: entry of the price list for the host of PCIe cards
_HOST = "workstation-host"
#: most PCIe cards of a server that providers rent out (https://docs.skypilot.co/en/stable/compute/gpus.html)
_RENTED = 8
#: server whose price, less its accelerators, stands for hosts of baseboards; part and number of its accelerators
_SERVER = ("hgx-h100-8", "h100-sxm", 8)
#: kinds of accelerators that run as delivered, without a further host
_WITH_HOST = ("soc", "system")
#: public rent terms, shortest commitment first
RENT_TERMS: tuple[str, ...] = ("on demand", "marketplace", "spot", "1 year", "3 years")
#: ways to pay by name
KINDS: dict[str, tuple[str, ...]] = {"buy": ("buy",), "rent": ("rent",), "any": ("buy", "rent")}
_GIGABYTES = re.compile(r"(\d+) GB")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a purchase."""

    name: str
    count: float
    #: price of one; None if unknown
    quotation: Quotation | None
    #: contents, or how to set the missing price
    note: str = ""
    #: the price is a default, not one of this thing
    assumed: bool = False

    def times(self, machines: int) -> Line:
        """Return the line for several machines."""
        return replace(self, count=self.count * machines)


@dataclass(frozen=True, slots=True)
class Purchase:
    """Lines of a purchase.

    The network between machines is relative to them.
    """

    lines: tuple[Line, ...]
    network_share: Ratio = 0.0

    @property
    def missing(self) -> tuple[str, ...]:
        """Return how to set each price that is unknown."""
        return tuple(line.note for line in self.lines if line.quotation is None)

    @property
    def assumed(self) -> tuple[str, ...]:
        """Return the notes of the lines whose price is a default."""
        return tuple(line.note for line in self.lines if line.assumed)

    @property
    def stale(self) -> tuple[str, ...]:
        """Return the lines of which all prices are older than 180 days."""
        quotations = [(line.name, line.quotation) for line in self.lines if line.quotation is not None]
        return tuple(f"{name}: {price.words}" for name, price in quotations if price.stale)

    @property
    def currency(self) -> str:
        """Return the currency of all lines; SpecError if they differ."""
        currencies = {line.quotation.currency for line in self.lines if line.quotation is not None}
        if len(currencies) > 1:
            each = ", ".join(f"{line.name} in {line.quotation.currency}" for line in self.lines if line.quotation)
            raise SpecError(f"{each}: costs are in USD, convert the other prices", field="--price")
        return currencies.pop() if currencies else "USD"

    @property
    def value(self) -> Usd | None:
        """Return the price with the network, None without a line's price."""
        return None if self.missing else self.known

    @property
    def known(self) -> Usd:
        """Return the price of the lines whose price is known, with the network."""
        return self._sum("value")

    @property
    def low(self) -> Usd:
        """Return `known` at the lowest published prices."""
        return self._sum("low")

    @property
    def high(self) -> Usd:
        """Return `known` at the highest published prices."""
        return self._sum("high")

    def _sum(self, end: str) -> Usd:
        total = sum(line.count * getattr(line.quotation, end) for line in self.lines if line.quotation is not None)
        return float(total) * (1.0 + self.network_share)


def cards_of(machine: Machine) -> tuple[tuple[Accelerator, int], ...]:
    """Return the accelerators of a machine by kind, with their number.

    Accelerators of several kinds all count, also where a layout leaves one kind without work.

    Examples
    --------
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> [(part.name, count) for part, count in cards_of(resolve_machine("1xrtx-4090+2xrtx-5090"))]
    [('rtx-5090', 2), ('rtx-4090', 1)]
    """
    if not machine.kinds:
        return ((machine.accelerator, machine.count),)
    return tuple((load_accelerator(name), machine.host.nodes * count) for name, count in machine.kinds)


def _count(machine: Machine) -> int:
    return sum(count for _, count in cards_of(machine))


def purchase_of(machine: Machine, prices: Iterable[Price], *, terms: Terms, today: date) -> Purchase:
    """Return the lines of a machine's purchase.

    One line for a system with a price, else accelerators and host. Accelerators are priced new, or refurbished or used
    if no new price is known. PCIe cards go into a workstation host up to `Terms.host_slots`; other hosts without a
    price have a default, marked in `Line.assumed`.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> from glmplan.purchase.cost import read_terms
    >>> prices, day = load_prices(), date(2026, 11, 22)
    >>> terms = read_terms(prices=prices, today=day)
    >>> for machine in ("4xrtx-pro-6000-ws", "8xh200-sxm"):
    ...     purchase = purchase_of(resolve_machine(machine), prices, terms=terms, today=day)
    ...     print([(line.name, line.count, line.assumed) for line in purchase.lines])
    [('rtx-pro-6000-ws', 4, False), ('workstation-host', 1, False)]
    [('h200-sxm', 8, False), ('host of 8xh200-sxm', 1, True)]
    """
    prices = tuple(price for price in prices if price.kind == "buy")
    share = terms.network_share if machine.host.nodes > 1 else 0.0
    lines = _system(machine, prices, today) or _parts(machine, prices, terms, today)
    purchase = Purchase(lines, share)
    if purchase.known:
        in_usd(machine.text, purchase.currency)
    return purchase


def _system(machine: Machine, prices: tuple[Price, ...], today: date) -> tuple[Line, ...]:
    """Return the price of the whole machine as a line, none without one.

    That of its text, of its host, or of hosts with the same accelerators. A given price of the accelerators replaces
    the published one of a system that is not named.
    """
    names = {plain_name(machine.text), machine.host.name}
    hosts = [price for price in prices if price.of == "host"]
    part, count = next((price.part for price in hosts if price.part in names), None), 1
    if part is None and not machine.named:
        own = any(price.given and price.part == machine.accelerator.name for price in prices)
        known = set(host_names())
        for price in hosts:
            host = load_host(price.part) if price.part in known and (price.given or not own) else None
            if host is not None and host.accelerator == machine.accelerator.name:
                count = machine.count // host.accelerator_count
                if (count * host.accelerator_count, count * host.nodes) == (machine.count, machine.host.nodes):
                    part = price.part
                    break
    if part is None:
        return ()
    entries = [price for price in prices if price.part == part]
    whole = quotation(entries, "buy", part, today=today)
    return (Line(part, count, whole, f"a system: {entries[0].contains}"),)


def _parts(machine: Machine, prices: tuple[Price, ...], terms: Terms, today: date) -> tuple[Line, ...]:
    """Return accelerators and host; no host beside whole machines."""
    cards = [_accelerators(part, count, prices, today) for part, count in cards_of(machine)]
    whole = all(
        part.kind in _WITH_HOST or (line.quotation is not None and line.quotation.entries[0].whole_machine)
        for (part, _), line in zip(cards_of(machine), cards, strict=True)
    )
    return (*cards, *(() if whole else (_host(machine, prices, terms, today),)))


def _accelerators(part: Accelerator, count: int, prices: tuple[Price, ...], today: date) -> Line:
    entries = [price for price in prices if price.part == part.name and _same_memory(price, part.memory)]
    for term in ("new", "refurbished", "used"):
        try:
            price = quotation(entries, "buy", part.name, terms=(term,), today=today)
        except UnknownFact:
            continue
        note = price.entries[0].contains + ("" if term == "new" else f"; {term}, no new price known")
        return Line(part.name, count, price, note)
    return Line(part.name, count, None, f"no price of {part.name}: set --price {part.name}=NUMBER")


def _same_memory(price: Price, memory: Bytes | None) -> bool:
    """Return False if a complete machine has less memory than the part.

    The catalogue has the memory of the part.
    """
    stated = _GIGABYTES.search(price.contains) if price.whole_machine else None
    return stated is None or memory is None or float(stated[1]) * 1e9 >= 0.9 * memory


def _host(machine: Machine, prices: tuple[Price, ...], terms: Terms, today: date) -> Line:
    """Return the host of accelerators; a default is marked.

    Cards: as many workstation hosts as have slots for them. Baseboards: for each node, `_SERVER` less its accelerators,
    as published, so that a given price of those does not move it.
    """
    nodes, text = machine.host.nodes, plain_name(machine.text)
    in_slots = all(part.scaleup in ("pcie", "nvlink-bridge") for part, _ in cards_of(machine))
    if not in_slots:
        count, price, how = nodes, _baseboard(today), f"that of {_SERVER[0]} less {_SERVER[2]} {_SERVER[1]}"
    else:
        count = nodes * math.ceil(_count(machine) / (nodes * terms.host_slots))
        price, how = quotation(prices, "buy", _HOST, today=today), f"{count} x {_HOST}"
        if count == nodes:
            return Line(_HOST, nodes, price, price.entries[0].contains)
    if price is None:
        return Line(f"host of {text}", nodes, None, f"no price of a host for {text}: set --price {text}=NUMBER")
    note = f"host of {text} assumed at {count * price.value:,.0f} USD ({how}): set --price {text}=NUMBER"
    return Line(f"host of {text}", count, price, note, assumed=True)


@lru_cache(maxsize=4)
def _baseboard(today: date) -> Quotation | None:
    """Return the published price of `_SERVER` less its accelerators.

    Examples
    --------
    >>> _baseboard(date(2026, 11, 22)).value  # a server with eight H100: 250,000 to 400,000, less 8 x 30,000
    85000.0
    """
    published = tuple(price for price in load_prices() if not price.later(today))
    system, part, size = _SERVER
    try:
        whole = quotation(published, "buy", system, today=today)
        cards = size * quotation(published, "buy", part, terms=("new",), today=today).value
    except UnknownFact:
        return None
    value, low, high = (max(amount - cards, 0.0) for amount in (whole.value, whole.low, whole.high))
    return replace(whole, value=value, low=low, high=high)


def check_rent_term(term: str | None) -> None:
    """Raise SpecError unless the term is one of `RENT_TERMS`."""
    if term is not None and term not in RENT_TERMS:
        raise SpecError("is not a term of a rent", field="--rent-term", value=term, choices=RENT_TERMS)


def kinds_of(kind: str | None) -> tuple[str, ...]:
    """Return the ways to pay of one of `KINDS`, both for None.

    Examples
    --------
    >>> kinds_of("rent"), kinds_of(None)
    (('rent',), ('buy', 'rent'))
    """
    if kind is not None and kind not in KINDS:
        raise SpecError("is not one of buy, rent and any", field="--kind", value=kind, choices=KINDS)
    return KINDS[kind or "any"]


def rent_of(part: str, prices: Iterable[Price], *, today: date, term: str | None = None) -> tuple[str, Quotation]:
    """Return rent term and price of an accelerator hour.

    Host, network and power are included. `term`: One of `RENT_TERMS`; by default the first of them that has a price.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> rent_of("h100-sxm", load_prices(), today=date(2026, 8, 1), term="3 years")[1].value
    2.0
    """
    check_rent_term(term)
    for tried in RENT_TERMS if term is None else (term,):
        try:
            return tried, quotation(prices, "rent", part, terms=(tried,), today=today)
        except UnknownFact:
            continue
    which = f" for {term}" if term else ""
    raise UnknownFact(f"no rent of {part}{which} is known: set --price {part}:rent=NUMBER")


def common_term(parts: Iterable[str], prices: Iterable[Price], *, today: date) -> str | None:
    """Return the first rent term with a price for all accelerators.

    Without such a term, the one with most prices; None without any price.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> common_term(["h200-sxm", "mi355x"], load_prices(), today=date(2026, 11, 22))  # mi355x: yearly terms only
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
    """Return the power of the accelerators of a machine under load.

    `limit`: Power limit of each accelerator.
    """
    most = math.inf if limit is None else limit
    return sum(count * min(terms.power_share * _rating(part), most) for part, count in cards_of(machine))


def _rating(part: Accelerator) -> Watts:
    if part.tdp is None:
        raise UnknownFact(f"the power of {part.full_name} is not published")
    return part.tdp


def server_draw(machine: Machine, *, terms: Terms) -> Watts | None:
    """Return the stated draw of the server for each accelerator, or None.

    That of the host, else of the server of the catalogue with this accelerator, all parts at their most. None if none
    is stated, or if the term ``rest_watts`` is given.
    """
    server = None if "rest_watts" in terms.given else _server_of(machine)
    if server is None or server.power is None or server.power.draw is None:
        return None
    return server.power.draw / server.accelerators_per_node


def rack_units(machine: Machine) -> int | None:
    """Return the rack units of a machine, None if not published.

    Examples
    --------
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> rack_units(resolve_machine("16xh200-sxm"))
    16
    """
    server = _server_of(machine)
    if server is None or server.power is None or server.power.rack_units is None:
        return None
    return -(-machine.count // server.accelerators_per_node) * server.power.rack_units


def _server_of(machine: Machine) -> Host | None:
    """Return the host of a machine with stated power.

    Where only accelerators are named: the server of the catalogue that carries them on a fabric.
    """
    return machine.host if machine.named else _servers().get(machine.accelerator.name)


@cache
def _servers() -> dict[str, Host]:
    hosts = [load_host(name) for name in host_names()]
    return {
        host.accelerator: host
        for host in hosts
        if host.power is not None and host.power.draw is not None and host.scale_up is not None
    }


def wall_watts(machine: Machine, *, terms: Terms, limit: Watts | None = None) -> Watts:
    """Return the power of a machine at the wall under load.

    Notes
    -----
    The draw of a server that its maker states (`server_draw`) is that of all its parts at once. It is scaled with the
    power share of the accelerators: a DGX H100 of 10.2 kW draws 6.5 to 8.5 kW in use [1]_, 7.65 kW by this formula. A
    power limit takes its part of it away. Other machines, and a given term ``rest_watts``, are the sum of the
    accelerators and that term.

    References
    ----------
    .. [1] https://www.supercluster.blog/p/6-ai-supercluster-nvidia-dgx-h100

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> from glmplan.purchase.cost import read_terms
    >>> said = {"power_share": 1.0, "supply_efficiency": 0.8, "rest_watts": 400}
    >>> terms = read_terms(said, prices=load_prices(), today=date(2026, 6, 1))
    >>> wall_watts(resolve_machine("2xrtx-pro-6000-ws"), terms=terms)  # (2 x 600 + 400) / 0.8
    2000.0
    >>> wall_watts(resolve_machine("8xb200-sxm"), terms=terms.but(given=frozenset()))  # NVIDIA's guide: 14.3 kW
    14300.0
    """
    cards = accelerator_watts(machine, terms=terms, limit=limit)
    own = server_draw(machine, terms=terms)
    if own is not None:
        full = accelerator_watts(machine, terms=terms)
        return _count(machine) * own * terms.power_share - (full - cards) / terms.supply_efficiency
    includes_host = machine.accelerator.kind in _WITH_HOST
    rest = 0.0 if includes_host else terms.rest_watts * machine.host.nodes
    return (cards + rest) / terms.supply_efficiency


def wall_words(machine: Machine, *, terms: Terms, limit: Watts | None = None) -> str:
    """Return the arithmetic of `wall_watts` as text.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> from glmplan.purchase.cost import read_terms
    >>> terms = read_terms({}, prices=load_prices(), today=date(2026, 6, 1))
    >>> wall_words(resolve_machine("2xrtx-pro-6000-ws"), terms=terms.but(rest_watts=400.0, supply_efficiency=0.8))
    '(900 W of the accelerators + 400 W of the host) / 0.8 (efficiency of the power supply)'
    """
    cards = accelerator_watts(machine, terms=terms, limit=limit)
    own = server_draw(machine, terms=terms)
    if own is None:
        includes_host = machine.accelerator.kind in ("soc", "system")
        rest = 0.0 if includes_host else terms.rest_watts * machine.host.nodes
        return (
            f"({cards:,.0f} W of the accelerators + {rest:,.0f} W of the host) / {number(terms.supply_efficiency)} "
            "(efficiency of the power supply)"
        )
    saved = machine.count * terms.power_share * (machine.accelerator.tdp or 0.0) - cards
    less = f" - {saved / terms.supply_efficiency:,.0f} W that the power limit saves" if saved > 0.5 else ""
    return (
        f"{machine.count} × {own:,.0f} W (stated draw of the server for an accelerator) × {number(terms.power_share)} "
        f"(power share){less}"
    )


@dataclass(frozen=True)
class Money:
    """Prices and terms of a question."""

    prices: tuple[Price, ...]
    terms: Terms
    #: decides which prices are old
    today: date
    #: term of every rent; None for the first that has a price for the accelerator
    rent_term: str | None = None
    #: ways to pay that are compared
    kinds: tuple[str, ...] = KINDS["any"]

    def at_one_term(self, machines: Iterable[Machine]) -> Money:
        """Return the money with one rent term for all machines.

        The default is their `common_term`.
        """
        if self.rent_term is not None:
            return self
        parts = [machine.accelerator.name for machine in machines]
        return replace(self, rent_term=common_term(parts, self.prices, today=self.today))


@dataclass(frozen=True)
class Way:
    """Purchase or rent of a machine with its monthly cost."""

    #: ``buy``, ``own`` for a machine that is there, or ``rent`` with its term
    paid: str
    #: None if a price is missing
    month: Month | None
    #: None for a rent
    purchase: Purchase | None = None
    #: monthly cost at the lowest and highest published prices
    low: Usd | None = None
    high: Usd | None = None
    #: how to set the price that is missing
    missing: str = ""
    #: prices older than 180 days
    stale: tuple[str, ...] = ()
    #: price of a rented accelerator hour
    hourly: Quotation | None = None

    @property
    def assumed(self) -> tuple[str, ...]:
        """Return the notes of prices that are defaults."""
        return () if self.purchase is None else self.purchase.assumed

    @cached_property
    def usd(self) -> Usd | None:
        """Return the monthly cost."""
        return None if self.month is None else float(self.month.total)


def money_of(
    prices: Sequence[str] = (),
    terms: Mapping[str, Any] | Iterable[str] = (),
    *,
    today: date,
    region: str | None = None,
    rent_term: str | None = None,
    rates: Iterable[str] = (),
) -> Money:
    """Return published prices and terms, replaced by given ones.

    `rates`: USD for one unit of another currency, as in ``EUR=1.08``; prices in it are converted.

    Examples
    --------
    >>> money_of(["electricity=0.3"], ["pue=1.2"], today=date(2026, 11, 22)).terms.electricity
    0.3
    """
    check_rent_term(rent_term)
    known = read_rates(rates)
    merged = tuple(_in_usd(price, known) for price in prices_with(prices, today=today))
    found = read_terms(terms, prices=merged, today=today, region=region)
    notes = tuple(f"1 {name} = {rate:g} USD, as given on {today.isoformat()}" for name, rate in known.items())
    return Money(merged, replace(found, notes=(*notes, *found.notes)), today, rent_term)


def read_rates(words: Iterable[str]) -> dict[str, float]:
    """Return the USD for one unit of each currency.

    Examples
    --------
    >>> read_rates(["EUR=1.08"])
    {'EUR': 1.08}
    """
    rates = {}
    for word in words:
        name, equals, text = word.partition("=")
        name = name.strip().upper()
        if not equals or not re.fullmatch("[A-Z]{3}", name) or name == "USD":
            raise SpecError("is not a rate such as EUR=1.08, USD for one unit", field="--rate", value=word)
        rates[name] = finite_number(text.strip(), f"--rate {name}")
        if rates[name] <= 0:
            raise SpecError("must be more than 0", field="--rate", value=word)
    return rates


def _in_usd(price: Price, rates: Mapping[str, float]) -> Price:
    rate = rates.get(price.currency)
    return price if rate is None else price.model_copy(update={"price": price.price * rate, "currency": "USD"})


def ways_of(
    machine: Machine,
    money: Money,
    *,
    machines: int = 1,
    limit: Watts | None = None,
    kinds: Sequence[str] | None = None,
) -> tuple[Way, ...]:
    """Return the ways to pay a machine, the cheapest first.

    Without a price last, rents at the term of `money`. `kinds`: Those of `money` by default; ``own`` of them is the
    running cost of a machine that is there.

    Examples
    --------
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> money = money_of(today=date(2026, 8, 1))
    >>> [way.paid for way in ways_of(resolve_machine("8xh100-sxm"), money)]
    ['buy', 'rent on demand']
    """
    ways, kinds = [], kinds or money.kinds
    if "buy" in kinds:
        ways.append(_bought(machine, money, machines, limit))
    if "own" in kinds:
        ways.append(_owned(machine, money, machines, limit))
    if "rent" in kinds:
        ways.append(_rented(machine, money, machines))
    return tuple(sorted(ways, key=lambda way: (way.usd is None, way.usd or 0.0, way.paid)))


def _bought(machine: Machine, money: Money, machines: int, limit: Watts | None) -> Way:
    terms = money.terms
    single = purchase_of(machine, money.prices, terms=terms, today=money.today)
    # several machines of one service need a network between them
    share = terms.network_share if machines * machine.host.nodes > 1 else 0.0
    bought = Purchase(tuple(line.times(machines) for line in single.lines), share)
    missing = list(bought.missing)
    try:
        watts = machines * wall_watts(machine, terms=terms, limit=limit)
    except UnknownFact as error:
        missing.append(str(error))
    if missing:
        return Way("buy", None, bought, missing="; ".join(missing), stale=bought.stale)
    count = machines * _count(machine)
    prices = (bought.known, bought.low, bought.high)
    month, low, high = (owned_month(price, watts, count, terms=terms) for price in prices)
    return Way("buy", month, bought, float(low.total), float(high.total), stale=bought.stale)


def _owned(machine: Machine, money: Money, machines: int, limit: Watts | None) -> Way:
    try:
        watts = machines * wall_watts(machine, terms=money.terms, limit=limit)
    except UnknownFact as error:
        return Way("own", None, missing=str(error))
    month = owned_month(0.0, watts, machines * _count(machine), terms=money.terms)
    return Way("own", month, None, float(month.total), float(month.total))


def _rented(machine: Machine, money: Money, machines: int) -> Way:
    part = machine.accelerator.name
    if machine.kinds:
        return Way("rent", None, missing="no rent of accelerators of several kinds in one server is known")
    try:
        term, hourly = rent_of(part, money.prices, today=money.today, term=money.rent_term)
    except UnknownFact as error:
        return Way("rent", None, missing=str(error))
    host = machine.host
    if machine.named and host.scale_up is None and host.accelerators_per_node > _RENTED and not hourly.entries[0].given:
        # a price is that of a card in a server of the provider
        missing = f"no rent of {machine.text} is known: set --price {part}:rent=NUMBER"
        return Way("rent", None, missing=missing)
    in_usd(f"{part}:rent", hourly.currency)
    count = machines * machine.count
    prices = (hourly.value, hourly.low, hourly.high)
    month, low, high = (rented_month(price, count, terms=money.terms) for price in prices)
    stale = (f"{part}: {hourly.words}",) if hourly.stale else ()
    return Way(f"rent {term}", month, None, float(low.total), float(high.total), stale=stale, hourly=hourly)


def watts_of(machine: Machine, money: Money, limit: Watts | None = None) -> tuple[Watts | None, Watts | None]:
    """Return the power of a machine and of its accelerators under load.

    None if the rating is not published.
    """
    try:
        return (
            wall_watts(machine, terms=money.terms, limit=limit),
            accelerator_watts(machine, terms=money.terms, limit=limit),
        )
    except UnknownFact:
        return None, None


def money_facts(machine: Machine, money: Money, limit: Watts | None) -> dict[str, Any]:
    """Return power and monthly cost of a machine as table columns.

    None where one is unknown. The monthly cost is the lower one of buying and renting.
    """
    ways = ways_of(machine, money, limit=limit)
    wall, cards = watts_of(machine, money, limit)
    bought = next((way.purchase.value for way in ways if way.purchase is not None), None)
    return {
        "wall_w": wall,
        "accelerator_w": cards,
        "utilisation": money.terms.utilisation,
        "usd_purchase": bought,
        "usd_month": ways[0].usd,
        "paid": ways[0].paid if ways[0].usd is not None else "",
        "price_assumed": "; ".join(ways[0].assumed) if ways[0].usd is not None else "",
        "price_missing": "" if ways[0].usd is not None else "; ".join(way.missing for way in ways),
    }


@dataclass(frozen=True, slots=True)
class Offer:
    """API prices of a model for a million tokens."""

    model: str
    seller: str
    input: Usd
    output: Usd
    #: that of `input` if no price of cached tokens is published
    cached: Usd
    currency: str
    #: date of the oldest of the three prices
    date: str
    #: True if one of them is older than 180 days
    stale: bool
    #: source of the output price
    source: str

    def bill(self, inputs: Tokens, outputs: Tokens, cached: Tokens = 0.0) -> Usd:
        """Return the cost of tokens.

        `cached`: Prompt tokens in the prefix cache, part of `inputs`.

        Examples
        --------
        >>> offer = Offer("glm-5.1", "z.ai", 1.4, 4.4, 0.26, "USD", "2026-11-21", False, "docs.z.ai")
        >>> round(offer.bill(100e6, 20e6), 2), round(offer.bill(100e6, 20e6, cached=50e6), 2)
        (228.0, 171.0)
        """
        if cached > inputs:
            raise SpecError("is more than all prompt tokens", field="cached", value=cached)
        return ((inputs - cached) * self.input + cached * self.cached + outputs * self.output) / 1e6

    @property
    def words(self) -> str:
        """Return the seller with the prices of input and output."""
        return f"{self.seller} {self.input:g} and {self.output:g} {self.currency}"

    def mixed(self, inputs: Tokens, outputs: Tokens, cached: Tokens = 0.0) -> Usd:
        """Return the mean price of a million tokens."""
        return self.bill(inputs, outputs, cached) / (inputs + outputs) * 1e6


def offers_of(model: str, prices: Iterable[Price], *, today: date) -> tuple[Offer, ...]:
    """Return the API offers for a model, sorted by seller.

    Each seller has its newest prices. `model`: Name in the catalogue or in the price list.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> offers = offers_of("glm-5.1", load_prices(), today=date(2026, 11, 22))
    >>> [(offer.input, offer.output) for offer in offers if offer.seller == "deepinfra"]
    [(1.05, 3.5)]
    """
    rows = [price for price in prices if price.kind == "api" and price.part == model]
    offers = []
    for seller in sorted({price.seller or GIVEN for price in rows}):
        own = [price for price in rows if (price.seller or GIVEN) == seller]
        newest = {term: max((price for price in own if price.term == term), key=lambda price: price.date, default=None)
                  for term in ("input", "output", "cached")}  # fmt: skip
        inputs, outputs = newest["input"], newest["output"]
        if inputs is None or outputs is None:
            continue
        used = [price for price in newest.values() if price is not None]
        if len({price.currency for price in used}) > 1:
            raise SpecError("is priced in several currencies", field="--price", value=f"{model} of {seller}")
        in_usd(f"{model} of {seller}", inputs.currency)
        cached = newest["cached"] or inputs
        offers.append(
            Offer(model, seller, inputs.price, outputs.price, cached.price, inputs.currency,
                  min(price.date for price in used), any(price.stale(today) for price in used), outputs.source)
        )  # fmt: skip
    if not offers:
        raise UnknownFact(
            f"no API price of {model} is known: set --price {model}:input=NUMBER --price {model}:output=NUMBER"
        )
    return tuple(offers)


#: a bill of more than this many times the median, or less than its inverse, is an outlier [-]
_OUTLIER = 3.0


@dataclass(frozen=True, slots=True)
class Market:
    """API offers for the tokens of a month."""

    #: the offer whose bill is the median of those that are no outliers; of two the lower one
    offer: Offer
    #: lowest and highest bill without the outliers
    low: Usd
    high: Usd
    #: offers without the outliers, the cheapest first
    offers: tuple[Offer, ...]
    #: offers whose bill is more than `_OUTLIER` times the median of all, or less than its inverse
    outliers: tuple[Offer, ...]


def market_of(offers: Iterable[Offer], inputs: Tokens, outputs: Tokens, cached: Tokens = 0.0) -> Market:
    """Return the offers for the tokens of a month, with their median.

    Two or fewer offers have no outliers.
    """
    bills = sorted(((offer.bill(inputs, outputs, cached), offer) for offer in offers), key=lambda row: row[0])
    middle = statistics.median(bill for bill, _ in bills)
    near = [row for row in bills if len(bills) < 3 or middle / _OUTLIER <= row[0] <= middle * _OUTLIER]
    used = tuple(offer for _, offer in near)
    outliers = tuple(offer for _, offer in bills if offer not in used)
    return Market(used[(len(used) - 1) // 2], near[0][0], near[-1][0], used, outliers)
