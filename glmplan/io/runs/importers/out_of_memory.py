"""Explain out-of-memory messages of engines.

An explanation names the amounts of the message and the options that change them.

The forms are those of PyTorch (CUDA, ROCm, XPU, MPS), vLLM, SGLang, TensorRT-LLM, LMDeploy, ExLlamaV2 and ExLlamaV3,
llama.cpp (CUDA, Vulkan, Metal, host), Ollama, LM Studio, MLX, Ray and Linux.
"""

from __future__ import annotations

import re

__all__ = ["out_of_memory"]

_SIZE = r"[\d.]+ ?(?:[KMGT]i?B|bytes)"
_LOWER_LLAMA = (
    "lower --ctx-size, --ubatch-size or --n-gpu-layers, quantise the cache with --cache-type-k q8_0 --cache-type-v "
    "q8_0, or keep experts in host memory with --n-cpu-moe"
)
_LOWER_TORCH = (
    "lower --gpu-memory-utilization (vLLM) or --mem-fraction-static (SGLang), --max-num-batched-tokens or "
    "--chunked-prefill-size, or --max-num-seqs; end other processes on the GPU"
)
_LOWER_TRTLLM = "lower free_gpu_memory_fraction of kv_cache_config, max_batch_size or max_num_tokens, or raise tp_size"
_LOWER_MLX = (
    "take a format with fewer bits or a shorter context; `sudo sysctl iogpu.wired_limit_mb=...` raises the share of "
    "memory for the GPU"
)

#: pattern → what is missing and what to change; the first that matches counts, so messages of engines precede those
#: of PyTorch, CUDA and Metal
_FORMS: tuple[tuple[str, str], ...] = (
    (
        rf"(?P<asked>{_SIZE}) KV cache is needed, which is larger than the available KV cache memory "
        rf"\((?P<free>{_SIZE})\)(?:.*?estimated maximum model length is (?P<most>\d+))?",
        "vLLM needs {asked} for one request of the model's context and has {free}{most}: lower --max-model-len, raise "
        "--gpu-memory-utilization, or take --kv-cache-dtype fp8",
    ),
    (
        r"max seq len \((?P<asked>\d+)\) is larger than the maximum number of tokens that can be stored in KV cache "
        r"\((?P<free>\d+)\)",
        "vLLM needs a KV pool of {asked} tokens for one request of the model's context and has one of {free}: lower "
        "--max-model-len, raise --gpu-memory-utilization, or take --kv-cache-dtype fp8",
    ),
    (
        rf"Free memory on device.*?\((?P<free>[\d.]+)/(?P<whole>{_SIZE})\) on startup is less than desired GPU memory "
        rf"utilization \((?P<share>[\d.]+), (?P<asked>{_SIZE})\)",
        "vLLM wants {asked} (--gpu-memory-utilization {share}) and {free} of {whole} are free: end other processes on "
        "the GPU or lower --gpu-memory-utilization",
    ),
    (
        r"out of memory occurred when warming up sampler with (?P<asked>\d+) dummy requests",
        "vLLM has no memory for the logits of {asked} requests: lower --max-num-seqs or --gpu-memory-utilization",
    ),
    (
        r"No available memory for the cache blocks",
        "vLLM has no memory left for the KV cache: raise --gpu-memory-utilization or --tensor-parallel-size",
    ),
    (
        r"Not enough memory[.;] [Pp]lease try to increase --mem-fraction-static",
        "SGLang has no memory left for the KV cache: raise --mem-fraction-static or --tp-size",
    ),
    (
        rf"Capture CUDA graph failed: [^\n]*(?:Tried to allocate (?P<asked>{_SIZE}))?",
        "SGLang has no memory for CUDA graphs{asked}: lower --mem-fraction-static or --cuda-graph-max-bs",
    ),
    (
        r"(?P<phase>Decode|Prefill) out of memory\. Try to lower your batch size\.\s+Try to allocate (?P<asked>\d+) "
        r"tokens(?:\.|,).*?(?P<free>\d+)",
        "SGLang's KV pool had {free} tokens free where a {phase} step needed {asked}: lower --max-running-requests, "
        "--chunked-prefill-size or --schedule-conservativeness, or raise --mem-fraction-static",
    ),
    (
        r"Executor creation failed due to insufficient GPU memory|\[TensorRT-LLM\]\[ERROR\][^\n]*out of memory",
        f"TensorRT-LLM found no memory on the GPU: {_LOWER_TRTLLM}",
    ),
    (
        r"Can't allocate enough blocks for KV cache",
        "TensorRT-LLM's KV pool is smaller than one request: lower max_seq_len, or raise free_gpu_memory_fraction",
    ),
    (
        r"\[TM\]\[ERROR\][^\n]*out of memory|[Nn]o enough gpu memory for kv cache",
        "LMDeploy found no memory on the GPU: lower --cache-max-entry-count, --session-len, --max-batch-size or "
        "--max-prefill-token-num, or take --quant-policy 8",
    ),
    (
        r"Insufficient (?:VRAM (?:in split )?for model and cache|space on device)",
        "ExLlama's model and cache do not fit into the split: lower cache_size, take a cache of fewer bits "
        "(cache_mode), or state gpu_split",
    ),
    (
        rf"model requires more system memory \((?P<asked>{_SIZE})\) than is available \((?P<free>{_SIZE})\)",
        "Ollama needs {asked} of host memory and has {free}: lower num_ctx or OLLAMA_NUM_PARALLEL, set "
        "OLLAMA_KV_CACHE_TYPE=q8_0, or take a format with fewer bits",
    ),
    (
        rf"insufficient system resources(?:.*?requires approximately (?P<asked>{_SIZE}))?",
        "LM Studio found too little memory{asked}: lower the context length or the layers on the GPU, or take a format "
        "with fewer bits",
    ),
    (
        rf"allocating (?P<asked>{_SIZE}) on device (?P<gpu>\d+): \w+ failed: out of memory",
        "llama.cpp found no {asked} on device {gpu}: " + _LOWER_LLAMA,
    ),
    (
        r"ErrorOutOfDeviceMemory|ggml_vulkan: Device memory allocation of size (?P<asked>\d+) failed"
        r"|failed to allocate (?:\w+ )?buffer(?: of size (?P<asked2>\d+)|, size = (?P<asked3>[\d.]+ MiB)| for kv cache)"
        r"|failed to allocate compute buffers|cudaMalloc failed: out of memory",
        "llama.cpp found no memory{asked} for a buffer: " + _LOWER_LLAMA,
    ),
    (
        rf"\[metal::malloc\] Attempting to allocate (?P<asked>{_SIZE}) which is greater than the maximum allowed "
        rf"buffer size of (?P<free>{_SIZE})",
        f"MLX asked for {{asked}} in one buffer, of which Metal allows {{free}}: {_LOWER_MLX}",
    ),
    (r"kIOGPUCommandBufferCallbackErrorOutOfMemory", f"Metal found no memory: {_LOWER_MLX}"),
    (
        rf"MPS allocated: (?P<free>{_SIZE}).*?Tried to allocate (?P<asked>{_SIZE})",
        f"PyTorch asked for {{asked}} on the Apple GPU with {{free}} in use: {_LOWER_MLX}",
    ),
    (
        rf"Tried to allocate (?P<asked>{_SIZE})\. GPU (?P<gpu>\d+) has a total capacity of (?P<whole>{_SIZE})"
        rf"(?: of which (?P<free>{_SIZE}) is free)?(?:.*?this process has (?P<used>{_SIZE}) memory in use)?",
        f"PyTorch asked for {{asked}}{{free}} of {{whole}} on GPU {{gpu}}{{used}}: {_LOWER_TORCH}",
    ),
    (
        rf"Tried to allocate (?P<asked>{_SIZE}) \(GPU (?P<gpu>\d+); (?P<whole>{_SIZE}) total capacity;.*?"
        rf"(?P<free>{_SIZE}) free",
        f"PyTorch asked for {{asked}}{{free}} of {{whole}} on GPU {{gpu}}: {_LOWER_TORCH}",
    ),
    (
        r"Out of memory: Killed process \d+ \((?P<gpu>[^)]*)\)|node running low on memory",
        "the host ran out of memory{gpu}: take fewer loading processes, no copies of the KV cache in host memory, or "
        "fewer experts and layers there",
    ),
    (
        r"CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|Cuda failure 2 'out of memory'|hipErrorOutOfMemory",
        f"CUDA found no memory: {_LOWER_TORCH}; page-locked host memory counts too, with `ulimit -l`",
    ),
)
_NAMES = ("asked", "free", "gpu", "most", "phase", "share", "used", "whole")
_COMPILED = tuple((re.compile(pattern, re.DOTALL), text) for pattern, text in _FORMS)
#: words around a value that some messages lack, where its text has the name of the value without them
_WORDS = {
    "most": "; the longest context that fits is {:,} tokens",
    "used": ", {} in use by the process",
}
#: texts in which an amount may be missing
_OPTIONAL = {"free": " with {} free", "asked": " ({} asked)", "gpu": " and ended {}"}


def out_of_memory(text: str) -> str:
    """Return the amounts of an out-of-memory message and what to change.

    Empty without such a message.

    Examples
    --------
    >>> out_of_memory("allocating 2048.00 MiB on device 1: cudaMalloc failed: out of memory")[:61]
    'llama.cpp found no 2048.00 MiB on device 1: lower --ctx-size,'
    >>> out_of_memory("ValueError: No available memory for the cache blocks.")[:45]
    'vLLM has no memory left for the KV cache: rai'
    """
    for pattern, said in _COMPILED:
        if found := pattern.search(text):
            return said.format(**{name: _amount(name, said, found) for name in _NAMES})
    return ""


def _amount(name: str, said: str, found: re.Match[str]) -> str:
    """Return a value of a message with the words that it needs."""
    groups = found.groupdict()
    value = groups.get(name) or groups.get(f"{name}2") or groups.get(f"{name}3")
    if name in _WORDS:
        return _WORDS[name].format(int(value) if name == "most" else value) if value else ""
    place = said.find("{" + name + "}")
    if name in _OPTIONAL and place > 0 and said[place - 1] not in " (":  # no blank before it: the words come with it
        return _OPTIONAL[name].format(value) if value else ""
    return (value or "").lower() if name == "phase" else value or ""
