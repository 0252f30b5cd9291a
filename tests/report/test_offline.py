"""Pages in a real browser whose network is cut: the drawings are there, on light and dark screens, wide and narrow."""

from __future__ import annotations

import shutil

import pytest

import glmplan
from glmplan.report.considered import considered
from glmplan.report.decision import decision
from glmplan.report.decision_file import write_report
from glmplan.report.fit_json import fit_record
from glmplan.sizing.money import money_of

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
    assert considered(record, money).works
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
    assert drawn.count() == 4
    for number in range(4):
        box = drawn.nth(number).bounding_box()
        assert box["width"] > 200 and box["height"] > 30
        assert drawn.nth(number).locator("text").count() > 3
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
    paper = "getComputedStyle(document.querySelector('figure svg > rect')).fill"
    assert page.evaluate(paper) == ground, "a drawing follows the page"
    assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing is wider than the screen"
    context.close()
