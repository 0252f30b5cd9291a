"""Machines that keep weights in host memory, as the pages that report on them describe them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt

from glmplan.facts.schema.host import PcieLink
from glmplan.facts.schema.validation import Frozen
from glmplan.units import Bytes, BytesPerSecond

__all__ = ["HostKernel", "HybridMatch", "HybridSystem"]

#: instructions that the CPU's expert kernels use: AMX tiles, AVX-512 (or AVX2 of the same generation), plain loops
HostKernel = Literal["amx", "avx512", "generic"]


class HybridMatch(Frozen):
    """Which rows of a ledger ran on a machine: part of their source address, a pattern on their scenario, or ids."""

    page: str
    scenario: str | None = None
    rows: tuple[str, ...] = ()


class HybridSystem(Frozen):
    """One machine with its settings.

    `memory_bandwidth` is the data sheet's figure of all sockets; `on_accelerator` are experts of each layer that stay
    on the accelerators, for one, two, four and eight of them (or one figure for any count); with `fills_accelerators`
    as many as fit; `host_layers` the expert layers in host memory; prompts longer than `streams_above` are computed on
    the accelerator from streamed weights.
    """

    name: str
    title: str
    accelerator: str | None = None
    sockets: PositiveInt
    cores: PositiveInt | None = None
    memory_bandwidth: BytesPerSecond
    memory: Bytes | None = None
    link: PcieLink | None = None
    kernel: HostKernel
    numa_aware: bool = True
    streams_above: PositiveInt | None = None
    chunk: PositiveInt = 8192
    on_accelerator: tuple[int, ...] = ()
    host_layers: int | None = Field(default=None, ge=1)
    fills_accelerators: bool = False
    weights: str | None = None
    weights_bits: float | None = None
    host_weights: str | None = None
    source: str
    assumptions: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    match: HybridMatch

    @property
    def cpu(self) -> str:
        """The CPU by name: entries with one CPU are settings of like machines, and are left out together."""
        return self.title.split(",")[0].split("×")[-1].strip()
