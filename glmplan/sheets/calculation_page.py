"""The sheet of calculation: where a load lies on the predicted surface, and what the surface says there."""

from __future__ import annotations

from glmplan.prediction.intervals import PROMPTS
from glmplan.sheets.book import Book, Sheet
from glmplan.sheets.calculate import address
from glmplan.sheets.option import Option
from glmplan.sheets.places import FIRST, Grid, blocks, cell, columns_of
from glmplan.sheets.surface_page import BAND_ROWS

__all__ = ["curve_of", "write_calculation"]

#: rows of the curve over users of an option [-]
_CURVE_ROWS = 23
_TITLES = {
    "name": "Option", "share": "Users of a machine", "format": "Cache format", "block": "Block of the surface",
    "inside": "Lengths inside", "input_cell": "Prompts: cell", "input_part": "part", "output_cell": "Answers: cell",
    "output_part": "part", "corner": "Row of the surface", "user_cell": "Users: cell", "user_part": "part",
    "user_band": "Band of users", "prompt_band": "Band of prompts", "widen_lengths": "Wider by lengths",
    "widen": "Wider in all", "held": "Requests held", "held_low": "low end", "longest": "Longest request",
    "longest_low": "low end", "seats": "Places", "state": "Why no speed", "request": "Whole request [s]",
    "further": "Further tokens [s]", "first": "First token [s]", "log_low": "Request, log low", "log_high": "log high",
    "gap_low": "Token, log low", "gap_high": "log high", "wait_high": "First, log high",
    "least_request": "Request at least [s]", "least_further": "Further at least [s]",
    "served": "Served [s]", "first_least": "First at least [s]", "further_most": "Further at most [s]",
    "safe_gap": "Users by tokens, mean", "safe_gap_high": "slow end", "safe_wait": "Users by first token, mean",
    "safe_wait_high": "slow end", "most_users": "Most users looked at",
}  # fmt: skip
#: rows of a curve
_CURVE = (
    *("Users of a machine", "Whole request [s]", "Tokens after the first [s]", "First token [s]"),
    *("Row of the interval", "Wider by", "A token [s]", "A token, slow end [s]", "First token, slow end [s]"),
    *("A token in time", "at the slow end", "First token in time", "at the slow end"),
    *("Users in the chart, a machine", "Cell", "Users in the chart", "Tokens/s in the chart"),
    *("Whole request at least [s]", "Tokens after the first at least [s]"),
    *("Served [s]", "First token at least [s]", "Tokens after the first at most [s]"),
)


def _curve_top(option: int, count: int) -> int:
    return FIRST + count + 3 + option * _CURVE_ROWS


def _curve_range(options: tuple[Option, ...], grid: Grid, option: int, row: int) -> str:
    """Range of a row of the curve over users.

    Parameters
    ----------
    options : tuple of Option
        The options.
    grid : Grid
        Where the surface stands.
    option, row : int
        Number of the option and of the row, from 0, [-]

    Returns
    -------
    str
        The range.
    """
    line = _curve_top(option, len(options)) + 1 + row
    return f"{address(line, 1, 'Calculation')}:{address(line, len(grid.axes.users))}"


def _beyond(value: str, low: str, high: str) -> str:
    """What an interval is wider by outside of what was measured: `glmplan.prediction.known` in words of a sheet."""
    return f"IF(OR({value}<0.5*{low},{value}>2*{high}),0.15*ABS(LN({value}/MAX(IF({value}<{low},{low},{high}),1))),0)"


def _further(served: str, first_least: str, further_most: str) -> str:
    """Tokens after the first: `glmplan.sheets.surface` in words of a sheet."""
    return f"=MIN({served}-{first_least},{further_most})"


def _of_a_server(users: str, option: Option) -> str:
    """Users of one of the servers over which a machine's users are spread, by which intervals are wide."""
    servers = option.planned.holding.terms.replicas
    return users if servers == 1 else f"({users}/MIN({users},{servers}))"


def write_calculation(book: Book, options: tuple[Option, ...], grid: Grid, memory: tuple[str, ...]) -> None:
    """Fill the sheet of calculation.

    Parameters
    ----------
    book : Book
        The workbook.
    options : tuple of Option
        The options.
    grid : Grid
        Where the surface stands.
    memory : tuple of str
        Ranges of `glmplan.sheets.surface_page.write_memory`.
    """
    page = book["Calculation"]
    page.put(0, 0, "Calculation", "title")
    page.put(1, 0, "Nothing to enter here. Each option has a row; below stands its curve over users.", "note")
    names = columns_of("Calculation")
    page.row(FIRST - 1, [_TITLES[name] for name in names], "header")
    page.heights[FIRST - 1] = 46
    first_blocks = blocks(options)
    for number, option in enumerate(options):
        found = _place(grid, number, option, first_blocks[number])
        found |= _held(grid, number, memory) | _curve(page, options, grid, number)
        found |= _speeds(grid, number, curve_of(options, grid, number))
        for name in names:
            style = "text" if name in ("name", "inside", "state") else "exact"
            page.put(FIRST + number, names.index(name), found[name], style)
    page.widths |= {0: 30, **{column: 13 for column in range(1, len(names))}}
    page.freeze = (FIRST, 1)


def curve_of(options: tuple[Option, ...], grid: Grid, option: int) -> list[str]:
    """Ranges of all rows of the curve of an option.

    Parameters
    ----------
    options : tuple of Option
        The options.
    grid : Grid
        Where the surface stands.
    option : int
        Its number, from 0, [-]

    Returns
    -------
    list of str
        In the order of the rows.
    """
    return [_curve_range(options, grid, option, row) for row in range(len(_CURVE))]


def _c(name: str, option: int) -> str:
    return cell("Calculation", name, option).partition("!")[2]


def _place(grid: Grid, n: int, option: Option, block: int) -> dict[str, str]:
    """Where the load lies on the grid."""
    axes = grid.axes
    formats = "".join(
        f'IF({cell("Options", "cache", n)}="{one.kv}",{place},' for place, one in enumerate(option.cached, 1)
    )
    share, inside = _c("share", n), _c("inside", n)
    found = {
        "name": f"={cell('Options', 'name', n)}",
        "share": f"=MAX(ROUNDUP(users/{cell('Options', 'machines', n)},0),1)",
        "format": f"={formats}1{')' * len(option.cached)}",
        "block": f"={block}-1+{_c('format', n)}",
        "inside": f"=AND(prompt_tokens>={axes.inputs[0]},prompt_tokens<={axes.inputs[-1]},"
        f"answer_tokens>={axes.outputs[0]},answer_tokens<={axes.outputs[-1]})",
    }
    for what, name, values, where in (
        ("input", "prompt_tokens", axes.inputs, grid.inputs), ("output", "answer_tokens", axes.outputs, grid.outputs)
    ):  # fmt: skip
        place = _c(f"{what}_cell", n)
        low, high = f"INDEX({where},{place})", f"INDEX({where},{place}+1)"
        found[f"{what}_cell"] = f"=IF({inside},MIN(MATCH({name},{where},1),{len(values) - 1}),1)"
        found[f"{what}_part"] = f"=IF({inside},({name}-{low})/({high}-{low}),0)"
    found["corner"] = (
        f"=({_c('block', n)}-1)*{grid.rows}+({_c('input_cell', n)}-1)*{len(axes.outputs)}+{_c('output_cell', n)}"
    )
    most = axes.users[-1]
    held = f"MIN({share},{most})"
    low, high = (f"INDEX({grid.users},{_c('user_cell', n)}{plus})" for plus in ("", "+1"))
    found["user_cell"] = f"=MIN(MATCH({held},{grid.users},1),{len(axes.users) - 1})"
    found["user_part"] = f"=({held}-{low})/({high}-{low})"
    busy = _of_a_server(share, option)
    found["user_band"] = f"=MATCH({busy},{grid.axis(3, 6)},1)"
    found["prompt_band"] = f"=MATCH(prompt_tokens,{grid.axis(4, len(PROMPTS) + 1)},1)"
    ends = [f"INDEX({grid.domain(column)},{_c('block', n)})" for column in range(6)]
    found["widen_lengths"] = (
        f"={_beyond('prompt_tokens', ends[2], ends[3])}+{_beyond('answer_tokens', ends[4], ends[5])}"
    )
    found["widen"] = f"={_c('widen_lengths', n)}+{_beyond(busy, ends[0], ends[1])}"
    found["most_users"] = f"={most}"
    return found


def _held(grid: Grid, n: int, memory: tuple[str, ...]) -> dict[str, str]:
    """What fits, and in words why there is no speed."""
    axes = grid.axes
    block = _c("block", n)
    found = {name: f"=INDEX({where},{block})" for name, where in
             zip(("held", "held_low", "longest", "longest_low", "seats"), memory, strict=True)}  # fmt: skip
    outside = (
        f'"outside of what was predicted: prompts of {axes.inputs[0]} to {axes.inputs[-1]} tokens, '
        f'answers of {axes.outputs[0]} to {axes.outputs[-1]}"'
    )
    many = f'"outside of what was predicted: at most {axes.users[-1]} users of a machine"'
    found["state"] = (
        f"=IF(NOT({_c('inside', n)}),{outside},IF({_c('share', n)}>{_c('most_users', n)},{many},"
        f'IF({_c("share", n)}>{_c("held", n)},"the cache of a machine holds "&{_c("held", n)}&" requests at once",'
        f'IF(context_tokens>{_c("longest", n)},"the longest request that fits has "&{_c("longest", n)}&" tokens",'
        f'IF({_c("share", n)}>{_c("seats", n)},"the engine runs "&{_c("seats", n)}&" requests at once","")))))'
    )
    return found


def _speeds(grid: Grid, n: int, curve: list[str]) -> dict[str, str]:
    """Times at the users of the load, and the ends of their intervals."""
    cell_, part = _c("user_cell", n), _c("user_part", n)
    found = {
        name: f"=(1-{part})*INDEX({curve[row]},{cell_})+{part}*INDEX({curve[row]},{cell_}+1)"
        for name, row in (("request", 1), ("least_request", 17), ("least_further", 18), ("served", 19),
                          ("first_least", 20), ("further_most", 21))
    }  # fmt: skip
    # read first and compared then: the change between the two lies between points
    found["further"] = _further(*(_c(name, n) for name in ("served", "first_least", "further_most")))
    found["first"] = f"={_c('served', n)}-{_c('further', n)}"
    row = f"({_c('block', n)}-1)*{BAND_ROWS}+({_c('user_band', n)}-1)*{len(PROMPTS) + 1}+{_c('prompt_band', n)}"
    for name, column, sign in (
        ("wait_high", 1, "+"), ("gap_low", 2, "-"), ("gap_high", 3, "+"), ("log_low", 4, "-"), ("log_high", 5, "+")
    ):  # fmt: skip
        found[name] = f"=INDEX({grid.band(column, BAND_ROWS)},{row}){sign}{_c('widen', n)}"
    return found


def _curve(page: Sheet, options: tuple[Option, ...], grid: Grid, n: int) -> dict[str, str]:
    """The curve over users with the lengths of the load, and up to how many users limits hold."""
    top = _curve_top(n, len(options))
    page.put(top, 0, f"={cell('Options', 'name', n)}", "heading")
    for row, title in enumerate(_CURVE):
        page.put(top + 1 + row, 0, title)
    curve = [one.partition("!")[2] for one in curve_of(options, grid, n)]
    for place in range(len(grid.axes.users)):
        for row, formula in enumerate(_at_users(grid, (n, options[n]), top + 1, place, curve)):
            page.put(top + 1 + row, 1 + place, formula, "exact")
    count = len(grid.axes.users)
    found = {}
    gap, wait = "gap_limit/1000", "MAX(wait_limit,3*INDEX({},1))"
    for name, good, values, limit in (
        ("safe_gap", 9, 6, gap), ("safe_gap_high", 10, 7, gap),
        ("safe_wait", 11, 3, wait.format(curve[3])), ("safe_wait_high", 12, 8, wait.format(curve[8])),
    ):  # fmt: skip
        held = f"SUM({curve[good]})"
        u, v = f"INDEX({curve[0]},{held}", f"INDEX({curve[values]},{held}"
        part = f"(LN({limit})-LN({v})))/(LN({v}+1))-LN({v})))"
        step = f"EXP(LN({u}))+{part}*(LN({u}+1))-LN({u}))))+0.000000001"
        found[name] = f"=IF({held}=0,0,IF({held}={count},INDEX({curve[0]},{count}),MAX(INT({step}),{u}))))"
    return found


def _at_users(grid: Grid, of: tuple[int, Option], first: int, place: int, curve: list[str]) -> list[str]:
    """Formulas of one column of the curve."""
    n, option = of

    def at(row: int, column: int = place) -> str:
        return address(first + row, 1 + column)

    corner, a, b = _c("corner", n), _c("input_part", n), _c("output_part", n)
    busy = _of_a_server(at(0), option)
    wide = len(grid.axes.outputs)

    def surface(kind: int) -> str:
        where = grid.quantity(kind, place)
        return (
            f"=(1-{a})*((1-{b})*INDEX({where},{corner})+{b}*INDEX({where},{corner}+1))"
            f"+{a}*((1-{b})*INDEX({where},{corner}+{wide})+{b}*INDEX({where},{corner}+{wide + 1}))"
        )

    low, high = (f"INDEX({grid.domain(column)},{_c('block', n)})" for column in (0, 1))
    row = (
        f"=({_c('block', n)}-1)*{BAND_ROWS}+(MATCH({busy},{grid.axis(3, 6)},1)-1)*{len(PROMPTS) + 1}"
        f"+{_c('prompt_band', n)}"
    )
    good: list[str] = []
    for values, limit in (
        (6, "gap_limit/1000"), (7, "gap_limit/1000"), (3, f"MAX(wait_limit,3*{at(3, 0)})"),
        (8, f"MAX(wait_limit,3*{at(8, 0)})"),
    ):  # fmt: skip
        before = "" if place == 0 else f"{address(first + 9 + len(good), place)}=1,"
        good.append(f"=IF(AND({before}{at(values)}<={limit}),1,0)")
    shown, where = at(13), at(14)
    u1, u2, w1, w2 = (f"INDEX({curve[line]},{where}{plus})" for line in (0, 1) for plus in ("", "+1"))
    time = f"({w1}+({shown}-{u1})/({u2}-{u1})*({w2}-{w1}))"
    machines = cell("Options", "machines", n)
    return [
        f"=INDEX({grid.users},{place + 1})",
        surface(0),
        _further(at(19), at(20), at(21)),
        f"={at(19)}-{at(2)}",
        row,
        f"={_c('widen_lengths', n)}+{_beyond(busy, low, high)}",
        f"={at(2)}/(answer_tokens-1)",
        f"={at(6)}*EXP(INDEX({grid.band(3, BAND_ROWS)},{at(4)})+{at(5)})",
        f"={at(3)}*EXP(INDEX({grid.band(1, BAND_ROWS)},{at(4)})+{at(5)})",
        *good,
        f"=MAX(MIN({at(0)},{_c('held', n)}),1)",
        f"=MIN(MATCH({shown},{curve[0]},1),{len(grid.axes.users) - 1})",
        f"={shown}*{machines}",
        f"=IF({_c('inside', n)},{shown}*answer_tokens/{time}*{machines},0)",
        surface(4),
        surface(5),
        surface(1),
        surface(2),
        surface(3),
    ]
