"""A promise beside what was measured."""

import pytest

from glmplan.errors import SpecError
from glmplan.measure.client import Endpoint
from glmplan.measure.ladder import LadderPlan, LadderRecord, StepResult, slo_targets, slo_verdicts
from glmplan.measure.load import Lengths

TARGETS = slo_targets("ttft p95 < 2 s, tpot < 30 ms")


def judged(*steps, targets=TARGETS):
    plan = LadderPlan(Lengths(64, 32), users=(1, 8))
    return slo_verdicts(LadderRecord(Endpoint("http://127.0.0.1/v1", "m"), plan, steps=list(steps)), targets)


def step(level=8, *, ttft=1500.0, tpot=20.0, **more):
    name = TARGETS[1].name
    return StepResult(level, figures={name: tpot}, quantiles={"ttft_p95_ms": ttft}, **more)


def test_a_promise_is_kept_where_the_last_step_is_within_every_bound():
    assert [one.met for one in judged(step())] == [True, True]


def test_the_last_step_is_judged_and_each_target_by_itself():
    late = judged(step(1, ttft=9.0), step(ttft=2000.0))
    assert [one.met for one in late] == [False, True]
    assert "missed: above the limit" in late[0].text


@pytest.mark.parametrize(
    ("steps", "why"),
    [
        ((), "not reached"),
        ((step(1),), "not reached"),
        ((step(complete=False),), "cut short"),
        ((step(unusable="the client was too slow"),), "the client was too slow"),
        ((step(outcomes={"done": 3, "failed": 2}),), "requests failed"),
    ],
)
def test_a_step_that_is_not_whole_keeps_nothing(steps, why):
    found = judged(*steps)
    assert len(found) == 2 and all(not one.met and why in one.text for one in found)


def test_what_was_not_measured_is_not_met():
    [one] = judged(step(), targets=slo_targets("e2e p99 < 9 s"))
    assert not one.met and one.measured is None


def test_what_only_the_server_sees_cannot_be_promised():
    with pytest.raises(SpecError, match="cannot be measured by a client"):
        slo_targets("queue p95 < 1 s")
