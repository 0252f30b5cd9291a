"""Count FLOP, bytes and shape of kernels, for fits and predictions.

The kernels are those that an engine launches. Arguments are numbers or arrays that broadcast; heads, experts and widths
are those of one rank, `queries` the tokens verified for each request (1 + speculative), `prefix` the tokens already
cached. `weight_bytes` and `kv_bytes` are stored bytes for each value with scales; `activation_bytes` is the size of a
value as it enters the product (2 for BF16, 1 for FP8, 0.5625 for NVFP4). Values between kernels are BF16. One CUDA
block computes about 128 × 128 of an output; `rows/128 + 1` counts such tiles without steps, so that more tokens are
never faster.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from glmplan.costs.kernels.utilisation import KernelWork
from glmplan.units import Bytes, BytesArray, FlopArray, Ratio

__all__ = [
    "Indexer",
    "LatentBlock",
    "attention_decode_work",
    "attention_prefill_work",
    "convolution_work",
    "exchange_work",
    "expert_work",
    "gemm_work",
    "latent_decode_work",
    "latent_prefill_work",
    "mixing_work",
    "recurrent_decode_work",
    "recurrent_prefill_work",
    "sparse_latent_work",
    "touched_experts",
]


Array = Any
_TILE, _BF16 = 128.0, 2.0
_KEYS = 64.0  # keys of one turn of a block


def gemm_work(m: Array, n: Array, k: Array, *, weight_bytes: Bytes, activation_bytes: Bytes = _BF16) -> KernelWork:
    """Return the work of ``(m, k) × (k, n)``.

    Below 2 activation bytes a quantising pass is added.

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
    """Return the expected experts of a batch: ``E·(1 − (1 − k/E)^m)``.

    Each token chooses at random. Real routers are less even, so fewer experts are touched and the fullest one has more
    tokens.

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
    weight_bytes: Bytes,
    activation_bytes: Bytes = _BF16,
    matrices: Array = 3.0,
) -> KernelWork:
    """Return the work of one rank's routed experts.

    Permute, gate and up, activation, down, un-permute. `slots`: pairs whose rows pass through memory: the rank's own,
    or `tokens · top_k` in kernels that carry the pairs of other ranks along (`carries_all`). `touched`:
    different experts of this rank that have a token; `rows` of the result is tokens for each of them. `matrices`: 3
    with a gate, 2 without.

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
    kv_bytes: Bytes,
    queries: Array = 1.0,
    splits: Ratio = math.inf,
) -> KernelWork:
    """Return the work of decode attention over a cache of keys and values.

    `splits`: blocks that share the keys of one request and KV head; infinite for as many as the accelerator has cores.
    `streams` of the result is the context, so that short sequences pay for the block that they start.

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
    kv_bytes: Bytes = _BF16,
) -> KernelWork:
    """Return the causal attention of new tokens over a prefix and themselves.

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
    kv_bytes: Bytes,
    latent: Ratio = 512.0,
    rope: Ratio = 64.0,
    queries: Array = 1.0,
    splits: Ratio = math.inf,
) -> KernelWork:
    """Return the work of absorbed MLA decode: all heads share one latent.

    `context`: tokens read for each request (2048 at most with DSA). `latent`, `rope`: width of the latent and of the
    rotary key. `splits` as in `attention_decode_work`, for a group of heads.

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
    """Return the keys that one block reads serially.

    0 with as many blocks as cores.
    """
    return context / np.maximum(np.minimum(splits, context / _KEYS), 1.0) if np.isfinite(splits) else 0.0


def latent_prefill_work(batch: Array, tokens: Array, *, heads: Array, prefix: Array = 0.0) -> KernelWork:
    """Return the work of MLA prefill with keys and values of each head.

    Examples
    --------
    >>> latent_prefill_work(1.0, 1024.0, heads=8.0).flop
    2686976000.0
    """
    return attention_prefill_work(
        batch, tokens, prefix=prefix, heads=heads, kv_heads=heads, head_dim=192.0, value_dim=128.0
    )


class LatentBlock(NamedTuple):
    """Shapes of a whole MLA or DSA block.

    `projection_weights`: of all projections, indexer included. `pair_flop`: operations of one head for a pair of query
    and key: absorbed by default; expanded keys and values of a dense prefill need ``2·(key + value)``.
    """

    heads: Array
    projection_weights: Array
    weight_bytes: BytesArray
    kv_token_bytes: BytesArray
    pair_flop: FlopArray = 2.0 * (2 * 512 + 64)


class Indexer(NamedTuple):
    """Selection of the keys of a DSA block.

    `runs`: 1 for a layer that runs the indexer, 0 for one that reuses its selection. `top_k`: tokens selected; infinite
    for plain MLA.
    """

    runs: Array = 1.0
    heads: Array = 32.0
    top_k: Ratio = 2048.0


_GLM_INDEXER = Indexer()


def sparse_latent_work(
    batch: Array, tokens: Array, *, prefix: Array, block: LatentBlock, indexer: Indexer = _GLM_INDEXER
) -> KernelWork:
    """Return the work of a DSA attention block.

    Projections, indexer, selection, attention. Cache reads are `side_bytes` because they follow the projections. Not
    modelled: dense kernels of some engines below `top_k` tokens.

    Examples
    --------
    >>> block = LatentBlock(heads=8.0, projection_weights=3e7, weight_bytes=1.0, kv_token_bytes=656.0)
    >>> float(sparse_latent_work(1.0, 1.0, prefix=8191.0, block=block).side_bytes)
    2424832.0
    """
    length = prefix + (tokens + 1) / 2
    selected = np.minimum(length, indexer.top_k)
    queries = batch * tokens
    attention = queries * selected * block.heads * block.pair_flop
    scores = 2.0 * queries * length * indexer.heads * 128.0 * indexer.runs
    return KernelWork(
        flop=2.0 * queries * block.projection_weights + attention + scores,
        bytes=block.projection_weights * block.weight_bytes + queries * block.heads * 2048.0,
        rows=queries,
        side_bytes=queries * selected * block.kv_token_bytes + batch * (prefix + tokens) * 132.0 * indexer.runs,
    )


_BF16_STATE_COUNTS, _FP32 = 2.0, 4.0
_CHUNK = 64.0  # tokens that the chunked delta rule turns into one small attention


def recurrent_decode_work(
    batch: Array,
    *,
    key_heads: Array,
    value_heads: Array,
    key_dim: Array = 128.0,
    value_dim: Array = 128.0,
    queries: Array = 1.0,
) -> KernelWork:
    """Return the work of one step of the gated delta rule.

    Every request's FP32 state is read and written. With several `queries` the state after each of them is kept until it
    is known how many are accepted [1]_.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/model_executor/layers/fla/ops/fused_recurrent.py (`IS_SPEC_DECODING`);
       sgl-project/sglang, `intermediate_ssm` of the Mamba pool.

    Examples
    --------
    >>> recurrent_decode_work(1.0, key_heads=16.0, value_heads=32.0).bytes
    4218880.0
    """
    state = batch * value_heads * key_dim * value_dim
    values = batch * queries * 2 * (key_heads * key_dim + value_heads * value_dim)
    moved = (1.0 + queries) * _FP32 * state + values * _BF16_STATE_COUNTS
    return KernelWork(flop=8.0 * queries * state, bytes=moved, streams=batch * value_heads)


def recurrent_prefill_work(
    batch: Array,
    tokens: Array,
    *,
    key_heads: Array,
    value_heads: Array,
    key_dim: Array = 128.0,
    value_dim: Array = 128.0,
) -> KernelWork:
    """Return the work of the chunked gated delta rule over new tokens.

    Products inside chunks of 64 tokens, and with the state between them.

    Examples
    --------
    >>> recurrent_prefill_work(1.0, 64.0, key_heads=1.0, value_heads=1.0).flop
    10485760.0
    """
    total = batch * tokens
    flop = total * value_heads * (4 * _CHUNK * (key_dim + value_dim) + 6 * key_dim * value_dim)
    values = total * 2 * (key_heads * key_dim + 1.5 * value_heads * value_dim)
    states = batch * value_heads * key_dim * value_dim * 2 * _FP32
    heads = batch * value_heads
    return KernelWork(flop, values * _BF16_STATE_COUNTS + states, tiles=heads * (tokens / _CHUNK + 1), streams=heads)


def convolution_work(batch: Array, tokens: Array, *, channels: Array) -> KernelWork:
    """Return the work of the short causal convolution before the delta rule.

    Each value is read and written once, with four tokens of state for each request. `channels`: queries, keys and
    values.

    Examples
    --------
    >>> convolution_work(1.0, 1.0, channels=8192.0).bytes
    163840.0
    """
    values = batch * tokens * channels
    moved = 2 * _BF16_STATE_COUNTS * values + 2 * 4 * _BF16_STATE_COUNTS * batch * channels
    return KernelWork(8.0 * values, moved, streams=batch * channels / 1024)


def mixing_work(tokens: Array, *, streams: Array, hidden: Array, part: str) -> KernelWork:
    """Return the work of one site of manifold-constrained hyper-connections.

    `part`: ``read``: all streams are read and one state is written; ``write``: the state and all streams are read, and
    all streams written; ``both``: the write of one block with the read for the next. Bytes alone: for four streams the
    mix computes 20 FLOP for each byte that it moves. Its weights, a fraction of a microsecond, and the rounds that make
    the mix doubly stochastic are in the kernel's floor.

    Examples
    --------
    >>> [float(mixing_work(1.0, streams=4, hidden=4096, part=part).bytes) for part in ("read", "write", "both")]
    [40960.0, 73728.0, 106496.0]
    """
    states = {"read": streams + 1, "write": 2 * streams + 1, "both": 3 * streams + 1}[part]
    return KernelWork(flop=0.0 * tokens, bytes=_BF16_STATE_COUNTS * tokens * hidden * states)


def exchange_work(tokens: Array, *, ranks: Array, hidden: Array, top_k: Array, value_bytes: Bytes) -> KernelWork:
    """Return the work of sending tokens to their experts' ranks, or back.

    Bytes that leave the rank; give the link's rate as the peak bandwidth. A token goes once to each rank that has one
    of its experts: ``n·(1 − (1 − 1/n)^k)`` ranks, itself among them.

    Examples
    --------
    >>> round(float(exchange_work(1.0, ranks=8.0, hidden=7168.0, top_k=8.0, value_bytes=2.0).bytes))
    65870
    """
    reached = ranks * (1 - (1 - 1 / np.maximum(ranks, 1)) ** top_k)
    return KernelWork(flop=0.0, bytes=tokens * hidden * value_bytes * reached * (ranks - 1) / ranks)
