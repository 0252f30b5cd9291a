"""Fit the constants of offloading and unified memory.

Published runs are the observations; errors are those on held-out machines. Observations are rows of
`calibration/measurements` with experts in host memory and reports in `calibration/offload/reports.csv`; machines are in
`calibration/offload/systems.toml`. Unified-memory machines are Strix Halo, DGX Spark and Apple.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.files import data_folder, read_rows, write_atomically
from glmplan.costs.offload.steps import OneMemoryWork, one_memory_costs, one_memory_work
from glmplan.costs.offload.work import OffloadFit, OffloadWork
from glmplan.errors import GlmplanError
from glmplan.io.runs.columns import FIGURES
from glmplan.io.runs.record import Run
from glmplan.io.runs.table import read_runs, run_from_row
from glmplan.prediction.from_row import question_of
from glmplan.prediction.load import LoadMetrics, MetricWeights, metrics_of
from glmplan.prediction.offloaded_rows import HybridCase, hybrid_case, systems_of
from glmplan.units import QUANTILE_90, BytesPerSecond, Ratio, TokensPerSecond, format_quantity

__all__ = [
    "CONSTANTS",
    "UNIFIED_CONSTANTS",
    "HybridObservation",
    "UnifiedRow",
    "fit_offload",
    "fit_unified",
    "hybrid_observations",
    "hybrid_runs",
    "left_out",
    "left_out_parts",
    "machine_effects",
    "offload_fit_text",
    "spread_of",
    "unified_rows",
    "unified_runs",
    "write_offload_fit",
]


#: column → metric and its kind
_SEEN = {
    name: (FIGURES[name].predicted, FIGURES[name].interval)
    for name in ("output_tokens_per_s_per_request", "output_tokens_per_s", "prefill_tokens_per_s")
}


@dataclass(frozen=True, slots=True)
class HybridObservation:
    """One metric of one row, as a sum over steps of known work."""

    run: Run
    case: HybridCase
    column: str
    kind: str  # decode or prefill
    value: TokensPerSecond  # measured
    fitted: bool  # used by the fit
    seen: LoadMetrics  # kinds of step
    figure: MetricWeights
    work: OffloadWork  # independent of the constants

    def log_error(self, fit: OffloadFit) -> float:
        """Return log(predicted / measured) [-]"""
        seconds = self.case.steps.with_fit(fit).costs(self.work, self.seen.prefill_tokens).sum(axis=1)
        return float(np.log(self.figure.scale / (self.figure.weights @ seconds) / self.value))


def hybrid_runs() -> list[Run]:
    """Return all rows with weights in host memory.

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
    """Return the metrics of rows with stated machine, and reasons for others."""
    observed: list[HybridObservation] = []
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
            seen = metrics_of(case.load if kind == "decode" else case.prompts)
            if name not in seen.figures:
                without.setdefault(run.id, f"has no {column} under a load of {case.load.phase} alone")
                continue
            # prefill rate without prompt length reflects the length, not the machine
            known = kind == "decode" or run.input_tokens is not None or run.context_depth is not None
            usable = run.unusable is None and known and run.speculation.state != "yes"
            observed.append(
                HybridObservation(
                    run, case, column, kind, run.observed[column], usable, seen, seen.figures[name],
                    case.steps.work(seen.points),
                )
            )  # fmt: skip
    return observed, without


#: constant → prior median, log deviation and unit; llama.cpp reaches about four fifths of the bandwidth of unified
#: memory, as planners assume for accelerators (aiconfigurator, InferSim)
UNIFIED_CONSTANTS: dict[str, tuple[float, float, str]] = {
    "unified_bandwidth": (0.8, 0.2, ""),
    "unified_layer_seconds": (1e-4, 1.0, "seconds"),
}
_SIGMA = 0.2


@dataclass(frozen=True, slots=True)
class UnifiedRow:
    """One measured decode rate."""

    run: Run
    part: str  # machine
    model: str
    bandwidth: BytesPerSecond  # of the memory
    rate: TokensPerSecond  # measured
    figure: MetricWeights  # the rate as a sum over steps
    work: OneMemoryWork  # bytes read by these steps

    def log_error(self, logs: np.ndarray) -> float:
        """Return log(predicted / measured) for log constants [-]"""
        share, layer = (float(one) for one in np.exp(logs))
        costs = one_memory_costs(self.work, bandwidth=self.bandwidth, share=share, layer_seconds=layer)
        return float(np.log(self.figure.scale / (self.figure.weights @ costs.sum(axis=1)) / self.rate))


def unified_runs() -> list[Run]:
    """Return the runs of the llama.cpp ledger and of other public reports."""
    folder = data_folder("calibration") / "measurements"
    selected = []
    for name in ("llama-cpp-strix-halo.csv", "other-public.csv"):
        for run in read_runs(folder / name):
            try:
                accelerator = load_accelerator(run.accelerator)
            except GlmplanError:
                continue
            if accelerator.unified_memory and accelerator.kind != "cpu-socket":
                selected.append(run)
    return selected


def unified_rows(runs: list[Run]) -> list[UnifiedRow]:
    """Return single-user decode rates of known models on one machine.

    Without speculative decoding and without a reason against the row.
    """
    rows = []
    for run in runs:
        rate = run.observed.get("output_tokens_per_s_per_request")
        alone = run.phase == "decode" and (run.concurrency or 1.0) == 1.0 and (run.accelerator_count or 1) == 1
        if rate is None or not alone or run.unusable or run.speculation.state == "yes" or "CPU" in run.notes:
            continue
        try:
            question = question_of(run)
        except GlmplanError:
            continue
        d, seen = question.deployment, metrics_of(question.load)
        bandwidth = d.accelerator.need("memory_bandwidth")
        # the metric weighs decode steps only; bytes read by prompts do not count
        work = one_memory_work(d.model, d.checkpoint, seen.points, kv=d.kv)
        rows.append(UnifiedRow(run, run.accelerator, run.model, bandwidth, rate, seen.figures["user_rate"], work))
    return rows


def fit_unified(rows: list[UnifiedRow]) -> tuple[np.ndarray, np.ndarray]:
    """Return log constants and their errors.

    Rows of one model on one machine count as two together.
    """
    places = [(row.part, row.model) for row in rows]
    return _robust(UNIFIED_CONSTANTS, places, lambda logs: [row.log_error(logs) for row in rows])


def _robust(
    constants: Mapping[str, tuple[Any, ...]],
    places: list[tuple[str, str]],
    errors: Callable[[np.ndarray], list[float]],
    **limits: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return log constants and their standard errors.

    `constants`: prior value and log deviation of each. `places`: rows of one place are correlated and count as two
    together. `limits`: of `scipy.optimize.least_squares`.
    """
    from scipy.optimize import least_squares

    middle = np.log([entry[0] for entry in constants.values()])
    spread = np.array([entry[1] for entry in constants.values()])
    crowd = Counter(places)
    weight = np.array([min(1.0, np.sqrt(2.0 / crowd[place])) / _SIGMA for place in places])

    def residuals(logs: np.ndarray) -> np.ndarray:
        scaled = weight * np.array(errors(logs))
        # pseudo-Huber: an outlier pulls with its distance, not its square
        soft = np.sign(scaled) * np.sqrt(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0))
        return np.concatenate([soft, (logs - middle) / spread])

    solution = least_squares(residuals, middle, x_scale=spread, **limits)
    jacobian = np.asarray(solution.jac, dtype=float)
    return solution.x, np.sqrt(np.diag(np.linalg.inv(jacobian.T @ jacobian)))


def left_out_parts(rows: list[UnifiedRow]) -> dict[str, list[tuple[UnifiedRow, float]]]:
    """Return accelerator → rows and log errors, by constants of the others."""
    errors: dict[str, list[tuple[UnifiedRow, float]]] = {}
    for part in sorted({row.part for row in rows}):
        logs, _ = fit_unified([row for row in rows if row.part != part])
        errors[part] = [(row, row.log_error(logs)) for row in rows if row.part == part]
    return errors


#: constant → prior median, log deviation and unit. Bandwidth shares: STREAM reaches 82 % of an EPYC 9004 socket
#: (ctimes.com, Micron), planners take 80 % of an accelerator (aiconfigurator, InferSim); attention kernels 24-64 %
#: (voipmonitor/rtx6kpro, models/kimi-k26.md). Constants without a source start at the order of magnitude of the runs
#: with a deviation of a factor e.
CONSTANTS: dict[str, tuple[float, float, str]] = {
    "host_bandwidth": (0.6, 0.4, ""),
    "next_socket": (0.6, 0.4, ""),
    "layer_seconds": (1e-4, 1.0, "seconds"),
    "core_rate.amx": (5e10, 0.5, "FLOP per second"),
    "core_rate.avx512": (5e10, 0.5, "FLOP per second"),
    "core_rate.generic": (2e10, 1.0, "FLOP per second"),
    "prefill_core_rate.amx": (1e11, 1.0, "FLOP per second"),
    "prefill_core_rate.avx512": (5e10, 1.0, "FLOP per second"),
    "prefill_core_rate.generic": (1e10, 1.0, "FLOP per second"),
    "copy": (0.1, 1.0, ""),
    "accelerator_bandwidth": (0.8, 0.1, ""),
    "accelerator_cache": (0.4, 0.5, ""),
    "accelerator_flop": (0.5, 0.5, ""),
}
#: spread of one machine's runs, at least [-]
_LEAST = 0.05


def _fit_of(logs: np.ndarray) -> OffloadFit:
    value = dict(zip(CONSTANTS, np.exp(logs).tolist(), strict=True))

    def rates(prefix: str) -> dict[str, float]:
        return {name.partition(".")[2]: rate for name, rate in value.items() if name.startswith(prefix + ".")}

    return OffloadFit(
        host_bandwidth=value["host_bandwidth"],
        next_socket=value["next_socket"],
        layer_seconds=value["layer_seconds"],
        core_rate=rates("core_rate"),
        prefill_core_rate=rates("prefill_core_rate"),
        copy=value["copy"],
        accelerator_bandwidth=value["accelerator_bandwidth"],
        accelerator_cache=value["accelerator_cache"],
        accelerator_flop=value["accelerator_flop"],
        unified_bandwidth=float("nan"),
        unified_layer_seconds=float("nan"),
        intervals={},
    )


def _solve(observations: list[HybridObservation]) -> tuple[np.ndarray, np.ndarray]:
    """Return the log constants and their standard errors."""
    used = [one for one in observations if one.fitted]
    places = [(one.case.system.name, one.kind) for one in used]

    def errors(logs: np.ndarray) -> list[float]:
        fit = _fit_of(logs)
        return [one.log_error(fit) for one in used]

    return _robust(CONSTANTS, places, errors, xtol=1e-6, ftol=1e-6, max_nfev=60)


def spread_of(errors: dict[str, list[float]]) -> Ratio:
    """Return the 90 % interval half-width from errors on held-out machines.

    Nine tenths of the rows lie inside, one vote per machine.

    Examples
    --------
    >>> round(spread_of({"a": [0.1, 0.1], "b": [-0.3]}), 2)
    0.3
    """
    pairs = sorted((abs(error), 1.0 / len(rows)) for rows in errors.values() for error in rows)
    total = np.cumsum([weight for _, weight in pairs])
    return pairs[int(np.searchsorted(total, 0.9 * total[-1] - 1e-9))][0]


def left_out(observations: list[HybridObservation]) -> dict[str, dict[str, list[tuple[HybridObservation, float]]]]:
    """Return kind → CPU → observations and log errors, without that CPU.

    Constants are fitted to machines with other CPUs; observations that are not fitted are predicted, too.
    """
    errors: dict[str, dict[str, list[tuple[HybridObservation, float]]]] = {"decode": {}, "prefill": {}}
    for name in sorted({one.case.system.cpu for one in observations}):
        fit = _fit_of(_solve([one for one in observations if one.case.system.cpu != name])[0])
        for one in observations:
            if one.case.system.cpu == name:
                errors[one.kind].setdefault(name, []).append((one, one.log_error(fit)))
    return errors


def fit_offload(
    observations: list[HybridObservation],
) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
    """Return constant → value and log error; kind → interval half-width.

    The 90 % interval is that on held-out machines.
    """
    logs, errors = _solve(observations)
    values = {name: (float(np.exp(log)), float(sd)) for name, log, sd in zip(CONSTANTS, logs, errors, strict=True)}
    half = {
        kind: spread_of({
            name: [error for one, error in rows if one.fitted]
            for name, rows in machines.items()
            if any(one.fitted for one, _ in rows)
        })
        for kind, machines in left_out(observations).items()
    }  # fmt: skip
    return values, half


def machine_effects(
    observations: list[HybridObservation], fit: OffloadFit
) -> dict[str, dict[str, tuple[float, float]]]:
    """Return machine → kind → log correction and interval half-width.

    Corrections (measured / predicted) are shrunk for few runs; the 90 % interval is that of one more run. They cover
    settings and kernels that no page states.

    References
    ----------
    .. [1] A. Gelman, J. Hill, "Data Analysis Using Regression and Multilevel/Hierarchical Models", 12.2.
    """
    corrections: dict[str, dict[str, tuple[float, float]]] = {}
    for kind in ("decode", "prefill"):
        of: dict[str, list[float]] = {}
        for one in observations:
            if one.fitted and one.kind == kind:
                of.setdefault(one.case.system.name, []).append(-one.log_error(fit))
        means = {name: float(np.mean(errors)) for name, errors in of.items()}
        between = float(np.mean([mean**2 for mean in means.values()]))
        rest = [error - means[name] for name, errors in of.items() for error in errors]
        freedom = max(len(rest) - len(of), 1)
        within = max(float(np.sum(np.square(rest))) / freedom, _LEAST**2)
        for name, errors in of.items():
            weight = len(errors) / (len(errors) + within / between)
            variance = within + between * (1.0 - weight)
            corrections.setdefault(name, {})[kind] = (weight * means[name], QUANTILE_90 * float(np.sqrt(variance)))
    return corrections


def offload_fit_text(observations: list[HybridObservation], one_memory: list[UnifiedRow]) -> str:
    """Return the fit as TOML."""
    values, half = fit_offload(observations)
    used = [one for one in observations if one.fitted]
    lines = [
        "# Written by `glmplan.calibrate.offload`; observations: calibration/measurements/ktransformers.csv, hybrid",
        "# rows of other-public.csv, calibration/offload/reports.csv; machines: calibration/offload/systems.toml;",
        "# unified_*: decode of one stream in llama-cpp-strix-halo.csv and other-public.csv",
        "",
    ]
    lines.append("runs = [" + ", ".join(f'"{one}"' for one in sorted({one.run.id for one in used})) + "]")
    lines.append(
        "fitted_machines = [" + ", ".join(f'"{one}"' for one in sorted({o.case.system.name for o in used})) + "]"
    )
    effects = machine_effects(observations, _fit_of(np.log([values[name][0] for name in CONSTANTS])))
    lines += ["", "[domain]"]
    for name, column in (
        ("requests", [one.case.load.concurrency for one in used]),
        ("prompt_tokens", [one.case.load.input_tokens for one in used if one.kind == "prefill"]),
        ("host_memory_bandwidth_gb_s", [one.case.steps.offload.side.bandwidth / 1e9 for one in used]),
    ):
        lines.append(f"{name} = [{min(column):g}, {max(column):g}]")
    lines += ["", "[intervals]"]
    half["unified"] = spread_of({part: [e for _, e in rows] for part, rows in left_out_parts(one_memory).items()})
    lines += [f"{kind} = [{-width:.4f}, {width:.4f}]" for kind, width in half.items()]
    logs, errors = fit_unified(one_memory)
    shared = {
        name: (float(np.exp(log)), float(sd)) for name, log, sd in zip(UNIFIED_CONSTANTS, logs, errors, strict=True)
    }
    units = {name: entry[2] for name, entry in (*CONSTANTS.items(), *UNIFIED_CONSTANTS.items())}
    for name, (value, sd) in {**values, **shared}.items():
        unit = units[name]
        text = f'"{format_quantity(value, unit, 4)}"' if unit else f"{value:.4f}"
        lines += ["", f'[constants."{name}"]', f"value = {text}", f"log_sd = {sd:.3f}"]
    for name, kinds in sorted(effects.items()):
        lines += ["", f'[machines."{name}"]']
        lines += [f"{kind} = [{shift:.4f}, {half_width:.4f}]" for kind, (shift, half_width) in kinds.items()]
    return "\n".join(lines) + "\n"


def write_offload_fit(path: str | Path | None = None, *, without: Collection[str] = ()) -> Path:
    """Fit, write `calibration/fits/offload.toml` and return its path."""
    file = Path(path) if path is not None else data_folder("calibration") / "fits" / "offload.toml"
    observations, _ = hybrid_observations(run for run in hybrid_runs() if run.id not in without)
    one_memory = unified_rows([run for run in unified_runs() if run.id not in without])
    write_atomically(file, offload_fit_text(observations, one_memory))
    return file
