"""Architectures with latent attention: DeepSeek V2/V3/V3.2, Kimi K2, GLM-4.7-Flash, GLM-5, and Kimi Linear."""

from __future__ import annotations

from collections.abc import Callable

from glmplan.errors import SpecError
from glmplan.facts.schema.model import DenseFfn, ExpertsFfn, Indexer, LatentAttention, LayerKind, MtpSpec, Recurrent
from glmplan.readers.models.anatomy import Anatomy
from glmplan.readers.models.config_blocks import sparse_layers
from glmplan.readers.models.config_fields import ConfigFields

__all__ = ["LATENT_READERS", "latent_attention", "routed_experts"]


def latent_attention(
    fields: ConfigFields, indexer: Indexer | None = None, *, out_gate: bool = False
) -> LatentAttention:
    """Read latent attention from the fields that all such configs spell alike.

    Parameters
    ----------
    fields : ConfigFields
        The config.
    indexer : Indexer, optional
        What chooses the keys.
    out_gate : bool, optional
        Whether a gate as wide as the output stands behind it.

    Returns
    -------
    LatentAttention
        The attention of a layer; `qk_rope_head_dim` 0 is attention without positions.

    Raises
    ------
    SpecError
        If a field is missing or wrong.
    """
    return LatentAttention(
        heads=fields.whole("num_attention_heads"),
        q_rank=fields.optional("q_lora_rank"),
        kv_rank=fields.whole("kv_lora_rank"),
        nope_dim=fields.whole("qk_nope_head_dim"),
        rope_dim=fields.whole("qk_rope_head_dim", minimum=0),
        v_dim=fields.whole("v_head_dim"),
        indexer=indexer,
        out_gate=out_gate,
    )


def routed_experts(fields: ConfigFields, *, latent: int | None = None) -> ExpertsFfn:
    """Read the experts from the fields that DeepSeek-V3 and its heirs spell alike.

    Parameters
    ----------
    fields : ConfigFields
        The config.
    latent : int, optional
        Width the experts work in where it is not the hidden size, [-]

    Returns
    -------
    ExpertsFfn
        The mixture.

    Raises
    ------
    SpecError
        If a field is missing or wrong.
    """
    count = fields.whole("n_routed_experts", "num_experts")
    if fields.whole("num_experts", default=count) != count:
        raise SpecError(f"disagrees with n_routed_experts {count}", file=fields.file, field="num_experts")
    topk = fields.whole("num_experts_per_tok", "num_experts_per_token")
    if topk > count:
        raise SpecError(
            f"is larger than the {count} routed experts", file=fields.file, field="num_experts_per_tok", value=topk
        )
    inner = fields.whole("moe_intermediate_size")
    bias = fields.raw("topk_method", "noaux_tc") == "noaux_tc"
    return ExpertsFfn(
        experts=count,
        topk=topk,
        inner=inner,
        shared=fields.whole("n_shared_experts", "num_shared_experts", default=0, minimum=0),
        shared_inner=inner,
        router_bias=bias,
        balanced_by="bias" if bias else None,
        latent=latent,
    )


def _deepseek(family: str, *, own_embedding: bool, sparse_attention: bool = False) -> Callable[[ConfigFields], Anatomy]:
    def read(fields: ConfigFields) -> Anatomy:
        count = fields.whole("num_hidden_layers")
        dense = DenseFfn(inner=fields.whole("intermediate_size"))
        experts = routed_experts(fields)
        indexers: list[Indexer | None] = [None] * count
        if sparse_attention:
            full = Indexer(
                heads=fields.whole("index_n_heads"),
                head_dim=fields.whole("index_head_dim"),
                topk=fields.whole("index_topk"),
            )
            shared = full.model_copy(update={"reads_from_previous": True})
            kinds = ["full"] * count
            if fields.has("indexer_types"):
                kinds = fields.listing("indexer_types", count, ("full", "shared"))
                fields.raw("index_topk_freq")  # the same, as a period
            if kinds[0] == "shared":
                raise SpecError("cannot be shared in the first layer", file=fields.file, field="indexer_types")
            if fields.has("layer_types"):
                fields.listing("layer_types", count, ("deepseek_sparse_attention",))
            indexers = [shared if kind == "shared" else full for kind in kinds]
        layers = []
        for sparse, indexer in zip(sparse_layers(fields, count), indexers, strict=True):
            name = "sparse" if sparse else "dense"
            name += "_shared_index" if indexer is not None and indexer.reads_from_previous else ""
            kind = LayerKind(mixer=latent_attention(fields, indexer), ffn=(experts if sparse else dense,))
            layers.append((name, kind))
        mtp = None
        found = fields.optional("num_nextn_predict_layers")
        if found:
            # the MTP layer has an indexer of its own: GLM-5.2-FP8 lists 22, for 21 full layers and one MTP layer
            mtp = MtpSpec(layers=found, layer="sparse", own_embedding=own_embedding)
        return Anatomy(family, layers, mtp=mtp)

    return read


def _kimi_linear(fields: ConfigFields) -> Anatomy:
    count = fields.whole("num_hidden_layers")
    linear = fields.part("linear_attn_config")
    full = set(linear.wholes("full_attn_layers"))
    delta = set(linear.wholes("kda_layers"))
    if full & delta or full | delta != set(range(1, count + 1)):
        raise SpecError(
            f"full_attn_layers and kda_layers do not name each of the {count} layers once",
            file=fields.file,
            field=linear.prefix.rstrip("."),
        )
    head_dim = linear.whole("head_dim")
    heads = linear.whole("num_heads")
    mixer = Recurrent(
        flavour="kimi_delta", key_heads=heads, key_dim=head_dim, value_heads=heads, value_dim=head_dim,
        conv_kernel=linear.whole("short_conv_kernel_size"), full_gate=linear.flag("use_full_rank_gate"),
    )  # fmt: skip
    attention = latent_attention(fields, out_gate=fields.flag("mla_use_output_gate"))
    experts = routed_experts(fields, latent=fields.optional("routed_expert_hidden_size"))
    dense = DenseFfn(inner=fields.whole("intermediate_size"))
    layers = []
    for layer, sparse in enumerate(sparse_layers(fields, count)):
        is_full = layer + 1 in full
        name = f"{'full' if is_full else 'linear'}_{'sparse' if sparse else 'dense'}"
        kind = LayerKind(mixer=attention if is_full else mixer, ffn=(experts if sparse else dense,))
        layers.append((name, kind))
    notes = []
    if fields.optional("attn_res_block_size"):
        notes.append("attention residuals (attn_res_block_size) add a few vectors a layer that are not counted")
    return Anatomy("kimi", layers, notes=notes)


#: model_type → reader
LATENT_READERS: dict[str, Callable[[ConfigFields], Anatomy]] = {
    "deepseek_v2": _deepseek("deepseek", own_embedding=False),
    "deepseek_v3": _deepseek("deepseek", own_embedding=True),
    "deepseek_v32": _deepseek("deepseek", own_embedding=True, sparse_attention=True),
    "kimi_k2": _deepseek("kimi", own_embedding=True),
    "glm4_moe_lite": _deepseek("glm", own_embedding=False),
    "glm_moe_dsa": _deepseek("glm", own_embedding=False, sparse_attention=True),
    "kimi_linear": _kimi_linear,
}
