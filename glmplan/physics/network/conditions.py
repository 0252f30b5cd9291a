"""Named conditions of a machine that change what its links do, each with the cost that was measured.

The figures are not typed here: each condition points at two rows of the ledger, one with it and one without.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from glmplan.facts.folders import data_folder

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host

__all__ = ["CONDITIONS", "Condition", "MeasuredCost", "conditions_of", "measured_cost"]


@dataclass(frozen=True, slots=True)
class Condition:
    """A state of a machine, what it does, and how to leave it.

    Parameters
    ----------
    name : str
        Its name in reports.
    effect : str
        What it does to which transfers.
    remedy : str
        What to change.
    pairs : tuple of (str, str)
        Rows of `pcie-topologies.csv`: (with the condition, without it).
    """

    name: str
    effect: str
    remedy: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """One measurement with a condition beside the same one without it; `ratio` is with over without, [-]."""

    what: str
    unit: str
    with_condition: float
    without: float
    ratio: float
    source: str


CONDITIONS = (
    Condition(
        "acs-redirect",
        "transfers between cards of one switch go up to the root port and down again, so that both directions share it",
        "clear ACS request redirection on the root ports and on the downstream ports of the switches (setpci)",
        (("t0051", "t0052"),),
    ),
    Condition(
        "no-force-p2p",
        "directly attached cards copy through host memory, and one-shot kernels run very slowly",
        "set NVreg_RegistryDwords=ForceP2P=0x11, or turn the engine's custom all-reduce off",
        (("t0170", "t0171"), ("t0532", "t0544"), ("t0533", "t0545")),
    ),
    Condition(
        "misdetected-ring",
        "NCCL lays its ring badly over two sockets",
        "give NCCL a graph file (NCCL_GRAPH_FILE) or use a release with pull request 2127",
        (("t0472", "t0473"), ("t0474", "t0475"), ("t0476", "t0477"), ("t0478", "t0479"), ("t0512", "t0514")),
    ),
    Condition(
        "few-channels",
        "NCCL uses two channels across sockets",
        "set NCCL_MIN_NCHANNELS=8",
        (("t0480", "t0481"),),
    ),
    Condition(
        "shared-memory-transport",
        "NCCL does not use peer to peer between root complexes (NODE) unless told to",
        "set NCCL_P2P_LEVEL=SYS",
        (("t0116", "t0117"), ("t0152", "t0151")),
    ),
    Condition(
        "posted-write-collapse",
        "several cards of one switch that write to several root complexes at once bring its uplink down",
        "use rings, not all-to-all, one-shot or trees, across switches; read instead of write; newer firmware",
        (("t0061", "t0062"), ("t0187", "t0188"), ("t0310", "t0311"), ("t0112", "t0113")),
    ),
    Condition(
        "shared-root-complex",
        "cards behind one root complex share its way to host memory",
        "spread the switches over root complexes",
        (("t0437", "t0436"), ("t0439", "t0438")),
    ),
    Condition(
        "slow-uplink",
        "the uplink of a switch trained to a lower generation",
        "reseat, retrain or replace the link; look at LnkSta under load",
        (("t0320", "t0319"),),
    ),
    Condition(
        "chipset-slot",
        "peer to peer to a card in a Gen4 x4 slot of the chipset is slower than copying through host memory",
        "move the card to a slot of the CPU, or turn peer to peer off",
        (("t0556", "t0557"),),
    ),
)


@cache
def _ledger() -> dict[str, dict[str, str]]:
    with open(data_folder("calibration") / "measurements" / "pcie-topologies.csv", newline="") as stream:
        return {row["id"]: row for row in csv.DictReader(stream)}


def measured_cost(condition: Condition) -> list[MeasuredCost]:
    """Return what a condition cost where it was measured.

    Parameters
    ----------
    condition : Condition
        One of `CONDITIONS`.

    Returns
    -------
    list of MeasuredCost
        One for each pair of rows.

    Examples
    --------
    >>> acs = next(item for item in CONDITIONS if item.name == "acs-redirect")
    >>> round(measured_cost(acs)[0].ratio, 2)
    0.49
    """
    costs = []
    for bad, good in condition.pairs:
        one, other = _ledger()[bad], _ledger()[good]
        what = f"{one['pattern']}, {one['metric']}" + (f", {one['message_bytes']} B" if one["message_bytes"] else "")
        high, low = float(one["value"]), float(other["value"])
        costs.append(MeasuredCost(what, one["unit"], high, low, high / low, one["source"]))
    return costs


def conditions_of(host: Host) -> list[Condition]:
    """Return the named conditions that a host's description shows.

    Parameters
    ----------
    host : Host
        The machine.

    Returns
    -------
    list of Condition
        In the order of `CONDITIONS`.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> [item.name for item in conditions_of(load_host("asus-esc8000a-e13p"))]
    ['misdetected-ring', 'posted-write-collapse']
    """
    state = host.conditions
    roots = [root.name for root in host.roots]
    crowded = len(roots) == 1 and sum(switch.parent == roots[0] for switch in host.switches) > 1
    redirect = state.acs_redirect or any(switch.acs_redirect for switch in host.switches)
    uplinks = [switch.uplink for switch in host.switches if switch.uplink]
    slow = bool(uplinks) and any(link.bandwidth < max(up.bandwidth for up in uplinks) for link in uplinks)
    shown = {
        "acs-redirect": bool(redirect),
        "no-force-p2p": state.p2p == "missing",
        "misdetected-ring": len(host.sockets) > 1 and state.nccl_graph == "default" and host.scale_up is None,
        "posted-write-collapse": bool(state.posted_write_collapse),
        "shared-root-complex": crowded,
        "slow-uplink": slow,
    }
    return [condition for condition in CONDITIONS if shown.get(condition.name)]
