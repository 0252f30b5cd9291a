"""Define `glmplan report`: one file for a decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import say
from glmplan.request.plan import PlanRequest

if TYPE_CHECKING:
    from glmplan.planner import FitAnswer
    from glmplan.purchase.money import Money

__all__ = ["command"]


@o.with_options()
def command(
    subjects: Annotated[list[str], typer.Argument(help="A model, with --on; or plans written by fit --format json.")],
    *,
    on: Annotated[
        list[str] | None, typer.Option(help="Machine: NxACCELERATOR, a host name or a TOML file; repeatable.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The report: .html, .pdf or .md.")],
    question: Annotated[o.Given, o.plan("report")],
    money: o.MoneyOptions = o.MoneyOptions(),
) -> None:
    """Write a decision report to one file.

    The report has question, answer, plots, options, risks, assumptions, sources and evidence level.
    """
    from glmplan.catalog.files import understood
    from glmplan.cli.options import read_money
    from glmplan.errors import SpecError
    from glmplan.present.decision import check_report, decision, write_report
    from glmplan.present.decision_parts import is_plan, read_plan

    check_report(out)
    paid = read_money(money)
    files = [one for one in subjects if is_plan(one)]
    models = [one for one in subjects if one not in files]
    if models and not on:
        raise SpecError("names no file with a plan, and a model needs --on", value=models[0])
    if not models and (on or question):
        words = "is of a model: a plan has been asked already"
        raise SpecError(words, field="--on" if on else "--" + next(iter(question)).replace("_", "-"))
    answers, records = _answers(models, on or [], question)
    records += [read_plan(file) for file in files]
    with understood(", ".join(files) or str(out), "plan"):
        causes = _causes(answers, paid, records) if not files else ()
        document = decision(records, paid, causes=causes, pictures=out.suffix != ".md")
        write_report(document, out)
    say(str(out))


def _answers(
    models: Sequence[str], machines: Sequence[str], said: Mapping[str, Any]
) -> tuple[list[FitAnswer], list[Mapping[str, Any]]]:
    """Return the answer of every model on every machine, and its record."""
    from glmplan.planner import fit_answer
    from glmplan.present.json_answers import fit_record

    answers = [fit_answer(PlanRequest(model, on, **said)) for model in models for on in machines]
    return answers, [fit_record(answer) for answer in answers]


def _causes(
    answers: Sequence[FitAnswer], money: Money, records: Sequence[Mapping[str, Any]]
) -> list[tuple[str, tuple[str, ...]]]:
    """Return the causes of each difference to the first plan.

    Plans that cannot be served are skipped.
    """
    from glmplan.planner.ask import Deployed
    from glmplan.present.compare_text import causes_of
    from glmplan.present.decision import common_load
    from glmplan.present.decision_parts import at_one_term, priced_plan
    from glmplan.purchase.compare import side_of

    money = at_one_term(records, money)
    load = common_load([priced_plan(record, money) for record in records])
    if len(answers) < 2 or load is None:
        return []
    sides = [
        side_of(Deployed(one.asked, one.holding, one.deployment), load, money)
        if one.holding is not None and one.deployment is not None and one.users
        else None
        for one in answers
    ]
    first, *rest = sides
    if first is None:
        return []
    return [(other.name, causes_of(first, other)) for other in rest if other is not None]
