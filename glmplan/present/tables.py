"""Tables of commands as Markdown and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from glmplan.catalog.tables import frame_of

__all__ = ["csv_table", "digits", "markdown_rows", "markdown_table"]


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
    return str(frame_of(rows).to_csv(index=False, float_format="%.6g", lineterminator="\n"))
