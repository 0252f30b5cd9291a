"""The loop of `few`: one replica under plain requests, preemptions included, over lists of numbers."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from heapq import heappop, heappush

from glmplan.errors import GlmplanError
from glmplan.simulation.engine.admission import held_blocks, steps_with_blocks
from glmplan.simulation.engine.engine import steps_until
from glmplan.simulation.engine.settings import EngineSettings, KvPool
from glmplan.simulation.engine.step_table import StepClock
from glmplan.simulation.traffic.request import apart
from glmplan.units import Seconds

__all__ = ["Few", "serving"]

_NEVER = math.inf
_SHIFT, _MASK = 32, (1 << 32) - 1


@dataclass(slots=True)
class Few:
    """Plain requests, column by column, and the replicas that serve them.

    Parameters
    ----------
    clock : StepClock
        Time of a step.
    pool : KvPool
        Room on each replica.
    settings : EngineSettings
        Of each replica.
    period : int
        Decode steps after which a request needs one more block, [-]
    lag : float
        Time of the front end between an answer and the next request of the same user, [s]
    closed : bool
        Whether a request follows another.
    released : int
        Requests that came or will come of themselves, or followed others, [-]
    arrival, started, first, finish : list of float
        Times of each request, below 0 where it is not so far, [s]
    prompt, left, phase, most : list of int
        Tokens to prefill now, [token]; decode steps behind them; steps until its last block is full, and blocks at its
        end, as `held_blocks` has them, [-]
    preempted, cached : list of int
        How often it computed again, [-]; prompt tokens that it found again, [token]
    loads : list of int
        Requests that wait or run on each replica, [-]
    segments : list of float
        Runs of equal steps, as `DecodingBatch` has them.
    stalls : list of tuple
        Gaps between tokens of those who were preempted, [s], and one each.
    """

    clock: StepClock
    pool: KvPool
    settings: EngineSettings
    period: int
    lag: float
    closed: bool
    released: int
    arrival: list[float]
    prompt: list[int]
    left: list[int]
    phase: list[int]
    most: list[int]
    started: list[float]
    first: list[float]
    finish: list[float]
    preempted: list[int]
    cached: list[int]
    loads: list[int]
    segments: list[float] = field(default_factory=list)
    stalls: list[tuple[float, int]] = field(default_factory=list)

    def follow(self, now: Seconds) -> int:
        """Let somebody follow a request that ends."""
        which, lag = self.released, self.lag
        self.arrival[which] = max(now + lag, self.arrival[which - 1] + apart(lag)) if lag else now
        self.released += 1
        return which


def serving(few: Few, number: int, line: list[int]) -> Generator[float, float, None]:
    """Serve on one replica.

    - `few`: The requests; what happens to them is written there.
    - `line`: Who came to it so far; it grows meanwhile.
    - Yields: When what it does next ends, [s]. It is sent the time at which somebody may come next: who came before
      is in `line` by then.
    """
    arrival, prompt, left, phase, most = few.arrival, few.prompt, few.left, few.phase, few.most
    started, first, finish, preempted, cached = few.started, few.first, few.finish, few.preempted, few.cached
    settings, size, period, blocks = few.settings, few.pool.block_size, few.period, few.pool.blocks
    budget, places = settings.max_num_batched_tokens * settings.pipeline_stages, settings.max_num_seqs
    whole, keeps, ahead = settings.reserve_full_isl, settings.prefix_caching, int(settings.async_scheduling)
    loads, segments, decode, mixed = few.loads, few.segments, few.clock.decode, few.clock.mixed
    running: dict[int, int] = {}  # who decodes, by the order in which they joined
    heap: list[int] = []  # last step · 2³² + place in that order; whoever was preempted is no longer in `running`
    joined, key, lost = dict[int, int](), dict[int, int](), dict[int, float]()
    counts = [0] * (2 * period)  # how many need a block at steps of each residue, twice in a row
    back: list[int] = []  # who was preempted, the first to come back last
    idle: dict[int, int] = {}  # blocks that those may find again, and of others who ended since; oldest first
    q = n = step = total = order = stale = late = freed = done = idle_blocks = 0
    partial, free, now, begun, changed, waited = -1, blocks, 0.0, 0.0, True, False
    until = yield _NEVER
    while True:
        if not n and partial < 0:
            late = freed = 0
            if not back:
                while q == len(line):
                    until = yield _NEVER
                now = max(now, arrival[line[q]])
            begun = now
        seen, here_now = begun if ahead else now, len(line)
        waits = bool(back) or (q < here_now and arrival[line[q]] <= seen)
        if waits and not waited:
            changed = True
        tokens, evicted, need = 0, False, counts[step % period]
        if not waits and partial < 0 and need <= free:
            # nothing but decoding, which is what most steps do
            free -= need
            waited, late, freed = False, 0, 0
        else:
            room, spots, more = budget - n, places - late - n, 0
            if partial >= 0:
                take = min(prompt[partial] - done, room)
                more = -(-(done + take) // size) + (-done // size)
            if need + more > free:
                # ---- blocks are too few: who was admitted last computes again, and no prompt is in this step
                evicted = changed = True
                while partial >= 0 or need > free:
                    if idle_blocks > free:
                        idle_blocks = _thrown_out(idle, idle_blocks, free)
                    if partial >= 0:
                        which, found, partial = partial, done, -1
                        free += -(-done // size)
                    else:
                        _, which = running.popitem()
                        made, then = step - joined[which], phase[which] - 1
                        counts[key[which]] -= 1
                        counts[key[which] + period] -= 1
                        n, stale, lost[which], found = n - 1, stale + 1, now, prompt[which] + made
                        total -= found + 1
                        free += most[which] - (then + left[which]) // period + (then + made) // period
                        prompt[which] = found + 1
                        left[which] -= made + 1
                        phase[which] = (found + 1) % size * period // size
                        most[which] = held_blocks(found + 1, left[which], size, period)
                        need = counts[step % period]
                    if keeps and found >= size:
                        idle[which] = found // size
                        idle_blocks += found // size
                    preempted[which] += 1
                    back.append(which)
                free -= need
            else:
                free -= need + more
                ready: list[int] = []
                if partial >= 0:
                    tokens, weight = take, take * (done + (take + 1) / 2)
                    room, spots, done = room - take, spots - 1, done + take
                    if done == prompt[partial]:
                        ready.append(partial)
                        partial = -1
                if waits and spots > 0 and (changed or not (n or tokens)):
                    changed, weight = False, weight if tokens else 0.0
                    while spots and room > 0:
                        hit, again = 0, bool(back)
                        if again:
                            which = back[-1]
                            if -(-min(prompt[which], room) // size) > free - freed:
                                break
                            if idle_blocks > free:
                                idle_blocks = _thrown_out(idle, idle_blocks, free)
                            hit = idle.get(which, 0)
                        elif q < here_now and arrival[line[q]] <= seen:
                            which = line[q]
                        else:
                            break
                        rest = take = prompt[which] - hit * size
                        if take > room:
                            take = room
                        need = -(-take // size)
                        if (-(-rest // size) if whole else need) > free - hit - freed:
                            break
                        if again:
                            back.pop()
                            idle.pop(which, None)
                            idle_blocks -= hit
                            cached[which] += hit * size
                            if not back:
                                idle.clear()
                                idle_blocks = 0
                        else:
                            q += 1
                        free -= need + hit
                        if started[which] < 0:
                            started[which] = now
                        tokens += take
                        weight += take * (hit * size + (take + 1) / 2)
                        spots, room = spots - 1, room - take
                        if take == rest:
                            ready.append(which)
                        else:
                            partial, done = which, hit * size + take
            waited = bool(back) or (waits and q < here_now and arrival[line[q]] <= seen)
            if late:
                changed = changed or waited
                late = freed = 0
        if tokens:
            # ---- a step with prompt tokens
            end = now + mixed(n, total, tokens, weight)
            while end >= until:
                until = yield end
            segments += (now, 1, end - now, 0.0, n, total, tokens, blocks - free)
            begun, now, changed = now, end, True
            if n:
                step += 1
                total += n
            for which in ready:
                if first[which] < 0:
                    first[which] = now
                elif which in lost:
                    few.stalls.append((now - lost[which], 1))
                running[order] = which
                joined[which], total, n = step, total + prompt[which] + 1, n + 1
                key[which] = residue = (step - phase[which]) % period
                counts[residue] += 1
                counts[residue + period] += 1
                heappush(heap, (step + left[which] << _SHIFT) + order)
                order += 1
        elif n:
            # ---- decode steps until somebody is done, comes or may be admitted, or blocks run out
            while stale and heap[0] & _MASK not in running:
                heappop(heap)
                stale -= 1
            k, coming, free_place = (heap[0] >> _SHIFT) - step, _NEVER, not waited and n < places
            if waited and changed:
                k = 1
            elif free_place and q < here_now:
                coming = arrival[line[q]]
                if coming <= now:
                    k, coming = 1, _NEVER
                free_place = False
            if k > 1 and n * -(-(k - 1) // period) > free:
                k = steps_with_blocks(counts, period, step + 1, k - 1, free) + 1
            taken = 1  # of the first step
            while k:
                seconds, slope, edge = decode(n, total)
                here = k
                if edge < 1e299 and (up_to := math.ceil(edge - total / n)) < k:
                    here = up_to if up_to > 1 else 1
                end = now + here * seconds + slope * (here * (here - 1) / 2)
                while end >= coming or end >= until:
                    if end >= coming:
                        # it is seen by the step behind the one under way, or behind one that is formed by then
                        k = min(k, steps_until(coming - now, seconds, slope) + ahead)
                        here, coming = min(here, k), _NEVER
                        end = now + here * seconds + slope * (here * (here - 1) / 2)
                        continue
                    until = yield end
                    if free_place and q < len(line):
                        coming, free_place = arrival[line[q]], False
                if here > taken:
                    cycles, rest = divmod(here - taken, period)
                    at = (step + taken) % period
                    free -= cycles * n + sum(counts[at : at + rest])
                segments += (now, here, seconds, slope, n, total, 0, blocks - free)
                begun = now + (here - 1) * seconds + slope * ((here - 1) * (here - 2) / 2)
                now, step, total, k, taken = end, step + here, total + n * here, k - here, 0
        elif not evicted:
            raise GlmplanError("requests wait for a replica that cannot start them")
        # ---- who is done
        due = step + 1 << _SHIFT
        if n and heap[0] < due:
            if idle_blocks > free:
                idle_blocks = _thrown_out(idle, idle_blocks, free)
            changed = True
            while n and heap[0] < due:
                which = running.pop(heappop(heap) & _MASK, -1)
                if which < 0:
                    stale -= 1
                    continue
                counts[key[which]] -= 1
                counts[key[which] + period] -= 1
                total -= prompt[which] + left[which] + 1
                n -= 1
                finish[which] = now
                loads[number] -= 1
                held = most[which]
                free += held
                if ahead:
                    late, freed = late + 1, freed + held
                if back and keeps:
                    kept = (prompt[which] + left[which]) // size
                    idle[~which] = kept
                    idle_blocks += kept
                if few.closed and few.released < len(arrival):
                    line.append(few.follow(now))


def _thrown_out(idle: dict[int, int], together: int, room: int) -> int:
    """Throw idle content out, oldest first, until no more of it is there than room; how much is."""
    while together > room:
        oldest = next(iter(idle))
        part = min(idle[oldest], together - room)
        together -= part
        if part < idle[oldest]:
            idle[oldest] -= part
        else:
            del idle[oldest]
    return together
