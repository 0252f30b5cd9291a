"""Is a measured run what is predicted, and which conditions could explain the difference."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from glmplan.costs.blocks.stack import is_indexed, mixers_of
from glmplan.costs.network.links import load_link_fits
from glmplan.costs.network.topology import measured_cost, named_conditions
from glmplan.errors import SpecError
from glmplan.io.runs.columns import COMPARED, compared_figures
from glmplan.io.runs.record import Run
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import COLUMNS, LEVELS, Effects, keys_of, load_effects
from glmplan.prediction.from_row import Question, question_of
from glmplan.prediction.load import Load
from glmplan.prediction.offloaded_rows import predict_hybrid
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


# Measured beside predicted: one sign for every error, and one rule for what is reproduced.

#: errors up to which a figure is reproduced, and beyond which it is different, [-]
REPRODUCED, DIFFERENT = 0.10, 0.20


def relative_error(predicted: ArrayLike, measured: ArrayLike) -> np.ndarray:
    """Error of predictions: positive where the prediction is too high, be it a time or a rate.

    `predicted`, `measured`: Any shapes that broadcast, [any one unit].

    Examples
    --------
    >>> relative_error([110.0, 90.0], 100.0).round(3).tolist()
    [0.1, -0.1]
    """
    result: np.ndarray = np.asarray(predicted, dtype=float) / np.asarray(measured, dtype=float) - 1.0
    return result


def verdict_of(error: Ratio) -> str:
    """Say what an error means.

    Returns: ``reproduced`` up to 10 % to either side, ``different`` beyond 20 %, ``in between`` otherwise.

    Examples
    --------
    >>> verdict_of(-0.08), verdict_of(0.15), verdict_of(0.3)
    ('reproduced', 'in between', 'different')
    """
    if abs(error) <= REPRODUCED:
        return "reproduced"
    return "different" if abs(error) > DIFFERENT else "in between"


#: figures agree no better than this between repetitions of a run, in logarithms [-]
_LEAST_DEVIATION = 0.05
#: Student's degrees of freedom: a figure that is far off under every condition decides nothing
_FREEDOM = 4.0
#: what a condition must gain to be named: a fifth likelier than without it [-]
_LEAST_GAIN = float(np.log(1.2))
#: multiprocessors of a part that does not say how many it has: those of an H100 SXM [-]
_PROCESSORS = 132.0


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure of a run.

    Attributes
    ----------
    column : str
        Its column.
    measured : float
        In the unit of the column.
    predicted : Figure
        In the unit of the column.
    verdict : str
        ``reproduced``, ``in between`` or ``different``.
    """

    column: str
    measured: float
    predicted: Figure
    verdict: str

    @property
    def difference(self) -> float:
        """Predicted over measured, less one, [-]"""
        return float(relative_error(self.predicted.value, self.measured))


@dataclass(frozen=True, slots=True)
class Explanation:
    """A condition that could explain a difference.

    Attributes
    ----------
    name, what : str
        The condition and what it means.
    gain : float
        Logarithm of how much likelier it makes the figures, [-]
    figures : dict of str to float
        Column → prediction under it, in the unit of the column.
    check : str
        How to find out.
    """

    name: str
    what: str
    gain: float
    figures: dict[str, float]
    check: str


@dataclass(frozen=True, slots=True)
class Reproduction:
    """A run beside its prediction.

    Attributes
    ----------
    run : Run
        The run.
    compared : tuple of Compared
        Its figures.
    verdict : str
        The worst of them; of TPOT and throughput where there are any.
    explanations : tuple of Explanation
        Best first; none when every figure is reproduced.
    basis : str
        What the prediction rests on.
    assumed : tuple of str
        What the run does not say.
    """

    run: Run
    compared: tuple[Compared, ...]
    verdict: str
    explanations: tuple[Explanation, ...]
    basis: str
    assumed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Condition:
    name: str
    what: str
    check: str
    deployment: Deployment
    load: Load
    effects: Effects


def reproduce(run: Run) -> Reproduction:
    """Compare a run with its prediction and rank what could explain the difference.

    Notes
    -----
    Each condition changes the deployment, the load or one parameter, and the run is predicted again. Its evidence is
    the gain in the likelihood of all figures together, Student's t with the width of the interval. What the run states
    is not questioned. Not modelled: several conditions at once; conditions of machines not answered kernel by kernel.
    """
    if run.unusable:
        raise SpecError(f"cannot be compared: {run.unusable}", field=run.id)
    question = None if run.offload else question_of(run)
    if question is not None:
        check_answerable(question.deployment, question.load)
        prediction = predict_many([(question.deployment, question.load, run.measured_on)])[0]
    else:
        prediction = predict_hybrid(run)[0]
    compared = []
    drafted = 1.0 if question is None else question.load.tokens_per_step
    for one, value in compared_figures(run.observed, tokens_per_step=drafted):
        if one.predicted in prediction.figures:
            figure = prediction.figures[one.predicted].scaled(1.0 / one.factor)
            compared.append(Compared(one.column, value, figure, verdict_of(float(relative_error(figure.value, value)))))
    if not compared:
        raise SpecError("has no figure that is predicted", field=run.id)
    off = any(one.verdict != "reproduced" for one in compared)
    deciding = [one for one in compared if one.column.startswith(("tpot", "output", "total"))] or compared
    worst = max(deciding, key=lambda one: abs(one.difference))
    return Reproduction(
        run=run,
        compared=tuple(compared),
        verdict=worst.verdict,
        explanations=tuple(_explanations(question, compared)) if off and question is not None else (),
        basis=prediction.basis,
        assumed=question.assumed if question is not None else (),
    )


def _surprise(compared: list[Compared], predicted: dict[str, float]) -> float:
    """Minus the logarithm of the likelihood of the figures, up to a constant."""
    total = 0.0
    for one in compared:
        width = np.log(one.predicted.high / one.predicted.low) / (2.0 * QUANTILE_90)
        scaled = np.log(one.measured / predicted[one.column]) / max(width, _LEAST_DEVIATION)
        total += 0.5 * (_FREEDOM + 1.0) * float(np.log1p(scaled**2 / _FREEDOM))
    return total


def _explanations(question: Question, compared: list[Compared]) -> list[Explanation]:
    if not runs_on_accelerators(question.deployment):
        return []  # the conditions are of engines on accelerators
    effects = load_effects(question.deployment.engine)
    before = _surprise(compared, {one.column: one.predicted.value for one in compared})
    best: dict[str, Explanation] = {}
    for case in _conditions(question, effects):
        found = predict_many([(case.deployment, case.load, question.run.measured_on)], effects=case.effects)[0].figures
        figures = {}
        for one in compared:
            kind = COMPARED[one.column]
            # a figure that the condition takes away (as TPOT under no decode) keeps its prediction
            kept = one.predicted.value if kind.predicted not in found else found[kind.predicted].value / kind.factor
            figures[one.column] = kept
        gain = before - _surprise(compared, figures)
        known = best.get(case.name)
        if gain >= _LEAST_GAIN and (known is None or gain > known.gain):
            best[case.name] = Explanation(case.name, case.what, gain, figures, case.check)
    return sorted(best.values(), key=lambda one: -one.gain)


def _shifted(effects: Effects, changes: dict[str, float]) -> Effects:
    """The effects with some parameters changed for every key, in logarithms."""
    values = dict(effects.values)
    values["all"] = {
        key: row + np.array([changes.get(name, 0.0) for name in COLUMNS]) for key, row in values["all"].items()
    }
    return replace(effects, values=values)


def _carried(question: Question, effects: Effects, changed: Deployment) -> Effects:
    """The effects for a changed deployment: what was never measured with the change keeps what it is without."""
    values = {level: dict(table) for level, table in effects.values.items()}
    on = question.run.measured_on
    pairs = zip(keys_of(question.deployment, measured_on=on), keys_of(changed, measured_on=on), strict=True)
    for level, (key, new) in zip(LEVELS, pairs, strict=True):
        if new not in values.get(level, {}) and key in values.get(level, {}):
            values[level][new] = values[level][key]
    return replace(effects, values=values)


def _conditions(question: Question, effects: Effects) -> list[_Condition]:
    found: list[_Condition] = []
    for make in (_eager, _fallback, _dense, _waves, _acceptance, _ring, _splits, _cached):
        found += make(question, effects)
    return found


def _eager(question: Question, effects: Effects) -> list[_Condition]:
    d = question.deployment
    if question.run.graphs is True or not d.settings.graphs:
        return []
    slow = replace(d, settings=replace(d.settings, graphs=False))
    changed = _carried(question, effects, slow)
    if f"{d.engine} eager" not in effects.values.get("engine", {}):
        # this engine was never measured without graphs: what vLLM's steps lose
        engines = load_effects("vllm").values.get("engine", {})
        if "vllm eager" not in engines or "vllm" not in engines:
            return []
        lost = engines["vllm eager"] - engines["vllm"]
        slow, changed = d, _shifted(effects, dict(zip(COLUMNS[:5], lost[:5].tolist(), strict=True)))
    check = "look for `enforce_eager` or a batch above the largest captured graph in the engine's log"
    return [_Condition("eager", "eager mode: no CUDA graphs", check, slow, question.load, changed)]


def _fallback(question: Question, effects: Effects) -> list[_Condition]:
    d = question.deployment
    peaks = {name: rate for name, rate in d.accelerator.peak.items() if str(name) in ("bf16", "fp16")}
    if not peaks or d.weights in ("bf16", "f16", "gguf") or len(peaks) == len(d.accelerator.peak):
        return []
    part = d.accelerator.model_copy(update={"peak": peaks})
    check = "look for Marlin, Triton or `dequant` among the kernels that the engine's log names"
    what = "no matrix kernels for the weight format: BF16 products on dequantised weights"
    # a fallback reads the packed weights and unpacks them in the kernel: about twice the time for the same bytes
    slow = _shifted(effects, {"gemm_bytes_slowdown": np.log(2.0), "expert_bytes_slowdown": np.log(2.0)})
    return [_Condition("kernel fallback", what, check, replace(d, accelerator=part), question.load, changed)
            for changed in (effects, slow)]  # fmt: skip


def _dense(question: Question, effects: Effects) -> list[_Condition]:
    d = question.deployment
    if not is_indexed(d.model):
        return []
    words = "dense attention instead of sparse" if d.sparse else "sparse attention kernels, although none are published"
    check = "the attention backend in the engine's log"
    name = "kernel fallback: attention" if d.sparse else "sparse attention"
    return [_Condition(name, words, check, replace(d, sparse=not d.sparse), question.load, effects)]


def _waves(question: Question, effects: Effects) -> list[_Condition]:
    load = question.load
    if question.run.running_limit or load.phase != "serving" or load.concurrency < 2:
        return []
    check = "`max_num_seqs`, `max_running_requests` or a full KV pool in the engine's log"
    found = []
    for waves in (2, 3, 4):
        limit = max(int(np.ceil(load.concurrency / waves)), 1)
        what = f"the server ran {limit} requests, the others waited"
        found.append(_Condition("waves of requests", what, check, question.deployment,
                                replace(load, max_requests=limit), effects))  # fmt: skip
    return found


def _acceptance(question: Question, effects: Effects) -> list[_Condition]:
    d, speculation = question.deployment, question.speculation
    check = "the acceptance length in the engine's log (vLLM: `Mean acceptance length`, SGLang: `accept len`)"

    def case(name: str, what: str, deployment: Deployment) -> _Condition:
        load = replace(question.load, tokens_per_step=deployment.tokens_per_step)
        return _Condition(name, what, check, deployment, load, _carried(question, effects, deployment))

    if d.draft_tokens:
        mean, deviation = d.acceptance_prior
        if speculation.acceptance_length is not None:
            return []
        lengths = {1.0, *(float(mean * np.exp(side * deviation)) for side in (-QUANTILE_90, QUANTILE_90))}
        return [case("acceptance", f"a step yielded {one:.2f} tokens instead of {mean:.2f}",
                     replace(d, acceptance=max(one, 1.0))) for one in sorted(lengths)]  # fmt: skip
    if speculation.state != "unknown":
        return []
    return [case("speculative decoding", f"{draft} speculative tokens, not stated by the run",
                 replace(d, draft_tokens=draft)) for draft in (1, 3) if d.model.mtp is not None]  # fmt: skip


def _ring(question: Question, effects: Effects) -> list[_Condition]:
    d = question.deployment
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
    check = "`NCCL_DEBUG=INFO`, `nvidia-smi topo -m`, and whether custom all-reduce is on in the engine's log"
    found = []
    for name, (ratio, what) in ratios.items():
        if ratio > 1.0:
            slow_effects = _shifted(effects, {"collective_slowdown": float(np.log(ratio))})
            found.append(
                _Condition(name, f"{what} ({ratio:.1f} times the latency)", check, d, question.load, slow_effects)
            )
    return found


def _splits(question: Question, effects: Effects) -> list[_Condition]:
    d, load = question.deployment, question.load
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


def _cached(question: Question, effects: Effects) -> list[_Condition]:
    if question.load.prefix_cached or question.load.phase != "serving":
        return []
    check = "the prefix cache hit rate in the engine's log; measure with prompts that share nothing"
    what = "prompts came from the prefix cache"
    load = replace(question.load, prefix_cached=True)
    return [_Condition("prefix cache", what, check, question.deployment, load, effects)]
