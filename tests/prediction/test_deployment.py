"""The format of the cache that nobody names, by engine, model and part."""

from __future__ import annotations

import pytest

from glmplan.facts.catalogue.accelerators import load_accelerator
from glmplan.facts.catalogue.models import load_model
from glmplan.prediction.deployment import default_kv, deploy


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
