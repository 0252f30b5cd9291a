"""Plans side by side, difference by difference, and what causes it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glmplan.errors import SpecError
from glmplan.planner.ask import Deployed, deployment, predict, step_time
from glmplan.planner.ranking import prompts_timed, untimed_words
from glmplan.prediction.effects import KNOWN_AS
from glmplan.prediction.predict import Figure, Prediction
from glmplan.purchase.cost import per_million
from glmplan.purchase.money import Money, watts_of, ways_of
from glmplan.units import Ratio

if TYPE_CHECKING:
    from glmplan.catalog.schema.accelerator import Accelerator

__all__ = ["Compared", "Side", "beside", "causes_of", "compared", "nowhere_slower", "side_of"]

#: parts of a step in words
_PARTS = {
    "launch": "launches and host overhead",
    "weights": "bytes of weights",
    "compute": "FLOP",
    "cache": "bytes of the cache",
    "links": "links between cards",
    "host": "experts on the processors",
}
#: figures in words
_FIGURES = {"ttft": "TTFT", "tpot": "TPOT", "output_rate": "tokens of all"}
#: by how much a figure differs before it is said [-]
_NOTED = 1.05


@dataclass(frozen=True)
class Side:
    """One of the plans.

    Attributes
    ----------
    planned : Deployed
        The plan.
    prediction : Prediction
        At the number of users that is compared.
    parts : dict of str to float
        Seconds of each part of a decoding step of these users, [s]
    usd_month : float or None
        The cheaper of buying and renting, [USD]
    paid : str
        Which of them; empty where neither is known.
    kw : float or None
        Draw at the wall, [kW]
    price_missing : str
        Why the cost is not known; empty where it is.
    """

    planned: Deployed
    prediction: Prediction
    parts: dict[str, float]
    usd_month: float | None
    paid: str
    kw: float | None
    price_missing: str = ""

    @property
    def name(self) -> str:
        """The plan in words."""
        asked = self.planned.asked
        return f"{asked.model.name} {asked.checkpoint.name} on {asked.machine.text}"

    def figures(self, utilisation: Ratio) -> dict[str, Any]:
        """What is compared.

        - `utilisation`: Mean load over the load, for the cost of a token.
        - Returns: Name → figure; None where it is not known.
        """
        found = self.prediction.figures
        # without prompts between the answers a rate is a bound, which no other machine may be compared with
        timed = prompts_timed(self.planned.asked)
        rate = found["output_rate"].value if timed else None

        def of(name: str, factor: float) -> float | None:
            return found[name].value * factor if name in found else None

        unpriced = self.usd_month is None or rate is None
        usd = None if unpriced else float(per_million(self.usd_month, rate, utilisation))  # type: ignore[arg-type]
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
    """Plans side by side.

    Attributes
    ----------
    sides : tuple of Side
        The plans; the first is what the others are compared with.
    users : int
        Users at once, [-]
    causes : tuple of tuple of str
        For each of the others what makes it differ, in words.
    rent_term : str or None
        Term of all rents; None where no machine is rented out.
    """

    sides: tuple[Side, ...]
    users: int
    causes: tuple[tuple[str, ...], ...]
    rent_term: str | None = None


def side_of(planned: Deployed, users: int, money: Money) -> Side:
    """Predict a plan and price its machine."""
    asked = planned.asked
    found = predict(planned, users=users)
    running = min(float(users), max(planned.holding.held, 1.0))
    context = asked.input_tokens + asked.output_tokens / 2
    step = step_time(planned, decode_requests=[running], decode_context=[context])
    parts = {name: float(share[0] * step.seconds[0]) for name, share in step.shares.items()}
    ways = ways_of(asked.machine, money, limit=asked.power_limit)
    watts, _ = watts_of(asked.machine, money, asked.power_limit)
    kw = None if watts is None else watts / 1000
    if ways[0].usd is None:
        return Side(planned, found, parts, None, "", kw, "; ".join(way.missing for way in ways))
    return Side(planned, found, parts, ways[0].usd, ways[0].paid, kw)


def causes_of(first: Side, other: Side) -> tuple[str, ...]:
    """What makes one plan differ from another, the largest cause first.

    Returns: Sentences: the parts of a step, the queue, the price, and where the evidence differs.
    """
    return (*_step_causes(first, other), *_queue(first, other), *_price(first, other), *_evidence(first, other))


def _step_causes(first: Side, other: Side) -> list[str]:
    before, after = sum(first.parts.values()), sum(other.parts.values())
    whole = after - before
    if abs(whole) < 0.005 * before:
        return [f"a decoding step takes the same {1000 * before:.1f} ms"]
    lines = [f"a decoding step takes {1000 * after:.1f} instead of {1000 * before:.1f} ms"]
    names = dict.fromkeys([*first.parts, *other.parts])
    moves = {name: other.parts.get(name, 0.0) - first.parts.get(name, 0.0) for name in names}
    for name, move in sorted(moves.items(), key=lambda one: -abs(one[1])):
        if abs(move) >= 0.1 * abs(whole):
            one, two = 1000 * first.parts.get(name, 0.0), 1000 * other.parts.get(name, 0.0)
            lines.append(f"  {_PARTS.get(name, name)}: {1000 * move:+.1f} ms ({one:.1f} → {two:.1f})")
    return lines


def _queue(first: Side, other: Side) -> list[str]:
    lines = []
    held = [side.planned.holding.held for side in (first, other)]
    if min(held) < max(held) and abs(math.log(held[1] / held[0])) > 0.2:
        lines.append(f"the cache pool holds {held[1]:,.0f} instead of {held[0]:,.0f} requests of this length")
    waits = [side.prediction.figures.get("ttft") for side in (first, other)]
    if (
        waits[0] is not None
        and waits[1] is not None
        and abs(math.log(waits[1].value / waits[0].value)) > math.log(_NOTED)
    ):
        lines.append(
            f"the first token comes after {1000 * waits[1].value:,.0f} instead of {1000 * waits[0].value:,.0f} ms"
        )
    return lines


def _price(first: Side, other: Side) -> list[str]:
    if first.usd_month is None or other.usd_month is None:
        missing = [side for side in (first, other) if side.usd_month is None]
        names = " and of ".join(side.name for side in missing)
        why = "; ".join(dict.fromkeys(side.price_missing for side in missing))
        return [f"the price of {names} is not known, and costs are not compared: {why}"]
    ratio = other.usd_month / first.usd_month
    if abs(ratio - 1) < 0.01:
        return []
    months = [f"{one.usd_month:,.0f} USD ({one.paid})" for one in (other, first)]
    return [f"a month costs {months[0]} instead of {months[1]}"]


def _evidence(first: Side, other: Side) -> list[str]:
    """Whether the evidence differs, and whether the figures differ by more than it allows."""
    one, two = first.prediction, other.prediction
    lines = [f"{untimed_words(side.planned.asked)}, and rates are left out"
             for side in (first, other) if not prompts_timed(side.planned.asked)]  # fmt: skip
    lines += _against_the_sheet(first, other)
    if one.knowledge != two.knowledge:
        lines.append(f"evidence differs: {KNOWN_AS[one.knowledge]}; against: {KNOWN_AS[two.knowledge]}")
    name = "tpot" if "tpot" in one.figures and "tpot" in two.figures else "ttft"
    if name not in one.figures or name not in two.figures:
        return lines
    apart, sure = _apart(one.figures[name], two.figures[name])
    if sure < 0.9:
        lines.append(
            f"not settled: {other.name if apart < 0 else first.name} has the smaller {name} with {sure:.0%} "
            "probability, by the intervals of both"
        )
    return lines


def _against_the_sheet(first: Side, other: Side) -> list[str]:
    """Figures in which a part that is nowhere slower comes out slower, with the cause: what each of them rests on."""
    layouts = {(side.planned.holding.terms.name, side.planned.asked.engine) for side in (first, other)}
    lines = []
    for weak, strong in ((first, other), (other, first)):
        one, two = (side.planned.asked.machine.accelerator for side in (weak, strong))
        if len(layouts) > 1 or one.name == two.name or not nowhere_slower(two, one):
            continue
        found = {name: _slower(weak, strong, name) for name in ("ttft", "tpot", "output_rate")}
        names = [f"{_FIGURES[name]} ({how})" for name, how in found.items() if how]
        if names:
            known = [weak.prediction.basis, strong.prediction.basis]
            basis = f"of both {known[0]}" if known[0] == known[1] else f"{one.name}: {known[0]}; {two.name}: {known[1]}"
            lines.append(
                f"{two.name} is slower than {one.name} in {', '.join(names)}, though its sheet is nowhere slower: the "
                f"cause is what was measured of each ({basis})"
            )
    return lines


def _slower(weak: Side, strong: Side, name: str) -> str:
    """How the stronger part is slower by more than a twentieth, by the interval of the weaker; else empty."""
    was, becomes = (side.prediction.figures.get(name) for side in (weak, strong))
    if was is None or becomes is None:
        return ""
    if name == "output_rate":
        slower, beyond = becomes.value < was.value / _NOTED, becomes.value < was.low
    else:
        slower, beyond = becomes.value > was.value * _NOTED, becomes.value > was.high
    return ("beyond its interval" if beyond else "within its interval") if slower or beyond else ""


def nowhere_slower(part: Accelerator, than: Accelerator) -> bool:
    """Whether the sheet of a part is at least that of another in all that decides steps.

    Returns: By bandwidth, matrix rates and the link between cards; False where one of them is not published for the
      part.

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


def _apart(one: Figure, other: Figure) -> tuple[float, float]:
    """Logarithm of the other over the one, and the probability that its sign is right."""
    from statistics import NormalDist

    from glmplan.units import QUANTILE_90

    apart = math.log(other.value / one.value)
    widths = [math.log(figure.high / figure.low) / (2 * QUANTILE_90) for figure in (one, other)]
    spread = math.hypot(*widths)
    return apart, NormalDist().cdf(abs(apart) / spread) if spread else 1.0


def compared(questions: Sequence[tuple[str, str]], money: Money, *, users: int = 1, **said: Any) -> Compared:
    """Compare plans.

    `**said`: What all of them are asked alike, as in `glmplan.fit`.

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
    """Compare plans that were made.

    `money`: Prices and terms; without a term of rent, rents are taken at one that all plans have.
    """
    money = money.at_one_term(one.asked.machine for one in planned)
    sides = tuple(side_of(one, users, money) for one in planned)
    return Compared(sides, users, tuple(causes_of(sides[0], other) for other in sides[1:]), money.rent_term)
