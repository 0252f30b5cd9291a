"""Predict every row of a table of runs, as `glmplan predict` does.

Rows with a request rate are open loads: they are simulated, since their queue differs from that of a fixed concurrency.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glmplan.catalog.engines.defaults import block_tokens, engine_known
from glmplan.catalog.engines.kernels import attention_assumed
from glmplan.catalog.tables import csv_of, frame_of
from glmplan.errors import GlmplanError
from glmplan.io.runs.columns import ANSWERS
from glmplan.io.runs.ledger import known_names
from glmplan.io.runs.record import Run
from glmplan.io.runs.table import runs_of_frame
from glmplan.prediction.evidence import refused_widths, stated_ratios
from glmplan.prediction.from_row import (
    STAND_IN,
    RunCase,
    alternatives_of,
    memory_of,
    question_of,
    request_tokens,
    why_unknown,
)
from glmplan.prediction.load import Load
from glmplan.prediction.offloaded_rows import predict_hybrid
from glmplan.prediction.predict import (
    Figure,
    Prediction,
    front_end_seconds,
    predict,
    predict_many,
    step_seconds,
    wake_seconds,
)
from glmplan.prediction.step_models import check_answerable, runs_on_accelerators
from glmplan.simulation.engine.settings import EngineSettings, KvPool, scheduler_settings
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.simulate import Service, simulate
from glmplan.simulation.traffic.drafting import Acceptance
from glmplan.simulation.traffic.spec import Traffic

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COLUMNS",
    "RowPrediction",
    "arrives_by_rate",
    "marked_reasons",
    "open_prediction",
    "predict_runs",
    "predict_table",
    "rows_as_csv",
    "rows_as_frame",
]


#: requests of a run that does not state them: default of `vllm bench serve --num-prompts`
#: (https://docs.vllm.ai/en/latest/cli/bench/serve/) [-]
_REQUESTS = 1000
#: statistic of the simulation → predicted metric
_STATISTICS = {
    "ttft_mean_ms": ("ttft", 1e-3), "ttft_p50_ms": ("ttft_p50", 1e-3), "ttft_p99_ms": ("ttft_p99", 1e-3),
    "tpot_mean_ms": ("tpot", 1e-3), "tpot_p50_ms": ("tpot_p50", 1e-3), "tpot_p99_ms": ("tpot_p99", 1e-3),
    "itl_mean_ms": ("itl", 1e-3), "itl_p50_ms": ("itl_p50", 1e-3), "itl_p99_ms": ("itl_p99", 1e-3),
    "e2e_mean_ms": ("e2e", 1e-3), "e2e_p99_ms": ("e2e_p99", 1e-3),
    "output_tokens_per_s": ("output_rate", 1.0), "total_tokens_per_s": ("total_rate", 1.0),
}  # fmt: skip


def arrives_by_rate(case: RunCase, closed: Prediction) -> bool:
    """Return True if the requests of a row arrive at a rate.

    False without a finite rate, and if the stated concurrency limits the throughput (`closed`, its closed-loop
    prediction) below the rate: the limit is then always reached.
    """
    rate, run = case.run.request_rate_per_s, case.run
    if not rate or not math.isfinite(rate) or case.load.phase != "serving":
        return False
    if case.load.replicas > 1 or not runs_on_accelerators(case.deployment):
        return False
    if run.concurrency is None:
        return True
    answer = case.load.output_tokens * (case.load.shortest + case.load.longest) / 2.0
    return closed.figures["output_rate"].value > rate * answer


def open_prediction(case: RunCase, closed: Prediction) -> Prediction:
    """Return the prediction of a row under Poisson arrivals.

    `closed` is returned if the simulation has no rules for the engine.

    Notes
    -----
    One run of the stated number of requests, or 1,000. Evidence is that of the mean concurrency. Bounds are the farther
    of its interval and of a simulation with steps at the interval's bounds: a queue grows faster than its steps. The
    interval does not include the randomness of arrivals.

    Examples
    --------
    >>> from glmplan.prediction.from_row import question_of
    >>> from glmplan.prediction.predict import predict
    >>> from glmplan.io.runs.record import Run
    >>> run = Run("a", "llama-3.1-8b", "h100-sxm", engine="vllm", tp=1, request_rate_per_s=2.0, num_requests=50,
    ...           input_tokens=512.0, output_tokens=64.0)
    >>> asked = question_of(run)
    >>> found = open_prediction(asked, predict(asked.deployment, asked.load))
    >>> 1.0 < found.figures["output_rate"].value / 64.0 < 3.0
    True
    """
    load, run = case.load, case.run
    try:
        service = _service(case)
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
        outcome = simulate(service.scaled(factor), traffic, requests=run.num_requests or _REQUESTS)
        return outcome.summary

    summary = played(1.0)
    in_flight = max(summary["requests_per_s"] * summary["e2e_mean_ms"] * 1e-3, 1.0)
    as_users = replace(load, concurrency=float(round(in_flight)))
    users = predict(case.deployment, as_users, measured_on=run.measured_on)
    step = users.figures.get("tpot")
    if step is None:
        # answers of one token have no TPOT to take the interval from
        step = users.figures["ttft"]
    bounds = [played(one / step.value) for one in (step.low, step.high)]
    figures = {}
    for statistic, (name, unit) in _STATISTICS.items():
        like = users.figures.get(name)
        if like is None or not summary[statistic] > 0.0:
            continue
        unit *= users.first_later if name.startswith("ttft") else 1.0
        value, others = unit * summary[statistic], [unit * one[statistic] for one in bounds]
        outcome = like.scaled(value / like.value)
        if name.endswith("_rate"):  # throughput equals the arrival rate while the steps keep up
            figures[name] = Figure(value, min(value, *others), max(value, *others))
        else:
            figures[name] = Figure(value, min(outcome.low, *others), max(outcome.high, *others))
    if "tpot" in figures:
        figures["user_rate"] = figures["tpot"].inverse()
    text = f"{users.basis}; simulated as Poisson arrivals of {run.request_rate_per_s:g}/s"
    return replace(users, figures=figures, basis=text)


def _service(case: RunCase) -> Service:
    """Return the simulated server of a row."""
    load, d = case.load, case.deployment
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
    return Service(table, pool, settings, front_end_seconds(d, load.input_tokens), cold_start=wake_seconds(d))


#: metrics that exist without a running server
_OF_MEMORY = frozenset({"weights_gib_per_accelerator", "kv_pool_tokens", "kv_pool_tokens_usable"})
#: all columns in order; each metric also as `_low` and `_high` (90 % interval)
COLUMNS: tuple[str, ...] = (
    "id",
    *(f"{name}{end}" for name in ANSWERS for end in ("", "_low", "_high")),
    "basis",
    "stating",
    "out_of_domain",
    "error",
)


@dataclass(frozen=True, slots=True)
class RowPrediction:
    """Prediction of one row."""

    id: str
    figures: dict[str, Figure]  # some of `glmplan.io.runs.columns.ANSWERS`, in the units of their names
    basis: str  # evidence
    out_of_domain: str  # extrapolated conditions
    error: str  # reason of a missing prediction
    stating: str = ""  # upper over lower bound as it is and with settings stated; empty if all are


def predict_runs(
    runs: Iterable[Run],
    *,
    progress: Callable[[int, int], None] | None = None,
    as_fitted: bool = False,
    measured: bool = False,
) -> list[RowPrediction]:
    """Return the prediction of each row, or the reason why there is none.

    `as_fitted` does not widen intervals of rows that no fit uses. `measured` means that the servers did run: speeds are
    predicted even if memory says that nothing fits. `progress` gets prepared and total rows.
    """
    rows = list(runs)
    predictions: list[RowPrediction | None] = [None] * len(rows)
    cases: list[tuple[int, RunCase]] = []
    for place, run in enumerate(rows):
        try:
            if run.offload:
                predictions[place] = _answer(run, *predict_hybrid(run))
                continue
            case = question_of(run)
            check_answerable(case.deployment, case.load)
        except GlmplanError as error:
            predictions[place] = RowPrediction(run.id, {}, "", "", str(error))
        else:
            cases.append((place, case))
        if progress is not None and (place % 50 == 0 or place + 1 == len(rows)):
            progress(place + 1, len(rows))
    main = predict_many([(q.deployment, q.load, q.run.measured_on) for _, q in cases])
    by_rate = [arrives_by_rate(q, one) for (_, q), one in zip(cases, main, strict=True)]
    main = [
        open_prediction(q, one) if by_clock else one for (_, q), one, by_clock in zip(cases, main, by_rate, strict=True)
    ]
    reasons = [_refused(q, by_clock) for (_, q), by_clock in zip(cases, by_rate, strict=True)]
    main = [
        replace(one, out_of_domain=_joined(reason, one.out_of_domain))
        for one, reason in zip(main, reasons, strict=True)
    ]
    timed = [(place, q) for place, q in cases if runs_on_accelerators(q.deployment)]
    alone = predict_many([(q.deployment, _prefill_alone(q.load), q.run.measured_on) for _, q in timed])
    prefill = dict(zip((place for place, _ in timed), alone, strict=True))
    for (place, case), prediction in zip(cases, main, strict=True):
        answer = _answer(case.run, prediction, prefill.get(place), case)
        predictions[place] = answer if measured else _without_speed(answer, case)
    _widen(predictions, cases)
    if not as_fitted:
        _stretch(predictions, [place for (place, _), reason in zip(cases, reasons, strict=True) if reason])
    return [one for one in predictions if one is not None]


def _refused(case: RunCase, by_clock: bool) -> str:
    """Return the fit's reason to refuse such a row, measured values aside."""
    return case.run.unusable or why_unknown(case, by_clock=by_clock)


def _joined(*words: str) -> str:
    return "; ".join(part for part in words if part)


def _widen(found: list[RowPrediction | None], cases: list[tuple[int, RunCase]]) -> None:
    """Widen intervals of rows of unknown launch to all possible launches."""
    ways = [(place, other) for place, case in cases for other in alternatives_of(case)]
    times = predict_many([(q.deployment, q.load, q.run.measured_on) for _, q in ways])
    others: dict[int, list[dict[str, Figure]]] = defaultdict(list)
    for (place, way), prediction in zip(ways, times, strict=True):
        others[place].append(_answer(way.run, prediction, None, way).figures)
    for place, ends in others.items():
        answer = found[place]
        if answer is not None:
            figures = {
                name: one.reaching(end[name].value for end in ends if name in end)
                for name, one in answer.figures.items()
            }
            found[place] = replace(answer, figures=figures)


def _stretch(found: list[RowPrediction | None], places: list[int]) -> None:
    """Widen intervals of rows that no fit uses."""
    widths = refused_widths() if places else {}
    for place in places:
        answer = found[place]
        if answer is not None:
            figures = {
                name: one.stretched(widths.get(ANSWERS[name].interval, 1.0)) for name, one in answer.figures.items()
            }
            found[place] = replace(answer, figures=figures)


def marked_reasons(runs: Iterable[Run]) -> dict[str, str]:
    """Return id → reason of rows that no fit uses.

    Reasons follow from the row's conditions, not from measured values.

    Examples
    --------
    >>> cells = {"engine": "vllm", "tp": 1, "concurrency": 8.0, "input_tokens": 1024.0, "output_tokens": 256.0}
    >>> marked_reasons([Run("a", "llama-3.1-8b", "h100-sxm", unusable="a cold start", **cells)])
    {'a': 'a cold start'}
    """
    reasons = {}
    for run in runs:
        try:
            case = question_of(run)
            rate = run.request_rate_per_s
            by_clock = bool(rate) and math.isfinite(rate or 0.0) and run.concurrency is None
            reasons[run.id] = _refused(case, by_clock and case.load.phase == "serving")
        except GlmplanError:
            reasons[run.id] = ""
    return reasons


def predict_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the prediction of each row of a frame of runs.

    Parameters
    ----------
    runs : pandas.DataFrame
        One row for each run, in the columns of a table of runs (`docs/reference/columns.md`).

    Returns
    -------
    pandas.DataFrame
        The columns `COLUMNS` in the order of the rows: metrics in the units of their names with 90 % intervals, the
        evidence, and the reason of a missing prediction.

    Raises
    ------
    SpecError
        If a required column is missing or repeated.

    Warns
    -----
    UserWarning
        If columns are unknown, with the nearest name.

    Examples
    --------
    >>> import pandas as pd
    >>> frame = pd.DataFrame({"model": ["llama-3.1-8b"], "accelerator": ["h100-sxm"], "tp": [1], "engine": ["vllm"],
    ...                       "concurrency": [8], "input_tokens": [1024], "output_tokens": [256]})
    >>> bool(predict_table(frame).loc[0, "tpot_mean_ms"] > 0)
    True
    """
    table = runs_of_frame(runs)
    for warning in table.warnings:
        warnings.warn(warning, stacklevel=2)
    return rows_as_frame(predict_runs(known_names(run) for run in table))


def _record(row: RowPrediction) -> dict[str, object]:
    record: dict[str, object] = {"id": row.id}
    for name, one in row.figures.items():
        record |= {name: one.value, f"{name}_low": one.low, f"{name}_high": one.high}
    texts = {"basis": row.basis, "stating": row.stating, "out_of_domain": row.out_of_domain, "error": row.error}
    return record | texts


def _prefill_alone(load: Load) -> Load:
    if load.phase == "prefill":
        return load
    return replace(
        load, phase="prefill", concurrency=1.0, input_tokens=max(load.input_tokens, 32.0), tokens_per_step=1.0
    )


def _answer(run: Run, prediction: Prediction, first: Prediction | None, case: RunCase | None = None) -> RowPrediction:
    """Return the metrics of a row; `first` predicts prompts alone if needed."""
    metrics = prediction.figures
    prompts = first.figures if first is not None else {}
    figures: dict[str, Figure] = {}
    for column, one in ANSWERS.items():
        # prompt metrics of a load without prompts are those of a single prompt
        metric = metrics.get(one.predicted) or (None if one.interval == "decode" else prompts.get(one.predicted))
        if metric is not None:
            figures[column] = metric.scaled(1.0 / one.factor)
    memory = memory_of(case) if case is not None else None
    if memory is not None:
        weights, (less, more) = memory.weights_gib, memory.weights_apart
        figures["weights_gib_per_accelerator"] = Figure(weights, weights * (1 - less), weights * (1 + more))
        if memory.pool_tokens > 0:
            figures["kv_pool_tokens"] = Figure(*memory.printed)
            figures["kv_pool_tokens_usable"] = Figure(memory.pool_tokens, memory.pool_low, memory.pool_high)
    assumed = (*case.assumed, *_backend(case)) if case is not None else ()
    basis = prediction.basis + (f"; assumed {', '.join(assumed)}" if assumed else "")
    outside = prediction.out_of_domain
    if memory is not None and memory.pool_tokens <= 0:
        outside = _joined("the weights leave no memory for a KV cache", outside)
    return RowPrediction(run.id, figures, basis, outside, "", _stating(case) if case is not None else "")


def _stating(case: RunCase) -> str:
    """Return the ratios of bounds with settings stated as text."""
    ratios = stated_ratios(case.deployment, case.load, measured_on=case.run.measured_on)
    kind = "ttft" if case.load.phase == "prefill" else "decode"
    return "; ".join(f"{name}: {kind} {found[kind]:.2f}" for name, found in ratios.items() if kind in found)


def _without_speed(answer: RowPrediction, case: RunCase) -> RowPrediction:
    """Return the answer without speeds if the KV pool holds no request.

    Judged at the upper bound of memory, with the reason.
    """
    memory = memory_of(case)
    if memory is None or memory.pool_high >= request_tokens(case.load):
        return answer
    memory_metrics = {name: one for name, one in answer.figures.items() if name in _OF_MEMORY}
    tokens = f"one request of {request_tokens(case.load):,.0f} tokens"
    reason = f"does not fit: beside {memory.weights_gib:.1f} GiB of weights on an accelerator the cache holds "
    reason += f"{memory.pool_tokens:,.0f} tokens ({memory.pool_high:,.0f} at the upper bound), not {tokens}"
    return replace(answer, figures=memory_metrics, error=reason)


def _backend(case: RunCase) -> tuple[str, ...]:
    """Return the assumptions on the attention backend, worded as in a plan."""
    stated = case.deployment.settings.attention_backend
    text = attention_assumed(case.deployment.engine, stated) if stated else ""
    return (text,) if text else ()


def rows_as_frame(rows: Iterable[RowPrediction]) -> pd.DataFrame:
    """Return predictions as a frame with `COLUMNS`; missing cells are empty.

    Examples
    --------
    >>> row = RowPrediction("a", {"tpot_mean_ms": Figure(10.0, 8.0, 12.0)}, "measured", "", "")
    >>> float(rows_as_frame([row]).loc[0, "tpot_mean_ms_high"])
    12.0
    """
    return frame_of((_record(row) for row in rows), COLUMNS)


def rows_as_csv(rows: Iterable[RowPrediction]) -> str:
    """Return predictions as CSV with `COLUMNS`; missing cells are empty.

    Examples
    --------
    >>> text = rows_as_csv([RowPrediction("a", {"tpot_mean_ms": Figure(10.0, 8.0, 12.0)}, "measured", "", "")])
    >>> heading, row = (line.split(",") for line in text.splitlines())
    >>> row[heading.index("tpot_mean_ms") :][:3]
    ['10', '8', '12']
    """
    return csv_of(rows_as_frame(rows))
