"""Fit utilisation parameters to log kernel times, robustly.

`glmplan.costs.kernels.utilisation` has the form. Results are reproducible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from glmplan.calibrate.kernels.tables import Campaign
from glmplan.costs.kernels.utilisation import (
    CollectiveParams,
    KernelParams,
    KernelWork,
    collective_seconds,
    kernel_seconds,
)
from glmplan.units import BytesPerSecond, Ratio

__all__ = ["CLASSES", "Rows", "errors", "fit_collective", "fit_rows", "join", "rows_of"]

#: start, lower and upper bound of every parameter. No memory reaches its peak (refresh takes some per cent). A product
#: of one tile runs on one core: full use takes as many tiles as cores (at most 188 in the catalog), twice that if two
#: blocks share a core. Without such bounds a form that misses how bytes are read explains them as FLOP, and the step
#: time inherits that.
_BOUNDS = {
    "floor": (6e-6, 1e-6, 5e-3),
    "bandwidth": (0.7, 0.03, 0.97),
    "flop": (0.6, 0.005, 1.05),
    "rows_half": (8.0, 0.01, 128.0),
    "tiles_half": (8.0, 0.01, 400.0),
    "streams_half": (2.0, 0.001, 1e4),
    "side": (1.0, 0.03, 30.0),
    "sharpness": (3.0, 1.0, 12.0),
    "group": (2e-8, 1e-10, 1e-6),
    "cache_gain": (2.0, 1.0, 8.0),
    "cache_bytes": (5e7, 6e6, 3e8),
    "block": (1e10, 1e9, 1e12),
    "block_gain": (1.5, 1.0, 4.0),
    "key": (2e-8, 1e-10, 1e-6),
}
_NEUTRAL = {"rows_half": 0.0, "tiles_half": 0.0, "streams_half": 0.0, "side": 1.0, "group": 0.0}
_NEUTRAL |= {"cache_gain": 1.0, "cache_bytes": 1.0, "flop": 1.0, "sharpness": 4.0,
             "block": 1e15, "block_gain": 1.0, "key": 0.0}  # fmt: skip
_ALL = ("floor", "bandwidth", "flop", "rows_half", "tiles_half", "streams_half", "sharpness")

#: kernel class → fitted parameters; the others stay neutral
CLASSES: dict[str, tuple[str, ...]] = {
    "gemm": (*_ALL, "side", "cache_gain", "cache_bytes"),
    "experts": (*_ALL, "side", "group", "cache_gain", "cache_bytes"),
    "decode-attention": (*_ALL, "cache_gain", "cache_bytes"),
    "prefill-attention": ("floor", "bandwidth", "flop", "rows_half", "tiles_half", "sharpness"),
    "latent-decode": (*_ALL, "cache_gain", "cache_bytes"),
    "latent-prefill": ("floor", "bandwidth", "flop", "rows_half", "tiles_half", "sharpness"),
    "latent-decode-block": ("floor", "bandwidth", "flop", "rows_half", "side", "sharpness"),
    "latent-prefill-block": ("floor", "bandwidth", "flop", "rows_half", "side", "sharpness"),
    "sparse-decode-block": ("floor", "bandwidth", "flop", "rows_half", "side", "sharpness"),
    "sparse-prefill-block": ("floor", "bandwidth", "flop", "rows_half", "side", "sharpness"),
    "recurrent-decode": ("floor", "bandwidth", "streams_half", "cache_gain", "cache_bytes"),
    "recurrent-prefill": ("floor", "bandwidth", "flop", "tiles_half", "streams_half", "sharpness"),
    "kda-decode": ("floor", "bandwidth", "streams_half", "cache_gain", "cache_bytes"),
    "kda-prefill": ("floor", "bandwidth", "flop", "tiles_half", "streams_half", "sharpness"),
    "convolution-decode": ("floor", "bandwidth", "cache_gain", "cache_bytes"),
    "convolution-prefill": ("floor", "bandwidth", "streams_half", "cache_gain", "cache_bytes"),
    "hyper-read": ("floor", "bandwidth", "cache_gain", "cache_bytes"),
    "hyper-write": ("floor", "bandwidth", "cache_gain", "cache_bytes"),
    "hyper-both": ("floor", "bandwidth", "cache_gain", "cache_bytes"),
    "expert-dispatch": ("floor", "bandwidth", "sharpness"),
    "expert-combine": ("floor", "bandwidth", "sharpness"),
}

#: of kernels with a fixed number of blocks
_BLOCK = ("block", "block_gain", "key")
#: formats without activation quantisation have no side pass to fit
_UNQUANTISED = ("bf16", "int4", "mxfp4")


@dataclass(frozen=True, slots=True)
class Rows:
    """Work, measured time and peaks of rows."""

    work: KernelWork
    seconds: np.ndarray  # measured
    resident: np.ndarray  # bytes that a repeated benchmark finds in the cache
    peak_flop: np.ndarray  # [FLOP/s]
    peak_bandwidth: np.ndarray  # [B/s]


def rows_of(campaign: Campaign, chosen: np.ndarray | slice, *, peak_flop: float, peak_bandwidth: float) -> Rows:
    """Return chosen rows of a campaign with peaks [FLOP/s] and [B/s]"""
    count = len(campaign.seconds)
    columns = {
        field.name: np.broadcast_to(np.asarray(getattr(campaign.work, field.name), dtype=float), count)[chosen]
        for field in fields(campaign.work)
    }
    seconds = campaign.seconds[chosen]
    flat = np.ones(len(seconds))
    return Rows(KernelWork(**columns), seconds, campaign.resident[chosen], flat * peak_flop, flat * peak_bandwidth)


def join(parts: Sequence[Rows]) -> Rows:
    """Return the rows of several tables as one."""
    work = {f.name: np.concatenate([getattr(p.work, f.name) for p in parts]) for f in fields(KernelWork)}
    names = ("seconds", "resident", "peak_flop", "peak_bandwidth")
    return Rows(KernelWork(**work), *(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def _predicted(params: KernelParams, rows: Rows) -> np.ndarray:
    """Return times with cached bytes, as in a benchmark that repeats a shape."""
    work = params.from_cache(rows.work, rows.resident)
    return np.asarray(kernel_seconds(work, peak_flop=rows.peak_flop, peak_bandwidth=rows.peak_bandwidth, params=params))


def fit_rows(
    kernel: str, precision: str, rows: Rows, start: KernelParams | None = None, *, most_gain: Ratio = 8.0
) -> KernelParams:
    """Return the fitted parameters of one kernel class.

    `kernel` and `precision` select the free parameters; `most_gain` bounds cache over memory bandwidth.

    Notes
    -----
    Log residuals under soft-L1 loss of scale 0.15: a badly chosen library kernel for some shapes has little influence.
    """
    from scipy.optimize import least_squares

    names = CLASSES[kernel.removeprefix("shared-").removeprefix("dense-")]
    free = [n for n in names if not (kernel == "gemm" and n == "side" and precision in _UNQUANTISED)]
    free += _BLOCK if np.any(rows.work.block_bytes > 0) else ()
    bounds = _BOUNDS | {"cache_gain": (min(2.0, most_gain), 1.0, max(most_gain, 1.01))}
    low, high = (np.log([bounds[name][i] for name in free]) for i in (1, 2))
    begin = {name: bounds[name][0] for name in free}
    begin["floor"] = float(np.clip(np.quantile(rows.seconds, 0.01), 3e-7, 5e-3))
    if start is not None:
        begin = {n: getattr(start, n) or begin[n] for n in free}
    target = np.log(rows.seconds)
    fixed = {name: value for name, value in _NEUTRAL.items() if name not in free}

    def residual(x: np.ndarray) -> np.ndarray:
        params = KernelParams(**fixed, **dict(zip(free, np.exp(x).tolist(), strict=True)))
        result: np.ndarray = np.log(_predicted(params, rows)) - target
        return result

    x0 = np.clip(np.log([begin[name] for name in free]), low + 1e-6, high - 1e-6)
    solution: Any = least_squares(residual, x0, bounds=(low, high), loss="soft_l1", f_scale=0.15, max_nfev=60)
    return KernelParams(
        **fixed, **{n: float(f"{v:.4g}") for n, v in zip(free, np.exp(solution.x).tolist(), strict=True)}
    )


def errors(fitted: KernelParams, rows: Rows) -> np.ndarray:
    """Return log(predicted / measured time)."""
    result: np.ndarray = np.log(_predicted(fitted, rows)) - np.log(rows.seconds)
    return result


def fit_collective(
    bytes_: np.ndarray, ranks: np.ndarray, seconds: np.ndarray, *, link_bandwidth: BytesPerSecond
) -> tuple[CollectiveParams, np.ndarray]:
    """Return the fitted parameters of an all-reduce and its log errors.

    `link_bandwidth` is the one-way peak of one rank's link.
    """
    from scipy.optimize import least_squares

    low = np.log([1e-6, 1e-8, 1e-3, 5e-3, 1e-8, 1e-3])
    high = np.log([5e-4, 1e-4, 1.2, 1.2, 1e-3, 3.0])

    def residual(x: np.ndarray) -> np.ndarray:
        params = CollectiveParams(*np.exp(x).tolist())
        time = collective_seconds(bytes_, ranks, link_bandwidth=link_bandwidth, params=params)
        return np.asarray(np.log(time) - np.log(seconds))

    best: Any = None
    for one_shot, crowding in ((0.5, 0.01), (0.05, 0.01), (0.5, 1.0)):
        x0 = np.log([float(seconds.min()), 5e-7, one_shot, 0.7, 5e-6, crowding])
        solution: Any = least_squares(
            residual,
            np.clip(x0, low + 1e-6, high - 1e-6),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=0.15,
            max_nfev=300,
        )
        best = solution if best is None or solution.cost < best.cost else best
    params = CollectiveParams(*(float(f"{value:.4g}") for value in np.exp(best.x).tolist()))
    return params, residual(best.x)
