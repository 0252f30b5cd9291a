"""Random operands of `measure_shapes.py` in four formats, their float32 references, and the calls that use them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import shape_kernels as kernel
import torch

FORMATS = {"bf16": kernel.BF16, "fp8-block": kernel.FP8, "int4": kernel.INT4, "mxfp4": kernel.MXFP4}
#: four-bit weights are unpacked by instructions of Hopper; elsewhere, and in Triton's interpreter, by plain ones
FAST = torch.cuda.is_available() and torch.version.hip is None and torch.cuda.get_device_capability() >= (9, 0)
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def blocks(k: int) -> int:
    """Blocks of 128 inputs; the last one is filled up with zeros."""
    return -(-k // 128)


@dataclass
class Weights:
    """One stored matrix, or one for each expert."""

    form: str
    n: int
    k: int
    stored: Any
    scales: Any
    experts: int = 1

    def plain(self, expert: int = 0) -> Any:
        """The matrix in float32, (n, whole blocks of k)."""
        tall, count = blocks(self.k), self.experts
        if self.form == "bf16":
            return self.stored.view(count, self.n, -1)[expert].float()
        if self.form == "fp8-block":
            scale = self.scales.view(count, -1, tall)[expert]
            scale = scale.repeat_interleave(128, 0)[: self.n].repeat_interleave(128, 1)
            return self.stored.view(count, self.n, -1)[expert].float() * scale
        packed = self.stored.view(count, tall, self.n, 64)[expert]
        codes = torch.cat([packed & 15, packed >> 4], dim=-1).long()
        if self.form == "int4":
            scale = self.scales.view(count, tall, self.n, 1)[expert].float()
            values = (codes.float() - 8) * scale
        else:
            table = torch.tensor([*E2M1, *(-one for one in E2M1)], device=codes.device)
            scale = torch.exp2(self.scales.view(count, tall, self.n, 4)[expert].float() - 127)
            values = table[codes] * scale.repeat_interleave(32, -1)
        return values.permute(1, 0, 2).reshape(self.n, tall * 128)


def make_weights(form: str, n: int, k: int, device: str, experts: int = 1) -> Weights:
    """Random weights whose product with normal activations is of the order of 1."""
    tall, small = blocks(k), float(k) ** -0.5

    def codes(*sizes: int) -> Any:
        return torch.randint(0, 256, sizes, device=device, dtype=torch.uint8)

    def spread(*sizes: int) -> Any:
        return torch.rand(*sizes, device=device) + 0.5

    if form == "bf16":
        stored = torch.randn(experts * n, tall * 128, device=device, dtype=torch.bfloat16).mul_(small)
        return Weights(form, n, k, stored, None, experts)
    if form == "fp8-block":
        stored = codes(experts * n, tall * 128).bitwise_and_(0xBF).view(torch.float8_e4m3fn)
        return Weights(form, n, k, stored, spread(experts * blocks(n), tall) * small * 2, experts)
    stored = codes(experts * tall, n, 64)
    if form == "int4":
        return Weights(form, n, k, stored, (spread(experts * tall, n) * small / 4).bfloat16(), experts)
    scales = torch.randint(119, 123, (experts * tall, n, 4), device=device, dtype=torch.uint8)
    return Weights(form, n, k, stored, scales, experts)


def activations(rows: int, k: int, device: str) -> Any:
    """Normal activations in BF16, filled up with zeros to whole blocks."""
    x = torch.zeros(rows, blocks(k) * 128, device=device, dtype=torch.bfloat16)
    x[:, :k] = torch.randn(rows, k, device=device, dtype=torch.bfloat16)
    return x


def in_fp8(x: Any) -> Any:
    """Activations as they come out of the FP8 format with a scale for 128 inputs, in float32."""
    tiles = x.float().view(x.shape[0], -1, 128)
    scale = tiles.abs().amax(-1, keepdim=True).clamp(min=1e-10) / 448.0
    return ((tiles / scale).to(torch.float8_e4m3fn).float() * scale).view(x.shape)


@dataclass(frozen=True)
class Tile:
    """How a product is cut."""

    bm: int
    bn: int
    warps: int
    stages: int
    splits: int = 1

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}w{self.warps}s{self.stages}/{self.splits}"


def tiles(m: int, n: int, k: int, form: str, cores: int) -> list[Tile]:
    """Cuts that are tried: few, so that the campaign fits its time."""
    if m <= 16:
        found = [Tile(16, 64, 4, 4), Tile(16, 128, 4, 4)] + [Tile(16, 128, 4, 6)] * (form in ("int4", "mxfp4"))
    elif m <= 64:
        found = [Tile(64, 128, 4, 3), Tile(32, 128, 4, 4), Tile(16, 128, 4, 4)]
    elif m <= 512:
        found = [Tile(64, 128, 4, 3), Tile(128, 128, 8, 3)]
    else:
        found = [Tile(128, 128, 8, 3), Tile(256, 128, 8, 2)]
    more = []
    for one in found:
        programs = -(-m // one.bm) * -(-n // one.bn)
        for splits in (2, 4, 8):
            if one.bm <= 64 and programs * splits <= 4 * cores and blocks(k) >= 4 * splits:
                more.append((abs(programs * splits - 2 * cores), Tile(one.bm, one.bn, one.warps, one.stages, splits)))
    return found + [tile for _, tile in sorted(more, key=lambda pair: pair[0])[:3]]


def quantise(x: Any) -> tuple[Any, Any]:
    """Space for activations in FP8 and their scales."""
    rows, wide = x.shape
    device = x.device
    return torch.empty(rows, wide, device=device, dtype=torch.float8_e4m3fn), torch.empty(
        wide // 128, rows, device=device
    )


def run_quantise(x: Any, q: Any, scales: Any) -> None:
    """Fill the space from `quantise`."""
    rows, wide = x.shape
    kernel.quantise[(rows, -(-wide // 1024))](q, scales, x, rows, wide, BLOCKS=8, num_warps=4)


def _launch(out: Any, a: Any, scale: Any, w: Weights, order: tuple[Any, Any], m: int, top: int, tile: Tile) -> None:
    pairs, owners = order
    rows_of_blocks = owners.numel() if top else -(-m // tile.bm)
    grid = (rows_of_blocks * -(-w.n // tile.bn), tile.splits)
    none = a if w.scales is None else w.scales
    kernel.product[grid](
        out, a, a if scale is None else scale, w.stored, none, pairs, owners, m, a.shape[0], w.n, w.k, tile.splits,
        FORMAT=FORMATS[w.form], TOP=top, BM=tile.bm, BN=tile.bn, FAST=FAST,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip


def product_call(x: Any, w: Weights, out: Any, tile: Tile) -> Callable[[], None]:
    """A product with the pass that quantises its activations and the sum of its parts."""
    m = x.shape[0]
    parts = torch.empty(tile.splits, m, w.n, device=x.device) if tile.splits > 1 else out
    none = torch.zeros(1, device=x.device, dtype=torch.int32)
    q, scale = quantise(x) if w.form == "fp8-block" else (x, None)

    def call() -> None:
        if scale is not None:
            run_quantise(x, q, scale)
        _launch(parts, q, scale, w, (none, none), m, 0, tile)
        if tile.splits > 1:
            grid = (-(-m * w.n // 1024),)
            kernel.reduce[grid](out, parts, m * w.n, SPLIT=tile.splits, BLOCK=1024, num_warps=4)

    return call


def order_of(chosen: Any, experts: int, bm: int) -> tuple[Any, Any]:
    """Pairs sorted by expert in whole blocks of rows, and the expert of each block."""
    flat = chosen.flatten().cpu()
    pairs, owners = [], []
    for expert in range(experts):
        mine = torch.nonzero(flat == expert).flatten().to(torch.int32)
        if len(mine):
            count = -(-len(mine) // bm)
            pairs.append(torch.cat([mine, torch.full((count * bm - len(mine),), flat.numel(), dtype=torch.int32)]))
            owners += [expert] * count
    device = chosen.device
    return torch.cat(pairs).to(device), torch.tensor(owners, dtype=torch.int32, device=device)


def experts_call(
    x: Any, pair: tuple[Weights, Weights], chosen: Any, shares: Any, out: Any, tile: Tile
) -> Callable[[], None]:
    """Both grouped products, the activation between them and the sum; routing and sorting are done before."""
    up, down = pair
    top, count, device = chosen.shape[1], chosen.numel(), x.device
    order = order_of(chosen, up.experts, tile.bm)
    inner, wide = up.n // 2, blocks(up.n // 2) * 128
    middle = torch.empty(count, up.n, device=device, dtype=torch.bfloat16)
    acted = torch.zeros(count, wide, device=device, dtype=torch.bfloat16)
    last = torch.empty(count, down.n, device=device, dtype=torch.bfloat16)
    fp8 = up.form == "fp8-block"
    (q, scale), (q2, scale2) = (quantise(x), quantise(acted)) if fp8 else ((x, None), (acted, None))

    def call() -> None:
        if fp8:
            run_quantise(x, q, scale)
        _launch(middle, q, scale, up, order, count, top, tile)
        kernel.gate[(count, -(-inner // 1024))](acted, middle, inner, wide, BLOCK=1024, num_warps=4)
        if fp8:
            run_quantise(acted, q2, scale2)
        _launch(last, q2, scale2, down, order, count, 1, tile)
        kernel.combine[(x.shape[0], -(-down.n // 1024))](out, last, shares, down.n, TOP=top, BLOCK=1024, num_warps=4)

    return call


def experts_reference(x: Any, pair: tuple[Weights, Weights], chosen: Any, shares: Any, rows: list[int]) -> Any:
    """The same in float32 for some tokens."""
    up, down = pair
    as_seen = in_fp8 if up.form == "fp8-block" else (lambda values: values.float())
    found = []
    for row in rows:
        total = torch.zeros(down.n, device=x.device)
        for place, expert in enumerate(chosen[row].tolist()):
            both = as_seen(x[row : row + 1]) @ up.plain(expert).T
            left, right = both.bfloat16().float().chunk(2, dim=-1)
            acted = torch.zeros(1, blocks(down.k) * 128, device=x.device, dtype=torch.bfloat16)
            acted[:, : down.k] = torch.nn.functional.silu(left) * right
            total += shares[row, place] * (as_seen(acted) @ down.plain(expert).T)[0]
        found.append(total)
    return torch.stack(found)


def cuts(latent_heads: int, head_dim: int) -> list[tuple[int, int, int]]:
    """Heads, keys of a turn and warps that are tried."""
    if latent_heads:
        return [(16, 32, 4), (64, 64, 8)] if latent_heads > 16 else [(16, 32, 4), (16, 64, 4)]
    return [(16, 64, 4), (16, 128, 4)][: 1 if head_dim == 256 else 2]


def attention_call(sizes: dict[str, int], q: Any, caches: tuple[Any, ...], table: Any, out: Any, cut: Any) -> Any:
    """Decode attention: shares of the keys, then one answer; `cut` is heads, keys of a turn, warps and shares."""
    batch, context, heads = sizes["batch"], sizes["context"], sizes["heads"]
    bg, bt, warps, splits = cut
    latent = len(caches) == 1
    wide = 512 if latent else sizes["head_dim"]
    parts = torch.empty(batch * heads * splits, wide, device=q.device)
    lse = torch.empty(batch * heads * splits, device=q.device)
    scale = float(sizes["head_dim"]) ** -0.5 * 1.4426950408889634
    page = sizes["page"]

    def call() -> None:
        if latent:
            grid = (batch * -(-heads // bg), splits)
            kernel.latent_decode[grid](
                parts, lse, q, caches[0], table, context, table.shape[1], splits, scale,
                HEADS=heads, PAGE=page, BG=bg, BT=bt, num_warps=warps, num_stages=2,
            )  # fmt: skip
        else:
            kv = sizes["kv_heads"]
            kernel.decode[(batch * kv, splits)](
                parts, lse, q, *caches, table, context, table.shape[1], splits, scale,
                KV=kv, G=heads // kv, D=wide, PAGE=page, BG=bg, BT=bt, num_warps=warps, num_stages=3,
            )  # fmt: skip
        kernel.merge[(batch * heads, wide // 64)](out, parts, lse, splits, D=wide, MOST=128, num_warps=4)

    return call


def attention_reference(sizes: dict[str, int], q: Any, caches: tuple[Any, ...], table: Any, request: int) -> Any:
    """The same in float64 for one request."""
    page, context, heads = sizes["page"], sizes["context"], sizes["heads"]
    t = torch.arange(context, device=q.device)
    rows = table[request].long()[t // page] * page + t % page
    x = q[request].double()
    if len(caches) == 1:
        c = caches[0].view(-1, 576)[rows].double()
        return torch.softmax(x @ c.T * float(sizes["head_dim"]) ** -0.5, -1) @ c[:, :512]
    kv, d = sizes["kv_heads"], sizes["head_dim"]
    k, v = (cache.view(-1, kv, d)[rows].double().transpose(0, 1) for cache in caches)
    x = x.view(kv, heads // kv, d)
    return (torch.softmax(x @ k.transpose(1, 2) * d**-0.5, -1) @ v).reshape(heads, d)
