"""The link that a group of ranks crosses when nothing is known but the part."""

from __future__ import annotations

from glmplan.facts.schema.accelerator import Accelerator
from glmplan.physics.step.structure import LinkPeak

__all__ = ["link_of"]


def link_of(accelerator: Accelerator, ranks: int) -> LinkPeak:
    """The link between ranks of a group when no host is named.

    Parameters
    ----------
    accelerator : Accelerator
        The part.
    ranks : int
        Size of the group, [-]

    Returns
    -------
    LinkPeak
        Peak bandwidth of one direction; PCIe arithmetic where the part has no scale-up link of its own.
    """
    kind = accelerator.scaleup or "pcie"
    if kind in ("nvlink", "infinity-fabric", "hccs") and accelerator.scaleup_bandwidth:
        return LinkPeak("nvlink", accelerator.scaleup_bandwidth)
    if accelerator.scaleup_bandwidth and kind in ("ethernet", "thunderbolt"):
        return LinkPeak("fabric", accelerator.scaleup_bandwidth)
    generation, lanes = accelerator.pcie_generation, accelerator.pcie_lanes
    if generation and lanes:
        # PCIe: 2.5 GT/s doubling each generation from the first, 16 lanes of generation 5 are 63 GB/s each way
        return LinkPeak("pcie", 63.0e9 * 2.0 ** (generation - 5) * lanes / 16)
    return LinkPeak("unified", accelerator.memory_bandwidth or 1e11)
