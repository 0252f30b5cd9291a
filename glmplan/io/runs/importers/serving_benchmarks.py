"""Import results of serving benchmarks.

`vllm bench serve --save-result` (one JSON object for each run), SGLang's `bench_serving --output-file` (one JSON object
on each line), the text block of both clients, InferenceX (InferenceMAX) aggregates (for each GPU, in seconds),
inference-perf (kubernetes-sigs; stages and summary, in seconds) and MLPerf Inference `summary_results.json`.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from typing import Any

from glmplan.io.runs.columns import COLUMNS
from glmplan.io.runs.importers.record import (
    BadRecord,
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
    latencies,
    load,
    mean_lengths,
    metric_columns,
    milliseconds,
    notes,
)

__all__ = [
    "IMPORTERS",
    "read_block",
    "read_inference_perf",
    "read_inferencex",
    "read_mlperf",
    "read_sglang_bench",
    "read_vllm_bench",
    "read_vllm_sweep",
    "recognise_vllm_sweep",
]


KIND_VLLM_BENCH = "vllm bench serve"
recognise_vllm_bench = by_keys("total_output_tokens", "request_throughput", without="mean_e2e_latency_ms")


def read_vllm_bench(source: Source) -> Imported:
    """Read the runs of a file.

    The engine stays empty: `endpoint_type` and `backend` name the protocol of the client, not the server.
    """
    return source.collect(_rows_vllm_bench)


def recognise_vllm_sweep(source: Source) -> bool:
    """Return True for the `summary.csv` of `vllm bench sweep serve`."""
    head = source.text.lstrip("\ufeff").partition("\n")[0].replace('"', "").split(",")
    return {"total_output_tokens", "request_throughput", "mean_tpot_ms"} <= set(map(str.strip, head))


def read_vllm_sweep(source: Source) -> Imported:
    """Read a sweep, whose rows are the results of its runs."""
    return source.gather(csv_table(source.text), _rows_vllm_bench)


def _rows_vllm_bench(fields: Fields) -> Iterator[dict[str, Any]]:
    completed = fields.require("completed")
    if completed < 1:
        raise BadRecord(Problem(fields.line, "completed", "expected at least one finished request, got 0"))
    prompts, failed = fields.number("num_prompts"), fields.number("failed") or 0
    warning, retokenised = "", _without_usage(fields)
    row: dict[str, Any] = {
        "measured_on": _day(fields.text("date")),
        "checkpoint": fields.text("model_id"),
        "phase": "serving",
        **load(fields, prompts),
        "num_requests": prompts or completed,
        **mean_lengths(fields, completed),
        "output_tokens_per_s": fields.positive("output_throughput"),
        "total_tokens_per_s": fields.positive("total_token_throughput"),
        "wall_s": fields.require("duration"),
        **latencies(fields),
        "acceptance_length": fields.positive("spec_decode_acceptance_length"),
    }
    for name in COLUMNS:
        # columns from --metadata; `backend` is the endpoint's type
        if name not in {*row, "backend"} and isinstance(fields.value.get(name), str | int | float):
            row[name] = fields.value[name]
    if retokenised:
        warning = (
            f"the client missed usage and counted {row['output_tokens'] * completed:.0f} tokens by tokenising text"
        )
        row |= retokenised | {"output_tokens_per_s": retokenised["output_tokens"] * completed / row["wall_s"]}
        row["total_tokens_per_s"] = row["output_tokens_per_s"] + row["input_tokens"] * completed / row["wall_s"]
        warning += "; tokens, TPOT and throughput here are from the chunks"
    elif row["e2e_mean_ms"] is None and fields.numbers("ttfts"):
        row |= _end_to_end(fields)
    row["notes"] = notes(
        KIND_VLLM_BENCH,
        f"endpoint {fields.text('endpoint_type', 'backend')}" if "endpoint_type" in fields else "",
        f"{failed:.0f} failed" if failed else "",
        f"burstiness {fields.number('burstiness')}" if fields.number("burstiness") not in (None, 1.0) else "",
        few_requests(completed),
        warning,
    )
    yield row


def _day(date: str | None) -> str | None:
    match = re.match(r"(\d{4})-?(\d{2})-?(\d{2})", date or "")
    return "-".join(match.groups()) if match else None


def _gaps(fields: Fields) -> list[list[float]]:
    value = fields.value.get("itls")
    return value if isinstance(value, list) and all(isinstance(v, list) for v in value) else []


def _end_to_end(fields: Fields) -> dict[str, float]:
    gaps, ttfts = _gaps(fields), fields.numbers("ttfts")
    if len(gaps) != len(ttfts) or not gaps:
        return {}
    whole = sorted(ttft + sum(gap) for ttft, gap in zip(ttfts, gaps, strict=True))
    return {"e2e_mean_ms": statistics.fmean(whole) * 1e3}


def _without_usage(fields: Fields) -> dict[str, float]:
    """Return token counts and times recounted from chunks.

    The client tokenised the text again. Recognised by an equal number of chunks of all requests with token counts that
    differ from it and between requests. The last chunk then carries `usage`: it follows the last token within
    microseconds.
    """
    gaps, counts = _gaps(fields), fields.numbers("output_lens")
    if "spec_decode_acceptance_length" in fields or len(gaps) < 3 or len(gaps) != len(counts):
        return {}
    chunks = {len(gap) for gap in gaps}
    if len(chunks) != 1 or len(set(counts)) == 1 or min(counts) <= 1 or min(len(g) for g in gaps) < 3:
        return {}
    # a delay of the client can stretch the gap before `usage`, so the majority of requests decides
    last_is_usage = sum(g[-1] < 0.05 * statistics.median(g) for g in gaps) > len(gaps) / 2
    trimmed = [g[:-1] if last_is_usage else g for g in gaps]
    per_request = [sum(gap) / len(gap) * 1e3 for gap in trimmed]
    flat = sorted(value * 1e3 for gap in trimmed for value in gap)
    ordered = sorted(per_request)
    return {
        "output_tokens": statistics.fmean(len(gap) + 1 for gap in trimmed),
        "tpot_mean_ms": statistics.fmean(per_request),
        "tpot_p50_ms": statistics.median(ordered),
        "tpot_p99_ms": _quantile(ordered, 0.99),
        "itl_mean_ms": statistics.fmean(flat),
        "itl_p50_ms": statistics.median(flat),
        "itl_p99_ms": _quantile(flat, 0.99),
    }


def _quantile(ordered: list[float], share: float) -> float:
    place = share * (len(ordered) - 1)
    low = int(place)
    return ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low])


KIND_SGLANG_BENCH = "sglang bench_serving"

#: field of SGLang's server_info → column
_SERVER = {
    "model_path": "checkpoint",
    "version": "engine_version",
    "tp_size": "tp",
    "pp_size": "pp",
    "ep_size": "ep",
    "kv_cache_dtype": "kv_cache",
    "attention_backend": "attention_backend",
    "moe_runner_backend": "moe_backend",
    "max_total_num_tokens": "kv_pool_tokens",
}
recognise_sglang_bench = by_keys("mean_e2e_latency_ms", "total_output_tokens")
_BLOCK = r"=+\s*Serving Benchmark Result\s*=+"
recognise_block = by_text(_BLOCK)


def read_sglang_bench(source: Source) -> Imported:
    """Read the runs of a file.

    Random lengths are uniform from one to nominal by default, so lengths come from totals, not from
    `random_input_len`. `backend` names the protocol, so the engine is known only from `server_info`.
    """
    return source.collect(_rows_sglang_bench)


def _rows_sglang_bench(fields: Fields) -> Iterator[dict[str, Any]]:
    completed = fields.require("completed")
    if completed < 1:
        raise BadRecord(Problem(fields.line, "completed", "expected at least one finished request, got 0"))
    yield {
        "phase": "serving",
        # protocol of the tables with lengths uniform from zero to twice the mean
        "protocol": "sglang-bench-random" if _ratio(fields) == 0 else None,
        **_server(fields.inside("server_info")),
        **load(fields, completed),
        "concurrency_effective": fields.positive("concurrency"),
        "num_requests": completed,
        **mean_lengths(fields, completed),
        "output_tokens_per_s": fields.positive("output_throughput"),
        "total_tokens_per_s": fields.positive("total_throughput")
        or (fields.number("input_throughput") or 0) + (fields.number("output_throughput") or 0)
        or None,
        "wall_s": fields.require("duration"),
        **latencies(fields, e2e="e2e_latency"),
        "acceptance_length": fields.positive("accept_length"),
        "notes": notes(
            fields.text("client") or KIND_SGLANG_BENCH,
            fields.text("tag"),
            fields.text("dataset_name"),
            _lengths(fields),
            few_requests(completed),
        ),
    }


def _ratio(fields: Fields) -> float | None:
    """Return the shortest random length as a share of the longest, or None.

    None: lengths are not random.
    """
    return fields.number("random_range_ratio") if "random" in (fields.text("dataset_name") or "") else None


def _lengths(fields: Fields) -> str:
    ratio = _ratio(fields)
    if ratio is None or ratio >= 1:
        return ""
    nominal = f"{fields.number('random_input_len'):.0f}/{fields.number('random_output_len'):.0f}"
    return f"lengths uniform in {ratio:g}-1 of {nominal}; the means are measured"


def _server(info: Fields) -> dict[str, Any]:
    row: dict[str, Any] = {ours: info.value[theirs] for theirs, ours in _SERVER.items() if info.value.get(theirs)}
    if not row:
        return {}
    # with DP attention SGLang counts cards twice: tp_size spans them, dp_size of it are attention replicas
    replicas = info.number("dp_size") or 1
    shared = replicas if info.value.get("enable_dp_attention") else 1
    return row | {"engine": "sglang", "dp": replicas, **({"tp": row["tp"] / shared} if "tp" in row else {})}


_LINES = {
    r"successful requests": "completed",
    r"failed requests": "failed",
    r"maximum request concurrency|max request concurrency|max reque?u?est concurrency": "max_concurrency",
    r"request rate configured.*|traffic request rate": "request_rate",
    r"benchmark duration \(s\)": "duration",
    r"total input tokens": "total_input_tokens",
    r"total generated tokens": "total_output_tokens",
    r"output token throughput \(tok/s\)": "output_throughput",
    r"total token throughput \(tok/s\)": "total_throughput",
    r"concurrency": "concurrency",
    r"accept length|acceptance length": "accept_length",
}
_METRICS = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e_latency", "e2e latency": "e2e_latency"}


def read_block(source: Source) -> Imported:
    """Read every result block of a text.

    Examples
    --------
    >>> block = '''== Serving Benchmark Result ==
    ... Successful requests: 2
    ... Benchmark duration (s): 4.0
    ... Total input tokens: 20
    ... Total generated tokens: 10
    ... Mean TTFT (ms): 30.5'''
    >>> read_block(Source("", block)).rows[0]["ttft_mean_ms"]
    30.5
    """
    return source.gather(_blocks(source.text), _rows_sglang_bench)


def _blocks(text: str) -> Iterator[Document]:
    parts = list(re.finditer(_BLOCK, text))
    for begin, end in zip(parts, [*(part.start() for part in parts[1:]), None], strict=True):
        value: dict[str, str] = {}
        said: set[str] = set()
        for line in text[begin.end() : end].splitlines():
            name, _, figure = line.partition(":")
            name = name.strip().lower()
            said.add(name)
            key = next((ours for pattern, ours in _LINES.items() if re.fullmatch(pattern, name)), None)
            metric = re.fullmatch(r"(mean|median|p\d+) (.+?) \(ms\)", name)
            if metric and metric[2] in _METRICS:
                key = f"{metric[1]}_{_METRICS[metric[2]]}_ms"
            if key and figure.strip() and key not in value:
                value[key] = figure.strip().split()[0]
        # the block of SGLang names its backend, that of vLLM does not
        value["client"] = KIND_SGLANG_BENCH if "backend" in said else KIND_VLLM_BENCH
        yield Document(value, 1 + text.count("\n", 0, begin.start()))


KIND_INFERENCEX = "inferencex"
#: machine in InferenceX → accelerator of the catalogue
_PARTS = {
    "h100": "h100-sxm",
    "h200": "h200-sxm",
    "b200": "b200-sxm",
    "b300": "b300-sxm",
    "gb200": "gb200",
    "gb300": "gb300",
    "mi300x": "mi300x",
    "mi325x": "mi325x",
    "mi355x": "mi355x",
}
_ENGINES = ("sglang", "vllm", "trt", "atom")
recognise_inferencex = by_keys("tput_per_gpu", "isl", "osl")


def read_inferencex(source: Source) -> Imported:
    """Read the configurations of a file.

    Throughputs are for each GPU (output per decode GPU when disaggregated) and become those of the deployment.
    Lengths are nominal: the protocol draws them uniformly from 0.8 to 1.0 of nominal.
    """
    return source.collect(_rows_inferencex)


def _rows_inferencex(fields: Fields) -> Iterator[dict[str, Any]]:
    apart = _true(fields.value.get("disagg"))
    tp, pp = fields.number("tp") or fields.number("decode_tp") or 1, fields.number("pp") or 1
    cards = tp * pp * (fields.number("pcp_size") or 1)
    decode = cards
    if apart:
        decode = fields.require("num_decode_gpu")
        cards = decode + fields.require("num_prefill_gpu")
    if cards < 1:
        raise BadRecord(Problem(fields.line, "tp", f"expected 1 or more, got {tp:g}"))
    ranks = _true(fields.value.get("dp_attention", fields.value.get("decode_dp_attention")))
    framework = (fields.text("framework") or "").lower()
    engine = next((name for name in _ENGINES if name in framework), framework)
    hw = (fields.text("hw") or "").lower()
    total, output = fields.require("tput_per_gpu"), fields.number("output_tput_per_gpu")
    yield {
        "model": fields.text("infmax_model_prefix"),
        "checkpoint": fields.text("model"),
        "weights": {"fp4": "nvfp4" if "mi3" not in hw else "mxfp4"}.get(p := fields.text("precision") or "", p or None),
        "accelerator": next((name for key, name in _PARTS.items() if key == hw.partition("-")[0]), hw or None),
        "accelerator_count": cards,
        "tp": 1 if ranks else tp,
        "pp": pp,
        "dp": tp if ranks else 1,
        "ep": fields.number("ep") or fields.number("decode_ep"),
        "dcp": fields.number("dcp_size"),
        "engine": "trtllm" if engine == "trt" else engine or None,
        "engine_version": (fields.text("image") or "").rpartition(":")[2] or None,
        "speculative": fields.text("spec_decoding"),
        "phase": "serving",
        "concurrency": fields.require("conc"),
        "input_tokens": fields.require("isl"),
        "output_tokens": fields.require("osl"),
        "output_tokens_per_s": output * decode if output else None,
        "total_tokens_per_s": total * cards,
        **latencies(fields, suffix="", scale=1e3),
        "notes": notes(
            "InferenceX",
            "lengths uniform in 0.8-1.0 of nominal, 10 prompts for each user, all sent at once",
            f"disaggregated: {cards - decode:g} prefill and {decode:g} decode GPUs" if apart else "",
            fields.text("recipe_fingerprint"),
        ),
    }


def _true(value: Any) -> bool:
    return value is True or str(value).lower() == "true"


KIND_INFERENCE_PERF = "inference-perf"
#: metric of a column → its name in inference-perf
_PERF_METRICS = {
    "ttft": "time_to_first_token",
    "tpot": "time_per_output_token",
    "itl": "inter_token_latency",
    "e2e": "request_latency",
}
recognise_inference_perf = by_keys("load_summary", "successes")


def read_inference_perf(source: Source) -> Imported:
    """Read a report.

    `normalized_time_per_output_token` is latency / tokens and so includes TTFT; `time_per_output_token` does not.
    """
    return source.collect(_rows_inference_perf)


def _rows_inference_perf(fields: Fields) -> Iterator[dict[str, Any]]:
    done, load = fields.inside("successes"), fields.inside("load_summary")
    count = done.require("count")
    if count < 1:
        raise BadRecord(Problem(fields.line, "successes.count", "expected 1 or more, got 0"))
    failed = fields.inside("failures").number("count") or 0

    def ms(name: str, what: str) -> float | None:
        return milliseconds(done.inside("latency", name).number(what))

    rate = done.inside("throughput").number("requests_per_sec")
    latency = done.inside("latency", "request_latency").require("mean")
    times = metric_columns(_PERF_METRICS, ms, ("mean", "median", "p99"))
    mean_gap, median_gap = times["itl_mean_ms"], times["itl_p50_ms"]
    bursts = mean_gap is not None and median_gap is not None and median_gap < 0.1 * mean_gap
    # a closed loop sends its whole stage at once, and its rate is the number of requests
    users = load.positive("concurrency")
    yield {
        "phase": "serving",
        "concurrency": users,
        "request_rate_per_s": None if users else load.positive("requested_rate"),
        "concurrency_effective": rate * latency if rate else None,
        "num_requests": count + failed,
        "input_tokens": done.inside("prompt_len").number("mean") or done.inside("prompt_tokens").number("mean"),
        "output_tokens": done.inside("output_tokens").number("mean") or done.inside("output_len").require("mean"),
        "output_tokens_per_s": done.inside("throughput").number("output_tokens_per_sec"),
        "total_tokens_per_s": done.inside("throughput").number("total_tokens_per_sec"),
        "wall_s": count / rate if rate else None,
        **times,
        "tpot_incl_ttft_mean_ms": ms("normalized_time_per_output_token", "mean"),
        "notes": notes(
            KIND_INFERENCE_PERF,
            f"{failed:.0f} failed" if failed else "",
            "" if "requested_rate" in load else "a summary over all stages: not one load level",
            "chunks came in bursts: the median ITL is not a token time" if bursts else "",
            few_requests(count),
        ),
    }


KIND_MLPERF = "mlperf summary"
recognise_mlperf = by_keys("Performance_Result", "Performance_Units")


def read_mlperf(source: Source) -> Imported:
    """Read the token results of a summary.

    Entries in other units (samples, queries) are not of language models.
    """
    return source.collect(_rows_mlperf)


def _rows_mlperf(fields: Fields) -> Iterator[dict[str, Any]]:
    units = fields.text("Performance_Units") or ""
    if "token" not in units.lower():
        return
    cards, doubt = _cards(fields)
    name = fields.text("Accelerator") or ""
    if not name:
        raise BadRecord(Problem(fields.line, "Accelerator", "expected a name, the field is missing or empty"))
    yield {
        "model": (fields.text("Model") or "").removesuffix("-99.9").removesuffix("-99") or None,
        "checkpoint": fields.text("Model"),
        "weights": fields.text("weight_data_types"),
        "accelerator": re.sub(r"\s*\(x\d+\)\s*$", "", name),
        "accelerator_count": cards,
        "nodes": fields.number("Nodes"),
        "engine": fields.text("Software"),
        "phase": "serving",
        "scenario": f"mlperf-{(fields.text('Scenario') or '').lower()}",
        "output_tokens_per_s": fields.require("Performance_Result"),
        "trust": "A",
        "notes": notes(
            "MLPerf",
            fields.text("ID"),
            fields.text("Submitter"),
            fields.text("System"),
            fields.text("Availability"),
            doubt,
        ),
    }


def _cards(fields: Fields) -> tuple[float | None, str]:
    """Return the system's accelerators, and a doubt if contradictory."""
    stated = fields.number("Total Accelerators")
    each, nodes = fields.number("a#"), fields.number("Nodes") or 1
    total = stated if stated is not None else (each * nodes if each is not None else None)
    written = re.search(r"\(x(\d+)\)", fields.text("Accelerator") or "")
    if written and total is not None and float(written[1]) != total:
        return float(written[1]), f"the name says x{written[1]}, nodes times cards is {total:g}: do not divide by it"
    return total, ""


IMPORTERS = (
    Importer(KIND_INFERENCE_PERF, recognise_inference_perf, read_inference_perf),
    Importer(KIND_INFERENCEX, recognise_inferencex, read_inferencex),
    Importer(KIND_MLPERF, recognise_mlperf, read_mlperf),
    Importer(KIND_SGLANG_BENCH, recognise_sglang_bench, read_sglang_bench),
    Importer(KIND_VLLM_BENCH, recognise_vllm_bench, read_vllm_bench),
    Importer("vllm bench sweep csv", recognise_vllm_sweep, read_vllm_sweep),
    Importer("serving benchmark text block", recognise_block, read_block),
)
