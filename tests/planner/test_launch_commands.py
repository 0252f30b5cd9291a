"""The command that starts a plan has the flags of its engine, and only those that were decided."""

from __future__ import annotations

import re

import pytest

from glmplan.planner import fit_answer
from glmplan.planner.launch import launch_files
from glmplan.request.plan import PlanRequest


def command(model, on, **words):
    return " ".join(fit_answer(PlanRequest(model, on, **words)).command)


def test_vllm_gets_layout_cache_and_eager_mode():
    text = command("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", engine_version="0.19.0")
    assert text.startswith("vllm serve nvidia/GLM-5.1-NVFP4 ")
    for flag in ("--tensor-parallel-size 2", "--pipeline-parallel-size 3", "--kv-cache-dtype fp8", "--enforce-eager"):
        assert flag in text
    assert "--gpu-memory-utilization" not in text


def test_what_was_asked_for_is_in_the_command():
    text = command("glm-5.1-fp8", "8xb200-sxm", tp="8", context="32768", memory_fraction="0.88", mtp="2")
    for flag in ("--max-model-len 32768", "--gpu-memory-utilization 0.88", '"num_speculative_tokens":2'):
        assert flag in text


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("sglang", ["python -m sglang.launch_server --model-path zai-org/GLM-5.1-FP8", "--tp-size 8"]),
        ("trtllm", ["trtllm-serve zai-org/GLM-5.1-FP8", "--tp_size 8"]),
    ],
)
def test_other_engines_have_their_own_words(engine, flags):
    text = command("glm-5.1-fp8", "8xb200-sxm", engine=engine, tp="8", pp="1", dp="1")
    for flag in flags:
        assert flag in text


@pytest.mark.parametrize(("tokens", "cut"), [(8192, False), (8193, True)])
def test_trtllm_cuts_prompts_that_it_would_refuse(tokens, cut):
    """A server refuses a prompt above its 8,192 tokens of a step unless it may cut it."""
    answer = fit_answer(PlanRequest("llama-3.1-8b", "1xh100-sxm", engine="trtllm", input=tokens), changes=False)
    lines = "".join(launch_files(answer.asked, answer.holding).values())
    assert ("enable_chunked_prefill: true" in lines) is cut


def test_llama_server_shares_one_context_between_its_slots():
    text = command("llama-3.1-8b-q4_k_m", "1xrtx-4090", users="4", context="8192")
    assert text.startswith("llama-server") and "--parallel 4" in text and "-c 32768" in text


@pytest.mark.parametrize(("input_tokens", "output_tokens"), [(2000, 500), (2048, 512), (999, 2), (7000, 1001)])
def test_each_slot_of_llama_server_takes_a_whole_request(input_tokens, output_tokens):
    words = {"weights": "q4_k_m", "input": input_tokens, "output": output_tokens, "users": "500"}
    answer = fit_answer(PlanRequest("llama-3.1-8b", "1xrtx-4090", **words), changes=False)
    cells, slots = (int(re.search(rf"{option} (\d+)", " ".join(answer.command))[1]) for option in ("-c", "--parallel"))
    assert slots > 1 and cells // slots >= input_tokens + output_tokens
    assert cells <= answer.holding.pool.low


@pytest.mark.parametrize("on", ["1xrtx-3090", "dgx-spark", "ryzen-ai-max-395"])
def test_llama_server_asks_for_no_more_cells_than_surely_fit(on):
    answer = fit_answer(PlanRequest("qwen3-30b-a3b-q4_k_m", on, engine="llama.cpp", users="64"), changes=False)
    cells = int(re.search(r"-c (\d+)", " ".join(answer.command))[1])
    assert answer.verdict != "fits" or 0.9 * answer.holding.pool.low - 256 < cells <= answer.holding.pool.low


def test_llama_server_is_told_which_file_of_the_repository_was_planned():
    """Without a quant after the colon it would load Q4_K_M, or the first file."""
    text = command("glm-5.3-flash-q3_k_xl", "2xrtx-pro-6000-ws", engine="llama.cpp")
    assert "-hf unsloth/GLM-5.3-Flash-GGUF:UD-Q3_K_XL " in text


def test_a_repository_without_gguf_is_no_address_for_llama_server():
    answer = fit_answer(PlanRequest("qwen3-30b-a3b", "mac-studio-m3-ultra", engine="llama.cpp"))
    assert "-m PATH_TO_GGUF" in " ".join(answer.command)
    assert "convert_hf_to_gguf.py" in " ".join(answer.command_notes)


@pytest.mark.parametrize(
    ("engine", "variable", "options"),
    [
        (
            "sglang",
            "SGLANG_OPT_DEEPGEMM_HC_PRENORM=0",
            ["--dsa-prefill-backend tilelang", "--dsa-decode-backend tilelang", "--kv-cache-dtype bfloat16"],
        ),
        ("vllm", "VLLM_GLM53_CUDA_SPARSE_MLA=1", ["--kv-cache-dtype fp8", "--no-enable-flashinfer-autotune"]),
    ],
)
def test_what_a_wall_asks_for_is_in_the_command_with_its_environment(engine, variable, options):
    """GLM-5.3-Flash on SM120: https://github.com/sgl-project/sglang/issues/37105, vllm-project/vllm/issues/53963."""
    found = fit_answer(PlanRequest("glm-5.3-flash-nvfp4", "4xrtx-pro-6000-ws", engine=engine), changes=False).command
    assert found[0] == variable and found[1].startswith(("vllm serve ", "python -m sglang.launch_server "))
    assert set(options) <= set(found)


def test_a_wall_that_does_not_stand_asks_for_nothing():
    found = fit_answer(PlanRequest("glm-5.3-flash-nvfp4", "4xb200-sxm", engine="sglang"), changes=False).command
    assert found[0].startswith("python -m sglang.launch_server ")
    assert not any("tilelang" in words or "bfloat16" in words for words in found)


@pytest.mark.parametrize(
    ("engine", "version", "kv", "said"),
    [
        # SGLang takes FP8 for sparse attention on SM100 by itself, vLLM what the checkpoint says
        ("sglang", "latest", "bf16", ["--kv-cache-dtype bfloat16"]),
        ("vllm", "latest", "bf16", ["--kv-cache-dtype bfloat16"]),
        ("vllm", "0.11.0", "bf16", []),
        ("sglang", "latest", "fp8", ["--kv-cache-dtype fp8_e4m3"]),
    ],
)
def test_a_cache_other_than_the_engine_would_take_is_told(engine, version, kv, said):
    asked = PlanRequest("deepseek-v3.2-nvfp4", "8xb200-sxm", engine=engine, engine_version=version, kv=kv)
    found = fit_answer(asked, changes=False).command
    assert [words for words in found if words.startswith("--kv-cache-dtype")] == said


def test_the_recipe_of_the_part_brings_its_environment():
    """vllm-project/recipes, models/MiniMaxAI/MiniMax-M3.yaml for MI355X."""
    found = fit_answer(PlanRequest("minimax-m3", "8xmi355x", engine="vllm"), changes=False).command
    assert "VLLM_ROCM_USE_AITER_MOE=1" in found[: found.index("vllm serve MiniMaxAI/MiniMax-M3")]
    other = fit_answer(PlanRequest("minimax-m3", "8xh200-sxm", engine="vllm"), changes=False).command
    assert not any("ROCM" in words for words in other)


def test_weights_that_nobody_published_are_asked_for():
    answer = fit_answer(PlanRequest("glm-5.1-int8", "8xh200-sxm"))
    assert "PATH_TO_WEIGHTS" in answer.command[0]
    assert "no published files" in answer.command_notes[0]


def test_a_draft_head_is_named_where_the_engine_wants_it():
    asked = {"tp": "8", "mtp": "3"}
    head = "lightseekorg/kimi-k2.5-eagle3-mla"
    assert f'{{"method":"eagle3","model":"{head}","num_speculative_tokens":3}}' in command(
        "kimi-k2.5", "8xh200-sxm", engine="vllm", **asked
    )
    assert f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {head} " in command(
        "kimi-k2.5", "8xh200-sxm", engine="sglang", **asked
    )
    left_out = fit_answer(PlanRequest("kimi-k2.5", "8xb200-sxm", engine="trtllm", **asked))
    assert any(head in note for note in left_out.command_notes)
    assert any(head in line for line in left_out.asked.assumed)


@pytest.mark.parametrize(
    ("model", "on", "named"),
    [
        ("glm-5.2-fp8", "8xb200-sxm", "nvfp4_ds_mla"),
        ("deepseek-v4.1-flash", "8xb200-sxm", "nvfp4_ds_mla"),
        ("llama-3.1-70b", "8xb200-sxm", "nvfp4"),
    ],
)
def test_a_cache_in_fp4_is_named_as_the_attention_packs_it(model, on, named):
    assert f"--kv-cache-dtype {named} " in command(model, on, engine="vllm", kv="nvfp4") + " "


@pytest.mark.parametrize(
    ("model", "on", "why"),
    [
        ("glm-5.2-fp8", "8xh200-sxm", "sparse MLA caches support NVFP4 on SM100 only"),
        ("deepseek-v4.1-flash", "8xh200-sxm", "DeepSeek V4.1 supports an NVFP4 KV cache on SM100 only"),
        ("deepseek-v4-flash", "8xb200-sxm", "DeepSeek V4 supports FP8 and BF16 KV caches only"),
        ("deepseek-v3-fp8", "8xb200-sxm", "no MLA kernel reads an NVFP4 cache"),
    ],
)
def test_a_cache_in_fp4_that_no_kernel_reads_does_not_run(model, on, why):
    answer = fit_answer(PlanRequest(model, on, engine="vllm", kv="nvfp4"))
    assert answer.verdict == "does_not_fit" and answer.headline == f"does not run with vllm: {why}"


def test_deepseek_v4_1_on_sm100_is_planned_with_the_cache_that_its_server_takes():
    """vLLM 0.33.0 packs NVFP4 there when FP8 is asked for: 890 B a token and not 1,790."""
    kept = {
        on: fit_answer(PlanRequest("deepseek-v4.1-flash", on, engine="vllm")) for on in ("8xh200-sxm", "8xb200-sxm")
    }
    assert [one.holding.terms.kv for one in kept.values()] == ["fp8", "nvfp4"]


@pytest.mark.parametrize(
    ("named", "engine", "begins"),
    [
        ("qwen3-coder-30b", "vllm", "vllm serve Qwen/Qwen3-Coder-30B-A3B-Instruct"),
        ("qwen3-30b-a3b-instruct-2507", "vllm", "vllm serve Qwen/Qwen3-30B-A3B-Instruct-2507"),
        ("llama-3.3-70b", "sglang", "python -m sglang.launch_server --model-path meta-llama/Llama-3.3-70B-Instruct"),
        ("llama-3.3-70b-fp8", "vllm", "vllm serve PATH_TO_WEIGHTS"),
        ("deepseek-r1-0528", "vllm", "vllm serve deepseek-ai/DeepSeek-R1-0528"),
        ("somebody/Llama-3.3-70B-FP8", "vllm", "vllm serve somebody/Llama-3.3-70B-FP8"),
        ("qwen3-235b", "vllm", "vllm serve Qwen/Qwen3-235B-A22B"),
    ],
)
def test_a_model_of_the_same_shapes_is_started_itself_not_the_one_that_is_described(named, engine, begins):
    answer = fit_answer(PlanRequest(named, "8xh200-sxm", engine=engine), changes=False)
    assert begins in answer.command
    assert any("insert your path" in note for note in answer.command_notes) == ("PATH" in begins)


def test_a_gguf_of_a_model_of_the_same_shapes_is_made_of_its_own_weights():
    answer = fit_answer(PlanRequest("qwq-32b", "1xrtx-5090", engine="llama.cpp", weights="q4_k_m"), changes=False)
    assert "-m PATH_TO_GGUF" in answer.command
    assert any("no GGUF of Qwen/QwQ-32B is known" in note for note in answer.command_notes)
