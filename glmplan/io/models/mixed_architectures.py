"""Read architectures whose layers mix several token mixers or blocks.

Shapes: `modeling_*.py` of Hugging Face transformers 5.24.0; MiniMax-Text-01: `modeling_minimax_text_01.py` beside its
weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from glmplan.catalog.schema.model import DenseFfn, ExpertsFfn, Ffn, GroupedQuery, LayerKind, Recurrent
from glmplan.errors import SpecError
from glmplan.io.models.config_fields import (
    FULL_OR_SLIDING,
    ConfigFields,
    LayerStack,
    experts_block,
    grouped_query,
    numbered_layers,
    per_layer_embedding,
)
from glmplan.io.models.latent_architectures import latent_attention

__all__ = ["MIXED_READERS"]

#: names of attention in lists of layers
_ATTENTION = ("attention", "full_attention")


def _mamba2(fields: ConfigFields, *, width: int | None = None, gate_norm: bool = True) -> Recurrent:
    """Return a Mamba-2 layer from fields `mamba_*`; `width` of all heads."""
    heads = fields.whole("mamba_n_heads")
    inner = width or fields.whole("mamba_expand", default=2) * fields.whole("hidden_size")
    if fields.raw("mamba_d_head", "auto") == "auto":
        if inner % heads:
            raise SpecError(f"does not divide the {inner} channels", file=fields.file,
                            field=fields.prefix + "mamba_n_heads", value=heads)  # fmt: skip
        head = inner // heads
    else:
        head = fields.whole("mamba_d_head")
    return Recurrent(
        flavour="mamba2", key_heads=fields.whole("mamba_n_groups", default=1), key_dim=fields.whole("mamba_d_state"),
        value_heads=heads, value_dim=head, conv_kernel=fields.whole("mamba_d_conv", default=4), gate_norm=gate_norm,
    )  # fmt: skip


def _unrotated(mixer: GroupedQuery) -> GroupedQuery:
    return mixer.model_copy(update={"rotary_dim": 0})


def _granite_hybrid(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    name = "layer_types" if fields.has("layer_types") else "layers_block_type"
    kinds = fields.listing(name, count, ("mamba", *_ATTENTION))
    mamba = _mamba2(fields) if "mamba" in kinds else None
    # shapes of recurrent layers stand in the configs of models without any
    fields.read |= {name for name in fields.content if name.startswith("mamba_")} if mamba is None else set()
    attention = grouped_query(fields)
    if fields.raw("position_embedding_type", "nope") != "rope":
        attention = _unrotated(attention)
    shared = fields.whole("shared_intermediate_size")
    block: Ffn = DenseFfn(inner=shared)
    if fields.whole("num_local_experts", default=0, minimum=0):
        block = experts_block(fields, experts=("num_local_experts",), inner="intermediate_size", shared=1,
                              shared_inner=shared, batch_loss=True)  # fmt: skip
    else:
        fields.optional("num_experts_per_tok")
    layers = [LayerKind(mixer=mamba if kind == "mamba" else attention, ffn=(block,)) for kind in kinds]
    names = ["mamba" if kind == "mamba" else "full" for kind in kinds]
    return LayerStack("granite", numbered_layers(layers, names))


def _bamba(fields: ConfigFields) -> LayerStack:
    full = set(fields.wholes("attn_layer_indices"))
    ffn = DenseFfn(inner=fields.whole("intermediate_size"), bias=fields.flag("mlp_bias"))
    kinds = {True: ("full", LayerKind(mixer=grouped_query(fields), ffn=(ffn,))),
             False: ("mamba", LayerKind(mixer=_mamba2(fields), ffn=(ffn,)))}  # fmt: skip
    return LayerStack("bamba", [kinds[layer in full] for layer in range(fields.whole("num_hidden_layers"))])


def _falcon_h1(fields: ConfigFields) -> LayerStack:
    """Return Falcon-H1: attention and Mamba-2 side by side in each layer.

    Each layer is two here, one with the recurrence and one with attention and feed-forward: weights, cache and sums
    over ranks are the same.
    """
    count = fields.whole("num_hidden_layers")
    norm = fields.flag("mamba_rms_norm")
    mamba = LayerKind(mixer=_mamba2(fields, width=fields.optional("mamba_d_ssm"), gate_norm=norm), norms=1)
    ffn = DenseFfn(inner=fields.whole("intermediate_size"), bias=fields.flag("mlp_bias"))
    full = LayerKind(mixer=grouped_query(fields), ffn=(ffn,), norms=1)
    note = f"each of the {count} layers is counted as two: attention and recurrence stand side by side in it"
    return LayerStack("falcon", [("mamba", mamba), ("full", full)] * count, notes=[note])


def _grok_2(fields: ConfigFields) -> LayerStack:
    """Return Grok-2: each layer has a dense block beside its experts.

    SGLang, python/sglang/srt/models/grok.py (`residual_moe`).
    """
    if not fields.flag("residual_moe"):
        raise SpecError("is not set; only Grok-2 of this type is known", file=fields.file, field="residual_moe")
    experts = experts_block(fields, experts=("num_local_experts",), inner="moe_intermediate_size", batch_loss=True)
    block = LayerKind(mixer=grouped_query(fields), ffn=(DenseFfn(inner=fields.whole("intermediate_size")), experts),
                      norms=4)  # fmt: skip
    return LayerStack("grok", [("layer", block)] * fields.whole("num_hidden_layers"))


def _jamba(fields: ConfigFields) -> LayerStack:
    count, hidden = fields.whole("num_hidden_layers"), fields.whole("hidden_size")
    rank = math.ceil(hidden / 16) if fields.raw("mamba_dt_rank", "auto") == "auto" else fields.whole("mamba_dt_rank")
    mamba = Recurrent(
        flavour="mamba1", key_heads=1, key_dim=fields.whole("mamba_d_state", default=16), value_dim=1,
        value_heads=fields.whole("mamba_expand", default=2) * hidden, rank=rank,
        conv_kernel=fields.whole("mamba_d_conv", default=4),
    )  # fmt: skip
    attention = _unrotated(grouped_query(fields))
    dense = DenseFfn(inner=fields.whole("intermediate_size"))
    experts: Ffn = dense
    if fields.whole("num_experts", default=16) > 1:
        experts = experts_block(fields, experts=("num_experts",), inner="intermediate_size", batch_loss=True)
    else:
        fields.optional("num_experts_per_tok")
    periods = {
        name: (fields.whole(f"{name}_layer_period", default=period),
               fields.whole(f"{name}_layer_offset", default=offset, minimum=0))
        for name, period, offset in (("attn", 8, 4), ("expert", 2, 1))
    }  # fmt: skip
    layers, names = [], []
    for layer in range(count):
        full, sparse = (layer % period == offset for period, offset in periods.values())
        ffn = experts if sparse else dense
        sparse = ffn is not dense
        layers.append(LayerKind(mixer=attention if full else mamba, ffn=(ffn,)))
        names.append(f"{'full' if full else 'mamba'}_{'sparse' if sparse else 'dense'}")
    return LayerStack("jamba", numbered_layers(layers, names))


def _lfm2_kinds(fields: ConfigFields, count: int) -> list[bool]:
    """Return the layers with attention; the others have a short convolution."""
    if fields.has("layer_types"):
        return [kind != "conv" for kind in fields.listing("layer_types", count, ("conv", *_ATTENTION))]
    full = set(fields.wholes("full_attn_idxs") if fields.has("full_attn_idxs") else range(count))
    return [layer in full for layer in range(count)]


def _lfm2_inner(fields: ConfigFields) -> int:
    """Return the width of `Lfm2MLP`, two thirds of the stated one."""
    inner = fields.whole("block_ff_dim", "intermediate_size")
    fields.optional("intermediate_size")
    multiple = fields.whole("block_multiple_of", default=256)
    factor = fields.raw("block_ffn_dim_multiplier", 1.0)
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return inner
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 100:
        raise SpecError("is not a factor", file=fields.file, field=fields.prefix + "block_ffn_dim_multiplier")
    return multiple * math.ceil(int(factor * int(2 * inner / 3)) / multiple)


def _lfm2(fields: ConfigFields) -> LayerStack:
    count, hidden = fields.whole("num_hidden_layers"), fields.whole("hidden_size")
    for repeated in ("block_dim", "conv_dim", "conv_dim_out", "block_out_dim"):
        if fields.whole(repeated, default=hidden) != hidden:
            raise SpecError(f"disagrees with hidden_size {hidden}", file=fields.file, field=fields.prefix + repeated)
    for repeated in ("num_heads", "block_mlp_init_scale", "block_norm_eps", "block_use_swiglu",
                     "block_use_xavier_init"):  # fmt: skip
        fields.raw(repeated)
    conv = Recurrent(flavour="short_conv", key_heads=1, key_dim=1, value_heads=hidden, value_dim=1,
                     conv_kernel=fields.whole("conv_L_cache"))  # fmt: skip
    attention = grouped_query(fields, qk_norm=True)
    experts, first = None, count
    if fields.has("num_experts"):
        experts = experts_block(fields, experts=("num_experts",), inner="moe_intermediate_size",
                                router_bias=fields.flag("use_expert_bias"))  # fmt: skip
        first = fields.whole("num_dense_layers", default=2, minimum=0)
        dense = DenseFfn(inner=fields.whole("intermediate_size"))
    else:
        dense = DenseFfn(inner=_lfm2_inner(fields))
    layers, names = [], []
    for layer, full in enumerate(_lfm2_kinds(fields, count)):
        ffn: Ffn = experts if experts and layer >= first else dense
        layers.append(LayerKind(mixer=attention if full else conv, ffn=(ffn,)))
        names.append(("full" if full else "conv") + ("_sparse" if ffn is experts else ""))
    return LayerStack("lfm", numbered_layers(layers, names))


def _minimax_01(fields: ConfigFields) -> LayerStack:
    count, heads = fields.whole("num_hidden_layers"), fields.whole("num_attention_heads")
    attention = grouped_query(fields)
    linear = Recurrent(flavour="lightning", key_heads=heads, key_dim=attention.head_dim, value_heads=heads,
                       value_dim=attention.head_dim, conv_kernel=1)  # fmt: skip
    if fields.has("attn_type_list"):
        full = [kind == 1 for kind in fields.listing("attn_type_list", count, (0, 1))]
    else:
        kinds = fields.listing("layer_types", count, ("linear_attention", "full_attention"))
        full = [kind == "full_attention" for kind in kinds]
    if fields.optional("shared_intermediate_size"):
        raise SpecError("is not 0; a shared expert of the family is not known", file=fields.file,
                        field=fields.prefix + "shared_intermediate_size")  # fmt: skip
    for name in ("postnorm", "shared_moe_mode"):
        fields.raw(name)
    experts = experts_block(fields, experts=("num_local_experts",), inner="intermediate_size", batch_loss=True)
    layers = [LayerKind(mixer=attention if item else linear, ffn=(experts,)) for item in full]
    return LayerStack("minimax", numbered_layers(layers, ["full" if item else "linear" for item in full]))


def _longcat_flash(fields: ConfigFields) -> LayerStack:
    """Return LongCat-Flash: two attentions and dense blocks, one mixture.

    Each layer is two here. Some of the experts are the identity: of the experts that a token selects only the share of
    real ones is read on average.
    """
    count, empty = fields.whole("num_hidden_layers"), fields.whole("zero_expert_num", default=0, minimum=0)
    attention = latent_attention(fields)
    dense = DenseFfn(inner=fields.whole("intermediate_size"))
    real, chosen = fields.whole("n_routed_experts"), fields.whole("num_experts_per_tok")
    topk = max(1, round(chosen * real / (real + empty)))
    experts = ExpertsFfn(experts=real, topk=topk, inner=fields.whole("moe_intermediate_size"), router_bias=True,
                         balanced_by="bias")  # fmt: skip
    layers = [
        ("sparse", LayerKind(mixer=attention, ffn=(dense, experts))),
        ("dense", LayerKind(mixer=attention, ffn=(dense,))),
    ] * count
    notes = [f"each of the {count} layers is counted as two: it has two attentions and two dense blocks"]
    if empty:
        notes.append(f"{topk} real experts a token: {chosen} of {real + empty}, of which {empty} compute nothing")
    return LayerStack("longcat", layers, notes=notes)


def _minicpm3(fields: ConfigFields) -> LayerStack:
    heads = fields.whole("num_attention_heads")
    wide = fields.whole("v_head_dim", default=fields.whole("hidden_size") // heads)
    own = ConfigFields({**fields.content, "v_head_dim": wide}, fields.file, fields.prefix)
    ffn = DenseFfn(inner=fields.whole("intermediate_size"), bias=fields.flag("mlp_bias"))
    kind = LayerKind(mixer=latent_attention(own), ffn=(ffn,))
    fields.read |= own.read
    return LayerStack("minicpm", [("layer", kind)] * fields.whole("num_hidden_layers"))


#: keys of one image of Llama-3.2-Vision: 4 tiles of (560 / 14)² patches and one class token (`vision_config` of its
#: config.json, `modeling_mllama.py`)
_IMAGE_KEYS = 4 * (40 * 40 + 1)


def _mllama(fields: ConfigFields) -> LayerStack:
    count, hidden = fields.whole("num_hidden_layers"), fields.whole("hidden_size")
    crossed = set(fields.wholes("cross_attention_layers"))
    ffn = DenseFfn(inner=fields.whole("intermediate_size"))
    own = grouped_query(fields)
    image = _unrotated(own).model_copy(update={"window": _IMAGE_KEYS, "qk_norm": True})
    kinds = {True: ("crossed", LayerKind(mixer=image, ffn=(ffn,))), False: ("layer", LayerKind(mixer=own, ffn=(ffn,)))}
    layers = [kinds[layer in crossed] for layer in range(count)]
    note = f"cross-attention layers hold the keys of one image, {_IMAGE_KEYS:,} tokens, also of requests without one"
    # eight more rows of the embedding stand for images
    return LayerStack("mllama", layers, notes=[note] if crossed else [], extra_parameters=8 * hidden)


def _widths(fields: ConfigFields, count: int) -> Sequence[int]:
    """Return the inner width of each layer: one number, or a list."""
    if not isinstance(fields.raw("intermediate_size"), list):
        return [fields.whole("intermediate_size")] * count
    parts = [ConfigFields({"intermediate_size": item}, fields.file, fields.prefix)
             for item in fields.listing("intermediate_size", count)]  # fmt: skip
    return [part.whole("intermediate_size") for part in parts]


def _gemma3n(fields: ConfigFields) -> LayerStack:
    count, hidden = fields.whole("num_hidden_layers"), fields.whole("hidden_size")
    shared = fields.whole("num_kv_shared_layers", default=15, minimum=0)
    streams = fields.whole("altup_num_inputs", default=4)
    block, extra = per_layer_embedding(fields, count)
    laurel = DenseFfn(inner=fields.whole("laurel_rank", default=64), gated=False)
    full = grouped_query(fields, qk_norm=True)
    sliding = full.model_copy(update={"window": fields.whole("sliding_window")})
    kinds = fields.listing("layer_types", count, FULL_OR_SLIDING)
    layers, names = [], []
    for layer, (kind, inner) in enumerate(zip(kinds, _widths(fields, count), strict=True)):
        mixer = sliding if kind == "sliding_attention" else full
        own = layer < count - shared
        ffn = (DenseFfn(inner=inner), laurel, *([block] if block else []))
        # norms of the layer, of Laurel, of the router and of the per-layer embedding; the router of AltUp has a vector
        # for each stream, and the result a scale
        layers.append(LayerKind(mixer=mixer.model_copy(update={"shared_kv": not own}), ffn=ffn, norms=7,
                                gates=streams + 1))  # fmt: skip
        names.append(("sliding" if mixer is sliding else "full") + ("" if own else "_shared"))
    note = "the streams of AltUp are counted as weights; their work and memory of activations are not"
    extra += 2 * (streams - 1) * hidden * hidden
    return LayerStack("gemma", numbered_layers(layers, names), notes=[note], extra_parameters=extra)


#: model_type → reader
MIXED_READERS: dict[str, Callable[[ConfigFields], LayerStack]] = {
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "gemma3n_text": _gemma3n,
    "granitemoehybrid": _granite_hybrid,
    "git": _grok_2,
    "jamba": _jamba,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "longcat_flash": _longcat_flash,
    "minicpm3": _minicpm3,
    "minimax": _minimax_01,
    "minimax_m1": _minimax_01,
    "minimax_text_01": _minimax_01,
    "mllama_text_model": _mllama,
}
