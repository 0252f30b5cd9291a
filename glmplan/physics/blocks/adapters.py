"""Low-rank adapters (LoRA): what the two factors of an adapter of each matrix hold on a rank, and what they compute."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from glmplan.physics.blocks.tensor import Tensor

__all__ = ["ADAPTER_BYTES", "AdapterFactors", "adapter_factors"]

#: bytes of a value: engines keep adapters in the type of the activations, [B]
ADAPTER_BYTES = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class AdapterFactors:
    """One adapter of some matrices on a rank, for each unit of its rank.

    Attributes
    ----------
    dense : (n,) array
        Values of both factors of the matrices that every token takes, [-]
    expert : (n,) array
        Values of both factors of one expert, [-]
    experts : (n,) array
        Experts of a layer on the rank; 0 without any, [-]
    matrices : int
        Matrices that every token takes, [-]
    """

    dense: np.ndarray
    expert: np.ndarray
    experts: np.ndarray
    matrices: int

    @property
    def values(self) -> np.ndarray:
        """All values for each unit of the rank, [-]"""
        return self.dense + self.experts * self.expert


def adapter_factors(
    tensors: Iterable[Tensor], *, tp: np.ndarray, ep: np.ndarray, expert_ranks: np.ndarray
) -> AdapterFactors:
    """What an adapter of every matrix of a layer holds on the fullest rank.

    Parameters
    ----------
    tensors : iterable of Tensor
        The layer's.
    tp, ep, expert_ranks : (n,) array
        As `Tensor.share` takes them, [-]

    Returns
    -------
    AdapterFactors
        For each unit of the adapter's rank.

    Notes
    -----
    Where a matrix is split by its outputs, the factor at its input is whole on every rank and the other is split; where
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
    for one in tensors:
        if not one.matmul:
            continue
        share = one.share(tp=tp, ep=ep, expert_ranks=expert_ranks)
        if one.shard == "experts":
            held = np.ceil(one.copies / np.asarray(ep, dtype=float))
            # the share of an expert's own inner width
            inside = share * one.copies / held
            experts = np.maximum(experts, held)
        else:
            inside = share
        into, out = (inside, 1.0) if one.splits_input else (1.0, inside)
        values = one.parts * one.columns * into + one.rows * out + zero
        if one.shard == "experts":
            expert = expert + values
        else:
            dense, matrices = dense + values, matrices + one.parts
    return AdapterFactors(dense, expert, experts, matrices)
