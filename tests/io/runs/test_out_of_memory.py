"""Messages of missing memory: what each names, and the option that changes it."""

from __future__ import annotations

import pytest

from glmplan.io.runs.importers.out_of_memory import out_of_memory


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 79.15 GiB total capacity; 70.00 GiB already "
         "allocated; 1.25 GiB free; 76.00 GiB reserved", ("2.00 GiB", "1.25 GiB", "79.15 GiB")),
        ("HIP out of memory. Tried to allocate 640.00 MiB. GPU 0 has a total capacity of 191.98 GiB of which 0 bytes "
         "is free.", ("640.00 MiB", "0 bytes", "191.98 GiB")),
        ("MPS backend out of memory (MPS allocated: 17.97 GB, max allowed: 18.13 GB). Tried to allocate 192.00 MB on",
         ("192.00 MB", "17.97 GB")),
        ("max seq len (131072) is larger than the maximum number of tokens that can be stored in KV cache (55424)",
         ("131072", "55424", "--max-model-len")),
        ("Free memory on device cuda:0 (70.1/79.25 GiB) on startup is less than desired GPU memory utilization (0.9, "
         "71.33 GiB).", ("70.1", "71.33 GiB", "end other processes")),
        ("CUDA out of memory occurred when warming up sampler with 1024 dummy requests.", ("1024", "--max-num-seqs")),
        ("Capture CUDA graph failed: CUDA out of memory. Tried to allocate 20.00 MiB.", ("--cuda-graph-max-bs",)),
        ("Prefill out of memory. Try to lower your batch size.\nTry to allocate 8192 tokens.\nAvailable tokens: 4096",
         ("8192", "4096", "prefill")),
        ("Executor creation failed due to insufficient GPU memory.", ("free_gpu_memory_fraction",)),
        ("[TM][ERROR] CUDA runtime error: out of memory", ("--cache-max-entry-count",)),
        ("RuntimeError: Insufficient VRAM for model and cache", ("gpu_split",)),
        ("model requires more system memory (20.1 GiB) than is available (15.3 GiB)",
         ("20.1 GiB", "15.3 GiB", "num_ctx")),
        ("stopped due to insufficient system resources. this model requires approximately 45.10 GB of", ("45.10 GB",)),
        ("ggml_vulkan: Device memory allocation of size 1073741824 failed.", ("1073741824", "--n-cpu-moe")),
        ("ggml_metal_buffer_init: error: failed to allocate buffer, size = 20480.00 MiB",
         ("20480.00 MiB", "--ctx-size")),
        ("[metal::malloc] Attempting to allocate 24159191040 bytes which is greater than the maximum allowed buffer "
         "size of 17179869184 bytes.", ("24159191040 bytes", "17179869184 bytes")),
        ("Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", ("iogpu.wired_limit_mb",)),
        ("Out of memory: Killed process 4321 (python3) total-vm:123456kB", ("host", "python3")),
        ("RuntimeError: CUDA error: out of memory", ("ulimit -l",)),
    ],
)  # fmt: skip
def test_each_engine_s_message_names_its_amounts_and_the_change(text, named):
    said = out_of_memory(text)
    assert [one for one in named if one not in said] == []
    assert "{" not in said


def test_other_texts_are_none():
    assert out_of_memory("INFO: GPU KV cache size: 400,000 tokens") == ""
