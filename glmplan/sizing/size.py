"""What to buy or rent for a model, a load and a promise: machines by cost, with the probability of keeping it.

Machines are looked at from the cheapest on, as few of each as may do at best. What does not keep the promise
(`glmplan.kept`) waits until the fewest that still may are the cheapest that is left; then another number is looked at.
The search ends when the next costs more than the answers. Of these the largest load is found that keeps the promise
(`glmplan.safe`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from glmplan.errors import GlmplanError
from glmplan.physics.blocks.storage import checkpoint_bytes
from glmplan.plan.ask import Deployed, deployment, kept, predict
from glmplan.plan.capacity import MAY_START
from glmplan.plan.ranking import predicted, prompts_timed, typical_users, untimed_words
from glmplan.plan.service import Described, service_of
from glmplan.plan.simulator_inputs import inputs_of
from glmplan.prediction.predict import Prediction
from glmplan.readers.models.checkpoints import checkpoint_for
from glmplan.serving.safe_load import Kept, kept_share, speed_factors
from glmplan.serving.traffic.promises import parse_slo
from glmplan.sizing.candidates import Candidate, candidates, within
from glmplan.sizing.carried import carried_by, judged_by
from glmplan.sizing.money import Money, Way, ways_of
from glmplan.sizing.numbers import Numbers, numbers_of
from glmplan.sizing.offers import cheapest_offer, offers_of
from glmplan.sizing.size_answer import MOST_USERS, Option, Paid, Sized, month_tokens, share_of
from glmplan.sizing.size_question import SizeQuestion

__all__ = ["kept_by", "sized"]

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
_NEAR = 4


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

    Parameters
    ----------
    asked : SizeQuestion
        The question.
    money : Money
        Prices and terms.
    answers : int, optional
        How many are wanted, [-]
    every : bool, optional
        Look at every machine instead of ending the search when the answers are sure; for tests.
    progress : callable, optional
        Called with machines looked at and in all, [-]

    Returns
    -------
    Sized
        The answer; also "nothing" is one.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.sizing.money import money_of
    >>> from glmplan.sizing.size_question import read_size
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
    options = sorted(search.options, key=_order)[:answers]
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
    carried = load * one.machines
    if one.sure.probability >= asked.probability:
        carried = max(carried, asked.load)
    # of what is kept as far as was looked, nothing is known that breaks
    return replace(one, carried=carried, breaks_first=breaks or ("" if beyond else one.sure.broken), beyond=beyond)


def _month(one: Candidate) -> float:
    """The cheapest month of one machine; what has no price comes last but is looked at."""
    return math.inf if one.least is None else one.least


def _order(one: Option) -> tuple[float, float, str]:
    """Cheaper first; for the same money what is surer."""
    return one.way.usd or math.inf, -one.sure.probability, one.name


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
        share, targets = share_of(asked.traffic, machines), parse_slo(asked.slo)
        search.tried[key] = kept_share(
            found.service, share, targets, **found.draws(), least=asked.probability,
            known=found.known(share, targets, 0), named=False,
        )  # fmt: skip
    return search.tried[key]


def kept_by(planned: Deployed, asked: SizeQuestion, machines: int) -> Kept:
    """The probability that machines with equal shares of the load keep the promise.

    Parameters
    ----------
    planned : Deployed
        One of the machines.
    asked : SizeQuestion
        Load and promise.
    machines : int
        How many, [-]

    Returns
    -------
    Kept
        That of the machine with the largest share; all have the same step time, right or wrong.
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
    near = sorted(below, key=lambda row: (-row[0], row[1].asked.machine.text))[:_NEAR]
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
