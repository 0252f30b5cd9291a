"""Write workbooks with formulas and their computed values."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from textwrap import wrap
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


_CELL = re.compile(r"\$?([A-Z]{1,3})\$?(\d+)")


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
    for letter in found[1]:
        column = 26 * column + ord(letter) - 64
    return int(found[2]) - 1, column - 1


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


#: functions of formulas; all spreadsheet programs have had them since before 2019
FUNCTIONS = frozenset((
    "ABS", "AND", "CEILING", "EXP", "IF", "IFERROR", "INDEX", "INT", "ISNUMBER", "LARGE", "LN", "MATCH", "MAX", "MIN",
    "NORMSDIST", "NORMSINV", "NOT", "OR", "PMT", "ROUND", "ROUNDUP",
))  # fmt: skip
_TEXT, _CALL = re.compile(r'"[^"]*"'), re.compile(r"([A-Za-z_][\w.]*)\(")


def functions_in(formula: str) -> set[str]:
    """Return the names of the functions of a formula.

    Examples
    --------
    >>> sorted(functions_in('=IF(A1>0,MAX(A1,2),"no LET(")'))
    ['IF', 'MAX']
    """
    return {name.upper() for name in _CALL.findall(_TEXT.sub("", formula))}


class Calculator:
    """Values of all cells of a workbook, as IronCalc computes them.

    `cells`: sheet → (row, column) from 0 → a value, or a formula as text that begins with ``=``; `literal`: sheet →
    cells whose text is no formula; `names`: name → sheet, row and column of its cell.

    Examples
    --------
    >>> Calculator({"A": {(0, 0): 2.0, (0, 1): "=A1*3"}}, {}, {}).value("A", 0, 1)
    6.0
    """

    def __init__(
        self,
        cells: Mapping[str, Mapping[tuple[int, int], Any]],
        literal: Mapping[str, Collection[tuple[int, int]]],
        names: Mapping[str, tuple[str, int, int]],
    ) -> None:
        self._sheets = {name: number for number, name in enumerate(cells)}
        self._model = wanted("ironcalc", field="sheet").create("book", "en", "UTC")
        for name, number in self._sheets.items():
            if number:
                self._model.add_sheet(name)
            else:
                self._model.rename_sheet(0, name)
        for name, (sheet, row, column) in names.items():
            self._model.new_defined_name(name, None, address(row, column, sheet))
        for name, held in cells.items():
            for place, value in held.items():
                self._put(name, place, value, formula=place not in literal.get(name, ()))
        self._model.evaluate()

    def _put(self, sheet: str, place: tuple[int, int], value: Any, *, formula: bool) -> None:
        at = (self._sheets[sheet], place[0] + 1, place[1] + 1)
        if isinstance(value, str):
            if not (formula and value.startswith("=")):
                self._model.update_cell_with_text(*at, value)
            elif unknown := functions_in(value) - FUNCTIONS:
                raise SpecError("is not a function of all spreadsheet programs", field="formula", value=min(unknown))
            else:
                self._model.update_cell_with_formula(*at, value)
        elif value is not None:
            self._model.update_cell_with_number(*at, float(value))

    def value(self, sheet: str, row: int, column: int) -> Any:
        """Return the value of a cell; None if it is empty."""
        at = (self._sheets[sheet], row + 1, column + 1)
        value = self._model.get_cell_value(*at)
        if isinstance(value, str) and value.startswith("#") and self._model.get_cell_formula(*at):
            raise SpecError(f"cannot be computed ({value})", field=address(row, column, sheet),
                            value=self._model.get_cell_formula(*at))  # fmt: skip
        return value


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
    # errors say nothing beyond 99 %
    "chance": {"num_format": '[>=0.99]"99 % or more"_);0.0%_)', "valign": "top", "align": "right"},
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
    """A conditional format."""

    #: `first`, `last`: row and column from 0 of the corners of the range, [-]
    first: tuple[int, int]
    last: tuple[int, int]
    formula: str  # condition, written for the first cell
    style: str  # style if the condition holds


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of ranges of the workbook."""

    place: tuple[int, int]  # row and column of its corner, [-]
    kind: str  # ``line`` over numbers, ``column`` over names, or ``bar`` over names with the first at the top
    #: `title`, `x`, `y`: titles of the chart and of its axes
    title: str
    x: str
    y: str
    series: tuple[tuple[str, str, str], ...]  # address of the name, of the categories and of the values
    size: tuple[int, int] = (560, 300)  # width and height, [pixel]


@dataclass
class Sheet:
    """Sheet of a workbook, filled cell by cell."""

    name: str
    #: (row, column) from 0 → value, or formula as text that begins with ``=``, [unit of the cell]
    cells: dict[tuple[int, int], Any] = field(default_factory=dict)
    #: (row, column) → name of a style, with ``*`` where it may be changed
    styles: dict[tuple[int, int], str] = field(default_factory=dict)
    literal: set[tuple[int, int]] = field(default_factory=set)  # cells with foreign text, which is never a formula
    #: `choices`, `bounds`, `notes`, `widths`, `heights`, `merged`, `rules`, `charts`: lists of choices, least and most
    #: with a word, comments, widths of columns, heights of rows, merged ranges, colours and charts
    choices: dict[tuple[int, int], str | list[str]] = field(default_factory=dict)
    bounds: dict[tuple[int, int], tuple[float, float, str]] = field(default_factory=dict)
    notes: dict[tuple[int, int], str] = field(default_factory=dict)
    widths: dict[int, float] = field(default_factory=dict)
    heights: dict[int, float] = field(default_factory=dict)
    merged: list[tuple[int, int, int, int]] = field(default_factory=list)
    rules: list[Rule] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    breaks: list[int] = field(default_factory=list)  # rows before which a page ends, [-]
    freeze: tuple[int, int] = (0, 0)  # frozen rows and columns, [-]
    landscape: bool = True  # True for landscape print
    last_printed: tuple[int, int] | None = None  # corner of the print range; the whole sheet by default
    scale: int = 0  # size in print; as wide as a page by default, at least 60, [%]

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

    - `sheets`: Names of the sheets in their order.
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
        """Return the values of all cells."""
        sheets = self.sheets.values()
        return Calculator(
            {one.name: one.cells for one in sheets}, {one.name: one.literal for one in sheets}, self.names
        )

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
    heights = dict(sheet.heights)
    for (row, column), name in sheet.styles.items():
        text = sheet.cells[row, column]
        if name == "header" and isinstance(text, str) and not text.startswith("="):
            # bold letters are wider than the digits that widths are counted in
            lines = len(wrap(text, max(int(0.85 * sheet.widths.get(column, _WIDTH)), 1)))
            heights[row] = max(heights.get(row, 0.0), 13.0 * lines + 4.0)
    for row, height in heights.items():
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


#: width of a column of its own accord [digits]
_WIDTH = 8.43
#: print width of A4 paper less its margins [px]
_ROOM, _ROOM_LANDSCAPE = 717, 1045
#: smallest print [%]
_LEAST_PRINT = 60


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
    rows, columns = sheet.freeze
    if rows:
        page.repeat_rows(0, rows - 1)
    wide = sum(7 * sheet.widths.get(column, _WIDTH) + 5 for column in range(last[1] + 1))
    if sheet.scale:
        page.set_print_scale(sheet.scale)
    elif wide * _LEAST_PRINT / 100 <= (_ROOM_LANDSCAPE if sheet.landscape else _ROOM):
        page.fit_to_pages(1, 0)
    else:
        # smaller print is not readable: columns on further pages, each with the frozen ones
        page.set_print_scale(_LEAST_PRINT)
        if columns:
            page.repeat_columns(0, columns - 1)
