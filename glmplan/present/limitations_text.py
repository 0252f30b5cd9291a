"""Text of `glmplan walls`: limitations that apply, and those that may."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glmplan.catalog.tables import csv_lines
from glmplan.present.tables import markdown_table
from glmplan.present.text import WIDTH, paragraph

__all__ = ["limitations_csv", "limitations_markdown", "limitations_text"]

_COLUMNS = ("verdict", "severity", "id", "title", "effect", "cost", "fallback", "do", "since", "until", "source")


def limitations_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return the limitations as CSV."""
    return csv_lines([_COLUMNS, *_cells(rows)])


def limitations_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the limitations as a Markdown table."""
    table = markdown_table(_COLUMNS, ([cell.replace("|", "\\|") for cell in line] for line in _cells(rows)))
    return table + "\n"


def _cells(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [[str(row.get(column, "")) for column in _COLUMNS] for row in rows]


def limitations_text(rows: Sequence[dict[str, Any]], title: str) -> str:
    """Return the limitations as text, each with effect and source."""
    out = f"{title}\n"
    headings = {"stands": "Stands in the way", "possible": "Possible: depends on what was not said, or on the version"}
    for verdict, heading in headings.items():
        chosen = [row for row in rows if row["verdict"] == verdict]
        if not chosen:
            out += "\nNothing known stands in the way.\n" if verdict == "stands" else ""
            continue
        out += f"\n{heading} ({len(chosen)})\n"
        for row in chosen:
            out += paragraph(WIDTH, f"[{row['severity']}] {row['title']}")
            fields = [("what happens", "effect")]
            if verdict == "stands":
                fields += [("measured", "cost"), ("instead", "fallback"), ("fixed by", "fixed_by")]
            for label, column in (*fields, ("do", "do"), ("source", "source")):
                if row.get(column):
                    out += paragraph(WIDTH, f"{label}: {row[column]}", "    ", "      ")
    return out
