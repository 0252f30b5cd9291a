"""Define `glmplan compare`: plans side by side, with causes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import Form, say

if TYPE_CHECKING:
    from glmplan.purchase.compare import Compared

__all__ = ["command"]


@o.with_options()
def command(
    plans: Annotated[list[str], typer.Argument(help="Plans as MODEL@MACHINE, or machines with --model.")],
    *,
    model: Annotated[str | None, typer.Option(help="Model of plans that name a machine alone.")] = None,
    users: o.UsersAtOnce = 1,
    deployment: Annotated[o.Given, o.plan("compare")],
    money: o.MoneyOptions = o.MoneyOptions(),
    form: o.Format = Form.text,
) -> None:
    """Compare plans with the first one.

    The table has speed, memory, power and cost. Each difference is attributed to its causes.
    """
    from glmplan.cli.options import read_money
    from glmplan.errors import SpecError
    from glmplan.purchase.compare import compared

    questions = []
    for plan in plans:
        named, at, machine = plan.partition("@")
        if not at and model is None:
            raise SpecError("names no machine and model as in MODEL@MACHINE, and --model is left out", value=plan)
        questions.append((named, machine) if at else (str(model), plan))
    paid = read_money(money)
    _show(compared(questions, paid, users=users, **deployment), paid.terms.utilisation, form)


def _show(found: Compared, utilisation: float, form: Form) -> None:
    from glmplan.present.json_answers import compare_record

    content = compare_record(found, utilisation)
    sides = content["plans"]
    if form is Form.json:
        say(json.dumps(content, indent=2))
        return
    if form is Form.csv:
        from glmplan.catalog.tables import frame_of

        say(frame_of(sides).to_csv(index=False, float_format="%.6g"), end="")
        return
    rows = [{"": name, **{side["plan"]: side[name] for side in sides}} for name in sides[0] if name != "plan"]
    if form is Form.md:
        names = list(rows[0])
        say("| " + " | ".join(names) + " |\n" + "|---" * len(names) + "|")
        for row in rows:
            say("| " + " | ".join("" if row[name] is None else str(row[name]) for name in names) + " |")
    else:
        from glmplan.catalog.tables import table_text
        from glmplan.purchase.evidence import EVIDENCE_LABELS
        from glmplan.units import counted_unit

        say(f"concurrency: {counted_unit(found.users, 'users')}")
        if found.rent_term is not None:
            say(f"rent term of all plans: {found.rent_term}")
        for row in rows:
            if row[""] == "evidence_level":
                row |= {name: EVIDENCE_LABELS.get(value, value) for name, value in row.items()} | {"": "evidence"}
        say(table_text(rows))
    for side, why in zip(found.sides[1:], found.causes, strict=True):
        say(f"\n{side.name} compared with {found.sides[0].name}:")
        for line in why:
            say(f"  {line}")
