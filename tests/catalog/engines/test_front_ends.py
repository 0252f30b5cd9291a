"""Ollama and LM Studio are llama.cpp with defaults of their own; engines without facts are known by name."""

from __future__ import annotations

import pytest

from glmplan.catalog.engines.limitations import engine_names, front_end
from glmplan.catalog.entries.names import engine_name
from glmplan.errors import SpecError
from glmplan.planner.question import read_words
from glmplan.request.plan import PlanRequest


def asked(engine, on="rtx-4090", **more):
    return read_words(PlanRequest("qwen3-8b", on, weights="q4_k_m", engine=engine, **more))


@pytest.mark.parametrize(
    ("engine", "on", "context", "parallel"),
    [
        ("ollama", "rtx-4090", 32768, 1),
        ("Ollama", "2xrtx-4090", 40960, 1),  # 256k from 48 GiB on, the model has 40,960
        ("LM Studio", "2xrtx-4090", 4096, 4),
        ("ik_llama.cpp", "rtx-4090", None, 1),
    ],
)
def test_a_front_end_gives_llama_cpp_its_defaults(engine, on, context, parallel):
    plan = asked(engine, on)
    assert (plan.engine, plan.kv) == ("llama.cpp", "f16")
    assert (plan.settings.max_model_len, plan.settings.max_num_seqs) == (context, parallel)
    assert any(front_end(engine).name in line for line in plan.assumed)


def test_what_is_asked_for_replaces_a_default():
    plan = asked("ollama", context=8192, max_num_seqs=2, kv="q8_0")
    assert (plan.context, plan.settings.max_model_len, plan.settings.max_num_seqs, plan.kv) == (8192, None, 2, "q8_0")


@pytest.mark.parametrize(("engine", "near"), [("exllamav2", "exllamav3")])
def test_an_engine_without_facts_is_named_with_the_one_most_like_it(engine, near):
    with pytest.raises(SpecError, match=f"most like it: {near}"):
        asked(engine)
    assert near in engine_names()


def test_tables_know_the_same_names():
    said = [engine_name(text) for text in ("Ollama 0.20.3", "LM Studio 0.4", "LMDeploy 0.9", "ExLlamaV3 0.0.6")]
    assert said == ["llama.cpp", "llama.cpp", "lmdeploy", "exllamav3"]
