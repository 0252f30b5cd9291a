"""The figures of an option, each under one name, for every form of the answer."""

from __future__ import annotations

import math
from typing import Any

from glmplan.errors import GlmplanError
from glmplan.facts.catalogue.prices import Quotation
from glmplan.plan.ask import step_time
from glmplan.plan.hazards import hazard_rules
from glmplan.serving.traffic.promises import parse_slo
from glmplan.sizing.cost import (
    break_even_month,
    growth_months,
    joules_per_token,
    token_prices,
    tokens_per_megawatt,
)
from glmplan.sizing.money import ways_of
from glmplan.sizing.size_answer import Option, Sized, busy_of, flow_of, month_tokens, most_tokens, watts_at
from glmplan.sizing.supply import supply_of

__all__ = ["circuit_for", "figures_of", "surely"]

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


def circuit_for(watts: float) -> str:
    """The smallest ordinary circuit that carries a draw for hours.

    Parameters
    ----------
    watts : float
        Draw at the wall, [W]

    Returns
    -------
    str
        Its rating in words, or how many of the largest are needed.

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


def surely(probability: float) -> str:
    """A probability, rounded down: what is not quite as sure as asked is not told as if it were.

    Parameters
    ----------
    probability : float
        [-]

    Returns
    -------
    str
        With two digits.

    Examples
    --------
    >>> surely(0.9499), surely(0.95), surely(1.0)
    ('0.94', '0.95', '1.00')
    """
    return f"{math.floor(100 * probability + 1e-9) / 100:.2f}"


def figures_of(option: Option, found: Sized) -> dict[str, Any]:
    """Everything that is known of an option.

    Parameters
    ----------
    option : Option
        The option.
    found : Sized
        The answer.

    Returns
    -------
    dict
        Name → figure; None where it is not known. Money is USD, times are ms, power kW.
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
        "keeps": option.sure.probability >= asked.probability,
        "promise": _promise(option, asked.slo),
        "breaks_first": option.breaks_first,
        f"carries_{_unit(asked.unit)}": option.carried,
        f"breaks_at_{_unit(asked.unit)}": None if option.beyond else _next(option.carried, asked.unit),
        "carries_at_least": option.beyond,
        "million_tokens_month_most": None if option.beyond else most_tokens(option, found) / 1e6,
        "headroom": option.carried / asked.load - 1.0,
        "months_until_outgrown": _finite(growth_months(asked.load, option.carried, asked.growth)),
        **_power(option, found),
        **_speed(option, found),
        **supply_of(option, found),
        "hazards": [],
        "walls": [],
        "knowledge": option.prediction.knowledge,
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
    """Seconds of one machine for a prompt token, and for one that was seen before."""
    planned = option.planned
    inputs = float(planned.asked.input_tokens)
    budget = float(planned.deployment.defaults.budget)
    chunk = min(inputs, budget)
    fresh = min(_FRESH, inputs)
    try:
        seconds = step_time(
            planned,
            prefill_tokens=[chunk, fresh, fresh],
            prefill_context=[max(inputs / 2, 1.0), max(inputs, 1.0), fresh / 2],
        ).seconds
    except GlmplanError:
        return None
    return float(seconds[0]) / chunk, max(float(seconds[1] - seconds[2]), 0.0) / inputs


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
