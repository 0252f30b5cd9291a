"""What one token and one sequence keep in the cache, in the layout of the engine that serves them.

- Latent attention keeps one latent and one rotary key for all heads: 576 values in DeepSeek-V3 and GLM-5.
- vLLM and SGLang pack the FP8 latent of sparse attention as ``fp8_ds_mla``: one byte a latent value, one FP32 scale for
  128 of them, the rotary key in BF16; 656 B (vLLM, `vllm/v1/attention/backends/mla/flashmla_sparse.py`).
- Index keys are always FP8 with one FP32 scale for 128 values (132 B); layers that reuse indices keep none. Engines
  that run such models densely (llama.cpp, MLX) keep none at all.
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
from glmplan.facts.formats import kv_format
from glmplan.facts.schema.engine_running import CacheLayout
from glmplan.facts.schema.model import GroupedQuery, LatentAttention, LayerKind, ModelSpec, Recurrent
from glmplan.physics.blocks import grouped_query, latent, recurrent

__all__ = [
    "cache_bytes_per_token",
    "cache_layout",
    "cache_window",
    "model_cache_bytes_per_token",
    "model_state_bytes",
    "state_bytes_per_sequence",
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
        [B]; 0 for layers without attention or with a shared cache. Windows are not looked at (`cache_window`).

    Examples
    --------
    A layer of GLM-5.1 in FP8 on vLLM: 656 B of latent and 132 B of index key.

    >>> from glmplan.facts.schema.model import Indexer
    >>> indexer = Indexer(heads=32, head_dim=128, topk=2048)
    >>> mla = LatentAttention(heads=64, kv_rank=512, nope_dim=192, rope_dim=64, v_dim=256, indexer=indexer)
    >>> cache_bytes_per_token(LayerKind(mixer=mla), "fp8", cache_layout("vllm"))
    788.0
    """
    width = kv_format(kv).bytes
    mixer = kind.mixer
    if isinstance(mixer, GroupedQuery):
        # the keys of a block indexer stay in BF16, one head for all (MiniMax-M3, llama.cpp pull request 24908)
        index = 2.0 * mixer.indexer.head_dim if mixer.indexer is not None else 0.0
        return grouped_query.cache_values_per_token(mixer) * width + index
    if not isinstance(mixer, LatentAttention):
        return 0.0
    held = latent.cache_values_per_token(mixer) * width
    if mixer.indexer is not None:
        if layout.packed_latent and kv.lower() == "fp8":
            held = mixer.kv_rank + 4.0 * -(-mixer.kv_rank // 128) + 2.0 * mixer.rope_dim
        if layout.index_keys:
            held += latent.index_key_bytes(mixer)
    return held


def cache_window(kind: LayerKind) -> int | None:
    """Tokens of a sequence that a layer keeps at most.

    Parameters
    ----------
    kind : LayerKind
        The layer.

    Returns
    -------
    int or None
        [token]; None when it keeps all of them.

    Examples
    --------
    >>> cache_window(LayerKind(mixer=GroupedQuery(heads=64, kv_heads=8, head_dim=64, window=128)))
    128
    """
    return kind.mixer.window if isinstance(kind.mixer, GroupedQuery) else None


def state_bytes_per_sequence(kind: LayerKind, *, state_bytes: float = 4.0, conv_bytes: float = 2.0) -> float:
    """Bytes of recurrent state that one sequence keeps in one layer, however long it is.

    Parameters
    ----------
    kind : LayerKind
        The layer.
    state_bytes, conv_bytes : float, optional
        Bytes for each value of the state (configs say FP32: `mamba_ssm_dtype`) and of the convolution window, [B]

    Returns
    -------
    float
        [B]; 0 for layers without a state.

    Examples
    --------
    A linear layer of Qwen3.5-397B-A17B:

    >>> gdn = Recurrent(flavour="gated_delta", key_heads=16, key_dim=128, value_heads=64, value_dim=128)
    >>> state_bytes_per_sequence(LayerKind(mixer=gdn))
    4268032.0
    """
    if not isinstance(kind.mixer, Recurrent):
        return 0.0
    return recurrent.state_values(kind.mixer) * state_bytes + recurrent.conv_values(kind.mixer) * conv_bytes


def _layers(model: ModelSpec, mtp: bool) -> list[tuple[LayerKind, int]]:
    runs = [(model.layers[name], count) for name, count in model.runs]
    if mtp and model.draft_layers is not None:
        runs.append(model.draft_layers)
    return runs


def model_cache_bytes_per_token(
    model: ModelSpec, kv: str, engine: str = "vllm", *, mtp: bool = False, indexer: bool = True
) -> float:
    """Bytes that one token adds to the cache of a whole model, before any sliding window is full.

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

    Returns
    -------
    float
        [B]; on one rank that holds all heads. Sliding layers count in full.

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
    """
    layout = cache_layout(engine) if indexer else cache_layout(engine).without_indexer()
    return float(sum(count * cache_bytes_per_token(kind, kv, layout) for kind, count in _layers(model, mtp)))


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
            count * state_bytes_per_sequence(kind, state_bytes=state_bytes, conv_bytes=conv_bytes)
            for kind, count in _layers(model, False)
        )
    )
