"""How a checkpoint stores each layer: runs of layers that are alike in structure and in formats."""

from __future__ import annotations

from dataclasses import dataclass

from glmplan.facts.formats import WeightFormat, weight_format
from glmplan.facts.remembered import remembered
from glmplan.facts.schema.model import Checkpoint, LayerKind, ModelSpec
from glmplan.physics.blocks.stack import draft_once_tensors, layer_tensors, mtp_tensors, vocabulary_tensors
from glmplan.physics.blocks.tensor import Tensor

__all__ = ["Segment", "checkpoint_bytes", "segments", "tensor_format", "uniform_checkpoint"]

#: classes that quantised checkpoints leave alone unless they say otherwise
_KEPT_WIDE = ("embedding", "head", "norm", "router", "mtp_projection", "streams")
#: classes that stay in BF16 unless a checkpoint names them
_NAMED_ONLY = ("norm", "streams")


@dataclass(frozen=True, slots=True)
class Segment:
    """Layers that are alike: one kind, one set of formats.

    Attributes
    ----------
    name : str
        Name of the layer kind; ``mtp`` for MTP layers.
    kind : LayerKind
        What a layer is made of.
    layers : tuple of int
        Their numbers; MTP layers count on after the last main layer.
    tensors : tuple of Tensor
        Weights of one layer.
    formats : tuple of WeightFormat
        Format of each tensor, in the same order.
    """

    name: str
    kind: LayerKind
    layers: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    formats: tuple[WeightFormat, ...]

    @property
    def count(self) -> int:
        """Layers in it, [-]"""
        return len(self.layers)

    @property
    def bytes(self) -> float:
        """Stored bytes of one layer, [B]"""
        return sum(t.parameters * f.bytes for t, f in zip(self.tensors, self.formats, strict=True))


def uniform_checkpoint(format_name: str, *, source: str = "asked for; not a published checkpoint") -> Checkpoint:
    """A checkpoint that stores all matrices of the layers in one format, ends, norms and routers in BF16.

    Parameters
    ----------
    format_name : str
        Name of the weight format.
    source : str, optional
        Where it is from.

    Returns
    -------
    Checkpoint
        The description.

    Raises
    ------
    SpecError
        If there is no such format.

    Examples
    --------
    >>> uniform_checkpoint("fp8").formats["embedding"]
    'bf16'
    """
    weight_format(format_name)
    kept = {} if format_name == "bf16" else {name: "bf16" for name in _KEPT_WIDE}
    return Checkpoint(name=format_name, default=format_name, formats=kept, source=source)


def tensor_format(checkpoint: Checkpoint, tensor: Tensor, layer: int | None) -> WeightFormat:
    """Format in which a checkpoint stores a tensor.

    Parameters
    ----------
    checkpoint : Checkpoint
        The checkpoint.
    tensor : Tensor
        The tensor.
    layer : int or None
        Number of its layer, [-]; None for the vocabulary ends.

    Returns
    -------
    WeightFormat
        The format; norms and biases are never quantised.

    Examples
    --------
    >>> norm = Tensor("norm", "norm", 4096, 1, matmul=False)
    >>> tensor_format(uniform_checkpoint("nvfp4"), norm, 0).name
    'bf16'
    """
    if checkpoint.file_bits_per_weight is not None:
        return weight_format(f"bpw:{checkpoint.file_bits_per_weight}")
    default = "bf16" if tensor.tensor_class in _NAMED_ONLY else checkpoint.default
    name = checkpoint.formats.get(tensor.name) or checkpoint.formats.get(tensor.tensor_class, default)
    if layer is not None:
        for exception in checkpoint.exceptions:
            if layer in exception.layers:
                name = exception.formats.get(tensor.name) or exception.formats.get(tensor.tensor_class, name)
    return weight_format(name)


def segments(model: ModelSpec, checkpoint: Checkpoint, *, mtp: bool = False) -> tuple[Segment, ...]:
    """Group the layers of a model by structure and formats.

    Parameters
    ----------
    model : ModelSpec
        The model.
    checkpoint : Checkpoint
        How it is stored.
    mtp : bool, optional
        Whether the layers that draft are included, [-]

    Returns
    -------
    tuple of Segment
        Every layer occurs in exactly one segment.
    """
    return _segments(model, checkpoint, mtp)


@remembered(records=2)
def _segments(model: ModelSpec, checkpoint: Checkpoint, mtp: bool) -> tuple[Segment, ...]:
    grouped: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    parts: dict[tuple[str, tuple[str, ...]], tuple[LayerKind, tuple[Tensor, ...], tuple[WeightFormat, ...]]] = {}

    # layers of one kind differ only where an exception names them, so the first of them answers for the others
    like: dict[tuple[str, tuple[bool, ...]], tuple[str, tuple[str, ...]]] = {}

    def add(name: str, kind: LayerKind, layer: int) -> None:
        # what a block drafter holds once lies with its first stage
        once = name == "mtp" and layer == len(model.layer_names)
        alike = (name, (once, *(layer in exception.layers for exception in checkpoint.exceptions)))
        if alike not in like:
            # a draft head is a checkpoint of its own
            stored = uniform_checkpoint("bf16") if name == "mtp" and model.mtp is None else checkpoint
            tensors = mtp_tensors(model) if name == "mtp" else layer_tensors(kind, model.hidden)
            tensors += draft_once_tensors(model) if once else ()
            formats = tuple(tensor_format(stored, tensor, layer) for tensor in tensors)
            like[alike] = (name, tuple(one.name for one in formats))
            parts[like[alike]] = (kind, tensors, formats)
        grouped.setdefault(like[alike], []).append(layer)

    for layer, name in enumerate(model.layer_names):
        add(name, model.layers[name], layer)
    if mtp and model.draft_layers is not None:
        kind, count = model.draft_layers
        for extra in range(count):
            add("mtp", kind, len(model.layer_names) + extra)
    return tuple(
        Segment(key[0], parts[key][0], tuple(layers), parts[key][1], parts[key][2]) for key, layers in grouped.items()
    )


def checkpoint_bytes(model: ModelSpec, checkpoint: Checkpoint) -> float:
    """Bytes of all weights in a checkpoint's files.

    Parameters
    ----------
    model : ModelSpec
        The model.
    checkpoint : Checkpoint
        How it is stored.

    Returns
    -------
    float
        [B]
    """
    mtp = checkpoint.includes_mtp and model.mtp is not None
    total = sum(part.bytes * part.count for part in segments(model, checkpoint, mtp=mtp))
    ends = vocabulary_tensors(model)
    total += sum(tensor.parameters * tensor_format(checkpoint, tensor, None).bytes for tensor in ends)
    if checkpoint.includes_mtp and model.mtp is not None:
        again = ("embedding", "head") if model.mtp.own_embedding else ("head",) if model.mtp.own_head else ()
        own = sum(t.parameters * tensor_format(checkpoint, t, None).bytes for t in ends if t.tensor_class in again)
        total += own * model.mtp.layers
    return total + model.extra_parameters * checkpoint.includes_tower * weight_format("bf16").bytes
