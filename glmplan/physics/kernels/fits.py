"""The fitted utilisation of kernels: one small file for each part, one of priors for parts that nobody measured."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any

from glmplan.errors import SpecError
from glmplan.facts.files import read_text
from glmplan.facts.folders import data_folder
from glmplan.physics.kernels.utilisation import CollectiveParams, KernelParams

__all__ = ["KernelFit", "carries_all", "find_kernel_fit", "fit_row", "kernel_fits", "kernel_release", "read_fit"]


@dataclass(frozen=True, slots=True)
class KernelFit:
    """One fitted set of parameters and how far it may be trusted.

    Attributes
    ----------
    kernel : str
        Class: ``gemm``, ``experts``, ``decode-attention``, …, ``all-reduce``.
    engine : str
        Engine and version, or ``*`` for a pooled prior.
    precision : str
        Weight format, or KV format for attention.
    backend : str
        The engine's own name of the kernel.
    params : KernelParams or CollectiveParams
        The values.
    log_sd : float
        Spread of single shapes around the form, standard deviation of the logarithm, [-]
    part_log_sd : float
        Further spread when carried to a part that was not measured; 0 for a part's own fit, [-]
    rows_low, rows_high : float
        Range of rows that was fitted, [-]
    median, p90 : float
        Absolute relative error on shapes that were not fitted, [-]
    points : int
        Shapes in the table, [-]
    pooled : bool
        Whether this is a prior from other parts.
    """

    kernel: str
    engine: str
    precision: str
    backend: str
    params: KernelParams | CollectiveParams
    log_sd: float
    part_log_sd: float
    rows_low: float
    rows_high: float
    median: float
    p90: float
    points: int
    pooled: bool

    @property
    def release(self) -> tuple[int, ...]:
        """Version of the engine whose kernels were measured; empty for a prior."""
        return tuple(int(number) for number in re.findall(r"\d+", self.engine.partition(" ")[2]))

    @property
    def carries_all(self) -> bool:
        """Whether an expert kernel moves the rows of pairs of other ranks too; see `carries_all`."""
        return carries_all(self.backend)


def carries_all(backend: str) -> bool:
    """Return whether an expert kernel moves the rows of all pairs, also of those that belong to other ranks.

    Parameters
    ----------
    backend : str
        Name of the kernel.

    Returns
    -------
    bool
        True for Triton and Marlin, which mask foreign pairs; CUTLASS and TensorRT-LLM kernels drop them.

    Examples
    --------
    >>> carries_all("sglang_fused_moe_triton"), carries_all("sglang_flashinfer_trtllm_moe")
    (True, False)
    """
    return "triton" in backend or "marlin" in backend


_PARAMS = {"all-reduce": CollectiveParams}
_HEAD = ("kernel", "engine", "precision", "backend")
_TAIL = ("log_sd", "part_log_sd", "rows_low", "rows_high", "median", "p90", "points")


def read_fit(row: list[Any], *, pooled: bool) -> KernelFit:
    """Return a fit from its row in the file: names, then parameters in the order of their class, then the quality.

    Parameters
    ----------
    row : list
        A row of `fits`.
    pooled : bool
        Whether the file holds priors.

    Returns
    -------
    KernelFit
        The fit.

    Examples
    --------
    >>> row = ["gemm", "vllm", "bf16", "torch", [3e-6, 0.8, 0.7, 0.0, 5.0, 0.0, 1.0, 3.0, 0.0],
    ...        [0.1, 0.0, 1, 32768, 0.07, 0.2, 35742]]
    >>> read_fit(row, pooled=False).params.bandwidth
    0.8
    """
    kind = _PARAMS.get(row[0], KernelParams)
    head, tail = dict(zip(_HEAD, row[:4], strict=True)), dict(zip(_TAIL, row[5], strict=True))
    return KernelFit(**head, **tail, params=kind(*row[4]), pooled=pooled)


def fit_row(fit: KernelFit) -> list[Any]:
    """Return the row of a file that `read_fit` reads back.

    Parameters
    ----------
    fit : KernelFit
        The fit.

    Returns
    -------
    list
        The row.
    """
    values = [getattr(fit.params, field.name) for field in fields(fit.params)]
    return [*(getattr(fit, name) for name in _HEAD), values, [getattr(fit, name) for name in _TAIL]]


@cache
def kernel_fits(accelerator: str) -> tuple[KernelFit, ...]:
    """Return the fits of one part; empty for a part whose kernels nobody measured.

    Parameters
    ----------
    accelerator : str
        Name in the catalogue, or ``priors`` for the pooled values of all parts.

    Returns
    -------
    tuple of KernelFit
        The fits, as they stand in the file.

    Raises
    ------
    SpecError
        If the file has no fits.

    Examples
    --------
    >>> kernel_fits("no-such-part")
    ()
    >>> len(kernel_fits("h200-sxm")) > 10
    True
    """
    file = data_folder("calibration") / "fits" / "kernels" / f"{accelerator}.toml"
    if not file.is_file():
        return ()
    # The rows are written so that TOML and JSON read them alike, and JSON is read fifty times faster.
    _, marker, rows = read_text(file).partition("\nfits = ")
    if not marker:
        raise SpecError("has no fits; run `glmplan calibrate kernels`", file=file)
    return tuple(read_fit(row, pooled=accelerator == "priors") for row in json.loads(rows))


def _last(releases: Iterable[tuple[int, ...]], release: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The newest release that is no newer than the one asked for, else the oldest; of no release the newest."""
    found = sorted(set(releases))
    if not found:
        return None
    before = [one for one in found if release is None or one[: len(release)] <= release]
    return before[-1] if before else found[0]


@lru_cache(maxsize=1024)
def kernel_release(accelerator: str, engine: str, release: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return the release whose kernels stand for one of an engine: deployments with the same have the same kernels.

    Parameters
    ----------
    accelerator : str
        Name in the catalogue.
    engine : str
        ``vllm``, ``sglang`` or ``trtllm``.
    release : tuple of int or None
        The release; None where nobody says, [-]

    Returns
    -------
    tuple of int or None
        The newest measured release that is no newer, else the oldest; of no release the newest; None where none was
        measured, [-]

    Examples
    --------
    >>> kernel_release("b200-sxm", "vllm", (0, 9)) <= kernel_release("b200-sxm", "vllm", None)
    True
    """
    return _last((f.release for f in kernel_fits(accelerator) if f.engine.split()[0] == engine), release)


def find_kernel_fit(
    accelerator: str,
    kernel: str,
    *,
    precision: str,
    engine: str,
    release: tuple[int, ...] | None = None,
    family: str | None = None,
    backend: str = "",
) -> KernelFit | None:
    """Return the best fit there is: the part's own, by this engine or another, then its family's, then all parts'.

    Parameters
    ----------
    accelerator : str
        Name in the catalogue.
    kernel : str
        Class of kernel.
    precision : str
        Weight format, KV format for attention, or both joined by ``+`` for whole blocks; a block measured with another
        KV format is better than none.
    engine : str
        ``vllm``, ``sglang`` or ``trtllm``.
    release : tuple of int, optional
        Its release: of several measured, the newest that is no newer than this; the newest of all when not given, [-]
    family : str, optional
        Compute capability without the minor number (``"9"``, ``"10"``, ``"12"``), to prefer its prior.
    backend : str, optional
        Part of the kernel's name that is preferred (``"triton"``, ``"deepep_ll"``); else the engine's fullest table.

    Returns
    -------
    KernelFit or None
        The fit; `pooled` says that it is a prior. None if nothing like it was ever measured.

    Examples
    --------
    >>> find_kernel_fit("h200-sxm", "gemm", precision="bf16", engine="vllm").pooled
    False
    >>> find_kernel_fit("rtx-4090", "gemm", precision="bf16", engine="vllm", family="8").pooled
    True
    """
    weights = precision.split("+")[0]

    def closeness(fit: KernelFit) -> tuple[bool, bool]:
        return fit.precision != precision, backend not in fit.backend

    def wanted(fits: tuple[KernelFit, ...]) -> list[KernelFit]:
        same = [f for f in fits if f.kernel == kernel and f.precision.split("+")[0] == weights]
        return sorted(same, key=closeness)

    own, priors = wanted(kernel_fits(accelerator)), wanted(kernel_fits("priors"))
    by_engine = [f for f in own if f.engine.split()[0] == engine]
    if by_engine:
        best = closeness(by_engine[0])
        alike = [f for f in by_engine if closeness(f) == best]
        last = _last((f.release for f in alike), release)
        by_engine = [f for f in alike if f.release == last]
    by_family = [f for f in priors if f.engine == f"cc{family}"]
    return next(iter(by_engine + own + by_family + [f for f in priors if f.engine == "*"]), None)
