"""What a plan costs, bought and rented, beside paying for each token: formulas of `glmplan.sizing` on one plan."""

from __future__ import annotations

import math
from typing import Any

from glmplan.errors import GlmplanError
from glmplan.plan.ask import Deployed, predict
from glmplan.sizing.cost import HOURS, break_even_month, break_even_tokens, per_million
from glmplan.sizing.money import Money, Way, watts_of, ways_of
from glmplan.sizing.offers import Offer, cheapest_offer, offers_of

__all__ = ["cost_record"]


def cost_record(planned: Deployed, users: int, money: Money) -> dict[str, Any]:
    """Price a plan.

    Parameters
    ----------
    planned : Deployed
        The plan.
    users : int
        Users at once, [-]
    money : Money
        Prices and terms.

    Returns
    -------
    dict
        Each way to come by the machine with its month [USD] and its price of a million tokens [USD]; the cheapest API,
        and from when the machine is cheaper. None where a price is not known.

    Notes
    -----
    Tokens of a month are those at these users, times the share of the day that the load is there: the same as
    `glmplan size` counts. Price of an output token as in `glmplan compare`.
    """
    asked, terms = planned.asked, money.terms
    rate = predict(planned, users=users).figures["output_rate"].value
    outputs = rate * terms.utilisation * HOURS * 3600
    inputs = outputs * asked.input_tokens / asked.output_tokens
    offer, missing = _offer(planned, money, inputs, outputs)
    watts, _ = watts_of(asked.machine, money, asked.power_limit)
    return {
        "machine": asked.machine.text,
        "users": users,
        "output_tokens_per_s": rate,
        "currency": terms.currency,
        "utilisation": terms.utilisation,
        "horizon_months": terms.horizon_months,
        "million_input_tokens_month": inputs / 1e6,
        "million_output_tokens_month": outputs / 1e6,
        "kw": None if watts is None else watts / 1000,
        "ways": [
            _way(one, money, offer, inputs, outputs) for one in ways_of(asked.machine, money, limit=asked.power_limit)
        ],
        "api": None if offer is None else _api(offer, inputs, outputs),
        "api_missing": missing,
        "notes": list(terms.notes),
    }


def _offer(planned: Deployed, money: Money, inputs: float, outputs: float) -> tuple[Offer | None, str]:
    try:
        offers = offers_of(planned.asked.model.name, money.prices, today=money.today)
        return cheapest_offer(offers, inputs, outputs), ""
    except GlmplanError as error:
        return None, str(error)


def _api(offer: Offer, inputs: float, outputs: float) -> dict[str, Any]:
    return {
        "seller": offer.seller,
        "usd_per_million_input_tokens": offer.input,
        "usd_per_million_output_tokens": offer.output,
        "usd_month": offer.bill(inputs, outputs),
        "date": offer.date,
        "stale": offer.stale,
        "source": offer.source,
    }


def _way(way: Way, money: Money, offer: Offer | None, inputs: float, outputs: float) -> dict[str, Any]:
    found: dict[str, Any] = {
        "paid": way.paid,
        "usd_month": way.usd,
        "usd_month_low": way.low,
        "usd_month_high": way.high,
        "usd_purchase": way.purchase.value if way.purchase is not None else None,
        "month_lines": {} if way.month is None else {name: float(one) for name, one in way.month.lines},  # type: ignore[arg-type]
        "price_missing": way.missing,
        "price_stale": list(way.stale),
        "usd_per_million_output_tokens": None,
        "break_even_million_tokens": None,
        "break_even_month": None,
    }
    if way.usd is None:
        return found
    rate = outputs / (HOURS * 3600)
    found["usd_per_million_output_tokens"] = float(per_million(way.usd, rate))
    if offer is None:
        return found
    found["break_even_million_tokens"] = float(break_even_tokens(way.usd, offer.mixed(inputs, outputs))) / 1e6
    if way.purchase is not None and way.month is not None and way.purchase.value is not None:
        months = float(break_even_month(way.purchase.value, way.month.running, offer.bill(inputs, outputs)))
        found["break_even_month"] = months if math.isfinite(months) else None
    return found
