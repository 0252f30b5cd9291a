"""Predictions with their intervals: what a deployment does under a load, and what that rests on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glmplan.physics.points import StepPoints
from glmplan.physics.step.front_end import front_work, prompt_launches
from glmplan.physics.step.time import COMPONENTS, PARAMETERS, step_time
from glmplan.physics.step.work import SLOTS, step_work
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import (
    KNOWN_AS,
    LEVELS,
    TTFT_SCALE,
    Effects,
    keys_of,
    knowledge_class,
    load_effects,
    log_parameters,
)
from glmplan.prediction.intervals import features_of, interval_of
from glmplan.prediction.load import Load
from glmplan.prediction.observables import Observables, observables
from glmplan.readers.runs.figures import INTERVAL_KINDS
from glmplan.units import QUANTILE_90

__all__ = ["Figure", "Prediction", "front_end_seconds", "predict", "predict_many", "step_seconds"]

#: points computed at once: the columns of more would leave the cache of the processor [-]
_AT_ONCE = 16_384
_FRONT = [PARAMETERS.index("arrival_seconds"), PARAMETERS.index("prompt_token_seconds")]
#: half-width added to an interval for each e-fold beyond the measured concurrency or lengths [-]
_BEYOND = 0.15
#: half-width added where requests are taken to spread over pipeline stages, about the gain that this assumes [-]
_SPREAD_OVER_STAGES = 0.3


@dataclass(frozen=True, slots=True)
class Figure:
    """A predicted figure with its 90 % interval.

    Attributes
    ----------
    value, low, high : float
        In base units: [s] or [token/s]
    """

    value: float
    low: float
    high: float

    def scaled(self, factor: float) -> Figure:
        """The figure in other units.

        Parameters
        ----------
        factor : float
            What it is multiplied by, [-]

        Returns
        -------
        Figure
            The scaled figure.
        """
        return Figure(self.value * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a deployment does under a load.

    Attributes
    ----------
    figures : dict of str to Figure
        ``ttft``, ``ttft_p50``, ``tpot``, ``itl_p50`` [s]; ``output_rate``, ``request_rate``, ``total_rate``,
        ``prefill_rate`` [token/s].
    shares : dict of str to float
        Share of the decode step by component (`glmplan.physics.step.time.COMPONENTS`), [-]
    running : float
        Largest number of requests that run at once, [-]
    knowledge : str
        What was measured of it, one of `glmplan.prediction.effects.KNOWN_AS`.
    basis : str
        The same in words.
    out_of_domain : str
        What lies outside of what was measured; empty if nothing.
    """

    figures: dict[str, Figure]
    shares: dict[str, float]
    running: float
    knowledge: str
    basis: str
    out_of_domain: str


def step_seconds(
    deployment: Deployment, *, effects: Effects | None = None, factor: float = 1.0
) -> Callable[..., np.ndarray]:
    """The step time of a deployment as a function of what a step holds.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    effects : Effects, optional
        The fit; the shipped one by default.
    factor : float, optional
        Multiplies all times; a draw from the prediction's interval, [-]

    Returns
    -------
    callable
        Keyword arguments `decode_requests`, `decode_context`, `prefill_tokens`, `prefill_context`, each an (n,) array
        as in `glmplan.physics.points.StepPoints`; returns an (n,) array, [s]
    """
    effects = effects or load_effects(deployment.engine)
    total, _ = effects.sum_of(keys_of(deployment))
    parameters = log_parameters(total[None, :])[0]
    structure, layout = deployment.structure, deployment.layout

    def seconds(
        *,
        decode_requests: np.ndarray,
        decode_context: np.ndarray,
        prefill_tokens: np.ndarray,
        prefill_context: np.ndarray,
    ) -> np.ndarray:
        columns = (decode_requests, decode_context, prefill_tokens, prefill_context)
        rows = np.broadcast_arrays(*(np.atleast_1d(np.asarray(one, dtype=float)) for one in columns))
        starts = range(0, max(len(rows[0]), 1), _AT_ONCE)
        parts = [StepPoints(*(one[start : start + _AT_ONCE] for one in rows)) for start in starts]
        times = [step_time(step_work(structure, layout=layout, points=part), parameters).seconds for part in parts]
        return factor * np.concatenate(times)

    return seconds


def front_end_seconds(deployment: Deployment, prompt_tokens: float, *, effects: Effects | None = None) -> float:
    """Time of the front end before a request can be scheduled.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    prompt_tokens : float
        Length of the prompt, [token]
    effects : Effects, optional
        The fit.

    Returns
    -------
    float
        [s]
    """
    effects = effects or load_effects(deployment.engine)
    total, _ = effects.sum_of(keys_of(deployment))
    arrival, token = np.exp(log_parameters(total[None, :])[0][_FRONT])
    launches = prompt_launches(deployment.structure, replayed=prompt_tokens <= deployment.graph_tokens)
    return float(arrival * launches + token * prompt_tokens)


def predict(
    deployment: Deployment, load: Load, *, effects: Effects | None = None, measured_on: str | None = None
) -> Prediction:
    """Predict one deployment under one load.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    load : Load
        The load.
    effects : Effects, optional
        The fit; the shipped one by default.
    measured_on : str, optional
        Date, for nightly builds.

    Returns
    -------
    Prediction
        Figures with intervals.
    """
    return predict_many([(deployment, load, measured_on)], effects=effects)[0]


def predict_many(
    cases: Sequence[tuple[Deployment, Load, str | None]], *, effects: Effects | None = None
) -> list[Prediction]:
    """Predict many deployments; those alike in structure are computed together.

    Parameters
    ----------
    cases : sequence of (Deployment, Load, str or None)
        Deployment, load and date.
    effects : Effects, optional
        The fit; the shipped one by default.

    Returns
    -------
    list of Prediction
        In the order of the cases.
    """
    found: list[Prediction | None] = [None] * len(cases)
    seen = [observables(load) for _, load, _ in cases]
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, (d, _, _) in enumerate(cases):
        key = (d.model.name, id(d.checkpoint), d.accelerator.name, d.link, d.kv, d.engine, d.sparse, d.draft_tokens,
               d.attention_backend)  # fmt: skip
        groups.setdefault(key, []).append(place)
    for members in groups.values():
        first = cases[members[0]][0]
        fit = effects or load_effects(first.engine)
        sizes = [len(seen[m].decode_requests) for m in members]
        work = _work([cases[m] for m in members], [seen[m] for m in members], sizes)
        sums = [fit.sum_of(keys_of(cases[m][0], measured_on=cases[m][2])) for m in members]
        parameters = log_parameters(np.stack([total for total, _ in sums]))
        step = step_time(work, np.repeat(parameters, sizes, axis=0))
        ends = np.concatenate([[0], np.cumsum(sizes)])
        for number, member in enumerate(members):
            rows = slice(int(ends[number]), int(ends[number + 1]))
            total, known = sums[number]
            found[member] = _prediction(
                cases[member], seen[member], step.seconds[rows], step.shares[rows], float(total[TTFT_SCALE]), known, fit
            )
    return [one for one in found if one is not None]


def _work(cases: list[tuple[Deployment, Load, str | None]], seen: list[Observables], sizes: list[int]) -> np.ndarray:
    def column(name: str) -> np.ndarray:
        return np.concatenate([getattr(one, name) for one in seen])

    def degree(name: str) -> np.ndarray:
        return np.repeat([float(getattr(one, name)) for one, _, _ in cases], sizes)

    first = cases[0][0]
    layout = replace(first.layout, **{name: degree(name) for name in ("tp", "pp", "dp", "ep", "dcp")})
    points = StepPoints(
        column("decode_requests"), column("decode_context"), column("prefill_tokens"), column("prefill_context"),
        column("decode_shared"),
    )  # fmt: skip
    work = step_work(first.structure, layout=layout, points=points)
    table = np.stack([work[slot] for slot in SLOTS], axis=1)
    replayed = [load.pass_tokens <= one.graph_tokens for one, load, _ in cases]
    launches = [prompt_launches(first.structure, replayed=one) for one in replayed]
    return front_work(table, arrivals=column("arrivals"), prompt=column("prompt"), launches=np.repeat(launches, sizes))


def _prediction(
    case: tuple[Deployment, Load, str | None],
    seen: Observables,
    seconds: np.ndarray,
    shares: np.ndarray,
    ttft_scale: float,
    known: tuple[bool, ...],
    fit: Effects,
) -> Prediction:
    deployment, load, _ = case
    at_site = keys_of(deployment)[LEVELS.index("configuration")] in fit.site
    knowledge = "site" if at_site and "site" in fit.intervals else knowledge_class(known)
    beyond, outside = _outside(deployment, load, knowledge, fit)
    features = features_of(deployment, load)
    drafting = QUANTILE_90 * deployment.acceptance_deviation
    figures = {}
    for name, figure in seen.figures.items():
        kind = INTERVAL_KINDS[name]
        low, high = interval_of(fit, knowledge, kind, features)
        if kind == "decode":
            # errors of the fit and of the acceptance length are independent
            low, high = -float(np.hypot(low, drafting)), float(np.hypot(high, drafting))
        low, high = low - beyond, high + beyond
        total = float(figure.weights @ seconds)
        if name.startswith("ttft"):
            total *= float(np.exp(load.waiting * ttft_scale))
        if total <= 0:
            continue
        if figure.rate:
            value = figure.scale / total
            figures[name] = Figure(value, value * float(np.exp(-high)), value * float(np.exp(-low)))
        else:
            value = figure.scale * total
            figures[name] = Figure(value, value * float(np.exp(low)), value * float(np.exp(high)))
    weights = seen.figures["tpot"].weights if "tpot" in seen.figures else np.ones(len(seconds))
    spent = weights * seconds
    mean = spent @ shares / max(float(spent.sum()), 1e-300)
    parts = {
        name: float(sum(mean[SLOTS.index(slot)] for slot in slots))
        for name, slots in COMPONENTS.items()
        if name != "front end"
    }
    return Prediction(figures, parts, seen.running, knowledge, KNOWN_AS[knowledge], outside)


def _outside(deployment: Deployment, load: Load, knowledge: str, fit: Effects) -> tuple[float, str]:
    """How far the load lies beyond what was measured (half-width to add, words)."""
    words = [] if knowledge in ("site", "configuration", "group") else [KNOWN_AS[knowledge]]
    widen = 0.0
    domain = fit.domain.get(keys_of(deployment)[LEVELS.index("group")])
    if domain:
        asked = (load.concurrency, load.input_tokens + load.context, load.output_tokens)
        for name, value, low, high in zip(
            ("concurrency", "input", "output"), asked, domain[0::2], domain[1::2], strict=True
        ):
            if value > 0 and (value < 0.5 * low or value > 2.0 * high):
                words.append(f"{name} {value:g} outside the measured {low:g}-{high:g}")
                edge = low if value < low else high
                widen += _BEYOND * abs(float(np.log(value / max(edge, 1.0))))
    if deployment.pp > 1 and load.bunched == 1.0 and load.concurrency > 1:
        words.append("runs through pipeline stages were measured as bursts only, which stay in one micro-batch")
        widen += _SPREAD_OVER_STAGES
    return widen, "; ".join(words)
