"""Kernels of FlashInfer, vLLM and PyTorch that serve models, each with its shapes and glmplan's own counts.

A library that is not installed, or a kernel that the part does not have, says so in one line and is left out.
"""

from __future__ import annotations

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from campaign import installed

from glmplan.catalog.formats import weight_format
from glmplan.costs.kernels.counts import expert_work, gemm_work, latent_decode_work, touched_experts
from glmplan.costs.kernels.utilisation import KernelWork

LATENT, ROPE, PAGE = 512, 64, 64
EXPERTS, TOP_K = 256, 8
#: outputs and inputs of a product: projections and dense layers of models of 30 to 400 billion weights
PRODUCTS = ((1024, 4096), (4096, 4096), (6144, 2048), (2048, 6144), (16384, 6144), (6144, 16384))
TOKENS = (1, 4, 16, 64, 256, 1024, 4096)

Calls = list[Callable[[], Any]]
Shape = dict[str, int]


class Library(ABC):
    """One kernel of one library."""

    kernel: str
    name: str
    precision: str
    module = "torch"
    #: smallest compute capability, and the first that it is not for
    capability: tuple[float, float] = (0.0, 99.0)

    def why_not(self, torch: Any, device: str) -> str:
        """Why it cannot be timed here; empty if it can."""
        if (reason := installed(self.module)) != "":
            return reason
        if device == "cpu":
            return "" if self.capability[0] == 0 else "it needs a GPU"
        major, minor = torch.cuda.get_device_capability()
        least, below = self.capability
        if not least <= major + minor / 10 < below:
            return f"compute capability {major}.{minor} is not in {least:g} to {below:g}"
        return ""

    @abstractmethod
    def shapes(self, scale: float) -> Iterator[Shape]:
        """Shapes that it is timed in; `scale` makes them smaller."""

    @abstractmethod
    def work(self, shape: Shape) -> KernelWork:
        """What glmplan counts for a shape."""

    @abstractmethod
    def calls(self, torch: Any, device: str, shape: Shape, copies: int) -> Calls:
        """Calls that compute it, each with operands of its own."""

    def weight_bytes(self, shape: Shape) -> float:
        """Bytes of the operand that no step finds in a cache, [B]"""
        return float(self.work(shape).bytes)


def _wide(width: int, scale: float) -> int:
    return max(64, int(width * scale) // 64 * 64)


class LatentTorch(Library):
    """Absorbed MLA in plain PyTorch: no serving kernel, but the same sums, and it runs anywhere."""

    kernel, name, precision = "latent-decode", "torch-reference", "bf16"

    def shapes(self, scale: float) -> Iterator[Shape]:
        for heads in (16, 128):
            for batch, context in ((1, 1024), (1, 16384), (1, 131072), (16, 4096), (64, 4096), (256, 1024)):
                if scale >= 1 or (heads == 16 and batch <= 16):
                    yield {"batch": batch, "context": _wide(context, scale), "heads": heads}

    def work(self, shape: Shape) -> KernelWork:
        return latent_decode_work(**{k: float(v) for k, v in shape.items()}, kv_bytes=2.0, latent=LATENT, rope=ROPE)

    def _operands(self, torch: Any, device: str, shape: Shape) -> tuple[Any, ...]:
        def make(*sizes: int) -> Any:
            return torch.randn(*sizes, device=device, dtype=torch.bfloat16)

        batch, heads, pages = shape["batch"], shape["heads"], math.ceil(shape["context"] / PAGE)
        queries = make(batch, heads, LATENT), make(batch, heads, ROPE)
        return *queries, make(batch * pages, PAGE, LATENT), make(batch * pages, PAGE, ROPE)

    def calls(self, torch: Any, device: str, shape: Shape, copies: int) -> Calls:
        batch, context = shape["batch"], shape["context"]

        def one() -> Callable[[], Any]:
            latent, rope, kv, keys = self._operands(torch, device, shape)
            kv, keys = kv.view(batch, -1, LATENT)[:, :context], keys.view(batch, -1, ROPE)[:, :context]

            def call() -> Any:
                scores = latent @ kv.transpose(1, 2) + rope @ keys.transpose(1, 2)
                return torch.softmax(scores * (128 + ROPE) ** -0.5, dim=-1) @ kv

            return call

        return [one() for _ in range(copies)]


class LatentFlashInfer(LatentTorch):
    """FlashInfer's paged MLA decode, planned once as a server does for a step."""

    name, module, capability = "flashinfer", "flashinfer.mla", (8.0, 99.0)

    def calls(self, torch: Any, device: str, shape: Shape, copies: int) -> Calls:
        wrapper_class = importlib.import_module("flashinfer.mla").BatchMLAPagedAttentionWrapper
        batch, heads, pages = shape["batch"], shape["heads"], math.ceil(shape["context"] / PAGE)

        def numbers(values: Any) -> Any:
            return torch.tensor(values, dtype=torch.int32, device=device)

        def one() -> Callable[[], Any]:
            latent, rope, kv, keys = self._operands(torch, device, shape)
            wrapper = wrapper_class(torch.empty(128 * 2**20, dtype=torch.int8, device=device), backend="auto")
            wrapper.plan(
                numbers(range(batch + 1)), numbers([pages * place for place in range(batch + 1)]),
                numbers(range(batch * pages)), numbers([shape["context"]] * batch), heads, LATENT, ROPE, PAGE, False,
                (128 + ROPE) ** -0.5, latent.dtype, kv.dtype,
            )  # fmt: skip
            return lambda: wrapper.run(latent, rope, kv, keys)

        return [one() for _ in range(min(copies, 4))]  # each has a workspace of its own


class _Product(Library):
    """A product of activations and a stored matrix."""

    kernel = "gemm"
    activation_bytes = 2.0

    def shapes(self, scale: float) -> Iterator[Shape]:
        for n, k in PRODUCTS if scale >= 1 else PRODUCTS[:2]:
            for m in TOKENS if scale >= 1 else (1, 16):
                yield {"m": m, "n": _wide(n, scale), "k": _wide(k, scale)}

    def work(self, shape: Shape) -> KernelWork:
        stored = weight_format(self.precision).bytes
        m, n, k = (float(shape[name]) for name in ("m", "n", "k"))
        return gemm_work(m, n, k, weight_bytes=stored, activation_bytes=self.activation_bytes)

    def weight_bytes(self, shape: Shape) -> float:
        return shape["n"] * shape["k"] * weight_format(self.precision).bytes


class Fp8Torch(_Product):
    """`torch._scaled_mm` with a scale for each tensor; activations are there in FP8."""

    name, precision, activation_bytes, capability = "torch-scaled-mm", "fp8", 1.0, (8.9, 99.0)

    def calls(self, torch: Any, device: str, shape: Shape, copies: int) -> Calls:
        one, fp8 = torch.ones((), device=device, dtype=torch.float32), torch.float8_e4m3fn
        rows = max(shape["m"], 16)  # whole tiles
        a = torch.randn(rows, shape["k"], device=device).to(fp8)
        weights = [torch.randn(shape["n"], shape["k"], device=device).to(fp8) for _ in range(copies)]
        out = torch.bfloat16
        return [partial(torch._scaled_mm, a, b.T, scale_a=one, scale_b=one, out_dtype=out) for b in weights]


class Fp8Vllm(_Product):
    """vLLM's CUTLASS product with a scale for each token and channel, with the pass that quantises."""

    name, precision, activation_bytes = "vllm-cutlass", "fp8", 1.0
    module, capability = "vllm._custom_ops", (8.9, 99.0)

    def calls(self, torch: Any, device: str, shape: Shape, copies: int) -> Calls:
        ops = importlib.import_module("vllm._custom_ops")
        a = torch.randn(shape["m"], shape["k"], device=device, dtype=torch.bfloat16)
        weights = [torch.randn(shape["n"], shape["k"], device=device).to(torch.float8_e4m3fn).T for _ in range(copies)]
        scales = torch.ones(1, shape["n"], device=device, dtype=torch.float32)

        def call(b: Any) -> Any:
            quantised, scale = ops.scaled_fp8_quant(a, use_per_token_if_dynamic=True)
            return ops.cutlass_scaled_mm(quantised, b, scale, scales, torch.bfloat16)

        return [partial(call, b) for b in weights]


class Mxfp4Torch(_Product):
    """`torch._scaled_mm` of MXFP4 on tensor cores that compute in it."""

    name, precision, activation_bytes, capability = "torch-scaled-mm", "mxfp4", 0.53125, (10.0, 99.0)

    def calls(self, torch: Any, device: str, shape: Shape, copies: int) -> Calls:
        def packed(rows: int) -> tuple[Any, Any]:
            values = torch.randint(0, 256, (rows, shape["k"] // 2), device=device, dtype=torch.uint8)
            # scales lie in tiles of 128 rows and 4 blocks
            tiles = math.ceil(rows / 128) * 128 * math.ceil(shape["k"] / 32 / 4) * 4
            scale = torch.full((tiles,), 127, device=device, dtype=torch.uint8).view(torch.float8_e8m0fnu)
            return values.view(torch.float4_e2m1fn_x2), scale

        a, scale_a = packed(max(shape["m"], 128))
        weights = [packed(shape["n"]) for _ in range(copies)]
        out = torch.bfloat16
        return [partial(torch._scaled_mm, a, b.T, scale_a, s, out_dtype=out) for b, s in weights]


class Mxfp4Marlin(_Product):
    """vLLM's Marlin product of MXFP4 weights with BF16 activations, which older parts compute with."""

    name, precision = "vllm-marlin", "mxfp4"
    module, capability = "vllm._custom_ops", (8.0, 99.0)

    def calls(self, torch: Any, device: str, shape: Shape, copies: int) -> Calls:
        utils = "vllm.model_executor.layers.quantization.utils"
        fp4 = importlib.import_module(f"{utils}.marlin_utils_fp4")
        workspace = importlib.import_module(f"{utils}.marlin_utils").marlin_make_workspace_new(torch.device(device))
        n, k = shape["n"], shape["k"]
        a = torch.randn(shape["m"], k, device=device, dtype=torch.bfloat16)
        like = torch.empty(n, k, device=device, dtype=torch.bfloat16)
        _, weight, scales = fp4.rand_marlin_weight_mxfp4_like(like, 32)
        weights = [(weight.clone(), scales.clone()) for _ in range(copies)]
        return [partial(fp4.apply_fp4_marlin_linear, a, w, s, None, workspace, n, k) for w, s in weights]


class ExpertsTorch(Library):
    """Routed experts in plain PyTorch, one after another: no serving kernel, but the same sums; runs anywhere."""

    kernel, name, precision = "experts", "torch-reference", "bf16"
    activation_bytes = 2.0

    def shapes(self, scale: float) -> Iterator[Shape]:
        for tokens in (1, 4, 16, 64, 256, 1024, 4096) if scale >= 1 else (1, 16):
            # a rank of eight of a model with 256 experts of 2048
            yield {"m": tokens, "n": _wide(256, scale), "k": _wide(6144, scale), "groups": self.experts(scale)}

    def experts(self, scale: float) -> int:
        """Experts of the layer, [-]"""
        return EXPERTS if scale >= 1 else 2 * TOP_K

    def work(self, shape: Shape) -> KernelWork:
        tokens, experts = float(shape["m"]), float(shape["groups"])
        pairs = tokens * TOP_K
        return expert_work(
            tokens=tokens, experts=experts, assignments=pairs, slots=pairs, hidden=float(shape["k"]),
            inner=float(shape["n"]), touched=float(touched_experts(tokens, experts, TOP_K)),
            weight_bytes=weight_format(self.precision).bytes, activation_bytes=self.activation_bytes,
        )  # fmt: skip

    def weight_bytes(self, shape: Shape) -> float:
        return 3.0 * shape["groups"] * shape["n"] * shape["k"] * weight_format(self.precision).bytes

    def _routed(self, torch: Any, device: str, shape: Shape) -> tuple[Any, Any, Any]:
        x = torch.randn(shape["m"], shape["k"], device=device, dtype=torch.bfloat16) / 10
        scores = torch.randn(shape["m"], shape["groups"], device=device)
        weights, chosen = torch.topk(torch.softmax(scores, dim=-1), TOP_K)
        return x, weights.float(), chosen.to(torch.int32)

    def calls(self, torch: Any, device: str, shape: Shape, copies: int) -> Calls:
        x, weights, chosen = self._routed(torch, device, shape)

        def one() -> Callable[[], Any]:
            up = torch.randn(shape["groups"], 2 * shape["n"], shape["k"], device=device, dtype=torch.bfloat16) / 100
            down = torch.randn(shape["groups"], shape["k"], shape["n"], device=device, dtype=torch.bfloat16) / 100

            def call() -> Any:
                out = torch.zeros_like(x)
                for expert in chosen.unique().tolist():
                    rows, place = (chosen == expert).nonzero(as_tuple=True)
                    gate, value = (x[rows] @ up[expert].T).chunk(2, dim=-1)
                    part = (torch.nn.functional.silu(gate) * value) @ down[expert].T
                    out.index_add_(0, rows, part * weights[rows, place, None].to(part.dtype))
                return out

            return call

        return [one() for _ in range(copies)]


class ExpertsMarlin(ExpertsTorch):
    """vLLM's Marlin experts: weights of four or eight bits, BF16 activations."""

    name, capability = "vllm-marlin", (8.0, 99.0)
    module = "vllm.model_executor.layers.fused_moe.fused_marlin_moe"

    def __init__(self, precision: str) -> None:
        self.precision = precision

    def calls(self, torch: Any, device: str, shape: Shape, copies: int) -> Calls:
        utils = "vllm.model_executor.layers.quantization.utils"
        types = importlib.import_module("vllm.scalar_type").scalar_types
        marlin = importlib.import_module(self.module).fused_marlin_moe
        if self.precision == "mxfp4":
            quantise = importlib.import_module(f"{utils}.marlin_utils_fp4").rand_marlin_weight_mxfp4_like
            kind, group = types.float4_e2m1f.id, 32
        else:
            quantise = importlib.import_module(f"{utils}.marlin_utils_fp8").marlin_quant_fp8_torch
            kind, group = types.float8_e4m3fn.id, -1
        x, weights, chosen = self._routed(torch, device, shape)

        def stored(n: int, k: int) -> tuple[Any, Any]:
            made = [quantise(torch.randn(n, k, device=device, dtype=torch.bfloat16) / 10, group)[1:] for _ in range(4)]
            # four different experts, repeated: the kernel does not see what the weights say
            parts = [made[place % 4] for place in range(shape["groups"])]
            return torch.stack([one[0] for one in parts]), torch.stack([one[1] for one in parts])

        def one() -> Callable[[], Any]:
            (up, up_scale), (down, down_scale) = stored(2 * shape["n"], shape["k"]), stored(shape["k"], shape["n"])
            return lambda: marlin(
                x, up, down, None, None, up_scale, down_scale, topk_weights=weights, topk_ids=chosen,
                quant_type_id=kind, global_num_experts=shape["groups"],
            )  # fmt: skip

        return [one() for _ in range(copies)]


LIBRARIES: tuple[Library, ...] = (
    LatentFlashInfer(), LatentTorch(), ExpertsMarlin("mxfp4"), ExpertsMarlin("fp8"), ExpertsTorch(), Fp8Torch(),
    Fp8Vllm(), Mxfp4Torch(), Mxfp4Marlin(),
)  # fmt: skip
