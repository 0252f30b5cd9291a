"""What is taken of an engine on a processor before a site measures it: no row of the shipped fit ran on one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.facts.engines.walls import engine_names, load_engine
from glmplan.physics.step.time import PARAMETERS
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import COLUMNS, LEVELS, load_effects

__all__ = ["MISSED", "Prior", "processor_prior"]

#: what the form of a step misses on a processor and what its steps differ by from minute to minute, standard deviation
#: of the logarithm. Calibrated on 1 and 4 of 1 to 8 users, models of 200 MB on two cores of a Xeon were off by 7 and
#: 8 % in TPOT and 4 % in TTFT (root mean square), models of 52 MB, which a cache holds now and then, by 17 and 6 %, on
#: two cores with AVX-512 by 10 and 11 %, with AVX2 by 4 and 6 % [-]
MISSED: dict[str, float] = {"decode": 0.15, "ttft": 0.08, "prefill": 0.05}

#: an engine in one process with its kernels: no launches, no front end in Python; orders of magnitude for llama.cpp's
#: server on one core (a step of a 1 MB model takes 0.1 ms, a request is taken in within 2 ms; what a decoding request
#: adds to a step is counted in each layer, as everywhere: 0.2 ms in a model of eight; so is what a prompt adds) [s]
_ONE_PROCESS = {
    "host_seconds": 1e-4, "layer_seconds": 1e-5, "moe_layer_seconds": 1e-5, "state_layer_seconds": 1e-5,
    "request_seconds": 2.5e-5, "arrival_seconds": 2e-4, "prompt_token_seconds": 2e-6, "wake_seconds": 1e-4,
}  # fmt: skip
#: standard deviations of the logarithm: of these times, of kernels against the rates that the probe measured, and of
#: whole steps, because a server may use other threads than the probe [-]
_OF_SECONDS, _OF_KERNELS, _OF_STEPS, _OF_TTFT = 1.0, 0.4, 0.5, 0.1
#: of products and experts, as they differ between the three processors of `glmplan.physics.step.on_processor`: one row,
#: bandwidth, rate [-]
_OF_PRODUCTS = {
    "gemm_fixed_slowdown": 0.7, "gemm_bytes_slowdown": 0.4, "expert_bytes_slowdown": 0.4,
    "gemm_flop_slowdown": 0.9, "expert_flop_slowdown": 0.9,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Prior:
    """Where a site calibration starts.

    Attributes
    ----------
    mean, deviation : (22,) array
        In the order of `glmplan.prediction.effects.COLUMNS`, [log s] or [-]
    """

    mean: np.ndarray
    deviation: np.ndarray


def processor_prior(deployment: Deployment) -> Prior | None:
    """Where a site calibration of a deployment on a processor starts.

    Parameters
    ----------
    deployment : Deployment
        The deployment.

    Returns
    -------
    Prior or None
        Kernels as their own forms say; None for accelerators, where the shipped fit is the start.
    """
    if not deployment.structure.part.is_processor:
        return None
    mean = load_effects(deployment.engine).sum_of(("all",) * len(LEVELS))[0]
    deviation = np.full(len(COLUMNS), _OF_KERNELS)
    running = load_engine(deployment.engine).running if deployment.engine in engine_names() else None
    one_process = running is not None and running.one_process
    for place, name in enumerate(PARAMETERS):
        if name.endswith("_seconds"):
            deviation[place] = _OF_SECONDS
            if one_process:
                mean[place] = np.log(_ONE_PROCESS[name])
        else:
            mean[place] = 0.0
        deviation[place] = _OF_PRODUCTS.get(name, deviation[place])
    mean[len(PARAMETERS) :] = 0.0
    deviation[len(PARAMETERS) :] = _OF_STEPS, _OF_TTFT
    return Prior(mean, deviation)
