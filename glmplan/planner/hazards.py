"""Hazards of a plan: rules of `hardware_db/hazards` applied to a host.

A plan is called safe only if `is_safe` returns True.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from typing import TYPE_CHECKING

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.files import data_folder, read_toml
from glmplan.costs.network.links import host_transfer_rate
from glmplan.costs.network.topology import conditions_of, measured_cost
from glmplan.errors import GlmplanError
from glmplan.units import parse_quantity

if TYPE_CHECKING:
    from glmplan.catalog.schema.host import HazardRule, HazardSeverity, Host

__all__ = ["Hazard", "PlanFacts", "hazard_rules", "hazards_for", "is_safe", "machine_power"]

_ORDER = ("danger", "warning", "note")


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """Facts of a plan that hazards depend on; None is unknown."""

    members: tuple[int, ...]  # accelerators of a node that the plan uses, [-]
    tp: int = 1  # size of the tensor-parallel groups, [-]
    #: sustained transfer between host memory and each of them while serving, [B/s]; 0 without streaming
    host_transfer: float = 0.0
    #: `pinned`, `host_used`: page-locked host memory, and other host memory of the plan, [B]
    pinned: float = 0.0
    host_used: float = 0.0
    power_limit: float | None = None  # power limit of each accelerator; None for its rating, [W]
    rest_power: float | None = None  # power of the rest of the machine, [W]
    users: int = 1  # concurrent users, [-]
    #: `longest_tokens`, `longest_held`: longest request that the engine accepts, and the longest that one KV pool
    #: holds, [token]
    longest_tokens: float | None = None
    longest_held: float | None = None
    #: requests of the requested length that one KV pool holds beside the longest that the engine accepts, [-]
    beside: float | None = None
    pools: int = 1  # KV pools among which the users are spread: data-parallel ranks of all servers, [-]
    #: share of the memory that must be free for the engine to start; None: the engine does not look, [-]
    free_wanted: float | None = None


@dataclass(frozen=True, slots=True)
class Hazard:
    """A hazard that applies, or that cannot be ruled out."""

    id: str  # name of the rule
    severity: HazardSeverity  # ``danger``, ``warning`` or ``note``
    #: `title`, `effect`: summary and consequence
    title: str
    effect: str
    numbers: str  # computed values with units
    #: `case`, `source`: the incident behind the rule, and its source
    case: str
    source: str
    change: str  # advice
    certain: bool = True  # False if an unknown fact decides

    @property
    def named(self) -> str:
        """The title, marked if an unknown fact decides."""
        return self.title + ("" if self.certain else " (cannot be ruled out)")

    @property
    def words(self) -> str:
        """The title with its numbers."""
        return f"{self.named}: {self.numbers}"


@cache
def hazard_rules() -> dict[str, HazardRule]:
    """Read `hardware_db/hazards`.

    Examples
    --------
    >>> hazard_rules()["display-starved"].severity
    'danger'
    """
    from glmplan.catalog.schema.host import HazardRule
    from glmplan.catalog.schema.validation import validated

    files = sorted((data_folder("hardware_db") / "hazards").glob("*.toml"))
    return {file.stem: validated(HazardRule, {"name": file.stem, **read_toml(file)}, file) for file in files}


def _share(rule: str, name: str) -> float:
    return float(hazard_rules()[rule].thresholds[name])


def _watts(rule: str, name: str) -> float:
    return parse_quantity(hazard_rules()[rule].thresholds[name], "watts")


def _hazard(
    name: str, numbers: str, severity: HazardSeverity | None = None, *, change: str = "", certain: bool = True
) -> Hazard:
    rule = hazard_rules()[name]
    return Hazard(
        name, severity or rule.severity, rule.title, rule.effect, numbers, rule.case, rule.source,
        change or rule.change, certain,
    )  # fmt: skip


def machine_power(host: Host, facts: PlanFacts) -> tuple[float, str] | None:
    """Return the power of a machine at the limit of its planned accelerators.

    Power behind the supplies, [W], and the sum as text; None if no rating is known.

    Examples
    --------
    >>> from glmplan.catalog.entries.hosts import load_machine
    >>> machine_power(load_machine("4xrtx-pro-6000-ws"), PlanFacts(members=(0, 1, 2, 3), rest_power=400.0))
    (2800.0, '4 x 600 W + 400 W for the rest')
    """
    part = load_accelerator(host.accelerator)
    each = facts.power_limit or part.tdp
    if each is None:
        return None
    if part.kind in ("soc", "system"):
        return each * len(facts.members), f"{len(facts.members)} x {each:.0f} W"
    rest = facts.rest_power if facts.rest_power is not None else _watts("power-supply", "rest")
    word = "for the rest" + ("" if facts.rest_power is not None else ", assumed")
    # the rest is that of a host, as in `glmplan.purchase.money.wall_watts`
    hosts = len({member // host.accelerators_per_node for member in facts.members})
    times = f"{hosts} x " if hosts > 1 else ""
    return each * len(facts.members) + hosts * rest, f"{len(facts.members)} x {each:.0f} W + {times}{rest:.0f} W {word}"


def _top(host: Host, parent: str | None) -> str | None:
    """Return the root complex above a switch, a card or a device."""
    parents = {switch.name: switch.parent for switch in host.switches}
    while parent in parents:
        parent = parents[parent]
    return parent


def _display(host: Host, facts: PlanFacts) -> list[Hazard]:
    if facts.host_transfer <= 0 or host.unified_memory:
        return []
    displays = [device for device in host.devices if device.kind == "display"]
    roots = {_top(host, device.parent): device.name for device in displays}
    found = []
    for root in {None: "an unknown location"} if not displays else roots:
        near = tuple(
            m for m in facts.members if not displays or root is None or _top(host, host.slots[m].parent) == root
        )
        if not near:
            continue
        try:
            passes = host_transfer_rate(host, members=near)
        except GlmplanError:
            passes = 0.0
        busy = facts.host_transfer / passes if passes else 1.0
        where = f"root complex {root}" if displays and root else "location of the display adapter unknown"
        numbers = (
            f"{len(near)} x {facts.host_transfer / 1e9:.1f} GB/s of {passes / 1e9:.1f} GB/s that each accelerator gets"
            f" ({min(busy, 1.0):.0%} busy), {where}"
        )
        if busy < _share("display-starved", "noticed"):
            continue
        certain = bool(displays) and root is not None
        strong = busy >= _share("display-starved", "busy")
        found.append(
            _hazard("display-starved", numbers, "danger" if certain and strong else "warning", certain=certain)
        )
    return found


def _memory(host: Host, facts: PlanFacts) -> list[Hazard]:
    wanted = facts.pinned + facts.host_used
    if wanted <= 0:
        return []
    if host.host_memory is None:
        return [
            _hazard("host-memory-overcommit", f"{wanted / 1e9:.0f} GB needed; host memory unknown",
                    "warning", certain=False)
        ]  # fmt: skip
    share = wanted / host.host_memory
    numbers = f"{facts.pinned / 1e9:.0f} GB pinned, {wanted / 1e9:.0f} GB total, of {host.host_memory / 1e9:.0f} GB"
    if share > 1.0:
        return [_hazard("host-memory-overcommit", numbers)]
    tight = share > _share("host-memory-overcommit", "tight")
    return [_hazard("host-memory-overcommit", numbers, "warning")] if tight else []


def _free(host: Host, facts: PlanFacts) -> list[Hazard]:
    left = load_accelerator(host.accelerator).free_share
    if left is None or facts.free_wanted is None or facts.free_wanted <= left:
        return []
    numbers = f"{facts.free_wanted:g} of the memory must be free, started systems leave from {left:g} on"
    return [_hazard("free-at-start", numbers, certain=False, change=f"--memory-fraction {left:g}")]


def _supply(host: Host, facts: PlanFacts) -> list[Hazard]:
    drawn = machine_power(host, facts)
    power = host.power
    if drawn is None or power is None or power.supply is None:
        return []
    total, words = drawn
    supplies = power.supplies or 1
    usable = power.supply * (max(supplies - 1, 1) if power.redundant else supplies)
    share = total / usable
    numbers = f"{words} = {total:.0f} W of {usable:.0f} W ({share:.0%})"
    found = []
    if share > _share("power-supply", "tight"):
        found.append(_hazard("power-supply", numbers, "danger" if share > 1.0 else "warning"))
    if supplies == 1 and len(facts.members) > 1 and share > _share("single-supply", "share"):
        found.append(_hazard("single-supply", numbers))
    return found


def _circuit(host: Host, facts: PlanFacts) -> list[Hazard]:
    drawn = machine_power(host, facts)
    if drawn is None or load_accelerator(host.accelerator).kind in ("soc", "system"):
        return []
    outlet = drawn[0] / _share("circuit", "efficiency")
    allowed = _share("circuit", "continuous")
    numbers = f"{drawn[1]} = {drawn[0]:.0f} W, {outlet:.0f} W at the outlet"
    if host.power is not None and host.power.circuit is not None:
        share = outlet / host.power.circuit
        if share <= allowed:
            return []
        numbers += f", {share:.0%} of a circuit of {host.power.circuit:.0f} W"
        return [_hazard("circuit", numbers, "danger" if share > 1.0 else "warning")]
    ratings = hazard_rules()["circuit"].ratings
    if outlet <= allowed * min(ratings.values()) or host.scale_up is not None:
        return []  # machines with a scale-up fabric are in data centres with planned circuits
    carries = [words for words, rating in ratings.items() if outlet <= allowed * rating]
    fits = f"smallest standard circuit: {carries[0]}" if carries else "no standard circuit is sufficient"
    return [_hazard("circuit", f"{numbers}; {fits}; circuit of the machine unknown", "note", certain=False)]


def _heat(host: Host, facts: PlanFacts) -> list[Hazard]:
    part = load_accelerator(host.accelerator)
    limit = facts.power_limit or part.tdp or 0.0
    threshold = _watts("thermal-stack", "power")
    if host.power is not None and host.power.cooling:
        return []
    crowded = len(facts.members) >= _share("thermal-stack", "cards") and limit > threshold
    if not (crowded and part.cooling == "open-fans"):
        return []
    numbers = f"{len(facts.members)} {part.full_name} at {limit:.0f} W; spacing and air flow unknown"
    return [_hazard("thermal-stack", numbers, certain=False)]


def _retrain(host: Host, facts: PlanFacts) -> list[Hazard]:
    part = load_accelerator(host.accelerator)
    applies = hazard_rules()["pcie-retrain"].applies
    capability = part.compute_capability or ""
    if part.kind != "gpu" or not any(fnmatchcase(capability, pattern) for pattern in applies.compute_capability):
        return []
    description = " ".join((host.title, host.note or "", host.source)).lower()
    if not host.switches and not any(board in description for board in applies.boards):
        return []
    return [
        _hazard("pcie-retrain", f"{len(host.switches)} switches, {len(facts.members)} {part.full_name}", certain=False)
    ]


def _pool(host: Host, facts: PlanFacts) -> list[Hazard]:
    longest, held, beside = facts.longest_tokens, facts.longest_held, facts.beside
    if longest is None or held is None or beside is None:
        return []
    numbers = f"longest request {longest:,.0f} tokens; one request of {held:,.0f} tokens fits the KV pool"
    if longest > held:
        return [_hazard("kv-pool-tight", numbers, "danger")]
    others = -(-facts.users // facts.pools) - 1
    numbers += f"; beside the longest {beside:,.1f} of the {others:,} other requests fit"
    return [_hazard("kv-pool-tight", numbers)] if others > beside else []


def _links(host: Host, facts: PlanFacts) -> list[Hazard]:
    if facts.tp < 2 or host.scale_up is not None:
        return []
    found = []
    for condition in conditions_of(host):
        costs = [
            f"{cost.with_condition:g} instead of {cost.without:g} {cost.unit}" for cost in measured_cost(condition)
        ]
        numbers = (
            f"{condition.name}: {condition.effect}; measured {'; '.join(costs[:2])}" if costs else condition.effect
        )
        found.append(_hazard("slow-links", numbers, change=condition.remedy))
    return found


_RULES: tuple[Callable[[Host, PlanFacts], list[Hazard]], ...] = (
    _display, _memory, _free, _supply, _circuit, _heat, _retrain, _pool, _links,
)  # fmt: skip


def hazards_for(host: Host, facts: PlanFacts) -> tuple[Hazard, ...]:
    """Return the hazards of a plan on a host, the worst first.

    Notes
    -----
    Unknown facts of a host do not count as harmless: such hazards have `certain` false. Not modelled:
    failures of single components, firmware, other programs on the machine.

    Examples
    --------
    Experts streamed to four cards of a machine whose display adapter shares their root complex:

    >>> from glmplan.catalog.entries.hosts import load_host
    >>> facts = PlanFacts(members=(0, 1, 3, 4), tp=4, host_transfer=30e9, pinned=160e9)
    >>> hazards_for(load_host("six-cards-and-display-gpu"), facts)[0].id
    'display-starved'
    """
    found = [hazard for rule in _RULES for hazard in rule(host, facts)]
    return tuple(sorted(found, key=lambda hazard: _ORDER.index(hazard.severity)))


def is_safe(hazards: tuple[Hazard, ...]) -> bool:
    """Return True if no hazard of a plan is a danger.

    Examples
    --------
    >>> is_safe(())
    True
    """
    return all(hazard.severity != "danger" for hazard in hazards)
