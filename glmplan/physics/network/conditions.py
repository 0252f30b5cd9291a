"""Named conditions of a machine that change what its links do, each with the cost that was measured.

Words and figures are not typed here: `hardware_db/link_conditions.toml` describes each condition and points at pairs of
rows of the ledger, one with it and one without.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from glmplan.errors import SpecError
from glmplan.facts.files import read_rows, read_toml
from glmplan.facts.folders import data_folder

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host

__all__ = ["Condition", "MeasuredCost", "conditions_of", "measured_cost", "named_conditions"]


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
    source : str
        Where it is described.
    """

    name: str
    effect: str
    remedy: str
    pairs: tuple[tuple[str, str], ...]
    source: str


@dataclass(frozen=True, slots=True)
class MeasuredCost:
    """One measurement with a condition beside the same one without it; `ratio` is with over without, [-]."""

    what: str
    unit: str
    with_condition: float
    without: float
    ratio: float
    source: str


@cache
def named_conditions() -> tuple[Condition, ...]:
    """Return all named conditions, from `hardware_db/link_conditions.toml`.

    Returns
    -------
    tuple of Condition
        In the order of the file.

    Raises
    ------
    SpecError
        If an entry lacks a field.

    Examples
    --------
    >>> named_conditions()[0].name
    'acs-redirect'
    """
    file = data_folder("hardware_db") / "link_conditions.toml"
    try:
        return tuple(
            Condition(
                entry["name"], entry["effect"], entry["remedy"], tuple((bad, good) for bad, good in entry["measured"]),
                entry["source"],
            )
            for entry in read_toml(file)["conditions"]
        )  # fmt: skip
    except KeyError as error:
        raise SpecError("a condition lacks this field", file=file, field=str(error.args[0])) from None


@cache
def _ledger() -> dict[str, dict[str, str]]:
    ledger = data_folder("calibration") / "measurements" / "pcie-topologies.csv"
    return {row["id"]: row for row in read_rows(ledger)}


def measured_cost(condition: Condition) -> list[MeasuredCost]:
    """Return what a condition cost where it was measured.

    Parameters
    ----------
    condition : Condition
        One of `named_conditions`.

    Returns
    -------
    list of MeasuredCost
        One for each pair of rows.

    Examples
    --------
    >>> acs = next(item for item in named_conditions() if item.name == "acs-redirect")
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
        In the order of `named_conditions`.

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
    return [condition for condition in named_conditions() if shown.get(condition.name)]
