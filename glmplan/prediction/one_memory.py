"""Machines with one memory for CPU and accelerator, where no matrix rate is published: decoding by bytes alone."""

from __future__ import annotations

import numpy as np

from glmplan.errors import GlmplanError, UnknownFact
from glmplan.facts.catalogue.accelerators import load_accelerator
from glmplan.physics.offload.time import OffloadFit, Placement, load_offload_fit, offload_work
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.from_row import question_of
from glmplan.prediction.offloaded_rows import HybridAnswer, predict_hybrid
from glmplan.prediction.predict import Figure
from glmplan.readers.runs.record import Run

__all__ = ["needs_unified", "predict_apart", "predict_unified", "unified_step_parts", "unified_step_seconds"]


def needs_unified(run: Run) -> bool:
    """Whether a row ran on a machine with one memory whose matrix rate nobody published.

    Parameters
    ----------
    run : Run
        The row.

    Returns
    -------
    bool
        Such rows can be answered here, for decoding, and nowhere else.

    Examples
    --------
    >>> from glmplan.readers.runs.table import run_from_row
    >>> needs_unified(run_from_row({"id": "a", "model": "glm-5.1", "accelerator": "m3-ultra"}))
    True
    """

    try:
        part = load_accelerator(run.accelerator)
    except GlmplanError:
        return False
    return part.unified_memory and not part.peak and part.memory_bandwidth is not None


def unified_step_parts(deployment: Deployment, *, requests: float, context: float) -> tuple[float, int]:
    """Bytes and layers of one step of decoding.

    Parameters
    ----------
    deployment : Deployment
        The deployment.
    requests : float
        Requests that decode together, [-]
    context : float
        Cached tokens of each, [token]

    Returns
    -------
    tuple of (float, int)
        Weights and cache read, [B], and layers, [-]
    """
    work = offload_work(
        deployment.model, deployment.checkpoint, Placement(0.0), tokens=np.array([requests]),
        sequences=np.array([requests]), context=np.array([context]), kv=deployment.kv,
    )  # fmt: skip
    return float(work.own_bytes[0] + work.cache_bytes[0]), work.layers


def unified_step_seconds(
    size: float, layers: int, *, bandwidth: float, count: int = 1, fit: OffloadFit | None = None
) -> float:
    """Time of one step of decoding.

    Parameters
    ----------
    size : float
        Weights and cache read, [B]
    layers : int
        Layers, [-]
    bandwidth : float
        Memory bandwidth of one machine, [B/s]
    count : int, optional
        Machines, one after the other, [-]
    fit : OffloadFit, optional
        Constants; those shipped by default.

    Returns
    -------
    float
        [s]

    Notes
    -----
    Several machines hold stages of the model, so a single stream reads one memory after the other: their number does
    not change the time. Not modelled: hand-over between machines, tensor parallelism over Thunderbolt.

    Examples
    --------
    >>> from glmplan.physics.offload.time import load_offload_fit
    >>> unified_step_seconds(100e9, 60, bandwidth=819e9) > 100e9 / 819e9
    True
    """
    fit = fit or load_offload_fit()
    return size / (fit.unified_bandwidth * bandwidth) + layers * fit.unified_layer_seconds


def predict_unified(run: Run, *, fit: OffloadFit | None = None) -> HybridAnswer:
    """Predict decoding of a row on a machine with one memory.

    Parameters
    ----------
    run : Run
        The row.
    fit : OffloadFit, optional
        Constants; those shipped by default.

    Returns
    -------
    HybridAnswer
        ``tpot_ms``, ``output_tokens_per_s`` and ``output_tokens_per_s_per_request`` with 90 % intervals; nothing that
        a prompt decides.

    Raises
    ------
    GlmplanError
        If the model is unknown, the row has a bad cell, or nothing of it is decoding.

    Examples
    --------
    >>> from glmplan.readers.runs.table import run_from_row
    >>> row = {"id": "a", "model": "glm-5.1", "weights": "mxfp4", "accelerator": "m3-ultra", "accelerator_count": "1",
    ...        "engine": "mlx", "phase": "decode", "concurrency": "1"}
    >>> 10 < predict_unified(run_from_row(row)).figures["output_tokens_per_s_per_request"].value < 40
    True
    """
    fit = fit or load_offload_fit()
    question = question_of(run)
    deployment = question.deployment
    if run.phase == "prefill":
        raise UnknownFact(f"no matrix rate of {deployment.accelerator.full_name} is published: prompts cannot be timed")
    requests = question.load.concurrency
    context = max(question.load.context, question.load.input_tokens) + question.load.output_tokens / 2
    size, layers = unified_step_parts(deployment, requests=requests, context=context)
    bandwidth = deployment.accelerator.need("memory_bandwidth")
    step = unified_step_seconds(size, layers, bandwidth=bandwidth, count=deployment.count, fit=fit)
    low, high = fit.intervals["unified"]
    values = {
        "tpot_ms": (1e3 * step, -high, -low),
        "output_tokens_per_s_per_request": (1.0 / step, low, high),
        "output_tokens_per_s": (requests / step, low, high),
    }
    figures = {
        name: Figure(value, value * float(np.exp(under)), value * float(np.exp(over)))
        for name, (value, under, over) in values.items()
    }
    basis = "decoding by bytes, fitted to published runs on machines with one memory"
    if question.assumed:
        basis += f"; assumed {', '.join(question.assumed)}"
    outside = f"no matrix rate of {deployment.accelerator.full_name} is published: prompts are not timed"
    if run.phase == "serving":
        outside += "; the rates are of decoding alone"
    return HybridAnswer(figures, basis, outside)


def predict_apart(run: Run) -> HybridAnswer | None:
    """Answer a row that the step-time model cannot: weights in host memory, or one memory without a matrix rate.

    Parameters
    ----------
    run : Run
        The row.

    Returns
    -------
    HybridAnswer or None
        The answer; None for a row that the step-time model answers.

    Raises
    ------
    GlmplanError
        If it is such a row and there is no answer: says why.

    Examples
    --------
    >>> from glmplan.readers.runs.table import run_from_row
    >>> predict_apart(run_from_row({"id": "a", "model": "glm-5.1", "accelerator": "b200-sxm"})) is None
    True
    """
    if run.offload:
        return predict_hybrid(run)
    return predict_unified(run) if needs_unified(run) else None
