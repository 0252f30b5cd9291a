"""The startup log of TensorRT-LLM: the executor of its PyTorch backend, and the C++ runtime of engines built before."""

from __future__ import annotations

from glmplan.readers.runs.importers.record import Imported, Source, by_text
from glmplan.readers.runs.importers.startup import StartupLog, imported, matches
from glmplan.units import GIB

__all__ = ["KIND", "read", "recognise"]

KIND = "trtllm startup log"
recognise = by_text(r"\[TensorRT-LLM\]|\[TRT-LLM\]")
#: what the log says in words and the settings that it prints; the first match counts
_WORDS = (
    ("version", r"TensorRT[- ]LLM version:? v?(\S+)"),
    ("model", r"trtllm-serve for model (\S+)"),
    ("model", r"\bmodel='([^']+)'"),
    ("model", r"hub/models--(\S+?)/snapshots/"),
    ("quantization", r"quant_algo=<QuantAlgo\.(\w+)"),
    ("kv_cache", r"kv_cache_quant_algo=<QuantAlgo\.(\w+)"),
    ("kv_cache", r"\bkv_cache_dtype='(?!auto)(\w+)'"),
    ("attention_backend", r"\battn_backend='(\w+)'"),
    ("moe_backend", r"\bmoe_backend='(?!AUTO)(\w+)'"),
    ("speculative", r"\bdecoding_type='(\w+)'"),
)
_LAYOUT = (
    ("tp", r"\b(?:tensor_parallel_size|tp_size)[=:] ?(\d+)"),
    ("pp", r"\b(?:pipeline_parallel_size|pp_size)[=:] ?(\d+)"),
    ("ep", r"\b(?:moe_expert_parallel_size|moe_ep_size)[=:] ?(\d+)"),
)
_SETTINGS = (
    ("memory_utilization", r"fraction is set ([\d.]+)"),
    ("memory_utilization", r"\bfree_gpu_memory_fraction[=:] ?([\d.]+)"),
    ("max_context", r"max_seq_len is not specified, using inferred value (\d+)"),
    ("max_context", r"\bmax_seq_len[=:] ?(\d+)"),
    ("max_sequences", r"\bmax_num_requests[=:] ?(\d+)"),
    ("max_sequences", r"\bmax_batch_size[=:] ?(\d+)"),
    ("max_batched_tokens", r"\bmax_num_tokens[=:] ?(\d+)"),
)
#: what the trial run of the PyTorch backend and the C++ runtime print of memory, in GiB
_SIZES = (
    ("weights", r"\bUse ([\d.]+) GB for model weights\."),
    ("activations", r"during inference \(inside torch\) in memory usage profiling: ([\d.]+) GiB"),
    ("activations", r"Allocated ([\d.]+) GiB for execution context memory"),
    ("total", r"device total memory ([\d.]+) GiB"),
    ("total", r"calculating max tokens in paged kv cache: total: ([\d.]+) GiB"),
)


def read(source: Source) -> Imported:
    """Read a startup log.

    The PyTorch backend makes a small pool for its trial run and the true one after it: the last pool of a rank counts,
    of several ranks the poorest. What it prints as used outside torch holds that small pool, which is taken out of it.

    Parameters
    ----------
    source : Source
        The log.

    Returns
    -------
    Imported
        One run of phase `memory`, with `logged`.

    References
    ----------
    .. [1] NVIDIA/TensorRT-LLM, tensorrt_llm/_torch/pyexecutor/_util.py (KvCacheCreator), in 1.1, 1.2 and 1.3.
    .. [2] The same, cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp.

    Examples
    --------
    >>> log = "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 5.95 GiB for max tokens in paged KV cache (86720)."
    >>> read(Source("", log)).rows[0]["kv_pool_tokens"]
    86720.0
    """
    text, log = source.text, StartupLog("trtllm")
    for name, pattern in _WORDS:
        for line, match in matches(text, pattern):
            log.put(name, _plain(name, match[1]), line)
    for name, pattern in _LAYOUT:
        for line, match in matches(text, pattern):
            log.put(name, int(match[1]), line, "max")
    if "enable_attention_dp=True" in text and log.tp:  # every rank attends for requests of its own
        log.dp, log.tp = log.tp, 1
    for name, pattern in _SETTINGS:
        for line, match in matches(text, pattern):
            log.put(name, float(match[1]), line)
    for name, pattern in _SIZES:
        for line, match in matches(text, pattern):
            log.put(name, float(match[1]) * GIB, line, "max")
    if not log.weights:  # with what the executor itself has allocated by then
        for line, match in matches(text, r"weights \(inside torch\) in memory usage profiling: ([\d.]+) GiB"):
            log.put("weights", float(match[1]) * GIB, line, "max")
    for line, match in matches(text, r"\bLoaded engine size: (\d+) MiB"):
        log.put("weights", float(match[1]) * 2.0**20, line, "max")
    small = matches(text, r"(?:tmp kv_mem|cache memory during profiling) ([\d.]+) GiB")
    trial = max((float(match[1]) for _, match in small), default=0.0)
    for line, match in matches(text, r"used outside torch \([^)]*\) in memory usage profiling: ([\d.]+) GiB"):
        log.put("outside_torch", (float(match[1]) - trial) * GIB, line, "max")
    _pool(text, log)
    return imported(source, log)


def _plain(name: str, said: str) -> str:
    """A word as other logs write it: a folder of the cache names its model, an algorithm is written small."""
    if name == "model":
        return said.replace("--", "/")
    return said.lower() if name in ("quantization", "kv_cache") else said


def _pool(text: str, log: StartupLog) -> None:
    """The pool that is left: after the last trial run, the poorest of the ranks."""
    begin = max((n for n, _ in matches(text, r"Estimated max memory in KV cache")), default=0)
    for line, match in matches(text, r"Allocated ([\d.]+) GiB for max tokens in paged KV cache \((\d+)\)"):
        if line >= begin:
            log.put("kv_pool", float(match[1]) * GIB, line, "min")
            log.put("kv_tokens", float(match[2]), line, "min")
    for line, match in matches(text, r"Estimated max memory in KV cache : ([\d.]+) GiB"):
        if log.kv_pool is None:
            log.put("kv_pool", float(match[1]) * GIB, line)
