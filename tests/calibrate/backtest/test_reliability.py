"""Stated probabilities of left-out rows against the frequencies of their outcomes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glmplan.calibrate.backtest.accuracy import accuracy
from glmplan.calibrate.backtest.reliability import EDGES, MULTIPLES, SLOS, reliability_of, stated_of
from glmplan.calibrate.step.write import left_out_of
from glmplan.prediction.distribution import NORMAL, PROBABILITIES, log_quantile, share_below

#: a tail that is wider than that of a normal distribution on one side, and one with a step at its end [-]
TAIL, STEP = (1.9, 1.0, 0.7, 0.3, 0.5, 0.8, 1.0, 1.6), (1.0, 1.0, 0.7, 0.3, 0.5, 1.0, 1.0, 1.0)


def ends_of(low, high, tail=TAIL):
    return np.asarray(low, dtype=float), np.asarray(high, dtype=float), np.tile(tail, (len(low), 1))


def drawn(*, width=1.0, rows=20_000):
    """Return errors of known distributions, stated `width` times as wide."""
    chance = np.random.default_rng(7)
    low, high = -chance.uniform(0.1, 1.0, rows), chance.uniform(0.1, 1.5, rows)
    shares = chance.uniform(0.0, 1.0, rows)
    error = np.array([log_quantile(*one, TAIL) for one in zip(shares, zip(low, high, strict=True), strict=True)])
    distance = np.tile(np.log(MULTIPLES), (rows, 1))
    votes = np.arange(rows), np.ones(rows)
    return reliability_of("x", error, distance, ends_of(width * low, width * high), votes)


def test_probabilities_of_the_right_distribution_are_met():
    found = drawn()
    assert len(found.bins) == len(EDGES) - 1
    for one in found.bins:
        # all outcomes lie between the quantiles of 1 and 99 %, and no more than these is stated
        assert abs(one.frequency - one.stated) <= 3.0 * one.chance / 1.645 + 0.01


def test_the_scores_of_the_right_distribution_are_those_of_its_own_probabilities():
    found = drawn()
    chance = np.random.default_rng(7)
    low, high = -chance.uniform(0.1, 1.0, 20_000), chance.uniform(0.1, 1.5, 20_000)
    stated = stated_of(np.tile(np.log(MULTIPLES), (20_000, 1)), ends_of(low, high))
    assert found.brier == pytest.approx(np.mean(stated * (1.0 - stated)), rel=0.03)
    entropy = -np.mean(stated * np.log(stated) + (1.0 - stated) * np.log(1.0 - stated))
    assert found.log_score == pytest.approx(entropy, rel=0.03)


@pytest.mark.parametrize(("width", "sign"), [(0.5, 1), (2.0, -1)])
def test_a_wrong_width_leaves_the_diagonal_and_scores_worse(width, sign):
    right, wrong = drawn(), drawn(width=width)
    for one in wrong.bins:
        if 0.1 < abs(one.stated - 0.5) < 0.4:
            # too narrow: rare outcomes come more often than stated, likely ones less often
            assert sign * (one.frequency - one.stated) * (0.5 - one.stated) > 0.0
    assert wrong.brier > right.brier
    assert wrong.log_score > right.log_score
    assert wrong.distance > 4.0 * right.distance


@given(
    st.floats(-3.0, 3.0), st.floats(-2.0, -0.01), st.floats(0.01, 2.0), st.sampled_from([NORMAL, TAIL, STEP])
)  # fmt: skip
@settings(deadline=None)
def test_the_stated_probability_is_that_of_plans(distance, low, high, tail):
    [[found]] = stated_of(np.array([[distance]]), ends_of([low], [high], tail))
    least, most = PROBABILITIES[0], PROBABILITIES[-1]
    assert found == pytest.approx(min(max(share_below(distance, (low, high), tail), least), most), abs=1e-9)


def test_a_step_of_the_distribution_is_passed_at_its_distance():
    stated = stated_of(np.array([[-0.2, 0.4, 0.39]]), ends_of([-0.2], [0.4], STEP))
    assert stated[0, 1] == pytest.approx(0.99)
    assert stated[0] == pytest.approx(
        [min(max(share_below(one, (-0.2, 0.4), STEP), 0.01), 0.99) for one in (-0.2, 0.4, 0.39)]
    )


@given(st.integers(1, 40))
@settings(deadline=None)
def test_a_group_has_one_vote_in_each_bin_however_many_rows_it_has(copies):
    group = np.array(["a"] * copies + ["b"])
    error = np.where(group == "a", -0.1, 0.1)
    ends = ends_of([-0.3] * len(group), [0.3] * len(group))
    found = reliability_of("x", error, np.zeros((len(group), 1)), ends, (group, np.ones(len(group))))
    [one] = found.bins
    assert (one.stated, one.frequency, one.groups) == (pytest.approx(0.5), pytest.approx(0.5), 2)
    assert found.brier == pytest.approx(0.25)


def test_a_slow_row_misses_the_slo_of_its_own_metric(small_fit, small_runs):
    table = accuracy(left_out_of(small_fit[0]), small_runs).table
    row = np.flatnonzero((table.figure == "TPOT") & ~np.isnan(table.ends["random"][0]))[0]
    measured, error = table.measured[row], table.residual["random"][row]
    predicted = measured / np.exp(error)
    for limit in SLOS["TPOT"]:
        # the time at which a plan states the probability is the predicted one
        assert np.log(limit / measured) + error == pytest.approx(np.log(limit / predicted))
        assert (measured <= limit) == (error <= np.log(limit / predicted))


def test_each_metric_with_several_groups_has_its_probabilities(small_fit, small_runs):
    table = accuracy(left_out_of(small_fit[0]), small_runs).table
    assert table.reliability() == ()  # too few groups
    # each run a group of its own
    found = replace(table, group=table.run.astype(str)).reliability()
    assert {"decode", "ttft", "TPOT SLO", "TTFT SLO"} <= {one.name for one in found}
    for one in found:
        assert 0.0 <= one.brier <= 1.0 and one.log_score > 0.0
        assert sum(part.outcomes for part in one.bins) == one.outcomes
