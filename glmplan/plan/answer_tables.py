"""Tables of the answer of `glmplan fit`: memory by card, users, and what limits their number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glmplan.physics.blocks.features import is_indexed
from glmplan.plan.text import LIMITS, WIDTH, number, paragraph
from glmplan.units import GIB

if TYPE_CHECKING:
    from glmplan.physics.memory.budget import MemoryBudget
    from glmplan.plan.capacity import Holding
    from glmplan.plan.plan import AnswerRecord
    from glmplan.prediction.predict import Figure

__all__ = ["memory_table", "safe_limits", "users_table"]

#: columns below which there is no room for a bar [-]
_NARROW = 80
#: columns of the numbers of users [-]
_USERS = 7
#: marks of a bar, and of one where the page is narrower than usual [-]
_BAR, _SHORT_BAR = 32, 12
#: share up to which the printed size of the cache says the same as the pool [-]
_SAME = 0.005


def memory_table(answer: AnswerRecord, width: int) -> str:
    """Write the memory of every card.

    Parameters
    ----------
    answer : AnswerRecord
        An answer with a layout.
    width : int
        Columns, [-]

    Returns
    -------
    str
        A line for cards alike, with a bar where there is room, and the cache pool.
    """
    rows = answer.ranks
    capacity = rows[0].capacity
    usable = rows[0].usable
    some = f", the engine takes up to {usable / GIB:.1f}" if usable < 0.995 * capacity else ""
    title = f"Memory of each card, GiB of {capacity / GIB:.1f} that programs can use{some}"
    out = paragraph(width, title, "")
    marks = _BAR if width >= WIDTH else _SHORT_BAR if width >= _NARROW else 0
    groups: list[tuple[list[int], MemoryBudget]] = []
    for place, row in enumerate(rows):
        if groups and _alike(groups[-1][1], row):
            groups[-1][0].append(place)
        else:
            groups.append(([place], row))
    shown = groups[:8]
    holding = answer.holding
    assert holding is not None
    lacks = holding.verdict == "does_not_fit"
    for places, row in shown:
        name = f"card {places[0]}" if len(places) == 1 else f"cards {places[0]}-{places[-1]}"
        bar = f"[{_bar(row, marks)}] " * bool(marks)
        out += paragraph(
            width,
            f"{name:11} {bar}{_parts(row, _request(answer, holding, places[0]) if lacks else None)}",
            "  ",
            " " * 14,
        )
    if len(groups) > len(shown):
        out += f"  … and {len(rows) - shown[-1][0][-1] - 1} more\n"
    if marks:
        text = "# weights  + activations, graphs, buffers, reserve  = KV cache  . left free  ! beyond the memory"
        out += paragraph(width, text)
    if lacks:
        text = f"short: what is missing to hold one request of {answer.asked.full_request:,} tokens as well"
        out += paragraph(width, text)
    if holding.pool > 0:
        low = f" ({holding.pool_low:,.0f} to {holding.pool_high:,.0f})" if holding.pool_high > holding.pool else ""
        per_token = max(row.per_token for row in rows)
        form = (
            f"{holding.terms.kv.upper()} cache: {per_token:,.0f} B for each token on a card" if per_token else "cache"
        )
        indexed = is_indexed(answer.asked.model)
        # said here because the patch, and not the wall alone, decides what the cache takes
        left_out = "; dense attention by a patch that leaves the indexer and its keys out"
        out += paragraph(
            width, f"pool {holding.pool:,.0f} tokens{low}; {form}{left_out * (indexed and not holding.terms.indexer)}"
        )
        if answer.printed and abs(answer.printed[0] * holding.terms.dp / holding.pool - 1.0) > _SAME:
            value, least, most = answer.printed
            each = " for each data-parallel rank" * (holding.terms.dp > 1)
            out += paragraph(
                width,
                f"{answer.asked.engine} will print {value:,.0f} ({least:,.0f} to {most:,.0f}){each}: layers with "
                f"windows or states share its pages, and it counts requests of {answer.launch_context:,} tokens",
            )
    return out


def _alike(one: MemoryBudget, other: MemoryBudget) -> bool:
    return one.weights == other.weights and one.cache == other.cache and one.activation == other.activation


def _other(row: MemoryBudget) -> float:
    return row.activation + row.graphs + row.communication + row.reserve


def _bar(row: MemoryBudget, length: int) -> str:
    scale = length / max(row.capacity, 1.0)
    weights, cache = sum(row.weights.values()), row.cache
    marks = "#" * round(weights * scale) + "+" * max(round(_other(row) * scale), 1)
    marks += "=" * max(round(cache * scale), int(cache > 0))
    if len(marks) > length:
        return marks[: length - 1] + "!"
    return marks.ljust(length, ".")


def _request(answer: AnswerRecord, holding: Holding, place: int) -> float:
    """Cache of one full-length request on a card, [B]"""
    terms = holding.terms
    stage = holding.memory.stages[place // terms.tp % terms.pp]
    return float(stage.request_bytes(float(answer.asked.full_request))[holding.point])


def _parts(row: MemoryBudget, request: float | None) -> str:
    weights, cache = sum(row.weights.values()) / GIB, row.cache / GIB
    # the same sum as in the headline: a request counts, not the weights alone
    short = 0.0 if request is None else (request - row.pool) / GIB
    text = f"weights {weights:5.1f}  other {_other(row) / GIB:4.1f}" + (f"  cache {cache:5.1f}" if cache else "")
    host = f"  host {row.host / GIB:.0f}" if row.host else ""
    return text + (f"  short {short:.1f}" if short > 0.05 else "") + host


def users_table(answer: AnswerRecord, width: int) -> str:
    """Write what users see by their number.

    Parameters
    ----------
    answer : AnswerRecord
        An answer with speeds.
    width : int
        Columns, [-]

    Returns
    -------
    str
        The table; without the columns that there is no room for: first the running requests, then the contexts, the
        first token, and what each has of the whole.
    """
    asked = answer.asked
    title = f"Users at once, each with {asked.input_tokens:,} tokens in and {asked.output_tokens:,} out (90 % interval)"
    columns = _columns(answer, width)
    out = paragraph(width, title, "") + "  users" + "".join(f"{one.title:>{one.width}}" for one in columns) + "\n"
    for place, row in enumerate(answer.users):
        out += f"  {row.users:5}" + "".join(f"{one.cells[place]:>{one.width}}" for one in columns) + "\n"
    out += paragraph(width, "decode: speed of each from its first token on; each: what it has of all, waiting included")
    waiting = [row for row in answer.users if row.running < row.users]
    if waiting:
        why = "the cache is full" if answer.holding and answer.holding.held < waiting[0].users else "the engine's limit"
        out += paragraph(
            width, f"from {waiting[0].users} users on requests wait for a place: {why}; TTFT includes the wait"
        )
    outside = sorted({part for row in answer.users for part in row.outside.split("; ") if part})
    if outside:
        out += paragraph(width, f"outside of what was measured: {_shorter(outside)}")
    return out


def _shorter(parts: list[str]) -> str:
    """Lines that differ in a number only are said once."""
    seen: dict[str, str] = {}
    for part in parts:
        seen.setdefault(part.split(" ")[0], part)
    return "; ".join(seen.values())


@dataclass(frozen=True, slots=True)
class _Column:
    """A column after the number of users: its title, how wide it is, and a cell for each row."""

    title: str
    width: int
    cells: list[str]


def _columns(answer: AnswerRecord, width: int) -> list[_Column]:
    """The columns that there is room for: a value and its interval are never parted."""
    rows = answer.users
    kept = {
        "running": _Column("running", 9, [str(row.running) for row in rows]),
        "first": _figures("first token, s", [row.ttft for row in rows]),
        "decode": _figures("decode tok/s", [row.user_rate for row in rows]),
        "all": _figures("tok/s in all", [row.total_rate for row in rows]),
        "each": _column("each", [number(row.each_rate.value) for row in rows]),
        "context": _column("context each", [f"{row.context:,}" for row in rows]),
    }
    if all(row.ttft is None for row in rows):
        del kept["first"]
    for name in ("running", "context", "first", "each", "decode"):
        if _USERS + sum(one.width for one in kept.values()) > width:
            kept.pop(name, None)
    return list(kept.values())


def _figures(title: str, figures: Sequence[Figure | None]) -> _Column:
    """A column of figures with their intervals, as wide as they need."""
    values = ["-" if one is None else number(one.value) for one in figures]
    spans = ["" if one is None else _range(one) for one in figures]
    value, interval = max(map(len, values)), max(map(len, spans))
    return _column(title, [f"{one:>{value}} {other:>{interval}}" for one, other in zip(values, spans, strict=True)])


def _column(title: str, cells: list[str]) -> _Column:
    return _Column(title, max(len(title), *map(len, cells)) + 2, cells)


def _range(figure: Figure) -> str:
    return f"{number(figure.low)}-{number(figure.high)}"


def safe_limits(answer: AnswerRecord, width: int) -> str:
    """Write the safe number of users and every limit on it.

    Parameters
    ----------
    answer : AnswerRecord
        An answer with speeds.
    width : int
        Columns, [-]

    Returns
    -------
    str
        A line for each limit, the one that binds marked; where to ask under traffic that only a simulation counts.
    """
    safe = answer.safe
    if safe is None:
        return paragraph(width, "Safe users: under such traffic `glmplan safe` counts them, by simulation", "")
    out = f"Safe users: {safe.users}\n"
    for limit in safe.limits:
        mark = ">" if limit.name == safe.limit else " "
        out += paragraph(width, f"{mark} {LIMITS[limit.name]:6}{limit.users:7,}  {limit.words}", "  ", " " * 20)
    if safe.expected != safe.users:
        out += paragraph(
            width,
            f"{safe.expected} if everything is as in the mean; the safe number takes the bad end of each interval",
        )
    return out
