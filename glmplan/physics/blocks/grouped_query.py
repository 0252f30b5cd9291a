"""Multi-head, multi-query and grouped-query attention, full or with a sliding window.

Ainslie et al., GQA, arXiv 2305.13245; sliding windows as in Mistral 7B, arXiv 2310.06825.
"""

from __future__ import annotations

import numpy as np

from glmplan.facts.schema.model import GroupedQuery
from glmplan.physics.blocks.tensor import Tensor

__all__ = ["attended", "cache_values_per_token", "tensors"]


def tensors(block: GroupedQuery, hidden: int) -> tuple[Tensor, ...]:
    """Weights of the block.

    Parameters
    ----------
    block : GroupedQuery
        Its shape.
    hidden : int
        Hidden size of the model, [-]

    Returns
    -------
    tuple of Tensor
        Query, key, value and output projections with their biases and norms.

    Examples
    --------
    >>> block = GroupedQuery(heads=96, kv_heads=8, head_dim=128)
    >>> sum(t.parameters for t in tensors(block, 5120))
    136314880
    """
    q = block.heads * block.head_dim
    k = block.kv_heads * block.head_dim
    v_dim = block.v_head_dim or block.head_dim
    v = block.kv_heads * v_dim
    out = block.heads * v_dim
    found = [
        Tensor("self_attn.q_proj", "attention", q * (2 if block.gated else 1), hidden, shard="heads", units=block.heads)
    ]
    if not block.shared_kv:
        found.append(Tensor("self_attn.k_proj", "attention", k, hidden, shard="heads", units=block.kv_heads))
        if not block.key_is_value:
            found.append(Tensor("self_attn.v_proj", "attention", v, hidden, shard="heads", units=block.kv_heads))
    found.append(Tensor("self_attn.o_proj", "attention", hidden, out, shard="heads", units=block.heads))
    if block.qkv_bias:
        found.append(Tensor("self_attn.qkv_bias", "norm", q + k + v, 1, shard="replicated", matmul=False))
    if block.out_bias:
        found.append(Tensor("self_attn.o_bias", "norm", hidden, 1, shard="replicated", matmul=False))
    if block.qk_norm:
        width = q + k if block.qk_norm_wide else 2 * block.head_dim
        found.append(Tensor("self_attn.qk_norm", "norm", width, 1, shard="replicated", matmul=False))
    index = block.indexer
    if index is not None:
        wide = index.heads * index.head_dim
        found += [
            Tensor("self_attn.index_q_proj", "indexer", wide, hidden, shard="heads", units=index.heads),
            Tensor("self_attn.index_k_proj", "indexer", index.head_dim, hidden, shard="replicated"),
            Tensor("self_attn.index_norm", "norm", 2 * index.head_dim, 1, shard="replicated", matmul=False),
        ]
    if block.sinks:
        found.append(Tensor("self_attn.sinks", "norm", block.heads, 1, shard="replicated", matmul=False))
    return tuple(found)


def cache_values_per_token(block: GroupedQuery) -> int:
    """Values that the cache keeps for each token in this layer, all heads together.

    Parameters
    ----------
    block : GroupedQuery
        Its shape.

    Returns
    -------
    int
        Values for each token, [-]; a layer with `shared_kv` keeps none.

    Examples
    --------
    >>> cache_values_per_token(GroupedQuery(heads=96, kv_heads=8, head_dim=128))
    2048
    """
    if block.shared_kv:
        return 0
    return block.kv_heads * (block.head_dim + (block.v_head_dim or block.head_dim))


def attended(block: GroupedQuery, context: np.ndarray) -> np.ndarray:
    """Keys that one query reads.

    Parameters
    ----------
    block : GroupedQuery
        Its shape.
    context : (n,) array
        Tokens before the query, [token]

    Returns
    -------
    (n,) array
        Keys read, [token]; the window, or the keys that an indexer chooses.

    Examples
    --------
    >>> attended(GroupedQuery(heads=8, kv_heads=8, head_dim=64, window=128), np.array([100.0, 4096.0]))
    array([100., 128.])
    """
    limit = block.window or (block.indexer.topk if block.indexer is not None else None)
    return np.minimum(context, float(limit)) if limit else context
