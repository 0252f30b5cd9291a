"""Mixtures of experts, and which of them a batch visits.

Shazeer, GLU variants, arXiv 2002.05202; DeepSeekMoE (shared and routed experts), arXiv 2401.06066.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from glmplan.facts.schema.model import ExpertsFfn, Ffn
from glmplan.physics.blocks.feed_forward import inner_rows, matrices
from glmplan.physics.blocks.tensor import Tensor

__all__ = ["ExpertsBlock", "busiest_rank", "distinct_experts"]


@dataclass(frozen=True, slots=True)
class ExpertsBlock:
    """A mixture of experts: routed, shared, router.

    Attributes
    ----------
    block : ExpertsFfn
        Its shape.

    Examples
    --------
    One routed expert of GLM-5.1 has 37,748,736 weights:

    >>> glm = ExpertsBlock(ExpertsFfn(experts=256, topk=8, inner=2048, shared=1, shared_inner=2048))
    >>> sum(t.parameters for t in glm.tensors(6144) if t.tensor_class == "routed_experts") // 256
    37748736
    """

    block: ExpertsFfn

    @property
    def words(self) -> str:
        """How many experts a token visits, of how many, and their width."""
        shared = f", {self.block.shared} shared" if self.block.shared else ""
        return f"top-{self.block.topk} of {self.block.experts} experts of {self.block.inner:,}{shared}"

    @property
    def features(self) -> frozenset[str]:
        """A mixture of experts."""
        return frozenset({"moe"})

    @property
    def routed(self) -> ExpertsFfn | None:
        """The mixture itself."""
        return self.block

    def visiting(self, experts: int) -> Ffn:
        """The same mixture where a token visits at most so many experts."""
        return self.block.model_copy(update={"topk": min(self.block.topk, experts)})

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Matrices of the experts, router, shared experts."""
        block = self.block
        routed = (block.inner, block.latent or hidden)
        found = [
            *matrices("mlp.experts", "routed_experts", block, routed, copies=block.experts, shard="experts"),
        ]
        if block.shared:
            shared = (block.shared_inner or block.inner, hidden)
            found += matrices("mlp.shared_experts", "shared_experts", block, shared, copies=block.shared)
        if block.shared_gate:
            found.append(Tensor("mlp.shared_expert_gate", "router", 1, hidden, shard="replicated"))
        if block.latent:
            found.append(Tensor("mlp.latent_in_out", "shared_experts", 2 * block.latent, hidden, shard="replicated"))
        routed_to = block.experts + (block.shared if block.routed_shared else 0)
        found.append(Tensor("mlp.gate", "router", routed_to, hidden, shard="replicated"))
        if block.router_bias:
            found.append(Tensor("mlp.gate.bias", "norm", block.experts, 1, shard="replicated", matmul=False))
        if block.hash_vocabulary:
            table = block.hash_vocabulary * block.topk
            found.append(Tensor("mlp.gate.tid2eid", "norm", table, 1, shard="replicated", matmul=False))
        return tuple(found)

    def activation_values(self, hidden: int, *, tp: np.ndarray, dp: np.ndarray, ep: np.ndarray) -> np.ndarray:
        """Routed copies of the tokens of all replicas, the shared experts, and the output."""
        block, ranks = self.block, tp * dp / ep
        width = float(block.latent or hidden)
        inner = block.inner / ranks
        first = (2.0 if block.gated else 1.0) * inner
        routed = block.topk * dp * (np.maximum(first, width) + inner)
        shared = block.shared * inner_rows(block.gated) * (block.shared_inner or block.inner) / ranks
        return routed + shared + hidden


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
