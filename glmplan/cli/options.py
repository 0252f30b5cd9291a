"""Options that commands have in common: each is declared once, in a record that a command takes as one argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import date
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from glmplan.cli.screen import Form
from glmplan.errors import SpecError

if TYPE_CHECKING:
    from glmplan.purchase.money import Money

__all__ = [
    "DeploymentOptions",
    "LaunchOptions",
    "LayoutOptions",
    "MoneyOptions",
    "SchedulerOptions",
    "ServiceOptions",
    "ShapeOptions",
    "TargetOptions",
    "TrafficOptions",
    "day_of",
    "given",
    "read_money",
    "with_options",
]


_MODEL = typer.Argument(help="Model: a catalogue name, or name-format.")
AnyModel = Annotated[str, typer.Argument(help="A catalogue name, name-format, config.json, folder or .gguf file.")]
_ON = typer.Option(help="Machine: NxACCELERATOR, a host name or a TOML file.")
Model = Annotated[str | None, _MODEL]
RequiredModel = Annotated[str, _MODEL]
On = Annotated[str | None, _ON]
RequiredOn = Annotated[str, _ON]
TrafficSpec = Annotated[
    str,
    typer.Option(
        help="closed:USERS, poisson:RATE/s, gamma:RATE/s,cv=3, onoff:RATE/s,on=10,off=30, daily:RATE/s, trace:FILE, "
        "sessions:USERS, sessions:RATE/s, or a TOML file."
    ),
]
Input = Annotated[int | None, typer.Option("--input", min=1, help="Nominal prompt length, in tokens.")]
Output = Annotated[int | None, typer.Option("--output", min=1, help="Nominal answer length, in tokens.")]
Jitter = Annotated[float | None, typer.Option(help="Lengths are uniform in 1 - jitter to 1 times nominal.")]
InputCv = Annotated[float | None, typer.Option(help="Log-normal prompts with this coefficient of variation.")]
OutputCv = Annotated[float | None, typer.Option(help="Log-normal answers with this coefficient of variation.")]
Lengths = Annotated[str | None, typer.Option(help="CSV with input_tokens and output_tokens to draw from.")]
Think = Annotated[str | None, typer.Option(help="Mean pause of a user, such as '2 s'.")]
Ramp = Annotated[str | None, typer.Option(help="Time over which users start; all at once by default.")]
SharedPrefix = Annotated[int | None, typer.Option(min=0, help="Tokens at the head of each prompt that are the same.")]
Turns = Annotated[int | None, typer.Option(min=1, help="Mean turns of a session.")]
ToolWait = Annotated[str | None, typer.Option(help="Mean pause between the turns of a session.")]
Start = Annotated[int | None, typer.Option(min=0, help="Tokens of its own that a session begins with.")]
Urgent = Annotated[
    float | None, typer.Option(min=0, max=1, help="Share of requests that go first under --order priority.")
]
Patience = Annotated[
    str | None, typer.Option(help="Time after which clients without a token yet leave, such as '30 s'.")
]

EngineName = Annotated[str | None, typer.Option(help="vllm, sglang, trtllm or llama.cpp.")]
EngineVersion = Annotated[
    str | None, typer.Option(help="Version of the engine; latest, the default of fit, is the newest known.")
]
Weights = Annotated[str | None, typer.Option(help="Format of the weights.")]
Kv = Annotated[str | None, typer.Option(help="Format of the KV cache.")]
Tp = Annotated[int | None, typer.Option(min=1, help="Tensor parallel degree.")]
Pp = Annotated[int | None, typer.Option(min=1, help="Pipeline stages.")]
Dp = Annotated[int | None, typer.Option(min=1, help="Attention data parallel degree.")]
Ep = Annotated[int | None, typer.Option(min=1, help="Expert parallel degree.")]
Dcp = Annotated[int | None, typer.Option(min=1, help="Decode context parallel degree.")]
Context = Annotated[int | None, typer.Option(min=1, help="Longest sequence that must fit, in tokens.")]
Eager = Annotated[bool, typer.Option("--eager", help="Without CUDA graphs.")]
Calibration = Annotated[
    Path | None, typer.Option(help="Calibration of your site, from `glmplan calibrate --from … --save`.")
]
Mtp = Annotated[int | None, typer.Option(min=0, help="Drafted tokens for each step; 0 for none.")]
AcceptanceLength = Annotated[
    float | None, typer.Option(help="Chance of a drafted token (up to 1), or tokens gained in a step (above 1).")
]
PowerLimit = Annotated[str | None, typer.Option(help="Power limit of each accelerator, such as 450W.")]
MemoryFraction = Annotated[float | None, typer.Option(help="Share of the memory the engine may use.")]
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

MaxNumSeqs = Annotated[
    int | None, typer.Option(min=1, help="Requests that run at once on a data-parallel rank; slots in llama.cpp.")
]
MaxBatchedTokens = Annotated[
    int | None,
    typer.Option(
        "--max-num-batched-tokens",
        "--max-batched-tokens",
        min=1,
        help="Token budget of a step of a data-parallel rank (chunked_prefill_size, max_num_tokens, n_batch).",
    ),
]
AttentionBackend = Annotated[str | None, typer.Option(help="Attention kernels, as the engine names them.")]
Lora = Annotated[int | None, typer.Option(min=1, help="Low-rank adapters that lie on the accelerators at once.")]
LoraRank = Annotated[int | None, typer.Option(min=1, help="Rank of the largest adapter; 16 where none is named.")]
MaxModelLen = Annotated[int | None, typer.Option(min=1, help="Longest prompt and answer together.")]
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
HostTokens = Annotated[
    int | None, typer.Option(min=0, help="Copies of cached tokens in host memory, for each replica (hicache, LMCache).")
]
HostBandwidth = Annotated[
    str | None,
    typer.Option(
        help="Bandwidth over which they come back to a replica, instead of the machine's links, such as '50 GB/s'."
    ),
]
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
Replicas = Annotated[int | None, typer.Option(min=1, max=10_000, help="Servers of the layout behind a router.")]
Routing = Annotated[
    str | None,
    typer.Option(help="round-robin, least-loaded, prefix-aware or affinity; over data-parallel ranks and replicas."),
]
PrefillReplicas = Annotated[
    int | None, typer.Option(min=0, max=10_000, help="Replicas that only prefill and hand over.")
]
Disaggregated = Annotated[
    str | None, typer.Option(help="Servers of the layout for prompts and for decoding, as in 1:3, over the own links.")
]
TransferBandwidth = Annotated[
    str | None, typer.Option("--transfer", help="Bandwidth of the hand-over, such as '50 GB/s'.")
]


Prices = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        help="A price of your own: PART=8500, PART:rent=2.1, MODEL:output=3, electricity=0.3, a whole machine "
        "(8xh200-sxm=300000), with a currency if not USD, or a CSV file. Repeat it for more.",
    ),
]
CostTerms = Annotated[list[str] | None, typer.Option("--term", help="Term of the cost, as in pue=1.2; repeatable.")]
Region = Annotated[str | None, typer.Option(help="Place whose colocation is paid; none by default.")]
Today = Annotated[str | None, typer.Option(help="Day of the question as YYYY-MM-DD; the day it is by default.")]

_PROMISE = typer.Option(help="Promise, such as 'ttft p95 < 2 s, tpot p95 < 50 ms'.")
Slo = Annotated[str, _PROMISE]
OptionalSlo = Annotated[str | None, _PROMISE]
UsersAtOnce = Annotated[int, typer.Option("--users", min=1, help="Users at once.")]
Charts = Annotated[Path | None, typer.Option("--plot", help="Charts: .html, .png or .svg.")]
Seed = Annotated[int, typer.Option(help="Seed; the same seed gives the same bytes.")]
Format = Annotated[Form, typer.Option("--format", help="What is printed.")]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TargetOptions:
    """What is served on what; not needed with a step time of one's own."""

    model: Model = None
    on: On = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShapeOptions:
    """Fields of `Traffic` beside its lengths."""

    jitter: Jitter = None
    input_cv: InputCv = None
    output_cv: OutputCv = None
    lengths: Lengths = None
    think: Think = None
    ramp: Ramp = None
    shared_prefix: SharedPrefix = None
    turns: Turns = None
    tool_wait: ToolWait = None
    start: Start = None
    urgent: Urgent = None
    patience: Patience = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrafficOptions:
    """Fields of `Traffic`."""

    input: Input = None
    output: Output = None
    shape: ShapeOptions = ShapeOptions()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayoutOptions:
    """Version, formats and layout."""

    engine_version: EngineVersion = None
    weights: Weights = None
    kv: Kv = None
    tp: Tp = None
    pp: Pp = None
    dp: Dp = None
    ep: Ep = None
    dcp: Dcp = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LaunchOptions:
    """Fields of `glmplan.prediction.deployment.Settings`: what the engine is told at its start."""

    memory_fraction: MemoryFraction = None
    max_num_seqs: MaxNumSeqs = None
    max_num_batched_tokens: MaxBatchedTokens = None
    max_model_len: MaxModelLen = None
    attention_backend: AttentionBackend = None
    lora: Lora = None
    lora_rank: LoraRank = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeploymentOptions:
    """Fields of `glmplan.planner.question.Words`."""

    engine: EngineName = None
    layout: LayoutOptions = LayoutOptions()
    disaggregated: Disaggregated = None
    context: Context = None
    eager: Eager = False
    mtp: Mtp = None
    acceptance: AcceptanceLength = None
    launch: LaunchOptions = LaunchOptions()
    power_limit: PowerLimit = None
    calibration: Calibration = None


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
    host_tokens: HostTokens = None
    replicas: Replicas = None
    routing: Routing = None
    prefill_replicas: PrefillReplicas = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServiceOptions:
    """A service to simulate: how it is deployed, its cache pool, its step time and its scheduler."""

    deployment: DeploymentOptions = DeploymentOptions()
    kv_tokens: KvTokens = None
    block_size: BlockSize = None
    kv_bytes: KvBytes = None
    step_time: StepTimeOption = None
    scheduler: SchedulerOptions = SchedulerOptions()
    transfer: TransferBandwidth = None
    host_bandwidth: HostBandwidth = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneyOptions:
    """Prices and terms of a cost; `glmplan.cli.options` reads them."""

    price: Prices = None
    term: CostTerms = None
    region: Region = None
    rent_term: Annotated[str | None, typer.Option(help="Term of every rent, such as on demand or 3 years.")] = None
    today: Today = None


def given(options: Any) -> dict[str, Any]:
    """Options of a record, and of the records in it, that were given.

    Returns: Field → value, without those that are None.

    Examples
    --------
    >>> given(TrafficOptions(shape=ShapeOptions(turns=4)))
    {'turns': 4}
    """
    found: dict[str, Any] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        found |= given(value) if is_dataclass(value) else {} if value is None else {field.name: value}
    return found


def with_options(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a command take records of options: their fields stand in its signature, where the record stands.

    - `without`: Fields of records that this command has not.
    - Returns: A decorator for a function whose parameters can all be given by name.

    Examples
    --------
    >>> @with_options(without=("on",))
    ... def command(target: TargetOptions, *, seed: Seed = 0) -> None:
    ...     print(target.model, seed)
    >>> list(inspect.signature(command).parameters)
    ['model', 'seed']
    >>> command(model="glm-5.1", seed=3)
    glm-5.1 3
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters: dict[str, inspect.Parameter] = {}
        hints = get_type_hints(function, include_extras=True)
        own = inspect.signature(function).parameters
        for name, parameter in own.items():
            for field, hint, default in _spread(name, hints[name], parameter.default):
                if field not in without:
                    kind = inspect.Parameter.KEYWORD_ONLY
                    parameters[field] = inspect.Parameter(field, kind, default=default, annotation=hint)

        @wraps(function)
        def command(**values: Any) -> None:
            function(**{name: _gather(name, hints[name], values) for name in own})

        command.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
        command.__annotations__ = {name: one.annotation for name, one in parameters.items()}
        return command

    return decorate


def _spread(name: str, hint: Any, default: Any) -> Iterator[tuple[str, Any, Any]]:
    """Name, type and default of a parameter, or of every field below it where it is a record of options."""
    if not is_dataclass(hint):
        yield name, hint, default
        return
    hints = get_type_hints(hint, include_extras=True)
    for field in fields(hint):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield from _spread(field.name, hints[field.name], default)


def _gather(name: str, hint: Any, values: dict[str, Any]) -> Any:
    """The value of a parameter, or a record of what was given for its fields."""
    if not is_dataclass(hint):
        return values[name]
    hints = get_type_hints(hint, include_extras=True)
    present = {field.name for field in fields(hint) if is_dataclass(hints[field.name]) or field.name in values}
    return hint(**{one: _gather(one, hints[one], values) for one in present})  # type: ignore[operator]


# Prices and terms that a command is given.


def day_of(text: str | None) -> date:
    """The day of a question."""
    if text is None:
        return date.today()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise SpecError("is not a day such as 2026-11-22", field="--today", value=text) from None


def read_money(options: MoneyOptions) -> Money:
    """Read prices and terms."""
    from glmplan.purchase.money import money_of

    return money_of(
        options.price or (), options.term or (), today=day_of(options.today), region=options.region,
        rent_term=options.rent_term,
    )  # fmt: skip
