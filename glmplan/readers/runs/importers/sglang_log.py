"""The startup log of SGLang."""

from __future__ import annotations

import re

from glmplan.readers.runs.importers.record import Imported, Source, by_text
from glmplan.readers.runs.importers.startup import StartupLog, imported, matches
from glmplan.units import GIB

__all__ = ["KIND", "read", "recognise"]

KIND = "sglang startup log"
recognise = by_text(r"server_args=ServerArgs\(|Load weight end\.|max_total_num_tokens=\d")


def read(source: Source) -> Imported:
    """Read a startup log. SGLang divides by 2^30 and prints GB: every size here is GiB.

    With DP attention `tp_size` spans the replicas, so TP of the attention is `tp_size / dp_size`.

    Parameters
    ----------
    source : Source
        The log.

    Returns
    -------
    Imported
        One run of phase `memory`, with `logged`.

    Examples
    --------
    >>> log = "KV Cache is allocated. #tokens: 1000, K size: 2.00 GB, V size: 2.00 GB"
    >>> read(Source("", log)).logged.kv_pool / 2**30
    4.0
    """
    text, log = source.text, StartupLog("sglang")
    for name, pattern in (
        ("version", r"(?:sglang[_ ]version|SGLang version)['\"=: ]+v?([\w.+]+)"),
        ("model", r"model_path='([^']+)'"),
        ("quantization", r"[( ]quantization='(\w+)'"),
        ("kv_cache", r"KV Cache is allocated\. dtype: (?:torch\.)?(\w+)"),
        ("kv_cache", r"kv_cache_dtype='(?!auto)(\w+)'"),
        ("attention_backend", r"[( ]attention_backend='(\w+)'"),
        ("attention_backend", r"[Uu]se (\w+)(?: attention)? backend(?: by default)?"),
        ("moe_backend", r"moe_runner_backend='(?!auto)(\w+)'"),
        ("speculative", r"speculative_algorithm='(\w+)'"),
    ):
        for line, match in matches(text, pattern):
            log.put(name, match[1], line)
    for name, pattern in (
        ("tp", r"[( ]tp_size=(\d+)"),
        ("pp", r"[( ]pp_size=(\d+)"),
        ("dp", r"[( ]dp_size=(\d+)"),
        ("ep", r"[( ]ep_size=(\d+)"),
    ):
        for line, match in matches(text, pattern):
            log.put(name, int(match[1]), line)
    if log.tp and log.dp and "enable_dp_attention=True" in text:
        log.tp = max(log.tp // log.dp, 1)
    for line, match in matches(text, r"Load weight end\..*?mem usage=([\d.]+) GB"):
        log.put("weights", float(match[1]) * GIB, line, "max")
    for line, match in matches(text, r"KV Cache is allocated\..*?#tokens: (\d+)(.*)"):
        log.put("kv_tokens", float(match[1]), line, "min")
        sizes = re.findall(r"(?:KV|K|V) size: ([\d.]+) GB", match[2])
        log.put("kv_pool", sum(float(size) for size in sizes) * GIB if sizes else None, line, "min")
    for line, match in matches(text, r"max_total_num_tokens=(\d+)"):
        log.put("kv_tokens", float(match[1]), line, "min")
    for line, match in matches(text, r"Capture cuda graph end\..*?mem usage=([\d.]+) GB"):
        log.put("graphs", float(match[1]) * GIB, line, "max")
    for name, pattern in (
        ("memory_utilization", r"mem_fraction_static=([\d.]+)"),
        ("max_context", r"context_len=(\d+)"),
        ("max_sequences", r"max_running_requests=(\d+)"),
        ("max_batched_tokens", r"chunked_prefill_size=(\d+)"),
    ):
        for line, match in matches(text, pattern):
            log.put(name, float(match[1]), line)
    for line, match in matches(text, r"mm_enable_dp_encoder=(True|False)"):
        log.put("whole_tower", match[1] == "True", line)
    if log.kv_tokens and log.max_context:
        log.max_concurrency = log.kv_tokens / log.max_context
    return imported(source, log)
