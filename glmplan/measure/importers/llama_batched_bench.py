"""`llama-batched-bench` (JSONL and table) and ik_llama.cpp's `llama-sweep-bench`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from glmplan.measure.importers.record import BadRecord, Fields, Imported, Problem, Source, row_identifier
from glmplan.measure.importers.serving_columns import notes

__all__ = ["KIND", "read", "read_table", "recognise", "recognise_table"]

KIND = "llama-batched-bench"
_COLUMNS = {"PP": "pp", "TG": "tg", "B": "pl", "N_KV": "n_kv", "T_PP s": "t_pp", "T_TG s": "t_tg"}
_TABLE = re.compile(r"^\s*\|\s*PP\s*\|\s*TG\s*\|.*N_KV\s*\|.*S_TG t/s\s*\|", re.M)


def recognise(source: Source) -> bool:
    """Tell whether a file is the JSONL of `llama-batched-bench` or `llama-sweep-bench`.

    Parameters
    ----------
    source : Source
        The file.

    Returns
    -------
    bool
        Whether it is one.
    """
    return source.has_keys("n_kv", "t_pp", "t_tg")


def recognise_table(source: Source) -> bool:
    """Tell whether a text holds the table of `llama-batched-bench`.

    Parameters
    ----------
    source : Source
        The file.

    Returns
    -------
    bool
        Whether it is one.
    """
    return _TABLE.search(source.text) is not None


def read(source: Source) -> Imported:
    """Read each line into a decode run and a prefill run.

    Speeds are computed from times, for `speed` has meant two things; S_TG is the sum over the sequences.

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
    prompt, answer = fields.require("pp"), fields.require("tg")
    prefill_time, decode_time = fields.require("t_pp"), fields.require("t_tg")
    sweep = "pl" not in fields
    users = 1.0 if sweep else fields.require("pl")
    shared = bool(fields.number("is_pp_shared"))
    depth = fields.require("n_kv") if sweep else 0.0
    stated = fields.number("speed_tg")
    if stated and decode_time > 0 and abs(stated / (users * answer / decode_time) - 1) > 0.01:
        expected = users * answer / decode_time
        fields.problems.append(
            Problem(fields.line, "speed_tg", f"expected pl*tg/t_tg = {expected:.4g}, got {stated:g}")
        )
    about = {
        "engine": "llama.cpp",
        "concurrency": users,
        "num_requests": users,
        "shared_prompt": "yes" if shared else None,
        "notes": notes("llama-sweep-bench" if sweep else KIND, _settings(fields)),
    }
    if answer and decode_time > 0:
        yield about | {
            "phase": "decode",
            "scenario": f"{KIND} tg",
            # a sweep decodes on top of n_kv; a batch decodes on top of its own prompt
            "input_tokens": None if sweep else prompt,
            "context_depth": depth if sweep else None,
            "output_tokens": answer,
            "output_tokens_per_s": users * answer / decode_time,
            "tpot_mean_ms": decode_time / answer * 1e3,
            "wall_s": decode_time,
        }
    if prompt and prefill_time > 0:
        yield about | {
            "phase": "prefill",
            "scenario": f"{KIND} pp",
            "input_tokens": prompt,
            "context_depth": depth,
            "prefill_tokens_per_s": (prompt if shared else users * prompt) / prefill_time,
            "wall_s": prefill_time,
        }


def _settings(fields: Fields) -> str:
    names = ("n_gpu_layers", "n_threads", "n_batch", "n_ubatch", "flash_attn", "n_kv_max")
    return " ".join(f"{name}={fields.value[name]}" for name in names if name in fields.value)


def read_table(source: Source) -> Imported:
    """Read the table of a text. It does not say whether the prompt was shared; "not shared" is assumed and noted.

    Parameters
    ----------
    source : Source
        The text.

    Returns
    -------
    Imported
        Runs and problems.
    """
    header: list[str] = []
    rows: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for number, line in enumerate(source.text.splitlines(), 1):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")] if line.strip().startswith("|") else []
        if _TABLE.match(line):
            header = cells
        elif header and cells and set("".join(cells)) - set("-: "):
            if len(cells) != len(header):
                problems.append(Problem(number, "", f"expected {len(header)} cells, got {len(cells)}"))
                continue
            value = {_COLUMNS[h]: c for h, c in zip(header, cells, strict=True) if h in _COLUMNS}
            try:
                made = list(_rows(Fields(value, number, problems)))
            except BadRecord as error:
                problems.append(error.problem)
                continue
            for row in made:
                rows.append({"id": row_identifier(source.text, len(rows)), **row})
    return Imported("", rows, problems)
