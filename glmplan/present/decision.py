"""Write a decision report.

The report has question, answer, options, risks, assumptions, evidence and acceptance check.

Its numbers are those of `glmplan fit --format json`; costs are those of `glmplan.purchase`.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from glmplan.catalog.files import write_atomically
from glmplan.errors import SpecError
from glmplan.extras import check_extra, wanted
from glmplan.planner.plan import REPLIES
from glmplan.planner.users import TARGET_TPOT
from glmplan.prediction.distribution import SURE
from glmplan.present.decision_parts import (
    ReportOption,
    assumptions,
    at_one_term,
    checks,
    cost_drawing,
    evidence,
    fullest,
    machine_drawing,
    memory_drawing,
    month_lines,
    priced_plan,
    risks,
    row_at,
    users_drawing,
)
from glmplan.present.page import Block, Code, Document, Drawing, Heading, Points, Table, Text, html_of, markdown_of
from glmplan.present.text import LIMITS, verdict_words
from glmplan.purchase.money import Money
from glmplan.units import Ratio, number

__all__ = ["FORMS", "answer_sentences", "check_report", "common_load", "decision", "write_report"]


#: SLO of the safe users of `fit`
_SLO = f"tpot p95 < {1000 * TARGET_TPOT:g} ms"
#: answer of a plan file without ``answer``, which 1.0.0 wrote
_VERDICTS = {"fits": "Yes", "tight": "Narrowly", "does_not_fit": "No", "unknown": "Unknown"}


def decision(
    records: Sequence[Mapping[str, Any]],
    money: Money,
    *,
    causes: Sequence[tuple[str, Sequence[str]]] = (),
    pictures: bool = True,
) -> Document:
    """Return the report on some plans; the first one is the subject.

    `causes`: Name and differences of each other plan.
    """
    money = at_one_term(records, money)
    plans = [priced_plan(record, money) for record in records]
    first, load = plans[0], common_load(plans)
    asked = first.record["question"]

    def drawn(draw: Callable[[Any], Drawing | None], of: Any) -> list[Block]:
        drawing = draw(of) if pictures else None
        return [] if drawing is None else [drawing]

    blocks: list[Block] = [Heading("Question"), Text(_question(plans)), Heading("Answer")]
    blocks.append(Text(" ".join(answer_sentences(plans, load))))
    speeds: list[Block] = [_users(one) for one in plans if one.record["users"]]
    speeds += [block for one in plans for block in _chances(one)]
    blocks += [Heading("Speed"), *drawn(users_drawing, plans), *(speeds or [Text("No speed: the plan does not fit.")])]
    blocks += [Heading("Memory"), *drawn(memory_drawing, plans), *_memory(plans)]
    blocks += [Heading("Machine"), *drawn(machine_drawing, first), *_machine(first)]
    blocks += [Heading("Cost"), *drawn(cost_drawing, plans), *_cost(plans, money.rent_term)]
    blocks += [Heading("Options"), _options(plans, load)]
    for name, why in causes:
        blocks += [Text(f"{name} compared with {first.name}:"), Points(tuple(line.strip() for line in why))]
    blocks += _changes(first)
    blocks += risks(plans) + assumptions(plans, money) + evidence(plans, load) + checks(first, load)
    return Document(f"{asked['model']} {asked['checkpoint']} on {asked['on']}: a report for a decision", tuple(blocks))


def common_load(plans: Sequence[ReportOption]) -> int | None:
    """Return the concurrency that all plans have; None without one.

    It is the largest common one that is safe for the first plan, else the smallest.
    """
    tables = [{row["users"] for row in one.record["users"]} for one in plans if one.works]
    if not tables:
        return None
    both = sorted(set.intersection(*tables))
    safe = next(one.record["safe"] for one in plans if one.works)
    below = [users for users in both if safe and users <= safe["users"]]
    return below[-1] if below else both[0] if both else None


def _question(plans: Sequence[ReportOption]) -> str:
    asked = plans[0].record["question"]
    machine = f"{asked['accelerator_count']} × {asked['accelerator']} ({asked['on']})"
    words = (
        f"Can {asked['model']} with {asked['checkpoint']} weights be served by {asked['engine']} "
        f"{asked['engine_version'] or ''} on {machine}, with prompts of {asked['input_tokens']:,} and answers of "
        f"{asked['output_tokens']:,} tokens"
    ).replace("  ", " ")
    if asked["context_tokens"]:
        words += f" and requests up to {asked['context_tokens']:,} tokens"
    words += ", and at which speed, for how many users, at which cost and with which confidence?"
    if len(plans) > 1:
        words += " Alternatives: " + "; ".join(one.name for one in plans[1:]) + "."
    return words


def answer_sentences(plans: Sequence[ReportOption], load: int | None) -> list[str]:
    """Return verdict, speed, and cost at a concurrency `load`, as sentences."""
    first = plans[0]
    return [_reply(first), _speed(first), _money(plans, load)]


def _reply(one: ReportOption) -> str:
    """Return the answer to the question, and how the plan fits."""
    record = one.record
    plan = f"{one.name} {_said(record['headline'][:1].lower() + record['headline'][1:])}."
    answer = record.get("answer")
    if answer is None:
        return f"{_VERDICTS[record['verdict']]}: {plan}"
    # a probability is that of the users, not of the plan
    return f"{answer['text']}; {plan}" if answer["probability"] is not None else f"{REPLIES[answer['verdict']]}: {plan}"


def _said(headline: str) -> str:
    return headline if headline.startswith(("fits", "does not fit")) else f"is {headline}"


def _speed(one: ReportOption) -> str:
    record = one.record
    row, safe = row_at(record, 1), record["safe"]
    if not record["users"]:
        nearest = next((change for change in record["changes"] if change["verdict"] in ("fits", "tight")), None)
        return "No speed can be given" + (
            f"; the nearest plan that works is {nearest['description']}." if nearest else "."
        )
    words = []
    if row is not None and row["output_tokens_per_s_per_request"] is not None:
        words.append(f"a single user gets {_span(row['output_tokens_per_s_per_request'])} tokens/s")
    if safe is not None:
        why = safe["limits"][safe["limit"]]["reason"]
        limit = LIMITS.get(safe["limit"], safe["limit"])
        users = "user is" if safe["users"] == 1 else "users are"
        words.append(f"{safe['users']:,} {users} safe at {_by_probability(safe)}, limited by {limit}: {why}")
    told = ", and ".join(words)
    return told[:1].upper() + told[1:] + "."


def _by_probability(safe: Mapping[str, Any]) -> str:
    """Return the asked probability, and the users at others.

    Plan files of 1.0.0 have the median only.
    """
    asked = 100 * safe.get("probability", SURE)
    shares = [(share, safe.get(f"users_at_{share}")) for share in (95, 80, 50) if share != round(asked)]
    others = ", ".join(f"{users:,} at {share} %" for share, users in shares if users is not None)
    others = others or f"{safe['expected']:,} expected"
    return f"{asked:g} % ({others})"


def _money(plans: Sequence[ReportOption], load: int | None) -> str:
    first = plans[0]
    way = first.paid
    if way is None or way.usd is None:
        missing = next((one.missing for one in first.ways if one.missing), "the machine is not in this catalogue")
        return f"The cost is unknown: {missing}."
    words = f"The cost is {way.usd:,.0f} {first.currency} per month ({way.paid}"
    words += f"; {way.low:,.0f} to {way.high:,.0f})" if way.low is not None and way.high != way.low else ")"
    each = None if load is None else first.per_million(load)
    if each is not None:
        both = each * first.output_share
        words += f", or {number(each)} {first.currency} per million output tokens at {_users_of(load)}"
        words += f" and {number(both)} {first.currency} per million tokens in and out"
    rest = [(one.per_million(load), one) for one in plans if load is not None and one.works]
    known = [(usd, one) for usd, one in rest if usd is not None]
    if len(known) > 1:
        least = min(known, key=lambda pair: pair[0])
        words += f"; the cheapest of {len(known)} options per token is {least[1].name}, "
        words += f"{number(least[0])} {first.currency} per million"
    return words + "."


def _span(figure: Mapping[str, float] | None, factor: float = 1.0) -> str:
    if figure is None:
        return "unknown"
    value, low, high = (number(figure[end] * factor) for end in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def _users(one: ReportOption) -> Table:
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
        "concurrency",
        "mean TTFT [s]",
        "per user [token/s]",
        "total [token/s]",
        "longest context each [token]",
    )
    return Table(f"{one.name}: speed with 90 % intervals", heads, rows)


def _chances(one: ReportOption) -> list[Block]:
    """Return the probability of meeting the SLO over concurrency.

    The largest concurrency of each percentage.
    """
    curve = (one.record["safe"] or {}).get("curve", ())
    most = {_percent(row["probability"]): row["users"] for row in curve}
    rows = tuple((f"{users:,}", chance) for chance, users in most.items() if chance != _percent(0.0))
    return [Table(f"{one.name}: probability of meeting the SLO", ("concurrency", "probability"), rows)] if rows else []


def _percent(chance: Ratio) -> str:
    """Return a probability as text; errors say nothing beyond 99 %."""
    return f"{min(math.floor(100 * chance + 1e-9), 99)} %"


def _memory(plans: Sequence[ReportOption]) -> list[Block]:
    from glmplan.present.decision_parts import memory_parts

    rows = []
    for one in plans:
        row, memory = fullest(one), one.record["memory"]
        if row is None:
            continue
        parts = ", ".join(f"{words} {size:.1f}" for words, size in memory_parts(row))
        pool = memory["kv_pool_tokens"]
        told = f"{pool['value']:,} ({pool['low']:,} to {pool['high']:,})"
        told += f", {memory['kv_pool_host_gib']:,.1f} GiB in host memory" * (memory["kv_pool_host_gib"] > 0)
        rows.append((one.name, row["label"], parts, f"{row['capacity_gib']:.1f}", told))
    if not rows:
        return [Text("The memory of the accelerator is not published.")]
    heads = ("plan", "GPU", "used [GiB]", "capacity [GiB]", "KV pool of the plan [token]")
    return [Table("GPU with the smallest KV pool", heads, tuple(rows), left=(0, 1, 2))]


def _machine(one: ReportOption) -> list[Block]:
    if one.machine is None:
        return [Text(f"{one.record['question']['on']} is not in this catalogue: its links and its price are unknown.")]
    kw = "Power at the wall: unknown." if one.kw is None else f"Power at the wall under load: {one.kw:.1f} kW."
    plan = one.record["plan"]
    layout = f"Layout {plan['layout']}, KV cache {plan['kv'].upper()} ({plan['kv_reason']}). " if plan else ""
    return [Text(layout + kw)]


def _cost(plans: Sequence[ReportOption], rent_term: str | None) -> list[Block]:
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
    heads = ("plan", "buy or rent", f"{plans[0].currency} per month", "range of published prices", "of which")
    blocks: list[Block] = [Table("Monthly cost", heads, tuple(rows), left=(0, 1, 4))]
    assumed = dict.fromkeys(text for one in plans for way in one.ways for text in way.assumed)
    blocks += [Points(tuple(assumed))] if assumed else []
    return blocks if rent_term is None else [Text(f"Rent term of all plans: {rent_term}."), *blocks]


def _users_of(load: int | None) -> str:
    return f"{load} user" if load == 1 else f"{load} users"


def _options(plans: Sequence[ReportOption], load: int | None) -> Table:
    money = plans[0].currency
    token = f"{money} per million output tokens"
    names = (
        "verdict", "layout", "engine", "safe users", "single user [token/s]",
        f"total at {_users_of(load)} [token/s]" if load else "total [token/s]",
        "longest request [token]", f"{money} per month",
        f"{token} at {_users_of(load)}" if load else token, f"{money} per million tokens in and out",
        "power at the wall [kW]", "evidence",
    )  # fmt: skip
    columns = [_option(one, load) for one in plans]
    rows = tuple((name, *(column[index] for column in columns)) for index, name in enumerate(names))
    heads = ("metric", *(one.name for one in plans))
    caption = "Comparison of the plans" if len(plans) > 1 else "Metrics of the plan"
    return Table(caption, heads, rows, left=tuple(range(len(heads))))


def _option(one: ReportOption, load: int | None) -> list[str]:
    record, asked = one.record, one.record["question"]
    single, at = row_at(record, 1), None if load is None else row_at(record, load)
    each = None if load is None else one.per_million(load)
    paid = one.paid
    return [
        verdict_words(record["verdict"], record["may_start"]),
        record["plan"]["layout"] if record["plan"] else "",
        f"{asked['engine']} {asked['engine_version'] or ''}".strip(),
        f"{record['safe']['users']:,} at {_by_probability(record['safe'])}" if record["safe"] else "unknown",
        _span(single["output_tokens_per_s_per_request"]) if single else "not asked" if record["users"] else "unknown",
        _span(at["output_tokens_per_s"]) if at else "unknown",
        f"{record['context']['one_request_tokens']:,} ({record['context']['one_request_tokens_low']:,} guaranteed)",
        "unknown" if paid is None or paid.usd is None else f"{paid.usd:,.0f} ({paid.paid})",
        "unknown" if each is None else number(each),
        "unknown" if each is None else number(each * one.output_share),
        "unknown" if one.kw is None else f"{one.kw:.1f}",
        record["evidence"],
    ]


def _changes(one: ReportOption) -> list[Block]:
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
    heads = ("change", "verdict", "single user [token/s]", "total [token/s]", "note")
    if rows:
        return [Table(f"Possible changes of {one.name}", heads, rows, left=(0, 1, 4))]
    asked = one.record["question"]
    if one.works or one.machine is None:
        return []
    words = ["glmplan", "size", "--model", asked["model"], "--users", "1", "--input", str(asked["input_tokens"])]
    words += ["--output", str(asked["output_tokens"]), "--slo", _SLO]
    return [
        Text("No tested change makes it fit. Machines that serve one user, in any format, the cheapest first:"),
        Code(shlex.join(words)),
    ]


#: suffixes of reports
FORMS: tuple[str, ...] = (".html", ".md", ".pdf")


def check_report(path: str | Path) -> None:
    """Raise SpecError for an unknown suffix, before anything is computed.

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
    """Write a report as HTML, PDF or Markdown, by its suffix."""
    path = Path(path)
    check_report(path)
    if path.suffix == ".md":
        write_atomically(path, markdown_of(document))
    elif path.suffix == ".html":
        write_atomically(path, html_of(document))
    else:
        write_atomically(path, _pdf(html_of(document)))


def _pdf(html: str) -> bytes:
    """Return the page as PDF; no address in it is fetched."""
    weasyprint = wanted("weasyprint", field="--out")

    def nothing(address: str, *_: Any, **__: Any) -> Any:
        raise ValueError(f"a report needs nothing from outside: {address}")

    return bytes(weasyprint.HTML(string=html, url_fetcher=nothing).write_pdf(pdf_tags=True))
