"""Peak of the trial step by which an engine sizes its KV cache pool.

vLLM runs one forward pass with the most tokens of a step and then its sampler with the most requests [1]_. The pass has
given back what its layers held when the sampler starts, so the peak is the larger of the two and not their sum.

References
----------
.. [1] vllm-project/vllm, vllm/v1/worker/gpu_model_runner.py, `profile_run` and `_dummy_sampler_run`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.facts.engines.memory import ProfilingRun
from glmplan.facts.schema.model import ModelSpec
from glmplan.physics.blocks.activations import logit_bytes
from glmplan.physics.blocks.kinds import feed_forwards_of, mixer_of
from glmplan.physics.blocks.mixer import Mixer

__all__ = ["TrialStep", "expanded_context_bytes", "is_dense", "peak_bytes"]

#: bytes of an activation [B]
_VALUE_BYTES = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class TrialStep:
    """The step by which an engine sizes its pool; arrays are (n,).

    Attributes
    ----------
    tokens, requests : array
        Tokens of the step [token] and requests that are sampled [-]
    last : bool array
        Whether the stage is the last one, which samples.
    drafts : bool
        Whether draft layers are loaded.
    kept : numeric
        Buffers that kernels keep after the pass, [B]
    first : bool
        Whether the stage is the first one, which has the image tower.
    """

    tokens: np.ndarray
    requests: np.ndarray
    last: np.ndarray
    drafts: bool = False
    kept: np.ndarray | float = 0.0
    first: bool = False


def is_dense(model: ModelSpec) -> bool:
    """Whether a model has neither experts nor recurrent layers.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    bool

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> [is_dense(load_model(name)) for name in ("llama-3.1-8b", "qwen3-30b-a3b", "qwen3.5-27b")]
    [True, False, False]
    """
    for name, _ in model.runs:
        kind = model.layers[name]
        if mixer_of(kind).state_bytes() or any(one.routed is not None for one in feed_forwards_of(kind)):
            return False
    return True


def expanded_context_bytes(
    run: ProfilingRun | None, mixer: Mixer, *, tp: np.ndarray, longest: np.ndarray | float, sparse: bool
) -> np.ndarray | float:
    """Keys and values that latent attention expands of a context in the trial run, as the worst case of a prompt.

    Parameters
    ----------
    run : ProfilingRun or None
        The engine's trial run.
    mixer : Mixer
        The layer's attention.
    tp : (n,) array
        Tensor-parallel degree, which splits the heads, [-]
    longest : numeric
        Longest request, [token]
    sparse : bool
        Whether it attends sparsely, which older trial runs leave out.

    Returns
    -------
    (n,) array
        [B]; 0 where nothing is expanded. Not modelled: rounding to whole pages.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/model_executor/layers/attention/mla_attention.py (forward_impl without metadata).

    Examples
    --------
    GLM-5.1 on two ranks: 65,536 tokens, 32 heads, 192 + 256 values of 2 B, 1.75 GiB.

    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.facts.engines.memory import load_memory_rule
    >>> from glmplan.physics.blocks.kinds import mixer_of
    >>> glm, run = load_model("glm-5.1"), load_memory_rule("vllm").profiling_of("0.19.0", dense=False)
    >>> latent = mixer_of(glm.layers[glm.layer_names[0]])
    >>> found = expanded_context_bytes(run, latent, tp=np.array([2.0]), longest=131072.0, sparse=False)
    >>> float(found[0]) / 2**30
    1.75
    """
    if run is None or not mixer.expanded_values or (sparse and not run.latent_sparse):
        return 0.0
    tokens = np.minimum(run.latent_requests * np.asarray(longest, dtype=float), run.latent_context)
    return _VALUE_BYTES * tokens * mixer.expanded_values / np.minimum(tp, mixer.heads)


def peak_bytes(run: ProfilingRun | None, model: ModelSpec, forward: np.ndarray, step: TrialStep) -> np.ndarray:
    """Peak of the activations that an engine finds before it makes its pool.

    Parameters
    ----------
    run : ProfilingRun or None
        The engine's trial run; None where no source says what it holds: then the pass and the logits are summed.
    model : ModelSpec
        The model.
    forward : (n,) array
        What a forward pass holds at its widest layer, its input, residual and output apart, [B]
    step : TrialStep
        The step.

    Returns
    -------
    (n,) array
        [B]

    Notes
    -----
    vLLM's compiled layers write their output over their input, so the pass holds one hidden state less than `forward`.
    The sampler runs while the hidden states of the step are still there, and what kernels keep
    (`glmplan.physics.memory.workspaces`); what it keeps itself of each request counts beside both, where the engine
    counts it. Checked against the start-up logs of
    `calibration/memory`: MiniMax-M2.5 on four ranks with expert parallelism takes 86.5 kB for each further token of the
    step, this gives 86.0 kB. Not modelled: other work spaces of kernels, image
    and audio encoders.

    Examples
    --------
    >>> from glmplan.facts.catalogue.models import load_model
    >>> from glmplan.facts.engines.memory import load_memory_rule
    >>> llama, run = load_model("llama-3.1-8b"), load_memory_rule("vllm").profiling_of("0.11.0", dense=True)
    >>> one = np.ones(1)
    >>> round(float(peak_bytes(run, llama, 9e8 * one, TrialStep(8192.0 * one, 1024.0 * one, one > 0))[0]) / 2**30, 2)
    4.72
    """
    hidden = _VALUE_BYTES * model.hidden
    if run is None:
        return forward + np.where(step.last, logit_bytes(model.vocabulary, step.requests), 0.0)
    rows = np.minimum(step.requests, step.tokens)
    each = run.drafting if step.drafts else run.sampler
    sampler = hidden * (step.tokens + rows) + each * model.vocabulary * rows
    state = np.where(step.last, run.state * model.vocabulary * step.requests, 0.0)
    return state + np.maximum(forward - hidden * step.tokens, np.where(step.last, sampler, 0.0) + step.kept)
