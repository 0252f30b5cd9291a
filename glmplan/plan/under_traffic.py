"""The plan of traffic that is named: layouts are compared by what such traffic sees of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from glmplan.errors import GlmplanError
from glmplan.plan.gains import LEAST_GAIN
from glmplan.plan.ranking import needless_stages, predicted, shown_users
from glmplan.plan.search import Solution, solve
from glmplan.plan.simulated import traffic_run

if TYPE_CHECKING:
    from glmplan.plan.plan import TrafficRun
    from glmplan.plan.question import Asked
    from glmplan.plan.ranking import Scored
    from glmplan.serving.traffic.spec import Traffic

__all__ = ["decides_plan", "solve_under"]

#: layouts that are simulated: those whose answers come soonest by steady sums [-]
_SIMULATED = 4


def decides_plan(traffic: Traffic) -> bool:
    """Whether a kind of traffic decides between layouts that hold its mean request.

    Parameters
    ----------
    traffic : Traffic
        What arrives.

    Returns
    -------
    bool
        Of conversations and of traces, which find in a large cache what they would have to compute again. Users and
        rates of requests without a past have the plan of the question, whatever their number.

    Examples
    --------
    >>> from glmplan.serving.traffic.spec import parse_traffic
    >>> decides_plan(parse_traffic("sessions:20")), decides_plan(parse_traffic("closed:20"))
    (True, False)
    """
    return traffic.kind in ("sessions", "trace")


def solve_under(
    asked: Asked, traffic: Traffic | None, *, options: frozenset[str] = frozenset(), quick: bool = False
) -> Solution:
    """Find the best layout for traffic.

    Parameters
    ----------
    asked : Asked
        The question, with the mean request of the traffic.
    traffic : Traffic or None
        What arrives, with its number or rate.
    options, quick : optional
        As in `glmplan.plan.search.solve`.

    Returns
    -------
    Solution
        All layouts; that of `solve` where the traffic does not decide.

    Raises
    ------
    UnknownFact
        If the memory of the part is not published.

    Notes
    -----
    Of the layouts that hold the mean request as surely as the one chosen without traffic, the four whose whole answers
    come soonest by steady sums, and that one, are simulated under the traffic. The one with the fewest requests turned
    away and the soonest answers is chosen; of those within 5 % of it, the one that was chosen without traffic, or else
    the one with the largest cache. Copies in host memory do not decide: `simulate` is told of them apart.
    """
    solution = solve(asked, options=options, quick=quick)
    first = solution.ranked[0]
    if traffic is None or not decides_plan(traffic) or not first.alone or first.holding.terms.blocked is not None:
        return solution
    staged = needless_stages(asked, [one.holding for one in solution.ranked])
    peers = [
        one
        for place, one in enumerate(solution.ranked)
        if one.alone and one.holding.verdict == first.holding.verdict and (place == 0 or place not in staged)
    ]
    if len(peers) == 1 or first.holding.verdict == "does_not_fit":
        return solution
    soon = _steady_answers(asked, peers, traffic.users or shown_users(asked))
    order = sorted(range(len(peers)), key=lambda n: soon[n])
    found: dict[int, TrafficRun] = {}
    for place in dict.fromkeys((0, *order[:_SIMULATED])):
        try:
            found[place] = traffic_run(asked.but(host_tokens=0), peers[place], traffic, ends=False)
        except GlmplanError:
            return solution  # nothing can be simulated, which the answer says where it matters
    best = _best(found, peers)
    told = {id(peers[best]): ""}
    for place, one in enumerate(peers):
        if place != best:
            known = found.get(place)
            seconds = known.e2e.value if known is not None else soon[place]
            how = "" if known is not None else "about "
            told[id(one)] = f"a whole answer takes {how}{seconds:,.0f} s instead of {found[best].e2e.value:,.0f}"
    rest = [one for one in solution.ranked if one is not peers[best]]
    ranked = [replace(one, why=told.get(id(one), one.why)) for one in (peers[best], *rest)]
    return replace(solution, ranked=tuple(ranked))


def _steady_answers(asked: Asked, peers: list[Scored], users: int) -> list[float]:
    """How long a whole answer takes by steady sums, of each layout, [s]"""
    seconds = []
    for one in predicted(asked, [(one.holding, users) for one in peers]):
        first, later = one.figures.get("ttft"), one.figures.get("tpot")
        each = later.value * (asked.output_tokens - 1) if later is not None else 0.0
        seconds.append((first.value if first is not None else 0.0) + each)
    return seconds


def _best(found: dict[int, TrafficRun], peers: list[Scored]) -> int:
    """The place of the layout that serves the traffic best."""
    least = min(one.rejected + one.left for one in found.values())
    served = {place: one for place, one in found.items() if one.rejected + one.left == least and one.e2e.value}
    if not served:
        return 0
    soonest = min(one.e2e.value for one in served.values())
    alike = [place for place, one in served.items() if one.e2e.value <= soonest * (1.0 + LEAST_GAIN)]
    return 0 if 0 in alike else max(alike, key=lambda place: peers[place].holding.held)
