"""What a pass of the trial run holds at one kind of layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.facts.engines.memory import ProfilingRun, StepBuffer
from glmplan.facts.schema.model import LayerKind, ModelSpec
from glmplan.physics.blocks.activations import activation_bytes
from glmplan.physics.blocks.kinds import mixer_of
from glmplan.physics.blocks.stack import JOINED_STATES
from glmplan.physics.memory.encoder import video_images, with_encoder
from glmplan.physics.memory.profiling import TrialStep, expanded_context_bytes, is_dense, peak_bytes
from glmplan.physics.memory.settings import MemorySettings

__all__ = ["PassStep", "attention_bytes", "pass_bytes", "stage_peak", "trial_run"]

#: bytes of an activation [B]
_VALUE_BYTES = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class PassStep:
    """A step on some layouts.

    Attributes
    ----------
    tokens : numeric
        Tokens of the step on one data-parallel rank, [token]
    tp, dp, ep : (n,) array
        Parallel degrees, [-]
    """

    tokens: np.ndarray | float
    tp: np.ndarray
    dp: np.ndarray
    ep: np.ndarray


def trial_run(model: ModelSpec, settings: MemorySettings, *, quantised: bool = True) -> ProfilingRun | None:
    """The engine's trial run of a model.

    Parameters
    ----------
    model : ModelSpec
        The model.
    settings : MemorySettings
        The launch.
    quantised : bool, optional
        Whether its weights are quantised.

    Returns
    -------
    ProfilingRun or None
        None where no source says what it holds.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> trial_run(load_model("llama-3.1-8b"), MemorySettings(version="0.11.0")).sampler
    38
    """
    rule = settings.rule
    if not rule.profiling:
        return None
    return rule.profiling_of(settings.version, dense=is_dense(model), model=model.name, quantised=quantised)


def pass_bytes(
    model: ModelSpec, kind: LayerKind, run: ProfilingRun | None, settings: MemorySettings, step: PassStep
) -> np.ndarray:
    """What a pass holds at one kind of layer.

    Parameters
    ----------
    model : ModelSpec
        The model.
    kind : LayerKind
        The layer.
    run : ProfilingRun or None
        The engine's trial run.
    settings : MemorySettings
        The launch.
    step : PassStep
        The step.

    Returns
    -------
    (n,) array
        [B]

    Notes
    -----
    Where the trial expands a context of latents, that stands in place of keys and values of the step's own tokens.

    Examples
    --------
    GLM-5.1 attending densely on two ranks: 1.75 GiB of context beside states and queries.

    >>> from glmplan.facts.catalogue.models import load_model
    >>> glm, told = load_model("glm-5.1"), MemorySettings(version="0.19.0", indexer=False)
    >>> one = np.ones(1)
    >>> held = pass_bytes(glm, glm.layers[glm.layer_names[-1]], trial_run(glm, told), told,
    ...                   PassStep(8192.0, 2 * one, one, one))
    >>> round(float(held[0]) / 2**30, 2)
    2.42
    """
    widest = activation_bytes((kind,), model.hidden, tokens=step.tokens, tp=step.tp, dp=step.dp, ep=step.ep)
    return np.maximum(widest, attention_bytes(model, kind, run, settings, step))


def attention_bytes(
    model: ModelSpec, kind: LayerKind, run: ProfilingRun | None, settings: MemorySettings, step: PassStep
) -> np.ndarray:
    """What a pass holds while a layer attends: hidden states, residual and the transient of its mixer.

    Parameters
    ----------
    model : ModelSpec
        The model.
    kind : LayerKind
        The layer.
    run : ProfilingRun or None
        The engine's trial run.
    settings : MemorySettings
        The launch.
    step : PassStep
        The step.

    Returns
    -------
    (n,) array
        [B]

    Examples
    --------
    Llama-3.1-8B on one card, 8,192 tokens: two hidden states of 4,096 values, 32 queries and outputs and 8 keys and
    values of 128.

    >>> from glmplan.facts.catalogue.models import load_model
    >>> llama, told, one = load_model("llama-3.1-8b"), MemorySettings(version="0.19.0"), np.ones(1)
    >>> held = attention_bytes(llama, llama.layers["layer"], None, told, PassStep(8192.0, one, one, one))
    >>> float(held[0]) == 8192 * 2.0 * (2 * 4096 + (2 * 32 + 2 * 8) * 128)
    True
    """
    mixer = mixer_of(kind)
    longest = model.max_context if settings.longest is None else settings.longest
    sparse = mixer.indexed and settings.indexer
    context = expanded_context_bytes(run, mixer, tp=step.tp, longest=longest, sparse=sparse)
    values = mixer.activation_values(step.tp)
    if np.any(context):
        values = values - mixer.expanded_values / step.tp
    return _VALUE_BYTES * step.tokens * (2.0 * model.hidden + values) + context


def stage_peak(
    model: ModelSpec,
    forward: np.ndarray,
    settings: MemorySettings,
    step: TrialStep,
    *,
    run: ProfilingRun | None,
    tp: np.ndarray,
) -> np.ndarray:
    """Peak of the activations of one pipeline stage: pass, sampler and, on the first stage, the image tower.

    Parameters
    ----------
    model : ModelSpec
        The model.
    forward : (n,) array
        What a pass holds at the widest layer of the stage, [B]
    settings : MemorySettings
        The launch.
    step : TrialStep
        The step.
    run : ProfilingRun or None
        The engine's trial run.
    tp : (n,) array
        Tensor-parallel degree, [-]

    Returns
    -------
    (n,) array
        [B]; of engines that reserve a buffer for a step, that buffer: the mask beside the widest layer, or the logits.

    Notes
    -----
    An EAGLE-3 head reads states of three layers, which stay until the trial of the head itself is over [1]_. Of
    Kimi-K2.6 on eight RTX PRO 6000, pools with and without it tell 1.37 GiB for the head and them at DCP 1, 4 and 8.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/v1/worker/gpu_model_runner.py (_dummy_run), vllm/model_executor/models/deepseek_v2.py
       (aux_hidden_states).

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> one, told, llama = np.ones(1), MemorySettings(version="0.11.0"), load_model("llama-3.1-8b")
    >>> step, run = TrialStep(8192.0 * one, 1024.0 * one, one > 0), trial_run(llama, told)
    >>> round(float(stage_peak(llama, 9e8 * one, told, step, run=run, tp=one)[0]) / 2**30, 2)
    4.72
    """
    buffer = settings.rule.step_of(settings.version)
    if buffer is not None:
        return _step_buffer(buffer, model, forward, settings, step)
    if run is not None and step.drafts and model.draft_head is not None:
        forward = forward + _VALUE_BYTES * JOINED_STATES * model.hidden * step.tokens
    peak = peak_bytes(run, model, forward, step)
    if not step.first or run is None or not run.images:
        return peak
    longest = model.max_context if settings.longest is None else settings.longest
    video = video_images(model, longest=longest, frames=run.video_frames)
    return with_encoder(model, peak, tokens=step.tokens, tp=tp, video=video, whole=settings.whole_tower)


def _step_buffer(
    buffer: StepBuffer, model: ModelSpec, forward: np.ndarray, settings: MemorySettings, step: TrialStep
) -> np.ndarray:
    """The buffer that llama.cpp reserves for a step: tensors of its graph share memory as soon as nobody reads them.

    The mask is read by the last layer that attends, the logits come after it. A slot is as long as the longest request.
    """
    longest = model.max_context if settings.longest is None else settings.longest
    mask = buffer.mask * step.tokens * np.asarray(longest, dtype=float)
    rows = step.tokens
    if not buffer.all_logits:
        rows = np.minimum(step.requests * (1.0 + settings.drafted(step.drafts)), rows)
    logits = buffer.value * (step.tokens * model.hidden + np.where(step.last, rows * model.vocabulary, 0.0))
    return np.maximum(forward * (buffer.value / _VALUE_BYTES) + mask, logits)
