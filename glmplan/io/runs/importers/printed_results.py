"""Import what benchmark commands and clients print or save in short.

`vllm bench throughput` and `latency` (vllm/benchmarks/*.py), SGLang's `bench_one_batch` and `bench_one_batch_server`,
`trtllm-bench` (tensorrt_llm/bench/dataclasses/reporting.py), EvalScope perf (1.14.1, perf/utils/perf_constants.py),
LLMPerf (token_benchmark_ray.py), `mlx_lm.benchmark` and `mlx_lm.generate` (0.32.2), `ollama run --verbose`, timings of
llama-server (tools/server/server-context.cpp), and the throughput that vLLM and SGLang log while they serve.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from glmplan.io.runs.importers.record import (
    BadRecord,
    Fields,
    Imported,
    Importer,
    Problem,
    Source,
    by_keys,
    by_text,
    few_requests,
    milliseconds,
    notes,
    row_identifier,
)

__all__ = ["ENGINE_LINES", "IMPORTERS", "out_of_memory"]

_NUMBER = r"([\d,]+(?:\.\d+)?(?:[eE][+-]?\d+)?)"


def _numbers(text: str, names: Mapping[str, str]) -> dict[str, float]:
    """Return the last number behind each label of a printed report."""
    result = {}
    for key, label in names.items():
        found = re.findall(rf"^\W*{label}\s*:?\s+{_NUMBER}", text, re.MULTILINE)
        if found:
            result[key] = float(found[-1].replace(",", ""))
    return result


def _one(source: Source, row: dict[str, Any] | None, missing: str) -> Imported:
    """Return one run, or the problem that a value is missing."""
    if row is None:
        return Imported("", [], [Problem(0, missing, "expected this value, it is missing")])
    return Imported("", [{"id": row_identifier(source.text, 0), **row}])


KIND_THROUGHPUT = "vllm bench throughput"
_THROUGHPUT = rf"^Throughput: {_NUMBER} requests/s, {_NUMBER} total tokens/s(?:, {_NUMBER} output tokens/s)?"
_ALL_AT_ONCE = "all requests are given at once"


def _throughput_text(source: Source) -> Imported:
    """Read the printed lines; the means of the lengths come from the totals."""
    found = re.findall(_THROUGHPUT, source.text, re.MULTILINE)[-1]
    rate, total, output = (float(item.replace(",", "")) if item else None for item in found)
    sums = _numbers(source.text, {"prompt": "Total num prompt tokens", "output": "Total num output tokens"})
    wall = sums["output"] / output if output and "output" in sums else None
    count = round(rate * wall) if rate and wall else None
    lengths = {f"{ours}_tokens": sums[name] / count for ours, name in (("input", "prompt"), ("output", "output"))
               if count and name in sums}  # fmt: skip
    row = {
        "engine": "vllm", "phase": "serving", "num_requests": count, "concurrency": count, **lengths,
        "output_tokens_per_s": output, "total_tokens_per_s": total, "wall_s": wall,
        "notes": notes(KIND_THROUGHPUT, _ALL_AT_ONCE),
    }  # fmt: skip
    return _one(source, row, "Throughput")


def _throughput_json(fields: Fields) -> Iterator[dict[str, Any]]:
    count = fields.require("num_requests")
    yield {
        "engine": "vllm", "phase": "serving", "num_requests": count, "concurrency": count,
        "total_tokens_per_s": fields.require("tokens_per_second"), "wall_s": fields.require("elapsed_time"),
        "notes": notes(KIND_THROUGHPUT, _ALL_AT_ONCE, "the file states no lengths: set input_tokens and output_tokens"),
    }  # fmt: skip


KIND_LATENCY = "vllm bench latency"
_LATENCY_NOTE = "whole batches: set concurrency, input_tokens and output_tokens"


def _latency_json(fields: Fields) -> Iterator[dict[str, Any]]:
    percentiles = fields.inside("percentiles")
    yield {
        "engine": "vllm", "phase": "serving", "e2e_mean_ms": milliseconds(fields.require("avg_latency")),
        "e2e_p99_ms": milliseconds(percentiles.number("99")), "notes": notes(KIND_LATENCY, _LATENCY_NOTE),
    }  # fmt: skip


def _latency_text(source: Source) -> Imported:
    found = _numbers(source.text, {"mean": "Avg latency", "p99": "99% percentile latency"})
    row = {
        "engine": "vllm", "phase": "serving", "e2e_mean_ms": milliseconds(found.get("mean")),
        "e2e_p99_ms": milliseconds(found.get("p99")), "notes": notes(KIND_LATENCY, _LATENCY_NOTE),
    }  # fmt: skip
    return _one(source, row, "Avg latency")


KIND_ONE_BATCH = "sglang bench_one_batch"


def _one_batch(fields: Fields) -> Iterator[dict[str, Any]]:
    """Return a decode and a prefill run of one batch.

    The server's form has `latency` and `last_ttft`, in its first releases the whole time alone; the engine's has
    `prefill_latency` and the median of the decode steps.
    """
    users, prompt, answer = (fields.require(name) for name in ("batch_size", "input_len", "output_len"))
    first = fields.positive("last_ttft", "ttft", "prefill_latency")
    step = fields.positive("median_decode_latency")
    whole = fields.positive("latency", "total_latency")
    if step is None and whole is not None and first is not None and answer > 1:
        step = (whole - first) / (answer - 1)
    length, cached = fields.number("acc_length"), fields.number("cache_hit_rate") or 0.0
    kept = f"{cached:.0%} of the prompts cached" if cached else ""
    about = {
        "engine": "sglang", "concurrency": users, "num_requests": users, "input_tokens": prompt,
        "notes": notes(KIND_ONE_BATCH, fields.text("run_name"), kept),
    }  # fmt: skip
    if step is not None:
        yield about | {
            "phase": "decode", "output_tokens": answer, "tpot_mean_ms": step * 1e3, "output_tokens_per_s": users / step,
            "acceptance_length": length if length is not None and length > 0 else None, "wall_s": whole,
        }  # fmt: skip
    elif whole is not None and first is None:
        yield about | {"phase": "serving", "output_tokens": answer, "e2e_mean_ms": whole * 1e3,
                       "output_tokens_per_s": users * answer / whole, "wall_s": whole}  # fmt: skip
    if first is not None and not cached:
        yield about | {"phase": "prefill", "prefill_tokens_per_s": users * prompt / first, "ttft_mean_ms": first * 1e3}


KIND_TRTLLM = "trtllm-bench"
_TRTLLM = {
    "num_requests": "Number of requests", "concurrency": "Number of concurrent requests",
    "input_tokens": r"Average Input Length \(tokens\)", "output_tokens": r"Average Output Length \(tokens\)",
    "tp": "TP Size", "pp": "PP Size", "ep": "EP Size", "output_tokens_per_s": r"Total Output Throughput \(tokens/sec\)",
    "total_tokens_per_s": r"Total Token Throughput \(tokens/sec\)", "wall": r"Total Latency \(ms\)",
    "e2e_mean_ms": r"Average request latency \(ms\)", "ttft_mean_ms": r"Average time-to-first-token \[TTFT\] \(ms\)",
    "tpot_mean_ms": r"Average time-per-output-token \[TPOT\] \(ms\)",
}  # fmt: skip


def _word(text: str, label: str) -> str | None:
    found = re.search(rf"^\W*{label}:\s+(\S+)", text, re.MULTILINE)
    return found[1] if found and found[1] not in ("None", "N/A") else None


def _trtllm(source: Source) -> Imported:
    found = _numbers(source.text, _TRTLLM)
    wall = found.pop("wall", None)
    if "output_tokens_per_s" not in found:
        return _one(source, None, "Total Output Throughput (tokens/sec)")
    row = {
        "engine": "trtllm", "engine_version": _word(source.text, "TensorRT[- ]LLM Version"), "phase": "serving",
        "checkpoint": _word(source.text, "Model"), "weights": _word(source.text, "Quantization"),
        "kv_cache": _word(source.text, "KV Cache Dtype"), **found, "wall_s": wall / 1e3 if wall else None,
        "notes": notes(KIND_TRTLLM, few_requests(found.get("num_requests", 1e9))),
    }  # fmt: skip
    return _one(source, row, "")


KIND_EVALSCOPE = "evalscope perf"
#: column → names in a summary, of releases to 1.3 and from then on; seconds where the name says so
_EVALSCOPE = {
    "concurrency": ("Concurrency", "Number of concurrency"),
    "num_requests": ("Total Requests", "Total requests"),
    "input_tokens": ("Avg Input Tokens", "Average input tokens per request"),
    "output_tokens": ("Avg Output Tokens", "Average output tokens per request"),
    "output_tokens_per_s": ("Output Throughput (tok/s)", "Output token throughput (tok/s)"),
    "total_tokens_per_s": ("Total Throughput (tok/s)", "Total token throughput (tok/s)"),
    "wall_s": ("Test Duration (s)", "Time taken for tests (s)"),
    "ttft_mean_ms": ("Avg TTFT (ms)", "Average time to first token (s)"),
    "tpot_mean_ms": ("Avg TPOT (ms)", "Average time per output token (s)"),
    "itl_mean_ms": ("Avg ITL (ms)", "Average inter-token latency (s)"),
    "e2e_mean_ms": ("Avg Latency (s)", "Average latency (s)"),
}


def _evalscope(fields: Fields) -> Iterator[dict[str, Any]]:
    row: dict[str, Any] = {}
    for column, names in _EVALSCOPE.items():
        for name in names:
            value = fields.number(name)
            if value is not None:
                row[column] = value * (1e3 if column.endswith("_ms") and name.endswith("(s)") else 1.0)
                break
    if "output_tokens_per_s" not in row:
        raise BadRecord(Problem(fields.line, _EVALSCOPE["output_tokens_per_s"][0], "expected a number, it is missing"))
    lost = fields.number("Failed Requests") or fields.number("Failed requests") or 0
    row["request_rate_per_s"] = fields.rate("Request Rate (req/s)")
    yield {"phase": "serving", **row, "notes": notes(KIND_EVALSCOPE, f"{lost:.0f} failed" if lost else "")}


KIND_LLMPERF = "llmperf"


def _llmperf(fields: Fields) -> Iterator[dict[str, Any]]:
    """Return the summary of LLMPerf.

    Its inter-token latency is the whole time over the output tokens, with the TTFT.
    """
    count = fields.number("results_num_completed_requests")
    yield {
        "phase": "serving", "checkpoint": fields.text("model"), "concurrency": fields.number("num_concurrent_requests"),
        "num_requests": count, "input_tokens": fields.number("results_number_input_tokens_mean")
        or fields.number("mean_input_tokens"), "output_tokens": fields.number("results_number_output_tokens_mean")
        or fields.number("mean_output_tokens"),
        "output_tokens_per_s": fields.require("results_mean_output_throughput_token_per_s"),
        "ttft_mean_ms": milliseconds(fields.number("results_ttft_s_mean")),
        "ttft_p50_ms": milliseconds(fields.number("results_ttft_s_quantiles_p50")),
        "ttft_p99_ms": milliseconds(fields.number("results_ttft_s_quantiles_p99")),
        "tpot_incl_ttft_mean_ms": milliseconds(fields.number("results_inter_token_latency_s_mean")),
        "e2e_mean_ms": milliseconds(fields.number("results_end_to_end_latency_s_mean")),
        "e2e_p99_ms": milliseconds(fields.number("results_end_to_end_latency_s_quantiles_p99")),
        "notes": notes(KIND_LLMPERF, "time between tokens includes TTFT", few_requests(count or 1e9)),
    }  # fmt: skip


def _two_phases(
    source: Source, kind: str, engine: str, prompt: tuple[float | None, float | None],
    answer: tuple[float | None, float | None], users: float = 1.0,
) -> Imported:  # fmt: skip
    """Return a decode and a prefill run of tokens and rates."""
    about = {"engine": engine, "concurrency": users, "num_requests": users, "input_tokens": prompt[0],
             "notes": kind}  # fmt: skip
    rows: list[dict[str, Any]] = []
    if answer[1]:
        rows.append(about | {
            "phase": "decode", "output_tokens": answer[0], "output_tokens_per_s": answer[1],
            "tpot_mean_ms": 1e3 * users / answer[1],
        })  # fmt: skip
    if prompt[1]:
        rows.append(about | {"phase": "prefill", "prefill_tokens_per_s": prompt[1]})
    return Imported("", [{"id": row_identifier(source.text, at), **row} for at, row in enumerate(rows)])


KIND_MLX_BENCHMARK, KIND_MLX_GENERATE = "mlx_lm.benchmark", "mlx_lm.generate"
_MLX_BATCH = r"prompt_tokens=(\d+), generation_tokens=(\d+), batch_size=(\d+)"
_MLX_MEAN = rf"^Averages: prompt_tps={_NUMBER}, generation_tps={_NUMBER}"


def _mlx_benchmark(source: Source) -> Imported:
    sizes, mean = re.search(_MLX_BATCH, source.text), re.search(_MLX_MEAN, source.text, re.MULTILINE)
    prompt, answer, users = (float(item) for item in sizes.groups()) if sizes else (None, None, 1.0)
    rates = [float(item.replace(",", "")) for item in mean.groups()] if mean else [None, None]
    return _two_phases(source, KIND_MLX_BENCHMARK, "mlx", (prompt, rates[0]), (answer, rates[1]), users or 1.0)


_MLX_LINE = rf"^{{}}: {_NUMBER} tokens, {_NUMBER} tokens-per-sec"


def _mlx_generate(source: Source) -> Imported:
    pairs: list[tuple[float | None, float | None]] = []
    for name in ("Prompt", "Generation"):
        found = re.search(_MLX_LINE.format(name), source.text, re.MULTILINE)
        pairs.append((float(found[1].replace(",", "")), float(found[2].replace(",", ""))) if found else (None, None))
    return _two_phases(source, KIND_MLX_GENERATE, "mlx", pairs[0], pairs[1])


KIND_OLLAMA = "ollama --verbose"


def _ollama(source: Source) -> Imported:
    found = _numbers(source.text, {
        "prompt": "prompt eval count", "answer": "eval count", "prefill": "prompt eval rate", "decode": "eval rate",
    })  # fmt: skip
    result = _two_phases(source, KIND_OLLAMA, "llama.cpp", (found.get("prompt"), found.get("prefill")),
                         (found.get("answer"), found.get("decode")))  # fmt: skip
    return Imported("", [row | {"backend": "ollama"} for row in result.rows])


KIND_TIMINGS = "llama-server timings"
_TIMING = rf"{{}} time =\s*{_NUMBER} ms /\s*(\d+) (?:tokens|runs)"


def _timings(source: Source) -> Imported:
    """Read the timings of single requests; of several, the medians."""
    text = source.text
    pairs = []
    for name in ("prompt eval", r"(?<!prompt )\beval"):
        found = [(float(ms.replace(",", "")), float(count)) for ms, count in re.findall(_TIMING.format(name), text)]
        kept = [(count, 1e3 * count / ms) for ms, count in found if ms > 0 and count > 0]
        pairs.append((statistics.median(count for count, _ in kept), statistics.median(rate for _, rate in kept))
                     if kept else (None, None))  # fmt: skip
    return _two_phases(source, KIND_TIMINGS, "llama.cpp", pairs[0], pairs[1])


KIND_ENGINE_LINES = "throughput lines of an engine"
_VLLM_LINE = (
    rf"Avg generation throughput: {_NUMBER} tokens/s, Running: (\d+) reqs, (?:Swapped: \d+ reqs, )?Waiting: (\d+)"
)
_SGLANG_LINE = rf"Decode batch.*?#running-req: (\d+).*?gen throughput \(token/s\): {_NUMBER}.*?#queue-req: (\d+)"


def _engine_lines(source: Source) -> Imported:
    """Read the output rate at the most frequent number of running requests.

    Lines with waiting requests or without output are left out; the first and the last line of a load may hold idle
    time, so the median counts.
    """
    vllm = [(int(users), float(rate.replace(",", ""))) for rate, users, _ in re.findall(_VLLM_LINE, source.text)]
    sglang = [(int(users), float(rate.replace(",", ""))) for users, rate, _ in re.findall(_SGLANG_LINE, source.text)]
    seen = [(users, rate) for users, rate in (vllm or sglang) if users and rate > 0]
    if not seen:
        return _one(source, None, "output rate of running requests")
    users = Counter(item for item, _ in seen).most_common(1)[0][0]
    rates = [rate for item, rate in seen if item == users]
    row = {
        "engine": "vllm" if vllm else "sglang", "phase": "decode", "concurrency": users,
        "output_tokens_per_s": statistics.median(rates),
        "notes": notes(KIND_ENGINE_LINES, f"median of {len(rates)} lines with {users} running requests",
                       "set input_tokens and output_tokens"),
    }  # fmt: skip
    return _one(source, row, "")


def _json(read: Callable[[Fields], Iterator[dict[str, Any]]]) -> Callable[[Source], Imported]:
    return lambda source: source.collect(read)


IMPORTERS = (
    Importer(KIND_LLMPERF, by_keys("results_mean_output_throughput_token_per_s"), _json(_llmperf)),
    Importer(KIND_EVALSCOPE, by_text(r'"(?:Output token throughput|Output Throughput) \(tok/s\)"\s*:'),
             _json(_evalscope)),
    Importer(KIND_THROUGHPUT, by_keys("elapsed_time", "num_requests", "tokens_per_second"), _json(_throughput_json)),
    Importer(KIND_THROUGHPUT, by_text(_THROUGHPUT), _throughput_text),
    Importer(KIND_LATENCY, by_keys("avg_latency", "latencies", "percentiles"), _json(_latency_json)),
    Importer(KIND_LATENCY, by_text(r"^Avg latency: [\d.]+ seconds"), _latency_text),
    Importer(KIND_ONE_BATCH, by_keys("batch_size", "input_len", "output_len"), _json(_one_batch)),
    Importer(KIND_TRTLLM, by_text(r"^\W*Total Output Throughput \(tokens/sec\):"), _trtllm),
    Importer(KIND_MLX_BENCHMARK, by_text(_MLX_MEAN), _mlx_benchmark),
    Importer(KIND_MLX_GENERATE, by_text(_MLX_LINE.format("Generation")), _mlx_generate),
    Importer(KIND_OLLAMA, by_text(rf"^eval rate:\s+{_NUMBER} tokens/s"), _ollama),
)  # fmt: skip

#: lines between a start-up log and the end of an engine, tried after start-up logs
ENGINE_LINES = (
    Importer(KIND_TIMINGS, by_text(_TIMING.format("eval")), _timings),
    Importer(KIND_ENGINE_LINES, by_text(rf"{_VLLM_LINE}|{_SGLANG_LINE}"), _engine_lines),
)  # fmt: skip

_TORCH = re.compile(
    r"Tried to allocate ([\d.]+ [KMGT]iB)\. GPU (\d+) has a total capacity of ([\d.]+ [KMGT]iB) of which "
    r"([\d.]+ [KMGT]iB) is free(?:.*?this process has ([\d.]+ [KMGT]iB) memory in use)?", re.DOTALL,
)  # fmt: skip
_LLAMA = re.compile(r"allocating ([\d.]+ MiB) on device (\d+): cudaMalloc failed: out of memory")
_VLLM = re.compile(r"\(?([\d.]+ GiB) KV cache is needed, which is larger than the available KV cache memory "
                   r"\(([\d.]+ GiB)\)(?:.*?estimated maximum model length is (\d+))?", re.DOTALL)  # fmt: skip
_NO_BLOCKS = re.compile(r"No available memory for the cache blocks")
_SGLANG = re.compile(r"Not enough memory\. Please try to increase --mem-fraction-static")


def out_of_memory(text: str) -> str:
    """Return the amounts of an out-of-memory message and what to change.

    Empty without such a message.

    Examples
    --------
    >>> out_of_memory("allocating 2048.00 MiB on device 1: cudaMalloc failed: out of memory")[:61]
    'llama.cpp found no 2048.00 MiB on device 1: lower --ctx-size,'
    """
    if found := _TORCH.search(text):
        asked, gpu, whole, free, used = found.groups()
        held = f", {used} in use by the process" if used else ""
        return (
            f"PyTorch asked for {asked} with {free} free of {whole} on GPU {gpu}{held}: lower "
            "--gpu-memory-utilization (vLLM) or --mem-fraction-static (SGLang), --max-num-batched-tokens or "
            "--chunked-prefill-size, or --max-num-seqs; end other processes on the GPU"
        )
    if found := _LLAMA.search(text):
        return (
            f"llama.cpp found no {found[1]} on device {found[2]}: lower --ctx-size, --ubatch-size or --n-gpu-layers, "
            "quantise the cache with --cache-type-k q8_0 --cache-type-v q8_0, or keep experts in host memory with "
            "--n-cpu-moe"
        )
    if found := _VLLM.search(text):
        most = f"; the longest context that fits is {int(found[3]):,} tokens" if found[3] else ""
        return (
            f"vLLM needs {found[1]} for one request of the model's context and has {found[2]}{most}: lower "
            "--max-model-len, raise --gpu-memory-utilization, or take --kv-cache-dtype fp8"
        )
    if _NO_BLOCKS.search(text):
        return "vLLM has no memory left for the KV cache: raise --gpu-memory-utilization or --tensor-parallel-size"
    if _SGLANG.search(text):
        return "SGLang has no memory left for the KV cache: raise --mem-fraction-static or --tp-size"
    return ""
