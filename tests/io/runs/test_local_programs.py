"""Outputs of programs on one machine, and of engines that answer."""

from __future__ import annotations

import json

import pytest

from glmplan.io.runs.importers import import_text

# ollama's API: nanoseconds
OLLAMA = {"model": "qwen3:32b", "done": True, "prompt_eval_count": 26, "prompt_eval_duration": 325_000_000,
          "eval_count": 290, "eval_duration": 4_640_000_000}  # fmt: skip
# llama-server: 128 tokens with 70 accepted drafts take 58 steps, 2.2069 tokens each
SERVER = {"choices": [], "timings": {"prompt_n": 1024, "prompt_ms": 512.0, "predicted_n": 128, "predicted_ms": 2048.0,
                                     "draft_n": 90, "draft_n_accepted": 70}}  # fmt: skip
STUDIO = {"usage": {"prompt_tokens": 24, "completion_tokens": 53},
          "stats": {"tokens_per_second": 62.5, "time_to_first_token": 0.111, "generation_time": 0.954}}  # fmt: skip
LMS = "Prediction Stats:\n  Stop Reason: eosFound\n  Tokens/Second: 62.50\n  Time to First Token: 0.111s\n"
# TabbyAPI's common/gen_logging.py
TABBY = (
    "INFO:     Metrics (ID: ab): 512 tokens generated in 11.23 seconds (Queue: 0.0 s, Process: 0 cached tokens and "
    "1024 new tokens at 2048.0 T/s, Generate: 62.5 T/s, Context: 1024 tokens)\n"
)
KTRANSFORMERS = """prompt eval count:    1024 token(s)
prompt eval rate:     100.0 tokens/s
eval count:           300 token(s)
eval rate:            62.5 tokens/s
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (json.dumps(OLLAMA), {"engine": "llama.cpp", "backend": "ollama", "checkpoint": "qwen3:32b"}),
        (json.dumps(SERVER), {"engine": "llama.cpp", "input_tokens": 1024, "acceptance_length": 2.2069}),
        (json.dumps(STUDIO), {"backend": "lm studio", "ttft_mean_ms": 111}),
        (LMS, {"backend": "lm studio", "ttft_mean_ms": 111}),
        (TABBY, {"input_tokens": 1024, "output_tokens": 512}),
        (KTRANSFORMERS, {"input_tokens": 1024, "output_tokens": 300}),
        ("> hi\n\n[ Prompt: 231,4 t/s | Generation: 62,5 t/s ]\n", {"engine": "llama.cpp"}),
    ],
)  # fmt: skip
def test_single_requests_tell_their_speed(text, expected):
    row = import_text(text).rows[0]
    assert row["tpot_mean_ms"] == pytest.approx(16.0)
    assert {name: row[name] for name in expected} == expected


def test_lines_of_two_programs_name_no_engine_until_it_is_given():
    unknown, known = import_text(KTRANSFORMERS), import_text(KTRANSFORMERS, facts={"engine": "ktransformers"})
    assert "engine" not in unknown.rows[0] and [problem.field for problem in unknown.problems] == ["engine"]
    assert (known.rows[0]["engine"], known.problems) == ("ktransformers", [])


VLLM = (
    "INFO 03-01 10:00:00 [loggers.py:248] Engine {rank:03d}: Avg prompt throughput: 0.0 tokens/s, Avg generation "
    "throughput: {rate} tokens/s, Running: 16 reqs, Waiting: {waiting} reqs, GPU KV cache usage: 1.2%\n"
)
DRAFTED = "INFO 03-01 [metrics.py:100] SpecDecoding metrics: Mean acceptance length: 2.87, Accepted: 5 tokens\n"
SGLANG = (
    "[2026-03-01 10:00:00 DP{rank} TP{rank}] Decode batch. #running-req: 8, #token: 1000, accept len: 2.87, "
    "accept rate: 0.62, cuda graph: True, gen throughput (token/s): {rate}, #queue-req: 0\n"
)
# vLLM 0.6: pending requests
FIRST_VLLM = "Avg generation throughput: 43.7 tokens/s, Running: 1 reqs, Swapped: 0 reqs, Pending: 0 reqs, GPU KV\n"
# lmdeploy/metrics/loggers.py
LMDEPLOY = (
    "[2026-03-01 10:00:00 Engine 000] Avg thr (in/out): 0.0 / 812.5 tokens/s, "
    "Server (succeeded/failed/routed/waiting): 1 / 0 / 16 / 0, Engine (running/waiting): 16 / 0, KV cache: 12.5%\n"
)
STEP = (
    "[TRT-LLM] [I] iter = 10, num_scheduled_requests = 16, host_step_time = {ms}ms, prev_device_step_time = 12.1ms, "
    "states = {{'num_ctx_requests': 0, 'num_ctx_tokens': {prompt}, 'num_generation_tokens': 16}}\n"
)


@pytest.mark.parametrize(
    ("text", "users", "rate"),
    [
        (
            "".join(VLLM.format(rank=rank, rate=rate, waiting=0) for rank, rate in ((0, 500), (1, 510), (0, 500))),
            32,
            1010,
        ),
        (VLLM.format(rank=0, rate=500, waiting=0) + VLLM.format(rank=0, rate=100, waiting=9), 16, 500),
        (SGLANG.format(rank=0, rate=400) + SGLANG.format(rank=1, rate=420), 16, 820),
        (FIRST_VLLM, 1, 43.7),
        (LMDEPLOY, 16, 812.5),
        # a step with prompts is none of decode
        (STEP.format(ms=12.5, prompt=0) + STEP.format(ms=12.5, prompt=0) + STEP.format(ms=99.0, prompt=512), 16, 1280),
    ],
)
def test_engines_log_their_throughput(text, users, rate):
    row = import_text(text).rows[-1]
    assert (row["concurrency"], row["output_tokens_per_s"]) == (users, rate)


def test_drafting_engines_log_the_tokens_of_a_step():
    for text in (VLLM.format(rank=0, rate=500, waiting=0) + DRAFTED, SGLANG.format(rank=0, rate=400)):
        assert import_text(text).rows[0]["acceptance_length"] == 2.87


def test_the_log_of_a_whole_service_gives_its_memory_and_its_throughput():
    start = (
        "INFO 03-01 09:59:00 [core.py:97] Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen3-32B', "
        "tensor_parallel_size=2\nINFO 03-01 09:59:30 [kv_cache_utils.py:864] GPU KV cache size: 400,000 tokens\n"
    )
    memory, decode = import_text(start + VLLM.format(rank=0, rate=500, waiting=0)).rows
    assert (memory["phase"], memory["kv_pool_tokens"]) == ("memory", 400000)
    assert (decode["phase"], decode["tp"], decode["engine_version"]) == ("decode", 2, "0.19.0")
    assert memory["id"] != decode["id"]
