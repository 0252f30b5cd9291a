"""What is known of a case: its class, its words, and how wide the intervals of its figures are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import (
    BY_OTHERS,
    KNOWN_AS,
    LEVELS,
    TTFT_SCALE,
    Effects,
    keys_of,
    knowledge_class,
    measured_build,
)
from glmplan.prediction.intervals import BANDS, PROMPTS, features_of, interval_of
from glmplan.prediction.load import Load
from glmplan.units import QUANTILE_90

if TYPE_CHECKING:
    from glmplan.physics.offload.time import OffloadFit

__all__ = [
    "KINDS",
    "Known",
    "KnownPoints",
    "known_by_bytes",
    "known_by_engine",
    "known_of_offloading",
    "known_of_points",
]

#: kinds of interval
KINDS: tuple[str, ...] = ("decode", "ttft", "prefill")
#: half-width added to an interval for each e-fold beyond the measured concurrency or lengths [-]
_BEYOND = 0.15
#: half-width added where requests are taken to spread over pipeline stages, about the gain that this assumes [-]
_SPREAD_OVER_STAGES = 0.3


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a deployment under a load.

    Attributes
    ----------
    knowledge : str
        What was measured of it, one of `glmplan.prediction.effects.KNOWN_AS`.
    basis : str
        The same in words.
    outside : str
        What lies outside of what was measured; empty if nothing.
    ends : mapping of str to (float, float)
        Kind of figure, one of `KINDS` → ends of the 90 % interval of measured over predicted times, in logarithms, [-]
    ttft_scale : float
        Logarithm of what prompts that wait for others take longer by, [-]
    shifts : mapping of str to float
        Kind of figure → what runs of the same machine were found to take longer than the model says, in logarithms; 0
        where nothing was, [-]
    """

    knowledge: str
    basis: str
    outside: str
    ends: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    ttft_scale: float = 0.0
    shifts: Mapping[str, float] = field(default_factory=dict)


def known_by_engine(
    deployment: Deployment, load: Load, keys: tuple[str, ...], levels: tuple[bool, ...], ttft_scale: float, fit: Effects
) -> Known:
    """What runs of engines on accelerators tell of a case.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    load : Load
        The load.
    keys : tuple of str
        Its key on each level (`glmplan.prediction.effects.keys_of`).
    levels : tuple of bool
        For each level whether its key was measured.
    ttft_scale : float
        As in `Known`, [-]
    fit : Effects
        The fit.

    Returns
    -------
    Known
        Class, words and intervals.
    """
    at_site = keys[LEVELS.index("configuration")] in fit.site
    knowledge = "site" if at_site and "site" in fit.intervals else knowledge_class(levels)
    knowledge, of = _with_what_differs(deployment, knowledge, keys[-1], fit)
    beyond, outside = _outside(deployment, load, keys, knowledge, fit)
    features = features_of(deployment, load)
    ends = {}
    for kind in KINDS:
        if kind in fit.intervals[of]:
            low, high = interval_of(fit, of, kind, features)
            if kind == "decode":
                low, high = _drafted(low, high, deployment.acceptance_deviation)
            ends[kind] = (low - beyond, high + beyond)
    return Known(knowledge, KNOWN_AS[knowledge], outside, ends, ttft_scale)


#: the same classes, where releases of the engine were measured that are not asked for
_OTHER_RELEASE = {"configuration": "release", "group": "group_release"}


def _with_what_differs(deployment: Deployment, knowledge: str, release_key: str, fit: Effects) -> tuple[str, str]:
    """Class of what is known, and the one whose intervals hold.

    No run with low-rank adapters was measured. Machines and builds of others differ as much as models on a part do: of
    what other campaigns measured of the same group the intervals of runs of one's own held 56 % of the votes, those of
    `pair` 93 % (docs/physics/calibration.md); another layout cannot be known better.
    """
    if deployment.settings.adapters and knowledge in ("site", *BY_OTHERS):
        return "adapters", "pair" if knowledge == "site" else "format"
    asked = knowledge not in _OTHER_RELEASE or measured_build(fit, release_key)
    return knowledge if asked else _OTHER_RELEASE[knowledge], BY_OTHERS.get(knowledge, knowledge)


def _drafted(low: float, high: float, deviation: float) -> tuple[float, float]:
    """Ends of an interval with what is not known of the acceptance length, which errs independently of the fit."""
    drafting = QUANTILE_90 * deviation
    return -math.hypot(low, drafting), math.hypot(high, drafting)


def known_of_offloading(
    machine: str = "",
    *,
    certain: bool = True,
    basis: str = "",
    outside: str = "",
    drafting: float = 0.0,
    fit: OffloadFit | None = None,
) -> Known:
    """What published runs with weights in host memory tell of a case.

    Parameters
    ----------
    machine : str, optional
        The machine, where its own runs were measured.
    certain : bool, optional
        Whether it is certain that it is this machine: only then does it have the narrow interval of its own runs.
    basis, outside : str, optional
        Words to add.
    drafting : float, optional
        Deviation of the logarithm of the tokens a step gains, [-]
    fit : OffloadFit, optional
        Constants; those shipped by default.

    Returns
    -------
    Known
        Class, words, intervals and what the machine's own runs taught.
    """
    from glmplan.physics.offload.time import load_offload_fit

    fit = fit or load_offload_fit()
    ends, shifts = {}, {}
    for kind, of in (("decode", "decode"), ("ttft", "prefill"), ("prefill", "prefill")):
        # the fit speaks of rates, this of times
        shifts[kind] = -fit.of_machine(machine, of)[0]
        _, low, high = fit.of_machine(machine if certain else "", of)
        ends[kind] = (-high, -low)
    ends["decode"] = _drafted(*ends["decode"], drafting)
    words = "; ".join(part for part in (_OFFLOADING, basis) if part)
    return Known("engine", words, outside, ends, shifts=shifts)


_OFFLOADING = "offload model fitted to published hybrid runs"


def known_by_bytes(deployment: Deployment, load: Load, *, fit: OffloadFit | None = None) -> Known:
    """What published runs on machines with one memory tell of a case.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    load : Load
        The load.
    fit : OffloadFit, optional
        Constants; those shipped by default.

    Returns
    -------
    Known
        Class, words and intervals; of decoding alone.
    """
    from glmplan.physics.offload.time import load_offload_fit

    fit = fit or load_offload_fit()
    low, high = fit.intervals["unified"]
    outside = f"no matrix rate of {deployment.accelerator.full_name} is published: prompts are not timed"
    if load.phase == "serving":
        outside += "; the rates are of decoding alone"
    basis = "decoding by bytes, fitted to published runs on machines with one memory"
    return Known("engine", basis, outside, {"decode": _drafted(-high, -low, deployment.acceptance_deviation)})


def _outside(
    deployment: Deployment, load: Load, keys: tuple[str, ...], knowledge: str, fit: Effects
) -> tuple[float, str]:
    """How far the load lies beyond what was measured (half-width to add, words)."""
    words = [] if knowledge in ("site", "configuration", "release", "group", "group_release") else [KNOWN_AS[knowledge]]
    widen = 0.0
    domain = fit.domain.get(keys[LEVELS.index("group")])
    if domain:
        asked = (load.concurrency, load.input_tokens + load.context, load.output_tokens)
        for name, value, low, high in zip(
            ("concurrency", "input", "output"), asked, domain[0::2], domain[1::2], strict=True
        ):
            # most loads lie within: those need no arrays
            beyond = 0.0 if 0.5 * low <= value <= 2.0 * high else float(_beyond(np.asarray(value), low, high))
            if beyond:
                words.append(f"{name} {value:g} outside the measured {low:g}-{high:g}")
                widen += beyond
    if deployment.pp > 1 and load.bunched == 1.0 and load.concurrency > 1:
        words.append("runs through pipeline stages were measured as bursts only, which stay in one micro-batch")
        widen += _SPREAD_OVER_STAGES
    return widen, "; ".join(words)


def _beyond(value: np.ndarray, low: float, high: float) -> np.ndarray:
    """Half-width to add for values far outside of what was measured, in logarithms."""
    outside = (value > 0) & ((value < 0.5 * low) | (value > 2.0 * high))
    edge = np.where(value < low, low, high)
    ratio = np.where(outside, value, 1.0) / np.where(outside, np.maximum(edge, 1.0), 1.0)
    return np.where(outside, _BEYOND * np.abs(np.log(ratio)), 0.0)


@dataclass(frozen=True, slots=True)
class KnownPoints:
    """What is known of many loads of one deployment.

    Attributes
    ----------
    knowledge, basis : str
        As in `Known`.
    ends : mapping of str to tuple of (n,) array
        As in `Known`, one entry for each load, [-]
    ttft_scale : float
        As in `Known`, [-]
    """

    knowledge: str
    basis: str
    ends: Mapping[str, tuple[np.ndarray, np.ndarray]]
    ttft_scale: float


def known_of_points(
    deployment: Deployment, concurrency: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, *, fit: Effects
) -> KnownPoints:
    """What runs of engines tell of many loads of whole requests, with the rules of `known_by_engine`.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    concurrency : (n,) array
        Requests in flight, [-]
    inputs, outputs : (n,) array
        Of a request, [token]
    fit : Effects
        The fit.

    Returns
    -------
    KnownPoints
        Class, words and intervals.
    """
    keys = keys_of(deployment)
    total, levels = fit.sum_of(keys)
    at_site = keys[LEVELS.index("configuration")] in fit.site
    knowledge = "site" if at_site and "site" in fit.intervals else knowledge_class(levels)
    knowledge, of = _with_what_differs(deployment, knowledge, keys[-1], fit)
    widen = np.zeros(len(concurrency))
    domain = fit.domain.get(keys[LEVELS.index("group")])
    if domain:
        for values, low, high in zip((concurrency, inputs, outputs), domain[0::2], domain[1::2], strict=True):
            widen = widen + _beyond(values, low, high)
    if deployment.pp > 1:
        widen = widen + np.where(concurrency > 1, _SPREAD_OVER_STAGES, 0.0)
    bands = np.searchsorted(BANDS, concurrency, side="right") * (len(PROMPTS) + 1)
    bands = bands + np.searchsorted(PROMPTS, inputs, side="right")
    kinds = [kind for kind in KINDS if kind in fit.intervals[of]]
    found = {kind: (np.empty(len(bands)), np.empty(len(bands))) for kind in kinds}
    for band in np.unique(bands):
        here = np.flatnonzero(bands == band)
        load = Load("serving", float(concurrency[here[0]]), float(inputs[here[0]]), 1.0)
        features = features_of(deployment, load)
        for kind in kinds:
            low, high = interval_of(fit, of, kind, features)
            if kind == "decode":
                low, high = _drafted(low, high, deployment.acceptance_deviation)
            found[kind][0][here], found[kind][1][here] = low, high
    ends = {kind: (low - widen, high + widen) for kind, (low, high) in found.items()}
    return KnownPoints(knowledge, KNOWN_AS[knowledge], ends, float(total[TTFT_SCALE]))
