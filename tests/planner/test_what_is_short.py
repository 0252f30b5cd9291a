"""What a plan lacks is one figure: headline, bars, layouts and JSON say the same, and how uncertain it is."""

from __future__ import annotations

import re

import pytest

import glmplan
from glmplan.errors import DoesNotFit
from glmplan.planner import fit_answer
from glmplan.planner.capacity import MAY_START
from glmplan.present.answer_text import fit_text
from glmplan.present.first_screen import first_screen
from glmplan.present.json_answers import fit_record
from glmplan.request.plan import PlanRequest

GIB = 2**30


@pytest.mark.parametrize(
    "words",
    [
        PlanRequest(
            "llama-3.1-70b", "8xh100-sxm", weights="bf16", tp="1", pp="1", dp="8"
        ),  # weights alone are too much
        PlanRequest(
            "llama-3.1-8b", "1xrtx-4090", weights="bf16", context="120000"
        ),  # weights fit, the request does not
        PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", tp="1", pp="5"),  # one stage of several is the fullest
        PlanRequest("gpt-oss-120b", "1xrtx-4090", context="4096"),  # sliding windows
    ],
    ids=lambda words: words.model,
)
def test_headline_and_bars_agree(words):
    answer = fit_answer(words)
    assert answer.verdict == "does_not_fit"
    said = float(re.search(r"([\d.]+) GiB short", answer.headline)[1])
    bars = [float(found) for found in re.findall(r"\] weights .* short +([\d.]+)", fit_text(answer))]
    assert said == pytest.approx(answer.holding.short / GIB, abs=0.051)
    assert max(bars) == said
    assert f"one request of {answer.asked.full_request:,} tokens" in answer.headline


def test_a_plan_that_fits_has_no_card_that_is_short():
    text = fit_text(fit_answer(PlanRequest("llama-3.1-8b", "1xh100-sxm")))
    assert "short" not in text.split("Users, each")[0]


_SHARE = 0.9


def _about(share: float):
    """A card that is large enough with 0.9 of its memory for the engine."""
    return fit_answer(
        PlanRequest("qwen3-32b", "1xh100-sxm", weights="bf16", kv="bf16", context="4096", memory_fraction=share)
    )


@pytest.fixture(scope="module")
def nearly():
    """A plan that is short by a number of half-widths of the interval of memory."""
    roomy = _about(_SHARE).holding
    half = roomy.short_low - roomy.short

    def made(widths: float):
        share = _SHARE - (widths * half - roomy.short) / roomy.part.total
        return share, _about(share)

    return made


@pytest.mark.parametrize(
    ("widths", "verdict", "may_start"),
    [(-1.2, "fits", False), (-0.6, "tight", False), (0.6, "does_not_fit", True), (1.6, "does_not_fit", False)],
)
def test_from_fits_to_cannot_the_verdict_passes_tight_and_may_start(nearly, widths, verdict, may_start):
    """Between the ends of the interval nobody knows, and the answer says on which side of its middle it is."""
    _, answer = nearly(widths)
    assert (answer.verdict, answer.may_start) == (verdict, may_start)


def test_what_is_within_the_uncertainty_is_said_wherever_the_verdict_is(nearly):
    share, answer = nearly(0.6)
    said = float(re.search(r"([\d.]+) GiB short", answer.headline)[1])
    pattern = r"within the uncertainty of ([\d.]+) GiB"
    uncertain = float(re.search(pattern, answer.headline)[1])
    assert answer.verdict == "does_not_fit"
    assert 0 <= said <= uncertain + 0.1
    assert "may start" in " ".join(first_screen(answer, width=100).split())
    assert "may start" in fit_text(answer)
    assert fit_record(answer)["may_start"] is True
    with pytest.raises(DoesNotFit, match=re.escape(MAY_START)):
        glmplan.deployment("qwen3-32b", "1xh100-sxm", weights="bf16", kv="bf16", memory_fraction=share, context=4096)


def test_a_plan_that_lacks_more_than_is_uncertain_promises_no_start():
    answer = fit_answer(PlanRequest("llama-3.1-70b", "8xh100-sxm", weights="bf16", tp="1", pp="1", dp="8"))
    assert answer.verdict == "does_not_fit" and not answer.may_start
    assert "may start" not in answer.headline
    assert fit_record(answer)["may_start"] is False


def host_of(folder, *, memory: str, supply: str = "4000 W") -> str:
    """A machine of two cards with some host memory and one power supply."""
    path = folder / "machine.toml"
    path.write_text(
        f"""
title = "two cards on one socket"
source = "an example"
sockets = [{{ name = "cpu0", memory_size = "{memory}", memory_bandwidth = "307 GB/s" }}]
roots = [{{ name = "r0", socket = "cpu0" }}]
power = {{ supply = "{supply}", supplies = 1 }}
[[cards]]
accelerator = "rtx-pro-6000-ws"
count = 2
parent = "r0"
link = {{ generation = 5, lanes = 16 }}
"""
    )
    return str(path)


@pytest.mark.parametrize(
    ("model", "short"),
    # ktransformers issue 2183: glm-5.3-flash ran out of the 256 GB of its host
    [("glm-5.3-flash-fp8", 304e9 - 256e9), ("kimi-k2.5", 571e9 - 256e9), ("deepseek-v3.1-fp8", 654e9 - 256e9)],
)
def test_weights_that_exceed_host_memory_do_not_fit_in_any_answer(tmp_path, model, short):
    answer = fit_answer(PlanRequest(model, host_of(tmp_path, memory="256 GB"), engine="ktransformers"), changes=False)
    record = fit_record(answer)
    assert (answer.verdict, record["verdict"], answer.safe) == ("does_not_fit", "does_not_fit", None)
    assert not answer.users and not answer.user_rate and not answer.may_start
    assert answer.holding.host_short == pytest.approx(short, abs=1e9)
    assert record["memory"]["host_short_gib"] == pytest.approx(answer.holding.host_short / GIB, rel=1e-5)
    total = sum(row.host for row in answer.ranks)
    assert record["memory"]["host_gib"] == pytest.approx(total / GIB, rel=1e-5)
    text = f"host memory: weights {total / GIB:,.1f} of 238 GiB; {answer.holding.host_short / GIB:.0f} GiB short"
    assert text in fit_text(answer)
    assert record["reasons"] and "short" in answer.headline
    with pytest.raises(DoesNotFit):
        glmplan.deployment(model, answer.asked.machine.text, engine="ktransformers")


def test_host_memory_that_is_not_known_or_large_enough_leaves_the_verdict(tmp_path):
    large = fit_answer(
        PlanRequest("kimi-k2.5", host_of(tmp_path, memory="1 TB"), engine="ktransformers"), changes=False
    )
    assert (large.verdict, large.holding.host_short) == ("fits", 0.0)
    assert not [one for one in large.warnings if one.severity == "danger"]


def test_no_plan_under_a_danger_fits(tmp_path):
    # two cards of 600 W and 400 W for the rest behind one supply of 1,200 W
    for supply, verdict in (("1200 W", "tight"), ("4000 W", "fits")):
        words = PlanRequest("llama-3.1-8b", host_of(tmp_path, memory="256 GB", supply=supply))
        answer = fit_answer(words, changes=False)
        dangers = [one.name for one in answer.warnings if one.severity == "danger"]
        assert (answer.verdict, dangers) == (verdict, ["power-supply"] * (verdict == "tight"))
        assert bool(answer.safe.users) == (verdict == "fits")
        assert bool(answer.reasons) == (verdict == "tight")
