"""Fill the sheet Calculation.

It interpolates the predicted times at the load, and over users of each option: from them the users within each limit
by probability, and the probability that the load meets the SLO.
"""

from __future__ import annotations

from dataclasses import dataclass

from glmplan.planner.users import TARGET_TTFT
from glmplan.prediction.distribution import EXPECTED, PLACES, SHOWN
from glmplan.prediction.evidence import PROMPTS
from glmplan.present.sheets.book import Book, Sheet, address
from glmplan.present.sheets.input_pages import FIRST, LEVELS, LIMITS, Grid, blocks, cell, columns_of
from glmplan.present.sheets.option import Option
from glmplan.units import QUANTILE_90

__all__ = ["curve_of", "write_calculation"]


#: rows of the curve of an option
_CURVE_ROWS = 27
_TITLES = {
    "name": "Option", "share": "Users per machine", "format": "Cache format", "block": "Block of Surface",
    "inside": "Lengths in range", "input_cell": "Input: cell", "input_part": "fraction", "output_cell": "Output: cell",
    "output_part": "fraction", "corner": "Row of Surface", "user_cell": "Users: cell", "user_part": "fraction",
    "log_part": "fraction, logarithmic", "prompt_band": "Band of input", "user_band": "Row of the interval",
    "widen": "Extrapolation", "held": "Requests in the pool", "held_low": "lower bound", "longest": "Longest request",
    "longest_low": "lower bound", "longest_at": "at the probability", "seats": "Max running requests",
    "state": "Reason without speed", "request": "Time per request [s]", "further": "Decode [s]", "first": "TTFT [s]",
    "log_low": "Request, log lower", "log_high": "log upper", "gap_low": "TPOT, log lower", "gap_high": "log upper",
    "wait_high": "TTFT, log upper", "least_request": "Request, lower bound [s]",
    "least_further": "Decode, lower bound [s]", "served": "Service time [s]", "first_least": "TTFT, lower bound [s]",
    "further_most": "Decode, upper bound [s]", "most_users": "Max users calculated", "wait_bound": "Max TTFT [s]",
    "wait_bound_mean": "Max expected TTFT [s]", "wait_mean": "Users by expected TTFT",
    "safe_request": "Time per request at safe users [s]", "pool_ratio": "Pool: distance over the bound",
    "gap_ratio": "TPOT: distance over the bound", "wait_ratio": "TTFT: distance over the bound",
    "chance": "Probability of meeting the SLO",
    "pool": "Users by the KV pool", "gap": "by TPOT", "wait": "by TTFT", "safe": "Safe users per machine",
}  # fmt: skip
_TITLES |= {f"{limit}{level}": f"{_TITLES[limit]}, {share:.0%}" for level, share in zip(LEVELS[1:], SHOWN, strict=True)
            for limit in LIMITS}  # fmt: skip
#: rows of a curve
_CURVE = (
    *("Users per machine", "Time per request [s]", "Decode [s]", "TTFT [s]"),
    *("Row of the interval", "Extrapolation"),
    *(f"{name}, steady state, {end} [s]" for name in ("TPOT", "TTFT")
      for end in ("expected", "lower bound", "upper bound", "at the probability", "at 80 %")),
    *("Chart: users per machine", "Chart: cell", "Chart: users", "Chart: tokens/s"),
    *("Time per request, lower bound [s]", "Decode, lower bound [s]"),
    *("Service time [s]", "TTFT, lower bound [s]", "Decode, upper bound [s]"),
)  # fmt: skip
#: first of the five rows of TPOT and of TTFT
_GAP, _WAIT = 6, 11
#: row of each level after these
_ROWS = dict(zip(LEVELS, (3, 2, 4, 0), strict=True))


def _curve_top(option: int, count: int) -> int:
    return FIRST + count + len(LEVELS) + 4 + option * _CURVE_ROWS


def _curve_range(options: tuple[Option, ...], grid: Grid, option: int, row: int) -> str:
    """Return the range of a row of `_CURVE` of an option."""
    line = _curve_top(option, len(options)) + 1 + row
    return f"{address(line, 1, 'Calculation')}:{address(line, len(grid.axes.users))}"


def _further(served: str, first_least: str, further_most: str) -> str:
    """Return the formula of the decode time, as in `sheets.option`."""
    return f"=MIN({served}-{first_least},{further_most})"


def _wait_limits(mean: str, high: str) -> tuple[str, str]:
    """Return the formulas of the TTFT limit, mean and upper bound.

    They are those of `planner.users.mean_bounds` and `usual_bounds`, by the TTFT of a single user.
    """
    usual = f"wait_limit={TARGET_TTFT:g}"
    longest, longest_high = (f"MAX({TARGET_TTFT:g},3*{alone})" for alone in (mean, high))
    stated = f"IF(wait_limit<={longest_high},MIN(wait_limit,{longest}),wait_limit)"
    return f"IF({usual},{longest},{stated})", f"IF({usual},{longest_high},wait_limit)"


@dataclass(frozen=True, slots=True)
class _Level:
    """Cells of a probability on the sheet Calculation."""

    #: addresses: probability, its standard deviations over those of 95 %, its cell of the quantiles, the fraction there
    share: str
    over: str
    place: str
    part: str

    def of(self, middle: str, low: str) -> str:
        """Return the formula of a part of the KV pool at the probability."""
        return f"MAX({middle}-{self.over}*({middle}-{low}),0)"

    def quantile(self, cells: str, row: str) -> str:
        """Return the formula of a log time over its bound."""
        low, high = (f"INDEX({cells},{row},{self.place}{plus})" for plus in ("", "+1"))
        return f"((1-{self.part})*{low}+{self.part}*{high})"


def _level(count: int, level: int) -> _Level:
    return _Level(*(address(FIRST + count + 2 + level, column) for column in (0, 2, 3, 4)))


def _write_levels(page: Sheet, grid: Grid, count: int) -> None:
    """Write the probabilities of `LEVELS`, the first of them as asked for."""
    titles = ("Probability", "Standard deviations", "over those of 95 %", "Quantiles: cell", "fraction")
    page.row(FIRST + count + 1, titles, "header")
    for level, share in enumerate(("=probability", *SHOWN)):
        line = FIRST + count + 2 + level
        at, place = [address(line, column) for column in range(3)], address(line, 3)
        low, high = (f"INDEX({grid.places},{place}{plus})" for plus in ("", "+1"))
        found = f"=MAX(MIN(NORMSINV({at[0]}),{PLACES[-1]!r}),{PLACES[0]!r})", f"={at[1]}/{QUANTILE_90!r}"
        where = f"=MIN(MATCH({at[1]},{grid.places},1),{len(PLACES) - 1})", f"=({at[1]}-{low})/({high}-{low})"
        page.row(line, (share, *found, *where), "exact")


def _of_a_server(users: str, option: Option) -> str:
    """Return the formula of users per replica, for the interval band."""
    servers = option.planned.holding.terms.replicas
    return users if servers == 1 else f"({users}/MIN({users},{servers}))"


def write_calculation(book: Book, options: tuple[Option, ...], grid: Grid, memory: tuple[str, ...]) -> None:
    """Fill the sheet of calculation."""
    page = book["Calculation"]
    page.put(0, 0, "Calculation", "title")
    page.put(1, 0, "No inputs. A row for each option, then its curve over users.", "note")
    names = columns_of("Calculation")
    page.row(FIRST - 1, [_TITLES[name] for name in names], "header")
    page.heights[FIRST - 1] = 46
    _write_levels(page, grid, len(options))
    first_blocks = blocks(options)
    for number, option in enumerate(options):
        formulas = _place(grid, number, option, first_blocks[number])
        formulas |= _held(grid, number, memory) | _curve(page, options, grid, number)
        formulas |= _speeds(grid, number, curve_of(options, grid, number))
        for name in names:
            style = "text" if name in ("name", "inside", "state") else "exact"
            page.put(FIRST + number, names.index(name), formulas[name], style)
    page.widths |= {0: 38, **{column: 13 for column in range(1, len(names))}}
    page.freeze = (FIRST, 1)


def curve_of(options: tuple[Option, ...], grid: Grid, option: int) -> list[str]:
    """Return the ranges of all rows of the curve of an option."""
    return [_curve_range(options, grid, option, row) for row in range(len(_CURVE))]


def _c(name: str, option: int) -> str:
    return cell("Calculation", name, option).partition("!")[2]


def _place(grid: Grid, n: int, option: Option, block: int) -> dict[str, str]:
    """Return the formulas of the position of the load on the grid."""
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
    found["log_part"] = f"=LN({held}/{low})/LN({high}/{low})"
    found["user_band"] = (
        f"=({_c('block', n)}-1)*{grid.band_rows}+(MATCH({share},{grid.users},1)-1)*{len(PROMPTS) + 1}"
        f"+{_c('prompt_band', n)}"
    )
    found["prompt_band"] = f"=MATCH(prompt_tokens,{grid.axis(3, len(PROMPTS) + 1)},1)"
    found["widen"] = f"={grid.beyond(busy, _c('block', n))}"
    found["most_users"] = f"={most}"
    return found


def _held(grid: Grid, n: int, memory: tuple[str, ...]) -> dict[str, str]:
    """Return the formulas of KV pool, and of the reason for no speed."""
    axes = grid.axes
    block = _c("block", n)
    found = {name: f"=INDEX({where},{block})" for name, where in
             zip(("held", "held_low", "longest", "longest_low", "seats"), memory, strict=True)}  # fmt: skip
    outside = (
        f'"outside the calculated range: input {axes.inputs[0]} to {axes.inputs[-1]} tokens, '
        f'output {axes.outputs[0]} to {axes.outputs[-1]}"'
    )
    many = f'"outside the calculated range: at most {axes.users[-1]} users per machine"'
    found["state"] = (
        f"=IF(NOT({_c('inside', n)}),{outside},IF({_c('share', n)}>{_c('most_users', n)},{many},"
        f'IF({_c("share", n)}>{_c("held", n)},"the KV pool of a machine holds "&{_c("held", n)}&" requests",'
        f'IF(context_tokens>{_c("longest", n)},"the longest request that fits has "&{_c("longest", n)}&" tokens",'
        f'IF({_c("share", n)}>{_c("seats", n)},"the engine runs at most "&{_c("seats", n)}&" requests","")))))'
    )
    return found


def _speeds(grid: Grid, n: int, curve: list[str]) -> dict[str, str]:
    """Return the formulas of times at the load, and of their intervals."""
    cell_, part = _c("user_cell", n), _c("user_part", n)
    found = {
        name: f"=(1-{part})*INDEX({curve[row]},{cell_})+{part}*INDEX({curve[row]},{cell_}+1)"
        for name, row in (("request", 1), ("least_request", 20), ("least_further", 21), ("served", 22),
                          ("first_least", 23), ("further_most", 24))
    }  # fmt: skip
    # interpolated before the minimum is taken: the two terms may cross between points
    found["further"] = _further(*(_c(name, n) for name in ("served", "first_least", "further_most")))
    found["first"] = f"={_c('served', n)}-{_c('further', n)}"
    row = _c("user_band", n)
    for kind, name in enumerate(("wait_high", "gap_low", "gap_high", "log_low", "log_high"), 1):
        found[name] = f"={'-' if name.endswith('low') else ''}{grid.bound(kind, row, _c('widen', n))}"
    return found


def _curve(page: Sheet, options: tuple[Option, ...], grid: Grid, n: int) -> dict[str, str]:
    """Write the curve of an option; return the formulas of its capacity.

    The capacity is the largest concurrency that meets each limit.
    """
    top = _curve_top(n, len(options))
    page.put(top, 0, f"={cell('Options', 'name', n)}", "heading")
    for row, title in enumerate(_CURVE):
        page.put(top + 1 + row, 0, title)
    curve = [cells.partition("!")[2] for cells in curve_of(options, grid, n)]
    for place in range(len(grid.axes.users)):
        for row, formula in enumerate(_at_users(grid, (n, options), top + 1, place, curve)):
            page.put(top + 1 + row, 1 + place, formula, "exact")
    for row in (0, *range(_GAP, _GAP + 3), *range(_WAIT, _WAIT + 3)):
        page.put(top + 1 + row, 1 + len(grid.axes.users), _at_the_load(curve[row], n), "exact")
    page.put(top, 1 + len(grid.axes.users), "at the load", "heading")
    found = _users_within(grid, n, curve, [_level(len(options), level) for level in range(len(LEVELS))])
    users, count = f"MAX({_c('safe', n)},1)", len(grid.axes.users)
    at = f"MIN(MATCH({users},{curve[0]},1),{count - 1})"
    low, high = ([f"INDEX({curve[row]},{at}{plus})" for row in (0, 1)] for plus in ("", "+1"))
    found["safe_request"] = f"={low[1]}+({users}-{low[0]})/({high[0]}-{low[0]})*({high[1]}-{low[1]})"
    loaded = [address(top + 1 + row, 1 + count) for row in range(len(_CURVE))]
    return found | _chance(grid, n, loaded)


def _at_the_load(cells: str, n: int) -> str:
    """Return the formula of a row of the curve at the load, linear in logs."""
    low, high = (f"INDEX({cells},{_c('user_cell', n)}{plus})" for plus in ("", "+1"))
    return f"={low}*({high}/{low})^{_c('log_part', n)}"


def _users_within(grid: Grid, n: int, curve: list[str], levels: list[_Level]) -> dict[str, str]:
    """Return the formulas of the users within each limit, by probability.

    As `glmplan.planner.users.safe_users`, but each user has a place in the KV pool and in the batch.
    """
    count = len(grid.axes.users)

    def within(row: int, limit: str) -> str:
        held = f"IFERROR(MATCH({limit},{curve[row]},1),0)"
        u, v = f"INDEX({curve[0]},{held}", f"INDEX({curve[row]},{held}"
        part = f"(LN({limit})-LN({v})))/(LN({v}+1))-LN({v})))"
        step = f"EXP(LN({u}))+{part}*(LN({u}+1))-LN({u}))))+0.000000001"
        return f"IF({held}=0,0,IF({held}={count},INDEX({curve[0]},{count}),MAX(INT({step}),{u}))))"

    mean, bound = _wait_limits(f"INDEX({curve[_WAIT]},1)", f"INDEX({curve[_WAIT + 2]},1)")
    found = {"wait_bound_mean": f"={mean}", "wait_bound": f"={bound}"}
    found["wait_mean"] = f"={within(_WAIT, _c('wait_bound_mean', n))}"
    found["longest_at"] = f"={levels[0].of(_c('longest', n), _c('longest_low', n))}"
    for name, level in zip(LEVELS, levels, strict=True):
        held, longest = (level.of(_c(of, n), _c(f"{of}_low", n)) for of in ("held", "longest"))
        found[f"pool{name}"] = f"=IF(context_tokens>{longest},0,INT({held}+0.000000001))"
        found[f"gap{name}"] = f"={within(_GAP + _ROWS[name], 'gap_limit/1000')}"
        wait = within(_WAIT + _ROWS[name], _c("wait_bound", n))
        found[f"wait{name}"] = f"=MIN({wait},IF({level.share}>{EXPECTED},{_c('wait_mean', n)},1E9))"
        found[f"safe{name}"] = f"=MIN({_c('seats', n)},{','.join(_c(f'{one}{name}', n) for one in LIMITS[:3])})"
    return found


def _chance(grid: Grid, n: int, loaded: list[str]) -> dict[str, str]:
    """Return the formulas of the probability that the load meets the SLO.

    That of the least sure limit, as `glmplan.planner.plan.Safe.chance_of`.

    - `loaded`: Rows of the curve at the load.
    """
    share, row = _c("share", n), _c("user_band", n)

    def distance(time: int, limit: str, mean: str) -> str:
        value, low, high = loaded[time : time + 3]
        # a load that misses the bound in the mean is not safe
        return (
            f"=IF({value}>{mean}*1.000000001,LN({mean}/{value})/MAX(LN({value}/{low}),1E-12),"
            f"LN({limit}*1.000000001/{value})/MAX(LN({high}/{value}),1E-12))"
        )

    def spare(most: str, low: str, needed: str) -> str:
        return f"IF({most}>{low},({most}-{needed})/({most}-{low}),IF({needed}<={most},9,-9))"

    def deviations(ratio: str, cells: str, row: str) -> str:
        """Return `distribution.share_below` in standard deviations."""
        place = f"MATCH({ratio},INDEX({cells},{row},0),1)"
        low, high = (f"INDEX({cells},{row},{place}{plus})" for plus in ("", "+1"))
        first, last = (f"INDEX({grid.places},{place}{plus})" for plus in ("", "+1"))
        inner = f"{first}+({ratio}-{low})/({high}-{low})*({last}-{first})"
        ends = [f"INDEX({cells},{row},{end})" for end in (1, len(PLACES))]
        return f"IF({ratio}<{ends[0]},-9,IF({ratio}>={ends[1]},9,{inner}))"

    held = spare(_c("held", n), _c("held_low", n), share)
    longest = spare(_c("longest", n), _c("longest_low", n), "context_tokens")
    least = ",".join((
        deviations(_c("pool_ratio", n), grid.axis(5, len(PLACES)), "1"),
        deviations(_c("gap_ratio", n), grid.tails(1), row),
        deviations(_c("wait_ratio", n), grid.tails(0), row),
    ))  # fmt: skip
    return {
        "pool_ratio": f"=MIN({held},{longest})",
        "gap_ratio": distance(_GAP, "gap_limit/1000", "(gap_limit/1000)"),
        "wait_ratio": distance(_WAIT, _c("wait_bound", n), _c("wait_bound_mean", n)),
        "chance": f"=IF({share}>{_c('seats', n)},0,NORMSDIST(MIN({least})))",
    }


def _at_users(grid: Grid, of: tuple[int, tuple[Option, ...]], first: int, place: int, curve: list[str]) -> list[str]:
    """Return the formulas of one column of the curve."""
    n, option, count = of[0], of[1][of[0]], len(of[1])

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

    row = f"=({_c('block', n)}-1)*{grid.band_rows}+{place * (len(PROMPTS) + 1)}+{_c('prompt_band', n)}"
    times: list[str] = []
    least = f"{at(21)}/(answer_tokens-1)"
    for kind, top, value, fastest in ((1, _GAP, f"{at(2)}/(answer_tokens-1)", least), (0, _WAIT, at(3), "0")):
        mid, low, high = (at(top + line) for line in range(3))
        ends = [f"EXP({sign}{grid.bound(2 * kind + end, at(4), at(5))})" for end, sign in enumerate(("-", ""))]
        rows = [f"{value}*{grid.steady(kind, at(4))}", f"MAX({mid}*{ends[0]},{fastest})", f"{mid}*{ends[1]}"]
        for level in (0, LEVELS.index("_80")):
            over = _level(count, level).quantile(grid.tails(kind), at(4))
            rows.append(f"{mid}*IF({over}<0,{mid}/{low},{high}/{mid})^{over}")
        # no time is less than that of fewer users
        times += [f"=MAX({text},{at(top + line, place - 1) if place else 0})" for line, text in enumerate(rows)]
    shown, where = at(16), at(17)
    u1, u2, w1, w2 = (f"INDEX({curve[line]},{where}{plus})" for line in (0, 1) for plus in ("", "+1"))
    time = f"({w1}+({shown}-{u1})/({u2}-{u1})*({w2}-{w1}))"
    machines = cell("Options", "machines", n)
    return [
        f"=INDEX({grid.users},{place + 1})",
        surface(0),
        _further(at(22), at(23), at(24)),
        f"={at(22)}-{at(2)}",
        row,
        f"={grid.beyond(busy, _c('block', n))}",
        *times,
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
