"""Predict rows with weights in host memory ("cpu-gpu-hybrid").

The machines behind the rows are found here, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from glmplan.catalog.engines.defaults import engine_defaults
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.models import load_model
from glmplan.catalog.files import data_folder, read_toml
from glmplan.catalog.schema.host import HybridSystem
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.catalog.schema.validation import validated
from glmplan.costs.blocks.kinds import feed_forwards_of, routed_of
from glmplan.costs.blocks.stack import routed_blocks
from glmplan.costs.offload.steps import HostedSteps, Offload
from glmplan.costs.offload.work import HostSide, OffloadFit, Placement, load_offload_fit, offload_work
from glmplan.costs.points import StepPoints
from glmplan.errors import SpecError, UnknownFact
from glmplan.io.models.checkpoints import checkpoint_for
from glmplan.io.runs.record import Run
from glmplan.prediction.deployment import keeps_experts_on_host
from glmplan.prediction.evidence import evidence_of_offloading
from glmplan.prediction.load import Load, user_load
from glmplan.prediction.predict import Figure, Prediction, predict_steps
from glmplan.units import QUANTILE_90

__all__ = ["HybridCase", "hybrid_case", "hybrid_systems", "predict_hybrid", "systems_of"]


@cache
def hybrid_systems() -> tuple[HybridSystem, ...]:
    """Return the machines of `calibration/offload/systems.toml`.

    Examples
    --------
    >>> any(system.name == "epyc-9355-rtx-5090" for system in hybrid_systems())
    True
    """
    path = data_folder("calibration") / "offload" / "systems.toml"
    return tuple(validated(HybridSystem, entry, path) for entry in read_toml(path)["systems"])


def systems_of(run: Run) -> tuple[tuple[HybridSystem, ...], str]:
    """Return the possible machines of a row, and how they were found.

    ``stated`` (one machine), ``one of several of its page``, ``named in the row`` or ``not stated``.

    Examples
    --------
    >>> from glmplan.io.runs.table import run_from_row
    >>> row = {"id": "a", "model": "deepseek-v3", "accelerator": "cpu-gpu-hybrid", "notes": "1 x 5090, 2 x EPYC 9355"}
    >>> [system.name for system in systems_of(run_from_row(row))[0]]
    ['epyc-9355-rtx-5090', 'epyc-9355-qwen3-coder-next']
    """
    every = hybrid_systems()
    page = [
        one
        for one in every
        if one.match.page in (run.source or "") and re.search(one.match.scenario or "", run.scenario or "")
    ]
    named = [one for one in page if run.id in one.match.rows]
    if named or len(page) == 1:
        return tuple(named or page), "stated"
    if page:
        return tuple(page), "one of several of its page"
    text = f"{run.scenario} {run.notes} {run.host or ''} {run.accelerator_given} {run.cells.get('system', '')}".lower()
    named = [one for one in every if one.name in text or any(word in text for word in _cpu_words(one))]
    if named:
        return tuple(named), "named in the row"
    return tuple(one for one in every if one.accelerator and one.sockets <= 2), "not stated"


def _cpu_words(system: HybridSystem) -> list[str]:
    """Return the words that name a machine's CPU, as ``9355`` or ``6454s``."""
    before = system.title.split(",")[0].lower()
    return [word for word in re.findall(r"\b[a-z]?\d{4}[a-z]{0,2}\b", before)]


_ACTIVE = re.compile(r"\b(\d+) (?:of \d+ )?experts")
#: lengths of a row that states none, as in `glmplan.prediction.from_row` [token]
_INPUT, _OUTPUT = 512.0, 256.0
#: engine whose scheduling applies to a row without one
_PACKED_BY = "ktransformers"
#: share of the accelerators' memory for weights if experts fill it; the rest is cache and buffers [-]
_FILLED = 0.85


@dataclass(frozen=True, slots=True)
class HybridCase:
    """A row on a machine."""

    system: HybridSystem
    steps: HostedSteps  # without the corrections of the machine's own runs
    load: Load
    prompts: Load  # the measured prompts alone, or one
    assumed: tuple[str, ...]  # not stated by row and page


def _active(model: ModelSpec, run: Run) -> ModelSpec:
    """Return the model with the active experts of a row's scenario."""
    match = _ACTIVE.search(run.scenario or "")
    if match is None:
        return model
    layers = {}
    for name, kind in model.layers.items():
        ffn = tuple(block.visiting(int(match[1])) for block in feed_forwards_of(kind))
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
        one = np.ones(1)
        every = offload_work(model, checkpoint, Placement(1.0), StepPoints(one, 0.0 * one, 0.0 * one, 0.0 * one))
        room = _FILLED * count * load_accelerator(system.accelerator).need("memory") - float(every.own_bytes[0])
        assumed.append("as many experts on the accelerators as fit")
        return Placement(1.0 - min(max(room / float(every.held_bytes[0]), 0.0), 1.0))
    assumed.append("all routed experts in host memory")
    return Placement(1.0)


def hybrid_case(run: Run, system: HybridSystem, *, fit: OffloadFit | None = None) -> HybridCase:
    """Return steps and load of a row on a machine."""
    from glmplan.costs.network.links import load_link_fits

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
    link = system.link.bandwidth * load_link_fits().scalars["payload"] if system.link else 0.0
    prepares = keeps_experts_on_host(run.engine or _PACKED_BY)
    side = HostSide(
        system.memory_bandwidth, system.sockets, system.cores, link * (count if prepares else 1), system.kernel,
        system.numa_aware, prepares,
    )  # fmt: skip
    streams = float(system.streams_above) if system.streams_above is not None and link > 0 else float("inf")
    accelerator = load_accelerator(system.accelerator) if system.accelerator else None
    steps = HostedSteps(model, checkpoint, Offload(placement, side, streams), accelerator, count, fit)
    load = _load(run, system, assumed)
    prompts = load if load.phase == "prefill" else replace(load, phase="prefill", concurrency=1.0)
    return HybridCase(system, steps, load, prompts, tuple(assumed))


def _load(run: Run, system: HybridSystem, assumed: list[str]) -> Load:
    requests = max(run.concurrency or 1.0, 1.0)
    if run.concurrency is None:
        assumed.append("one request in flight")
    phase = run.phase if run.phase in ("decode", "prefill") else "serving"
    if phase == "prefill" and requests > 1:
        phase = "serving"  # simultaneous prompts run in turn: the first does not wait for the last
    inputs = run.input_tokens or (run.context_depth if phase == "decode" else None)
    if inputs is None:
        inputs = float(system.chunk) if "prefill_tokens_per_s" in run.cells and system.streams_above else _INPUT
        assumed.append(f"{inputs:.0f} input tokens")
    depth = run.context_depth or 0.0
    if not run.engine:
        assumed.append(f"packing of {_PACKED_BY}")
    packing = replace(engine_defaults(run.engine or _PACKED_BY), budget=system.chunk)
    return user_load(
        packing,
        phase=phase,
        users=requests,
        input_tokens=inputs,
        output_tokens=run.output_tokens or _OUTPUT,
        # the prompt of a decode row is its stated depth
        context=0.0 if phase == "decode" and depth == inputs else depth,
        requests=run.num_requests or (round(requests) if run.phase == "prefill" else 0),
        max_requests=run.running_limit or packing.places,
    )


def predict_hybrid(run: Run) -> tuple[Prediction, Prediction]:
    """Return the predictions of a row and of its prompts alone.

    For an unstated machine, the middle of the possible ones with an interval over all.

    Examples
    --------
    >>> from glmplan.io.runs.table import run_from_row
    >>> row = {"id": "a", "model": "deepseek-v3", "weights": "q4_k_m", "accelerator": "cpu-gpu-hybrid",
    ...        "accelerator_count": "1", "phase": "decode", "concurrency": "1", "notes": "2 x Xeon 6454S"}
    >>> figure = predict_hybrid(run_from_row(row))[0].figures["user_rate"]
    >>> figure.low < figure.value < figure.high
    True
    """
    fit = load_offload_fit()
    systems, how = systems_of(run)
    cases = [hybrid_case(run, system, fit=fit) for system in systems]
    titles = systems[0].title if len(systems) == 1 else f"{len(systems)} published hybrid machines"
    assumed = sorted({*cases[0].assumed, *(systems[0].assumptions if len(systems) == 1 else ())})
    basis = f"machine {how}: {titles}" + (f"; assumed {', '.join(assumed)}" if assumed else "")
    outside = "" if how == "stated" else f"the machine is {how}: the middle of {len(systems)} is taken"
    accelerator = cases[0].steps.part
    if accelerator is not None and "bf16" not in accelerator.peak:
        more = f"no matrix rate of {accelerator.full_name} is published: its FLOP are left out"
        outside = "; ".join(words for words in (outside, more) if words)
    every = [
        evidence_of_offloading(one.name, certain=how == "stated", basis=basis, outside=outside, fit=fit)
        for one in systems
    ]
    pairs = list(zip(cases, every, strict=True))
    return (
        _middle([predict_steps(case.steps, case.load, known) for case, known in pairs]),
        _middle([predict_steps(case.steps, case.prompts, known) for case, known in pairs]),
    )


def _middle(found: list[Prediction]) -> Prediction:
    """Return the geometric middle of machines, with an interval over all."""
    figures = {}
    for name in found[0].figures:
        every = [one.figures[name] for one in found]
        logs = np.log([one.value for one in every])
        middle, among = float(logs.mean()), QUANTILE_90 * float(logs.std())
        low, high = (np.hypot(np.log(end / every[0].value), among) for end in (every[0].low, every[0].high))
        value, lower, upper = (float(np.exp(middle + apart)) for apart in (0.0, -low, high))
        figures[name] = Figure(value, lower, upper)
    shares = {name: float(np.mean([one.shares[name] for one in found])) for name in found[0].shares}
    return replace(found[0], figures=figures, shares=shares)
