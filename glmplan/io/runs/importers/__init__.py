"""Import results of other tools as measured runs.

The content identifies the kind, not the name of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

from glmplan.catalog.files import read_log, understood
from glmplan.catalog.tables import csv_lines
from glmplan.errors import SpecError
from glmplan.io.runs.columns import COLUMNS, FIGURES, ignored_columns, nearest_column
from glmplan.io.runs.importers import (
    client_reports,
    evalscope,
    llama_bench,
    local_programs,
    printed_results,
    serving_benchmarks,
    startup_logs,
)
from glmplan.io.runs.importers.out_of_memory import out_of_memory
from glmplan.io.runs.importers.record import Imported, Importer, Problem, Source, notes, row_identifier

__all__ = ["KINDS", "Imported", "Problem", "Source", "import_file", "import_text", "table_csv"]


#: the first that recognises a text reads it
_IMPORTERS: tuple[Importer, ...] = (
    *client_reports.IMPORTERS,
    *llama_bench.IMPORTERS,
    *serving_benchmarks.IMPORTERS,
    *llama_bench.TABLE_IMPORTERS,
    *evalscope.IMPORTERS,
    *printed_results.IMPORTERS,
    *local_programs.IMPORTERS,
    *startup_logs.IMPORTERS,
    *local_programs.TIMINGS,
    *printed_results.ENGINE_LINES,
)

#: names of all kinds of files that can be imported
KINDS: tuple[str, ...] = tuple(dict.fromkeys(kind.name for kind in _IMPORTERS))

#: a table of runs that any result can be copied into
_CSV = (
    "id,model,accelerator,accelerator_count,engine,tp,weights,phase,concurrency,input_tokens,output_tokens,"
    "output_tokens_per_s,ttft_mean_ms,tpot_mean_ms\n"
    "run-1,qwen3-32b,h100-sxm,2,vllm,2,fp8,serving,32,1024,512,1450,310,21.4"
)

#: files beside results that are often given by mistake
_BESIDE = {
    "AIPerf Server Metrics Export": "is AIPerf's record of the server's metrics: give profile_export_aiperf.csv",
    '"endpoints_configured"': "is AIPerf's record of the server's metrics: give profile_export_aiperf.json",
    '"Percentiles"': "is EvalScope's table of percentiles without its load: give benchmark_summary.json beside it",
    '"request_output_throughput_token_per_s"': "is LLMPerf's list of requests: give the file that ends in summary.json",
    "time_to_first_token_ms:": "is GuideLLM's report in YAML: give its JSON or CSV",
    '"per_combination_metrics"': "is AIPerf's summary of a sweep: give profile_export_aiperf.json of each of its runs",
    "Timeslice,": "is AIPerf's record of time slices: give profile_export_aiperf.csv of the whole run",
    '"payloads"': "is AIPerf's list of prompts, not of results: give profile_export_aiperf.json",
}
#: columns of a start-up log that hold for what the engine logs later
_SETTINGS = (
    "checkpoint", "weights", "kv_cache", "accelerator_count", "tp", "pp", "dp", "ep", "dcp", "engine", "engine_version",
    "attention_backend", "moe_backend", "speculative", "cuda_graphs",
)  # fmt: skip
#: facts about the file as a whole, which fill empty cells only
_FILLED = ("campaign", "source")
#: numbers this close are one [-]
_NEAR = 1e-6
#: metrics that need streamed answers
_STREAMED = ("ttft_", "tpot_mean", "tpot_p", "itl_")
#: TTFT as a share of the whole time from which an answer came at once [-]
_WHOLE = 0.995
#: answers up to this length may be done with the first tokens [token]
_FEW_TOKENS = 8
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def import_text(text: str, *, name: str = "", facts: Mapping[str, Any] | None = None) -> Imported:
    """Return the runs of another tool's result in columns of `COLUMNS`.

    `glmplan.io.runs.columns.COLUMNS` lists them. `facts`: columns that the caller knows, such as `model` and
    `accelerator`; they precede values of the file, and a problem names each value that differs. `campaign` and `source`
    fill empty cells only.

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
    """Recognise the kind of a text and read it."""
    kind = next((kind for kind in _IMPORTERS if kind.recognise(source)), None)
    if kind is None:
        beside = next((why for mark, why in _BESIDE.items() if mark in source.text), None) or _table(source.text)
        memory = out_of_memory(source.text)
        unknown = (
            f"is of no kind that glmplan reads; it reads: {', '.join(KINDS)}. Any result can be given to predict "
            f"--runs, reproduce --runs or calibrate --from as a CSV of this form (cells may be empty):\n{_CSV}"
        )
        why = beside or (f"is a message of missing memory: {memory}" if memory else unknown)
        raise SpecError(why, file=name or None)
    result = kind.read(source)
    if result.logged is not None:
        result = _with_throughput(source, result)
    if not result.rows and result.logged is None:
        shown = "; ".join(str(problem) for problem in result.problems[:5]) or "it holds no finished run"
        raise SpecError(f"looks like {kind.name}, but no record of it can be used: {shown}", file=name or None)
    given = {key: value for key, value in facts.items() if value not in (None, "")}
    stated = [_measured(row) for row in result.rows]
    rows = [_finish(row, given) for row in stated]
    memory = out_of_memory(source.text) if result.logged is not None else ""
    problems = [problem for problem in result.problems if problem.field not in given]
    problems += [Problem(0, "memory", memory)] if memory else []
    for key, value in given.items():
        others = {str(row[key]) for row in stated if row.get(key) not in (None, "") and not _same(row[key], value)}
        if others and key not in _FILLED:
            problems.append(Problem(0, key, f"the file says {', '.join(sorted(others))}; taken: {value}, as given"))
    for row in rows:
        for column in [key for key, value in row.items() if isinstance(value, float) and not isfinite(value)]:
            problems.append(Problem(0, column, f"expected a finite number, got {row.pop(column)}"))
    return Imported(kind.name, rows, problems, result.logged)


def _with_throughput(source: Source, log: Imported) -> Imported:
    """Return a start-up log with the throughput that its engine logged later.

    The runs take the settings of the launch from the log. Timings of llama.cpp are left out: they do not tell how many
    requests ran together.
    """
    kind = next((kind for kind in printed_results.ENGINE_LINES if kind.recognise(source)), None)
    found = kind.read(source).rows if kind else []
    settings = {name: value for name, value in log.logged.row().items() if name in _SETTINGS and value is not None}
    rows = [
        settings | {key: value for key, value in row.items() if value is not None} | {
            "id": row_identifier(source.text, len(log.rows) + at)
        }
        for at, row in enumerate(found)
    ]  # fmt: skip
    return replace(log, rows=[*log.rows, *rows])


def _measured(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without metrics that were not measured.

    Clients write 0 or -1 for them. Without streaming, clients give the time of the whole answer as the TTFT.
    """
    kept = {
        name: value
        for name, value in row.items()
        if not (name in FIGURES and isinstance(value, int | float) and value <= 0)
    }
    first, whole, answer = (kept.get(name) for name in ("ttft_mean_ms", "e2e_mean_ms", "output_tokens"))
    if first and whole and answer and answer > _FEW_TOKENS and first > _WHOLE * whole:
        kept = {name: value for name, value in kept.items() if not name.startswith(_STREAMED)}
        kept["notes"] = notes(row.get("notes"), "answers were not streamed: TTFT is that of whole answers")
    return kept


def _table(text: str) -> str:
    """Return the use of a table that needs no import, else empty."""
    header = [name.strip() for name in text.partition("\n")[0].split(",")]
    if not all(column.name in header for column in COLUMNS.values() if column.required):
        return ""
    ignored = ignored_columns(name for name in header if name)
    said = "is a table of runs already: give it to predict --runs, reproduce --runs or calibrate --from"
    return f"{said}; not known there and ignored: {ignored}" if ignored else said


def import_file(path: str | Path, *, facts: Mapping[str, Any] | None = None) -> Imported:
    """Return the runs of a file of another tool's results."""
    return import_text(read_log(path), name=str(path), facts=facts)


def _finish(row: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """Order the columns, take the given facts, round to six digits.

    These clocks can mean no more digits.
    """
    known = {key: value for key, value in row.items() if value is not None and value != ""}
    filled = {**facts, **known, **{key: value for key, value in facts.items() if key not in _FILLED}}
    if "model" not in filled and "checkpoint" in filled:
        filled["model"] = str(filled["checkpoint"])
    filled.setdefault("id", row_identifier(str(sorted(map(str, row.items()))), 0))
    return {c: _rounded(filled[c]) for c in COLUMNS if c in filled}


def _same(one: Any, other: Any) -> bool:
    try:
        return abs(float(one) - float(other)) <= _NEAR * abs(float(other))
    except (TypeError, ValueError):
        return str(one).lower() == str(other).lower()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        short = float(f"{value:.6g}")
        return int(short) if short.is_integer() and abs(short) < 1e15 else short
    return value


def table_csv(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return runs as CSV in the columns of the measurement tables.

    Empty columns are left out.

    Examples
    --------
    >>> table_csv([{"id": "a", "ttft_mean_ms": 1.5}])
    'id,model,accelerator,ttft_mean_ms\\na,,,1.5\\n'
    """
    rows = list(rows)
    # readers of these tables require the first three even where they are empty
    used = [c for c in COLUMNS if COLUMNS[c].required or any(row.get(c) not in (None, "") for row in rows)]
    return csv_lines([used, *([row.get(column, "") for column in used] for row in rows)])
