"""Startup logs of vLLM, SGLang, TensorRT-LLM and llama.cpp: lines written after the formats of the engines."""

# ruff: noqa: E501 (lines as long as the engines write them)
from dataclasses import replace
from pathlib import Path

import pytest

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.models import load_model
from glmplan.io.runs.importers import import_file, import_text
from glmplan.io.runs.importers.startup_logs import StartupLog
from glmplan.measure.memory_comparison import beside, predict_startup
from glmplan.prediction.start_memory import Span, StartMemory, predict_start

SHARED = Path(__file__).parents[3].parent / "shared"
GIB = 2.0**30

VLLM = """(APIServer pid=1) INFO 01-01 00:00:00 [api_server.py:1] vLLM API server version 0.11.0
(EngineCore_0 pid=9) INFO 01-01 00:00:00 [core.py:1] Initializing a V1 LLM engine (v0.11.0) with config: model='some/Model-FP8', speculative_config=None, dtype=torch.bfloat16, max_seq_len=32768, tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=1, quantization=fp8, kv_cache_dtype=auto,
(Worker_TP0 pid=1) (Worker_TP1 pid=2) INFO 01-01 00:00:00 [cuda.py:1] Using Flash Attention backend on V1 engine.
(Worker_TP0 pid=1) INFO 01-01 00:00:00 [gpu_model_runner.py:1] Model loading took 20.50 GiB and 9.1 seconds
(Worker_TP1 pid=2) INFO 01-01 00:00:00 [gpu_model_runner.py:1] Model loading took 20.75 GiB and 9.2 seconds
(Worker_TP0 pid=1) INFO 01-01 00:00:00 [gpu_worker.py:1] Available KV cache memory: 40.25 GiB
(Worker_TP1 pid=2) INFO 01-01 00:00:00 [gpu_worker.py:1] Available KV cache memory: 40.00 GiB
(EngineCore_0 pid=9) INFO 01-01 00:00:00 [kv_cache_utils.py:1] GPU KV cache size: 655,360 tokens
(EngineCore_0 pid=9) INFO 01-01 00:00:00 [kv_cache_utils.py:1] Maximum concurrency for 32,768 tokens per request: 20.00x
(Worker_TP0 pid=1) INFO 01-01 00:00:00 [gpu_model_runner.py:1] Graph capturing finished in 20 secs, took 1.50 GiB
"""

SGLANG = """[2026-01-01 00:00:00] server_args=ServerArgs(model_path='some/Model', tp_size=8, dp_size=4, ep_size=1, pp_size=1, enable_dp_attention=True, mem_fraction_static=0.88, chunked_prefill_size=8192, attention_backend='fa3', kv_cache_dtype='auto', quantization='fp8', speculative_algorithm=None)
[2026-01-01 00:00:10 TP0] Load weight end. type=X, dtype=torch.bfloat16, avail mem=20.50 GB, mem usage=58.25 GB.
[2026-01-01 00:00:10 TP1] Load weight end. type=X, dtype=torch.bfloat16, avail mem=20.50 GB, mem usage=58.00 GB.
[2026-01-01 00:00:11 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 400000, K size: 8.00 GB, V size: 8.00 GB
[2026-01-01 00:00:12 TP0] Capture cuda graph end. Time elapsed: 3.0 s. mem usage=1.25 GB. avail mem=2.00 GB.
[2026-01-01 00:00:12 TP0] max_total_num_tokens=400000, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=131072
"""

LLAMACPP = """ggml_cuda_init: found 2 CUDA devices:
  Device 0: NVIDIA GeForce RTX 3090, compute capability 8.6, VMM: yes
build: 6900 (abcdef0) with cc
print_info: file type   = Q4_K - Medium
print_info: general.name     = Some Model
load_tensors:   CPU_Mapped model buffer size =   300.00 MiB
load_tensors:        CUDA0 model buffer size =  7000.00 MiB
load_tensors:        CUDA1 model buffer size =  6000.00 MiB
llama_context: n_seq_max     = 4
llama_context: n_ctx         = 8192
llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB
llama_kv_cache: size = 1024.00 MiB (  8192 cells,  32 layers,  4/1 seqs), K (f16):  512.00 MiB, V (f16):  512.00 MiB
llama_context:      CUDA0 compute buffer size =   560.00 MiB
"""


def test_vllm_takes_the_fullest_rank_and_the_poorest_pool():
    found = import_text(VLLM)
    log = found.logged
    assert found.kind == "vllm startup log" and not found.problems
    assert (log.version, log.model, log.quantization) == ("0.11.0", "some/Model-FP8", "fp8")
    assert log.weights == 20.75 * GIB and log.kv_pool == 40.0 * GIB and log.graphs == 1.5 * GIB
    assert (log.tp, log.pp, log.kv_tokens, log.max_concurrency) == (2, 1, 655360, 20)
    assert log.lines["weights"] == 5 and log.lines["kv_tokens"] == 8
    assert log.attention_backend == "Flash Attention"
    row = found.rows[0]
    assert row["phase"] == "memory" and row["accelerator_count"] == 2 and row["weights_gib_per_accelerator"] == 20.75


def test_old_vllm_prints_gib_as_gb_and_counts_blocks():
    old = """INFO gpu_worker.py Loading model weights took 14.9888 GB
INFO worker.py total_gpu_memory (79.10GiB) x gpu_memory_utilization (0.90) = 71.19GiB PyTorch activation peak memory takes 1.20GiB; the rest of the memory reserved for KV Cache is 54.86GiB.
INFO executor.py # GPU blocks: 27000, # CPU blocks: 2048
"""
    log = import_text(old).logged
    assert log.weights == pytest.approx(14.9888 * GIB) and log.activations == 1.2 * GIB
    assert log.kv_pool == 54.86 * GIB and log.kv_tokens == 27000 * 16 and log.memory_utilization == 0.9


def test_vllm_on_a_processor_is_told_its_pool():
    text = """(EngineCore pid=1) INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='m', dtype=torch.bfloat16, max_seq_len=2048, quantization=None,
(Worker pid=2) INFO [cpu_worker.py:260] Explicitly set (1.0/9.96) GiB for KV cache on node 0.
(EngineCore pid=1) INFO [kv_cache_utils.py:2327] CPU KV cache size: 65,536 tokens, Maximum concurrency for 2,048 tokens per request: 32.00x
"""
    found = import_text(text)
    log = found.logged
    assert (log.kv_pool, log.kv_tokens, log.max_concurrency) == (GIB, 65536, 32)
    assert found.rows[0]["weights"] == "bf16" and found.problems[0].field == "weights"


def test_sglang_prints_gib_as_gb_and_counts_dp_attention_in_tp():
    found = import_text(SGLANG)
    log = found.logged
    assert found.kind == "sglang startup log" and not found.problems
    assert log.weights == 58.25 * GIB and log.kv_pool == 16 * GIB and log.graphs == 1.25 * GIB
    assert (log.tp, log.dp, found.rows[0]["accelerator_count"]) == (2, 4, 8)
    assert (log.attention_backend, log.kv_cache, log.speculative) == ("fa3", "bfloat16", None)
    assert log.max_concurrency == pytest.approx(400000 / 131072)


def test_sglang_latent_caches_have_one_size():
    log = import_text("KV Cache is allocated. #tokens: 425984, KV size: 22.36 GB\nmax_total_num_tokens=425984").logged
    assert log.kv_pool == pytest.approx(22.36 * GIB) and log.kv_tokens == 425984


#: lines of a public log of 1.1.0rc3, gpt-oss-120b on a DGX Spark
TRTLLM = """[TensorRT-LLM] TensorRT-LLM version: 1.1.0rc3
/models/hub/models--openai--gpt-oss-120b/snapshots/b5c939de8f754692c1647ca79fbf85e8c1e70f8a
[12/20/2025-04:20:19] [TRT-LLM] [I] PyTorchConfig(use_cuda_graph=True, attn_backend='TRTLLM', moe_backend='CUTLASS', kv_cache_dtype='auto')
[12/20/2025-04:20:21] [TRT-LLM] [I] Use 63.32 GB for model weights.
[12/20/2025-04:21:09] [TRT-LLM] [I] max_seq_len is not specified, using inferred value 131072
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 0.56 GiB for max tokens in paged KV cache (8224).
[12/20/2025-04:21:10] [TRT-LLM] [I] max_seq_len=8224, max_num_requests=64, max_num_tokens=8192, max_batch_size=64
[12/20/2025-04:21:50] [TRT-LLM] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 63.52 GiB
[12/20/2025-04:21:50] [TRT-LLM] [I] Memory used after loading model weights (outside torch) in memory usage profiling: 49.78 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Memory dynamically allocated during inference (inside torch) in memory usage profiling: 0.85 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Memory used outside torch (e.g., NCCL and CUDA graphs) in memory usage profiling: 49.28 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Peak memory during memory usage profiling (torch + non-torch): 113.65 GiB, available KV cache memory when calculating max tokens: 5.95 GiB, fraction is set 0.8999999761581421, kv size is 73728. device total memory 119.70 GiB, , tmp kv_mem 0.56 GiB
[12/20/2025-04:21:51] [TRT-LLM] [I] Estimated max memory in KV cache : 5.95 GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86720).
"""


#: written after the format of SGLang 0.5: the pool of an MTP draft follows that of the model, on each rank
_DRAFTED = """[2026-09-12 00:00:08] server_args=ServerArgs(model_path='/models/Qwen3.6-27B-NVFP4', tp_size=2, dp_size=1, kv_cache_dtype='auto', speculative_algorithm='EAGLE')
[2026-09-12 00:00:48 TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 450000, K size: 3.50 GB, V size: 3.50 GB
[2026-09-12 00:00:48 TP1] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 450000, K size: 3.25 GB, V size: 3.25 GB
[2026-09-12 00:00:48 TP1] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 450000, K size: 1.00 GB, V size: 1.00 GB
[2026-09-12 00:00:48 TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 450000, K size: 1.00 GB, V size: 1.00 GB
[2026-09-12 00:00:51 TP0] max_total_num_tokens=450000, context_len=262144"""


def test_sglang_keeps_the_pool_of_a_draft_model_apart():
    log = import_text(_DRAFTED).logged
    assert (log.kv_pool / GIB, log.draft_pool / GIB, log.kv_tokens) == (6.5, 2.0, 450000)
    # without drafting a second line of a rank is no draft
    log = import_text(_DRAFTED.replace(", speculative_algorithm='EAGLE'", "")).logged
    assert (log.kv_pool / GIB, log.draft_pool) == (2.0, None)


def test_a_cache_format_of_torch_is_a_cache_format():
    found = predict_startup(import_text(_DRAFTED).logged, on="2xrtx-5090")
    assert not found.why_not and any("KV cache fp8" in one for one in found.notes)
    drafted = next(one for one in found.lines if one.what == "KV pool of the draft model")
    assert drafted.logged == 2.0 and drafted.predicted is None


@pytest.mark.parametrize(
    ("said", "model"),
    [
        ("/models/models--Qwen--Qwen3-8B/snapshots/7872f01b1d1fe23eabc4c98b48bffcef5a386062", "Qwen/Qwen3-8B"),
        ("/data/huggingface/hub/models--zai-org--GLM-5.1-FP8", "zai-org/GLM-5.1-FP8"),
        ("/models/Qwen3-8B", "/models/Qwen3-8B"),
    ],
)
def test_a_folder_of_the_hub_cache_names_its_repository(said, model):
    log = import_text(VLLM.replace("some/Model-FP8", said)).logged
    assert log.model == model


def test_trtllm_counts_the_pool_that_follows_the_trial_and_not_the_small_one_of_the_trial():
    found = import_text(TRTLLM)
    log = found.logged
    assert found.kind == "trtllm startup log" and not found.problems
    assert (log.version, log.model, log.attention_backend, log.moe_backend) == (
        "1.1.0rc3", "openai/gpt-oss-120b", "TRTLLM", "CUTLASS",
    )  # fmt: skip
    assert (log.kv_tokens, log.kv_pool, log.weights) == (86720, 5.95 * GIB, 63.32 * GIB)
    assert log.outside_torch == pytest.approx((49.28 - 0.56) * GIB) and log.activations == 0.85 * GIB
    assert (log.max_sequences, log.max_batched_tokens, log.max_context, log.total) == (64, 8192, 131072, 119.7 * GIB)
    assert log.memory_utilization == pytest.approx(0.9)
    row = found.rows[0]
    assert (row["engine"], row["max_num_seqs"], row["weights_gib_per_accelerator"]) == ("trtllm", 64, 63.32)


def test_trtllm_of_several_ranks_has_the_pool_of_the_poorest_and_words_of_newer_versions():
    text = """[TensorRT-LLM] TensorRT LLM version: 1.2.1
[09/11/2026-08:00:02] [TRT-LLM] [I] LLM Args: model='nvidia/Some-FP4', tensor_parallel_size=4, pipeline_parallel_size=2, moe_expert_parallel_size=4, max_batch_size=256, max_num_tokens=4096, quant_algo=<QuantAlgo.NVFP4: 'NVFP4'>, kv_cache_quant_algo=<QuantAlgo.FP8: 'FP8'>
[09/11/2026-08:00:03] [TRT-LLM] [RANK 0] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 40.00 GiB
[09/11/2026-08:00:03] [TRT-LLM] [RANK 1] [I] Memory used after loading model weights (inside torch) in memory usage profiling: 41.00 GiB
[09/11/2026-08:00:04] [TRT-LLM] [RANK 0] [I] Peak memory during memory usage profiling (torch + non-torch): 91.46 GiB, available KV cache memory when calculating max tokens: 41.11 GiB, fraction is set 0.85, kv size per token is 35136. device total memory 139.81 GiB, temporary kv cache memory during profiling 0.25 GiB
[09/11/2026-08:00:04] [TRT-LLM] [RANK 0] [I] Estimated max memory in KV cache : 41.11 GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 41.11 GiB for max tokens in paged KV cache (1256288).
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 40.11 GiB for max tokens in paged KV cache (1225728).
"""
    log = import_text(text).logged
    assert (log.tp, log.pp, log.ep, log.max_sequences, log.max_batched_tokens) == (4, 2, 4, 256, 4096)
    assert (log.version, log.model, log.quantization, log.kv_cache) == ("1.2.1", "nvidia/Some-FP4", "nvfp4", "fp8")
    assert (log.weights, log.kv_pool, log.kv_tokens) == (41 * GIB, 40.11 * GIB, 1225728)
    spread = import_text(text.replace("max_batch_size", "enable_attention_dp=True, max_batch_size")).logged
    assert (spread.tp, spread.dp) == (1, 4)


def test_trtllm_of_an_engine_that_was_built_before_says_its_size_and_its_pool():
    log = import_text("""[TensorRT-LLM][INFO] Loaded engine size: 15334 MiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 1.34 GiB for execution context memory.
[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 31.84 GiB, available: 17.83 GiB
[TensorRT-LLM][INFO] [MemUsageChange] Allocated 16.05 GiB for max tokens in paged KV cache (263008)
""").logged
    assert (log.weights, log.activations, log.total) == (15334 * 2**20, 1.34 * GIB, 31.84 * GIB)
    assert (log.kv_pool, log.kv_tokens) == (16.05 * GIB, 263008)


def test_a_share_of_what_is_left_makes_each_part_of_the_pool_a_share_too():
    # the log's own arithmetic: 0.9 x (119.70 - 113.65 + 0.56) = 5.95 GiB
    log = import_text(TRTLLM).logged
    model = load_model("gpt-oss-120b")
    found = predict_start(log, model, model.checkpoint("mxfp4"), load_accelerator("dgx-spark"))
    assert sum(found.parts.values()) == pytest.approx(found.pool.value) and found.left == pytest.approx(0.9)
    assert found.weights.value / GIB == pytest.approx(63.32, abs=0.01)
    assert found.pool.value / found.tokens.value == pytest.approx(73728, rel=1e-3)
    lines = {one.what: one for one in beside(log, found)}
    outside = lines["memory outside torch"]
    assert outside.logged == pytest.approx(48.72)
    missing = 0.9 * (outside.logged - outside.predicted)
    assert f"{missing:+.2f} memory outside torch" in lines["KV pool of a rank"].cause


def test_llamacpp_splits_layers_and_keeps_host_weights_apart():
    found = import_text(LLAMACPP)
    log = found.logged
    assert found.kind == "llama.cpp startup log" and not found.problems
    assert log.weights == 6500 * 2**20 and log.host_weights == 300 * 2**20
    assert (log.kv_tokens, log.kv_pool, log.max_sequences) == (8192, 512 * 2**20, 4)
    assert (log.version, log.model, log.quantization, log.kv_cache) == ("6900", "Some Model", "Q4_K", "f16")
    assert log.accelerator == "NVIDIA GeForce RTX 3090" and log.activations == 560 * 2**20


def test_llamacpp_on_a_processor_has_only_host_buffers():
    log = import_text("load_tensors: CPU model buffer size = 100.00 MiB\nllama_context: n_ctx = 512").logged
    assert log.weights == 100 * 2**20 and log.host_weights is None and log.kv_tokens == 512


def test_a_pass_that_only_tries_what_fits_does_not_count():
    attempt = LLAMACPP.replace("4/1 seqs", "4/4 seqs").replace("1024.00 MiB (  8192 cells", "64.00 MiB (  2048 cells")
    real = LLAMACPP.replace("4/1 seqs", "4/4 seqs").replace("  8192 cells", "  2048 cells")
    log = import_text(attempt + real).logged
    assert (log.kv_tokens, log.kv_pool) == (8192, 512 * 2**20)


def test_a_log_that_ends_early_says_what_is_missing():
    found = import_text("\n".join(VLLM.splitlines()[:5]))
    assert found.rows[0]["weights_gib_per_accelerator"] == 20.75
    assert [problem.field for problem in found.problems] == ["kv_tokens"]


TRIAL_RUN = (
    VLLM
    + """(Worker_TP0 pid=1) INFO [gpu_model_runner.py:1] Estimated CUDA graph memory: 0.75 GiB total
(Worker_TP0 pid=1) INFO [gpu_worker.py:1] Free memory on device cuda:0 (78.66/79.19 GiB) on startup. Desired GPU memory utilization is (0.9, 71.27 GiB). Actual usage is 14.08 GiB for weight, 1.97 GiB for peak activation, 0.07 GiB for non-torch memory, and 0.67 GiB for CUDAGraph memory.
"""
)


def test_what_the_trial_run_took_is_read():
    log = import_text(TRIAL_RUN).logged
    found = (log.activations, log.outside_torch, log.graph_estimate, log.total)
    assert found == tuple(size * GIB for size in (1.97, 0.07, 0.75, 79.19))


@pytest.mark.parametrize(("said", "taken"), [("enabled (default since v0.21.0).", True), ("disabled (VLLM_", False)])
def test_a_log_says_whether_its_estimate_of_graphs_is_taken_from_the_pool(said, taken):
    # builds between releases carry the number of the release before
    log = import_text(
        TRIAL_RUN + f"(Worker pid=1) INFO [gpu_worker.py:455] CUDA graph memory profiling is {said}"
    ).logged
    assert log.graphs_taken is taken
    assert import_text(TRIAL_RUN).logged.graphs_taken is None
    llama = load_model("llama-3.1-8b")
    for version in ("0.19.0", "0.22.0"):
        told = replace(log, version=version, memory_utilization=0.9)
        found = predict_start(told, llama, llama.checkpoint("bf16"), load_accelerator("h100-sxm"))
        assert (found.parts["graph_estimate"] < 0.0) is taken


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        (VLLM, None),
        (VLLM + "INFO [utils.py:228] non-default args: {'max_num_seqs': 24, 'mm_encoder_tp_mode': 'data'}\n", True),
        (VLLM + "args: Namespace(subparser='serve', mm_encoder_tp_mode='weights', seed=None)\n", False),
        (VLLM + "+ vllm serve a --mm-encoder-tp-mode data\nWARNING This model does not support "
                "`--mm-encoder-tp-mode data`. Falling back to `--mm-encoder-tp-mode weights`.\n", False),
        (SGLANG, None),
        (SGLANG + "server_args=ServerArgs(model_path='a', mm_enable_dp_encoder=True)\n", True),
    ],
)  # fmt: skip
def test_a_log_says_whether_every_rank_holds_the_whole_image_tower(text, whole):
    assert import_text(text).logged.whole_tower is whole


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_server_started_with_a_whole_tower_on_each_rank_is_predicted_so(engine):
    kimi, part = load_model("kimi-k2.6"), load_accelerator("h200-sxm")
    log = StartupLog(engine, tp=8, memory_utilization=0.9, lines={"weights": 1}, weights=70 * GIB)
    divided, whole = (
        predict_start(replace(log, whole_tower=told), kimi, kimi.checkpoint("int4"), part) for told in (None, True)
    )
    more = (kimi.extra_parameters - kimi.extra_replicated) * 2 * 7 / 8
    assert whole.weights.value - divided.weights.value == pytest.approx(more, rel=1e-9)
    assert divided.pool.value - whole.pool.value == pytest.approx(more, rel=0.15)
    told = next(one for one in beside(replace(log, whole_tower=True), whole) if one.what == "weights on a rank")
    assert "whole image encoder" in told.cause
    # a model of words alone has none
    llama = load_model("llama-3.1-8b")
    both = [
        predict_start(replace(log, whole_tower=told), llama, llama.checkpoint("bf16"), part) for told in (None, True)
    ]
    assert both[0].weights == both[1].weights and both[0].pool == both[1].pool


def test_a_cache_of_llamacpp_is_as_large_as_the_launch_asks_for():
    llama = load_model("llama-3.1-8b")
    log = StartupLog("llama.cpp", version="b6900", pp=2, max_context=8192.0, cells=8192.0, max_sequences=4.0)
    told = predict_start(log, llama, llama.checkpoint("q4_k_m"), load_accelerator("rtx-3090"))
    assert told.tokens == Span(8192, 8192, 8192) and told.pool is not None
    assert told.pool.value == told.pool.low == told.pool.high == 8192 * 17 * 4096  # layers of the first card
    causes = {line.what: line.cause for line in beside(replace(log, kv_pool=2.0**29, kv_tokens=8192.0), told)}
    assert causes["KV pool of a rank"] == "+0.03 GiB: the launch requests 8,192 tokens"
    assert causes["KV pool"] == "the size requested at launch"
    vast = replace(log, cells=1e9)
    most = predict_start(vast, llama, llama.checkpoint("q4_k_m"), load_accelerator("rtx-3090"))
    assert most.tokens is not None and most.tokens.low < most.tokens.value < most.tokens.high < 1e9


def test_a_model_that_a_file_names_in_words_is_found():
    text = LLAMACPP.replace("Some Model", "Qwen3 30B A3B Instruct 2507")
    found = predict_startup(import_text(text).logged, on="2xrtx-3090")
    assert not found.why_not and any("qwen3-30b-a3b" in line for line in found.notes)


def test_the_difference_of_a_pool_is_the_sum_of_its_parts():
    log = import_text(TRIAL_RUN).logged
    log.kv_pool, log.weights, log.memory_utilization = 50.0 * GIB, 20.0 * GIB, 0.9
    parts = {"share": 71.0, "weights": -19.5, "activations": -2.0, "outside_torch": -0.1, "graph_estimate": -0.75}
    sizes = {name: size * GIB for name, size in parts.items()}
    pool = sum(sizes.values())
    weights = Span(19.5 * GIB, 19 * GIB, 20 * GIB)
    found = StartMemory("bf16", weights, 2 * GIB, Span(pool, pool, pool), parts=sizes | {"rest": 0.0})
    line = next(one for one in beside(log, found) if one.what == "KV pool of a rank")
    total, _, named = line.cause.partition(" GiB: ")
    assert float(total) == pytest.approx(pool / GIB - 50.0, abs=0.005)
    assert sum(float(one.split()[0]) for one in named.split(", ")) == pytest.approx(float(total), abs=0.03)
    assert "+0.50 weights" in named and "-0.27 memory of the accelerator" in named


def test_predicted_and_logged_stand_side_by_side():
    half = 2.0**29
    found = StartMemory("bf16", Span(40 * half, 39 * half, 41 * half), half, tokens=Span(655360 * 1.1, 6e5, 8e5))
    lines = {line.what: line for line in beside(import_text(VLLM).logged, found)}
    assert lines["KV pool"].difference == pytest.approx(0.1)
    assert lines["KV pool of a rank"].predicted is None and lines["KV pool of a rank"].difference is None
    assert lines["KV cache of a token on a rank"].logged == pytest.approx(40 * GIB / 655360)


@pytest.mark.skipif(not SHARED.exists(), reason="the real log is not at hand")
def test_the_real_log_of_eight_cards_is_read():
    (file,) = (SHARED / "samples" / "engine-logs").glob("vllm-0.20_glm-5.1*.log")
    log = import_file(file).logged
    assert (log.weights, log.kv_pool, log.graphs) == (55.67 * GIB, 19.55 * GIB, 1.22 * GIB)
    assert (log.kv_tokens, log.tp, log.kv_cache, log.max_concurrency) == (341504, 8, "fp8_ds_mla", 1.68)
    assert (log.attention_backend, log.moe_backend) == ("B12X_MLA_SPARSE", "B12X")
