"""The steps of many deployments as tables of work: those alike in structure together, so that numpy sees long arrays.

`glmplan.prediction.predict` and `glmplan.calibrate.step.observations` both read these tables, so that what is fitted is
what is predicted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from glmplan.physics.network.groups import LinksByPoint
from glmplan.physics.points import Layout, StepPoints
from glmplan.physics.step.front_end import front_work, prompt_launches
from glmplan.physics.step.limits import bounded_work, least_seconds
from glmplan.physics.step.model import FrontPoints
from glmplan.physics.step.structure import StepWork
from glmplan.physics.step.work import SLOTS, step_work
from glmplan.prediction.deployment import Deployment

__all__ = ["alike", "bounded_tables", "least_of", "step_tables"]


def alike(deployment: Deployment) -> tuple[object, ...]:
    """What deployments must have in common to be computed together; layouts and the links they cross may differ.

    Parameters
    ----------
    deployment : Deployment
        The deployment.

    Returns
    -------
    tuple
        Equal for deployments with the same `Deployment.structure` but for its links.
    """
    d = deployment
    return (d.model.name, id(d.checkpoint), id(d.accelerator), d.kv, d.engine, d.sparse, d.draft_tokens,
            d.settings.attention_backend, d.settings.expert_kernels, d.kernel_release)  # fmt: skip


def step_tables(
    deployments: Sequence[Deployment], points: Sequence[StepPoints], fronts: Sequence[FrontPoints]
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Work of the kinds of step of many deployments.

    Parameters
    ----------
    deployments : sequence of Deployment
        The deployments.
    points : sequence of StepPoints
        The kinds of step of each.
    fronts : sequence of FrontPoints
        Work of the front end of each, as long as its points.

    Yields
    ------
    list of int
        Places of deployments that are alike, ascending, [-]
    (nodes, 20) array
        Their rows one after the other, in the columns of `glmplan.physics.step.work.SLOTS`, [s] or [-]
    """
    for members in _groups(deployments):
        some = [deployments[m] for m in members]
        structure, layout, rows = _rows(some, [points[m] for m in members])
        work = step_work(structure, layout=layout, points=rows)
        yield members, _with_fronts(work, structure, some, [fronts[m] for m in members])


def bounded_tables(
    deployments: Sequence[Deployment], points: Sequence[StepPoints], fronts: Sequence[FrontPoints]
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Work of the kinds of step of many deployments, and the time that each takes at least.

    Parameters
    ----------
    deployments : sequence of Deployment
        The deployments.
    points : sequence of StepPoints
        The kinds of step of each.
    fronts : sequence of FrontPoints
        Work of the front end of each, as long as its points.

    Yields
    ------
    list of int
        Places of deployments that are alike, ascending, [-]
    (nodes, 20) array
        Their rows, as `step_tables` has them, [s] or [-]
    (nodes,) array
        As `least_of` has it, [s]
    """
    for members in _groups(deployments):
        some = [deployments[m] for m in members]
        structure, layout, rows = _rows(some, [points[m] for m in members])
        work, least = bounded_work(structure, layout=layout, points=rows)
        yield members, _with_fronts(work, structure, some, [fronts[m] for m in members]), least


def _groups(deployments: Sequence[Deployment]) -> Iterable[list[int]]:
    """Places of deployments that are alike; one deployment under many loads is looked at once."""
    groups: dict[tuple[object, ...], list[int]] = {}
    found: dict[int, list[int]] = {}
    for place, deployment in enumerate(deployments):
        group = found.get(id(deployment))
        if group is None:
            group = found[id(deployment)] = groups.setdefault(alike(deployment), [])
        group.append(place)
    return groups.values()


def least_of(deployments: Sequence[Deployment], points: Sequence[StepPoints]) -> list[np.ndarray]:
    """Time that the kinds of step of many deployments take at least.

    Parameters
    ----------
    deployments : sequence of Deployment
        The deployments.
    points : sequence of StepPoints
        The kinds of step of each.

    Returns
    -------
    list of (n,) arrays
        As `glmplan.physics.step.limits.least_seconds` bounds them, [s]
    """
    found: list[np.ndarray] = [np.zeros(0)] * len(deployments)
    for members in _groups(deployments):
        some = [deployments[m] for m in members]
        structure, layout, rows = _rows(some, [points[m] for m in members])
        ends = np.cumsum([len(points[m].decode_requests) for m in members])[:-1]
        least = least_seconds(structure, layout=layout, points=rows)
        for member, part in zip(members, np.split(least, ends), strict=True):
            found[member] = part
    return found


def _rows(deployments: list[Deployment], points: list[StepPoints]) -> tuple[StepWork, Layout, StepPoints]:
    """What deployments that are alike have in common, and their points one after the other, with degrees and links."""
    structure, sizes = deployments[0].structure, [len(one.decode_requests) for one in points]
    links = tuple(dict.fromkeys({id(one.link): one.link for one in deployments}.values()))
    if len(links) > 1:
        of = np.repeat([links.index(one.link) for one in deployments], sizes)
        structure = structure.with_links(LinksByPoint(links, of))

    def column(name: str) -> np.ndarray:
        values = [getattr(one, name) for one in points]
        return np.concatenate(
            [
                value if isinstance(value, np.ndarray) and value.shape == (n,) else np.broadcast_to(value, n)
                for value, n in zip(values, sizes, strict=True)
            ]
        )

    def degree(name: str) -> np.ndarray:
        return np.repeat([float(getattr(one, name)) for one in deployments], sizes)

    layout = Layout(tp=degree("tp"), pp=degree("pp"), dp=degree("dp"), ep=degree("ep"), dcp=degree("dcp"))
    names = ("decode_requests", "decode_context", "prefill_tokens", "prefill_context", "decode_shared", "busy_ranks")
    return structure, layout, StepPoints(*(column(name) for name in names))


def _with_fronts(
    work: dict[str, np.ndarray], structure: StepWork, deployments: list[Deployment], fronts: list[FrontPoints]
) -> np.ndarray:
    """Columns of work with what the front end does."""
    graphs = {id(one): one.graph_tokens for one in deployments}
    replayed = [front.pass_tokens <= graphs[id(one)] for one, front in zip(deployments, fronts, strict=True)]
    each = {kind: prompt_launches(structure, replayed=kind) for kind in set(replayed)}
    sizes = [len(one.arrivals) for one in fronts]
    together = FrontPoints(
        np.concatenate([one.arrivals for one in fronts]),
        np.concatenate([one.prompt for one in fronts]),
        wakes=np.concatenate([np.broadcast_to(one.wakes, size) for one, size in zip(fronts, sizes, strict=True)]),
    )
    launches = np.repeat([each[kind] for kind in replayed], sizes)
    return front_work(np.stack([work[slot] for slot in SLOTS], axis=1), together, launches)
