"""Find measured rows that contradict the other rows of their own table.

The test looks at the table alone and never at a prediction: a time per output token cannot fall while the load rises.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from glmplan.io.runs.record import Run
from glmplan.units import Ratio

__all__ = ["contradicted_rows", "step_milliseconds"]

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
