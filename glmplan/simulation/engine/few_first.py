"""The loop of `few` where prompts have steps of their own and answers to come are reckoned with: SGLang's.

It knows no retraction: where blocks run out it gives up, and `SkippingEngine` serves, which says whose rules these are.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from heapq import heappop, heappush

from glmplan.errors import GlmplanError
from glmplan.simulation.engine.admission import MOST_RECKONED, SharedEstimate, steps_with_blocks
from glmplan.simulation.engine.engine import steps_until
from glmplan.simulation.engine.few_loop import Few

__all__ = ["BlocksRunOut", "serving_prompts_first"]

_NEVER = math.inf
_SHIFT = 32


class BlocksRunOut(Exception):
    """Somebody who decodes has to give blocks back."""


def serving_prompts_first(few: Few, number: int, line: list[int]) -> Generator[float, float, None]:
    """Serve on one replica.

    - `few`: The requests; what happens to them is written there.
    - `line`: Who came to it so far; it grows meanwhile.
    - Yields: As `glmplan.simulation.engine.few_loop.serving` does, [s].
    """
    arrival, prompt, left, phase, most = few.arrival, few.prompt, few.left, few.phase, few.most
    started, first, finish, stalls, segments = few.started, few.first, few.finish, few.stalls, few.segments
    settings, size, period, blocks = few.settings, few.pool.block_size, few.period, few.pool.blocks
    budget, places = settings.max_num_batched_tokens * settings.pipeline_stages, settings.max_num_seqs
    whole, ahead, together = settings.reserve_full_isl, int(settings.async_scheduling), settings.prefill_max_requests
    loads, mixed, estimate = few.loads, few.clock.mixed, SharedEstimate(settings.first_ratio)
    piece, stages = few.clock.context_piece, few.clock.microbatches
    low, edge, knot, of_requests, slopes = piece(1.0)
    # tokens that each is reckoned to hold at its end, and whether an answer may be a single token
    held = [
        tokens + (more + 1 if more < MOST_RECKONED else MOST_RECKONED)
        for tokens, more in zip(prompt, left, strict=True)
    ]
    single = 0 in left
    running: dict[int, tuple[int, float]] = {}  # who decodes and since when, by the order in which they joined
    heap: list[int] = []  # last step · 2³² + place in that order
    key = dict[int, int]()
    counts = [0] * (2 * period)  # how many need a block at steps of each residue, twice in a row
    q = n = step = total = order = late = freed = done = ends = long = 0
    partial, free, now, begun, before, changed, waited, full = -1, blocks, 0.0, 0.0, 0.0, True, False, False
    until = yield _NEVER
    while True:
        if not n and partial < 0:
            late = freed = 0
            while q == len(line):
                until = yield _NEVER
            now = begun = max(now, arrival[line[q]])
        seen, here_now = begun if ahead else now, len(line)
        waits = q < here_now and arrival[line[q]] <= seen
        changed, tokens, weight, room = changed or (waits and not waited), 0, 0.0, budget
        ready: list[int] = []
        blocked = False
        if partial >= 0:
            take = min(prompt[partial] - done, room)
            need = -(-(done + take) // size) + (-done // size)
            blocked = need > free
            if not blocked:
                reckoned = held[partial] - done
                free, tokens, weight, room = free - need, take, take * (done + (take + 1) / 2), room - take
                done += take
                if done == prompt[partial]:
                    ready.append(partial)
                    partial = -1
        busy = n + (tokens > 0)
        if waits and not blocked and not (busy and (full or not changed)):
            changed, spots = False, (min(places - late, n + together) if together else places - late) - busy
            # tokens that those who decode are reckoned to write still
            rest = sum(min((one >> _SHIFT) - step, MOST_RECKONED) for one in heap) if long else ends - n * step
            reckon = (free - freed) * size - estimate.ratio * rest - (reckoned if tokens else 0)
            while room > 0 and spots > 0 and q < here_now and arrival[which := line[q]] <= seen:
                whole_prompt, cost = prompt[which], held[which]
                take = whole_prompt if whole_prompt < room else room
                need = -(-take // size)
                if (-(-whole_prompt // size) if whole else need) > free - freed or (cost >= reckon and (n or tokens)):
                    full = True
                    break
                q, reckon, free, room, spots = q + 1, reckon - cost, free - need, room - take, spots - 1
                started[which] = now
                tokens += take
                weight += take * ((take + 1) / 2)
                if take == whole_prompt:
                    ready.append(which)
                else:
                    partial, done = which, take
        waited = waits and q < here_now and arrival[line[q]] <= seen
        if late:
            changed, late, freed = changed or waited, 0, 0
        if tokens:
            # ---- a step with prompts alone
            end = now + mixed(0, total, tokens, weight)
            while end >= until:
                until = yield end
            gone = sum(most[which] for which in ready if not left[which]) if single else 0  # with their only token
            segments += (now, 1, end - now, 0.0, 0, 0, tokens, blocks - free - gone)
            begun, now, changed = now, end, True
            if not n:
                before = now
            for which in ready:
                first[which] = now
                running[order] = which, now
                total, n = total + prompt[which] + 1, n + 1
                ends, long = ends + step + left[which], long + (left[which] > MOST_RECKONED)
                key[which] = residue = (step - phase[which]) % period
                counts[residue] += 1
                counts[residue + period] += 1
                heappush(heap, (step + left[which] << _SHIFT) + order)
                order += 1
        elif n:
            # ---- decode steps until somebody is done, comes or may be admitted, or blocks run out
            if counts[step % period] > free:
                raise BlocksRunOut
            free -= counts[step % period]
            k, coming, free_place = (heap[0] >> _SHIFT) - step, _NEVER, not waits and n + (partial >= 0) < places
            if waited and changed and not full:
                k = 1
            elif free_place and q < here_now:
                coming = arrival[line[q]]
                if coming <= now:
                    k, coming = 1, _NEVER
                free_place = False
            if k > 1 and n * -(-(k - 1) // period) > free:
                k = steps_with_blocks(counts, period, step + 1, k - 1, free) + 1
            taken, start = 1, step  # blocks of the first step are
            while k:
                # as `StepClock.decode` reads it, without a call for each run of steps
                mean = total / n
                if not low <= mean < edge:
                    low, edge, knot, of_requests, slopes = piece(mean)
                row = -(-n // stages)
                slope = slopes[row]
                seconds, here = of_requests[row] + slope * (mean - knot), k
                if edge < 1e299 and (up_to := math.ceil(edge - mean)) < k:
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
                apart = 0
                if step == start and before < now:
                    # ---- gaps that end with the first step, before which they waited for prompts of others
                    lately = []
                    for _, since in reversed(running.values()):
                        if since < before:
                            break
                        lately.append(now - since)
                    others, apart = n - len(lately), int(any(lately) or n > len(lately))
                    for gap in lately:
                        if gap > 0:
                            stalls += ((seconds + gap, 1), (seconds, -1))
                    if others:
                        stalls += ((seconds + now - before, others), (seconds, -others))
                if apart and here > 1:
                    segments += (now, 1, seconds, 0.0, n, total, 0, blocks - free)
                    segments += (now + seconds, here - 1, seconds + slope, slope, n, total + n, 0, blocks - free)
                else:
                    segments += (now, here, seconds, slope, n, total, 0, blocks - free)
                begun = now + (here - 1) * seconds + slope * ((here - 1) * (here - 2) / 2)
                now, step, total, k, taken = end, step + here, total + n * here, k - here, 0
            before = now
            estimate.decay(step - start)
        else:
            raise GlmplanError("requests wait for a replica that cannot start them")
        # ---- who is done
        due = step + 1 << _SHIFT
        while n and heap[0] < due:
            last, place = divmod(heappop(heap), 1 << _SHIFT)
            which, _ = running.pop(place)
            counts[key[which]] -= 1
            counts[key[which] + period] -= 1
            total -= prompt[which] + left[which] + 1
            n, ends, long = n - 1, ends - last, long - (left[which] > MOST_RECKONED)
            finish[which] = now
            loads[number] -= 1
            free += most[which]
            changed, full = True, False
            if ahead:
                late, freed = late + 1, freed + most[which]
            if few.closed and few.released < len(arrival):
                line.append(few.follow(now))
