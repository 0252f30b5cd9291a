"""Turn rows of a table of runs into cases to predict.

A case has a deployment, its memory and its load. Values that a row leaves open take the engine's documented default,
both in prediction and in calibration.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from glmplan.catalog.engines.defaults import engine_known
from glmplan.catalog.engines.kernels import IMAGE, expert_path, gathers_latents
from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.models import load_model
from glmplan.catalog.entries.names import own_images, refusal
from glmplan.catalog.formats import KV_FORMATS
from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.catalog.schema.engine import EngineDefaults
from glmplan.catalog.schema.host import Host
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.blocks.stack import computed_again, mtp_blocks, routed_blocks
from glmplan.costs.memory import KvPool, kv_pool, part_memory, requests_that_fit
from glmplan.costs.memory.pool import requests_by_states, weights_interval
from glmplan.costs.memory.ranks import RankMemory, rank_memory
from glmplan.costs.memory.settings import MemorySettings, load_memory_fit
from glmplan.costs.memory.shards import Server, split_block
from glmplan.costs.network.links import LayoutLinks, links_of_layout
from glmplan.costs.points import Layout
from glmplan.errors import GlmplanError, SpecError, UnknownFact, UnknownName
from glmplan.io.models.checkpoints import checkpoint_for, of_repository, remarks_on
from glmplan.io.runs.ledger import host_of_row
from glmplan.io.runs.record import Run, Speculation
from glmplan.io.runs.settings import (
    SETTINGS,
    Asked,
    CampaignSettings,
    campaign_session,
    campaign_settings,
    launched_drafts,
    launched_experts,
    other_settings,
)
from glmplan.prediction.assumptions import ASSUMPTIONS, assumed_kinds
from glmplan.prediction.deployment import Deployment, Settings, deploy, offload_of, runs_sparse, spanned
from glmplan.prediction.load import ENDLESS, Load, slots_held, user_load
from glmplan.units import GIB, QUANTILE_90, Bits, Ratio, Tokens

__all__ = [
    "STAND_IN",
    "MemoryAnswer",
    "RunCase",
    "alternatives_of",
    "checkpoint_of",
    "contradicted_by",
    "drafting_unstated",
    "files_of",
    "memory_of",
    "model_of",
    "question_of",
    "request_tokens",
    "run_memory",
    "said_by_script",
    "settings_of_row",
    "why_unknown",
]


#: engine whose rule sizes the KV pool of an undescribed engine; `RunCase.assumed` names it
STAND_IN = "vllm"


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """Memory of a deployment; weights are those of the fullest accelerator.

    The pool is the KV cache of all replicas in requests of the row's lengths, with its 90 % interval; 0 if the weights
    leave no memory. `printed` is what the engine processes print for it, added up: another number where layers with
    windows, states or compressed entries share pages.
    """

    weights_gib: float
    weights_apart: tuple[Ratio, Ratio]  # relative bounds, see `glmplan.costs.memory.pool.weights_interval`
    pool_tokens: Tokens
    pool_low: Tokens
    pool_high: Tokens
    printed: tuple[Tokens, Tokens, Tokens]  # value and 90 % interval
    #: most requests at once by slots for recurrent states, of all replicas: with the prefix cache, and without
    running: tuple[float, float] = (np.inf, np.inf)


#: memory of a server of which nothing is known
_NO_MEMORY = MemoryAnswer(0.0, (0.0, 0.0), 0.0, 0.0, 0.0, (0.0, 0.0, 0.0))


@lru_cache(maxsize=512)
def checkpoint_of(
    model: str, weights: str | None, bits: Bits | None, engine: str | None = None, repository: str | None = None
) -> Checkpoint:
    """Return the checkpoint of a model by its weight format.

    An undescribed repository is estimated by `of_repository`.
    """
    spec = model_of(model)
    checkpoint = checkpoint_for(spec, weights, bits=bits, engine=engine)
    named = repository is not None and repository.count("/") == 1
    return of_repository(spec, checkpoint, str(repository)) if named else checkpoint


@lru_cache(maxsize=512)
def model_of(name: str) -> ModelSpec:
    """Return a model; raise `UnknownName` if the catalog refuses it."""
    reason = refusal("models", name)
    if reason is not None:
        raise UnknownName(f"is refused: {reason}", field="model", value=name)
    return load_model(name)


@lru_cache(maxsize=4096)
def files_of(model: str, weights: str | None, bits: Bits | None, repository: str | None, engine: str) -> Checkpoint:
    """Return the files of the row's repository, else those of its format.

    Examples
    --------
    >>> files_of("glm-5.1", "nvfp4", None, "lukealonso/GLM-5.1-NVFP4-MTP", "vllm").name
    'nvfp4-mtp'
    >>> files_of("glm-5.1", "nvfp4", None, "somebody/GLM-5.1-NVFP4", "vllm").name
    'nvfp4'
    """
    by_format = checkpoint_of(model, weights, bits, engine)
    own = checkpoint_of(model, weights, bits, engine, repository)
    return own if own in model_of(model).checkpoints else by_format


def run_memory(run: Run, deployment: Deployment, length: Tokens) -> MemoryAnswer | None:
    """Return the memory of one server.

    None if the accelerator's memory is not published or weights stay in host memory.
    """
    if run.offload or deployment.accelerator.memory is None:
        return None
    key, settings = _memory_key(run, deployment)
    # a request of a start-up row has no length: it holds at least one token
    return _memory_of(key, settings, deployment.settings.unstated, max(float(np.ceil(length)), 1.0))


def _memory_key(run: Run, d: Deployment) -> tuple[_MemoryKey, MemorySettings]:
    settings = d.settings.memory(
        engine=d.engine if engine_known(d.engine) else STAND_IN,
        version=d.version or _unnamed_version(d.engine, run.measured_on),
        accelerator=d.accelerator.name,
        indexer=d.indexer,
        draft_tokens=d.draft_tokens,
    )
    files = (d.model.name, run.weights, run.weights_bits, run.checkpoint)
    return _MemoryKey(files, d.accelerator.name, d.layout, d.kv, d.draft_tokens > 0), settings


class _MemoryKey(NamedTuple):
    """Key of cached memory, shared by all rows of one deployment."""

    words: tuple[str, str | None, float | None, str | None]
    accelerator: str
    layout: Layout
    kv: str
    mtp: bool


def _unnamed_version(engine: str, day: str | None) -> str | None:
    """Return the engine version implied by a run's date; None is the newest."""
    if not day or engine not in engine_names():
        return None
    return next((one.version for one in load_engine(engine).unnamed_versions if day < one.before), None)


@lru_cache(maxsize=8192)
def _memory_of(
    key: _MemoryKey, settings: MemorySettings, unstated: frozenset[str], length: float
) -> MemoryAnswer | None:
    accelerator = load_accelerator(key.accelerator)

    def pool_of(told: MemorySettings) -> KvPool:
        return kv_pool(_ranks_of(key, told), part_memory(accelerator), context=length)

    def tokens(told: MemorySettings) -> tuple[float, float, float]:
        pool = pool_of(told)
        value, low, high = (max(float(one[0]), 0.0) for one in (pool.tokens, pool.tokens_low, pool.tokens_high))
        return value, low, high

    def printed(told: MemorySettings) -> tuple[float, float, float]:
        pool = pool_of(told)
        logs = (pool.printed, pool.printed_low, pool.printed_high)  # each data-parallel rank has a log of its own
        value, low, high = (max(float(one[0]), 0.0) * float(key.layout.dp) for one in logs)
        return value, low, high

    try:
        value, low, high = spanned(tokens, settings, unstated)
        ranks = _ranks_of(key, settings)
        kept, single = (
            float(requests_by_states(ranks, part_memory(accelerator), prefix_cache=one)[0]) for one in (True, False)
        )
        logged = spanned(printed, settings, unstated) if ranks.by_length else (value, low, high)
        weights, apart = float(ranks.weights[0]) / GIB, weights_interval(ranks, load_memory_fit())
    except GlmplanError:
        return None
    # every running server holds at least one request
    printed_low = max(logged[1], min(length, logged[0]))
    said = (logged[0], printed_low, logged[2])
    return MemoryAnswer(weights, apart, value, max(low, min(length, value)), high, said, (kept, single))


@lru_cache(maxsize=1024)
def _ranks_of(key: _MemoryKey, settings: MemorySettings) -> RankMemory:
    """Return the memory of the ranks; cached for rows of many lengths."""
    return rank_memory(
        model_of(key.words[0]),
        files_of(*key.words, settings.engine),
        layout=key.layout,
        kv=key.kv,
        settings=settings,
        mtp=key.mtp,
        memory=load_accelerator(key.accelerator).memory,
    )


def settings_of_row(run: Run, campaign: CampaignSettings, dp: int, experts: str) -> Settings:
    """Return the launch settings stated by the row, else by its campaign.

    `experts` is the table's name for the expert kernels, by which rules of kernels know them, too.
    """
    limit = campaign.running_limit
    limits = {
        "memory_fraction": run.memory_fraction or campaign.fraction,
        "max_num_seqs": run.max_num_seqs or (-(-limit // dp) if limit else None),
        "max_num_batched_tokens": run.max_num_batched_tokens or campaign.budget,
    }
    # settings that a campaign's scripts leave open are tried as in its other scripts, see `alternatives_of`
    written = campaign.source or campaign.launched
    open_ = frozenset() if written else frozenset(name for name, one in limits.items() if one is None)
    return Settings(
        **limits,  # type: ignore[arg-type]
        max_model_len=run.max_model_len,
        attention_backend=_attention(run) or campaign.attention_backend or "",
        moe_backend=experts,
        expert_kernels=experts.partition(" ")[0] or campaign.expert_kernels,
        graphs=(campaign.graphs if run.graphs is None else run.graphs) is not False,
        gathers_latents=gathers_latents(run.engine, run.engine_version or "", run.tp or 1),
        unstated=open_,
    )


def _attention(run: Run) -> str:
    """Return the attention backend, and the image if it is a foreign one."""
    backend, version = run.attention_backend or "", run.engine_version or ""
    others = "/" in version and not version.startswith(own_images())
    return f"{backend}{IMAGE}{version}" if backend and others else backend


def said_by_script(campaign: CampaignSettings) -> frozenset[str]:
    """Return the settings that a script decides, also by keeping the default.

    A subset of `glmplan.io.runs.settings.SETTINGS`; empty if no script is known.
    """
    return frozenset(SETTINGS) - set(campaign.open) if campaign.launched else frozenset()


def contradicted_by(run: Run, campaign: CampaignSettings) -> tuple[str, ...]:
    """Return the settings for which the row and the script of its day differ."""
    stated = {"kv": run.kv_cache if run.kv_cache in KV_FORMATS else None, "running_limit": run.running_limit,
              "fraction": run.memory_fraction, "budget": run.max_num_batched_tokens, "graphs": run.graphs}  # fmt: skip
    written = {name: getattr(campaign, name) for name in stated} if campaign.launched else {}
    return tuple(name for name, one in written.items() if None not in (one, stated[name]) and one != stated[name])


@dataclass(frozen=True, slots=True)
class RunCase:
    """A deployment under a load, with the assumptions made."""

    run: Run
    deployment: Deployment
    load: Load
    assumed: tuple[str, ...]
    campaign: CampaignSettings = CampaignSettings()  # settings that the campaign's files give its servers
    speculation: Speculation = Speculation()  # as stated by the row, else by the campaign's files
    run_both_ways: bool = (
        False  # the campaign ran it with and without speculative decoding; the row does not tell which
    )
    contradicted: tuple[str, ...] = ()  # settings for which row and script differ; the row is used
    asked: Asked | None = None  # key of the campaign's settings


def question_of(run: Run) -> RunCase:
    """Return the case of a row."""
    return _resolve(run)


def drafting_unstated(case: RunCase) -> bool:
    """Return True if the model can draft and nothing tells if it did.

    Examples
    --------
    >>> cells = {"engine": "trtllm", "weights": "nvfp4", "tp": 8, "concurrency": 8.0, "protocol": "vendor-sweep"}
    >>> unsaid, told = (Run("a", model, "b200-sxm", **cells) for model in ("deepseek-r1", "llama-3.1-8b"))
    >>> drafting_unstated(question_of(unsaid)), drafting_unstated(question_of(told))
    (True, False)
    """
    model = case.deployment.model
    return case.speculation.state == "unknown" and bool(model.mtp or model.draft_head)


def alternatives_of(case: RunCase) -> tuple[RunCase, ...]:
    """Return the case under every other launch that fits the row.

    Covers other settings of the campaign that no script fixes for this server, and speculative decoding if the campaign
    ran it both ways. Empty if scripts decide everything or the campaign is unknown.

    Examples
    --------
    >>> run = Run("a", "kimi-k2.5", "b300-sxm", engine="vllm", weights="nvfp4", tp=8, protocol="inferencex",
    ...           measured_on="2026-04-03", concurrency=64.0, input_tokens=1024.0, output_tokens=1024.0)
    >>> len(alternatives_of(question_of(run))) > 0
    True
    """
    if case.asked is None:
        return ()
    cases = [_resolve(case.run, one) for one in other_settings(case.asked, case.campaign)]
    for drafts in launched_drafts(case.asked) if case.run_both_ways else ():
        drafting = Speculation("yes", None, drafts, drafts + 1)
        cases.append(_resolve(replace(case.run, speculation=drafting)))
    return tuple(cases)


def _resolve(run: Run, settings: CampaignSettings | None = None) -> RunCase:
    """Return the case of a row, under its campaign's settings or others."""
    if run.error:
        raise SpecError(run.error)
    model, accelerator = model_of(run.model), load_accelerator(run.accelerator)
    assumed: list[str] = []
    engine = _resolve_engine(run, assumed)
    checkpoint = _resolve_files(run, model, engine, assumed)
    _check_host_layers(run, model, checkpoint)
    drafts = _resolve_speculation(run, model, checkpoint, assumed)
    layout_notes: list[str] = []
    tp, pp, dp, ep, dcp, count = _resolve_layout(run, layout_notes)
    served = _Served(model, checkpoint, accelerator, engine)
    key = _campaign_key(run, served, drafts.draft_tokens, (tp, pp, dp, ep))
    launched = _experts_of_script(key, served)
    layout_notes += [f"ep {launched} of the script: without it the layout splits quantisation blocks"] * (
        launched != ep
    )
    ep, key = launched, replace(key, ep=launched)
    campaign = settings or campaign_settings(key)
    if campaign.one_group:
        tp, dp = tp * dp, 1
    divided = campaign.replica is not None and run.tp is None
    assumed += [] if divided else layout_notes
    total = count * campaign.parts if divided else count
    host, host_note = host_of_row(run.host, run.accelerator, max(total, tp * pp * dp, run.accelerator_count or 0))
    assumed += [host_note] if host_note else []
    whole = _resolve_deployment(run, served, (tp, pp, dp, ep, dcp), host, campaign, drafts)
    assumed += _assumed_settings(run, whole, campaign)
    deployment = _resolve_server(run, whole, host, campaign, assumed) if divided else whole
    load = _resolve_load(run, deployment, assumed, campaign, replicas=total // deployment.count)
    contradicted = contradicted_by(run, campaign)
    case = RunCase(
        run, deployment, load, tuple(assumed), campaign, drafts.speculation, drafts.both_ways, contradicted, key
    )
    return replace(case, deployment=replace(deployment, assumed=_kinds_of(case)))


#: layers on accelerators, or layers with experts in host memory, as `llama-bench` writes them
_LAYERS = re.compile(r"\bngl (\d+)|\b(\d+) layers' experts on the host")


def _check_host_layers(run: Run, model: ModelSpec, checkpoint: Checkpoint) -> None:
    """Refuse a row with layers on the CPU of an unknown machine."""
    for given, experts in _LAYERS.findall(run.notes):
        if experts or int(given) <= len(model.layer_names) + mtp_blocks(model, checkpoint):
            option = f"--gpu-layers {given} " * bool(given)
            command = f"glmplan fit {run.model} {option}--engine llama.cpp --on FILE"
            raise UnknownFact(
                f"the CPU computed a part of the layers: `{command}` predicts it, where FILE describes the machine "
                "(glmplan hardware import)"
            )


def _kinds_of(case: RunCase) -> tuple[str, ...]:
    """Return the kinds of settings that a row leaves open, each once.

    An unstated acceptance length is none of them: it has a width of its own.
    """
    kinds = assumed_kinds(case.assumed, phase=case.load.phase)
    unstated = drafting_unstated(case) or case.run_both_ways
    return tuple(kind for kind in ASSUMPTIONS if kind in kinds or (unstated and kind == "drafting"))


def _resolve_engine(run: Run, assumed: list[str]) -> str:
    if not run.engine:
        assumed.append(f"engine {STAND_IN}")
    elif not engine_known(run.engine):
        assumed.append(
            f"engine {run.engine} is not described: prompts in chunks beside decoding, cache pool as {STAND_IN}'s"
        )
    return run.engine or STAND_IN


class _Served(NamedTuple):
    """Model, files, accelerator and engine of a row."""

    model: ModelSpec
    checkpoint: Checkpoint
    accelerator: Accelerator
    engine: str


def _resolve_files(run: Run, model: ModelSpec, engine: str, assumed: list[str]) -> Checkpoint:
    checkpoint = files_of(run.model, run.weights, run.weights_bits, run.checkpoint, engine)
    if run.weights is None:
        assumed.append(f"weights {checkpoint.name}")
    assumed += remarks_on(model, checkpoint)
    return checkpoint


def _experts_of_script(key: Asked, served: _Served) -> int:
    """Return the expert parallelism of a row.

    That of the campaign's script where the stated layout splits a quantisation block that the engine does not load:
    the server of such a row cannot have started as labelled.
    """
    server = Server.on(served.accelerator, served.engine, ".".join(str(one) for one in key.release) or None)
    split = split_block(served.model, served.checkpoint, server, (key.tp, key.dp, key.ep))
    if split is None or split.loads:
        return key.ep
    return launched_experts(key) or key.ep


class _Drafts(NamedTuple):
    """Speculative decoding of a row."""

    speculation: Speculation
    draft_tokens: int
    #: largest number of drafted and of verified draft tokens, as a tree may verify more than its depth
    checked_tokens: int
    both_ways: bool


def _resolve_speculation(run: Run, model: ModelSpec, checkpoint: Checkpoint, assumed: list[str]) -> _Drafts:
    """Return the speculation stated by the row, else by its campaign."""
    speculation, session = run.speculation, None
    if speculation.state == "unknown":
        session = campaign_session(run, model=model.name, experts_format=_experts_format(checkpoint))
        speculation = speculation if session is None else session.speculation
    draft = speculation.draft_tokens or 0 if speculation.state == "yes" else 0
    if speculation.state == "yes" and not draft:
        draft = 3
        assumed.append("3 draft tokens")
    verify = (speculation.verify_tokens or draft + 1) - 1 if draft else 0
    both_ways = session is not None and speculation.state == "unknown"
    return _Drafts(speculation, draft, max(verify, draft), both_ways)


def _experts_format(checkpoint: Checkpoint) -> str:
    return checkpoint.formats.get("routed_experts") or checkpoint.default


def _campaign_key(run: Run, served: _Served, draft_tokens: int, degrees: tuple[int, int, int, int]) -> Asked:
    """Return the key under which the settings of the campaign are looked up."""
    tp, pp, dp, ep = degrees
    return Asked(
        engine=served.engine, model=served.model.name, weights=_experts_format(served.checkpoint),
        protocol=run.protocol, recipe=run.recipe or "", accelerator=served.accelerator.name,
        silicon=(served.accelerator.compute_capability or "").partition(".")[0], concurrency=run.concurrency or 1.0,
        input_tokens=run.input_tokens or 0.0, output_tokens=run.output_tokens or 0.0, tp=tp, pp=pp, dp=dp, ep=ep,
        measured_on=run.measured_on or "", version=run.engine_version or "", release=run.engine_release or (),
        draft_tokens=draft_tokens,
    )  # fmt: skip


def _resolve_deployment(
    run: Run,
    served: _Served,
    degrees: tuple[int, int, int, int, int],
    host: Host,
    campaign: CampaignSettings,
    drafts: _Drafts,
) -> Deployment:
    """Return the deployment on all accelerators, not yet divided."""
    model, checkpoint, accelerator, engine = served
    tp, pp, dp, _, dcp = degrees
    divided = campaign.replica is not None and run.tp is None
    # if neither script nor files state it, the cache has the format of the first publisher of these weights: logs of
    # other publishers' files agree (shares of the pool in use)
    kv = _stated_kv(run, campaign) or (
        None if checkpoint.kv_default else checkpoint_of(run.model, run.weights, None, engine).kv_default
    )
    kernels = _expert_kernels(run, engine, model, drafts.checked_tokens + 1.0)
    return deploy(
        model,
        checkpoint,
        accelerator,
        layout=Layout(*degrees),
        kv=kv,
        engine=engine,
        release=run.engine_release,
        settings=settings_of_row(run, campaign, dp, kernels),
        draft_tokens=drafts.checked_tokens,
        acceptance=drafts.speculation.acceptance_length,
        sparse=runs_sparse(accelerator, run.attention_backend, engine=engine, version=run.engine_release),
        offload=offload_of(engine, host, tp * pp * dp),
        link=_links(run, host) if divided else _links(run, host, tp=tp, pp=pp, dp=dp, dcp=dcp),
        draft_method=drafts.speculation.method or "",
        draft_depth=drafts.draft_tokens,
        text="" if run.protocol == _NO_PROTOCOL else run.protocol,
    )


def _stated_kv(run: Run, campaign: CampaignSettings) -> str | None:
    return run.kv_cache if run.kv_cache in KV_FORMATS else campaign.kv


def _assumed_settings(run: Run, deployment: Deployment, campaign: CampaignSettings) -> list[str]:
    assumed = []
    if _stated_kv(run, campaign) is None and "kv" not in said_by_script(campaign):
        assumed.append(f"kv {deployment.kv}")
    if campaign.open:
        opened = "launch settings" if campaign.open == SETTINGS else ", ".join(campaign.open)
        assumed.append(f"{opened} by default, for want of a script")
    return assumed


#: protocol of rows that name none: plans are predicted for the same load, and the deviation of one unnamed protocol
#: does not carry over to the next
_NO_PROTOCOL = "closed-loop"


def _expert_kernels(run: Run, engine: str, model: ModelSpec, tokens: float) -> str:
    """Return the table's expert backend and its path for the routed tokens."""
    word = (run.moe_backend or "").lower().split(" ")[0]
    if word in {"", "default"}:
        return ""
    pairs = (run.concurrency or 1.0) * tokens * max((block.topk for block in routed_blocks(model)), default=0)
    path = expert_path(engine, word, pairs, run.measured_on or "")
    return f"{word} {path}".strip()


#: notes in tables that the one-shot all-reduce ran over PCIe, or did not
_ONE_SHOT = re.compile(r"custom AR|oneshot", re.IGNORECASE)
_NO_ONE_SHOT = re.compile(
    r"custom AR (?:disabled|off|unsupported)|no oneshot|oneshot off|allreduce=NCCL", re.IGNORECASE
)


def _links(run: Run, host: Host, *, tp: int = 1, pp: int = 1, dp: int = 1, dcp: int = 1) -> LayoutLinks:
    """Return the links of a run, with the all-reduce noted in the table."""
    text = f"{run.host or ''} {run.notes}"
    on = _ONE_SHOT.search(text) is not None and _NO_ONE_SHOT.search(text) is None
    return links_of_layout(host, tp=tp, pp=pp, dp=dp, dcp=dcp, one_shot=on)


#: mean-length requests that the KV pool must hold for the model to count as fitting [-]
_ROOM = 32.0


def _resolve_server(
    run: Run, whole: Deployment, host: Host, campaign: CampaignSettings, assumed: list[str]
) -> Deployment:
    """Return one of the independent servers that share the accelerators."""

    def server(tp: int, pp: int = 1, dp: int = 1, ep: int = 1) -> Deployment:
        return whole.with_layout(_links(run, host, tp=tp, pp=pp, dp=dp), tp=tp, pp=pp, dp=dp, ep=ep)

    if campaign.replica:
        deployment = server(*campaign.replica)
        if whole.count * campaign.parts % deployment.count:
            raise SpecError(f"does not divide by {deployment.count}", field="accelerator_count", value=whole.count)
        return deployment
    length = (run.input_tokens or campaign.input_tokens or 0.0) + (run.output_tokens or campaign.output_tokens or 0.0)
    sizes = [1 << power for power in range(whole.count.bit_length()) if whole.count % (1 << power) == 0]
    for size in sizes:
        deployment = server(size)
        memory = run_memory(run, deployment, length)
        if memory is None or memory.pool_tokens >= _ROOM * length:
            break
    assumed.append(f"servers of tp {deployment.tp}")
    return deployment


def _resolve_layout(run: Run, assumed: list[str]) -> tuple[int, int, int, int, int, int]:
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
        # some tables give the attention layout of one rank only; experts then span all accelerators
        dp = max(dp, ep // tp)
    return tp, pp, dp, min(ep, tp * dp), dcp, tp * pp * dp


def request_tokens(load: Load) -> Tokens:
    """Return the tokens of a finished request, cached context included."""
    return load.input_tokens + load.output_tokens + load.context


def memory_of(case: RunCase) -> MemoryAnswer | None:
    """Return the memory of all replicas of a case, see `run_memory`."""
    load = case.load
    memory = run_memory(case.run, case.deployment, request_tokens(load))
    if memory is None or load.replicas == 1:
        return memory
    times, (value, low, high) = load.replicas, memory.printed
    return replace(
        memory,
        pool_tokens=times * memory.pool_tokens,
        pool_low=times * memory.pool_low,
        pool_high=times * memory.pool_high,
        printed=(times * value, times * low, times * high),
    )


def _counted(length: float | None, run: Run, campaign: CampaignSettings) -> float | None:
    """Return the tokens of a stated length; some tables state a label instead."""
    if not length or not run.context_is_label:
        return length
    return campaign.label_share * length + campaign.label_frame


def _context_before(depth: float, phase: str, inputs: float) -> float:
    """Return the tokens cached before the prompt.

    0 if a decode row repeats its prompt as its context depth.
    """
    return 0.0 if phase == "decode" and depth == inputs else depth


def _resolve_load(
    run: Run, deployment: Deployment, assumed: list[str], campaign: CampaignSettings, *, replicas: int = 1
) -> Load:
    packing = _packing(deployment, campaign)
    phase = run.phase if run.phase in ("decode", "prefill") else "serving"
    low, high = campaign.lengths or run.length_range
    limit = run.running_limit or packing.places * deployment.dp
    slots = _slots_of(run, deployment, campaign) if phase == "serving" else np.inf
    limit = int(max(min(limit, slots), 1))
    told = run.running_limit or run.max_num_seqs or campaign.running_limit
    notes: list[str] = []
    inputs, outputs = _resolve_lengths(run, campaign, phase, notes)
    before = _context_before(_counted(run.context_depth, run, campaign) or 0.0, phase, inputs)
    if phase == "serving" and told is None:
        limit = _slots_held(run, deployment, packing, limit, before + inputs + outputs)
    concurrency, queued = _resolve_concurrency(run, (limit, told is not None), replicas, assumed)
    assumed += notes
    requests = (run.num_requests or 0) // replicas or round(concurrency * (campaign.requests_per_user or 0))
    # in a serving run the shared prompt is one cached context only if it was cached before
    one_prompt = run.shared_prompt and (phase == "decode" or (phase == "serving" and run.prefix_cached))
    return user_load(
        packing,
        ranks=deployment.dp,
        tokens_per_step=deployment.tokens_per_step,
        # one acceptance for a whole batch keeps its requests in step
        draft_tokens=deployment.draft_chain * (not run.speculation.simulated),
        phase=phase,
        users=concurrency,
        input_tokens=inputs,
        output_tokens=outputs,
        context=before,
        requests=min(requests, 20480),
        shortest=max(low, 0.02),
        longest=high,
        max_requests=limit,
        pool_tokens=_resolve_pool(run, deployment, inputs, outputs, one_prompt) if phase == "serving" else ENDLESS,
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


def _resolve_concurrency(run: Run, limit: tuple[int, bool], replicas: int, assumed: list[str]) -> tuple[float, bool]:
    """Return the concurrency of a replica; True if all prompts start queued.

    `limit` is that of the requests that run at once, and True if row or campaign state it. An offline run holds as many
    as the limit allows; an engine's own default says nothing about a submission, which tunes it.
    """
    most, told = limit
    concurrency = run.concurrency
    if concurrency is None and run.request_rate_per_s == np.inf and run.num_requests:
        concurrency = float(run.num_requests)  # all are sent at once
    if concurrency is None:
        concurrency = run.observed.get("concurrency_effective") if run.request_rate_per_s else None
    if concurrency is not None:
        return concurrency / replicas, False
    if run.protocol == "mlperf-offline" and told:
        return float(most), True
    offline = run.protocol.startswith(("mlperf", "trtllm-bench")) or run.request_rate_per_s
    concurrency = float(min(most, 1024)) if offline else 1.0
    if not (run.request_rate_per_s and np.isfinite(run.request_rate_per_s)):
        assumed.append(f"{concurrency:.0f} requests in flight")
    return concurrency, run.protocol == "mlperf-offline"


def _resolve_lengths(run: Run, campaign: CampaignSettings, phase: str, assumed: list[str]) -> tuple[Tokens, Tokens]:
    stated, outputs = run.input_tokens or campaign.input_tokens, run.output_tokens or campaign.output_tokens
    inputs = _counted(stated, run, campaign)
    if inputs != stated:
        assumed.append(f"a label of {stated:.0f} stands for {inputs:.0f} tokens")
    if inputs is None:
        inputs = 0.0 if phase == "decode" else _BURST_PROMPT if run.protocol == "burst" else 512.0
        assumed.append(f"{inputs:.0f} input tokens")
    if outputs is None:
        outputs = 256.0
        assumed.append("256 output tokens")
    return inputs, min(outputs, campaign.output_limit)


def _resolve_pool(run: Run, deployment: Deployment, inputs: Tokens, outputs: Tokens, one_prompt: bool) -> Tokens:
    memory = run_memory(run, deployment, inputs + outputs)
    # the run did work: if two requests do not seem to fit, the pool estimate is wrong
    if memory is None or memory.pool_tokens <= 2.0 * (inputs + outputs):
        return ENDLESS
    # slots for states limit requests, not tokens
    held = memory.pool_tokens if memory.running[0] == np.inf else max(memory.printed[0], memory.pool_tokens)
    return held - (inputs if one_prompt else 0.0)


def _slots_of(run: Run, deployment: Deployment, campaign: CampaignSettings) -> float:
    """Return the most requests at once by slots for states, infinite without."""
    length = (run.input_tokens or campaign.input_tokens or 0.0) + (run.output_tokens or campaign.output_tokens or 0.0)
    memory = run_memory(run, deployment, length or 1.0)
    most = (memory or _NO_MEMORY).running[int(not campaign.prefix_cache)]
    # the run did work: fewer than two slots are a wrong estimate
    return float(np.where(most >= 2.0, most, np.inf))


def _slots_held(run: Run, deployment: Deployment, packing: EngineDefaults, limit: int, length: Tokens) -> int:
    """Return the requests at once of a server that was started as a plan is."""
    memory = run_memory(run, deployment, length) if packing.admission == "slot" else None
    if memory is None or memory.pool_tokens <= 2.0 * length:  # as `_resolve_pool`
        return limit
    key, settings = _memory_key(run, deployment)
    ranks, part = _ranks_of(key, settings), part_memory(deployment.accelerator)
    held_low = requests_that_fit(ranks, part, length, quantile=-QUANTILE_90)
    return int(slots_held(packing, limit, held_low, stated=False)[0])


def _packing(deployment: Deployment, campaign: CampaignSettings) -> EngineDefaults:
    """Return the scheduler settings, as set by the campaign."""
    stated = {name: getattr(campaign, name) for name in ("reserve", "whole_prompts", "prefill_first")}
    packing = replace(deployment.defaults, **{name: one for name, one in stated.items() if one is not None})
    return replace(packing, budget=campaign.budget or packing.budget)


def _bunched(run: Run, deployment: Deployment, tokens: float, budget: int) -> float:
    """Return the imbalance of pipeline micro-batches for a burst.

    The requests admitted in one step stay one micro-batch to the end.
    """
    if run.protocol != "burst" or deployment.pp == 1:
        return 1.0
    result: float = deployment.pp / min(deployment.pp, max(np.ceil(tokens / budget), 1.0))
    return result


#: prompt of a burst that does not state it: the report of fr-001 calls its prompts short [token]
_BURST_PROMPT = 128.0


def why_unknown(case: RunCase, *, by_clock: bool = False) -> str:
    """Return the reason why a row is not used for fits; empty if it is usable.

    With `by_clock` arrivals are simulated, so that an unknown concurrency is no reason.

    Examples
    --------
    >>> from glmplan.prediction.from_row import question_of
    >>> run = Run("a", "llama-3.1-8b", "h200-sxm", engine="vllm", accelerator_count=1, protocol="mlperf-server")
    >>> why_unknown(question_of(run))
    'requests in flight are not stated'
    """
    run = case.run
    guessed = any(text.endswith("in flight") for text in case.assumed)
    # open-loop requests are simulated by arrival time, not as a histogram of steps
    by_rate = run.request_rate_per_s and run.request_rate_per_s < np.inf
    by_rate = by_rate and run.concurrency is None and "concurrency_effective" not in run.observed
    if case.load.phase == "serving" and (guessed or by_rate) and not by_clock:
        return "requests in flight are not stated"
    d = case.deployment
    if d.accelerator.rated is not None:
        return f"a {d.accelerator.name} is answered as a {d.accelerator.rated} under a power limit"
    if d.tp > _WIDEST_GROUP:
        return "prefill and decode on separate accelerators; how they share the work is not stated"
    if other := _other_model(run, case.deployment.model):
        return f"the command in its notes serves {other}"
    if too_large := _weights_too_large(case):
        return too_large
    burst = run.request_rate_per_s == np.inf and run.concurrency is None
    # the last requests of a burst are the longest ones, but a table gives only the mean length
    varied = case.load.shortest < _ALIKE * case.load.longest
    return "conversations sent all at once, of lengths that are not stated" if burst and varied else ""


def _weights_too_large(case: RunCase) -> str:
    """Return the reason why the weights cannot fit; empty if they can."""
    part, memory = case.deployment.accelerator, memory_of(case)
    if memory is None or part.memory is None or memory.weights_gib * GIB <= part.memory:
        return ""
    return f"weights do not fit: {memory.weights_gib:.0f} GiB on a {part.name} of {part.memory / GIB:.0f} GiB"


#: model in a server command
_SERVED = re.compile(r"(?:(?:vllm|sglang) serve|--model(?:-path)?)[ =]+[\w.-]+/([\w.-]+)")


def _other_model(run: Run, model: ModelSpec) -> str:
    """Return the model served by the noted command if its shape differs."""
    match = _SERVED.search(run.notes)
    if match is None:
        return ""
    try:
        served = model_of(match[1].lower())
    except GlmplanError:
        return ""
    # releases that differ in weights only (Qwen3-235B-A22B and its 2507) are the same to an engine
    alike = all(getattr(served, name) == getattr(model, name) for name in _SHAPE)
    return "" if alike else served.name


#: fields that decide the work of a step
_SHAPE = ("hidden", "vocabulary", "layer_names", "layers")
#: a larger tensor-parallel group is a whole rack listed as one (GB200 NVL72 rows of InferenceX) [-]
_WIDEST_GROUP = 16
#: above this ratio of shortest to longest request the mean length is sufficient [-]
_ALIKE = 0.5
