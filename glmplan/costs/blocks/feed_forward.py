"""Feed-forward blocks: interface, dense blocks, mixtures of experts.

The distinct experts that a batch visits are counted here, too. Shazeer, GLU variants, arXiv 2002.05202; DeepSeekMoE
(shared and routed experts),
arXiv 2401.06066. `glmplan.costs.blocks.kinds` maps records to these classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Protocol

import numpy as np

from glmplan.catalog.schema.model import DenseFfn, ExpertsFfn, Ffn
from glmplan.costs.blocks.tensor import Shard, Tensor
from glmplan.units import Ratio, TokensArray

__all__ = ["DenseBlock", "ExpertsBlock", "FeedForward", "busiest_rank", "distinct_experts", "inner_rows", "matrices"]


class FeedForward(Protocol):
    """Interface of feed-forward blocks."""

    @property
    def words(self) -> str:
        """Return the shape in a few words, for users."""

    @property
    def features(self) -> frozenset[str]:
        """Return features for engine limitations: ``moe`` or nothing."""

    @property
    def routed(self) -> ExpertsFfn | None:
        """Return the routed mixture, None where a token visits all weights."""

    def visiting(self, experts: int) -> Ffn:
        """Return the block with at most `experts` visited; dense ones unchanged."""

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Return the weights of the block."""

    def activation_values(self, hidden: int, *, tp: np.ndarray, dp: np.ndarray, ep: np.ndarray) -> np.ndarray:
        """Return the values alive for each token, without hidden states."""


def inner_rows(gated: bool) -> Ratio:
    """Return the inner rows of a token that live at once.

    Gate, up and their product; two without gate.

    Examples
    --------
    >>> inner_rows(True), inner_rows(False)
    (3.0, 2.0)
    """
    return 3.0 if gated else 2.0


def matrices(
    name: str, tensor_class: str, block: Ffn, widths: tuple[int, int], *, copies: int = 1, shard: Shard = "split"
) -> tuple[Tensor, ...]:
    """Return tensors of equal networks: gate and up, down, and biases.

    `block` says if they are gated and have biases. `widths`: inner width, and width of input and output.

    Examples
    --------
    >>> from glmplan.catalog.schema.model import DenseFfn
    >>> [one.rows for one in matrices("mlp", "dense", DenseFfn(inner=14336), (14336, 4096))]
    [28672, 4096]
    """
    inner, hidden = widths
    wide = inner * (2 if block.gated else 1)
    result = [
        Tensor(f"{name}.gate_up_proj", tensor_class, wide, hidden, copies, shard, parts=2 if block.gated else 1),
        Tensor(f"{name}.down_proj", tensor_class, hidden, inner, copies, shard, splits_input=True),
    ]
    if block.bias:
        result.append(Tensor(f"{name}.bias", "norm", wide + hidden, 1, copies, shard, matmul=False))
    return tuple(result)


@dataclass(frozen=True, slots=True)
class DenseBlock:
    """Dense feed-forward block; no limitation refers to it.

    Examples
    --------
    >>> sum(t.parameters for t in DenseBlock(DenseFfn(inner=12288)).tensors(6144))
    226492416
    """

    block: DenseFfn

    @property
    def words(self) -> str:
        """Return the inner width."""
        return f"dense {self.block.inner:,}"

    @property
    def features(self) -> frozenset[str]:
        """Return no features."""
        return frozenset()

    @property
    def routed(self) -> ExpertsFfn | None:
        """Return None: every token visits all weights."""
        return None

    def visiting(self, experts: int) -> Ffn:
        """Return the block itself: nothing is routed."""
        return self.block

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Return its matrices."""
        return matrices("mlp", "dense", self.block, (self.block.inner, hidden))

    def activation_values(self, hidden: int, *, tp: np.ndarray, dp: np.ndarray, ep: np.ndarray) -> np.ndarray:
        """Return the inner rows, split by tensor parallelism, and the output."""
        return inner_rows(self.block.gated) * self.block.inner / tp + hidden


@dataclass(frozen=True, slots=True)
class ExpertsBlock:
    """Mixture of experts: routed, shared, router.

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
        """Return the experts of a token, all experts, and their width."""
        shared = f", {self.block.shared} shared" if self.block.shared else ""
        return f"top-{self.block.topk} of {self.block.experts} experts of {self.block.inner:,}{shared}"

    @property
    def features(self) -> frozenset[str]:
        """Return `moe`."""
        return frozenset({"moe"})

    @property
    def routed(self) -> ExpertsFfn | None:
        """Return the mixture of experts."""
        return self.block

    def visiting(self, experts: int) -> Ffn:
        """Return the mixture where a token visits at most `experts`."""
        return self.block.model_copy(update={"topk": min(self.block.topk, experts)})

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Return matrices of the experts, router, shared experts."""
        block = self.block
        routed = (block.inner, block.latent or hidden)
        result = [
            *matrices("mlp.experts", "routed_experts", block, routed, copies=block.experts, shard="experts"),
        ]
        if block.shared:
            shared = (block.shared_inner or block.inner, hidden)
            result += matrices("mlp.shared_experts", "shared_experts", block, shared, copies=block.shared)
        if block.shared_gate:
            result.append(Tensor("mlp.shared_expert_gate", "router", 1, hidden, shard="replicated"))
        if block.latent:
            result.append(Tensor("mlp.latent_in_out", "shared_experts", 2 * block.latent, hidden, shard="replicated"))
        routed_to = block.experts + (block.shared if block.routed_shared else 0)
        result.append(Tensor("mlp.gate", "router", routed_to, hidden, shard="replicated"))
        if block.router_bias:
            result.append(Tensor("mlp.gate.bias", "norm", block.experts, 1, shard="replicated", matmul=False))
        if block.hash_vocabulary:
            table = block.hash_vocabulary * block.topk
            result.append(Tensor("mlp.gate.tid2eid", "norm", table, 1, shard="replicated", matmul=False))
        return tuple(result)

    def activation_values(self, hidden: int, *, tp: np.ndarray, dp: np.ndarray, ep: np.ndarray) -> np.ndarray:
        """Return the routed copies, the shared experts' values and the output.

        The tokens are those of all replicas.
        """
        block, ranks = self.block, tp * dp / ep
        width = float(block.latent or hidden)
        inner = block.inner / ranks
        first = (2.0 if block.gated else 1.0) * inner
        routed = block.topk * dp * (np.maximum(first, width) + inner)
        shared = block.shared * inner_rows(block.gated) * (block.shared_inner or block.inner) / ranks
        result: np.ndarray = routed + shared + hidden
        return result


#: points of the sum over the popularity of experts; 12 are within 2 % of the sum over all experts
_NODES = 12


@cache
def _popularity(experts: int, topk: int, busiest_fifth: float) -> tuple[np.ndarray, np.ndarray]:
    """Return log(1 − chance) of each popularity class, and its experts.

    The chance is that a token chooses one expert of the class.
    """
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


def distinct_experts(block: ExpertsFfn, tokens: TokensArray) -> np.ndarray:
    """Return the expected number of distinct experts that a batch visits.

    Tokens choose independently.

    Notes
    -----
    The sum over experts of 1 − (1 − p)^tokens, the coupon collector's formula; the p fall with the rank of an expert by
    a power law of which the busiest fifth receives `block.busiest_fifth`. Not modelled: tokens of one text that choose
    the same experts, and experts that are busy together on one rank.

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
    result: np.ndarray = -np.expm1(np.multiply.outer(np.asarray(tokens, dtype=float), missed)) @ count
    return result


@cache
def _largest_of(ranks: float) -> float:
    """Return how far the largest of `ranks` normal values is above the mean.

    The unit is the standard deviation.
    """
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def busiest_rank(block: ExpertsFfn, tokens: TokensArray, ranks: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Return distinct experts and tokens of the busiest rank.

    A token counts once for each expert. The other ranks wait for it.

    Notes
    -----
    Mean plus as many standard deviations as the largest of `ranks` normal values is above the mean [1]_. Experts are
    placed by chance: visits are independent, loads differ by the experts' popularity and by chance. Not modelled:
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
