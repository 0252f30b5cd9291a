"""The startup log of vLLM, V0 and V1, one or many ranks."""

from __future__ import annotations

from glmplan.readers.runs.importers.record import Imported, Source, by_text
from glmplan.readers.runs.importers.startup import StartupLog, imported, matches, number
from glmplan.units import GIB

__all__ = ["KIND", "read", "recognise"]

KIND = "vllm startup log"
#: Arguments of the engine line and the fields they fill; the last group of the pattern is the value.
_ARGUMENTS = {
    "tp": r"tensor_parallel_size['\"]?[=:] ?(\d+)",
    "pp": r"pipeline_parallel_size['\"]?[=:] ?(\d+)",
    "dp": r"data_parallel_size['\"]?[=:] ?(\d+)",
    "dcp": r"decode_context_parallel_size['\"]?[=:] ?(\d+)",
}
recognise = by_text(r"vLLM API server version|LLM engine \(v|GPU KV cache size:|# GPU blocks: |gpu_worker\.py")
#: what the log says in words, and the settings that it prints; of a name that stands twice the later pattern is added
_WORDS = (
    ("version", r"LLM engine \(v([^)]+)\)"),
    ("version", r"API server version:? (\S+)"),
    ("version", r"█ +version (\S+)"),
    ("model", r"with config: model='([^']+)'"),
    ("model", r"█ +model +(\S+)"),
    ("quantization", r"[( ]quantization=(?!None)'?([\w-]+)"),
    ("kv_cache", r"Using DeepSeek's (\w+) KV cache format"),
    ("kv_cache", r"kv_cache_dtype['\"]?[=:] ?'?(\w+)"),
    ("attention_backend", r"Using (?:AttentionBackendEnum\.)?(\w+) (?:attention )?backend(?: out of|\.| on)"),
    ("attention_backend", r"Using (Flash ?\w*|Triton\w*|FlashMLA|XFormers) (?:attention )?backend"),
    ("moe_backend", r"Using '?([\w ]+?)'? \w+ MoE backend"),
    ("speculative", r"speculative_config=(?!None)(?:SpeculativeConfig\()?(?:method='?(\w+))"),
)
_SETTINGS = (
    ("memory_utilization", r"gpu_memory_utilization'?[=:] ?\(?([\d.]+)"),
    ("memory_utilization", r"gpu_memory_utilization \(([\d.]+)\)"),
    ("max_context", r"(?:max_seq_len=|Using max model len )(\d+)"),
    ("max_sequences", r"max_num_seqs'?[=:] ?(\d+)"),
    ("max_batched_tokens", r"max_num_batched_tokens'?[=:] ?(\d+)"),
)
#: what the log says of memory beside weights and pool, in GiB; old versions say GB and mean the same
_SIZES = (
    ("activations", r"activation peak memory takes ([\d.]+) ?Gi?B"),
    ("activations", r"([\d.]+) GiB for peak activation"),
    ("outside_torch", r"non_torch_memory takes ([\d.]+) ?Gi?B"),
    ("outside_torch", r"([\d.]+) GiB for non-torch memory"),
    ("graph_estimate", r"Estimated CUDA graph memory: ([\d.]+) GiB"),
    ("total", r"total_gpu_memory \(([\d.]+) ?Gi?B\)"),
    ("total", r"Free memory on device \S*\s?\([\d.]+/([\d.]+) GiB\)"),
)


def read(source: Source) -> Imported:
    """Read a startup log.

    Old versions print GiB as GB; both are binary here. Each rank prints its own line: the fullest rank's weights
    and the poorest rank's pool count, for the pool of all ranks is as large as the smallest.

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
    >>> read(Source("", "GPU KV cache size: 341,504 tokens")).rows[0]["kv_pool_tokens"]
    341504.0
    """
    text, log = source.text, StartupLog("vllm")
    for name, pattern in _WORDS:
        for line, match in matches(text, pattern):
            log.put(name, match[1], line)
    for name, pattern in _ARGUMENTS.items():
        for line, match in matches(text, pattern):
            log.put(name, int(match[1]), line, "max")
    for line, _ in matches(text, r"enable_expert_parallel['\"]?[=:] ?(True)"):
        log.put("ep", (log.tp or 1) * (log.dp or 1), line)
    for line, match in matches(
        text, r"(?:Model loading took|Loading model weights took|model weights take) ([\d.]+) ?Gi?B"
    ):
        log.put("weights", float(match[1]) * GIB, line, "max")
    for line, match in matches(text, r"(?:Available KV cache memory:|reserved for KV Cache is) (-?[\d.]+) ?Gi?B"):
        log.put("kv_pool", float(match[1]) * GIB, line, "min")
    for line, match in matches(text, r"Explicitly set \(([\d.]+)/[\d.]+\) GiB for KV cache"):
        log.put("kv_pool", float(match[1]) * GIB, line, "min")
    if log.quantization is None and "quantization=None" in text:
        # not quantised: the weights are what the run computes in
        for line, match in matches(text, r"dtype=torch\.(bfloat16|float16|float32)"):
            log.put("quantization", {"bfloat16": "bf16", "float16": "f16", "float32": "fp32"}[match[1]], line)
    for line, match in matches(text, r"(?:GPU|CPU) KV cache size: ([\d,]+) tokens"):
        log.put("kv_tokens", number(match[1]), line, "min")
    block = next((int(m[1]) for _, m in matches(text, r"block_size=(\d+)")), 16)
    for line, match in matches(text, r"# (?:GPU|cuda) blocks: (\d+)"):
        log.put("kv_tokens", float(match[1]) * block, line, "min")
    for line, match in matches(text, r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x"):
        log.put("max_concurrency", float(match[2]), line)
        log.put("max_context", number(match[1]), line)
    for pattern in (
        r"CUDA graph pool memory: ([\d.]+) GiB \(actual\)",
        r"Graph capturing finished in .*?took ([\d.]+) Gi?B",
    ):
        for line, match in matches(text, pattern):
            log.put("graphs", float(match[1]) * GIB, line, "max")
    for line, match in matches(text, r"CUDA graph memory: PIECEWISE=(\d+).*?FULL=(\d+)"):
        log.put("graph_count", float(match[1]) + float(match[2]), line)
    for line, match in matches(text, r"CUDA graph memory profiling is (enabled|disabled)"):
        log.put("graphs_taken", match[1] == "enabled", line)
    for line, match in matches(text, r"mm[_-]encoder[_-]tp[_-]mode['\"]?[=: ] ?'?(data|weights)"):
        log.put("whole_tower", match[1] == "data", line)
    for line, _ in matches(text, r"Falling back to `--mm-encoder-tp-mode weights`"):
        log.put("whole_tower", False, line, "last")
    for name, pattern in _SIZES:
        for line, match in matches(text, pattern):
            log.put(name, float(match[1]) * GIB, line, "max")
    for name, pattern in _SETTINGS:
        for line, match in matches(text, pattern):
            log.put(name, float(match[1]), line)
    return imported(source, log)
