"""What a spreadsheet program makes of our formulas, so that the value stands beside each formula that is written.

Only the functions below may stand in a formula: all of them are older than 2019, so that every program knows them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from glmplan.errors import SpecError

__all__ = ["FUNCTIONS", "Calculator", "address", "column_name", "functions_in", "place_of"]

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
    """Letters of a column.

    Parameters
    ----------
    column : int
        From 0, [-]

    Returns
    -------
    str
        As in ``AB``.

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
    """Row and column of the address of a cell.

    Parameters
    ----------
    name : str
        As in ``AB12``.

    Returns
    -------
    tuple of int
        Both from 0, [-]

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
    """Address of a cell.

    Parameters
    ----------
    row, column : int
        From 0, [-]
    sheet : str, optional
        Its sheet; the one of the formula by default.
    fixed : bool, optional
        With dollar signs.

    Returns
    -------
    str
        The address.

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
    # as the programs do: what is a whole number but for the last bits counts as one
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


#: name of a function → what it gives for its arguments, which come computed
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
#: these look at an argument only when they need it
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
    """Names of the functions of a formula.

    Parameters
    ----------
    formula : str
        The formula.

    Returns
    -------
    set of str
        In capitals.

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
    return {"=": left == right, "<>": left != right, "<": left < right, ">": left > right,
            "<=": left <= right, ">=": left >= right}[sign]  # fmt: skip


_SIGNS: dict[str, Callable[[float, float], float]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "^": lambda a, b: a**b,
}


def _shown(value: Value) -> str:
    """A value as & joins it."""
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if value is None:
        return ""
    return f"{value:.15g}" if isinstance(value, int | float) else str(value)


class Calculator:
    """Compute the cells of a workbook; each once.

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
        """Value of a cell; None if it is empty.

        Parameters
        ----------
        sheet : str
            Its sheet.
        row, column : int
            From 0, [-]

        Returns
        -------
        float, str, bool or None
            [unit of the cell]

        Raises
        ------
        SpecError
            If a formula cannot be computed.
        """
        key = (sheet, row, column)
        if key not in self._known:
            held = self._cells[sheet].get((row, column))
            if isinstance(held, str) and held.startswith("="):
                try:
                    held = self._of(_tree(held), sheet)
                    held = 0.0 if held is None else held  # what a formula finds in an empty cell is 0
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
