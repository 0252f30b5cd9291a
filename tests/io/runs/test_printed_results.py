"""Results that commands print or save in short: forms as their sources write them (see the module)."""

from __future__ import annotations

import json

import pytest

from glmplan.errors import SpecError
from glmplan.io.runs.importers import import_text, table_csv
from glmplan.io.runs.importers.out_of_memory import out_of_memory
from glmplan.io.runs.table import read_runs

VLLM_THROUGHPUT = """INFO 09-12 10:11:12 [__init__.py:244] Automatically detected platform cuda.
Throughput: 20.00 requests/s, 10240.00 total tokens/s, 5120.00 output tokens/s
Total num prompt tokens:  256000
Total num output tokens:  256000
"""
VLLM_LATENCY = {"avg_latency": 2.5, "latencies": [2.4, 2.6], "percentiles": {"10": 2.4, "50": 2.5, "99": 2.6}}
TRTLLM = """===========================================================
= PYTORCH BACKEND
===========================================================
Model:\t\t\tdeepseek-ai/DeepSeek-R1
Model Path:\t\t/models/DeepSeek-R1-FP4
TensorRT LLM Version:\t1.2.0
KV Cache Dtype:\t\tFP8
Quantization:\t\tNVFP4

= REQUEST DETAILS
Number of requests:             3000
Number of concurrent requests:  2767.1234
Average Input Length (tokens):  1024.0000
Average Output Length (tokens): 2048.0000
TP Size:                8
PP Size:                1
EP Size:                8

Total Output Throughput (tokens/sec):             42949.1
Total Token Throughput (tokens/sec):              64423.6
Total Latency (ms):                               143053.2
Average request latency (ms):                     128034.3
Average time-to-first-token [TTFT] (ms):          3021.1
Average time-per-output-token [TPOT] (ms):        61.1
"""
LLMPERF = {
    "version": "2023-08-31", "name": "m_1024_256_summary", "model": "meta-llama/Llama-3.1-70B-Instruct",
    "mean_input_tokens": 1024, "num_concurrent_requests": 8, "results_inter_token_latency_s_mean": 0.0281,
    "results_ttft_s_mean": 0.312, "results_ttft_s_quantiles_p50": 0.298, "results_end_to_end_latency_s_mean": 7.51,
    "results_number_input_tokens_mean": "1024.0", "results_number_output_tokens_mean": "256.0",
    "results_mean_output_throughput_token_per_s": 268.2, "results_num_completed_requests": 64,
}  # fmt: skip
EVALSCOPE_OLD = {
    "Time taken for tests (s)": 91.9, "Number of concurrency": 16, "Total requests": 64, "Failed requests": 2,
    "Output token throughput (tok/s)": 713.1, "Average latency (s)": 22.1, "Average time to first token (s)": 0.42,
    "Average time per output token (s)": 0.0212, "Average input tokens per request": 1024.0,
    "Average output tokens per request": 1024.0,
}  # fmt: skip
EVALSCOPE = {
    "Concurrency": 16, "Total Requests": 64, "Success Requests": 62, "Failed Requests": 2,
    "Output Throughput (tok/s)": 713.1, "Avg Latency (s)": 22.1, "Avg TTFT (ms)": 420.0, "Avg TPOT (ms)": 21.2,
    "Avg Input Tokens": 1024.0, "Avg Output Tokens": 1024.0, "Test Duration (s)": 91.9,
}  # fmt: skip
INFERENCE_PERF = {
    "load_summary": {"count": 64, "requested_rate": 2.0},
    "successes": {
        "count": 62,
        "latency": {
            "request_latency": {"mean": 7.5, "p99": 9.0},
            "time_to_first_token": {"mean": 0.3, "median": 0.29, "p99": 0.9},
            "time_per_output_token": {"mean": 0.028, "median": 0.027, "p99": 0.04},
            "inter_token_latency": {"mean": 0.028, "median": 0.02, "p99": 0.2},
        },
        "throughput": {"output_tokens_per_sec": 500.0, "total_tokens_per_sec": 2500.0},
        "prompt_len": {"mean": 1024.0}, "output_len": {"mean": 256.0},
    },
    "failures": {"count": 2},
}  # fmt: skip
ONE_BATCH_SERVER = {
    "run_name": "default", "batch_size": 16, "input_len": 1024, "output_len": 101, "latency": 2.6,
    "input_throughput": 27306.67, "output_throughput": 808.0, "overall_throughput": 6923.08, "last_ttft": 0.6,
    "last_gen_throughput": 801.0, "acc_length": -1, "cache_hit_rate": None,
}  # fmt: skip
# python/sglang/bench_one_batch_server.py at 00b08c49
ONE_BATCH_FIRST = {
    "run_name": "default", "batch_size": 16, "input_len": 1024, "output_len": 8, "latency": 0.8,
    "output_throughput": 160.0, "overall_throughput": 20640.0,
}  # fmt: skip
# vllm/benchmarks/sweep/serve.py at 0031557f: pandas writes the results of `vllm bench serve` with an index
SWEEP = (
    ",model_id,num_prompts,request_rate,max_concurrency,duration,completed,failed,total_input_tokens,"
    "total_output_tokens,request_throughput,request_goodput,output_throughput,total_token_throughput,mean_ttft_ms,"
    "mean_tpot_ms,run_number,max_num_seqs\n"
    "0,Qwen/Qwen3-32B,100,inf,16,30.1,100,0,102400,51200,3.32,,1701.0,5103.0,210.0,9.1,0,32\n"
    "1,Qwen/Qwen3-32B,100,inf,32,20.0,100,0,102400,51200,5.0,,2560.0,7680.0,300.0,12.0,0,32\n"
)
ONE_BATCH = {
    "run_name": "default", "batch_size": 16, "input_len": 1024, "output_len": 8, "prefill_latency": 0.5,
    "median_decode_latency": 0.02, "total_latency": 0.7, "overall_throughput": 1.0,
}  # fmt: skip
MLX_BENCHMARK = """Running warmup..
Timing with prompt_tokens=4096, generation_tokens=128, batch_size=4.
Trial 1:  prompt_tps=1012.300, generation_tps=200.000, peak_memory=71.300, total_time=4.100
Averages: prompt_tps=1013.600, generation_tps=200.000, peak_memory=71.300
"""
MLX_GENERATE = """==========
Prompt: 512 tokens, 812.113 tokens-per-sec
Generation: 256 tokens, 50.000 tokens-per-sec
Peak memory: 69.871 GB
"""
OLLAMA = """total duration:       12.402s
prompt eval count:    1024 token(s)
prompt eval duration: 1.12s
prompt eval rate:     914.29 tokens/s
eval count:           512 token(s)
eval duration:        11.2s
eval rate:            40.00 tokens/s
"""
TIMINGS = """slot print_timing: id  0 | task 0 |
prompt eval time =   10000.00 ms /  1000 tokens (   10.00 ms per token,   100.00 tokens per second)
       eval time =    5000.00 ms /   100 tokens (   50.00 ms per token,    20.00 tokens per second)
      total time =   15000.00 ms /  1100 tokens
"""
VLLM_LINES = "\n".join(
    f"INFO 07-28 06:40:59 [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: "
    f"{rate} tokens/s, Running: {users} reqs, Waiting: 0 reqs, GPU KV cache usage: 91.2%"
    for rate, users in ((100.0, 8), (240.0, 8), (250.0, 8), (60.0, 2), (0.0, 0))
)
SGLANG_LINES = (
    "[2026-09-12 00:30:00 TP0] Decode batch, #running-req: 8, #token: 4000, token usage: 0.10, cuda graph: True, "
    "gen throughput (token/s): 300.50, #queue-req: 0"
)
TORCH = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB. GPU 3 has a total capacity of "
    "139.80 GiB of which 1.02 GiB is free. Including non-PyTorch memory, this process has 138.77 GiB memory in use."
)


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        (VLLM_THROUGHPUT, "vllm bench throughput",
         {"num_requests": 1000, "concurrency": 1000, "input_tokens": 256, "output_tokens": 256, "wall_s": 50,
          "output_tokens_per_s": 5120, "total_tokens_per_s": 10240}),
        ({"elapsed_time": 50.0, "num_requests": 1000, "total_num_tokens": 512000, "requests_per_second": 20.0,
          "tokens_per_second": 10240.0}, "vllm bench throughput",
         {"num_requests": 1000, "total_tokens_per_s": 10240, "wall_s": 50}),
        (VLLM_LATENCY, "vllm bench latency", {"e2e_mean_ms": 2500, "e2e_p99_ms": 2600}),
        ("Avg latency: 2.5 seconds\n10% percentile latency: 2.4 seconds\n99% percentile latency: 2.6 seconds\n",
         "vllm bench latency", {"e2e_mean_ms": 2500, "e2e_p99_ms": 2600}),
        (TRTLLM, "trtllm-bench",
         {"engine": "trtllm", "engine_version": "1.2.0", "model": "deepseek-ai/DeepSeek-R1", "weights": "NVFP4",
          "kv_cache": "FP8", "tp": 8, "ep": 8, "concurrency": 2767.12, "input_tokens": 1024, "output_tokens": 2048,
          "output_tokens_per_s": 42949.1, "ttft_mean_ms": 3021.1, "tpot_mean_ms": 61.1, "wall_s": 143.053}),
        (LLMPERF, "llmperf",
         {"concurrency": 8, "input_tokens": 1024, "output_tokens": 256, "ttft_mean_ms": 312, "ttft_p50_ms": 298,
          "tpot_incl_ttft_mean_ms": 28.1, "output_tokens_per_s": 268.2}),
        *((result, "evalscope perf",
           {"concurrency": 16, "num_requests": 64, "input_tokens": 1024, "output_tokens": 1024, "ttft_mean_ms": 420,
            "tpot_mean_ms": 21.2, "e2e_mean_ms": 22100, "output_tokens_per_s": 713.1, "wall_s": 91.9})
          for result in (EVALSCOPE_OLD, EVALSCOPE)),
        (INFERENCE_PERF, "inference-perf",
         {"num_requests": 64, "request_rate_per_s": 2, "input_tokens": 1024, "output_tokens": 256, "ttft_mean_ms": 300,
          "tpot_mean_ms": 28, "itl_p99_ms": 200, "output_tokens_per_s": 500}),
        (ONE_BATCH_SERVER, "sglang bench_one_batch",
         {"phase": "decode", "concurrency": 16, "tpot_mean_ms": 20, "output_tokens_per_s": 800}),
        (ONE_BATCH, "sglang bench_one_batch",
         {"phase": "decode", "concurrency": 16, "tpot_mean_ms": 20, "output_tokens_per_s": 800}),
        (ONE_BATCH_FIRST, "sglang bench_one_batch",
         {"phase": "serving", "concurrency": 16, "e2e_mean_ms": 800, "output_tokens_per_s": 160}),
        (SWEEP, "vllm bench sweep csv",
         {"checkpoint": "Qwen/Qwen3-32B", "concurrency": 16, "input_tokens": 1024, "output_tokens": 512,
          "output_tokens_per_s": 1701, "tpot_mean_ms": 9.1, "ttft_mean_ms": 210}),
        (MLX_BENCHMARK, "mlx_lm.benchmark",
         {"phase": "decode", "concurrency": 4, "input_tokens": 4096, "output_tokens_per_s": 200, "tpot_mean_ms": 20}),
        (MLX_GENERATE, "mlx_lm.generate", {"phase": "decode", "input_tokens": 512, "tpot_mean_ms": 20}),
        (OLLAMA, "ollama --verbose",
         {"engine": "llama.cpp", "backend": "ollama", "input_tokens": 1024, "output_tokens": 512, "tpot_mean_ms": 25}),
        (TIMINGS, "llama-server timings", {"input_tokens": 1000, "output_tokens": 100, "tpot_mean_ms": 50}),
        # the most frequent number of running requests, and the median of its lines
        (VLLM_LINES, "throughput lines of an engine",
         {"engine": "vllm", "concurrency": 8, "output_tokens_per_s": 240}),
        (SGLANG_LINES, "throughput lines of an engine",
         {"engine": "sglang", "concurrency": 8, "output_tokens_per_s": 300.5}),
    ],
)  # fmt: skip
def test_a_result_gives_the_columns_of_a_run(text, kind, expected):
    found = import_text(text if isinstance(text, str) else json.dumps(text))
    assert (found.kind, found.problems) == (kind, [])
    row = found.rows[0]
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_every_run_of_a_sweep_is_a_row():
    assert [row["tpot_mean_ms"] for row in import_text(SWEEP).rows] == [9.1, 12.0]


def test_cached_prompts_state_no_prefill_speed():
    found = import_text(json.dumps(ONE_BATCH_SERVER | {"cache_hit_rate": 0.4}))
    assert [row["phase"] for row in found.rows] == ["decode"] and "40% of the prompts cached" in found.rows[0]["notes"]


@pytest.mark.parametrize(
    ("text", "speed"),
    [(json.dumps(ONE_BATCH_SERVER), 16 * 1024 / 0.6), (MLX_BENCHMARK, 1013.6), (MLX_GENERATE, 812.113),
     (OLLAMA, 914.29), (TIMINGS, 100.0)],
)  # fmt: skip
def test_prompts_are_a_run_of_their_own(text, speed):
    row = import_text(text).rows[1]
    assert row["phase"] == "prefill" and row["prefill_tokens_per_s"] == pytest.approx(speed, rel=1e-4)


def test_several_timings_give_their_medians():
    slower = TIMINGS.replace("5000.00 ms", "9000.00 ms")
    row = import_text(TIMINGS + TIMINGS + slower).rows[0]
    assert row["tpot_mean_ms"] == 50


def test_a_start_up_log_with_throughput_lines_stays_one():
    log = "INFO 08-04 09:15:17 [kv_cache_utils.py:2146] GPU KV cache size: 1,009,661 tokens\n"
    assert import_text(log + VLLM_LINES).kind == "vllm startup log"


def test_the_log_of_a_server_that_has_answered_stays_a_start_up_log():
    """Its timings are of requests that ran together or alone, which they do not say."""
    log = "load_tensors:   CPU_Mapped model buffer size =  4437.80 MiB\nllama_context: n_ctx_per_seq = 4096\n"
    found = import_text(log + TIMINGS)
    assert found.kind == "llama.cpp startup log"
    assert found.logged.weights == pytest.approx(4437.8 * 2**20)


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        (TORCH, ("2.31 GiB", "1.02 GiB", "139.80 GiB", "GPU 3")),
        ("ggml_backend_cuda_buffer_type_alloc_buffer: allocating 2048.00 MiB on device 1: cudaMalloc failed: out of "
         "memory", ("2048.00 MiB", "device 1", "--n-cpu-moe")),
        ("(62.00 GiB KV cache is needed, which is larger than the available KV cache memory (48.66 GiB). Based on the "
         "available memory, the estimated maximum model length is 205728.",
         ("62.00 GiB", "48.66 GiB", "205,728", "--max-model-len")),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
         ("--gpu-memory-utilization",)),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", ("--mem-fraction-static",)),
    ],
)  # fmt: skip
def test_a_message_of_missing_memory_tells_the_amounts_and_the_change(text, amounts):
    with pytest.raises(SpecError, match="missing memory") as caught:
        import_text(text)
    assert all(amount in str(caught.value) for amount in amounts)
    assert out_of_memory("all is well") == ""


def test_a_log_that_ends_with_missing_memory_says_so():
    log = (
        "INFO 02-08 10:00:00 [core.py:97] Initializing a V1 LLM engine (v0.15.1) with config: model='Qwen/Qwen3-32B', "
        "max_seq_len=262144, tensor_parallel_size=1\n"
        "INFO 02-08 10:05:00 [gpu_worker.py:358] Available KV cache memory: 48.66 GiB\n"
        "ValueError: (62.00 GiB KV cache is needed, which is larger than the available KV cache memory (48.66 GiB)."
    )
    found = import_text(log)
    assert [problem.field for problem in found.problems if "62.00 GiB" in problem.message] == ["memory"]


def test_the_refusal_shows_a_table_that_is_read(tmp_path):
    with pytest.raises(SpecError, match="no kind that glmplan reads") as caught:
        import_text('{"metrics": {"http_reqs": {"rate": 3.41}}}')
    header, row = str(caught.value).splitlines()[-2:]
    table = tmp_path / "runs.csv"
    table.write_text(f"{header}\n{row}\n")
    runs = read_runs(table)
    assert [(run.model, run.tp, run.observed["tpot_mean_ms"]) for run in runs] == [("qwen3-32b", 2, 21.4)]
    assert table_csv([]).startswith("id,model,accelerator")


BLOCK = """============ Serving Benchmark Result ============
Successful requests:                     80
Benchmark duration (s):                  20.00
Total input tokens:                      8000
Total generated tokens:                  4000
Output token throughput (tok/s):         200.00
Mean TTFT (ms):                          100.0
"""


@pytest.mark.parametrize(("more", "client"), [("", "vllm bench serve"), ("Backend: sglang\n", "sglang bench_serving")])
def test_a_pasted_block_names_the_client_that_printed_it(more, client):
    head, _, rest = BLOCK.partition("\n")
    assert import_text(f"{head}\n{more}{rest}").rows[0]["notes"].startswith(client)


def test_a_log_that_names_model_and_release_only_in_its_arguments_is_understood():
    log = (
        "(APIServer pid=1) INFO 05-06 07:55:02 [utils.py:299]  version 0.21.0\n"
        "(APIServer pid=1) INFO 05-06 07:55:02 [utils.py:233] non-default args: {'model_tag': 'google/gemma-4-31B-it', "
        "'model': 'google/gemma-4-31B-it', 'max_model_len': 32768, 'tensor_parallel_size': 1}\n"
        "(EngineCore pid=202) INFO 05-06 07:59:17 [kv_cache_utils.py:1710] GPU KV cache size: 193,624 tokens\n"
    )
    row = import_text(log).rows[0]
    assert (row["checkpoint"], row["engine_version"]) == ("google/gemma-4-31B-it", "0.21.0")
