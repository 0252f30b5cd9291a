"""Multi-head latent attention (MLA) and, with an indexer, DeepSeek sparse attention (DSA).

DeepSeek-V2, arXiv 2405.04434 (MLA); DeepSeek-V3.2, arXiv 2512.02556 (DSA); GLM-5 uses both (`glm_moe_dsa`).
The cache keeps one latent vector and one rotary key for all heads together, so tensor parallelism does not split it.
"""

from __future__ import annotations

import numpy as np

from glmplan.facts.schema.model import Indexer, LatentAttention
from glmplan.physics.blocks.tensor import Tensor

__all__ = [
    "INDEX_KEY_SCALE_BYTES",
    "absorbed_core_flop",
    "absorbed_widths",
    "attended",
    "cache_values_per_token",
    "expanded_core_flop",
    "expanded_widths",
    "index_key_bytes",
    "indexer_flop",
    "tensors",
]

#: the FP8 index keys carry one FP32 scale for each 128 values (vLLM and SGLang: 132 B a token and layer) [B]
INDEX_KEY_SCALE_BYTES = 4


def tensors(block: LatentAttention, hidden: int) -> tuple[Tensor, ...]:
    """Weights of the block; the down-projections and the indexer are the same on every tensor-parallel rank.

    Parameters
    ----------
    block : LatentAttention
        Its shape.
    hidden : int
        Hidden size of the model, [-]

    Returns
    -------
    tuple of Tensor
        Projections, norms and indexer.

    Examples
    --------
    GLM-5.1 has 165,022,208 attention and 9,371,904 indexer weights a layer:

    >>> indexer = Indexer(heads=32, head_dim=128, topk=2048)
    >>> glm = LatentAttention(heads=64, q_rank=2048, kv_rank=512, nope_dim=192, rope_dim=64, v_dim=256, indexer=indexer)
    >>> rows = tensors(glm, 6144)
    >>> sum(t.parameters for t in rows if t.tensor_class != "indexer")
    165022208
    >>> sum(t.parameters for t in rows if t.tensor_class == "indexer")
    9371904
    """
    qk = block.nope_dim + block.rope_dim
    heads = block.heads
    found = []
    if block.q_rank:
        found += [
            Tensor("self_attn.q_a_proj", "latent_down", block.q_rank, hidden, shard="replicated"),
            Tensor("self_attn.q_a_layernorm", "norm", block.q_rank, 1, shard="replicated", matmul=False),
            Tensor("self_attn.q_b_proj", "attention", heads * qk, block.q_rank, shard="heads", units=heads),
        ]
    else:
        found.append(Tensor("self_attn.q_proj", "attention", heads * qk, hidden, shard="heads", units=heads))
    kv_up = heads * (block.nope_dim + block.v_dim)
    kv_down = block.kv_rank + block.rope_dim
    found += [
        Tensor("self_attn.kv_a_proj_with_mqa", "latent_down", kv_down, hidden, shard="replicated"),
        Tensor("self_attn.kv_a_layernorm", "norm", block.kv_rank, 1, shard="replicated", matmul=False),
        Tensor("self_attn.kv_b_proj", "attention", kv_up, block.kv_rank, shard="heads", units=heads),
        Tensor("self_attn.o_proj", "attention", hidden, heads * block.v_dim, shard="heads", units=heads),
    ]
    if block.out_gate:
        found.append(Tensor("self_attn.g_proj", "attention", heads * block.v_dim, hidden, shard="heads", units=heads))
    index = block.indexer
    if index is not None and not index.reads_from_previous:
        query_width = block.q_rank or hidden
        found += [
            Tensor("self_attn.indexer.wq_b", "indexer", index.heads * index.head_dim, query_width, shard="replicated"),
            Tensor("self_attn.indexer.wk", "indexer", index.head_dim, hidden, shard="replicated"),
            Tensor("self_attn.indexer.weights_proj", "indexer", index.heads, hidden, shard="replicated"),
            Tensor("self_attn.indexer.k_norm", "indexer", 2 * index.head_dim, 1, shard="replicated", matmul=False),
        ]
    return tuple(found)


def cache_values_per_token(block: LatentAttention) -> int:
    """Latent and rotary values that the cache keeps for each token in this layer (index keys not included).

    Parameters
    ----------
    block : LatentAttention
        Its shape.

    Returns
    -------
    int
        Values for each token, [-]

    Examples
    --------
    >>> cache_values_per_token(LatentAttention(heads=64, kv_rank=512, nope_dim=192, rope_dim=64, v_dim=256))
    576
    """
    return absorbed_widths(block)[0]


def absorbed_widths(block: LatentAttention) -> tuple[int, int]:
    """Values that a head multiplies with each key and each value when the up-projections are absorbed (decode).

    Parameters
    ----------
    block : LatentAttention
        Its shape.

    Returns
    -------
    tuple of int
        Width of a key, latent and rotary, which is what the cache keeps; and of a value, the latent alone, [-]

    Examples
    --------
    >>> absorbed_widths(LatentAttention(heads=64, kv_rank=512, nope_dim=192, rope_dim=64, v_dim=256))
    (576, 512)
    """
    return block.kv_rank + block.rope_dim, block.kv_rank


def expanded_widths(block: LatentAttention) -> tuple[int, int]:
    """Values that a head multiplies with each key and each value when both are expanded (prompts).

    Parameters
    ----------
    block : LatentAttention
        Its shape.

    Returns
    -------
    tuple of int
        Width of a key and of a value, [-]

    Examples
    --------
    >>> expanded_widths(LatentAttention(heads=64, kv_rank=512, nope_dim=192, rope_dim=64, v_dim=256))
    (256, 256)
    """
    return block.nope_dim + block.rope_dim, block.v_dim


def index_key_bytes(block: LatentAttention) -> int:
    """Bytes of index keys that the cache keeps for each token in this layer.

    Parameters
    ----------
    block : LatentAttention
        Its shape.

    Returns
    -------
    int
        Bytes for each token, [B]; 0 without an indexer of its own.

    Examples
    --------
    >>> indexer = Indexer(heads=32, head_dim=128, topk=2048)
    >>> index_key_bytes(LatentAttention(heads=64, kv_rank=512, nope_dim=192, rope_dim=64, v_dim=256, indexer=indexer))
    132
    """
    index = block.indexer
    if index is None or index.reads_from_previous:
        return 0
    return index.head_dim + INDEX_KEY_SCALE_BYTES * -(-index.head_dim // 128)


def attended(block: LatentAttention, context: np.ndarray, *, sparse: bool) -> np.ndarray:
    """Keys that one query reads in the main attention.

    Parameters
    ----------
    block : LatentAttention
        Its shape.
    context : (n,) array
        Tokens before the query, [token]
    sparse : bool
        Whether the engine runs the sparse kernels; without them the attention is dense.

    Returns
    -------
    (n,) array
        Keys read, [token]

    Examples
    --------
    >>> indexer = Indexer(heads=32, head_dim=128, topk=2048)
    >>> glm = LatentAttention(heads=64, kv_rank=512, nope_dim=192, rope_dim=64, v_dim=256, indexer=indexer)
    >>> attended(glm, np.array([1000.0, 50000.0]), sparse=True)
    array([1000., 2048.])
    """
    if sparse and block.indexer is not None:
        return np.minimum(context, float(block.indexer.topk))
    return context


def absorbed_core_flop(block: LatentAttention, keys: np.ndarray) -> np.ndarray:
    """FLOP for one query token when the up-projections are absorbed (decode): heads work on the latent itself.

    Parameters
    ----------
    block : LatentAttention
        Its shape.
    keys : (n,) array
        Keys read by the query, [token]

    Returns
    -------
    (n,) array
        [FLOP]

    Examples
    --------
    >>> mla = LatentAttention(heads=2, kv_rank=8, nope_dim=4, rope_dim=2, v_dim=4)
    >>> float(absorbed_core_flop(mla, np.array(10.0)))
    720.0
    """
    return 2.0 * block.heads * sum(absorbed_widths(block)) * keys


def expanded_core_flop(block: LatentAttention, keys: np.ndarray) -> np.ndarray:
    """FLOP for one query token on expanded keys and values (dense prefill).

    Parameters
    ----------
    block : LatentAttention
        Its shape.
    keys : (n,) array
        Keys read by the query, [token]

    Returns
    -------
    (n,) array
        [FLOP]

    Examples
    --------
    >>> mla = LatentAttention(heads=2, kv_rank=8, nope_dim=4, rope_dim=2, v_dim=4)
    >>> float(expanded_core_flop(mla, np.array(10.0)))
    400.0
    """
    return 2.0 * block.heads * sum(expanded_widths(block)) * keys


def indexer_flop(block: LatentAttention, context: np.ndarray) -> np.ndarray:
    """FLOP of the index scores for one query token; the indexer looks at every earlier token.

    Parameters
    ----------
    block : LatentAttention
        Its shape.
    context : (n,) array
        Tokens before the query, [token]

    Returns
    -------
    (n,) array
        [FLOP]; 0 for layers without an indexer of their own.

    Examples
    --------
    >>> indexer = Indexer(heads=32, head_dim=128, topk=2048)
    >>> glm = LatentAttention(heads=64, kv_rank=512, nope_dim=192, rope_dim=64, v_dim=256, indexer=indexer)
    >>> float(indexer_flop(glm, np.array(1000.0)))
    8192000.0
    """
    index: Indexer | None = block.indexer
    if index is None or index.reads_from_previous:
        return np.zeros_like(np.asarray(context, dtype=float))
    return 2.0 * index.heads * index.head_dim * np.asarray(context, dtype=float)
