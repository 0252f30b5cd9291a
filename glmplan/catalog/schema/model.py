"""What a model is made of: a stack of layers, each a token mixer and feed-forward blocks, and its checkpoints.

Everything here is read off a `config.json` (or a cited text). Totals are computed from it, never typed in;
published totals stand beside them as a check.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, model_validator

from glmplan.catalog.formats import kv_format, weight_format
from glmplan.catalog.schema.validation import Frozen
from glmplan.units import parse_quantity

__all__ = [
    "Checkpoint",
    "CompressedAttention",
    "DenseFfn",
    "DraftHead",
    "ExpertsFfn",
    "Ffn",
    "FormatException",
    "GroupedQuery",
    "HyperConnections",
    "Indexer",
    "LatentAttention",
    "LayerKind",
    "LookupTable",
    "Mixer",
    "ModelSpec",
    "MtpSpec",
    "Published",
    "Recurrent",
    "TensorClass",
    "TensorKey",
    "expand_stack",
]


# What stands beside mixers and feed-forward blocks: residual streams, tables that are looked up, a drafting head.


class HyperConnections(Frozen):
    """Several residual streams instead of one: each block reads a mix of them and writes to all.

    `form` says how the mix is made of the streams: ``manifold`` (2 n + n² weights for each of them, normalised to a
    doubly stochastic matrix; DeepSeek-V4), ``plain`` (2 n weights; Hy4), ``low_rank`` (through `rank` values; the
    preview of Qwen4). `folded` says that weights of their own make one state of them after the last layer.
    """

    streams: PositiveInt
    form: Literal["manifold", "plain", "low_rank"] = "manifold"
    rank: PositiveInt | None = None
    folded: bool = False

    @model_validator(mode="after")
    def _rank_where_needed(self) -> HyperConnections:
        if (self.form == "low_rank") != (self.rank is not None):
            raise ValueError("rank is stated for form low_rank and only there")
        return self


class LookupTable(Frozen):
    """A table that a layer looks up by a hash of the last few tokens, which may lie in host memory.

    `rows` of `width` values, of which a token reads `reads` (a few for each length of n-gram). The values read are
    projected to a value and one key for each residual stream; `convolution` tokens of the result are mixed, `norms`
    norms are as wide as all streams (Engram of DeepSeek-V4.1; n-gram table of the preview of Qwen4).
    """

    rows: PositiveInt
    width: PositiveInt
    reads: PositiveInt
    streams: PositiveInt
    norms: int = Field(2, ge=0)
    convolution: int = Field(0, ge=0)


class DraftHead(Frozen):
    """An EAGLE-3 head trained for the model and published apart, in BF16: one layer of kind `layer` with its own head.

    Its layer reads the joined embedding and state, so the products that make queries and keys are twice as wide; once a
    step a projection joins three states of the model. It shares the embedding of the model; `own_embedding` says that
    its files hold one with other values (of the model that it was trained with), which some engines keep.
    """

    repository: str
    layer: str
    source: str
    own_embedding: bool = False
    note: str | None = None


# A published set of weights: which class of tensors is stored in which format, and how large the files are.

#: classes of tensors that a checkpoint can store in different formats
TensorClass = Literal[
    "embedding",
    "head",
    "attention",
    "latent_down",
    "indexer",
    "recurrent",
    "dense",
    "shared_experts",
    "routed_experts",
    "router",
    "norm",
    "mtp_projection",
    "streams",
    "lookup",
    "other",
]

#: a class of tensors, or one tensor by its name within the layer where it differs from its class (``self_attn.o_proj``)
TensorKey = TensorClass | Annotated[str, Field(pattern=r"^(self_attn|mlp|linear_attn|mixer|lookup|draft)\.[\w.]+$")]


class FormatException(Frozen):
    """Layers (numbers, MTP layers counted on) in which some tensor classes are stored otherwise."""

    layers: tuple[int, ...]
    formats: dict[TensorKey, str]


class Checkpoint(Frozen):
    """One published set of weights: which class of tensors is stored in which format.

    `bytes_published` is what the publisher states [B], `file_bits_per_weight` replaces the class formats for mixtures
    such as GGUF files whose mean bits are all that is known. With `includes_tower` false the image tower is a file of
    its own, which the size does not count. `smaller` and `larger` say by which share of the computed size the true
    files may be smaller or larger (ends of a 90 % interval); nothing for what is published. `fp8_scales` says of FP8
    that is not in blocks what has a scale of its own; None where nobody says it. `padded` are inner widths to which the
    files pad a class of feed-forward tensors, so that their parts hold whole groups.
    """

    name: str
    repository: str | None = None
    formats: dict[TensorKey, str] = {}
    default: str = "bf16"
    exceptions: tuple[FormatException, ...] = ()
    kv_default: str | None = None
    includes_mtp: bool = True
    includes_tower: bool = True
    file_bits_per_weight: float | None = Field(None, gt=0.5, le=32)
    bytes_published: str | None = None
    smaller: float = Field(0.0, ge=0, lt=1)
    larger: float = Field(0.0, ge=0, lt=1)
    fp8_scales: Literal["matrix", "row"] | None = None
    padded: dict[TensorClass, int] = {}
    source: str
    note: str | None = None

    @property
    def form(self) -> str:
        """In which files it is published, as engines say what they read; MLX and EXL3 files are named so."""
        plain = "safetensors" if self.file_bits_per_weight is None else "gguf"
        return next((one for one in ("mlx", "exl3") if self.name.startswith(one)), plain)

    @property
    def bulk(self) -> str:
        """The format of routed experts, or of all where there are none, as walls and host kernels name it.

        FP8 that is not in blocks is named by what has a scale: ``fp8-row``, ``fp8-matrix``, or ``fp8`` if nobody says.
        """
        found = self.formats.get("routed_experts") or self.default
        return f"{found}-{self.fp8_scales}" if found == "fp8" and self.fp8_scales else found

    @model_validator(mode="after")
    def _known_formats(self) -> Checkpoint:
        stated = [self.default, *self.formats.values()]
        for name in {*stated, *(form for one in self.exceptions for form in one.formats.values())}:
            weight_format(name)
        kv_format(self.kv_default or "bf16")
        parse_quantity(self.bytes_published or "1 B", "bytes")
        return self


class Indexer(Frozen):
    """The indexer of sparse attention: scores keys, keeps the `topk` best for each query [token].

    `reads_from_previous` layers reuse the indices of the layer before and have neither weights nor key cache (GLM-5.2).
    `pool` tokens share one key, which is made of theirs by a gate (GLM-5.3-Flash). With `shared_keys` the layer scores
    the keys of an earlier layer and keeps none; with `from_latent` its keys are made of the cached entries and not of
    the hidden state; `candidates` is how many keys it scores at most, chosen by an earlier layer [token]
    (DeepSeek-V4.1). With `from_hidden` its queries are made of the hidden state, which it normalises, also where the
    attention has a latent for queries (Mistral-Large-4).
    """

    heads: PositiveInt
    head_dim: PositiveInt
    topk: PositiveInt
    reads_from_previous: bool = False
    pool: PositiveInt = 1
    shared_keys: bool = False
    from_latent: bool = False
    from_hidden: bool = False
    candidates: PositiveInt | None = None


class GroupedQuery(Frozen):
    """Multi-head, multi-query or grouped-query attention, full or sliding.

    `window` is the sliding window [token], `gated` an output gate as wide as the queries (Qwen3.5), `head_gated` one
    with a value for each head (Step), `sinks` one learned value for each head (gpt-oss), `qk_norm_wide` norms over all
    heads together (MiniMax), `shared_kv` layers read the cache of an earlier layer and hold none (Gemma), `indexer` one
    that chooses blocks of keys (MiniMax-M3), `rotary_dim` how many values of a head rotary positions turn (the whole
    head if not given, 0 without positions). `relative` is how many values of a head weigh the distance of a key, of
    `relative_extent` tokens at most [token], and `convolution` the tokens that a short convolution over keys and one
    over values see (Inkling).
    """

    kind: Literal["grouped_query"] = "grouped_query"
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    v_head_dim: PositiveInt | None = None
    window: PositiveInt | None = None
    gated: bool = False
    head_gated: bool = False
    qk_norm: bool = False
    qk_norm_wide: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    sinks: bool = False
    shared_kv: bool = False
    key_is_value: bool = False
    rotary_dim: int | None = Field(None, ge=0)
    indexer: Indexer | None = None
    relative: PositiveInt | None = None
    relative_extent: PositiveInt | None = None
    convolution: int = Field(0, ge=0)


class LatentAttention(Frozen):
    """Multi-head latent attention (MLA), with DeepSeek sparse attention where it has an indexer.

    `rope_dim` 0 is attention without positions (GLM-5.3-Flash). `shared_kv` layers read the latents of an earlier layer
    and hold none; `scaled` ones scale the scores of each head (both Mistral-Large-4); `sinks` is one learned value for
    each head (Hy4).
    """

    kind: Literal["latent"] = "latent"
    heads: PositiveInt
    q_rank: PositiveInt | None = None
    kv_rank: PositiveInt
    nope_dim: PositiveInt
    rope_dim: int = Field(ge=0)
    v_dim: PositiveInt
    indexer: Indexer | None = None
    out_gate: bool = False
    shared_kv: bool = False
    scaled: bool = False
    sinks: bool = False


class CompressedAttention(Frozen):
    """Attention over a short window and over what a compressor made of all earlier tokens (DeepSeek-V4).

    One vector of `head_dim` values is key and value of all heads. Each layer keeps those of the last `window` tokens
    [token]; with a `ratio` above 0 also one for each `ratio` tokens, pooled by a compressor whose windows overlap with
    the one before (`overlapping`) or not. An `indexer`, whose keys are pooled alike, keeps the `topk` best of them;
    without one all are read. The output goes through `out_groups` projections of `out_rank` values each.

    DeepSeek-V4.1 pools without positions inside a window (`positions` false), at ratio 1 without a gate, and reads in
    most layers the entries of an earlier one (`shared_kv`): those have no compressor and cache only their window.
    """

    kind: Literal["compressed"] = "compressed"
    heads: PositiveInt
    head_dim: PositiveInt
    rope_dim: PositiveInt
    q_rank: PositiveInt
    out_groups: PositiveInt
    out_rank: PositiveInt
    window: PositiveInt
    ratio: int = Field(0, ge=0)
    overlapping: bool = False
    positions: bool = True
    shared_kv: bool = False
    indexer: Indexer | None = None

    @model_validator(mode="after")
    def _consistent(self) -> CompressedAttention:
        if self.heads % self.out_groups:
            raise ValueError(f"out_groups {self.out_groups} does not divide heads {self.heads}")
        if self.rope_dim > self.head_dim:
            raise ValueError(f"rope_dim {self.rope_dim} is larger than head_dim {self.head_dim}")
        if not self.ratio and (self.indexer is not None or self.overlapping):
            raise ValueError("ratio 0 compresses nothing, so that there is nothing to index or to overlap")
        return self


class Recurrent(Frozen):
    """Linear attention or a state-space layer: a state of fixed size for each sequence instead of a growing cache.

    `flavour` is ``gated_delta`` (Qwen3-Next, Qwen3.5), ``mamba2`` (Nemotron-H) or ``kimi_delta``; `full_gate`: the gate
    of the output of ``kimi_delta`` is one matrix instead of two of low rank.
    """

    kind: Literal["recurrent"] = "recurrent"
    flavour: Literal["gated_delta", "mamba2", "kimi_delta"]
    key_heads: PositiveInt
    key_dim: PositiveInt
    value_heads: PositiveInt
    value_dim: PositiveInt
    conv_kernel: PositiveInt = 4
    full_gate: bool = False


class DenseFfn(Frozen):
    """A dense feed-forward block; `gated` ones have three matrices, plain ones two."""

    kind: Literal["dense"] = "dense"
    inner: PositiveInt
    gated: bool = True
    bias: bool = False


#: shares of the busiest fifth of experts that were published: of DeepSeek-V3 and R1, and of Qwen3-235B [-]
_BUSIEST_FIFTH = {"bias": 0.35, "batch-loss": 0.65}


class ExpertsFfn(Frozen):
    """A mixture of experts: `topk` of `experts` for each token, and shared ones that every token visits.

    `latent` is the width the routed experts work in where it is not the hidden size (Nemotron-3 Super). With
    `hash_vocabulary` a table of so many tokens says which experts each visits (the first layers of DeepSeek-V4).
    `routed_shared` says that the router weighs the shared experts too (Inkling).
    `busiest_fifth` is the share of the routed tokens that the busiest fifth of the experts receives; 0.2 is even. It
    was published for DeepSeek-V3 and R1 (0.3 to 0.4) and Qwen3-235B (0.65), on CNN Dailymail and OpenOrca
    (https://github.com/ai-dynamo/aiconfigurator docs/POWER_LAW_DISTRIBUTION.md at 39880852). Where nobody published it,
    models take it from those that were balanced alike in training (`balanced_by`): by a bias of the router (arXiv
    2408.15664), or by a loss over whole batches (arXiv 2501.11873); others take the middle.
    """

    kind: Literal["experts"] = "experts"
    experts: PositiveInt
    topk: PositiveInt
    inner: PositiveInt
    shared: int = Field(0, ge=0)
    shared_inner: int = Field(0, ge=0)
    shared_gate: bool = False
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    latent: PositiveInt | None = None
    hash_vocabulary: int = Field(0, ge=0)
    routed_shared: bool = False
    balanced_by: Literal["bias", "batch-loss"] | None = None
    busiest_fifth: float = Field(
        default_factory=lambda given: _BUSIEST_FIFTH.get(given.get("balanced_by"), 0.5), ge=0.2, lt=1.0
    )

    @model_validator(mode="after")
    def _topk_within(self) -> ExpertsFfn:
        if self.topk > self.experts:
            raise ValueError(f"topk {self.topk} is larger than experts {self.experts}")
        return self


Mixer = Annotated[
    GroupedQuery | LatentAttention | CompressedAttention | Recurrent,
    Field(discriminator="kind"),
]
Ffn = Annotated[DenseFfn | ExpertsFfn, Field(discriminator="kind")]


class LayerKind(Frozen):
    """One kind of layer: at most one token mixer and any number of feed-forward blocks side by side.

    `streams` are its hyper-connections, `lookup` a table that it reads, `decode_only` says that a prompt skips the
    layer: its mixer reads what earlier layers cached, so that only the last tokens of a prompt need it (the decoder of
    DeepSeek-V4.1). `gates` counts vectors as wide as the hidden size that are no norms (Muse-Spark), `convolution` the
    tokens that a short convolution after the mixer and one after the feed-forward part see (Inkling).
    """

    mixer: Mixer | None = None
    ffn: tuple[Ffn, ...] = ()
    norms: int = Field(2, ge=0, description="RMS norms as wide as the hidden size")
    streams: HyperConnections | None = None
    lookup: LookupTable | None = None
    decode_only: bool = False
    gates: int = Field(0, ge=0)
    convolution: int = Field(0, ge=0)


class MtpSpec(Frozen):
    """Multi-token-prediction layers that a checkpoint carries: `layers` layers of kind `layer`.

    `own_embedding` says that the files store a second embedding and head for them (DeepSeek-V3, GLM-4.5),
    `own_head` that they store a head for each and no embedding (Step). With `block`
    they are the stages of a block drafter (DSpark): one pass through all of them drafts up to `block` tokens. It starts
    from `joined` states of the model and chooses tokens with a table of `markov_rank` values for each token before.
    `method` is how engines call this way of drafting.
    """

    layers: PositiveInt
    layer: str
    own_embedding: bool = False
    own_head: bool = False
    method: str = "mtp"
    block: PositiveInt | None = None
    joined: PositiveInt | None = None
    markov_rank: int = Field(0, ge=0)


class Published(Frozen):
    """Parameter totals as the publisher prints them, in billions; kept to be compared with the computed ones."""

    total_b: float | None = None
    active_b: float | None = None
    source: str
    note: str | None = None


def expand_stack(stack: str) -> list[str]:
    """Spell out a stack: ``"dense*3 sparse*75"`` or ``"(sliding*5 full)*8"`` becomes one name for each layer.

    `stack`: Names of layer kinds; `*n` repeats a name or a bracket.

    Examples
    --------
    >>> expand_stack("first*2 (sliding full)*2")
    ['first', 'first', 'sliding', 'full', 'sliding', 'full']
    """
    tokens = re.findall(r"[A-Za-z_][\w.-]*|\*\s*\d+|[()]", stack)
    if "".join(tokens).replace(" ", "") != re.sub(r"\s+", "", stack):
        raise ValueError(f"cannot read the stack {stack!r}")
    levels: list[list[list[str]]] = [[]]
    for token in tokens:
        if token == "(":
            levels.append([])
        elif token == ")":
            if len(levels) == 1:
                raise ValueError(f"unbalanced bracket in the stack {stack!r}")
            inner = [name for part in levels.pop() for name in part]
            levels[-1].append(inner)
        elif token.startswith("*"):
            if not levels[-1]:
                raise ValueError(f"nothing to repeat in the stack {stack!r}")
            levels[-1][-1] = levels[-1][-1] * int(token[1:])
        else:
            levels[-1].append([token])
    if len(levels) != 1:
        raise ValueError(f"unbalanced bracket in the stack {stack!r}")
    return [name for part in levels[0] for name in part]


class ModelSpec(Frozen):
    """A model: its stack of layers, vocabulary, checkpoints and where the facts come from.

    `repositories` are those of aliases that are models of their own, with other weights of the same shapes.
    """

    name: str
    aliases: tuple[str, ...] = ()
    repositories: dict[str, str] = {}
    family: str
    hugging_face: str | None = None
    hidden: PositiveInt
    vocabulary: PositiveInt
    tied_embedding: bool = False
    max_context: PositiveInt
    layers: dict[str, LayerKind]
    stack: str
    mtp: MtpSpec | None = None
    draft_head: DraftHead | None = None
    extra_parameters: int = Field(0, ge=0, description="weights outside the language stack (vision tower), [-]")
    extra_replicated: int = Field(0, ge=0, description="those of them that every TP rank holds whole, [-]")
    tower_layers: PositiveInt | None = None
    tower_width: PositiveInt | None = None
    tower_inner: int = Field(0, ge=0, description="inner width of the tower's feed-forward, [-]; 0 where not known")
    tower_patch_values: int = Field(0, ge=0, description="values of a patch as it enters the tower, [-]")
    tower_patches: int = Field(0, ge=0, description="patches of the largest image that its processor makes, [-]")
    tower_merge: PositiveInt = Field(1, description="patches that make one token, [-]")
    tower_output: int = Field(0, ge=0, description="values of a token as it leaves the tower, [-]")
    extra_note: str | None = None
    not_understood: tuple[str, ...] = ()  # fields of its config that nobody knows and that are left out of account
    multimodal_positions: bool = Field(False, description="positions have time, height and width (M-RoPE)")
    checkpoints: tuple[Checkpoint, ...] = ()
    default_checkpoint: str | None = None
    published: Published | None = None
    source: str
    disagreements: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> ModelSpec:
        names = expand_stack(self.stack)
        if unknown := sorted(set(names) - set(self.layers)):
            raise ValueError(f"stack names layer kinds that are not described: {', '.join(unknown)}")
        if not names:
            raise ValueError("stack is empty")
        if strange := sorted(set(self.repositories) - set(self.aliases)):
            raise ValueError(f"repositories names what is no alias: {', '.join(strange)}")
        if self.mtp is not None and self.mtp.layer not in self.layers:
            raise ValueError(f"mtp.layer {self.mtp.layer!r} is not a described layer kind")
        if self.draft_head is not None and self.draft_head.layer not in self.layers:
            kinds = ", ".join(self.layers)
            raise ValueError(f"draft_head.layer {self.draft_head.layer!r} is not a described layer kind: {kinds}")
        if self.draft_head is not None and self.mtp is not None:
            raise ValueError("draft_head stands beside mtp: a model drafts by one of them")
        last = len(names) + (self.mtp.layers if self.mtp else 0)
        for one in self.checkpoints:
            if outside := [layer for part in one.exceptions for layer in part.layers if not 0 <= layer < last]:
                raise ValueError(f"checkpoint {one.name!r} has an exception for layer {outside[0]} of {last}")
        if self.default_checkpoint is not None and self.checkpoint(self.default_checkpoint) is None:
            raise ValueError(f"default_checkpoint {self.default_checkpoint!r} is not a described checkpoint")
        return self

    @cached_property
    def layer_names(self) -> tuple[str, ...]:
        """The kind of each layer, in order, MTP layers not included."""
        return tuple(expand_stack(self.stack))

    @cached_property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """How often each kind of layer occurs, MTP layers not included."""
        return tuple(Counter(self.layer_names).items())

    @property
    def draft_layers(self) -> tuple[LayerKind, int] | None:
        """Kind and number of the layers that draft: of MTP, else of a published draft head; None without both."""
        if self.mtp is not None:
            return self.layers[self.mtp.layer], self.mtp.layers
        return None if self.draft_head is None else (self.layers[self.draft_head.layer], 1)

    def checkpoint(self, name: str) -> Checkpoint | None:
        """The checkpoint of that name, or None."""
        return next((one for one in self.checkpoints if one.name == name), None)
