"""The startup log of llama.cpp: server, CLI and bench, old and new prefixes."""

from __future__ import annotations

from glmplan.readers.runs.importers.record import Imported, Source, by_text
from glmplan.readers.runs.importers.startup import StartupLog, imported, matches, number

__all__ = ["KIND", "read", "recognise"]

KIND = "llama.cpp startup log"
_MIB = 2.0**20
recognise = by_text(r"llama_model_loader:|llm_load_tensors:|load_tensors:|llama_kv_cache|llama_context:")


def read(source: Source) -> Imported:
    """Read a startup log.

    Buffers are summed over the devices and divided by their number, for llama.cpp splits layers, not tensors.
    Weights mapped on the host while devices hold others are kept apart. The pool is that of the device with the largest
    caches and holds the cells of the largest cache: a sliding-window model has a second, smaller one.

    Parameters
    ----------
    source : Source
        The log.

    Returns
    -------
    Imported
        One run of phase `memory`, with `logged`.
    """
    text, log = source.text, StartupLog("llama.cpp")
    for name, pattern in (
        ("version", r"build(?:_info)?: +(?:b)?(\d+)"),
        ("version", r"build_info: +b?(\S+)"),
        ("model", r"general\.name +(?:str +)?= +(.+?)\s*$"),
        ("model", r"loading model '([^']+)'"),
        ("quantization", r"(?:file type|model ftype) += +(\S+)"),
        ("kv_cache", r"K \((\w+)\):"),
        ("accelerator", r"Device 0: ([^,]+),"),
        ("accelerator", r"using device \S+ \(([^)]+)\)"),
    ):
        for line, match in matches(text, pattern):
            log.put(name, match[1], line)
    for line, match in matches(text, r"found (\d+) \w+ devices"):
        log.put("pp", int(match[1]), line)
    weights = _buffers(text, r"(\S+) model buffer size += +([\d.]+) MiB")
    devices = {name: size for name, size in weights.items() if not name.startswith(("CPU", "CUDA_Host"))}
    line = max((n for n, _ in matches(text, r"model buffer size")), default=0)
    if weights:
        used = devices or weights
        log.put("weights", sum(used.values()) / (len(used) if devices else 1), line)
        if devices and len(devices) < len(weights):
            log.put("host_weights", sum(weights.values()) - sum(devices.values()), line)
    # newer builds first try what fits, in a pass that prints the same lines: only the last pass counts
    begin = max((n for n, _ in matches(text, r"llama_context: n_ctx +=")), default=0)
    caches = [
        (n, m)
        for n, m in matches(text, r"size += +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers, +\d+(?:/ *(\d+))? seqs")
        if n >= begin
    ]
    for line, match in caches:
        # cells are those of one stream; sequences that share nothing have a stream each
        log.put("kv_tokens", float(match[2]) * float(match[4] or 1), line, "max")
        log.put("kv_pool", _fullest(text, begin) or sum(float(m[1]) for _, m in caches) * _MIB, line)
    for line, match in matches(text, r"llama_context: n_ctx_seq += +(\d+)"):
        log.put("max_context", float(match[1]), line)
    for line, match in matches(text, r"KV self size += +([\d.]+) MiB"):
        log.put("kv_pool", float(match[1]) * _MIB, line)
    for line, match in matches(text, r"llama_(?:context|new_context_with_model|init_from_model): n_ctx += +(\d+)"):
        log.put("max_context", float(match[1]), line)
        log.put("kv_tokens", float(match[1]), line)
        log.put("cells", float(match[1]), line, "last")
    for name, pattern in (
        ("max_sequences", r"n_seq_max += +(\d+)"),
        ("max_sequences", r"n_slots += +(\d+)"),
        ("max_batched_tokens", r"\bn_batch += +(\d+)"),
    ):
        for line, match in matches(text, pattern):
            log.put(name, number(match[1]), line)
    compute = _buffers(text, r"(\S+) compute buffer size += +([\d.]+) MiB")
    if compute:
        log.put("activations", max(compute.values()), max(n for n, _ in matches(text, r"compute buffer size")))
    for line, match in matches(text, r"flash_attn += +(\w+)|Flash Attention was auto, set to (\w+)"):
        on = (match[1] or match[2]) in ("1", "on", "enabled")
        log.put("attention_backend", "flash attention" if on else None, line, "last")
    return imported(source, log)


def _fullest(text: str, begin: int) -> float:
    """Bytes of the caches of the last pass on the device that holds most of them; 0 where no device holds any."""
    held: dict[str, float] = {}
    for line, match in matches(text, r"(\S+) (?:KV|RS) buffer size += +([\d.]+) MiB"):
        if line >= begin and not match[1].startswith(("CPU", "CUDA_Host")):
            held[match[1]] = held.get(match[1], 0.0) + float(match[2]) * _MIB
    return max(held.values(), default=0.0)


def _buffers(text: str, pattern: str) -> dict[str, float]:
    """Return the last size printed for each buffer; a fitting pass prints some of them before the real one."""
    found: dict[str, float] = {}
    for _, match in matches(text, pattern):
        found[match[1]] = float(match[2]) * _MIB
    return found
