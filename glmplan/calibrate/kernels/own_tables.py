"""Compare own kernel tables with the fits of their accelerator.

`tools/measure_shapes.py` measures the tables. They are no input of a fit: their Triton kernels are not an engine's, and
PyTorch products repeat the larger tables. They test a fit with cold operands on another machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.files import data_folder, read_rows, read_toml
from glmplan.costs.kernels.shapes import shape_work
from glmplan.costs.kernels.utilisation import KernelFit, KernelParams, kernel_seconds

__all__ = ["Beside", "beside_fits", "own_parts", "own_rows", "own_section"]

_CLASS = {"sparse-gather": "latent-decode"}
_COMPUTES = {"fp8-block": "fp8"}
_FEW = 16  # tokens or requests up to which weights bound a product


@dataclass(frozen=True, slots=True)
class Beside:
    """Measured rows of one kind compared with one fit."""

    kernel: str  # measured
    precision: str
    backend: str
    fit: KernelFit
    ratio: np.ndarray  # predicted / measured time
    few: np.ndarray  # rows of at most 16 tokens or requests


def own_parts() -> tuple[str, ...]:
    """Return the accelerators with own tables."""
    return tuple(
        sorted(folder.name for folder in (data_folder("calibration") / "kernels").iterdir() if os.path.isdir(folder))
    )


def own_rows(part: str) -> list[dict[str, str]]:
    """Return the measured rows of one accelerator, all campaigns."""
    files = sorted((data_folder("calibration") / "kernels" / part).glob("*/rows.csv"))
    return [row for file in files for row in read_rows(file)]


def _sizes(row: Mapping[str, str]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if value and name in _SIZED}


_SIZED = frozenset(("m", "n", "k", "experts", "top_k", "touched", "batch", "context", "heads", "kv_heads", "head_dim"))


def beside_fits(part: str, fits: Sequence[KernelFit], rows: Sequence[Mapping[str, str]]) -> Iterator[Beside]:
    """Yield measured rows with the predictions of like kernels of each engine.

    The newest release of an engine's fit counts.
    """
    facts = load_accelerator(part)
    bandwidth, bf16 = facts.need("memory_bandwidth", "peak.bf16")
    for one in read_toml(data_folder("calibration") / "kernels" / "beside.toml")["like"]:
        kernel, precision, backend = one["kernel"], one["precision"], one["measured"]
        mine = [r for r in rows if (r["kernel"], r["precision"], r["backend"]) == (kernel, precision, backend)]
        like = [
            fit
            for fit in fits
            if (fit.kernel, fit.precision, fit.engine.split()[0])
            == (_CLASS.get(kernel, kernel), precision, one["engine"])
            and one["backend"] in fit.backend
        ]
        if not mine or not like:
            continue
        fit = max(like, key=lambda fit: (fit.release, fit.points))
        assert isinstance(fit.params, KernelParams)
        peak: Any = facts.peak.get(_COMPUTES.get(precision, precision), bf16)
        peaks = {"peak_flop": float(peak), "peak_bandwidth": float(bandwidth)}
        works = [shape_work(kernel, precision, _sizes(row)) for row in mine]
        predicted = [float(kernel_seconds(work, params=fit.params, **peaks)) for work in works if work is not None]
        ratio = np.array(predicted) * 1e6 / np.array([float(row["time_us"]) for row in mine])
        new = "context" if kernel == "prefill-attention" else "batch"
        few = np.array([max(float(row["m"]), float(row[new])) <= _FEW for row in mine])
        yield Beside(kernel, precision, backend, fit, ratio, few)


def own_section(fits_of: Mapping[str, Sequence[KernelFit]]) -> str:
    """Return the Markdown section of own measurements; empty without any."""
    lines = []
    for part in own_parts():
        for one in beside_fits(part, fits_of.get(part, ()), own_rows(part)):
            sides = [f"{np.median(one.ratio[some]):.2f}" if some.any() else "" for some in (one.few, ~one.few)]
            cells = [part, one.kernel, one.precision, one.backend, f"{one.fit.engine} {one.fit.backend}"]
            cells += [str(len(one.ratio)), f"{np.median(np.abs(one.ratio - 1)):.0%}", *sides]
            lines.append("| " + " | ".join(cells) + " |")
    if not lines:
        return ""
    head = (
        "| accelerator | class | format | measured | fit | rows | median error | up to 16 | above |\n"
        + "|---" * 9
        + "|\n"
    )
    return _SECTION + head + "\n".join(lines) + "\n"


_SECTION = """\
## Own measurements and the fits

`calibration/kernels` holds tables of `tools/measure_shapes.py`: shapes of GLM, gpt-oss and Qwen on one GPU, with cold
operands. No fit uses them. Each is compared with the fit of the most similar engine kernel. Errors are of the predicted
time; the last two columns are the median of predicted over measured time for up to 16 tokens or requests, and above:
below 1 the fit is faster than the measured kernel. cuBLAS and cuDNN are the libraries that engines call; "triton" is a
kernel written for this comparison, which no engine runs.

"""
