"""Which accelerators form a tensor-parallel group, which a pipeline stage, and in which order they are handed out.

Every way to cut the machine into equal groups that respects its tree is scored with the link model: a layout is as fast
as its slowest group's all-reduce, then its slowest hand-over between stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from typing import TYPE_CHECKING

import numpy as np

from glmplan.errors import SpecError
from glmplan.physics.network.collectives import LinkClass, all_reduce_time
from glmplan.physics.network.graph import Flow
from glmplan.physics.network.links import LinkFits, link_for_group, load_link_fits
from glmplan.physics.network.topology import LinkLoad, flow_rates, link_loads
from glmplan.physics.network.tree import shared_ring_rates

if TYPE_CHECKING:
    from glmplan.facts.schema.host import Host

__all__ = ["Placement", "Score", "place", "plan_flows", "plan_loads", "score_placement"]

#: Cuts that are tried at most; more cards than this needs are cut along the tree only.
_CUTS = 3000
#: Equally fast cuts whose hand-overs are compared at most.
_TIES = 200


@dataclass(frozen=True, slots=True)
class Score:
    """What a placement costs.

    Parameters
    ----------
    all_reduce : float
        Time of one all-reduce in the slowest group, [s]
    hand_over : float
        Time of one hand-over between stages where they are slowest, all groups at once, [s]
    """

    all_reduce: float
    hand_over: float


@dataclass(frozen=True, slots=True)
class Placement:
    """Which accelerator holds which rank.

    Parameters
    ----------
    stages : tuple of tuple of int
        Numbers of the accelerators of each pipeline stage, in the order of their tensor-parallel ranks.
    score : Score
        What it costs.
    worst : tuple of tuple of int
        The worst placement that was tried.
    worst_score : Score
        What that costs.
    tried : int
        How many were compared, [-]
    """

    stages: tuple[tuple[int, ...], ...]
    score: Score
    worst: tuple[tuple[int, ...], ...]
    worst_score: Score
    tried: int

    @property
    def order(self) -> tuple[int, ...]:
        """The accelerators in the order of ranks."""
        return tuple(slot for stage in self.stages for slot in stage)

    @property
    def visible_devices(self) -> str:
        """The order as `CUDA_VISIBLE_DEVICES` wants it, for numbers by PCI address (`CUDA_DEVICE_ORDER=PCI_BUS_ID`)."""
        return ",".join(map(str, self.order))

    @property
    def gain(self) -> float:
        """All-reduce time of the worst placement over that of this one, [-]"""
        return self.worst_score.all_reduce / self.score.all_reduce if self.score.all_reduce else 1.0


def plan_flows(stages: tuple[tuple[int, ...], ...]) -> dict[str, list[Flow]]:
    """Return the transfers of a plan: rings inside the groups, hand-overs between the stages.

    Parameters
    ----------
    stages : tuple of tuple of int
        Accelerators of each stage, [-]

    Returns
    -------
    dict
        `all-reduce` and `hand-over` → transfers that run at the same time; empty kinds are left out.

    Examples
    --------
    >>> plan_flows(((0, 1), (2, 3)))
    {'all-reduce': [(0, 1), (1, 0), (2, 3), (3, 2)], 'hand-over': [(0, 2), (1, 3)]}
    """
    rings: list[Flow] = [
        (stage[rank], stage[(rank + 1) % len(stage)])
        for stage in stages
        if len(stage) > 1
        for rank in range(len(stage))
    ]
    overs: list[Flow] = [
        pair for one, other in zip(stages, stages[1:], strict=False) for pair in zip(one, other, strict=True)
    ]
    return {kind: flows for kind, flows in (("all-reduce", rings), ("hand-over", overs)) if flows}


def plan_loads(host: Host, stages: tuple[tuple[int, ...], ...]) -> dict[str, list[LinkLoad]]:
    """Return how loaded each link is in each phase of a plan.

    Parameters
    ----------
    host : Host
        The machine.
    stages : tuple of tuple of int
        Accelerators of each stage, [-]

    Returns
    -------
    dict
        Phase → loads, the fullest link first.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> sorted(plan_loads(load_host("wrx90-2-switches-8"), ((0, 1, 2, 3), (4, 5, 6, 7))))
    ['all-reduce', 'hand-over']
    """
    return {kind: link_loads(host, flows) for kind, flows in plan_flows(stages).items()}


def score_placement(
    host: Host, stages: tuple[tuple[int, ...], ...], *, message_bytes: float, fits: LinkFits | None = None
) -> Score:
    """Return what a placement costs.

    Parameters
    ----------
    host : Host
        The machine.
    stages : tuple of tuple of int
        Accelerators of each stage, [-]
    message_bytes : float
        What one all-reduce sums and one hand-over passes on, [B]
    fits : LinkFits, optional
        Fitted constants; by default those of the data folder.

    Returns
    -------
    Score
        Times of the slowest group and hand-over.

    Notes
    -----
    All groups and all hand-overs run at once, as they do when the pipeline is full; the two kinds do not meet.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> host = load_host("wrx90-2-switches-8")
    >>> good = score_placement(host, ((0, 1, 2, 3), (4, 5, 6, 7)), message_bytes=1e6)
    >>> bad = score_placement(host, ((0, 4, 1, 5), (2, 6, 3, 7)), message_bytes=1e6)
    >>> good.all_reduce < bad.all_reduce
    True
    """
    constants = fits or load_link_fits()
    slowest = max(_group_times(host, stages, message_bytes, constants))
    overs = plan_flows(stages).get("hand-over", [])
    hand_over = message_bytes / float(np.min(flow_rates(host, overs, fits=constants))) if overs else 0.0
    return Score(slowest, hand_over)


def _group_times(host: Host, stages: tuple[tuple[int, ...], ...], message: float, fits: LinkFits) -> list[float]:
    """Return the time of an all-reduce in each group while all groups do theirs, [s]."""
    width = len(stages[0])
    links = [_link(host, width, stage, fits) for stage in stages]
    if width > 1 and links[0].kind == "pcie":
        shared = shared_ring_rates(host, stages)
        links = [replace(link, bandwidth=rate) for link, rate in zip(links, shared, strict=True)]
    return [float(all_reduce_time(message_bytes=message, ranks=width, link=link)) for link in links]


@lru_cache(maxsize=65536)
def _known_link(host: Host, width: int, stage: tuple[int, ...]) -> LinkClass:
    return link_for_group(host, width, members=stage)


def _link(host: Host, width: int, stage: tuple[int, ...], fits: LinkFits) -> LinkClass:
    """Return the links of a group; remembered for the constants of the data folder."""
    if fits is load_link_fits():
        return _known_link(host, width, stage)
    return link_for_group(host, width, fits=fits, members=stage)


def place(
    host: Host, *, tp: int, pp: int = 1, message_bytes: float = 12288.0 * 64, fits: LinkFits | None = None
) -> Placement:
    """Choose which accelerators form the groups and stages of a layout, and in which order.

    Parameters
    ----------
    host : Host
        The machine; one node of it is used.
    tp, pp : int
        Tensor- and pipeline-parallel size, [-]
    message_bytes : float, optional
        What one all-reduce sums; by default 64 tokens of 6144 BF16 values, [B]
    fits : LinkFits, optional
        Fitted constants; by default those of the data folder.

    Returns
    -------
    Placement
        The best placement found, beside the worst.

    Raises
    ------
    SpecError
        If the machine has too few accelerators.
    UnknownFact
        If the links between them are not known.

    Examples
    --------
    >>> from glmplan.facts.catalogue.hosts import load_host
    >>> found = place(load_host("turin-2s-direct-6-mixed"), tp=2, pp=3)
    >>> found.stages[0], found.gain >= 1
    ((0, 1), True)
    """
    count = host.accelerators_per_node
    if tp < 1 or pp < 1 or tp * pp > count:
        text = f"needs {tp * pp} accelerators, {host.name} has {count} in a node"
        raise SpecError(text, field="tp × pp", value=f"{tp} × {pp}")
    constants = fits or load_link_fits()
    compared = []
    for stages in _candidates(count, tp, pp):
        times = _group_times(host, stages, message_bytes, constants)
        compared.append(((max(times), sum(times)), stages))
    # Hand-overs decide only between cuts whose groups are equally fast.
    least, most = min(compared, key=lambda item: item[0])[0], max(compared, key=lambda item: item[0])
    tied = [stages for cost, stages in compared if cost[0] <= least[0] * 1.001 and cost[1] <= least[1] * 1.001][:_TIES]
    scored = [(score_placement(host, stages, message_bytes=message_bytes, fits=constants), stages) for stages in tied]
    score, best = min(scored, key=lambda item: item[0].hand_over)
    worst = score_placement(host, most[1], message_bytes=message_bytes, fits=constants)
    return Placement(best, score, most[1], worst, len(compared))


def _candidates(count: int, tp: int, pp: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield placements: the order of the numbers, interleaved orders, then all cuts while there are few enough."""
    used = tp * pp
    natural = tuple(tuple(range(stage * tp, (stage + 1) * tp)) for stage in range(pp))
    seen = {natural}
    yield natural
    strided = tuple(tuple(range(stage, used, pp)) for stage in range(pp))
    half = [index // 2 + (index % 2) * (count // 2) for index in range(count)]
    zipped = tuple(tuple(half[stage * tp : (stage + 1) * tp]) for stage in range(pp))
    for stages in (strided, zipped):
        if stages not in seen and len({slot for stage in stages for slot in stage}) == used:
            seen.add(stages)
            yield stages
    for tried, stages in enumerate(_cuts(tuple(range(count)), tp, pp)):
        if tried >= _CUTS:
            return
        if stages not in seen:
            seen.add(stages)
            yield stages


def _cuts(left: tuple[int, ...], tp: int, pp: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield the ways to take `pp` ordered groups of `tp`: each set once, in ring orders that differ."""
    if pp == 0:
        yield ()
        return
    from itertools import combinations

    for members in combinations(left, tp):
        rest = tuple(slot for slot in left if slot not in members)
        for order in _ring_orders(members):
            for others in _cuts(rest, tp, pp - 1):
                yield (order, *others)


def _ring_orders(members: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield orders of a ring that matter: all up to four members, else ascending and interleaved."""
    first, rest = members[0], members[1:]
    if len(members) <= 4:
        for order in permutations(rest):
            if len(order) < 2 or order[0] < order[-1]:  # a ring read backwards is the same ring
                yield (first, *order)
        return
    yield members
    middle = len(members) // 2
    yield (
        tuple(slot for pair in zip(members[:middle], members[middle:], strict=False) for slot in pair)
        + members[2 * middle :]
    )
