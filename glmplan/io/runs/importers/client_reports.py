"""Import reports of AIPerf (genai-perf), GuideLLM, genai-bench and fmperf.

JSON and CSV summaries, per-request JSONL.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Iterator
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
    csv_table,
    documents,
    few_requests,
    metric_columns,
    milliseconds,
    notes,
    row_identifier,
)
from glmplan.units import Milliseconds

__all__ = [
    "IMPORTERS",
    "read_aiperf",
    "read_csv_aiperf",
    "read_csv_guidellm",
    "read_fmperf",
    "read_genai_bench",
    "read_guidellm",
    "read_requests",
    "recognise_csv_guidellm",
]


KIND_AIPERF = "aiperf"
_TO_MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3, "µs": 1e-3, "ns": 1e-6}
#: metric of a column → its name in AIPerf, whose time between tokens leaves the TTFT out
_METRICS = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2e": "request_latency",
}
#: lower-case label of a CSV → its name in the JSON, where it is not the label with underscores; GenAI-Perf and AIPerf
#: write "Time To" and "Time to", the first releases of GenAI-Perf count tokens by their number
_CSV_NAMES = {
    "num input token": "input_sequence_length",
    "num output token": "output_sequence_length",
    "completed requests": "completed_request_count",
}
_READ = {
    *_METRICS.values(), "input_sequence_length", "output_sequence_length", "effective_concurrency",
    "output_token_throughput", "total_token_throughput", "request_throughput", "request_count", "benchmark_duration",
    "completed_request_count", "error_request_count",
}  # fmt: skip
recognise_aiperf = by_keys("time_to_first_token", "input_config", without="request_start_ns")
recognise_requests = by_keys("metadata", "metrics", "request_start_ns")
recognise_csv_aiperf = by_text(r"^Metric,avg,min,max")


def read_aiperf(source: Source) -> Imported:
    """Read a JSON summary.

    `inter_token_latency` is (latency - TTFT) / (n - 1) for each request, so it fills TPOT; chunk gaps fill ITL.
    """
    return source.collect(_rows_aiperf)


def _rows_aiperf(fields: Fields) -> Iterator[dict[str, Any]]:
    config = fields.value.get("input_config")
    loads = _counted(config)
    rate = _find(loads, "request_rate") or _find(loads, "rate")
    yield _row(fields, users=_find(loads, "concurrency"), rate=rate, model=_model(config))


def _counted(config: Any) -> Any:
    """Return the load of a configuration without its warm-up phases."""
    phases = config.get("phases") if isinstance(config, dict) else None
    if not isinstance(phases, list):
        return config
    return [
        phase
        for phase in phases
        if isinstance(phase, dict) and "warmup" not in (phase.get("kind"), phase.get("name"))
        and phase.get("exclude_from_results") is not True
    ]  # fmt: skip


def _row(fields: Fields, *, users: float | None, rate: float | None, model: str | None) -> dict[str, Any]:
    def ms(name: str, what: str) -> float | None:
        return _time(fields.inside(name), what)

    def avg(name: str) -> float | None:
        return fields.inside(name).number("avg")

    count = avg("request_count")  # GenAI-Perf to 0.0.8 writes none
    if count is not None and count < 1:
        raise BadRecord(Problem(fields.line, "request_count.avg", "expected 1 or more, got 0"))
    done = count or 0
    lost = max((avg("completed_request_count") or done) - done, avg("error_request_count") or 0)
    return {
        "measured_on": (fields.text("start_time") or "")[:10] or None,
        "checkpoint": model,
        "phase": "serving",
        "concurrency": users,
        "request_rate_per_s": rate,
        "concurrency_effective": avg("effective_concurrency"),
        "num_requests": None if count is None else count + lost,
        "input_tokens": avg("input_sequence_length"),
        "output_tokens": fields.inside("output_sequence_length").require("avg"),
        "output_tokens_per_s": avg("output_token_throughput"),
        "total_tokens_per_s": avg("total_token_throughput"),
        "wall_s": avg("benchmark_duration"),
        **metric_columns(_METRICS, ms, ("avg", "p50", "p99")),
        "notes": notes(
            _client(fields),
            f"{lost:.0f} failed" if lost else "",
            "the run was cancelled" if fields.value.get("was_cancelled") is True else "",
            few_requests(count) if count is not None else "",
        ),
    }


def _client(fields: Fields) -> str:
    """Return the client's name: GenAI-Perf's config has its own names."""
    config = fields.value.get("input_config")
    own = isinstance(config, dict) and {"perf_analyzer", "formatted_model_name", "measurement_interval"} & set(config)
    return "genai-perf" if own or fields.value.get("client") == "genai-perf" else KIND_AIPERF


def _find(value: Any, key: str) -> float | None:
    """Return a number by its name anywhere in a configuration.

    The shape of configurations differs between versions.
    """
    if isinstance(value, dict):
        if key in value and (result := Fields(value, 0, []).number(key)) is not None:
            return result
        return next((f for v in value.values() if (f := _find(v, key)) is not None), None)
    if isinstance(value, list):
        return next((f for v in value if (f := _find(v, key)) is not None), None)
    return None


def _model(config: Any) -> str | None:
    inside = Fields(config if isinstance(config, dict) else {}, 0, [])
    names = (
        inside.value.get("model_names")
        or inside.value.get("models")
        or inside.inside("endpoint").value.get("model_names")
    )
    if isinstance(names, dict):
        names = names.get("items")
    first = names[0] if isinstance(names, list) and names else None
    return first.get("name") if isinstance(first, dict) else first


def read_csv_aiperf(source: Source) -> Imported:
    """Read a CSV summary, which states no concurrency.

    The requests in flight are the rate of requests times their time.
    """
    header: list[str] = []
    # GenAI-Perf writes names in title case
    client = "genai-perf" if "Time To First Token" in source.text else KIND_AIPERF
    value: dict[str, Any] = {"client": client}
    problems: list[Problem] = []
    reader = csv.reader(io.StringIO(source.text))
    for cells in reader:
        if cells and cells[0] == "Metric":
            header = cells
        elif len(cells) > 1 and header:
            name, _, unit = cells[0].partition(" (")
            label = name.strip().lower()
            key = _CSV_NAMES.get(label, label.replace(" ", "_"))
            if key not in _READ:
                continue
            if len(cells) != len(header):
                problems.append(Problem(reader.line_num, cells[0], f"expected {len(header)} cells, got {len(cells)}"))
                continue
            figures: dict[str, str | None] = dict(zip(header[1:], cells[1:], strict=True))
            figures["avg"] = figures.get("avg") or figures.get("Value")
            value[key] = {"unit": unit.rstrip(")").split(") ")[0] or "ms", **figures}
    try:
        row = _row(Fields(value, 1, problems), users=None, rate=None, model=None)
    except BadRecord as error:
        return Imported("", [], [*problems, error.problem])
    whole, rate = row.get("e2e_mean_ms"), Fields(value, 1, problems).inside("request_throughput").number("avg")
    running = row.get("concurrency_effective") or (rate * whole * 1e-3 if rate and whole else None)
    if running:
        words = notes(row["notes"], "requests in flight by Little's law: the file states no concurrency")
        row |= {"concurrency": max(round(running), 1), "notes": words}
    return Imported("", [{"id": row_identifier(source.text, 0), **row}], problems)


def read_requests(source: Source) -> Imported:
    """Read the per-request JSONL into one run.

    Warm-up, cancelled and failed requests are left out.
    """
    result, problems = documents(source.text)
    kept: list[Fields] = []
    lost = 0
    for document in result:
        try:
            fields = Fields(document.value, document.line, problems)
            about = fields.inside("metadata")
            if about.text("benchmark_phase") not in (None, "profiling"):
                continue
            if fields.value.get("error") or about.value.get("was_cancelled") is True:
                lost += 1
                continue
            about.require("request_start_ns"), about.require("request_end_ns")
            fields.inside("metrics", "output_sequence_length").require("value")
        except BadRecord as error:
            problems.append(error.problem)
            continue
        kept.append(fields)
    if not kept:
        return Imported("", [], problems or [Problem(0, "", "expected at least one finished request")])
    begin = min(f.inside("metadata").require("request_start_ns") for f in kept)
    wall = (max(f.inside("metadata").require("request_end_ns") for f in kept) - begin) * 1e-9
    sums = {
        n: sum(f.inside("metrics", n).number("value") or 0 for f in kept)
        for n in ("input_sequence_length", "output_sequence_length")
    }
    gaps = sorted(g for f in kept for g in f.inside("metrics", "inter_chunk_latency").numbers("value"))
    row: dict[str, Any] = {
        "phase": "serving",
        "num_requests": len(kept) + lost,
        "input_tokens": sums["input_sequence_length"] / len(kept),
        "output_tokens": sums["output_sequence_length"] / len(kept),
        "output_tokens_per_s": sums["output_sequence_length"] / wall,
        "total_tokens_per_s": sum(sums.values()) / wall,
        "wall_s": wall,
        "concurrency_effective": sum(_value(f, "request_latency") or 0 for f in kept) * 1e-3 / wall,
        **_statistics("ttft", [_value(f, "time_to_first_token") for f in kept]),
        **_statistics("tpot", [_value(f, "inter_token_latency") for f in kept]),
        **_statistics("itl", gaps),
        **_statistics("e2e", [_value(f, "request_latency") for f in kept]),
        "notes": notes(f"{KIND_AIPERF} requests", f"{lost} failed" if lost else "", few_requests(len(kept))),
    }
    row.pop("e2e_p50_ms", None)
    return Imported("", [{"id": row_identifier(source.text, 0), **row}], problems)


def _time(part: Fields, what: str) -> Milliseconds | None:
    """Return a value in the unit beside it."""
    value, unit = part.number(what), part.text("unit") or "ms"
    if value is not None and unit not in _TO_MS:
        part.problems.append(Problem(part.line, f"{part.prefix}unit", f"expected a unit of time, got {unit!r}"))
        return None
    return None if value is None else value * _TO_MS[unit]


def _value(fields: Fields, name: str) -> Milliseconds | None:
    return _time(fields.inside("metrics", name), "value")


def _statistics(metric: str, values: list[float | None] | list[float]) -> dict[str, float]:
    import numpy as np

    kept = [value for value in values if value is not None]
    if not kept:
        return {}
    name: Callable[[str], str] = f"{metric}_{{}}_ms".format
    p50, p99 = np.percentile(kept, [50, 99])
    return {name("mean"): float(np.mean(kept)), name("p50"): float(p50), name("p99"): float(p99)}


KIND_FMPERF = "fmperf"
recognise_fmperf = by_keys("results", "response_idx", "worker_idx", "exp_num_users")


def read_fmperf(source: Source) -> Imported:
    """Read fmperf's records of tokens into one run [1]_.

    The first of a request has the time to the first token, each other one the time since the one before. Prompts are
    not in the file: `--set input_tokens`.

    References
    ----------
    .. [1] fmperf-project/fmperf, fmperf/loadgen/run.py at 04a1c50d.
    """
    result, problems = documents(source.text)
    requests: dict[tuple[float, float, float], list[tuple[float, float, float]]] = {}
    broken: set[tuple[float, float, float]] = set()
    for document in result:
        for record in Fields(document.value, document.line, problems).value.get("results", ()):
            try:
                fields = Fields(record, document.line, problems)
                users, worker, number = (fields.require(n) for n in ("exp_num_users", "worker_idx", "request_idx"))
                token = tuple(fields.require(name) for name in ("timestamp", "duration_ms", "n_tokens"))
            except BadRecord as error:
                problems.append(error.problem)
                continue
            if fields.value.get("ok") is True and fields.value.get("exclude") is not True:
                requests.setdefault((users, worker, number), []).append((token[0], token[1], token[2]))
            elif fields.text("error"):  # the record after the last token says that there is no more
                broken.add((users, worker, number))
    kept = {key: tokens for key, tokens in requests.items() if key not in broken}
    if not kept:
        return Imported("", [], problems or [Problem(0, "", "expected at least one finished request")])
    begin = min(tokens[0][0] - tokens[0][1] * 1e6 for tokens in kept.values())
    wall = (max(tokens[-1][0] for tokens in kept.values()) - begin) * 1e-9
    count = sum(token[2] for tokens in kept.values() for token in tokens)
    gaps = [[token[1] for token in tokens[1:]] for tokens in kept.values()]
    row: dict[str, Any] = {
        "phase": "serving",
        "concurrency": max(users for users, _, _ in kept),
        "num_requests": len(requests),
        "output_tokens": count / len(kept),
        "output_tokens_per_s": count / wall,
        "wall_s": wall,
        **_statistics("ttft", [tokens[0][1] for tokens in kept.values()]),
        **_statistics("tpot", [sum(one) / len(one) for one in gaps if one]),
        **_statistics("itl", [gap for one in gaps for gap in one]),
        "notes": notes(KIND_FMPERF, f"{len(broken)} failed" if broken else "", few_requests(len(kept))),
    }
    return Imported("", [{"id": row_identifier(source.text, 0), **row}], problems)


KIND_GUIDELLM = "guidellm"
KIND_CSV = "guidellm csv"
_TTFT_INCLUDED = "GuideLLM's time per output token includes TTFT"
recognise_guidellm = by_keys("benchmarks", "time_to_first_token_ms", "inter_token_latency_ms")


def read_guidellm(source: Source) -> Imported:
    """Read each benchmark of a report.

    GuideLLM's `time_per_output_token_ms` includes TTFT and goes to its own column. Its `inter_token_latency_ms` is
    (last token - first token) / (n - 1) for each request, which is TPOT elsewhere: its percentiles are TPOT's, and
    only its token-weighted mean is also the mean ITL.
    """
    return source.collect(_rows_guidellm, array="benchmarks")


def _rows_guidellm(fields: Fields) -> Iterator[dict[str, Any]]:
    metrics = fields.inside("metrics")
    done = {name: fields.inside("metrics", name, "successful") for name in metrics.value}
    if "output_token_count" not in done:
        raise BadRecord(Problem(fields.line, "metrics.output_token_count", "expected a summary, the field is missing"))

    def of(name: str, what: str = "mean") -> float | None:
        return done[name].number(what) if name in done else None

    def p99(name: str) -> float | None:
        return fields.inside("metrics", name, "successful", "percentiles").number("p99")

    count = done["output_token_count"].require("count")
    if count < 1:
        raise BadRecord(
            Problem(fields.line, "metrics.output_token_count.successful.count", "expected 1 or more, got 0")
        )
    totals = fields.inside("metrics", "request_totals")
    lost = (totals.number("errored") or 0) + (totals.number("incomplete") or 0)
    tpot: dict[str, float | None] = _tpot(fields) or {
        # a token-weighted mean is the mean over requests only where all outputs are equally long
        "tpot_mean_ms": of("inter_token_latency_ms") if not of("output_token_count", "std_dev") else None,
        "tpot_p50_ms": of("inter_token_latency_ms", "median"),
        "tpot_p99_ms": p99("inter_token_latency_ms"),
    }
    yield {
        "phase": "serving",
        **_load(fields.inside("config", "strategy") if "config" in fields else fields.inside("args", "strategy")),
        "concurrency_effective": of("request_concurrency"),
        "num_requests": count + lost,
        "input_tokens": of("prompt_token_count"),
        "output_tokens": done["output_token_count"].require("mean"),
        "output_tokens_per_s": of("output_tokens_per_second"),
        "total_tokens_per_s": of("tokens_per_second"),
        "wall_s": fields.number("duration"),
        "ttft_mean_ms": of("time_to_first_token_ms"),
        "ttft_p50_ms": of("time_to_first_token_ms", "median"),
        "ttft_p99_ms": p99("time_to_first_token_ms"),
        **tpot,
        "tpot_incl_ttft_mean_ms": of("time_per_output_token_ms"),
        "itl_mean_ms": of("inter_token_latency_ms"),
        "e2e_mean_ms": milliseconds(of("request_latency")),
        "e2e_p99_ms": milliseconds(p99("request_latency")),
        "notes": notes(KIND_GUIDELLM, _TTFT_INCLUDED, f"{lost:.0f} failed" if lost else "", few_requests(count)),
    }


def _load(strategy: Fields) -> dict[str, float | None]:
    kind = strategy.text("type_", "type", "kind") or ""
    users = 1.0 if kind == "synchronous" else strategy.positive("streams", "max_concurrency")
    rate = strategy.positive("rate", "async_rate") if kind in ("constant", "poisson", "async") else None
    return {"concurrency": None if rate else users, "request_rate_per_s": rate}


def _tpot(fields: Fields) -> dict[str, float | None]:
    """Return TPOT as `vllm bench serve` defines it, from single requests.

    None where the report has no single requests.
    """
    requests = fields.value.get("requests")
    kept = requests.get("successful") if isinstance(requests, dict) else None
    result: list[float] = []
    for request in kept if isinstance(kept, list) else []:
        each = Fields(request, fields.line, [])
        timings, tokens = each.inside("info", "timings"), each.inside("output_metrics")
        count = each.number("output_tokens") or tokens.number("text_tokens", "tokens")
        first, last = timings.number("first_token_iteration"), timings.number("last_token_iteration")
        if count is not None and count > 1 and first is not None and last is not None:
            result.append((last - first) / (count - 1) * 1e3)
    if not result:
        return {}
    cuts = statistics.quantiles(result, n=100, method="inclusive") if len(result) > 1 else result * 99
    return {
        "tpot_mean_ms": statistics.fmean(result),
        "tpot_p50_ms": statistics.median(result),
        "tpot_p99_ms": cuts[98],
    }


def recognise_csv_guidellm(source: Source) -> bool:
    """Return True for a GuideLLM CSV report.

    It has three header rows, the first of which names groups.
    """
    return (
        source.text.lstrip("\ufeff").startswith("Run Info,") or "Inter Token Latency,Inter Token" in source.text[:4000]
    )


def read_csv_guidellm(source: Source) -> Imported:
    """Read each benchmark of a CSV report."""
    return source.gather(csv_table(source.text, headers=3), _csv_rows)


def _csv_rows(fields: Fields) -> Iterator[dict[str, Any]]:
    def stat(group: str, unit: str, what: str = "Mean") -> float | None:
        return fields.number(f"{group}|Successful {unit}|{what}")

    def p99(group: str, unit: str) -> float | None:
        try:
            # p0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9
            return float(json.loads(fields.value.get(f"{group}|Successful {unit}|Percentiles") or "[]")[9])
        except (ValueError, IndexError, TypeError):
            return None

    spread = fields.number("Token Metrics|Successful Output Tokens|Std Dev")
    done = fields.require("Request Counts|Successful")
    lost = (fields.number("Request Counts|Incomplete") or 0) + (fields.number("Request Counts|Errored") or 0)
    strategy, _, level = (fields.text("Benchmark|Strategy") or "").partition("@")
    figure = float(level) if level.replace(".", "", 1).isdigit() else None
    open_loop = strategy in ("constant", "poisson", "async")
    yield {
        "phase": "serving",
        "concurrency": None if open_loop else (1.0 if strategy == "synchronous" else figure),
        "request_rate_per_s": figure if open_loop else None,
        "concurrency_effective": fields.number("Server Throughput|Successful Concurrency|Mean"),
        "num_requests": done + lost,
        "input_tokens": stat("Token Metrics", "Input Tokens"),
        "output_tokens": fields.require("Token Metrics|Successful Output Tokens|Mean"),
        "output_tokens_per_s": stat("Token Throughput", "Output Tokens/Sec"),
        "total_tokens_per_s": stat("Token Throughput", "Total Tokens/Sec"),
        "wall_s": fields.number("Timings|Duration|Sec"),
        "ttft_mean_ms": stat("Time to First Token", "ms"),
        "ttft_p50_ms": stat("Time to First Token", "ms", "Median"),
        "ttft_p99_ms": p99("Time to First Token", "ms"),
        "tpot_mean_ms": stat("Inter Token Latency", "ms") if not spread else None,
        "tpot_p50_ms": stat("Inter Token Latency", "ms", "Median"),
        "tpot_p99_ms": p99("Inter Token Latency", "ms"),
        "tpot_incl_ttft_mean_ms": stat("Time per Output Token", "ms"),
        "itl_mean_ms": stat("Inter Token Latency", "ms"),
        "e2e_mean_ms": milliseconds(stat("Request Latency", "Sec")),
        "e2e_p99_ms": milliseconds(p99("Request Latency", "Sec")),
        "notes": notes(KIND_GUIDELLM, _TTFT_INCLUDED, f"{lost:.0f} failed" if lost else "", few_requests(done)),
    }


KIND_GENAI_BENCH = "genai-bench"
#: metric of a column → its name in genai-bench, whose `tpot` leaves the first token out
_GENAI_METRICS = {"ttft": "ttft", "tpot": "tpot", "e2e": "e2e_latency"}


def read_genai_bench(source: Source) -> Imported:
    """Read a run of genai-bench; `_time_unit` names its unit [1]_.

    References
    ----------
    .. [1] sgl-project/genai-bench, genai_bench/metrics/metrics.py at 252dca79.
    """
    return source.collect(_rows_genai_bench)


def _rows_genai_bench(fields: Fields) -> Iterator[dict[str, Any]]:
    found = fields.inside("aggregated_metrics")
    scale = _TO_MS[fields.text("_time_unit") or "s"]
    done, lost = found.require("num_completed_requests"), found.number("num_error_requests") or 0
    if done < 1:
        raise BadRecord(Problem(fields.line, "num_completed_requests", "expected 1 or more, got 0"))

    def ms(name: str, what: str) -> float | None:
        value = found.inside("stats", name).number(what)
        return None if value is None else value * scale

    yield {
        "phase": "serving",
        "concurrency": found.positive("num_concurrency") if not found.positive("request_rate") else None,
        "request_rate_per_s": found.positive("request_rate"),
        "num_requests": done + lost,
        "input_tokens": found.inside("stats", "num_input_tokens").number("mean"),
        "output_tokens": found.inside("stats", "num_output_tokens").number("mean"),
        "output_tokens_per_s": found.require("mean_output_throughput_tokens_per_s"),
        "total_tokens_per_s": found.number("mean_total_tokens_throughput_tokens_per_s"),
        "wall_s": found.number("run_duration"),
        **metric_columns(_GENAI_METRICS, ms, ("mean", "p50", "p99")),
        "notes": notes(
            KIND_GENAI_BENCH, found.text("scenario"), f"{lost:.0f} failed" if lost else "", few_requests(done)
        ),
    }


IMPORTERS = (
    Importer(KIND_GENAI_BENCH, by_keys("aggregated_metrics", "mean_output_throughput_tokens_per_s"), read_genai_bench),
    Importer(KIND_GUIDELLM, recognise_guidellm, read_guidellm),
    Importer(KIND_CSV, recognise_csv_guidellm, read_csv_guidellm),
    Importer(KIND_FMPERF, recognise_fmperf, read_fmperf),
    Importer("aiperf requests", recognise_requests, read_requests),
    Importer(KIND_AIPERF, recognise_aiperf, read_aiperf),
    Importer("aiperf csv", recognise_csv_aiperf, read_csv_aiperf),
)
