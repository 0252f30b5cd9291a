"""Errors of predicted start-up memory, by log and by source or setting.

`start-up-logs.csv` is what the memory terms are fitted to, and its logs vote by source. `start-up-logs-later.csv` was
collected later and votes by setting (`glmplan.calibrate.memory`): only ROCm, of which the first table has no
launch on several accelerators, is fitted to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from glmplan.calibrate.memory import is_held_out_setting, later_starts, left_out_sources, observations, setting_of
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.names import own_images
from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.catalog.schema.model import ModelSpec
from glmplan.costs.blocks.kinds import mixer_of
from glmplan.costs.memory.settings import MemoryFit, load_memory_fit
from glmplan.errors import GlmplanError
from glmplan.io.runs.importers.startup_logs import LoggedStart, start_up_logs
from glmplan.prediction.from_row import checkpoint_of, model_of
from glmplan.prediction.reproduce import relative_error
from glmplan.prediction.start_memory import Span, predict_start
from glmplan.units import GIB

__all__ = ["LoggedError", "MemoryScore", "StartScores", "cache_of_model", "is_held_out_setting", "kind_of_start",
           "later_starts", "score_starts", "setting_of"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoggedError:
    """One quantity of one log and its prediction, [GiB] or [token]."""

    id: str
    origin: str  # repository or thread
    kind: str  # see `kind_of_start`
    quantity: str  # weights, pool, tokens, graphs, or tokens_of_pool: printed for the logged bytes of the pool
    logged: float
    predicted: float
    low: float
    high: float
    setting: str = ""  # see `setting_of`
    cache: str = ""  # see `cache_of_model`

    @property
    def inside(self) -> bool:
        """Return True if the logged value is in the 90 % interval."""
        return self.low <= self.logged <= self.high

    @property
    def error(self) -> float:
        """Return predicted - logged [GiB] or [token]"""
        return self.predicted - self.logged

    @property
    def relative(self) -> float:
        """Return predicted / logged - 1 [-]"""
        return float(relative_error(self.predicted, self.logged))


@dataclass(frozen=True, slots=True)
class MemoryScore:
    """Errors of one quantity, one vote per source or setting.

    Relative errors [-] for weights and tokens, [GiB] for pool and graphs.
    """

    logs: int
    sources: int  # or settings: the votes
    median: float  # quantiles of the median absolute errors of the votes
    p90: float
    coverage: float  # mean over votes of the share inside the 90 % interval
    width: float  # median over votes of the half-width


#: reason for which only the printed tokens of the logged bytes are compared
POOL_IS_SET = "the size of the pool is set"
#: quantities with relative errors; the others are in [GiB]
_RELATIVE = ("weights", "tokens", "tokens_of_pool")


@dataclass(frozen=True, slots=True)
class StartScores:
    """All logged quantities with their predictions."""

    errors: tuple[LoggedError, ...]
    not_scored: dict[str, str]  # log → reason

    def score(
        self,
        quantity: str,
        kinds: Iterable[str] = ("stock",),
        without: str = "",
        *,
        vote: Literal["origin", "setting"] = "origin",
        caches: Iterable[str] = (),
    ) -> MemoryScore:
        """Return the summary of one quantity, one vote per source or per setting.

        `caches`: only models with these caches, see `cache_of_model`; empty: all.
        """
        wanted, of_cache = set(kinds), set(caches)
        chosen: dict[str, list[LoggedError]] = {}
        for one in self.errors:
            if one.quantity != quantity or one.kind not in wanted or one.origin == without:
                continue
            if not of_cache or one.cache in of_cache:
                chosen.setdefault(getattr(one, vote), []).append(one)
        if not chosen:
            return MemoryScore(0, 0, *[float("nan")] * 4)
        share = quantity in _RELATIVE
        votes = [
            (
                np.median([abs(one.relative if share else one.error) for one in logs]),
                np.mean([one.inside for one in logs]),
                np.median([(one.high - one.low) / 2.0 / (one.logged if share else 1.0) for one in logs]),
            )
            for logs in chosen.values()
        ]
        errors, inside, width = (np.array(column) for column in zip(*votes, strict=True))
        return MemoryScore(
            logs=sum(map(len, chosen.values())),
            sources=len(chosen),
            median=float(np.median(errors)),
            p90=float(np.quantile(errors, 0.9)),
            coverage=float(inside.mean()),
            width=float(np.median(width)),
        )


def kind_of_start(start: LoggedStart, part: Accelerator | None) -> str:
    """Return the kind of launch, which decides the goal.

    ``unified`` for unified memory, ``open`` if settings are missing, ``blackwell-nvlink`` for linked GPUs of compute
    capability 10, ``image`` for a foreign image, ``stock`` for a released engine on discrete GPUs.
    """
    if part is not None and part.unified_memory:
        return "unified"
    if start.unstated:
        return "open"
    if part is not None and part.link_kind == "nvlink" and (part.compute_capability or "").startswith("10."):
        return "blackwell-nvlink"
    version = start.log.version or ""
    return "image" if "/" in version and not version.startswith(own_images()) else "stock"


def cache_of_model(model: ModelSpec) -> str:
    """Return the cache of a model: plain, windowed, hybrid or compressed."""
    mixers = [mixer_of(model.layers[name]) for name, _ in model.runs]
    if any(mixer.name == "compressed" for mixer in mixers):
        return "compressed"
    if any(mixer.state_bytes() for mixer in mixers):
        return "hybrid"
    return "windowed" if any(mixer.features & {"window"} for mixer in mixers) else "plain"


def score_starts(starts: Iterable[LoggedStart] | None = None, *, left_out: bool = False) -> StartScores:
    """Return the predicted memory of logged starts with the logged values.

    With `left_out` each log is predicted by terms fitted without its source.
    """
    errors: list[LoggedError] = []
    left: dict[str, str] = {}
    logs = start_up_logs() if starts is None else list(starts)
    fits: dict[str, MemoryFit] = {}
    if left_out:
        rows = [row for row in observations() if row.used]
        fits = left_out_sources(start_up_logs(), rows, load_memory_fit())
    for start in logs:
        if start.model is None or (start.not_scored and start.not_scored != POOL_IS_SET):
            left[start.id] = start.not_scored or f"{start.log.model} is not in the catalogue"
            continue
        try:
            errors += _errors(start, fits.get(start.origin) or fits.get(setting_of(start)))
        except GlmplanError as error:
            left[start.id] = str(error)
    return StartScores(tuple(errors), left)


def _errors(start: LoggedStart, fit: MemoryFit | None) -> list[LoggedError]:
    log = start.log
    accelerator = load_accelerator(start.accelerator) if start.accelerator else None
    model = model_of(start.model or "")
    checkpoint = checkpoint_of(model.name, start.weights, None, log.engine, log.model)
    prediction = predict_start(
        log, model, checkpoint, accelerator, graphs=start.graphs, unstated=start.unstated, fit=fit
    )
    of_pool = Span(*[prediction.tokens_of_pool] * 3) if prediction.tokens_of_pool else None
    pairs: tuple[tuple[str, float | None, Span | None, float], ...] = (
        ("weights", log.weights, prediction.weights, GIB),
        ("pool", log.kv_pool, prediction.pool, GIB),
        ("tokens", log.kv_tokens, prediction.tokens, 1.0),
        ("tokens_of_pool", log.kv_tokens, of_pool, 1.0),
        ("graphs", log.graphs, prediction.graphs, GIB),
    )
    about = start.id, start.origin, kind_of_start(start, accelerator)
    setting, kind = setting_of(start), cache_of_model(model)
    return [
        LoggedError(*about, name, logged / unit, span.value / unit, span.low / unit, span.high / unit, setting, kind)
        for name, logged, span, unit in pairs
        if logged is not None and span is not None and (not start.not_scored or name == "tokens_of_pool")
    ]
