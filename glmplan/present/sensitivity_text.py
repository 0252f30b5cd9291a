"""Tables of `glmplan sensitivity`: the outcome at each assumption's ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glmplan.catalog.tables import table_text
from glmplan.present.tables import markdown_rows

__all__ = ["four_digits", "sensitivity_markdown", "sensitivity_text"]

#: field of the JSON → title of the column
_LABELS = {
    "what": "assumption",
    "low": "result at low",
    "high": "result at high",
    "from": "low value",
    "to": "high value",
    "know it by": "how to find out",
}


def sensitivity_text(rows: Sequence[dict[str, Any]], title: str) -> str:
    """Return the assumptions as columns of text below a title."""
    return f"{title}\n{table_text(_labelled(rows)) if rows else 'no assumption with a known range changes it'}"


def sensitivity_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the assumptions as a Markdown table."""
    table = _labelled(rows) or [dict.fromkeys(_LABELS.values())]
    text = markdown_rows(table, lambda value: four_digits(value) if isinstance(value, float) else str(value))
    return text if rows else "\n".join(text.split("\n")[:2])


def _labelled(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{label: row[name] for name, label in _LABELS.items()} for row in rows]


def four_digits(value: float) -> str:
    """Return a number with four digits, and all before the point.

    Examples
    --------
    >>> four_digits(12345.6), four_digits(0.123456)
    ('12,346', '0.1235')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
