"""What a step does when some weights are in host memory: bytes and FLOP of the host, and of the accelerators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from glmplan.errors import SpecError
from glmplan.facts.formats import kv_format
from glmplan.facts.schema.model import Checkpoint, ModelSpec
from glmplan.physics.blocks.experts import distinct_experts
from glmplan.physics.blocks.kinds import mixer_of, routed_of
from glmplan.physics.blocks.stack import vocabulary_tensors
from glmplan.physics.blocks.storage import segments, tensor_format
from glmplan.physics.points import StepPoints

__all__ = ["Mode", "OffloadWork", "Placement", "Unit", "offload_work", "share_of_bytes"]

#: what is in host memory: a share of the experts of each layer, whole expert blocks of a share of the layers, or
#: whole layers with their attention
Unit = Literal["experts", "expert-layers", "layers"]
#: ``cpu`` computes there; ``stream`` copies all offloaded weights in each step; ``touched`` copies only what the step
#: reads (reads of host memory over PCIe, as with unified addressing)
Mode = Literal["cpu", "stream", "touched"]


@dataclass(frozen=True, slots=True)
class Placement:
    """What stays in host memory.

    Attributes
    ----------
    share : float
        Share of the unit in host memory, 0 to 1, [-]
    unit : str
        ``experts``, ``expert-layers`` or ``layers``.
    mode : str
        ``cpu``, ``stream`` or ``touched``.
    """

    share: float
    unit: Unit = "experts"
    mode: Mode = "cpu"

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise SpecError("must lie between 0 and 1", field="share", value=self.share)


@dataclass(frozen=True, slots=True, eq=False)
class OffloadWork:
    """Work of a step, split between host and accelerators; fields are (n,) arrays unless said otherwise.

    Attributes
    ----------
    host_bytes : array
        Offloaded weights that the step reads, [B]
    host_flop, host_prompt_flop : array
        FLOP on them for decoding requests and for prompts, [FLOP]
    held_bytes : array
        Offloaded weights altogether, 0 where there is no step, [B]
    host_layers : float
        Layers that involve the host, [-]
    own_bytes, cache_bytes : array
        Weights and cache that the accelerators read, all of them together, [B]
    own_flop : array
        FLOP of the accelerators, [FLOP]
    layers : array
        Layers that are launched, 0 where there is no step, [-]
    compute : str
        Precision that the format of the largest matrices is meant for.
    """

    host_bytes: np.ndarray
    host_flop: np.ndarray
    host_prompt_flop: np.ndarray
    held_bytes: np.ndarray
    host_layers: float
    own_bytes: np.ndarray
    cache_bytes: np.ndarray
    own_flop: np.ndarray
    layers: np.ndarray
    compute: str = "bf16"


def offload_work(
    model: ModelSpec,
    checkpoint: Checkpoint,
    placement: Placement,
    points: StepPoints,
    *,
    tokens_per_request: float = 1.0,
    kv: str = "bf16",
) -> OffloadWork:
    """Split the work of a step between host and accelerators.

    Parameters
    ----------
    model : ModelSpec
        The model.
    checkpoint : Checkpoint
        How its weights are stored.
    placement : Placement
        What is in host memory.
    points : StepPoints
        What the steps hold; rows without requests and prompt tokens are no steps and do nothing.
    tokens_per_request : float, optional
        Tokens that a decoding request computes in a step: one more than are drafted, [token]
    kv : str, optional
        KV cache format.

    Returns
    -------
    OffloadWork
        Bytes and FLOP of both sides.

    Notes
    -----
    A step of ``t`` tokens visits the experts that `glmplan.physics.blocks.feed_forward.distinct_experts` expects. The
    prompt tokens of a step are taken as one prompt. Not modelled: experts chosen for the accelerator because they are
    busy, sparse latent attention (all keys are read), prompts that requests share, the passes of a draft model.

    Examples
    --------
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.facts.catalogue.models import load_model
    >>> one = np.ones(1)
    >>> work = offload_work(load_model("deepseek-v3"), uniform_checkpoint("int8"), Placement(1.0),
    ...                     StepPoints(one, 0 * one, 0 * one, 0 * one))
    >>> work.host_layers, round(float(work.host_flop[0]) / 1e9, 1)
    (58.0, 40.9)
    """
    columns = (points.decode_requests, points.decode_context, points.prefill_tokens, points.prefill_context)
    requests, context, prompt, keys = np.broadcast_arrays(*(np.asarray(one, dtype=float) for one in columns))
    decode = requests * tokens_per_request
    tokens = decode + prompt
    some, prompts = np.minimum(tokens, 1.0), np.minimum(prompt, 1.0)
    zero = np.zeros(tokens.shape)
    host_bytes, host_flop, host_prompt, own_bytes, own_flop = zero, zero, zero, zero, zero
    held, host_layers, layers = 0.0, 0.0, 0
    stored: dict[str, float] = {}
    for part in segments(model, checkpoint):
        layers += part.count
        experts = routed_of(part.kind)
        for tensor, form in zip(part.tensors, part.formats, strict=True):
            routed = tensor.shard == "experts" and experts is not None
            size, weights = part.count * tensor.parameters * form.bytes, float(part.count * tensor.parameters)
            stored[form.compute] = stored.get(form.compute, 0.0) + weights
            read = size * some
            if routed and experts is not None:
                read = size * distinct_experts(experts, tokens) / experts.experts
                weights = weights * experts.topk / experts.experts
            away = placement.share if routed or placement.unit == "layers" else 0.0
            flop = 2.0 * weights if tensor.matmul else 0.0
            host_bytes, own_bytes = host_bytes + away * read, own_bytes + (1.0 - away) * read
            host_flop, host_prompt = host_flop + away * flop * decode, host_prompt + away * flop * prompt
            own_flop = own_flop + (1.0 - away) * flop * tokens
            held += away * size
        if experts is not None or placement.unit == "layers":
            share = placement.share if placement.unit != "experts" else float(placement.share > 0)
            host_layers += part.count * share
    for tensor in vocabulary_tensors(model):
        if tensor.matmul:
            own_bytes = own_bytes + tensor.parameters * tensor_format(checkpoint, tensor, None).bytes * some
            own_flop = own_flop + 2.0 * tensor.parameters * (decode + prompts)
    away = placement.share if placement.unit == "layers" else 0.0
    cache_bytes = zero
    for name, count in model.runs:
        values, seen, read = mixer_of(model.layers[name]).token_core(context, keys)
        # the tokens of a request, and those of a prompt, read its cache once together
        cached = count * (requests * values[0] + prompts * values[1]) * kv_format(kv).bytes
        host_bytes, cache_bytes = host_bytes + away * cached, cache_bytes + (1.0 - away) * cached
        host_flop, host_prompt = host_flop + away * count * seen * decode, host_prompt + away * count * read * prompt
        own_flop = own_flop + (1.0 - away) * count * (seen * decode + read * prompt)
    return OffloadWork(
        host_bytes=host_bytes,
        host_flop=host_flop,
        host_prompt_flop=host_prompt,
        held_bytes=held * some,
        host_layers=host_layers,
        own_bytes=own_bytes,
        cache_bytes=cache_bytes,
        own_flop=own_flop,
        layers=layers * some,
        compute=max(stored, key=lambda name: stored[name]),
    )


def share_of_bytes(model: ModelSpec, checkpoint: Checkpoint, host_bytes: float) -> float:
    """Share of the routed experts that makes up a number of bytes.

    Parameters
    ----------
    model : ModelSpec
        The model.
    checkpoint : Checkpoint
        How its weights are stored.
    host_bytes : float
        Weights that are to stay in host memory, [B]

    Returns
    -------
    float
        The share; 1 where all experts are less than that, [-]

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> glm = load_model("glm-5.1")
    >>> round(share_of_bytes(glm, glm.checkpoint("nvfp4"), 160e9), 2)
    0.39
    """
    one = np.ones(1)
    every = offload_work(model, checkpoint, Placement(1.0), StepPoints(one, 0.0 * one, 0.0 * one, 0.0 * one))
    return min(host_bytes / max(float(every.held_bytes[0]), 1.0), 1.0)
