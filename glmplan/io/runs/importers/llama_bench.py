"""Import `llama-bench`, `llama-batched-bench` and `llama-sweep-bench`.

JSON, JSONL, CSV and tables; the last is of ik_llama.cpp.
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
    bar_table,
    by_keys,
    by_text,
    csv_table,
    notes,
)

__all__ = [
    "IMPORTERS",
    "TABLE_IMPORTERS",
    "read_csv_llama_bench",
    "read_llama_batched_bench",
    "read_llama_bench",
    "read_markdown",
    "read_table",
    "recognise_csv_llama_bench",
]


KIND_LLAMA_BENCH = "llama-bench"
_MARKDOWN = r"^\s*\|\s*model\s*\|.*\btest\s*\|.*t/s\s*\|"
recognise_llama_bench = by_keys("n_prompt", "n_gen", "avg_ts")
recognise_markdown = by_text(_MARKDOWN)


def recognise_csv_llama_bench(source: Source) -> bool:
    """Return True for the CSV of `llama-bench`."""
    head = source.text.lstrip("\ufeff").partition("\n")[0].replace('"', "").split(",")
    return {"n_prompt", "n_gen", "avg_ts"} <= set(head)


def read_llama_bench(source: Source) -> Imported:
    """Read the tests of a file: `pp` is one prompt, `tg` one stream.

    Unknown fields of forks are ignored.
    """
    return source.collect(_rows_llama_bench)


def _rows_llama_bench(fields: Fields) -> Iterator[dict[str, Any]]:
    prompt, answer = fields.require("n_prompt"), fields.require("n_gen")
    speed, spread = fields.require("avg_ts"), fields.number("stddev_ts")
    keys, values = fields.text("type_k"), fields.text("type_v")
    cards = [name.strip() for name in (fields.text("gpu_info") or "").split(",") if name.strip()]
    build = fields.number("build_number")
    yield {
        "measured_on": (fields.text("test_time") or "")[:10] or None,
        "checkpoint": (fields.text("model_filename") or fields.text("model_type") or "").rpartition("/")[2] or None,
        "weights": _weights(fields.text("model_type")),
        "kv_cache": keys if keys == values else f"{keys}/{values}",
        "accelerator_count": float(len(cards)) if cards else None,
        "engine": "llama.cpp",
        "engine_version": f"b{build:.0f}" if build else None,
        **_test(prompt, answer, fields.number("n_depth") or 0, speed),
        "uncertainty_pct": 100 * spread / speed if spread is not None and speed else None,
        "notes": notes(
            KIND_LLAMA_BENCH,
            fields.text("build_commit"),
            fields.text("backends"),
            fields.text("gpu_info") or fields.text("cpu_info"),
            f"ngl {fields.value['n_gpu_layers']}" if "n_gpu_layers" in fields else "",
            f"{fields.value['n_threads']} threads" if "n_threads" in fields else "",
            f"{fields.value['n_cpu_moe']} layers' experts on the host" if fields.number("n_cpu_moe") else "",
        ),
    }


def _weights(model_type: str | None) -> str | None:
    """Return the format at the end of a name like `llama 3B Q4_K - Medium`."""
    match = re.search(r"\b((?:IQ|TQ|Q)\d\w*|F16|BF16|F32|MXFP4\w*|NVFP4)\b(?: - (\w+))?", model_type or "")
    return match[1] if match else None


def _test(prompt: float, answer: float, depth: float, speed: float) -> dict[str, Any]:
    at = f" @ d{depth:.0f}" if depth else ""
    row: dict[str, Any] = {"concurrency": 1.0, "num_requests": None, "context_depth": depth}
    if prompt and answer:
        return row | {
            "phase": "serving",
            "scenario": f"llama-bench pp{prompt:.0f}+tg{answer:.0f}{at}",
            "input_tokens": prompt,
            "output_tokens": answer,
            "total_tokens_per_s": speed,
        }
    if answer:
        return row | {
            "phase": "decode",
            "scenario": f"llama-bench tg{answer:.0f}{at}",
            "output_tokens": answer,
            "output_tokens_per_s": speed,
            "output_tokens_per_s_per_request": speed,
            "tpot_mean_ms": 1e3 / speed if speed else None,
        }
    return row | {
        "phase": "prefill",
        "scenario": f"llama-bench pp{prompt:.0f}{at}",
        "input_tokens": prompt,
        "prefill_tokens_per_s": speed,
    }


def read_csv_llama_bench(source: Source) -> Imported:
    """Read the CSV of `llama-bench`."""
    return source.gather(csv_table(source.text), _rows_llama_bench)


def read_markdown(source: Source) -> Imported:
    """Read every `llama-bench` table of a text, such as an issue.

    Examples
    --------
    >>> table = '''| model | size | params | backend | ngl | test | t/s |
    ... | --- | ---: | ---: | --- | --: | ---: | ---: |
    ... | llama 7B Q4_0 | 3.56 GiB | 6.74 B | CUDA | 99 | tg128 @ d512 | 100.00 ± 2.00 |'''
    >>> row = read_markdown(Source("", table)).rows[0]
    >>> row["weights"], row["context_depth"], row["output_tokens_per_s"], row["uncertainty_pct"]
    ('Q4_0', 512.0, 100.0, 2.0)
    """
    return source.gather(bar_table(source.text, _MARKDOWN), _markdown_rows)


def _markdown_rows(fields: Fields) -> Iterator[dict[str, Any]]:
    about = fields.value
    test = re.fullmatch(r"(?:pp(\d+))?\+?(?:tg(\d+))?(?:\s*@\s*d(\d+))?", about["test"])
    speed = re.match(r"([\d.]+)\s*(?:(?:±|\+/-|\\pm)\s*([\d.]+))?", about["t/s"])
    if not test or not (test[1] or test[2]):
        raise BadRecord(Problem(fields.line, "test", f"expected pp512 or tg128, got {about['test']!r}"))
    if not speed:
        raise BadRecord(Problem(fields.line, "t/s", f"expected 12.34 ± 0.56, got {about['t/s']!r}"))
    prompt, answer, depth = (float(size or 0) for size in test.groups())
    rate = float(speed[1])
    yield {
        "checkpoint": about["model"],
        "weights": _weights(about["model"]),
        "kv_cache": about.get("type_k"),
        "engine": "llama.cpp",
        **_test(prompt, answer, depth, rate),
        "uncertainty_pct": 100 * float(speed[2]) / rate if speed[2] and rate else None,
        "notes": notes(
            KIND_LLAMA_BENCH, about.get("size"), about.get("backend"), f"ngl {about['ngl']}" if about.get("ngl") else ""
        ),
    }


KIND_LLAMA_BATCHED_BENCH = "llama-batched-bench"
_COLUMNS = {"PP": "pp", "TG": "tg", "B": "pl", "N_KV": "n_kv", "T_PP s": "t_pp", "T_TG s": "t_tg"}
_TABLE = r"^\s*\|\s*PP\s*\|\s*TG\s*\|.*N_KV\s*\|.*S_TG t/s\s*\|"
recognise_llama_batched_bench = by_keys("n_kv", "t_pp", "t_tg")
recognise_table = by_text(_TABLE)


def read_llama_batched_bench(source: Source) -> Imported:
    """Read each line into a decode run and a prefill run.

    Speeds are computed from times, because `speed` has had two meanings; S_TG is the sum over the sequences.
    """
    return source.collect(_rows_llama_batched_bench)


def _rows_llama_batched_bench(fields: Fields) -> Iterator[dict[str, Any]]:
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
        "notes": notes("llama-sweep-bench" if sweep else KIND_LLAMA_BATCHED_BENCH, _settings(fields)),
    }
    if answer and decode_time > 0:
        yield about | {
            "phase": "decode",
            "scenario": f"{KIND_LLAMA_BENCH} tg",
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
            "scenario": f"{KIND_LLAMA_BENCH} pp",
            "input_tokens": prompt,
            "context_depth": depth,
            "prefill_tokens_per_s": (prompt if shared else users * prompt) / prefill_time,
            "wall_s": prefill_time,
        }


def _settings(fields: Fields) -> str:
    names = ("n_gpu_layers", "n_threads", "n_batch", "n_ubatch", "flash_attn", "n_kv_max")
    return " ".join(f"{name}={fields.value[name]}" for name in names if name in fields.value)


def read_table(source: Source) -> Imported:
    """Read the table of a text, whose prompts are assumed not to be shared."""
    return source.gather(_named(bar_table(source.text, _TABLE, ends=False)), _rows_llama_batched_bench)


def _named(table: Iterator[Document | Problem]) -> Iterator[Document | Problem]:
    for one in table:
        if isinstance(one, Document):
            one = Document({_COLUMNS[key]: cell for key, cell in one.value.items() if key in _COLUMNS}, one.line)
        yield one


IMPORTERS = (
    Importer(KIND_LLAMA_BENCH, recognise_llama_bench, read_llama_bench),
    Importer("llama-bench csv", recognise_csv_llama_bench, read_csv_llama_bench),
    Importer(KIND_LLAMA_BATCHED_BENCH, recognise_llama_batched_bench, read_llama_batched_bench),
)
#: tables in any text, tried after the results of all tools
TABLE_IMPORTERS = (
    Importer("llama-bench table", recognise_markdown, read_markdown),
    Importer("llama-batched-bench table", recognise_table, read_table),
)
