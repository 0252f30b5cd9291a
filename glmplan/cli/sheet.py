"""`glmplan sheet`: plans as workbooks, and figures in the columns of quote sheets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import say

__all__ = ["app"]

app = typer.Typer(help="Plans as workbooks with live formulas, and figures in the columns of quote sheets.")


@app.command()
@o.with_options(without=("context",))
def new(
    path: Annotated[Path, typer.Argument(help="The workbook to write, such as plan.xlsx.")],
    *,
    model: Annotated[str, typer.Option(help="Model: a catalogue name, or name-format.")],
    on: o.On = None,
    options: Annotated[
        str | None,
        typer.Option(help="More machines with commas, 2*MACHINE for two of one, or the JSON of glmplan size."),
    ] = None,
    users: Annotated[int, typer.Option(min=1, help="Users at once.")] = 8,
    input: o.Input = None,
    output: o.Output = None,
    longest: Annotated[
        int | None, typer.Option("--context", min=1, help="Longest request that must fit, in tokens.")
    ] = None,
    reuse: Annotated[float, typer.Option(min=0, max=1, help="Share of prompt tokens that an API bills as cached.")] = 0,
    growth: Annotated[float, typer.Option(help="Growth of the load in a month, such as 0.05.")] = 0,
    deployment: o.DeploymentOptions = o.DeploymentOptions(),
    money: o.MoneyOptions = o.MoneyOptions(),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over a file that is there.")] = False,
) -> None:
    """Write a plan as a workbook: what a buyer changes in it recalculates what fits, how fast, and what it costs."""
    from glmplan.cli.money import read_money
    from glmplan.cli.progress import bar
    from glmplan.facts.files import write_atomically
    from glmplan.sheets.files import writable
    from glmplan.sheets.option import read_wanted
    from glmplan.sheets.plan_book import load_of_words, plan_book

    writable(path, (".xlsx",), overwrite=overwrite)
    wanted = read_wanted(options, on, model)
    load = load_of_words(users, input, output, longest, reuse=reuse, growth=growth)
    said = {name: value for name, value in o.given(deployment).items() if value is not False}
    with bar("predicting") as progress:
        book = plan_book(model, wanted, load, read_money(money), said=said, progress=progress)
    write_atomically(path, book.content())
    found = book.calculator()
    say(f"{path}: {len(wanted)} option{'s' if len(wanted) > 1 else ''}")
    for row in (3, 4, 5):
        say(found.value("Summary", row, 0))
