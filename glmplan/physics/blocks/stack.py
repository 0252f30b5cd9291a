"""A whole model as tensors: what every layer kind holds, with the vocabulary ends and the MTP layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from glmplan.facts.schema.model import LayerKind, ModelSpec
from glmplan.physics.blocks.kinds import feed_forwards_of, lookup_of, mixer_of, streams_of
from glmplan.physics.blocks.tensor import Tensor

__all__ = [
    "JOINED_STATES",
    "ParameterCount",
    "draft_once_tensors",
    "layer_tensors",
    "model_parameters",
    "mtp_tensors",
    "vocabulary_tensors",
]


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Weights of a model.

    Attributes
    ----------
    total : int
        Main model, embedding and head once each, MTP layers not included, [-]
    mtp : int
        MTP layers without their own embedding and head, [-]
    mtp_vocabulary : int
        Second embedding and heads of the MTP layers where the files hold them, [-]
    active : int
        Weights that one decoded token is multiplied with; the embedding is a look-up and not counted, [-]
    routed : int
        Routed experts of the main model, [-]
    looked_up : int
        Tables that no token is multiplied with, [-]
    active_prompt : int
        Weights that one token of a prompt is multiplied with: fewer than `active` where prompts skip layers, [-]
    """

    total: int
    mtp: int
    mtp_vocabulary: int
    active: int
    routed: int
    looked_up: int = 0
    active_prompt: int = 0


@lru_cache(maxsize=4096)
def layer_tensors(kind: LayerKind, hidden: int) -> tuple[Tensor, ...]:
    """Weights of one layer.

    Parameters
    ----------
    kind : LayerKind
        What it is made of.
    hidden : int
        Hidden size, [-]

    Returns
    -------
    tuple of Tensor
        Mixer, feed-forward blocks and norms.

    Examples
    --------
    >>> from glmplan.facts.schema.model import DenseFfn, GroupedQuery, LayerKind
    >>> llama = LayerKind(mixer=GroupedQuery(heads=32, kv_heads=8, head_dim=128), ffn=(DenseFfn(inner=14336),))
    >>> sum(t.parameters for t in layer_tensors(llama, 4096))
    218112000
    """
    found = list(mixer_of(kind).tensors(hidden))
    for block in feed_forwards_of(kind):
        found += block.tensors(hidden)
    if kind.norms:
        found.append(Tensor("layernorm", "norm", kind.norms * hidden, 1, shard="replicated", matmul=False))
    found += [*streams_of(kind).tensors(hidden), *lookup_of(kind).tensors(hidden)]
    for name, vectors in (("gates", kind.gates), ("short_conv", 2 * kind.convolution)):
        if vectors:
            found.append(Tensor(name, "norm", vectors * hidden, 1, shard="replicated", matmul=False))
    return tuple(found)


def vocabulary_tensors(model: ModelSpec) -> tuple[Tensor, ...]:
    """Embedding, head and final norm.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    tuple of Tensor
        A tied head is a matrix product on the embedding and holds no weights of its own: it is not listed. What folds
        several residual streams to one state stands with the head.
    """
    found = [Tensor("embed_tokens", "embedding", model.vocabulary, model.hidden, matmul=model.tied_embedding)]
    if not model.tied_embedding:
        found.append(Tensor("lm_head", "head", model.vocabulary, model.hidden))
    found.append(Tensor("norm", "norm", model.hidden, 1, shard="replicated", matmul=False))
    found += streams_of(model.layers[model.layer_names[-1]]).fold(model.hidden)
    return tuple(found)


#: states of the model that an EAGLE-3 head reads, one after the other [-]
JOINED_STATES = 3
#: projections of an attention that read the state of the layer
_READ_STATE = (".q_a_proj", ".kv_a_proj_with_mqa", ".q_proj", ".k_proj", ".v_proj")


def mtp_tensors(model: ModelSpec) -> tuple[Tensor, ...]:
    """One drafting layer: a layer of the model, the projection of the joined states and their norms.

    The layer of an EAGLE-3 head makes queries and keys from embedding and state side by side; its projection joins
    three states of the model, once a step.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    tuple of Tensor
        Empty when the model has neither MTP layer nor draft head.
    """
    hidden = model.hidden
    if model.draft_head is not None:
        found = layer_tensors(model.layers[model.draft_head.layer], hidden)
        wide = (replace(one, columns=2 * hidden) if one.name.endswith(_READ_STATE) else one for one in found)
        return (*wide, Tensor("fc", "mtp_projection", hidden, JOINED_STATES * hidden, shard="replicated"))
    if model.mtp is None:
        return ()
    if model.mtp.block is not None:
        return layer_tensors(model.layers[model.mtp.layer], hidden)
    return (
        *layer_tensors(model.layers[model.mtp.layer], hidden),
        Tensor("eh_proj", "mtp_projection", hidden, 2 * hidden, shard="replicated"),
        Tensor("enorm_hnorm_norm", "norm", 3 * hidden, 1, shard="replicated", matmul=False),
    )


def draft_once_tensors(model: ModelSpec) -> tuple[Tensor, ...]:
    """What a block drafter holds beside its stages: the joined states, and the heads after the last stage.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    tuple of Tensor
        Empty for models that draft otherwise.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/models/deepseek_v41/nvidia/dspark.py (main_proj, markov_head, confidence_head).
    """
    if model.mtp is None or model.mtp.block is None:
        return ()
    hidden, rank = model.hidden, model.mtp.markov_rank
    found = [Tensor("draft.norms", "norm", 2 * hidden, 1, shard="replicated", matmul=False)]
    if model.mtp.joined:
        wide = model.mtp.joined * hidden
        found.append(Tensor("draft.main_proj", "mtp_projection", hidden, wide, shard="replicated"))
    if rank:
        found += [
            Tensor("draft.markov_embed", "mtp_projection", model.vocabulary, rank, matmul=False),
            Tensor("draft.markov_head", "mtp_projection", model.vocabulary, rank),
            Tensor("draft.confidence", "mtp_projection", 1, hidden + rank, shard="replicated"),
        ]
    return tuple(found)


def model_parameters(model: ModelSpec) -> ParameterCount:
    """Count the weights of a model.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    ParameterCount
        Totals, [-]
    """
    total = sum(tensor.parameters for tensor in vocabulary_tensors(model))
    active = sum(tensor.parameters for tensor in vocabulary_tensors(model) if tensor.matmul)
    routed, looked_up, skipped = 0, 0, 0
    for name, count in model.runs:
        kind = model.layers[name]
        rows = layer_tensors(kind, model.hidden)
        table = count * lookup_of(kind).table_values
        total += count * sum(tensor.parameters for tensor in rows)
        visited = count * sum(tensor.parameters for tensor in rows if tensor.shard != "experts") - table
        looked_up += table
        for block in feed_forwards_of(kind):
            if block.routed is not None:
                held = sum(t.parameters for t in rows if t.shard == "experts")
                routed += count * held
                visited += count * held * block.routed.topk // block.routed.experts
        active += visited
        skipped += visited if kind.decode_only else 0
    mtp_layers = model.mtp.layers if model.mtp else 0
    mtp = mtp_layers * sum(tensor.parameters for tensor in mtp_tensors(model))
    mtp += sum(tensor.parameters for tensor in draft_once_tensors(model))
    ends = (2 if model.mtp.own_embedding else 1 if model.mtp.own_head else 0) if model.mtp else 0
    return ParameterCount(
        total=total,
        mtp=mtp,
        mtp_vocabulary=ends * model.vocabulary * model.hidden * mtp_layers,
        active=active,
        routed=routed,
        looked_up=looked_up,
        active_prompt=active - skipped,
    )
