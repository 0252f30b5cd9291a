"""Add columns with predictions to a quote sheet; the rest is unchanged."""

from __future__ import annotations

import csv
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.catalog.files import MOST_COLUMNS, archive_of, part_pieces, put_part, text_lines, written_whole
from glmplan.catalog.tables import safe_cell
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.machines.resolve import resolve_machine
from glmplan.planner.ask import fit, predict
from glmplan.planner.make_plan import FitAnswer
from glmplan.prediction.distribution import SHOWN
from glmplan.prediction.predict import Prediction
from glmplan.present.sheets.quote_table import (
    LOOKED_AT,
    Line,
    Mapped,
    Named,
    Survey,
    Table,
    find_table,
    line_of,
    machine_in,
    surveyed,
)
from glmplan.present.sheets.workbook_parts import Row, edited, rows_of
from glmplan.present.text import verdict_words
from glmplan.purchase.cost import owned_month, per_million
from glmplan.purchase.money import Money, watts_of

__all__ = ["ENDINGS", "Answered", "Filled", "Quoted", "checked", "columns_for", "filled", "writable"]


# Cells of the new columns.

_COLUMNS = (
    *(
        "read as",
        "fits",
        "tokens/s",
        "tokens/s (90 % from)",
        "tokens/s (90 % to)",
        "safe users",
        "{} per million tokens",
    ),
    *("kW at the wall", "hazards", "evidence"),
    *("probability", *(f"users at {share:.0%}".replace("%", " %") for share in SHOWN)),
    *("{} per million output tokens", "weights", "remark"),
)

#: size of the cache of row texts
_REMEMBERED = 10_000


def columns_for(money: Money) -> tuple[str, ...]:
    """Return the headers of the new columns.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.purchase.money import money_of
    >>> columns_for(money_of(today=date(2026, 11, 22)))[0]
    'glmplan: read as'
    """
    return tuple(f"glmplan: {one.format(money.terms.currency)}" for one in _COLUMNS)


@dataclass(frozen=True)
class Answered:
    """Prediction of a machine under its share of the load."""

    answer: FitAnswer | None  # the plan; None if it cannot be made
    prediction: Prediction | None  # at the share of the load
    reason: str = ""  # why there is no plan


class Quoted:
    """Predictions for the rows of a quote; each machine is planned once.

    - `model`: The model.
    - `users`: Concurrency, [-]
    - `money`: Prices and terms.
    - `mapped`: Options of reading the quote.
    - `said`: Arguments of `glmplan.fit` for every machine.
    """

    def __init__(self, model: str, users: int, money: Money, mapped: Mapped, said: Mapping[str, Any]) -> None:
        self.model, self.users, self.money, self.mapped, self.said = model, users, money, mapped, dict(said)
        self._known: dict[tuple[str, int], Answered] = {}
        self._named: dict[tuple[Any, ...], Named | SpecError] = {}
        self._months: dict[Named, tuple[float, float] | None] = {}
        self._plans: dict[Named, tuple[dict[int, Any], tuple[str, ...]]] = {}

    def cells(self, line: Line) -> tuple[dict[int, Any], str]:
        """Return the new cells of a row by column, and the reading error.

        The error is empty if the row can be read.
        """
        try:
            if line.trouble:
                raise SpecError(line.trouble)
            named = self._machine(line)
            answered = self._answered(named)
        except GlmplanError as error:
            return {len(_COLUMNS) - 1: f"not read: {error}"}, str(error)
        found: dict[int, Any] = {0: f"{named.machines} × {named.on}"}
        remarks: list[str] = []
        if answered.answer is None:
            return found | {len(_COLUMNS) - 1: f"no plan: {answered.reason}"}, ""
        if named not in self._plans:
            cells = self._of_plan(named, answered, remarks)
            self._plans[named] = (cells, tuple(remarks))
        cells, told = self._plans[named]
        remarks = list(told)
        found |= cells | self._of_money(named, answered, line, remarks)
        if remarks:
            found[len(_COLUMNS) - 1] = "; ".join(remarks)
        return found, ""

    def _machine(self, line: Line) -> Named:
        """Return the machine of a row, cached by its text."""
        key = (line.hardware, line.part_number, line.count)
        if key not in self._named:
            if len(self._named) >= _REMEMBERED:
                self._named.clear()
            try:
                self._named[key] = machine_in(*key, dict(self.mapped.hardware))
            except SpecError as error:
                self._named[key] = error
        found = self._named[key]
        if isinstance(found, SpecError):
            raise found
        return found

    def _answered(self, named: Named) -> Answered:
        share = -(-self.users // named.machines)
        key = (named.on, share)
        if key not in self._known:
            try:
                answer = fit(self.model, named.on, users=(share,), **self.said)
                asked = answer.verdict != "does_not_fit" and answer.deployment is not None
                self._known[key] = Answered(answer, predict(answer, users=share) if asked else None)
            except SpecError as error:
                if error.field == "--on" or error.file is not None:
                    raise
                self._known[key] = Answered(None, None, str(error))
            except GlmplanError as error:
                self._known[key] = Answered(None, None, str(error))
        return self._known[key]

    def _of_plan(self, named: Named, answered: Answered, remarks: list[str]) -> dict[int, Any]:
        answer = answered.answer
        assert answer is not None
        found: dict[int, Any] = {1: verdict_words(answer.verdict, answer.may_start), 15: answer.asked.checkpoint.name}
        if answer.verdict == "does_not_fit":
            remarks.append(answer.headline)
        share = -(-self.users // named.machines)
        if answered.prediction is not None and answer.holding is not None:
            if answer.holding.held < share:
                remarks.append(
                    f"the cache holds {named.machines * int(answer.holding.held)} of {self.users} users at once"
                )
                found[1] = "tight"
            rate = answered.prediction.figures["output_rate"]
            found |= {place: _plain(named.machines * end)
                      for place, end in ((2, rate.value), (3, rate.low), (4, rate.high))}  # fmt: skip
            found[9] = answered.prediction.basis
        if answer.safe is not None:
            at = dict(answer.safe.at)
            found[5] = float(named.machines * answer.safe.users)
            found[10] = _plain(answer.safe.chance_of(share))
            found |= {place: float(named.machines * at[level]) for place, level in enumerate(SHOWN, 11)}
        warned = [one.title for one in answer.warnings if one.kind == "hazard"]
        found[8] = "; ".join(warned) if warned else "none known"
        watts, _ = watts_of(resolve_machine(named.on), self.money)
        if watts is None:
            remarks.append("the power of the card is not published")
        else:
            found[7] = _plain(named.machines * watts / 1000)
        return found

    def _of_money(self, named: Named, answered: Answered, line: Line, remarks: list[str]) -> dict[int, Any]:
        terms = self.money.terms
        if line.price is None or line.price <= 0:
            remarks.append("no price in the row")
            return {}
        currency = line.currency or terms.currency
        if not line.currency:
            remarks.append(f"the price names no currency: taken as {terms.currency}")
        rate = 1.0 if currency == terms.currency else self.mapped.rates.get(currency)
        if rate is None:
            remarks.append(f"the price is in {currency}: say --rate {currency}=NUMBER to compare in {terms.currency}")
            return {}
        if named not in self._months:
            self._months[named] = self._million(named, answered)
        million = self._months[named]
        if million is None or answered.answer is None:
            return {}
        usd, asked = million[0] + million[1] * line.price * rate, answered.answer.asked
        return {6: _plain(usd), 14: _plain(usd * (1 + asked.input_tokens / asked.output_tokens))}

    def _million(self, named: Named, answered: Answered) -> tuple[float, float] | None:
        """Return cost per million tokens as a constant and a slope in the price."""
        terms, machine = self.money.terms, resolve_machine(named.on)
        watts, _ = watts_of(machine, self.money)
        if answered.prediction is None or watts is None or answered.answer is None:
            return None
        months = owned_month(np.array([0.0, 1e6]), named.machines * watts, named.machines * machine.count, terms=terms)
        asked = answered.answer.asked
        outputs = named.machines * answered.prediction.figures["output_rate"].value
        both = outputs * (1 + asked.input_tokens / asked.output_tokens)
        none, bought = (float(one) for one in per_million(months.total, both, terms.utilisation))
        return none, (bought - none) / 1e6


def _plain(value: float) -> float:
    """Return a number with four significant digits."""
    return float(f"{value:.4g}")


#: suffixes of files that can be filled
ENDINGS: tuple[str, ...] = (".xlsx", ".xlsm", ".csv", ".tsv")
_DELIMITERS = ",;\t|"
#: rows with a reason in the report
_KEPT = 50
Progress = Callable[[int, int], None]


@dataclass
class Filled:
    """Report of a fill, or of a dry run."""

    sheet: str = ""  # name of the sheet; empty for a table of text
    header: int = 0  # row of the header, from 1, [-]
    titles: Mapping[str, str] = field(default_factory=dict)  # role of a column → its header
    read: list[tuple[int, str]] = field(default_factory=list)  # first rows that were understood, with the machine
    failed: list[tuple[int, str]] = field(default_factory=list)  # first rows that were not understood, with the reason
    #: `rows`, `understood`, `not_understood`: numbers of rows, [-]
    rows: int = 0
    understood: int = 0
    not_understood: int = 0
    remarks: tuple[str, ...] = ()  # remarks on the file

    def note(self, row: int, cells: Mapping[int, Any], reason: str) -> None:
        """Count a row, with the reason if it was not understood."""
        kept, words = (self.failed, reason) if reason else (self.read, str(cells.get(0, "")))
        if reason:
            self.not_understood += 1
        else:
            self.understood += 1
        if len(kept) < _KEPT:
            kept.append((row, words))


def filled(path: str | Path, out: str | Path, quoted: Quoted, progress: Progress | None = None) -> Filled:
    """Fill a quote sheet (a workbook or a text table) and return the report.

    `progress` is called with the rows done and in total.
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
    """Return the report of filling a quote sheet, without writing."""
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
    """Return the report and the filled lines of a text table.

    The report is complete once all lines have been consumed.
    """
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
    """Return a value as text, escaped if a program could read it as a formula."""
    if value is None:
        return ""
    if isinstance(value, str):
        return str(safe_cell(value))
    # files with semicolons between cells use decimal commas
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
    """Yield the records of a text table: raw text and cells."""
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
        if len(cells) > MOST_COLUMNS:
            raise SpecError(f"line {reader.line_num} has {len(cells):,} cells, at most {MOST_COLUMNS:,}", file=path)
        yield "".join(taken), cells
        taken.clear()


# Output files: existing ones are overwritten only on request.


def writable(path: str | Path, endings: Sequence[str], *, overwrite: bool) -> None:
    """Raise SpecError for an existing file or a wrong suffix.

    `overwrite` permits an existing file.

    Examples
    --------
    >>> writable("plan.doc", (".xlsx",), overwrite=False)
    Traceback (most recent call last):
    glmplan.errors.SpecError: plan.doc: '.doc' ends in none of the ways that can be written...
    """
    found = Path(path)
    if found.suffix.lower() not in endings:
        raise SpecError("ends in none of the ways that can be written", file=path, value=found.suffix, choices=endings)
    if os.path.exists(found) and not overwrite:
        raise SpecError("is there already: give another name, or say --overwrite", file=path)
