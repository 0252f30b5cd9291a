"""Questions answered by the library: each function takes a checked question and gives plain values.

This runs in a process of its own (`glmplan.serve.worker`) and knows nothing of HTTP. Records are those of the command
line's ``--format json``, so that both say the same numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import date
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from glmplan.errors import SpecError
from glmplan.serve import questions as q

if TYPE_CHECKING:
    from glmplan.sizing.money import Money

__all__ = ["ANSWERS", "QUESTIONS", "CatalogueQuestion", "Progress", "money_of_question"]

#: points that are predicted in the time in which one load is simulated, by far [-]
_SIMULATED = 1000
#: called with how much is done, and of how much
Progress = Callable[[int, int], None]


def _fit(question: q.FitQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.plan.ask import fit
    from glmplan.report.fit_json import fit_record

    return fit_record(fit(question.model, question.on, traffic=question.traffic, **_said(question)))


def _said(question: q.FitQuestion) -> dict[str, Any]:
    return question.words() | ({} if question.users is None else {"users": question.users})


def _values(question: q.FitQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.serve.values import values_of

    return values_of(_fit(question, progress, limits))


def _predict(question: q.PredictQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.plan.ask import deployment, predict

    counts = question.users if isinstance(question.users, list) else [question.users]
    planned = deployment(question.model, question.on, **question.words())
    rows = []
    for count in counts:
        found = predict(planned, users=count)
        figures = {name: asdict(one) for name, one in found.figures.items()}
        rows.append({"users": count, "figures": figures, "knowledge": found.knowledge, "basis": found.basis})
    return {
        "layout": planned.holding.terms.name,
        "engine": planned.asked.engine,
        "units": {"ttft": "s", "tpot": "s", "rates": "1/s"},
        "users": rows,
    }


def _predict_table(question: q.TableQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    import csv
    import io

    import pandas as pd

    from glmplan.prediction.table import predict_runs, rows_as_csv
    from glmplan.readers.runs.known_names import with_known_names
    from glmplan.readers.runs.table import runs_of_frame

    if len(question.rows) > limits["rows"]:
        raise SpecError(f"are more than the {limits['rows']:,} that are answered at once", field="rows",
                        value=len(question.rows))  # fmt: skip
    table = with_known_names(runs_of_frame(pd.DataFrame(question.rows)))
    text = rows_as_csv(predict_runs(table, progress=progress))
    rows = [{name: _number(cell) for name, cell in row.items()} for row in csv.DictReader(io.StringIO(text))]
    return {"rows": rows, "warnings": list(table.warnings)}


def _number(cell: str) -> str | float | None:
    try:
        return float(cell)
    except ValueError:
        return cell or None


def _simulate(question: q.SimulateQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.plan.described import described_under
    from glmplan.plan.question import Words
    from glmplan.report.answers_json import simulate_record
    from glmplan.serving.outcome_range import outcome_range
    from glmplan.serving.simulate import simulate
    from glmplan.serving.traffic.promises import parse_slo
    from glmplan.serving.traffic.spec import parse_traffic

    targets = parse_slo(question.slo) if question.slo else ()
    words = Words(question.model, question.on, **_without_lengths(question))
    kind = parse_traffic(question.traffic, **question.arrivals())
    described, [arriving] = described_under(words, [kind])
    requests = question.requests
    if requests is None:
        requests = 10 * arriving.users if arriving.kind == "closed" and arriving.users else 1000
    total = requests * question.replications
    if total > limits["requests"]:
        raise SpecError(f"are more than the {limits['requests']:,} requests that are simulated here", field="requests",
                        value=total)  # fmt: skip
    done = [0]

    def finished(count: int) -> None:
        done[0] += count
        progress(done[0], total)

    outcome = simulate(
        described.service,
        arriving,
        requests=requests,
        seed=question.seed,
        replications=question.replications,
        targets=targets,
        warmup=question.warmup,
        progress=finished,
    )
    ranges = {}
    if question.ranges and outcome.summary["requests"]:
        span = (described.low, described.high)
        ranges = outcome_range(
            described.service, arriving, outcome.summary, interval=span, requests=requests, seed=question.seed
        )
    return simulate_record(outcome, targets=targets, basis=described.basis, ranges=ranges)


def _without_lengths(question: q.PlanQuestion) -> dict[str, Any]:
    """Words of a plan whose lengths are those of the traffic, as `glmplan simulate` reads them."""
    return {name: value for name, value in question.words().items() if name not in ("input", "output")}


def _safe(question: q.SafeQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.plan.described import described_under
    from glmplan.plan.question import Words
    from glmplan.plan.safe_loads import safe_of, searched_traffic
    from glmplan.report.answers_json import safe_record
    from glmplan.serving.traffic.promises import parse_slo
    from glmplan.serving.traffic.spec import parse_traffic

    specs, usual = searched_traffic(question.traffic)
    kinds = [parse_traffic(spec, **question.arrivals()) for spec in specs]
    words = Words(question.model, question.on, **_without_lengths(question))
    described, arriving = described_under(words, kinds, usual=usual)
    slo = question.slo or described.promise
    targets, found = parse_slo(slo), []
    for number, kind in enumerate(arriving):
        progress(number, len(arriving))
        found.append(safe_of(described, kind, targets, most=question.most, seed=question.seed))
    return safe_record(found, slo, described.basis)


def money_of_question(question: q.MoneyQuestion) -> Money:
    """Read the prices and terms of a question.

    Parameters
    ----------
    question : MoneyQuestion
        As asked.

    Returns
    -------
    Money
        Published ones with those of the question.

    Raises
    ------
    SpecError
        If one cannot be read.
    """
    from glmplan.sizing.money import money_of

    today = date.fromisoformat(question.today) if question.today else date.today()
    return money_of(question.price, question.term, today=today, region=question.region)


def _sweep(question: q.SweepQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.sizing.axes import read_sweep
    from glmplan.sizing.sweep import swept

    other = {"exact", *q.MoneyQuestion.model_fields}
    most = limits["points"] if question.traffic is None else max(limits["points"] // _SIMULATED, 1)
    instead = f"at most {most:,} here, or ask the command line"
    sweep = read_sweep(question.model_dump(exclude=other, exclude_none=True), most=most, instead=instead)
    paid = money_of_question(question)
    found = swept(sweep, money=paid, exact=question.exact, progress=progress)
    rows = json.loads(found.to_frame().to_json(orient="records", double_precision=6))
    return {"points": len(rows), "rows": rows, "notes": list(paid.terms.notes)}


def _size(question: q.SizeQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.sizing.size import sized
    from glmplan.sizing.size_question import read_size
    from glmplan.sizing.size_text import size_content

    other = {"model", "slo", "answers", *q.MoneyQuestion.model_fields}
    said = question.model_dump(exclude=other, exclude_none=True)
    asked = read_size(question.model, question.slo, **said)
    return size_content(sized(asked, money_of_question(question), answers=question.answers, progress=progress))


def _compare(question: q.CompareQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.plan.ask import deployment
    from glmplan.report.answers_json import compare_record
    from glmplan.sizing.compare import Compared, causes_of, side_of

    paid = money_of_question(question)
    planned = [deployment(one.model, one.on, users=(question.users,), **one.words()) for one in question.plans]
    sides = tuple(side_of(one, question.users, paid) for one in planned)
    found = Compared(sides, question.users, tuple(causes_of(sides[0], other) for other in sides[1:]))
    return compare_record(found, paid.terms.utilisation)


def _cost(question: q.CostQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.plan.ask import deployment
    from glmplan.serve.costs import cost_record

    planned = deployment(question.model, question.on, users=(question.users,), **question.words())
    return cost_record(planned, question.users, money_of_question(question))


def _links(question: q.LinksQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.serve.host_links import links_record

    return links_record(question.on, tp=question.tp, pp=question.pp)


def _workbook(question: q.CostQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    import base64
    from importlib import import_module
    from importlib.util import find_spec

    if find_spec("glmplan.sheets") is None:
        raise SpecError("are not in this installation: take the JSON or the command line", field="workbooks")
    book = import_module("glmplan.sheets.plan_book")
    option = import_module("glmplan.sheets.option")
    if question.power_limit is not None:
        raise SpecError("is not in workbooks yet, whose cells draw from the rating", field="power_limit")
    said = {name: value for name, value in question.words().items() if name not in ("input", "output", "context")}
    said = {name: value for name, value in said.items() if value is not False}
    load = book.load_of_words(question.users, question.input, question.output, question.context, reuse=0, growth=0)
    wanted = option.read_wanted(None, question.on, question.model)
    found = book.plan_book(
        question.model, wanted, load, money_of_question(question), said=said, progress=progress
    )  # fmt: skip
    return {"xlsx": base64.b64encode(found.content()).decode()}


class CatalogueQuestion(BaseModel):
    """What there is; nothing is asked."""


def _catalogue(question: CatalogueQuestion, progress: Progress, limits: Mapping[str, Any]) -> dict[str, Any]:
    from glmplan.facts.engines.walls import engine_names, load_engine
    from glmplan.facts.formats import KV_FORMATS
    from glmplan.plan.listings import hardware, models

    engines = [{"name": name, "newest": load_engine(name).newest} for name in engine_names()]
    return {
        "models": list(models().rows),
        "hardware": list(hardware().rows),
        "engines": engines,
        "kv_formats": sorted(KV_FORMATS),
    }


#: name of a question → its form
QUESTIONS: dict[str, type[BaseModel]] = {
    "fit": q.FitQuestion,
    "values": q.FitQuestion,
    "predict": q.PredictQuestion,
    "predict-table": q.TableQuestion,
    "simulate": q.SimulateQuestion,
    "safe": q.SafeQuestion,
    "sweep": q.SweepQuestion,
    "size": q.SizeQuestion,
    "compare": q.CompareQuestion,
    "cost": q.CostQuestion,
    "links": q.LinksQuestion,
    "workbook": q.CostQuestion,
    "catalogue": CatalogueQuestion,
}
#: name of a question → what answers it
ANSWERS: dict[str, Callable[[Any, Progress, Mapping[str, Any]], dict[str, Any]]] = {
    "fit": _fit,
    "values": _values,
    "predict": _predict,
    "predict-table": _predict_table,
    "simulate": _simulate,
    "safe": _safe,
    "sweep": _sweep,
    "size": _size,
    "compare": _compare,
    "cost": _cost,
    "links": _links,
    "workbook": _workbook,
    "catalogue": _catalogue,
}
