"""Weights of vision towers, counted only where the config spells the shapes out (Qwen3-VL, Qwen3.5, Kimi-K2.5).

The counts follow the `modeling_qwen3_vl.py` of Hugging Face transformers and vLLM's `kimi_k25_vit.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["projector_parameters", "tower_shape", "tower_trial", "vision_parameters"]

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

#: MoonViT, all of which must be said; patches are RGB
_MOON = (
    "vt_hidden_size",
    "vt_intermediate_size",
    "vt_num_hidden_layers",
    "patch_size",
    "init_pos_emb_height",
    "init_pos_emb_width",
    "text_hidden_size",
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
    if (moon := _moon_shape(vision)) is not None:
        total = _moon_tower(moon) + projector_parameters(config)
        return total, f"vision tower of {total / 1e6:,.1f} M weights, kept in BF16, counted from its shapes"
    shape = [vision.get(name) for name in _QWEN]
    if not _whole(shape) or not str(vision.get("model_type", "")).startswith("qwen3"):
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


def projector_parameters(config: Mapping[str, Any]) -> int:
    """Count the weights of a vision tower that engines keep whole on every tensor-parallel rank.

    Parameters
    ----------
    config : mapping
        Content of `config.json`.

    Returns
    -------
    int
        The projector of Kimi-K2.5, [-]; 0 of towers that are cut as a whole.

    Examples
    --------
    >>> projector_parameters({})
    0
    """
    vision = config.get("vision_config")
    moon = _moon_shape(vision) if isinstance(vision, Mapping) else None
    if moon is None:
        return 0
    hidden, text = moon[0], moon[-1]
    joined = 4 * hidden
    return 2 * hidden + joined * joined + joined + joined * text + text


def tower_shape(config: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Read layers and width of a vision tower under the names that engines look for.

    Parameters
    ----------
    config : mapping
        Content of `config.json`.

    Returns
    -------
    int or None, int or None
        `num_hidden_layers` and `hidden_size`, or those of MoonViT; None where the config has other names, [-]

    Examples
    --------
    >>> tower_shape({"vision_config": {"depth": 27, "hidden_size": 1152}})
    (None, 1152)
    """
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return None, None
    layers = vision.get("num_hidden_layers", vision.get("vt_num_hidden_layers"))
    width = vision.get("hidden_size", vision.get("vt_hidden_size"))
    return (layers if _whole([layers]) else None), (width if _whole([width]) else None)


#: largest image of Qwen3-VL and Qwen3.5 [pixel]: `longest_edge` of their preprocessor_config.json, which counts pixels
_LARGEST_IMAGE = 4096 * 4096
#: patches of the largest image of Kimi-K2.5: `in_patch_limit` of its preprocessor_config.json, which the 3,000 x 3,000
#: pixels of the trial exceed (vllm/model_executor/models/kimi_k25.py); a chunk of four frames makes fewer tokens [-]
_MOON_PATCHES = 16384


#: Gemma 4's largest item is a video of 32 frames of 70 tokens: vllm/model_executor/models/gemma4_mm.py, as the 2,496
#: tokens of a step say that vLLM 0.25.1 sets for it (32 frames of 70 and 8 marks) [-]
_GEMMA_FRAMES, _GEMMA_TOKENS = 32, 70
_GEMMA = ("hidden_size", "intermediate_size", "patch_size", "pooling_kernel_size")


def tower_trial(config: Mapping[str, Any]) -> dict[str, int]:
    """Read the shapes by which an engine's trial run of a tower is sized.

    Parameters
    ----------
    config : mapping
        Content of `config.json`.

    Returns
    -------
    dict of str to int
        Fields of `ModelSpec`; empty where the config does not tell all of them or its processor is not known.

    Examples
    --------
    >>> tower_trial({"vision_config": {"depth": 27, "hidden_size": 1152}})
    {}
    """
    vision = config.get("vision_config")
    if not isinstance(vision, Mapping):
        return {}
    if (moon := _moon_shape(vision)) is not None:
        return {
            "tower_inner": moon[1],
            "tower_patch_values": 3 * moon[3] ** 2,
            "tower_patches": _MOON_PATCHES,
            "tower_merge": 4,
            "tower_output": moon[-1],
        }
    if vision.get("model_type") == "gemma4_vision":
        return _gemma_trial(config, vision)
    if not str(vision.get("model_type", "")).startswith("qwen3"):
        return {}
    shape = [vision.get(name) for name in _QWEN]
    if not _whole(shape):
        return {}
    _, _, channels, inner, _, out, patch, merge, frames = (int(value or 0) for value in shape)
    stacked = vision.get("deepstack_visual_indexes")
    deep = len(stacked) if isinstance(stacked, list) else 0
    return {
        "tower_inner": inner,
        "tower_patch_values": channels * frames * patch * patch,
        "tower_patches": _LARGEST_IMAGE // patch**2,
        "tower_merge": merge * merge,
        "tower_output": out * (1 + deep),
    }


def _gemma_trial(config: Mapping[str, Any], vision: Mapping[str, Any]) -> dict[str, int]:
    text = config.get("text_config")
    shape = [vision.get(name) for name in _GEMMA]
    output = text.get("hidden_size") if isinstance(text, Mapping) else None
    if not _whole([*shape, output]):
        return {}
    _, inner, patch, pool = (int(value or 0) for value in shape)
    return {
        "tower_inner": inner,
        "tower_patch_values": 3 * patch**2,
        "tower_patches": _GEMMA_FRAMES * _GEMMA_TOKENS * pool**2,
        "tower_merge": pool**2,
        "tower_output": int(output or 0),
    }


def _whole(values: list[Any]) -> bool:
    return all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values)


def _moon_shape(vision: Mapping[str, Any]) -> list[int] | None:
    shape = [vision.get(name) for name in _MOON]
    known = (
        _whole(shape) and vision.get("mm_projector_type") == "patchmerger" and vision.get("merge_kernel_size") == [2, 2]
    )
    return [int(value or 0) for value in shape] if known else None


def _moon_tower(shape: list[int]) -> int:
    hidden, inner, depth, patch, high, wide = shape[:6]
    layer = 4 * hidden * hidden + 4 * hidden + 2 * hidden * inner + inner + hidden + 4 * hidden
    return depth * layer + 3 * patch * patch * hidden + hidden + high * wide * hidden + 2 * hidden
