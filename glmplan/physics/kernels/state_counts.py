"""Work of kernels that carry a state, streams or tokens between ranks: delta rule, convolution, mixing, exchange.

As in `glmplan.physics.kernels.counts`, the same counts are used to fit and to predict.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from glmplan.physics.kernels.utilisation import KernelWork

__all__ = ["convolution_work", "exchange_work", "mixing_work", "recurrent_decode_work", "recurrent_prefill_work"]

Array = Any

_BF16, _FP32 = 2.0, 4.0
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
    """Return the work of one step of the gated delta rule: every request's state is read and written.

    Parameters
    ----------
    batch : float or array
        Requests, [-]
    key_heads, value_heads, key_dim, value_dim : float or array, optional
        Heads on this rank and values of a head, [-]
    queries : float or array, optional
        Tokens verified for each request (1 + draft): the state after each of them is kept until it is known how many
        are accepted [1]_, [-]

    Returns
    -------
    KernelWork
        The work; the state is held in FP32.

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
    moved = (1.0 + queries) * _FP32 * state + values * _BF16
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

    Parameters
    ----------
    batch, tokens : float or array
        Requests, and new tokens of each, [-]
    key_heads, value_heads, key_dim, value_dim : float or array, optional
        Heads on this rank and values of a head, [-]

    Returns
    -------
    KernelWork
        The work: products inside chunks of 64 tokens, and with the state between them.

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
    return KernelWork(flop, values * _BF16 + states, tiles=heads * (tokens / _CHUNK + 1), streams=heads)


def convolution_work(batch: Array, tokens: Array, *, channels: Array) -> KernelWork:
    """Return the work of the short causal convolution before the delta rule.

    Parameters
    ----------
    batch, tokens : float or array
        Requests, and new tokens of each (1 in decode), [-]
    channels : float or array
        Channels on this rank: queries, keys and values, [-]

    Returns
    -------
    KernelWork
        The work: each value read and written once, and four tokens of state for each request.

    Examples
    --------
    >>> convolution_work(1.0, 1.0, channels=8192.0).bytes
    163840.0
    """
    values = batch * tokens * channels
    moved = 2 * _BF16 * values + 2 * 4 * _BF16 * batch * channels
    return KernelWork(8.0 * values, moved, streams=batch * channels / 1024)


def mixing_work(tokens: Array, *, streams: Array, hidden: Array, part: str) -> KernelWork:
    """Return the work of one site of manifold-constrained hyper-connections: before a block, after it, or both in one.

    Parameters
    ----------
    tokens : float or array
        Tokens, [-]
    streams, hidden : float or array
        Residual streams, and values of each, [-]
    part : str
        ``read``: all streams are read and one state is written; ``write``: the state and all streams are read, and all
        streams written; ``both``: the write of one block with the read for the next.

    Returns
    -------
    KernelWork
        Bytes alone: for four streams the mix computes 20 FLOP for each byte that it moves. Its weights, a fraction of a
        microsecond, and the rounds that make the mix doubly stochastic are in the kernel's floor.

    Examples
    --------
    >>> [float(mixing_work(1.0, streams=4, hidden=4096, part=part).bytes) for part in ("read", "write", "both")]
    [40960.0, 73728.0, 106496.0]
    """
    states = {"read": streams + 1, "write": 2 * streams + 1, "both": 3 * streams + 1}[part]
    return KernelWork(flop=0.0 * tokens, bytes=_BF16 * tokens * hidden * states)


def exchange_work(tokens: Array, *, ranks: Array, hidden: Array, top_k: Array, value_bytes: float) -> KernelWork:
    """Return the work of sending tokens to the ranks of their experts, or of bringing them back.

    Parameters
    ----------
    tokens : float or array
        Tokens of one rank, [-]
    ranks : float or array
        Ranks that share the experts, [-]
    hidden, top_k : float or array
        Width of the model, and experts of a token, [-]
    value_bytes : float
        Bytes for each value sent, [B]

    Returns
    -------
    KernelWork
        Bytes that leave the rank; give the link's rate as the peak bandwidth.

    Notes
    -----
    A token goes once to each rank that has one of its experts: ``n·(1 − (1 − 1/n)^k)`` ranks, itself among them.

    Examples
    --------
    >>> round(float(exchange_work(1.0, ranks=8.0, hidden=7168.0, top_k=8.0, value_bytes=2.0).bytes))
    65870
    """
    reached = ranks * (1 - (1 - 1 / np.maximum(ranks, 1)) ** top_k)
    return KernelWork(flop=0.0, bytes=tokens * hidden * value_bytes * reached * (ranks - 1) / ranks)
