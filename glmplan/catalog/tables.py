"""Return records as tables: rows as a pandas frame, or as text in columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from glmplan.errors import SpecError

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["chosen_table", "csv_lines", "csv_of", "frame_of", "frame_of_columns", "safe_cell", "table_text"]


def frame_of(rows: Iterable[Mapping[str, Any]], columns: Iterable[str] | None = None) -> pd.DataFrame:
    """Return rows as a frame, with `columns` in this order.

    pandas is imported on use, because `fit` does not need it.

    Examples
    --------
    >>> frame_of([{"users": 1, "tpot_mean_ms": 12.5}]).loc[0, "tpot_mean_ms"]
    np.float64(12.5)
    """
    import pandas as pd

    return pd.DataFrame([dict(row) for row in rows], columns=None if columns is None else list(columns))


def frame_of_columns(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return columns as a frame.

    Examples
    --------
    >>> len(frame_of_columns({"request": [0, 1]}))
    2
    """
    import pandas as pd

    return pd.DataFrame(dict(columns))


#: first characters of a cell that spreadsheet programs read as a formula
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def safe_cell(value: Any) -> Any:
    """Return a cell that no spreadsheet program reads as a formula.

    A name from a file may begin like one; numbers stay as they are.

    Examples
    --------
    >>> safe_cell("=1+1"), safe_cell("-2.5"), safe_cell("h100-sxm"), safe_cell(-2.5)
    ("'=1+1", '-2.5', 'h100-sxm', -2.5)
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def csv_of(frame: pd.DataFrame) -> str:
    """Return a frame as CSV: six digits, no cell that is a formula.

    Examples
    --------
    >>> csv_of(frame_of([{"id": "@a", "share": 2 / 3}]))
    "id,share\\n'@a,0.666667\\n"
    """
    heads = [safe_cell(name) for name in frame.columns]
    return str(frame.map(safe_cell).to_csv(index=False, header=heads, float_format="%.6g", lineterminator="\n"))


def csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    """Return rows as CSV with their digits, no cell that is a formula.

    Examples
    --------
    >>> csv_lines([["id", "share"], ["=a", 2 / 3]])
    "id,share\\n'=a,0.6666666666666666\\n"
    """
    import csv
    import io

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([map(safe_cell, row) for row in rows])
    return text.getvalue()


def chosen_table(name: str, tables: Mapping[str, Any]) -> Any:
    """Return one of the tables of a record.

    Examples
    --------
    >>> chosen_table("users", {"users": 1, "memory": 2})
    1
    """
    if name not in tables:
        raise SpecError("is not a table of this answer", field="table", value=name, choices=tables)
    return tables[name]


def table_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as text columns; empty without rows.

    Numbers are right-aligned with three significant digits.

    Examples
    --------
    >>> print(table_text([{"rank": "0", "weights_gib": 65.36}, {"rank": "12", "weights_gib": 7.0}]))
    rank  weights_gib
    0            65.4
    12              7
    """
    raw = list(rows)
    result = [{name: _cell(value) for name, value in row.items()} for row in raw]
    if not result:
        return ""
    names = list(result[0])
    right = {name: any(isinstance(row.get(name), int | float) for row in raw) for name in names}
    wide = {name: max(len(name), *(len(row.get(name, "")) for row in result)) for name in names}
    lines = [names, *([row.get(name, "") for name in names] for row in result)]
    return "\n".join(
        "  ".join(
            cell.rjust(wide[name]) if right[name] else cell.ljust(wide[name])
            for name, cell in zip(names, line, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)
