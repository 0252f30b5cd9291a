"""Weights of one rank: of a layer, of the vocabulary and of rotary tables, as kernels and allocators keep them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.facts.engines.loading import ExpertKernel
from glmplan.facts.engines.memory import MemoryRule
from glmplan.facts.formats import weight_format
from glmplan.facts.schema.model import Checkpoint, ModelSpec
from glmplan.physics.blocks.adapters import ADAPTER_BYTES, adapter_factors
from glmplan.physics.blocks.kinds import mixer_of
from glmplan.physics.blocks.lookup import TABLE
from glmplan.physics.blocks.stack import vocabulary_tensors
from glmplan.physics.blocks.storage import Segment, tensor_format
from glmplan.physics.blocks.tensor import Tensor
from glmplan.physics.memory.loaded import (
    HeldTensor,
    allocated_bytes,
    expert_padding,
    kept_format,
    rotary_table_bytes,
    rounding_bytes,
)
from glmplan.physics.memory.settings import MemorySettings

__all__ = ["Degrees", "add_rotary", "add_vocabulary", "layer_weights"]


@dataclass(frozen=True, eq=False)
class Degrees:
    """Parallel degrees of some layouts, as floats.

    Attributes
    ----------
    tp, pp, dp, ep, dcp : (n,) array
        Degrees, [-]
    """

    tp: np.ndarray
    pp: np.ndarray
    dp: np.ndarray
    ep: np.ndarray
    dcp: np.ndarray

    def share(self, tensor: Tensor) -> np.ndarray:
        """Share of a tensor on the fullest rank.

        Parameters
        ----------
        tensor : Tensor
            The tensor.

        Returns
        -------
        (n,) array
            [-]
        """
        return tensor.share(tp=self.tp, ep=self.ep, expert_ranks=self.tp * self.dp)


def layer_weights(
    model: str, part: Segment, degrees: Degrees, settings: MemorySettings, offloaded: float
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Weights of one layer on a rank.

    Parameters
    ----------
    model : str
        Name of the model, by which some engines keep tensors wider.
    part : Segment
        Layers that are alike.
    degrees : Degrees
        The layouts.
    settings : MemorySettings
        The launch.
    offloaded : float
        Share of the routed experts that stay in host memory, [-]

    Returns
    -------
    dict of str to (n,) array, (n,) array
        Bytes by class, and those in host memory, [B]

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.physics.blocks.storage import segments
    >>> llama, one = load_model("llama-3.1-8b"), np.array([1.0, 2.0])
    >>> layer = segments(llama, llama.checkpoint("bf16"))[0]
    >>> held, _ = layer_weights(llama.name, layer, Degrees(one, *[np.ones(2)] * 4), MemorySettings(), 0.0)
    >>> (sum(held.values()) / 2**20).round().tolist()
    [416.0, 208.0]
    """
    held, host = _held_tensors(model, part, degrees, settings, offloaded)
    zero = np.zeros_like(degrees.tp)
    found: dict[str, np.ndarray] = {}
    draft = part.name == "mtp"
    for one in held:
        name = "mtp" if draft else one.tensor.tensor_class
        found[name] = found.get(name, zero) + one.size
    rule, mixer = settings.rule, mixer_of(part.kind)
    if rule.absorbed_copy and mixer.absorbed_values:
        copies = mixer.absorbed_values * weight_format("bf16").bytes
        found["absorbed"] = copies / np.minimum(degrees.tp, mixer.heads)
    more = rounding_bytes(held, rule.loading)
    if np.any(more):
        name = "mtp" if draft else "rounding"
        found[name] = found.get(name, zero) + more
    if settings.adapters and not draft:
        factors = adapter_factors(part.tensors, tp=degrees.tp, ep=degrees.ep, expert_ranks=degrees.tp * degrees.dp)
        found["adapters"] = settings.adapters * settings.adapter_rank * ADAPTER_BYTES * factors.values
    return found, host


def _held_tensors(
    model: str, part: Segment, degrees: Degrees, settings: MemorySettings, offloaded: float
) -> tuple[list[HeldTensor], np.ndarray]:
    """Every tensor of one layer as a rank's accelerator keeps it, and the bytes that stay in host memory."""
    loading = settings.rule.loading
    kernels: dict[str, ExpertKernel | None] = {}
    shares: dict[tuple[object, ...], np.ndarray] = {}
    left_out = not settings.indexer and mixer_of(part.kind).indexed
    held, host = [], np.zeros_like(degrees.tp)
    for tensor, stored in zip(part.tensors, part.formats, strict=True):
        if left_out and tensor.tensor_class == "indexer":
            continue
        key = (tensor.shard, tensor.units, tensor.copies if tensor.shard == "experts" else 1)
        if key not in shares:
            shares[key] = degrees.share(tensor)
        form = kept_format(loading, model, tensor, stored)
        size = tensor.parameters * form.bytes * shares[key]
        if tensor.name == TABLE and settings.tables_on_host:
            host = host + size
            continue
        if tensor.tensor_class == "routed_experts":
            if form.name not in kernels:
                kernels[form.name] = settings.expert_kernel(form.name)
            size = size * expert_padding(tensor, kernels[form.name], degrees.tp * degrees.dp / degrees.ep)
            size = size * (1.0 + settings.copied_scales(form.name) / form.bits)
            host = host + offloaded * size
            size = (1.0 - offloaded) * size
        held.append(HeldTensor(tensor, form, size))
    return held, host


def add_vocabulary(
    weights: dict[str, np.ndarray],
    model: ModelSpec,
    checkpoint: Checkpoint,
    degrees: Degrees,
    settings: MemorySettings,
    ends: tuple[bool, np.ndarray],
) -> None:
    """Add embedding, output head and last norm of a stage to its weights.

    Parameters
    ----------
    weights : dict of str to (n,) array
        Bytes by class, which change, [B]
    model : ModelSpec
        The model.
    checkpoint : Checkpoint
        How it is stored.
    degrees : Degrees
        The layouts.
    settings : MemorySettings
        The launch.
    ends : tuple
        Whether the stage is the first, and for each layout whether it is the last.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> llama, one, held = load_model("llama-3.1-8b"), np.ones(1), {}
    >>> add_vocabulary(held, llama, llama.checkpoint("bf16"), Degrees(one, one, one, one, one), MemorySettings(),
    ...                (True, one > 0))
    >>> float(held["embedding"][0]) == 128256 * 4096 * 2
    True
    """
    first, last = ends
    rule, zero = settings.rule, np.zeros_like(degrees.tp)
    padded = -(-model.vocabulary // rule.vocabulary_multiple) * rule.vocabulary_multiple
    on_last = np.where(last, 1.0, 0.0)
    # the embedding stands on the first stage; a tied head needs a copy of it on the last
    embedding = zero + 1.0 if first else on_last * model.tied_embedding
    for tensor in vocabulary_tensors(model):
        size = tensor_format(checkpoint, tensor, None).bytes
        if tensor.tensor_class == "norm":
            held = tensor.parameters * size * on_last
        else:
            copies = embedding if tensor.tensor_class == "embedding" else on_last
            alone = np.ceil(padded / degrees.tp) * tensor.columns * size
            held = alone * copies
            if rule.loading.allocator != "files":
                rounded = allocated_bytes(alone, reserved=rule.loading.allocator == "reserved")
                weights["rounding"] = weights.get("rounding", zero) + (rounded - alone) * copies
        weights[tensor.tensor_class] = weights.get(tensor.tensor_class, zero) + held
    if model.extra_parameters and checkpoint.includes_tower and first and rule.loading.tower:
        whole = model.extra_parameters if settings.whole_tower else model.extra_replicated
        extra = (whole + (model.extra_parameters - whole) / degrees.tp) * weight_format("bf16").bytes
        weights["other"] = weights.get("other", zero) + extra


def add_rotary(
    weights: dict[str, np.ndarray],
    model: ModelSpec,
    parts: tuple[Segment, ...],
    counts: np.ndarray,
    rule: MemoryRule,
) -> None:
    """Add tables of rotary positions: one on every stage that has a layer of their width.

    Parameters
    ----------
    weights : dict of str to (n,) array
        Bytes by class, which change, [B]
    model : ModelSpec
        The model.
    parts : tuple of Segment
        Its layers, m kinds.
    counts : (n, m) array
        Layers of each kind on the stage, [-]
    rule : MemoryRule
        What the engine keeps.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.physics.blocks.storage import segments
    >>> llama, held = load_model("llama-3.1-8b"), {}
    >>> layers = segments(llama, llama.checkpoint("bf16"))
    >>> add_rotary(held, llama, layers, np.array([[32]]), MemorySettings().rule)
    >>> round(float(held["rotary"][0]) / 2**20)
    32
    """
    widths: dict[int, np.ndarray] = {}
    for number, part in enumerate(parts):
        if rotary := mixer_of(part.kind).rotary_values:
            here = counts[:, number] > 0
            widths[rotary] = widths.get(rotary, np.zeros_like(here)) | here
    for rotary, here in widths.items():
        size = rotary_table_bytes([rotary], model.max_context, rule.loading, multimodal=model.multimodal_positions)
        if size:
            weights["rotary"] = weights.get("rotary", np.zeros(here.shape)) + np.where(here, size, 0.0)
