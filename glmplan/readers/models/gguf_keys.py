"""Keys of GGUF metadata that nobody asks for: without effect, to be named, or of a kind that may change a shape.

The names are those of the `gguf` package (`gguf.constants.Keys`) and of what llama.cpp's converters write for the
architectures that are read here (https://github.com/ggml-org/llama.cpp, conversion/*.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from glmplan.errors import UnknownArchitecture
from glmplan.readers.models.unread_fields import may_be_a_shape

__all__ = ["HARMLESS_KEYS", "unread_keys"]

#: why a key changes neither weights, nor cache, nor work → its names below the architecture; `*` stands for anything
HARMLESS_KEYS: Mapping[str, tuple[str, ...]] = {
    "positions turn queries and keys, whatever their base": ("rope.*",),
    "a number inside an elementwise step": (
        "*_epsilon", "*_softcapping", "*_scale", "attention.scale", "attention.output_scale", "attention.clamp_kqv",
        "attention.max_alibi_bias", "attention.temperature_*", "swiglu_clamp_*", "ssm.dt_b_c_rms", "*_sparsity_scale",
    ),
    "how the experts of a token are chosen; how many it has stands elsewhere": (
        "expert_group_count", "expert_group_used_count", "expert_weights_norm", "expert_gating_func",
    ),
    "which layers have indexers is seen by their tensors": (
        "attention.indexer.types", "attention.indexer.types.length", "attention.indexer.top_k_frequency",
        "attention.indexer.skip_top_k_offset",
    ),
    "words of the tokenizer": ("*_token_id",),
    "how a library runs it": ("tensor_data_layout", "pooling_type", "attention.causal"),
}  # fmt: skip

#: keys that change what a layer is made of also where they hold a switch or a list of switches
_STRUCTURAL = ("attention.sliding_window_pattern", "attention.shared_kv_layers", "*recurrent_layers")

_NAMES = tuple(name for names in HARMLESS_KEYS.values() for name in names)


def unread_keys(
    metadata: Mapping[str, Any], architecture: str, read: Collection[str], file: str | Path
) -> tuple[str, ...]:
    """Look through the keys of an architecture that no reader asked for.

    Parameters
    ----------
    metadata : mapping
        Metadata of the file.
    architecture : str
        What `general.architecture` says; its keys begin so.
    read : collection of str
        Keys below the architecture that were asked for.
    file : path
        Where they are from, for messages.

    Returns
    -------
    tuple of str
        Keys that are set, that nobody knows and that cannot count or widen anything.

    Raises
    ------
    UnknownArchitecture
        If one may change a shape; it is named.

    Examples
    --------
    >>> unread_keys({"llama.rope.freq_base": 5e5, "llama.use_magic": True, "general.name": "x"}, "llama", (), "a.gguf")
    ('llama.use_magic',)
    """
    found = []
    for key, value in metadata.items():
        name = key.removeprefix(f"{architecture}.")
        if name == key or name in read or value in (None, [], "", 0) or _is_one_of(name, _NAMES):
            continue
        if _is_one_of(name, _STRUCTURAL) or may_be_a_shape(value):
            raise UnknownArchitecture(
                f"is set, and glmplan does not know what it means for the architecture {architecture!r}",
                file=file, field=key, value=value if isinstance(value, int | float | str) else None,
            )  # fmt: skip
        found.append(key)
    return tuple(found)


def _is_one_of(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
