"""Read architectures with latent attention, streams or lookup tables.

Streams are residual; caches may be shared by layers. DeepSeek V2, V3, V3.2, V4 and V4.1, Kimi K2, GLM-4.7-Flash, GLM-5,
GLM-5.3-Flash, Kimi Linear, Hy4, Mistral-Large-4, the preview of Qwen4. Shapes: transformers 5.23.0, `modeling_*.py` of
each; DeepSeek-V4.1: vllm-project/vllm, vllm/models/deepseek_v41.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from glmplan.catalog.schema.model import (
    CompressedAttention,
    DenseFfn,
    ExpertsFfn,
    HyperConnections,
    Indexer,
    LatentAttention,
    LayerKind,
    LookupTable,
    MtpSpec,
    Recurrent,
)
from glmplan.errors import SpecError, UnknownArchitecture
from glmplan.io.models.config_fields import (
    ConfigFields,
    LayerStack,
    experts_block,
    gated_delta,
    grouped_query,
    mtp_spec,
    numbered_layers,
    sparse_layers,
)

__all__ = ["LATENT_READERS", "STREAM_READERS", "latent_attention", "routed_experts"]


def latent_attention(
    fields: ConfigFields, indexer: Indexer | None = None, *, out_gate: bool = False, head_gated: bool = False
) -> LatentAttention:
    """Return a layer's latent attention from fields of common spelling.

    `out_gate`: a gate as wide as the output follows it, with `head_gated` one value for each head. `qk_rope_head_dim`
    0 is attention without positions.
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
        head_gated=head_gated,
    )


def routed_experts(fields: ConfigFields, *, latent: int | None = None) -> ExpertsFfn:
    """Return the experts from the fields of DeepSeek-V3 and successors.

    `latent`: their width where it is not the hidden size.
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


def _deepseek(
    family: str, *, own_embedding: bool = False, sparse_attention: bool = False, routed: bool = True
) -> Callable[[ConfigFields], LayerStack]:
    def read(fields: ConfigFields) -> LayerStack:
        count = fields.whole("num_hidden_layers")
        dense = DenseFfn(inner=fields.whole("intermediate_size"))
        sparse_at = sparse_layers(fields, count) if routed else [False] * count
        experts = routed_experts(fields) if routed else None
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
        for sparse, indexer in zip(sparse_at, indexers, strict=True):
            name = "sparse" if sparse else "dense"
            name += "_shared_index" if indexer is not None and indexer.reads_from_previous else ""
            kind = LayerKind(mixer=latent_attention(fields, indexer), ffn=(experts if sparse and experts else dense,))
            layers.append((name, kind))
        mtp = None
        result = fields.optional("num_nextn_predict_layers")
        if result:
            # the MTP layer has an indexer of its own: GLM-5.2-FP8 lists 22, for 21 full layers and one MTP layer
            mtp = MtpSpec(layers=result, layer="sparse", own_embedding=own_embedding)
        return LayerStack(family, layers, mtp=mtp)

    return read


def _kimi_linear(fields: ConfigFields) -> LayerStack:
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
    return LayerStack("kimi", layers, notes=notes)


def _bailing_hybrid(fields: ConfigFields) -> LayerStack:
    """Return Ling 2.5 to 3: lightning or Kimi Delta Attention, and latent.

    The last layer of each group, and those behind the last whole group, have latent attention. Shapes: vLLM,
    bailing_moe_linear.py and bailing_moe_v3.py.
    """
    count, heads, width = (
        fields.whole("num_hidden_layers"),
        fields.whole("num_attention_heads"),
        fields.whole("head_dim"),
    )
    shape = {"key_heads": heads, "key_dim": width, "value_heads": heads, "value_dim": width}
    gates = {}
    if fields.has("short_conv_kernel_size"):
        if not fields.flag("no_kda_lora", True):
            raise UnknownArchitecture("is not true: gates of low rank are not modelled", file=fields.file,
                                      field=fields.prefix + "no_kda_lora")  # fmt: skip
        convolution = fields.whole("short_conv_kernel_size")
        linear = Recurrent(flavour="kimi_delta", conv_kernel=convolution, full_gate=True, full_decay=True, **shape)
        gate = fields.raw("gated_attention_proj_granularity_type", "head_wise")
        gates = {"head_gated": gate == "head_wise", "out_gate": gate == "element_wise"}
    else:
        linear = Recurrent(flavour="lightning", conv_kernel=1, **shape)
    attention = latent_attention(fields, **gates)
    experts, dense = routed_experts(fields), DenseFfn(inner=fields.whole("intermediate_size"))
    shared = fields.whole("moe_shared_expert_intermediate_size", default=experts.inner)
    experts = experts.model_copy(update={"shared_inner": shared})
    group = fields.whole("layer_group_size")
    if fields.has("layer_types"):
        kinds = fields.listing("layer_types", count, ("linear_attention", "full_attention"))
        full = [kind == "full_attention" for kind in kinds]
    else:
        full = [(layer + 1) % group == 0 or layer >= count // group * group for layer in range(count)]
    layers, names = [], []
    for is_full, sparse in zip(full, sparse_layers(fields, count), strict=True):
        layers.append(LayerKind(mixer=attention if is_full else linear, ffn=(experts if sparse else dense,)))
        names.append(f"{'full' if is_full else 'linear'}_{'sparse' if sparse else 'dense'}")
    return LayerStack("ling", numbered_layers(layers, names), mtp=mtp_spec(fields, "full_sparse", own_embedding=False))


#: model_type → reader
LATENT_READERS: dict[str, Callable[[ConfigFields], LayerStack]] = {
    # one more norm in each layer with experts
    "axk1": _deepseek("ax"),
    "deepseek_v2": _deepseek("deepseek", own_embedding=False),
    "deepseek_v3": _deepseek("deepseek", own_embedding=True),
    "deepseek_v32": _deepseek("deepseek", own_embedding=True, sparse_attention=True),
    "kimi_k2": _deepseek("kimi", own_embedding=True),
    "mistral4": _deepseek("mistral"),
    "sarvam_mla": _deepseek("sarvam"),
    "youtu": _deepseek("youtu", routed=False),
    "glm4_moe_lite": _deepseek("glm", own_embedding=False),
    "glm_moe_dsa": _deepseek("glm", own_embedding=False, sparse_attention=True),
    "kimi_linear": _kimi_linear,
    "bailing_hybrid": _bailing_hybrid,
}


#: spellings of latent attention that an indexer makes sparse
_SPARSE = ("deepseek_sparse_attention", "indexed_attention", "full_attention")


def _streams(fields: ConfigFields, form: str = "manifold", *, folded: bool) -> HyperConnections:
    count = fields.whole("hc_mult", "hc_count")
    rank = fields.whole("hc_lowrank") if form == "low_rank" else None
    return HyperConnections(streams=count, form=form, rank=rank, folded=folded)


def _indexer(fields: ConfigFields) -> Indexer:
    return Indexer(
        heads=fields.whole("index_n_heads"), head_dim=fields.whole("index_head_dim"), topk=fields.whole("index_topk")
    )


def _compressed(fields: ConfigFields, **more: Any) -> CompressedAttention:
    if fields.whole("num_key_value_heads", default=1) != 1:
        raise SpecError("is not 1: key and value are one vector of all heads", file=fields.file,
                        field=fields.prefix + "num_key_value_heads")  # fmt: skip
    return CompressedAttention(
        heads=fields.whole("num_attention_heads"),
        head_dim=fields.whole("head_dim"),
        rope_dim=fields.whole("qk_rope_head_dim"),
        q_rank=fields.whole("q_lora_rank"),
        out_groups=fields.whole("o_groups"),
        out_rank=fields.whole("o_lora_rank"),
        window=fields.whole("sliding_window"),
        **more,
    )


def _ratios(fields: ConfigFields, count: int, known: Sequence[int]) -> list[int]:
    """Return the tokens of an entry in each layer.

    `compress_ratios` may continue with the draft layers.
    """
    ratios = fields.listing("compress_ratios", count)
    for ratio in ratios:
        if isinstance(ratio, bool) or ratio not in known:
            raise SpecError("is not a known ratio", file=fields.file, field=fields.prefix + "compress_ratios",
                            value=ratio, choices=[str(item) for item in known])  # fmt: skip
    return [int(item) for item in ratios]


def _deepseek_v4(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    kinds = {
        0: _compressed(fields),
        4: _compressed(fields, ratio=4, overlapping=True, indexer=_indexer(fields)),
        128: _compressed(fields, ratio=128),
    }
    ratios = _ratios(fields, count, list(kinds))
    experts, streams = routed_experts(fields), _streams(fields, folded=True)
    hashed = fields.whole("num_hash_layers", default=0, minimum=0)
    table = {"hash_vocabulary": fields.whole("vocab_size"), "router_bias": False, "balanced_by": None}
    by_hash = ExpertsFfn(**experts.model_dump(exclude={"busiest_fifth"}) | table)
    layers = [
        LayerKind(mixer=kinds[ratio], ffn=(by_hash if layer < hashed else experts,), streams=streams)
        for layer, ratio in enumerate(ratios)
    ]
    words = {0: "window", 4: "csa", 128: "hca"}
    names = [words[ratio] + ("_hash" if layer < hashed else "") for layer, ratio in enumerate(ratios)]
    extra, mtp = {}, None
    drafting = fields.optional("num_nextn_predict_layers")
    if drafting:
        extra["draft"] = LayerKind(mixer=kinds[0], ffn=(experts,), streams=streams)
        mtp = MtpSpec(layers=drafting, layer="draft")
    return LayerStack("deepseek", numbered_layers(layers, names), extra=extra, mtp=mtp)


def _deepseek_v41(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    ratios = _ratios(fields, count, (0, 1, 2))
    sources, indexed = (set(fields.wholes(f"{item}_source_layer_ids")) for item in ("kv", "index"))
    placed, rows = fields.wholes("engram_layer_ids"), fields.wholes("engram_num_embeddings")
    if len(placed) != len(rows):
        raise SpecError(f"has {len(placed)} layers, and engram_num_embeddings {len(rows)}",
                        file=fields.file, field=f"{fields.prefix}engram_layer_ids")  # fmt: skip
    tables = dict(zip(placed, rows, strict=True))
    candidate = fields.whole("candidate_source_layer_id", default=count)
    block = fields.whole("candidate_topk_blocks", default=1) * fields.whole("candidate_block_size", default=1)
    index = _indexer(fields).model_copy(update={"from_latent": True})
    experts, streams = routed_experts(fields), _streams(fields, folded=False)
    # the layers behind the last source of entries read its cache: prompts end there
    last = max(sources, default=count)
    layers, names = [], []
    for layer, ratio in enumerate(ratios):
        name, mixer = "window", _compressed(fields)
        if ratio:
            more: dict[str, Any] = {"shared_keys": layer not in sources, "reads_from_previous": layer not in indexed}
            more |= {"candidates": block} if layer > candidate and layer in indexed else {}
            mixer = _compressed(fields, ratio=ratio, positions=False, shared_kv=layer not in sources,
                                indexer=index.model_copy(update=more))  # fmt: skip
            name = "full" if layer in sources else "reindex" if layer in indexed else "reuse"
        table = _engram(fields, tables[layer], streams.streams) if layer in tables else None
        layers.append(LayerKind(mixer=mixer, ffn=(experts,), streams=streams, lookup=table, decode_only=layer > last))
        names.append(name + ("_decoder" if layer > last else "") + ("_engram" if table else ""))
    extra, mtp = {}, None
    stages = fields.optional("num_nextn_predict_layers")
    if stages:
        own = {"experts": fields.whole("dspark_n_routed_experts"), "topk": fields.whole("dspark_num_experts_per_tok")}
        extra["draft"] = LayerKind(mixer=_compressed(fields), ffn=(experts.model_copy(update=own),), streams=streams)
        joined = len(fields.wholes("dspark_target_layer_ids"))
        rank, block = fields.whole("dspark_markov_rank"), fields.whole("dspark_block_size")
        mtp = MtpSpec(layers=stages, layer="draft", method="dspark", block=block, joined=joined, markov_rank=rank)
    return LayerStack("deepseek", numbered_layers(layers, names), extra=extra, mtp=mtp)


def _engram(fields: ConfigFields, rows: int, streams: int) -> LookupTable:
    reads = (fields.whole("engram_max_ngram_size") - 1) * fields.whole("engram_n_heads")
    return LookupTable(rows=rows, width=fields.whole("engram_head_dim"), reads=reads, streams=streams)


def _glm_next(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    linear = fields.part("linear_attn_config")
    heads, width = linear.whole("num_heads"), linear.whole("head_dim")
    delta = Recurrent(flavour="kimi_delta", key_heads=heads, key_dim=width, value_heads=heads, value_dim=width,
                      conv_kernel=linear.whole("short_conv_kernel_size"))  # fmt: skip
    index = _indexer(fields).model_copy(update={"pool": fields.whole("index_kpool")})
    fields.listing("indexer_types", count, ("full",))
    attention, streams = latent_attention(fields, index), _streams(fields, folded=False)
    experts, dense = routed_experts(fields), DenseFfn(inner=fields.whole("intermediate_size"))
    layers, names = [], []
    kinds = fields.listing("layer_types", count, ("linear_attention", *_SPARSE))
    for kind, sparse in zip(kinds, sparse_layers(fields, count), strict=True):
        is_linear = kind == "linear_attention"
        layers.append(LayerKind(mixer=delta if is_linear else attention, ffn=(experts if sparse else dense,),
                                streams=streams))  # fmt: skip
        names.append(f"{'linear' if is_linear else 'full'}_{'sparse' if sparse else 'dense'}")
    drafting = fields.optional("num_nextn_predict_layers")
    extra = {"draft": LayerKind(mixer=attention, ffn=(experts,), streams=streams)} if drafting else {}
    mtp = MtpSpec(layers=drafting, layer="draft") if drafting else None
    return LayerStack("glm", numbered_layers(layers, names), extra=extra, mtp=mtp)


def _hy_v4(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    types = fields.listing("indexer_types", count, ("full", "shared"))
    if fields.has("layer_types"):
        fields.listing("layer_types", count, _SPARSE)
    index, streams = _indexer(fields), _streams(fields, "plain", folded=True)
    experts, dense = routed_experts(fields), DenseFfn(inner=fields.whole("intermediate_size"))
    layers = []
    for kind, sparse in zip(types, sparse_layers(fields, count), strict=True):
        own = index.model_copy(update={"reads_from_previous": kind == "shared"})
        mixer = latent_attention(fields, own, out_gate=True).model_copy(update={"sinks": True})
        layers.append(LayerKind(mixer=mixer, ffn=(experts if sparse else dense,), streams=streams))
    names = [
        ("sparse" if sparse else "dense") + ("_shared_index" if kind == "shared" else "")
        for kind, sparse in zip(types, sparse_layers(fields, count), strict=True)
    ]
    # the MTP layer has no streams and always an indexer of its own
    drafting, extra = fields.optional("num_nextn_predict_layers"), {}
    if drafting:
        mixer = latent_attention(fields, index, out_gate=True).model_copy(update={"sinks": True})
        extra["draft"] = LayerKind(mixer=mixer, ffn=(experts,))
    mtp = MtpSpec(layers=drafting, layer="draft") if drafting else None
    return LayerStack("hunyuan", numbered_layers(layers, names), extra=extra, mtp=mtp)


def _mistral_large4(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    types = fields.listing("indexer_types", count, ("full", "shared"))
    turned = fields.listing("no_rope_layers", count, (0, 1))  # 1: the layer has rotary positions
    sources = fields.listing("kv_source_layers", count)
    if fields.has("layer_types"):
        fields.listing("layer_types", count, _SPARSE)
    index = _indexer(fields).model_copy(update={"from_hidden": True})
    experts, dense = routed_experts(fields), DenseFfn(inner=fields.whole("intermediate_size"))
    nope, rope = fields.whole("qk_nope_head_dim"), fields.whole("qk_rope_head_dim")
    layers, names = [], []
    for layer, sparse in enumerate(sparse_layers(fields, count)):
        mixer = LatentAttention(
            heads=fields.whole("num_attention_heads"), kv_rank=fields.whole("kv_lora_rank"),
            nope_dim=nope if turned[layer] else nope + rope, rope_dim=rope if turned[layer] else 0,
            v_dim=fields.whole("v_head_dim"), shared_kv=sources[layer] != layer, scaled=True,
            indexer=index.model_copy(update={"reads_from_previous": types[layer] == "shared"}),
        )  # fmt: skip
        layers.append(LayerKind(mixer=mixer, ffn=(experts if sparse else dense,)))
        words = ["sparse" if sparse else "dense", "" if turned[layer] else "nope"]
        words += ["shared_kv" if mixer.shared_kv else "", "shared_index" if types[layer] == "shared" else ""]
        names.append("_".join(word for word in words if word))
    return LayerStack("mistral", numbered_layers(layers, names))


def _qwen4(fields: ConfigFields) -> LayerStack:
    count = fields.whole("num_hidden_layers")
    delta = gated_delta(fields)
    index = Indexer(heads=fields.whole("indexer_n_heads"), head_dim=fields.whole("indexer_head_dim"),
                    topk=fields.whole("indexer_budget"), pool=fields.whole("indexer_compress_ratio"))  # fmt: skip
    attention = grouped_query(fields, qk_norm=True).model_copy(update={"gated": True, "indexer": index})
    shared = fields.whole("shared_expert_intermediate_size")
    experts = experts_block(fields, experts=("num_experts",), inner="moe_intermediate_size", shared=1,
                            shared_inner=shared, shared_gate=True, batch_loss=True)  # fmt: skip
    streams = _streams(fields, "low_rank", folded=True)
    tables = set(fields.wholes("ple_layer_ids"))
    table = _ngrams(fields, streams.streams) if tables else None
    layers, names = [], []
    for layer, kind in enumerate(fields.listing("layer_types", count, ("linear_attention", *_SPARSE))):
        is_linear, own = kind == "linear_attention", table if layer + 1 in tables else None  # counted from 1
        layers.append(LayerKind(mixer=delta if is_linear else attention, ffn=(experts,), streams=streams, lookup=own,
                                norms=0))  # fmt: skip
        names.append(("linear" if is_linear else "full") + ("_ngrams" if own else ""))
    mtp = fields.optional("mtp_num_hidden_layers")
    embedded = fields.flag("mtp_use_dedicated_embeddings")
    drafting = MtpSpec(layers=mtp, layer="full", own_embedding=embedded) if mtp else None
    return LayerStack("qwen", numbered_layers(layers, names), mtp=drafting)


def _ngrams(fields: ConfigFields, streams: int) -> LookupTable:
    """Return the n-gram table.

    One range of rows, a prime number long, for each head of each length of n-gram.
    """
    heads = (fields.whole("ngram_size") - 1) * fields.whole("heads_per_ngram")
    rows = _primes_from(fields.whole("ngram_vocab_size_base"), heads)
    multiple = fields.whole("make_ngram_vocab_size_divisible_by")
    convolution = fields.whole("ple_conv_kernel_size")
    return LookupTable(rows=-(-rows // multiple) * multiple, width=fields.whole("ple_embed_dim") // heads, reads=heads,
                       streams=streams, norms=3, convolution=convolution)  # fmt: skip


def _primes_from(first: int, count: int) -> int:
    """Return the sum of `count` primes from a number on."""
    result: list[int] = []
    number = first
    while len(result) < count:
        if number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            result.append(number)
        number += 1
    return sum(result)


#: model_type → reader
STREAM_READERS: dict[str, Callable[[ConfigFields], LayerStack]] = {
    "deepseek_v4": _deepseek_v4,
    "deepseek_ref": _deepseek_v4,
    "deepseek_v41": _deepseek_v41,
    "deepseek_v41_text": _deepseek_v41,
    "glm5_next_text": _glm_next,
    "hy_v4": _hy_v4,
    "mistral_large4_text": _mistral_large4,
    "qwen4_exp_text": _qwen4,
}
