"""Fit of decoding on machines with one memory for CPU and accelerator: Strix Halo, DGX Spark, Apple."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.errors import GlmplanError
from glmplan.facts.catalogue.accelerators import load_accelerator
from glmplan.facts.folders import data_folder
from glmplan.physics.offload.one_memory_steps import OneMemoryWork, one_memory_costs, one_memory_work
from glmplan.prediction.from_row import question_of
from glmplan.prediction.observables import Observable, observables
from glmplan.readers.runs.record import Run
from glmplan.readers.runs.table import read_runs

__all__ = ["UNIFIED_CONSTANTS", "UnifiedRow", "fit_unified", "left_out_parts", "unified_rows", "unified_runs"]

#: constant → (middle, standard deviation of its logarithm) before any run is seen, and the unit; llama.cpp reaches
#: about four fifths of the bandwidth of one memory, as planners take for accelerators (aiconfigurator, InferSim)
UNIFIED_CONSTANTS: dict[str, tuple[float, float, str]] = {
    "unified_bandwidth": (0.8, 0.2, ""),
    "unified_layer_seconds": (1e-4, 1.0, "seconds"),
}
_SIGMA = 0.2


@dataclass(frozen=True, slots=True)
class UnifiedRow:
    """One measured decode speed.

    Attributes
    ----------
    run : Run
        The row.
    part, model : str
        Machine and model.
    bandwidth : float
        Memory bandwidth, [B/s]
    rate : float
        Measured, [token/s]
    figure : Observable
        The rate as a sum over steps.
    work : OneMemoryWork
        What these steps read.
    """

    run: Run
    part: str
    model: str
    bandwidth: float
    rate: float
    figure: Observable
    work: OneMemoryWork

    def log_error(self, logs: np.ndarray) -> float:
        """Logarithm of predicted over measured for logarithms of the constants, [-]"""
        share, layer = (float(one) for one in np.exp(logs))
        costs = one_memory_costs(self.work, bandwidth=self.bandwidth, share=share, layer_seconds=layer)
        return float(np.log(self.figure.scale / (self.figure.weights @ costs.sum(axis=1)) / self.rate))


def unified_runs() -> list[Run]:
    """Read the runs on machines with one memory.

    Returns
    -------
    list of Run
        Rows of the llama.cpp ledger and of the other public reports.
    """
    folder = data_folder("calibration") / "measurements"
    found = []
    for name in ("llama-cpp-strix-halo.csv", "other-public.csv"):
        for run in read_runs(folder / name):
            try:
                part = load_accelerator(run.accelerator)
            except GlmplanError:
                continue
            if part.unified_memory and part.kind != "cpu-socket":
                found.append(run)
    return found


def unified_rows(runs: list[Run]) -> list[UnifiedRow]:
    """Take the decode speeds of one stream.

    Parameters
    ----------
    runs : list of Run
        The runs.

    Returns
    -------
    list of UnifiedRow
        Rows with a known model, one machine, no drafting and no reason against them.
    """
    found = []
    for run in runs:
        rate = run.observed.get("output_tokens_per_s_per_request")
        alone = run.phase == "decode" and (run.concurrency or 1.0) == 1.0 and (run.accelerator_count or 1) == 1
        if rate is None or not alone or run.unusable or run.speculation.state == "yes" or "CPU" in run.notes:
            continue
        try:
            question = question_of(run)
        except GlmplanError:
            continue
        d, seen = question.deployment, observables(question.load)
        bandwidth = d.accelerator.need("memory_bandwidth")
        # the figure weighs decoding steps only; what prompts would read does not count
        work = one_memory_work(d.model, d.checkpoint, seen.points, kv=d.kv)
        found.append(UnifiedRow(run, run.accelerator, run.model, bandwidth, rate, seen.figures["user_rate"], work))
    return found


def fit_unified(rows: list[UnifiedRow]) -> tuple[np.ndarray, np.ndarray]:
    """Fit the constants.

    Parameters
    ----------
    rows : list of UnifiedRow
        The rows; those of one model on one part together count as two.

    Returns
    -------
    (2,) array, (2,) array
        Logarithms of `UNIFIED_CONSTANTS` and their standard errors, [-]
    """
    from scipy.optimize import least_squares

    middle = np.log([entry[0] for entry in UNIFIED_CONSTANTS.values()])
    spread = np.array([entry[1] for entry in UNIFIED_CONSTANTS.values()])
    crowd: dict[tuple[str, str], int] = {}
    for row in rows:
        crowd[row.part, row.model] = crowd.get((row.part, row.model), 0) + 1
    weight = np.array([min(1.0, np.sqrt(2.0 / crowd[row.part, row.model])) / _SIGMA for row in rows])

    def residuals(logs: np.ndarray) -> np.ndarray:
        scaled = weight * np.array([row.log_error(logs) for row in rows])
        soft = np.sign(scaled) * np.sqrt(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0))
        return np.concatenate([soft, (logs - middle) / spread])

    found = least_squares(residuals, middle, x_scale=spread)
    jacobian = np.asarray(found.jac, dtype=float)
    return found.x, np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))


def left_out_parts(rows: list[UnifiedRow]) -> dict[str, list[tuple[UnifiedRow, float]]]:
    """Predict each part with constants fitted to the others.

    Parameters
    ----------
    rows : list of UnifiedRow
        The rows.

    Returns
    -------
    dict of str to list
        Part → its rows with the logarithm of predicted over measured, [-]
    """
    found: dict[str, list[tuple[UnifiedRow, float]]] = {}
    for part in sorted({row.part for row in rows}):
        logs, _ = fit_unified([row for row in rows if row.part != part])
        found[part] = [(row, row.log_error(logs)) for row in rows if row.part == part]
    return found
