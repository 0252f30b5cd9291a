"""Charts as drawings that need nothing else: SVG, PNG, and pages without scripts.

A chart is described with Altair and drawn at once. What a pointer rests on tells its figures; on a dark screen the
colours change; a page opens without a network, prints, and is read by a screen reader.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.catalog.files import write_atomically
from glmplan.errors import SpecError, printable
from glmplan.extras import check_extra, wanted
from glmplan.present.page import SERIES, dark_rules, escape, figure, light, page
from glmplan.simulation.safe_load import SafeLoad, load_curve
from glmplan.simulation.simulate import Outcome, Service
from glmplan.simulation.traffic.slo import Target
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import TokenCount

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "FORMS",
    "Curves",
    "band",
    "chart_svg",
    "check_chart",
    "curves_of",
    "log_axis",
    "named_bars",
    "rows_chart",
    "safe_charts",
    "simulation_charts",
    "spoken",
    "standalone",
    "sweep_chart",
    "tornado_chart",
    "write_chart",
    "write_charts",
]


#: endings of files that a chart is written to
FORMS: tuple[str, ...] = (".html", ".png", ".svg")
#: room that letters are given over what they need: fonts of readers differ [-]
_ROOM = 1.16
#: where a logarithmic axis may have its labels
_TICKS = [lead * 10.0**power for power in range(-4, 10) for lead in (1, 2, 5)]
#: what an axis spans at most that has labels at 1, 2 and 5; of a longer one, some would have no room [-]
_FAR = 500.0
#: labels that an axis has at least; how far it reaches to both sides of one single value [-]
_LABELS, _AROUND = 3, 1.25
#: where a mark of a drawing stands
_PLACE = re.compile(r' (?:d|transform|x|y|[xy][12]|c[xy]|r|width|height|viewBox)="[^"]*"')
#: a computed figure with more digits than anybody reads
_LONG = re.compile(r"(?<![\w.-])\d+\.\d{5,}(?![\w.])")
#: thousands apart, what is smaller as it is
_NUMBER = "datum.value >= 1 ? format(datum.value, ',~f') : format(datum.value, '~g')"


def check_chart(path: str | Path, *, field: str = "--plot") -> None:
    """Refuse a file that no chart can be written to, before anything is computed.

    Examples
    --------
    >>> check_chart("a.gif")
    Traceback (most recent call last):
    glmplan.errors.SpecError: --plot: '.gif' is no kind of chart; nearest: ...
    """
    path = Path(path)
    if path.suffix not in FORMS:
        raise SpecError("is no kind of chart", field=field, value=path.suffix or path.name, choices=FORMS)
    check_extra("vl_convert", field=field)


def _theme() -> dict[str, Any]:
    """How every chart looks."""
    ink, faint, line = light("ink"), light("faint"), light("line")
    text: dict[str, Any] = {"labelColor": ink, "titleColor": ink, "titleFontWeight": "normal"}
    text |= {"labelFontSize": 11 * _ROOM, "titleFontSize": 12 * _ROOM}
    axis = {"gridColor": line, "domainColor": faint, "tickColor": faint, "labelLimit": 400}
    marks = {
        "line": {"strokeWidth": 2},
        "area": {"opacity": 0.22},
        "rule": {"color": ink},
        "text": {"color": ink, "fontSize": 11 * _ROOM},
    }
    return {
        "background": light("paper"),
        "font": "Arial, Liberation Sans, Helvetica, sans-serif",
        "view": {"stroke": None},
        "mark": {"color": light(SERIES[0])},
        "range": {"category": [light(name) for name in SERIES]},
        "axis": {**axis, **text, "titlePadding": 8},
        # every other label stays where all have no room: equal steps look equal
        "axisQuantitative": {"labelOverlap": "parity", "labelSeparation": 8},
        "legend": {**text, "labelLimit": 400},
        "title": {"color": ink, "fontSize": 14 * _ROOM, "anchor": "start", "offset": 10},
        **marks,
    }


def log_axis(name: str, title: str, *, over: Iterable[float] = (), **more: Any) -> dict[str, Any]:
    """A logarithmic axis whose labels stand apart and are written out.

    `over`: What is drawn along it, above zero: labels are chosen so that there are some, [of `title`].

    Examples
    --------
    >>> log_axis("users", "users at once")["shorthand"]
    'users:Q'
    """
    import altair as alt

    over = list(over)
    low, high = more.get("domain", (min(over), max(over)) if over else (0.0, math.inf))
    if low == high:
        low, high = low / _AROUND, high * _AROUND
        more = {"domain": [low, high]} | more
    # labels stand at unequal distances: as many as have room
    labels = [one for one in _labels(low, high) if "domain" not in more or low <= one <= high]
    axis = alt.Axis(labelExpr=_NUMBER, labelOverlap="greedy", values=labels)
    said: dict[str, Any] = {"type": "log", "nice": False, "padding": 8} | more
    scale = alt.Scale(**said)
    return {"shorthand": f"{name}:Q", "title": title, "scale": scale, "axis": axis}


def _labels(low: float, high: float) -> list[float]:
    """Where a logarithmic axis from `low` to `high` has its labels: round numbers, at least `_LABELS` of them."""
    # where nobody says what is drawn, the axis may be short
    if 0 < _FAR * low < high < math.inf:
        return [lead * 10.0**power for power in range(-4, 10) for lead in (1, 3)]
    if sum(low <= one <= high for one in _TICKS) >= _LABELS:
        return list(_TICKS)  # the axis reaches a little farther than what it shows, and draws no label beyond itself
    # a short piece of an axis is nearly even: steps of 1, 2 or 5, the largest that come often enough
    for step in reversed(_TICKS):
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first + 1 >= _LABELS:
            return [round(number * step, 9) for number in range(first, last + 1)]
    return list(_TICKS)


def rows_chart(rows: Iterable[Mapping[str, Any]]) -> Any:
    """A chart of rows, to be given a mark."""
    import altair as alt

    return alt.Chart(alt.Data(values=list(rows)))


def band(
    rows: Iterable[Mapping[str, Any]],
    x: Any,
    y: tuple[str, str, str],
    *,
    title: str,
    wide: bool = False,
    **encoding: Any,
) -> Any:
    """A line with its interval as a band.

    - `y`: Fields of the line and of the lower and upper end of the band.
    - Returns: The band below the line; points carry their figures. Where all rows stand at one place, the band is a
      bar.
    """
    import altair as alt

    rows = list(rows)
    base = rows_chart(rows).encode(x=x, **encoding)
    ends = [float(row[name]) for row in rows for name in y]

    def up(name: str) -> Any:
        axis = alt.Axis(labelExpr=_NUMBER)
        return alt.Y(**log_axis(name, title, over=ends)) if wide else alt.Y(f"{name}:Q", title=title, axis=axis)

    one_place = len({row[x.shorthand.partition(":")[0]] for row in rows}) == 1
    bar = base.mark_rule(strokeWidth=9, opacity=0.35, color=light(SERIES[0]))
    area = (bar if one_place else base.mark_area()).encode(y=up(y[1]), y2=alt.Y2(f"{y[2]}:Q"))
    line = base.mark_line().encode(y=up(y[0]))
    points = base.mark_point(filled=True, size=36, opacity=1).encode(y=up(y[0]))
    return area + line + points


def named_bars(bars: Any, names: Sequence[str], field: str) -> Any:
    """Bars with their names above them, so that a narrow screen has room for both.

    `bars`: Bars at most 20 pixels high, without their place.
    """
    import altair as alt

    y = alt.Y(f"{field}:N", title=None, sort=list(names), axis=None)
    labels = rows_chart([{field: one} for one in names])
    said: dict[str, Any] = {"align": "left", "baseline": "bottom", "dy": -12, "limit": 400}
    # lines of the grid end beside the letters
    halo = labels.mark_text(**said, stroke=light("paper"), strokeWidth=5, strokeJoin="round")
    both = [one.encode(x=alt.value(0), y=y, text=f"{field}:N") for one in (halo, labels.mark_text(**said))]
    return alt.layer(bars.encode(y=y), *both).properties(width=400, height=50 * len(names))


def chart_svg(chart: Any, label: str, *, prefix: str = "a") -> str:
    """Draw a chart.

    - `label`: What it shows, for whoever cannot see it.
    - `prefix`: Letters that no other drawing of the same page has, for its inner names.
    - Returns: An SVG element for a page; `standalone` makes a file of it.
    """
    converter = wanted("vl_convert", field="charts")
    # the converter ends the whole process at a character that XML has not, so none may reach it
    shown = _shown(chart.configure(**_theme()).to_dict())
    svg = str(converter.vegalite_to_svg(shown))
    # places alone: a figure that is read keeps its digits
    svg = _PLACE.sub(lambda found: re.sub(r"(\d+\.\d)\d+", r"\1", found[0]), svg)
    svg = svg.replace('role="graphics-symbol" ', "")
    # a mark is told with the first line of its axis' title, and with digits that are read
    for lines in _titles(shown):
        svg = svg.replace(f"{escape(', '.join(lines))}: ", f"{escape(lines[0])}: ")
    svg = re.sub(r'aria-label="[^"]*"', lambda found: _LONG.sub(_rounded, found[0]), svg)
    # what a screen reader hears of a mark is also what a pointer that rests on it shows
    svg = re.sub(r'<(path|line|rect) aria-label="([^"]*)"([^>]*?)(?:/>|></\1>)', r"<\1\3><title>\2</title></\1>", svg)
    svg = re.sub(r'<text aria-label="[^"]*" ', "<text ", svg)
    svg = re.sub(r'(id="|url\(#)clip', rf"\g<1>{prefix}clip", svg).replace('fill="white"', f'fill="{light("paper")}"')
    svg = re.sub(r' (?:aria-(?:hidden|roledescription)|role)="[^"]*"', "", svg)
    svg = re.sub(r'font-size="([\d.]+)px"', lambda found: f'font-size="{float(found[1]) / _ROOM:.3g}px"', svg)
    # letters that turn text round are written out, also in labels out of somebody's file
    return printable(svg).replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)


def _rounded(found: re.Match[str]) -> str:
    """A long figure in four digits, or in all of its whole part."""
    value = float(found[0])
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _titles(value: Any) -> list[list[str]]:
    """Titles of several lines anywhere in a chart."""
    if isinstance(value, list):
        return [title for held in value for title in _titles(held)]
    if not isinstance(value, dict):
        return []
    own = value.get("title")
    mine = [own] if isinstance(own, list) and len(own) > 1 else []
    return mine + [title for held in value.values() for title in _titles(held)]


def _shown(value: Any) -> Any:
    """What a chart is made of, with every text in it as it may be shown."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): _shown(held) for name, held in value.items()}
    return [_shown(held) for held in value] if isinstance(value, list) else value


def standalone(svg: str) -> str:
    """Make a drawing a file that is dark on a dark screen by itself.

    Returns: The same with its rules for dark screens inside.
    """
    head, rest = svg.split(">", 1)
    return f"{head}><style>{dark_rules()}</style>{rest}"


def write_chart(chart: Any, path: str | Path, *, title: str, told: str = "") -> None:
    """Write one chart.

    `told`: More of it, below the drawing of a page.
    """
    write_charts([(told or title, chart)], path, title=title)


def write_charts(charts: Iterable[tuple[str, Any]], path: str | Path, *, title: str) -> None:
    """Write charts: a page of all of them, or a picture in which they stand below each other."""
    path, charts = Path(path), list(charts)
    check_chart(path)
    if path.suffix == ".html":
        told = ""
        if len(charts) == 1:  # the page says it, and below the drawing stands what the page does not say
            [(name, one)] = charts
            charts, told = [(name, one.properties(title=""))], "" if name == title else name
        drawn = [figure([chart_svg(one, name, prefix=f"c{number}")], told) for number, (name, one) in enumerate(charts)]
        plots = f"<div class='plots'>{''.join(drawn)}</div>"
        write_atomically(path, page(title, f"<h1>{escape(title)}</h1>\n{plots}"))
        return
    import altair as alt

    whole = (
        charts[0][1]
        if len(charts) == 1
        else alt.vconcat(*(one for _, one in charts)).resolve_scale(color="independent", shape="independent")
    )
    svg = standalone(chart_svg(whole, title))
    png = wanted("vl_convert", field="--plot").svg_to_png
    write_atomically(path, svg if path.suffix == ".svg" else bytes(png(svg, scale=2.0)))


# Charts of a simulation: batch and cache over time, distributions, latency against load with its interval.

_POINTS = 600
#: two side by side on a page, each as wide as a telephone [px]
_WIDTH, _HEIGHT = 370, 220
_LEGEND = {"orient": "bottom"}
#: statistics that are drawn against load; the first and the third carry their interval
_LINES = ("mean", "p50", "p95", "p99")
_BANDS = ("mean", "p95")
#: loads over the safe one that are drawn [-]
_FAR_SIMULATION_CHARTS = 2.5
_KEPT = ("tried, the load is safe", "tried, the load is not safe")
_NAMES = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "time to the whole answer"}

#: statistics against load: as predicted, and with the step time at either end of its interval
Curves = tuple[list[dict[str, float]], list[dict[str, float]], list[dict[str, float]]]


def curves_of(service: Service, traffic: Traffic, loads: np.ndarray, interval: tuple[float, float]) -> Curves:
    """Statistics against load, with the step time as predicted and at both ends of its interval.

    - `loads`: Users [-], or rates [1/s].
    - `interval`: 90 % interval of the step time relative to its prediction.
    - Returns: As predicted, with the fastest steps, with the slowest.

    Notes
    -----
    All three see the same arrivals, so that the band holds what is not known of the machine and nothing else.
    """
    middle = load_curve(service, traffic, loads)
    ends = [middle if one == 1.0 else load_curve(service.scaled(one), traffic, loads) for one in interval]
    return middle, ends[0], ends[1]


def _against_load(curves: Curves, metric: str, load: str | list[str], statistics: Sequence[str]) -> Any:
    """Lines of one time against load, the interval of the step time as a band; None where nothing is finite."""
    import altair as alt

    rows: list[dict[str, Any]] = []
    for statistic in statistics:
        name = f"{metric}_{statistic}_ms"
        for middle, fast, slow in zip(*curves, strict=True):
            ends = sorted((fast[name], middle[name], slow[name]))
            if not np.isfinite([*ends]).all():
                continue
            row = {"load": middle["load"], "statistic": statistic, "value": middle[name]}
            drawn = statistic in _BANDS or len(statistics) == 1
            rows.append(row | {"low": ends[0] if drawn else row["value"], "high": ends[2] if drawn else row["value"]})
    if not rows:
        return None
    x = alt.X("load:Q", title=load, scale=alt.Scale(zero=False))
    named = alt.Color("statistic:N", title=None, sort=list(_LINES), legend=_LEGEND)
    colour = {"color": named} if len(statistics) > 1 else {}
    title = f"{metric.upper()} [ms]"
    ends = [row[end] for row in rows for end in ("low", "high")]
    chart = band(rows, x, ("value", "low", "high"), title=title, wide=_wide(ends), **colour)
    return chart.properties(width=_WIDTH, height=_HEIGHT)


def _wide(values: Sequence[float]) -> bool:
    """Whether values span so much that only a logarithm shows all of them."""
    return min(values) > 0 and max(values) > 10 * min(values)


def _times(field: str, title: str, values: Sequence[float]) -> Any:
    """A horizontal axis of times."""
    import altair as alt

    if _wide(values):
        return alt.X(**log_axis(field, title, over=values))
    return alt.X(f"{field}:Q", title=title, scale=alt.Scale(zero=False, nice=False))


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
    for name, values in (("requests", n), ("tokens", tokens)):
        # the integral over time is piecewise linear between the ends of runs
        area = np.r_[0.0, (values * span)[order].cumsum()]
        reached[name] = np.diff(np.interp(edges, np.r_[at.min(), ends], area)) / np.diff(edges)
    for i in range(_POINTS):
        rows.append({"seconds": float(edges[i]), **{name: float(values[i]) for name, values in reached.items()}})
    return rows


def simulation_charts(
    outcome: Outcome,
    path: str | Path,
    *,
    title: str,
    block_size: TokenCount = 16,
    curves: Curves = ([], [], []),
    load_name: str = "users",
) -> None:
    """Write the charts of one simulation.

    `curves`: Statistics at several loads, as `curves_of` returns them.
    """
    import altair as alt

    size = {"width": _WIDTH, "height": _HEIGHT}
    charts: list[tuple[str, Any]] = []
    if outcome.timeline is not None and outcome.timeline.shape[1]:
        over = (
            rows_chart(_timeline(outcome.timeline, block_size))
            .mark_line()
            .encode(x=alt.X("seconds:Q", title="time [s]"))
        )
        for field, name in (("requests", "requests that run at once"), ("tokens", "tokens in the KV cache")):
            chart = over.encode(y=alt.Y(f"{field}:Q", title=name)).properties(title=f"{name}, over time", **size)
            charts.append((f"{name}, over time", chart))
    percents = tuple(np.r_[0.5:99.6:0.5].tolist())
    for metric, words in _NAMES.items():
        values = outcome.times[metric].percentiles(percents)
        rows = [{"ms": 1000 * v, "share": p} for v, p in zip(values, percents, strict=True) if v > 0]
        if rows:
            x = _times("ms", f"{metric.upper()} [ms]", [row["ms"] for row in rows])
            y = alt.Y("share:Q", title="requests not slower [%]")
            name = f"how the {words} is distributed"
            charts.append((name, rows_chart(rows).mark_line().encode(x=x, y=y).properties(title=name, **size)))
    for metric in ("ttft", "tpot"):
        drawn = _against_load(curves, metric, f"{load_name} (band: 90 % interval of the step time)", _LINES)
        if drawn is not None:
            name = f"{_NAMES[metric]} against load"
            charts.append((name, drawn.properties(title=name)))
    write_charts(charts, path, title=title)


def safe_charts(
    found: SafeLoad, targets: Sequence[Target], path: str | Path, *, title: str, curves: Curves = ([], [], [])
) -> None:
    """Write the charts of a search for the largest safe load.

    `curves`: Statistics at several loads, as `curves_of` returns them.
    """
    import altair as alt

    charts = []
    # the load is drawn once for each service that the search looked at: also a safe load may be too much for one of 20
    under = [found.unit, "points: services of the search, slow and fast ones;", "band: 90 % interval of the step time"]
    for target in targets:
        rows = [
            {
                "load": point.load,
                "value": point.summary[target.name],
                "tried": _KEPT[0] if point.safe else _KEPT[1],
            }
            for point in found.points
            # a load of which nothing was served has no statistics
            if np.isfinite(point.summary.get(target.name, np.nan))
            and point.load <= _FAR_SIMULATION_CHARTS * max(found.load, 1.0)
        ]
        drawn = _against_load(curves, target.metric, under, (target.statistic,))
        name = f"{target}: safe up to {found.load:.4g} {found.unit}"
        y = alt.Y("value:Q", title=f"{target.metric.upper()} [ms]")
        kept: dict[str, Any] = {"title": None, "sort": list(_KEPT), "legend": _LEGEND}
        colours = alt.Scale(domain=list(_KEPT), range=[light("green"), light("red")])
        shapes = alt.Scale(domain=list(_KEPT), range=["circle", "square"])
        tried = rows_chart(rows).mark_point(filled=True, size=60, opacity=1)
        tried = tried.encode(
            x=alt.X("load:Q", title=under, axis=alt.Axis(tickMinStep=1.0 if found.unit == "users" else alt.Undefined)),
            y=y,
            color=alt.Color("tried:N", scale=colours, **kept),
            shape=alt.Shape("tried:N", scale=shapes, **kept),
        )
        bound = rows_chart([{"value": target.bound * 1000}]).mark_rule(strokeDash=[6, 4]).encode(y=y)
        layers = [bound, tried] if drawn is None else [drawn, bound, tried]
        charts.append((name, alt.layer(*layers).properties(title=name, width=_WIDTH, height=_HEIGHT)))
    write_charts(charts, path, title=title)


# Charts of sweeps and of what moves an answer.

#: columns as people call them; others stand as they are
_WORDS = {
    "user_tokens_per_s": "the speed of one user", "output_tokens_per_s": "the speed of all users together",
    "usd_month": "USD a month", "usd_per_million_output_tokens": "USD for a million answer tokens",
    "ttft_mean_ms": "the time to the first token", "tpot_mean_ms": "the time of each further token",
    "wall_w": "the power at the wall", "joules_per_output_token": "the energy of an answer token",
}  # fmt: skip

#: points that a page shows beside its frontier: more are a cloud that no browser draws quickly [-]
_POINTS_SIZING_CHARTS = 4000
#: points of a frontier from which circles are small [-]
_MANY = 60
_SPEED = "user_tokens_per_s"
_ENDS = ("output_tokens_per_s", "output_tokens_per_s_low", "output_tokens_per_s_high")
#: letters of a title that stand over a chart as wide as these [-]
_LETTERS = 46
_SHOWN = ("model", "on", "checkpoint", "layout", "users", "input_tokens", "user_tokens_per_s", "output_tokens_per_s",
          "usd_month", "wall_w")  # fmt: skip


def spoken(names: Sequence[str]) -> str:
    """Columns in words.

    Examples
    --------
    >>> spoken(["user_tokens_per_s", "usd_month"])
    'the speed of one user, USD a month'
    """
    return ", ".join(_WORDS.get(name, name) for name in names)


def sweep_chart(frame: pd.DataFrame, best: np.ndarray, *, title: str) -> Any:
    """Throughput of a machine against the speed of one of its users.

    Returns: All points (some of them, if they are very many), the frontier as larger ones with the 90 % interval of
      their throughput as a band; where nothing has both speeds, words that say so.
    """
    import altair as alt

    if not _drawn(frame).any():
        words = ["no point of this sweep has both speeds:", "the table says why"]
        note = rows_chart([{}]).mark_text(text=words, fontSize=15)
        return alt.layer(note).properties(title=_lines(title), width=370, height=320)
    rows, spans = _points(frame, best), _spans(frame, best)
    rates = [row[name] for row in (*rows, *spans) for name in _ENDS if row.get(name) is not None]
    x = alt.X(**log_axis("user_tokens_per_s", "speed of one user [token/s]", over=[row[_SPEED] for row in rows]))
    title_y = "speed of all users together [token/s]"

    def up(name: str) -> Any:
        return alt.Y(**log_axis(name, title_y, over=rates))

    colour = alt.Color("on:N", title=None, legend={"orient": "bottom", "columns": 3, "symbolOpacity": 1})
    base = rows_chart(rows).encode(x=x, y=up(_ENDS[0]), color=colour, description="told:N")
    parts = []
    for alone in (True, False):
        some = [one for one in spans if one["alone"] == alone]
        if some:
            drawn = rows_chart(some)
            drawn = drawn.mark_rule(strokeWidth=7, opacity=0.25) if alone else drawn.mark_area(opacity=0.18)
            parts.append(drawn.encode(x=x, y=up(_ENDS[1]), y2=f"{_ENDS[2]}:Q", color=colour, detail="curve:N"))
    cloud = base.mark_circle(size=24, opacity=0.5)
    edge = base.transform_filter("datum.best").mark_point(size=70 if best.sum() <= _MANY else 24, filled=False)
    return alt.layer(*parts, cloud, edge).properties(title=_lines(title), width=370, height=320)


def _drawn(frame: pd.DataFrame) -> np.ndarray:
    """Which rows have a place: a logarithm wants both speeds above zero."""
    drawn: np.ndarray = np.all([frame[name].to_numpy(dtype=float) > 0 for name in (_SPEED, _ENDS[0])], axis=0)
    return drawn


def _points(frame: pd.DataFrame, best: np.ndarray) -> list[dict[str, Any]]:
    """The rows that are drawn, with what a pointer that rests on them tells."""
    shown = [name for name in _SHOWN if name in frame]
    known = np.flatnonzero(_drawn(frame))
    kept = known
    if len(known) > _POINTS_SIZING_CHARTS:
        kept = known[np.linspace(0, len(known) - 1, _POINTS_SIZING_CHARTS).astype(int)]
        kept = np.union1d(kept, np.intersect1d(known, np.flatnonzero(best)))
    part = frame.iloc[kept][shown].assign(best=best[kept])
    part = part.astype(object).where(part.notna(), None)
    return [
        one | {"told": "; ".join(f"{name} {_short(value)}" for name, value in one.items() if name in shown and value)}
        for one in part.to_dict("records")
    ]


def _spans(frame: pd.DataFrame, best: np.ndarray) -> list[dict[str, Any]]:
    """The intervals of the frontier: the points of one curve differ in users alone."""
    names = [name for name in frame.columns[: frame.columns.get_loc("output_tokens") + 1] if name != "users"]
    part = frame[_drawn(frame) & best & frame[_ENDS[1]].notna().to_numpy()]
    curve = part.groupby(names, dropna=False, sort=False).ngroup()
    alone = curve.map(curve.value_counts()) == 1
    columns = [*(["on"] if "on" in part else []), _SPEED, *_ENDS[1:]]
    return [dict(row) for row in part[columns].assign(curve=curve, alone=alone).to_dict("records")]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _lines(title: str) -> list[str]:
    return wrap(title, _LETTERS, break_long_words=False, break_on_hyphens=False)


def tornado_chart(rows: list[dict[str, Any]], at: float, *, of: str, title: str, unit: str) -> Any:
    """Bars of what moves an answer, the largest above.

    - `rows`: ``what``, ``low`` and ``high`` [unit].
    - `at`: The answer where nothing moves [unit]; a line through each bar.
    - Returns: The bars, each with its name above it.
    """
    import altair as alt

    told = [one | {"told": f"{one['what']}: {_short(one['low'])} to {_short(one['high'])} {unit}"} for one in rows]
    name = _WORDS.get(of, of)
    words = [name if unit in name else f"{name} [{unit}]", f"line: {_short(at)}, where nothing moves"]
    bars = rows_chart(told).mark_bar(height=20)
    bars = bars.encode(x=alt.X("low:Q", title=words, scale=alt.Scale(zero=False)), x2="high:Q", description="told:N")
    names = [str(one["what"]) for one in rows]
    # as high as the bars and no higher: their names stand between them
    rest = rows_chart([{"what": name, "at": at} for name in names])
    rest = rest.mark_tick(orient="vertical", size=26, thickness=2, color=light("ink"), opacity=1)
    rest = rest.encode(x="at:Q", y=alt.Y("what:N", title=None, sort=names, axis=None))
    return (named_bars(bars, names, "what") + rest).properties(title=_lines(title))
