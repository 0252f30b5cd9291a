"""What to buy or rent for a model, a load and a promise: machines by cost, with the probability of keeping it.

Machines are looked at from the cheapest on, as few of each as may do at best. What does not keep the promise
(`glmplan.kept`) waits until the fewest that still may are the cheapest that is left; then another number is looked at.
The search ends when the next costs more than the answers. Of these the largest load is found that keeps the promise
(`glmplan.safe`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.entries.hosts import host_names
from glmplan.costs.blocks.stack import checkpoint_bytes
from glmplan.errors import GlmplanError
from glmplan.io.machines.resolve import Machine, resolve_machine
from glmplan.io.models.checkpoints import checkpoint_for
from glmplan.planner.ask import Deployed, deployment, kept, predict
from glmplan.planner.capacity import MAY_START
from glmplan.planner.ranking import predicted, prompts_timed, typical_users, untimed_words
from glmplan.planner.service import Described, inputs_of, kept_of, safe_of, service_of
from glmplan.prediction.predict import Prediction
from glmplan.purchase.money import Money, Way, cheapest_offer, offers_of, watts_of, ways_of
from glmplan.purchase.size_answer import MOST_USERS, Option, Paid, Sized, month_tokens, share_of
from glmplan.purchase.size_question import SizeQuestion
from glmplan.simulation.load_search import Tries
from glmplan.simulation.safe_load import Kept, kept_share, speed_factors
from glmplan.simulation.traffic.slo import Target, parse_slo
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import Ratio, Usd, Watts

__all__ = [
    "Candidate",
    "Numbers",
    "candidates",
    "carried_by",
    "judged_by",
    "kept_by",
    "numbers_of",
    "sized",
    "spend_of",
    "within",
]


# Machines that a buyer may look at, with what they cost, the cheapest first.

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

    Returns: By the cheapest month of one, those without a price last; and the machines that nobody sells or rents,
      which are left out unless they are named.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.purchase.money import money_of
    >>> from glmplan.purchase.size_question import read_size
    >>> asked = read_size("glm-5.1", "tpot p95 < 60 ms", users=20, only="rtx-pro-6000-ws")
    >>> [one.machine.count for one in candidates(asked, money_of(today=date(2026, 11, 22)))[0]]
    [1, 2, 3, 4, 5, 6, 7, 8]
    """
    found, without = [], []
    for machine in _machines(asked):
        near = {machine.accelerator.name, machine.host.name}
        prices = tuple(one for one in money.prices if one.part in near or one.of in ("host", "host part"))
        own = replace(money, prices=prices)
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


def spend_of(way: Way, money: Money) -> Usd | None:
    """What a budget is compared with.

    Returns: The purchase, or the rent until the horizon; None when a price is missing.
    """
    if way.usd is None:
        return None
    if way.purchase is not None:
        return way.purchase.value
    return way.usd * money.terms.horizon_months


def within(asked: SizeQuestion, way: Way, watts: Watts | None, money: Money) -> bool:
    """Whether a way keeps the budget and the power that are allowed.

    Returns: False also where a price or a rating that would have to be compared is not known. Power counts where the
      machine is bought: what is rented stands elsewhere.
    """
    spend = spend_of(way, money)
    if asked.budget is not None and (spend is None or spend > asked.budget):
        return False
    bought = way.paid == "buy"
    return asked.power is None or not bought or (watts is not None and watts <= asked.power)


# The largest load that machines carry as surely as a buyer asks, and what is expected of those that do not.

#: the probability with which `glmplan.safe` answers [-]
_SAFE = 0.95
#: how near a rate is found, and the smallest that is looked at over the largest [-]
_NEAR, _LEAST = 1.01, 1e-3


def carried_by(
    described: Described,
    traffic: Traffic,
    targets: Sequence[Target],
    *,
    most: float,
    probability: Ratio,
    start: float | None = None,
) -> tuple[float, str, bool]:
    """Find the largest load of one machine that keeps a promise with a probability.

    - `traffic`: What arrives; its number of users or rate is what is varied.
    - `most`: Largest load to look at, [-] or [1/s].
    - `start`: Load that is kept as surely, from which on it is looked for, [-] or [1/s].
    - Returns: The load [-] or [1/s], what breaks beyond it, and whether more than `most` may be carried.

    Notes
    -----
    With 95 % it is what `glmplan.safe` says. With another probability the span is halved until loads lie within 1 %,
    or next to each other; a larger load is taken to be kept less surely.
    """
    if probability == _SAFE:
        found = safe_of(described, traffic, targets, most=most, begun=Tries(start=start))
        return found.load, found.breaks_first, not found.breaks_first
    whole = traffic.users is not None
    low, high = start or 0.0, float(int(most)) if whole else most
    broken = _broken(described, traffic, targets, high, probability)
    if broken is None:
        return high, "", True
    while high - low > 1 if whole else high > max(_NEAR * low, _LEAST * most):
        load = (low + high) // 2 if whole else (low + high) / 2
        fails = _broken(described, traffic, targets, load, probability)
        if fails is None:
            low = load
        else:
            high, broken = load, fails
    return low, broken, False


def _broken(
    described: Described, traffic: Traffic, targets: Sequence[Target], load: float, probability: float
) -> str | None:
    """What breaks under a load; None where the promise is kept as surely as asked."""
    found = kept_of(described, traffic.at_load(load), targets, least=probability)
    return None if found.probability >= probability else found.broken


def judged_by(described: Described, traffic: Traffic, targets: Sequence[Target]) -> Kept:
    """How surely a machine keeps a promise, and what is expected of each target.

    Returns: As `glmplan.kept` says it, always with the statistics of a run: sums tell nothing of percentiles.
    """
    sure = kept_of(described, traffic, targets)
    if "requests" in sure.summary:
        return sure
    return replace(sure, summary=kept_share(described.service, traffic, tuple(targets), factors=(1.0,)).summary)


# How many of a machine do: the fewest are found by looking at as few numbers as possible.


@dataclass(slots=True, eq=False)
class Numbers:
    """Which numbers of one machine keep a promise; a smaller share of the load is never kept less surely.

    Attributes
    ----------
    each : list of int
        Numbers to look at, ascending, [-]
    month : float
        The cheapest month of one machine, [USD]
    fails, keeps : int
        Place of the largest that is known not to do, and of the smallest that is known to do, [-]
    stride : int
        How many places further it is looked next while none is known to do, [-]

    Examples
    --------
    >>> counts, looked = Numbers([1, 2, 3, 4, 5, 6, 7, 8], 100.0), []
    >>> while not counts.found:
    ...     looked.append(counts.next)
    ...     counts.tell(counts.next, does=counts.next >= 5)
    >>> looked, counts.first, counts.least
    ([1, 2, 4, 8, 6, 5], 5, 500.0)
    """

    each: list[int]
    month: float
    fails: int = -1
    keeps: int | None = None
    stride: int = 1

    @property
    def first(self) -> int | None:
        """The fewest that may do, [-]; None where none does."""
        return self.each[self.fails + 1] if self.fails + 1 < len(self.each) else None

    @property
    def least(self) -> float:
        """The cheapest month of what may do, [USD]"""
        return self.each[self.fails + 1] * self.month

    @property
    def found(self) -> bool:
        """Whether the fewest that do are known."""
        return self.keeps == self.fails + 1

    @property
    def next(self) -> int:
        """The number to look at next, [-]"""
        if self.keeps is not None:
            return self.each[(self.fails + self.keeps) // 2]
        return self.each[min(self.fails + self.stride, len(self.each) - 1)]

    def tell(self, number: int, *, does: bool) -> None:
        """Take in whether a number does."""
        place = self.each.index(number)
        if does:
            self.keeps = place
        else:
            self.stride = 1 if self.fails < 0 else 2 * self.stride
            self.fails = place


def numbers_of(asked: SizeQuestion) -> list[int]:
    """Numbers of machines that share the load otherwise than one machine less does.

    Returns: From one on, up to those that are allowed.

    Examples
    --------
    >>> from glmplan.purchase.size_question import read_size
    >>> numbers_of(read_size("llama-3.1-8b", "tpot p95 < 50 ms", users=9, machines=8))
    [1, 2, 3, 5]
    """
    shares = [share_of(asked.traffic, one) for one in range(1, asked.most_machines + 1)]
    return [place + 1 for place, share in enumerate(shares) if not place or share != shares[place - 1]]


#: how far beyond the load headroom is looked for [-]
_BEYOND = 4
#: users of one machine over those asked for, for whom steps are timed at once: few searches come so far [-]
_LIKELY = 2
#: users for whom the layout is chosen where the load is a rate [-]
_TYPICAL = 32
#: how far a promised percentile may lie below the predicted mean, before a machine is left out unsimulated [-]
_SLACK = 1.1
#: the same of a slow draw, whose pauses between prompts the mean of a run from its start on does not show [-]
_SLOW = 1.25
#: machines that are looked at for the next cheaper answer [-]
_NEAR_SIZE = 4


@dataclass(frozen=True)
class _Unit:
    """One machine in one format with one engine, planned."""

    candidate: Candidate
    planned: Deployed
    needed: int


@dataclass
class _Search:
    """What is known while machines are looked at."""

    asked: SizeQuestion
    money: Money
    answers: int
    options: list[Option]
    unpriced: list[Option]
    failed: dict[int, tuple[_Unit, int]]
    slow: dict[int, tuple[_Unit, int]]
    left_out: Counter[str]
    #: numbers of machines that share the load otherwise than one less [-]
    numbers: list[int]
    looked_at: int = 0
    #: bytes of each format
    sizes: dict[str, float] = field(default_factory=dict)
    #: services of what was planned (kept with it, so that its id stays its own), and what numbers of machines do
    services: dict[int, tuple[Deployed, Described]] = field(default_factory=dict)
    tried: dict[tuple[int, int], Kept] = field(default_factory=dict)

    def service(self, planned: Deployed) -> Described:
        """The service of one machine, tabulated once for all questions about it."""
        if id(planned) not in self.services:
            inputs = inputs_of(planned.asked, planned.holding, planned.deployment)
            users = None if self.asked.traffic.users is None else math.ceil(_LIKELY * self.asked.load)
            found = service_of(inputs, self.asked.traffic, users=users)
            self.services[id(planned)] = planned, replace(found, plan=(planned.asked, planned.holding))
        return self.services[id(planned)][1]

    def bound(self) -> float:
        """What a month may cost and still be among the answers, [USD]"""
        costs = sorted(one.way.usd for one in self.options if one.way.usd is not None)
        return costs[self.answers - 1] if len(costs) >= self.answers else math.inf


def sized(
    asked: SizeQuestion,
    money: Money,
    *,
    answers: int = 5,
    every: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Sized:
    """Find what to buy or rent.

    - `every`: Look at every machine instead of ending the search when the answers are sure; for tests.
    - `progress`: Called with machines looked at and in all.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.purchase.money import money_of
    >>> from glmplan.purchase.size_question import read_size
    >>> asked = read_size("llama-3.1-8b", "tpot p95 < 50 ms", users=4, only="rtx-5090,l40s", input=500, output=100)
    >>> found = sized(asked, money_of(today=date(2026, 11, 22)), answers=1)
    >>> found.options[0].planned.asked.machine.text
    '1xrtx-5090'
    """
    search = _Search(asked, money, answers, [], [], {}, {}, Counter(), numbers_of(asked))
    listed, no_price = candidates(asked, money)
    units: list[tuple[float, int, Numbers, _Unit]] = []
    place, total = 0, len(listed)
    while units or place < total:
        least = math.inf if place == total else _month(listed[place])
        # plan the next machine, unless one that is planned may cost less than even one of it
        if place < total and (not units or least <= units[0][0]):
            if least > search.bound() and not every:
                search.left_out["one machine alone costs more than the answers"] += total - place
                place = total
                continue
            for unit in _planned(search, listed[place]):
                more = (one for one in search.numbers if one > unit.needed)
                counts = Numbers([unit.needed, *more], _month(unit.candidate))
                heappush(units, (counts.least, search.looked_at, counts, unit))
            place += 1
            progress(place, total)
            continue
        cost, order, counts, unit = heappop(units)
        if cost > search.bound() and not every:
            search.left_out["costs more than the answers even if all goes well"] += 1 + len(units)
            units = []
        elif _looked(search, unit, counts):
            heappush(units, (counts.least, order, counts, unit))
    options = _ranked(search)[:answers]
    unpriced = sorted(search.unpriced, key=lambda one: (one.accelerators, one.name))[:answers]
    found = Sized(asked, money, tuple(options), tuple(unpriced), cheaper=_cheaper(search, options),
                  left_out=dict(search.left_out), looked_at=search.looked_at, no_price=no_price)  # fmt: skip
    found = replace(
        found,
        options=tuple(_with_headroom(search, one) for one in options),
        unpriced=tuple(_with_headroom(search, one) for one in unpriced),
    )
    paid, missing = _per_token(found)
    return replace(found, per_token=paid, per_token_missing=missing)


def _with_headroom(search: _Search, one: Option) -> Option:
    """The option with the largest load that it carries as surely as asked, also beyond what was asked for."""
    asked = search.asked
    # what one machine carries is looked for from there on
    share = share_of(asked.traffic, one.machines).users if one.sure.probability >= asked.probability else None
    load, breaks, beyond = carried_by(
        search.service(one.planned), asked.traffic, parse_slo(asked.slo),
        most=_BEYOND * asked.load / one.machines, probability=asked.probability, start=share,
    )  # fmt: skip
    # of what is kept as far as was looked, nothing is known that breaks
    return replace(
        one, carried=load * one.machines, breaks_first=breaks or ("" if beyond else one.sure.broken), beyond=beyond
    )


def _month(one: Candidate) -> float:
    """The cheapest month of one machine; what has no price comes last but is looked at."""
    return math.inf if one.least is None else one.least


def _ranked(search: _Search) -> list[Option]:
    """Return what keeps the SLO: cheaper first, for the same money surer machines, of a machine the larger format.

    A smaller format of the same machine is nearly always surer, and the larger one is sure enough.
    """
    surest: dict[tuple[float, str], float] = {}
    for one in search.options:
        key = one.way.usd or math.inf, one.name
        surest[key] = max(one.sure.probability, surest.get(key, 0.0))

    def order(one: Option) -> tuple[float, float, str, float]:
        key = one.way.usd or math.inf, one.name
        size = float(checkpoint_bytes(search.asked.spec, one.planned.asked.checkpoint))
        return key[0], -surest[key], one.name, -size

    return sorted(search.options, key=order)


def _planned(search: _Search, one: Candidate) -> Iterator[_Unit]:
    """Plan a machine in every format and with every engine."""
    asked = search.asked
    if not any(within(asked, way, one.watts, search.money) for way in one.ways):
        search.left_out["beyond the budget or the power"] += 1
        return
    memory = one.machine.accelerator.memory
    for word in asked.weights:
        if word not in search.sizes:
            search.sizes[word] = float(checkpoint_bytes(asked.spec, checkpoint_for(asked.spec, word)))
        if memory is not None and search.sizes[word] > memory * one.machine.count:
            search.left_out["the weights are larger than the memory"] += 1
            continue
        for engine in asked.engines:
            search.looked_at += 1
            try:
                unit = _plan(search, one, word, engine)
            except GlmplanError as error:
                search.left_out[_short(str(error))] += 1
                continue
            if unit is not None:
                yield unit


def _short(reason: str) -> str:
    """A reason without the machine that it names."""
    if "does not fit" not in reason:
        return reason
    return f"does not fit, {MAY_START}" if MAY_START in reason else "does not fit"


def _plan(search: _Search, one: Candidate, word: str, engine: str | None) -> _Unit | None:
    asked, traffic = search.asked, search.asked.traffic
    users = min(traffic.users or _TYPICAL, MOST_USERS)
    planned = deployment(
        asked.model, one.machine.text, weights=word, engine=engine, input=traffic.input, output=traffic.output,
        users=(users,), power_limit=one.limit,
    )  # fmt: skip
    if planned.holding.terms.blocked is not None:
        search.left_out[f"does not run: {planned.holding.terms.blocked.title}"] += 1
        return None
    if not prompts_timed(planned.asked):
        search.left_out[f"{untimed_words(planned.asked)}, nor a promise be judged"] += 1
        return None
    needed = _needed(planned, asked)
    unit = _Unit(one, planned, needed)
    if not needed:
        search.slow[id(unit)] = (unit, asked.most_machines)
        search.left_out["too slow, or not surely enough fast, for the promise even with one user"] += 1
        return None
    if needed > 1:
        # fewer cannot keep it surely, but may be the nearest there is
        search.failed[id(unit)] = (unit, needed - 1)
    if needed > asked.most_machines:
        search.left_out["more machines than are allowed"] += 1
        return None
    return unit


def _needed(planned: Deployed, asked: SizeQuestion) -> int:
    """Machines that are needed at least, one more than allowed if those do not do; 0 if nothing does for one user.

    A machine that keeps a promise with 95 % probability keeps it at its predicted mean, and no percentile above the
    median is promised that the mean may miss by more than `_SLACK`. Of its draws of the step time, slowest first, the
    first that may not fail keeps its mean time per token too, by `_SLOW`.
    """
    targets = [one for one in parse_slo(asked.slo) if one.statistic != "p50" and one.metric in ("ttft", "tpot")]
    counts = range(1, asked.most_machines + 1)
    steady = asked.unit == "users" and asked.traffic.kind == "closed" and not asked.traffic.think
    shares = [math.ceil(asked.load / count) for count in counts] if steady else []
    loads = sorted({1, *(one for one in shares if one <= MOST_USERS)})
    found = predicted(planned.asked, [(planned.holding, users) for users in (typical_users(planned.asked), *loads)])
    slower = {metric: _slow_factor(found[0], metric, asked.probability) for metric in ("ttft", "tpot")}

    def holds(one: Prediction, slow: tuple[str, ...]) -> bool:
        for target in targets:
            if target.metric not in one.figures:
                continue
            mean = one.figures[target.metric].value
            late = target.metric in slow and mean * slower[target.metric] > _SLOW * target.bound
            if late or mean > _SLACK * target.bound:
                return False
        return True

    # several users start together, and the burst is not judged: of first tokens one user alone says what is sure
    if not holds(found[1], ("ttft", "tpot")):
        return 0
    if not steady:
        return 1
    does = {users for users, one in zip(loads, found[1:], strict=True) if holds(one, ("tpot",))}
    return next((count for count, users in zip(counts, shares, strict=True) if users in does), asked.most_machines + 1)


def _slow_factor(found: Prediction, metric: str, probability: float) -> float:
    """A time over its prediction in the first draw, from the slow end, that may not fail, [-]"""
    figure = found.figures.get(metric)
    if figure is None:
        return 1.0
    factors = speed_factors(figure.low / figure.value, figure.high / figure.value)
    return max(factors[min(int((1.0 - probability) * len(factors) + 1e-9), len(factors) - 1)], 1.0)


def _looked(search: _Search, unit: _Unit, counts: Numbers) -> bool:
    """Look at one more number of a machine; whether there is more to see, should it be the cheapest again."""
    first = counts.first
    if not counts.found:
        machines = counts.next
        does = _kept(search, unit, machines).probability >= search.asked.probability
        counts.tell(machines, does=does)
        if not does:
            search.failed[id(unit)] = (unit, machines)
        if counts.first is None:
            search.left_out["too slow, too small or too unsure for the promise"] += 1
            return False
        if not counts.found or counts.first != first:
            return True
    assert counts.first is not None
    _offer(search, unit, counts.first)
    return False


def _offer(search: _Search, unit: _Unit, machines: int) -> None:
    """Take so many machines, which keep the promise, as an option if they may be paid."""
    asked, one, planned = search.asked, unit.candidate, unit.planned
    sure = _kept(search, unit, machines)
    watts = None if one.watts is None else machines * one.watts
    affordable = [way for way in _ways(search, one, machines) if within(asked, way, watts, search.money)]
    if not affordable:
        search.left_out["beyond the budget or the power"] += 1
        return
    shown = _predicted(planned, asked, machines, sure)
    option = Option(planned, machines, affordable[0], watts, asked.load, sure, sure.broken, shown)
    (search.options if option.way.usd is not None else search.unpriced).append(option)


def _ways(search: _Search, one: Candidate, machines: int) -> tuple[Way, ...]:
    if machines == 1:
        return one.ways
    asked = search.asked
    return ways_of(
        one.machine, search.money, machines=machines, limit=one.limit, kinds=asked.kinds, rent_term=asked.rent_term
    )


def _kept(search: _Search, unit: _Unit, machines: int) -> Kept:
    """How surely so many machines keep the promise; below what is wanted it does not matter how surely."""
    asked, planned = search.asked, unit.planned
    found, key = search.service(planned), (id(planned), machines)
    if key not in search.tried:
        share = share_of(asked.traffic, machines)
        search.tried[key] = kept_of(found, share, parse_slo(asked.slo), least=asked.probability, named=False)
    return search.tried[key]


def kept_by(planned: Deployed, asked: SizeQuestion, machines: int) -> Kept:
    """The probability that machines with equal shares of the load keep the promise.

    Returns: That of the machine with the largest share; all have the same step time, right or wrong.
    """
    return kept(planned, asked.slo, share_of(asked.traffic, machines))


def _predicted(planned: Deployed, asked: SizeQuestion, machines: int, sure: Kept) -> Prediction:
    share = share_of(asked.traffic, machines)
    users = share.users
    if users is None or share.think or share.kind == "sessions":
        # a rate has no users, and some of those who pause are away: as many as the simulation has at once
        users = max(round(sure.summary.get("batch_mean", 1.0)), 1)
    return predict(planned, users=min(users, MOST_USERS))


def _cheaper(search: _Search, options: list[Option]) -> Option | None:
    """Of the machines that cost less than the first answer, what keeps the promise most probably."""
    least = min((one.way.usd for one in options if one.way.usd is not None), default=math.inf)
    below = _below(search, search.failed, least)
    if not below and not options:
        # what is not sure with one user either may still be the nearest that may be bought
        below = _below(search, search.slow, least)
    near = sorted(below, key=lambda row: (-row[0], row[1].asked.machine.text))[:_NEAR_SIZE]
    judged = []
    for _, planned, machines, way, watts in near:
        share = share_of(search.asked.traffic, machines)
        sure = judged_by(search.service(planned), share, parse_slo(search.asked.slo))
        at_load = _predicted(planned, search.asked, machines, sure)
        judged.append(Option(planned, machines, way, watts, 0.0, sure, sure.broken, at_load))
    best = max(judged, key=lambda one: (one.sure.probability, one.way.usd), default=None)
    if best is None:
        return None
    # what it misses at the load that was asked for, not what breaks beyond the load that it carries
    found = _with_headroom(search, best)
    return replace(found, breaks_first=best.sure.broken or found.breaks_first)


def _below(
    search: _Search, failed: dict[int, tuple[_Unit, int]], least: float
) -> list[tuple[float, Deployed, int, Way, float | None]]:
    """Of each machine as many as cost less than a month of the first answer and may be paid."""
    below = []
    for unit, most in failed.values():
        # of numbers whose largest share is the same the smallest
        for machines in reversed([one for one in search.numbers if one <= most]):
            watts = None if unit.candidate.watts is None else machines * unit.candidate.watts
            ways = [way for way in _ways(search, unit.candidate, machines) if way.usd is not None and way.usd < least]
            ways = [way for way in ways if within(search.asked, way, watts, search.money)]
            if ways:
                below.append((ways[0].usd or 0.0, unit.planned, machines, ways[0], watts))
                break
    return below


def _per_token(found: Sized) -> tuple[Paid | None, str]:
    """The bill of a month for what the first answer, or the next cheaper one, would produce."""
    first = next(iter((*found.options, *found.unpriced)), found.cheaper)
    try:
        offers = offers_of(found.asked.spec.name, found.money.prices, today=found.money.today)
    except GlmplanError as error:
        return None, str(error)
    if first is None:
        return None, "the tokens of a month are not known: no machine carries the load"
    inputs, cached, outputs = month_tokens(first, found)
    best = cheapest_offer(offers, inputs, outputs, cached)
    return Paid(best, inputs, outputs, best.bill(inputs, outputs, cached), cached), ""
