"""From what somebody types for a model to the model and how its weights are stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glmplan.errors import SpecError, UnknownName, nearest
from glmplan.facts.catalogue.models import load_model, load_model_file, model_aliases, model_key, model_names
from glmplan.facts.catalogue.names import model_name, refusal
from glmplan.facts.formats import weight_format
from glmplan.facts.schema.model import Checkpoint, ModelSpec
from glmplan.physics.blocks.storage import uniform_checkpoint

__all__ = ["MIXTURES", "ModelChoice", "checkpoint_for", "resolve_model"]

#: mean bits for each weight of llama.cpp's mixtures, measured on Llama-3.1-8B: `tools/quantize/README.md` of
#: https://github.com/ggml-org/llama.cpp; other models differ by a few per cent, a GGUF file tells exactly [bit]
MIXTURES: dict[str, float] = {
    "iq1_s": 2.0042, "iq1_m": 2.1460, "iq2_xxs": 2.3824, "iq2_xs": 2.5882, "iq2_s": 2.7403, "iq2_m": 2.9294,
    "iq3_xxs": 3.2548, "iq3_xs": 3.4977, "iq3_s": 3.6606, "iq3_m": 3.7628, "iq4_xs": 4.4597, "iq4_nl": 4.6818,
    "q2_k_s": 2.9697, "q2_k": 3.1593, "q3_k_s": 3.6429, "q3_k_l": 4.2979, "q4_k_s": 4.6672, "q4_k_m": 4.8944,
    "q5_k_s": 5.5704, "q5_k_m": 5.7036, "q6_k": 6.5633, "q8_0": 8.5008,
}  # fmt: skip
#: the same for mixtures that the table above does not have: mean bits [bit] and where they are from
_OTHER_MIXTURES: dict[str, tuple[float, str]] = {
    "q3_k_m": (3.91, "Llama 2 7B, https://github.com/ggerganov/llama.cpp examples/quantize at b8c1476e"),
    "q3_k_xl": (3.53, "GLM-4.6, 158 GB, https://huggingface.co/unsloth/GLM-4.6-GGUF"),
    "q4_k_xl": (4.58, "MiniMax-M2.1, 131 GB, https://huggingface.co/unsloth/MiniMax-M2.1-GGUF/discussions/7"),
    "q5_k_xl": (5.63, "GLM-4.6, 252 GB, https://huggingface.co/unsloth/GLM-4.6-GGUF"),
    "q8_k_xl": (8.5008, "Q8_0 of llama.cpp; Unsloth's mixture keeps some tensors wider, so this is the least"),
}
#: what people write → format
_SYNONYMS = {
    "fp16": "f16",
    "mxfp4-gguf": "mxfp4",
    "4bit": "int4",
    "8bit": "int8",
    "w4a16": "int4-g128",
    "awq": "awq-int4",
}
_SYNONYMS |= {"gptq": "gptq-int4"}
#: formats worth naming when another one was asked for
_COMMON = ("bf16", "fp8", "nvfp4", "mxfp4", "int8", "int4", "awq-int4", "gptq-int4", "q4_k_m", "q5_k_m", "q6_k", "q8_0")


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """A model and how its weights are stored.

    Attributes
    ----------
    model : ModelSpec
        The model.
    checkpoint : Checkpoint
        The checkpoint: the one asked for, else the model's default.
    stated : bool
        Whether the checkpoint was asked for (or read from files) rather than taken as default.
    exact_bytes : dict of str to int or None
        Exact bytes by class of tensor where the files are at hand, [B]
    notes : tuple of str
        What to tell about it.
    """

    model: ModelSpec
    checkpoint: Checkpoint
    stated: bool = False
    exact_bytes: dict[str, int] | None = None
    notes: tuple[str, ...] = ()


def checkpoint_for(model: ModelSpec, weights: str | None = None) -> Checkpoint:
    """Return how a model's weights are stored.

    Parameters
    ----------
    model : ModelSpec
        The model.
    weights : str, optional
        Name of one of its checkpoints, or a weight format; the model's default checkpoint by default.

    Returns
    -------
    Checkpoint
        The published checkpoint of that name; else all matrices in that format.

    Raises
    ------
    SpecError
        If it is neither.

    Examples
    --------
    >>> glm = load_model("glm-5.1")
    >>> checkpoint_for(glm, "nvfp4").repository
    'nvidia/GLM-5.1-NVFP4'
    >>> checkpoint_for(glm, "int8").source
    'asked for; not a published checkpoint'
    """
    if weights is None:
        found = model.checkpoint(model.default_checkpoint) if model.default_checkpoint else None
        return found or (model.checkpoints[0] if model.checkpoints else uniform_checkpoint("bf16"))
    key = weights.strip().lower()
    key = _SYNONYMS.get(key, key)
    found = model.checkpoint(key) or model.checkpoint(key.replace("-", "_"))
    if found is None and key.startswith("fp8"):
        found = model.checkpoint("fp8")
    if found is not None:
        return found
    mixture = key.replace("-", "_").removeprefix("ud_")
    source = "Llama-3.1-8B, https://github.com/ggml-org/llama.cpp tools/quantize/README.md"
    bits = MIXTURES.get(mixture)
    if bits is None:
        bits, source = _OTHER_MIXTURES.get(mixture, (None, source))
    if bits is not None:
        return Checkpoint(
            name=mixture,
            file_bits_per_weight=bits,
            includes_mtp=False,
            source=f"mean bits of {source}",
            note="not a published checkpoint of this model; mixtures differ by a few per cent between models",
        )
    try:
        weight_format(key)
    except SpecError:
        choices = [*(one.name for one in model.checkpoints), *_COMMON]
        raise SpecError(
            f"is neither a checkpoint of {model.name} nor a weight format",
            field="weights",
            value=weights,
            choices=choices,
        ) from None
    return uniform_checkpoint(key)


def resolve_model(text: str) -> ModelChoice:
    """Resolve a model: a catalogue name, ``name-format``, a `config.json`, a folder, or a `.gguf` file.

    Parameters
    ----------
    text : str
        What was typed.

    Returns
    -------
    ModelChoice
        Model and checkpoint.

    Raises
    ------
    UnknownName
        If it is none of these; the nearest names are listed and nothing is substituted.
    SpecError
        If a file is wrong.

    Examples
    --------
    >>> choice = resolve_model("glm-5.1-nvfp4")
    >>> choice.model.name, choice.checkpoint.name
    ('glm-5.1', 'nvfp4')
    """
    text = text.strip()
    if not text:
        raise SpecError("is empty", field="model")
    path = Path(text).expanduser()
    if path.suffix in (".json", ".gguf", ".toml", ".safetensors") or (path.is_dir() and _is_path(text)):
        return _from_files(path)
    try:
        return _from_catalogue(model_key(text), text)
    except UnknownName:
        if path.exists():
            return _from_files(path)
        raise


def _is_path(text: str) -> bool:
    """A folder that happens to bear the name of a model is meant only when it is written as a path."""
    return (
        "/" in text or "\\" in text or text in (".", "..") or model_key(text) not in {*model_names(), *model_aliases()}
    )


def _from_catalogue(key: str, text: str) -> ModelChoice:
    for name in dict.fromkeys((key, model_name(key))):
        if name in model_names() or name in model_aliases():
            model = load_model(name)
            return ModelChoice(model, checkpoint_for(model))
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
            return ModelChoice(model, checkpoint_for(model, tail), stated=True)
        except SpecError:
            named = named or (model, tail)
    if named is not None:
        model, tail = named
        choices = [*(one.name for one in model.checkpoints), *_COMMON]
        close = ", ".join(nearest(tail, choices) or choices[:12])
        raise UnknownName(
            f"names {model.name}, but {tail!r} is neither one of its checkpoints nor a weight format; nearest: {close}",
            field="model",
            value=text,
        )
    raise UnknownName("is not a model of the catalogue, nor a file", field="model", value=text, choices=known)


def _from_files(path: Path) -> ModelChoice:
    if not path.exists():
        raise SpecError("does not exist", field="model", value=str(path))
    if path.suffix == ".toml":
        model = load_model_file(path)
        return ModelChoice(model, checkpoint_for(model))
    if path.suffix == ".gguf":
        from glmplan.readers.models.gguf_header import read_gguf_model
        from glmplan.readers.models.safetensors_header import bytes_by_class

        model, tensors = read_gguf_model(path)
        return ModelChoice(model, model.checkpoints[0], stated=True, exact_bytes=bytes_by_class(tensors))
    from glmplan.readers.models.hf_config import read_hf_config

    folder = path if path.is_dir() else path.parent
    if path.is_dir() and not any(path.glob("config.json")):
        parts = sorted(path.glob("*.gguf"))
        if parts:
            return _from_files(parts[0])
        raise SpecError("holds neither a config.json nor a .gguf file", field="model", value=str(path))
    model = read_hf_config(
        folder / "config.json" if path.suffix != ".json" or path.name.endswith("index.json") else path
    )
    checkpoint = model.checkpoints[0]
    if path.suffix == ".json" and not path.name.endswith("index.json"):
        return ModelChoice(model, checkpoint, stated=True)
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.index.json")):
        return ModelChoice(model, checkpoint, stated=True)
    return _with_exact_bytes(model, checkpoint, path)


def _with_exact_bytes(model: ModelSpec, checkpoint: Checkpoint, path: Path) -> ModelChoice:
    from glmplan.physics.blocks.storage import checkpoint_bytes
    from glmplan.readers.models.safetensors_header import bytes_by_class, read_safetensors

    exact = bytes_by_class(read_safetensors(path))
    total, computed = sum(exact.values()), checkpoint_bytes(model, checkpoint)
    note = (
        f"files hold {total:,} B; computed from the config {computed:,.0f} B ({computed / total - 1:+.2%})"
        if total
        else ""
    )
    notes = (note,) if note else ("files hold no weights",)
    return ModelChoice(model, checkpoint, stated=True, exact_bytes=exact, notes=notes)
