"""Predict metrics of a deployment under a load.

Each has its interval and evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from glmplan.catalog.caching import remembered
from glmplan.catalog.tables import frame_of, table_text
from glmplan.costs.blocks.kinds import routed_of
from glmplan.costs.points import StepPoints
from glmplan.costs.step.model import (
    GPU_COMPONENTS,
    FrontPoints,
    ReadsMemory,
    StepModel,
    StepTime,
    apart_seconds,
    step_time,
)
from glmplan.costs.step.work import SLOTS
from glmplan.errors import SpecError
from glmplan.io.runs.columns import INTERVAL_KINDS, PREDICTED
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.distribution import INNER, NORMAL, log_quantile, share_below
from glmplan.prediction.effects import SITE_NOISE, TTFT_SCALE, Effects, keys_of, load_effects
from glmplan.prediction.evidence import (
    LIKE,
    Evidence,
    evidence_from_fit,
    evidence_of_offloading,
    evidence_unified_memory,
)
from glmplan.prediction.load import TOGETHER, Load, LoadMetrics, metrics_of
from glmplan.prediction.power import limited
from glmplan.prediction.replicas import added, whole_loads
from glmplan.prediction.step_models import (
    bounded_tables,
    runs_on_accelerators,
    step_model_of,
    step_parameters,
    without_hiding,
)
from glmplan.units import BytesPerSecond, Ratio, Seconds, Tokens

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Figure",
    "Prediction",
    "front_end_seconds",
    "front_of",
    "predict",
    "predict_many",
    "predict_steps",
    "step_seconds",
    "steps_apart",
    "wake_seconds",
]

#: points computed at once: larger columns leave the processor's cache, and arrays above 128 KiB are allocated anew [-]
_AT_ONCE = 2_048


@dataclass(frozen=True, slots=True)
class Figure:
    """Hold a predicted metric with its 90 % interval.

    Attributes
    ----------
    value, low, high : float
        In base units: [s] or [token/s]
    best : float or None
        Physical limit of the accelerator, which no bound exceeds; None if unknown.
    tail : tuple of float
        Quantiles over the bounds, see `glmplan.prediction.distribution`, [-]
    noise : float
        Log deviation that is independent from run to run of one machine; the rest is shared by all of them, [-]
    """

    value: float
    low: float
    high: float
    best: float | None = field(default=None, repr=False, compare=False)
    tail: tuple[float, ...] = field(default=NORMAL, repr=False, compare=False)
    noise: float = field(default=0.0, repr=False, compare=False)

    def quantile(self, share: Ratio) -> float:
        """Return the value that this share of outcomes is below.

        No quantile exceeds the physical limit.

        Examples
        --------
        >>> found = Figure(10.0, 5.0, 20.0)
        >>> found.quantile(0.05), found.quantile(0.5), round(found.quantile(0.75), 2)
        (5.0, 10.0, 13.29)
        """
        if not 0.0 < self.low <= self.value <= self.high:
            return self.value
        ends = (math.log(self.low / self.value), math.log(self.high / self.value))
        found = self.value * math.exp(log_quantile(share, ends, self.tail))
        if self.best is None:
            return found
        return max(found, self.best) if self.best <= self.value else min(found, self.best)

    def share_below(self, bound: float) -> Ratio:
        """Return the probability up to a bound, the inverse of `quantile`.

        Examples
        --------
        >>> found = Figure(10.0, 5.0, 20.0)
        >>> [round(found.share_below(bound), 2) for bound in (5.0, 10.0, 20.0)]
        [0.05, 0.5, 0.95]
        """
        if not 0.0 < self.low <= self.value <= self.high:
            return float(self.value <= bound)
        if self.best is not None and (bound < self.best if self.best <= self.value else bound >= self.best):
            return float(bound >= self.best)
        ends = (math.log(self.low / self.value), math.log(self.high / self.value))
        return share_below(math.log(bound / self.value), ends, self.tail)

    def inverse(self) -> Figure:
        """Return the rate of a time, or the time of a rate.

        Its physical limit is left out.

        Examples
        --------
        >>> Figure(0.5, 0.25, 1.0).inverse()
        Figure(value=2.0, low=1.0, high=4.0)
        """
        bounds = (1.0 / self.value, 1.0 / self.high, 1.0 / self.low)
        return Figure(*bounds, tail=self.tail[::-1], noise=self.noise)

    @property
    def inner(self) -> tuple[float, float]:
        """Return the 50 % interval."""
        return self.quantile(INNER[0]), self.quantile(INNER[1])

    def scaled(self, factor: Ratio) -> Figure:
        """Return the metric in other units."""
        best = None if self.best is None else self.best * factor
        bounds = (self.value * factor, self.low * factor, self.high * factor)
        return Figure(*bounds, best, self.tail, self.noise)

    def stretched(self, factor: Ratio) -> Figure:
        """Return the metric with its log interval widened by a factor.

        No bound exceeds the physical limit.

        Examples
        --------
        >>> Figure(1.0, 0.5, 4.0).stretched(2.0)
        Figure(value=1.0, low=0.25, high=16.0)
        """
        if factor == 1.0 or not 0.0 < self.low <= self.value <= self.high:
            return self
        low, high = (self.value * (end / self.value) ** factor for end in (self.low, self.high))
        return replace(self, low=low, high=high).reaching(())

    def reaching(self, others: Iterable[float]) -> Figure:
        """Return the metric with an interval that covers alternative values.

        Alternatives result from unknown conditions. Each new bound adds the old distance and the farthest alternative
        as independent errors (root of the squares).

        Examples
        --------
        >>> found = Figure(10.0, 9.0, 11.0).reaching([12.0])
        >>> found.low, round(found.high, 2)
        (9.0, 12.29)
        """
        apart = [0.0, *(math.log(one / self.value) for one in others if one > 0.0)]
        low = -math.hypot(math.log(self.low / self.value), min(apart))
        high = math.hypot(math.log(self.high / self.value), max(apart))
        alternatives = [self.value * math.exp(low), self.value * math.exp(high)]
        if self.best is not None and self.best <= self.value:
            alternatives[0] = max(alternatives[0], self.best)
        elif self.best is not None:
            alternatives[1] = min(alternatives[1], self.best)
        return replace(self, low=alternatives[0], high=alternatives[1])


@dataclass(frozen=True, slots=True, repr=False)
class Prediction:
    """Hold the predicted metrics of a deployment under a load.

    Attributes
    ----------
    figures : dict of str to Figure
        ``ttft``, ``tpot``, ``itl`` and their ``_p50`` and ``_p99``, ``e2e``, ``e2e_p99`` [s]; ``output_rate``,
        ``user_rate``, ``total_rate``, ``prefill_rate`` [token/s].
    shares : dict of str to float
        Step-time breakdown of decoding by component, see `glmplan.costs.step.model.StepModel.components`, [-]
    running : float
        Largest number of running requests, [-]
    knowledge : str
        Evidence level, a key of `glmplan.prediction.effects.KNOWN_AS`.
    basis : str
        The same as text.
    out_of_domain : str
        Extrapolated conditions; empty if none.
    first_later : float
        Factor on TTFT for queueing behind other prompts, [-]
    first_scale : float
        Logarithm of this factor at full queueing, [-]
    assumed : tuple of str
        Kinds of settings that are not stated, see `glmplan.prediction.assumptions`; empty if all are.
    """

    figures: dict[str, Figure]
    shares: dict[str, float]
    running: float
    knowledge: str
    basis: str
    out_of_domain: str
    first_later: float = 1.0
    first_scale: float = 0.0
    assumed: tuple[str, ...] = ()

    def to_frame(self) -> pd.DataFrame:
        """Return one row per metric with its 90 % interval, in table units."""
        return frame_of(self._rows())

    def _rows(self) -> list[dict[str, object]]:
        rows = []
        for name, figure in self.figures.items():
            one = PREDICTED[name]
            in_unit = figure.scaled(1.0 / one.factor)
            rows.append({"figure": one.column, "value": in_unit.value, "low": in_unit.low, "high": in_unit.high})
        return rows

    def __repr__(self) -> str:
        name = "tpot" if "tpot" in self.figures else next(iter(self.figures), "")
        if not name:
            return f"<Prediction of nothing; {self.basis}>"
        one = PREDICTED[name]
        figure = self.figures[name].scaled(1.0 / one.factor)
        text = f"{one.column} {figure.value:.4g} ({figure.low:.4g} to {figure.high:.4g})"
        return f"<Prediction {text}; {self.basis}>"

    def __str__(self) -> str:
        lines = [table_text(self._rows()), f"evidence: {self.basis}"]
        return "\n".join([*lines, *([f"outside: {self.out_of_domain}"] if self.out_of_domain else [])])


def step_seconds(
    deployment: Deployment, *, effects: Effects | None = None, factor: Ratio = 1.0, busy_ranks: Ratio = math.inf
) -> Callable[..., np.ndarray]:
    """Return a function from the contents of steps to their time.

    `factor` multiplies all times (a sample of the prediction interval); `busy_ranks` are the data-parallel ranks with
    requests. Arguments of the function are `decode_requests`, `decode_context`, `prefill_tokens` and `prefill_context`,
    (n,) arrays as in `glmplan.costs.points.StepPoints`; the result is (n,) [s]. It is a `ShortSteps` where short steps
    overlap work.
    """
    model = step_model_of(deployment, effects=effects)
    found, hiding = _timed(model, factor, busy_ranks), without_hiding(model)
    if hiding is None:
        return found
    from glmplan.simulation.engine.step_table import ShortSteps

    level, tokens = hiding
    return ShortSteps(found, _timed(level, factor, busy_ranks), tokens, 1 + deployment.draft_tokens)


#: micro-batches that are tried with attention and experts apart [-]
_MICROBATCHES = (1, 2, 3, 4)
_POINTS = ("decode_requests", "decode_context", "prefill_tokens", "prefill_context")
#: bytes of a value of the hidden states that are sent to experts and back [B]
_SENT = 2.0


def steps_apart(deployment: Deployment, cards: int, bandwidth: BytesPerSecond) -> Callable[..., np.ndarray]:
    """Return `step_seconds` with the routed experts on cards of their own.

    - `cards`: Such cards, of the same kind, that share the experts of every layer evenly.
    - `bandwidth`: Network of one card, in each direction.

    Notes
    -----
    The number of micro-batches is that with the shortest step. A hidden state is sent to each card that holds one of
    its experts, at most to all. Collectives of the layout count with attention; the latency of a transfer does not.
    """
    model, count = step_model_of(deployment), deployment.count
    runs = [(routed_of(deployment.model.layers[name]), layers) for name, layers in deployment.model.runs]
    routed = [(ffn, layers) for ffn, layers in runs if ffn is not None]
    if not routed or model.components is not GPU_COMPONENTS or deployment.pp > 1:
        raise SpecError("needs a mixture of experts on accelerators in one pipeline stage", field="--experts-apart")
    if cards > (most := min(ffn.experts for ffn, _ in routed)):
        raise SpecError(f"are more cards than the {most} experts of a layer", field="--experts-apart", value=cards)
    layers = float(sum(many for _, many in routed))
    columns = [SLOTS.index(name) for name in ("expert_fixed", "expert_bytes", "expert_flop")]
    width = sum(many * min(ffn.topk, cards) * (ffn.latent or deployment.model.hidden) for ffn, many in routed)

    def seconds(**points: np.ndarray) -> np.ndarray:
        found = []
        for microbatches in _MICROBATCHES:
            columns_of = [np.atleast_1d(np.asarray(points[name], dtype=float)) for name in _POINTS]
            requests, context, prompt, keys = np.broadcast_arrays(*columns_of)
            # later parts of a prompt attend to the ones before
            keys = keys + prompt * (1 - 1 / microbatches) / 2
            # of one request or token there is no part
            requests, prompt = (np.maximum(one / microbatches, np.minimum(one, 1.0)) for one in (requests, prompt))
            times = model.times(StepPoints(requests, context, prompt, keys))
            costs = times.seconds[:, None] * times.shares[:, columns]
            experts = costs[:, 0] + (costs[:, 1] + costs[:, 2]) * count / cards
            tokens = requests * (1 + deployment.draft_tokens) + prompt
            sent = tokens * width * _SENT / (bandwidth * min(count, cards))
            attention = times.seconds - costs.sum(axis=1)
            found.append(apart_seconds(attention, experts, sent, layers=layers, microbatches=microbatches))
        best: np.ndarray = np.min(found, axis=0)
        return best

    return seconds


def _timed(model: StepModel, factor: float, busy_ranks: float) -> Callable[..., np.ndarray]:
    """Return the times of a model as a function of four arrays by name."""

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
        return factor * np.concatenate([model.times(replace(one, busy_ranks=busy_ranks)).seconds for one in parts])

    return seconds


def front_end_seconds(deployment: Deployment, prompt_tokens: Tokens) -> Seconds:
    """Return the front-end latency before a request can be scheduled."""
    nothing, one = np.zeros(1), np.ones(1)
    front = FrontPoints(one, one * prompt_tokens, prompt_tokens)
    model = step_model_of(deployment)
    return float(model.times(StepPoints(nothing, nothing, nothing, nothing), front).seconds[0])


def wake_seconds(deployment: Deployment) -> Seconds:
    """Return the extra TTFT of a request that arrives at an idle engine.

    0 for machines where it was not separated.

    Notes
    -----
    Launches that no running step hides, lowered clocks, sleeping processes.
    """
    nothing = np.zeros(1)
    front = FrontPoints(nothing, nothing, wakes=np.ones(1))
    model = step_model_of(deployment)
    return float(model.times(StepPoints(nothing, nothing, nothing, nothing), front).seconds[0])


def predict(
    deployment: Deployment, load: Load, *, effects: Effects | None = None, measured_on: str | None = None
) -> Prediction:
    """Return the prediction of one deployment under one load.

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
        Metrics with intervals.
    """
    return predict_many([(deployment, load, measured_on)], effects=effects)[0]


def predict_many(
    cases: Sequence[tuple[Deployment, Load, str | None]], *, effects: Effects | None = None
) -> list[Prediction]:
    """Return the predictions of many cases, in their order.

    Deployments of one structure are computed together. If prompts cannot be timed, only decode metrics are given. A
    load whose users do not divide evenly over its replicas is the sum of whole ones.
    """
    split = [whole_loads(load) for _, load, _ in cases]
    if len(cases) == sum(len(loads) for loads in split):
        return _predict_whole(cases, effects)
    rows = [(d, load, day) for (d, _, day), loads in zip(cases, split, strict=True) for load in loads]
    parts = iter(_predict_whole(rows, effects))
    return [_of_all(loads, [next(parts) for _ in loads]) for loads in split]


def _of_all(loads: tuple[Load, ...], parts: list[Prediction]) -> Prediction:
    """Return the sum over unequal replicas, the fullest first."""
    if len(parts) == 1:
        return parts[0]
    first, place = parts[0], np.zeros(len(parts), dtype=np.int64)
    names = [name for name in first.figures if all(name in one.figures for one in parts)]
    # the latest requests are those of the fullest replicas
    late = {name: first.figures[name] for name in names if name.endswith("_p99")}
    counted = next((name for name in TOGETHER if name in names), "")
    requests = np.array([
        one.figures[counted].value if counted else load.concurrency * load.replicas
        for load, one in zip(loads, parts, strict=True)
    ])  # fmt: skip
    bounds: dict[str, dict[str, float]] = {}
    for end in ("value", "low", "high", "best"):
        columns = {
            name: np.array([getattr(one.figures[name], end) for one in parts], dtype=float)
            for name in names
            if all(getattr(one.figures[name], end) is not None for one in parts)
        }
        rates = {name: one for name, one in columns.items() if name in TOGETHER}
        # the rate of one user is the inverse of the mean time per token
        times = {name: 1.0 / one if name == "user_rate" else one for name, one in columns.items() if name not in rates}
        sums = {name: float(one[0]) for name, one in added(place, rates, times, requests).items()}
        bounds[end] = {name: 1.0 / one if name == "user_rate" else one for name, one in sums.items()}
    figures = {
        name: replace(
            first.figures[name],
            value=bounds["value"][name],
            low=bounds["low"][name],
            high=bounds["high"][name],
            best=bounds["best"].get(name),
        )
        for name in names
    } | late
    time = requests * [one.figures["tpot"].value if "tpot" in names else 1.0 for one in parts]
    shares = {name: float(time @ [one.shares[name] for one in parts] / time.sum()) for name in first.shares}
    return replace(first, figures=figures, shares=shares, running=max(one.running for one in parts))


def _predict_whole(cases: Sequence[tuple[Deployment, Load, str | None]], effects: Effects | None) -> list[Prediction]:
    """Return predictions of loads that are equal on all replicas."""
    predictions: list[Prediction | None] = [None] * len(cases)
    together = [place for place, (d, _, _) in enumerate(cases) if runs_on_accelerators(d) and not d.stages]
    for place, prediction in zip(together, _on_accelerators([cases[n] for n in together], effects), strict=True):
        predictions[place] = prediction
    for place, (d, load, _) in enumerate(cases):
        if predictions[place] is None:
            drafting = d.acceptance_deviation
            if d.stages:
                fit = effects or load_effects(d.engine)
                [of] = _learnt([(d, None)], fit)
                evidence = evidence_from_fit(d, load, of.keys, of.levels, of.ttft_scale, fit)
            elif d.offload is None:
                evidence = evidence_unified_memory(d, load)
            else:
                evidence = evidence_of_offloading(drafting=drafting)
            predictions[place] = predict_steps(step_model_of(d), load, evidence)
    return [one for one in predictions if one is not None]


def _on_accelerators(cases: list[tuple[Deployment, Load, str | None]], effects: Effects | None) -> list[Prediction]:
    predictions: list[Prediction | None] = [None] * len(cases)
    seen = [metrics_of(load) for _, load, _ in cases]
    fronts = [front_of(one, load) for one, (_, load, _) in zip(seen, cases, strict=True)]
    points = [one.points for one in seen]
    for members, table, least in bounded_tables([d for d, _, _ in cases], points, fronts):
        fit = effects or load_effects(cases[members[0]][0].engine)
        learnt = _learnt([(cases[m][0], cases[m][2]) for m in members], fit)
        sizes = [len(seen[m].decode_requests) for m in members]
        parameters = np.stack([one.parameters for one in learnt])
        step = step_time(table, np.repeat(parameters, sizes, axis=0))
        last = np.concatenate([[0], np.cumsum(sizes)])
        for number, member in enumerate(members):
            rows = slice(int(last[number]), int(last[number + 1]))
            of = learnt[number]
            deployment, load, _ = cases[member]
            requests = seen[member].decode_requests
            part, limit = deployment.rated
            timed = StepTime(step.seconds[rows], step.shares[rows])
            if limit is not None:
                timed = limited(timed, GPU_COMPONENTS["compute"], requests, part, limit)
            predictions[member] = _prediction(
                seen[member], load, timed, GPU_COMPONENTS,
                evidence_from_fit(deployment, load, of.keys, of.levels, of.ttft_scale, fit),
                least[rows],
            )  # fmt: skip
    return [one for one in predictions if one is not None]


@dataclass(frozen=True, slots=True, eq=False)
class _Learnt:
    """Fitted values of a deployment, independent of the load."""

    keys: tuple[str, ...]
    levels: tuple[bool, ...]
    parameters: np.ndarray
    ttft_scale: float


def _learnt(cases: list[tuple[Deployment, str | None]], fit: Effects) -> list[_Learnt]:
    """Return the fitted values of deployments; repeated ones once."""
    learnt: dict[tuple[int, str | None], _Learnt] = {}
    for deployment, measured_on in cases:
        if (id(deployment), measured_on) not in learnt:
            learnt[id(deployment), measured_on] = _learnt_of(deployment, fit, measured_on)
    return [learnt[id(deployment), measured_on] for deployment, measured_on in cases]


@remembered(records=2, most=256)
def _learnt_of(deployment: Deployment, fit: Effects, measured_on: str | None) -> _Learnt:
    keys = keys_of(deployment, measured_on=measured_on)
    total, levels = fit.sum_of(keys)
    return _Learnt(keys, levels, step_parameters(deployment, total), float(total[TTFT_SCALE]))


def predict_steps(model: StepModel, load: Load, evidence: Evidence) -> Prediction:
    """Return the prediction of a load on any step model.

    Decode metrics only, if the model cannot time prompts.
    """
    if not model.times_prompts and load.phase == "serving":
        load = load.decoding()
    seen = metrics_of(load)
    front = front_of(seen, load)
    timed = np.ones(len(seen.prefill_tokens), dtype=bool)
    if not model.times_prompts and load.phase != "prefill":
        timed = (seen.prefill_tokens == 0) & (seen.arrivals == 0)
        seen = _only(seen, timed)
        front = FrontPoints(front.arrivals[timed], front.prompt[timed], front.pass_tokens)
    lower_bound = model.least(seen.points) if isinstance(model, ReadsMemory) else None
    return _prediction(seen, load, model.times(seen.points, front), model.components, evidence, lower_bound)


def front_of(seen: LoadMetrics, load: Load) -> FrontPoints:
    """Return the front-end work of each kind of step of a load."""
    return FrontPoints(seen.arrivals, seen.prompt, load.pass_tokens, seen.arrivals * load.idle)


def _only(seen: LoadMetrics, kept: np.ndarray) -> LoadMetrics:
    """Return some kinds of step, with the metrics that need no others."""
    figures = {
        name: replace(one, weights=one.weights[kept], first=None if one.first is None else one.first[kept])
        for name, one in seen.figures.items()
        if not np.any(one.weights[~kept])
    }
    columns = ("decode_requests", "decode_context", "prefill_tokens", "prefill_context", "decode_shared", "arrivals",
               "prompt")  # fmt: skip
    return replace(seen, figures=figures, **{name: getattr(seen, name)[kept] for name in columns})


def _prediction(
    seen: LoadMetrics,
    load: Load,
    step: StepTime,
    components: Mapping[str, tuple[int, ...]],
    evidence: Evidence,
    lower_bound: np.ndarray | None = None,
) -> Prediction:
    """Return the metrics of steps; `least` is their lower bound [s]"""
    seconds = step.seconds
    figures = {}
    waiting = load.waiting
    later = math.exp(waiting * evidence.ttft_scale)
    for name, figure in seen.figures.items():
        # Little's law: answers of one token complete at users / TTFT, and are as uncertain
        kind = "ttft" if load.phase == "serving" and "tpot" not in seen.figures else INTERVAL_KINDS[name]
        ends = evidence.interval(kind)
        total = float(figure.weights @ seconds) * math.exp(evidence.shifts.get(kind, 0.0))
        if name.startswith("ttft"):
            total *= later
        if figure.first is not None:
            total += float(figure.first @ seconds) * (later - 1.0)
        if total <= 0 or ends is None:
            continue
        low, high = ends
        # the waiting time of prompts is a model and has no physical limit
        bounded = lower_bound is not None and (not name.startswith(("ttft", "e2e")) or waiting == 0.0)
        bound = float(figure.weights @ lower_bound) if bounded and lower_bound is not None else 0.0
        fast, slow = (max(total * math.exp(end), bound) for end in (low, high))
        total = max(total, bound)
        times = (total, slow, fast, bound) if figure.rate else (total, fast, slow, bound)
        value, least, most, best = (figure.scale / one if figure.rate and one else figure.scale * one for one in times)
        tail = evidence.tails.get(kind, NORMAL)
        tail = tail[::-1] if figure.rate else tail
        noise = max(SITE_NOISE.get(one, 0.0) for one in LIKE.get(kind, (kind,)))
        figures[name] = Figure(value, least, most, best if bound else None, tail, noise)
    weights = seen.figures["tpot"].weights if "tpot" in seen.figures else np.ones(len(seconds))
    spent = weights * seconds
    mean = (spent @ step.shares / max(float(spent.sum()), 1e-300)).tolist()
    parts = {name: float(sum(mean[place] for place in places)) for name, places in components.items()}
    return Prediction(
        figures, parts, seen.running, evidence.knowledge, evidence.basis, evidence.outside, later, evidence.ttft_scale,
        evidence.assumed,
    )  # fmt: skip
