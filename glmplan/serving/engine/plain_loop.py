"""The innermost loop for the plain case: one replica, mixed chunked prefill, blocks that suffice.

One source serves twice: as plain Python over lists, and compiled with numba over arrays. It holds no objects; a request
is its index, and what will finish when is a heap of whole numbers (last step · 2³² + index).
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import Any

__all__ = ["DONE", "MORE", "TIGHT", "advance"]

#: Why the loop stopped: nothing is left; further requests must be read first; blocks may run out.
DONE, MORE, TIGHT = 0, 1, 2

_SHIFT, _MASK = 32, (1 << 32) - 1


def advance(columns: Any, segments: Any, heap: Any, tables: Any, limits: Any, state: Any, clock: Any) -> int:
    """Serve requests until they are done, run short or might not fit.

    Parameters
    ----------
    columns : tuple of sequences
        Arrival, input, output, start, first token and finish of each request in the order of arrival; the last three,
        and in a closed loop arrivals, are written, [s] and [token]
    segments : list of tuple
        Takes runs of equal steps: start [s], steps, seconds of the first [s], growth [s], decoding requests, sum of
        their contexts [token], prompt tokens.
    heap : list of int
        Requests that decode, [-]
    tables : tuple of sequences
        Context knots, decode seconds, their slopes, prefill knots, extra seconds, key knots, attention seconds.
    limits : tuple
        Token budget [token], requests at once, blocks, block size, whether a finish releases the next request, whether
        further requests can be read, time of the front end before a released request is seen [s], 1 if a step is formed
        while the one before it runs (else 0), time between two that are released together [s].
    state : sequence of int
        Next request, released requests [-], decode steps made, decoding requests, sum of contexts, reserved blocks,
        partly prefilled request and its tokens to go, places and blocks that the last step freed and a step formed
        ahead does not know; read and written back.
    clock : sequence of float
        The time, and the start of the step that was made last; read and written back, [s]

    Returns
    -------
    int
        `DONE`, `MORE` or `TIGHT`, [-]

    Notes
    -----
    Not modelled here: preemption, prefix cache, speculation, other schedulers; `SkippingEngine` has them all and takes
    over where a request might not fit.
    """
    arrival, inputs, outputs, started, first, finish = columns
    knots, decode, slopes, prefill, extra, keys, attention = tables
    budget, seqs, blocks, size, closed, more, lag, ahead, apart = limits
    q, released, step, n, total, held, partial, rest, late, freed = state
    now, begun, code = clock[0], clock[1], DONE
    capacity, last_knot, last_prefill, last_key = len(arrival), len(knots) - 2, len(prefill) - 2, len(keys) - 2
    i = j = m = 0
    while True:
        if more and (released if closed else q) + seqs > capacity:
            code = MORE
            break
        if n == 0 and partial < 0:
            late = freed = 0
            begun = now
        seen = begun if ahead else now
        if partial >= 0 or (q < released and n + late < seqs and arrival[q] <= seen):
            room, tokens, weight, busy = budget - n, 0, 0.0, n + late
            start = up_to = q
            before, before_rest, tight = partial, rest, False
            if partial >= 0:
                start = partial
                busy += 1
                tokens = min(rest, room)
                weight = tokens * (inputs[partial] - rest + (tokens + 1) * 0.5)
                rest -= tokens
                room -= tokens
                up_to = start
                if rest == 0:
                    up_to = start + 1
                    partial = -1
            while room > 0 and busy < seqs and q < released and arrival[q] <= seen:
                length = inputs[q]
                need = (length + outputs[q] - 2) // size + 1
                if held + freed + need > blocks:
                    tight = True
                    break
                held += need
                started[q] = now
                busy += 1
                if length <= room:
                    room -= length
                    tokens += length
                    weight += length * (length + 1) * 0.5
                    up_to = q + 1
                else:
                    partial, rest = q, length - room
                    tokens += room
                    weight += room * (room + 1) * 0.5
                    room = 0
                q += 1
            if tight:
                # leave the state as it was before this step
                while q > start + (before >= 0):
                    q -= 1
                    started[q] = -1.0
                    held -= (inputs[q] + outputs[q] - 2) // size + 1
                partial, rest = before, before_rest
                code = TIGHT
                break
            seconds = 0.0
            if n:
                mean = total / n
                while j < last_knot and mean >= knots[j + 1]:
                    j += 1
                while j > 0 and mean < knots[j]:
                    j -= 1
                seconds = decode[n][j] + slopes[n][j] * (mean - knots[j])
            while i < last_prefill and tokens >= prefill[i + 1]:
                i += 1
            while i > 0 and tokens < prefill[i]:
                i -= 1
            mean = weight / tokens
            while m < last_key and mean >= keys[m + 1]:
                m += 1
            while m > 0 and mean < keys[m]:
                m -= 1
            x = (tokens - prefill[i]) / (prefill[i + 1] - prefill[i])
            y = (mean - keys[m]) / (keys[m + 1] - keys[m])
            row, one, two = extra[n], attention[i], attention[i + 1]
            left = one[m] + y * (one[m + 1] - one[m])
            seconds += row[i] + x * (row[i + 1] - row[i]) + left + x * (two[m] + y * (two[m + 1] - two[m]) - left)
            segments.append((now, 1, seconds, 0.0, n, total, tokens))
            begun = now
            now += seconds
            late = freed = 0
            if n:
                step += 1
                total += n
            while start < up_to:
                first[start] = now
                steps = outputs[start] - 1
                if steps:
                    heappush(heap, (step + steps << _SHIFT) + start)
                    n += 1
                    total += inputs[start] + 1
                else:
                    finish[start] = now
                    held -= (inputs[start] - 1) // size + 1
                    late += ahead
                    freed += ahead * ((inputs[start] - 1) // size + 1)
                    if closed and released < capacity:
                        arrival[released] = max(now + lag, arrival[released - 1] + apart)
                        released += 1
                start += 1
        elif n:
            k = (heap[0] >> _SHIFT) - step
            coming = arrival[q] if q < released and n < seqs else math.inf
            if late and coming <= seen:
                k = 1
                coming = math.inf
            late = freed = 0
            while k:
                mean = total / n
                while j < last_knot and mean >= knots[j + 1]:
                    j += 1
                while j > 0 and mean < knots[j]:
                    j -= 1
                slope = slopes[n][j]
                seconds = decode[n][j] + slope * (mean - knots[j])
                here = k
                if j < last_knot and knots[j + 1] - mean < k:
                    here = max(int(math.ceil(knots[j + 1] - mean)), 1)
                span = here * seconds + slope * (here * (here - 1) * 0.5)
                if now + span >= coming:
                    steps = 0
                    if coming > now:
                        gap, linear = coming - now, seconds - slope * 0.5
                        root = math.sqrt(max(linear * linear + 2 * slope * gap, 0.0))
                        steps = max(int(2 * gap / (linear + root)) - 1, 1)
                        while steps < here and steps * seconds + slope * (steps * (steps - 1) * 0.5) < gap:
                            steps += 1
                    k = min(k, steps + ahead)
                    here = min(here, k)
                    coming = math.inf
                    span = here * seconds + slope * (here * (here - 1) * 0.5)
                segments.append((now, here, seconds, slope, n, total, 0))
                begun = now + (here - 1) * seconds + slope * ((here - 1) * (here - 2) * 0.5)
                now += span
                step += here
                total += n * here
                k -= here
        elif q < released:
            now = max(now, arrival[q])
        else:
            break
        while len(heap) > 0 and (heap[0] >> _SHIFT) == step:
            start = heappop(heap) & _MASK
            finish[start] = now
            n -= 1
            length = inputs[start] + outputs[start]
            total -= length
            held -= (length - 2) // size + 1
            late += ahead
            freed += ahead * ((length - 2) // size + 1)
            if closed and released < capacity:
                arrival[released] = max(now + lag, arrival[released - 1] + apart)
                released += 1
    clock[0], clock[1] = now, begun
    state[0], state[1], state[2], state[3] = q, released, step, n
    state[4], state[5], state[6], state[7] = total, held, partial, rest
    state[8], state[9] = late, freed
    return code
