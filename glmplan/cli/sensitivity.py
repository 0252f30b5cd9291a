"""Define `glmplan sensitivity`: effects of assumptions on a result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import Form, say

__all__ = ["command"]

#: field of the JSON → title of the column
_LABELS = {
    "what": "assumption",
    "low": "result at low",
    "high": "result at high",
    "from": "low value",
    "to": "high value",
    "know it by": "how to find out",
}


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
    from glmplan.catalog.tables import table_text
    from glmplan.cli.options import read_money
    from glmplan.planner.ask import deployment as planned_for
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
    table = [{label: row[name] for name, label in _LABELS.items()} for row in rows]
    if plot is not None:
        from glmplan.present.charts import tornado_chart, write_chart

        title = f"Sensitivity of {model} on {on}, {users} user{'s' * (users != 1)}"
        write_chart(tornado_chart(rows, rest, of=of, title=title, unit=unit), plot, title=title)
    if form is Form.json:
        say(json.dumps({"outcome": of, "unit": unit, "value": rest, "moves": rows}, indent=2))
    elif form is Form.csv:
        from glmplan.catalog.tables import frame_of

        say(frame_of(rows).to_csv(index=False, float_format="%.6g"), end="")
    elif form is Form.md:
        say("| " + " | ".join(_LABELS.values()) + " |\n" + "|---" * len(_LABELS) + "|")
        for row in table:
            say(
                "| "
                + " | ".join(_digits(value) if isinstance(value, float) else str(value) for value in row.values())
                + " |"
            )
    else:
        load = counted_unit(users, "users")
        say(f"{of} of {planned.asked.model.name} on {planned.asked.machine.text}, {load}: {_digits(rest)} {unit}")
        say(table_text(table) if table else "no assumption with a known range changes it")


def _digits(value: float) -> str:
    """Four digits, and all before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
