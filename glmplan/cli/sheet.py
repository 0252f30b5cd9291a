"""Define `glmplan sheet`: plan workbooks, and predictions in quotes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import say

if TYPE_CHECKING:
    from glmplan.present.sheets.fill import Filled, Quoted

__all__ = ["app"]

app = typer.Typer(help="Write plans as workbooks with live formulas, and predictions into quote sheets.")


@app.command()
@o.with_options()
def new(
    path: Annotated[Path, typer.Argument(help="The workbook to write, such as plan.xlsx.")],
    *,
    model: Annotated[str, typer.Option(help="Model: a catalogue name, or name-format.")],
    on: o.On = None,
    options: Annotated[
        str | None,
        typer.Option(help="More machines with commas, 2*MACHINE for two of one, or the JSON of glmplan size."),
    ] = None,
    users: o.UsersAtOnce = 8,
    longest: Annotated[
        int | None, typer.Option("--context", min=1, help="Longest request that must fit [token].")
    ] = None,
    reuse: Annotated[float, typer.Option(min=0, max=1, help="Share of prompt tokens that an API bills as cached.")] = 0,
    growth: Annotated[float, typer.Option(help="Growth of the load per month, such as 0.05.")] = 0,
    deployment: Annotated[o.Given, o.plan("sheet new")],
    money: o.MoneyOptions = o.MoneyOptions(),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a plan as a workbook.

    Changed inputs recalculate memory, speed and cost.
    """
    from glmplan.catalog.files import write_atomically
    from glmplan.cli.options import read_money
    from glmplan.cli.screen import bar
    from glmplan.present.sheets.fill import writable
    from glmplan.present.sheets.option import read_wanted
    from glmplan.present.sheets.plan_book import load_of_words, plan_book

    writable(path, (".xlsx",), overwrite=overwrite)
    wanted = read_wanted(options, on, model)
    said = dict(deployment)
    input, output = said.pop("input", None), said.pop("output", None)
    load = load_of_words(users, input, output, longest, reuse=reuse, growth=growth)
    with bar("predicting") as progress:
        book = plan_book(model, wanted, load, read_money(money), said=said, progress=progress)
    write_atomically(path, book.content())
    found = book.calculator()
    say(f"{path}: {len(wanted)} option{'s' if len(wanted) > 1 else ''}")
    for row in (3, 4, 5):
        say(found.value("Summary", row, 0))


_QUOTE = Annotated[Path, typer.Argument(help="A quote: .xlsx, .xlsm, .csv or .tsv.")]
_MAP = Annotated[
    Path | None, typer.Option("--map", help="TOML with the sheet, the rows and columns, and aliases of names.")
]
_RATES = Annotated[list[str] | None, typer.Option("--rate", help="Exchange rate to USD, such as EUR=1.09; repeatable.")]


@app.command()
@o.with_options()
def fill(
    path: _QUOTE,
    *,
    model: Annotated[str, typer.Option(help="Model: a catalogue name, or name-format.")],
    out: Annotated[
        Path | None, typer.Option(help="File of the filled copy; QUOTE-filled beside the quote by default.")
    ] = None,
    users: o.UsersAtOnce = 8,
    mapping: _MAP = None,
    rate: _RATES = None,
    deployment: Annotated[o.Given, o.plan("sheet fill")],
    money: o.MoneyOptions = o.MoneyOptions(),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Overwrite an existing file, also the quote.")] = False,
) -> None:
    """Add predictions to a quote in new columns.

    The columns have fit, speed, safe users, cost, power and hazards. Other cells are unchanged.
    """
    from glmplan.cli.screen import bar
    from glmplan.present.sheets.fill import ENDINGS, filled, writable

    target = out or path.with_name(f"{path.stem}-filled{path.suffix}")
    writable(target, ENDINGS, overwrite=overwrite)
    quoted = _quoted(model, users, (mapping, rate), (deployment, money))
    with bar("rows") as progress:
        report = filled(path, target, quoted, progress)
    _tell(report)
    say(f"written: {target}")


@app.command()
@o.with_options()
def check(
    path: _QUOTE,
    *,
    model: Annotated[str, typer.Option(help="Model: a catalogue name, or name-format.")],
    users: o.UsersAtOnce = 8,
    mapping: _MAP = None,
    rate: _RATES = None,
    deployment: Annotated[o.Given, o.plan("sheet check")],
    money: o.MoneyOptions = o.MoneyOptions(),
) -> None:
    """Report the rows that `fill` would read in a quote, without writing."""
    from glmplan.cli.screen import bar
    from glmplan.present.sheets.fill import checked

    quoted = _quoted(model, users, (mapping, rate), (deployment, money))
    with bar("rows") as progress:
        report = checked(path, quoted, progress)
    _tell(report)


def _quoted(
    model: str,
    users: int,
    quote: tuple[Path | None, list[str] | None],
    asked: tuple[o.Given, o.MoneyOptions],
) -> Quoted:
    from dataclasses import replace

    from glmplan.cli.options import read_money
    from glmplan.errors import SpecError
    from glmplan.present.sheets.fill import Quoted
    from glmplan.present.sheets.quote_table import number_in, read_mapping

    mapping, rates = quote
    mapped = read_mapping(None if mapping is None else str(mapping))
    worth = dict(mapped.rates)
    for word in rates or ():
        code, equals, amount = word.partition("=")
        value = number_in(amount)
        if not equals or value is None or value <= 0:
            raise SpecError("is no rate such as EUR=1.09", field="--rate", value=word)
        worth[code.strip().upper()] = value
    return Quoted(model, users, read_money(asked[1]), replace(mapped, rates=worth), asked[0])


def _tell(report: Filled) -> None:
    where = f"sheet {report.sheet}, " if report.sheet else ""
    say(f"{where}header in row {report.header}, {report.rows:,} rows")
    for role, title in report.titles.items():
        say(f"  {role.replace('_', ' ')}: “{title}”")
    for remark in report.remarks:
        say(f"note: {remark}")
    say(f"understood: {report.understood:,} rows")
    for row, words in report.read[:10]:
        say(f"  row {row}: {words}")
    if report.not_understood:
        say(f"not understood: {report.not_understood:,} rows")
        for row, words in report.failed[:10]:
            say(f"  row {row}: {words}")
