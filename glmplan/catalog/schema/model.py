"""Records of a model: a stack of layers, and its checkpoints.

Layers are token mixers and feed-forward blocks. All is read from a `config.json` or a cited text. Totals are computed,
never entered; published totals serve as a check.
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
    "MOST_LAYERS",
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


#: most layers of a model that are read: published models have up to 126 (Llama 3.1 405B)
MOST_LAYERS = 10_000


class HyperConnections(Frozen):
    """Several residual streams, which each block mixes."""

    streams: PositiveInt
    #: ``manifold``: 2 n + n² weights of each stream, normalised to a doubly stochastic matrix (DeepSeek-V4); ``plain``:
    #: 2 n weights (Hy4); ``low_rank``: through `rank` values (preview of Qwen4)
    form: Literal["manifold", "plain", "low_rank"] = "manifold"
    rank: PositiveInt | None = None
    folded: bool = False  # True: separate weights make one state of the streams after the last layer

    @model_validator(mode="after")
    def _rank_where_needed(self) -> HyperConnections:
        if (self.form == "low_rank") != (self.rank is not None):
            raise ValueError("rank is stated for form low_rank and only there")
        return self


class LookupTable(Frozen):
    """Table that a layer looks up by a hash of the last few tokens.

    Engram of DeepSeek-V4.1, n-gram table of the preview of Qwen4. The values read are projected to a value and one key
    for each residual stream.
    """

    rows: PositiveInt
    width: PositiveInt
    reads: PositiveInt  # rows that a token reads, a few for each length of n-gram
    streams: PositiveInt
    norms: int = Field(2, ge=0)  # norms as wide as all streams
    convolution: int = Field(0, ge=0)  # tokens of the result that are mixed


class DraftHead(Frozen):
    """Drafter with files of its own, in BF16.

    - EAGLE-3 head: its layer reads embedding and state side by side, so the products for queries and keys are twice as
      wide; once a step a projection joins states of the model. It uses the model's embedding and has an output head;
      with `own_embedding` its files hold an embedding with other values, which some engines keep.
    - EAGLE head (EAGLE-1 and EAGLE-2): an ordinary layer reads a projection that joins embedding and last state for
      each drafted token; embedding and output head are those of the model.
    - DFlash: layers that draft a block in one pass from joined states, with the model's embedding and output head.
    - Draft model: a smaller model with the same vocabulary.
    """

    repository: str
    layer: str
    source: str
    own_embedding: bool = False
    note: str | None = None
    method: Literal["eagle3", "eagle", "dflash", "draft_model"] = "eagle3"
    layers: PositiveInt = 1
    beside: dict[str, PositiveInt] = {}  # layer kinds of a draft model beside `layer` → their number among `layers`
    joined: PositiveInt = 3  # states of the model that are joined
    block: PositiveInt | None = None  # tokens that one pass drafts; None: one
    hidden: PositiveInt | None = None  # None: the width of the model
    vocabulary: PositiveInt | None = None  # rows of its own output head; None: as many as the model has
    tied: bool = False  # one table embeds and reads out (draft models)


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
TensorKey = (
    TensorClass | Annotated[str, Field(pattern=r"^(self_attn|mlp|linear_attn|mixer|mamba|conv|lookup|draft)\.[\w.]+$")]
)


class FormatException(Frozen):
    """Layers with other formats of some tensor classes.

    MTP layers follow the last main layer.
    """

    layers: tuple[int, ...]
    formats: dict[TensorKey, str]


#: start of a checkpoint's name → form of its files
_FORMS = {
    "mlx": "mlx", "exl3": "exl3", "bnb": "bitsandbytes", "torchao": "torchao", "hqq": "transformers",
    "aqlm": "transformers", "eetq": "transformers",
}  # fmt: skip


class Checkpoint(Frozen):
    """Published weights: formats of the tensor classes and size of the files."""

    name: str
    repository: str | None = None
    formats: dict[TensorKey, str] = {}
    default: str = "bf16"
    exceptions: tuple[FormatException, ...] = ()
    kv_default: str | None = None
    includes_mtp: bool = True
    includes_tower: bool = True  # False: the image tower is a separate file, not counted in the size
    #: replaces the class formats for files with known mean bits only, such as GGUF
    file_bits_per_weight: float | None = Field(None, gt=0.5, le=32)
    bytes_published: str | None = None  # as stated by the publisher
    #: this and the next: 90 % interval of the true size as a share of the computed one; 0: published
    smaller: float = Field(0.0, ge=0, lt=1)
    larger: float = Field(0.0, ge=0, lt=1)
    fp8_scales: Literal["matrix", "row"] | None = None  # owner of a scale in FP8 without blocks; None: not stated
    #: inner widths to which the files pad feed-forward tensors, so that shares hold whole groups
    padded: dict[TensorClass, int] = {}
    source: str
    note: str | None = None

    @property
    def form(self) -> str:
        """Return the file form as engines name it, some by the name.

        `transformers`: methods that no engine here reads.
        """
        plain = "safetensors" if self.file_bits_per_weight is None else "gguf"
        return next((form for start, form in _FORMS.items() if self.name.startswith(start)), plain)

    @property
    def bulk(self) -> str:
        """Return the format of routed experts, or of all weights without them.

        Limitations and host kernels use this name. FP8 without blocks by its scales: ``fp8-row``, ``fp8-matrix``, or
        ``fp8`` if not stated.
        """
        result = self.formats.get("routed_experts") or self.default
        return f"{result}-{self.fp8_scales}" if result == "fp8" and self.fp8_scales else result

    @model_validator(mode="after")
    def _known_formats(self) -> Checkpoint:
        stated = [self.default, *self.formats.values()]
        for name in {*stated, *(form for exception in self.exceptions for form in exception.formats.values())}:
            weight_format(name)
        kv_format(self.kv_default or "bf16")
        parse_quantity(self.bytes_published or "1 B", "bytes")
        return self


class Indexer(Frozen):
    """Indexer of sparse attention: keeps the `topk` best keys of a query."""

    heads: PositiveInt
    head_dim: PositiveInt
    topk: PositiveInt
    reads_from_previous: bool = False  # reuses the indices of the layer before, without weights and key cache (GLM-5.2)
    pool: PositiveInt = 1  # tokens that share one key, made of theirs by a gate (GLM-5.3-Flash)
    shared_keys: bool = False  # scores the keys of an earlier layer and keeps none (DeepSeek-V4.1)
    from_latent: bool = False  # keys are made of the cached entries, not of the hidden state (DeepSeek-V4.1)
    #: queries are made of the normalised hidden state, also where the attention has a query latent (Mistral-Large-4)
    from_hidden: bool = False
    candidates: PositiveInt | None = None  # most keys that it scores, selected by an earlier layer (DeepSeek-V4.1)


class GroupedQuery(Frozen):
    """Multi-head, multi-query or grouped-query attention, full or sliding."""

    kind: Literal["grouped_query"] = "grouped_query"
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    v_head_dim: PositiveInt | None = None
    window: PositiveInt | None = None  # sliding window [token]
    gated: bool = False  # output gate as wide as the queries (Qwen3.5)
    head_gated: bool = False  # output gate with one value for each head (Step)
    qk_norm: bool = False
    qk_norm_wide: bool = False  # norms over all heads together (MiniMax)
    qkv_bias: bool = False
    out_bias: bool = False
    sinks: bool = False  # one learned value for each head (gpt-oss)
    shared_kv: bool = False  # reads the cache of an earlier layer and holds none (Gemma)
    key_is_value: bool = False
    #: values of a head that rotary positions rotate; None: the full head, 0: no positions
    rotary_dim: int | None = Field(None, ge=0)
    indexer: Indexer | None = None  # selects blocks of keys (MiniMax-M3)
    relative: PositiveInt | None = None  # values of a head that weigh the distance of a key (Inkling)
    relative_extent: PositiveInt | None = None  # most tokens of that distance
    convolution: int = Field(0, ge=0)  # tokens seen by one short convolution over keys and one over values (Inkling)


class LatentAttention(Frozen):
    """Multi-head latent attention (MLA), sparse where it has an indexer."""

    kind: Literal["latent"] = "latent"
    heads: PositiveInt
    q_rank: PositiveInt | None = None
    kv_rank: PositiveInt
    nope_dim: PositiveInt
    rope_dim: int = Field(ge=0)  # 0: without positions (GLM-5.3-Flash)
    v_dim: PositiveInt
    indexer: Indexer | None = None
    out_gate: bool = False
    head_gated: bool = False  # output gate with one value for each head (Ling 3)
    shared_kv: bool = False  # reads the latents of an earlier layer and holds none (Mistral-Large-4)
    scaled: bool = False  # scales the scores of each head (Mistral-Large-4)
    sinks: bool = False  # one learned value for each head (Hy4)


class CompressedAttention(Frozen):
    """Attention over a short window and over compressed earlier tokens.

    DeepSeek-V4. One vector of `head_dim` values is key and value of all heads. Each layer keeps those of the last
    `window` tokens; with a `ratio` above 0 also one for each `ratio` tokens, pooled by a compressor whose windows
    overlap with the one before (`overlapping`) or not. An `indexer`, whose keys are pooled the same way, keeps the
    `topk` best of them; without one all are read. The output goes through `out_groups` projections of `out_rank`
    values each.

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
    """Linear attention or state-space layer with a state of fixed size.

    `gated_delta` in Qwen3-Next and Qwen3.5, `mamba2` in Nemotron-H; `full_gate`: the output gate of ``kimi_delta`` is
    one matrix instead of two of low rank, with `full_decay` the gate of the decay too (Ling 3). `mamba1` (Jamba): a
    value head is one channel, `key_dim` its state, `rank` the width of the time steps. `lightning` (MiniMax-Text-01):
    linear attention without convolution, `conv_kernel` 1. `short_conv` (LFM2): no state beside the window of the
    convolution.
    """

    kind: Literal["recurrent"] = "recurrent"
    flavour: Literal["gated_delta", "mamba2", "kimi_delta", "mamba1", "lightning", "short_conv"]
    key_heads: PositiveInt
    key_dim: PositiveInt
    value_heads: PositiveInt
    value_dim: PositiveInt
    conv_kernel: PositiveInt = 4
    full_gate: bool = False
    full_decay: bool = False
    rank: PositiveInt | None = None
    gate_norm: bool = True  # norm of the gated output of ``mamba2`` (absent in Falcon-H1)


class DenseFfn(Frozen):
    """Dense feed-forward block: three matrices if `gated`, else two."""

    kind: Literal["dense"] = "dense"
    inner: PositiveInt
    gated: bool = True
    bias: bool = False


#: published shares of the busiest fifth of experts: of DeepSeek-V3 and R1, and of Qwen3-235B [-]
_BUSIEST_FIFTH = {"bias": 0.35, "batch-loss": 0.65}


class ExpertsFfn(Frozen):
    """Mixture of experts: `topk` of `experts`, and shared experts.

    `busiest_fifth` is the share of the routed tokens that the busiest fifth of the experts receives; 0.2 is even. It
    was published for DeepSeek-V3 and R1 (0.3 to 0.4) and Qwen3-235B (0.65), on CNN Dailymail and OpenOrca
    (https://github.com/ai-dynamo/aiconfigurator docs/POWER_LAW_DISTRIBUTION.md at 39880852). Other models take the
    value of models balanced the same way in training (`balanced_by`): by a bias of the router (arXiv 2408.15664), or
    by a loss over whole batches (arXiv 2501.11873); the rest takes the middle.
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
    latent: PositiveInt | None = None  # width of the routed experts where it is not the hidden size (Nemotron-3 Super)
    hash_vocabulary: int = Field(0, ge=0)  # a table of so many tokens assigns the experts (first layers of DeepSeek-V4)
    routed_shared: bool = False  # the router weighs the shared experts too (Inkling)
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
    """Kind of layer: at most one token mixer, parallel feed-forward blocks."""

    mixer: Mixer | None = None
    ffn: tuple[Ffn, ...] = ()
    norms: int = Field(2, ge=0, description="RMS norms as wide as the hidden size")
    streams: HyperConnections | None = None
    lookup: LookupTable | None = None
    #: a prompt may skip the layer: its mixer reads cache of earlier layers, so only the last prompt tokens need it
    #: (decoder of DeepSeek-V4.1); which engines do so: `PromptTails`
    decode_only: bool = False
    gates: int = Field(0, ge=0)  # vectors as wide as the hidden size that are no norms (Muse-Spark)
    #: tokens seen by a short convolution after the mixer and one after the feed-forward block (Inkling)
    convolution: int = Field(0, ge=0)


class MtpSpec(Frozen):
    """Multi-token-prediction layers of a checkpoint."""

    layers: int = Field(ge=1, le=MOST_LAYERS)
    layer: str
    own_embedding: bool = False  # the files store a second embedding and head (DeepSeek-V3, GLM-4.5)
    own_head: bool = False  # the files store a head for each layer and no embedding (Step)
    method: str = "mtp"  # engines' name of this way of drafting
    #: block drafter (DSpark): one pass through all layers drafts up to this many tokens
    block: PositiveInt | None = None
    joined: PositiveInt | None = None  # states of the model from which the block drafter starts
    markov_rank: int = Field(0, ge=0)  # values of each token in its table for the choice of the next token


class Published(Frozen):
    """Parameter totals as printed by the publisher, in billions."""

    total_b: float | None = None
    active_b: float | None = None
    source: str
    note: str | None = None


def expand_stack(stack: str) -> list[str]:
    """Return the layer names of a stack like ``"dense*3 sparse*75"``.

    Nested, too: ``"(sliding*5 full)*8"``.

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
            times = int(token[1:])
            if len(levels[-1][-1]) * times > MOST_LAYERS:
                raise ValueError(f"the stack {stack!r} has more than {MOST_LAYERS:,} layers")
            levels[-1][-1] = levels[-1][-1] * times
        else:
            levels[-1].append([token])
    if len(levels) != 1:
        raise ValueError(f"unbalanced bracket in the stack {stack!r}")
    return [name for part in levels[0] for name in part]


class ModelSpec(Frozen):
    """Model: its stack of layers, vocabulary, checkpoints and sources.

    `repositories` are those of aliases that are separate models, with other weights of the same shapes.
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
    not_understood: tuple[str, ...] = ()  # unknown fields of its config, left out of account
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
        for checkpoint in self.checkpoints:
            if outside := [layer for part in checkpoint.exceptions for layer in part.layers if not 0 <= layer < last]:
                raise ValueError(f"checkpoint {checkpoint.name!r} has an exception for layer {outside[0]} of {last}")
        if self.default_checkpoint is not None and self.checkpoint(self.default_checkpoint) is None:
            raise ValueError(f"default_checkpoint {self.default_checkpoint!r} is not a described checkpoint")
        return self

    @cached_property
    def layer_names(self) -> tuple[str, ...]:
        """Return the kind of each layer, in order, without MTP layers."""
        return tuple(expand_stack(self.stack))

    @cached_property
    def runs(self) -> tuple[tuple[str, int], ...]:
        """Return the number of layers of each kind, without MTP layers."""
        return tuple(Counter(self.layer_names).items())

    @property
    def takes_images(self) -> bool:
        """Return True if weights, positions or the note show a vision tower.

        The note names a tower whose weights no source counts.
        """
        tower = self.extra_parameters or self.tower_width or self.multimodal_positions
        return bool(tower) or "vision tower" in (self.extra_note or "")

    @property
    def draft_runs(self) -> tuple[tuple[LayerKind, int], ...]:
        """Return kinds and numbers of the draft layers; empty without.

        MTP comes before a published draft head.
        """
        if self.mtp is not None:
            return ((self.layers[self.mtp.layer], self.mtp.layers),)
        if (head := self.draft_head) is None:
            return ()
        runs = {head.layer: head.layers - sum(head.beside.values()), **head.beside}
        return tuple((self.layers[name], count) for name, count in runs.items())

    @property
    def draft_block(self) -> int | None:
        """Return the tokens that one draft pass proposes; None for one [-]"""
        head = self.draft_head if self.mtp is None else self.mtp
        return None if head is None else head.block

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return the checkpoint of that name, or None."""
        return next((item for item in self.checkpoints if item.name == name), None)
