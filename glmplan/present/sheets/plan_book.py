"""Build the workbook of a plan: summary, sources and all sheets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from glmplan.catalog.files import data_folder, read_bytes
from glmplan.errors import GlmplanError
from glmplan.planner.ask import fit
from glmplan.planner.question import DEFAULT_INPUT, DEFAULT_OUTPUT
from glmplan.present.sheets.book import Book, Chart, Rule, Sheet, address
from glmplan.present.sheets.calculation_page import curve_of, write_calculation
from glmplan.present.sheets.input_pages import (
    SHEETS,
    Assumption,
    Grid,
    Load,
    assumptions_of,
    cell,
    fixed_facts,
    span,
    write_assumptions,
    write_memory,
    write_surface,
)
from glmplan.present.sheets.option import Option, Wanted, options_of
from glmplan.present.sheets.result_pages import FIT_RULES, write_options, write_results, write_sensitivity
from glmplan.purchase.money import Money
from glmplan.units import Ratio, TokenCount, whole_number

__all__ = ["Edition", "calibration_mark", "load_of_words", "plan_book", "workbook_of", "write_sources", "write_summary"]


_WIDTHS = (28, 11, 12, 9, 8, 8, 8, 9, 9, 9, 9, 10, 10, 12)
_TABLE = (
    ("Option", "name", "wrap"),
    ("Fits", "fit", "text"),
    ("Probability that the load meets the SLO", "chance", "chance"),
    ('="Safe users at "&ROUND(100*probability,1)&" %"', "safe", "whole"),
    ("Users at 95 %", "safe_95", "whole"),
    ("Users at 80 %", "safe_80", "whole"),
    ("Users at 50 %", "safe_50", "whole"),
    ("Tokens/s", "rate", "whole"),
    ("90 % from", "rate_low", "whole"),
    ("to", "rate_high", "whole"),
    ("Tokens/s per user", "each", "one"),
    ("{} per month", "month", "whole"),
    ("{} per million tokens", "per_million", "two"),
    ("Payback against the API, months", "paid_back", "one"),
)
_HEAD = 8
#: sort keys of an option below the load, and of one without a price or speed: above any real cost
_WORSE, _NEVER = 1e12, 1e15
_KEYS = 30


@dataclass(frozen=True, slots=True)
class Edition:
    """Versions behind a workbook."""

    title: str
    #: of glmplan
    version: str
    #: `calibration_mark`
    calibration: str
    #: day of the prices
    date: str
    currency: str

    @property
    def words(self) -> str:
        """Return versions and date as one line."""
        return f"glmplan {self.version}, calibration {self.calibration}, prices of {self.date}"


def write_summary(
    book: Book, options: tuple[Option, ...], rows: dict[str, list[Assumption]], edition: Edition, grid: Grid
) -> None:
    """Fill the sheet Summary."""
    page, count = book["Summary"], len(options)
    last = len(_TABLE) - 1
    page.say(0, 0, edition.title, "title")
    page.say(1, 0, edition.words, "note")
    for line, formula in enumerate(_decision(count, edition.currency)):
        page.put(3 + line, 0, f"={formula}", "decision")
        page.merged.append((3 + line, 0, 3 + line, last))
        page.heights[3 + line] = 34 if line else 50
    page.row(_HEAD - 1, [title.format(edition.currency) for title, _, _ in _TABLE], "header")
    page.heights[_HEAD - 1] = 46
    for number in range(count):
        for column, (_, name, style) in enumerate(_TABLE):
            page.put(_HEAD + number, column, f"={cell('Results', name, number)}", style)
        for column, name in enumerate(("safe", "safe_50")):
            page.put(_HEAD + number, _KEYS + column, f"={_key(number, name)}", "small")
    bottom = _HEAD + count - 1
    page.rules += [Rule((_HEAD, 1), (bottom, 1), f'=$B{_HEAD + 1}="{word}"', style) for word, style in FIT_RULES]
    keys = f"{address(_HEAD, _KEYS)}:{address(bottom, _KEYS)}"
    best = f"AND(ROW()-{_HEAD}=MATCH(MIN({keys}),{keys},0),MIN({keys})<{_NEVER:.0f})"
    page.rules.append(Rule((_HEAD, 0), (bottom, 0), f"={best}", "best"))
    page.put(bottom + 1, 0, "Bold: the cheapest option that serves the load. Tokens/s are output tokens of all users; "
             "safe users meet the SLO with the probability on the sheet Assumptions.", "note")  # fmt: skip
    charts = bottom + 3
    _write_charts(page, options, grid, edition, charts)
    second = charts + 18
    page.breaks = [second]
    end = _write_second(page, second, rows, edition, options)
    page.widths |= dict(enumerate(_WIDTHS)) | {_KEYS: 2, _KEYS + 1: 2}
    page.last_printed, page.scale = (end, last), 65


def _key(number: int, users: str) -> str:
    """Return the sort key of an option: its monthly cost.

    Options with fewer users in the column `users` than the load come last.
    """
    month, rate, safe = (cell("Results", name, number) for name in ("month", "rate", users))
    known = f"AND(ISNUMBER({month}),ISNUMBER({rate}))"
    return f"IF({known},{month}+IF({safe}>=users,0,{_WORSE:.0f}),{_NEVER:.0f})"


def _decision(count: int, currency: str) -> list[str]:
    keys, half = (f"{address(_HEAD, column)}:{address(_HEAD + count - 1, column)}" for column in (_KEYS, _KEYS + 1))
    best, less_sure = (f"MATCH(MIN({column}),{column},0)" for column in (keys, half))

    def of(name: str, digits: int | None = None, place: str = best) -> str:
        found = f"INDEX({span('Results', name, count)},{place})"
        return found if digits is None else f"ROUND({found},{digits})"

    def met(place: str) -> str:
        chance = of("chance", None, place)
        sure = f'INT(100*MIN({chance},0.99)+0.000001)&" %"&IF({chance}>=0.99," or more","")'
        most = '&", '.join(f'at {share} %: "&{of(f"safe_{share}", 0, place)}' for share in (95, 80, 50))
        return f'{sure}&" probability (users {most}&")."'

    load = '" for "&users&" users with "&prompt_tokens&" input and "&answer_tokens&" output tokens"'
    sure = f"MIN({keys})<{_WORSE:.0f}"
    first = (
        f'IF(MIN({keys})>={_NEVER:.0f},"No option with a price serves this load"&{load}&"; see Results.",'
        f'IF({sure},"Recommended at "&ROUND(100*probability,1)&" %: "&{of("name")}&{load}'
        f'&"; it meets the SLO with "&{met(best)}'
        f'&IF(MIN({half})<MIN({keys})," "&{of("name", None, less_sure)}&" is cheaper, {currency} "'
        f'&{of("month", 0, less_sure)}&" per month, and meets it with "&{met(less_sure)},""),'
        f'"No option meets the SLO with "&ROUND(100*probability,1)&" %"&{load}&". The cheapest that fits is "'
        f'&{of("name")}&", with "&{met(best)}))'
    )
    second = (
        f'IF(MIN({keys})>={_NEVER:.0f},"Change the number of machines or the KV cache on Options, or the load.",'
        f'"Throughput "&{of("rate", 0)}&" tokens/s (90 %: "&{of("rate_low", 0)}&" to "&{of("rate_high", 0)}'
        f'&"), "&{of("each", 1)}&" per user. Cost {currency} "&{of("month", 0)}&" per month, {currency} "'
        f'&{of("per_million", 2)}&" per million tokens ("&{of("per_million_low", 2)}&" to "'
        f'&{of("per_million_high", 2)}&").")'
    )
    api, month, even = of("api_month"), of("month"), of("break_even")
    third = (
        f'IF(MIN({keys})>={_NEVER:.0f},"",IF(ISNUMBER({api}),IF({api}<{month},"The API is cheaper: '
        f'{currency} "&ROUND({api},0)&" per month for the same tokens. "&IF(ISNUMBER({even}),"The machine breaks even '
        f'at "&ROUND({even},0)&" million tokens per month.","It stays cheaper up to the safe users of the machine."),'
        f'"The API costs {currency} "&ROUND({api},0)&" per month for the same tokens."),'
        '"No API price entered."))'
    )
    return [first, second, third]


def _write_charts(page: Sheet, options: tuple[Option, ...], grid: Grid, edition: Edition, row: int) -> None:
    count = len(options)
    lines = []
    for number in range(count):
        curve = curve_of(options, grid, number)
        lines.append((cell("Options", "name", number), curve[18], curve[19]))
    page.charts.append(
        Chart((row, 0), "line", "Throughput over concurrency, up to the capacity of the KV pool", "concurrency",
              "tokens/s", tuple(lines), (560, 340))
    )  # fmt: skip
    names = f"{address(_HEAD, 0, page.name)}:{address(_HEAD + count - 1, 0)}"
    column = [name for _, name, _ in _TABLE].index("per_million")
    values = f"{address(_HEAD, column, page.name)}:{address(_HEAD + count - 1, column)}"
    page.charts.append(
        Chart((row, 6), "column", f"{edition.currency} per million tokens", "", edition.currency,
              ((address(_HEAD - 1, column, page.name), names, values),), (500, 340))
    )  # fmt: skip


def _write_second(
    page: Sheet, row: int, rows: dict[str, list[Assumption]], edition: Edition, options: tuple[Option, ...]
) -> int:
    """Write assumptions, fixed inputs and evidence; return the last row."""
    page.put(row, 0, "Assumptions and evidence", "title")
    page.say(row + 1, 0, edition.words, "note")
    line = left = row + 3
    for heading, assumptions in rows.items():
        page.row(line, [heading, None, None], "heading")
        for entry in assumptions:
            line += 1
            page.put(line, 0, entry.title)
            page.put(line, 1, f'=IF(ISNUMBER({entry.name}),{entry.name},"not given")', entry.style)
            page.put(line, 2, entry.unit)
        line += 2
    left = _write_right(page, left, "Fixed inputs", [(f'"{title}"', value) for title, value, _ in fixed_facts(options)])
    pairs = [(cell("Options", "name", number), f"{option.cached[0].surface.basis}; {option.planned.holding.terms.name}")
             for number, option in enumerate(options)]  # fmt: skip
    left = _write_right(page, left + 2, "Evidence and layout", pairs)
    pairs = [('"Sensitivity"', "effect of each assumption on the cost"),
             ('"Memory per card"', "memory of each GPU by use"),
             ('"Sources"', "source of every price and prediction"),
             ('"Before you sign"', "speeds are predictions with 90 % intervals: measure with glmplan validate, put the "
                                   "acceptance test of glmplan size into the contract")]  # fmt: skip
    left = _write_right(page, left + 2, "Other sheets", pairs)
    return max(line, left)


def _write_right(page: Sheet, row: int, heading: str, pairs: list[tuple[str, str]]) -> int:
    """Write pairs of a title formula and a text; return the last row.

    The pairs fill the right half of the page.
    """
    page.row(row, [heading, *[None] * 7], "heading", column=6)
    for title, text in pairs:
        row += 1
        page.put(row, 6, f"={title}", "wrap")
        page.say(row, 9, text, "wrap")
        page.merged += [(row, 6, row, 8), (row, 9, row, 13)]
        if len(text) > 55:
            page.heights[row] = 15 * (1 + len(text) // 55)
    return row


_PRICES = ("Price of", "Amount", "Currency", "Unit", "Date", "Contains", "Source", "Term")
_WIDTHS_SOURCES_PAGE = (22, 14, 12, 26, 12, 44, 70, 24)


def write_sources(book: Book, options: tuple[Option, ...], edition: Edition, load: tuple[int, int, int]) -> None:
    """Fill the sheet of sources.

    `load` (users, input, output) decides the hazards and limitations.
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
    page.row(line, ("Option", "Kind", "Severity", "Warning", "", "Effect", "Remedy"), "header")
    for number, option in enumerate(options):
        for words in _warnings(option, load):
            line += 1
            page.put(line, 0, number + 1, "small")
            _say(page, line, words)
    line += 2
    page.row(line, ("Option", "Model", "Weights", "Machine", "", "Evidence", "Sources"), "header")
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
    page.say(line + 2, 0, "Sources of cost defaults: sheet Assumptions.", "note")
    page.widths |= dict(enumerate(_WIDTHS_SOURCES_PAGE))
    page.freeze = (4, 0)


def _say(page: Sheet, line: int, words: tuple[str, ...]) -> None:
    """Write texts into a row and set its height."""
    columns = (1, 2, 3, 5, 6)
    for column, text in zip(columns, words, strict=True):
        page.say(line, column, text, "small")
        if column == 3:
            page.merged.append((line, 3, line, 4))
    wide = [_WIDTHS_SOURCES_PAGE[column] + (_WIDTHS_SOURCES_PAGE[4] if column == 3 else 0) for column in columns]
    lines = max(1 + int(len(text) / width) for text, width in zip(words, wide, strict=True))
    page.heights[line] = 13.0 * lines


def _prices(options: tuple[Option, ...]) -> Iterator[tuple[object, ...]]:
    for option in options:
        lines = option.purchase.lines if option.purchase is not None else ()
        for price in (*(line.quotation for line in lines), option.rent):
            for entry in () if price is None else price.entries:
                yield (entry.part, entry.price, entry.currency, entry.per, entry.date, entry.contains, entry.source,
                       entry.term)  # fmt: skip


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
    for warning in answer.warnings:
        yield (warning.kind, warning.severity, warning.title, warning.effect, warning.do)


def load_of_words(
    users: int,
    input_tokens: TokenCount | None,
    output_tokens: TokenCount | None,
    context: TokenCount | None,
    **shares: Ratio,
) -> Load:
    """Return a load; lengths not given are the defaults of a plan.

    `context`: Longest request that must fit; by default input plus output.

    Examples
    --------
    >>> load_of_words(8, None, None, None).context
    2560
    """
    inputs = DEFAULT_INPUT if input_tokens is None else whole_number(input_tokens, "--input")
    outputs = DEFAULT_OUTPUT if output_tokens is None else whole_number(output_tokens, "--output", least=2)
    longest = inputs + outputs if context is None else whole_number(context, "--context")
    return Load(whole_number(users, "--users"), longest, inputs, outputs, **shares)


def calibration_mark() -> str:
    """Return a short hash of all calibration files.

    Examples
    --------
    >>> len(calibration_mark())
    10
    """
    folder = data_folder("calibration") / "fits"
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.toml")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + read_bytes(path))
    return digest.hexdigest()[:10]


def plan_book(
    model: str,
    wanted: Sequence[Wanted],
    load: Load,
    money: Money,
    *,
    said: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Book:
    """Plan options and return their workbook.

    `progress` is called with the surfaces done and in total.
    """
    numbers = (load.users, load.input, load.output)
    options = options_of(model, wanted, money, load=numbers, said=said or {}, progress=progress)
    return workbook_of(options, load, money)


def workbook_of(options: tuple[Option, ...], load: Load, money: Money) -> Book:
    """Return the workbook of planned options."""
    asked = options[0].planned.asked
    book, grid = Book(SHEETS), Grid(options)
    rows = assumptions_of(load, money, asked)
    edition = Edition(
        title=f"{asked.model.name}: what to buy or rent",
        version=_version(),
        calibration=calibration_mark(),
        date=money.today.isoformat(),
        currency=money.terms.currency,
    )
    book.properties = {"title": edition.title, "comments": edition.words, "author": "glmplan"}
    write_options(book, options, money.terms)
    write_assumptions(book, options, rows)
    write_surface(book, options, grid)
    write_calculation(book, options, grid, write_memory(book, options))
    write_results(book, options, money.terms)
    write_sensitivity(book, options, rows, edition.currency)
    write_sources(book, options, edition, (load.users, load.input, load.output))
    write_summary(book, options, rows, edition, grid)
    return book


def _version() -> str:
    try:
        return version("glmplan")
    except PackageNotFoundError:
        return "from a checkout"
