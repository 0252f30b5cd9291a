"""The page of `glmplan site`, opened from a file: it answers offline, and names the command for the rest."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from urllib.parse import quote

import pytest

from glmplan.cli import main
from glmplan.service.form import page_assets
from glmplan.service.site import bundled

BROWSER = shutil.which("chromium")
PATIENCE = 300_000
PLAN = "llama-3.1-8b@1xh100-sxm,input=512,output=128"


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main([*words])
    assert ended.value.code == 0


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    run("site", str(folder), PLAN, "kimi-k2-thinking@1xh100-sxm", "--users", "1,8")
    return folder


def test_every_module_of_the_page_is_in_the_one_script(site):
    text = (site / "page/index-site.js").read_text(encoding="utf-8")
    assert not re.search(r"^\s*(import|export) ", text, re.MULTILINE)
    files = {name: asset.content.decode() for name, asset in page_assets().items() if name.endswith(".js")}
    with_modules = {name for name in files if f'modules["{name}"] = ' in text}
    assert with_modules >= {"dom.js", "main.js", "state.js"}
    assert bundled("main.js", files) in text
    for name in ("buy", "check"):
        assert not re.search(r"^\s*(import|export) ", (site / f"page/{name}-site.js").read_text(), re.MULTILINE)


def test_the_stored_answers_are_those_of_the_command_line(site, capsys):
    held = (site / "page/answers.js").read_text(encoding="utf-8").partition("window.glmplanAnswers = ")[2]
    answers = json.loads(held.removesuffix(";\n").replace("<\\/", "</"))
    run("fit", "llama-3.1-8b", "--on", "1xh100-sxm", "--input", "512", "--output", "128", "--users", "1,8", "--format",
        "json")  # fmt: skip
    told = json.loads(capsys.readouterr().out)
    [stored] = [answer for asked, answer, _ in answers["v1/fit"] if asked.get("input") and asked["users"] == [1, 8]]
    assert stored == told
    assert {status for entries in answers.values() for _, _, status in entries} <= {200, 422}


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
def test_opened_from_a_file_it_answers_offline_and_names_the_command_for_the_rest(site, capsys):
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    faults = []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        context = browser.new_context(offline=True)
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda one: one.url.startswith(("file:", "data:", "blob:")) or faults.append(one.url))
        page.goto((site / "index.html").as_uri())
        page.locator("#answer[aria-busy=false]").wait_for()
        page.wait_for_function("document.body.dataset.done")
        assert page.locator("#problem").is_hidden()
        assert page.locator("#curve svg").count() >= 1
        page.goto((site / "index.html").as_uri() + "?model=llama-3.1-8b&on=1xh100-sxm&users=8&input=512&output=128")
        page.wait_for_function("document.body.dataset.done")
        assert page.locator("#problem").is_hidden()
        page.goto((site / "index.html").as_uri() + "?model=llama-3.1-8b&on=2xh100-sxm&users=4&kv=fp8")
        told = page.locator("#problem")
        told.wait_for()
        command = re.search(r"glmplan fit .*", told.inner_text())[0]
        page.get_by_role("link", name="What should I buy?").click()
        page.wait_for_url("**/buy.html*")
        page.goto((site / "buy.html").as_uri())
        page.wait_for_function("document.body.dataset.done")
        page.locator("#go").click()
        page.locator("#verdict:not([hidden])").wait_for()
        assert "H100" in page.locator("#verdict-title").inner_text()
        assert page.locator("#options tbody tr").count() >= 1
        page.locator("#users").fill("31")
        page.locator("#go").click()
        page.locator("#problem:not([hidden])").wait_for()
        assert "glmplan size --model llama-3.1-8b" in page.locator("#problem").inner_text()
        page.get_by_role("link", name="Is my server as fast as predicted?").click()
        page.wait_for_url("**/check.html*")
        page.wait_for_function("document.body.dataset.done")
        assert "glmplan validate llama-3.1-8b" in page.locator("#command").inner_text()
        page.locator("#drop summary").click()
        page.locator("#text").fill("{}")
        page.locator("#go").click()
        page.locator("#problem:not([hidden])").wait_for()
        assert "glmplan runs import" in page.locator("#problem").inner_text()
        browser.close()
    assert faults == []
    assert command == "glmplan fit llama-3.1-8b --on 2xh100-sxm --kv 'fp8' --users '1,4'"
    run(*shlex.split(command)[1:])
    assert "2 × H100" in capsys.readouterr().out


@pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
def test_every_command_that_a_site_names_is_one(site, capsys):
    """It named `glmplan explain` and `glmplan workbook`, limits without a unit, and compared plans without options."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    named = {}
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        page.set_default_timeout(PATIENCE)
        other = "vs=" + quote("model=llama-3.1-8b&on=1xh200-sxm&tp=1&rate=9")
        page.goto(
            f"{(site / 'index.html').as_uri()}?model=llama-3.1-8b&on=1xh100-sxm&input=512&output=128&users=8&{other}"
        )
        page.wait_for_function("document.body.dataset.done")
        named["compare"] = page.locator("#compare-body .note").first.inner_text()
        page.locator("#formats details.cell:has-text('Yes')").nth(1).locator("summary").click()
        page.locator("#formats details[open] .note", has_text="glmplan").wait_for()
        named["fit"] = page.locator("#formats details[open] .note").inner_text()
        page.locator("#tab-take").click()
        page.locator("#export-xlsx").click()
        page.locator("#said", has_text="glmplan").wait_for()
        named["sheet new"] = page.locator("#said").inner_text()
        page.goto(f"{(site / 'index.html').as_uri()}?model=llama-3.1-8b&on=1xh100-sxm&users=8&rate=20&wait=3")
        page.locator("#problem:not([hidden])").wait_for()
        named[""] = page.locator("#problem").inner_text()
        browser.close()
    commands = {name: shlex.split(re.search(r"glmplan .*", text)[0])[1:] for name, text in named.items()}
    assert all(" ".join(command).startswith(name) for name, command in commands.items())
    assert "--explain" in commands["fit"] and "llama-3.1-8b@1xh200-sxm,tp=1" in commands["compare"]
    assert commands[""][commands[""].index("--tpot-limit") :][:2] == ["--tpot-limit", "0.05s"]
    for name in ("compare", "fit", ""):
        run(*commands[name])
        assert "llama-3.1-8b" in capsys.readouterr().out
    run("sheet", "new", "--help")
    known = capsys.readouterr().out
    assert all(word in known for word in commands["sheet new"] if word.startswith("--"))


def test_a_plan_that_is_refused_is_named(tmp_path, capsys):
    for plan, words in (("llama-3.1-8b", "MODEL@MACHINE"), ("lama-3.1-8b@1xh100-sxm", "nearest: llama")):
        with pytest.raises(SystemExit) as ended:
            main(["site", str(tmp_path / "none"), plan])
        assert ended.value.code == 2
        assert words in capsys.readouterr().err
        assert not (tmp_path / "none").exists()
