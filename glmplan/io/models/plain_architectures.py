"""Read architectures of uniform decoder layers, each a row of a table.

Each layer has grouped-query attention and a dense block or experts. Shapes: `modeling_*.py` of Hugging Face
transformers 5.24.0 by the name of the model_type; for families without a module there, vLLM's model files and the
tensor lists of the `gguf` package 0.19.0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

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
    norms: int = 2  # vectors as wide as the hidden size
    qk_norm: bool | str = False
    wide_norm: bool = False  # norms of queries and keys over all heads together
    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = False
    gated: bool = True
    mlp_bias: bool | str = "mlp_bias"
    routed: Routed | None = None
    #: layers of a period: all but the last have windows; 0: none has, 1: all have
    window_period: int = 0
    full_unrotated: bool = False  # full layers beside windowed ones have no rotary positions
    mtp: bool = False  # `num_nextn_predict_layers` names layers that the files hold


#: field of families whose bias of queries, keys and values the output has too
_BIAS = "attention_bias"

#: model_type → its layers
PLAIN_FAMILIES: Mapping[str, PlainFamily] = {
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
    "chatglm": PlainFamily("glm"),
    "cohere": PlainFamily("command", norms=1, qk_norm="use_qk_norm", wide_norm=True, out_bias=_BIAS),
    "cohere2": PlainFamily("command", norms=1, out_bias=_BIAS, window_period=4, full_unrotated=True),
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
    "exaone4": PlainFamily("exaone", qk_norm=True, window_period=4, full_unrotated=True),
    "gemma": PlainFamily("gemma"),
    "gemma2": PlainFamily("gemma", norms=4, window_period=2),
    "glm": PlainFamily("glm"),
    "glm4": PlainFamily("glm", norms=4),
    "glm4v_text": PlainFamily("glm", norms=4),
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
    # two more norms with `use_post_norm`
    "hyperclovax": PlainFamily("hyperclovax", norms=4, out_bias=_BIAS),
    "hunyuan_v1_dense": PlainFamily("hunyuan", qk_norm=True, out_bias=_BIAS),
    "hunyuan_v1_moe": PlainFamily(
        "hunyuan",
        qk_norm=True,
        out_bias=_BIAS,
        routed=Routed("num_experts", topk="moe_topk", shared="num_shared_expert"),
    ),
    "internlm2": PlainFamily("internlm", out_bias=_BIAS),
    "internlm3": PlainFamily("internlm", out_bias="mlp_bias"),
    "iquestcoder": PlainFamily("iquest", out_bias=_BIAS),
    # norms with a bias
    "jais2": PlainFamily("jais", out_bias=_BIAS, gated=False),
    "minicpm": PlainFamily("minicpm", out_bias=_BIAS),
    "ministral": PlainFamily("mistral", window_period=1),
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
    "qwen2_moe": PlainFamily(
        "qwen",
        routed=Routed("num_experts", shared_inner="shared_expert_intermediate_size", shared_gate=True, batch_loss=True),
    ),
    "solar_open": PlainFamily("solar", routed=Routed("n_routed_experts", shared="n_shared_experts", router_bias=True)),
    # norms with a bias
    "starcoder2": PlainFamily("starcoder", out_bias=_BIAS, gated=False, mlp_bias=_BIAS, window_period=1),
    "vaultgemma": PlainFamily("gemma", window_period=2),
    "seed_oss": PlainFamily("seed", out_bias="attention_out_bias"),
    "smollm3": PlainFamily("smollm", out_bias=_BIAS),
}


def plain_reader(shape: PlainFamily) -> Callable[[ConfigFields], LayerStack]:
    """Return the reader of a family of uniform layers."""

    def read(fields: ConfigFields) -> LayerStack:
        for name in ("use_mla", "use_cla", "add_bias_linear"):
            if fields.flag(name):
                raise UnknownArchitecture("is set: this form of the family is not modelled", file=fields.file,
                                          field=fields.prefix + name)  # fmt: skip
        count = fields.whole("num_hidden_layers")
        windows = period_windows(fields, count, shape.window_period)
        mixed = any(windows) and not all(windows)
        layers, names = [], []
        sparse = sparse_layers(fields, count) if shape.routed else [False] * count
        for window, block, routed in zip(windows, _feed_forwards(fields, shape, sparse), sparse, strict=True):
            mixer = _attention(fields, shape, window)
            if mixed and shape.full_unrotated and window is None:
                mixer = mixer.model_copy(update={"rotary_dim": 0})
            layers.append(LayerKind(mixer=mixer, ffn=(block,), norms=shape.norms))
            words = ["sliding" if window else "full" if mixed else "", "sparse" if routed else ""]
            names.append("_".join(word for word in words if word) or "layer")
        named = numbered_layers(layers, names)
        mtp = mtp_spec(fields, named[-1][0], own_embedding=False) if shape.mtp else None
        return LayerStack(shape.family, named, mtp=mtp)

    return read


def _feed_forwards(fields: ConfigFields, shape: PlainFamily, sparse: list[bool]) -> list[DenseFfn | ExpertsFfn]:
    dense = None
    if not all(sparse):
        bias = _switch(fields, shape.mlp_bias)
        dense = DenseFfn(inner=fields.whole("intermediate_size"), gated=shape.gated, bias=bias)
    routed = shape.routed or Routed()
    return [
        dense if dense and not flag else _experts(fields, routed, at, len(sparse)) for at, flag in enumerate(sparse)
    ]


def _switch(fields: ConfigFields, rule: bool | str) -> bool:
    return fields.flag(rule) if isinstance(rule, str) else rule


def _attention(fields: ConfigFields, shape: PlainFamily, window: int | None) -> GroupedQuery:
    mixer = grouped_query(fields, window=window, qk_norm=_switch(fields, shape.qk_norm),
                          qkv_bias=_switch(fields, shape.qkv_bias))  # fmt: skip
    more = {"qk_norm_wide": shape.wide_norm and mixer.qk_norm, "out_bias": _switch(fields, shape.out_bias)}
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
