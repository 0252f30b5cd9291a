"""Return measured runs as one table of kinds of step with their work.

Every metric is a sum over steps. Metrics faster than the accelerator's data sheet allows are refused: their row cannot
be what it states.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from glmplan.costs.blocks.stack import routed_blocks
from glmplan.costs.step.model import BOUND, FrontPoints, Perfect
from glmplan.costs.step.work import SLOTS, step_work
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.runs.columns import COMPARED, FITTED, compared_figures
from glmplan.io.runs.ledger import repeats
from glmplan.io.runs.record import Run
from glmplan.prediction.effects import LEVELS, keys_of
from glmplan.prediction.from_row import RunCase, question_of, why_unknown
from glmplan.prediction.load import LoadMetrics, metrics_of
from glmplan.prediction.step_models import step_tables
from glmplan.units import Ratio, Seconds, SecondsArray

__all__ = [
    "Design",
    "asked_of",
    "build_design",
    "contradicted_rows",
    "design_of",
    "design_unchecked",
    "domains_of",
    "fastest_seconds",
    "part_of",
    "reasons_impossible",
    "step_milliseconds",
    "sweeps_of",
    "why_impossible",
    "work_table",
]


#: share of the roofline time below which a metric is impossible: unevenly routed tokens use fewer experts [-]
_POSSIBLE = 0.8
#: the same for aggregate rates: the last wave of a run leaves a tenth of the requests out, and like prompts (a
#: benchmark that repeats one) use the same experts [-]
_POSSIBLE_TOGETHER, _POSSIBLE_ROUTED = 0.9, 0.6
#: the same if an estimated KV pool limits the concurrency: nine in ten estimates are below 1.65 times the pool, so at
#: least this share of the requests runs [-]
_POSSIBLE_POOL = 0.6
#: work of the matrix units in a step
_MATRIX: tuple[str, ...] = ("gemm_flop", "expert_flop")
#: this many impossible rows of a table, and this share: the others have the same unstated condition
_SEVERAL, _OFTEN = 3, 1 / 3


def fastest_seconds(case: RunCase, figure: str) -> Seconds | None:
    """Return the minimum time of a metric, per its unit of work.

    All bytes at data-sheet bandwidth, all FLOP at the peak rate. None if the load lacks the metric.
    """
    metrics = metrics_of(case.load)
    total = metrics.figures.get(COMPARED[figure].predicted)
    if total is None:
        return None
    work = step_work(Perfect.of(case.deployment.structure), layout=case.deployment.layout, points=metrics.points)
    seconds = np.sum([work[slot] for slot in BOUND], axis=0)
    return float(total.weights @ seconds) / (total.scale if total.rate else 1.0)


def why_impossible(case: RunCase) -> str:
    """Return the first metric that is too fast and by how much, else empty."""
    if case.deployment.structure.part.is_processor:
        return ""  # a CPU's caches can hold a small model: memory bandwidth is no limit
    accelerator = case.deployment.accelerator.name
    users = case.load.concurrency
    alone = replace(case, load=replace(case.load, concurrency=1.0, requests=4))
    stated = not any("in flight" in word for word in case.assumed)
    routed = bool(routed_blocks(case.deployment.model))
    load = case.load
    full = load.pool_tokens < users * (load.input_tokens + load.output_tokens)
    crowd = min(_POSSIBLE_ROUTED if routed else _POSSIBLE_TOGETHER, _POSSIBLE_POOL if full else 1.0)
    for figure, value in case.run.observed.items():
        if figure not in FITTED or value <= 0:
            continue
        kind = COMPARED[figure]
        measured = 1.0 / value if kind.rate else value * kind.factor
        # queueing in a mean TTFT is a model and no limit: only the prompt counts
        checks = [] if kind.interval == "ttft" or not stated else [(case, crowd, users)]
        checks.append((alone, _POSSIBLE, users if kind.rate and kind.predicted != "user_rate" else 1.0))
        for asked, share, together in checks:
            fastest = fastest_seconds(asked, figure)
            if fastest is None:
                continue
            fastest = fastest if asked is case else fastest / together
            if measured < share * fastest:
                return (
                    f"{figure} {value:g} is {fastest / measured:.1f} times faster than the memory bandwidth and matrix "
                    f"rate of {accelerator} allow with {users:g} requests at once; a cached prompt or a "
                    "lower running_limit must be stated"
                )
    return _first_tokens_too_soon(case)


def _first_tokens_too_soon(case: RunCase) -> str:
    """Return why prompts that come at once are read too soon, else empty.

    The matrix units read one prompt after the other, so that the mean first token of C prompts comes no sooner than
    after (C + 1) / 2 of them. Prompts in the prefix cache come sooner.
    """
    load, value = case.load, case.run.observed.get("ttft_mean_ms")
    requests = (case.run.num_requests or 0) / load.replicas
    at_once = load.phase == "serving" and 0 < requests <= load.concurrency
    if not value or not at_once or load.prefix_cached or load.joins:
        return ""
    alone = metrics_of(replace(load, concurrency=1.0, requests=4))
    total = alone.figures.get(COMPARED["ttft_mean_ms"].predicted)
    if total is None:
        return ""
    work = step_work(Perfect.of(case.deployment.structure), layout=case.deployment.layout, points=alone.points)
    prompt = float(total.weights @ np.sum([work[slot] for slot in _MATRIX], axis=0)) / case.deployment.dp
    waited = (min(load.concurrency, load.max_requests) + 1.0) / 2.0
    times = waited * prompt * 1e3 / value
    if times * _POSSIBLE <= 1.0:
        return ""
    part = case.deployment.accelerator.name
    return (
        f"ttft_mean_ms {value:g} is {times:.1f} times sooner than the matrix rate of {part} "
        f"reads {load.concurrency:g} prompts that come at once; cached prompts must be stated"
    )


def reasons_impossible(cases: Sequence[RunCase]) -> list[str]:
    """Return a reason for each impossible run; empty for possible ones.

    A table of a campaign (a model on an accelerator by one release) with a third of impossible rows was measured under
    an unstated condition, such as cached prompts: its other rows are refused, too.
    """
    reasons = [why_impossible(case) for case in cases]
    tables: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
    for place, case in enumerate(cases):
        run = case.run
        if run.campaign:  # a site's rows are independent
            tables[(run.campaign, run.model, run.accelerator, run.engine, run.engine_version)].append(place)
    for places in tables.values():
        bad = sum(bool(reasons[place]) for place in places)
        if bad >= _SEVERAL and bad >= _OFTEN * len(places):
            for place in places:
                reasons[place] = reasons[place] or (
                    f"{bad} of the {len(places)} rows of its table are faster than the part allows: what made them so "
                    "is not stated, and the others were measured with them"
                )
    return reasons


@dataclass(frozen=True)
class Design:
    """Runs as arrays."""

    cases: tuple[RunCase, ...]
    refused: tuple[tuple[Run, str], ...]  # runs and reasons
    work: np.ndarray  # (nodes, 20): work of each kind of step [s] or [-]
    node_run: np.ndarray  # (nodes,): run of each kind of step
    figure: np.ndarray  # (m,): measured metric
    observation_run: np.ndarray  # (m,)
    log_seconds: np.ndarray  # (m,): log of the measured value, rates as seconds
    entry_node: np.ndarray  # (e,): kind of step of each entry, with `entry_observation` and `entry_weight`
    entry_observation: np.ndarray
    entry_weight: np.ndarray
    entry_first: np.ndarray  # of the weight, the part up to the first token; 0 but for E2E
    waiting: np.ndarray  # (m,): `Load.waiting` for TTFT, else 0
    stays: np.ndarray  # (m,): `Load.waiting` for E2E, else 0
    keys: np.ndarray  # (runs, levels): key number
    key_names: tuple[tuple[str, ...], ...]  # for each level

    @cached_property
    def figure_work(self) -> np.ndarray:
        """Return the work of each observation, (m, 20).

        A step time is a sum over work, and so is a sum of step times.
        """
        return self._summed(self.entry_weight)

    @cached_property
    def first_work(self) -> np.ndarray:
        """Return the work up to the first token of each E2E, (m, 20)."""
        return self._summed(self.entry_first)

    @cached_property
    def fitted(self) -> np.ndarray:
        """Return True for the observations that the step time is fitted to.

        The others are predicted and scored: means and medians say the same of a step as tails, with less noise.
        """
        return np.isin(self.figure, list(FITTED))

    def _summed(self, weight: np.ndarray) -> np.ndarray:
        from scipy.sparse import csr_matrix

        shape = len(self.log_seconds), len(self.work)
        return np.asarray(csr_matrix((weight, (self.entry_observation, self.entry_node)), shape) @ self.work)

    def predicted(self, seconds: SecondsArray) -> SecondsArray:
        """Return each observation as a sum over step times."""
        terms = self.entry_weight * seconds[self.entry_node]
        return np.bincount(self.entry_observation, weights=terms, minlength=len(self.log_seconds))


def work_table(cases: list[RunCase], found: list[LoadMetrics]) -> np.ndarray:
    """Return the work of the step kinds of many runs, in run order."""
    starts = np.concatenate([[0], np.cumsum([len(one.decode_requests) for one in found])])
    table = np.zeros((int(starts[-1]), len(SLOTS)))
    fronts = [
        FrontPoints(one.arrivals, one.prompt, case.load.pass_tokens, one.arrivals * case.load.idle)
        for case, one in zip(cases, found, strict=True)
    ]
    points = [one.points for one in found]
    for members, part in step_tables([one.deployment for one in cases], points, fronts):
        table[np.concatenate([np.arange(starts[m], starts[m + 1]) for m in members])] = part
    return table


def asked_of(runs: Iterable[Run]) -> tuple[list[RunCase], list[tuple[Run, str]]]:
    """Return the runs' cases, and the other runs with reasons."""
    cases: list[RunCase] = []
    refused: list[tuple[Run, str]] = []
    runs = list(runs)
    again = repeats(runs)
    contradicted = contradicted_rows(run for run in runs if run.id not in again)
    for run in runs:
        if run.id in again:
            refused.append((run, f"repeats {again[run.id]}"))
            continue
        if run.id in contradicted:
            refused.append((run, contradicted[run.id]))
            continue
        if run.unusable:
            refused.append((run, run.unusable))
            continue
        try:
            case = question_of(run)
            case.deployment.structure.part.rate("bf16")
        except GlmplanError as error:
            refused.append((run, str(error)))
            continue
        if unknown := why_unknown(case):
            refused.append((run, unknown))
            continue
        cases.append(case)
    return cases, refused


def build_design(runs: Iterable[Run]) -> Design:
    """Return runs as arrays; unusable ones with their reason."""
    return design_of(*asked_of(runs))


def design_of(asked: list[RunCase], refused: list[tuple[Run, str]] | None = None) -> Design:
    """Return cases as arrays; those that no accelerator can reach are refused."""
    reasons = reasons_impossible(asked)
    cases = [case for case, reason in zip(asked, reasons, strict=True) if not reason]
    impossible = [(case.run, reason) for case, reason in zip(asked, reasons, strict=True) if reason]
    return design_unchecked(cases, [*(refused or []), *impossible])


def design_unchecked(cases: list[RunCase], refused: list[tuple[Run, str]] | None = None) -> Design:
    """Return cases as arrays without checking physical limits."""
    refused = refused or []
    steps: list[LoadMetrics] = []
    node_run, figure, owner = [], [], []
    target: list[float] = []
    nodes_of, observation_of, weight_of, first_of = [], [], [], []
    start = 0
    for place, case in enumerate(cases):
        metrics = metrics_of(case.load)
        size = len(metrics.decode_requests)
        steps.append(metrics)
        node_run.append(np.full(size, place))
        seen = compared_figures(case.run.observed, tokens_per_step=case.load.tokens_per_step)
        for measured, value in seen:
            total = metrics.figures.get(measured.predicted)
            if total is None:
                continue
            seconds = total.scale / value if measured.rate else value * measured.factor
            used = np.flatnonzero(total.weights)
            nodes_of.append(start + used)
            weight_of.append(total.weights[used])
            first_of.append(np.zeros(len(used)) if total.first is None else total.first[used])
            observation_of.append(np.full(len(used), len(target)))
            figure.append(measured.column)
            owner.append(place)
            target.append(np.log(seconds))
        start += size
    if not target:
        why = [f"{run.id}: {reason}" for run, reason in refused]
        why += [f"{case.run.id}: has no figure that is predicted" for case in cases]
        raise SpecError("no run can be used" + (f"; {why[0]}" if why else ""))
    table = work_table(cases, steps)
    names: list[dict[str, int]] = [{} for _ in LEVELS]
    keys = np.zeros((len(cases), len(LEVELS)), dtype=np.int64)
    for place, case in enumerate(cases):
        for level, key in enumerate(keys_of(case.deployment, measured_on=case.run.measured_on)):
            keys[place, level] = names[level].setdefault(key, len(names[level]))
    waiting = np.array([cases[run].load.waiting for run in owner])
    return Design(
        cases=tuple(cases),
        refused=tuple(refused),
        work=table,
        node_run=np.concatenate(node_run),
        figure=np.array(figure),
        observation_run=np.array(owner),
        log_seconds=np.array(target),
        entry_node=np.concatenate(nodes_of),
        entry_observation=np.concatenate(observation_of),
        entry_weight=np.concatenate(weight_of),
        entry_first=np.concatenate(first_of),
        waiting=waiting * np.char.startswith(figure, "ttft"),
        stays=waiting * np.char.startswith(figure, "e2e"),
        keys=keys,
        key_names=tuple(tuple(one) for one in names),
    )


def part_of(design: Design, runs: np.ndarray, *, fitted: bool = False) -> Design:
    """Return the part of a design that concerns some runs.

    `fitted` leaves out observations that the step time is not fitted to.
    """
    index = np.full(len(design.cases), -1)
    index[runs] = np.arange(len(runs))
    nodes = np.flatnonzero(index[design.node_run] >= 0)
    rows = np.flatnonzero((index[design.observation_run] >= 0) & (design.fitted | (not fitted)))
    node_place, row_place = np.full(len(design.node_run), -1), np.full(len(design.observation_run), -1)
    node_place[nodes], row_place[rows] = np.arange(len(nodes)), np.arange(len(rows))
    entries = np.flatnonzero(row_place[design.entry_observation] >= 0)
    return replace(
        design,
        cases=tuple(design.cases[run] for run in runs),
        work=design.work[nodes],
        node_run=index[design.node_run[nodes]],
        figure=design.figure[rows],
        observation_run=index[design.observation_run[rows]],
        log_seconds=design.log_seconds[rows],
        entry_node=node_place[design.entry_node[entries]],
        entry_observation=row_place[design.entry_observation[entries]],
        entry_weight=design.entry_weight[entries],
        entry_first=design.entry_first[entries],
        waiting=design.waiting[rows],
        stays=design.stays[rows],
        keys=design.keys[runs],
    )


#: fewest concurrencies of a sweep [-]
_FEWEST = 4
_PROTOCOL = "inferencex"


def sweeps_of(cases: Sequence[RunCase]) -> list[list[int]]:
    """Return the runs of each sweep: one build on one day, four concurrencies.

    Runs of a sweep agree in model, accelerator, engine release, weights, layout, speculative decoding and lengths.
    """
    sweeps: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for place, case in enumerate(cases):
        run, d, load = case.run, case.deployment, case.load
        if run.protocol == _PROTOCOL:
            key = (d.model.name, d.accelerator.name, d.engine, d.weights, str(d.layout), load.input_tokens,
                   load.output_tokens, d.draft_tokens, run.engine_version, run.measured_on)  # fmt: skip
            sweeps[key].append(place)
    return [places for places in sweeps.values() if len({cases[one].load.concurrency for one in places}) >= _FEWEST]


#: wording of assumed concurrency and lengths (`glmplan.prediction.from_row`)
_STATED = ("requests in flight", "input tokens", "output tokens")


def domains_of(cases: Iterable[RunCase]) -> dict[str, list[float]]:
    """Return group → measured range of concurrency, read and written tokens.

    0 to infinity if no run states the value. Intervals are widened outside.
    """
    domains: dict[str, list[list[float]]] = {}
    for case in cases:
        load = case.load
        point = [load.concurrency, load.input_tokens + load.context, load.output_tokens]
        # unstated lengths do not bound a range, and a prefill run does not bound answers
        silent = [any(text.endswith(name) for text in case.assumed) for name in _STATED]
        silent[2] |= load.phase == "prefill"
        row = [np.nan if unsaid else one for unsaid, one in zip(silent, point, strict=True)]
        domains.setdefault(keys_of(case.deployment)[LEVELS.index("group")], []).append(row)
    ranges = {}
    for key, points in domains.items():
        table = np.array(points)
        low = np.where(np.isnan(table), np.inf, table).min(axis=0)
        high = np.where(np.isnan(table), -np.inf, table).max(axis=0)
        bounds = np.stack([np.where(low <= high, low, 0.0), np.where(low <= high, high, np.inf)], axis=1)
        ranges[key] = [float(one) for one in bounds.ravel()]
    return ranges


# Find measured rows that contradict the other rows of their own table.
# The test looks at the table alone and never at a prediction: a time per output token cannot fall while the load rises.

#: load over load at which two rows are compared: neighbours of a sweep differ by noise only [-]
_MORE_LOAD = 1.5
#: time per token over the one under more load, above which one of the two rows cannot hold: repetitions of a row differ
#: by 1 to 2 % in the median (`glmplan.prediction.effects.SITE_NOISE`) [-]
_FALLS = 1.25
#: share of contradicting rows above which the whole table is set aside: which of its rows are wrong is not known
_OFTEN = 1 / 3


@dataclass(frozen=True, slots=True)
class _Point:
    """Row of a table with its load and time per output token."""

    run: Run
    users: float  # requests in flight
    milliseconds: float  # per output token


def step_milliseconds(run: Run) -> float | None:
    """Return the time per output token of a row [ms]; None if it has none.

    Examples
    --------
    >>> step_milliseconds(Run("a", "glm-5", "h200-sxm", observed={"output_tokens_per_s_per_request": 50.0}))
    20.0
    """
    seen = run.observed
    for name in ("tpot_mean_ms", "tpot_p50_ms"):
        if seen.get(name, 0.0) > 0.0:
            return seen[name]
    if seen.get("output_tokens_per_s_per_request", 0.0) > 0.0:
        return 1e3 / seen["output_tokens_per_s_per_request"]
    if run.phase == "decode" and seen.get("output_tokens_per_s", 0.0) > 0.0 and run.concurrency:
        return 1e3 * run.concurrency / seen["output_tokens_per_s"]
    return None


def contradicted_rows(runs: Iterable[Run]) -> dict[str, str]:
    """Return id → reason of rows that contradict their table.

    A table is one server under the same requests at several loads: equal in all that a row states but concurrency,
    number of requests and acceptance length. The row with more contradictions is removed. If a third of a
    table goes, all of it does.

    Examples
    --------
    >>> def row(name, users, tpot):
    ...     return Run(name, "glm-5", "h200-sxm", campaign="c", phase="serving", concurrency=users,
    ...                observed={"tpot_mean_ms": tpot})
    >>> contradicted_rows([row("a", 4.0, 10.0), row("b", 8.0, 12.0), row("c", 16.0, 64.0), row("d", 32.0, 22.0)])
    {'c': 'contradicts its table: 64.0 ms per token at 16 requests in flight, 22.0 ms at 32'}
    """
    tables: dict[tuple[object, ...], list[_Point]] = defaultdict(list)
    for run in runs:
        milliseconds = None if run.unusable or run.error else step_milliseconds(run)
        if milliseconds and run.concurrency and run.campaign and run.phase in ("serving", "decode"):
            tables[_table_of(run)].append(_Point(run, run.concurrency, milliseconds))
    reasons: dict[str, str] = {}
    for points in tables.values():
        reasons |= _reasons_of(points)
    return reasons


def _table_of(run: Run) -> tuple[object, ...]:
    """Return what rows of one table have in common."""
    drafts = run.speculation
    return (
        run.campaign, run.measured_on, run.model, run.checkpoint, run.weights, run.kv_cache, run.accelerator,
        run.accelerator_count, run.host, run.tp, run.pp, run.dp, run.ep, run.dcp, run.engine, run.engine_version,
        run.attention_backend, run.moe_backend, run.graphs, drafts.state, drafts.draft_tokens, run.phase, run.protocol,
        run.scenario, run.running_limit, run.max_num_batched_tokens, run.request_rate_per_s, run.input_tokens,
        run.output_tokens, run.context_depth, run.shared_prompt, run.power_limit_w,
    )  # fmt: skip


def _reasons_of(points: Sequence[_Point]) -> dict[str, str]:
    """Return id → reason of the contradicting rows of one table."""
    kept, gone = list(points), []
    while pairs := _contradictions(kept):
        count: dict[str, int] = defaultdict(int)
        for less, more in pairs:
            count[less.run.id] += 1
            count[more.run.id] += 1
        # of two rows that contradict each other once, the slower one: no disturbance makes a step faster
        worst = max(kept, key=lambda point: (count[point.run.id], point.milliseconds))
        less, more = next(pair for pair in pairs if worst in pair)
        gone.append((worst, _text(less, more)))
        kept.remove(worst)
    if gone and len(gone) >= _OFTEN * len(points):
        gone += [(point, f"{len(gone)} of the {len(points)} rows of its table contradict the others") for point in kept]
    return {point.run.id: reason for point, reason in gone}


def _contradictions(points: Sequence[_Point]) -> list[tuple[_Point, _Point]]:
    """Return the pairs of rows with more load and less time per token."""
    return [
        (less, more)
        for less in points
        for more in points
        if more.users >= _MORE_LOAD * less.users and _fall(less, more) > _FALLS
    ]


def _fall(less: _Point, more: _Point) -> Ratio:
    return less.milliseconds / more.milliseconds


def _text(less: _Point, more: _Point) -> str:
    return (
        f"contradicts its table: {less.milliseconds:.1f} ms per token at {less.users:g} requests in flight, "
        f"{more.milliseconds:.1f} ms at {more.users:g}"
    )
