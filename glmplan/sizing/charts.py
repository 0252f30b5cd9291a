"""Charts of sweeps and sizes: HTML with its data inside, PNG or SVG where the renderer is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.errors import SpecError
from glmplan.extras import check_extra
from glmplan.facts.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FORMS", "sweep_chart", "tornado_chart", "write_chart"]

#: endings of files that a chart is written to
FORMS: tuple[str, ...] = (".html", ".png", ".svg")
#: points that a page shows beside its frontier: more are a cloud that no browser draws quickly [-]
_POINTS = 4000
_SHOWN = ("model", "on", "checkpoint", "layout", "users", "input_tokens", "user_tokens_per_s", "output_tokens_per_s",
          "usd_month", "wall_w")  # fmt: skip


def write_chart(chart: Any, path: str | Path) -> None:
    """Write a chart.

    Parameters
    ----------
    chart : altair.Chart
        The chart.
    path : path
        An HTML, PNG or SVG file.

    Raises
    ------
    SpecError
        If the ending is none of these, or pictures cannot be drawn because the extra is not installed.
    """
    path = Path(path)
    if path.suffix not in FORMS:
        raise SpecError("is no kind of chart", field="--plot", value=path.suffix, choices=FORMS)
    check_extra("vl_convert", field="--plot")
    if path.suffix == ".html":
        # the page carries its scripts and opens without a network
        write_atomically(path, chart.to_html(inline=True))
        return
    import io

    stream: Any = io.BytesIO() if path.suffix == ".png" else io.StringIO()
    chart.save(stream, format=path.suffix[1:])
    write_atomically(path, stream.getvalue())


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
    rows = np.union1d(known, np.flatnonzero(best))
    part = frame.iloc[rows][shown].assign(best=best[rows])
    part = part.astype(object).where(part.notna(), None)
    base = alt.Chart(alt.Data(values=part.to_dict("records"))).encode(
        x=alt.X("user_tokens_per_s:Q", title="speed of one user [token/s]", scale=alt.Scale(type="log")),
        y=alt.Y("output_tokens_per_s:Q", title="speed of all users together [token/s]", scale=alt.Scale(type="log")),
        color=alt.Color("on:N", title="machine"),
        tooltip=[alt.Tooltip(f"{name}:N") for name in shown],
    )
    cloud = base.mark_circle(size=18, opacity=0.35)
    edge = base.transform_filter("datum.best").mark_point(size=70, filled=False)
    return (cloud + edge).properties(title=title, width=720, height=460)


def tornado_chart(rows: list[dict[str, Any]], *, title: str, unit: str) -> Any:
    """Bars of what moves an answer, the largest above.

    Parameters
    ----------
    rows : list of dict
        ``what``, ``low`` and ``high`` [unit].
    title : str
        Title.
    unit : str
        Unit of the answer.

    Returns
    -------
    altair.Chart
        The bars.
    """
    import altair as alt

    return (
        alt.Chart(alt.Data(values=rows))
        .mark_bar()
        .encode(
            x=alt.X("low:Q", title=unit, scale=alt.Scale(zero=False)),
            x2="high:Q",
            y=alt.Y("what:N", sort=None, title=None),
            tooltip=[alt.Tooltip(f"{name}:N") for name in rows[0]] if rows else [],
        )
        .properties(title=title, width=640)
    )
