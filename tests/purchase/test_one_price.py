"""A price of tokens has one name and one value in `size`, `compare`, `sweep` and the page."""

from __future__ import annotations

from datetime import date

import pytest

import glmplan
from glmplan.present.size_text import size_content
from glmplan.purchase.axes import read_sweep
from glmplan.purchase.compare import compared
from glmplan.purchase.money import money_of
from glmplan.purchase.size import sized
from glmplan.purchase.size_question import read_size
from glmplan.purchase.sweep import swept
from glmplan.service.answers import cost_record

MONEY = money_of(today=date(2026, 11, 22))
PRICES = ("usd_per_million_output_tokens", "usd_per_million_tokens")
LOAD = {"users": 8, "input": 1000, "output": 200}


@pytest.fixture(scope="module")
def row():
    asked = read_size("llama-3.1-8b-bf16", "tpot p95 < 60 ms", only="1xrtx-5090", kind="buy", machines=1, **LOAD)
    return size_content(sized(asked, MONEY, answers=1))["options"][0]


def test_the_price_of_size_is_the_whole_month_over_its_tokens(row):
    answers, prompts = row["million_output_tokens_month"], row["million_input_tokens_month"]
    assert row["usd_per_million_output_tokens"] == pytest.approx(row["usd_month"] / answers)
    assert row["usd_per_million_tokens"] == pytest.approx(row["usd_month"] / (answers + prompts))
    split = [row[f"split_usd_per_million_{name}_tokens"] for name in ("input", "output")]
    assert split[0] * prompts + split[1] * answers == pytest.approx(row["usd_month"])


@pytest.mark.parametrize(
    ("model", "machine", "users", "lengths"),
    [("llama-3.1-8b-bf16", "1xrtx-5090", 8, (1000, 200)), ("gpt-oss-120b", "4xrtx-pro-6000-ws", 32, (2000, 300))],
)
def test_every_command_has_the_same_money_probability_and_users_at_the_load_of_the_question(
    model, machine, users, lengths
):
    """`size` ended at four times the load, and said 32 users at 50 % where `compare` and `fit` say 88."""
    load = {"input": lengths[0], "output": lengths[1]}
    limits = {"ttft_limit": 10.0, "tpot_limit": 0.1}
    slo = "ttft mean < 10 s, tpot mean < 100 ms"
    asked = read_size(model, slo, users=users, only=machine, kind="buy", machines=1, **load)
    row = size_content(sized(asked, MONEY, answers=1))["options"][0]
    side = compared([(model, machine)] * 2, MONEY, users=users, **load, **limits).sides[0]
    figures = side.figures(MONEY.terms.utilisation)
    for name in (*PRICES, "usd_month", "probability", "users_at_95", "users_at_80", "users_at_50"):
        assert figures[name] == pytest.approx(row[name]), name
    costs = cost_record(side.planned, users, MONEY)
    paid = next(way for way in costs["ways"] if way["paid"] == "buy")
    assert costs["million_tokens_month_most"] == pytest.approx(row["million_tokens_month_most"])
    assert [paid[name] for name in PRICES] == pytest.approx([row[name] for name in PRICES])
    safe = glmplan.fit(model, on=machine, users=users, **load, **limits).safe
    assert dict(safe.at) == {0.95: row["users_at_95"], 0.8: row["users_at_80"], 0.5: row["users_at_50"]}
    assert safe.chance_of(users) == pytest.approx(row["probability"])


@pytest.mark.parametrize("name", PRICES)
def test_compare_and_sweep_say_what_size_says(row, name):
    side = compared([("llama-3.1-8b-bf16", part) for part in ("1xrtx-5090", "1xrtx-4090")], MONEY, **LOAD).sides[0]
    assert side.figures(MONEY.terms.utilisation)[name] == pytest.approx(row[name], rel=0.01)
    axes = {"model": "llama-3.1-8b-bf16", "on": "1xrtx-5090", "users": "8", "input": 1000, "output": 200}
    frame = swept(read_sweep(axes), money=MONEY).to_frame()
    assert frame[name][0] == pytest.approx(row[name], rel=0.01)
