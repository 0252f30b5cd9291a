"""Settings of campaigns: the first entry that fits, by silicon, model, format and load."""

from __future__ import annotations

from glmplan.campaigns import campaign_settings
from glmplan.question import question_of
from glmplan.records import Run

ASKED = {
    "protocol": "inferencex",
    "engine": "trtllm",
    "silicon": "10",
    "model": "deepseek-r1",
    "experts_format": "nvfp4",
}


def settings(**changes):
    return campaign_settings(
        **{**ASKED, "concurrency": 64.0, "input_tokens": 1024.0, "output_tokens": 1024.0, **changes}
    )


def test_the_budget_holds_a_whole_prompt_beside_all_who_decode():
    assert settings().budget == 8192
    assert settings(input_tokens=8192.0).budget == 8192 + 64 + 64


def test_entries_differ_by_silicon_and_model():
    assert settings().fraction == 0.8
    assert settings(silicon="9").fraction == 0.75
    assert settings(model="gpt-oss-120b", silicon="9", experts_format="mxfp4").kv == "bf16"
    assert settings(model="gpt-oss-120b", experts_format="mxfp4").gather_steps == 50


def test_vendor_sweeps_have_the_lengths_that_their_rows_show():
    assert settings(protocol="vendor-sweep").lengths == (0.5, 1.5)
    assert settings(protocol="vendor-sweep", engine="sglang").lengths is None
    assert settings(protocol="vendor-sweep", engine="sglang").requests_per_user == 10
    assert settings(protocol="mlperf-server").lengths is None


def _load(dp):
    run = Run(
        "one", "deepseek-r1", "b200-sxm", engine="trtllm", weights="nvfp4", accelerator_count=8, tp=8 // dp, dp=dp,
        ep=8, phase="serving", protocol="inferencex", concurrency=64.0, input_tokens=1024.0, output_tokens=1024.0,
    )  # fmt: skip
    return question_of(run).load


def test_only_ranks_with_requests_of_their_own_wait_for_each_other():
    assert _load(dp=8).gather_steps == 60
    assert _load(dp=1).gather_steps == 0
    assert _load(dp=1).whole_prompts
