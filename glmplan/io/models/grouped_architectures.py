"""Read architectures with grouped-query attention in every layer.

Some layers have windows. Llama, Qwen, Mixtral, GLM-4.5, MiniMax, ERNIE; with windows gpt-oss, Gemma 3 and 4, Llama 4,
MiMo-V2, Step, Muse, Inkling. The meaning of fields is that of `configuration_*.py` and `modeling_*.py` of Hugging Face
transformers.
"""

from __future__ import annotations

from collections.abc import Callable

from glmplan.catalog.schema.model import DenseFfn, ExpertsFfn, GroupedQuery, Indexer, LayerKind
from glmplan.errors import SpecError
from glmplan.io.models.config_fields import (
    FULL_OR_SLIDING,
    ConfigFields,
    LayerStack,
    experts_block,
    grouped_query,
    layer_windows,
    mtp_spec,
    per_layer_embedding,
    sparse_layers,
)

__all__ = ["GROUPED_READERS", "WINDOWED_READERS"]


def _dense(family: str, *, qk_norm: bool = False, bias: bool | None = None) -> Callable[[ConfigFields], LayerStack]:
    def read(fields: ConfigFields) -> LayerStack:
        count = fields.whole("num_hidden_layers")
        ffn = DenseFfn(inner=fields.whole("intermediate_size"), bias=fields.flag("mlp_bias"))
        sliding = fields.optional("sliding_window") if fields.flag("use_sliding_window", family == "mistral") else None
        windows: list[int | None] = layer_windows(fields, count) if fields.has("layer_types") else [sliding] * count
        layers = []
        for window in windows:
            mixer = grouped_query(fields, window=window, qk_norm=qk_norm, qkv_bias=bias)
            if family == "llama" and mixer.qkv_bias:
                mixer = mixer.model_copy(update={"out_bias": True})
            layers.append(("sliding" if window else "layer", LayerKind(mixer=mixer, ffn=(ffn,))))
        return LayerStack(family, layers, mtp=mtp_spec(fields, layers[-1][0], own_embedding=False))

    return read


def _mixed(
    sparse: list[bool], mixer: GroupedQuery, dense: DenseFfn | None, experts: ExpertsFfn
) -> list[tuple[str, LayerKind]]:
    kinds = {True: LayerKind(mixer=mixer, ffn=(experts,))}
    if dense is not None:
        kinds[False] = LayerKind(mixer=mixer, ffn=(dense,))
    return [("sparse" if flag else "dense", kinds[flag]) for flag in sparse]


def _mixtral(fields: ConfigFields) -> LayerStack:
    experts = experts_block(fields, experts=("num_local_experts",), inner="intermediate_size")
    mixer = grouped_query(fields, window=fields.optional("sliding_window"))
    return LayerStack("mixtral", _mixed([True] * fields.whole("num_hidden_layers"), mixer, None, experts))


def _glm4_moe(fields: ConfigFields) -> LayerStack:
    inner = fields.whole("moe_intermediate_size")
    shared = fields.whole("n_shared_experts", default=0, minimum=0)
    experts = experts_block(
        fields, experts=("n_routed_experts",), inner="moe_intermediate_size", shared=shared, shared_inner=inner,
        router_bias=True,
    )  # fmt: skip
    mixer = grouped_query(fields, qk_norm=fields.flag("use_qk_norm"))
    sparse = sparse_layers(fields, fields.whole("num_hidden_layers"))
    layers = _mixed(sparse, mixer, DenseFfn(inner=fields.whole("intermediate_size")), experts)
    return LayerStack("glm", layers, mtp=mtp_spec(fields, "sparse", own_embedding=True))


def _minimax_m2(fields: ConfigFields) -> LayerStack:
    experts = experts_block(
        fields, experts=("num_local_experts",), inner="intermediate_size",
        router_bias=fields.flag("use_routing_bias"),
    )  # fmt: skip
    if fields.whole("shared_intermediate_size", default=0, minimum=0):
        raise SpecError(
            "is not 0; a MiniMax-M2 has no shared expert", file=fields.file, field="shared_intermediate_size"
        )
    wide = fields.raw("qk_norm_type", "per_layer") == "per_layer"
    mixer = grouped_query(fields).model_copy(update={"qk_norm": fields.flag("use_qk_norm"), "qk_norm_wide": wide})
    if any(kind != 1 for kind in fields.wholes("attn_type_list")):
        raise SpecError("is not 1 in every layer; other attention of a MiniMax-M2 is not known", file=fields.file,
                        field=fields.prefix + "attn_type_list")  # fmt: skip
    notes = []
    if fields.optional("num_mtp_modules"):
        notes.append("the config names MTP modules, but the checkpoint ships no MTP weights: they are not counted")
    return LayerStack("minimax", _mixed([True] * fields.whole("num_hidden_layers"), mixer, None, experts), notes=notes)


def _minimax_m3(fields: ConfigFields) -> LayerStack:
    """Return grouped-query attention whose indexer selects blocks of keys.

    Source: arXiv 2606.13392, llama.cpp pull request 24908.
    """
    count = fields.whole("num_hidden_layers")
    shared = fields.whole("n_shared_experts", default=0, minimum=0)
    experts = experts_block(
        fields, experts=("num_local_experts",), inner="intermediate_size",
        shared=shared, shared_inner=fields.whole("shared_intermediate_size", default=0, minimum=0),
        router_bias=fields.flag("use_routing_bias"),
    )  # fmt: skip
    if fields.whole("moe_intermediate_size", default=experts.inner) != experts.inner:
        raise SpecError(
            f"disagrees with intermediate_size {experts.inner}", file=fields.file, field="moe_intermediate_size"
        )
    dense = DenseFfn(inner=fields.whole("dense_intermediate_size"))
    full = grouped_query(fields, qk_norm=fields.flag("use_qk_norm"), qkv_bias=False)
    part = fields.part("sparse_attention_config")
    index = Indexer(
        heads=part.whole("sparse_num_index_heads"),
        head_dim=part.whole("sparse_index_dim"),
        topk=part.whole("sparse_topk_blocks") * part.whole("sparse_block_size"),
    )
    chosen = part.listing("sparse_attention_freq", count)
    moe = fields.listing("moe_layer_freq", count) if fields.has("moe_layer_freq") else chosen
    layers = []
    for indexed, sparse in zip(chosen, moe, strict=True):
        mixer = full.model_copy(update={"indexer": index}) if indexed else full
        name = f"{'indexed' if indexed else 'full'}_{'sparse' if sparse else 'dense'}"
        layers.append((name, LayerKind(mixer=mixer, ffn=(experts if sparse else dense,))))
    fields.raw("num_mtp_modules")  # named here or as num_nextn_predict_layers, or both
    fields.raw("num_nextn_predict_layers")
    note = "the released weights hold no MTP layers (llama.cpp pull request 24908); none are counted"
    return LayerStack("minimax", layers, notes=[note])


def _ernie_moe(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    inner = fields.whole("moe_intermediate_size")
    experts = experts_block(
        fields, experts=("moe_num_experts",), inner="moe_intermediate_size", topk=("moe_k",), router_bias=True,
        shared=fields.whole("moe_num_shared_experts", default=0, minimum=0), shared_inner=inner,
    )  # fmt: skip
    first = fields.whole("moe_layer_start_index", minimum=0)
    last = fields.whole("moe_layer_end_index", default=count - 1)
    every = fields.whole("moe_layer_interval", default=1)
    sparse = [first <= layer <= last and (layer + 1) % every == 0 for layer in range(count)]
    mixer = grouped_query(fields, qkv_bias=fields.flag("use_bias"))
    layers = _mixed(sparse, mixer, DenseFfn(inner=fields.whole("intermediate_size")), experts)
    return LayerStack("ernie", layers)


#: model_type → reader
GROUPED_READERS: dict[str, Callable[[ConfigFields], LayerStack]] = {
    "llama": _dense("llama"),
    "mistral": _dense("mistral", bias=False),
    "ministral3": _dense("ministral", bias=False),
    "mimo": _dense("mimo"),
    "qwen2": _dense("qwen", bias=True),
    "qwen2_5_omni_text": _dense("qwen", bias=True),
    "qwen2_5_vl": _dense("qwen", bias=True),
    "qwen2_5_vl_text": _dense("qwen", bias=True),
    "qwen2_vl": _dense("qwen", bias=True),
    "qwen2_vl_text": _dense("qwen", bias=True),
    "qwen3": _dense("qwen", qk_norm=True),
    "qwen3_vl_text": _dense("qwen", qk_norm=True),
    "mixtral": _mixtral,
    "glm4_moe": _glm4_moe,
    "glm4v_moe_text": _glm4_moe,
    "minimax_m2": _minimax_m2,
    "minimax_m3": _minimax_m3,
    "minimax_m3_vl": _minimax_m3,
    "ernie4_5_moe": _ernie_moe,
}


def _gpt_oss(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    experts = experts_block(
        fields, experts=("num_local_experts", "num_experts"), inner="intermediate_size", router_bias=True, bias=True
    )
    layers = []
    for window in layer_windows(fields, count):
        mixer = grouped_query(fields, window=window).model_copy(update={"out_bias": True, "sinks": True})
        layers.append(("sliding" if window else "full", LayerKind(mixer=mixer, ffn=(experts,))))
    return LayerStack("gpt-oss", layers)


def _gemma3(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    window = fields.whole("sliding_window")
    if fields.has("layer_types"):
        windows: list[int | None] = layer_windows(fields, count)
    else:
        every = fields.whole("sliding_window_pattern", default=6)
        windows = [None if (layer + 1) % every == 0 else window for layer in range(count)]
    ffn = DenseFfn(inner=fields.whole("intermediate_size"))
    layers = []
    for width in windows:
        mixer = grouped_query(fields, window=width, qk_norm=True)
        layers.append(("sliding" if width else "full", LayerKind(mixer=mixer, ffn=(ffn,), norms=4)))
    return LayerStack("gemma", layers)


def _gemma4(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    shared = fields.whole("num_kv_shared_layers", default=0, minimum=0)
    embedded, extra = per_layer_embedding(fields, count)
    inner, wider = fields.whole("intermediate_size"), 2 if fields.flag("use_double_wide_mlp") else 1
    added: tuple[DenseFfn | ExpertsFfn, ...] = (embedded,) if embedded else ()
    norms = 4 + len(added)
    if fields.flag("enable_moe_block"):
        added += (
            experts_block(fields, experts=("num_experts",), inner="moe_intermediate_size", topk=("top_k_experts",)),
        )  # fmt: skip
        norms += 4  # three more around the experts, and the scale of the router
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
    for layer, kind in enumerate(fields.listing("layer_types", count, FULL_OR_SLIDING)):
        mixer = full if kind == "full_attention" else sliding
        name = "full" if kind == "full_attention" else "sliding"
        width = inner
        if layer >= count - shared:
            mixer, name, width = mixer.model_copy(update={"shared_kv": True}), f"{name}_shared", inner * wider
        layers.append((name, LayerKind(mixer=mixer, ffn=(DenseFfn(inner=width), *added), norms=norms)))
    return LayerStack("gemma", layers, extra_parameters=extra)


def _llama4(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    step = fields.whole("interleave_moe_layer_step")
    inner = fields.whole("intermediate_size")
    experts = experts_block(
        fields, experts=("num_local_experts",), inner="intermediate_size", shared=1, shared_inner=inner
    )
    dense = DenseFfn(inner=fields.whole("intermediate_size_mlp"))
    chunk = fields.optional("attention_chunk_size")
    stated = fields.wholes("no_rope_layers") and fields.listing("no_rope_layers", count)
    rotary = stated or [(layer + 1) % 4 for layer in range(count)]
    layers = []
    for layer in range(count):
        sparse = (layer + 1) % step == 0
        local = chunk is not None and bool(rotary[layer])
        mixer = grouped_query(fields, window=chunk if local else None)
        name = f"{'chunked' if local else 'full'}_{'sparse' if sparse else 'dense'}"
        layers.append((name, LayerKind(mixer=mixer, ffn=(experts if sparse else dense,))))
    note = f"layers with rotary positions attend in chunks of {chunk} tokens; counted as a window of that length"
    return LayerStack("llama", layers, notes=[note] if chunk else [])


def _mimo_v2(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    experts = experts_block(fields, experts=("n_routed_experts",), inner="moe_intermediate_size", router_bias=True)
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
        rotary_dim=full.rotary_dim,
        window=fields.whole("sliding_window"),
        sinks=fields.flag("add_swa_attention_sink_bias"),
    )
    layers = []
    for swa, sparse in zip(fields.listing("hybrid_layer_pattern", count), sparse_layers(fields, count), strict=True):
        name = f"{'sliding' if swa else 'full'}_{'sparse' if sparse else 'dense'}"
        kind = LayerKind(mixer=sliding if swa else full, ffn=(experts if sparse else dense,))
        layers.append((name, kind))
    return LayerStack("mimo", layers, notes=["the config states no MTP layers; none are counted"])


def _step_attention(fields: ConfigFields, count: int) -> tuple[GroupedQuery, GroupedQuery, list[str]]:
    """Return the attention of full and of window layers.

    The config may give window layers heads of their own.
    """
    head_gated = fields.flag("use_head_wise_attn_gate")
    full = grouped_query(fields, qk_norm=True).model_copy(update={"head_gated": head_gated})
    sliding = full.model_copy(update={"window": fields.whole("sliding_window")})
    notes = []
    if fields.has("attention_other_setting"):
        other = fields.part("attention_other_setting")
        other.raw("attention_type")
        other.optional("true_head_dim")
        sliding = sliding.model_copy(
            update={
                "heads": other.whole("num_attention_heads"),
                "kv_heads": other.whole("num_attention_groups"),
                "head_dim": other.whole("head_dim"),
            }
        )
    else:
        notes.append("the config states no heads of windowed layers: those of full ones are counted")
    if fields.has("partial_rotary_factors"):
        kinds, shares = fields.listing("layer_types", count), fields.listing("partial_rotary_factors", count)
        turned = dict(zip(kinds, shares, strict=True))
        full, sliding = (
            one.model_copy(update={"rotary_dim": _turned(fields, one.head_dim, turned.get(kind, 1.0))})
            for one, kind in ((full, "full_attention"), (sliding, "sliding_attention"))
        )
    return full, sliding, notes


def _turned(fields: ConfigFields, width: int, share: object) -> int | None:
    """Return the values of a head that rotary positions rotate, or None.

    None: the full head.
    """
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise SpecError("is not a share of 0 to 1", file=fields.file, field=fields.prefix + "partial_rotary_factors",
                        value=str(share))  # fmt: skip
    return None if share == 1 else int(width * share)


def _step_sparse(fields: ConfigFields, count: int) -> list[bool]:
    """Return the layers with experts.

    The field is a list or text of numbers, or counts the dense first layers.
    """
    named = fields.raw("moe_layers_enum")
    if named is None:
        return sparse_layers(fields, count)
    words = named.split(",") if isinstance(named, str) else named
    try:
        result = {int(word) for word in words if str(word).strip()}
    except (TypeError, ValueError):
        raise SpecError("is not a list of layers", file=fields.file, field=fields.prefix + "moe_layers_enum") from None
    return [layer in result for layer in range(count)]


def _step(fields: ConfigFields) -> LayerStack:
    """Return Step-3.5 or 3.7: dense draft layers follow in `layer_types`.

    Each draft layer has its own head.
    """
    count = fields.whole("num_hidden_layers")
    inner = fields.whole("share_expert_dim")
    experts = experts_block(
        fields, experts=("num_experts", "moe_num_experts"), inner="moe_intermediate_size",
        topk=("num_experts_per_tok", "moe_top_k"),
        shared=fields.whole("n_shared_experts", default=1, minimum=0), shared_inner=inner,
        router_bias=fields.flag("use_moe_router_bias"),
    )  # fmt: skip
    dense = DenseFfn(inner=fields.whole("intermediate_size"))
    full, sliding, notes = _step_attention(fields, count)

    def named(window: int | None, sparse: bool) -> tuple[str, LayerKind]:
        name = f"{'sliding' if window else 'full'}_{'sparse' if sparse else 'dense'}"
        return name, LayerKind(mixer=sliding if window else full, ffn=(experts if sparse else dense,))

    drafting = fields.optional("num_nextn_predict_layers") or 0
    stated = fields.raw("layer_types", [])
    windows = layer_windows(fields, count + drafting if len(stated) >= count + drafting else count)
    layers = [named(window, sparse) for window, sparse in zip(windows, _step_sparse(fields, count), strict=False)]
    name, kind = named(windows[count] if len(windows) > count else full.window, False)
    mtp = mtp_spec(fields, name, own_embedding=False)
    return LayerStack(
        "step",
        layers,
        mtp=mtp.model_copy(update={"own_head": True}) if mtp else None,
        extra={name: kind} if mtp else {},
        notes=notes,
    )


def _gated_windows(fields: ConfigFields, count: int) -> list[tuple[str, GroupedQuery]]:
    """Return the attention of Muse models.

    Gated, with plain norms; windows beside full layers without positions.
    """
    turned = fields.listing("layer_rope_theta", count) if fields.has("layer_rope_theta") else [1] * count
    result = []
    for window, theta in zip(layer_windows(fields, count), turned, strict=True):
        more: dict[str, object] = {"gated": True} | ({} if theta else {"rotary_dim": 0})
        mixer = grouped_query(fields, window=window).model_copy(update=more)
        result.append(("sliding" if window else "full", mixer))
    return result


def _muse_glimmer(fields: ConfigFields) -> LayerStack:
    ffn = DenseFfn(inner=fields.whole("intermediate_size"))
    mixers = _gated_windows(fields, fields.whole("num_hidden_layers"))
    return LayerStack("muse", [(name, LayerKind(mixer=mixer, ffn=(ffn,), norms=4)) for name, mixer in mixers])


def _muse_spark(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    fields.listing("mlp_layer_types", count, ("sparse",))
    experts = experts_block(fields, experts=("num_local_experts",), inner="moe_intermediate_size", router_bias=True)
    experts = experts.model_copy(update={"latent": fields.whole("moe_hidden_size")})
    layers = [
        (name, LayerKind(mixer=mixer, ffn=(experts,), norms=4, gates=2))
        for name, mixer in _gated_windows(fields, count)
    ]
    return LayerStack("muse", layers)


def _inkling(fields: ConfigFields) -> LayerStack:
    count, sparse_from = fields.whole("num_hidden_layers"), fields.whole("dense_mlp_idx", minimum=0)
    local = set(fields.wholes("local_layer_ids"))
    convolution = fields.whole("sconv_kernel_size", "conv_kernel_size")
    # the routed width is in `intermediate_size` where the dense one has a name of its own
    dense = DenseFfn(inner=fields.whole("dense_intermediate_size"))
    inner, shared = fields.whole("intermediate_size"), fields.whole("n_shared_experts")
    experts = experts_block(fields, experts=("n_routed_experts",), inner="intermediate_size", shared=shared,
                            shared_inner=inner, router_bias=True)  # fmt: skip
    experts = experts.model_copy(update={"routed_shared": True})
    fields.whole("moe_intermediate_size", default=inner)
    relative = {"relative": fields.whole("d_rel"), "convolution": convolution, "qk_norm": True, "rotary_dim": 0}
    window = fields.whole("sliding_window_size")
    full = grouped_query(fields).model_copy(update=relative | {"relative_extent": fields.whole("rel_extent")})
    sliding = GroupedQuery(
        heads=fields.whole("swa_num_attention_heads"), kv_heads=fields.whole("swa_num_key_value_heads"),
        head_dim=fields.whole("swa_head_dim"), window=window, **relative, relative_extent=window,
    )  # fmt: skip
    layers = []
    for layer in range(count):
        name = f"{'sliding' if layer in local else 'full'}_{'dense' if layer < sparse_from else 'sparse'}"
        ffn = dense if layer < sparse_from else experts
        mixer = sliding if layer in local else full
        layers.append((name, LayerKind(mixer=mixer, ffn=(ffn,), convolution=convolution)))
    return LayerStack("inkling", layers)


#: model_type → reader
WINDOWED_READERS: dict[str, Callable[[ConfigFields], LayerStack]] = {
    "gpt_oss": _gpt_oss,
    "gemma3_text": _gemma3,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "llama4_text": _llama4,
    "inkling_text": _inkling,
    "mimo_v2": _mimo_v2,
    "mimo_v2_flash": _mimo_v2,
    "muse_glimmer_text": _muse_glimmer,
    "muse_spark_text": _muse_spark,
    "step3p5": _step,
    "step3p7": _step,
}
