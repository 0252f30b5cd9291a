"""How engines pack requests into steps unless they are told otherwise."""

from __future__ import annotations

from dataclasses import dataclass, replace

from glmplan.units import GIB

__all__ = ["ENGINE_DEFAULTS", "EngineDefaults", "engine_defaults"]


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """How an engine packs steps unless it is told otherwise.

    Attributes
    ----------
    budget : int
        Tokens that a step may hold, [token]
    prefill_first : bool
        Prompts run in steps of their own and decoding waits.
    max_requests : int
        Requests that may run at once, [-]
    reserve : float
        Share of the answer that must fit in the KV cache before a request is admitted, [-]
    whole_prompts : bool
        Prompts are never split over steps.
    late : int
        Steps that have begun when the next prompt of a closed loop arrives: the engine goes on at once, the client
        needs a round trip, [-]
    graph_tokens : int
        Tokens up to which a pass with prompts is replayed from piecewise graphs, [token]
    """

    budget: int
    prefill_first: bool
    max_requests: int
    reserve: float = 0.5
    whole_prompts: bool = False
    late: int = 1
    graph_tokens: int = 0


#: vLLM V1: max_num_batched_tokens 8192 for a server on large parts, max_num_seqs 1024 since 0.11 (docs.vllm.ai,
#: engine arguments); SGLang: chunked_prefill_size 8192-16384 by memory (docs.sglang.ai, server arguments);
#: TensorRT-LLM: max_num_tokens 8192, max_batch_size 2048, prompts split only with enable_chunked_prefill
#: (nvidia.github.io/TensorRT-LLM, deployment guide and performance tuning guide);
#: llama.cpp: n_ubatch 512, slots as asked. Each asks for its next step as soon as one ends (llama.cpp: tools/server,
#: `SERVER_TASK_TYPE_NEXT_RESPONSE` after `update_slots`; vLLM: async scheduling; SGLang and TensorRT-LLM: overlap
#: scheduler), so a prompt that answers the end of a step comes one step late. vLLM captures passes of up to
#: max_cudagraph_capture_size = 512 tokens piece by piece, without attention (docs.vllm.ai, vllm.config.compilation of
#: 0.11.2 and design/cuda_graphs); SGLang's piecewise graphs are younger than its runs here.
ENGINE_DEFAULTS: dict[str, EngineDefaults] = {
    "vllm": EngineDefaults(8192, False, 1024, graph_tokens=512),
    "sglang": EngineDefaults(16384, True, 2048),
    "trtllm": EngineDefaults(8192, False, 2048, 1.0, True),
    "llama.cpp": EngineDefaults(512, False, 256),
    "ktransformers": EngineDefaults(8192, True, 64),
    "mlx": EngineDefaults(2048, True, 32),
}


#: vLLM takes less on parts with less memory than this and on every A100: 2048 tokens and 256 requests (vllm
#: tests/engine/test_arg_utils.py, `test_defaults_with_usage_context`) [B]
_VLLM_LARGE = 70 * GIB


def engine_defaults(engine: str, *, accelerator: str = "", memory: float | None = None) -> EngineDefaults:
    """Defaults of an engine; an unknown one packs like vLLM.

    Parameters
    ----------
    engine : str
        Name of the engine.
    accelerator : str, optional
        Canonical name of the part.
    memory : float, optional
        Memory of the part; a large one by default, [B]

    Returns
    -------
    EngineDefaults
        Its packing rules.

    Examples
    --------
    >>> engine_defaults("sglang").prefill_first
    True
    >>> engine_defaults("vllm", accelerator="rtx-4090", memory=24 * 2**30).max_requests
    256
    """
    found = ENGINE_DEFAULTS.get(engine, ENGINE_DEFAULTS["vllm"])
    small = accelerator.startswith("a100") or (memory is not None and memory < _VLLM_LARGE)
    return replace(found, budget=2048, max_requests=256) if engine == "vllm" and small else found
