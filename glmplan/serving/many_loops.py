"""The kinds of step of many closed loops at once: the schedule of `alike_loop` with one entry of an array for each run.

All runs take their turns together, one engine step with a prompt or one stretch of decoding steps each, so that numpy
sees as many entries as there are runs. What a run measures follows from the counts at each turn: who waits for a first
token, and who decodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glmplan.serving.closed_loop import group_of_steps

__all__ = ["ManyMixes", "many_mixes"]

#: requests times runs that are looked at together: the arrays of more would leave the cache of the processor [-]
_AT_ONCE, _RUNS = 1 << 20, 4096
#: columns of a turn
_COLUMNS = ("decode_requests", "decode_context", "prefill_tokens", "prefill_context", "steps", "waiting", "answering")


@dataclass(frozen=True, eq=False)
class ManyMixes:
    """Kinds of step of many runs, one after the other.

    Attributes
    ----------
    requests : (n,) array of int
        Requests of each run, [-]
    run : (k,) array of int
        Run of each kind of step, ascending, [-]
    decode_requests, decode_context, prefill_tokens, prefill_context : (k,) array
        What a step of the kind holds, as in `glmplan.serving.closed_loop.StepMix`.
    ttft, tpot, wall : (k,) array
        Steps of the kind that each figure counts, as in `glmplan.serving.closed_loop.StepMix`, [-]
    """

    requests: np.ndarray
    run: np.ndarray
    decode_requests: np.ndarray
    decode_context: np.ndarray
    prefill_tokens: np.ndarray
    prefill_context: np.ndarray
    ttft: np.ndarray
    tpot: np.ndarray
    wall: np.ndarray


def many_mixes(
    concurrency: np.ndarray,
    inputs: np.ndarray,
    outputs: np.ndarray,
    requests: np.ndarray,
    *,
    budget: int,
    prefill_first: bool = False,
    whole_prompts: bool = False,
    late: int = 0,
    tokens_per_step: float = 1.0,
) -> ManyMixes:
    """Count the kinds of step of closed loops whose requests are alike and find a place at once.

    Parameters
    ----------
    concurrency : (n,) array of int
        Requests in flight, [-]
    inputs, outputs : (n,) array of int
        Prompt and answer of a request, [token]
    requests : (n,) array of int
        Requests in all, [-]
    budget, prefill_first, whole_prompts, late, tokens_per_step
        As in `glmplan.serving.alike_loop.ClosedLoop`, of all runs.

    Returns
    -------
    ManyMixes
        What `glmplan.serving.closed_loop.closed_loop_mix` says of each.

    Notes
    -----
    Not modelled: a cache pool or places that fill up, and clients that engines look for in intervals; those runs go
    through `glmplan.serving.alike_loop.alike_schedule`.

    Examples
    --------
    >>> one = np.array([1])
    >>> mix = many_mixes(one, 1000 * one, 101 * one, 4 * one, budget=8192)
    >>> round(float(mix.ttft.sum()), 6), round(float(mix.tpot.sum()), 6)
    (1.0, 1.0)
    """
    # runs of about as many turns go together: the last of a group would go on alone
    turns = requests * np.maximum(inputs / budget, 1.0 / np.maximum(concurrency, 1)) + requests
    order = np.argsort(turns, kind="stable")
    gain, parts, start = tokens_per_step, [], 0
    while start < len(order):
        # the longest of the group decides the memory of its queues
        stop = min(start + _RUNS, len(order))
        while stop > start + 1 and (stop - start) * int(concurrency[order[start:stop]].max()) > _AT_ONCE:
            stop = start + (stop - start) // 2
        some = order[start:stop]
        turn = _Turns(concurrency[some], inputs[some], outputs[some], requests[some], budget, gain)
        table = turn.all(prefill_first=prefill_first, whole_prompts=whole_prompts, late=late)
        parts.append(_merged(table, some, outputs, requests))
        start = stop
    columns = [np.concatenate([one[place] for one in parts]) for place in range(len(parts[0]))]
    by_run = np.argsort(columns[0], kind="stable")
    return ManyMixes(requests, *(one[by_run] for one in columns))


def _merged(
    table: dict[str, np.ndarray], some: np.ndarray, outputs: np.ndarray, requests: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Turns that are nearly alike as one kind of step, with what it holds in the mean."""
    steps, run = table["steps"], some[table["run"]]
    key = group_of_steps(table["decode_requests"], table["prefill_tokens"], table["prefill_context"])
    kinds, group = np.unique(run * 1_000_000_000 + key.astype(np.int64), return_inverse=True)

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(group, weights=values, minlength=len(kinds))

    mass = summed(steps)
    mean = [summed(table[name] * steps) / mass for name in _COLUMNS[:4]]
    of = kinds // 1_000_000_000
    ttft = summed(table["waiting"] * steps) / requests[of]
    tpot = summed(table["answering"] * steps) / requests[of] / np.maximum(outputs[of] - 1.0, 1.0)
    return of, *mean, ttft, tpot, mass


class _Queue:
    """First in, first out, one for each run: when, and how many."""

    def __init__(self, runs: int, most: int) -> None:
        self.size = most + 2
        self.at, self.count = (np.zeros((runs, self.size), dtype=np.int64) for _ in range(2))
        self.head, self.tail = (np.zeros(runs, dtype=np.int64) for _ in range(2))

    def first(self, runs: np.ndarray) -> np.ndarray:
        """When the first entry is due; meaningless where there is none."""
        return self.at[runs, self.head[runs] % self.size]

    def append(self, runs: np.ndarray, at: np.ndarray, count: np.ndarray) -> None:
        """Add to the end; what is due when the last entry is joins it."""
        last = (self.tail[runs] - 1) % self.size
        joins = (self.tail[runs] > self.head[runs]) & (self.at[runs, last] == at)
        self.count[runs[joins], last[joins]] += count[joins]
        rest = runs[~joins]
        place = self.tail[rest] % self.size
        self.at[rest, place], self.count[rest, place] = at[~joins], count[~joins]
        self.tail[rest] += 1

    def due(self, runs: np.ndarray, now: np.ndarray) -> np.ndarray:
        """Take off all that is due, and count it."""
        total = np.zeros(len(runs), dtype=np.int64)
        place = np.arange(len(runs))
        while len(place):
            here = runs[place]
            ready = (self.head[here] < self.tail[here]) & (self.first(here) <= now[place])
            place, here = place[ready], here[ready]
            total[place] += self.count[here, self.head[here] % self.size]
            self.head[here] += 1
        return total

    def take_one(self, runs: np.ndarray) -> None:
        """Take one off the first entry."""
        place = self.head[runs] % self.size
        self.count[runs, place] -= 1
        self.head[runs] += self.count[runs, place] == 0


class _Turns:
    """State of the runs; attributes are as the variables of `glmplan.serving.alike_loop.alike_schedule`."""

    def __init__(self, users: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, requests: np.ndarray,
                 budget: int, gain: float) -> None:  # fmt: skip
        self.run = np.arange(len(users))
        self.prompt, self.outputs, self.requests = (one.astype(np.int64) for one in (inputs, outputs, requests))
        self.budget, self.gain = budget, gain
        self.more = np.ceil((self.outputs - 1) / gain).astype(np.int64)
        self.sent = np.minimum(users, requests).astype(np.int64)
        most = int(self.sent.max(initial=1))
        self.ends, self.there = _Queue(len(users), most), _Queue(len(users), most)
        self.there.append(self.run, np.zeros(len(users), dtype=np.int64), self.sent)
        names = ("seen", "first", "ended", "done", "clock", "rounds", "decoding")
        self.seen, self.first, self.ended, self.done, self.clock, self.rounds, self.decoding = (
            np.zeros(len(users), dtype=np.int64) for _ in names
        )
        self.context = np.zeros(len(users))
        self._columns = ("run", "prompt", "outputs", "requests", "more", "sent", *names, "context")

    def all(self, *, prefill_first: bool, whole_prompts: bool, late: int) -> dict[str, np.ndarray]:
        """Every turn of every run: its run, and `_COLUMNS`."""
        rows: dict[str, list[np.ndarray]] = {name: [] for name in ("run", *_COLUMNS)}
        while len(self.run):
            waiting, answering = self.sent - self.first, self.first - self.ended
            self._look(late)
            room = self.budget if prefill_first else self.budget - self.decoding
            prompts = (self.seen > self.first) & (room > 0)
            tokens, keys, newcomers = self._prompts(prompts, room, whole_prompts)
            steps = np.where(prompts, 1, self._steps())
            mixed = np.where(prompts, 0 if prefill_first else self.decoding, self.decoding)
            context = self.context / np.maximum(self.decoding, 1) + self.gain * (steps - 1) / 2
            content = (mixed, np.where(mixed > 0, context, 0.0), tokens, keys, steps, waiting, answering)
            for name, values in zip(rows, (self.run, *content), strict=True):
                rows[name].append(values)
            self.rounds += steps
            moved = np.where(prompts & prefill_first, 0, steps)
            self.clock += moved
            self.context += self.decoding * self.gain * moved
            self._end(newcomers, late)
            self._leave()
        return {name: np.concatenate(values) for name, values in rows.items()}

    def _look(self, late: int) -> None:
        """Requests that the engine sees by now; an idle one starts with whoever is there first."""
        some = np.flatnonzero(self.seen < self.sent)
        idle = (self.decoding[some] == 0) & (self.seen[some] == self.first[some])
        if not late:
            # nothing is on its way: whoever was sent is seen
            here = some[idle]
            self.there.head[self.run[here]] = self.there.tail[self.run[here]]
            self.seen[here] = self.sent[here]
        else:
            self.there.take_one(self.run[some[idle]])
            self.seen[some[idle]] += 1
        busy = some[~idle]
        self.seen[busy] += self.there.due(self.run[busy], self.rounds[busy])

    def _prompts(
        self, prompts: np.ndarray, room: np.ndarray | int, whole_prompts: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Prompt tokens of the turn, their mean keys, and requests that get their first token."""
        prompt, done, waiting = self.prompt, self.done, self.seen - self.first
        own = prompt * ((prompt + 1) / 2)
        if whole_prompts:
            newcomers = np.where(prompts, np.minimum(np.maximum(room // prompt, 1), waiting), 0)
            return newcomers * prompt, np.where(prompts, own / prompt, 0.0), newcomers
        rest = prompt - done
        cut = rest > room
        whole = np.where(cut, 0, np.minimum((room - rest) // prompt, waiting - 1))
        newcomers = np.where(prompts & ~cut, 1 + whole, 0)
        part = np.where(cut | (waiting <= newcomers), 0, np.minimum(room - rest - whole * prompt, prompt))
        head = np.minimum(rest, room)
        tokens = np.where(prompts, head + whole * prompt + part, 0)
        keys = head * (done + (head + 1) / 2) + whole * own + part * ((part + 1) / 2)
        self.done = np.where(prompts, np.where(cut, done + head, part), done)
        return tokens, np.where(prompts, keys / np.maximum(tokens, 1), 0.0), newcomers

    def _steps(self) -> np.ndarray:
        """Decoding steps until somebody ends or is looked at."""
        steps = np.maximum(self.ends.first(self.run) - self.clock, 1)
        look = np.maximum(self.there.first(self.run), self.rounds + 1) - self.rounds
        return np.where(self.seen < self.sent, np.minimum(steps, look), steps)

    def _end(self, newcomers: np.ndarray, late: int) -> None:
        """Whoever has its answer ends, whoever got a first token decodes, and who ended sends the next prompt."""
        gone = self.ends.due(self.run, self.clock)
        self.decoding -= gone
        self.context -= gone * (self.prompt + self.outputs)
        self.first += newcomers
        goes_on = (newcomers > 0) & (self.more > 0)
        self.ends.append(self.run[goes_on], (self.clock + self.more)[goes_on], newcomers[goes_on])
        decodes = np.where(goes_on, newcomers, 0)
        self.decoding += decodes
        self.context += decodes * (self.prompt + 1)
        self.context[self.decoding == 0] = 0.0
        gone += newcomers - decodes
        self.ended += gone
        following = np.minimum(gone, self.requests - self.sent)
        here = following > 0
        self.there.append(self.run[here], (self.rounds + late)[here], following[here])
        self.sent += following

    def _leave(self) -> None:
        """Runs that are over are left out."""
        left = self.ended < self.sent
        if not left.all():
            for name in self._columns:
                setattr(self, name, getattr(self, name)[left])
