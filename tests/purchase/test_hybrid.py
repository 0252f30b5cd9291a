"""The cheapest mix: programmes by hand and by trying all, sensitive and patient classes, the worked example."""

from __future__ import annotations

from datetime import date
from itertools import product
from pathlib import Path

import pytest

from glmplan.cli import main
from glmplan.errors import Infeasible, SpecError
from glmplan.planner.ask import deployment, safe
from glmplan.present.sweep_text import mix_text
from glmplan.purchase.hybrid import (
    Local,
    Portfolio,
    RequestClass,
    Seller,
    best_mix,
    break_even_scale,
    one_more,
    owns_at,
    portfolio_of_offered,
    read_portfolio,
)
from glmplan.purchase.money import money_of
from glmplan.simulation.traffic.spec import Traffic

MONEY = money_of(today=date(2026, 11, 22))
MONTH = 730 * 3600
FLAT, DAY = (1.0,) * 24, (0.0,) * 12 + (2.0,) * 12
EXAMPLE = Path(__file__).resolve().parents[2] / "docs/guide/examples/portfolio.toml"


def chat(rate=1.0, profile=FLAT, **said):
    said = {"name": "chat", "requests_per_day": 86_400 * rate, "input": 1000, "output": 100, "profile": profile} | said
    return RequestClass(**said)


def test_trying_every_number_of_machines_finds_no_cheaper_mix():
    classes = (chat(0.9, DAY), chat(0.5, name="agents", batchable=True), chat(0.3, name="secret", sensitive=True))
    carries = [{"chat": 0.8, "agents": 0.5, "secret": 0.4}, {"chat": 0.3, "agents": 0.6, "secret": 0.3}]
    locals_ = (Local("large", 900.0, "buy", 3, carries[0]), Local("small", 400.0, "buy", 3, carries[1]))
    seller = Seller("api", {"chat": 8e-4, "agents": 5e-4}, {"secret": "must stay on premises"})
    best = best_mix(Portfolio(classes, locals_, (seller,)))
    costs = []
    for counts in product(range(4), repeat=2):
        # a machine that is there in full and free of charge: what is left is a linear programme
        there = tuple(
            Local(one.name, 0.0, "", 1, {name: rate * count for name, rate in one.carries.items()})
            for one, count in zip(locals_, counts, strict=True)
        )
        try:
            rest = best_mix(Portfolio(classes, there, (seller,))).usd_month
        except Infeasible:
            continue
        costs.append(rest + sum(count * one.usd_month for one, count in zip(locals_, counts, strict=True)))
    assert best.usd_month == pytest.approx(min(costs), rel=1e-6)


def test_a_class_whose_slo_a_machine_does_not_meet_is_no_capacity():
    classes = (chat(0.5), chat(0.1, name="dialogue"))
    box, api = Local("box", 900.0, "buy", 3, {"chat": 0.8, "dialogue": 0.0}), Seller("api", {"dialogue": 8e-4}, {})
    read = Portfolio(classes, (box,), (api,))
    [line] = [one for one in mix_text(read, best_mix(read)).splitlines() if one.startswith("  box")]
    assert "capacity 0.8/s of chat; SLO of dialogue not met at any rate" in line


def test_a_class_that_can_wait_fills_the_hours_in_which_nobody_else_asks():
    box, api = (
        Local("box", 100.0, "buy", 1, {"chat": 2.0, "night": 1.0}),
        Seller("api", {"chat": 0.1, "night": 0.1}, {}),
    )
    night = chat(0.5, DAY, name="night", batchable=True)
    mix = best_mix(Portfolio((chat(1.0, DAY), night), (box,), (api,)))
    # the box is full by day with two requests a second, and by night has room for one: all of the other class
    assert mix.usd_month == pytest.approx(100.0)
    assert mix.used["box"][:12] == pytest.approx((1.0,) * 12)
    eager = night.model_copy(update={"batchable": False})
    assert best_mix(Portfolio((chat(1.0, DAY), eager), (box,), (api,))).usd_api["api"] > 0


def test_what_is_sensitive_stays_in_the_house_at_any_price():
    box, api = Local("box", 1e6, "buy", 2, {"chat": 1.0}), Seller("api", {}, {"chat": "must stay on premises"})
    mix = best_mix(Portfolio((chat(1.5, sensitive=True),), (box,), (api,)))
    assert mix.machines == {"box": 2} and mix.shares["chat"] == {"box": 1.0}
    with pytest.raises(Infeasible, match="raise most"):
        best_mix(Portfolio((chat(2.5, sensitive=True),), (box,), (api,)))
    with pytest.raises(Infeasible, match="chat cannot be served.*must stay"):
        best_mix(Portfolio((chat(sensitive=True),), (), (api,)))


def test_the_shadow_price_is_what_a_little_more_of_a_machine_saves():
    api = Seller("api", {"chat": 3e-4}, {})

    def cost(carried):
        mix = best_mix(Portfolio((chat(2.0, DAY),), (Local("box", 0.0, "buy", 1, {"chat": carried}),), (api,)))
        return mix.usd_month, mix.shadow["box"]

    (before, shadow), (after, _) = cost(1.0), cost(1.001)
    assert shadow == pytest.approx((before - after) / 0.001, rel=1e-6)
    # half of the day all of its second goes to what the API would take 0.3 USD for a thousand of
    assert shadow == pytest.approx(MONTH / 2 * 3e-4)


def test_the_break_even_volume_is_where_both_cost_the_same():
    portfolio = Portfolio(
        (chat(0.01),), (Local("box", 700.0, "buy", 3, {"chat": 9.0}),), (Seller("api", {"chat": 1e-3}, {}),)
    )
    scale = break_even_scale(portfolio)
    assert 0.01 * scale * MONTH * 1e-3 == pytest.approx(700.0, rel=2e-3)
    with pytest.raises(SpecError, match="break even"):
        break_even_scale(Portfolio((chat(),), portfolio.locals, ()))


def write(tmp_path, text):
    file = tmp_path / "portfolio.toml"
    file.write_text(text)
    return file


CLASS = '[[classes]]\nname = "chat"\nrequests_per_day = 1000\ninput = 1000\noutput = 100\n'
LOCAL = '[[local]]\nname = "box"\nusd_month = 500\nrequests_per_s = { chat = 1.0 }\n'
API = '[[api]]\nname = "api"\ninput = 1.0\noutput = 4.0\n'


def test_prices_of_an_api_are_read_with_caching_and_the_discount_of_a_batch(tmp_path):
    text = (
        CLASS
        + "cached = 600\nbatchable = true\n"
        + '[[api]]\nname = "api"\ninput = 1.0\noutput = 4.0\ncached = 0.1\nbatch_discount = 0.5\n'
    )
    [seller] = read_portfolio(write(tmp_path, text), MONEY).sellers
    assert seller.per_request["chat"] == pytest.approx(0.5 * (400 * 1.0 + 600 * 0.1 + 100 * 4.0) / 1e6)


def test_an_api_that_promises_too_little_or_nothing_serves_no_class_with_a_promise(tmp_path):
    promise = CLASS + 'slo = "tpot p95 < 50 ms"\n' + LOCAL
    silent = read_portfolio(write(tmp_path, promise + API), MONEY).sellers[0]
    assert silent.refused["chat"] == "tpot is not guaranteed"
    slow = read_portfolio(write(tmp_path, promise + API + 'promises = "tpot p95 < 80 ms"\n'), MONEY).sellers[0]
    assert "80 ms only" in slow.refused["chat"]
    quick = read_portfolio(write(tmp_path, promise + API + 'promises = "tpot p95 < 20 ms"\n'), MONEY).sellers[0]
    assert not quick.refused


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "classes"),
        (CLASS, "neither a machine nor an API"),
        (CLASS + API + '[[apis]]\nname = "x"\n', "nearest: api"),
        (CLASS.replace("1000\ninput", "-1\ninput") + API, "requests_per_day"),
        (CLASS + CLASS + API, "is there twice"),
        (CLASS + API + API, "is there twice"),
        (CLASS + "cached = 5000\n" + API, "more than the prompt"),
        (CLASS + "profile = [1, 2]\n" + API, "24 numbers"),
        (CLASS + 'slo = "soon"\n' + API, "slo"),
        (CLASS + LOCAL.replace("chat = 1.0", "chatt = 1.0") + API, "nearest: chat"),
        (CLASS + '[[local]]\nname = "box"\nusd_month = 5\n', "needs model and on"),
        (CLASS + '[[local]]\nname = "box"\non = "8xl20"\nmodel = "llama-3.1-8b"\nkind = "buy"\n', "no price"),
        (CLASS + '[[api]]\nname = "api"\n', "needs input and output prices"),
        (CLASS + '[[api]]\nname = "api"\nmodel = "glm-5.1"\nseller = "zai"\n', "nearest: z.ai"),
        ("classes = 3\n", "list of tables"),
    ],
)
def test_a_portfolio_that_is_wrong_is_named_with_its_entry(tmp_path, text, said):
    with pytest.raises(SpecError, match=said):
        read_portfolio(write(tmp_path, text), MONEY)


def test_the_worked_example_deals_out_requests_as_the_case_that_it_is_from():
    # "GLM-5.1 High-Speed API Benchmarked": dialogue and completion to the API, documents and what is sensitive local
    portfolio = read_portfolio(EXAMPLE, MONEY)
    [box], [api] = portfolio.locals, portfolio.sellers
    assert (
        box.carries["dialogue and completion"] == 0.0
        and min(box.carries[name] for name in ("chat", "confidential work", "document summaries")) > 0.0
    )
    mix = best_mix(portfolio)
    assert 1 <= mix.machines["appliance"] <= 2
    assert mix.shares["dialogue and completion"] == {"high-speed API": pytest.approx(1.0)}
    assert mix.shares["confidential work"] == {"appliance": pytest.approx(1.0)}
    assert mix.shares["document summaries"]["appliance"] > 0.5
    # bursts of the day go away, and one more second of the machine would be worth what the API takes for it
    assert 0.5 < mix.shares["chat"]["appliance"] < 1.0 and max(mix.used["appliance"]) == pytest.approx(1.0)
    assert 0.0 < mix.shadow["appliance"] < box.usd_month
    assert "must stay on premises" in api.refused["confidential work"]
    # what is confidential needs a machine at any volume: the break-even is that of the rest
    assert break_even_scale(portfolio) is None
    scale = break_even_scale(portfolio_of_offered(portfolio))
    assert scale is None or scale > 1.0


def test_the_layout_is_chosen_for_the_slo_of_the_class(tmp_path):
    slo, lengths = "ttft p95 < 2 s, tpot p95 < 60 ms", {"input": 1000, "output": 200}
    load = Traffic(kind="poisson", rate=1.0, **lengths)
    usual = safe(deployment("llama-3.1-8b", "4xl40s", **lengths), slo, traffic=load).load
    apart = safe(deployment("llama-3.1-8b", "4xl40s", tp=2, dp=2, **lengths), slo, traffic=load).load
    (tmp_path / "p.toml").write_text(
        f'[[classes]]\nname = "chat"\nrequests_per_day = 9000\ninput = 1000\noutput = 200\nslo = "{slo}"\n'
        '[[local]]\nname = "server"\nmodel = "llama-3.1-8b"\non = "4xl40s"\nusd_month = 1000\n'
    )
    [server] = read_portfolio(tmp_path / "p.toml", MONEY).locals
    assert server.carries["chat"] == pytest.approx(apart, rel=0.01) and apart > 1.2 * usual


def test_a_machine_carries_more_at_a_lower_probability(tmp_path):
    text = (
        '[[classes]]\nname = "chat"\nrequests_per_day = 100\ninput = 500\noutput = 50\nslo = "tpot mean < 12 ms"\n'
        '[[classes]]\nname = "files"\nrequests_per_day = 100\ninput = 500\noutput = 50\n'
        '[[local]]\nname = "box"\nmodel = "llama-3.1-8b"\non = "1xh100-sxm"\nusd_month = 900\nmost = 1\n'
    )
    sure, half = (
        read_portfolio(write(tmp_path, text), MONEY, probability=share).locals[0].carries for share in (0.95, 0.5)
    )
    assert all(0 < sure[name] < 0.95 * half[name] for name in ("chat", "files"))


def test_what_only_a_machine_may_serve_has_no_part_in_the_break_even():
    box = Local("box", 700.0, "buy", 3, {"chat": 9.0, "secret": 9.0})
    api = Seller("api", {"chat": 1e-3}, {"secret": "must stay on premises"})
    both = Portfolio((chat(0.01), chat(0.01, name="secret", sensitive=True)), (box,), (api,))
    assert break_even_scale(both) is None
    assert 0.01 * break_even_scale(portfolio_of_offered(both)) * MONTH * 1e-3 == pytest.approx(700.0, rel=2e-3)


@pytest.mark.parametrize(("carried", "rate"), [(5.0, 0.4), (0.6, 1.0), (0.6, 5.0)])
def test_one_more_machine_saves_what_the_apis_then_cost_less_and_never_more_than_their_bill(carried, rate):
    box, api = Local("box", 1000.0, "buy", 4, {"chat": carried}), Seller("api", {"chat": 9e-4}, {})
    portfolio = Portfolio((chat(rate),), (box,), (api,))
    mix = best_mix(portfolio)
    now = mix.machines["box"]

    def bill(machines):  # by hand: what the machines do not carry goes to the API, in each of 24 equal hours
        return max(rate - machines * carried, 0.0) * MONTH * 9e-4

    assert one_more(portfolio, mix)["box"] == pytest.approx(bill(now) - bill(now + 1))
    assert one_more(portfolio, mix)["box"] <= mix.usd_api["api"] + 1e-6
    # the optimum leaves no machine away that is worth its cost, unless no more are allowed
    assert now == 4 or one_more(portfolio, mix)["box"] <= 1000.0


def test_where_no_break_even_is_found_it_is_said_at_which_end():
    api = Seller("api", {"chat": 1e-3}, {})
    for usd, owned in ((0.01, True), (1e11, False)):
        portfolio = Portfolio((chat(1.0),), (Local("box", usd, "buy", 3, {"chat": 9.0}),), (api,))
        assert break_even_scale(portfolio) is None
        assert [owns_at(portfolio, scale) for scale in (1e-4, 1e4)] == [owned, owned]


EVERYTHING = "must stay on premises"


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        (CLASS + "sensitive = true\n" + LOCAL + API, f"chat is not sent to api: {EVERYTHING}", 0),
        (CLASS + "sensitive = true\n" + API, f"cannot be served: no machine meets its SLO; api: {EVERYTHING}", 0),
        (CLASS.replace("1000\ni", "1e8\ni") + "sensitive = true\n" + LOCAL + API, "raise most", 0),
        (CLASS + 'slo = "tpot p95 < 50 ms"\n' + API, "api: tpot is not guaranteed", 0),
        (CLASS.replace("1000\ni", "0\ni") + LOCAL + API, "requests_per_day", 2),
        (CLASS.replace("1000\ni", "1e30\ni") + LOCAL + API, "requests_per_day", 2),
        (CLASS + LOCAL + API, "no machine 0 USD, APIs 43 USD", 0),
        (CLASS + LOCAL + API, "one more machine would save 43 USD/month of API cost, not more than it costs", 0),
        (CLASS + LOCAL.replace("500", "1e9") + API, "the API stays cheaper even at 10,000 times", 0),
        (CLASS + LOCAL.replace("500", "1e-9") + API, "pays off even at 0.0001 times", 0),
        ("", "classes", 2),
        ("[[", "not valid TOML", 2),
    ],
)  # fmt: skip
def test_the_screen_of_a_mix_says_what_is_so_with_its_exit_code(tmp_path, capsys, text, said, code):
    with pytest.raises(SystemExit) as ended:
        main(["hybrid", str(write(tmp_path, text)), "--today", "2026-11-22"])
    shown = capsys.readouterr()
    assert (ended.value.code or 0) == code
    assert said in shown.out + shown.err


def test_machines_that_cost_nothing_are_taken_where_they_serve_and_no_further():
    chat = RequestClass(name="chat", requests_per_day=86400, input=1000, output=100, profile=(1.0,) * 24)
    paid = (Local("box", 0.0, "buy", 4, {"chat": 0.7}), Local("large", 0.0, "buy", 4, {"chat": 1.5}))
    mix = best_mix(Portfolio((chat,), paid, (Seller("api", {"chat": 1e-3}, {}),)))
    # a request each second: one large machine, not all eight
    assert mix.machines == {"box": 0, "large": 1} and mix.usd_month == 0.0
