"""The command that starts a plan tells the engine what the plan was told, by the engine's own names."""

from __future__ import annotations

import pytest

from glmplan.planner.launch import launch_command
from glmplan.planner.question import read_words
from glmplan.planner.users import solve
from glmplan.request.plan import PlanRequest

TOLD = {"memory_fraction": 0.85, "max_num_seqs": 64, "max_num_batched_tokens": 4096}


@pytest.mark.parametrize(
    ("engine", "dp", "words"),
    [
        ("vllm", 1, ("--gpu-memory-utilization 0.85", "--max-num-seqs 64", "--max-num-batched-tokens 4096")),
        # SGLang counts requests and tokens over all data-parallel ranks
        ("sglang", 2, ("--mem-fraction-static 0.85", "--max-running-requests 128", "--chunked-prefill-size 8192")),
        ("trtllm", 1, ("--kv_cache_free_gpu_memory_fraction 0.85", "--max_batch_size 64", "--max_num_tokens 4096")),
        ("llama.cpp", 1, ("--parallel 64", "--ubatch-size 4096")),
    ],
)
def test_every_engine_is_told_by_its_own_options(engine, dp, words):
    model = "gpt-oss-20b" if engine == "llama.cpp" else "glm-4.5-air" if dp > 1 else "llama-3.1-8b"
    asked = read_words(PlanRequest(model, f"{dp}xh200-sxm", engine=engine, tp=1, pp=1, dp=dp, **TOLD))
    command, _ = launch_command(asked, solve(asked).best, 8192)
    for one in words:
        assert one in " ".join(command)
