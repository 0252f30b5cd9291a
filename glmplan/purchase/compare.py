"""Compare plans: predictions and costs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glmplan.errors import SpecError
from glmplan.planner.ask import Deployed, deployment, predict, step_time
from glmplan.planner.ranking import prompts_timed
from glmplan.prediction.predict import Prediction
from glmplan.purchase.cost import per_million
from glmplan.purchase.money import Money, watts_of, ways_of
from glmplan.units import Ratio, Seconds, Usd

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator

__all__ = ["Compared", "Side", "beside", "compared", "nowhere_slower", "side_of"]


@dataclass(frozen=True)
class Side:
    """One of the compared plans."""

    planned: Deployed
    #: at the concurrency of the comparison
    prediction: Prediction
    #: breakdown of one decode step at that concurrency
    parts: dict[str, Seconds]
    #: the cheaper of buying and renting
    usd_month: Usd | None
    #: `Way.paid` of it; empty without a price
    paid: str
    #: power at the wall [kW]
    kw: float | None
    #: reason why the cost is unknown
    price_missing: str = ""

    @property
    def name(self) -> str:
        """Return model, weights and machine as text."""
        asked = self.planned.asked
        return f"{asked.model.name} {asked.checkpoint.name} on {asked.machine.text}"

    def figures(self, utilisation: Ratio) -> dict[str, Any]:
        """Return the compared metrics; None where one is unknown.

        `utilisation`: Mean load of a day over the load of the comparison, for the cost of a token.
        """
        predicted = self.prediction.figures
        # a rate without the time of prompts is a bound that cannot be compared
        timed = prompts_timed(self.planned.asked)
        rate = predicted["output_rate"].value if timed else None

        def of(name: str, factor: float) -> float | None:
            return predicted[name].value * factor if name in predicted else None

        unpriced = self.usd_month is None or rate is None
        output = self.planned.asked.output_tokens
        share = output / (self.planned.asked.input_tokens + output)
        usd = None if unpriced else float(per_million(self.usd_month, rate, utilisation))
        return {
            "layout": self.planned.holding.terms.name,
            "engine": self.planned.asked.engine,
            "cache": self.planned.holding.terms.kv,
            "ttft_mean_ms": of("ttft", 1000.0),
            "tpot_mean_ms": of("tpot", 1000.0),
            "output_tokens_per_s": rate,
            "requests_held": self.planned.holding.held,
            "usd_month": self.usd_month,
            "paid": self.paid,
            "usd_per_million_output_tokens": usd,
            "usd_per_million_tokens": None if usd is None else usd * share,
            "kw": self.kw,
            "evidence_level": self.prediction.knowledge,
        }


@dataclass(frozen=True)
class Compared:
    """Compared plans."""

    #: the first plan is the reference of all others
    sides: tuple[Side, ...]
    #: concurrency
    users: int
    #: term of all rents; None if no machine is rented out
    rent_term: str | None = None


def side_of(planned: Deployed, users: int, money: Money) -> Side:
    """Predict a plan and price its machine."""
    asked = planned.asked
    prediction = predict(planned, users=users)
    running = min(float(users), max(planned.holding.held, 1.0))
    context = asked.input_tokens + asked.output_tokens / 2
    step = step_time(planned, decode_requests=[running], decode_context=[context])
    parts = {name: float(share[0] * step.seconds[0]) for name, share in step.shares.items()}
    ways = ways_of(asked.machine, money, limit=asked.power_limit)
    watts, _ = watts_of(asked.machine, money, asked.power_limit)
    kw = None if watts is None else watts / 1000
    if ways[0].usd is None:
        return Side(planned, prediction, parts, None, "", kw, "; ".join(way.missing for way in ways))
    return Side(planned, prediction, parts, ways[0].usd, ways[0].paid, kw)


def nowhere_slower(part: Accelerator, than: Accelerator) -> bool:
    """Return True if no data-sheet rate of a part is below another's.

    Memory bandwidth, matrix rates and scale-up link. A value that is not published for the part counts as smaller.

    Examples
    --------
    >>> from glmplan.catalog.entries.accelerators import load_accelerator
    >>> h100, h200 = load_accelerator("h100-sxm"), load_accelerator("h200-sxm")
    >>> nowhere_slower(h200, h100), nowhere_slower(h100, h200)
    (True, False)
    """
    pairs = [(part.memory_bandwidth, than.memory_bandwidth), (part.scaleup_bandwidth, than.scaleup_bandwidth)]
    pairs += [(part.peak.get(name), rate) for name, rate in than.peak.items()]
    return all(before is None or (now is not None and now >= before) for now, before in pairs)


def compared(questions: Sequence[tuple[str, str]], money: Money, *, users: int = 1, **said: Any) -> Compared:
    """Plan and compare several pairs of model and machine.

    `**said`: Options of all plans, as in `glmplan.fit`.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.purchase.money import money_of
    >>> money = money_of(today=date(2026, 11, 22))
    >>> found = compared([("llama-3.1-8b", "1xh100-sxm"), ("llama-3.1-8b", "1xh200-sxm")], money, users=8)
    >>> found.sides[1].prediction.figures["tpot"].value < found.sides[0].prediction.figures["tpot"].value
    True
    """
    if len(questions) < 2:
        raise SpecError("needs at least two plans to compare", field="--on")
    return beside([deployment(model, on, users=(users,), **said) for model, on in questions], money, users=users)


def beside(planned: Sequence[Deployed], money: Money, *, users: int) -> Compared:
    """Compare plans with all rents at one term.

    The default is a term that is offered for every machine.
    """
    money = money.at_one_term(plan.asked.machine for plan in planned)
    sides = tuple(side_of(plan, users, money) for plan in planned)
    return Compared(sides, users, money.rent_term)
