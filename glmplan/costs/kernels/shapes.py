"""Return the work of a measured shape of `calibration/kernels`.

Predictions use the same counts.
"""

from __future__ import annotations

from collections.abc import Mapping

from glmplan.costs.kernels.counts import (
    attention_decode_work,
    attention_prefill_work,
    expert_work,
    gemm_work,
    latent_decode_work,
)
from glmplan.costs.kernels.utilisation import KernelWork

__all__ = ["INSIDE", "STORED", "shape_work"]

#: stored bytes of a weight with its scales: blocks of 128 × 128 in FP32, groups of 128 in BF16, of 32 in E8M0
STORED = {"bf16": 2.0, "fp8-block": 1.0 + 4 / 128**2, "int4": (4 + 16 / 128) / 8, "mxfp4": (4 + 8 / 32) / 8}
#: bytes of an activation inside the product
INSIDE = {"bf16": 2.0, "fp8-block": 1.0 + 4 / 128, "int4": 2.0, "mxfp4": 2.0}


def shape_work(kernel: str, precision: str, sizes: Mapping[str, float]) -> KernelWork | None:
    """Return the work of one measured shape, or None.

    None for launches, copies and samplers, which have no form. `precision`: format of weights or cache.
    ``sparse-gather`` is `latent-decode` over selected tokens.

    Examples
    --------
    >>> shape_work("gemm", "bf16", {"m": 1, "n": 4096, "k": 4096}).flop
    33554432.0
    """
    size = {name: float(value) for name, value in sizes.items()}
    if kernel == "gemm":
        stored = {"weight_bytes": STORED[precision], "activation_bytes": INSIDE[precision]}
        return gemm_work(size["m"], size["n"], size["k"], **stored)
    if kernel == "experts":
        return expert_work(
            tokens=size["m"],
            experts=size["experts"],
            assignments=size["m"] * size["top_k"],
            slots=size["m"] * size["top_k"],
            touched=size["touched"],
            hidden=size["k"],
            inner=size["n"],
            weight_bytes=STORED[precision],
            activation_bytes=INSIDE[precision],
        )
    if kernel in ("latent-decode", "sparse-gather"):
        return latent_decode_work(size["batch"], size["context"], heads=size["heads"], kv_bytes=2.0)
    if kernel not in ("decode-attention", "prefill-attention"):
        return None
    shape = {name: size[name] for name in ("heads", "kv_heads", "head_dim")}
    count = attention_decode_work if kernel == "decode-attention" else attention_prefill_work
    return count(size["batch"], size["context"], **shape, kv_bytes=2.0)
