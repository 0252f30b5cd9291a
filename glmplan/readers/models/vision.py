"""Weights of vision towers, counted only where the config spells the shapes out (Qwen3-VL, Qwen3.5).

The count follows the `modeling_qwen3_vl.py` of Hugging Face transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["vision_parameters"]

_QWEN = (
    "depth",
    "hidden_size",
    "in_channels",
    "intermediate_size",
    "num_position_embeddings",
    "out_hidden_size",
    "patch_size",
    "spatial_merge_size",
    "temporal_patch_size",
)


def vision_parameters(config: Mapping[str, Any]) -> tuple[int, str | None]:
    """Count the weights of the vision tower of a multimodal config.

    Parameters
    ----------
    config : mapping
        Content of `config.json`.

    Returns
    -------
    (int, str or None)
        Weights, [-], and a note; 0 and a note where there is a tower whose shapes the config does not tell.

    Examples
    --------
    >>> vision_parameters({})
    (0, None)
    >>> vision_parameters({"vision_config": {"hidden_size": 1152}})
    (0, 'vision tower not counted: the config does not tell all its shapes')
    """
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return 0, None
    shape = [vision.get(name) for name in _QWEN]
    whole = all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in shape)
    if not whole or not str(vision.get("model_type", "")).startswith("qwen3"):
        return 0, "vision tower not counted: the config does not tell all its shapes"
    depth, hidden, channels, inner, positions, out, patch, merge, frames = (int(value or 0) for value in shape)
    embed = channels * frames * patch * patch * hidden + hidden + positions * hidden
    layer = 4 * hidden * hidden + 4 * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden
    wide = hidden * merge * merge
    merger = wide * wide + wide + wide * out + out
    stacked = vision.get("deepstack_visual_indexes")
    deep = len(stacked) if isinstance(stacked, list) else 0
    total = embed + depth * layer + merger + 2 * hidden + deep * (merger + 2 * wide)
    return total, f"vision tower of {total / 1e6:,.1f} M weights, kept in BF16, counted from its shapes"
