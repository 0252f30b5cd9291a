"""Other tools' results into measured runs: the kind is recognised by content, never by the file's name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from glmplan.catalog.files import read_log, understood
from glmplan.errors import SpecError
from glmplan.io.runs.columns import COLUMNS, ignored_columns, nearest_column
from glmplan.io.runs.importers.client_reports import (
    KIND_AIPERF,
    KIND_CSV,
    KIND_GUIDELLM,
    read_aiperf,
    read_csv_aiperf,
    read_csv_guidellm,
    read_guidellm,
    read_requests,
    recognise_aiperf,
    recognise_csv_aiperf,
    recognise_csv_guidellm,
    recognise_guidellm,
    recognise_requests,
)
from glmplan.io.runs.importers.llama_bench import (
    KIND_LLAMA_BATCHED_BENCH,
    KIND_LLAMA_BENCH,
    read_csv_llama_bench,
    read_llama_batched_bench,
    read_llama_bench,
    read_markdown,
    read_table,
    recognise_csv_llama_bench,
    recognise_llama_batched_bench,
    recognise_llama_bench,
    recognise_markdown,
    recognise_table,
)
from glmplan.io.runs.importers.record import Imported, Problem, Source, row_identifier
from glmplan.io.runs.importers.serving_benchmarks import (
    KIND_INFERENCE_PERF,
    KIND_INFERENCEX,
    KIND_MLPERF,
    KIND_SGLANG_BENCH,
    KIND_VLLM_BENCH,
    block_kind,
    read_block,
    read_inference_perf,
    read_inferencex,
    read_mlperf,
    read_sglang_bench,
    read_vllm_bench,
    recognise_block,
    recognise_inference_perf,
    recognise_inferencex,
    recognise_mlperf,
    recognise_sglang_bench,
    recognise_vllm_bench,
)
from glmplan.io.runs.importers.startup_logs import (
    KIND_LLAMACPP_LOG,
    KIND_SGLANG_LOG,
    KIND_TRTLLM_LOG,
    KIND_VLLM_LOG,
    read_llamacpp_log,
    read_sglang_log,
    read_trtllm_log,
    read_vllm_log,
    recognise_llamacpp_log,
    recognise_sglang_log,
    recognise_trtllm_log,
    recognise_vllm_log,
)

__all__ = ["KINDS", "Imported", "Problem", "Source", "import_file", "import_text", "table_csv"]


class _Kind(NamedTuple):
    name: str
    recognise: Callable[[Source], bool]
    read: Callable[[Source], Imported]


_READERS: tuple[_Kind, ...] = (
    _Kind(KIND_GUIDELLM, recognise_guidellm, read_guidellm),
    _Kind(KIND_CSV, recognise_csv_guidellm, read_csv_guidellm),
    _Kind("aiperf requests", recognise_requests, read_requests),
    _Kind(KIND_AIPERF, recognise_aiperf, read_aiperf),
    _Kind("aiperf csv", recognise_csv_aiperf, read_csv_aiperf),
    _Kind(KIND_LLAMA_BENCH, recognise_llama_bench, read_llama_bench),
    _Kind("llama-bench csv", recognise_csv_llama_bench, read_csv_llama_bench),
    _Kind(KIND_LLAMA_BATCHED_BENCH, recognise_llama_batched_bench, read_llama_batched_bench),
    _Kind(KIND_INFERENCE_PERF, recognise_inference_perf, read_inference_perf),
    _Kind(KIND_INFERENCEX, recognise_inferencex, read_inferencex),
    _Kind(KIND_MLPERF, recognise_mlperf, read_mlperf),
    _Kind(KIND_SGLANG_BENCH, recognise_sglang_bench, read_sglang_bench),
    _Kind(KIND_VLLM_BENCH, recognise_vllm_bench, read_vllm_bench),
    _Kind(block_kind, recognise_block, read_block),
    _Kind("llama-bench table", recognise_markdown, read_markdown),
    _Kind("llama-batched-bench table", recognise_table, read_table),
    _Kind(KIND_VLLM_LOG, recognise_vllm_log, read_vllm_log),
    _Kind(KIND_SGLANG_LOG, recognise_sglang_log, read_sglang_log),
    _Kind(KIND_TRTLLM_LOG, recognise_trtllm_log, read_trtllm_log),
    _Kind(KIND_LLAMACPP_LOG, recognise_llamacpp_log, read_llamacpp_log),
)

#: Names of every kind of file that can be imported.
KINDS: tuple[str, ...] = tuple(kind.name for kind in _READERS)

#: Files that lie beside results and are often given by mistake.
_BESIDE = {
    "AIPerf Server Metrics Export": "is AIPerf's record of the server's metrics: give profile_export_aiperf.csv",
    '"endpoints_configured"': "is AIPerf's record of the server's metrics: give profile_export_aiperf.json",
    '"payloads"': "is AIPerf's list of prompts, not of results: give profile_export_aiperf.json",
}
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def import_text(text: str, *, name: str = "", facts: Mapping[str, Any] | None = None) -> Imported:
    """Turn the text of another tool's result into runs.

    - `facts`: Columns that the file cannot know, such as `model` and `accelerator`; they fill empty cells only.
    - Returns: Runs in the columns of `glmplan.io.runs.columns.COLUMNS`, and what was wrong with which field on which
      line.

    Examples
    --------
    >>> line = '{"n_kv": 64, "pp": 32, "tg": 32, "pl": 2, "t_pp": 0.1, "t_tg": 0.4}'
    >>> runs = import_text(line, facts={"model": "tiny"})
    >>> runs.kind, [(row["phase"], row["model"]) for row in runs.rows]
    ('llama-batched-bench', [('decode', 'tiny'), ('prefill', 'tiny')])
    """
    for column in facts or {}:
        if column not in COLUMNS:
            close = nearest_column(column)
            raise SpecError("is no column of a run", field="facts", value=column, choices=[close] if close else COLUMNS)
    source = Source(name, _ANSI.sub("", text.removeprefix("\ufeff")))
    if not source.text.strip():
        raise SpecError("is empty; expected a benchmark's result or a startup log", file=name or None)
    with understood(name or "text", "benchmark's result"):
        return _read(source, name, facts or {})


def _read(source: Source, name: str, facts: Mapping[str, Any]) -> Imported:
    """Find out the kind of a text and read it."""
    kind = next((kind for kind in _READERS if kind.recognise(source)), None)
    if kind is None:
        beside = next((why for mark, why in _BESIDE.items() if mark in source.text), None) or _table(source.text)
        why = beside or f"is of no kind that glmplan reads; it reads: {', '.join(KINDS)}"
        raise SpecError(why, file=name or None)
    found = kind.read(source)
    if not found.rows and found.logged is None:
        shown = "; ".join(str(problem) for problem in found.problems[:5]) or "it holds no finished run"
        raise SpecError(f"looks like {kind.name}, but no record of it can be used: {shown}", file=name or None)
    rows = [_finish(row, facts) for row in found.rows]
    return Imported(kind.name, rows, found.problems, found.logged)


def _table(text: str) -> str:
    """Say what a table of runs is for, which needs no import; empty for anything else."""
    header = [name.strip() for name in text.partition("\n")[0].split(",")]
    if not all(one.name in header for one in COLUMNS.values() if one.required):
        return ""
    ignored = ignored_columns(name for name in header if name)
    said = "is a table of runs already: give it to predict --runs, reproduce --runs or calibrate --from"
    return f"{said}; not known there and ignored: {ignored}" if ignored else said


def import_file(path: str | Path, *, facts: Mapping[str, Any] | None = None) -> Imported:
    """Turn a file of another tool's results into runs."""
    return import_text(read_log(path), name=str(path), facts=facts)


def _finish(row: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Order the columns, fill what the user knows, round to the six digits any of these clocks can mean."""
    given = {key: value for key, value in facts.items() if value is not None}
    filled = {**given, **{key: value for key, value in row.items() if value is not None and value != ""}}
    if "model" not in filled and "checkpoint" in filled:
        filled["model"] = str(filled["checkpoint"])
    filled.setdefault("id", row_identifier(str(sorted(map(str, row.items()))), 0))
    return {c: _rounded(filled[c]) for c in COLUMNS if c in filled}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        short = float(f"{value:.6g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    return value


def table_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Write runs as CSV in the column form of the measurement tables; columns nobody fills are left out.

    Examples
    --------
    >>> table_csv([{"id": "a", "ttft_mean_ms": 1.5}])
    'id,model,accelerator,ttft_mean_ms\\na,,,1.5\\n'
    """
    import csv
    import io

    rows = list(rows)
    # the readers of these tables ask for the first three even where they are empty
    used = [c for c in COLUMNS if COLUMNS[c].required or any(row.get(c) not in (None, "") for row in rows)]
    out = io.StringIO()
    writer = csv.DictWriter(out, used, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
