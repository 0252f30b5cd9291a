"""Return step times: the interface, and the model for all-GPU weights.

Weights are on the accelerators. `GpuSteps` turns kernel times and counts into seconds with the fitted effects of the
engine. `glmplan.costs.offload.steps` has the models of machines with weights in host memory, or with one memory for
processor and accelerator. Every measured quantity is the same weighted sum of step times in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np

from glmplan.catalog.caching import remembered
from glmplan.catalog.engines.kernels import KernelRule
from glmplan.catalog.schema.model import LayerKind, ModelSpec
from glmplan.costs.blocks.kinds import mixer_of, routed_of
from glmplan.costs.blocks.stack import routed_blocks
from glmplan.costs.kernels.utilisation import KernelParams
from glmplan.costs.points import Layout, StepPoints
from glmplan.costs.step.structure import StepWork
from glmplan.costs.step.work import KERNELS, SLOTS, step_work
from glmplan.units import Ratio, SecondsArray, Tokens, TokensArray

__all__ = [
    "BOUND",
    "COMPONENTS",
    "GPU_COMPONENTS",
    "PARAMETERS",
    "ROUTED",
    "FrontPoints",
    "GpuSteps",
    "Perfect",
    "ReadsMemory",
    "StepModel",
    "StepTime",
    "apart_seconds",
    "bounded_work",
    "front_work",
    "least_seconds",
    "prompt_launches",
    "routed_share",
    "step_time",
    "step_times",
]


#: parameters of the step time; each multiplies one column of the work table: counts by seconds, kernel times by a
#: slow-down relative to the kernel measured alone [-]
PARAMETERS: tuple[str, ...] = tuple(f"{slot}_{'seconds' if counted else 'slowdown'}" for slot, counted in (
    ("host", True), ("layer", True), ("moe_layer", True), ("state_layer", True), ("request", True),
    ("activation", False), ("gemm_fixed", False), ("gemm_bytes", False), ("gemm_flop", False),
    ("expert_fixed", False), ("expert_bytes", False), ("expert_flop", False), ("attention_fixed", False),
    ("cache", False), ("prefill_attention", False), ("collective", False), ("collective_bytes", False),
    ("arrival", True), ("prompt_token", True), ("wake", True),
))  # fmt: skip

#: step-time component → parameters, for users
COMPONENTS: dict[str, tuple[str, ...]] = {
    "launch": ("host", "layer", "moe_layer", "state_layer", "request", "gemm_fixed", "expert_fixed", "attention_fixed"),
    "weights": ("gemm_bytes", "expert_bytes"),
    "compute": ("gemm_flop", "expert_flop", "prefill_attention", "activation"),
    "cache": ("cache",),
    "links": ("collective", "collective_bytes"),
    "front end": ("arrival", "prompt_token", "wake"),
}


@dataclass(frozen=True, slots=True, eq=False)
class StepTime:
    """Step time and its breakdown."""

    seconds: SecondsArray
    #: (n, k), rows add up to 1; on accelerators of the `PARAMETERS`, where they are also d log(time) / d log(parameter)
    shares: np.ndarray


def step_time(work: Mapping[str, np.ndarray] | np.ndarray, log_parameters: np.ndarray) -> StepTime:
    """Return the time of each step.

    Parameters
    ----------
    work : dict of (n,) arrays, or (n, 20) array
        Kernel times and counts, as `glmplan.costs.step.work.step_work` gives them, [s] or [-]
    log_parameters : (20,) or (n, 20) array
        Natural logarithms of `PARAMETERS`, [log s] or [-]

    Returns
    -------
    StepTime
        Seconds and shares.

    Notes
    -----
    ``t = Σ counts · latency + Σ kernel times · slow-down``: kernels follow each other; within a kernel bytes and FLOP
    overlap as its own fit says. Not modelled: two streams at once, clocks that fall under load.

    Examples
    --------
    >>> work = np.zeros((1, 20))
    >>> work[0, 0] = 1.0                  # one engine step
    >>> float(step_time(work, np.full(20, np.log(2e-3))).seconds[0])
    0.002
    """
    return step_times(_table(work) * np.exp(log_parameters))


def _table(work: Mapping[str, np.ndarray] | np.ndarray) -> np.ndarray:
    """Return the work as an array with a column for each slot."""
    return work if isinstance(work, np.ndarray) else np.stack([np.asarray(work[slot], float) for slot in SLOTS], axis=1)


@dataclass(frozen=True, slots=True, eq=False)
class FrontPoints:
    """Work of the front end outside of steps; arrays are (n,).

    Rows with any hold no step.
    """

    arrivals: np.ndarray  # requests that arrive
    prompt: TokensArray  # read from prompts
    pass_tokens: Tokens = 0.0  # computed before a first token, which decides if the pass replays graphs
    wakes: np.ndarray | float = 0.0  # requests that arrive at an idle engine


@runtime_checkable
class StepModel(Protocol):
    """Seconds and breakdown of the steps of one deployment."""

    @property
    def components(self) -> Mapping[str, tuple[int, ...]]:
        """Return component → columns of `StepTime.shares`."""
        ...

    @property
    def times_prompts(self) -> bool:
        """Return True if steps with prompts have a time, else only decode."""
        ...

    def times(self, points: StepPoints, front: FrontPoints | None = None) -> StepTime:
        """Return the time of steps, with the work of the front end beside them."""
        ...


@runtime_checkable
class ReadsMemory(Protocol):
    """Step model that bounds steps by the bytes that they read."""

    def least(self, points: StepPoints) -> SecondsArray:
        """Return the lower bound of steps: bytes at the data-sheet bandwidth."""
        ...


def step_times(costs: SecondsArray) -> StepTime:
    """Return seconds and shares from the cost components of each step.

    Components add up; shares are 0 without a step.

    Examples
    --------
    >>> found = step_times(np.array([[1.0, 3.0]]))
    >>> found.seconds.tolist(), found.shares.tolist()
    ([4.0], [[0.25, 0.75]])
    """
    seconds = costs.sum(axis=1)
    return StepTime(seconds, costs / np.maximum(seconds, 1e-300)[:, None])


def apart_seconds(
    attention: SecondsArray, experts: SecondsArray, transfer: SecondsArray, *, layers: float, microbatches: int
) -> SecondsArray:
    """Return the time of a step with attention and experts apart.

    Micro-batches go back and forth between both: while one is with the experts, another has attention. The times are
    those of one micro-batch over all layers; `transfer` is that of one direction.

    References
    ----------
    .. [1] R. Zhu et al., "MegaScale-Infer: Serving Mixture-of-Experts at Scale with Disaggregated Expert Parallelism",
       arXiv:2504.02263 (ping-pong pipeline), for enough micro-batches to hide the transfers.

    Notes
    -----
    A layer takes a micro-batch a + e + 2c, and m of them m times the longest of a, e and c; the longer of both is the
    period of a layer.

    Examples
    --------
    >>> parts = [np.array([one]) for one in (0.010, 0.008, 0.002)]
    >>> [round(float(apart_seconds(*parts, layers=10.0, microbatches=m)[0]), 4) for m in (1, 2, 3)]
    [0.022, 0.023, 0.0312]
    """
    a, e, c = attention / layers, experts / layers, transfer / layers
    through, longest = a + e + 2 * c, np.maximum(np.maximum(a, e), c)
    found: SecondsArray = (
        (layers - 1) * np.maximum(through, microbatches * longest) + through + (microbatches - 1) * longest
    )
    return found


def prompt_launches(structure: StepWork, *, replayed: bool = False) -> Ratio:
    """Return the layers that a host launches for the pass over a prompt.

    Counted once more for experts and once more for a latent or recurrent state. `replayed`: piecewise graphs hold all
    of the pass but attention, which counts once.

    Notes
    -----
    Decode steps replay a CUDA graph, long prompts do not: their kernels are launched one by one, and the first token
    waits for the host. One new token takes SGLang 83 ms without a graph and 23 ms with one (sgl-project/sglang pull
    request 12160, tested with DeepSeek-V3), about 0.46 ms for each of 180 counts; a short prompt of Qwen3-4B, with 36,
    takes 16.6 ms (wejoncy/sfllm pull request 46). Not modelled: launches hidden by the kernels of a long prompt.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> from glmplan.costs.blocks.stack import uniform_checkpoint
    >>> from glmplan.catalog.entries.hosts import load_machine
    >>> from glmplan.costs.network.links import links_of_layout
    >>> from glmplan.costs.step.structure import Part
    >>> part = Part("h100-sxm", bandwidth=3.35e12, peaks={"bf16": 989e12}, family="9")
    >>> link = links_of_layout(load_machine("h100-sxm"))
    >>> [prompt_launches(StepWork(load_model(name), uniform_checkpoint("bf16"), part, link))
    ...  for name in ("llama-3.1-8b", "deepseek-v3")]
    [32.0, 180.0]
    """
    return float(sum(part.count * (1.0 if replayed else _launched(part.kind)) for part, _ in structure.main))


def _launched(kind: LayerKind) -> float:
    return 1.0 + float(routed_of(kind) is not None) + mixer_of(kind).extra_launches


def front_work(table: np.ndarray, front: FrontPoints, launches: np.ndarray | float) -> np.ndarray:
    """Return the work table with the rows of the front end replaced."""
    any_of_it = (front.arrivals > 0) | (front.prompt > 0) | (np.asarray(front.wakes) > 0)
    result = np.where(any_of_it[:, None], 0.0, table)
    result[:, SLOTS.index("arrival")] = front.arrivals * launches
    result[:, SLOTS.index("prompt_token")] = front.prompt
    result[:, SLOTS.index("wake")] = front.wakes
    return result


#: component → columns of the work table; the front end is outside of steps
GPU_COMPONENTS: dict[str, tuple[int, ...]] = {
    name: tuple(SLOTS.index(slot) for slot in slots) for name, slots in COMPONENTS.items() if name != "front end"
}


@dataclass(frozen=True, slots=True, eq=False)
class GpuSteps:
    """Steps of one deployment on accelerators.

    `glmplan.prediction.step_models.step_tables` computes many deployments at once with the same formulas.
    """

    structure: StepWork
    layout: Layout
    log_parameters: np.ndarray  # natural logarithms of `PARAMETERS`
    graph_tokens: int = 0  # most tokens of a pass with prompts that is replayed from graphs

    @property
    def components(self) -> Mapping[str, tuple[int, ...]]:
        """Return the components of a step."""
        return GPU_COMPONENTS

    @property
    def times_prompts(self) -> bool:
        """Return True: prompts are timed by their arithmetic."""
        return True

    def times(self, points: StepPoints, front: FrontPoints | None = None) -> StepTime:
        """Return the time of steps, with the work of the front end beside them."""
        work = step_work(self.structure, layout=self.layout, points=points)
        if front is None:
            return step_time(work, self.log_parameters)
        launches = prompt_launches(self.structure, replayed=front.pass_tokens <= self.graph_tokens)
        return step_time(front_work(_table(work), front, launches), self.log_parameters)


#: kernel times that the data sheet bounds
BOUND: tuple[str, ...] = ("gemm_bytes", "gemm_flop", "expert_bytes", "expert_flop", "cache", "prefill_attention")
#: largest ratio of cache to memory bandwidth of the kernel fits
_CACHE = 8.0
#: share of the routed experts' time that remains with uneven routing, which touches fewer of them
ROUTED = 0.8
_PERFECT = KernelParams(floor=0.0, bandwidth=1.0, flop=1.0, sharpness=32.0, cache_gain=_CACHE, cache_bytes=np.inf)


class Perfect(StepWork):
    """Work with kernels at the data-sheet rates and without links.

    No launch, full bandwidth and FLOP rate.
    """

    counts_links = False

    def kernel(self, kernel: str, form: str | KernelRule) -> KernelParams:
        """Return parameters of a kernel at its best."""
        return _PERFECT


class _WithBound(StepWork):
    """Work with fitted kernels, and data-sheet kernels in a second lane.

    Common terms are computed once.
    """

    lanes = (2,)

    def kernel(self, kernel: str, form: str | KernelRule) -> KernelParams:
        """Return both sets of parameters of a kernel, each a (2, 1) array."""
        return _with_bound(super().kernel(kernel, form))


@remembered(most=1024)
def _with_bound(params: KernelParams) -> KernelParams:
    both: dict[str, Any] = {
        field.name: np.array([[getattr(params, field.name)], [getattr(_PERFECT, field.name)]])
        for field in fields(KernelParams)
    }
    return replace(params, **both)


def bounded_work(
    structure: StepWork, *, layout: Layout, points: StepPoints
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return `step_work` and `least_seconds` of steps in one pass."""
    if structure.part.is_processor:
        least = least_seconds(structure, layout=layout, points=points)
        return step_work(structure, layout=layout, points=points), least
    both = step_work(_WithBound.of(structure), layout=layout, points=points)
    least = _least({slot: both[slot][1] for slot in BOUND}, structure, points)
    return {slot: value[0] if slot in KERNELS else value for slot, value in both.items()}, least


def routed_share(model: ModelSpec, points: StepPoints, tokens_per_request: Tokens) -> np.ndarray:
    """Return the least share of the expected bytes that a step reads.

    1 for dense models and for a single token, else `ROUTED`: bytes of experts are not separated here.
    """
    tokens = np.asarray(points.decode_requests) * tokens_per_request + np.asarray(points.prefill_tokens)
    return np.where((tokens > 1.0) & bool(routed_blocks(model)), ROUTED, 1.0)


def _least(work: dict[str, np.ndarray], structure: StepWork, points: StepPoints) -> np.ndarray:
    alone = (points.decode_requests <= 1.0) & (points.prefill_tokens == 0.0) & (structure.draft_tokens == 0)
    routed = np.where(alone, 1.0, ROUTED)
    result: np.ndarray = np.sum([work[slot] * (routed if slot.startswith("expert") else 1.0) for slot in BOUND], axis=0)
    return result


def least_seconds(structure: StepWork, *, layout: Layout, points: StepPoints) -> SecondsArray:
    """Return the lower bound of steps, at data-sheet rates.

    All bytes at the bandwidth, all FLOP at the peak rate. Launches, links and the front end are left out, caches may be
    eight times faster than memory, and routed experts count with a share of 0.8, except for a single token, whose
    experts all differ. Zero for processors: their caches can hold a small model.
    """
    if structure.part.is_processor:
        return np.zeros(np.broadcast(points.decode_requests, points.prefill_tokens).shape)
    return _least(step_work(Perfect.of(structure), layout=layout, points=points), structure, points)
