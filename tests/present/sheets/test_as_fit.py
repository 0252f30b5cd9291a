"""A workbook has the median, both bounds and the probabilities of `fit`, inside and outside the measured loads."""

from __future__ import annotations

from datetime import date

import pytest

pytest.importorskip("xlsxwriter", reason="workbooks need the extra `sheets`")

import glmplan
from glmplan.planner.users import places_of
from glmplan.present.sheets.input_pages import FIRST, columns_of
from glmplan.present.sheets.option import options_of, read_wanted
from glmplan.present.sheets.plan_book import load_of_words, workbook_of
from glmplan.purchase.money import money_of

#: model, machine, (users, input, output), further arguments
PLANS = {
    "outside": ("glm-5.1", "6xrtx-pro-6000-ws", (8, 2048, 512), {}),
    "outside, far": ("glm-5.1", "8xh200-sxm", (20, 512, 4000), {"tp": 4, "dp": 2}),
    "inside": ("llama-3.1-8b", "1xh100-sxm", (16, 2048, 512), {}),
    "power limit": ("llama-3.1-8b", "1xh100-sxm", (24, 2048, 512), {"power_limit": "400W"}),
    "two servers": ("llama-3.1-8b", "2xrtx-5090", (5, 4096, 256), {"replicas": 2, "tp": 1}),
    "stages": ("qwen3-32b", "4xh100-sxm", (64, 1000, 200), {"pp": 2, "tp": 2}),
    "other engines": ("llama-3.1-8b", "1xh200-sxm", (8, 2048, 512), {"engine": "lmdeploy"}),
    "many users": ("qwen3-32b", "2xmi300x", (32, 512, 2000), {"engine": "sglang"}),
}
#: SLO of the question: cells of the workbook, and arguments of `fit`
LIMITS = ({}, {"gap_limit": 50.0, "wait_limit": 3.0}), ({}, {"tpot_limit": 0.05, "ttft_limit": 3.0})
#: at its own load a workbook has the points of its tables; users between points of the grid differ [-]
EXACT, GRID = 0.005, 0.05
#: a load between the points of `fit` is a point of the workbook [-]
CHANCE = 0.02
#: probabilities of meeting an SLO at which the users of a sheet are compared
LEVELS = {"safe_95": 0.95, "safe_80": 0.8, "safe_50": 0.5}


@pytest.fixture(scope="module", params=PLANS)
def plan(request):
    model, machine, load, said = PLANS[request.param]
    money = money_of([], [], today=date(2026, 11, 22))
    options = options_of(model, read_wanted(None, machine, model), money, load=load, said=said)
    terms = options[0].planned.holding.terms
    layout = {name: getattr(terms, name) for name in ("tp", "pp", "dp", "ep", "dcp", "replicas")}
    # the limits of an SLO choose among formats and layouts too
    planned = options[0].planned.asked
    layout |= {"weights": planned.checkpoint.name, "kv": terms.kv, "engine": planned.engine}
    asked = {"on": machine, "users": (load[0],), "input": load[1], "output": load[2]} | said | layout
    return request.param, options, workbook_of(options, load_of_words(*load, None), money), (model, asked)


def shown(book, sheet, names):
    found = book.calculator()
    return {name: found.value(sheet, FIRST, columns_of(sheet).index(name)) for name in names}


def test_median_and_bounds_are_those_of_fit(plan):
    _, _, book, (model, asked) = plan
    [row] = glmplan.fit(model, **asked).users
    sheet = shown(book, "Results", [f"{name}{end}" for name in ("rate", "each") for end in ("", "_low", "_high")])
    sheet |= shown(book, "Calculation", ("first", "wait_high"))
    for name, figure in (("rate", row.total_rate), ("each", row.user_rate)):
        ends = [sheet[name], sheet[f"{name}_low"], sheet[f"{name}_high"]]
        assert ends == pytest.approx([figure.value, figure.low, figure.high], rel=EXACT), name
    assert sheet["first"] == pytest.approx(row.ttft.value, rel=EXACT)


def shown_with(book, names, cells):
    """Results with other inputs."""
    before = {name: book[book.names[name][0]].cells[book.names[name][1:]] for name in cells}
    for values in (cells, before):
        for name, value in values.items():
            book[book.names[name][0]].cells[book.names[name][1:]] = value
        if values is cells:
            users = shown(book, "Results", names)
    return users


@pytest.mark.parametrize("probability", [0.95, 0.6])
@pytest.mark.parametrize(("cells", "limits"), list(zip(*LIMITS, strict=True)), ids=("usual", "stated"))
def test_users_and_the_probability_of_the_load_are_those_of_fit(plan, cells, limits, probability):
    _, _, book, (model, asked) = plan
    answer = glmplan.fit(model, **asked, **limits, probability=probability)
    # in a workbook each user has a place in the pool and in the batch; `fit` lets users wait within stated limits
    held, safe = min(answer.holding.held, places_of(answer.asked, answer.holding)), answer.safe
    cells = cells | {"probability": probability}
    users = shown_with(book, ("safe", *LEVELS, "chance"), cells)
    for name, level in {"safe": probability, **LEVELS}.items():
        assert users[name] == pytest.approx(min(dict(safe.at)[level], held), rel=GRID, abs=1.0), name
    assert users["chance"] == pytest.approx(safe.chance_of(*asked["users"]), abs=CHANCE)
    # the load of the sheet at the probability is where the probability of the load passes it
    if (most := users["safe"]) > 0:
        chances = [shown_with(book, ("chance",), cells | {"users": most + more})["chance"] for more in (0.0, 1.0)]
        assert isinstance(chances[1], str) or chances[0] >= probability > chances[1] - 0.001


def test_the_plans_are_inside_and_outside_the_measured_loads(plan):
    name, options, book, _ = plan
    assert (shown(book, "Calculation", ("widen",))["widen"] > 0) == name.startswith(("outside", "other"))
    assert (len(options[0].cached[0].surface.spreads.domains) > 1) == name.startswith("other")
