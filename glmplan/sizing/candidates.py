"""Machines that a buyer may look at, with what they cost, the cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glmplan.errors import GlmplanError
from glmplan.facts.catalogue.accelerators import accelerator_names, load_accelerator
from glmplan.facts.catalogue.hosts import host_names
from glmplan.readers.machines.resolve import Machine, resolve_machine
from glmplan.sizing.money import Money, Way, watts_of, ways_of
from glmplan.sizing.size_question import SizeQuestion

__all__ = ["Candidate", "candidates", "spend_of", "within"]

#: accelerators of one machine that are looked at, [-]
_COUNTS = range(1, 9)


@dataclass(frozen=True)
class Candidate:
    """A machine, alone, and the ways to come by it.

    Attributes
    ----------
    machine : Machine
        The machine.
    ways : tuple of Way
        What one of it costs, the cheapest first.
    watts : float or None
        Its draw at the wall, [W]
    limit : float or None
        Power limit of each accelerator, [W]; None is its rating
    """

    machine: Machine
    ways: tuple[Way, ...]
    watts: float | None
    limit: float | None = None

    @property
    def least(self) -> float | None:
        """The cheapest month of one of it, [USD]; None when no price is known."""
        return self.ways[0].usd if self.ways else None


def candidates(asked: SizeQuestion, money: Money) -> tuple[list[Candidate], tuple[str, ...]]:
    """Machines of the catalogue, or those that are named.

    Parameters
    ----------
    asked : SizeQuestion
        The question.
    money : Money
        Prices and terms.

    Returns
    -------
    tuple of (list of Candidate, tuple of str)
        By the cheapest month of one, those without a price last; and the machines that nobody sells or rents, which are
        left out unless they are named.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.sizing.money import money_of
    >>> from glmplan.sizing.size_question import read_size
    >>> asked = read_size("glm-5.1", "tpot p95 < 60 ms", users=20, only="rtx-pro-6000-ws")
    >>> [one.machine.count for one in candidates(asked, money_of(today=date(2026, 11, 22)))[0]]
    [1, 2, 3, 4, 5, 6, 7, 8]
    """
    found, without = [], []
    for machine in _machines(asked):
        near = {machine.accelerator.name, machine.host.name}
        prices = tuple(one for one in money.prices if one.part in near or one.of in ("host", "host part"))
        own = Money(prices, money.terms, money.today)
        for limit in _limits(asked, machine):
            ways = ways_of(machine, own, limit=limit, kinds=asked.kinds, rent_term=asked.rent_term)
            if asked.only or any(way.usd is not None for way in ways):
                found.append(Candidate(machine, ways, watts_of(machine, own, limit)[0], limit))
            elif machine.text not in without:
                without.append(machine.text)
    found.sort(key=_dearness)
    return found, tuple(without)


def _dearness(one: Candidate) -> tuple[bool, float, int, str, float]:
    return one.least is None, one.least or 0.0, one.machine.count, one.machine.text, one.limit or 0.0


def _limits(asked: SizeQuestion, machine: Machine) -> tuple[float | None, ...]:
    """Limits of a machine: one at or above the rating of its part is no limit of it."""
    rating = machine.accelerator.tdp
    return tuple(dict.fromkeys(None if rating and one and one >= rating else one for one in asked.limits))


def _machines(asked: SizeQuestion) -> Iterator[Machine]:
    names = asked.only or accelerator_names()
    for name in names:
        if name in host_names() or name[0].isdigit():
            yield resolve_machine(name)
            continue
        if not asked.only and load_accelerator(name).kind == "cpu-socket":
            continue
        for count in _COUNTS:
            try:
                yield resolve_machine(f"{count}x{name}")
            except GlmplanError:
                continue  # the part does not come in that number


def spend_of(way: Way, money: Money) -> float | None:
    """What a budget is compared with.

    Parameters
    ----------
    way : Way
        Bought or rented.
    money : Money
        Terms: the horizon.

    Returns
    -------
    float or None
        The purchase, or the rent until the horizon, [USD]; None when a price is missing
    """
    if way.usd is None:
        return None
    if way.purchase is not None:
        return way.purchase.value
    return way.usd * money.terms.horizon_months


def within(asked: SizeQuestion, way: Way, watts: float | None, money: Money) -> bool:
    """Whether a way keeps the budget and the power that are allowed.

    Parameters
    ----------
    asked : SizeQuestion
        The question.
    way : Way
        Bought or rented.
    watts : float or None
        Draw at the wall of all machines, [W]
    money : Money
        Terms.

    Returns
    -------
    bool
        False also where a price or a rating that would have to be compared is not known. Power counts where the machine
        is bought: what is rented stands elsewhere.
    """
    spend = spend_of(way, money)
    if asked.budget is not None and (spend is None or spend > asked.budget):
        return False
    bought = way.paid == "buy"
    return asked.power is None or not bought or (watts is not None and watts <= asked.power)
