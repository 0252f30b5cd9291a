"""Measured kernel times of the installed `aisimulate` package, as work and seconds.

Only the kernel tables are opened (`systems/data/<part>/<family>/<engine>/<version>/<kernel>_perf.parquet`); nothing
end-to-end. What each table means was checked against physics, and rows that cannot mean what they say are left out:

- a "balanced" expert table of a router with expert groups (DeepSeek-V3's shape): the ties of its artificial routing are
  broken towards few experts, so that the bytes read would need more than the part's bandwidth;
- artificial power-law routing, which does not record the experts it touched; where a table has no other rows, those of
  one rank are used as if tokens chose at random;
- matrices under 256 wide: nothing in a language model is that small, and they only measure the launch;
- tables whose fastest kernel takes more than 40 µs where other engines take 5: the host was timed, not the part.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.errors import SpecError
from glmplan.facts.catalogue.accelerators import accelerator_aliases, accelerator_names
from glmplan.facts.engines.kernels import attention_rule
from glmplan.physics.kernels.counts import (
    attention_decode_work,
    attention_prefill_work,
    expert_work,
    gemm_work,
    touched_experts,
)
from glmplan.physics.kernels.fits import carries_all
from glmplan.physics.kernels.utilisation import KernelWork

__all__ = [
    "FORMATS",
    "KV_BYTES",
    "PACKAGE",
    "Campaign",
    "Rows",
    "Table",
    "attention_groups",
    "decode_attention_rows",
    "expert_rows",
    "gemm_rows",
    "grouped",
    "package_root",
    "part_named",
    "parts_in",
    "prefill_attention_rows",
    "read_tables",
    "readable",
    "sample",
    "take",
]

#: read as data: it is installed without its dependencies
PACKAGE = "aisimulate"
_MODULE = "aisimulate_core"
#: a version is read whose table has at least this share of the rows of the fullest one [-]
_FULL = 0.6

#: the package's dtype → format, stored bytes, bytes inside the product, precision that computes
FORMATS = {
    "bfloat16": ("bf16", 2.0, 2.0, "bf16"),
    "fp8": ("fp8", 1.0, 1.0, "fp8"),
    "fp8_block": ("fp8-block", 1.0 + 4 / 128**2, 1.0 + 4 / 128, "fp8"),
    "nvfp4": ("nvfp4", 0.5625, 0.5625, "fp4"),
    "int4_wo": ("int4", (4 + 20 / 128) / 8, 2.0, "bf16"),
    "w4a16_mxfp4": ("mxfp4", 0.53125, 2.0, "bf16"),
    "w4a8_mxfp4_mxfp8": ("mxfp4-a8", 0.53125, 1.03125, "fp8"),
}

KV_BYTES = {"bfloat16": 2.0, "fp8": 1.0}
#: experts of the Nemotron 3 models, whose squared ReLU needs no gate: inner width, experts for each token
_UNGATED = ((1856, 6), (2688, 22), (5120, 22))
_MOST = 1600  # rows kept of a table: half are fitted, half are tested

Table = dict[str, Any]
#: format, backend, precision that computes, sampled columns, rows of the table, work, bytes kept in the cache
Rows = tuple[str, str, str, Table, int, KernelWork, np.ndarray]


@dataclass(frozen=True, slots=True)
class Campaign:
    """One table for one precision: what was done and how long it took.

    Attributes
    ----------
    part, kernel, engine, precision, backend, compute : str
        Names; `engine` ends in its version, `compute` is the precision of the peak that applies, ``link`` where the
        bytes cross the rank's link instead of its memory.
    work : KernelWork
        The work of each row.
    seconds : ndarray
        Measured time, [s]
    resident : ndarray
        Bytes that a repeated benchmark finds again in the cache, [B]
    points : int
        Rows of the whole table, [-]
    """

    part: str
    kernel: str
    engine: str
    precision: str
    backend: str
    compute: str
    work: KernelWork
    seconds: np.ndarray
    resident: np.ndarray
    points: int


def part_named(folder: str) -> str | None:
    """Name in the catalogue of a folder of tables, by the name of a part or one of its aliases.

    Parameters
    ----------
    folder : str
        Name of the folder, such as ``h200_sxm``.

    Returns
    -------
    str or None
        The accelerator; None where the catalogue has none of that name.

    Examples
    --------
    >>> part_named("a100_sxm"), part_named("b60"), part_named("q1000")
    ('a100-80gb-sxm', 'arc-pro-b60', None)
    """
    name = folder.replace("_", "-").lower()
    found = accelerator_aliases().get(name, name)
    return found if found in accelerator_names() else None


def parts_in(root: Path) -> dict[str, str | None]:
    """Return the parts of which there are tables.

    Parameters
    ----------
    root : Path
        Folder from `package_root`.

    Returns
    -------
    dict
        Folder → name in the catalogue, sorted by folder; None where the catalogue does not have the part.
    """
    folders = sorted(folder for folder in root.glob("*") if any(folder.glob("*/*/*/*_perf.parquet")))
    return {folder.name: part_named(folder.name) for folder in folders}


def readable() -> None:
    """Raise unless what reads the tables is installed.

    Raises
    ------
    SpecError
        If `pyarrow` is missing.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise SpecError("what reads kernel tables is missing: pip install 'glmplan[kernels]'")


def package_root() -> Path:
    """Return the folder of the package's kernel tables.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    SpecError
        If the package or `pyarrow` is not installed.
    """
    spec = importlib.util.find_spec(_MODULE)
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("pyarrow") is None:
        raise SpecError(
            "the kernel tables are missing: pip install 'glmplan[kernels]', then name their wheel with --wheel, or"
            f" pip install --no-deps --pre {PACKAGE}"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "systems" / "data"


def sample(count: int, most: int) -> np.ndarray:
    """Return at most `most` of `count` indices, scattered over the table, the same ones every time.

    Parameters
    ----------
    count, most : int
        Rows there are, rows wanted, [-]

    Returns
    -------
    ndarray
        Indices in scattered order, [-]

    Examples
    --------
    >>> sample(5, 3).tolist()
    [0, 2, 4]
    """
    scattered = np.argsort((np.arange(count, dtype=np.uint64) * 2654435761) % 2**32, kind="stable")
    return scattered[:most]


def _version(folder: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", folder.name))


def read_tables(root: Path, part: str, family: str, engine: str, kernel: str) -> Iterator[tuple[Table, str]]:
    """Read every version of a table that holds at least 60 % of the rows of the fullest one.

    Parameters
    ----------
    root : Path
        Folder from `package_root`.
    part, family, engine, kernel : str
        Names of the folders and of the table.

    Yields
    ------
    tuple of dict and str
        Columns and version, the oldest first. Builds without a number of their own cannot be ordered and are left out.
    """
    import pyarrow.parquet as pq

    folders = [folder for folder in (root / part / family / engine).glob("*") if not folder.name.startswith("dev")]
    files = [folder / f"{kernel}_perf.parquet" for folder in sorted(folders, key=_version)]
    counts = {file: pq.ParquetFile(file).metadata.num_rows for file in files if file.is_file()}
    for file, rows in counts.items():
        if rows >= _FULL * max(counts.values()):
            table = pq.read_table(file)
            yield {name: table[name].to_numpy() for name in table.column_names}, file.parent.name


def take(table: Table, mask: np.ndarray) -> tuple[Table, int]:
    """Return a sample of the chosen rows whose time is positive, and how many such rows there are.

    Parameters
    ----------
    table : dict
        Columns.
    mask : ndarray
        Rows to choose from, [-]

    Returns
    -------
    dict
        The sampled columns.
    int
        Rows chosen from, [-]
    """
    found = np.flatnonzero(mask & (table["latency"].astype(float) > 0))
    kept = found[sample(len(found), _MOST)]
    return {name: _number(values[kept]) for name, values in table.items()}, len(found)


def _number(values: np.ndarray) -> np.ndarray:
    return values.astype(float) if np.issubdtype(values.dtype, np.number) else values


def grouped(table: Table, *keys: str) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """Yield each combination of the keys' values, sorted, with the mask of its rows.

    Parameters
    ----------
    table : dict
        Columns.
    *keys : str
        Names of columns.

    Yields
    ------
    tuple of str
        The values.
    ndarray
        The mask of its rows, [-]
    """
    labels = list(zip(*(table[key].astype(str) for key in keys), strict=True))
    joined = np.array(["\x1f".join(label) for label in labels], dtype=object)
    for label in sorted(set(joined)):
        yield tuple(label.split("\x1f")), joined == label


def gemm_rows(table: Table) -> Iterator[Rows]:
    """Yield the rows of a table of products, for each format and backend.

    Parameters
    ----------
    table : dict
        Columns.

    Yields
    ------
    tuple
        Format, backend, precision, sampled columns, points, work and resident bytes.
    """
    for (dtype, backend), mask in grouped(table, "gemm_dtype", "kernel_source"):
        if dtype not in FORMATS or dtype == "int4_wo":
            continue
        t, points = take(table, mask & (table["n"] >= 256) & (table["k"] >= 256))
        name, stored, inside, compute = FORMATS[dtype]
        work = gemm_work(t["m"], t["n"], t["k"], weight_bytes=stored, activation_bytes=inside)
        yield name, backend, compute, t, points, work, t["n"] * t["k"] * stored


def expert_rows(table: Table) -> Iterator[Rows]:
    """Yield the rows of a table of grouped expert products, for each format and backend.

    Parameters
    ----------
    table : dict
        Columns.

    Yields
    ------
    tuple
        Format, backend, precision, sampled columns, points, work and resident bytes.
    """
    grouped_router = (table["num_experts"] == 256) & (table["topk"] == 8) & (table["hidden_size"] == 7168)
    balanced = table["distribution"] == "balanced"
    even = bool(balanced.any())
    random = (table["distribution"] == "power_law_1.01") & (table["moe_ep_size"] == 1)
    usable = (balanced if even else random) & (table["topk"] > 1) & ~grouped_router
    for (dtype, backend), mask in grouped(table, "moe_dtype", "kernel_source"):
        if dtype not in FORMATS:
            continue
        t, points = take(table, mask & usable)
        name, stored, inside, compute = FORMATS[dtype]
        pairs = np.maximum(t["num_tokens"] * t["topk"] / t["moe_ep_size"], 1)
        touched = np.minimum(t["num_experts"] / t["moe_ep_size"], pairs)
        if not even:
            touched = touched_experts(t["num_tokens"], t["num_experts"], t["topk"])
        inner = t["inter_size"] / t["moe_tp_size"]
        ungated = [(t["inter_size"] == width) & (t["topk"] == chosen) for width, chosen in _UNGATED]
        matrices = np.where(np.any(ungated, axis=0) | ("nongated" in backend), 2.0, 3.0)
        work = expert_work(
            tokens=t["num_tokens"],
            experts=t["num_experts"] / t["moe_ep_size"],
            assignments=pairs,
            slots=t["num_tokens"] * t["topk"] if carries_all(backend) else pairs,
            touched=touched,
            hidden=t["hidden_size"],
            inner=inner,
            weight_bytes=stored,
            activation_bytes=inside,
            matrices=matrices,
        )
        yield name, backend, compute, t, points, work, touched * matrices * t["hidden_size"] * inner * stored


def attention_groups(table: Table, dtype_column: str, usable: np.ndarray) -> Iterator[tuple[str, str, Table, int]]:
    """Yield the sampled rows of a table of attention, for each known KV format and backend.

    Parameters
    ----------
    table : dict
        Columns.
    dtype_column : str
        The column that names the format.
    usable : ndarray of bool
        Rows to choose from, [-]

    Yields
    ------
    tuple
        Name of the format in the table, backend, sampled columns, rows chosen from [-].
    """
    for (dtype, backend), mask in grouped(table, dtype_column, "kernel_source"):
        if dtype in KV_BYTES:
            yield dtype, backend, *take(table, mask & usable)


def _kv_heads(t: Table) -> np.ndarray:
    """Heads of keys and values; the tables write 0 where every head has its own, [-]."""
    kv_heads = t["num_key_value_heads"]
    return kv_heads + t["num_heads"] * (kv_heads == 0)


def decode_attention_rows(table: Table) -> Iterator[Rows]:
    """Yield the rows of a table of decode attention, for each format and backend.

    Parameters
    ----------
    table : dict
        Columns.

    Yields
    ------
    tuple
        Format, backend, precision, sampled columns, points, work and resident bytes.
    """
    window = table.get("window_size", np.zeros(len(table["latency"])))
    usable = (window == 0) & (table["step"] >= 63) & (table["head_dim"] >= 64)
    for dtype, backend, t, points in attention_groups(table, "kv_cache_dtype", usable):
        context = t["step"] + 1
        shape = {
            "heads": t["num_heads"],
            "kv_heads": _kv_heads(t),
            "head_dim": t["head_dim"],
            "kv_bytes": KV_BYTES[dtype],
        }
        splits = attention_rule("vllm" if backend.startswith("vllm") else "sglang", backend).splits
        work = attention_decode_work(t["batch_size"], context, **shape, splits=splits)
        yield FORMATS[dtype][0], backend, "bf16", t, points, work, np.asarray(work.bytes)


def prefill_attention_rows(table: Table) -> Iterator[Rows]:
    """Yield the rows of a table of prefill attention, for each format and backend.

    Parameters
    ----------
    table : dict
        Columns.

    Yields
    ------
    tuple
        Format, backend, precision, sampled columns, points, work and resident bytes.
    """
    window = table.get("window_size", np.zeros(len(table["latency"])))
    usable = (window == 0) & (table["isl"] >= 64) & (table["head_dim"] >= 64)
    for dtype, backend, t, points in attention_groups(table, "attn_dtype", usable):
        shape = {"heads": t["num_heads"], "kv_heads": _kv_heads(t), "head_dim": t["head_dim"]}
        work = attention_prefill_work(t["batch_size"], t["isl"], prefix=t["step"], **shape)
        yield FORMATS[dtype][0], backend, FORMATS[dtype][3], t, points, work, np.full(len(t["isl"]), np.inf)
