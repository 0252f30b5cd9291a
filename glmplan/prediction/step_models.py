"""Choose the step model of a deployment, and its parameters.

Power limits, and a site's own calibration, too. Deployments of the same structure are computed together in long arrays.
`glmplan.prediction.predict` and `glmplan.calibrate.step.observations` read the same tables, so that prediction and fit
agree.

A site's calibration (``glmplan calibrate --from my-runs.csv --save site.toml``) is a table of effects fitted to the
site's runs; ``--calibration`` adds them to the shipped ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from glmplan.catalog.files import read_toml
from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.costs.network.links import LinksByPoint
from glmplan.costs.points import Layout, StepPoints
from glmplan.costs.step.model import (
    GPU_COMPONENTS,
    PARAMETERS,
    FrontPoints,
    GpuSteps,
    StepModel,
    StepTime,
    bounded_work,
    front_work,
    least_seconds,
    prompt_launches,
    step_times,
)
from glmplan.costs.step.structure import StepWork
from glmplan.costs.step.work import SLOTS, step_work
from glmplan.errors import SpecError, UnknownFact, nearest
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import (
    COLUMNS,
    LEVELS,
    OVERLAY,
    Effects,
    keys_of,
    load_effects,
    log_parameters,
    shipped_effects,
)
from glmplan.prediction.load import Load
from glmplan.prediction.power import check_limit, limited
from glmplan.units import Tokens, Watts

__all__ = [
    "LimitedSteps",
    "StagedSteps",
    "alike",
    "bounded_tables",
    "check_answerable",
    "least_of",
    "load_site",
    "may_hide",
    "measured_elsewhere",
    "runs_on_accelerators",
    "site_calibration",
    "step_model_of",
    "step_parameters",
    "step_tables",
    "with_site",
    "without_hiding",
]


def alike(deployment: Deployment) -> tuple[object, ...]:
    """Return the key of deployments computed together.

    Equal if `Deployment.structure` differs in links only; layouts may differ.
    """
    d = deployment
    return (d.model.name, id(d.checkpoint), id(d.accelerator), d.kv, d.engine, d.sparse, d.draft_tokens,
            d.settings.attention_backend, d.settings.expert_kernels, d.kernel_release,
            d.settings.gathers_latents, d.prompt_tail, d.stages)  # fmt: skip


def step_tables(
    deployments: Sequence[Deployment], points: Sequence[StepPoints], fronts: Sequence[FrontPoints]
) -> Iterator[tuple[list[int], np.ndarray]]:
    """Yield places of deployments and the work of their step kinds.

    The work is (nodes, 20), deployments one after the other, in the columns of `glmplan.costs.step.work.SLOTS` [s] or
    [-]; `fronts` is the front-end work of each point.
    """
    for members in _groups(deployments):
        some = [deployments[m] for m in members]
        structure, layout, rows = _rows(some, [points[m] for m in members])
        work = step_work(structure, layout=layout, points=rows)
        yield members, _with_fronts(work, structure, some, [fronts[m] for m in members])


def bounded_tables(
    deployments: Sequence[Deployment], points: Sequence[StepPoints], fronts: Sequence[FrontPoints]
) -> Iterator[tuple[list[int], np.ndarray, np.ndarray]]:
    """Yield `step_tables` with the lower bound of each step's time [s]"""
    for members in _groups(deployments):
        some = [deployments[m] for m in members]
        structure, layout, rows = _rows(some, [points[m] for m in members])
        work, least = bounded_work(structure, layout=layout, points=rows)
        yield members, _with_fronts(work, structure, some, [fronts[m] for m in members]), least


def _groups(deployments: Sequence[Deployment]) -> Iterable[list[int]]:
    """Return places of deployments that are computed together."""
    groups: dict[tuple[object, ...], list[int]] = {}
    found: dict[int, list[int]] = {}
    for place, deployment in enumerate(deployments):
        group = found.get(id(deployment))
        if group is None:
            group = found[id(deployment)] = groups.setdefault(alike(deployment), [])
        group.append(place)
    return groups.values()


def least_of(deployments: Sequence[Deployment], points: Sequence[StepPoints]) -> list[np.ndarray]:
    """Return the lower bound of each step's time for each deployment [s]

    See `glmplan.costs.step.model.least_seconds`.
    """
    bounds: list[np.ndarray] = [np.zeros(0)] * len(deployments)
    for members in _groups(deployments):
        some = [deployments[m] for m in members]
        structure, layout, rows = _rows(some, [points[m] for m in members])
        last = np.cumsum([len(points[m].decode_requests) for m in members])[:-1]
        seconds = least_seconds(structure, layout=layout, points=rows)
        for member, part in zip(members, np.split(seconds, last), strict=True):
            bounds[member] = part
    return bounds


def _rows(deployments: list[Deployment], points: list[StepPoints]) -> tuple[StepWork, Layout, StepPoints]:
    """Return common structure, layouts and links, and concatenated points."""
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
    """Return the work columns with the front-end work."""
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


@dataclass(frozen=True, slots=True, eq=False)
class LimitedSteps:
    """Step model of accelerators under a power limit."""

    rated: StepModel  # at the rating
    part: Accelerator
    limit: Watts

    @property
    def components(self) -> Mapping[str, tuple[int, ...]]:
        """Return the components of a step."""
        return self.rated.components

    @property
    def times_prompts(self) -> bool:
        """Return True if steps with prompts can be timed."""
        return self.rated.times_prompts

    def times(self, points: StepPoints, front: FrontPoints | None = None) -> StepTime:
        """Return seconds (n,) and breakdown (n, k) of steps."""
        timed = self.rated.times(points, front)
        arithmetic = tuple(self.components.get("compute", ()))
        return limited(timed, arithmetic, np.broadcast_to(points.decode_requests, timed.seconds.shape), self.part,
                       self.limit)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class StagedSteps:
    """Step model of pipeline stages on unlike accelerators.

    Notes
    -----
    A stage takes its share of the layers of the time that the whole pass takes on its kind of accelerator. A pass is
    the sum of the stages. With more micro-batches in flight the slowest stage sets the rate: each batch returns to it
    after all batches have passed it. Not modelled: layers of different size; the embedding and the output layer, which
    count with the layers; prompts that do not fill the stages.
    """

    kinds: tuple[GpuSteps, ...]  # on each kind of accelerator alone
    shares: tuple[tuple[int, float], ...]  # of each stage: its kind and its share of the layers

    @property
    def components(self) -> Mapping[str, tuple[int, ...]]:
        """Return the components of a step."""
        return GPU_COMPONENTS

    @property
    def times_prompts(self) -> bool:
        """Return True: prompts are timed by their arithmetic."""
        return True

    def times(self, points: StepPoints, front: FrontPoints | None = None) -> StepTime:
        """Return seconds (n,) and breakdown (n, k) of steps."""
        found = [kind.times(points, front) for kind in self.kinds]
        stages = [share * found[kind].seconds for kind, share in self.shares]
        passage = step_times(
            np.sum([share * found[kind].seconds[:, None] * found[kind].shares for kind, share in self.shares], axis=0)
        )
        depth = len(self.shares)
        batches = np.where(points.prefill_tokens > 0, depth, np.minimum(points.decode_requests, depth))
        return StepTime(np.maximum(passage.seconds, batches * np.max(stages, axis=0)), passage.shares)

    def least(self, points: StepPoints) -> np.ndarray:
        """Return the lower bound of steps: bytes at the data-sheet bandwidth."""
        each = [least_seconds(kind.structure, layout=kind.layout, points=points) for kind in self.kinds]
        result: np.ndarray = np.sum([share * each[kind] for kind, share in self.shares], axis=0)
        return result


#: links timed by the protocols of `glmplan.costs.network`, not by an accelerator's kernel table
_WIRED = ("pcie", "fabric")
_PAYLOAD = PARAMETERS.index("collective_bytes_slowdown")


def runs_on_accelerators(deployment: Deployment) -> bool:
    """Return True if the deployment is predicted kernel by kernel.

    False with weights in host memory, and for unified memory without a published matrix rate.
    """
    return deployment.offload is None and not deployment.accelerator.runs_on_one_memory


def check_answerable(deployment: Deployment, load: Load) -> None:
    """Refuse a load that no published rate can predict."""
    if runs_on_accelerators(deployment):
        deployment.structure.part.rate("bf16")
    elif deployment.offload is None and load.phase == "prefill":
        raise UnknownFact(f"no matrix rate of {deployment.accelerator.full_name} is published: prompts cannot be timed")


def step_parameters(deployment: Deployment, total: np.ndarray) -> np.ndarray:
    """Return the log parameters of a step time, bounded by the links.

    Columns are `glmplan.costs.step.model.PARAMETERS`.

    Notes
    -----
    A collective whose payload takes 1 / efficiency of the time on the wire cannot be faster by more than that
    efficiency: effects fitted on undescribed machines are cut there. Not modelled: the group that carries most of the
    payload; the best group gives the bound.
    """
    parameters = log_parameters(total[None, :])[0]
    links = deployment.link
    groups = ((links.tensor, deployment.tp), (links.experts, deployment.tp * deployment.dp),
              (links.context, deployment.dcp), (links.hand_over, deployment.pp))  # fmt: skip
    wires = [link.ring.efficiency for link, ranks in groups if ranks > 1 and link.kind in _WIRED]
    if wires:
        parameters[_PAYLOAD] = max(parameters[_PAYLOAD], float(np.log(max(wires))))
    result: np.ndarray = parameters
    return result


def step_model_of(deployment: Deployment, *, effects: Effects | None = None) -> StepModel:
    """Return the step model of a deployment, used by every command.

    `HostedSteps` with weights in host memory, `OneMemorySteps` for unified memory without a published matrix rate,
    `StagedSteps` for unlike pipeline stages, else `GpuSteps`; `LimitedSteps` around it under a power limit.

    Examples
    --------
    >>> from glmplan.prediction.from_row import question_of
    >>> from glmplan.io.runs.table import run_from_row
    >>> row = {"id": "a", "model": "glm-5.1", "weights": "mxfp4", "accelerator": "m3-ultra", "accelerator_count": "1",
    ...        "engine": "mlx", "phase": "decode", "concurrency": "1"}
    >>> type(step_model_of(question_of(run_from_row(row)).deployment)).__name__
    'OneMemorySteps'
    """
    d = deployment
    tokens = 1.0 + d.draft_tokens
    if d.power_limit is not None and not runs_on_accelerators(d):
        message = "no run shows the effect of a power limit where a processor computes too, or shares its memory"
        raise UnknownFact(f"{message}: leave --power-limit out")
    if d.offload is not None:
        from glmplan.costs.offload.steps import HostedSteps
        from glmplan.costs.offload.work import load_offload_fit

        return HostedSteps(d.model, d.checkpoint, d.offload, d.rated[0], d.count, load_offload_fit(), d.kv, tokens)
    if d.accelerator.runs_on_one_memory:
        from glmplan.costs.offload.steps import OneMemorySteps
        from glmplan.costs.offload.work import load_offload_fit

        return OneMemorySteps(d.model, d.checkpoint, d.accelerator, load_offload_fit(), d.kv, tokens)
    if d.stages:
        names, layers = list(d.kinds), sum(count for _, count in d.stages)
        shares = tuple((names.index(name), count / layers) for name, count in d.stages)
        return StagedSteps(tuple(_gpu_steps(one, effects) for one in d.kinds.values()), shares)
    steps = _gpu_steps(d, effects)
    part, limit = d.rated
    if limit is None:
        return steps
    check_limit(part, limit)
    return LimitedSteps(steps, part, limit)


def _gpu_steps(d: Deployment, effects: Effects | None) -> GpuSteps:
    """Return the step model of equal accelerators at their rating."""
    total, _ = (effects or load_effects(d.engine)).sum_of(keys_of(d))
    return GpuSteps(d.structure, d.layout, step_parameters(d, total), d.graph_tokens)


def without_hiding(model: StepModel) -> tuple[StepModel, float] | None:
    """Return the model without overlapped shared experts, and its token limit.

    The limit is the longest step that overlaps shared with routed experts; None if no step does.

    Examples
    --------
    >>> from glmplan import deployment
    >>> found = without_hiding(step_model_of(deployment("deepseek-r1", "8xb200-sxm", tp=8).deployment))
    >>> found[1], without_hiding(found[0])
    (256.0, None)
    """
    if isinstance(model, LimitedSteps):
        rated = without_hiding(model.rated)
        return None if rated is None else (replace(model, rated=rated[0]), rated[1])
    if isinstance(model, StagedSteps):
        most = max(map(_hidden_tokens, model.kinds))
        return (replace(model, kinds=tuple(map(_all_shown, model.kinds))), most) if most else None
    if not isinstance(model, GpuSteps) or not (most := _hidden_tokens(model)):
        return None
    return _all_shown(model), most


def _hidden_tokens(model: GpuSteps) -> Tokens:
    """Return the longest step that overlaps shared with routed experts, or 0."""
    return model.structure.shared_beside if model.structure.shares else 0.0


def _all_shown(model: GpuSteps) -> GpuSteps:
    """Return the model whose steps overlap nothing."""
    return replace(model, structure=replace(model.structure, shared_beside=0.0))


def may_hide(deployment: Deployment, points: StepPoints, tokens: Tokens) -> np.ndarray:
    """Return True for steps that may overlap shared with routed experts.

    All other steps take the same time in both models; `tokens` is the limit of `without_hiding`.
    """
    structure, each = deployment.structure, points.decode_requests
    # some layers see decoding requests alone: draft layers, and layers that only read the cache of a prompt
    if not structure.draft and not any(apart for apart, _ in structure.stacks):
        each = each * (1.0 + deployment.draft_tokens) + points.prefill_tokens
    # tolerance for rounding in the division by ranks
    overlaps: np.ndarray = each / (deployment.dp * deployment.pp) <= tokens * (1.0 + 1e-9)
    return overlaps


#: bounds of a domain: concurrency and two lengths [-]
_BOUNDS = 6
#: larger log effects are refused: a server 5 × 10⁸ times slower [-]
_FAR = 20.0


def with_site(
    effects: Effects,
    values: dict[str, dict[str, np.ndarray]],
    *,
    domain: dict[str, list[float]] | None = None,
) -> Effects:
    """Return effects with a site's effects added.

    Configurations in `domain` (group → range of concurrency and lengths) count as measured.
    """
    merged = dict(effects.values)
    for level, table in values.items():
        merged[level] = dict(merged.get(level, {}))
        for key, row in table.items():
            merged[level][key] = merged[level].get(key, 0.0) + row
    ranges = dict(effects.domain)
    for group, ends in (domain or {}).items():
        before = ranges.get(group, ends)
        ranges[group] = []
        for place in range(0, len(ends), 2):
            # an infinite upper bound is of runs that do not state the value
            known = [one[place : place + 2] for one in (before, ends) if one[place + 1] < np.inf] or [[0.0, np.inf]]
            ranges[group] += [min(low for low, _ in known), max(high for _, high in known)]
    site = effects.site | frozenset(values.get("configuration", {}))
    return replace(effects, values=merged, domain=ranges, site=site)


def load_site(path: str | Path, engine: str) -> Effects:
    """Return the shipped effects with a site's calibration file added."""
    table = read_toml(path)
    effects, domain = table.get("effects"), table.get("domain", {})
    complete = (
        table.get("columns") == list(COLUMNS)
        and isinstance(effects, dict)
        and not set(effects) - set(LEVELS)
        and all(_rows_own_site(rows, len(COLUMNS), finite=True) for rows in effects.values())
        and _rows_own_site(domain, _BOUNDS)
    )
    if not complete:
        raise SpecError(
            "is not a site calibration of this version of glmplan: run `glmplan calibrate --from`", file=path
        )
    values = {
        level: {key: np.array(row) for key, row in rows.items() if key == engine or key.startswith(engine + " ")}
        for level, rows in table["effects"].items()
    }
    return with_site(shipped_effects(engine), values, domain=domain)


def _rows_own_site(table: object, length: int, *, finite: bool = False) -> bool:
    """Return True if a table holds rows of `length` numbers without NaN."""
    return isinstance(table, dict) and all(
        isinstance(row, list)
        and len(row) == length
        and all(type(one) in (int, float) and one == one and (abs(one) < _FAR or not finite) for one in row)
        for row in table.values()
    )


@contextmanager
def site_calibration(path: str | Path | None) -> Iterator[None]:
    """Apply a site's calibration to every prediction inside."""
    if path is None:
        yield
        return
    load_site(path, "vllm")  # refuse an invalid file early
    by_engine: dict[str, Effects] = {}

    def effects(engine: str) -> Effects:
        if engine not in by_engine:
            by_engine[engine] = load_site(path, engine)
        return by_engine[engine]

    token = OVERLAY.set(effects)
    try:
        yield
    finally:
        OVERLAY.reset(token)


def measured_elsewhere(deployment: Deployment) -> str:
    """Return a note if the applied calibration lacks the configuration.

    It names the configuration and the nearest measured one; empty if the site measured it.

    Examples
    --------
    >>> from glmplan.planner import fit_answer
    >>> from glmplan.request.plan import PlanRequest
    >>> measured_elsewhere(fit_answer(PlanRequest("glm-5.1", "dgx-b300-8", engine="sglang")).deployment).split(", ")[1]
    'which your calibration did not measure; nearest: none of sglang'
    """
    if not runs_on_accelerators(deployment):
        return "this plan uses bytes and rates of its host, which your calibration of an engine does not change"
    key = keys_of(deployment)[LEVELS.index("configuration")]
    measured = sorted(load_effects(deployment.engine).site)
    if key in measured:
        return ""
    close = (
        ", ".join(f"`{one}`" for one in (nearest(key, measured, 2) or measured[:2])) or f"none of {deployment.engine}"
    )
    return f"this plan is `{key}`, which your calibration did not measure; nearest: {close}"
