"""GGUF files: shapes from the metadata, exact bytes from the tensor list; the weights are not read.

Keys as in the GGUF specification (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md) and llama.cpp.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from glmplan.errors import SpecError, UnknownArchitecture
from glmplan.facts.schema.model import Checkpoint, ModelSpec
from glmplan.physics.blocks.stack import model_parameters
from glmplan.readers.models.hf_config import model_from_config
from glmplan.readers.models.safetensors_header import StoredTensor

__all__ = ["read_gguf", "read_gguf_model"]

#: general.architecture → model_type of the reader that knows it
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


def read_gguf(path: str | Path) -> tuple[dict[str, Any], tuple[StoredTensor, ...]]:
    """Read the metadata and the tensor list of a GGUF file and of the files it is split into.

    Parameters
    ----------
    path : path
        The file, or the first of several (``…-00001-of-00003.gguf``).

    Returns
    -------
    (dict, tuple of StoredTensor)
        Metadata (of long arrays only the length), and every tensor with its exact bytes.

    Raises
    ------
    SpecError
        If a file is damaged or one of several is missing; the missing ones are named.
    """
    path = Path(path)
    match = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", path.name)
    files = [path]
    if match:
        names = [f"{match[1]}-{number:05d}-of-{match[3]}.gguf" for number in range(1, int(match[3]) + 1)]
        missing = [name for name in names if not (path.parent / name).is_file()]
        if missing:
            raise SpecError(f"parts are missing: {', '.join(missing[:8])}", file=path)
        files = [path.parent / name for name in names]
    metadata: dict[str, Any] = {}
    tensors: list[StoredTensor] = []
    for file in files:
        found, rows = _read_one(file)
        metadata = {**found, **metadata}
        tensors += rows
    return metadata, tuple(tensors)


def _read_one(path: Path) -> tuple[dict[str, Any], list[StoredTensor]]:
    from gguf import GGUFReader, GGUFValueType

    if not path.is_file():
        raise SpecError("cannot be read: no such file", file=path)
    try:
        reader = GGUFReader(path)
        metadata: dict[str, Any] = {}
        for name, field in reader.fields.items():
            if field.types and field.types[0] == GGUFValueType.ARRAY and len(field.data) > 512:
                metadata[f"{name}.length"] = len(field.data)
            else:
                metadata[name] = field.contents()
        rows = [
            StoredTensor(
                name=str(tensor.name),
                kind=tensor.tensor_type.name,
                shape=tuple(int(width) for width in tensor.shape),
                bytes=int(tensor.n_bytes),
                file=path.name,
            )
            for tensor in reader.tensors
        ]
    except (
        ValueError,
        IndexError,
        KeyError,
        OverflowError,
        TypeError,
        UnicodeDecodeError,
        OSError,
        MemoryError,
    ) as error:
        raise SpecError(f"is not a GGUF file that can be read: {error}", file=path) from None
    return metadata, rows


def read_gguf_model(path: str | Path, *, name: str | None = None) -> tuple[ModelSpec, tuple[StoredTensor, ...]]:
    """Import a model from a GGUF file.

    Parameters
    ----------
    path : path
        The file, or the first of several.
    name : str, optional
        Name of the model; from the file by default.

    Returns
    -------
    (ModelSpec, tuple of StoredTensor)
        The model with one checkpoint whose mean bits come from the exact bytes, and the tensors.

    Raises
    ------
    UnknownArchitecture
        If glmplan cannot compute the architecture, or computes other weights than the file holds.
    SpecError
        If the file is wrong.
    """
    path = Path(path)
    metadata, tensors = read_gguf(path)
    architecture = str(metadata.get("general.architecture", "not stated"))
    model_type = _ARCHITECTURES.get(architecture)
    if model_type is None:
        raise UnknownArchitecture(
            "is not an architecture that glmplan can compute from a GGUF file",
            file=path, field="general.architecture", value=architecture, choices=_ARCHITECTURES,
        )  # fmt: skip
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem).lower()
    config = _config(metadata, tensors, architecture, model_type, path)
    model = model_from_config(config, name=name or stem, file=path)
    mtp = any("nextn" in tensor.name for tensor in tensors)
    count = model_parameters(model)
    computed = count.total + (count.mtp + count.mtp_vocabulary if mtp else 0)
    # the rotary table is no weight; biases and scales of fused tensors differ by less than a thousandth
    held = sum(_size(tensor.shape) for tensor in tensors if not tensor.name.startswith("rope_freqs"))
    if abs(held - computed) > 0.01 * computed:
        raise UnknownArchitecture(
            f"holds {held:,} weights, but the shapes in its metadata make {computed:,}", file=path, value=architecture
        )
    total = sum(tensor.bytes for tensor in tensors)
    largest = max(tensors, key=lambda tensor: tensor.bytes).kind.lower()
    checkpoint = Checkpoint(
        name=largest,
        default="bf16",
        file_bits_per_weight=total * 8 / computed,
        includes_mtp=mtp,
        bytes_published=f"{total} B",
        source=f"tensor list of {path.name}",
        note="mean bits from the exact bytes of all tensors",
    )
    return model.model_copy(update={"checkpoints": (checkpoint,), "default_checkpoint": checkpoint.name}), tensors


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for width in shape:
        size *= width
    return size


def _config(
    metadata: dict[str, Any], tensors: tuple[StoredTensor, ...], architecture: str, model_type: str, path: Path
) -> dict[str, Any]:
    """The metadata in the words of a `config.json`."""
    config: dict[str, Any] = {}
    for field, key in _FIELDS.items():
        value = metadata.get(f"{architecture}.{key}")
        if isinstance(value, list):
            distinct = set(value)
            if len(distinct) > 1:
                raise UnknownArchitecture(
                    "differs from layer to layer, which glmplan does not read from GGUF files",
                    file=path, field=f"{architecture}.{key}",
                )  # fmt: skip
            value = distinct.pop()
        if value:
            config[field] = value
    config.setdefault("vocab_size", metadata.get("tokenizer.ggml.tokens.length"))
    blocks = metadata.get(f"{architecture}.block_count")
    if not isinstance(blocks, int):
        raise SpecError("is missing", file=path, field=f"{architecture}.block_count")
    drafts = int(config.get("num_nextn_predict_layers") or 0)
    config["num_hidden_layers"] = blocks - drafts
    names = {tensor.name for tensor in tensors}
    config["tie_word_embeddings"] = "output.weight" not in names
    if "num_experts" in config:
        if model_type == "llama":
            model_type, config["num_local_experts"] = "mixtral", config.pop("num_experts")
        elif model_type in ("glm4_moe", *_LATENT):
            config["n_routed_experts"] = config.pop("num_experts")
        elif model_type in ("gpt_oss", "minimax_m2"):
            config["num_local_experts"] = config.pop("num_experts")
            config["intermediate_size"] = config.pop("moe_intermediate_size", config.get("intermediate_size"))
    if model_type in _LATENT:
        for name in ("head_dim", "num_key_value_heads"):
            config.pop(name, None)
        width = metadata.get(f"{architecture}.attention.key_length_mla")
        if width is None:
            raise SpecError(
                "is missing: the file is older than llama.cpp's support of latent attention",
                file=path, field=f"{architecture}.attention.key_length_mla",
            )  # fmt: skip
        config["qk_nope_head_dim"] = int(width) - int(config.get("qk_rope_head_dim", 0))
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
