"""From a question to what the simulator needs: step time, cache pool, engine settings and how sure the step time is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from glmplan.errors import DoesNotFit, SpecError, UnknownFact
from glmplan.facts.engines.defaults import block_tokens, engine_defaults
from glmplan.physics.blocks.features import mixers_of
from glmplan.plan.capacity import MAY_START, Holding
from glmplan.plan.disaggregation import apart_basis, not_together, transfer_link
from glmplan.plan.question import Asked, Words, read_words
from glmplan.plan.ranking import deployment_of, load_of, prompts_timed, seats_of, typical_users, untimed_words
from glmplan.plan.search import Solution, solve
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.own_site import site_calibration
from glmplan.prediction.predict import front_end_seconds, predict, step_seconds, wake_seconds
from glmplan.prediction.step_models import step_model_of
from glmplan.serving.engine.first_tokens import FirstTokens
from glmplan.serving.engine.inputs import ServingInputs
from glmplan.serving.engine.settings import KvPool, scheduler_settings
from glmplan.serving.engine.step_table import ShortSteps
from glmplan.serving.traffic.drafting import Acceptance

__all__ = ["chosen", "inputs_of", "serving_inputs"]


def serving_inputs(question: Words | Asked) -> ServingInputs:
    """Plan a deployment as `fit` does and describe it to the simulator.

    Parameters
    ----------
    question : Words or Asked
        The question as typed, or as it was read.

    Returns
    -------
    ServingInputs
        The best layout that fits, as one engine for each data-parallel rank: the step time of a rank is that of all of
        them with as much to do each, or of as many as there are users where these are fewer, and spreads requests over
        stages.

    Raises
    ------
    SpecError
        If the question is wrong.
    DoesNotFit
        If no layout holds one request of the asked length.
    UnknownFact
        If the speed of the part is not published, or its prompts cannot be timed.

    Examples
    --------
    >>> inputs = serving_inputs(Words("glm-5.1-nvfp4", "6xrtx-pro-6000-ws"))
    >>> inputs.settings.scheduler, inputs.low < 1 < inputs.high
    ('vllm', True)
    """
    asked = question if isinstance(question, Asked) else read_words(question)
    with site_calibration(asked.calibration):
        best = chosen(asked)
        return inputs_of(asked, best, deployment_of(asked, best.terms))


def chosen(asked: Asked, solution: Solution | None = None) -> Holding:
    """Choose the layout of a question as `fit` does, where it can be asked for times.

    Parameters
    ----------
    asked : Asked
        The question.
    solution : Solution, optional
        Its layouts, as `glmplan.plan.under_traffic.solve_under` ranks them for traffic.

    Returns
    -------
    Holding
        The best layout that fits.

    Raises
    ------
    DoesNotFit
        If no layout holds one request of the asked length, or the engine does not run the model on the part.
    SpecError
        If drafted tokens were asked for that the engine does not draft in this layout.
    UnknownFact
        If no speed of the layout can be computed.
    """
    solution = solution or solve(asked, sole=True)
    best, what = solution.best, f"{asked.model.name} {asked.checkpoint.name}"
    if best.terms.blocked is not None:
        raise DoesNotFit(f"{what} does not run with {asked.engine}: {best.terms.blocked.title}")
    if best.verdict == "does_not_fit":
        perhaps = f", {MAY_START}" if best.may_start else ""
        raise DoesNotFit(f"{what} does not fit {asked.machine.text}{perhaps}: `glmplan fit` shows what is short")
    if solution.ranked[0].alone == 0.0:
        why = solution.ranked[0].unknown or f"the speed of {asked.machine.accelerator.name} is not published"
        raise UnknownFact(f"{why}: nothing can be predicted")
    if asked.mtp > best.terms.mtp:
        titles = (wall.title for wall in best.terms.walls if wall.instead.mtp == best.terms.mtp)
        raise SpecError(
            f"{next(titles, f'{asked.engine} would draft {best.terms.mtp} tokens here')}; `glmplan fit` shows the plan "
            "without, --mtp 0 simulates it",
            field="--mtp",
            value=asked.mtp,
        )
    return best


def inputs_of(asked: Asked, best: Holding, deployment: Deployment) -> ServingInputs:
    """Describe a layout that was planned to the simulator.

    Parameters
    ----------
    asked : Asked
        The question.
    best : Holding
        The layout and its memory.
    deployment : Deployment
        What is predicted.

    Returns
    -------
    ServingInputs
        As `serving_inputs` gives them.

    Raises
    ------
    UnknownFact
        If prompts cannot be timed on the part.
    """
    if not (prompts_timed(asked) and step_model_of(deployment).times_prompts):
        raise UnknownFact(f"{untimed_words(asked)}, nor requests with prompts be simulated")
    servers, terms = best.terms.decoding, best.terms
    load = load_of(asked, deployment, best.pool, typical_users(asked), servers)
    found = predict(deployment, load)
    # how sure a step is: of answers of a single token their only one, the first, says it
    first = found.figures["ttft"]
    figure = found.figures.get("tpot", first)
    defaults, ranks = asked.defaults, deployment.dp
    pool = best.pool / (servers * ranks)
    drafted = deployment.draft_tokens
    budget, places = defaults.budget_of(ranks) // ranks, seats_of(asked, ranks) // ranks
    if defaults.admission == "slot" and asked.settings.max_num_seqs is None:
        # it is told as many slots as hold a request, which share the pool
        places = min(places, max(int(best.held / (servers * ranks)), 1))
    settings = scheduler_settings(
        defaults.scheduler,
        max_num_batched_tokens=budget,
        max_num_seqs=max(min(places, budget // (1 + drafted), int(pool)), 1),
        max_model_len=asked.settings.max_model_len or asked.context or asked.model.max_context,
        acceptance=Acceptance.of_mean(drafted, deployment.tokens_per_step) if drafted else None,
        replicas=ranks * terms.replicas,
        prefill_replicas=ranks * terms.prefill,
        link=transfer_link(asked, terms) if terms.prefill else None,
        routing=defaults.routing,
        prefix_caching=_reuses(asked),
        async_scheduling=deployment.defaults.ahead,
        reserve_full_isl=defaults.whole_prompt,
        schedule_conservativeness=defaults.rank_conservativeness if ranks > 1 else 1.0,
    )
    low, high = not_together(asked, deployment, load, "decode", (figure.low / figure.value, figure.high / figure.value))
    first_ends = not_together(asked, deployment, load, "ttft", (first.low / first.value, first.high / first.value))
    return ServingInputs(
        step_seconds=_of_rank(step_seconds(deployment), ranks),
        step_of_few=lambda busy: _of_rank(step_seconds(deployment, busy_ranks=busy), busy),
        # every rank hands over its own part, copies of a latent included
        pool=KvPool(
            int(pool),
            block_tokens(asked.engine, sparse=best.memory.sparse),
            best.pool_bytes / best.pool * terms.server * servers,
        ),
        settings=settings,
        front_end=front_end_seconds(deployment, asked.input_tokens),
        wake=wake_seconds(deployment),
        low=low,
        high=high,
        first=FirstTokens(found.first_scale, ranks),
        first_low=first_ends[0],
        first_high=first_ends[1],
        pool_low=best.pool_low / best.pool,
        pool_high=best.pool_high / best.pool,
        ranks=ranks,
        basis=f"{best.terms.name}, {asked.engine}, KV cache {best.terms.kv}; {apart_basis(asked, found.basis)}",
    )


def _reuses(asked: Asked) -> bool:
    """Whether the engine finds blocks of this model again when nothing is told."""
    part = asked.machine.accelerator
    recurrent = any(one.state_page(tp=1, draft_tokens=0) for one in mixers_of(asked.model))
    found = engine_defaults(
        asked.engine, version=asked.engine_version, accelerator=part.name, memory=part.memory, recurrent=recurrent
    )
    return found.prefix_caching


def _of_rank(together: Callable[..., np.ndarray], ranks: float) -> Callable[..., np.ndarray]:
    """Time of the step of one of so many data-parallel ranks that have as much to do each."""
    if ranks == 1:
        return together
    if isinstance(together, ShortSteps):  # what is short is said of the tokens of a rank
        return replace(together, seconds=_of_rank(together.seconds, ranks), level=_of_rank(together.level, ranks))

    def alone(
        *,
        decode_requests: np.ndarray,
        decode_context: np.ndarray,
        prefill_tokens: np.ndarray,
        prefill_context: np.ndarray,
    ) -> np.ndarray:
        return together(
            decode_requests=np.asarray(decode_requests) * ranks,
            decode_context=decode_context,
            prefill_tokens=np.asarray(prefill_tokens) * ranks,
            prefill_context=prefill_context,
        )

    return alone
