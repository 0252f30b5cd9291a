"""One request as the client saw it: its times, its tokens, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Outcome", "RequestRecord"]


class Outcome(StrEnum):
    """How a request ended; every one but `DONE` is a fault and is counted."""

    DONE = "done"
    REFUSED = "refused"  # no connection
    LOST = "lost"  # the connection broke, or the stream ended before its answer did
    LATE = "no first token"  # nothing within the time for a first token
    STALLED = "stalled"  # a stream that stopped, or trickled without ever finishing a chunk
    THROTTLED = "throttled"  # 429 or 503, also after waiting as the server asked
    REJECTED = "rejected"  # another 4xx
    FAILED = "failed"  # a 5xx, or an error inside the stream
    MALFORMED = "malformed"  # not the protocol
    TLS = "tls"  # no trust, or no TLS
    UNFINISHED = "unfinished"  # still going on when the time of the step was over
    UNFORESEEN = "unforeseen"  # an error of the client that nobody thought of; its detail names it
    EMPTY = "empty"  # a whole answer without one token
    CANCELLED = "cancelled"  # by the user or by the guard; not the server's fault

    @property
    def is_fault(self) -> bool:
        """Whether the server or the way to it is to blame."""
        return self not in (Outcome.DONE, Outcome.CANCELLED)


@dataclass(slots=True)
class RequestRecord:
    """One request. Times are in seconds; `start` counts from the begin of the run.

    Parameters
    ----------
    start : float
        When the request was sent (the last time, if it was sent again), [s]
    outcome : Outcome
        How it ended.
    ttft : float
        From sending to the first token, [s]
    e2e : float
        From sending to the last token, [s]
    input_tokens, output_tokens : int
        As `usage` says, else as asked and as counted from chunks, [token]
    chunks : int
        Chunks that carried tokens, [-]
    counted_by : str
        `usage`, `chunks` where it is missing, or `chunks, usage is wrong`.
    cached_tokens : int
        Prompt tokens the server took from its cache, [token]
    retries : int
        Times it was sent again before its first byte came, [-]
    throttled : int
        Times the server said 429 or 503, [-]
    late : float
        How much later than planned it was sent; only for open loops, [s]
    status : int
        HTTP status; 0 if there was none, [-]
    detail : str
        What went wrong, in words.
    doubt : str
        Why its counts cannot be, in words.
    gaps : list of float
        Times between chunks; emptied once they are in the statistics, [s]
    """

    start: float
    outcome: Outcome = Outcome.CANCELLED
    ttft: float = 0.0
    e2e: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0
    chunks: int = 0
    counted_by: str = "usage"
    cached_tokens: int = 0
    retries: int = 0
    throttled: int = 0
    late: float = 0.0
    status: int = 0
    detail: str = ""
    doubt: str = ""
    gaps: list[float] = field(default_factory=list)

    @property
    def end(self) -> float:
        """When its last token came, or when it was given up, [s]"""
        return self.start + self.e2e

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first, (e2e - ttft) / (output_tokens - 1); None for a single token, [s]"""
        return (self.e2e - self.ttft) / (self.output_tokens - 1) if self.output_tokens > 1 else None
