"""Report of a validation: text table and HTML page with plots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from glmplan.errors import SpecError
from glmplan.extras import check_extra
from glmplan.io.runs.columns import FIGURES
from glmplan.measure.explanations import Cause
from glmplan.measure.ladder import LadderRecord
from glmplan.measure.predicted_steps import METRICS, Compared, by_chance, consistent
from glmplan.present.charts import band, chart_svg, log_axis, rows_chart
from glmplan.present.page import escape, figure, light, page, table
from glmplan.units import QUANTILE_90, Ratio

__all__ = ["compared_json", "first_outside", "html_page", "prepare_plots", "standing"]

#: style class of a verdict
_LOOK = {"reproduced": "good", "in between": "middling", "different": "bad"}


def first_outside(compared: Sequence[Compared]) -> Ratio | None:
    """Return the lowest level with a measured value outside its interval."""
    return min((one.level for one in compared if not one.inside), default=None)


def standing(compared: Sequence[Compared]) -> str:
    """Return a line on the agreement of intervals and measurements.

    Examples
    --------
    >>> standing([Compared(2, "tpot_mean_ms", 11.5, 10.0, 9.0, 11.0)])
    '1 of 1 metrics outside the 90 % interval, the first at 2: within chance (at most 1)'
    """
    first = first_outside(compared)
    if first is None:
        return "all metrics inside the 90 % interval"
    outside = sum(not one.inside for one in compared)
    text = f"{outside} of {len(compared)} metrics outside the 90 % interval, the first at {first:g}: "
    if consistent(compared):
        return text + f"within chance (at most {by_chance(len(compared))})"
    far = max(compared, key=lambda one: one.distance)
    farthest = f"{far.metric} at {far.level:g} by {far.distance:.1f} half-widths"
    return text + f"more than by chance (at most {by_chance(len(compared))}); largest deviation: {farthest}"


def compared_json(
    compared: Sequence[Compared], causes: Sequence[Cause], pool: tuple[float, float, float] | None = None
) -> dict[str, Any]:
    """Return a comparison as JSON-ready values; `pool` in tokens."""
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
    cause_rows = [{"what": c.what, "evidence": c.evidence, "to_try": c.to_try} for c in causes]
    pool_row = None if pool is None else dict(zip(("predicted", "low", "high"), pool, strict=True))
    return {
        "figures": figures,
        "first_outside": first_outside(compared),
        "consistent": consistent(compared),
        "kv_pool_tokens": pool_row,
        "causes": cause_rows,
    }


def html_page(
    record: LadderRecord,
    compared: Sequence[Compared],
    causes: Sequence[Cause],
    said: str = "",
    *,
    in_time: Callable[[], bool] = lambda: True,
) -> str:
    """Return the report as one self-contained HTML page.

    Without the extra `png` it has tables only and names the missing plots. No plot begins once `in_time` is False.
    """
    title = f"{record.endpoint.model} at {record.endpoint.url}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(_summary(record, compared))}</p>",
        _steps_table(record),
    ]
    if compared:
        parts += ["<h2>Predicted and measured</h2>", _compared_table(compared)]
    if said:
        parts.append(f"<p class='faint'>{escape(_sentence(said))}</p>")
    parts += _plots(record, compared, in_time)
    if causes:
        parts.append("<h2>Likely causes</h2><ol>")
        parts += [f"<li><b>{escape(c.what)}</b>: {escape(c.evidence)}. Try: {escape(c.to_try)}.</li>" for c in causes]
        parts.append("</ol>")
    parts += ["<h2>The server</h2>", _facts_table(record)]
    return page(title, "\n".join(parts))


def prepare_plots() -> None:
    """Load the libraries of plots.

    They take more than a second of CPU, which no signal should wait for at the end of a run.
    """
    with suppress(SpecError):
        check_extra("vl_convert", field="plots")
        chart_svg(rows_chart([{"level": 1.0, "value": 1.0}]).mark_point().encode(x="level:Q", y="value:Q"), "")


def _plots(record: LadderRecord, compared: Sequence[Compared], in_time: Callable[[], bool]) -> list[str]:
    """Return the plots, or the reason why they are missing.

    A failed plot must not lose the measurements.
    """
    try:
        check_extra("vl_convert", field="plots")
    except SpecError as error:
        return [f"<p>{escape(str(error))}</p>"]
    drawn: list[str] = []
    for metric in METRICS:
        if not in_time():
            return [*drawn, "<p>Further plots were left out: a signal ended the run on a busy machine.</p>"]
        chart = _chart(record, compared, metric)
        if chart is not None:
            shown = chart_svg(chart, f"{_title(metric)}, measured and predicted", prefix=metric)
            drawn.append(figure([shown]))
    legend = "Points with their error: measured. Line with its 90 % interval: predicted."
    return [f"<div class='plots'>{''.join(drawn)}</div><p class='faint'>{legend}</p>"] if drawn else []


def _summary(record: LadderRecord, compared: Sequence[Compared]) -> str:
    sentences = [f"{len(record.steps)} steps, {record.started}"]
    if record.overhead is not None:
        added = f"{record.overhead.ttft * 1e3:.1f} ms to TTFT and {record.overhead.tpot * 1e3:.2f} ms to TPOT"
        sentences.append(f"the client adds {added} at {record.overhead.streams} streams")
    if record.stopped:
        sentences.append(f"stopped: {record.stopped}")
    if compared:
        sentences.append(standing(compared))
    return " ".join(map(_sentence, sentences))


def _sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:]}."


def _steps_table(record: LadderRecord) -> str:
    load = "rate" if record.plan.schedules else "users"
    noted = any(step.notes for step in record.steps)
    heads = [load, "requests", "faults", *(FIGURES[metric].heading for metric in METRICS), *(["notes"] * noted)]
    rows = [
        [
            f"{step.level:g}",
            f"{step.figures.get('num_requests', 0):g}",
            f"{step.faults}",
            *(_figure(step.figures.get(metric)) for metric in METRICS),
            *(["; ".join(step.notes)] * noted),
        ]
        for step in record.steps
    ]
    return table("Measurements by step", heads, rows, left=(len(heads) - 1,) if noted else ())


def _compared_table(compared: Sequence[Compared]) -> str:
    heads = ["level", "metric", "measured", "predicted", "interval", "difference", "verdict"]
    rows = []
    for one in compared:
        interval = "" if one.low is None or one.high is None else f"{_figure(one.low)} - {_figure(one.high)}"
        rows.append(
            [
                f"{one.level:g}",
                _title(one.metric),
                _figure(one.measured),
                _figure(one.predicted),
                interval,
                f"{one.difference:+.1%}",
                one.verdict + ("" if one.inside else ", outside the interval"),
            ]
        )
    drawn = table("All metrics; difference: predicted over measured, less one", heads, rows, left=(1, 6))
    for verdict, look in _LOOK.items():
        # keep other classes of the cell
        cell = f"' data-head='verdict'>{verdict}"
        drawn = drawn.replace(cell, f" {look}{cell}")
    return drawn


def _facts_table(record: LadderRecord) -> str:
    facts = record.facts
    rows = [
        ("engine", " ".join(filter(None, (facts.engine, facts.version)))),
        ("model", facts.model or ""),
        ("KV pool [token]", _figure(facts.kv_tokens)),
        ("running requests, limit", _figure(facts.max_sequences)),
        ("longest request [token]", _figure(facts.max_context)),
        ("prompt lengths from", record.prompts),
        ("pages that answered", ", ".join(facts.pages)),
        ("failed journal writes", str(record.journal_faults) if record.journal_faults else ""),
    ]
    known_rows = [(name, value) for name, value in rows if value]
    return table("Facts reported by the server", ["fact", "value"], known_rows, left=(0, 1))


def _chart(record: LadderRecord, compared: Sequence[Compared], metric: str) -> Any:
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
    level = alt.X(**log_axis("level", "rate [1/s]" if record.plan.schedules else "users"))
    title = _title(metric)
    layers: list[Any] = []
    if predicted:
        layers.append(band(predicted, level, ("value", "low", "high"), title=title))
    points = rows_chart(measured).encode(x=level)
    colour = light("orange")
    layers.append(points.mark_rule(color=colour, strokeWidth=2).encode(y=alt.Y("below:Q", title=title), y2="above:Q"))
    layers.append(points.mark_point(color=colour, filled=True, size=60).encode(y=alt.Y("value:Q", title=title)))
    return alt.layer(*layers).properties(width=280, height=220, title=title)


def _title(metric: str) -> str:
    return f"{FIGURES[metric].title} [{FIGURES[metric].unit}]"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
