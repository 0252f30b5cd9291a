"""Pages in a real browser whose network is cut: the drawings are there, on light and dark screens, wide and narrow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import glmplan
from glmplan.present.decision import decision, write_report
from glmplan.present.decision_parts import priced_plan
from glmplan.present.json_answers import fit_record
from glmplan.purchase.money import money_of

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser looks")
    if CHROMIUM is None:
        pytest.skip("chromium is not installed: no browser looks")
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    from datetime import date

    file = tmp_path_factory.mktemp("report") / "report.html"
    money = money_of(today=date(2026, 11, 22))
    record = fit_record(glmplan.fit("llama-3.1-8b", on="1xh100-sxm", users=(1, 8, 64)))
    assert priced_plan(record, money).works
    write_report(decision([record], money), file)
    return file


@pytest.mark.parametrize(
    ("scheme", "width", "ground"), [("light", 1200, "rgb(255, 255, 255)"), ("dark", 390, "rgb(15, 20, 26)")]
)
def test_a_report_opens_without_a_network(browser, report, scheme, width, ground):
    context = browser.new_context(offline=True, color_scheme=scheme, viewport={"width": width, "height": 900})
    page, asked, wrong = context.new_page(), [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(report.as_uri())
    assert asked == [report.as_uri()] and wrong == []
    drawn = page.locator("figure svg")
    assert drawn.count() == 5
    for number in range(5):
        box = drawn.nth(number).bounding_box()
        assert box["width"] > 200 and box["height"] > 30
        assert drawn.nth(number).locator("text").count() > 3
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
    paper = "getComputedStyle(document.querySelector('figure svg > rect')).fill"
    assert page.evaluate(paper) == ground, "a drawing follows the page"
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is wider than the screen"
    context.close()


@pytest.mark.parametrize("width", [390, 1200])
def test_every_letter_of_a_drawing_can_be_read_on_a_telephone_too(browser, report, width):
    context = browser.new_context(offline=True, viewport={"width": width, "height": 900})
    page = context.new_page()
    page.goto(report.as_uri())
    # size of its smallest letters on the screen [px], and whether what does not fit can be reached by the keyboard
    found = page.evaluate(
        """() => [...document.querySelectorAll("figure svg")].map((svg) => {
            const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
            const sizes = [...svg.querySelectorAll("text")].map((one) => parseFloat(getComputedStyle(one).fontSize));
            const figure = svg.closest("figure");
            return [scale * Math.min(...sizes), figure.scrollWidth <= figure.clientWidth || figure.tabIndex === 0];
        })"""
    )
    assert [size for size, _ in found if size < 8] == [] and all(reached for _, reached in found)
    tops = [page.locator("figure .plots svg").nth(number).bounding_box() for number in range(2)]
    assert (tops[0]["y"] < tops[1]["y"]) == (width == 390), "below each other where there is no room side by side"
    context.close()


def test_whoever_cannot_see_or_point_reads_a_report_on_a_small_telephone(browser, report):
    axe = Path(__file__).resolve().parents[2] / ".peers/node_modules/axe-core/axe.min.js"
    context = browser.new_context(offline=True, viewport={"width": 320, "height": 700})
    page = context.new_page()
    page.goto(report.as_uri())
    hidden = page.locator(".scroll, figure").evaluate_all(
        "all => all.filter((one) => one.scrollWidth > one.clientWidth && one.tabIndex !== 0).length"
    )
    assert hidden == 0, "what is wider than the screen is reached by the keyboard"
    if not axe.is_file():
        pytest.skip("axe-core is not installed: `make test` fetches it where npm is")
    page.evaluate(axe.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    assert [(one["id"], one["nodes"][0]["html"][:200]) for one in found] == []
    context.close()


def test_a_table_of_words_is_a_list_on_a_telephone_and_stays_a_table_for_readers(browser, report):
    context = browser.new_context(offline=True, viewport={"width": 390, "height": 900})
    page = context.new_page()
    page.goto(report.as_uri())
    wide = page.locator(".scroll").evaluate_all("all => all.filter((one) => one.scrollWidth > one.clientWidth).length")
    assert wide == 0, "no table is wider than the screen"
    first = page.get_by_role("table").first.get_by_role("rowheader").first
    assert first.evaluate("one => getComputedStyle(one, '::before').content") == '"concurrency "'
    cell = page.locator(".words td").first
    assert cell.evaluate("one => getComputedStyle(one).display") == "block"
    assert cell.evaluate("one => getComputedStyle(one, '::before').content").strip('"').endswith(": ")
    assert page.get_by_role("table", name="Monthly cost").get_by_role("rowheader").count() >= 1
    context.close()
