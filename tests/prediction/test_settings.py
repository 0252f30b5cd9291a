"""What a launch is told reaches memory and steps by one record, whoever tells it."""

from __future__ import annotations

import pytest

from glmplan.errors import SpecError
from glmplan.io.runs.table import run_from_row
from glmplan.planner.question import read_words
from glmplan.planner.ranking import deployment_of
from glmplan.planner.users import solve
from glmplan.prediction.deployment import Settings, usual_ends
from glmplan.prediction.from_row import MemoryAnswer, memory_of, question_of
from glmplan.request.plan import PlanRequest

ROW = {
    "id": "a", "model": "llama-3.1-8b", "accelerator": "h100-sxm", "accelerator_count": "1", "engine": "vllm",
    "engine_version": "0.19.0", "phase": "memory", "input_tokens": "2000", "output_tokens": "500",
}  # fmt: skip
TOLD = {"memory_fraction": "0.85", "max_num_seqs": "64", "max_num_batched_tokens": "4096"}


def pool(**cells: str) -> MemoryAnswer:
    found = memory_of(question_of(run_from_row({**ROW, **cells})))
    assert found is not None
    return found


def test_the_columns_of_a_table_reach_the_pool():
    # 0.05 of 79.2 GiB more at 131,072 B a token: 32,440 tokens
    more = pool(**{**TOLD, "memory_fraction": "0.9"}).pool_tokens - pool(**TOLD).pool_tokens
    assert more == pytest.approx(0.05 * 79.2 * 2**30 / 131072, rel=0.01)
    # fewer requests to sample and fewer tokens in the trial run leave more
    assert (
        pool(**{**TOLD, "max_num_seqs": "1024", "max_num_batched_tokens": "16384"}).pool_tokens
        < pool(**TOLD).pool_tokens
    )


def test_a_running_limit_is_what_the_server_was_told_but_requests_that_ran_are_not():
    limited = {name: cell for name, cell in TOLD.items() if name != "max_num_seqs"}
    assert pool(**limited, running_limit="64") == pool(**TOLD)
    ranks = question_of(run_from_row({**ROW, "running_limit": "64", "dp": "4", "accelerator_count": "4"}))
    assert ranks.deployment.settings.max_num_seqs == 16
    seen = question_of(run_from_row({**ROW, "notes": "waves of 12", "concurrency": "64"}))
    assert seen.load.max_requests == 12
    assert seen.deployment.settings.max_num_seqs is None


def test_what_a_row_tells_of_steps_reaches_its_load():
    load = question_of(run_from_row({**ROW, **TOLD, "phase": "serving", "concurrency": "128"})).load
    assert (load.budget, load.max_requests) == (4096, 64)


def test_a_share_of_the_memory_above_one_is_refused_by_name():
    with pytest.raises(SpecError, match="memory_fraction: 1.9 must be above 0 and at most 1"):
        question_of(run_from_row({**ROW, "memory_fraction": "1.9"}))


def test_settings_that_nobody_tells_widen_the_interval_to_what_is_usual():
    told, silent = pool(**TOLD, notes=""), pool()
    assert silent.pool_high - silent.pool_low > 1.5 * (told.pool_high - told.pool_low)
    fraction = usual_ends("vllm", "memory_fraction")
    assert fraction is not None
    for end in fraction:
        usual = pool(memory_fraction=f"{end}").pool_tokens
        assert silent.pool_low <= usual <= silent.pool_high
    # a narrower interval for each setting that is told
    steps = (silent, pool(memory_fraction="0.9"), pool(**{**TOLD, "memory_fraction": "0.9"}))
    widths = [one.pool_high - one.pool_low for one in steps]
    assert widths == sorted(widths, reverse=True)


def test_a_draft_layer_is_loaded_only_when_drafting():
    row = {"model": "glm-5.1", "accelerator": "rtx-pro-6000-ws", "accelerator_count": "8", "tp": "8",
           "checkpoint": "GLM-5.1-NVFP4-MTP", "weights": "nvfp4"}  # fmt: skip
    plain, drafting = pool(**row, speculative="none"), pool(**row, speculative="mtp-3")
    assert drafting.weights_gib - plain.weights_gib > 0.5


@pytest.mark.parametrize("draft", [0, 3])
def test_a_plan_and_a_row_of_one_launch_have_one_pool(draft):
    words = PlanRequest(
        "glm-5.1-nvfp4", "8xrtx-pro-6000-ws", engine="vllm", engine_version="0.19.0", tp=8, kv="fp8", mtp=draft,
        input=2000, output=500, memory_fraction=0.93, max_num_seqs=32, max_num_batched_tokens=4096,
    )  # fmt: skip
    best = solve(read_words(words)).best
    row = {"id": "a", "model": "glm-5.1", "accelerator": "rtx-pro-6000-ws", "accelerator_count": "8", "tp": "8",
           "weights": "nvfp4", "kv_cache": "fp8", "engine": "vllm", "engine_version": "0.19.0", "phase": "memory",
           "input_tokens": "2000", "output_tokens": "500", "memory_fraction": "0.93", "max_num_seqs": "32",
           "max_num_batched_tokens": "4096", "speculative": f"mtp-{draft}" if draft else "none"}  # fmt: skip
    found = memory_of(question_of(run_from_row(row)))
    assert (found.pool_tokens, found.pool_low, found.pool_high) == pytest.approx(
        (best.pool.tokens, best.pool.low, best.pool.high)
    )


def test_a_plan_tells_its_deployment_what_it_was_told():
    words = PlanRequest(
        "llama-3.1-8b", "1xh100-sxm", memory_fraction=0.85, max_num_seqs=64, max_num_batched_tokens=4096,
        max_model_len=8192, attention_backend="TRITON_ATTN",
    )  # fmt: skip
    asked = read_words(words)
    found = deployment_of(asked, solve(asked).best.terms)
    assert found.settings == Settings(0.85, 64, 4096, 8192, "TRITON_ATTN")
    assert (found.defaults.budget, found.defaults.places) == (4096, 64)
    assert found.structure.attention.backend == "triton_attn"
    assert (asked.full_request, asked.longest_request) == (8192, 8192)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs: 0 must be at least 1"),
        ({"max_num_seqs": 64, "max_num_batched_tokens": 32}, "--max-num-batched-tokens: 32 is below --max-num-seqs 64"),
        ({"max_model_len": 4096, "context": 8192}, "--context: 8192 exceeds --max-model-len 4,096"),
        ({"max_model_len": 2048, "input": 2048, "output": 128}, "above --max-model-len"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(words, message):
    with pytest.raises(SpecError, match=message):
        read_words(PlanRequest("llama-3.1-8b", "1xh100-sxm", **words))


def test_a_backend_without_a_rule_is_said_to_have_none():
    asked = read_words(PlanRequest("llama-3.1-8b", "1xh100-sxm", attention_backend="flex_attention"))
    assert any("attention backend FLEX_ATTENTION: no rule" in one for one in asked.assumed)
    assert not any("attention backend" in one for one in read_words(PlanRequest("llama-3.1-8b", "1xh100-sxm")).assumed)


@pytest.mark.parametrize(
    ("engine", "version", "said", "nearest"),
    [
        ("vllm", None, "flashinfre", "nearest: FLASHINFER"),
        # the tree left vLLM after 0.19, and DSA had another name in SGLang before 0.5.13
        ("vllm", "0.24.0", "TREE_ATTN", "is no attention backend of vLLM"),
        ("sglang", "0.5.9", "dsa", "is no attention backend of SGLang; nearest"),
        ("sglang", None, "fa5", "nearest: fa4, fa3"),
        ("trtllm", None, "FLASH_ATTN", "is no attention backend of TensorRT-LLM"),
    ],
)
def test_an_attention_backend_that_the_version_does_not_have_is_refused_with_the_nearest(
    engine, version, said, nearest
):
    words = PlanRequest("llama-3.1-8b", "1xh100-sxm", engine=engine, engine_version=version, attention_backend=said)
    with pytest.raises(SpecError, match=f"--attention-backend: '{said}'") as refused:
        read_words(words)
    assert nearest in str(refused.value)


@pytest.mark.parametrize(
    ("engine", "version", "said", "spelled"),
    [
        ("vllm", "0.19.0", "tree_attn", "TREE_ATTN"),
        ("vllm", "0.11.0", "xformers", "XFORMERS"),
        ("sglang", "0.5.9", "NSA", "nsa"),
        # images of the community bring their own
        ("vllm", "0.20.0", "b12x_mla_sparse", "B12X_MLA_SPARSE"),
        ("sglang", "0.5.9", "b12x", "b12x"),
        # no list of the time: taken as it is
        ("vllm", "0.8.5", "whatever", "whatever"),
        ("llama.cpp", None, "whatever", "whatever"),
    ],
)
def test_an_attention_backend_is_spelled_as_the_engine_spells_it(engine, version, said, spelled):
    words = PlanRequest("llama-3.1-8b", "1xh100-sxm", engine=engine, engine_version=version, attention_backend=said)
    assert read_words(words).settings.attention_backend == spelled


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("TensorRT-LLM", "trtllm"),
        ("tensorrt_llm", "trtllm"),
        ("TRT-LLM", "trtllm"),
        ("llamacpp", "llama.cpp"),
        ("llama-cpp", "llama.cpp"),
        ("vLLM", "vllm"),
        ("SG Lang", "sglang"),
    ],
)
def test_an_engine_is_known_however_it_is_spelled(said, name):
    assert read_words(PlanRequest("llama-3.1-8b", "1xh100-sxm", engine=said)).engine == name


def test_the_memory_of_a_row_is_that_of_the_files_that_it_names():
    """Eight RTX PRO 6000 hold 396,288 tokens, 371,456 with the draft layer, whose experts are NVFP4 in these files."""
    glm = {
        "model": "glm-5.1", "accelerator": "rtx-pro-6000-ws", "accelerator_count": "8", "tp": "8", "engine_version": "",
        "attention_backend": "B12X_MLA_SPARSE", "weights": "nvfp4", "memory_fraction": "0.865",
        "max_num_batched_tokens": "8192", "max_num_seqs": "64",
    }  # fmt: skip
    drafts = {"speculative": "mtp", "checkpoint": "lukealonso/GLM-5.1-NVFP4-MTP"}
    plain, own = pool(**glm), pool(**glm, **drafts)
    assert own.pool_tokens / plain.pool_tokens == pytest.approx(371_456 / 396_288, abs=0.02)
    assert own.weights_gib - plain.weights_gib == pytest.approx(0.95, abs=0.12)
    # files that nobody described have those of the format for want of better
    other = pool(**glm, **drafts | {"checkpoint": "some/GLM-5.1-NVFP4"})
    assert other.weights_gib - plain.weights_gib == pytest.approx(2.48, abs=0.12)
