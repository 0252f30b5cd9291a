"""Fit of the few constants of offloading to the published hybrid runs, and its error on machines left out.

Observations: rows of `calibration/measurements` that ran with experts in host memory, and a few more reports in
`calibration/offload/reports.csv`; machines: `calibration/offload/systems.toml`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np

from glmplan.calibrate.offload_rows import HybridObservation, hybrid_observations, hybrid_runs
from glmplan.calibrate.one_memory import (
    UNIFIED_CONSTANTS,
    UnifiedRow,
    fit_unified,
    left_out_parts,
    unified_rows,
    unified_runs,
)
from glmplan.facts.files import write_atomically
from glmplan.facts.folders import data_folder
from glmplan.physics.offload.time import OffloadFit
from glmplan.units import QUANTILE_90, format_quantity

__all__ = [
    "CONSTANTS",
    "fit_offload",
    "left_out",
    "machine_effects",
    "offload_fit_text",
    "spread_of",
    "write_offload_fit",
]

#: constant → (middle, standard deviation of its logarithm) before any run is seen, and the unit.
#: Bandwidth shares: STREAM reaches 82 % of an EPYC 9004 socket (ctimes.com, Micron), planners take 80 % of an
#: accelerator (aiconfigurator, InferSim); attention kernels 24-64 % (voipmonitor/rtx6kpro, models/kimi-k26.md).
#: What has no such source starts at the order of magnitude of the runs with a standard deviation of a factor e.
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
#: standard error of a run beside the model: what the best-known machines still differ by [-]
_SIGMA = 0.2
#: least spread of runs of one machine [-]
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
    """Logarithms of the constants and their standard errors."""
    from scipy.optimize import least_squares

    used = [one for one in observations if one.fitted]
    middle = np.log([entry[0] for entry in CONSTANTS.values()])
    spread = np.array([entry[1] for entry in CONSTANTS.values()])
    crowd: dict[tuple[str, str], int] = {}
    for one in used:
        key = (one.case.system.name, one.kind)
        crowd[key] = crowd.get(key, 0) + 1
    # rows of one machine share its oddities: together they count as two
    weight = np.array([min(1.0, np.sqrt(2.0 / crowd[one.case.system.name, one.kind])) / _SIGMA for one in used])

    def residuals(logs: np.ndarray) -> np.ndarray:
        fit = _fit_of(logs)
        scaled = weight * np.array([one.log_error(fit) for one in used])
        # soft: an outlier pulls with its distance, not with its square
        soft = np.sign(scaled) * np.sqrt(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0))
        return np.concatenate([soft, (logs - middle) / spread])

    found = least_squares(residuals, middle, x_scale=spread, xtol=1e-6, ftol=1e-6, max_nfev=60)
    jacobian = np.asarray(found.jac, dtype=float)
    covariance = np.linalg.inv(jacobian.T @ jacobian)
    return found.x, np.sqrt(np.diag(covariance))


def spread_of(errors: dict[str, list[float]]) -> float:
    """Half-width of a 90 % interval from errors on machines left out.

    Parameters
    ----------
    errors : dict of str to list of float
        Machine → logarithmic errors, [-]

    Returns
    -------
    float
        The distance within which nine tenths of the machines' rows lie, each machine counting once, [-]

    Examples
    --------
    >>> round(spread_of({"a": [0.1, 0.1], "b": [-0.3]}), 2)
    0.3
    """
    pairs = sorted((abs(error), 1.0 / len(rows)) for rows in errors.values() for error in rows)
    total = np.cumsum([weight for _, weight in pairs])
    return pairs[int(np.searchsorted(total, 0.9 * total[-1] - 1e-9))][0]


def left_out(observations: list[HybridObservation]) -> dict[str, dict[str, list[tuple[HybridObservation, float]]]]:
    """Predict each machine with constants fitted to machines with other CPUs.

    Parameters
    ----------
    observations : list of HybridObservation
        All of them; those not fitted are predicted too.

    Returns
    -------
    dict
        Kind → CPU → its observations with the logarithm of predicted over measured, [-]
    """
    found: dict[str, dict[str, list[tuple[HybridObservation, float]]]] = {"decode": {}, "prefill": {}}
    for name in sorted({one.case.system.cpu for one in observations}):
        fit = _fit_of(_solve([one for one in observations if one.case.system.cpu != name])[0])
        for one in observations:
            if one.case.system.cpu == name:
                found[one.kind].setdefault(name, []).append((one, one.log_error(fit)))
    return found


def fit_offload(
    observations: list[HybridObservation],
) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
    """Fit the constants.

    Parameters
    ----------
    observations : list of HybridObservation
        Observations.

    Returns
    -------
    dict of str to (float, float)
        Constant → value [its unit in `CONSTANTS`] and standard error of its logarithm, [-]
    dict of str to float
        Kind → half-width of the 90 % interval on machines left out, [-]
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
    """What the runs of each machine differ from the model by: settings and kernels that no page states.

    Parameters
    ----------
    observations : list of HybridObservation
        All of them; those not fitted do not count.
    fit : OffloadFit
        Constants.

    Returns
    -------
    dict of str to dict of str to (float, float)
        Machine → kind → correction of measured over predicted, drawn towards none the fewer its runs, and the
        half-width of a 90 % interval for one more run of it, [-]

    References
    ----------
    .. [1] A. Gelman, J. Hill, "Data Analysis Using Regression and Multilevel/Hierarchical Models", 12.2.
    """
    found: dict[str, dict[str, tuple[float, float]]] = {}
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
            left = within + between * (1.0 - weight)
            found.setdefault(name, {})[kind] = (weight * means[name], QUANTILE_90 * float(np.sqrt(left)))
    return found


def offload_fit_text(observations: list[HybridObservation], one_memory: list[UnifiedRow]) -> str:
    """Write the fit as TOML.

    Parameters
    ----------
    observations : list of HybridObservation
        Observations.
    one_memory : list of UnifiedRow
        Those of machines with one memory.

    Returns
    -------
    str
        The file.
    """
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
    """Fit and write `calibration/fits/offload.toml`.

    Parameters
    ----------
    path : path, optional
        Another file.
    without : collection of str, optional
        Runs that are left out.

    Returns
    -------
    Path
        The file written.
    """
    file = Path(path) if path is not None else data_folder("calibration") / "fits" / "offload.toml"
    observations, _ = hybrid_observations(run for run in hybrid_runs() if run.id not in without)
    one_memory = unified_rows([run for run in unified_runs() if run.id not in without])
    write_atomically(file, offload_fit_text(observations, one_memory))
    return file
