"""`glmplan safe`: the largest load that keeps a promise."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmplan.cli import options as o
from glmplan.cli.forms import Form
from glmplan.cli.screen import say

if TYPE_CHECKING:
    from glmplan.serving.safe_load import SafeLoad

__all__ = ["SearchOptions", "command"]

#: loads that a chart shows the times at [-]
_CURVE = 10
#: what a search begins with where no number is typed
_BEGINNINGS = {"closed": "1", "sessions": "1"} | dict.fromkeys(("poisson", "gamma", "onoff", "daily"), "1/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How far is searched, and what is written."""

    most: Annotated[float | None, typer.Option(help="Largest load to look at.")] = None
    seed: o.Seed = 0
    plot: Annotated[Path | None, typer.Option(help="Charts: .html, .png or .svg.")] = None
    form: o.Format = Form.text


@o.with_options(without=("ramp",))
def command(
    target: o.TargetOptions,
    *,
    slo: Annotated[str | None, typer.Option(help="Promise, such as 'ttft p95 < 2 s'; that of fit by default.")] = None,
    traffic: Annotated[
        str | None,
        typer.Option(help="Kind of traffic, as in simulate, also without its number; users and Poisson by default."),
    ] = None,
    shape: o.TrafficOptions,
    service: o.ServiceOptions,
    search: SearchOptions,
) -> None:
    """Find the most users and the highest request rate that keep a promise with 95 % probability."""
    from glmplan.cli.service import described_services
    from glmplan.errors import SpecError
    from glmplan.serving.safe_load import safe_load
    from glmplan.serving.traffic.promises import parse_slo

    if search.plot is not None:
        from glmplan.report.charts import check_chart

        check_chart(search.plot)
    specs = [_with_number(traffic)] if traffic else ["closed:1", "poisson:1/s"]
    described, kinds = described_services(target, service, shape, *specs)
    slo = slo or described.promise
    if not slo:
        raise SpecError("is needed with --step-time", field="--slo")
    targets, draws = parse_slo(slo), described.draws()
    found = [safe_load(described.service, kind, targets, **draws, most=search.most, seed=search.seed) for kind in kinds]
    if search.plot is not None:
        import numpy as np

        from glmplan.report.simulation_charts import curves_of, safe_charts

        title = f"{target.model or 'own step time'} on {target.on or 'own machine'}: {slo}"
        ends = [point.load for point in found[0].points]
        loads = np.linspace(min(ends), min(max(ends), 2 * max(found[0].load, min(ends))), _CURVE)
        if found[0].unit == "users":
            loads = np.unique(np.round(loads))
        curves = curves_of(described.service, kinds[0], loads, (described.low, described.high))
        safe_charts(found[0], targets, search.plot, title=title, curves=curves)
    _show(found, search.form, described.basis, slo)


def _with_number(spec: str) -> str:
    """The traffic with a number to begin with, which is what is searched."""
    kind, comma, rest = spec.partition(",")
    if ":" in kind or kind not in _BEGINNINGS:
        return spec
    return f"{kind}:{_BEGINNINGS[kind]}{comma}{rest}"


def _row(answer: SafeLoad) -> dict[str, Any]:
    name = "safe_users" if answer.unit == "users" else f"safe_{answer.unit.replace('/', '_per_').replace(' ', '_')}"
    return {name: answer.load, "breaks_first": answer.breaks_first, "reason": answer.reason}


def _show(found: list[SafeLoad], form: Form, basis: str, slo: str) -> None:
    if form is Form.json:
        content: dict[str, Any] = {"slo": slo, "basis": basis}
        for answer in found:
            row = _row(answer)
            name = next(iter(row))
            points = [
                {
                    "load": point.load,
                    "safe": point.safe,
                    "broken": point.broken,
                    **{k: v if math.isfinite(v) else None for k, v in point.summary.items()},
                }
                for point in answer.points
            ]
            content[name] = row[name]
            content[name.removeprefix("safe_") + "_search"] = {
                "breaks_first": answer.breaks_first,
                "reason": answer.reason,
                "points": points,
            }
        say(json.dumps(content, indent=2))
        return
    if form is Form.csv:
        say("unit,safe,breaks_first,reason")
        for answer in found:
            say(f'{answer.unit},{answer.load:g},"{answer.breaks_first}","{answer.reason}"')
        return
    bar = "| " if form is Form.md else ""
    if form is Form.md:
        say("| safe load | what breaks first |\n|---|---|")
    for answer in found:
        middle, end = (" | ", " |") if form is Form.md else (": ", "")
        say(f"{bar}{answer.load:.4g} {answer.unit}{middle}{answer.reason}{end}")
    if form is Form.text:
        say(f"{slo}, with 95 % probability over arrivals and the interval of the step time ({basis})")
