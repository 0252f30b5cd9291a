"""The workbook says what the library says, whatever is changed in it, and whoever computes it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.metadata import version

import openpyxl
import pytest
from scipy.interpolate import RegularGridInterpolator

import glmplan
from glmplan.catalog.entries.hosts import load_machine
from glmplan.errors import SpecError, UnknownFact
from glmplan.present.sheets.book import FUNCTIONS, functions_in
from glmplan.present.sheets.input_pages import FIRST, SHEETS, assumptions_of, columns_of, fixed_facts
from glmplan.present.sheets.option import options_of, read_wanted
from glmplan.present.sheets.plan_book import calibration_mark, load_of_words, plan_book, workbook_of
from glmplan.request.option import options_of as request_options
from glmplan.request.plan import PlanRequest
from tests.present.sheets.cases import CASES, at_option, changes, compare, inputs_of, place
from tests.present.sheets.conftest import INPUT, MODEL, OUTPUT, TODAY


def put(model, at, value):
    (model.update_cell_with_text if isinstance(value, str) else model.update_cell_with_number)(*at, value)


@pytest.fixture(scope="session")
def recalculated(book, options, content, tmp_path_factory):
    """Results of every case as IronCalc computes them: name of a column → value of the chosen option."""
    ironcalc = pytest.importorskip("ironcalc")
    path = tmp_path_factory.mktemp("book") / "plan.xlsx"
    path.write_bytes(content)
    model = ironcalc.load_from_xlsx(str(path), "en", "UTC")
    found = []
    for number in range(CASES):
        for at, value in inputs_of(book, options, number):
            put(model, at, value)
        model.evaluate()
        chosen = changes(number)[2]
        names = columns_of("Results")
        found.append({name: model.get_cell_value(*at_option(name, chosen, "Results")) for name in names})
        if number % 40 == 0:
            assert_no_error(model)
    return found


def assert_no_error(model):
    for sheet, row, column in model.get_all_cells():
        value = model.get_cell_value(sheet, row, column)
        assert not (isinstance(value, str) and value.startswith("#") and value != "#"), (
            SHEETS[sheet],
            row,
            column,
            value,
        )


def test_two_hundred_changed_inputs_give_what_the_library_gives(recalculated, expected):
    found = [compare(sheet, mine) for sheet, mine in zip(recalculated, expected, strict=True)]
    assert {number: wrong for number, wrong in enumerate(found) if wrong} == {}
    assert sum("rate" in mine for mine in expected) > 150  # most of them have a speed to compare


def test_the_first_token_is_within_5_percent_in_9_of_10_cases_and_within_10_in_99_of_100(recalculated, expected):
    pairs = [
        (sheet["wait"], mine["wait"]) for sheet, mine in zip(recalculated, expected, strict=True) if "rate" in mine
    ]
    off = sorted(abs(shown / value - 1) for shown, value in pairs)
    assert off[math.ceil(0.9 * len(off)) - 1] <= 0.05
    assert off[math.ceil(0.99 * len(off)) - 1] <= 0.10


def test_the_speed_of_one_user_is_read_where_prompts_begin_to_fill_every_step(options):
    """The change lies between points of the grid, and at each of the loads on another side of it."""
    cached = options[1].cached[0]
    surface, deployed = cached.surface, cached.planned.deployment
    axes, tokens, prompt = surface.axes, 150, 6500
    full = tokens * deployed.defaults.budget / prompt  # users whose prompts take as many steps as their answers
    users = [round(full * share) for share in (0.7, 0.9, 0.98, 1.02, 1.1, 1.3)]

    def read(values, count):
        found = RegularGridInterpolator((axes.inputs, axes.outputs, axes.users), values)
        return float(found((prompt, tokens, count)))

    waits = []
    for count in users:
        served, least, most = (read(values, count) for values in
                               (surface.served, surface.first_least, surface.further_most))  # fmt: skip
        further = min(served - least, most)
        found = glmplan.predict(
            glmplan.deployment(MODEL, on=options[1].wanted.on, input=prompt, output=tokens, kv=cached.kv, tp=2),
            users=count,
        ).figures
        assert further / (tokens - 1) == pytest.approx(found["tpot"].value, rel=0.03)
        assert served - further == pytest.approx(found["ttft"].value, rel=0.1)
        waits.append(found["ttft"].value)
    assert waits[5] > 2 * waits[0]  # of prompts that fill every step, each waits for others


def test_every_formula_is_of_functions_that_programs_before_2019_know(book):
    used = {name for sheet in book.sheets.values() for value in sheet.cells.values()
            if isinstance(value, str) and value.startswith("=") for name in functions_in(value)}  # fmt: skip
    assert used <= {*FUNCTIONS, "IF", "IFERROR"}
    assert not used & {"XLOOKUP", "LET", "FILTER", "IFS", "SWITCH", "TEXTJOIN", "CONCAT", "MAXIFS", "LAMBDA", "SORT"}


def test_the_value_beside_every_formula_is_what_another_program_computes(content, tmp_path):
    ironcalc = pytest.importorskip("ironcalc")
    (tmp_path / "plan.xlsx").write_bytes(content)
    formulas = openpyxl.load_workbook(tmp_path / "plan.xlsx")
    values = openpyxl.load_workbook(tmp_path / "plan.xlsx", data_only=True)
    model = ironcalc.load_from_xlsx(str(tmp_path / "plan.xlsx"), "en", "UTC")
    model.evaluate()
    count = 0
    for number, page in enumerate(formulas):
        for cell in (one for row in page.iter_rows() for one in row if one.data_type == "f"):
            count += 1
            written, computed = (
                values[page.title][cell.coordinate].value,
                model.get_cell_value(number, cell.row, cell.column),
            )
            if isinstance(computed, float):
                assert written == pytest.approx(computed, rel=1e-9, abs=1e-12), (page.title, cell.coordinate)
            else:
                assert str(written or "").upper() == str(computed or "").upper(), (page.title, cell.coordinate)
    assert count > 500


def test_what_was_not_predicted_is_said_and_not_extrapolated(book, options, content, tmp_path):
    ironcalc = pytest.importorskip("ironcalc")
    (tmp_path / "plan.xlsx").write_bytes(content)
    outside = "outside the calculated range"
    cases = (({"prompt_tokens": 100_000.0}, outside), ({"answer_tokens": 4.0}, outside),
             ({"users": 5000.0}, outside), ({"context_tokens": 1e7}, "does not fit"))  # fmt: skip
    for said, words in cases:
        model = ironcalc.load_from_xlsx(str(tmp_path / "plan.xlsx"), "en", "UTC")
        for name, value in said.items():
            put(model, place(book, name), value)
        model.evaluate()
        assert_no_error(model)
        for name in ("rate", "rate_low", "rate_high", "each"):
            assert model.get_cell_value(*at_option(name, 0, "Results")) == words
        assert model.get_cell_value(*at_option("why", 0, "Results"))
        assert isinstance(model.get_cell_value(*at_option("month", 0, "Results")), float)


def test_safe_users_are_those_of_the_library(options, book):
    found = book.calculator()
    for number, option in enumerate(options):
        answer = glmplan.fit(MODEL, on=option.wanted.on, input=INPUT, output=OUTPUT)
        shown = found.value("Results", FIRST + number, columns_of("Results").index("safe"))
        most = options[0].cached[0].surface.axes.users[-1]
        assert shown == pytest.approx(min(answer.safe.users, most), rel=0.05)


def test_a_decision_names_the_cheaper_option_that_meets_the_slo_less_surely(money):
    """Four users had eight H200 recommended, without a word of six cards at a fifth of the cost."""
    wanted = read_wanted("8xh200-sxm", "6xrtx-pro-6000-ws", "glm-5.1-nvfp4")
    found = plan_book("glm-5.1-nvfp4", wanted, load_of_words(4, None, None, None), money).calculator()
    names = columns_of("Results")
    safe, fair, half, chance = (
        [found.value("Results", FIRST + number, names.index(name)) for number in (0, 1)]
        for name in ("safe_95", "safe_80", "safe_50", "chance")
    )
    assert safe[0] < 4 <= min(safe[1], half[0])
    words = found.value("Summary", 3, 0)
    said = [f"{math.floor(100 * one[0])} % probability (users at 95 %: {one[1]:g}, at 80 %: {one[2]:g}, at 50 %: "
            f"{one[3]:g})." for one in zip(chance, safe, fair, half, strict=True)]  # fmt: skip
    assert "Recommended at 95 %: 1 × 8xh200-sxm for 4 users" in words and f"it meets the SLO with {said[1]}" in words
    assert "6xrtx-pro-6000-ws is cheaper" in words and words.endswith(f"meets it with {said[0]}")


def test_the_probability_asked_for_is_an_input_that_purchases_follow(money):
    """At 80 % the cheaper machine is recommended."""
    wanted = read_wanted("8xh200-sxm", "6xrtx-pro-6000-ws", "glm-5.1-nvfp4")
    load, said = load_of_words(4, None, None, None), {"probability": 0.8, "ttft_limit": 4.0, "tpot_limit": 0.08}
    book = plan_book("glm-5.1-nvfp4", wanted, load, money, said=said)
    values = {name: book[sheet].cells[row, column] for name, (sheet, row, column) in book.names.items()}
    assert {"probability": 0.8, "wait_limit": 4.0, "gap_limit": 80.0}.items() <= values.items()
    found, names = book.calculator(), columns_of("Results")
    shown = {name: found.value("Results", FIRST, names.index(name)) for name in ("safe", "safe_80", "safe_95")}
    assert shown["safe"] == shown["safe_80"] >= 4 > shown["safe_95"]
    assert found.value("Results", FIRST - 2, names.index("safe")) == "Safe users at 80 %"
    assert found.value("Summary", 3, 0).startswith("Recommended at 80 %: 1 × 6xrtx-pro-6000-ws for 4 users")


def test_sensitivity_has_the_largest_effect_first(book):
    page, found = book["Sensitivity"], book.calculator()
    rows = [row for row, column in page.cells if column == 7 and row >= 7]
    effects = [found.value("Sensitivity", row, 7) for row in sorted(rows)]
    known = [one for one in effects if isinstance(one, float)]
    assert len(known) > 5 and known == sorted(known, reverse=True)
    assert effects[: len(known)] == known  # what has no price stands last
    assert page.charts[0].kind == "bar"


def test_version_calibration_and_date_stand_on_the_sheet(book):
    words = book["Summary"].cells[1, 0]
    assert calibration_mark() in words and TODAY.isoformat() in words and f"glmplan {version('glmplan')}," in words


def test_every_assumption_is_named_bounded_and_has_unit_and_source(book):
    page = book["Assumptions"]
    rows = [row for name, (sheet, row, _) in book.names.items() if sheet == "Assumptions"]
    assert len(rows) > 20
    for row in rows:
        assert page.cells[row, 2] and page.cells[row, 5]
        least, most, words = page.bounds[row, 1]
        assert least < most and page.cells[row, 0] in words
        value = page.cells[row, 1]
        assert value is None or least <= value <= most


def test_rents_of_a_workbook_are_at_one_term(money):
    """MI355X is rented for three years only, an H200 on demand too."""
    wanted = read_wanted("1xh200-sxm,1xmi355x", None, MODEL)
    found = options_of(MODEL, wanted, money, load=(4, 256, 32), said={})
    assert [(one.rent_term, one.rent.value) for one in found] == [("3 years", 2.9)] * 2
    on_demand = replace(money, rent_term="on demand")
    one, other = options_of(MODEL, wanted, on_demand, load=(4, 256, 32), said={})
    assert (one.rent_term, one.rent.value) == ("on demand", 4.0)
    assert other.rent is None and "on demand" in other.rent_missing


def test_a_workbook_shows_each_option_that_has_no_column_of_its_own(options, load, money):
    named = {one.name for rows in assumptions_of(load, money, options[0].planned.asked).values() for one in rows}
    shown = {*columns_of("Options"), *named, *(title for title, _, _ in fixed_facts(options))}
    assert {one.sheet for one in request_options(PlanRequest).values() if one.sheet} <= shown


def test_an_option_that_was_given_has_a_column(money, load, book):
    said = {"max_num_seqs": 64, "eager": True}
    found = options_of(MODEL, read_wanted("1xh100-sxm", None, MODEL), money, load=(4, 256, 32), said=said)
    cells, first = workbook_of(found, load, money)["Options"].cells, len(columns_of("Options"))
    assert [cells[FIRST - 1, first], cells[FIRST - 1, first + 1]] == ["eager", "max num seqs"]
    assert [cells[FIRST, first], cells[FIRST, first + 1]] == ["True", "64"]
    assert (FIRST - 1, first) not in book["Options"].cells  # nothing was given there


def test_options_come_from_the_answer_of_size(tmp_path):
    row = {"role": "answer", "machine": "1xh100-sxm", "machines": 2, "paid": "rent on demand", "weights": "bf16",
           "engine": "vllm", "cache": "fp8"}  # fmt: skip
    (tmp_path / "size.json").write_text(json.dumps({"model": MODEL, "options": [row, row | {"role": "next cheaper"}]}))
    [one] = read_wanted(str(tmp_path / "size.json"), None, MODEL)
    assert (one.on, one.machines, one.paid, dict(one.said)["kv"]) == ("1xh100-sxm", 2, "rent", "fp8")
    more = {"degrees": {"tp": 2, "replicas": 4}, "speculative_tokens": 3, "limited": True, "power_limit_w": 400}
    (tmp_path / "limited.json").write_text(json.dumps({"model": MODEL, "options": [row | more]}))
    [one] = read_wanted(str(tmp_path / "limited.json"), None, MODEL)
    assert {"tp": 2, "replicas": 4, "mtp": 3, "power_limit": 400.0}.items() <= dict(one.said).items()
    with pytest.raises(SpecError, match="is about"):
        read_wanted(str(tmp_path / "size.json"), None, "glm-5.1")
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(SpecError, match="size"):
        read_wanted(str(tmp_path / "other.json"), None, MODEL)


def test_a_workbook_of_answers_of_one_token_is_refused_as_it_promises_later_ones():
    with pytest.raises(SpecError, match="--output: 1 must be at least 2"):
        load_of_words(8, None, 1, None)
    assert load_of_words(8, None, 2, None).output == 2


@pytest.mark.parametrize("on", ["1xm3-ultra", "2xm4-max"])
def test_a_part_whose_prompts_cannot_be_timed_is_refused_with_the_line_that_states_its_rate(on, money):
    with pytest.raises(UnknownFact) as refused:
        options_of("qwen3-8b", read_wanted(on, None, "qwen3-8b"), money, load=(1, INPUT, OUTPUT), said={})
    line = str(refused.value).split("--on '")[1].rstrip("'")
    assert line.endswith(",bf16=?T") and load_machine(line.replace("?", "57")).accelerator_count == int(on[0])
