"""Layouts and limits of running requests that a row does not state, from scripts and sources of the engine."""

from __future__ import annotations

import pytest

from glmplan.io.runs.record import Run, Speculation
from glmplan.prediction.from_row import question_of


def test_a_label_that_no_server_can_start_with_takes_the_layout_of_its_script():
    # experts of 1536 in FP8 blocks of 128: eight ranks of 192 do not load, and the script of that day has EP8
    cells = {
        "engine": "vllm",
        "engine_version": "0.18.0",
        "tp": 8,
        "ep": 1,
        "concurrency": 16.0,
        "input_tokens": 1024.0,
        "output_tokens": 1024.0,
        "protocol": "inferencex",
        "measured_on": "2026-03-28",
    }
    case = question_of(Run("a", "minimax-m2.5", "h200-sxm", weights="fp8", **cells))
    assert (case.deployment.tp, case.deployment.ep) == (8, 8)
    assert any(text.startswith("ep 8 of the script") for text in case.assumed)
    # four ranks hold whole blocks: the label stands
    four = question_of(Run("b", "minimax-m2.5", "h200-sxm", weights="fp8", **cells | {"tp": 4}))
    assert (four.deployment.tp, four.deployment.ep) == (4, 1)


def _running(version, protocol="closed-loop", **cells):
    cells = {"engine": "sglang", "engine_release": version, "tp": 1, "concurrency": 4096.0, "input_tokens": 8192.0,
             "output_tokens": 1024.0, "weights": "fp8"} | cells  # fmt: skip
    return question_of(Run("a", "qwen3.6-35b-a3b", "h200-sxm", protocol=protocol, **cells)).load.max_requests


def test_slots_for_recurrent_states_limit_the_requests_of_sglang():
    # three states of a request with the prefix cache, five from 0.5.14 on, one without the cache
    before, after, alone = _running((0, 5, 13)), _running((0, 5, 14)), _running((0, 5, 14), protocol="inferencex")
    assert 100 < after < before < 400 < alone
    assert after / before == pytest.approx(3 / 5, abs=0.01)


def test_sglang_runs_48_requests_while_it_drafts():
    # sglang's warning: "Max running requests is reset to 48 for speculative decoding"
    drafts = Speculation("yes", "mtp", 3, 4)
    assert _running((0, 5, 9), speculation=drafts) == 48
    assert _running((0, 5, 9), speculation=drafts, max_num_seqs=64) == 64
