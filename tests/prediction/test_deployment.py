"""The format of the cache that nobody names, by engine, model and part."""

from __future__ import annotations

import pytest

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.models import load_model
from glmplan.io.runs.record import Run
from glmplan.prediction.deployment import default_kv, deploy
from glmplan.prediction.from_row import question_of


@pytest.mark.parametrize(
    ("engine", "model", "checkpoint", "part", "kv"),
    [
        # sglang server_args.py: fp8_e4m3 if major >= 10 else bfloat16, of models with DeepSeek sparse attention
        ("sglang", "glm-5.1", "fp8", "b200-sxm", "fp8"),
        ("sglang", "glm-5.1", "fp8", "rtx-pro-6000-ws", "fp8"),
        ("sglang", "glm-5.1", "nvfp4", "h200-sxm", "bf16"),
        ("sglang", "deepseek-v3.2", "fp8", "b200-sxm", "fp8"),
        ("sglang", "deepseek-r1", "fp8", "b200-sxm", "bf16"),
        ("vllm", "glm-5.1", "fp8", "b200-sxm", "bf16"),
    ],
)
def test_sglang_keeps_the_cache_of_sparse_attention_by_compute_capability(engine, model, checkpoint, part, kv):
    spec, card = load_model(model), load_accelerator(part)
    stored = spec.checkpoint(checkpoint)
    assert default_kv(stored, engine, model=spec, accelerator=card) == kv
    assert deploy(spec, stored, card, engine=engine).kv == kv


@pytest.mark.parametrize("pp, late", [(1, 2), (2, 1)])
def test_batches_that_fill_the_stages_of_a_pipeline_are_not_formed_ahead(pp, late):
    run = Run("a", "llama-3.1-70b", "h100-sxm", engine="vllm", engine_version="0.18.0", accelerator_count=4, tp=4 // pp,
              pp=pp, protocol="closed-loop", concurrency=4.0, input_tokens=100.0, output_tokens=100.0)  # fmt: skip
    question = question_of(run)
    assert question.deployment.defaults.steps_late == question.load.late == late


def test_equal_deployments_are_one_and_others_stay_apart():
    spec, card = load_model("glm-5.1"), load_accelerator("b200-sxm")
    first, again = (deploy(spec, spec.checkpoint("fp8"), card, engine="vllm").remembered() for _ in range(2))
    other = deploy(spec, spec.checkpoint("fp8"), card, engine="vllm", draft_tokens=3).remembered()
    assert again is first and first == deploy(spec, spec.checkpoint("fp8"), card, engine="vllm")
    assert other is not first and other.draft_tokens == 3
