"""Compressed attention (DeepSeek-V4, V4.1).

A short window, and one entry for every few earlier tokens. Each layer attends to the last `window` tokens and, with a
`ratio`, to entries that a compressor pools of all tokens before: with an indexer to the `topk` best of one for 4 tokens
(compressed sparse attention, CSA), without to all of one for 128 (heavily compressed attention, HCA). One vector is key
and value of all heads, so that tensor parallelism does not split the cache; the output goes through groups of heads
[1]_.

Caches, as vLLM keeps them [2]_: in FP8 an entry takes 584 B (448 values, 64 rotary ones in BF16, 7 scales and a byte of
padding) and an index key 132 B; a compressor keeps key and score of the tokens that it has not pooled yet in FP32. A
sequence of a million tokens of DeepSeek-V4-Pro takes 9.62 GiB if all is BF16 [3]_.

DeepSeek-V4.1 pools 2 tokens or none, and nearly all its layers read the entries of an earlier layer, chosen among them
by an indexer of their own or by that of an earlier layer. It was trained to keep them in FP4: 288 B an entry (a scale
for 16 values), 68 B an index key (one for 32), and 528 B a token of the window in FP8, which makes 890 B a token for
the four layers that keep entries [4]_.

No table of kernels holds such attention: its kernels take the rule of thumb of unmeasured kernels.

.. [1] huggingface/transformers, src/transformers/models/deepseek_v4/modular_deepseek_v4.py (tensors).
.. [2] vllm-project/vllm, vllm/models/deepseek_v4/compressor.py (states, 132 B), vllm/v1/kv_cache_interface.py (584 B).
.. [3] https://vllm.ai/blog/deepseek-v4
.. [4] https://huggingface.co/deepseek-ai/DeepSeek-V4.1-Flash README.md ("890 bytes per token"), inference/kernel.py
   (`fp4_act_quant`); vllm-project/recipes, models/deepseek-ai/DeepSeek-V4.1-Flash.yaml; tensors:
   vllm-project/vllm, vllm/models/deepseek_v41.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.catalog.formats import kv_format
from glmplan.catalog.schema.engine import CacheLayout
from glmplan.catalog.schema.model import CompressedAttention
from glmplan.costs.blocks.latent import index_key_bytes
from glmplan.costs.blocks.mixer import (
    CachePage,
    Core,
    CoreKernel,
    CoreStep,
    IndexScan,
    LayerCache,
    Mixer,
    PageKind,
    heads_on_rank,
)
from glmplan.costs.blocks.tensor import Tensor
from glmplan.costs.kernels.counts import attention_prefill_work, latent_decode_work
from glmplan.units import TokenCount, TokensArray

__all__ = ["CompressedMixer"]

#: values that share a scale of one byte in the packed form, and bytes that scales are padded to
_SCALED, _PADDED = 64, 8
#: tokens of a page of entries; alignment of a packed page and of another [B]
_ENTRY_BLOCK, _PACKED_PAGE, _PLAIN_PAGE = 256, 576, 512
#: tokens of a page of the window, by whether positions are added to what is pooled (V4) or not (V4.1)
_WINDOW_BLOCK = {True: 64, False: 32}
#: tokens of a page of what is not pooled yet, by the tokens of an entry
_STATE_BLOCK = {4: 4, 128: 8}
#: with entries in FP4: bytes of an index key's value with its share of a scale for 32, and of a value in the window [B]
_FP4_INDEX, _FP4_WINDOW = 4.25 / 8, 1.0 + 1 / 32
#: of a key or score that is not pooled yet [B]
_STATE_BYTES = 4


@dataclass(frozen=True, slots=True)
class CompressedMixer(Mixer):
    """Attention over a window and over compressed entries.

    Engines without its kernels cannot run it at all, so it does not count as `indexed`. Its states lie in small blocks
    of the token pages, which have a fixed size, so no page has to grow.

    Examples
    --------
    A layer of DeepSeek-V4-Flash with an indexer; all its weights, and what 4 tokens add to the cache of vLLM in FP8:

    >>> from glmplan.catalog.schema.model import Indexer
    >>> from glmplan.costs.blocks.stack import cache_layout
    >>> csa = CompressedMixer(CompressedAttention(
    ...     heads=64, head_dim=512, rope_dim=64, q_rank=1024, out_groups=8, out_rank=1024, window=128, ratio=4,
    ...     overlapping=True, indexer=Indexer(heads=64, head_dim=128, topk=512)))
    >>> sum(t.parameters for t in csa.tensors(4096)), 4 * csa.cache("fp8", cache_layout("vllm")).per_token
    (126098624, 716.0)
    """

    block: CompressedAttention

    @property
    def name(self) -> str:
        """Return ``compressed``."""
        return self.block.kind

    @property
    def words(self) -> str:
        """Return the heads, window, tokens of an entry, and selection."""
        block = self.block
        many = f"one entry for {block.ratio} tokens" if block.ratio > 1 else "an entry for each token"
        pooled = f", {'reads ' if block.shared_kv else ''}{many}" if block.ratio else ""
        pooled += " of an earlier layer" if block.shared_kv else ""
        index, chosen = block.indexer, ""
        if index is not None:
            chosen = ", those chosen before" if index.reads_from_previous else f", top-{index.topk:,} of an indexer"
        return f"compressed attention, {block.heads} heads of {block.head_dim}, window {block.window:,}{pooled}{chosen}"

    @property
    def features(self) -> frozenset[str]:
        """Return `csa`; an additional window has no name."""
        return frozenset({"csa"})

    @property
    def packed_fp8(self) -> bool:
        """Return True: all entries are packed."""
        return True

    @property
    def heads(self) -> int:
        """Return the query heads."""
        return self.block.heads

    @property
    def extra_launches(self) -> float:
        """Return the launches of latent attention with an indexer.

        This block was not measured; that kernel path has fewer kernels.
        """
        return 1.0

    @property
    def rotary_values(self) -> int:
        """Return the number of rotary values, the last ones of a head."""
        return self.block.rope_dim

    @property
    def gathered_bytes(self) -> float:
        """Return the index keys of pooled tokens.

        vllm/models/deepseek_v4/attention.py divides by the ratio.
        """
        return self._index_bytes * self.entries_per_token if self._scores else 0.0

    @property
    def entries_per_token(self) -> float:
        """Return the compressed entries that each token adds."""
        return 1.0 / self.block.ratio if self.block.ratio else 0.0

    @property
    def cache_values(self) -> float:
        """Return the values that a token adds to the cache, with index keys."""
        if self.block.shared_kv:
            return 0.0
        index = self.block.indexer.head_dim if self._own_keys and self.block.indexer is not None else 0
        return (self.block.head_dim + index) * self.entries_per_token

    @property
    def _own_keys(self) -> bool:
        """Return True if the layer makes and caches index keys."""
        index = self.block.indexer
        return index is not None and not index.shared_keys and not index.reads_from_previous

    @property
    def _scores(self) -> bool:
        """Return True if the layer's own or an earlier indexer scores keys."""
        return self.block.indexer is not None and not self.block.indexer.reads_from_previous

    @property
    def packed_bytes(self) -> float:
        """Return the bytes of a packed entry.

        FP8, a byte of scale for 64 values, rotary values in BF16.
        """
        plain = self.block.head_dim - self.block.rope_dim
        scales = -(-plain // _SCALED)
        return float(plain + 2 * self.block.rope_dim + -(-scales // _PADDED) * _PADDED)

    @property
    def padded_values(self) -> int:
        """Return the query and the result of a head."""
        return 2 * self.block.head_dim

    @property
    def pieces(self) -> int:
        """Return the groups of the output projection."""
        return self.block.out_groups

    def cut_problem(self, tp: int, model: str) -> str | None:
        """Return None: groups of the output projection are not split."""
        groups = self.block.out_groups
        return f"does not divide the {groups} output groups of {model}" if groups % tp else None

    def shared_context_problem(self, tp: int, dcp: int, model: str) -> str | None:
        """Return that windows are not divided."""
        return f"does not divide the windows of {model}"

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Return the projections, compressors and indexer.

        Projections of the hidden state are the same on every rank.
        """
        block, heads, wide = self.block, self.block.heads, self.block.heads * self.block.head_dim
        middle = block.out_groups * block.out_rank
        result = [
            Tensor("self_attn.q_a_proj", "latent_down", block.q_rank, hidden, shard="replicated"),
            Tensor("self_attn.q_norm", "norm", block.q_rank, 1, shard="replicated", matmul=False),
            Tensor("self_attn.q_b_proj", "attention", wide, block.q_rank, shard="heads", units=heads),
            Tensor("self_attn.kv_proj", "latent_down", block.head_dim, hidden, shard="replicated"),
            Tensor("self_attn.kv_norm", "norm", block.head_dim, 1, shard="replicated", matmul=False),
            Tensor("self_attn.o_a_proj", "attention", middle, wide // block.out_groups, shard="heads",
                   units=block.out_groups),
            Tensor("self_attn.o_b_proj", "attention", hidden, middle, shard="heads", units=block.out_groups,
                   splits_input=True),
            Tensor("self_attn.sinks", "norm", heads, 1, shard="replicated", matmul=False),
        ]  # fmt: skip
        if block.ratio and not block.shared_kv:
            result += self._compressor("self_attn.compressor", "latent_down", block.head_dim, hidden)
        index = block.indexer
        if index is not None and self._scores:
            queries, name = index.heads * index.head_dim, "self_attn.compressor.indexer"
            if self._own_keys and index.from_latent:
                result += [
                    Tensor(f"{name}.wk", "indexer", index.head_dim, block.head_dim, shard="replicated"),
                    Tensor(f"{name}.k_norm", "norm", index.head_dim, 1, shard="replicated", matmul=False),
                ]
            elif self._own_keys:
                result += self._compressor(name, "indexer", index.head_dim, hidden)
            result += [
                Tensor(f"{name}.q_b_proj", "indexer", queries, block.q_rank, shard="replicated"),
                Tensor(f"{name}.weights_proj", "indexer", index.heads, hidden, shard="replicated"),
            ]
        return tuple(result)

    def _compressor(self, name: str, tensor_class: str, head_dim: int, hidden: int) -> list[Tensor]:
        """Return a compressor's keys and gates, position bias and norm.

        Keys and gates are twice as wide where windows overlap.
        """
        block, wide = self.block, head_dim * (2 if self.block.overlapping else 1)
        result = [Tensor(f"{name}.kv_proj", tensor_class, wide, hidden, shard="replicated")]
        if block.ratio > 1:  # one token alone needs no gate
            result.append(Tensor(f"{name}.gate_proj", tensor_class, wide, hidden, shard="replicated"))
        if block.positions:
            result.append(Tensor(f"{name}.position_bias", "norm", block.ratio, wide, shard="replicated", matmul=False))
        result.append(Tensor(f"{name}.kv_norm", "norm", head_dim, 1, shard="replicated", matmul=False))
        return result

    def activation_values(self, tp: np.ndarray) -> np.ndarray:
        """Return queries and results of heads and groups, and index queries."""
        block, index = self.block, self.block.indexer
        wide = 2 * (2 if block.overlapping else 1) if block.ratio and not block.shared_kv else 0
        down = block.q_rank + block.head_dim * (1 + wide)
        scored = index.head_dim * (index.heads + wide) if index is not None else 0
        split = 2 * block.heads * block.head_dim + block.out_groups * block.out_rank
        result: np.ndarray = down + scored + split / np.minimum(tp, block.out_groups)
        return result

    def cache(self, kv: str, layout: CacheLayout) -> LayerCache:
        """Return window entries, compressed entries, index keys, pooled tokens.

        Index keys are FP8; the last tokens are not pooled yet. With entries in FP4 the index keys are too, and the
        window stays in FP8.
        """
        block, narrow = self.block, kv.lower() == "nvfp4"
        entry = block.head_dim * kv_format(kv).bytes
        if layout.packed_latent and kv.lower() == "fp8":
            entry = self.packed_bytes
        held = 0.0 if block.shared_kv else entry
        if layout.index_keys:
            held += self._own_key_bytes(kv)
        return LayerCache(
            per_token=held * self.entries_per_token,
            in_window=block.head_dim * _FP4_WINDOW if narrow else entry,
            window=block.window,
            state=self.state_bytes(),
        )

    def pages(self, kv: str, layout: CacheLayout, *, draft_tokens: TokenCount) -> tuple[CachePage, ...]:
        """Return the pages of the caches of a layer, as vLLM makes them [1]_.

        V4.1 keeps what is not pooled in a ring of one block a request. Not modelled: its records for compute capability
        10 where the cache is FP8 (528 B), and padding for sparse logits.

        References
        ----------
        .. [1] vllm-project/vllm, vllm/models/deepseek_v4/attention.py and compressor.py,
           vllm/v1/attention/backends/mla/sparse_swa.py (0.21.0 to 0.33.0), vllm/models/deepseek_v41 (0.33.0).

        Examples
        --------
        >>> from glmplan.catalog.entries.models import load_model
        >>> from glmplan.costs.blocks.kinds import mixer_of
        >>> from glmplan.costs.blocks.stack import cache_layout
        >>> csa = mixer_of(load_model("deepseek-v4-flash").layers["csa"])
        >>> [(page.block, page.size) for page in csa.pages("fp8", cache_layout("vllm"), draft_tokens=0)]
        [(64, 37440), (256, 37440), (256, 8640), (4, 32832), (4, 8640)]
        """
        block, cache = self.block, self.cache(kv, layout)
        narrow = kv.lower() == "nvfp4"
        packed = narrow or (layout.packed_latent and kv.lower() == "fp8")
        whole = _PACKED_PAGE if packed and not narrow else _PLAIN_PAGE

        def page(kind: PageKind, tokens: int, values: float, window: int = 0) -> CachePage:
            return CachePage(kind, tokens, int(-(-values // whole) * whole), window)

        small = _WINDOW_BLOCK[block.positions]
        result = [page("window", small, small * cache.in_window, block.window)]
        if not block.ratio or block.shared_kv:
            return tuple(result)
        entries, index = _ENTRY_BLOCK // block.ratio, self._own_key_bytes(kv) if layout.index_keys else 0.0
        result.append(page("full", _ENTRY_BLOCK, entries * (cache.per_token * block.ratio - index)))
        if index:
            result.append(page("full", _ENTRY_BLOCK, entries * index))
        if block.ratio == 1:
            return tuple(result)
        overlap = 2 if block.overlapping else 1
        widths = [block.head_dim]
        if block.indexer is not None and self._own_keys and not block.indexer.from_latent:
            widths.append(block.indexer.head_dim)
        for width in widths:
            each = 2 * overlap * width * _STATE_BYTES
            if block.positions:
                tokens = _STATE_BLOCK[block.ratio]
                result.append(page("window", tokens, tokens * each, overlap * block.ratio))
            else:
                tokens = max(8, 1 << (draft_tokens + 1).bit_length())
                result.append(CachePage("ring", tokens, int(tokens * each)))
        return tuple(result)

    def _own_key_bytes(self, kv: str) -> float:
        """One index key that the layer caches, [B]; 0 where it caches none."""
        if not self._own_keys or self.block.indexer is None:
            return 0.0
        return self.block.indexer.head_dim * _FP4_INDEX if kv.lower() == "nvfp4" else float(self._index_bytes)

    @property
    def _index_bytes(self) -> int:
        """Return the bytes of an index key whose scores this layer uses."""
        return index_key_bytes(self.block.indexer.head_dim) if self.block.indexer is not None else 0

    def state_bytes(self, *, state: float = 4.0, conv: float = 2.0) -> float:
        """Return key and score of each token not pooled yet."""
        block, index = self.block, self.block.indexer
        if block.shared_kv or (block.ratio <= 1 and not block.overlapping):
            return 0.0
        overlap = 2 if block.overlapping else 1
        width = block.head_dim + (index.head_dim if index is not None and not index.from_latent else 0)
        return state * (overlap * block.ratio) * (2 * overlap * width)

    @property
    def state_is_late(self) -> bool:
        """Windows of the compressor that do not overlap are long (HCA)."""
        return bool(self.state_bytes()) and not self.block.overlapping

    def decode_blocks(self, tp: int) -> float:
        """Return 1: all heads share it."""
        return 1.0

    def attended(self, context: TokensArray) -> np.ndarray:
        """Return the entries that one query reads, of the window and compressed.

        Examples
        --------
        Three layers of DeepSeek-V4-Flash at 1,000 and a million tokens: window only, ratio 4 with top-512, ratio 128.

        >>> from glmplan.catalog.schema.model import Indexer
        >>> plain = CompressedAttention(heads=64, head_dim=512, rope_dim=64, q_rank=1024, out_groups=8, out_rank=1024,
        ...                             window=128)
        >>> csa = plain.model_copy(update={"ratio": 4, "indexer": Indexer(heads=64, head_dim=128, topk=512)})
        >>> hca = plain.model_copy(update={"ratio": 128})
        >>> [CompressedMixer(one).attended(np.array([1000.0, 1e6])).tolist() for one in (plain, csa, hca)]
        [[128.0, 128.0], [378.0, 640.0], [135.8125, 7940.5]]
        """
        pooled = np.asarray(context, dtype=float) * self.entries_per_token
        if self.block.indexer is not None:
            pooled = np.minimum(pooled, float(self.block.indexer.topk))
        result: np.ndarray = np.minimum(context, float(self.block.window)) + pooled
        return result

    def core(self, step: CoreStep) -> Core:
        """Return attention over shared entries, and the indexer's scores.

        All heads attend to the same entries; scores are over compressed keys. Not modelled: pooling beyond its products
        with weights; full windows (an entry exists from its first token on).
        """
        block, tokens, dcp = self.block, step.tokens, step.degrees.dcp
        heads, wide = heads_on_rank(block.heads, step.degrees), float(block.head_dim)
        gathered = np.minimum(heads * dcp, block.heads)
        width = self.packed_bytes if step.packed_bytes else wide * step.kv_bytes
        keys = np.maximum(self.attended(tokens.context), 1.0) / dcp
        # key and value are one vector: a latent without a rotary part of its own
        decode = latent_decode_work(step.requests, keys, heads=gathered, kv_bytes=width / wide, latent=wide, rope=0.0,
                                    queries=step.verify, splits=step.splits)  # fmt: skip
        before = self.attended(tokens.keys) - (step.prompt + 1.0) / 2.0
        # read once, as key and value: half of what a head with both would read
        prompt = attention_prefill_work(1.0, step.prompt, prefix=before, heads=heads, kv_heads=0.5, head_dim=wide)
        return Core(
            decode=(CoreKernel("compressed-decode", decode, "keys", gathered),),
            prompt=(CoreKernel("compressed-prefill", prompt),),
            exchange=(gathered * wide, gathered * wide),
            index=self._scan(step) if self._scores else None,
        )

    def _scan(self, step: CoreStep) -> IndexScan:
        """Return the scores of every compressed key for every query.

        Each rank computes them, or takes the candidates that were selected before.
        """
        tokens, dcp = step.tokens, step.degrees.dcp
        index = self.block.indexer
        most = float(index.candidates) if index is not None and index.candidates else np.inf
        pooled, keys = (np.minimum(item * self.entries_per_token, most) for item in (tokens.context, tokens.keys))
        flop = 2.0 * index.heads * index.head_dim if index is not None else 0.0
        return IndexScan(
            decode_bytes=tokens.requests * pooled * self._index_bytes / dcp,
            decode_flop=flop * pooled * tokens.decode / dcp,
            prompt_flop=tokens.prompt * flop * keys,
        )

    def token_core(self, decode: np.ndarray, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the entries that are read, one vector for all heads.

        Scores of the indexer are not included.
        """
        seen, read = self.attended(decode), self.attended(prompt)
        flop = 4.0 * self.block.heads * self.block.head_dim
        return np.stack([seen, read]) * self.block.head_dim, flop * seen, flop * read
