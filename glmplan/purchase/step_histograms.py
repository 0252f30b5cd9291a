"""Step histograms: the loads of a sweep as sparse matrices.

All machines with equal scheduling share them. A metric of a load is a weighted sum of step times
(`glmplan.prediction.load`), and the weights do not depend on the machine. Step times are tabulated on a grid of decode
requests, their context, prefill tokens and the keys that these attend to. A metric is then a row of a sparse matrix,
equal for all machines, times the step times of one machine.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from glmplan.catalog.schema.engine import EngineDefaults
from glmplan.costs.points import StepPoints
from glmplan.costs.step.model import FrontPoints, StepModel, StepTime
from glmplan.io.runs.columns import INTERVAL_KINDS
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.effects import load_effects
from glmplan.prediction.evidence import evidence_of_points
from glmplan.prediction.load import Load, LoadMetrics, metrics_of, user_load
from glmplan.prediction.predict import Prediction, predict_many, wake_seconds
from glmplan.prediction.replicas import added, split_users
from glmplan.prediction.step_models import least_of, may_hide, runs_on_accelerators, step_model_of, without_hiding
from glmplan.simulation.closed_loop import MOST_REQUESTS, KnownRuns, distinct_rows
from glmplan.simulation.traffic.waiting import waiting_share
from glmplan.units import Ratio, SecondsArray, Tokens, TokensArray

__all__ = [
    "FIGURES",
    "NODES",
    "TOLERANCE",
    "Columns",
    "StepHistograms",
    "StepSeconds",
    "StepTable",
    "columns_of",
    "exact_columns",
    "packing_key",
    "step_histograms_of",
]


#: metrics with a matrix
FIGURES: tuple[str, ...] = ("ttft", "tpot", "output_rate")
#: grid points per octave: requests from 16 on, contexts, prefill tokens, keys
_REQUESTS, _CONTEXTS, _PROMPT, _KEYS = 8, 3, 4, 3
_ALL_REQUESTS = 16
#: number of loads from which schedules are run in one batch, which is then faster
_TOGETHER = 64
#: variables of a step
NODES = ("decode_requests", "decode_context", "prefill_tokens", "prefill_context")
#: variables of each kind of step; metric → weights of the kinds; metric → front-end passes; output tokens
_Kinds = tuple[dict[str, np.ndarray], dict[str, sparse.csr_array], dict[str, np.ndarray], np.ndarray]
#: context at which the parts of a step time are joined [token]
_CENTRE = 4096.0


@dataclass(frozen=True, slots=True)
class StepTable:
    """Steps to be timed on each machine."""

    #: entries of the table, then the subtracted steps, then all steps of the loads that are timed exactly
    points: StepPoints
    #: index of the step that is subtracted from each entry; -1 for none
    minus: np.ndarray

    @property
    def count(self) -> int:
        """Return the number of steps."""
        return len(self.points.decode_requests)

    def values(self, seconds: SecondsArray) -> SecondsArray:
        """Return the vector for the matrices of `StepHistograms`."""
        first = seconds[: len(self.minus)]
        return np.where(self.minus >= 0, first - seconds[np.maximum(self.minus, 0)], first)


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Step times of `StepHistograms` on one machine."""

    #: all points of the table
    seconds: SecondsArray
    #: the same without overlap of shared experts, which sets in at one number of tokens and cannot be interpolated
    level: SecondsArray
    #: overlap of each of `StepHistograms.sizes`
    hidden: SecondsArray


@dataclass(frozen=True, slots=True)
class StepHistograms:
    """Loads as matrices.

    A load whose users do not divide evenly over its replicas has two rows.
    """

    #: users of one replica, input and output length of each row
    users: np.ndarray
    inputs: TokensArray
    outputs: TokensArray
    #: replicas of each row
    servers: np.ndarray
    #: load of each row, as in `glmplan.prediction.replicas.Split`
    of: np.ndarray
    table: StepTable
    #: metric → weights of the entries of the table
    matrices: dict[str, sparse.csr_array]
    #: metric → number of front-end passes
    fronts: dict[str, np.ndarray]
    #: output tokens of the rate
    tokens: TokensArray
    #: result of `packing_key`
    packing: Load
    #: loads whose steps are all timed, to estimate the interpolation error
    looked_at: np.ndarray
    #: metric → weights of their steps
    checks: dict[str, sparse.csr_array]
    #: loads with at most one user per data-parallel rank, whose steps are all timed
    few: np.ndarray
    #: metric → weights of their steps, with the number of busy ranks
    each: dict[str, sparse.csr_array]
    #: `matrices` of all loads, before `at`
    all_rows: dict[str, sparse.csr_array]
    #: distinct pairs of decode requests and prefill tokens
    sizes: StepPoints
    #: `matrices` and `all_rows` over `sizes`
    of_sizes: dict[str, sparse.csr_array]
    all_sizes: dict[str, sparse.csr_array]

    def figure(self, name: str, times: StepSeconds) -> SecondsArray:
        """Return a metric of every load as a sum of step times.

        The front end is not included.
        """
        result: np.ndarray = self.matrices[name] @ self.table.values(times.level)
        if times.hidden.any():
            result -= self.of_sizes[name] @ times.hidden
        if len(self.few):
            each = self.each[name]
            result[self.few] = each @ times.seconds[: each.shape[1]]
        return result

    def error(self, times: StepSeconds) -> Ratio:
        """Return the largest relative error of interpolated metrics.

        It is taken over the loads that are timed exactly.
        """
        column, worst = self.table.values(times.level), 0.0
        for name in FIGURES:
            exact = self.checks[name] @ times.seconds
            read = self.all_rows[name][self.looked_at] @ column - self.all_sizes[name][self.looked_at] @ times.hidden
            known = exact > 0
            worst = max(worst, float(np.abs(read[known] / exact[known] - 1.0).max(initial=0.0)))
        return worst

    def at(self, places: np.ndarray) -> StepHistograms:
        """Return some of the loads."""
        if len(places) == self.of[-1] + 1:
            return self
        kept = np.flatnonzero(np.isin(self.of, places))
        of, places = np.searchsorted(places, self.of[kept]), kept
        rows = {name: matrix[places] for name, matrix in self.matrices.items()}
        fronts = {name: counts[places] for name, counts in self.fronts.items()}
        _, few, among = np.intersect1d(places, self.few, assume_unique=True, return_indices=True)
        each = {name: matrix[among] for name, matrix in self.each.items()}
        of_sizes = {name: matrix[places] for name, matrix in self.of_sizes.items()}
        return replace(
            self, users=self.users[places], inputs=self.inputs[places], outputs=self.outputs[places],
            servers=self.servers[places], of=of, matrices=rows, fronts=fronts, tokens=self.tokens[places], few=few,
            each=each, of_sizes=of_sizes,
        )  # fmt: skip

    def load(self, place: int) -> Load:
        """Return one row as a load without waiting.

        KV pool and `max_num_seqs` do not limit it.
        """
        return _load(self.packing, self.users[place], self.inputs[place], self.outputs[place], self.servers[place])


def _load(packing: Load, users: float, inputs: float, outputs: float, servers: int) -> Load:
    return replace(
        packing,
        concurrency=float(users),
        input_tokens=float(inputs),
        output_tokens=float(outputs),
        max_requests=1 << 30,
        replicas=int(servers),
    )


def packing_key(
    packing: EngineDefaults, *, ranks: int, tokens_per_step: Tokens, draft_tokens: int = 0, servers: int = 1
) -> Load:
    """Return the scheduler settings that decide the steps of a load.

    They are equal for machines that share `StepHistograms`. `max_num_seqs` is left out: a sweep skips loads that exceed
    it. `tokens_per_step` is the gain of speculative decoding, `draft_tokens` the length of its chain.
    """
    return user_load(packing, users=1, input_tokens=1, output_tokens=1, ranks=ranks, tokens_per_step=tokens_per_step,
                     draft_tokens=draft_tokens, max_requests=1, replicas=servers)  # fmt: skip


def step_histograms_of(
    users: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, packing: Load, *, runs: KnownRuns | None = None
) -> StepHistograms:
    """Return the matrices of some loads; `users` are those of all replicas.

    Examples
    --------
    >>> from glmplan.catalog.engines.defaults import engine_defaults
    >>> packing = packing_key(engine_defaults("vllm"), ranks=1, tokens_per_step=1.0)
    >>> mixes = step_histograms_of(np.array([4]), np.array([1000]), np.array([100]), packing)
    >>> steps = mixes.table.values(np.ones(len(mixes.table.points.decode_requests)))
    >>> mixes.matrices["tpot"].shape[0], len(steps) == mixes.matrices["tpot"].shape[1]
    (1, True)
    """
    split = split_users(users, int(packing.replicas))
    users, servers = split.users.astype(float), split.replicas
    inputs, outputs = inputs[split.load], outputs[split.load]
    kinds = _together if len(users) >= _TOGETHER and _alike(packing) else _one_by_one
    nodes, weights, fronts, tokens = kinds(packing, users, inputs, outputs, servers, runs or KnownRuns())
    rows, columns, shares, table = _corners(*nodes.values())
    spread = sparse.csr_array((shares, (rows, columns)), shape=(len(nodes["prefill_tokens"]), len(table.minus)))
    matrices = {name: weight @ spread for name, weight in weights.items()}
    sizes, of_sizes = _sizes(nodes, weights)
    looked_at = _looked_at(users * (inputs + outputs), inputs)
    few = np.flatnonzero(users <= packing.ranks) if packing.ranks > 1 else np.zeros(0, dtype=np.int64)
    table, each = _with_steps(table, nodes, weights, few, busy=users[few])
    table, checks = _with_steps(table, nodes, weights, looked_at, busy=np.full(len(looked_at), np.inf))
    return StepHistograms(
        users,
        inputs,
        outputs,
        servers,
        split.load,
        table,
        matrices,
        fronts,
        tokens,
        packing,
        looked_at,
        checks,
        few,
        each,
        matrices,
        sizes,
        of_sizes,
        of_sizes,
    )


def _sizes(
    nodes: dict[str, np.ndarray], weights: dict[str, sparse.csr_array]
) -> tuple[StepPoints, dict[str, sparse.csr_array]]:
    """Return the distinct step sizes, and each load's weights over them."""
    both = nodes["decode_requests"], nodes["prefill_tokens"]
    first, places = distinct_rows(*both)
    requests, prompt = (column[first] for column in both)
    points = StepPoints(requests, np.where(requests > 0, _CENTRE, 0.0), prompt, np.where(prompt > 0, _CENTRE, 0.0))
    ones = (np.ones(len(places)), places, np.arange(len(places) + 1))
    spread = sparse.csr_array(ones, shape=(len(places), len(first)))
    return points, {name: weight @ spread for name, weight in weights.items()}


def _alike(packing: Load) -> bool:
    """Return True if only the batch settings decide the schedule.

    The batch simulation then applies.
    """
    plain = Load(
        packing.concurrency, packing.input_tokens, packing.output_tokens, budget=packing.budget,
        prefill_first=packing.prefill_first, whole_prompts=packing.whole_prompts, late=packing.late,
        tokens_per_step=packing.tokens_per_step, draft_tokens=packing.draft_tokens,
        max_requests=packing.max_requests, reserve=packing.reserve,
        replicas=packing.replicas, ranks=packing.ranks,
    )  # fmt: skip
    return packing == plain


def _together(
    packing: Load, users: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, servers: np.ndarray, runs: KnownRuns
) -> _Kinds:
    """Return the kinds of step of many loads from one batch of schedules.

    They equal `metrics_of` of each.
    """
    ranks = packing.ranks
    # users of a data-parallel rank, and number of ranks with that many
    together = np.maximum(np.rint(users / ranks), 1.0).astype(np.int64)
    times = users / together if ranks > 1 else np.ones(len(users))
    requests = np.clip(4 * together, 8, MOST_REQUESTS)
    first, places = distinct_rows(together, inputs, outputs, times)
    mix = runs.of(
        *(column[first].astype(np.int64) for column in (together, inputs, outputs)),
        budget=max(packing.budget // ranks, 1), prefill_first=packing.prefill_first,
        whole_prompts=packing.whole_prompts, late=packing.late, tokens_per_step=round(packing.tokens_per_step, 2),
        draft_tokens=packing.draft_tokens,
    )  # fmt: skip
    nodes = {name: getattr(mix, name) for name in NODES}
    for name in ("decode_requests", "prefill_tokens"):
        nodes[name] = nodes[name] * times[first][mix.run]
    ends = np.searchsorted(mix.run, np.arange(len(first) + 1))
    weights = {}
    for name, values in (("ttft", mix.ttft), ("tpot", mix.tpot), ("output_rate", mix.counted)):
        rows = sparse.csr_array((values, np.arange(len(values)), ends), shape=(len(first), len(values)))
        weights[name] = rows[places]
    fronts = {"ttft": np.ones(len(users)), "tpot": np.zeros(len(users)), "output_rate": requests / together}
    return nodes, weights, fronts, (requests * outputs * servers).astype(float) * times


def _one_by_one(
    packing: Load, users: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, servers: np.ndarray, _runs: KnownRuns
) -> _Kinds:
    """Return the kinds of step of loads from the schedule of each."""
    seen = [metrics_of(_load(packing, *row)) for row in zip(users, inputs, outputs, servers, strict=True)]
    sizes = np.array([len(load.arrivals) for load in seen])
    nodes = {name: np.concatenate([getattr(load, name) for load in seen]) for name in NODES}
    weights, fronts = {}, {}
    for name in FIGURES:
        weights[name], fronts[name] = _weights(seen, sizes, name)
    return nodes, weights, fronts, np.array([load.figures["output_rate"].scale for load in seen])


def _looked_at(work: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Return the loads whose steps are all timed.

    Quantiles of the work, and the longest input.
    """
    order = np.argsort(work, kind="stable")
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    return np.unique([int(np.argmax(inputs)), *(int(order[round(share * (len(order) - 1))]) for share in shares)])


def _with_steps(
    table: StepTable, nodes: dict[str, np.ndarray], weights: dict[str, sparse.csr_array], loads: np.ndarray, *,
    busy: np.ndarray,
) -> tuple[StepTable, dict[str, sparse.csr_array]]:  # fmt: skip
    """Append all steps of some loads to the table.

    Return it with the weights of these loads. `busy`: Number of busy data-parallel ranks of each load.
    """
    picked = {name: matrix[loads] for name, matrix in weights.items()}
    used = np.unique(np.concatenate([matrix.indices for matrix in picked.values()]))
    first, shape = table.count, (len(loads), table.count + len(used))
    ranks, steps = np.full(len(used), np.inf), {}
    for name, matrix in picked.items():
        places = np.searchsorted(used, matrix.indices)
        ranks[places] = np.repeat(busy, np.diff(matrix.indptr))
        steps[name] = (matrix.data, first + places, matrix.indptr)
    columns = {name: np.concatenate([getattr(table.points, name), nodes[name][used]]) for name in nodes}
    ranks = np.concatenate([np.broadcast_to(table.points.busy_ranks, first), ranks])
    points = StepPoints(**columns, busy_ranks=ranks)
    return StepTable(points, table.minus), {name: sparse.csr_array(csr, shape=shape) for name, csr in steps.items()}


def _weights(seen: list[LoadMetrics], sizes: np.ndarray, name: str) -> tuple[sparse.csr_array, np.ndarray]:
    """Return a metric's weights, and its front-end passes.

    Weights are (loads, nodes), passes (loads,).
    """
    pairs = zip(seen, sizes, strict=True)
    parts = [load.figures[name].weights if name in load.figures else np.zeros(count) for load, count in pairs]
    ends = np.concatenate([[0], np.cumsum(sizes)])
    values = np.concatenate(parts)
    # the last node of each load is the front end
    fronts = values[ends[1:] - 1].copy()
    values[ends[1:] - 1] = 0.0
    return sparse.csr_array((values, np.arange(len(values)), ends), shape=(len(seen), len(values))), fronts


def _grid(values: np.ndarray, per_octave: int, every: int) -> np.ndarray:
    """Return a grid over positive values.

    All integers up to `every`, then equal ratios.
    """
    most = max(float(values.max(initial=1.0)), every + 1.0)
    count = int(np.ceil(np.log2(most / every) * per_octave)) + 1
    fine = np.arange(1.0, every)
    return np.concatenate([fine, every * 2.0 ** (np.arange(count + 1) / per_octave)])


def _cells(values: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the grid point below each value, and the fraction to the next."""
    low = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
    share = np.clip((values - grid[low]) / (grid[low + 1] - grid[low]), 0.0, None)
    return low, share


def _corners(
    requests: np.ndarray, context: np.ndarray, prompt: np.ndarray, keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, StepTable]:
    """Return each step as a sum of grid steps, and the table.

    A sum has node, entry of the table and share. t = A(requests, prompt) at a central context + D(requests, context) +
    P(prompt, keys), where D and P are zero at the centre: decode and prefill attention are separate kernels. Steps
    without decode or without prefill are levels of their own and are not interpolated.
    """
    grids = (
        np.concatenate([[0.0], _grid(requests, _REQUESTS, _ALL_REQUESTS)]),
        _grid(context, _CONTEXTS, 16),
        np.concatenate([[0.0], _grid(prompt, _PROMPT, 16)]),
        _grid(keys, _KEYS, 16),
    )
    node, size = np.arange(len(requests)), max(len(grid) for grid in grids) + 2
    place = [_level(requests, grids[0]), _cells(context, grids[1]), _level(prompt, grids[2]), _cells(keys, grids[3])]
    decodes, prompts = requests > 0, prompt > 0
    rows, entries, shares = [], [], []
    for part, (one, other), where in (
        (0, (0, 2), np.ones(len(node), dtype=bool)), (1, (0, 1), decodes), (2, (2, 3), prompts)
    ):  # fmt: skip
        (low, up), (left, right) = place[one], place[other]
        for i in (0, 1):
            for j in (0, 1):
                share = (up if i else 1.0 - up) * (right if j else 1.0 - right)
                used = where & (share != 0.0)
                rows.append(node[used])
                entries.append((part * size + (low + i)[used]) * size + (left + j)[used])
                shares.append(share[used])
    codes = np.concatenate(entries)
    there = np.zeros(3 * size * size, dtype=bool)
    there[codes] = True
    wanted, columns = np.flatnonzero(there), (np.cumsum(there) - 1)[codes]
    table = _table(np.stack([wanted // size**2, wanted // size % size, wanted % size], axis=1), grids)
    return np.concatenate(rows), columns, np.concatenate(shares), table


def _level(values: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return `_cells`, with zero as a level of its own."""
    low, share = _cells(values, grid[1:])
    return np.where(values > 0, low + 1, 0), np.where(values > 0, share, 0.0)


def _table(wanted: np.ndarray, grids: tuple[np.ndarray, ...]) -> StepTable:
    """Return the table of the wanted grid cells.

    Part (A, D, P) and indices on its two axes.
    """
    part, i, j = wanted.T
    requests = np.where(part < 2, grids[0][np.minimum(i, len(grids[0]) - 1)], 0.0)
    context = np.where(part == 1, grids[1][np.minimum(j, len(grids[1]) - 1)], _CENTRE)
    place = np.where(part == 2, i, j)
    prompt = np.where(part == 1, 0.0, grids[2][np.minimum(place, len(grids[2]) - 1)])
    keys = np.where(part == 2, grids[3][np.minimum(j, len(grids[3]) - 1)], _CENTRE)
    # D and P subtract the same step at the centre
    off, minus = np.unique(np.stack([requests, prompt], axis=1)[part > 0], axis=0, return_inverse=True)
    taken = np.full(len(part), -1)
    taken[part > 0] = len(part) + minus.ravel()
    columns = [np.concatenate([requests, off[:, 0]]), np.concatenate([context, np.full(len(off), _CENTRE)]),
               np.concatenate([prompt, off[:, 1]]), np.concatenate([keys, np.full(len(off), _CENTRE)])]  # fmt: skip
    columns[1] = np.where(columns[0] > 0, columns[1], 0.0)
    columns[3] = np.where(columns[2] > 0, columns[3], 0.0)
    return StepTable(StepPoints(*columns), taken)


#: interpolation error above which loads are predicted one by one [-]
TOLERANCE = 0.001
#: number of loads below which a table takes longer than predicting them one by one
_FEW = 8
_ENDS = ("", "_low", "_high")


@dataclass(frozen=True, slots=True)
class Columns:
    """Predicted metrics of many loads on one deployment."""

    #: ``ttft``, ``tpot`` [s] and ``output_rate`` [token/s], ``_low`` and ``_high`` of the 90 % interval, or NaN
    figures: dict[str, np.ndarray]
    #: evidence level and its text
    knowledge: str
    basis: str
    #: True if no step was interpolated
    exact: bool
    #: largest interpolation error on the checked loads
    error: Ratio


def columns_of(deployment: Deployment, mixes: StepHistograms, *, exact: bool = False) -> Columns:
    """Return `glmplan.predict` of many loads, within `TOLERANCE`.

    They are equal with `exact`. A few loads are checked; if the table errs more, all are predicted one by one.
    """
    rows = _of_rows(deployment, mixes, exact=exact)
    rates = {name: values for name, values in rows.figures.items() if name.startswith("output_rate")}
    times = {name: values for name, values in rows.figures.items() if name not in rates}
    return replace(rows, figures=added(mixes.of, rates, times, rates["output_rate"]))


def _of_rows(deployment: Deployment, mixes: StepHistograms, *, exact: bool) -> Columns:
    """Return the metrics of every row."""
    # rates of the table lack the front end, which matters most for outputs of one token
    one_by_one = exact or mixes.of[-1] < _FEW
    if not one_by_one and runs_on_accelerators(deployment) and not (mixes.outputs == 1).any():
        columns = _tabulated(deployment, step_model_of(deployment), mixes)
        if columns.error <= TOLERANCE:
            return columns
    return exact_columns(deployment, [mixes.load(row) for row in range(len(mixes.users))])


def _tabulated(deployment: Deployment, model: StepModel, mixes: StepHistograms) -> Columns:
    seconds, front = _seconds(deployment, model, mixes)
    steps, [least] = _step_seconds(deployment, model, mixes, seconds), least_of([deployment], [mixes.table.points])
    bounds = StepSeconds(least, least, np.zeros(1))
    known = evidence_of_points(
        deployment, mixes.users, mixes.inputs, mixes.outputs, fit=load_effects(deployment.engine)
    )
    waiting = waiting_share(mixes.users)
    figures: dict[str, np.ndarray] = {}
    for name in FIGURES:
        total, bound = mixes.figure(name, steps), mixes.figure(name, bounds)
        total = total + mixes.fronts[name] * front
        if name == "ttft":
            total = total * np.exp(waiting * known.ttft_scale)
            # waiting of prompts for each other is modelled and has no lower bound
            bound = np.where(waiting == 0.0, bound, 0.0)
        low, high = known.ends[INTERVAL_KINDS[name]]
        times = [np.maximum(seconds, bound) for seconds in (total, total * np.exp(low), total * np.exp(high))]
        if name == "output_rate":
            times = [mixes.tokens / seconds for seconds in (times[0], times[2], times[1])]
        figures |= {name + end: np.where(total > 0, values, np.nan) for end, values in zip(_ENDS, times, strict=True)}
    return Columns(figures, known.knowledge, known.basis, exact=False, error=mixes.error(steps))


def _seconds(deployment: Deployment, model: StepModel, mixes: StepHistograms) -> tuple[np.ndarray, np.ndarray]:
    """Return the times of all steps, and each load's front-end time.

    The front-end time is that of one request.
    """
    points = mixes.table.points
    lengths, places = np.unique(mixes.inputs, return_inverse=True)
    # the front end differs for prompts short enough for a CUDA graph: one call for each group
    short = lengths <= deployment.graph_tokens
    front, seconds = np.empty(len(lengths)), np.empty(0)
    for here in (short, ~short):
        if not here.any():
            continue
        steps = points if not len(seconds) else StepPoints(*[np.empty(0)] * 4)
        timed = _timed(model, steps, lengths[here].astype(float))
        front[here] = timed.seconds[len(timed.seconds) - int(here.sum()) :]
        if not len(seconds):
            count = len(points.decode_requests)
            seconds = timed.seconds[:count]
    return seconds, front[places] + np.where(mixes.users <= 1.0, wake_seconds(deployment), 0.0)


def _step_seconds(deployment: Deployment, model: StepModel, mixes: StepHistograms, seconds: np.ndarray) -> StepSeconds:
    """Return step times; shared and routed experts overlap separately."""
    separated, hidden = without_hiding(model), np.zeros(len(mixes.sizes.decode_requests))
    if separated is None:
        return StepSeconds(seconds, seconds, hidden)
    level, tokens = separated
    some = np.flatnonzero(may_hide(deployment, mixes.sizes, tokens))
    if len(some):
        sizes = StepPoints(*(getattr(mixes.sizes, name)[some] for name in NODES))
        hidden[some] = level.times(sizes).seconds - model.times(sizes).seconds
    return StepSeconds(seconds, level.times(mixes.table.points).seconds, hidden)


def _timed(model: StepModel, points: StepPoints, lengths: np.ndarray) -> StepTime:
    """Return step times, then the front-end time of a request per length."""
    count, zero, one = len(points.decode_requests), np.zeros(len(lengths)), np.ones(len(lengths))
    ranks = np.concatenate([np.broadcast_to(points.busy_ranks, count), np.full(len(lengths), np.inf)])
    both = StepPoints(**{name: np.concatenate([getattr(points, name), zero]) for name in NODES}, busy_ranks=ranks)
    none = np.zeros(count)
    front = FrontPoints(np.concatenate([none, one]), np.concatenate([none, lengths]), float(lengths[0]))
    return model.times(both, front)


def exact_columns(deployment: Deployment, loads: list[Load], *, timed: bool = True) -> Columns:
    """Predict loads one by one.

    Without `timed` prompts, rates are bounds that cannot be compared: only TPOT is returned.
    """
    predictions = predict_many([(deployment, load, None) for load in loads])
    names = [name for name in FIGURES if timed or "tpot" in name]
    missing = {name + end: np.full(len(loads), np.nan) for name in FIGURES for end in _ENDS}
    figures = missing | {
        name + end: np.array([_value(prediction, name, end) for prediction in predictions])
        for name in names
        for end in _ENDS
    }
    return Columns(figures, predictions[0].knowledge, predictions[0].basis, exact=True, error=0.0)


def _value(prediction: Prediction, name: str, end: str) -> float:
    metric = prediction.figures.get(name)
    if metric is None:
        return float("nan")
    value: float = getattr(metric, end[1:] or "value")
    return value
