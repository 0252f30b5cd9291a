"""Tables of commands as Markdown and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from glmplan.catalog.tables import csv_lines, csv_of, frame_of
from glmplan.present.text import WIDTH, paragraph

__all__ = [
    "csv_table",
    "digits",
    "limitations_csv",
    "limitations_markdown",
    "limitations_text",
    "markdown_rows",
    "markdown_table",
]


def digits(value: object) -> str:
    """Return a cell: six digits of a float, empty for a missing value.

    Examples
    --------
    >>> digits(2 / 3), digits(None), digits("a|b")
    ('0.666667', '', 'a\\\\|b')
    """
    if value is None or value != value:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("|", "\\|")


def markdown_table(heads: Sequence[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table without a line break at its end.

    Examples
    --------
    >>> print(markdown_table(["users", "TTFT"], [["1", "0.2 s"]]))
    | users | TTFT |
    |---|---|
    | 1 | 0.2 s |
    """
    lines = [f"| {' | '.join(line)} |" for line in (heads, *rows)]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])


def markdown_rows(rows: Sequence[Mapping[str, Any]], cell: Callable[[Any], str] = digits) -> str:
    """Return records as a Markdown table, with the first one's names."""
    names = list(rows[0]) if rows else []
    return markdown_table(names, ([cell(row[name]) for name in names] for row in rows))


def csv_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return records as CSV with six digits.

    Examples
    --------
    >>> csv_table([{"users": 1, "ttft_s": 2 / 3}])
    'users,ttft_s\\n1,0.666667\\n'
    """
    return csv_of(frame_of(rows))


# Text of `glmplan walls`: limitations that apply, and those that may.

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
