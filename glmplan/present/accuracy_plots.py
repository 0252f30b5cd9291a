"""Draw the plots of the accuracy page."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from glmplan.calibrate.backtest.accuracy import LARGE, Accuracy
from glmplan.calibrate.step.crossvalidate import MODES
from glmplan.extras import at_hand
from glmplan.present.charts import chart_svg, log_axis, rows_chart, standalone
from glmplan.present.page import light

__all__ = ["accuracy_plots"]

#: bins for each decade of the measured value [-]
_BINS = 8
_FIGURES = (("TPOT", "ms"), ("TTFT", "ms"), ("throughput", "token/s"))


def accuracy_plots(found: Accuracy) -> dict[str, tuple[str, bytes]]:
    """Draw the plots.

    Returns: Title → file name and SVG; empty without the extra `png`.
    """
    if not at_hand("vl_convert"):
        return {}
    drawn = {
        "Predicted against measured, whole groups left out": ("predicted.svg", _predicted(found)),
        "Error by group, whole groups left out": ("groups.svg", _by_group(found)),
        "Coverage of the 90 % interval": ("coverage.svg", _coverage(found)),
    }
    if found.reliability:
        drawn["Stated probabilities and observed frequencies"] = ("probabilities.svg", _reliability(found))
    return {title: (name, standalone(chart_svg(one, title)).encode()) for title, (name, one) in drawn.items()}


def _predicted(found: Accuracy) -> Any:
    import altair as alt

    table, parts = found.table, []
    for figure, unit in _FIGURES:
        mine = table.figure == figure
        mine &= ~np.isnan(table.predicted["group"])
        if not mine.any():
            continue
        measured = table.measured[mine]
        predicted = measured * np.exp(np.clip(table.predicted["group"][mine], -5, 5))
        places = np.round(_BINS * np.log10(np.stack([measured, predicted]))).T
        spots, counts = np.unique(places, axis=0, return_counts=True)
        values = [
            {"measured": float(10 ** (x / _BINS)), "predicted": float(10 ** (y / _BINS)), "runs": int(n)}
            for (x, y), n in zip(spots, counts, strict=True)
        ]
        ends = [float(measured.min()), float(measured.max())]
        x = alt.X(**log_axis("measured", f"measured [{unit}]"))
        y = alt.Y(**log_axis("predicted", f"predicted [{unit}]"))
        size = alt.Size("runs:Q", scale=alt.Scale(range=[6, 150]), legend=None)
        spots_chart = rows_chart(values).mark_circle(opacity=0.6).encode(x=x, y=y, size=size)
        diagonal = rows_chart([{"measured": end, "predicted": end} for end in ends])
        line = diagonal.mark_line(color=light("ink"), strokeWidth=1).encode(x=x, y=y)
        parts.append((spots_chart + line).properties(width=240, height=240, title=figure))
    return alt.hconcat(*parts)


def _by_group(found: Accuracy) -> Any:
    import altair as alt

    parts = []
    for dimension in ("accelerator", "engine", "concurrency"):
        values = [
            {"group": one.group, "figure": one.figure, "median": 100 * one.score.median, "p90": 100 * one.score.p90}
            for one in found.groups
            if one.mode == "group" and one.dimension == dimension and one.figure in ("TPOT", "TTFT")
            and one.score.count >= 30
        ]  # fmt: skip
        # bands of concurrency by their first number
        names = sorted({str(one["group"]) for one in values})
        order = sorted(names, key=lambda name: int(re.split(r"\D", name)[0])) if dimension == "concurrency" else names
        base = rows_chart(values).properties(width=230, title=f"by {dimension}")
        error = log_axis("median", "error, median to 90th percentile [%]", domain=[3, 500], clamp=True)
        rule = base.mark_rule(opacity=0.5).encode(
            y=alt.Y("group:N", title=None, sort=order),
            x=alt.X(**error),
            x2="p90:Q",
            yOffset="figure:N",
            color=alt.Color("figure:N", title=None),
        )
        spot = base.mark_point(filled=True, size=40).encode(
            y=alt.Y("group:N", sort=order), x=alt.X(**error), yOffset="figure:N", color="figure:N"
        )
        parts.append(rule + spot)
    return alt.hconcat(*parts)


def _coverage(found: Accuracy) -> Any:
    import altair as alt

    table, values = found.table, []
    lowest = 60.0
    for mode in MODES:
        for dimension, groups in table.groups.items():
            for group in np.unique(groups):
                mine = (groups == group) & ~np.isnan(table.predicted[mode])
                if mine.sum() >= LARGE:
                    share = 100 * float(table.inside[mode][mine].mean())
                    values.append({"left out": mode, "by": dimension, "group": str(group), "coverage": share})
                    # every group stands on the axis, also the least covered
                    lowest = min(lowest, 5.0 * (share // 5.0))
    spots = (
        rows_chart(values)
        .mark_tick(thickness=2)
        .encode(
            x=alt.X("coverage:Q", scale=alt.Scale(domain=[lowest, 100]), title="inside of the 90 % interval [%]"),
            y=alt.Y("left out:N", sort=list(MODES), title="left out"),
            color=alt.Color("by:N", title="large groups by"),
            detail=alt.Detail("group:N"),
        )
    )
    goal = rows_chart([{"coverage": 90}]).mark_rule(strokeDash=[4, 3]).encode(x="coverage:Q")
    return (spots + goal).properties(width=420, height=160)


def _reliability(found: Accuracy) -> Any:
    import altair as alt

    values = [
        {"metric": one.name, "stated": 100 * part.stated, "observed": 100 * part.frequency,
         "low": 100 * max(part.frequency - part.chance, 0.0), "high": 100 * min(part.frequency + part.chance, 1.0)}
        for one in found.reliability for part in one.bins
    ]  # fmt: skip
    share = alt.Scale(domain=[0, 100])
    base = rows_chart(values).encode(
        x=alt.X("stated:Q", scale=share, title="stated [%]"),
        color=alt.Color("metric:N", sort=[one.name for one in found.reliability], title=None),
    )
    y = alt.Y("observed:Q", scale=share, title="observed, each group one vote [%]")
    spots = base.mark_point(filled=True, size=30).encode(y=y)
    bars = base.mark_rule(opacity=0.4).encode(y=alt.Y("low:Q"), y2="high:Q")
    diagonal = rows_chart([{"stated": end, "observed": end} for end in (0, 100)])
    line = diagonal.mark_line(color=light("ink"), strokeWidth=1).encode(x="stated:Q", y=y)
    return (line + bars + spots).properties(width=300, height=300)
