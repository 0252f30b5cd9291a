"""Define `glmplan safe`: the largest load that meets an SLO."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from glmplan.catalog.tables import csv_lines
from glmplan.cli import options as o
from glmplan.cli.screen import Form, say
from glmplan.cli.service import ServiceOptions, TargetOptions, described_services
from glmplan.units import counted_unit

if TYPE_CHECKING:
    from glmplan.planner.service import Described
    from glmplan.simulation.safe_load import SafeLoad
    from glmplan.simulation.traffic.spec import Traffic

__all__ = ["SearchOptions", "command"]

#: loads on the curve of a chart [-]
_CURVE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Limits of the search, and output."""

    probability: Annotated[float | None, typer.Option(help="Probability of meeting the SLO; 0.95 by default.")] = None
    most: Annotated[float | None, typer.Option(help="Largest load to test.")] = None
    seed: o.Seed = 0
    plot: o.Charts = None
    form: o.Format = Form.text


@o.with_options()
def command(
    target: TargetOptions,
    *,
    slo: Annotated[str | None, typer.Option(help="SLO, such as 'ttft p95 < 2 s'; that of fit by default.")] = None,
    traffic: Annotated[
        str | None,
        typer.Option(help="Kind of traffic, as in simulate, also without its number; users and Poisson by default."),
    ] = None,
    shape: Annotated[o.Given, o.traffic("safe")],
    service: ServiceOptions,
    search: SearchOptions,
) -> None:
    """Find the largest load that meets an SLO at 95, 80 and 50 % probability.

    The load is a number of users and a request rate, or the kind given by --traffic.
    """
    from glmplan.errors import SpecError
    from glmplan.planner.service import loads_at, searched_traffic
    from glmplan.prediction.distribution import probability_asked
    from glmplan.prediction.step_models import site_calibration
    from glmplan.simulation.forked_worker import forked_worker
    from glmplan.simulation.load_search import Tries
    from glmplan.simulation.traffic.slo import parse_slo

    if search.plot is not None:
        from glmplan.present.charts import check_chart

        check_chart(search.plot)
    probability = probability_asked(search.probability)
    specs, usual = searched_traffic(traffic)
    service = replace(service, deployment={**service.deployment, "probability": probability})
    described, kinds = described_services(target, service, shape, *specs, usual=usual, slo=slo)
    of_fit = slo is None and described.plan is not None
    slo = slo or described.slo
    if not slo:
        raise SpecError("is needed with --step-time", field="--slo")
    targets = parse_slo(slo)
    begun = Tries(copied=True)

    def answer(kind: Traffic) -> SafeLoad:
        return loads_at(
            described, kind, targets, probability=probability, most=search.most, seed=search.seed, begun=begun
        )

    with site_calibration(service.deployment.get("calibration")), forked_worker(answer, copied=len(kinds) > 1) as two:
        if len(kinds) == 2:
            # the search for users takes few trials and runs beside that for the rate
            rate, users = two.both(kinds[1], kinds[0])
            found = [users, rate]
        else:
            found = [answer(kind) for kind in kinds]
        words = _other_words(described, kinds[0], slo) if of_fit and kinds[0].kind == "closed" else ""
    if search.plot is not None:
        import numpy as np

        from glmplan.present.charts import curves_of, safe_charts

        title = f"{target.model or 'own step time'} on {target.on or 'own machine'}: {slo}"
        ends = [point.load for point in found[0].points]
        loads = np.linspace(min(ends), min(max(ends), 2 * max(found[0].load, min(ends))), _CURVE)
        if found[0].unit == "users":
            loads = np.unique(np.round(loads))
        curves = curves_of(described.service, kinds[0], loads, described.ends)
        safe_charts(found[0], targets, search.plot, title=title, curves=curves)
    _show(found, search.form, described.basis, slo)
    if words and search.form is Form.text:
        say(words)


def _other_words(described: Described, traffic: Traffic, slo: str) -> str:
    """Return the layout that a typed SLO has, if it is not that of `fit`."""
    from glmplan.planner.traffic_search import solved_for

    assert described.plan is not None
    asked, holding = described.plan
    other = solved_for(asked, traffic, slo).ranked[0]
    if other.holding.terms == holding.terms:
        return ""
    chance = f"{100 * asked.probability:g} % probability"
    return f"{other.holding.terms.name} has more users with {chance}, one user {other.alone:.3g} tok/s: --slo '{slo}'"


def _show(found: list[SafeLoad], form: Form, basis: str, slo: str) -> None:
    if form is Form.json:
        from glmplan.present.json_answers import safe_record

        say(json.dumps(safe_record(found, slo, basis), indent=2))
        return
    if form is Form.csv:
        names = [f"load_at_{100 * share:g}" for share, _ in found[0].at]
        rows = [
            [
                one.unit,
                *(f"{load:g}" for load in (one.load, *(load for _, load in one.at))),
                one.breaks_first,
                one.reason,
            ]
            for one in found
        ]
        say(csv_lines([["unit", "safe", *names, "breaks_first", "reason"], *rows]), end="")
        return
    bar = "| " if form is Form.md else ""
    if form is Form.md:
        say("| safe load | limited by |\n|---|---|")
    for answer in found:
        middle, end = (" | ", " |") if form is Form.md else (": ", "")
        say(f"{bar}{_load_words(answer)}{middle}{answer.reason}{end}")
    if form is Form.text:
        chance = f"{100 * found[0].probability:g} % probability"
        say(f"{slo}, with {chance} over arrivals and the interval of the step time ({basis})")


def _load_words(answer: SafeLoad) -> str:
    """Return the safe load, and the loads at the other probabilities."""
    rate = f"{answer.load:.4g} {answer.unit}"
    load = counted_unit(answer.load, answer.unit) if answer.unit == "users" else rate
    others = ", ".join(f"{most:.4g} at {100 * share:g} %" for share, most in answer.at if share != answer.probability)
    return f"{load} ({others})"
