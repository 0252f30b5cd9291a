"""Predict every run with weights in host memory, and every one on a machine with one memory, on machines left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np

from glmplan.calibrate.offload import hybrid_observations, hybrid_runs, left_out
from glmplan.calibrate.one_memory import left_out_parts, unified_rows, unified_runs
from glmplan.prediction.comparison import relative_error
from glmplan.prediction.offloaded_rows import predict_hybrid
from glmplan.prediction.table import predict_runs
from glmplan.readers.runs.figures import FIGURES
from glmplan.readers.runs.record import Run

__all__ = ["HybridRow", "hybrid_backtest", "offload_page"]

_TABLE = {
    "output_tokens_per_s_per_request": "decode, one request",
    "output_tokens_per_s": "output, all requests",
    "prefill_tokens_per_s": "prefill",
}


@dataclass(frozen=True, slots=True)
class HybridRow:
    """One figure of one run beside its prediction.

    Attributes
    ----------
    run : Run
        The run.
    machine, cpu, what : str
        Where it ran, its CPU, and which figure it is.
    kind : str
        ``decode`` or ``prefill``.
    measured : float
        [token/s]
    predicted : float or None
        With constants fitted to the other machines, [token/s]; None where there is no answer
    used : bool
        Whether the fit uses the figure (others are predicted too, but do not count in the medians).
    why : str
        Why there is no answer, or what was not stated.
    """

    run: Run
    machine: str
    cpu: str
    what: str
    kind: str
    measured: float
    predicted: float | None
    used: bool
    why: str

    @property
    def error(self) -> float | None:
        """Predicted over measured, less one, [-]"""
        return None if self.predicted is None else float(relative_error(self.predicted, self.measured))


def hybrid_backtest() -> list[HybridRow]:
    """Predict every figure of every hybrid run.

    Returns
    -------
    list of HybridRow
        In the order of the ledgers. Runs whose page does not state the machine are predicted as the middle of the
        known ones and do not count.
    """
    runs = hybrid_runs()
    observations, without = hybrid_observations(runs)
    errors = {
        (one.run.id, one.column): error
        for machines in left_out(observations).values()
        for rows in machines.values()
        for one, error in rows
    }
    of = {(one.run.id, one.column): one for one in observations}
    of_machine = {one.run.id for one in observations}
    found = []
    for run in runs:
        for column, what in _TABLE.items():
            if column not in run.observed:
                continue
            kind, measured = FIGURES[column].interval, run.observed[column]
            one = of.get((run.id, column))
            if one is not None:
                value = measured * float(np.exp(errors[run.id, column]))
                why = "" if one.fitted else run.unusable or "conditions not stated"
                found.append(
                    HybridRow(
                        run, one.case.system.title, one.case.system.cpu, what, kind, measured, value, one.fitted, why
                    )
                )
                continue
            answer = predict_runs([run])[0]
            figure = answer.figures.get(column)
            if figure is None:
                why = answer.error or without[run.id]
                found.append(HybridRow(run, "", "", what, kind, measured, None, False, why))
                continue
            where = "" if run.id in of_machine else "not stated"
            found.append(HybridRow(run, where, "", what, kind, measured, figure.value, False, answer.out_of_domain))
        if not set(_TABLE) & set(run.observed):
            found.append(_first_token(run))
    return found


def _first_token(run: Run) -> HybridRow:
    """A run that reports a time to the first token only, as prompt tokens per second of all requests."""
    prompt = (run.input_tokens or 0.0) * (run.concurrency or 1.0)
    measured = prompt / (run.observed["ttft_mean_ms"] / 1e3)
    predicted = prompt / predict_hybrid(run)[0].figures["ttft"].value
    what = "prompt tokens over mean TTFT"
    return HybridRow(run, "", "", what, "prefill", measured, predicted, False, "machine was fitted")


def _medians(rows: Iterable[HybridRow]) -> list[str]:
    lines = [
        "| | figures | CPUs | median error | median of the CPUs' medians | within 25 % |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    every = list(rows)
    for kind in ("decode", "prefill"):
        mine = [row for row in every if row.used and row.kind == kind]
        errors = [abs(row.error) for row in mine if row.error is not None]
        inside = sum(error <= 0.25 for error in errors) / len(errors)
        of: dict[str, list[float]] = {}
        for row in mine:
            of.setdefault(row.cpu, []).append(abs(row.error or 0.0))
        typical = median(median(found) for found in of.values())
        lines.append(f"| {kind} | {len(errors)} | {len(of)} | {median(errors):.0%} | {typical:.0%} | {inside:.0%} |")
    return lines


def _table(rows: Iterable[HybridRow]) -> list[str]:
    lines = ["| row | model | machine | scenario | figure | measured, token/s | predicted | error | |",
             "|---|---|---|---|---|---:|---:|---:|---|"]  # fmt: skip
    for row in rows:
        error = "" if row.error is None else f"{row.error:+.0%}"
        value = "" if row.predicted is None else f"{row.predicted:.3g}"
        prompt = f", {row.run.input_tokens:.0f} in" if row.run.input_tokens else ""
        lines.append(
            f"| {row.run.id} | {row.run.model} {row.run.weights or ''} | {row.machine} | {row.run.scenario}{prompt} "
            f"| {row.what} | {row.measured:g} | {value} | {error} | {row.why} |"
        )
    return lines


def _unified() -> list[str]:
    runs = unified_runs()
    rows = unified_rows(runs)
    asked = [row.run for row in rows]
    full = {answer.id: answer for answer in predict_runs(asked)}
    lines = ["| part | model | runs | by bytes, part left out | step-time model |", "|---|---|---:|---:|---:|"]
    totals: dict[str, list[list[float]]] = {}
    for part, found in left_out_parts(rows).items():
        for model in sorted({row.model for row, _ in found}):
            mine = [(row, abs(float(np.expm1(error)))) for row, error in found if row.model == model]
            other = []
            for row, _ in mine:
                figure = full[row.run.id].figures.get("output_tokens_per_s_per_request")
                if figure is not None:
                    other.append(abs(figure.value / row.rate - 1.0))
            totals.setdefault(part, [[], []])
            totals[part][0] += [error for _, error in mine]
            totals[part][1] += other
            seen = f"{median(other):.0%}" if other else "no answer"
            lines.append(f"| {part} | {model} | {len(mine)} | {median(e for _, e in mine):.0%} | {seen} |")
    for part, (bytes_only, other) in totals.items():
        seen = f"{median(other):.0%}" if other else "no answer"
        lines.append(f"| {part} | all | {len(bytes_only)} | {median(bytes_only):.0%} | {seen} |")
    return lines


def offload_page() -> str:
    """Write the page `docs/offload-accuracy.md`.

    Returns
    -------
    str
        Markdown; the same ledgers and fits give the same text.
    """
    rows = hybrid_backtest()
    ledger = [row for row in rows if row.run.campaign == "ktransformers-docs"]
    others = [row for row in rows if row.run.campaign != "ktransformers-docs"]
    return (
        "\n".join(
            [
                "# How well offloading is predicted",
                "<!-- Written by `make docs`; do not edit. -->\n",
                "Each machine is predicted with constants fitted to machines with other CPUs",
                "(`glmplan.calibrate.offload`). The medians count figures that the fit may use: the machine is stated,",
                "all experts were active, the prompt length of a prefill speed is known. Where one CPU is the only one",
                "of its kind (AMX, plain llama.cpp), its prompts are predicted from the prior alone.",
                "",
                *_medians(rows),
                "",
                "Known gaps: prompts of a few thousand tokens on AVX-512 kernels, whose speed differs five-fold",
                "between CPUs; llama.cpp on two sockets without its memory options; eight cards behind shared",
                "switches; how many experts stay on the cards where a page does not say.",
                "",
                "## The ktransformers rows",
                "",
                *_table(ledger),
                "",
                "## Other runs with experts in host memory",
                "",
                *_table(others),
                "",
                "## Machines with one memory",
                "",
                "Decode of one stream, median absolute error. By bytes: two constants, fitted to the other parts.",
                "Step-time model: what `glmplan predict` answers; its fit has seen these runs, and it has no answer",
                "where no matrix rate of a part is published.",
                "",
                *_unified(),
            ]
        )
        + "\n"
    )
