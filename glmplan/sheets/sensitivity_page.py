"""The sheet of sensitivity: what a million tokens of one option costs when one assumption moves to its ends."""

from __future__ import annotations

from glmplan.sheets.assumptions_page import Assumption
from glmplan.sheets.book import Book, Chart
from glmplan.sheets.calculate import address
from glmplan.sheets.money_formulas import cost_formulas, token_formulas
from glmplan.sheets.option import Option
from glmplan.sheets.places import span
from glmplan.sheets.results_page import named_terms, option_cells

__all__ = ["write_sensitivity"]

_HEADERS = ("What moves", "Low", "Now", "High", "A million tokens at low", "now", "at high", "Difference")
#: assumptions that move although no source gives a range → factors of what they are
_FACTORS = {"electricity": (0.5, 2.0), "utilisation": (0.5, 1.5), "hours_per_month": (0.5, 1.0)}
_TOP = 7


def write_sensitivity(
    book: Book, options: tuple[Option, ...], rows: dict[str, list[Assumption]], currency: str
) -> None:
    """Fill the sheet of sensitivity.

    Parameters
    ----------
    book : Book
        The workbook.
    options : tuple of Option
        The options.
    rows : dict of str to list of Assumption
        Assumptions by heading: those with a range move to its ends.
    currency : str
        Of all money.
    """
    page, count = book["Sensitivity"], len(options)
    page.put(0, 0, "Sensitivity", "title")
    page.put(1, 0, "One assumption at a time moves to the ends that sources or the interval give it; all else stays. "
                   "Low and high may be changed.", "note")  # fmt: skip
    page.put(3, 0, "Number of the option")
    page.put(3, 1, 1, "whole*")
    page.bounds[3, 1] = (1, count, f"1 to {count}")
    page.put(3, 2, f"=INDEX({span('Results', 'name', count)},{address(3, 1)})")
    page.put(4, 0, f"{currency} for a million tokens, prompts and answers", "note")
    page.row(_TOP - 1, _HEADERS, "header")
    page.heights[_TOP - 1] = 32
    facts = [*option_cells(0), "rate", "rate_low", "rate_high", "price_low", "price_high", "rent_low", "rent_high"]
    left, here = 12, {}
    page.put(_TOP - 3, left, "The option that was chosen", "heading")
    for place, name in enumerate(facts):
        sheet = "Results" if name.startswith("rate") and name != "rating" else "Options"
        page.put(_TOP - 2, left + place, name, "small")
        held = f"INDEX({span(sheet, name, count)},{address(3, 1)})"
        page.put(_TOP - 1, left + place, f"={held}" if name == "way" else f'=IF(ISNUMBER({held}),{held},"–")', "exact")
        here[name] = address(_TOP - 1, left + place)
    moves = _moves(rows, here)
    for number, (title, name, low, now, high) in enumerate(moves):
        line = _TOP + number
        page.put(line, 0, title)
        for column, value in ((1, low), (2, now), (3, high)):
            style = "exact" if column == 2 or isinstance(value, str) else "exact*"
            page.put(line, column, value, style)
        for column, end in ((4, 1), (5, 2), (6, 3)):
            at = here | named_terms() | {name: address(line, end)}
            tokens = token_formulas(at["rate"], at)["tokens"]
            known = f"AND(ISNUMBER({at['rate']}),ISNUMBER({address(line, end)}),ISNUMBER({_price(here)}))"
            page.put(line, column, f'=IF({known},({cost_formulas(at)["month"]})/({tokens}),"–")', "three")
        ends = ",".join(address(line, column) for column in (4, 5, 6))
        known = f"AND(ISNUMBER({address(line, 4)}),ISNUMBER({address(line, 6)}))"
        page.put(line, 7, f'=IF({known},MAX({ends})-MIN({ends}),"–")', "three")
    last = _TOP + len(moves) - 1
    names = f"{address(_TOP, 0, page.name)}:{address(last, 0)}"
    page.charts.append(
        Chart((last + 2, 0), "column", "How far a million tokens moves", "", currency,
              ((address(_TOP - 1, 7, page.name), names, f"{address(_TOP, 7, page.name)}:{address(last, 7)}"),),
              (760, 300))
    )  # fmt: skip
    page.widths |= {0: 34, **{column: 14 for column in range(1, 8)}, **{column: 3 for column in range(8, 12)}}
    page.last_printed = (last + 18, 7)


def _price(here: dict[str, str]) -> str:
    return f'IF({here["way"]}="buy",{here["price"]},{here["rent"]})'


def _moves(rows: dict[str, list[Assumption]], here: dict[str, str]) -> list[tuple[str, str, object, str, object]]:
    """Title, name, low, now and high of everything that moves."""
    found: list[tuple[str, str, object, str, object]] = [
        (
            "Speed, within its 90 % interval",
            "rate",
            f"={here['rate_low']}",
            f"={here['rate']}",
            f"={here['rate_high']}",
        ),
        ("Price of a machine", "price", f"={here['price_low']}", f"={here['price']}", f"={here['price_high']}"),
        ("Rent of a card", "rent", f"={here['rent_low']}", f"={here['rent']}", f"={here['rent_high']}"),
    ]
    for one in (one for some in rows.values() for one in some):
        low, high = one.low, one.high
        if (low is None or low == high) and one.name in _FACTORS and one.value:
            low, high = (round(factor * one.value, 6) for factor in _FACTORS[one.name])
            high = min(high, one.most)
        if low is not None and high is not None and low < high and one.name in named_terms():
            found.append((one.title, one.name, low, f"={one.name}", high))
    return found
