"""Import the JSON summaries and printed tables of `evalscope perf`.

Names and units are those of EvalScope 1.0.0 and 1.14.1 (evalscope/perf/utils/benchmark_util.py, perf_constants.py and
rich_display.py of the published wheels).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from glmplan.io.runs.importers.record import (
    BadRecord,
    Document,
    Fields,
    Imported,
    Importer,
    Problem,
    Source,
    by_text,
    few_requests,
    notes,
)

__all__ = ["IMPORTERS"]

KIND = "evalscope perf"
#: column → names in a summary, from 1.4 on and before; seconds where the name says so
_SUMMARY = {
    "concurrency": ("Concurrency", "Number of concurrency"),
    "request_rate_per_s": ("Request Rate (req/s)", "Request rate (req/s)"),
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
_DONE = ("Success Requests", "Succeed requests")
_LOST = ("Failed Requests", "Failed requests")
_PER_CHUNK = ("Avg Decoded Tok/Iter", "Average decoded tokens per iter")
_CACHED = ("KV Cache Hit Rate (%)", "Average approx KV cache hit rate (%)")


def _rows(fields: Fields) -> Iterator[dict[str, Any]]:
    row: dict[str, Any] = {}
    for column, names in _SUMMARY.items():
        name = next((name for name in names if name in fields), names[0])
        value = fields.number(name)
        if value is not None and value > 0:  # -1: without limit, or no request was answered
            row[column] = value * (1e3 if column.endswith("_ms") and name.endswith("(s)") else 1.0)
    if "output_tokens_per_s" not in row:
        raise BadRecord(Problem(fields.line, _SUMMARY["output_tokens_per_s"][0], "expected a rate above 0"))
    done, lost = fields.number(*_DONE), fields.number(*_LOST) or 0
    chunk, cached = fields.number(*_PER_CHUNK) or 0, fields.number(*_CACHED) or 0
    yield {
        "phase": "serving",
        **row,
        "notes": notes(
            KIND,
            f"{lost:.0f} failed" if lost else "",
            f"{cached:.4g} % of the prompts cached" if cached > 0 else "",
            f"{chunk:.3g} tokens in a chunk: with drafting, set acceptance_length" if chunk > 1 else "",
            few_requests(done) if done is not None else "",
        ),
    }


def _read_json(source: Source) -> Imported:
    return source.collect(_rows)


_NUMBER = r"-?[\d,]+(?:\.\d+)?"
_BLOCK = r"Benchmarking summary:"
_LINE = re.compile(rf"^\W*([A-Z][\w .\-/]*?(?: \([\w/%]+\))?)\s*[|│]\s*({_NUMBER})\s*[|│]", re.MULTILINE)
_COUNTS = re.compile(rf"Total / Success / Failed\s*[|│]\s*({_NUMBER}) / ({_NUMBER}) / ({_NUMBER})")


def _read_blocks(source: Source) -> Imported:
    """Read each printed summary of a log, one for each load."""
    parts = [*re.finditer(_BLOCK, source.text)]
    records: list[Document | Problem] = []
    for begin, end in zip(parts, [*(part.start() for part in parts[1:]), None], strict=True):
        block = source.text[begin.end() : end]
        value: dict[str, str] = {}
        for name, figure in _LINE.findall(block):
            value.setdefault(name, figure)
        if counts := _COUNTS.search(block):
            value |= dict(zip((_SUMMARY["num_requests"][0], _DONE[0], _LOST[0]), counts.groups(), strict=True))
        records.append(Document(value, 1 + source.text.count("\n", 0, begin.start())))
    return source.gather(records, _rows)


_CELLS = re.compile(r"[│┃|]")
#: metric of the table of loads → column and its unit in the unit of the column
_METRICS = {
    "Latency (s)": ("e2e", 1e3), "TTFT (ms)": ("ttft", 1.0), "TPOT (ms)": ("tpot", 1.0), "TTFT (s)": ("ttft", 1e3),
    "TPOT (s)": ("tpot", 1e3), "Input Tokens": ("input_tokens", 1.0), "Output Tokens": ("output_tokens", 1.0),
}  # fmt: skip
_OLD_HEADER = r"Conc\..*RPS.*Lat\.\(s\).*Lat\.\(s\).*toks/s.*TTFT\(s\)"
_NEW_TITLE = r"^\s*Performance Overview\s*$"


def _table_rows(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        cells = [cell.strip() for cell in _CELLS.split(line.strip().strip("│┃|"))]
        if len(cells) > 1:
            yield cells


def _old_table(source: Source) -> Imported:
    """Read the table of loads to release 1.3.

    Its times are in seconds, and it has no lengths.
    """
    records: list[Document | Problem] = []
    names = ("Number of concurrency", "", "Average latency (s)", "p99_latency", "Output token throughput (tok/s)",
             "Average time to first token (s)", "p99_ttft", "Average time per output token (s)",
             "p99_tpot")  # fmt: skip
    for cells in _table_rows(source.text):
        if len(cells) == len(names) + 1 and re.fullmatch(r"\d+", cells[0]):
            records.append(Document(dict(zip(names, cells, strict=False)), 0))

    def read(fields: Fields) -> Iterator[dict[str, Any]]:
        for row in _rows(fields):
            for name in ("ttft", "tpot", "latency"):
                value = fields.number(f"p99_{name}")
                row[f"{'e2e' if name == 'latency' else name}_p99_ms"] = None if value is None else value * 1e3
            yield row | {"notes": notes(row["notes"], "the table states no lengths: set input_tokens, output_tokens")}

    return source.gather(records, read)


def _new_tables(source: Source) -> Imported:
    """Read the tables of loads and of their requests, from release 1.4 on."""
    loads: dict[tuple[str, str], dict[str, Any]] = {}
    at = ("", "")
    for cells in _table_rows(source.text):
        if len(cells) in (6, 7) and re.fullmatch(r"\d+|-", cells[0]) and cells[5].endswith("%"):
            number = Fields(dict(zip(("users", "rate", "count", "rps", "output"), cells, strict=False)), 0, []).number
            loads[(cells[0], cells[1])] = {
                "phase": "serving", "concurrency": number("users"), "request_rate_per_s": number("rate"),
                "num_requests": number("count"), "output_tokens_per_s": number("output"),
                "notes": notes(KIND, "" if cells[5].startswith("100") else f"{cells[5]} of the requests answered"),
            }  # fmt: skip
        elif len(cells) == 7 and cells[2] in _METRICS:
            at = (cells[0], cells[1]) if cells[0] else at
            name, scale = _METRICS[cells[2]]
            mean, p50, p99 = (Fields({"": cell}, 0, []).number("") for cell in cells[3:6])
            if at not in loads:
                continue
            if name.endswith("tokens"):
                loads[at][name] = mean
                continue
            for what, value in {"mean": mean, "p50": p50, "p99": p99}.items():
                if value is not None and (name, what) != ("e2e", "p50"):
                    loads[at][f"{name}_{what}_ms"] = value * scale
    return source.gather([Document(row, 0) for row in loads.values()], lambda fields: iter([dict(fields.value)]))


IMPORTERS = (
    Importer(KIND, by_text(r'"(?:Output token throughput|Output Throughput) \(tok/s\)"\s*:'), _read_json),
    Importer(KIND, by_text(_NEW_TITLE), _new_tables),
    Importer(KIND, by_text(_BLOCK), _read_blocks),
    Importer(KIND, by_text(rf"{_OLD_HEADER}|^\s*Detailed Performance Metrics\s*$"), _old_table),
)
