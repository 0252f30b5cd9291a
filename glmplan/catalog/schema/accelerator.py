"""Record of an accelerator's data sheet, each value with a source.

Peaks, memory, links and power. No value is an achieved one: measurements are in `measured`, and the share of a peak
that an engine reaches is a fit in `calibration/fits`. An unpublished value is `None`, and requesting it raises
`UnknownFact` with the names of the fields.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from glmplan.catalog.schema.validation import Frozen
from glmplan.errors import SpecError, UnknownFact
from glmplan.units import Bytes, BytesPerSecond, FlopPerSecond, Watts, parse_quantity

__all__ = [
    "PRECISIONS",
    "Accelerator",
    "Contradiction",
    "Implied",
    "Measured",
    "PowerPoint",
    "Precision",
    "ServedPoint",
]

Precision = Literal["bf16", "fp8", "fp4", "int8"]
#: precisions with a dense peak rate of their own
PRECISIONS: tuple[Precision, ...] = ("bf16", "fp8", "fp4", "int8")

_DIMENSION = {
    "memory": "bytes",
    "memory_free": "bytes",
    "memory_usable": "bytes",
    "memory_bandwidth": "bytes per second",
    "scaleup_bandwidth": "bytes per second",
    "host_link_bandwidth": "bytes per second",
    "tdp": "watts",
    "power": "watts",
    **{f"peak.{precision}": "FLOP per second" for precision in PRECISIONS},
}


def _quantity(field: str, text: str) -> float:
    if field not in _DIMENSION:
        raise SpecError("is not a quantity of an accelerator", value=field, choices=_DIMENSION)
    return parse_quantity(text, _DIMENSION[field])


class Contradiction(Frozen):
    """One of several published values of a field; `used`: the one in use."""

    field: str
    value: str
    source: str
    used: bool
    why: str

    @property
    def quantity(self) -> float:
        """Return the value in the base unit of the field."""
        return _quantity(self.field, self.value)


class Measured(Frozen):
    """Value measured on the accelerator, never used for the data sheet's."""

    field: str
    value: str
    conditions: str
    source: str

    @model_validator(mode="after")
    def _is_a_quantity(self) -> Measured:
        _quantity(self.field, self.value)
        return self

    @property
    def quantity(self) -> float:
        """Return the value in the base unit of the field."""
        return _quantity(self.field, self.value)


class Implied(Frozen):
    """Bounds of an unpublished value, implied by published speeds."""

    field: str
    low: str
    high: str | None = None
    reasoning: str
    source: str

    @property
    def bounds(self) -> tuple[float, float | None]:
        """Return lower and upper bound in the base unit of the field."""
        return _quantity(self.field, self.low), _quantity(self.field, self.high) if self.high else None


class PowerPoint(Frozen):
    """Matrix rate reached under a power limit."""

    power: Watts
    rate: FlopPerSecond


class ServedPoint(Frozen):
    """Decode speed of a served model under a power limit.

    Relative to the lowest limit at the same concurrency.
    """

    power: Watts
    requests: int = Field(ge=1)
    speed: float = Field(gt=0, allow_inf_nan=False)


class Accelerator(Frozen):
    """Accelerator: a card, a module, a system on chip, or a CPU socket."""

    name: str
    full_name: str
    kind: Literal["gpu", "npu", "soc", "cpu-socket", "system"] = "gpu"
    vendor: str
    aliases: tuple[str, ...] = ()
    alias_notes: dict[str, str] = Field(default_factory=dict)
    printed_as: tuple[str, ...] = ()  # names that only the vendor's tools use
    compute_capability: str | None = None
    same_chip: str | None = None
    #: accelerator with the same chip and memory and a higher power limit, measured under the `tdp` of this one, which
    #: has no published matrix rates
    rated: str | None = None
    multiprocessors: int | None = Field(default=None, ge=1)

    memory: Bytes | None = None
    memory_usable: Bytes | None = None
    memory_note: str | None = None
    memory_bandwidth: BytesPerSecond | None = None
    unified_memory: bool = False
    #: least share of a memory shared with the host that a started system was seen to leave free
    free_share: float | None = Field(default=None, gt=0, le=1)
    peak: dict[Precision, FlopPerSecond] = Field(default_factory=dict)
    unsupported: tuple[Precision, ...] = ()
    tdp: Watts | None = None
    #: of a card: open fans blow into the machine, a blower out of it, passive cards need its air flow
    cooling: Literal["open-fans", "blower", "passive"] | None = None

    pcie_generation: int | None = Field(default=None, ge=1, le=8)
    pcie_lanes: int | None = Field(default=None, ge=1, le=256)
    scaleup: Literal["pcie", "nvlink", "nvlink-bridge", "infinity-fabric", "hccs", "ethernet", "thunderbolt"] | None = (
        None
    )
    scaleup_bandwidth: BytesPerSecond | None = None
    scaleup_note: str | None = None
    scaleup_domain: int | None = Field(default=None, ge=1)
    scaleup_reduces: bool | None = None
    peer_to_peer: bool | None = None
    host_link: Literal["pcie", "nvlink-c2c", "on-chip"] | None = None
    host_link_bandwidth: BytesPerSecond | None = None

    source: str
    sources: dict[str, str] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    contradictions: tuple[Contradiction, ...] = ()
    measured: tuple[Measured, ...] = ()
    implied: tuple[Implied, ...] = ()
    power_sweep: tuple[PowerPoint, ...] = ()
    power_served: tuple[ServedPoint, ...] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Accelerator:
        if self.rated is not None and (self.tdp is None or self.peak):
            raise SpecError("needs a tdp, and no rates of its own", field="rated", value=self.rated)
        both = set(self.peak) & set(self.unsupported)
        if both:
            raise SpecError(f"{', '.join(sorted(both))} cannot have a rate and be unsupported", field="unsupported")
        known = {*type(self).model_fields, *_DIMENSION}
        for field in self.sources:
            if field not in known:
                raise SpecError("is not a field that can have a source", field="sources", value=field, choices=known)
        for entry in self.contradictions:
            if entry.field in _DIMENSION and entry.used:
                value, used = self.figure(entry.field), entry.quantity
                if value is None or abs(value - used) > 1e-9 * used:
                    raise SpecError(
                        "is marked as used but differs from the entry", field=entry.field, value=entry.value
                    )
        for alias in self.alias_notes:
            if alias not in self.aliases:
                raise SpecError(
                    "has a note but is not an alias", field="alias_notes", value=alias, choices=self.aliases
                )
        return self

    def figure(self, field: str) -> float | None:
        """Return a value in the base unit of its field; None: not published.

        Examples
        --------
        >>> from glmplan.catalog.entries.accelerators import load_accelerator
        >>> load_accelerator("m3-ultra").figure("peak.bf16") is None
        True
        """
        if field.startswith("peak."):
            precision = field.removeprefix("peak.")
            if precision not in PRECISIONS:
                raise SpecError("is not a precision", field="peak", value=precision, choices=PRECISIONS)
            return self.peak.get(precision)
        if field not in type(self).model_fields:
            raise SpecError("is not a field of an accelerator", value=field, choices=type(self).model_fields)
        value: float | None = getattr(self, field)
        return value

    def need(self, *fields: str) -> Any:
        """Return values in base units; raise if any is not published.

        One name returns a number, several a tuple.

        Examples
        --------
        >>> from glmplan.catalog.entries.accelerators import load_accelerator
        >>> load_accelerator("nizwo-a1").need("memory", "memory_bandwidth")
        Traceback (most recent call last):
        glmplan.errors.UnknownFact: nizwo-a1: unknown: memory, bandwidth; ...
        """
        values = tuple(self.figure(field) for field in fields)
        missing = [field for field, value in zip(fields, values, strict=True) if value is None]
        if missing:
            words = ", ".join(field.replace("memory_bandwidth", "bandwidth") for field in missing)
            text = f"{self.name}: unknown: {words}"
            for entry in self.implied:
                if entry.field in missing:
                    range_ = f"at least {entry.low}" if entry.high is None else f"{entry.low} to {entry.high}"
                    text += f"; published speeds would imply {entry.field} {range_} ({entry.reasoning})"
            raise UnknownFact(text)
        return values[0] if len(values) == 1 else values

    def supports(self, precision: Precision) -> bool | None:
        """Return True if the hardware multiplies matrices in a precision, or None.

        None: unknown.

        Examples
        --------
        >>> from glmplan.catalog.entries.accelerators import load_accelerator
        >>> load_accelerator("a100-80gb-sxm").supports("fp8")
        False
        """
        if precision in self.unsupported:
            return False
        return True if precision in self.peak else None

    @property
    def link_kind(self) -> Literal["nvlink", "pcie"] | None:
        """Return `nvlink` for any scale-up fabric of a host, else `pcie`."""
        if self.scaleup in ("nvlink", "infinity-fabric", "hccs"):
            return "nvlink"
        return "pcie" if self.pcie_generation is not None or self.scaleup == "pcie" else None

    @property
    def runs_on_one_memory(self) -> bool:
        """Return True for one shared memory and no published matrix rate.

        Accelerator and processor share the memory. Only decode is predicted for these, by bytes. Others with one memory
        (Strix Halo, DGX Spark) are predicted as accelerators, with their measured kernels and engines.

        Examples
        --------
        >>> from glmplan.catalog.entries.accelerators import load_accelerator
        >>> [load_accelerator(one).runs_on_one_memory for one in ("m3-ultra", "ryzen-ai-max-395", "h100-sxm")]
        [True, False, False]
        """
        return self.unified_memory and not self.peak and self.memory_bandwidth is not None
