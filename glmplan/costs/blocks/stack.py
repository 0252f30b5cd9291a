"""Describe a whole model as tensors, stored bytes, cache and activations.

Every layer contributes by its kind; embedding, head and MTP layers are added.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from glmplan.catalog.caching import remembered
from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.formats import WeightFormat, weight_format
from glmplan.catalog.schema.engine import CacheLayout
from glmplan.catalog.schema.model import Checkpoint, DraftHead, ExpertsFfn, LayerKind, ModelSpec
from glmplan.costs.blocks.kinds import feed_forwards_of, lookup_of, mixer_of, routed_of, streams_of
from glmplan.costs.blocks.mixer import Mixer
from glmplan.costs.blocks.tensor import Tensor
from glmplan.errors import UnknownFact
from glmplan.units import Bytes, BytesArray, TokenCount, Tokens, TokensArray

__all__ = [
    "EXPERTS",
    "LOGIT_BYTES",
    "ParameterCount",
    "Segment",
    "activation_bytes",
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
    "moved_class",
    "mtp_blocks",
    "mtp_tensors",
    "routed_blocks",
    "segments",
    "tensor_format",
    "uniform_checkpoint",
    "vocabulary_tensors",
]


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Weights of a model."""

    total: int  # main model, embedding and head once each, without MTP layers
    mtp: int  # MTP layers without their own embedding and head
    mtp_vocabulary: int  # second embedding and heads of the MTP layers where the files hold them
    active: int  # multiplied with one decoded token; without the embedding, a look-up
    routed: int  # routed experts of the main model
    looked_up: int = 0  # tables that are only looked up
    active_prompt: int = 0  # multiplied with one prompt token: fewer than `active` where prompts skip layers


@lru_cache(maxsize=4096)
def layer_tensors(kind: LayerKind, hidden: int) -> tuple[Tensor, ...]:
    """Return the weights of one layer.

    Examples
    --------
    >>> from glmplan.catalog.schema.model import DenseFfn, GroupedQuery, LayerKind
    >>> llama = LayerKind(mixer=GroupedQuery(heads=32, kv_heads=8, head_dim=128), ffn=(DenseFfn(inner=14336),))
    >>> sum(t.parameters for t in layer_tensors(llama, 4096))
    218112000
    """
    result = list(mixer_of(kind).tensors(hidden))
    for block in feed_forwards_of(kind):
        result += block.tensors(hidden)
    if kind.norms:
        result.append(Tensor("layernorm", "norm", kind.norms * hidden, 1, shard="replicated", matmul=False))
    result += [*streams_of(kind).tensors(hidden), *lookup_of(kind).tensors(hidden)]
    for name, vectors in (("gates", kind.gates), ("short_conv", 2 * kind.convolution)):
        if vectors:
            result.append(Tensor(name, "norm", vectors * hidden, 1, shard="replicated", matmul=False))
    return tuple(result)


def vocabulary_tensors(model: ModelSpec) -> tuple[Tensor, ...]:
    """Return embedding, head and final norm.

    A tied head is a product with the embedding and not listed. The fold of several residual streams into one state
    stands with the head.
    """
    result = [Tensor("embed_tokens", "embedding", model.vocabulary, model.hidden, matmul=model.tied_embedding)]
    if not model.tied_embedding:
        result.append(Tensor("lm_head", "head", model.vocabulary, model.hidden))
    result.append(Tensor("norm", "norm", model.hidden, 1, shard="replicated", matmul=False))
    result += streams_of(model.layers[model.layer_names[-1]]).fold(model.hidden)
    return tuple(result)


#: projections of an attention that read the state of the layer
_READ_STATE = (".q_a_proj", ".kv_a_proj_with_mqa", ".q_proj", ".k_proj", ".v_proj")


def mtp_tensors(model: ModelSpec, kind: LayerKind | None = None) -> tuple[Tensor, ...]:
    """Return the weights of one drafting layer, of the first kind by default.

    Layer, projection of the joined states, their norms. The layer of an EAGLE-3 head makes queries and keys from
    embedding and state side by side; its projection joins three states of the model, once a step. That of an EAGLE head
    joins embedding and state for each drafted token [1]_. Empty without MTP layer and draft head.

    References
    ----------
    .. [1] vllm-project/vllm at 00da9231, vllm/model_executor/models/llama_eagle.py (`fc`).
    """
    hidden = model.hidden
    if (head := model.draft_head) is not None:
        result = layer_tensors(kind or model.layers[head.layer], head.hidden or hidden)
        if head.method == "eagle":
            return (*result, Tensor("eh_proj", "mtp_projection", hidden, 2 * hidden, shard="replicated"))
        if head.method != "eagle3":
            return result
        wide = (replace(item, columns=2 * hidden) if item.name.endswith(_READ_STATE) else item for item in result)
        return (*wide, Tensor("fc", "mtp_projection", hidden, head.joined * hidden, shard="replicated"))
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
    """Return a drafter's weights outside its layers [1]_.

    Joined states and heads after the last.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/models/deepseek_v41/nvidia/dspark.py (main_proj, markov_head, confidence_head).
    """
    if model.draft_head is not None:
        return _head_once(model, model.draft_head)
    if model.mtp is None or model.mtp.block is None:
        return ()
    hidden, rank = model.hidden, model.mtp.markov_rank
    result = [Tensor("draft.norms", "norm", 2 * hidden, 1, shard="replicated", matmul=False)]
    if model.mtp.joined:
        wide = model.mtp.joined * hidden
        result.append(Tensor("draft.main_proj", "mtp_projection", hidden, wide, shard="replicated"))
    if rank:
        result += [
            Tensor("draft.markov_embed", "mtp_projection", model.vocabulary, rank, matmul=False),
            Tensor("draft.markov_head", "mtp_projection", model.vocabulary, rank),
            Tensor("draft.confidence", "mtp_projection", 1, hidden + rank, shard="replicated"),
        ]
    return tuple(result)


def _head_once(model: ModelSpec, head: DraftHead) -> tuple[Tensor, ...]:
    """Return what a separate drafter holds beside its layers."""
    hidden = head.hidden or model.hidden
    result: list[Tensor] = []
    if head.method == "dflash":
        joined = head.joined * model.hidden
        result = [
            Tensor("draft.norms", "norm", 2 * hidden, 1, shard="replicated", matmul=False),
            Tensor("draft.main_proj", "mtp_projection", hidden, joined, shard="replicated"),
        ]
    if head.vocabulary is not None:
        result.append(Tensor("draft.head", "head", head.vocabulary, hidden))
        if head.method == "draft_model" and not head.tied:
            result.append(Tensor("draft.embed", "embedding", head.vocabulary, hidden, matmul=False))
    return tuple(result)


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
    mtp += sum(tensor.parameters for tensor in draft_once_tensors(model)) if model.mtp else 0
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


#: classes that quantised checkpoints leave alone unless they say otherwise
_KEPT_WIDE = ("embedding", "head", "norm", "router", "mtp_projection", "streams")
#: classes that stay in BF16 unless a checkpoint names them
_NAMED_ONLY = ("norm", "streams")


@dataclass(frozen=True, slots=True)
class Segment:
    """Layers of one kind and one set of formats."""

    name: str  # layer kind; ``mtp`` for MTP layers
    kind: LayerKind
    layers: tuple[int, ...]  # numbers; MTP layers follow the last main layer
    tensors: tuple[Tensor, ...]  # of one layer
    formats: tuple[WeightFormat, ...]  # of each tensor, in the same order

    @property
    def count(self) -> int:
        """Return the number of layers."""
        return len(self.layers)

    @property
    def bytes(self) -> float:
        """Return the stored bytes of one layer."""
        return sum(t.parameters * f.bytes for t, f in zip(self.tensors, self.formats, strict=True))


def uniform_checkpoint(format_name: str) -> Checkpoint:
    """Return a checkpoint with all matrices in one format.

    Ends, norms and routers are BF16.

    Examples
    --------
    >>> uniform_checkpoint("fp8").formats["embedding"]
    'bf16'
    """
    weight_format(format_name)
    kept = {} if format_name == "bf16" else {name: "bf16" for name in _KEPT_WIDE}
    return Checkpoint(
        name=format_name, default=format_name, formats=kept, source="asked for; not a published checkpoint"
    )


def tensor_format(checkpoint: Checkpoint, tensor: Tensor, layer: int | None) -> WeightFormat:
    """Return the format in which a checkpoint stores a tensor.

    Norms and biases are never quantised. `layer`: None for embedding and head.

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
    grouped: dict[tuple[str, int, tuple[str, ...]], list[int]] = {}
    parts: dict[tuple[str, int, tuple[str, ...]], tuple[LayerKind, tuple[Tensor, ...], tuple[WeightFormat, ...]]] = {}

    # layers of one kind differ only where an exception names them, so the first layer stands for the others
    like: dict[tuple[str, int, tuple[bool, ...]], tuple[str, int, tuple[str, ...]]] = {}

    def add(name: str, kind: LayerKind, layer: int, run: int = 0) -> None:
        # the tensors that a block drafter holds once lie with its first stage
        once = name == "mtp" and layer == len(model.layer_names)
        alike = (name, run, (once, *(layer in exception.layers for exception in checkpoint.exceptions)))
        if alike not in like:
            # a draft head is a checkpoint of its own
            stored = uniform_checkpoint("bf16") if name == "mtp" and model.mtp is None else checkpoint
            tensors = mtp_tensors(model, kind) if name == "mtp" else layer_tensors(kind, model.hidden)
            tensors += draft_once_tensors(model) if once else ()
            formats = tuple(tensor_format(stored, tensor, layer) for tensor in tensors)
            like[alike] = (name, run, tuple(item.name for item in formats))
            parts[like[alike]] = (kind, tensors, formats)
        grouped.setdefault(like[alike], []).append(layer)

    for layer, name in enumerate(model.layer_names):
        add(name, model.layers[name], layer)
    drafting = [(run, kind) for run, (kind, count) in enumerate(model.draft_runs) for _ in range(count)]
    for extra, (run, kind) in enumerate(drafting if mtp else ()):
        add("mtp", kind, len(model.layer_names) + extra, run)
    return tuple(
        Segment(key[0], parts[key][0], tuple(layers), parts[key][1], parts[key][2]) for key, layers in grouped.items()
    )


def mtp_blocks(model: ModelSpec, checkpoint: Checkpoint) -> int:
    """Return the MTP layers that the files of a checkpoint hold."""
    return model.mtp.layers if model.mtp is not None and checkpoint.includes_mtp else 0


def checkpoint_bytes(model: ModelSpec, checkpoint: Checkpoint) -> Bytes:
    """Return the bytes of all weights in a checkpoint's files."""
    mtp = mtp_blocks(model, checkpoint) > 0
    total = sum(part.bytes * part.count for part in segments(model, checkpoint, mtp=mtp))
    ends = vocabulary_tensors(model)
    total += sum(tensor.parameters * tensor_format(checkpoint, tensor, None).bytes for tensor in ends)
    if checkpoint.includes_mtp and model.mtp is not None:
        again = ("embedding", "head") if model.mtp.own_embedding else ("head",) if model.mtp.own_head else ()
        own = sum(t.parameters * tensor_format(checkpoint, t, None).bytes for t in ends if t.tensor_class in again)
        total += own * model.mtp.layers
    return total + model.extra_parameters * checkpoint.includes_tower * weight_format("bf16").bytes


# Cache of one token and one sequence, in the layout of the serving engine.
#
# - Latent attention keeps one latent and one rotary key for all heads: 576 values in DeepSeek-V3 and GLM-5.
# - vLLM and SGLang pack the FP8 latent of sparse attention as ``fp8_ds_mla``: one byte a latent value, one FP32 scale
#   for 128 values, the rotary key in BF16; 656 B (vLLM, `vllm/v1/attention/backends/mla/flashmla_sparse.py`).
#   ``nvfp4_ds_mla`` keeps FP4 values with a scale for 16 of them, and the rotary key in FP8; 352 B (the same file).
# - Index keys are always FP8 with one FP32 scale for 128 values (132 B); layers that reuse indices keep none. Engines
#   that run such models densely (MLX, llama.cpp before b9512) keep none at all; for llama.cpp since then see
#   `glmplan.catalog.engines.memory.StepBuffer`.
# - Without sparse kernels, engines that attend densely differ. vLLM has to be patched, and every published patch makes
#   the model forget its indexer (`is_v32` false: no indexer module and no index cache, a plain latent:
#   https://github.com/vllm-project/vllm/pull/39594, issue 35021, the field report of April 2026). SGLang still
#   allocates the index keys.
# - Layers that share the cache of an earlier layer keep nothing; recurrent layers keep a state for each sequence.
#
# Checked against running servers: GLM-5.1 with its MTP layer on vLLM in FP8 takes 62,252 B a token ("19.12 GiB hold
# 329,792 tokens"), GLM-5 on SGLang in BF16 100,152 B ("29.32 GB hold 314,304 tokens"),
# https://github.com/voipmonitor/rtx6kpro. Not modelled here: blocks, padding, replication over ranks.


def cache_layout(engine: str) -> CacheLayout:
    """Return the cache layout of an engine.

    Examples
    --------
    >>> cache_layout("vllm").packed_latent, cache_layout("vllm").without_indexer().packed_latent
    (True, False)
    """
    result = load_engine(engine.lower()).cache
    if result is None:
        raise UnknownFact(f"{engine}: no source says how it lays out its cache")
    return result


def _layers(model: ModelSpec, mtp: bool) -> list[tuple[LayerKind, int]]:
    runs = [(model.layers[name], count) for name, count in model.runs]
    return [*runs, *(model.draft_runs if mtp else ())]


def model_cache_bytes_per_token(
    model: ModelSpec, kv: str, engine: str = "vllm", *, mtp: bool = False, indexer: bool = True, windows: bool = True
) -> Bytes:
    """Return the cache bytes of a token on one rank with all heads.

    `indexer` False: patched vLLM leaves the sparse indexer out. `windows` False: sliding windows are full, as in a long
    sequence.

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
    """Return the bytes of recurrent state of one sequence.

    `state_bytes`, `conv_bytes`: bytes of a value of the state and of the convolution window.
    """
    return float(
        sum(
            count * mixer_of(kind).state_bytes(state=state_bytes, conv=conv_bytes)
            for kind, count in _layers(model, False)
        )
    )


@remembered()
def mixers_of(model: ModelSpec) -> tuple[Mixer, ...]:
    """Return the mixer of each kind of layer, draft layers included."""
    return tuple(mixer_of(kind) for kind in model.layers.values())


@remembered()
def routed_blocks(model: ModelSpec) -> tuple[ExpertsFfn, ...]:
    """Return the mixtures of experts of all kinds of layers."""
    return tuple(one for kind in model.layers.values() if (one := routed_of(kind)) is not None)


#: class of the matrices of routed experts
EXPERTS = "routed_experts"


@remembered()
def moved_class(model: ModelSpec) -> str:
    """Return the class of the matrices that layers leave to the CPU.

    Routed experts, of which a token reads few; without them the feed-forward matrices, the largest of a layer.
    Attention and its cache stay on the accelerators.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> moved_class(load_model("glm-5.1")), moved_class(load_model("llama-3.1-70b"))
    ('routed_experts', 'dense')
    """
    return EXPERTS if any(routed_of(model.layers[name]) is not None for name in model.layer_names) else "dense"


@remembered()
def is_indexed(model: ModelSpec) -> bool:
    """Return True if an indexer selects the tokens that some layers read.

    Engines without its kernels read all tokens.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> is_indexed(load_model("glm-5.1")), is_indexed(load_model("deepseek-v3"))
    (True, False)
    """
    return any(item.indexed for item in mixers_of(model))


@remembered()
def model_features(model: ModelSpec) -> frozenset[str]:
    """Return the features of a model that engine limitations refer to.

    Its family, ``mtp``, ``eagle`` (a head of EAGLE-1 or EAGLE-2), ``eagle3``, ``moe`` and the features of its mixers
    (`Mixer.features`).

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> sorted(model_features(load_model("glm-5.1")))
    ['dsa', 'glm', 'mla', 'moe', 'mtp']
    """
    result: set[str] = {model.family} | ({"mtp"} if model.mtp is not None else set())
    head = model.draft_head
    result |= {head.method} if head is not None and head.method in ("eagle", "eagle3") else set()
    for name, _ in model.runs:
        kind = model.layers[name]
        result |= mixer_of(kind).features.union(*(item.features for item in feed_forwards_of(kind)))
    return frozenset(result)


@remembered()
def model_shape(model: ModelSpec) -> str:
    """Return the name of a model's shape.

    Models of one shape differ only in their weights. Family, hidden size, layers, experts and sparsity.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> model_shape(load_model("glm-5.1")), model_shape(load_model("llama-3.1-8b"))
    ('glm 6144x78 e256k8 sparse', 'llama 4096x32')
    """
    experts = next((f" e{routed_block.experts}k{routed_block.topk}" for routed_block in routed_blocks(model)), "")
    sparse = " sparse" if is_indexed(model) else ""
    return f"{model.family} {model.hidden}x{len(model.layer_names)}{experts}{sparse}"


#: engines cache whole blocks, the rest of the last one is computed again [token]
_PLAIN = 64.0
#: an attention kernel's block is a multiple of this (vLLM, `kernel_block_alignment_size`) [token]
_ALIGNED = 16


def hybrid_block(model: ModelSpec, *, tp: int, kv_bytes: Bytes, draft_tokens: TokenCount = 0) -> TokenCount:
    """Return the block tokens of attention beside recurrent layers, else 0.

    vLLM grows attention blocks until their page is as large as a recurrent state [1]_. `draft_tokens` of a step stay in
    the convolution window, too.

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
    pages = (mixer.state_page(tp=tp, draft_tokens=draft_tokens) for mixer in mixers)
    tokens = (mixer.page_token(tp=tp, kv_bytes=kv_bytes) for mixer in mixers)
    page, token = next(filter(None, pages), 0.0), next(filter(None, tokens), 0.0)
    if not page or not token:
        return 0
    return int(_ALIGNED * np.ceil(page / (_ALIGNED * token)))


def computed_again(
    model: ModelSpec, *, engine: str, prompt: Tokens, tp: int, kv_bytes: Bytes, draft_tokens: TokenCount = 0
) -> float:
    """Return the tokens of a cached prompt that a request computes again.

    The tokens after the last full block; with drafting, vLLM drops that block too [1]_. Not modelled: other engines'
    blocks of hybrid models (SGLang keeps states at points of its own choice).

    References
    ----------
    .. [1] vllm-project/vllm, vllm/v1/core/single_type_kv_cache_manager.py, `find_longest_cache_hit` (`use_eagle`).
    """
    united = engine in engine_names() and cache_layout(engine).united_pages
    block = hybrid_block(model, tp=tp, kv_bytes=kv_bytes, draft_tokens=draft_tokens) if united else 0
    if not block:
        return min(prompt, _PLAIN)
    dropped = block if draft_tokens else 0
    return float(min(prompt % block + dropped, prompt))


# The engines publish no formula for the activation peak of a step; they run a trial step. The functions below sum the
# tensors that live at the same time in the widest layer. Further memory of kernels is observed
# (`glmplan.costs.memory.settings.MemoryFit.remainder`).

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
    """Return the peak activations of the widest of some kinds of layers.

    `tokens` of the step on one data-parallel rank. Counted: hidden states and residual (each of its streams), then the
    wider of the attention and the feed-forward transient. The experts hold a row for each routed copy of a token: input
    or output, and the row between the two matrices; with data parallelism the tokens of all ranks. Not modelled: kernel
    workspaces, fragmentation, sequence parallelism.

    Examples
    --------
    >>> from glmplan.catalog.schema.model import DenseFfn, GroupedQuery
    >>> kind = LayerKind(mixer=GroupedQuery(heads=32, kv_heads=8, head_dim=128), ffn=(DenseFfn(inner=14336),))
    >>> float(activation_bytes((kind,), 4096, tokens=8192.0, tp=1, dp=1, ep=1)) / 2**20
    864.0
    """
    split, replicas, expert = (np.asarray(item, dtype=float) for item in (tp, dp, ep))
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
    """Return the logits and probabilities of the rows sampled in one step."""
    return LOGIT_BYTES * vocabulary * np.asarray(requests, dtype=float)
