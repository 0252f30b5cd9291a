"""Rows that no part can reach are told apart, and with them the tables that they come from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from glmplan.calibrate.step.observations import reasons_impossible, why_impossible
from glmplan.io.runs.ledger import load_measurements
from glmplan.io.runs.record import Run
from glmplan.prediction.from_row import question_of


def _run(name: str, tpot_ms: float, campaign: str = "one") -> Run:
    return Run(
        name, "llama-3.1-8b", "h200-sxm", engine="vllm", weights="bf16", accelerator_count=1, tp=1, phase="decode",
        concurrency=1.0, input_tokens=1000.0, output_tokens=100.0, campaign=campaign,
        observed={"tpot_mean_ms": tpot_ms},
    )  # fmt: skip


def test_a_token_takes_at_least_the_time_to_read_the_weights():
    # 16 GB at 4.8 TB/s: 3.3 ms
    assert not why_impossible(question_of(_run("a", 4.0)))
    assert "faster than the memory bandwidth" in why_impossible(question_of(_run("a", 1.5)))


def _at_once(ttft_ms: float, **changes: object) -> Run:
    run = Run(
        "a", "llama-3.1-70b", "h100-sxm", engine="vllm", weights="fp8", accelerator_count=4, tp=4, phase="serving",
        concurrency=32.0, num_requests=32, input_tokens=4096.0, output_tokens=100.0, protocol="burst",
        observed={"ttft_mean_ms": ttft_ms},
    )  # fmt: skip
    return replace(run, **changes)


def test_prompts_that_come_at_once_are_read_one_after_the_other():
    # 2 x 70e9 x 4096 FLOP at four times 1979 TFLOP/s: 0.073 s a prompt, 1.2 s for the mean of 32
    assert not why_impossible(question_of(_at_once(1300.0)))
    assert "32 prompts that come at once" in why_impossible(question_of(_at_once(700.0)))
    # waves of requests do not come at once, a cached prompt is not read, and a single one is read first
    assert not why_impossible(question_of(_at_once(700.0, num_requests=320, protocol="closed-loop")))
    assert not why_impossible(question_of(_at_once(700.0, prefix_cached=True)))
    assert not why_impossible(question_of(_at_once(700.0, concurrency=1.0, num_requests=1)))


def test_an_estimated_pool_refuses_no_run_by_a_little():
    # a 32B model fills an H100 but for 20,000 tokens: how many of the 16 requests run beside each other is an estimate
    asked = question_of(next(run for run in load_measurements() if run.id == "ix-10fc6740ba"))
    assert asked.load.pool_tokens < asked.load.concurrency * (asked.load.input_tokens + asked.load.output_tokens)
    assert not why_impossible(asked)
    known = replace(asked, load=replace(asked.load, pool_tokens=1e9))
    assert "24.658" in why_impossible(known)
    fast = replace(asked.run, observed={"tpot_mean_ms": 10.0})
    assert why_impossible(replace(asked, run=fast))


@pytest.mark.parametrize(("impossible", "possible", "refused"), [(2, 3, 2), (3, 6, 9), (3, 7, 3), (0, 9, 0)])
def test_a_table_of_which_a_third_cannot_be_is_refused_whole(impossible, possible, refused):
    rows = [_run(f"fast-{n}", 1.5) for n in range(impossible)] + [_run(f"slow-{n}", 6.0) for n in range(possible)]
    other = [replace(_run(f"other-{n}", 6.0), campaign="two") for n in range(3)]
    reasons = reasons_impossible([question_of(run) for run in rows + other])
    assert sum(map(bool, reasons)) == refused
    assert not any(reasons[-3:])
