"""Tables of recurrences with a state, of residual streams, and of the exchange of tokens between expert-parallel ranks.

The gated delta rule (Qwen3.5, Qwen3-Next) and Kimi Delta Attention (Kimi-K3, GLM-5.3-Flash), which forgets by a gate
for each channel of the keys instead of one for each head. Manifold-constrained hyper-connections (DeepSeek-V4,
GLM-5.3-Flash): what reads and writes several residual streams around a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from glmplan.calibrate.kernels.tables import FORMATS, Campaign, grouped, part_named, read_tables, take
from glmplan.physics.kernels.state_counts import (
    convolution_work,
    exchange_work,
    mixing_work,
    recurrent_decode_work,
    recurrent_prefill_work,
)
from glmplan.physics.kernels.utilisation import KernelWork

__all__ = ["state_campaigns"]

_LEAST_DELTA, _LEAST_KIMI, _LEAST_MIXING, _LEAST_EXCHANGE = 60, 30, 30, 24
#: kernels of Kimi Delta Attention alone: of others (`fused_kda_decode` and its like) the table does not say whether
#: they hold the convolution too
_KIMI_DECODE = ("fused_recurrent_kda", "fused_recurrent_kda_packed_decode", "fused_sigmoid_gating_delta_rule_update")
_KIMI_PREFILL = ("chunk_kda", "chunk_kda_with_fused_gate", "flashkda_fwd")

#: what a table calls the three kernels of a site; `expand` and `contract` are before the first layer and after the last
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
            # a step of one token and one that verifies drafted ones run the same kernel
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
            # which kernel a site takes goes by its tokens: one table of what the engine does
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
                    value_bytes=FORMATS[sent][2] if phase == "dispatch" else 2.0,  # results come back in BF16
                )
                yield Campaign(
                    part=part_named(part) or part,
                    kernel=f"expert-{phase}",
                    engine=f"{engine} {version}",
                    precision=FORMATS[sent][0],
                    backend=backend,
                    compute="link",
                    work=work,
                    seconds=t["latency"] * 1e-6,  # this table alone is in microseconds
                    resident=np.full(len(t["latency"]), np.inf),
                    points=points,
                )


def state_campaigns(root: Path, part: str) -> Iterator[Campaign]:
    """Read the tables of kernels with a state, of residual streams and of the expert exchange inside one node.

    Parameters
    ----------
    root : Path
        Folder from `package_root`.
    part : str
        Folder of the part, as `parts_in` names it.

    Yields
    ------
    Campaign
        One for each class, engine, format and backend with enough rows.
    """
    yield from _delta_rule(root, part)
    yield from _kimi_delta(root, part)
    yield from _mixing(root, part)
    yield from _exchange(root, part)
