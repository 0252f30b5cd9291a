"""What a report's answer stands on: risks, assumptions with their sources, evidence, and the check after delivery."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.catalog.files import read_json
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.json_names import upgrade_fit
from glmplan.io.machines.resolve import Machine, resolve_machine
from glmplan.planner.launch import DEGREES, degrees_set, validate_command
from glmplan.planner.text import number
from glmplan.present.charts import band, chart_svg, log_axis, named_bars, rows_chart
from glmplan.present.host_drawing import draw_svg
from glmplan.present.json_answers import SCHEMA
from glmplan.present.page import Block, Code, Drawing, Heading, Points, Table, Text, light
from glmplan.purchase.cost import per_million
from glmplan.purchase.money import Money, Way, watts_of, ways_of
from glmplan.units import Usd

__all__ = [
    "Considered",
    "assumptions",
    "at_one_term",
    "checks",
    "considered",
    "cost_drawing",
    "evidence",
    "fullest",
    "is_plan",
    "machine_drawing",
    "memory_drawing",
    "memory_parts",
    "month_lines",
    "read_plan",
    "risks",
    "row_at",
    "users_drawing",
]


# Plans that a report compares: the record of `glmplan fit`, its machine, and what the machine costs.


@dataclass(frozen=True)
class Considered:
    """One of the plans.

    Attributes
    ----------
    record : dict
        What `glmplan fit --format json` wrote.
    machine : Machine or None
        Its machine; None where it is not known here.
    ways : tuple of Way
        What the machine costs, the cheapest first.
    kw : float or None
        Draw at the wall, [kW]
    utilisation : float
        Mean load over the load that is served, [-]
    currency : str
        Of all money.
    """

    record: Mapping[str, Any]
    machine: Machine | None
    ways: tuple[Way, ...]
    kw: float | None
    utilisation: float
    currency: str = "USD"

    @property
    def name(self) -> str:
        """Model, checkpoint and machine."""
        asked = self.record["question"]
        return f"{asked['model']} {asked['checkpoint']} on {asked['on']}"

    @property
    def paid(self) -> Way | None:
        """The cheapest way whose price is known."""
        return next((way for way in self.ways if way.usd is not None), None)

    @property
    def works(self) -> bool:
        """Whether the plan can be served."""
        return self.record["verdict"] in ("fits", "tight") and bool(self.record["users"])

    def per_million(self, users: int) -> Usd | None:
        """Cost of a million output tokens.

        - `users`: Users at once, a row of the table.
        - Returns: None where no price or no rate is known.
        """
        row = row_at(self.record, users)
        if self.paid is None or self.paid.usd is None or row is None:
            return None
        return float(per_million(self.paid.usd, row["output_tokens_per_s"]["value"], self.utilisation))


def row_at(record: Mapping[str, Any], users: int) -> Mapping[str, Any] | None:
    """The row of a number of users.

    Returns: None where the table has no such row.
    """
    return next((row for row in record["users"] if row["users"] == users), None)


def at_one_term(records: Iterable[Mapping[str, Any]], money: Money) -> Money:
    """Return prices and terms with one term of rent for all plans.

    Returns: As `Money.at_one_term` says, of the machines that are known here.
    """
    machines = [_machine(record) for record in records]
    return money.at_one_term(one for one in machines if one is not None)


def _machine(record: Mapping[str, Any]) -> Machine | None:
    try:
        return resolve_machine(str(record["question"]["on"]))
    except SpecError:
        return None


def considered(record: Mapping[str, Any], money: Money) -> Considered:
    """Price the machine of a plan.

    Returns: The plan with its costs; without them where the machine is not known here.
    """
    machine = _machine(record)
    if machine is None:
        return Considered(record, None, (), None, money.terms.utilisation, money.terms.currency)
    watts, _ = watts_of(machine, money)
    kw = None if watts is None else watts / 1000.0
    return Considered(record, machine, ways_of(machine, money), kw, money.terms.utilisation, money.terms.currency)


def month_lines(way: Way) -> list[tuple[str, float]]:
    """What a month is made of.

    Returns: Name and amount of each line that costs something, [unit of money].
    """
    lines = () if way.month is None else way.month.lines
    return [(name, float(np.asarray(amount))) for name, amount in lines if np.asarray(amount) > 0]


def is_plan(path: str) -> bool:
    """Return True if an argument names a JSON file with a schema, not a model."""
    file = Path(path)
    if file.suffix != ".json" or not file.is_file():
        return False
    content = read_json(file)
    return isinstance(content, dict) and "schema" in content


def read_plan(path: str | Path) -> dict[str, Any]:
    """Return a plan that `glmplan fit --format json` wrote, also one of the previous schema."""
    content = upgrade_fit(read_json(path))
    found = content.get("schema") if isinstance(content, dict) else None
    if found != SCHEMA:
        raise SpecError(f"is no plan of glmplan fit --format json: its schema must be {SCHEMA}", file=path, value=found)
    for name in ("question", "users", "warnings", "changes", "assumed"):
        if not isinstance(content.get(name), dict if name == "question" else list):
            raise SpecError("is missing or of another kind than in a plan", file=path, field=name)
    return dict(content)


#: the worst first
_ORDER = ("error", "danger", "warning", "memory", "quality", "unknown", "slow", "fallback", "note")


def risks(plans: Sequence[Considered]) -> list[Block]:
    """Walls, hazards and what nobody published."""
    blocks: list[Block] = [Heading("Risks")]
    for one in plans:
        told = sorted(
            one.record["warnings"], key=lambda w: _ORDER.index(w["severity"]) if w["severity"] in _ORDER else 99
        )
        rows = tuple((w["title"], w["severity"], w["effect"] or w["applied"], w["action"], w["source"]) for w in told)
        if rows:
            heads = ("risk", "how bad", "what happens", "what to do", "source")
            blocks.append(Table(f"{one.name}: walls of the engine and hazards of the machine", heads, rows,
                                left=(0, 1, 2, 3, 4)))  # fmt: skip
        else:
            blocks.append(Text(f"{one.name}: no wall of the engine and no hazard of the machine is known."))
        missing = [*one.record["unknown"], *one.record["reasons"]]
        if missing:
            blocks.append(Points(tuple(f"{one.name}: {text}" for text in missing)))
        stale = [text for way in one.ways for text in way.stale]
        if stale:
            blocks.append(Points(tuple(f"old price: {text}" for text in dict.fromkeys(stale))))
    return blocks


def assumptions(plans: Sequence[Considered], money: Money) -> list[Block]:
    """What was taken for granted, with where it is from."""
    taken = dict.fromkeys(text for one in plans for text in one.record["assumed"])
    rows = []
    for one in plans:
        asked = one.record["question"]
        source = asked.get("source") or asked["repository"] or "given with the question"
        rows.append((f"{asked['model']} {asked['checkpoint']}", "weights", source))
    fits = ", ".join(dict.fromkeys(file for one in plans for file in one.record["fits"])) or "formulas alone"
    rows.append(("speeds and memory", fits, "runs in calibration/measurements; sources in calibration/sources.toml"))
    rows += [row for one in plans for row in _prices(one)]
    rows += _terms(money)
    blocks: list[Block] = [Heading("Assumptions and sources")]
    if taken:
        blocks.append(Points(tuple(taken)))
    heads = ("what", "taken as", "source")
    blocks.append(Table("Facts and prices", heads, tuple(dict.fromkeys(rows)), left=(0, 1, 2)))
    notes = dict.fromkeys(money.terms.notes)
    return [*blocks, *([Points(tuple(notes))] if notes else [])]


def _prices(one: Considered) -> list[tuple[str, str, str]]:
    bought = next((way.purchase for way in one.ways if way.purchase is not None), None)
    found = []
    for line in bought.lines if bought is not None else ():
        said = line.quotation
        if said is None:
            found.append((line.name, "no price", line.note))
        else:
            sources = sorted({price.source for price in said.entries})
            more = f" and {len(sources) - 2} more" if len(sources) > 2 else ""
            found.append((line.name, f"{line.count:g} × {said.words}", "; ".join(sources[:2]) + more))
    return found


def _terms(money: Money) -> list[tuple[str, str, str]]:
    from glmplan.catalog.entries.prices import load_terms

    found = []
    for name, term in load_terms().items():
        used = getattr(money.terms, name, None)
        if used is None or not used:
            continue
        source = f"{term.source}, {term.date}" if used == term.value else "given with the question"
        found.append((term.what, f"{used:g} {term.unit}".strip(), source))
    return found


def evidence(plans: Sequence[Considered], load: int | None) -> list[Block]:
    """How sure the answer is, and how to know it better.

    `load`: Users at once at which plans are compared.
    """
    blocks: list[Block] = [Heading("How sure")]
    items = []
    for one in plans:
        record = one.record
        if record["evidence"]:
            items.append(f"{one.name}, served by {record['question']['engine']}: {record['evidence']}")
        if record["basis"]:
            items.append(f"{one.name}, speeds: {record['basis']}")
        row = None if load is None else row_at(record, load)
        if row is not None and row["out_of_domain"]:
            items.append(f"{one.name}, outside of what was measured: {row['out_of_domain']}")
    items.append(
        "every range is a 90 % interval: of ten figures that are measured later, nine should lie inside; how often "
        "they did on runs that no fit had seen stands in docs/accuracy.md"
    )
    items.append("the safe number of users takes the bad end of each interval, the other one the middle")
    blocks.append(Points(tuple(items)))
    if not plans[0].works:
        return blocks
    asked = plans[0].record["question"]
    blocks.append(Text("What to measure or to ask first, because it moves the answer most:"))
    blocks.append(
        Code(shlex.join(["glmplan", "sensitivity", f"{asked['model']}-{asked['checkpoint']}", "--on", asked["on"]]))
    )
    return blocks


def checks(one: Considered, load: int | None) -> list[Block]:
    """How to check the machine after delivery: the command, and what must come out.

    Notes
    -----
    Bounds are the bad ends of the 90 % intervals: what lies beyond them is more than the prediction's own doubt. A
    seller is held to a promise instead, which `glmplan size --acceptance-test` writes.
    """
    record, plan = one.record, one.record["plan"]
    blocks: list[Block] = [Heading("How to check after delivery")]
    if not one.works or plan is None or load is None:
        return [*blocks, Text("There is nothing to start, so there is nothing to check.")]
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
    words = "Measure it from beside it; the exit code is 1 where more figures lie outside than chance allows:"
    blocks += [Text(words), Code(command)]
    bounds = tuple(
        (f"{row['users']:,}", _end(row["ttft_mean_ms"], "high"), _end(row["tpot_mean_ms"], "high"),
         _end(row["output_tokens_per_s"], "low")) for row in rows
    )  # fmt: skip
    heads = (
        "users at once",
        "TTFT, mean, at most [ms]",
        "TPOT, mean, at most [ms]",
        "all together, at least [token/s]",
    )
    blocks.append(Table("Beyond these the machine is not what was planned", heads, bounds))
    printed = record["memory"]["engine_reported_tokens"] if record["memory"] else None
    if printed:
        ends = f"{printed['low']:,} to {printed['high']:,} tokens, {printed['value']:,} in the mean"
        blocks.append(Text(f"At its start the engine prints the size of its cache; expected are {ends}."))
    return blocks


def _end(figure: Any, end: str) -> str:
    return "unknown" if figure is None else number(figure[end])


# The pictures of a report: speed over users, memory of the fullest card, the machine, money.

#: parts of a card's memory: words, field of the record, colour
_PARTS = (
    ("weights", "weights_total_gib", "blue"),
    ("activations", "activation_gib", "orange"),
    ("CUDA graphs", "graphs_gib", "purple"),
    ("communication", "communication_gib", "teal"),
    ("reserve", "reserve_gib", "brown"),
    ("KV cache", "cache_gib", "green"),
)
#: lines of a month and their colours
_MONTH = {
    "depreciation": "blue", "capital": "teal", "rent": "purple", "power": "orange", "colocation": "brown",
    "support": "green", "licence": "red", "staff": "grey",
}  # fmt: skip
#: accelerators of a node that are still drawn [-]
_MOST_DRAWN = 16


def users_drawing(plans: Sequence[Considered]) -> Drawing | None:
    """Speed of all and of each over the number of users, with the intervals as bands."""
    import altair as alt

    charts = []
    heads = {"output_tokens_per_s": "all together [token/s]", "output_tokens_per_s_per_request": "each [token/s]"}
    safe = {one.record["safe"]["users"] for one in plans[:1] if one.record["safe"] and one.record["safe"]["users"]}
    for column, title in heads.items():
        rows = [
            {"users": row["users"], "plan": one.name, **row[column]}
            for one in plans
            for row in one.record["users"]
            if row[column] is not None
        ]
        if not rows:
            continue
        more = {"color": alt.Color("plan:N", title=None, sort=None, legend=_BELOW)} if len(plans) > 1 else {}
        x = alt.X(**log_axis("users", "users at once", over=[*(row["users"] for row in rows), *safe]))
        chart = band(rows, x, ("value", "low", "high"), title=title, wide=True, **more)
        rule = rows_chart([{"users": one} for one in safe]).mark_rule(strokeDash=[5, 4]).encode(x=x)
        # of one size with all that stands around them, so that two side by side stand on one line
        size = {"width": _SIDE, "height": 290 + (24 + 18 * len(plans)) * (len(plans) > 1)}
        fitted = alt.AutoSizeParams(type="fit", contains="padding")
        charts.append((title, (chart + rule if safe else chart).properties(**size, autosize=fitted)))
    if not charts:
        return None
    words = "Speed over users at once; bands: 90 % intervals"
    words += f"; dashed: {max(safe)} user{'s' * (max(safe) != 1)}, the safe number of the first plan" if safe else ""
    return Drawing(
        words + ".",
        lambda: [chart_svg(chart, f"{title}. {words}", prefix=f"users{n}") for n, (title, chart) in enumerate(charts)],
    )


#: width of one of two drawings side by side [px]
_SIDE = 400
_BELOW = {"orient": "bottom", "direction": "vertical"}
#: the same where entries are short: as many side by side as a narrow screen has room for
_SHORT = {"orient": "bottom", "columns": 3}


def fullest(one: Considered) -> Any:
    """The card with the least room for the cache.

    Returns: Its row of the record; None where no memory is known.
    """
    memory = one.record["memory"]
    return min(memory["ranks"], key=lambda row: row["cache_gib"]) if memory and memory["ranks"] else None


def memory_parts(row: Any) -> list[tuple[str, float]]:
    """What a card holds.

    Returns: Words and size of each part that is there, [GiB].
    """
    return [(words, float(row[field])) for words, field, _ in _PARTS if row[field] > 0]


def memory_drawing(plans: Sequence[Considered]) -> Drawing | None:
    """The memory of the fullest card of each plan."""
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
    x = alt.X("from:Q", title="GiB; the line ends what programs can use", axis=alt.Axis(tickCount=8))
    bars = rows_chart(rows).mark_bar(height=20).encode(x=x, x2="to:Q", y=y, description="told:N")
    bars = bars.encode(color=alt.Color("part:N", scale=colours, title=None, legend=_SHORT))
    edge = rows_chart(ends).mark_tick(thickness=3, height=26).encode(x="to:Q", y=y, description="told:N")
    words = "Memory of the card with the least room for the cache"
    both = bars + edge.encode(color=alt.value(light("ink")))
    chart = named_bars(both, [str(one["card"]) for one in ends], "card")
    return Drawing(words + ".", lambda: [chart_svg(chart, words, prefix="memory")])


def machine_drawing(one: Considered) -> Drawing | None:
    """The links of a machine, with the loads of the plan on it.

    Returns: None where the machine is not known here, or a node has too many accelerators for a picture.
    """
    from glmplan.costs.network.topology import place

    if one.machine is None or one.machine.host.accelerators_per_node > _MOST_DRAWN:
        return None
    host, plan = one.machine.host, one.record["plan"]
    words = f"The machine of {one.name}: its links" + (f", one of {host.nodes} equal nodes" if host.nodes > 1 else "")
    placed = None
    if plan is not None and plan["dp"] == 1 and plan["replicas"] == 1:
        try:
            placed = place(host, tp=int(plan["tp"]), pp=int(plan["pp"]))
            words += ", stages, and how full the plan makes each link in its busiest phase"
        except GlmplanError:  # more cards than a node has, or links that nobody published: drawn without loads
            placed = None
    return Drawing(words + ".", lambda: [draw_svg(host, placed)])


def cost_drawing(plans: Sequence[Considered]) -> Drawing | None:
    """What a month of each machine costs, line by line."""
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
        # few marks: where labels would touch, some are left out
        x=alt.X("sum(money):Q", title=f"{plans[0].currency} a month", axis=alt.Axis(tickCount=6)),
        color=alt.Color("line:N", scale=colours, title=None, legend=_SHORT),
        description="told:N",
    )  # fmt: skip
    words = "Cost of a month, bought or rented"
    return Drawing(words + ".", lambda: [chart_svg(named_bars(bars, ways, "way"), words, prefix="cost")])
