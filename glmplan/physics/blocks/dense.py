"""Dense feed-forward blocks. Shazeer, GLU variants, arXiv 2002.05202."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.facts.schema.model import DenseFfn, ExpertsFfn, Ffn
from glmplan.physics.blocks.feed_forward import inner_rows, matrices
from glmplan.physics.blocks.tensor import Tensor

__all__ = ["DenseBlock"]


@dataclass(frozen=True, slots=True)
class DenseBlock:
    """A dense feed-forward block.

    Attributes
    ----------
    block : DenseFfn
        Its shape.

    Examples
    --------
    >>> sum(t.parameters for t in DenseBlock(DenseFfn(inner=12288)).tensors(6144))
    226492416
    """

    block: DenseFfn

    @property
    def words(self) -> str:
        """Its inner width."""
        return f"dense {self.block.inner:,}"

    @property
    def features(self) -> frozenset[str]:
        """No wall is known that asks for dense blocks."""
        return frozenset()

    @property
    def routed(self) -> ExpertsFfn | None:
        """Nothing is routed: every token visits all weights."""
        return None

    def visiting(self, experts: int) -> Ffn:
        """The block itself: nothing is routed."""
        return self.block

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Its matrices."""
        return matrices("mlp", "dense", self.block, (self.block.inner, hidden))

    def activation_values(self, hidden: int, *, tp: np.ndarray, dp: np.ndarray, ep: np.ndarray) -> np.ndarray:
        """Inner rows, which tensor parallelism splits, and the output."""
        return inner_rows(self.block.gated) * self.block.inner / tp + hidden
