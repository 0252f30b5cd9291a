"""A ladder on the terminal: the bar while it is climbed, and the tables after it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from glmplan.cli.screen import console

__all__ = ["ladder_bar", "show_ladder"]


def ladder_bar(*, hidden: bool) -> Any:
    """A bar of the ladder on standard error; what a server says is shown as it stands."""
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    return Progress(*columns, console=console(stderr=True), disable=hidden, transient=True)


def show_ladder(record: Any, compared: Any, causes: Any, said: str, out: Path | None) -> None:
    """Print what was measured, what was predicted, and the likely causes of a difference."""
    from rich.table import Table

    from glmplan.measure.validation_page import standing
    from glmplan.readers.runs.figures import FIGURES

    screen = console()
    facts = record.facts
    server = " ".join(filter(None, (facts.engine or "unknown engine", facts.version)))
    pool = f", KV pool {facts.kv_tokens:,.0f} tokens" if facts.kv_tokens else ""
    screen.print(f"{server}{pool}; prompt lengths by {record.prompts}")
    if record.overhead is not None:
        o = record.overhead
        added = f"{o.ttft * 1e3:.1f} ms to TTFT, {o.tpot * 1e3:.2f} ms to TPOT"
        screen.print(f"the client adds up to {added} at {o.streams} streams ({o.cpu:.0%} of a core)")
    table = Table(box=None)
    names = ("ttft_mean_ms", "tpot_mean_ms", "itl_mean_ms", "e2e_mean_ms", "output_tokens_per_s")
    titles = (FIGURES[name].heading for name in names)
    for title in ("rate" if record.plan.schedules else "users", "done", "failed", *titles):
        table.add_column(title, justify="right")
    table.add_column("to know")
    for step in record.steps:
        f = step.figures
        cells = [f"{f[name]:,.4g}" if name in f else "" for name in names]
        done = str(step.outcomes.get("done", 0))
        table.add_row(f"{step.level:g}", done, str(step.faults or ""), *cells, "; ".join(step.notes))
    screen.print(table)
    screen.print(said)
    if compared:
        table = Table(box=None)
        for title in ("at", "figure", "measured", "predicted", "interval", "difference", "verdict"):
            table.add_column(title, justify="left" if title in ("figure", "verdict") else "right")
        for one in compared:
            interval = "" if one.low is None or one.high is None else f"{one.low:,.4g} - {one.high:,.4g}"
            verdict = one.verdict + ("" if one.inside else ", outside")
            values = (f"{one.measured:,.4g}", f"{one.predicted:,.4g}", interval, f"{one.difference:+.1%}")
            table.add_row(f"{one.level:g}", one.metric, *values, verdict)
        screen.print(table)
        screen.print(standing(compared))
    for number, cause in enumerate(causes, 1):
        screen.print(f"{number}. {cause.what}: {cause.evidence}. Try: {cause.to_try}.")
    if out is not None:
        screen.print(f"record, table, report and journal are in {out}")
