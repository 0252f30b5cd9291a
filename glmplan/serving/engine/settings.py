"""What an engine is told at its start: scheduler, limits, KV pool, speculation, transfer link."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from glmplan.errors import SpecError

__all__ = ["SCHEDULERS", "Acceptance", "EngineSettings", "KvPool", "TransferLink", "scheduler_settings"]

#: Schedulers that are simulated, each with the defaults its engine starts with.
SCHEDULERS: dict[str, dict[str, object]] = {
    "vllm": {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "admission": "chunk"},
    "sglang": {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "admission": "estimate", "prefill_first": True},
    "trtllm": {"max_num_batched_tokens": 8192, "max_num_seqs": 256, "admission": "no-evict"},
    "llama.cpp": {"max_num_batched_tokens": 2048, "max_num_seqs": 4, "admission": "slot"},
}

_ADMISSIONS = ("chunk", "no-evict", "max-utilization", "estimate", "slot")
_ROUTINGS = ("round-robin", "least-loaded", "prefix-aware")


def _whole(value: object, name: str, least: int = 1) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise SpecError(f"must be a whole number of at least {least}", field=name, value=value)


@dataclass(frozen=True, slots=True)
class KvPool:
    """Room for keys and values on one replica, handed out in blocks.

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
        _whole(self.block_size, "block_size")
        if not self.tokens >= self.block_size:
            raise SpecError(f"is less than one block of {self.block_size} tokens", field="kv tokens", value=self.tokens)

    @property
    def blocks(self) -> int:
        """Whole blocks in the pool, [-]"""
        return int(self.tokens // self.block_size)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """How many tokens a speculative step yields: the first always, each drafted one while all before it are accepted.

    Parameters
    ----------
    draft_tokens : int
        Tokens drafted for each step, [-]
    probability : float
        Chance that a drafted token is accepted when all before it were, [-]

    Examples
    --------
    >>> round(Acceptance(draft_tokens=3, probability=0.8).mean, 3)
    2.952
    >>> Acceptance.of_mean(3, 2.952).probability
    0.8
    """

    draft_tokens: int
    probability: float

    def __post_init__(self) -> None:
        _whole(self.draft_tokens, "draft_tokens")
        if not 0 <= self.probability <= 1:
            raise SpecError("must be between 0 and 1", field="acceptance probability", value=self.probability)

    @classmethod
    def of_mean(cls, draft_tokens: int, mean: float) -> Acceptance:
        """Find the probability that gives a measured mean acceptance length.

        Parameters
        ----------
        draft_tokens : int
            Tokens drafted for each step, [-]
        mean : float
            Tokens that a step yields in the mean, [token]

        Returns
        -------
        Acceptance
            The distribution.

        Raises
        ------
        SpecError
            If the mean is not between 1 and 1 + `draft_tokens`.
        """
        _whole(draft_tokens, "draft_tokens")
        if not 1 <= mean <= 1 + draft_tokens:
            raise SpecError(f"must be between 1 and {1 + draft_tokens}", field="acceptance length", value=mean)
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if cls(draft_tokens, middle).mean < mean else (low, middle)
        return cls(draft_tokens, round(high, 9))

    @property
    def chances(self) -> np.ndarray:
        """Probability of 1, 2, … 1 + draft_tokens tokens in a step, [-]"""
        reached = self.probability ** np.arange(self.draft_tokens + 1)
        return np.append(reached[:-1] - reached[1:], reached[-1])

    @property
    def mean(self) -> float:
        """Tokens that a step yields in the mean, [token]"""
        return float(np.sum(self.probability ** np.arange(self.draft_tokens + 1)))

    def steps(self, tokens: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Draw how many steps it takes to yield given numbers of tokens.

        Up to 64 tokens each step is drawn; beyond that the count is drawn from the normal limit of a renewal process.

        Parameters
        ----------
        tokens : ndarray
            Tokens to yield, [token]
        generator : Generator
            Source of randomness.

        Returns
        -------
        ndarray
            Steps for each, [-]
        """
        tokens = np.asarray(tokens, dtype=np.int64)
        sizes = np.arange(1, self.draft_tokens + 2)
        mean = self.mean
        variance = float(self.chances @ sizes**2) - mean**2
        limit = np.rint(
            tokens / mean
            + 0.5 * (variance / mean**2 + 1)
            - 0.5
            + np.sqrt(variance * tokens / mean**3) * generator.standard_normal(len(tokens))
        )
        steps = np.clip(limit, -(-tokens // sizes[-1]), tokens).astype(np.int64)
        short = np.flatnonzero((tokens <= 64) & (tokens > 0))
        if len(short):
            drawn = generator.choice(sizes, size=(len(short), int(tokens[short].max())), p=self.chances).cumsum(axis=1)
            steps[short] = (drawn < tokens[short, None]).sum(axis=1) + 1
        return steps


@dataclass(frozen=True, slots=True)
class TransferLink:
    """The link that carries keys and values from prefill to decode replicas; transfers queue on it one behind another.

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
        Whether a prompt may be spread over steps.
    admission : str, optional
        `chunk` (blocks for the next chunk are free), `max-utilization` (the same rule, TensorRT-LLM's name), `no-evict`
        (the full length of every running request is reserved), `estimate` (SGLang: input, output and a shrinking share
        of what running requests may still write) or `slot`.
    prefill_first : bool, optional
        Whether steps with prompt tokens leave decoding requests waiting.
    prefix_caching : bool, optional
        Whether blocks of earlier requests are kept and found again.
    acceptance : Acceptance, optional
        Speculative decoding; the step time must include draft and verification.
    pipeline_stages : int, optional
        Micro-batches in flight, [-]
    replicas : int, optional
        Data-parallel copies, each with its own pool, [-]
    routing : str, optional
        `round-robin`, `least-loaded` or `prefix-aware`.
    prefill_replicas : int, optional
        Of the replicas, how many only prefill and hand over (disaggregation), [-]
    max_model_len : int, optional
        Longest prompt plus answer, [token]
    new_token_ratio : float, optional
        SGLang: the share of outstanding output that admission starts with, [-]

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

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "pipeline_stages", "replicas", "max_model_len"):
            _whole(getattr(self, name), name)
        _whole(self.prefill_replicas, "prefill_replicas", 0)
        for name, choices in (("scheduler", SCHEDULERS), ("admission", _ADMISSIONS), ("routing", _ROUTINGS)):
            if getattr(self, name) not in choices:
                raise SpecError("is not known", field=name, value=getattr(self, name), choices=choices)
        if self.max_num_batched_tokens * self.pipeline_stages < self.max_num_seqs * self.tokens_per_decode:
            raise SpecError(
                f"is below max_num_seqs ({self.max_num_seqs}) times the tokens each may decode in a step",
                field="max_num_batched_tokens",
                value=self.max_num_batched_tokens,
            )
        if self.prefill_replicas and not self.prefill_replicas < self.replicas:
            raise SpecError("must leave a replica to decode", field="prefill_replicas", value=self.prefill_replicas)
        if not 0 < self.new_token_ratio <= 1:
            raise SpecError("must be above 0 and at most 1", field="new_token_ratio", value=self.new_token_ratio)

    @property
    def tokens_per_decode(self) -> int:
        """Tokens of the budget that one decoding request takes, [token]"""
        return 1 + (self.acceptance.draft_tokens if self.acceptance else 0)

    @property
    def plain(self) -> bool:
        """Whether the short form of the simulator covers this engine."""
        return (
            self.admission in ("chunk", "max-utilization", "slot")
            and self.chunked_prefill
            and not (self.prefill_first or self.prefix_caching or self.acceptance)
            and self.pipeline_stages == self.replicas == 1
        )


def scheduler_settings(scheduler: str, **changes: object) -> EngineSettings:
    """Settings that an engine starts with, changed where asked.

    Parameters
    ----------
    scheduler : str
        One of `SCHEDULERS`.
    **changes
        Fields of `EngineSettings`; None leaves the default.

    Returns
    -------
    EngineSettings
        The settings.

    Raises
    ------
    SpecError
        If the scheduler is not known or a value is out of range.

    Examples
    --------
    >>> scheduler_settings("sglang", max_num_seqs=64).prefill_first
    True
    """
    if scheduler not in SCHEDULERS:
        raise SpecError("is not a scheduler", field="scheduler", value=scheduler, choices=SCHEDULERS)
    given = SCHEDULERS[scheduler] | {key: value for key, value in changes.items() if value is not None}
    acceptance, budget = given.get("acceptance"), given["max_num_batched_tokens"]
    if changes.get("max_num_seqs") is None and isinstance(budget, int) and budget > 0:
        # a smaller budget than the default also means fewer requests at once
        each = 1 + acceptance.draft_tokens if isinstance(acceptance, Acceptance) else 1
        given["max_num_seqs"] = max(1, min(int(str(given["max_num_seqs"])), budget // each))
    return EngineSettings(scheduler=scheduler, **given)  # type: ignore[arg-type]
