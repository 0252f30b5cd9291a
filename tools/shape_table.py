"""The shapes that `measure_shapes.py` times, from `model_specs`, in the order of their importance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

TOKENS = (1, 4, 8, 16, 32, 64, 128, 256, 1024, 8192)
FORMATS = ("fp8-block", "int4", "mxfp4", "bf16")

#: model, outputs, inputs, what it is; of each tensor on one rank of one
PRODUCTS = (
    ("glm-5.1", 6144, 16384, "attention output"),
    ("glm-5.1", 4096, 6144, "shared expert, gate and up"),
    ("qwen3.5-122b-a10b", 20480, 3072, "linear attention, q, k, v and gate"),
    ("glm-5.1", 2624, 6144, "latent down, q and kv"),
    ("gpt-oss-120b", 5120, 2880, "q, k and v"),
    ("qwen3.5-27b", 34816, 5120, "dense, gate and up"),
    ("glm-5.3-flash", 4096, 16384, "attention output"),
    ("glm-5.1", 16384, 2048, "q up"),
    ("qwen3.5-122b-a10b", 3072, 8192, "attention output"),
    ("glm-5.1", 154880, 6144, "head"),
    ("glm-5.1", 6144, 2048, "shared expert, down"),
    ("qwen3.5-27b", 5120, 17408, "dense, down"),
    ("glm-5.3-flash", 16384, 1536, "q up"),
    ("gpt-oss-120b", 2880, 4096, "attention output"),
    ("glm-5.3-flash", 4096, 4096, "shared expert, gate and up"),
)  # fmt: skip
#: model, ranks that share each expert, experts, experts of a token, width, inner width of a rank, formats
EXPERTS = (
    ("gpt-oss-120b", 1, 128, 4, 2880, 2880, ("mxfp4", "bf16")),
    ("glm-5.1", 8, 256, 8, 6144, 256, ("fp8-block", "int4")),
    ("qwen3.5-122b-a10b", 1, 256, 8, 3072, 1024, ("fp8-block", "int4", "bf16")),
    ("glm-5.3-flash", 1, 288, 8, 4096, 2048, ("fp8-block", "int4")),
    ("qwen3.5-35b-a3b", 1, 256, 8, 2048, 512, ("fp8-block", "int4", "mxfp4")),
)
#: model, query heads, KV heads, values of a head
ATTENTION = (("gpt-oss-120b", 64, 8, 64), ("qwen3.5-122b-a10b", 32, 2, 256), ("qwen3-235b-a22b", 64, 4, 128))
#: model, heads of a rank
LATENT = (("glm-5.1", 64), ("glm-5.1 on 8", 8), ("deepseek-v3.1", 128))
#: model, heads, KV heads, values of a head; GLM-5.1's keys and values expanded for each head
PREFILL = (*ATTENTION, ("glm-5.1", 64, 64, 256))
LOADS = (
    (1, 1024), (1, 8192), (16, 1024), (16, 8192), (64, 4096), (1, 131072), (256, 1024), (4, 32768), (1, 32768),
    (64, 16384), (256, 8192), (16, 65536), (4, 4096), (4, 131072),
)  # fmt: skip
VOCABULARY = {"glm-5.1": 154880, "gpt-oss-120b": 201088, "qwen3.5-122b-a10b": 248320}
SELECTED = 2048


@dataclass(frozen=True)
class Case:
    """One shape of one kernel."""

    kernel: str
    precision: str
    model: str
    sizes: dict[str, int] = field(hash=False)


def _products(some: tuple[tuple[str, int, int, str], ...]) -> Iterator[Case]:
    for model, n, k, what in some:
        for form in ("bf16",) if what == "head" else FORMATS:
            for m in TOKENS[: -2 if what == "head" else None]:
                yield Case("gemm", form, model, {"m": m, "n": n, "k": k})


def _experts(start: int, stop: int) -> Iterator[Case]:
    for model, _, experts, top, hidden, inner, forms in EXPERTS[start:stop]:
        for form in forms:
            for m in (1, 4, 8, 16, 32, 64, 128, 256, 1024, 4096):
                yield Case("experts", form, model, {"m": m, "n": inner, "k": hidden, "experts": experts, "top_k": top})


def _decode(loads: tuple[tuple[int, int], ...]) -> Iterator[Case]:
    for model, heads in LATENT:
        for batch, context in loads:
            sizes = {"batch": batch, "context": context, "heads": heads, "head_dim": 256, "page": 64}
            yield Case("latent-decode", "bf16", model, sizes)
    for model, heads, kv, d in ATTENTION:
        for batch, context in loads:
            sizes = {"batch": batch, "context": context, "heads": heads, "kv_heads": kv, "head_dim": d, "page": 16}
            yield Case("decode-attention", "bf16", model, sizes)


def _sparse() -> Iterator[Case]:
    for model, heads in LATENT[:2]:
        for batch in (1, 4, 16, 64, 256):
            sizes = {"batch": batch, "context": SELECTED, "heads": heads, "head_dim": 256, "page": 1}
            yield Case("sparse-gather", "bf16", model, sizes)


def _prefill() -> Iterator[Case]:
    for batch, tokens in ((1, 1024), (1, 4096), (1, 16384), (8, 1024), (4, 4096), (1, 32768)):
        for model, heads, kv, d in PREFILL:
            sizes = {"batch": batch, "context": tokens, "heads": heads, "kv_heads": kv, "head_dim": d}
            yield Case("prefill-attention", "bf16", model, sizes)


def _host() -> Iterator[Case]:
    yield Case("wait", "", "", {})
    for way in ("pinned to device", "device to pinned", "pageable to device", "device to pageable", "device to device"):
        for size in (4096, 65536, 2**20, 2**24, 2**28, 2**30):
            if size < 2**30 or "pageable" not in way:
                yield Case("copy", "", way, {"n": size, "batch": 1})
    for way in ("pinned to device", "device to pinned", "device to device"):
        for size, count in ((16384, 1024), (65536, 1024), (2**20, 128)):
            yield Case("copy", "", way, {"n": size, "batch": count})
    for words in VOCABULARY.values():
        for batch in (1, 16, 64, 256):
            yield Case("sampler", "fp32", "", {"batch": batch, "n": words})


def cases() -> Iterator[Case]:
    """Every case, the most important ones first.

    Yields
    ------
    Case
        One shape.
    """
    yield from _host()
    yield from _products(PRODUCTS[:5])
    yield from _experts(0, 2)
    yield from _sparse()
    yield from _decode(LOADS[:7])
    yield from _experts(2, 3)
    yield from _products(PRODUCTS[5:10])
    yield from _prefill()
    yield from _decode(LOADS[7:])
    yield from _experts(3, 5)
    yield from _products(PRODUCTS[10:])
