"""Answer of `size`, and its metrics.

Capacity, cost, power, latency, lead time and API alternative.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from glmplan.catalog.entries.prices import Quotation, deliveries_of
from glmplan.errors import GlmplanError
from glmplan.io.machines.resolve import resolve_machine
from glmplan.planner.ask import Deployed, predict, step_time
from glmplan.planner.formats import bits_of
from glmplan.planner.hazards import hazard_rules
from glmplan.planner.launch import DEGREES
from glmplan.planner.moved_experts import moved_words
from glmplan.prediction.distribution import SHOWN
from glmplan.prediction.predict import Prediction
from glmplan.purchase.cost import (
    HOURS,
    break_even_month,
    growth_months,
    joules_per_token,
    token_prices,
    tokens_per_megawatt,
)
from glmplan.purchase.money import Market, Money, Offer, Way, cards_of, rack_units, watts_of, ways_of
from glmplan.purchase.size_question import WEEK, SizeQuestion
from glmplan.simulation.safe_load import Kept
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import Ratio, Seconds, Tokens, TokensPerSecond, Usd, Watts, counted_unit

__all__ = [
    "BEYOND",
    "MOST_USERS",
    "OFFERED",
    "Flow",
    "Measured",
    "Option",
    "Paid",
    "Sized",
    "busy_of",
    "circuit_for",
    "figures_of",
    "floored_probability",
    "flow_of",
    "month_tokens",
    "most_tokens",
    "servers_text",
    "share_of",
    "supply_of",
    "watts_at",
]


#: roles of the machines in an answer that meet the SLO within the limits
OFFERED = ("answer", "price missing")
#: largest number of users per machine for which a plan is made
MOST_USERS = 4096
#: largest load that is tested over that of the question [-]
BEYOND = 4


@dataclass(frozen=True)
class Option:
    """Machines with their cost and capacity.

    An answer, or the next cheaper machines.
    """

    #: one of the machines, with its layout
    planned: Deployed
    #: equal machines that meet the SLO at the load
    machines: int
    #: purchase or rent, and the month of all machines
    way: Way
    #: power of all machines at the wall; None if a rating is unknown
    watts: Watts | None
    #: largest load of all machines at the probability of the question: users [-] or rate [1/s]
    max_load: float
    #: SLO attainment at the load of the question
    attainment: Kept
    #: target that fails first above `max_load`; empty where no tested load failed
    breaks_first: str
    #: one machine at its share of the load
    prediction: Prediction
    #: True if the largest load that was tested still met the SLO, so that `max_load` is a lower bound
    open_ended: bool = False
    #: largest load of all machines by probability, the largest probability first
    at: tuple[tuple[Ratio, float], ...] = ()
    #: largest load that was tested; None where the largest load of each probability is known
    tested: float | None = None
    #: machines of all sites with the spare ones; 0: those that meet the SLO
    bought: int = 0

    @property
    def total(self) -> int:
        """Return the machines to buy or rent."""
        return self.bought or self.machines

    @property
    def accelerators(self) -> int:
        """Return the accelerators of all machines."""
        return self.total * sum(count for _, count in cards_of(self.planned.asked.machine))

    @property
    def name(self) -> str:
        """Return the machines as text."""
        return servers_text(self.total, self.planned.asked.machine.text)


@dataclass(frozen=True, slots=True)
class Measured:
    """A benchmark on one machine and the machines after it."""

    users: int  # concurrency of the benchmark, [-]
    command: str  # its `glmplan validate` command
    #: `machines`, `after`: machines that the answer needs now, and if the benchmark finds what is predicted, [-]
    machines: int
    after: int


@dataclass(frozen=True)
class Paid:
    """API offers for the tokens of a month, with the bill of the median."""

    market: Market
    #: tokens of a month; `cached` is the part of `inputs` that the prefix cache serves
    inputs: Tokens
    outputs: Tokens
    #: bill of a month
    usd: Usd
    cached: Tokens = 0.0

    @property
    def offer(self) -> Offer:
        """Return the median offer."""
        return self.market.offer


@dataclass(frozen=True)
class Sized:
    """The answer of `size`."""

    asked: SizeQuestion
    money: Money
    #: machines that meet the SLO, the cheapest first
    options: tuple[Option, ...]
    #: machines that meet the SLO and have no price, fewest accelerators first; only those named in the question
    unpriced: tuple[Option, ...] = ()
    #: the most probable of the machines that cost less than the first answer
    cheaper: Option | None = None
    #: the cheapest machines that meet the SLO without the limits of budget and power; only where none is within them
    over_limits: Option | None = None
    #: None, with the reason in `per_token_missing`, if no API price of the model is known
    per_token: Paid | None = None
    per_token_missing: str = ""
    #: reason → number of machines that were skipped for it
    left_out: dict[str, int] | None = None
    #: plans that were made, one for each machine, format and engine
    looked_at: int = 0
    #: machines of the catalogue without any price
    no_price: tuple[str, ...] = ()
    #: benchmark of one machine of the first answer, and the machines after it; None for one machine
    measured: Measured | None = None
    #: hosts of the catalogue for which a number of their accelerator was tried
    boards: tuple[str, ...] = ()
    #: True if modules of baseboards were tried in some numbers only
    modules: bool = False


@dataclass(frozen=True, slots=True)
class Flow:
    """Token rates of a load over all machines."""

    #: prompt tokens
    inputs: TokensPerSecond
    #: prompt tokens served by the prefix cache, part of `inputs`
    cached: TokensPerSecond
    outputs: TokensPerSecond
    #: share of the time in which a machine computes; daily traffic: at the mean load, although the peak is simulated
    busy: Ratio = 1.0


def servers_text(count: int, machine: str) -> str:
    """Return a number of machines as text.

    Examples
    --------
    >>> servers_text(1, "3xrtx-pro-6000-ws"), servers_text(2, "dgx-h100"), servers_text(1, "2xrtx-5090+1xrtx-4090")
    ('1 server with 3 × rtx-pro-6000-ws', '2 × dgx-h100', '1 × 2xrtx-5090+1xrtx-4090')
    >>> servers_text(2, "16xh200-sxm")
    '2 machines of 2 servers with 8 × h200-sxm'
    """
    number, times, part = machine.partition("x")
    if not times or not number.isdigit() or "+" in part:
        return f"{count} × {machine}"
    nodes = resolve_machine(machine).host.nodes
    if nodes == 1:
        return f"{counted_unit(count, 'servers')} with {number} × {part}"
    return f"{counted_unit(count, 'machines')} of {nodes} servers with {int(number) // nodes} × {part}"


def flow_of(option: Option, found: Sized) -> Flow:
    """Return the token rates of the load.

    Users without think time send as fast as the machines answer: their rate is predicted. All other loads take the
    rate of the simulation, with think times, session turns, prefix-cache hits and varying lengths.
    """
    asked, summary = found.asked, option.attainment.summary
    traffic = asked.traffic
    # the machine with the largest share was predicted and simulated; the others serve less
    largest = share_of(traffic, option.machines)
    share = asked.load / (float(largest.users or largest.rate or 0.0) * option.machines)
    outputs = option.machines * option.prediction.figures["output_rate"].value * share
    if _steady(traffic) or not summary.get("requests_per_s"):
        return Flow(outputs * traffic.input / traffic.output, 0.0, outputs)
    if traffic.users is None:
        arriving = asked.load * (traffic.turns if traffic.kind == "sessions" else 1)
    else:
        arriving = summary["requests_per_s"] * option.machines * share
    scale = arriving / summary["requests_per_s"]
    outputs = summary["output_tokens_per_s"] * scale
    inputs = summary["total_tokens_per_s"] * scale - outputs
    # daily traffic: the peak hour was simulated, the tokens are those of the mean
    return Flow(inputs, inputs * summary["cached_share"], outputs, summary["utilisation"] / traffic.peak)


def share_of(traffic: Traffic, machines: int) -> Traffic:
    """Return the load of one of several machines; users are rounded up.

    Examples
    --------
    >>> share_of(Traffic(kind="closed", users=20), 3).users
    7
    """
    if traffic.users is not None:
        return traffic.at_load(math.ceil(traffic.users / machines))
    return traffic.at_load((traffic.rate or 0.0) / machines)


def _steady(traffic: Traffic) -> bool:
    """Return True for a closed loop of uniform requests.

    Think time and prefix-cache hits are excluded.
    """
    return traffic.kind == "closed" and traffic.uniform


def busy_of(found: Sized) -> Ratio:
    """Return the mean load of a week over the load of the question.

    1 for daily traffic, whose rate is the mean; the share of the working hours, if they are given.
    """
    if found.asked.working_hours is not None:
        return found.asked.working_hours / WEEK
    return 1.0 if found.asked.traffic.kind == "daily" else found.money.terms.utilisation


def month_tokens(option: Option, found: Sized) -> tuple[Tokens, Tokens, Tokens]:
    """Return the prompt, cached prompt and output tokens of a month.

    The load of the question holds for the share `busy_of` of the time.
    """
    flow, seconds = flow_of(option, found), busy_of(found) * HOURS * 3600
    return flow.inputs * seconds, flow.cached * seconds, flow.outputs * seconds


def most_tokens(option: Option, found: Sized) -> Tokens:
    """Return the prompt and output tokens of a month at `Option.max_load`.

    The rate of users without think time is predicted at that load; all other rates are scaled in proportion, which
    overstates closed loops a little.
    """
    inputs, _, outputs = month_tokens(option, found)
    traffic, more = found.asked.traffic, option.max_load / found.asked.load
    if more not in (0.0, 1.0) and _steady(traffic):
        users = min(share_of(traffic.at_load(option.max_load), option.machines).users or 1, MOST_USERS)
        at_max = predict(option.planned, users=users)
        more = at_max.figures["output_rate"].value / option.prediction.figures["output_rate"].value
    return (inputs + outputs) * more


def watts_at(option: Option, money: Money) -> tuple[Watts | None, Watts | None]:
    """Return the power of all machines, and of their accelerators alone."""
    wall, cards = watts_of(option.planned.asked.machine, money, option.planned.asked.power_limit)
    return tuple(None if watts is None else watts * option.total for watts in (wall, cards))  # type: ignore[return-value]


#: sellers of the price lists that stand for many companies
_MANY = ("market survey", "owner at large volume", "hyperscaler", "specialty", "long-tail", "marketplaces")


def supply_of(option: Option, found: Sized) -> dict[str, Any]:
    """Return the lead time and the single sources of an option.

    Returns: ``delivery_weeks_low`` and ``_high`` over all published lead times of the accelerator, None if there is
      none or the machine is rented; ``delivery``, the same as text with its source; ``single_source``, texts.

    Notes
    -----
    Not modelled: lead times of hosts, and longer ones for larger orders.
    """
    accelerator = option.planned.asked.machine.accelerator
    bought = option.way.purchase is not None
    times = deliveries_of(accelerator.name) if bought else ()
    text = "; ".join(f"{time.low:g} to {time.high:g} {time.unit} ({time.date}, {time.source})" for time in times)
    unknown = f"no public data for {accelerator.name}; ask the seller" if bought else ""
    return {
        "delivery_weeks_low": min((time.weeks[0] for time in times), default=None),
        "delivery_weeks_high": max((time.weeks[1] for time in times), default=None),
        "delivery": text or unknown,
        "vendor": accelerator.vendor,
        "single_source": _single_sources(option, found),
    }


def _single_sources(option: Option, found: Sized) -> list[str]:
    accelerator = option.planned.asked.machine.accelerator
    others = (other for other in found.options if other.planned.asked.machine.accelerator.vendor != accelerator.vendor)
    other = next(others, None)
    lines = [f"all results use {accelerator.vendor}"]
    if other is not None:
        vendor = other.planned.asked.machine.accelerator.vendor
        lines = [f"{accelerator.vendor}; alternative: {other.name} ({vendor}) meets the SLO too"]
    if option.way.purchase is not None:
        for line in option.way.purchase.lines:
            if line.quotation is not None and not line.quotation.given and not line.assumed:
                sources = {entry.source for entry in line.quotation.entries}
                lines += [f"a single source for the price of {line.name}"] if len(sources) == 1 else []
        return lines
    if option.way.paid == "own":
        return lines
    prices = found.money.prices
    rents = [price for price in prices if price.kind == "rent" and price.part == accelerator.name and not price.given]
    sellers = {price.seller for price in rents if price.seller}
    if len(sellers) == 1 and not sellers & set(_MANY):
        lines.append(f"{sellers.pop()} is the only known provider that rents out {accelerator.name}")
    return lines


#: prompt tokens that are computed although the prefix cache has the prompt [token]
_FRESH = 64.0
#: metrics that need the power rating of the accelerator
_POWER = (
    *("kw", "kw_at_its_limit", "heat_btu_per_h", "circuit", "rack_units", "power_limit_w"),
    *("tokens_per_s_per_mw", "joules_per_output_token"),
)
#: heat of a watt [BTU/h]
_BTU = 3.412142
#: metrics that need a price
_COSTS = (
    "usd_per_million_output_tokens",
    "usd_per_million_tokens",
    "split_usd_per_million_input_tokens",
    "split_usd_per_million_output_tokens",
    "split_usd_per_million_cached_tokens",
    "api_usd_month",
    "break_even_million_tokens",
    "break_even_month",
    "rent_usd_month",
    "break_even_month_against_rent",
)


def circuit_for(watts: Watts) -> str:
    """Return the smallest standard circuit for a continuous load.

    Larger loads return the number of largest circuits.

    Examples
    --------
    >>> circuit_for(2000.0), circuit_for(9000.0)
    ('16 A at 230 V', '32 A three-phase at 400 V')
    """
    rule = hazard_rules()["circuit"]
    continuous = float(rule.thresholds["continuous"])
    ratings = sorted((rating * continuous, name) for name, rating in rule.ratings.items())
    for limit, name in ratings:
        if watts <= limit:
            return name
    limit, name = ratings[-1]
    return f"{math.ceil(watts / limit)} × {name}"


def floored_probability(probability: Ratio) -> str:
    """Return a probability rounded down: 0.949 is not 0.95, none is certain.

    Examples
    --------
    >>> floored_probability(0.9499), floored_probability(0.95), floored_probability(1.0)
    ('0.94', '0.95', '0.99')
    """
    return f"{min(math.floor(100 * probability + 1e-9), 99) / 100:.2f}"


def figures_of(option: Option, found: Sized) -> dict[str, Any]:
    """Return all metrics of an option; None where one is unknown.

    Money in USD, times in ms, power in kW.
    """
    asked, planned = found.asked, option.planned
    return {
        "machine": planned.asked.machine.text,
        "machines": option.total,
        "machines_serving": option.machines,
        "accelerators": option.accelerators,
        "weights": planned.asked.checkpoint.name,
        "bits_per_weight": bits_of(planned.asked.checkpoint),
        "engine": planned.asked.engine,
        "layout": planned.holding.terms.name,
        "degrees": {name: getattr(planned.holding.terms, name) for name in (*DEGREES, "replicas")},
        "host_weights": moved_words(planned.asked, planned.holding),
        "speculative_tokens": planned.holding.terms.mtp,
        "cache": planned.holding.terms.kv,
        "paid": option.way.paid,
        "limited": planned.asked.power_limit is not None,
        **_money(option, found),
        "probability": option.attainment.probability,
        "slo_met": option.attainment.probability >= asked.probability,
        "slo": _targets(option, asked.slo),
        **{f"{_unit(asked.unit)}_at_{100 * share:g}": load for share, load in option.at if share in SHOWN},
        "most_tested": option.tested,
        "limited_by": option.breaks_first,
        f"capacity_{_unit(asked.unit)}": option.max_load,
        f"violated_at_{_unit(asked.unit)}": None if option.open_ended else _next(option.max_load, asked.unit),
        "capacity_is_lower_bound": option.open_ended,
        "million_tokens_month_most": None if option.open_ended else most_tokens(option, found) / 1e6,
        "headroom": option.max_load / asked.load - 1.0,
        "months_until_outgrown": _finite(growth_months(asked.load, option.max_load, asked.growth)),
        **_power(option, found),
        **_speed(option, found),
        **supply_of(option, found),
        "hazards": [],
        "limitations": [],
        "evidence_level": option.prediction.knowledge,
        "evidence": option.prediction.basis,
        "outside": option.prediction.out_of_domain,
    }


def _targets(option: Option, slo: str) -> list[dict[str, Any]]:
    """Return each target with its expected value and 90 % prediction interval.

    The relative interval is that of the predicted mean.
    """
    rows = []
    for target in parse_slo(slo):
        mean = option.prediction.figures.get(target.metric)
        expected = option.attainment.summary.get(target.name)
        interval: list[float | None] = [None, None]
        if mean is not None and expected is not None:
            interval = [expected * bound / mean.value for bound in (mean.low, mean.high)]
        rows.append({"target": str(target), "at_most_ms": 1000 * target.bound, "expected_ms": expected,
                     "expected_ms_low": interval[0], "expected_ms_high": interval[1]})  # fmt: skip
    return rows


def _unit(unit: str) -> str:
    return unit.replace("/", "_per_").replace(" ", "_")


def _next(max_load: float, unit: str) -> float:
    """Return the smallest load that fails.

    One user more, or the rate itself, which is found to 1 %.
    """
    return max_load + 1 if unit == "users" else max_load


def _finite(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _money(option: Option, found: Sized) -> dict[str, Any]:
    way, terms = option.way, found.money.terms
    inputs, cached, outputs = month_tokens(option, found)
    costs: dict[str, Any] = {
        "usd": None if way.usd is None else way.usd * terms.horizon_months,
        "usd_purchase": way.purchase.value if way.purchase is not None else None,
        "usd_month": way.usd,
        "usd_month_low": way.low,
        "usd_month_high": way.high,
        "month_lines": {} if way.month is None else {name: float(_number(usd)) for name, usd in way.month.lines},
        "price_missing": way.missing,
        "price_assumed": list(way.assumed),
        "price_stale": list(way.stale),
        "price_sources": _sources(option),
        "million_input_tokens_month": inputs / 1e6,
        "million_cached_tokens_month": cached / 1e6,
        "million_output_tokens_month": outputs / 1e6,
    }
    costs |= dict.fromkeys(_COSTS)
    if way.usd is None:
        return costs
    # the whole month over answers, and over prompts and answers, as in sweep, compare and report
    costs["usd_per_million_output_tokens"] = way.usd / outputs * 1e6
    costs["usd_per_million_tokens"] = way.usd / (inputs + outputs) * 1e6
    seconds = _prompt_seconds(option)
    if seconds is not None:
        # the cost of a month is split by compute time; a cached token counts as a fraction of a computed one
        flow = flow_of(option, found)
        cached_ratio = seconds[1] / seconds[0]
        computed = flow.inputs - flow.cached * (1.0 - cached_ratio)
        share = computed * seconds[0] / option.machines / flow.busy
        input_usd, output_usd = token_prices(way.usd, computed, flow.outputs, share, busy_of(found))
        costs["split_usd_per_million_input_tokens"] = float(input_usd)
        costs["split_usd_per_million_output_tokens"] = float(output_usd)
        costs["split_usd_per_million_cached_tokens"] = float(input_usd) * cached_ratio
    return costs | _against_the_api(option, found, (inputs, cached, outputs)) | _against_rent(option, found)


def _number(value: Any) -> Any:
    return getattr(value, "item", lambda: value)()


def _sources(option: Option) -> dict[str, Any]:
    """Return price range, sellers and sources of each line.

    Lines are those of the purchase or rent.
    """
    lines = option.way.purchase.lines if option.way.purchase is not None else ()
    sources = {line.name: _quotation_record(line.quotation) for line in lines}
    if option.way.hourly is not None:
        sources[f"{option.way.hourly.entries[0].part}:rent"] = _quotation_record(option.way.hourly)
    return sources


def _quotation_record(quotation: Quotation | None) -> dict[str, Any] | None:
    if quotation is None:
        return None
    entries = quotation.entries
    return {"usd": quotation.value, "low": quotation.low, "high": quotation.high, "per": entries[0].per,
            "stale": quotation.stale, "sellers": sorted({entry.seller for entry in entries if entry.seller}),
            "dates": list(quotation.dates), "sources": sorted({entry.source for entry in entries})}  # fmt: skip


def _prompt_seconds(option: Option) -> tuple[Seconds, Seconds] | None:
    """Return a machine's seconds per computed and cached prompt token.

    All replicas of a machine compute prompts, each on all of its data-parallel ranks.
    """
    planned = option.planned
    inputs, ranks = float(planned.asked.input_tokens), float(planned.deployment.dp)
    budget, known = float(planned.deployment.defaults.budget), float(planned.asked.cached_tokens)
    chunk = min(inputs - known, budget) * ranks
    fresh = min(_FRESH, inputs) * ranks
    try:
        seconds = step_time(
            planned,
            prefill_tokens=[chunk, fresh, fresh],
            prefill_context=[max((inputs + known) / 2, 1.0), max(inputs, 1.0), fresh / ranks / 2],
        ).seconds
    except GlmplanError:
        return None
    servers = planned.holding.terms.replicas
    cached = max(float(seconds[1] - seconds[2]), 0.0) / (inputs * ranks)
    return float(seconds[0]) / chunk / servers, cached / servers


def _against_the_api(option: Option, found: Sized, tokens: tuple[Tokens, Tokens, Tokens]) -> dict[str, Any]:
    """Return the API bill of the same tokens, and the break-even against it."""
    paid, way = found.per_token, option.way
    if paid is None or way.usd is None:
        return {}
    inputs, cached, outputs = tokens
    bill = paid.offer.bill(inputs, outputs, cached)
    price = bill / (inputs + outputs) * 1e6
    costs: dict[str, Any] = {"api_usd_month": bill, "break_even_million_tokens": way.usd / price}
    if way.purchase is not None and way.month is not None and way.purchase.value is not None:
        costs["break_even_month"] = _finite(break_even_month(way.purchase.value, way.month.running, bill))
    return costs


def _against_rent(option: Option, found: Sized) -> dict[str, Any]:
    """Return the rent of the same machines, and the break-even against it."""
    way, planned = option.way, option.planned
    if way.purchase is None or way.month is None or way.purchase.value is None:
        return {}
    [rent] = ways_of(planned.asked.machine, found.money, machines=option.total, kinds=("rent",))
    if rent.usd is None:
        return {}
    month = _finite(break_even_month(way.purchase.value, way.month.running, rent.usd))
    return {"rent_usd_month": rent.usd, "break_even_month_against_rent": month}


def _power(option: Option, found: Sized) -> dict[str, Any]:
    wall, cards = watts_at(option, found.money)
    rate, terms = flow_of(option, found).outputs, found.money.terms
    if wall is None or cards is None:
        return dict.fromkeys(_POWER)
    machine = option.planned.asked.machine
    full, _ = watts_at(option, _at_full_power(found))
    units = rack_units(machine)
    return {
        "kw": wall / 1000,
        "kw_at_its_limit": None if full is None else full / 1000,
        "heat_btu_per_h": None if full is None else full * _BTU,
        "circuit": None if full is None else circuit_for(full / option.total),
        "rack_units": None if units is None else units * option.total,
        "power_limit_w": option.planned.asked.power_limit or machine.accelerator.tdp,
        "tokens_per_s_per_mw": float(tokens_per_megawatt(rate, wall, terms.pue)),
        "joules_per_output_token": float(joules_per_token(cards, rate)),
    }


def _at_full_power(found: Sized) -> Money:
    return replace(found.money, terms=found.money.terms.but(power_share=1.0))


def _speed(option: Option, found: Sized) -> dict[str, Any]:
    speed: dict[str, Any] = {}
    for name in ("ttft", "tpot"):
        mean = option.prediction.figures.get(name)
        for end in ("value", "low", "high"):
            title = f"{name}_mean_ms" + ("" if end == "value" else f"_{end}")
            speed[title] = None if mean is None else 1000 * getattr(mean, end)
        speed[f"{name}_p95_ms"] = option.attainment.summary.get(f"{name}_p95_ms")
    speed["output_tokens_per_s"] = flow_of(option, found).outputs
    return speed
