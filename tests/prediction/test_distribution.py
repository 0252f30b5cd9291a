"""The predictive distribution: quantiles, their inverse, and the probabilities that may be asked for."""

from __future__ import annotations

import math

import pytest

from glmplan.errors import SpecError
from glmplan.prediction.distribution import (
    NORMAL,
    PROBABILITIES,
    Spread,
    linear_quantile,
    log_quantile,
    probability_asked,
    share_below,
    standard,
)
from glmplan.prediction.predict import Figure

#: a tail of left-out errors: short inside, long outside
LONG = (2.5, 1.0, 0.6, 0.2, 0.3, 0.7, 1.0, 3.0)


@pytest.mark.parametrize("tail", [NORMAL, LONG])
def test_the_share_below_a_quantile_is_its_probability(tail):
    ends = (-0.3, 0.9)
    for share in (0.02, 0.05, 0.2, 0.5, 0.66, 0.8, 0.95, 0.985):
        assert share_below(log_quantile(share, ends, tail), ends, tail) == pytest.approx(share, abs=1e-9)


def test_a_normal_spread_has_the_quantiles_of_a_normal_distribution():
    ends = (-1.6448536, 1.6448536)
    for share in (0.025, 0.3, 0.6, 0.8, 0.925, 0.975):
        assert log_quantile(share, ends, NORMAL) == pytest.approx(standard(share), abs=2e-3)


def test_the_middle_is_the_prediction_however_unequal_the_sides():
    spread = Spread(0.9, 3.0, LONG)
    assert spread.quantile(0.5) == 1.0
    assert spread.quantile(0.95) == pytest.approx(3.0) and spread.quantile(0.05) == pytest.approx(0.9)


def test_beyond_its_last_probabilities_the_table_says_nothing():
    assert share_below(math.inf, (-1.0, 1.0)) == 1.0 and share_below(-math.inf, (-1.0, 1.0)) == 0.0
    assert log_quantile(0.999, (-1.0, 1.0)) == log_quantile(PROBABILITIES[-1], (-1.0, 1.0))


@pytest.mark.parametrize("given", [0, 1, 1.5, -0.2, 0.995, "nan"])
def test_a_probability_that_errors_cannot_tell_is_refused(given):
    with pytest.raises(SpecError, match="--probability"):
        probability_asked(given)


def test_a_bound_better_than_the_physical_limit_is_never_met():
    figure = Figure(1.0, 0.8, 1.5, best=0.7)
    assert figure.share_below(0.69) == 0.0
    assert figure.share_below(figure.quantile(0.8)) == pytest.approx(0.8)


def test_a_pool_is_spread_by_each_of_its_sides():
    assert linear_quantile(0.05, 0.8, 1.1) == pytest.approx(0.8)
    assert linear_quantile(0.95, 0.8, 1.1) == pytest.approx(1.1)
    assert linear_quantile(0.01, 0.2, 1.1) == 0.0
