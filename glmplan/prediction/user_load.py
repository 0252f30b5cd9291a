"""The load that a number of users make on a server: plans, tables, simulator and calibration all build it here."""

from __future__ import annotations

from typing import Any

from glmplan.facts.engines.defaults import EngineDefaults
from glmplan.prediction.load import Load

__all__ = ["ENDLESS", "user_load"]

#: a cache pool that never fills [token]
ENDLESS = float(1 << 60)


def user_load(
    packing: EngineDefaults, *, users: float, input_tokens: float, output_tokens: float, ranks: int = 1, **details: Any
) -> Load:
    """Describe what users ask of a server; what is left out is as its engine packs steps.

    Parameters
    ----------
    packing : EngineDefaults
        How the engine packs the steps of one data-parallel rank.
    users : float
        Requests in flight: each user sends the next one when the last is answered, [-]
    input_tokens, output_tokens : float
        Of a request, [token]
    ranks : int, optional
        Data-parallel ranks, which have as many steps and places each; a request takes one of them, [-]
    **details
        Further fields of `Load`, such as ``pool_tokens``; ``max_requests`` is of all ranks together.

    Returns
    -------
    Load
        The load.

    Examples
    --------
    >>> from glmplan.facts.engines.defaults import engine_defaults
    >>> found = user_load(engine_defaults("vllm"), users=8, input_tokens=1024, output_tokens=256, ranks=2)
    >>> found.concurrency, found.max_requests == 2 * engine_defaults("vllm").places
    (8.0, True)
    """
    # a pool that is never full is the same to every layout
    longest = max(details.get("longest", 1.0), 1.0)
    filled = (users + 1.0) * (input_tokens + output_tokens + details.get("context", 0.0)) * longest
    pool = details.pop("pool_tokens", ENDLESS)
    return Load(
        phase=details.pop("phase", "serving"),
        concurrency=float(users),
        input_tokens=float(input_tokens),
        output_tokens=float(output_tokens),
        budget=packing.budget_of(ranks),
        prefill_first=packing.prefill_first,
        whole_prompts=packing.whole_prompts,
        late=packing.steps_late,
        max_requests=details.pop("max_requests", packing.places * ranks),
        pool_tokens=pool if pool < filled else ENDLESS,
        reserve=packing.reserve,
        ranks=ranks,
        **details,
    )
