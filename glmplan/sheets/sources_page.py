"""The sheet of sources: every price, default and prediction with where it comes from, and what to look at besides."""

from __future__ import annotations

from collections.abc import Iterator

from glmplan.errors import GlmplanError
from glmplan.plan.ask import fit
from glmplan.sheets.book import Book, Sheet
from glmplan.sheets.option import Option
from glmplan.sheets.summary_page import Edition

__all__ = ["write_sources"]

_PRICES = ("Price of", "Amount", "Currency", "For", "Date", "Contains", "Source", "Term")
_WIDTHS = (22, 14, 12, 26, 12, 44, 70, 24)


def write_sources(book: Book, options: tuple[Option, ...], edition: Edition, load: tuple[int, int, int]) -> None:
    """Fill the sheet of sources.

    Parameters
    ----------
    book : Book
        The workbook.
    options : tuple of Option
        The options.
    edition : Edition
        Version, calibration, date.
    load : tuple of int
        Users [-], prompt and answer [token], for hazards and walls.
    """
    page = book["Sources"]
    page.put(0, 0, "Sources", "title")
    page.say(1, 0, edition.words, "note")
    line = 3
    page.row(line, _PRICES, "header")
    seen = set()
    for row in _prices(options):
        if row in seen:
            continue
        seen.add(row)
        line += 1
        for column, value in enumerate(row):
            if isinstance(value, str):
                page.say(line, column, value, "small")
            else:
                page.put(line, column, value, "two")
    line += 2
    page.row(line, ("Option", "Of what", "How grave", "What", "", "What happens", "What to do"), "header")
    for number, option in enumerate(options):
        for words in _warnings(option, load):
            line += 1
            page.put(line, 0, number + 1, "small")
            _say(page, line, words)
    line += 2
    page.row(line, ("Option", "Model", "Weights", "Machine", "", "What the speed rests on", "Sources"), "header")
    for number, option in enumerate(options):
        line += 1
        asked = option.planned.asked
        words = (
            asked.model.name,
            asked.checkpoint.name,
            asked.machine.text,
            option.cached[0].surface.basis,
            f"model: {asked.model.source}; accelerator: {asked.machine.accelerator.source}",
        )
        page.put(line, 0, number + 1, "small")
        _say(page, line, words)
    page.say(line + 2, 0, "Defaults of a cost stand with their sources on Assumptions.", "note")
    page.widths |= dict(enumerate(_WIDTHS))
    page.freeze = (4, 0)


def _say(page: Sheet, line: int, words: tuple[str, ...]) -> None:
    """What a plan rests on or is warned of, in a row that is high enough for it."""
    columns = (1, 2, 3, 5, 6)
    for column, text in zip(columns, words, strict=True):
        page.say(line, column, text, "small")
        if column == 3:
            page.merged.append((line, 3, line, 4))
    wide = [_WIDTHS[column] + (_WIDTHS[4] if column == 3 else 0) for column in columns]
    lines = max(1 + int(len(text) / width) for text, width in zip(words, wide, strict=True))
    page.heights[line] = 13.0 * lines


def _prices(options: tuple[Option, ...]) -> Iterator[tuple[object, ...]]:
    for option in options:
        lines = option.purchase.lines if option.purchase is not None else ()
        for quoted in (*(one.quotation for one in lines), option.rent):
            for one in () if quoted is None else quoted.entries:
                yield (one.part, one.price, one.currency, one.per, one.date, one.contains, one.source, one.term)


def _warnings(option: Option, load: tuple[int, int, int]) -> Iterator[tuple[str, ...]]:
    planned = option.planned
    asked, terms = planned.asked, planned.holding.terms
    said = {name: getattr(terms, name) for name in ("tp", "pp", "dp", "ep", "dcp", "replicas")}
    users = -(-load[0] // option.wanted.machines)
    try:
        answer = fit(asked.model.name, asked.machine.text, weights=asked.checkpoint.name, engine=asked.engine,
                     kv=terms.kv, users=(users,), input=load[1], output=load[2], **said)  # fmt: skip
    except GlmplanError as error:
        yield ("plan", "", str(error), "", "")
        return
    for one in answer.warnings:
        yield (one.kind, one.severity, one.title, one.effect, one.do)
