"""Read tables of runs, measured or to predict: one record for each row.

Columns may have any spelling.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glmplan.catalog.engines.memory import stated_fraction
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.catalog.entries.names import (
    accelerator_name,
    engine_name,
    engine_release,
    kv_name,
    model_name,
    weights_name,
)
from glmplan.catalog.files import read_table, understood
from glmplan.catalog.formats import KV_FORMATS
from glmplan.errors import SpecError, nearest
from glmplan.io.runs.columns import ALIASES, COLUMNS, FIGURES, counted_label, ignored_columns, nearest_column
from glmplan.io.runs.protocols import (
    LENGTHS,
    TOTAL_IN_REQUEST_COLUMN,
    phase_of,
    prefix_cached,
    protocol_of,
    unusable,
    withheld,
)
from glmplan.io.runs.record import Run, Runs, Speculation, read_speculation
from glmplan.units import GIB

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Run", "Runs", "read_runs", "run_from_row", "runs_of_frame"]

_REQUIRED = tuple(column.name for column in COLUMNS.values() if column.required)
#: counts and amounts of the field of the same name; the others need the notes too
_NUMBERS = ("nodes", "tp", "pp", "dp", "ep", "dcp", "accelerator_count", "output_tokens", "power_limit_w",
            "memory_fraction", "max_num_seqs", "max_num_batched_tokens", "max_model_len")  # fmt: skip
_QUANTISED = re.compile(r"\+/-(\d+(?:\.\d+)?)%")
_PROMPTS = re.compile(r"\bn=(\d+)\b|--num-prompts[ =](\d+)|\b(\d+) prompts?\b")
_RATE = re.compile(r"(\d+) ?RPS")
_RATE_PAGE = re.compile(r"> Rate (\d+)")
_CAPPED = re.compile(r"capped at (\d+)-(\d+)/(\d+) active|max-running (\d+)|waves of (\d+)")
_BUILD = re.compile(r"env ([\w.-]+)")
_GGUF_SIZE = re.compile(r"params_b (\d+(?:\.\d+)?); file (\d+(?:\.\d+)?) GiB")


class _BadCell(ValueError):
    """A cell that cannot be read; the text names the column."""


def _number(row: Mapping[str, str], name: str) -> float | None:
    text = row.get(name, "")
    if not text:
        return None
    try:
        return COLUMNS[ALIASES.get(name, name)].number(text)
    except ValueError as error:
        raise _BadCell(f"{name}: {error}") from None


def _count(row: Mapping[str, str], name: str) -> int | None:
    value = _number(row, name)
    return None if value is None else int(value)


def _flag(row: Mapping[str, str], name: str) -> bool:
    return COLUMNS[name].flag(row.get(name, "")) is True


def _graphs(row: Mapping[str, str]) -> bool | None:
    said = row.get("cuda_graphs", "").lower()
    if said.startswith(("yes", "piecewise", "full", "true")):
        return True
    if said.startswith(("no", "false", "eager")):
        return False
    rest = f"{row.get('engine_version', '')} {row.get('notes', '')}"
    if "enforce-eager" in rest or "disable-cuda-graph" in rest:
        return False
    return True if "CUDA graphs" in rest else None


def _lengths(row: Mapping[str, str], phase: str) -> tuple[float | None, float | None, bool]:
    """Return prompt and cached context [token]; True if only labels."""
    prompt, depth, notes = _number(row, "input_tokens"), _number(row, "context_depth"), row.get("notes", "")
    label = False
    if row.get("context_is_label"):
        label = _flag(row, "context_is_label")
    elif prompt:
        prompt, label = counted_label(prompt, model=row.get("model", ""), notes=notes)
    if depth is None and phase == "decode":
        depth = prompt
    return prompt, depth, label


def _load(row: Mapping[str, str], protocol: str) -> dict[str, Any]:
    """Return the load fields of a row."""
    notes, concurrency = row.get("notes", ""), _number(row, "concurrency")
    requests, rate = _count(row, "num_requests"), _number(row, "request_rate_per_s")
    if requests is None and (result := _PROMPTS.search(notes)):
        requests = int(next(group for group in result.groups() if group))
    if requests is None and protocol == "inferencex" and concurrency:
        requests = int(10 * concurrency)
    if rate is None and (result := _RATE_PAGE.search(notes) or _RATE.search(row.get("scenario", ""))):
        rate = float(result.group(1))
    if rate is None and protocol == "gpustack" and concurrency is None:
        rate = math.inf  # the page's benchmark sends every prompt at once
    limit = _count(row, "running_limit")
    if concurrency == 0:
        raise _BadCell("concurrency: must be more than zero")
    if limit is None and (capped := _CAPPED.search(notes)) and concurrency:
        low, high, of, running, wave = (int(group) if group else None for group in capped.groups())
        if running or wave:
            limit = running or wave
        elif of == concurrency:
            limit = (low + high) // 2  # type: ignore[operator]
    return {"concurrency": concurrency, "num_requests": requests, "request_rate_per_s": rate, "running_limit": limit}


def _figures(row: Mapping[str, str], protocol: str) -> tuple[dict[str, float], bool]:
    """Return observed metrics; True for a total in the request column."""
    seen: dict[str, float] = {}
    for column, figure in (*((name, name) for name in FIGURES), *ALIASES.items()):
        value = _number(row, column)
        if value is not None:
            seen.setdefault(figure, value)
    moved = protocol in TOTAL_IN_REQUEST_COLUMN and "output_tokens_per_s_per_request" in seen
    if moved:
        seen["output_tokens_per_s"] = seen.pop("output_tokens_per_s_per_request")
    return seen, moved


def _chosen(row: Mapping[str, str], name: str, choices: Iterable[str], found: str | None) -> None:
    """Refuse a word that stands for none of the choices.

    Nothing is substituted.
    """
    if found is not None and found not in choices:
        close = nearest(found, choices)
        more = f"nearest: {', '.join(close)}" if close else f"choices: {', '.join(choices)}"
        raise _BadCell(f"{name}: {row.get(name, '')!r} is not known; {more}")


def _read(row: Mapping[str, str], protocol: str, phase: str) -> dict[str, Any]:
    """Return the fields of a run that need numbers; raise _BadCell."""
    fields: dict[str, Any] = {
        name: _count(row, name) if COLUMNS[name].kind == "count" else _number(row, name) for name in _NUMBERS
    }
    fields.update(_load(row, protocol))
    if fields["max_num_seqs"] is None and (told := _count(row, "running_limit")):
        # running requests in the notes are an observation, not a setting of the engine
        fields["max_num_seqs"] = -(-told // (fields["dp"] or 1))
    if fields["memory_fraction"] is None:
        fields["memory_fraction"] = stated_fraction(row.get("notes", ""))
    _number(row, "host_share")  # checked here, read with the machine
    _chosen(row, "phase", COLUMNS["phase"].choices, phase)
    _chosen(row, "kv_cache", KV_FORMATS, kv_name(row.get("kv_cache", "")))
    notes = row.get("notes", "")
    prompt, depth, label = _lengths(row, phase)
    spec = read_speculation(row.get("speculative", ""), notes, _number(row, "acceptance_length"), depth)
    if spec.method == "eagle" and "draft-model" not in notes:
        # SGLang's EAGLE without a draft model runs the model's own MTP layer
        spec = replace(spec, method="mtp")
    if spec.state == "unknown" and protocol in ("llama-bench", "llama-batched-bench"):
        spec = Speculation("none")  # these tools cannot draft
    uncertainty = _number(row, "uncertainty_pct")
    if uncertainty is None and (match := _QUANTISED.search(notes)):
        uncertainty = float(match.group(1))
    seen, moved = _figures(row, protocol)
    if given := row.get("withheld"):
        parts = [part.partition(": ") for part in given.split(" | ")]
        set_aside = {name: reason for names, _, reason in parts for name in names.split()}
    else:
        set_aside = withheld(row, seen, fields["output_tokens"])
    bits = _number(row, "weights_bits")
    if bits is None and (size := _GGUF_SIZE.search(notes)):
        bits = round(float(size.group(2)) * GIB * 8 / (float(size.group(1)) * 1e9), 3)
    fields.update(
        input_tokens=prompt,
        context_depth=depth,
        context_is_label=label,
        speculation=spec,
        uncertainty_pct=uncertainty,
        total_in_request_column=moved,
        observed={name: value for name, value in seen.items() if name not in set_aside},
        withheld={name: reason for name, reason in set_aside.items() if name in seen},
        weights_bits=bits,
    )
    return fields


def run_from_row(row: Mapping[str, str]) -> Run:
    """Return the record of one row; a bad cell is reported in `error`.

    Examples
    --------
    >>> run = run_from_row({"id": "a", "model": "Qwen3-235B", "accelerator": "h200-sxm", "accelerator_count": "4.0"})
    >>> run.model, run.accelerator_count
    ('qwen3-235b-a22b', 4)
    >>> run_from_row({"id": "b", "model": "glm-5", "accelerator": "h200-sxm", "tp": "-8"}).error
    "tp: '-8' is not a finite number of zero or more"
    """
    row = {name: text.strip() for name, text in row.items() if text and text.strip()}
    protocol, phase, engine = protocol_of(row), phase_of(row), row.get("engine", "")
    version = row.get("engine_version")
    if version is None and engine and (match := re.search(r"(?:vllm[- ]|v|TensorRT )(\d+\.\d[\w.+]*)", engine)):
        version = ("TensorRT " if engine.startswith("TensorRT") else "") + match.group(1)
    accelerator = accelerator_name(row.get("accelerator", ""))
    model = model_name(row.get("model", ""))
    weights = _weights_of(row.get("weights", ""), model)
    labelled = "nvfp4" not in row.get("weights", "").lower() or protocol in ("inferencex", "vendor-sweep")
    if weights == "nvfp4" and accelerator.startswith("mi3") and labelled:
        weights = "mxfp4"  # the label FP4 of a campaign means MXFP4 on AMD; an explicit NVFP4 in the cell stands
    if row.get("weights", "").startswith("Ollama default") and model.startswith("gpt-oss"):
        weights = "mxfp4"
    error = next((f"{name}: is empty" for name in _REQUIRED if name not in row), None)
    try:
        numbers = _read(row, protocol, phase)
    except _BadCell as bad:
        numbers, error = {}, str(bad)
    return Run(
        id=row.get("id", ""),
        model=model,
        accelerator=accelerator,
        campaign=row.get("campaign"),
        measured_on=row.get("measured_on"),
        source=row.get("source"),
        trust=row.get("trust"),
        model_given=row.get("model", ""),
        checkpoint=row.get("checkpoint"),
        weights=weights,
        kv_cache=kv_name(row.get("kv_cache", "")),
        accelerator_given=row.get("accelerator", ""),
        host=row.get("host"),
        engine=engine_name(engine),
        engine_version=version,
        engine_release=engine_release(version),
        backend=row.get("backend") or (build.group(1) if (build := _BUILD.match(row.get("notes", ""))) else None),
        attention_backend=row.get("attention_backend"),
        moe_backend=row.get("moe_backend"),
        graphs=_graphs(row),
        phase=phase,
        protocol=protocol,
        scenario=row.get("scenario", ""),
        recipe=row.get("recipe"),
        length_range=LENGTHS.get(protocol, (1.0, 1.0)),
        shared_prompt=_flag(row, "shared_prompt"),
        prefix_cached=prefix_cached(row),
        offload=protocol == "hybrid" or "hybrid" in accelerator,
        unusable=row.get("unusable") or unusable(row),
        error=error,
        notes=row.get("notes", ""),
        cells=row,
        **numbers,
    )


def read_runs(path: str | Path) -> Runs:
    """Read a CSV table of runs; every row comes back.

    Bad cells are reported in its `error`. UTF-8, a header line, at least the columns `id`, `model` and `accelerator`.
    Columns outside `glmplan.io.runs.columns.COLUMNS` are kept in `Run.cells` and named in `Runs.warnings`.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "runs.csv"
    >>> _ = file.write_text("id,model,accelerator,engine,mine\\na,glm-5.1,b200-sxm,vLLM v0.9.2,x\\n")
    >>> runs = read_runs(file)
    >>> runs[0].engine, runs[0].engine_release, runs[0].cells["mine"]
    ('vllm', (0, 9, 2), 'x')
    >>> runs.warnings[0].partition(": ")[2]
    "ignored, as no column of a run has this name: 'mine'"
    """
    path = Path(path)
    lines = read_table(path)
    with understood(path, "table of runs"):
        return _runs_of(path, lines)


def runs_of_frame(frame: pd.DataFrame) -> Runs:
    """Read a frame of runs as `read_runs` reads a file.

    Rows without an ``id`` get their number.

    Examples
    --------
    >>> import pandas as pd
    >>> runs_of_frame(pd.DataFrame({"model": ["glm-5.1"], "accelerator": ["b200-sxm"], "tp": [8]}))[0].tp
    8
    """
    if not hasattr(frame, "columns") or not hasattr(frame, "convert_dtypes"):
        raise SpecError("is not a frame of pandas; `glmplan predict` reads files", field="frame", value=frame)
    if "id" not in frame.columns:
        frame = frame.assign(id=[str(number) for number in range(len(frame))])
    # integers beside gaps stay integers, gaps are empty cells; with these line ends, cells that hold any of them are
    # quoted
    text = frame.convert_dtypes().to_csv(index=False, lineterminator="\r\n")
    with understood("frame", "frame of runs"):
        return _runs_of(Path("frame"), list(csv.reader(io.StringIO(text, newline=""))))


def _weights_of(cell: str, model: str) -> str | None:
    """Return the weights of a cell: a named checkpoint, else a format."""
    named, result = cell.lower(), weights_name(cell)
    if (
        result != named
        and model in model_names()
        and any(checkpoint.name == named for checkpoint in load_model(model).checkpoints)
    ):
        return named
    return result


def _runs_of(path: Path, lines: list[list[str]]) -> Runs:
    if not lines or not any(cell.strip() for cell in lines[0]):
        raise SpecError("is empty: a header line is needed", file=path)
    header = tuple(name.strip() for name in lines[0])
    for name in _REQUIRED:
        if name not in header:
            close = nearest_column(name, header)
            hint = f"; nearest column: {close}" if close else f"; columns: {', '.join(header[:12])}"
            raise SpecError(f"is a required column and missing{hint}", file=path, field=name)
    twice = next((name for place, name in enumerate(header) if name and name in header[:place]), None)
    if twice is not None:
        raise SpecError("stands twice in the header", file=path, field=twice)
    runs = []
    for line in lines[1:]:
        if not any(line):
            continue
        run = run_from_row(dict(zip(header, line, strict=False)))
        if len(line) > len(header):
            run = replace(run, error=f"{len(line)} cells in a table of {len(header)} columns")
        runs.append(run)
    return Runs(path, header, tuple(runs), tuple(_warnings(path, header, lines[1:])))


def _warnings(path: Path, header: tuple[str, ...], lines: list[list[str]]) -> Iterator[str]:
    """Yield the contents of a table that the reader ignores."""
    ignored = ignored_columns(name for name in header if name)
    if ignored:
        yield f"{path}: ignored, as no column of a run has this name: {ignored}"
    unnamed = [place for place, name in enumerate(header) if not name]
    if any(line[place].strip() for line in lines for place in unnamed if place < len(line)):
        yield f"{path}: ignored: a column without a name"
    for alias, name in ALIASES.items():
        both = [place for place, one in enumerate(header) if one in (alias, name)]
        if len(both) == 2 and any(all(place < len(line) and line[place] for place in both) for line in lines):
            yield f"{path}: {alias} is another name of {name}: ignored in rows that have both"
