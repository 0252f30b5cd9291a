"""The answer of `glmplan fit` as text: the whole page, and the parts that it consists of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glmplan.plan.answer_tables import memory_table, safe_limits, users_table
from glmplan.plan.gains import evidence_words
from glmplan.plan.narrowing import narrowing_words
from glmplan.plan.text import LIMITS, VERDICTS, WIDTH, number, paragraph, span
from glmplan.plan.traffic_text import traffic_section

if TYPE_CHECKING:
    from glmplan.plan.plan import AnswerRecord, Change

__all__ = [
    "SECTIONS",
    "change_numbers",
    "command_lines",
    "context_words",
    "fit_sections",
    "fit_text",
    "launch_lines",
    "missing_words",
    "nearest_change",
    "nearest_words",
    "title_words",
]

#: parts of the page after its head, in their order
SECTIONS = ("memory", "traffic", "users", "layouts", "changes", "warnings", "start", "basis")


def fit_text(answer: AnswerRecord, width: int = WIDTH) -> str:
    """Write the whole answer as text.

    Parameters
    ----------
    answer : AnswerRecord
        The answer.
    width : int, optional
        Columns, 60 or more, [-]

    Returns
    -------
    str
        Its head, and all its parts with an empty line between them.
    """
    return "\n".join([_head(answer, width), *fit_sections(answer, width).values()])


def fit_sections(answer: AnswerRecord, width: int = WIDTH) -> dict[str, str]:
    """Write the parts of the page.

    Parameters
    ----------
    answer : AnswerRecord
        The answer.
    width : int, optional
        Columns, 60 or more, [-]

    Returns
    -------
    dict of str to str
        Name, one of `SECTIONS` → text; without the parts that this answer has not.
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
    """Say what the question was about.

    Parameters
    ----------
    answer : AnswerRecord
        The answer.

    Returns
    -------
    str
        Model, checkpoint, machine and engine.
    """
    asked = answer.asked
    machine = asked.machine
    title = f"{asked.model.name} {asked.checkpoint.name} on {machine.count} × {machine.accelerator.full_name}"
    if machine.named:
        title += f" ({machine.host.name})"
    version = f" {asked.runs_as}" if asked.runs_as else ""
    return f"{title}, {asked.engine}{version}"


def _head(answer: AnswerRecord, width: int) -> str:
    out = paragraph(width, title_words(answer), "", "  ") + "\n"
    said = answer.headline
    word = VERDICTS[answer.verdict]
    for known in ("fits with ", "does not fit: ", "tight: "):
        said = said.removeprefix(known)
    out += paragraph(width, said if answer.verdict == "unknown" else f"{word}  {said}", "", " " * (len(word) + 2))
    if answer.holding is not None:
        out += paragraph(width, f"KV cache      {answer.holding.terms.kv.upper()}: {answer.kv_why}", "  ", " " * 16)
    for reason in answer.reasons:
        out += paragraph(width, reason)
    if answer.verdict == "does_not_fit" and answer.changes:
        out += paragraph(width, f"nearest plan that works: {nearest_words(answer)}")
    if answer.users:
        if answer.users[0].users == 1 and answer.users[0].user_rate is not None:
            out += paragraph(width, f"one user      {span(answer.users[0].user_rate)} tok/s decode")
        if (safe := answer.safe) is not None:
            limit = next(one for one in safe.limits if one.name == safe.limit)
            most = f"safe users    {safe.users} (expected {safe.expected}); limit {LIMITS[safe.limit]}: {limit.words}"
            out += paragraph(width, most, "  ", " " * 16)
        out += paragraph(width, f"context       {context_words(answer)}", "  ", " " * 16)
        out += paragraph(width, f"the step      {answer.binding}", "  ", " " * 16)
    if answer.unknown and answer.verdict != "unknown":
        out += paragraph(width, f"unknown: {', '.join(answer.unknown)}; {missing_words(answer)}")
    return out


def missing_words(answer: AnswerRecord) -> str:
    """Say what an unknown fact leaves out.

    Parameters
    ----------
    answer : AnswerRecord
        An answer with an unknown fact.

    Returns
    -------
    str
        What the answer cannot give.
    """
    if not answer.users:
        return "no speed can be given" + " of this plan" * any(one.user_rate for one in answer.changes)
    if answer.users[0].ttft is not None:
        return "the accelerators count by their memory only"
    return "the speeds are those of memory alone: an upper bound for many users; prefill and TTFT are unknown"


def context_words(answer: AnswerRecord) -> str:
    """Say how long one request may be.

    Parameters
    ----------
    answer : AnswerRecord
        The answer.

    Returns
    -------
    str
        The mean and what is sure, or whose limit it is.
    """
    limit = answer.asked.longest_request
    if answer.context_low >= limit:
        whose = "the model's limit" if limit == answer.asked.model.max_context else "the limit asked for"
        return f"one request of {limit:,} tokens fits: {whose}"
    sure = f"{answer.context_low:,} tokens for sure" if answer.context_low else "not sure"
    return f"one request up to {answer.context:,} tokens, {sure}"


def _runners(answer: AnswerRecord, width: int) -> str:
    holding = answer.holding
    assert holding is not None
    out = "Layouts\n"
    if answer.verdict != "does_not_fit" and answer.users:
        out += f"  {holding.terms.name:18} chosen\n"
    else:
        out += f"  {holding.terms.name:18} nearest\n"
    for one in answer.runners:
        out += paragraph(width, f"{one.layout:18} {one.why}", "  ", " " * 21)
    if answer.others:
        out += paragraph(width, f"and {answer.others} more")
    for text in answer.left_out:
        out += paragraph(width, f"not looked at: {text}")
    return out


def change_numbers(answer: AnswerRecord, change: Change) -> str:
    """Write the numbers of a change.

    Parameters
    ----------
    answer : AnswerRecord
        The answer.
    change : Change
        One of its changes.

    Returns
    -------
    str
        After a colon; empty where nothing was computed.
    """
    from glmplan.plan.ranking import shown_users

    words = []
    if change.user_rate:
        words.append(f"decode {number(change.user_rate)} tok/s for one user")
        words.append(f"{number(change.total_rate)} in all for {shown_users(answer.asked)}")
    if change.pool_tokens:
        words.append(f"pool {change.pool_tokens:,.0f} tokens")
    return (": " + ", ".join(words)) if words else ""


def nearest_change(answer: AnswerRecord) -> Change:
    """Find the nearest plan that works.

    Parameters
    ----------
    answer : AnswerRecord
        An answer with changes.

    Returns
    -------
    Change
        The first change with which the model fits; where there is none the first of all.
    """
    return next((one for one in answer.changes if one.verdict == "fits"), answer.changes[0])


def nearest_words(answer: AnswerRecord) -> str:
    """Write the nearest plan that works, with its numbers.

    Parameters
    ----------
    answer : AnswerRecord
        An answer with changes.

    Returns
    -------
    str
        What it is, its layout and its numbers.
    """
    nearest = nearest_change(answer)
    return f"{nearest.what}, {nearest.layout}{change_numbers(answer, nearest)}"


def _changes(answer: AnswerRecord, width: int) -> str:
    out = "What would change it (each computed)\n"
    for one in answer.changes:
        verdict = VERDICTS[one.verdict].lower()
        layout = f" {one.layout}" if one.name != "layout" else ""
        said = [text for text in (one.note, evidence_words(answer, one)) if text]
        note = f" ({'; '.join(said)})" if said else ""
        out += paragraph(
            width,
            f"{one.what}: {verdict}{layout}{change_numbers(answer, one).replace(':', ',', 1)}{note}",
            "  ",
            "      ",
        )
    return out


def _warnings(answer: AnswerRecord, width: int) -> str:
    out = "Warnings\n"
    for one in answer.warnings:
        text = f"[{one.severity}] {one.title}"
        text += f"; {one.applied}" if one.applied else ""
        text += f": {one.effect}" if one.kind != "wall" else ""
        text += (
            "; measured" + one.effect.split("measured", 1)[1] if one.kind == "wall" and "measured" in one.effect else ""
        )
        told = one.kind != "wall" or one.severity in ("error", "memory", "quality", "unknown")
        text += f". Do: {one.do}" if one.do and told else ""
        out += paragraph(width, text, "  ", "      ")
    return out


def launch_lines(answer: AnswerRecord, width: int) -> list[str]:
    """Write the command that starts the engine, to be copied.

    Parameters
    ----------
    answer : AnswerRecord
        An answer with a command.
    width : int
        Columns, which no line exceeds unless one word does, [-]

    Returns
    -------
    list of str
        Lines; a flag and its value stay together where there is room for both.
    """
    return command_lines(answer.command, width)


def command_lines(command: tuple[str, ...], width: int) -> list[str]:
    """Write a command, to be copied.

    Parameters
    ----------
    command : tuple of str
        Its words, or parts of several words.
    width : int
        Columns, which no line exceeds unless one word does, [-]

    Returns
    -------
    list of str
        Lines; a flag and its value stay together where there is room for both.
    """
    words: list[str] = []
    for group in command:
        for place, part in enumerate(group.split(" --")):
            flag = f"--{part}" if place else part
            # what stands after its indent and before its backslash
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


def _rests(answer: AnswerRecord, width: int) -> str:
    out = "It rests on\n"
    if answer.evidence:
        out += paragraph(width, f"this model on this part with {answer.asked.engine}: {answer.evidence}")
    if answer.basis:
        out += paragraph(width, f"speeds: {answer.basis} ({', '.join(answer.fits[:1])})")
    if answer.narrowing is not None:
        out += paragraph(width, f"measure {narrowing_words(answer.narrowing)}")
        out += "".join(f"  {line}\n" for line in command_lines((answer.narrowing.command,), width - 2))
    if answer.ranks:
        out += paragraph(width, "memory: shapes of the model, rules of the engine; driver, context, graphs as observed "
                     "(calibration/fits/memory.toml)")  # fmt: skip
    for text in answer.asked.assumed:
        out += paragraph(width, f"taken: {text}")
    for text in answer.asked.notes:
        out += paragraph(width, text)
    out += paragraph(width, f"model: {answer.asked.checkpoint.source}")
    return out
