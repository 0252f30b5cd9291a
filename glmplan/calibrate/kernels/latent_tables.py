"""Tables of MLA attention, and of whole MLA and DSA blocks with their projections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from glmplan.calibrate.kernels.tables import FORMATS, KV_BYTES, Rows, Table, attention_groups, grouped, take
from glmplan.facts.engines.kernels import attention_rule
from glmplan.physics.kernels.counts import latent_decode_work, latent_prefill_work, sparse_latent_work

__all__ = ["block_rows", "latent_decode_rows", "latent_prefill_rows"]


def latent_decode_rows(table: Table) -> Iterator[Rows]:
    """Yield the rows of a table of absorbed MLA decode, for each format and backend.

    Parameters
    ----------
    table : dict
        Columns.

    Yields
    ------
    tuple
        Format, backend, precision, sampled columns, points, work and resident bytes.
    """
    for dtype, backend, t, points in attention_groups(table, "kv_cache_dtype", table["step"] >= 63):
        splits = attention_rule("sglang" if backend == "triton" else "", backend).splits
        work = latent_decode_work(
            t["batch_size"], t["step"] + 1, heads=t["num_heads"], kv_bytes=KV_BYTES[dtype], splits=splits
        )
        yield FORMATS[dtype][0], backend, "bf16", t, points, work, np.asarray(work.bytes)


def latent_prefill_rows(table: Table) -> Iterator[Rows]:
    """Yield the rows of a table of MLA prefill, for each format and backend.

    Parameters
    ----------
    table : dict
        Columns.

    Yields
    ------
    tuple
        Format, backend, precision, sampled columns, points, work and resident bytes.
    """
    for dtype, backend, t, points in attention_groups(table, "mla_dtype", table["isl"] >= 64):
        work = latent_prefill_work(t["batch_size"], t["isl"], heads=t["num_heads"], prefix=t["step"])
        yield FORMATS[dtype][0], backend, FORMATS[dtype][3], t, points, work, np.full(len(t["isl"]), np.inf)


def _projections(t: Table, *, indexer: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights of an MLA block on one rank, its indexer heads, FLOP of an expanded pair; shapes from config.json."""
    glm = np.array(["Glm" in name for name in t["architecture"].astype(str)], dtype=bool)
    hidden, query = np.where(glm, 6144, 7168), np.where(glm, 2048, 1536)
    nope, value, index = np.where(glm, 192, 128), np.where(glm, 256, 128), np.where(glm, 32, 64)
    heads = t["num_heads"]
    latent = hidden * (query + 576) + heads * (query * (nope + 64) + 512 * (nope + value) + value * hidden)
    scorer = query * index * 128 + hidden * (128 + index)
    return latent + indexer * scorer, index.astype(float), 2.0 * (nope + 64 + value)


def block_rows(decode: bool, sparse: bool) -> Callable[[Table], Iterator[Any]]:
    """Return what yields the rows of a table of whole MLA or DSA blocks, for each pair of formats and each backend.

    Parameters
    ----------
    decode : bool
        Whether the table holds decode steps.
    sparse : bool
        Whether the blocks have an indexer.

    Returns
    -------
    callable
        Takes the table.
    """

    def rows(table: Table) -> Iterator[Rows]:
        for (dtype, kv, backend), mask in grouped(table, "gemm_type", "kv_cache_dtype", "kernel_source"):
            if dtype not in FORMATS or kv not in KV_BYTES:
                continue
            t, points = take(table, mask & ((table["step"] >= 63) | (not decode)))
            runs = np.full(len(t["latency"]), float(sparse and "skip_indexer" not in backend))
            weights, index_heads, expanded = _projections(t, indexer=runs)
            dense = not decode and (not sparse or "dense_mha" in backend)
            name, stored, _, compute = FORMATS[dtype]
            work = sparse_latent_work(
                t["batch_size"],
                np.ones_like(t["step"]) if decode else t["isl"],
                prefix=t["step"],
                heads=t["num_heads"],
                projection_weights=weights,
                weight_bytes=stored,
                kv_token_bytes=1152.0 if kv == "bfloat16" else 656.0 if sparse else 576.0,
                indexer=runs,
                index_heads=index_heads,
                top_k=2048.0 if sparse and not dense else np.inf,
                pair_flop=expanded if dense else 2.0 * (2 * 512 + 64),
            )
            name = f"{name}+{FORMATS[kv][0]}"
            yield name, backend, compute, t, points, work, np.full(len(runs), np.inf)

    return rows
