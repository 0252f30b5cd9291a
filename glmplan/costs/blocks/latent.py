"""Multi-head latent attention (MLA), and DeepSeek sparse attention.

MLA with an indexer is sparse attention (DSA). DeepSeek-V2, arXiv 2405.04434 (MLA); DeepSeek-V3.2, arXiv 2512.02556
(DSA); GLM-5 uses both (`glm_moe_dsa`). The cache keeps one latent vector and one rotary key for all heads together, so
tensor parallelism does not split it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.catalog.engines.kernels import latent_prompt_kernel
from glmplan.catalog.formats import kv_format
from glmplan.catalog.schema.engine import CacheLayout
from glmplan.catalog.schema.model import LatentAttention
from glmplan.costs.blocks.mixer import Core, CoreKernel, CoreStep, IndexScan, LayerCache, Mixer, heads_on_rank
from glmplan.costs.blocks.tensor import Tensor
from glmplan.costs.kernels.counts import attention_prefill_work, latent_decode_work
from glmplan.units import ByteCount, FlopArray, TokensArray

__all__ = ["INDEX_KEY_SCALE_BYTES", "LatentMixer", "index_key_bytes"]

#: the FP8 index keys carry one FP32 scale for each 128 values (vLLM and SGLang: 132 B a token and layer) [B]
INDEX_KEY_SCALE_BYTES = 4


def index_key_bytes(head_dim: int) -> ByteCount:
    """Return the bytes of one index key in FP8 with its scales.

    Examples
    --------
    >>> index_key_bytes(128)
    132
    """
    return head_dim + INDEX_KEY_SCALE_BYTES * -(-head_dim // 128)


@dataclass(frozen=True, slots=True)
class LatentMixer(Mixer):
    """Attention over one latent for all heads, sparse with an indexer.

    Every rank holds the one latent, so only the heads limit tensor parallelism. No source says how pages of latents are
    united with states (Kimi Linear): their blocks count as plain.

    Examples
    --------
    GLM-5.1 has 165,022,208 attention and 9,371,904 indexer weights a layer:

    >>> from glmplan.catalog.schema.model import Indexer
    >>> indexer = Indexer(heads=32, head_dim=128, topk=2048)
    >>> glm = LatentMixer(
    ...     LatentAttention(heads=64, q_rank=2048, kv_rank=512, nope_dim=192, rope_dim=64, v_dim=256, indexer=indexer))
    >>> rows = glm.tensors(6144)
    >>> sum(t.parameters for t in rows if t.tensor_class != "indexer")
    165022208
    >>> sum(t.parameters for t in rows if t.tensor_class == "indexer")
    9371904
    >>> glm.absorbed_widths, glm.expanded_widths, glm.index_bytes
    ((576, 512), (256, 256), 132)
    """

    block: LatentAttention

    @property
    def name(self) -> str:
        """Return ``latent``."""
        return self.block.kind

    @property
    def words(self) -> str:
        """Return the widths of latent and rotary key, heads, and what is chosen."""
        index, sparse = self.block.indexer, ""
        if index is not None:
            own = f", top-{index.topk:,} of an indexer"
            sparse = ", reads the indices of the layer before" if index.reads_from_previous else own
        return f"latent attention {self.block.kv_rank}+{self.block.rope_dim}, {self.block.heads} heads{sparse}"

    @property
    def features(self) -> frozenset[str]:
        """Return `mla`, or `dsa` with an indexer, with or without rotary values."""
        if self.block.indexer is None:
            return frozenset({"mla"})
        return frozenset({"mla", "dsa"} if self.block.rope_dim else {"mla", "dsa", "nope-dsa"})

    @property
    def indexed(self) -> bool:
        """Return True with an indexer, also that of the layer before."""
        return self.block.indexer is not None

    @property
    def packed_fp8(self) -> bool:
        """Return True if latents are packed: those of sparse attention."""
        return self.indexed

    @property
    def heads(self) -> int:
        """Return the attention heads."""
        return self.block.heads

    @property
    def extra_launches(self) -> float:
        """Return the launches of down-projections, norms and indexer kernels.

        Engines launch them one by one.
        """
        return 1.0

    @property
    def rotary_values(self) -> int:
        """Return the width of the key common to all heads."""
        return self.block.rope_dim

    @property
    def expanded_values(self) -> int:
        """Return keys and values of all heads, up-projected from a latent."""
        return self.block.heads * (self.block.nope_dim + self.block.v_dim)

    @property
    def absorbed_values(self) -> int:
        """Return the up-projection of keys and values."""
        return self.block.heads * (self.block.nope_dim + self.block.v_dim) * self.block.kv_rank

    @property
    def gathered_bytes(self) -> float:
        """Return the index keys of its own indexer.

        The buffer is sized in tokens, also where the cache pools them.
        """
        index = self.block.indexer
        return float(self.index_bytes * (1 if index is None else index.pool))

    @property
    def absorbed_widths(self) -> tuple[int, int]:
        """Return key and value widths of a head when absorbed, as in decode.

        The key is the latent and the rotary key, as cached; the value is the latent.
        """
        return self.block.kv_rank + self.block.rope_dim, self.block.kv_rank

    @property
    def expanded_widths(self) -> tuple[int, int]:
        """Return key and value widths of a head when expanded, as in prompts."""
        return self.block.nope_dim + self.block.rope_dim, self.block.v_dim

    @property
    def index_bytes(self) -> float:
        """Return the cached index bytes of a token; 0 without own indexer.

        Less than one key where tokens are pooled.
        """
        index = self.block.indexer
        if index is None or index.reads_from_previous:
            return 0
        return index_key_bytes(index.head_dim) if index.pool == 1 else index_key_bytes(index.head_dim) / index.pool

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Return projections, norms and indexer.

        Down-projections and indexer are the same on every rank.
        """
        block, heads = self.block, self.block.heads
        qk = block.nope_dim + block.rope_dim
        result = []
        if block.q_rank:
            result += [
                Tensor("self_attn.q_a_proj", "latent_down", block.q_rank, hidden, shard="replicated"),
                Tensor("self_attn.q_a_layernorm", "norm", block.q_rank, 1, shard="replicated", matmul=False),
                Tensor("self_attn.q_b_proj", "attention", heads * qk, block.q_rank, shard="heads", units=heads),
            ]
        else:
            result.append(Tensor("self_attn.q_proj", "attention", heads * qk, hidden, shard="heads", units=heads))
        kv_up = heads * (block.nope_dim + block.v_dim)
        kv_down = block.kv_rank + block.rope_dim
        out = heads * block.v_dim
        if not block.shared_kv:
            result += [
                Tensor("self_attn.kv_a_proj_with_mqa", "latent_down", kv_down, hidden, shard="replicated"),
                Tensor("self_attn.kv_a_layernorm", "norm", block.kv_rank, 1, shard="replicated", matmul=False),
            ]
        result += [
            Tensor("self_attn.kv_b_proj", "attention", kv_up, block.kv_rank, shard="heads", units=heads),
            Tensor("self_attn.o_proj", "attention", hidden, out, shard="heads", units=heads, splits_input=True),
        ]
        gates = out * block.out_gate + heads * block.head_gated
        if gates:
            result.append(Tensor("self_attn.g_proj", "attention", gates, hidden, shard="heads", units=heads))
        index = block.indexer
        if index is not None and not index.reads_from_previous:
            queries, reads = index.heads * index.head_dim, hidden if index.from_hidden else block.q_rank or hidden
            result += [
                Tensor("self_attn.indexer.wq_b", "indexer", queries, reads, shard="replicated"),
                Tensor("self_attn.indexer.wk", "indexer", index.head_dim, hidden, shard="replicated"),
                Tensor("self_attn.indexer.weights_proj", "indexer", index.heads, hidden, shard="replicated"),
                Tensor("self_attn.indexer.k_norm", "indexer", 2 * index.head_dim, 1, shard="replicated", matmul=False),
            ]
            if index.from_hidden:
                result.append(
                    Tensor("self_attn.indexer.q_norm", "norm", 2 * hidden, 1, shard="replicated", matmul=False)
                )
            if index.pool > 1:
                bias = index.pool * index.head_dim
                result += [
                    Tensor("self_attn.indexer.pool_gate", "indexer", index.head_dim, hidden, shard="replicated"),
                    Tensor("self_attn.indexer.pool_bias", "norm", bias, 1, shard="replicated", matmul=False),
                ]
        each = heads * (block.sinks + 2 * block.scaled)
        if each:
            result.append(Tensor("self_attn.sinks_scales", "norm", each, 1, shard="replicated", matmul=False))
        return tuple(result)

    def activation_values(self, tp: np.ndarray) -> np.ndarray:
        """Return latents, expanded head values, results and index queries."""
        block, index = self.block, self.block.indexer
        down = (block.q_rank or 0) + block.kv_rank + block.rope_dim
        each = 2 * (block.nope_dim + block.rope_dim) + block.nope_dim + 2 * block.v_dim
        return down + block.heads / tp * each + (index.heads * index.head_dim if index is not None else 0.0)

    def cache(self, kv: str, layout: CacheLayout) -> LayerCache:
        """Return the cached latent and index key; every rank keeps all of it."""
        block = self.block
        if layout.expanded_latent:  # key and value of every head, both padded to one width
            each = 2.0 * layout.expanded_latent * kv_format(kv).bytes
            return LayerCache(per_token=block.heads * each, units=block.heads)
        held = self.absorbed_widths[0] * kv_format(kv).bytes
        if self.packed_fp8 and layout.packed_latent and not layout.plain_latent and kv.lower() == "fp8":
            held = block.kv_rank + 4.0 * -(-block.kv_rank // 128) + 2.0 * max(block.rope_dim, layout.packed_rotary)
        if self.packed_fp8 and layout.packed_latent and kv.lower() == "nvfp4":  # rotary values in FP8, without a scale
            held = block.kv_rank * kv_format(kv).bytes + 1.0 * block.rope_dim
        held = 0.0 if block.shared_kv else held
        if layout.index_keys:
            held += self.index_bytes
        elif layout.plain_index_keys and self.index_bytes and block.indexer is not None:
            held += block.indexer.head_dim / block.indexer.pool * kv_format(kv).bytes
        return LayerCache(per_token=held)

    def decode_blocks(self, tp: int) -> float:
        """Return 1: all heads share it."""
        return 1.0

    def attended(self, context: TokensArray, *, sparse: bool) -> TokensArray:
        """Return the keys that one query reads; without `sparse` kernels all.

        Examples
        --------
        >>> from glmplan.catalog.schema.model import Indexer
        >>> indexer = Indexer(heads=32, head_dim=128, topk=2048)
        >>> glm = LatentMixer(
        ...     LatentAttention(heads=64, kv_rank=512, nope_dim=192, rope_dim=64, v_dim=256, indexer=indexer))
        >>> glm.attended(np.array([1000.0, 50000.0]), sparse=True)
        array([1000., 2048.])
        """
        if sparse and self.block.indexer is not None:
            result: np.ndarray = np.minimum(context, float(self.block.indexer.topk))
            return result
        return context

    def indexer_flop(self, context: TokensArray) -> FlopArray:
        """Return the FLOP of one query's index scores; 0 without own indexer.

        Scores cover all earlier tokens.

        Examples
        --------
        >>> from glmplan.catalog.schema.model import Indexer
        >>> indexer = Indexer(heads=32, head_dim=128, topk=2048)
        >>> glm = LatentMixer(
        ...     LatentAttention(heads=64, kv_rank=512, nope_dim=192, rope_dim=64, v_dim=256, indexer=indexer))
        >>> float(glm.indexer_flop(np.array(1000.0)))
        8192000.0
        """
        index = self.block.indexer
        if index is None or index.reads_from_previous:
            return np.zeros_like(np.asarray(context, dtype=float))
        return 2.0 * index.heads * index.head_dim / index.pool * np.asarray(context, dtype=float)

    def core(self, step: CoreStep) -> Core:
        """Return absorbed decode, expanded prompts and the indexer's scores.

        Not modelled: a cached latent prefix that is expanded to keys and values for the prompt behind it.
        """
        tokens, dcp = step.tokens, step.degrees.dcp
        heads = heads_on_rank(self.block.heads, step.degrees)
        gathered = np.minimum(heads * dcp, self.block.heads)
        wide, narrow = self.absorbed_widths
        width = step.packed_bytes or wide * step.kv_bytes
        keys = np.maximum(self.attended(tokens.context, sparse=step.sparse), 1.0) / dcp
        decode = latent_decode_work(step.requests, keys, heads=gathered, kv_bytes=width / wide, latent=float(narrow),
                                    rope=float(wide - narrow), queries=step.verify, splits=step.splits)  # fmt: skip
        key, value = self.expanded_widths
        before = self.attended(tokens.keys, sparse=step.sparse) - (step.prompt + 1.0) / 2.0
        prompt = attention_prefill_work(1.0, step.prompt, prefix=before, heads=heads, kv_heads=heads,
                                        head_dim=float(key), value_dim=float(value))  # fmt: skip
        # sparse kernels read the latents as they are, in layers that take the indices of another one too
        sparse = step.sparse and self.block.indexer is not None
        kernel = "latent-prefill" if sparse else latent_prompt_kernel(step.engine, step.family)
        return Core(
            decode=(CoreKernel("latent-decode", decode, "latent", gathered),),
            prompt=(CoreKernel(kernel, prompt),),
            exchange=(gathered * float(wide), gathered * narrow),
            prompt_exchanges=sparse,
            index=self._scan(step) if sparse and self.index_bytes else None,
        )

    def _scan(self, step: CoreStep) -> IndexScan:
        """Return the scores of every key for every query."""
        tokens, dcp = step.tokens, step.degrees.dcp
        return IndexScan(
            decode_bytes=tokens.requests * tokens.context * self.index_bytes / dcp,
            decode_flop=self.indexer_flop(tokens.context) * tokens.decode / dcp,
            prompt_flop=tokens.prompt * self.indexer_flop(tokens.keys),
        )

    def token_core(self, decode: np.ndarray, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the latents before the token: absorbed or expanded.

        Absorbed in decode, expanded in prompts.
        """
        flop = 2.0 * self.block.heads
        values = np.stack([decode, prompt]) * self.absorbed_widths[0]
        return values, flop * sum(self.absorbed_widths) * decode, flop * sum(self.expanded_widths) * prompt
