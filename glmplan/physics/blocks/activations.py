"""Peak of the activations of one engine step: what a forward pass holds at its widest layer, and the logits.

The engines do not publish a formula; they run a trial step. This sums the tensors that live at the same time in the
widest layer. What kernels take beyond it is observed (`glmplan.physics.memory.observed.MemoryFit.remainder`).
"""

from __future__ import annotations

import numpy as np

from glmplan.facts.schema.model import DenseFfn, ExpertsFfn, GroupedQuery, LatentAttention, LayerKind, Recurrent

__all__ = ["LOGIT_BYTES", "activation_bytes", "logit_bytes"]

#: BF16 activations [B]
_VALUE_BYTES = 2.0
#: gathered BF16 logits, their FP32 copy and the FP32 probabilities (vLLM `v1/sample/sampler.py`) [B]
LOGIT_BYTES = 2.0 + 4.0 + 4.0


def activation_bytes(
    kinds: tuple[LayerKind, ...],
    hidden: int,
    *,
    tokens: np.ndarray | float,
    tp: np.ndarray | float,
    dp: np.ndarray | float,
    ep: np.ndarray | float,
) -> np.ndarray:
    """Peak activations of the widest of some kinds of layers.

    Parameters
    ----------
    kinds : tuple of LayerKind
        Kinds that occur on the rank.
    hidden : int
        Hidden size, [-]
    tokens : numeric
        Tokens of the step on one data-parallel rank, [token]
    tp, dp, ep : numeric
        Parallel degrees, [-]

    Returns
    -------
    (n,) array
        [B]

    Notes
    -----
    Counted: hidden states and residual; then the wider of the attention transient and the feed-forward transient. The
    experts hold a row for each routed copy of a token: input or output, and between the two matrices; with data
    parallelism the tokens of all ranks. Not modelled: kernel work spaces, fragmentation, sequence parallelism.

    Examples
    --------
    >>> kind = LayerKind(mixer=GroupedQuery(heads=32, kv_heads=8, head_dim=128), ffn=(DenseFfn(inner=14336),))
    >>> float(activation_bytes((kind,), 4096, tokens=8192.0, tp=1, dp=1, ep=1)) / 2**20
    864.0
    """
    degree, ranks = np.asarray(tp, dtype=float), np.asarray(tp, dtype=float) * dp
    widest = np.zeros_like(ranks)
    for kind in kinds:
        widest = np.maximum(widest, _mixer_values(kind, degree))
        for block in kind.ffn:
            if isinstance(block, DenseFfn):
                values = _inner_rows(block.gated) * block.inner / degree + hidden
            else:
                values = _expert_values(block, hidden, ranks / ep, np.asarray(dp, dtype=float))
            widest = np.maximum(widest, values)
    return _VALUE_BYTES * np.asarray(tokens, dtype=float) * (2.0 * hidden + widest)


def logit_bytes(vocabulary: int, requests: np.ndarray | float) -> np.ndarray:
    """Logits and probabilities of the rows that are sampled in one step.

    Parameters
    ----------
    vocabulary : int
        Vocabulary, [-]
    requests : numeric
        Requests sampled together, [-]

    Returns
    -------
    (n,) array
        [B]

    Examples
    --------
    >>> float(logit_bytes(128256, 256.0)) / 1e6
    328.33536
    """
    return LOGIT_BYTES * vocabulary * np.asarray(requests, dtype=float)


def _inner_rows(gated: bool) -> float:
    return 3.0 if gated else 2.0


def _expert_values(block: ExpertsFfn, hidden: int, ranks: np.ndarray, dp: np.ndarray) -> np.ndarray:
    width = float(block.latent or hidden)
    inner = block.inner / ranks
    first = (2.0 if block.gated else 1.0) * inner
    routed = block.topk * dp * (np.maximum(first, width) + inner)
    shared = block.shared * _inner_rows(block.gated) * (block.shared_inner or block.inner) / ranks
    return routed + shared + hidden


def _mixer_values(kind: LayerKind, tp: np.ndarray) -> np.ndarray:
    mixer = kind.mixer
    if isinstance(mixer, GroupedQuery):
        values = mixer.v_head_dim or mixer.head_dim
        queries = mixer.heads / tp * (mixer.head_dim * (2 if mixer.gated else 1) + values)
        return queries + mixer.kv_heads / np.minimum(tp, mixer.kv_heads) * (mixer.head_dim + values)
    if isinstance(mixer, LatentAttention):
        down = (mixer.q_rank or 0) + mixer.kv_rank + mixer.rope_dim
        each = 2 * (mixer.nope_dim + mixer.rope_dim) + mixer.nope_dim + 2 * mixer.v_dim
        index = mixer.indexer
        return down + mixer.heads / tp * each + (index.heads * index.head_dim if index is not None else 0.0)
    if isinstance(mixer, Recurrent):
        wide = 2 * mixer.key_heads * mixer.key_dim + 2 * mixer.value_heads * mixer.value_dim
        return 2.0 * wide / np.minimum(tp, mixer.value_heads)
    return np.zeros_like(tp)
