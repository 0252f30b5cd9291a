"""The work of a layer's mixer in one step: attention over a cache, or a recurrence with its state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glmplan.facts.engines.kernels import latent_prompt_kernel
from glmplan.facts.schema.model import GroupedQuery, LatentAttention, LayerKind, Recurrent
from glmplan.physics.blocks import grouped_query, latent
from glmplan.physics.kernels.counts import attention_decode_work, attention_prefill_work, latent_decode_work
from glmplan.physics.kernels.slots import Degrees, Tokens, add_kernel
from glmplan.physics.kernels.state_counts import convolution_work, recurrent_decode_work, recurrent_prefill_work
from glmplan.physics.kernels.utilisation import KernelParams, KernelWork
from glmplan.physics.step.collectives import context_exchange_seconds
from glmplan.physics.step.structure import StepWork

__all__ = ["add_attention"]


def add_attention(
    layer: dict[str, np.ndarray], structure: StepWork, kind: LayerKind, step: Tokens, degrees: Degrees
) -> None:
    """Add the work of a layer's mixer: attention over keys and values or latents, or a recurrence.

    Parameters
    ----------
    layer : dict of str to (n,) array
        Slots of the layer, changed in place, [s] or [-]
    structure : StepWork
        Model, formats, part and link.
    kind : LayerKind
        The layer.
    step : Tokens
        What the step computes.
    degrees : Degrees
        The layout.

    Notes
    -----
    Not modelled: kernels of other recurrences than the gated delta rule, whose tables stand for them; a cached latent
    prefix that is expanded to keys and values for the prompt behind it.
    """
    part, mixer = structure.part, kind.mixer
    rate, bandwidth = part.rate("bf16"), part.bandwidth
    decoding, prompting = np.minimum(step.requests, 1.0), np.minimum(step.prompt, 1.0)
    requests, prompt = np.maximum(step.requests, 1e-9), np.maximum(step.prompt, 1.0)
    verify = np.maximum(step.decode, 1e-9) / requests
    drafted = bool(np.any(verify > 1.0))
    splits = structure.attention.verify_splits if drafted else structure.attention.splits
    decode = {"peak_flop": rate, "bandwidth": bandwidth, "slots": ("attention_fixed", "cache", "cache"),
              "active": decoding}  # fmt: skip
    prefill = {"peak_flop": rate, "bandwidth": bandwidth, "active": prompting,
               "slots": ("attention_fixed", "prefill_attention", "prefill_attention")}  # fmt: skip
    if isinstance(mixer, GroupedQuery):
        heads = _on_rank(mixer.heads, degrees)
        gathered = np.minimum(heads * degrees.dcp, mixer.heads)
        kv_heads = _on_rank(mixer.kv_heads, degrees)
        wide = (mixer.head_dim + (mixer.v_head_dim or mixer.head_dim)) / 2.0
        keys = np.maximum(grouped_query.attended(mixer, step.context), 1.0) / degrees.dcp
        work = attention_decode_work(requests, keys, heads=gathered, kv_heads=kv_heads, head_dim=wide,
                                     kv_bytes=structure.kv_bytes, queries=verify, splits=splits)  # fmt: skip
        params = structure.attention_kernel("decode-attention")
        if drafted:
            work, params = _padded(work, params, structure, verify, step, gathered / kv_heads)
        _add_exchange(layer, structure, step, degrees.dcp, gathered * mixer.head_dim, gathered * wide)
        add_kernel(layer, _shared_once(work, params, step), params, **decode)
        seen = grouped_query.attended(mixer, step.keys)
        work = attention_prefill_work(1.0, prompt, prefix=seen - (prompt + 1.0) / 2.0, heads=heads, kv_heads=kv_heads,
                                      head_dim=wide)  # fmt: skip
        add_kernel(layer, _no_negative_bytes(work), structure.kernel("prefill-attention", "bf16"), **prefill)
    elif isinstance(mixer, LatentAttention):
        heads = _on_rank(mixer.heads, degrees)
        gathered = np.minimum(heads * degrees.dcp, mixer.heads)
        wide, narrow = latent.absorbed_widths(mixer)
        width = structure.latent_bytes or latent.cache_values_per_token(mixer) * structure.kv_bytes
        index = latent.index_key_bytes(mixer) if structure.sparse else 0
        keys = np.maximum(latent.attended(mixer, step.context, sparse=structure.sparse), 1.0) / degrees.dcp
        work = latent_decode_work(requests, keys, heads=gathered, kv_bytes=width / wide, latent=float(narrow),
                                  rope=float(wide - narrow), queries=verify, splits=splits)  # fmt: skip
        params = structure.attention_kernel("latent-decode")
        if structure.attention.latent_rows:
            work, params = _packed(work, params, structure)
        _add_exchange(layer, structure, step, degrees.dcp, gathered * float(wide), gathered * narrow)
        add_kernel(layer, _shared_once(work, params, step), params, **decode)
        seen = latent.attended(mixer, step.keys, sparse=structure.sparse)
        key, value = latent.expanded_widths(mixer)
        work = attention_prefill_work(1.0, prompt, prefix=seen - (prompt + 1.0) / 2.0, heads=heads, kv_heads=heads,
                                      head_dim=float(key), value_dim=float(value))  # fmt: skip
        # sparse kernels read the latents as they are
        dense = not (structure.sparse and index)
        kernel = latent_prompt_kernel(structure.engine, part.family) if dense else "latent-prefill"
        add_kernel(layer, _no_negative_bytes(work), structure.kernel(kernel, "bf16"), **prefill)
        if structure.sparse and index:
            # the indexer scores every key for every query, on each rank the same
            scores = latent.indexer_flop(mixer, step.context) * step.decode / degrees.dcp / rate
            layer["cache"] = layer["cache"] + step.requests * step.context * index / degrees.dcp / bandwidth + scores
            layer["prefill_attention"] = (
                layer["prefill_attention"] + step.prompt * latent.indexer_flop(mixer, step.keys) / rate
            )
    elif isinstance(mixer, Recurrent):
        # kernels of the gated delta rule stand for all kinds of recurrence: no table holds the others
        key_heads, value_heads = _on_rank(mixer.key_heads, degrees), _on_rank(mixer.value_heads, degrees)
        shape = {"key_heads": key_heads, "value_heads": value_heads, "key_dim": mixer.key_dim,
                 "value_dim": mixer.value_dim}  # fmt: skip
        channels = 2.0 * mixer.key_dim * key_heads + mixer.value_dim * value_heads
        window = convolution_work(requests, verify, channels=channels)
        update = recurrent_decode_work(requests, queries=verify, **shape)
        add_kernel(layer, update, structure.kernel("recurrent-decode", "bf16"), **decode)
        add_kernel(layer, window, structure.kernel("convolution-decode", "bf16"), **decode)
        scan, window = recurrent_prefill_work(1.0, prompt, **shape), convolution_work(1.0, prompt, channels=channels)
        add_kernel(layer, scan, structure.kernel("recurrent-prefill", "bf16"), **prefill)
        add_kernel(layer, window, structure.kernel("convolution-prefill", "bf16"), **prefill)


def _on_rank(heads: int, degrees: Degrees) -> np.ndarray:
    """Heads of each rank; fewer heads than ranks are held several times."""
    return heads / np.minimum(degrees.tp, heads)


#: requests from which vLLM reads a prefix that all share once for all (`use_cascade_attention`) [-]
_CASCADE = 8.0


def _padded(
    work: KernelWork,
    params: KernelParams,
    structure: StepWork,
    verify: np.ndarray,
    step: Tokens,
    readers: np.ndarray | float,
) -> tuple[KernelWork, KernelParams]:
    """Verification by blocks that compute a whole tile of rows for one head: its padding costs, at one core's rate."""
    rows, part = structure.attention.tile_rows, structure.part
    if not rows or not part.multiprocessors:
        return work, params
    together = np.where((step.shared > 0) & (step.requests >= _CASCADE), step.requests, 1.0)
    padded = work.flop * np.maximum(rows / (verify * together), 1.0)
    # a key and a value of a head: 4 * width FLOP for each row, 2 * width values; the product is that of prompts
    share = structure.kernel("prefill-attention", "bf16").flop
    rate = share * part.rate("bf16") / part.multiprocessors / rows * structure.kv_bytes / 2.0
    # such blocks read a tile of keys, then multiply it; those of the heads that share keys read them at once, all but
    # one from the cache
    alone, cached = (1.0 / (1.0 / rate + 1.0 / read) for read in (params.block, params.block * params.block_gain))
    first = 1.0 / readers + (1.0 - 1.0 / readers) * alone / cached
    return (
        replace(work, flop=padded, rows=np.inf, block_bytes=work.block_bytes * first),
        replace(params, block=alone, block_gain=1.0),
    )


def _packed(work: KernelWork, params: KernelParams, structure: StepWork) -> tuple[KernelWork, KernelParams]:
    """Heads and queries of one latent in blocks of full height, which multiply as the kernel of prompts does.

    A second block finds the latents in the cache.
    """
    height = structure.attention.latent_rows
    rows = np.ceil(work.rows / height) * height
    share = structure.kernel("prefill-attention", "bf16").flop
    return replace(work, flop=work.flop * rows / work.rows, rows=rows), replace(params, flop=share)


def _shared_once(work: KernelWork, params: KernelParams, step: Tokens) -> KernelWork:
    """Keys that all requests share come from memory once; the others find them in the cache as far as they fit."""
    if not step.shared.any():
        return work
    requests, share = np.maximum(step.requests, 1.0), step.shared / np.maximum(step.context, 1.0)
    return params.from_cache(work, work.bytes * share / requests, share * (1.0 - 1.0 / requests))


def _no_negative_bytes(work: KernelWork) -> KernelWork:
    """Several short prompts in one chunk see fewer keys than one long one would: cache bytes may not go negative."""
    return replace(work, bytes=np.maximum(work.bytes, 0.0))


def _add_exchange(
    layer: dict[str, np.ndarray],
    structure: StepWork,
    step: Tokens,
    dcp: np.ndarray,
    query: np.ndarray,
    out: np.ndarray,
) -> None:
    """Ranks that hold parts of a context gather the queries, and scatter what each read."""
    latency, payload = context_exchange_seconds(structure, step.decode, query, out, dcp)
    layer["collective"] = layer["collective"] + np.minimum(step.requests, 1.0) * latency
    layer["collective_bytes"] = layer["collective_bytes"] + payload
