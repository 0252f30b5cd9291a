"""Buffers that kernels of routed experts keep from the trial run on.

vLLM's modular kernels take their buffers from one allocation that grows with the largest step and is never given back
[1]_, so the sampler of the trial run finds them there.

References
----------
.. [1] vllm-project/vllm, vllm/v1/worker/workspace.py (WorkspaceManager), pull request 27532.
"""

from __future__ import annotations

import numpy as np

from glmplan.facts.schema.model import LayerKind
from glmplan.physics.blocks.feed_forward import inner_rows
from glmplan.physics.blocks.kinds import feed_forwards_of
from glmplan.physics.blocks.storage import Segment
from glmplan.physics.memory.passes import PassStep
from glmplan.physics.memory.settings import MemorySettings

__all__ = ["expert_workspace_bytes", "pass_with_workspace"]

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
