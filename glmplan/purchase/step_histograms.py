"""The loads of a sweep as matrices over a grid of engine steps, made once for all machines that pack steps alike.

What a load measures is a weighted sum of step times (`glmplan.prediction.load`), and its kinds of step do not
depend on the machine. A step time is tabulated on a grid of decoding requests, their context, prompt tokens and the
keys that these see; so a figure of a load is one row of a sparse matrix, the same for every machine, times the column
of that machine's tabulated steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from glmplan.catalog.engines.defaults import EngineDefaults
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
from glmplan.simulation.engine.settings import waiting_share
from glmplan.units import Ratio, SecondsArray, Tokens

__all__ = [
    "FIGURES",
    "NODES",
    "TOLERANCE",
    "Columns",
    "Mixes",
    "StepSeconds",
    "StepTable",
    "columns_of",
    "exact_columns",
    "mixes_of",
    "packing_key",
]


#: figures whose weights are kept, and how a rate among them is scaled
FIGURES: tuple[str, ...] = ("ttft", "tpot", "output_rate")
#: steps of the grid in an octave: of requests from 16 on, of contexts, of prompt tokens, of keys
_REQUESTS, _CONTEXTS, _PROMPT, _KEYS = 8, 3, 4, 3
_ALL_REQUESTS = 16
#: loads from which on their schedules are run together, because one after the other they would take longer [-]
_TOGETHER = 64
#: what a kind of step holds
NODES = ("decode_requests", "decode_context", "prefill_tokens", "prefill_context")
#: what each kind of step holds; figure → its steps of each kind; figure → passes through the front end; output tokens
_Kinds = tuple[dict[str, np.ndarray], dict[str, sparse.csr_array], dict[str, np.ndarray], np.ndarray]
#: where the parts of a step are joined [token]
_CENTRE = 4096.0


@dataclass(frozen=True, slots=True)
class StepTable:
    """The steps that have to be timed for a machine.

    Attributes
    ----------
    points : StepPoints
        Steps: those of the table, then those that are taken off, then those of loads of which every step is timed.
    minus : (k,) array of int
        For each entry of the table the step that is taken off it; -1 where none is, [-]
    """

    points: StepPoints
    minus: np.ndarray

    @property
    def count(self) -> int:
        """Steps, [-]"""
        return len(self.points.decode_requests)

    def values(self, seconds: SecondsArray) -> SecondsArray:
        """The column that the matrices of `Mixes` are multiplied with."""
        first = seconds[: len(self.minus)]
        return np.where(self.minus >= 0, first - seconds[np.maximum(self.minus, 0)], first)


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Times of the steps of `Mixes` on one machine.

    Attributes
    ----------
    seconds : (n,) array
        Of the points of the table, [s]
    level : (n,) array
        The same without what short steps hide, which begins at one number of tokens and no table can hold, [s]
    hidden : (u,) array
        What each of `Mixes.sizes` hides, [s]
    """

    seconds: np.ndarray
    level: np.ndarray
    hidden: np.ndarray


@dataclass(frozen=True, slots=True)
class Mixes:
    """Loads as matrices; a load whose users do not divide evenly over its servers is two rows.

    Attributes
    ----------
    users, inputs, outputs : (n,) array
        The rows: users of one server [-], prompt and answer of a request [token]
    servers : (n,) array of int
        Servers over which users are spread, [-]
    of : (n,) array of int
        Load of each row, as `glmplan.prediction.replicas.Split` has it, [-]
    table : StepTable
        Steps to be timed.
    matrices : dict of str to (n, k) sparse array
        Figure of `FIGURES` → steps of each entry of the table, [-]
    fronts : dict of str to (n,) array
        Figure of `FIGURES` → passes through the front end that it counts, [-]
    tokens : (n,) array
        Output tokens that the rate counts, [token]
    packing : Load
        How the engine packs them, as `packing_key` says it.
    looked_at : (m,) array of int
        Loads of which every step is timed, to say how far the table is off, [-]
    checks : dict of str to (m, n) sparse array
        Their steps among the points of the table.
    few : (q,) array of int
        Loads whose users have a data-parallel rank each, and take steps of their own: of these every step is timed, [-]
    each : dict of str to (q, n) sparse array
        Their steps among the points of the table, with the ranks that are busy.
    all_rows : dict of str to sparse array
        `matrices` before some loads were left out.
    sizes : StepPoints
        Decoding requests and prompt tokens of all steps, each pair once.
    of_sizes, all_sizes : dict of str to sparse array
        As `matrices` and `all_rows`, of `sizes`.
    """

    users: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    servers: np.ndarray
    of: np.ndarray
    table: StepTable
    matrices: dict[str, sparse.csr_array]
    fronts: dict[str, np.ndarray]
    tokens: np.ndarray
    packing: Load
    looked_at: np.ndarray
    checks: dict[str, sparse.csr_array]
    few: np.ndarray
    each: dict[str, sparse.csr_array]
    all_rows: dict[str, sparse.csr_array]
    sizes: StepPoints
    of_sizes: dict[str, sparse.csr_array]
    all_sizes: dict[str, sparse.csr_array]

    def figure(self, name: str, times: StepSeconds) -> SecondsArray:
        """A figure of every load but for its passes through the front end."""
        found = self.matrices[name] @ self.table.values(times.level)
        if times.hidden.any():
            found -= self.of_sizes[name] @ times.hidden
        if len(self.few):
            each = self.each[name]
            found[self.few] = each @ times.seconds[: each.shape[1]]
        result: np.ndarray = found
        return result

    def error(self, times: StepSeconds) -> Ratio:
        """How far sums over the table are from sums over the steps themselves.

        Returns: Largest difference of a figure of the loads that are looked at.
        """
        column, worst = self.table.values(times.level), 0.0
        for name in FIGURES:
            itself = self.checks[name] @ times.seconds
            read = self.all_rows[name][self.looked_at] @ column - self.all_sizes[name][self.looked_at] @ times.hidden
            known = itself > 0
            worst = max(worst, float(np.abs(read[known] / itself[known] - 1.0).max(initial=0.0)))
        return worst

    def at(self, places: np.ndarray) -> Mixes:
        """Some of the loads."""
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
        """One of the rows.

        Returns: As `predict` would build it where nobody waits for the cache pool or for a place in the engine.
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


def packing_key(packing: EngineDefaults, *, ranks: int, tokens_per_step: Tokens, servers: int = 1) -> Load:
    """What machines must have in common for their loads to be the same kinds of step.

    - `tokens_per_step`: Tokens that a request gains in a step.
    - Returns: Equal for machines that pack alike; places are left out, because a load that needs more is none of a
      sweep's.
    """
    return user_load(packing, users=1, input_tokens=1, output_tokens=1, ranks=ranks, tokens_per_step=tokens_per_step,
                     max_requests=1, replicas=servers)  # fmt: skip


def mixes_of(
    users: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, packing: Load, *, runs: KnownRuns | None = None
) -> Mixes:
    """Write loads as matrices.

    - `users`, `inputs`, `outputs`: The loads: users of all servers [-], prompt and answer of a request [token].
    - `packing`: How the engine packs them, as `packing_key` says it.

    Examples
    --------
    >>> from glmplan.catalog.engines.defaults import engine_defaults
    >>> packing = packing_key(engine_defaults("vllm"), ranks=1, tokens_per_step=1.0)
    >>> mixes = mixes_of(np.array([4]), np.array([1000]), np.array([100]), packing)
    >>> steps = mixes.table.values(np.ones(len(mixes.table.points.decode_requests)))
    >>> mixes.matrices["tpot"].shape[0], len(steps) == mixes.matrices["tpot"].shape[1]
    (1, True)
    """
    split = split_users(users, packing.replicas)
    users, servers = split.users.astype(float), split.replicas
    inputs, outputs = inputs[split.load], outputs[split.load]
    kinds = _together if len(users) >= _TOGETHER and _alike(packing) else _one_by_one
    nodes, weights, fronts, tokens = kinds(packing, users, inputs, outputs, servers, runs or KnownRuns())
    rows, columns, shares, table = _corners(*nodes.values())
    spread = sparse.csr_array((shares, (rows, columns)), shape=(len(nodes["prefill_tokens"]), len(table.minus)))
    matrices = {name: one @ spread for name, one in weights.items()}
    sizes, of_sizes = _sizes(nodes, weights)
    looked_at = _looked_at(users * (inputs + outputs), inputs)
    few = np.flatnonzero(users <= packing.ranks) if packing.ranks > 1 else np.zeros(0, dtype=np.int64)
    table, each = _with_steps(table, nodes, weights, few, busy=users[few])
    table, checks = _with_steps(table, nodes, weights, looked_at, busy=np.full(len(looked_at), np.inf))
    return Mixes(
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
    """Sizes of steps, each once, and how often each load has them."""
    both = nodes["decode_requests"], nodes["prefill_tokens"]
    first, places = distinct_rows(*both)
    requests, prompt = (one[first] for one in both)
    points = StepPoints(requests, np.where(requests > 0, _CENTRE, 0.0), prompt, np.where(prompt > 0, _CENTRE, 0.0))
    ones = (np.ones(len(places)), places, np.arange(len(places) + 1))
    spread = sparse.csr_array(ones, shape=(len(places), len(first)))
    return points, {name: one @ spread for name, one in weights.items()}


def _alike(packing: Load) -> bool:
    """Whether nothing but packing decides the schedule: no pool, no waiting for company, prompts of one length."""
    plain = Load(
        "serving", packing.concurrency, packing.input_tokens, packing.output_tokens, budget=packing.budget,
        prefill_first=packing.prefill_first, whole_prompts=packing.whole_prompts, late=packing.late,
        tokens_per_step=packing.tokens_per_step, max_requests=packing.max_requests, reserve=packing.reserve,
        replicas=packing.replicas, ranks=packing.ranks,
    )  # fmt: skip
    return packing == plain


def _together(
    packing: Load, users: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, servers: np.ndarray, runs: KnownRuns
) -> _Kinds:
    """The kinds of step of many loads as columns: what `metrics_of` says of each."""
    ranks = packing.ranks
    # of a data-parallel rank, and on how many at once
    together = np.maximum(np.rint(users / ranks), 1.0).astype(np.int64)
    times = users / together if ranks > 1 else np.ones(len(users))
    requests = np.clip(4 * together, 8, MOST_REQUESTS)
    # loads that servers of a service share are asked for once
    first, places = distinct_rows(together, inputs, outputs, times)
    mix = runs.of(
        *(one[first].astype(np.int64) for one in (together, inputs, outputs)),
        budget=max(packing.budget // ranks, 1), prefill_first=packing.prefill_first,
        whole_prompts=packing.whole_prompts, late=packing.late, tokens_per_step=round(packing.tokens_per_step, 2),
    )  # fmt: skip
    nodes = {name: getattr(mix, name) for name in NODES}
    for name in ("decode_requests", "prefill_tokens"):
        nodes[name] = nodes[name] * times[first][mix.run]
    ends = np.searchsorted(mix.run, np.arange(len(first) + 1))
    weights = {}
    for name, values in (("ttft", mix.ttft), ("tpot", mix.tpot), ("output_rate", mix.wall)):
        rows = sparse.csr_array((values, np.arange(len(values)), ends), shape=(len(first), len(values)))
        weights[name] = rows[places]
    fronts = {"ttft": np.ones(len(users)), "tpot": np.zeros(len(users)), "output_rate": requests / together}
    return nodes, weights, fronts, (requests * outputs * servers).astype(float) * times


def _one_by_one(
    packing: Load, users: np.ndarray, inputs: np.ndarray, outputs: np.ndarray, servers: np.ndarray, _runs: KnownRuns
) -> _Kinds:
    seen = [metrics_of(_load(packing, *one)) for one in zip(users, inputs, outputs, servers, strict=True)]
    sizes = np.array([len(one.arrivals) for one in seen])
    nodes = {name: np.concatenate([getattr(one, name) for one in seen]) for name in NODES}
    weights, fronts = {}, {}
    for name in FIGURES:
        weights[name], fronts[name] = _weights(seen, sizes, name)
    return nodes, weights, fronts, np.array([one.figures["output_rate"].scale for one in seen])


def _looked_at(work: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Loads of which every step is timed: the corners, and some between them."""
    order = np.argsort(work, kind="stable")
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    return np.unique([int(np.argmax(inputs)), *(int(order[round(share * (len(order) - 1))]) for share in shares)])


def _with_steps(
    table: StepTable, nodes: dict[str, np.ndarray], weights: dict[str, sparse.csr_array], loads: np.ndarray, *,
    busy: np.ndarray,
) -> tuple[StepTable, dict[str, sparse.csr_array]]:  # fmt: skip
    """The table with the steps of some loads behind it, on as many ranks, and what these loads make of them."""
    picked = {name: one[loads] for name, one in weights.items()}
    used = np.unique(np.concatenate([one.indices for one in picked.values()]))
    first, shape = table.count, (len(loads), table.count + len(used))
    ranks, steps = np.full(len(used), np.inf), {}
    for name, one in picked.items():
        places = np.searchsorted(used, one.indices)
        ranks[places] = np.repeat(busy, np.diff(one.indptr))
        steps[name] = (one.data, first + places, one.indptr)
    columns = {name: np.concatenate([getattr(table.points, name), nodes[name][used]]) for name in nodes}
    ranks = np.concatenate([np.broadcast_to(table.points.busy_ranks, first), ranks])
    points = StepPoints(**columns, busy_ranks=ranks)
    return StepTable(points, table.minus), {name: sparse.csr_array(one, shape=shape) for name, one in steps.items()}


def _weights(seen: list[LoadMetrics], sizes: np.ndarray, name: str) -> tuple[sparse.csr_array, np.ndarray]:
    """Steps of each kind that a figure counts, (loads, nodes), and passes through the front end, (loads,)."""
    parts = [
        one.figures[name].weights if name in one.figures else np.zeros(n) for one, n in zip(seen, sizes, strict=True)
    ]
    ends = np.concatenate([[0], np.cumsum(sizes)])
    values = np.concatenate(parts)
    # the last node of each load is the front end, which stands outside of steps
    fronts = values[ends[1:] - 1].copy()
    values[ends[1:] - 1] = 0.0
    return sparse.csr_array((values, np.arange(len(values)), ends), shape=(len(seen), len(values))), fronts


def _grid(values: np.ndarray, per_octave: int, every: int) -> np.ndarray:
    """A grid over positive values: all whole numbers up to `every`, then equal steps in logarithms."""
    most = max(float(values.max(initial=1.0)), every + 1.0)
    count = int(np.ceil(np.log2(most / every) * per_octave)) + 1
    fine = np.arange(1.0, every)
    return np.concatenate([fine, every * 2.0 ** (np.arange(count + 1) / per_octave)])


def _cells(values: np.ndarray, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The grid point below each value, and how far it lies towards the next."""
    low = np.clip(np.searchsorted(grid, values, side="right") - 1, 0, len(grid) - 2)
    share = np.clip((values - grid[low]) / (grid[low + 1] - grid[low]), 0.0, None)
    return low, share


def _corners(
    requests: np.ndarray, context: np.ndarray, prompt: np.ndarray, keys: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, StepTable]:
    """Each step as a sum of steps of the grid: node, entry of the table, share; and the table.

    A step is A(requests, prompt) at a central context + D(requests, context) + P(prompt, keys), the latter two less
    their value at the centre: attention of decoding requests and of prompts are kernels of their own. Nothing decoding,
    or no prompt, is a level of its own and not the end of a cell.
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
    """As `_cells`, but zero is a level of its own."""
    low, share = _cells(values, grid[1:])
    return np.where(values > 0, low + 1, 0), np.where(values > 0, share, 0.0)


def _table(wanted: np.ndarray, grids: tuple[np.ndarray, ...]) -> StepTable:
    part, one, other = wanted.T
    requests = np.where(part < 2, grids[0][np.minimum(one, len(grids[0]) - 1)], 0.0)
    context = np.where(part == 1, grids[1][np.minimum(other, len(grids[1]) - 1)], _CENTRE)
    place = np.where(part == 2, one, other)
    prompt = np.where(part == 1, 0.0, grids[2][np.minimum(place, len(grids[2]) - 1)])
    keys = np.where(part == 2, grids[3][np.minimum(other, len(grids[3]) - 1)], _CENTRE)
    # what is taken off: the same step at the centre
    off, minus = np.unique(np.stack([requests, prompt], axis=1)[part > 0], axis=0, return_inverse=True)
    taken = np.full(len(part), -1)
    taken[part > 0] = len(part) + minus.ravel()
    columns = [np.concatenate([requests, off[:, 0]]), np.concatenate([context, np.full(len(off), _CENTRE)]),
               np.concatenate([prompt, off[:, 1]]), np.concatenate([keys, np.full(len(off), _CENTRE)])]  # fmt: skip
    columns[1] = np.where(columns[0] > 0, columns[1], 0.0)
    columns[3] = np.where(columns[2] > 0, columns[3], 0.0)
    return StepTable(StepPoints(*columns), taken)


# Figures of many loads on one deployment, with their intervals, from matrices that all machines share.

#: how far tables may be from the step time itself before they are not used [-]
TOLERANCE = 0.001
#: loads of one deployment that are computed one by one, which takes no longer than a table for them [-]
_FEW = 8
_ENDS = ("", "_low", "_high")


@dataclass(frozen=True, slots=True)
class Columns:
    """Figures of loads.

    Attributes
    ----------
    figures : dict of str to (n,) array
        ``ttft``, ``tpot`` [s] and ``output_rate`` [token/s], each with ``_low`` and ``_high`` of its 90 % interval; NaN
        where there is none
    knowledge, basis : str
        What they rest on.
    exact : bool
        Whether every step was timed, instead of read from a table.
    error : float
        Largest difference between table and step time on the loads that were looked at, [-]
    """

    figures: dict[str, np.ndarray]
    knowledge: str
    basis: str
    exact: bool
    error: float


def columns_of(deployment: Deployment, mixes: Mixes, *, exact: bool = False) -> Columns:
    """Predict many loads on one deployment.

    - `exact`: Time every step instead of reading a table.
    - Returns: What `glmplan.predict` says of each load: of few loads itself, of more within `TOLERANCE`. Some of
      these are computed one by one, and where the table is farther off, all are.
    """
    found = _of_rows(deployment, mixes, exact=exact)
    rates = {name: one for name, one in found.figures.items() if name.startswith("output_rate")}
    times = {name: one for name, one in found.figures.items() if name not in rates}
    return replace(found, figures=added(mixes.of, rates, times, rates["output_rate"]))


def _of_rows(deployment: Deployment, mixes: Mixes, *, exact: bool) -> Columns:
    """Figures of every row of loads, of which each server has a whole number of users."""
    # the table leaves the front end out of rates, which answers of one token wait for most
    alone = exact or mixes.of[-1] < _FEW
    if alone or not runs_on_accelerators(deployment) or (mixes.outputs == 1).any():
        return exact_columns(deployment, [mixes.load(place) for place in range(len(mixes.users))])
    found = _tabulated(deployment, step_model_of(deployment), mixes)
    if found.error > TOLERANCE:
        return exact_columns(deployment, [mixes.load(place) for place in range(len(mixes.users))])
    return found


def _tabulated(deployment: Deployment, model: StepModel, mixes: Mixes) -> Columns:
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
            # how long prompts wait for each other is a model and no bound
            bound = np.where(waiting == 0.0, bound, 0.0)
        low, high = known.ends[INTERVAL_KINDS[name]]
        times = [np.maximum(one, bound) for one in (total, total * np.exp(low), total * np.exp(high))]
        if name == "output_rate":
            times = [mixes.tokens / one for one in (times[0], times[2], times[1])]
        figures |= {name + end: np.where(total > 0, one, np.nan) for end, one in zip(_ENDS, times, strict=True)}
    return Columns(figures, known.knowledge, known.basis, exact=False, error=mixes.error(steps))


def _seconds(deployment: Deployment, model: StepModel, mixes: Mixes) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the steps of the table, and of the front end of one request of each load."""
    points = mixes.table.points
    lengths, places = np.unique(mixes.inputs, return_inverse=True)
    # graphs hold the pass of a short prompt, and of no other: two calls only where there are both
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


def _step_seconds(deployment: Deployment, model: StepModel, mixes: Mixes, seconds: np.ndarray) -> StepSeconds:
    """Times of steps, those that hide shared experts beside the routed ones apart."""
    found, hidden = without_hiding(model), np.zeros(len(mixes.sizes.decode_requests))
    if found is None:
        return StepSeconds(seconds, seconds, hidden)
    level, tokens = found
    some = np.flatnonzero(may_hide(deployment, mixes.sizes, tokens))
    if len(some):
        sizes = StepPoints(*(getattr(mixes.sizes, name)[some] for name in NODES))
        hidden[some] = level.times(sizes).seconds - model.times(sizes).seconds
    return StepSeconds(seconds, level.times(mixes.table.points).seconds, hidden)


def _timed(model: StepModel, points: StepPoints, lengths: np.ndarray) -> StepTime:
    """Steps, and behind them the front end of one request of each length."""
    count, zero, one = len(points.decode_requests), np.zeros(len(lengths)), np.ones(len(lengths))
    ranks = np.concatenate([np.broadcast_to(points.busy_ranks, count), np.full(len(lengths), np.inf)])
    both = StepPoints(**{name: np.concatenate([getattr(points, name), zero]) for name in NODES}, busy_ranks=ranks)
    none = np.zeros(count)
    front = FrontPoints(np.concatenate([none, one]), np.concatenate([none, lengths]), float(lengths[0]))
    return model.times(both, front)


def exact_columns(deployment: Deployment, loads: list[Load], *, timed: bool = True) -> Columns:
    """Predict loads one by one.

    `timed`: Whether prompts can be timed. Without prompts between the answers a rate is a bound, which no other
      machine may be compared with: all but the time per token is left out.
    """
    found = predict_many([(deployment, load, None) for load in loads])
    names = [name for name in FIGURES if timed or "tpot" in name]
    lacking = {name + end: np.full(len(loads), np.nan) for name in FIGURES for end in _ENDS}
    figures = lacking | {
        name + end: np.array([_figure(one, name, end) for one in found]) for name in names for end in _ENDS
    }
    return Columns(figures, found[0].knowledge, found[0].basis, exact=True, error=0.0)


def _figure(found: Prediction, name: str, end: str) -> float:
    one = found.figures.get(name)
    if one is None:
        return float("nan")
    value: float = getattr(one, end[1:] or "value")
    return value
