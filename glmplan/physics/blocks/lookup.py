"""Tables of n-grams that a layer looks up: Engram of DeepSeek-V4.1, the n-gram table of the preview of Qwen4.

A hash of the last two, three, ... tokens names a few rows; what is read is projected to one value and to a key for each
residual stream, whose gate decides how much of the value is added. Nothing multiplies the table, and a token reads a
few KB of it, so that it may lie in host memory or on a drive. Shapes: transformers 5.23.0, `modeling_qwen4_exp.py`
(`Qwen4ExpTextPLELayer`); vllm-project/vllm, `vllm/models/deepseek_v41/common/engram.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from glmplan.facts.schema.beside import LookupTable
from glmplan.physics.blocks.tensor import Tensor

__all__ = ["TABLE", "LookupBlock"]

#: name of the tensor that no product reads and that may lie in host memory
TABLE = "lookup.table"


@dataclass(frozen=True, slots=True)
class LookupBlock:
    """The table of a layer and the projections of what is read.

    Attributes
    ----------
    record : LookupTable or None
        Its shape; None for a layer without.

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
        """Values of the table, [-]; 0 without one"""
        return 0 if self.record is None else self.record.rows * self.record.width

    @property
    def read_values(self) -> int:
        """Values of it that one token reads, [-]"""
        return 0 if self.record is None else self.record.reads * self.record.width

    @property
    def words(self) -> str:
        """How large the table is, and what a token reads; empty without one."""
        if self.record is None:
            return ""
        return f"n-gram table of {self.record.rows / 1e6:,.0f} M rows of {self.record.width}, {self.record.reads} read"

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """The table, dealt out over ranks, and the projections, the same on every rank.

        Parameters
        ----------
        hidden : int
            Hidden size, [-]

        Returns
        -------
        tuple of Tensor
            The table first; empty without one.
        """
        record = self.record
        if record is None:
            return ()
        wide = record.streams * hidden
        found = [
            Tensor(TABLE, "lookup", record.rows, record.width, matmul=False),
            Tensor("lookup.key_value_proj", "lookup", hidden + wide, self.read_values, shard="replicated"),
        ]
        if record.norms:
            found.append(Tensor("lookup.norms", "norm", record.norms * wide, 1, shard="replicated", matmul=False))
        if record.convolution:
            width = record.convolution * wide
            found.append(Tensor("lookup.conv1d", "norm", width, 1, shard="replicated", matmul=False))
        return tuple(found)
