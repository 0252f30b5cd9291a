"""How far predicted memory is from what engines logged of it: each log, and one vote for each source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from glmplan.calibrate.memory import left_out_sources, observations
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.names import own_images
from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.costs.memory.settings import MemoryFit, load_memory_fit
from glmplan.errors import GlmplanError
from glmplan.io.runs.importers.startup_logs import LoggedStart, start_up_logs
from glmplan.prediction.from_row import checkpoint_of, model_of
from glmplan.prediction.reproduce import relative_error
from glmplan.prediction.start_memory import Span, predict_start
from glmplan.units import GIB

__all__ = ["LoggedError", "MemoryScore", "StartScores", "kind_of_start", "score_starts"]


@dataclass(frozen=True, slots=True)
class LoggedError:
    """One quantity of one log beside its prediction.

    Attributes
    ----------
    id, origin, kind : str
        The log; its repository or thread; `kind_of_start`.
    quantity : str
        ``weights``, ``pool``, ``tokens`` or ``graphs``.
    logged : float
        As logged, [GiB] or [token]
    predicted, low, high : float
        The prediction and its 90 % interval, [GiB] or [token]
    """

    id: str
    origin: str
    kind: str
    quantity: str
    logged: float
    predicted: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        """Whether the logged value lies inside the interval."""
        return self.low <= self.logged <= self.high

    @property
    def error(self) -> float:
        """Predicted less logged, [GiB] or [token]"""
        return self.predicted - self.logged

    @property
    def relative(self) -> float:
        """Predicted over logged, less one, [-]"""
        return float(relative_error(self.predicted, self.logged))


@dataclass(frozen=True, slots=True)
class MemoryScore:
    """Errors of one quantity, one vote for each source.

    Attributes
    ----------
    logs, sources : int
        How many, [-]
    median, p90 : float
        Of the sources' median absolute errors: [-] for weights and tokens, [GiB] for pool and graphs
    coverage : float
        Mean over sources of the share of logs inside the 90 % interval, [-]
    width : float
        Median over sources of the interval's half width, in the unit of the errors
    """

    logs: int
    sources: int
    median: float
    p90: float
    coverage: float
    width: float


#: quantities whose errors are shares of the logged value; the others are in [GiB]
_RELATIVE = ("weights", "tokens")


@dataclass(frozen=True, slots=True)
class StartScores:
    """All logs beside their predictions.

    Attributes
    ----------
    errors : tuple of LoggedError
        Each quantity of each log that could be predicted.
    not_scored : dict of str to str
        Log → why nothing of it could be predicted.
    """

    errors: tuple[LoggedError, ...]
    not_scored: dict[str, str]

    def score(self, quantity: str, kinds: Iterable[str] = ("stock",), without: str = "") -> MemoryScore:
        """Summarise one quantity, one vote for each source.

        Examples
        --------
        >>> score_starts().score("weights").sources > 5
        True
        """
        wanted = set(kinds)
        chosen: dict[str, list[LoggedError]] = {}
        for one in self.errors:
            if one.quantity == quantity and one.kind in wanted and one.origin != without:
                chosen.setdefault(one.origin, []).append(one)
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
    """Say what kind of launch a log is of, for the goals differ.

    Returns: ``unified`` where host and accelerator share one memory, ``open`` where the source does not tell all
      settings, ``blackwell-nvlink`` for linked parts of compute capability 10, ``image`` for an image that is not the
      engine's own, ``stock`` for a released engine on discrete cards.
    """
    if part is not None and part.unified_memory:
        return "unified"
    if start.unstated:
        return "open"
    if part is not None and part.link_kind == "nvlink" and (part.compute_capability or "").startswith("10."):
        return "blackwell-nvlink"
    version = start.log.version or ""
    return "image" if "/" in version and not version.startswith(own_images()) else "stock"


def score_starts(starts: Iterable[LoggedStart] | None = None, *, left_out: bool = False) -> StartScores:
    """Predict the memory of logged starts and hold it against the logs.

    `left_out`: Whether each log is predicted with terms that were fitted without its source.

    Examples
    --------
    >>> found = score_starts()
    >>> {one.quantity for one in found.errors} == {"weights", "pool", "tokens", "graphs"}
    True
    """
    errors: list[LoggedError] = []
    left: dict[str, str] = {}
    logs = start_up_logs() if starts is None else list(starts)
    fits: dict[str, MemoryFit] = {}
    if left_out:
        rows = [row for row in observations() if row.used]
        fits = left_out_sources(start_up_logs(), rows, load_memory_fit())
    for start in logs:
        if start.not_scored or start.model is None:
            left[start.id] = start.not_scored or f"{start.log.model} is not in the catalogue"
            continue
        try:
            errors += _errors(start, fits.get(start.origin))
        except GlmplanError as error:
            left[start.id] = str(error)
    return StartScores(tuple(errors), left)


def _errors(start: LoggedStart, fit: MemoryFit | None) -> list[LoggedError]:
    log = start.log
    part = load_accelerator(start.accelerator) if start.accelerator else None
    model = model_of(start.model or "")
    checkpoint = checkpoint_of(model.name, start.weights, None, log.engine, log.model)
    found = predict_start(log, model, checkpoint, part, graphs=start.graphs, unstated=start.unstated, fit=fit)
    kind = kind_of_start(start, part)
    pairs: tuple[tuple[str, float | None, Span | None, float], ...] = (
        ("weights", log.weights, found.weights, GIB),
        ("pool", log.kv_pool, found.pool, GIB),
        ("tokens", log.kv_tokens, found.tokens, 1.0),
        ("graphs", log.graphs, found.graphs, GIB),
    )
    return [
        LoggedError(
            start.id, start.origin, kind, name, logged / unit, span.value / unit, span.low / unit, span.high / unit
        )
        for name, logged, span, unit in pairs
        if logged is not None and span is not None
    ]
