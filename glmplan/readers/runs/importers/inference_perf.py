"""inference-perf (kubernetes-sigs): stage and summary metrics, everything in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from glmplan.readers.runs.importers.record import BadRecord, Fields, Imported, Problem, Source, by_keys, milliseconds
from glmplan.readers.runs.importers.serving_columns import few_requests, notes

__all__ = ["KIND", "read", "recognise"]

KIND = "inference-perf"
recognise = by_keys("load_summary", "successes")


def read(source: Source) -> Imported:
    """Read a report.

    `normalized_time_per_output_token` is latency / tokens and so includes TTFT; `time_per_output_token` does not.

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
    done, load = fields.inside("successes"), fields.inside("load_summary")
    count = done.require("count")
    if count < 1:
        raise BadRecord(Problem(fields.line, "successes.count", "expected 1 or more, got 0"))
    failed = fields.inside("failures").number("count") or 0

    def ms(name: str, what: str = "mean") -> float | None:
        return milliseconds(done.inside("latency", name).number(what))

    rate = done.inside("throughput").number("requests_per_sec")
    latency = done.inside("latency", "request_latency").require("mean")
    mean_gap, median_gap = ms("inter_token_latency"), ms("inter_token_latency", "median")
    bursts = mean_gap is not None and median_gap is not None and median_gap < 0.1 * mean_gap
    yield {
        "phase": "serving",
        "request_rate_per_s": load.positive("requested_rate"),
        "concurrency_effective": rate * latency if rate else None,
        "num_requests": count + failed,
        "input_tokens": done.inside("prompt_len").number("mean"),
        "output_tokens": done.inside("output_len").require("mean"),
        "output_tokens_per_s": done.inside("throughput").number("output_tokens_per_sec"),
        "total_tokens_per_s": done.inside("throughput").number("total_tokens_per_sec"),
        "wall_s": count / rate if rate else None,
        "ttft_mean_ms": ms("time_to_first_token"),
        "ttft_p50_ms": ms("time_to_first_token", "median"),
        "ttft_p99_ms": ms("time_to_first_token", "p99"),
        "tpot_mean_ms": ms("time_per_output_token"),
        "tpot_p50_ms": ms("time_per_output_token", "median"),
        "tpot_p99_ms": ms("time_per_output_token", "p99"),
        "tpot_incl_ttft_mean_ms": ms("normalized_time_per_output_token"),
        "itl_mean_ms": mean_gap,
        "itl_p50_ms": median_gap,
        "itl_p99_ms": ms("inter_token_latency", "p99"),
        "e2e_mean_ms": latency * 1e3,
        "e2e_p99_ms": ms("request_latency", "p99"),
        "notes": notes(
            KIND,
            f"{failed:.0f} failed" if failed else "",
            "" if "requested_rate" in load else "a summary over all stages: not one load level",
            "chunks came in bursts: the median ITL is not a token time" if bursts else "",
            few_requests(count),
        ),
    }
