"""Search for the cheapest machines that meet an SLO under a load.

Answers state the probability that they do. Best-first search by monthly cost. Each machine starts with the smallest
number that
can meet the SLO; when that number fails (`glmplan.kept`), the machine returns to the queue at the cost of the next
candidate number. The search ends when the cheapest entry of the queue costs more than the answers. The largest load of
each answer is that of `glmplan.safe`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from heapq import heappop, heappush
from itertools import product
from typing import Any

from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.entries.hosts import host_names, load_host
from glmplan.costs.blocks.stack import checkpoint_bytes
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.machines.resolve import Machine, resolve_machine
from glmplan.io.models.checkpoints import checkpoint_for
from glmplan.planner.ask import Deployed, predict
from glmplan.planner.capacity import MAY_START
from glmplan.planner.formats import FEW_BITS, bits_of
from glmplan.planner.layouts import apart_basis, known_apart
from glmplan.planner.moved_search import with_moved_experts
from glmplan.planner.ranking import deployment_of, predicted, prompts_timed, typical_users, untimed_words
from glmplan.planner.service import Described, chosen, inputs_of, kept_of, loads_at, service_of
from glmplan.planner.slo_layouts import contenders
from glmplan.planner.traffic_search import asked_under, solution_for
from glmplan.planner.users import Solution, is_steady, ranked_layouts
from glmplan.prediction.predict import Figure, Prediction
from glmplan.prediction.step_models import site_calibration
from glmplan.purchase.after_measurement import after_measurement
from glmplan.purchase.inventory import OwnMachine
from glmplan.purchase.money import Money, Way, market_of, offers_of, watts_of, ways_of
from glmplan.purchase.size_answer import BEYOND, MOST_USERS, Option, Paid, Sized, month_tokens, share_of
from glmplan.purchase.size_question import SizeQuestion
from glmplan.request.plan import PlanRequest
from glmplan.simulation.load_search import Tries
from glmplan.simulation.safe_load import Cutoff, Draws, Kept, kept_share
from glmplan.simulation.traffic.slo import Target, parse_slo
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import Bytes, Ratio, Usd, Watts

__all__ = [
    "Candidate",
    "CountSearch",
    "boards_left_out",
    "candidates",
    "machine_counts",
    "sized",
    "sized_each",
    "slo_statistics",
    "spend_of",
    "within",
]


#: accelerators per machine that are tried for a part of the catalogue
_COUNTS = range(1, 9)
#: the same for modules of a baseboard: whole boards, and the shares that clouds offer
#: (https://docs.skypilot.co/en/stable/compute/gpus.html, AVAILABLE_QUANTITIES)
_SHARES = (1, 2, 4, 8)
#: servers that are tried as one machine
_NODES = (2, 4)


@dataclass(frozen=True)
class Candidate:
    """One machine with the ways to buy or rent it."""

    machine: Machine
    #: cost of one machine, the cheapest first
    ways: tuple[Way, ...]
    #: power at the wall
    watts: Watts | None
    #: power limit of each accelerator; None is its rating
    limit: Watts | None = None
    #: entry of an inventory
    own: OwnMachine | None = None

    @property
    def least(self) -> Usd | None:
        """Return the cheapest month of one machine; None if no price is known."""
        return self.ways[0].usd if self.ways else None


def candidates(asked: SizeQuestion, money: Money) -> tuple[list[Candidate], tuple[str, ...]]:
    """Return the machines to try, cheapest first, and the unpriced ones.

    Unpriced machines are names. Machines without a price are tried only if the question names them; they come last.
    """
    priced, without = [], []
    for one in asked.own:
        machine, limit = one.resolved(), one.options.get("power_limit")
        ways = ways_of(machine, money, limit=limit, kinds=asked.kinds)
        priced.append(Candidate(machine, ways, watts_of(machine, money, limit)[0], limit, one))
    for machine in () if asked.own else _machines(asked):
        names = {machine.accelerator.name, machine.host.name}
        prices = tuple(price for price in money.prices if price.part in names or price.of in ("host", "host part"))
        own = replace(money, prices=prices)
        for limit in _limits(asked, machine):
            ways = ways_of(machine, own, limit=limit, kinds=asked.kinds)
            if asked.only or any(way.usd is not None for way in ways):
                priced.append(Candidate(machine, ways, watts_of(machine, own, limit)[0], limit))
            elif machine.text not in without:
                without.append(machine.text)
    priced.sort(key=_cost_order)
    return priced, tuple(without)


def _cost_order(candidate: Candidate) -> tuple[bool, float, int, str, float]:
    least, machine = candidate.least, candidate.machine
    return least is None, least or 0.0, machine.count, machine.text, candidate.limit or 0.0


def _limits(asked: SizeQuestion, machine: Machine) -> tuple[Watts | None, ...]:
    """Return the power limits to try.

    A limit at or above the accelerator's rating is none.
    """
    rating = machine.accelerator.tdp
    return tuple(dict.fromkeys(None if rating and limit and limit >= rating else limit for limit in asked.limits))


def _machines(asked: SizeQuestion) -> Iterator[Machine]:
    for name in asked.only or (*accelerator_names(), *_hosts()):
        if name in host_names() or name[0].isdigit():
            yield resolve_machine(name)
            continue
        if not asked.only and load_accelerator(name).kind == "cpu-socket":
            continue
        for count in (*_part_counts(name), *_node_counts(name)):
            try:
                yield resolve_machine(f"{count}x{name}")
            except GlmplanError:
                continue  # no machine with that number of these accelerators


@cache
def _hosts() -> tuple[str, ...]:
    """Return the hosts of more than eight accelerators."""
    hosts = [load_host(name) for name in host_names()]
    return tuple(host.name for host in hosts if host.nodes * host.accelerators_per_node > max(_COUNTS))


@cache
def boards_left_out() -> tuple[str, ...]:
    """Return the hosts that a number of their accelerator stands for.

    Examples
    --------
    >>> "hgx-h200-8" in boards_left_out(), "gb200-nvl72" in boards_left_out()
    (True, False)
    """
    return tuple(name for name in host_names() if name not in _hosts())


def _has_modules(asked: SizeQuestion) -> bool:
    """Return True if modules of baseboards are tried in some numbers only."""
    return not asked.own and any(
        name not in host_names() and not name[0].isdigit() and len(_part_counts(name)) < len(_COUNTS)
        for name in asked.only or accelerator_names()
    )


@cache
def _part_counts(part: str) -> tuple[int, ...]:
    """Return the accelerators of one machine that are tried.

    Modules on a fabric are tried in the shares of a server, or of a tray of a rack, that are offered.
    """
    hosts = [load_host(name) for name in host_names()]
    sizes = [host.accelerators_per_node for host in hosts if host.accelerator == part and host.scale_up is not None]
    return tuple(count for count in _SHARES if count <= max(sizes)) if sizes else tuple(_COUNTS)


@cache
def _node_counts(part: str) -> tuple[int, ...]:
    """Return the accelerators of several servers as one machine.

    Only of servers of eight on a fabric.
    """
    hosts = [load_host(name) for name in host_names()]
    size = max(_COUNTS)
    servers = [host for host in hosts if host.accelerator == part and host.nodes == 1 and host.scale_up is not None]
    return (
        tuple(nodes * size for nodes in _NODES) if any(host.accelerators_per_node == size for host in servers) else ()
    )


def spend_of(way: Way, money: Money) -> Usd | None:
    """Return the cost that a budget limits, None without a price.

    The purchase, or the rent until the horizon.
    """
    if way.usd is None:
        return None
    if way.purchase is not None:
        return way.purchase.value
    return way.usd * money.terms.horizon_months


def within(asked: SizeQuestion, way: Way, watts: Watts | None, money: Money) -> bool:
    """Return True if a purchase or rent is within budget and power limit.

    An unknown price or rating counts as too much. The power limit does not apply to rents.
    """
    spend = spend_of(way, money)
    if asked.budget is not None and (spend is None or spend > asked.budget):
        return False
    rented = way.paid not in ("buy", "own")
    return asked.power is None or rented or (watts is not None and watts <= asked.power)


def slo_statistics(described: Described, traffic: Traffic, targets: Sequence[Target], probability: Ratio) -> Kept:
    """Return the SLO attainment, exact at the probability of the question.

    Always with the percentiles of a simulated run.
    """
    attainment = kept_of(described, traffic, targets, probability=probability)
    if "requests" in attainment.summary:
        return attainment
    return replace(attainment, summary=kept_share(described.service, traffic, tuple(targets), Draws((1.0,))).summary)


@dataclass(slots=True, eq=False)
class CountSearch:
    """Search for the smallest number of machines that meets the SLO.

    Machines are equal; tests are few. Doubling steps up to the first number that passes, then bisection: attainment
    never falls with more machines.

    Examples
    --------
    >>> counts, looked = CountSearch([1, 2, 3, 4, 5, 6, 7, 8], 100.0), []
    >>> while not counts.found:
    ...     looked.append(counts.next)
    ...     counts.tell(counts.next, passes=counts.next >= 5)
    >>> looked, counts.first, counts.least
    ([1, 2, 4, 8, 6, 5], 5, 500.0)
    """

    #: numbers to try, ascending
    counts: list[int]
    #: cheapest month of one machine
    month: Usd
    #: machines to buy for a number that serves
    bought: Callable[[int], int] = int
    #: index of the largest number that failed and of the smallest that passed
    failed: int = -1
    passed: int | None = None
    #: step to the next number while none has passed
    stride: int = 1

    @property
    def first(self) -> int | None:
        """Return the smallest number that has not failed; None if all have."""
        return self.counts[self.failed + 1] if self.failed + 1 < len(self.counts) else None

    @property
    def least(self) -> Usd:
        """Return the month of the smallest number that has not failed."""
        return self.bought(self.counts[self.failed + 1]) * self.month

    @property
    def found(self) -> bool:
        """Return True if the smallest number that passes is known."""
        return self.passed == self.failed + 1

    @property
    def next(self) -> int:
        """Return the number to test next."""
        if self.passed is not None:
            return self.counts[(self.failed + self.passed) // 2]
        return self.counts[min(self.failed + self.stride, len(self.counts) - 1)]

    def tell(self, number: int, *, passes: bool) -> None:
        """Record the result of a test."""
        index = self.counts.index(number)
        if passes:
            self.passed = index
        else:
            self.stride = 1 if self.failed < 0 else 2 * self.stride
            self.failed = index


def machine_counts(asked: SizeQuestion) -> list[int]:
    """Return the numbers of machines to try.

    A number whose largest share equals that of one machine less is left out.

    Examples
    --------
    >>> from glmplan.purchase.size_question import read_size
    >>> machine_counts(read_size("llama-3.1-8b", "tpot p95 < 50 ms", users=9, machines=8))
    [1, 2, 3, 5]
    """
    shares = [share_of(asked.traffic, count) for count in range(1, asked.most_machines + 1)]
    return [index + 1 for index, share in enumerate(shares) if not index or share != shares[index - 1]]


#: tabulated concurrency of one machine over that of the question [-]
_LIKELY = 2
#: concurrency that decides the layout if the load is a rate [-]
_TYPICAL = 32
#: a machine whose predicted mean exceeds a target by this factor is skipped without a simulation [-]
_SLACK = 1.1
#: the same for a slow step time: the mean of a run from its start includes no pauses by prefills [-]
_SLOW = 1.25
#: machines that are simulated for the next cheaper answer
_NEAR_SIZE = 4


@dataclass(eq=False)
class _Unit:
    """Plan of one machine with one format and engine.

    `needed` is the smallest number that can meet the SLO.
    """

    candidate: Candidate
    planned: Deployed
    needed: int = 0
    #: layouts and load of one machine while the layout is not chosen by searches
    open: tuple[Solution, Traffic] | None = None


@dataclass
class _Search:
    """State of the search."""

    asked: SizeQuestion
    money: Money
    answers: int
    options: list[Option]
    unpriced: list[Option]
    failed: dict[int, tuple[_Unit, int]]
    slow: dict[int, tuple[_Unit, int]]
    left_out: Counter[str]
    #: result of `machine_counts`
    numbers: list[int]
    looked_at: int = 0
    #: machines of which no plan was made, or no number bought, because of the budget or the power limit
    over_limits: int = 0
    #: plans that an option of the question makes impossible
    refused: list[SpecError] = field(default_factory=list)
    #: weights of each format
    sizes: dict[str, Bytes] = field(default_factory=dict)
    #: id of a plan → (plan, service); the reference to the plan keeps its id from being reused
    services: dict[int, tuple[Deployed, Described]] = field(default_factory=dict)
    tried: dict[tuple[int, int], Kept] = field(default_factory=dict)

    def service(self, planned: Deployed) -> Described:
        """Return the service of one machine; its step times are tabulated once."""
        if id(planned) not in self.services:
            inputs = inputs_of(planned.asked, planned.holding, planned.deployment)
            users = None if self.asked.traffic.users is None else math.ceil(_LIKELY * self.asked.load)
            service = service_of(inputs, self.asked.traffic, users=users)
            self.services[id(planned)] = planned, replace(service, plan=(planned.asked, planned.holding))
        return self.services[id(planned)][1]

    def settled(self, unit: _Unit) -> Deployed:
        """Return the plan of a machine in the layout that `safe` chooses.

        It is searched for when a machine is first tested.
        """
        if unit.open is not None:
            (solution, traffic), unit.open = unit.open, None
            request = solution.asked
            with site_calibration(request.calibration):
                found = solution_for(solution, traffic, self.asked.slo, probability=self.asked.probability)
                best = chosen(request, found)
                unit.planned = Deployed(request, best, deployment_of(request, best.terms))
        return unit.planned

    def bound(self) -> Usd:
        """Return the largest monthly cost of an answer."""
        known: dict[tuple[str, ...], Usd] = {}
        for one in self.options:
            if one.way.usd is not None:
                key = _apart(one, self.asked)
                known[key] = min(one.way.usd, known.get(key, math.inf))
        costs = sorted(known.values())
        return costs[self.answers - 1] if len(costs) >= self.answers else math.inf


def sized(
    asked: SizeQuestion,
    money: Money,
    *,
    answers: int = 5,
    every: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Sized:
    """Return the cheapest machines that meet the SLO of a question.

    All rents are at one term: that of the question, else one that most of the machines are offered at.

    - `every`: Try every machine instead of ending at the cost bound; for tests.
    - `progress`: Called with the machines tried and their total.

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
    money = replace(money, rent_term=asked.rent_term or money.rent_term)
    money = money if asked.own else money.at_one_term(_machines(asked))
    asked = replace(asked, rent_term=money.rent_term)
    search = _Search(asked, money, answers, [], [], {}, {}, Counter(), machine_counts(asked))
    listed, no_price = candidates(asked, money)
    units: list[tuple[float, int, CountSearch, _Unit]] = []
    index, total = 0, len(listed)
    while units or index < total:
        least = math.inf if index == total else _month(listed[index])
        # plan the next machine, unless a planned one may cost less than a single machine of it
        if index < total and (not units or least <= units[0][0]):
            if least > search.bound() and not every:
                search.left_out["a single machine costs more than the results shown"] += total - index
                index = total
                continue
            for unit in _planned(search, listed[index]):
                more = (number for number in _numbers(search, unit) if number > unit.needed)
                counts = CountSearch([unit.needed, *more], _month(unit.candidate), asked.bought)
                heappush(units, (counts.least, search.looked_at, counts, unit))
            index += 1
            progress(index, total)
            continue
        cost, order, counts, unit = heappop(units)
        if cost > search.bound() and not every:
            search.left_out["more expensive than the results shown even in the best case"] += 1 + len(units)
            units = []
        elif _test_next(search, unit, counts):
            heappush(units, (counts.least, order, counts, unit))
    if search.refused and len(search.refused) == search.looked_at:
        raise search.refused[0]
    options = _ranked(search)[:answers]
    unpriced = sorted(search.unpriced, key=lambda option: (option.accelerators, option.name))[:answers]
    answer = Sized(asked, money, tuple(options), tuple(unpriced), cheaper=_cheaper(search, options),
                   left_out=dict(search.left_out), looked_at=search.looked_at, no_price=no_price,
                   boards=() if asked.only or asked.own else boards_left_out(),
                   modules=_has_modules(asked))  # fmt: skip
    answer = replace(
        answer,
        options=tuple(_with_headroom(search, option) for option in options),
        unpriced=tuple(_with_headroom(search, option) for option in unpriced),
    )
    if not options and search.over_limits:
        freed = replace(asked, budget=None, power=None)
        without = sized(freed, money, answers=1, every=every, progress=progress).options
        answer = replace(answer, over_limits=next(iter(without), None))
    first = next(iter(answer.options), None)
    if first is not None and first.machines > 1 and not first.planned.asked.prefill:
        answer = replace(answer, measured=after_measurement(first, asked, search.service(first.planned)))
    paid, missing = _per_token(answer)
    return replace(answer, per_token=paid, per_token_missing=missing)


def sized_each(
    questions: Sequence[SizeQuestion], money: Money, *, answers: int, progress: Callable[[int, int], None]
) -> list[Sized]:
    """Return the answer of each question; progress is that of all of them."""

    def tried(place: int) -> Callable[[int, int], None]:
        return lambda done, total: progress(place * total + done, len(questions) * total)

    return [sized(asked, money, answers=answers, progress=tried(place)) for place, asked in enumerate(questions)]


def _with_headroom(search: _Search, option: Option) -> Option:
    """Return the option with its largest load.

    It may exceed the load of the question.
    """
    asked, attainment = search.asked, option.attainment
    # the search starts at the share of one machine if that is known to pass
    share = share_of(asked.traffic, option.machines).users if attainment.probability >= asked.probability else None
    targets = parse_slo(asked.slo)
    # steady sums know the users of an SLO of means at once
    counted = is_steady(asked.traffic) and all(target.statistic == "mean" for target in targets)
    most: float | None = BEYOND * asked.load / option.machines
    if asked.unit == "users":
        # users are whole on every machine
        most = None if counted else math.ceil(BEYOND * asked.load / option.machines)
    found = loads_at(
        search.service(option.planned), asked.traffic, targets, probability=asked.probability, most=most,
        begun=Tries(start=share),
    )  # fmt: skip
    # where every tested load passed, no target is known to fail
    open_ended = not found.breaks_first
    breaks = found.breaks_first or ("" if open_ended else attainment.broken)
    at = tuple((probability, load * option.machines) for probability, load in found.at)
    return replace(option, max_load=found.load * option.machines, breaks_first=breaks, open_ended=open_ended, at=at,
                   tested=None if most is None else most * option.machines)  # fmt: skip


def _month(candidate: Candidate) -> Usd:
    """Return the cheapest month of one machine.

    Infinity without a price, so that it is tried last.
    """
    return math.inf if candidate.least is None else candidate.least


def _ranked(search: _Search) -> list[Option]:
    """Return the answers, the cheapest first.

    Then the most probable machine, then the largest format of a machine. A smaller format of the same machine is nearly
    always more probable, and the larger one is sufficient. The most probable way of drafting stands for a format.
    """
    best: dict[tuple[float, str], float] = {}
    for option in search.options:
        machine = option.way.usd or math.inf, option.name
        best[machine] = max(option.attainment.probability, best.get(machine, 0.0))

    def order(option: Option) -> tuple[float, float, str, float]:
        machine = option.way.usd or math.inf, option.name
        size = float(checkpoint_bytes(search.asked.spec, option.planned.asked.checkpoint))
        return machine[0], -best[machine], option.name, -size

    ranked: dict[tuple[str, ...], Option] = {}
    for option in sorted(search.options, key=order):
        key = _apart(option, search.asked)
        shown = ranked.setdefault(key, option)
        if option.name == shown.name and option.attainment.probability > shown.attainment.probability:
            ranked[key] = option
        elif key == _FEWER_BITS and option.name != shown.name:
            search.left_out[f"fewer than {FEW_BITS:g} bits for each weight on other machines (--weights NAME)"] += 1
    return list(ranked.values())


#: formats of few bits, of which the first machine stands for all
_FEWER_BITS = ("few bits",)


def _apart(option: Option, question: SizeQuestion) -> tuple[str, ...]:
    """Return the machines, format and engine of an answer.

    Formats of few bits, whose losses are not modelled, count as one answer unless they were typed.
    """
    asked = option.planned.asked
    if question.formats_open and bits_of(asked.checkpoint) < FEW_BITS:
        return _FEWER_BITS
    return option.name, asked.checkpoint.name, asked.engine, option.way.paid, str(asked.power_limit)


def _planned(search: _Search, candidate: Candidate) -> Iterator[_Unit]:
    """Plan a machine with every format and engine."""
    asked, machine = search.asked, candidate.machine
    if not any(within(asked, way, candidate.watts, search.money) for way in candidate.ways):
        _over_limits(search, candidate, candidate.ways, candidate.watts)
        return
    planned = False
    for weights in asked.weights:
        if machine.accelerator.vendor != "Apple" and checkpoint_for(asked.spec, weights).form == "mlx":
            continue  # files of MLX, which runs on Apple's GPUs only
        if not _holds(search, machine, weights, beside=_beside(machine)):
            search.left_out["the weights are larger than the memory"] += 1
            continue
        for engine, drafts in product(asked.engines, asked.drafts):
            unit = _tried(search, candidate, (weights, engine), drafts)
            if unit is not None:
                planned = True
                yield unit
    for weights, drafts in product(_files(search, machine, planned), asked.drafts):
        unit = _tried(search, candidate, (weights, _FILE_ENGINE), drafts)
        if unit is not None:
            yield unit


def _over_limits(search: _Search, candidate: Candidate, ways: Sequence[Way], watts: Watts | None) -> None:
    """Count machines over the limits with the reason."""
    asked, host = search.asked, "because of the price of the host: set yours with --price workstation-host=NUMBER"
    search.over_limits += 1
    over = [
        name
        for name, other in (("budget", replace(asked, power=None)), ("power limit", replace(asked, budget=None)))
        if not any(within(other, way, watts, search.money) for way in ways)
    ]
    if over == ["budget"] and any(_host_decides(way, asked.budget) for way in candidate.ways):
        over = [f"budget {host}"]
    search.left_out[f"over the {' and the '.join(over) or 'budget or the power limit'}"] += 1


def _host_decides(way: Way, budget: Usd | None) -> bool:
    """Return True if a budget pays the accelerators, but not the host too."""
    if way.purchase is None or budget is None:
        return False
    first, *rest = way.purchase.lines
    cards = None if first.quotation is None else first.count * first.quotation.value
    return bool(rest) and cards is not None and cards <= budget < way.purchase.known


#: engine that reads GGUF files
_FILE_ENGINE = "llama.cpp"
#: links of servers, whose other formats are faster than GGUF files
_FABRICS = ("nvlink", "infinity-fabric", "hccs")
#: GGUF files that are tried on a machine, those of highest precision that it holds
_FILES = 2


def _holds(search: _Search, machine: Machine, weights: str, *, beside: Bytes = 0.0) -> bool:
    """Return True unless the weights are larger than the memory of a machine.

    `beside`: Memory of its host that may hold weights too.
    """
    if weights not in search.sizes:
        spec = search.asked.spec
        search.sizes[weights] = float(checkpoint_bytes(spec, checkpoint_for(spec, weights)))
    memory = machine.accelerator.memory
    return memory is None or search.sizes[weights] <= memory * machine.count + beside


def _beside(machine: Machine) -> Bytes:
    """Return the host memory that may hold weights, 0 if its speed is unknown."""
    host = machine.host
    if host.unified_memory or host.host_memory_bandwidth is None:
        return 0.0
    return (host.host_memory or 0.0) * host.nodes


def _files(search: _Search, machine: Machine, planned: bool) -> list[str]:
    """Return the GGUF files to try on a machine, the largest first.

    On a server with a fabric only if no other format runs there. With weights in host memory only if none is small
    enough for the accelerators, and no other format runs.

    - `planned`: Another format runs on the machine.
    """
    files = [name for name in search.asked.files if _holds(search, machine, name)]
    if not files and not planned:
        files = [name for name in search.asked.files if _holds(search, machine, name, beside=_beside(machine))]
    if not files:
        return []
    if machine.count > max(_COUNTS) or (planned and machine.accelerator.scaleup in _FABRICS):
        search.left_out["GGUF files, where another format runs (--weights NAME)"] += len(files)
        return []
    files.sort(key=lambda name: -search.sizes[name])
    if len(files) > _FILES:
        search.left_out["GGUF files of less precision (--weights NAME)"] += len(files) - _FILES
    return files[:_FILES]


def _tried(
    search: _Search, candidate: Candidate, names: tuple[str, str | None], drafts: Mapping[str, Any]
) -> _Unit | None:
    """Plan a machine with a format, an engine and a way of drafting.

    None if it does not run; the reason is counted.
    """
    search.looked_at += 1
    try:
        return _plan(search, candidate, names, drafts)
    except GlmplanError as error:
        search.left_out[_short(str(error))] += 1
        search.refused += [error] if search.asked.given and isinstance(error, SpecError) else []
        return None


def _short(reason: str) -> str:
    """Return a reason without the machine's name, for counting."""
    if re.search(r"takes \d+ accelerators and .* has \d+", reason):
        return "the layout takes more accelerators than the machine has"
    if "does not fit" not in reason:
        return reason
    return f"does not fit, {MAY_START}" if MAY_START in reason else "does not fit"


def _plan(
    search: _Search, candidate: Candidate, names: tuple[str, str | None], drafts: Mapping[str, Any]
) -> _Unit | None:
    asked, traffic = search.asked, search.asked.traffic
    own: Mapping[str, Any] = {} if candidate.own is None else candidate.own.options
    users = min(traffic.users or _TYPICAL, MOST_USERS)
    words = PlanRequest(
        asked.model, candidate.machine.text, weights=names[0], engine=names[1], input=traffic.input,
        output=traffic.output, users=(users,), **asked.given, **drafts, **{**own, "power_limit": candidate.limit},
    )  # fmt: skip
    request = asked_under(words, traffic)
    with site_calibration(request.calibration):
        solution = with_moved_experts(ranked_layouts(request))
        request = solution.asked
        best = chosen(request, solution)
        # more than a machine usually carries at once would only tell which layout fails last
        share = traffic if traffic.users is None else traffic.at_load(min(users, typical_users(request)))
        peers = contenders(solution, share, parse_slo(asked.slo), probability=asked.probability)
        plans = [Deployed(request, one.holding, deployment_of(request, one.holding.terms)) for one in peers]
    unit = _Unit(candidate, replace(plans[0], holding=best), open=(solution, share))
    if best.terms.blocked is not None:
        search.left_out[f"does not run: {best.terms.blocked.title}"] += 1
        return None
    if not prompts_timed(request):
        search.left_out[f"{untimed_words(request)}; the SLO cannot be checked"] += 1
        return None
    unit.needed = needed = min((one for plan in plans if (one := _needed(plan, asked))), default=0)
    if not needed:
        search.slow[id(unit)] = (unit, asked.most_machines)
        search.left_out[f"the SLO is missed already with one user (at {asked.probability:.0%} confidence)"] += 1
        return None
    if traffic.rate is not None:
        # a whole rate would only tell which layout is overloaded least
        unit.open = solution, share_of(traffic, needed)
    if needed > 1:
        # fewer machines miss the SLO, but may be the nearest answer
        search.failed[id(unit)] = (unit, needed - 1)
    if needed > max(_numbers(search, unit), default=0) and candidate.own is not None:
        search.left_out["more machines needed than the inventory has"] += 1
        return None
    if needed > asked.most_machines:
        search.left_out[f"more than {asked.most_machines} machines needed (--machines)"] += 1
        return None
    return unit


def _needed(planned: Deployed, asked: SizeQuestion) -> int:
    """Return a lower bound of the machines needed.

    0 if one user misses the SLO, one more than allowed if all do. A machine that meets an SLO at 95 % meets it at its
    predicted mean: percentiles above the median lie above the mean, up to `_SLACK`. The slowest step time that still
    has to pass must meet the mean TPOT too, up to `_SLOW`.
    """
    parsed = parse_slo(asked.slo)
    targets = [target for target in parsed if target.statistic != "p50" and target.metric in ("ttft", "tpot")]
    counts = range(1, asked.most_machines + 1)
    steady = asked.unit == "users" and asked.traffic.kind == "closed" and not asked.traffic.think
    shares = [math.ceil(asked.load / count) for count in counts] if steady else []
    loads = sorted({1, *(users for users in shares if users <= MOST_USERS)})
    typical, *at_loads = predicted(
        planned.asked, [(planned.holding, users) for users in (typical_users(planned.asked), *loads)]
    )
    slower = {metric: _slow_factor(typical, metric, asked.probability) for metric in ("ttft", "tpot")}

    def passes(prediction: Prediction, slow: tuple[str, ...]) -> bool:
        for target in targets:
            if target.metric not in prediction.figures:
                continue
            mean = prediction.figures[target.metric].value
            late = target.metric in slow and mean * slower[target.metric] > _SLOW * target.bound
            if late or mean > _SLACK * target.bound:
                return False
        return True

    # TTFT is checked for one user only: several users start together, and that burst is not part of the steady state
    if not passes(at_loads[0], ("ttft", "tpot")):
        return 0
    if not steady or planned.asked.prefill:  # a plan of mixed servers is no bound for disaggregated ones
        return 1
    passing = {users for users, prediction in zip(loads, at_loads, strict=True) if passes(prediction, ("tpot",))}
    enough = (count for count, users in zip(counts, shares, strict=True) if users in passing)
    return next(enough, asked.most_machines + 1)


def _slow_factor(prediction: Prediction, metric: str, probability: Ratio) -> Ratio:
    """Return the slowest latency factor that has to pass, at least 1.

    It has to pass for the probability.
    """
    mean = prediction.figures.get(metric)
    if mean is None:
        return 1.0
    return max(mean.quantile(probability) / mean.value, 1.0)


def _test_next(search: _Search, unit: _Unit, counts: CountSearch) -> bool:
    """Test one more number of a machine; return True to queue it again."""
    first = counts.first
    if not counts.found:
        machines = counts.next
        passes = _attainment(search, unit, machines).probability >= search.asked.probability
        counts.tell(machines, passes=passes)
        if not passes:
            search.failed[id(unit)] = (unit, machines)
        if counts.first is None:
            search.left_out[f"the SLO is missed (at {search.asked.probability:.0%} confidence)"] += 1
            return False
        if not counts.found or counts.first != first:
            return True
    assert counts.first is not None
    _offer(search, unit, counts.first)
    return False


def _numbers(search: _Search, unit: _Unit) -> list[int]:
    """Return the numbers of a machine to try, no more than an inventory has."""
    own = unit.candidate.own
    return [number for number in search.numbers if own is None or search.asked.bought(number) <= own.count]


def _offer(search: _Search, unit: _Unit, machines: int) -> None:
    """Add machines that meet the SLO if budget and power allow them."""
    asked, candidate = search.asked, unit.candidate
    attainment, planned = _attainment(search, unit, machines), search.settled(unit)
    total = asked.bought(machines)
    watts = None if candidate.watts is None else total * candidate.watts
    affordable = [way for way in _ways(search, candidate, total) if within(asked, way, watts, search.money)]
    if not affordable:
        _over_limits(search, candidate, _ways(search, candidate, total), watts)
        return
    prediction = _predicted(search, planned, machines, attainment)
    option = Option(planned, machines, affordable[0], watts, asked.load, attainment, attainment.broken, prediction,
                    bought=total)  # fmt: skip
    (search.options if option.way.usd is not None else search.unpriced).append(option)


def _ways(search: _Search, candidate: Candidate, machines: int) -> tuple[Way, ...]:
    if machines == 1:
        return candidate.ways
    asked = search.asked
    return ways_of(candidate.machine, search.money, machines=machines, limit=candidate.limit, kinds=asked.kinds)


def _attainment(search: _Search, unit: _Unit, machines: int) -> Kept:
    """Return the cached SLO attainment.

    Below the probability of the question it is a bound, which is faster.
    """
    asked, planned = search.asked, search.settled(unit)
    service, key = search.service(planned), (id(planned), machines)
    if key not in search.tried:
        share = share_of(asked.traffic, machines)
        search.tried[key] = kept_of(service, share, parse_slo(asked.slo), cutoff=Cutoff(asked.probability, named=False))
    return search.tried[key]


def _predicted(search: _Search, planned: Deployed, machines: int, attainment: Kept) -> Prediction:
    """Predict one machine at its share of the load.

    A rate or think time at the simulated mean concurrency. Times and rates of disaggregated servers are simulated.
    """
    share, summary = share_of(search.asked.traffic, machines), attainment.summary
    users = share.users
    if users is None or share.think or share.kind == "sessions":
        users = max(round(summary.get("batch_mean", 1.0)), 1)
    found = predict(planned, users=min(users, MOST_USERS))
    asked, service = planned.asked, search.service(planned)
    if not asked.prefill:
        return found
    ends = {"ttft": service.first, "tpot": (service.low, service.high)}
    figures = {
        name: Figure(value, value * low, value * high)
        for name, (low, high) in ends.items()
        if name in found.figures and (value := summary.get(f"{name}_mean_ms", 0.0) / 1e3)
    }
    if rate := summary.get("output_tokens_per_s"):
        figures["output_rate"] = Figure(rate, rate / service.high, rate / service.low)
    basis, knowledge = apart_basis(asked, found.basis), known_apart(asked, found.knowledge)
    return replace(found, figures={**found.figures, **figures}, basis=basis, knowledge=knowledge)


def _cheaper(search: _Search, options: list[Option]) -> Option | None:
    """Return the most probable machines that cost less than the answer.

    The answer is the first one.
    """
    least = min((option.way.usd for option in options if option.way.usd is not None), default=math.inf)
    below = _below(search, search.failed, least)
    if not below and not options:
        # machines that miss the SLO with one user may be the nearest that can be bought
        below = _below(search, search.slow, least)
    near = sorted(below, key=lambda row: (-row[0], row[1].candidate.machine.text))[:_NEAR_SIZE]
    judged = []
    for _, unit, machines, way, watts in near:
        planned = search.settled(unit)
        share = share_of(search.asked.traffic, machines)
        attainment = slo_statistics(
            search.service(planned), share, parse_slo(search.asked.slo), search.asked.probability
        )
        prediction = _predicted(search, planned, machines, attainment)
        total = search.asked.bought(machines)
        judged.append(
            Option(planned, machines, way, watts, 0.0, attainment, attainment.broken, prediction, bought=total)
        )
    best = max(judged, key=lambda option: (option.attainment.probability, option.way.usd), default=None)
    if best is None:
        return None
    # name the target that fails at the load of the question, not the one that fails above its own capacity
    option = _with_headroom(search, best)
    return replace(option, breaks_first=best.attainment.broken or option.breaks_first)


def _below(
    search: _Search, failed: dict[int, tuple[_Unit, int]], least: Usd
) -> list[tuple[Usd, _Unit, int, Way, Watts | None]]:
    """Return failed machines → largest affordable number below the answer.

    They cost less than the first answer.
    """
    below = []
    for unit, most in failed.values():
        for machines in reversed([number for number in _numbers(search, unit) if number <= most]):
            total = search.asked.bought(machines)
            watts = None if unit.candidate.watts is None else total * unit.candidate.watts
            ways = [way for way in _ways(search, unit.candidate, total) if way.usd is not None and way.usd < least]
            ways = [way for way in ways if within(search.asked, way, watts, search.money)]
            if ways:
                below.append((ways[0].usd or 0.0, unit, machines, ways[0], watts))
                break
    return below


def _per_token(answer: Sized) -> tuple[Paid | None, str]:
    """Return the API bill for the tokens of the first answer.

    Without an answer, the next cheaper machines count.
    """
    first = next(iter((*answer.options, *answer.unpriced)), answer.cheaper)
    try:
        offers = offers_of(answer.asked.spec.name, answer.money.prices, today=answer.money.today)
    except GlmplanError as error:
        return None, str(error)
    if first is None:
        return None, "tokens per month unknown: no machine within the limits serves the load"
    inputs, cached, outputs = month_tokens(first, answer)
    market = market_of(offers, inputs, outputs, cached)
    return Paid(market, inputs, outputs, market.offer.bill(inputs, outputs, cached), cached), ""
