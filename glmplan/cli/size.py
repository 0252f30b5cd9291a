"""Define `glmplan size`: the cheapest machines to buy or rent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import Form, joined, say

if TYPE_CHECKING:
    from glmplan.purchase.size_answer import Sized

__all__ = ["SpendOptions", "command"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendOptions:
    """Limits of the search."""

    budget: Annotated[
        str | None, typer.Option(help="Budget, such as 120k: for the purchase, or for the rent until the horizon.")
    ] = None
    power: Annotated[str | None, typer.Option(help="Limit of the power at the wall, such as 3.6kW.")] = None
    only: Annotated[list[str] | None, typer.Option(help="Accelerators and machines to try, with commas.")] = None
    inventory: o.Inventory = None
    machines: Annotated[int | None, typer.Option(min=1, help="Largest number of machines; 8 by default.")] = None
    probability: Annotated[
        float | None, typer.Option(help="Required probability of meeting the SLO; 0.95 by default.")
    ] = None
    cost_of_miss: Annotated[
        float | None,
        typer.Option(help="Cost of too few machines over that of too many: 19 is a probability of 0.95."),
    ] = None
    spare: Annotated[
        str | None, typer.Option(help="Machines beyond those that meet the SLO: 1 for N+1, N for N+N.")
    ] = None
    sites: Annotated[int | None, typer.Option(min=1, help="Sites, each of which meets the SLO alone.")] = None
    use_case: Annotated[
        str | None, typer.Option(help="Lengths of chat, long-chat, rag, code-completion, agent, summarise or batch.")
    ] = None
    working_hours: Annotated[
        float | None, typer.Option(help="Hours of a week with this load, none in the others; for tokens of a month.")
    ] = None
    growth: Annotated[float | None, typer.Option(help="Growth of the load per month, such as 0.05.")] = None


@o.with_options()
def command(
    slo: o.Slo,
    *,
    model: Annotated[
        list[str], typer.Option(help="Models of the catalogue, with commas; with a format only that one is tried.")
    ],
    users: Annotated[int | None, typer.Option(min=1, help="Concurrent users.")] = None,
    traffic: Annotated[str | None, typer.Option(help="Kind of traffic, as in simulate, instead of users.")] = None,
    deployment: Annotated[o.Given, o.plan("size")],
    shape: Annotated[o.Given, o.traffic("size")],
    spend: SpendOptions = SpendOptions(),
    money: o.MoneyOptions = o.MoneyOptions(),
    answers: Annotated[int, typer.Option(min=1, help="Number of results.")] = 5,
    acceptance_test: Annotated[
        Path | None, typer.Option(help="Write the acceptance test of the first answer, for the contract.")
    ] = None,
    form: o.Format = Form.text,
) -> None:
    """Find the cheapest machines to buy or rent for a model and an SLO.

    The probability covers arrivals and the interval of the step time. APIs paid per token are included.
    """
    from glmplan.cli.options import read_money
    from glmplan.cli.screen import bar
    from glmplan.purchase.size import sized_each
    from glmplan.purchase.size_question import read_sizes

    said = o.given(spend) | {"kind": o.kind_of(money)}
    questions = read_sizes(
        ",".join(model), slo, users=users, traffic=traffic, rent_term=money.rent_term,
        rates=money.rate, **joined(said), **deployment, **shape,
    )  # fmt: skip
    if acceptance_test is not None:
        from glmplan.present.acceptance import check_acceptance

        check_acceptance(questions)
    paid = read_money(money)
    with bar("machines") as progress:
        found = sized_each(questions, paid, answers=answers, progress=progress)
    _show(found, form)
    if acceptance_test is not None:
        _contract(found[0], acceptance_test)


def _contract(found: Sized, path: Path) -> None:
    from glmplan.catalog.files import write_atomically
    from glmplan.present.acceptance import acceptance_test

    if not found.options:
        say("no acceptance test: no machine meets the SLO", err=True)
        return
    write_atomically(path, acceptance_test(found.options[0], found))
    say(f"acceptance test: {path}", err=True)


def _show(found: list[Sized], form: Form) -> None:
    from glmplan.present.size_text import models_text, size_content, size_record, size_text

    contents = [size_content(one) for one in found]
    if form is Form.json:
        say(json.dumps(size_record(contents), indent=2))
        return
    if form is Form.text:
        texts = [size_text(one, content) for one, content in zip(found, contents, strict=True)]
        say("\n\n".join([models_text(contents)] * (len(texts) > 1) + texts))
        return
    from glmplan.present.tables import csv_table, markdown_rows

    plain = [
        {"model": content["model"]}
        | {name: one for name, one in row.items() if not isinstance(one, dict | list)}
        | {"price_assumed": "; ".join(row["price_assumed"])}
        for content in contents
        for row in content["options"]
    ]
    if form is Form.csv:
        say(csv_table(plain), end="")
    else:
        say(markdown_rows(plain))
