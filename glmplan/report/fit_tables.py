"""The answer of `glmplan fit` as CSV (the table over users, then the memory of every rank) and as Markdown."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from glmplan.plan.answer_text import fit_text
from glmplan.plan.memory_plan import MEMORY_COLUMNS, memory_rows
from glmplan.plan.plan import USER_FIGURES, user_rows
from glmplan.plan.text import number
from glmplan.units import GIB

if TYPE_CHECKING:
    from glmplan.plan.answer import FitAnswer
    from glmplan.prediction.predict import Figure

__all__ = ["CSV_COLUMNS", "fit_csv", "fit_markdown"]

#: columns of the CSV, in order
CSV_COLUMNS: tuple[str, ...] = (
    "model", "checkpoint", "accelerator", "accelerator_count", "engine", "verdict", "layout", "kv", "users", "running",
    *(f"{name}{end}" for name in USER_FIGURES for end in ("", "_low", "_high")),
    "context_each_tokens", "kv_pool_tokens", "kv_pool_tokens_low", "kv_pool_tokens_high", "safe_users", "basis",
    "out_of_domain", "simulated", "preemptions_per_request", "kv_why", "rank", *MEMORY_COLUMNS,
)  # fmt: skip


def _cell(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "" if value is None else value


def fit_csv(answer: FitAnswer) -> str:
    """Write the table over users, without speeds one line with the verdict; then a line for the memory of each rank.

    Parameters
    ----------
    answer : FitAnswer
        The answer.

    Returns
    -------
    str
        CSV with the columns `CSV_COLUMNS`; lines of ranks have a cell in `rank` and none in `users`.
    """
    asked, holding = answer.asked, answer.holding
    layout, kv = (holding.terms.name, holding.terms.kv) if holding else ("", "")
    common = {
        "model": asked.model.name,
        "checkpoint": asked.checkpoint.name,
        "accelerator": asked.machine.accelerator.name,
        "accelerator_count": asked.machine.count,
        "engine": asked.engine,
        "verdict": answer.verdict,
        "layout": layout,
        "kv": kv,
        "kv_why": answer.kv_why,
        "safe_users": answer.safe.users if answer.safe else "",
        "basis": answer.basis,
    }
    if holding:
        for name, value in (("", holding.pool), ("_low", holding.pool_low), ("_high", holding.pool_high)):
            common[f"kv_pool_tokens{name}"] = f"{value:.0f}"
    text = io.StringIO()
    table = csv.DictWriter(text, CSV_COLUMNS, restval="", lineterminator="\n")
    table.writeheader()
    for row in [*(user_rows(answer.users) or [{}]), *memory_rows(answer.ranks)]:
        table.writerow(common | {name: _cell(value) for name, value in row.items()})
    return text.getvalue()


def fit_markdown(answer: FitAnswer) -> str:
    """Write the answer as Markdown: the tables as tables, the rest as in the text.

    Parameters
    ----------
    answer : FitAnswer
        The answer.

    Returns
    -------
    str
        Markdown.
    """
    lines = fit_text(answer).splitlines()
    title, rest = lines[0], lines[1:]
    out = [f"# {title}", ""]
    section: list[str] = []
    name = ""
    for line in [*rest, ""]:
        if line and not line.startswith(" ") and section and not section[-1]:
            out += _section(answer, name, section)
            name, section = line, []
            continue
        section.append(line)
    out += _section(answer, name, section)
    return "\n".join(out).rstrip() + "\n"


def _section(answer: FitAnswer, name: str, lines: list[str]) -> list[str]:
    body = [line for line in lines if line.strip()]
    if not body and not name:
        return []
    head = [f"## {name}", ""] if name and not name.isupper() else [name] if name else []
    if name.startswith("Users at once"):
        return [*head, *_users(answer), ""]
    if name.startswith("Memory"):
        return [*head, *_memory(answer), ""]
    if name.startswith("Start it"):
        return [*head, "```", *[line.removeprefix("  ") for line in body], "```", ""]
    joined: list[str] = []
    for line in body:
        text = line.strip()
        # continued lines are indented further than the first line of a paragraph
        if joined and line.startswith("    ") and not text.startswith(("KV ", "TPOT ", "queue ", ">")):
            joined[-1] += f" {text}"
        else:
            joined.append(f"- {text}" if line.startswith("  ") else f"**{text}**")
    return [*head, *joined, ""]


def _users(answer: FitAnswer) -> list[str]:
    names = ("users", "running", "TTFT, s", "decode tok/s", "tok/s in all", "each", "context each")
    rows = [f"| {' | '.join(names)} |", "|" + "--:|" * len(names)]
    for row in answer.users:
        first = _span(row.ttft) if row.ttft else "unknown"
        decode = _span(row.user_rate) if row.user_rate else "-"
        cells = (first, decode, _span(row.total_rate), number(row.each_rate.value), f"{row.context:,}")
        rows.append(f"| {row.users} | {row.running} | {' | '.join(cells)} |")
    return rows


def _span(figure: Figure) -> str:
    return f"{number(figure.value)} ({number(figure.low)}-{number(figure.high)})"


def _memory(answer: FitAnswer) -> list[str]:
    names = ("weights", "activations", "graphs", "buffers", "reserve", "KV cache", "capacity")
    rows = [f"| rank | {', GiB | '.join(names)}, GiB |", "|---|" + "--:|" * len(names)]
    for row in answer.ranks:
        used = (row.activation, row.graphs, row.communication, row.reserve, row.cache, row.capacity)
        cells = (sum(row.weights.values()), *used)
        rows.append(f"| {row.label} | " + " | ".join(f"{value / GIB:.1f}" for value in cells) + " |")
    before: dict[str, float] = {}
    for row in answer.ranks:
        if row.weights != before:
            parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in row.weights.items())
            rows += ["", f"Weights of {row.label} by class, GiB: {parts}"]
        before = row.weights
    return rows
