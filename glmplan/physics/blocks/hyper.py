"""Hyper-connections: several residual streams, of which every block reads a mix and to all of which it writes.

Hyper-connections, arXiv 2409.19606; manifold-constrained ones (mHC), arXiv 2512.24880. Shapes of the weights:
transformers 5.23.0, `modeling_deepseek_v4.py` (manifold), `modeling_hy_v4.py` (plain), `modeling_qwen4_exp.py` (low
rank). They cost few weights and much traffic: every pass over the hidden states is one over all streams.
"""

from __future__ import annotations

from dataclasses import dataclass

from glmplan.facts.schema.beside import HyperConnections
from glmplan.physics.blocks.tensor import Tensor

__all__ = ["HyperBlock"]


@dataclass(frozen=True, slots=True)
class HyperBlock:
    """The mixing of streams around the two blocks of a layer.

    Attributes
    ----------
    record : HyperConnections or None
        Its shape; None for the one stream of other models.

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
        """Residual streams, [-]"""
        return 1 if self.record is None else self.record.streams

    @property
    def words(self) -> str:
        """How many streams, and what their mix is made of; empty for one stream."""
        return "" if self.record is None else f"{self.record.streams} residual streams ({self.record.form})"

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Weights of one layer, the same on every rank: they mix before the attention and before the feed-forward part.

        Parameters
        ----------
        hidden : int
            Hidden size, [-]

        Returns
        -------
        tuple of Tensor
            Empty for one stream.
        """
        if self.record is None:
            return ()
        return tuple(one for block in ("attn", "ffn") for one in self._mix(self.record, f"streams.{block}", hidden))

    def fold(self, hidden: int) -> tuple[Tensor, ...]:
        """Weights that make one state of the streams after the last layer.

        Parameters
        ----------
        hidden : int
            Hidden size, [-]

        Returns
        -------
        tuple of Tensor
            Empty where the streams are only added up.
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
    down = rank + (inject or 0)  # the weights of what a block writes read the same streams
    return (
        Tensor(f"{name}.mix_down_inject", "streams", down, wide, shard="replicated"),
        Tensor(f"{name}.mix_up", "streams", wide, rank, shard="replicated"),
        Tensor(f"{name}.norm", "norm", wide, 1, shard="replicated", matmul=False),
    )
