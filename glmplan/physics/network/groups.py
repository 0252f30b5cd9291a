"""Which links the groups of a layout cross on a host: one class for each kind of group, as the network found it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from glmplan.errors import SpecError
from glmplan.physics.network.collectives import LinkClass
from glmplan.physics.network.links import LinkFits, link_for_group, link_of_transfers, load_link_fits

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host

__all__ = ["LayoutLinks", "LinksByPoint", "hand_over_link", "links_of_layout"]


@dataclass(frozen=True, slots=True, repr=False)
class LayoutLinks:
    """The links that the groups of a layout cross. A group of one crosses none, and its class says so.

    Attributes
    ----------
    tensor : LinkClass
        Of the ranks that share a layer (TP).
    experts : LinkClass
        Of the ranks over which experts lie (TP × DP).
    context : LinkClass
        Of the ranks that share a context (DCP).
    hand_over : LinkClass
        Between a rank and its successor in the next pipeline stage (PP).
    """

    tensor: LinkClass
    experts: LinkClass
    context: LinkClass
    hand_over: LinkClass

    def __repr__(self) -> str:
        kinds = ", ".join(f"{name} {getattr(self, name).kind}" for name in self.__slots__)
        return f"<LayoutLinks {kinds}>"

    def classes(self, group: str) -> tuple[tuple[LinkClass, np.ndarray | slice], ...]:
        """The link of a kind of group, and the points that cross it: all.

        Parameters
        ----------
        group : str
            Name of a field.

        Returns
        -------
        tuple of (LinkClass, slice)
            One pair.
        """
        return ((getattr(self, group), slice(None)),)


@dataclass(frozen=True, slots=True, eq=False)
class LinksByPoint:
    """The links of points whose layouts cross different ones.

    Attributes
    ----------
    layouts : tuple of LayoutLinks
        The layouts.
    of : (n,) array of int
        Place of each point's layout in `layouts`, [-]
    """

    layouts: tuple[LayoutLinks, ...]
    of: np.ndarray

    def classes(self, group: str) -> tuple[tuple[LinkClass, np.ndarray | slice], ...]:
        """The links of a kind of group, and the points that cross each.

        Parameters
        ----------
        group : str
            Name of a field of `LayoutLinks`.

        Returns
        -------
        tuple of (LinkClass, (n,) array of bool or slice)
            Each link once.
        """
        places: dict[LinkClass, list[int]] = {}
        for place, layout in enumerate(self.layouts):
            places.setdefault(getattr(layout, group), []).append(place)
        if len(places) == 1:
            return ((next(iter(places)), slice(None)),)
        return tuple((link, np.isin(self.of, found)) for link, found in places.items())


def links_of_layout(
    host: Host, *, tp: int = 1, pp: int = 1, dp: int = 1, dcp: int = 1, one_shot: bool = False
) -> LayoutLinks:
    """Return the links that the groups of a layout cross on a host.

    Parameters
    ----------
    host : Host
        The machine.
    tp, pp, dp, dcp : int, optional
        Degrees of the layout, [-]
    one_shot : bool, optional
        Whether the engine's one-shot all-reduce runs over PCIe, which stock engines leave off there. Where the group
        has none (peers do not reach each other, no kernel of that size) the ring runs.

    Returns
    -------
    LayoutLinks
        Each as slow as the slowest group of its kind.

    Raises
    ------
    SpecError
        If the layout has more ranks than the machine has accelerators.
    UnknownFact
        If a link that a group crosses is not known.

    Notes
    -----
    Ranks take the accelerators in the order of their numbers: first those of a TP group, then its DP replicas, then the
    next pipeline stage. Not modelled: other orders (`network.placement` compares them), groups that get in each other's
    way on a shared uplink.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_machine
    >>> links = links_of_layout(load_machine("6xrtx-pro-6000-ws"), tp=2, pp=3)
    >>> links.tensor.basis, links.hand_over.kind, links.context.basis
    ('pcie/ring/direct', 'pcie', 'a group of one')
    """
    return _known(host, tp, pp, dp, dcp, one_shot)


@lru_cache(maxsize=4096)
def _known(host: Host, tp: int, pp: int, dp: int, dcp: int, one_shot: bool) -> LayoutLinks:
    if tp * pp * dp > host.accelerator_count:
        raise SpecError(
            f"needs {tp * pp * dp} accelerators, {host.name} has {host.accelerator_count}", field="tp × pp × dp",
            value=f"{tp} × {pp} × {dp}",
        )  # fmt: skip

    def reduces(ranks: int) -> LinkClass:
        link = link_for_group(host, ranks)
        return replace(link, algorithm="best") if one_shot and link.one_shot is not None else link

    tensor = reduces(tp)
    return LayoutLinks(
        tensor=tensor,
        experts=tensor if dp == 1 else reduces(tp * dp),
        context=link_for_group(host, dcp),
        hand_over=hand_over_link(host, tp * dp, pp),
    )


def hand_over_link(host: Host, width: int, stages: int, *, fits: LinkFits | None = None) -> LinkClass:
    """Return the link over which a pipeline stage hands its tokens to the next.

    Parameters
    ----------
    host : Host
        The machine.
    width : int
        Ranks of a stage; each sends to the one in its place in the next stage, all at once, [-]
    stages : int
        Number of stages, on consecutive accelerators, [-]
    fits : LinkFits, optional
        Fitted constants; by default those of the data folder.

    Returns
    -------
    LinkClass
        That of the slowest hand-over: its rate is what is left for each sender while the others of its stage send.

    Raises
    ------
    UnknownFact
        If a link on the way is not known.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> host = load_host("wrx90-2-switches-8")
    >>> round(hand_over_link(host, 4, 2).bandwidth / hand_over_link(host, 1, 8).bandwidth, 2)  # four share an uplink
    0.25
    """
    constants = fits or load_link_fits()
    if stages == 1:
        return link_for_group(host, 1, fits=constants)
    found: Iterable[LinkClass] = (
        link_of_transfers(host, [(start + rank, start + width + rank) for rank in range(width)], fits=constants)
        for start in range(0, width * (stages - 1), width)
    )
    return min(found, key=lambda link: link.bandwidth * link.ring.efficiency)
