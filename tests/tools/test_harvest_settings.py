"""The harvest of launch settings: flags become settings in glmplan's own names, and nothing is guessed."""

from __future__ import annotations

import csv
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def harvest():
    spec = importlib.util.spec_from_file_location("harvest_settings", ROOT / "tools/harvest_settings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launch(**changes):
    flags = ("max_num_seqs", "max_num_batched_tokens_or_chunked_prefill", "memory_fraction", "kv_cache_dtype", "dp",
             "cuda_graph_settings", "attention_backend", "moe_backend", "scheduling", "env_kernels",
             "valid_until")  # fmt: skip
    row = dict.fromkeys(flags, "")
    names = {
        "model": "deepseek-r1",
        "checkpoint": "x/y",
        "accelerator": "b200-sxm",
        "engine": "vllm",
        "precision": "fp8",
    }
    place = {"campaign_or_recipe": "InferenceX key", "source": "owner/repository@0123456789 benchmarks/a.sh"}
    layout = {"tp": "8", "pp": "1", "ep": "1", "disaggregated": "no", "speculative": "none"}
    load = {"scenario": "1024/1024 conc 4,8", "valid_from": "2026-01-02T03:04", "engine_image_or_version": "image"}
    return {**row, **names, **place, **layout, **load, **changes}


def entry(harvest, **changes):
    [found] = harvest.entries_of(launch(**changes))
    return found


def test_a_formula_of_the_load_becomes_numbers_for_each_part_of_it(harvest):
    assert harvest.formula("{ISL+4*CONC+64}") == (64.0, 1.0, 0.0, 4.0)
    assert harvest.formula("{(ISL+OSL)+200}") == (200.0, 1.0, 1.0, 0.0)
    assert harvest.formula("{0.25*CONC}") == (0.0, 0.0, 0.0, 0.25)
    assert harvest.formula("$BUDGET") is None


def test_the_precision_of_a_campaign_is_the_format_of_the_part(harvest):
    assert entry(harvest, precision="fp4")["weights"] == "nvfp4"
    assert entry(harvest, precision="fp4", accelerator="mi355x")["weights"] == "mxfp4"
    assert entry(harvest, precision="fp4", model="gpt-oss-120b")["weights"] == "mxfp4"
    assert entry(harvest)["weights"] == "fp8-block"
    assert entry(harvest, precision="", checkpoint="nvidia/DeepSeek-R1-0528-NVFP4-v2")["weights"] == "nvfp4"
    with pytest.raises(harvest.LeftOut, match="format that is not said"):
        harvest.entries_of(launch(precision="", checkpoint="${MODEL}"))


def test_layouts_are_counted_alike_for_every_engine(harvest):
    def layout(**changes):
        return tuple(entry(harvest, **changes)[name] for name in ("tp", "dp", "ep"))

    assert layout(engine="trtllm", dp="attention attention", ep="8") == ("1", "8", "8")
    assert layout(engine="sglang", dp="8 attention", ep="8") == ("1", "8", "8")
    assert layout(tp="1", dp="8 attention", ep="8") == ("1", "8", "8")
    assert layout(tp="4", moe_backend="enable-expert-parallel") == ("4", "1", "4")


def test_limits_of_a_rank_become_those_of_the_server_and_budgets_those_of_a_rank(harvest):
    budget = "max_num_batched_tokens_or_chunked_prefill"
    sglang = entry(harvest, engine="sglang", dp="8 attention", max_num_seqs="256", **{budget: "32768"})
    assert (sglang["budget_tokens"], sglang["running_limit"]) == ("4096", "256")
    vllm = entry(harvest, tp="1", dp="8 attention", max_num_seqs="{0.125*CONC}", **{budget: "{2*ISL}"})
    assert (vllm["budget_tokens"], vllm["budget_per_input"], vllm["running_limit_per_user"]) == ("", "2", "1")


def test_a_cell_that_is_empty_or_automatic_is_the_default_of_the_engine(harvest):
    for said in ("", "auto", "block-size=64"):
        assert entry(harvest, kv_cache_dtype=said)["kv_cache"] == ""
    assert entry(harvest, kv_cache_dtype="fp8_e4m3; page-size=256")["kv_cache"] == "fp8"
    assert entry(harvest, memory_fraction="0.94; swap-space=64")["memory_fraction"] == "0.94"


def test_waiting_and_switches_are_read_from_flags_and_environment(harvest):
    balance = "attention_dp_config.enable_balance=true"
    assert entry(harvest, engine="trtllm", scheduling=balance)["gather_steps"] == "50"
    stated = entry(harvest, engine="trtllm", scheduling=f"{balance}; attention_dp_config.timeout_iters=60")
    assert stated["gather_steps"] == "60"
    assert entry(harvest, engine="trtllm", scheduling="stream-interval=10")["gather_steps"] == ""
    assert entry(harvest, engine="sglang", scheduling="scheduler-recv-interval=30")["poll_interval_steps"] == "30"
    switch = "VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8=1"
    assert entry(harvest, env_kernels=switch)["expert_kernels"] == "flashinfer-mxfp8"
    assert entry(harvest, env_kernels=switch, engine="sglang")["expert_kernels"] == ""
    assert entry(harvest, cuda_graph_settings="enforce-eager")["cuda_graphs"] == "no"


def test_the_drafted_chain_is_read_in_the_words_of_every_engine(harvest):
    said = {
        "none": "0",
        "off by default; opt-in: --speculative-config {}": "0",
        "speculative-algorithm=EAGLE; speculative-num-draft-tokens=4; speculative-num-steps=3": "3",
        'speculative-config={"method": "mtp", "num_speculative_tokens": 2}': "2",
        "speculative_config.decoding_type=MTP; speculative_config.num_nextn_predict_layers=1": "1",
        "something else": "",
    }
    assert {one: entry(harvest, speculative=one)["draft_tokens"] for one in said} == said


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"disaggregated": "yes"}, "disaggregated"),
        ({"engine": "vllm (dynamo)"}, "disaggregated"),
        ({"model": "nobody-has-this (no spec)"}, "a model"),
        ({"accelerator": "trillium"}, "a part"),
        ({"scenario": "agentic-coding: conc 1,2"}, "agentic"),
        ({"scenario": "aggregated: 1 workers x 16 GPUs"}, "without lengths"),
        ({"memory_fraction": "0.9; cpu-offload-gb=26"}, "host memory"),
    ],
)
def test_what_is_not_a_server_under_a_load_is_left_out_with_its_reason(harvest, changes, why):
    with pytest.raises(harvest.LeftOut, match=why):
        harvest.entries_of(launch(**changes))


def test_launches_that_differ_in_loads_only_are_one_entry(harvest):
    rows = [launch(), launch(scenario="8192/1024 conc 4"), launch(kv_cache_dtype="fp8")]
    found = harvest.merged([one for row in rows for one in harvest.entries_of(row)])
    loads = {one["kv_cache"]: one["loads"] for one in found}
    assert loads == {"": "1024/1024:4,8 8192/1024:4", "fp8": "1024/1024:4,8"}


def test_the_shipped_table_has_the_columns_and_the_order_that_the_tool_writes(harvest):
    with (ROOT / "calibration/settings.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert tuple(rows[0]) == harvest.COLUMNS
    assert harvest.merged([dict(row) for row in rows]) == rows
