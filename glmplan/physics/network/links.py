"""Which class of links a group of accelerators sees on a host, and the fitted constants that go with it.

Nothing here needs a graph library or a loop over points: a plan asks once for each group size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from glmplan.errors import SpecError, UnknownFact
from glmplan.facts.files import read_toml
from glmplan.facts.folders import fits_folder
from glmplan.physics.network.collectives import LinkClass, Protocol
from glmplan.physics.network.crowding import crowding
from glmplan.physics.network.tree import pcie_rates, transfer_rate
from glmplan.units import parse_quantity

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host

__all__ = [
    "ALONE",
    "CUSTOM_ALL_REDUCE_RANKS",
    "LinkFits",
    "across_nodes",
    "link_for_group",
    "link_of_transfers",
    "load_link_fits",
]

#: basis of the class of a group of one, which no link matters to
ALONE = "a group of one"

#: Group sizes that vLLM's own all-reduce kernel accepts (vllm-project/vllm, custom_all_reduce.py, release 0.19).
CUSTOM_ALL_REDUCE_RANKS = (2, 4, 6, 8)


@dataclass(frozen=True, slots=True)
class LinkFits:
    """Constants fitted to measured transfers.

    Parameters
    ----------
    protocols : dict
        (link kind, algorithm, condition) → `Protocol`.
    scalars : dict
        Name → share of a line rate, [-]
    errors : dict, optional
        (link kind, algorithm, condition) → median relative error on machines left out of the fit, [-]; protocols that
        were measured on one machine only are absent.

    Examples
    --------
    >>> LinkFits({("pcie", "ring", "direct"): Protocol(5e-6, 1e-6, 0.7)}, {}).protocol("pcie", "ring", "direct").launch
    5e-06
    """

    protocols: dict[tuple[str, str, str], Protocol]
    scalars: dict[str, float]
    errors: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def protocol(self, kind: str, algorithm: str, condition: str) -> Protocol | None:
        """Return the constants of one protocol, None if it was never measured there."""
        return self.protocols.get((kind, algorithm, condition))


@cache
def load_link_fits(file: str | Path | None = None) -> LinkFits:
    """Read the fitted constants of links.

    Parameters
    ----------
    file : path, optional
        The file; by default `calibration/fits/links.toml`.

    Returns
    -------
    LinkFits
        All protocols and scalars of the file.

    Raises
    ------
    SpecError
        If the file is missing or lacks a field.

    Examples
    --------
    >>> fits = load_link_fits()
    >>> fits.protocol("pcie", "ring", "direct").efficiency < 1
    True
    """
    path = Path(file) if file else fits_folder() / "links.toml"
    content = read_toml(path)
    protocols: dict[tuple[str, str, str], Protocol] = {}
    scalars: dict[str, float] = {}
    errors: dict[tuple[str, str, str], float] = {}
    try:
        for entry in content.get("protocol", []):
            key = entry["kind"], entry["algorithm"], entry["condition"]
            protocols[key] = Protocol(
                parse_quantity(entry["launch"], "seconds"),
                parse_quantity(entry["hop"], "seconds"),
                float(entry["efficiency"]),
                parse_quantity(entry["bulk_hop"], "seconds") if "bulk_hop" in entry else None,
            )
            if "left_out_error" in entry:
                errors[key] = float(entry["left_out_error"])
        for entry in content.get("scalar", []):
            scalars[entry["name"]] = float(entry["value"])
    except KeyError as error:
        raise SpecError("a fit lacks this field", file=path, field=str(error.args[0])) from None
    return LinkFits(protocols, scalars, errors)


def across_nodes(between: Protocol, inside: Protocol, on_node: ArrayLike) -> Protocol:
    """Return the constants of rings over several nodes, whose steps partly stay inside one.

    Parameters
    ----------
    between : Protocol
        Constants of steps from node to node, launch and efficiency of the whole.
    inside : Protocol
        Constants of the steps inside a node.
    on_node : array_like
        Ranks on each node: one step in as many leaves it, [-]

    Returns
    -------
    Protocol
        With the mean of both hops over the ring.

    Examples
    --------
    >>> across_nodes(Protocol(8e-6, 20e-6, 0.8), Protocol(8e-6, 1e-6, 0.8), 1).hop
    2e-05
    >>> round(float(across_nodes(Protocol(8e-6, 20e-6, 0.8), Protocol(8e-6, 1e-6, 0.8), 8).hop) * 1e6, 3)
    3.375
    """
    crossing = 1.0 / np.asarray(on_node, dtype=np.float64)
    hop = crossing * between.hop + (1.0 - crossing) * inside.hop
    # an array passes through the closed forms like a number
    return replace(between, hop=hop if hop.ndim else float(hop))  # type: ignore[arg-type]


def link_for_group(
    host: Host, group_size: int, *, fits: LinkFits | None = None, members: tuple[int, ...] | None = None
) -> LinkClass:
    """Return what a group of ranks sees of the links of a host.

    Parameters
    ----------
    host : Host
        The machine.
    group_size : int
        Number of ranks, one accelerator each, [-]
    fits : LinkFits, optional
        Fitted constants; by default those of the data folder.
    members : tuple of int, optional
        Numbers of the accelerators, [-]. By default the host is cut into consecutive groups and the slowest one counts,
        because all groups of a layout wait for each other.

    Returns
    -------
    LinkClass
        Line rates, protocols and what they rest on. On PCIe `algorithm` is `ring`, because stock engines leave their
        one-shot kernels off there; where `one_shot` is present it can run (peers reach each other's memory and the
        group has a size that the kernels accept), and `replace(link, algorithm="best")` uses it.

    Raises
    ------
    SpecError
        If the group is larger than the machine.
    UnknownFact
        If the links between the members are not known.

    Notes
    -----
    Not modelled: two groups that use the same uplink at the same time (see `physics.network.topology`), rings that a
    library lays out badly on a machine not marked so.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> link = link_for_group(load_host("hgx-b200-8"), 8)
    >>> link.kind, link.bandwidth
    ('nvlink', 900000000000.0)
    >>> link_for_group(load_host("wrx90-2-switches-8"), 8).kind
    'pcie'
    """
    fits = fits or load_link_fits()
    if group_size < 1 or group_size > host.accelerator_count:
        raise SpecError(f"is not a group size on {host.name}: it has {host.accelerator_count}", value=group_size)
    per_node = host.accelerators_per_node
    inside = host.scale_up
    if (
        group_size > 1
        and inside is not None
        and group_size <= inside.domain
        and (inside.topology != "bridge" or group_size == 2)
    ):
        return _scale_up_class(host, group_size, fits)
    if group_size == 1 and (inside is not None or host.unified_memory):
        return _nowhere(host)
    if group_size > per_node:
        return _fabric_class(host, group_size, fits)
    groups = [members] if members else [
        tuple(range(start, start + group_size)) for start in range(0, per_node - group_size + 1, group_size)
    ]  # fmt: skip
    return min((_pcie_class(host, group, fits) for group in groups), key=_slowness)


def link_of_transfers(host: Host, pairs: Sequence[tuple[int, int]], *, fits: LinkFits | None = None) -> LinkClass:
    """Return the link that is the slowest of several transfers between two accelerators each, all at once.

    Parameters
    ----------
    host : Host
        The machine.
    pairs : sequence of (int, int)
        Numbers of the accelerators that send and receive, counted over all nodes, [-]
    fits : LinkFits, optional
        Fitted constants; by default those of the data folder.

    Returns
    -------
    LinkClass
        What each transfer finds, for `point_to_point_time`.

    Raises
    ------
    UnknownFact
        If a link on the way is not known.

    Notes
    -----
    Not modelled: several transfers between the same two nodes by fewer ports than accelerators.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> link_of_transfers(load_host("mi300x-8"), [(0, 4)]).bandwidth  # a mesh: each pair has a link of its own
    64000000000.0
    """
    fits = fits or load_link_fits()
    inside, per_node = host.scale_up, host.accelerators_per_node

    def joined(one: int, other: int) -> bool:
        if inside is None:
            return False
        if inside.topology == "bridge":
            return one % 2 == 0 and other == one + 1
        return one // inside.domain == other // inside.domain

    if inside is not None and all(joined(*pair) for pair in pairs):
        return _scale_up_class(host, 2, fits)
    outside = [pair for pair in pairs if not joined(*pair)]
    if any(one // per_node != other // per_node for one, other in outside):
        return _network_class(host, fits)
    slots = [(one % per_node, other % per_node) for one, other in outside]
    rate, crosses = transfer_rate(host, slots)
    condition = _condition(host, crosses)
    key = "pcie", "ring", condition
    return LinkClass("pcie", rate, rate, _needed(fits, *key), algorithm="ring", basis="/".join(key),
                     error=fits.errors.get(key))  # fmt: skip


def _nowhere(host: Host) -> LinkClass:
    """Return the class of a group of one where no link matters: its times are 0 whatever the rates."""
    kind = "unified" if host.unified_memory else host.scale_up.kind if host.scale_up else "pcie"
    return LinkClass(kind, 1.0, 1.0, Protocol(0.0, 0.0, 1.0), algorithm="ring", basis=ALONE)


def _slowness(link: LinkClass) -> tuple[float, float]:
    return link.bandwidth * link.ring.efficiency, link.mesh_bandwidth


def _needed(fits: LinkFits, kind: str, algorithm: str, condition: str) -> Protocol:
    found = fits.protocol(kind, algorithm, condition)
    if found is None:
        raise SpecError("is not in calibration/fits/links.toml", value=f"{kind}/{algorithm}/{condition}")
    return found


def _scale_up_class(host: Host, group_size: int, fits: LinkFits) -> LinkClass:
    """Return the class of a group inside one scale-up domain."""
    inside = host.scale_up
    assert inside is not None  # the caller has looked
    share = (group_size - 1) / (inside.domain - 1) if inside.topology == "mesh" else 1.0
    kind = "xgmi" if inside.kind == "xgmi" else "nvlink"
    rate = inside.bandwidth * share
    ring = _needed(fits, kind, "ring", "direct")
    generation = fits.protocol(kind, "one-shot", f"{inside.bandwidth / 1e9:g} GB/s")
    shot = generation or fits.protocol(kind, "one-shot", "direct")
    return LinkClass(
        kind,
        rate,
        rate,
        ring,
        one_shot=shot if group_size in CUSTOM_ALL_REDUCE_RANKS else None,
        switch=fits.protocol(kind, "switch", "direct") if inside.reduces else None,
        algorithm="best",
        basis=f"{kind}/ring/direct" + (f", {kind}/one-shot/{inside.bandwidth / 1e9:g} GB/s" if generation else ""),
        calibrated=inside.kind == "nvlink",
        error=fits.errors.get((kind, "ring", "direct")),
    )


def _fabric_class(host: Host, group_size: int, fits: LinkFits) -> LinkClass:
    """Return the class of a group that spans nodes: as many rings as a node has members, each through its own port."""
    if host.fabric is None:
        raise UnknownFact(f"{host.name}: unknown: the network between nodes, which a group of {group_size} needs")
    on_node = (
        host.accelerators_per_node if host.scale_up is None else min(host.accelerators_per_node, host.scale_up.domain)
    )
    inside = host.scale_up.bandwidth if host.scale_up else float("inf")
    ring_rate = min(host.fabric.bandwidth * on_node, max(inside, host.fabric.bandwidth))
    mesh_rate = host.fabric.bandwidth * (group_size - 1) / (group_size - on_node)
    key = "fabric", "ring", "direct"
    inner = _needed(fits, "nvlink", "ring", "direct")
    ring = across_nodes(_needed(fits, *key), inner, min(on_node, group_size))
    error = fits.errors.get(key)
    return LinkClass("fabric", ring_rate, mesh_rate, ring, algorithm="ring", basis="/".join(key), error=error)


def _network_class(host: Host, fits: LinkFits) -> LinkClass:
    """Return the class of one accelerator's port to another node."""
    if host.fabric is None:
        raise UnknownFact(f"{host.name}: unknown: the network between nodes, which a hand-over between stages needs")
    key, rate = ("fabric", "ring", "direct"), host.fabric.bandwidth
    error = fits.errors.get(key)
    return LinkClass("fabric", rate, rate, _needed(fits, *key), algorithm="ring", basis="/".join(key), error=error)


def _pcie_class(host: Host, group: tuple[int, ...], fits: LinkFits) -> LinkClass:
    """Return the class of one group of accelerators that meet over PCIe."""
    if len(group) == 1:
        return _nowhere(host)
    ring_rate, mesh_rate, crosses = pcie_rates(host, group)
    condition = _condition(host, crosses)
    ring = _needed(fits, "pcie", "ring", condition)
    one_shot = None
    # Where posted writes collapse, exchanges of all with all over shared uplinks do not count as possible.
    collapses = bool(host.conditions.posted_write_collapse) and mesh_rate < ring_rate
    if condition != "staged" and len(group) in CUSTOM_ALL_REDUCE_RANKS and not collapses:
        one_shot = fits.protocol("pcie", "one-shot", "direct")
    mesh_rate = min(mesh_rate, ring_rate * float(crowding(len(group) - 1, fits.scalars)))
    key = "pcie", "ring", condition
    error = fits.errors.get(key)
    return LinkClass("pcie", ring_rate, mesh_rate, ring, one_shot, algorithm="ring", basis="/".join(key), error=error)


def _condition(host: Host, crosses: bool) -> str:
    """Return the named condition under which the PCIe links of a group run."""
    if host.conditions.p2p == "missing":
        return "staged"
    if not crosses:
        return "direct"
    return "two-sockets-tuned" if host.conditions.nccl_graph == "tuned" else "two-sockets"
