"""The page of the HTTP API in a real browser: nothing from elsewhere, every route, an example that is asked."""

from __future__ import annotations

import json
import shutil

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
BROWSER = shutil.which("chromium")
pytestmark = pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
PATIENCE = 300_000


def test_the_page_shows_every_route_and_asks_an_example(address, client):
    document = client.get("/openapi.json").json()
    faults = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda one: one.url.startswith(address) or faults.append(one.url))
        page.goto(f"{address}/docs")
        page.locator("#routes[aria-busy=false]").wait_for()
        shown = page.locator("summary > code:first-child").all_inner_texts()
        routes = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
        assert shown == [*routes, *document["components"]["schemas"]]
        page.get_by_text("POST /v1/links").click()
        page.get_by_label("Ask the example of /v1/links").click()
        answer = page.get_by_label("Answer of /v1/links")
        answer.wait_for()
        example = document["paths"]["/v1/links"]["post"]["requestBody"]["content"]["application/json"]["example"]
        assert json.loads(answer.inner_text()) == client.post("/v1/links", json=example).json()
        page.goto(f"{address}/docs#schema-JobState")
        page.locator("#schema-JobState[open]").wait_for()
        browser.close()
    assert faults == []


def test_the_page_follows_the_theme_and_writes_no_backticks(address):
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        colours = []
        for scheme in ("light", "dark"):
            page = browser.new_context(color_scheme=scheme).new_page()
            page.set_default_timeout(PATIENCE)
            page.goto(f"{address}/docs")
            page.get_by_text("GET /v1/values", exact=True).wait_for()
            colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
            assert "`" not in page.locator("#routes").inner_text()
            assert page.locator("#routes > p code").first.inner_text() == "--format json"
        browser.close()
    assert colours[0] != colours[1]


def test_the_page_asks_for_the_token_of_the_service(serving):
    token = "correct-horse-battery"
    with serving(token=token) as address, playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(f"{address}/docs")
        page.get_by_label("Token of this service").fill(token)
        page.get_by_text("Show", exact=True).click()
        page.get_by_text("GET /v1/values", exact=True).wait_for()
        browser.close()
