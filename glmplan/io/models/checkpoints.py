"""Return the checkpoint of a name.

A published one, a GGUF mixture, or one format throughout. All commands use this, so one word means one checkpoint.
Facts that no publisher of the model states are taken from files of other models (`hardware_db/formats/mixtures.toml`)
or computed as if all matrices had one format; such a checkpoint has a note, and shares by which the true files may be
smaller or larger.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from statistics import median
from typing import Any

from glmplan.catalog.caching import remembered
from glmplan.catalog.engines.limitations import load_engine
from glmplan.catalog.entries.names import formats_named
from glmplan.catalog.files import data_folder, read_entries, read_toml
from glmplan.catalog.formats import WEIGHT_FORMATS, weight_format
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.blocks.stack import checkpoint_bytes, routed_blocks, uniform_checkpoint
from glmplan.errors import SpecError, UnknownName
from glmplan.units import Bits, Bytes, Ratio

__all__ = [
    "COMMON_FORMATS",
    "Mixture",
    "checkpoint_for",
    "files_of_namesake",
    "mixtures_of",
    "of_repository",
    "of_size",
    "read_by",
    "remarks_on",
]

#: formats suggested when an unknown one was requested
COMMON_FORMATS: tuple[str, ...] = (
    "bf16", "fp8", "nvfp4", "mxfp4", "int8", "int4", "awq-int4", "gptq-int4", "q4_k_m", "q5_k_m", "q6_k", "q8_0",
    "exl3-4.0bpw", "mlx-4bit", "bnb-4bit",
)  # fmt: skip
#: spelling → format
_SYNONYMS = {
    "f16": "bf16", "fp16": "bf16", "bfloat16": "bf16", "fp4": "nvfp4", "4bit": "int4", "uint4": "int4", "8bit": "int8",
    "w8a8": "int8", "w4a16": "int4-g128", "awq": "awq-int4", "gptq": "gptq-int4",
}  # fmt: skip
#: endings of repositories for 4 bits by a method: AWQ-4bit, GPTQ-Int4, awq-w4a16, INT4-AWQ
_FOUR_BITS = r"(?:int-?4|4-?bit|w4a16)"
_BY_METHOD = re.compile(rf"(?:(awq|gptq)[-_.]?{_FOUR_BITS}(?:-g\d+)?|(?:quantized[-_.])?{_FOUR_BITS}[-_.](awq|gptq))")
#: plain name → the format that publishers mean by it and that stands for it where nothing is published: the scales of
#: FP8 blocks add 0.02 %, and the fitted runs of such models have this format
_PLAIN = {"fp8": "fp8-block"}
#: equal formats: one is taken for the other where the model has only that
_ALIKE = {"awq-int4": "int4", "gptq-int4": "int4", "int4-g32": "int4", "fp8-block": "fp8"}
#: number of models, nearest in size, whose files describe a mixture on another model
_NEAREST = 3
#: mean bits below which a mixture's name is least exact [bit]
_FEW_BITS = 3.2
#: native format of experts that mixtures keep
_KEPT = "mxfp4"
#: relative difference of a stated and a computed size up to which the formats are those of the files [-]
_SAME_FILES = 0.005
#: and beyond which they are others
_OTHER_FILES = 0.5
_FIELDS = {"name", "model", "kind", "parameters_b", "bits", "spread", "note"}


@dataclass(frozen=True, slots=True)
class Mixture:
    """Published GGUF file of a named mixture."""

    name: str
    model: str
    kind: str  # ``dense`` or ``experts``
    parameters_b: float  # in the file [1e9]
    bits: Bits  # mean of a weight
    spread: Ratio  # deviation of other models of the kind
    source: str


@cache
def _table() -> dict[str, Any]:
    return read_toml(data_folder("hardware_db") / "formats" / "mixtures.toml")


@cache
def _mixtures() -> dict[str, tuple[Mixture, ...]]:
    file = data_folder("hardware_db") / "formats" / "mixtures.toml"
    spread = _table()["spread"]
    result: dict[str, list[Mixture]] = {}
    for entry in read_entries(file, "mixtures", _FIELDS):
        plain = {key: value for key, value in entry.items() if key != "note"}
        usual = spread["mixture_of_few_bits" if float(entry["bits"]) < _FEW_BITS else "mixture"]
        result.setdefault(str(entry["name"]), []).append(Mixture(**{"spread": float(usual), **plain}))
    return {name: tuple(rows) for name, rows in result.items()}


def mixtures_of(model: ModelSpec, name: str) -> tuple[Mixture, ...]:
    """Return at most three files of a mixture for a model.

    They are of the model's kind and nearest in size; empty: unknown name.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> [one.model for one in mixtures_of(load_model("glm-5.1"), "q4_k_xl")]
    ['DeepSeek-V3-0324', 'Qwen3.5-397B-A17B', 'MiniMax-M2.1']
    """
    rows = _mixtures().get(name, ())
    experts = bool(routed_blocks(model))
    alike = [row for row in rows if (row.kind == "experts") == experts] or list(rows)
    size = math.log(_parameters(model) / 1e9)
    return tuple(sorted(alike, key=lambda row: abs(math.log(row.parameters_b) - size))[:_NEAREST])


def _parameters(model: ModelSpec) -> float:
    return checkpoint_bytes(model, Checkpoint(name="one byte", file_bits_per_weight=8.0, source="computed"))


def checkpoint_for(
    model: ModelSpec, weights: str | None = None, *, bits: Bits | None = None, engine: str | None = None
) -> Checkpoint:
    """Return a model's checkpoint by name, its default without one.

    `weights`: name of a checkpoint, of a GGUF mixture or of a weight format, or ``bpw:`` and the mean bits of a weight.
    `bits`: stored bits of each weight where a file states them, which then replace all else. `engine`: llama.cpp reads
    GGUF files only. The published checkpoint of that name comes first, then the mixture as in models of the same kind
    and of similar size, then all matrices of the layers in that format.

    Notes
    -----
    Quantised checkpoints keep some matrices wider by no common rule, so the uniform size is a lower bound: true files
    are up to 14 % larger (143 of 156 in the catalogue). A mixture of one name differs by 12 % between models, both
    ways, one of few bits by 22 %; experts in MXFP4 stay so in every wider mixture.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> glm = load_model("glm-5.1")
    >>> checkpoint_for(glm, "nvfp4").repository, checkpoint_for(glm, "q4_k").bytes_published
    ('nvidia/GLM-5.1-NVFP4', '432.80 GiB')
    >>> found = checkpoint_for(glm, "int8")
    >>> found.source, found.smaller, found.larger
    ('asked for; not a published checkpoint', 0.0, 0.14)
    >>> checkpoint_for(load_model("gpt-oss-20b"), engine="llama.cpp").file_bits_per_weight
    4.63
    """
    if bits is not None:
        return Checkpoint(
            name=weights or "file", file_bits_per_weight=bits, includes_mtp=False, source="size of the file"
        )
    result = _default(model) if weights is None else _of_word(model, weights)
    return result if engine is None else read_by(model, result, engine)


def _default(model: ModelSpec) -> Checkpoint:
    named = model.checkpoint(model.default_checkpoint) if model.default_checkpoint else None
    return named or (model.checkpoints[0] if model.checkpoints else uniform_checkpoint("bf16"))


#: file of ExLlamaV3 with the mean bits of a weight of its layers
_EXL3 = re.compile(r"exl3-([1-7](?:\.\d+)?|8(?:\.0+)?)bpw")
#: files of MLX-LM: bits and values of a group (`mlx_lm.convert -q`), or a format with a scale of its own
_MLX = re.compile(r"mlx-(?:([2-8])bit(?:-g(32|64|128))?|(mxfp4|nvfp4|mxfp8))")
#: files of bitsandbytes, as `io.models.quantization_methods` reads their config
_BITS_AND_BYTES = {"bnb-4bit": "bpw:4.127", "bnb-8bit": "bpw:8"}


# one word gives one record, so that caches keyed by it hit
@remembered(records=1)
def _of_word(model: ModelSpec, weights: str) -> Checkpoint:
    key = weights.strip().lower()
    if (method := _BY_METHOD.fullmatch(key)) is not None and model.checkpoint(key) is None:
        key = f"{method[1] or method[2]}-int4"
    result = _published(model, key)
    if result is not None:
        return result
    if key.startswith("bpw:"):
        return Checkpoint(
            name=key, file_bits_per_weight=weight_format(key).bits, includes_mtp=False, source="bits that were given"
        )
    if (exl3 := _EXL3.fullmatch(key)) is not None:
        return Checkpoint(
            name=key, default=f"bpw:{exl3[1]}", formats={"embedding": "bf16", "head": "bpw:6"}, includes_mtp=False,
            source="bits that were given; embedding and head as convert.py of ExLlamaV3 writes them by default",
        )  # fmt: skip
    if (mlx := _MLX.fullmatch(key)) is not None:
        bits = mlx[3] or f"bpw:{int(mlx[1]) + 32 / int(mlx[2] or 64):g}"
        return Checkpoint(
            name=key, default=bits, includes_mtp=False,
            source="bits that were given, with embedding and head, as mlx_lm.convert writes them by default",
        )  # fmt: skip
    if key in _BITS_AND_BYTES:
        wide = dict.fromkeys(("embedding", "head", "router"), "bf16")
        return Checkpoint(name=key, default=_BITS_AND_BYTES[key], formats=wide, includes_mtp=False,
                          source="bits of bitsandbytes, with double quantisation at 4 bits")  # fmt: skip
    mixture = _mixture(model, key)
    if mixture is not None:
        return mixture
    named = formats_named(key)
    if len(named) > 1:
        return _of_several(model, weights, frozenset(named))
    name = _SYNONYMS.get(key, key)
    if name not in WEIGHT_FORMATS:
        raise SpecError(
            f"is neither a checkpoint of {model.name} nor a weight format", field="weights", value=weights,
            choices=[*(checkpoint.name for checkpoint in model.checkpoints), *COMMON_FORMATS],
        )  # fmt: skip
    return _uniform(model, _PLAIN.get(name, name))


def _of_several(model: ModelSpec, label: str, named: frozenset[str]) -> Checkpoint:
    """Return the one published checkpoint with the formats of a label.

    BF16 may be named or not.
    """
    fits = [checkpoint for checkpoint in model.checkpoints if _formats_of(checkpoint) - {"bf16"} == named - {"bf16"}]
    if len(fits) == 1:
        return fits[0]
    raise SpecError(
        f"names {len(named)} formats and not which tensors are in which; name a checkpoint of {model.name}, or the "
        "mean bits of a weight as bpw:4.2",
        field="weights", value=label, choices=[checkpoint.name for checkpoint in model.checkpoints],
    )  # fmt: skip


def _formats_of(checkpoint: Checkpoint) -> frozenset[str]:
    """Return the formats of the tensor classes, without block sizes."""
    result = {checkpoint.default, *checkpoint.formats.values()} if checkpoint.formats else {checkpoint.default}
    return frozenset(name.partition("-")[0] for name in result)


def _published(model: ModelSpec, key: str) -> Checkpoint | None:
    """Return the model's own checkpoint by name or by the format it means.

    Any spelling of a name counts.
    """
    plain = key.replace("-", "_")
    bare = plain.removeprefix("ud_")
    name = _SYNONYMS.get(key, key)
    for item in (key, plain, name, bare):
        result = model.checkpoint(item)
        if result is not None:
            return result
    # the table of mixtures is read only for words that are no name of a checkpoint
    alike = _ALIKE.get(name, name)
    for item in (_table()["aliases"].get(bare, bare), f"ud-{bare}", alike):
        result = model.checkpoint(item)
        if result is not None:
            return result
    if key.startswith("fp8") and key not in WEIGHT_FORMATS:
        return model.checkpoint("fp8")
    return next(
        (checkpoint for checkpoint in model.checkpoints if checkpoint.name.split("-")[0] in (name, alike)), None
    )


def _mixture(model: ModelSpec, key: str) -> Checkpoint | None:
    plain = key.replace("-", "_")
    bare = plain.removeprefix("ud_")
    name = next((item for item in (plain, _table()["aliases"].get(bare, bare)) if item in _mixtures()), None)
    if name is None:
        return None
    rows = mixtures_of(model, name)
    middle = median(row.bits for row in rows)
    native = _default(model)
    if _bulk(native) == _KEPT and (own := 8.0 * checkpoint_bytes(model, native) / _parameters(model)) < middle:
        return _as_native(model, native, name, own)
    spread = max(row.spread for row in rows)
    smaller = max(spread, 1.0 - min(row.bits for row in rows) / middle)
    larger = max(spread, max(row.bits for row in rows) / middle - 1.0)
    models = ", ".join(row.model for row in rows)
    return Checkpoint(
        name=name,
        file_bits_per_weight=round(middle, 4),
        includes_mtp=False,
        smaller=round(smaller, 4),
        larger=round(larger, 4),
        source=f"mean bits of {models}: " + "; ".join(dict.fromkeys(row.source for row in rows)),
        note=f"no size of a {name} file of {model.name} is known: {middle:.2f} bits for each weight as of {models}, "
        f"so the weights may be {smaller:.0%} smaller or {larger:.0%} larger",
    )  # fmt: skip


def _bulk(checkpoint: Checkpoint) -> str:
    return checkpoint.formats.get("routed_experts") or checkpoint.default


def _as_native(model: ModelSpec, native: Checkpoint, name: str, bits: float) -> Checkpoint:
    """Return a mixture that keeps native GGUF weights.

    The mixture is wider than the model's own files.
    """
    spread = float(_table()["spread"]["kept"])
    return Checkpoint(
        name=name,
        file_bits_per_weight=round(bits, 4),
        includes_mtp=native.includes_mtp,
        smaller=spread,
        larger=spread,
        source=f"{model.name} {native.name}, whose {_KEPT.upper()} experts a file of any wider mixture keeps",
        note=f"no size of a {name} file of {model.name} is known: its experts stay in {_KEPT.upper()}, so {bits:.2f} "
        f"bits for each weight as in {native.name}; the weights may be {spread:.0%} smaller or larger",
    )


def _uniform(model: ModelSpec, name: str) -> Checkpoint:
    result = uniform_checkpoint(name)
    if weight_format(name).bits >= 16:
        return result
    spread = _table()["spread"]
    smaller, larger = float(spread["uniform_smaller"]), float(spread["uniform_larger"])
    note = (
        f"no {name} checkpoint of {model.name} is known: every matrix of the layers is taken as {name}; published "
        f"checkpoints keep some wider, so the weights may be up to {larger:.0%} larger"
    )
    return result.model_copy(update={"smaller": smaller, "larger": larger, "note": note})


def _mostly(checkpoint: Checkpoint) -> str:
    """Return the format of most weights: that of the experts, if separate."""
    return checkpoint.formats.get("routed_experts") or checkpoint.default


def of_repository(model: ModelSpec, found: Checkpoint, repository: str) -> Checkpoint:
    """Return the checkpoint of a repository.

    A name may mean another publisher's files of the format. The catalogue's checkpoint of this format, else `found`
    with the repository. Quantised files of another publisher lose the cache format of `found`, and may be smaller
    (every matrix in the format) or larger.
    """
    key, kind = repository.lower(), _mostly(found)
    for checkpoint in model.checkpoints:
        if checkpoint.repository is not None and checkpoint.repository.lower() == key and _mostly(checkpoint) == kind:
            return checkpoint
    wide = found.file_bits_per_weight is None and weight_format(kind).bits >= 16
    if found.repository is None or wide or found.repository.lower().partition("/")[0] == key.partition("/")[0]:
        return found.model_copy(update={"repository": repository})
    own = checkpoint_bytes(model, found)
    spread = _table()["spread"]
    if found.file_bits_per_weight is not None:
        smaller = larger = float(spread["mixture"])
    else:
        least = checkpoint_bytes(model, uniform_checkpoint(kind))
        smaller = max(1.0 - least / own, found.smaller)
        larger = max(least * (1.0 + float(spread["uniform_larger"])) / own - 1.0, found.larger)
    note = (
        f"the files of {repository} are not described: those of {found.repository} stand for them, so the weights "
        f"may be {smaller:.0%} smaller or {larger:.0%} larger"
    )
    told = {"repository": repository, "kv_default": None, "smaller": smaller, "larger": larger, "note": note}
    return found.model_copy(update={**told, "bytes_published": None})


def of_size(model: ModelSpec, found: Checkpoint, total: Bytes) -> Checkpoint:
    """Return a checkpoint whose files have a stated size.

    No size says which tensors are wider or left out, so a difference from the computed size is an interval of the
    weights. Files without MTP layers are recognised by their size.
    """
    alike = [found]
    if found.includes_mtp and model.mtp is not None:
        alike.append(found.model_copy(update={"includes_mtp": False}))
    near = min(alike, key=lambda one: abs(checkpoint_bytes(model, one) - total))
    computed = checkpoint_bytes(model, near)
    share = total / computed - 1.0
    if abs(share) > _OTHER_FILES:
        message = f"is not the size of these files in {near.bulk}: computed {computed:,.0f} B; check the format"
        raise SpecError(message, field="size", value=f"{total:,.0f} B")
    told = {"bytes_published": f"{total:.0f} B", "smaller": 0.0, "larger": 0.0}
    if abs(share) > _SAME_FILES:
        told |= {"smaller": round(max(-share, 0.0), 4), "larger": round(max(share, 0.0), 4)}
        told["note"] = (
            f"the files have {total:,.0f} B and the formats make {computed:,.0f} B ({share:+.1%}): "
            f"the weights may be up to {abs(share):.1%} {'larger' if share > 0 else 'smaller'}"
        )
    return near.model_copy(update=told)


@cache
def _reads_gguf(engine: str) -> bool:
    try:
        running = load_engine(engine).running
        return running is not None and running.reads == "gguf"
    except UnknownName:
        return False


def read_by(model: ModelSpec, found: Checkpoint, engine: str) -> Checkpoint:
    """Return the files of a checkpoint as an engine reads them.

    For an engine that reads GGUF files only the published one, else a file of the same size.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> oss = load_model("gpt-oss-120b")
    >>> read_by(oss, oss.checkpoint("mxfp4"), "llama.cpp").name, read_by(oss, oss.checkpoint("mxfp4"), "vllm").name
    ('mxfp4-gguf', 'mxfp4')
    """
    if found.file_bits_per_weight is not None or not _reads_gguf(engine):
        return found
    named = model.checkpoint(f"{found.name}-gguf")
    if named is not None:
        return named
    empty, full = (
        checkpoint_bytes(model, found.model_copy(update={"file_bits_per_weight": bits})) for bits in (8.0, 16.0)
    )
    bits = 8.0 + 8.0 * (checkpoint_bytes(model, found) - empty) / (full - empty)
    said = f"as a GGUF file of the same size ({bits:.2f} bits for each weight)"
    return found.model_copy(
        update={"file_bits_per_weight": round(bits, 4), "note": f"{found.note}; {said}" if found.note else said}
    )


def files_of_namesake(model: ModelSpec, checkpoint: Checkpoint, repository: str | None) -> Checkpoint:
    """Return the files of a model that has the shapes of another one.

    `repository`: that of the named model; None where it is the same model. It is kept where the other model's own
    repository has it too, or the weights are not quantised, or quantised by the engine's tool (GGUF); else there is no
    description of such files.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> llama, other = load_model("llama-3.1-70b"), "meta-llama/Llama-3.3-70B-Instruct"
    >>> [files_of_namesake(llama, llama.checkpoint(name), other).repository for name in ("bf16", "fp8")]
    ['meta-llama/Llama-3.3-70B-Instruct', None]
    """
    if repository is None:
        return checkpoint
    plain = checkpoint.file_bits_per_weight is None and weight_format(_mostly(checkpoint)).bits >= 16
    alike = plain or checkpoint.form == "gguf" or checkpoint.repository == model.hugging_face is not None
    return checkpoint.model_copy(update={"repository": repository if alike else None})


def remarks_on(model: ModelSpec, checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the remarks on a checkpoint without a publisher's statement.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> llama = load_model("llama-3.1-8b")
    >>> remarks_on(llama, checkpoint_for(llama, "bf16")), len(remarks_on(llama, checkpoint_for(llama, "int8")))
    ((), 1)
    """
    if not checkpoint.note or checkpoint in model.checkpoints:
        return ()
    return (f"weights {checkpoint.name}: {checkpoint.note}",)
