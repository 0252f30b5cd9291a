"""Numeric arguments of the cost functions: dataclasses whose fields are numbers or arrays with one entry a point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["Layout", "StepPoints"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a model is spread: every field is a number or an (n,) array.

    Attributes
    ----------
    tp : numeric
        Tensor-parallel degree of attention, dense parts and vocabulary, [-]
    pp : numeric
        Pipeline stages, [-]
    dp : numeric
        Attention data-parallel ranks (each holds its own requests and KV cache), [-]
    ep : numeric
        Expert-parallel degree, at most tp × dp, [-]
    dcp : numeric
        Decode context-parallel degree: ranks of a TP group that share one KV cache, [-]
    """

    tp: np.ndarray | int = 1
    pp: np.ndarray | int = 1
    dp: np.ndarray | int = 1
    ep: np.ndarray | int = 1
    dcp: np.ndarray | int = 1

    @property
    def accelerators(self) -> np.ndarray | int:
        """Accelerators used, tp × pp × dp, [-]"""
        return self.tp * self.pp * self.dp

    @property
    def expert_ranks(self) -> np.ndarray | int:
        """Ranks that together hold the experts of a pipeline stage, tp × dp, [-]"""
        return self.tp * self.dp


@dataclass(frozen=True, slots=True)
class StepPoints:
    """What one engine step holds: every field is an (n,) array.

    Attributes
    ----------
    decode_requests : (n,) array
        Requests that decode in the step, all data-parallel ranks together, [-]
    decode_context : (n,) array
        Mean context of a decoding request, [token]
    prefill_tokens : (n,) array
        Prompt tokens computed in the step, [token]
    prefill_context : (n,) array
        Mean number of keys that a prompt token attends, [token]
    decode_shared : (n,) array or float
        How much of their context all decoding requests have in common, in one copy, [token]
    busy_ranks : (n,) array or float
        Data-parallel ranks that have requests; those without take part in the experts only, [-]
    """

    decode_requests: np.ndarray
    decode_context: np.ndarray
    prefill_tokens: np.ndarray
    prefill_context: np.ndarray
    decode_shared: np.ndarray | float = 0.0
    busy_ranks: np.ndarray | float = np.inf
