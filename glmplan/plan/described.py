"""From a question and what arrives to the service that is simulated: one way for every command that simulates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from glmplan.errors import GlmplanError, SpecError
from glmplan.plan.arriving import asked_under, traffic_of
from glmplan.plan.capacity import Holding
from glmplan.plan.host_copies import way_to_host, why_no_copies
from glmplan.plan.question import Asked, Words
from glmplan.plan.ranking import deployment_of, predicted, typical_users
from glmplan.plan.service import Described, service_of
from glmplan.plan.simulator_inputs import chosen, inputs_of
from glmplan.plan.under_traffic import solve_under
from glmplan.plan.users import usual_promise
from glmplan.prediction.own_site import site_calibration
from glmplan.serving.engine.settings import TransferLink
from glmplan.serving.traffic.spec import Traffic

__all__ = ["described_under"]


def described_under(
    words: Words,
    kinds: Sequence[Traffic],
    *,
    usual: bool = False,
    kv_tokens: int | None = None,
    block_size: int | None = None,
    scheduler: Mapping[str, Any] | None = None,
) -> tuple[Described, list[Traffic]]:
    """The service as `fit` plans and glmplan predicts it.

    Parameters
    ----------
    words : Words
        The question as typed.
    kinds : sequence of Traffic
        What arrives; the first decides the plan.
    usual : bool, optional
        Whether the plan is that of as many users as such a machine usually has, because the number is what is searched.
    kv_tokens, block_size : int, optional
        Room for keys and values, and tokens of a block, instead of the predicted ones, [token]
    scheduler : mapping, optional
        Fields of `EngineSettings` instead of the engine's own.

    Returns
    -------
    Described
        The service, its interval, and what `fit` holds for usable.
    list of Traffic
        One for each kind; lengths that it leaves open are those of the question.

    Raises
    ------
    SpecError
        If the question or a file of the traffic is wrong.
    DoesNotFit
        If no layout holds one request.

    Examples
    --------
    >>> found, [traffic] = described_under(Words("llama-3.1-8b", "1xh100-sxm"), [Traffic(kind="closed", users=4)])
    >>> traffic.input, found.promise != ""
    (2048, True)
    """
    asked = asked_under(words, kinds[0])
    arriving = [traffic_of(asked, one) for one in kinds]
    with site_calibration(asked.calibration):
        named = arriving[0].at_load(typical_users(asked)) if usual else arriving[0]
        best = chosen(asked, solve_under(asked, named))
        scheduler, way = _with_way_to_host(asked, best, scheduler)
        found = service_of(
            inputs_of(asked, best, deployment_of(asked, best.terms)),
            arriving[0],
            kv_tokens=kv_tokens,
            block_size=block_size,
            scheduler=scheduler,
        )
        promise = usual_promise(predicted(asked, [(best, 1)])[0])
    # what is told to the simulator alone no plan knows, and sums know no servers for prompts alone
    told = scheduler or kv_tokens or block_size or asked.prefill
    return replace(found, promise=promise, basis=found.basis + way, plan=None if told else (asked, best)), arriving


def _with_way_to_host(
    asked: Asked, best: Holding, scheduler: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any] | None, str]:
    """The settings with the link over which copies in host memory come back, and which one that is in words."""
    if not scheduler or not scheduler.get("host_tokens"):
        return scheduler, ""
    told = scheduler.get("host_link")
    # what the engine does not keep, no bandwidth brings back
    if why := why_no_copies(asked, best, way_told=True):
        raise SpecError(why, field="--host-tokens", value=scheduler["host_tokens"])
    if told is not None:
        return scheduler, f"; copies come back at {told.bandwidth / 1e9:,.1f} GB/s to a replica, as given"
    try:
        way = way_to_host(asked, best)
    except GlmplanError as error:
        raise SpecError(f"is needed with --host-tokens, as in '50 GB/s': {error}", field="--host-bandwidth") from None
    return {**scheduler, "host_link": TransferLink(way.bandwidth)}, f"; copies come back over {way.what}"
