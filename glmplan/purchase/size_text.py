"""The answer of `size` as text: what to buy, why it is sure, what the next cheaper one would miss."""

from __future__ import annotations

from typing import Any

from glmplan.catalog.tables import table_text
from glmplan.planner.launch import degrees_of, validate_command
from glmplan.purchase.size_answer import Option, Sized, figures_of, surely
from glmplan.units import counted_unit

__all__ = ["answer_rows", "size_content", "size_text"]

#: machines without a price that are named
_NAMED = 12
#: whether anything keeps the promise → what paying for each token is then
_KEEP = {
    True: ": keep paying for each token",
    False: ": what is left until a measurement or another promise settles it",
}


def answer_rows(found: Sized) -> list[dict[str, Any]]:
    """Every option with all its figures, the answers first."""
    rows = []
    for role, options in (("answer", found.options), ("price missing", found.unpriced),
                          ("next cheaper", (found.cheaper,) if found.cheaper else ())):  # fmt: skip
        for rank, option in enumerate(options, start=1):
            figures = figures_of(option, found)
            figures |= _warned(option, found) | {"measure": _measure(option, found)}
            rows.append({"rank": rank, "role": role, **figures})
    return rows


def _measure(option: Option, found: Sized) -> str:
    """The command that measures what the answer rests on."""
    planned, traffic = option.planned, found.asked.traffic
    users = -(-(traffic.users or 1) // option.machines)
    return validate_command(
        found.asked.spec.name,
        planned.asked.machine.text,
        {"weights": planned.asked.checkpoint.name, "engine": planned.asked.engine, **degrees_of(planned.holding.terms)},
        users=sorted({1, users}),
        lengths=(traffic.input, traffic.output),
    )


def _warned(option: Any, found: Sized) -> dict[str, Any]:
    """Hazards and walls of one machine under its share of the load."""
    from glmplan.planner.make_plan import fit_answer
    from glmplan.planner.question import Words

    asked = option.planned.asked
    traffic = found.asked.traffic
    users = -(-(traffic.users or 1) // option.machines)
    terms = option.planned.holding.terms
    said = {name: getattr(terms, name) for name in ("tp", "pp", "dp", "ep", "dcp")}
    if terms.accelerators != asked.machine.count:
        said = {}
    words = Words(found.asked.model, asked.machine.text, weights=asked.checkpoint.name, engine=asked.engine,
                  users=(users,), input=traffic.input, output=traffic.output, **said)  # fmt: skip
    answer = fit_answer(words, changes=False)
    warned: dict[str, list[dict[str, str]]] = {"hazards": [], "limitations": []}
    for one in answer.warnings:
        warned["limitations" if one.kind == "limitation" else "hazards"].append(
            {"severity": one.severity, "name": one.name, "title": one.title, "effect": one.effect, "action": one.do}
        )
    return warned


def size_content(found: Sized) -> dict[str, Any]:
    """The answer with a name for every figure."""
    asked, terms = found.asked, found.money.terms
    paid = found.per_token
    return {
        "model": asked.spec.name,
        "load": asked.load,
        "unit": asked.unit,
        "slo": asked.slo,
        "input_tokens": asked.traffic.input,
        "output_tokens": asked.traffic.output,
        "budget_usd": asked.budget,
        "power_limit_kw": None if asked.power is None else asked.power / 1000,
        "probability_wanted": asked.probability,
        "currency": terms.currency,
        "terms": {name: getattr(terms, name) for name in terms.__slots__ if name != "notes"},
        "options": answer_rows(found),
        "per_token": None
        if paid is None
        else {
            "seller": paid.offer.seller,
            "usd_month": paid.usd,
            "usd_per_million_input_tokens": paid.offer.input,
            "usd_per_million_output_tokens": paid.offer.output,
            "usd_per_million_cached_tokens": paid.offer.cached,
            "million_input_tokens_month": paid.inputs / 1e6,
            "million_cached_tokens_month": paid.cached / 1e6,
            "million_output_tokens_month": paid.outputs / 1e6,
            "date": paid.offer.date,
            "stale": paid.offer.stale,
            "source": paid.offer.source,
        },
        "per_token_missing": found.per_token_missing,
        "skipped": found.left_out,
        "no_price": list(found.no_price),
        "looked_at": found.looked_at,
        "notes": list(terms.notes),
    }


def size_text(found: Sized, content: dict[str, Any]) -> str:
    """The answer in lines."""
    asked = found.asked
    load = f"{counted_unit(asked.load, asked.unit)} of {asked.traffic.input:,} + {asked.traffic.output:,} tokens"
    lines = [f"{asked.spec.name} for {load}, {asked.slo}, kept with {asked.probability:.0%} probability"]
    rows = [row for row in content["options"] if row["role"] != "next cheaper"]
    if rows:
        lines += ["", table_text(_short(row, asked.unit) for row in rows), "", *_first(rows[0], asked.unit)]
    else:
        lines.append("nothing that may be bought or rented keeps this promise")
    lines += _cheaper(content)
    lines += _per_token(content, rows)
    lines += _left_out(content)
    return "\n".join(lines)


def _key(unit: str) -> str:
    return unit.replace("/", "_per_")


def _short(row: dict[str, Any], unit: str) -> dict[str, Any]:
    price = row["usd_per_million_output_tokens"]
    limit = f" at {row['power_limit_w']:g} W" if row["limited"] else ""
    return {
        "machines": f"{row['machines']} × {row['machine']}{limit}",
        "weights": row["weights"],
        "layout": row["layout"],
        "paid": row["paid"],
        "buy usd": row["usd_purchase"],
        "usd/month": row["usd_month"],
        "probability": surely(row["probability"]),
        "breaks at": row[f"violated_at_{_key(unit)}"] or f"over {row[f'capacity_{_key(unit)}']:g}",
        "usd/M out": price,
        "kW": row["kw"],
        "evidence": row["evidence_level"],
    }


def _first(row: dict[str, Any], unit: str) -> list[str]:
    lines = [
        f"first: {row['machines']} × {row['machine']}, {row['weights']}, {row['layout']}, {row['engine']}; "
        + _carried(row, unit),
        f"  a token in {_span(row, 'tpot')}, the first one in {_span(row, 'ttft')}; rests on: {row['evidence']}",
    ]
    if row["month_lines"]:
        parts = ", ".join(f"{name} {value:,.0f}" for name, value in row["month_lines"].items() if value)
        lines.append(f"  a month: {parts} (low {row['usd_month_low']:,.0f}, high {row['usd_month_high']:,.0f})")
    if row["rent_usd_month"] is not None:
        month = row["break_even_month_against_rent"]
        after = "never" if month is None else f"after {month:.0f} months"
        lines.append(f"  to rent the same: {row['rent_usd_month']:,.0f} USD a month; buying pays for itself {after}")
    if row["kw"] is not None:
        lines.append(
            f"  power: {row['kw']:.1f} kW while it serves, {row['kw_at_its_limit']:.1f} at its limit: each machine on "
            f"{row['circuit']}; {row['joules_per_output_token']:.2f} J of the accelerators for a token of an answer"
        )
    if row["months_until_outgrown"] is not None:
        after = "not outgrown for at least" if row["capacity_is_lower_bound"] else "outgrown after"
        lines.append(f"  {after} {row['months_until_outgrown']:.0f} months")
    lines += [f"  {one['severity']}: {one['title']}" for one in (*row["hazards"], *row["limitations"])[:6]]
    lines += [f"  price stale: {text}" for text in row["price_stale"]]
    lines += [f"  price missing: {row['price_missing']}"] if row["price_missing"] else []
    lines += [f"  delivery: {row['delivery']}"] if row["delivery"] else []
    return lines + [f"  single source: {text}" for text in row["single_source"]]


def _carried(row: dict[str, Any], unit: str) -> str:
    """What the machines carry; where nothing failed, a load from which on nothing is known."""
    more = "less" if row["headroom"] < 0 else "more"
    carried = f"{counted_unit(row[f'capacity_{_key(unit)}'], unit)}, {abs(row['headroom']):.0%} {more} than asked"
    if row["capacity_is_lower_bound"]:
        return f"carries at least {carried}; more was not looked at"
    return f"carries {carried}; then breaks {row['limited_by'] or 'the promise'}"


def _span(row: dict[str, Any], name: str) -> str:
    value = row[f"{name}_mean_ms"]
    if value is None:
        return "an unknown time"
    return f"{value:,.0f} ms ({row[f'{name}_mean_ms_low']:,.0f} to {row[f'{name}_mean_ms_high']:,.0f})"


def _cheaper(content: dict[str, Any]) -> list[str]:
    lines = []
    nothing = not any(row["role"] == "answer" for row in content["options"])
    key = f"capacity_{_key(content['unit'])}"
    for row in content["options"]:
        if row["role"] != "next cheaper":
            continue
        bought = "" if row["usd_purchase"] is None else f" for {row['usd_purchase']:,.0f} USD"
        lines.append(
            f"{'nearest' if nothing else 'next cheaper'}: {row['machines']} × {row['machine']}, {row['weights']}, "
            f"{row['paid']}{bought}, {row['usd_month']:,.0f} USD a month: keeps the promise with probability "
            f"{surely(row['probability'])}, asked are {content['probability_wanted']:.2f}; "
            f"it misses {row['limited_by'] or 'it'} first"
        )
        lines += [f"  {_expected(one)}" for one in row["slo"] if one["expected_ms"] is not None]
        unit = "user" if content["unit"] == "users" and row[key] <= 1 else content["unit"]
        least = "not even one user" if unit == "user" else f"not even the smallest load of {unit}"
        sure = f"{row[key]:g} {unit}" if row[key] else least
        lines.append(f"  as surely as asked it carries {sure}; its interval rests on: {row['evidence']}")
        lines.append(f"  to know it better: {row['measure']}")
    return lines


def _expected(one: dict[str, Any]) -> str:
    """A promise beside what is expected."""
    high = one["expected_ms_high"]
    if high is None:  # of a whole answer no interval is predicted
        return f"{one['target']}: {one['expected_ms']:,.0f} ms are expected of {one['at_most_ms']:,.0f} ms"
    end = " and reaches beyond it" if high > one["at_most_ms"] and one["expected_ms"] <= one["at_most_ms"] else ""
    return (
        f"{one['target']}: {one['expected_ms']:,.0f} ms are expected of {one['at_most_ms']:,.0f} ms, the interval is "
        f"{one['expected_ms_low']:,.0f} to {high:,.0f} ms{end}"
    )


def _per_token(content: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    paid = content["per_token"]
    if paid is None:
        return [f"per token: {content['per_token_missing']}"]
    cheaper = all(row["usd_month"] is None or row["usd_month"] > paid["usd_month"] for row in rows)
    inputs, outputs = paid["million_input_tokens_month"], paid["million_output_tokens_month"]
    seen = paid["million_cached_tokens_month"]
    again = f" ({seen:,.0f} M seen before)" if seen else ""
    lines = [
        f"per token: {paid['usd_month']:,.0f} USD a month at {paid['seller']} for {inputs:,.0f} M tokens in{again} and "
        f"{outputs:,.0f} M out, whose speed nobody promises" + (_KEEP[bool(rows)] if cheaper else "")
    ]
    first = rows[0] if rows else None
    if first and first["break_even_million_tokens"] is not None:
        month = first["break_even_month"]
        after = f", and the purchase has paid for itself after {month:.0f} months" if month is not None else ""
        least = first["break_even_million_tokens"]
        most = first["million_tokens_month_most"]
        if most is not None and least > most:
            lines.append(
                f"  only from {least:,.0f} M tokens a month on would the first be cheaper: more than it carries"
            )
        else:
            lines.append(f"  from {least:,.0f} M tokens a month on the first is cheaper{after}")
    return lines


def _left_out(content: dict[str, Any]) -> list[str]:
    rows = sorted((content["skipped"] or {}).items(), key=lambda one: -one[1])
    lines = [f"left out: {count} because {reason}" for reason, count in rows[:6]]
    unpriced = content["no_price"]
    if unpriced:
        more = " …" if len(unpriced) > _NAMED else ""
        lines.append(f"no price is known of {', '.join(unpriced[:_NAMED])}{more}: give one with --price MACHINE=NUMBER")
    return lines + [f"note: {note}" for note in content["notes"]]
