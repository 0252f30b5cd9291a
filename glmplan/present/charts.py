"""Write charts as static SVG, PNG and HTML without scripts.

Altair describes a chart, vl-convert draws it. Marks have tooltips and labels for screen readers; colours follow the
dark mode of the browser.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.catalog.files import write_atomically
from glmplan.errors import SpecError, printable
from glmplan.extras import check_extra, wanted
from glmplan.present.page import SERIES, dark_rules, escape, figure, light, page
from glmplan.purchase.frontier import OBJECTIVE_LABELS
from glmplan.simulation.safe_load import SafeLoad, Uncertainty, load_curve
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
    "haloed",
    "log_axis",
    "named_bars",
    "rows_chart",
    "safe_charts",
    "short",
    "simulation_charts",
    "standalone",
    "sweep_chart",
    "tornado_chart",
    "write_chart",
    "write_charts",
]


#: suffixes of charts
FORMS: tuple[str, ...] = (".html", ".png", ".svg")
#: layout width of text over its drawn width, since fonts of readers differ [-]
_ROOM = 1.16
#: labels of a logarithmic axis
_TICKS = [lead * 10.0**power for power in range(-4, 10) for lead in (1, 2, 5)]
#: largest range of an axis with labels at 1, 2 and 5 [-]
_FAR = 500.0
#: fewest labels of an axis; margin around a single value [-]
_LABELS, _AROUND = 3, 1.25
#: attributes with coordinates
_PLACE = re.compile(r' (?:d|transform|x|y|[xy][12]|c[xy]|r|width|height|viewBox)="[^"]*"')
#: a number with more than four decimals
_LONG = re.compile(r"(?<![\w.-])\d+\.\d{5,}(?![\w.])")
#: Vega expression of a number, with separators of thousands
_NUMBER = "datum.value >= 1 ? format(datum.value, ',~f') : format(datum.value, '~g')"


def check_chart(path: str | Path) -> None:
    """Raise SpecError for an unknown suffix, before anything is computed.

    Examples
    --------
    >>> check_chart("a.gif")
    Traceback (most recent call last):
    glmplan.errors.SpecError: --plot: '.gif' is no kind of chart; nearest: ...
    """
    path = Path(path)
    if path.suffix not in FORMS:
        raise SpecError("is no kind of chart", field="--plot", value=path.suffix or path.name, choices=FORMS)
    check_extra("vl_convert", field="--plot")


def _theme() -> dict[str, Any]:
    """Return the Vega config of all charts."""
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
        # drop every other label if not all fit, so that steps stay equal
        "axisQuantitative": {"labelOverlap": "parity", "labelSeparation": 8},
        "legend": {**text, "labelLimit": 400},
        "title": {"color": ink, "fontSize": 14 * _ROOM, "anchor": "start", "offset": 10},
        **marks,
    }


def log_axis(name: str, title: str, *, over: Iterable[float] = (), **more: Any) -> dict[str, Any]:
    """Return the arguments of a logarithmic axis.

    `over`: Positive values along the axis; labels are chosen so that at least `_LABELS` lie in their range.

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
    labels = [label for label in _labels(low, high) if "domain" not in more or low <= label <= high]
    axis = alt.Axis(labelExpr=_NUMBER, labelOverlap="greedy", values=labels)
    options: dict[str, Any] = {"type": "log", "nice": False, "padding": 8} | more
    scale = alt.Scale(**options)
    return {"shorthand": f"{name}:Q", "title": title, "scale": scale, "axis": axis}


def _labels(low: float, high: float) -> list[float]:
    """Return round labels of a logarithmic axis.

    A known range has at least `_LABELS` of them.
    """
    if 0 < _FAR * low < high < math.inf:
        return [lead * 10.0**power for power in range(-4, 10) for lead in (1, 3)]
    if sum(low <= tick <= high for tick in _TICKS) >= _LABELS:
        return list(_TICKS)
    # a short range is nearly linear: the largest step of 1, 2 or 5 with enough labels
    for step in reversed(_TICKS):
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first + 1 >= _LABELS:
            return [round(number * step, 9) for number in range(first, last + 1)]
    return list(_TICKS)


def rows_chart(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Return a chart of rows without a mark."""
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
    """Return a line with its interval as a band; a bar for one x value.

    `y`: Fields of the line and of the lower and upper bound. The points have tooltips with value and interval.
    """
    import altair as alt

    rows = list(rows)
    across, head = x.shorthand.partition(":")[0], x["title"]
    head = head if isinstance(head, str) else head[0]
    of = encoding["color"].shorthand.partition(":")[0] if "color" in encoding else ""
    for place, row in enumerate(rows):
        value, low, high = (short(float(row[name])) for name in y)
        words = [f"{head}: {short(row[across])}", f"{title.partition(',')[0]}: {value}"]
        words[-1] += f" ({low} to {high})" * (low != high)
        rows[place] = {**row, "told": "; ".join([*words, *([str(row[of])] if of else [])])}
    base = rows_chart(rows).encode(x=x, **encoding)
    ends = [float(row[name]) for row in rows for name in y]

    def up(name: str) -> Any:
        axis = alt.Axis(labelExpr=_NUMBER)
        return alt.Y(**log_axis(name, title, over=ends)) if wide else alt.Y(f"{name}:Q", title=title, axis=axis)

    one_place = len({row[across] for row in rows}) == 1
    bar = base.mark_rule(strokeWidth=9, opacity=0.35, color=light(SERIES[0])).encode(description="told:N")
    area = (bar if one_place else base.mark_area(aria=False)).encode(y=up(y[1]), y2=alt.Y2(f"{y[2]}:Q"))
    line = base.mark_line(aria=False).encode(y=up(y[0]))
    points = base.mark_point(filled=True, size=36, opacity=1).encode(y=up(y[0]), description="told:N")
    return area + line + points


def named_bars(bars: Any, names: Sequence[str], field: str) -> Any:
    """Return bars of at most 20 px with names above, for narrow screens."""
    import altair as alt

    y = alt.Y(f"{field}:N", title=None, sort=list(names), axis=None)
    labels = rows_chart([{field: name} for name in names]).encode(x=alt.value(0), y=y, text=f"{field}:N")
    both = haloed(labels, align="left", baseline="bottom", dy=-12, limit=400)
    return alt.layer(bars.encode(y=y), *both).properties(width=400, height=50 * len(names))


def haloed(labels: Any, **options: Any) -> list[Any]:
    """Return texts above a halo that keeps grid lines away from the letters."""
    halo = labels.mark_text(**options, stroke=light("paper"), strokeWidth=5, strokeJoin="round")
    return [halo, labels.mark_text(**options)]


def chart_svg(chart: Any, label: str, *, prefix: str = "a") -> str:
    """Return a chart as an SVG element; `standalone` makes a file of it.

    - `label`: Text for screen readers.
    - `prefix`: Prefix of the ids, unique within a page.
    """
    converter = wanted("vl_convert", field="charts")
    # vl-convert aborts the process at a character that XML does not allow
    shown = _shown(chart.configure(**_theme()).to_dict())
    svg = str(converter.vegalite_to_svg(shown))
    # shorten coordinates only
    svg = _PLACE.sub(lambda match: re.sub(r"(\d+\.\d)\d+", r"\1", match[0]), svg)
    svg = svg.replace('role="graphics-symbol" ', "")
    # labels of marks: first line of the axis title, four digits
    for lines in _titles(shown):
        svg = svg.replace(f"{escape(', '.join(lines))}: ", f"{escape(lines[0])}: ")
    svg = re.sub(r'aria-label="[^"]*"', lambda match: _LONG.sub(_rounded, match[0]), svg)
    # the label of a mark becomes its tooltip
    svg = re.sub(r'<(path|line|rect) aria-label="([^"]*)"([^>]*?)(?:/>|></\1>)', r"<\1\3><title>\2</title></\1>", svg)
    svg = re.sub(r'<text aria-label="[^"]*" ', "<text ", svg)
    svg = re.sub(r'(id="|url\(#)clip', rf"\g<1>{prefix}clip", svg).replace('fill="white"', f'fill="{light("paper")}"')
    svg = re.sub(r' (?:aria-(?:hidden|roledescription)|role)="[^"]*"', "", svg)
    svg = re.sub(r'font-size="([\d.]+)px"', lambda match: f'font-size="{float(match[1]) / _ROOM:.3g}px"', svg)
    # bidirectional control characters of foreign labels are escaped
    return printable(svg).replace("<svg ", f'<svg role="img" aria-label="{escape(label)}" ', 1)


def _rounded(match: re.Match[str]) -> str:
    """Return a number with four significant digits, more before the point."""
    value = float(match[0])
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _titles(value: Any) -> list[list[str]]:
    """Return all titles of several lines in a chart."""
    if isinstance(value, list):
        return [title for held in value for title in _titles(held)]
    if not isinstance(value, dict):
        return []
    own = value.get("title")
    mine = [own] if isinstance(own, list) and len(own) > 1 else []
    return mine + [title for held in value.values() for title in _titles(held)]


def _shown(value: Any) -> Any:
    """Return a chart specification with all texts made printable."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(name): _shown(held) for name, held in value.items()}
    return [_shown(held) for held in value] if isinstance(value, list) else value


def standalone(svg: str) -> str:
    """Return a drawing as a file with its own rules for dark mode."""
    head, rest = svg.split(">", 1)
    return f"{head}><style>{dark_rules()}</style>{rest}"


def write_chart(chart: Any, path: str | Path, *, title: str, told: str = "") -> None:
    """Write one chart; `told` is its caption on a page."""
    write_charts([(told or title, chart)], path, title=title)


def write_charts(charts: Iterable[tuple[str, Any]], path: str | Path, *, title: str, legend: str = "") -> None:
    """Write charts to a page, or to one picture below each other.

    `legend`: Sentence about the marks of all charts, above them on a page.
    """
    path, charts = Path(path), list(charts)
    check_chart(path)
    if path.suffix == ".html":
        told = ""
        if len(charts) == 1:  # its title is that of the page
            [(name, chart)] = charts
            charts, told = [(name, chart.properties(title=""))], "" if name == title else name
        drawn = [figure([chart_svg(chart, name, prefix=f"c{i}")], told) for i, (name, chart) in enumerate(charts)]
        plots = f"<div class='plots'>{''.join(drawn)}</div>"
        words = f"<p>{escape(legend)}</p>\n" if legend else ""
        write_atomically(path, page(title, f"<h1>{escape(title)}</h1>\n{words}{plots}"))
        return
    import altair as alt

    combined = charts[0][1]
    if len(charts) > 1:
        combined = alt.vconcat(*(chart for _, chart in charts))
        combined = combined.resolve_scale(color="independent", shape="independent")
    svg = standalone(chart_svg(combined, title))
    png = wanted("vl_convert", field="--plot").svg_to_png
    write_atomically(path, svg if path.suffix == ".svg" else bytes(png(svg, scale=2.0)))


# Simulation: batch and KV pool over time, distributions, latency over load.

#: points of a timeline
_POINTS = 600
#: size of a chart: the width of a telephone, two side by side on a page [px]
_WIDTH, _HEIGHT = 370, 220
_LEGEND = {"orient": "bottom"}
#: statistics over load, and those with an interval
_LINES = ("mean", "p50", "p95", "p99")
_BANDS = ("mean", "p95")
#: largest load of a chart over the safe one [-]
_MOST_OVER_SAFE = 2.5
_KEPT = ("tested, SLO met", "tested, SLO missed")
_NAMES = {"ttft": "time to first token", "tpot": "time per output token", "e2e": "end-to-end latency"}

#: statistics over load at the predicted step time, and at both bounds of its interval
Curves = tuple[list[dict[str, float]], list[dict[str, float]], list[dict[str, float]]]


#: an own step time has no interval
_KNOWN = Uncertainty(first=(1.0, 1.0))


def curves_of(
    service: Service,
    traffic: Traffic,
    loads: np.ndarray,
    ends: Callable[[Traffic, Mapping[str, float]], Uncertainty],
) -> Curves:
    """Return statistics over load as predicted and at both 90 % bounds.

    - `ends`: Intervals of the service at a load, by the traffic and its predicted statistics.
    - All three have the same arrivals, so that the band shows the uncertainty of the machine only.
    """
    curves: Curves = (load_curve(service, traffic, loads), [], [])
    for row in curves[0]:
        at = ends(traffic.at_load(row["load"]), row)
        for share, curve in ((0.05, curves[1]), (0.95, curves[2])):
            known, end = at == _KNOWN, at.quantile(service, traffic, share)
            curve += [row] if known else load_curve(end, traffic, np.array([row["load"]]))
    return curves


def _against_load(curves: Curves, metric: str, load: str | list[str], statistics: Sequence[str]) -> Any:
    """Return a metric over load with its bands; None if no value is finite."""
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
    """Return True if positive values span more than a factor of ten."""
    return min(values) > 0 and max(values) > 10 * min(values)


def _times(field: str, title: str, values: Sequence[float]) -> Any:
    """Return a horizontal axis of times."""
    import altair as alt

    if _wide(values):
        return alt.X(**log_axis(field, title, over=values))
    return alt.X(f"{field}:Q", title=title, scale=alt.Scale(zero=False, nice=False))


def _timeline(segments: np.ndarray, block_size: int) -> list[dict[str, Any]]:
    """Return mean batch size and KV tokens over equal intervals of a run."""
    at, steps, seconds, slope, n, total, _, blocks = segments
    span = steps * (seconds + slope * (steps - 1) / 2)
    edges = np.linspace(at.min(), (at + span).max(), _POINTS + 1)
    tokens = np.where(blocks < 0, total + n * steps / 2, blocks * block_size)
    rows = []
    reached = {}
    order = np.argsort(at, kind="stable")
    ends = (at + span)[order]
    for name, values in (("requests", n), ("tokens", tokens)):
        # the time integral is piecewise linear between the ends of segments
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
    """Write the charts of one simulation; `curves` is a result of `curves_of`."""
    import altair as alt

    size = {"width": _WIDTH, "height": _HEIGHT}
    charts: list[tuple[str, Any]] = []
    if outcome.timeline is not None and outcome.timeline.shape[1]:
        over = (
            rows_chart(_timeline(outcome.timeline, block_size))
            .mark_line()
            .encode(x=alt.X("seconds:Q", title="time [s]"))
        )
        for field, name in (("requests", "running requests"), ("tokens", "tokens in the KV cache")):
            chart = over.encode(y=alt.Y(f"{field}:Q", title=name)).properties(title=f"{name} over time", **size)
            charts.append((f"{name} over time", chart))
    percents = tuple(np.r_[0.5:99.6:0.5].tolist())
    for metric, words in _NAMES.items():
        values = outcome.times[metric].percentiles(percents)
        rows = [{"ms": 1000 * v, "share": p} for v, p in zip(values, percents, strict=True) if v > 0]
        if rows:
            x = _times("ms", f"{metric.upper()} [ms]", [row["ms"] for row in rows])
            y = alt.Y("share:Q", title="cumulative share of requests [%]")
            name = f"distribution of {words}"
            charts.append((name, rows_chart(rows).mark_line().encode(x=x, y=y).properties(title=name, **size)))
    for metric in ("ttft", "tpot"):
        drawn = _against_load(curves, metric, f"{load_name} (band: 90 % interval of the step time)", _LINES)
        if drawn is not None:
            name = f"{_NAMES[metric]} over load"
            charts.append((name, drawn.properties(title=name)))
    write_charts(charts, path, title=title)


def safe_charts(
    found: SafeLoad, targets: Sequence[Target], path: str | Path, *, title: str, curves: Curves = ([], [], [])
) -> None:
    """Write the charts of a safe-load search; `curves` is from `curves_of`."""
    import altair as alt

    charts = []
    # one point for each step time of the search: the slowest may miss the SLO at a safe load
    under = [found.unit, "points: tests of the search at several step times;", "band: 90 % interval of the step time"]
    for target in targets:
        rows = [
            {
                "load": point.load,
                "value": point.summary[target.name],
                "tried": _KEPT[0] if point.safe else _KEPT[1],
            }
            for point in found.points
            # a load without finished requests has no statistics
            if np.isfinite(point.summary.get(target.name, np.nan))
            and point.load <= _MOST_OVER_SAFE * max(found.load, 1.0)
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


# Sweeps and sensitivities.

#: largest number of points beside the Pareto front, for the speed of browsers
_MOST_POINTS = 4000
#: points of a Pareto front from which circles are small
_MANY = 60
_SPEED = "user_tokens_per_s"
#: share of a chart that the label of a point takes
_LABEL_WIDE, _LABEL_HIGH = 0.55, 0.06
_ENDS = ("output_tokens_per_s", "output_tokens_per_s_low", "output_tokens_per_s_high")
#: characters per line of a title
_LETTERS = 46
_SHOWN = ("model", "on", "checkpoint", "layout", "users", "input_tokens", "user_tokens_per_s", "output_tokens_per_s",
          "usd_month", "wall_w")  # fmt: skip


def sweep_chart(frame: pd.DataFrame, best: np.ndarray, *, title: str) -> Any:
    """Return a chart of total throughput over speed per user.

    It has the Pareto front with its 90 % intervals.

    A large sweep is thinned out to `_MOST_POINTS` and the front.
    """
    import altair as alt

    if not _drawn(frame).any():
        words = ["no point of this sweep has a throughput;", "see the table for the reasons"]
        note = rows_chart([{}]).mark_text(text=words, fontSize=15)
        return alt.layer(note).properties(title=_lines(title), width=370, height=320)
    rows, spans = _points(frame, best), _spans(frame, best)
    rates = [row[name] for row in (*rows, *spans) for name in _ENDS if row.get(name) is not None]
    x = alt.X(**log_axis("user_tokens_per_s", "speed per user [token/s]", over=[row[_SPEED] for row in rows]))
    title_y = "total throughput [token/s]"

    def up(name: str) -> Any:
        return alt.Y(**log_axis(name, title_y, over=rates))

    colour = alt.Color("on:N", title=None, legend={"orient": "bottom", "columns": 3, "symbolOpacity": 1})
    base = rows_chart(rows).encode(x=x, y=up(_ENDS[0]), color=colour, description="told:N")
    parts = []
    for alone in (True, False):
        selected = [span for span in spans if span["alone"] == alone]
        if selected:
            drawn = rows_chart(selected)
            ways = {"opacity": 0.25, "strokeWidth": 7} if alone else {"opacity": 0.18}
            drawn = drawn.mark_rule(aria=False, **ways) if alone else drawn.mark_area(aria=False, **ways)
            parts.append(drawn.encode(x=x, y=up(_ENDS[1]), y2=f"{_ENDS[2]}:Q", color=colour, detail="curve:N"))
    cloud = base.mark_circle(size=24, opacity=0.5)
    edge = base.transform_filter("datum.best").mark_point(size=70 if best.sum() <= _MANY else 24, filled=False)
    named = rows_chart(_labelled(rows)).encode(x=x, y=up(_ENDS[0]), text="label:N")
    names = haloed(named, fontSize=10 * _ROOM, dy=-9, align=alt.expr("datum.align"))
    return alt.layer(*parts, cloud, edge, *names).properties(title=_lines(title), width=370, height=320)


def _labelled(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return labelled ends of the Pareto fronts that do not overlap."""
    best = [row for row in rows if row["best"]]
    machines: dict[str, list[Mapping[str, Any]]] = {}
    for row in best:
        machines.setdefault(f"{row.get('model')} {row.get('on')}", []).append(row)
    wide, high = ([math.log(row[name]) for row in rows] for name in (_SPEED, _ENDS[0]))
    found: list[dict[str, Any]] = []
    places: list[tuple[float, float]] = []
    for front in machines.values():
        for row in sorted(front, key=lambda one: one[_SPEED])[:: max(len(front) - 1, 1)]:
            across, up = ((math.log(row[name]) - min(all_)) / (max(all_) - min(all_) or 1.0)
                          for name, all_ in ((_SPEED, wide), (_ENDS[0], high)))  # fmt: skip
            if any(abs(across - x) < _LABEL_WIDE and abs(up - y) < _LABEL_HIGH for x, y in places):
                continue
            places.append((across, up))
            words = [f"{row['users']} user{'s' * (row['users'] != 1)}", row.get("layout"),
                     row.get("usd_month") and f"{row['usd_month']:,.0f} USD/month"]  # fmt: skip
            label = ", ".join(str(one) for one in words if one)
            found.append({**row, "label": label, "align": "right" if across > 0.5 else "left"})
    return found


def _drawn(frame: pd.DataFrame) -> np.ndarray:
    """Return True for rows with two positive speeds, for logarithmic axes."""
    drawn: np.ndarray = np.all([frame[name].to_numpy(dtype=float) > 0 for name in (_SPEED, _ENDS[0])], axis=0)
    return drawn


def _points(frame: pd.DataFrame, best: np.ndarray) -> list[dict[str, Any]]:
    """Return the drawn rows with their tooltips."""
    shown = [name for name in _SHOWN if name in frame]
    known = np.flatnonzero(_drawn(frame))
    kept = known
    if len(known) > _MOST_POINTS:
        kept = known[np.linspace(0, len(known) - 1, _MOST_POINTS).astype(int)]
        kept = np.union1d(kept, np.intersect1d(known, np.flatnonzero(best)))
    part = frame.iloc[kept][shown].assign(best=best[kept])
    part = part.astype(object).where(part.notna(), None)
    return [
        row | {"told": "; ".join(f"{name} {short(value)}" for name, value in row.items() if name in shown and value)}
        for row in part.to_dict("records")
    ]


def _spans(frame: pd.DataFrame, best: np.ndarray) -> list[dict[str, Any]]:
    """Return the intervals of the Pareto front.

    Points of one curve differ only in users.
    """
    names = [name for name in frame.columns[: frame.columns.get_loc("output_tokens") + 1] if name != "users"]
    part = frame[_drawn(frame) & best & frame[_ENDS[1]].notna().to_numpy()]
    curve = part.groupby(names, dropna=False, sort=False).ngroup()
    alone = curve.map(curve.value_counts()) == 1
    columns = [*(["on"] if "on" in part else []), _SPEED, *_ENDS[1:]]
    return [dict(row) for row in part[columns].assign(curve=curve, alone=alone).to_dict("records")]


def short(value: Any) -> str:
    """Return a number with four significant digits, text as it is."""
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}") if isinstance(value, float) else str(value)


def _lines(title: str) -> list[str]:
    return wrap(title, _LETTERS, break_long_words=False, break_on_hyphens=False)


def tornado_chart(rows: list[dict[str, Any]], at: float, *, of: str, title: str, unit: str) -> Any:
    """Return a bar for each assumption, with a line at the outcome `at`.

    `rows`: ``what``, and the outcomes ``low`` and ``high``.
    """
    import altair as alt

    told = [row | {"told": f"{row['what']}: {short(row['low'])} to {short(row['high'])} {unit}"} for row in rows]
    words = [f"{OBJECTIVE_LABELS.get(of, of)} [{unit}]", f"line: {short(at)}, all assumptions unchanged"]
    bars = rows_chart(told).mark_bar(height=20)
    bars = bars.encode(x=alt.X("low:Q", title=words, scale=alt.Scale(zero=False)), x2="high:Q", description="told:N")
    names = [str(row["what"]) for row in rows]
    # not higher than the bars: the names stand between them
    rest = rows_chart([{"what": name, "at": at} for name in names])
    rest = rest.mark_tick(orient="vertical", size=26, thickness=2, color=light("ink"), opacity=1)
    rest = rest.encode(x="at:Q", y=alt.Y("what:N", title=None, sort=names, axis=None))
    return (named_bars(bars, names, "what") + rest).properties(title=_lines(title))
