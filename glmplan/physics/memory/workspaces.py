"""Buffers that kernels of routed experts and the indexer of sparse attention keep from the trial run on.

vLLM's modular kernels and its indexer take their buffers from one allocation that grows with the largest of them and is
never given back [1]_, so the sampler of the trial run finds it there.

References
----------
.. [1] vllm-project/vllm, vllm/v1/worker/workspace.py (WorkspaceManager), pull request 27532.
.. [2] vllm-project/vllm, vllm/model_executor/layers/sparse_attn_indexer.py (without metadata).
"""

from __future__ import annotations

import numpy as np

from glmplan.facts.schema.model import LayerKind
from glmplan.physics.blocks.feed_forward import inner_rows
from glmplan.physics.blocks.kinds import feed_forwards_of, mixer_of
from glmplan.physics.blocks.storage import Segment
from glmplan.physics.memory.passes import PassStep
from glmplan.physics.memory.settings import MemorySettings

__all__ = ["expert_workspace_bytes", "indexer_bytes", "pass_with_workspace"]

#: bytes of an activation [B]
_VALUE_BYTES = 2.0


def expert_workspace_bytes(
    part: Segment, hidden: int, *, settings: MemorySettings, step: PassStep
) -> np.ndarray | float:
    """Buffers of the routed experts of layers that are alike.

    Parameters
    ----------
    part : Segment
        The layers, with the formats of their tensors.
    hidden : int
        Hidden size, [-]
    settings : MemorySettings
        The launch.
    step : PassStep
        The step.

    Returns
    -------
    (n,) array
        [B]; 0 where no source tells the buffers of the kernel that runs.

    Notes
    -----
    Not modelled: rows that other kernels pad (DeepGEMM each expert's to 128), the pieces in which versions before 0.17
    worked off more than 16,384 tokens.

    Examples
    --------
    Qwen3-30B-A3B on one card: 8,192 tokens visit 8 experts, two rows of 2,048 values of 2 B each, 0.5 GiB.

    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.physics.blocks.storage import segments
    >>> model, one = load_model("qwen3-30b-a3b"), np.ones(1)
    >>> told = MemorySettings(version="0.22.1", accelerator="h100-sxm")
    >>> found = expert_workspace_bytes(segments(model, model.checkpoint("fp8"), mtp=False)[0], model.hidden,
    ...                                settings=told, step=PassStep(8192.0, one, one, one))
    >>> float(found[0]) / 2**30
    0.5
    """
    stored = zip(part.tensors, part.formats, strict=True)
    form = next((form.name for tensor, form in stored if tensor.tensor_class == "routed_experts"), "")
    if not form or settings.workspace(form) is None:
        return 0.0
    found: np.ndarray | float = 0.0
    for block in feed_forwards_of(part.kind):
        if (mixture := block.routed) is None:
            continue
        width = float(mixture.latent or hidden)
        inner = mixture.inner / (step.tp * step.dp / step.ep)
        first = (2.0 if mixture.gated else 1.0) * inner
        row = np.maximum(inner, width) + np.maximum(first, width)
        found = np.maximum(found, _VALUE_BYTES * np.asarray(step.tokens) * step.dp * mixture.topk * row)
    return found


def indexer_bytes(
    kind: LayerKind, *, longest: np.ndarray | float, settings: MemorySettings
) -> tuple[np.ndarray | float, float]:
    """What the indexer of a layer takes in the trial run.

    Parameters
    ----------
    kind : LayerKind
        The layer.
    longest : numeric
        Longest request, [token]
    settings : MemorySettings
        The launch.

    Returns
    -------
    numeric, float
        The buffer of gathered index keys, which stays; logits that are held besides while it runs, [B]; 0 where nothing
        is attended sparsely, or the engine reserves nothing.

    Notes
    -----
    FlashMLA's sparse kernels gather latents of five of the longest requests into the same allocation while the model is
    loaded, 9 % more than 40 requests' index keys in FP8; nobody says here which kernels run, so it is not modelled.

    Examples
    --------
    GLM-5.1 of 202,752 tokens: 40 of them, 132 B each, 1.0 GiB; and half a GiB of logits.

    >>> from glmplan.facts.catalogue.models import load_model
    >>> glm = load_model("glm-5.1")
    >>> kept, beside = indexer_bytes(glm.layers[glm.layer_names[-1]], longest=202752.0,
    ...                              settings=MemorySettings(version="0.22.0"))
    >>> round(float(kept) / 2**30, 2), beside / 2**30
    (1.0, 0.5)
    """
    each = mixer_of(kind).gathered_bytes if settings.indexer else 0.0
    trial = settings.rule.indexer_of(settings.version) if each else None
    if trial is None:
        return 0.0, 0.0
    return trial.requests * each * np.asarray(longest, dtype=float), trial.logits


def pass_with_workspace(kind: LayerKind, hidden: int, kept: np.ndarray | float, step: PassStep) -> np.ndarray:
    """What a pass holds at routed experts with such buffers: hidden states, residual, output and shared experts beside.

    Parameters
    ----------
    kind : LayerKind
        The layer.
    hidden : int
        Hidden size, [-]
    kept : (n,) array
        The buffers, [B]
    step : PassStep
        The step.

    Returns
    -------
    (n,) array
        [B]
    """
    shared: np.ndarray | float = 0.0
    for block in feed_forwards_of(kind):
        if (mixture := block.routed) is not None and mixture.shared:
            inner = (mixture.shared_inner or mixture.inner) / (step.tp * step.dp / step.ep)
            shared = np.maximum(shared, mixture.shared * inner_rows(mixture.gated) * inner)
    return np.asarray(kept + _VALUE_BYTES * np.asarray(step.tokens) * (3.0 * hidden + shared))
