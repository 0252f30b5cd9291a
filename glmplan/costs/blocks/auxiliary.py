"""Hyper-connections, lookup tables and LoRA adapters.

These blocks complement mixers and feed-forward blocks. Hyper-connections (arXiv 2409.19606; manifold-constrained,
mHC, arXiv 2512.24880) are several residual streams: every block reads a mix of them and writes to all. They cost few
weights and much traffic: a pass over the hidden states covers all streams. Shapes: transformers 5.23.0,
`modeling_deepseek_v4.py` (manifold), `modeling_hy_v4.py` (plain), `modeling_qwen4_exp.py` (low rank).

A lookup table holds n-grams (Engram of DeepSeek-V4.1, the n-gram table of the preview of Qwen4). A hash of the last
two, three, ... tokens names a few rows, which are projected to one value and to a key for each residual stream, whose
gate weighs the value. No product reads the table, and a token reads a few KB of it, so that it may lie in host memory
or on a drive. Shapes: transformers 5.23.0, `modeling_qwen4_exp.py` (`Qwen4ExpTextPLELayer`); vllm-project/vllm,
`vllm/models/deepseek_v41/common/engram.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from glmplan.catalog.schema.model import HyperConnections, LookupTable
from glmplan.costs.blocks.tensor import Tensor

__all__ = ["ADAPTER_BYTES", "TABLE", "AdapterFactors", "HyperBlock", "LookupBlock", "adapter_factors"]


@dataclass(frozen=True, slots=True)
class HyperBlock:
    """Mix of residual streams around the two blocks of a layer.

    `record` None: one stream.

    Examples
    --------
    The four streams of DeepSeek-V4-Flash: weights of a layer, and of the fold after the last.

    >>> four = HyperBlock(HyperConnections(streams=4, folded=True))
    >>> sum(t.parameters for t in four.tensors(4096)), sum(t.parameters for t in four.fold(4096))
    (786486, 65541)
    >>> HyperBlock(None).tensors(4096), HyperBlock(None).streams
    ((), 1)
    """

    record: HyperConnections | None

    @property
    def streams(self) -> int:
        """Return the residual streams."""
        return 1 if self.record is None else self.record.streams

    @property
    def words(self) -> str:
        """Return number and mix of the streams as text; empty for one stream."""
        return "" if self.record is None else f"{self.record.streams} residual streams ({self.record.form})"

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Return the weights of one layer, the same on every rank."""
        if self.record is None:
            return ()
        return tuple(item for block in ("attn", "ffn") for item in self._mix(self.record, f"streams.{block}", hidden))

    def fold(self, hidden: int) -> tuple[Tensor, ...]:
        """Return the weights that join the streams after the last layer.

        Empty: a plain sum.
        """
        record = self.record
        if record is None or not record.folded:
            return ()
        n, name, wide = record.streams, "streams.fold", record.streams * hidden
        if record.form == "low_rank":
            return _low_rank(name, record.rank or 0, wide, None)
        return (
            Tensor(f"{name}.fn", "streams", n, wide, shard="replicated"),
            Tensor(f"{name}.base_scale", "norm", n + 1, 1, shard="replicated", matmul=False),
        )

    def _mix(self, record: HyperConnections, name: str, hidden: int) -> tuple[Tensor, ...]:
        n, wide = record.streams, record.streams * hidden
        if record.form == "low_rank":
            return _low_rank(name, record.rank or 0, wide, n)
        rows, scales = (2 * n + n * n, 3) if record.form == "manifold" else (2 * n, 2)
        return (
            Tensor(f"{name}.fn", "streams", rows, wide, shard="replicated"),
            Tensor(f"{name}.base_scale", "norm", rows + scales, 1, shard="replicated", matmul=False),
        )


def _low_rank(name: str, rank: int, wide: int, inject: int | None) -> tuple[Tensor, ...]:
    down = rank + (inject or 0)  # the weights of a block's output read the same streams
    return (
        Tensor(f"{name}.mix_down_inject", "streams", down, wide, shard="replicated"),
        Tensor(f"{name}.mix_up", "streams", wide, rank, shard="replicated"),
        Tensor(f"{name}.norm", "norm", wide, 1, shard="replicated", matmul=False),
    )


#: name of the table's tensor, which no product reads
TABLE = "lookup.table"


@dataclass(frozen=True, slots=True)
class LookupBlock:
    """Lookup table of a layer, and projections of the rows that are read.

    `record` None: no table.

    Examples
    --------
    The first Engram of DeepSeek-V4.1-Flash: 98 billion weights, of which a token reads 6,144.

    >>> engram = LookupBlock(LookupTable(rows=384006168, width=256, reads=24, streams=4))
    >>> round(engram.table_values / 1e9, 1), engram.read_values, sum(t.parameters for t in engram.tensors(5120)[1:])
    (98.3, 6144, 157327360)
    """

    record: LookupTable | None

    @property
    def table_values(self) -> int:
        """Return the values of the table."""
        return 0 if self.record is None else self.record.rows * self.record.width

    @property
    def read_values(self) -> int:
        """Return the values of the table that one token reads."""
        return 0 if self.record is None else self.record.reads * self.record.width

    @property
    def words(self) -> str:
        """Return size and rows per token of the table as text; empty without one."""
        if self.record is None:
            return ""
        return f"n-gram table of {self.record.rows / 1e6:,.0f} M rows of {self.record.width}, {self.record.reads} read"

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Return the table, split over ranks, and the unsplit projections."""
        record = self.record
        if record is None:
            return ()
        wide = record.streams * hidden
        result = [
            Tensor(TABLE, "lookup", record.rows, record.width, matmul=False),
            Tensor("lookup.key_value_proj", "lookup", hidden + wide, self.read_values, shard="replicated"),
        ]
        if record.norms:
            result.append(Tensor("lookup.norms", "norm", record.norms * wide, 1, shard="replicated", matmul=False))
        if record.convolution:
            width = record.convolution * wide
            result.append(Tensor("lookup.conv1d", "norm", width, 1, shard="replicated", matmul=False))
        return tuple(result)


#: bytes of a value: engines keep adapters in the type of the activations
ADAPTER_BYTES = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class AdapterFactors:
    """Values of one LoRA adapter on a rank, for each unit of its rank."""

    dense: np.ndarray  # both factors of the matrices that every token takes
    expert: np.ndarray  # both factors of one expert
    experts: np.ndarray  # experts of a layer on the rank
    matrices: int  # that every token takes

    @property
    def values(self) -> np.ndarray:
        """Return all values for each unit of the adapter's rank."""
        result: np.ndarray = self.dense + self.experts * self.expert
        return result


def adapter_factors(
    tensors: Iterable[Tensor], *, tp: np.ndarray, ep: np.ndarray, expert_ranks: np.ndarray
) -> AdapterFactors:
    """Return the adapter values of a layer's matrices on the fullest rank.

    Where a matrix is split by its outputs, the factor at its input is full on every rank and the other is split; where
    it is split by its inputs, the reverse [1]_ [2]_. Not counted: adapters of embedding and head, of draft layers and
    of image towers, and factors that are split on both sides (``fully_sharded_loras``).

    References
    ----------
    .. [1] vLLM, vllm/lora/layers/column_parallel_linear.py, create_lora_weights.
    .. [2] SGLang, python/sglang/srt/lora/mem_pool.py, LoRAMemoryPool.

    Examples
    --------
    >>> two = np.array([1.0, 2.0])
    >>> q = Tensor("self_attn.q_proj", "attention", 4096, 4096, shard="heads", units=32)
    >>> adapter_factors([q], tp=two, ep=np.ones(2), expert_ranks=two).values.tolist()
    [8192.0, 6144.0]
    """
    zero = np.zeros_like(np.asarray(tp, dtype=float))
    dense, expert, experts, matrices = zero, zero, zero, 0
    for tensor in tensors:
        if not tensor.matmul:
            continue
        share = tensor.share(tp=tp, ep=ep, expert_ranks=expert_ranks)
        if tensor.shard == "experts":
            held = np.ceil(tensor.copies / np.asarray(ep, dtype=float))
            # the share of an expert's own inner width
            inside = share * tensor.copies / held
            experts = np.maximum(experts, held)
        else:
            inside = share
        into, out = (inside, 1.0) if tensor.splits_input else (1.0, inside)
        values = tensor.parts * tensor.columns * into + tensor.rows * out + zero
        if tensor.shard == "experts":
            expert = expert + values
        else:
            dense, matrices = dense + values, matrices + tensor.parts
    return AdapterFactors(dense, expert, experts, matrices)
