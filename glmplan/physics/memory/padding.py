"""How far the experts of a rank may be from what is computed where no source says how they are padded or copied."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from glmplan.facts.formats import weight_format
from glmplan.physics.blocks.storage import Segment
from glmplan.physics.memory.loaded import expert_padding, kept_format
from glmplan.physics.memory.settings import MemorySettings

__all__ = ["padding_apart"]


def padding_apart(
    model: str, parts: Iterable[Segment], cut: np.ndarray, settings: MemorySettings
) -> tuple[float, float]:
    """Shares by which routed experts may be smaller or larger than computed for their padding.

    Parameters
    ----------
    model : str
        Canonical name of the model.
    parts : iterable of Segment
        Its layers.
    cut : (n,) array
        Ranks that cut one expert, [-]
    settings : MemorySettings
        The launch.

    Returns
    -------
    float, float
        Down to what the files hold, up to the widest padding that a source tells of the format or a second copy of the
        scales that some builds keep, [-]; 0 where the kernel is known. The widest padding of a matrix counts for all.

    Examples
    --------
    gpt-oss on two ranks where no source says which kernel runs: Marlin makes 1536 of 1440 and 3072 of 2880.

    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.physics.blocks.storage import segments
    >>> gpt = load_model("gpt-oss-20b")
    >>> parts = segments(gpt, gpt.checkpoint("mxfp4"), mtp=False)
    >>> known = MemorySettings(engine="vllm", accelerator="h100-sxm")
    >>> padding_apart(gpt.name, parts, np.array([2.0]), known)
    (0.0, 0.0)
    >>> untold = MemorySettings(engine="sglang", accelerator="h100-sxm")
    >>> padding_apart(gpt.name, parts, np.array([2.0]), untold)[1] > 0.13
    True
    """
    smaller, larger = 0.0, 0.0
    for part in parts:
        for tensor, stored in zip(part.tensors, part.formats, strict=True):
            if tensor.tensor_class != "routed_experts":
                continue
            form = kept_format(settings.rule.loading, model, tensor, stored).name
            larger = max(larger, settings.copied_scales(form, certain=False) / weight_format(form).bits)
            possible = settings.possible_kernels(form)
            if not possible:
                continue
            taken = np.asarray(expert_padding(tensor, settings.expert_kernel(form), cut))
            widest = [float(np.max(expert_padding(tensor, one, cut) / taken)) for one in possible]
            larger = max(larger, max(widest) - 1.0)
            smaller = max(smaller, float(np.max(1.0 - 1.0 / taken)))
    return smaller, larger
