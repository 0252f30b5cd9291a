"""What is known of a case: its class, its words, and how wide the intervals of its figures are."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glmplan.catalog.engines.limitations import engine_names
from glmplan.catalog.files import fits_folder, read_toml
from glmplan.costs.step.model import PARAMETERS, FrontPoints, step_time
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import (
    BY_OTHERS,
    COLUMNS,
    FRONT,
    KNOWN_AS,
    LEVELS,
    SCALE,
    SITE_NOISE,
    TTFT_SCALE,
    Effects,
    keys_of,
    kind_of,
    knowledge_class,
    load_effects,
    measured_build,
    shape_of,
    shipped_effects,
    site_spread,
)
from glmplan.prediction.load import Load, observables
from glmplan.prediction.step_models import runs_on_accelerators, step_parameters, step_tables
from glmplan.units import QUANTILE_90, Ratio, TokensArray

if TYPE_CHECKING:
    from glmplan.costs.offload.work import OffloadFit

__all__ = [
    "BANDS",
    "FILE",
    "KINDS",
    "MEASURED_FEATURES",
    "NEVER_THERE",
    "OTHER_FEATURES",
    "PROMPTS",
    "Known",
    "KnownPoints",
    "band_of",
    "factor_key",
    "features_of",
    "interval_of",
    "kind_at",
    "known_by_bytes",
    "known_by_engine",
    "known_of_offloading",
    "known_of_points",
    "narrowed",
    "refused_widths",
    "site_deviation",
]


# The 90 % interval of a prediction, from the errors that fits made on runs they had not seen.
#
# What was known of a deployment gives the base interval; how widely its like scattered gives a factor on the width. A
# deployment that was measured itself takes the factors of its engine, part, model, format and load; of others, where
# such factors do not carry over, those of the load and the prompt, of the link between accelerators, of the kinds of
# attention and feed-forward blocks, and of drafting. Of TTFT there are three kinds: where many requests are in
# flight, it
# is how long a prompt waits for the others, which errs more, and to one side; and where their prompts are in the cache,
# nothing but that wait is left.

#: upper ends of the bands of concurrency, [-]
BANDS: tuple[float, ...] = (1.5, 4.5, 16.5, 64.5, 256.5)
#: upper ends of the bands of prompts: of short ones the front end and launches cost most, [token]
PROMPTS: tuple[float, ...] = (300.0, 1500.0, 5000.0, 20000.0)
#: what the width of a measured deployment depends on
MEASURED_FEATURES: tuple[str, ...] = ("engine", "accelerator", "model", "format", "load of engine", "model of engine")
#: bands in which first tokens are a kind of their own
_MANY: tuple[str, ...] = ("65-256", "257 and more")
#: classes of what is known where the engine was never measured on the part, and those where it was
NEVER_THERE: tuple[str, ...] = ("model", "engine", "nothing")
_MEASURED_THERE: tuple[str, ...] = ("group", "pair", "format", "accelerator")
#: what the width of any other depends on
OTHER_FEATURES: tuple[str, ...] = ("load", "prompt", "link", "blocks", "drafting")


def band_of(concurrency: Ratio) -> str:
    """Band of a concurrency.

    Examples
    --------
    >>> band_of(1), band_of(32), band_of(4096)
    ('1', '17-64', '257 and more')
    """
    return ("1", "2-4", "5-16", "17-64", "65-256", "257 and more")[bisect_right(BANDS, concurrency)]


def features_of(deployment: Deployment, load: Load) -> dict[str, str]:
    """What the width of an interval may depend on."""
    band, model = band_of(load.concurrency), shape_of(deployment)
    prompt = bisect_right(PROMPTS, load.input_tokens + load.context)
    return {
        "engine": deployment.engine,
        "accelerator": deployment.rated[0].name,
        "model": model,
        "format": deployment.weights,
        "load of engine": f"{deployment.engine} {band}",
        "model of engine": f"{deployment.engine} {model}",
        "load": band,
        "prompt": (*(f"to {end:.0f}" for end in PROMPTS), "longer")[prompt],
        "link": deployment.link.experts.kind if deployment.tp * deployment.dp > 1 else "none",
        "blocks": kind_of(deployment),
        "drafting": "yes" if deployment.draft_tokens else "no",
        "cached": "yes" if load.prefix_cached else "no",
    }


def kind_at(kind: str, load: str, cached: str = "no") -> str:
    """Kind of interval at a load.

    - `load`: Band of the concurrency, as `band_of` names it.
    - `cached`: ``yes`` where prompts are in the cache already.
    - Returns: ``ttft_many`` for first tokens with more than 64 requests in flight, ``ttft_many_cached`` where their
      prompts are in the cache, else the same kind.

    Examples
    --------
    >>> kind_at("ttft", "17-64"), kind_at("ttft", "65-256"), kind_at("decode", "65-256")
    ('ttft', 'ttft_many', 'decode')
    """
    if kind != "ttft" or load not in _MANY:
        return kind
    return "ttft_many_cached" if cached == "yes" else "ttft_many"


def factor_key(kind: str, feature: str, value: str) -> str:
    """Name of a factor in the table of factors.

    Examples
    --------
    >>> factor_key("ttft", "engine", "vllm")
    'ttft engine: vllm'
    """
    return f"{kind} {feature}: {value}"


def interval_of(effects: Effects, knowledge: str, kind: str, features: dict[str, str]) -> tuple[float, float]:
    """Interval of measured over predicted.

    - `knowledge`: Class of what is known, one of `glmplan.prediction.effects.KNOWN_AS`.
    - Returns: Ends of the 90 % interval in logarithms.

    Notes
    -----
    The interval of an engine that was never measured on the part is at least as wide as that of any engine that was:
    the classes are fitted apart, and with few runs of the unmeasured ones their widths need not rise by themselves.
    """
    ends, here = effects.intervals[knowledge], kind_at(kind, features["load"], features["cached"])
    # an older fit has one kind of first tokens
    kind = here if here in ends else kind
    low, high = ends[kind]
    if knowledge in NEVER_THERE:
        measured = [
            effects.intervals[name][kind] for name in _MEASURED_THERE if kind in effects.intervals.get(name, {})
        ]
        low, high = min([low, *(one[0] for one in measured)]), max([high, *(one[1] for one in measured)])
    if knowledge == "site":
        return low, high
    names = MEASURED_FEATURES if knowledge == "configuration" else OTHER_FEATURES
    factor = 1.0
    for name in names:
        factor *= effects.widths.get(factor_key(kind, name, features[name]), 1.0)
    return low * factor, high * factor


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
    deployment: Deployment, load: Load, keys: tuple[str, ...], levels: tuple[bool, ...], ttft_scale: Ratio, fit: Effects
) -> Known:
    """What runs of engines on accelerators tell of a case.

    `levels`: For each level whether its key was measured.
    """
    at_site = keys[LEVELS.index("configuration")] in fit.site
    knowledge = "site" if at_site and "site" in fit.intervals else knowledge_class(levels)
    knowledge, of = _with_what_differs(deployment, knowledge, keys[-1], fit)
    beyond, outside = _outside(deployment, load, knowledge, _domains(deployment, keys, levels, fit))
    features = features_of(deployment, load)
    ends = {}
    for kind in KINDS:
        if kind in fit.intervals[of]:
            low, high = interval_of(fit, of, kind, features)
            if kind == "decode":
                low, high = _drafted(low, high, deployment.acceptance_deviation)
            ends[kind] = (low - beyond, high + beyond)
    return Known(knowledge, _basis(deployment, knowledge), outside, ends, ttft_scale)


def _basis(deployment: Deployment, knowledge: str) -> str:
    """Say what is known, and of which part, where runs of another rating of the same card answer."""
    part, limit = deployment.rated
    other = "" if part.name == deployment.accelerator.name else f", of {part.name} under {limit:g} W"
    return f"{KNOWN_AS[knowledge]}{other}"


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
    drafting: Ratio = 0.0,
    fit: OffloadFit | None = None,
) -> Known:
    """What published runs with weights in host memory tell of a case.

    - `machine`: The machine, where its own runs were measured.
    - `certain`: Whether it is certain that it is this machine: only then does it have the narrow interval of its own
      runs.
    - `drafting`: Deviation of the logarithm of the tokens a step gains.
    - Returns: Class, words, intervals and what the machine's own runs taught.
    """
    from glmplan.costs.offload.work import load_offload_fit

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
    """What published runs on machines with one memory tell of a case."""
    from glmplan.costs.offload.work import load_offload_fit

    fit = fit or load_offload_fit()
    low, high = fit.intervals["unified"]
    outside = f"no matrix rate of {deployment.accelerator.full_name} is published: no prediction of prefill and TTFT"
    if load.phase == "serving":
        outside += "; rates of decoding only"
    basis = "decode model by bytes read, fitted to published runs on unified-memory machines"
    return Known("engine", basis, outside, {"decode": _drafted(-high, -low, deployment.acceptance_deviation)})


def _domains(
    deployment: Deployment, keys: tuple[str, ...], levels: tuple[bool, ...], fit: Effects
) -> tuple[tuple[float, ...], ...]:
    """Return the measured ranges of concurrency, input and output that bound what is known.

    They are those of the group. An engine that was never measured on the part knows no more than the engines that were:
    their groups of this model on the part count for it.
    """
    own = fit.domain.get(keys[LEVELS.index("group")])
    if own:
        return (tuple(own),)
    if levels[LEVELS.index("engine_accelerator")]:
        return ()
    return _domains_of_others(fits_folder(), deployment.engine, deployment.accelerator.name, deployment.shape)


@lru_cache(maxsize=256)
def _domains_of_others(fits: Path, engine: str, part: str, shape: str) -> tuple[tuple[float, ...], ...]:
    """Return the measured ranges of other engines with a model on a part, by the fits of a folder."""
    found = []
    for other in engine_names():
        if other != engine:
            prefix = f"{other} {part} {shape} "
            found += [tuple(ends) for key, ends in shipped_effects(other).domain.items() if key.startswith(prefix)]
    return tuple(found)


def _outside(
    deployment: Deployment, load: Load, knowledge: str, domains: tuple[tuple[float, ...], ...]
) -> tuple[float, str]:
    """How far the load lies beyond what was measured (half-width to add, words)."""
    words = [] if knowledge in ("site", "configuration", "release", "group", "group_release") else [KNOWN_AS[knowledge]]
    asked = (load.concurrency, load.input_tokens + load.context, load.output_tokens)
    farthest: tuple[float, list[str]] = (0.0, [])
    for domain in domains:
        apart, said = 0.0, []
        for name, value, low, high in zip(
            ("concurrency", "input", "output"), asked, domain[0::2], domain[1::2], strict=True
        ):
            # most loads lie within: those need no arrays
            beyond = 0.0 if 0.5 * low <= value <= 2.0 * high else float(_beyond(np.asarray(value), low, high))
            if beyond:
                said.append(f"{name} {value:g} outside the measured {low:g}-{high:g}")
                apart += beyond
        farthest = max(farthest, (apart, said), key=lambda one: one[0])
    widen = farthest[0]
    # the ranges of others are no range of this engine
    words += [] if knowledge in NEVER_THERE else farthest[1]
    if deployment.pp > 1 and load.bunched == 1.0 and load.concurrency > 1:
        words.append("pipeline-parallel runs were measured as bursts in one micro-batch only")
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
    deployment: Deployment, concurrency: np.ndarray, inputs: TokensArray, outputs: TokensArray, *, fit: Effects
) -> KnownPoints:
    """What runs of engines tell of many loads of whole requests, with the rules of `known_by_engine`."""
    keys = keys_of(deployment)
    total, levels = fit.sum_of(keys)
    at_site = keys[LEVELS.index("configuration")] in fit.site
    knowledge = "site" if at_site and "site" in fit.intervals else knowledge_class(levels)
    knowledge, of = _with_what_differs(deployment, knowledge, keys[-1], fit)
    widen = np.zeros(len(concurrency))
    for domain in _domains(deployment, keys, levels, fit):
        apart = np.zeros(len(concurrency))
        for values, low, high in zip((concurrency, inputs, outputs), domain[0::2], domain[1::2], strict=True):
            apart = apart + _beyond(values, low, high)
        widen = np.maximum(widen, apart)
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
    return KnownPoints(knowledge, _basis(deployment, knowledge), ends, float(total[TTFT_SCALE]))


# How much wider the interval of a row is that no fit takes: such rows lie outside more often than others.

#: name of the file in the folder of the fits
FILE = "refused.toml"


def refused_widths() -> dict[str, float]:
    """By how much the ends of an interval are stretched where a row is marked with a reason why no fit takes it.

    Returns: Kind of figure (``ttft``, ``prefill``, ``decode``) → factor on the logarithms of both ends over the
      value, at least 1; kinds that the file lacks keep their ends, and all do beside fits that were made without it.

    Examples
    --------
    >>> refused_widths()["decode"] > 1.5
    True
    """
    return _read(fits_folder())


@lru_cache(maxsize=8)
def _read(folder: Path) -> dict[str, float]:
    if not (folder / FILE).exists():
        return {}
    return {kind: max(float(row[0]), 1.0) for kind, row in read_toml(folder / FILE)["stretch"].items()}


# How far a run of a deployment would narrow the intervals of its figures, before anybody has measured it.

#: figure that a step of a ladder measures → its kind of interval
_MEASURED: dict[str, str] = {"ttft": "ttft", "tpot": "decode"}
_CONFIGURATION, _RELEASE = LEVELS.index("configuration"), LEVELS.index("release")


def site_deviation(deployment: Deployment, fit: Effects) -> np.ndarray:
    """How far a machine may differ from the fit, in each column: all levels that nobody measured, and its own."""
    _, known = fit.sum_of(keys_of(deployment))
    levels = [level for level in range(_RELEASE) if level == _CONFIGURATION or not known[level]]
    return np.asarray(np.sqrt((site_spread(fit.spread)[levels] ** 2).sum(axis=0)))


def narrowed(
    deployment: Deployment, loads: Sequence[Load], *, effects: Effects | None = None
) -> list[list[dict[str, float]]]:
    """Compute how wide intervals would be after a run under each load.

    - `loads`: Loads that may be measured, and of which figures are asked.
    - Returns: For each load that is measured, for each load that is asked of: ``ttft`` and ``tpot`` → half the width
      of the 90 % interval of the logarithm; empty where a site's runs move nothing (experts on processors, one
      memory).

    Notes
    -----
    Around the fit the logarithm of a figure is linear in the effects: its slopes are the shares of its time. What a
    machine may differ by has the prior of `site_deviation`, a run the noise of `SITE_NOISE`; the covariance after it,
    `(P⁻¹ + J' N⁻¹ J)⁻¹`, does not depend on what will be measured [1]_. To what it leaves open is added what the form
    of a step misses between the points of a sweep, the interval of class ``site``, as `glmplan validate
    --calibrate-on` does. Not modelled: a run that is disturbed, and a middle that moves.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.1.
    """
    fit = effects or load_effects(deployment.engine)
    if not runs_on_accelerators(deployment) or deployment.structure.part.is_processor or "site" not in fit.intervals:
        return []
    slopes = _slopes(deployment, loads, fit)
    deviation = site_deviation(deployment, fit)
    missed = [_missed(deployment, load, fit) for load in loads]
    found = []
    for measured in slopes:
        # effects over their deviation have the unit covariance before the run
        seen = np.array([row * deviation / SITE_NOISE[_MEASURED[name]] for name, row in measured.items()])
        after = np.linalg.inv(np.eye(len(COLUMNS)) + seen.T @ seen)
        found.append([
            {name: float(np.hypot(QUANTILE_90 * np.sqrt(row * deviation @ after @ (row * deviation)), missed[n][name]))
             for name, row in asked.items()}
            for n, asked in enumerate(slopes)
        ])  # fmt: skip
    return found


def _missed(deployment: Deployment, load: Load, fit: Effects) -> Mapping[str, float]:
    """Half the width of what two points of a sweep leave of its others, for each figure."""
    features, ends = features_of(deployment, load), fit.intervals["site"]
    kinds = {name: kind_at(kind, features["load"], features["cached"]) for name, kind in _MEASURED.items()}
    pairs = {name: ends.get(kind, ends[_MEASURED[name]]) for name, kind in kinds.items()}
    return {name: (high - low) / 2.0 for name, (low, high) in pairs.items()}


def _slopes(deployment: Deployment, loads: Sequence[Load], fit: Effects) -> list[dict[str, np.ndarray]]:
    """For each load: figure → derivative of its logarithm by each column, (22,), [-]"""
    total, _ = fit.sum_of(keys_of(deployment))
    parameters = step_parameters(deployment, total)
    seen = [observables(load) for load in loads]
    fronts = [
        FrontPoints(one.arrivals, one.prompt, load.pass_tokens, one.arrivals * load.idle)
        for one, load in zip(seen, loads, strict=True)
    ]
    tables = step_tables([deployment] * len(loads), [one.points for one in seen], fronts)
    ((_, table),) = tables  # one deployment is alike to itself
    ends = np.concatenate([[0], np.cumsum([len(one.decode_requests) for one in seen])])
    found = []
    for place, (one, load) in enumerate(zip(seen, loads, strict=True)):
        work = table[int(ends[place]) : int(ends[place + 1])]
        rows: dict[str, np.ndarray] = {}
        for name in _MEASURED:
            if name not in one.figures or not (whole := one.figures[name].weights @ work).any():
                continue
            # a step time is a sum over work, so a sum of step times is one, too
            shares = step_time(whole[None, :], parameters[None, :]).shares[0]
            rows[name] = np.zeros(len(COLUMNS))
            rows[name][: len(PARAMETERS)] = shares
            rows[name][SCALE] = shares.sum() - shares[list(FRONT)].sum()
            rows[name][TTFT_SCALE] = load.waiting * (name == "ttft")
        found.append(rows)
    return found
