"""The answer of `glmplan fit` as text of at most 100 columns."""

from __future__ import annotations

from textwrap import TextWrapper
from typing import TYPE_CHECKING

from glmplan.physics.blocks.features import is_indexed
from glmplan.units import GIB

if TYPE_CHECKING:
    from glmplan.physics.memory.budget import MemoryBudget
    from glmplan.plan.capacity import Holding
    from glmplan.plan.plan import AnswerRecord, Change, UserRow
    from glmplan.prediction.predict import Figure

__all__ = ["WIDTH", "fit_text", "number"]

#: columns of the page [-]
WIDTH = 100
_BAR = 32
#: share up to which the printed size of the cache says the same as the pool [-]
_SAME = 0.005
_VERDICTS = {"fits": "FITS", "tight": "TIGHT", "does_not_fit": "DOES NOT FIT", "unknown": "UNKNOWN"}


def number(value: float) -> str:
    """Write a number with three significant digits, thousands apart.

    Parameters
    ----------
    value : float
        The number, [-]

    Returns
    -------
    str
        Its text.

    Examples
    --------
    >>> number(0.02871), number(27.08), number(1234.5)
    ('0.0287', '27.1', '1,234')
    """
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3g}"


def fit_text(answer: AnswerRecord) -> str:
    """Write the answer as text.

    Parameters
    ----------
    answer : AnswerRecord
        The answer.

    Returns
    -------
    str
        Lines of at most 100 columns.
    """
    parts = [_head(answer)]
    if answer.ranks:
        parts.append(_memory(answer))
    if answer.users:
        parts += [_users(answer), _safe(answer)]
    if answer.runners or answer.left_out:
        parts.append(_runners(answer))
    if answer.changes:
        parts.append(_changes(answer))
    if answer.warnings:
        parts.append(_warnings(answer))
    if answer.command:
        parts.append(_command(answer))
    parts.append(_rests(answer))
    return "".join(parts)


def _wrap(text: str, first: str = "  ", later: str = "    ") -> str:
    wrapper = TextWrapper(
        WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=False, break_long_words=True
    )
    return wrapper.fill(text) + "\n"


def _head(answer: AnswerRecord) -> str:
    asked = answer.asked
    machine = asked.machine
    title = f"{asked.model.name} {asked.checkpoint.name} on {machine.count} × {machine.accelerator.full_name}"
    if machine.named:
        title += f" ({machine.host.name})"
    version = f" {asked.engine_version}" if asked.engine_version else ""
    out = _wrap(f"{title}, {asked.engine}{version}", "", "  ") + "\n"
    said = answer.headline
    word = _VERDICTS[answer.verdict]
    for known in ("fits with ", "does not fit: ", "tight: "):
        said = said.removeprefix(known)
    out += _wrap(said if answer.verdict == "unknown" else f"{word}  {said}", "", " " * (len(word) + 2))
    if answer.holding is not None:
        out += _wrap(f"KV cache      {answer.holding.terms.kv.upper()}: {answer.kv_why}", "  ", " " * 16)
    for reason in answer.reasons:
        out += _wrap(reason)
    if answer.verdict == "does_not_fit" and answer.changes:
        nearest = next((one for one in answer.changes if one.verdict == "fits"), answer.changes[0])
        out += _wrap(f"nearest plan that works: {nearest.what}, {nearest.layout}{_numbers(answer, nearest)}")
    if answer.safe is not None:
        safe = answer.safe
        limit = next(one for one in safe.limits if one.name == safe.limit)
        if answer.users[0].users == 1:
            out += _wrap(f"one user      {_span(answer.users[0].user_rate)} tok/s")
        most = f"safe users    {safe.users} (expected {safe.expected}); limit {_LIMITS[safe.limit]}: {limit.words}"
        out += _wrap(most, "  ", " " * 16)
        out += _wrap(f"context       {_context(answer)}", "  ", " " * 16)
        out += _wrap(f"the step      {answer.binding}", "  ", " " * 16)
    if answer.unknown and answer.verdict != "unknown":
        out += _wrap(f"unknown: {', '.join(answer.unknown)}; {_without(answer)}")
    return out


def _without(answer: AnswerRecord) -> str:
    """What an unknown fact leaves out."""
    if not answer.users:
        return "no speed can be given"
    if answer.users[0].ttft is not None:
        return "the accelerators count by their memory only"
    return "the speeds are those of memory alone: an upper bound for many users; prefill and TTFT are unknown"


_LIMITS = {"kv": "KV", "tpot": "TPOT", "queue": "queue", "hazard": "hazard"}


def _context(answer: AnswerRecord) -> str:
    limit = answer.asked.longest_request
    if answer.context_low >= limit:
        whose = "the model's limit" if limit == answer.asked.model.max_context else "the limit asked for"
        return f"one request of {limit:,} tokens fits: {whose}"
    sure = f"{answer.context_low:,} tokens for sure" if answer.context_low else "not sure"
    return f"one request up to {answer.context:,} tokens, {sure}"


def _span(figure: Figure) -> str:
    return f"{number(figure.value)} ({number(figure.low)} to {number(figure.high)})"


def _memory(answer: AnswerRecord) -> str:
    rows = answer.ranks
    capacity = rows[0].capacity
    usable = rows[0].usable
    some = f", the engine takes up to {usable / GIB:.1f}" if usable < 0.995 * capacity else ""
    out = f"\nMemory of each card, GiB of {capacity / GIB:.1f} that programs can use{some}\n"
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
        out += f"  {name:11} [{_bar(row)}] {_parts(row, _request(answer, holding, places[0]) if lacks else None)}\n"
    if len(groups) > len(shown):
        out += f"  … and {len(rows) - shown[-1][0][-1] - 1} more\n"
    out += "  # weights  + activations, graphs, buffers, reserve  = KV cache  . left free  ! beyond the memory\n"
    if lacks:
        out += f"  short: what is missing to hold one request of {answer.asked.full_request:,} tokens as well\n"
    if holding.pool > 0:
        low = f" ({holding.pool_low:,.0f} to {holding.pool_high:,.0f})" if holding.pool_high > holding.pool else ""
        per_token = max(row.per_token for row in rows)
        form = (
            f"{holding.terms.kv.upper()} cache: {per_token:,.0f} B for each token on a card" if per_token else "cache"
        )
        indexed = is_indexed(answer.asked.model)
        # said here because the patch, and not the wall alone, decides what the cache takes
        left_out = "; dense attention by a patch that leaves the indexer and its keys out"
        out += _wrap(
            f"pool {holding.pool:,.0f} tokens{low}; {form}{left_out * (indexed and not holding.terms.indexer)}"
        )
        if answer.printed and abs(answer.printed[0] * holding.terms.dp / holding.pool - 1.0) > _SAME:
            value, least, most = answer.printed
            each = " for each data-parallel rank" * (holding.terms.dp > 1)
            out += _wrap(
                f"{answer.asked.engine} will print {value:,.0f} ({least:,.0f} to {most:,.0f}){each}: layers with "
                f"windows or states share its pages, and it counts requests of {answer.launch_context:,} tokens"
            )
    return out


def _alike(one: MemoryBudget, other: MemoryBudget) -> bool:
    return one.weights == other.weights and one.cache == other.cache and one.activation == other.activation


def _other(row: MemoryBudget) -> float:
    return row.activation + row.graphs + row.communication + row.reserve


def _bar(row: MemoryBudget) -> str:
    scale = _BAR / max(row.capacity, 1.0)
    weights, cache = sum(row.weights.values()), row.cache
    marks = "#" * round(weights * scale) + "+" * max(round(_other(row) * scale), 1)
    marks += "=" * max(round(cache * scale), int(cache > 0))
    if len(marks) > _BAR:
        return marks[: _BAR - 1] + "!"
    return marks.ljust(_BAR, ".")


def _request(answer: AnswerRecord, holding: Holding, place: int) -> float:
    """Cache of one full-length request on a card, [B]"""
    terms = holding.terms
    stage = holding.memory.stages[place // terms.tp % terms.pp]
    return float(stage.request_bytes(float(answer.asked.full_request))[holding.point])


def _parts(row: MemoryBudget, request: float | None) -> str:
    weights, cache = sum(row.weights.values()) / GIB, row.cache / GIB
    # the same sum as in the headline: a request counts, not the weights alone
    pool = row.cache or row.usable - row.total
    short = 0.0 if request is None else (request - pool) / GIB
    text = f"weights {weights:5.1f}  other {_other(row) / GIB:4.1f}" + (f"  cache {cache:5.1f}" if cache else "")
    host = f"  host {row.host / GIB:.0f}" if row.host else ""
    return text + (f"  short {short:.1f}" if short > 0.05 else "") + host


def _users(answer: AnswerRecord) -> str:
    asked = answer.asked
    out = (
        f"\nUsers at once, each with {asked.input_tokens:,} tokens in and {asked.output_tokens:,} out (90 % interval)\n"
    )
    has_ttft = any(row.ttft is not None for row in answer.users)
    first = f"{'first token, s':>22}" if has_ttft else ""
    out += f"  users  running{first}{'tok/s for each':>21}{'tok/s in all':>23}{'context each':>14}\n"
    for row in answer.users:
        out += _user_line(row, has_ttft) + "\n"
    waiting = [row for row in answer.users if row.running < row.users]
    if waiting:
        why = "the cache is full" if answer.holding and answer.holding.held < waiting[0].users else "the engine's limit"
        out += _wrap(f"from {waiting[0].users} users on requests wait for a place: {why}; TTFT includes the wait")
    outside = sorted({part for row in answer.users for part in row.outside.split("; ") if part})
    if outside:
        out += _wrap(f"outside of what was measured: {_shorter(outside)}")
    return out


def _shorter(parts: list[str]) -> str:
    """Lines that differ in a number only are said once."""
    seen: dict[str, str] = {}
    for part in parts:
        seen.setdefault(part.split(" ")[0], part)
    return "; ".join(seen.values())


def _user_line(row: UserRow, has_ttft: bool) -> str:
    first = ""
    if has_ttft:
        one = row.ttft
        first = f"{number(one.value):>8} {_range(one):>13}" if one is not None else " " * 22
    each, total = row.user_rate, row.total_rate
    return (
        f"  {row.users:5}  {row.running:7}{first}{number(each.value):>8} {_range(each):>12}"
        f"{number(total.value):>9} {_range(total):>13}{row.context:14,}"
    )


def _range(figure: Figure) -> str:
    return f"{number(figure.low)}-{number(figure.high)}"


def _safe(answer: AnswerRecord) -> str:
    safe = answer.safe
    assert safe is not None
    out = f"\nSafe users: {safe.users}\n"
    for limit in safe.limits:
        mark = ">" if limit.name == safe.limit else " "
        out += _wrap(f"{mark} {_LIMITS[limit.name]:6}{limit.users:7,}  {limit.words}", "  ", " " * 20)
    if safe.expected != safe.users:
        out += _wrap(
            f"{safe.expected} if everything is as in the mean; the safe number takes the bad end of each interval"
        )
    return out


def _runners(answer: AnswerRecord) -> str:
    holding = answer.holding
    assert holding is not None
    out = "\nLayouts\n"
    if answer.verdict != "does_not_fit" and answer.users:
        out += f"  {holding.terms.name:18} chosen\n"
    else:
        out += f"  {holding.terms.name:18} nearest\n"
    for one in answer.runners:
        out += _wrap(f"{one.layout:18} {one.why}", "  ", " " * 21)
    if answer.others:
        out += _wrap(f"and {answer.others} more")
    for text in answer.left_out:
        out += _wrap(f"not looked at: {text}")
    return out


def _numbers(answer: AnswerRecord, change: Change) -> str:
    from glmplan.plan.ranking import typical_users

    words = []
    if change.user_rate:
        words.append(f"{number(change.user_rate)} tok/s for one user")
        words.append(f"{number(change.total_rate)} for {typical_users(answer.asked)}")
    if change.pool_tokens:
        words.append(f"pool {change.pool_tokens:,.0f} tokens")
    return (": " + ", ".join(words)) if words else ""


def _changes(answer: AnswerRecord) -> str:
    out = "\nWhat would change it (each computed)\n"
    for one in answer.changes:
        verdict = _VERDICTS[one.verdict].lower()
        layout = f" {one.layout}" if one.name != "layout" else ""
        note = f" ({one.note})" if one.note else ""
        out += _wrap(f"{one.what}: {verdict}{layout}{_numbers(answer, one).replace(':', ',', 1)}{note}", "  ", "      ")
    return out


def _warnings(answer: AnswerRecord) -> str:
    out = "\nWarnings\n"
    for one in answer.warnings:
        text = f"[{one.severity}] {one.title}"
        text += f"; {one.applied}" if one.applied else ""
        text += f": {one.effect}" if one.kind == "hazard" else ""
        text += (
            "; measured" + one.effect.split("measured", 1)[1] if one.kind == "wall" and "measured" in one.effect else ""
        )
        told = one.kind == "hazard" or one.severity in ("error", "memory", "quality")
        text += f". Do: {one.do}" if one.do and told else ""
        out += _wrap(text, "  ", "      ")
    return out


def _command(answer: AnswerRecord) -> str:
    out = "\nStart it\n"
    # a flag and its value stay together; a long first word is broken at its own flags
    words = [f"--{part}" if number else part for word in answer.command[:1]
             for number, part in enumerate(word.split(" --"))] + list(answer.command[1:])  # fmt: skip
    lines = [f"  {words[0]}"]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 3 > WIDTH:
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}"
    out += "\n".join(lines) + "\n"
    for note in answer.command_notes:
        out += _wrap(note)
    return out


def _rests(answer: AnswerRecord) -> str:
    out = "\nIt rests on\n"
    if answer.basis:
        out += _wrap(f"speeds: {answer.basis} ({', '.join(answer.fits[:1])})")
    if answer.ranks:
        out += _wrap("memory: shapes of the model, rules of the engine; driver, context, graphs as observed "
                     "(calibration/fits/memory.toml)")  # fmt: skip
    for text in answer.asked.assumed:
        out += _wrap(f"taken: {text}")
    for text in answer.asked.notes:
        out += _wrap(text)
    out += _wrap(f"model: {answer.asked.checkpoint.source}")
    return out
