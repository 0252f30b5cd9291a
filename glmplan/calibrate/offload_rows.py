"""The published runs with weights in host memory, as observations: figures that are sums over steps of known work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from glmplan.errors import GlmplanError
from glmplan.facts.files import read_rows
from glmplan.facts.folders import data_folder
from glmplan.physics.offload.time import OffloadFit, OffloadWork
from glmplan.prediction.observables import Observable, Observables, observables
from glmplan.prediction.offloaded_machines import systems_of
from glmplan.prediction.offloaded_rows import HybridCase, hybrid_case
from glmplan.readers.runs.figures import FIGURES
from glmplan.readers.runs.record import Run
from glmplan.readers.runs.table import read_runs, run_from_row

__all__ = ["HybridObservation", "hybrid_observations", "hybrid_runs"]

#: column of a row → figure, and its kind
_SEEN = {
    name: (FIGURES[name].predicted, FIGURES[name].interval)
    for name in ("output_tokens_per_s_per_request", "output_tokens_per_s", "prefill_tokens_per_s")
}


@dataclass(frozen=True, slots=True)
class HybridObservation:
    """One figure of one row.

    Attributes
    ----------
    run : Run
        The row.
    case : HybridCase
        Its steps and its load.
    column, kind : str
        Column of the row; ``decode`` or ``prefill``.
    value : float
        What was measured, [token/s]
    fitted : bool
        Whether the fit uses it.
    seen : Observables
        The kinds of step that the figure is a sum over.
    figure : Observable
        The sum.
    work : OffloadWork
        Work of these steps, which no constant changes.
    """

    run: Run
    case: HybridCase
    column: str
    kind: str
    value: float
    fitted: bool
    seen: Observables
    figure: Observable
    work: OffloadWork

    def log_error(self, fit: OffloadFit) -> float:
        """Logarithm of predicted over measured, [-]"""
        seconds = self.case.steps.with_fit(fit).costs(self.work, self.seen.prefill_tokens).sum(axis=1)
        return float(np.log(self.figure.scale / (self.figure.weights @ seconds) / self.value))


def hybrid_runs() -> list[Run]:
    """Read all rows with weights in host memory.

    Returns
    -------
    list of Run
        Rows of the ledgers, then of `calibration/offload/reports.csv`.

    Examples
    --------
    >>> len([run for run in hybrid_runs() if run.campaign == "ktransformers-docs"])
    73
    """
    folder = data_folder("calibration")
    rows = [
        run
        for name in ("ktransformers.csv", "other-public.csv")
        for run in read_runs(folder / "measurements" / name)
        if run.offload or name == "ktransformers.csv"
    ]
    for row in read_rows(folder / "offload" / "reports.csv"):
        rows.append(run_from_row({**row, "accelerator": "cpu-gpu-hybrid", "protocol": "hybrid"}))
    return rows


def hybrid_observations(runs: Iterable[Run]) -> tuple[list[HybridObservation], dict[str, str]]:
    """Turn rows into observations.

    Parameters
    ----------
    runs : iterable of Run
        The rows.

    Returns
    -------
    list of HybridObservation
        One for each figure of rows whose machine is stated.
    dict of str to str
        Id of each other row → why there is none.
    """
    found: list[HybridObservation] = []
    without: dict[str, str] = {}
    for run in runs:
        systems, how = systems_of(run)
        if how != "stated":
            without[run.id] = "its page does not state the machine"
            continue
        try:
            case = hybrid_case(run, systems[0])
        except GlmplanError as error:
            without[run.id] = str(error)
            continue
        for column, (name, kind) in _SEEN.items():
            if column not in run.observed:
                continue
            seen = observables(case.load if kind == "decode" else case.prompts)
            if name not in seen.figures:
                without.setdefault(run.id, f"has no {column} under a load of {case.load.phase} alone")
                continue
            # a prefill speed without a prompt length says how long the prompts were, not how fast the machine is
            known = kind == "decode" or run.input_tokens is not None or run.context_depth is not None
            usable = run.unusable is None and known and run.speculation.state != "yes"
            found.append(
                HybridObservation(
                    run, case, column, kind, run.observed[column], usable, seen, seen.figures[name],
                    case.steps.work(seen.points),
                )
            )  # fmt: skip
    return found, without
