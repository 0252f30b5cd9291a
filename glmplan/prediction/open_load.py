"""Rows whose requests arrive at a rate: an open load, simulated with a clock; its queue is not that of any users."""

from __future__ import annotations

import math
from dataclasses import replace

from glmplan.errors import GlmplanError
from glmplan.facts.engines.defaults import block_tokens, engine_known
from glmplan.prediction.from_row import Question
from glmplan.prediction.from_row_memory import STAND_IN
from glmplan.prediction.predict import Figure, Prediction, front_end_seconds, predict, step_seconds, wake_seconds
from glmplan.prediction.step_models import runs_on_accelerators
from glmplan.serving.engine.settings import EngineSettings, KvPool, scheduler_settings
from glmplan.serving.engine.step_table import StepTable
from glmplan.serving.service import Service
from glmplan.serving.simulate import simulate
from glmplan.serving.traffic.drafting import Acceptance
from glmplan.serving.traffic.spec import Traffic

__all__ = ["arrives_by_rate", "open_prediction"]

#: requests of a run that does not say how many: the default of `vllm bench serve --num-prompts`
#: (https://docs.vllm.ai/en/latest/cli/bench/serve/) [-]
_REQUESTS = 1000
#: statistic of the simulator → figure of a prediction
_STATISTICS = {
    "ttft_mean_ms": ("ttft", 1e-3), "ttft_p50_ms": ("ttft_p50", 1e-3), "tpot_mean_ms": ("tpot", 1e-3),
    "itl_p50_ms": ("itl_p50", 1e-3), "output_tokens_per_s": ("output_rate", 1.0),
    "total_tokens_per_s": ("total_rate", 1.0),
}  # fmt: skip


def arrives_by_rate(question: Question, closed: Prediction) -> bool:
    """Whether requests of a row arrive at a rate instead of being sent by a number of users.

    Parameters
    ----------
    question : Question
        The row.
    closed : Prediction
        What its requests in flight would do as users, each of whom sends the next request when the last is answered.

    Returns
    -------
    bool
        False without a finite rate, and where a stated number of requests in flight binds: so many users send fewer
        requests than arrive, so that as many as are allowed are always there.
    """
    rate, run = question.run.request_rate_per_s, question.run
    if not rate or not math.isfinite(rate) or question.load.phase != "serving":
        return False
    if question.load.replicas > 1 or not runs_on_accelerators(question.deployment):
        return False
    if run.concurrency is None:
        return True
    answer = question.load.output_tokens * (question.load.shortest + question.load.longest) / 2.0
    return closed.figures["output_rate"].value > rate * answer


def open_prediction(question: Question, closed: Prediction) -> Prediction:
    """Predict a row under Poisson arrivals.

    Parameters
    ----------
    question : Question
        The row; see `arrives_by_rate`.
    closed : Prediction
        The same as users.

    Returns
    -------
    Prediction
        With the figures of the simulator; `closed` where the simulator has no rule for the engine.

    Notes
    -----
    One run of the stated number of requests, or of 1,000. What is known of the load is what is known of as many users
    as are in flight in the mean; the ends are those of their intervals, or what steps do that are as much faster or
    slower, whichever is farther: a queue grows faster than its steps. The chance of the arrivals is not in the
    interval.

    Examples
    --------
    >>> from glmplan.prediction.from_row import question_of
    >>> from glmplan.prediction.predict import predict
    >>> from glmplan.readers.runs.record import Run
    >>> run = Run("a", "llama-3.1-8b", "h100-sxm", engine="vllm", tp=1, request_rate_per_s=2.0, num_requests=50,
    ...           input_tokens=512.0, output_tokens=64.0)
    >>> asked = question_of(run)
    >>> found = open_prediction(asked, predict(asked.deployment, asked.load))
    >>> 1.0 < found.figures["output_rate"].value / 64.0 < 3.0
    True
    """
    load, run = question.load, question.run
    try:
        service = _service(question)
    except GlmplanError:
        return closed
    traffic = Traffic(
        kind="poisson",
        rate=run.request_rate_per_s,
        input=max(round(load.input_tokens * load.longest), 1),
        output=max(round(load.output_tokens * load.longest), 1),
        jitter=max(1.0 - load.shortest / load.longest, 0.0),
    )

    def played(factor: float) -> dict[str, float]:
        found = simulate(service.scaled(factor), traffic, requests=run.num_requests or _REQUESTS, fast=False)
        return found.summary

    summary = played(1.0)
    in_flight = max(summary["requests_per_s"] * summary["e2e_mean_ms"] * 1e-3, 1.0)
    as_users = replace(load, concurrency=float(round(in_flight)))
    users = predict(question.deployment, as_users, measured_on=run.measured_on)
    step = users.figures.get("tpot")
    if step is None:
        # answers of one token have no later ones that tell how far steps may be off
        step = users.figures["ttft"]
    ends = [played(one / step.value) for one in (step.low, step.high)]
    figures = {}
    for statistic, (name, unit) in _STATISTICS.items():
        like = users.figures.get(name)
        if like is None or not summary[statistic] > 0.0:
            continue
        unit *= users.first_later if name.startswith("ttft") else 1.0
        value, others = unit * summary[statistic], [unit * one[statistic] for one in ends]
        found = like.scaled(value / like.value)
        if name.endswith("_rate"):  # what is served is what arrives as long as the steps keep up
            figures[name] = Figure(value, min(value, *others), max(value, *others))
        else:
            figures[name] = Figure(value, min(found.low, *others), max(found.high, *others))
    if "tpot" in figures:
        tpot = figures["tpot"]
        figures["user_rate"] = Figure(1.0 / tpot.value, 1.0 / tpot.high, 1.0 / tpot.low)
    words = f"{users.basis}; simulated as Poisson arrivals of {run.request_rate_per_s:g}/s"
    return replace(users, figures=figures, basis=words)


def _service(question: Question) -> Service:
    """The server of a row as the simulator sees it."""
    load, d = question.load, question.deployment
    defaults = d.defaults
    described = d.engine if engine_known(d.engine) else STAND_IN
    longest = round((load.input_tokens + load.output_tokens) * load.longest)
    limit = min(load.max_requests, max(int(load.budget // (1 + d.draft_tokens)), 1))
    settings: EngineSettings = scheduler_settings(
        defaults.scheduler,
        max_num_batched_tokens=int(load.budget),
        max_num_seqs=limit,
        chunked_prefill=not load.whole_prompts,
        prefill_first=load.prefill_first,
        async_scheduling=defaults.ahead,
        acceptance=Acceptance.of_mean(d.draft_tokens, d.tokens_per_step) if d.draft_tokens else None,
    )
    tokens = int(min(load.pool_tokens, (limit + 1.0) * max(longest, 1)))
    table = StepTable.tabulate(
        step_seconds(d),
        max_requests=settings.max_num_seqs,
        max_context=max(1024, longest),
        max_prefill=settings.max_num_batched_tokens,
    )
    pool = KvPool(tokens, block_tokens(described, sparse=d.sparse and d.indexer))
    return Service(table, pool, settings, front_end_seconds(d, load.input_tokens), wake=wake_seconds(d))
