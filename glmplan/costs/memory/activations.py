"""Return the activation peak of the trial step that sizes the KV pool.

vLLM runs the image tower on as many of the largest images as a step's encoder budget holds, then one forward pass with
the most tokens of a step, then its sampler with the most requests [1]_. The pass has freed the memory of its layers
when the sampler starts, so the peak is the larger of the two and not their sum. The embeddings of the images stay
during both. The tower itself peaks in a layer or where it interpolates its position table, which every rank does in
full [2]_. vLLM's modular expert kernels and its indexer take their buffers from one allocation that grows with the
largest of them and is never freed [3]_, so the sampler finds it there.

References
----------
.. [1] vllm-project/vllm, vllm/v1/worker/gpu_model_runner.py (`profile_run`, `_dummy_sampler_run`),
   vllm/multimodal/encoder_budget.py, vllm/v1/core/encoder_cache_manager.py (`compute_mm_encoder_budget`).
.. [2] vllm-project/vllm, vllm/model_executor/models/qwen3_vl.py (`fast_pos_embed_interpolate`, `forward`),
   kimi_k25.py (`get_dummy_mm_items`: an image of 3,000 x 3,000 pixels), kimi_k25_vit.py, gemma4_mm.py (a video of 32
   frames) with the tower of Hugging Face transformers 5.13.1 (`Gemma4VisionPatchEmbedder` looks positions up).
.. [3] vllm-project/vllm, vllm/v1/worker/workspace.py (`WorkspaceManager`), pull request 27532;
   vllm/model_executor/layers/sparse_attn_indexer.py (without metadata).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.catalog.engines.memory import CompressedTrial, ProfilingRun, StepBuffer
from glmplan.catalog.schema.model import LayerKind, ModelSpec
from glmplan.costs.blocks.feed_forward import inner_rows
from glmplan.costs.blocks.kinds import feed_forwards_of, mixer_of, streams_of
from glmplan.costs.blocks.mixer import Mixer
from glmplan.costs.blocks.stack import Segment, activation_bytes, logit_bytes
from glmplan.costs.memory.settings import MemorySettings
from glmplan.units import Bytes, BytesArray, Ratio, Tokens, TokensArray

__all__ = [
    "PassStep",
    "TrialStep",
    "attention_bytes",
    "compressed_bytes",
    "encoder_peak",
    "expanded_context_bytes",
    "expert_workspace_bytes",
    "indexer_bytes",
    "is_dense",
    "pass_bytes",
    "pass_with_workspace",
    "peak_bytes",
    "stage_peak",
    "tower_is_known",
    "trial_run",
    "video_images",
    "with_encoder",
]


#: bytes of an activation
_VALUE_BYTES = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class TrialStep:
    """Step by which an engine sizes its pool; arrays are (n,)."""

    tokens: TokensArray
    requests: np.ndarray  # sampled requests
    last: np.ndarray  # True: last stage, which samples
    drafts: bool = False  # True: draft layers are loaded
    kept: np.ndarray | float = 0.0  # buffers that kernels keep after the pass [B]
    first: bool = False  # True: first stage, which has the image tower


def is_dense(model: ModelSpec) -> bool:
    """Return True if a model has neither experts nor recurrent layers."""
    for name, _ in model.runs:
        kind = model.layers[name]
        if mixer_of(kind).state_bytes() or any(item.routed is not None for item in feed_forwards_of(kind)):
            return False
    return True


def expanded_context_bytes(
    run: ProfilingRun | None, mixer: Mixer, *, tp: np.ndarray, longest: TokensArray | Tokens, sparse: bool
) -> BytesArray | Bytes:
    """Return the context that latent attention expands in the trial run.

    Keys and values. The worst case of a prompt [1]_; 0 where nothing is expanded. `sparse`: sparse attention, which
    older trial runs leave out. Not modelled: rounding to whole pages.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/model_executor/layers/attention/mla_attention.py (forward_impl without metadata).
    """
    if run is None or not mixer.expanded_values or (sparse and not run.latent_sparse):
        return 0.0
    tokens = np.minimum(run.latent_requests * np.asarray(longest, dtype=float), run.latent_context)
    result: np.ndarray | float = _VALUE_BYTES * tokens * mixer.expanded_values / np.minimum(tp, mixer.heads)
    return result


def peak_bytes(run: ProfilingRun | None, model: ModelSpec, forward: BytesArray, step: TrialStep) -> BytesArray:
    """Return the activation peak that an engine finds before it sizes a pool.

    `forward` is the memory of a pass at its widest layer with separate input, residual and output. Without a trial run
    (`run` None) pass and logits are summed.

    Notes
    -----
    vLLM's compiled layers write their output over their input, so the pass holds one hidden state less than `forward`.
    The sampler runs while the hidden states of the step and the kept buffers are still there; its own state of each
    request counts beside both where the engine counts it. Checked against the start-up logs of `calibration/memory`:
    MiniMax-M2.5 on four ranks with expert parallelism takes 86.5 kB for each further token of the step, this gives 86.0
    kB. Not modelled: other kernel workspaces, audio encoders.
    """
    hidden = _VALUE_BYTES * model.hidden
    if run is None:
        return forward + np.where(step.last, logit_bytes(model.vocabulary, step.requests), 0.0)
    rows = np.minimum(step.requests, step.tokens)
    each = run.drafting if step.drafts else run.sampler
    sampler = hidden * (step.tokens + rows) + each * model.vocabulary * rows
    state = np.where(step.last, run.state * model.vocabulary * step.requests, 0.0)
    return state + np.maximum(forward - hidden * step.tokens, np.where(step.last, sampler, 0.0) + step.kept)


#: widths of the tower that live at once for a patch during interpolation: its embedding, four corners of the table,
#: their sum, and the sum in another order
_INTERPOLATED = 7.0
#: and in a layer: the residual and its norm
_IN_LAYER = 2.0
#: inner widths of a layer, before and after the activation function
_INNER = 2.0


def tower_is_known(model: ModelSpec) -> bool:
    """Return True if the shapes of a model's image tower are known.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> [tower_is_known(load_model(name)) for name in ("qwen3.5-27b", "llama-3.1-8b")]
    [True, False]
    """
    return bool(model.tower_patches and model.tower_width and model.tower_inner)


def video_images(model: ModelSpec, *, longest: TokensArray | Tokens, frames: Ratio) -> np.ndarray | float:
    """Return the images in a trial run's largest video.

    An image holds two frames. An image and the video share the `longest` request. `frames`: most frames that the engine
    tries, each as large as the largest image; 0 where it tries no video above an image.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> model = load_model("qwen3-vl-30b-a3b")
    >>> [float(video_images(model, longest=n, frames=14)) for n in (32768.0, 65536.0, 262144.0)]
    [1.0, 3.0, 7.0]
    """
    if not frames or not tower_is_known(model):
        return 1.0
    image = model.tower_patches / model.tower_merge
    return np.clip(np.floor(np.asarray(longest, dtype=float) / image) - 1.0, 1.0, frames // 2)


def encoder_peak(
    model: ModelSpec, *, tokens: TokensArray, tp: np.ndarray, video: np.ndarray | float = 1.0, whole: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return the peak of the tower's own run, and its embeddings [B].

    0 without a tower of known shapes. `video`: images in the largest video. `whole`: every rank holds the full tower,
    and the images are split between the ranks.

    Notes
    -----
    Videos are larger than an image in vLLM 0.11.0 only, newer versions try smaller ones. Not modelled: the copy of the
    four corners in 0.11.0; attention's own buffers; Gemma 4's positions by one-hot tables in older releases of
    transformers, for which vLLM 0.25.1 still cuts the batch to a tenth of the memory. Towers that interpolate by one
    kernel (Kimi-K2.5) hold four or five widths instead of seven; their own peak is below that of a pass either way.

    Examples
    --------
    Qwen3.5-27B on four ranks: 65,536 patches of 1,536 values and 7 widths of 1,152; 16,384 embeddings of 5,120.

    >>> from glmplan.catalog.entries.models import load_model
    >>> peak, kept = encoder_peak(load_model("qwen3.5-27b"), tokens=np.array([2048.0]), tp=np.array([4.0]))
    >>> round(float(peak[0]) / 2**30, 2), round(float(kept[0]) / 2**30, 2)
    (1.17, 0.16)
    """
    zero = np.zeros_like(np.asarray(tokens, dtype=float) + tp)
    width, inner = model.tower_width, model.tower_inner
    if not (model.tower_patches and width and inner):
        return zero, zero
    image = model.tower_patches / model.tower_merge
    items = np.maximum(np.floor(np.asarray(tokens, dtype=float) / image), video)
    layer = _IN_LAYER * width + _INNER * inner / (1.0 if whole else tp)
    widest = model.tower_patch_values + np.maximum(_INTERPOLATED * width, layer)
    kept = _VALUE_BYTES * items * image * model.tower_output
    own = np.ceil(items / tp) if whole else items
    return _VALUE_BYTES * own * model.tower_patches * widest, kept + zero


def with_encoder(
    model: ModelSpec,
    peak: BytesArray,
    *,
    tokens: np.ndarray,
    tp: np.ndarray,
    video: np.ndarray | float = 1.0,
    whole: bool = False,
) -> BytesArray:
    """Return the peak of a trial run that includes the image tower.

    The larger of the tower's own peak, and the language model's `peak` with the embeddings beside it.
    """
    own, kept = encoder_peak(model, tokens=tokens, tp=tp, video=video, whole=whole)
    result: np.ndarray = np.maximum(own, peak + kept)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class PassStep:
    """Step on one data-parallel rank, on some layouts."""

    tokens: TokensArray | Tokens
    tp: np.ndarray
    dp: np.ndarray
    ep: np.ndarray


def trial_run(model: ModelSpec, settings: MemorySettings, *, quantised: bool = True) -> ProfilingRun | None:
    """Return the engine's trial run of a model, None without a source.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> trial_run(load_model("llama-3.1-8b"), MemorySettings(version="0.11.0")).sampler
    38
    """
    rule = settings.rule
    if not rule.profiling:
        return None
    return rule.profiling_of(settings.version, dense=is_dense(model), model=model.name, quantised=quantised)


def pass_bytes(
    model: ModelSpec, kind: LayerKind, run: ProfilingRun | None, settings: MemorySettings, step: PassStep
) -> BytesArray:
    """Return the memory of a pass at one kind of layer.

    An expanded latent context replaces keys and values of the step's own tokens.

    Examples
    --------
    GLM-5.1 attending densely on two ranks: 1.75 GiB of context beside states and queries.

    >>> from glmplan.catalog.entries.models import load_model
    >>> glm, told = load_model("glm-5.1"), MemorySettings(version="0.19.0", indexer=False)
    >>> one = np.ones(1)
    >>> held = pass_bytes(glm, glm.layers[glm.layer_names[-1]], trial_run(glm, told), told,
    ...                   PassStep(8192.0, 2 * one, one, one))
    >>> round(float(held[0]) / 2**30, 2)
    2.42
    """
    widest = activation_bytes((kind,), model.hidden, tokens=step.tokens, tp=step.tp, dp=step.dp, ep=step.ep)
    result: np.ndarray = np.maximum(widest, attention_bytes(model, kind, run, settings, step))
    return result


def attention_bytes(
    model: ModelSpec, kind: LayerKind, run: ProfilingRun | None, settings: MemorySettings, step: PassStep
) -> BytesArray:
    """Return the memory of a pass during attention.

    Hidden states, residual and the transient of the mixer.

    Examples
    --------
    Llama-3.1-8B on one card, 8,192 tokens: two hidden states of 4,096 values, 32 queries and outputs and 8 keys and
    values of 128.

    >>> from glmplan.catalog.entries.models import load_model
    >>> llama, told, one = load_model("llama-3.1-8b"), MemorySettings(version="0.19.0"), np.ones(1)
    >>> held = attention_bytes(llama, llama.layers["layer"], None, told, PassStep(8192.0, one, one, one))
    >>> float(held[0]) == 8192 * 2.0 * (2 * 4096 + (2 * 32 + 2 * 8) * 128)
    True
    """
    mixer = mixer_of(kind)
    if mixer.padded_values and (trial := settings.compressed_trial()) is not None:
        return compressed_bytes(model, kind, trial, step)
    longest = model.max_context if settings.longest is None else settings.longest
    sparse = mixer.indexed and settings.indexer
    context = expanded_context_bytes(run, mixer, tp=step.tp, longest=longest, sparse=sparse)
    values = mixer.activation_values(step.tp)
    if np.any(context):
        values = values - mixer.expanded_values / step.tp
    return _VALUE_BYTES * step.tokens * (2.0 * model.hidden + values) + context


def compressed_bytes(model: ModelSpec, kind: LayerKind, trial: CompressedTrial, step: PassStep) -> BytesArray:
    """Return the memory of a pass during compressed attention.

    Residual streams and states of the layers that live at once, and the mixer's transient with padded queries and
    results. Without `torch.compile` the loop over layers still holds the streams that it passed to a layer while the
    layer makes new ones.

    Examples
    --------
    DeepSeek-V4-Flash on two Hopper GPUs, 8,192 tokens: twice five states of 4,096, 64 heads instead of 32.

    >>> from glmplan.catalog.entries.models import load_model
    >>> from glmplan.catalog.engines.memory import load_memory_rule
    >>> flash, one = load_model("deepseek-v4-flash"), np.ones(1)
    >>> trial = load_memory_rule("vllm").compressed_of("0.26.0", "9.0")
    >>> held = compressed_bytes(flash, flash.layers["csa"], trial, PassStep(8192.0, 2 * one, one, one))
    >>> round(float(held[0]) / 2**30, 3)
    1.875
    """
    mixer = mixer_of(kind)
    heads = mixer.heads / step.tp
    states = trial.states * (1.0 + streams_of(kind).streams) * model.hidden
    values = mixer.activation_values(step.tp) + mixer.padded_values * (trial.padded(heads) - heads)
    result: np.ndarray = _VALUE_BYTES * np.asarray(step.tokens) * (states + values)
    return result


def stage_peak(
    model: ModelSpec,
    forward: BytesArray,
    settings: MemorySettings,
    step: TrialStep,
    *,
    run: ProfilingRun | None,
    tp: np.ndarray,
) -> BytesArray:
    """Return the activation peak of one pipeline stage.

    Pass, sampler, and image tower on the first stage. `forward` is the memory of a pass at the widest layer of the
    stage. Engines that reserve a step buffer get that buffer.

    Notes
    -----
    An EAGLE-3 head reads states of three layers, which stay until the trial of the head itself is over [1]_. For
    Kimi-K2.6 on eight RTX PRO 6000, pools with and without it give 1.37 GiB for the head and the states at DCP 1, 4 and
    8.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/v1/worker/gpu_model_runner.py (_dummy_run), vllm/model_executor/models/deepseek_v2.py
       (aux_hidden_states).

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> one, told, llama = np.ones(1), MemorySettings(version="0.11.0"), load_model("llama-3.1-8b")
    >>> step, run = TrialStep(8192.0 * one, 1024.0 * one, one > 0), trial_run(llama, told)
    >>> round(float(stage_peak(llama, 9e8 * one, told, step, run=run, tp=one)[0]) / 2**30, 2)
    4.72
    """
    buffer = settings.rule.step_of(settings.version)
    if buffer is not None:
        return _step_buffer(buffer, model, forward, settings, step)
    if settings.rule.reserved_logits:
        return settings.rule.reserved_logits * (step.tokens + 2.0 * step.requests) * model.vocabulary + 0.0 * forward
    if run is not None and step.drafts and model.draft_head is not None and model.draft_head.method != "draft_model":
        forward = forward + _VALUE_BYTES * model.draft_head.joined * model.hidden * step.tokens
    peak = peak_bytes(run, model, forward, step)
    if not step.first or run is None or not run.images:
        return peak
    longest = model.max_context if settings.longest is None else settings.longest
    video = video_images(model, longest=longest, frames=run.video_frames)
    kept = _VALUE_BYTES * run.video_tokens * model.tower_output
    found = with_encoder(model, peak, tokens=step.tokens, tp=tp, video=video, whole=settings.whole_tower)
    return np.maximum(found, peak + kept)


def _step_buffer(
    buffer: StepBuffer, model: ModelSpec, forward: np.ndarray, settings: MemorySettings, step: TrialStep
) -> np.ndarray:
    """Return llama.cpp's step buffer: mask and widest layer, or logits.

    Tensors of its graph share memory after their last use. The last attention layer reads the mask, the logits come
    after it. A slot is as long as the longest request.
    """
    longest = model.max_context if settings.longest is None else settings.longest
    mask = buffer.mask * step.tokens * np.asarray(longest, dtype=float)
    rows = step.tokens
    if not buffer.all_logits:
        rows = np.minimum(step.requests * (1.0 + settings.drafted(step.drafts)), rows)
    logits = buffer.value * (step.tokens * model.hidden + np.where(step.last, rows * model.vocabulary, 0.0))
    result: np.ndarray = np.maximum(forward * (buffer.value / _VALUE_BYTES) + mask, logits)
    return result


def expert_workspace_bytes(
    part: Segment, model: ModelSpec, *, settings: MemorySettings, step: PassStep
) -> BytesArray | Bytes:
    """Return the kept buffers of routed experts, 0 without a source.

    Not modelled: rows that other kernels pad (DeepGEMM each expert's to 128), the pieces in which versions before 0.17
    processed more than 16,384 tokens.

    Examples
    --------
    Qwen3-30B-A3B on one card: 8,192 tokens visit 8 experts, two rows of 2,048 values of 2 B each, 0.5 GiB.

    >>> from glmplan.catalog.entries.models import load_model
    >>> from glmplan.costs.blocks.stack import segments
    >>> model, one = load_model("qwen3-30b-a3b"), np.ones(1)
    >>> told = MemorySettings(version="0.22.1", accelerator="h100-sxm")
    >>> found = expert_workspace_bytes(segments(model, model.checkpoint("fp8"), mtp=False)[0], model,
    ...                                settings=told, step=PassStep(8192.0, one, one, one))
    >>> float(found[0]) / 2**30
    0.5
    """
    stored = zip(part.tensors, part.formats, strict=True)
    form = next((form.name for tensor, form in stored if tensor.tensor_class == "routed_experts"), "")
    if not form or settings.workspace(form, model.name) is None:
        return 0.0
    result: np.ndarray | float = 0.0
    for block in feed_forwards_of(part.kind):
        if (mixture := block.routed) is None:
            continue
        width = float(mixture.latent or model.hidden)
        inner = mixture.inner / (step.tp * step.dp / step.ep)
        first = (2.0 if mixture.gated else 1.0) * inner
        row = np.maximum(inner, width) + np.maximum(first, width)
        result = np.maximum(result, _VALUE_BYTES * np.asarray(step.tokens) * step.dp * mixture.topk * row)
    return result


def indexer_bytes(
    kind: LayerKind, *, longest: TokensArray | Tokens, settings: MemorySettings
) -> tuple[np.ndarray | float, float]:
    """Return the kept index-key buffer, and the indexer's logits [B].

    Logits are held only while the indexer runs. 0 without sparse attention, or where the engine reserves nothing. Not
    modelled, because no source says which kernels run: FlashMLA's sparse kernels gather latents of five of the longest
    requests into the same allocation at model load, 9 % more than 40 requests' index keys in FP8.

    Examples
    --------
    GLM-5.1 of 202,752 tokens: 40 of them, 132 B each, 1.0 GiB; and half a GiB of logits.

    >>> from glmplan.catalog.entries.models import load_model
    >>> glm = load_model("glm-5.1")
    >>> kept, beside = indexer_bytes(glm.layers[glm.layer_names[-1]], longest=202752.0,
    ...                              settings=MemorySettings(version="0.22.0"))
    >>> round(float(kept) / 2**30, 2), beside / 2**30
    (1.0, 0.5)
    """
    each = mixer_of(kind).gathered_bytes if settings.indexer else 0.0
    trial = settings.rule.indexer_of(settings.version) if each else None
    if trial is None:
        return 0.0, 0.0
    return trial.requests * each * np.asarray(longest, dtype=float), trial.logits


def pass_with_workspace(kind: LayerKind, hidden: int, kept: BytesArray | Bytes, step: PassStep) -> BytesArray:
    """Return the memory of a pass at routed experts that keep buffers.

    Hidden states, residual, output and shared experts beside the buffers.
    """
    shared: np.ndarray | float = 0.0
    for block in feed_forwards_of(kind):
        if (mixture := block.routed) is not None and mixture.shared:
            inner = (mixture.shared_inner or mixture.inner) / (step.tp * step.dp / step.ep)
            shared = np.maximum(shared, mixture.shared * inner_rows(mixture.gated) * inner)
    return np.asarray(kept + _VALUE_BYTES * np.asarray(step.tokens) * (3.0 * hidden + shared))
