"""Pipeline stages on unlike accelerators: their layers, memory, step time and launch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.costs.memory.pool import budget_rows, kv_pool, stage_pools
from glmplan.costs.memory.ranks import rank_memory
from glmplan.costs.memory.settings import MemorySettings, part_memory
from glmplan.costs.points import Layout, StepPoints
from glmplan.errors import SpecError
from glmplan.planner.capacity import Ranks
from glmplan.planner.make_plan import fit_answer
from glmplan.planner.ranking import deployment_of, load_on
from glmplan.prediction.predict import predict
from glmplan.prediction.step_models import StagedSteps, step_model_of, without_hiding
from glmplan.request.plan import PlanRequest

BOTH = "rtx-5090+rtx-5080"


def answer(on=BOTH, engine="vllm", model="qwen3-30b-a3b", **more):
    words = {"weights": "fp8", "pp": 2} | more
    return fit_answer(PlanRequest(model, on, engine=engine, **words), changes=False)


@pytest.fixture(scope="module")
def plan():
    return answer()


def with_layers(found, *layers):
    return Ranks(found.asked, []).hold(replace(found.holding.terms, layers=layers))


def test_each_stage_is_held_by_its_own_card(plan):
    model, settings = plan.asked.model, plan.holding.memory.settings
    layers = plan.holding.terms.layers
    assert sum(layers) == len(model.layer_names) and layers[0] > layers[1]
    large, small = (part_memory(load_accelerator(name)) for name in ("rtx-5090", "rtx-5080"))
    alone = rank_memory(model, plan.asked.checkpoint, layout=Layout(tp=1, pp=2), kv="bf16", settings=settings,
                        memory=plan.asked.machine.accelerator.memory)  # fmt: skip
    expected = [budget_rows(alone, part)[stage] for stage, part in enumerate((large, small))]
    assert [row.cache for row in plan.ranks] == [row.cache for row in expected]
    assert [row.capacity for row in plan.ranks] == [large.total, small.total]
    # 48 equal layers of experts and attention, the embedding before and the head behind them
    each = (expected[0].weights["routed_experts"] / layers[0], expected[1].weights["routed_experts"] / layers[1])
    assert each[0] == pytest.approx(each[1])
    tokens = min(row.cache / row.per_token for row in expected)
    assert plan.holding.pool.tokens == pytest.approx(tokens, abs=16)


def test_equal_cards_hold_what_the_even_plan_holds():
    even = answer("2xrtx-5090")
    memory, part = even.holding.memory, part_memory(load_accelerator("rtx-5090"))
    same = replace(part, stages=(part, part))
    for engine in ("vllm", "sglang"):
        found = answer("2xrtx-5090", engine)
        memory = found.holding.memory
        one, two = (kv_pool(memory, each, context=2560.0) for each in (part, same))
        slack = 0.0 if engine == "vllm" else 1e-3  # SGLang: the least free memory of all ranks, not of a stage
        assert two.tokens == pytest.approx(one.tokens, rel=slack + 1e-12)
    plain = replace(even.holding.memory.settings, partitions=())
    told = replace(plain, partitions=((24, 24),))
    held = [
        rank_memory(even.asked.model, even.asked.checkpoint, layout=Layout(tp=1, pp=2), kv="bf16", settings=one)
        for one in (plain, told)
    ]
    assert held[0].weights.tolist() == held[1].weights.tolist()


def test_equal_cards_take_the_time_of_the_even_plan():
    even = answer("2xrtx-5090")
    kind = step_model_of(deployment_of(even.asked, even.holding.terms))
    staged = StagedSteps((kind,), ((0, 0.5), (0, 0.5)))
    ones = np.ones(4)
    points = StepPoints(np.array([1.0, 8.0, 0.0, 8.0]), 2048 * ones, np.array([0.0, 0.0, 512.0, 512.0]), 256 * ones)
    assert staged.times(points).seconds == pytest.approx(kind.times(points).seconds, rel=1e-12)
    assert staged.times(points).shares == pytest.approx(kind.times(points).shares, rel=1e-12)


@pytest.mark.parametrize("users", [1, 32])
def test_equal_cards_have_the_predictions_of_the_even_plan(users):
    even = answer("2xrtx-5090", users=(users,))
    deployed = deployment_of(even.asked, even.holding.terms)
    load = load_on(even.asked, deployed, even.holding, users)
    one, two = (predict(each, load).figures for each in (deployed, replace(deployed, stages=(("rtx-5090", 24),) * 2)))
    assert one.keys() == two.keys()
    for name, figure in one.items():
        assert two[name].value == pytest.approx(figure.value, rel=1e-9)
        assert two[name].low <= figure.low and figure.high <= two[name].high


def test_a_pass_is_the_sum_of_stages_and_the_slowest_sets_the_rate_of_many(plan):
    found = deployment_of(plan.asked, plan.holding.terms)
    model = step_model_of(found)
    kinds = [step_model_of(one) for one in found.kinds.values()]
    first, second = (layers / 48 for _, layers in found.stages)
    one, many = (
        StepPoints(*np.array([[1.0], [2048.0], [0.0], [0.0]])),
        StepPoints(*np.array([[32.0], [2048.0], [0.0], [0.0]])),
    )
    fast, slow = (float(kind.times(one).seconds[0]) for kind in kinds)
    assert model.times(one).seconds == pytest.approx([first * fast + second * slow])
    fast, slow = (float(kind.times(many).seconds[0]) for kind in kinds)
    assert model.times(many).seconds == pytest.approx([2 * max(first * fast, second * slow)])
    assert model.least(many) <= model.times(many).seconds
    assert without_hiding(model) is None


@pytest.mark.parametrize("users", [None, (96,)])
def test_the_layers_hold_the_users_and_then_are_the_fastest(users):
    found = answer("rtx-5090+rtx-3090", users=users)
    terms, most = found.holding.terms, found.asked.most_users
    rates = [load_accelerator(name).memory_bandwidth for name in found.asked.machine.stages]
    ranked = {}
    for first in range(1, 48):
        held = with_layers(found, first, 48 - first)
        slowest = max(first / rates[0], (48 - first) / rates[1])
        if held.verdict != "does_not_fit":
            ranked[held.terms.layers] = (-min(held.held_low, most), -min(held.held, most), slowest)
    best = min(ranked.values())
    assert ranked[terms.layers] == best
    balanced = min(ranked, key=lambda layers: ranked[layers][2])
    if users is None:  # enough memory: only time decides
        assert terms.layers == balanced
    else:  # the fast card gives layers to the slower one
        assert terms.layers[0] < balanced[0]


def test_the_order_of_cards_decides_only_their_numbers():
    first, second = answer(BOTH), answer("rtx-5080+rtx-5090")
    for one in ("verdict", "user_rate", "total_rate", "safe", "context", "knowledge"):
        assert getattr(first, one) == getattr(second, one)
    assert first.holding.pool == second.holding.pool and first.holding.terms == second.holding.terms
    assert "CUDA_VISIBLE_DEVICES=0,1" in first.command and "CUDA_VISIBLE_DEVICES=1,0" in second.command
    rest = [[word for word in one.command if "VISIBLE" not in word] for one in (first, second)]
    assert rest[0] == rest[1]
    assert f"VLLM_PP_LAYER_PARTITION={','.join(map(str, first.holding.terms.layers))}" in rest[0]


def test_sglang_sizes_every_stage_by_the_least_free_memory():
    found = answer(engine="sglang")
    holding = found.holding
    pools = stage_pools(holding.memory, holding.part)
    assert pools[0].pool.tolist() == pools[1].pool.tolist()
    own = []
    for stage, part in zip(holding.memory.stages, holding.part.stages, strict=True):
        uniform = stage_pools(holding.memory, part)[stage.index]
        own.append(
            (part.total - uniform.context - stage.weight_bytes - uniform.remainder, part.total - uniform.context)
        )
    after, before = (np.min(column, axis=0) for column in zip(*own, strict=True))
    share = pools[0].limit / before
    assert pools[0].pool == pytest.approx(after - (1 - share) * before)
    assert any(word.startswith("SGLANG_PP_LAYER_PARTITION=") for word in found.command)


def test_stages_of_several_ranks_are_on_one_kind():
    found = answer("2xrtx-4090+2xrtx-5090")
    assert found.holding.terms.layout[:2] == (2, 2)
    assert found.asked.machine.stages == ("rtx-5090", "rtx-4090")
    assert found.asked.machine.host.accelerator_names == ("rtx-5090",) * 2 + ("rtx-4090",) * 2
    assert len(found.ranks) == 4
    # three cards in two stages: one kind alone, as before
    assert answer("2xrtx-5090+1xrtx-4090").asked.machine.left_out == "1 × rtx-4090"
    # SGLang wants equal memory on all ranks of a world with tensor parallelism
    assert not answer("2xrtx-4090+2xrtx-5090", "sglang").asked.machine.stages
    assert len(answer("2xrtx-4090+2xrtx-5090", "sglang", pp=4).asked.machine.stages) == 4


def test_evidence_is_that_of_the_weakest_card_and_never_of_a_measured_plan():
    weak = {name: answer(f"2x{name}").knowledge for name in ("rtx-5090", "rtx-3090")}
    order = ("pair", "format", "accelerator", "model")
    mixed = answer("rtx-5090+rtx-3090")
    assert mixed.knowledge == max(weak.values(), key=order.index)
    measured = answer("rtx-pro-6000-ws+rtx-5090", model="llama-3.1-8b", weights="fp8")
    assert measured.knowledge not in ("configuration", "group", "release", "group_release")


def test_three_kinds_are_planned_and_four_are_not():
    three = answer("rtx-5090+rtx-4090+rtx-3090", pp=3)
    assert len(three.holding.terms.layers) == 3 and three.verdict == "fits"
    with pytest.raises(SpecError, match="more than 3 kinds"):
        answer("rtx-5090+rtx-4090+rtx-3090+rtx-5080", pp=4)


def test_a_power_limit_is_refused():
    with pytest.raises(SpecError, match="--power-limit"):
        answer(power_limit=300.0)


def test_memory_settings_take_one_partition_for_each_layout(plan):
    model, checkpoint = plan.asked.model, plan.asked.checkpoint
    settings = MemorySettings(engine="vllm", partitions=((47, 1), (1, 47)))
    held = rank_memory(model, checkpoint, layout=Layout(tp=np.ones(2), pp=np.full(2, 2)), kv="bf16", settings=settings)
    assert [stage.layers.tolist() for stage in held.stages] == [[47, 1], [1, 47]]


def test_all_kinds_are_a_change_of_a_plan_on_one_kind():
    words = PlanRequest("qwen3-30b-a3b", BOTH, engine="vllm", weights="fp8")
    found = fit_answer(words)
    assert found.verdict == "does_not_fit" and "--pp 2" in [change.ask for change in found.changes]
