"""The page in a real browser: every control asks, answers equal the API's, nothing comes from elsewhere."""

from __future__ import annotations

import json
import time
from pathlib import Path
from urllib.parse import parse_qs, urlencode

import pytest

#: a plan that is computed quickly
START = "/?model=llama-3.1-8b&on=1xh100-sxm&users=8&input=512&output=128&api_in=0.05&api_out=0.1"
PLAN = {"model": "llama-3.1-8b", "on": "1xh100-sxm", "input": 512, "output": 128}
AXE = Path(__file__).resolve().parents[2] / ".peers/node_modules/axe-core/axe.min.js"
PATIENCE = 300_000


def until(page, holds):
    """Wait until something holds; Playwright's own way evaluates text in the page, which the page does not allow."""
    end = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(holds):
        assert time.monotonic() < end, holds
        page.wait_for_timeout(50)


def settled(page):
    """Wait until everything that was asked is answered and drawn; the address that was answered."""
    until(page, "document.body.dataset.done === location.pathname + location.search")
    return page.evaluate("document.body.dataset.done")


def chosen(page, field, name):
    """Choose an entry of a searchable list by typing."""
    page.locator(f"#{field}").fill(name)
    page.locator(f"#{field}").press("Enter")


def tab(page, name):
    """Open a tab."""
    page.locator(f"#tab-{name}").click()


@pytest.fixture(scope="module")
def shared(browser, address):
    """One page that tests only look at."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(address + START)
    settled(page)
    yield page
    context.close()


def test_the_figures_are_those_of_the_service(shared, client):
    answer = client.post("/v1/fit", json=PLAN | {"users": [1, 8]}).json()
    shown = shared.locator("#verdict").inner_text()
    rate = answer["users"][1]["output_tokens_per_s_per_request"]["value"]
    total = answer["users"][1]["output_tokens_per_s"]["value"]
    chance = min(int(100 * answer["answer"]["probability"] + 1e-9), 99)
    assert answer["answer"]["verdict"] == "yes" and f"Yes for 8 people: {chance} %" in shown
    assert f"{answer['safe']['users']:,} people at 95 % confidence" in shown
    assert f"{float(f'{rate:.3g}'):,.0f} tokens/s each" in shown
    assert f"{float(f'{total:.3g}'):,.0f}" in shared.locator("#figures").inner_text()
    assert answer["command"] in shared.locator("#start").text_content()
    assert answer["warnings"][0]["title"] in shared.locator("#warnings").text_content() if answer["warnings"] else True


def test_the_curve_and_its_table_show_every_number_of_users(shared):
    rows = shared.locator("#curve-table tbody tr").count()
    assert rows >= 5
    assert shared.locator("#curve svg").count() == 1
    assert shared.locator("#curve svg").first.locator("circle").count() == rows
    assert "8 users" in shared.locator("#curve svg").first.get_attribute("aria-label")


def test_a_tap_on_the_curve_tells_the_values_of_the_nearest_point(opened):
    page = opened(has_touch=True, viewport={"width": 390, "height": 844})
    settled(page)
    chart, told = page.locator("#curve svg"), page.locator("#curve .nearest")
    assert told.inner_text().startswith("8 users: ")
    chart.scroll_into_view_if_needed()
    points = page.evaluate(
        "[...document.querySelectorAll('#curve circle')].map((one) => one.getBoundingClientRect().x)"
    )
    page.touchscreen.tap(points[0] + 5, chart.bounding_box()["y"] + 40)
    assert told.inner_text() == chart.locator("circle title").first.text_content()
    assert told.inner_text().startswith("1 user: ")


def test_other_users_ask_for_the_same_curve(opened):
    """The rows of the curve are those of powers of two, so that the service has their answer; the own row is added."""
    page, questions = opened(), []
    settled(page)
    rows = page.locator("#curve circle").count()
    page.on("request", lambda one: questions.append(one.post_data_json) if one.url.endswith("/v1/fit") else None)
    for users in ("9", "10"):
        page.locator("#users").fill(users)
        page.locator("#users").press("Enter")
        until(page, f"location.search.includes('users={users}&')")
        settled(page)
        assert page.locator("#curve circle").count() == rows
        assert page.locator("#curve .nearest").inner_text().startswith(f"{users} users: ")
    curves = [one["users"] for one in questions if one.get("weights") == "bf16" and isinstance(one["users"], list)]
    assert len(curves) == 2 and curves[0] == curves[1]


def test_the_evidence_of_a_range_is_told_once(opened):
    page = opened("/?model=qwen3-32b&on=2xrtx-5090&users=4&rate=15")
    settled(page)
    why = page.locator("#why").inner_text().lower()
    assert why.count("measured separately") == 1 and "extrapolated" not in why


def test_the_chart_has_the_slo_the_zones_and_both_bands(opened, client):
    page = opened("/?model=glm-5.1-nvfp4&on=6xrtx-pro-6000-ws&users=8&rate=12")
    settled(page)
    question = {"model": "glm-5.1-nvfp4", "on": "6xrtx-pro-6000-ws", "users": [1, 8], "tpot_limit": 1 / 12}
    safe = client.post("/v1/fit", json=question).json()["safe"]
    chart = page.locator("#curve svg")
    assert chart.locator("line.slo").count() == 1 and "your limit: 12" in chart.text_content()
    assert chart.locator("path.band").count() == 2
    zones = [
        name
        for name, there in (("z-yes", safe["users"] >= 1), ("z-likely", safe["users_at_50"] > safe["users"]))
        if there
    ]
    assert [chart.locator(f"rect.{name}").count() for name in zones] == [1] * len(zones)
    # the axis of the first token does not start at zero: a band of decades would flatten the line
    page.get_by_role("button", name="First token", exact=True).click()
    assert (
        f"your limit: {safe['target_ttft_ms'] / 1000:g} s" in chart.text_content() and "(log)" in chart.text_content()
    )
    page.get_by_role("button", name="Probability", exact=True).click()
    assert chart.locator("line.slo").count() == 2


def test_the_bars_add_up_to_what_the_card_holds(shared, client):
    [rank] = client.post("/v1/fit", json=PLAN | {"users": [1, 8]}).json()["memory"]["ranks"]
    label = shared.locator("#memory .bar svg").get_attribute("aria-label")
    assert f"of {rank['capacity_gib']:.3g} GiB" in label
    assert f"weights {rank['weights_total_gib']:.3g} GiB" in label


def test_cost_and_break_even_are_those_of_the_service(shared, client):
    prices = ["llama-3.1-8b:input=0.05", "llama-3.1-8b:output=0.1"]
    found = client.post("/v1/cost", json=PLAN | {"users": 8, "price": prices}).json()
    shown = shared.locator("#cost").text_content()
    for way in found["ways"]:
        if way["usd_month"] is not None:
            rounded = float(f"{way['usd_month']:.4g}")
            assert f"${rounded:,.0f}" in shown
    assumed = {text.partition(":")[0] for way in found["ways"] for text in way["price_assumed"]}
    assert assumed and all(shown.count(text) == 1 for text in assumed)
    assert shared.locator("#even svg").count() == sum(way["usd_month"] is not None for way in found["ways"])


#: control → what is chosen or typed, and what the next question then holds
CONTROLS = {
    "rate": ("20", {"tpot_limit": 0.05}),
    "wait": ("2", {"ttft_limit": 2}),
    "model": ("qwen3-32b", {"model": "qwen3-32b"}),
    "weights": ("fp8", None),
    "kv": ("fp8", {"kv": "fp8"}),
    "part": ("h200-sxm", {"on": "1xh200-sxm"}),
    "cards": ("2", {"on": "2xh100-sxm"}),
    "engine": ("sglang", {"engine": "sglang"}),
    "host_memory": ("512GB", {"host_memory": "512GB"}),
    "host_memory_bandwidth": ("460GB/s", {"host_memory_bandwidth": "460GB/s"}),
    "host_cores": ("32", {"host_cores": 32}),
    "users": ("4", {"users": [1, 4]}),
    "context": ("4096", {"context": 4096}),
    "input": ("300", {"input": 300}),
    "output": ("60", {"output": 60}),
    "use_case": ("rag", {"use_case": "rag"}),
    "tp": ("1", {"tp": 1}),
    "pp": ("1", {"pp": 1}),
    "dp": ("1", {"dp": 1}),
    "ep": ("1", {"ep": 1}),
    "dcp": ("1", {"dcp": 1}),
    "engine_version": ("0.19.0", {"engine_version": "0.19.0"}),
    "eager": ("true", {"eager": True}),
    "memory_fraction": ("0.8", {"memory_fraction": 0.8}),
    "max_num_seqs": ("64", {"max_num_seqs": 64}),
    "max_num_batched_tokens": ("4096", {"max_num_batched_tokens": 4096}),
    "max_model_len": ("16384", {"max_model_len": 16384}),
    "attention_backend": ("FLASH_ATTN", {"attention_backend": "FLASH_ATTN"}),
    "lora": ("2", {"lora": 2}),
    "lora_rank": ("8", {"lora_rank": 8}),
    "power_limit": ("450W", {"power_limit": "450W"}),
    "recipe": ("vllm-recipes", {"recipe": "vllm-recipes"}),
    "mtp": ("0", {"mtp": 0}),
    "acceptance": ("0.7", {"acceptance": 0.7}),
    "drafter": ("ngram", {"drafter": "ngram"}),
    "buy": ("25000", None),
    "rent": ("1.9", None),
    "electricity": ("0.31", None),
    "api_in": ("0.1", None),
    "api_out": ("0.4", None),
}
PRICES = {
    "buy": "1xh100-sxm=25000",
    "rent": "h100-sxm:rent=1.9",
    "electricity": "electricity=0.31",
    "api_in": "llama-3.1-8b:input=0.1",
    "api_out": "llama-3.1-8b:output=0.4",
}


def test_every_control_of_the_page_is_tried_here(shared):
    ids = shared.eval_on_selector_all("#question input, #question select", "all => all.map((one) => one.id)")
    assert set(ids) == set(CONTROLS)


def asks(name, value, question):
    """Whether a request is the question that a control makes when it holds a value."""

    def holds(request):
        if ("/v1/cost" if name in PRICES else "/v1/fit") not in request.url:
            return False
        asked = json.loads(request.post_data)
        if name in PRICES:
            return PRICES[name] in asked["price"]
        if name == "weights":
            return asked["model"] == f"llama-3.1-8b-{value}" or asked.get("weights") == value
        return {field: asked.get(field) for field in question} == question

    return holds


def test_every_control_asks_what_it_says_and_stands_in_the_address(opened):
    page = opened(errors=True)
    settled(page)
    for name, (value, question) in CONTROLS.items():
        page.goto(page.url.partition("?")[0] + START.lstrip("/"))
        until(page, "Boolean(document.getElementById('model').dataset.value)")
        page.evaluate("for (const id of ['more', 'lengths']) document.getElementById(id).open = true")
        control = page.locator(f"#{name}")
        if name == "weights":
            value = control.evaluate("one => [...one.options].at(-1).value")
        with page.expect_request(asks(name, value, question)):
            if control.get_attribute("role") == "combobox":
                chosen(page, name, value)
            elif control.evaluate("one => one.tagName") == "SELECT":
                control.select_option(value)
            elif control.get_attribute("type") == "checkbox":
                control.check()
            else:
                control.fill(value)
                control.dispatch_event("change")
        until(page, f"location.search !== {json.dumps(START.lstrip('/'))}")
        given = parse_qs(page.evaluate("location.search.slice(1)"))
        assert value in [*given.get(name, []), *given["on"], *given["model"]] or name in ("part", "cards", "weights")


def test_a_link_shows_the_same_again(opened):
    page = opened()
    settled(page)
    page.locator("#add").click()
    page.locator("#cards").fill("2")
    settled(page)
    other = opened("/" + page.evaluate("location.search"))
    settled(other)
    for part in ("#verdict", "#compare", "#cost", "#memory"):
        assert other.locator(part).text_content() == page.locator(part).text_content()


def test_up_to_four_plans_are_compared_opened_and_removed(opened):
    page = opened()
    settled(page)
    for cards in ("2", "4", "8", "1"):
        page.locator("#add").click()
        settled(page)
        page.locator("#cards").fill(cards)
        settled(page)
    assert page.locator("#compare thead th").count() == 4
    assert "Four plans" in page.locator("#said").inner_text()
    assert page.locator("#compare tbody tr").count() > 8
    # the field of the last number is left here: the table must not be drawn anew under the button that is pressed
    removal = page.get_by_role("button", name="Remove llama-3.1-8b on 2xh100-sxm")
    removal.hover()
    page.mouse.down()
    page.wait_for_timeout(1000)
    page.mouse.up()
    settled(page)
    assert page.locator("#compare thead th").count() == 3
    page.get_by_role("button", name="Open llama-3.1-8b on 1xh100-sxm").click()
    settled(page)
    assert page.locator("#cards").input_value() == "1"


def test_a_plan_that_does_not_fit_is_no_reason_to_compare_nothing(opened, client):
    others = [{"model": "glm-5.1", "on": "1xh100-sxm"}, {"model": "llama-3.1-8b", "on": "2xh100-sxm"}]
    page = opened(START + "".join("&" + urlencode({"vs": urlencode(one | {"users": 8})}) for one in others))
    settled(page)
    assert page.locator("#compare thead th").count() == 3
    assert "does not fit 1xh100-sxm" in page.locator("#compare .note").first.inner_text()
    rates = page.locator("#compare tbody tr", has_text="Tokens/s of all").locator("td").all_inner_texts()
    plans = [{"model": "llama-3.1-8b", "on": "2xh100-sxm"}, PLAN]
    found = client.post("/v1/compare", json={"plans": plans, "users": 8}).json()["plans"]
    assert rates[0] == "–"
    for said, one in zip(rates[1:], found, strict=True):
        assert float(said.split(" ")[0].replace(",", "")) == float(f"{one['output_tokens_per_s']:.3g}")
        assert said.endswith(f" to {float(format(one['output_tokens_per_s_high'], '.3g')):,.0f}")
    assert "no answer" in page.locator("#compare tbody tr").first.inner_text()


def test_what_is_taken_away_is_what_is_shown(opened, client, tmp_path):
    page = opened(errors=True, permissions=["clipboard-read", "clipboard-write"])
    settled(page)
    tab(page, "take")
    with page.expect_download() as got:
        page.locator("#export-json").click()
    got.value.save_as(tmp_path / "a.json")
    assert json.loads((tmp_path / "a.json").read_text()) == client.post("/v1/fit", json=PLAN | {"users": [1, 8]}).json()
    with page.expect_download() as got:
        page.locator("#export-png").click()
    got.value.save_as(tmp_path / "a.png")
    picture = (tmp_path / "a.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert int.from_bytes(picture[16:20], "big") == 2200
    page.locator("#export-command").click()
    until(page, "document.getElementById('said').textContent !== ''")
    command = page.locator("#command-line").inner_text()
    assert page.evaluate("navigator.clipboard.readText()") == command
    assert command == "glmplan fit llama-3.1-8b --on 1xh100-sxm --input 512 --output 128 --users 1,8"
    page.locator("#link").click()
    until(page, "document.getElementById('said').textContent.includes('link')")
    assert page.evaluate("navigator.clipboard.readText()") == page.evaluate("location.href")
    page.locator("#export-xlsx").click()
    # with the room of workbooks it is a download, without it a sentence
    until(page, "/workbooks: are not|workbook is saved/.test(document.getElementById('said').textContent)")


def test_what_is_asked_wrongly_is_told_beside_the_field_and_mended_by_a_click(opened):
    page = opened("/?model=llama-3.1-8b&on=1xh100-smx&users=2", errors=True)
    page.wait_for_selector("#problem:not([hidden])")
    assert "h100-smx" in page.locator("#problem").inner_text()
    assert page.locator("#part").get_attribute("aria-invalid") == "true"
    # no answer to another question stands below it
    assert page.locator("#verdict").is_hidden() and page.locator("#start").is_hidden()
    page.locator("#problem button", has_text="h100-sxm").first.click()
    settled(page)
    assert page.locator("#problem").is_hidden() and page.locator("#verdict").is_visible()
    assert "on=1xh100-sxm" in page.evaluate("location.search")


def test_what_does_not_fit_is_shown_with_what_is_short(opened):
    page = opened("/?model=glm-5.1&on=1xh100-sxm&users=2")
    settled(page)
    assert "Does not load" in page.locator("#verdict").inner_text()
    assert page.locator(".pair").is_hidden()
    assert "are short" in page.locator("#memory").inner_text()
    assert page.locator("#memory .c-over").count() >= 1


def test_a_plan_whose_speed_is_not_known_says_why(opened):
    page = opened("/?model=glm-5.1-bf16&on=32xh100-sxm&users=2")
    settled(page)
    assert "network between nodes" in page.locator("#curve").inner_text()
    assert "network between nodes" in page.locator("#headline").inner_text()
    assert "is not known" in page.locator("#links").text_content()
    assert not page.locator("#curve-table").is_visible()


def test_many_cards_stand_in_rows_and_no_label_of_a_chart_is_cut(opened):
    page = opened("/?model=llama-3.1-8b&on=72xgb300&tp=8&users=4096&input=512&output=128")
    settled(page)
    cut = """() => [...document.querySelectorAll("#curve svg")].flatMap((one) => {
        const { width } = one.viewBox.baseVal;
        return [...one.querySelectorAll("text")].filter((text) => {
            const box = text.getBBox();
            return box.x < 0 || box.x + box.width > width;
        }).map((text) => text.textContent);
    })"""
    page.get_by_role("button", name="All together", exact=True).click()
    labels = page.locator("#curve svg").locator("text").all_text_contents()
    assert any(len(label) >= 6 and label.replace(",", "").isdigit() for label in labels), labels
    assert page.evaluate(cut) == []
    tab(page, "links")
    assert "9 groups of 8 cards" in page.locator("#links").inner_text()
    assert page.locator("#links svg text.strong").first.bounding_box()["height"] > 8


#: texts of drawings that leave their drawing, lie on each other or on the line of a limit
CROWDED = """() => [...document.querySelectorAll("main svg[viewBox]")].flatMap((one) => {
    const frame = one.getBoundingClientRect();
    const texts = [...one.querySelectorAll("text")].filter((text) => text.textContent && text.checkVisibility());
    const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
    const cut = boxes.filter(([, box]) => box.left < frame.left - 1 || box.right > frame.right + 1);
    const over = (a, b, from, to) => Math.min(a[to], b[to]) - Math.max(a[from], b[from]);
    const meet = (a, b) => over(a, b, "left", "right") > 1 && over(a, b, "top", "bottom") > 4;
    const pairs = boxes.flatMap(([text, box], place) =>
        boxes.slice(place + 1).filter(([, other]) => meet(box, other)).map(([other]) => `${text} on ${other}`));
    const lines = [...one.querySelectorAll("line.slo")].map((line) => ["a limit", line.getBoundingClientRect()]);
    const inside = (box, line) => box.top + 3 < line.top && line.bottom < box.bottom - 3;
    const struck = boxes.flatMap(([text, box]) =>
        lines.filter(([, line]) => over(box, line, "left", "right") > 1 && inside(box, line))
            .map(([name]) => `${text} on ${name}`));
    return [...cut.map(([text]) => text), ...pairs, ...struck];
})"""


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize(
    "where",
    [
        START + "&buy=25000",
        # the limit is the lowest value of the chart
        "/?model=llama-3.1-8b&on=1xh100-sxm&users=8",
        "/?model=glm-5.1-nvfp4&on=6xrtx-pro-6000-ws&users=8",
        "/?model=llama-3.1-8b&on=wrx90-2-switches-8&users=8&rent=1",
        "/?model=deepseek-v3.2&on=hgx-b200-8&users=32&api_in=0.3&api_out=0.4",
    ],
)
def test_no_words_of_a_drawing_lie_on_others_or_are_cut(opened, where, width):
    page = opened(where, viewport={"width": width, "height": 800})
    settled(page)
    assert page.locator("#links svg text").count() >= 3
    for name in ("each", "links", "cost"):
        if name != "each":
            tab(page, name)
        assert page.evaluate(CROWDED) == []


def test_an_option_of_a_command_is_not_torn_apart(opened):
    page = opened("/?model=glm-5.1-nvfp4&on=6xrtx-pro-6000-ws&users=8", viewport={"width": 360, "height": 800})
    settled(page)
    tab(page, "take")
    torn = """() => [...document.querySelectorAll("pre .u")]
        .filter((one) => one.getClientRects().length > 1).map((one) => one.textContent)"""
    options = page.locator("pre .u").all_inner_texts()
    assert "--tensor-parallel-size" in options and "--on" in options
    assert page.evaluate(torn) == []


def test_the_verdict_is_on_the_first_screen_of_a_telephone(opened):
    page = opened(viewport={"width": 390, "height": 844})
    settled(page)
    box = page.locator("#verdict-title").bounding_box()
    assert box["y"] + box["height"] < 600
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    chosen(page, "part", "rtx 5090")
    chosen(page, "model", "llama-3.1-70b")
    settled(page)
    assert "Does not load" in page.locator("#verdict-title").inner_text()
    assert page.locator("#verdict-title").bounding_box()["y"] < 600


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("users", "-3", "whole number from 1 to 4,096"),
        ("users", "0", "whole number from 1 to 4,096"),
        ("users", "1.5", "whole number from 1 to 4,096"),
        ("users", "5000", "whole number from 1 to 4,096"),
        ("users", "", "the field is empty"),
        ("cards", "0", "whole number from 1 to 4,096"),
        ("rate", "-1", "above 0"),
        ("acceptance", "0.7", "Drafted tokens"),
    ],
)
def test_a_number_that_cannot_be_is_told_at_its_field(opened, field, value, said):
    page = opened(errors=True)
    settled(page)
    page.evaluate("document.getElementById('more').open = true")
    page.locator(f"#{field}").fill(value)
    page.wait_for_selector("#problem:not([hidden])")
    shown = page.locator("#problem").inner_text()
    assert said in shown
    # no word of the command line or of the validator
    assert not any(word in shown for word in ("--", "glmplan", "users.", "integer"))
    assert page.locator(f"#{field}").get_attribute("aria-invalid") == "true"
    assert page.locator(f"#{field}").get_attribute("aria-describedby") == "problem"


def test_a_format_that_is_tried_takes_the_place_of_that_in_the_name(opened):
    page = opened("/?model=glm-5.1-fp8&on=8xb200-sxm&users=8")
    settled(page)
    tab(page, "changes")
    tried = page.locator("#changes li", has_text="nvfp4").first
    tried.locator("button").click()
    settled(page)
    assert parse_qs(page.evaluate("location.search.slice(1)"))["model"] == ["glm-5.1-nvfp4"]
    assert page.locator("#weights").input_value() == "nvfp4"


def test_another_model_that_is_named_can_be_tried(opened, client):
    question = {"model": "glm-5.1-fp8", "on": "8xh200-sxm", "users": [1, 8]}
    [other] = [
        one for one in client.post("/v1/fit", json=question).json()["changes"] if one["options"].startswith("glm")
    ]
    page = opened("/?model=glm-5.1-fp8&on=8xh200-sxm&users=8")
    settled(page)
    tab(page, "changes")
    page.locator("#changes li", has_text=other["description"]).locator("button").click()
    settled(page)
    assert parse_qs(page.evaluate("location.search.slice(1)"))["model"] == [other["options"]]
    assert page.locator("#model").get_attribute("data-value").startswith("glm-5.1-reap")


def test_what_fits_is_asked_of_the_command_line_where_no_change_does(opened):
    page = opened("/?model=glm-5.1&on=1xh100-sxm&users=2&memory_fraction=0.05")
    settled(page)
    assert "glmplan size --model glm-5.1 --users 1" in page.locator("#changes pre").text_content()


def test_a_link_is_copied_where_the_browser_gives_no_clipboard(opened):
    """As on another machine than this one, where plain HTTP is no secure context."""
    page = opened()
    settled(page)
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.locator("#link").click()
    until(page, "document.getElementById('said').textContent.includes('is copied')")
    assert page.locator("textarea").count() == 0


def test_limits_of_tokens_are_not_rounded(shared):
    assert "131,072" in shared.locator("#figures").text_content()


def test_the_page_is_used_with_the_keyboard_alone(opened):
    page = opened()
    settled(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "users":
            break
    page.keyboard.press("Control+a")
    page.keyboard.type("3")
    settled(page)
    assert "users=3&" in page.evaluate("location.search")
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "add":
            break
    page.keyboard.press("Enter")
    settled(page)
    assert page.locator("#compare").is_visible()
    page.locator("#reset").focus()
    page.keyboard.press("Space")
    until(page, "location.search.includes('glm-5.1')")
    settled(page)


def test_an_answer_that_comes_while_a_button_is_pressed_does_not_take_the_click(opened):
    page = opened()
    settled(page)
    page.locator("#add").click()
    settled(page)
    held = []

    def hold(route) -> None:
        held.append(route)

    page.route("**/v1/compare", hold)
    page.locator("#users").fill("4")
    page.locator("#users").dispatch_event("change")
    end = time.monotonic() + PATIENCE / 1000
    while not held:
        assert time.monotonic() < end
        page.wait_for_timeout(50)
    # what stands above is drawn, and nothing moves any more
    until(page, "document.getElementById('price-figure') === null")
    button = page.locator("#compare button", has_text="Remove")
    button.hover()
    page.mouse.down()
    with page.expect_response("**/v1/compare"):
        held.pop().continue_()
    page.wait_for_timeout(300)
    page.mouse.up()
    until(page, "document.getElementById('compare').hidden")
    settled(page)


def test_the_focus_stays_with_the_list_whose_button_was_pressed(opened):
    page = opened()
    settled(page)
    tab(page, "changes")
    page.locator("#changes button").first.focus()
    before = page.evaluate("location.search")
    page.keyboard.press("Enter")
    until(page, f"location.search !== {json.dumps(before)}")
    settled(page)
    assert page.evaluate("document.activeElement.closest('#changes, #answer') !== null")
    page.locator("#add").focus()
    page.keyboard.press("Enter")
    settled(page)
    page.locator("#compare button", has_text="Remove").focus()
    page.keyboard.press("Space")
    until(page, "document.getElementById('compare').hidden")
    settled(page)
    assert page.evaluate("document.activeElement !== document.body")


def test_light_and_dark_follow_the_system_until_somebody_chooses(opened):
    page = opened(color_scheme="dark")
    settled(page)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark
    page.reload()
    settled(page)
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


@pytest.mark.parametrize(
    ("width", "scheme"), [(1440, "light"), (1440, "dark"), (360, "light")], ids=["light", "dark", "phone"]
)
def test_nothing_is_cut_and_everybody_can_read_it(opened, width, scheme):
    page = opened(viewport={"width": width, "height": 800}, color_scheme=scheme)
    settled(page)
    page.locator("#add").click()
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if not AXE.is_file():
        pytest.skip("axe-core is not installed: `make test` fetches it where npm is")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    serious = [(one["id"], node["html"][:200], node["failureSummary"][:300]) for one in found for node in one["nodes"]]
    assert serious == []
