"""What is asked of a feed-forward block, whatever its kind: weights, transients, routing and words.

Each kind answers in one file of its own; `glmplan.physics.blocks.kinds` says which record is answered by which.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from glmplan.facts.schema.model import ExpertsFfn, Ffn
from glmplan.physics.blocks.tensor import Shard, Tensor

__all__ = ["FeedForward", "inner_rows", "matrices"]


class FeedForward(Protocol):
    """What every kind of feed-forward block answers. A kind that lacks something says so and why."""

    @property
    def words(self) -> str:
        """Its shape in a few words for people."""

    @property
    def features(self) -> frozenset[str]:
        """What walls of engines ask for: ``moe`` or nothing."""

    @property
    def routed(self) -> ExpertsFfn | None:
        """The mixture that routes tokens to experts; None where every token visits all weights."""

    def visiting(self, experts: int) -> Ffn:
        """The same block where a token visits at most so many experts; unchanged where nothing is routed.

        Parameters
        ----------
        experts : int
            Routed experts of a token at most, [-]

        Returns
        -------
        Ffn
            Its record.
        """

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Weights of the block.

        Parameters
        ----------
        hidden : int
            Hidden size of the model, [-]

        Returns
        -------
        tuple of Tensor
            Its matrices and biases.
        """

    def activation_values(self, hidden: int, *, tp: np.ndarray, dp: np.ndarray, ep: np.ndarray) -> np.ndarray:
        """Values that live at once for each token of a step, hidden states aside.

        Parameters
        ----------
        hidden : int
            Hidden size of the model, [-]
        tp, dp, ep : (n,) array
            Parallel degrees, [-]

        Returns
        -------
        (n,) array
            [-]
        """


def inner_rows(gated: bool) -> float:
    """Inner rows of a token that live at once.

    Parameters
    ----------
    gated : bool
        Whether there are three matrices.

    Returns
    -------
    float
        Gate, up and their product; without a gate two, [-]

    Examples
    --------
    >>> inner_rows(True), inner_rows(False)
    (3.0, 2.0)
    """
    return 3.0 if gated else 2.0


def matrices(
    name: str, tensor_class: str, block: Ffn, widths: tuple[int, int], *, copies: int = 1, shard: Shard = "split"
) -> tuple[Tensor, ...]:
    """Matrices of one feed-forward network, or of several alike.

    Parameters
    ----------
    name, tensor_class : str
        Prefix of their names, and their class.
    block : Ffn
        The block they belong to: it says whether they are gated and have biases.
    widths : tuple of int
        Inner width, and width of input and output, [-]
    copies : int, optional
        How many such networks, [-]
    shard : str, optional
        How they are cut, see `Shard`.

    Returns
    -------
    tuple of Tensor
        Gate and up as one, down, and the biases as one.

    Examples
    --------
    >>> from glmplan.facts.schema.model import DenseFfn
    >>> [one.rows for one in matrices("mlp", "dense", DenseFfn(inner=14336), (14336, 4096))]
    [28672, 4096]
    """
    inner, hidden = widths
    wide = inner * (2 if block.gated else 1)
    found = [
        Tensor(f"{name}.gate_up_proj", tensor_class, wide, hidden, copies, shard, parts=2 if block.gated else 1),
        Tensor(f"{name}.down_proj", tensor_class, hidden, inner, copies, shard, splits_input=True),
    ]
    if block.bias:
        found.append(Tensor(f"{name}.bias", "norm", wide + hidden, 1, copies, shard, matmul=False))
    return tuple(found)
