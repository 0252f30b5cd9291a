"""Copies of the cache in host memory for a plan: how many tokens find room there, and how fast they come back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from glmplan.errors import GlmplanError, SpecError
from glmplan.facts.engines.walls import load_engine
from glmplan.physics.blocks.features import model_features
from glmplan.physics.network.host_transfers import host_transfer_rate
from glmplan.plan.hazard_warnings import facts_of
from glmplan.serving.engine.settings import TransferLink
from glmplan.units import GIB

if TYPE_CHECKING:
    from glmplan.plan.capacity import Holding
    from glmplan.plan.question import Asked
    from glmplan.serving.traffic.spec import Traffic

__all__ = [
    "HostCopies",
    "WayToHost",
    "check_copies",
    "copies_words",
    "copy_settings",
    "host_copies",
    "way_to_host",
    "why_no_copies",
]

#: caches that copies are as large as, where the traffic does not say how much it needs [-]
_LARGER = 2.0


@dataclass(frozen=True, slots=True)
class WayToHost:
    """The links over which copies come back from host memory.

    Attributes
    ----------
    each : float
        What each accelerator reaches while all others do the same, [B/s]
    bandwidth : float
        What all accelerators of a data-parallel rank reach together, [B/s]
    what : str
        Which links these are, in words.
    """

    each: float
    bandwidth: float
    what: str


def way_to_host(asked: Asked, holding: Holding) -> WayToHost:
    """The links between the accelerators of a plan and the memory of their host.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The layout.

    Returns
    -------
    WayToHost
        What they reach.

    Raises
    ------
    GlmplanError
        If the way is not known, or there is none because both have one memory.
    """
    host, terms = asked.machine.host, holding.terms
    share = terms.accelerators / (terms.dp * terms.replicas)
    if asked.host_bandwidth:
        what = f"a way as given, {asked.host_bandwidth / 1e9:,.1f} GB/s to each rank"
        return WayToHost(asked.host_bandwidth / share, asked.host_bandwidth, what)
    members = facts_of(asked, holding, users=1, longest=1).members
    each = host_transfer_rate(host, members=members)
    card = host.slots[members[0]].link
    kind = f"PCIe {card.generation}.0 x{card.lanes}" if card is not None else "the links"
    what = f"{kind} of {host.name}, {each / 1e9:,.1f} GB/s for each accelerator while all load"
    return WayToHost(each, each * share, what)


def copy_settings(asked: Asked, holding: Holding) -> dict[str, Any]:
    """What the simulator is told of copies that were asked for.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The layout.

    Returns
    -------
    dict
        Fields of `glmplan.serving.engine.settings.EngineSettings`; empty where none were asked for.

    Raises
    ------
    GlmplanError
        As `way_to_host`.
    """
    if not asked.host_tokens:
        return {}
    return {"host_tokens": asked.host_tokens, "host_link": TransferLink(way_to_host(asked, holding).bandwidth)}


def check_copies(asked: Asked, holding: Holding, traffic: Traffic | None) -> None:
    """Refuse copies of which nothing can be said.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The layout.
    traffic : Traffic or None
        What arrives.

    Raises
    ------
    SpecError
        If copies were asked for without traffic, or where the plan keeps none.
    """
    if asked.host_bandwidth and traffic is None:
        raise SpecError("is of traffic: give --traffic too", field="--host-bandwidth")
    if not asked.host_tokens:
        return
    why = "is of traffic: give --traffic too" if traffic is None else why_no_copies(asked, holding)
    if why:
        raise SpecError(why, field="--host-tokens", value=asked.host_tokens)


def copies_words(asked: Asked, holding: Holding) -> str:
    """Copies that were asked for, to be said behind what arrives.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The layout.

    Returns
    -------
    str
        How many, with which option of the engine and over which links; empty where none were asked for.
    """
    running = load_engine(asked.engine).running
    if not asked.host_tokens or running is None:
        return ""
    way = way_to_host(asked, holding)
    return f"; copies of {asked.host_tokens:,} tokens of each rank in host memory ({running.host_cache}), {way.what}"


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Copies of cached tokens in host memory.

    Attributes
    ----------
    tokens : int
        Of each data-parallel rank, [token]
    bandwidth : float
        At which they come back to all accelerators of a rank together, [B/s]
    what : str
        The change in words.
    """

    tokens: int
    bandwidth: float
    what: str


def why_no_copies(asked: Asked, holding: Holding, way_told: bool = False) -> str:
    """Say why a plan keeps no copies of its cache in host memory.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The layout.
    way_told : bool, optional
        Whether the bandwidth over which copies come back was given, so that the links need not be known.

    Returns
    -------
    str
        The reason; empty where copies can be kept.
    """
    running = load_engine(asked.engine).running
    kept = asked.defaults.kept_bytes / GIB
    if kept:
        return f"{asked.engine} keeps {kept:.3g} GiB of prompts there by itself, counted here"
    if running is None or running.host_cache is None:
        return f"{asked.engine} is not known to keep any"
    if "mla" in model_features(asked.model) and not running.host_cache_latent:
        return f"{asked.engine} keeps none of latent attention ({running.host_cache})"
    if holding.terms.mtp:
        return "with drafts beside them a race was reported"
    if way_told:
        return ""
    try:
        way_to_host(asked, holding)
    except GlmplanError as error:
        return f"the way there is not known: {error}"
    return ""


def host_copies(asked: Asked, holding: Holding, traffic: Traffic) -> HostCopies | None:
    """Plan copies of the cache in the memory of the host.

    Parameters
    ----------
    asked : Asked
        The question.
    holding : Holding
        The layout.
    traffic : Traffic
        What arrives: conversations need room for all of them at their mean length.

    Returns
    -------
    HostCopies or None
        None where the engine keeps none of such a cache, where drafts are made beside (a race was reported), and where
        the way to host memory is not known.

    Notes
    -----
    Copies are as large as what all conversations need, and no larger than host memory where that is known. Every
    accelerator loads its own part while all others do, at what the links between it and the memory then leave it.
    """
    running, terms = load_engine(asked.engine).running, holding.terms
    if running is None or holding.pool <= 0 or why_no_copies(asked, holding):
        return None
    host, facts = asked.machine.host, facts_of(asked, holding, users=1, longest=1)
    way = way_to_host(asked, holding)
    wanted = _LARGER * holding.pool
    if traffic.kind == "sessions" and traffic.users is not None:
        last = traffic.shared_prefix + traffic.start + traffic.turns * (traffic.input + traffic.output)
        wanted = float(traffic.users * last)
    token = holding.pool_bytes / holding.pool * terms.accelerators
    size = token * wanted
    if host.host_memory is not None:
        nodes = -(-terms.accelerators // max(len(facts.members), 1))
        size = min(size, nodes * host.host_memory - facts.pinned)
    ranks = terms.dp * terms.replicas
    tokens = int(size / token / ranks)
    if tokens <= 0:
        return None
    room = "" if host.host_memory is not None else ", whose size is not known"
    what = (
        f"copies of the cache in {size / GIB:,.0f} GiB of host memory{room} ({running.host_cache}), "
        f"back at {way.each / 1e9:,.0f} GB/s for each accelerator"
    )
    return HostCopies(tokens, way.bandwidth, what)
