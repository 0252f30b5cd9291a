"""`vllm bench serve --save-result`: one JSON object for each run, several in one file with `--append-result`."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from typing import Any

from glmplan.readers.runs.columns import COLUMNS
from glmplan.readers.runs.importers.record import BadRecord, Fields, Imported, Problem, Source, by_keys
from glmplan.readers.runs.importers.serving_columns import few_requests, latencies, load, mean_lengths, notes

__all__ = ["KIND", "read", "recognise"]

KIND = "vllm bench serve"
recognise = by_keys("total_output_tokens", "request_throughput", without="mean_e2e_latency_ms")


def read(source: Source) -> Imported:
    """Read the runs of a file.

    The engine stays empty: `endpoint_type` and `backend` name the protocol the client spoke, not who answered.

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
        # what the user wrote with --metadata wins over what cannot be known otherwise; `backend` is the endpoint's type
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
        KIND,
        f"endpoint {fields.text('endpoint_type', 'backend')}" if "endpoint_type" in fields else "",
        f"{failed:.0f} failed" if failed else "",
        f"burstiness {fields.number('burstiness')}" if fields.number("burstiness") not in (None, 1.0) else "",
        few_requests(completed),
        warning,
    )
    yield row


def _day(date: str | None) -> str | None:
    found = re.match(r"(\d{4})-?(\d{2})-?(\d{2})", date or "")
    return "-".join(found.groups()) if found else None


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
    """Recount tokens from chunks where the client tokenised the text again.

    The sign: every request has the same number of chunks, yet the token counts differ from request to request and
    from it. The last chunk then is the one that carried `usage`: it follows the last token within microseconds.
    """
    gaps, counts = _gaps(fields), fields.numbers("output_lens")
    if "spec_decode_acceptance_length" in fields or len(gaps) < 3 or len(gaps) != len(counts):
        return {}
    chunks = {len(gap) for gap in gaps}
    if len(chunks) != 1 or len(set(counts)) == 1 or min(counts) <= 1 or min(len(g) for g in gaps) < 3:
        return {}
    # one busy moment of the client can stretch the gap before `usage`, so the requests vote
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
