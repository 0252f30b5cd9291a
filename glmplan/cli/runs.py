"""Define `glmplan runs`: import measured runs from other tools."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from glmplan.cli.screen import console, say

app = typer.Typer(help="Import other tools' benchmark results and engines' startup logs.", no_args_is_help=True)

#: columns that are printed
_SHOWN = ("model", "engine", "phase", "concurrency", "input_tokens", "output_tokens", "output_tokens_per_s",
          "prefill_tokens_per_s", "ttft_mean_ms", "tpot_mean_ms", "kv_pool_tokens",
          "weights_gib_per_accelerator")  # fmt: skip

#: least columns of the page, which the table of memory needs [-]
_WIDTH = 100


class Form(StrEnum):
    """Output format of runs."""

    table = "table"
    json = "json"
    csv = "csv"


@app.callback()
def _group() -> None:
    """Import other tools' benchmark results and engines' startup logs."""


@app.command("import")
def import_runs(
    files: Annotated[list[Path], typer.Argument(help="Results or logs; their kind is recognised by content.")],
    model: Annotated[str | None, typer.Option(help="The model, if the file does not name it.")] = None,
    on: Annotated[str | None, typer.Option(help="The accelerator or host it ran on.")] = None,
    engine: Annotated[str | None, typer.Option(help="The engine that answered.")] = None,
    campaign: Annotated[str | None, typer.Option(help="Name of the campaign; the file's name by default.")] = None,
    facts: Annotated[
        list[str] | None, typer.Option("--set", help="Further known values, as column=value: --set tp=8.")
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="Output format.")] = Form.table,
    out: Annotated[Path | None, typer.Option(help="Write the runs to this CSV, for predict --runs.")] = None,
) -> None:
    """Import results of other tools and startup logs as measured runs."""
    from glmplan.catalog.files import write_atomically
    from glmplan.errors import SpecError
    from glmplan.io.runs.columns import column_value
    from glmplan.io.runs.importers import import_file, table_csv
    from glmplan.io.runs.importers.startup_logs import with_facts

    known: dict[str, Any] = dict(column_value(pair) for pair in facts or [])
    known |= {name: said for name, said in (("model", model), ("engine", engine)) if said is not None}
    rows: list[dict[str, Any]] = []
    logs: list[tuple[Path, Any]] = []
    unusable = 0
    for file in files:
        try:
            found = import_file(file, facts={"campaign": campaign or file.stem, "source": file.name, **known})
        except SpecError as error:
            say(f"error: {error}", err=True)
            unusable += 1
            continue
        for problem in found.problems:
            say(f"warning: {file}: {problem}", err=True)
        rows += found.rows
        if found.logged is not None:
            logs.append((file, with_facts(found.logged, known)))
    comparisons = [(file, _beside(log, model, on)) for file, log in logs]
    if on is not None:
        from glmplan.measure.memory_comparison import parts_of

        named = parts_of(on)
        for row in rows:
            for column, value in named.items():
                row.setdefault(column, value)
    if out is not None and rows:
        write_atomically(out, table_csv(rows))
    _print(rows, comparisons, form)
    if out is not None and rows:
        say(f"{len(rows)} runs written to {out}", err=True)
    if unusable:
        raise typer.Exit(2)


def _beside(log: Any, model: str | None, on: str | None) -> Any:
    from glmplan.measure.memory_comparison import predict_startup

    return predict_startup(log, model=model, on=on)


def _print(rows: list[dict[str, Any]], comparisons: list[tuple[Path, Any]], form: Form) -> None:
    from glmplan.io.runs.columns import COLUMNS
    from glmplan.io.runs.importers import table_csv

    if form is Form.csv:
        say(table_csv(rows), end="")
        return
    if form is Form.json:
        shown = [
            {"file": str(file), "why_not": found.why_not, "lines": [_line(line) for line in found.lines]}
            for file, found in comparisons
        ]
        say(json.dumps({"runs": rows, "memory": shown}, indent=2))
        return
    from rich.table import Table

    screen = console()
    if screen.width < _WIDTH:
        screen = console(columns=_WIDTH)
    runs = Table(box=None)
    used = [COLUMNS[name] for name in _SHOWN if any(name in row for row in rows)]
    for one in used:
        runs.add_column(one.heading, justify="left" if one.kind == "text" else "right")
    for row in rows:
        runs.add_row(*(_cell(row.get(one.name)) for one in used))
    if rows:
        screen.print(runs)
    for file, found in comparisons:
        screen.print(f"\n{file.name}: memory, logged and predicted")
        memory = Table(box=None)
        for title in ("what", "logged", "predicted", "90 %", "difference", "line"):
            memory.add_column(title, justify="left" if title == "what" else "right")
        for line in found.lines:
            difference = "" if line.difference is None else f"{line.difference:+.1%}"
            digits = ",.0f" if line.unit == "token" else ",.2f"
            sides = (_cell(line.logged), "" if line.predicted is None else f"{line.predicted:{digits}}")
            ends = "" if line.low is None else f"{line.low:{digits}}-{line.high:{digits}}"
            memory.add_row(
                f"{line.what} {f'[{line.unit}]' if line.unit else ''}",
                *sides,
                ends,
                difference,
                str(line.line or ""),
            )
        screen.print(memory)
        for line in found.lines:
            if line.cause:
                screen.print(f"  {line.what}: {line.cause}")
        for said in found.notes:
            screen.print(f"  {said}")
        if found.why_not:
            screen.print(f"  no prediction: {found.why_not}")


def _line(line: Any) -> dict[str, Any]:
    names = ("what", "unit", "logged", "predicted", "low", "high", "difference", "cause", "line")
    return {name: getattr(line, name) for name in names}


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,.6g}" if isinstance(value, int | float) else str(value)
