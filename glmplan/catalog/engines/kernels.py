"""Return the kernels of an engine, as its file describes them.

Products by weight format, attention, experts and collectives. The rules are in `hardware_db/kernels.toml`. `silicon` is
the compute capability without the minor number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from glmplan.catalog.files import data_folder, read_entries
from glmplan.catalog.formats import WEIGHT_FORMATS, WeightFormat
from glmplan.catalog.rule_provenance import remaining_rules
from glmplan.errors import SpecError
from glmplan.units import Bytes, Ratio, Tokens

__all__ = [
    "IMAGE",
    "KERNEL_FORMATS",
    "AttentionRule",
    "KernelRule",
    "attention_assumed",
    "attention_known",
    "attention_rule",
    "collective_engine",
    "expert_path",
    "gathers_latents",
    "kernel_rule",
    "latent_prompt_kernel",
    "misnamed_tables",
    "shared_beside",
    "sparse_capabilities",
    "sparse_since",
    "sparse_words",
]

#: format in the kernel fits → bytes of an activation inside its product, precision that computes
KERNEL_FORMATS: dict[str, tuple[float, str]] = {
    "bf16": (2.0, "bf16"),
    "fp8": (1.0, "fp8"),
    "fp8-block": (1.0, "fp8"),
    "nvfp4": (0.5625, "fp4"),
    "int8": (1.0, "int8"),
    "int4": (2.0, "bf16"),
    "mxfp4": (2.0, "bf16"),
    "mxfp4-a8": (1.03125, "fp8"),
}
#: weight formats that share the kernels of another one
_SHARED: dict[str, tuple[str, float, str]] = {"mxfp8": ("fp8", 1.0, "fp8"), "w4afp8": ("int4", 1.0, "fp8")}
#: follows the name of a backend in a build that is not the engine's own
IMAGE = " in the image "
_ATTENTION = ("engine", "backend", "splits", "verify_splits")
_ROWS = ("tile_rows", "latent_rows")
_FIELDS = {"engine", "silicon", "weights", "product", "asked", "runs_as", "measured_with", "backend", "note"}
_PRODUCTS = ("gemm", "experts")


@dataclass(frozen=True, slots=True)
class KernelRule:
    """Kernel for products with weights of one format."""

    form: str  # format in the kernel fits
    activation_bytes: Bytes  # of an activation inside the product
    compute: str  # precision that computes
    engine: str  # engine whose fits are used
    backend: str = ""  # preferred kernel among them; empty: the engine's fullest table


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """Split of the keys of one request and KV head among blocks of threads."""

    backend: str = ""  # name of the kernel in the fits; empty: the engine's fullest table
    splits: float = math.inf  # blocks in decode; infinite: as many as the accelerator has cores for
    verify_splits: float = math.inf  # the same for the verification of speculative tokens
    tile_rows: float = 0.0  # least rows that a verifying block computes; 0: included in the fits
    #: the same with all heads and queries of one latent in a block, for a kernel without a table on this GPU; 0 for
    #: others
    latent_rows: float = 0.0


@cache
def _entries() -> tuple[dict[str, Any], ...]:
    file = data_folder("hardware_db") / "kernels.toml"
    result = read_entries(file, "kernels", _FIELDS)
    for entry in result:
        for field, choices in (("weights", WEIGHT_FORMATS), ("runs_as", KERNEL_FORMATS)):
            if entry.get(field) not in choices:
                raise SpecError("is not a format", file=file, field=field, value=str(entry.get(field)), choices=choices)
        if entry.get("product", _PRODUCTS[0]) not in _PRODUCTS:
            said = str(entry["product"])
            raise SpecError("is not a product", file=file, field="product", value=said, choices=_PRODUCTS)
    return result


@cache
def kernel_rule(engine: str, silicon: str, weights: WeightFormat, product: str, asked: str = "") -> KernelRule:
    """Return the kernel of a weight format, by default of the same name.

    `asked`: kernels given to the server by option.

    Examples
    --------
    >>> mxfp4 = WEIGHT_FORMATS["mxfp4"]
    >>> kernel_rule("trtllm", "10", mxfp4, "experts").form, kernel_rule("vllm", "10", mxfp4, "experts").form
    ('mxfp4-a8', 'mxfp4')
    >>> kernel_rule("vllm", "10", mxfp4, "experts", "flashinfer-mxfp8").form
    'mxfp4-a8'
    >>> kernel_rule("llama.cpp", "8", WEIGHT_FORMATS["q4_k"], "gemm").form
    'int4'
    """
    for entry in remaining_rules(_entries()):
        named = entry["engine"] == engine and entry["weights"] == weights.name and silicon in entry["silicon"]
        if named and entry.get("product", product) == product and entry.get("asked", asked) == asked:
            form = entry["runs_as"]
            measured = entry.get("measured_with", engine)
            return KernelRule(form, *KERNEL_FORMATS[form], measured, entry.get("backend", ""))
    if weights.name in _SHARED:
        return KernelRule(*_SHARED[weights.name], engine)
    # GGUF and group-quantised formats run as 4-bit integers, wide formats as BF16
    form = weights.name if weights.name in KERNEL_FORMATS else "int4" if weights.bits < 16 else "bf16"
    return KernelRule(form, *KERNEL_FORMATS[form], engine)


@cache
def attention_rule(engine: str, backend: str, silicon: str = "", kv: str = "") -> AttentionRule:
    """Return the rule of an attention kernel.

    Without a rule the kernel uses the full accelerator. `backend` as a server or a table of kernels names it, `IMAGE`
    before a foreign build; empty: the engine's own choice.

    Examples
    --------
    >>> attention_rule("sglang", "triton").splits, attention_rule("sglang", "flashinfer").splits
    (8, inf)
    >>> [attention_rule("vllm", "", silicon, "bf16").verify_splits for silicon in ("9", "12")]
    [inf, 1]
    """
    said = backend.lower()
    # "default" stands in tables without a known backend; it is also the name of a kernel of one engine
    word = next(iter(said.split()), "").replace("default", "")
    file = data_folder("hardware_db") / "kernels.toml"
    for entry in remaining_rules(_attention_entries()):
        if missing := [field for field in _ATTENTION if not entry.get(field)]:
            raise SpecError("is missing or zero", file=file, field=missing[0])
        if entry["engine"] != engine or silicon not in entry.get("silicon", [silicon]):
            continue
        if entry.get("stock") and IMAGE in said:
            continue
        if entry["backend"] in said or (not word and kv in entry.get("kv", ())):
            rows = [float(entry.get(name, 0.0)) for name in _ROWS]
            return AttentionRule(entry["backend"], entry["splits"], entry["verify_splits"], *rows)
    return AttentionRule(word)


def attention_known(engine: str, backend: str) -> bool:
    """Return True if a rule covers an attention backend.

    Examples
    --------
    >>> attention_known("sglang", "triton"), attention_known("sglang", "fa4")
    (True, False)
    """
    said = backend.lower()
    return any(entry["engine"] == engine and entry["backend"] in said for entry in _attention_entries())


def attention_assumed(engine: str, backend: str) -> str:
    """Return the assumption about an attention backend as text.

    Empty where a rule covers the backend.

    Examples
    --------
    >>> attention_assumed("sglang", "triton"), attention_assumed("sglang", "fa4").partition(";")[2]
    ('', ' it uses the whole part')
    """
    if attention_known(engine, backend):
        return ""
    return f"attention backend {backend}: no rule of its kernels is known for {engine}; it uses the whole part"


def _attention_entries() -> tuple[dict[str, Any], ...]:
    file = data_folder("hardware_db") / "kernels.toml"
    return read_entries(file, "attention", {*_ATTENTION, "silicon", "kv", *_ROWS, "stock", "note"})


@cache
def collective_engine(engine: str, silicon: str) -> str:
    """Return the engine whose table measured an engine's collectives.

    Examples
    --------
    >>> collective_engine("vllm", "10"), collective_engine("vllm", "9")
    ('trtllm', 'vllm')
    """
    return _said("collectives", "measured_with", engine, silicon) or engine


def _said(table: str, field: str, engine: str, silicon: str) -> str:
    file = data_folder("hardware_db") / "kernels.toml"
    for entry in remaining_rules(read_entries(file, table, {"engine", "silicon", field, "note"})):
        if entry["engine"] == engine and silicon in entry["silicon"]:
            return str(entry[field])
    return ""


@cache
def shared_beside(engine: str, silicon: str, release: tuple[int, ...] | None = None) -> Tokens:
    """Return the step size up to which shared experts run concurrently.

    Routed and shared experts overlap up to this number of tokens; 0: never.

    Examples
    --------
    >>> shared_beside("vllm", "9"), shared_beside("vllm", "9", (0, 10, 2)), shared_beside("llama.cpp", "9")
    (256.0, 0.0, 0.0)
    """
    fields = {"engine", "silicon", "since", "tokens", "note"}
    for entry in remaining_rules(read_entries(data_folder("hardware_db") / "kernels.toml", "beside", fields)):
        since = tuple(int(number) for number in entry["since"].split("."))
        if entry["engine"] == engine and silicon in entry["silicon"] and (release is None or release >= since):
            return float(entry["tokens"])
    return 0.0


def misnamed_tables() -> dict[tuple[str, str], str]:
    """Return (engine, backend) of misnamed tables → kernel as measured.

    Examples
    --------
    >>> misnamed_tables()["vllm", "vllm_marlin_int4_moe"]
    "Triton was measured under Marlin's name, which is what vLLM runs"
    """
    file = data_folder("hardware_db") / "kernels.toml"
    result = {}
    for entry in read_entries(file, "misnamed", fields := {"engine", "backend", "note"}):
        for field in sorted(fields - entry.keys()):
            raise SpecError("is missing", file=file, field=f"misnamed.{field}")
        result[entry["engine"], entry["backend"]] = str(entry["note"])
    return result


@cache
def expert_path(engine: str, backend: str, pairs: Ratio, day: str = "") -> str:
    """Return the kernel path that a library takes for a step's experts.

    Empty where the library has one path, or takes its first. `pairs`: routed pairs of a step, tokens times experts of
    each. `day` of the run as in ``2026-04-01``; empty for today's release.

    Examples
    --------
    >>> [expert_path("sglang", "b12x", pairs, "2026-03-30") for pairs in (127, 128)]
    ['', 'dynamic']
    >>> [expert_path("sglang", "b12x", pairs) for pairs in (128, 640, 641)]
    ['', '', 'dynamic']
    """
    fields = {"engine", "backend", "path", "pairs", "until", "note"}
    for entry in remaining_rules(read_entries(data_folder("hardware_db") / "kernels.toml", "experts", fields)):
        fits = entry["engine"] == engine and entry["backend"] == backend and pairs >= entry["pairs"]
        if fits and (day or "9") < entry.get("until", "9999"):
            return str(entry["path"])
    return ""


@cache
def gathers_latents(engine: str, build: str, tp: int) -> bool:
    """Return True if a build gathers cached latents for prompts under DCP.

    Else its ranks exchange queries and results of sparse latent attention, as in decoding.

    Examples
    --------
    >>> gathers_latents("vllm", "gilded-gnosis v20", 8), gathers_latents("vllm", "0.24.0", 8)
    (True, False)
    """
    file = data_folder("hardware_db") / "kernels.toml"
    fields = {"engine", "builds", "tp", "note"}
    return any(
        entry["engine"] == engine and tp in entry["tp"] and build.startswith(tuple(entry["builds"]))
        for entry in remaining_rules(read_entries(file, "latent_gather", fields))
    )


@cache
def latent_prompt_kernel(engine: str, silicon: str) -> str:
    """Return the kernel class for prompts over a densely read latent cache.

    ``prefill-attention`` where the latents are expanded to keys and values of each head, which the engine's table of
    latent kernels did not measure; else ``latent-prefill``.

    Examples
    --------
    >>> latent_prompt_kernel("vllm", "9"), latent_prompt_kernel("vllm", "10")
    ('prefill-attention', 'latent-prefill')
    """
    return _said("latent_prompts", "runs_as", engine, silicon) or "latent-prefill"


@cache
def sparse_since(engine: str, capability: str) -> str | None:
    """Return the first release with sparse latent attention on a capability.

    The capability has no published kernels; None: no release is known.

    Examples
    --------
    >>> sparse_since("vllm", "12.0"), sparse_since("vllm", "8.0")
    ('0.24.0', None)
    """
    result = _sparse_release(engine, capability)
    return None if result is None else str(result["since"])


def sparse_words(engine: str, capability: str, *, rotary: bool = True) -> tuple[str, ...]:
    """Return the options that select sparse attention in such a release.

    Empty: no release is known. `rotary`: the latents have rotary values; those without may have other kernels.

    Examples
    --------
    >>> sparse_words("vllm", "12.0")
    ('--kv-cache-dtype fp8_ds_mla',)
    """
    result = _sparse_release(engine, capability)
    if result is None:
        return ()
    return tuple(str(item) for item in result["told" if rotary else "told_without_rotary"])


def _sparse_release(engine: str, capability: str) -> dict[str, Any] | None:
    file = data_folder("hardware_db") / "kernels.toml"
    fields = {"engine", "compute_capability", "since", "told", "told_without_rotary", "note"}
    for entry in read_entries(file, "sparse_latent_release", fields):
        if entry["engine"] == engine and capability in entry["compute_capability"]:
            return entry
    return None


@cache
def sparse_capabilities() -> frozenset[str]:
    """Return compute capabilities with published sparse latent kernels.

    Examples
    --------
    >>> sorted(sparse_capabilities())
    ['10.0', '10.3', '9.0']
    """
    file = data_folder("hardware_db") / "kernels.toml"
    result = remaining_rules(read_entries(file, "sparse_latent", {"library", "compute_capability", "note"}))
    return frozenset(str(item) for entry in result for item in entry["compute_capability"])
