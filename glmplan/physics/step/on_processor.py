"""Kernels of an engine on a processor, which no table of single kernels covers: their form is read from the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from glmplan.physics.kernels.utilisation import KernelParams, KernelWork

__all__ = ["PROCESSOR_ATTENTION", "PROCESSOR_KERNELS", "product_terms", "tile_rows"]

#: shares of the rates that a probe measures with all cores, from prompts of 1 to 64 tokens, F16 weights, one core: a
#: dense model of 26 M took an EPYC with AVX-512 0.85 ms · (rows + 2.9) and one with AVX2 4.1 ms · (rows + 0.9), one of
#: 105 M a Xeon with AMX 17 ms + 4.0 ms · rows from six rows on. With the tiles of `tile_rows` that is 0.6, 0.7 and 0.35
#: of the copy's bandwidth, which adds up with computing (sharpness 1), and 0.8, 0.23 and 0.15 of the product's rate,
#: because numpy's BLAS takes wider registers than a build for all processors does. The geometric means; their spread is
#: in `glmplan.calibrate.step.processors`. Experts are dot products (`ggml-cpu.c`, `ggml_compute_forward_mul_mat_id`): a
#: row of 26 M took the Xeon 1.2 ms from its caches, of full tiles 1.0 to 1.3
_PRODUCT = KernelParams(floor=2e-6, bandwidth=0.55, flop=0.3, sharpness=1.0)
PROCESSOR_KERNELS = {"gemm": _PRODUCT, "experts": _PRODUCT}
#: every other kernel: attention, states; a core of the Xeon read F16 from its second-level cache of 2 MB (`lscpu`)
#: three times as fast as from memory
PROCESSOR_ATTENTION = KernelParams(floor=5e-6, bandwidth=0.5, flop=0.2, sharpness=1.0, cache_gain=3.0, cache_bytes=2e6)

#: weights and most rows of a tile of products that stays in 16 registers; 32 registers, which only builds for AVX-512
#: have, hold six rows (ggml-org/llama.cpp, ggml/src/ggml-cpu/llamafile/sgemm.cpp: `mnpack<4, 3, 4>`, `mnpack<4, 6, 4>`)
_WEIGHTS, _ROWS = 4.0, 3.0


def tile_rows(rows: np.ndarray) -> np.ndarray:
    """Return as how many rows of full tiles some rows of F16 or BF16 weights count.

    Rows are dealt to tiles of at most three, of like size. For each step along the inner dimension a tile widens its
    rows and four weights to FP32 and multiplies each with each, on the same ports:
    ``(4n + n + 4·ceil(n/3)) / (4 + 1 + 4/3)`` [1]_.

    Parameters
    ----------
    rows : (n,) array
        Tokens of a product, [-]

    Returns
    -------
    (n,) array
        At least as many; between whole numbers along the line, [-]

    Notes
    -----
    Measured on a Xeon from its nearest cache, 1,408 inputs: tiles of one, two and three rows took 1, 1.57 and 2.14 of
    one row's time, by the formula 1, 1.56 and 2.11. Not modelled: tiles of six rows with 32 registers; matrices whose
    outputs are no multiple of four; tiles of quantised weights, which differ by format (Q8_0 in pairs, Q4_0 packed
    anew) and are counted by their rows.

    References
    ----------
    .. [1] ggml-org/llama.cpp, ggml/src/ggml-cpu/llamafile/sgemm.cpp: `tinyBLAS::matmul`, `BLOCK_SIZE`, `gemm_bloc`.

    Examples
    --------
    >>> tile_rows(np.array([2.0, 3.0, 4.0, 4.5, 6.0])).round(2).tolist()
    [2.21, 3.0, 4.42, 4.82, 6.0]
    """
    below = np.floor(rows)
    each = _WEIGHTS + 1.0
    at, after = (each * one + _WEIGHTS * np.ceil(one / _ROWS) for one in (below, below + 1.0))
    return np.asarray((at + (rows - below) * (after - at)) / (each + _WEIGHTS / _ROWS))


def product_terms(
    kernel: Callable[[KernelWork], tuple[np.ndarray, ...]],
    of_rows: Callable[[np.ndarray], KernelWork],
    rows: np.ndarray,
    *,
    tiled: bool = True,
) -> tuple[np.ndarray, ...]:
    """Return a product's time on a processor: one row runs a kernel of its own, whose time goes with what is fixed.

    llama.cpp's `llamafile_sgemm` takes two rows or more, one is a dot product for each output. Neither tells of the
    other: against two rows one took 0.4 of the time on a core with AVX-512 and 0.75 on one with AVX2.

    Parameters
    ----------
    kernel : callable
        From a work to its time by what is fixed, bytes and FLOP, [s]
    of_rows : callable
        From rows to the work.
    rows : (n,) array
        Tokens of the product, [-]
    tiled : bool, optional
        Whether rows count as `tile_rows` says.

    Returns
    -------
    tuple of (n,) array
        What is fixed, what bytes cost and what FLOP cost, [s]

    Examples
    --------
    >>> from functools import partial
    >>> from glmplan.physics.kernels.counts import gemm_work
    >>> from glmplan.physics.kernels.utilisation import kernel_terms
    >>> kernel = partial(kernel_terms, peak_flop=1e11, peak_bandwidth=4e10, params=PROCESSOR_KERNELS["gemm"])
    >>> terms = product_terms(kernel, partial(gemm_work, n=4096, k=4096, weight_bytes=2.0), np.array([1.0, 2.0, 4.0]))
    >>> [(1e3 * slot).round(2).tolist() for slot in terms]
    [[2.65, 0.0, 0.0], [0.0, 1.53, 1.53], [0.0, 2.47, 4.94]]
    """
    more = np.clip(rows - 1.0, 0.0, 1.0)
    alone = sum(kernel(replace(of_rows(np.ones_like(rows)), rows=np.inf)))
    several = np.maximum(rows, 2.0)
    work = of_rows(several)
    count = tile_rows(several) / several if tiled else 1.0
    fixed, of_bytes, of_flop = kernel(replace(work, flop=work.flop * count, rows=np.inf))
    return (1.0 - more) * alone + more * fixed, more * of_bytes, more * of_flop
