"""Scores of whole distributions: Winkler score, CRPS, coverage, and the narrowest constant interval."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.calibrate.backtest.sharpness import constant_ratio, crps, sharpness_of, winkler
from glmplan.prediction.distribution import NORMAL

#: standard deviations from the middle of a 90 % interval to its end [-]
END = 1.645


def test_an_interval_that_holds_the_outcome_scores_its_width_and_one_that_misses_twenty_times_the_distance():
    scores = winkler(np.array([0.0, -0.3, 0.5]), np.full(3, -0.2), np.full(3, 0.4))
    assert scores == pytest.approx([0.6, 0.6 + 20 * 0.1, 0.6 + 20 * 0.1])


def test_the_right_width_of_a_normal_error_scores_best():
    error = np.random.default_rng(1).normal(0.0, 0.2, 200_000)
    widths, tails = np.array([0.6, 0.8, 1.0, 1.25, 1.6]) * END * 0.2, np.tile(NORMAL, (len(error), 1))
    for score in (
        lambda end: winkler(error, np.full(len(error), -end), np.full(len(error), end)).mean(),
        lambda end: crps(error, np.full(len(error), -end), np.full(len(error), end), tails).mean(),
    ):  # fmt: skip
        values = [score(end) for end in widths]
        assert np.argmin(values) == 2


def test_the_crps_of_a_normal_distribution_is_the_published_one():
    # Gneiting and Raftery 2007, equation 20: at the median (sqrt(2) - 1) / sqrt(pi) of the deviation
    found = crps(np.array([0.0]), np.array([-END]), np.array([END]), np.array([NORMAL]))
    # the table of quantiles is linear between its probabilities
    assert found[0] == pytest.approx((np.sqrt(2.0) - 1.0) / np.sqrt(np.pi), rel=0.05)


def test_a_group_has_one_vote_in_the_score_however_many_rows_it_has():
    group = np.array(["a"] * 98 + ["b", "b"])
    error = np.where(group == "a", 0.0, 1.2)
    ends = (np.full(100, -0.2), np.full(100, 0.2), np.tile(NORMAL, (100, 1)))
    found = sharpness_of(("x", "decode", True), error, ends, group, np.ones(100))
    assert (found.groups, found.coverage, found.ratio) == (2, pytest.approx(0.5), pytest.approx(np.exp(0.4)))
    assert found.winkler == pytest.approx(0.4 + 0.5 * 20 * 1.0)


def test_the_narrowest_constant_leaves_a_tenth_of_the_votes_outside():
    error = np.concatenate([np.linspace(-0.1, 0.1, 90), np.full(10, 3.0)])
    assert constant_ratio(error, np.ones(100)) == pytest.approx(np.exp(0.2), rel=1e-3)
