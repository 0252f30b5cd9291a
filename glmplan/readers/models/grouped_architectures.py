"""Architectures with grouped-query attention in every layer: Llama, Qwen, Mixtral, GLM-4.5, MiniMax, ERNIE.

Which fields mean what is read from the `configuration_*.py` and `modeling_*.py` files of Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Callable

from glmplan.errors import SpecError
from glmplan.facts.schema.model import DenseFfn, ExpertsFfn, GroupedQuery, Indexer, LayerKind
from glmplan.readers.models.anatomy import Anatomy
from glmplan.readers.models.config_blocks import (
    experts_block,
    grouped_query,
    layer_windows,
    mtp_spec,
    sparse_layers,
)
from glmplan.readers.models.config_fields import ConfigFields

__all__ = ["GROUPED_READERS"]


def _dense(family: str, *, qk_norm: bool = False, bias: bool | None = None) -> Callable[[ConfigFields], Anatomy]:
    def read(fields: ConfigFields) -> Anatomy:
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
        return Anatomy(family, layers, mtp=mtp_spec(fields, layers[-1][0], own_embedding=False))

    return read


def _mixed(
    sparse: list[bool], mixer: GroupedQuery, dense: DenseFfn | None, experts: ExpertsFfn
) -> list[tuple[str, LayerKind]]:
    kinds = {True: LayerKind(mixer=mixer, ffn=(experts,))}
    if dense is not None:
        kinds[False] = LayerKind(mixer=mixer, ffn=(dense,))
    return [("sparse" if flag else "dense", kinds[flag]) for flag in sparse]


def _qwen_moe(fields: ConfigFields) -> Anatomy:
    experts = experts_block(fields, experts=("num_experts",), inner="moe_intermediate_size", batch_loss=True)
    sparse = sparse_layers(fields, fields.whole("num_hidden_layers"))
    dense = None if all(sparse) else DenseFfn(inner=fields.whole("intermediate_size"))
    return Anatomy("qwen", _mixed(sparse, grouped_query(fields, qk_norm=True), dense, experts))


def _mixtral(fields: ConfigFields) -> Anatomy:
    experts = experts_block(fields, experts=("num_local_experts",), inner="intermediate_size")
    mixer = grouped_query(fields, window=fields.optional("sliding_window"))
    return Anatomy("mixtral", _mixed([True] * fields.whole("num_hidden_layers"), mixer, None, experts))


def _glm4_moe(fields: ConfigFields) -> Anatomy:
    inner = fields.whole("moe_intermediate_size")
    shared = fields.whole("n_shared_experts", default=0, minimum=0)
    experts = experts_block(
        fields, experts=("n_routed_experts",), inner="moe_intermediate_size", shared=shared, shared_inner=inner,
        router_bias=True,
    )  # fmt: skip
    mixer = grouped_query(fields, qk_norm=fields.flag("use_qk_norm"))
    sparse = sparse_layers(fields, fields.whole("num_hidden_layers"))
    layers = _mixed(sparse, mixer, DenseFfn(inner=fields.whole("intermediate_size")), experts)
    return Anatomy("glm", layers, mtp=mtp_spec(fields, "sparse", own_embedding=True))


def _hy_v3(fields: ConfigFields) -> Anatomy:
    inner = fields.whole("moe_intermediate_size")
    experts = experts_block(
        fields, experts=("num_experts",), inner="moe_intermediate_size", router_bias=True, shared_inner=inner,
        shared=fields.whole("num_shared_experts", default=0, minimum=0),
    )  # fmt: skip
    sparse = sparse_layers(fields, fields.whole("num_hidden_layers"))
    mixer = grouped_query(fields, qk_norm=True)
    layers = _mixed(sparse, mixer, DenseFfn(inner=fields.whole("intermediate_size")), experts)
    return Anatomy("hunyuan", layers, mtp=mtp_spec(fields, "sparse", own_embedding=False))


def _minimax_m2(fields: ConfigFields) -> Anatomy:
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
    return Anatomy("minimax", _mixed([True] * fields.whole("num_hidden_layers"), mixer, None, experts), notes=notes)


def _minimax_m3(fields: ConfigFields) -> Anatomy:
    """Grouped-query attention whose indexer chooses blocks of keys: arXiv 2606.13392, llama.cpp pull request 24908."""
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
    return Anatomy("minimax", layers, notes=[note])


def _ernie_moe(fields: ConfigFields) -> Anatomy:
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
    "hy_v3": _hy_v3,
    "minimax_m2": _minimax_m2,
    "minimax_m3": _minimax_m3,
    "minimax_m3_vl": _minimax_m3,
    "ernie4_5_moe": _ernie_moe,
}
