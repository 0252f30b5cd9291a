"""Define `glmplan sensitivity`: effects of assumptions on a result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import Form, say

__all__ = ["command"]


@o.with_options()
def command(
    model: o.RequiredModel,
    *,
    on: o.RequiredOn,
    of: Annotated[str, typer.Option(help="Outcome.")] = "usd_per_million_output_tokens",
    users: Annotated[int, typer.Option(min=1, help="Concurrency.")] = 8,
    deployment: Annotated[o.Given, o.plan("sensitivity")],
    money: o.MoneyOptions = o.MoneyOptions(),
    plot: Annotated[Path | None, typer.Option(help="Tornado chart: .html, .png or .svg.")] = None,
    form: o.Format = Form.text,
) -> None:
    """Rank assumptions by their effect on an outcome.

    The first assumption is the one to measure or to ask for.
    """
    from glmplan.cli.options import read_money
    from glmplan.planner.ask import deployment as planned_for
    from glmplan.present.sweep_text import four_digits, sensitivity_markdown, sensitivity_text
    from glmplan.present.tables import csv_table
    from glmplan.purchase.sensitivity import OUTCOMES, sensitivity
    from glmplan.units import counted_unit

    if plot is not None:
        from glmplan.present.charts import check_chart

        check_chart(plot)
    planned = planned_for(model, on, users=(users,), **deployment)
    rest, moves = sensitivity(planned, read_money(money), users=users, outcome=of)
    unit = OUTCOMES[of]
    rows = [
        {
            "what": one.what,
            "low": one.at_low,
            "high": one.at_high,
            "from": one.low,
            "to": one.high,
            "know it by": one.measure,
        }
        for one in moves
    ]
    if plot is not None:
        from glmplan.present.charts import tornado_chart, write_chart

        title = f"Sensitivity of {model} on {on}, {users} user{'s' * (users != 1)}"
        write_chart(tornado_chart(rows, rest, of=of, title=title, unit=unit), plot, title=title)
    if form is Form.json:
        say(json.dumps({"outcome": of, "unit": unit, "value": rest, "moves": rows}, indent=2))
    elif form is Form.csv:
        say(csv_table(rows), end="")
    elif form is Form.md:
        say(sensitivity_markdown(rows))
    else:
        title = f"{of} of {planned.asked.model.name} on {planned.asked.machine.text}, {counted_unit(users, 'users')}"
        say(sensitivity_text(rows, f"{title}: {four_digits(rest)} {unit}"))
