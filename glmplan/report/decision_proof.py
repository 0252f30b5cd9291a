"""What a report's answer stands on: risks, assumptions with their sources, evidence, and the check after delivery."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from glmplan.plan.text import number
from glmplan.plan.validate_command import DEGREES, degrees_set, validate_command
from glmplan.report.considered import Considered, row_at
from glmplan.report.document import Block, Code, Heading, Points, Table, Text
from glmplan.sizing.money import Money

__all__ = ["assumptions", "checks", "evidence", "risks"]

#: the worst first
_ORDER = ("error", "danger", "warning", "memory", "quality", "unknown", "slow", "fallback", "note")


def risks(plans: Sequence[Considered]) -> list[Block]:
    """Walls, hazards and what nobody published.

    Parameters
    ----------
    plans : sequence of Considered
        The plans.

    Returns
    -------
    list of Block
        A part of the report.
    """
    blocks: list[Block] = [Heading("Risks")]
    for one in plans:
        told = sorted(
            one.record["warnings"], key=lambda w: _ORDER.index(w["severity"]) if w["severity"] in _ORDER else 99
        )
        rows = tuple((w["title"], w["severity"], w["effect"] or w["applied"], w["do"], w["source"]) for w in told)
        if rows:
            heads = ("risk", "how bad", "what happens", "what to do", "source")
            blocks.append(Table(f"{one.name}: walls of the engine and hazards of the machine", heads, rows,
                                left=(0, 1, 2, 3, 4)))  # fmt: skip
        else:
            blocks.append(Text(f"{one.name}: no wall of the engine and no hazard of the machine is known."))
        missing = [*one.record["unknown"], *one.record["reasons"]]
        if missing:
            blocks.append(Points(tuple(f"{one.name}: {text}" for text in missing)))
        stale = [text for way in one.ways for text in way.stale]
        if stale:
            blocks.append(Points(tuple(f"old price: {text}" for text in dict.fromkeys(stale))))
    return blocks


def assumptions(plans: Sequence[Considered], money: Money) -> list[Block]:
    """What was taken for granted, with where it is from.

    Parameters
    ----------
    plans : sequence of Considered
        The plans.
    money : Money
        Prices and terms.

    Returns
    -------
    list of Block
        A part of the report.
    """
    taken = dict.fromkeys(text for one in plans for text in one.record["assumed"])
    rows = []
    for one in plans:
        asked = one.record["question"]
        source = asked.get("source") or asked["repository"] or "given with the question"
        rows.append((f"{asked['model']} {asked['checkpoint']}", "weights", source))
    fits = ", ".join(dict.fromkeys(file for one in plans for file in one.record["fits"])) or "formulas alone"
    rows.append(("speeds and memory", fits, "runs in calibration/measurements; sources in calibration/sources.toml"))
    rows += [row for one in plans for row in _prices(one)]
    rows += _terms(money)
    blocks: list[Block] = [Heading("Assumptions and sources")]
    if taken:
        blocks.append(Points(tuple(taken)))
    heads = ("what", "taken as", "source")
    blocks.append(Table("Facts and prices", heads, tuple(dict.fromkeys(rows)), left=(0, 1, 2)))
    notes = dict.fromkeys(money.terms.notes)
    return [*blocks, *([Points(tuple(notes))] if notes else [])]


def _prices(one: Considered) -> list[tuple[str, str, str]]:
    bought = next((way.purchase for way in one.ways if way.purchase is not None), None)
    found = []
    for line in bought.lines if bought is not None else ():
        said = line.quotation
        if said is None:
            found.append((line.name, "no price", line.note))
        else:
            sources = sorted({price.source for price in said.entries})
            more = f" and {len(sources) - 2} more" if len(sources) > 2 else ""
            found.append((line.name, f"{line.count:g} × {said.words}", "; ".join(sources[:2]) + more))
    return found


def _terms(money: Money) -> list[tuple[str, str, str]]:
    from glmplan.facts.catalogue.prices import load_terms

    found = []
    for name, term in load_terms().items():
        used = getattr(money.terms, name, None)
        if used is None or not used:
            continue
        source = f"{term.source}, {term.date}" if used == term.value else "given with the question"
        found.append((term.what, f"{used:g} {term.unit}".strip(), source))
    return found


def evidence(plans: Sequence[Considered], load: int | None) -> list[Block]:
    """How sure the answer is, and how to know it better.

    Parameters
    ----------
    plans : sequence of Considered
        The plans.
    load : int or None
        Users at once at which plans are compared, [-]

    Returns
    -------
    list of Block
        A part of the report.
    """
    blocks: list[Block] = [Heading("How sure")]
    items = []
    for one in plans:
        record = one.record
        if record["evidence"]:
            items.append(f"{one.name}, served by {record['question']['engine']}: {record['evidence']}")
        if record["basis"]:
            items.append(f"{one.name}, speeds: {record['basis']}")
        row = None if load is None else row_at(record, load)
        if row is not None and row["out_of_domain"]:
            items.append(f"{one.name}, outside of what was measured: {row['out_of_domain']}")
    items.append(
        "every range is a 90 % interval: of ten figures that are measured later, nine should lie inside; how often "
        "they did on runs that no fit had seen stands in docs/accuracy.md"
    )
    items.append("the safe number of users takes the bad end of each interval, the other one the middle")
    blocks.append(Points(tuple(items)))
    if not plans[0].works:
        return blocks
    asked = plans[0].record["question"]
    blocks.append(Text("What to measure or to ask first, because it moves the answer most:"))
    blocks.append(
        Code(shlex.join(["glmplan", "sensitivity", f"{asked['model']}-{asked['checkpoint']}", "--on", asked["on"]]))
    )
    return blocks


def checks(one: Considered, load: int | None) -> list[Block]:
    """How to check the machine after delivery: the command, and what must come out.

    Parameters
    ----------
    one : Considered
        The plan.
    load : int or None
        Largest number of users that is checked, [-]

    Returns
    -------
    list of Block
        A part of the report.

    Notes
    -----
    Bounds are the bad ends of the 90 % intervals: what lies beyond them is more than the prediction's own doubt. A
    seller is held to a promise instead, which `glmplan size --acceptance-test` writes.
    """
    record, plan = one.record, one.record["plan"]
    blocks: list[Block] = [Heading("How to check after delivery")]
    if not one.works or plan is None or load is None:
        return [*blocks, Text("There is nothing to start, so there is nothing to check.")]
    asked = record["question"]
    rows = [row for row in record["users"] if row["users"] <= load]
    facts: dict[str, object] = {"weights": asked["checkpoint"], "engine": asked["engine"]}
    command = validate_command(
        asked["model"],
        asked["on"],
        {**facts, **degrees_set({name: int(plan[name]) for name in DEGREES})},
        users=[int(row["users"]) for row in rows],
        lengths=(int(asked["input_tokens"]), int(asked["output_tokens"])),
        more="--fail-over interval",
    )
    blocks += [Text("Start the engine on the machine:"), Code(record["command"])]
    words = "Measure it from beside it; the exit code is 1 where more figures lie outside than chance allows:"
    blocks += [Text(words), Code(command)]
    bounds = tuple(
        (f"{row['users']:,}", _end(row["ttft_mean_ms"], "high"), _end(row["tpot_mean_ms"], "high"),
         _end(row["output_tokens_per_s"], "low")) for row in rows
    )  # fmt: skip
    heads = (
        "users at once",
        "TTFT, mean, at most [ms]",
        "TPOT, mean, at most [ms]",
        "all together, at least [token/s]",
    )
    blocks.append(Table("Beyond these the machine is not what was planned", heads, bounds))
    printed = record["memory"]["printed_tokens"] if record["memory"] else None
    if printed:
        ends = f"{printed['low']:,} to {printed['high']:,} tokens, {printed['value']:,} in the mean"
        blocks.append(Text(f"At its start the engine prints the size of its cache; expected are {ends}."))
    return blocks


def _end(figure: Any, end: str) -> str:
    return "unknown" if figure is None else number(figure[end])
