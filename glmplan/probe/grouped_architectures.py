"""Architectures with grouped-query attention: Llama, Qwen, Mixtral, GLM-4.5, MiniMax, gpt-oss, Gemma, Llama 4, MiMo.

Which fields mean what is read from the `configuration_*.py` and `modeling_*.py` files of Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Callable

from glmplan.errors import SpecError
from glmplan.probe.anatomy import Anatomy
from glmplan.probe.config_fields import ConfigFields
from glmplan.schema.model import DenseFfn, ExpertsFfn, GroupedQuery, LayerKind, MtpSpec

__all__ = ["GROUPED_READERS", "grouped_query", "sparse_layers"]

_FULL_OR_SLIDING = ("full_attention", "sliding_attention")


def grouped_query(
    fields: ConfigFields, *, window: int | None = None, qk_norm: bool = False, qkv_bias: bool | None = None
) -> GroupedQuery:
    """Read the attention of a layer from the usual fields.

    Parameters
    ----------
    fields : ConfigFields
        The config.
    window : int, optional
        Sliding window, [token]
    qk_norm : bool, optional
        Whether queries and keys are normalised for each head.
    qkv_bias : bool, optional
        Whether the projections have biases; `attention_bias` of the config by default.

    Returns
    -------
    GroupedQuery
        Attention; the number of KV heads must be stated, it is never guessed.

    Raises
    ------
    SpecError
        If a field is missing or the heads do not divide.

    Examples
    --------
    >>> config = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    >>> grouped_query(ConfigFields(config)).head_dim
    128
    """
    heads = fields.whole("num_attention_heads")
    kv_heads = fields.whole("num_key_value_heads")
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
        window=window,
        qk_norm=qk_norm,
        qkv_bias=fields.flag("attention_bias") if qkv_bias is None else qkv_bias,
    )


def sparse_layers(fields: ConfigFields, count: int) -> list[bool]:
    """Read which layers hold experts: `moe_layer_freq`, `first_k_dense_replace`, `mlp_only_layers` and the like.

    Parameters
    ----------
    fields : ConfigFields
        The config.
    count : int
        Number of layers, [-]

    Returns
    -------
    list of bool
        One value for each layer.

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
    only_dense = set(fields.raw("mlp_only_layers", []))
    return [
        layer >= first and layer % every == 0 and (layer + 1) % step == 0 and layer not in only_dense
        for layer in range(count)
    ]


def _windows(fields: ConfigFields, count: int) -> list[int | None]:
    if not fields.has("layer_types"):
        return [None] * count
    kinds = fields.listing("layer_types", count, _FULL_OR_SLIDING)
    return [fields.whole("sliding_window") if kind == "sliding_attention" else None for kind in kinds]


def _mtp(
    fields: ConfigFields, layer: str, *, own_embedding: bool, name: str = "num_nextn_predict_layers"
) -> MtpSpec | None:
    count = fields.optional(name)
    return MtpSpec(layers=count, layer=layer, own_embedding=own_embedding) if count else None


def _dense(family: str, *, qk_norm: bool = False, bias: bool | None = None) -> Callable[[ConfigFields], Anatomy]:
    def read(fields: ConfigFields) -> Anatomy:
        count = fields.whole("num_hidden_layers")
        ffn = DenseFfn(inner=fields.whole("intermediate_size"), bias=fields.flag("mlp_bias"))
        sliding = fields.optional("sliding_window") if fields.flag("use_sliding_window", family == "mistral") else None
        windows: list[int | None] = _windows(fields, count) if fields.has("layer_types") else [sliding] * count
        layers = []
        for window in windows:
            mixer = grouped_query(fields, window=window, qk_norm=qk_norm, qkv_bias=bias)
            if family == "llama" and mixer.qkv_bias:
                mixer = mixer.model_copy(update={"out_bias": True})
            layers.append(("sliding" if window else "layer", LayerKind(mixer=mixer, ffn=(ffn,))))
        return Anatomy(family, layers, mtp=_mtp(fields, layers[-1][0], own_embedding=False))

    return read


def _experts(
    fields: ConfigFields,
    *,
    experts: tuple[str, ...],
    inner: str,
    shared: int = 0,
    shared_inner: int = 0,
    shared_gate: bool = False,
    router_bias: bool = False,
    bias: bool = False,
    topk: tuple[str, ...] = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
) -> ExpertsFfn:
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
    )


def _mixed(
    sparse: list[bool], mixer: GroupedQuery, dense: DenseFfn | None, experts: ExpertsFfn
) -> list[tuple[str, LayerKind]]:
    kinds = {True: LayerKind(mixer=mixer, ffn=(experts,))}
    if dense is not None:
        kinds[False] = LayerKind(mixer=mixer, ffn=(dense,))
    return [("sparse" if flag else "dense", kinds[flag]) for flag in sparse]


def _qwen_moe(fields: ConfigFields) -> Anatomy:
    experts = _experts(fields, experts=("num_experts",), inner="moe_intermediate_size")
    sparse = sparse_layers(fields, fields.whole("num_hidden_layers"))
    dense = None if all(sparse) else DenseFfn(inner=fields.whole("intermediate_size"))
    return Anatomy("qwen", _mixed(sparse, grouped_query(fields, qk_norm=True), dense, experts))


def _mixtral(fields: ConfigFields) -> Anatomy:
    experts = _experts(fields, experts=("num_local_experts",), inner="intermediate_size")
    mixer = grouped_query(fields, window=fields.optional("sliding_window"))
    return Anatomy("mixtral", _mixed([True] * fields.whole("num_hidden_layers"), mixer, None, experts))


def _glm4_moe(fields: ConfigFields) -> Anatomy:
    inner = fields.whole("moe_intermediate_size")
    shared = fields.whole("n_shared_experts", default=0, minimum=0)
    experts = _experts(
        fields, experts=("n_routed_experts",), inner="moe_intermediate_size", shared=shared, shared_inner=inner,
        router_bias=True,
    )  # fmt: skip
    mixer = grouped_query(fields, qk_norm=fields.flag("use_qk_norm"))
    sparse = sparse_layers(fields, fields.whole("num_hidden_layers"))
    layers = _mixed(sparse, mixer, DenseFfn(inner=fields.whole("intermediate_size")), experts)
    return Anatomy("glm", layers, mtp=_mtp(fields, "sparse", own_embedding=True))


def _minimax_m2(fields: ConfigFields) -> Anatomy:
    experts = _experts(
        fields, experts=("num_local_experts",), inner="intermediate_size",
        router_bias=fields.flag("use_routing_bias"),
    )  # fmt: skip
    if fields.whole("shared_intermediate_size", default=0, minimum=0):
        raise SpecError(
            "is not 0; a MiniMax-M2 has no shared expert", file=fields.file, field="shared_intermediate_size"
        )
    wide = fields.raw("qk_norm_type", "per_layer") == "per_layer"
    mixer = grouped_query(fields).model_copy(update={"qk_norm": fields.flag("use_qk_norm"), "qk_norm_wide": wide})
    notes = []
    if fields.optional("num_mtp_modules"):
        notes.append("the config names MTP modules, but the checkpoint ships no MTP weights: they are not counted")
    return Anatomy("minimax", _mixed([True] * fields.whole("num_hidden_layers"), mixer, None, experts), notes=notes)


def _gpt_oss(fields: ConfigFields) -> Anatomy:
    count = fields.whole("num_hidden_layers")
    experts = _experts(
        fields, experts=("num_local_experts", "num_experts"), inner="intermediate_size", router_bias=True, bias=True
    )
    layers = []
    for window in _windows(fields, count):
        mixer = grouped_query(fields, window=window).model_copy(update={"out_bias": True, "sinks": True})
        layers.append(("sliding" if window else "full", LayerKind(mixer=mixer, ffn=(experts,))))
    return Anatomy("gpt-oss", layers)


def _gemma3(fields: ConfigFields) -> Anatomy:
    count = fields.whole("num_hidden_layers")
    window = fields.whole("sliding_window")
    if fields.has("layer_types"):
        windows: list[int | None] = _windows(fields, count)
    else:
        every = fields.whole("sliding_window_pattern", default=6)
        windows = [None if (layer + 1) % every == 0 else window for layer in range(count)]
    ffn = DenseFfn(inner=fields.whole("intermediate_size"))
    layers = []
    for width in windows:
        mixer = grouped_query(fields, window=width, qk_norm=True)
        layers.append(("sliding" if width else "full", LayerKind(mixer=mixer, ffn=(ffn,), norms=4)))
    return Anatomy("gemma", layers)


def _gemma4(fields: ConfigFields) -> Anatomy:
    count = fields.whole("num_hidden_layers")
    shared = fields.whole("num_kv_shared_layers", default=0, minimum=0)
    if fields.optional("hidden_size_per_layer_input"):
        raise SpecError(
            "is not 0: per-layer embeddings are not modelled", file=fields.file, field="hidden_size_per_layer_input"
        )
    ffn: tuple[DenseFfn | ExpertsFfn, ...] = (DenseFfn(inner=fields.whole("intermediate_size")),)
    norms = 4
    if fields.flag("enable_moe_block"):
        ffn += (
            _experts(fields, experts=("num_experts",), inner="moe_intermediate_size", topk=("top_k_experts",)),
        )  # fmt: skip
        norms = 8  # three more around the experts, and the scale of the router
    fields.flag("use_double_wide_mlp")
    sliding = grouped_query(fields, window=fields.whole("sliding_window"), qk_norm=True)
    full = sliding.model_copy(
        update={
            "window": None,
            "head_dim": fields.whole("global_head_dim", default=sliding.head_dim),
            "kv_heads": fields.whole("num_global_key_value_heads", default=sliding.kv_heads),
            "key_is_value": fields.flag("attention_k_eq_v"),
        }
    )
    layers = []
    for layer, kind in enumerate(fields.listing("layer_types", count, _FULL_OR_SLIDING)):
        mixer = full if kind == "full_attention" else sliding
        name = "full" if kind == "full_attention" else "sliding"
        if layer >= count - shared:
            mixer, name = mixer.model_copy(update={"shared_kv": True}), f"{name}_shared"
        layers.append((name, LayerKind(mixer=mixer, ffn=ffn, norms=norms)))
    return Anatomy("gemma", layers)


def _llama4(fields: ConfigFields) -> Anatomy:
    count = fields.whole("num_hidden_layers")
    step = fields.whole("interleave_moe_layer_step")
    inner = fields.whole("intermediate_size")
    experts = _experts(fields, experts=("num_local_experts",), inner="intermediate_size", shared=1, shared_inner=inner)
    dense = DenseFfn(inner=fields.whole("intermediate_size_mlp"))
    chunk = fields.optional("attention_chunk_size")
    rotary = fields.raw("no_rope_layers") or [(layer + 1) % 4 for layer in range(count)]
    layers = []
    for layer in range(count):
        sparse = (layer + 1) % step == 0
        local = chunk is not None and bool(rotary[layer])
        mixer = grouped_query(fields, window=chunk if local else None)
        name = f"{'chunked' if local else 'full'}_{'sparse' if sparse else 'dense'}"
        layers.append((name, LayerKind(mixer=mixer, ffn=(experts if sparse else dense,))))
    note = f"layers with rotary positions attend in chunks of {chunk} tokens; counted as a window of that length"
    return Anatomy("llama", layers, notes=[note] if chunk else [])


def _mimo_v2(fields: ConfigFields) -> Anatomy:
    count = fields.whole("num_hidden_layers")
    experts = _experts(fields, experts=("n_routed_experts",), inner="moe_intermediate_size", router_bias=True)
    fields.whole("n_shared_experts", default=0, minimum=0)
    dense = DenseFfn(inner=fields.whole("intermediate_size"))
    full = grouped_query(fields).model_copy(
        update={"v_head_dim": fields.whole("v_head_dim"), "sinks": fields.flag("add_full_attention_sink_bias")}
    )
    sliding = GroupedQuery(
        heads=fields.whole("swa_num_attention_heads"),
        kv_heads=fields.whole("swa_num_key_value_heads"),
        head_dim=fields.whole("swa_head_dim"),
        v_head_dim=fields.whole("swa_v_head_dim"),
        window=fields.whole("sliding_window"),
        sinks=fields.flag("add_swa_attention_sink_bias"),
    )
    layers = []
    for swa, sparse in zip(fields.listing("hybrid_layer_pattern", count), sparse_layers(fields, count), strict=True):
        name = f"{'sliding' if swa else 'full'}_{'sparse' if sparse else 'dense'}"
        kind = LayerKind(mixer=sliding if swa else full, ffn=(experts if sparse else dense,))
        layers.append((name, kind))
    return Anatomy("mimo", layers, notes=["the config states no MTP layers; none are counted"])


def _step(fields: ConfigFields) -> Anatomy:
    count = fields.whole("num_hidden_layers")
    inner = fields.whole("share_expert_dim")
    experts = _experts(
        fields, experts=("num_experts",), inner="moe_intermediate_size",
        shared=fields.whole("n_shared_experts", default=0, minimum=0), shared_inner=inner,
        router_bias=fields.flag("use_moe_router_bias"),
    )  # fmt: skip
    dense = DenseFfn(inner=fields.whole("intermediate_size"))
    layers = []
    for window, sparse in zip(_windows(fields, count), sparse_layers(fields, count), strict=True):
        name = f"{'sliding' if window else 'full'}_{'sparse' if sparse else 'dense'}"
        kind = LayerKind(mixer=grouped_query(fields, window=window), ffn=(experts if sparse else dense,))
        layers.append((name, kind))
    return Anatomy("step", layers, mtp=_mtp(fields, "full_dense", own_embedding=False))


def _ernie_moe(fields: ConfigFields) -> Anatomy:
    count = fields.whole("num_hidden_layers")
    inner = fields.whole("moe_intermediate_size")
    experts = _experts(
        fields, experts=("moe_num_experts",), inner="moe_intermediate_size", topk=("moe_k",), router_bias=True,
        shared=fields.whole("moe_num_shared_experts", default=0, minimum=0), shared_inner=inner,
    )  # fmt: skip
    first = fields.whole("moe_layer_start_index", minimum=0)
    last = fields.whole("moe_layer_end_index", default=count - 1)
    every = fields.whole("moe_layer_interval", default=1)
    sparse = [first <= layer <= last and (layer + 1) % every == 0 for layer in range(count)]
    mixer = grouped_query(fields, qkv_bias=fields.flag("use_bias"))
    layers = _mixed(sparse, mixer, DenseFfn(inner=fields.whole("intermediate_size")), experts)
    return Anatomy("ernie", layers)


#: model_type → reader
GROUPED_READERS: dict[str, Callable[[ConfigFields], Anatomy]] = {
    "llama": _dense("llama"),
    "mistral": _dense("mistral", bias=False),
    "ministral3": _dense("ministral", bias=False),
    "mimo": _dense("mimo"),
    "qwen2": _dense("qwen", bias=True),
    "qwen3": _dense("qwen", qk_norm=True),
    "qwen3_vl_text": _dense("qwen", qk_norm=True),
    "qwen3_moe": _qwen_moe,
    "qwen3_vl_moe_text": _qwen_moe,
    "mixtral": _mixtral,
    "glm4_moe": _glm4_moe,
    "minimax_m2": _minimax_m2,
    "gpt_oss": _gpt_oss,
    "gemma3_text": _gemma3,
    "gemma4_text": _gemma4,
    "llama4_text": _llama4,
    "mimo_v2_flash": _mimo_v2,
    "step3p7": _step,
    "ernie4_5_moe": _ernie_moe,
}
