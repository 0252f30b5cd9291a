"""From a row of a table of runs to a question that can be answered: a deployment and a load.

What a row leaves open is filled with the engine's documented default, the same for prediction and for calibration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from glmplan.errors import SpecError
from glmplan.facts.catalogue.accelerators import load_accelerator
from glmplan.facts.engines.defaults import EngineDefaults, engine_known
from glmplan.facts.engines.kernels import expert_path
from glmplan.facts.formats import KV_FORMATS
from glmplan.facts.schema.host import Host
from glmplan.facts.schema.model import ModelSpec
from glmplan.physics.blocks.cached_prefix import computed_again
from glmplan.physics.blocks.features import routed_blocks
from glmplan.physics.network.groups import LayoutLinks, links_of_layout
from glmplan.physics.points import Layout
from glmplan.prediction.deployment import Deployment, deploy, runs_sparse
from glmplan.prediction.from_row_memory import STAND_IN, MemoryAnswer, checkpoint_of, files_of, model_of, run_memory
from glmplan.prediction.from_row_settings import contradicted_by, said_by_script, settings_of_row
from glmplan.prediction.hosted import offload_of
from glmplan.prediction.load import Load
from glmplan.prediction.user_load import ENDLESS, user_load
from glmplan.readers.models.checkpoints import remarks_on
from glmplan.readers.runs.campaigns import (
    CampaignSettings,
    campaign_session,
    campaign_settings,
    launched_drafts,
    other_settings,
)
from glmplan.readers.runs.hosts import host_of_row
from glmplan.readers.runs.record import Run
from glmplan.readers.runs.settings import SETTINGS, Asked
from glmplan.readers.runs.speculation import Speculation

__all__ = [
    "MemoryAnswer",
    "Question",
    "alternatives_of",
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
    contradicted : tuple of str
        Settings that the row states otherwise than the script of its day; the row is believed.
    asked : Asked or None
        What the campaign's settings were looked up by.
    """

    run: Run
    deployment: Deployment
    load: Load
    assumed: tuple[str, ...]
    campaign: CampaignSettings = CampaignSettings()
    speculation: Speculation = Speculation()
    run_both_ways: bool = False
    contradicted: tuple[str, ...] = ()
    asked: Asked | None = None


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
    return _question(run)


def alternatives_of(question: Question) -> tuple[Question, ...]:
    """The same row in each way in which it may have been launched, where that is not known.

    Parameters
    ----------
    question : Question
        The row.

    Returns
    -------
    tuple of Question
        With what its campaign set elsewhere where no script says it of this server, and with drafting where it was run
        both ways; empty where scripts say everything that they would, or no campaign with known scripts ran it.

    Examples
    --------
    >>> run = Run("a", "kimi-k2.5", "b300-sxm", engine="vllm", weights="nvfp4", tp=8, protocol="inferencex",
    ...           measured_on="2026-04-03", concurrency=64.0, input_tokens=1024.0, output_tokens=1024.0)
    >>> len(alternatives_of(question_of(run))) > 0
    True
    """
    if question.asked is None:
        return ()
    found = [_question(question.run, one) for one in other_settings(question.asked, question.campaign)]
    for drafts in launched_drafts(question.asked) if question.run_both_ways else ():
        drafting = Speculation("yes", None, drafts, drafts + 1)
        found.append(_question(replace(question.run, speculation=drafting)))
    return tuple(found)


def _question(run: Run, settings: CampaignSettings | None = None) -> Question:
    """A row as a question, under its campaign's settings or others."""
    if run.error:
        raise SpecError(run.error)
    model = model_of(run.model)
    accelerator = load_accelerator(run.accelerator)
    assumed: list[str] = []
    engine = run.engine or STAND_IN
    if not run.engine:
        assumed.append(f"engine {STAND_IN}")
    elif not engine_known(engine):
        assumed.append(
            f"engine {engine} is not described: prompts in chunks beside decoding, cache pool as {STAND_IN}'s"
        )
    checkpoint = files_of(run.model, run.weights, run.weights_bits, run.checkpoint, engine)
    if run.weights is None:
        assumed.append(f"weights {checkpoint.name}")
    assumed += remarks_on(model, checkpoint)
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
    noted: list[str] = []
    tp, pp, dp, ep, dcp, count = _layout(run, noted)
    asked = Asked(
        engine=engine, model=model.name, weights=bulk, protocol=run.protocol, recipe=run.recipe or "",
        accelerator=accelerator.name, silicon=silicon, concurrency=run.concurrency or 1.0,
        input_tokens=run.input_tokens or 0.0, output_tokens=run.output_tokens or 0.0, tp=tp, pp=pp, dp=dp, ep=ep,
        measured_on=run.measured_on or "", version=run.engine_version or "", release=run.engine_release or (),
        draft_tokens=draft,
    )  # fmt: skip
    campaign = settings or campaign_settings(asked)
    if campaign.one_group:
        tp, dp = tp * dp, 1
    divided = campaign.replica is not None and run.tp is None
    assumed += [] if divided else noted
    parts = count * campaign.parts if divided else count
    host, guessed = host_of_row(run.host, run.accelerator, max(parts, tp * pp * dp, run.accelerator_count or 0))
    assumed += [guessed] if guessed else []
    said = run.kv_cache if run.kv_cache in KV_FORMATS else campaign.kv
    # where neither a script nor the files say it, the cache is what the first publisher of the format asks for: so it
    # was where logs of others' files tell it (shares of the pool that are in use)
    kv = said or (None if checkpoint.kv_default else checkpoint_of(run.model, run.weights, None, engine).kv_default)
    deployment = deploy(
        model,
        checkpoint,
        accelerator,
        layout=Layout(tp, pp, dp, ep, dcp),
        kv=kv,
        engine=engine,
        release=run.engine_release,
        settings=settings_of_row(run, campaign, dp, _expert_kernels(run, engine, model, max(verify, draft) + 1.0)),
        draft_tokens=max(verify, draft),
        acceptance=speculation.acceptance_length,
        sparse=runs_sparse(accelerator, run.attention_backend, engine=engine, version=run.engine_release),
        # how the accelerators are divided into servers is still to be found
        offload=offload_of(engine, host, tp * pp * dp),
        link=_links(run, host) if divided else _links(run, host, tp=tp, pp=pp, dp=dp, dcp=dcp),
        draft_method=speculation.method or "",
        draft_depth=draft,
        text="" if run.protocol == _NO_CAMPAIGN else run.protocol,
    )
    if said is None and "kv" not in said_by_script(campaign):
        assumed.append(f"kv {deployment.kv}")
    if campaign.open:
        opened = "launch settings" if campaign.open == SETTINGS else ", ".join(campaign.open)
        assumed.append(f"{opened} by default, for want of a script")
    both = session is not None and speculation.state == "unknown"
    one = _one_server(run, deployment, host, campaign, assumed) if divided else deployment
    load = _load(run, one, assumed, campaign, replicas=parts // one.count)
    contradicted = contradicted_by(run, campaign)
    return Question(run, one, load, tuple(assumed), campaign, speculation, both, contradicted, asked)


#: protocol of rows that say nothing but that whole requests were served: plans are asked of the same load, and what one
#: unnamed campaign differed by says nothing of the next
_NO_CAMPAIGN = "closed-loop"


def _expert_kernels(run: Run, engine: str, model: ModelSpec, tokens: float) -> str:
    """First word of what a table calls the experts' kernels, with the path they take for so many tokens a request."""
    word = (run.moe_backend or "").lower().split(" ")[0]
    if word in {"", "default"}:
        return ""
    pairs = (run.concurrency or 1.0) * tokens * max((block.topk for block in routed_blocks(model)), default=0)
    path = expert_path(engine, word, pairs, run.measured_on or "")
    return f"{word} {path}".strip()


#: how tables say that the one-shot all-reduce ran over PCIe, and that it did not
_ONE_SHOT = re.compile(r"custom AR|oneshot", re.IGNORECASE)
_NO_ONE_SHOT = re.compile(
    r"custom AR (?:disabled|off|unsupported)|no oneshot|oneshot off|allreduce=NCCL", re.IGNORECASE
)


def _links(run: Run, host: Host, *, tp: int = 1, pp: int = 1, dp: int = 1, dcp: int = 1) -> LayoutLinks:
    """The links of a run, with the all-reduce that the table says ran there."""
    said = f"{run.host or ''} {run.notes}"
    on = _ONE_SHOT.search(said) is not None and _NO_ONE_SHOT.search(said) is None
    return links_of_layout(host, tp=tp, pp=pp, dp=dp, dcp=dcp, one_shot=on)


#: requests of mean length that the cache of a server must hold for the model to fit [-]
_ROOM = 32.0


def _one_server(run: Run, whole: Deployment, host: Host, campaign: CampaignSettings, assumed: list[str]) -> Deployment:
    """One of the independent servers that a campaign divided the accelerators into."""

    def server(tp: int, pp: int = 1, dp: int = 1, ep: int = 1) -> Deployment:
        return whole.with_layout(_links(run, host, tp=tp, pp=pp, dp=dp), tp=tp, pp=pp, dp=dp, ep=ep)

    if campaign.replica:
        found = server(*campaign.replica)
        if whole.count * campaign.parts % found.count:
            raise SpecError(f"does not divide by {found.count}", field="accelerator_count", value=whole.count)
        return found
    length = (run.input_tokens or campaign.input_tokens or 0.0) + (run.output_tokens or campaign.output_tokens or 0.0)
    sizes = [1 << power for power in range(whole.count.bit_length()) if whole.count % (1 << power) == 0]
    for size in sizes:
        found = server(size)
        memory = run_memory(run, found, length)
        if memory is None or memory.pool_tokens >= _ROOM * length:
            break
    assumed.append(f"servers of tp {found.tp}")
    return found


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
    elif run.engine == "sglang" and tp * pp == count and tp % dp == 0:
        # SGLang counts the replicas of attention inside --tp-size
        # (docs.sglang.io/docs/advanced_features/dp_dpa_smg_guide.md)
        tp //= dp
    ep = run.ep or 1
    if run.ep is not None and ep > tp * dp:
        # some tables give the attention layout of one rank only; experts then span what accelerators there are
        dp = max(dp, ep // tp)
    return tp, pp, dp, min(ep, tp * dp), dcp, tp * pp * dp


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
    found = run_memory(question.run, question.deployment, length)
    if found is None or load.replicas == 1:
        return found
    pool = (load.replicas * one for one in (found.pool_tokens, found.pool_low, found.pool_high))
    return MemoryAnswer(found.weights_gib, found.weights_apart, *pool)


def _counted(length: float | None, run: Run, campaign: CampaignSettings) -> float | None:
    """Tokens of a length that a row states, which may be a label."""
    if not length or not run.context_is_label:
        return length
    return campaign.label_share * length + campaign.label_frame


def _context_before(depth: float, phase: str, inputs: float) -> float:
    """Tokens in the cache before the prompt; of a decode row the prompt itself is the depth that the table names."""
    return 0.0 if phase == "decode" and depth == inputs else depth


def _load(
    run: Run, deployment: Deployment, assumed: list[str], campaign: CampaignSettings, *, replicas: int = 1
) -> Load:
    packing = _packing(deployment, campaign)
    phase = run.phase if run.phase in ("decode", "prefill") else "serving"
    low, high = campaign.lengths or run.length_range
    limit = run.running_limit or packing.places * deployment.dp
    concurrency = run.concurrency
    if concurrency is None and run.request_rate_per_s == np.inf and run.num_requests:
        concurrency = float(run.num_requests)  # all are sent at once
    if concurrency is None:
        concurrency = run.observed.get("concurrency_effective") if run.request_rate_per_s else None
    queued = concurrency is None and run.protocol == "mlperf-offline"
    if concurrency is not None:
        concurrency /= replicas
    elif queued:
        concurrency = float(limit)  # all prompts are there from the start
    else:
        offline = run.protocol.startswith(("mlperf", "trtllm-bench")) or run.request_rate_per_s
        concurrency = float(min(limit, 1024)) if offline else 1.0
        if not (run.request_rate_per_s and np.isfinite(run.request_rate_per_s)):
            assumed.append(f"{concurrency:.0f} requests in flight")
    inputs, outputs = run.input_tokens or campaign.input_tokens, run.output_tokens or campaign.output_tokens
    stated, inputs = inputs, _counted(inputs, run, campaign)
    if inputs != stated:
        assumed.append(f"a label of {stated:.0f} stands for {inputs:.0f} tokens")
    if inputs is None:
        inputs = 0.0 if phase == "decode" else _BURST_PROMPT if run.protocol == "burst" else 512.0
        assumed.append(f"{inputs:.0f} input tokens")
    if outputs is None:
        outputs = 256.0
        assumed.append("256 output tokens")
    outputs = min(outputs, campaign.output_limit)
    requests = (run.num_requests or 0) // replicas or round(concurrency * (campaign.requests_per_user or 0))
    pool = ENDLESS
    # of a whole run, the prompt is one context in the cache only where it was there before
    one_prompt = run.shared_prompt and (phase == "decode" or (phase == "serving" and run.prefix_cached))
    if phase == "serving":
        memory = run_memory(run, deployment, inputs + outputs)
        # a table says that it ran: where two requests do not seem to fit, the estimate of the pool is what is wrong
        if memory is not None and memory.pool_tokens > 2.0 * (inputs + outputs):
            pool = memory.pool_tokens - (inputs if one_prompt else 0.0)
    return user_load(
        packing,
        ranks=deployment.dp,
        tokens_per_step=deployment.tokens_per_step,
        phase=phase,
        users=concurrency,
        input_tokens=inputs,
        output_tokens=outputs,
        context=_context_before(_counted(run.context_depth, run, campaign) or 0.0, phase, inputs),
        requests=min(requests, 20480),
        shortest=max(low, 0.02),
        longest=high,
        max_requests=limit,
        pool_tokens=pool,
        poll_interval=campaign.poll_interval if phase == "serving" else 1,
        gather_steps=campaign.gather_steps if deployment.dp > 1 else campaign.batch_wait_steps,
        gather_tokens=1 << 60 if deployment.dp > 1 else round(campaign.batch_wait_share * packing.budget),
        staggered=queued,
        prefix_cached=run.prefix_cached,
        cached_rest=computed_again(
            deployment.model,
            engine=deployment.engine,
            prompt=inputs,
            tp=deployment.tp,
            kv_bytes=deployment.structure.kv_bytes,
            draft_tokens=deployment.draft_tokens,
        ),
        bunched=_bunched(run, deployment, concurrency * inputs, packing.budget),
        shared_prompt=one_prompt,
        replicas=replicas,
        joins=run.protocol == "recorded" and run.num_requests == 1 and concurrency > 1,
    )


def _packing(deployment: Deployment, campaign: CampaignSettings) -> EngineDefaults:
    """How the engine packs steps, as the campaign set it."""
    stated = {name: getattr(campaign, name) for name in ("reserve", "whole_prompts", "prefill_first")}
    packing = replace(deployment.defaults, **{name: one for name, one in stated.items() if one is not None})
    return replace(packing, budget=campaign.budget or packing.budget)


def _bunched(run: Run, deployment: Deployment, tokens: float, budget: int) -> float:
    """How unevenly a burst fills the stages of a pipeline: what one step admits stays one micro-batch to the end."""
    if run.protocol != "burst" or deployment.pp == 1:
        return 1.0
    return deployment.pp / min(deployment.pp, max(np.ceil(tokens / budget), 1.0))


#: prompt of a burst that does not state it: the report of fr-001 calls its prompts short [token]
_BURST_PROMPT = 128.0
