"""Text of the answer of `glmplan fit`: its page and the sections of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glmplan.catalog.engines.memory import load_memory_rule
from glmplan.costs.blocks.stack import is_indexed
from glmplan.planner.capacity import stage_ranks
from glmplan.planner.plan import as_well_known, evidence_words
from glmplan.planner.ranking import narrowing_words, unstated_of
from glmplan.planner.users import places_of
from glmplan.prediction.assumptions import NARROWED_BY
from glmplan.prediction.effects import KNOWN_AS
from glmplan.prediction.evidence import EVERYTHING, NOTHING
from glmplan.present.text import LIMITS, VERDICTS, WIDTH, count_of, halves, paragraph, span, time_span
from glmplan.units import GIB, duration, number

if TYPE_CHECKING:
    from glmplan.costs.memory.pool import MemoryBudget
    from glmplan.planner.capacity import Holding
    from glmplan.planner.plan import AnswerRecord, Change, Safe, TrafficRun
    from glmplan.prediction.predict import Figure

__all__ = [
    "NO_COPIES",
    "SECTIONS",
    "change_numbers",
    "change_words",
    "command_lines",
    "context_words",
    "fit_sections",
    "fit_text",
    "gpus_words",
    "host_words",
    "launch_lines",
    "lengths_words",
    "memory_table",
    "missing_words",
    "nearest_change",
    "nearest_words",
    "pool_lines",
    "run_rows",
    "safe_limits",
    "safe_words",
    "title_words",
    "traffic_section",
    "users_table",
]


#: width below which memory is printed without bars [-]
_NARROW = 80
#: width of the column of users [-]
_USERS = 7
#: marks of a bar, at usual width and on a narrower page [-]
_BAR, _SHORT_BAR = 32, 12
#: relative difference up to which the logged cache size counts as equal to the pool [-]
_SAME = 0.005


def memory_table(answer: AnswerRecord, width: int) -> str:
    """Return the memory of every GPU and the KV pool as text.

    GPUs with equal memory share a line, with a bar if the page is wide enough.
    """
    rows = answer.ranks
    capacities, usable = (
        " / ".join(dict.fromkeys(f"{getattr(row, name) / GIB:.1f}" for row in rows)) for name in ("capacity", "usable")
    )
    some = f", the engine uses up to {usable}" if rows[0].usable < 0.995 * rows[0].capacity else ""
    each = "all GPUs together" if answer.asked.machine.shares else "each GPU"
    title = f"Memory of {each}, of {capacities} GiB addressable{some}"
    out = paragraph(width, title, "")
    marks = _BAR if width >= WIDTH else _SHORT_BAR if width >= _NARROW else 0
    groups: list[tuple[list[int], MemoryBudget]] = []
    for place, row in enumerate(rows):
        if groups and _equal(groups[-1][1], row):
            groups[-1][0].append(place)
        else:
            groups.append(([place], row))
    shown = groups[:8]
    holding = answer.holding
    assert holding is not None
    lacks = holding.lacking > 0
    for places, row in shown:
        name = f"GPU {places[0]}" if len(places) == 1 else f"GPU {places[0]}-{places[-1]}"
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
        text = "# weights  + activations, graphs, buffers, reserve  = KV cache  . unused  ! exceeds the memory"
        out += paragraph(width, text)
    if lacks:
        text = f"short: memory missing for one request of {answer.asked.full_request:,} tokens"
        out += paragraph(width, text)
    if holding.host:
        out += paragraph(width, f"host memory: {host_words(holding)}")
    return out + "".join(paragraph(width, text) for text in pool_lines(answer))


def host_words(holding: Holding) -> str:
    """Return weights and KV pool in the memory of a host node."""
    kinds = (("weights", holding.host_weights), ("KV cache", holding.host_pool))
    parts = " + ".join(f"{name} {size / GIB:,.1f}" for name, size in kinds if size > 0)
    of = "" if holding.host_memory is None else f" of {holding.host_memory / GIB:,.0f}"
    lack = f"; {holding.host_short / GIB:.0f} GiB short" * (holding.host_short > 0)
    return f"{parts}{of} GiB{' (size unknown)' * (not of)}{lack}"


def pool_lines(answer: AnswerRecord) -> list[str]:
    """Return the size of the KV pool, and what the engine logs of it, as text.

    The length of the requests is named if it changes the number of tokens.
    """
    holding = answer.holding
    if holding is None or holding.pool.tokens <= 0:
        return []
    terms, pool = holding.terms, holding.pool
    low = f" ({pool.low:,.0f} to {pool.high:,.0f})" if pool.high > pool.tokens else ""
    per_token = max(row.per_token for row in answer.ranks)
    form = (
        f"{terms.kv.upper()} cache, {per_token:,.0f} B per token and GPU" if per_token else f"{terms.kv.upper()} cache"
    )
    form += f"; {holding.host_pool / GIB:,.1f} GiB of the pool in host memory" * (holding.host_pool > 0)
    # printed here because the cache size follows from the patch, not from the limitation alone
    if is_indexed(answer.asked.model) and not terms.indexer:
        form += "; patched dense attention without the indexer and its keys"
    lines = [f"KV pool {pool.tokens:,.0f} tokens{low}{lengths_words(answer)}; {form}"]
    ranks = terms.dp * terms.decoding
    if answer.printed and abs(answer.printed[0] * ranks / pool.tokens - 1.0) > _SAME:
        value, least, most = answer.printed
        each = " per data-parallel rank" if terms.dp > 1 else " per server" * (terms.decoding > 1)
        shares = load_memory_rule(answer.asked.engine).paging
        cause = "share its pages" if shares else "have pools of their own"
        counted = f"requests of {answer.launch_context:,} tokens" if shares else "the tokens of the other layers"
        lines.append(
            f"{answer.asked.engine} will log {value:,.0f} ({least:,.0f} to {most:,.0f}){each}: layers with windows "
            f"or states {cause}, and it counts {counted}"
        )
    return lines


def lengths_words(answer: AnswerRecord) -> str:
    """Return the length of the requests that a pool is for, if it matters."""
    by_length = answer.holding is not None and answer.holding.memory.by_length
    return f" in requests of {answer.asked.user_tokens:,}" * by_length


def _equal(one: MemoryBudget, other: MemoryBudget) -> bool:
    return one.weights == other.weights and one.cache == other.cache and one.activation == other.activation


def _other(row: MemoryBudget) -> float:
    return row.activation + row.graphs + row.communication + row.reserve


def _bar(row: MemoryBudget, length: int) -> str:
    # whatever is longer than the bar is cut
    most = 2.0 * max(row.capacity, 1.0)
    scale = length / max(row.capacity, 1.0)
    weights, other, cache = (min(one, most) for one in (sum(row.weights.values()), _other(row), row.cache))
    marks = "#" * round(weights * scale) + "+" * max(round(other * scale), 1)
    marks += "=" * max(round(cache * scale), int(cache > 0))
    if len(marks) > length:
        return marks[: length - 1] + "!"
    return marks.ljust(length, ".")


def _request(answer: AnswerRecord, holding: Holding, place: int) -> float:
    """Return the KV cache of one full-length request on a GPU, [B]."""
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
    """Return the table of metrics at each concurrency.

    On a narrow page columns are left out, in this order: running requests, context, TTFT, throughput per user.
    """
    asked = answer.asked
    title = f"Users, each with {asked.input_tokens:,} tokens in and {asked.output_tokens:,} out (90 % interval)"
    columns = _columns(answer, width)
    out = (
        paragraph(width, title, "")
        + "  users"
        + "".join(f"{column.title:>{column.width}}" for column in columns)
        + "\n"
    )
    for place, row in enumerate(answer.users):
        out += f"  {row.users:5}" + "".join(f"{column.cells[place]:>{column.width}}" for column in columns) + "\n"
    out += paragraph(
        width,
        "decode: rate after the first token; per user: total over users, with prompt and wait",
    )
    waiting = [row for row in answer.users if row.running < row.users]
    if waiting:
        holding = answer.holding
        by_places = holding is None or waiting[0].running >= places_of(answer.asked, holding)
        why = "max_num_seqs" if by_places else "the KV pool is full"
        out += paragraph(width, f"from {waiting[0].users} users on requests wait ({why}); TTFT includes the wait")
    outside = sorted({part for row in answer.users for part in row.outside.split("; ") if part})
    if outside:
        out += paragraph(width, f"extrapolated: {_shorter(outside)}")
    return out


def _shorter(parts: list[str]) -> str:
    """Return texts as one line, without those that differ only in a number."""
    seen: dict[str, str] = {}
    for part in parts:
        seen.setdefault(part.split(" ")[0], part)
    return "; ".join(seen.values())


@dataclass(frozen=True, slots=True)
class _Column:
    """A column after the number of users: title, width, a cell per row."""

    title: str
    width: int
    cells: list[str]


def _columns(answer: AnswerRecord, width: int) -> list[_Column]:
    """Return the columns that fit the page, each value with its interval."""
    rows = answer.users
    kept = {
        "running": _Column("running", 9, [str(row.running) for row in rows]),
        "first": _metrics("first token, s", [row.ttft for row in rows]),
        "decode": _metrics("decode tok/s", [row.user_rate for row in rows]),
        "all": _metrics("tok/s total", [row.total_rate for row in rows]),
        "each": _column("per user", [number(row.each_rate.value) for row in rows]),
        "context": _column("context each", [f"{row.context:,}" for row in rows]),
    }
    if all(row.ttft is None for row in rows):
        del kept["first"]
    for name in ("running", "context", "first", "each", "decode"):
        if _USERS + sum(one.width for one in kept.values()) > width:
            kept.pop(name, None)
    return list(kept.values())


def _metrics(title: str, figures: Sequence[Figure | None]) -> _Column:
    """Return a column of metrics with their intervals."""
    values = ["-" if metric is None else number(metric.value) for metric in figures]
    spans = ["" if metric is None else _range(metric) for metric in figures]
    value, interval = max(map(len, values)), max(map(len, spans))
    return _column(title, [f"{one:>{value}} {other:>{interval}}" for one, other in zip(values, spans, strict=True)])


def _column(title: str, cells: list[str]) -> _Column:
    return _Column(title, max(len(title), *map(len, cells)) + 2, cells)


def _range(figure: Figure) -> str:
    return f"{number(figure.low)}-{number(figure.high)}"


def safe_limits(answer: AnswerRecord, width: int) -> str:
    """Return the safe number of users and every limit on it as text.

    The smallest limit is marked. Traffic that needs a simulation is referred to `glmplan safe`.
    """
    safe = answer.safe
    if safe is None:
        return paragraph(width, "Safe users: use `glmplan safe`, which simulates this traffic", "")
    out = paragraph(width, f"Safe users: {safe_words(safe)}", "")
    for limit in safe.limits:
        mark = ">" if limit.name == safe.limit else " "
        out += paragraph(width, f"{mark} {LIMITS[limit.name]:12}{limit.users:7,}  {limit.words}", "  ", " " * 25)
    return out


def safe_words(safe: Safe) -> str:
    """Return the users that meet the SLO by probability, the largest first.

    Examples
    --------
    >>> from glmplan.planner.plan import Safe
    >>> safe_words(Safe(5, 30, "tpot", (), 0.1, 0.95, ((0.95, 5), (0.8, 12), (0.5, 30))))
    '5 with 95 % probability, 12 with 80 %, 30 with 50 %'
    """
    if safe.limit == "hazard":
        return "0: not safe"
    at = safe.at or ((safe.probability, safe.users),)
    (share, users), *others = at
    words = [f"{users:,} with {100 * share:.3g} % probability"]
    return ", ".join([*words, *(f"{users:,} with {100 * share:.3g} %" for share, users in others)])


def gpus_words(holding: Holding) -> str:
    """Return the GPUs whose memory limits a plan."""
    if holding.terms.accelerators == 1:
        return "GPU 0"
    ranks = stage_ranks(holding.terms, holding.stage)
    if len(ranks) == holding.terms.server:
        return "each GPU"
    in_a_row = list(ranks) == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 1
    named = f"{ranks[0]}-{ranks[-1]}" if in_a_row else ", ".join(map(str, ranks))
    return f"GPU {named} (pipeline stage {holding.stage}, 0-based)"


#: label of `TrafficRun.no_copies`
NO_COPIES = "CPU KV offload is not available"


def run_rows(run: TrafficRun) -> list[tuple[str, str]]:
    """Return the simulated metrics as labels and texts.

    Latencies of a request, throughput with KV cache use, and overload if more requests arrive than are served.
    """
    each = f"first token {time_span(run.ttft)}, p95 {duration(run.ttft_p95)}"
    if run.tpot.value:
        each += f"; then {number(1.0 / run.tpot.value)} tok/s"
    each += f"; end-to-end {time_span(run.e2e)}"
    rows = [("latency", each), ("throughput", f"{span(run.total_rate)} tok/s; {_cache_words(run)}")]
    if run.most_rate is not None:
        what = f"at most {number(run.most_rate)} requests/s are served: the queue grows without bound; "
        rows.append(("overload", f"{what}latencies of the first {count_of(run.requests, 'request')}"))
    return rows


def _cache_words(run: TrafficRun) -> str:
    words = []
    if run.cached is not None:
        low = f" ({run.cached_low:.0%} in the pessimistic case)" if run.cached - run.cached_low >= 0.01 else ""
        words.append(f"prefix-cache hit rate {run.cached:.0%}{low}")
    words += [f"{run.preempted:.2g} preemptions per request"] * (run.preempted >= 0.005)
    words.append(f"KV pool at most {run.full:.0%} full")
    words += [f"{count_of(run.rejected, 'request')} rejected as too long"] * bool(run.rejected)
    words += [f"{count_of(run.left, 'request')} cancelled before the first token"] * bool(run.left)
    return ", ".join(words)


def change_words(plan: TrafficRun, change: TrafficRun) -> str:
    """Return a change with its metrics compared to those of the plan."""
    found = f"{change.what}, {change.ask}" if change.ask else change.what
    layout = f"{change.layout}, " if change.layout != plan.layout and change.layout not in change.what else ""
    words = f"{found}: {layout}end-to-end {duration(change.e2e.value)} instead of {duration(plan.e2e.value)}"
    words += f", {number(change.total_rate.value)} tok/s total"
    if change.cached is not None:
        words += f", prefix-cache hit rate {change.cached:.0%}"
    return words + _evidence(plan, change)


def _evidence(plan: TrafficRun, change: TrafficRun) -> str:
    if as_well_known(change.knowledge, plan.knowledge):
        return ""
    return f"; weaker evidence: {KNOWN_AS.get(change.knowledge, 'unknown')}"


def traffic_section(answer: AnswerRecord, width: int) -> str:
    """Return the plan under named traffic, and useful changes, as text."""
    plan, *others = answer.runs
    out = paragraph(width, f"Under traffic: {answer.traffic}", "")
    for label, text in run_rows(plan):
        out += paragraph(width, f"{label:14}{text}", "  ", " " * 16)
    out += paragraph(
        width,
        f"simulated: {plan.requests:,} requests after the warm-up; interval: runs with slow steps and a small KV pool, "
        "and with fast steps and a large one",
    )
    for other in others:
        out += paragraph(width, change_words(plan, other), "  ", "      ")
    if plan.no_copies:
        out += paragraph(width, f"{NO_COPIES}: {plan.no_copies}", "  ", "      ")
    if not others:
        out += paragraph(width, "no evaluated change shortens the end-to-end latency by 5 %")
    return out


#: sections of the page after its head, in their order
SECTIONS = ("memory", "traffic", "users", "layouts", "changes", "warnings", "start", "basis")


def fit_text(answer: AnswerRecord, width: int = WIDTH) -> str:
    """Return the whole answer as text: head and sections."""
    return "\n".join([_head(answer, width), *fit_sections(answer, width).values()])


def fit_sections(answer: AnswerRecord, width: int = WIDTH) -> dict[str, str]:
    """Return the sections of the page by name, without empty ones.

    Names are those of `SECTIONS`.
    """
    parts = {
        "memory": memory_table(answer, width) if answer.ranks else "",
        "traffic": traffic_section(answer, width) if answer.runs else "",
        "users": users_table(answer, width) + "\n" + safe_limits(answer, width) if answer.users else "",
        "layouts": _runners(answer, width) if answer.runners or answer.left_out else "",
        "changes": _changes(answer, width) if answer.changes else "",
        "warnings": _warnings(answer, width) if answer.warnings else "",
        "start": _command(answer, width) if answer.command else "",
        "basis": _rests(answer, width),
    }
    return {name: text for name, text in parts.items() if text}


def title_words(answer: AnswerRecord) -> str:
    """Return model, machine and engine of a request as the title."""
    asked = answer.asked
    machine = asked.machine
    count = "" if machine.mixed else f"{machine.count} × "
    title = f"{asked.model.name} {asked.checkpoint.name} on {count}{machine.accelerator.full_name}"
    if machine.named:
        title += f" ({machine.host.name})"
    version = f" {asked.runs_as}" if asked.runs_as else ""
    return f"{title}, {asked.engine}{version}"


def _head(answer: AnswerRecord, width: int) -> str:
    out = paragraph(width, title_words(answer), "", "  ") + "\n"
    headline = answer.headline
    word = VERDICTS[answer.verdict]
    for known in ("fits with ", "does not fit: ", "tight: "):
        headline = headline.removeprefix(known)
    out += paragraph(
        width, headline if answer.verdict == "unknown" else f"{word}  {headline}", "", " " * (len(word) + 2)
    )
    out += paragraph(width, f"answer        {answer.reply.words}", "  ", " " * 16)
    if answer.holding is not None:
        out += paragraph(width, f"KV cache      {answer.holding.terms.kv.upper()}: {answer.kv_why}", "  ", " " * 16)
    for reason in answer.reasons:
        out += paragraph(width, reason)
    if answer.verdict == "does_not_fit" and answer.changes:
        out += paragraph(width, f"nearest plan that fits: {nearest_words(answer)}")
    if answer.users:
        if answer.users[0].users == 1 and answer.users[0].user_rate is not None:
            out += paragraph(width, f"one user      {span(answer.users[0].user_rate)} tok/s decode")
        if (safe := answer.safe) is not None:
            limit = next(one for one in safe.limits if one.name == safe.limit)
            most = f"safe users    {safe_words(safe)}; limit: {LIMITS[safe.limit]}, {limit.words}"
            out += paragraph(width, most, "  ", " " * 16)
        out += paragraph(width, f"context       {context_words(answer)}", "  ", " " * 16)
        out += paragraph(width, f"step time     {answer.binding}", "  ", " " * 16)
    if answer.unknown and answer.verdict != "unknown":
        out += paragraph(width, f"unknown: {', '.join(answer.unknown)}; {missing_words(answer)}")
    return out


def missing_words(answer: AnswerRecord) -> str:
    """Return the metrics that an unknown fact prevents."""
    if not answer.users:
        return "no speed can be predicted" + " for this plan" * any(change.user_rate for change in answer.changes)
    if answer.users[0].ttft is not None:
        return "only the memory of the accelerators is modelled"
    return "speeds by memory bandwidth only, an upper bound at high concurrency; prefill and TTFT unknown"


def context_words(answer: AnswerRecord) -> str:
    """Return the max. context of a single request with its confidence."""
    limit = answer.asked.longest_request
    if answer.context_low >= limit:
        whose = "the model's limit" if limit == answer.asked.model.max_context else "the requested limit"
        return f"max. {limit:,} tokens, {whose}"
    low = f"{answer.context_low:,} at 95 % confidence" if answer.context_low else "none at 95 % confidence"
    return f"max. {answer.context:,} tokens expected, {low}"


def _runners(answer: AnswerRecord, width: int) -> str:
    holding = answer.holding
    assert holding is not None
    out = "Layouts\n"
    if answer.verdict != "does_not_fit" and answer.users:
        out += f"  {holding.terms.name:18} chosen\n"
    else:
        out += f"  {holding.terms.name:18} nearest\n"
    for runner in answer.runners:
        out += paragraph(width, f"{runner.layout:18} {runner.why}", "  ", " " * 21)
    if answer.others:
        out += paragraph(width, f"and {answer.others} more")
    for text in answer.left_out:
        out += paragraph(width, f"not evaluated: {text}")
    return out


def change_numbers(answer: AnswerRecord, change: Change) -> str:
    """Return the numbers of a change after a colon; empty if not computed."""
    from glmplan.planner.ranking import shown_users

    words = []
    if change.user_rate:
        words.append(f"decode {number(change.user_rate)} tok/s for one user")
        words.append(f"{number(change.total_rate)} tok/s total at {shown_users(answer.asked)}")
    if change.pool_tokens:
        words.append(f"KV pool {change.pool_tokens:,.0f} tokens")
    return (": " + ", ".join(words)) if words else ""


def nearest_change(answer: AnswerRecord) -> Change:
    """Return the first change with which the model fits, else the first."""
    return next((change for change in answer.changes if change.verdict == "fits"), answer.changes[0])


def nearest_words(answer: AnswerRecord) -> str:
    """Return the nearest plan that fits: change, layout and numbers."""
    nearest = nearest_change(answer)
    return f"{nearest.what}, {nearest.layout}{change_numbers(answer, nearest)}"


def _changes(answer: AnswerRecord, width: int) -> str:
    out = "Possible changes (each computed)\n"
    for change in answer.changes:
        verdict = VERDICTS[change.verdict].lower()
        layout = f" {change.layout}" if change.name != "layout" else ""
        notes = [text for text in (change.note, evidence_words(answer, change)) if text]
        note = f" ({'; '.join(notes)})" if notes else ""
        out += paragraph(
            width,
            f"{change.what}: {verdict}{layout}{change_numbers(answer, change).replace(':', ',', 1)}{note}",
            "  ",
            "      ",
        )
    return out


def _warnings(answer: AnswerRecord, width: int) -> str:
    out = "Warnings\n"
    for warning in answer.warnings:
        text = f"[{warning.severity}] {warning.title}"
        text += f"; {warning.applied}" if warning.applied else ""
        text += f": {warning.effect}" if warning.kind != "limitation" else ""
        text += (
            "; measured" + warning.effect.split("measured", 1)[1]
            if warning.kind == "limitation" and "measured" in warning.effect
            else ""
        )
        with_advice = warning.kind != "limitation" or warning.severity in ("error", "memory", "quality", "unknown")
        text += f". Do: {warning.do}" if warning.do and with_advice else ""
        out += paragraph(width, text, "  ", "      ")
    return out


def launch_lines(answer: AnswerRecord, width: int) -> list[str]:
    """Return the lines of the launch command, see `command_lines`."""
    return command_lines(answer.command, width)


def command_lines(command: tuple[str, ...], width: int) -> list[str]:
    """Return a command as shell lines of at most `width` columns.

    A flag and its value stay together if both fit. A longer word has a line of its own.
    """
    words: list[str] = []
    for group in command:
        for place, part in enumerate(group.split(" --")):
            flag = f"--{part}" if place else part
            # 6 columns: indent and backslash
            words += flag.split(" ", 1) if flag.startswith("--") and len(flag) + 6 > width else [flag]
    lines = [f"  {words[0]}"]
    for word in words[1:]:
        if len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}"
    return lines


def _command(answer: AnswerRecord, width: int) -> str:
    out = "\n".join(["Start it", *launch_lines(answer, width)]) + "\n"
    for note in answer.command_notes:
        out += paragraph(width, note)
    return out


def _stated_text(unstated: tuple[str, ...], stating: Mapping[str, Mapping[str, float]]) -> str:
    """Return the open settings, and what stating them narrows intervals to."""
    if not unstated:
        return "settings: all stated by the launch command; intervals are those of rows that state all"
    options = [f"{kind} ({NARROWED_BY[kind]})" if kind in NARROWED_BY else kind for kind in unstated]
    text = f"settings: not stated: {', '.join(options)}"
    if not stating:
        return text
    ratios = {name: found["decode"] for name, found in stating.items()}
    now, least = ratios[NOTHING], ratios[EVERYTHING]
    return f"{text}; upper over lower bound of decoding for one user {now:.2f}, {least:.2f} with everything stated"


def _rests(answer: AnswerRecord, width: int) -> str:
    out = "Evidence\n"
    if answer.evidence:
        out += paragraph(width, f"{answer.evidence}: this model on this accelerator with {answer.asked.engine}")
    if answer.basis:
        out += paragraph(width, f"speeds: {answer.basis} ({', '.join(answer.fits[:1])})")
    if answer.narrowing is not None:
        out += paragraph(width, f"recommended benchmark {narrowing_words(answer.narrowing)}")
        out += "".join(f"  {line}\n" for line in command_lines((answer.narrowing.command,), width - 2))
    if answer.ranks:
        out += paragraph(width, "memory: model shapes and engine rules; driver, context and graphs as measured "
                     "(calibration/fits/memory.toml)")  # fmt: skip
    unstated = unstated_of(answer.asked)
    if answer.basis:
        out += paragraph(width, _stated_text(unstated, answer.stating))
    if answer.users and (rate := answer.users[0].user_rate) is not None:
        out += paragraph(width, f"decode of one user: {halves(rate)} tok/s")
    for text in answer.asked.assumed:
        out += paragraph(width, f"assumed: {text}")
    for text in answer.asked.notes:
        out += paragraph(width, text)
    out += paragraph(width, f"model: {answer.asked.checkpoint.source}")
    return out
