"""Define `glmplan compare`: plans side by side, with causes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import Form, say

if TYPE_CHECKING:
    from glmplan.purchase.compare import Compared

__all__ = ["command", "plan_options"]


@o.with_options()
def command(
    plans: Annotated[
        list[str],
        typer.Argument(
            help="Plans as MODEL@MACHINE, or machines with --model; with options of one plan: 8xh200-sxm,kv=bf16."
        ),
    ],
    *,
    model: Annotated[str | None, typer.Option(help="Model of plans that name a machine alone.")] = None,
    users: o.UsersAtOnce = 1,
    deployment: Annotated[o.Given, o.plan("compare")],
    money: o.MoneyOptions = o.MoneyOptions(),
    form: o.Format = Form.text,
    plot: o.Charts = None,
) -> None:
    """Compare plans with the first one.

    The table has speed, memory, power and cost. Each difference is attributed to its causes.
    """
    from glmplan.cli.options import read_money
    from glmplan.errors import SpecError
    from glmplan.purchase.compare import compared

    questions = []
    for plan in plans:
        where, *own = plan.split(",")
        named, at, machine = where.partition("@")
        if not at and model is None:
            raise SpecError("names no machine and model as in MODEL@MACHINE, and --model is left out", value=plan)
        questions.append((named if at else str(model), machine if at else where, plan_options(own, plan)))
    if plot is not None:
        from glmplan.present.charts import check_chart

        check_chart(plot)
    paid = read_money(money)
    found = compared(questions, paid, users=users, **deployment)
    _show(found, paid.terms.utilisation, form)
    if plot is not None:
        _plot(found, plot)


def _plot(found: Compared, path: Path) -> None:
    """Write charts of the plans over concurrency, with the limits of the SLO."""
    from glmplan.present.charts import write_charts
    from glmplan.present.decision_parts import users_charts, users_rows, users_words

    plans = []
    for side in found.sides:
        limits = {"users": side.safe.users, "target_tpot_ms": 1e3 * side.safe.target_tpot} if side.safe else {}
        if side.safe and side.safe.target_ttft is not None:
            limits["target_ttft_ms"] = 1e3 * side.safe.target_ttft
        plans.append((side.name, {"safe": limits, "users": users_rows(side.planned, [found.users])}))
    title = f"{len(plans)} plans over concurrency"
    write_charts(users_charts(plans), path, title=title, legend=f"{users_words(plans)}.")


def plan_options(words: list[str], plan: str) -> dict[str, str]:
    """Return the options of one plan, from NAME=VALUE."""
    from glmplan.errors import SpecError
    from glmplan.request.option import options_of
    from glmplan.request.plan import PlanRequest

    known = {name: one for name, one in options_of(PlanRequest).items() if "compare" in one.commands}
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip().removeprefix("--").replace("-", "_")
        if not equals or name not in known:
            raise SpecError(f"{word!r} is not an option of a plan, as in kv=bf16", value=plan, choices=tuple(known))
        found[name] = value.strip()
    return found


def _show(found: Compared, utilisation: float, form: Form) -> None:
    from glmplan.present.compare_text import assumed_prices, causes_text, compare_rows, compare_text
    from glmplan.present.json_answers import compare_record
    from glmplan.present.tables import csv_table, markdown_rows

    content = compare_record(found, utilisation)
    plans = content["plans"]
    if form is Form.json:
        say(json.dumps(content, indent=2))
    elif form is Form.csv:
        say(csv_table(plan | {"price_assumed": "; ".join(plan["price_assumed"])} for plan in plans), end="")
    else:
        table = "\n".join([markdown_rows(compare_rows(plans), _cell), *(f"\n{one}" for one in assumed_prices(plans))])
        say(table if form is Form.md else compare_text(found, plans))
        say(causes_text(found))


def _cell(value: object) -> str:
    return "" if value is None else str(value)
