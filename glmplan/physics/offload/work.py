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

__all__ = ["Mode", "OffloadWork", "Placement", "Unit", "offload_work"]

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


@dataclass(frozen=True, slots=True)
class OffloadWork:
    """Work of a step, split between host and accelerators; fields are (n,) arrays unless said otherwise.

    Attributes
    ----------
    host_bytes : array
        Offloaded weights that the step reads, [B]
    host_flop : array
        FLOP on them, [FLOP]
    held_bytes : float
        Offloaded weights altogether, [B]
    host_layers : float
        Layers that involve the host, [-]
    own_bytes, cache_bytes : array
        Weights and cache that the accelerators read, all of them together, [B]
    own_flop : array
        FLOP of the accelerators, [FLOP]
    layers : int
        Layers of the model, [-]
    compute : str
        Precision that the format of the largest matrices is meant for.
    """

    host_bytes: np.ndarray
    host_flop: np.ndarray
    held_bytes: float
    host_layers: float
    own_bytes: np.ndarray
    cache_bytes: np.ndarray
    own_flop: np.ndarray
    layers: int
    compute: str = "bf16"


def offload_work(
    model: ModelSpec,
    checkpoint: Checkpoint,
    placement: Placement,
    *,
    tokens: np.ndarray,
    sequences: np.ndarray,
    context: np.ndarray,
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
    tokens : (n,) array
        Tokens of the step: one for each decoding request, or a chunk of a prompt, [token]
    sequences : (n,) array
        Requests that they belong to, [-]
    context : (n,) array
        Mean number of keys that a token attends, [token]
    kv : str, optional
        KV cache format.

    Returns
    -------
    OffloadWork
        Bytes and FLOP of both sides.

    Notes
    -----
    Routing is taken as even: a step of ``t`` tokens visits ``E (1 − (1 − k/E)^t)`` experts of a layer. Not modelled:
    experts chosen for the accelerator because they are busy, sparse attention (all keys are read).

    Examples
    --------
    >>> from glmplan.physics.blocks.storage import uniform_checkpoint
    >>> from glmplan.facts.catalogue.models import load_model
    >>> work = offload_work(load_model("deepseek-v3"), uniform_checkpoint("int8"), Placement(1.0),
    ...                     tokens=np.ones(1), sequences=np.ones(1), context=np.zeros(1))
    >>> work.host_layers, round(float(work.host_flop[0]) / 1e9, 1)
    (58.0, 40.9)
    """
    columns = (tokens, sequences, context)
    tokens, sequences, context = np.broadcast_arrays(*(np.asarray(one, dtype=float) for one in columns))
    zero = np.zeros(tokens.shape)
    host_bytes, host_flop, own_bytes, own_flop = zero, zero, zero, zero
    held, host_layers, layers = 0.0, 0.0, 0
    stored: dict[str, float] = {}
    for part in segments(model, checkpoint):
        layers += part.count
        experts = routed_of(part.kind)
        for tensor, form in zip(part.tensors, part.formats, strict=True):
            routed = tensor.shard == "experts" and experts is not None
            size, weights = part.count * tensor.parameters * form.bytes, float(part.count * tensor.parameters)
            stored[form.compute] = stored.get(form.compute, 0.0) + weights
            read, used = zero + size, weights * tokens
            if routed and experts is not None:
                read = size * distinct_experts(experts, tokens) / experts.experts
                used = weights * tokens * experts.topk / experts.experts
            away = placement.share if routed or placement.unit == "layers" else 0.0
            flop = 2.0 * used if tensor.matmul else zero
            host_bytes, own_bytes = host_bytes + away * read, own_bytes + (1.0 - away) * read
            host_flop, own_flop = host_flop + away * flop, own_flop + (1.0 - away) * flop
            held += away * size
        if experts is not None or placement.unit == "layers":
            share = placement.share if placement.unit != "experts" else float(placement.share > 0)
            host_layers += part.count * share
    for tensor in vocabulary_tensors(model):
        if tensor.matmul:
            own_bytes = own_bytes + tensor.parameters * tensor_format(checkpoint, tensor, None).bytes
            own_flop = own_flop + 2.0 * tensor.parameters * sequences
    values, core = np.zeros_like(context), np.zeros_like(context)
    for name, count in model.runs:
        read, _, done = mixer_of(model.layers[name]).token_core(context, context)
        values, core = values + count * read[1], core + count * done
    cached, flop = sequences * values * kv_format(kv).bytes, tokens * core
    away = placement.share if placement.unit == "layers" else 0.0
    return OffloadWork(
        host_bytes=host_bytes + away * cached,
        host_flop=host_flop + away * flop,
        held_bytes=held,
        host_layers=host_layers,
        own_bytes=own_bytes,
        cache_bytes=(1.0 - away) * cached,
        own_flop=own_flop + (1.0 - away) * flop,
        layers=layers,
        compute=max(stored, key=lambda name: stored[name]),
    )
