"""Multi-head, multi-query and grouped-query attention.

Full or with a sliding window. Ainslie et al., GQA, arXiv 2305.13245; sliding windows as in Mistral 7B, arXiv
2310.06825.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np

from glmplan.catalog.formats import kv_format
from glmplan.catalog.schema.engine import CacheLayout
from glmplan.catalog.schema.model import GroupedQuery
from glmplan.costs.blocks.mixer import Core, CoreKernel, CoreStep, LayerCache, Mixer, heads_on_rank
from glmplan.costs.blocks.tensor import Tensor
from glmplan.costs.kernels.counts import attention_decode_work, attention_prefill_work
from glmplan.units import TokensArray

__all__ = ["GroupedQueryMixer"]


@dataclass(frozen=True, slots=True)
class GroupedQueryMixer(Mixer):
    """Attention with keys and values for groups of heads.

    No engine is known to attend densely to a model whose indexer selects blocks of keys (MiniMax-M3), so it does not
    count as `indexed`; no source says how much that indexer gathers.

    Examples
    --------
    >>> block = GroupedQueryMixer(GroupedQuery(heads=96, kv_heads=8, head_dim=128))
    >>> sum(t.parameters for t in block.tensors(5120)), block.cache_values
    (136314880, 2048)
    """

    block: GroupedQuery

    @property
    def name(self) -> str:
        """Return ``grouped_query``."""
        return self.block.kind

    @property
    def words(self) -> str:
        """Return the heads, KV heads, width and window."""
        window = f", window {self.block.window:,}" if self.block.window else ""
        return f"{self.block.heads} heads on {self.block.kv_heads} of {self.block.head_dim}{window}"

    @property
    def features(self) -> frozenset[str]:
        """Return `gqa`, and `window` for windowed attention."""
        return frozenset({"gqa", "window"} if self.block.window else {"gqa"})

    @property
    def heads(self) -> int:
        """Return the query heads."""
        return self.block.heads

    @property
    def pieces(self) -> int:
        """Return the KV heads, or groups of them of 128 columns.

        With an indexer the layer is one piece.
        """
        group = 128 // gcd(self.block.head_dim, 128)
        return 1 if self.block.indexer is not None else max(self.block.kv_heads // group, 1)

    @property
    def rotary_values(self) -> int:
        """Return the rotary values; by default the full head."""
        return self.block.head_dim if self.block.rotary_dim is None else self.block.rotary_dim

    @property
    def value_dim(self) -> int:
        """Return the width of a value."""
        return self.block.v_head_dim or self.block.head_dim

    @property
    def cache_values(self) -> int:
        """Return the cached values of a token in all heads; 0 for shared caches."""
        return 0 if self.block.shared_kv else self.block.kv_heads * (self.block.head_dim + self.value_dim)

    def cut_problem(self, tp: int, model: str) -> str | None:
        """Return why a degree splits KV heads, or None."""
        heads = self.block.kv_heads
        if heads % tp and tp % heads:
            return f"neither divides the {heads} KV heads of {model} nor is a multiple of them"
        return None

    def shared_context_problem(self, tp: int, dcp: int, model: str) -> str | None:
        """Return why ranks do not divide the cached tokens, or None.

        Ranks that hold the same KV heads divide the tokens, those of windows excepted.
        """
        if self.block.window:
            return f"does not divide the windows of {model}"
        heads, queries = self.block.kv_heads, self.block.heads // self.block.kv_heads
        if heads * dcp > tp:
            return f"needs TP {heads * dcp} or more: the ranks that divide tokens hold the same of {heads} KV heads"
        if queries % dcp:
            return f"does not divide the {queries} query heads of each KV head of {model}"
        return None

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Return projections with biases and norms, and the indexer."""
        block = self.block
        q = block.heads * block.head_dim
        k = block.kv_heads * block.head_dim
        v = block.kv_heads * self.value_dim
        out = block.heads * self.value_dim
        wide = q * (2 if block.gated else 1)
        result = [Tensor("self_attn.q_proj", "attention", wide, hidden, shard="heads", units=block.heads)]
        if not block.shared_kv:
            result.append(Tensor("self_attn.k_proj", "attention", k, hidden, shard="heads", units=block.kv_heads))
            if not block.key_is_value:
                result.append(Tensor("self_attn.v_proj", "attention", v, hidden, shard="heads", units=block.kv_heads))
        result.append(
            Tensor("self_attn.o_proj", "attention", hidden, out, shard="heads", units=block.heads, splits_input=True)
        )
        if block.head_gated:
            result.append(
                Tensor("self_attn.g_proj", "attention", block.heads, hidden, shard="heads", units=block.heads)
            )
        if block.qkv_bias:
            result.append(Tensor("self_attn.qkv_bias", "norm", q + k + v, 1, shard="replicated", matmul=False))
        if block.out_bias:
            result.append(Tensor("self_attn.o_bias", "norm", hidden, 1, shard="replicated", matmul=False))
        if block.qk_norm:
            width = q + k if block.qk_norm_wide else 2 * block.head_dim
            result.append(Tensor("self_attn.qk_norm", "norm", width, 1, shard="replicated", matmul=False))
        index = block.indexer
        if index is not None:
            wide = index.heads * index.head_dim
            result += [
                Tensor("self_attn.index_q_proj", "indexer", wide, hidden, shard="heads", units=index.heads),
                Tensor("self_attn.index_k_proj", "indexer", index.head_dim, hidden, shard="replicated"),
                Tensor("self_attn.index_norm", "norm", 2 * index.head_dim, 1, shard="replicated", matmul=False),
            ]
        if block.sinks:
            result.append(Tensor("self_attn.sinks", "norm", block.heads, 1, shard="replicated", matmul=False))
        if block.relative:
            each, extent = block.heads * block.relative, block.relative * (block.relative_extent or 0)
            result += [
                Tensor("self_attn.r_proj", "attention", each, hidden, shard="heads", units=block.heads),
                Tensor("self_attn.relative", "norm", extent, 1, shard="replicated", matmul=False),
            ]
        if block.convolution:
            result.append(Tensor("self_attn.kv_conv", "norm", block.convolution * (k + v), 1, shard="heads",
                                units=block.kv_heads, matmul=False))  # fmt: skip
        return tuple(result)

    def activation_values(self, tp: np.ndarray) -> np.ndarray:
        """Return queries, results, keys and values."""
        block, values = self.block, self.value_dim
        queries = block.heads / tp * (block.head_dim * (2 if block.gated else 1) + values)
        result: np.ndarray = queries + block.kv_heads / np.minimum(tp, block.kv_heads) * (block.head_dim + values)
        return result

    def cache(self, kv: str, layout: CacheLayout) -> LayerCache:
        """Return keys and values, and keys of a block indexer.

        A window keeps only the last tokens. The index keys stay in BF16, one head for all (MiniMax-M3, llama.cpp pull
        request 24908).
        """
        block = self.block
        index = 2.0 * block.indexer.head_dim / block.indexer.pool if block.indexer is not None else 0.0
        held = self.cache_values * kv_format(kv).bytes + index
        if block.window is None:
            return LayerCache(per_token=held, units=block.kv_heads)
        return LayerCache(in_window=held, window=block.window, units=block.kv_heads)

    def page_token(self, *, tp: int, kv_bytes: float) -> float:
        """Return keys and values of a token, one head at least."""
        return 2.0 * max(self.block.kv_heads / tp, 1.0) * self.block.head_dim * kv_bytes

    def decode_blocks(self, tp: int) -> float:
        """Return one for each KV head on the rank."""
        return self.block.kv_heads / min(tp, self.block.kv_heads)

    def attended(self, context: TokensArray) -> TokensArray:
        """Return the keys that one query reads.

        All, the window, or those that an indexer selects.

        Examples
        --------
        >>> block = GroupedQueryMixer(GroupedQuery(heads=8, kv_heads=8, head_dim=64, window=128))
        >>> block.attended(np.array([100.0, 4096.0]))
        array([100., 128.])
        """
        limit = self.block.window or (self.block.indexer.topk if self.block.indexer is not None else None)
        return np.minimum(context, float(limit)) if limit else context

    def core(self, step: CoreStep) -> Core:
        """Return decode attention over the cache and causal prompt attention.

        Not modelled: the scores of a block indexer.
        """
        block, tokens, dcp = self.block, step.tokens, step.degrees.dcp
        heads = heads_on_rank(block.heads, step.degrees)
        gathered = np.minimum(heads * dcp, block.heads)
        kv_heads = heads_on_rank(block.kv_heads, step.degrees)
        wide = (block.head_dim + self.value_dim) / 2.0
        keys = np.maximum(self.attended(tokens.context), 1.0) / dcp
        decode = attention_decode_work(step.requests, keys, heads=gathered, kv_heads=kv_heads, head_dim=wide,
                                       kv_bytes=step.kv_bytes, queries=step.verify, splits=step.splits)  # fmt: skip
        before = self.attended(tokens.keys) - (step.prompt + 1.0) / 2.0
        prompt = attention_prefill_work(
            1.0, step.prompt, prefix=before, heads=heads, kv_heads=kv_heads, head_dim=wide
        )  # fmt: skip
        return Core(
            decode=(CoreKernel("decode-attention", decode, "heads", gathered / kv_heads),),
            prompt=(CoreKernel("prefill-attention", prompt),),
            exchange=(gathered * block.head_dim, gathered * wide),
        )

    def token_core(self, decode: np.ndarray, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the attention of all query heads over the KV heads."""
        width = self.block.head_dim + self.value_dim
        seen, read = self.attended(decode), self.attended(prompt)
        flop = 2.0 * self.block.heads * width
        return np.stack([seen, read]) * self.block.kv_heads * width, flop * seen, flop * read
