"""Cases that buyers told in public, each from one question to the figures that a purchase needs."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date

import numpy as np
import pytest

import glmplan
from glmplan.present.size_text import size_content, size_text
from glmplan.purchase.money import money_of
from glmplan.purchase.size import sized
from glmplan.purchase.size_question import read_size

TODAY = date(2026, 11, 22)


def answer(model, slo, *, answers=1, prices=(), **said):
    """What `glmplan size --format json` prints: the rows of the answer, and all of it."""
    found = sized(read_size(model, slo, kind="buy", **said), money_of(prices, today=TODAY), answers=answers)
    content = json.loads(json.dumps(size_content(found)))
    return content["options"], content | {"page": size_text(found, content)}


@pytest.fixture(scope="module")
def engineers():
    said = {"users": 20, "input": 8000, "output": 500, "budget": "100k", "only": "rtx-pro-6000-ws"}
    return answer("glm-5.1", "ttft p95 < 60 s, tpot p95 < 200 ms", **said)


def test_twenty_engineers_with_a_hundred_thousand_dollars_are_told_what_comes_nearest(engineers):
    # the purchase this program was begun for: GLM-5.1 on cards of 96 GB; five do not hold 433 GB of NVFP4
    [first, *_], content = engineers
    assert first["machine"] in ("6xrtx-pro-6000-ws", "7xrtx-pro-6000-ws", "8xrtx-pro-6000-ws")
    assert first["weights"] in ("nvfp4", "nvfp4-cortexlm")
    # cards of 8,882 USD in the middle of what sellers ask, and a host of 10,000 for seven of them
    cards = int(first["machine"][0])
    assert first["usd_purchase"] == pytest.approx(cards * 8882.5 + -(-cards // 7) * 10_000, rel=0.02)
    assert first["usd_purchase"] <= 100_000
    # 75 % of 600 W each, 400 W for the rest, a supply of 92 %
    assert first["kw"] == pytest.approx((cards * 450 + 400) / 0.92 / 1000, rel=0.01)
    assert 0.6 <= first["probability"] <= 1.0 and first["slo_met"] == (first["probability"] >= 0.95)
    assert first["slo_met"] == (first["role"] == "answer") and (first["slo_met"] or first["limited_by"])
    assert first["violated_at_users"] > 0 and content["per_token"]["usd_month"] > 0


@pytest.mark.parametrize("cards", [6, 7, 8])
def test_no_affordable_number_of_cards_keeps_the_promise_more_surely_than_the_nearest(engineers, cards):
    [first, *_], _ = engineers
    one = glmplan.deployment("glm-5.1", f"{cards}xrtx-pro-6000-ws", weights="nvfp4", input=8000, output=500)
    assert (
        glmplan.kept(one, "ttft p95 < 60 s, tpot p95 < 200 ms", "closed:20").probability <= first["probability"] + 0.002
    )


def test_the_nearest_purchase_says_what_it_would_miss_how_surely_and_what_to_measure(engineers):
    [first, *_], content = engineers
    # no purchase for this money keeps the promise as surely as asked; where one does, ask here for more users
    assert not first["slo_met"]
    page = content["page"]
    # a probability is never rounded up
    shown = np.floor(100 * first["probability"]) / 100
    assert f"probability {shown:.2f} instead of 0.95" in page
    for one in first["slo"]:
        assert one["expected_ms_low"] < one["expected_ms"] < one["expected_ms_high"]
        assert f"{one['target']}: {one['expected_ms']:,.0f} ms" in page
    # the target that breaks first reaches beyond its bound at the slow end
    [missed] = [one for one in first["slo"] if one["target"] == first["limited_by"]]
    assert missed["expected_ms_high"] > missed["at_most_ms"]
    assert first["measure"].startswith("glmplan validate glm-5.1 ") and first["measure"] in page


def test_delivery_is_told_where_somebody_publishes_it_and_asked_for_where_nobody_does():
    said = {"users": 2, "input": 500, "output": 100, "only": "1xrtx-5090,8xb200-sxm,8xmi300x"}
    rows, content = answer("llama-3.1-8b-bf16", "tpot p95 < 60 ms", answers=3,
                           prices=["8xb200-sxm=400000", "8xmi300x=200000"], **said)  # fmt: skip
    by = {row["machine"]: row for row in rows if row["role"] == "answer"}
    b200, desk = by["8xb200-sxm"], by["1xrtx-5090"]
    # 36 to 52 weeks (hardwaredirect.com) and 4 to 10 months (gpuleaseindex.com), side by side
    assert (b200["delivery_weeks_low"], b200["delivery_weeks_high"]) == (pytest.approx(4 * 365 / 84), 52.0)
    assert "36 to 52 weeks" in b200["delivery"] and "4 to 10 months" in b200["delivery"]
    assert desk["delivery_weeks_low"] is None and "no public data" in desk["delivery"]
    assert desk["delivery"] in content["page"]
    # a second vendor among the answers is named
    assert "(AMD)" in desk["single_source"][0] or "8xmi300x" not in by


def test_a_rented_machine_has_no_delivery_and_names_a_seller_who_is_alone():
    found = sized(read_size("llama-3.1-8b-bf16", "tpot p95 < 60 ms", users=2, input=500, output=100, only="1xl40s",
                            kind="rent"), money_of(today=TODAY), answers=1)  # fmt: skip
    [row] = [row for row in size_content(found)["options"] if row["role"] == "answer"]
    assert row["delivery"] == "" and row["delivery_weeks_high"] is None
    assert len(row["single_source"]) == 2 and row["single_source"][1].startswith("Nebius ")


def test_power_limits_are_sized_as_they_were_measured():
    # rtx6kpro: 300 W costs 4 to 30 % of the speed, 500 W next to nothing; a card draws 450 W of its 600 while it serves
    said = {"users": 8, "input": 1000, "output": 200, "only": "1xrtx-pro-6000-ws", "power_limit": "300W,500W,600W"}
    rows, content = answer("llama-3.1-8b-bf16", "tpot p95 < 60 ms", answers=3, **said)
    by = {row["power_limit_w"]: row for row in rows if row["role"] == "answer"}
    assert set(by) == {300.0, 500.0, 600.0}
    assert by[300.0]["kw"] == pytest.approx(0.7 / 0.92) and by[500.0]["kw"] == by[600.0]["kw"] == pytest.approx(
        0.85 / 0.92
    )
    assert by[500.0]["kw_at_its_limit"] == pytest.approx(0.9 / 0.92)
    assert by[300.0]["usd_month"] < by[500.0]["usd_month"] == by[600.0]["usd_month"]
    speeds = [by[limit]["output_tokens_per_s"] for limit in (300.0, 500.0, 600.0)]
    # prompts lose what arithmetic loses, decoding hardly anything at 500 W
    assert speeds[0] < 0.96 * speeds[1] and speeds[1] < speeds[2] < 1.05 * speeds[1]
    assert by[300.0]["joules_per_output_token"] < by[600.0]["joules_per_output_token"]
    assert "1 server with 1 × rtx-pro-6000-ws at 300 W" in content["page"]
    assert [row["limited"] for row in (by[300.0], by[600.0])] == [True, False]


def test_a_larger_budget_is_no_reason_for_more_than_the_load_needs(engineers):
    [first, *_], content = engineers
    assert content["skipped"]["the weights are larger than the memory"] >= 10  # one to five cards, or other formats
    assert first["usd_purchase"] < content["budget_usd"]


def test_the_full_nvfp4_of_glm_5_2_is_not_sold_on_four_cards_of_96_gb():
    # OpenAgentsInc/openagents#6323: the full NVFP4 wants the larger box, a pruned one goes on four cards
    rows, content = answer("glm-5.2", "tpot p95 < 150 ms", users=4, input=2000, output=300, weights="nvfp4",
                           only="rtx-pro-6000-ws")  # fmt: skip
    assert content["skipped"]["the weights are larger than the memory"] == 4
    assert rows[0]["role"] == "answer" and rows[0]["accelerators"] >= 6 and rows[0]["probability"] >= 0.95


def test_a_model_that_runs_on_eight_cards_is_not_sized_at_eighty_eight():
    # redhat-performance/configiq#89: 88 H200 were recommended for what a benchmark shows on 8
    asked = read_size("glm-5.1", "tpot p95 < 60 ms", users=16, input=2000, output=300, weights="fp8",
                      only="8xh200-sxm", kind="rent", probability=0.9)  # fmt: skip
    # with the default of 0.95 two machines are asked for: one keeps the promise with 0.94
    found = sized(asked, money_of(today=TODAY), answers=1)
    assert found.options[0].accelerators == 8 and found.options[0].max_load >= 16


def test_money_and_energy_of_a_token_follow_the_price_of_power_and_a_budget_of_it():
    # llm-d-incubation/llm-d-planner#70, IBM/opal-sim#54: power budget, price of a kWh, USD and joules for a token
    said = {
        "users": 8,
        "input": 1000,
        "output": 200,
        "only": "1xrtx-5090,2xrtx-5090,1xrtx-pro-6000-ws",
        "power": "1.2kW",
    }
    rows, _ = answer("llama-3.1-8b-bf16", "tpot p95 < 60 ms", **said, prices=["electricity=0.10"])
    dear, _ = answer("llama-3.1-8b-bf16", "tpot p95 < 60 ms", **said, prices=["electricity=0.40"])
    one, other = rows[0], next(row for row in dear if row["machine"] == rows[0]["machine"])
    pue = money_of(today=TODAY).terms.pue
    assert one["kw"] <= 1.2
    assert other["usd_month"] - one["usd_month"] == pytest.approx(0.30 * one["kw"] * pue * 730, rel=0.01)
    assert one["joules_per_output_token"] == other["joules_per_output_token"] > 0
    assert one["usd_per_million_output_tokens"] < other["usd_per_million_output_tokens"]


def test_what_is_promised_of_a_load_leaves_room_that_a_count_of_blocks_does_not():
    # Tandemn-Labs/tandemn-system#11: 256 requests by blocks over mean length, about 72 without thrashing
    asked = read_size("llama-3.1-8b-bf16", "tpot p95 < 40 ms", users=12, input=4000, output=500,
                      only="1xrtx-pro-6000-ws", kind="buy")  # fmt: skip
    [option] = sized(replace(asked, most_machines=4), money_of(today=TODAY), answers=1).options
    held = option.planned.holding.pool.tokens / 4500
    assert option.machines * held > option.max_load >= 12
    assert option.max_load / option.machines < held
