"""Measured all-reduces of the installed `aisimulate` package."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from glmplan.calibrate.kernels.tables import read_tables

__all__ = ["AllReduceTable", "all_reduces"]


@dataclass(frozen=True, slots=True)
class AllReduceTable:
    """Measured all-reduces of one engine or library.

    Attributes
    ----------
    engine, backend : str
        Names with the version.
    bytes, ranks, seconds : ndarray
        Size of the tensor [B], ranks [-], measured time [s]
    """

    engine: str
    backend: str
    bytes: np.ndarray
    ranks: np.ndarray
    seconds: np.ndarray


def all_reduces(root: Path, part: str) -> Iterator[AllReduceTable]:
    """Read the all-reduce tables of one part: the engines' own kernels inside CUDA graphs, and NCCL or oneCCL.

    Parameters
    ----------
    root : Path
        Folder from `package_root`.
    part : str
        Folder of the part, as `parts_in` names it.

    Yields
    ------
    AllReduceTable
        One for each engine or library. Sizes in the tables are elements of two bytes.
    """
    for engine, kernel in (
        ("vllm", "custom_allreduce"),
        ("sglang", "custom_allreduce"),
        ("trtllm", "custom_allreduce"),
        ("nccl", "nccl"),
        ("oneccl", "oneccl"),
    ):
        for table, version in read_tables(root, part, "comm", engine, kernel):
            keep = np.array(["all_reduce" in name for name in table["op_name"].astype(str)])
            keep &= np.asarray(table["num_gpus"]) > 1
            if "nccl_dtype" in table:
                keep &= table["nccl_dtype"].astype(str) == "half"
            backends = np.asarray(table["backend" if "backend" in table else "kernel_source"]).astype(str)
            graph = np.array(["graph" in name for name in backends])
            keep &= graph | (not graph.any())
            if not keep.any():
                continue
            yield AllReduceTable(
                engine=f"{engine} {version}",
                backend="+".join(sorted(set(backends[keep]))),
                bytes=2.0 * table["message_size"][keep].astype(float),
                ranks=table["num_gpus"][keep].astype(float),
                seconds=table["latency"][keep].astype(float) * 1e-3,
            )
