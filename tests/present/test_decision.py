"""A report says what `fit` says, escapes what others wrote, and is whole in itself."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

import glmplan
from glmplan.errors import SpecError
from glmplan.io.json_names import FIT_NAMES, LIMITATIONS_NAMES, SWEEP_NAMES, renamed
from glmplan.present.decision import answer_sentences, check_report, common_load, decision, write_report
from glmplan.present.decision_parts import is_plan, priced_plan, read_plan
from glmplan.present.json_answers import fit_json, fit_record
from glmplan.present.page import Document, Drawing, Table, Text, html_of, markdown_of
from glmplan.purchase.cost import per_million
from glmplan.purchase.money import money_of
from glmplan.units import number

MONEY = money_of(["rtx-pro-6000-ws=9000", "h100-sxm=25000"], today=date(2026, 11, 22))
HEADINGS = ("Question", "Answer", "Speed", "Memory", "Machine", "Cost", "Options", "Risks", "Assumptions and sources",
            "How sure", "How to check after delivery")  # fmt: skip


@pytest.fixture(scope="module")
def six():
    return glmplan.fit("glm-5.1-nvfp4", on="6xrtx-pro-6000-ws", users=(1, 4, 32))


@pytest.fixture(scope="module")
def short():
    return glmplan.fit("glm-5.1-nvfp4", on="2xrtx-pro-6000-ws")


@pytest.fixture(scope="module")
def records(six, short):
    return [fit_record(six), fit_record(short)]


@pytest.fixture(scope="module")
def made(records):
    return decision(records, MONEY)


@pytest.fixture(scope="module")
def page(made):
    return html_of(made)


def test_the_parts_of_a_decision_stand_in_their_order(page):
    assert tuple(re.findall(r"<h2[^>]*>([^<]+)</h2>", page)) == HEADINGS


def test_the_answer_is_three_sentences_with_the_figures_of_fit(records, six):
    said = answer_sentences([priced_plan(one, MONEY) for one in records], 4)
    # 32 users are asked for, and 35 are expected
    reply = f"Likely: 32 users meet the SLO with {math.floor(100 * six.safe.chance_of(32))} % probability"
    assert len(said) == 3 and said[0].startswith(f"{reply}; glm-5.1 nvfp4 on 6xrtx-pro-6000-ws fits with")
    rate = six.one_user.user_rate
    assert f"A single user gets {number(rate.value)} ({number(rate.low)} to {number(rate.high)}) tokens/s" in said[1]
    users = six.safe.users
    at = dict(six.safe.at)
    words = f"safe at 95 % ({at[0.8]} at 80 %, {at[0.5]} at 50 %)"
    assert f"{users} {'user is' if users == 1 else 'users are'} {words}" in said[1]


def test_the_probability_over_concurrency_and_both_costs_of_a_token_are_those_of_fit(records, six):
    blocks = decision(records, MONEY).blocks
    [curve] = [one for one in blocks if isinstance(one, Table) and "probability of meeting" in one.caption]
    shown = {chance: int(users.replace(",", "")) for users, chance in curve.rows}
    known = {users: f"{min(math.floor(100 * chance + 1e-9), 99)} %" for users, chance in six.safe.curve}
    assert set(shown) == set(known.values()) - {"0 %"}
    assert all(known[users] == chance and known.get(users + 1) != chance for chance, users in shown.items())
    one = priced_plan(records[0], MONEY)
    load = common_load([one])
    rows = {name: cell for name, cell, *_ in next(
        one for one in blocks if isinstance(one, Table) and one.caption == "Comparison of the plans").rows}  # fmt: skip
    assert rows["USD per million tokens in and out"] == number(one.per_million(load) * 512 / (2048 + 512))


def test_every_row_over_users_is_that_of_fit(made, six):
    told = next(one for one in made.blocks if isinstance(one, Table) and "speed with 90 % intervals" in one.caption)
    for cells, row in zip(told.rows, six.users, strict=True):
        figures = [row.ttft, row.user_rate, row.total_rate]
        spans = [f"{number(one.value)} ({number(one.low)} to {number(one.high)})" for one in figures]
        assert list(cells) == [f"{row.users:,}", *spans, f"{row.context:,}"]


def test_the_cost_of_a_token_is_that_of_the_month_at_the_compared_load(records, six):
    one = priced_plan(records[0], MONEY)
    load = common_load([one])
    assert load == max(row.users for row in six.users if row.users <= six.safe.users)
    rate = next(row.total_rate.value for row in six.users if row.users == load)
    assert one.per_million(load) == pytest.approx(
        float(per_million(one.paid.usd, rate, MONEY.terms.utilisation)), rel=1e-5
    )


def test_rents_of_a_report_are_at_one_term():
    """MI355X is rented for three years only, at 2.90 USD an hour; H200 at the same price, and on demand at 4.00."""
    plans = [fit_record(glmplan.fit("llama-3.1-8b", on=f"1x{part}", users=(4,))) for part in ("h200-sxm", "mi355x")]
    blocks = decision(plans, MONEY).blocks
    told = next(one for one in blocks if isinstance(one, Table) and one.caption == "Monthly cost")
    rents = [row[1:3] for row in told.rows if row[1].startswith("rent")]
    assert rents == [("rent 3 years", f"{730 * 2.9:,.0f}")] * 2
    assert any(isinstance(one, Text) and "3 years" in one.text for one in blocks)


def test_a_plan_that_does_not_fit_is_a_report_too(records):
    made = decision(records[1:], MONEY)
    text = markdown_of(made)
    assert (
        "Does not load: glm-5.1 nvfp4 on 2xrtx-pro-6000-ws does not fit" in text and "There is nothing to start" in text
    )
    html_of(made)


def test_the_users_of_the_question_decide_the_answer_and_an_old_file_has_that_of_its_memory(records):
    few = fit_record(glmplan.fit("glm-5.1-nvfp4", on="6xrtx-pro-6000-ws", users=(1, 4)))
    [said, *_] = answer_sentences([priced_plan(few, MONEY)], 4)
    assert ": 4 users meet the SLO with 9" in said and "; glm-5.1 nvfp4 on 6xrtx-pro-6000-ws fits" in said
    for record, word in zip(records, ("Yes", "No"), strict=True):
        old = {name: value for name, value in record.items() if name != "answer"}
        [said, *_] = answer_sentences([priced_plan(old, MONEY)], 4)
        assert said.startswith(f"{word}: glm-5.1 nvfp4 on ")


def test_where_nothing_that_was_looked_at_fits_the_report_says_what_to_ask(capsys):
    from glmplan.cli import main

    answer = glmplan.fit("glm-5.1", on="1xh100-sxm")
    nearest = answer.changes[0]
    assert nearest.what in markdown_of(decision([fit_record(answer)], MONEY))
    text = markdown_of(decision([fit_record(replace(answer, changes=()))], MONEY))
    [asked] = [line.strip() for line in text.splitlines() if "glmplan size" in line]
    with pytest.raises(SystemExit) as ended:
        main([*shlex.split(asked)[1:], "--only", "mi325x"])
    assert not ended.value.code and "mi325x" in capsys.readouterr().out
    # a plan that cannot start has nothing to be measured, and `glmplan sensitivity` refuses it
    assert "glmplan sensitivity" not in text


def test_an_option_is_not_torn_apart_nor_a_unit_nor_a_short_word(page):
    assert "<span class='u'>--set</span>" in page and "<span class='u'>[token/s]</span>" in page
    [cells] = re.findall(r"<td[^>]*class='([^']*)'[^>]*data-head='severity'>unknown<", page)
    assert cells == "t k"


def test_every_table_has_a_caption_and_heads_with_their_scope(page):
    tables = re.findall(r"<table[ >].*?</table>", page, re.DOTALL)
    assert len(tables) >= 8
    for one in tables:
        assert one.count("<caption>") == 1 and "<th scope='col'" in one
        assert one.count("<th scope='row'") == len(re.findall("<tr[ >]", one)) - 1


def test_every_picture_has_words_and_its_figures_in_a_table_too(page, made):
    pictures = [one for one in made.blocks if isinstance(one, Drawing)]
    assert len(pictures) == 4 == page.count("<figcaption>")
    # the speed of all and that of each are drawings of their own, so that a telephone shows one below the other
    assert page.count('role="img"') == 5
    assert page.startswith("<!doctype html>\n<html lang='en'>") and "<script" not in page


def test_a_plan_out_of_a_file_is_the_same_report(tmp_path, six, records, made):
    file = tmp_path / "plan.json"
    file.write_text(fit_json(six), encoding="utf-8")
    assert is_plan(str(file))
    again = decision([read_plan(file), records[1]], MONEY)
    assert markdown_of(again) == markdown_of(made)


def test_what_others_wrote_is_escaped(records):
    evil = json.loads(json.dumps(records[0]))
    evil["question"]["model"] = evil["warnings"][0]["title"] = "<script>alert(1)</script>\u202e|x"
    made = decision([evil], MONEY)
    page = html_of(made)
    assert "<script" not in page and "&lt;script&gt;" in page and "\u202e" not in page
    text = markdown_of(made)
    assert "\\|x" in text
    assert not [
        line for line in text.splitlines() if re.search(r"(?<!\\)<script", line) and not line.startswith("    ")
    ]
    asked = next(line for line in text.splitlines() if "glmplan sensitivity" in line)
    assert "'<script>alert(1)</script>" in asked, "what is copied into a shell is one word"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"schema": "glmplan.fit/9"}, "schema"),
        ({"schema": "glmplan.fit/2"}, "question"),
        ({"schema": "glmplan.fit/1"}, "question"),
        ([], "schema"),
    ],
)
def test_a_file_that_is_no_plan_is_refused_with_its_field(tmp_path, content, said):
    file = tmp_path / "a.json"
    file.write_text(json.dumps(content))
    with pytest.raises(SpecError, match=said):
        read_plan(file)


def new_path(old, names=FIT_NAMES):
    """The path of a field of glmplan.fit/1 in the names of glmplan.fit/2."""
    parts = [part.removesuffix("[]") for part in old.split(".")]
    heads = [".".join(old.split(".")[: place + 1]).removesuffix("[]") for place in range(len(parts))]
    rows = ["[]" * part.endswith("[]") for part in old.split(".")]
    return ".".join(names.get(head, part) + row for head, part, row in zip(heads, parts, rows, strict=True))


def test_a_plan_with_the_old_names_is_read_as_the_same_plan(tmp_path, records):
    inverse = {new_path(old): old.rpartition(".")[2] for old in FIT_NAMES}
    old = json.loads(json.dumps(renamed(records[0], inverse))) | {"schema": "glmplan.fit/1"}
    for warning in old["warnings"]:
        warning["kind"] = {"limitation": "wall"}.get(warning["kind"], warning["kind"])
    assert {"knowledge", "binding", "narrowing", "left_out", "runs"} <= set(old)
    assert "why" in old["safe"]["limits"]["kv"]
    file = tmp_path / "old.json"
    file.write_text(json.dumps(old))
    assert read_plan(file) == records[0]


def test_the_reference_lists_every_old_name():
    page = (Path(__file__).resolve().parents[2] / "docs/reference/fit-json.md").read_text(encoding="utf-8")
    renames = page.split("## Names of")[1]
    table = dict(re.findall(r"^\| `([\w.\[\]*]+)` \| `([\w.\[\]*]+)` \|$", renames, re.MULTILINE))
    assert table == {old: new_path(old) for old in FIT_NAMES}
    later = renames.split("After 1.0.0")[1]
    others = dict(re.findall(r"^\| `.+ \| `(\w+)` \| `(\w+)` \|$", later, re.MULTILINE))
    assert others == SWEEP_NAMES | LIMITATIONS_NAMES


def test_the_check_after_delivery_can_be_typed(made):
    from glmplan.measure.validation import deployment_facts

    text = markdown_of(made)
    command = next(line for line in text.splitlines() if "glmplan validate" in line)
    pairs = re.findall(r"--set (\S+)", command)
    facts = deployment_facts(model="glm-5.1", on="6xrtx-pro-6000-ws", plan=None, pairs=pairs)
    assert facts["tp"] == "2" or facts["tp"] == 2
    assert re.search(r"--users 1[\d,]* ", command) and "--fail-over interval" in command


def test_a_pdf_is_written_with_its_title_and_fetches_nothing(tmp_path, made):
    pytest.importorskip("weasyprint", exc_type=(ImportError, OSError))
    drawn = next(one for one in made.blocks if isinstance(one, Drawing))
    write_report(Document("one page", (made.blocks[1], drawn)), tmp_path / "a.pdf")
    content = (tmp_path / "a.pdf").read_bytes()
    assert content.startswith(b"%PDF-") and b"http" not in content and len(content) > 5_000


def test_a_report_without_its_extra_is_refused_before_anything_is_computed(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_report("a.md")
    with pytest.raises(SpecError, match=r"needs the extra pdf: pip install 'glmplan\[pdf\]'"):
        check_report("a.pdf")
    with pytest.raises(SpecError, match=r"needs the extra png"):
        check_report("a.html")


def test_two_drawings_stand_side_by_side_on_the_first_sheet(made):
    """A sheet whose drawings take its whole width each pushes them to the next one."""
    pytest.importorskip("weasyprint", exc_type=(ImportError, OSError))
    from weasyprint import HTML

    sheets = HTML(string=html_of(made)).render().pages
    [first] = [box for box in sheets[0]._page_box.descendants() if getattr(box, "element_tag", "") == "figure"]
    sizes = [box.width for box in first.descendants() if str(getattr(box, "element_tag", "")).endswith("svg")]
    assert len(sizes) == 2 and sum(sizes) <= first.width


def test_contents_lead_to_every_part_and_small_tables_are_not_cut(made):
    pytest.importorskip("weasyprint", exc_type=(ImportError, OSError))
    from weasyprint import HTML

    page = html_of(made)
    [contents] = re.findall(r"<nav class='contents'.*?</nav>", page)
    assert re.findall(r"href='#([^']+)'>([^<]+)<", contents) == re.findall(r"<h2 id='([^']+)'>([^<]+)<", page)
    sheets = HTML(string=page).render().pages
    tables = {}
    for place, sheet in enumerate(sheets):
        for box in sheet._page_box.descendants():
            if getattr(box, "element_tag", "") == "table" and "Table" in type(box).__name__:
                tables.setdefault(box.element, set()).add(place)
    letters = {table: sum(len("".join(cell.itertext())) for cell in table.iter("td")) for table in tables}
    few = [pages for table, pages in tables.items() if letters[table] < 700]
    assert len(few) >= 3 and all(len(pages) == 1 for pages in few)


def test_no_chart_has_a_single_concurrency(six):
    record = fit_record(six)
    alone = decision([record | {"users": record["users"][:1]}], MONEY)
    drawn = [one.caption for one in alone.blocks if isinstance(one, Drawing)]
    assert drawn and not any("concurrency" in caption for caption in drawn)
