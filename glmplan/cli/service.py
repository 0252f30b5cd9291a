"""What `simulate` and `safe` share: from words on the command line to the service and traffic that are simulated."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmplan.cli import options as o
from glmplan.errors import SpecError

if TYPE_CHECKING:
    from glmplan.planner.service import Described
    from glmplan.simulation.traffic.drafting import Acceptance
    from glmplan.simulation.traffic.spec import Traffic

__all__ = ["SchedulerOptions", "ServiceOptions", "TargetOptions", "described_services", "measured_step_time"]

KvTokens = Annotated[int | None, typer.Option(min=1, help="Room of the KV pool instead of the predicted one.")]
BlockSize = Annotated[int | None, typer.Option(min=1, help="Tokens of a KV block.")]
KvBytes = Annotated[
    str | None, typer.Option("--kv-bytes-per-token", help="Bytes of a token in the KV cache, for the hand-over.")
]
StepTimeOption = Annotated[
    str | None,
    typer.Option(
        help="Step time of your own instead of a model's: 'base=12 ms,request=0.1 ms,context=13 ns,prompt=17 us'."
    ),
]

ChunkedPrefill = Annotated[bool | None, typer.Option(help="Whether prompts are spread over steps.")]
PrefixCaching = Annotated[
    bool | None, typer.Option(help="Whether equal heads of prompts are found again; the engine's own by default.")
]
AsyncScheduling = Annotated[
    bool | None, typer.Option(help="Whether a step is formed while the last one runs; the engine's own by default.")
]
ReserveFullIsl = Annotated[
    bool | None, typer.Option(help="Whether a whole prompt must fit before it is begun; the engine's own by default.")
]
Conservativeness = Annotated[
    float | None, typer.Option(help="Multiplies the room kept for answers under way (SGLang).")
]
PrefillMaxRequests = Annotated[int | None, typer.Option(min=1, help="Prompts that may share a step (SGLang).")]
Order = Annotated[
    str | None,
    typer.Option(
        "--order",
        "--scheduling-policy",
        help="Who is next: fcfs, lpm for the longest cached prefix, or priority for the share that --urgent names.",
    ),
]
LongPrefill = Annotated[
    int | None,
    typer.Option(
        "--long-prefill-token-threshold", min=0, help="Tokens of one prompt that a step takes at most (vLLM)."
    ),
]
Admission = Annotated[
    str | None, typer.Option(help="chunk, no-evict, max-utilization, estimate or slot; the engine's own by default.")
]
Routing = Annotated[
    str | None,
    typer.Option(help="round-robin, least-loaded, prefix-aware or affinity; over data-parallel ranks and replicas."),
]
PrefillReplicas = Annotated[
    int | None, typer.Option(min=0, max=10_000, help="Replicas that only prefill and hand over.")
]
TransferBandwidth = Annotated[
    str | None, typer.Option("--transfer", help="Bandwidth of the hand-over, such as '50 GB/s'.")
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetOptions:
    """What is served on what; not needed with a step time of one's own."""

    model: o.Model = None
    on: o.On = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SchedulerOptions:
    """Fields of `EngineSettings` beside those that decide memory too."""

    chunked_prefill: ChunkedPrefill = None
    prefix_caching: PrefixCaching = None
    admission: Admission = None
    async_scheduling: AsyncScheduling = None
    reserve_full_isl: ReserveFullIsl = None
    schedule_conservativeness: Conservativeness = None
    prefill_max_requests: PrefillMaxRequests = None
    order: Order = None
    long_prefill_token_threshold: LongPrefill = None
    routing: Routing = None
    prefill_replicas: PrefillReplicas = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServiceOptions:
    """A service to simulate: how it is deployed, its cache pool, its step time and its scheduler."""

    deployment: Annotated[o.Given, o.plan("simulate")] = field(default_factory=dict)
    kv_tokens: KvTokens = None
    block_size: BlockSize = None
    kv_bytes: KvBytes = None
    step_time: StepTimeOption = None
    scheduler: SchedulerOptions = SchedulerOptions()
    transfer: TransferBandwidth = None


#: scheduler of a step time of one's own when no engine is named, which the answer says
_SCHEDULER = "vllm"
#: options of a plan that the scheduler of the simulator takes here
_SCHEDULED = ("host_tokens", "replicas")
#: what a launch is told that decides steps as well as memory
_STEPS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len")
_STEP_PARTS = {
    "base": "base",
    "request": "per_request",
    "context": "per_context_token",
    "prompt": "per_prefill_token",
    "pair": "per_prefill_square",
}


def measured_step_time(text: str) -> dict[str, float]:
    """Read a step time of the user's own.

    - `text`: Parts separated by commas: `base` for each step, `request` for each decoding request, `context` for each
      token of its context, `prompt` for each prompt token, `pair` for each pair of a prompt token and a key.
    - Returns: Arguments of `StepTable.affine`, [s].

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
    target: TargetOptions, options: ServiceOptions, shape: o.Given, *specs: str, usual: bool = False
) -> tuple[Described, list[Traffic]]:
    """Build the service to simulate, and the traffic that arrives at it.

    - `target`: Model and machine; not needed with a step time of one's own.
    - `*specs`: Kinds of traffic, as `parse_traffic` takes them; the first decides the plan.
    - `usual`: Whether the number in the first is none that was named: the plan is then that of as many as are usual
      on the machine.
    - `list of Traffic`: One for each spec; lengths that it leaves open are those of the question.
    """
    from glmplan.simulation.engine.settings import TransferLink
    from glmplan.simulation.traffic.spec import parse_traffic
    from glmplan.units import parse_quantity

    kinds = [parse_traffic(spec, **shape) for spec in specs]
    scheduler = o.given(options.scheduler)
    deployment = dict(options.deployment)
    scheduler |= {name: deployment.pop(name) for name in _SCHEDULED if name in deployment}
    host_bandwidth = deployment.pop("host_bandwidth", None)
    if options.transfer is not None:
        scheduler["link"] = TransferLink(parse_quantity(options.transfer, "bytes per second"))
    if host_bandwidth is not None:
        scheduler["host_link"] = TransferLink(host_bandwidth)
    elif scheduler.get("host_tokens") and options.step_time is not None:
        raise SpecError("is needed with --host-tokens and --step-time, as in '50 GB/s'", field="--host-bandwidth")
    per_token = parse_quantity(options.kv_bytes, "bytes") if options.kv_bytes is not None else None
    if options.step_time is not None:
        return _with_own_step_time(options, scheduler, per_token), kinds
    if target.model is None or target.on is None:
        missing = "MODEL" if target.model is None else "--on"
        raise SpecError("is needed unless --step-time gives the step time", field=missing)
    found, kinds = _predicted(target.model, target.on, (options, deployment), scheduler, kinds, usual)
    if per_token is not None:
        service = replace(found.service, pool=replace(found.service.pool, bytes_per_token=per_token))
        found = replace(found, service=service)
    return found, kinds


def _with_own_step_time(options: ServiceOptions, scheduler: dict[str, Any], per_token: float | None) -> Described:
    """The service of somebody who knows the step time."""
    from glmplan.planner.service import Described
    from glmplan.simulation.engine.settings import KvPool, scheduler_settings
    from glmplan.simulation.engine.step_table import StepTable
    from glmplan.simulation.simulate import Service

    assert options.step_time is not None
    told = options.deployment
    if "disaggregated" in told:
        raise SpecError("needs a plan: say --replicas and --prefill-replicas", field="--disaggregated with --step-time")
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
    """Speculation as described by the number of drafted tokens and the acceptance length."""
    from glmplan.simulation.traffic.drafting import Acceptance

    if not drafted:
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
    usual: bool,
) -> tuple[Described, list[Traffic]]:
    """The service as `fit` plans and glmplan predicts it."""
    from glmplan.planner.traffic_search import described_under
    from glmplan.request.plan import PlanRequest

    options, deployment = told
    if "disaggregated" in deployment and {"replicas", "prefill_replicas"} & set(scheduler):
        message = "says how many servers there are: leave --replicas and --prefill-replicas out"
        raise SpecError(message, field="--disaggregated", value=deployment["disaggregated"])
    request = PlanRequest(model, on, **deployment, replicas=scheduler.pop("replicas", None))
    return described_under(
        request, kinds, usual=usual, kv_tokens=options.kv_tokens, block_size=options.block_size, scheduler=scheduler
    )
