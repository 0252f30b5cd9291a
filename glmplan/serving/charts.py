"""Charts of a simulation as one HTML page: batch and KV over time, distributions, latency against load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.facts.files import write_atomically
from glmplan.serving.safe_load import SafeLoad
from glmplan.serving.simulate import Outcome
from glmplan.serving.traffic.promises import Target

__all__ = ["safe_page", "simulation_page"]

_POINTS = 600
_WIDTH, _HEIGHT = 640, 220


def _page(chart: Any, title: str, path: str | Path) -> None:
    import importlib.util

    # with vl-convert the page carries its scripts and opens without a network
    inline = importlib.util.find_spec("vl_convert") is not None
    text = chart.properties(title=title).to_html(inline=inline)
    write_atomically(path, text)


def _line(rows: list[dict[str, Any]], x: str, y: str, colour: str | None = None, log: bool = False) -> Any:
    import altair as alt

    scale = alt.Scale(type="log") if log else alt.Undefined
    encoding: dict[str, Any] = {"x": alt.X(f"{x}:Q", scale=scale), "y": alt.Y(f"{y}:Q")}
    if colour:
        encoding["color"] = alt.Color(f"{colour}:N")
    data = alt.Data(values=rows)
    return alt.Chart(data).mark_line().encode(**encoding).properties(width=_WIDTH, height=_HEIGHT)


def _timeline(segments: np.ndarray, block_size: int) -> list[dict[str, Any]]:
    """Batch and tokens in the cache, averaged over equal parts of the run."""
    at, steps, seconds, slope, n, total, _, blocks = segments
    span = steps * (seconds + slope * (steps - 1) / 2)
    edges = np.linspace(at.min(), (at + span).max(), _POINTS + 1)
    tokens = np.where(blocks < 0, total + n * steps / 2, blocks * block_size)
    rows = []
    reached = {}
    order = np.argsort(at, kind="stable")
    ends = (at + span)[order]
    for name, values in (("batch", n), ("kv_tokens", tokens)):
        # the integral over time is piecewise linear between the ends of runs
        area = np.r_[0.0, (values * span)[order].cumsum()]
        reached[name] = np.diff(np.interp(edges, np.r_[at.min(), ends], area)) / np.diff(edges)
    for i in range(_POINTS):
        rows.append({"time_s": float(edges[i]), **{name: float(values[i]) for name, values in reached.items()}})
    return rows


def simulation_page(
    outcome: Outcome,
    path: str | Path,
    *,
    title: str,
    block_size: int = 16,
    curve: Sequence[dict[str, float]] = (),
    load_name: str = "users",
) -> None:
    """Write the charts of one simulation.

    Parameters
    ----------
    outcome : Outcome
        A simulation with its timeline.
    path : path
        The HTML file.
    title : str
        Title of the page.
    block_size : int, optional
        Tokens of a block, [token]
    curve : sequence of dict, optional
        Summaries at several loads.
    load_name : str, optional
        What the load counts.

    Raises
    ------
    SpecError
        If the file cannot be written.
    """
    import altair as alt

    parts = []
    if outcome.timeline is not None and outcome.timeline.shape[1]:
        rows = _timeline(outcome.timeline, block_size)
        parts += [_line(rows, "time_s", "batch"), _line(rows, "time_s", "kv_tokens")]
    percents = tuple(np.r_[0.5:99.6:0.5].tolist())
    for name in ("ttft", "tpot", "e2e"):
        values = outcome.times[name].percentiles(percents)
        rows = [
            {f"{name}_ms": 1000 * value, "share": percent / 100}
            for value, percent in zip(values, percents, strict=True)
            if value > 0
        ]
        if rows:
            parts.append(_line(rows, f"{name}_ms", "share", log=True))
    for metric in ("ttft", "tpot") if curve else ():
        rows = [
            {load_name: row["load"], f"{metric}_ms": row[f"{metric}_{statistic}_ms"], "statistic": statistic}
            for row in curve
            for statistic in ("mean", "p50", "p95", "p99")
            if np.isfinite(row[f"{metric}_{statistic}_ms"])
        ]
        parts.append(_line(rows, load_name, f"{metric}_ms", "statistic"))
    _page(alt.vconcat(*parts), title, path)


def safe_page(found: SafeLoad, targets: Sequence[Target], path: str | Path, *, title: str) -> None:
    """Write the charts of a search for the largest safe load.

    Parameters
    ----------
    found : SafeLoad
        The answer.
    targets : sequence of Target
        The promise.
    path : path
        The HTML file.
    title : str
        Title of the page.

    Raises
    ------
    SpecError
        If the file cannot be written.
    """
    import altair as alt

    load = found.unit.replace("/", " per ")
    parts = []
    for target in targets:
        rows = [
            {load: point.load, target.name: point.summary[target.name], "safe": "yes" if point.safe else "no"}
            for point in found.points
            if np.isfinite(point.summary[target.name])
        ]
        bound = alt.Chart(alt.Data(values=[{"bound": target.bound * 1000}])).mark_rule(strokeDash=[6, 4])
        points = _line(rows, load, target.name).mark_line(point=True)
        parts.append(points + bound.encode(y="bound:Q"))
    _page(alt.vconcat(*parts), title, path)
