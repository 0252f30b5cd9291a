"""Read GGUF files: shapes from metadata, bytes from the tensor list.

Weights are not read. Keys as in the GGUF specification (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) and
llama.cpp.
"""

from __future__ import annotations

import math
import os
import re
import struct
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO

from glmplan.catalog.entries.models import model_aliases, model_names
from glmplan.catalog.files import open_file, understood
from glmplan.catalog.formats import weight_format
from glmplan.catalog.schema.model import MOST_LAYERS, Checkpoint, ModelSpec
from glmplan.costs.blocks.stack import model_parameters
from glmplan.errors import SpecError, UnknownArchitecture
from glmplan.io.models.config_fields import may_be_a_shape
from glmplan.io.models.gguf_architectures import DESCRIBED, GgufArchitecture, GgufBlocks
from glmplan.io.models.hf_config import EMBEDS, REFUSED, model_from_config
from glmplan.io.models.safetensors_header import StoredTensor

__all__ = ["HARMLESS_KEYS", "keys_read", "read_gguf", "read_gguf_model", "unread_keys"]


# Metadata keys without a reader: without effect, to be reported, or possibly a shape. The names are those of the
# `gguf` package (`gguf.constants.Keys`) and of llama.cpp's converters for the architectures that are read here
# (https://github.com/ggml-org/llama.cpp, conversion/*.py).

#: reason for which a key changes neither weights, nor cache, nor work → its names below the architecture; `*` is any
HARMLESS_KEYS: Mapping[str, tuple[str, ...]] = {
    "parameters of rotary positions": ("rope.*",),
    "a number inside an elementwise step": (
        "*_epsilon", "*_softcapping", "*_scale", "attention.scale", "attention.output_scale", "attention.clamp_kqv",
        "attention.max_alibi_bias", "attention.temperature_*", "swiglu_clamp_*", "ssm.dt_b_c_rms", "*_sparsity_scale",
    ),
    "routing of tokens to experts; other fields give the number": (
        "expert_group_count", "expert_group_used_count", "expert_weights_norm", "expert_gating_func",
    ),
    "which layers have indexers is seen by their tensors": (
        "attention.indexer.types", "attention.indexer.types.length", "attention.indexer.top_k_frequency",
        "attention.indexer.skip_top_k_offset",
    ),
    "words of the tokenizer": ("*_token_id",),
    "how a library runs it": ("tensor_data_layout", "pooling_type", "attention.causal"),
}  # fmt: skip

#: keys that change a layer's shape also with a switch or a list of switches
_STRUCTURAL = ("attention.sliding_window_pattern", "attention.shared_kv_layers", "*recurrent_layers")

_NAMES = tuple(name for names in HARMLESS_KEYS.values() for name in names)


def unread_keys(
    metadata: Mapping[str, Any], architecture: str, read: Collection[str], file: str | Path
) -> tuple[str, ...]:
    """Return unknown keys that are set; raise for one that may be a shape.

    `read`: keys below the architecture that were read.

    Examples
    --------
    >>> unread_keys({"llama.rope.freq_base": 5e5, "llama.use_magic": True, "general.name": "x"}, "llama", (), "a.gguf")
    ('llama.use_magic',)
    """
    result = []
    for key, value in metadata.items():
        name = key.removeprefix(f"{architecture}.")
        if name == key or name in read or value in (None, [], "", 0) or _is_one_of(name, _NAMES):
            continue
        if _is_one_of(name, _STRUCTURAL) or may_be_a_shape(value):
            raise UnknownArchitecture(
                f"is set, and glmplan does not know what it means for the architecture {architecture!r}",
                file=file, field=key, value=value if isinstance(value, int | float | str) else None,
            )  # fmt: skip
        result.append(key)
    return tuple(result)


def _is_one_of(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


#: general.architecture → model_type of its reader
_ARCHITECTURES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "qwen3next": "qwen3_next",
    "deepseek2": "deepseek_v3",
    "glm4moe": "glm4_moe",
    "glm-dsa": "glm_moe_dsa",
    "gpt-oss": "gpt_oss",
    "minimax-m2": "minimax_m2",
    "gemma3": "gemma3_text",
    **{name: described.model_type for name, described in DESCRIBED.items()},
}
#: field of a config → key of the metadata, below the name of the architecture
_FIELDS = {
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
    "q_lora_rank": "attention.q_lora_rank",
    "kv_lora_rank": "attention.kv_lora_rank",
    "qk_rope_head_dim": "rope.dimension_count",
    "v_head_dim": "attention.value_length_mla",
    "index_n_heads": "attention.indexer.head_count",
    "index_head_dim": "attention.indexer.key_length",
    "index_topk": "attention.indexer.top_k",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
    "first_k_dense_replace": "leading_dense_block_count",
    "num_nextn_predict_layers": "nextn_predict_layers",
    "vocab_size": "vocab_size",
    "linear_conv_kernel_dim": "ssm.conv_kernel",
    "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count",
    "linear_num_value_heads": "ssm.time_step_rank",
}
_LATENT = ("deepseek_v3", "glm_moe_dsa")
#: further keys that are read, of some architectures only
_MORE = ("block_count", "attention.value_length")
_MORE_OF = {
    **dict.fromkeys(_LATENT, ("attention.key_length_mla",)),
    "qwen3_next": ("ssm.inner_size", "full_attention_interval"),
}


def keys_read(architecture: str) -> frozenset[str]:
    """Return the keys that the reader of an architecture uses.

    Examples
    --------
    >>> "ssm.inner_size" in keys_read("qwen3next"), "ssm.inner_size" in keys_read("llama")
    (True, False)
    """
    described = DESCRIBED.get(architecture)
    more = described.keys if described else _MORE_OF.get(_ARCHITECTURES.get(architecture, ""), ())
    return frozenset((*_FIELDS.values(), *_MORE, *more))


def read_gguf(path: str | Path) -> tuple[dict[str, Any], tuple[StoredTensor, ...]]:
    """Return metadata and tensors of a GGUF file and its split files.

    Tensors have their exact bytes. `path`: the file, or the first of several (``…-00001-of-00003.gguf``). Long arrays
    have only their length.
    """
    path = Path(path)
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    files = [path]
    if match:
        names = [f"{match[1]}-{number:05d}-of-{match[3]}.gguf" for number in range(1, int(match[3]) + 1)]
        missing = [name for name in names if not os.path.isfile(path.parent / name)]
        if missing:
            raise SpecError(f"parts are missing: {', '.join(missing[:8])}", file=path)
        files = [path.parent / name for name in names]
    metadata: dict[str, Any] = {}
    tensors: list[StoredTensor] = []
    for file in files:
        result, rows = _read_one(file)
        metadata = {**result, **metadata}
        tensors += rows
    return metadata, tuple(tensors)


#: type of a value → its form in `struct`; 8 is a text, 9 an array
_VALUES = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
#: longest array whose entries are kept: vocabularies are longer
_SHORT = 512
#: most bytes of a header; the largest published ones have some 20 MB of vocabulary
_LONGEST = 256 * 2**20
#: most tensors and fields of a file, dimensions of a tensor
_MOST, _DIMENSIONS = 1 << 20, 4


class _Header:
    """Reader of one value after another, never beyond the content of the file."""

    def __init__(self, stream: BinaryIO, size: int, path: Path) -> None:
        self.stream, self.path, self.left = stream, path, min(size, _LONGEST)

    def bad(self, why: str) -> SpecError:
        return SpecError(f"is not a GGUF file that can be read: {why}", file=self.path)

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        if count > self.left:
            raise self.bad(f"{count:,} bytes are announced where at most {self.left:,} are left")
        self.left -= count
        result = self.stream.read(count)
        if len(result) < count:
            raise self.bad("it is cut off")
        return result

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def text(self) -> str:
        return self.take(self.number("<Q")).decode(errors="replace")

    def value(self, kind: int) -> Any:
        """Return a value; of a long array its length alone."""
        if kind == _STRING:
            return self.text()
        if kind in _VALUES:
            return self.number(_VALUES[kind])
        if kind != _ARRAY:
            raise self.bad(f"{kind} is no type of a value")
        inside, count = self.number("<I"), self.number("<Q")
        if inside == _ARRAY:
            raise self.bad("it has arrays of arrays, which no program writes")
        if inside not in (_STRING, *_VALUES):
            raise self.bad(f"{inside} is no type of a value")
        width = 8 if inside == _STRING else struct.calcsize(_VALUES[inside])
        if count * width > self.left:
            raise self.bad(f"an array of {count:,} is announced where {self.left:,} bytes are left")
        if count <= _SHORT:
            return [self.value(inside) for _ in range(count)]
        if inside == _STRING:
            for _ in range(count):
                self.take(self.number("<Q"))
        else:
            self.take(count * width)
        return _Length(count)


class _Length(int):
    """Length of an array whose entries are not kept."""


def _read_one(path: Path) -> tuple[dict[str, Any], list[StoredTensor]]:
    with open_file(path) as (stream, size), understood(path, "GGUF file"):
        header = _Header(stream, size, path)
        if header.take(4) != b"GGUF" or header.number("<I") not in (2, 3):
            raise header.bad("it does not begin as one of version 2 or 3 does")
        tensors, fields = header.number("<Q"), header.number("<Q")
        if max(tensors, fields) > _MOST:
            raise header.bad(f"it announces {tensors:,} tensors and {fields:,} fields")
        metadata: dict[str, Any] = {}
        for _ in range(fields):
            name = header.text()
            value = header.value(header.number("<I"))
            if isinstance(value, _Length):
                metadata[f"{name}.length"] = int(value)
            else:
                metadata[name] = value
        rows = [_tensor(header) for _ in range(tensors)]
        align = metadata.get("general.alignment", 32)
        if not isinstance(align, int) or not 1 <= align <= 1 << 20:
            raise header.bad(f"general.alignment is {align!r}")
        begin = -(-stream.tell() // align) * align
        _within(header, rows, size - begin)
        return metadata, [tensor for tensor, _ in rows]


def _tensor(header: _Header) -> tuple[StoredTensor, int]:
    """Return one tensor of the list, and the offset of its data [B]."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    name, dimensions = header.text(), header.number("<I")
    if dimensions > _DIMENSIONS:
        raise header.bad(f"{name} has {dimensions} dimensions")
    shape = tuple(header.number("<Q") for _ in range(dimensions))
    kind = GGMLQuantizationType(header.number("<I"))
    block, held = GGML_QUANT_SIZES[kind]
    count = math.prod(shape)
    if count % block:
        raise header.bad(f"{name} has {count:,} values, which is no whole number of blocks of {kind.name}")
    stored = StoredTensor(name=name, kind=kind.name, shape=shape, bytes=count // block * held, file=header.path.name)
    return stored, header.number("<Q")


def _within(header: _Header, rows: list[tuple[StoredTensor, int]], data: int) -> None:
    """Refuse tensors that overlap or end beyond the file."""
    end, before = 0, ""
    for tensor, start in sorted(rows, key=lambda row: row[1]):
        if start < end:
            raise header.bad(f"{tensor.name} lies over {before}")
        end, before = start + tensor.bytes, tensor.name
    if end > max(data, 0):
        raise header.bad(f"{before} lies beyond its end: the download is incomplete")


#: architectures without a model that generates text → reason (names: `constants.py` of the `gguf` package 0.19.0)
_REFUSED: Mapping[str, str] = {
    **REFUSED,
    **dict.fromkeys(
        ("gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llama-embed", "modern-bert", "neo-bert", "nomic-bert",
         "nomic-bert-moe", "t5encoder"),
        EMBEDS,
    ),
    "clip": "the file holds the image projector of a model: give the GGUF file of the language model",
}  # fmt: skip


#: end of a refusal of a model that the catalogue does not have
_INSTEAD = "; give the model's name, or its config.json with --size"


def read_gguf_model(path: str | Path) -> tuple[ModelSpec, tuple[StoredTensor, ...]]:
    """Return the model of a GGUF file, a checkpoint and the tensors.

    The checkpoint has exact mean bits.
    """
    path = Path(path)
    metadata, tensors = read_gguf(path)
    architecture = str(metadata.get("general.architecture", "not stated"))
    if architecture in _REFUSED:
        raise UnknownArchitecture(
            f"is refused: {_REFUSED[architecture]}", file=path, field="general.architecture", value=architecture
        )
    model_type = _ARCHITECTURES.get(architecture)
    if model_type is None:
        raise UnknownArchitecture(
            "is not an architecture that glmplan can compute from a GGUF file"
            + (_in_catalogue(metadata, path) or _INSTEAD),
            file=path, field="general.architecture", value=architecture, choices=_ARCHITECTURES,
        )  # fmt: skip
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem).lower()
    unread = unread_keys(metadata, architecture, keys_read(architecture), path)
    config = _config(metadata, tensors, architecture, model_type, path)
    model = model_from_config(config, name=stem, file=path)
    mtp = any("nextn" in tensor.name for tensor in tensors)
    count = model_parameters(model)
    computed = count.total + model.extra_parameters + (count.mtp + count.mtp_vocabulary if mtp else 0)
    # the rotary table is no weight; biases and scales of fused tensors differ by less than a thousandth
    held = sum(_size(tensor.shape) for tensor in tensors if not tensor.name.startswith("rope_freqs"))
    if abs(held - computed) > 0.01 * computed:
        raise UnknownArchitecture(
            f"holds {held:,} weights, but the shapes in its metadata make {computed:,}"
            + (_in_catalogue(metadata, path) or _INSTEAD),
            file=path, value=architecture,
        )  # fmt: skip
    # per-layer embeddings are looked up, not multiplied: they stand apart, with their exact bytes
    apart = sum(tensor.bytes for tensor in tensors if tensor.name.startswith("per_layer_"))
    computed -= model.extra_parameters
    total = sum(tensor.bytes for tensor in tensors)
    largest = max(tensors, key=lambda tensor: tensor.bytes).kind.lower()
    checkpoint = Checkpoint(
        name=largest,
        default="bf16",
        file_bits_per_weight=(total - apart) * 8 / computed,
        includes_mtp=mtp,
        bytes_published=f"{total} B",
        source=f"tensor list of {path.name}",
        note="mean bits from the exact bytes of all tensors",
    )
    bf16 = weight_format("bf16").bytes
    told = {
        "checkpoints": (checkpoint,),
        "default_checkpoint": checkpoint.name,
        "extra_parameters": round(apart / bf16),
    }
    return model.model_copy(update={**told, "not_understood": (*model.not_understood, *unread)}), tensors


def _in_catalogue(metadata: Mapping[str, Any], path: Path) -> str:
    """Return a hint at the catalogue's model of a file's name, or nothing."""
    names = {**dict.fromkeys(model_names()), **model_aliases()}
    for text in (metadata.get("general.name"), metadata.get("general.basename"), path.stem):
        words = re.sub(r"[^a-z0-9.]+", "-", str(text or "").lower())
        begun = [name for name in names if words == name or words.startswith(f"{name}-")]
        if begun:
            name = max(begun, key=len)
            return f"; the catalogue has it: give {names[name] or name} and --weights with the mixture, such as q4_k_m"
    return ""


def _same_values(
    metadata: dict[str, Any], architecture: str, config: dict[str, Any], model_type: str, path: Path
) -> None:
    """Refuse values of another width than keys.

    No architecture that is read here has them.
    """
    value = metadata.get(f"{architecture}.attention.value_length")
    width = config.get("kv_lora_rank") if model_type in _LATENT else config.get("head_dim")
    if value is not None and width is not None and value != width:
        raise UnknownArchitecture(
            f"is not {width}, the width of what is cached of a key",
            file=path, field=f"{architecture}.attention.value_length", value=value if isinstance(value, int) else None,
        )  # fmt: skip


def _indexers(names: set[str], count: int) -> dict[str, list[str]]:
    """Return the layers with an indexer of their own.

    Other layers reuse the selection of one before.
    """
    named = {name.split(".")[1] for name in names if name.startswith("blk.") and ".indexer." in name}
    own = [str(layer) in named for layer in range(count)]
    return {"indexer_types": ["full" if item else "shared" for item in own]} if any(own) else {}


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for width in shape:
        size *= width
    return size


def _stated_fields(metadata: dict[str, Any], architecture: str, path: Path, *, by_layer: bool) -> dict[str, Any]:
    """Return the usual fields that metadata state.

    `by_layer`: lists with one value for each layer are read; the largest stands in the field.
    """
    config: dict[str, Any] = {}
    for field, key in _FIELDS.items():
        value = metadata.get(f"{architecture}.{key}")
        if isinstance(value, list):
            distinct = {_largest(value, path, key)} if value and by_layer else set(value)
            if len(distinct) > 1:
                raise UnknownArchitecture(
                    "differs from layer to layer, which glmplan does not read from GGUF files",
                    file=path, field=f"{architecture}.{key}",
                )  # fmt: skip
            value = distinct.pop() if distinct else None
        if value:
            config[field] = value
    return config


def _config(
    metadata: dict[str, Any], tensors: tuple[StoredTensor, ...], architecture: str, model_type: str, path: Path
) -> dict[str, Any]:
    """Return the metadata in the fields of a `config.json`."""
    described = DESCRIBED.get(architecture)
    config = _stated_fields(
        metadata, architecture, path, by_layer=described is not None and described.adapt is not None
    )
    rows = next((tensor.shape[-1] for tensor in tensors if tensor.name == "token_embd.weight"), None)
    config.setdefault("vocab_size", metadata.get("tokenizer.ggml.tokens.length") or rows)
    blocks = metadata.get(f"{architecture}.block_count")
    if not isinstance(blocks, int):
        raise SpecError("is missing", file=path, field=f"{architecture}.block_count")
    if not 1 <= blocks <= MOST_LAYERS:
        raise SpecError(
            f"is not between 1 and {MOST_LAYERS:,}", file=path, field=f"{architecture}.block_count", value=blocks
        )
    drafts = int(config.get("num_nextn_predict_layers") or 0)
    config["num_hidden_layers"] = blocks - drafts
    names = {tensor.name for tensor in tensors}
    config["tie_word_embeddings"] = "output.weight" not in names
    if described is not None:
        if described.model_type not in ("mimo_v2", "kimi_linear"):  # their values have a width of their own
            _same_values(metadata, architecture, config, model_type, path)
        return _described(described, GgufBlocks(metadata, architecture, frozenset(names), blocks - drafts), config)
    if "num_experts" in config:
        if model_type == "llama":
            model_type, config["num_local_experts"] = "mixtral", config.pop("num_experts")
        elif model_type in ("glm4_moe", *_LATENT):
            config["n_routed_experts"] = config.pop("num_experts")
        elif model_type in ("gpt_oss", "minimax_m2"):
            config["num_local_experts"] = config.pop("num_experts")
            config["intermediate_size"] = config.pop("moe_intermediate_size", config.get("intermediate_size"))
    _same_values(metadata, architecture, config, model_type, path)
    if model_type in _LATENT:
        config |= _indexers(names, blocks - drafts)
        for name in ("head_dim", "num_key_value_heads"):
            config.pop(name, None)
        width = metadata.get(f"{architecture}.attention.key_length_mla")
        if width is None:
            raise SpecError(
                "is missing: the file is older than llama.cpp's support of latent attention",
                file=path, field=f"{architecture}.attention.key_length_mla",
            )  # fmt: skip
        config["qk_nope_head_dim"] = int(width) - int(config.get("qk_rope_head_dim", 0))
    else:
        # the rotated share of a head changes no shape; in latents it is a separate width
        config.pop("qk_rope_head_dim", None)
    if model_type == "gpt_oss":
        config["attention_bias"] = True
        config["layer_types"] = ["sliding_attention", "full_attention"] * (config["num_hidden_layers"] // 2)
    if model_type == "glm4_moe":
        config["attention_bias"] = "blk.0.attn_q.bias" in names
        config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in names
    if model_type == "minimax_m2":
        config |= {"use_qk_norm": True, "use_routing_bias": True}
    if model_type == "qwen3_next":
        heads = int(config.get("linear_num_value_heads") or 1)
        config["linear_value_head_dim"] = int(metadata.get(f"{architecture}.ssm.inner_size", 0)) // heads
        config["full_attention_interval"] = metadata.get(f"{architecture}.full_attention_interval", 4)
    return {"model_type": model_type, **config}


def _largest(values: list[Any], path: Path, key: str) -> int | float:
    """Return the largest value of a list with one for each layer."""
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(numbers) != len(values):
        raise SpecError("is not a list of numbers", file=path, field=key)
    return max(numbers)


def _described(described: GgufArchitecture, blocks: GgufBlocks, config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a described architecture in its reader's words."""
    config.pop("qk_rope_head_dim", None)
    result = {"model_type": described.model_type, **config, **described.constants}
    result |= {name: True for name, tensor in described.switches.items() if blocks.has(tensor)}
    if described.adapt is not None:
        described.adapt(blocks, result)
    for usual, own in described.renamed.items():
        if usual in result:
            result[own] = result.pop(usual)
    return {name: value for name, value in result.items() if value is not None}
