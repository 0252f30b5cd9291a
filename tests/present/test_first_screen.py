"""The first screen of `glmplan fit`: thirty lines that decide, and a whole page that stays as it was."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from glmplan.planner import fit_answer
from glmplan.planner.plan import LEAST_GAIN, best_changes, gain_of
from glmplan.present.answer_text import SECTIONS, fit_sections, fit_text
from glmplan.present.first_screen import MOST_LINES, first_screen
from glmplan.present.text import LIMITS, WIDTH
from glmplan.request.plan import PlanRequest

QUESTIONS = {
    "pipeline stages": PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"),
    "does not fit": PlanRequest("kimi-k2.6", "4xrtx-pro-6000-ws"),
    "far too large": PlanRequest("glm-5.1", "dgx-spark"),
    "tight": PlanRequest("glm-5.1-fp8", "8xh200-sxm", users="200", input="8192", output="1024"),
    "many layouts": PlanRequest("kimi-k2.5", "gb200-nvl72"),
    "one memory": PlanRequest("qwen3-30b-a3b", "mac-studio-m3-ultra"),
    "offloaded": PlanRequest("glm-5.1-fp8", "genoa-2s-direct-8", engine="ktransformers"),
    "nothing published": PlanRequest("glm-5.1-int4", "nizwo-a1"),
    "a file of llama.cpp": PlanRequest("llama-3.1-70b-q4_k_m", "4xrtx-3090"),
    "a long name and command": PlanRequest(
        "nvidia-nemotron-3.5-lightning-30b-a3b", "8xb200-sxm", engine="sglang", memory_fraction="0.85",
        max_num_seqs="64", max_num_batched_tokens="8192", attention_backend="flashinfer", kv="fp8",
    ),
    "drafting, errors and hazards": PlanRequest("glm-5.1-nvfp4", "six-cards-and-display-gpu", mtp="2"),
    "drafting in sglang": PlanRequest("glm-5.1-fp8", "8xh200-sxm", engine="sglang", mtp="3", tp="8", users="1,16"),
    "options in a file": PlanRequest("glm-5.1-nvfp4", "8xb200-sxm", engine="trtllm", mtp="1", dp="8"),
    "one small card": PlanRequest("llama-3.1-8b", "1xrtx-4090", users="1"),
}  # fmt: skip
WIDTHS = (60, 80, 100, 120, 200)


@cache
def answer(name):
    return fit_answer(QUESTIONS[name])


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_screen_has_at_most_thirty_lines_within_its_width(name, width):
    lines = first_screen(answer(name), width).splitlines()
    assert len(lines) <= MOST_LINES == 30
    words = [word for line in lines if len(line) > width for word in line.split()]
    assert not words, "only a flag that is longer than the page may stand out, and none is"
    assert lines[-1].startswith(("--full", "  "))


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_what_the_numbers_rest_on_is_on_every_screen_that_has_numbers(name, width):
    one = answer(name)
    assert ("\n  evidence " in first_screen(one, width)) == bool(one.evidence)


def test_what_is_narrower_than_sixty_columns_is_written_for_sixty():
    assert first_screen(answer("pipeline stages"), 20) == first_screen(answer("pipeline stages"), 60)


@pytest.mark.parametrize("name", QUESTIONS)
def test_its_parts_stand_in_the_order_of_what_decides(name):
    text = first_screen(answer(name), 120)
    marks = ["\n  limit  ", "\n  KV cache  ", "\n  assumed  ", "\n  one user  ", "\n  safe users  ", "\n  context  ",
             "\n  memory  ", "\nBefore it starts", "\nStart it", "\nAsk next", "\n--full"]  # fmt: skip
    places = [text.index(mark) for mark in marks if mark in text]
    assert places == sorted(places) and len(places) >= 3


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_command_that_starts_the_engine_is_never_cut(name, width):
    one = answer(name)
    text = first_screen(one, width)
    if not one.command:
        assert "Start it" not in text
        return
    written = text.split("Start it\n")[1].replace("\\\n", " ")
    assert " ".join(" ".join(one.command).split()) in " ".join(written.split())


@pytest.mark.parametrize("name", [name for name in QUESTIONS if name not in ("nothing published",)])
def test_the_screen_gives_the_numbers_of_the_answer(name):
    one = answer(name)
    text = " ".join(first_screen(one, 120).split())
    assert one.holding.terms.kv.upper() in text
    if one.safe is not None:
        assert f"safe users {one.safe.users:,}" in text
        assert (
            f"{one.holding.pool.tokens:,.0f} tokens ({one.holding.pool.low:,.0f} to" in text
            or not one.holding.pool.tokens
        )
        assert "one user" in text


@pytest.mark.parametrize("name", ["pipeline stages", "many layouts", "one small card"])
def test_the_memory_of_a_gpu_adds_up_to_its_capacity(name):
    text = " ".join(first_screen(answer(name), 200).split())
    parts = r"weights ([\d.]+) \+ other ([\d.]+) \+ KV cache ([\d.]+) of ([\d.]+) GiB; ([\d.]+) GiB unused"
    weights, other, cache, capacity, unused = map(float, re.search(parts, text).groups())
    assert weights + other + cache + unused == pytest.approx(capacity, abs=0.21)


def test_a_plan_that_does_not_fit_says_what_is_short_and_the_nearest_plan_that_works():
    text = first_screen(answer("does not fit"), 100)
    assert text.splitlines()[2].startswith("DOES NOT FIT  ") and "GiB short" in text
    nearest = next(one for one in answer("does not fit").changes if one.verdict == "fits")
    assert f"fits: {nearest.what}" in text and f"the same with {nearest.ask}" in text


def test_an_answer_with_no_published_memory_says_so():
    text = first_screen(answer("nothing published"), 100)
    assert "UNKNOWN  memory" in text and "published speeds would imply" in text and "Start it" not in text


def test_cards_that_stay_idle_stand_in_the_first_line_of_the_verdict():
    one = fit_answer(PlanRequest("glm-5.1-nvfp4", "7xrtx-pro-6000-ws", tp=2, pp=3))
    idle = 7 - one.holding.terms.accelerators
    assert idle > 0
    assert f"{idle} idle" in first_screen(one, 80).splitlines()[2]


def test_slower_paths_are_a_count():
    one = answer("pipeline stages")
    slower = sum(warn.severity in ("fallback", "slow") for warn in one.warnings)
    assert slower > 3 and f"{slower} performance fallbacks" in first_screen(one)


@pytest.mark.parametrize("name", QUESTIONS)
def test_colours_change_no_word_and_stand_on_the_verdict_the_limit_and_errors_only(name):
    one = answer(name)
    painted = first_screen(one, 100, colour=True)
    assert re.sub(r"\033\[[0-9;]*m", "", painted) == first_screen(one, 100)
    words = re.findall(r"\033\[1;\d+m(.*?)\033\[0m", painted)
    limits = set(LIMITS.values())
    assert words[0] in ("FITS", "TIGHT", "DOES NOT FIT", "UNKNOWN")
    assert all(word in limits for word in words[1:2] if one.safe is not None)
    assert set(words[1:]) <= {*limits, "error", "danger"}


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_page_is_its_head_and_its_sections(name, width):
    one = answer(name)
    page, parts = fit_text(one, width), fit_sections(one, width)
    assert list(parts) == [part for part in SECTIONS if part in parts]
    for text in parts.values():
        assert f"\n\n{text}" in page
    assert page.endswith("\n\n" + "\n".join(parts.values()))


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("width", [60, 80, 99, 120])
def test_the_page_keeps_within_its_width(name, width):
    long = [line for line in fit_text(answer(name), width).splitlines() if len(line) > width]
    assert not long


def test_print_shows_the_whole_page():
    assert str(answer("pipeline stages")) == fit_text(answer("pipeline stages"), WIDTH)


@pytest.mark.parametrize("name", [name for name in QUESTIONS if name != "nothing published"])
def test_changes_are_ranked_by_gain_with_none_under_five_percent_and_on_evidence_as_good(name):
    one = answer(name)
    found = best_changes(one, 99)
    if one.verdict == "does_not_fit":
        assert all(change.verdict != "does_not_fit" for change in found)
        return
    gains = [gain_of(one, change) for change in found]
    assert gains == sorted(gains, reverse=True) and all(gain >= LEAST_GAIN for gain in gains)
    order = (
        "site", "configuration", "release", "group", "group_release", "pair", "adapters", "apart", "format",
        "accelerator", "model", "engine", "nothing",
    )  # fmt: skip
    for change in found:
        better = change.verdict != one.verdict
        safer = change.safe and not one.safe.users  # from nobody to somebody
        assert better or safer or order.index(change.knowledge) <= order.index(one.knowledge)


def test_a_change_that_is_faster_only_on_less_evidence_is_not_ranked():
    one = answer("drafting in sglang")
    base = replace(one.changes[0], verdict=one.verdict, user_rate=3 * one.user_rate, total_rate=3 * one.total_rate,
                   held=3 * one.holding.held_low)  # fmt: skip
    as_good, less = replace(base, knowledge=one.knowledge), replace(base, knowledge="nothing")
    assert best_changes(replace(one, changes=(less, as_good))) == (as_good,)


def test_where_the_cache_limits_a_change_counts_by_the_requests_that_it_holds():
    one = answer("pipeline stages")
    short = replace(one, safe=replace(one.safe, limit="kv"))
    faster = replace(one.changes[0], verdict="fits", user_rate=2 * one.user_rate, total_rate=2 * one.total_rate,
                     held=one.holding.held_low)  # fmt: skip
    assert gain_of(one, faster) == pytest.approx(1.0)
    assert gain_of(short, faster) == pytest.approx(0.0)


@pytest.mark.parametrize("name", ["does not fit", "tight"])
def test_what_a_change_asks_for_gives_its_layout_and_its_numbers(name):
    """Those of one option: the same question with it typed is the plan that the change speaks of."""
    words = QUESTIONS[name]
    tried = 0
    for change in answer(name).changes:
        option, _, value = change.ask.partition(" ")
        if option not in ("--on", "--kv", "--mtp") or " " in value or change.verdict == "does_not_fit":
            continue
        asked = fit_answer(words.but(**{option.removeprefix("--"): value}))
        assert (asked.verdict, asked.holding.terms.name) == (change.verdict, change.layout)
        assert asked.user_rate == pytest.approx(change.user_rate)
        assert asked.total_rate == pytest.approx(change.total_rate)
        tried += 1
    assert tried


def test_what_to_ask_next_are_the_words_that_were_left_out():
    open_question = " ".join(first_screen(answer("pipeline stages"), 120).split())
    assert "your own --input, --output and --users; " in open_question
    stated = " ".join(first_screen(answer("tight"), 120).split())
    assert "your own" not in stated and "glmplan safe --slo 'ttft p95 < 2 s' instead of --users" in stated


def test_the_power_is_that_of_the_cards_in_use_at_their_rating_or_limit():
    asked = PlanRequest("llama-3.1-8b", "8xh100-sxm", tp=1, pp=1, dp=1, replicas=8)
    one = fit_answer(asked)
    assert "8 × 700 W = 5.6 kW" in first_screen(one, 120)


def test_a_name_that_stands_for_another_model_says_so():
    text = " ".join(first_screen(fit_answer(PlanRequest("llama-3.3-70b", "4xh100-sxm")), 120).split())
    assert "llama-3.3-70b: planned as llama-3.1-70b, which has the same shape" in text
