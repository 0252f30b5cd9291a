"""Charts of sweeps and of what moves an answer."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.report.charts import log_axis, named_bars, rows_chart
from glmplan.report.palette import light

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["sweep_chart", "tornado_chart"]

#: points that a page shows beside its frontier: more are a cloud that no browser draws quickly [-]
_POINTS = 4000
#: letters of a title that stand over a chart as wide as these [-]
_LETTERS = 46
_SHOWN = ("model", "on", "checkpoint", "layout", "users", "input_tokens", "user_tokens_per_s", "output_tokens_per_s",
          "usd_month", "wall_w")  # fmt: skip


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
        All points (some of them, if they are very many) and the frontier as larger ones.
    """
    import altair as alt

    shown = [name for name in _SHOWN if name in frame]
    known = np.flatnonzero(frame["output_tokens_per_s"].notna().to_numpy())
    if len(known) > _POINTS:
        known = known[np.linspace(0, len(known) - 1, _POINTS).astype(int)]
    kept = np.union1d(known, np.flatnonzero(best))
    part = frame.iloc[kept][shown].assign(best=best[kept])
    part = part.astype(object).where(part.notna(), None)
    rows = [
        one | {"told": "; ".join(f"{name} {_short(value)}" for name, value in one.items() if name in shown and value)}
        for one in part.to_dict("records")
    ]
    base = rows_chart(rows).encode(
        x=alt.X(**log_axis("user_tokens_per_s", "speed of one user [token/s]")),
        y=alt.Y(**log_axis("output_tokens_per_s", "speed of all users together [token/s]")),
        color=alt.Color("on:N", title=None, legend={"orient": "bottom", "columns": 3, "symbolOpacity": 1}),
        description="told:N",
    )
    cloud = base.mark_circle(size=24, opacity=0.5)
    edge = base.transform_filter("datum.best").mark_point(size=70, filled=False)
    return (cloud + edge).properties(title=_lines(title), width=370, height=320)


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
    words = [f"{of} [{unit}]", f"line: {_short(at)}, where nothing moves"]
    bars = rows_chart(told).mark_bar(height=20)
    bars = bars.encode(x=alt.X("low:Q", title=words, scale=alt.Scale(zero=False)), x2="high:Q", description="told:N")
    names = [str(one["what"]) for one in rows]
    # as high as the bars and no higher: their names stand between them
    rest = rows_chart([{"what": name, "at": at} for name in names])
    rest = rest.mark_tick(orient="vertical", size=26, thickness=2, color=light("ink"), opacity=1)
    rest = rest.encode(x="at:Q", y=alt.Y("what:N", title=None, sort=names, axis=None))
    return (named_bars(bars, names, "what") + rest).properties(title=_lines(title))
