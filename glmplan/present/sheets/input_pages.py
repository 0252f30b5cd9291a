"""Fill the input sheets: assumptions, predicted times, memory, formulas."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glmplan.catalog.entries.prices import load_terms, quotation
from glmplan.errors import GlmplanError
from glmplan.planner.users import TARGET_TPOT, TARGET_TTFT
from glmplan.prediction.evidence import PROMPTS
from glmplan.present.sheets.book import Book, Sheet, address
from glmplan.present.sheets.option import TERMS, Cached, Option
from glmplan.purchase.cost import HOURS
from glmplan.purchase.money import Money, Offer, market_of, offers_of
from glmplan.units import GIB, Ratio, TokenCount, counted_unit

__all__ = [
    "FIRST",
    "SHEETS",
    "Assumption",
    "Grid",
    "Load",
    "assumptions_of",
    "blocks",
    "cell",
    "columns_of",
    "curve_of",
    "fixed_facts",
    "span",
    "write_assumptions",
    "write_calculation",
    "write_memory",
    "write_surface",
]


HEADERS = ("Assumption", "Value", "Unit", "Low", "High", "Description and source of the default", "Date")
_WIDTHS = (32, 14, 44, 9, 9, 96, 12)
_BUYER = "no default"
#: characters per line of the column of sources
_LINE = 105


@dataclass(frozen=True, slots=True)
class Load:
    """Default load of a workbook."""

    #: concurrency
    users: int
    #: longest request that must fit
    context: TokenCount
    input: TokenCount
    output: TokenCount
    #: share of prompt tokens that an API bills as cached
    reuse: Ratio = 0.0
    #: growth of the load per month
    growth: Ratio = 0.0


@dataclass(frozen=True, slots=True)
class Assumption:
    """One row of the sheet; all numbers in `unit`."""

    #: name of the cell
    name: str
    title: str
    unit: str
    #: the default; None if unknown
    value: float | None
    source: str
    date: str = ""
    #: range of the sources
    low: float | None = None
    high: float | None = None
    #: limits of the input
    least: float = 0.0
    most: float = 1e9
    style: str = "exact"


#: name of a term → title and limits of the input
_TERMS = {
    "horizon_months": ("Depreciation period", 1, 240),
    "residual_share": ("Residual value", 0, 1),
    "capital_rate": ("Cost of capital", 0, 1),
    "network_share": ("Network between machines", 0, 1),
    "pue": ("PUE", 1, 5),
    "power_share": ("GPU power under load", 0.01, 1),
    "rest_watts": ("Host power", 0, 100_000),
    "supply_efficiency": ("Power supply efficiency", 0.1, 1),
    "licence_per_accelerator_year": ("Software licence", 0, 1e6),
    "staff_per_month": ("Staff", 0, 1e7),
    "support_share": ("Support contract", 0, 1),
}
#: units that the term list leaves out
_UNITS = {"staff_per_month": "{} per month", "licence_per_accelerator_year": "{} per accelerator and year"}


def assumptions_of(load: Load, money: Money, model: str) -> dict[str, list[Assumption]]:
    """Return all assumptions by heading.

    `model` is the catalogue name for API prices.
    """
    whole = "whole"
    default = "default of this workbook"
    traffic = [
        Assumption("users", "Concurrency", "users", load.users, f"requests in flight at the peak; {default}",
                   least=1, most=1e6, style=whole),
        Assumption("prompt_tokens", "Input length", "tokens", load.input, f"prompt with its history; {default}",
                   least=1, most=1e7, style=whole),
        Assumption("answer_tokens", "Output length", "tokens", load.output, default, least=2, most=1e6, style=whole),
        Assumption("context_tokens", "Longest request", "tokens", load.context,
                   f"prompt and answer of the longest request that must fit; {default}", least=1, most=1e7,
                   style=whole),
        Assumption("reuse_share", "Cached share of prompts", "share of prompt tokens", load.reuse,
                   "share that an API bills as cached; the speeds of machines do not include prefix caching",
                   most=1, style="share"),
        Assumption("growth", "Load growth", "per month", load.growth, "for the months until the capacity is reached",
                   least=-0.5, most=1, style="share"),
    ]  # fmt: skip
    limits = [
        Assumption("gap_limit", "Max time per output token", "ms", 1e3 * TARGET_TPOT,
                   "TPOT limit of safe users, at the upper bound of the 90 % interval; 100 ms is 10 tokens/s, as in "
                   "glmplan fit", least=1, most=10_000, style=whole),
        Assumption("wait_limit", "Max time to first token", "s", TARGET_TTFT,
                   f"TTFT limit of safe users; at {TARGET_TTFT:g} s three times the TTFT of a single user if longer, "
                   "as in glmplan fit", least=0.1, most=3600),
    ]  # fmt: skip
    return {"Load": traffic, "SLO of safe users": limits, "Cost and power": list(_money(money)),
            "API alternative": list(_offers(load, money, model))}  # fmt: skip


def _money(money: Money) -> Iterator[Assumption]:
    terms, known = money.terms, load_terms()
    power = quotation(money.prices, "power", "electricity", today=money.today)
    source = power.entries[0].source
    yield Assumption("electricity", "Electricity", f"{terms.currency} per kWh", terms.electricity, source,
                     power.dates[1], power.low, power.high, most=10, style="three")  # fmt: skip
    yield Assumption("hours_per_month", "Operating hours", "hours per month", HOURS,
                     "a twelfth of 8,760 hours; power under load at all of them", "", least=1, most=744)  # fmt: skip
    yield Assumption("utilisation", "Utilisation", "mean load over peak", terms.utilisation,
                     "mean over peak of the daily traffic of glmplan simulate", "", least=0.001, most=1,
                     style="share")  # fmt: skip
    for name, (title, least, most) in _TERMS.items():
        term = known[name]
        missing = "" if term.value is not None else f" ({term.note})"
        unit = _UNITS.get(name, term.unit.replace("USD", terms.currency)).format(terms.currency)
        yield Assumption(name, title, unit, getattr(terms, name), f"{term.what}; {term.source or _BUYER}{missing}",
                         term.date, term.low, term.high, least, most)  # fmt: skip
    yield Assumption("colocation", "Colocation", f"{terms.currency} per kW and month", terms.colocation,
                     "0 on own premises; glmplan sheet new --region takes a published price", "",
                     most=10_000)  # fmt: skip


def _offers(load: Load, money: Money, model: str) -> Iterator[Assumption]:
    offer: Offer | None = None
    source = "no published price: enter one to compare"
    try:
        offers = offers_of(model, money.prices, today=money.today)
        offer = market_of(offers, load.input, load.output, load.reuse * load.input).offer
        source = f"{offer.seller}, the cheapest of {len(offers)} offers for this mix; {offer.source}"
        source += " (older than 180 days)" if offer.stale else ""
    except GlmplanError:
        pass
    for name, title in (("input", "input"), ("output", "output"), ("cached", "cached input")):
        value = None if offer is None else getattr(offer, name)
        yield Assumption(f"api_{name}", f"API price, {title}", f"{money.terms.currency} per million tokens", value,
                         source, "" if offer is None else offer.date, most=100_000)  # fmt: skip


def fixed_facts(options: tuple[Option, ...]) -> list[tuple[str, str, str]]:
    """Return title, value and way to change of each fixed input."""
    asked = options[0].planned.asked
    terms = options[0].planned.holding.terms
    drafted = "none"
    if terms.mtp:
        gain = options[0].planned.deployment.tokens_per_step
        drafted = f"{terms.mtp} speculative tokens, {gain:.2f} tokens per step"
    axes = options[0].cached[0].surface.axes
    return [
        ("Model", f"{asked.model.name}, {asked.checkpoint.name}", "a new workbook"),
        ("Engine", f"{asked.engine} {asked.runs_as or ''}".strip(), "a new workbook with --engine"),
        ("Speculative decoding", drafted, "a new workbook with --mtp and --acceptance"),
        ("Calculated concurrency", f"{axes.users[0]} to {axes.users[-1]} per machine", "a new workbook with --users"),
        ("Calculated input", f"{axes.inputs[0]:,} to {axes.inputs[-1]:,} tokens", "a new workbook with --input"),
        ("Calculated output", f"{axes.outputs[0]:,} to {axes.outputs[-1]:,} tokens", "a new workbook with --output"),
    ]


def write_assumptions(book: Book, options: tuple[Option, ...], rows: dict[str, list[Assumption]]) -> None:
    """Fill the sheet of assumptions."""
    page = book["Assumptions"]
    page.put(0, 0, "Assumptions", "title")
    page.put(1, 0, "Yellow cells may be changed; the whole workbook is recalculated.", "note")
    page.row(3, HEADERS, "header")
    line = 4
    for heading, assumptions in rows.items():
        page.row(line, [heading, *[None] * (len(HEADERS) - 1)], "heading")
        for entry in assumptions:
            line += 1
            least, most = entry.least, entry.most
            page.put(line, 0, entry.title)
            page.put(line, 1, entry.value, f"{entry.style}*")
            page.bounds[line, 1] = (least, most, f"{entry.title}: {least:g} to {most:g} {entry.unit}")
            page.put(line, 2, entry.unit, "wrap")
            page.put(line, 3, entry.low, entry.style)
            page.put(line, 4, entry.high, entry.style)
            page.say(line, 5, entry.source, "small")
            page.say(line, 6, entry.date, "small")
            if len(entry.source) > _LINE:
                page.heights[line] = 13.0 * (1 + len(entry.source) // _LINE)
            book.name(entry.name, page, line, 1)
        line += 2
    page.row(line, ["Fixed in this file", *[None] * (len(HEADERS) - 1)], "heading")
    for title, value, how in fixed_facts(options):
        line += 1
        page.put(line, 0, title)
        page.say(line, 1, value)
        page.put(line, 5, f"to change it: {how}", "small")
    page.widths |= dict(enumerate(_WIDTHS))
    page.freeze = (4, 0)


# Addresses: columns of the sheets, so that formulas of one sheet find cells of another.

#: the sheets in their order
SHEETS: tuple[str, ...] = (
    *("Summary", "Options", "Assumptions", "Results", "Memory per card"),
    *("Calculation", "Sensitivity", "Sources", "Surface"),
)
#: 0-based row of the first option on Options, Results and Calculation
FIRST = 5

_OPTIONS = (
    *("number", "name", "machine", "accelerators", "weights", "engine", "layout", "machines", "cache", "way"),
    *("price", "price_low", "price_high", "rent", "rent_low", "rent_high", "rating", "hosts", "rest", "tdp", "draw"),
    *("evidence", "prices_from", "note"),
)
_CALCULATION = (
    *("name", "share", "format", "block", "inside", "input_cell", "input_part", "output_cell", "output_part", "corner"),
    *("user_cell", "user_part", "user_band", "prompt_band", "widen", "held", "held_low", "longest"),
    *("longest_low", "seats", "state", "request", "further", "first", "log_low", "log_high", "gap_low", "gap_high"),
    *("least_request", "least_further", "served", "first_least", "further_most", "wait_high"),
    *("safe_gap", "safe_gap_high", "safe_wait", "safe_wait_high", "most_users", "safe_share", "safe_request"),
)
_RESULTS = (
    *("name", "fit", "held", "held_low", "rate", "rate_low", "rate_high", "each", "each_low", "each_high", "wait"),
    *("gap", "safe", "safe_half", "chance", "limit", "kw", "purchase", "write_off", "power", "rent", "other", "month"),
    "tokens",
    *("per_million", "per_million_low", "per_million_high", "per_output", "api_month", "break_even"),
    *("paid_back", "outgrown", "why"),
)
_OF = {"Options": _OPTIONS, "Calculation": _CALCULATION, "Results": _RESULTS}


def columns_of(sheet: str) -> tuple[str, ...]:
    """Return the names of the columns of a sheet."""
    return _OF[sheet]


def cell(sheet: str, column: str, option: int) -> str:
    """Return the address of a cell of an option.

    Examples
    --------
    >>> cell("Options", "machines", 0)
    'Options!$H$6'
    """
    return address(FIRST + option, _OF[sheet].index(column), sheet)


def span(sheet: str, column: str, count: int) -> str:
    """Return the address of a column over all options.

    Examples
    --------
    >>> span("Results", "month", 2)
    'Results!$W$6:$W$7'
    """
    return f"{cell(sheet, column, 0)}:{cell(sheet, column, count - 1).partition('!')[2]}"


def blocks(options: tuple[Option, ...]) -> list[int]:
    """Return the 1-based number of the first block of each option.

    A block is an option with one KV cache format.
    """
    numbers, count = [], 1
    for option in options:
        numbers.append(count)
        count += len(option.cached)
    return numbers


class Grid:
    """Addresses on the sheet Surface; all grids have the same axes."""

    #: 0-based rows of the axes and of the first block of points
    AXES, POINTS = 4, 12
    #: column of the first quantity of a point
    LEFT = 4

    def __init__(self, options: tuple[Option, ...]) -> None:
        self.axes = options[0].cached[0].surface.axes
        self.blocks = sum(len(option.cached) for option in options)
        self.rows = len(self.axes.inputs) * len(self.axes.outputs)
        #: rows of a block in the table of intervals: users times bands of inputs
        self.band_rows = len(self.axes.users) * (len(PROMPTS) + 1)
        #: calibrated domains in a row
        self.most_domains = max(len(cached.surface.spreads.domains) for option in options for cached in option.cached)
        self.last = self.POINTS + self.blocks * self.rows - 1
        #: first row of the calibrated domains, and of the interval bands
        self.domains = self.last + 4
        self.bands = self.domains + self.blocks + 3

    def axis(self, row: int, count: int) -> str:
        """Return the range of an axis by its number.

        Axes are 0 users, 1 inputs, 2 outputs, 3 bands of inputs.
        """
        first = address(self.AXES + row, 1, "Surface")
        return f"{first}:{address(self.AXES + row, count)}"

    @property
    def users(self) -> str:
        """Return the range of the axis of users."""
        return self.axis(0, len(self.axes.users))

    @property
    def inputs(self) -> str:
        """Return the range of the axis of input lengths."""
        return self.axis(1, len(self.axes.inputs))

    @property
    def outputs(self) -> str:
        """Return the range of the axis of output lengths."""
        return self.axis(2, len(self.axes.outputs))

    def quantity(self, kind: int, user: int) -> str:
        """Return the range of a quantity over all points of a concurrency.

        `kind` indexes `_QUANTITIES`.
        """
        column = self.LEFT + kind * len(self.axes.users) + user
        return f"{address(self.POINTS, column, 'Surface')}:{address(self.last, column)}"

    def beyond(self, users: str, block: str) -> str:
        """Return the formula of the half-width that a load adds."""

        def of(column: int) -> str:
            first = address(self.domains, 1 + column, "Surface")
            return f"INDEX({first}:{address(self.domains + self.blocks - 1, 1 + column)},{block})"

        places = [number * _DOMAIN for number in range(self.most_domains)]
        loads = ((users, 0), ("prompt_tokens", 2), ("answer_tokens", 4))
        found = [
            "+".join(_beyond(value, of(first + at), of(first + at + 1)) for value, at in loads) for first in places
        ]
        return f"MAX({','.join(found)})" if found else "0"

    def bound(self, kind: int, row: str, widen: str) -> str:
        """Return the formula of an interval bound, away from zero.

        `kind`: 0 and 1 TTFT, 2 and 3 TPOT, 4 and 5 end-to-end. As `glmplan.prediction.evidence.IntervalTerms.at`.
        """

        def of(term: str) -> str:
            return self._band(kind * len(TERMS) + TERMS.index(term), row)

        inner = f"MIN({of('inside')}+{widen},{of('widest')})"
        return f"(({inner}^2+{of('independent')}^2)^0.5+{of('stages')})"

    def steady(self, kind: int, row: str) -> str:
        """Return the formula of a steady time over the mean; 0 TTFT, 1 TPOT."""
        return self._band(6 * len(TERMS) + kind, row)

    def _band(self, place: int, row: str) -> str:
        """Return the formula of a column of the table of intervals."""
        first = address(self.bands, 3 + place, "Surface")
        return f"INDEX({first}:{address(self.bands + self.blocks * self.band_rows - 1, 3 + place)},{row})"


# Surface and memory.

#: an infinite bound
_NEVER = 1e99
#: columns of a calibrated domain: minimum and maximum of users, input and output
_DOMAIN = 6
_QUANTITIES = (
    "time per request [s]",
    "service time [s]",
    "TTFT, lower bound [s]",
    "decode, upper bound [s]",
    "time per request, lower bound [s]",
    "decode, lower bound [s]",
)
_MEMORY = (
    *("Option", "KV cache", "Stage", "Weights [GiB]", "Activations [GiB]", "CUDA graphs [GiB]", "Buffers [GiB]"),
    *("Engine reserve [GiB]", "Usable by the engine [GiB]", "GPU memory [GiB]", "KV pool [GiB]"),
    *("KV pool, lower bound [GiB]", "KV per token [B]", "State per request [B]", "Window [tokens]"),
    *("Bytes per token in it", "Second window [tokens]", "Bytes per token in it"),
    *("KV per request [GiB]", "Requests in the pool", "Requests in the pool, lower bound"),
)


def write_surface(book: Book, options: tuple[Option, ...], grid: Grid) -> None:
    """Fill the sheet of predicted times."""
    page, axes = book["Surface"], grid.axes
    page.put(0, 0, "Predicted times over concurrency, input and output length", "title")
    page.put(1, 0, "Fixed when the workbook was made; linear interpolation between the points, none outside. Decode "
                   "time is service time less the lower bound of TTFT, and at most its upper bound. Not printed.",
             "note")  # fmt: skip
    for row, (title, values) in enumerate(
        (("Users per machine", axes.users), ("Input [tokens]", axes.inputs), ("Output [tokens]", axes.outputs),
         ("Bands of input", (0.0, *PROMPTS)))
    ):  # fmt: skip
        page.put(grid.AXES + row, 0, title)
        page.row(grid.AXES + row, values, "exact", column=1)
    head = grid.POINTS - 1
    page.row(head, ("Option", "KV cache", "Input", "Output"), "header")
    for kind, quantity in enumerate(_QUANTITIES):
        titles = [f"{quantity}, {counted_unit(users, 'users')}" for users in axes.users]
        page.row(head, titles, "header", column=grid.LEFT + kind * len(axes.users))
    line, block = grid.POINTS, 0
    for number, option in enumerate(options):
        for cached in option.cached:
            times = cached.surface
            quantities = (
                *(times.request, times.served, times.first_least, times.further_most),
                *(times.least_request, times.least_further),
            )
            for i, prompt in enumerate(axes.inputs):
                for o, answer in enumerate(axes.outputs):
                    page.row(line, (number + 1, cached.kv, prompt, answer), "text")
                    for kind, seconds in enumerate(quantities):
                        cells = [float(f"{value:.6g}") for value in seconds[i, o]]
                        page.row(line, cells, "exact", column=grid.LEFT + kind * len(axes.users))
                    line += 1
            _write_spreads(page, grid, block, number, cached)
            block += 1
    page.put(grid.domains - 1, 0, "Calibrated domains, from and to: users, input, output",
             "heading")  # fmt: skip
    page.put(grid.bands - 1, 0, "90 % interval of log(measured/predicted), lower and upper bound of TTFT, TPOT and "
             f"end-to-end, each: {', '.join(TERMS)}; then TTFT and TPOT in the steady state over those with the first "
             "requests", "heading")  # fmt: skip
    page.widths |= {0: 20, 1: 12}
    page.freeze = (grid.POINTS, grid.LEFT)
    page.last_printed = (grid.POINTS - 2, 19)


def _write_spreads(page: Sheet, grid: Grid, block: int, number: int, one: Cached) -> None:
    spreads = one.surface.spreads
    line = grid.domains + block
    page.put(line, 0, f"{number + 1} {one.kv}")
    for place in range(grid.most_domains):
        column = 1 + place * _DOMAIN
        domain = spreads.domains[place] if place < len(spreads.domains) else (0.0, _NEVER) * 3
        page.row(line, [min(end, _NEVER) for end in domain], "exact", column=column)
    first = grid.bands + block * grid.band_rows
    for users, count in enumerate(grid.axes.users):
        for prompt in range(len(PROMPTS) + 1):
            row = first + users * (len(PROMPTS) + 1) + prompt
            page.row(row, (number + 1, count, prompt + 1), "text")
            terms = [float(min(value, _NEVER)) for name in ("ttft", "tpot", "output_rate")
                     for value in spreads.bands[name][users, prompt].ravel()]  # fmt: skip
            page.row(row, (*terms, *one.surface.steady[:, users].tolist()), "exact", column=3)


def write_memory(book: Book, options: tuple[Option, ...]) -> tuple[str, ...]:
    """Fill the sheet of memory; return its ranges for `_held` in their order."""
    page = book["Memory per card"]
    count = sum(len(one.cached) for one in options)
    page.put(0, 0, "Memory per GPU", "title")
    page.put(1, 0, "The fullest GPU of each pipeline stage. The pool follows the rule of the engine; KV per request "
                   "follows the lengths of the assumptions.", "note")  # fmt: skip
    page.row(3, ("Option", "KV cache", "Requests in the pool of a machine", "lower bound", "Longest request [tokens]",
                 "lower bound", "Max running requests"), "header")  # fmt: skip
    first = 4 + count + 2
    page.row(first - 1, _MEMORY, "header")
    line, block = first, 4
    for number, option in enumerate(options):
        for one in option.cached:
            top = line
            for stage in range(len(one.stages)):
                _write_stage(page, line, (f"{number + 1} {option.planned.asked.machine.text}", one, stage))
                line += 1
            page.say(block, 0, f"{number + 1} {option.planned.asked.machine.text}")
            page.say(block, 1, one.kv)
            for column, held in ((2, 19), (3, 20)):
                cells = f"{address(top, held)}:{address(line - 1, held)}"
                page.put(block, column, f"=MIN({cells})*{one.copies:g}", "whole")
            page.row(
                block, [min(value, 1e12) for value in (one.longest, one.longest_low, one.seats)], "whole", column=4
            )
            block += 1
    page.widths |= {0: 26, 1: 10, **{column: 13 for column in range(2, 21)}}
    page.heights[first - 1] = 46
    page.heights[3] = 46
    page.freeze = (4, 2)
    ranges = []
    for column in range(2, 7):
        ranges.append(f"{address(4, column, page.name)}:{address(3 + count, column)}")
    return tuple(ranges)


def _write_stage(page: Sheet, line: int, what: tuple[str, Cached, int]) -> None:
    title, one, number = what
    stage = one.stages[number]
    page.say(line, 0, title)
    page.say(line, 1, one.kv)
    page.put(line, 2, number)
    held = (stage.weights, stage.activation, stage.graphs, stage.buffers, stage.reserve, stage.usable, stage.capacity)
    page.row(line, [value / GIB for value in (*held, stage.pool, stage.pool_low)], "two", column=3)
    windows = [*stage.windows, (0.0, 0.0), (0.0, 0.0)]
    page.row(line, (stage.per_token, stage.state), "whole", column=12)
    for place, (tokens, each) in enumerate(windows[:2]):
        page.row(line, (tokens, each), "whole", column=14 + 2 * place)
    length = f"CEILING(prompt_tokens+answer_tokens,{one.block:g})"
    at = {name: address(line, column) for name, column in
          (("token", 12), ("state", 13), ("w1", 14), ("b1", 15), ("w2", 16), ("b2", 17), ("takes", 18))}  # fmt: skip
    extra = "".join(f"+{each!r}*MIN({length},{tokens!r})" for tokens, each in stage.windows[2:])
    page.put(line, 18, f"=({at['token']}*{length}+{at['state']}+{at['b1']}*MIN({length},{at['w1']})"
                       f"+{at['b2']}*MIN({length},{at['w2']}){extra})/{GIB}", "three")  # fmt: skip
    for column, pool in ((19, 10), (20, 11)):
        page.put(line, column, f"=IF({at['takes']}>0,INT({address(line, pool)}/{at['takes']}),1000000000)", "whole")


# Calculation: interpolation of the surface at the load, and the curve over users of each option.

#: rows of the curve of an option
_CURVE_ROWS = 24
_TITLES = {
    "name": "Option", "share": "Users per machine", "format": "Cache format", "block": "Block of Surface",
    "inside": "Lengths in range", "input_cell": "Input: cell", "input_part": "fraction", "output_cell": "Output: cell",
    "output_part": "fraction", "corner": "Row of Surface", "user_cell": "Users: cell", "user_part": "fraction",
    "user_band": "Users: row of interval", "prompt_band": "Band of input", "widen": "Extrapolation",
    "held": "Requests in the pool", "held_low": "lower bound", "longest": "Longest request",
    "longest_low": "lower bound", "seats": "Max running requests",
    "state": "Reason without speed", "request": "Time per request [s]", "further": "Decode [s]", "first": "TTFT [s]",
    "log_low": "Request, log lower", "log_high": "log upper", "gap_low": "TPOT, log lower", "gap_high": "log upper",
    "wait_high": "TTFT, log upper", "least_request": "Request, lower bound [s]",
    "least_further": "Decode, lower bound [s]", "served": "Service time [s]", "first_least": "TTFT, lower bound [s]",
    "further_most": "Decode, upper bound [s]", "safe_gap": "Users by TPOT, expected", "safe_gap_high": "upper bound",
    "safe_wait": "Users by TTFT, expected", "safe_wait_high": "upper bound", "most_users": "Max users calculated",
    "safe_share": "Safe users per machine", "safe_request": "Time per request at safe users [s]",
}  # fmt: skip
#: rows of a curve
_CURVE = (
    *("Users per machine", "Time per request [s]", "Decode [s]", "TTFT [s]"),
    *(
        "Row of the interval",
        "Extrapolation",
        "TPOT, steady state [s]",
        "TPOT, upper bound [s]",
        "TTFT, upper bound [s]",
    ),
    *("TPOT met", "at the upper bound", "TTFT met", "at the upper bound"),
    *("Chart: users per machine", "Chart: cell", "Chart: users", "Chart: tokens/s"),
    *("Time per request, lower bound [s]", "Decode, lower bound [s]"),
    *("Service time [s]", "TTFT, lower bound [s]", "Decode, upper bound [s]"),
    "TTFT, steady state [s]",
)


def _curve_top(option: int, count: int) -> int:
    return FIRST + count + 3 + option * _CURVE_ROWS


def _curve_range(options: tuple[Option, ...], grid: Grid, option: int, row: int) -> str:
    """Return the range of a row of `_CURVE` of an option."""
    line = _curve_top(option, len(options)) + 1 + row
    return f"{address(line, 1, 'Calculation')}:{address(line, len(grid.axes.users))}"


def _beyond(value: str, low: str, high: str) -> str:
    """Return the formula of interval widening, as `prediction.evidence`."""
    return f"IF(OR({value}<0.5*{low},{value}>2*{high}),0.15*ABS(LN({value}/MAX(IF({value}<{low},{low},{high}),1))),0)"


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
    first_blocks = blocks(options)
    for number, option in enumerate(options):
        formulas = _place(grid, number, option, first_blocks[number])
        formulas |= _held(grid, number, memory) | _curve(page, options, grid, number)
        formulas |= _speeds(grid, number, curve_of(options, grid, number))
        for name in names:
            style = "text" if name in ("name", "inside", "state") else "exact"
            page.put(FIRST + number, names.index(name), formulas[name], style)
    page.widths |= {0: 30, **{column: 13 for column in range(1, len(names))}}
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
    found["user_band"] = f"=MATCH({share},{grid.users},1)"
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
        for name, row in (("request", 1), ("least_request", 17), ("least_further", 18), ("served", 19),
                          ("first_least", 20), ("further_most", 21))
    }  # fmt: skip
    # interpolated before the minimum is taken: the two terms may cross between points
    found["further"] = _further(*(_c(name, n) for name in ("served", "first_least", "further_most")))
    found["first"] = f"={_c('served', n)}-{_c('further', n)}"
    row = f"({_c('block', n)}-1)*{grid.band_rows}+({_c('user_band', n)}-1)*{len(PROMPTS) + 1}+{_c('prompt_band', n)}"
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
        for row, formula in enumerate(_at_users(grid, (n, options[n]), top + 1, place, curve)):
            page.put(top + 1 + row, 1 + place, formula, "exact")
    count = len(grid.axes.users)
    limits = ("held_low", "seats", "safe_gap", "safe_gap_high", "safe_wait", "safe_wait_high")
    found = {"safe_share": f"=MIN({','.join(_c(name, n) for name in limits)})"}
    users = f"MAX({_c('safe_share', n)},1)"
    at = f"MIN(MATCH({users},{curve[0]},1),{count - 1})"
    low, high = ([f"INDEX({curve[row]},{at}{plus})" for row in (0, 1)] for plus in ("", "+1"))
    found["safe_request"] = f"={low[1]}+({users}-{low[0]})/({high[0]}-{low[0]})*({high[1]}-{low[1]})"
    gap, (wait, wait_high) = "gap_limit/1000", _wait_limits(f"INDEX({curve[22]},1)", f"INDEX({curve[8]},1)")
    for name, good, values, limit in (
        ("safe_gap", 9, 6, gap), ("safe_gap_high", 10, 7, gap),
        ("safe_wait", 11, 22, wait), ("safe_wait_high", 12, 8, wait_high),
    ):  # fmt: skip
        held = f"SUM({curve[good]})"
        u, v = f"INDEX({curve[0]},{held}", f"INDEX({curve[values]},{held}"
        part = f"(LN({limit})-LN({v})))/(LN({v}+1))-LN({v})))"
        step = f"EXP(LN({u}))+{part}*(LN({u}+1))-LN({u}))))+0.000000001"
        found[name] = f"=IF({held}=0,0,IF({held}={count},INDEX({curve[0]},{count}),MAX(INT({step}),{u}))))"
    return found


def _at_users(grid: Grid, of: tuple[int, Option], first: int, place: int, curve: list[str]) -> list[str]:
    """Return the formulas of one column of the curve."""
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

    row = f"=({_c('block', n)}-1)*{grid.band_rows}+{place * (len(PROMPTS) + 1)}+{_c('prompt_band', n)}"
    wait, wait_high = _wait_limits(at(22, 0), at(8, 0))
    good: list[str] = []
    for values, limit in (
        (6, "gap_limit/1000"), (7, "gap_limit/1000"), (22, wait),
        (8, wait_high),
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
        f"={grid.beyond(busy, _c('block', n))}",
        f"={at(2)}/(answer_tokens-1)*{grid.steady(1, at(4))}",
        f"={at(6)}*EXP{grid.bound(3, at(4), at(5))}",
        f"={at(22)}*EXP{grid.bound(1, at(4), at(5))}",
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
        f"={at(3)}*{grid.steady(0, at(4))}",
    ]
