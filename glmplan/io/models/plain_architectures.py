"""Read architectures of uniform decoder layers, each a row of a table.

Each layer has grouped-query attention and a dense block or experts. Shapes: `modeling_*.py` of Hugging Face
transformers 5.24.0 by the name of the model_type; for families without a module there, vLLM's model files and the
tensor lists of the `gguf` package 0.19.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glmplan.catalog.schema.model import DenseFfn, ExpertsFfn, GroupedQuery, LayerKind
from glmplan.errors import SpecError, UnknownArchitecture
from glmplan.io.models.config_fields import (
    ConfigFields,
    LayerStack,
    grouped_query,
    layer_windows,
    mtp_spec,
    numbered_layers,
    sparse_layers,
)

__all__ = ["PLAIN_FAMILIES", "PLAIN_READERS", "PlainFamily", "Routed", "period_windows", "plain_reader"]


@dataclass(frozen=True, slots=True)
class Routed:
    """Fields that describe the experts of a family."""

    count: str = "num_local_experts"
    topk: str = "num_experts_per_tok"
    inner: str = "moe_intermediate_size"
    shared: str | None = None  # number of shared experts, each as wide as `shared_inner`
    shared_inner: str | None = None  # None: as wide as a routed expert
    shared_gate: bool = False
    router_bias: bool | str = False
    batch_loss: bool = False


@dataclass(frozen=True, slots=True)
class PlainFamily:
    """Layers of a family; a text names the field that switches a part on."""

    family: str
    norms: int | str = 2  # vectors as wide as the hidden size: weights of norms, and their biases
    qk_norm: bool | str = False
    wide_norm: bool = False  # norms of queries and keys over all heads together
    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = False
    gated: bool = True
    mlp_bias: bool | str = "mlp_bias"
    routed: Routed | None = None
    dense: str = "intermediate_size"  # field with the width of dense blocks
    attention: Mapping[str, object] = field(default_factory=dict)  # further properties of each attention
    vectors: int = 0  # vectors as wide as the hidden size outside the layers, beside the weights of the last norm
    learned: int | None = None  # rows of learned positions beyond the context; None: no learned positions
    head_bias: bool = False
    known: Mapping[str, object] = field(default_factory=dict)  # fields that must have this value where they are set
    adapt: Callable[[ConfigFields], Mapping[str, object]] | None = None  # returns fields that follow from others
    #: returns properties of attention that each layer has of its own
    each: Callable[[ConfigFields, int], Sequence[Mapping[str, object]]] | None = None
    #: layers of a period: all but the last have windows; 0: none has, 1: all have
    window_period: int = 0
    full_unrotated: bool = False  # full layers beside windowed ones have no rotary positions
    mtp: bool = False  # `num_nextn_predict_layers` names layers that the files hold


#: field of families whose bias of queries, keys and values the output has too
_BIAS = "attention_bias"


def _four_times(fields: ConfigFields) -> Mapping[str, object]:
    inner = fields.optional("intermediate_size") or 4 * fields.whole("hidden_size")
    return {"intermediate_size": inner, "num_key_value_heads": fields.whole("num_attention_heads")}


def _multi_query(fields: ConfigFields) -> Mapping[str, object]:
    more = _four_times(fields)
    return {**more, "num_key_value_heads": 1} if fields.flag("multi_query", True) else more


def _expanded(fields: ConfigFields) -> Mapping[str, object]:
    """Return the width and KV heads of MPT."""
    fields.raw("attn_type")
    heads = fields.whole("kv_n_heads", default=fields.whole("num_attention_heads"))
    inner = fields.whole("expansion_ratio", default=4) * fields.whole("hidden_size")
    return {"intermediate_size": fields.whole("intermediate_size", default=inner), "num_key_value_heads": heads}


def _half_as_wide(fields: ConfigFields) -> Mapping[str, object]:
    """Return the width of each matrix of Qwen: half of the stated one."""
    heads = fields.whole("num_attention_heads")
    return {"intermediate_size": fields.whole("intermediate_size") // 2, "num_key_value_heads": heads}


def _same_width(fields: ConfigFields) -> Mapping[str, object]:
    if fields.whole("word_embed_proj_dim", default=fields.whole("hidden_size")) != fields.whole("hidden_size"):
        raise UnknownArchitecture("is not hidden_size: projections of the embedding are not modelled",
                                  file=fields.file, field=fields.prefix + "word_embed_proj_dim")  # fmt: skip
    return {"num_key_value_heads": fields.whole("num_attention_heads")}


def _parallel(fields: ConfigFields) -> Mapping[str, object]:
    """Return vectors of norms: attention and block may share one norm."""
    return {"norms": 2 if fields.flag("use_parallel_residual") else 4}


def _falcon(fields: ConfigFields) -> Mapping[str, object]:
    """Return norms and KV heads of both decoders (`modeling_falcon.py`).

    `RefinedWeb` is the first name of the decoder of Falcon-40B.
    """
    newer = fields.flag("new_decoder_architecture", fields.raw("model_type") == "RefinedWeb")
    parallel, one = fields.flag("parallel_attn", True), fields.flag("multi_query", True)
    heads = fields.whole("num_attention_heads")
    stated = fields.whole("num_key_value_heads", default=heads)
    shared = parallel and fields.whole("num_ln_in_parallel_attn", default=2 if newer else 1) == 1
    return {**_four_times(fields), "num_key_value_heads": stated if newer else 1 if one else heads,
            "norms": 2 if shared else 4}  # fmt: skip


def _first_is_dense(fields: ConfigFields) -> Mapping[str, object]:
    return {} if fields.has("mlp_layer_types") else {"first_k_dense_replace": 1}


def _gated_heads(fields: ConfigFields, count: int) -> list[Mapping[str, object]]:
    """Return the heads and the gate of each layer of Laguna."""
    gates: dict[object, dict[str, object]] = {True: {"head_gated": True}, "per-head": {"head_gated": True},
                                              "per-element": {"gated": True}}  # fmt: skip
    gating = fields.raw("gating", True)
    if not isinstance(gating, bool | str) or gating not in gates:
        raise UnknownArchitecture("is not per-head or per-element", file=fields.file, field=fields.prefix + "gating")
    name = "num_attention_heads_per_layer"
    name = name if fields.has(name) else "num_attention_heads"
    return [{**gates[gating], "heads": _of_layer(fields, name, layer, count)} for layer in range(count)]


def _prefix_windows(fields: ConfigFields) -> Mapping[str, object]:
    """Return kinds of layers: the dense first ones have a period of their own."""
    count, first = fields.whole("num_hidden_layers"), fields.whole("first_k_dense_replace", default=0, minimum=0)
    periods = [fields.whole(f"{name}sliding_window_pattern", default=default)
               for name, default in (("prefix_dense_", 1), ("", 4))]  # fmt: skip
    if fields.has("layer_types"):
        return {}
    places = [(at, periods[0]) if at < first else (at - first, periods[1]) for at in range(count)]
    return {"layer_types": ["sliding_attention" if (at + 1) % period else "full_attention" for at, period in places]}


#: biases everywhere, also of the norms, and two matrices in a block
_BIASED: dict[str, Any] = {"norms": 4, "qkv_bias": True, "out_bias": True, "gated": False, "mlp_bias": True}
_FALCON = PlainFamily("falcon", norms="norms", vectors=1, qkv_bias="bias", out_bias="bias", gated=False,
                      mlp_bias="bias", adapt=_falcon)  # fmt: skip

#: model_type → its layers
PLAIN_FAMILIES: Mapping[str, PlainFamily] = {
    **dict.fromkeys(
        ("qwen3_moe", "qwen3_omni_moe_text", "qwen3_vl_moe_text"),
        PlainFamily("qwen", qk_norm=True, routed=Routed("num_experts", batch_loss=True)),
    ),
    **dict.fromkeys(("falcon", "RefinedWeb", "RefinedWebModel"), _FALCON),
    "aquila": PlainFamily("aquila"),
    # a gate as wide as the queries follows the attention
    "afmoe": PlainFamily(
        "trinity",
        norms=4,
        qk_norm=True,
        attention={"gated": True},
        routed=Routed("num_experts", shared="num_shared_experts", router_bias=True),
        window_period=4,
        full_unrotated=True,
    ),
    "apertus": PlainFamily("apertus", qk_norm=True, gated=False),
    "arcee": PlainFamily("arcee", out_bias=_BIAS, gated=False),
    "baichuan": PlainFamily("baichuan"),
    "bailing_moe": PlainFamily(
        "ling", out_bias="use_bias", mlp_bias="use_bias", routed=Routed("num_experts", shared="num_shared_experts")
    ),
    "bailing_moe_v2": PlainFamily(
        "ling",
        qk_norm="use_qk_norm",
        out_bias="use_bias",
        routed=Routed(
            "num_experts",
            shared="num_shared_experts",
            shared_inner="moe_shared_expert_intermediate_size",
            router_bias="moe_router_enable_expert_bias",
        ),
        mtp=True,
    ),
    # the embedding has a norm
    "bloom": PlainFamily("bloom", **_BIASED, vectors=3, attention={"rotary_dim": 0}, adapt=_four_times),
    "chatglm": PlainFamily("glm"),
    "cohere": PlainFamily("command", norms=1, qk_norm="use_qk_norm", wide_norm=True, out_bias=_BIAS),
    "cohere2": PlainFamily("command", norms=1, out_bias=_BIAS, window_period=4, full_unrotated=True),
    "cohere2_moe": PlainFamily(
        "command",
        norms=1,
        out_bias=_BIAS,
        dense="prefix_dense_intermediate_size",
        routed=Routed("num_experts", inner="intermediate_size", shared="num_shared_experts"),
        window_period=4,
        full_unrotated=True,
        adapt=_prefix_windows,
    ),
    "cwm": PlainFamily("cwm", window_period=4),
    "dbrx": PlainFamily("dbrx", routed=Routed("moe_num_experts", topk="moe_top_k", inner="intermediate_size")),
    "deepseek": PlainFamily("deepseek", out_bias=_BIAS, routed=Routed("n_routed_experts", shared="n_shared_experts")),
    "dots1": PlainFamily(
        "dots",
        qk_norm=True,
        out_bias=_BIAS,
        routed=Routed("n_routed_experts", shared="n_shared_experts", router_bias=True),
    ),
    "ernie4_5": PlainFamily("ernie", out_bias=_BIAS, mlp_bias=_BIAS),
    "exaone": PlainFamily("exaone"),
    "exaone_moe": PlainFamily(
        "exaone",
        qk_norm=True,
        window_period=4,
        full_unrotated=True,
        routed=Routed("num_experts", shared="num_shared_experts", router_bias=True),
        mtp=True,
    ),
    "exaone4_5_text": PlainFamily("exaone", qk_norm=True, window_period=4, full_unrotated=True),
    "exaone4": PlainFamily("exaone", qk_norm=True, window_period=4, full_unrotated=True),
    "flex_olmo": PlainFamily(
        "olmo",
        qk_norm=True,
        wide_norm=True,
        out_bias=_BIAS,
        routed=Routed("num_experts", inner="intermediate_size", batch_loss=True),
    ),
    "gemma": PlainFamily("gemma"),
    "gemma2": PlainFamily("gemma", norms=4, window_period=2),
    "glm": PlainFamily("glm"),
    "glm4": PlainFamily("glm", norms=4),
    "glm4v_text": PlainFamily("glm", norms=4),
    "gpt2": PlainFamily("gpt", **_BIASED, vectors=1, learned=0, attention={"rotary_dim": 0}, adapt=_four_times),
    "gpt_bigcode": PlainFamily(
        "starcoder", **_BIASED, vectors=1, learned=0, attention={"rotary_dim": 0}, adapt=_multi_query
    ),
    "gpt_neox": PlainFamily("gpt", **_BIASED, vectors=1),
    # attention and block share one norm; the head has a bias
    "gptj": PlainFamily(
        "gpt", norms=2, qkv_bias=False, gated=False, mlp_bias=True, vectors=1, head_bias=True, adapt=_four_times
    ),
    "granite": PlainFamily("granite", out_bias=_BIAS),
    "granite_swa": PlainFamily("granite", out_bias=_BIAS, window_period=4),
    "granitemoe": PlainFamily("granite", out_bias=_BIAS, routed=Routed(inner="intermediate_size", batch_loss=True)),
    "granitemoeshared": PlainFamily(
        "granite",
        out_bias=_BIAS,
        routed=Routed(inner="intermediate_size", shared_inner="shared_intermediate_size", batch_loss=True),
    ),
    # RMS norms before and after each block: `Grok1DecoderLayer` of vLLM
    "grok-1": PlainFamily("grok", norms=4, routed=Routed("num_experts", inner="intermediate_size")),
    "helium": PlainFamily("helium"),
    "hy_v3": PlainFamily(
        "hunyuan",
        qk_norm=True,
        routed=Routed("num_experts", shared="num_shared_experts", router_bias=True),
        mtp=True,
    ),
    # two more norms with `use_post_norm`
    "hyperclovax": PlainFamily("hyperclovax", norms=4, out_bias=_BIAS),
    "hunyuan_v1_dense": PlainFamily("hunyuan", qk_norm=True, out_bias=_BIAS),
    "hunyuan_v1_moe": PlainFamily(
        "hunyuan",
        qk_norm=True,
        out_bias=_BIAS,
        routed=Routed("num_experts", topk="moe_topk", shared="num_shared_expert"),
    ),
    "internlm": PlainFamily("internlm-1", out_bias=_BIAS),
    "internlm2": PlainFamily("internlm", out_bias=_BIAS),
    "internlm3": PlainFamily("internlm", out_bias="mlp_bias"),
    "iquestcoder": PlainFamily("iquest", out_bias=_BIAS),
    # norms with a bias
    "jais2": PlainFamily("jais", out_bias=_BIAS, gated=False),
    "kolibri1": PlainFamily(
        "kolibri",
        norms=4,
        qk_norm=True,
        out_bias=_BIAS,
        routed=Routed("num_experts", shared_inner="shared_expert_intermediate_size", router_bias=True),
        window_period=5,
        full_unrotated=True,
    ),
    # a gate for each head; layers may have heads of their own
    "laguna": PlainFamily(
        "laguna",
        qk_norm=True,
        out_bias=_BIAS,
        routed=Routed("num_experts", shared_inner="shared_expert_intermediate_size", router_bias=True),
        adapt=_first_is_dense,
        each=_gated_heads,
    ),
    "mellum": PlainFamily("mellum", qk_norm=True, out_bias=_BIAS, routed=Routed("num_experts", batch_loss=True)),
    "minicpm": PlainFamily("minicpm", out_bias=_BIAS),
    "ministral": PlainFamily("mistral", window_period=1),
    # norms without a bias
    "mpt": PlainFamily(
        "mpt",
        qk_norm="qk_ln",
        wide_norm=True,
        qkv_bias=False,
        gated=False,
        attention={"rotary_dim": 0},
        known={"alibi": True, "no_bias": True},
        adapt=_expanded,
    ),
    # norms without weights
    "nanochat": PlainFamily("nanochat", norms=0, out_bias=_BIAS, gated=False),
    # norms with a bias
    "nemotron": PlainFamily("nemotron", norms=4, out_bias=_BIAS, gated=False),
    # norms without weights
    "olmo": PlainFamily("olmo", norms=0, out_bias=_BIAS),
    "olmo2": PlainFamily("olmo", qk_norm=True, wide_norm=True, out_bias=_BIAS),
    "olmo3": PlainFamily("olmo", qk_norm=True, wide_norm=True, out_bias=_BIAS, window_period=4),
    "olmoe": PlainFamily(
        "olmo",
        qk_norm=True,
        wide_norm=True,
        out_bias=_BIAS,
        routed=Routed("num_experts", inner="intermediate_size", batch_loss=True),
    ),
    "opt": PlainFamily(
        "opt",
        **_BIASED,
        vectors=1,
        learned=2,
        attention={"rotary_dim": 0},
        known={"do_layer_norm_before": True, "enable_bias": True, "layer_norm_elementwise_affine": True},
        adapt=_same_width,
    ),
    # attention and block share one norm; norms and the head have a bias
    "phi": PlainFamily(
        "phi", norms=1, qk_norm="qk_layernorm", qkv_bias=True, out_bias=True, gated=False, mlp_bias=True
    ),
    "phi3": PlainFamily("phi", window_period=1),
    "phi3_v": PlainFamily("phi", window_period=1),
    # norms with a bias
    "phimoe": PlainFamily(
        "phi", norms=4, out_bias=_BIAS, window_period=1, routed=Routed(inner="intermediate_size", batch_loss=True)
    ),
    "qwen": PlainFamily("qwen-1", qkv_bias=True, known={"no_bias": True}, adapt=_half_as_wide),
    "qwen2_moe": PlainFamily(
        "qwen",
        routed=Routed("num_experts", shared_inner="shared_expert_intermediate_size", shared_gate=True, batch_loss=True),
    ),
    "sarvam_moe": PlainFamily(
        "sarvam",
        qk_norm="use_qk_norm",
        out_bias=_BIAS,
        routed=Routed("num_experts", shared="num_shared_experts", router_bias=True),
    ),
    "solar_open": PlainFamily("solar", routed=Routed("n_routed_experts", shared="n_shared_experts", router_bias=True)),
    # norms with a bias; those of queries and keys are one for each head
    "stablelm": PlainFamily(
        "stablelm", norms="norms", vectors=1, qk_norm="qk_layernorm", wide_norm=True, adapt=_parallel
    ),
    # norms with a bias
    "starcoder2": PlainFamily("starcoder", out_bias=_BIAS, gated=False, mlp_bias=_BIAS, window_period=1),
    "vaultgemma": PlainFamily("gemma", window_period=2),
    "seed_oss": PlainFamily("seed", out_bias="attention_out_bias"),
    "smollm3": PlainFamily("smollm", out_bias=_BIAS),
}


def plain_reader(shape: PlainFamily) -> Callable[[ConfigFields], LayerStack]:
    """Return the reader of a family of uniform layers."""

    def read(fields: ConfigFields) -> LayerStack:
        fields = _adapted(fields, shape)
        count = fields.whole("num_hidden_layers")
        windows = period_windows(fields, count, shape.window_period)
        mixed = any(windows) and not all(windows)
        norms = fields.whole(shape.norms) if isinstance(shape.norms, str) else shape.norms
        layers, names = [], []
        sparse = sparse_layers(fields, count) if shape.routed else [False] * count
        blocks, each = _feed_forwards(fields, shape, sparse), shape.each(fields, count) if shape.each else [{}] * count
        for window, block, routed, own in zip(windows, blocks, sparse, each, strict=True):
            mixer = _attention(fields, shape, window).model_copy(update=own)
            if mixed and shape.full_unrotated and window is None:
                mixer = mixer.model_copy(update={"rotary_dim": 0})
            layers.append(LayerKind(mixer=mixer, ffn=(block,), norms=norms))
            words = [
                "sliding" if window else "full" if mixed else "",
                "sparse" if routed else "dense" if any(sparse) else "",
            ]
            names.append("_".join(word for word in words if word) or "layer")
        named = numbered_layers(layers, names)
        mtp = mtp_spec(fields, named[-1][0], own_embedding=False) if shape.mtp else None
        return LayerStack(shape.family, named, mtp=mtp, extra_parameters=_outside(fields, shape))

    return read


def _adapted(fields: ConfigFields, shape: PlainFamily) -> ConfigFields:
    """Return the fields with those that follow from others.

    A form of the family that is not modelled is refused by its field.
    """
    for name, value in {"use_mla": False, "use_cla": False, "add_bias_linear": False, **shape.known}.items():
        if fields.raw(name, value) != value:
            raise UnknownArchitecture(f"is not {str(value).lower()}: this form of the family is not modelled",
                                      file=fields.file, field=fields.prefix + name)  # fmt: skip
    more = shape.adapt(fields) if shape.adapt else {}
    result = ConfigFields({**fields.content, **more}, fields.file, fields.prefix)
    result.read, result.parts = fields.read, fields.parts
    return result


def _outside(fields: ConfigFields, shape: PlainFamily) -> int:
    """Return weights beside the layers: vectors, learned positions, bias."""
    rows = shape.vectors
    if shape.learned is not None:
        rows += fields.whole("max_position_embeddings") + shape.learned
    bias = fields.whole("vocab_size") if shape.head_bias else 0
    return rows * fields.whole("hidden_size") + bias


def _feed_forwards(fields: ConfigFields, shape: PlainFamily, sparse: list[bool]) -> list[DenseFfn | ExpertsFfn]:
    dense = None
    if not all(sparse):
        bias = _switch(fields, shape.mlp_bias)
        dense = DenseFfn(inner=fields.whole(shape.dense), gated=shape.gated, bias=bias)
    routed = shape.routed or Routed()
    return [
        dense if dense and not flag else _experts(fields, routed, at, len(sparse)) for at, flag in enumerate(sparse)
    ]


def _switch(fields: ConfigFields, rule: bool | str) -> bool:
    return fields.flag(rule) if isinstance(rule, str) else rule


def _attention(fields: ConfigFields, shape: PlainFamily, window: int | None) -> GroupedQuery:
    mixer = grouped_query(fields, window=window, qk_norm=_switch(fields, shape.qk_norm),
                          qkv_bias=_switch(fields, shape.qkv_bias))  # fmt: skip
    more = {
        **shape.attention,
        "qk_norm_wide": shape.wide_norm and mixer.qk_norm,
        "out_bias": _switch(fields, shape.out_bias),
    }
    return mixer.model_copy(update=more)


def _of_layer(fields: ConfigFields, name: str, layer: int, count: int, default: int | None = None) -> int:
    """Return a count that is one for all layers, or one of a list."""
    value = fields.raw(name)
    if not isinstance(value, list):
        return fields.whole(name, default=default, minimum=0 if default == 0 else 1)
    own = ConfigFields({name: fields.listing(name, count)[layer]}, fields.file, fields.prefix)
    return own.whole(name, default=default, minimum=0 if default == 0 else 1)


def _experts(fields: ConfigFields, routed: Routed, layer: int, count: int) -> ExpertsFfn:
    number, topk = (_of_layer(fields, name, layer, count) for name in (routed.count, routed.topk))
    if topk > number:
        raise SpecError(f"is larger than {routed.count} {number}", file=fields.file,
                        field=fields.prefix + routed.topk, value=topk)  # fmt: skip
    inner = _of_layer(fields, routed.inner, layer, count)
    wide = _of_layer(fields, routed.shared_inner, layer, count, 0) if routed.shared_inner else 0
    shared = _of_layer(fields, routed.shared, layer, count, 0) if routed.shared else int(bool(wide))
    bias = _switch(fields, routed.router_bias)
    return ExpertsFfn(
        experts=number,
        topk=topk,
        inner=inner,
        shared=shared,
        shared_inner=(wide or inner) if shared else 0,
        shared_gate=routed.shared_gate,
        router_bias=bias,
        balanced_by="bias" if bias else "batch-loss" if routed.batch_loss else None,
    )


def period_windows(fields: ConfigFields, count: int, period: int) -> list[int | None]:
    """Return the window of each layer: from `layer_types`, else by a period.

    The last layer of a period attends in full. `sliding_window_pattern` replaces the period of the family; a text
    such as ``LLLG`` is one letter for each layer of it. A window of the whole context or more is none.

    Examples
    --------
    >>> period_windows(ConfigFields({"sliding_window": 4096, "sliding_window_pattern": "LG"}), 4, 4)
    [4096, None, 4096, None]
    """
    if not period:
        # newer releases of transformers write the kind of each layer, also where all attend in full
        return layer_windows(fields, count)
    stated = fields.raw("sliding_window_pattern", fields.raw("_sliding_window_pattern", period))
    fields.raw("layer_types")
    if fields.has("layer_types") and fields.raw("sliding_window") is not None:
        return layer_windows(fields, count)
    window = fields.optional("sliding_window")
    if window is None or window >= fields.whole("max_position_embeddings", default=2**62):
        return [None] * count
    if isinstance(stated, str) and stated:
        return [window if stated[layer % len(stated)] == "L" else None for layer in range(count)]
    if isinstance(stated, bool) or not isinstance(stated, int) or stated < 1:
        raise SpecError("is not a period of layers", file=fields.file, field=fields.prefix + "sliding_window_pattern")
    return [window if period == 1 or (layer + 1) % stated else None for layer in range(count)]


#: model_type → reader
PLAIN_READERS: dict[str, Callable[[ConfigFields], LayerStack]] = {
    name: plain_reader(shape) for name, shape in PLAIN_FAMILIES.items()
}
