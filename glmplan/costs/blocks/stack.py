"""A whole model as tensors: what every layer kind holds, with the vocabulary ends and the MTP layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from glmplan.catalog.caching import remembered
from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.formats import WeightFormat, weight_format
from glmplan.catalog.schema.engine import CacheLayout
from glmplan.catalog.schema.model import Checkpoint, ExpertsFfn, LayerKind, ModelSpec
from glmplan.costs.blocks.kinds import feed_forwards_of, lookup_of, mixer_of, routed_of, streams_of
from glmplan.costs.blocks.mixer import Mixer
from glmplan.costs.blocks.tensor import Tensor
from glmplan.errors import UnknownFact
from glmplan.units import Bytes, BytesArray, TokenCount, Tokens, TokensArray

__all__ = [
    "JOINED_STATES",
    "LOGIT_BYTES",
    "ParameterCount",
    "Segment",
    "activation_bytes",
    "cache_bytes_per_token",
    "cache_layout",
    "checkpoint_bytes",
    "computed_again",
    "draft_once_tensors",
    "hybrid_block",
    "is_indexed",
    "layer_tensors",
    "logit_bytes",
    "mixers_of",
    "model_cache_bytes_per_token",
    "model_features",
    "model_parameters",
    "model_shape",
    "model_state_bytes",
    "mtp_tensors",
    "routed_blocks",
    "segments",
    "tensor_format",
    "uniform_checkpoint",
    "vocabulary_tensors",
]


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Weights of a model.

    Attributes
    ----------
    total : int
        Main model, embedding and head once each, MTP layers not included, [-]
    mtp : int
        MTP layers without their own embedding and head, [-]
    mtp_vocabulary : int
        Second embedding and heads of the MTP layers where the files hold them, [-]
    active : int
        Weights that one decoded token is multiplied with; the embedding is a look-up and not counted, [-]
    routed : int
        Routed experts of the main model, [-]
    looked_up : int
        Tables that no token is multiplied with, [-]
    active_prompt : int
        Weights that one token of a prompt is multiplied with: fewer than `active` where prompts skip layers, [-]
    """

    total: int
    mtp: int
    mtp_vocabulary: int
    active: int
    routed: int
    looked_up: int = 0
    active_prompt: int = 0


@lru_cache(maxsize=4096)
def layer_tensors(kind: LayerKind, hidden: int) -> tuple[Tensor, ...]:
    """Weights of one layer.

    Examples
    --------
    >>> from glmplan.catalog.schema.model import DenseFfn, GroupedQuery, LayerKind
    >>> llama = LayerKind(mixer=GroupedQuery(heads=32, kv_heads=8, head_dim=128), ffn=(DenseFfn(inner=14336),))
    >>> sum(t.parameters for t in layer_tensors(llama, 4096))
    218112000
    """
    found = list(mixer_of(kind).tensors(hidden))
    for block in feed_forwards_of(kind):
        found += block.tensors(hidden)
    if kind.norms:
        found.append(Tensor("layernorm", "norm", kind.norms * hidden, 1, shard="replicated", matmul=False))
    found += [*streams_of(kind).tensors(hidden), *lookup_of(kind).tensors(hidden)]
    for name, vectors in (("gates", kind.gates), ("short_conv", 2 * kind.convolution)):
        if vectors:
            found.append(Tensor(name, "norm", vectors * hidden, 1, shard="replicated", matmul=False))
    return tuple(found)


def vocabulary_tensors(model: ModelSpec) -> tuple[Tensor, ...]:
    """Embedding, head and final norm.

    Returns: A tied head is a matrix product on the embedding and holds no weights of its own: it is not listed. What
      folds several residual streams to one state stands with the head.
    """
    found = [Tensor("embed_tokens", "embedding", model.vocabulary, model.hidden, matmul=model.tied_embedding)]
    if not model.tied_embedding:
        found.append(Tensor("lm_head", "head", model.vocabulary, model.hidden))
    found.append(Tensor("norm", "norm", model.hidden, 1, shard="replicated", matmul=False))
    found += streams_of(model.layers[model.layer_names[-1]]).fold(model.hidden)
    return tuple(found)


#: states of the model that an EAGLE-3 head reads, one after the other [-]
JOINED_STATES = 3
#: projections of an attention that read the state of the layer
_READ_STATE = (".q_a_proj", ".kv_a_proj_with_mqa", ".q_proj", ".k_proj", ".v_proj")


def mtp_tensors(model: ModelSpec) -> tuple[Tensor, ...]:
    """One drafting layer: a layer of the model, the projection of the joined states and their norms.

    The layer of an EAGLE-3 head makes queries and keys from embedding and state side by side; its projection joins
    three states of the model, once a step.

    Returns: Empty when the model has neither MTP layer nor draft head.
    """
    hidden = model.hidden
    if model.draft_head is not None:
        found = layer_tensors(model.layers[model.draft_head.layer], hidden)
        wide = (replace(one, columns=2 * hidden) if one.name.endswith(_READ_STATE) else one for one in found)
        return (*wide, Tensor("fc", "mtp_projection", hidden, JOINED_STATES * hidden, shard="replicated"))
    if model.mtp is None:
        return ()
    if model.mtp.block is not None:
        return layer_tensors(model.layers[model.mtp.layer], hidden)
    return (
        *layer_tensors(model.layers[model.mtp.layer], hidden),
        Tensor("eh_proj", "mtp_projection", hidden, 2 * hidden, shard="replicated"),
        Tensor("enorm_hnorm_norm", "norm", 3 * hidden, 1, shard="replicated", matmul=False),
    )


def draft_once_tensors(model: ModelSpec) -> tuple[Tensor, ...]:
    """What a block drafter holds beside its stages: the joined states, and the heads after the last stage.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/models/deepseek_v41/nvidia/dspark.py (main_proj, markov_head, confidence_head).
    """
    if model.mtp is None or model.mtp.block is None:
        return ()
    hidden, rank = model.hidden, model.mtp.markov_rank
    found = [Tensor("draft.norms", "norm", 2 * hidden, 1, shard="replicated", matmul=False)]
    if model.mtp.joined:
        wide = model.mtp.joined * hidden
        found.append(Tensor("draft.main_proj", "mtp_projection", hidden, wide, shard="replicated"))
    if rank:
        found += [
            Tensor("draft.markov_embed", "mtp_projection", model.vocabulary, rank, matmul=False),
            Tensor("draft.markov_head", "mtp_projection", model.vocabulary, rank),
            Tensor("draft.confidence", "mtp_projection", 1, hidden + rank, shard="replicated"),
        ]
    return tuple(found)


def model_parameters(model: ModelSpec) -> ParameterCount:
    """Count the weights of a model."""
    total = sum(tensor.parameters for tensor in vocabulary_tensors(model))
    active = sum(tensor.parameters for tensor in vocabulary_tensors(model) if tensor.matmul)
    routed, looked_up, skipped = 0, 0, 0
    for name, count in model.runs:
        kind = model.layers[name]
        rows = layer_tensors(kind, model.hidden)
        table = count * lookup_of(kind).table_values
        total += count * sum(tensor.parameters for tensor in rows)
        visited = count * sum(tensor.parameters for tensor in rows if tensor.shard != "experts") - table
        looked_up += table
        for block in feed_forwards_of(kind):
            if block.routed is not None:
                held = sum(t.parameters for t in rows if t.shard == "experts")
                routed += count * held
                visited += count * held * block.routed.topk // block.routed.experts
        active += visited
        skipped += visited if kind.decode_only else 0
    mtp_layers = model.mtp.layers if model.mtp else 0
    mtp = mtp_layers * sum(tensor.parameters for tensor in mtp_tensors(model))
    mtp += sum(tensor.parameters for tensor in draft_once_tensors(model))
    ends = (2 if model.mtp.own_embedding else 1 if model.mtp.own_head else 0) if model.mtp else 0
    return ParameterCount(
        total=total,
        mtp=mtp,
        mtp_vocabulary=ends * model.vocabulary * model.hidden * mtp_layers,
        active=active,
        routed=routed,
        looked_up=looked_up,
        active_prompt=active - skipped,
    )


# How a checkpoint stores each layer: runs of layers that are alike in structure and in formats.

#: classes that quantised checkpoints leave alone unless they say otherwise
_KEPT_WIDE = ("embedding", "head", "norm", "router", "mtp_projection", "streams")
#: classes that stay in BF16 unless a checkpoint names them
_NAMED_ONLY = ("norm", "streams")


@dataclass(frozen=True, slots=True)
class Segment:
    """Layers that are alike: one kind, one set of formats.

    Attributes
    ----------
    name : str
        Name of the layer kind; ``mtp`` for MTP layers.
    kind : LayerKind
        What a layer is made of.
    layers : tuple of int
        Their numbers; MTP layers count on after the last main layer.
    tensors : tuple of Tensor
        Weights of one layer.
    formats : tuple of WeightFormat
        Format of each tensor, in the same order.
    """

    name: str
    kind: LayerKind
    layers: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    formats: tuple[WeightFormat, ...]

    @property
    def count(self) -> int:
        """Layers in it, [-]"""
        return len(self.layers)

    @property
    def bytes(self) -> float:
        """Stored bytes of one layer, [B]"""
        return sum(t.parameters * f.bytes for t, f in zip(self.tensors, self.formats, strict=True))


def uniform_checkpoint(format_name: str, *, source: str = "asked for; not a published checkpoint") -> Checkpoint:
    """A checkpoint that stores all matrices of the layers in one format, ends, norms and routers in BF16.

    Examples
    --------
    >>> uniform_checkpoint("fp8").formats["embedding"]
    'bf16'
    """
    weight_format(format_name)
    kept = {} if format_name == "bf16" else {name: "bf16" for name in _KEPT_WIDE}
    return Checkpoint(name=format_name, default=format_name, formats=kept, source=source)


def tensor_format(checkpoint: Checkpoint, tensor: Tensor, layer: int | None) -> WeightFormat:
    """Format in which a checkpoint stores a tensor.

    - `layer`: Number of its layer; None for the vocabulary ends.
    - Returns: The format; norms and biases are never quantised.

    Examples
    --------
    >>> norm = Tensor("norm", "norm", 4096, 1, matmul=False)
    >>> tensor_format(uniform_checkpoint("nvfp4"), norm, 0).name
    'bf16'
    """
    if checkpoint.file_bits_per_weight is not None:
        return weight_format(f"bpw:{checkpoint.file_bits_per_weight}")
    default = "bf16" if tensor.tensor_class in _NAMED_ONLY else checkpoint.default
    name = checkpoint.formats.get(tensor.name) or checkpoint.formats.get(tensor.tensor_class, default)
    if layer is not None:
        for exception in checkpoint.exceptions:
            if layer in exception.layers:
                name = exception.formats.get(tensor.name) or exception.formats.get(tensor.tensor_class, name)
    return weight_format(name)


def segments(model: ModelSpec, checkpoint: Checkpoint, *, mtp: bool = False) -> tuple[Segment, ...]:
    """Group the layers of a model by structure and formats."""
    return _segments(model, checkpoint, mtp)


@remembered(records=2)
def _segments(model: ModelSpec, checkpoint: Checkpoint, mtp: bool) -> tuple[Segment, ...]:
    grouped: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    parts: dict[tuple[str, tuple[str, ...]], tuple[LayerKind, tuple[Tensor, ...], tuple[WeightFormat, ...]]] = {}

    # layers of one kind differ only where an exception names them, so the first of them answers for the others
    like: dict[tuple[str, tuple[bool, ...]], tuple[str, tuple[str, ...]]] = {}

    def add(name: str, kind: LayerKind, layer: int) -> None:
        # what a block drafter holds once lies with its first stage
        once = name == "mtp" and layer == len(model.layer_names)
        alike = (name, (once, *(layer in exception.layers for exception in checkpoint.exceptions)))
        if alike not in like:
            # a draft head is a checkpoint of its own
            stored = uniform_checkpoint("bf16") if name == "mtp" and model.mtp is None else checkpoint
            tensors = mtp_tensors(model) if name == "mtp" else layer_tensors(kind, model.hidden)
            tensors += draft_once_tensors(model) if once else ()
            formats = tuple(tensor_format(stored, tensor, layer) for tensor in tensors)
            like[alike] = (name, tuple(one.name for one in formats))
            parts[like[alike]] = (kind, tensors, formats)
        grouped.setdefault(like[alike], []).append(layer)

    for layer, name in enumerate(model.layer_names):
        add(name, model.layers[name], layer)
    if mtp and model.draft_layers is not None:
        kind, count = model.draft_layers
        for extra in range(count):
            add("mtp", kind, len(model.layer_names) + extra)
    return tuple(
        Segment(key[0], parts[key][0], tuple(layers), parts[key][1], parts[key][2]) for key, layers in grouped.items()
    )


def checkpoint_bytes(model: ModelSpec, checkpoint: Checkpoint) -> Bytes:
    """Bytes of all weights in a checkpoint's files."""
    mtp = checkpoint.includes_mtp and model.mtp is not None
    total = sum(part.bytes * part.count for part in segments(model, checkpoint, mtp=mtp))
    ends = vocabulary_tensors(model)
    total += sum(tensor.parameters * tensor_format(checkpoint, tensor, None).bytes for tensor in ends)
    if checkpoint.includes_mtp and model.mtp is not None:
        again = ("embedding", "head") if model.mtp.own_embedding else ("head",) if model.mtp.own_head else ()
        own = sum(t.parameters * tensor_format(checkpoint, t, None).bytes for t in ends if t.tensor_class in again)
        total += own * model.mtp.layers
    return total + model.extra_parameters * checkpoint.includes_tower * weight_format("bf16").bytes


# What one token and one sequence keep in the cache, in the layout of the engine that serves them.
#
# - Latent attention keeps one latent and one rotary key for all heads: 576 values in DeepSeek-V3 and GLM-5.
# - vLLM and SGLang pack the FP8 latent of sparse attention as ``fp8_ds_mla``: one byte a latent value, one FP32 scale
# for
#   128 of them, the rotary key in BF16; 656 B (vLLM, `vllm/v1/attention/backends/mla/flashmla_sparse.py`). Its
#   ``nvfp4_ds_mla`` keeps FP4 values with a scale for 16 of them, and the rotary key in FP8; 352 B (the same file).
# - Index keys are always FP8 with one FP32 scale for 128 values (132 B); layers that reuse indices keep none. Engines
#   that run such models densely (MLX, llama.cpp before b9512) keep none at all; what llama.cpp keeps since stands with
#   its slots (`glmplan.catalog.engines.memory.StepBuffer`).
# - Where sparse kernels are missing, engines that attend densely differ. vLLM has to be patched, and every published
#   patch makes the model forget its indexer (`is_v32` false: no indexer module, so no index cache, and the latent is
#   stored as any other: https://github.com/vllm-project/vllm/pull/39594, issue 35021, the field report of April 2026).
#   SGLang goes on allocating the index keys that it does not read.
# - Layers that share the cache of an earlier layer keep nothing; recurrent layers keep a state for each sequence.
#
# Checked against running servers: GLM-5.1 with its MTP layer on vLLM in FP8 takes 62,252 B a token ("19.12 GiB hold
# 329,792 tokens"), GLM-5 on SGLang in BF16 100,152 B ("29.32 GB hold 314,304 tokens"),
# https://github.com/voipmonitor/rtx6kpro. Blocks, padding and replication over ranks are not modelled here.


def cache_layout(engine: str) -> CacheLayout:
    """Return the cache layout of an engine.

    Examples
    --------
    >>> cache_layout("vllm").packed_latent, cache_layout("vllm").without_indexer().packed_latent
    (True, False)
    """
    found = load_engine(engine.lower()).cache
    if found is None:
        raise UnknownFact(f"{engine}: no source says how it lays out its cache")
    return found


def cache_bytes_per_token(kind: LayerKind, kv: str, layout: CacheLayout) -> Bytes:
    """Bytes that one token adds to the cache of one layer, all heads, index keys included.

    Returns: ; 0 for layers without attention or with a shared cache. Windows count as if they were not full.

    Examples
    --------
    A layer of GLM-5.1 in FP8 on vLLM: 656 B of latent and 132 B of index key.

    >>> from glmplan.catalog.schema.model import Indexer, LatentAttention
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
) -> Bytes:
    """Bytes that one token adds to the cache of a whole model, before any sliding window is full or after all are.

    - `indexer`: Whether the sparse indexer is there; patched vLLM leaves it out.
    - `windows`: Whether sliding windows still grow; without, a token adds nothing to them, as in a long sequence.
    - Returns: ; on one rank that holds all heads.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
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


def model_state_bytes(model: ModelSpec, *, state_bytes: Bytes = 4.0, conv_bytes: Bytes = 2.0) -> Bytes:
    """Bytes of recurrent state that one sequence keeps in a whole model.

    `state_bytes`, `conv_bytes`: Bytes for each value of the state and of the convolution window.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> model_state_bytes(load_model("glm-5.1"))
    0.0
    """
    return float(
        sum(
            count * mixer_of(kind).state_bytes(state=state_bytes, conv=conv_bytes)
            for kind, count in _layers(model, False)
        )
    )


# What a whole model has: features that walls ask for, an indexer, experts.


@remembered()
def mixers_of(model: ModelSpec) -> tuple[Mixer, ...]:
    """Return the mixers of all kinds of layers.

    Returns: One for each kind of layer, layers that draft included.
    """
    return tuple(mixer_of(kind) for kind in model.layers.values())


@remembered()
def routed_blocks(model: ModelSpec) -> tuple[ExpertsFfn, ...]:
    """Return the mixtures of experts of all kinds of layers."""
    return tuple(one for kind in model.layers.values() if (one := routed_of(kind)) is not None)


@remembered()
def is_indexed(model: ModelSpec) -> bool:
    """Whether an indexer decides what some layers read, and engines without its kernels read everything instead.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> is_indexed(load_model("glm-5.1")), is_indexed(load_model("deepseek-v3"))
    (True, False)
    """
    return any(one.indexed for one in mixers_of(model))


@remembered()
def model_features(model: ModelSpec) -> frozenset[str]:
    """Return the features of a model that walls ask for.

    Returns: ``mtp``, and what its blocks say: ``moe`` and the words of `Mixer.features`.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> sorted(model_features(load_model("glm-5.1")))
    ['dsa', 'mla', 'moe', 'mtp']
    """
    found: set[str] = {"mtp"} if model.mtp is not None else set()
    for name, _ in model.runs:
        kind = model.layers[name]
        found |= mixer_of(kind).features.union(*(one.features for one in feed_forwards_of(kind)))
    return frozenset(found)


@remembered()
def model_shape(model: ModelSpec) -> str:
    """Return the name of a model's shape: models that differ in their weights only are the same to an engine.

    Returns: Family, hidden size, layers, experts and whether an indexer decides what is read.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> model_shape(load_model("glm-5.1")), model_shape(load_model("llama-3.1-8b"))
    ('glm 6144x78 e256k8 sparse', 'llama 4096x32')
    """
    experts = next((f" e{one.experts}k{one.topk}" for one in routed_blocks(model)), "")
    sparse = " sparse" if is_indexed(model) else ""
    return f"{model.family} {model.hidden}x{len(model.layer_names)}{experts}{sparse}"


# What is computed again of a prompt that is in the cache already.

#: engines cache whole blocks, the rest of the last one is fresh [token]
_PLAIN = 64.0
#: tokens that an attention kernel's block is a multiple of (vLLM, `kernel_block_alignment_size`) [token]
_ALIGNED = 16


def hybrid_block(model: ModelSpec, *, tp: int, kv_bytes: Bytes, draft_tokens: TokenCount = 0) -> TokenCount:
    """Tokens of a cache block of a model with recurrent layers, as vLLM unites the pages of both kinds of layer.

    - `draft_tokens`: Drafted tokens of a step; the window of the convolution keeps them too.
    - Returns: ; 0 for models without both kinds of layer.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/model_executor/models/config.py, `HybridAttentionMambaModelConfig`: attention blocks
       grow until their page is as large as a recurrent state.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> qwen = load_model("qwen3.5-397b-a17b")
    >>> [hybrid_block(qwen, tp=4, kv_bytes=size) for size in (1.0, 2.0)]
    [2096, 1056]
    """
    mixers = mixers_of(model)
    pages = (one.state_page(tp=tp, draft_tokens=draft_tokens) for one in mixers)
    tokens = (one.page_token(tp=tp, kv_bytes=kv_bytes) for one in mixers)
    page, token = next(filter(None, pages), 0.0), next(filter(None, tokens), 0.0)
    if not page or not token:
        return 0
    return int(_ALIGNED * np.ceil(page / (_ALIGNED * token)))


def computed_again(
    model: ModelSpec, *, engine: str, prompt: Tokens, tp: int, kv_bytes: Bytes, draft_tokens: TokenCount = 0
) -> float:
    """Tokens of a cached prompt that a request computes again.

    Returns: What is left after the last whole block; a drafting vLLM drops that block too [1]_, [token].

    References
    ----------
    .. [1] vllm-project/vllm, vllm/v1/core/single_type_kv_cache_manager.py, `find_longest_cache_hit` (`use_eagle`).

    Notes
    -----
    Not modelled: other engines' blocks of hybrid models (SGLang keeps states at points of its own choice).

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> qwen = load_model("qwen3.5-397b-a17b")
    >>> computed_again(qwen, engine="vllm", prompt=20_938.0, tp=4, kv_bytes=1.0)
    2074.0
    >>> computed_again(load_model("llama-3.1-8b"), engine="vllm", prompt=20_938.0, tp=4, kv_bytes=1.0)
    64.0
    """
    united = engine in engine_names() and cache_layout(engine).united_pages
    block = hybrid_block(model, tp=tp, kv_bytes=kv_bytes, draft_tokens=draft_tokens) if united else 0
    if not block:
        return min(prompt, _PLAIN)
    dropped = block if draft_tokens else 0
    return float(min(prompt % block + dropped, prompt))


# Peak of the activations of one engine step: what a forward pass holds at its widest layer, and the logits.
#
# The engines do not publish a formula; they run a trial step. This sums the tensors that live at the same time in the
# widest layer. What kernels take beyond it is observed (`glmplan.costs.memory.settings.MemoryFit.remainder`).

#: BF16 activations [B]
_VALUE_BYTES = 2.0
#: gathered BF16 logits, their FP32 copy and the FP32 probabilities (vLLM `v1/sample/sampler.py`) [B]
LOGIT_BYTES = 2.0 + 4.0 + 4.0


def activation_bytes(
    kinds: tuple[LayerKind, ...],
    hidden: int,
    *,
    tokens: TokensArray | Tokens,
    tp: np.ndarray | float,
    dp: np.ndarray | float,
    ep: np.ndarray | float,
) -> BytesArray:
    """Peak activations of the widest of some kinds of layers.

    `tokens`: Tokens of the step on one data-parallel rank.

    Notes
    -----
    Counted: hidden states and residual (each of its streams); then the wider of the attention transient and the
    feed-forward transient. The experts hold a row for each routed copy of a token: input or output, and between the two
    matrices; with data parallelism the tokens of all ranks. Not modelled: kernel work spaces, fragmentation, sequence
    parallelism.

    Examples
    --------
    >>> from glmplan.catalog.schema.model import DenseFfn, GroupedQuery
    >>> kind = LayerKind(mixer=GroupedQuery(heads=32, kv_heads=8, head_dim=128), ffn=(DenseFfn(inner=14336),))
    >>> float(activation_bytes((kind,), 4096, tokens=8192.0, tp=1, dp=1, ep=1)) / 2**20
    864.0
    """
    split, replicas, expert = (np.asarray(one, dtype=float) for one in (tp, dp, ep))
    widest = np.zeros_like(split * replicas)
    streams = 1
    for kind in kinds:
        widest = np.maximum(widest, mixer_of(kind).activation_values(split))
        for block in feed_forwards_of(kind):
            widest = np.maximum(widest, block.activation_values(hidden, tp=split, dp=replicas, ep=expert))
        streams = max(streams, streams_of(kind).streams)
    result: np.ndarray = _VALUE_BYTES * np.asarray(tokens, dtype=float) * ((1.0 + streams) * hidden + widest)
    return result


def logit_bytes(vocabulary: int, requests: np.ndarray | float) -> BytesArray:
    """Logits and probabilities of the rows that are sampled in one step.

    Examples
    --------
    >>> float(logit_bytes(128256, 256.0)) / 1e6
    328.33536
    """
    return LOGIT_BYTES * vocabulary * np.asarray(requests, dtype=float)
