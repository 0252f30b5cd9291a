"""Fill the input sheets: assumptions, predicted times, memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glmplan.catalog.entries.prices import load_terms, quotation
from glmplan.errors import GlmplanError
from glmplan.planner.question import Asked
from glmplan.planner.users import TARGET_TPOT, TARGET_TTFT
from glmplan.prediction.distribution import NORMAL, PLACES, PROBABILITIES, SHOWN, quantile_table
from glmplan.prediction.evidence import PROMPTS
from glmplan.present.sheets.book import Book, Sheet, address
from glmplan.present.sheets.option import TERMS, Cached, Option
from glmplan.purchase.cost import HOURS
from glmplan.purchase.money import Money, Offer, market_of, offers_of
from glmplan.units import GIB, Ratio, TokenCount, counted_unit

__all__ = [
    "FIRST",
    "LEVELS",
    "LIMITS",
    "SHEETS",
    "Assumption",
    "Grid",
    "Load",
    "assumptions_of",
    "blocks",
    "cell",
    "columns_of",
    "fixed_facts",
    "span",
    "write_assumptions",
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


def assumptions_of(load: Load, money: Money, asked: Asked) -> dict[str, list[Assumption]]:
    """Return all assumptions by heading; `asked` states the SLO."""
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
    stated = asked.slo_limits
    limits = [
        Assumption("probability", "Probability of meeting the SLO", "for safe users", asked.probability,
                   "from the measured errors of predictions, as in glmplan fit: linear in standard deviations between "
                   f"their quantiles of {', '.join(f'{100 * one:g}' for one in PROBABILITIES)} %",
                   least=PROBABILITIES[0], most=PROBABILITIES[-1], style="share"),
        Assumption("gap_limit", "Max time per output token", "ms", 1e3 * stated.get("tpot", TARGET_TPOT),
                   "longest mean TPOT of the SLO; 100 ms is 10 tokens/s, as in glmplan fit", least=1, most=10_000,
                   style=whole),
        Assumption("wait_limit", "Max time to first token", "s", stated.get("ttft", TARGET_TTFT),
                   f"longest mean TTFT of the SLO; at {TARGET_TTFT:g} s three times the TTFT of a single user if "
                   "longer, as in glmplan fit", least=0.1, most=3600),
    ]  # fmt: skip
    return {"Load": traffic, "SLO of safe users": limits, "Cost and power": list(_money(money)),
            "API alternative": list(_offers(load, money, asked.model.name))}  # fmt: skip


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
#: ending of the columns of each probability: that of the SLO, and those that every answer has
LEVELS = ("", *(f"_{100 * share:g}" for share in SHOWN))
#: limits on the users of a machine, and the smallest of them
LIMITS = ("pool", "gap", "wait", "safe")
_CALCULATION = (
    *("name", "share", "format", "block", "inside", "input_cell", "input_part", "output_cell", "output_part", "corner"),
    *("user_cell", "user_part", "log_part", "prompt_band", "user_band", "widen", "held", "held_low", "longest"),
    *("longest_low", "longest_at", "seats", "state", "request", "further", "first", "log_low", "log_high"),
    *("gap_low", "gap_high", "least_request", "least_further", "served", "first_least", "further_most", "wait_high"),
    *("most_users", "wait_bound", "wait_bound_mean", "wait_mean"),
    *(f"{limit}{level}" for level in LEVELS for limit in LIMITS),
    *("safe_request", "pool_ratio", "gap_ratio", "wait_ratio", "chance"),
)
_RESULTS = (
    *("name", "fit", "held", "held_low", "rate", "rate_low", "rate_high", "each", "each_low", "each_high", "wait"),
    *("gap", *(f"safe{level}" for level in LEVELS), "chance", "limit"),
    *("kw", "purchase", "write_off", "power", "rent", "other", "month"),
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
    'Results!$Y$6:$Y$7'
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


def _beyond(value: str, low: str, high: str) -> str:
    """Return the formula of interval widening, as `prediction.evidence`."""
    return f"IF(OR({value}<0.5*{low},{value}>2*{high}),0.15*ABS(LN({value}/MAX(IF({value}<{low},{low},{high}),1))),0)"


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

        Axes are 0 users, 1 inputs, 2 outputs, 3 bands of inputs, 4 quantiles, 5 the KV pool at these.
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

    @property
    def places(self) -> str:
        """Return the range of the quantiles."""
        return self.axis(4, len(PLACES))

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

    def tails(self, kind: int) -> str:
        """Return the range of the quantiles over their bounds; 0 TTFT, 1 TPOT."""
        place = 6 * len(TERMS) + 2 + kind * len(PLACES)
        return self._bands(place, place + len(PLACES) - 1)

    def _band(self, place: int, row: str) -> str:
        """Return the formula of a column of the table of intervals."""
        return f"INDEX({self._bands(place, place)},{row})"

    def _bands(self, first: int, last: int) -> str:
        """Return the range of columns of the table of intervals."""
        end = address(self.bands + self.blocks * self.band_rows - 1, 3 + last)
        return f"{address(self.bands, 3 + first, 'Surface')}:{end}"


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
         ("Bands of input", (0.0, *PROMPTS)), ("Quantiles [standard deviations]", PLACES),
         ("KV pool over its bounds", quantile_table(NORMAL)))
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
             "requests, and the quantiles of both over their bounds", "heading")  # fmt: skip
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
            settled = (*one.surface.steady[:, users], *one.surface.tails[:, users].ravel())
            page.row(row, (*terms, *map(float, settled)), "exact", column=3)


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
