"""Which kernel multiplies weights of a format, and how attention kernels cut long contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

from glmplan.catalog.files import data_folder, read_entries
from glmplan.catalog.formats import WEIGHT_FORMATS, WeightFormat
from glmplan.catalog.rule_provenance import still_there
from glmplan.errors import SpecError
from glmplan.units import Ratio, Tokens

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
    "kernel_rule",
    "latent_prompt_kernel",
    "misnamed_tables",
    "shared_beside",
    "sparse_capabilities",
    "sparse_since",
    "sparse_words",
]

#: format in the kernel fits → bytes of an activation inside its product [B], precision that computes
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
#: what follows the name of a backend in a build that is not the engine's own
IMAGE = " in the image "
_ATTENTION = ("engine", "backend", "splits", "verify_splits")
_ROWS = ("tile_rows", "latent_rows")
_FIELDS = {"engine", "silicon", "weights", "product", "asked", "runs_as", "measured_with", "backend", "note"}
_PRODUCTS = ("gemm", "experts")


@dataclass(frozen=True, slots=True)
class KernelRule:
    """How weights of one format are multiplied.

    Attributes
    ----------
    form : str
        Format in the kernel fits.
    activation_bytes : float
        Bytes of an activation inside the product, [B]
    compute : str
        Precision that computes.
    engine : str
        Engine whose fits are looked up.
    backend : str
        Kernel that is preferred among them; empty for the engine's fullest table.
    """

    form: str
    activation_bytes: float
    compute: str
    engine: str
    backend: str = ""


@dataclass(frozen=True, slots=True)
class AttentionRule:
    """How an attention kernel shares the keys of one request and KV head among blocks of threads.

    Attributes
    ----------
    backend : str
        Name of the kernel in the fits; empty for the engine's fullest table.
    splits, verify_splits : float
        Blocks in decoding, and while drafted tokens are verified; infinite where as many start as the part has cores
        for, [-]
    tile_rows : float
        Rows that a verifying block computes however few there are; 0 where the fits of the kernel say it, [-]
    latent_rows : float
        The same of a block that takes the heads and queries of one latent together, for a kernel that no table holds on
        this silicon; 0 for others, [-]
    """

    backend: str = ""
    splits: float = math.inf
    verify_splits: float = math.inf
    tile_rows: float = 0.0
    latent_rows: float = 0.0


@cache
def _entries() -> tuple[dict[str, Any], ...]:
    file = data_folder("hardware_db") / "kernels.toml"
    found = read_entries(file, "kernels", _FIELDS)
    for entry in found:
        for field, choices in (("weights", WEIGHT_FORMATS), ("runs_as", KERNEL_FORMATS)):
            if entry.get(field) not in choices:
                raise SpecError("is not a format", file=file, field=field, value=str(entry.get(field)), choices=choices)
        if entry.get("product", _PRODUCTS[0]) not in _PRODUCTS:
            said = str(entry["product"])
            raise SpecError("is not a product", file=file, field="product", value=said, choices=_PRODUCTS)
    return found


@cache
def kernel_rule(engine: str, silicon: str, weights: WeightFormat, product: str, asked: str = "") -> KernelRule:
    """Return how an engine multiplies weights of a format.

    - `asked`: Kernels that the server was told to take.
    - Returns: The rule of `hardware_db/kernels.toml`, else what the format's own name says.

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
    for entry in still_there(_entries()):
        named = entry["engine"] == engine and entry["weights"] == weights.name and silicon in entry["silicon"]
        if named and entry.get("product", product) == product and entry.get("asked", asked) == asked:
            form = entry["runs_as"]
            measured = entry.get("measured_with", engine)
            return KernelRule(form, *KERNEL_FORMATS[form], measured, entry.get("backend", ""))
    if weights.name in _SHARED:
        return KernelRule(*_SHARED[weights.name], engine)
    # GGUF and group-quantised formats run as whole numbers of 4 bits, what is wide as BF16
    form = weights.name if weights.name in KERNEL_FORMATS else "int4" if weights.bits < 16 else "bf16"
    return KernelRule(form, *KERNEL_FORMATS[form], engine)


@cache
def attention_rule(engine: str, backend: str, silicon: str = "", kv: str = "") -> AttentionRule:
    """Return how an engine's attention kernel works.

    - `backend`: Attention backend as a server or a table of kernels names it; empty where it is not known. A build of
      others stands behind it, after `IMAGE`.
    - Returns: The rule of `hardware_db/kernels.toml` for the backend, or for what the engine takes on its own, else a
      kernel that uses the whole part.

    Examples
    --------
    >>> attention_rule("sglang", "triton").splits, attention_rule("sglang", "flashinfer").splits
    (8, inf)
    >>> [attention_rule("vllm", "", silicon, "bf16").verify_splits for silicon in ("9", "12")]
    [inf, 1]
    """
    said = backend.lower()
    # "default" is what tables say that do not know; one engine's kernels happen to have that name
    word = next(iter(said.split()), "").replace("default", "")
    file = data_folder("hardware_db") / "kernels.toml"
    for entry in still_there(_attention_entries()):
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
    """Whether a rule of `hardware_db/kernels.toml` says how an attention backend works.

    - `backend`: Its attention backend, as its option names it.
    - Returns: False where the backend counts as one that uses the whole part.

    Examples
    --------
    >>> attention_known("sglang", "triton"), attention_known("sglang", "fa4")
    (True, False)
    """
    said = backend.lower()
    return any(entry["engine"] == engine and entry["backend"] in said for entry in _attention_entries())


def attention_assumed(engine: str, backend: str) -> str:
    """What is assumed of an attention backend that was asked for or stated.

    - `backend`: Its attention backend, as its option names it.
    - Returns: In words; empty where a rule says how it works.

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
    """Engine whose table measured the collectives that an engine runs.

    Examples
    --------
    >>> collective_engine("vllm", "10"), collective_engine("vllm", "9")
    ('trtllm', 'vllm')
    """
    return _said("collectives", "measured_with", engine, silicon) or engine


def _said(table: str, field: str, engine: str, silicon: str) -> str:
    file = data_folder("hardware_db") / "kernels.toml"
    for entry in still_there(read_entries(file, table, {"engine", "silicon", field, "note"})):
        if entry["engine"] == engine and silicon in entry["silicon"]:
            return str(entry[field])
    return ""


@cache
def shared_beside(engine: str, silicon: str, release: tuple[int, ...] | None = None) -> Tokens:
    """Up to how many tokens a step computes shared experts beside the routed ones.

    Returns: The most tokens of such a step; 0 where they come one after the other.

    Examples
    --------
    >>> shared_beside("vllm", "9"), shared_beside("vllm", "9", (0, 10, 2)), shared_beside("llama.cpp", "9")
    (256.0, 0.0, 0.0)
    """
    fields = {"engine", "silicon", "since", "tokens", "note"}
    for entry in still_there(read_entries(data_folder("hardware_db") / "kernels.toml", "beside", fields)):
        since = tuple(int(number) for number in entry["since"].split("."))
        if entry["engine"] == engine and silicon in entry["silicon"] and (release is None or release >= since):
            return float(entry["tokens"])
    return 0.0


def misnamed_tables() -> dict[tuple[str, str], str]:
    """Tables of kernels that were measured under the name of another kernel.

    Returns: Engine and backend of a table → what was measured under that name.

    Examples
    --------
    >>> misnamed_tables()["vllm", "vllm_marlin_int4_moe"]
    "Triton was measured under Marlin's name, which is what vLLM runs"
    """
    file = data_folder("hardware_db") / "kernels.toml"
    found = {}
    for entry in read_entries(file, "misnamed", fields := {"engine", "backend", "note"}):
        for field in sorted(fields - entry.keys()):
            raise SpecError("is missing", file=file, field=f"misnamed.{field}")
        found[entry["engine"], entry["backend"]] = str(entry["note"])
    return found


@cache
def expert_path(engine: str, backend: str, pairs: Ratio, day: str = "") -> str:
    """Which of its kernels a library takes for the experts of a step.

    - `backend`: Kernels of the experts, as a server names them.
    - `pairs`: Routed pairs of a step: tokens times experts of each.
    - `day`: Day of the run as in ``2026-04-01``; empty for today's release.
    - Returns: Name of the path; empty where the library has one, or takes its first.

    Examples
    --------
    >>> [expert_path("sglang", "b12x", pairs, "2026-03-30") for pairs in (127, 128)]
    ['', 'dynamic']
    >>> [expert_path("sglang", "b12x", pairs) for pairs in (128, 640, 641)]
    ['', '', 'dynamic']
    """
    fields = {"engine", "backend", "path", "pairs", "until", "note"}
    for entry in still_there(read_entries(data_folder("hardware_db") / "kernels.toml", "experts", fields)):
        fits = entry["engine"] == engine and entry["backend"] == backend and pairs >= entry["pairs"]
        if fits and (day or "9") < entry.get("until", "9999"):
            return str(entry["path"])
    return ""


@cache
def latent_prompt_kernel(engine: str, silicon: str) -> str:
    """Which class of kernel attends to the latent cache of a prompt where attention is dense.

    Returns: ``prefill-attention`` where `hardware_db/kernels.toml` says that the latents are expanded to keys and
      values of each head, which the engine's table of latent kernels did not measure; else ``latent-prefill``.

    Examples
    --------
    >>> latent_prompt_kernel("vllm", "9"), latent_prompt_kernel("vllm", "10")
    ('prefill-attention', 'latent-prefill')
    """
    return _said("latent_prompts", "runs_as", engine, silicon) or "latent-prefill"


@cache
def sparse_since(engine: str, capability: str) -> str | None:
    """First release of an engine with sparse latent attention on silicon for which no library publishes kernels.

    Returns: Its version; None where no release is known.

    Examples
    --------
    >>> sparse_since("vllm", "12.0"), sparse_since("vllm", "8.0")
    ('0.24.0', None)
    """
    found = _sparse_release(engine, capability)
    return None if found is None else str(found["since"])


def sparse_words(engine: str, capability: str, *, rotary: bool = True) -> tuple[str, ...]:
    """Options with which such a release is asked for sparse attention.

    - `rotary`: Whether the latents have rotary values; those without may have other kernels.
    - Returns: One for each option; empty where no release is known.

    Examples
    --------
    >>> sparse_words("vllm", "12.0")
    ('--kv-cache-dtype fp8_ds_mla',)
    """
    found = _sparse_release(engine, capability)
    if found is None:
        return ()
    return tuple(str(one) for one in found["told" if rotary else "told_without_rotary"])


def _sparse_release(engine: str, capability: str) -> dict[str, Any] | None:
    file = data_folder("hardware_db") / "kernels.toml"
    fields = {"engine", "compute_capability", "since", "told", "told_without_rotary", "note"}
    for entry in read_entries(file, "sparse_latent_release", fields):
        if entry["engine"] == engine and capability in entry["compute_capability"]:
            return entry
    return None


@cache
def sparse_capabilities() -> frozenset[str]:
    """Compute capabilities whose tensor cores run published kernels of sparse latent attention.

    Examples
    --------
    >>> sorted(sparse_capabilities())
    ['10.0', '10.3', '9.0']
    """
    file = data_folder("hardware_db") / "kernels.toml"
    found = still_there(read_entries(file, "sparse_latent", {"library", "compute_capability", "note"}))
    return frozenset(str(one) for entry in found for one in entry["compute_capability"])
