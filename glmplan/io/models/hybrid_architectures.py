"""Read architectures that mix recurrent layers with attention.

Their layers may differ one by one: Qwen3.5, Nemotron.
"""

from __future__ import annotations

from collections.abc import Callable

from glmplan.catalog.schema.model import DenseFfn, ExpertsFfn, LayerKind, MtpSpec, Recurrent
from glmplan.errors import SpecError, UnknownArchitecture
from glmplan.io.models.config_fields import ConfigFields, LayerStack, gated_delta, grouped_query, sparse_layers

__all__ = ["HYBRID_READERS"]


def _qwen_next(family: str, *, sparse: bool, gated: bool, wide: bool = False) -> Callable[[ConfigFields], LayerStack]:
    def read(fields: ConfigFields) -> LayerStack:
        count = fields.whole("num_hidden_layers")
        mixer = gated_delta(fields)
        out_gate = fields.flag("attn_output_gate", gated)
        attention = grouped_query(fields, qk_norm=True).model_copy(update={"gated": out_gate, "qk_norm_wide": wide})
        experts = None
        if sparse:
            experts = ExpertsFfn(
                experts=fields.whole("num_experts"),
                topk=fields.whole("num_experts_per_tok"),
                inner=fields.whole("moe_intermediate_size"),
                shared=1,
                shared_inner=fields.whole("shared_expert_intermediate_size"),
                shared_gate=True,
                balanced_by="batch-loss",
            )
        flags = sparse_layers(fields, count) if sparse else [False] * count
        dense = None if all(flags) else DenseFfn(inner=fields.whole("intermediate_size"))
        if fields.has("layer_types"):
            kinds = fields.listing("layer_types", count, ("linear_attention", "full_attention"))
        else:
            every = fields.whole("full_attention_interval")
            kinds = ["full_attention" if (layer + 1) % every == 0 else "linear_attention" for layer in range(count)]
        layers = []
        for kind, flag in zip(kinds, flags, strict=True):
            full = kind == "full_attention"
            ffn = experts if flag else dense
            name = "full" if full else "linear"
            name += "_dense" if sparse and not flag else ""
            layers.append((name, LayerKind(mixer=attention if full else mixer, ffn=(ffn,) if ffn else ())))
        mtp = fields.optional("mtp_num_hidden_layers")
        own = fields.flag("mtp_use_dedicated_embeddings")
        return LayerStack(family, layers, mtp=MtpSpec(layers=mtp, layer="full", own_embedding=own) if mtp else None)

    return read


_LETTERS = {"M": "mamba", "E": "moe", "*": "attention", "-": "mlp"}


def _nemotron_blocks(fields: ConfigFields) -> list[str]:
    kinds = tuple(_LETTERS.values())
    if fields.has("layers_block_type"):
        listed = fields.raw("layers_block_type")
        count = fields.whole("num_hidden_layers", default=len(listed) if isinstance(listed, list) else 1)
        return [str(kind) for kind in fields.listing("layers_block_type", count, kinds)]
    pattern = fields.raw("hybrid_override_pattern")
    count = fields.whole("num_hidden_layers")
    if not isinstance(pattern, str) or len(pattern) != count or set(pattern) - set(_LETTERS):
        raise SpecError(
            f"is not one of M, E, * and - for each of the {count} layers",
            file=fields.file,
            field="hybrid_override_pattern",
            value=pattern,
        )
    return [_LETTERS[letter] for letter in pattern]


def _nemotron_h(fields: ConfigFields) -> LayerStack:
    blocks = _nemotron_blocks(fields)
    kinds: dict[str, LayerKind] = {}
    if "mamba" in blocks:
        heads = fields.whole("mamba_num_heads")
        mixer = Recurrent(
            flavour="mamba2",
            key_heads=fields.whole("n_groups"),
            key_dim=fields.whole("ssm_state_size"),
            value_heads=heads,
            value_dim=fields.whole("mamba_head_dim"),
            conv_kernel=fields.whole("conv_kernel"),
        )
        kinds["mamba"] = LayerKind(mixer=mixer, norms=1)
    if "attention" in blocks:
        # these attend without positions (transformers, modeling_nemotron_h.py)
        kinds["attention"] = LayerKind(mixer=grouped_query(fields).model_copy(update={"rotary_dim": 0}), norms=1)
    if "mlp" in blocks:
        kinds["mlp"] = LayerKind(ffn=(DenseFfn(inner=fields.whole("intermediate_size"), gated=False),), norms=1)
    if "moe" in blocks:
        experts = ExpertsFfn(
            experts=fields.whole("n_routed_experts"),
            topk=fields.whole("num_experts_per_tok"),
            inner=fields.whole("moe_intermediate_size"),
            shared=fields.whole("n_shared_experts", default=0, minimum=0),
            shared_inner=fields.whole("moe_shared_expert_intermediate_size", default=0, minimum=0),
            gated=False,
            router_bias=True,
            balanced_by="bias",
            latent=fields.optional("moe_latent_size"),
        )
        kinds["moe"] = LayerKind(ffn=(experts,), norms=1)
    extra = {}
    mtp = None
    count = fields.optional("num_nextn_predict_layers")
    pattern = fields.raw("mtp_layers_block_type") or fields.raw("mtp_hybrid_override_pattern")
    if count and pattern in (["attention", "moe"], "*E") and {"attention", "moe"} <= set(kinds):
        extra["mtp"] = LayerKind(mixer=kinds["attention"].mixer, ffn=kinds["moe"].ffn, norms=2)
        mtp = MtpSpec(layers=count, layer="mtp")
    elif count:
        raise UnknownArchitecture(
            "is not the attention and experts that glmplan knows of an MTP layer",
            file=fields.file,
            field="mtp_hybrid_override_pattern",
            value=str(pattern),
        )
    return LayerStack("nemotron", [(kind, kinds[kind]) for kind in blocks], extra=extra, mtp=mtp)


def _nemotron_nas(fields: ConfigFields) -> LayerStack:
    """Return layers that a search thinned out one by one (`block_configs`).

    Some have no attention, or narrower blocks.
    """
    count = fields.whole("num_hidden_layers")
    hidden = fields.whole("hidden_size")
    heads = fields.whole("num_attention_heads")
    names: dict[LayerKind, str] = {}
    layers = []
    for layer, block in enumerate(fields.listing("block_configs", count)):
        inner = ConfigFields(block, fields.file, f"block_configs.{layer}.") if isinstance(block, dict) else None
        if inner is None:
            raise SpecError("is not an object", file=fields.file, field=f"block_configs.{layer}")
        attention, ffn = inner.part("attention"), inner.part("ffn")
        for part in (attention, ffn):
            if part.flag("replace_with_linear") or part.raw("num_sink_tokens") or part.raw("sparsify"):
                raise UnknownArchitecture(
                    "replaces a block by something glmplan does not model", file=fields.file, field=part.prefix
                )
        mixer = None
        if not attention.flag("no_op"):
            kv_heads = heads // attention.whole("n_heads_in_group")
            mixer = grouped_query(
                ConfigFields({**fields.content, "num_key_value_heads": kv_heads}, fields.file),
                window=attention.optional("window_length"),
            )
        feed: tuple[DenseFfn, ...] = ()
        if not ffn.flag("no_op"):
            stated = ffn.optional("intermediate_size")
            factor = ffn.raw("ffn_mult", 1.0 if stated else None)
            if not isinstance(factor, int | float) or not 0 < factor < 100:
                raise SpecError(
                    "is not a factor between 0 and 100", file=fields.file, field=ffn.prefix + "ffn_mult", value=factor
                )
            # the width is two thirds of the factor times the hidden size, rounded up to a multiple of 256
            width = stated or -(-int(2 * factor * hidden / 3) // 256) * 256
            feed = (DenseFfn(inner=width),)
        kind = LayerKind(mixer=mixer, ffn=feed, norms=(mixer is not None) + bool(feed))
        name = names.setdefault(kind, f"kind_{len(names)}")
        layers.append((name, kind))
    return LayerStack("nemotron", layers)


#: model_type → reader
HYBRID_READERS: dict[str, Callable[[ConfigFields], LayerStack]] = {
    # norms of queries and keys over all heads together
    "olmo_hybrid": _qwen_next("olmo", sparse=False, gated=False, wide=True),
    "qwen3_next": _qwen_next("qwen", sparse=True, gated=True),
    "qwen3_5_text": _qwen_next("qwen", sparse=False, gated=True),
    "qwen3_5_moe_text": _qwen_next("qwen", sparse=True, gated=True),
    "nemotron_h": _nemotron_h,
    "nemotron-nas": _nemotron_nas,
}
