"""Read quantisation methods of further tools as formats of weights.

MLX-LM (mlx_lm/utils.py), ExLlamaV3 (exllamav3/conversion), bitsandbytes, HQQ, AQLM, TorchAO, FP-Quant and FBGEMM
(`utils/quantization_config.py` of Hugging Face transformers 5.24.0), AMD Quark (vLLM's quark.py) and SGLang's w4afp8.
The bits include scales and zero points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from glmplan.errors import SpecError

__all__ = ["METHODS", "Stated", "stated_formats"]

#: names of all methods that this module reads
METHODS = (
    "aqlm", "bitsandbytes", "eetq", "exl3", "fbgemm_fp8", "fp_quant", "hqq", "mlx", "mxfp8", "nvfp4", "petit_nvfp4",
    "quark", "torchao", "w4afp8",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stated:
    """Formats that a quantisation config states."""

    base: str
    name: str | None = None  # of the checkpoint; None: the format's
    own: Mapping[str, str] = field(default_factory=dict)  # pattern of modules → their format
    whole: bool = False  # True: embedding, head and router are quantised too
    experts: str | None = None
    fp8_scales: Literal["matrix", "row"] | None = None
    skipped: tuple[str, ...] = ()  # modules in BF16 besides those of the usual fields


def _grouped(bits: Any, group: Any, extra: float = 16.0) -> str:
    """Return a format of `bits` and `extra` bits for each group."""
    if not isinstance(bits, int | float) or isinstance(bits, bool) or not 0.5 <= bits <= 16:
        raise SpecError("is not a number of bits", field="quantization_config", value=bits)
    more = extra / group if isinstance(group, int) and group > 0 else 0.0
    return f"bpw:{bits + more:g}"


def _mlx(content: Mapping[str, Any]) -> Stated:
    """Return the formats of MLX: every linear layer and embedding.

    Affine groups have a scale and a bias of 16 bits. A module of its own name has settings of its own, or none.
    """

    def form(part: Mapping[str, Any]) -> str:
        mode = str(part.get("mode") or "affine")
        if mode in ("mxfp4", "nvfp4", "mxfp8"):
            return mode
        return _grouped(part.get("bits", content.get("bits")), part.get("group_size", content.get("group_size")), 32.0)

    own: dict[str, str] = {}
    for name, part in content.items():
        if isinstance(part, Mapping):
            own[name] = form(part)
        elif part is False:
            own[name] = "bf16"
    mode = content.get("mode")
    name = f"mlx-{mode}" if mode in ("mxfp4", "nvfp4", "mxfp8") else f"mlx-{content.get('bits')}bit"
    return Stated(form(content), name, own, whole=True)


def _bits_and_bytes(content: Mapping[str, Any]) -> Stated:
    """Return NF4 with an FP32 scale for 64 values, or INT8 with one a row.

    With double quantisation a scale has 8 bits, and 256 of them have another one.
    """
    skipped = tuple(str(name) for name in content.get("llm_int8_skip_modules") or ())
    if not content.get("load_in_4bit", content.get("_load_in_4bit")):
        return Stated("bpw:8", "bnb-8bit", skipped=skipped)
    scale = 8 / 64 + 32 / (64 * 256) if content.get("bnb_4bit_use_double_quant") else 32 / 64
    return Stated(f"bpw:{4 + scale:.4g}", "bnb-4bit", skipped=skipped)


def _exl3(content: Mapping[str, Any]) -> Stated:
    bits = _grouped(content.get("bits"), None)
    head = content.get("head_bits")
    own = {"lm_head": _grouped(head, None)} if head else {}
    return Stated(bits, f"exl3-{float(content['bits']):.1f}bpw", own)


#: element type of Quark → format; groups of 32 are MX formats
_QUARK = {"fp8_e4m3": "fp8", "fp8": "fp8", "int8": "int8", "mxfp4": "mxfp4", "nvfp4": "nvfp4"}


def _quark_weight(part: Any) -> str | None:
    """Return the format of a part's weights; None: not quantised."""
    weight = part.get("weight") if isinstance(part, Mapping) else None
    if isinstance(weight, list):  # quantised twice: the second has the fewer bits
        weight = weight[-1] if weight else None
    if not isinstance(weight, Mapping):
        return None
    kind, group = str(weight.get("dtype")), weight.get("group_size")
    if kind == "fp4":
        return "mxfp4" if group in (32, None) else "nvfp4"
    if kind in ("fp8_e4m3", "fp8") and weight.get("qscheme") == "per_group":
        return "mxfp8" if group == 32 else "fp8-block"
    if kind in ("int4", "uint4"):
        return _grouped(4, group, 16.0 if kind == "int4" else 20.0)
    if kind in _QUARK:
        return _QUARK[kind]
    raise SpecError("is not a weight format that glmplan knows", field="quantization_config.global_quant_config",
                    value=kind)  # fmt: skip


def _quark(content: Mapping[str, Any]) -> Stated:
    own: dict[str, str] = {}
    for name, part in (content.get("layer_quant_config") or {}).items():
        own[str(name)] = _quark_weight(part) or "bf16"
    base = _quark_weight(content.get("global_quant_config"))
    scheme = ((content.get("global_quant_config") or {}).get("weight") or {}) if base == "fp8" else {}
    names: dict[Any, Literal["matrix", "row"]] = {"per_tensor": "matrix", "per_channel": "row"}
    scales = names.get(scheme.get("qscheme")) if isinstance(scheme, Mapping) else None
    return Stated(base or "bf16", own=own, fp8_scales=scales)


def _torchao(content: Mapping[str, Any]) -> Stated:
    kind = content.get("quant_type")
    data: Any = content.get("quant_type_kwargs") or {}
    if isinstance(kind, Mapping):
        part = kind.get("default") or {}
        kind, data = part.get("_type"), part.get("_data") or {}
    word = str(kind).lower().replace("_", "")
    if word.startswith("int4"):
        return Stated(_grouped(4, data.get("group_size", 128), 32.0), "torchao-int4")
    if word.startswith("int8"):
        return Stated("bpw:8" if "weightonly" in word else "int8", "torchao-int8")
    if word.startswith("float8"):
        return Stated("fp8", "torchao-fp8")
    raise SpecError("is not a type of TorchAO that glmplan knows", field="quantization_config.quant_type",
                    value=str(kind), choices=["int4", "int8", "float8"])  # fmt: skip


def stated_formats(method: str, content: Mapping[str, Any], file: str | Path | None) -> Stated | None:
    """Return the formats of a method, or None for an unknown one.

    Examples
    --------
    >>> stated_formats("mlx", {"bits": 4, "group_size": 64}, None).base
    'bpw:4.5'
    >>> stated_formats("bitsandbytes", {"load_in_4bit": True, "bnb_4bit_use_double_quant": True}, None).base
    'bpw:4.127'
    """
    if method == "mlx":
        return _mlx(content)
    if method == "bitsandbytes":
        return _bits_and_bytes(content)
    if method == "exl3":
        return _exl3(content)
    if method == "quark":
        return _quark(content)
    if method == "torchao":
        return _torchao(content)
    if method == "hqq":
        part = (content.get("quant_config") or {}).get("weight_quant_params") or content
        skipped = tuple(str(name) for name in content.get("skip_modules") or ())
        bits, group = part.get("nbits", 4), part.get("group_size", 64)
        return Stated(_grouped(bits, group, 32.0), f"hqq-{bits}bit", skipped=skipped)
    if method == "aqlm":
        bits = int(content.get("nbits_per_codebook", 16)) * int(content.get("num_codebooks", 1))
        return Stated(f"bpw:{bits / int(content.get('in_group_size', 8)):g}", "aqlm")
    if method == "fp_quant":
        return Stated(str(content.get("forward_dtype", "mxfp4")))
    plain: Mapping[str, Stated] = {
        "eetq": Stated("bpw:8", "eetq-int8"), "fbgemm_fp8": Stated("fp8", fp8_scales="row"), "mxfp8": Stated("mxfp8"),
        "nvfp4": Stated("nvfp4"), "petit_nvfp4": Stated("nvfp4"),
        # DeepSeek's block FP8 with experts in INT4
        "w4afp8": Stated("fp8-block", experts="w4afp8"),
    }  # fmt: skip
    return plain.get(method)
