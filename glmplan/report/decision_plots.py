"""The pictures of a report: speed over users, memory of the fullest card, the machine, money."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glmplan.errors import GlmplanError
from glmplan.report.charts import band, chart_svg, log_axis, named_bars, rows_chart
from glmplan.report.considered import Considered, month_lines
from glmplan.report.document import Drawing
from glmplan.report.host_drawing import draw_svg
from glmplan.report.palette import light

__all__ = ["cost_drawing", "fullest", "machine_drawing", "memory_drawing", "memory_parts", "users_drawing"]

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
    """Speed of all and of each over the number of users, with the intervals as bands.

    Parameters
    ----------
    plans : sequence of Considered
        The plans.

    Returns
    -------
    Drawing or None
        None where no speed is known.
    """
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

    Parameters
    ----------
    one : Considered
        A plan.

    Returns
    -------
    mapping or None
        Its row of the record; None where no memory is known.
    """
    memory = one.record["memory"]
    return min(memory["ranks"], key=lambda row: row["cache_gib"]) if memory and memory["ranks"] else None


def memory_parts(row: Any) -> list[tuple[str, float]]:
    """What a card holds.

    Parameters
    ----------
    row : mapping
        A rank of the record.

    Returns
    -------
    list of (str, float)
        Words and size of each part that is there, [GiB]
    """
    return [(words, float(row[field])) for words, field, _ in _PARTS if row[field] > 0]


def memory_drawing(plans: Sequence[Considered]) -> Drawing | None:
    """The memory of the fullest card of each plan.

    Parameters
    ----------
    plans : sequence of Considered
        The plans.

    Returns
    -------
    Drawing or None
        None where no memory is known.
    """
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

    Parameters
    ----------
    one : Considered
        The plan.

    Returns
    -------
    Drawing or None
        None where the machine is not known here, or a node has too many accelerators for a picture.
    """
    from glmplan.physics.network.placement import place

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
    """What a month of each machine costs, line by line.

    Parameters
    ----------
    plans : sequence of Considered
        The plans.

    Returns
    -------
    Drawing or None
        None where no price is known.
    """
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
