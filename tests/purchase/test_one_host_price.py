"""The money of a plan is the same in `size`, `compare`, `cost`, `sweep`, report, workbook and service."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

import glmplan
from glmplan.planner.ask import deployment
from glmplan.present.decision_parts import priced_plan
from glmplan.present.json_answers import fit_record
from glmplan.present.sheets.input_pages import FIRST, columns_of
from glmplan.present.sheets.option import Wanted, options_of
from glmplan.present.sheets.plan_book import load_of_words, plan_book
from glmplan.present.size_text import size_content
from glmplan.purchase.axes import read_sweep
from glmplan.purchase.compare import compared
from glmplan.purchase.money import kinds_of, money_of
from glmplan.purchase.size import sized
from glmplan.purchase.size_question import read_size
from glmplan.purchase.sweep import swept
from glmplan.service.answers import ANSWERS, QUESTIONS, cost_record

TODAY = date(2026, 11, 22)
MODEL = "llama-3.1-8b-bf16"
LOAD = {"input": 1000, "output": 200}
USERS = 8
#: prices of all cases; one term for all rents, because a workbook has one
PRICES = (
    *("llama-3.1-8b:input=0.1", "llama-3.1-8b:output=0.4", "mi300x:rent=0.2"),
    *("hgx-a100-8=150000", "4xh200-sxm=180000", "dgx-spark=4500"),
)
MONEY = money_of(PRICES, today=TODAY, rent_term="on demand")
#: machine → way that is paid, and whether the price of its host is a default
MACHINES = {
    "4xrtx-pro-6000-ws": ("buy", False),
    "8xrtx-pro-6000-ws": ("buy", True),
    "1xrtx-5090": ("buy", False),
    "2xrtx-pro-6000-ws": ("buy", False),
    "4xh100-sxm": ("buy", True),
    "8xh200-sxm": ("buy", True),
    "16xh200-sxm": ("buy", True),
    "4xh200-sxm": ("buy", False),
    "8xh100-sxm": ("buy", False),
    "hgx-b200-8": ("buy", True),
    "hgx-a100-8": ("buy", False),
    "dgx-spark": ("buy", False),
    "gb200-nvl72": ("buy", False),
    "8xmi300x": ("rent on demand", False),
    "1xh100-sxm": ("rent on demand", False),
    "2xrtx-5090+1xrtx-4090": ("buy", False),
}
#: machines that `size` cannot name
MIXED = "2xrtx-5090+1xrtx-4090"
#: machine with a power limit below three quarters of the rating
LIMITED = "2xrtx-pro-6000-ws"
PER_TOKEN = ("usd_per_million_output_tokens", "usd_per_million_tokens")


def said_of(machine):
    """Return the options of all commands: one card of a replica, or all cards in sequence."""
    if machine == MIXED:
        return {"engine": "llama.cpp", "weights": "q8_0"}
    return {"tp": 1, "pp": 1} | ({"power_limit": 300.0} if machine == LIMITED else {})


@pytest.fixture(scope="module", params=MACHINES)
def case(request):
    machine = request.param
    model = "llama-3.1-8b" if machine == MIXED else MODEL
    side = compared([(model, machine)] * 2, MONEY, users=USERS, **LOAD, **said_of(machine)).sides[0]
    return machine, model, side


def test_the_way_is_the_expected_one_and_defaults_are_marked(case):
    machine, _, side = case
    paid, assumed = MACHINES[machine]
    assert side.paid == paid and bool(side.price_assumed) == assumed


def test_compare_cost_sweep_and_report_have_one_month_and_one_price_of_tokens(case):
    machine, model, side = case
    figures = side.figures(MONEY.terms.utilisation)
    record = cost_record(side.planned, USERS, MONEY)
    way = record["ways"][0]
    assert (way["paid"], way["usd_month"]) == (side.paid, pytest.approx(side.usd_month))
    assert [way[name] for name in PER_TOKEN] == pytest.approx([figures[name] for name in PER_TOKEN])
    assert way["price_assumed"] == figures["price_assumed"] and record["kw"] == pytest.approx(side.kw)
    axes = {"model": model, "on": machine, "users": USERS, **LOAD, **said_of(machine)}
    row = swept(read_sweep(axes), money=MONEY).to_frame().iloc[0]
    assert row["usd_month"] == pytest.approx(side.usd_month) and row["paid"] == side.paid
    assert row["price_assumed"] == "; ".join(figures["price_assumed"])
    assert row["wall_w"] / 1000 == pytest.approx(side.kw)
    # a sweep shares step tables, which hold to 1 %
    assert [row[name] for name in PER_TOKEN] == pytest.approx([figures[name] for name in PER_TOKEN], rel=0.01)
    plan = priced_plan(fit_record(glmplan.fit(model, on=machine, users=USERS, **LOAD, **said_of(machine))), MONEY)
    assert (plan.paid.paid, plan.paid.usd, plan.kw) == pytest.approx((side.paid, side.usd_month, side.kw))
    assert plan.per_million(USERS) == pytest.approx(figures[PER_TOKEN[0]], rel=1e-3)


def test_size_has_that_month_that_price_and_the_break_even_of_cost(case):
    machine, model, side = case
    if machine == MIXED:
        return
    limit = {"power_limit": 300.0} if machine == LIMITED else {}
    asked = read_size(model, "tpot mean < 500 ms", users=USERS, only=machine, machines=1, **LOAD, **limit)
    row = size_content(sized(asked, MONEY, answers=1))["options"][0]
    assert (row["paid"], row["usd_month"]) == (side.paid, pytest.approx(side.usd_month))
    assert row["price_assumed"] == list(side.price_assumed) and row["kw"] == pytest.approx(side.kw)
    layout = {"engine": row["engine"], "kv": row["cache"], **row["degrees"], **limit}
    planned = deployment(model, machine, users=(USERS,), **LOAD, **layout)
    way = cost_record(planned, USERS, MONEY)["ways"][0]
    for name in (*PER_TOKEN, "break_even_million_tokens", "break_even_month", "usd_month_low", "usd_month_high"):
        assert way[name] == pytest.approx(row[name]), name


def test_the_service_answers_the_same(case):
    machine, model, side = case
    asked = {"model": model, "on": machine, "users": USERS, **LOAD, **said_of(machine)}
    money = {"price": list(PRICES), "today": TODAY.isoformat(), "rent_term": "on demand"}
    answer = ANSWERS["cost"](QUESTIONS["cost"](**asked, **money), lambda *_: None, {})
    figures = side.figures(MONEY.terms.utilisation)
    for name in ("paid", "usd_month", "price_assumed", *PER_TOKEN):
        assert answer["ways"][0][name] == pytest.approx(figures[name]), name


@pytest.mark.parametrize("kind", ["buy", "rent"])
def test_one_way_to_pay_holds_in_every_command(kind):
    money = replace(MONEY, kinds=kinds_of(kind))
    said = said_of("4xh100-sxm")
    side = compared([(MODEL, "4xh100-sxm")] * 2, money, users=USERS, **LOAD, **said).sides[0]
    assert side.paid.startswith(kind)
    assert [way["paid"] for way in cost_record(side.planned, USERS, money)["ways"]] == [side.paid]
    row = swept(read_sweep({"model": MODEL, "on": "4xh100-sxm", **said}), money=money).to_frame().iloc[0]
    assert (row["paid"], row["usd_month"]) == (side.paid, pytest.approx(side.usd_month))
    assert (row["usd_purchase"] == 205_000) == (kind == "buy")
    [option] = options_of(MODEL, [Wanted("4xh100-sxm")], money, load=(USERS, 1000, 200), said={"kv": "bf16"})
    assert option.way == kind


@pytest.fixture(scope="module")
def book():
    wanted = [
        Wanted(machine, said=tuple(said_of(machine).items()))
        for machine in ("4xh100-sxm", "8xh100-sxm", "1xh100-sxm", "8xmi300x", "8xrtx-pro-6000-ws", LIMITED)
    ]
    return wanted, plan_book(MODEL, wanted, load_of_words(USERS, 1000, 200, None), MONEY).calculator()


def test_the_columns_of_a_workbook_are_those_of_compare_and_cost(book):
    wanted, calculator = book
    for number, one in enumerate(wanted):

        def result(name, number=number):
            return calculator.value("Results", FIRST + number, columns_of("Results").index(name))

        side = compared([(MODEL, one.on)] * 2, MONEY, users=USERS, **LOAD, **said_of(one.on)).sides[0]
        figures, way = side.figures(MONEY.terms.utilisation), cost_record(side.planned, USERS, MONEY)["ways"][0]
        at = calculator.value("Options", FIRST + number, columns_of("Options").index("way"))
        assert at == side.paid.partition(" ")[0], one.on
        assert result("month") == pytest.approx(side.usd_month), one.on
        assert result("kw") == pytest.approx(side.kw), one.on
        found = [result("per_output"), result("per_million")]
        assert found == pytest.approx([figures[name] for name in PER_TOKEN], rel=0.01), one.on
        if isinstance(result("break_even"), float):
            assert result("break_even") == pytest.approx(way["break_even_million_tokens"]), one.on
