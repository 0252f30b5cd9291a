"""Resolve the text of a model to the model and its checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from glmplan.catalog.entries.models import (
    load_model,
    load_model_file,
    model_aliases,
    model_key,
    model_names,
    model_repositories,
)
from glmplan.catalog.entries.names import model_name, refusal
from glmplan.catalog.files import toml_key, toml_pairs, toml_value
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.errors import SpecError, UnknownName, nearest
from glmplan.io.models.checkpoints import COMMON_FORMATS, checkpoint_for, of_repository, of_size
from glmplan.units import Bytes

__all__ = ["ModelChoice", "model_toml", "resolve_model", "with_size"]


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Model and its checkpoint."""

    model: ModelSpec
    checkpoint: Checkpoint
    stated: bool = False  # the checkpoint was requested or read from files, not the model's default
    exact_bytes: dict[str, int] | None = None  # by class of tensor, where the files are present
    notes: tuple[str, ...] = ()  # remarks for the user
    repository: str | None = None  # of a separate model with the shapes of `model`


def resolve_model(text: str) -> ModelChoice:
    """Resolve a model from a name, config, folder or `.gguf` file.

    A name may carry a format, as in ``name-format``.

    Examples
    --------
    >>> choice = resolve_model("glm-5.1-nvfp4")
    >>> choice.model.name, choice.checkpoint.name
    ('glm-5.1', 'nvfp4')
    """
    text = text.strip()
    if not text:
        raise SpecError("is empty", field="model")
    path = Path(os.path.expanduser(text))
    if path.suffix in (".json", ".gguf", ".toml", ".safetensors") or (os.path.isdir(path) and _is_path(text)):
        return _from_files(path)
    try:
        return _from_repository(text) if text.strip("/").count("/") == 1 else _from_catalogue(model_key(text), text)
    except UnknownName:
        if os.path.isdir(path):
            return _from_files(path)
        if os.path.exists(path):
            message = "is no file of a model: give its config.json, its folder, or a .gguf, .safetensors or .toml file"
            raise SpecError(message, field="model", value=text) from None
        raise


def _is_path(text: str) -> bool:
    """Return True for a path.

    A folder with the name of a model counts only when written as a path.
    """
    return (
        "/" in text or "\\" in text or text in (".", "..") or model_key(text) not in {*model_names(), *model_aliases()}
    )


def _named_in_full(key: str) -> ModelChoice | None:
    """Return the choice of a name with a checkpoint, without aliases.

    Aliases would need every model to be read.
    """
    for cut in (index for index in range(len(key) - 1, 0, -1) if key[index] in "-:@"):
        if key[:cut] in model_names():
            model = load_model(key[:cut])
            result = model.checkpoint(key[cut + 1 :])
            if result is not None:
                return ModelChoice(model, result, stated=True)
    return None


def _from_repository(text: str) -> ModelChoice:
    """Return the choice of a name with owner: that repository.

    A repository that is unknown is read as a name, without unknown facts.
    """
    name = model_repositories().get(text.lower())
    if name is not None:
        model = load_model(name)
        own = next(
            checkpoint for checkpoint in model.checkpoints if (checkpoint.repository or "").lower() == text.lower()
        )
        return ModelChoice(model, own, stated=own.name != model.default_checkpoint)
    choice = _from_catalogue(model_key(text), text)
    own_files = of_repository(choice.model, choice.checkpoint, text.strip("/"))
    return replace(choice, checkpoint=own_files, repository=None)


def _from_catalogue(key: str, text: str) -> ModelChoice:
    if key not in model_names() and (result := _named_in_full(key)) is not None:
        return result
    for name in dict.fromkeys((key, model_name(key))):
        if name in model_names() or name in model_aliases():
            model = load_model(name)
            return ModelChoice(model, checkpoint_for(model), repository=model.repositories.get(name))
    reason = refusal("models", key)
    if reason is not None:
        raise UnknownName(f"cannot be resolved: {reason}", field="model", value=text)
    known = {*model_names(), *model_aliases()}
    named: tuple[ModelSpec, str] | None = None
    for cut in (index for index in range(len(key) - 1, 0, -1) if key[index] in "-:@"):
        head, tail = key[:cut], key[cut + 1 :]
        base = head if head in known else model_name(head)
        if base not in known:
            continue
        model = load_model(base)
        try:
            repository = model.repositories.get(base)
            return ModelChoice(model, checkpoint_for(model, tail), stated=True, repository=repository)
        except SpecError:
            named = named or (model, tail)
    if named is not None:
        model, tail = named
        choices = {*(checkpoint.name for checkpoint in model.checkpoints), *COMMON_FORMATS}
        close = ", ".join(nearest(tail, choices))
        if not close:
            # no format was meant: a release outside the catalogue, for which nothing is substituted
            raise _not_in_catalogue(text, key, model.name)
        raise UnknownName(
            f"names {model.name}, but {tail!r} is neither one of its checkpoints nor a weight format; nearest: {close}",
            field="model",
            value=text,
        )
    raise _not_in_catalogue(text, key)


def _not_in_catalogue(text: str, key: str, begins: str = "") -> UnknownName:
    """Return the error of an unknown model, with the nearest entries."""
    aliases = model_aliases()
    result = [begins] * bool(begins) + nearest(key, [*model_names(), *aliases])
    close = list(dict.fromkeys(aliases.get(item, item) for item in result))[:5]
    hint = f"nearest: {', '.join(close)}" if close else "see `glmplan models list`, or give its config.json"
    error = UnknownName(f"is not a model of the catalogue, nor a file; {hint}", field="model", value=text)
    error.choices = close
    return error


def _from_files(path: Path) -> ModelChoice:
    if not os.path.exists(path):
        raise SpecError("does not exist", field="model", value=str(path))
    if os.path.isfile(path) and not path.name.endswith("index.json"):
        found = os.stat(path)
        return _from_version(path.absolute(), found.st_mtime_ns, found.st_size)
    return _read(path)


@lru_cache(maxsize=8)
def _from_version(path: Path, changed: int, size: int) -> ModelChoice:
    """Return the model of one state of a file."""
    return _read(path)


def _read(path: Path) -> ModelChoice:
    if path.suffix == ".toml":
        model = load_model_file(path)
        return ModelChoice(model, checkpoint_for(model))
    if path.suffix == ".gguf":
        from glmplan.io.models.gguf import read_gguf_model
        from glmplan.io.models.safetensors_header import bytes_by_class

        model, tensors = read_gguf_model(path)
        return ModelChoice(model, model.checkpoints[0], stated=True, exact_bytes=bytes_by_class(tensors))
    from glmplan.io.models.hf_config import read_hf_config

    folder = path if os.path.isdir(path) else path.parent
    if os.path.isdir(path) and not any(path.glob("config.json")):
        parts = sorted(path.glob("*.gguf"))
        if parts:
            return _read(parts[0])
        raise SpecError("holds neither a config.json nor a .gguf file", field="model", value=str(path))
    model = read_hf_config(
        folder / "config.json" if path.suffix != ".json" or path.name.endswith("index.json") else path
    )
    checkpoint = model.checkpoints[0]
    if path.suffix == ".json" and not path.name.endswith("index.json"):
        return ModelChoice(model, checkpoint, stated=True)
    from glmplan.io.models.safetensors_header import bytes_by_class, indexed_size, read_safetensors

    choice = ModelChoice(model, checkpoint, stated=True)
    if any(folder.glob("*.safetensors")):
        exact = bytes_by_class(read_safetensors(folder if "-of-" in path.stem else path))
        return replace(with_size(choice, sum(exact.values())), exact_bytes=exact)
    index = path if os.path.isfile(path) else next(iter(sorted(folder.glob("*.safetensors.index.json"))), None)
    return choice if index is None else with_size(choice, indexed_size(index))


def with_size(choice: ModelChoice, total: Bytes) -> ModelChoice:
    """Return a model whose files have a stated size.

    Examples
    --------
    >>> choice = with_size(resolve_model("qwen3-8b"), 16.4e9)
    >>> choice.checkpoint.bytes_published, choice.model.checkpoints[0].bytes_published
    ('16400000000 B', '16400000000 B')
    """
    own = of_size(choice.model, choice.checkpoint, total)
    others = tuple(one for one in choice.model.checkpoints if one.name != own.name)
    model = choice.model.model_copy(update={"checkpoints": (own, *others), "default_checkpoint": own.name})
    notes = (*choice.notes, own.note) if own.note and own.note != choice.checkpoint.note else choice.notes
    return replace(choice, model=model, checkpoint=own, stated=True, notes=notes)


def model_toml(model: ModelSpec) -> str:
    """Return a model as TOML in the form of `model_specs/`.

    Defaults are left out; it reads back equal.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> model_toml(load_model("llama-3.1-8b")).splitlines()[0]
    'name = "llama-3.1-8b"'
    """
    tower = ("tower_layers", "tower_width", "tower_inner", "tower_patch_values", "tower_patches", "tower_merge")
    last = ("extra_parameters", "extra_replicated", *tower, "tower_output", "extra_note", "source")
    tables = ("layers", "mtp", "published", "checkpoints", "disagreements", *last)
    content = _plain(model)
    lines = toml_pairs({key: value for key, value in content.items() if key not in tables})
    lines += toml_pairs({key: content[key] for key in last if key in content})
    if "disagreements" in content:
        lines += ["disagreements = [", *(f"    {toml_value(text)}," for text in content["disagreements"]), "]"]
    for name, kind in content["layers"].items():
        lines += ["", f"[layers.{toml_key(name)}]", *toml_pairs(kind)]
    for key in ("mtp", "published"):
        if key in content:
            lines += ["", f"[{key}]", *toml_pairs(content[key])]
    for checkpoint in content.get("checkpoints", ()):
        exceptions = checkpoint.pop("exceptions", ())
        lines += ["", "[[checkpoints]]", *toml_pairs(checkpoint)]
        for exception in exceptions:
            lines += ["[[checkpoints.exceptions]]", *toml_pairs(exception)]
    return "\n".join(lines) + "\n"


def _plain(value: Any) -> Any:
    """Return records as dicts without defaults, with their `kind`."""
    if isinstance(value, BaseModel):
        result = {}
        for name, field in type(value).model_fields.items():
            inner = getattr(value, name)
            usual = field.get_default(call_default_factory=True, validated_data=dict(value))
            if name == "kind" or (inner is not None and inner != usual):
                result[name] = _plain(inner)
        return result
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    return value
