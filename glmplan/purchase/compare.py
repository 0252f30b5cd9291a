"""Compare plans: metrics side by side, and the cause of each difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from glmplan.errors import SpecError
from glmplan.planner.ask import Deployed, deployment, predict, step_time
from glmplan.planner.ranking import prompts_timed, untimed_words
from glmplan.prediction.effects import KNOWN_AS
from glmplan.prediction.predict import Figure, Prediction
from glmplan.purchase.cost import per_million
from glmplan.purchase.money import Money, watts_of, ways_of
from glmplan.units import QUANTILE_90, Ratio, Seconds, Usd

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator

__all__ = ["Compared", "Side", "beside", "causes_of", "compared", "nowhere_slower", "side_of"]

#: parts of the step-time breakdown → label
_PARTS = {
    "launch": "kernel launches and host overhead",
    "weights": "weight reads",
    "compute": "compute",
    "cache": "KV cache reads",
    "links": "communication",
    "host": "experts on the CPU",
}
#: metric → label
_METRICS = {"ttft": "TTFT", "tpot": "TPOT", "output_rate": "total throughput"}
#: ratio of two values from which the difference is reported [-]
_NOTED = 1.05
#: probability from which a difference counts as significant [-]
_SIGNIFICANT = 0.9


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
            "kw": self.kw,
            "evidence_level": self.prediction.knowledge,
        }


@dataclass(frozen=True)
class Compared:
    """Plans with the causes of their differences."""

    #: the first plan is the reference of all others
    sides: tuple[Side, ...]
    #: concurrency
    users: int
    #: texts for each plan but the first
    causes: tuple[tuple[str, ...], ...]
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


def causes_of(first: Side, other: Side) -> tuple[str, ...]:
    """Return the differences of two plans as text.

    Decode step, KV pool, TTFT, price and evidence.
    """
    return (*_step_causes(first, other), *_queue(first, other), *_price(first, other), *_evidence(first, other))


def _step_causes(first: Side, other: Side) -> list[str]:
    before, after = sum(first.parts.values()), sum(other.parts.values())
    difference = after - before
    if abs(difference) < 0.005 * before:
        return [f"decode step: {1000 * before:.1f} ms for both"]
    lines = [f"decode step: {1000 * after:.1f} ms instead of {1000 * before:.1f} ms"]
    names = dict.fromkeys([*first.parts, *other.parts])
    changes = {name: other.parts.get(name, 0.0) - first.parts.get(name, 0.0) for name in names}
    for name, change in sorted(changes.items(), key=lambda item: -abs(item[1])):
        if abs(change) >= 0.1 * abs(difference):
            was, becomes = (1000 * side.parts.get(name, 0.0) for side in (first, other))
            lines.append(f"  {_PARTS.get(name, name)}: {becomes:.1f} ms instead of {was:.1f} ms")
    return lines


def _queue(first: Side, other: Side) -> list[str]:
    lines = []
    held = [side.planned.holding.held for side in (first, other)]
    if min(held) < max(held) and abs(math.log(held[1] / held[0])) > 0.2:
        lines.append(f"KV pool: {held[1]:,.0f} instead of {held[0]:,.0f} requests of this length")
    waits = [side.prediction.figures.get("ttft") for side in (first, other)]
    if (
        waits[0] is not None
        and waits[1] is not None
        and abs(math.log(waits[1].value / waits[0].value)) > math.log(_NOTED)
    ):
        lines.append(f"mean TTFT: {1000 * waits[1].value:,.0f} ms instead of {1000 * waits[0].value:,.0f} ms")
    return lines


def _price(first: Side, other: Side) -> list[str]:
    if first.usd_month is None or other.usd_month is None:
        missing = [side for side in (first, other) if side.usd_month is None]
        names = " and of ".join(side.name for side in missing)
        why = "; ".join(dict.fromkeys(side.price_missing for side in missing))
        return [f"no price of {names}, costs are not compared: {why}"]
    ratio = other.usd_month / first.usd_month
    if abs(ratio - 1) < 0.01:
        return []
    months = [f"{side.usd_month:,.0f} USD/month ({side.paid})" for side in (other, first)]
    return [f"cost: {months[0]} instead of {months[1]}"]


def _evidence(first: Side, other: Side) -> list[str]:
    """Return differences of evidence, and a note if not significant.

    The note is about the predicted difference.
    """
    one, two = first.prediction, other.prediction
    lines = [f"{untimed_words(side.planned.asked)}, and rates are left out"
             for side in (first, other) if not prompts_timed(side.planned.asked)]  # fmt: skip
    lines += _against_the_sheet(first, other)
    if one.knowledge != two.knowledge:
        lines.append(f"evidence of {other.name}: {KNOWN_AS[two.knowledge]}; of {first.name}: {KNOWN_AS[one.knowledge]}")
    name = "tpot" if "tpot" in one.figures and "tpot" in two.figures else "ttft"
    if name not in one.figures or name not in two.figures:
        return lines
    apart, probability = _difference(one.figures[name], two.figures[name])
    if probability < _SIGNIFICANT:
        faster = other.name if apart < 0 else first.name
        more = f": {faster} is faster with {probability:.0%} probability" if apart else ""
        lines.append(f"no significant difference in {name.upper()}{more}")
    return lines


def _against_the_sheet(first: Side, other: Side) -> list[str]:
    """Return metrics in which the better data sheet is predicted slower.

    The evidence is added.
    """
    layouts = {(side.planned.holding.terms.name, side.planned.asked.engine) for side in (first, other)}
    lines = []
    for weak, strong in ((first, other), (other, first)):
        one, two = (side.planned.asked.machine.accelerator for side in (weak, strong))
        if len(layouts) > 1 or one.name == two.name or not nowhere_slower(two, one):
            continue
        slower = {name: _slower(weak, strong, name) for name in _METRICS}
        names = [f"{_METRICS[name]} ({how})" for name, how in slower.items() if how]
        if names:
            known = [weak.prediction.basis, strong.prediction.basis]
            basis = f"both: {known[0]}" if known[0] == known[1] else f"{one.name}: {known[0]}; {two.name}: {known[1]}"
            lines.append(
                f"{two.name} is predicted slower than {one.name} in {', '.join(names)} although its data sheet is not "
                f"slower anywhere; the cause is the evidence ({basis})"
            )
    return lines


def _slower(weak: Side, strong: Side, name: str) -> str:
    """Return how the better data sheet is slower, else empty.

    The difference is 5 % or more, or beyond an interval.
    """
    was, becomes = (side.prediction.figures.get(name) for side in (weak, strong))
    if was is None or becomes is None:
        return ""
    if name == "output_rate":
        slower, beyond = becomes.value < was.value / _NOTED, becomes.value < was.low
    else:
        slower, beyond = becomes.value > was.value * _NOTED, becomes.value > was.high
    return ("beyond its interval" if beyond else "within its interval") if slower or beyond else ""


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


def _difference(one: Figure, other: Figure) -> tuple[float, Ratio]:
    """Return the log ratio of two metrics, and the probability of its sign."""
    apart = math.log(other.value / one.value)
    widths = [math.log(figure.high / figure.low) / (2 * QUANTILE_90) for figure in (one, other)]
    spread = math.hypot(*widths)
    return apart, NormalDist().cdf(abs(apart) / spread) if spread else 1.0


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
    return Compared(sides, users, tuple(causes_of(sides[0], other) for other in sides[1:]), money.rent_term)
