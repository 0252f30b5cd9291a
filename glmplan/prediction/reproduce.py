"""Compare a measured run with its prediction.

Conditions that could explain a difference are found here, too. One sign convention for all errors and one rule for the
verdict.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from glmplan.costs.blocks.stack import is_indexed, mixers_of
from glmplan.costs.network.links import load_link_fits
from glmplan.costs.network.topology import measured_cost, named_conditions
from glmplan.errors import SpecError
from glmplan.io.runs.columns import COMPARED, FITTED, compared_figures
from glmplan.io.runs.record import Run
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import COLUMNS, LEVELS, Effects, keys_of, load_effects
from glmplan.prediction.from_row import RunCase, question_of
from glmplan.prediction.load import Load
from glmplan.prediction.offloaded_rows import predict_hybrid
from glmplan.prediction.population import Population, population_of, usual_causes
from glmplan.prediction.predict import Figure, predict_many
from glmplan.prediction.step_models import check_answerable, runs_on_accelerators
from glmplan.units import QUANTILE_90, Ratio

__all__ = [
    "DIFFERENT",
    "REPRODUCED",
    "Compared",
    "Explanation",
    "Reproduction",
    "relative_error",
    "reproduce",
    "verdict_of",
]


#: error up to which a metric is reproduced, and above which it is different [-]
REPRODUCED, DIFFERENT = 0.10, 0.20


def relative_error(predicted: ArrayLike, measured: ArrayLike) -> np.ndarray:
    """Return predicted / measured - 1, for times and rates.

    Examples
    --------
    >>> relative_error([110.0, 90.0], 100.0).round(3).tolist()
    [0.1, -0.1]
    """
    result: np.ndarray = np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float) - 1.0
    return result


def verdict_of(error: Ratio) -> str:
    """Return the verdict on an error.

    ``reproduced`` up to 10 %, ``different`` above 20 %, ``in between`` otherwise.

    Examples
    --------
    >>> verdict_of(-0.08), verdict_of(0.15), verdict_of(0.3)
    ('reproduced', 'in between', 'different')
    """
    if abs(error) <= REPRODUCED:
        return "reproduced"
    return "different" if abs(error) > DIFFERENT else "in between"


#: log deviation between repetitions of a run, at least [-]
_LEAST_DEVIATION = 0.05
#: Student's degrees of freedom: a metric with a large error under every condition has little weight
_FREEDOM = 4.0
#: log-likelihood gain of a named condition, at least: a fifth more likely [-]
_LEAST_GAIN = float(np.log(1.2))
#: multiprocessors of accelerators that do not state them: H100 SXM [-]
_PROCESSORS = 132.0


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric of a run; values in the unit of its column."""

    column: str
    measured: float
    predicted: Figure
    verdict: str  # reproduced, in between or different

    @property
    def difference(self) -> float:
        """Return predicted / measured - 1 [-]"""
        return float(relative_error(self.predicted.value, self.measured))

    @property
    def slower(self) -> bool:
        """Return True for a longer time or a lower rate than predicted."""
        rate = "per_s" in self.column
        return self.measured < self.predicted.value if rate else self.measured > self.predicted.value


@dataclass(frozen=True, slots=True)
class Explanation:
    """A condition that could explain a difference."""

    name: str
    what: str  # its meaning
    gain: float  # of log likelihood
    figures: dict[str, float]  # column → prediction under it
    check: str  # how to find out


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A run compared with its prediction."""

    run: Run
    compared: tuple[Compared, ...]
    verdict: str  # the worst metric; TPOT and throughput only, if measured
    explanations: tuple[Explanation, ...]  # best first; none if all is reproduced
    basis: str  # evidence
    assumed: tuple[str, ...]  # not stated by the run
    population: Population | None = None  # other runs of the configuration; None: too few
    causes: tuple[tuple[str, str], ...] = ()  # usual causes of a slow machine of this kind, each with its check

    @property
    def slow(self) -> bool:
        """Return True if the machine is slow beside others.

        Without other runs of the configuration: a speed below its 90 % interval.
        """
        if self.population is not None:
            return self.population.slow
        return any(one.slower and not one.predicted.low <= one.measured <= one.predicted.high for one in self.compared)


@dataclass(frozen=True, slots=True)
class _Condition:
    name: str
    what: str
    check: str
    deployment: Deployment
    load: Load
    effects: Effects


def reproduce(run: Run) -> Reproduction:
    """Return a run's comparison and the ranked possible explanations.

    Notes
    -----
    Each condition changes the deployment, the load or one parameter, and the run is predicted again. Its score is the
    gain in log likelihood of all metrics: Student's t with the width of the interval. Stated conditions are not
    questioned. Not modelled: several conditions at once; machines not predicted kernel by kernel.
    """
    if run.unusable:
        raise SpecError(f"cannot be compared: {run.unusable}", field=run.id)
    case = None if run.offload else question_of(run)
    if case is not None:
        check_answerable(case.deployment, case.load)
        prediction = predict_many([(case.deployment, case.load, run.measured_on)])[0]
    else:
        prediction = predict_hybrid(run)[0]
    compared = []
    drafted = 1.0 if case is None else case.load.tokens_per_step
    for one, value in compared_figures(run.observed, tokens_per_step=drafted):
        if one.predicted in prediction.figures:
            predicted = prediction.figures[one.predicted].scaled(1.0 / one.factor)
            compared.append(
                Compared(one.column, value, predicted, verdict_of(float(relative_error(predicted.value, value))))
            )
    if not compared:
        raise SpecError("has no metric that is predicted", field=run.id)
    usual = [one for one in compared if one.column in FITTED] or compared
    off = any(one.verdict != "reproduced" for one in usual)
    deciding = [one for one in usual if one.column.startswith(("tpot", "output", "total"))] or usual
    worst = max(deciding, key=lambda one: abs(one.difference))
    others = None if case is None else population_of(case, prediction)
    return Reproduction(
        run=run,
        compared=tuple(compared),
        verdict="different" if others is not None and others.slow else worst.verdict,
        explanations=tuple(_explanations(case, usual)) if off and case is not None else (),
        basis=prediction.basis,
        assumed=case.assumed if case is not None else (),
        population=others,
        causes=_causes(run, case),
    )


def _causes(run: Run, case: RunCase | None) -> tuple[tuple[str, str], ...]:
    """Return the usual causes of a slow run on a machine like its own."""
    if case is None:  # a row of a processor with GPUs names no single part
        return usual_causes(run.accelerator_count or 1, hosted=True, vendor="NVIDIA", link="pcie", shared=False)
    part, link = case.deployment.accelerator, case.deployment.link.tensor.kind
    return usual_causes(run.accelerator_count or 1, hosted=case.deployment.offload is not None, vendor=part.vendor,
                        link=link, shared=part.unified_memory)  # fmt: skip


def _surprise(compared: list[Compared], predicted: dict[str, float]) -> float:
    """Return minus the log likelihood of the metrics, up to a constant."""
    total = 0.0
    for one in compared:
        width = np.log(one.predicted.high / one.predicted.low) / (2.0 * QUANTILE_90)
        scaled = np.log(one.measured / predicted[one.column]) / max(width, _LEAST_DEVIATION)
        total += 0.5 * (_FREEDOM + 1.0) * float(np.log1p(scaled**2 / _FREEDOM))
    return total


def _explanations(case: RunCase, compared: list[Compared]) -> list[Explanation]:
    if not runs_on_accelerators(case.deployment):
        return []  # the conditions are of engines on accelerators
    effects = load_effects(case.deployment.engine)
    before = _surprise(compared, {one.column: one.predicted.value for one in compared})
    best: dict[str, Explanation] = {}
    for condition in _conditions(case, effects):
        predictions = predict_many(
            [(condition.deployment, condition.load, case.run.measured_on)], effects=condition.effects
        )[0].figures
        figures = {}
        for one in compared:
            kind = COMPARED[one.column]
            # a metric that the condition removes (TPOT without decode) keeps its prediction
            value = (
                one.predicted.value
                if kind.predicted not in predictions
                else predictions[kind.predicted].value / kind.factor
            )
            figures[one.column] = value
        gain = before - _surprise(compared, figures)
        previous = best.get(condition.name)
        if gain >= _LEAST_GAIN and (previous is None or gain > previous.gain):
            best[condition.name] = Explanation(condition.name, condition.what, gain, figures, condition.check)
    return sorted(best.values(), key=lambda one: -one.gain)


def _shifted(effects: Effects, changes: dict[str, float]) -> Effects:
    """Return effects with some log parameters changed for every key."""
    values = dict(effects.values)
    values["all"] = {
        key: row + np.array([changes.get(name, 0.0) for name in COLUMNS]) for key, row in values["all"].items()
    }
    return replace(effects, values=values)


def _carried(case: RunCase, effects: Effects, changed: Deployment) -> Effects:
    """Return effects of a changed deployment; unmeasured ones stay unchanged."""
    values = {level: dict(table) for level, table in effects.values.items()}
    on = case.run.measured_on
    pairs = zip(keys_of(case.deployment, measured_on=on), keys_of(changed, measured_on=on), strict=True)
    for level, (key, new) in zip(LEVELS, pairs, strict=True):
        if new not in values.get(level, {}) and key in values.get(level, {}):
            values[level][new] = values[level][key]
    return replace(effects, values=values)


def _conditions(case: RunCase, effects: Effects) -> list[_Condition]:
    conditions: list[_Condition] = []
    for make in (_eager, _fallback, _dense, _waves, _acceptance, _ring, _splits, _cached):
        conditions += make(case, effects)
    return conditions


def _eager(case: RunCase, effects: Effects) -> list[_Condition]:
    d = case.deployment
    if case.run.graphs is True or not d.settings.graphs:
        return []
    slow = replace(d, settings=replace(d.settings, graphs=False))
    changed = _carried(case, effects, slow)
    if f"{d.engine} eager" not in effects.values.get("engine", {}):
        # engine never measured without graphs: use the slow-down of vLLM
        engines = load_effects("vllm").values.get("engine", {})
        if "vllm eager" not in engines or "vllm" not in engines:
            return []
        lost = engines["vllm eager"] - engines["vllm"]
        slow, changed = d, _shifted(effects, dict(zip(COLUMNS[:5], lost[:5].tolist(), strict=True)))
    check = "look for `enforce_eager` or a batch above the largest captured graph in the engine's log"
    return [_Condition("eager", "eager mode: no CUDA graphs", check, slow, case.load, changed)]


def _fallback(case: RunCase, effects: Effects) -> list[_Condition]:
    d = case.deployment
    peaks = {name: rate for name, rate in d.accelerator.peak.items() if str(name) in ("bf16", "fp16")}
    if not peaks or d.weights in ("bf16", "f16", "gguf") or len(peaks) == len(d.accelerator.peak):
        return []
    accelerator = d.accelerator.model_copy(update={"peak": peaks})
    check = "look for Marlin, Triton or `dequant` among the kernels that the engine's log names"
    what = "no matrix kernels for the weight format: BF16 products on dequantised weights"
    # a fallback reads the packed weights and unpacks them in the kernel: about twice the time for the same bytes
    slow = _shifted(effects, {"gemm_bytes_slowdown": np.log(2.0), "expert_bytes_slowdown": np.log(2.0)})
    return [_Condition("kernel fallback", what, check, replace(d, accelerator=accelerator), case.load, changed)
            for changed in (effects, slow)]  # fmt: skip


def _dense(case: RunCase, effects: Effects) -> list[_Condition]:
    d = case.deployment
    if not is_indexed(d.model):
        return []
    text = "dense attention instead of sparse" if d.sparse else "sparse attention kernels, although none are published"
    check = "the attention backend in the engine's log"
    name = "kernel fallback: attention" if d.sparse else "sparse attention"
    return [_Condition(name, text, check, replace(d, sparse=not d.sparse), case.load, effects)]


def _waves(case: RunCase, effects: Effects) -> list[_Condition]:
    load = case.load
    if case.run.running_limit or load.phase != "serving" or load.concurrency < 2:
        return []
    check = "`max_num_seqs`, `max_running_requests` or a full KV pool in the engine's log"
    conditions = []
    for waves in (2, 3, 4):
        limit = max(int(np.ceil(load.concurrency / waves)), 1)
        what = f"the server ran {limit} requests, the others waited"
        conditions.append(_Condition("waves of requests", what, check, case.deployment,
                                replace(load, max_requests=limit), effects))  # fmt: skip
    return conditions


def _acceptance(case: RunCase, effects: Effects) -> list[_Condition]:
    d, speculation = case.deployment, case.speculation
    check = "the acceptance length in the engine's log (vLLM: `Mean acceptance length`, SGLang: `accept len`)"

    def condition(name: str, what: str, deployment: Deployment) -> _Condition:
        load = replace(case.load, tokens_per_step=deployment.tokens_per_step)
        return _Condition(name, what, check, deployment, load, _carried(case, effects, deployment))

    if d.draft_tokens:
        mean, deviation = d.acceptance_prior
        if speculation.acceptance_length is not None:
            return []
        lengths = {1.0, *(float(mean * np.exp(side * deviation)) for side in (-QUANTILE_90, QUANTILE_90))}
        return [condition("acceptance", f"a step yielded {one:.2f} tokens instead of {mean:.2f}",
                     replace(d, acceptance=max(one, 1.0))) for one in sorted(lengths)]  # fmt: skip
    if speculation.state != "unknown":
        return []
    return [condition("speculative decoding", f"{draft} speculative tokens, not stated by the run",
                 replace(d, draft_tokens=draft)) for draft in (1, 3) if d.model.mtp is not None]  # fmt: skip


def _ring(case: RunCase, effects: Effects) -> list[_Condition]:
    d = case.deployment
    ranks = d.tp
    if ranks < 2:
        return []
    ratios: dict[str, tuple[float, str]] = {}
    protocols = load_link_fits().protocols
    for (kind, algorithm, condition), ring in protocols.items():
        shot = protocols.get((kind, "one-shot", condition))
        if kind == d.link.tensor.kind and algorithm == "ring" and shot is not None:
            slow = (ring.launch + 2 * (ranks - 1) * ring.hop) / (shot.launch + (ranks - 1) * shot.hop)
            ratios["NCCL ring"] = (slow, "all-reduces went through NCCL's ring, not the engine's one-shot kernel")
    if d.link.tensor.kind == "pcie":
        for one in named_conditions():
            times = [cost.ratio for cost in measured_cost(one) if cost.unit == "us"]
            if times and one.name in ("misdetected-ring", "shared-memory-transport", "no-force-p2p"):
                ratios[f"NCCL ring: {one.name}"] = (float(np.median(times)), one.effect)
    topology = "`nvidia-smi topo -m` or `rocm-smi --showtopo`"
    check = f"`NCCL_DEBUG=INFO`, {topology}, and whether custom all-reduce is on in the engine's log"
    conditions = []
    for name, (ratio, what) in ratios.items():
        if ratio > 1.0:
            slow_effects = _shifted(effects, {"collective_slowdown": float(np.log(ratio))})
            conditions.append(
                _Condition(name, f"{what} ({ratio:.1f} times the latency)", check, d, case.load, slow_effects)
            )
    return conditions


def _splits(case: RunCase, effects: Effects) -> list[_Condition]:
    d, load = case.deployment, case.load
    heads = max(one.decode_blocks(d.tp) for one in mixers_of(d.model))
    running = max(min(load.concurrency, load.max_requests) / (d.dp * d.pp), 1.0)
    idle = _PROCESSORS / (running * heads) if heads else 0.0
    if idle <= 1.5:
        return []
    blocks = f"{running * heads:.0f} blocks for {_PROCESSORS:.0f} SMs"
    what = f"decode attention ran without splitting the keys: {blocks}"
    check = "`num_splits`, `--triton-attention-num-kv-splits` or the attention backend in the engine's log"
    changed = _shifted(effects, {"cache_slowdown": float(np.log(idle))})
    return [_Condition("KV splits", what, check, d, load, changed)]


def _cached(case: RunCase, effects: Effects) -> list[_Condition]:
    if case.load.prefix_cached or case.load.phase != "serving":
        return []
    check = "the prefix cache hit rate in the engine's log; measure with prompts that share nothing"
    what = "prompts came from the prefix cache"
    load = replace(case.load, prefix_cached=True)
    return [_Condition("prefix cache", what, check, case.deployment, load, effects)]
