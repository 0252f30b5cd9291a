"""The sheet of sensitivity: what a million tokens of one option costs when one assumption moves to its ends."""

from __future__ import annotations

from glmplan.sheets.assumptions_page import Assumption
from glmplan.sheets.book import Book, Chart, Sheet
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
#: how what moves is written
_STYLES = {"rate": "one", "price": "whole", "rent": "two", "utilisation": "share"}
#: column where the order of effects is worked out, with names and effects in that order beside it [-]
_ORDER = 40
#: title, name, low, now and high of something that moves
_Move = tuple[str, str, object, str, object]


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
    _write_moves(page, moves, here)
    # what moves the first option most stands at the top; the chart follows whatever is changed
    known = book.calculator()
    effects = [known.value(page.name, _TOP + number, 7) for number in range(len(moves))]
    order = sorted(range(len(moves)), key=lambda number: -effects[number] if _is_number(effects[number]) else 1.0)
    _write_moves(page, [moves[number] for number in order], here)
    _write_chart(page, len(moves), currency)
    page.widths |= {0: 34, **{column: 14 for column in range(1, 8)}, **{column: 3 for column in range(8, 12)}}


def _is_number(value: object) -> bool:
    return isinstance(value, float)


def _write_moves(page: Sheet, moves: list[_Move], here: dict[str, str]) -> None:
    """A row for everything that moves, with what a million tokens then costs."""
    for number, (title, name, low, now, high) in enumerate(moves):
        line = _TOP + number
        page.put(line, 0, title)
        for column, value in ((1, low), (2, now), (3, high)):
            plain = _STYLES.get(name, "exact")
            style = plain if column == 2 or isinstance(value, str) else f"{plain}*"
            page.put(line, column, value, style)
        for column, end in ((4, 1), (5, 2), (6, 3)):
            at = here | named_terms() | {name: address(line, end)}
            tokens = token_formulas(at["rate"], at)["tokens"]
            known = f"AND(ISNUMBER({at['rate']}),ISNUMBER({address(line, end)}),ISNUMBER({_price(here)}))"
            page.put(line, column, f'=IF({known},({cost_formulas(at)["month"]})/({tokens}),"–")', "three")
        ends = ",".join(address(line, column) for column in (4, 5, 6))
        known = f"AND(ISNUMBER({address(line, 4)}),ISNUMBER({address(line, 6)}))"
        page.put(line, 7, f'=IF({known},MAX({ends})-MIN({ends}),"–")', "three")


def _write_chart(page: Sheet, count: int, currency: str) -> None:
    """Bars in the order of their effect, which a column beside the page works out."""
    last = _TOP + count - 1
    keys = f"{address(_TOP, _ORDER)}:{address(last, _ORDER)}"
    page.put(_TOP - 1, _ORDER + 2, f"={address(_TOP - 1, 7)}", "small")
    for number in range(count):
        line = _TOP + number
        moved = address(line, 7)
        # rows that move as far as each other keep their order
        page.put(line, _ORDER, f"=IF(ISNUMBER({moved}),{moved},0)-{number + 1}*0.000000001", "exact")
        where = f"MATCH(LARGE({keys},{number + 1}),{keys},0)"
        page.put(line, _ORDER + 1, f"=INDEX({address(_TOP, 0)}:{address(last, 0)},{where})")
        page.put(line, _ORDER + 2, f"=MAX(LARGE({keys},{number + 1}),0)", "three")
    names, values = (
        f"{address(_TOP, _ORDER + column, page.name)}:{address(last, _ORDER + column)}" for column in (1, 2)
    )
    page.charts.append(
        Chart((last + 2, 0), "bar", "How far a million tokens moves", "", currency,
              ((address(_TOP - 1, _ORDER + 2, page.name), names, values),), (860, 60 + 24 * count))
    )  # fmt: skip
    page.last_printed = (last + 6 + round(1.2 * count), 7)


def _price(here: dict[str, str]) -> str:
    return f'IF({here["way"]}="buy",{here["price"]},{here["rent"]})'


def _moves(rows: dict[str, list[Assumption]], here: dict[str, str]) -> list[_Move]:
    """Title, name, low, now and high of everything that moves."""
    found: list[_Move] = [
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
