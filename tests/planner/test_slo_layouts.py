"""The layout for an SLO: the one with the most users within it, unless its own ignorance makes it so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glmplan.planner import slo_layouts
from glmplan.planner.question import read_words
from glmplan.planner.slo_layouts import solve_for_slo
from glmplan.planner.users import solve, users_within
from glmplan.request.plan import PlanRequest
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import parse_traffic

TRAFFIC = parse_traffic("closed:1", input=2048, output=512)


@pytest.fixture(scope="module")
def solution():
    return solve(read_words(PlanRequest("gpt-oss-120b", "4xh100-sxm")))


@pytest.fixture
def by_sums(monkeypatch):
    """Count users by steady sums alone, which takes no simulation."""
    monkeypatch.setattr(slo_layouts, "_load", lambda asked, one, _, *rest: slo_layouts._users(asked, one, *rest))


def test_under_an_slo_the_layout_with_more_users_is_chosen(solution, by_sums):
    targets = parse_slo("tpot mean < 30 ms")
    found = solve_for_slo(solution, TRAFFIC, targets)
    before, after = (users_within(one.asked, one.best, 0.95, {"tpot": 0.03}) for one in (solution, found))
    assert solution.best.terms.dp == 1 and found.best.terms.dp == 4
    assert after > 1.05 * before
    assert {id(one.holding) for one in found.ranked} == {id(one.holding) for one in solution.ranked}


def test_a_request_rate_has_the_layout_with_the_largest_margin_at_it(monkeypatch):
    solution = solve(read_words(PlanRequest("gpt-oss-120b", "4xh100-sxm")))
    traffic = parse_traffic("poisson:4/s", input=2048, output=512)
    found = solve_for_slo(solution, traffic, parse_slo("ttft p95 < 2 s, tpot p95 < 20 ms"))
    assert solution.best.terms.dp == 1 < found.best.terms.dp
    # the margins are those at the rate, of the chosen layout and of those with more users
    asked = []

    def margin(_, one, at, *rest):
        asked.append(at.rate)
        return 1.2 if one.holding.terms.dp > 1 else 1.0

    monkeypatch.setattr(slo_layouts, "_margin", margin)
    found = solve_for_slo(solution, traffic.at_load(2.0), parse_slo("ttft p95 < 2 s, tpot p95 < 20 ms"))
    assert found.best.terms.dp > 1 and set(asked) == {2.0}


def test_a_bound_on_ttft_does_not_hide_the_layout_that_carries_the_rate(solution):
    """Users of a closed loop start in step: data-parallel layouts miss TTFT there, and carry the highest rate."""
    traffic = parse_traffic("poisson:10/s", input=2000, output=500)
    targets = parse_slo("ttft p95 < 2 s, tpot p95 < 50 ms")
    found = solve_for_slo(solution, traffic, targets)
    margins = {
        id(one.holding): slo_layouts._margin(solution.asked, one, traffic, targets, 0.95)
        for one in found.ranked
        if one.alone
    }
    assert margins[id(found.best)] > 0.95 * max(margins.values())


def test_without_an_slo_and_for_a_typed_layout_nothing_changes(solution, by_sums):
    assert solve_for_slo(solution, TRAFFIC, ()) is solution
    typed = solve(read_words(PlanRequest("gpt-oss-120b", "4xh100-sxm", tp="4", pp="1", dp="1", ep="1")))
    assert solve_for_slo(typed, TRAFFIC, parse_slo("tpot mean < 30 ms")).best.terms == typed.best.terms


def test_a_layout_of_weaker_evidence_has_to_be_better_in_the_median_too(solution, monkeypatch):
    """At 95 % the unknown layout has more users, in the median fewer: the one that was measured stays."""
    ranked = [
        replace(one, knowledge="configuration" if not place else "nothing") for place, one in enumerate(solution.ranked)
    ]
    known = replace(solution, ranked=tuple(ranked))

    def score(asked, one, *rest):
        first = one is known.ranked[0]
        return {0.95: 10.0 if first else 20.0, 0.5: 40.0 if first else 30.0}[rest[-1]]

    monkeypatch.setattr(slo_layouts, "_load", score)
    monkeypatch.setattr(slo_layouts, "_users", score)
    assert solve_for_slo(known, TRAFFIC, parse_slo("tpot mean < 30 ms")) is known
