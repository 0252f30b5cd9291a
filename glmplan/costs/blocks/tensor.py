"""Weight tensor of a block: class, shape and split by tensor parallelism.

Weights, parameters, bytes read and FLOP are all sums over these rows, so that they cannot disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

__all__ = ["Shard", "Tensor"]

#: ``split`` over all TP ranks, ``heads`` over TP ranks but never finer than `units` heads (the rest is replicated),
#: ``experts`` over EP ranks and then inside the expert, ``replicated`` the same on every rank
Shard = Literal["split", "heads", "experts", "replicated"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Weight matrix, or vector with one column."""

    name: str  # as in Hugging Face checkpoints, without the layer prefix
    tensor_class: str  # class with a format in a checkpoint
    rows: int  # output width
    columns: int  # input width
    copies: int = 1  # number of such tensors (experts)
    shard: Shard = "split"
    units: int = 1  # heads that ``heads`` splits by
    matmul: bool = True  # False for norms, biases and the embedding
    #: tensor parallelism splits the input, as after attention and in the middle of a feed-forward block
    splits_input: bool = False
    parts: int = 1  # stacked matrices (gate and up): an adapter of each has factors of its own

    @property
    def parameters(self) -> int:
        """Return the weights of all copies."""
        return self.rows * self.columns * self.copies

    def share(self, *, tp: np.ndarray, ep: np.ndarray, expert_ranks: np.ndarray) -> np.ndarray:
        """Return the share of the tensor on the fullest rank.

        `expert_ranks`: ranks that hold one set of experts together, TP × DP.

        Examples
        --------
        >>> k = Tensor("self_attn.k_proj", "attention", 1024, 4096, shard="heads", units=8)
        >>> k.share(tp=np.array([4, 16]), ep=np.array([1, 1]), expert_ranks=np.array([4, 16]))
        array([0.25 , 0.125])
        """
        result: np.ndarray
        if self.shard == "replicated":
            return np.ones_like(np.asarray(tp, dtype=float))
        if self.shard == "heads":
            result = 1.0 / np.minimum(np.asarray(tp, dtype=float), self.units)
            return result
        if self.shard == "experts":
            held = np.ceil(self.copies / np.asarray(ep, dtype=float)) / self.copies
            result = held * ep / expert_ranks
            return result
        return 1.0 / np.asarray(tp, dtype=float)
