"""Figures in the columns of a quote sheet: new columns at its right, and nothing else changed."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glmplan.errors import SpecError
from glmplan.facts.archives import archive_of, part_pieces, put_part, written_whole
from glmplan.facts.files import text_lines
from glmplan.sheets.quote_figures import Quoted, columns_for
from glmplan.sheets.quote_table import LOOKED_AT, Line, Table, find_table, line_of
from glmplan.sheets.survey import Survey, surveyed
from glmplan.sheets.workbook_parts import Row, edited, rows_of

__all__ = ["ENDINGS", "Filled", "checked", "filled"]

#: endings of files that can be filled
ENDINGS: tuple[str, ...] = (".xlsx", ".xlsm", ".csv", ".tsv")
_DELIMITERS = ",;\t|"
#: rows whose reasons a report keeps [-]
_KEPT = 50
Progress = Callable[[int, int], None]


@dataclass
class Filled:
    """What was done, or what would be done.

    Attributes
    ----------
    sheet : str
        Name of the sheet; empty for a table of text.
    header : int
        Row of the header, from 1, [-]
    titles : dict of str to str
        What a column holds → the words over it.
    read : list of (int, str)
        Rows that were understood, with what they were read as; the first of them, [-]
    failed : list of (int, str)
        Rows that were not, with the reason; the first of them, [-]
    rows, understood, not_understood : int
        How many, [-]
    remarks : tuple of str
        What is special about the file.
    """

    sheet: str = ""
    header: int = 0
    titles: Mapping[str, str] = field(default_factory=dict)
    read: list[tuple[int, str]] = field(default_factory=list)
    failed: list[tuple[int, str]] = field(default_factory=list)
    rows: int = 0
    understood: int = 0
    not_understood: int = 0
    remarks: tuple[str, ...] = ()

    def note(self, row: int, cells: Mapping[int, Any], reason: str) -> None:
        """Keep what became of a row.

        Parameters
        ----------
        row : int
            Its number, from 1, [-]
        cells : mapping
            Its new cells.
        reason : str
            Why it was not understood; empty if it was.
        """
        kept, words = (self.failed, reason) if reason else (self.read, str(cells.get(0, "")))
        if reason:
            self.not_understood += 1
        else:
            self.understood += 1
        if len(kept) < _KEPT:
            kept.append((row, words))


def filled(path: str | Path, out: str | Path, quoted: Quoted, progress: Progress | None = None) -> Filled:
    """Fill a quote sheet.

    Parameters
    ----------
    path : path
        The quote: a workbook, or a table of text.
    out : path
        Where the filled copy goes.
    quoted : Quoted
        Answers its rows.
    progress : callable, optional
        Called with rows that were done and how many there are, [-]

    Returns
    -------
    Filled
        What was done.

    Raises
    ------
    SpecError
        If the file cannot be read, or has no header that is understood.
    """
    source, target = Path(path), Path(out)
    if source.suffix.lower() != target.suffix.lower():
        raise SpecError(f"must end in {source.suffix}, as the quote does", file=out)
    if source.suffix.lower() in (".csv", ".tsv"):
        report, lines = _text(source, quoted, progress)
        with written_whole(target) as stream:
            for line in lines:
                stream.write(line.encode())
        return report
    with archive_of(source, "workbook") as archive, written_whole(target) as stream:
        found = surveyed(archive, quoted.mapped, progress)
        report = _report(found)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as copy:
            for part in archive.infolist():
                pieces = part_pieces(archive, part.filename)
                if part.filename == found.sheet.part:
                    pieces = _edited(archive, found, quoted, report, progress)
                put_part(copy, part, pieces)
    return report


def checked(path: str | Path, quoted: Quoted, progress: Progress | None = None) -> Filled:
    """Say what filling a quote sheet would do.

    Parameters
    ----------
    path : path
        The quote.
    quoted : Quoted
        Answers its rows.
    progress : callable, optional
        As in `filled`.

    Returns
    -------
    Filled
        What would be done.

    Raises
    ------
    SpecError
        As `filled`.
    """
    source = Path(path)
    if source.suffix.lower() in (".csv", ".tsv"):
        report, lines = _text(source, quoted, progress)
        for _ in lines:
            pass
        return report
    with archive_of(source, "workbook") as archive:
        found = surveyed(archive, quoted.mapped, progress)
        report = _report(found)
        for row in rows_of(archive, found.sheet.part, found.strings):
            _cells(row, found, quoted, report, progress)
    return report


def _report(found: Survey) -> Filled:
    titles = {role: found.table.titles.get(role, "") for role in found.table.columns}
    return Filled(found.sheet.name, found.table.header, titles, rows=found.rows, remarks=found.remarks)


def _edited(
    archive: zipfile.ZipFile, found: Survey, quoted: Quoted, report: Filled, progress: Progress | None
) -> Iterator[bytes]:
    headers = dict(enumerate(columns_for(quoted.money)))

    def cells(row: Row) -> tuple[Mapping[int, Any], str | None]:
        if row.number == found.table.header:
            return headers, found.header_style
        return _cells(row, found, quoted, report, progress), None

    return edited(archive, found.sheet.part, found.strings, found.first_free, cells)


def _cells(row: Row, found: Survey, quoted: Quoted, report: Filled, progress: Progress | None) -> Mapping[int, Any]:
    if row.number <= found.table.header:
        return {}
    if progress is not None and row.number % 1000 == 0:
        progress(row.number, found.rows)
    line = line_of(row, found.table, quoted.mapped, found.formats)
    return _of_line(row.number, line, quoted, report)


def _of_line(number: int, line: Line | None, quoted: Quoted, report: Filled) -> Mapping[int, Any]:
    if line is None:
        return {}
    cells, reason = quoted.cells(line)
    report.note(number, cells, reason)
    return cells


def _text(path: Path, quoted: Quoted, progress: Progress | None) -> tuple[Filled, Iterator[str]]:
    """Fill a table of text: its report, which is whole when all its lines were taken, and its lines."""
    delimiter = _delimiter(path)
    first: list[Row] = []
    width = 0
    count = 0
    for number, (_, cells) in enumerate(_records(path, delimiter), 1):
        width, count = max(width, len(cells)), number
        if number <= LOOKED_AT:
            first.append(_row(number, cells))
    table = find_table(first, quoted.mapped)
    if table is None:
        raise SpecError("has no header that names hardware and one more column: say where it stands with --map",
                        file=path)  # fmt: skip
    report = Filled("", table.header, dict(table.titles), rows=count)
    return report, _text_lines(path, delimiter, width, (table, quoted, report, progress))


def _text_lines(
    path: Path, delimiter: str, width: int, how: tuple[Table, Quoted, Filled, Progress | None]
) -> Iterator[str]:
    table, quoted, report, progress = how
    headers = columns_for(quoted.money)
    for number, (raw, cells) in enumerate(_records(path, delimiter), 1):
        if progress is not None and number % 1000 == 0:
            progress(number, report.rows)
        new: Mapping[int, Any] = {}
        if number == table.header:
            new = dict(enumerate(headers))
        elif number > table.header:
            new = _of_line(number, line_of(_row(number, cells), table, quoted.mapped, {}), quoted, report)
        if not new:
            yield raw
            continue
        plain = raw.rstrip("\r\n")
        values = [""] * (width - len(cells)) + [_written(new.get(place), delimiter) for place in range(len(headers))]
        stream = io.StringIO()
        csv.writer(stream, delimiter=delimiter, lineterminator="").writerow(values)
        yield f"{plain}{delimiter}{stream.getvalue()}{raw[len(plain) :]}"


def _written(value: Any, delimiter: str) -> str:
    """A value as text; words that a program could take for a formula are marked as words."""
    if value is None:
        return ""
    if isinstance(value, str):
        return f"'{value}" if value[:1] in ("=", "+", "-", "@") else value
    # where semicolons part cells, commas part decimals
    return f"{value:.6g}".replace(".", "," if delimiter == ";" else ".")


def _row(number: int, cells: list[str]) -> Row:
    return Row(number, {place: text for place, text in enumerate(cells) if text.strip()})


def _delimiter(path: Path) -> str:
    if path.suffix.lower() == ".tsv":
        return "\t"
    counts = dict.fromkeys(_DELIMITERS, 0)
    for number, line in enumerate(text_lines(path)):
        if number == 20:
            break
        for sign in _DELIMITERS:
            counts[sign] += line.count(sign)
    return max(counts, key=lambda sign: counts[sign])


def _records(path: Path, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Records of a table of text: as they stand in the file, and their cells."""
    taken: list[str] = []

    def lines() -> Iterator[str]:
        for line in text_lines(path):
            taken.append(line)
            yield line

    reader = csv.reader(lines(), delimiter=delimiter)
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise SpecError(f"line {reader.line_num} is not a line of a table: {error}", file=path) from None
        yield "".join(taken), cells
        taken.clear()
