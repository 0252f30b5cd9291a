"""Dense feed-forward blocks and mixtures of experts.

Shazeer, GLU variants, arXiv 2002.05202; DeepSeekMoE (shared and routed experts), arXiv 2401.06066.
"""

from __future__ import annotations

import numpy as np

from glmplan.blocks.tensor import Tensor
from glmplan.schema.model import DenseFfn, ExpertsFfn

__all__ = ["dense_tensors", "distinct_experts", "experts_tensors"]


def dense_tensors(block: DenseFfn, hidden: int) -> tuple[Tensor, ...]:
    """Weights of a dense block.

    Parameters
    ----------
    block : DenseFfn
        Its shape.
    hidden : int
        Hidden size of the model, [-]

    Returns
    -------
    tuple of Tensor
        Its matrices.

    Examples
    --------
    >>> sum(t.parameters for t in dense_tensors(DenseFfn(inner=12288), 6144))
    226492416
    """
    return _matrices("mlp", "dense", block.inner, hidden, 1, "split", block.gated, block.bias)


def experts_tensors(block: ExpertsFfn, hidden: int) -> tuple[Tensor, ...]:
    """Weights of a mixture of experts: routed, shared, router.

    Parameters
    ----------
    block : ExpertsFfn
        Its shape.
    hidden : int
        Hidden size of the model, [-]

    Returns
    -------
    tuple of Tensor
        Its matrices.

    Examples
    --------
    One routed expert of GLM-5.1 has 37,748,736 weights:

    >>> rows = experts_tensors(ExpertsFfn(experts=256, topk=8, inner=2048, shared=1, shared_inner=2048), 6144)
    >>> sum(t.parameters for t in rows if t.tensor_class == "routed_experts") // 256
    37748736
    """
    width = block.latent or hidden
    found = list(
        _matrices(
            "mlp.experts", "routed_experts", block.inner, width, block.experts, "experts", block.gated, block.bias
        )
    )
    if block.shared:
        inner = block.shared_inner or block.inner
        found += _matrices(
            "mlp.shared_experts", "shared_experts", inner, hidden, block.shared, "split", block.gated, block.bias
        )
    if block.shared_gate:
        found.append(Tensor("mlp.shared_expert_gate", "router", 1, hidden, shard="replicated"))
    if block.latent:
        found.append(Tensor("mlp.latent_in_out", "shared_experts", 2 * block.latent, hidden, shard="replicated"))
    found.append(Tensor("mlp.gate", "router", block.experts, hidden, shard="replicated"))
    if block.router_bias:
        found.append(Tensor("mlp.gate.bias", "norm", block.experts, 1, shard="replicated", matmul=False))
    return tuple(found)


def _matrices(
    name: str, tensor_class: str, inner: int, hidden: int, copies: int, shard: str, gated: bool, bias: bool
) -> tuple[Tensor, ...]:
    found = [
        Tensor(f"{name}.gate_up_proj", tensor_class, inner * (2 if gated else 1), hidden, copies, shard),  # type: ignore[arg-type]
        Tensor(f"{name}.down_proj", tensor_class, hidden, inner, copies, shard),  # type: ignore[arg-type]
    ]
    if bias:
        width = inner * (2 if gated else 1) + hidden
        found.append(Tensor(f"{name}.bias", "norm", width, 1, copies, shard, matmul=False))  # type: ignore[arg-type]
    return tuple(found)


def distinct_experts(block: ExpertsFfn, tokens: np.ndarray) -> np.ndarray:
    """Expected number of different experts that a batch visits when routing is even and independent.

    Parameters
    ----------
    block : ExpertsFfn
        Its shape.
    tokens : (n,) array
        Tokens in the step, [token]

    Returns
    -------
    (n,) array
        Experts visited, [-]; E (1 − (1 − k/E)^tokens), the coupon collector's formula. Skewed routing visits fewer.

    Examples
    --------
    GLM-5 at 1, 4, 16, 32 and 64 tokens:

    >>> glm = ExpertsFfn(experts=256, topk=8, inner=2048)
    >>> distinct_experts(glm, np.array([1.0, 4.0, 16.0, 32.0, 64.0])).round().astype(int).tolist()
    [8, 31, 102, 163, 222]
    """
    missed = 1.0 - block.topk / block.experts
    return block.experts * (1.0 - np.power(missed, tokens))
