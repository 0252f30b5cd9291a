"""Where the table of a quote stands: its header, in one row or two, and what each of its columns holds."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glmplan.errors import SpecError
from glmplan.facts.catalogue.quotes import header_words, plain_words
from glmplan.facts.files import read_toml, understood
from glmplan.sheets.calculate import column_name, place_of
from glmplan.sheets.quote_cells import currency_in, number_in
from glmplan.sheets.workbook_parts import Row

__all__ = ["LOOKED_AT", "ROLES", "Line", "Mapped", "Table", "find_table", "line_of", "read_mapping"]

#: what a column may hold
ROLES: tuple[str, ...] = ("hardware", "part_number", "count", "unit_price", "total_price", "delivery", "currency")
#: rows among which the header is looked for [-]
LOOKED_AT = 60
_IN_BRACKETS = re.compile(r"[\[(].*?[\])]")


@dataclass(frozen=True)
class Mapped:
    """What the buyer says of a quote.

    Attributes
    ----------
    sheet : str
        Its sheet; the first with a header if empty.
    header : int
        Row of the header, from 1; 0 if it is to be found, [-]
    columns : dict of str to str
        What a column holds → its letter, or the words over it.
    hardware : dict of str to str
        Words of a row, as `glmplan.facts.catalogue.quotes.plain_words` writes them → machine.
    rates : dict of str to float
        Currency → what one of it is worth in the currency of the costs, [-]
    currency : str
        Of prices that name none.
    """

    sheet: str = ""
    header: int = 0
    columns: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    currency: str = ""


@dataclass(frozen=True)
class Table:
    """A table of a quote.

    Attributes
    ----------
    header : int
        Last row of its header, from 1, [-]
    columns : dict of str to int
        What a column holds → its place, from 0, [-]
    titles : dict of str to str
        What a column holds → the words over it.
    currency : str
        That the header names; empty if it names none.
    """

    header: int
    columns: dict[str, int]
    titles: dict[str, str]
    currency: str


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a quote.

    Attributes
    ----------
    hardware, part_number, delivery : object
        Its cells.
    count : float or None
        How many, [-]
    price : float or None
        Of all of them, [unit of money]
    currency : str
        Of the price; empty if nothing says.
    trouble : str
        Why a number cannot be read; empty if all can.
    """

    hardware: Any
    part_number: Any
    delivery: Any
    count: float | None
    price: float | None
    currency: str
    trouble: str = ""


def read_mapping(path: str | None) -> Mapped:
    """Read what the buyer says of a quote.

    Parameters
    ----------
    path : str or None
        A TOML file with ``sheet``, ``header_row``, ``currency`` and the tables ``[columns]``, ``[hardware]`` and
        ``[rates]``.

    Returns
    -------
    Mapped
        What it says; nothing without a file.

    Raises
    ------
    SpecError
        If a field is none of these.
    """
    if path is None:
        return Mapped()
    content = read_toml(path)
    known = ("sheet", "header_row", "currency", "columns", "hardware", "rates")
    for name in content:
        if name not in known:
            raise SpecError("is not a field of a mapping", file=path, value=name, choices=known)
    for name in content.get("columns", {}):
        if name not in ROLES:
            raise SpecError("is not what a column can hold", file=path, field="columns", value=name, choices=ROLES)
    with understood(path, "mapping"):
        return Mapped(
            sheet=str(content.get("sheet", "")),
            header=int(content.get("header_row", 0)),
            columns={name: str(one) for name, one in content.get("columns", {}).items()},
            hardware={plain_words(name): str(one) for name, one in content.get("hardware", {}).items()},
            rates={name.upper(): float(one) for name, one in content.get("rates", {}).items()},
            currency=str(content.get("currency", "")).upper(),
        )


def _role(title: str) -> tuple[str, int]:
    """What a column holds by the words over it, and how long the phrase is that says so."""
    words = f" {plain_words(_IN_BRACKETS.sub(' ', title))} "
    best = ("", 0)
    for role, phrases in header_words().columns.items():
        for phrase in phrases:
            if len(phrase) > best[1] and f" {phrase} " in words:
                best = (role, len(phrase))
    return best


def _titles(row: Row, above: Row | None, merged: Sequence[tuple[int, int, int, int]]) -> dict[int, str]:
    """Words over each column; those of a merged cell above hold for all columns below it."""
    found = {column: str(value) for column, value in row.cells.items() if isinstance(value, str) and value.strip()}
    for top, left, bottom, right in merged:
        # a cell that was merged downwards stands over the column as well
        if above is not None and top <= above.number <= bottom and top <= row.number <= bottom:
            for column in range(left, right + 1):
                if column not in found and isinstance(above.cells.get(left), str):
                    found[column] = str(above.cells[left])
    if above is None:
        return found
    over = {column: str(value) for column, value in above.cells.items() if isinstance(value, str) and value.strip()}
    for top, left, bottom, right in merged:
        if top <= above.number <= bottom and left in over:
            over |= dict.fromkeys(range(left, right + 1), over[left])
    both = {column: f"{over.get(column, '')} {text}".strip() for column, text in found.items()}
    return over | both


def _columns(titles: dict[int, str]) -> dict[str, int]:
    found: dict[str, tuple[int, int]] = {}
    for column, title in sorted(titles.items()):
        role, size = _role(title)
        if role and size > found.get(role, (0, 0))[1]:
            found[role] = (column, size)
    return {role: column for role, (column, _) in found.items()}


def _score(columns: Mapping[str, int]) -> int:
    if "hardware" not in columns and "part_number" not in columns:
        return 0
    return len(columns)


def find_table(rows: Sequence[Row], mapped: Mapped, merged: Sequence[tuple[int, int, int, int]] = ()) -> Table | None:
    """Find the header of a table.

    Parameters
    ----------
    rows : sequence of Row
        The first rows of a sheet.
    mapped : Mapped
        What the buyer says.
    merged : sequence of tuple of int, optional
        Merged cells: rows from 1 and columns from 0 of their corners (top, left, bottom, right), [-]

    Returns
    -------
    Table or None
        The table; None where no row names hardware and two more columns.

    Raises
    ------
    SpecError
        If the mapping names a column that is not there.
    """
    best: tuple[int, Row, dict[int, str], dict[str, int]] | None = None
    for place, row in enumerate(rows):
        if mapped.header and row.number != mapped.header:
            continue
        above = rows[place - 1] if place and rows[place - 1].number == row.number - 1 else None
        alone = _titles(row, None, ())
        choices = [alone] if above is None else [alone, _titles(row, above, merged)]
        for titles in choices:
            columns = _columns(titles)
            score = _score(columns)
            enough = score >= 2 or mapped.header or (mapped.columns and score)
            if enough and (best is None or score > best[0]):
                best = (score, row, titles, columns)
    if best is None and mapped.header:
        best = next(((0, row, _titles(row, None, ()), {}) for row in rows if row.number == mapped.header), None)
    if best is None:
        return None
    _, row, titles, columns = best
    columns |= _said_columns(mapped, titles)
    if "hardware" not in columns and "part_number" not in columns:
        return None
    shown = {role: titles.get(column, "") for role, column in columns.items()}
    money = [currency_in(shown.get(role, "")) for role in ("unit_price", "total_price")]
    return Table(row.number, columns, shown, next((one for one in money if one), ""))


def _said_columns(mapped: Mapped, titles: dict[int, str]) -> dict[str, int]:
    found = {}
    for role, said in mapped.columns.items():
        near = [column for column, title in titles.items() if plain_words(title) == plain_words(said)]
        if near:
            found[role] = near[0]
        elif said.isascii() and said.isalpha() and len(said) <= 3:
            found[role] = place_of(f"{said.upper()}1")[1]
        else:
            shown = [f"{column_name(column)}: {title}" for column, title in sorted(titles.items())]
            raise SpecError("stands over no column", field=f"columns.{role}", value=said, choices=shown)
    return found


def line_of(row: Row, table: Table, mapped: Mapped, formats: Mapping[str, str]) -> Line | None:
    """Read a row below the header.

    Parameters
    ----------
    row : Row
        The row.
    table : Table
        The table.
    mapped : Mapped
        What the buyer says.
    formats : mapping of str to str
        Number of a style → currency of its number format.

    Returns
    -------
    Line or None
        The row; None for empty ones and sums.
    """
    at = {role: row.cells.get(column) for role, column in table.columns.items()}
    named = [at.get("hardware"), at.get("part_number")]
    first = plain_words(next((one for one in named if one is not None), ""))
    words = header_words().totals
    others = [plain_words(one) for one in row.cells.values() if isinstance(one, str)]
    if not row.cells or first in words or any(first.startswith(f"{one} ") for one in words):
        return None
    if at.get("count") is None and any(f" {one} " in f" {first} " for one in header_words().taxes):
        return None
    if not first:
        missing = [role for role, column in table.columns.items() if column in row.cells and row.cells[column] is None]
        has_amounts = any(isinstance(at.get(role), int | float) for role in ("count",))
        if missing == [] and (not has_amounts or any(one in words for one in others)):
            return None
    trouble = _trouble(row, table)
    count = number_in(at.get("count"))
    if at.get("count") not in (None, "") and count is None and not trouble:
        trouble = f"the count “{at['count']}” is no number"
    unit, total = number_in(at.get("unit_price")), number_in(at.get("total_price"))
    price = total if total is not None else None if unit is None else unit * (1.0 if count is None else count)
    currency = _currency(row, table, mapped, formats)
    return Line(named[0], named[1], at.get("delivery"), count, price, currency, trouble)


def _trouble(row: Row, table: Table) -> str:
    """Formulas whose values were not saved."""
    for role in ("hardware", "part_number", "count"):
        column = table.columns.get(role)
        if column is not None and column in row.cells and row.cells[column] is None:
            cell = f"{column_name(column)}{row.number}"
            return f"{cell} holds a formula without its value: open the file in a spreadsheet program and save it"
    return ""


def _currency(row: Row, table: Table, mapped: Mapped, formats: Mapping[str, str]) -> str:
    own = row.cells.get(table.columns.get("currency", -1))
    if own and currency_in(own):
        return currency_in(own)
    for role in ("total_price", "unit_price"):
        column = table.columns.get(role)
        if column is None or row.cells.get(column) is None:
            continue
        value = row.cells[column]
        said = currency_in(value) if isinstance(value, str) else formats.get(row.styles.get(column, ""), "")
        if said:
            return said
    return table.currency or mapped.currency
