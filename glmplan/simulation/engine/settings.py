"""Settings of an engine: scheduler, limits, KV pool, speculation, link."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import numpy as np

from glmplan.catalog.engines.defaults import engine_defaults
from glmplan.errors import SpecError
from glmplan.simulation.traffic.drafting import Acceptance, check_whole
from glmplan.simulation.traffic.waiting import waiting_share
from glmplan.units import Ratio

__all__ = [
    "AS_STEPS_SAY",
    "SCHEDULERS",
    "TIERS",
    "CacheTier",
    "EngineSettings",
    "FirstTokens",
    "GatewayRules",
    "KvPool",
    "ServingInputs",
    "TransferLink",
    "scheduler_settings",
]


#: schedulers that are simulated, by the engine that each is of
SCHEDULERS: tuple[str, ...] = ("vllm", "sglang", "trtllm", "llama.cpp")

_ADMISSIONS = ("chunk", "no-evict", "max-utilization", "estimate", "slot")
_ROUTINGS = (
    *("round-robin", "least-loaded", "prefix-aware", "affinity", "random", "power-of-two", "least-kv"),
    "waiting-penalty",
)
_ORDERS = ("fcfs", "lpm", "priority")
#: settings and orders that one scheduler alone reads
_OWNERS = {"prefill_max_requests": "sglang", "schedule_conservativeness": "sglang", "lpm": "sglang",
           "reserve_full_isl": "vllm"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KvPool:
    """KV pool of one replica, allocated in blocks.

    Parameters
    ----------
    tokens : int
        Tokens the pool holds, [token]
    block_size : int, optional
        Tokens of a block, [token]
    bytes_per_token : float, optional
        Bytes that one token occupies over all ranks; only a transfer between replicas needs it, [B]

    Raises
    ------
    SpecError
        If the pool does not hold one block.

    Examples
    --------
    >>> KvPool(tokens=1000).blocks
    62
    """

    tokens: int
    block_size: int = 16
    bytes_per_token: float = 0.0

    def __post_init__(self) -> None:
        check_whole(self.block_size, "block_size")
        if not self.tokens >= self.block_size:
            raise SpecError(f"is less than one block of {self.block_size} tokens", field="kv tokens", value=self.tokens)

    @property
    def blocks(self) -> int:
        """Whole blocks in the pool, [-]"""
        return int(self.tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class TransferLink:
    """The link between prefill and decode replicas; transfers queue on it.

    Parameters
    ----------
    bandwidth : float
        Bytes per second that really cross, [B/s]
    latency : float, optional
        Time before the first byte, [s]
    """

    bandwidth: float
    latency: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0 or not self.latency >= 0:
            raise SpecError("needs a positive bandwidth and no negative latency", field="link", value=self.bandwidth)


#: kinds of tiers beyond host memory
TIERS: tuple[str, ...] = ("drive", "shared", "peers")


@dataclass(frozen=True, slots=True)
class CacheTier:
    """Copies of cached tokens beyond host memory.

    Parameters
    ----------
    kind : str
        `drive` (of each replica), `shared` (one pool for all replicas) or `peers` (the host memory of the others).
    tokens : int
        Tokens that it holds; those of the host memory for `peers`, [token]
    link : TransferLink
        Its link. A shared pool has one for all replicas; the network of a replica is at most as fast.
    """

    kind: str
    tokens: int
    link: TransferLink

    def __post_init__(self) -> None:
        if self.kind not in TIERS:
            raise SpecError("is not a tier", field="--kv-tiers", value=self.kind, choices=TIERS)
        check_whole(self.tokens, "--kv-tiers", 0 if self.kind == "peers" else 1)


#: copies behind one router, each of which is simulated [-]
_MOST_REPLICAS = 10_000


@dataclass(frozen=True, slots=True)
class GatewayRules:
    """How a gateway distributes requests over replicas.

    Parameters
    ----------
    routing : str, optional
        As `EngineSettings.routing`, or `weighted`: groups in turn, in proportion to their weights and replicas.
    max_outstanding : int, optional
        Requests at one replica, running and waiting; further ones wait at the gateway. 0 sets no limit, [-]
    queue_size : int, optional
        Requests that may wait at the gateway for one model; others are rejected, [-]
    queue_timeout : float, optional
        Time after which the gateway rejects a waiting request, [s]
    metrics_interval : float, optional
        Age at which `least-kv` reads the KV usage of the replicas again, [s]
    seed : int, optional
        Seed of the random choices, [-]
    """

    routing: str = "round-robin"
    max_outstanding: int = 0
    queue_size: int = 1 << 60
    queue_timeout: float = math.inf
    metrics_interval: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self.max_outstanding, "max-outstanding", 0)
        check_whole(self.queue_size, "queue-size", 0)
        choices = (*_ROUTINGS, "weighted")
        if self.routing not in choices:
            raise SpecError("is not known", field="routing", value=self.routing, choices=choices)
        for name, value in (("queue-timeout", self.queue_timeout), ("metrics-interval", self.metrics_interval)):
            if not value >= 0:
                raise SpecError("must not be negative", field=name, value=value)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How the engine forms its steps.

    Parameters
    ----------
    scheduler : str, optional
        `vllm` (V1: decode first, prompts in chunks beside it), `sglang` (prompts first, alone in their step), `trtllm`
        (in-flight batching) or `llama.cpp` (slots of equal context).
    max_num_batched_tokens : int, optional
        Token budget of a step; `chunked_prefill_size` in SGLang, `max_num_tokens` in TensorRT-LLM, `n_batch` in
        llama.cpp, [token]
    max_num_seqs : int, optional
        Requests that run at once; slots in llama.cpp, [-]
    chunked_prefill : bool, optional
        Spread a prompt over steps.
    admission : str, optional
        `chunk` (blocks for the next chunk are free), `max-utilization` (the same rule, TensorRT-LLM's name), `no-evict`
        (the full length of every running request is reserved), `estimate` (SGLang: input, output and a shrinking share
        of what running requests may still write) or `slot`.
    prefill_first : bool, optional
        Steps with prompt tokens leave decoding requests waiting.
    prefix_caching : bool, optional
        Keep blocks of earlier requests for later ones.
    acceptance : Acceptance, optional
        Speculative decoding; the step time must include draft and verification.
    pipeline_stages : int, optional
        Micro-batches in flight, [-]
    replicas : int, optional
        Data-parallel copies, each with its own pool, [-]
    routing : str, optional
        `round-robin`, `least-loaded`, `prefix-aware` (where most of the prompt is cached), `affinity` (every turn of a
        session goes where its first one went, single requests to the least loaded), `random`, `power-of-two` (the less
        loaded of two random ones), `least-kv` (the smallest share of the KV pool in use) or `waiting-penalty` (vLLM's:
        the least loaded, where waiting requests count up to four times behind a full KV pool).
    prefill_replicas : int, optional
        Of the replicas, how many only prefill and hand over (disaggregation), [-]
    max_model_len : int, optional
        Longest prompt plus answer, [token]
    new_token_ratio : float, optional
        SGLang: the share of outstanding output that admission starts with, [-]
    schedule_conservativeness : float, optional
        SGLang: multiplies that share, which is never more than 1, [-]
    prefill_max_requests : int, optional
        SGLang: requests whose prompts may share a step; no limit by default, [-]
    order : str, optional
        Order of the queue: `fcfs`, `lpm` (SGLang: the longest cached prefix), or `priority`: the urgent
        before the others. vLLM also preempts the least urgent first; SGLang, with priorities no further apart than
        `priority_scheduling_preemption_threshold` (10), preempts no request for them.
    async_scheduling : bool, optional
        Form a step while the one before it runs: a request that arrives meanwhile waits one more step.
    reserve_full_isl : bool, optional
        vLLM: whether blocks for the whole prompt must be free before its first chunk is computed.
    long_prefill_token_threshold : int, optional
        vLLM: tokens of one prompt that a step takes at most, so that several prompts are computed side by side; not of
        a request that has the engine to itself. 0 sets no limit, [token]
    max_num_active_seqs : int, optional
        vLLM: requests that run at once, if fewer than `max_num_seqs`; 0 sets no limit, [-]
    watermark : float, optional
        vLLM: share of the blocks that stay free when a request is admitted beside others, [-]
    prefill_decode_interval : int, optional
        SGLang: decode steps between two steps with prompt tokens while requests decode, [-]
    min_free_slots : int, optional
        SGLang: slots that are free before prompts begin beside running requests; one that was begun goes on. 0 or 1
        sets no limit, [-]
    prefill_schedule_interval : int, optional
        vLLM: steps from one with prompt tokens to the next while requests decode, unless the last one left requests
        waiting; counted by the server over data-parallel ranks in lockstep, [-]
    host_tokens : int, optional
        Copies of cached tokens that host memory holds for each replica; needs prefix caching, [token]
    host_link : TransferLink, optional
        The link over which they come back; a step waits for what it loads.
    tiers : tuple of CacheTier, optional
        Copies beyond host memory, nearest first. A request waits until they are in host memory.
    image_seconds : float, optional
        Time in which an encoder computes one image, [s]
    encoder_cards : int, optional
        Cards with encoders, for all replicas; without any, the step that begins a prompt encodes its images, [-]
    kept_bytes : float, optional
        llama.cpp: keys and values of prompts that lost their slot which are kept in host memory, [B]
    lockstep : int, optional
        Replicas that are the data-parallel ranks of one server and end each step together; 1 if each is alone, [-]

    Raises
    ------
    SpecError
        If a field is out of range; names the field.

    Examples
    --------
    >>> EngineSettings(max_num_seqs=0)
    Traceback (most recent call last):
    glmplan.errors.SpecError: max_num_seqs: 0 must be a whole number of at least 1
    """

    scheduler: str = "vllm"
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    chunked_prefill: bool = True
    admission: str = "chunk"
    prefill_first: bool = False
    prefix_caching: bool = False
    acceptance: Acceptance | None = None
    pipeline_stages: int = 1
    replicas: int = 1
    routing: str = "round-robin"
    prefill_replicas: int = 0
    max_model_len: int = 2**31
    new_token_ratio: float = 0.7
    link: TransferLink | None = field(default=None)
    schedule_conservativeness: float = 1.0
    prefill_max_requests: int | None = None
    order: str = "fcfs"
    async_scheduling: bool = False
    reserve_full_isl: bool = False
    host_tokens: int = 0
    host_link: TransferLink | None = field(default=None)
    long_prefill_token_threshold: int = 0
    max_num_active_seqs: int = 0
    watermark: float = 0.0
    prefill_decode_interval: int = 0
    min_free_slots: int = 0
    prefill_schedule_interval: int = 1
    tiers: tuple[CacheTier, ...] = ()
    image_seconds: float = 0.0
    encoder_cards: int = 0
    kept_bytes: float = 0.0
    lockstep: int = 1

    def __post_init__(self) -> None:
        for name in (
            "max_num_batched_tokens",
            "max_num_seqs",
            "pipeline_stages",
            "replicas",
            "max_model_len",
            "lockstep",
        ):
            check_whole(getattr(self, name), name)
        check_whole(self.prefill_replicas, "prefill_replicas", 0)
        if self.replicas > _MOST_REPLICAS:
            raise SpecError(f"is too large: at most {_MOST_REPLICAS:,}", field="--replicas", value=self.replicas)
        check_whole(self.host_tokens, "host_tokens", 0)
        if self.host_tokens and not self.prefix_caching:
            raise SpecError("needs prefix caching, which is off", field="--host-tokens", value=self.host_tokens)
        if self.host_tokens and self.host_link is None:
            raise SpecError("needs a link to come back over", field="--host-tokens", value=self.host_tokens)
        if self.prefill_max_requests is not None:
            check_whole(self.prefill_max_requests, "prefill_max_requests")
        known = {"scheduler": SCHEDULERS, "admission": _ADMISSIONS, "routing": _ROUTINGS, "order": _ORDERS}
        for name, choices in known.items():
            if getattr(self, name) not in choices:
                raise SpecError("is not known", field=name, value=getattr(self, name), choices=choices)
        self._check_order()
        self._check_before()
        if self.max_num_batched_tokens * self.pipeline_stages < self.max_num_seqs * self.tokens_per_decode:
            raise SpecError(
                f"is below max_num_seqs ({self.max_num_seqs}) times the tokens each may decode in a step",
                field="max_num_batched_tokens",
                value=self.max_num_batched_tokens,
            )
        if self.prefill_replicas and not self.prefill_replicas < self.replicas:
            raise SpecError("must leave a replica to decode", field="prefill_replicas", value=self.prefill_replicas)
        for name in ("replicas", "prefill_replicas"):
            if getattr(self, name) % self.lockstep:
                raise SpecError(f"must be servers of {self.lockstep} ranks", field=name, value=getattr(self, name))
        if not 0 < self.new_token_ratio <= 1:
            raise SpecError("must be above 0 and at most 1", field="new_token_ratio", value=self.new_token_ratio)
        if not 0 < self.schedule_conservativeness < math.inf:
            value = self.schedule_conservativeness
            raise SpecError("must be a number above 0", field="schedule_conservativeness", value=value)

    def _check_before(self) -> None:
        """Reject what a request cannot wait for before its prompt."""
        if self.tiers and not self.host_tokens:
            raise SpecError("needs --host-tokens: what is fetched is put into host memory first", field="--kv-tiers")
        check_whole(self.encoder_cards, "encoder_cards", 0)
        if self.encoder_cards and not self.image_seconds:
            raise SpecError("needs --image-time", field="--encoder-cards", value=self.encoder_cards)
        if not 0 <= self.image_seconds < math.inf:
            raise SpecError("must not be negative", field="image_seconds", value=self.image_seconds)

    def _check_order(self) -> None:
        """Reject orders that the scheduler does not know, or does not follow."""
        for name in ("long_prefill_token_threshold", "max_num_active_seqs", "prefill_decode_interval",
                     "min_free_slots"):  # fmt: skip
            check_whole(getattr(self, name), name, 0)
        check_whole(self.prefill_schedule_interval, "prefill_schedule_interval")
        ordered = self.order == "priority" or self.long_prefill_token_threshold > 0
        if (every := self.prefill_schedule_interval) > 1 and ordered:
            what = "is not simulated with --order priority or --long-prefill-token-threshold"
            raise SpecError(what, field="prefill_schedule_interval", value=every)
        if self.max_num_active_seqs > self.max_num_seqs:
            most = self.max_num_active_seqs
            raise SpecError(f"is above max_num_seqs ({self.max_num_seqs})", field="max_num_active_seqs", value=most)
        if not 0 <= self.watermark < 1:
            raise SpecError("must be at least 0 and below 1", field="watermark", value=self.watermark)
        if (spaced := self.prefill_decode_interval) and self.lockstep > 1:
            raise SpecError("is not simulated over data-parallel ranks", field="prefill_decode_interval", value=spaced)
        told: dict[str, tuple[object, tuple[str, ...]]] = {
            "order": (self.order if self.order == "priority" else "", ("vllm", "sglang")),
            "long_prefill_token_threshold": (self.long_prefill_token_threshold, ("vllm",)),
            "max_num_active_seqs": (self.max_num_active_seqs, ("vllm",)),
            "watermark": (self.watermark, ("vllm",)),
            "prefill_decode_interval": (self.prefill_decode_interval, ("sglang",)),
            "min_free_slots": (self.min_free_slots, ("sglang",)),
            "prefill_schedule_interval": (self.prefill_schedule_interval - 1, ("vllm",)),
        }
        for name, (value, knows) in told.items():
            if value and self.scheduler not in knows:
                raise SpecError(f"is not known to {self.scheduler}", field=name, value=getattr(self, name))
            if value and self.prefill_replicas:
                raise SpecError("is not simulated with prefill replicas", field=name, value=getattr(self, name))

    def foreign(self, given: Collection[str]) -> tuple[str, str] | None:
        """Return a given setting that another engine reads, and that engine."""
        for name in given:
            owner = _OWNERS.get(name if name != "order" else self.order)
            if owner is not None and owner != self.scheduler:
                return name, owner
        return None

    @property
    def running_limit(self) -> int:
        """Return the most requests that run at once, [-]"""
        return self.max_num_active_seqs or self.max_num_seqs

    @property
    def decode_between(self) -> int:
        """Return the steps without prompt tokens after one with them, [-]"""
        spaced = self.prefill_schedule_interval - 1 if self.lockstep == 1 else 0
        return self.prefill_decode_interval or spaced

    @property
    def first_ratio(self) -> float:
        """Return SGLang's initial share of outstanding output."""
        return min(self.new_token_ratio * self.schedule_conservativeness, 1.0)

    @property
    def tokens_per_decode(self) -> int:
        """Tokens of the budget that one decoding request takes, [token]"""
        return 1 + (self.acceptance.draft_tokens if self.acceptance else 0)

    @property
    def in_slots(self) -> bool:
        """Return True if prompts are computed in the order of slots."""
        return (
            self.admission == "slot"
            and self.chunked_prefill
            and not (self.prefill_first or self.async_scheduling or self.prefill_replicas or self.host_tokens)
        )


def scheduler_settings(scheduler: str, **changes: object) -> EngineSettings:
    """Return the default settings of an engine on a data-centre GPU, changed.

    Examples
    --------
    >>> scheduler_settings("sglang", max_num_seqs=64).prefill_first
    True
    """
    if scheduler not in SCHEDULERS:
        raise SpecError("is not a scheduler", field="scheduler", value=scheduler, choices=SCHEDULERS)
    defaults = engine_defaults(scheduler)
    given: dict[str, object] = {
        "max_num_batched_tokens": defaults.budget,
        "max_num_seqs": defaults.max_requests,
        "admission": defaults.admission,
        "prefill_first": defaults.prefill_first,
        "prefix_caching": defaults.prefix_caching,
        "async_scheduling": defaults.ahead,
        "reserve_full_isl": defaults.whole_prompt,
        "routing": defaults.routing,
        "kept_bytes": defaults.kept_bytes,
    }
    given |= {key: value for key, value in changes.items() if value is not None}
    acceptance, budget = given.get("acceptance"), given["max_num_batched_tokens"]
    if changes.get("max_num_seqs") is None and isinstance(budget, int) and budget > 0:
        # a smaller budget than the default also means fewer requests at once
        each = 1 + acceptance.draft_tokens if isinstance(acceptance, Acceptance) else 1
        given["max_num_seqs"] = max(1, min(int(str(given["max_num_seqs"])), budget // each))
    return EngineSettings(scheduler=scheduler, **given)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class FirstTokens:
    """Fitted effect on TTFT that the schedule of steps does not explain.

    Parameters
    ----------
    scale : float, optional
        Logarithm of how many times later they come where prompts always meet others, [-]
    ranks : int, optional
        Replicas of the simulator that are the data-parallel ranks of one server, [-]
    times : float, optional
        How many times later than predicted they come: a sample of the prediction interval of TTFT over that of the step
        time, for any traffic, [-]
    """

    scale: float = 0.0
    ranks: int = 1
    times: float = 1.0

    def later(self, in_flight: Ratio, replicas: int = 1) -> Ratio:
        """How many times later first tokens come than their steps alone say.

        Examples
        --------
        >>> round(FirstTokens(scale=0.2).later(16.0), 4), FirstTokens(scale=0.2).later(1.0)
        (1.2214, 1.0)
        """
        servers = max(min(replicas // self.ranks, in_flight), 1.0)
        return math.exp(float(waiting_share(np.asarray(in_flight / servers))) * self.scale)


#: first tokens that come when their steps end
AS_STEPS_SAY = FirstTokens()


# Inputs that a prediction passes to the simulator.


@dataclass(frozen=True, slots=True)
class ServingInputs:
    """A deployment as the simulator sees it.

    Parameters
    ----------
    step_seconds : callable
        Keyword arguments `decode_requests`, `decode_context`, `prefill_tokens`, `prefill_context` as arrays; returns
        the time of each mixed step, of one replica and of one micro-batch with pipeline stages, [s]
    pool : KvPool
        KV pool of one replica. Each data-parallel rank is a replica.
    settings : EngineSettings
        Scheduler and limits of the engine.
    front_end : float, optional
        Time between the arrival of a request and its arrival at the engine, at the nominal prompt length, [s]
    cold_start : float, optional
        Delay of a request that arrives at an idle engine, [s]
    low, high : float, optional
        90 % interval of the step time relative to its prediction, [-]
    first : FirstTokens, optional
        How much later first tokens come than their steps say.
    first_low, first_high : float, optional
        90 % interval of the time to the first token relative to its prediction, [-]
    pool_low, pool_high : float, optional
        90 % interval of the pool relative to its prediction, [-]
    tail, first_tail : tuple of float, optional
        Quantiles of step time and TTFT over the ends of their intervals; empty for a normal distribution, [-]
    by_users : callable, optional
        Step time and TTFT over their predictions that a share of the outcomes is below, at a number of users.
    ranks : int, optional
        Data-parallel ranks of one server: the replicas of `settings` are the ranks of all servers, [-]
    step_of_few : callable, optional
        Takes a number of ranks of a server and returns such a `step_seconds` of one of these if no other has work.
    basis : str, optional
        Evidence of the prediction, as text.
    """

    step_seconds: Callable[..., np.ndarray]
    pool: KvPool
    settings: EngineSettings
    front_end: float = 0.0
    cold_start: float = 0.0
    first: FirstTokens = AS_STEPS_SAY
    low: float = 1.0
    high: float = 1.0
    first_low: float = 1.0
    first_high: float = 1.0
    pool_low: float = 1.0
    pool_high: float = 1.0
    tail: tuple[float, ...] = ()
    first_tail: tuple[float, ...] = ()
    by_users: Callable[[float, float], tuple[float, float]] | None = None
    ranks: int = 1
    step_of_few: Callable[[float], Callable[..., np.ndarray]] | None = None
    basis: str = ""
