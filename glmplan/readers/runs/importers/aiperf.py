"""AIPerf and genai-perf: the JSON and CSV summaries and the per-request JSONL."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator
from typing import Any

from glmplan.readers.runs.importers.record import (
    BadRecord,
    Fields,
    Imported,
    Problem,
    Source,
    by_keys,
    by_text,
    documents,
    row_identifier,
)
from glmplan.readers.runs.importers.serving_columns import few_requests, notes

__all__ = ["KIND", "read", "read_csv", "read_requests", "recognise", "recognise_csv", "recognise_requests"]

KIND = "aiperf"
_TO_MS = {"ms": 1.0, "s": 1e3, "sec": 1e3, "us": 1e-3, "µs": 1e-3, "ns": 1e-6}
_CSV_NAMES = {
    "Request Latency": "request_latency",
    "Time to First Token": "time_to_first_token",
    "Inter Token Latency": "inter_token_latency",
    "Inter Chunk Latency": "inter_chunk_latency",
    "Input Sequence Length": "input_sequence_length",
    "Output Sequence Length": "output_sequence_length",
    "Effective Concurrency": "effective_concurrency",
    "Output Token Throughput": "output_token_throughput",
    "Total Token Throughput": "total_token_throughput",
    "Request Throughput": "request_throughput",
    "Request Count": "request_count",
    "Benchmark Duration": "benchmark_duration",
    "Completed Requests": "completed_request_count",
}
recognise = by_keys("time_to_first_token", "input_config", without="request_start_ns")
recognise_requests = by_keys("metadata", "metrics", "request_start_ns")
recognise_csv = by_text(r"^Metric,avg,min,max")


def read(source: Source) -> Imported:
    """Read a JSON summary.

    `inter_token_latency` is (latency - TTFT) / (n - 1) for each request, so it fills TPOT; gaps between chunks
    fill ITL.

    Parameters
    ----------
    source : Source
        The file.

    Returns
    -------
    Imported
        The run and problems.
    """
    return source.collect(_rows)


def _rows(fields: Fields) -> Iterator[dict[str, Any]]:
    config = fields.value.get("input_config")
    yield _row(fields, users=_find(config, "concurrency"), rate=_find(config, "request_rate"), model=_model(config))


def _row(fields: Fields, *, users: float | None, rate: float | None, model: str | None) -> dict[str, Any]:
    def ms(name: str, what: str) -> float | None:
        part = fields.inside(name)
        value = part.number(what)
        unit = part.text("unit") or "ms"
        if value is not None and unit not in _TO_MS:
            fields.problems.append(Problem(fields.line, f"{name}.unit", f"expected a unit of time, got {unit!r}"))
            return None
        return None if value is None else value * _TO_MS[unit]

    def avg(name: str) -> float | None:
        return fields.inside(name).number("avg")

    count = fields.inside("request_count").require("avg")
    if count < 1:
        raise BadRecord(Problem(fields.line, "request_count.avg", "expected 1 or more, got 0"))
    lost = max((avg("completed_request_count") or count) - count, 0)
    return {
        "measured_on": (fields.text("start_time") or "")[:10] or None,
        "checkpoint": model,
        "phase": "serving",
        "concurrency": users,
        "request_rate_per_s": rate,
        "concurrency_effective": avg("effective_concurrency"),
        "num_requests": count + lost,
        "input_tokens": avg("input_sequence_length"),
        "output_tokens": fields.inside("output_sequence_length").require("avg"),
        "output_tokens_per_s": avg("output_token_throughput"),
        "total_tokens_per_s": avg("total_token_throughput"),
        "wall_s": avg("benchmark_duration"),
        "ttft_mean_ms": ms("time_to_first_token", "avg"),
        "ttft_p50_ms": ms("time_to_first_token", "p50"),
        "ttft_p99_ms": ms("time_to_first_token", "p99"),
        "tpot_mean_ms": ms("inter_token_latency", "avg"),
        "tpot_p50_ms": ms("inter_token_latency", "p50"),
        "tpot_p99_ms": ms("inter_token_latency", "p99"),
        "itl_mean_ms": ms("inter_chunk_latency", "avg"),
        "itl_p50_ms": ms("inter_chunk_latency", "p50"),
        "itl_p99_ms": ms("inter_chunk_latency", "p99"),
        "e2e_mean_ms": ms("request_latency", "avg"),
        "e2e_p99_ms": ms("request_latency", "p99"),
        "notes": notes(
            KIND,
            f"{lost:.0f} failed" if lost else "",
            "the run was cancelled" if fields.value.get("was_cancelled") is True else "",
            few_requests(count),
        ),
    }


def _find(value: Any, key: str) -> float | None:
    """Find a number by its name anywhere in a configuration, whose shape differs between versions."""
    if isinstance(value, dict):
        found = value.get(key)
        if isinstance(found, int | float) and not isinstance(found, bool):
            return float(found)
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


def read_csv(source: Source) -> Imported:
    """Read a CSV summary. It does not say how many users there were; `concurrency_effective` is measured.

    Parameters
    ----------
    source : Source
        The file.

    Returns
    -------
    Imported
        The run and problems.
    """
    header: list[str] = []
    value: dict[str, dict[str, Any]] = {}
    problems: list[Problem] = []
    reader = csv.reader(io.StringIO(source.text))
    for cells in reader:
        if cells and cells[0] == "Metric":
            header = cells
        elif len(cells) > 1 and header:
            name, _, unit = cells[0].partition(" (")
            key = _CSV_NAMES.get(name.strip())
            if key is None:
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
    return Imported("", [{"id": row_identifier(source.text, 0), **row}], problems)


def read_requests(source: Source) -> Imported:
    """Read the per-request JSONL into one run; warm-up, cancelled and failed requests are left out.

    Parameters
    ----------
    source : Source
        The file.

    Returns
    -------
    Imported
        The run and problems.
    """
    found, problems = documents(source.text)
    kept: list[Fields] = []
    lost = 0
    for document in found:
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
        "notes": notes(f"{KIND} requests", f"{lost} failed" if lost else "", few_requests(len(kept))),
    }
    row.pop("e2e_p50_ms", None)
    return Imported("", [{"id": row_identifier(source.text, 0), **row}], problems)


def _value(fields: Fields, name: str) -> float | None:
    part = fields.inside("metrics", name)
    value = part.number("value")
    return None if value is None else value * _TO_MS.get(part.text("unit") or "ms", math.nan)


def _statistics(metric: str, values: list[float | None] | list[float]) -> dict[str, float]:
    import numpy as np

    kept = [value for value in values if value is not None]
    if not kept:
        return {}
    name: Callable[[str], str] = f"{metric}_{{}}_ms".format
    p50, p99 = np.percentile(kept, [50, 99])
    return {name("mean"): float(np.mean(kept)), name("p50"): float(p50), name("p99"): float(p99)}
