"""Return kernel times of the package `aisimulate` as work and seconds.

Only kernel tables are read (`systems/data/<part>/<family>/<engine>/<version>/<kernel>_perf.parquet`), nothing
end-to-end. They were checked against physics; left out are:

- a "balanced" expert table of a router with expert groups (DeepSeek-V3's shape): its artificial routing breaks ties
  towards few experts, and the stated bytes would exceed the memory bandwidth;
- artificial power-law routing, which does not record the experts used; where a table has no other rows, those of one
  rank are read as random routing;
- matrices under 256 wide: no language model has them, and they measure the launch only;
- tables whose fastest kernel takes more than 40 µs where other engines take 5: the host was timed.

Tables of kernels with a state cover the gated delta rule (Qwen3.5, Qwen3-Next), Kimi Delta Attention (Kimi-K3,
GLM-5.3-Flash; a gate per key channel instead of per head), manifold-constrained hyper-connections (DeepSeek-V4,
GLM-5.3-Flash; read and write several residual streams around a block) and the token exchange between expert-parallel
ranks.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.catalog.engines.kernels import attention_rule
from glmplan.catalog.entries.accelerators import accelerator_aliases, accelerator_names
from glmplan.costs.kernels.counts import (
    Indexer,
    LatentBlock,
    attention_decode_work,
    attention_prefill_work,
    convolution_work,
    exchange_work,
    expert_work,
    gemm_work,
    latent_decode_work,
    latent_prefill_work,
    mixing_work,
    recurrent_decode_work,
    recurrent_prefill_work,
    sparse_latent_work,
    touched_experts,
)
from glmplan.costs.kernels.utilisation import KernelWork, carries_all
from glmplan.errors import SpecError

__all__ = [
    "FORMATS",
    "KV_BYTES",
    "PACKAGE",
    "TABLES",
    "AllReduceTable",
    "Campaign",
    "Rows",
    "Table",
    "all_reduces",
    "attention_groups",
    "block_rows",
    "campaigns",
    "decode_attention_rows",
    "expert_rows",
    "gemm_rows",
    "grouped",
    "latent_decode_rows",
    "latent_prefill_rows",
    "package_root",
    "part_named",
    "parts_in",
    "prefill_attention_rows",
    "read_tables",
    "readable",
    "sample",
    "state_campaigns",
    "take",
]


#: read as data: installed without its dependencies
PACKAGE = "aisimulate"
_MODULE = "aisimulate_core"
#: share of the rows of the largest version that a version must have [-]
_FULL = 0.6

#: dtype of the package → format, stored bytes, bytes in the product, compute precision
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
#: experts of the Nemotron 3 models, with squared ReLU and no gate: inner width, experts per token
_UNGATED = ((1856, 6), (2688, 22), (5120, 22))
_MOST = 1600  # rows of a table that are kept: half fitted, half tested

Table = dict[str, Any]
#: format, backend, compute precision, sampled columns, rows of the table, work, cached bytes
Rows = tuple[str, str, str, Table, int, KernelWork, np.ndarray]


@dataclass(frozen=True, slots=True)
class Campaign:
    """One table at one precision: work and time of each row."""

    part: str
    kernel: str
    engine: str  # with its version
    precision: str
    backend: str
    compute: str  # precision of the peak rate; `link` if bytes cross the rank's link instead of its memory
    work: KernelWork
    seconds: np.ndarray  # measured
    resident: np.ndarray  # bytes that a repeated benchmark finds in the cache
    points: int  # rows of the whole table


def part_named(folder: str) -> str | None:
    """Return the catalog name of a folder of tables; None if unknown.

    Examples
    --------
    >>> part_named("a100_sxm"), part_named("b60"), part_named("q1000")
    ('a100-80gb-sxm', 'arc-pro-b60', None)
    """
    name = folder.replace("_", "-").lower()
    accelerator = accelerator_aliases().get(name, name)
    return accelerator if accelerator in accelerator_names() else None


def parts_in(root: Path) -> dict[str, str | None]:
    """Return folder → catalog name (None if unknown), sorted by folder."""
    folders = sorted(folder for folder in root.glob("*") if any(folder.glob("*/*/*/*_perf.parquet")))
    return {folder.name: part_named(folder.name) for folder in folders}


def readable() -> None:
    """Raise unless the packages that read the tables are installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise SpecError("what reads kernel tables is missing: pip install 'glmplan[kernels]'")


def package_root() -> Path:
    """Return the folder of the package's kernel tables."""
    spec = importlib.util.find_spec(_MODULE)
    if spec is None or not spec.submodule_search_locations or importlib.util.find_spec("pyarrow") is None:
        raise SpecError(
            "the kernel tables are missing: pip install 'glmplan[kernels]', then name their wheel with --wheel, or"
            f" pip install --no-deps --pre {PACKAGE}"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "systems" / "data"


def sample(count: int, most: int) -> np.ndarray:
    """Return at most `most` of `count` indices, scattered and reproducible.

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
    """Yield columns and version of a table, the oldest version first.

    Only versions with 60 % of the rows of the largest one; builds without a version number cannot be ordered and are
    left out.
    """
    import pyarrow.parquet as pq

    folders = [folder for folder in (root / part / family / engine).glob("*") if not folder.name.startswith("dev")]
    files = [folder / f"{kernel}_perf.parquet" for folder in sorted(folders, key=_version)]
    counts = {file: pq.ParquetFile(file).metadata.num_rows for file in files if os.path.isfile(file)}
    for file, rows in counts.items():
        if rows >= _FULL * max(counts.values()):
            table = pq.read_table(file)
            yield {name: table[name].to_numpy() for name in table.column_names}, file.parent.name


def take(table: Table, mask: np.ndarray) -> tuple[Table, int]:
    """Return a sample of the chosen rows with a positive time, and the count."""
    chosen = np.flatnonzero(mask & (table["latency"].astype(float) > 0))
    sampled = chosen[sample(len(chosen), _MOST)]
    return {name: _number(values[sampled]) for name, values in table.items()}, len(chosen)


def _number(values: np.ndarray) -> np.ndarray:
    return values.astype(float) if np.issubdtype(values.dtype, np.number) else values


def grouped(table: Table, *keys: str) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """Yield each combination of key values, sorted, with its row mask."""
    labels = list(zip(*(table[key].astype(str) for key in keys), strict=True))
    joined = np.array(["\x1f".join(label) for label in labels], dtype=object)
    for label in sorted(set(joined)):
        yield tuple(label.split("\x1f")), joined == label


def gemm_rows(table: Table) -> Iterator[Rows]:
    """Yield the rows of a matrix-product table by format and backend."""
    for (dtype, backend), mask in grouped(table, "gemm_dtype", "kernel_source"):
        if dtype not in FORMATS or dtype == "int4_wo":
            continue
        t, points = take(table, mask & (table["n"] >= 256) & (table["k"] >= 256))
        name, stored, inside, compute = FORMATS[dtype]
        work = gemm_work(t["m"], t["n"], t["k"], weight_bytes=stored, activation_bytes=inside)
        yield name, backend, compute, t, points, work, t["n"] * t["k"] * stored


def expert_rows(table: Table) -> Iterator[Rows]:
    """Yield the rows of a grouped expert table by format and backend."""
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
    """Yield format, backend, sampled columns and row count of a table."""
    for (dtype, backend), mask in grouped(table, dtype_column, "kernel_source"):
        if dtype in KV_BYTES:
            yield dtype, backend, *take(table, mask & usable)


def _kv_heads(t: Table) -> np.ndarray:
    """Return the KV heads; tables write 0 if every head has its own [-]"""
    kv_heads = t["num_key_value_heads"]
    result: np.ndarray = kv_heads + t["num_heads"] * (kv_heads == 0)
    return result


def decode_attention_rows(table: Table) -> Iterator[Rows]:
    """Yield the rows of a decode-attention table by format and backend."""
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
    """Yield the rows of a prefill-attention table by format and backend."""
    window = table.get("window_size", np.zeros(len(table["latency"])))
    usable = (window == 0) & (table["isl"] >= 64) & (table["head_dim"] >= 64)
    for dtype, backend, t, points in attention_groups(table, "attn_dtype", usable):
        shape = {"heads": t["num_heads"], "kv_heads": _kv_heads(t), "head_dim": t["head_dim"]}
        work = attention_prefill_work(t["batch_size"], t["isl"], prefix=t["step"], **shape)
        yield FORMATS[dtype][0], backend, FORMATS[dtype][3], t, points, work, np.full(len(t["isl"]), np.inf)


@dataclass(frozen=True, slots=True)
class AllReduceTable:
    """Measured all-reduces of one engine or library."""

    engine: str
    backend: str
    bytes: np.ndarray  # tensor size
    ranks: np.ndarray
    seconds: np.ndarray


def all_reduces(root: Path, part: str) -> Iterator[AllReduceTable]:
    """Yield the all-reduce tables of one accelerator folder.

    They cover engine kernels inside CUDA graphs, and NCCL or oneCCL. Sizes in the tables are elements of two bytes.
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


def latent_decode_rows(table: Table) -> Iterator[Rows]:
    """Yield the rows of an absorbed MLA decode table by format and backend."""
    for dtype, backend, t, points in attention_groups(table, "kv_cache_dtype", table["step"] >= 63):
        splits = attention_rule("sglang" if backend == "triton" else "", backend).splits
        work = latent_decode_work(
            t["batch_size"], t["step"] + 1, heads=t["num_heads"], kv_bytes=KV_BYTES[dtype], splits=splits
        )
        yield FORMATS[dtype][0], backend, "bf16", t, points, work, np.asarray(work.bytes)


def latent_prefill_rows(table: Table) -> Iterator[Rows]:
    """Yield the rows of an MLA prefill table by format and backend."""
    for dtype, backend, t, points in attention_groups(table, "mla_dtype", table["isl"] >= 64):
        work = latent_prefill_work(t["batch_size"], t["isl"], heads=t["num_heads"], prefix=t["step"])
        yield FORMATS[dtype][0], backend, FORMATS[dtype][3], t, points, work, np.full(len(t["isl"]), np.inf)


def _projections(t: Table, *, indexer: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the rank's MLA weights, indexer heads and FLOP per expanded pair.

    Shapes are from config.json.
    """
    glm = np.array(["Glm" in name for name in t["architecture"].astype(str)], dtype=bool)
    hidden, query = np.where(glm, 6144, 7168), np.where(glm, 2048, 1536)
    nope, value, index = np.where(glm, 192, 128), np.where(glm, 256, 128), np.where(glm, 32, 64)
    heads = t["num_heads"]
    latent = hidden * (query + 576) + heads * (query * (nope + 64) + 512 * (nope + value) + value * hidden)
    scorer = query * index * 128 + hidden * (128 + index)
    return latent + indexer * scorer, index.astype(float), 2.0 * (nope + 64 + value)


def block_rows(decode: bool, sparse: bool) -> Callable[[Table], Iterator[Any]]:
    """Return the reader of whole MLA or DSA blocks with their projections."""

    def rows(table: Table) -> Iterator[Rows]:
        for (dtype, kv, backend), mask in grouped(table, "gemm_type", "kv_cache_dtype", "kernel_source"):
            if dtype not in FORMATS or kv not in KV_BYTES:
                continue
            t, points = take(table, mask & ((table["step"] >= 63) | (not decode)))
            runs = np.full(len(t["latency"]), float(sparse and "skip_indexer" not in backend))
            weights, index_heads, expanded = _projections(t, indexer=runs)
            dense = not decode and (not sparse or "dense_mha" in backend)
            name, stored, _, compute = FORMATS[dtype]
            block = LatentBlock(
                heads=t["num_heads"],
                projection_weights=weights,
                weight_bytes=stored,
                kv_token_bytes=1152.0 if kv == "bfloat16" else 656.0 if sparse else 576.0,
                pair_flop=expanded if dense else 2.0 * (2 * 512 + 64),
            )
            indexer = Indexer(runs=runs, heads=index_heads, top_k=2048.0 if sparse and not dense else np.inf)
            tokens = np.ones_like(t["step"]) if decode else t["isl"]
            work = sparse_latent_work(t["batch_size"], tokens, prefix=t["step"], block=block, indexer=indexer)
            name = f"{name}+{FORMATS[kv][0]}"
            yield name, backend, compute, t, points, work, np.full(len(runs), np.inf)

    return rows


_LEAST_DELTA, _LEAST_KIMI, _LEAST_MIXING, _LEAST_EXCHANGE = 60, 30, 30, 24
#: kernels of Kimi Delta Attention alone: for `fused_kda_decode` and similar ones the table does not say if they include
#: the convolution
_KIMI_DECODE = ("fused_recurrent_kda", "fused_recurrent_kda_packed_decode", "fused_sigmoid_gating_delta_rule_update")
_KIMI_PREFILL = ("chunk_kda", "chunk_kda_with_fused_gate", "flashkda_fwd")

#: the table's names of a site's kernels; `expand` and `contract` run before the first layer and after the last
_MIXING = {"pre": "read", "post": "write", "fused_post_pre": "both"}


def _in_bf16(part: str, named: tuple[str, str, str], work: KernelWork, seconds: np.ndarray, points: int) -> Campaign:
    kernel, engine, backend = named
    return Campaign(
        part=part_named(part) or part, kernel=kernel, engine=engine, precision="bf16", backend=backend, compute="bf16",
        work=work, seconds=seconds, resident=np.asarray(work.bytes), points=points,
    )  # fmt: skip


def _delta_rule(root: Path, part: str) -> Iterator[Campaign]:
    for engine in ("vllm", "sglang", "trtllm"):
        for table, version in read_tables(root, part, "linear_attention", engine, "gdn"):
            for (phase, backend), mask in grouped(table, "phase", "kernel_source"):
                t, points = take(table, mask)
                if points < _LEAST_DELTA:
                    continue
                decode = phase == "generation"
                tokens = np.ones(len(t["seq_len"])) if decode else t["seq_len"]
                shape = {"key_heads": t["num_k_heads"], "value_heads": t["num_v_heads"]}
                shape |= {"key_dim": t["head_k_dim"], "value_dim": t["head_v_dim"]}
                if "conv1d" in backend:
                    kernel = "convolution-decode" if decode else "convolution-prefill"
                    channels = 2 * t["num_k_heads"] * t["head_k_dim"] + t["num_v_heads"] * t["head_v_dim"]
                    work = convolution_work(t["batch_size"], tokens, channels=channels)
                elif decode:
                    kernel, work = "recurrent-decode", recurrent_decode_work(t["batch_size"], **shape)
                else:
                    kernel, work = "recurrent-prefill", recurrent_prefill_work(t["batch_size"], tokens, **shape)
                yield _in_bf16(part, (kernel, f"{engine} {version}", backend), work, t["latency"] * 1e-3, points)


def _kimi_delta(root: Path, part: str) -> Iterator[Campaign]:
    for engine in ("vllm", "sglang"):
        for table, version in read_tables(root, part, "kda", engine, "kda"):
            # steps of one token and steps that verify drafts run the same kernel
            for (backend,), mask in grouped(table, "kernel_source"):
                decode, prefill = backend in _KIMI_DECODE, backend in _KIMI_PREFILL
                phase = table["phase"] != "context" if decode else table["phase"] == "context"
                t, points = take(table, mask & phase)
                if points < _LEAST_KIMI or not (decode or prefill):
                    continue
                shape = {"key_heads": t["num_k_heads"], "value_heads": t["num_v_heads"]}
                shape |= {"key_dim": t["head_k_dim"], "value_dim": t["head_v_dim"]}
                if decode:
                    kernel, work = "kda-decode", recurrent_decode_work(t["batch_size"], queries=t["seq_len"], **shape)
                else:
                    kernel, work = "kda-prefill", recurrent_prefill_work(t["batch_size"], t["seq_len"], **shape)
                yield _in_bf16(part, (kernel, f"{engine} {version}", backend), work, t["latency"] * 1e-3, points)


def _mixing(root: Path, part: str) -> Iterator[Campaign]:
    for engine in ("vllm", "sglang", "trtllm"):
        for table, version in read_tables(root, part, "mhc", engine, "mhc_module"):
            # the token count selects the kernel of a site: one table of the engine's behaviour
            for (name,), mask in grouped(table, "op_name"):
                t, points = take(table, mask)
                if name not in _MIXING or points < _LEAST_MIXING:
                    continue
                work = mixing_work(t["num_tokens"], streams=t["hc_mult"], hidden=t["hidden_size"], part=_MIXING[name])
                named = (f"hyper-{_MIXING[name]}", f"{engine} {version}", f"mhc_{name}")
                yield _in_bf16(part, named, work, t["latency"] * 1e-3 / t["num_sites"], points)


def _exchange(root: Path, part: str) -> Iterator[Campaign]:
    for engine in ("vllm", "trtllm"):
        for table, version in read_tables(root, part, "comm", engine, "moe_a2a"):
            for (backend, phase, dtype), mask in grouped(table, "comm_backend", "phase", "comm_dtype"):
                t, points = take(table, mask & (table["node_num"] == 1))
                sent = {"default": "bfloat16", "fp4": "nvfp4"}.get(dtype, dtype)
                if points < _LEAST_EXCHANGE or sent not in FORMATS:
                    continue
                work = exchange_work(
                    t["num_tokens"],
                    ranks=t["ep_size"],
                    hidden=t["hidden_size"],
                    top_k=t["topk"],
                    value_bytes=FORMATS[sent][2] if phase == "dispatch" else 2.0,  # results return in BF16
                )
                yield Campaign(
                    part=part_named(part) or part,
                    kernel=f"expert-{phase}",
                    engine=f"{engine} {version}",
                    precision=FORMATS[sent][0],
                    backend=backend,
                    compute="link",
                    work=work,
                    seconds=t["latency"] * 1e-6,  # this table is in microseconds
                    resident=np.full(len(t["latency"]), np.inf),
                    points=points,
                )


def state_campaigns(root: Path, part: str) -> Iterator[Campaign]:
    """Yield the tables of state, residual-stream and expert-exchange kernels.

    One for each class, engine, format and backend with enough rows; the exchange is inside one node.
    """
    yield from _delta_rule(root, part)
    yield from _kimi_delta(root, part)
    yield from _mixing(root, part)
    yield from _exchange(root, part)


_LEAST = 200

#: class → family folder, table, reader
TABLES: dict[str, tuple[str, str, Callable[[Table], Iterator[Any]]]] = {
    "gemm": ("gemm", "gemm", gemm_rows),
    "experts": ("moe", "moe", expert_rows),
    "decode-attention": ("attention", "generation_attention", decode_attention_rows),
    "prefill-attention": ("attention", "context_attention", prefill_attention_rows),
    "latent-decode": ("mla", "generation_mla", latent_decode_rows),
    "latent-prefill": ("mla", "context_mla", latent_prefill_rows),
    "latent-decode-block": ("mla", "mla_generation_module", block_rows(decode=True, sparse=False)),
    "latent-prefill-block": ("mla", "mla_context_module", block_rows(decode=False, sparse=False)),
    "sparse-decode-block": ("sparse_attention", "dsa_generation_module", block_rows(decode=True, sparse=True)),
    "sparse-prefill-block": ("sparse_attention", "dsa_context_module", block_rows(decode=False, sparse=True)),
}


def campaigns(root: Path, part: str) -> Iterator[Campaign]:
    """Yield every kernel table of one accelerator folder with enough rows."""
    for kernel, (family, name, rows) in TABLES.items():
        for engine in ("vllm", "sglang", "trtllm"):
            for table, version in read_tables(root, part, family, engine, name):
                for precision, backend, compute, t, points, work, resident in rows(table):
                    if len(t["latency"]) < _LEAST:
                        continue
                    variant = "shared-" if "skip_indexer" in backend else "dense-" if "dense_mha" in backend else ""
                    yield Campaign(
                        part=part_named(part) or part,
                        kernel=variant + kernel,
                        engine=f"{engine} {version}",
                        precision=precision,
                        backend=backend,
                        compute=compute,
                        work=work,
                        seconds=t["latency"] * 1e-3,
                        resident=resident,
                        points=points,
                    )
    yield from state_campaigns(root, part)
