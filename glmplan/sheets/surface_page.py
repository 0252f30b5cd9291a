"""The sheets that hold what was predicted and what fits: the surface over the grid, and the memory of each card."""

from __future__ import annotations

from glmplan.prediction.intervals import BANDS, PROMPTS
from glmplan.sheets.book import Book, Sheet
from glmplan.sheets.calculate import address
from glmplan.sheets.option import Cached, Option
from glmplan.sheets.places import Grid
from glmplan.units import GIB, counted_unit

__all__ = ["BAND_ROWS", "write_memory", "write_surface"]

#: rows of a block in the table of intervals: bands of users times bands of prompts [-]
BAND_ROWS = (len(BANDS) + 1) * (len(PROMPTS) + 1)
#: what stands for an end that is never reached
_NEVER = 1e99
_QUANTITIES = (
    "a request of all [s]",
    "served [s]",
    "first token at least [s]",
    "further tokens at most [s]",
    "request at least [s]",
    "further tokens at least [s]",
)
_MEMORY = (
    *("Option", "KV cache", "Stage", "Weights [GiB]", "Activations [GiB]", "CUDA graphs [GiB]", "Buffers [GiB]"),
    *("Engine's reserve [GiB]", "Engine may use [GiB]", "Card has [GiB]", "Pool for the cache [GiB]"),
    *("Pool, low end [GiB]", "Cache of a token [B]", "Cache of a request [B]", "Window [tokens]"),
    *("Bytes of a token in it", "Second window [tokens]", "Bytes of a token in it"),
    *("A request takes [GiB]", "Requests held", "Requests held, low end"),
)


def write_surface(book: Book, options: tuple[Option, ...], grid: Grid) -> None:
    """Fill the sheet of predicted times.

    Parameters
    ----------
    book : Book
        The workbook.
    options : tuple of Option
        The options.
    grid : Grid
        Where things stand.
    """
    page, axes = book["Surface"], grid.axes
    page.put(0, 0, "Predicted times over users, prompts and answers", "title")
    page.put(1, 0, "Written when the workbook was made; between points stand straight lines, beyond them nothing. "
                   "Further tokens take what is served less the first token at least, and at most what stands here.",
             "note")  # fmt: skip
    for row, (title, values) in enumerate(
        (("Users of a machine", axes.users), ("Prompts [tokens]", axes.inputs), ("Answers [tokens]", axes.outputs),
         ("Bands of users", (0.0, *BANDS)), ("Bands of prompts", (0.0, *PROMPTS)))
    ):  # fmt: skip
        page.put(grid.AXES + row, 0, title)
        page.row(grid.AXES + row, values, "exact", column=1)
    head = grid.POINTS - 1
    page.row(head, ("Option", "KV cache", "Prompt", "Answer"), "header")
    for kind, words in enumerate(_QUANTITIES):
        titles = [f"{words}, {counted_unit(users, 'users')}" for users in axes.users]
        page.row(head, titles, "header", column=grid.LEFT + kind * len(axes.users))
    line, block = grid.POINTS, 0
    for number, option in enumerate(options):
        for one in option.cached:
            found = one.surface
            quantities = (
                *(found.request, found.served, found.first_least, found.further_most),
                *(found.least_request, found.least_further),
            )
            for i, prompt in enumerate(axes.inputs):
                for o, answer in enumerate(axes.outputs):
                    page.row(line, (number + 1, one.kv, prompt, answer), "text")
                    for kind, seconds in enumerate(quantities):
                        times = [float(f"{value:.6g}") for value in seconds[i, o]]
                        page.row(line, times, "exact", column=grid.LEFT + kind * len(axes.users))
                    line += 1
            _write_spreads(page, grid, block, number, one)
            block += 1
    page.put(grid.domains - 1, 0, "Measured from and to: users, prompts, answers", "heading")
    page.put(grid.bands - 1, 0, "Log of measured over predicted, ends of 90 %: first token, further, whole request",
             "heading")  # fmt: skip
    page.widths |= {0: 20, 1: 12}
    page.freeze = (grid.POINTS, grid.LEFT)


def _write_spreads(page: Sheet, grid: Grid, block: int, number: int, one: Cached) -> None:
    spreads = one.surface.spreads
    domain = spreads.domain or (0.0, _NEVER) * 3
    page.put(grid.domains + block, 0, f"{number + 1} {one.kv}")
    page.row(grid.domains + block, domain, "exact", column=1)
    first = grid.bands + block * BAND_ROWS
    for users in range(len(BANDS) + 1):
        for prompt in range(len(PROMPTS) + 1):
            row = first + users * (len(PROMPTS) + 1) + prompt
            page.row(row, (number + 1, users + 1, prompt + 1), "text")
            ends = [float(spreads.bands[name][users, prompt, end])
                    for name in ("ttft", "tpot", "output_rate") for end in (0, 1)]  # fmt: skip
            page.row(row, ends, "exact", column=3)


def write_memory(book: Book, options: tuple[Option, ...]) -> tuple[str, ...]:
    """Fill the sheet of memory.

    Parameters
    ----------
    book : Book
        The workbook.
    options : tuple of Option
        The options.

    Returns
    -------
    tuple of str
        Ranges over all blocks: requests held and their low end, longest request and its low end, places in the engine.
    """
    page = book["Memory per card"]
    count = sum(len(one.cached) for one in options)
    page.put(0, 0, "Memory of each card", "title")
    page.put(1, 0, "The fullest card of each pipeline stage. Pool and low end follow the engine's own rule; what a "
                   "request takes follows the lengths of the assumptions.", "note")  # fmt: skip
    page.row(3, ("Option", "KV cache", "Machines' requests held", "Low end", "Longest request [tokens]", "Low end",
                 "Places in the engine"), "header")  # fmt: skip
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
