"""Build service and traffic of `simulate` and `safe` from options."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmplan.cli import options as o
from glmplan.errors import SpecError
from glmplan.request.option import spelled

if TYPE_CHECKING:
    from glmplan.planner.service import Described
    from glmplan.simulation.traffic.drafting import Acceptance
    from glmplan.simulation.traffic.spec import Traffic

__all__ = ["SchedulerOptions", "ServiceOptions", "TargetOptions", "described_services", "measured_step_time"]

KvTokens = Annotated[int | None, typer.Option(min=1, help="KV pool [token] instead of the predicted one.")]
BlockSize = Annotated[int | None, typer.Option(min=1, help="Tokens of a KV block.")]
KvBytes = Annotated[str | None, typer.Option("--kv-bytes-per-token", help="KV cache bytes per token, for transfers.")]
StepTimeOption = Annotated[
    str | None,
    typer.Option(
        help="Measured step time instead of a predicted one: 'base=12 ms,request=0.1 ms,context=13 ns,prompt=17 us'."
    ),
]

ChunkedPrefill = Annotated[bool | None, typer.Option(help="Chunked prefill; the engine's default if not given.")]
PrefixCaching = Annotated[bool | None, typer.Option(help="Prefix caching; the engine's default if not given.")]
AsyncScheduling = Annotated[
    bool | None, typer.Option(help="Schedule a step while the last one runs; the engine's default if not given.")
]
ReserveFullIsl = Annotated[
    bool | None, typer.Option(help="Admit a prompt only if all of it fits; the engine's default if not given.")
]
Conservativeness = Annotated[
    float | None, typer.Option(help="Factor on the KV tokens reserved for running requests (SGLang).")
]
PrefillMaxRequests = Annotated[int | None, typer.Option(min=1, help="Max. prompts per step (SGLang).")]
Order = Annotated[
    str | None,
    typer.Option(
        "--order",
        "--scheduling-policy",
        help="Queue order: fcfs, lpm (longest cached prefix first), or priority (the share of --urgent first).",
    ),
]
LongPrefill = Annotated[
    int | None,
    typer.Option("--long-prefill-token-threshold", min=0, help="Max. tokens of one prompt per step (vLLM)."),
]
ActiveSeqs = Annotated[
    int | None, typer.Option("--max-num-active-seqs", min=1, help="Max. running requests below --max-num-seqs (vLLM).")
]
Watermark = Annotated[
    float | None, typer.Option(help="Share of KV blocks that stay free at admission beside running requests (vLLM).")
]
PrefillDecodeInterval = Annotated[
    int | None, typer.Option(min=0, help="Decode steps between two prefill steps (SGLang).")
]
MinFreeSlots = Annotated[
    int | None,
    typer.Option(
        "--min-free-slots-delay",
        min=0,
        help="Slots that are free before prompts begin beside running requests (SGLang).",
    ),
]
PrefillScheduleInterval = Annotated[
    int | None, typer.Option(min=1, help="Steps from one with prompt tokens to the next (vLLM).")
]
KvTiers = Annotated[
    str | None,
    typer.Option(
        help="Copies of KV blocks beyond --host-tokens, nearest first: "
        "'drive=4000000@6 GB/s+100 us,peers@25 GB/s,shared=80000000'; without a rate that of the machine."
    ),
]
ExpertsApart = Annotated[
    str | None,
    typer.Option(
        help="Routed experts on so many further cards of the same kind, and the network of each: '8@50 GB/s'. The KV "
        "pool stays that of the plan; --kv-tokens sets another."
    ),
]
ImageTime = Annotated[str | None, typer.Option(help="Time of the encoder for one image of --images, such as '60 ms'.")]
EncoderCards = Annotated[
    int | None,
    typer.Option(min=0, max=10_000, help="Cards with encoders of images; without them steps with prompts encode."),
]
Admission = Annotated[
    str | None,
    typer.Option(help="chunk, no-evict, max-utilization, estimate or slot; the engine's default if not given."),
]
Routing = Annotated[
    str | None,
    typer.Option(
        help="round-robin, least-loaded, prefix-aware, affinity, random, power-of-two, least-kv or waiting-penalty; "
        "over data-parallel ranks and replicas."
    ),
]
PrefillReplicas = Annotated[int | None, typer.Option(min=0, max=10_000, help="Prefill-only replicas.")]
TransferBandwidth = Annotated[
    str | None, typer.Option("--transfer", help="Bandwidth of KV transfers, such as '50 GB/s'.")
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetOptions:
    """Model and machine; not needed with --step-time."""

    model: o.Model = None
    on: o.On = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SchedulerOptions:
    """Fields of `EngineSettings` without effect on memory."""

    chunked_prefill: ChunkedPrefill = None
    prefix_caching: PrefixCaching = None
    admission: Admission = None
    async_scheduling: AsyncScheduling = None
    reserve_full_isl: ReserveFullIsl = None
    schedule_conservativeness: Conservativeness = None
    prefill_max_requests: PrefillMaxRequests = None
    order: Order = None
    long_prefill_token_threshold: LongPrefill = None
    max_num_active_seqs: ActiveSeqs = None
    watermark: Watermark = None
    prefill_decode_interval: PrefillDecodeInterval = None
    min_free_slots: MinFreeSlots = None
    prefill_schedule_interval: PrefillScheduleInterval = None
    encoder_cards: EncoderCards = None
    routing: Routing = None
    prefill_replicas: PrefillReplicas = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServiceOptions:
    """Service to simulate: deployment, KV pool, step time and scheduler."""

    deployment: Annotated[o.Given, o.plan("simulate")] = field(default_factory=dict)
    kv_tokens: KvTokens = None
    block_size: BlockSize = None
    kv_bytes: KvBytes = None
    step_time: StepTimeOption = None
    scheduler: SchedulerOptions = SchedulerOptions()
    transfer: TransferBandwidth = None
    kv_tiers: KvTiers = None
    image_time: ImageTime = None
    experts_apart: ExpertsApart = None


#: default scheduler with --step-time; the answer names it
_SCHEDULER = "vllm"
#: options of a plan that are scheduler settings here
_SCHEDULED = ("host_tokens", "replicas")
#: launch settings that affect both steps and memory
_STEPS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
#: options of a plan that a service with a measured step time has; `probability` is of the search for a load
_MEASURED = (*_STEPS, *_SCHEDULED, "engine", "dp", "pp", "mtp", "acceptance", "host_bandwidth", "probability")
_STEP_PARTS = {
    "base": "base",
    "request": "per_request",
    "context": "per_context_token",
    "prompt": "per_prefill_token",
    "pair": "per_prefill_square",
}


def measured_step_time(text: str) -> dict[str, float]:
    """Return a measured step time as arguments of `StepTable.affine`, [s].

    Parts are separated by commas: `base` per step, `request` per decoding request, `context` per token of its context,
    `prompt` per prompt token, `pair` per pair of a prompt token and a key.

    Examples
    --------
    >>> measured_step_time("base=12 ms,prompt=20 us")
    {'base': 0.012, 'per_prefill_token': 2e-05}
    """
    from glmplan.units import parse_quantity

    found = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name.strip() not in _STEP_PARTS:
            raise SpecError(
                "is not a part of a step time", field="--step-time", value=name.strip(), choices=_STEP_PARTS
            )
        seconds = parse_quantity(value, "seconds")
        if seconds < 0:
            raise SpecError("must not be negative", field="--step-time", value=part.strip())
        found[_STEP_PARTS[name.strip()]] = seconds
    if not found.get("base", 0) > 0:
        raise SpecError("needs a base above zero, as in base=12 ms", field="--step-time", value=text)
    return found


def described_services(
    target: TargetOptions,
    options: ServiceOptions,
    shape: o.Given,
    *specs: str,
    usual: bool = False,
    slo: str | None = None,
) -> tuple[Described, list[Traffic]]:
    """Return the service to simulate, and the traffic of each spec.

    The first spec decides the plan. With `usual` its number is a default, and the plan is that of the usual concurrency
    of the machine. Lengths that a spec leaves open are those of the question. The layout is chosen for `slo`.
    """
    from glmplan.simulation.traffic.spec import parse_traffic
    from glmplan.simulation.unused import check_used
    from glmplan.units import parse_quantity

    kinds = [parse_traffic(spec, **shape) for spec in specs]
    deployment = dict(options.deployment)
    scheduler = _scheduler(options, deployment)
    per_token = None
    if options.kv_bytes is not None:
        per_token = parse_quantity(options.kv_bytes, "bytes", field="--kv-bytes-per-token")
    if options.step_time is not None:
        found = _with_own_step_time(options, scheduler, per_token)
        check_used(found.service.settings, kinds[0], scheduler)
    else:
        if target.model is None or target.on is None:
            missing = "MODEL" if target.model is None else "--on"
            raise SpecError("is needed unless --step-time gives the step time", field=missing)
        how = {"usual": usual, "slo": slo}
        found, kinds = _predicted(target.model, target.on, (options, deployment), scheduler, kinds, how)
    if per_token is not None:
        settings, pool = found.service.settings, replace(found.service.pool, bytes_per_token=per_token)
        if not (settings.prefill_replicas or settings.host_tokens):
            message = "has no effect without --prefill-replicas or --host-tokens: nothing is transferred"
            raise SpecError(message, field="--kv-bytes-per-token", value=options.kv_bytes)
        found = replace(found, service=replace(found.service, pool=pool))
    return found, kinds


def _scheduler(options: ServiceOptions, deployment: dict[str, Any]) -> dict[str, Any]:
    """Return the given scheduler settings, taken out of `deployment`."""
    from glmplan.simulation.engine.settings import TransferLink
    from glmplan.units import parse_quantity

    scheduler = o.given(options.scheduler)
    scheduler |= {name: deployment.pop(name) for name in _SCHEDULED if name in deployment}
    host_bandwidth = deployment.pop("host_bandwidth", None)
    if options.transfer is not None:
        scheduler["link"] = TransferLink(parse_quantity(options.transfer, "bytes per second", field="--transfer"))
    if options.experts_apart is not None:
        if options.step_time is not None:
            raise SpecError("needs a plan, whose step time has parts", field="--experts-apart")
        scheduler["experts_apart"] = options.experts_apart
    if options.kv_tiers is not None:
        scheduler["tiers"] = options.kv_tiers
    if options.image_time is not None:
        scheduler["image_seconds"] = parse_quantity(options.image_time, "seconds", field="--image-time")
    if host_bandwidth is not None:
        given = host_bandwidth  # a text from a fleet file
        given = parse_quantity(given, "bytes per second", field="--host-bandwidth") if isinstance(given, str) else given
        scheduler["host_link"] = TransferLink(given)
    elif scheduler.get("host_tokens") and options.step_time is not None:
        raise SpecError("is needed with --host-tokens and --step-time, as in '50 GB/s'", field="--host-bandwidth")
    return scheduler


def _with_own_step_time(options: ServiceOptions, scheduler: dict[str, Any], per_token: float | None) -> Described:
    """Return the service with a measured step time."""
    from glmplan.planner.service import Described
    from glmplan.planner.simulated import read_tiers
    from glmplan.simulation.engine.settings import KvPool, scheduler_settings
    from glmplan.simulation.engine.step_table import StepTable
    from glmplan.simulation.simulate import Service

    assert options.step_time is not None
    told = options.deployment
    if "disaggregated" in told:
        raise SpecError("needs a plan: say --replicas and --prefill-replicas", field="--disaggregated with --step-time")
    for name, value in told.items():
        if name not in _MEASURED and value is not None:
            message = "has no effect with --step-time, which is measured with it: leave it out"
            raise SpecError(message, field=spelled(name), value=value)
    if options.kv_tokens is None:
        raise SpecError("is needed with --step-time", field="--kv-tokens")
    engine = told.get("engine")
    scheduler |= {name: told.get(name) for name in _STEPS}
    ranks, stages = told.get("dp", 1), told.get("pp", 1)
    if told.get("mtp") and stages > 1:
        raise SpecError(
            "speculative decoding does not work over pipeline stages", field="--mtp with --pp", value=stages
        )
    for name in ("replicas", "prefill_replicas"):
        scheduler[name] = ranks * scheduler[name] if name in scheduler else ranks if name == "replicas" else 0
    if "tiers" in scheduler:
        scheduler["tiers"] = read_tiers(scheduler["tiers"], lambda kind: None)
    settings = scheduler_settings(
        engine or _SCHEDULER, **scheduler, acceptance=_acceptance(told.get("mtp"), told.get("acceptance"))
    )
    times = measured_step_time(options.step_time)
    table = StepTable.affine(**times, max_requests=max(1024, settings.max_num_seqs))
    if (options.transfer or "host_bandwidth" in told) and per_token is None:
        raise SpecError("is needed with --transfer or --host-bandwidth and --step-time", field="--kv-bytes-per-token")
    pool = KvPool(options.kv_tokens, options.block_size or 16, per_token or 0.0)
    basis = "the step time given" + ("" if engine else f", scheduled as {_SCHEDULER} does")
    return Described(Service(table, pool, settings), 1.0, 1.0, basis)


def _acceptance(drafted: int | None, mean: float | None) -> Acceptance | None:
    """Return the acceptance of speculation; None without draft tokens."""
    from glmplan.simulation.traffic.drafting import Acceptance

    if not drafted:
        if mean is not None:
            raise SpecError("needs --mtp with the number of draft tokens", field="--acceptance", value=mean)
        return None
    if mean is None:
        raise SpecError("is needed with --mtp and --step-time", field="--acceptance")
    return Acceptance.of_mean(drafted, mean) if mean > 1 else Acceptance(drafted, mean)


def _predicted(
    model: str,
    on: str,
    told: tuple[ServiceOptions, o.Given],
    scheduler: dict[str, Any],
    kinds: list[Traffic],
    how: dict[str, Any],
) -> tuple[Described, list[Traffic]]:
    """Return the service of a plan, with predicted step times."""
    from glmplan.planner.traffic_search import described_under
    from glmplan.request.plan import PlanRequest

    options, deployment = told
    if "disaggregated" in deployment and {"replicas", "prefill_replicas"} & set(scheduler):
        message = "says how many servers there are: leave --replicas and --prefill-replicas out"
        raise SpecError(message, field="--disaggregated", value=deployment["disaggregated"])
    request = PlanRequest(model, on, **deployment, replicas=scheduler.pop("replicas", None))
    return described_under(
        request, kinds, **how, kv_tokens=options.kv_tokens, block_size=options.block_size, scheduler=scheduler
    )
