"""Map names in tables and quotes to names of the catalogue.

Models, accelerators, formats and engines have such names.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from glmplan.catalog.entries.accelerators import (
    accelerator_aliases,
    accelerator_names,
    printed_names,
    refused_accelerators,
)
from glmplan.catalog.files import data_folder, plain_name, read_entries, read_toml
from glmplan.errors import SpecError

__all__ = [
    "HeaderWords",
    "accelerator_name",
    "engine_name",
    "engine_release",
    "formats_named",
    "header_words",
    "kv_name",
    "model_name",
    "own_images",
    "part_numbers",
    "plain_words",
    "refusal",
    "weights_name",
]


_WEIGHTS = {
    "bfloat16": "bf16",
    "bf16/fp16": "bf16",
    "fp16": "f16",
    "fp8 native": "fp8",
    "fp8 (native)": "fp8",
    "fp8_e4m3": "fp8",
    "fp4": "nvfp4",
    "mxfp4/fp4": "mxfp4",
    "mxfp4 gguf": "mxfp4",
    "uint4": "int4",
    "w8a8": "int8",
    "w4a8": "int4",
    "q2": "q2_k",
    "q4": "q4_k",
    "ollama default": "q4_k_m",
    "unset": None,
    "unknown": None,
    "auto": None,
    "": None,
}
_BITS_PER_WEIGHT = re.compile(r"(\d+(?:\.\d+)?) ?bpw")
_GGUF = re.compile(r"\b(i?q\d+_[0-9a-z]+(?:_[a-z]+)?)\b")
_PLAIN = re.compile(r"\b(nvfp4|mxfp4|mxfp8|int4|int8|fp8|bf16)\b")
_SEVERAL = re.compile(r"\b(?:(?:nvfp|mxfp|nf|int|fp|bf)\d+|\d-bit)\b")
_NO_RELEASE = re.compile(r"TensorRT \d|0\.1\.dev\d")
_RELEASE = re.compile(r"^(?:vllm |sglang |tensorrt-llm )?[vb]?(\d+(?:\.\d+)*)", re.IGNORECASE)


@cache
def _names() -> dict[str, Any]:
    return read_toml(data_folder("calibration") / "names.toml")


def model_name(name: str) -> str:
    """Return the canonical name of a model in a table, in lower case.

    The catalogue need not have it. A leading ``owner/`` is dropped.

    Examples
    --------
    >>> model_name("Qwen3-235B")
    'qwen3-235b-a22b'
    >>> model_name("zai-org/GLM-5.1")
    'glm-5.1'
    """
    key = name.strip().rsplit("/", 1)[-1].lower()
    return str(_names()["models"].get(key, key))


def accelerator_name(name: str) -> str:
    """Return the canonical name of an accelerator in a table.

    The catalogue need not have it. A remark in parentheses is dropped.

    Examples
    --------
    >>> accelerator_name("rtx-pro-6000-server (tuning JSON device name)")
    'rtx-pro-6000-server'
    """
    key = plain_name(name.partition("(")[0])
    if key in accelerator_names():
        return key
    return accelerator_aliases().get(key) or printed_names().get(key, key)


def own_images() -> tuple[str, ...]:
    """Return the prefixes of container images that hold an engine as released.

    Examples
    --------
    >>> "lmsysorg/sglang:v0.5.6".startswith(own_images())
    True
    """
    return tuple(str(entry["prefix"]) for entry in _names()["images"])


def refusal(kind: str, name: str) -> str | None:
    """Return why a name of the tables cannot be resolved, or None.

    Examples
    --------
    >>> refusal("models", "smallthinker-21b")
    'no cited config with its shapes'
    """
    refused = refused_accelerators() if kind == "accelerators" else _names()["refused"]["models"]
    reason = refused.get(name.strip().lower())
    return None if reason is None else str(reason)


def engine_name(text: str) -> str | None:
    """Return the engine of a cell such as ``TensorRT 10.11, CUDA 12.9``.

    Examples
    --------
    >>> engine_name("Ollama/llama.cpp"), engine_name("vLLM v0.9.2"), engine_name("first engine")
    ('llama.cpp', 'vllm', None)
    """
    key = text.strip().lower()
    for prefix, engine in _names()["engines"].items():
        if key.startswith(prefix):
            return str(engine)
    return None


def engine_release(version: str | None) -> tuple[int, ...] | None:
    """Return the numeric release of an engine version, for ordering.

    None for container tags and ``nightly``.

    Examples
    --------
    >>> engine_release("vLLM 0.19.2rc1 kimi"), engine_release("b6918"), engine_release("nightly-dev")
    ((0, 19, 2), (6918,), None)
    >>> engine_release("TensorRT 10.11") is None  # the release of TensorRT says nothing of TensorRT-LLM's
    True
    """
    result = _RELEASE.match(version.strip()) if version and not _NO_RELEASE.match(version) else None
    return tuple(int(part) for part in result.group(1).split(".")) if result else None


def weights_name(text: str) -> str | None:
    """Return the format of a cell such as ``int4 (native W4A16 Marlin)``.

    A mixture of known size is ``bpw:`` and its bits for each weight. A label of several formats is returned as it is:
    the model's checkpoints must say which tensors have which.

    Examples
    --------
    >>> weights_name("awq-int4"), weights_name("Q8_K_XL"), weights_name("MLX 2.906 bpw"), weights_name("UNSET")
    ('int4', 'q8_k_xl', 'bpw:2.906', None)
    >>> weights_name("mxfp8/nvfp4/nf3 hybrid")
    'mxfp8/nvfp4/nf3 hybrid'
    """
    key = text.strip().lower()
    plain = key if key in _WEIGHTS else key.partition("(")[0].strip()
    if plain in _WEIGHTS:
        return _WEIGHTS[plain]
    if result := _BITS_PER_WEIGHT.search(key):
        return f"bpw:{result.group(1)}"
    if len(formats_named(plain)) > 1:
        return plain
    if result := _GGUF.search(plain) or _PLAIN.search(plain):
        return result.group(1)
    if "4-bit" in plain:
        return "int4"
    return plain


def formats_named(label: str) -> tuple[str, ...]:
    """Return the formats in a label of weights.

    Examples
    --------
    >>> formats_named("mxfp8/nvfp4/nf3 hybrid"), formats_named("nvfp4")
    (('mxfp8', 'nvfp4', 'nf3'), ('nvfp4',))
    """
    return tuple(dict.fromkeys(_SEVERAL.findall(label.lower())))


def kv_name(text: str) -> str | None:
    """Return the KV cache format of a cell.

    None for ``auto`` and empty cells: the engine decides.

    Examples
    --------
    >>> kv_name("f16 (default)"), kv_name("fp8 except sliding-window layers"), kv_name("auto")
    ('f16', 'fp8', None)
    >>> kv_name("torch.float8_e4m3fn"), kv_name("torch.bfloat16"), kv_name("float16")
    ('fp8', 'bf16', 'f16')
    """
    key = text.strip().lower().removeprefix("torch.")
    key = {"bfloat16": "bf16", "float16": "f16", "fp16": "f16", "half": "f16"}.get(key, key)
    if key.startswith("float8"):
        return "fp8"
    for name in ("bf16", "f16", "nvfp4", "int8", "q8_0", "q4_0", "fp8"):
        if key.startswith(name):
            return name
    return {"": None, "auto": None, "unknown": None}.get(key, key)


@dataclass(frozen=True, slots=True)
class HeaderWords:
    """Phrases in the tables of quotes."""

    columns: dict[str, tuple[str, ...]]  # content of a column → its header phrases, the longest first
    totals: frozenset[str]  # begin of a line of sums
    taxes: frozenset[str]  # in a line of taxes


def plain_words(text: object) -> str:
    """Return a text in lower case without accents, signs and double spaces.

    Examples
    --------
    >>> plain_words("Délai (jours) – Stück")
    'delai jours stuck'
    """
    return _plain(str(text))


@lru_cache(maxsize=20_000)
def _plain(text: str) -> str:
    bare = unicodedata.normalize("NFKD", text.replace("ß", "ss"))
    letters = "".join(item if item.isalnum() else " " for item in bare if not unicodedata.combining(item))
    return " ".join(letters.lower().split())


@lru_cache(maxsize=1)
def part_numbers() -> dict[str, str]:
    """Return part number → accelerator, or machine as ``--on`` takes it.

    Part numbers are in lower case, without punctuation.

    Examples
    --------
    >>> part_numbers()["9002g1330080000"], part_numbers()["sysa22ganbrt"]
    ('l40s', '8xb200-sxm')
    """
    path = data_folder("hardware_db") / "quotes" / "skus.toml"
    result = {}
    for entry in read_entries(path, "skus", {"number", "accelerator", "on"}):
        named = [entry[kind] for kind in ("accelerator", "on") if kind in entry]
        if len(named) != 1:
            raise SpecError("names one accelerator or one machine", file=path, field="skus", value=entry["number"])
        result[plain_words(entry["number"]).replace(" ", "")] = named[0]
    return result


@lru_cache(maxsize=1)
def header_words() -> HeaderWords:
    """Return the phrases of quotes.

    Examples
    --------
    >>> "lieferzeit" in header_words().columns["delivery"]
    True
    """
    content = read_toml(data_folder("hardware_db") / "quotes" / "headers.toml")
    columns = {name: tuple(sorted(words, key=len, reverse=True)) for name, words in content["columns"].items()}
    return HeaderWords(columns, frozenset(content["totals"]["words"]), frozenset(content["totals"]["taxes"]))
