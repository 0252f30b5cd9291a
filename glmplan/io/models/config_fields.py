"""Read fields of a foreign model config.

Errors name file, field and nearest field.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from glmplan.catalog.schema.model import (
    MOST_LAYERS,
    DenseFfn,
    ExpertsFfn,
    GroupedQuery,
    LayerKind,
    MtpSpec,
    Recurrent,
)
from glmplan.errors import SpecError, UnknownArchitecture, nearest
from glmplan.units import TokenCount

__all__ = [
    "FULL_OR_SLIDING",
    "HARMLESS",
    "STRUCTURAL",
    "ConfigFields",
    "LayerStack",
    "experts_block",
    "gated_delta",
    "grouped_query",
    "is_harmless",
    "layer_windows",
    "may_be_a_shape",
    "mtp_spec",
    "numbered_layers",
    "per_layer_embedding",
    "sparse_layers",
    "spell_stack",
]


@dataclass(slots=True)
class LayerStack:
    """Layers of a model as read from a config."""

    family: str
    layers: list[tuple[str, LayerKind]]  # name and kind of each, in order
    extra: dict[str, LayerKind] = field(default_factory=dict)  # kinds that only the MTP layers use
    mtp: MtpSpec | None = None
    notes: list[str] = field(default_factory=list)  # remarks of the reader
    extra_parameters: int = 0  # weights beside the layers and the usual embedding and head


def spell_stack(names: list[str]) -> str:
    """Return the short spelling of layer names, inverse of `expand_stack`.

    Examples
    --------
    >>> spell_stack(["dense"] * 3 + ["sparse"] * 75)
    'dense*3 sparse*75'
    >>> spell_stack((["linear"] * 3 + ["full"]) * 15)
    '(linear*3 full)*15'
    """
    parts = []
    start = 0
    while start < len(names):
        period, repeats = _best_repeat(names, start)
        unit = names[start : start + period]
        if period == 1:
            parts.append(unit[0] + (f"*{repeats}" if repeats > 1 else ""))
        elif repeats > 1:
            parts.append(f"({spell_stack(unit)})*{repeats}")
        start += period * repeats
    return " ".join(parts)


def numbered_layers(layers: list[LayerKind], names: Sequence[str]) -> list[tuple[str, LayerKind]]:
    """Return each layer with a name.

    Different layers of one name get a number.
    """
    known: dict[str, list[LayerKind]] = {}
    result = []
    for name, kind in zip(names, layers, strict=True):
        kinds = known.setdefault(name, [])
        if kind not in kinds:
            kinds.append(kind)
        number = kinds.index(kind)
        result.append((name + (f"_{number + 1}" if number else ""), kind))
    return result


def _best_repeat(names: list[str], start: int) -> tuple[int, int]:
    best = (1, 1)
    for period in range(1, min(16, (len(names) - start) // 2) + 1):
        unit = names[start : start + period]
        repeats = 1
        while names[start + period * repeats : start + period * (repeats + 1)] == unit:
            repeats += 1
        if repeats > 1 and period * repeats > best[0] * best[1]:
            best = (period, repeats)
    return best


# Fields of a config without a reader: without effect, to be reported, or possibly a shape. The names are those of 111
# published configs and of `PretrainedConfig` of transformers, whose fields every older config repeats.

#: fields that change the shape of a layer; a config with one that its architecture does not read is refused
STRUCTURAL = (
    "attn_res_block_size",
    "block_configs",
    "compress_ratios",
    "conv_L_cache",
    "engram_layer_ids",
    "hc_count",
    "hc_mult",
    "hybrid_layer_pattern",
    "hybrid_override_pattern",
    "index_kpool",
    "index_topk",
    "indexer_budget",
    "kv_lora_rank",
    "kv_source_layer_ids",
    "kv_source_layers",
    "layer_types",
    "layers_block_type",
    "linear_attn_config",
    "linear_num_value_heads",
    "moe_hidden_size",
    "moe_intermediate_size",
    "moe_latent_size",
    "moe_num_experts",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts",
    "num_hash_layers",
    "num_kv_shared_layers",
    "num_local_experts",
    "num_shared_experts",
    "o_lora_rank",
    "ple_layer_ids",
    "q_lora_rank",
    "routed_expert_hidden_size",
    "shared_expert_intermediate_size",
    "shared_intermediate_size",
    "sparse_attention_config",
    "ssm_state_size",
    "swa_num_key_value_heads",
    "use_double_wide_mlp",
    "v_head_dim",
)

#: reason for which a field changes neither weights, nor cache, nor work → its names; `*` stands for anything
HARMLESS: Mapping[str, tuple[str, ...]] = {
    "words of the tokenizer": (
        "*_token_id", "*_token_ids", "*_token_index", "bos_token", "eos_token", "pad_token", "unk_token", "sep_token",
        "cls_token", "*_words_ids", "*suppress_tokens", "*_placeholder", "tokenizer_class", "ignore_index",
        "max_image_tokens",
    ),
    "training only": (
        "*dropout*", "*_loss_coef", "*_loss_alpha", "*_loss_weight", "*_layerdrop", "initializer_*", "init_method*",
        "aux_loss_*", "seq_aux", "pretraining_tp", "router_jitter_noise", "rescale_prenorm_residual",
        "neftune_noise_alpha", "ep_size", "residual_in_fp32", "gradient_checkpointing", "seed", "embd_pdrop",
        "resid_pdrop", "attn_pdrop", "moe_capacity*", "moe_loss_weight",
    ),
    "a number inside an elementwise step": (
        "*_eps", "*_epsilon", "hidden_act*", "*_hidden_act", "activation_*", "*_softcapping", "*_lower_bound",
        "swiglu_*", "*_scale_factor", "*_scaling_factor", "attention_value_scale", "output_multiplier",
        "hc_sinkhorn_iters", "hc_magnitude", "route_scale", "*_width_multiplier", "time_step_*",
        "query_pre_attn_scalar", "attn_scale", "floor_scale",
        "attn_temperature_tuning", "moe_router_activation_func", "output_gate_type", "use_gemma_norm", "use_conv_bias",
        "latent_moe_use_norm", "use_qk_norm", "qk_norm_type", "mhc",
    ),
    "routing of tokens to experts; other fields give the number": (
        "n_group", "topk_group", "num_expert_group", "use_grouped_topk", "norm_topk_prob", "scoring_func",
        "score_func", "score_function", "topk_method", "moe_renormalize", "moe_router_dtype", "use_routing_bias",
    ),
    "parameters of rotary positions": (
        "rope_theta", "rope_local_base_freq", "rope_ratio", "rope_scaling", "rope_parameters", "rope_type",
        "rope_mode", "rope_interleave", "*_rope_theta", "rotary_*", "*partial_rotary_factor",
        "original_max_position_embeddings", "initial_context_length", "max_window_layers", "mrope_*", "use_mrope",
        "mla_use_nope", "*rope_interleave", "no_rope_*", "max_seq_len", "max_sequence_length", "model_max_length",
        "max_model_len",
    ),
    "scoring of an indexer; other fields give its reads and selections": (
        "index_kpool_always_select_tail", "index_kpool_compress", "index_share_for_mtp_iteration",
        "index_skip_topk_offset", "sparse_init_block", "sparse_local_block", "sparse_score_type",
        "sparse_disable_index_value", "use_sparse_attention", "engram_vocab_size", "engram_compressed_vocab_size",
        "engram_max_ngram_size",
    ),
    "repeats a field that is read": (
        "head_dim", "qk_head_dim", "num_key_value_heads", "intermediate_size", "expand", "first_k_dense_replace",
        "full_attention_interval", "full_attn_layers", "kda_layers", "mlp_only_layers", "sliding_window",
        "sliding_window_size", "attention_chunk_size", "experts_per_token", "expert_dtype", "linear_conv_kernel_dim",
        "linear_head_dim", "linear_num_heads", "time_step_rank", "vocab_size_per_layer_input", "use_mtp",
        "mtp_transformer_layers", "quantization_config", "quantization", "compression_config", "topk_experts",
    ),
    "how a library runs it": (
        "_*", "unsloth_*", "architectures", "model_type", "auto_map", "transformers_version", "*dtype", "use_cache",
        "base_model_*_plan", "output_attentions", "output_hidden_states", "output_activations", "output_router_logits",
        "output_scores", "return_dict*", "chunk_size", "use_mamba_kernels", "num_logits_to_keep",
        "attn_implementation", "use_flash_attn*", "torchscript", "moe_shared_expert_overlap", "cache_implementation",
        "for_llm_compressor", "use_bidirectional_attention", "name_or_path",
    ),
    "the way of an answer (older configs repeat the settings of generation)": (
        "do_sample", "top_k", "top_p", "typical_p", "temperature", "*_penalty", "num_beams", "num_beam_groups",
        "num_return_sequences", "*max_length", "min_length", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
        "early_stopping", "use_bfloat16",
    ),
    "names of classes": ("id2label", "label2id", "problem_type", "finetuning_task", "task_specific_params", "prefix"),
    "a tower before the language model, which is counted from its own part": (
        "vision_*", "image_*", "img_*", "video_*", "projector_*", "mm_*", "multimodal_projector_*", "out_hidden_size",
        "process_image_mode", "use_unified_vision_chunk", "spatial_merge_size", "boi_*", "eoi_*",
        "alignment_intermediate_size", "downsample_factor", "boa_*", "eoa_*", "audio_soft_tokens_per_image",
        "projection_dim", "embd_layer", "*_processor", "audio_token_*", "enable_audio_output", "code2wav_config",
        "talker_config", "im_*_token_id", "assistant_token_id", "user_token_id", "system_token_id", "tts_*",
        "candidate_resolutions", "global_view_pos", "tile_tag", "tokens_per_second",
    ),
}  # fmt: skip

_NAMES = frozenset(name for names in HARMLESS.values() for name in names if "*" not in name)
_PATTERNS = tuple(name for names in HARMLESS.values() for name in names if "*" in name)


def is_harmless(name: str) -> bool:
    """Return True if a field changes neither weights, nor cache, nor work.

    Examples
    --------
    >>> is_harmless("rms_norm_eps"), is_harmless("num_memory_slots"), is_harmless("hc_mult")
    (True, False, False)
    """
    known = name in _NAMES or any(fnmatchcase(name, pattern) for pattern in _PATTERNS)
    return known and name not in STRUCTURAL


def may_be_a_shape(value: object) -> bool:
    """Return True if a value may be a count or width.

    It is an integer of 2 or more, or contains one.

    Examples
    --------
    >>> may_be_a_shape(4096), may_be_a_shape({"layers": [0, 3]}), may_be_a_shape(True), may_be_a_shape(0.02)
    (True, True, False, False)
    """
    left: list[Any] = [value]
    while left:
        one = left.pop()
        if isinstance(one, Mapping):
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, int | float) and not isinstance(one, bool) and one >= 2 and one == one // 1:
            return True
    return False


#: values that count as absent
_UNSET: tuple[object, ...] = (None, 0, False, [], {}, "")


class ConfigFields:
    """Fields of one JSON object, read with checks; it records which were read.

    `prefix` is the place in the file.

    Examples
    --------
    >>> ConfigFields({"hidden_size": 6144}, "config.json").whole("hidden_size")
    6144
    >>> ConfigFields({"hiden_size": 6144}, "config.json").whole("hidden_size")
    Traceback (most recent call last):
    glmplan.errors.SpecError: config.json: hidden_size: is missing; nearest field there: hiden_size
    """

    def __init__(self, content: Mapping[str, Any], file: str | Path | None = None, prefix: str = "") -> None:
        self.content, self.file, self.prefix = content, file, prefix
        self.read: set[str] = set()
        self.parts: list[ConfigFields] = []
        self.ignored: tuple[str, ...] = ()  # further names without effect, for this architecture alone

    def has(self, name: str) -> bool:
        """Return True if the field is present and not null."""
        self.read.add(name)
        return self.content.get(name) is not None

    def raw(self, name: str, default: Any = None) -> Any:
        """Return the unchecked value."""
        self.read.add(name)
        value = self.content.get(name)
        return default if value is None else value

    def whole(self, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """Return an integer from the first of the names that is present."""
        for name in names:
            self.read.add(name)
            value = self.content.get(name)
            if value is None:
                continue
            if isinstance(value, float) and math.isfinite(value) and value == int(value):
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int):
                raise SpecError("is not a whole number", file=self.file, field=self.prefix + name, value=value)
            most = MOST_LAYERS if name.endswith("_layers") else 10**9
            if not minimum <= value <= most:
                raise SpecError(
                    f"is not between {minimum} and {most:,}", file=self.file, field=self.prefix + name, value=value
                )
            return value
        if default is not None:
            return default
        if names[0] in self.content:
            raise SpecError("is null", file=self.file, field=self.prefix + names[0])
        close = nearest(names[0], [str(key) for key in self.content], 3)
        hint = f"; nearest field there: {', '.join(close)}" if close else ""
        raise SpecError(f"is missing{hint}", file=self.file, field=self.prefix + names[0])

    def optional(self, *names: str) -> int | None:
        """Return a positive integer, or None when the field is absent, null or 0."""
        return self.whole(*names, default=0, minimum=0) or None

    def flag(self, name: str, default: bool = False) -> bool:
        """Return a truth value."""
        value = self.raw(name, default)
        if not isinstance(value, bool):
            raise SpecError("is not true or false", file=self.file, field=self.prefix + name, value=value)
        return value

    def words(self, name: str) -> list[str]:
        """Return a text, or a list of texts, as a list; empty when absent."""
        value = self.raw(name, [])
        result = [value] if isinstance(value, str) else value
        if not isinstance(result, list) or not all(isinstance(word, str) for word in result):
            raise SpecError("is not a text", file=self.file, field=self.prefix + name)
        return list(result)

    def wholes(self, name: str) -> list[int]:
        """Return a list of integers, such as layers; empty when absent."""
        value = self.raw(name, [])
        plain = isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
        if not plain or any(not 0 <= item < 2**40 for item in value):
            raise SpecError("is not a list of whole numbers", file=self.file, field=self.prefix + name)
        return list(value)

    def listing(self, name: str, count: int, choices: Sequence[Any] | None = None) -> list[Any]:
        """Return a list with one entry for each of `count` layers."""
        value = self.raw(name)
        if not isinstance(value, list) or len(value) < count:
            result = f"has {len(value)} entries" if isinstance(value, list) else "is not a list"
            raise SpecError(
                f"{result}; one for each of the {count} layers is needed", file=self.file, field=self.prefix + name
            )
        if choices is not None:
            for entry in value[:count]:
                if entry not in choices:
                    raise SpecError(
                        "is not a known kind of layer",
                        file=self.file,
                        field=self.prefix + name,
                        value=entry,
                        choices=[str(choice) for choice in choices],
                    )
        return value[:count]

    def part(self, name: str) -> ConfigFields:
        """Return the fields of an inner object."""
        value = self.raw(name)
        if not isinstance(value, Mapping):
            raise SpecError("is missing or not an object", file=self.file, field=self.prefix + name)
        self.parts.append(ConfigFields(value, self.file, f"{self.prefix}{name}."))
        return self.parts[-1]

    def blamed(self, message: str) -> SpecError:
        """Return the error of contradictory values.

        It points at the last field that the message names.
        """
        numbers = set(re.findall(r"\d+", message))
        named = [name for name in self.content if name in self.read and str(self.content[name]) in numbers]
        field = self.prefix + named[-1] if named else None
        return SpecError(message, file=self.file, field=field)

    def not_understood(self, architecture: str) -> list[str]:
        """Return unknown fields that are set; refuse one that may be a shape."""
        result = []
        for name, value in self.content.items():
            if name in self.read or value in _UNSET or is_harmless(name):
                continue
            if any(fnmatchcase(name, pattern) for pattern in self.ignored):
                continue
            if name in STRUCTURAL or may_be_a_shape(value):
                raise UnknownArchitecture(
                    f"is set, and glmplan does not know what it means for the architecture {architecture!r}; "
                    "if it changes neither weights nor cache, take it out of the file",
                    file=self.file,
                    field=self.prefix + name,
                    value=value if isinstance(value, int | float | str) else None,
                )
            result.append(self.prefix + name)
        for part in self.parts:
            result += [] if is_harmless(part.prefix.split(".")[-2]) else part.not_understood(architecture)
        return result


#: kinds of attention in `layer_types`
FULL_OR_SLIDING = ("full_attention", "sliding_attention")


def gated_delta(fields: ConfigFields) -> Recurrent:
    """Return the gated delta rule of a layer from the fields of Qwen."""
    return Recurrent(
        flavour="gated_delta",
        key_heads=fields.whole("linear_num_key_heads"),
        key_dim=fields.whole("linear_key_head_dim"),
        value_heads=fields.whole("linear_num_value_heads"),
        value_dim=fields.whole("linear_value_head_dim"),
        conv_kernel=fields.whole("linear_conv_kernel_dim"),
    )


def grouped_query(
    fields: ConfigFields, *, window: TokenCount | None = None, qk_norm: bool = False, qkv_bias: bool | None = None
) -> GroupedQuery:
    """Return the attention of a layer from the usual fields.

    `qk_norm`: per-head norms of queries and keys. `qkv_bias` defaults to `attention_bias`. The number of KV heads must
    be stated, it is never guessed.

    Examples
    --------
    >>> config = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    >>> grouped_query(ConfigFields(config)).head_dim
    128
    """
    heads = fields.whole("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads", "num_attention_groups")
    hidden = fields.whole("hidden_size")
    if heads % kv_heads:
        raise SpecError(
            f"does not divide num_attention_heads {heads}",
            file=fields.file,
            field="num_key_value_heads",
            value=kv_heads,
        )
    head_dim = fields.optional("head_dim", "attention_head_dim")
    if head_dim is None:
        if hidden % heads:
            raise SpecError(
                f"does not divide hidden_size {hidden}, and there is no head_dim",
                file=fields.file,
                field="num_attention_heads",
                value=heads,
            )
        head_dim = hidden // heads
    return GroupedQuery(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        rotary_dim=_rotary_dim(fields, head_dim),
        window=window,
        qk_norm=qk_norm,
        qkv_bias=fields.flag("attention_bias") if qkv_bias is None else qkv_bias,
    )


def _rotary_dim(fields: ConfigFields, head_dim: int) -> int | None:
    """Return the values of a head that rotary positions rotate.

    None: the full head.
    """
    stated = fields.optional("rotary_dim")
    scaling = fields.part("rope_parameters").content if fields.raw("rope_parameters") else {}
    share = fields.raw("partial_rotary_factor") or scaling.get("partial_rotary_factor")
    if share and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1):
        raise SpecError("is not a share of 0 to 1", file=fields.file,
                        field=fields.prefix + "partial_rotary_factor", value=share)  # fmt: skip
    result = stated or (int(head_dim * float(share)) if share else None)
    return None if result == head_dim else result


def sparse_layers(fields: ConfigFields, count: int) -> list[bool]:
    """Return the layers with experts.

    `moe_layer_freq`, `first_k_dense_replace`, `mlp_only_layers` and similar fields decide.

    Examples
    --------
    >>> sparse_layers(ConfigFields({"first_k_dense_replace": 2}), 4)
    [False, False, True, True]
    """
    frequency = fields.raw("moe_layer_freq", 1)
    if isinstance(frequency, list):
        return [bool(value) for value in fields.listing("moe_layer_freq", count)]
    if fields.has("mlp_layer_types"):
        return [kind == "sparse" for kind in fields.listing("mlp_layer_types", count, ("dense", "sparse"))]
    every = fields.whole("moe_layer_freq", default=1)
    first = fields.whole("first_k_dense_replace", default=0, minimum=0)
    step = fields.whole("decoder_sparse_step", default=1)
    only_dense = fields.raw("mlp_only_layers", [])
    if not isinstance(only_dense, list):
        raise SpecError("is not a list of layers", file=fields.file, field=fields.prefix + "mlp_only_layers")
    return [
        layer >= first and layer % every == 0 and (layer + 1) % step == 0 and layer not in only_dense
        for layer in range(count)
    ]


def layer_windows(fields: ConfigFields, count: int) -> list[int | None]:
    """Return the sliding window of each layer from `layer_types` [token].

    None: full attention.

    Examples
    --------
    >>> layer_windows(ConfigFields({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128}), 2)
    [128, None]
    """
    if not fields.has("layer_types"):
        return [None] * count
    kinds = fields.listing("layer_types", count, FULL_OR_SLIDING)
    return [fields.whole("sliding_window") if kind == "sliding_attention" else None for kind in kinds]


def mtp_spec(fields: ConfigFields, layer: str, *, own_embedding: bool) -> MtpSpec | None:
    """Return the MTP layers of a checkpoint (`num_nextn_predict_layers`).

    `layer`: their kind. `own_embedding`: the files store a second embedding and head for them.

    Examples
    --------
    >>> mtp_spec(ConfigFields({"num_nextn_predict_layers": 1}), "sparse", own_embedding=True).layers
    1
    """
    count = fields.optional("num_nextn_predict_layers")
    return MtpSpec(layers=count, layer=layer, own_embedding=own_embedding) if count else None


def experts_block(
    fields: ConfigFields,
    *,
    experts: tuple[str, ...],
    inner: str,
    shared: int = 0,
    shared_inner: int = 0,
    shared_gate: bool = False,
    router_bias: bool = False,
    bias: bool = False,
    batch_loss: bool = False,
    topk: tuple[str, ...] = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
) -> ExpertsFfn:
    """Return a mixture of experts.

    `experts`, `topk`: possible names of the numbers of routed and of chosen experts. `router_bias`: a bias in the
    router alone, which balances it; `bias`: biases in the experts. `batch_loss`: a loss over whole batches balanced the
    router in training.

    Examples
    --------
    >>> config = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
    >>> experts_block(ConfigFields(config), experts=("num_experts",), inner="moe_intermediate_size").topk
    8
    """
    count, chosen = fields.whole(*experts), fields.whole(*topk)
    if chosen > count:
        raise SpecError(f"is larger than {experts[0]} {count}", file=fields.file, field=topk[0], value=chosen)
    return ExpertsFfn(
        experts=count,
        topk=chosen,
        inner=fields.whole(inner),
        shared=shared,
        shared_inner=shared_inner,
        shared_gate=shared_gate,
        router_bias=router_bias,
        bias=bias,
        balanced_by="batch-loss" if batch_loss else "bias" if router_bias and not bias else None,
    )


def per_layer_embedding(fields: ConfigFields, count: int) -> tuple[DenseFfn | None, int]:
    """Return the block of per-layer embeddings of a layer, and their table.

    Gemma 3n and Gemma 4 E: a second embedding holds a vector of each token for each layer; a projection of the usual
    embedding is added. In the layer, two matrices gate it into the state. (None, 0) without.
    """
    width = fields.optional("hidden_size_per_layer_input")
    if width is None:
        return None, 0
    rows = fields.whole("vocab_size_per_layer_input", default=fields.whole("vocab_size"))
    projection = count * width * fields.whole("hidden_size") + width
    return DenseFfn(inner=width, gated=False), rows * count * width + projection
