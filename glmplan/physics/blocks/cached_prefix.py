"""What is computed again of a prompt that is in the cache already."""

from __future__ import annotations

import numpy as np

from glmplan.facts.engines.walls import engine_names
from glmplan.facts.schema.model import ModelSpec
from glmplan.physics.blocks.cache import cache_layout
from glmplan.physics.blocks.features import mixers_of

__all__ = ["computed_again", "hybrid_block"]

#: engines cache whole blocks, the rest of the last one is fresh [token]
_PLAIN = 64.0
#: tokens that an attention kernel's block is a multiple of (vLLM, `kernel_block_alignment_size`) [token]
_ALIGNED = 16


def hybrid_block(model: ModelSpec, *, tp: int, kv_bytes: float, draft_tokens: int = 0) -> int:
    """Tokens of a cache block of a model with recurrent layers, as vLLM unites the pages of both kinds of layer.

    Parameters
    ----------
    model : ModelSpec
        The model.
    tp : int
        Ranks that share a layer, [-]
    kv_bytes : float
        Bytes of a cached value of attention, [B]
    draft_tokens : int, optional
        Drafted tokens of a step; the window of the convolution keeps them too, [token]

    Returns
    -------
    int
        [token]; 0 for models without both kinds of layer.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/model_executor/models/config.py, `HybridAttentionMambaModelConfig`: attention blocks
       grow until their page is as large as a recurrent state.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> qwen = load_model("qwen3.5-397b-a17b")
    >>> [hybrid_block(qwen, tp=4, kv_bytes=size) for size in (1.0, 2.0)]
    [2096, 1056]
    """
    mixers = mixers_of(model)
    pages = (one.state_page(tp=tp, draft_tokens=draft_tokens) for one in mixers)
    tokens = (one.page_token(tp=tp, kv_bytes=kv_bytes) for one in mixers)
    page, token = next(filter(None, pages), 0.0), next(filter(None, tokens), 0.0)
    if not page or not token:
        return 0
    return int(_ALIGNED * np.ceil(page / (_ALIGNED * token)))


def computed_again(
    model: ModelSpec, *, engine: str, prompt: float, tp: int, kv_bytes: float, draft_tokens: int = 0
) -> float:
    """Tokens of a cached prompt that a request computes again.

    Parameters
    ----------
    model : ModelSpec
        The model.
    engine : str
        Name of the engine.
    prompt : float
        Length of the prompt, [token]
    tp : int
        Ranks that share a layer, [-]
    kv_bytes : float
        Bytes of a cached value of attention, [B]
    draft_tokens : int, optional
        Drafted tokens of a step, [token]

    Returns
    -------
    float
        What is left after the last whole block; a drafting vLLM drops that block too [1]_, [token]

    References
    ----------
    .. [1] vllm-project/vllm, vllm/v1/core/single_type_kv_cache_manager.py, `find_longest_cache_hit` (`use_eagle`).

    Notes
    -----
    Not modelled: other engines' blocks of hybrid models (SGLang keeps states at points of its own choice).

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> qwen = load_model("qwen3.5-397b-a17b")
    >>> computed_again(qwen, engine="vllm", prompt=20_938.0, tp=4, kv_bytes=1.0)
    2074.0
    >>> computed_again(load_model("llama-3.1-8b"), engine="vllm", prompt=20_938.0, tp=4, kv_bytes=1.0)
    64.0
    """
    united = engine in engine_names() and cache_layout(engine).united_pages
    block = hybrid_block(model, tp=tp, kv_bytes=kv_bytes, draft_tokens=draft_tokens) if united else 0
    if not block:
        return min(prompt, _PLAIN)
    dropped = block if draft_tokens else 0
    return float(min(prompt % block + dropped, prompt))
