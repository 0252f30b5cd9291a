"""The probability of a purchase: chosen by the cost of a miss, and what one benchmark saves."""

from __future__ import annotations

from datetime import date

import pytest

from glmplan.errors import SpecError
from glmplan.purchase.compare import compared
from glmplan.purchase.money import money_of
from glmplan.purchase.size import sized
from glmplan.purchase.size_question import read_size

MONEY = money_of(today=date(2026, 11, 22))


@pytest.mark.parametrize(("cost", "probability"), [(1.0, 0.5), (4.0, 0.8), (19.0, 0.95), (1e9, 0.99)])
def test_the_cost_of_a_miss_chooses_the_probability_with_the_least_expected_cost(cost, probability):
    asked = read_size("llama-3.1-8b", "tpot p95 < 50 ms", users=4, cost_of_miss=cost)
    assert asked.probability == pytest.approx(probability)


def test_a_cost_beside_a_probability_is_refused():
    with pytest.raises(SpecError, match="--cost-of-miss"):
        read_size("llama-3.1-8b", "tpot p95 < 50 ms", users=4, cost_of_miss=4.0, probability=0.9)


def test_one_benchmark_saves_the_machines_that_shared_ignorance_costs():
    asked = read_size(
        "glm-5.1-nvfp4", "tpot mean < 90 ms", users=40, only="6xrtx-pro-6000-ws", machines=64, input=2048, output=512
    )
    found = sized(asked, MONEY, answers=1)
    [option] = found.options
    assert found.measured is not None and found.measured.machines == option.machines > 1
    # the prediction stays, and most of the interval goes: a seventh of the machines is enough
    assert 1 < found.measured.after < option.machines / 3
    assert "glmplan validate" in found.measured.command


def test_loads_of_an_answer_rise_as_the_probability_falls():
    asked = read_size("llama-3.1-8b", "tpot mean < 20 ms", users=8, only="1xh100-sxm", input=500, output=100)
    [option] = sized(asked, MONEY, answers=1).options
    assert [share for share, _ in option.at] == [0.95, 0.8, 0.5]
    loads = [load for _, load in option.at]
    assert loads == sorted(loads) and option.max_load == loads[0]


def test_a_plan_that_does_not_run_is_named_and_the_others_are_compared():
    plans = [
        ("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", {}),
        ("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", {"power_limit": "400W"}),
        ("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", {"kv": "bf16"}),
        ("glm-5.1-nvfp4", "4xrtx-pro-6000-ws", {}),
    ]
    found = compared(plans, MONEY, users=8)
    assert len({side.name for side in found.sides}) == len(found.sides) == 2
    slower = [side.prediction.figures["tpot"].value for side in found.sides]
    assert slower[0] < slower[1]
    assert [name for _, name, _ in found.left_out] == [
        "glm-5.1-nvfp4 on 6xrtx-pro-6000-ws, kv bf16", "glm-5.1-nvfp4 on 4xrtx-pro-6000-ws",
    ]  # fmt: skip
    row = found.sides[0].figures(1.0)
    assert row["users_at_95"] < row["users_at_80"] < row["users_at_50"] and 0.5 < row["probability"] < 0.95
