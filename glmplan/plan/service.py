"""From a planned deployment to the service that the simulator runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypedDict

from glmplan.serving.engine.inputs import ServingInputs
from glmplan.serving.engine.step_table import StepTable
from glmplan.serving.load_tries import Tries
from glmplan.serving.safe_load import room_factors, speed_factors
from glmplan.serving.service import FewRanks, Service
from glmplan.serving.traffic.spec import Traffic

if TYPE_CHECKING:
    from glmplan.plan.capacity import Holding
    from glmplan.plan.question import Asked
    from glmplan.serving.traffic.promises import Target

__all__ = ["Described", "Draws", "service_of"]

#: contexts of recorded requests for which step times are tabulated; longer ones are extrapolated [token]
_LONGEST_RECORDED = 262_144


class Draws(TypedDict):
    """What is not known of a machine, as `glmplan.serving.safe_load.safe_load` takes it, [-]"""

    factors: Sequence[float]
    waits: Sequence[float]
    rooms: Sequence[float]


@dataclass(frozen=True, slots=True)
class Described:
    """A service, and how sure its step times are.

    Parameters
    ----------
    service : Service
        What is simulated.
    low, high : float
        90 % interval of the step time relative to its prediction, [-]
    basis : str
        What the step time rests on.
    first : tuple of float
        90 % interval of the time to the first token relative to its prediction, [-]
    room : tuple of float
        90 % interval of the pool relative to its prediction, [-]
    promise : str
        What `fit` holds for usable; empty for a step time of one's own.
    plan : tuple, optional
        Question and layout, where the service is what `fit` plans and nothing was told to the simulator alone.
    tries : dict, optional
        What was simulated of it: traffic of any load, promise and seed → what `glmplan.serving.safe_load` tried.
    """

    service: Service
    low: float
    high: float
    basis: str
    first: tuple[float, float] = (1.0, 1.0)
    room: tuple[float, float] = (1.0, 1.0)
    promise: str = ""
    plan: tuple[Asked, Holding] | None = None
    tries: dict[tuple[Any, ...], Tries] = field(default_factory=dict, compare=False)

    def known(self, traffic: Traffic, targets: Sequence[Target], seed: int) -> Tries:
        """What was tried of traffic that differs in its load alone.

        Parameters
        ----------
        traffic : Traffic
            What arrives.
        targets : sequence of Target
            The promise.
        seed : int
            Seed, [-]

        Returns
        -------
        Tries
            To be given to `safe_load` and `kept_share`, which add to it.
        """
        return self.tries.setdefault((traffic.at_load(1.0), tuple(targets), seed), Tries())

    def draws(self) -> Draws:
        """What is not known of the machine, in equal parts from the worst to the best.

        Returns
        -------
        Draws
            Arguments ``factors``, ``waits`` and ``rooms`` of `glmplan.serving.safe_load.safe_load`, [-]
        """
        return {
            "factors": speed_factors(self.low, self.high),
            "waits": speed_factors(*self.first),
            "rooms": room_factors(*self.room),
        }


def service_of(
    inputs: ServingInputs,
    traffic: Traffic,
    *,
    kv_tokens: int | None = None,
    block_size: int | None = None,
    scheduler: Mapping[str, Any] | None = None,
    users: int | None = None,
) -> Described:
    """Tabulate the step time of a planned deployment and apply what was said of its engine.

    Parameters
    ----------
    inputs : ServingInputs
        The deployment as the simulator sees it.
    traffic : Traffic
        What arrives; bounds the contexts for which step times are tabulated.
    kv_tokens, block_size : int, optional
        Room for keys and values, and tokens of a block, instead of the predicted ones, [token]
    scheduler : mapping, optional
        Fields of `EngineSettings` instead of the engine's own.
    users : int, optional
        Users for whom steps are timed; those of more are timed when more come, [-]

    Returns
    -------
    Described
        The service and its interval.
    """
    settings, pool = inputs.settings, inputs.pool
    changes = dict(scheduler or {})
    ranks = inputs.ranks  # copies that are asked for are copies of all data-parallel ranks
    changes |= {name: changes[name] * ranks for name in ("replicas", "prefill_replicas") if name in changes}
    budget = changes.get("max_num_batched_tokens")
    if budget is not None and "max_num_seqs" not in changes:
        changes["max_num_seqs"] = max(1, min(settings.max_num_seqs, budget // settings.tokens_per_decode))
    settings = replace(settings, **changes)
    if kv_tokens is not None or block_size is not None:
        pool = replace(pool, tokens=kv_tokens or pool.tokens, block_size=block_size or pool.block_size)
    longest = 4 * (traffic.input + traffic.output) * (traffic.turns if traffic.kind == "sessions" else 1)
    longest += traffic.start + traffic.shared_prefix
    if traffic.kind == "trace" or traffic.lengths:
        longest = _LONGEST_RECORDED
    sizes = {
        "max_requests": -(-settings.max_num_seqs // settings.pipeline_stages),
        "max_context": max(1024, min(settings.max_model_len, pool.tokens, longest)),
        "max_prefill": settings.max_num_batched_tokens,
    }

    @cache
    def of_few(busy: float) -> StepTable:
        assert inputs.step_of_few is not None
        return StepTable.tabulate(inputs.step_of_few(busy), **sizes)

    one_kind = ranks == 1 or inputs.step_of_few is None or settings.prefill_replicas
    few = None if one_kind else FewRanks(ranks, of_few)
    whole = None
    if users is not None and users < sizes["max_requests"]:
        whole = cache(lambda: StepTable.tabulate(inputs.step_seconds, **sizes))
    table = StepTable.tabulate(inputs.step_seconds, **sizes, rows=users)
    return Described(
        Service(table, pool, settings, inputs.front_end, inputs.wake, inputs.first, few, whole),
        inputs.low,
        inputs.high,
        inputs.basis,
        (inputs.first_low, inputs.first_high),
        (inputs.pool_low, inputs.pool_high),
    )
