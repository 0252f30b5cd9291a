"""Text of a comparison: metrics, and the cause of each difference."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

from glmplan.catalog.formats import weight_format
from glmplan.catalog.tables import table_text
from glmplan.planner.question import other_name
from glmplan.planner.ranking import prompts_timed, untimed_words
from glmplan.prediction.effects import KNOWN_AS
from glmplan.prediction.predict import Figure
from glmplan.present.text import EVIDENCE_LABELS
from glmplan.purchase.compare import Compared, Side, fitted_apart, lower_rates
from glmplan.purchase.size_answer import floored_probability
from glmplan.units import QUANTILE_90, Ratio, counted_unit

__all__ = ["assumed_prices", "causes_of", "causes_text", "compare_rows", "compare_text", "differences"]

#: parts of the step-time breakdown → label
_PARTS = {
    "launch": "kernel launches and host overhead",
    "weights": "weight reads",
    "compute": "compute",
    "cache": "KV cache reads",
    "links": "communication",
    "host": "weights in host memory",
}
#: metric → label
_METRICS = {"ttft": "TTFT", "tpot": "TPOT", "output_rate": "total throughput"}
#: fields of a plan that are no rows of a table
_NO_ROW = ("plan", "price_assumed")
#: ratio of two values from which the difference is reported [-]
_NOTED = 1.05
#: log ratio from which a fitted effect is named [-]
_EFFECT = math.log(1.1)
#: probability from which a difference counts as significant [-]
_SIGNIFICANT = 0.9


def differences(compared: Compared) -> list[tuple[str, tuple[str, ...]]]:
    """Return the differences of each other plan from the first."""
    first, *others = compared.sides
    return [(other.name, causes_of(first, other)) for other in others]


def compare_rows(plans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each metric, with interval, a column for each plan."""
    names = [name for name in plans[0] if name not in _NO_ROW and not name.endswith(("_low", "_high"))]
    return [{"": name, **{plan["plan"]: _cell(plan, name) for plan in plans}} for name in names]


def assumed_prices(plans: list[dict[str, Any]]) -> list[str]:
    """Return a line for each price that is a default."""
    return list(dict.fromkeys(f"note: {text}" for plan in plans for text in plan["price_assumed"]))


def _cell(plan: dict[str, Any], name: str) -> Any:
    if name == "probability" and plan[name] is not None:
        return floored_probability(plan[name])
    low, high = plan.get(f"{name}_low"), plan.get(f"{name}_high")
    if low is None or high is None:
        return plan[name]
    return "{} ({} to {})".format(
        *(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in (plan[name], low, high))
    )


def compare_text(compared: Compared, plans: list[dict[str, Any]]) -> str:
    """Return the metrics as text; `plans` are those of `compare_record`."""
    lines = [f"concurrency: {counted_unit(compared.users, 'users')}"]
    if compared.rent_term is not None and any(side.paid.startswith("rent") for side in compared.sides):
        lines.append(f"rent term of all plans: {compared.rent_term}")
    # a row is shown if one of the plans has weights in host memory
    rows = [row for row in compare_rows(plans) if row[""] != "host_weights" or any(list(row.values())[1:])]
    for row in rows:
        if row[""] == "evidence_level":
            row |= {name: EVIDENCE_LABELS.get(value, value) for name, value in row.items()} | {"": "evidence"}
    refused = [f"not compared: {name}: {why}" for _, name, why in compared.left_out]
    named = [other_name(side.planned.asked.request.model, side.planned.asked.model.name) for side in compared.sides]
    notes = dict.fromkeys(f"note: {note}" for notes in named for note in notes)
    return "\n".join([*lines, table_text(rows), *notes, *assumed_prices(plans), *refused])


def causes_text(compared: Compared) -> str:
    """Return the differences of each plan from the first one as text."""
    lines = []
    for name, causes in differences(compared):
        lines += [f"\n{name} compared with {compared.sides[0].name}:", *(f"  {cause}" for cause in causes)]
    return "\n".join(lines)


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

    The cause is added: the one rate that is lower, or layouts, evidence and fitted effects.
    """
    if first.planned.asked.engine != other.planned.asked.engine:
        return []
    lines = []
    for weak, strong in ((first, other), (other, first)):
        one, two = (side.planned.asked.machine.accelerator for side in (weak, strong))
        checkpoint = strong.planned.asked.checkpoint
        precision = weight_format(checkpoint.formats.get("routed_experts") or checkpoint.default).compute
        # rates of precisions that the plan does not compute in do not matter
        used = {"memory", "link", "bf16", precision}
        lower = {name: rates for name, rates in lower_rates(two, one).items() if name in used}
        if one.name == two.name or list(lower) not in ([], [precision]):
            continue
        slower = {name: _slower(weak, strong, name) for name in _METRICS}
        names = [f"{_METRICS[name]} ({how})" for name, how in slower.items() if how]
        if names:
            sheet, cause = "its data sheet is not slower anywhere", _fitted_causes(weak, strong)
            if lower:
                now, before = (0.0 if rate is None else rate / 1e12 for rate in lower[precision])
                sheet = "its other rates are not"
                cause = f"its matrix rate in {precision.upper()}: {now:,.4g} instead of {before:,.4g} TFLOP/s"
            lines.append(
                f"{two.name} is predicted slower than {one.name} in {', '.join(names)} although {sheet}; "
                f"the cause is {cause}"
            )
    return lines


def _fitted_causes(weak: Side, strong: Side) -> str:
    """Return layouts, evidence and the effects of measured runs that differ."""
    known = [weak.prediction.basis, strong.prediction.basis]
    one, two = (side.planned.asked.machine.accelerator.name for side in (weak, strong))
    basis = f"both: {known[0]}" if known[0] == known[1] else f"{one}: {known[0]}; {two}: {known[1]}"
    layouts = [side.planned.holding.terms.name for side in (strong, weak)]
    layout = f"the layout ({layouts[0]} instead of {layouts[1]}) and " * (layouts[0] != layouts[1])
    found = []
    for (before, after), ratios in fitted_apart(weak, strong):
        times = [f"{_METRICS[name]} {math.exp(log):.2g} times" for name, log in ratios.items() if log > _EFFECT]
        found += [f"{after} instead of {before} ({', '.join(times)})"] * bool(times)
    effects = f"; fitted to measured runs: {', '.join(found)}" * bool(found)
    return f"{layout}the evidence ({basis}){effects}"


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


def _difference(one: Figure, other: Figure) -> tuple[float, Ratio]:
    """Return the log ratio of two metrics, and the probability of its sign."""
    apart = math.log(other.value / one.value)
    widths = [math.log(figure.high / figure.low) / (2 * QUANTILE_90) for figure in (one, other)]
    spread = math.hypot(*widths)
    return apart, NormalDist().cdf(abs(apart) / spread) if spread else 1.0
