"""Import what benchmark commands and clients print or save in short.

`vllm bench throughput` and `latency` (vllm/benchmarks/*.py), SGLang's `bench_one_batch` and `bench_one_batch_server`,
`trtllm-bench` (tensorrt_llm/bench/dataclasses/reporting.py), LLMPerf (token_benchmark_ray.py), LMDeploy's
`profile_throughput.py` and its siblings (lmdeploy/profiler.py at 0c6b1883), and the throughput or the steps that
vLLM, SGLang, LMDeploy and TensorRT-LLM log while they serve.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from glmplan.io.runs.columns import COLUMNS
from glmplan.io.runs.importers.record import (
    Document,
    Fields,
    Imported,
    Importer,
    Problem,
    Source,
    by_keys,
    by_text,
    csv_table,
    few_requests,
    milliseconds,
    notes,
    row_identifier,
)

__all__ = ["ENGINE_LINES", "IMPORTERS", "NUMBER", "numbers"]

#: number of a printed report
NUMBER = r"([\d,]+(?:\.\d+)?(?:[eE][+-]?\d+)?)"


#: end of the note of a file without lengths
_LENGTHS_UNKNOWN = "set input_tokens and output_tokens"


def numbers(text: str, names: Mapping[str, str]) -> dict[str, float]:
    """Return the last number behind each label of a printed report."""
    result = {}
    for key, label in names.items():
        found = re.findall(rf"^\W*{label}\s*:?\s+{NUMBER}", text, re.MULTILINE)
        if found:
            result[key] = float(found[-1].replace(",", ""))
    return result


def _one(source: Source, row: dict[str, Any] | None, missing: str) -> Imported:
    """Return one run, or the problem that a value is missing."""
    if row is None:
        return Imported("", [], [Problem(0, missing, "expected this value, it is missing")])
    return Imported("", [{"id": row_identifier(source.text, 0), **row}])


KIND_THROUGHPUT = "vllm bench throughput"
_THROUGHPUT = rf"^Throughput: {NUMBER} requests/s, {NUMBER} total tokens/s(?:, {NUMBER} output tokens/s)?"
_ALL_AT_ONCE = "all requests are given at once"


def _throughput_text(source: Source) -> Imported:
    """Read the printed lines; the means of the lengths come from the totals."""
    found = re.findall(_THROUGHPUT, source.text, re.MULTILINE)[-1]
    rate, total, output = (float(item.replace(",", "")) if item else None for item in found)
    sums = numbers(source.text, {"prompt": "Total num prompt tokens", "output": "Total num output tokens"})
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
        "notes": notes(KIND_THROUGHPUT, _ALL_AT_ONCE, "the file states no lengths: " + _LENGTHS_UNKNOWN),
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
    found = numbers(source.text, {"mean": "Avg latency", "p99": "99% percentile latency"})
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


_SERVER_BATCH = {
    "batch_size": "batch size", "input_len": "input_len", "output_len": "output_len", "latency": "latency",
    "output_throughput": "output throughput", "last_ttft": "last_ttft", "acc_length": "acc_length",
    "cache_hit_rate": "cache hit rate",
}  # fmt: skip


def _server_batches(source: Source) -> Imported:
    """Read each batch that `bench_one_batch_server` prints."""
    parts = re.split(r"^(?=batch size: \d+\s*$)", source.text, flags=re.MULTILINE)[1:]
    return source.gather([Document(numbers(part, _SERVER_BATCH), 0) for part in parts], _one_batch)


_PREFILL = rf"^Prefill\. latency:\s+{NUMBER} s, throughput:\s+{NUMBER} token/s"
_MEDIAN = rf"^Decode\.\s+median latency:\s+{NUMBER} s, median throughput:\s+{NUMBER} token/s"
_TOTAL = rf"^Total\. latency:\s+{NUMBER} s, throughput:\s+{NUMBER} token/s"


def _engine_batches(source: Source) -> Imported:
    """Read each batch that `bench_one_batch` prints.

    Sizes follow from times and rates. The first round of a run warms up.
    """
    rounds = list(
        zip(*(re.findall(one, source.text, re.MULTILINE) for one in (_PREFILL, _MEDIAN, _TOTAL)), strict=False)
    )
    records: list[Document | Problem] = []
    for prefill, decode, total in rounds[1:] if re.search(r"^Warmup", source.text, re.MULTILINE) else rounds:
        (first, prompts), (step, rate), (whole, tokens) = (
            [float(item.replace(",", "")) for item in pair] for pair in (prefill, decode, total)
        )
        users = max(round(step * rate), 1)
        length = round(first * prompts / users)
        records.append(Document({
            "batch_size": users, "input_len": length, "output_len": max(round(whole * tokens / users) - length, 1),
            "prefill_latency": first, "median_decode_latency": step, "total_latency": whole,
        }, 0))  # fmt: skip
    return source.gather(records, _one_batch)


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


_TRTLLM_CUTS = {
    f"{ours}_{what}_ms": rf"\[{theirs}\] {label}"
    for ours, theirs in {"ttft": "TTFT", "tpot": "TPOT"}.items() for what, label in {"p50": "P50", "p99": "P99"}.items()
} | {"e2e_p99_ms": r"\[Latency\] P99", "acceptance_length": r"\[AL\] AVERAGE"}  # fmt: skip


def _trtllm_json(fields: Fields) -> Iterator[dict[str, Any]]:
    """Return the run of a file of `--report_json`."""
    engine, world, load = fields.inside("engine"), fields.inside("world_info"), fields.inside("request_info")
    speed, streamed = fields.inside("performance"), fields.inside("streaming_metrics")
    count, wall = load.number("num_requests"), speed.number("total_latency_ms")
    yield {
        "engine": "trtllm", "engine_version": engine.text("version"), "phase": "serving",
        "checkpoint": engine.text("model"), "weights": engine.text("quantization"),
        "kv_cache": engine.text("kv_cache_dtype"), "tp": world.number("tp_size"), "pp": world.number("pp_size"),
        "ep": world.number("ep_size"), "num_requests": count, "concurrency": load.number("avg_num_concurrent_requests"),
        "input_tokens": load.number("avg_input_length"), "output_tokens": load.number("avg_output_length"),
        "output_tokens_per_s": speed.require("system_output_throughput_tok_s"),
        "total_tokens_per_s": speed.number("system_total_throughput_tok_s"), "wall_s": wall / 1e3 if wall else None,
        "e2e_mean_ms": speed.number("avg_request_latency_ms"), "ttft_mean_ms": streamed.number("avg_ttft_ms"),
        "e2e_p99_ms": speed.inside("request_latency_percentiles_ms").number("p99"),
        "tpot_mean_ms": streamed.number("avg_tpot_ms"),
        **{f"{name}_{what}_ms": streamed.inside(f"{name}_percentiles").number(what)
           for name in ("ttft", "tpot") for what in ("p50", "p99")},
        "acceptance_length": fields.inside("decoding_stats", "acceptance_length_percentiles").positive("average"),
        "notes": notes(KIND_TRTLLM, few_requests(count or 1e9)),
    }  # fmt: skip


def _trtllm(source: Source) -> Imported:
    found = numbers(source.text, _TRTLLM | _TRTLLM_CUTS)
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


KIND_LMDEPLOY = "lmdeploy profile"
_LMDEPLOY = {
    "wall_s": "Benchmark duration", "count": "Total requests", "done": "Successful requests",
    "concurrency": "(?i:concurrency)", "input": "Total input tokens", "output": "Total generated tokens",
    "output_tokens_per_s": r"Output throughput \(tok/s\)",
}  # fmt: skip
#: metric of a column → row of the table, whose times are in seconds
_LMDEPLOY_ROWS = {
    "e2e": "End-to-end Latency", "ttft": r"Time to First Token \(TTFT\)", "tpot": r"Time per Output Token \(TPOT\)",
    "itl": r"Inter-token Latency \(ITL\)",
}  # fmt: skip


def _lmdeploy(source: Source) -> Imported:
    found = numbers(source.text, _LMDEPLOY)
    done, sums = found.pop("done", 0.0), {name: found.pop(name, 0.0) for name in ("input", "output")}
    if done < 1:
        return _one(source, None, "Successful requests")
    count = found.pop("count", done)
    heads = re.search(r"^\s+mean((?:\s+P\d+)+)\s*$", source.text, re.MULTILINE)
    names = ["mean", *(head.lower() for head in heads[1].split())] if heads else ["mean"]
    times: dict[str, float] = {}
    for metric, label in _LMDEPLOY_ROWS.items():
        line = re.search(rf"^{label}((?:\s+[\d.]+)+)\s*$", source.text, re.MULTILINE)
        for name, value in zip(names, line[1].split() if line else (), strict=False):
            if f"{metric}_{name}_ms" in COLUMNS:
                times[f"{metric}_{name}_ms"] = float(value) * 1e3
    lost = count - done
    row = {
        "engine": "lmdeploy", "phase": "serving", **found, "num_requests": count, "input_tokens": sums["input"] / done,
        "output_tokens": sums["output"] / done, **times,
        "notes": notes(KIND_LMDEPLOY, f"{lost:.0f} failed" if lost > 0 else "", few_requests(done)),
    }  # fmt: skip
    return _one(source, row, "")


def _lmdeploy_csv(source: Source) -> Imported:
    def read(fields: Fields) -> Iterator[dict[str, Any]]:
        yield {
            "engine": "lmdeploy", "phase": "serving",
            "concurrency": fields.number("batch", "concurrency", "Concurrency"),
            "num_requests": fields.number("num_promts", "num_prompts", "num_requests"),
            "output_tokens_per_s": fields.require("throughput(out tok/s)"),
            "total_tokens_per_s": fields.number("throughput(total tok/s)"),
            "ttft_mean_ms": milliseconds(fields.number("FTL(ave)(s)")),
            "itl_p50_ms": milliseconds(fields.number("50%(s)")), "itl_p99_ms": milliseconds(fields.number("99%(s)")),
            "notes": notes(KIND_LMDEPLOY, "the file states no lengths: " + _LENGTHS_UNKNOWN),
        }  # fmt: skip

    return source.gather(csv_table(source.text), read)


KIND_LLMPERF = "llmperf"


def _llmperf(fields: Fields) -> Iterator[dict[str, Any]]:
    """Return the summary of LLMPerf.

    Its inter-token latency is the whole time over the output tokens, with the TTFT.
    """
    count, lost = fields.number("results_num_completed_requests"), fields.number("results_number_errors") or 0
    yield {
        "phase": "serving", "checkpoint": fields.text("model"), "concurrency": fields.number("num_concurrent_requests"),
        "num_requests": None if count is None else count + lost,
        "input_tokens": fields.number("results_number_input_tokens_mean")
        or fields.number("mean_input_tokens"), "output_tokens": fields.number("results_number_output_tokens_mean")
        or fields.number("mean_output_tokens"),
        "output_tokens_per_s": fields.require("results_mean_output_throughput_token_per_s"),
        "ttft_mean_ms": milliseconds(fields.number("results_ttft_s_mean")),
        "ttft_p50_ms": milliseconds(fields.number("results_ttft_s_quantiles_p50")),
        "ttft_p99_ms": milliseconds(fields.number("results_ttft_s_quantiles_p99")),
        "tpot_incl_ttft_mean_ms": milliseconds(fields.number("results_inter_token_latency_s_mean")),
        "e2e_mean_ms": milliseconds(fields.number("results_end_to_end_latency_s_mean")),
        "e2e_p99_ms": milliseconds(fields.number("results_end_to_end_latency_s_quantiles_p99")),
        "notes": notes(KIND_LLMPERF, "time between tokens includes TTFT", f"{lost:.0f} failed" if lost else "",
                       few_requests(count or 1e9)),
    }  # fmt: skip


KIND_ENGINE_LINES = "throughput lines of an engine"
_LINES = {
    # vLLM to 0.9 counts pending requests, later releases waiting ones; data-parallel engines have a number each
    "vllm": rf"(?:Engine (?P<rank>\d+):[^\n]*?)?Avg generation throughput: (?P<rate>{NUMBER[1:-1]}) tokens/s, "
            r"Running: (?P<users>\d+) reqs, (?:Swapped: \d+ reqs, )?(?:Waiting|Pending): (?P<waiting>\d+)",
    "sglang": r"(?:DP(?P<rank>\d+)[^\n]*)?Decode batch[^\n]*?#running-req: (?P<users>\d+)[^\n]*?"
              rf"gen throughput \(token/s\): (?P<rate>{NUMBER[1:-1]})[^\n]*?#queue-req: (?P<waiting>\d+)",
    # lmdeploy/metrics/loggers.py
    "lmdeploy": rf"(?:Engine (?P<rank>\d+)\] )?Avg thr \(in/out\): [\d.]+ / (?P<rate>{NUMBER[1:-1]}) tokens/s[^\n]*?"
                r"Engine \(running/waiting\): (?P<users>\d+) / (?P<waiting>\d+)",
}  # fmt: skip
_STEP_LENGTH = r"Mean acceptance length: ([\d.]+)|accept len: ([\d.]+)"
#: steps that only generate, from TensorRT-LLM's `print_iter_log` (tensorrt_llm/_torch/pyexecutor/py_executor.py)
_STEP = (
    r"num_scheduled_requests ?[=:] (?P<early>\d+)[^\n]*host_step_time = (?P<ms>[\d.]+)ms[^\n]*"
    r"'num_ctx_tokens': 0, 'num_generation_tokens': (?P<tokens>\d+)"
    r"|host_step_time = (?P<ms2>[\d.]+)ms[^\n]*num_scheduled_requests ?[=:] (?P<late>\d+)[^\n]*"
    r"'num_ctx_tokens': 0, 'num_generation_tokens': (?P<tokens2>\d+)"
)


def _most_frequent(seen: Sequence[tuple[int, float]]) -> tuple[int, float, int]:
    """Return the most frequent number of requests, its median and count.

    The first and the last line of a load may hold idle time, so the median counts.
    """
    users = Counter(item for item, _ in seen).most_common(1)[0][0]
    values = [value for item, value in seen if item == users]
    return users, statistics.median(values), len(values)


def _engine_lines(source: Source) -> Imported:
    """Read the output rate at the most frequent number of running requests.

    Lines without output are left out, and lines with waiting requests where others have none. Data-parallel engines
    are added up.
    """
    for engine, pattern in _LINES.items():
        ranks: dict[str, list[tuple[int, float, int]]] = {}
        for found in re.finditer(pattern, source.text):
            users, rate = int(found["users"]), float(found["rate"].replace(",", ""))
            if users and rate > 0:
                ranks.setdefault(found["rank"] or "", []).append((users, rate, int(found["waiting"])))
        if not ranks:
            continue
        told = [_most_frequent([(users, rate) for users, rate, waiting in lines if not waiting]
                               or [(users, rate) for users, rate, _ in lines]) for lines in ranks.values()]  # fmt: skip
        running = sum(users for users, _, _ in told)
        steps = [float(one or two) for one, two in re.findall(_STEP_LENGTH, source.text)]
        each = f" of each of {len(told)} engines" if len(told) > 1 else ""
        row = {
            "engine": engine, "phase": "decode", "concurrency": running, "dp": len(told) if len(told) > 1 else None,
            "output_tokens_per_s": sum(rate for _, rate, _ in told),
            "acceptance_length": statistics.median(steps) if steps and statistics.median(steps) >= 1 else None,
            "notes": notes(KIND_ENGINE_LINES, f"median of {min(count for *_, count in told)} lines{each} with "
                           f"{running} running requests", _LENGTHS_UNKNOWN),
        }  # fmt: skip
        return _one(source, row, "")
    return _one(source, None, "output rate of running requests")


def _steps(source: Source) -> Imported:
    """Read the time of steps without prompts.

    Steps at the most frequent number of requests count.
    """
    seen = [(int(found["early"] or found["late"]), float(found["ms"] or found["ms2"]),
             int(found["tokens"] or found["tokens2"])) for found in re.finditer(_STEP, source.text)]  # fmt: skip
    alone = [(users, ms) for users, ms, tokens in seen if users == tokens > 0]
    if not alone:
        return _one(source, None, "steps of one token for each request, which drafting and prompts leave out")
    users, ms, count = _most_frequent(alone)
    row = {
        "engine": "trtllm", "phase": "decode", "concurrency": users, "tpot_mean_ms": ms,
        "output_tokens_per_s": 1e3 * users / ms,
        "notes": notes("TensorRT-LLM's log of steps", f"median of {count} steps with {users} requests of a rank",
                       _LENGTHS_UNKNOWN),
    }  # fmt: skip
    return _one(source, row, "")


def _json(read: Callable[[Fields], Iterator[dict[str, Any]]]) -> Callable[[Source], Imported]:
    return lambda source: source.collect(read)


IMPORTERS = (
    Importer(KIND_LLMPERF, by_keys("results_mean_output_throughput_token_per_s"), _json(_llmperf)),
    Importer(KIND_THROUGHPUT, by_keys("elapsed_time", "num_requests", "tokens_per_second"), _json(_throughput_json)),
    Importer(KIND_THROUGHPUT, by_text(_THROUGHPUT), _throughput_text),
    Importer(KIND_LATENCY, by_keys("avg_latency", "latencies", "percentiles"), _json(_latency_json)),
    Importer(KIND_LATENCY, by_text(r"^Avg latency: [\d.]+ seconds"), _latency_text),
    Importer(KIND_ONE_BATCH, by_keys("batch_size", "input_len", "output_len"), _json(_one_batch)),
    Importer(KIND_ONE_BATCH, by_text(r"^batch size: \d+\s*$"), _server_batches),
    Importer(KIND_ONE_BATCH, by_text(_MEDIAN), _engine_batches),
    Importer(KIND_LMDEPLOY, by_text(r"^Time per Output Token \(TPOT\)\s+\d"), _lmdeploy),
    Importer(KIND_LMDEPLOY, by_text(r"^[^\n]*RPS,RPM,FTL\(ave\)\(s\)"), _lmdeploy_csv),
    Importer(KIND_TRTLLM, by_keys("world_info", "request_info", "system_output_throughput_tok_s"), _json(_trtllm_json)),
    Importer(KIND_TRTLLM, by_text(r"^\W*Total Output Throughput \(tokens/sec\):"), _trtllm),
)  # fmt: skip

#: lines between a start-up log and the end of an engine, tried after start-up logs
ENGINE_LINES = (
    Importer(KIND_ENGINE_LINES, lambda source: any(re.search(one, source.text) for one in _LINES.values()),
             _engine_lines),
    Importer("steps of trtllm", by_text(_STEP), _steps),
)  # fmt: skip
