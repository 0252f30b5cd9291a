"""Read headers of safetensors files: name, type, shape and bytes.

Bytes are exact for every tensor. The format: 8 bytes with the length of the header, the header as JSON, then the data
(https://github.com/huggingface/safetensors, README).
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from glmplan.catalog.files import open_file, parse_json, read_json, understood
from glmplan.errors import SpecError
from glmplan.units import Bytes

__all__ = ["StoredTensor", "bytes_by_class", "class_of", "indexed_size", "read_safetensors"]

_BITS = {
    "F64": 64, "I64": 64, "U64": 64, "F32": 32, "I32": 32, "U32": 32, "BF16": 16, "F16": 16, "I16": 16, "U16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I8": 8, "U8": 8, "BOOL": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
    "C64": 64,
}  # fmt: skip
#: headers of the largest published files have a few MB; the reference reader stops at 100 MB
_LONGEST = 100_000_000


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor in a file; `kind` is the type of its values there."""

    name: str
    kind: str
    shape: tuple[int, ...]
    bytes: int
    file: str


def read_safetensors(path: str | Path) -> tuple[StoredTensor, ...]:
    """Return the tensors of a `.safetensors` file, index or folder.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> header = b'{"lm_head.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}'
    >>> _ = file.write_bytes(struct.pack("<Q", len(header)) + header + bytes(12))
    >>> [(one.name, one.bytes) for one in read_safetensors(file)]
    [('lm_head.weight', 12)]
    """
    path = Path(path)
    if os.path.isdir(path):
        indices = sorted(path.glob("*.safetensors.index.json"))
        if indices:
            return _indexed(indices[0])
        files = sorted(path.glob("*.safetensors"))
        if not files:
            raise SpecError("holds no safetensors files", file=path)
        _numbered(files, path)
        return tuple(tensor for file in files for tensor in _read_one(file))
    if path.name.endswith(".index.json"):
        return _indexed(path)
    return _read_one(path)


def _numbered(files: list[Path], folder: Path) -> None:
    """Refuse a set of numbered shards with gaps."""
    result: dict[tuple[str, int], set[int]] = {}
    for file in files:
        match = re.fullmatch(r"(.*)-(\d+)-of-(\d+)\.safetensors", file.name)
        if match:
            result.setdefault((match[1], int(match[3])), set()).add(int(match[2]))
    for (stem, total), numbers in result.items():
        missing = sorted(set(range(1, total + 1)) - numbers)
        if missing:
            _missing([f"{stem}-{number:05d}-of-{total:05d}.safetensors" for number in missing], folder)


def _missing(names: list[str], where: Path) -> None:
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    raise SpecError(f"shards are missing: {shown}", file=where)


def indexed_size(index: Path) -> Bytes:
    """Return the bytes of all tensors as an index states them.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> index = pathlib.Path(tempfile.mkdtemp()) / "model.safetensors.index.json"
    >>> _ = index.write_text('{"metadata": {"total_size": 12}, "weight_map": {}}')
    >>> indexed_size(index)
    12.0
    """
    content = read_json(index)
    try:
        total = float(content["metadata"]["total_size"])
    except (KeyError, TypeError, ValueError):
        total = 0.0
    if not 0 < total < math.inf:
        message = "states no metadata.total_size, and its shards are not beside it; give config.json with --size"
        raise SpecError(message, file=index)
    return total


def _indexed(index: Path) -> tuple[StoredTensor, ...]:
    content = read_json(index)
    try:
        shards = content["weight_map"]
        names = sorted(set(shards.values()))
        if not names or not all(isinstance(name, str) for name in names):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError):
        raise SpecError("is not an index of safetensors files: it has no weight_map of names", file=index) from None
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise SpecError("names a file outside its folder", file=index, field="weight_map", value=outside[0])
    with understood(index, "index of safetensors files"):
        absent = [name for name in names if not os.path.isfile(index.parent / name)]
    if absent:
        _missing(absent, index)
    tensors = tuple(tensor for name in names for tensor in _read_one(index.parent / name))
    lost = sorted(set(shards) - {tensor.name for tensor in tensors})
    if lost:
        raise SpecError(f"names {len(lost)} tensors that its files do not hold", file=index, value=lost[0])
    return tensors


def _read_one(path: Path) -> tuple[StoredTensor, ...]:
    with open_file(path) as (stream, size):
        head = stream.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 2 <= length <= min(_LONGEST, size - 8):
            raise SpecError("is not a safetensors file: the length of its header is wrong", file=path)
        try:
            header = parse_json(stream.read(length))
        except SpecError as error:
            raise SpecError(f"is not a safetensors file: its header {error.message}", file=path) from None
    if not isinstance(header, dict):
        raise SpecError("is not a safetensors file: its header is not an object", file=path)
    header.pop("__metadata__", None)
    with understood(path, "safetensors file"):
        places = sorted((*_place(name, entry, path), name) for name, entry in header.items())
        for (_, end, before), (start, _, name) in pairwise(places):
            if start < end:
                raise SpecError(f"lies over {before}: each byte belongs to one tensor", file=path, field=name)
        return tuple(_tensor(name, entry, path, size - 8 - length) for name, entry in header.items())


def _place(name: str, entry: object, path: Path) -> tuple[int, int]:
    """Return begin and end of a tensor in the data [B]."""
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(offset) is int for offset in offsets)):
        raise SpecError("has no two whole offsets in the header", file=path, field=name, value=offsets)
    return offsets[0], offsets[1]


def _tensor(name: str, entry: object, path: Path, data: int) -> StoredTensor:
    try:
        kind, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]  # type: ignore[index]
        fits = 0 <= start <= end and all(type(width) is int and 0 <= width < 2**48 for width in shape)
    except (KeyError, TypeError, ValueError):
        raise SpecError("has a damaged entry in the header", file=path, field=name) from None
    if kind not in _BITS:
        raise SpecError("is not a type of safetensors", file=path, field=name, value=kind, choices=_BITS)
    if not fits or (math.prod(shape) * _BITS[kind] + 7) // 8 != end - start:
        raise SpecError("has offsets that do not match its shape", file=path, field=name)
    if end > data:
        raise SpecError("lies beyond the end of the file: the download is incomplete", file=path, field=name)
    return StoredTensor(name=name, kind=kind, shape=shape, bytes=end - start, file=path.name)


_CLASSES = (
    (r"embed_tokens|embeddings?\.weight|word_embeddings|^token_embd", "embedding"),
    (r"(^|\.)lm_head\.|^output\.weight|shared_head\.head", "head"),
    (r"visual|vision|mm_projector|multi_modal|embed_vision|^audio", "other"),
    (r"norm|e_score_correction_bias|sinks|\.A_log|dt_bias|conv1d|\.D$|layer_scalar", "norm"),
    (r"eh_proj|mtp\.fc", "mtp_projection"),
    (r"indexer", "indexer"),
    (r"shared_expert_gate|(mlp|moe|mixer|feed_forward)\.(gate|router)\.|router|gate_inp", "router"),
    (r"shared_expert|share_expert|_shexp|latent_proj", "shared_experts"),
    (r"experts?\.|_exps", "routed_experts"),
    (r"linear_attn|mixer\.(in|out)_proj|ssm_", "recurrent"),
    (r"(q_a_proj|kv_a_proj)", "latent_down"),
    (r"attn|attention|mixer\.[qkvo]_proj", "attention"),
    (r"mlp|feed_forward|ffn|mixer\.(up|down)_proj", "dense"),
)


def class_of(name: str) -> str:
    """Return the class of a tensor by its Hugging Face name.

    Scales have the class of their weight; ``other``: unknown.

    Examples
    --------
    >>> class_of("model.layers.3.mlp.experts.17.down_proj.weight_scale")
    'routed_experts'
    >>> class_of("model.layers.3.self_attn.kv_a_proj_with_mqa.weight"), class_of("model.layers.3.mlp.gate.weight")
    ('latent_down', 'router')
    """
    for pattern, result in _CLASSES:
        if re.search(pattern, name):
            return result
    return "other"


def bytes_by_class(tensors: Iterable[StoredTensor]) -> dict[str, int]:
    """Return the stored bytes by class of tensor.

    Examples
    --------
    >>> bytes_by_class([StoredTensor("lm_head.weight", "BF16", (2, 3), 12, "model.safetensors")])
    {'head': 12}
    """
    total: dict[str, int] = {}
    for tensor in tensors:
        result = class_of(tensor.name)
        total[result] = total.get(result, 0) + tensor.bytes
    return total
