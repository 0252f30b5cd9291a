"""Text and JSON of a `size` answer."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from glmplan.catalog.tables import table_text
from glmplan.planner.formats import FEW_BITS
from glmplan.planner.launch import degrees_of, validate_command
from glmplan.planner.question import other_name
from glmplan.planner.traffic_search import traffic_words
from glmplan.prediction.deployment import experts_of
from glmplan.present.text import EVIDENCE_LABELS
from glmplan.purchase.size_answer import OFFERED, Option, Sized, figures_of, floored_probability, servers_text
from glmplan.units import counted_unit

__all__ = ["answer_rows", "models_text", "size_content", "size_record", "size_text"]

#: machines without a price that the text lists
_NAMED = 12
#: a target as `glmplan.simulation.traffic.slo.Target` writes it
_TARGET = re.compile(r"(\w+) (\w+) < ([\d.e+]+) ms")


def answer_rows(found: Sized) -> list[dict[str, Any]]:
    """Return a record of each option.

    Answers, machines without a price, the next cheaper, the cheapest without the limits.
    """
    rows = []
    for role, options in (("answer", found.options), ("price missing", found.unpriced),
                          ("next cheaper", (found.cheaper,) if found.cheaper else ()),
                          ("over the limits", (found.over_limits,) if found.over_limits else ())):  # fmt: skip
        for rank, option in enumerate(options, start=1):
            more = _warnings(option, found) | {"measure": _measure(option, found)}
            rows.append({"rank": rank, "role": role, **figures_of(option, found), **more})
    return rows


def _measure(option: Option, found: Sized) -> str:
    """Return the `glmplan validate` command for the option's load share."""
    planned, traffic = option.planned, found.asked.traffic
    users = -(-(traffic.users or 1) // option.machines)
    return validate_command(
        found.asked.spec.name,
        planned.asked.machine.text,
        {"weights": planned.asked.checkpoint.name, "engine": planned.asked.engine, **degrees_of(planned.holding.terms)}
        | ({"speculative": f"mtp-{planned.holding.terms.mtp}"} if planned.holding.terms.mtp else {}),
        users=sorted({1, users}),
        lengths=(planned.asked.input_tokens, planned.asked.output_tokens),
    )


def _warnings(option: Any, found: Sized) -> dict[str, Any]:
    """Return hazards and limitations of a machine under its load share."""
    from glmplan.planner.make_plan import fit_answer
    from glmplan.request.plan import PlanRequest

    asked = option.planned.asked
    traffic = found.asked.traffic
    users = -(-(traffic.users or 1) // option.machines)
    terms = option.planned.holding.terms
    degrees = {name: getattr(terms, name) for name in ("tp", "pp", "dp", "ep", "dcp")}
    if terms.accelerators != asked.machine.count:
        degrees = {}
    drafted = {"mtp": asked.mtp or None, "acceptance": asked.request.acceptance}
    words = PlanRequest(found.asked.model, asked.machine.text, weights=asked.checkpoint.name, engine=asked.engine,
                  users=(users,), input=asked.input_tokens, output=asked.output_tokens,
                  **degrees, **{**found.asked.given, **drafted})  # fmt: skip
    answer = fit_answer(words, changes=False)
    warnings: dict[str, list[dict[str, str]]] = {"hazards": [], "limitations": []}
    for warning in answer.warnings:
        fields = {name: getattr(warning, name) for name in ("severity", "name", "title", "effect")}
        kind = "limitations" if warning.kind == "limitation" else "hazards"
        warnings[kind].append(fields | {"action": warning.do})
    return warnings


def size_content(found: Sized) -> dict[str, Any]:
    """Return the answer as the record that `--format json` prints."""
    asked, terms = found.asked, found.money.terms
    paid = found.per_token
    return {
        "model": asked.spec.name,
        "load": asked.load,
        "unit": asked.unit,
        "slo": asked.slo,
        "input_tokens": asked.traffic.input,
        "output_tokens": asked.traffic.output,
        "given": dict(asked.given),
        "budget_usd": asked.budget,
        "power_limit_kw": None if asked.power is None else asked.power / 1000,
        "probability_wanted": asked.probability,
        "rent_term": asked.rent_term if "rent" in asked.kinds else None,
        "spare_machines": "N" if asked.spare is None else asked.spare,
        "sites": asked.sites,
        "working_hours_week": asked.working_hours,
        "currency": terms.currency,
        "terms": {name: getattr(terms, name) for name in terms.__slots__ if name not in ("notes", "given")},
        "options": answer_rows(found),
        "measurement": found.measured
        and {
            "users": found.measured.users,
            "command": found.measured.command,
            "machines": found.measured.machines,
            "machines_after": found.measured.after,
        },
        "per_token": None
        if paid is None
        else {
            "seller": paid.offer.seller,
            "usd_month": paid.usd,
            "usd_month_low": paid.market.low,
            "usd_month_high": paid.market.high,
            "offers": len(paid.market.offers),
            "outliers": [offer.words for offer in paid.market.outliers],
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
        "no_price_by_kind": _by_kind(found.no_price),
        "not_looked_at": _not_looked_at(found),
        "looked_at": found.looked_at,
        "notes": [*other_name(asked.model, asked.spec.name), *terms.notes],
    }


def size_record(contents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the record of one model, or of several with a list of them."""
    return contents[0] if len(contents) == 1 else {"models": list(contents)}


def _by_kind(machines: Sequence[str]) -> dict[str, list[str]]:
    """Return accelerators and hosts without a price, each once."""
    parts = [re.sub(r"^\d+x", "", machine) for machine in machines]
    hosts = [part for part, machine in zip(parts, machines, strict=True) if part == machine]
    accelerators = list(dict.fromkeys(part for part in parts if part not in hosts))
    return {kind: names for kind, names in (("accelerators", accelerators), ("hosts", hosts)) if names}


def _not_looked_at(found: Sized) -> dict[str, int]:
    """Return the kinds of plans that the search leaves out.

    Each with its number; 0: not counted.
    """
    kinds = {}
    if found.boards:
        kinds["hosts of up to eight accelerators, of which N x ACCELERATOR was tried (name one with --only)"] = len(
            found.boards
        )
    if found.modules:
        kinds["modules of a baseboard in other numbers than 1, 2, 4 and 8 (name one with --only)"] = 0
    asked = found.asked
    others = [one.name for one in asked.spec.checkpoints if one.name not in (*asked.weights, *asked.files)]
    if asked.formats_open and others:
        kinds[f"other checkpoints of the same formats (--weights {','.join(others)})"] = len(others)
    if "mtp" not in found.asked.given and len(found.asked.drafts) == 1 and found.asked.spec.draft_runs:
        kinds["speculative decoding (--drafter best)"] = 0
    if "disaggregated" not in found.asked.given:
        kinds["disaggregated servers (--disaggregated 1:1)"] = 0
    if unlike := [one.on for one in asked.own if len(one.resolved().kinds) > 1]:
        kinds[f"a stage on each of unlike cards (fit --pp N --on {', '.join(unlike)})"] = len(unlike)
    if experts_of(found.asked.spec):
        kinds["experts in host memory (--engine ktransformers)"] = 0
    return kinds


def size_text(found: Sized, content: dict[str, Any]) -> str:
    """Return the answer as lines of text."""
    asked = found.asked
    load = f"{counted_unit(asked.load, asked.unit)} of {asked.traffic.input:,} + {asked.traffic.output:,} tokens"
    if asked.traffic.kind in ("sessions", "daily"):
        load = traffic_words(asked.traffic)
    given = "".join(f"; {name.replace('_', ' ')} {value}" for name, value in asked.given.items())
    lines = [f"{asked.spec.name} for {load}; SLO {asked.slo} at {asked.probability:.0%} confidence{given}"]
    if content["rent_term"] is not None:
        lines[0] += f"; rents {content['rent_term']}"
    limits = _limits(content)
    lines[0] += "".join(f"; {words}" for words in limits)
    rows = [row for row in content["options"] if row["role"] in OFFERED]
    if rows:
        table = table_text(_table_row(row, asked.unit) for row in rows)
        lines += ["", table, "", *_first(rows[0], asked.unit, asked.sites)]
        lines += _measurement(content["measurement"])
    else:
        within = f" within the {' and the '.join(limits)}" if limits else ""
        lines.append(f"no machine with a known price{within} meets this SLO")
    lines += _over_limits(content)
    lines += _cheaper(content)
    lines += _per_token(content, rows)
    lines += _left_out(content)
    return "\n".join(lines)


def _limits(content: dict[str, Any]) -> list[str]:
    """Return the limits of a purchase, in the units of the answer."""
    budget, power = content["budget_usd"], content["power_limit_kw"]
    words = [f"budget of {budget:,.0f} USD"] if budget is not None else []
    return words + ([f"power limit of {power:g} kW"] if power is not None else [])


def models_text(contents: Sequence[dict[str, Any]]) -> str:
    """Return the first row of each model as a table, the cheapest first.

    A model without an answer has its nearest machine there, with the probability of that.
    """
    rows = []
    for content in contents:
        row = next(iter(content["options"]), None)
        if row is None:
            rows.append((True, math.inf, {"model": content["model"], "machines": "none"}))
            continue
        load = _key(content["unit"])
        plain = {
            "model": content["model"],
            **_table_row(row, content["unit"]),
            f"{load} at 95 %": row.get(f"{load}_at_95"),
        }
        rows.append((not row["slo_met"], row["usd_month"] or math.inf, plain))
    rows.sort(key=lambda row: row[:2])
    return table_text(plain for *_, plain in rows)


def _measurement(found: dict[str, Any] | None) -> list[str]:
    """Return the machines that a benchmark of one machine would save."""
    if found is None:
        return []
    now, after = found["machines"], found["machines_after"]
    saved = f"{after:,} instead of {now:,} machines" if after < now else f"no fewer than {now:,} machines"
    return [f"  after a benchmark of one machine that confirms the prediction: {saved}: {found['command']}"]


def _key(unit: str) -> str:
    return unit.replace("/", "_per_")


def _table_row(row: dict[str, Any], unit: str) -> dict[str, Any]:
    return {
        "machines": _machines(row),
        "weights": row["weights"],
        "layout": _layout(row),
        "paid": row["paid"],
        "price USD": row["usd_purchase"],
        "USD/month": row["usd_month"],
        "P(SLO met)": floored_probability(row["probability"]),
        "fails at": row[f"violated_at_{_key(unit)}"] or f"over {row[f'capacity_{_key(unit)}']:g}",
        "USD/M out": row["usd_per_million_output_tokens"],
        "USD/M in+out": row["usd_per_million_tokens"],
        "kW": row["kw"],
        "evidence": EVIDENCE_LABELS[row["evidence_level"]],
    }


def _machines(row: dict[str, Any]) -> str:
    """Return the machines with their power limit."""
    limit = f" at {row['power_limit_w']:g} W" if row["limited"] else ""
    return servers_text(row["machines"], row["machine"]) + limit


def _layout(row: dict[str, Any]) -> str:
    drafted = row["speculative_tokens"]
    moved = ", part in host memory" if row["host_weights"] else ""
    return (f"{row['layout']} --mtp {drafted}" if drafted else str(row["layout"])) + moved


def _first(row: dict[str, Any], unit: str, sites: int) -> list[str]:
    """Return the details of the first answer."""
    lines = [
        f"first: {_machines(row)}, {row['weights']}, {_layout(row)}, {row['engine']}",
        f"  {_capacity(row, unit)}",
        f"  mean TPOT {_interval(row, 'tpot')}, mean TTFT {_interval(row, 'ttft')}; evidence: {row['evidence']}",
    ]
    lines += [f"  {row['host_weights']}"] if row["host_weights"] else []
    if row["bits_per_weight"] < FEW_BITS:
        bits = f"{row['bits_per_weight']:.2g} bits for each weight"
        lines.append(f"  quality: {bits}; losses of a format are not modelled; other formats: --weights")
    if row["machines"] > row["machines_serving"]:
        serving, each = row["machines_serving"], row["machines"] // sites
        site = f"each of {sites} sites: " if sites > 1 else ""
        meet = "machine meets" if serving == 1 else "machines meet"
        lines.append(f"  {site}{serving} {meet} the SLO, {each - serving} spare")
    if row["month_lines"]:
        parts = ", ".join(f"{name} {value:,.0f}" for name, value in row["month_lines"].items() if value)
        lines.append(f"  USD per month: {parts} (total {row['usd_month_low']:,.0f} to {row['usd_month_high']:,.0f})")
    if row["rent_usd_month"] is not None:
        month = row["break_even_month_against_rent"]
        after = "never breaks even" if month is None else f"breaks even after {month:.0f} months"
        lines.append(f"  renting the same: {row['rent_usd_month']:,.0f} USD/month; buying {after}")
    if row["kw"] is not None:
        lines.append(
            f"  power: {row['kw']:.1f} kW under this load, {row['kw_at_its_limit']:.1f} kW at most; circuit of each "
            f"machine: {row['circuit']}; {row['joules_per_output_token']:.2f} J of GPU energy per output token"
        )
        units = "" if row["rack_units"] is None else f"; {row['rack_units']} rack units"
        lines.append(f"  heat: {row['heat_btu_per_h']:,.0f} BTU/h at most{units}")
    if row["months_until_outgrown"] is not None:
        after = (
            "sufficient for at least" if row["capacity_is_lower_bound"] else "load growth reaches the capacity after"
        )
        lines.append(f"  {after} {row['months_until_outgrown']:.0f} months")
    lines += [f"  {issue['severity']}: {issue['title']}" for issue in (*row["hazards"], *row["limitations"])[:6]]
    lines += [f"  old price: {text}" for text in row["price_stale"]]
    lines += [f"  {text}" for text in row["price_assumed"]]
    lines += [f"  no price: {row['price_missing']}"] if row["price_missing"] else []
    lines += [f"  lead time: {row['delivery']}"] if row["delivery"] else []
    return lines + [f"  vendor lock-in: {text}" for text in row["single_source"]]


def _capacity(row: dict[str, Any], unit: str) -> str:
    """Return the capacity with its headroom, and the next limit."""
    most = row[f"capacity_{_key(unit)}"]
    load = counted_unit(most if unit == "users" else float(f"{most:.4g}"), unit)
    spare = f"{abs(row['headroom']):.0%} {'below the load' if row['headroom'] < 0 else 'headroom'}"
    others = _by_probability(row, unit)
    others = f"; {others} probability" if others else ""
    if row["capacity_is_lower_bound"]:
        return f"capacity at least {load} ({spare}); higher loads were not tested"
    return f"capacity {load} ({spare}{others}); {_first_missed(row)}"


def _by_probability(row: dict[str, Any], unit: str) -> str:
    """Return the load at 95, 80 and 50 %; the largest tested one is a bound."""
    found = [(share, row.get(f"{_key(unit)}_at_{share}")) for share in (95, 80, 50)]
    bound = math.inf if row["most_tested"] is None else (1.0 - 1e-9) * row["most_tested"]
    return ", ".join(
        f"{most:,.4g}{' or more' if most >= bound else ''} at {share} %" for share, most in found if most is not None
    )


def _first_missed(row: dict[str, Any]) -> str:
    """Return the limit that more load exceeds, or the hazard of every load."""
    danger = next((one for one in row["hazards"] if one["severity"] == "danger"), None)
    if row["limited_by"] == "hazard" and danger is not None:
        return f"{danger['title']}: {danger['action']}"
    return f"{_limit(row['limited_by'])} is exceeded first"


def _limit(broken: str) -> str:
    """Return a missed target as text.

    Other causes, such as KV thrashing, stay as they are.
    """
    match = _TARGET.fullmatch(broken)
    if match is None:
        return broken or "the SLO"
    bound = float(match[3])
    return f"the {match[1].upper()} {match[2]} limit of {f'{bound / 1000:g} s' if bound >= 1000 else f'{bound:g} ms'}"


def _interval(row: dict[str, Any], name: str) -> str:
    """Return a mean latency with its 90 % prediction interval."""
    value = row[f"{name}_mean_ms"]
    if value is None:
        return "unknown"
    return f"{value:,.0f} ms ({row[f'{name}_mean_ms_low']:,.0f} to {row[f'{name}_mean_ms_high']:,.0f})"


def _over_limits(content: dict[str, Any]) -> list[str]:
    """Return the cheapest machines without the limits of budget and power."""
    lines = []
    for row in content["options"]:
        if row["role"] != "over the limits":
            continue
        months = content["terms"]["horizon_months"]
        bought = row["usd_purchase"]
        price = f"{row['usd']:,.0f} USD of rent in {months:g} months" if bought is None else f"{bought:,.0f} USD"
        draw = "" if row["kw"] is None or content["power_limit_kw"] is None else f", {row['kw_at_its_limit']:.1f} kW"
        chance = floored_probability(row["probability"])
        lines.append(
            f"cheapest without a limit: {_machines(row)}, {row['weights']}, {row['paid']} for {price}{draw}, "
            f"{row['usd_month']:,.0f} USD/month: meets the SLO with probability {chance}"
        )
    return lines


def _cheaper(content: dict[str, Any]) -> list[str]:
    """Return the next cheaper machines, with probability and measurement."""
    lines = []
    nothing = not any(row["role"] == "answer" for row in content["options"])
    wanted = content["probability_wanted"]
    key = f"capacity_{_key(content['unit'])}"
    for row in content["options"]:
        if row["role"] != "next cheaper":
            continue
        price = "" if row["usd_purchase"] is None else f" for {row['usd_purchase']:,.0f} USD"
        lines.append(
            f"{'nearest' if nothing else 'next cheaper'}: {_machines(row)}, "
            f"{row['weights']}, {row['paid']}{price}, {row['usd_month']:,.0f} USD/month: {_chance(row, wanted)}; "
            f"{_first_missed(row)}"
        )
        lines += [f"  {_expected(target)}" for target in row["slo"] if target["expected_ms"] is not None]
        unit = "user" if content["unit"] == "users" and row[key] <= 1 else content["unit"]
        served = f"serves {row[key]:,.4g} {unit}" if row[key] else "cannot serve even one user"
        if not row[key] and unit != "user":
            served = f"cannot serve even the lowest load that was tested ({unit})"
        others = _by_probability(row, content["unit"])
        others = f" ({others} probability)" if others else ""
        lines.append(f"  at {wanted:.0%} confidence it {served}{others}; evidence: {row['evidence']}")
        lines.append(f"  to narrow the interval: {row['measure']}")
    return lines


def _chance(row: dict[str, Any], wanted: float) -> str:
    """Return the probability of a nearest machine as text."""
    if row["limited_by"] == "hazard":
        return "not safe"
    return f"meets the SLO with probability {floored_probability(row['probability'])} instead of {wanted:.2f}"


def _expected(target: dict[str, Any]) -> str:
    """Return a target and its expected value; end-to-end has no interval."""
    mean, high = f"{target['target']}: {target['expected_ms']:,.0f} ms expected", target["expected_ms_high"]
    if high is None:
        return mean
    return f"{mean}, 90 % interval {target['expected_ms_low']:,.0f} to {high:,.0f} ms"


def _per_token(content: dict[str, Any], rows: list[dict[str, Any]]) -> list[str]:
    """Return the API bill of the same tokens, and the break-even volume.

    The first machine is cheaper from that volume on.
    """
    paid = content["per_token"]
    if paid is None:
        return [f"API alternative: {content['per_token_missing']}"]
    inputs, outputs = paid["million_input_tokens_month"], paid["million_output_tokens_month"]
    cached = paid["million_cached_tokens_month"]
    span = f" ({paid['usd_month_low']:,.0f} to {paid['usd_month_high']:,.0f} over {paid['offers']} offers)"
    lines = [
        f"API alternative (median: {paid['seller']}): {paid['usd_month']:,.0f} USD/month"
        f"{span if paid['offers'] > 1 else ''} for {inputs:,.0f} M input tokens"
        f"{f' ({cached:,.0f} M cached)' if cached else ''} and {outputs:,.0f} M output tokens; latency not guaranteed"
    ]
    lines += [f"  outlier, not counted: {text} for a million tokens" for text in paid["outliers"]]
    cheaper = all(row["usd_month"] is None or row["usd_month"] > paid["usd_month"] for row in rows)
    if rows and cheaper:
        lines.append("  the API is cheaper at this volume")
    first = rows[0] if rows else None
    if first and first["break_even_million_tokens"] is not None:
        least, most = first["break_even_million_tokens"], first["million_tokens_month_most"]
        if most is not None and least > most:
            lines.append(f"  break-even at {least:,.0f} M tokens/month, above the capacity of the first answer")
        else:
            month = first["break_even_month"]
            after = "" if month is None else f"; the purchase breaks even after {month:.0f} months at this volume"
            lines.append(f"  break-even at {least:,.0f} M tokens/month{after}")
    return lines


def _left_out(content: dict[str, Any]) -> list[str]:
    rows = sorted((content["skipped"] or {}).items(), key=lambda row: -row[1])
    lines = [f"{count} skipped: {reason}" for reason, count in rows[:6]]
    for kind, names in content["no_price_by_kind"].items():
        more = " …" if len(names) > _NAMED else ""
        count = f"{len(names)} {kind if len(names) > 1 else kind[:-1]}"
        lines.append(f"no known price, not ranked: {count} ({', '.join(names[:_NAMED])}{more}); --price NAME=NUMBER")
    for text, count in content["not_looked_at"].items():
        lines.append(f"not looked at: {text}" + (f" ({count})" if count else ""))
    return lines + [f"note: {note}" for note in content["notes"]]
