"""The first sheet: the decision in one screen, and on its second page what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

from glmplan.sheets.assumptions_page import Assumption, fixed_facts
from glmplan.sheets.book import Book, Chart, Rule, Sheet
from glmplan.sheets.calculate import address
from glmplan.sheets.calculation_page import curve_of
from glmplan.sheets.option import Option
from glmplan.sheets.places import Grid, cell, span
from glmplan.sheets.results_page import FIT_RULES

__all__ = ["Edition", "write_summary"]

_WIDTHS = (32, 11, 11, 11, 10, 10, 10, 11, 12, 13, 14)
_TABLE = (
    ("Option", "name", "wrap"),
    ("Fits", "fit", "text"),
    ("Users the cache holds", "held", "whole"),
    ("Safe users", "safe", "whole"),
    ("Tokens/s", "rate", "whole"),
    ("90 % from", "rate_low", "whole"),
    ("to", "rate_high", "whole"),
    ("Tokens/s of one user", "each", "one"),
    ("{} a month", "month", "whole"),
    ("{} for a million tokens", "per_million", "two"),
    ("Paid back against the API, months", "paid_back", "one"),
)
_HEAD = 8
#: months of an option that does not carry the load, or has no price: larger than any real one
_WORSE, _NEVER = 1e12, 1e15
_KEYS = 30


@dataclass(frozen=True, slots=True)
class Edition:
    """What made the workbook.

    Attributes
    ----------
    title, version, calibration, date : str
        Model and load, version of glmplan, its fits, day of the question.
    currency : str
        Of all money.
    """

    title: str
    version: str
    calibration: str
    date: str
    currency: str

    @property
    def words(self) -> str:
        """All of it in one line."""
        return f"glmplan {self.version}, calibration {self.calibration}, prices and answers of {self.date}"


def write_summary(
    book: Book, options: tuple[Option, ...], rows: dict[str, list[Assumption]], edition: Edition, grid: Grid
) -> None:
    """Fill the sheet of the decision.

    Parameters
    ----------
    book : Book
        The workbook.
    options : tuple of Option
        The options.
    rows : dict of str to list of Assumption
        Assumptions by heading.
    edition : Edition
        Version, calibration, date.
    grid : Grid
        Where the surface stands.
    """
    page, count = book["Summary"], len(options)
    last = len(_TABLE) - 1
    page.say(0, 0, edition.title, "title")
    page.say(1, 0, edition.words, "note")
    for line, formula in enumerate(_decision(count, edition.currency)):
        page.put(3 + line, 0, f"={formula}", "decision")
        page.merged.append((3 + line, 0, 3 + line, last))
        page.heights[3 + line] = 34
    page.row(_HEAD - 1, [title.format(edition.currency) for title, _, _ in _TABLE], "header")
    page.heights[_HEAD - 1] = 46
    for number in range(count):
        for column, (_, name, style) in enumerate(_TABLE):
            page.put(_HEAD + number, column, f"={cell('Results', name, number)}", style)
        page.put(_HEAD + number, _KEYS, f"={_key(number)}", "small")
    bottom = _HEAD + count - 1
    page.rules += [Rule((_HEAD, 1), (bottom, 1), f'=$B{_HEAD + 1}="{word}"', style) for word, style in FIT_RULES]
    keys = f"{address(_HEAD, _KEYS)}:{address(bottom, _KEYS)}"
    best = f"AND(ROW()-{_HEAD}=MATCH(MIN({keys}),{keys},0),MIN({keys})<{_NEVER:.0f})"
    page.rules.append(Rule((_HEAD, 0), (bottom, 0), f"={best}", "best"))
    page.put(bottom + 1, 0, "Bold: the cheapest option that carries the load. Tokens/s are answer tokens of all users; "
             "safe users keep the limits at the slow end of the interval.", "note")  # fmt: skip
    charts = bottom + 3
    _write_charts(page, options, grid, edition, charts)
    second = charts + 18
    page.breaks = [second]
    end = _write_second(page, second, rows, edition, options)
    page.widths |= dict(enumerate(_WIDTHS)) | {_KEYS: 2}
    page.last_printed, page.scale = (end, last), 70


def _key(number: int) -> str:
    """What options are ordered by: the month, after all that carry the load those that do not surely."""
    month, rate, safe = (cell("Results", name, number) for name in ("month", "rate", "safe"))
    known = f"AND(ISNUMBER({month}),ISNUMBER({rate}))"
    return f"IF({known},{month}+IF({safe}>=users,0,{_WORSE:.0f}),{_NEVER:.0f})"


def _decision(count: int, currency: str) -> list[str]:
    keys = f"{address(_HEAD, _KEYS)}:{address(_HEAD + count - 1, _KEYS)}"
    best = f"MATCH(MIN({keys}),{keys},0)"

    def of(name: str, digits: int | None = None) -> str:
        found = f"INDEX({span('Results', name, count)},{best})"
        return found if digits is None else f"ROUND({found},{digits})"

    load = '" for "&users&" users with prompts of "&prompt_tokens&" and answers of "&answer_tokens&" tokens"'
    sure = f"MIN({keys})<{_WORSE:.0f}"
    first = (
        f'IF(MIN({keys})>={_NEVER:.0f},"No option with a price carries this load"&{load}&": Results says why.",'
        f'IF({sure},"Take "&{of("name")}&{load}&": it keeps the limits for "&{of("safe", 0)}&" users.",'
        f'"No option surely keeps the limits"&{load}&". The cheapest that holds them is "&{of("name")}&", safe for "'
        f'&{of("safe", 0)}&" users."))'
    )
    second = (
        f'IF(MIN({keys})>={_NEVER:.0f},"Change the number of machines or the KV cache on Options, or the load.",'
        f'"It gives "&{of("rate", 0)}&" tokens/s in all (90 %: "&{of("rate_low", 0)}&" to "&{of("rate_high", 0)}'
        f'&"), "&{of("each", 1)}&" for each user. It costs {currency} "&{of("month", 0)}&" a month: {currency} "'
        f'&{of("per_million", 2)}&" for a million tokens ("&{of("per_million_low", 2)}&" to "'
        f'&{of("per_million_high", 2)}&").")'
    )
    api, month = of("api_month"), of("month")
    third = (
        f'IF(MIN({keys})>={_NEVER:.0f},"",IF(ISNUMBER({api}),IF({api}<{month},"Paying for each token is cheaper: '
        f'{currency} "&ROUND({api},0)&" a month for the same tokens. The machine pays from "'
        f'&ROUND({of("break_even")},0)&" million tokens a month on.",'
        f'"An API would take {currency} "&ROUND({api},0)&" a month for the same tokens."),'
        '"No API price is entered: nothing to compare with."))'
    )
    return [first, second, third]


def _write_charts(page: Sheet, options: tuple[Option, ...], grid: Grid, edition: Edition, row: int) -> None:
    count = len(options)
    lines = []
    for number in range(count):
        curve = curve_of(options, grid, number)
        lines.append((cell("Options", "name", number), curve[15], curve[16]))
    page.charts.append(
        Chart((row, 0), "line", "Answer tokens in a second over users, as far as the cache holds them", "users at once",
              "tokens/s", tuple(lines), (560, 340))
    )  # fmt: skip
    names = f"{address(_HEAD, 0, page.name)}:{address(_HEAD + count - 1, 0)}"
    values = f"{address(_HEAD, 9, page.name)}:{address(_HEAD + count - 1, 9)}"
    page.charts.append(
        Chart((row, 5), "column", f"{edition.currency} for a million tokens", "", edition.currency,
              ((address(_HEAD - 1, 9, page.name), names, values),), (500, 340))
    )  # fmt: skip


def _write_second(
    page: Sheet, row: int, rows: dict[str, list[Assumption]], edition: Edition, options: tuple[Option, ...]
) -> int:
    """What the decision rests on: assumptions in force, evidence, and what is fixed; the last row."""
    page.put(row, 0, "What this rests on", "title")
    page.say(row + 1, 0, edition.words, "note")
    line = left = row + 3
    for heading, found in rows.items():
        page.row(line, [heading, None, None], "heading")
        for one in found:
            line += 1
            page.put(line, 0, one.title)
            page.put(line, 1, f'=IF(ISNUMBER({one.name}),{one.name},"not given")', one.style)
            page.put(line, 2, one.unit)
        line += 2
    left = _write_right(page, left, "Predicted", [(f'"{title}"', value) for title, value, _ in fixed_facts(options)])
    pairs = [(cell("Options", "name", number), f"{one.cached[0].surface.basis}; {one.planned.holding.terms.name}")
             for number, one in enumerate(options)]  # fmt: skip
    left = _write_right(page, left + 2, "What the speeds rest on, and the layout", pairs)
    pairs = [('"Sensitivity"', "what moves the cost most"), ('"Memory per card"', "what fills each card"),
             ('"Sources"', "every price and prediction with where it comes from"),
             ('"Before you sign"', "speeds are predictions with 90 % intervals: measure with glmplan validate, put the "
                                   "acceptance test of glmplan size into the contract")]  # fmt: skip
    left = _write_right(page, left + 2, "Beside this page", pairs)
    return max(line, left)


def _write_right(page: Sheet, row: int, heading: str, found: list[tuple[str, str]]) -> int:
    """Pairs of a title, which is a formula, and words, on the right half of the page; the last row."""
    page.row(row, [heading, *[None] * 5], "heading", column=5)
    for title, words in found:
        row += 1
        page.put(row, 5, f"={title}", "wrap")
        page.say(row, 7, words, "wrap")
        page.merged += [(row, 5, row, 6), (row, 7, row, 10)]
        if len(words) > 55:
            page.heights[row] = 15 * (1 + len(words) // 55)
    return row
