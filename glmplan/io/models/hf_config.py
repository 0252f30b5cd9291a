"""Import a model from a Hugging Face `config.json`.

A config that does not determine the model is refused with the reason. Each architecture has a reader; an unknown one is
never read as plain multi-head attention.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from glmplan.catalog import files
from glmplan.catalog.schema.model import Checkpoint, LayerKind, ModelSpec
from glmplan.errors import SpecError, UnknownArchitecture
from glmplan.io.models.config_fields import ConfigFields, is_harmless, spell_stack
from glmplan.io.models.family_fields import tied_by_default, usual_fields
from glmplan.io.models.grouped_architectures import GROUPED_READERS, WINDOWED_READERS
from glmplan.io.models.hybrid_architectures import HYBRID_READERS
from glmplan.io.models.latent_architectures import LATENT_READERS, STREAM_READERS
from glmplan.io.models.mixed_architectures import MIXED_READERS
from glmplan.io.models.plain_architectures import PLAIN_READERS

__all__ = [
    "EMBEDS",
    "READERS",
    "REFUSED",
    "model_from_config",
    "projector_parameters",
    "read_hf_config",
    "read_json",
    "tower_shape",
    "tower_trial",
    "vision_parameters",
]


# Weights of vision towers count only where the config states the shapes (Qwen3-VL, Qwen3.5, Kimi-K2.5), by
# `modeling_qwen3_vl.py` of Hugging Face transformers and vLLM's `kimi_k25_vit.py`.

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

# fields of MoonViT, all required; patches are RGB
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
    """Return the weights of a multimodal config's vision tower, and a note.

    0 and a note for a tower whose shapes the config does not state.

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
    """Return tower weights kept in full on TP ranks: Kimi-K2.5's projector.

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
    """Return layers and width of a vision tower, or None.

    Engines read these names. `num_hidden_layers` and `hidden_size`, or those of MoonViT.

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
#: pixels of the trial exceed (vllm/model_executor/models/kimi_k25.py); a chunk of four frames makes fewer tokens
_MOON_PATCHES = 16384


#: Gemma 4's largest item is a video of 32 frames of 70 tokens: vllm/model_executor/models/gemma4_mm.py, in agreement
#: with the step of 2,496 tokens that vLLM 0.25.1 sets for it (32 frames of 70 and 8 marks)
_GEMMA_FRAMES, _GEMMA_TOKENS = 32, 70
_GEMMA = ("hidden_size", "intermediate_size", "patch_size", "pooling_kernel_size")


def tower_trial(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the `ModelSpec` fields that size a tower's trial run.

    Empty where the config does not state all of them or its processor is unknown.

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


#: model_type of the language part → reader
READERS = {
    **GROUPED_READERS, **WINDOWED_READERS, **LATENT_READERS, **HYBRID_READERS, **STREAM_READERS, **PLAIN_READERS,
    **MIXED_READERS,
}  # fmt: skip

_CONTEXTS = ("max_position_embeddings", "max_sequence_length", "seq_length")

#: reason for embedding and ranking models, which read a prompt and decode nothing
EMBEDS = "an embedding model writes no tokens, and glmplan plans models that generate text"

#: refused model_types, with the reason
REFUSED: Mapping[str, str] = {
    "phi3small": "block-sparse attention is not modelled",
    **dict.fromkeys(
        ("phi4mm", "phi4_multimodal"),
        "its adapters for images and speech are not modelled; phi-4-mini's config.json has its language model alone",
    ),
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "distilbert", "mpnet", "deberta-v2", "modernbert", "nomic_bert", "eurobert"),
        EMBEDS,
    ),
    **dict.fromkeys(
        ("t5", "mt5", "umt5", "bart", "mbart", "pegasus", "marian", "whisper", "m2m_100", "t5gemma",
         "vision-encoder-decoder"),
        "an encoder reads its prompt, and glmplan plans models of a decoder alone",
    ),
    **dict.fromkeys(
        ("llada", "llada2_moe", "Dream", "sdar", "diffusion_gemma"),
        "it fills in many tokens in each pass, and glmplan plans models that write one after another",
    ),
    **dict.fromkeys(
        ("rwkv", "rwkv5", "rwkv6", "rwkv7", "mamba", "mamba2", "falcon_mamba", "xlstm"),
        "it has no attention, and glmplan plans models with a cache that grows with the context",
    ),
    **dict.fromkeys(
        ("zamba", "zamba2"), "its layers share one block with adapters of their own, which is not modelled"
    ),
}  # fmt: skip


def read_json(path: str | Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "config.json"
    >>> _ = file.write_text('{"hidden_size": 6144}')
    >>> read_json(file)
    {'hidden_size': 6144}
    """
    path = Path(path)
    content = files.read_json(path)
    if not isinstance(content, dict):
        raise SpecError("is not a JSON object", file=path)
    return content


def read_hf_config(path: str | Path, *, name: str | None = None) -> ModelSpec:
    """Import a model from `config.json` with its quantisation.

    A `hf_quant_config.json` in the same folder counts, too. `path`: the file, or its folder. `name` defaults to that of
    the file.
    """
    path = Path(path)
    if os.path.isdir(path):
        path = path / "config.json"
    config = read_json(path)
    beside = path.with_name(path.name.removesuffix("config.json") + "hf_quant_config.json")
    quantization = read_json(beside) if path.name.endswith("config.json") and os.path.isfile(beside) else None
    return model_from_config(config, name=name or _name(path, config), file=path, quantization=quantization)


def model_from_config(
    config: Mapping[str, Any],
    *,
    name: str,
    file: str | Path | None = None,
    quantization: Mapping[str, Any] | None = None,
    source: str | None = None,
) -> ModelSpec:
    """Return the model of a `config.json`; `source` defaults to the file.

    Examples
    --------
    >>> llama = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    ...          "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    ...          "max_position_embeddings": 131072, "tie_word_embeddings": False}
    >>> model_from_config(llama, name="llama-3.1-8b").stack
    'layer*32'
    """
    from glmplan.io.models.quantization import checkpoint_from_config

    top = ConfigFields(config, file)
    text = _language_part(top)
    model_type = _model_type(top, text)
    usual, defaults = usual_fields(text, model_type, nested=top is not text)
    top, text = (usual if top is text else top), usual
    try:
        anatomy = READERS[model_type](text)
    except ValidationError as error:
        raise text.blamed(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from None
    unknown = _not_understood(top, text, model_type)
    kinds: dict[str, LayerKind] = dict(anatomy.layers) | anatomy.extra
    stack = spell_stack([layer for layer, _ in anatomy.layers])
    tied = text.flag("tie_word_embeddings", top.flag("tie_word_embeddings", tied_by_default(model_type)))
    extra, extra_note = vision_parameters(config)
    if "thinker_config" in top.content:
        remarks = ["the thinker alone is counted, without the talker and the tower of audio"]
    else:
        remarks = []
    remarks += [*defaults, *anatomy.notes, *([extra_note] if extra_note else [])]
    try:
        spec = ModelSpec(
            name=name,
            family=anatomy.family,
            hidden=text.whole("hidden_size"),
            vocabulary=text.whole("vocab_size"),
            tied_embedding=tied,
            max_context=_context(text),
            layers=kinds,
            stack=stack,
            mtp=anatomy.mtp,
            extra_parameters=extra + anatomy.extra_parameters,
            extra_replicated=projector_parameters(config),
            tower_layers=tower_shape(config)[0] if extra else None,
            tower_width=tower_shape(config)[1] if extra else None,
            **tower_trial(config),
            multimodal_positions=_multimodal_positions(text),
            extra_note="; ".join(remarks) or None,
            not_understood=unknown,
            source=source or f"config.json read from {Path(file).name if file else 'memory'}",
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(str(first["msg"]), file=file, field=".".join(map(str, first["loc"]))) from None
    checkpoint: Checkpoint = checkpoint_from_config(spec, config, quantization, file=file, source=source)
    return spec.model_copy(update={"checkpoints": (checkpoint,), "default_checkpoint": checkpoint.name})


def _context(text: ConfigFields) -> int:
    """Return the least of the stated contexts, as vLLM does."""
    stated = [text.whole(name) for name in _CONTEXTS if text.has(name)]
    return min(stated) if stated else text.whole(_CONTEXTS[0])


def _language_part(top: ConfigFields) -> ConfigFields:
    """Return the fields of the language model, which may be nested.

    Examples
    --------
    >>> _language_part(ConfigFields({"thinker_config": {"text_config": {"vocab_size": 8}}})).whole("vocab_size")
    8
    """
    if isinstance(top.content.get("thinker_config"), Mapping):  # Qwen-Omni, whose talker is another model
        return _language_part(top.part("thinker_config"))
    for name in ("text_config", "llm_config", "language_config"):
        if isinstance(top.content.get(name), Mapping):
            return top.part(name)
    return top


def _not_understood(top: ConfigFields, text: ConfigFields, model_type: str) -> tuple[str, ...]:
    """Return unknown fields that are set; raise for one that may be a shape.

    Only shapes of the language model count.
    """
    text.read |= {"hidden_size", "vocab_size", "tie_word_embeddings", *_CONTEXTS}
    result = text.not_understood(model_type)
    if top is text:
        return tuple(result)
    # towers have a type of their own, and some configs repeat fields of the language model
    towers = [name for name, one in top.content.items() if isinstance(one, Mapping) and "model_type" in one]
    rest = {name: one for name, one in top.content.items() if name not in {*text.read, *top.read, *towers}}
    result += ConfigFields(rest, top.file).not_understood(model_type)
    return (*result, *(name for name in towers if not is_harmless(name) and name not in top.read))


def _multimodal_positions(text: ConfigFields) -> bool:
    """Return True if rotary positions have time, height and width."""
    if str(text.raw("model_type", "")).startswith("qwen3_vl"):  # transformers gives it sections where the file does not
        return True
    parts = (text.raw(name) for name in ("rope_scaling", "rope_parameters"))
    return any(isinstance(part, Mapping) and "mrope_section" in part for part in parts)


def _model_type(top: ConfigFields, text: ConfigFields) -> str:
    """Return the model_type whose reader applies.

    An unknown architecture raises an error that names it.
    """
    inner, outer = (next(iter(part.words("model_type")), None) for part in (text, top))
    architecture = ", ".join(top.words("architectures")) or "not stated"
    for result in (inner, outer):
        if result is not None and result in REFUSED:
            raise UnknownArchitecture(
                f"(architectures: {architecture}) is refused: {REFUSED[result]}",
                file=top.file, field="model_type", value=result,
            )  # fmt: skip
    if inner == "bailing_moe" and "BailingMoeV2" in architecture:  # Ling 2.0 keeps the model_type of Ling 1.5
        return "bailing_moe_v2"
    for result in (inner, outer if inner is None else None):
        if result in READERS:
            return result
    if inner is None and outer is None:
        raise UnknownArchitecture(f"is missing (architectures: {architecture})", file=top.file, field="model_type")
    shown = inner if inner is not None else outer
    raise UnknownArchitecture(
        f"(architectures: {architecture}) is not an architecture that glmplan can compute (a .toml with its layers is: "
        "glmplan models show NAME --format toml prints one)",
        file=top.file, field=text.prefix + "model_type", value=shown, choices=READERS,
    )  # fmt: skip


def _name(path: Path, config: Mapping[str, Any]) -> str:
    stem = path.name.removesuffix("config.json").rstrip("_-.")
    stated = str(config.get("_name_or_path") or "")
    return (stem or path.parent.name or stated or "model").rsplit("--", 1)[-1].rsplit("/", 1)[-1].lower()
