"""Step histograms of closed-loop runs.

They are counted before step times are known.

With a fixed number of requests in flight the schedule depends on token counts only, not on times: the next prompt
follows a finished request. So the schedule is run once, and mean TTFT, TPOT and throughput become weighted sums of the
step time over a few kinds of step. The weights are exact; kinds of step with nearly equal contents are merged.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache, partial
from statistics import NormalDist
from typing import Any

import numpy as np

from glmplan.simulation.closed_run import ClosedLoop
from glmplan.simulation.closed_schedule import COLUMNS, closed_schedule
from glmplan.simulation.traffic.drafting import Acceptance
from glmplan.units import TokensArray

__all__ = [
    "MOST_REQUESTS",
    "KnownRuns",
    "ManyMixes",
    "StepMix",
    "closed_loop_mix",
    "decode_steps",
    "distinct_rows",
    "group_of_steps",
    "many_mixes",
]


#: weights of a metric that a run of means leaves out
_not_counted = partial(np.zeros, 0)


@dataclass(frozen=True, eq=False)
class StepMix:
    """Kinds of step of a run, with the weight of each in every metric.

    A run of means has those of ``ttft``, ``tpot`` and ``counted`` only.
    """

    #: `decode_requests`, `decode_context`, `prefill_tokens`, `prefill_context`: what a step of each kind holds, as in
    #: `glmplan.costs.points.StepPoints`
    decode_requests: np.ndarray
    decode_context: np.ndarray
    prefill_tokens: np.ndarray
    prefill_context: np.ndarray
    ttft: np.ndarray  # steps of this kind that a request waits through until its first token, mean over requests, [-]
    tpot: np.ndarray  # steps of this kind for each output token after the first, mean over requests, [-]
    counted: np.ndarray  # steps of this kind within the part of the run that counts, [-]
    #: `output_tokens`, `input_tokens`: tokens that are generated in them, and those of the prompts, [token]
    output_tokens: float
    input_tokens: float
    peak_requests: int  # largest number of requests that ran at once, [-]
    #: the same for the fifth of the requests around the median, [-]
    ttft_median: np.ndarray = field(default_factory=_not_counted)
    #: the same for the last 2 % of the requests by this wait, at least one: the 99th percentile, [-]
    ttft_late: np.ndarray = field(default_factory=_not_counted)
    #: `tpot_median`, `tpot_late`: the same for the fifth of the requests around the median, and for the last 2 %, [-]
    tpot_median: np.ndarray = field(default_factory=_not_counted)
    tpot_late: np.ndarray = field(default_factory=_not_counted)
    #: steps of this kind from sending a request to its last token, mean over requests, [-]
    stay: np.ndarray = field(default_factory=_not_counted)
    #: `stay_late`, `stay_late_first`: the same for the last 2 % of the requests by this time, and the part of it up to
    #: the first token, [-]
    stay_late: np.ndarray = field(default_factory=_not_counted)
    stay_late_first: np.ndarray = field(default_factory=_not_counted)
    #: steps of this kind for each gap between tokens, mean over all tokens, [-]
    itl: np.ndarray = field(default_factory=_not_counted)
    #: `itl_median`, `itl_late`: the same for the fifth of the tokens around the one with the median gap, and for a
    #: thousandth around the 99th percentile, [-]
    itl_median: np.ndarray = field(default_factory=_not_counted)
    itl_late: np.ndarray = field(default_factory=_not_counted)


@lru_cache(maxsize=4096)
def closed_loop_mix(run: ClosedLoop) -> StepMix:
    """Run the schedule and count its kinds of step.

    Notes
    -----
    Lengths come from a generator seeded with a constant, so that the same run gives the same mix. Not modelled:
    eviction and recomputation; clients that pause before the next prompt.

    Examples
    --------
    One user: the prompt is one step, then one step for each further token.

    >>> mix = closed_loop_mix(ClosedLoop(concurrency=1, input_tokens=1000, output_tokens=101, requests=4))
    >>> round(float(mix.ttft.sum()), 6), round(float(mix.tpot.sum()), 6)
    (1.0, 1.0)
    """
    inputs, outputs = _lengths(run)
    if run.staggered:
        users = int(min(run.concurrency, run.requests))
        outputs[:users] = [-(-outputs[one] * (one + 1) // users) for one in range(users)]
    blocks, spans = closed_schedule(run, inputs, outputs, decode_steps(run, outputs))
    table = np.array(array("d", blocks)).reshape(-1, COLUMNS)
    span = np.array(spans, dtype=np.int64).T
    return _merge(run, table, span, np.array(inputs, dtype=float), np.array(outputs, dtype=float))


def _lengths(run: ClosedLoop) -> tuple[list[int], list[int]]:
    """Return the prompt and answer of each request; random unless uniform."""
    nominal = max(int(run.input_tokens), 1), max(int(run.output_tokens), 1)
    if run.shortest == 1.0:
        return [nominal[0]] * run.requests, [nominal[1]] * run.requests
    rng = np.random.default_rng(20260320)
    inputs, outputs = (
        rng.integers(max(int(tokens * run.shortest), 1), most, size=run.requests, endpoint=True).tolist()
        for tokens, most in zip((run.input_tokens, run.output_tokens), nominal, strict=True)
    )
    return inputs, outputs


def decode_steps(run: ClosedLoop, outputs: list[int]) -> list[int]:
    """Return the decode steps of each request after its first token.

    Notes
    -----
    Steps of speculative decoding yield different numbers of tokens, so that requests of equal length end one after the
    other and their users leave a common start by and by. The number of steps of a long answer is normal, with the mean
    and the variance of a renewal process (`Acceptance.steps_at`). Requests take its quantiles, each once, in a shuffled
    order with a constant seed: the mean over a run is that of the law. Not modelled: texts that differ in acceptance.

    Examples
    --------
    >>> decode_steps(ClosedLoop(8, 100, 301, 4, tokens_per_step=3.0), [301] * 4)
    [100, 100, 100, 100]
    >>> sorted(decode_steps(ClosedLoop(8, 100, 301, 4, tokens_per_step=3.0, draft_tokens=3), [301] * 4))
    [95, 99, 101, 105]
    """
    if not 0 < run.tokens_per_step - 1 <= run.draft_tokens:
        steps = {answer: int(-(-(answer - 1) // run.tokens_per_step)) for answer in set(outputs)}
        return [steps[answer] for answer in outputs]
    acceptance = _acceptance(run.draft_tokens, run.tokens_per_step)
    drafted: list[int] = acceptance.steps_at(np.array(outputs) - 1, _shuffled_normal(len(outputs))).tolist()
    return drafted


_acceptance = lru_cache(maxsize=256)(Acceptance.of_mean)


@lru_cache(maxsize=256)
def _shuffled_normal(count: int) -> np.ndarray:
    """Return so many quantiles of the normal distribution, shuffled."""
    law = NormalDist()
    values = np.array([law.inv_cdf((place + 0.5) / count) for place in range(count)])
    return np.random.default_rng(20260320).permutation(values)


def _merge(run: ClosedLoop, table: np.ndarray, span: np.ndarray, inputs: np.ndarray, outputs: np.ndarray) -> StepMix:
    steps = table[:, 4]
    counted, inside = _counted(run, span, len(table))
    tokens_out, tokens_in = float(outputs.sum()), float(inputs.sum())
    if not inside.all():
        first_tokens = float(inside[span[:, 1] - 1].sum())
        tokens_out = float((table[:, 0] * steps * inside).sum()) * run.tokens_per_step + first_tokens
        tokens_in = float((table[:, 2] * steps * inside).sum())
    span, outputs = span[counted], outputs[counted]
    # a rough step time, only to say which requests wait, and which tokens take, about as long as the median one
    rough = steps * (1.0 + table[:, 2] / 500.0 + table[:, 0] / 200.0)
    weights = _request_weights(rough, steps, span, outputs, means=run.means)
    weights["counted"] = steps * inside
    if not run.means:
        gap, tokens = rough / np.maximum(steps, 1.0), table[:, 0] * steps * inside
        weights |= {
            "itl": tokens / max(float(tokens.sum()), 1.0),
            "itl_median": _between_gaps(gap, tokens, *_MIDDLE),
            "itl_late": _between_gaps(gap, tokens, *_LATE_GAPS),
        }
    key = group_of_steps(table[:, 0], table[:, 2], table[:, 3])
    _, group = np.unique(key, return_inverse=True)
    size = int(group.max()) + 1

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(group, weights=values, minlength=size)

    mass = summed(steps)
    mean = [summed(table[:, column] * steps) / mass for column in range(4)]
    return StepMix(
        decode_requests=mean[0],
        decode_context=mean[1],
        prefill_tokens=mean[2],
        prefill_context=mean[3],
        **{name: summed(one) for name, one in weights.items()},
        output_tokens=tokens_out,
        input_tokens=tokens_in,
        peak_requests=int(table[:, 0].max()),
    )


#: shares of the requests or tokens around the median, of the requests and of the many more tokens around the 99th
#: percentile, in order of their times [-]
_MIDDLE, _LATE, _LATE_GAPS = (0.4, 0.6), (0.98, 1.0), (0.9895, 0.9905)


def _request_weights(
    rough: np.ndarray, steps: np.ndarray, span: np.ndarray, outputs: np.ndarray, *, means: bool
) -> dict[str, np.ndarray]:
    """Return the steps of each block in every metric of a request."""
    start, first, end = span[:, 0], span[:, 1], span[:, 2]

    def weight(begin: np.ndarray, stop: np.ndarray, of: np.ndarray, value: np.ndarray | None = None) -> np.ndarray:
        each = (np.ones(len(of)) if value is None else value[of]) / max(len(of), 1)
        begun, over = (np.bincount(one[of], weights=each, minlength=len(steps) + 1) for one in (begin, stop))
        result: np.ndarray = np.cumsum(begun - over)[:-1] * steps
        return result

    everyone, many = np.arange(len(span)), np.flatnonzero(outputs > 1)
    per_token = 1.0 / np.maximum(outputs - 1.0, 1.0)
    found = {"ttft": weight(start, first, everyone), "tpot": weight(first, end, many, per_token)}
    if means:
        return found
    elapsed = np.concatenate([[0.0], np.cumsum(rough)])
    wait, stay = elapsed[first] - elapsed[start], elapsed[end] - elapsed[start]
    slow = _ranked(stay, *_LATE)
    gap = ((elapsed[end] - elapsed[first]) * per_token)[many]
    return found | {
        "ttft_median": weight(start, first, _ranked(wait, *_MIDDLE)),
        "ttft_late": weight(start, first, _ranked(wait, *_LATE)),
        "tpot_median": weight(first, end, many[_ranked(gap, *_MIDDLE)], per_token),
        "tpot_late": weight(first, end, many[_ranked(gap, *_LATE)], per_token),
        "stay": weight(start, end, everyone),
        "stay_late": weight(start, end, slow),
        "stay_late_first": weight(start, first, slow),
    }


def _ranked(times: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return the places between two shares in the order of times.

    Examples
    --------
    >>> _ranked(np.array([3.0, 1.0, 2.0]), *_LATE).tolist(), _ranked(np.array([3.0, 1.0, 2.0]), *_MIDDLE).tolist()
    ([0], [2])
    """
    count = len(times)
    begin = min(int(count * low), max(count - 1, 0))
    return np.argsort(times, kind="stable")[begin : max(int(np.ceil(count * high)), begin + 1)]


def group_of_steps(requests: np.ndarray, prompt: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Return the group of each step.

    A group is a third of an octave of requests and an octave of tokens and keys.

    `requests`, `prompt`, `keys`: Decoding requests [-], prompt tokens and the keys that they see in the mean [token].

    Examples
    --------
    >>> group = group_of_steps(np.array([8.0, 8.1, 32.0]), np.zeros(3), np.zeros(3))
    >>> bool(group[0] == group[1]), bool(group[0] == group[2])
    (True, False)
    """

    def level(values: np.ndarray, per_octave: float) -> np.ndarray:
        return np.where(values > 0, np.round(np.log2(np.maximum(values, 1e-9) + 1.0) * per_octave) + 1, 0)

    result: np.ndarray = (level(requests, 3) * 1000 + level(prompt, 1)) * 1000 + level(keys, 1)
    return result


def _between_gaps(length: np.ndarray, tokens: np.ndarray, first: float, last: float) -> np.ndarray:
    """Return each block's share in the tokens between two shares."""
    order = np.argsort(length, kind="stable")
    passed = np.cumsum(tokens[order])
    if not len(passed) or passed[-1] <= 0:
        return np.zeros(len(tokens))
    low, high = first * passed[-1], last * passed[-1]
    inside = np.clip(passed, low, high) - np.clip(passed - tokens[order], low, high)
    share = np.zeros(len(tokens))
    share[order] = inside / (high - low)
    return share


def _counted(run: ClosedLoop, span: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the requests that count, and a mask of the blocks that count."""
    users, place = int(min(run.concurrency, run.requests)), np.arange(blocks)
    if run.settled and run.requests > users:
        return np.arange(users, run.requests), np.ones(blocks, dtype=bool)
    if not run.staggered or run.requests < 3 * users:
        return np.arange(len(span)), np.ones(blocks, dtype=bool)
    begin, stop = int(span[:users, 2].max()), int(span[-1, 0])
    return np.arange(users, run.requests - users), (place >= begin) & (place < stop)


#: requests whose blocks are merged together: the arrays of more take memory and no less time [-]
_AT_ONCE = 1 << 18
#: codes that are looked up rather than sorted: at most so many for each, or so many [-]
_SPARSE, _SMALL = 16, 4096
#: requests of a run at most: four for each user, and no fewer than eight [-]
MOST_REQUESTS = 20_000


@dataclass(frozen=True, eq=False)
class ManyMixes:
    """Kinds of step of many runs, one after the other."""

    requests: np.ndarray  # requests of each run, [-]
    run: np.ndarray  # run of each kind of step, ascending, [-]
    #: `decode_requests`, `decode_context`, `prefill_tokens`, `prefill_context`: what a step of the kind holds, as in
    #: `glmplan.simulation.closed_loop.StepMix`
    decode_requests: np.ndarray
    decode_context: np.ndarray
    prefill_tokens: np.ndarray
    prefill_context: np.ndarray
    #: `ttft`, `tpot`, `counted`: steps of the kind that each metric counts, as in
    #: `glmplan.simulation.closed_loop.StepMix`, [-]
    ttft: np.ndarray
    tpot: np.ndarray
    counted: np.ndarray

    def of(self, runs: np.ndarray) -> ManyMixes:
        """Return the kinds of step of some runs."""
        ends = np.searchsorted(self.run, np.arange(len(self.requests) + 1))
        sizes = np.diff(ends)[runs]
        first = np.cumsum(sizes) - sizes
        rows = np.repeat(ends[runs] - first, sizes) + np.arange(sizes.sum())
        columns = {one.name: getattr(self, one.name)[rows] for one in fields(self) if one.name != "requests"}
        return ManyMixes(self.requests[runs], **columns | {"run": np.repeat(np.arange(len(runs)), sizes)})

    def and_then(self, more: ManyMixes) -> ManyMixes:
        """Return these runs followed by others."""
        more = replace(more, run=more.run + len(self.requests))
        both = {one.name: np.concatenate([getattr(self, one.name), getattr(more, one.name)]) for one in fields(self)}
        return ManyMixes(**both)


class KnownRuns:
    """Cache of step histograms.

    Data-parallel ranks and servers of a service repeat many runs.

    Examples
    --------
    >>> known, one = KnownRuns(), np.array([1])
    >>> mix = known.of(np.array([1, 1]), np.array([1000, 1000]), np.array([101, 101]), budget=8192)
    >>> mix.run.tolist() == [0] * (len(mix.run) // 2) + [1] * (len(mix.run) // 2)
    True
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], tuple[np.ndarray, ManyMixes]] = {}

    def of(self, concurrency: np.ndarray, inputs: TokensArray, outputs: TokensArray, **packing: Any) -> ManyMixes:
        """Count the kinds of step of runs, four requests for each user."""
        key = tuple(sorted(packing.items()))
        known, mix = self._known.get(key, (np.zeros((0, 3), dtype=np.int64), None))
        rows = np.concatenate([known, np.stack([concurrency, inputs, outputs], axis=1)])
        # of equal ones the first: those that are known stand before those that are asked for
        first, which = distinct_rows(*rows.T)
        new = first >= len(known)
        at = np.where(new, len(known) + np.cumsum(new) - 1, first)
        if new.any():
            counts, lengths, answers = rows[first[new]].T
            more = many_mixes(counts, lengths, answers, np.clip(4 * counts, 8, MOST_REQUESTS), **packing)
            mix = more if mix is None else mix.and_then(more)
            self._known[key] = np.concatenate([known, rows[first[new]]]), mix
        assert mix is not None
        return mix.of(at[which[len(known) :]])


def distinct_rows(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the first place of each distinct row, and each row's number.

    Rows ascend by the first column, then the next. Comparing whole rows would be slower.

    Examples
    --------
    >>> first, places = distinct_rows(np.array([2, 1, 2, 1]), np.array([0.5, 7.0, 0.5, 3.0]))
    >>> first.tolist(), places.tolist()
    ([3, 1, 0], [2, 1, 2, 0])
    """
    places = np.zeros(len(columns[0]), dtype=np.int64)
    for column in columns:
        values, which = np.unique(column, return_inverse=True)
        _, places = _numbered(places * len(values) + which.ravel())
    first = np.empty(int(places.max(initial=-1)) + 1, dtype=np.int64)
    first[places[::-1]] = np.arange(len(places))[::-1]
    return first, places


def many_mixes(
    concurrency: np.ndarray, inputs: TokensArray, outputs: TokensArray, requests: np.ndarray, **settings: Any
) -> ManyMixes:
    """Count the kinds of step of closed loops with uniform requests.

    `settings` are fields of `ClosedLoop` that the runs share. Runs are merged together, so that numpy is called once
    for many of them: the schedule itself takes as long.

    Examples
    --------
    >>> one = np.array([1])
    >>> mix = many_mixes(one, 1000 * one, 101 * one, 4 * one, budget=8192)
    >>> round(float(mix.ttft.sum()), 6), round(float(mix.tpot.sum()), 6)
    (1.0, 1.0)
    """
    runs = np.stack([concurrency, inputs, outputs, requests], axis=1)
    group = np.cumsum(requests) // _AT_ONCE
    ends = np.append(np.flatnonzero(np.diff(group)) + 1, len(runs))
    parts = [
        _merged(runs, first, stop, settings) for first, stop in zip([0, *ends[:-1]], ends, strict=True) if stop > first
    ]
    return ManyMixes(requests, *(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _merged(runs: np.ndarray, first: int, stop: int, settings: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """Return the kinds of step of successive runs, with contents and weights."""
    blocks, begin = array("d"), [0]
    for users, prompt, answer, requests in runs[first:stop].tolist():
        run = ClosedLoop(users, prompt, answer, requests, **settings)
        answers = [answer] * requests
        blocks.fromlist(closed_schedule(run, [prompt] * requests, answers, decode_steps(run, answers))[0])
        begin.append(len(blocks) // COLUMNS)
    table = np.array(blocks).reshape(-1, COLUMNS)
    waiting, answering = table[:, 5], table[:, 6]
    steps = table[:, 4]
    key = group_of_steps(table[:, 0], table[:, 2], table[:, 3])
    _, kind = _numbered(key.astype(np.int64))
    number, most = np.repeat(np.arange(stop - first), np.diff(begin)), int(kind.max(initial=0)) + 1
    kinds, group = _numbered(number * most + kind)

    def summed(values: np.ndarray) -> np.ndarray:
        return np.bincount(group, weights=values, minlength=len(kinds))

    mass = summed(steps)
    mean = [summed(table[:, column] * steps) / mass for column in range(4)]
    run_of = first + kinds // most
    answer, requests = runs[run_of, 2], runs[run_of, 3]
    ttft = summed(waiting * steps) / requests
    tpot = summed(answering * steps) / requests / np.maximum(answer - 1.0, 1.0)
    return run_of, *mean, ttft, tpot, mass


def _numbered(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct codes and the number of each.

    It is `np.unique` without sorting small codes.
    """
    most = int(codes.max(initial=0)) + 1
    if most > max(_SPARSE * len(codes), _SMALL):
        found, place = np.unique(codes, return_inverse=True)
        return found, place
    there = np.zeros(most, dtype=bool)
    there[codes] = True
    found = np.flatnonzero(there)
    number = np.empty(most, dtype=np.int64)
    number[found] = np.arange(len(found))
    return found, number[codes]
