"""The work of a layer's mixer in one step: attention over a cache, or a recurrence with its state."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from glmplan.facts.schema.model import LayerKind
from glmplan.physics.blocks.kinds import mixer_of
from glmplan.physics.blocks.mixer import CoreKernel, CoreStep
from glmplan.physics.kernels.slots import Degrees, Tokens, add_kernel
from glmplan.physics.kernels.utilisation import KernelParams, KernelWork
from glmplan.physics.step.collectives import context_exchange_seconds, over_links
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
    Which kernels there are is said by the mixer (`glmplan.physics.blocks.mixer.Mixer.core`); here they get the part's
    fits and what the engine makes of them: padded tiles, packed heads, prefixes read once.
    """
    part = structure.part
    rate, bandwidth = part.rate("bf16"), part.bandwidth
    decoding, prompting = np.minimum(step.requests, 1.0), np.minimum(step.prompt, 1.0)
    requests, prompt = np.maximum(step.requests, 1e-9), np.maximum(step.prompt, 1.0)
    verify = np.maximum(step.decode, 1e-9) / requests
    drafted = bool(np.any(verify > 1.0))
    core = mixer_of(kind).core(
        CoreStep(
            tokens=step,
            degrees=degrees,
            requests=requests,
            verify=verify,
            prompt=prompt,
            kv_bytes=structure.kv_bytes,
            packed_bytes=structure.latent_bytes,
            sparse=structure.sparse,
            splits=structure.attention.verify_splits if drafted else structure.attention.splits,
            engine=structure.engine,
            family=part.family,
        )
    )
    if core.exchange is not None and structure.counts_links and (degrees.dcp > 1.0).any():
        _add_exchange(layer, structure, step, degrees.dcp, *core.exchange)
    for one in core.decode:
        work, params = _as_run(one, structure, step, verify if drafted else None)
        add_kernel(layer, work, params, peak_flop=rate, bandwidth=bandwidth, active=decoding,
                   slots=("attention_fixed", "cache", "cache"))  # fmt: skip
    for one in core.prompt:
        params = structure.kernel(one.kernel, "bf16")
        add_kernel(layer, _no_negative_bytes(one.work), params, peak_flop=rate, bandwidth=bandwidth, active=prompting,
                   slots=("attention_fixed", "prefill_attention", "prefill_attention"))  # fmt: skip
    if core.index is not None:
        layer["cache"] = layer["cache"] + core.index.decode_bytes / bandwidth + core.index.decode_flop / rate
        layer["prefill_attention"] = layer["prefill_attention"] + core.index.prompt_flop / rate


def _as_run(
    one: CoreKernel, structure: StepWork, step: Tokens, drafted: np.ndarray | None
) -> tuple[KernelWork, KernelParams]:
    """Work and parameters of a decode kernel as the engine runs it; `drafted` is None or tokens verified a request."""
    if not one.reads:
        return one.work, structure.kernel(one.kernel, "bf16")
    work, params = one.work, structure.attention_kernel(one.kernel)
    if one.reads == "heads" and drafted is not None:
        work, params = _padded(work, params, structure, drafted, step, one.readers)
    if one.reads == "latent" and structure.attention.latent_rows:
        work, params = _packed(work, params, structure)
    return _shared_once(work, params, step), params


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
    latency, payload = over_links(structure, "context", context_exchange_seconds, step.decode, query, out, dcp)
    layer["collective"] = layer["collective"] + np.minimum(step.requests, 1.0) * latency
    layer["collective_bytes"] = layer["collective_bytes"] + payload
