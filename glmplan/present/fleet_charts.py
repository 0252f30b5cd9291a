"""Charts of a fleet: replicas over time, and goodput over load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmplan.present.charts import band, rows_chart, write_charts

if TYPE_CHECKING:
    from glmplan.simulation.fleets.run import FleetResult
    from glmplan.simulation.goodput import GoodputCurve

__all__ = ["fleet_charts", "goodput_chart"]

#: size of a chart [px]
_WIDTH, _HEIGHT = 370, 220
#: parts of a run over which requests are counted [-]
_PARTS = 100


def goodput_chart(curve: GoodputCurve, path: str | Path, *, title: str) -> None:
    """Write goodput over load with its band, and the probability of the SLO."""
    import altair as alt

    rows = [{"rate": p.rate, "value": p.goodput, "low": p.low, "high": p.high, "kept": p.kept} for p in curve.points]
    x = alt.X("rate:Q", title="requests that arrive [1/s]", scale=alt.Scale(zero=False))
    size = {"width": _WIDTH, "height": _HEIGHT}
    chart = band(rows, x, ("value", "low", "high"), title="requests within the SLO [1/s]")
    marks = [{"rate": curve.knee, "name": "knee"}] + ([{"rate": curve.safe, "name": "safe"}] if curve.safe else [])
    lines = rows_chart(marks).mark_rule(strokeDash=[4, 4]).encode(x="rate:Q")
    names = rows_chart(marks).mark_text(align="left", dx=4, y=8).encode(x="rate:Q", text="name:N")
    kept = (
        rows_chart(rows).mark_line(point=True).encode(x=x, y=alt.Y("kept:Q", title="probability that the SLO is met"))
    )
    charts = [
        ("goodput over load", (chart + lines + names).properties(title="goodput over load", **size)),
        ("SLO met over load", kept.properties(title="SLO met over load", **size)),
    ]
    write_charts(charts, path, title=title)


def fleet_charts(result: FleetResult, path: str | Path, *, title: str) -> None:
    """Write replicas and requests in flight over time."""
    import altair as alt
    import numpy as np

    size = {"width": _WIDTH, "height": _HEIGHT}
    x = alt.X("seconds:Q", title="time [s]")
    charts: list[tuple[str, Any]] = []
    if result.changes:
        rows = [
            {"seconds": one.at, "replicas": count, "group": f"{one.group}, {name}"}
            for one in result.changes
            for name, count in (("ready", one.ready), ("starting", one.starting))
        ]
        line = rows_chart(rows).mark_line(interpolate="step-after")
        line = line.encode(x=x, y=alt.Y("replicas:Q", title="replicas"), color=alt.Color("group:N", title=None))
        charts.append(("replicas over time", line.properties(title="replicas over time", **size)))
    if result.requests is not None and len(result.requests["arrival"]):
        arrival, finish = (np.sort(result.requests[name]) for name in ("arrival", "finish"))
        times = np.linspace(arrival[0], finish[-1], _PARTS)
        there = np.searchsorted(arrival, times, side="right") - np.searchsorted(finish, times, side="right")
        rows = [{"seconds": t, "requests": n} for t, n in zip(times.tolist(), there.tolist(), strict=True)]
        line = rows_chart(rows).mark_line().encode(x=x, y=alt.Y("requests:Q", title="requests in flight"))
        charts.append(("requests in flight over time", line.properties(title="requests in flight over time", **size)))
    write_charts(charts, path, title=title)
