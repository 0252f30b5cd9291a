"""Write workbooks with formulas and their computed values."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from glmplan.errors import SpecError
from glmplan.extras import wanted

__all__ = [
    "FUNCTIONS",
    "Book",
    "Calculator",
    "Chart",
    "Rule",
    "Sheet",
    "address",
    "column_name",
    "functions_in",
    "place_of",
]


# Formula evaluation, for the cached value of each cell. Formulas use only the functions below, which all spreadsheet
# programs have had since before 2019.

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+)"
    r"|(?P<text>\"(?:[^\"]|\"\")*\")"
    r"|(?P<cell>(?:'[^']+'!|[A-Za-z_]\w*!)?\$?[A-Z]{1,3}\$?\d+(?::\$?[A-Z]{1,3}\$?\d+)?(?![\w(]))"
    r"|(?P<word>[A-Za-z_][\w.]*)"
    r"|(?P<sign><=|>=|<>|[-+*/^&=<>(),%]))"
)
_CELL = re.compile(r"(?:(?P<sheet>'[^']+'|[A-Za-z_]\w*)!)?\$?([A-Z]{1,3})\$?(\d+)(?::\$?([A-Z]{1,3})\$?(\d+))?")
Value = Any
Range = list[list[Value]]


@lru_cache(maxsize=2000)
def column_name(column: int) -> str:
    """Return the letters of a column.

    Examples
    --------
    >>> column_name(0), column_name(27)
    ('A', 'AB')
    """
    name, number = "", column + 1
    while number:
        number, rest = divmod(number - 1, 26)
        name = chr(65 + rest) + name
    return name


def place_of(name: str) -> tuple[int, int]:
    """Return row and column of the address of a cell.

    Examples
    --------
    >>> place_of("AB12")
    (11, 27)
    """
    found = _CELL.fullmatch(name)
    if found is None:
        raise SpecError("is not the address of a cell such as B7", field="cell", value=name)
    column = 0
    for letter in found[2]:
        column = 26 * column + ord(letter) - 64
    return int(found[3]) - 1, column - 1


def address(row: int, column: int, sheet: str = "", *, fixed: bool = True) -> str:
    """Return the address of a cell; within its own sheet without `sheet`.

    Examples
    --------
    >>> address(11, 27, "Memory per card")
    "'Memory per card'!$AB$12"
    """
    mark = "$" if fixed else ""
    cell = f"{mark}{column_name(column)}{mark}{row + 1}"
    if not sheet:
        return cell
    return f"'{sheet}'!{cell}" if not sheet.isalnum() else f"{sheet}!{cell}"


def _flat(values: tuple[Value, ...]) -> Iterator[Value]:
    for one in values:
        if isinstance(one, list):
            for row in one:
                yield from row
        else:
            yield one


def _numbers(values: tuple[Value, ...]) -> list[float]:
    return [float(one) for one in _flat(values) if isinstance(one, int | float) and not isinstance(one, bool)]


def _number(value: Value) -> float:
    if value is None or value == "":
        return 0.0
    if isinstance(value, str):
        raise ArithmeticError(f"{value!r} is no number")
    return float(value)


def _rounded(value: Value, digits: Value, how: Callable[[float], float]) -> float:
    factor = 10.0 ** _number(digits)
    number = _number(value)
    # as spreadsheet programs do: numbers within the last bits of an integer count as that integer
    return math.copysign(how(round(abs(number) * factor, 9)) / factor, number)


def _match(value: Value, where: Range, kind: Value = 1.0) -> float:
    cells = list(_flat((where,)))
    if _number(kind) == 0:
        for place, one in enumerate(cells, 1):
            if (one.lower() if isinstance(one, str) else one) == (value.lower() if isinstance(value, str) else value):
                return float(place)
        raise ArithmeticError(f"{value!r} is not there")
    found = sum(1 for one in cells if isinstance(one, int | float) and one <= value)
    if not found:
        raise ArithmeticError(f"{value!r} is below all")
    return float(found)


def _index(where: Range, row: Value, column: Value = 1.0) -> Value:
    down, across = int(_number(row)), int(_number(column))
    if len(where) == 1 and across == 1 and down >= 1 and len(where[0]) > 1:
        down, across = 1, down
    if not (1 <= down <= len(where) and 1 <= across <= len(where[0])):
        raise ArithmeticError("is outside of the range")
    return where[down - 1][across - 1]


def _pmt(rate: Value, count: Value, present: Value, future: Value = 0.0) -> float:
    r, n, pv, fv = (_number(one) for one in (rate, count, present, future))
    if r == 0:
        return -(pv + fv) / n
    shrunk = math.exp(-n * math.log1p(r))
    return -(pv + fv * shrunk) * r / -math.expm1(-n * math.log1p(r))


#: functions of computed arguments
FUNCTIONS: dict[str, Callable[..., Value]] = {
    "ABS": lambda value: abs(_number(value)),
    "AND": lambda *values: all(bool(one) for one in _flat(values)),
    "CEILING": lambda value, step: math.ceil(round(_number(value) / _number(step), 9)) * _number(step),
    "EXP": lambda value: math.exp(_number(value)),
    "INDEX": _index,
    "INT": lambda value: float(math.floor(_number(value))),
    "ISNUMBER": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "LARGE": lambda where, place: sorted(_numbers((where,)), reverse=True)[int(_number(place)) - 1],
    "LN": lambda value: math.log(_number(value)),
    "MATCH": _match,
    "MAX": lambda *values: max(_numbers(values), default=0.0),
    "MIN": lambda *values: min(_numbers(values), default=0.0),
    "NOT": lambda value: not value,
    "OR": lambda *values: any(bool(one) for one in _flat(values)),
    "PMT": _pmt,
    "ROUND": lambda value, digits: _rounded(value, digits, lambda number: math.floor(number + 0.5)),
    "ROUNDUP": lambda value, digits: _rounded(value, digits, math.ceil),
    "SUM": lambda *values: math.fsum(_numbers(values)),
}
#: functions with lazily evaluated arguments
_LAZY = ("IF", "IFERROR")


@lru_cache(maxsize=20_000)
def _tokens(formula: str) -> tuple[tuple[str, str], ...]:
    found, place = [], 0
    text = formula.removeprefix("=").rstrip()
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise SpecError("is not a formula that we can write", field="formula", value=formula)
        found.append((str(token.lastgroup), token[0].strip()))
        place = token.end()
    return tuple(found)


def functions_in(formula: str) -> set[str]:
    """Return the names of the functions of a formula.

    Examples
    --------
    >>> sorted(functions_in("=IF(A1>0,MAX(A1,2),0)"))
    ['IF', 'MAX']
    """
    tokens = _tokens(formula)
    return {word.upper() for (kind, word), after in zip(tokens, (*tokens[1:], ("", "")), strict=True)
            if kind == "word" and after[1] == "("}  # fmt: skip


_ORDER = {"=": 1, "<>": 1, "<": 1, ">": 1, "<=": 1, ">=": 1, "&": 2, "+": 3, "-": 3, "*": 4, "/": 4, "^": 5}


@lru_cache(maxsize=20_000)
def _tree(formula: str) -> tuple[Any, ...]:
    tokens, place = _tokens(formula), 0

    def peek() -> tuple[str, str]:
        return tokens[place] if place < len(tokens) else ("end", "")

    def take(expected: str = "") -> tuple[str, str]:
        nonlocal place
        found = peek()
        if expected and found[1] != expected:
            raise SpecError(f"lacks {expected!r}", field="formula", value=formula)
        place += 1
        return found

    def primary() -> tuple[Any, ...]:
        kind, word = take()
        if kind == "number":
            return ("value", float(word))
        if kind == "text":
            return ("value", word[1:-1].replace('""', '"'))
        if kind == "cell":
            return ("cell", word)
        if kind == "word":
            if word.upper() in ("TRUE", "FALSE"):
                return ("value", word.upper() == "TRUE")
            if peek()[1] != "(":
                return ("name", word)
            if word.upper() not in FUNCTIONS and word.upper() not in _LAZY:
                raise SpecError("is not a function of all spreadsheet programs", field="formula", value=word)
            take("(")
            arguments = []
            while peek()[1] != ")":
                arguments.append(expression(0))
                if peek()[1] == ",":
                    take()
            take(")")
            return ("call", word.upper(), tuple(arguments))
        if word == "(":
            inside = expression(0)
            take(")")
            return inside
        if word == "-":
            return ("minus", expression(6))
        raise SpecError(f"is not understood at {word!r}", field="formula", value=formula)

    def expression(least: int) -> tuple[Any, ...]:
        left = primary()
        while (sign := peek()[1]) in _ORDER and peek()[0] == "sign" and _ORDER[sign] > least:
            take()
            left = ("sign", sign, left, expression(_ORDER[sign]))
        return left

    found = expression(0)
    if place != len(tokens):
        raise SpecError(f"is not understood at {peek()[1]!r}", field="formula", value=formula)
    return found


def _compared(sign: str, left: Value, right: Value) -> bool:
    if isinstance(left, str) != isinstance(right, str):  # texts come after numbers; an empty cell is both
        if left is None or right is None:
            left, right = left or "", right or ""
        else:
            left, right = float(isinstance(left, str)), float(isinstance(right, str))
    elif isinstance(left, str):
        left, right = left.lower(), right.lower()
    else:
        left, right = _number(left), _number(right)
    result: bool = {"=": left == right, "<>": left != right, "<": left < right, ">": left > right,
            "<=": left <= right, ">=": left >= right}[sign]  # fmt: skip
    return result


_SIGNS: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "^": lambda a, b: a**b,
}


def _shown(value: Value) -> str:
    """Return a value as text, as the operator & does."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if value is None:
        return ""
    return f"{value:.15g}" if isinstance(value, int | float) else str(value)


class Calculator:
    """Evaluator of workbook cells, each computed once.

    Parameters
    ----------
    cells : mapping of str to mapping
        Sheet → (row, column) from 0 → a value, or a formula as text that begins with ``=``.
    names : mapping of str to tuple
        Name → sheet, row, column of its cell.

    Examples
    --------
    >>> Calculator({"A": {(0, 0): 2.0, (0, 1): "=A1*3"}}, {}).value("A", 0, 1)
    6.0
    """

    def __init__(
        self, cells: Mapping[str, Mapping[tuple[int, int], Value]], names: Mapping[str, tuple[str, int, int]]
    ) -> None:
        self._cells, self._names = cells, names
        self._known: dict[tuple[str, int, int], Value] = {}

    def value(self, sheet: str, row: int, column: int) -> Value:
        """Return the value of a cell; None if it is empty."""
        key = (sheet, row, column)
        if key not in self._known:
            held = self._cells[sheet].get((row, column))
            if isinstance(held, str) and held.startswith("="):
                try:
                    held = self._of(_tree(held), sheet)
                    held = 0.0 if held is None else held  # an empty cell is 0 in a formula
                except (ArithmeticError, ValueError) as error:
                    raise SpecError(f"cannot be computed ({error})", field=address(row, column, sheet),
                                    value=held) from error  # fmt: skip
            self._known[key] = held
        return self._known[key]

    def _of(self, tree: tuple[Any, ...], sheet: str) -> Value:
        kind = tree[0]
        if kind == "value":
            return tree[1]
        if kind == "name":
            return self.value(*self._names[tree[1]])
        if kind == "cell":
            return self._range(tree[1], sheet)
        if kind == "minus":
            return -_number(self._of(tree[1], sheet))
        if kind == "call":
            return self._call(tree[1], tree[2], sheet)
        left, right = self._of(tree[2], sheet), self._of(tree[3], sheet)
        if tree[1] == "&":
            return _shown(left) + _shown(right)
        if tree[1] in _SIGNS:
            return _SIGNS[tree[1]](_number(left), _number(right))
        return _compared(tree[1], left, right)

    def _call(self, name: str, arguments: tuple[Any, ...], sheet: str) -> Value:
        if name == "IF":
            chosen = self._of(arguments[0], sheet)
            return self._of(arguments[1] if chosen else arguments[2], sheet)
        if name == "IFERROR":
            try:
                return self._of(arguments[0], sheet)
            except (ArithmeticError, ValueError):
                return self._of(arguments[1], sheet)
        return FUNCTIONS[name](*(self._of(one, sheet) for one in arguments))

    def _range(self, word: str, sheet: str) -> Value:
        found = _CELL.fullmatch(word)
        assert found is not None
        where = (found["sheet"] or sheet).strip("'")
        row, column = place_of(found[2] + found[3])
        if found[4] is None:
            return self.value(where, row, column)
        last, right = place_of(found[4] + found[5])
        return [[self.value(where, r, c) for c in range(column, right + 1)] for r in range(row, last + 1)]


#: style → XlsxWriter format
STYLES: dict[str, dict[str, Any]] = {
    "text": {"valign": "top"},
    "wrap": {"valign": "top", "text_wrap": True},
    "note": {"font_color": "#555555", "italic": True, "valign": "top"},
    "small": {"font_color": "#555555", "font_size": 9, "valign": "top", "text_wrap": True},
    "title": {"bold": True, "font_size": 16, "font_color": "#1F3864"},
    "heading": {"bold": True, "font_size": 12, "font_color": "#1F3864", "bottom": 1, "bottom_color": "#8EA9DB"},
    "header": {
        "bold": True, "bg_color": "#DDE6F3", "text_wrap": True, "valign": "vcenter", "align": "center", "border": 1,
        "border_color": "#B4C6E7",
    },
    "decision": {"bold": True, "font_size": 12, "text_wrap": True, "valign": "vcenter", "bg_color": "#EEF3FA"},
    # _) leaves a small margin at the right, before a unit in the next cell
    "whole": {"num_format": "#,##0_)", "valign": "top", "align": "right"},
    "one": {"num_format": "#,##0.0_)", "valign": "top", "align": "right"},
    "two": {"num_format": "#,##0.00_)", "valign": "top", "align": "right"},
    "three": {"num_format": "0.000_)", "valign": "top", "align": "right"},
    "share": {"num_format": "0.0%_)", "valign": "top", "align": "right"},
    "exact": {"num_format": "General", "valign": "top", "align": "right"},
    "good": {"bg_color": "#C6EFCE", "font_color": "#0B5A1E"},
    "fair": {"bg_color": "#FFEB9C", "font_color": "#7F5F00"},
    "bad": {"bg_color": "#FFC7CE", "font_color": "#8B0010"},
    "best": {"bold": True, "bg_color": "#E2EFDA"},
}  # fmt: skip
#: format of an input cell
_INPUT = {"bg_color": "#FFF8DC", "font_color": "#1F3FBF", "border": 1, "border_color": "#BF9000", "locked": False}


@dataclass(frozen=True, slots=True)
class Rule:
    """A conditional format.

    Attributes
    ----------
    first, last : tuple of int
        Row and column from 0 of the corners of the range, [-]
    formula : str
        Condition, written for the first cell.
    style : str
        Style if the condition holds.
    """

    first: tuple[int, int]
    last: tuple[int, int]
    formula: str
    style: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of ranges of the workbook.

    Attributes
    ----------
    place : tuple of int
        Row and column of its corner, [-]
    kind : str
        ``line`` over numbers, ``column`` over names, or ``bar`` over names with the first at the top.
    title, x, y : str
        Titles of the chart and of its axes.
    series : tuple of (str, str, str)
        Address of the name, of the categories and of the values.
    size : tuple of int
        Width and height, [pixel]
    """

    place: tuple[int, int]
    kind: str
    title: str
    x: str
    y: str
    series: tuple[tuple[str, str, str], ...]
    size: tuple[int, int] = (560, 300)


@dataclass
class Sheet:
    """Sheet of a workbook, filled cell by cell.

    Attributes
    ----------
    name : str
        Its name.
    cells : dict
        (row, column) from 0 → value, or formula as text that begins with ``=``, [unit of the cell]
    styles : dict
        (row, column) → name of a style, with ``*`` where it may be changed.
    literal : set
        Cells with foreign text, which is never a formula.
    choices, bounds, notes, widths, heights, merged, rules, charts : collections
        Lists of choices, least and most with a word, comments, widths of columns, heights of rows, merged ranges,
        colours and charts.
    breaks : list of int
        Rows before which a page ends, [-]
    freeze : tuple of int
        Frozen rows and columns, [-]
    landscape : bool
        True for landscape print.
    last_printed : tuple of int or None
        Corner of the print range; the whole sheet by default.
    scale : int
        Size in print; as wide as a page by default, [%]
    """

    name: str
    cells: dict[tuple[int, int], Any] = field(default_factory=dict)
    styles: dict[tuple[int, int], str] = field(default_factory=dict)
    literal: set[tuple[int, int]] = field(default_factory=set)
    choices: dict[tuple[int, int], str | list[str]] = field(default_factory=dict)
    bounds: dict[tuple[int, int], tuple[float, float, str]] = field(default_factory=dict)
    notes: dict[tuple[int, int], str] = field(default_factory=dict)
    widths: dict[int, float] = field(default_factory=dict)
    heights: dict[int, float] = field(default_factory=dict)
    merged: list[tuple[int, int, int, int]] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)
    freeze: tuple[int, int] = (0, 0)
    landscape: bool = True
    last_printed: tuple[int, int] | None = None
    scale: int = 0

    def put(self, row: int, column: int, value: Any, style: str = "text") -> str:
        """Fill a cell and return its address with the sheet.

        Text that begins with ``=`` is a formula. A style that ends in ``*`` marks an input cell.
        """
        self.cells[row, column] = value
        self.styles[row, column] = style
        return address(row, column, self.name)

    def say(self, row: int, column: int, text: object, style: str = "text") -> str:
        """Fill a cell with foreign text and return its address.

        The text never becomes a formula.
        """
        if text is not None:
            self.literal.add((row, column))
        return self.put(row, column, None if text is None else str(text), style)

    def row(self, row: int, values: Sequence[Any], style: str = "text", *, column: int = 0) -> None:
        """Fill adjacent cells of a row."""
        for place, value in enumerate(values):
            self.put(row, column + place, value, style)


class Book:
    """A workbook.

    Parameters
    ----------
    sheets : sequence of str
        Names of the sheets in their order.
    """

    def __init__(self, sheets: Sequence[str]) -> None:
        self.sheets = {name: Sheet(name) for name in sheets}
        self.names: dict[str, tuple[str, int, int]] = {}
        self.properties: dict[str, str] = {}

    def __getitem__(self, name: str) -> Sheet:
        return self.sheets[name]

    def name(self, name: str, sheet: Sheet, row: int, column: int) -> None:
        """Name a cell."""
        self.names[name] = (sheet.name, row, column)

    def calculator(self) -> Calculator:
        """Return the evaluator of all cells."""
        cells = {
            one.name: {
                place: f"\0{value}" if place in one.literal and str(value).startswith("=") else value
                for place, value in one.cells.items()
            }
            for one in self.sheets.values()
        }
        return Calculator(cells, self.names)

    def content(self) -> bytes:
        """Return the workbook as bytes of an XLSX file."""
        library, known = wanted("xlsxwriter", field="sheet"), self.calculator()
        stream = io.BytesIO()
        file = library.Workbook(stream, {"in_memory": True, "strings_to_formulas": False, "strings_to_urls": False})
        file.set_properties(self.properties)
        file.set_calc_mode("auto")
        made: dict[str, Any] = {}

        def style(name: str) -> Any:
            if name not in made:
                made[name] = file.add_format(STYLES[name.rstrip("*")] | (_INPUT if name.endswith("*") else {}))
            return made[name]

        pages = {name: file.add_worksheet(name) for name in self.sheets}
        for name, (where, row, column) in self.names.items():
            file.define_name(name, "=" + address(row, column, where))
        for name, one in self.sheets.items():
            _write_cells(pages[name], one, known, style)
            _write_about(pages[name], one, style)
            _write_charts(file, pages[name], one)
            _write_pages(pages[name], one)
        file.close()
        return stream.getvalue()


def _write_cells(page: Any, sheet: Sheet, known: Calculator, style: Any) -> None:
    corners = {(top, left): (bottom, right) for top, left, bottom, right in sheet.merged}
    inside = {(row, column) for top, left, bottom, right in sheet.merged for row in range(top, bottom + 1)
              for column in range(left, right + 1)} - set(corners)  # fmt: skip
    for (row, column), value in sorted(sheet.cells.items()):
        form = style(sheet.styles[row, column])
        if (row, column) in corners:
            page.merge_range(row, column, *corners[row, column], "", form)
        if (row, column) in inside:
            continue
        if value is None:
            page.write_blank(row, column, None, form)
        elif isinstance(value, str) and value.startswith("=") and (row, column) not in sheet.literal:
            page.write_formula(row, column, value, form, _cached(known.value(sheet.name, row, column)))
        elif isinstance(value, str):
            page.write_string(row, column, value, form)
        else:
            page.write_number(row, column, float(value), form)


def _cached(value: Any) -> Any:
    return str(value).upper() if isinstance(value, bool) else "" if value is None else value


def _write_about(page: Any, sheet: Sheet, style: Any) -> None:
    for column, width in sheet.widths.items():
        page.set_column(column, column, width)
    for row, height in sheet.heights.items():
        page.set_row(row, height)
    for place, text in sheet.notes.items():
        page.write_comment(*place, text, {"x_scale": 2.5, "y_scale": 1.2})
    for place, source in sheet.choices.items():
        page.data_validation(*place, *place, {"validate": "list", "source": source})
    for place, (least, most, words) in sheet.bounds.items():
        page.data_validation(
            *place, *place,
            {"validate": "decimal", "criteria": "between", "minimum": least, "maximum": most,
             "error_title": "Not a value for this cell", "error_message": words[:255]},
        )  # fmt: skip
    for rule in sheet.rules:
        page.conditional_format(
            *rule.first, *rule.last, {"type": "formula", "criteria": rule.formula, "format": style(rule.style)}
        )
    if sheet.freeze != (0, 0):
        page.freeze_panes(*sheet.freeze)
    page.hide_gridlines(2)


def _write_charts(file: Any, page: Any, sheet: Sheet) -> None:
    for one in sheet.charts:
        kind = {"type": "scatter", "subtype": "straight_with_markers"} if one.kind == "line" else {"type": one.kind}
        chart = file.add_chart(kind)
        for name, categories, values in one.series:
            chart.add_series({"name": "=" + name, "categories": "=" + categories, "values": "=" + values})
        chart.set_title({"name": one.title, "name_font": {"size": 11}})
        of_names: dict[str, Any] = {"name": one.x, "name_font": {"size": 9}}
        of_values = {"name": one.y, "name_font": {"size": 9}, "min": 0, "num_format": "#,##0.##"}
        # bars lie along the first axis, and their names stand along the second
        chart.set_x_axis(of_values if one.kind == "bar" else of_names | ({"log_base": 2} if one.kind == "line" else {}))
        chart.set_y_axis(of_names | {"reverse": True} if one.kind == "bar" else of_values)
        chart.set_legend({"position": "bottom"} if len(one.series) > 1 else {"none": True})
        chart.show_na_as_empty_cell()
        chart.set_size({"width": one.size[0], "height": one.size[1]})
        page.insert_chart(*one.place, chart, {"object_position": 2})


def _write_pages(page: Any, sheet: Sheet) -> None:
    if sheet.landscape:
        page.set_landscape()
    page.set_paper(9)
    page.set_margins(left=0.4, right=0.4, top=0.5, bottom=0.6)
    page.set_footer("&L&8&F&C&8&A&R&8page &P of &N")
    last = sheet.last_printed or tuple(max(place[axis] for place in sheet.cells) for axis in (0, 1))
    page.print_area(0, 0, *last)
    if sheet.breaks:
        page.set_h_pagebreaks(sheet.breaks)
    if sheet.scale:
        page.set_print_scale(sheet.scale)
    else:
        page.fit_to_pages(1, 0)
