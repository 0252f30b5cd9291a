"""Charts as drawings that need nothing else: SVG, PNG, and pages without scripts.

A chart is described with Altair and drawn at once. What a pointer rests on tells its figures; on a dark screen the
colours change; a page opens without a network, prints, and is read by a screen reader.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glmplan.errors import SpecError, printable
from glmplan.extras import check_extra, wanted
from glmplan.facts.files import write_atomically
from glmplan.report.page import escape, figure, page
from glmplan.report.palette import SERIES, dark_rules, light

__all__ = ["FORMS", "band", "chart_svg", "check_chart", "log_axis", "named_bars", "rows_chart", "standalone",
           "write_chart", "write_charts"]  # fmt: skip

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

    Parameters
    ----------
    path : path
        The file.
    field : str, optional
        The option that names it.

    Raises
    ------
    SpecError
        If its ending is none of `FORMS`, or the extra `png` is not installed.

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

    Parameters
    ----------
    name : str
        Field of the rows.
    title : str
        What it is, with its unit.
    over : iterable of float
        What is drawn along it, above zero: labels are chosen so that there are some, [of `title`]
    **more
        Anything else of `altair.Scale`.

    Returns
    -------
    dict
        Arguments of `altair.X` or `altair.Y`.

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
    """A chart of rows, to be given a mark.

    Parameters
    ----------
    rows : iterable of mapping
        Field → value.

    Returns
    -------
    altair.Chart
        With the rows inside.
    """
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

    Parameters
    ----------
    rows : iterable of mapping
        Field → value.
    x : altair.X
        What it is over.
    y : (str, str, str)
        Fields of the line and of the lower and upper end of the band.
    title : str
        Of the other axis, with its unit.
    wide : bool, optional
        Whether that axis is logarithmic.
    **encoding
        Further channels of both, as `color`.

    Returns
    -------
    altair.LayerChart
        The band below the line; points carry their figures. Where all rows stand at one place, the band is a bar.
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

    Parameters
    ----------
    bars : altair chart
        Bars at most 20 pixels high, without their place.
    names : sequence of str
        Their names, from above.
    field : str
        Field of the rows that holds them.

    Returns
    -------
    altair.LayerChart
        The bars, each in its place.
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

    Parameters
    ----------
    chart : altair chart
        What is drawn.
    label : str
        What it shows, for whoever cannot see it.
    prefix : str, optional
        Letters that no other drawing of the same page has, for its inner names.

    Returns
    -------
    str
        An SVG element for a page; `standalone` makes a file of it.

    Raises
    ------
    SpecError
        If the extra `png` is not installed.
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

    Parameters
    ----------
    svg : str
        An SVG element.

    Returns
    -------
    str
        The same with its rules for dark screens inside.
    """
    head, rest = svg.split(">", 1)
    return f"{head}><style>{dark_rules()}</style>{rest}"


def write_chart(chart: Any, path: str | Path, *, title: str, told: str = "") -> None:
    """Write one chart.

    Parameters
    ----------
    chart : altair chart
        What is drawn.
    path : path
        An HTML, PNG or SVG file.
    title : str
        What it shows.
    told : str, optional
        More of it, below the drawing of a page.

    Raises
    ------
    SpecError
        If the ending is none of these, the extra `png` is not installed, or the file cannot be written.
    """
    write_charts([(told or title, chart)], path, title=title)


def write_charts(charts: Iterable[tuple[str, Any]], path: str | Path, *, title: str) -> None:
    """Write charts: a page of all of them, or a picture in which they stand below each other.

    Parameters
    ----------
    charts : iterable of (str, altair chart)
        What each shows, and the chart.
    path : path
        An HTML, PNG or SVG file.
    title : str
        Title of the page.

    Raises
    ------
    SpecError
        As in `write_chart`.
    """
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
