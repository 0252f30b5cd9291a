"""What one token and one sequence keep in the cache, in the layout of the engine that serves them.

- Latent attention keeps one latent and one rotary key for all heads: 576 values in DeepSeek-V3 and GLM-5.
- vLLM and SGLang pack the FP8 latent of sparse attention as ``fp8_ds_mla``: one byte a latent value, one FP32 scale for
  128 of them, the rotary key in BF16; 656 B (vLLM, `vllm/v1/attention/backends/mla/flashmla_sparse.py`). Its
  ``nvfp4_ds_mla`` keeps FP4 values with a scale for 16 of them, and the rotary key in FP8; 352 B (the same file).
- Index keys are always FP8 with one FP32 scale for 128 values (132 B); layers that reuse indices keep none. Engines
  that run such models densely (MLX, llama.cpp before b9512) keep none at all; what llama.cpp keeps since stands with
  its slots (`glmplan.facts.engines.memory.StepBuffer`).
- Where sparse kernels are missing, engines that attend densely differ. vLLM has to be patched, and every published
  patch makes the model forget its indexer (`is_v32` false: no indexer module, so no index cache, and the latent is
  stored as any other: https://github.com/vllm-project/vllm/pull/39594, issue 35021, the field report of April 2026).
  SGLang goes on allocating the index keys that it does not read.
- Layers that share the cache of an earlier layer keep nothing; recurrent layers keep a state for each sequence.

Checked against running servers: GLM-5.1 with its MTP layer on vLLM in FP8 takes 62,252 B a token ("19.12 GiB hold
329,792 tokens"), GLM-5 on SGLang in BF16 100,152 B ("29.32 GB hold 314,304 tokens"),
https://github.com/voipmonitor/rtx6kpro. Blocks, padding and replication over ranks are not modelled here.
"""

from __future__ import annotations

from glmplan.errors import UnknownFact
from glmplan.facts.engines.walls import load_engine
from glmplan.facts.schema.engine_running import CacheLayout
from glmplan.facts.schema.model import LayerKind, ModelSpec
from glmplan.physics.blocks.kinds import mixer_of

__all__ = [
    "cache_bytes_per_token",
    "cache_layout",
    "model_cache_bytes_per_token",
    "model_state_bytes",
]


def cache_layout(engine: str) -> CacheLayout:
    """Return the cache layout of an engine.

    Parameters
    ----------
    engine : str
        Its name.

    Returns
    -------
    CacheLayout
        The layout, a fact of `hardware_db/engines`.

    Raises
    ------
    UnknownName
        If the engine is not known.
    UnknownFact
        If no source says how it lays out its cache.

    Examples
    --------
    >>> cache_layout("vllm").packed_latent, cache_layout("vllm").without_indexer().packed_latent
    (True, False)
    """
    found = load_engine(engine.lower()).cache
    if found is None:
        raise UnknownFact(f"{engine}: no source says how it lays out its cache")
    return found


def cache_bytes_per_token(kind: LayerKind, kv: str, layout: CacheLayout) -> float:
    """Bytes that one token adds to the cache of one layer, all heads, index keys included.

    Parameters
    ----------
    kind : LayerKind
        The layer.
    kv : str
        Format of the cache.
    layout : CacheLayout
        The engine's layout.

    Returns
    -------
    float
        [B]; 0 for layers without attention or with a shared cache. Windows count as if they were not full.

    Examples
    --------
    A layer of GLM-5.1 in FP8 on vLLM: 656 B of latent and 132 B of index key.

    >>> from glmplan.facts.schema.model import Indexer, LatentAttention
    >>> indexer = Indexer(heads=32, head_dim=128, topk=2048)
    >>> mla = LatentAttention(heads=64, kv_rank=512, nope_dim=192, rope_dim=64, v_dim=256, indexer=indexer)
    >>> cache_bytes_per_token(LayerKind(mixer=mla), "fp8", cache_layout("vllm"))
    788.0
    """
    held = mixer_of(kind).cache(kv, layout)
    return held.per_token + held.in_window


def _layers(model: ModelSpec, mtp: bool) -> list[tuple[LayerKind, int]]:
    runs = [(model.layers[name], count) for name, count in model.runs]
    if mtp and model.draft_layers is not None:
        runs.append(model.draft_layers)
    return runs


def model_cache_bytes_per_token(
    model: ModelSpec, kv: str, engine: str = "vllm", *, mtp: bool = False, indexer: bool = True, windows: bool = True
) -> float:
    """Bytes that one token adds to the cache of a whole model, before any sliding window is full or after all are.

    Parameters
    ----------
    model : ModelSpec
        The model.
    kv : str
        Format of the cache.
    engine : str, optional
        Whose layout.
    mtp : bool, optional
        Whether MTP layers keep a cache too.
    indexer : bool, optional
        Whether the sparse indexer is there; patched vLLM leaves it out.
    windows : bool, optional
        Whether sliding windows still grow; without, a token adds nothing to them, as in a long sequence.

    Returns
    -------
    float
        [B]; on one rank that holds all heads.

    Raises
    ------
    SpecError
        If the format or the engine is not known.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> glm = load_model("glm-5.1")
    >>> model_cache_bytes_per_token(glm, "bf16", "sglang")
    100152.0
    >>> model_cache_bytes_per_token(glm, "fp8", "vllm", mtp=True)
    62252.0
    >>> model_cache_bytes_per_token(glm, "fp8", "vllm", indexer=False)
    44928.0
    >>> flash = load_model("deepseek-v4.1-flash")
    >>> model_cache_bytes_per_token(flash, "nvfp4"), model_cache_bytes_per_token(flash, "nvfp4", windows=False)
    (22010.0, 890.0)
    """
    layout = cache_layout(engine) if indexer else cache_layout(engine).without_indexer()
    held = [(mixer_of(kind).cache(kv, layout), count) for kind, count in _layers(model, mtp)]
    return float(sum(count * (one.per_token + windows * one.in_window) for one, count in held))


def model_state_bytes(model: ModelSpec, *, state_bytes: float = 4.0, conv_bytes: float = 2.0) -> float:
    """Bytes of recurrent state that one sequence keeps in a whole model.

    Parameters
    ----------
    model : ModelSpec
        The model.
    state_bytes, conv_bytes : float, optional
        Bytes for each value of the state and of the convolution window, [B]

    Returns
    -------
    float
        [B]; 0 for models without recurrent layers.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> model_state_bytes(load_model("glm-5.1"))
    0.0
    """
    return float(
        sum(
            count * mixer_of(kind).state_bytes(state=state_bytes, conv=conv_bytes)
            for kind, count in _layers(model, False)
        )
    )
