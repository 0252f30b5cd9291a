"""Define `glmplan site`: the web page with answers computed beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from glmplan.cli.screen import say

__all__ = ["command"]


def command(
    out: Annotated[Path, typer.Argument(help="Folder to write.")],
    plans: Annotated[
        list[str], typer.Argument(help="MODEL@MACHINE, with options as MODEL@MACHINE,tp=2,kv=fp8; several make a list.")
    ],
    users: Annotated[str, typer.Option(help="Concurrencies of each plan, such as 1,8,32.")] = "8",
) -> None:
    """Write the web page with stored answers, for any static host.

    The page opens from a file and works offline. A question without an answer shows the command that computes it.
    """
    from urllib.parse import urlencode

    from glmplan.cli.screen import bar
    from glmplan.request.option import read_counts
    from glmplan.service.site import stored_answers, write_site

    fields = [_fields(plan) for plan in plans]
    counts = read_counts(users, "--users")
    with bar("answers") as report:
        answers = stored_answers(fields, counts, report)
    files = write_site(out, answers, urlencode(fields[0] | {"users": counts[0]}))
    number, size = sum(map(len, answers.values())), sum(path.stat().st_size for path in files) / 1e6
    say(f"{out / 'index.html'}: {number:,} answers, {size:.1f} MB")


def _fields(plan: str) -> dict[str, Any]:
    """Return a plan as the fields of `/v1/fit`, typed as the page types them."""
    from pydantic import ValidationError

    from glmplan.cli.compare import plan_options
    from glmplan.errors import SpecError
    from glmplan.service.questions import FitQuestion, invalid_record

    where, *own = plan.split(",")
    model, at, machine = where.partition("@")
    if not at:
        raise SpecError("names no machine, as in MODEL@MACHINE", value=plan)
    try:
        asked = FitQuestion.model_validate({"model": model, "on": machine, **plan_options(own, plan)})
    except ValidationError as error:
        fault = invalid_record(error.errors(), FitQuestion)["error"]
        raise SpecError(fault["message"], value=plan, choices=fault["nearest"]) from None
    return asked.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
