"""Runs with weights in host memory: from a row that says "cpu-gpu-hybrid" to the machine behind it and its figures."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from glmplan.errors import SpecError, UnknownFact
from glmplan.facts.catalogue.accelerators import load_accelerator
from glmplan.facts.catalogue.models import load_model
from glmplan.facts.schema.accelerator import Accelerator
from glmplan.facts.schema.hybrid_system import HybridSystem
from glmplan.facts.schema.model import Checkpoint, ModelSpec
from glmplan.physics.blocks.features import routed_blocks
from glmplan.physics.blocks.kinds import feed_forwards_of, routed_of
from glmplan.physics.offload.time import (
    HostSide,
    Mode,
    OffloadFit,
    OffloadWork,
    Placement,
    load_offload_fit,
    offload_step_seconds,
    offload_work,
)
from glmplan.prediction.deployment import checkpoint_for
from glmplan.prediction.offloaded_machines import systems_of
from glmplan.prediction.predict import Figure
from glmplan.readers.runs.record import Run

__all__ = [
    "HybridAnswer",
    "HybridCase",
    "case_figures",
    "hybrid_case",
    "predict_hybrid",
]

_ACTIVE = re.compile(r"\b(\d+) (?:of \d+ )?experts")
#: a row that gives no lengths: what `glmplan.prediction.from_row` assumes too [token]
_INPUT, _OUTPUT = 512.0, 256.0
#: share of the accelerators' memory that weights fill where experts fill it up; the rest is cache and buffers [-]
_FILLED = 0.85
#: half-width of a 90 % interval over the standard deviation of a normal distribution [-]
_NORMAL = 1.645


@dataclass(frozen=True, slots=True)
class HybridCase:
    """A row on a machine: the work of its steps.

    Attributes
    ----------
    system : HybridSystem
        The machine.
    side : HostSide
        Its host.
    part : Accelerator or None
        Its accelerator.
    count : int
        Accelerators, [-]
    decode : OffloadWork
        One step of decoding.
    prompt : OffloadWork
        The chunks of all prompts that arrive together, one entry each.
    prompt_tokens : float
        Tokens of these chunks, [token]
    prompt_mode : str
        Who computes the offloaded part of prompts.
    decode_mode : str
        Who computes it while decoding.
    requests, input_tokens, output_tokens : float
        Load, [-] and [token]
    assumed : tuple of str
        What the row and the page did not say.
    """

    system: HybridSystem
    side: HostSide
    part: Accelerator | None
    count: int
    decode: OffloadWork
    prompt: OffloadWork
    prompt_tokens: float
    prompt_mode: Mode
    decode_mode: Mode
    requests: float
    input_tokens: float
    output_tokens: float
    assumed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class HybridAnswer:
    """The answer to a row.

    Attributes
    ----------
    figures : dict of str to Figure
        ``ttft_ms``, ``tpot_ms``, ``output_tokens_per_s``, ``output_tokens_per_s_per_request``,
        ``total_tokens_per_s``, ``prefill_tokens_per_s``, in the units their names say.
    basis, out_of_domain : str
        What it rests on, and what was not stated.
    """

    figures: dict[str, Figure]
    basis: str
    out_of_domain: str


def _active(model: ModelSpec, run: Run) -> ModelSpec:
    """The model with as few active experts as a scenario says."""
    found = _ACTIVE.search(run.scenario or "")
    if found is None:
        return model
    layers = {}
    for name, kind in model.layers.items():
        ffn = tuple(block.visiting(int(found[1])) for block in feed_forwards_of(kind))
        layers[name] = kind.model_copy(update={"ffn": ffn})
    return model.model_copy(update={"layers": layers})


def _checkpoint(model: ModelSpec, run: Run, system: HybridSystem, assumed: list[str]) -> Checkpoint:
    bits = run.weights_bits or (None if run.weights and run.weights not in ("iq3_ks",) else system.weights_bits)
    weights = run.weights or system.weights
    if weights is None and bits is None:
        weights = "q4_k_m"
        assumed.append("weights q4_k_m")
    return checkpoint_for(model, weights, bits=bits)


def _placement(
    model: ModelSpec, checkpoint: Checkpoint, run: Run, system: HybridSystem, count: int, assumed: list[str]
) -> Placement:
    experts = max((block.experts for block in routed_blocks(model)), default=0)
    layers = sum(n for name, n in model.runs if routed_of(model.layers[name]) is not None)
    given = run.cells.get("host_share")
    if system.accelerator is None:
        return Placement(1.0, "layers")
    if given:
        return Placement(float(given), "expert-layers" if run.cells.get("unit") == "expert-layers" else "experts")
    if not experts:
        raise UnknownFact(f"{model.name} has no experts, and the row does not say which layers are in host memory")
    if system.host_layers:
        return Placement(min(system.host_layers / layers, 1.0), "expert-layers")
    if system.on_accelerator:
        held = system.on_accelerator[min(int(np.log2(max(count, 1))), len(system.on_accelerator) - 1)]
        return Placement(1.0 - min(held / experts, 1.0))
    if system.fills_accelerators and system.accelerator:
        every = offload_work(
            model, checkpoint, Placement(1.0), tokens=np.ones(1), sequences=np.ones(1), context=np.zeros(1)
        )
        room = _FILLED * count * load_accelerator(system.accelerator).need("memory") - float(every.own_bytes[0])
        assumed.append("as many experts on the accelerators as fit")
        return Placement(1.0 - min(max(room / every.held_bytes, 0.0), 1.0))
    assumed.append("all routed experts in host memory")
    return Placement(1.0)


def hybrid_case(run: Run, system: HybridSystem) -> HybridCase:
    """Work of a row on a machine.

    Parameters
    ----------
    run : Run
        The row.
    system : HybridSystem
        The machine.

    Returns
    -------
    HybridCase
        Steps of decoding and of the prompts.

    Raises
    ------
    GlmplanError
        If the model or a format is unknown, or the row has a bad cell.
    """
    from glmplan.physics.network.links import load_link_fits

    if run.error and "accelerator" not in run.error:
        raise SpecError(run.error)
    assumed: list[str] = []
    model = _active(load_model(run.model), run)
    count = (run.accelerator_count or run.tp or 1) if system.accelerator else 0
    checkpoint = _checkpoint(model, run, system, assumed)
    placement = _placement(model, checkpoint, run, system, count, assumed)
    if system.host_weights and checkpoint.file_bits_per_weight is None:
        formats = {**checkpoint.formats, "routed_experts": system.host_weights}
        checkpoint = checkpoint.model_copy(update={"formats": formats})
    requests = max(run.concurrency or 1.0, 1.0)
    if run.concurrency is None:
        assumed.append("one request in flight")
    inputs = run.input_tokens or (run.context_depth if run.phase == "decode" else None)
    if inputs is None:
        inputs = float(system.chunk) if "prefill_tokens_per_s" in run.cells and system.streams_above else _INPUT
        assumed.append(f"{inputs:.0f} input tokens")
    outputs = run.output_tokens or _OUTPUT
    link = system.link.bandwidth * load_link_fits().scalars["payload"] if system.link else 0.0
    side = HostSide(
        system.memory_bandwidth, system.sockets, system.cores, link * count, system.kernel, system.numa_aware
    )
    before = run.context_depth or inputs
    one = np.array([requests])
    decode = offload_work(
        model, checkpoint, placement, tokens=one, sequences=one, context=np.array([before + outputs / 2])
    )
    total = inputs * (requests if run.phase != "decode" else 1.0)
    chunks = int(np.ceil(total / system.chunk))
    size = np.full(chunks, total / chunks)
    together = np.maximum(size / inputs, 1.0)
    streams = system.streams_above is not None and size[0] > system.streams_above and link > 0
    prompt = offload_work(
        model, checkpoint, placement, tokens=size, sequences=together, context=np.full(chunks, inputs / 2)
    )
    return HybridCase(
        system=system,
        side=side,
        part=load_accelerator(system.accelerator) if system.accelerator else None,
        count=count,
        decode=decode,
        prompt=prompt,
        prompt_tokens=total,
        prompt_mode="stream" if streams else "cpu",
        decode_mode=placement.mode,
        requests=requests,
        input_tokens=inputs,
        output_tokens=outputs,
        assumed=tuple(assumed),
    )


def case_figures(case: HybridCase, *, fit: OffloadFit | None = None) -> dict[str, float]:
    """Figures of a case, without intervals.

    Parameters
    ----------
    case : HybridCase
        The case.
    fit : OffloadFit, optional
        Constants.

    Returns
    -------
    dict of str to float
        ``tpot``, ``ttft`` [s]; ``request_rate``, ``output_rate``, ``total_rate``, ``prefill_rate`` [token/s].
    """
    fit = fit or load_offload_fit()
    step = float(
        offload_step_seconds(
            case.decode, case.side, case.part, count=case.count, mode=case.decode_mode, prompt=False, fit=fit
        )[0]
    )
    prompts = float(
        offload_step_seconds(
            case.prompt, case.side, case.part, count=case.count, mode=case.prompt_mode, prompt=True, fit=fit
        ).sum()
    )
    share = max(case.prompt_tokens / (case.requests * case.input_tokens), 1e-9)
    wall = prompts / share + case.output_tokens * step
    return {
        "tpot": step,
        "ttft": prompts * (case.requests * share + 1.0) / (2.0 * case.requests * share),
        "request_rate": 1.0 / step,
        "decode_rate": case.requests / step,
        "output_rate": case.requests * case.output_tokens / wall,
        "total_rate": case.requests * (case.output_tokens + case.input_tokens) / wall,
        "prefill_rate": case.prompt_tokens / prompts,
    }


#: figure of a table → (figure of a case, kind of interval, factor to the table's unit)
_COLUMNS = {
    "ttft_ms": ("ttft", "prefill", 1e3),
    "tpot_ms": ("tpot", "decode", 1e3),
    "output_tokens_per_s_per_request": ("request_rate", "decode", 1.0),
    "output_tokens_per_s": ("output_rate", "decode", 1.0),
    "total_tokens_per_s": ("total_rate", "decode", 1.0),
    "prefill_tokens_per_s": ("prefill_rate", "prefill", 1.0),
}


def predict_hybrid(run: Run, *, fit: OffloadFit | None = None) -> HybridAnswer:
    """Predict a row whose experts run in host memory.

    Parameters
    ----------
    run : Run
        The row; `run.offload` is true for such rows.
    fit : OffloadFit, optional
        Constants; those shipped by default.

    Returns
    -------
    HybridAnswer
        Figures with 90 % intervals. Where the row does not say on which machine it ran, the middle of the machines
        that it may be, with an interval over all of them.

    Raises
    ------
    GlmplanError
        If the model or a format is unknown, or the row has a bad cell.

    Examples
    --------
    >>> from glmplan.readers.runs.table import run_from_row
    >>> row = {"id": "a", "model": "deepseek-v3", "weights": "q4_k_m", "accelerator": "cpu-gpu-hybrid",
    ...        "accelerator_count": "1", "phase": "decode", "concurrency": "1", "notes": "2 x Xeon 6454S"}
    >>> figure = predict_hybrid(run_from_row(row)).figures["output_tokens_per_s_per_request"]
    >>> figure.low < figure.value < figure.high
    True
    """
    fit = fit or load_offload_fit()
    systems, found = systems_of(run)
    cases = [hybrid_case(run, system) for system in systems]
    seen = [case_figures(case, fit=fit) for case in cases]
    if run.phase == "decode":
        seen = [{**one, "output_rate": one["decode_rate"]} for one in seen]
    figures = {}
    for column, (name, kind, factor) in _COLUMNS.items():
        # corrections and intervals are of measured over predicted rates; a time is the other way round
        sign = -1.0 if name in ("ttft", "tpot") else 1.0
        known = [fit.of_machine(system.name, kind) for system in systems]
        logs = np.log([one[name] for one in seen]) + sign * np.array([shift for shift, _, _ in known])
        # only a machine that is certain has the narrow interval of its own runs
        low, high = known[0][1:] if found == "stated" else fit.intervals[kind]
        low, high = (-high, -low) if sign < 0 else (low, high)
        middle, among = float(logs.mean()), _NORMAL * float(logs.std())
        lower, upper = middle - np.hypot(low, among), middle + np.hypot(high, among)
        figures[column] = Figure(*(float(factor * np.exp(one)) for one in (middle, lower, upper)))
    titles = systems[0].title if len(systems) == 1 else f"{len(systems)} published hybrid machines"
    assumed = sorted({*cases[0].assumed, *(systems[0].assumptions if len(systems) == 1 else ())})
    basis = f"offload model fitted to published hybrid runs; machine {found}: {titles}"
    if assumed:
        basis += f"; assumed {', '.join(assumed)}"
    outside = "" if found == "stated" else f"the machine is {found}: the middle of {len(systems)} is taken"
    if cases[0].part is not None and "bf16" not in cases[0].part.peak:
        more = f"no matrix rate of {cases[0].part.full_name} is published: its FLOP are left out"
        outside = "; ".join(part for part in (outside, more) if part)
    return HybridAnswer(figures, basis, outside)
