"""What a plan does under named traffic, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from glmplan.plan.gains import as_well_known
from glmplan.plan.text import number, paragraph, span
from glmplan.prediction.effects import KNOWN_AS

if TYPE_CHECKING:
    from glmplan.plan.plan import AnswerRecord, TrafficRun

__all__ = ["NO_COPIES", "change_words", "run_rows", "traffic_section"]

#: what `TrafficRun.no_copies` is a reason for the lack of
NO_COPIES = "no copies of the cache in host memory"


def run_rows(run: TrafficRun) -> list[tuple[str, str]]:
    """What users see, as labels and texts.

    Parameters
    ----------
    run : TrafficRun
        A plan under traffic.

    Returns
    -------
    list of (str, str)
        What one request takes; what all of them get and what the cache does; whether more arrives than is served.
    """
    each = f"first token {span(run.ttft)} s, 95 % within {number(run.ttft_p95)} s"
    if run.tpot.value:
        each += f"; then {number(1.0 / run.tpot.value)} tok/s"
    each += f"; whole answer {span(run.e2e)} s"
    rows = [("a request", each), ("all of them", f"{span(run.total_rate)} tok/s; {_cache_words(run)}")]
    if run.most_rate is not None:
        what = f"no more than {number(run.most_rate)} a second are served: the queue grows as long as more arrive, and "
        rows.append(("too much", f"{what}these are the times of the first {run.requests:,}"))
    return rows


def _cache_words(run: TrafficRun) -> str:
    words = []
    if run.cached is not None:
        low = f" ({run.cached_low:.0%} at the bad end)" if run.cached - run.cached_low >= 0.01 else ""
        words.append(f"{run.cached:.0%} of prompt tokens found in the cache{low}")
    words += [f"{run.preempted:.2g} preemptions for each request"] * (run.preempted >= 0.005)
    words.append(f"cache {run.full:.0%} full at most")
    words += [f"{run.rejected:,} requests too long"] * bool(run.rejected)
    words += [f"{run.left:,} clients left before their first token"] * bool(run.left)
    return ", ".join(words)


def change_words(plan: TrafficRun, change: TrafficRun) -> str:
    """Say what a change does to traffic.

    Parameters
    ----------
    plan, change : TrafficRun
        Both under the same traffic.

    Returns
    -------
    str
        The change and its words, then its figures beside those of the plan.
    """
    found = f"{change.what}, {change.ask}" if change.ask else change.what
    layout = f"{change.layout}, " if change.layout != plan.layout and change.layout not in change.what else ""
    words = f"{found}: {layout}whole answer {number(change.e2e.value)} instead of {number(plan.e2e.value)} s"
    words += f", {number(change.total_rate.value)} tok/s in all"
    if change.cached is not None:
        words += f", {change.cached:.0%} found in the cache"
    return words + _evidence(plan, change)


def _evidence(plan: TrafficRun, change: TrafficRun) -> str:
    if as_well_known(change.knowledge, plan.knowledge):
        return ""
    return f"; on less evidence: {KNOWN_AS.get(change.knowledge, 'not known')}"


def traffic_section(answer: AnswerRecord, width: int) -> str:
    """Write the plan under named traffic, and what would change it.

    Parameters
    ----------
    answer : AnswerRecord
        An answer with runs.
    width : int
        Columns, [-]

    Returns
    -------
    str
        Lines.
    """
    plan, *others = answer.runs
    out = paragraph(width, f"Under traffic: {answer.traffic}", "")
    for label, text in run_rows(plan):
        out += paragraph(width, f"{label:14}{text}", "  ", " " * 16)
    out += paragraph(
        width,
        f"simulated: {plan.requests:,} requests after those that fill an empty server; the ends are runs with slow "
        "steps and a small cache, and with quick steps and a large one",
    )
    for one in others:
        out += paragraph(width, change_words(plan, one), "  ", "      ")
    if plan.no_copies:
        out += paragraph(width, f"{NO_COPIES}: {plan.no_copies}", "  ", "      ")
    if not others:
        out += paragraph(width, "no change that was looked at brings an answer 5 % sooner")
    return out
