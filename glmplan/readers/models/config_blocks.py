"""Blocks that most Hugging Face configs spell alike: attention, windows, experts, which layers are sparse, MTP."""

from __future__ import annotations

from glmplan.errors import SpecError
from glmplan.facts.schema.model import ExpertsFfn, GroupedQuery, MtpSpec
from glmplan.readers.models.config_fields import ConfigFields

__all__ = ["FULL_OR_SLIDING", "experts_block", "grouped_query", "layer_windows", "mtp_spec", "sparse_layers"]

#: kinds of attention in `layer_types`
FULL_OR_SLIDING = ("full_attention", "sliding_attention")


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
    """Values of a head that rotary positions turn, where the config says that it is not the whole head."""
    stated = fields.optional("rotary_dim")
    scaling = fields.part("rope_parameters").content if fields.raw("rope_parameters") else {}
    share = fields.raw("partial_rotary_factor") or scaling.get("partial_rotary_factor")
    if share and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1):
        raise SpecError("is not a share of 0 to 1", file=fields.file,
                        field=fields.prefix + "partial_rotary_factor", value=share)  # fmt: skip
    found = stated or (int(head_dim * float(share)) if share else None)
    return None if found == head_dim else found


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
    only_dense = fields.raw("mlp_only_layers", [])
    if not isinstance(only_dense, list):
        raise SpecError("is not a list of layers", file=fields.file, field=fields.prefix + "mlp_only_layers")
    return [
        layer >= first and layer % every == 0 and (layer + 1) % step == 0 and layer not in only_dense
        for layer in range(count)
    ]


def layer_windows(fields: ConfigFields, count: int) -> list[int | None]:
    """Read the sliding window of each layer from `layer_types`.

    Parameters
    ----------
    fields : ConfigFields
        The config.
    count : int
        Number of layers, [-]

    Returns
    -------
    list of int or None
        [token]; None for full attention.

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
    """Read how many MTP layers the checkpoint carries (`num_nextn_predict_layers`).

    Parameters
    ----------
    fields : ConfigFields
        The config.
    layer : str
        Kind of layer that an MTP layer is.
    own_embedding : bool
        Whether the files store a second embedding and head for them.

    Returns
    -------
    MtpSpec or None
        None when there are none.

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
    """Read a mixture of experts.

    Parameters
    ----------
    fields : ConfigFields
        The config.
    experts : tuple of str
        Names under which the number of routed experts may stand.
    inner : str
        Name of the width of one expert.
    shared, shared_inner : int, optional
        Shared experts and their width, [-]
    shared_gate, router_bias, bias : bool, optional
        Whether there is a gate before the shared expert, a bias in the router, biases in the experts. A bias in the
        router alone is one that balances it.
    batch_loss : bool, optional
        Whether a loss over whole batches balanced the router in training.
    topk : tuple of str, optional
        Names under which the number of chosen experts may stand.

    Returns
    -------
    ExpertsFfn
        The block.

    Raises
    ------
    SpecError
        If a field is missing or more experts are chosen than there are.

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
