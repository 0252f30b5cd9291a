"""Charts of a fleet: replicas over time, and goodput over load."""

from __future__ import annotations

from collections.abc import Mapping
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
    # a knee at the largest rate was not seen
    last = curve.points[-1].rate
    marks = [{"rate": rate, "name": name} for rate, name in ((curve.knee, "knee"), (curve.safe, "safe")) if rate]
    marks = [one for one in marks if one != {"rate": last, "name": "knee"}]
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


def fleet_charts(result: FleetResult, path: str | Path, *, title: str, begun: Mapping[str, int]) -> None:
    """Write replicas and requests in flight over time.

    `begun`: Replicas of each group at the start.
    """
    import altair as alt
    import numpy as np

    size = {"width": _WIDTH, "height": _HEIGHT}
    ends = [change.at for change in result.changes]
    if result.requests is not None and len(result.requests["finish"]):
        ends.append(float(result.requests["finish"].max()))
    end = max(ends, default=1.0)
    x = alt.X("seconds:Q", title="time [s]", scale=alt.Scale(domain=[0.0, end], nice=False))
    rows = [
        {"seconds": at, "replicas": count, "group": f"{group}, {name}"}
        for group, replicas in begun.items()
        for at, ready, starting in _history(result, group, replicas, end)
        for name, count in (("ready", ready), ("starting", starting))
    ]
    line = rows_chart(rows).mark_line(interpolate="step-after")
    y = alt.Y("replicas:Q", title="replicas", axis=alt.Axis(tickMinStep=1), scale=alt.Scale(zero=True))
    line = line.encode(x=x, y=y, color=alt.Color("group:N", title=None))
    charts: list[tuple[str, Any]] = [("replicas over time", line.properties(title="replicas over time", **size))]
    if result.requests is not None and len(result.requests["arrival"]):
        arrival, finish = (np.sort(result.requests[name]) for name in ("arrival", "finish"))
        times = np.linspace(arrival[0], finish[-1], _PARTS)
        there = np.searchsorted(arrival, times, side="right") - np.searchsorted(finish, times, side="right")
        rows = [{"seconds": t, "requests": n} for t, n in zip(times.tolist(), there.tolist(), strict=True)]
        line = rows_chart(rows).mark_line().encode(x=x, y=alt.Y("requests:Q", title="requests in flight"))
        charts.append(("requests in flight over time", line.properties(title="requests in flight over time", **size)))
    write_charts(charts, path, title=title)


def _history(result: FleetResult, group: str, begun: int, end: float) -> list[tuple[float, int, int]]:
    """Return time, ready and starting replicas over the whole run."""
    rows = [(0.0, begun, 0), *((one.at, one.ready, one.starting) for one in result.changes if one.group == group)]
    return [*rows, (end, *rows[-1][1:])]
