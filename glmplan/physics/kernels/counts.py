"""FLOP, bytes and shape of the kernels an engine launches: the same counts are used to fit and to predict.

Arguments are numbers or arrays that broadcast. `weight_bytes` and `kv_bytes` are stored bytes for each value with
scales; `activation_bytes` is what a value takes as it enters the product (2 for BF16, 1 for FP8, 0.5625 for NVFP4).
Values between kernels are BF16. One CUDA block works on about 128 × 128 of an output; `rows/128 + 1` counts such tiles
without steps, so that more tokens are never faster.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from glmplan.physics.kernels.utilisation import KernelWork

__all__ = [
    "attention_decode_work",
    "attention_prefill_work",
    "expert_work",
    "gemm_work",
    "latent_decode_work",
    "latent_prefill_work",
    "sparse_latent_work",
    "touched_experts",
]

Array = Any
_TILE, _BF16 = 128.0, 2.0
_KEYS = 64.0  # keys of one turn of a block


def gemm_work(m: Array, n: Array, k: Array, *, weight_bytes: float, activation_bytes: float = _BF16) -> KernelWork:
    """Return the work of ``(m, k) × (k, n)``, with the pass that quantises the activations.

    Parameters
    ----------
    m, n, k : float or array
        Tokens, outputs and inputs, [-]
    weight_bytes : float
        Stored bytes for each weight, [B]
    activation_bytes : float, optional
        Bytes of an activation inside the product; below 2 a quantising pass is added, [B]

    Returns
    -------
    KernelWork
        The work.

    Examples
    --------
    >>> work = gemm_work(1.0, 4096.0, 4096.0, weight_bytes=2.0)
    >>> work.flop, work.side_bytes
    (33554432.0, 0.0)
    """
    inputs, columns = m * k, n / _TILE
    quantised = activation_bytes < _BF16
    return KernelWork(
        flop=2.0 * inputs * n,
        bytes=n * k * weight_bytes + inputs * activation_bytes + m * n * _BF16,
        rows=m,
        tiles=(m / _TILE + 1) * columns,
        streams=columns,
        side_bytes=inputs * (_BF16 + activation_bytes) if quantised else 0.0,
    )


def touched_experts(tokens: Array, experts: Array, top_k: Array) -> Array:
    """Return how many different experts a batch needs: ``E·(1 − (1 − k/E)^m)``, each token choosing at random.

    Parameters
    ----------
    tokens : float or array
        Tokens in the batch, [-]
    experts, top_k : float or array
        Experts of the layer and how many each token uses, [-]

    Returns
    -------
    float or array
        Expected number of experts, [-]

    Notes
    -----
    Real routers are less even, so fewer experts are touched and the fullest one has more tokens.

    Examples
    --------
    >>> [round(float(touched_experts(m, 256, 8))) for m in (1, 4, 16, 64)]
    [8, 31, 102, 222]
    """
    return experts * (1 - (1 - top_k / experts) ** tokens)


def expert_work(
    *,
    tokens: Array,
    experts: Array,
    assignments: Array,
    slots: Array,
    touched: Array,
    hidden: Array,
    inner: Array,
    weight_bytes: float,
    activation_bytes: float = _BF16,
    matrices: Array = 3.0,
) -> KernelWork:
    """Return the work of one rank's routed experts: permute, gate and up, activation, down, un-permute.

    Parameters
    ----------
    tokens : float or array
        Tokens that enter the layer on this rank, [-]
    experts : float or array
        Experts that live on this rank; no more can be touched, [-]
    assignments : float or array
        Token-expert pairs on this rank, [-]
    slots : float or array
        Pairs whose rows pass through memory: the rank's own, or `tokens · top_k` in kernels that carry the pairs of
        other ranks along (`KernelFit.carries_all`), [-]
    touched : float or array
        Different experts of this rank that have a token, [-]
    hidden, inner : float or array
        Width of the model, and of an expert on this rank, [-]
    weight_bytes, activation_bytes : float
        Stored bytes for each weight and for each activation inside the product, [B]
    matrices : float or array, optional
        Matrices of an expert: 3 with a gate, 2 without, [-]

    Returns
    -------
    KernelWork
        The work; `rows` is tokens for each touched expert.

    Examples
    --------
    >>> work = expert_work(tokens=1.0, experts=256.0, assignments=8.0, slots=8.0, touched=8.0, hidden=6144.0,
    ...                    inner=2048.0, weight_bytes=0.5625)
    >>> round(work.bytes / 1e6)
    170
    """
    touched = np.minimum(touched, experts)
    weights = matrices * hidden * inner
    columns = inner * (matrices - 1) / _TILE
    rows = assignments / touched
    exchanged = hidden * (activation_bytes + _BF16) + inner * ((matrices - 1) * _BF16 + activation_bytes)
    return KernelWork(
        flop=2.0 * assignments * weights,
        bytes=touched * weights * weight_bytes + assignments * exchanged,
        rows=rows,
        tiles=touched * (rows / _TILE + 1) * columns,
        streams=touched * columns,
        side_bytes=(tokens + slots) * hidden * 2 * _BF16 + assignments * inner * matrices * _BF16,
        groups=touched,
    )


def attention_decode_work(
    batch: Array,
    context: Array,
    *,
    heads: Array,
    kv_heads: Array,
    head_dim: Array,
    kv_bytes: float,
    queries: Array = 1.0,
    splits: float = math.inf,
) -> KernelWork:
    """Return the work of decode attention over a cache of keys and values.

    Parameters
    ----------
    batch, context : float or array
        Requests, and tokens in each one's cache, [-]
    heads, kv_heads, head_dim : float or array
        Query heads and KV heads on this rank, and values of a head, [-]
    kv_bytes : float
        Bytes for each cached value, [B]
    queries : float or array, optional
        Tokens verified for each request (1 + draft), [-]
    splits : float, optional
        Blocks that share the keys of one request and KV head; infinite for as many as the part has cores, [-]

    Returns
    -------
    KernelWork
        The work; `streams` is the context, so that short sequences pay for the block they start.

    Examples
    --------
    >>> attention_decode_work(1.0, 1000.0, heads=8.0, kv_heads=1.0, head_dim=128.0, kv_bytes=2.0).bytes
    512000.0
    """
    alone = _alone(context, splits)
    return KernelWork(
        flop=4.0 * batch * queries * context * heads * head_dim,
        bytes=2.0 * batch * context * kv_heads * head_dim * kv_bytes,
        rows=queries * heads / kv_heads,
        tiles=batch * kv_heads * (context / (4 * _TILE) + 1),
        streams=context,
        side_bytes=2 * _BF16 * batch * queries * heads * head_dim,
        block_bytes=2.0 * alone * head_dim * kv_bytes,
        block_keys=alone,
    )


def attention_prefill_work(
    batch: Array,
    tokens: Array,
    *,
    prefix: Array = 0.0,
    heads: Array,
    kv_heads: Array,
    head_dim: Array,
    value_dim: Array | None = None,
    kv_bytes: float = _BF16,
) -> KernelWork:
    """Return the work of causal attention of new tokens over themselves and a prefix.

    Parameters
    ----------
    batch, tokens, prefix : float or array
        Requests, new tokens of each, tokens already cached, [-]
    heads, kv_heads, head_dim, value_dim : float or array
        Query heads and KV heads on this rank, values of a key and of a value head, [-]
    kv_bytes : float, optional
        Bytes for each cached value, [B]

    Returns
    -------
    KernelWork
        The work.

    Examples
    --------
    >>> attention_prefill_work(1.0, 1024.0, heads=1.0, kv_heads=1.0, head_dim=128.0).flop
    268697600.0
    """
    values = head_dim if value_dim is None else value_dim
    pairs = batch * tokens * ((tokens + 1) / 2 + prefix)
    queries = batch * tokens * heads * (head_dim + values) * _BF16
    return KernelWork(
        flop=2.0 * pairs * heads * (head_dim + values),
        bytes=queries + batch * (tokens + prefix) * kv_heads * (head_dim + values) * kv_bytes,
        rows=tokens,
        tiles=batch * heads * (tokens / _TILE + 1),
        streams=batch * heads * (tokens / _TILE + 1),
    )


def latent_decode_work(
    batch: Array,
    context: Array,
    *,
    heads: Array,
    kv_bytes: float,
    latent: float = 512.0,
    rope: float = 64.0,
    queries: Array = 1.0,
    splits: float = math.inf,
) -> KernelWork:
    """Return the work of absorbed MLA decode attention: all heads share one latent.

    Parameters
    ----------
    batch, context : float or array
        Requests, and tokens read for each (2048 at most with DSA), [-]
    heads : float or array
        Query heads on this rank, [-]
    kv_bytes : float
        Bytes for each cached value, [B]
    latent, rope : float, optional
        Width of the latent and of the rotary key, [-]
    queries : float or array, optional
        Tokens verified for each request, [-]
    splits : float, optional
        Blocks that share the latents of one request and group of heads, as in `attention_decode_work`, [-]

    Returns
    -------
    KernelWork
        The work.

    Examples
    --------
    >>> latent_decode_work(1.0, 1000.0, heads=8.0, kv_bytes=2.0).bytes
    1152000.0
    """
    alone = _alone(context, splits)
    return KernelWork(
        flop=2.0 * batch * queries * context * heads * (2 * latent + rope),
        bytes=batch * context * (latent + rope) * kv_bytes,
        rows=queries * heads,
        tiles=batch * (context / (4 * _TILE) + 1),
        streams=context,
        side_bytes=batch * queries * heads * (2 * latent + rope) * _BF16,
        block_bytes=alone * (latent + rope) * kv_bytes,
        block_keys=alone,
    )


def _alone(context: Array, splits: float) -> Array:
    """Keys that one block walks through, 0 where as many blocks start as the part has cores."""
    return context / np.maximum(np.minimum(splits, context / _KEYS), 1.0) if np.isfinite(splits) else 0.0


def latent_prefill_work(
    batch: Array, tokens: Array, *, heads: Array, prefix: Array = 0.0, key_dim: float = 192.0, value_dim: float = 128.0
) -> KernelWork:
    """Return the work of MLA prefill attention, keys and values expanded for each head.

    Parameters
    ----------
    batch, tokens, prefix : float or array
        Requests, new tokens of each, tokens already cached, [-]
    heads : float or array
        Heads on this rank, [-]
    key_dim, value_dim : float, optional
        Values of a key and of a value head, [-]

    Returns
    -------
    KernelWork
        The work.

    Examples
    --------
    >>> latent_prefill_work(1.0, 1024.0, heads=8.0).flop
    2686976000.0
    """
    return attention_prefill_work(
        batch, tokens, prefix=prefix, heads=heads, kv_heads=heads, head_dim=key_dim, value_dim=value_dim
    )


def sparse_latent_work(
    batch: Array,
    tokens: Array,
    *,
    prefix: Array,
    heads: Array,
    projection_weights: Array,
    weight_bytes: Array,
    kv_token_bytes: Array,
    indexer: Array = 1.0,
    index_heads: Array = 32.0,
    top_k: float = 2048.0,
    pair_flop: Array = 2.0 * (2 * 512 + 64),
) -> KernelWork:
    """Return the work of a whole DSA attention block: projections, indexer, selection, attention over the selected.

    Parameters
    ----------
    batch, tokens, prefix : float or array
        Requests, new tokens of each (1 in decode), tokens already cached, [-]
    heads : float or array
        Query heads on this rank, [-]
    projection_weights : float or array
        Weights of all projections on this rank, indexer included, [-]
    weight_bytes : float or array
        Stored bytes for each of them, [B]
    kv_token_bytes : float or array
        Bytes of one token in the latent cache, [B]
    indexer : float or array, optional
        1 for a layer that runs the indexer, 0 for one that reuses its selection, [-]
    index_heads : float or array, optional
        Heads of the indexer, 128 values each, [-]
    top_k : float, optional
        Tokens the indexer selects; infinite for plain MLA, [-]
    pair_flop : float or array, optional
        Operations of one head for one pair of query and key: absorbed by default; expanded keys and values of a dense
        prefill need ``2·(key + value)``, [FLOP]

    Returns
    -------
    KernelWork
        The work; the cache reads are `side_bytes` because they follow the projections.

    Notes
    -----
    Below `top_k` tokens some engines use a dense kernel; its time is not told apart.

    Examples
    --------
    >>> work = sparse_latent_work(1.0, 1.0, prefix=8191.0, heads=8.0, projection_weights=3e7, weight_bytes=1.0,
    ...                           kv_token_bytes=656.0)
    >>> float(work.side_bytes)
    2424832.0
    """
    length = prefix + (tokens + 1) / 2
    selected = np.minimum(length, top_k)
    queries = batch * tokens
    attention = queries * selected * heads * pair_flop
    scores = 2.0 * queries * length * index_heads * 128.0 * indexer
    return KernelWork(
        flop=2.0 * queries * projection_weights + attention + scores,
        bytes=projection_weights * weight_bytes + queries * heads * 2048.0,
        rows=queries,
        side_bytes=queries * selected * kv_token_bytes + batch * (prefix + tokens) * 132.0 * indexer,
    )
