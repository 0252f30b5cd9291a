"""What a prediction hands to the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from glmplan.serving.engine.first_tokens import AS_STEPS_SAY, FirstTokens
from glmplan.serving.engine.settings import EngineSettings, KvPool

__all__ = ["ServingInputs"]


@dataclass(frozen=True, slots=True)
class ServingInputs:
    """A deployment as the simulator sees it.

    Parameters
    ----------
    step_seconds : callable
        Keyword arguments `decode_requests`, `decode_context`, `prefill_tokens`, `prefill_context` as arrays; returns
        the time of each mixed step, of one replica and of one micro-batch with pipeline stages, [s]
    pool : KvPool
        Room for keys and values on one replica. Each data-parallel rank is a replica.
    settings : EngineSettings
        Scheduler and limits of the engine.
    front_end : float, optional
        Time between the arrival of a request and its arrival at the engine, at the nominal prompt length, [s]
    wake : float, optional
        What a request waits longer for that finds nobody there, [s]
    low, high : float, optional
        90 % interval of the step time relative to its prediction, [-]
    first : FirstTokens, optional
        How much later first tokens come than their steps say.
    first_low, first_high : float, optional
        90 % interval of the time to the first token relative to its prediction, [-]
    pool_low, pool_high : float, optional
        90 % interval of the pool relative to its prediction, [-]
    ranks : int, optional
        Data-parallel ranks of one server: the replicas of `settings` are the ranks of all servers, [-]
    step_of_few : callable, optional
        Takes how many ranks of a server have requests and returns such a `step_seconds` of one of these.
    basis : str, optional
        What the prediction rests on, in words.
    """

    step_seconds: Callable[..., np.ndarray]
    pool: KvPool
    settings: EngineSettings
    front_end: float = 0.0
    wake: float = 0.0
    first: FirstTokens = AS_STEPS_SAY
    low: float = 1.0
    high: float = 1.0
    first_low: float = 1.0
    first_high: float = 1.0
    pool_low: float = 1.0
    pool_high: float = 1.0
    ranks: int = 1
    step_of_few: Callable[[float], Callable[..., np.ndarray]] | None = None
    basis: str = ""
