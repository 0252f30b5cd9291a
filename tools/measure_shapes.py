"""Shapes of GLM, gpt-oss and Qwen timed on one GPU within minutes: products, experts, attention, launches, copies.

    PYTHONPATH=. python tools/measure_shapes.py campaign-h100/ --budget-seconds 420   # torch, triton and NumPy
    python tools/measure_shapes.py --list                                   # the shapes, without a GPU

Every Triton kernel is compared with float32 or float64 before it is timed. Calls are timed inside CUDA graphs over
operands that together exceed the cache. The folder keeps rows.csv, about.json and log.txt; Ctrl-C keeps what is there,
and the same folder goes on. Rows come in order of importance, so that a short budget leaves out the least important.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from campaign import Campaign
from shape_table import ATTENTION, EXPERTS, LATENT, Case, cases

from glmplan.catalog.files import write_atomically
from glmplan.costs.kernels.shapes import STORED, shape_work
from glmplan.costs.kernels.utilisation import KernelWork

COLD = 160e6  # bytes of operands that one graph reads; three times the L2 cache of an H200
POOL = 2_000_000  # tokens that chosen ones lie scattered in
WRONG = 0.03  # relative error above which a kernel is not timed
Calls = list[Callable[[], Any]]


class Clock:
    """Times calls inside a CUDA graph."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.stream = torch.cuda.Stream()

    def _events(self, run: Callable[[], None], repeats: int) -> list[float]:
        event = self.torch.cuda.Event
        marks = [event(enable_timing=True) for _ in range(repeats + 1)]
        marks[0].record(self.stream)
        for index in range(repeats):
            run()
            marks[index + 1].record(self.stream)
        self.torch.cuda.synchronize()
        return [marks[i].elapsed_time(marks[i + 1]) * 1e-3 for i in range(repeats)]

    def time(self, calls: Calls, cold_bytes: float, repeats: int, target: float = 1.5e-3) -> list[float]:
        """Seconds of one call, once for each replay; `cold_bytes` are what one call reads."""
        torch = self.torch
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            calls[0]()
            once = min(self._events(calls[0], 2))
            count = max(3, min(64, int(max(target / once, COLD / max(cold_bytes, 1.0))) + 1))
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            for index in range(count):
                calls[index % len(calls)]()
            graph.capture_end()
            graph.replay()
            return [seconds / count for seconds in self._events(graph.replay, repeats)]

    def eager(self, calls: Calls, repeats: int) -> list[float]:
        """Seconds of one call on the stream, as where nothing is captured."""
        with self.torch.cuda.stream(self.stream):
            calls[0]()
            return self._events(calls[0], repeats)


class Bench:
    """One campaign on one card."""

    def __init__(self, campaign: Campaign, torch: Any, budget: float) -> None:
        import shape_operands

        self.campaign, self.torch, self.ops, self.clock = campaign, torch, shape_operands, Clock(torch)
        self.ends = time.monotonic() + budget
        self.device = torch.cuda.get_device_name()
        part = torch.cuda.get_device_properties(0)
        self.cores, self.memory = part.multi_processor_count, part.total_memory
        self.software = (
            f"torch {torch.__version__} cuda {torch.version.cuda} triton {shape_operands.kernel.triton.__version__}"
        )
        self.done = {key_of(row) for row in campaign.rows("rows.csv")}
        self.kept: dict[str, Any] = {}

    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.ends

    def add(self, case: Case, backend: str, work: KernelWork, seconds: list[float], **more: Any) -> None:
        """Keep one row."""
        quarter = statistics.quantiles(seconds, n=4)
        row = {name: case.sizes.get(name, 0) for name in SIZES}
        row = {"kernel": case.kernel, "backend": backend, "precision": case.precision, "model": case.model} | row
        row |= {
            "flop": float(work.flop), "bytes": float(work.bytes), "time_us": round(statistics.median(seconds) * 1e6, 3),
            "spread_us": round((quarter[2] - quarter[0]) * 1e6, 3), "repeats": len(seconds),
            "error": more.get("error", ""), "choice": more.get("choice", ""),
            "device": self.device, "software": self.software,
        }  # fmt: skip
        self.campaign.add("rows.csv", row)
        self.done.add(key_of(row))
        rates = f"{row['bytes'] / row['time_us'] / 1e3:.0f} GB/s {row['flop'] / row['time_us'] / 1e6:.1f} TFLOP/s"
        sizes = " ".join(f"{name}={size}" for name, size in case.sizes.items())
        words = f"{case.kernel} {case.precision} {backend} {case.model} {sizes}"
        self.campaign.say(
            f"{words}: {row['time_us']:.2f} µs ±{row['spread_us']:.2f}, {rates}, {row['error']} {row['choice']}"
        )

    def wanted(self, case: Case, backend: str) -> bool:
        """Whether a row is not there yet and there is time for it."""
        row = {"kernel": case.kernel, "backend": backend, "precision": case.precision, "model": case.model}
        return not self.late() and key_of(row | {name: case.sizes.get(name, 0) for name in SIZES}) not in self.done

    def best(
        self, case: Case, backend: str, choices: dict[str, Callable[[], tuple[Calls, float]]],
        wrong: Callable[[], float], repeats: int = 9,
    ) -> None:  # fmt: skip
        """Time the choices shortly and the best one in full; `wrong` gives the error of the last call."""
        found: list[tuple[float, str, Calls, float, float]] = []
        for name, make in choices.items():
            try:
                calls, cold = make()
                calls[0]()
                self.torch.cuda.synchronize()
                error = wrong()
                if not error < WRONG:
                    self.campaign.say(
                        f"wrong: {case.kernel} {case.precision} {backend} {name} {case.sizes}: {error:.3g}"
                    )
                    continue
                least = statistics.median(self.clock.time(calls, cold, 3, target=0.4e-3)) if len(choices) > 1 else 0.0
                found.append((least, name, calls, cold, error))
            except Exception as problem:  # one kernel that a part refuses must not end the campaign
                said = (str(problem).splitlines() or [""])[0][:160]
                self.campaign.say(f"failed: {case} {backend} {name}: {said}")
                if "CUDA error" in said or "illegal memory" in said:
                    raise
        if found:
            _, name, calls, cold, error = min(found, key=lambda one: one[0])
            work = shape_work(case.kernel, case.precision, case.sizes)
            assert work is not None
            self.add(case, backend, work, self.clock.time(calls, cold, repeats), error=f"{error:.2g}", choice=name)


SIZES = ("m", "n", "k", "experts", "top_k", "touched", "batch", "context", "heads", "kv_heads", "head_dim", "page")


def key_of(row: dict[str, Any]) -> tuple[str, ...]:
    """What makes a row the same as another; touched experts are drawn and left out."""
    names = ("kernel", "backend", "precision", "model", *(name for name in SIZES if name != "touched"))
    return tuple(str(row[name]) for name in names)


def _error(torch: Any, out: Any, truth: Any) -> float:
    if not bool(torch.isfinite(out).all()):
        return float("nan")
    return float((out.double() - truth.double()).norm() / truth.double().norm())


def products(bench: Bench, case: Case) -> None:
    """Products of one stored matrix: Triton in the format, and PyTorch's where it has one."""
    torch, ops, form = bench.torch, bench.ops, case.precision
    m, n, k = (case.sizes[name] for name in "mnk")
    stored = n * k * STORED[form]
    name = f"{form} {n} {k}"
    if name not in bench.kept:
        bench.kept.clear()
        count = max(2, min(64, int(COLD / stored) + 1))
        weights = [ops.make_weights(form, n, k, "cuda") for _ in range(count)]
        bench.kept[name] = weights, weights[0].plain()
    weights, plain = bench.kept[name]
    x = ops.activations(m, k, "cuda")
    out = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
    some = [*range(min(m, 8)), *range(max(8, m - 8), m)]
    truth = (ops.in_fp8(x[some]) if form == "fp8-block" else x[some].float()) @ plain.T

    def wrong() -> float:
        error = _error(torch, out[some], truth) if bool(torch.isfinite(out).all()) else float("nan")
        out.fill_(float("nan"))
        return error

    if form == "bf16" and bench.wanted(case, "cublas"):
        calls = [partial(torch.mm, x, one.stored.T, out=out) for one in weights]
        bench.best(case, "cublas", {"": lambda: (calls, stored)}, wrong)
    if form == "fp8-block" and bench.wanted(case, "cublas-block"):
        bench.best(case, "cublas-block", _scaled(torch, ops, weights, x, out, stored), wrong)
    if bench.wanted(case, "triton"):
        choices = {
            str(tile): lambda tile=tile: ([ops.product_call(x, one, out, tile) for one in weights], stored)
            for tile in ops.tiles(m, n, k, form, bench.cores)
        }
        bench.best(case, "triton", choices, wrong)


def _scaled(torch: Any, ops: Any, weights: list[Any], x: Any, out: Any, stored: float) -> dict[str, Any]:
    """PyTorch's product with scales of 1×128 and 128×128, in the two layouts of scales that releases want."""
    rows = max(16, x.shape[0])
    padded = torch.zeros(rows, x.shape[1], device="cuda", dtype=torch.bfloat16)
    padded[: x.shape[0]] = x
    q, scale = ops.quantise(padded)

    def make(tall: bool) -> tuple[Calls, float]:
        def one(w: Any) -> Callable[[], Any]:
            across = w.scales.shape[1]
            wide = torch.zeros(w.scales.shape[0], -(-across // 4) * 4 if tall else across, device="cuda")
            wide[:, :across] = w.scales
            b_scale = wide[:, :across].t()

            def call() -> None:
                ops.run_quantise(padded, q, scale)
                found = torch._scaled_mm(q, w.stored.t(), scale_a=scale.t(), scale_b=b_scale, out_dtype=torch.bfloat16)
                call.found = found

            return call

        calls: Calls = [one(w) for w in weights]
        calls[0]()
        out.copy_(calls[0].found[: x.shape[0]])
        first = calls[0]
        checked = [True]

        def start() -> None:
            first()
            if checked:
                checked.clear()
                out.copy_(first.found[: x.shape[0]])

        return [start, *calls[1:]], stored

    return {"padded": lambda: make(True), "plain": lambda: make(False)}


def experts(bench: Bench, case: Case) -> None:
    """Both grouped products of a layer's experts for tokens that choose at random."""
    torch, ops, form = bench.torch, bench.ops, case.precision
    m, inner, hidden, count, top = (case.sizes[name] for name in ("m", "n", "k", "experts", "top_k"))
    if not bench.wanted(case, "triton"):
        return
    name = f"experts {form} {case.model}"
    if name not in bench.kept:
        bench.kept.clear()
        torch.cuda.empty_cache()
        both = (
            ops.make_weights(form, 2 * inner, hidden, "cuda", count),
            ops.make_weights(form, hidden, inner, "cuda", count),
        )
        bench.kept[name] = both
    pair = bench.kept[name]
    each = 3.0 * hidden * inner * STORED[form]
    draws = 8 if m * top < count * 4 else 2
    x = ops.activations(m, hidden, "cuda")
    chosen = [torch.rand(m, count, device="cuda").topk(top, dim=1).indices for _ in range(draws)]
    touched = statistics.fmean(len(one.unique()) for one in chosen)
    shares = torch.rand(m, top, device="cuda")
    out = torch.full((m, hidden), float("nan"), device="cuda", dtype=torch.bfloat16)
    some = sorted({0, m // 2, m - 1})
    truth = ops.experts_reference(x, pair, chosen[0], shares, some)

    def wrong() -> float:
        error = _error(torch, out[some], truth) if bool(torch.isfinite(out).all()) else float("nan")
        out.fill_(float("nan"))
        return error

    rows = m * top / touched
    cuts = (
        [(16, 128, 4, 4), (16, 128, 4, 6)] * (rows <= 48)
        + [(64, 128, 4, 3)] * (8 < rows <= 256)
        + [(128, 128, 8, 3)] * (rows > 64)
    )
    choices = {
        str(ops.Tile(*cut)): lambda cut=cut: (
            [ops.experts_call(x, pair, one, shares, out, ops.Tile(*cut)) for one in chosen], touched * each
        )
        for cut in cuts
    }  # fmt: skip
    sized = Case(case.kernel, form, case.model, case.sizes | {"touched": round(touched)})
    bench.best(sized, "triton", choices, wrong)


def attention(bench: Bench, case: Case) -> None:
    """Decode attention over a paged cache: GQA, absorbed MLA, and MLA over chosen tokens of a long cache."""
    torch, ops, sizes = bench.torch, bench.ops, case.sizes
    if not bench.wanted(case, "triton"):
        return
    batch, context, heads = sizes["batch"], sizes["context"], sizes["heads"]
    latent = case.kernel != "decode-attention"
    token = 576 * 2 if latent else 2 * sizes["kv_heads"] * sizes["head_dim"] * 2
    copies = max(1, min(64, int(COLD / (batch * context * token)) + 1))
    page, pages = sizes["page"], -(-context // sizes["page"])
    pool = POOL if page == 1 else copies * batch * pages * page  # tokens; those of an indexer lie scattered
    wide = 576 if latent else sizes["head_dim"]
    name = f"cache {latent} {wide} {pool} {sizes.get('kv_heads')}"
    if name not in bench.kept:
        bench.kept.clear()
        shape = (pool * (1 if latent else sizes["kv_heads"]), wide)
        bench.kept[name] = tuple(
            torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for _ in range(1 if latent else 2)
        )
    caches = bench.kept[name]
    if page == 1:
        tables = [torch.randint(0, pool, (batch, context), device="cuda", dtype=torch.int32) for _ in range(copies)]
    else:
        order = torch.randperm(copies * batch * pages, device="cuda").to(torch.int32).view(copies, batch, pages)
        tables = list(order)
    q = torch.randn(batch, heads, wide, device="cuda", dtype=torch.bfloat16)
    out = torch.full((batch, heads, 512 if latent else wide), float("nan"), device="cuda", dtype=torch.bfloat16)
    truth = ops.attention_reference(sizes, q, caches, tables[0], batch - 1)

    def wrong() -> float:
        error = _error(torch, out[-1], truth) if bool(torch.isfinite(out).all()) else float("nan")
        out.fill_(float("nan"))
        return error

    cuts = (
        ([(16, 32, 4), (64, 64, 8)] if heads > 16 else [(16, 32, 4), (16, 64, 4)])
        if latent
        else [(16, 64, 4), (16, 128, 4)]
    )
    choices = {}
    for bg, bt, warps in cuts if wide != 256 else cuts[:1]:
        lanes = batch * (-(-heads // bg) if latent else sizes["kv_heads"])
        for fill in (1, 2, 4):
            splits = max(1, min(128, round(fill * bench.cores / lanes), context // bt))
            cut = bg, bt, warps, splits
            choices["/".join(map(str, cut))] = lambda cut=cut: (
                [ops.attention_call(sizes, q, caches, table, out, cut) for table in tables],
                float(batch * context * token),
            )
    bench.best(case, "triton", choices, wrong)


def prefill(bench: Bench, case: Case) -> None:
    """Causal attention of a prompt by PyTorch's fused kernels."""
    torch, sizes = bench.torch, case.sizes
    batch, tokens, heads, kv, d = (sizes[name] for name in ("batch", "context", "heads", "kv_heads", "head_dim"))
    q = torch.randn(batch, heads, tokens, d, device="cuda", dtype=torch.bfloat16)
    k, v = (torch.randn(batch, kv, tokens, d, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    backends = torch.nn.attention.SDPBackend
    for name, backend in (("torch-flash", backends.FLASH_ATTENTION), ("torch-cudnn", backends.CUDNN_ATTENTION)):
        if not bench.wanted(case, name):
            continue
        kept: list[Any] = []

        def call(backend: Any = backend, kept: list[Any] = kept) -> None:
            with torch.nn.attention.sdpa_kernel(backend):
                sdpa = torch.nn.functional.scaled_dot_product_attention
                kept[:] = [sdpa(q, k, v, is_causal=True, enable_gqa=heads != kv)]

        def wrong(kept: list[Any] = kept) -> float:
            last = torch.softmax(q[-1, :1, -1:].double() @ k[-1, :1].double().transpose(1, 2) * d**-0.5, -1)
            return _error(torch, kept[0][-1, :1, -1:], last @ v[-1, :1].double())

        bench.best(case, name, {"": lambda call=call: ([call], 1e12)}, wrong, repeats=5)


def sampler(bench: Bench, case: Case) -> None:
    """From logits to tokens as PyTorch does it: arg max, softmax, top-p by sorting, and a draw."""
    torch, rows, words = bench.torch, case.sizes["batch"], case.sizes["n"]
    logits = [torch.randn(rows, words, device="cuda") for _ in range(max(1, min(16, int(COLD / (rows * words * 4)))))]

    def softmax(x: Any) -> Any:
        return torch.softmax(x, -1)

    def draw(x: Any) -> Any:
        shares = torch.softmax(x, -1)
        return (shares / torch.empty_like(shares).exponential_(1)).argmax(-1)

    def top_p(x: Any) -> Any:
        ordered, order = torch.sort(x, dim=-1)
        shares = ordered.softmax(-1)
        dropped = shares.cumsum(-1) <= 0.05
        dropped[:, -1] = False
        return draw(torch.empty_like(x).scatter_(1, order, ordered.masked_fill(dropped, -float("inf"))))

    steps = {"argmax": lambda x: x.argmax(-1), "softmax": softmax, "softmax-draw": draw, "top-p-draw": top_p}
    for name, step in steps.items():
        one = Case("sampler", "fp32", name, case.sizes)
        if bench.wanted(one, "torch"):
            work = KernelWork(0.0, 4.0 * rows * words)
            seconds = bench.clock.eager([lambda step=step: [step(x) for x in logits]], 5)
            bench.add(one, "torch", work, [took / len(logits) for took in seconds])


def copies(bench: Bench, case: Case) -> None:
    """Copies between host and card, pinned and pageable, and within the card; one, or many blocks as of a cache."""
    torch, size, count = bench.torch, case.sizes["n"], case.sizes["batch"]
    if not bench.wanted(case, "torch"):
        return

    def room(where: str) -> list[Any]:
        if where == "device":
            return list(torch.zeros(count, size, device="cuda", dtype=torch.uint8))
        return list(torch.ones(count, size, dtype=torch.uint8, pin_memory=where == "pinned"))

    start, _, end = case.model.partition(" to ")
    sources, targets = room(start), room(end)

    def call() -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source, non_blocking=True)

    each = 2.0 if start == end == "device" else 1.0
    bench.add(case, "torch", KernelWork(0.0, each * size * count), bench.clock.eager([call], 7))


def overheads(bench: Bench, case: Case) -> None:
    """A launch by the host, a kernel inside a graph, the replay of a graph, and a wait for the card."""
    torch = bench.torch
    if not bench.wanted(case, "host-clock"):
        return
    small = torch.zeros(1, device="cuda")

    def many(count: int) -> None:
        for _ in range(count):
            small.add_(1)

    def captured(count: int) -> Any:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(bench.clock.stream):
            many(3)
            graph.capture_begin()
            many(count)
            graph.capture_end()
        return graph

    def took(run: Callable[[], None], count: int) -> list[float]:
        run()
        torch.cuda.synchronize()
        found = []
        for _ in range(15):
            begin = time.perf_counter()
            run()
            torch.cuda.synchronize()
            found.append((time.perf_counter() - begin) / count)
        return found

    graphs = {count: captured(count) for count in (1, 100, 1000)}
    ops = bench.ops
    x, y = (ops.activations(1, 128, "cuda") for _ in range(2))
    triton_gate = partial(ops.kernel.gate[(1, 1)], x, y, 32, 128, BLOCK=1024, num_warps=4)
    runs = {
        "launch": (lambda: many(1000), 1000),
        "triton-launch": (lambda: [triton_gate() for _ in range(300)] and None, 300),
        "graph-kernel": (graphs[1000].replay, 1000),
        "graph-replay-1": (graphs[1].replay, 1),
        "graph-replay-100": (graphs[100].replay, 1),
        "graph-replay-1000": (graphs[1000].replay, 1),
        "launch-and-wait": (lambda: many(1), 1),
        "read-one-value": (small.item, 1),
    }
    for name, (run, count) in runs.items():
        bench.add(Case(name, "", "", {}), "host-clock", KernelWork(0.0, 0.0), took(run, count))
    bench.add(case, "host-clock", KernelWork(0.0, 0.0), took(lambda: None, 1))


RUNS: dict[str, Callable[[Bench, Case], None]] = {
    "gemm": products, "experts": experts, "decode-attention": attention, "latent-decode": attention,
    "sparse-gather": attention, "prefill-attention": prefill, "sampler": sampler, "copy": copies, "wait": overheads,
}  # fmt: skip


def compile_share(share: int, shares: int) -> None:
    """Compile every `shares`-th kernel into Triton's cache, with operands that are as small as can be."""
    import shape_operands as ops
    import torch

    found: list[Callable[[], None]] = []

    def product(form: str, tile: Any) -> None:
        x, w = ops.activations(16, 512, "cuda"), ops.make_weights(form, 256, 512, "cuda")
        ops.product_call(x, w, torch.empty(16, 256, device="cuda", dtype=torch.bfloat16), tile)()

    def grouped(form: str, top: int, cut: tuple[int, ...]) -> None:
        x = ops.activations(4, 512, "cuda")
        pair = ops.make_weights(form, 512, 512, "cuda", 16), ops.make_weights(form, 512, 256, "cuda", 16)
        chosen = torch.rand(4, 16, device="cuda").topk(top, dim=1).indices
        shares_, out = torch.rand(4, top, device="cuda"), torch.empty(4, 512, device="cuda", dtype=torch.bfloat16)
        ops.experts_call(x, pair, chosen, shares_, out, ops.Tile(*cut))()

    def attend(latent: bool, heads: int, kv: int, d: int, page: int) -> None:
        sizes = {"batch": 1, "context": 64, "heads": heads, "kv_heads": kv, "head_dim": d, "page": page}
        wide = 576 if latent else d
        q = torch.zeros(1, heads, wide, device="cuda", dtype=torch.bfloat16)
        caches = tuple(
            torch.zeros(64 * kv, wide, device="cuda", dtype=torch.bfloat16) for _ in range(1 if latent else 2)
        )
        table, out = torch.zeros(1, 64, device="cuda", dtype=torch.int32), torch.empty_like(q)
        for cut in ops.cuts(heads if latent else 0, d):
            ops.attention_call(sizes, q, caches, table, out, (*cut, 1))()

    for form in ops.FORMATS:
        cut = {tile for m in (1, 64, 256, 8192) for tile in ops.tiles(m, 256, 8192, form, 132)}
        found += [partial(product, form, tile) for tile in sorted(cut, key=str)]
    for form, top in sorted({(form, one[3]) for one in EXPERTS for form in one[-1]}):
        found += [
            partial(grouped, form, top, cut)
            for cut in ((16, 128, 4, 4), (16, 128, 4, 6), (64, 128, 4, 3), (128, 128, 8, 3))
        ]
    for kernel, heads, kv, d, page in (
        *(("latent-decode", heads, 1, 512, page) for _, heads in LATENT for page in (64, 1)),
        *(("decode-attention", heads, kv, d, 16) for _, heads, kv, d in ATTENTION),
    ):
        found += [partial(attend, kernel == "latent-decode", heads, kv, d, page)]
    for call in found[share::shares]:
        try:
            call()
        except Exception as error:
            print(f"not compiled: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
    torch.cuda.synchronize()


def compile_all(campaign: Campaign) -> None:
    """Compile in many processes at once: one after another it would take longer than the measurements."""
    count, began = max(1, min(14, (os.cpu_count() or 2) - 2)), time.monotonic()
    command = [sys.executable, __file__, "--compile"]
    started = [subprocess.Popen([*command, f"{index}/{count}"]) for index in range(count)]
    for process in started:
        process.wait()
    campaign.say(f"compiled by {count} processes in {time.monotonic() - began:.1f} s")


def about(torch: Any) -> dict[str, Any]:
    """What it was measured on."""
    import triton

    part = torch.cuda.get_device_properties(0)
    asked = "driver_version,clocks.max.sm,clocks.max.mem,power.limit,pcie.link.gen.max,pcie.link.width.max"
    query = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    return {
        "name": part.name, "memory_bytes": part.total_memory, "cores": part.multi_processor_count,
        "l2_bytes": part.L2_cache_size, "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        asked: said,
        "torch": torch.__version__, "cuda": torch.version.cuda, "triton": triton.__version__,
        "python": platform.python_version(), "host_cores": os.cpu_count(),
        "began": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip


def measure(bench: Bench, chosen: list[Case]) -> None:
    """Run the cases in their order until they or the time are over."""
    for case in chosen:
        if bench.late():
            bench.campaign.say(f"the time is over: {case} and later ones are left")
            return
        try:
            RUNS[case.kernel](bench, case)
        except (RuntimeError, ValueError) as problem:  # out of memory among them
            bench.kept.clear()
            bench.torch.cuda.empty_cache()
            bench.campaign.say(f"failed: {case}: {(str(problem).splitlines() or [''])[0][:160]}")
            if "CUDA error" in str(problem):
                raise
        if bench.torch.cuda.memory_reserved() > 0.6 * bench.memory:
            bench.torch.cuda.empty_cache()  # graphs leave their memory behind


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="the campaign")
    parser.add_argument("--budget-seconds", type=float, default=420.0, help="when to stop, compilation included [s]")
    parser.add_argument("--every", type=int, default=1, help="only every so many cases, for a look")
    parser.add_argument("--list", action="store_true", help="print the cases and end")
    parser.add_argument("--compile", default="", help=argparse.SUPPRESS)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Measure what fits into the budget.

    Parameters
    ----------
    arguments : list of str, optional
        Words of the command line.

    Returns
    -------
    int
        Exit code: 0, also where there is no GPU; 130 after Ctrl-C.
    """
    parser = _arguments()
    chosen = parser.parse_args(arguments)
    wanted: list[Case] = list(cases())[:: chosen.every]
    if chosen.list:
        for case in wanted:
            print(case.kernel, case.precision, case.model, case.sizes)
        return 0
    if chosen.folder is None and not chosen.compile:
        parser.error("name a folder for the campaign")
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as error:
        print(f"nothing measured: {error}", file=sys.stderr)
        return 0
    if not torch.cuda.is_available():
        print("nothing measured: PyTorch sees no GPU", file=sys.stderr)
        return 0
    if chosen.compile:
        compile_share(*map(int, chosen.compile.split("/")))
        return 0
    began = time.monotonic()
    campaign = Campaign(chosen.folder)
    write_atomically(chosen.folder / "about.json", json.dumps(about(torch), indent=1) + "\n")
    try:
        compile_all(campaign)
        bench = Bench(campaign, torch, chosen.budget_seconds - (time.monotonic() - began))
        measure(bench, wanted)
    except KeyboardInterrupt:
        campaign.say("stopped; started again with this folder it goes on")
        return 130
    campaign.say(f"{len(campaign.rows('rows.csv'))} rows in {time.monotonic() - began:.0f} s")
    print(chosen.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
