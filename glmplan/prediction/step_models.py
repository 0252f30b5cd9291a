"""Which model of a step time answers for a deployment: one rule for every command."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from glmplan.errors import UnknownFact
from glmplan.physics.points import StepPoints
from glmplan.physics.step.gpu import GpuSteps
from glmplan.physics.step.model import StepModel
from glmplan.physics.step.time import PARAMETERS
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import Effects, keys_of, load_effects, log_parameters
from glmplan.prediction.load import Load
from glmplan.prediction.power import LimitedSteps, check_limit

if TYPE_CHECKING:
    from glmplan.physics.offload.time import OffloadFit

__all__ = [
    "check_answerable",
    "may_hide",
    "runs_on_accelerators",
    "step_model_of",
    "step_parameters",
    "without_hiding",
]

#: links whose collectives are timed by the protocols of `glmplan.physics.network`, not by a part's table of kernels
_WIRED = ("pcie", "fabric")
_PAYLOAD = PARAMETERS.index("collective_bytes_slowdown")


def runs_on_accelerators(deployment: Deployment) -> bool:
    """Whether a deployment is answered kernel by kernel: its accelerators hold all weights and their rates are known.

    Parameters
    ----------
    deployment : Deployment
        The deployment.

    Returns
    -------
    bool
        False with weights in host memory, and on machines with one memory whose matrix rate nobody published.
    """
    return deployment.offload is None and not deployment.accelerator.runs_on_one_memory


def check_answerable(deployment: Deployment, load: Load) -> None:
    """Refuse what no published rate can answer.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    load : Load
        The load.

    Raises
    ------
    UnknownFact
        If a rate of the part that the answer needs is not published.
    """
    if runs_on_accelerators(deployment):
        deployment.structure.part.rate("bf16")
    elif deployment.offload is None and load.phase == "prefill":
        raise UnknownFact(f"no matrix rate of {deployment.accelerator.full_name} is published: prompts cannot be timed")


def step_parameters(deployment: Deployment, total: np.ndarray) -> np.ndarray:
    """Parameters of a deployment's step time: summed effects, bounded by what its links can carry.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    total : (22,) array
        Summed effects, as `Effects.sum_of` gives them, [-]

    Returns
    -------
    (20,) array
        Logarithms of `glmplan.physics.step.time.PARAMETERS`, [log s] or [-]

    Notes
    -----
    A collective whose payload takes 1 / efficiency of the time on the wire cannot be sped up by more than that
    efficiency. What is learnt of a configuration from machines that nobody described may say otherwise: the wire
    decides. Not modelled: which of its groups a configuration's payload crosses most; the best of them bounds it.
    """
    found = log_parameters(total[None, :])[0]
    links = deployment.link
    groups = ((links.tensor, deployment.tp), (links.experts, deployment.tp * deployment.dp),
              (links.context, deployment.dcp), (links.hand_over, deployment.pp))  # fmt: skip
    wires = [link.ring.efficiency for link, ranks in groups if ranks > 1 and link.kind in _WIRED]
    if wires:
        found[_PAYLOAD] = max(found[_PAYLOAD], float(np.log(max(wires))))
    return found


def step_model_of(
    deployment: Deployment, *, effects: Effects | None = None, constants: OffloadFit | None = None
) -> StepModel:
    """The model of a deployment's step time: the one that answers every question about it.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    effects : Effects, optional
        The fit of accelerators; the shipped one by default.
    constants : OffloadFit, optional
        The fit of offloading and of machines with one memory; the shipped one by default.

    Returns
    -------
    StepModel
        `HostedSteps` with weights in host memory, `OneMemorySteps` on machines with one memory whose matrix rate
        nobody published, else `GpuSteps`, as `LimitedSteps` under a power limit.

    Raises
    ------
    UnknownFact
        If nobody measured what the power limit costs.

    Examples
    --------
    >>> from glmplan.prediction.from_row import question_of
    >>> from glmplan.readers.runs.table import run_from_row
    >>> row = {"id": "a", "model": "glm-5.1", "weights": "mxfp4", "accelerator": "m3-ultra", "accelerator_count": "1",
    ...        "engine": "mlx", "phase": "decode", "concurrency": "1"}
    >>> type(step_model_of(question_of(run_from_row(row)).deployment)).__name__
    'OneMemorySteps'
    """
    d = deployment
    tokens = 1.0 + d.draft_tokens
    if d.power_limit is not None and not runs_on_accelerators(d):
        message = "what a power limit costs is not known where the accelerators do not hold and compute everything"
        raise UnknownFact(message)
    if d.offload is not None:
        from glmplan.physics.offload.hosted_steps import HostedSteps
        from glmplan.physics.offload.time import load_offload_fit

        fit = constants or load_offload_fit()
        return HostedSteps(d.model, d.checkpoint, d.offload, d.accelerator, d.count, fit, d.kv, tokens)
    if d.accelerator.runs_on_one_memory:
        from glmplan.physics.offload.one_memory_steps import OneMemorySteps
        from glmplan.physics.offload.time import load_offload_fit

        fit = constants or load_offload_fit()
        return OneMemorySteps(d.model, d.checkpoint, d.accelerator, fit, d.kv, tokens)
    effects = effects or load_effects(d.engine)
    total, _ = effects.sum_of(keys_of(d))
    found = GpuSteps(d.structure, d.layout, step_parameters(d, total), d.graph_tokens)
    if d.power_limit is None:
        return found
    check_limit(d.accelerator, d.power_limit)
    return LimitedSteps(found, d.accelerator, d.power_limit)


def without_hiding(model: StepModel) -> tuple[StepModel, float] | None:
    """The model of steps of which none hides shared experts beside the routed ones, and which of them do.

    Parameters
    ----------
    model : StepModel
        The model.

    Returns
    -------
    tuple of StepModel and float, or None
        The other model, and tokens of the longest step that hides them [token]; None where none does.

    Examples
    --------
    >>> from glmplan import deployment
    >>> found = without_hiding(step_model_of(deployment("deepseek-r1", "8xb200-sxm", tp=8).deployment))
    >>> found[1], without_hiding(found[0])
    (256.0, None)
    """
    if isinstance(model, LimitedSteps):
        found = without_hiding(model.rated)
        return None if found is None else (replace(model, rated=found[0]), found[1])
    if not isinstance(model, GpuSteps) or not model.structure.shared_beside or not model.structure.shares:
        return None
    return replace(model, structure=replace(model.structure, shared_beside=0.0)), model.structure.shared_beside


def may_hide(deployment: Deployment, points: StepPoints, tokens: float) -> np.ndarray:
    """Which steps may hide shared experts beside the routed ones: of all others both models tell the same time.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    points : StepPoints
        Steps of all its ranks.
    tokens : float
        Tokens of the longest step that hides them, as `without_hiding` tells them [token]

    Returns
    -------
    (n,) array of bool
        False where every rank has more tokens.
    """
    structure, each = deployment.structure, points.decode_requests
    # some layers see decoding requests alone: those that draft, and those that only read what was cached of a prompt
    if not structure.draft and not any(apart for apart, _ in structure.stacks):
        each = each * (1.0 + deployment.draft_tokens) + points.prefill_tokens
    # a hair more than the division by ranks may lose
    found: np.ndarray = each / (deployment.dp * deployment.pp) <= tokens * (1.0 + 1e-9)
    return found
