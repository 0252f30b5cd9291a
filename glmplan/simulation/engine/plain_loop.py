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

    - `columns`: Of each request in the order of arrival: arrival, input, start, first token and finish; how many
      steps follow its first token, times 2³², plus its index; blocks that it needs, its tokens, and half the square
      of its prompt as `prompt_area` has it. Start, first token and finish, and in a closed loop arrivals, are
      written, [s], [token] and [-].
    - `segments`: Takes runs of equal steps: start [s], steps, seconds of the first [s], growth [s], decoding
      requests, sum of their contexts [token], prompt tokens.
    - `tables`: Context knots, decode seconds by knot and requests, their slopes; prefill knots, their distances,
      extra seconds by knot and requests, their rises; key knots, their distances, attention seconds by both knots,
      their rises; what steps of at most so many tokens hide, and tokens of a decoding request.
    - `limits`: Token budget [token], requests at once, blocks, whether a finish releases the next request, whether
      further requests can be read, time of the front end before a released request is seen [s], 1 if a step is formed
      while the one before it runs (else 0), time between two that are released together [s].
    - `state`: Next request, released requests, decode steps made, decoding requests, sum of contexts, reserved
      blocks, partly prefilled request and its tokens to go, places and blocks that the last step freed and a step
      formed ahead does not know; read and written back.
    - `clock`: The time, and the start of the step that was made last; read and written back, [s].

    Notes
    -----
    Not modelled here: preemption, prefix cache, speculation, other schedulers; `SkippingEngine` has them all and takes
    over where a request might not fit.
    """
    arrival, inputs, started, first, finish, ends, needs, lengths, areas = columns
    knots, decode, slopes, prefill, widths, extra, steeps, keys, spans, attention, rises, hidden, short, each = tables
    budget, seqs, blocks, closed, more, lag, ahead, apart = limits
    q, released, step, n, total, held, partial, rest, late, freed = state
    now, begun, code, capacity = clock[0], clock[1], DONE, len(arrival)
    last_knot, last_prefill, last_key = len(knots) - 2, len(prefill) - 2, len(keys) - 2
    never = math.inf
    # the piece of each axis that the last step lay in and where it ends; none, so that the first step looks for its own
    i = j = m = 0
    low = low_p = low_k = never
    high = high_p = high_k = -never
    knot, here_decode, here_slopes = knots[0], decode[0], slopes[0]
    edge, width, here_extra, here_steeps = prefill[0], widths[0], extra[0], steeps[0]
    key, span_k, a, a_rise, b, b_rise = keys[0], spans[0], 0.0, 0.0, 0.0, 0.0
    follows = capacity if closed else 0  # requests that a finish may release
    enough = capacity - seqs
    while True:
        if more and (released if closed else q) > enough:
            code = MORE
            break
        if ahead:
            if n == 0 and partial < 0:
                late = freed = 0
                begun = now
            seen = begun
        else:
            seen = now
        if partial >= 0 or (q < released and n + late < seqs and arrival[q] <= seen):
            start = came = q
            room = budget - n
            weight = 0.0
            limit = q + seqs - n - late
            used = held + freed
            before, before_rest = partial, rest
            if partial >= 0:
                start = partial
                limit -= 1
                tokens = min(rest, room)
                weight = tokens * (inputs[partial] - rest + (tokens + 1) * 0.5)
                rest -= tokens
                room -= tokens
                if rest == 0:
                    partial = -1
            if limit > released:
                limit = released
            if room > 0:
                while q < limit and arrival[q] <= seen:
                    used += needs[q]
                    if used > blocks:
                        break
                    started[q] = now
                    length = inputs[q]
                    q += 1
                    if length < room:
                        room -= length
                        weight += areas[q - 1]
                    else:
                        if length > room:
                            partial, rest = q - 1, length - room
                        weight += room * (room + 1) * 0.5
                        room = 0
                        break
            if used > blocks:
                # leave the state as it was before this step
                while q > came:
                    q -= 1
                    started[q] = -1.0
                partial, rest, code = before, before_rest, TIGHT
                break
            held = used - freed
            seconds = 0.0
            tokens = budget - n - room
            if n:
                mean = total / n
                if mean >= high or mean < low:
                    while j < last_knot and mean >= knots[j + 1]:
                        j += 1
                    while j > 0 and mean < knots[j]:
                        j -= 1
                    low, high = knots[j] if j > 0 else -never, knots[j + 1] if j < last_knot else never
                    knot, here_decode, here_slopes = knots[j], decode[j], slopes[j]
                seconds = here_decode[n] + here_slopes[n] * (mean - knot)
            load = tokens * 1.0
            mean = weight / load
            if load >= high_p or load < low_p or mean >= high_k or mean < low_k:
                while i < last_prefill and load >= prefill[i + 1]:
                    i += 1
                while i > 0 and load < prefill[i]:
                    i -= 1
                while m < last_key and mean >= keys[m + 1]:
                    m += 1
                while m > 0 and mean < keys[m]:
                    m -= 1
                low_p, high_p = prefill[i] if i > 0 else -never, prefill[i + 1] if i < last_prefill else never
                low_k, high_k = keys[m] if m > 0 else -never, keys[m + 1] if m < last_key else never
                edge, width, here_extra, here_steeps = prefill[i], widths[i], extra[i], steeps[i]
                key, span_k, a, b = keys[m], spans[m], attention[i][m], attention[i + 1][m]
                a_rise, b_rise = rises[i][m], rises[i + 1][m]
            x = (load - edge) / width
            y = (mean - key) / span_k
            left = a + y * a_rise
            seconds += here_extra[n] + x * here_steeps[n] + left + x * (b + y * b_rise - left)
            if 0.0 <= short - each * n < load:
                seconds += hidden
            segments.append((now, 1, seconds, 0.0, n, total, tokens))
            begun = now
            now += seconds
            late = freed = 0
            if n:
                step += 1
                total += n
            base, up_to = step << _SHIFT, partial if partial >= 0 else q
            for which in range(start, up_to):
                first[which] = now
                end = ends[which]
                if end > _MASK:
                    heappush(heap, base + end)
                    n += 1
                    total += inputs[which] + 1
                else:
                    finish[which] = now
                    held -= needs[which]
                    if ahead:
                        late += 1
                        freed += needs[which]
                    if released < follows:
                        arrival[released] = max(now + lag, arrival[released - 1] + apart) if lag else now
                        released += 1
        elif n:
            k = (heap[0] >> _SHIFT) - step
            coming = arrival[q] if q < released and n < seqs else never
            if late and coming <= seen:
                k = 1
                coming = never
            late = freed = 0
            while k:
                mean = total / n
                if mean >= high or mean < low:
                    while j < last_knot and mean >= knots[j + 1]:
                        j += 1
                    while j > 0 and mean < knots[j]:
                        j -= 1
                    low, high = knots[j] if j > 0 else -never, knots[j + 1] if j < last_knot else never
                    knot, here_decode, here_slopes = knots[j], decode[j], slopes[j]
                slope = here_slopes[n]
                seconds = here_decode[n] + slope * (mean - knot)
                here = k
                if high - mean < k:
                    here = max(int(math.ceil(high - mean)), 1)
                span = here * seconds + slope * (here * (here - 1) * 0.5)
                if now + span >= coming:
                    steps = 0
                    if coming > now:
                        gap, linear = coming - now, seconds - slope * 0.5
                        root = linear * linear + 2 * slope * gap
                        root = math.sqrt(root) if root > 0.0 else 0.0
                        steps = int(2 * gap / (linear + root)) - 1
                        if steps < 1:
                            steps = 1
                        while steps < here and steps * seconds + slope * (steps * (steps - 1) * 0.5) < gap:
                            steps += 1
                    if steps + ahead < k:
                        k = steps + ahead
                    if k < here:
                        here = k
                    coming = never
                    span = here * seconds + slope * (here * (here - 1) * 0.5)
                segments.append((now, here, seconds, slope, n, total, 0))
                if ahead:
                    begun = now + (here - 1) * seconds + slope * ((here - 1) * (here - 2) * 0.5)
                now += span
                step += here
                total += n * here
                k -= here
        elif q < released:
            if arrival[q] > now:
                now = arrival[q]
        else:
            break
        base = step + 1 << _SHIFT
        while n and heap[0] < base:
            which = heappop(heap) & _MASK
            finish[which] = now
            n -= 1
            total -= lengths[which]
            held -= needs[which]
            if ahead:
                late += 1
                freed += needs[which]
            if released < follows:
                arrival[released] = max(now + lag, arrival[released - 1] + apart) if lag else now
                released += 1
    clock[0], clock[1] = now, begun
    state[0], state[1], state[2], state[3] = q, released, step, n
    state[4], state[5], state[6], state[7] = total, held, partial, rest
    state[8], state[9] = late, freed
    return code
