"""Arguments of the cost functions, with one entry for each point.

Fields are numbers or arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

__all__ = ["Layout", "StepPoints"]

Degree = Any  # a number, or an array with one for each layout; arrays broadcast


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel degrees of a model."""

    tp: Degree = 1  # of attention, dense blocks and vocabulary
    pp: Degree = 1
    dp: Degree = 1  # attention ranks with requests and KV cache of their own
    ep: Degree = 1  # at most tp × dp
    dcp: Degree = 1  # ranks of a TP group that share one KV cache

    @property
    def degrees(self) -> tuple[Degree, ...]:
        """Return all degrees in the order of the fields."""
        return self.tp, self.pp, self.dp, self.ep, self.dcp

    @property
    def accelerators(self) -> Degree:
        """Return tp × pp × dp."""
        return self.tp * self.pp * self.dp

    @property
    def expert_ranks(self) -> Degree:
        """Return the ranks that hold a stage's experts together, tp × dp."""
        return self.tp * self.dp

    def dealt(self, pieces: int) -> Layout:
        """Return degrees whose equal share is that of the rank with most pieces.

        Examples
        --------
        >>> Layout(tp=np.array([2.0, 3.0, 16.0])).dealt(8).tp.tolist()
        [2.0, 2.6666666666666665, 8.0]
        """
        return replace(self, tp=pieces / np.ceil(pieces / self.tp))


@dataclass(frozen=True, slots=True)
class StepPoints:
    """Batch of one engine step at each point."""

    decode_requests: np.ndarray  # all data-parallel ranks together
    decode_context: np.ndarray  # mean of a decoding request [token]
    prefill_tokens: np.ndarray  # computed in the step
    prefill_context: np.ndarray  # mean number of keys that a prompt token attends to
    decode_shared: np.ndarray | float = 0.0  # context common to all decoding requests, in one copy [token]
    #: data-parallel ranks with requests; the others take part in the experts only
    busy_ranks: np.ndarray | float = np.inf
