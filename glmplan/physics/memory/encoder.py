"""What the encoder of images takes of the trial run by which an engine sizes its KV cache pool.

vLLM runs the tower on as many of the largest images as a step's budget of encoder tokens holds, at least one, and
keeps what comes out while it runs the language model's pass and sampler [1]_. The tower itself peaks where it
interpolates its table of positions, which every rank does whole, or in a layer [2]_.

References
----------
.. [1] vllm-project/vllm, vllm/v1/worker/gpu_model_runner.py (profile_run), vllm/multimodal/encoder_budget.py,
   vllm/v1/core/encoder_cache_manager.py (compute_mm_encoder_budget).
.. [2] vllm-project/vllm, vllm/model_executor/models/qwen3_vl.py (fast_pos_embed_interpolate, forward),
   kimi_k25.py (get_dummy_mm_items: an image of 3,000 x 3,000 pixels) and kimi_k25_vit.py, gemma4_mm.py (a video of 32
   frames) with the tower of Hugging Face transformers 5.13.1 (Gemma4VisionPatchEmbedder looks positions up).
"""

from __future__ import annotations

import numpy as np

from glmplan.facts.schema.model import ModelSpec

__all__ = ["encoder_peak", "tower_is_known", "video_images", "with_encoder"]

#: bytes of an activation [B]
_VALUE_BYTES = 2.0
#: widths of the tower that live at once for a patch while positions are interpolated: its embedding, four corners of
#: the table, their sum, and the sum in another order [-]
_INTERPOLATED = 7.0
#: and in a layer: the residual and what was normed [-]
_IN_LAYER = 2.0
#: inner widths of a layer, before and after the activation function [-]
_INNER = 2.0


def tower_is_known(model: ModelSpec) -> bool:
    """Whether the shapes of a model's image tower are known.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    bool

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> [tower_is_known(load_model(name)) for name in ("qwen3.5-27b", "llama-3.1-8b")]
    [True, False]
    """
    return bool(model.tower_patches and model.tower_width and model.tower_inner)


def video_images(model: ModelSpec, *, longest: np.ndarray | float, frames: float) -> np.ndarray | float:
    """Images that the largest video of a trial run is worth, two frames each.

    Parameters
    ----------
    model : ModelSpec
        The model.
    longest : numeric
        Longest request, which an image and the video share, [token]
    frames : float
        Most frames that the engine tries, each as large as the largest image; 0 where it tries no video above an image,
        [-]

    Returns
    -------
    numeric
        At least one, [-]

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> model = load_model("qwen3-vl-30b-a3b")
    >>> [float(video_images(model, longest=n, frames=14)) for n in (32768.0, 65536.0, 262144.0)]
    [1.0, 3.0, 7.0]
    """
    if not frames or not tower_is_known(model):
        return 1.0
    image = model.tower_patches / model.tower_merge
    return np.clip(np.floor(np.asarray(longest, dtype=float) / image) - 1.0, 1.0, frames // 2)


def encoder_peak(
    model: ModelSpec, *, tokens: np.ndarray, tp: np.ndarray, video: np.ndarray | float = 1.0, whole: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Peak of the tower's own run, and what it leaves for the language model.

    Parameters
    ----------
    model : ModelSpec
        The model.
    tokens : (n,) array
        Tokens of a step, [token]
    tp : (n,) array
        Tensor-parallel degree, [-]
    video : numeric, optional
        Images that the largest video tried is worth, [-]
    whole : bool, optional
        Whether every rank holds the whole tower; the images are dealt over the ranks then.

    Returns
    -------
    (n,) array, (n,) array
        Peak, and embeddings kept, [B]; 0 for models without a tower whose shapes are known.

    Notes
    -----
    Videos are larger than an image in vLLM 0.11.0 only, newer versions try them below one. Not modelled: the copy of
    the four corners in 0.11.0; attention's own buffers; Gemma 4's positions by one-hot tables in older releases of
    transformers, for which vLLM 0.25.1 still cuts the batch to a tenth of the memory. Towers that interpolate by one
    kernel (Kimi-K2.5) hold four or five widths instead of seven; their own peak is below that of a pass either way.

    Examples
    --------
    Qwen3.5-27B on four ranks: 65,536 patches of 1,536 values and 7 widths of 1,152; 16,384 embeddings of 5,120.

    >>> from glmplan.facts.catalogue.models import load_model
    >>> peak, kept = encoder_peak(load_model("qwen3.5-27b"), tokens=np.array([2048.0]), tp=np.array([4.0]))
    >>> round(float(peak[0]) / 2**30, 2), round(float(kept[0]) / 2**30, 2)
    (1.17, 0.16)
    """
    zero = np.zeros_like(np.asarray(tokens, dtype=float) + tp)
    width, inner = model.tower_width, model.tower_inner
    if not (model.tower_patches and width and inner):
        return zero, zero
    image = model.tower_patches / model.tower_merge
    items = np.maximum(np.floor(np.asarray(tokens, dtype=float) / image), video)
    layer = _IN_LAYER * width + _INNER * inner / (1.0 if whole else tp)
    widest = model.tower_patch_values + np.maximum(_INTERPOLATED * width, layer)
    kept = _VALUE_BYTES * items * image * model.tower_output
    own = np.ceil(items / tp) if whole else items
    return _VALUE_BYTES * own * model.tower_patches * widest, kept + zero


def with_encoder(
    model: ModelSpec,
    peak: np.ndarray,
    *,
    tokens: np.ndarray,
    tp: np.ndarray,
    video: np.ndarray | float = 1.0,
    whole: bool = False,
) -> np.ndarray:
    """Peak of a trial run of a model whose tower is tried, too.

    Parameters
    ----------
    model : ModelSpec
        The model.
    peak : (n,) array
        Of pass and sampler of the language model, [B]
    tokens, tp : (n,) array
        Tokens of a step [token] and tensor-parallel degree [-]
    video : numeric, optional
        Images that the largest video tried is worth, [-]
    whole : bool, optional
        Whether every rank holds the whole tower.

    Returns
    -------
    (n,) array
        The larger of the tower's own peak and the language model's with the embeddings beside it, [B]

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> text, one = load_model("llama-3.1-8b"), np.ones(1)
    >>> with_encoder(text, 5.0 * one, tokens=2048.0 * one, tp=one).tolist()
    [5.0]
    """
    own, kept = encoder_peak(model, tokens=tokens, tp=tp, video=video, whole=whole)
    return np.maximum(own, peak + kept)
