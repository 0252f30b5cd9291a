"""A published set of weights: which class of tensors is stored in which format, and how large the files are."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from glmplan.facts.formats import kv_format, weight_format
from glmplan.facts.schema.validation import Frozen
from glmplan.units import parse_quantity

__all__ = ["Checkpoint", "FormatException", "TensorClass", "TensorKey"]

#: classes of tensors that a checkpoint can store in different formats
TensorClass = Literal[
    "embedding",
    "head",
    "attention",
    "latent_down",
    "indexer",
    "recurrent",
    "dense",
    "shared_experts",
    "routed_experts",
    "router",
    "norm",
    "mtp_projection",
    "streams",
    "lookup",
    "other",
]

#: a class of tensors, or one tensor by its name within the layer where it differs from its class (``self_attn.o_proj``)
TensorKey = TensorClass | Annotated[str, Field(pattern=r"^(self_attn|mlp|linear_attn|mixer|lookup|draft)\.[\w.]+$")]


class FormatException(Frozen):
    """Layers (numbers, MTP layers counted on) in which some tensor classes are stored otherwise."""

    layers: tuple[int, ...]
    formats: dict[TensorKey, str]


class Checkpoint(Frozen):
    """One published set of weights: which class of tensors is stored in which format.

    `bytes_published` is what the publisher states [B], `file_bits_per_weight` replaces the class formats for mixtures
    such as GGUF files whose mean bits are all that is known. With `includes_tower` false the image tower is a file of
    its own, which the size does not count. `smaller` and `larger` say by which share of the computed size the true
    files may be smaller or larger (ends of a 90 % interval); nothing for what is published. `fp8_scales` says of FP8
    that is not in blocks what has a scale of its own; None where nobody says it.
    """

    name: str
    repository: str | None = None
    formats: dict[TensorKey, str] = {}
    default: str = "bf16"
    exceptions: tuple[FormatException, ...] = ()
    kv_default: str | None = None
    includes_mtp: bool = True
    includes_tower: bool = True
    file_bits_per_weight: float | None = Field(None, gt=0.5, le=32)
    bytes_published: str | None = None
    smaller: float = Field(0.0, ge=0, lt=1)
    larger: float = Field(0.0, ge=0, lt=1)
    fp8_scales: Literal["matrix", "row"] | None = None
    source: str
    note: str | None = None

    @property
    def form(self) -> str:
        """In which files it is published, as engines say what they read; MLX and EXL3 files are named so."""
        plain = "safetensors" if self.file_bits_per_weight is None else "gguf"
        return next((one for one in ("mlx", "exl3") if self.name.startswith(one)), plain)

    @property
    def bulk(self) -> str:
        """The format of routed experts, or of all where there are none, as walls and host kernels name it.

        FP8 that is not in blocks is named by what has a scale: ``fp8-row``, ``fp8-matrix``, or ``fp8`` if nobody says.
        """
        found = self.formats.get("routed_experts") or self.default
        return f"{found}-{self.fp8_scales}" if found == "fp8" and self.fp8_scales else found

    @model_validator(mode="after")
    def _known_formats(self) -> Checkpoint:
        stated = [self.default, *self.formats.values()]
        for name in {*stated, *(form for one in self.exceptions for form in one.formats.values())}:
            weight_format(name)
        kv_format(self.kv_default or "bf16")
        parse_quantity(self.bytes_published or "1 B", "bytes")
        return self
