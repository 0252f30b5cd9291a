"""Which effects a deployment takes part in: from all engines together down to one release of one configuration.

A parameter of the step time is a sum of effects in logarithms, one from each level whose key was ever measured. A level
without measurements contributes nothing but its spread, which is why the unknown gets a wider interval.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from glmplan.catalog.engines.limitations import Conditions, wall_apart
from glmplan.catalog.files import fits_folder, read_toml
from glmplan.costs.blocks.stack import is_indexed, model_features, routed_blocks
from glmplan.costs.step.model import PARAMETERS
from glmplan.errors import SpecError
from glmplan.prediction.deployment import Deployment

__all__ = [
    "BY_OTHERS",
    "COLUMNS",
    "FRONT",
    "KNOWLEDGE",
    "LEVELS",
    "OVERLAY",
    "REFERENCES",
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
    "shape_of",
    "shipped_effects",
    "site_spread",
]


#: levels of the hierarchy, from the general to the special
LEVELS: tuple[str, ...] = (
    "all",
    "engine",
    "engine_draft",
    "engine_experts",
    "engine_wall",
    "engine_attention",
    "engine_campaign",
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
#: ends of keys that others of their level are compared with: no drafting, kernels of experts that nobody names, no wall
#: whose price only runs behind it know, no campaign that was named
REFERENCES: tuple[str, ...] = (" plain", " experts unsaid", " no wall", " at no campaign")
#: columns of an effect: the parameters of the step time, a factor on whole steps, a factor on TTFT
COLUMNS: tuple[str, ...] = (*PARAMETERS, "scale", "ttft_scale")
SCALE, TTFT_SCALE = len(PARAMETERS), len(PARAMETERS) + 1
#: parameters that `scale` does not touch: work of the front end
FRONT = tuple(PARAMETERS.index(f"{name}_seconds") for name in ("arrival", "prompt_token", "wake"))


#: what is known of a deployment, from most to least
KNOWLEDGE: tuple[str, ...] = ("configuration", "group", "pair", "format", "accelerator", "model", "engine", "nothing")
#: whose intervals a plan has of what was measured as it is asked. It belongs to no campaign, and what one campaign
#: measured lies no nearer to what others measured of the same than a model and a part that were measured apart
BY_OTHERS: dict[str, str] = {"configuration": "pair", "group": "pair"}
#: in words, for `basis`
KNOWN_AS: dict[str, str] = {
    "site": "measured at this site in this configuration",
    "configuration": "same model, accelerator, engine and layout measured",
    "release": "same model, accelerator, engine and layout measured; engine version extrapolated",
    "group": "same model, accelerator and engine measured; layout extrapolated",
    "group_release": "same model, accelerator and engine measured; layout and engine version extrapolated",
    "pair": "model and accelerator measured separately on this engine, the accelerator in this weight format",
    "adapters": "same model, accelerator and engine measured without LoRA adapters; adapters extrapolated",
    "apart": "separate prefill and decode servers, never measured together",
    "format": "model and accelerator measured separately on this engine, the accelerator never in this weight format",
    "accelerator": "accelerator measured on this engine, model extrapolated",
    "model": "model measured on this engine, accelerator extrapolated",
    "engine": "engine measured with other accelerators and models",
    "nothing": "uncalibrated: pooled prior of other engines",
}


def knowledge_class(known: tuple[bool, ...]) -> str:
    """Class of what is known of a deployment.

    `known`: For each level whether its key was measured.

    Examples
    --------
    >>> knowledge_class((True,) * 18)
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
    """Name of a model's shape: models that differ in their weights only are the same to an engine.

    Returns: Hidden size, layers, experts and their family, as in ``deepseek 7168x61 e256k8``.
    """
    return deployment.shape


def kind_of(deployment: Deployment) -> str:
    """Kind of a model as kernels see it: its attention, and whether it has experts."""
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
    """Key of a deployment on each level.

    `measured_on`: Date of the run; nightly builds of one version string differ from month to month.
    """
    engine, (part, _) = deployment.engine, deployment.rated
    model, form = shape_of(deployment), deployment.weights
    kind = kind_of(deployment)
    silicon = part.compute_capability or part.vendor.lower()
    draft = f" draft {deployment.draft_tokens}" if deployment.draft_tokens else ""
    eager = "" if deployment.settings.graphs else " eager"
    wall = _wall(deployment)
    # what was measured behind a wall is not measured without it
    mode = draft + eager + (f" behind {wall}" if wall else "")
    group = f"{engine} {part.name} {model} {form}"
    layout = f" tp{deployment.tp} pp{deployment.pp} dp{deployment.dp} ep{deployment.ep} dcp{deployment.dcp}"
    release = ".".join(str(number) for number in (deployment.release or ())[:3]) or "unstated"
    return (
        "all",
        engine + eager,
        f"{engine} {'drafting' if draft else 'plain'}",
        f"{engine} experts {deployment.settings.moe_backend or 'unsaid'}",
        f"{engine} {wall or 'no wall'}",
        f"{engine} {_attention(deployment)}",
        f"{engine} at {deployment.text or 'no campaign'}",
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
    """Parameters of the step time from summed effects.

    - `effects`: Sums of effects in the order of `COLUMNS`
    - Returns: Logarithms of `glmplan.costs.step.model.PARAMETERS`, [log s] or [-].
    """
    found = effects[:, : len(PARAMETERS)] + effects[:, SCALE : SCALE + 1]
    found[:, list(FRONT)] = effects[:, list(FRONT)]
    result: np.ndarray = found
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """Fitted effects: for each level a table from key to a row of `COLUMNS`.

    Attributes
    ----------
    values : dict of str to dict of str to (22,) array
        Level → key → effects.
    spread : (18, 22) array
        Prior standard deviation of an effect, by level and column.
    intervals : dict of str to dict of str to (float, float)
        Knowledge class → kind of figure → 90 % interval of measured over predicted, in logarithms.
    domain : dict of str to list of float
        Group → smallest and largest concurrency, input and output length measured.
    widths : dict of str to float
        Factors on the intervals, see `glmplan.prediction.evidence`, [-]
    site : frozenset of str
        Configurations that a site measured itself.
    """

    values: dict[str, dict[str, np.ndarray]]
    spread: np.ndarray
    intervals: dict[str, dict[str, tuple[float, float]]]
    domain: dict[str, list[float]]
    widths: dict[str, float] = field(default_factory=dict)
    site: frozenset[str] = frozenset()

    def sum_of(self, keys: tuple[str, ...]) -> tuple[np.ndarray, tuple[bool, ...]]:
        """Add the effects of the keys that are known.

        A configuration that the site measured takes no part in the release of others: the site's effect holds it. A
        release that is named without a month, or for a month in which nobody measured it, is what it was in the mean
        over the months in which it was measured.

        Returns: The sum, and for each level whether its key was known.
        """
        total = np.zeros(len(COLUMNS))
        known = []
        here = keys[LEVELS.index("configuration")] in self.site
        for level, key in zip(LEVELS, keys, strict=True):
            found = self.values.get(level, {}).get(key)
            if level == "release":
                found = None if here else found if found is not None else _of_release(self, key)
            known.append(found is not None)
            if found is not None:
                total = total + found
        return total, tuple(known)


def measured_build(fit: Effects, release_key: str) -> bool:
    """Whether a group was measured with the release of an engine that is asked, or with releases around it.

    - `release_key`: Key of the level ``release``, the last of `keys_of`.
    - Returns: True also where that very release and month were measured, stated or not; a plan for no release in
      particular is for none that was.
    """
    if release_key in fit.values.get("release", {}):
        return True
    group, release = _group_and_release(release_key)
    if release == "unstated":
        return False
    measured = _measured_releases(fit).get(group)
    return measured is not None and measured[0] <= _ordered(release) <= measured[1]


@lru_cache(maxsize=8)  # a fit is one object for all questions
def _measured_releases(fit: Effects) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """The first and the last release that was measured of each group."""
    found: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for key in fit.values.get("release", {}):
        group, release = _group_and_release(key)
        if release != "unstated":
            number = _ordered(release)
            first, last = found.get(group, (number, number))
            found[group] = min(first, number), max(last, number)
    return found


def _of_release(fit: Effects, key: str) -> np.ndarray | None:
    """Effects of a release in whatever month; None where none is named or it was not measured."""
    found = _RELEASE_KEY.fullmatch(key)
    if found is None or found["release"] == "unstated":
        return None
    return _undated(fit).get((found["group"], found["release"], found["mode"] or ""))


@lru_cache(maxsize=8)
def _undated(fit: Effects) -> dict[tuple[str, str, str], np.ndarray]:
    """Effects of each release of a group, run in one mode: the mean over months."""
    found: dict[tuple[str, str, str], list[np.ndarray]] = {}
    for key, effects in fit.values.get("release", {}).items():
        if of := _RELEASE_KEY.fullmatch(key):
            found.setdefault((of["group"], of["release"], of["mode"] or ""), []).append(effects)
    return {name: np.mean(all_months, axis=0) for name, all_months in found.items()}


#: group, release, month and mode of a key of the level "release"
_RELEASE_KEY = re.compile(r"(?P<group>.*?) (?P<release>unstated|\d[\d.]*) (?P<month>20\d\d(?:-\d\d)?)?(?P<mode> .*)?")


def _group_and_release(key: str) -> tuple[str, str]:
    found = _RELEASE_KEY.fullmatch(key)
    return (found["group"], found["release"]) if found else (key, "unstated")


def _ordered(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in release.split(".") if number)


#: what stands in for the shipped fit while a site's calibration is applied, see `glmplan.prediction.step_models`
OVERLAY: ContextVar[Callable[[str], Effects] | None] = ContextVar("OVERLAY", default=None)


def load_effects(engine: str) -> Effects:
    """Effects that predictions use: a site's where its calibration is applied, else the shipped ones."""
    overlay = OVERLAY.get()
    return shipped_effects(engine) if overlay is None else overlay(engine)


def shipped_effects(engine: str) -> Effects:
    """Read the shipped fit as far as one engine needs it.

    `engine`: Name of the engine; one that was never measured gets what all engines share.
    """
    return effects_in(_of_steps(fits_folder()), engine)


@lru_cache(maxsize=32)
def _of_steps(fits: Path) -> Path:
    return fits / "step"


@lru_cache(maxsize=32)
def effects_in(folder: Path, engine: str) -> Effects:
    """Read the fit in a folder as far as one engine needs it."""
    shared = read_toml(folder / "shared.toml")
    own = folder / f"{engine}.toml"
    special = read_toml(own) if own.exists() else {}
    if shared.get("columns") != list(COLUMNS) or shared.get("levels") != list(LEVELS):
        raise SpecError(
            "was written by another version of glmplan: run `glmplan calibrate`", file=folder / "shared.toml"
        )
    tables = {**shared["effects"], **special.get("effects", {})}
    values = {level: {key: np.array(row) for key, row in table.items()} for level, table in tables.items()}
    intervals = {
        name: {kind: (pair[0], pair[1]) for kind, pair in table.items()} for name, table in shared["intervals"].items()
    }
    # an older fit may not tell a class from the next, of which less is known
    for name, less in reversed(list(pairwise(KNOWLEDGE))):
        intervals.setdefault(name, intervals.get(less, {}))
    return Effects(values, np.array(shared["spread"]), intervals, special.get("domain", {}), shared.get("widths", {}))


# Where a site's calibration starts: how far its machine may differ, and how exactly a run measures it.

#: how far the same configuration measured again is off, in logarithms: medians of the 100 repeats in the ledger are
#: 1-2 % for TPOT and 4-14 % for TTFT [-]
SITE_NOISE: dict[str, float] = {"decode": 0.02, "ttft": 0.10, "prefill": 0.05}
#: machines of one configuration differ more than rows of one campaign do: chosen on the sweeps
#: (`glmplan.calibrate.step.own_site.site_errors`), where 1 to 2.5 make no difference of more than 0.2 % [-]
_WIDER = 1.5
#: how much more or less than the shipped fit's spread a parameter may move: two points of a sweep cannot tell all of
#: them. What a group differs by is how well its kernels for many tokens fit its shapes, not the bandwidth that it
#: reaches, nor all parts of a step alike. What a request costs the host is in the engine's code and grows with the
#: load. Chosen on the sweeps; what half of the groups choose helps the other half: docs/physics/calibration.md [-]
_MOVED: dict[str, float] = {
    "request_seconds": 0.15, "activation_slowdown": 4.0, "gemm_flop_slowdown": 2.0, "expert_flop_slowdown": 2.0,
    "prefill_attention_slowdown": 2.0, "gemm_bytes_slowdown": 0.5, "expert_bytes_slowdown": 0.5,
    "collective_slowdown": 2.0, "collective_bytes_slowdown": 2.0, "host_seconds": 1.4, "layer_seconds": 1.4,
    "arrival_seconds": 1.5, "prompt_token_seconds": 1.5, "wake_seconds": 1.5, "scale": 0.25,
}  # fmt: skip
_CONFIGURATION = LEVELS.index("configuration")


def site_spread(spread: np.ndarray) -> np.ndarray:
    """Spread of each level for a site; the configuration also carries what builds and machines of one differ by."""
    spread = spread.copy()
    spread[_CONFIGURATION] = np.hypot(spread[_CONFIGURATION], spread[-1])
    result: np.ndarray = _WIDER * spread * np.array([_MOVED.get(name, 1.0) for name in COLUMNS]) + 1e-9
    return result
