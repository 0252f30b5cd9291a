"""The answer of `size`: machines that carry a load, paying for each token, and what both rest on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from glmplan.catalog.entries.prices import Quotation, deliveries_of
from glmplan.errors import GlmplanError
from glmplan.planner.ask import Deployed, predict, step_time
from glmplan.planner.hazards import hazard_rules
from glmplan.prediction.predict import Prediction
from glmplan.purchase.cost import (
    HOURS,
    break_even_month,
    growth_months,
    joules_per_token,
    token_prices,
    tokens_per_megawatt,
)
from glmplan.purchase.money import Money, Offer, Way, watts_of, ways_of
from glmplan.purchase.size_question import SizeQuestion
from glmplan.simulation.safe_load import Kept
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import Ratio, Tokens, Watts

__all__ = [
    "MOST_USERS",
    "Flow",
    "Option",
    "Paid",
    "Sized",
    "busy_of",
    "circuit_for",
    "figures_of",
    "flow_of",
    "month_tokens",
    "most_tokens",
    "share_of",
    "supply_of",
    "surely",
    "watts_at",
]


#: users of one machine that the engine is planned for at most when nobody says [-]
MOST_USERS = 4096


@dataclass(frozen=True)
class Option:
    """Machines that carry the load, or that are the next cheaper ones and do not.

    Attributes
    ----------
    planned : Deployed
        One of the machines, with its layout.
    machines : int
        How many of it, each with a share of the load, [-]
    way : Way
        Bought or rented, and the month of all of them [USD].
    watts : float or None
        Draw of all of them at the wall, [W]
    carried : float
        Load that all of them carry with the probability that was asked for: users [-] or rate [1/s]
    sure : Kept
        Probability at the load that was asked for, and what breaks first.
    breaks_first : str
        What fails at more than `carried`; empty where nothing failed of what was looked at.
    prediction : Prediction
        Of one machine at its share of the load.
    beyond : bool
        Whether more than `carried` may be carried: nothing failed up to the largest load that was looked at.
    """

    planned: Deployed
    machines: int
    way: Way
    watts: float | None
    carried: float
    sure: Kept
    breaks_first: str
    prediction: Prediction
    beyond: bool = False

    @property
    def accelerators(self) -> int:
        """All accelerators, [-]"""
        return self.machines * self.planned.asked.machine.count

    @property
    def name(self) -> str:
        """Machines in words."""
        return f"{self.machines} × {self.planned.asked.machine.text}"


@dataclass(frozen=True)
class Paid:
    """Paying for each token instead.

    Attributes
    ----------
    offer : Offer
        The cheapest offer.
    inputs, outputs : float
        Tokens of a month, [token]
    cached : float
        Prompt tokens that were seen before, part of `inputs`, [token]
    usd : float
        The bill of a month, [USD]
    """

    offer: Offer
    inputs: float
    outputs: float
    usd: float
    cached: float = 0.0


@dataclass(frozen=True)
class Sized:
    """The answer.

    Attributes
    ----------
    asked : SizeQuestion
        The question.
    money : Money
        Prices and terms.
    options : tuple of Option
        What keeps the promise, the cheapest first.
    unpriced : tuple of Option
        What keeps it and lacks a price, the fewest accelerators first; only machines that were named.
    cheaper : Option or None
        The next cheaper machines that do not keep it.
    per_token : Paid or None
        Paying for each token; None when nobody is known to sell the model.
    per_token_missing : str
        Why not.
    left_out : dict of str to int
        Why machines were left out → how many.
    looked_at : int
        Machines and formats that were planned, [-]
    no_price : tuple of str
        Machines of the catalogue that nobody is known to sell or rent.
    """

    asked: SizeQuestion
    money: Money
    options: tuple[Option, ...]
    unpriced: tuple[Option, ...] = ()
    cheaper: Option | None = None
    per_token: Paid | None = None
    per_token_missing: str = ""
    left_out: dict[str, int] | None = None
    looked_at: int = 0
    no_price: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """What a load brings in a second, on all machines.

    Attributes
    ----------
    inputs, cached, outputs : float
        Prompt tokens, those of them that were seen before, and answer tokens, [token/s]
    busy : float
        Share of the time in which a machine computes, of a day as many tokens cost in its busiest part, [-]
    """

    inputs: float
    cached: float
    outputs: float
    busy: float = 1.0


def flow_of(option: Option, found: Sized) -> Flow:
    """Tokens that the load brings: of users who never pause what the machines can do, of all others what they ask for.

    Returns: Tokens of a second. Pauses, turns of sessions, tokens seen before and lengths that vary are those of the
      simulated load; a rate is the rate itself.
    """
    asked, summary = found.asked, option.sure.summary
    traffic = asked.traffic
    # the machine with the largest share was predicted and simulated; the others have the rest
    largest = share_of(traffic, option.machines)
    share = asked.load / (float(largest.users or largest.rate or 0.0) * option.machines)
    outputs = option.machines * option.prediction.figures["output_rate"].value * share
    if _steady(traffic) or not summary.get("requests_per_s"):
        return Flow(outputs * traffic.input / traffic.output, 0.0, outputs)
    if traffic.users is None:
        arriving = asked.load * (traffic.turns if traffic.kind == "sessions" else 1)
    else:
        arriving = summary["requests_per_s"] * option.machines * share
    each = arriving / summary["requests_per_s"]
    outputs = summary["output_tokens_per_s"] * each
    inputs = summary["total_tokens_per_s"] * each - outputs
    # of a day its busiest part was simulated, and the tokens are those of its mean
    return Flow(inputs, inputs * summary["cached_share"], outputs, summary["utilisation"] / traffic.peak)


def share_of(traffic: Traffic, machines: int) -> Traffic:
    """The load of one of several machines: of users the largest share.

    Examples
    --------
    >>> share_of(Traffic(kind="closed", users=20), 3).users
    7
    """
    if traffic.users is not None:
        return traffic.at_load(math.ceil(traffic.users / machines))
    return traffic.at_load((traffic.rate or 0.0) / machines)


def _steady(traffic: Traffic) -> bool:
    """Whether as many requests as there are users are always at work, all alike, and nothing was seen before."""
    vary = traffic.jitter or traffic.input_cv or traffic.output_cv or traffic.lengths
    return traffic.kind == "closed" and traffic.plain and not vary


def busy_of(found: Sized) -> Ratio:
    """Mean load of a day over the load that was asked for: the rate of daily traffic is the mean itself."""
    return 1.0 if found.asked.traffic.kind == "daily" else found.money.terms.utilisation


def month_tokens(option: Option, found: Sized) -> tuple[float, float, float]:
    """Tokens of a month at the load that is promised, times the share of the day that it is there.

    Returns: Prompt tokens, those of them that were seen before, and answer tokens, [token].
    """
    flow, seconds = flow_of(option, found), busy_of(found) * HOURS * 3600
    return flow.inputs * seconds, flow.cached * seconds, flow.outputs * seconds


def most_tokens(option: Option, found: Sized) -> Tokens:
    """Tokens of a month, prompts and answers, at the largest load that is carried as surely as asked.

    Returns: What steady users make together then; of all other loads as many more as more of them are carried, which
      users who wait for each other do not quite reach.
    """
    inputs, _, outputs = month_tokens(option, found)
    traffic, more = found.asked.traffic, option.carried / found.asked.load
    if more not in (0.0, 1.0) and _steady(traffic):
        users = min(share_of(traffic.at_load(option.carried), option.machines).users or 1, MOST_USERS)
        rates = [one.figures["output_rate"].value for one in (predict(option.planned, users=users), option.prediction)]
        more = rates[0] / rates[1]
    return (inputs + outputs) * more


def watts_at(option: Option, money: Money) -> tuple[float | None, float | None]:
    """Draw of all machines of an option.

    Returns: At the wall, and of the accelerators alone, [W].
    """
    wall, cards = watts_of(option.planned.asked.machine, money, option.planned.asked.power_limit)
    return tuple(None if one is None else one * option.machines for one in (wall, cards))  # type: ignore[return-value]


# When a machine comes, and on whom it depends: as far as somebody publishes it.

#: sellers of the price lists that stand for many
_MANY = ("market survey", "owner at large volume", "hyperscaler", "specialty", "long-tail", "marketplaces")


def supply_of(option: Option, found: Sized) -> dict[str, Any]:
    """Delivery and single sources of an option.

    Returns: ``delivery_weeks_low`` and ``_high`` over all published times of the part, None where nobody publishes
      one and of what is rented; ``delivery``, the same in words with source; ``single_source``, on whom alone the
      purchase or its price depends, in words.

    Notes
    -----
    A time is that of the accelerators: what a host needs is a question to its seller. Not modelled: how it depends on
    the number that is ordered.
    """
    part = option.planned.asked.machine.accelerator
    bought = option.way.purchase is not None
    times = deliveries_of(part.name) if bought else ()
    words = "; ".join(f"{one.low:g} to {one.high:g} {one.unit} ({one.date}, {one.source})" for one in times)
    unknown = f"nobody whom we read publishes when {part.name} comes: ask for it with the quotation" if bought else ""
    return {
        "delivery_weeks_low": min((one.weeks[0] for one in times), default=None),
        "delivery_weeks_high": max((one.weeks[1] for one in times), default=None),
        "delivery": words or unknown,
        "vendor": part.vendor,
        "single_source": _single(option, found),
    }


def _single(option: Option, found: Sized) -> list[str]:
    part = option.planned.asked.machine.accelerator
    other = next((one for one in found.options if one.planned.asked.machine.accelerator.vendor != part.vendor), None)
    second = "nothing of another maker is among the answers"
    if other is not None:
        second = f"{other.name} of {other.planned.asked.machine.accelerator.vendor} keeps the promise too"
    lines = [f"{part.name} is made by {part.vendor} alone; {second}"]
    if option.way.purchase is not None:
        for line in option.way.purchase.lines:
            if line.quotation is not None and not line.quotation.given:
                sources = {one.source for one in line.quotation.entries}
                lines += [f"one source alone for the price of {line.name}"] if len(sources) == 1 else []
        return lines
    rows = [one for one in found.money.prices if one.kind == "rent" and one.part == part.name and not one.given]
    sellers = {one.seller for one in rows if one.seller}
    if len(sellers) == 1 and not sellers & set(_MANY):
        lines.append(f"{sellers.pop()} alone is known to rent {part.name}")
    return lines


# The figures of an option, each under one name, for every form of the answer.

#: tokens of a prompt whose head was seen before that are computed again [token]
_FRESH = 64.0
#: figures that need the rating of the part
_POWER = ("kw", "kw_at_its_limit", "circuit", "power_limit_w", "tokens_per_s_per_mw", "joules_per_output_token")
#: costs that need a price
_COSTS = (
    "usd_per_million_tokens",
    "usd_per_million_input_tokens",
    "usd_per_million_output_tokens",
    "usd_per_million_cached_tokens",
    "api_usd_month",
    "break_even_million_tokens",
    "break_even_month",
    "rent_usd_month",
    "break_even_month_against_rent",
)


def circuit_for(watts: Watts) -> str:
    """The smallest ordinary circuit that carries a draw for hours.

    Returns: Its rating in words, or how many of the largest are needed.

    Examples
    --------
    >>> circuit_for(2000.0), circuit_for(9000.0)
    ('16 A at 230 V', '2 × 32 A at 230 V')
    """
    rule = hazard_rules()["circuit"]
    share = float(rule.thresholds["continuous"])
    ratings = sorted((rating * share, name) for name, rating in rule.ratings.items())
    for most, name in ratings:
        if watts <= most:
            return name
    most, name = ratings[-1]
    return f"{math.ceil(watts / most)} × {name}"


def surely(probability: Ratio) -> str:
    """A probability, rounded down: what is not quite as sure as asked is not told as if it were.

    Examples
    --------
    >>> surely(0.9499), surely(0.95), surely(1.0)
    ('0.94', '0.95', '1.00')
    """
    return f"{math.floor(100 * probability + 1e-9) / 100:.2f}"


def figures_of(option: Option, found: Sized) -> dict[str, Any]:
    """Everything that is known of an option.

    Returns: Name → figure; None where it is not known. Money is USD, times are ms, power kW.
    """
    asked, planned = found.asked, option.planned
    figures = {
        "machine": planned.asked.machine.text,
        "machines": option.machines,
        "accelerators": option.accelerators,
        "weights": planned.asked.checkpoint.name,
        "engine": planned.asked.engine,
        "layout": planned.holding.terms.name,
        "cache": planned.holding.terms.kv,
        "paid": option.way.paid,
        "limited": planned.asked.power_limit is not None,
        **_money(option, found),
        "probability": option.sure.probability,
        "slo_met": option.sure.probability >= asked.probability,
        "slo": _promise(option, asked.slo),
        "limited_by": option.breaks_first,
        f"capacity_{_unit(asked.unit)}": option.carried,
        f"violated_at_{_unit(asked.unit)}": None if option.beyond else _next(option.carried, asked.unit),
        "capacity_is_lower_bound": option.beyond,
        "million_tokens_month_most": None if option.beyond else most_tokens(option, found) / 1e6,
        "headroom": option.carried / asked.load - 1.0,
        "months_until_outgrown": _finite(growth_months(asked.load, option.carried, asked.growth)),
        **_power(option, found),
        **_speed(option, found),
        **supply_of(option, found),
        "hazards": [],
        "limitations": [],
        "evidence_level": option.prediction.knowledge,
        "evidence": option.prediction.basis,
        "outside": option.prediction.out_of_domain,
    }
    return figures


def _promise(option: Option, slo: str) -> list[dict[str, Any]]:
    """What is promised beside what is expected of it, with the 90 % interval of the prediction around it."""
    rows = []
    for target in parse_slo(slo):
        figure = option.prediction.figures.get(target.metric)
        expected = option.sure.summary.get(target.name)
        ends: list[float | None] = [None, None]
        if figure is not None and expected is not None:
            ends = [expected * end / figure.value for end in (figure.low, figure.high)]
        rows.append({"target": str(target), "at_most_ms": 1000 * target.bound, "expected_ms": expected,
                     "expected_ms_low": ends[0], "expected_ms_high": ends[1]})  # fmt: skip
    return rows


def _unit(unit: str) -> str:
    return unit.replace("/", "_per_").replace(" ", "_")


def _next(carried: float, unit: str) -> float:
    """The load at which the promise breaks: one user more, or the rate itself, found to 1 %."""
    return carried + 1 if unit == "users" else carried


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
        "month_lines": {} if way.month is None else {name: float(_number(one)) for name, one in way.month.lines},
        "price_missing": way.missing,
        "price_stale": list(way.stale),
        "price_sources": _sources(option),
        "million_input_tokens_month": inputs / 1e6,
        "million_cached_tokens_month": cached / 1e6,
        "million_output_tokens_month": outputs / 1e6,
    }
    costs |= dict.fromkeys(_COSTS)
    if way.usd is None:
        return costs
    costs["usd_per_million_tokens"] = way.usd / (inputs + outputs) * 1e6
    seconds = _prompt_seconds(option)
    if seconds is not None:
        # the month over the time in which machines compute; a token that was seen before is a part of a fresh one
        flow = flow_of(option, found)
        again = seconds[1] / seconds[0]
        fresh = flow.inputs - flow.cached * (1.0 - again)
        share = fresh * seconds[0] / option.machines / flow.busy
        one, other = token_prices(way.usd, fresh, flow.outputs, share, busy_of(found))
        costs["usd_per_million_input_tokens"], costs["usd_per_million_output_tokens"] = float(one), float(other)
        costs["usd_per_million_cached_tokens"] = float(one) * again
    return costs | _against_the_api(option, found, (inputs, cached, outputs)) | _against_rent(option, found)


def _number(value: Any) -> Any:
    return getattr(value, "item", lambda: value)()


def _sources(option: Option) -> dict[str, Any]:
    """How many sources each line rests on: one source alone is a risk of the price, not of the machine."""
    lines = option.way.purchase.lines if option.way.purchase is not None else ()
    found = {line.name: _said(line.quotation) for line in lines}
    if option.way.hourly is not None:
        found[f"{option.way.hourly.entries[0].part}:rent"] = _said(option.way.hourly)
    return found


def _said(quotation: Quotation | None) -> dict[str, Any] | None:
    if quotation is None:
        return None
    return {"usd": quotation.value, "low": quotation.low, "high": quotation.high, "per": quotation.entries[0].per,
            "stale": quotation.stale, "sellers": sorted({one.seller for one in quotation.entries if one.seller}),
            "dates": list(quotation.dates), "sources": sorted({one.source for one in quotation.entries})}  # fmt: skip


def _prompt_seconds(option: Option) -> tuple[float, float] | None:
    """Seconds of one machine for a prompt token, and for one that was seen before.

    All servers of a machine compute prompts, each on all of its data-parallel ranks.
    """
    planned = option.planned
    inputs, ranks = float(planned.asked.input_tokens), float(planned.deployment.dp)
    budget = float(planned.deployment.defaults.budget)
    chunk = min(inputs, budget) * ranks
    fresh = min(_FRESH, inputs) * ranks
    try:
        seconds = step_time(
            planned,
            prefill_tokens=[chunk, fresh, fresh],
            prefill_context=[max(inputs / 2, 1.0), max(inputs, 1.0), fresh / ranks / 2],
        ).seconds
    except GlmplanError:
        return None
    servers = planned.holding.terms.replicas
    again = max(float(seconds[1] - seconds[2]), 0.0) / (inputs * ranks)
    return float(seconds[0]) / chunk / servers, again / servers


def _against_the_api(option: Option, found: Sized, tokens: tuple[float, float, float]) -> dict[str, Any]:
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
    """What the same accelerators cost to rent, and when a purchase has paid for itself against that."""
    way, planned = option.way, option.planned
    if way.purchase is None or way.month is None or way.purchase.value is None:
        return {}
    [rent] = ways_of(planned.asked.machine, found.money, machines=option.machines, kinds=("rent",),
                     rent_term=found.asked.rent_term)  # fmt: skip
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
    full, _ = watts_at(option, _at_its_limit(found))
    return {
        "kw": wall / 1000,
        "kw_at_its_limit": None if full is None else full / 1000,
        "circuit": None if full is None else circuit_for(full / option.machines),
        "power_limit_w": option.planned.asked.power_limit or machine.accelerator.tdp,
        "tokens_per_s_per_mw": float(tokens_per_megawatt(rate, wall, terms.pue)),
        "joules_per_output_token": float(joules_per_token(cards, rate)),
    }


def _at_its_limit(found: Sized) -> Any:
    from dataclasses import replace

    return replace(found.money, terms=found.money.terms.but(power_share=1.0))


def _speed(option: Option, found: Sized) -> dict[str, Any]:
    speed: dict[str, Any] = {}
    for name in ("ttft", "tpot"):
        figure = option.prediction.figures.get(name)
        for end in ("value", "low", "high"):
            title = f"{name}_mean_ms" + ("" if end == "value" else f"_{end}")
            speed[title] = None if figure is None else 1000 * getattr(figure, end)
        speed[f"{name}_p95_ms"] = option.sure.summary.get(f"{name}_p95_ms")
    speed["output_tokens_per_s"] = flow_of(option, found).outputs
    return speed
