"""The sheet of assumptions: each a named cell with its unit, its range, and where its default comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glmplan.errors import GlmplanError
from glmplan.facts.catalogue.prices import load_terms, quotation
from glmplan.plan.users import TARGET_TPOT, TARGET_TTFT
from glmplan.sheets.book import Book
from glmplan.sheets.option import Option
from glmplan.sizing.cost import HOURS
from glmplan.sizing.money import Money
from glmplan.sizing.offers import Offer, cheapest_offer, offers_of

__all__ = ["Assumption", "Load", "assumptions_of", "fixed_facts", "write_assumptions"]

HEADERS = ("Assumption", "Value", "Unit", "Low", "High", "What it is, and where the default comes from", "Date")
_WIDTHS = (32, 14, 44, 9, 9, 96, 12)
_BUYER = "the buyer's"
#: letters of a source that stand in one line of its column [-]
_LINE = 105


@dataclass(frozen=True, slots=True)
class Load:
    """The load for which a workbook is made.

    Attributes
    ----------
    users, context, input, output : int
        Users at once [-], longest request that must fit, prompt and answer [token]
    reuse : float
        Share of prompt tokens that an API takes for cached, [-]
    growth : float
        Growth of the load in a month, [-]
    """

    users: int
    context: int
    input: int
    output: int
    reuse: float = 0.0
    growth: float = 0.0


@dataclass(frozen=True, slots=True)
class Assumption:
    """One row.

    Attributes
    ----------
    name : str
        Name of its cell.
    title, unit, source, date : str
        Words.
    value : float or None
        The default; None where nobody knows it, [unit]
    low, high : float or None
        What sources disagree on, [unit]
    least, most : float
        What may be entered, [unit]
    style : str
        How it is shown.
    """

    name: str
    title: str
    unit: str
    value: float | None
    source: str
    date: str = ""
    low: float | None = None
    high: float | None = None
    least: float = 0.0
    most: float = 1e9
    style: str = "exact"


#: name of a term → its title, and what may be entered
_TERMS = {
    "horizon_months": ("Depreciation", 1, 240),
    "residual_share": ("Worth at the end", 0, 1),
    "capital_rate": ("Cost of capital", 0, 1),
    "network_share": ("Network between machines", 0, 1),
    "pue": ("Power of the site over machines", 1, 5),
    "power_share": ("Draw of an accelerator", 0.01, 1),
    "rest_watts": ("Draw beside accelerators", 0, 100_000),
    "supply_efficiency": ("Efficiency of power supplies", 0.1, 1),
    "licence_per_accelerator_year": ("Software licence", 0, 1e6),
    "staff_per_month": ("Staff", 0, 1e7),
    "support_share": ("Support contract", 0, 1),
}


def assumptions_of(load: Load, money: Money, model: str) -> dict[str, list[Assumption]]:
    """All assumptions that can be changed.

    Parameters
    ----------
    load : Load
        The load.
    money : Money
        Prices and terms.
    model : str
        Catalogue name, for the price of an API.

    Returns
    -------
    dict of str to list of Assumption
        By heading.
    """
    whole = "whole"
    about = "as the workbook was made"
    traffic = [
        Assumption("users", "Users at once", "users", load.users, f"requests in flight at the peak; {about}",
                   least=1, most=1e6, style=whole),
        Assumption("prompt_tokens", "Prompt", "tokens", load.input, f"of a request, history included; {about}",
                   least=1, most=1e7, style=whole),
        Assumption("answer_tokens", "Answer", "tokens", load.output, about, least=2, most=1e6, style=whole),
        Assumption("context_tokens", "Context that must fit", "tokens", load.context,
                   f"longest single request, prompt and answer; {about}", least=1, most=1e7, style=whole),
        Assumption("reuse_share", "Reuse of prompts", "share of prompt tokens", load.reuse,
                   "what an API bills as cached; speeds of machines count every prompt as new, so reuse makes them "
                   "no faster here", most=1, style="share"),
        Assumption("growth", "Growth of the load", "per month", load.growth, "until a machine is outgrown",
                   least=-0.5, most=1, style="share"),
    ]  # fmt: skip
    limits = [
        Assumption("gap_limit", "Slowest token that a reader accepts", "ms", 1e3 * TARGET_TPOT,
                   "safe users: at the slow end of the interval; 100 ms is 10 tokens a second, as in glmplan fit",
                   least=1, most=10_000, style=whole),
        Assumption("wait_limit", "Longest wait for the first token", "s", TARGET_TTFT,
                   "safe users: or three times what one user alone waits, as in glmplan fit", least=0.1, most=3600),
    ]  # fmt: skip
    return {"Load": traffic, "Limits of safe users": limits, "Money and power": list(_money(money)),
            "Paying for each token instead": list(_offers(load, money, model))}  # fmt: skip


def _money(money: Money) -> Iterator[Assumption]:
    terms, known = money.terms, load_terms()
    power = quotation(money.prices, "power", "electricity", today=money.today)
    source = power.entries[0].source
    yield Assumption("electricity", "Electricity", f"{terms.currency} per kWh", terms.electricity, source,
                     power.dates[1], power.low, power.high, most=10, style="three")  # fmt: skip
    yield Assumption("hours_per_month", "Hours of operation", "hours a month", HOURS,
                     "a year of 8,760 hours in twelve parts; a machine draws what it draws while it serves", "",
                     least=1, most=744)  # fmt: skip
    yield Assumption("utilisation", "Utilisation", "mean load over peak", terms.utilisation,
                     "mean over peak of the daily traffic of glmplan simulate", "", least=0.001, most=1,
                     style="share")  # fmt: skip
    for name, (title, least, most) in _TERMS.items():
        term = known[name]
        missing = "" if term.value is not None else f" ({term.note})"
        unit = term.unit.replace("USD", terms.currency)
        yield Assumption(name, title, unit, getattr(terms, name), f"{term.what}; {term.source or _BUYER}{missing}",
                         term.date, term.low, term.high, least, most)  # fmt: skip
    yield Assumption("colocation", "Colocation", f"{terms.currency} per kW and month", terms.colocation,
                     "nothing on one's own premises; glmplan sheet new --region takes a published price", "",
                     most=10_000)  # fmt: skip


def _offers(load: Load, money: Money, model: str) -> Iterator[Assumption]:
    offer: Offer | None = None
    words = "no price is published: enter one to compare"
    try:
        offers = offers_of(model, money.prices, today=money.today)
        offer = cheapest_offer(offers, load.input, load.output, load.reuse * load.input)
        words = f"{offer.seller}, the cheapest of {len(offers)} offers for this mix; {offer.source}"
        words += " (older than 180 days)" if offer.stale else ""
    except GlmplanError:
        pass
    for name, title in (("input", "prompt"), ("output", "answer"), ("cached", "prompt seen before")):
        value = None if offer is None else getattr(offer, name)
        yield Assumption(f"api_{name}", f"API, {title}", f"{money.terms.currency} per million tokens", value, words,
                         "" if offer is None else offer.date, most=100_000)  # fmt: skip


def fixed_facts(options: tuple[Option, ...]) -> list[tuple[str, str, str]]:
    """What the predictions of a workbook rest on and what a cell cannot change.

    Parameters
    ----------
    options : tuple of Option
        The options.

    Returns
    -------
    list of tuple of str
        Title, value, and what to do to change it.
    """
    asked = options[0].planned.asked
    terms = options[0].planned.holding.terms
    drafted = "none"
    if terms.mtp:
        gain = options[0].planned.deployment.tokens_per_step
        drafted = f"{terms.mtp} tokens a step, of which {gain:.2f} tokens come out"
    axes = options[0].cached[0].surface.axes
    return [
        ("Model", f"{asked.model.name}, {asked.checkpoint.name}", "a new workbook"),
        ("Engine", f"{asked.engine} {asked.runs_as or ''}".strip(), "a new workbook with --engine"),
        ("Drafting and acceptance", drafted, "a new workbook with --mtp and --acceptance"),
        ("Predicted users", f"{axes.users[0]} to {axes.users[-1]} on each machine", "a new workbook with more --users"),
        ("Predicted prompts", f"{axes.inputs[0]:,} to {axes.inputs[-1]:,} tokens", "a new workbook with --input"),
        ("Predicted answers", f"{axes.outputs[0]:,} to {axes.outputs[-1]:,} tokens", "a new workbook with --output"),
    ]


def write_assumptions(book: Book, options: tuple[Option, ...], rows: dict[str, list[Assumption]]) -> None:
    """Fill the sheet of assumptions.

    Parameters
    ----------
    book : Book
        The workbook.
    options : tuple of Option
        The options.
    rows : dict of str to list of Assumption
        By heading.
    """
    page = book["Assumptions"]
    page.put(0, 0, "Assumptions", "title")
    page.put(1, 0, "Yellow cells may be changed; every figure of the workbook follows.", "note")
    page.row(3, HEADERS, "header")
    line = 4
    for heading, found in rows.items():
        page.row(line, [heading, *[None] * (len(HEADERS) - 1)], "heading")
        for one in found:
            line += 1
            page.put(line, 0, one.title)
            page.put(line, 1, one.value, f"{one.style}*")
            page.bounds[line, 1] = (one.least, one.most, f"{one.title}: {one.least:g} to {one.most:g} {one.unit}")
            page.put(line, 2, one.unit, "wrap")
            page.put(line, 3, one.low, one.style)
            page.put(line, 4, one.high, one.style)
            page.say(line, 5, one.source, "small")
            page.say(line, 6, one.date, "small")
            if len(one.source) > _LINE:
                page.heights[line] = 13.0 * (1 + len(one.source) // _LINE)
            book.name(one.name, page, line, 1)
        line += 2
    page.row(line, ["Fixed in this file", *[None] * (len(HEADERS) - 1)], "heading")
    for title, value, how in fixed_facts(options):
        line += 1
        page.put(line, 0, title)
        page.say(line, 1, value)
        page.put(line, 5, f"to change it: {how}", "small")
    page.widths |= dict(enumerate(_WIDTHS))
    page.freeze = (4, 0)
