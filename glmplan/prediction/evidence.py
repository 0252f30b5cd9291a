"""Evidence of a case: level, text, and width of the 90 % intervals.

Intervals come from errors on held-out runs. The evidence level gives the base interval; scatter of similar runs gives a
factor on its width. Factors of a measured deployment depend on engine, accelerator, model, format and load. Others
depend on features that carry over: load, prompt, link, kinds of blocks, speculative decoding. TTFT has three kinds: at
high concurrency it is mostly queueing, which errs more and to one side; with cached prompts only the queueing is left.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from glmplan.catalog.caching import remembered
from glmplan.catalog.engines.limitations import engine_names
from glmplan.catalog.files import fits_folder, read_toml
from glmplan.costs.step.model import PARAMETERS, FrontPoints, step_time
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.distribution import NORMAL
from glmplan.prediction.effects import (
    COLUMNS,
    FRONT,
    KNOWN_AS,
    LEVELS,
    REFERENCES,
    SCALE,
    SITE_NOISE,
    TTFT_SCALE,
    Effects,
    keys_of,
    kind_of,
    knowledge_class,
    load_effects,
    measured_build,
    of_machine,
    shape_of,
    shipped_effects,
    site_spread,
)
from glmplan.prediction.load import Load, metrics_of
from glmplan.prediction.power import limit_deviation, limit_measured
from glmplan.prediction.step_models import runs_on_accelerators, step_parameters, step_tables
from glmplan.units import QUANTILE_90, Ratio, TokensArray

if TYPE_CHECKING:
    from glmplan.costs.offload.work import OffloadFit

__all__ = [
    "BANDS",
    "EVERYTHING",
    "FILE",
    "KINDS",
    "LIKE",
    "MEASURED_FEATURES",
    "NEVER_THERE",
    "NOTHING",
    "OTHER_FEATURES",
    "PROMPTS",
    "STEPS",
    "Evidence",
    "EvidenceOfPoints",
    "IntervalTerms",
    "band_of",
    "evidence_from_fit",
    "evidence_of_offloading",
    "evidence_of_points",
    "evidence_unified_memory",
    "factor_key",
    "features_of",
    "interval_of",
    "kind_at",
    "narrowed",
    "refused_widths",
    "site_deviation",
    "slopes_of",
    "stated_ratios",
]


#: upper bounds of the concurrency bands [-]
BANDS: tuple[float, ...] = (1.5, 4.5, 16.5, 64.5, 256.5)
#: upper bounds of the prompt bands; front end and launches dominate short ones [token]
PROMPTS: tuple[float, ...] = (300.0, 1500.0, 5000.0, 20000.0)
#: features of the width for another load of a measured sweep
MEASURED_FEATURES: tuple[str, ...] = ("engine", "accelerator", "model", "format", "load of engine", "model of engine")
#: bands in which TTFT has a kind of its own
_MANY: tuple[str, ...] = ("65-256", "257 and more")
#: levels at which the engine was never measured on the accelerator; then those at which it was
NEVER_THERE: tuple[str, ...] = ("model", "engine", "nothing")
_MEASURED_THERE: tuple[str, ...] = ("configuration", "group", "pair", "format", "accelerator")
#: kinds of metric whose intervals differ by what is stated
_BY_STATED: tuple[str, ...] = ("decode", "ttft")
#: features of the width for any other deployment
OTHER_FEATURES: tuple[str, ...] = ("load", "prompt", "link", "blocks", "drafting")


def band_of(concurrency: Ratio) -> str:
    """Return the band of a concurrency.

    Examples
    --------
    >>> band_of(1), band_of(32), band_of(4096)
    ('1', '17-64', '257 and more')
    """
    return ("1", "2-4", "5-16", "17-64", "65-256", "257 and more")[bisect_right(BANDS, concurrency)]


def features_of(deployment: Deployment, load: Load) -> dict[str, str]:
    """Return the features on which the width of an interval depends."""
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
        "stated": "no" if deployment.assumed else "yes",
    }


def kind_at(kind: str, load: str, cached: str = "no", stated: str = "yes") -> str:
    """Return the kind of interval at a load.

    ``ttft_many`` is TTFT above concurrency 64, ``ttft_many_cached`` the same with cached prompts. Decoding and TTFT of
    rows whose settings are not all stated have kinds of their own; queueing and prefill have too few groups for that.

    Examples
    --------
    >>> kind_at("ttft", "17-64"), kind_at("ttft", "65-256"), kind_at("decode", "65-256")
    ('ttft', 'ttft_many', 'decode')
    >>> kind_at("decode", "17-64", stated="no")
    'decode_unstated'
    """
    if kind == "ttft" and load in _MANY:
        return "ttft_many_cached" if cached == "yes" else "ttft_many"
    return f"{kind}_unstated" if stated == "no" and kind in _BY_STATED else kind


def factor_key(kind: str, feature: str, value: str) -> str:
    """Return the name of a factor in the table of factors.

    Examples
    --------
    >>> factor_key("ttft", "engine", "vllm")
    'ttft engine: vllm'
    """
    return f"{kind} {feature}: {value}"


def interval_of(effects: Effects, knowledge: str, kind: str, features: dict[str, str]) -> tuple[float, float]:
    """Return the 90 % interval of log(measured / predicted).

    An engine never measured on the accelerator has at least the widest interval of any measured engine: levels are
    fitted separately, and few runs of unmeasured engines need not give a wider one.
    """
    ends = effects.intervals[knowledge]
    here = kind_at(kind, features["load"], features["cached"], features["stated"])
    # an older fit has one kind of TTFT
    kind = here if here in ends else kind
    low, high = ends[kind]
    if knowledge in NEVER_THERE:
        measured = [
            effects.intervals[name][kind] for name in _MEASURED_THERE if kind in effects.intervals.get(name, {})
        ]
        low, high = min([low, *(one[0] for one in measured)]), max([high, *(one[1] for one in measured)])
    if knowledge == "site":
        return low, high
    names = MEASURED_FEATURES if knowledge == "sweep" else OTHER_FEATURES
    factor = 1.0
    for name in names:
        factor *= effects.widths.get(factor_key(kind, name, features[name]), 1.0)
    return low * factor, high * factor


#: names beside kinds of assumption: settings as they are, and all of them stated
NOTHING, EVERYTHING = "nothing more", "everything"
#: kinds of interval that a plan needs
KINDS: tuple[str, ...] = ("decode", "ttft", "prefill")
#: kinds of statistics that the fit is not made to → kinds whose widest interval they take where a fit has none of their
#: own
LIKE: dict[str, tuple[str, ...]] = {
    "ttft_p99": ("ttft",),
    "tpot_p99": ("decode",),
    "itl": ("decode",),
    "itl_p99": ("decode",),
    "e2e": ("decode", "ttft"),
}
#: kinds that an unstated acceptance length widens
STEPS: tuple[str, ...] = ("decode", "tpot_p99", "itl", "itl_p99", "e2e")
#: half-width added per e-fold beyond the measured concurrency or lengths [-]
_BEYOND = 0.15
#: half-width added if requests are assumed to spread over pipeline stages: about the assumed gain [-]
_SPREAD_OVER_STAGES = 0.3


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence for a deployment under a load.

    Intervals are those of log(measured / predicted time).
    """

    knowledge: str  # evidence level, a key of `glmplan.prediction.effects.KNOWN_AS`
    basis: str  # the same as text
    outside: str  # extrapolated conditions; empty if none
    ends: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    ttft_scale: float = 0.0  # log of the factor on TTFT for queueing
    shifts: Mapping[str, float] = field(default_factory=dict)
    tails: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # see `glmplan.prediction.distribution`
    assumed: tuple[str, ...] = ()  # kinds of settings that are not stated, see `glmplan.prediction.assumptions`

    def interval(self, kind: str) -> tuple[float, float] | None:
        """Return the interval of a kind, or the hull of those it is like.

        None if there is neither.
        """
        if kind in self.ends:
            return self.ends[kind]
        alike = [self.ends[name] for name in LIKE.get(kind, ()) if name in self.ends]
        return (min(low for low, _ in alike), max(high for _, high in alike)) if alike else None


def evidence_from_fit(
    deployment: Deployment, load: Load, keys: tuple[str, ...], levels: tuple[bool, ...], ttft_scale: Ratio, fit: Effects
) -> Evidence:
    """Return the evidence from runs of engines on accelerators.

    `levels` tells for each level if its key was measured.
    """
    at_site = keys[LEVELS.index("configuration")] in fit.site
    knowledge = "site" if at_site and "site" in fit.intervals else knowledge_class(levels)
    knowledge, of = _with_what_differs(deployment, knowledge, keys[-1], fit)
    beyond, spread, outside = _outside(deployment, load, knowledge, _domains(deployment, keys, levels, fit))
    known = (knowledge, of, keys, levels, beyond, spread)
    limited = load.concurrency if deployment.rated[1] is not None else None
    features = tuple(features_of(deployment, load).items())
    intervals, tails = _ends_of(deployment, fit, known, features, limited)
    basis = _basis(deployment, knowledge)
    return Evidence(knowledge, basis, outside, intervals, ttft_scale, tails=tails, assumed=deployment.assumed)


@remembered(records=2, most=1024)
def _ends_of(
    deployment: Deployment, fit: Effects, known: tuple[Any, ...], features: tuple[tuple[str, str], ...],
    limited: float | None,
) -> tuple[dict[str, tuple[float, float]], dict[str, tuple[float, ...]]]:  # fmt: skip
    """Return the interval and the tail of each kind; many loads share them.

    `limited` is the concurrency under a power limit.
    """
    knowledge, of, keys, levels, beyond, spread = known
    at, intervals, tails = dict(features), {}, {}
    for kind in (*KINDS, *LIKE):
        if kind in fit.intervals[of]:
            apart = _apart(deployment, kind, _of_build(fit, knowledge, keys, kind), limited)
            terms = IntervalTerms(*_extrapolated(fit, (of, levels), kind, at), apart, spread)
            intervals[kind] = terms.at(beyond)
            here = kind_at(kind, at["load"], at["cached"], at["stated"])
            tails[kind] = tuple(fit.tails.get(here, NORMAL))
    return intervals, tails


def stated_ratios(deployment: Deployment, load: Load, *, measured_on: str | None = None) -> dict[str, dict[str, Ratio]]:
    """Return the upper over the lower bound with more settings stated.

    Kind of assumption, `NOTHING` or `EVERYTHING` → kind of metric (``decode``, ``ttft``) → ratio. Empty if all settings
    are stated, or where other intervals than those of left-out runs apply. Widths know whether all settings are stated,
    not which, so one of several narrows by its own error only (an acceptance length).
    """
    fit = load_effects(deployment.engine)
    if not deployment.assumed or not runs_on_accelerators(deployment):
        return {}
    keys = keys_of(deployment, measured_on=measured_on)
    total, levels = fit.sum_of(keys)
    ratios = {}
    for name in (NOTHING, *deployment.assumed, EVERYTHING):
        rest = () if name == EVERYTHING else tuple(kind for kind in deployment.assumed if kind != name)
        drafts = name in (EVERYTHING, "drafting") and deployment.acceptance is None
        asked = replace(
            deployment, assumed=rest, acceptance=deployment.tokens_per_step if drafts else deployment.acceptance
        )
        known = evidence_from_fit(asked, load, keys, levels, float(total[TTFT_SCALE]), fit)
        ratios[name] = {kind: math.exp(high - low) for kind, (low, high) in known.ends.items() if kind in _BY_STATED}
    return ratios


@dataclass(frozen=True, slots=True)
class IntervalTerms:
    """Terms of intervals of log(measured / predicted), at both bounds each.

    `at` returns the bounds for a half-width that the load adds.
    """

    #: inside the measured loads
    inside: tuple[Any, Any]
    #: widest that a load outside makes it: infinite if nothing limits it
    farthest: tuple[Any, Any]
    #: independent errors, not negative: release of the engine, acceptance length, power limit
    apart: tuple[Any, Any]
    #: added if requests are assumed to spread over pipeline stages
    stages: Any

    def at(self, beyond: Any) -> tuple[Any, Any]:
        """Return both bounds; the side of faster releases is the longer one."""
        low = np.maximum(self.inside[0] - beyond, self.farthest[0])
        high = np.minimum(self.inside[1] + beyond, self.farthest[1])
        return -np.hypot(low, self.apart[0]) - self.stages, np.hypot(high, self.apart[1]) + self.stages


def _extrapolated(
    fit: Effects, evidence: tuple[str, tuple[bool, ...]], kind: str, features: dict[str, str]
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return an interval inside the measured loads of a group, and its widest.

    Outside, the interval is at most that of a group never measured, which holds for every load.
    """
    of, levels = evidence
    low, high = interval_of(fit, of, kind, features)
    own = ("group", "configuration")
    unknown = tuple(known and name not in own for name, known in zip(LEVELS, levels, strict=True))
    without = knowledge_class(unknown)
    if without == of or without in NEVER_THERE or kind not in fit.intervals.get(without, {}):
        return (low, high), (-math.inf, math.inf)
    least, most = interval_of(fit, without, kind, features)
    return (low, high), (min(low, least), max(high, most))


def _of_build(fit: Effects, knowledge: str, keys: tuple[str, ...], kind: str) -> tuple[float, float]:
    """Return what an unmeasured release adds below and above an interval.

    A measured group has the errors of forward-in-time scores where none of its runs says what the release changes: they
    hold the effect of the engine's release, which those fits did not know either. Other groups have at least the spread
    of the engine's releases where this one is not stated or was never measured.
    """
    below, above = fit.later.get(kind, (0.0, 0.0)) if knowledge in _NO_RELEASE else (0.0, 0.0)
    release = keys[_ENGINE_RELEASE]
    stated = release in fit.values.get("engine_release", {}) and not release.endswith(REFERENCES)
    if stated or knowledge in ("site", *_OTHER_RELEASE.values()):
        return below, above
    spread = QUANTILE_90 * float(fit.spread[_ENGINE_RELEASE, _LARGEST.get(kind, _LARGEST["decode"])])
    return max(below, spread), max(above, spread)


def _apart(deployment: Deployment, kind: str, of_build: tuple[float, float], requests: Any) -> tuple[Any, Any]:
    """Return the independent errors below and above an interval.

    Those of the release, and where they apply of the acceptance length and of an unmeasured power limit.
    """
    below, above = of_build
    if kind in STEPS:
        low, above = _drafted(below, above, deployment.acceptance_deviation)
        below = -low
    part, limit = deployment.rated
    if limit is None or limit_measured(part, limit):
        return below, above
    faster, slower = limit_deviation(part, limit, kind, requests)
    return np.hypot(below, faster), np.hypot(above, slower)


def _basis(deployment: Deployment, knowledge: str) -> str:
    """Return the evidence text; names the accelerator of another rating."""
    part, limit = deployment.rated
    other = "" if part.name == deployment.accelerator.name else f", of {part.name} under {limit:g} W"
    return f"{KNOWN_AS[knowledge]}{other}"


_ENGINE_RELEASE = LEVELS.index("engine_release")
#: column with the largest part of a kind of metric: of a step the bytes of weights, of a prompt their products
_LARGEST: dict[str, int] = {
    "decode": COLUMNS.index("gemm_bytes_slowdown"),
    **dict.fromkeys(("ttft", "ttft_p99", "prefill"), COLUMNS.index("gemm_flop_slowdown")),
}
#: the same levels if only other releases of the engine were measured
_OTHER_RELEASE = {"configuration": "release", "group": "group_release"}
#: levels at which no run says what the release changes: other releases, and engines never measured on the accelerator
_NO_RELEASE = frozenset((*_OTHER_RELEASE.values(), *NEVER_THERE))


def _with_what_differs(deployment: Deployment, knowledge: str, release_key: str, fit: Effects) -> tuple[str, str]:
    """Return the evidence level and the level whose intervals apply.

    No run with LoRA adapters was measured, and none with unlike pipeline stages, whose weakest accelerator counts. The
    intervals of a measured configuration or group come from errors on what one campaign measured and others predict,
    because other machines and builds differ.
    """
    if deployment.settings.adapters and knowledge in ("site", *_OTHER_RELEASE):
        return "adapters", "pair" if knowledge == "site" else "format"
    if deployment.stages:
        levels = [knowledge_class(fit.sum_of(keys_of(one))[1]) for one in deployment.kinds.values()]
        weakest = max((*levels, "unlike"), key=list(KNOWN_AS).index)
        return weakest, "format" if weakest == "unlike" else weakest
    same_release = knowledge not in _OTHER_RELEASE or measured_build(fit, release_key)
    return knowledge if same_release else _OTHER_RELEASE[knowledge], knowledge


def _drafted(low: Any, high: Any, deviation: float) -> tuple[Any, Any]:
    """Return an interval widened by the independent error of acceptance."""
    drafting = QUANTILE_90 * deviation
    return -np.hypot(low, drafting), np.hypot(high, drafting)


def evidence_of_offloading(
    machine: str = "",
    *,
    certain: bool = True,
    basis: str = "",
    outside: str = "",
    drafting: Ratio = 0.0,
    fit: OffloadFit | None = None,
) -> Evidence:
    """Return the evidence from published runs with weights in host memory.

    Only a machine that is certainly the measured one gets the narrow interval of its own runs. `drafting` is the log
    deviation of the tokens per step.
    """
    from glmplan.costs.offload.work import load_offload_fit

    fit = fit or load_offload_fit()
    intervals, shifts = {}, {}
    for kind, of in (("decode", "decode"), ("ttft", "prefill"), ("prefill", "prefill")):
        # the fit is of rates, the interval of times
        shifts[kind] = -fit.of_machine(machine, of)[0]
        _, low, high = fit.of_machine(machine if certain else "", of)
        intervals[kind] = (-high, -low)
    intervals["decode"] = _drafted(*intervals["decode"], drafting)
    text = "; ".join(part for part in (_OFFLOADING, basis) if part)
    return Evidence("engine", text, outside, intervals, shifts=shifts)


_OFFLOADING = "offload model fitted to published hybrid runs"


def evidence_unified_memory(deployment: Deployment, load: Load) -> Evidence:
    """Return the evidence from published runs on unified-memory machines."""
    from glmplan.costs.offload.work import load_offload_fit

    low, high = load_offload_fit().intervals["unified"]
    outside = f"no matrix rate of {deployment.accelerator.full_name} is published: no prediction of prefill and TTFT"
    if load.phase == "serving":
        outside += "; rates of decoding only"
    basis = "decode model by bytes read, fitted to published runs on unified-memory machines"
    return Evidence("engine", basis, outside, {"decode": _drafted(-high, -low, deployment.acceptance_deviation)})


def _domains(
    deployment: Deployment, keys: tuple[str, ...], levels: tuple[bool, ...], fit: Effects
) -> tuple[tuple[float, ...], ...]:
    """Return the measured ranges of concurrency, input and output.

    They are those of the group. For an engine never measured on the accelerator, the groups of other engines with this
    model and accelerator count.
    """
    own = fit.domain.get(keys[LEVELS.index("group")])
    if own:
        return (tuple(own),)
    if levels[LEVELS.index("engine_accelerator")]:
        return ()
    return _domains_of_others(fits_folder(), deployment.engine, deployment.rated[0].name, deployment.shape)


@lru_cache(maxsize=256)
def _domains_of_others(fits: Path, engine: str, part: str, shape: str) -> tuple[tuple[float, ...], ...]:
    """Return the measured ranges of other engines, by the fits of a folder.

    A load is never farther from a range than from a range inside it, so ranges around others are left out.
    """
    domains = []
    for other in engine_names():
        if other != engine:
            prefix = f"{other} {part} {shape} "
            domains += [tuple(ends) for key, ends in shipped_effects(other).domain.items() if key.startswith(prefix)]
    domains = list(dict.fromkeys(domains))
    return tuple(one for one in domains if not any(one != other and _around(one, other) for other in domains))


def _around(domain: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Return True if a measured range contains another one."""
    return all(
        low <= least and most <= high
        for low, high, least, most in zip(domain[0::2], domain[1::2], other[0::2], other[1::2], strict=True)
    )


#: numbers of a load with their units, in the order of a domain
_LOAD = (("concurrency", ""), ("input", " tokens"), ("output", " tokens"))


def _outside(
    deployment: Deployment, load: Load, knowledge: str, domains: tuple[tuple[float, ...], ...]
) -> tuple[float, float, str]:
    """Return half-widths to add for the load and for stages, with reasons."""
    reasons = (
        [] if knowledge in ("site", "configuration", "release", "group", "group_release") else [KNOWN_AS[knowledge]]
    )
    point = (load.concurrency, load.input_tokens + load.context, load.output_tokens)
    farthest: tuple[float, list[str]] = (0.0, [])
    for domain in domains:
        apart, said = 0.0, []
        for (name, unit), value, low, high in zip(_LOAD, point, domain[0::2], domain[1::2], strict=True):
            # most loads are inside the ranges and need no arrays
            beyond = 0.0 if 0.5 * low <= value <= 2.0 * high else float(_beyond(np.asarray(value), low, high))
            if beyond:
                ends = " to ".join(dict.fromkeys((f"{low:,.6g}", f"{high:,.6g}")))
                said.append(f"{name} {value:,.6g}{unit} outside the measured {ends}")
                apart += beyond
        farthest = max(farthest, (apart, said), key=lambda one: one[0])
    spread = 0.0
    # ranges of other engines do not bound this one
    reasons += [] if knowledge in NEVER_THERE else farthest[1]
    if deployment.pp > 1 and load.bunched == 1.0 and load.concurrency > 1:
        reasons.append("pipeline-parallel runs were measured as bursts in one micro-batch only")
        spread = _SPREAD_OVER_STAGES
    return farthest[0], spread, "; ".join(reasons)


def _beyond(value: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the log half-width to add for values outside the measured range."""
    outside = (value > 0) & ((value < 0.5 * low) | (value > 2.0 * high))
    edge = np.where(value < low, low, high)
    ratio = np.where(outside, value, 1.0) / np.where(outside, np.maximum(edge, 1.0), 1.0)
    return np.where(outside, _BEYOND * np.abs(np.log(ratio)), 0.0)


@dataclass(frozen=True, slots=True)
class EvidenceOfPoints:
    """Evidence for n loads of one deployment, intervals as arrays."""

    knowledge: str
    basis: str
    #: kind → terms of its intervals
    terms: Mapping[str, IntervalTerms]
    #: measured ranges of concurrency, input and output; the farthest counts
    domains: tuple[tuple[float, ...], ...]
    #: half-widths that the loads add
    beyond: np.ndarray
    ttft_scale: float

    @property
    def ends(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return the intervals of log(measured / predicted) of each kind."""
        return {kind: terms.at(self.beyond) for kind, terms in self.terms.items()}


def evidence_of_points(
    deployment: Deployment, concurrency: np.ndarray, inputs: TokensArray, outputs: TokensArray, *, fit: Effects
) -> EvidenceOfPoints:
    """Return the evidence for many loads, with the rules of one load."""
    keys = keys_of(deployment)
    total, levels = fit.sum_of(keys)
    at_site = keys[LEVELS.index("configuration")] in fit.site
    knowledge = "site" if at_site and "site" in fit.intervals else knowledge_class(levels)
    knowledge, of = _with_what_differs(deployment, knowledge, keys[-1], fit)
    domains, widen = _domains(deployment, keys, levels, fit), np.zeros(len(concurrency))
    for domain in domains:
        apart = np.zeros(len(concurrency))
        for values, low, high in zip((concurrency, inputs, outputs), domain[0::2], domain[1::2], strict=True):
            apart = apart + _beyond(values, low, high)
        widen = np.maximum(widen, apart)
    spread = np.where(concurrency > 1, _SPREAD_OVER_STAGES if deployment.pp > 1 else 0.0, 0.0)
    bands = np.searchsorted(BANDS, concurrency, side="right") * (len(PROMPTS) + 1)
    bands, places = np.unique(bands + np.searchsorted(PROMPTS, inputs, side="right"), return_inverse=True)
    firsts = [int(np.flatnonzero(places == band)[0]) for band in range(len(bands))]
    features = [
        features_of(deployment, Load(float(concurrency[first]), float(inputs[first]), 1.0, phase="serving"))
        for first in firsts
    ]
    terms = {}
    for kind in (kind for kind in KINDS if kind in fit.intervals[of]):
        # bands, inside and farthest, low and high
        pairs = np.array([_extrapolated(fit, (of, levels), kind, one) for one in features])[places]
        errors = _apart(deployment, kind, _of_build(fit, knowledge, keys, kind), concurrency)
        both = [np.broadcast_to(one, len(places)) for one in errors]
        terms[kind] = IntervalTerms(
            (pairs[:, 0, 0], pairs[:, 0, 1]), (pairs[:, 1, 0], pairs[:, 1, 1]), (both[0], both[1]), spread
        )
    basis = _basis(deployment, knowledge)
    return EvidenceOfPoints(knowledge, basis, terms, domains, widen, float(total[TTFT_SCALE]))


#: factors for rows that no fit uses: such rows miss their interval more often
FILE = "refused.toml"


def refused_widths() -> dict[str, float]:
    """Return the factor on the log interval of rows that no fit uses.

    Kind of metric (``ttft``, ``prefill``, ``decode``) → factor of at least 1. Kinds that the file lacks have none, and
    neither has a fit made without the file.

    Examples
    --------
    >>> refused_widths()["decode"] > 1.5
    True
    """
    return _read(fits_folder())


@lru_cache(maxsize=8)
def _read(folder: Path) -> dict[str, float]:
    if not os.path.exists(folder / FILE):
        return {}
    widths = {kind: max(float(row[0]), 1.0) for kind, row in read_toml(folder / FILE)["stretch"].items()}
    like = {kind: [widths[name] for name in names if name in widths] for kind, names in LIKE.items()}
    return {kind: max(factors) for kind, factors in like.items() if factors} | widths


#: measured metric → its kind of interval
_MEASURED: dict[str, str] = {"ttft": "ttft", "tpot": "decode"}


def site_deviation(deployment: Deployment, fit: Effects) -> np.ndarray:
    """Return the prior log deviation of a machine, for each column.

    It includes all levels without measurements and the machine's own.
    """
    keys = keys_of(deployment)
    levels = of_machine(keys, fit.sum_of(keys)[1])
    return np.asarray(np.sqrt((site_spread(fit.spread)[levels] ** 2).sum(axis=0)))


def narrowed(deployment: Deployment, loads: Sequence[Load]) -> list[list[dict[str, float]]]:
    """Return interval half-widths after a run under each load.

    For each measured load, for each load: ``ttft`` and ``tpot`` → half-width of the 90 % interval of the logarithm.
    Empty where runs of a site change nothing (experts on processors, unified memory).

    Notes
    -----
    Around the fit the logarithm of a metric is linear in the effects: its slopes are the shares of its time. The
    machine's deviation has the prior of `site_deviation`, a run the noise of `SITE_NOISE`; the posterior covariance,
    `(P⁻¹ + J' N⁻¹ J)⁻¹`, does not depend on the measured values [1]_. The interval of level ``site`` is added: the
    error of the step model between the points of a sweep, as in `glmplan validate --calibrate-on`. Not modelled: a
    disturbed run, and a shift of the median.

    References
    ----------
    .. [1] C. E. Rasmussen, C. K. I. Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, section 2.1.
    """
    fit = load_effects(deployment.engine)
    if not runs_on_accelerators(deployment) or deployment.structure.part.is_processor or "site" not in fit.intervals:
        return []
    slopes = slopes_of(deployment, loads, fit)
    deviation = site_deviation(deployment, fit)
    missed = [_missed(deployment, load, fit) for load in loads]
    half_widths = []
    for measured in slopes:
        # effects over their deviation have unit covariance before the run
        seen = np.array([row * deviation / SITE_NOISE[_MEASURED[name]] for name, row in measured.items()])
        after = np.linalg.inv(np.eye(len(COLUMNS)) + seen.T @ seen)
        half_widths.append([
            {name: float(np.hypot(QUANTILE_90 * np.sqrt(row * deviation @ after @ (row * deviation)), missed[n][name]))
             for name, row in asked.items()}
            for n, asked in enumerate(slopes)
        ])  # fmt: skip
    return half_widths


def _missed(deployment: Deployment, load: Load, fit: Effects) -> Mapping[str, float]:
    """Return the half-width of each metric between the points of a sweep."""
    features, ends = features_of(deployment, load), fit.intervals["site"]
    kinds = {
        name: kind_at(kind, features["load"], features["cached"], features["stated"])
        for name, kind in _MEASURED.items()
    }
    pairs = {name: ends.get(kind, ends[_MEASURED[name]]) for name, kind in kinds.items()}
    return {name: (high - low) / 2.0 for name, (low, high) in pairs.items()}


def slopes_of(deployment: Deployment, loads: Sequence[Load], fit: Effects) -> list[dict[str, np.ndarray]]:
    """Return the log derivative of each metric by column, for each load, [-]"""
    total, _ = fit.sum_of(keys_of(deployment))
    parameters = step_parameters(deployment, total)
    seen = [metrics_of(load) for load in loads]
    fronts = [
        FrontPoints(one.arrivals, one.prompt, load.pass_tokens, one.arrivals * load.idle)
        for one, load in zip(seen, loads, strict=True)
    ]
    tables = step_tables([deployment] * len(loads), [one.points for one in seen], fronts)
    ((_, table),) = tables  # one deployment has one table
    last = np.concatenate([[0], np.cumsum([len(one.decode_requests) for one in seen])])
    slopes = []
    for place, (one, load) in enumerate(zip(seen, loads, strict=True)):
        work = table[int(last[place]) : int(last[place + 1])]
        rows: dict[str, np.ndarray] = {}
        for name in _MEASURED:
            if name not in one.figures or not (whole := one.figures[name].weights @ work).any():
                continue
            # a step time is a sum over work, and so is a sum of step times
            shares = step_time(whole[None, :], parameters[None, :]).shares[0]
            rows[name] = np.zeros(len(COLUMNS))
            rows[name][: len(PARAMETERS)] = shares
            rows[name][SCALE] = shares.sum() - shares[list(FRONT)].sum()
            rows[name][TTFT_SCALE] = load.waiting * (name == "ttft")
        slopes.append(rows)
    return slopes
