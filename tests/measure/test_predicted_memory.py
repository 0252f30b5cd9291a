"""The memory of an engine's start is predicted by the rules of every other command."""

from __future__ import annotations

import pytest

from glmplan.catalog.entries.models import load_model
from glmplan.io.runs.importers.startup_logs import StartupLog
from glmplan.measure.memory_comparison import predict_startup
from glmplan.prediction.deployment import default_kv


@pytest.mark.parametrize("checkpoint", ["nvfp4", "fp8"])
def test_a_log_that_names_no_cache_format_takes_that_of_every_plan(checkpoint: str) -> None:
    model = load_model("glm-5.1")
    stored = model.checkpoint(checkpoint)
    assert stored is not None
    log = StartupLog("vllm", version="0.20.2", kv_cache="auto", tp=8)
    found = predict_startup(log, model=f"glm-5.1-{checkpoint}", on="8xrtx-pro-6000-server")
    assert any(note.endswith(f"KV cache {default_kv(stored, 'vllm')}") for note in found.notes)
