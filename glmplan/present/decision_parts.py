"""Build the parts of a report: prices, risks, evidence and drawings."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.catalog.files import read_json
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.json_names import upgrade
from glmplan.io.machines.resolve import Machine, resolve_machine
from glmplan.planner.ask import Planned, predict
from glmplan.planner.launch import DEGREES, degrees_set, validate_command
from glmplan.present.charts import band, chart_svg, haloed, log_axis, named_bars, rows_chart, short
from glmplan.present.host_drawing import draw_svg
from glmplan.present.json_answers import SCHEMA
from glmplan.present.page import Block, Code, Drawing, Heading, Points, Table, Text, light
from glmplan.purchase.cost import per_million
from glmplan.purchase.money import Money, Way, watts_of, ways_of
from glmplan.units import Ratio, Usd, number

__all__ = [
    "ReportOption",
    "assumptions",
    "at_one_term",
    "checks",
    "cost_drawing",
    "evidence",
    "fullest",
    "is_plan",
    "machine_drawing",
    "memory_drawing",
    "memory_parts",
    "month_lines",
    "priced_plan",
    "read_plan",
    "risks",
    "row_at",
    "users_charts",
    "users_drawing",
    "users_rows",
    "users_words",
]


@dataclass(frozen=True)
class ReportOption:
    """A plan of a report with its cost."""

    #: answer of `glmplan fit --format json`
    record: Mapping[str, Any]
    #: None if the catalogue does not have it
    machine: Machine | None
    #: the cheapest first
    ways: tuple[Way, ...]
    #: power at the wall [kW]
    kw: float | None
    #: mean load of a day over the peak
    utilisation: Ratio
    currency: str = "USD"

    @property
    def name(self) -> str:
        """Return model, checkpoint and machine."""
        asked = self.record["question"]
        return f"{asked['model']} {asked['checkpoint']} on {asked['on']}"

    @property
    def paid(self) -> Way | None:
        """Return the cheapest way to buy or rent with a price."""
        return next((way for way in self.ways if way.usd is not None), None)

    @property
    def works(self) -> bool:
        """Return True if the plan fits and has a speed."""
        return self.record["verdict"] in ("fits", "tight") and bool(self.record["users"])

    @property
    def output_share(self) -> Ratio:
        """Return the share of output tokens in all tokens."""
        asked = self.record["question"]
        return float(asked["output_tokens"] / (asked["input_tokens"] + asked["output_tokens"]))

    def per_million(self, users: int) -> Usd | None:
        """Return the cost of a million output tokens; None if unknown."""
        row = row_at(self.record, users)
        if self.paid is None or self.paid.usd is None or row is None:
            return None
        return float(per_million(self.paid.usd, row["output_tokens_per_s"]["value"], self.utilisation))


def row_at(record: Mapping[str, Any], users: int) -> Mapping[str, Any] | None:
    """Return the row of a number of users; None if there is none."""
    return next((row for row in record["users"] if row["users"] == users), None)


def at_one_term(records: Iterable[Mapping[str, Any]], money: Money) -> Money:
    """Return prices with one rent term for all plans."""
    machines = [_machine(record) for record in records]
    return money.at_one_term(machine for machine in machines if machine is not None)


def _machine(record: Mapping[str, Any]) -> Machine | None:
    try:
        return resolve_machine(str(record["question"]["on"]))
    except SpecError:
        return None


def priced_plan(record: Mapping[str, Any], money: Money) -> ReportOption:
    """Return a plan with its cost; without cost for an unknown machine."""
    machine = _machine(record)
    if machine is None:
        return ReportOption(record, None, (), None, money.terms.utilisation, money.terms.currency)
    limit = record["question"].get("power_limit_w")
    watts, _ = watts_of(machine, money, limit)
    kw = None if watts is None else watts / 1000.0
    ways = ways_of(machine, money, limit=limit)
    return ReportOption(record, machine, ways, kw, money.terms.utilisation, money.terms.currency)


def month_lines(way: Way) -> list[tuple[str, float]]:
    """Return name and amount of each line of the monthly cost above zero."""
    lines = () if way.month is None else way.month.lines
    return [(name, float(np.asarray(amount))) for name, amount in lines if np.asarray(amount) > 0]


def is_plan(path: str) -> bool:
    """Return True if an argument names a JSON file with a schema, not a model."""
    file = Path(path)
    if file.suffix != ".json" or not os.path.isfile(file):
        return False
    content = read_json(file)
    return isinstance(content, dict) and "schema" in content


def read_plan(path: str | Path) -> dict[str, Any]:
    """Return a plan of `glmplan fit --format json`, also of old schemas."""
    content = upgrade(read_json(path))
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != SCHEMA:
        raise SpecError(f"is no plan of glmplan fit --format json: its schema must be {SCHEMA}", file=path,
                        value=schema)  # fmt: skip
    for name in ("question", "users", "warnings", "changes", "assumed"):
        if not isinstance(content.get(name), dict if name == "question" else list):
            raise SpecError("is missing or of another kind than in a plan", file=path, field=name)
    return dict(content)


#: severities, the worst first
_ORDER = ("error", "danger", "warning", "memory", "quality", "unknown", "slow", "fallback", "note")


def risks(plans: Sequence[ReportOption]) -> list[Block]:
    """Return limitations, hazards, open questions and old prices."""
    blocks: list[Block] = [Heading("Risks")]

    def rank(warning: Mapping[str, Any]) -> int:
        return _ORDER.index(warning["severity"]) if warning["severity"] in _ORDER else len(_ORDER)

    for plan in plans:
        warnings = sorted(plan.record["warnings"], key=rank)
        rows = tuple(
            (w["title"], w["severity"], w["effect"] or w["applied"], w["action"], w["source"]) for w in warnings
        )
        if rows:
            heads = ("risk", "severity", "effect", "remedy", "source")
            title = f"{plan.name}: engine limitations and machine hazards"
            blocks.append(Table(title, heads, rows, left=(0, 1, 2, 3, 4)))
        else:
            blocks.append(Text(f"{plan.name}: no known engine limitation or machine hazard."))
        missing = [*plan.record["unknown"], *plan.record["reasons"]]
        if missing:
            blocks.append(Points(tuple(f"{plan.name}: {text}" for text in missing)))
        stale = [text for way in plan.ways for text in way.stale]
        if stale:
            blocks.append(Points(tuple(f"old price: {text}" for text in dict.fromkeys(stale))))
    return blocks


def assumptions(plans: Sequence[ReportOption], money: Money) -> list[Block]:
    """Return assumptions, facts and prices with their sources."""
    assumed = dict.fromkeys(text for plan in plans for text in plan.record["assumed"])
    rows = []
    for plan in plans:
        asked = plan.record["question"]
        source = asked.get("source") or asked["repository"] or "given with the question"
        rows.append((f"{asked['model']} {asked['checkpoint']}", "weights", source))
    fits = ", ".join(dict.fromkeys(file for plan in plans for file in plan.record["fits"])) or "formulas only"
    rows.append(("speeds and memory", fits, "runs in calibration/measurements; sources in calibration/sources.toml"))
    rows += [row for plan in plans for row in _prices(plan)]
    rows += _terms(money)
    blocks: list[Block] = [Heading("Assumptions and sources")]
    if assumed:
        blocks.append(Points(tuple(assumed)))
    heads = ("item", "value", "source")
    blocks.append(Table("Facts and prices", heads, tuple(dict.fromkeys(rows)), left=(0, 1, 2)))
    notes = dict.fromkeys(money.terms.notes)
    return [*blocks, *([Points(tuple(notes))] if notes else [])]


def _prices(one: ReportOption) -> list[tuple[str, str, str]]:
    bought = next((way.purchase for way in one.ways if way.purchase is not None), None)
    rows = []
    for line in bought.lines if bought is not None else ():
        if line.quotation is None:
            rows.append((line.name, "no price", line.note))
        else:
            sources = sorted({price.source for price in line.quotation.entries})
            more = f" and {len(sources) - 2} more" if len(sources) > 2 else ""
            name = f"{line.name}, assumed" if line.assumed else line.name
            rows.append((name, f"{line.count:g} × {line.quotation.words}", "; ".join(sources[:2]) + more))
    return rows


def _terms(money: Money) -> list[tuple[str, str, str]]:
    from glmplan.catalog.entries.prices import load_terms

    rows = []
    for name, term in load_terms().items():
        used = getattr(money.terms, name, None)
        if used is None or not used:
            continue
        source = f"{term.source}, {term.date}" if used == term.value else "given with the question"
        rows.append((term.what, f"{used:g} {term.unit}".strip(), source))
    return rows


def evidence(plans: Sequence[ReportOption], load: int | None) -> list[Block]:
    """Return the evidence of the plans, and the sensitivity command."""
    blocks: list[Block] = [Heading("How sure")]
    items = []
    for plan in plans:
        record = plan.record
        if record["evidence"]:
            items.append(f"{plan.name}, served by {record['question']['engine']}: {record['evidence']}")
        if record["basis"]:
            items.append(f"{plan.name}, speeds: {record['basis']}")
        row = None if load is None else row_at(record, load)
        if row is not None and row["out_of_domain"]:
            items.append(f"{plan.name}, outside the calibrated domain: {row['out_of_domain']}")
    items.append(
        "all ranges are 90 % prediction intervals: nine of ten later measurements should lie inside; docs/accuracy.md "
        "has the coverage on held-out runs"
    )
    items.append("safe users are computed at the pessimistic bound of each interval")
    blocks.append(Points(tuple(items)))
    if not plans[0].works:
        return blocks
    asked = plans[0].record["question"]
    blocks.append(Text("Assumptions by their effect on the cost, the largest first:"))
    blocks.append(
        Code(shlex.join(["glmplan", "sensitivity", f"{asked['model']}-{asked['checkpoint']}", "--on", asked["on"]]))
    )
    return blocks


def checks(one: ReportOption, load: int | None) -> list[Block]:
    """Return the acceptance command, with the bounds of its 90 % intervals.

    A contract with a seller needs an SLO instead; `glmplan size --acceptance-test` writes that test.
    """
    record, plan = one.record, one.record["plan"]
    blocks: list[Block] = [Heading("How to check after delivery")]
    if not one.works or plan is None or load is None:
        return [*blocks, Text("There is nothing to start and nothing to check.")]
    asked = record["question"]
    rows = [row for row in record["users"] if row["users"] <= load]
    facts: dict[str, object] = {"weights": asked["checkpoint"], "engine": asked["engine"]}
    command = validate_command(
        asked["model"],
        asked["on"],
        {**facts, **degrees_set({name: int(plan[name]) for name in DEGREES})},
        users=[int(row["users"]) for row in rows],
        lengths=(int(asked["input_tokens"]), int(asked["output_tokens"])),
        more="--fail-over interval",
    )
    blocks += [Text("Start the engine on the machine:"), Code(record["command"])]
    text = "Measure it; the exit code is 1 if more metrics lie outside their intervals than chance explains:"
    blocks += [Text(text), Code(command)]
    bounds = tuple(
        (f"{row['users']:,}", _end(row["ttft_mean_ms"], "high"), _end(row["tpot_mean_ms"], "high"),
         _end(row["output_tokens_per_s"], "low")) for row in rows
    )  # fmt: skip
    heads = (
        "concurrency",
        "max mean TTFT [ms]",
        "max mean TPOT [ms]",
        "min total throughput [token/s]",
    )
    blocks.append(Table("Outside these bounds the machine is not as planned", heads, bounds))
    printed = record["memory"]["engine_reported_tokens"] if record["memory"] else None
    if printed:
        span = f"{printed['value']:,} tokens ({printed['low']:,} to {printed['high']:,})"
        blocks.append(Text(f"Size of the KV pool that the engine prints at its start: expected {span}."))
    return blocks


def _end(metric: Any, end: str) -> str:
    return "unknown" if metric is None else number(metric[end])


# Drawings: speed over users, memory of the fullest GPU, machine, cost.

#: parts of the memory of a GPU: label, field of the record, colour
_PARTS = (
    ("weights", "weights_total_gib", "blue"),
    ("activations", "activation_gib", "orange"),
    ("CUDA graphs", "graphs_gib", "purple"),
    ("communication", "communication_gib", "teal"),
    ("reserve", "reserve_gib", "brown"),
    ("KV cache", "cache_gib", "green"),
)
#: lines of the monthly cost and their colours
_MONTH = {
    "depreciation": "blue", "capital": "teal", "rent": "purple", "power": "orange", "colocation": "brown",
    "support": "green", "licence": "red", "staff": "grey",
}  # fmt: skip
#: largest number of accelerators of a node that is drawn
_MOST_DRAWN = 16


#: metric over concurrency → title, and its limit in `safe`
_OVER_USERS = {
    "output_tokens_per_s": ("total throughput [token/s]", ""),
    "output_tokens_per_s_per_request": ("speed per user [token/s]", ""),
}
_TO_AN_SLO = {
    "output_tokens_per_s": ("total throughput [token/s]", ""),
    "tpot_mean_ms": ("mean TPOT [ms], dotted: its limit", "target_tpot_ms"),
    "ttft_mean_ms": ("mean TTFT [ms], dotted: its limit", "target_ttft_ms"),
}


#: concurrencies of a chart, beside those of the question [-]
_CURVE = (1, 2, 4, 8, 16, 32, 64, 128)
#: most points of a line with their values
_NAMED = 10
#: columns of a chart → metric, and its unit in base units
_DRAWN = {"output_tokens_per_s": ("output_rate", 1.0), "tpot_mean_ms": ("tpot", 1e3), "ttft_mean_ms": ("ttft", 1e3)}


def users_rows(planned: Planned, users: Iterable[int]) -> list[dict[str, Any]]:
    """Return chart rows at `users` and a series of concurrencies."""
    rows = []
    for count in sorted({*_CURVE, *users}):
        figures = predict(planned, users=count).figures
        row: dict[str, Any] = {"users": count}
        for column, (name, factor) in _DRAWN.items():
            one = figures.get(name)
            row[column] = one and {end: factor * getattr(one, end) for end in ("value", "low", "high")}
        rows.append(row)
    return rows


def users_charts(
    plans: Sequence[tuple[str, Mapping[str, Any]]], heads: Mapping[str, tuple[str, str]] = _TO_AN_SLO
) -> list[tuple[str, Any]]:
    """Return charts of metrics over concurrency, each with its title.

    `plans`: Name and record of `fit` of each; limits and safe users are those of the first one.
    """
    import altair as alt

    charts = []
    first = (plans[0][1]["safe"] or {}) if plans else {}
    safe = [first["users"]] if first.get("users") else []
    for column, (title, limit) in heads.items():
        rows = [
            {"users": row["users"], "plan": name, **row[column]}
            for name, record in plans
            for row in record["users"]
            if row[column] is not None
        ]
        if not rows:
            continue
        more = {"color": alt.Color("plan:N", title=None, sort=None, legend=_BELOW)} if len(plans) > 1 else {}
        x = alt.X(**log_axis("users", "concurrency", over=[*(row["users"] for row in rows), *safe]))
        chart = band(rows, x, ("value", "low", "high"), title=title, wide=True, **more)
        if len(plans) == 1 and len(rows) <= _NAMED:
            named = rows_chart([row | {"label": short(row["value"])} for row in rows])
            named = named.encode(x=x, y="value:Q", text="label:N")
            chart = alt.layer(chart, *haloed(named, dy=-10))
        if safe:
            chart += rows_chart([{"users": safe[0]}]).mark_rule(strokeDash=[5, 4]).encode(x=x)
        if first.get(limit):
            chart += rows_chart([{"limit": first[limit]}]).mark_rule(strokeDash=[2, 2]).encode(y="limit:Q")
        size = {"width": _SIDE, "height": 290 + (24 + 18 * len(plans)) * (len(plans) > 1)}
        charts.append((title, chart.properties(**size)))
    return charts


def users_words(plans: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """Return the caption of `users_charts`."""
    users = (plans[0][1]["safe"] or {}).get("users")
    words = "Speed over concurrency; bands: 90 % intervals"
    if not users:
        return words
    whose = " of the first plan" if len(plans) > 1 else ""
    return f"{words}; dashed: {users} safe user{'s' * (users != 1)}{whose}"


def users_drawing(plans: Sequence[ReportOption]) -> Drawing | None:
    """Return charts of throughput and speed over concurrency, with bands."""
    import altair as alt

    named = [(one.name, one.record) for one in plans]
    if all(len(one.record["users"]) < 2 for one in plans):  # the table says it
        return None
    charts, words = users_charts(named, _OVER_USERS), users_words(named)
    if not charts:
        return None
    # equal outer sizes, so that two charts side by side are aligned
    fitted = alt.AutoSizeParams(type="fit", contains="padding")
    charts = [(title, chart.properties(autosize=fitted)) for title, chart in charts]
    return Drawing(
        words + ".",
        lambda: [chart_svg(chart, f"{title}. {words}", prefix=f"users{n}") for n, (title, chart) in enumerate(charts)],
    )


#: width of one of two drawings side by side [px]
_SIDE = 400
_BELOW = {"orient": "bottom", "direction": "vertical"}
#: legend with short entries, for narrow screens
_SHORT = {"orient": "bottom", "columns": 3}


def fullest(one: ReportOption) -> Any:
    """Return the GPU with the smallest KV pool; None if memory is unknown."""
    memory = one.record["memory"]
    return min(memory["ranks"], key=lambda row: row["cache_gib"]) if memory and memory["ranks"] else None


def memory_parts(row: Any) -> list[tuple[str, float]]:
    """Return label and size [GiB] of each part of the memory of a GPU."""
    return [(words, float(row[field])) for words, field, _ in _PARTS if row[field] > 0]


def memory_drawing(plans: Sequence[ReportOption]) -> Drawing | None:
    """Return the memory of the fullest GPU of each plan."""
    import altair as alt

    rows, ends = [], []
    for one in plans:
        row = fullest(one)
        if row is None:
            continue
        name = f"{one.name}, {row['label']}"
        start = 0.0
        for words, size in memory_parts(row):
            told = f"{words}: {size:.1f} GiB"
            rows.append({"card": name, "part": words, "from": start, "to": start + size, "told": told})
            start += size
        ends.append({"card": name, "to": row["capacity_gib"], "told": f"{row['capacity_gib']:.1f} GiB in all"})
    if not rows:
        return None
    used = [(words, light(colour)) for words, _, colour in _PARTS if any(row["part"] == words for row in rows)]
    colours = alt.Scale(domain=[words for words, _ in used], range=[colour for _, colour in used])
    y = alt.Y("card:N", title=None, sort=None, axis=None)
    x = alt.X("from:Q", title="GiB; line: memory of the GPU", axis=alt.Axis(tickCount=8))
    bars = rows_chart(rows).mark_bar(height=20).encode(x=x, x2="to:Q", y=y, description="told:N")
    bars = bars.encode(color=alt.Color("part:N", scale=colours, title=None, legend=_SHORT))
    edge = rows_chart(ends).mark_tick(thickness=3, height=26).encode(x="to:Q", y=y, description="told:N")
    words = "Memory of the GPU with the smallest KV pool"
    both = bars + edge.encode(color=alt.value(light("ink")))
    chart = named_bars(both, [str(one["card"]) for one in ends], "card")
    return Drawing(words + ".", lambda: [chart_svg(chart, words, prefix="memory")])


def machine_drawing(one: ReportOption) -> Drawing | None:
    """Return the drawing of a machine; None if it is unknown or too large."""
    from glmplan.costs.network.topology import place

    if one.machine is None or one.machine.host.accelerators_per_node > _MOST_DRAWN:
        return None
    host, plan = one.machine.host, one.record["plan"]
    words = f"The machine of {one.name}: its links" + (f", one of {host.nodes} equal nodes" if host.nodes > 1 else "")
    placed = None
    if plan is not None and plan["dp"] == 1 and plan["replicas"] == 1:
        try:
            placed = place(host, tp=int(plan["tp"]), pp=int(plan["pp"]))
            words += ", stages, and the share of each link in a decode step"
        except GlmplanError:  # more GPUs than a node has, or unpublished links: drawn without loads
            placed = None
    rows = one.record["users"]
    step = rows[-1]["step_time_breakdown"].get("links", 0.0) if rows else None
    return Drawing(words + ".", lambda: [draw_svg(host, placed, step)])


def cost_drawing(plans: Sequence[ReportOption]) -> Drawing | None:
    """Return the monthly cost of each machine, line by line."""
    import altair as alt

    rows = [
        {
            "way": f"{one.record['question']['on']}, {way.paid}",
            "line": name,
            "money": amount,
            "told": f"{name}: {amount:,.0f} {one.currency}",
        }
        for one in plans
        for way in one.ways
        for name, amount in month_lines(way)
    ]
    if not rows:
        return None
    ways = list(dict.fromkeys(str(row["way"]) for row in rows))
    used = [name for name in _MONTH if any(row["line"] == name for row in rows)]
    colours = alt.Scale(domain=used, range=[light(_MONTH[name]) for name in used])
    bars = rows_chart(rows).mark_bar(height=20).encode(
        # few ticks, so that labels do not touch
        x=alt.X("sum(money):Q", title=f"{plans[0].currency} per month", axis=alt.Axis(tickCount=6)),
        color=alt.Color("line:N", scale=colours, title=None, legend=_SHORT),
        description="told:N",
    )  # fmt: skip
    words = "Monthly cost, bought or rented"
    return Drawing(words + ".", lambda: [chart_svg(named_bars(bars, ways, "way"), words, prefix="cost")])
