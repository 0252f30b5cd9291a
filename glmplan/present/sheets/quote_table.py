"""Find the table of a quote: its header, and the role of each column."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from glmplan.catalog.entries.accelerators import accelerator_aliases, accelerator_names, load_accelerator
from glmplan.catalog.entries.hosts import host_names
from glmplan.catalog.entries.names import header_words, part_numbers, plain_words
from glmplan.catalog.files import MOST_COLUMNS, plain_name, read_toml, understood
from glmplan.errors import SpecError
from glmplan.present.sheets.book import column_name, place_of
from glmplan.present.sheets.workbook_parts import Row, SheetPart, parsed, rows_of, sheets_of, strings_of
from glmplan.units import Ratio

__all__ = [
    "LOOKED_AT",
    "ROLES",
    "Line",
    "Mapped",
    "Named",
    "Survey",
    "Table",
    "currency_in",
    "find_table",
    "line_of",
    "machine_in",
    "number_in",
    "read_mapping",
    "surveyed",
]


# Cells: numbers, amounts of money, machines.

_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "us$": "USD", "chf": "CHF", "fr.": "CHF"}
_CODES = (
    "USD",
    "EUR",
    "GBP",
    "CHF",
    "JPY",
    "CNY",
    "SEK",
    "NOK",
    "DKK",
    "PLN",
    "CZK",
    "AUD",
    "CAD",
    "INR",
    "SGD",
    "KRW",
)
_DIGITS = re.compile(r"[-+]?\d[\d.,'’\s\u00a0\u202f]*")
_TIMES = re.compile(r"(?<![\w.])(\d{1,3})\s*(?:[x×*]|pcs\.?|stk\.?|units? of)\s*(?=\D)", re.IGNORECASE)
#: "8 GPU OAM", "8-GPU", "8er"; larger numbers before these words are names
_EACH = re.compile(r"(?<![\w.])([2-9]|1[0-6]|72)[\s-]?(?:gpus?|oams?|cards?|karten|way|fach|er)\b", re.IGNORECASE)
#: words that do not identify a GPU
_NOISE = frozenset(
    (
        *("nvidia", "amd", "intel", "geforce", "tesla", "quadro", "radeon", "instinct", "gpu", "gpus", "card", "cards"),
        *("edition", "graphics", "accelerator", "the", "with", "tensor", "core", "generation", "gddr6", "gddr7"),
        *("hbm2e", "hbm3", "hbm3e"),
    )
)
#: GPUs per machine that are assumed for a number of GPUs without a machine
_IN_ONE = 8


def currency_in(text: object) -> str:
    """Return the currency in a cell, a header or a number format.

    Examples
    --------
    >>> currency_in("Preis [€]"), currency_in("12 USD"), currency_in("Menge")
    ('EUR', 'USD', '')
    """
    words = str(text)
    for code in _CODES:
        if re.search(rf"(?<![A-Za-z]){code}(?![A-Za-z])", words, re.IGNORECASE):
            return code
    return next((code for sign, code in _SIGNS.items() if sign in words.lower()), "")


def number_in(value: object) -> float | None:
    """Return the number in a text, with any separators; None without one.

    Examples
    --------
    >>> number_in("12.345,60 €"), number_in("$ 8,500"), number_in("1 234 567"), number_in("on request")
    (12345.6, 8500.0, 1234567.0, None)
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = _DIGITS.search(str(value or ""))
    if found is None:
        return None
    digits = re.sub(r"[\s\u00a0\u202f'’]", "", found[0]).rstrip(".,")
    for decimal, thousands in ((",", "."), (".", ",")):
        if decimal in digits and thousands in digits and digits.rfind(decimal) > digits.rfind(thousands):
            digits = digits.replace(thousands, "").replace(decimal, ".")
            break
    else:
        sign = "," if "," in digits else "."
        groups = digits.split(sign)
        # three digits behind each sign are thousands; anything else behind a single sign are decimals
        if len(groups) > 1 and all(len(one) == 3 for one in groups[1:]) and groups[0].lstrip("+-0"):
            digits = "".join(groups)
        else:
            digits = digits.replace(",", ".")
    factor = 1000.0 if re.match(r"\s*k\b", str(value)[found.end() :], re.IGNORECASE) else 1.0
    try:
        return factor * float(digits)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Named:
    """Machine of a row."""

    on: str  # machine as an argument of `glmplan.fit`
    machines: int  # number of machines, [-]


@lru_cache(maxsize=1)
def _cards() -> tuple[tuple[frozenset[str], str], ...]:
    """Return sets of words that identify a card if a text has all of them."""
    found = []
    for name in accelerator_names():
        part = load_accelerator(name)
        for text in (name, part.full_name, *(alias for alias, of in accelerator_aliases().items() if of == name)):
            words = frozenset(_words(text))
            if words:
                found.append((words, name))
    return tuple(found)


def _words(text: object) -> list[str]:
    # 80 GB and 80GB, SXM5 and SXM are the same
    joined = re.sub(r"\b(\d+) g[bi]b?\b", r"\1gb", plain_words(text))
    joined = re.sub(r"\b(\d+)gib\b", r"\1gb", joined)
    joined = re.sub(r"\bsxm\d\b", "sxm", joined).replace("workstation", "ws")
    return [one for one in joined.split() if one not in _NOISE]


def machine_in(text: object, part_number: object, count: Ratio | None, known: dict[str, str]) -> Named:
    """Return the machine of a row of a quote.

    Up to eight cards without a host make one machine. A text with ``8x``, ``8 GPU`` or a host names a machine, and
    `count` is the number of machines.

    Examples
    --------
    >>> machine_in("NVIDIA RTX PRO 6000 Blackwell Server Edition 96 GB", None, 4, {})
    Named(on='4xrtx-pro-6000-server', machines=1)
    >>> machine_in("Server, 8x H200 SXM5 141GB", None, 2, {})
    Named(on='8xh200-sxm', machines=2)
    >>> machine_in("XE9680, 8 GPU OAM MI325X 256GB", None, 1, {})
    Named(on='8xmi325x', machines=1)
    """
    number = 1 if count is None else round(count) if math.isfinite(count) else 0
    if number < 1 or (count is not None and abs(count - number) > 1e-9):
        raise SpecError(f"the count {count:g} is no number of machines")
    said = known.get(plain_words(text)) or known.get(plain_words(part_number or ""))
    if said is not None:
        return _of(said, number)
    whole = plain_name(str(text)) if text else ""
    if whole in host_names():
        return Named(whole, number)
    host = _host_by_words(text)
    if host is not None:
        return Named(host, number)
    part = _by_number(part_number) or _by_number_in(text)
    part = part or _by_words(text)
    if re.match(r"\d+x", part) or part in host_names():  # a node; its part number names its cards
        return Named(part, number)
    times = _TIMES.search(str(text or "")) or _EACH.search(str(text or ""))
    if times is not None and int(times[1]) > 0:
        return Named(f"{int(times[1])}x{part}", number)
    return _of(part, number)


def _of(part: str, number: int) -> Named:
    if re.match(r"\d+x", part) or part in host_names():
        return Named(part, number)
    if number <= _IN_ONE:
        return Named(f"{number}x{part}", 1)
    if number % _IN_ONE:
        raise SpecError(f"{number} cards do not fill machines of {_IN_ONE}: write 8x in the name, or map it")
    return Named(f"{_IN_ONE}x{part}", number // _IN_ONE)


def _by_number(number: object) -> str | None:
    return part_numbers().get(plain_words(number or "").replace(" ", ""))


def _by_number_in(text: object) -> str | None:
    return next((found for one in str(text or "").split() if (found := _by_number(one.strip("(),;")))), None)


def _host_by_words(text: object) -> str | None:
    """Return the host with all its words in the text.

    The number of GPUs may be missing.
    """
    words, found = set(_words(text)), {}
    for name in host_names():
        named = name.split("-")
        needed = set(_words(" ".join(named[:-1] if named[-1].isdigit() else named)))
        if len(needed) > 1 and needed <= words and not any(one.isdigit() for one in needed):
            found[name] = (len(needed), -len(named))
    best = [name for name, size in found.items() if size == max(found.values())]
    return best[0] if len(best) == 1 else None


def _by_words(text: object) -> str:
    if not str(text or "").strip():
        raise SpecError("the row names no hardware")
    words = set(_words(text))
    found: dict[str, int] = {}
    for needed, name in _cards():
        if needed <= words:
            found[name] = max(found.get(name, 0), len(needed))
    best = [name for name, size in found.items() if size == max(found.values())]
    if len(best) == 1:
        return best[0]
    shown = " ".join(str(text).split())[:60]
    if best:
        raise SpecError(f"“{shown}” may be {' or '.join(sorted(best))}: say which")
    near = sorted({name for needed, name in _cards() if needed & words & _telling()})
    if near and len(near) <= 6:
        raise SpecError(f"“{shown}” may be {' or '.join(near)}: say which")
    raise SpecError(f"“{shown}” names no accelerator that is known: map it, or see glmplan hardware list")


@lru_cache(maxsize=1)
def _telling() -> frozenset[str]:
    """Return words of card names with a letter and a digit, such as H100."""
    words = {one for needed, _ in _cards() for one in needed}
    return frozenset(one for one in words if re.search(r"[a-z]", one) and re.search(r"\d", one) and "gb" not in one)


#: roles of columns
ROLES: tuple[str, ...] = ("hardware", "part_number", "count", "unit_price", "total_price", "delivery", "currency")
#: rows that are searched for the header
LOOKED_AT = 60
_IN_BRACKETS = re.compile(r"[\[(].*?[\])]")


@dataclass(frozen=True)
class Mapped:
    """Options of reading a quote."""

    sheet: str = ""  # its sheet; the first with a header if empty
    header: int = 0  # row of the header, from 1; 0 if it is to be found, [-]
    columns: Mapping[str, str] = field(default_factory=dict)  # role of a column → its letter, or its header
    #: words of a row, as `glmplan.catalog.entries.names.plain_words` writes them → machine
    hardware: Mapping[str, str] = field(default_factory=dict)
    #: currency → exchange rate to the currency of the costs, [-]
    rates: Mapping[str, float] = field(default_factory=dict)
    currency: str = ""  # currency of prices without one


@dataclass(frozen=True)
class Table:
    """Table of a quote."""

    header: int  # last row of its header, from 1, [-]
    columns: dict[str, int]  # role of a column → its index, from 0, [-]
    titles: dict[str, str]  # role of a column → its header
    currency: str  # currency in the header; empty if it has none


@dataclass(frozen=True, slots=True)
class Line:
    """Row of a quote."""

    #: `hardware`, `part_number`, `delivery`: cells of the row
    hardware: Any
    part_number: Any
    delivery: Any
    count: float | None  # number of items, [-]
    price: float | None  # price of all items, [unit of money]
    currency: str  # currency of the price; empty if unknown
    trouble: str = ""  # error of an unreadable number; empty without one


def read_mapping(path: str | None) -> Mapped:
    """Return the options of reading a quote from a TOML file.

    The file has ``sheet``, ``header_row``, ``currency`` and the tables ``[columns]``, ``[hardware]`` and ``[rates]``.
    """
    if path is None:
        return Mapped()
    content = read_toml(path)
    known = ("sheet", "header_row", "currency", "columns", "hardware", "rates")
    for name in content:
        if name not in known:
            raise SpecError("is not a field of a mapping", file=path, value=name, choices=known)
    for name in ("columns", "hardware", "rates"):
        if not isinstance(content.get(name, {}), dict):
            raise SpecError("is no table", file=path, field=name, value=str(content[name]))
    for name in content.get("columns", {}):
        if name not in ROLES:
            raise SpecError("is not what a column can hold", file=path, field="columns", value=name, choices=ROLES)
    for name, one in content.get("columns", {}).items():
        if not isinstance(one, str | int):
            raise SpecError("is no name or letter of a column", file=path, field=f"columns.{name}", value=str(one))
    for name, one in content.get("rates", {}).items():
        if isinstance(one, bool) or not isinstance(one, int | float) or not 0 < one < math.inf:
            raise SpecError("is no price of a unit of currency", file=path, field=f"rates.{name}", value=str(one))
    header = content.get("header_row", 0)
    if isinstance(header, bool) or not isinstance(header, int) or header < 0:
        raise SpecError("is no number of a row", file=path, field="header_row", value=str(header))
    with understood(path, "mapping"):
        return Mapped(
            sheet=str(content.get("sheet", "")),
            header=header,
            columns={name: str(one) for name, one in content.get("columns", {}).items()},
            hardware={plain_words(name): str(one) for name, one in content.get("hardware", {}).items()},
            rates={name.upper(): float(one) for name, one in content.get("rates", {}).items()},
            currency=str(content.get("currency", "")).upper(),
        )


def _role(title: str) -> tuple[str, int]:
    """Return the role of a column, and the length of the matching phrase."""
    words = f" {plain_words(_IN_BRACKETS.sub(' ', title))} "
    best = ("", 0)
    for role, phrases in header_words().columns.items():
        for phrase in phrases:
            if len(phrase) > best[1] and f" {phrase} " in words:
                best = (role, len(phrase))
    return best


def _titles(row: Row, above: Row | None, merged: Sequence[tuple[int, int, int, int]]) -> dict[int, str]:
    """Return the header of each column.

    The text of a merged cell above applies to all its columns.
    """
    found = {column: str(value) for column, value in row.cells.items() if isinstance(value, str) and value.strip()}
    for top, left, bottom, right in merged:
        # a cell merged downwards is a header too
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


#: a cell with nothing but a number, its signs and a currency
_NUMBER = re.compile(r"\W*\d[\d.,'’\s]*\W*([A-Z]{3})?\W*")


def _holds_numbers(row: Row) -> bool:
    """Return True if a cell is a number: the row is data.

    Its text may have words of headers.
    """
    return any(
        _NUMBER.fullmatch(value) if isinstance(value, str) else isinstance(value, int | float)
        for value in row.cells.values()
    )


def find_table(rows: Sequence[Row], mapped: Mapped, merged: Sequence[tuple[int, int, int, int]] = ()) -> Table | None:
    """Return the table; None if no row has headers of hardware and more.

    `merged` holds the corners of merged cells (top, left, bottom, right): rows from 1, columns from 0.
    """
    best: tuple[int, Row, dict[int, str], dict[str, int]] | None = None
    for place, row in enumerate(rows):
        if row.number != mapped.header if mapped.header else _holds_numbers(row):
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
    """Return a row below the header; None for empty rows and sums.

    `formats` maps the number of a style to the currency of its number format.
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
    """Return an error for a formula without a saved value, else empty."""
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


# Scan of a foreign workbook: sheet with the quote, and features that editing would lose.


@dataclass(frozen=True)
class Survey:
    """Result of the scan."""

    sheet: SheetPart  # sheet of the quote
    table: Table  # table of the quote
    strings: list[str]  # shared strings of the workbook
    formats: dict[str, str]  # number of a style → currency of its number format
    first_free: int  # first free column at the right, from 0, [-]
    rows: int  # rows of the sheet, [-]
    header_style: str | None  # style of the header's last cell
    remarks: tuple[str, ...]  # remarks on the file


def surveyed(archive: zipfile.ZipFile, mapped: Mapped, progress: Callable[[int, int], None] | None = None) -> Survey:
    """Return the quote of a workbook.

    `progress` is called with the rows read, and 0.
    """
    sheets, strings = sheets_of(archive), strings_of(archive)
    wanted = [one for one in sheets if not mapped.sheet or one.name == mapped.sheet]
    if not wanted:
        raise SpecError("is no sheet of the file", field="sheet", value=mapped.sheet, choices=[o.name for o in sheets])
    for sheet in wanted:
        walk = _walked(archive, sheet, strings, progress)
        table = find_table(walk.first, mapped, walk.merged)
        if table is None:
            continue
        columns = [walk.last, *(right for _, _, _, right in walk.merged)]
        header = next(row for row in walk.first if row.number == table.header)
        style = header.styles.get(max(header.cells, default=0)) if header.cells else None
        free = max(columns) + 1
        if free + 12 > MOST_COLUMNS:
            raise SpecError("has no free columns at its right", field=sheet.name)
        remarks = _remarks(archive)
        if walk.protected:
            remarks = (*remarks, f"the sheet {sheet.name} is protected: the protection stays")
        return Survey(sheet, table, strings, _formats(archive), free, walk.rows, style, remarks)
    names = ", ".join(one.name for one in wanted)
    raise SpecError(
        f"has no header that names hardware and one more column (looked at the first {LOOKED_AT} rows of {names}): "
        "say where it stands with --map",
        file=archive.filename,
    )


@dataclass
class _Walk:
    """State of one pass over a sheet."""

    first: list[Row] = field(default_factory=list)
    last: int = 0
    rows: int = 0
    merged: list[tuple[int, int, int, int]] = field(default_factory=list)
    protected: bool = False

    def other(self, name: str, attributes: dict[str, str]) -> None:
        if name == "mergeCell" and ":" in attributes.get("ref", ""):
            one, _, other = attributes["ref"].partition(":")
            (top, left), (bottom, right) = place_of(one), place_of(other)
            self.merged.append((top + 1, left, bottom + 1, right))
        self.protected = self.protected or name == "sheetProtection"


def _walked(
    archive: zipfile.ZipFile, sheet: SheetPart, strings: list[str], progress: Callable[[int, int], None] | None
) -> _Walk:
    found = _Walk()
    for row in rows_of(archive, sheet.part, strings, found.other):
        found.rows += 1
        if row.number <= LOOKED_AT:
            found.first.append(row)
        found.last = max(found.last, *row.cells, *row.styles) if row.cells or row.styles else found.last
        if progress is not None and found.rows % 1000 == 0:
            progress(found.rows, 0)
    return found


def _formats(archive: zipfile.ZipFile) -> dict[str, str]:
    """Return the currency of each style whose number format has one."""
    if "xl/styles.xml" not in archive.namelist():
        return {}
    codes: dict[str, str] = {}
    styles: list[str] = []
    inside = [False]

    def wanted(name: str, attributes: dict[str, str]) -> None:
        if name == "numFmt":
            codes[attributes.get("numFmtId", "")] = attributes.get("formatCode", "")
        elif name in ("cellXfs", "cellStyleXfs", "cellStyles", "dxfs"):
            inside[0] = name == "cellXfs"
        elif name == "xf" and inside[0]:
            styles.append(attributes.get("numFmtId", "0"))

    parsed(archive, "xl/styles.xml", wanted)
    # [$€-407] names the sign in brackets
    found = {str(n): currency_in(re.sub(r"\[\$([^\]-]*)[^\]]*\]", r"\1", codes.get(one, ""))) for n, one in
             enumerate(styles)}  # fmt: skip
    return {number: code for number, code in found.items() if code}


def _remarks(archive: zipfile.ZipFile) -> tuple[str, ...]:
    names = archive.namelist()
    found = []
    if any(one.startswith("xl/externalLinks/") for one in names):
        found.append("cells refer to other workbooks: their saved values are read, and the links stay as they are")
    if any(one.startswith("_xmlsignatures/") for one in names):
        found.append("the file is signed: the signature does not hold for the filled copy")
    if any(one.endswith("vbaProject.bin") for one in names):
        found.append("the file holds macros: they are copied and not run")
    return tuple(found)
