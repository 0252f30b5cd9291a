"""SGLang's `bench_serving --output-file`: one JSON object on each line; and the text block both clients print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from glmplan.readers.runs.importers.json_records import Document
from glmplan.readers.runs.importers.record import (
    BadRecord,
    Fields,
    Imported,
    Problem,
    Source,
    by_keys,
    by_text,
)
from glmplan.readers.runs.importers.serving_columns import few_requests, latencies, load, mean_lengths, notes

__all__ = ["KIND", "block_kind", "read", "read_block", "recognise", "recognise_block"]

KIND = "sglang bench_serving"
block_kind = "serving benchmark text block"

#: server_info fields of SGLang and the columns they fill.
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
recognise = by_keys("mean_e2e_latency_ms", "total_output_tokens")
_BLOCK = r"=+\s*Serving Benchmark Result\s*=+"
recognise_block = by_text(_BLOCK)


def read(source: Source) -> Imported:
    """Read the runs of a file.

    Random lengths are uniform from one to nominal by default, so lengths come from totals, not from
    `random_input_len`. `backend` names the protocol, so the engine is known only where `server_info` tells it.

    Parameters
    ----------
    source : Source
        The file.

    Returns
    -------
    Imported
        Runs and problems.
    """
    return source.collect(_rows)


def _rows(fields: Fields) -> Iterator[dict[str, Any]]:
    completed = fields.require("completed")
    if completed < 1:
        raise BadRecord(Problem(fields.line, "completed", "expected at least one finished request, got 0"))
    yield {
        "phase": "serving",
        # readers of the tables know this protocol: lengths uniform from zero to twice the mean
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
            KIND, fields.text("tag"), fields.text("dataset_name"), _lengths(fields), few_requests(completed)
        ),
    }


def _ratio(fields: Fields) -> float | None:
    """Return the shortest random length as a share of the longest; None where lengths are not random."""
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
    # with DP attention SGLang counts the same cards twice: tp_size spans them, dp_size of it are attention replicas
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

    Parameters
    ----------
    source : Source
        The text.

    Returns
    -------
    Imported
        Runs and problems.

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
    return source.gather(_blocks(source.text), _rows)


def _blocks(text: str) -> Iterator[Document]:
    parts = list(re.finditer(_BLOCK, text))
    for begin, end in zip(parts, [*(part.start() for part in parts[1:]), None], strict=True):
        value: dict[str, str] = {}
        for line in text[begin.end() : end].splitlines():
            name, _, figure = line.partition(":")
            name = name.strip().lower()
            key = next((ours for pattern, ours in _LINES.items() if re.fullmatch(pattern, name)), None)
            metric = re.fullmatch(r"(mean|median|p\d+) (.+?) \(ms\)", name)
            if metric and metric[2] in _METRICS:
                key = f"{metric[1]}_{_METRICS[metric[2]]}_ms"
            if key and figure.strip() and key not in value:
                value[key] = figure.strip().split()[0]
        yield Document(value, 1 + text.count("\n", 0, begin.start()))
