"""Triton kernels that `measure_shapes.py` times: products and experts in four formats, and decode attention.

They are written as the public ones are, not copied: a product computes the transposed tile, so that unpacked weights go
to the tensor cores from registers and one token does not fill 64 rows. Four-bit weights are stored in blocks of 128
inputs, `(block, output, 64 bytes)`: the low half of byte j is input j of the block, the high half input j + 64.
"""

from __future__ import annotations

import triton
import triton.language as tl

BF16, FP8, INT4, MXFP4 = 0, 1, 2, 3


@triton.jit
def _int4_bytes(packed):
    """Both nibbles of a byte, less 8, as BF16: two at a time, as Marlin does.

    128 + nibble is exact in BF16, whose seven bits of mantissa end in the nibble.
    """
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 low, high, less;
        mov.b32 less, 0x43084308;
        and.b32 low, $4, 0x0F0F0F0F;
        shr.b32 high, $4, 4;
        and.b32 high, high, 0x0F0F0F0F;
        prmt.b32 $0, low, 0x43434343, 0x4140;
        prmt.b32 $1, low, 0x43434343, 0x4342;
        prmt.b32 $2, high, 0x43434343, 0x4140;
        prmt.b32 $3, high, 0x43434343, 0x4342;
        sub.rn.bf16x2 $0, $0, less;
        sub.rn.bf16x2 $1, $1, less;
        sub.rn.bf16x2 $2, $2, less;
        sub.rn.bf16x2 $3, $3, less;
        }""",
        "=&r,=&r,=&r,=&r,r", [packed], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def _fp4_bytes(packed):
    """Both nibbles of a byte as BF16, less the factor 2^126: sign, exponent and mantissa in place."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 low, high, sign;
        and.b32 low, $4, 0x0F0F0F0F;
        shr.b32 high, $4, 4;
        and.b32 high, high, 0x0F0F0F0F;
        prmt.b32 $0, low, 0, 0x4140;
        prmt.b32 $1, low, 0, 0x4342;
        prmt.b32 $2, high, 0, 0x4140;
        prmt.b32 $3, high, 0, 0x4342;
        and.b32 sign, $0, 0x00080008;  shl.b32 sign, sign, 12;
        and.b32 $0, $0, 0x00070007;    shl.b32 $0, $0, 6;    or.b32 $0, $0, sign;
        and.b32 sign, $1, 0x00080008;  shl.b32 sign, sign, 12;
        and.b32 $1, $1, 0x00070007;    shl.b32 $1, $1, 6;    or.b32 $1, $1, sign;
        and.b32 sign, $2, 0x00080008;  shl.b32 sign, sign, 12;
        and.b32 $2, $2, 0x00070007;    shl.b32 $2, $2, 6;    or.b32 $2, $2, sign;
        and.b32 sign, $3, 0x00080008;  shl.b32 sign, sign, 12;
        and.b32 $3, $3, 0x00070007;    shl.b32 $3, $3, 6;    or.b32 $3, $3, sign;
        }""",
        "=&r,=&r,=&r,=&r,r", [packed], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4,
    )  # fmt: skip


@triton.jit
def _times(a, b, FAST: tl.constexpr):
    """Product in BF16, two at a time."""
    if FAST:
        return tl.inline_asm_elementwise(
            "mul.rn.bf16x2 $0, $1, $2;", "=r,r,r", [a, b], dtype=tl.bfloat16, is_pure=True, pack=2
        )
    return (a * b).to(tl.bfloat16)


@triton.jit
def _e2m1(bits):
    """FP4 as BF16: sign, exponent and mantissa in place; the factor 2^126 is in the scale."""
    return (((bits & 8) << 12) | ((bits & 7) << 6)).to(tl.uint16).to(tl.bfloat16, bitcast=True)


@triton.jit
def _e8m0(scales, ROWS: tl.constexpr):
    """Two scales of 32 weights each as 64 factors in BF16, times 2^126."""
    factors = ((scales.to(tl.uint16) + 126) << 7).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return tl.reshape(tl.broadcast_to(factors[:, :, None], (ROWS, 2, 32)), (ROWS, 64))


@triton.jit(do_not_specialize=["m", "a_rows", "splits"])
def product(
    out, a, a_scale, b, b_scale, pairs, owners, m, a_rows, n, k, splits,
    FORMAT: tl.constexpr, TOP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """out[m, n] = a[a_rows, k] · b[n, k]ᵀ; with TOP, row blocks belong to experts and rows to token-expert pairs."""
    blocks_n, blocks_k = tl.cdiv(n, BN), tl.cdiv(k, 128)
    pid = tl.program_id(0)
    blocks_m, width = tl.num_programs(0) // blocks_n, 8 * blocks_n
    first = pid // width * 8
    size = tl.minimum(blocks_m - first, 8)
    block_m, block_n = first + (pid % width) % size, (pid % width) // size
    rows = block_m * BM + tl.arange(0, BM)
    expert = tl.full((), 0, tl.int64)
    if TOP > 0:
        rows = tl.load(pairs + rows)
        expert = tl.load(owners + block_m).to(tl.int64)
    valid = rows < m
    source = tl.where(valid, rows, 0)
    if TOP > 0:
        source = source // TOP
    columns = block_n * BN + tl.arange(0, BN)
    inside = columns < n
    wide = blocks_k * 128
    half = tl.arange(0, 64)
    share = tl.cdiv(blocks_k, splits)
    begin = tl.program_id(1) * share
    acc = tl.zeros((BN, BM), dtype=tl.float32)
    a_at = a + source.to(tl.int64)[None, :] * wide
    for block in range(begin, tl.minimum(begin + share, blocks_k)):
        if FORMAT == 1:
            whole = tl.arange(0, 128)
            x = tl.load(a_at + block * 128 + whole[:, None])
            w = tl.load(b + expert * n * wide + columns[:, None] * wide + block * 128 + whole[None, :],
                        mask=inside[:, None], other=0.0)  # fmt: skip
            factor = tl.load(b_scale + (expert * tl.cdiv(n, 128) + block_n * BN // 128) * blocks_k + block)
            factors = tl.load(a_scale + block * a_rows + source) * factor
            acc += tl.dot(w, x) * factors[None, :]
        else:
            x0 = tl.load(a_at + block * 128 + half[:, None])
            x1 = tl.load(a_at + block * 128 + 64 + half[:, None])
            if FORMAT == 0:
                b_at = b + expert * n * wide + columns[:, None] * wide + block * 128 + half[None, :]
                w0 = tl.load(b_at, mask=inside[:, None], other=0.0)
                w1 = tl.load(b_at + 64, mask=inside[:, None], other=0.0)
            else:
                tile = (expert * blocks_k + block) * n + columns
                packed = tl.load(b + tile[:, None] * 64 + half[None, :], mask=inside[:, None], other=0)
                if FORMAT == 2:
                    if FAST:
                        w0, w1 = _int4_bytes(packed)
                    else:
                        w0 = ((packed & 15).to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True) - 136.0
                        w1 = ((packed >> 4).to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True) - 136.0
                else:
                    two = tl.arange(0, 2)
                    s_at = b_scale + tile[:, None] * 4 + two[None, :]
                    s0 = tl.load(s_at, mask=inside[:, None], other=0)
                    s1 = tl.load(s_at + 2, mask=inside[:, None], other=0)
                    if FAST:
                        w0, w1 = _fp4_bytes(packed)
                    else:
                        w0, w1 = _e2m1((packed & 15).to(tl.uint16)), _e2m1((packed >> 4).to(tl.uint16))
                    w0, w1 = _times(w0, _e8m0(s0, BN), FAST), _times(w1, _e8m0(s1, BN), FAST)
            if FORMAT == 2:
                part = tl.dot(w1, x1, tl.dot(w0, x0))
                acc += part * tl.load(b_scale + tile, mask=inside, other=0.0).to(tl.float32)[:, None]
            else:
                acc = tl.dot(w1, x1, tl.dot(w0, x0, acc))
    rows = rows + tl.program_id(1) * m
    at = out + rows.to(tl.int64)[None, :] * n + columns[:, None]
    tl.store(at, acc.to(out.dtype.element_ty), mask=inside[:, None] & valid[None, :])


@triton.jit(do_not_specialize=["count"])
def reduce(out, parts, count, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    """Sum of the parts of a product that was split along its inputs."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for part in tl.static_range(SPLIT):
        total += tl.load(parts + part * count + at, mask=at < count, other=0.0)
    tl.store(out + at, total.to(tl.bfloat16), mask=at < count)


@triton.jit(do_not_specialize=["rows"])
def quantise(out, scales, x, rows, k, BLOCKS: tl.constexpr):
    """Activations to FP8 with a scale for each token and 128 inputs."""
    row, blocks = tl.program_id(0).to(tl.int64), tl.cdiv(k, 128)
    block = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    at = row * blocks * 128 + block[:, None] * 128 + tl.arange(0, 128)[None, :]
    inside = block < blocks
    values = tl.load(x + at, mask=inside[:, None], other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values), 1), 1e-10) / 448.0
    tl.store(out + at, (values / scale[:, None]).to(tl.float8e4nv), mask=inside[:, None])
    tl.store(scales + block * rows + row, scale, mask=inside)


@triton.jit
def gate(out, x, inner, wide, BLOCK: tl.constexpr):
    """SiLU of the first half times the second."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    left = tl.load(x + row * 2 * inner + at, mask=at < inner, other=0.0).to(tl.float32)
    right = tl.load(x + row * 2 * inner + inner + at, mask=at < inner, other=0.0).to(tl.float32)
    tl.store(out + row * wide + at, (left * tl.sigmoid(left) * right).to(tl.bfloat16), mask=at < inner)


@triton.jit
def combine(out, y, weights, n, TOP: tl.constexpr, BLOCK: tl.constexpr):
    """Sum over the experts of a token with the router's weights."""
    token = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for choice in tl.static_range(TOP):
        value = tl.load(y + (token * TOP + choice) * n + at, mask=at < n, other=0.0).to(tl.float32)
        total += value * tl.load(weights + token * TOP + choice)
    tl.store(out + token * n + at, total.to(tl.bfloat16), mask=at < n)


@triton.jit(do_not_specialize=["context", "pages", "splits"])
def decode(
    out, lse, q, keys, values, table, context, pages, splits, scale,
    KV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr, BG: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Attention of one new token over a paged cache: one program for each request, KV head and share of the keys."""
    request, kv, split = tl.program_id(0).to(tl.int64) // KV, tl.program_id(0) % KV, tl.program_id(1)
    heads, d = tl.arange(0, BG), tl.arange(0, D)
    q_at = (request * KV * G + kv * G + heads)[:, None] * D + d[None, :]
    x = tl.load(q + q_at, mask=heads[:, None] < G, other=0.0)
    share = tl.cdiv(tl.cdiv(context, splits), BT) * BT
    best = tl.full((BG,), -1e30, dtype=tl.float32)
    total = tl.zeros((BG,), dtype=tl.float32)
    acc = tl.zeros((BG, D), dtype=tl.float32)
    for start in range(split * share, tl.minimum(split * share + share, context), BT):
        t = start + tl.arange(0, BT)
        page = tl.load(table + request * pages + t // PAGE, mask=t < context, other=0).to(tl.int64)
        row = ((page * PAGE + t % PAGE) * KV + kv) * D
        k = tl.load(keys + row[None, :] + d[:, None], mask=t[None, :] < context, other=0.0)
        s = tl.dot(x, k) * scale
        s = tl.where(t[None, :] < context, s, -1e30)
        new = tl.maximum(best, tl.max(s, 1))
        p, old = tl.exp2(s - new[:, None]), tl.exp2(best - new)
        v = tl.load(values + row[:, None] + d[None, :], mask=t[:, None] < context, other=0.0)
        acc = tl.dot(p.to(tl.bfloat16), v, acc * old[:, None])
        best, total = new, total * old + tl.sum(p, 1)
    at = (request * KV * G + kv * G + heads) * splits + split
    tl.store(lse + at, best + tl.log2(tl.maximum(total, 1e-30)), mask=heads < G)
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    tl.store(out + at[:, None] * D + d[None, :], acc, mask=heads[:, None] < G)


@triton.jit(do_not_specialize=["context", "pages", "splits"])
def latent_decode(
    out, lse, q, cache, table, context, pages, splits, scale,
    HEADS: tl.constexpr, PAGE: tl.constexpr, BG: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Absorbed MLA over latents of 512 + 64 values; with PAGE 1 the table lists the tokens that an indexer chose."""
    blocks = tl.cdiv(HEADS, BG)
    request, group, split = tl.program_id(0).to(tl.int64) // blocks, tl.program_id(0) % blocks, tl.program_id(1)
    heads, d, r = group * BG + tl.arange(0, BG), tl.arange(0, 512), tl.arange(0, 64)
    q_at = q + (request * HEADS + heads)[:, None] * 576
    x = tl.load(q_at + d[None, :], mask=heads[:, None] < HEADS, other=0.0)
    xr = tl.load(q_at + 512 + r[None, :], mask=heads[:, None] < HEADS, other=0.0)
    share = tl.cdiv(tl.cdiv(context, splits), BT) * BT
    best = tl.full((BG,), -1e30, dtype=tl.float32)
    total = tl.zeros((BG,), dtype=tl.float32)
    acc = tl.zeros((BG, 512), dtype=tl.float32)
    for start in range(split * share, tl.minimum(split * share + share, context), BT):
        t = start + tl.arange(0, BT)
        page = tl.load(table + request * pages + t // PAGE, mask=t < context, other=0).to(tl.int64)
        row = (page * PAGE + t % PAGE) * 576
        c = tl.load(cache + row[:, None] + d[None, :], mask=t[:, None] < context, other=0.0)
        cr = tl.load(cache + row[None, :] + 512 + r[:, None], mask=t[None, :] < context, other=0.0)
        s = tl.dot(xr, cr, tl.dot(x, tl.trans(c))) * scale
        s = tl.where(t[None, :] < context, s, -1e30)
        new = tl.maximum(best, tl.max(s, 1))
        p, old = tl.exp2(s - new[:, None]), tl.exp2(best - new)
        acc = tl.dot(p.to(tl.bfloat16), c, acc * old[:, None])
        best, total = new, total * old + tl.sum(p, 1)
    at = (request * HEADS + heads) * splits + split
    tl.store(lse + at, best + tl.log2(tl.maximum(total, 1e-30)), mask=heads < HEADS)
    acc = acc / tl.maximum(total, 1e-30)[:, None]
    tl.store(out + at[:, None] * 512 + d[None, :], acc, mask=heads[:, None] < HEADS)


@triton.jit(do_not_specialize=["splits"])
def merge(out, parts, lse, splits, D: tl.constexpr, MOST: tl.constexpr):
    """One answer of the shares of a head's keys."""
    head, s = tl.program_id(0).to(tl.int64), tl.arange(0, MOST)
    d = tl.program_id(1) * 64 + tl.arange(0, 64)
    each = tl.load(lse + head * splits + s, mask=s < splits, other=-1e30)
    weight = tl.exp2(each - tl.max(each, 0))
    weight = weight / tl.sum(weight, 0)
    at = parts + (head * splits + s)[:, None] * D + d[None, :]
    value = tl.load(at, mask=s[:, None] < splits, other=0.0)
    tl.store(out + head * D + d, tl.sum(value * weight[:, None], 0).to(tl.bfloat16))
