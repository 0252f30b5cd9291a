"""Memory of one accelerator as an engine sees it: what the driver lists less what the driver keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from glmplan.physics.memory.observed import MemoryFit, load_memory_fit

if TYPE_CHECKING:
    from glmplan.facts.schema.accelerator import Accelerator

__all__ = ["PartMemory", "part_memory"]


@dataclass(frozen=True, slots=True)
class PartMemory:
    """Memory of one accelerator as an engine sees it.

    Attributes
    ----------
    listed : float
        What the driver lists, [B]
    total : float
        What an engine can address, [B]
    total_sd : float
        Its standard deviation; 0 when it is published, [B]
    link : str
        ``pcie``, ``nvlink`` or ``unified``.
    free_before_load : float or None
        Measured free memory before weights are loaded, in place of the observed mean, [B]
    capability : str
        Compute capability, empty where none is known: engines choose communicators by it.
    peer_to_peer : bool
        Whether accelerators can reach each other's memory; False only where a source says that they cannot.
    """

    listed: float
    total: float
    total_sd: float
    link: str
    free_before_load: float | None = None
    capability: str = ""
    peer_to_peer: bool = True


def part_memory(part: Accelerator, *, fit: MemoryFit | None = None) -> PartMemory:
    """Memory of an accelerator as an engine sees it.

    Parameters
    ----------
    part : Accelerator
        The part.
    fit : MemoryFit, optional
        Observed terms; those in `calibration` if not given.

    Returns
    -------
    PartMemory
        Its memory.

    Raises
    ------
    UnknownFact
        If its memory is not published.

    Examples
    --------
    >>> from glmplan.facts.catalogue.accelerators import load_accelerator
    >>> found = part_memory(load_accelerator("rtx-pro-6000-server"))
    >>> round(found.total / 2**30, 2), found.total_sd
    (94.97, 0.0)
    """
    listed = float(part.need("memory"))
    fit = fit or load_memory_fit()
    link = "unified" if part.unified_memory else (part.link_kind or "pcie")
    if part.memory_usable is not None:
        usable, sd = float(part.memory_usable), 0.0
    elif part.unified_memory:
        usable, sd = listed, 0.0
    else:
        usable, sd = listed - fit.driver.mean, fit.driver.sd
    peers = part.peer_to_peer is not False
    return PartMemory(listed, usable, sd, link, capability=part.compute_capability or "", peer_to_peer=peers)
