"""Predict every row of a table of runs: `glmplan predict`."""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from glmplan.errors import GlmplanError
from glmplan.facts.engines.kernels import attention_assumed
from glmplan.facts.tables import frame_of
from glmplan.prediction.from_row import Question, alternatives_of, memory_of, question_of
from glmplan.prediction.load import Load
from glmplan.prediction.offloaded_rows import predict_hybrid
from glmplan.prediction.open_load import arrives_by_rate, open_prediction
from glmplan.prediction.predict import Figure, Prediction, predict_many
from glmplan.prediction.refused_widths import refused_widths
from glmplan.prediction.step_models import check_answerable, runs_on_accelerators
from glmplan.prediction.usable_rows import why_unknown
from glmplan.readers.runs.figures import ANSWERS
from glmplan.readers.runs.known_names import known_names
from glmplan.readers.runs.record import Run
from glmplan.readers.runs.table import runs_of_frame

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "COLUMNS",
    "RowPrediction",
    "marked_reasons",
    "predict_runs",
    "predict_table",
    "rows_as_csv",
    "rows_as_frame",
]

#: all columns, in order; each figure also with `_low` and `_high` (90 % interval)
COLUMNS: tuple[str, ...] = (
    "id",
    *(f"{name}{end}" for name in ANSWERS for end in ("", "_low", "_high")),
    "basis",
    "out_of_domain",
    "error",
)


@dataclass(frozen=True, slots=True)
class RowPrediction:
    """The answer to one row.

    Attributes
    ----------
    id : str
        Its id.
    figures : dict of str to Figure
        Some of `glmplan.readers.runs.figures.ANSWERS`, in the units their names say.
    basis, out_of_domain, error : str
        What it rests on, what lies outside of the measured, and why there is no answer.
    """

    id: str
    figures: dict[str, Figure]
    basis: str
    out_of_domain: str
    error: str


def predict_runs(
    runs: Iterable[Run], *, progress: Callable[[int, int], None] | None = None, as_fitted: bool = False
) -> list[RowPrediction]:
    """Predict each row; a row that cannot be answered says why and the others are answered.

    Parameters
    ----------
    runs : iterable of Run
        The rows.
    progress : callable, optional
        Called with how many rows are prepared, and of how many.
    as_fitted : bool, optional
        Leave intervals of rows that no fit takes as wide as those of others.

    Returns
    -------
    list of RowPrediction
        In the order of the rows.
    """
    rows = list(runs)
    found: list[RowPrediction | None] = [None] * len(rows)
    questions: list[tuple[int, Question]] = []
    for place, run in enumerate(rows):
        try:
            if run.offload:
                found[place] = _answer(run, *predict_hybrid(run))
                continue
            question = question_of(run)
            check_answerable(question.deployment, question.load)
        except GlmplanError as error:
            found[place] = RowPrediction(run.id, {}, "", "", str(error))
        else:
            questions.append((place, question))
        if progress is not None and (place % 50 == 0 or place + 1 == len(rows)):
            progress(place + 1, len(rows))
    main = predict_many([(q.deployment, q.load, q.run.measured_on) for _, q in questions])
    by_rate = [arrives_by_rate(q, one) for (_, q), one in zip(questions, main, strict=True)]
    main = [
        open_prediction(q, one) if by_clock else one
        for (_, q), one, by_clock in zip(questions, main, by_rate, strict=True)
    ]
    reasons = [_refused(q, by_clock) for (_, q), by_clock in zip(questions, by_rate, strict=True)]
    main = [
        replace(one, out_of_domain=_joined(reason, one.out_of_domain))
        for one, reason in zip(main, reasons, strict=True)
    ]
    timed = [(place, q) for place, q in questions if runs_on_accelerators(q.deployment)]
    alone = predict_many([(q.deployment, _prefill_alone(q.load), q.run.measured_on) for _, q in timed])
    prefill = dict(zip((place for place, _ in timed), alone, strict=True))
    for (place, question), prediction in zip(questions, main, strict=True):
        found[place] = _answer(question.run, prediction, prefill.get(place), question)
    _widen(found, questions)
    if not as_fitted:
        _stretch(found, [place for (place, _), reason in zip(questions, reasons, strict=True) if reason])
    return [one for one in found if one is not None]


def _refused(question: Question, by_clock: bool) -> str:
    """Why the fit takes no such row, in its words; what was measured is not looked at."""
    return question.run.unusable or why_unknown(question, by_clock=by_clock)


def _joined(*words: str) -> str:
    return "; ".join(part for part in words if part)


def _widen(found: list[RowPrediction | None], questions: list[tuple[int, Question]]) -> None:
    """Widen the intervals of rows whose launch is not known by what they would be in each way it may have been."""
    ways = [(place, other) for place, question in questions for other in alternatives_of(question)]
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
    """Widen the intervals of rows that are marked as the fit refuses them."""
    widths = refused_widths() if places else {}
    for place in places:
        answer = found[place]
        if answer is not None:
            figures = {
                name: one.stretched(widths.get(ANSWERS[name].interval, 1.0)) for name, one in answer.figures.items()
            }
            found[place] = replace(answer, figures=figures)


def marked_reasons(runs: Iterable[Run]) -> dict[str, str]:
    """What a prediction says of rows that no fit takes, before anything is measured.

    Parameters
    ----------
    runs : iterable of Run
        The rows.

    Returns
    -------
    dict of str to str
        Identifier → the reason; empty where nothing in the row's conditions speaks against it, or it cannot be asked
        about.

    Examples
    --------
    >>> cells = {"engine": "vllm", "tp": 1, "concurrency": 8.0, "input_tokens": 1024.0, "output_tokens": 256.0}
    >>> marked_reasons([Run("a", "llama-3.1-8b", "h100-sxm", unusable="a cold start", **cells)])
    {'a': 'a cold start'}
    """
    found = {}
    for run in runs:
        try:
            question = question_of(run)
            rate = run.request_rate_per_s
            by_clock = bool(rate) and math.isfinite(rate or 0.0) and run.concurrency is None
            found[run.id] = _refused(question, by_clock and question.load.phase == "serving")
        except GlmplanError:
            found[run.id] = ""
    return found


def predict_table(runs: pd.DataFrame) -> pd.DataFrame:
    """Predict each row of a frame of runs.

    Parameters
    ----------
    runs : pandas.DataFrame
        One row for each run, in the columns of a table of runs (`docs/reference/columns.md`).

    Returns
    -------
    pandas.DataFrame
        The columns `COLUMNS` in the order of the rows: figures in the units their names say, with 90 % intervals; what
        they rest on; why a row has no answer.

    Raises
    ------
    SpecError
        If a required column is missing or stands twice.

    Warns
    -----
    UserWarning
        If columns are not known, with the nearest name.

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
    return record | {"basis": row.basis, "out_of_domain": row.out_of_domain, "error": row.error}


def _prefill_alone(load: Load) -> Load:
    if load.phase == "prefill":
        return load
    return replace(
        load, phase="prefill", concurrency=1.0, input_tokens=max(load.input_tokens, 32.0), tokens_per_step=1.0
    )


def _answer(
    run: Run, prediction: Prediction, first: Prediction | None, question: Question | None = None
) -> RowPrediction:
    """The figures of a row, those of its prompts from a prediction of prompts alone where its load has none."""
    found = prediction.figures
    prompts = first.figures if first is not None else {}
    figures: dict[str, Figure] = {}
    for column, one in ANSWERS.items():
        # what a prompt decides is answered for a lone prompt where the load itself has no prompts
        figure = found.get(one.predicted) or (None if one.interval == "decode" else prompts.get(one.predicted))
        if figure is not None:
            figures[column] = figure.scaled(1.0 / one.factor)
    memory = memory_of(question) if question is not None else None
    if question is not None and memory is not None:
        weights, (less, more) = memory.weights_gib, memory.weights_apart
        figures["weights_gib_per_accelerator"] = Figure(weights, weights * (1 - less), weights * (1 + more))
        if memory.pool_tokens > 0:
            figures["kv_pool_tokens"] = Figure(memory.pool_tokens, memory.pool_low, memory.pool_high)
    assumed = (*question.assumed, *_backend(question)) if question is not None else ()
    basis = prediction.basis + (f"; assumed {', '.join(assumed)}" if assumed else "")
    outside = prediction.out_of_domain
    if memory is not None and memory.pool_tokens <= 0:
        outside = _joined("the weights leave no room for a KV cache", outside)
    return RowPrediction(run.id, figures, basis, outside, "")


def _backend(question: Question) -> tuple[str, ...]:
    """What is assumed of the attention backend that a row states, in the words of a plan."""
    stated = question.deployment.settings.attention_backend
    words = attention_assumed(question.deployment.engine, stated) if stated else ""
    return (words,) if words else ()


def rows_as_frame(rows: Iterable[RowPrediction]) -> pd.DataFrame:
    """Predictions as a frame.

    Parameters
    ----------
    rows : iterable of RowPrediction
        The predictions.

    Returns
    -------
    pandas.DataFrame
        One row for each, with `COLUMNS`; cells without an answer are empty.

    Examples
    --------
    >>> row = RowPrediction("a", {"tpot_mean_ms": Figure(10.0, 8.0, 12.0)}, "measured", "", "")
    >>> float(rows_as_frame([row]).loc[0, "tpot_mean_ms_high"])
    12.0
    """
    return frame_of((_record(row) for row in rows), COLUMNS)


def rows_as_csv(rows: Iterable[RowPrediction]) -> str:
    """Write predictions as CSV.

    Parameters
    ----------
    rows : iterable of RowPrediction
        The predictions.

    Returns
    -------
    str
        The table with `COLUMNS`; cells without an answer are empty.

    Examples
    --------
    >>> text = rows_as_csv([RowPrediction("a", {"tpot_mean_ms": Figure(10.0, 8.0, 12.0)}, "measured", "", "")])
    >>> text.splitlines()[1].startswith("a,,,,10,8,12")
    True
    """
    return rows_as_frame(rows).to_csv(index=False, float_format="%.6g", lineterminator="\n")
