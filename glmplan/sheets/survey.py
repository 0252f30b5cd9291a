"""A first look at a workbook that somebody else made: which sheet holds the quote, and what is special about it."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field

from glmplan.errors import SpecError
from glmplan.sheets.calculate import place_of
from glmplan.sheets.quote_cells import currency_in
from glmplan.sheets.quote_table import LOOKED_AT, Mapped, Table, find_table
from glmplan.sheets.workbook_parts import Row, SheetPart, parsed, rows_of, sheets_of, strings_of

__all__ = ["Survey", "surveyed"]

#: columns that a sheet may have [-]
_MOST_COLUMNS = 16384


@dataclass(frozen=True)
class Survey:
    """What was found.

    Attributes
    ----------
    sheet : SheetPart
        The sheet of the quote.
    table : Table
        Its table.
    strings : list of str
        Strings that cells share.
    formats : dict of str to str
        Number of a style → currency of its number format.
    first_free : int
        First column that is right of everything, from 0, [-]
    rows : int
        Rows of the sheet, [-]
    header_style : str or None
        Style of the header's last cell.
    remarks : tuple of str
        What is special about the file.
    """

    sheet: SheetPart
    table: Table
    strings: list[str]
    formats: dict[str, str]
    first_free: int
    rows: int
    header_style: str | None
    remarks: tuple[str, ...]


def surveyed(archive: zipfile.ZipFile, mapped: Mapped, progress: Callable[[int, int], None] | None = None) -> Survey:
    """Find the quote in a workbook.

    Parameters
    ----------
    archive : ZipFile
        The workbook.
    mapped : Mapped
        What the buyer says.
    progress : callable, optional
        Called with rows that were read, and 0, [-]

    Returns
    -------
    Survey
        What was found.

    Raises
    ------
    SpecError
        If no sheet has a header that is understood.
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
        if free + 12 > _MOST_COLUMNS:
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
    """What one pass over a sheet finds."""

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
    """Styles whose number format names a currency."""
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
