"""Monthly cost of machines, bought or rented, their power, and API offers."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, cached_property
from typing import Any

from glmplan.catalog.entries.hosts import host_names, load_host
from glmplan.catalog.entries.prices import GIVEN, Quotation, prices_with, quotation
from glmplan.catalog.files import plain_name
from glmplan.catalog.schema.host import Host
from glmplan.catalog.schema.price import Price
from glmplan.errors import SpecError, UnknownFact
from glmplan.io.machines.resolve import Machine
from glmplan.purchase.cost import Month, Terms, in_usd, owned_month, read_terms, rented_month
from glmplan.units import Bytes, Ratio, Tokens, Usd, Watts, finite_number, number

__all__ = [
    "ASSUMED_FROM",
    "RENT_TERMS",
    "Line",
    "Market",
    "Money",
    "Offer",
    "Purchase",
    "Way",
    "accelerator_watts",
    "assumed_host",
    "check_rent_term",
    "common_term",
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
#: server whose price, less its accelerators, stands for hosts of baseboards; part and number of its accelerators
_SERVER = ("hgx-h100-8", "h100-sxm", 8)
#: accelerator from whose price that of a host is assumed
ASSUMED_FROM = _SERVER[1]
#: public rent terms, shortest commitment first
RENT_TERMS: tuple[str, ...] = ("on demand", "marketplace", "spot", "1 year", "3 years")
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


def purchase_of(
    machine: Machine, prices: Iterable[Price], *, terms: Terms, today: date, assume: bool = False
) -> Purchase:
    """Return the lines of a machine's purchase.

    One line for a system with a price, else accelerators and host. Accelerators are priced new, or refurbished or used
    if no new price is known. PCIe cards go into a workstation host up to `Terms.host_slots`; other hosts have a price
    only as part of a system.

    - `assume`: Take `assumed_host` for a host without a price.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> from glmplan.purchase.cost import read_terms
    >>> prices, day = load_prices(), date(2026, 6, 1)
    >>> terms = read_terms(prices=prices, today=day)
    >>> purchase = purchase_of(resolve_machine("4xrtx-pro-6000-ws"), prices, terms=terms, today=day)
    >>> [(line.name, line.count) for line in purchase.lines]
    [('rtx-pro-6000-ws', 4), ('workstation-host', 1)]
    """
    prices = tuple(price for price in prices if price.kind == "buy")
    nodes = machine.host.nodes
    share = terms.network_share if nodes > 1 else 0.0
    system = _system(machine, prices)
    if system is not None:
        entries = [price for price in prices if price.part == system]
        count = machine.count / (entries[0].accelerators or machine.count) if not entries[0].given else 1.0
        price = quotation(entries, "buy", system, today=today)
        purchase = Purchase((Line(system, count, price, f"a system: {entries[0].contains}"),), share)
    else:
        cards = _accelerators(machine, prices, today)
        whole = cards.quotation is not None and cards.quotation.entries[0].whole_machine
        host = _host(machine, prices, terms, today)
        if host.quotation is None and assume:
            host = assumed_host(machine, prices, terms=terms, today=today) or host
        lines = (cards,) if whole else (cards, host)
        purchase = Purchase(lines, share)
    if purchase.known:
        in_usd(machine.text, purchase.currency)
    return purchase


def _system(machine: Machine, prices: tuple[Price, ...]) -> str | None:
    """Return the price entry of the whole machine.

    Its text, its host, or a host with the same accelerators.
    """
    names = {plain_name(machine.text), machine.host.name}
    known = set(host_names())
    hosts = [price for price in prices if price.of == "host"]
    for price in hosts:
        if price.part in names:
            return price.part
    if machine.named:
        return None
    for price in hosts:
        if price.accelerators == machine.count and price.part in known:
            host = load_host(price.part)
            if host.accelerator == machine.accelerator.name:
                return price.part
    return None


def _accelerators(machine: Machine, prices: tuple[Price, ...], today: date) -> Line:
    part = machine.accelerator
    entries = [price for price in prices if price.part == part.name and _same_memory(price, part.memory)]
    for term in ("new", "refurbished", "used"):
        try:
            price = quotation(entries, "buy", part.name, terms=(term,), today=today)
        except UnknownFact:
            continue
        note = price.entries[0].contains + ("" if term == "new" else f"; {term}, no new price known")
        return Line(part.name, machine.count, price, note)
    return Line(part.name, machine.count, None, f"no price of {part.name}: set --price {part.name}=NUMBER")


def _same_memory(price: Price, memory: Bytes | None) -> bool:
    """Return False if a complete machine has less memory than the part.

    The catalogue has the memory of the part.
    """
    stated = _GIGABYTES.search(price.contains) if price.whole_machine else None
    return stated is None or memory is None or float(stated[1]) * 1e9 >= 0.9 * memory


def _host(machine: Machine, prices: tuple[Price, ...], terms: Terms, today: date) -> Line:
    nodes = machine.host.nodes
    if not _in_slots(machine) or machine.count > nodes * terms.host_slots:
        text = plain_name(machine.text)
        default = assumed_host(machine, prices, terms=terms, today=today)
        taken = "" if default is None or default.quotation is None else (
            f"; size takes {default.count * default.quotation.value:,.0f} USD for the host"
        )  # fmt: skip
        how = f"set that of the whole machine with --price {text}=NUMBER{taken}"
        return Line(f"host of {text}", nodes, None, f"no price of a host for {text}: {how}")
    price = quotation(prices, "buy", _HOST, today=today)
    return Line(_HOST, nodes, price, price.entries[0].contains)


def _in_slots(machine: Machine) -> bool:
    """Return True for cards, with or without a bridge between two of them."""
    return machine.accelerator.scaleup in ("pcie", "nvlink-bridge")


def assumed_host(machine: Machine, prices: Iterable[Price], *, terms: Terms, today: date) -> Line | None:
    """Return a default for the price of a host.

    It is marked in `Line.assumed`. None without a price to take it from.

    Cards: as many workstation hosts as have slots for them. Baseboards: for each node, `_SERVER` less its accelerators.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> from glmplan.purchase.cost import read_terms
    >>> prices, day = load_prices(), date(2026, 11, 22)
    >>> terms = read_terms(prices=prices, today=day)
    >>> line = assumed_host(resolve_machine("8xh200-sxm"), prices, terms=terms, today=day)
    >>> line.quotation.value  # a server with eight H100: 250,000 to 400,000, less 8 x 30,000
    85000.0
    """
    prices, nodes = tuple(price for price in prices if price.kind == "buy"), machine.host.nodes
    try:
        if _in_slots(machine):
            count = nodes * math.ceil(machine.count / (nodes * terms.host_slots))
            price = quotation(prices, "buy", _HOST, today=today)
            how = f"{count} x {_HOST}"
        else:
            system, part, size = _SERVER
            whole = quotation(prices, "buy", system, today=today)
            cards = size * quotation(prices, "buy", part, terms=("new",), today=today).value
            rest = (max(amount - cards, 0.0) for amount in (whole.value, whole.low, whole.high))
            value, low, high = rest
            count, price = nodes, replace(whole, value=value, low=low, high=high)
            how = f"that of {system} less {size} {part}"
    except UnknownFact:
        return None
    text = plain_name(machine.text)
    note = f"host of {text} assumed at {count * price.value:,.0f} USD ({how}): set --price {text}=NUMBER"
    return Line(f"host of {text}", count, price, note, assumed=True)


def check_rent_term(term: str | None) -> None:
    """Raise SpecError unless the term is one of `RENT_TERMS`."""
    if term is not None and term not in RENT_TERMS:
        raise SpecError("is not a term of a rent", field="--rent-term", value=term, choices=RENT_TERMS)


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


def server_draw(machine: Machine, *, terms: Terms) -> Watts | None:
    """Return the stated draw of the server for each accelerator, or None.

    That of the host, else of the server of the catalogue with this accelerator, all parts at their most. None if none
    is stated, or if the term ``rest_watts`` is given.

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> from glmplan.purchase.cost import read_terms
    >>> terms = read_terms(prices=load_prices(), today=date(2026, 6, 1))
    >>> server_draw(resolve_machine("4xb200-sxm"), terms=terms)  # DGX B200: 14.3 kW / 8
    1787.5
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
        full = machine.count * terms.power_share * (machine.accelerator.tdp or 0.0)
        return machine.count * own * terms.power_share - (full - cards) / terms.supply_efficiency
    includes_host = machine.accelerator.kind in ("soc", "system")
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
    #: take a marked default for the price of a host that has none
    assume_hosts: bool = False

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
    kinds: Sequence[str] = ("buy", "rent"),
) -> tuple[Way, ...]:
    """Return the ways to pay a machine, the cheapest first.

    Without a price last, rents at the term of `money`. ``own`` of `kinds`: running costs of a machine that is there.

    Examples
    --------
    >>> from glmplan.io.machines.resolve import resolve_machine
    >>> money = money_of(today=date(2026, 8, 1))
    >>> [way.paid for way in ways_of(resolve_machine("8xh100-sxm"), money)]
    ['buy', 'rent on demand']
    """
    ways = []
    if "buy" in kinds:
        ways.append(_bought(machine, money, machines, limit))
    if "own" in kinds:
        ways.append(_owned(machine, money, machines, limit))
    if "rent" in kinds:
        ways.append(_rented(machine, money, machines))
    return tuple(sorted(ways, key=lambda way: (way.usd is None, way.usd or 0.0, way.paid)))


def _bought(machine: Machine, money: Money, machines: int, limit: Watts | None) -> Way:
    terms = money.terms
    single = purchase_of(machine, money.prices, terms=terms, today=money.today, assume=money.assume_hosts)
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
    count = machines * machine.count
    prices = (bought.known, bought.low, bought.high)
    month, low, high = (owned_month(price, watts, count, terms=terms) for price in prices)
    return Way("buy", month, bought, float(low.total), float(high.total), stale=bought.stale)


def _owned(machine: Machine, money: Money, machines: int, limit: Watts | None) -> Way:
    try:
        watts = machines * wall_watts(machine, terms=money.terms, limit=limit)
    except UnknownFact as error:
        return Way("own", None, missing=str(error))
    month = owned_month(0.0, watts, machines * machine.count, terms=money.terms)
    return Way("own", month, None, float(month.total), float(month.total))


def _rented(machine: Machine, money: Money, machines: int) -> Way:
    part = machine.accelerator.name
    try:
        term, hourly = rent_of(part, money.prices, today=money.today, term=money.rent_term)
    except UnknownFact as error:
        return Way("rent", None, missing=str(error))
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

    Examples
    --------
    >>> from glmplan.catalog.entries.prices import load_prices
    >>> offers = offers_of("glm-5.1", load_prices(), today=date(2026, 11, 22))
    >>> market = market_of(offers, 100e6, 20e6)
    >>> market.low <= market.offer.bill(100e6, 20e6) <= market.high
    True
    """
    bills = sorted(((offer.bill(inputs, outputs, cached), offer) for offer in offers), key=lambda row: row[0])
    middle = statistics.median(bill for bill, _ in bills)
    near = [row for row in bills if len(bills) < 3 or middle / _OUTLIER <= row[0] <= middle * _OUTLIER]
    used = tuple(offer for _, offer in near)
    outliers = tuple(offer for _, offer in bills if offer not in used)
    return Market(used[(len(used) - 1) // 2], near[0][0], near[-1][0], used, outliers)
