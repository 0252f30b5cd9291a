"""The load that a number of users make on a deployment: plans, tables, simulator and calibration all build it here."""

from __future__ import annotations

from typing import Any

from glmplan.facts.engines.defaults import EngineDefaults
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.load import Load

__all__ = ["ENDLESS", "user_load"]

#: a cache pool that never fills [token]
ENDLESS = float(1 << 60)


def user_load(
    deployment: Deployment,
    *,
    users: float,
    input_tokens: float,
    output_tokens: float,
    pool_tokens: float = ENDLESS,
    phase: str = "serving",
    requests: int = 0,
    budget: int | None = None,
    limit: int | None = None,
    packing: EngineDefaults | None = None,
    longest: float = 1.0,
    **details: Any,
) -> Load:
    """Describe what users ask of a deployment; what is left out is the engine's default.

    Parameters
    ----------
    deployment : Deployment
        What serves them.
    users : float
        Requests in flight: each user sends the next one when the last is answered, [-]
    input_tokens, output_tokens : float
        Of a request, [token]
    pool_tokens : float, optional
        KV cache, [token]
    phase : str, optional
        ``serving``, ``decode`` or ``prefill``.
    requests : int, optional
        Requests of the whole run; 0 for as many as `glmplan.prediction.observables` takes, four for each user, [-]
    budget : int, optional
        Tokens that a step of one data-parallel rank may hold, [token]
    limit : int, optional
        Requests that may run at once on all ranks together, [-]
    packing : EngineDefaults, optional
        How the engine packs steps, where it is told otherwise.
    longest : float, optional
        Longest request over the stated one, [-]
    **details
        Further fields of `Load`.

    Returns
    -------
    Load
        The load.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.facts.catalogue.accelerators import load_accelerator
    >>> from glmplan.prediction.deployment import deploy
    >>> model = load_model("llama-3.1-8b")
    >>> served = deploy(model, model.checkpoint("bf16"), load_accelerator("h100-sxm"), engine="vllm")
    >>> found = user_load(served, users=8, input_tokens=1024, output_tokens=256)
    >>> found.budget, found.max_requests
    (8192, 1024)
    """
    packing = packing or deployment.defaults
    # a pool that is never full is the same to every layout
    filled = (users + 1.0) * (input_tokens + output_tokens + details.get("context", 0.0)) * max(longest, 1.0)
    return Load(
        phase=phase,
        concurrency=float(users),
        input_tokens=float(input_tokens),
        output_tokens=float(output_tokens),
        requests=requests,
        longest=longest,
        budget=(budget or packing.budget) * deployment.dp,
        prefill_first=packing.prefill_first,
        whole_prompts=packing.whole_prompts,
        late=packing.late,
        max_requests=limit or packing.places * deployment.dp,
        pool_tokens=pool_tokens if pool_tokens < filled else ENDLESS,
        reserve=packing.reserve,
        tokens_per_step=deployment.tokens_per_step,
        **details,
    )
