"""A report for a decision: question, answer, options, risks, assumptions, how sure, how to check after delivery.

It is made of the records that `glmplan fit --format json` writes, so its figures are those of `fit`; costs are those of
`glmplan.purchase`.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glmplan.catalog.files import write_atomically
from glmplan.errors import SpecError
from glmplan.extras import check_extra, wanted
from glmplan.planner.text import LIMITS, number, verdict_words
from glmplan.planner.users import TARGET_TPOT
from glmplan.present.decision_parts import (
    Considered,
    assumptions,
    at_one_term,
    checks,
    considered,
    cost_drawing,
    evidence,
    fullest,
    machine_drawing,
    memory_drawing,
    month_lines,
    risks,
    row_at,
    users_drawing,
)
from glmplan.present.page import Block, Code, Document, Drawing, Heading, Points, Table, Text, html_of, markdown_of
from glmplan.purchase.money import Money

__all__ = ["FORMS", "answer_sentences", "check_report", "common_load", "decision", "write_report"]


#: the speed at which `fit` calls a user safe, as a promise
_SLO = f"tpot p95 < {1000 * TARGET_TPOT:g} ms"
_VERDICTS = {"fits": "Yes", "tight": "Narrowly", "does_not_fit": "No", "unknown": "Unknown"}


def decision(
    records: Sequence[Mapping[str, Any]],
    money: Money,
    *,
    causes: Sequence[tuple[str, Sequence[str]]] = (),
    pictures: bool = True,
) -> Document:
    """Write a report.

    - `records`: Plans, the one that is asked about first.
    - `causes`: What makes each of the others differ from the first, in words.
    - `pictures`: Whether it has pictures; a form without them need not describe them.
    - Returns: The report; `glmplan.present.page` writes it as HTML or Markdown.
    """
    money = at_one_term(records, money)
    plans = [considered(record, money) for record in records]
    first, load = plans[0], common_load(plans)
    asked = first.record["question"]

    def drawn(draw: Callable[[Any], Drawing | None], of: Any) -> list[Block]:
        found = draw(of) if pictures else None
        return [] if found is None else [found]

    blocks: list[Block] = [Heading("Question"), Text(_question(plans)), Heading("Answer")]
    blocks.append(Text(" ".join(answer_sentences(plans, load))))
    speeds: list[Block] = [_users(one) for one in plans if one.record["users"]]
    blocks += [Heading("Speed"), *drawn(users_drawing, plans), *(speeds or [Text("What does not fit has no speed.")])]
    blocks += [Heading("Memory"), *drawn(memory_drawing, plans), *_memory(plans)]
    blocks += [Heading("Machine"), *drawn(machine_drawing, first), *_machine(first)]
    blocks += [Heading("Cost"), *drawn(cost_drawing, plans), *_cost(plans, money.rent_term)]
    blocks += [Heading("Options"), _options(plans, load)]
    for name, why in causes:
        blocks += [Text(f"{name}, beside {first.name}:"), Points(tuple(line.strip() for line in why))]
    blocks += _changes(first)
    blocks += risks(plans) + assumptions(plans, money) + evidence(plans, load) + checks(first, load)
    return Document(f"{asked['model']} {asked['checkpoint']} on {asked['on']}: a report for a decision", tuple(blocks))


def common_load(plans: Sequence[Considered]) -> int | None:
    """The number of users at which plans are compared.

    Returns: The largest row that all plans that work have and that is safe for the first of them, else the smallest;
      None where they have none in common.
    """
    tables = [{row["users"] for row in one.record["users"]} for one in plans if one.works]
    if not tables:
        return None
    both = sorted(set.intersection(*tables))
    safe = next(one.record["safe"] for one in plans if one.works)
    below = [users for users in both if safe and users <= safe["users"]]
    return below[-1] if below else both[0] if both else None


def _question(plans: Sequence[Considered]) -> str:
    asked = plans[0].record["question"]
    machine = f"{asked['accelerator_count']} × {asked['accelerator']} ({asked['on']})"
    words = (
        f"Can {asked['model']} with {asked['checkpoint']} weights be served by {asked['engine']} "
        f"{asked['engine_version'] or ''} on {machine}, with prompts of {asked['input_tokens']:,} and answers of "
        f"{asked['output_tokens']:,} tokens"
    ).replace("  ", " ")
    if asked["context_tokens"]:
        words += f" and requests up to {asked['context_tokens']:,} tokens"
    words += ": how fast, for how many users, for how much money, and how sure is that?"
    if len(plans) > 1:
        words += " Beside it: " + "; ".join(one.name for one in plans[1:]) + "."
    return words


def answer_sentences(plans: Sequence[Considered], load: int | None) -> list[str]:
    """The answer in three sentences: does it work, how well, for how much.

    `load`: Users at once at which costs are given.
    """
    first = plans[0]
    record = first.record
    headline = record["headline"][:1].lower() + record["headline"][1:]
    return [f"{_VERDICTS[record['verdict']]}: {first.name} {_said(headline)}.", _speed(first), _money(plans, load)]


def _said(headline: str) -> str:
    return headline if headline.startswith(("fits", "does not fit")) else f"is {headline}"


def _speed(one: Considered) -> str:
    record = one.record
    row, safe = row_at(record, 1), record["safe"]
    if not record["users"]:
        nearest = next((change for change in record["changes"] if change["verdict"] in ("fits", "tight")), None)
        return "No speed can be given" + (
            f"; the nearest plan that works is {nearest['description']}." if nearest else "."
        )
    words = []
    if row is not None and row["output_tokens_per_s_per_request"] is not None:
        words.append(f"one user gets {_span(row['output_tokens_per_s_per_request'])} tokens a second")
    if safe is not None:
        why = safe["limits"][safe["limit"]]["reason"]
        limit = LIMITS.get(safe["limit"], safe["limit"])
        who = "user at once is" if safe["users"] == 1 else "users at once are"
        words.append(
            f"{safe['users']:,} {who} safe ({safe['expected']:,} if everything is as in the mean), limited "
            f"by {limit}: {why}"
        )
    told = ", and ".join(words)
    return told[:1].upper() + told[1:] + "."


def _money(plans: Sequence[Considered], load: int | None) -> str:
    first = plans[0]
    way = first.paid
    if way is None or way.usd is None:
        missing = next((one.missing for one in first.ways if one.missing), "the machine is not in this catalogue")
        return f"What it costs is not known: {missing}."
    words = f"A month costs {way.usd:,.0f} {first.currency} ({way.paid}"
    words += f"; {way.low:,.0f} to {way.high:,.0f})" if way.low is not None and way.high != way.low else ")"
    each = None if load is None else first.per_million(load)
    if each is not None:
        words += f", which at {_users_of(load)} at once is {number(each)} {first.currency} for a million output tokens"
    rest = [(one.per_million(load), one) for one in plans if load is not None and one.works]
    known = [(usd, one) for usd, one in rest if usd is not None]
    if len(known) > 1:
        least = min(known, key=lambda pair: pair[0])
        words += f"; of {len(known)} options {least[1].name} costs least for a token there, "
        words += f"{number(least[0])} {first.currency} a million"
    return words + "."


def _span(figure: Mapping[str, float] | None, factor: float = 1.0) -> str:
    if figure is None:
        return "unknown"
    value, low, high = (number(figure[end] * factor) for end in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def _users(one: Considered) -> Table:
    rows = tuple(
        (
            f"{row['users']:,}",
            _span(row["ttft_mean_ms"], 1e-3),
            _span(row["output_tokens_per_s_per_request"]),
            _span(row["output_tokens_per_s"]),
            f"{row['context_each_tokens']:,}",
        )
        for row in one.record["users"]
    )
    heads = (
        "users at once",
        "first token [s]",
        "each [token/s]",
        "all together [token/s]",
        "longest context each [token]",
    )
    return Table(f"{one.name}: what users see, with 90 % intervals", heads, rows)


def _memory(plans: Sequence[Considered]) -> list[Block]:
    from glmplan.present.decision_parts import memory_parts

    rows = []
    for one in plans:
        row, memory = fullest(one), one.record["memory"]
        if row is None:
            continue
        parts = ", ".join(f"{words} {size:.1f}" for words, size in memory_parts(row))
        pool = memory["kv_pool_tokens"]
        told = f"{pool['value']:,} ({pool['low']:,} to {pool['high']:,})"
        rows.append((one.name, row["label"], parts, f"{row['capacity_gib']:.1f}", told))
    if not rows:
        return [Text("The memory of the part is not published.")]
    heads = ("plan", "card", "holds [GiB]", "can hold [GiB]", "KV cache of the plan [token]")
    return [Table("The card with the least room for the cache", heads, tuple(rows), left=(0, 1, 2))]


def _machine(one: Considered) -> list[Block]:
    if one.machine is None:
        return [
            Text(f"{one.record['question']['on']} is not in this catalogue: neither its links nor its price is known.")
        ]
    kw = (
        "The draw at the wall is not known."
        if one.kw is None
        else f"It draws {one.kw:.1f} kW at the wall while it serves."
    )
    plan = one.record["plan"]
    layout = f"Layout {plan['layout']}, KV cache {plan['kv'].upper()} ({plan['kv_reason']}). " if plan else ""
    return [Text(layout + kw)]


def _cost(plans: Sequence[Considered], rent_term: str | None) -> list[Block]:
    rows = []
    for one in plans:
        for way in one.ways:
            if way.month is None:
                rows.append((one.name, way.paid, "unknown", "", f"missing: {way.missing}"))
                continue
            lines = ", ".join(f"{name} {amount:,.0f}" for name, amount in month_lines(way))
            known = way.low is not None and way.high is not None and way.high > way.low
            span = f"{way.low:,.0f} to {way.high:,.0f}" if known else ""
            rows.append((one.name, way.paid, f"{way.usd:,.0f}", span, lines))
    if not rows:
        return [Text("No price is known.")]
    heads = ("plan", "way", f"{plans[0].currency} a month", "over published prices", "of which")
    table = Table("What a month costs", heads, tuple(rows), left=(0, 1, 4))
    return [table] if rent_term is None else [Text(f"Rent term of all plans: {rent_term}."), table]


def _users_of(load: int | None) -> str:
    return f"{load} user" if load == 1 else f"{load} users"


def _options(plans: Sequence[Considered], load: int | None) -> Table:
    money = plans[0].currency
    token = f"{money} per million output tokens"
    names = (
        "verdict", "layout", "engine", "safe users", "one user [token/s]",
        f"all at {_users_of(load)} [token/s]" if load else "all [token/s]",
        "longest request [token]", f"{money} a month",
        f"{token} at {_users_of(load)}" if load else token, "draw at the wall [kW]", "evidence",
    )  # fmt: skip
    columns = [_option(one, load) for one in plans]
    rows = tuple((name, *(column[index] for column in columns)) for index, name in enumerate(names))
    heads = ("figure", *(one.name for one in plans))
    caption = "Plans side by side" if len(plans) > 1 else "The plan in figures"
    return Table(caption, heads, rows, left=tuple(range(len(heads))))


def _option(one: Considered, load: int | None) -> list[str]:
    record, asked = one.record, one.record["question"]
    single, at = row_at(record, 1), None if load is None else row_at(record, load)
    each = None if load is None else one.per_million(load)
    paid = one.paid
    return [
        verdict_words(record["verdict"], record["may_start"]),
        record["plan"]["layout"] if record["plan"] else "",
        f"{asked['engine']} {asked['engine_version'] or ''}".strip(),
        f"{record['safe']['users']:,}" if record["safe"] else "unknown",
        _span(single["output_tokens_per_s_per_request"]) if single else "not asked" if record["users"] else "unknown",
        _span(at["output_tokens_per_s"]) if at else "unknown",
        f"{record['context']['one_request_tokens']:,} ({record['context']['one_request_tokens_low']:,} for sure)",
        "unknown" if paid is None or paid.usd is None else f"{paid.usd:,.0f} ({paid.paid})",
        "unknown" if each is None else number(each),
        "unknown" if one.kw is None else f"{one.kw:.1f}",
        record["evidence"],
    ]


def _changes(one: Considered) -> list[Block]:
    rows = tuple(
        (
            change["description"],
            change["verdict"].replace("_", " "),
            number(change["one_user_tokens_per_s"]) if change["one_user_tokens_per_s"] else "",
            number(change["total_tokens_per_s"]) if change["total_tokens_per_s"] else "",
            change["note"],
        )
        for change in one.record["changes"]
    )
    heads = ("change", "verdict", "one user [token/s]", "all [token/s]", "to know")
    if rows:
        return [Table(f"What would change {one.name}", heads, rows, left=(0, 1, 4))]
    asked = one.record["question"]
    if one.works or one.machine is None:
        return []
    words = ["glmplan", "size", "--model", asked["model"], "--users", "1", "--input", str(asked["input_tokens"])]
    words += ["--output", str(asked["output_tokens"]), "--slo", _SLO]
    return [
        Text("No change that was looked at makes it fit. What carries one user, in any format, the cheapest first:"),
        Code(shlex.join(words)),
    ]


# Write a report to a file: HTML, PDF or Markdown by its ending.

#: endings of files that a report is written to
FORMS: tuple[str, ...] = (".html", ".md", ".pdf")


def check_report(path: str | Path) -> None:
    """Refuse a file that no report can be written to, before anything is computed.

    Examples
    --------
    >>> check_report("a.docx")
    Traceback (most recent call last):
    glmplan.errors.SpecError: --out: '.docx' is no kind of report; nearest: .md
    """
    path = Path(path)
    if path.suffix not in FORMS:
        raise SpecError("is no kind of report", field="--out", value=path.suffix or path.name, choices=FORMS)
    if path.suffix == ".pdf":
        check_extra("weasyprint", field=f"--out {path.name}")
    if path.suffix != ".md":
        check_extra("vl_convert", field=f"--out {path.name}")


def write_report(document: Document, path: str | Path) -> None:
    """Write a report."""
    path = Path(path)
    check_report(path)
    if path.suffix == ".md":
        write_atomically(path, markdown_of(document))
    elif path.suffix == ".html":
        write_atomically(path, html_of(document))
    else:
        write_atomically(path, _pdf(html_of(document)))


def _pdf(html: str) -> bytes:
    """The page on paper; nothing is fetched, whatever it names."""
    weasyprint = wanted("weasyprint", field="--out")

    def nothing(address: str, *_: Any, **__: Any) -> Any:
        raise ValueError(f"a report needs nothing from outside: {address}")

    return bytes(weasyprint.HTML(string=html, url_fetcher=nothing).write_pdf(pdf_tags=True))
