"""Measure kernels on the GPU at hand and write them as a campaign: GEMM, experts, decode attention, copies, launches.

    python tools/measure_kernels.py --out kernels-mycard.csv          # a CUDA or ROCm GPU, needs torch
    python tools/measure_kernels.py --cpu --out kernels-cpu.csv       # the same shapes, smaller, with NumPy

Each row is one shape: what it computes, the bytes it has to move, and the median time of its repetitions. Operands are
taken in turn from copies that together exceed the cache, because a model never finds a layer's weights there. Without a
GPU the tool says so and ends; that is not an error. Ctrl-C keeps the rows measured so far.
"""

from __future__ import annotations

import argparse
import csv
import io
import operator
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, Protocol

import numpy as np

from glmplan.catalog.files import write_atomically
from glmplan.costs.kernels.counts import attention_decode_work, gemm_work, touched_experts
from glmplan.costs.kernels.utilisation import KernelWork

COLD_BYTES = 512e6  # operands in turn; larger than the cache of any part today
MOST_COPIES = 64


@dataclass(frozen=True, slots=True)
class Row:
    """One measured shape; the header carries the units."""

    kernel: str
    backend: str
    precision: str
    m: int
    n: int
    k: int
    groups: int
    batch: int
    context: int
    heads: int
    kv_heads: int
    head_dim: int
    flop: float
    bytes: float
    time_us: float
    spread_us: float
    repeats: int
    device: str
    software: str


class Device(Protocol):
    """What can run the kernels: matrices are opaque, `time` returns seconds of single calls."""

    name: str
    software: str
    precisions: tuple[str, ...]

    def matrix(self, rows: int, columns: int, precision: str) -> Any: ...
    def product(self, a: Any, b: Any) -> Any: ...
    def batch(self, groups: int, rows: int, columns: int) -> Any: ...
    def attention(self, batch: int, context: int, heads: int, kv_heads: int, head_dim: int) -> tuple[Any, ...]: ...
    def attend(self, query: Any, keys: Any, values: Any) -> Any: ...
    def copy(self, target: Any, source: Any) -> Any: ...
    def time(self, calls: Sequence[Callable[[], Any]], repeats: int) -> list[float]: ...
    def overheads(self) -> Iterator[tuple[str, float]]: ...


class NumpyCpu:
    """The processor, through NumPy: no low precision, no graphs."""

    def __init__(self) -> None:
        self.name = platform.processor() or platform.machine()
        self.software = f"numpy {np.__version__}"
        self.precisions: tuple[str, ...] = ("fp32",)
        self._random = np.random.default_rng(0)

    def matrix(self, rows: int, columns: int, precision: str) -> Any:
        return self._random.random((rows, columns), dtype=np.float32)

    def product(self, a: Any, b: Any) -> Any:
        return a @ b.T

    def batch(self, groups: int, rows: int, columns: int) -> Any:
        return self._random.random((groups, rows, columns), dtype=np.float32)

    def attention(self, batch: int, context: int, heads: int, kv_heads: int, head_dim: int) -> tuple[Any, ...]:
        keys, values = (self.batch(batch * kv_heads, context, head_dim) for _ in range(2))
        return self.batch(batch * kv_heads, heads // kv_heads, head_dim), keys, values

    def attend(self, query: Any, keys: Any, values: Any) -> Any:
        scores = query @ keys.transpose(0, 2, 1)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return weights / weights.sum(axis=-1, keepdims=True) @ values

    def copy(self, target: Any, source: Any) -> Any:
        np.copyto(target, source)

    def time(self, calls: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
        calls[0]()
        seconds = []
        for index in range(repeats):
            start = time.perf_counter()
            calls[index % len(calls)]()
            seconds.append(time.perf_counter() - start)
        return seconds

    def overheads(self) -> Iterator[tuple[str, float]]:
        small = self.matrix(1, 1, "fp32")
        yield "launch", statistics.median(self.time([lambda: np.negative(small, out=small)], 1000))


class TorchGpu:
    """A CUDA or ROCm GPU, through PyTorch."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.name = torch.cuda.get_device_name()
        self.software = f"torch {torch.__version__} cuda {torch.version.cuda or torch.version.hip}"
        fp8 = hasattr(torch, "_scaled_mm") and torch.cuda.get_device_capability() >= (8, 9)
        self.precisions: tuple[str, ...] = ("bf16", "fp8") if fp8 else ("bf16",)
        self._scale = torch.ones((), device="cuda", dtype=torch.float32)

    def _random(self, *shape: int) -> Any:
        return self.torch.randn(*shape, device="cuda", dtype=self.torch.bfloat16)

    def matrix(self, rows: int, columns: int, precision: str) -> Any:
        values = self._random(rows, columns)
        return values.to(self.torch.float8_e4m3fn) if precision == "fp8" else values

    def product(self, a: Any, b: Any) -> Any:
        if a.dtype == self.torch.bfloat16:
            return a @ b.T
        out = self.torch.bfloat16
        return self.torch._scaled_mm(a, b.T, scale_a=self._scale, scale_b=self._scale, out_dtype=out)

    def batch(self, groups: int, rows: int, columns: int) -> Any:
        return self._random(groups, rows, columns)

    def attention(self, batch: int, context: int, heads: int, kv_heads: int, head_dim: int) -> tuple[Any, ...]:
        keys, values = (self._random(batch, kv_heads, context, head_dim) for _ in range(2))
        return self._random(batch, heads, 1, head_dim), keys, values

    def attend(self, query: Any, keys: Any, values: Any) -> Any:
        attention = self.torch.nn.functional.scaled_dot_product_attention
        return attention(query, keys, values, enable_gqa=query.shape[1] != keys.shape[1])

    def copy(self, target: Any, source: Any) -> Any:
        target.copy_(source)

    def time(self, calls: Sequence[Callable[[], Any]], repeats: int) -> list[float]:
        for call in calls[:3]:
            call()
        event = self.torch.cuda.Event
        marks = [event(enable_timing=True) for _ in range(repeats + 1)]
        self.torch.cuda.synchronize()
        self.torch.cuda._sleep(2_000_000)  # the host gets ahead, so that launches are not timed
        marks[0].record()
        for index in range(repeats):
            calls[index % len(calls)]()
            marks[index + 1].record()
        self.torch.cuda.synchronize()
        return [marks[i].elapsed_time(marks[i + 1]) * 1e-3 for i in range(repeats)]

    def overheads(self) -> Iterator[tuple[str, float]]:
        torch, count = self.torch, 1000
        small = self._random(1)
        small.add_(1)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(count):
            small.add_(1)
        torch.cuda.synchronize()
        yield "launch", (time.perf_counter() - start) / count
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                small.add_(1)
        graph.replay()
        torch.cuda.synchronize()
        start = time.perf_counter()
        graph.replay()
        torch.cuda.synchronize()
        yield "graph-kernel", (time.perf_counter() - start) / count


def _row(device: Device, kernel: str, precision: str, work: KernelWork, seconds: list[float], **shape: int) -> Row:
    quarter = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [seconds[0]] * 3
    sizes = {f.name: 0 for f in fields(Row) if f.type == "int"} | shape | {"repeats": len(seconds)}
    return Row(
        kernel=kernel,
        backend=type(device).__name__,
        precision=precision,
        flop=float(work.flop),
        bytes=float(work.bytes),
        time_us=round(statistics.median(seconds) * 1e6, 3),
        spread_us=round((quarter[2] - quarter[0]) * 1e6, 3),
        device=device.name,
        software=device.software,
        **sizes,
    )


def _copies(bytes_each: float, cold: float) -> int:
    return int(np.clip(np.ceil(cold / bytes_each), 1, MOST_COPIES))


def measure(device: Device, *, scale: float, repeats: int, cold: float = COLD_BYTES) -> Iterator[Row]:
    """Measure every class of kernel.

    Parameters
    ----------
    device : Device
        What runs them.
    scale : float
        Factor on widths and contexts: 1 for a GPU, less for a processor, [-]
    repeats : int
        Timed calls of each shape, [-]
    cold : float, optional
        Bytes of operands that are used in turn, [B]

    Yields
    ------
    Row
        One measured shape.
    """
    size = {"bf16": 2.0, "fp8": 1.0, "fp32": 4.0}

    def wide(width: int) -> int:
        return max(16, int(width * scale) // 16 * 16)

    for precision in device.precisions:
        for n, k in ((1024, 4096), (4096, 4096), (6144, 2048), (2048, 6144), (16384, 6144), (6144, 16384)):
            n, k = wide(n), wide(k)
            weights = [device.matrix(n, k, precision) for _ in range(_copies(n * k * size[precision], cold))]
            for m in (1, 4, 16, 64, 256, 1024, 4096) if scale >= 1 else (1, 16, 128):
                m_padded = max(m, 16) if precision == "fp8" else m  # the FP8 product wants whole tiles
                a = device.matrix(m_padded, k, precision)
                work = gemm_work(float(m), n, k, weight_bytes=size[precision], activation_bytes=size[precision])
                calls = [partial(device.product, a, matrix) for matrix in weights]
                yield _row(device, "gemm", precision, work, device.time(calls, repeats), m=m, n=n, k=k)
    value = size["fp32" if "fp32" in device.precisions else "bf16"]
    name = "fp32" if "fp32" in device.precisions else "bf16"
    n, k = wide(2048), wide(6144)
    for tokens in (1, 8, 64, 512):
        groups = max(1, round(float(touched_experts(tokens, 256, 8)) * min(1.0, scale)))
        rows = max(1, tokens * 8 // groups)
        weights, inputs = device.batch(groups, k, n), device.batch(groups, rows, k)
        work = KernelWork(2.0 * groups * rows * n * k, value * groups * (n * k + rows * (n + k)))
        seconds = device.time([partial(operator.matmul, inputs, weights)], repeats)
        yield _row(device, "experts", name, work, seconds, m=rows, n=n, k=k, groups=groups)
    for batch, context in ((1, 1024), (1, 16384), (8, 4096), (64, 1024), (64, 4096)):
        context = wide(context)
        shape = {"heads": 32, "kv_heads": 4, "head_dim": 128}
        operands = device.attention(batch, context, **shape)
        work = attention_decode_work(float(batch), float(context), **shape, kv_bytes=value)
        seconds = device.time([partial(device.attend, *operands)], repeats)
        yield _row(device, "decode-attention", name, work, seconds, batch=batch, context=context, **shape)
    for megabytes in (1, 16, 256, 1024):
        columns = max(1024, int(megabytes * 1e6 * min(1.0, scale) / value))
        source, target = device.matrix(1, columns, name), device.matrix(1, columns, name)
        seconds = device.time([partial(device.copy, target, source)], repeats)
        yield _row(device, "copy", name, KernelWork(0.0, 2.0 * columns * value), seconds, n=columns)
    for kernel, seconds_each in device.overheads():
        yield _row(device, kernel, "", KernelWork(0.0, 0.0), [seconds_each])


def as_csv(rows: list[Row]) -> str:
    """Return the campaign as CSV text.

    Parameters
    ----------
    rows : list of Row
        What was measured.

    Returns
    -------
    str
        Header and rows.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def find_device(cpu: bool) -> Device | str:
    """Return what can run the kernels, or why nothing can.

    Parameters
    ----------
    cpu : bool
        Whether the processor was asked for.

    Returns
    -------
    Device or str
        The device, or the reason.
    """
    if cpu:
        return NumpyCpu()
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed, so no GPU can be measured; `--cpu` measures the processor"
    if not torch.cuda.is_available():
        return "there is no GPU that PyTorch can use; `--cpu` measures the processor"
    return TorchGpu(torch)


def main(arguments: list[str] | None = None) -> int:
    """Measure and write the campaign.

    Parameters
    ----------
    arguments : list of str, optional
        Words of the command line.

    Returns
    -------
    int
        Exit code: 0, also where there is no GPU; 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", default="kernels.csv", help="the campaign, CSV")
    parser.add_argument("--cpu", action="store_true", help="measure the processor with NumPy")
    parser.add_argument("--repeats", type=int, default=0, help="timed calls of each shape")
    parser.add_argument("--scale", type=float, default=0.0, help="factor on the widths; 1 is a model's")
    chosen = parser.parse_args(arguments)
    device = find_device(chosen.cpu)
    if isinstance(device, str):
        print(f"nothing measured: {device}", file=sys.stderr)
        return 0
    rows: list[Row] = []
    scale = chosen.scale or (0.125 if chosen.cpu else 1.0)
    repeats = chosen.repeats or (5 if chosen.cpu else 50)
    code = 0
    try:
        for row in measure(device, scale=scale, repeats=repeats, cold=32e6 if chosen.cpu else COLD_BYTES):
            rows.append(row)
            rate = f"{row.bytes / row.time_us / 1e3:9.1f} GB/s {row.flop / row.time_us / 1e6:8.2f} TFLOP/s"
            print(f"{row.kernel:17} {row.precision:5} {row.time_us:12.2f} µs {rate}", file=sys.stderr)
    except KeyboardInterrupt:
        code = 130
    write_atomically(chosen.out, as_csv(rows))
    print(chosen.out)
    return code


if __name__ == "__main__":
    sys.exit(main())
