"""Charts of sweeps and of what moves an answer."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.report.charts import log_axis, named_bars, rows_chart
from glmplan.report.palette import light

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["spoken", "sweep_chart", "tornado_chart"]

#: columns as people call them; others stand as they are
_WORDS = {
    "user_tokens_per_s": "the speed of one user", "output_tokens_per_s": "the speed of all users together",
    "usd_month": "USD a month", "usd_per_million_output_tokens": "USD for a million answer tokens",
    "ttft_mean_ms": "the time to the first token", "tpot_mean_ms": "the time of each further token",
    "wall_w": "the power at the wall", "joules_per_output_token": "the energy of an answer token",
}  # fmt: skip

#: points that a page shows beside its frontier: more are a cloud that no browser draws quickly [-]
_POINTS = 4000
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

    Parameters
    ----------
    names : sequence of str
        Columns of a sweep.

    Returns
    -------
    str
        Them, one after the other.

    Examples
    --------
    >>> spoken(["user_tokens_per_s", "usd_month"])
    'the speed of one user, USD a month'
    """
    return ", ".join(_WORDS.get(name, name) for name in names)


def sweep_chart(frame: pd.DataFrame, best: np.ndarray, *, title: str) -> Any:
    """Throughput of a machine against the speed of one of its users.

    Parameters
    ----------
    frame : pandas.DataFrame
        Rows of a sweep.
    best : (n,) array of bool
        Which of them are on the frontier.
    title : str
        Title.

    Returns
    -------
    altair.LayerChart
        All points (some of them, if they are very many), the frontier as larger ones with the 90 % interval of their
        throughput as a band; where nothing has both speeds, words that say so.
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
    if len(known) > _POINTS:
        kept = known[np.linspace(0, len(known) - 1, _POINTS).astype(int)]
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

    Parameters
    ----------
    rows : list of dict
        ``what``, ``low`` and ``high`` [unit].
    at : float
        The answer where nothing moves [unit]; a line through each bar.
    of : str
        What the answer is.
    title : str
        Title.
    unit : str
        Unit of the answer.

    Returns
    -------
    altair.LayerChart
        The bars, each with its name above it.
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
