"""Define `glmplan hybrid`: the cheapest mix of machines and APIs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import Form, say

__all__ = ["command"]


@o.with_options()
def command(
    portfolio: Annotated[Path, typer.Argument(help="TOML with [[classes]], [[local]] and [[api]].")],
    *,
    probability: Annotated[
        float | None, typer.Option(help="Probability with which machines meet the SLO of a class; 0.95 by default.")
    ] = None,
    money: o.MoneyOptions = o.MoneyOptions(),
    form: o.Format = Form.text,
) -> None:
    """Find the cheapest mix of machines and APIs for request classes.

    The answer includes the value of one more machine.
    """
    from glmplan.cli.options import read_money
    from glmplan.prediction.distribution import probability_asked
    from glmplan.purchase.hybrid import best_mix, break_even_scale, one_more, portfolio_of_offered, read_portfolio

    read = read_portfolio(portfolio, read_money(money), probability=probability_asked(probability))
    mix = best_mix(read)
    free = portfolio_of_offered(read)
    scale = break_even_scale(free) if free.locals and free.sellers and free.classes else None
    if form is Form.json:
        assumed = {local.name: list(local.assumed) for local in read.locals if local.assumed}
        more = {"one_more": one_more(read, mix), "break_even_scale": scale, "price_assumed": assumed}
        say(json.dumps({**asdict(mix), **more}, indent=2))
        return
    from glmplan.present.sweep_text import break_even_line, mix_rows, mix_text
    from glmplan.present.tables import csv_table, markdown_table

    rows = mix_rows(mix)
    if form is Form.csv:
        say(csv_table(rows), end="")
    elif form is Form.md:
        say(markdown_table(list(rows[0]), ([one["class"], one["server"], f"{one['share']:.1%}"] for one in rows)))
    else:
        say(mix_text(read, mix))
        if free.locals and free.sellers and free.classes:
            say(break_even_line(free, scale))
