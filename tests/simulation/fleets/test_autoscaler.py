"""The autoscaler follows the rules of Kubernetes and KEDA."""

from __future__ import annotations

import pytest

from glmplan.simulation.fleets.control import Scaling
from glmplan.simulation.fleets.spec import Autoscaler


def scaling(**rules: object) -> Scaling:
    return Scaling(Autoscaler(**{"metric": "concurrency", "target": 10.0, "min": 1, "max": 100} | rules))


def test_the_recommendation_is_the_metric_over_the_target_rounded_up():
    assert scaling().desired(0.0, 4, 61.0) == 7


@pytest.mark.parametrize(("total", "wanted"), [(43.0, 4), (37.0, 4), (45.0, 5)])
def test_nothing_changes_within_the_tolerance(total, wanted):
    assert scaling(stabilization_down=0.0).desired(0.0, 4, total) == wanted


def test_scaling_up_is_limited_to_doubling_or_four_in_a_period():
    assert scaling().desired(0.0, 2, 1000.0) == 6  # 4 more than 2 are more than double
    assert scaling().desired(0.0, 10, 1000.0) == 20
    twice = scaling(policy_period=60.0)
    assert twice.desired(0.0, 2, 1000.0) == 6
    assert twice.desired(15.0, 6, 1000.0) == 6  # used up for this minute
    assert twice.desired(61.0, 6, 1000.0) == 12


def test_scaling_down_waits_for_the_highest_recommendation_of_its_window():
    one = scaling()
    assert one.desired(0.0, 4, 60.0) == 6
    assert one.desired(15.0, 6, 10.0) == 6
    assert one.desired(299.0, 6, 10.0) == 6
    assert one.desired(316.0, 6, 10.0) == 1


def test_scaling_down_is_limited_by_its_policy():
    assert scaling().desired(0.0, 10, 5.0) == 10  # the window begins with what is there
    assert scaling(stabilization_down=0.0, down_percent=50).desired(0.0, 10, 5.0) == 5


def test_the_last_replica_goes_after_the_cooldown_and_comes_back_with_a_request():
    one = scaling(min=0, stabilization_down=0.0, cooldown=300.0)
    assert one.desired(0.0, 1, 3.0) == 1
    assert one.desired(30.0, 1, 0.0) == 1
    assert one.desired(300.0, 1, 0.0) == 1
    assert one.desired(330.0, 1, 0.0) == 0
    assert one.desired(345.0, 0, 0.0) == 0
    assert one.desired(360.0, 0, 1.0) == 1


def test_limits_hold():
    one = scaling(min=2, max=5, stabilization_down=0.0)
    one.desired(0.0, 4, 40.0)
    assert one.desired(15.0, 4, 1e9) == 5 and one.desired(30.0, 4, 0.0) == 2
