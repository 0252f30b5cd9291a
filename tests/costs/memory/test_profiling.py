"""The trial run by which vLLM sizes its pool, against what start-up logs say of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glmplan.catalog.engines.memory import load_memory_rule
from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.kinds import mixer_of
from glmplan.costs.memory import MemorySettings, rank_memory
from glmplan.costs.memory.activations import TrialStep, expanded_context_bytes, indexer_bytes, is_dense, peak_bytes
from glmplan.costs.points import Layout

GIB = 2.0**30
ONE = np.ones(1)


def activation(name: str, checkpoint: str, layout: Layout, *, mtp: bool = False, **settings: object) -> np.ndarray:
    """Peak of the trial run on the last stage [GiB]."""
    model = load_model(name)
    found = model.checkpoint(checkpoint)
    assert found is not None
    memory = rank_memory(model, found, layout=layout, kv="bf16", settings=MemorySettings(**settings), mtp=mtp)
    return memory.stages[-1].activation / GIB


@pytest.mark.parametrize(
    ("name", "checkpoint", "tp", "logged"),
    [
        # https://github.com/llm-d-incubation/llm-d-planner: vLLM 0.11.0, H100, 1,024 requests, 8,192 tokens
        ("llama-3.1-8b", "bf16", 1, 4.76),
        ("qwen3-0.6b", "bf16", 1, 5.56),
        ("qwen3-32b", "bf16", 2, 5.64),
        ("gpt-oss-20b", "mxfp4", 1, 7.38),
        ("llama-3.1-70b", "fp8", 2, 4.84),
        # https://github.com/kolyangg/mlops-assignment: vLLM 0.10.2
        ("qwen3-30b-a3b", "bf16", 1, 5.58),
    ],
)
def test_the_sampler_of_1024_requests_takes_what_logs_of_vllm_011_say(name, checkpoint, tp, logged):
    found = activation(name, checkpoint, Layout(tp=tp), version="0.11.0", max_requests=1024, token_budget=8192)
    assert found[0] == pytest.approx(logged, abs=0.06)


def test_a_step_of_many_tokens_grows_by_what_a_log_says():
    # https://github.com/Prathmesh234/mutliturn-inferenceX, vLLM 0.21.0: pools of 210.36 and 207.72 GiB at 32,768
    # and 65,536 tokens of a step, MiniMax-M2.5 on four ranks with expert parallelism
    layout = Layout(tp=4, ep=4)
    small, large = (
        activation("minimax-m2.5", "nvfp4", layout, version="0.21.0", max_requests=256, token_budget=budget)[0]
        for budget in (32768, 65536)
    )
    assert large - small == pytest.approx(210.36 - 207.72, rel=0.01)


def test_the_peak_is_the_larger_of_pass_and_sampler_and_not_their_sum():
    model, run = load_model("llama-3.1-8b"), load_memory_rule("vllm").profiling_of("0.17.1", dense=True)
    for tokens, requests in ((65536.0, 8.0), (2048.0, 1024.0)):
        step = TrialStep(tokens * ONE, requests * ONE, ONE > 0)
        forward = np.array([tokens * 1e5])
        alone = peak_bytes(run, model, forward, replace(step, last=ONE < 0))
        sampler = peak_bytes(run, model, 0.0 * ONE, step)
        assert peak_bytes(run, model, forward, step) == np.maximum(alone, sampler)


def test_the_sampler_holds_fewer_bytes_from_version_to_version():
    rule = load_memory_rule("vllm")
    # vllm/v1/sample and vllm/v1/worker/gpu/sample in the packages of these releases; the newest tries all options
    expected = {"0.16.0": (38, 42), "0.17.0": (14, 18), "0.28.1": (14, 18), "0.29.0": (2, 2), "0.33.0": (14, 14)}
    for version, (sampler, drafting) in expected.items():
        run = rule.profiling_of(version, dense=False)
        assert (run.sampler, run.drafting) == (sampler, drafting), version
    assert rule.profiling_of("0.6.4", dense=True) is None


def test_models_move_to_the_second_model_runner_as_the_packages_say():
    rule = load_memory_rule("vllm")

    def moved(version, name, *, quantised=False):
        return not rule.profiling_of(version, dense=True, model=name, quantised=quantised).estimates_graphs

    # vllm/config/vllm.py (_is_default_v2_model_runner_model): Qwen3, then Llama and Mistral, then all that are dense
    assert [moved(one, "qwen3-32b") for one in ("0.21.0", "0.22.0", "0.24.0", "0.28.0")] == [False, True, True, True]
    assert [moved(one, "qwen3-32b", quantised=True) for one in ("0.23.0", "0.24.0")] == [False, True]
    assert [moved(one, "llama-3.1-8b") for one in ("0.22.0", "0.23.0")] == [False, True]
    assert [moved(one, "gemma-3-27b") for one in ("0.24.0", "0.25.0", "0.28.0", "0.29.0")] == [False, True, True, False]


def test_the_second_model_runner_tries_image_towers_only_from_027_on():
    def taken(version, name):
        return activation(name, "bf16", Layout(tp=1), version=version, max_requests=8, token_budget=16384)[0]

    # 0.26.0 has no tower in profile_run of the second model runner, 0.27.0 has: 16,384 embeddings of 4 x 4,096 values
    # stay beside the pass, and the samplers of 8 requests are small
    tower = taken("0.27.0", "qwen3-vl-8b") - taken("0.26.0", "qwen3-vl-8b")
    assert tower == pytest.approx(16384 * 4 * 4096 * 2 / GIB, abs=0.02)
    assert taken("0.27.0", "llama-3.1-8b") - taken("0.26.0", "llama-3.1-8b") == pytest.approx(0.0, abs=0.02)


def test_the_state_of_the_sampler_counts_from_027_on_for_every_request_that_may_run():
    many, few = (
        activation("llama-3.1-8b", "bf16", Layout(), version="0.28.0", max_requests=one, token_budget=8192)[0]
        for one in (1024, 512)
    )
    # output_bin_counts 4 B, two masks of a bit; and 2 B of logits where the sampler is the larger, which it is not here
    assert (many - few) * GIB == pytest.approx(512 * load_model("llama-3.1-8b").vocabulary * 4.25)


def test_no_more_requests_are_sampled_than_the_step_has_tokens():
    few, many = (
        activation("llama-3.1-8b", "bf16", Layout(), version="0.11.0", max_requests=requests, token_budget=256)[0]
        for requests in (256, 1024)
    )
    assert few == many


def test_only_the_last_stage_samples_and_drafting_samples_more():
    settings = {"version": "0.11.0", "max_requests": 1024, "token_budget": 2048}
    model = load_model("llama-3.1-70b")
    memory = rank_memory(
        model, model.checkpoint("fp8"), layout=Layout(tp=2, pp=2), kv="bf16", settings=MemorySettings(**settings)
    )
    assert memory.stages[0].activation[0] < 0.2 * memory.stages[1].activation[0]
    plain, drafting = (activation("glm-4.5-air", "bf16", Layout(tp=8), mtp=mtp, **settings)[0] for mtp in (False, True))
    vocabulary = load_model("glm-4.5-air").vocabulary
    assert (drafting - plain) * GIB == pytest.approx(4 * 1024 * vocabulary)


def test_an_engine_of_unknown_trial_run_is_summed():
    model = load_model("llama-3.1-8b")
    step = TrialStep(2048.0 * ONE, 256.0 * ONE, ONE > 0)
    assert peak_bytes(None, model, 1e9 * ONE, step)[0] == pytest.approx(1e9 + 10 * 256 * model.vocabulary)


def test_dense_is_what_has_neither_experts_nor_states():
    assert [is_dense(load_model(one)) for one in ("qwen3-32b", "glm-5.1", "qwen3.5-27b")] == [True, False, False]


@pytest.mark.parametrize(("tp", "longest", "tokens"), [(2, None, 65536), (8, None, 65536), (2, 4096, 32768)])
def test_a_trial_run_expands_a_context_of_latents_to_the_heads_of_a_rank(tp, longest, tokens):
    # vllm mla_attention.py: torch.empty((min(8 x max_model_len, 64k), heads, nope + v)); GLM-5.1: 64 heads of 192 + 256
    model = load_model("glm-5.1")
    run = load_memory_rule("vllm").profiling_of("0.14.0", dense=False)
    latent = mixer_of(model.layers[model.layer_names[0]])
    length = model.max_context if longest is None else longest
    found = expanded_context_bytes(run, latent, tp=np.array([tp]), longest=length, sparse=False)
    assert found[0] == tokens * 64 / tp * (192 + 256) * 2
    assert expanded_context_bytes(run, latent, tp=np.array([tp]), longest=length, sparse=True) == 0.0
    newer = load_memory_rule("vllm").profiling_of("0.16.0", dense=False)
    assert expanded_context_bytes(newer, latent, tp=np.array([tp]), longest=length, sparse=True)[0] == found[0]
    llama = load_model("llama-3.1-8b")
    plain = mixer_of(llama.layers[llama.layer_names[0]])
    assert expanded_context_bytes(run, plain, tp=np.array([tp]), longest=length, sparse=False) == 0.0


def test_the_buffer_of_pooled_index_keys_is_sized_in_tokens():
    """vllm-project/vllm issue 55221: GLM-5.3-Flash at 1,000,000 tokens takes 5,036.40 MiB with 1 MiB beside it."""
    model = load_model("glm-5.3-flash")
    kind = model.layers["full_sparse"]
    kept, _ = indexer_bytes(kind, longest=1_000_000.0, settings=MemorySettings(version="0.31.0"))
    assert float(kept) / 2**20 == pytest.approx(5036.40 - 1.0, abs=0.01)


@pytest.mark.parametrize(("longest", "logged"), [(20_000, 2.07), (29_000, 2.99)])
def test_vllm_before_its_second_engine_tries_a_prompt_of_the_longest_length(longest: int, logged: float) -> None:
    # Llama-3.1-8B on one card: 17.06 and 17.98 GiB at the peak, 14.99 of them weights; 15.05 with a length of 35,000
    # (https://github.com/vllm-project/vllm/issues/10517)
    def tried(version: str, length: float) -> float:
        return activation("llama-3.1-8b", "bf16", Layout(), version=version, longest=length, max_requests=16)[0]

    assert tried("0.6.4", longest) == pytest.approx(logged, rel=0.02)
    assert tried("0.6.4", 35_000.0) < 1.0 and tried("0.8.5", longest) < 1.0
