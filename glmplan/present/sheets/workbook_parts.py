"""Read foreign workbooks, and insert cells without other changes.

The XML of the edited sheet is copied byte by byte; new cells are inserted before the end of their row, as text or
numbers and never as a formula. All other parts are copied unchanged.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape

from glmplan.catalog.files import part_pieces
from glmplan.errors import SpecError
from glmplan.present.sheets.book import column_name, place_of

__all__ = ["Row", "SheetPart", "edited", "parsed", "rows_of", "sheets_of", "strings_of"]

_SPANS = re.compile(rb"""\s+spans=(?:"[^"]*"|'[^']*')""")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
#: shared strings of a workbook together [characters]
_MOST_OF_STRINGS = 64 * 2**20
#: a cell, and the cells of one row together [characters]: the limit of spreadsheet programs, and 16,384 cells of 1,024
_MOST_OF_A_CELL, _MOST_OF_A_ROW = 32_767, 16 * 2**20
_MOST_OF_A_ROW_XML = 64 * 2**20
#: one tag with its attributes [B]
_MOST_OF_A_TAG = 2**20
#: rows and columns of a sheet: the limits of spreadsheet programs
_MOST_ROWS, _MOST_COLUMNS = 2**20, 16_384
#: beginnings of a row, of equal length
_ROW_TAGS = (b"<row ", b"<row>", b"<row/")
#: shared strings: two for each row
_MOST_STRINGS = 2 * _MOST_ROWS
#: elements inside a cell, outside of rows, and of a part without rows: four times the cell formats of a program
_MOST_INSIDE = 2**18
#: nesting of elements
_DEEPEST = 64


@lru_cache(maxsize=2000)
def _column(letters: str) -> int:
    return place_of(f"{letters}1")[1]


@dataclass(frozen=True, slots=True)
class SheetPart:
    """Name of a sheet, and its part in the archive."""

    name: str
    part: str


@dataclass(slots=True)
class Row:
    """Row of a sheet."""

    number: int  # number from 1, [-]
    #: column from 0 → number or text; None for a formula without a saved value
    cells: dict[int, Any] = field(default_factory=dict)
    styles: dict[int, str] = field(default_factory=dict)  # column → number of its style


Start = Callable[[str, dict[str, str]], None]


def _parser(file: str | None, start: Start, end: Callable[[str], None] = lambda name: None) -> Any:
    """Return a parser that calls `start` and `end`; its nesting is bounded."""
    made = expat.ParserCreate()
    depth = 0

    def refuse(*_: object) -> None:
        raise SpecError("declares entities, which no workbook does: it is not read", file=file)

    def opened(name: str, attributes: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _DEEPEST:
            raise SpecError(f"is nested deeper than {_DEEPEST} elements, as no workbook is", file=file)
        start(name, attributes)

    def closed(name: str) -> None:
        nonlocal depth
        depth -= 1
        end(name)

    made.EntityDeclHandler, made.StartElementHandler, made.EndElementHandler = refuse, opened, closed
    made.buffer_text = True
    return made


def _parse(made: Any, archive: zipfile.ZipFile, part: str) -> Iterator[bytes]:
    """Parse a part in pieces of bounded size and yield each piece."""
    read = 0
    try:
        for piece in part_pieces(archive, part):
            if not read and piece[:2] in (b"\xff\xfe", b"\xfe\xff"):
                raise SpecError("sheet is written in UTF-16: open it, and save it again", file=archive.filename)
            made.Parse(piece, False)
            read += len(piece)
            if read - made.CurrentByteIndex > _MOST_OF_A_TAG + len(piece):
                raise SpecError(
                    f"holds a tag of more than {_MOST_OF_A_TAG >> 20} MiB", field=part, file=archive.filename
                )
            yield piece
        made.Parse(b"", True)
    except expat.ExpatError as error:
        raise SpecError(f"is damaged inside ({part}: {error}): open it, and save it again",
                        file=archive.filename) from None  # fmt: skip


def parsed(archive: zipfile.ZipFile, part: str, wanted: Start) -> None:
    """Call `wanted` with name and attributes of every element of a part.

    Names have no prefix.
    """
    count = 0

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal count
        count += 1
        if count > _MOST_INSIDE:
            raise SpecError(_MANY_INSIDE, field=part, file=archive.filename)
        wanted(name.rpartition(":")[2], attributes)

    for _ in _parse(_parser(archive.filename, start), archive, part):
        pass


def sheets_of(archive: zipfile.ZipFile) -> list[SheetPart]:
    """Return the sheets of a workbook in order, without chart sheets."""
    if "xl/workbook.xml" not in archive.namelist():
        raise SpecError("is no workbook: it has no xl/workbook.xml", file=archive.filename)
    targets: dict[str, str] = {}

    def relation(name: str, attributes: dict[str, str]) -> None:
        if name == "Relationship" and attributes.get("Type", "").endswith("/worksheet"):
            target = attributes["Target"]
            targets[attributes["Id"]] = target.lstrip("/") if target.startswith("/") else f"xl/{target}"

    found: list[SheetPart] = []

    def sheet(name: str, attributes: dict[str, str]) -> None:
        known = [value for key, value in attributes.items() if key.rpartition(":")[2] == "id" and ":" in key]
        if name == "sheet" and known and known[0] in targets:
            found.append(SheetPart(attributes.get("name", ""), targets[known[0]]))

    parsed(archive, "xl/_rels/workbook.xml.rels", relation)
    parsed(archive, "xl/workbook.xml", sheet)
    if not found:
        raise SpecError("holds no sheet with cells", file=archive.filename)
    return found


def strings_of(archive: zipfile.ZipFile) -> list[str]:
    """Return the shared strings of a workbook."""
    name = "xl/sharedStrings.xml"
    if name not in archive.namelist():
        return []
    found: list[str] = []
    texts: list[str] = []
    kept = [0, 0]
    inside = {"t": False, "rPh": False}

    def start(name: str, _: dict[str, str]) -> None:
        plain = name.rpartition(":")[2]
        kept[1] += 1
        if plain == "si":
            texts.clear()
            kept[1] = 0
        elif plain in inside:
            inside[plain] = True

    def end(name: str) -> None:
        plain = name.rpartition(":")[2]
        if plain == "si":
            found.append("".join(texts))
            kept[0] += len(found[-1])
            texts.clear()
        elif plain in inside:
            inside[plain] = False

    made = _parser(archive.filename, start, end)
    made.CharacterDataHandler = lambda text: texts.append(text) if inside["t"] and not inside["rPh"] else None
    for _ in _parse(made, archive, name):
        held = sum(map(len, texts))
        if held > _MOST_OF_A_CELL:
            raise SpecError(_LONG_CELL, field=name, file=archive.filename)
        if len(found) > _MOST_STRINGS or kept[1] > _MOST_INSIDE:
            words = f"holds more than {_MOST_STRINGS:,} strings" if kept[1] <= _MOST_INSIDE else _MANY_INSIDE
            raise SpecError(words, field=name, file=archive.filename)
        if kept[0] + held > _MOST_OF_STRINGS:
            raise SpecError(f"holds more than {_MOST_OF_STRINGS >> 20} MiB of text", field=name, file=archive.filename)
    return found


_MANY_INSIDE = f"holds more than {_MOST_INSIDE:,} elements in one place"
_LONG_CELL = f"holds a cell of more than {_MOST_OF_A_CELL:,} characters, the most that a spreadsheet program writes"


class _Reader:
    """Parser state that collects the rows of a sheet."""

    def __init__(self, file: str | None, strings: list[str], other: Start | None = None) -> None:
        self.file, self.strings, self.other = file, strings, other
        self.done: list[Row] = []
        self.row, self.last_row = Row(0), 0
        self._cell: tuple[int, str, bool] = (0, "n", False)
        self._texts: list[str] = []
        self._in_cell = self._in_row = self._inside = 0
        self._in_value = False
        self._next = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._inside += 1
        if self._inside > _MOST_INSIDE:
            raise self._refused(_MANY_INSIDE)
        if name == "row":
            self._begin_row(int(attributes.get("r", self.last_row + 1)))
        elif name == "c":
            column = _column(attributes["r"].rstrip("0123456789")) if "r" in attributes else self._next
            if not self._next <= column < _MOST_COLUMNS:
                words = f"has column {column + 1:,} behind column {self._next:,}; columns are in order"
                raise self._refused(f"{words}, at most {_MOST_COLUMNS:,}")
            self._next = column + 1
            self._cell = (column, attributes.get("t", "n"), False)
            self._texts, self._in_cell, self._inside = [], 0, 0
            if "s" in attributes:
                self.row.styles[column] = attributes["s"]
        elif name == "f":
            self._cell = (self._cell[0], self._cell[1], True)
        elif name in ("v", "t"):
            self._in_value = True
        elif self.other is not None:
            self.other(name, attributes)

    def _begin_row(self, number: int) -> None:
        if not self.last_row < number <= _MOST_ROWS:
            raise self._refused(f"is followed by row {number:,}; rows are in order, at most {_MOST_ROWS:,}")
        self.row, self.last_row, self._next, self._in_row, self._inside = Row(number), number, 0, 0, 0

    def text(self, text: str) -> None:
        if not self._in_value:
            return
        self._texts.append(text)
        self._in_cell += len(text)
        self._in_row += len(text)
        if self._in_cell > _MOST_OF_A_CELL:
            raise self._refused(_LONG_CELL)
        if self._in_row > _MOST_OF_A_ROW:
            raise self._refused(f"holds more than {_MOST_OF_A_ROW >> 20} MiB of text")

    def _refused(self, message: str) -> SpecError:
        return SpecError(message, field=f"row {self.row.number}", file=self.file)

    def end(self, name: str) -> None:
        if name in ("v", "t"):
            self._in_value = False
        elif name == "c":
            column, kind, formula = self._cell
            said = "".join(self._texts)
            if said or formula:
                self.row.cells[column] = self._value(kind, said) if said else None
        elif name == "row":
            self.done.append(self.row)

    def _value(self, kind: str, said: str) -> Any:
        if kind == "s":
            number = int(said)
            return self.strings[number] if number < len(self.strings) else ""
        if kind in ("inlineStr", "str", "e", "d"):
            return said
        return float(said)


def _tags_of_rows(archive: zipfile.ZipFile, part: str) -> int:
    """Return the number of tags of rows, or 0 for a small part."""
    if part not in archive.namelist() or archive.getinfo(part).file_size < len(_ROW_TAGS[0]) * _MOST_ROWS:
        return 0
    count, before = 0, b""
    with suppress(SpecError):  # the parser names the place of what unpacks to too much
        for piece in part_pieces(archive, part):
            piece = before + piece
            count += sum(map(piece.count, _ROW_TAGS))
            before = piece[1 - len(_ROW_TAGS[0]) :]
    return count


def rows_of(archive: zipfile.ZipFile, part: str, strings: list[str], other: Start | None = None) -> Iterator[Row]:
    """Yield the rows of a sheet.

    `other` is called with name and attributes of every element outside rows. A sheet with too many rows is refused
    before it is parsed, which takes ten times as long as counting.
    """
    if _tags_of_rows(archive, part) > _MOST_ROWS:
        raise SpecError(f"holds more than {_MOST_ROWS:,} rows", field=part, file=archive.filename)
    reader = _Reader(archive.filename, strings, other)
    made = _parser(
        archive.filename,
        lambda name, attributes: reader.start(name.rpartition(":")[2], attributes),
        lambda name: reader.end(name.rpartition(":")[2]),
    )
    made.CharacterDataHandler = reader.text
    for _ in _parse(made, archive, part):
        yield from reader.done
        reader.done.clear()
    yield from reader.done


def _cell_xml(prefix: str, place: str, value: Any, style: str | None) -> bytes:
    marked = f' s="{style}"' if style is not None else ""
    if isinstance(value, str):
        text = escape(_CONTROL.sub("\ufffd", value))
        return (
            f'<{prefix}c r="{place}"{marked} t="inlineStr"><{prefix}is><{prefix}t xml:space="preserve">{text}'
            f"</{prefix}t></{prefix}is></{prefix}c>"
        ).encode()
    return f'<{prefix}c r="{place}"{marked}><{prefix}v>{float(value)!r}</{prefix}v></{prefix}c>'.encode()


def edited(
    archive: zipfile.ZipFile,
    part: str,
    strings: list[str],
    column: int,
    cells: Callable[[Row], tuple[Mapping[int, Any], str | None]],
) -> Iterator[bytes]:
    """Yield the XML of a sheet with new cells.

    `column` is the first new column, right of all others. `cells` returns the values of a row by new column from 0, and
    the style of the cells.
    """
    splicer = _Splicer(_Reader(archive.filename, strings), column, cells)
    for piece in part_pieces(archive, part):
        yield splicer.feed(piece)
    yield splicer.close()


class _Splicer:
    """Copier of XML that inserts cells before the ends of rows."""

    def __init__(
        self, reader: _Reader, column: int, cells: Callable[[Row], tuple[Mapping[int, Any], str | None]]
    ) -> None:
        self.reader, self.column, self.cells = reader, column, cells
        self.made = _parser(reader.file, self._start, self._end)
        self.made.CharacterDataHandler = self.reader.text
        #: bytes not copied yet, the first relevant one, and its offset in the file
        self.held, self.at, self.first, self.out = b"", 0, 0, bytearray()

    def feed(self, piece: bytes) -> bytes:
        # the bytes of an open row wait until its end
        self.held, self.at = self.held[self.at :] + piece, 0
        if len(self.held) > _MOST_OF_A_ROW_XML:
            raise SpecError(f"has a row of more than {_MOST_OF_A_ROW_XML >> 20} MiB", file=self.reader.file)
        self.made.Parse(piece, False)
        return self._taken()

    def close(self) -> bytes:
        self.made.Parse(b"", True)
        self.out += self.held[self.at :]
        self.held, self.at = b"", 0
        return self._taken()

    def _taken(self) -> bytes:
        found = bytes(self.out)
        self.out.clear()
        return found

    def _upto(self, index: int) -> bytes:
        """Return the bytes up to an offset of the file, and drop them."""
        end = self.at + index - self.first
        found, self.at, self.first = self.held[self.at : end], end, index
        return found

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        plain = name.rpartition(":")[2]
        self.reader.start(plain, attributes)
        if plain == "row":
            self.out += self._upto(self.made.CurrentByteIndex)

    def _end(self, name: str) -> None:
        plain = name.rpartition(":")[2]
        self.reader.end(plain)
        if plain != "row":
            return
        row = self.reader.done.pop()
        new, style = self.cells(row)
        if not new:
            return
        prefix = name[: len(name) - len(plain)]
        made = b"".join(
            _cell_xml(prefix, f"{column_name(self.column + place)}{row.number}", value, style)
            for place, value in sorted(new.items())
        )
        inside = self._upto(self.made.CurrentByteIndex)
        if inside.endswith(b"/>") and inside.count(b"<") == 1:  # a row without cells that closes itself
            self.out += _SPANS.sub(b"", inside)[:-2].rstrip() + b">" + made + f"</{name}>".encode()
            return
        end = inside.index(b">") + 1
        self.out += _SPANS.sub(b"", inside[:end]) + inside[end:] + made
