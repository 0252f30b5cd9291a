"""All kernel tables of one part, class by class."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from glmplan.calibrate.kernels.latent_tables import block_rows, latent_decode_rows, latent_prefill_rows
from glmplan.calibrate.kernels.state_tables import state_campaigns
from glmplan.calibrate.kernels.tables import (
    Campaign,
    Table,
    decode_attention_rows,
    expert_rows,
    gemm_rows,
    part_named,
    prefill_attention_rows,
    read_tables,
)

__all__ = ["TABLES", "campaigns"]

_LEAST = 200

#: class → family folder, table, what makes its work
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
    """Read every kernel table of one part.

    Parameters
    ----------
    root : Path
        Folder from `package_root`.
    part : str
        Folder of the part, as `parts_in` names it.

    Yields
    ------
    Campaign
        One for each class, engine, precision and backend with enough rows.
    """
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
