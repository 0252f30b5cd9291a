"""Rules that both forms of the simulator share.

They are the growth of a request and SGLang's estimate of outstanding output.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from glmplan.simulation.engine.prefix_cache import HostTier, PrefixCache
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.traffic.request import Request
from glmplan.units import Seconds, TokenCount, Tokens

__all__ = [
    "MOST_RECKONED",
    "SharedEstimate",
    "block_period",
    "by_longest_prefix",
    "by_priority",
    "cache_of",
    "count_stalls",
    "encoding_seconds",
    "generated",
    "held_blocks",
    "in_order_again",
    "loading_seconds",
    "piece_at",
    "steps_until",
    "steps_with_blocks",
    "why_rejected",
]

#: SGLang: longest answer the estimate reckons with, [token]; the share of its first ratio that it decays to, [-];
#: decode steps the decay takes, [-]; steps of decoding that it provides for after a retraction, [-]
MOST_RECKONED: Final = 4096
_FLOOR: Final = 0.14
_DECAY_STEPS: Final = 600
_RETRACT_STEPS: Final = 20
#: SGLang: most requests that are put in order of their prefix, [-]; tokens of a prefix that count as common, [token]
_SORTED: Final = 128
_COMMON: Final = 32


def block_period(block_size: TokenCount, growth: Tokens) -> int:
    """Decode steps after which a request needs one more block.

    Examples
    --------
    >>> block_period(16, 1.0), block_period(16, 2.7)
    (16, 6)
    """
    return max(1, round(block_size / growth))


def held_blocks(prompt: TokenCount, made: int, block_size: TokenCount, period: int) -> int:
    """Blocks a request holds after its prompt and some decode steps.

    `period`: Decode steps after which it needs one more.

    Examples
    --------
    >>> [held_blocks(32, made, 16, 16) for made in (0, 1, 16, 17)]
    [2, 3, 3, 4]
    """
    phase = prompt % block_size * period // block_size
    return -(-prompt // block_size) + (phase + made - 1) // period - (phase - 1) // period


def steps_with_blocks(needs: Sequence[int], period: int, start: int, steps: int, room: int) -> int:
    """How many decode steps find the blocks that they need.

    `period`: Steps after which it is the same again.

    Examples
    --------
    >>> steps_with_blocks([1, 0, 2], 3, 1, 10, 7)  # 0, 2, 1, 0, 2, 1, 0, then 2 of which one is left
    7
    """
    together = sum(needs[:period])
    made = min(steps // period, room // together) * period if together else 0
    room -= made // period * together
    while made < steps and (need := needs[(start + made) % period]) <= room:
        made, room = made + 1, room - need
    return made


def generated(request: Request, step: int) -> TokenCount:
    """Answer tokens a decoding request has written."""
    before = request.prompt - request.input + 1
    return before + (request.output - before) * (step - request.joined) // request.left


def why_rejected(request: Request, pool: KvPool, settings: EngineSettings, period: int) -> str | None:
    """Say why a request can never be served.

    - `period`: Decode steps after which a request needs one more block.
    - Returns: The reason; None if it can be served.

    Examples
    --------
    >>> why_rejected(Request(0, 0.0, 100, 10), KvPool(64), EngineSettings(), 16)
    'needs more KV blocks than the pool has'
    """
    tokens = request.input + request.output
    if tokens > settings.max_model_len:
        return "longer than the context"
    if settings.admission == "slot" and tokens - 1 > pool.tokens // settings.max_num_seqs:
        return "longer than the context of a slot"
    peak = held_blocks(request.input, request.steps, pool.block_size, period)
    if max(peak, -(-(tokens - 1) // pool.block_size)) > pool.blocks:
        return "needs more KV blocks than the pool has"
    if not settings.chunked_prefill and tokens - 1 > settings.max_num_batched_tokens * settings.pipeline_stages:
        return "may exceed the token budget, which must hold prompt and answer without chunked prefill"
    return None


def cache_of(pool: KvPool, settings: EngineSettings) -> PrefixCache | None:
    """The prefix cache that an engine begins with.

    Returns: Empty; None if the engine keeps no blocks.

    Examples
    --------
    >>> cache_of(KvPool(64), EngineSettings()) is None
    True
    """
    if not settings.prefix_caching or settings.in_slots:
        return None  # slots know themselves what they hold
    blocks = settings.host_tokens // pool.block_size
    return PrefixCache(pool.block_size, HostTier(blocks) if blocks else None)


def loading_seconds(blocks: int, pool: KvPool, settings: EngineSettings) -> Seconds:
    """Time in which blocks come back from host memory.

    Examples
    --------
    >>> from glmplan.simulation.engine.settings import TransferLink
    >>> link = TransferLink(bandwidth=1e9)
    >>> settings = EngineSettings(prefix_caching=True, host_tokens=100, host_link=link)
    >>> loading_seconds(10, KvPool(1000, 16, bytes_per_token=1e5), settings)
    0.016
    """
    link = settings.host_link
    if link is None or not blocks:
        return 0.0
    return link.latency + blocks * pool.block_size * pool.bytes_per_token / link.bandwidth


def steps_until(seconds: Seconds, first: Seconds, slope: Seconds) -> int:
    """Return the fewest steps that last some seconds; each grows by `slope`.

    Examples
    --------
    >>> steps_until(1.0, 0.25, 0.0), steps_until(1.0, 0.3, 0.1)
    (4, 3)
    """
    linear = first - slope / 2
    root = linear * linear + 2 * slope * seconds
    k = int(2 * seconds / (linear + math.sqrt(max(root, 0.0)))) if linear + root > 0 else 1
    k = max(k - 1, 1)
    while k * first + slope * k * (k - 1) / 2 < seconds:
        k += 1
    return k


def piece_at(pieces: Sequence[tuple[float, int, float, float]], now: Seconds) -> tuple[int, int, int]:
    """Return the piece of a planned run, the steps before it, and its steps.

    `pieces`: Start, steps, seconds of the first and growth of each.

    Examples
    --------
    >>> piece_at([(0.0, 3, 1.0, 0.0), (3.0, 5, 2.0, 0.0)], 6.0)
    (1, 3, 2)
    """
    steps, last = 0, len(pieces) - 1
    for index, (at, here, seconds, slope) in enumerate(pieces):
        if index == last or pieces[index + 1][0] >= now:
            return index, steps, min(here, steps_until(now - at, seconds, slope))
        steps += here
    raise AssertionError("a run has at least one piece")


def count_stalls(
    running: dict[int, Request], before: Seconds, pieces: list[tuple[float, int, float, float]], stalls: list[float]
) -> None:
    """Note the gaps before a run in which requests waited for other prompts.

    - `before`: End of the last step in which requests decoded.
    - `pieces`: Pieces of the run, as in `piece_at`; the first may be split.
    - `stalls`: Gaps as length and count in turn, which are added to.

    Examples
    --------
    >>> one, stalls = Request(0, 0.0, 10, 5), []
    >>> one.since = 0.5
    >>> count_stalls({1: one}, 1.0, [(1.2, 1, 0.1, 0.0)], stalls)
    >>> [round(float(number), 3) for number in stalls]
    [0.3, 1.0, 0.1, -1.0]
    """
    at, here, seconds, slope = pieces[0]
    late = []
    for request in reversed(running.values()):
        if request.since < before:
            break
        late.append(at - request.since)
    waited = [gap for gap in late if gap > 0]
    others = len(running) - len(late)
    if not waited and not others:
        return
    if here > 1:  # the first step for itself, so that what is taken back is what it says
        pieces[:1] = [(at, 1, seconds, 0.0), (at + seconds, here - 1, seconds + slope, slope)]
    for gap in waited:
        stalls += (seconds + gap, 1, seconds, -1)
    if others:
        stalls += (seconds + at - before, others, seconds, -others)


def encoding_seconds(work: Iterable[tuple[Request, int]], settings: EngineSettings) -> Seconds:
    """Return the time of encoders in a step, and mark the images as encoded.

    vLLM and SGLang encode an image in the step that computes the first of its tokens, before the language model, and
    keep its embedding.

    Examples
    --------
    >>> one = Request(0, 0.0, 100, 1)
    >>> one.images, settings = 2, EngineSettings(image_seconds=0.05)
    >>> encoding_seconds([(one, 100)], settings), encoding_seconds([(one, 100)], settings)
    (0.1, 0.0)
    """
    total = 0.0
    if settings.image_seconds and not settings.encoder_cards:
        for request, _ in work:
            total += max(request.images, 0) * settings.image_seconds
            request.images = -abs(request.images)
    return total


def by_longest_prefix(waiting: Iterable[Request], cache: PrefixCache, block_size: TokenCount) -> list[Request]:
    """Sort waiting requests by SGLang's `lpm`: longest cached prefix first.

    Among requests with a common prefix that is not cached yet the first goes before; the others go last, to find it
    later.

    - `waiting`: The queue, at most 128 of which are sorted; a longer one stays as it is.
    - Returns: The queue in the order in which it is admitted.

    References
    ----------
    .. [1] SGLang 0.5.9, `python/sglang/srt/managers/schedule_policy.py` (SchedulePolicy._compute_prefix_matches,
       _sort_by_longest_prefix, _determine_active_policy).

    Examples
    --------
    >>> first, second, other = (Request(i, 0.0, 100, 1, runs=((name, 100),)) for i, name in enumerate("aab"))
    >>> [r.number for r in by_longest_prefix([first, second, other], PrefixCache(16), 16)]
    [0, 2, 1]
    """
    queue = list(waiting)
    if len(queue) > _SORTED:
        return queue
    heads: dict[tuple[object, ...], int] = {}
    keys: dict[int, float] = {}
    for request in queue:
        found = cache.match(request)[0] * block_size
        keys[request.number] = -found
        if found > _COMMON:
            continue
        common, names = 0, tuple(name for name, _ in request.runs)
        for place, (_, tokens) in enumerate(request.runs, 1):
            known = heads.get(names[:place], 0)
            common += min(known, tokens)
            if known != tokens:
                break
        if common >= _COMMON:
            keys[request.number] = 1.0
            continue
        for place, (_, tokens) in enumerate(request.runs, 1):
            heads[names[:place]] = max(heads.get(names[:place], 0), tokens)
    return sorted(queue, key=lambda request: keys[request.number])


def by_priority(waiting: Iterable[Request], queued: bool) -> list[Request]:
    """Put waiting requests into the order of their priority.

    - `queued`: True if requests of the same priority stay in the order of the queue (SGLang); else they are in the
      order of arrival, preempted ones included (vLLM)
    - Returns: The queue in the order in which it is admitted.

    References
    ----------
    .. [1] vLLM 0.33.0, `vllm/v1/core/sched/request_queue.py` (PriorityRequestQueue: priority, then arrival time).
    .. [2] SGLang 0.5.9, `srt/managers/schedule_policy.py` (_sort_by_priority_and_fcfs).

    Examples
    --------
    >>> late, urgent, early = (Request(i, float(at), 100, 1) for i, at in enumerate((2, 3, 1)))
    >>> late.priority = early.priority = 1
    >>> [r.number for r in by_priority([late, urgent, early], queued=False)]
    [1, 2, 0]
    """
    return sorted(waiting, key=_rank(queued))


def _rank(queued: bool) -> Callable[[Request], tuple[float, ...]]:
    """Return the sort key of `by_priority`."""
    if queued:
        return lambda request: (request.priority,)
    return lambda request: (request.priority, request.arrival, request.number)


def in_order_again(waiting: deque[Request], last: Request | None, queued: bool) -> deque[Request]:
    """Restore the order of `by_priority` after requests joined the end.

    `last`: The request up to which it is in order; None if nothing is known.

    Examples
    --------
    >>> early, late, urgent = (Request(i, float(i), 100, 1) for i in range(3))
    >>> early.priority = late.priority = 1
    >>> [r.number for r in in_order_again(deque([early, late, urgent]), late, queued=False)]
    [2, 0, 1]
    """
    come: list[Request] = []
    while waiting and waiting[-1] is not last:
        come.append(waiting.pop())
    come.reverse()
    if not waiting:
        return deque(by_priority(come, queued))
    for request in come:
        insort(waiting, request, key=_rank(queued))
    return waiting


class SharedEstimate:
    """SGLang's estimate of outstanding output.

    It is a ratio that decays while nothing is retracted.

    Parameters
    ----------
    ratio : float
        The ratio it starts with, [-]

    References
    ----------
    .. [1] SGLang, `python/sglang/srt/managers/schedule_policy.py` and `scheduler.py` (PrefillAdder, new_token_ratio).
    """

    __slots__ = ("_fall", "_floor", "ratio")

    def __init__(self, ratio: float) -> None:
        self.ratio, self._floor = ratio, ratio * _FLOOR
        self._fall = (ratio - self._floor) / _DECAY_STEPS

    def decay(self, steps: int) -> None:
        """Let decode steps pass."""
        self.ratio = max(self.ratio - self._fall * steps, self._floor)

    def answer(self, left: int, growth: Tokens) -> Tokens:
        """Return the estimated output of a request."""
        return min(1 + left * growth, MOST_RECKONED)

    def outstanding(self, running: Iterable[Request], step: int, growth: Tokens) -> Tokens:
        """Return the estimated remaining output of decoding requests."""
        return self.ratio * sum(min((r.left - step + r.joined) * growth, MOST_RECKONED) for r in running)

    def retracted(self, running: Iterable[Request], step: int) -> None:
        """Raise the ratio after a request had to give its blocks back."""
        rest = list(running)
        written = sum(generated(r, step) for r in rest) + _RETRACT_STEPS * len(rest)
        self.ratio = min(1.0, written / (sum(r.output for r in rest) + 1))
