"""Hugging Face `config.json` → ModelSpec. What the config does not determine is refused with the reason.

Each architecture is a reader of its own; an unknown one is never read as plain multi-head attention.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from glmplan.errors import SpecError, UnknownArchitecture
from glmplan.facts import files
from glmplan.facts.schema.model import Checkpoint, LayerKind, ModelSpec
from glmplan.readers.models.anatomy import spell_stack
from glmplan.readers.models.config_fields import ConfigFields
from glmplan.readers.models.grouped_architectures import GROUPED_READERS
from glmplan.readers.models.hybrid_architectures import HYBRID_READERS
from glmplan.readers.models.latent_architectures import LATENT_READERS
from glmplan.readers.models.stream_architectures import STREAM_READERS
from glmplan.readers.models.unread_fields import is_harmless
from glmplan.readers.models.vision import projector_parameters, tower_shape, tower_trial, vision_parameters
from glmplan.readers.models.windowed_architectures import WINDOWED_READERS

__all__ = ["READERS", "REFUSED", "model_from_config", "read_hf_config", "read_json"]

#: model_type of the language part → reader
READERS = {**GROUPED_READERS, **WINDOWED_READERS, **LATENT_READERS, **HYBRID_READERS, **STREAM_READERS}

#: model_types that are refused, with the reason
REFUSED = {
    "lfm2_moe": "short convolutions in place of attention are not modelled",
}


def read_json(path: str | Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Parameters
    ----------
    path : path
        The file.

    Returns
    -------
    dict
        Its content.

    Raises
    ------
    SpecError
        If it cannot be read, is larger than 64 MiB, or is not a JSON object.

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
    """Import a model from its `config.json`, with the quantisation that it or `hf_quant_config.json` beside it states.

    Parameters
    ----------
    path : path
        The file, or the folder it lies in.
    name : str, optional
        Name of the model; from the file by default.

    Returns
    -------
    ModelSpec
        The model, with one checkpoint.

    Raises
    ------
    UnknownArchitecture
        If glmplan cannot compute the architecture; the message says why.
    SpecError
        If the file or a field is wrong.
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
    """Build a model from the content of a `config.json`.

    Parameters
    ----------
    config : mapping
        Content of `config.json`.
    name : str
        Name of the model.
    file : path, optional
        Where it is from, for messages.
    quantization : mapping, optional
        Content of `hf_quant_config.json`.
    source : str, optional
        Where the facts are from; the file by default.

    Returns
    -------
    ModelSpec
        The model, with one checkpoint.

    Raises
    ------
    UnknownArchitecture
        If glmplan cannot compute the architecture.
    SpecError
        If a field is wrong.

    Examples
    --------
    >>> llama = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    ...          "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    ...          "max_position_embeddings": 131072, "tie_word_embeddings": False}
    >>> model_from_config(llama, name="llama-3.1-8b").stack
    'layer*32'
    """
    from glmplan.readers.models.checkpoint_formats import checkpoint_from_config

    top = ConfigFields(config, file)
    text = top
    if isinstance(config.get("text_config"), Mapping):
        text = top.part("text_config")
    elif isinstance(config.get("llm_config"), Mapping):
        text = top.part("llm_config")
    model_type = _model_type(top, text)
    try:
        anatomy = READERS[model_type](text)
    except ValidationError as error:
        raise text.blamed(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from None
    unknown = _not_understood(top, text, model_type)
    kinds: dict[str, LayerKind] = dict(anatomy.layers) | anatomy.extra
    stack = spell_stack([layer for layer, _ in anatomy.layers])
    tied_default = model_type in ("gemma3_text", "gemma4_text")
    tied = text.flag("tie_word_embeddings", top.flag("tie_word_embeddings", tied_default))
    extra, extra_note = vision_parameters(config)
    if anatomy.notes:
        extra_note = "; ".join([*anatomy.notes, *([extra_note] if extra_note else [])])
    try:
        spec = ModelSpec(
            name=name,
            family=anatomy.family,
            hidden=text.whole("hidden_size"),
            vocabulary=text.whole("vocab_size"),
            tied_embedding=tied,
            max_context=text.whole("max_position_embeddings", "max_sequence_length", "seq_length"),
            layers=kinds,
            stack=stack,
            mtp=anatomy.mtp,
            extra_parameters=extra,
            extra_replicated=projector_parameters(config),
            tower_layers=tower_shape(config)[0] if extra else None,
            tower_width=tower_shape(config)[1] if extra else None,
            **tower_trial(config),
            multimodal_positions=_multimodal_positions(text),
            extra_note=extra_note,
            not_understood=unknown,
            source=source or f"config.json read from {Path(file).name if file else 'memory'}",
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise SpecError(str(first["msg"]), file=file, field=".".join(map(str, first["loc"]))) from None
    checkpoint: Checkpoint = checkpoint_from_config(spec, config, quantization, file=file, source=source)
    return spec.model_copy(update={"checkpoints": (checkpoint,), "default_checkpoint": checkpoint.name})


def _not_understood(top: ConfigFields, text: ConfigFields, model_type: str) -> tuple[str, ...]:
    """Fields that are set and that nobody knows; raises for one that may change a shape of the language model."""
    text.read |= {"hidden_size", "vocab_size", "max_position_embeddings", "tie_word_embeddings"}
    found = text.not_understood(model_type)
    if top is text:
        return tuple(found)
    # towers are parts of their own with a type of their own, and some configs repeat fields of the language model
    towers = [name for name, one in top.content.items() if isinstance(one, Mapping) and "model_type" in one]
    rest = {name: one for name, one in top.content.items() if name not in {*text.read, *top.read, *towers}}
    found += ConfigFields(rest, top.file).not_understood(model_type)
    return (*found, *(name for name in towers if not is_harmless(name) and name not in top.read))


def _multimodal_positions(text: ConfigFields) -> bool:
    """Whether rotary positions have time, height and width."""
    if str(text.raw("model_type", "")).startswith("qwen3_vl"):  # transformers gives it sections where the file does not
        return True
    return any("mrope_section" in (text.raw(name) or {}) for name in ("rope_scaling", "rope_parameters"))


def _model_type(top: ConfigFields, text: ConfigFields) -> str:
    """The model_type whose reader applies, or an error that names the architecture."""
    inner, outer = (next(iter(part.words("model_type")), None) for part in (text, top))
    architecture = ", ".join(top.words("architectures")) or "not stated"
    for found in (inner, outer):
        if found in REFUSED:
            raise UnknownArchitecture(
                f"(architectures: {architecture}) is refused: {REFUSED[found]}",
                file=top.file, field="model_type", value=found,
            )  # fmt: skip
    for found in (inner, outer if inner is None else None):
        if found in READERS:
            return found
    if inner is None and outer is None:
        raise UnknownArchitecture(f"is missing (architectures: {architecture})", file=top.file, field="model_type")
    shown = inner if inner is not None else outer
    raise UnknownArchitecture(
        f"(architectures: {architecture}) is not an architecture that glmplan can compute",
        file=top.file, field=text.prefix + "model_type", value=shown, choices=READERS,
    )  # fmt: skip


def _name(path: Path, config: Mapping[str, Any]) -> str:
    stem = path.name.removesuffix("config.json").rstrip("_-.")
    stated = str(config.get("_name_or_path") or "")
    return (stem or path.parent.name or stated or "model").rsplit("--", 1)[-1].rsplit("/", 1)[-1].lower()
