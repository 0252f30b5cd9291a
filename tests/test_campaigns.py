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


def test_prompts_wait_for_each_other_where_the_script_says_so():
    llama = {"model": "llama-3.1-70b", "experts_format": "fp8", "silicon": "9"}
    found = settings(**llama, tp=4)
    assert (found.batch_wait_steps, found.batch_wait_share, found.budget) == (20, 0.9, 2048)
    assert settings(**llama, tp=8).batch_wait_steps == 0
    assert settings(**llama, tp=4, output_tokens=8192.0).batch_wait_steps == 0
    assert settings(**{**llama, "silicon": "10"}, tp=4).budget == 16384
    deepseek = {"experts_format": "fp8-block"}
    assert settings(**deepseek).batch_wait_steps == 40
    assert settings(**deepseek, concurrency=32.0).batch_wait_steps == 0
    assert settings(**deepseek, input_tokens=8192.0).batch_wait_steps == 0


def test_scripts_change_with_their_date_and_their_image():
    assert settings(measured_on="2025-11-02").budget == 64 + 1024 + 64
    assert settings(measured_on="2026-02-03", engine_version="1.2.0rc6.post2").budget == 8192
    assert settings(measured_on="2026-02-06", engine_version="1.2.0rc6.post3").budget == 64 + 1024 + 64
    assert settings(measured_on="2025-12-15", silicon="9", experts_format="fp8-block").budget == 64 + 1024 + 64
    # the entries of other models come first, whatever the date
    assert settings(measured_on="2025-11-02", model="gpt-oss-120b", experts_format="mxfp4").budget == 20000
    llama = settings(measured_on="2025-10-09", model="llama-3.1-70b", experts_format="fp8", tp=4)
    assert (llama.budget, llama.batch_wait_steps) == (16384, 20)


def test_vendor_sweeps_have_the_lengths_that_their_rows_show():
    assert settings(protocol="vendor-sweep").lengths == (0.5, 1.5)
    assert settings(protocol="vendor-sweep", engine="sglang").lengths is None
    assert settings(protocol="vendor-sweep", engine="sglang").requests_per_user == 10
    assert settings(protocol="mlperf-server").lengths is None


def _load(dp, weights="nvfp4"):
    run = Run(
        "one", "deepseek-r1", "b200-sxm", engine="trtllm", weights=weights, accelerator_count=8, tp=8 // dp, dp=dp,
        ep=8, phase="serving", protocol="inferencex", concurrency=64.0, input_tokens=1024.0, output_tokens=1024.0,
    )  # fmt: skip
    return question_of(run).load


def test_only_ranks_with_requests_of_their_own_wait_for_each_other():
    assert _load(dp=8).gather_steps == 60
    assert _load(dp=1).gather_steps == 0
    assert _load(dp=1).whole_prompts


def test_ranks_that_wait_for_each_other_do_not_wait_for_a_full_step_too():
    one = _load(dp=1, weights="fp8")
    assert (one.gather_steps, one.gather_tokens) == (40, round(0.8 * 8192))
    several = _load(dp=8, weights="fp8")
    assert (several.gather_steps, several.gather_tokens) == (60, 1 << 60)
