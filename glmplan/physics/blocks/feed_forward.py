"""Dense feed-forward blocks and mixtures of experts.

Shazeer, GLU variants, arXiv 2002.05202; DeepSeekMoE (shared and routed experts), arXiv 2401.06066.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np

from glmplan.facts.schema.model import DenseFfn, ExpertsFfn
from glmplan.physics.blocks.tensor import Tensor

__all__ = ["busiest_rank", "dense_tensors", "distinct_experts", "experts_tensors"]


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


#: points at which the popularity of experts is summed; 12 are within 2 % of the sum over all experts
_NODES = 12


@cache
def _popularity(experts: int, topk: int, busiest_fifth: float) -> tuple[np.ndarray, np.ndarray]:
    """Chance that a token chooses an expert, and how many experts have it."""
    exponent = 1.0 - np.log(busiest_fifth) / np.log(0.2)
    root, weight = np.polynomial.legendre.leggauss(_NODES)
    root = (root + 1.0) / 2.0
    rank, count = root**2, weight * root  # more points among the busiest
    chance = rank**-exponent
    chance *= topk / experts / (count @ chance)
    for _ in range(_NODES):  # no token chooses an expert twice
        chance, free = np.minimum(chance, 1.0), chance < 1.0
        if free.any():
            chance[free] *= (topk / experts - count[~free].sum()) / (count[free] @ chance[free])
    return np.log1p(-np.minimum(chance, 1.0 - 1e-15)), experts * count


def distinct_experts(block: ExpertsFfn, tokens: np.ndarray) -> np.ndarray:
    """Expected number of different experts that a batch visits when tokens choose independently.

    Parameters
    ----------
    block : ExpertsFfn
        Its shape.
    tokens : (n,) array
        Tokens in the step, [token]

    Returns
    -------
    (n,) array
        Experts visited, [-]

    Notes
    -----
    The sum over experts of 1 − (1 − p)^tokens, the coupon collector's formula; the p fall with the rank of an expert by
    a power law of which the busiest fifth receives `block.busiest_fifth`. Not modelled: tokens of one text that choose
    alike, and experts that are busy together on one rank.

    Examples
    --------
    GLM-5 at 1, 4, 16, 32 and 64 tokens if routing were even, and as uneven as other models were measured:

    >>> glm, tokens = ExpertsFfn(experts=256, topk=8, inner=2048), np.array([1.0, 4.0, 16.0, 32.0, 64.0])
    >>> distinct_experts(glm.model_copy(update={"busiest_fifth": 0.2}), tokens).round().astype(int).tolist()
    [8, 31, 102, 163, 222]
    >>> distinct_experts(glm, tokens).round().astype(int).tolist()
    [8, 29, 88, 139, 195]
    """
    missed, count = _popularity(block.experts, block.topk, block.busiest_fifth)
    return -np.expm1(np.multiply.outer(np.asarray(tokens, dtype=float), missed)) @ count


@cache
def _largest_of(ranks: float) -> float:
    """How many standard deviations the largest of so many normal values lies above the mean."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def busiest_rank(block: ExpertsFfn, tokens: np.ndarray, ranks: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """What the busiest of the ranks that share the experts has to do; the others wait for it.

    Parameters
    ----------
    block : ExpertsFfn
        Shape of the mixture.
    tokens : (n,) array
        Tokens in the step, [token]
    ranks : numeric
        Expert-parallel ranks, [-]

    Returns
    -------
    (n,) array, (n,) array
        Different experts visited on it, [-], and tokens sent to them, each as often as it goes to one, [token]

    Notes
    -----
    Mean plus as many standard deviations as the largest of `ranks` normal values lies above the mean [1]_. Experts lie
    on ranks by chance: visits are independent, loads differ by the experts' popularity and by chance. Not modelled:
    redundant experts and their rearrangement (EPLB), which bring the ranks nearer to the mean.

    References
    ----------
    .. [1] G. Blom, Statistical Estimates and Transformed Beta-Variables, Wiley 1958: Φ⁻¹((r − 3/8) / (r + 1/4)).

    Examples
    --------
    GLM-5 with 64 tokens on one rank, and on eight: more than an eighth.

    >>> glm = ExpertsFfn(experts=256, topk=8, inner=2048)
    >>> one, eight = (busiest_rank(glm, np.array([64.0]), ranks) for ranks in (1, 8))
    >>> [round(float(part[0]), 1) for part in (*one, *eight)]
    [194.9, 512.0, 27.8, 89.1]
    """
    tokens = np.asarray(tokens, dtype=float)
    ranks = np.asarray(ranks, dtype=float)
    sizes, place = np.unique(ranks, return_inverse=True)
    above = np.array([_largest_of(float(size)) for size in sizes])[place].reshape(ranks.shape)
    own = block.experts / ranks
    visited = distinct_experts(block, tokens)
    share = np.clip(visited / block.experts, 0.0, 1.0)
    touched = np.minimum(own * share + above * np.sqrt(own * share * (1.0 - share)), np.minimum(own, visited))
    pairs = tokens * block.topk
    missed, count = _popularity(block.experts, block.topk, block.busiest_fifth)
    popularity = -np.expm1(missed) * block.experts / block.topk
    variance = count @ (popularity - 1.0) ** 2 / block.experts / own + ranks / np.maximum(pairs, 1.0)
    return touched, np.minimum(pairs / ranks * (1.0 + above * np.sqrt(variance)), pairs)
