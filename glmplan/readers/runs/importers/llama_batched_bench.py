"""`llama-batched-bench` (JSONL and table) and ik_llama.cpp's `llama-sweep-bench`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from glmplan.readers.runs.importers.json_records import Document
from glmplan.readers.runs.importers.record import (
    Fields,
    Imported,
    Problem,
    Source,
    by_keys,
    by_text,
)
from glmplan.readers.runs.importers.serving_columns import notes
from glmplan.readers.runs.importers.tables import bar_table

__all__ = ["KIND", "read", "read_table", "recognise", "recognise_table"]

KIND = "llama-batched-bench"
_COLUMNS = {"PP": "pp", "TG": "tg", "B": "pl", "N_KV": "n_kv", "T_PP s": "t_pp", "T_TG s": "t_tg"}
_TABLE = r"^\s*\|\s*PP\s*\|\s*TG\s*\|.*N_KV\s*\|.*S_TG t/s\s*\|"
recognise = by_keys("n_kv", "t_pp", "t_tg")
recognise_table = by_text(_TABLE)


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
    return source.gather(_named(bar_table(source.text, _TABLE, ends=False)), _rows)


def _named(table: Iterator[Document | Problem]) -> Iterator[Document | Problem]:
    for one in table:
        if isinstance(one, Document):
            one = Document({_COLUMNS[key]: cell for key, cell in one.value.items() if key in _COLUMNS}, one.line)
        yield one
