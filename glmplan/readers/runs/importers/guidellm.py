"""GuideLLM reports, JSON and CSV."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from typing import Any

from glmplan.readers.runs.importers.record import (
    BadRecord,
    Fields,
    Imported,
    Problem,
    Source,
    by_keys,
    milliseconds,
)
from glmplan.readers.runs.importers.serving_columns import few_requests, notes
from glmplan.readers.runs.importers.tables import csv_table

__all__ = ["KIND", "KIND_CSV", "read", "read_csv", "recognise", "recognise_csv"]

KIND = "guidellm"
KIND_CSV = "guidellm csv"
_TTFT_INCLUDED = "GuideLLM's time per output token includes TTFT"
recognise = by_keys("benchmarks", "time_to_first_token_ms", "inter_token_latency_ms")


def read(source: Source) -> Imported:
    """Read each benchmark of a report.

    GuideLLM's `time_per_output_token_ms` includes TTFT and goes to its own column. Its `inter_token_latency_ms` is
    (last token - first token) / (n - 1) for each request, which is TPOT elsewhere: its percentiles are TPOT's, and
    only its token-weighted mean is also the mean ITL.

    Parameters
    ----------
    source : Source
        The file.

    Returns
    -------
    Imported
        Runs and problems.
    """
    return source.collect(_rows, array="benchmarks")


def _rows(fields: Fields) -> Iterator[dict[str, Any]]:
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
        # a token-weighted mean is the mean over requests only where all answers are equally long
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
        "notes": notes(KIND, _TTFT_INCLUDED, f"{lost:.0f} failed" if lost else "", few_requests(count)),
    }


def _load(strategy: Fields) -> dict[str, float | None]:
    kind = strategy.text("type_", "type", "kind") or ""
    users = 1.0 if kind == "synchronous" else strategy.positive("streams", "max_concurrency")
    rate = strategy.positive("rate", "async_rate") if kind in ("constant", "poisson", "async") else None
    return {"concurrency": None if rate else users, "request_rate_per_s": rate}


def _tpot(fields: Fields) -> dict[str, float | None]:
    """Return TPOT by the definition of `vllm bench serve` from the single requests, where the report has them."""
    requests = fields.value.get("requests")
    kept = requests.get("successful") if isinstance(requests, dict) else None
    found: list[float] = []
    for request in kept if isinstance(kept, list) else []:
        each = Fields(request, fields.line, [])
        timings, tokens = each.inside("info", "timings"), each.inside("output_metrics")
        count = each.number("output_tokens") or tokens.number("text_tokens", "tokens")
        first, last = timings.number("first_token_iteration"), timings.number("last_token_iteration")
        if count is not None and count > 1 and first is not None and last is not None:
            found.append((last - first) / (count - 1) * 1e3)
    if not found:
        return {}
    cuts = statistics.quantiles(found, n=100, method="inclusive") if len(found) > 1 else found * 99
    return {
        "tpot_mean_ms": statistics.fmean(found),
        "tpot_p50_ms": statistics.median(found),
        "tpot_p99_ms": cuts[98],
    }


def recognise_csv(source: Source) -> bool:
    """Tell whether a file is a GuideLLM CSV report: three header rows, the first of which names groups.

    Parameters
    ----------
    source : Source
        The file.

    Returns
    -------
    bool
        Whether it is one.
    """
    return (
        source.text.lstrip("\ufeff").startswith("Run Info,") or "Inter Token Latency,Inter Token" in source.text[:4000]
    )


def read_csv(source: Source) -> Imported:
    """Read each benchmark of a CSV report.

    Parameters
    ----------
    source : Source
        The file.

    Returns
    -------
    Imported
        Runs and problems.
    """
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
        "notes": notes(KIND, _TTFT_INCLUDED, f"{lost:.0f} failed" if lost else "", few_requests(done)),
    }
