"""The report of a validation: a table in text, and an HTML page with plots."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

from glmplan.measure.explanations import Cause
from glmplan.measure.ladder import LadderRecord
from glmplan.measure.verdict import METRICS, Compared, by_chance, consistent
from glmplan.readers.runs.figures import FIGURES
from glmplan.units import QUANTILE_90

__all__ = ["compared_json", "first_outside", "html_page", "standing"]

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1b1f24 }
table { border-collapse: collapse; margin: 1rem 0; width: 100% } th, td { padding: .25rem .6rem; text-align: right }
th { border-bottom: 2px solid #57606a } td { border-bottom: 1px solid #d0d7de } td.t, th.t { text-align: left }
.reproduced { color: #116329 } .different { color: #a40e26 } .between { color: #7a4d00 }
.plots { display: flex; flex-wrap: wrap; gap: 1rem }
"""


def first_outside(compared: Sequence[Compared]) -> float | None:
    """Return the lowest level at which a measured value lies outside the predicted interval.

    Parameters
    ----------
    compared : sequence of Compared
        Figures.

    Returns
    -------
    float or None
        The level, [-]; None where all lie inside.
    """
    return min((one.level for one in compared if not one.inside), default=None)


def standing(compared: Sequence[Compared]) -> str:
    """Say in words how the intervals stand up to what was measured.

    Parameters
    ----------
    compared : sequence of Compared
        Figures.

    Returns
    -------
    str
        A line for the foot of a table.

    Examples
    --------
    >>> standing([Compared(2, "tpot_mean_ms", 11.5, 10.0, 9.0, 11.0)])
    '1 of 1 figures outside the 90 % interval, the first at 2: as chance allows (1)'
    """
    first = first_outside(compared)
    if first is None:
        return "all inside the interval"
    outside = sum(not one.inside for one in compared)
    found = f"{outside} of {len(compared)} figures outside the 90 % interval, the first at {first:g}: "
    if consistent(compared):
        return found + f"as chance allows ({by_chance(len(compared))})"
    far = max(compared, key=lambda one: one.distance)
    most = f"{far.metric} at {far.level:g} by {far.distance:.1f} half widths"
    return found + f"more than chance allows ({by_chance(len(compared))}); farthest {most}"


def compared_json(
    compared: Sequence[Compared], causes: Sequence[Cause], pool: tuple[float, float, float] | None = None
) -> dict[str, Any]:
    """Return a comparison as JSON-ready values.

    Parameters
    ----------
    compared : sequence of Compared
        Figures.
    causes : sequence of Cause
        What may explain the differences.
    pool : tuple of float, optional
        Predicted KV pool and its interval, [token]

    Returns
    -------
    dict
        `figures`, `first_outside`, `consistent`, `kv_pool_tokens` and `causes`.
    """
    figures = [
        {
            "level": one.level,
            "metric": one.metric,
            "measured": one.measured,
            "predicted": one.predicted,
            "low": one.low,
            "high": one.high,
            "measured_error": one.error,
            "difference": one.difference,
            "verdict": one.verdict,
            "inside": one.inside,
            "distance": one.distance,
        }
        for one in compared
    ]
    told = [{"what": c.what, "evidence": c.evidence, "to_try": c.to_try} for c in causes]
    held = None if pool is None else dict(zip(("predicted", "low", "high"), pool, strict=True))
    return {
        "figures": figures,
        "first_outside": first_outside(compared),
        "consistent": consistent(compared),
        "kv_pool_tokens": held,
        "causes": told,
    }


def html_page(record: LadderRecord, compared: Sequence[Compared], causes: Sequence[Cause]) -> str:
    """Return the report as one HTML page.

    Parameters
    ----------
    record : LadderRecord
        What was measured.
    compared : sequence of Compared
        Beside what was predicted; empty without a prediction.
    causes : sequence of Cause
        What may explain the differences.

    Returns
    -------
    str
        The page. The plots need the Vega scripts of a public CDN; the tables do not.
    """
    title = f"{record.endpoint.model} at {record.endpoint.url}"
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>",
        *(f"<script src='https://cdn.jsdelivr.net/npm/{name}'></script>" for name in _SCRIPTS),
        f"</head><body><h1>{html.escape(title)}</h1>",
        f"<p>{html.escape(_summary(record, compared))}</p>",
        _steps_table(record),
    ]
    if compared:
        parts += ["<h2>Predicted and measured</h2>", _compared_table(compared)]
    parts.append("<div class='plots'>")
    for metric in METRICS:
        spec = _chart(record, compared, metric)
        if spec is not None:
            # the closing tag of a script must not stand in its own text
            text = json.dumps(spec).replace("</", "<\\/")
            parts.append(
                f"<div id='{metric}'></div><script>vegaEmbed('#{metric}', {text}, {{actions: false}})</script>"
            )
    parts.append("</div>")
    if causes:
        parts.append("<h2>Likely causes</h2><ol>")
        parts += [
            f"<li><b>{html.escape(c.what)}</b>: {html.escape(c.evidence)}. Try: {html.escape(c.to_try)}.</li>"
            for c in causes
        ]
        parts.append("</ol>")
    parts += ["<h2>The server</h2>", _facts_table(record), "</body></html>"]
    return "\n".join(parts)


_SCRIPTS = ("vega@6", "vega-lite@6", "vega-embed@7")


def _summary(record: LadderRecord, compared: Sequence[Compared]) -> str:
    told = [f"{len(record.steps)} steps, {record.started}"]
    if record.overhead is not None:
        added = f"{record.overhead.ttft * 1e3:.1f} ms to TTFT and {record.overhead.tpot * 1e3:.2f} ms to TPOT"
        told.append(f"the client adds {added} at {record.overhead.streams} streams")
    if record.stopped:
        told.append(f"stopped: {record.stopped}")
    if compared:
        outside = first_outside(compared)
        told.append("all inside the interval" if outside is None else f"first outside the interval at {outside:g}")
    return ". ".join(told) + "."


def _steps_table(record: LadderRecord) -> str:
    load = "rate" if record.plan.schedules else "users"
    names = "".join(f"<th>{FIGURES[metric].heading}</th>" for metric in METRICS)
    head = f"<table><tr><th>{load}</th><th>requests</th><th>faults</th>{names}<th class='t'>to know</th></tr>"
    rows = []
    for step in record.steps:
        figures = "".join(f"<td>{_figure(step.figures.get(metric))}</td>" for metric in METRICS)
        cells = (
            f"<td>{step.level:g}</td><td>{step.figures.get('num_requests', 0):g}</td><td>{step.faults}</td>{figures}"
        )
        rows.append(f"<tr>{cells}<td class='t'>{html.escape('; '.join(step.notes))}</td></tr>")
    return head + "".join(rows) + "</table>"


def _compared_table(compared: Sequence[Compared]) -> str:
    head = "<table><tr><th>at</th><th class='t'>figure</th><th>measured</th><th>predicted</th><th>interval</th>"
    head += "<th>difference</th><th class='t'>verdict</th></tr>"
    rows = []
    for one in compared:
        interval = "" if one.low is None or one.high is None else f"{_figure(one.low)} - {_figure(one.high)}"
        style = {"in between": "between"}.get(one.verdict, one.verdict)
        cells = f"<td>{one.level:g}</td><td class='t'>{_title(one.metric)}</td>"
        cells += f"<td>{_figure(one.measured)}</td><td>{_figure(one.predicted)}</td><td>{interval}</td>"
        where = "" if one.inside else ", outside the interval"
        cells += f"<td>{one.difference:+.1%}</td><td class='t {style}'>{one.verdict}{where}</td>"
        rows.append(f"<tr>{cells}</tr>")
    return head + "".join(rows) + "</table>"


def _facts_table(record: LadderRecord) -> str:
    facts = record.facts
    rows = [
        ("engine", " ".join(filter(None, (facts.engine, facts.version)))),
        ("model", facts.model),
        ("KV pool [token]", _figure(facts.kv_tokens)),
        ("sequences at once", _figure(facts.max_sequences)),
        ("longest request [token]", _figure(facts.max_context)),
        ("prompt lengths by", record.prompts),
        ("pages that answered", ", ".join(facts.pages)),
        ("failed writes of the journal", str(record.journal_faults) if record.journal_faults else ""),
    ]
    told = "".join(f"<tr><td class='t'>{n}</td><td class='t'>{html.escape(v)}</td></tr>" for n, v in rows if v)
    return f"<table>{told}</table>"


def _chart(record: LadderRecord, compared: Sequence[Compared], metric: str) -> dict[str, Any] | None:
    import altair as alt

    measured = [
        {"level": s.level, "value": s.figures[metric], "error": QUANTILE_90 * s.errors.get(metric, 0.0)}
        for s in record.steps
        if metric in s.figures
    ]
    if not measured:
        return None
    for point in measured:
        point["below"], point["above"] = point["value"] - point["error"], point["value"] + point["error"]
    predicted = [
        {"level": c.level, "value": c.predicted, "low": c.low, "high": c.high} for c in compared if c.metric == metric
    ]
    level = alt.X("level:Q", title="rate [1/s]" if record.plan.schedules else "users", scale=alt.Scale(type="log"))
    title = _title(metric)
    layers: list[Any] = []
    if predicted:
        base = alt.Chart(alt.Data(values=predicted)).encode(x=level)
        layers.append(base.mark_area(opacity=0.25, color="#0969da").encode(y=alt.Y("low:Q", title=title), y2="high:Q"))
        layers.append(base.mark_line(color="#0969da").encode(y=alt.Y("value:Q", title=title)))
    points = alt.Chart(alt.Data(values=measured)).encode(x=level)
    layers.append(points.mark_rule(color="#bc4c00").encode(y=alt.Y("below:Q", title=title), y2="above:Q"))
    layers.append(points.mark_point(color="#bc4c00", filled=True, size=60).encode(y=alt.Y("value:Q", title=title)))
    chart: dict[str, Any] = alt.layer(*layers).properties(width=280, height=220, title=title).to_dict()
    return chart


def _title(metric: str) -> str:
    return f"{FIGURES[metric].title} [{FIGURES[metric].unit}]"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
