"""Peak of the activations of one engine step: what a forward pass holds at its widest layer, and the logits.

The engines do not publish a formula; they run a trial step. This sums the tensors that live at the same time in the
widest layer. What kernels take beyond it is observed (`glmplan.physics.memory.observed.MemoryFit.remainder`).
"""

from __future__ import annotations

import numpy as np

from glmplan.facts.schema.model import LayerKind
from glmplan.physics.blocks.kinds import feed_forwards_of, mixer_of, streams_of

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
    Counted: hidden states and residual (each of its streams); then the wider of the attention transient and the
    feed-forward transient. The experts hold a row for each routed copy of a token: input or output, and between the two
    matrices; with data parallelism the tokens of all ranks. Not modelled: kernel work spaces, fragmentation, sequence
    parallelism.

    Examples
    --------
    >>> from glmplan.facts.schema.model import DenseFfn, GroupedQuery
    >>> kind = LayerKind(mixer=GroupedQuery(heads=32, kv_heads=8, head_dim=128), ffn=(DenseFfn(inner=14336),))
    >>> float(activation_bytes((kind,), 4096, tokens=8192.0, tp=1, dp=1, ep=1)) / 2**20
    864.0
    """
    split, replicas, expert = (np.asarray(one, dtype=float) for one in (tp, dp, ep))
    widest = np.zeros_like(split * replicas)
    streams = 1
    for kind in kinds:
        widest = np.maximum(widest, mixer_of(kind).activation_values(split))
        for block in feed_forwards_of(kind):
            widest = np.maximum(widest, block.activation_values(hidden, tp=split, dp=replicas, ep=expert))
        streams = max(streams, streams_of(kind).streams)
    return _VALUE_BYTES * np.asarray(tokens, dtype=float) * ((1.0 + streams) * hidden + widest)


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
