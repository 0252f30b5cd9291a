"""Goals of the 90 % intervals by class of evidence, all settings stated: met, or missed with the measured value.

Goals are those of the design of the intervals: high over low that 90 % of the groups need, and a coverage that a
binomial test does not reject.
"""

from __future__ import annotations

import math

import pytest
from scipy.stats import binomtest

from glmplan.calibrate.backtest.accuracy import accuracy
from glmplan.calibrate.step.crossvalidate import read_beyond
from glmplan.calibrate.step.write import read_left_out
from glmplan.prediction.effects import shipped_effects

#: kind, class of evidence → largest median of high over low [-]
WIDTHS = {
    ("decode", "another load of a sweep"): 1.6,
    ("decode", "another layout of a campaign"): 1.8,
    ("decode", "measured elsewhere"): 2.1,
    ("decode", "pair"): 2.3,
    ("decode", "new model"): 2.6,
    ("decode", "new accelerator"): 2.3,
    ("ttft", "another load of a sweep"): 2.2,
    ("ttft", "another layout of a campaign"): 2.3,
    ("ttft", "measured elsewhere"): 3.3,
    ("ttft", "pair"): 4.0,
    ("ttft", "new model"): 4.5,
    ("ttft", "new accelerator"): 4.7,
}
#: kind → high over low of a site's own configuration after two points [-]
OWN = {"decode": 1.24, "ttft": 1.7}
#: Winkler scores of all left-out rows at 877fcaa8 by kind (docs/calibration-log.md); the goal is a third less [-]
BEFORE = {"decode": 1.77, "ttft": 3.65}
#: goals that are missed, with the measured value: what was tried stands in docs/calibration-log.md
MISSED: dict[tuple[str, ...], float] = {
    ("width", "decode", "another layout of a campaign"): 2.075,
    ("width", "decode", "measured elsewhere"): 2.407,
    ("width", "decode", "new accelerator"): 2.449,
    ("width", "ttft", "another layout of a campaign"): 3.299,
    ("width", "ttft", "measured elsewhere"): 5.159,
    ("width", "ttft", "pair"): 5.359,
    ("width", "ttft", "new model"): 5.403,
    ("width", "ttft", "new accelerator"): 5.905,
    ("winkler", "decode"): 1.574,
    ("winkler", "ttft"): 3.363,
    ("own", "decode"): 1.473,
    ("own", "ttft"): 1.799,
}


@pytest.fixture(scope="module")
def sharpness():
    found = accuracy(read_left_out(), beyond=read_beyond())
    return {(one.kind, one.name): one for one in found.sharpness if one.stated}, {
        one.kind: one for one in found.sharpness if one.name == "all" and one.stated is None
    }


def reached(name, value, met):
    """Expect a goal, or its miss by the measured value where it is known to be missed."""
    if name not in MISSED:
        assert met, value
        return
    assert not met, f"reached ({value:.3f}): take it out of MISSED"
    assert value == pytest.approx(MISSED[name], rel=0.05), "the miss is another one: tell it"
    pytest.xfail(f"{value:.3f}")


@pytest.mark.parametrize("name", list(WIDTHS), ids=" ".join)
def test_an_interval_is_as_narrow_as_its_class_allows(sharpness, name):
    value = sharpness[0][name].ratio
    reached(("width", *name), value, value <= WIDTHS[name])


@pytest.mark.parametrize("name", list(WIDTHS), ids=" ".join)
def test_coverage_of_a_class_is_not_rejected(sharpness, name):
    one = sharpness[0][name]
    chance = binomtest(round(one.coverage * one.groups), one.groups, 0.9).pvalue
    reached(("coverage", *name), one.coverage, chance >= 0.05)


@pytest.mark.parametrize("kind", list(BEFORE))
def test_nine_groups_in_ten_are_covered_over_all(sharpness, kind):
    value = sharpness[1][kind].coverage
    reached(("coverage", kind, "all"), value, 0.87 <= value <= 0.93)


@pytest.mark.parametrize("kind", list(BEFORE))
def test_the_winkler_score_is_a_third_lower_than_before(sharpness, kind):
    value = sharpness[1][kind].winkler
    reached(("winkler", kind), value, value <= BEFORE[kind] * 2.0 / 3.0)


@pytest.mark.parametrize("kind", list(OWN))
def test_two_own_points_leave_little_open(kind):
    low, high = shipped_effects("vllm").intervals["site"][kind]
    value = math.exp(high - low)
    reached(("own", kind), value, value <= OWN[kind])
