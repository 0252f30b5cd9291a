"""What memory is promised to be, held against every start-up log that ships: by source, one vote each.

The goals are those of released engines on discrete cards whose source tells the settings. Unified memory (free memory
differs from launch to launch), NVLink of compute capability 10 (one source) and images of the community are kept apart.
"""

from __future__ import annotations

import pytest
from start_up_errors import score_starts

#: quantity → median and 90th percentile over sources: [-] of weights and tokens, [GiB] of the pool, which has no second
GOALS = {"weights": (0.005, 0.02), "pool": (0.5, float("inf")), "tokens": (0.02, 0.06)}
#: between which the 90 % interval shall cover [-]
COVERAGE = (0.87, 0.93)


@pytest.fixture(scope="module")
def scores():
    return score_starts()


@pytest.fixture(scope="module")
def unseen():
    return score_starts(left_out=True)


@pytest.mark.parametrize("quantity", GOALS)
def test_errors_of_memory_are_within_the_goals_where_the_fit_has_not_seen_the_source(unseen, quantity):
    found, (median, p90) = unseen.score(quantity), GOALS[quantity]
    assert found.sources >= 8
    assert found.median <= median
    assert found.p90 <= p90


@pytest.mark.parametrize("quantity", GOALS)
def test_the_interval_of_memory_covers_sources_that_the_fit_has_not_seen(scores, unseen, quantity):
    found, seen = unseen.score(quantity), scores.score(quantity)
    assert round(found.coverage, 2) >= COVERAGE[0]
    assert found.width >= 0.99 * seen.width, "a fit of fewer sources is no surer"


@pytest.mark.parametrize("quantity", GOALS)
def test_errors_of_memory_are_within_the_goals(scores, quantity):
    found, (median, p90) = scores.score(quantity), GOALS[quantity]
    assert found.sources >= 8
    assert found.median <= median
    assert found.p90 <= p90


@pytest.mark.parametrize("quantity", GOALS)
def test_the_interval_of_memory_covers_what_it_says(scores, quantity):
    # in whole per cent, as the goal is told
    assert round(scores.score(quantity).coverage, 2) >= COVERAGE[0]


@pytest.mark.parametrize("quantity", GOALS)
def test_no_single_source_carries_the_goals(scores, quantity):
    median, _ = GOALS[quantity]
    origins = {one.origin for one in scores.errors if one.kind == "stock" and one.quantity == quantity}
    assert max(scores.score(quantity, without=one).median for one in origins) <= median


@pytest.mark.parametrize("quantity", ["weights", "pool"])
def test_the_interval_of_memory_is_no_wider_than_it_says(scores, unseen, quantity):
    assert round(scores.score(quantity).coverage, 2) <= COVERAGE[1]
    assert round(unseen.score(quantity).coverage, 2) <= COVERAGE[1]


def test_the_interval_of_the_tokens_is_that_of_the_pool(scores):
    """Eight of the ten sources log tokens; the one that lies outside of its pool's interval logs none."""
    by = {(one.id, one.quantity): one for one in scores.errors if one.kind == "stock"}
    outside = {one.origin for one in by.values() if one.quantity == "pool" and not one.inside}
    for (name, quantity), tokens in by.items():
        if quantity != "tokens":
            continue
        pool = by[name, "pool"]
        wide = [(one.high - one.low) / one.predicted for one in (pool, tokens)]
        assert wide[1] == pytest.approx(wide[0], rel=0.05) and tokens.origin not in outside
    assert len(outside) == 1


def test_a_log_that_tells_no_settings_lies_inside_an_interval_that_spans_them(scores):
    found, told = scores.score("pool", kinds=("open",)), scores.score("pool")
    assert found.logs >= 2 and found.coverage >= COVERAGE[0]
    assert found.width > told.width
