"""Parts of which no matrix rate is published: prompts cannot be timed, so nothing that needs them is answered."""

from __future__ import annotations

from datetime import date

import pytest

import glmplan
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.errors import UnknownFact
from glmplan.purchase.axes import read_sweep
from glmplan.purchase.compare import side_of
from glmplan.purchase.money import money_of
from glmplan.purchase.sensitivity import sensitivity
from glmplan.purchase.size import sized
from glmplan.purchase.size_question import read_size
from glmplan.purchase.sweep import swept

PART = "l20"
MONEY = money_of(today=date(2026, 11, 22))


def test_the_part_has_no_rate():
    assert not load_accelerator(PART).peak


def test_a_promise_cannot_be_judged_on_it():
    asked = read_size("llama-3.1-8b", "ttft p95 < 3 s", users=4, only=f"1x{PART}")
    found = sized(asked, MONEY)
    assert not found.options and not found.unpriced and found.cheaper is None
    assert any("no matrix rate" in reason for reason in found.left_out)


def test_requests_cannot_be_simulated_on_it():
    planned = glmplan.deployment("llama-3.1-8b", f"1x{PART}")
    with pytest.raises(UnknownFact, match="no matrix rate"):
        glmplan.simulate(planned, "poisson:1/s")
    with pytest.raises(UnknownFact, match="no matrix rate"):
        glmplan.safe(planned, "ttft p95 < 3 s", traffic="poisson:1/s")


def test_rates_are_left_out_of_comparisons_and_what_moves_them_is_refused():
    planned = glmplan.deployment("llama-3.1-8b", f"1x{PART}")
    side = side_of(planned, 4, MONEY).figures(1.0)
    assert side["output_tokens_per_s"] is None and side["tpot_mean_ms"] > 0
    with pytest.raises(UnknownFact, match="no matrix rate"):
        sensitivity(planned, MONEY, users=4, outcome="output_tokens_per_s")
    assert sensitivity(planned, MONEY, users=4, outcome="tpot_mean_ms") is not None


def test_a_sweep_has_its_decoding_alone():
    frame = swept(read_sweep({"model": "llama-3.1-8b", "on": f"1x{PART}", "users": "1,4"})).to_frame()
    assert frame["tpot_mean_ms"].notna().all() and frame["output_tokens_per_s"].isna().all()
    assert frame["reason"].str.contains("no matrix rate").all()
