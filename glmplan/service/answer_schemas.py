"""Types of the answers over HTTP and of `--format json`.

The OpenAPI document is generated from them. Answers are built elsewhere, as plain values:
`tests/service/test_schemas.py` validates real answers against these types and fails on a field that is not described.
Units are in the names of the fields.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, RootModel, create_model

from glmplan.io.json_names import FIT_SCHEMA
from glmplan.planner.plan import REPLIES, USER_FIGURES
from glmplan.prediction.distribution import SHOWN
from glmplan.prediction.predict import Figure
from glmplan.purchase.cost import Terms

__all__ = [
    "ANSWER_SCHEMAS",
    "Api",
    "Asked",
    "Benchmark",
    "CatalogueAnswer",
    "Chance",
    "Change",
    "CheckAnswer",
    "CheckedMetric",
    "CompareAnswer",
    "Context",
    "CostAnswer",
    "Count",
    "EngineRow",
    "Explanation",
    "FitAnswer",
    "HardwareRow",
    "Infeasible",
    "JobState",
    "Layout",
    "LeftOut",
    "Limit",
    "LinkLoad",
    "LinksAnswer",
    "Load",
    "Memory",
    "Metric",
    "ModelRow",
    "Narrowed",
    "Paragraph",
    "Part",
    "PerToken",
    "Plan",
    "PredictAnswer",
    "PredictedLoad",
    "Progress",
    "Refusal",
    "Reply",
    "Safe",
    "SafeAnswer",
    "Saving",
    "ScaleUpNetwork",
    "Search",
    "Side",
    "SimulateAnswer",
    "SizeAnswer",
    "SizeAnswers",
    "SizeOption",
    "SizedModels",
    "Stating",
    "SweepAnswer",
    "TableAnswer",
    "TrafficRun",
    "Tried",
    "Warn",
    "Way",
    "WorkbookAnswer",
    "Wrong",
]

Number = float | None
Verdict = Literal["fits", "tight", "does_not_fit", "unknown"]
Cell = str | float | bool | None


class _Open(BaseModel):
    """A record whose further fields are numbers."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number]


class Wrong(BaseModel):
    """The error of a refused question."""

    model_config = ConfigDict(extra="allow")

    kind: str
    message: str
    file: str | None = None
    field: str | None = None
    value: str | None = None
    nearest: list[str] = []


class Refusal(BaseModel):
    """A question that is invalid or too large."""

    error: Wrong


class Infeasible(BaseModel):
    """An answer without numbers: the plan does not fit, or is not known."""

    verdict: Literal["does_not_fit", "unknown"]
    reason: str


class Metric(BaseModel):
    """A metric with its 90 % and 50 % intervals."""

    value: float
    low: float
    high: float
    inner_low: float
    inner_high: float


class Count(BaseModel):
    """A number of tokens with its 90 % interval."""

    value: int
    low: int
    high: int


class Reply(BaseModel):
    """The answer to the question in one sentence."""

    verdict: str = Field(json_schema_extra={"enum": list(REPLIES)})
    text: str
    users: int
    probability: float | None


class Asked(BaseModel):
    """The question with its defaults."""

    model: str
    checkpoint: str
    repository: str | None
    source: str
    on: str
    host: str
    accelerator: str
    accelerator_count: int
    power_limit_w: Number
    engine: str
    engine_version: str
    context_tokens: int | None
    input_tokens: int
    output_tokens: int
    users: list[int]


class Plan(BaseModel):
    """Layout and settings of the engine."""

    layout: str
    tp: int
    pp: int
    dp: int
    ep: int
    dcp: int
    replicas: int
    prefill_replicas: int
    accelerators: int
    kv: str
    kv_reason: str
    cuda_graphs: bool
    mtp: int
    sparse_attention: bool
    max_model_len: int | None
    memory_fraction: float | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    attention_backend: str | None
    supported: bool


_RANK = (
    "weights_total_gib", "weights_total_gib_low", "weights_total_gib_high", "activation_gib", "graphs_gib",
    "graph_estimate_gib", "communication_gib", "reserve_gib", "cache_gib", "cache_bytes_per_token",
    "state_bytes_per_sequence", "host_gib", "total_gib", "usable_gib", "capacity_gib",
)  # fmt: skip
Rank = create_model(
    "Rank", rank=(int, ...), label=(str, ...), weights_gib=(dict[str, float], ...),
    **dict[str, Any](dict.fromkeys(_RANK, (float, ...))), __doc__="Memory of one rank.",
)  # fmt: skip


class Memory(BaseModel):
    """Memory of the plan."""

    limiting_stage: int
    kv_pool_tokens: Count
    kv_pool_gib: float
    kv_pool_host_gib: float
    engine_reported_tokens: Count | None
    requests_held: int
    requests_held_low: int
    short_gib: float
    short_gib_low: float
    host_gib: float
    host_capacity_gib: float | None
    host_short_gib: float
    ranks: list[Rank]


class Context(BaseModel):
    """Longest requests."""

    one_request_tokens: int | None
    one_request_tokens_low: int | None
    model_max_tokens: int | None


_Load = create_model("_Load", **dict[str, Any](dict.fromkeys(USER_FIGURES, (Metric | None, ...))))


class Load(_Load):
    """Metrics at one concurrency."""

    users: int
    running: int
    context_each_tokens: int | None
    step_time_breakdown: dict[str, float]
    out_of_domain: str
    simulated: bool
    preemptions_per_request: float


class TrafficRun(BaseModel):
    """The plan, or a change of it, simulated under traffic."""

    description: str
    options: str
    layout: str
    kv: str
    requests: int
    rejected: int
    left: int
    max_served_per_s: float | None
    ttft_mean_ms: Metric | None
    ttft_p95_ms: float
    tpot_mean_ms: Metric | None
    e2e_mean_ms: Metric | None
    output_tokens_per_s: Metric | None
    cached_share: float | None
    cached_share_low: float
    preemptions_per_request: float
    kv_occupancy_max: float
    evidence_level: str
    kv_offload_unavailable: str


class Limit(BaseModel):
    """One limit on the number of users."""

    users: int | None
    reason: str


class Chance(BaseModel):
    """Users, and the probability that they meet the SLO."""

    users: int
    probability: float


#: users that meet the SLO at the shown probabilities
_AT = {f"users_at_{100 * share:.0f}": (int | None, None) for share in SHOWN}
_Safe = create_model("_Safe", **dict[str, Any](_AT))


class Safe(_Safe):
    """Users that meet the SLO."""

    users: int
    expected: int
    probability: float
    curve: list[Chance]
    limit: str
    target_tpot_ms: float
    target_ttft_ms: Number
    limits: dict[str, Limit]


class Layout(BaseModel):
    """A layout that was not chosen."""

    layout: str
    accelerators: int
    verdict: Verdict
    kv_pool_tokens: int
    one_user_tokens_per_s: float
    total_tokens_per_s: float
    reason: str


class Change(BaseModel):
    """A change of the plan and its effect."""

    name: str
    description: str
    verdict: Verdict
    layout: str
    kv_pool_tokens: int
    kv_pool_tokens_low: int
    requests_held_low: int
    one_user_tokens_per_s: float
    total_tokens_per_s: float
    note: str
    options: str
    evidence_level: str


class Warn(BaseModel):
    """A hazard or a limitation of the engine."""

    kind: str
    severity: str
    name: str
    title: str
    effect: str
    action: str
    applied: str
    source: str


class Stating(BaseModel):
    """Width of the intervals with a setting stated."""

    setting: str
    decode: float | None = None
    ttft: float | None = None


class Narrowed(BaseModel):
    """Effect of a benchmark on the interval of a metric."""

    users: int
    metric: str
    interval_factor: float
    interval_factor_after: float


class Benchmark(BaseModel):
    """The benchmark that narrows the intervals most."""

    users: int
    metrics: list[Narrowed]
    command: str


class FitAnswer(BaseModel):
    """The answer of `glmplan fit`, described in docs/reference/fit-json.md."""

    schema_: Literal[FIT_SCHEMA] = Field(alias="schema")  # type: ignore[valid-type]
    verdict: Verdict
    answer: Reply
    may_start: bool
    headline: str
    reasons: list[str]
    unknown: list[str]
    question: Asked
    plan: Plan | None
    memory: Memory | None
    context: Context
    users: list[Load]
    traffic: str | None
    traffic_runs: list[TrafficRun]
    safe: Safe | None
    bottleneck: str
    alternative_layouts: list[Layout]
    skipped_layouts: list[str]
    changes: list[Change]
    warnings: list[Warn]
    command: str
    command_notes: list[str]
    assumed: list[str]
    unstated: list[str]
    stating: list[Stating]
    basis: str
    evidence_level: str
    evidence: str
    recommended_benchmark: Benchmark | None
    fits: list[str]
    #: content by name, if `deploy` was given
    deployment_files: dict[str, str] | None = None


class PredictedLoad(BaseModel):
    """Metrics of a plan at one concurrency, times in seconds."""

    users: int
    figures: dict[str, Figure]
    evidence_level: str
    basis: str


class PredictAnswer(BaseModel):
    """Metrics of a plan at each concurrency."""

    layout: str
    engine: str
    units: dict[str, str]
    users: list[PredictedLoad]


class TableAnswer(BaseModel):
    """Rows of a table with their predictions."""

    rows: list[dict[str, Cell]]
    warnings: list[str]


class SimulateAnswer(_Open):
    """Statistics of a simulation by name; a statistic without a value is null."""

    requests: int
    rejected: int
    rejected_by_reason: dict[str, int]
    basis: str
    interrupted: bool
    intervals: dict[str, list[Number]] = {}
    ranges: dict[str, list[Number]] = {}
    slo_met: dict[str, bool] = {}


class Tried(_Open):
    """A load that was tried, with its statistics."""

    load: float
    safe: bool
    violated: str


class Search(BaseModel):
    """The search for a safe load."""

    limited_by: str
    reason: str
    points: list[Tried]


class SafeAnswer(BaseModel):
    """Safe load of each kind of traffic, and the loads that were tried."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Number | Search]

    slo: str
    basis: str
    probability: float | None = None


class SweepAnswer(BaseModel):
    """One row for each combination."""

    points: int
    rows: list[dict[str, Cell]]
    notes: list[str]


class Saving(BaseModel):
    """Machines that a benchmark would save."""

    users: int
    command: str
    machines: int
    machines_after: int


class PerToken(BaseModel):
    """The cheapest API."""

    seller: str
    usd_month: float
    usd_month_low: float
    usd_month_high: float
    offers: int
    outliers: list[str]
    usd_per_million_input_tokens: float
    usd_per_million_output_tokens: float
    usd_per_million_cached_tokens: float | None
    million_input_tokens_month: float
    million_cached_tokens_month: float
    million_output_tokens_month: float
    date: str
    stale: bool
    source: str


class SizeOption(BaseModel):
    """One option of `size`; unknown values are null."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Cell | list[Any] | dict[str, Any]]

    rank: int
    role: Literal["answer", "price missing", "next cheaper", "over the limits"]
    machine: str
    machines: int
    machines_serving: int
    accelerators: int
    weights: str
    engine: str
    layout: str
    cache: str
    paid: str
    usd_purchase: Number
    usd_month: Number
    usd_month_low: Number
    usd_month_high: Number
    usd_per_million_output_tokens: Number
    probability: float
    slo_met: bool
    limited_by: str
    kw: Number
    evidence_level: str
    evidence: str
    measure: str


_TERMS = [one.name for one in fields(Terms) if one.name not in ("notes", "given", "currency")]
CostTerms = create_model(
    "CostTerms", currency=(str, ...), **dict[str, Any](dict.fromkeys(_TERMS, (Number, ...))),
    __doc__="Assumptions of a cost besides prices.",
)  # fmt: skip


class SizeAnswer(BaseModel):
    """Machines to buy or rent."""

    model: str
    load: float
    unit: str
    slo: str
    input_tokens: int
    output_tokens: int
    given: dict[str, Any]
    budget_usd: Number
    power_limit_kw: Number
    probability_wanted: float
    rent_term: str | None
    spare_machines: int | str
    sites: int
    working_hours_week: Number
    currency: str
    terms: CostTerms
    options: list[SizeOption]
    measurement: Saving | None
    per_token: PerToken | None
    per_token_missing: str
    skipped: dict[str, int]
    no_price: list[str]
    no_price_by_kind: dict[str, list[str]]
    not_looked_at: dict[str, int]
    looked_at: int
    notes: list[str]
    #: Markdown of the first answer, if it was asked for
    acceptance_test: str | None = None


class SizedModels(BaseModel):
    """Machines for each of several models, in the order of the question."""

    models: list[SizeAnswer]


class SizeAnswers(RootModel[SizeAnswer | SizedModels]):
    """Machines to buy or rent, for one model or for each of several."""


_BOUNDED = [f"{name}{end}" for name in ("ttft_mean_ms", "tpot_mean_ms", "output_tokens_per_s")
            for end in ("", "_low", "_high")]  # fmt: skip
_Side = create_model("_Side", **dict[str, Any](dict.fromkeys(_BOUNDED, (Number, ...))))


class Side(_Side):
    """One of the compared plans."""

    plan: str
    layout: str
    engine: str
    cache: str
    host_weights: str
    requests_held: float
    usd_month: Number
    paid: str
    price_assumed: list[str]
    usd_per_million_output_tokens: Number
    usd_per_million_tokens: Number
    kw: Number
    probability: Number
    users_at_95: int | None
    users_at_80: int | None
    users_at_50: int | None
    evidence_level: str


class LeftOut(BaseModel):
    """A plan without numbers."""

    place: int = Field(ge=0, description="Place of the plan in the question, from 0.")
    plan: str
    reason: str


class CompareAnswer(BaseModel):
    """Plans side by side, and the causes of differences to the first."""

    users: int
    rent_term: str | None
    plans: list[Side]
    left_out: list[LeftOut]
    causes: dict[str, list[str]]


class Way(BaseModel):
    """Costs of a plan in one way of payment."""

    paid: str
    usd_month: Number
    usd_month_low: Number
    usd_month_high: Number
    usd_purchase: Number
    month_lines: dict[str, float]
    price_missing: str
    price_assumed: list[str]
    price_stale: list[str]
    usd_per_million_output_tokens: Number
    usd_per_million_tokens: Number
    break_even_million_tokens: Number
    break_even_month: Number


class Api(BaseModel):
    """The cheapest API for the tokens of the plan."""

    seller: str
    usd_per_million_input_tokens: float
    usd_per_million_output_tokens: float
    usd_month: float
    date: str
    stale: bool
    source: str


class CostAnswer(BaseModel):
    """Costs of a plan, bought and rented, against an API."""

    machine: str
    users: int
    output_tokens_per_s: float
    currency: str
    utilisation: float
    horizon_months: float
    residual_share: float
    million_input_tokens_month: float
    million_output_tokens_month: float
    million_tokens_month_most: float
    kw: Number
    kw_words: str
    ways: list[Way]
    api: Api | None
    api_missing: str
    notes: list[str]


class Part(BaseModel):
    """A device of a machine; it comes after its parent."""

    key: str
    parent: str | None
    kind: str
    label: str
    link: str
    gb_per_s: Number
    stage: int | None
    rank: int | None = None


class LinkLoad(BaseModel):
    """Load of one link in a phase."""

    start: str
    end: str
    gb_per_s: float
    capacity_gb_per_s: float
    share: float
    transfers: int


class ScaleUpNetwork(BaseModel):
    """Network that joins accelerators; rate of one in each direction."""

    kind: str
    topology: Literal["switch", "mesh", "bridge"]
    joined: int
    gb_per_s: float


class LinksAnswer(BaseModel):
    """Devices and links of one node, and their load under a layout."""

    host: str
    title: str
    nodes: int
    parts: list[Part]
    scale_up: ScaleUpNetwork | None
    between: list[str]
    loads: dict[str, list[LinkLoad]]
    missing: str
    stages: list[list[int]]
    visible_devices: str
    gain_over_worst_order: Number
    orders_tried: int


class WorkbookAnswer(BaseModel):
    """A workbook."""

    xlsx: str = Field(description="The file in Base64.")


class ModelRow(BaseModel):
    """A model of the catalogue."""

    name: str
    total_b: float
    active_b: float
    layers: int
    kv_bytes_per_token_bf16: float
    max_context: int | None
    checkpoints: list[str]
    title: str
    bits: dict[str, float] = Field(description="Bits of a weight of most tensors, by checkpoint.")
    aliases: list[str] = Field(description="Address on Hugging Face and other names that are understood.")


class HardwareRow(BaseModel):
    """An accelerator or a host of the catalogue."""

    name: str
    kind: Literal["accelerator", "host"]
    accelerator: str
    accelerator_count: int
    memory_gib: Number
    memory_bandwidth_gb_per_s: Number
    title: str


class EngineRow(BaseModel):
    """An engine of the catalogue."""

    name: str
    newest: str


Term: Any = create_model(
    "Term", name=(str, ...), work=(str, ...), fitted=(str, ...), seconds=(float, ...), __doc__="A component of a time.",
)  # fmt: skip


class Paragraph(BaseModel):
    """A step of the arithmetic, and the components of its time."""

    number: int
    text: str
    terms: list[Term]


class Explanation(BaseModel):
    """The arithmetic of a plan.

    - `parts`: Paragraphs by name; that of a concurrency ends with it, as in ``step 8``, ``tpot 8`` and ``ttft 8``.
    """

    text: str
    parts: dict[str, Paragraph]


class CheckedMetric(BaseModel):
    """A measured metric beside its prediction."""

    run: str
    level: float
    metric: str
    measured: float
    predicted: float
    low: float
    high: float
    difference: float
    verdict: str
    inside: bool


class CheckAnswer(BaseModel):
    """Runs of a file, each metric beside its prediction."""

    kind: str
    runs: int
    problems: list[str]
    causes: list[Any]
    verdict: Literal["as_predicted", "slower", "faster", "nothing_compared"]
    outside: int
    figures: list[CheckedMetric]


class CatalogueAnswer(BaseModel):
    """Names of models, machines, engines and formats."""

    models: list[ModelRow]
    hardware: list[HardwareRow]
    engines: list[EngineRow]
    kv_formats: list[str]


class Progress(BaseModel):
    """Work of a job."""

    done: int
    total: int


class JobState(BaseModel):
    """A job: its state, its place in the queue and its progress."""

    job: str
    ask: str
    state: Literal["waiting", "running", "done", "refused", "failed", "cancelled"]
    place: int | None = Field(description="1 for the next waiting job; null if the job does not wait.")
    waiting: int = Field(description="Jobs that wait.")
    seconds: float
    progress: Progress | None


#: name of a question → type of its answer
ANSWER_SCHEMAS: dict[str, type[BaseModel]] = {
    "fit": FitAnswer,
    "explain": Explanation,
    "predict": PredictAnswer,
    "predict-table": TableAnswer,
    "simulate": SimulateAnswer,
    "safe": SafeAnswer,
    "sweep": SweepAnswer,
    "size": SizeAnswers,
    "compare": CompareAnswer,
    "cost": CostAnswer,
    "links": LinksAnswer,
    "workbook": WorkbookAnswer,
    "check": CheckAnswer,
    "catalogue": CatalogueAnswer,
}
