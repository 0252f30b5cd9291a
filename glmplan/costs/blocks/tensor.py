"""One weight tensor of a block: its class, its shape and how tensor parallelism splits it.

Weights held, parameters counted, bytes read and FLOP done are all sums over these rows, so that they cannot disagree.
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
    """A weight matrix (or vector) and how it is split.

    Attributes
    ----------
    name : str
        Name as in Hugging Face checkpoints, without the layer prefix.
    tensor_class : str
        The class whose format a checkpoint names.
    rows, columns : int
        Output and input width, [-]; a vector has `columns` 1.
    copies : int
        How many such tensors (experts), [-]
    shard : str
        See `Shard`.
    units : int
        Heads that ``heads`` splits by, [-]
    matmul : bool
        Whether every token is multiplied with it (norms, biases and the embedding are not).
    splits_input : bool
        Whether tensor parallelism splits its input and not its output, as after attention and in the middle of a
        feed-forward block.
    parts : int
        Matrices that lie in it one below the other (gate and up): an adapter of each has factors of its own, [-]
    """

    name: str
    tensor_class: str
    rows: int
    columns: int
    copies: int = 1
    shard: Shard = "split"
    units: int = 1
    matmul: bool = True
    splits_input: bool = False
    parts: int = 1

    @property
    def parameters(self) -> int:
        """Weights in it, all copies, [-]"""
        return self.rows * self.columns * self.copies

    def share(self, *, tp: np.ndarray, ep: np.ndarray, expert_ranks: np.ndarray) -> np.ndarray:
        """Fraction of it that the fullest rank holds.

        - `tp`: Tensor-parallel degree of the attention and dense parts.
        - `expert_ranks`: Ranks that hold one set of experts together, TP × DP.
        - Returns: Share of the weights on the fullest rank.

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
