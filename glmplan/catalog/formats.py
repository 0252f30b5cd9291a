"""Number formats of weights and of the KV cache.

Bits per value with scales, and compute precision.

The bits are arithmetic on the published block layouts, not measurements:

- FP8 with 128 × 128 blocks: 8 bit + one FP32 scale a block (DeepSeek-V3 report, arXiv 2412.19437); with 32 × 32 blocks
  one E8M0 scale (DeepSeek-V4.1, `weight_block_size` of its config.json).
- NVFP4: 4 bit + one FP8 scale for 16 values; MXFP4: 4 bit + one E8M0 scale for 32 (OCP Microscaling 1.0).
- INT4 group quantisation: 4 bit + an FP16 scale for each group, AWQ and GPTQ also a 4-bit zero point.
- GGUF types: the block structures of ggml (`ggml-common.h`), the same as `gguf.GGML_QUANT_SIZES`.
"""

from __future__ import annotations

from dataclasses import dataclass

from glmplan.errors import SpecError
from glmplan.units import Bits, Bytes

__all__ = ["KV_FORMATS", "WEIGHT_FORMATS", "KvFormat", "WeightFormat", "kv_format", "weight_format"]


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """Storage of one class of weights."""

    name: str
    bits: Bits  # of a weight, scales included
    compute: str  # precision of the product where supported: ``bf16``, ``fp8``, ``fp4`` or ``int8``
    #: outputs and inputs that share one scale; (1, 1): no block limits the split of a matrix
    block: tuple[int, int] = (1, 1)

    @property
    def bytes(self) -> float:
        """Return the stored bytes of a weight, scales included."""
        return self.bits / 8


@dataclass(frozen=True, slots=True)
class KvFormat:
    """Storage of the KV cache."""

    name: str
    bytes: Bytes  # of a value, scales included


def _formats(*rows: tuple[str, float, str] | tuple[str, float, str, tuple[int, int]]) -> dict[str, WeightFormat]:
    return {row[0]: WeightFormat(*row) for row in rows}


#: every weight format by name
WEIGHT_FORMATS: dict[str, WeightFormat] = _formats(
    ("fp32", 32, "bf16"),
    ("bf16", 16, "bf16"),
    ("f16", 16, "bf16"),
    ("fp8", 8, "fp8"),
    ("fp8-block", 8 + 32 / 128**2, "fp8", (128, 128)),
    ("fp8-block32", 8 + 8 / 32**2, "fp8", (32, 32)),
    ("int8", 8, "int8"),
    ("nvfp4", 4 + 8 / 16, "fp4", (1, 16)),
    ("mxfp4", 4 + 8 / 32, "fp4", (1, 32)),
    ("mxfp8", 8 + 8 / 32, "fp8", (1, 32)),
    ("int4", 4 + 20 / 128, "bf16", (1, 128)),
    ("int4-g32", 4 + 16 / 32, "bf16", (1, 32)),
    ("int4-g64", 4 + 20 / 64, "bf16", (1, 64)),
    ("int4-g128", 4 + 16 / 128, "bf16", (1, 128)),
    ("awq-int4", 4 + 20 / 128, "bf16", (1, 128)),
    ("gptq-int4", 4 + 20 / 128, "bf16", (1, 128)),
    ("w4afp8", 4 + 16 / 128, "fp8", (1, 128)),
    # GGUF: bytes of a block × 8 / values of a block
    ("q8_0", 8.5, "bf16"),
    ("q6_k", 6.5625, "bf16"),
    ("q5_k", 5.5, "bf16"),
    ("q5_0", 5.5, "bf16"),
    ("q5_1", 6.0, "bf16"),
    ("q4_k", 4.5, "bf16"),
    ("q4_0", 4.5, "bf16"),
    ("q4_1", 5.0, "bf16"),
    ("q3_k", 3.4375, "bf16"),
    ("q2_k", 2.625, "bf16"),
    ("iq4_nl", 4.5, "bf16"),
    ("iq4_xs", 4.25, "bf16"),
    ("iq3_s", 3.4375, "bf16"),
    ("iq3_xxs", 3.0625, "bf16"),
    ("iq2_s", 2.5625, "bf16"),
    ("iq2_xs", 2.3125, "bf16"),
    ("iq2_xxs", 2.0625, "bf16"),
    ("iq1_m", 1.75, "bf16"),
    ("iq1_s", 1.5625, "bf16"),
    ("tq2_0", 2.0625, "bf16"),
    ("tq1_0", 1.6875, "bf16"),
)

#: every KV cache format by name; the layout of an engine may add to it (vLLM `fp8_ds_mla`)
KV_FORMATS: dict[str, KvFormat] = {
    name: KvFormat(name, size)
    for name, size in (
        ("bf16", 2.0),
        ("f16", 2.0),
        ("fp8", 1.0),
        ("int8", 1.0),
        # two FP16 numbers for each head of 128 values and token (TurboMind)
        ("int8-head", 8.25 / 8),
        ("int4-head", 4.25 / 8),
        ("nvfp4", 4.5 / 8),
        ("q8_0", 8.5 / 8),
        ("q4_0", 4.5 / 8),
    )
}


def weight_format(name: str) -> WeightFormat:
    """Return a weight format; `bpw:3.65` has that many bits per weight.

    Examples
    --------
    >>> weight_format("nvfp4").bits
    4.5
    >>> weight_format("bpw:3.65").bytes
    0.45625
    """
    result = WEIGHT_FORMATS.get(name.lower())
    if result is not None:
        return result
    if name.lower().startswith("bpw:"):
        try:
            bits = float(name[4:])
        except ValueError:
            bits = float("nan")
        if 0.5 <= bits <= 32:
            return WeightFormat(name.lower(), bits, "bf16")
        raise SpecError("is not between 0.5 and 32 bits per weight", field="weights", value=name)
    raise SpecError("is not a weight format", field="weights", value=name, choices=WEIGHT_FORMATS)


def kv_format(name: str) -> KvFormat:
    """Return a KV cache format by name.

    Examples
    --------
    >>> kv_format("fp8").bytes
    1.0
    """
    result = KV_FORMATS.get(name.lower())
    if result is None:
        raise SpecError("is not a KV cache format", field="kv", value=name, choices=KV_FORMATS)
    return result
