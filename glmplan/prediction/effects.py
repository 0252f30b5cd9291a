"""Effects of a deployment on the step-time parameters.

They reach from all engines to one release of one configuration. A log parameter is the sum of one effect per measured
level. A level without measurements adds only its spread, which widens the interval of unmeasured deployments. A site's
calibration starts from the spreads of `site_spread` and the noise `SITE_NOISE`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from glmplan.catalog.engines.limitations import wall_apart
from glmplan.catalog.files import fits_folder, read_toml
from glmplan.catalog.schema.engine import Conditions
from glmplan.costs.blocks.stack import is_indexed, model_features, routed_blocks
from glmplan.costs.step.model import PARAMETERS
from glmplan.errors import SpecError
from glmplan.prediction.deployment import Deployment

__all__ = [
    "COLUMNS",
    "FRONT",
    "KNOWLEDGE",
    "LEVELS",
    "OVERLAY",
    "OWN_CAMPAIGN",
    "REFERENCES",
    "RELEASES",
    "SCALE",
    "SITE_NOISE",
    "TTFT_SCALE",
    "Effects",
    "effects_in",
    "keys_of",
    "kind_of",
    "knowledge_class",
    "load_effects",
    "log_parameters",
    "measured_build",
    "of_machine",
    "shape_of",
    "shipped_effects",
    "site_spread",
]


#: levels of the hierarchy, from general to specific
LEVELS: tuple[str, ...] = (
    "all",
    "engine",
    "engine_draft",
    "engine_experts",
    "engine_wall",
    "engine_plugin",
    "engine_attention",
    "engine_protocol",
    "engine_release",
    "engine_silicon",
    "engine_accelerator",
    "engine_kind",
    "engine_silicon_kind",
    "engine_format",
    "engine_accelerator_format",
    "model",
    "engine_model",
    "group",
    "configuration",
    "release",
)
#: key endings of the reference on their level: no speculative decoding, unnamed expert kernels, no limitation whose
#: price only its own runs show, no plug-in, no named protocol, no named release
REFERENCES: tuple[str, ...] = (
    " plain", " experts unsaid", " no wall", " own kernels", " at no protocol", " release unsaid",
)  # fmt: skip
#: levels of a build: what a site measured holds them, as its later requests need not name one
RELEASES: tuple[str, ...] = ("engine_release", "release")
#: columns of an effect: step-time parameters, a factor on whole steps, a factor on TTFT
COLUMNS: tuple[str, ...] = (*PARAMETERS, "scale", "ttft_scale")
SCALE, TTFT_SCALE = len(PARAMETERS), len(PARAMETERS) + 1
#: front-end parameters, unaffected by `scale`
FRONT = tuple(PARAMETERS.index(f"{name}_seconds") for name in ("arrival", "prompt_token", "wake"))


#: evidence levels from most to least. ``sweep`` and ``layout`` are of runs whose own campaign measured the
#: configuration under other loads, or the group in another layout; a plan belongs to no campaign and has neither
KNOWLEDGE: tuple[str, ...] = (
    "sweep", "layout", "configuration", "group", "pair", "format", "accelerator", "model", "engine", "nothing",
)  # fmt: skip
#: level of a run of a measured campaign, by what is known of its configuration and group
OWN_CAMPAIGN: dict[str, str] = {"configuration": "sweep", "group": "layout"}
KNOWN_AS: dict[str, str] = {
    "site": "measured at this site in this configuration",
    "configuration": "same model, accelerator, engine and layout measured",
    "release": "same model, accelerator, engine and layout measured; engine version extrapolated",
    "group": "same model, accelerator and engine measured; layout extrapolated",
    "group_release": "same model, accelerator and engine measured; layout and engine version extrapolated",
    "pair": "model and accelerator measured separately on this engine, the accelerator in this weight format",
    "adapters": "same model, accelerator and engine measured without LoRA adapters; adapters extrapolated",
    "unlike": "pipeline stages on accelerators of several kinds, never measured together",
    "apart": "separate prefill and decode servers, never measured together",
    "format": "model and accelerator measured separately on this engine, the accelerator never in this weight format",
    "accelerator": "accelerator measured on this engine, model extrapolated",
    "model": "model measured on this engine, accelerator extrapolated",
    "engine": "engine measured with other accelerators and models",
    "nothing": "uncalibrated: pooled prior of other engines",
}


def knowledge_class(known: tuple[bool, ...]) -> str:
    """Return the evidence level from the measured keys of each level.

    Examples
    --------
    >>> knowledge_class((True,) * len(LEVELS))
    'configuration'
    """
    of = dict(zip(LEVELS, known, strict=True))
    if of["configuration"]:
        return "configuration"
    if of["group"]:
        return "group"
    if of["engine_accelerator"]:
        if not of["engine_model"]:
            return "accelerator"
        return "pair" if of["engine_accelerator_format"] else "format"
    if of["engine_model"]:
        return "model"
    return "engine" if of["engine"] else "nothing"


def shape_of(deployment: Deployment) -> str:
    """Return the name of a model's shape, such as ``deepseek 7168x61 e256k8``.

    Hidden size, layers, experts and family; models that differ in weights only are the same to an engine.
    """
    return deployment.shape


def kind_of(deployment: Deployment) -> str:
    """Return the kernel kind of a model: its attention, and if it has experts."""
    return f"{deployment.mixers} {'experts' if routed_blocks(deployment.model) else 'dense'}"


def _attention(deployment: Deployment) -> str:
    return deployment.mixers + (" sparse" if deployment.sparse and is_indexed(deployment.model) else "")


def _wall(deployment: Deployment) -> str:
    return wall_apart(
        Conditions(
            engine=deployment.engine,
            engine_version=".".join(str(number) for number in deployment.release or ()),
            model=deployment.model.name,
            features=model_features(deployment.model),
            weights=deployment.weights,
            kv=deployment.kv,
            accelerator=deployment.accelerator.name,
            compute_capability=deployment.accelerator.compute_capability,
            graphs=deployment.settings.graphs,
            mtp=deployment.draft_tokens,
        )
    )


def keys_of(deployment: Deployment, *, measured_on: str | None = None) -> tuple[str, ...]:
    """Return the key of a deployment on each level.

    With `measured_on` nightly builds of one version string differ by month.
    """
    engine, (part, _) = deployment.engine, deployment.rated
    model, form = shape_of(deployment), deployment.weights
    kind = kind_of(deployment)
    silicon = part.compute_capability or part.vendor.lower()
    draft = f" draft {deployment.draft_tokens}" if deployment.draft_tokens else ""
    eager = "" if deployment.settings.graphs else " eager"
    limitation = _wall(deployment)
    # behind a limitation, measurements do not apply without it
    mode = draft + eager + (f" behind {limitation}" if limitation else "")
    group = f"{engine} {part.name} {model} {form}"
    layout = f" tp{deployment.tp} pp{deployment.pp} dp{deployment.dp} ep{deployment.ep} dcp{deployment.dcp}"
    release = ".".join(str(number) for number in (deployment.release or ())[:3]) or "unstated"
    return (
        "all",
        engine + eager,
        f"{engine} {'drafting' if draft else 'plain'}",
        f"{engine} experts {deployment.settings.moe_backend or 'unsaid'}",
        f"{engine} {limitation or 'no wall'}",
        f"{engine} {f'kernels of {part.vendor.lower()}' if part.kind == 'npu' else 'own kernels'}",
        f"{engine} {_attention(deployment)}",
        f"{engine} at {deployment.text or 'no protocol'}",
        f"{engine} release {'unsaid' if release == 'unstated' else release}",
        f"{engine} {silicon}",
        f"{engine} {part.name}",
        f"{engine} {kind}",
        f"{engine} {silicon} {kind}",
        f"{engine} {form}",
        f"{engine} {part.name} {form}",
        model,
        f"{engine} {model}",
        group + mode,
        group + layout + mode,
        f"{group} {release} {(measured_on or '')[:7]}{mode}",
    )


def log_parameters(effects: np.ndarray) -> np.ndarray:
    """Return log parameters of the step time from summed effects."""
    parameters = effects[:, : len(PARAMETERS)] + effects[:, SCALE : SCALE + 1]
    parameters[:, list(FRONT)] = effects[:, list(FRONT)]
    result: np.ndarray = parameters
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """Fitted effects: for each level, key → row of `COLUMNS`."""

    values: dict[str, dict[str, np.ndarray]]
    spread: np.ndarray  # (levels, 22): prior deviation by level and column
    intervals: dict[
        str, dict[str, tuple[float, float]]
    ]  # evidence level → kind of metric → 90 % interval of log(measured / predicted)
    domain: dict[str, list[float]]  # group → measured range of concurrency, input and output
    widths: dict[str, float] = field(
        default_factory=dict
    )  # factors on the intervals, see `glmplan.prediction.evidence`
    site: frozenset[str] = frozenset()  # configurations that a site measured itself
    tails: dict[str, list[float]] = field(
        default_factory=dict
    )  # kind of metric → quantiles over the ends of the interval, see `glmplan.prediction.distribution`
    later: dict[str, list[float]] = field(
        default_factory=dict
    )  # kind of metric → what an unmeasured release adds below and above the interval

    def by_level(self, keys: tuple[str, ...]) -> Iterator[np.ndarray | None]:
        """Yield the effect of each key; None where it was not measured.

        A configuration measured by the site has no release effect: the site's effect includes it. A release without a
        month, or in an unmeasured month, has its mean over the measured months.
        """
        here = keys[LEVELS.index("configuration")] in self.site
        for level, key in zip(LEVELS, keys, strict=True):
            effect = self.values.get(level, {}).get(key)
            if here and level in RELEASES:
                effect = None
            elif effect is None and level == "release":
                effect = _of_release(self, key)
            yield effect

    def sum_of(self, keys: tuple[str, ...]) -> tuple[np.ndarray, tuple[bool, ...]]:
        """Return the sum of the known keys' effects, and which keys are known."""
        total = np.zeros(len(COLUMNS))
        known = []
        for effect in self.by_level(keys):
            known.append(effect is not None)
            if effect is not None:
                total = total + effect
        return total, tuple(known)


def of_machine(keys: tuple[str, ...], known: tuple[bool, ...]) -> list[int]:
    """Return the levels whose effect a machine may have of its own.

    The configuration, and those without measurements: no level of a build, and none whose key is its reference.
    """
    return [
        place
        for place, (level, key) in enumerate(zip(LEVELS, keys, strict=True))
        if level == "configuration" or not (known[place] or level in RELEASES or key.endswith(REFERENCES))
    ]


def measured_build(fit: Effects, release_key: str) -> bool:
    """Return True if a group was measured with this release or around it.

    `release_key` is the last of `keys_of`. True for a measured release and month, stated or not; False for a plan
    without a release.
    """
    if release_key in fit.values.get("release", {}):
        return True
    group, release = _group_and_release(release_key)
    if release == "unstated":
        return False
    measured = _measured_releases(fit).get(group)
    return measured is not None and measured[0] <= _ordered(release) <= measured[1]


@lru_cache(maxsize=8)  # one object serves all cases
def _measured_releases(fit: Effects) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the first and the last measured release of each group."""
    releases: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for key in fit.values.get("release", {}):
        group, release = _group_and_release(key)
        if release != "unstated":
            number = _ordered(release)
            first, last = releases.get(group, (number, number))
            releases[group] = min(first, number), max(last, number)
    return releases


def _of_release(fit: Effects, key: str) -> np.ndarray | None:
    """Return the effects of a release in any month; None if not measured."""
    match = _RELEASE_KEY.fullmatch(key)
    if match is None or match["release"] == "unstated":
        return None
    return _undated(fit).get((match["group"], match["release"], match["mode"] or ""))


@lru_cache(maxsize=8)
def _undated(fit: Effects) -> dict[tuple[str, str, str], np.ndarray]:
    """Return each release and mode of a group as the mean over months."""
    by_release: dict[tuple[str, str, str], list[np.ndarray]] = {}
    for key, effects in fit.values.get("release", {}).items():
        if of := _RELEASE_KEY.fullmatch(key):
            by_release.setdefault((of["group"], of["release"], of["mode"] or ""), []).append(effects)
    return {name: np.mean(all_months, axis=0) for name, all_months in by_release.items()}


#: group, release, month and mode in a key of level "release"
_RELEASE_KEY = re.compile(r"(?P<group>.*?) (?P<release>unstated|\d[\d.]*) (?P<month>20\d\d(?:-\d\d)?)?(?P<mode> .*)?")


def _group_and_release(key: str) -> tuple[str, str]:
    match = _RELEASE_KEY.fullmatch(key)
    return (match["group"], match["release"]) if match else (key, "unstated")


def _ordered(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in release.split(".") if number)


#: replaces the shipped fit while a site's calibration is applied, see `glmplan.prediction.step_models`
OVERLAY: ContextVar[Callable[[str], Effects] | None] = ContextVar("OVERLAY", default=None)


def load_effects(engine: str) -> Effects:
    """Return the effects for predictions: the site's if applied, else shipped."""
    overlay = OVERLAY.get()
    return shipped_effects(engine) if overlay is None else overlay(engine)


def shipped_effects(engine: str) -> Effects:
    """Return the shipped fit of one engine; common effects if unmeasured."""
    return effects_in(_of_steps(fits_folder()), engine)


@lru_cache(maxsize=32)
def _of_steps(fits: Path) -> Path:
    return fits / "step"


@lru_cache(maxsize=32)
def effects_in(folder: Path, engine: str) -> Effects:
    """Return the fit of one engine in a folder."""
    shared = read_toml(folder / "shared.toml")
    own = folder / f"{engine}.toml"
    special = read_toml(own) if os.path.exists(own) else {}
    if shared.get("columns") != list(COLUMNS) or shared.get("levels") != list(LEVELS):
        raise SpecError(
            "was written by another version of glmplan: run `glmplan calibrate`", file=folder / "shared.toml"
        )
    tables = {**shared["effects"], **special.get("effects", {})}
    values = {level: {key: np.array(row) for key, row in table.items()} for level, table in tables.items()}
    intervals = {
        name: {kind: (pair[0], pair[1]) for kind, pair in table.items()} for name, table in shared["intervals"].items()
    }
    # an older fit may not separate a level from the next lower one
    for name, less in reversed(list(pairwise(KNOWLEDGE))):
        intervals.setdefault(name, intervals.get(less, {}))
    return Effects(
        values,
        np.array(shared["spread"]),
        intervals,
        special.get("domain", {}),
        shared.get("widths", {}),
        tails=shared.get("tails", {}),
        later=shared.get("later", {}),
    )


#: log deviation of a repeated configuration: medians of the 100 repeats in the ledger are 1-2 % for TPOT and 4-14 % for
#: TTFT [-]
SITE_NOISE: dict[str, float] = {"decode": 0.02, "ttft": 0.10, "prefill": 0.05}
#: machines of one configuration differ more than rows of one campaign; chosen on the sweeps
#: (`glmplan.calibrate.step.own_site.site_errors`), where 1 to 2.5 differ by 0.2 % at most [-]
_WIDER = 1.5
#: factor on the shipped spread of a parameter: two points of a sweep cannot determine all of them. A group differs by
#: how well its kernels for many tokens fit its shapes, not by achieved bandwidth, nor equally in all components. Host
#: costs of a request are in the engine's code and grow with the load. Chosen on the sweeps; choices of one half of the
#: groups help the other half: docs/physics/calibration.md [-]
_MOVED: dict[str, float] = {
    "request_seconds": 0.15, "activation_slowdown": 4.0, "gemm_flop_slowdown": 2.0, "expert_flop_slowdown": 2.0,
    "prefill_attention_slowdown": 2.0, "gemm_bytes_slowdown": 0.5, "expert_bytes_slowdown": 0.5,
    "collective_slowdown": 2.0, "collective_bytes_slowdown": 2.0, "host_seconds": 1.4, "layer_seconds": 1.4,
    "arrival_seconds": 1.5, "prompt_token_seconds": 1.5, "wake_seconds": 1.5, "scale": 0.25,
}  # fmt: skip
_CONFIGURATION = LEVELS.index("configuration")


def site_spread(spread: np.ndarray) -> np.ndarray:
    """Return the spread of each level for a site.

    The configuration also holds the differences between builds and machines.
    """
    spread = spread.copy()
    spread[_CONFIGURATION] = np.hypot(spread[_CONFIGURATION], spread[-1])
    result: np.ndarray = _WIDER * spread * np.array([_MOVED.get(name, 1.0) for name in COLUMNS]) + 1e-9
    return result
