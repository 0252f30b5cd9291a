"""What an engine does when nobody tells it otherwise has one home, and every reader gets the same."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.engines.defaults import (
    UNKNOWN_ENGINE,
    block_tokens,
    engine_default,
    engine_defaults,
    engine_known,
)
from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.engines.memory import memory_engines
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.costs.memory.settings import MemorySettings
from glmplan.errors import SpecError, UnknownName
from glmplan.io.runs.table import run_from_row
from glmplan.planner.question import read_words
from glmplan.prediction.deployment import deploy
from glmplan.prediction.from_row import question_of
from glmplan.request.plan import PlanRequest
from glmplan.simulation.engine.settings import SCHEDULERS, scheduler_settings

PARTS = ("h100-sxm", "h200-sxm", "b200-sxm", "a100-80gb-sxm", "rtx-pro-6000-ws", "rtx-4090")


def defaults_of(engine, part):
    chip = load_accelerator(part)
    return engine_defaults(engine, accelerator=chip.name, memory=chip.memory)


def test_every_engine_of_the_catalogue_has_a_memory_rule_and_says_how_it_packs_steps():
    assert sorted(memory_engines()) == sorted(engine_names())
    for engine in engine_names():
        rule = load_engine(engine).scheduling
        assert rule is not None and rule.source
        assert rule.scheduler in SCHEDULERS
        assert engine_defaults(engine).budget > 0 and block_tokens(engine) > 0


@pytest.mark.parametrize(
    ("engine", "part", "tokens", "requests"),
    [
        # vllm/engine/arg_utils.py get_batch_defaults, API server: 70 GiB and more, but not A100
        ("vllm", "h100-sxm", 8192, 1024),
        ("vllm", "rtx-pro-6000-ws", 8192, 1024),
        ("vllm", "a100-80gb-sxm", 2048, 256),
        ("vllm", "rtx-4090", 2048, 256),
        # sglang server_args.py: 2048 below 35 GiB, 8192 below 160 GiB, 16384 beyond; model_runner.py: 2048 requests
        ("sglang", "rtx-4090", 2048, 2048),
        ("sglang", "h200-sxm", 8192, 2048),
        ("sglang", "rtx-pro-6000-ws", 8192, 2048),
        ("sglang", "b200-sxm", 16384, 2048),
        # ktransformers is served by SGLang
        ("ktransformers", "b200-sxm", 16384, 2048),
        # tensorrt_llm/llmapi/llm_args.py
        ("trtllm", "h200-sxm", 8192, 2048),
        # llama-server: n_ubatch 512, n_parallel auto means 4; mlx_lm.server: prefill_step_size, decode_concurrency
        ("llama.cpp", "rtx-4090", 512, 4),
        ("mlx", "m3-ultra", 2048, 32),
    ],
)
def test_an_engine_packs_steps_as_its_sources_say(engine, part, tokens, requests):
    found = defaults_of(engine, part)
    assert (found.budget, found.max_requests) == (tokens, requests)


# a row of ktransformers names a host besides, see tests/planner/test_commands_agree.py
@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "llama.cpp", "mlx"])
@pytest.mark.parametrize("part", PARTS)
def test_memory_step_and_plan_read_the_same_defaults(engine, part):
    chip = load_accelerator(part)
    found = defaults_of(engine, part)
    settings = MemorySettings(engine=engine, accelerator=chip.name)
    assert float(settings.budget(chip.memory)) == found.budget
    asked = read_words(PlanRequest("llama-3.1-8b", part, engine=engine))
    assert asked.defaults == found
    assert deploy(asked.model, asked.checkpoint, chip, engine=engine).defaults == found
    row = {"id": "a", "model": "llama-3.1-8b", "accelerator": part, "accelerator_count": "1", "engine": engine,
           "phase": "serving", "concurrency": "8"}  # fmt: skip
    load = question_of(run_from_row(row)).load
    assert load.budget == found.budget
    # slots of equal context are no more than the pool holds
    fewer = found.admission == "slot" and load.max_requests < found.places
    assert load.max_requests == found.places or fewer


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_simulation_by_step_times_starts_from_the_defaults_of_the_engine(scheduler):
    found, settings = engine_defaults(scheduler), scheduler_settings(scheduler)
    assert settings.max_num_batched_tokens == found.budget
    assert settings.max_num_seqs == min(found.max_requests, found.budget)
    assert (settings.admission, settings.prefill_first) == (found.admission, found.prefill_first)


def test_llama_cpp_runs_as_many_requests_as_it_is_launched_for():
    # llama.cpp src/llama-cparams.h: LLAMA_MAX_SEQ 256; the plan's command says --parallel
    assert engine_defaults("llama.cpp").places == 256
    assert engine_defaults("vllm").places == 1024


def test_blocks_of_the_cache_are_larger_where_an_indexer_reads_them():
    assert (block_tokens("vllm"), block_tokens("vllm", sparse=True)) == (16, 64)
    assert (block_tokens("sglang"), block_tokens("sglang", sparse=True)) == (1, 64)
    assert block_tokens("ktransformers", sparse=True) == 64


def test_the_largest_batch_that_is_sampled_is_the_largest_graph_of_sglang():
    # sglang server_args.py: cuda_graph_max_bs 256 below four ranks, 512 from four on, for 60 to 160 GiB
    settings = MemorySettings(engine="sglang", accelerator="h200-sxm")
    found = settings.requests(141e9, np.array([1.0, 2.0, 4.0, 8.0]))
    assert found.tolist() == [256.0, 256.0, 512.0, 512.0]
    assert engine_default("sglang", "cuda_graph_max_bs", memory=141e9, tp=8) == 512


def test_an_unknown_engine_is_refused_with_the_nearest_by_a_plan():
    with pytest.raises(SpecError, match="vllm"):
        read_words(PlanRequest("llama-3.1-8b", "h100-sxm", engine="vlm"))
    with pytest.raises(UnknownName, match="sglang"):
        engine_defaults("sglan")


def test_a_row_of_an_unknown_engine_says_so_and_is_no_other_engine():
    row = {"id": "a", "model": "llama-3.1-8b", "accelerator": "h100-sxm", "accelerator_count": "1",
           "engine": "llmboost", "phase": "serving", "concurrency": "8"}  # fmt: skip
    question = question_of(run_from_row(row))
    assert not engine_known("llmboost")
    assert question.deployment.defaults == UNKNOWN_ENGINE
    assert question.deployment.graph_tokens == 0
    assert any("llmboost is not described" in text for text in question.assumed)


def test_an_unknown_engine_is_taken_for_no_more_than_any_known_server_does():
    servers = [engine_defaults(name) for name in ("vllm", "sglang", "trtllm")]
    assert min(one.budget for one in servers) == UNKNOWN_ENGINE.budget
    assert min(one.max_requests for one in servers) == UNKNOWN_ENGINE.max_requests


@pytest.mark.parametrize("engine, version, late", [("vllm", "0.13.0", 1), ("vllm", "0.14.0", 2), ("sglang", None, 2)])
def test_a_prompt_misses_one_more_step_where_steps_are_formed_ahead(engine, version, late):
    assert engine_defaults(engine, version=version).steps_late == late
