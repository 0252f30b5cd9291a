"""From a row of a table of runs to a question that can be answered: a deployment and a load.

What a row leaves open is filled with the engine's documented default, the same for prediction and for calibration.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from glmplan.campaigns import CampaignSettings, campaign_session, campaign_settings
from glmplan.catalog import load_model
from glmplan.catalog_hardware import load_accelerator
from glmplan.columns import Layout
from glmplan.deployment import Deployment, checkpoint_for, link_of, runs_sparse
from glmplan.errors import GlmplanError, SpecError, UnknownName
from glmplan.formats import KV_FORMATS
from glmplan.memory import kv_pool, part_memory
from glmplan.memory_ranks import MemorySettings, rank_memory
from glmplan.memory_rules import memory_engines, stated_fraction
from glmplan.naming import refusal
from glmplan.observables import Load
from glmplan.packing import engine_defaults
from glmplan.records import Run
from glmplan.schema.model import Checkpoint, ModelSpec
from glmplan.speculation import Speculation

__all__ = [
    "MemoryAnswer",
    "Question",
    "answerable",
    "memory_of",
    "question_of",
]


@dataclass(frozen=True, slots=True)
class Question:
    """A deployment under a load, with what had to be assumed.

    Attributes
    ----------
    run : Run
        The row.
    deployment : Deployment
        What serves.
    load : Load
        What is asked of it.
    assumed : tuple of str
        What the row did not say.
    campaign : CampaignSettings
        What the campaign set on its servers.
    speculation : Speculation
        How it drafted, as the row or else the campaign's files say.
    run_both_ways : bool
        The campaign ran this with and without drafting, and nothing tells which of them the row is.
    """

    run: Run
    deployment: Deployment
    load: Load
    assumed: tuple[str, ...]
    campaign: CampaignSettings = CampaignSettings()
    speculation: Speculation = Speculation()
    run_both_ways: bool = False


@lru_cache(maxsize=512)
def _checkpoint(model: str, weights: str | None, bits: float | None) -> Checkpoint:
    return checkpoint_for(_model(model), weights, bits=bits)


@lru_cache(maxsize=512)
def _model(name: str) -> ModelSpec:
    reason = refusal("models", name)
    if reason is not None:
        raise UnknownName(f"is refused: {reason}", field="model", value=name)
    return load_model(name)


def question_of(run: Run) -> Question:
    """Turn a row into a question.

    Parameters
    ----------
    run : Run
        The row.

    Returns
    -------
    Question
        Deployment and load.

    Raises
    ------
    GlmplanError
        If the row has a bad cell, or names a model or part that is not known, or its layout does not hold together.
    """
    if run.error:
        raise SpecError(run.error)
    model = _model(run.model)
    accelerator = load_accelerator(run.accelerator)
    assumed: list[str] = []
    engine = run.engine or "vllm"
    if not run.engine:
        assumed.append("engine vllm")
    checkpoint = _checkpoint(run.model, run.weights, run.weights_bits)
    if run.weights is None:
        assumed.append(f"weights {checkpoint.name}")
    tp, pp, dp, ep, dcp, count = _layout(run, assumed)
    silicon = (accelerator.compute_capability or "").partition(".")[0]
    bulk = checkpoint.formats.get("routed_experts") or checkpoint.default
    speculation = run.speculation
    session = campaign_session(run, model=model.name, experts_format=bulk) if speculation.state == "unknown" else None
    if session is not None:
        speculation = session.speculation
    draft = speculation.draft_tokens or 0 if speculation.state == "yes" else 0
    if speculation.state == "yes" and not draft:
        draft = 3
        assumed.append("3 drafted tokens")
    verify = (speculation.verify_tokens or draft + 1) - 1 if draft else 0
    campaign = campaign_settings(
        protocol=run.protocol, engine=engine, silicon=silicon, model=model.name, experts_format=bulk,
        concurrency=run.concurrency or 1.0, input_tokens=run.input_tokens or 0.0,
        output_tokens=run.output_tokens or 0.0, tp=tp * dp, release=run.engine_release,
        measured_on=run.measured_on, draft_tokens=draft, ranks=dp,
    )  # fmt: skip
    kv = run.kv_cache if run.kv_cache in KV_FORMATS else campaign.kv
    if kv is None:
        kv = checkpoint.kv_default or ("fp8" if engine == "trtllm" and checkpoint.default != "bf16" else "bf16")
        assumed.append(f"kv {kv}")
    deployment = Deployment(
        model=model,
        checkpoint=checkpoint,
        accelerator=accelerator,
        count=count,
        tp=tp,
        pp=pp,
        dp=dp,
        ep=ep,
        dcp=dcp,
        kv=kv,
        engine=engine,
        release=run.engine_release,
        graphs=run.graphs is not False,
        draft_tokens=max(verify, draft),
        acceptance=speculation.acceptance_length,
        sparse=runs_sparse(accelerator, run.attention_backend),
        link=link_of(accelerator, tp * dp),
        draft_method=speculation.method or "",
        draft_depth=draft,
        text=run.protocol,
        attention_backend=run.attention_backend or "",
    )
    load = _load(run, deployment, assumed, campaign)
    both = session is not None and speculation.state == "unknown"
    return Question(run, deployment, load, tuple(assumed), campaign, speculation, both)


def _layout(run: Run, assumed: list[str]) -> tuple[int, int, int, int, int, int]:
    pp, dp, dcp = run.pp or 1, run.dp or 1, run.dcp or 1
    count = run.accelerator_count
    tp = run.tp
    if tp is None:
        if count is None:
            raise SpecError("neither tp nor accelerator_count is given", field="tp")
        if count % (pp * dp):
            raise SpecError(f"does not divide by pp {pp} × dp {dp}", field="accelerator_count", value=count)
        tp = count // (pp * dp)
        if count > 1:
            assumed.append(f"tp {tp}")
    ep = run.ep or 1
    if run.ep is not None and ep > tp * dp:
        # some tables give the attention layout of one rank only; experts then span what accelerators there are
        dp = max(dp, ep // tp)
    return tp, pp, dp, min(ep, tp * dp), dcp, tp * pp * dp


#: before this date an unnamed vLLM is 0.19 or older, whose pool rule differs (hardware_db/engines/memory/vllm.toml)
_VLLM_0_20 = "2026-06"


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """Memory of a deployment.

    Attributes
    ----------
    weights_gib : float
        Weights on the fullest accelerator, [GiB]
    pool_tokens, pool_low, pool_high : float
        KV cache of all replicas with its 90 % interval, [token]; 0 when the weights leave no room
    """

    weights_gib: float
    pool_tokens: float
    pool_low: float
    pool_high: float


def memory_of(question: Question) -> MemoryAnswer | None:
    """Memory of a question's deployment.

    Parameters
    ----------
    question : Question
        The question.

    Returns
    -------
    MemoryAnswer or None
        None for parts whose memory is not published and for weights that stay in host memory.
    """
    load = question.load
    length = load.input_tokens + load.output_tokens + load.context
    return _memory(question.run, question.deployment, length, question.campaign.fraction)


def _memory(run: Run, deployment: Deployment, length: float, fraction: float | None) -> MemoryAnswer | None:
    if run.offload or deployment.accelerator.memory is None:
        return None
    d = deployment
    version = ".".join(map(str, d.release)) if d.release else None
    if version is None and d.engine == "vllm" and run.measured_on and run.measured_on < _VLLM_0_20:
        version = "0.19.0"
    longest = float(2 ** np.ceil(np.log2(length + 1)))
    mtp = d.draft_tokens > 0 or "mtp" in (run.checkpoint or "").lower()
    return _memory_of(
        d.model.name, run.weights, run.weights_bits, d.accelerator.name, (d.tp, d.pp, d.dp, d.ep, d.dcp), d.kv,
        d.engine, version, mtp, longest, d.graphs, stated_fraction(run.notes) or fraction, d.indexer,
    )  # fmt: skip


@lru_cache(maxsize=8192)
def _memory_of(
    model: str,
    weights: str | None,
    bits: float | None,
    accelerator: str,
    degrees: tuple[int, int, int, int, int],
    kv: str,
    engine: str,
    version: str | None,
    mtp: bool,
    context: float,
    graphs: bool,
    fraction: float | None,
    indexer: bool,
) -> MemoryAnswer | None:
    part = load_accelerator(accelerator)
    tp, pp, dp, ep, dcp = degrees
    try:
        memory = rank_memory(
            _model(model),
            _checkpoint(model, weights, bits),
            layout=Layout(tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp),
            kv=kv,
            settings=MemorySettings(
                engine=engine if engine in memory_engines() else "vllm",
                version=version,
                accelerator=part.name,
                fraction=fraction,
                graphs=None if graphs else 0,
                indexer=indexer,
            ),
            mtp=mtp,
            memory=part.memory,
        )
        pool = kv_pool(memory, part_memory(part), context=context)
    except GlmplanError:
        return None
    tokens = [max(float(one[0]), 0.0) for one in (pool.tokens, pool.tokens_low, pool.tokens_high)]
    return MemoryAnswer(float(memory.weights[0]) / 2**30, *tokens)


def _context_before(run: Run, phase: str, inputs: float) -> float:
    """Tokens in the cache before the prompt; of a decode row the prompt itself is the depth that the table names."""
    depth = run.context_depth or 0.0
    return 0.0 if phase == "decode" and depth == inputs else depth


def _load(run: Run, deployment: Deployment, assumed: list[str], campaign: CampaignSettings) -> Load:
    defaults = engine_defaults(deployment.engine)
    phase = run.phase if run.phase in ("decode", "prefill") else "serving"
    low, high = campaign.lengths or run.length_range
    budget = campaign.budget or defaults.budget
    limit = run.running_limit or defaults.max_requests
    concurrency = run.concurrency
    if concurrency is None:
        concurrency = run.observed.get("concurrency_effective") if run.request_rate_per_s else None
    if concurrency is None:
        offline = run.protocol.startswith(("mlperf", "trtllm-bench")) or run.request_rate_per_s
        concurrency = float(min(limit, 1024)) if offline else 1.0
        assumed.append(f"{concurrency:.0f} requests in flight")
    inputs, outputs = run.input_tokens, run.output_tokens
    if run.protocol in TYPICAL_LENGTHS and not (inputs and outputs):
        inputs, outputs = TYPICAL_LENGTHS[run.protocol]
    if inputs is None:
        inputs = 0.0 if phase == "decode" else _BURST_PROMPT if run.protocol == "burst" else 512.0
        assumed.append(f"{inputs:.0f} input tokens")
    if outputs is None:
        outputs = 256.0
        assumed.append("256 output tokens")
    requests = run.num_requests or round(concurrency * (campaign.requests_per_user or 0))
    pool = float(1 << 60)
    if phase == "serving":
        memory = _memory(run, deployment, inputs + outputs, campaign.fraction)
        # a table says that it ran: where two requests do not seem to fit, the estimate of the pool is what is wrong
        if memory is not None and memory.pool_tokens > 2.0 * (inputs + outputs):
            pool = memory.pool_tokens
    return Load(
        phase=phase,
        concurrency=concurrency,
        input_tokens=inputs,
        output_tokens=outputs,
        context=_context_before(run, phase, inputs),
        requests=min(requests, 20480),
        shortest=max(low, 0.02),
        longest=high,
        budget=budget * deployment.dp,
        prefill_first=defaults.prefill_first,
        whole_prompts=defaults.whole_prompts,
        max_requests=limit,
        pool_tokens=pool,
        reserve=defaults.reserve,
        poll_interval=campaign.poll_interval if phase == "serving" else 1,
        gather_steps=campaign.gather_steps if deployment.dp > 1 else campaign.batch_wait_steps,
        gather_tokens=1 << 60 if deployment.dp > 1 else round(campaign.batch_wait_share * budget),
        late=defaults.late,
        tokens_per_step=deployment.tokens_per_step,
        prefix_cached=run.prefix_cached,
        bunched=_bunched(run, deployment, concurrency * inputs, budget),
        shared=run.shared_prompt and phase == "decode",
    )


def _bunched(run: Run, deployment: Deployment, tokens: float, budget: int) -> float:
    """How unevenly a burst fills the stages of a pipeline: what one step admits stays one micro-batch to the end."""
    if run.protocol != "burst" or deployment.pp == 1:
        return 1.0
    return deployment.pp / min(deployment.pp, max(np.ceil(tokens / budget), 1.0))


#: prompt of a burst that does not state it: the report of fr-001 calls its prompts short [token]
_BURST_PROMPT = 128.0
#: mean prompt and answer where a protocol fixes the data set and the table does not repeat its lengths [token]:
#: MLPerf Inference v5.1 Llama-2-70B on OpenOrca (294 / 294), ML.ENERGY on LM Arena chat (documented means)
TYPICAL_LENGTHS: dict[str, tuple[float, float]] = {}


def answerable(run: Run) -> str | None:
    """Why a row cannot be answered, or None.

    Parameters
    ----------
    run : Run
        The row.

    Returns
    -------
    str or None
        The reason.
    """
    try:
        question_of(run)
    except GlmplanError as error:
        return str(error)
    return None
