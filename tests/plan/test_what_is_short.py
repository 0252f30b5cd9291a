"""What a plan lacks is one figure: headline, bars, layouts and JSON say the same."""

from __future__ import annotations

import re

import pytest

from glmplan.plan import Words, fit_answer
from glmplan.plan.answer_text import fit_text

GIB = 2**30


@pytest.mark.parametrize(
    "words",
    [
        Words("llama-3.1-70b", "8xh100-sxm", tp="1", pp="1", dp="8"),  # weights alone are too much
        Words("llama-3.1-8b", "1xrtx-4090", context="120000"),  # weights fit, the request does not
        Words("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", tp="1", pp="5"),  # one stage of several is the fullest
        Words("gpt-oss-120b", "1xrtx-4090", context="4096"),  # sliding windows
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
    text = fit_text(fit_answer(Words("llama-3.1-8b", "1xh100-sxm")))
    assert "short" not in text.split("Users at once")[0]
