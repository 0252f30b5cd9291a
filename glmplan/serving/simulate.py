"""Simulate a service under traffic, and count as it goes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glmplan.errors import SpecError
from glmplan.facts.tables import chosen_table, frame_of, frame_of_columns
from glmplan.serving.front_end import aside, lateness, shifted
from glmplan.serving.outcome_text import outcome_text
from glmplan.serving.pieces import FLUSH, LEFT, pieces
from glmplan.serving.request_records import RecordWriter, record_columns
from glmplan.serving.service import Service
from glmplan.serving.statistics import Distribution, Meter
from glmplan.serving.traffic.promises import Target
from glmplan.serving.traffic.spec import Traffic
from glmplan.units import whole_number

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LARGEST", "MOST_REQUESTS", "Outcome", "simulate"]

#: seeds have 64 bits [-]
LARGEST = (1 << 64) - 1
#: requests that are simulated at most: minutes of the plain loop; a trace is replayed whole under any number [-]
MOST_REQUESTS = 200_000_000
#: repetitions: a hundred narrow an interval to a tenth [-]
MOST_REPLICATIONS = 10_000

#: requests that are handed out at once while somebody watches [-]
_FEW = 32


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Outcome:
    """What a simulation found.

    Parameters
    ----------
    summary : dict
        Statistics by name; with several replications their means.
    intervals : dict
        95 % confidence interval of each statistic over the replications; empty with one.
    rejected : dict
        Reasons for which requests were turned away, and how many.
    times : dict of Distribution
        Distributions of the last replication, [s]
    timeline : ndarray or None
        Runs of equal steps of the last replication, if asked for.
    requests : dict of ndarray or None
        Columns of the finished requests of the last replication, if they were kept; times in [s], lengths in [token]
    interrupted : bool
        Whether the run was stopped before its end.
    wall_seconds : float
        Time the simulation itself took, [s]
    """

    summary: dict[str, float]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    rejected: dict[str, int] = field(default_factory=dict)
    times: dict[str, Distribution] = field(default_factory=dict)
    timeline: np.ndarray | None = None
    interrupted: bool = False
    wall_seconds: float = 0.0
    requests: dict[str, np.ndarray] | None = None

    def to_frame(self, table: str = "summary") -> pd.DataFrame:
        """A table of the outcome: ``summary`` (one row a statistic), or ``requests`` where they were kept.

        Parameters
        ----------
        table : str, optional
            Which.

        Returns
        -------
        pandas.DataFrame
            Statistics with their intervals, or one row a request; units stand in the names.

        Raises
        ------
        SpecError
            If there is no such table.
        """
        tables: dict[str, Callable[[], pd.DataFrame]] = {"summary": lambda: frame_of(self._summary_rows())}
        if self.requests is not None:
            columns = record_columns(self.requests)
            tables["requests"] = lambda: frame_of_columns(columns)
        return chosen_table(table, tables)()

    def _summary_rows(self) -> list[dict[str, object]]:
        ends = self.intervals
        return [
            {"statistic": name, "value": value, "low": ends.get(name, (None,))[0], "high": ends.get(name, (None,))[-1]}
            for name, value in self.summary.items()
        ]

    def __repr__(self) -> str:
        found = self.summary
        return (
            f"<Outcome of {found['requests']:,.0f} requests: TTFT {found['ttft_mean_ms']:,.1f} ms, "
            f"TPOT {found['tpot_mean_ms']:,.2f} ms, {found['output_tokens_per_s']:,.1f} output tokens/s>"
        )

    def __str__(self) -> str:
        return outcome_text(self.summary, intervals=self.intervals, rejected=self.rejected)


def simulate(
    service: Service,
    traffic: Traffic,
    *,
    requests: int,
    seed: int = 0,
    replications: int = 1,
    targets: tuple[Target, ...] = (),
    warmup: int = 0,
    records: str | Path | None = None,
    timeline: bool = False,
    keep: bool = False,
    fast: bool | None = None,
    reference: bool = False,
    progress: Callable[[int], None] | None = None,
    watch: Callable[[dict[str, np.ndarray], np.ndarray | float], None] | None = None,
) -> Outcome:
    """Simulate a service under traffic.

    Parameters
    ----------
    service : Service
        What serves.
    traffic : Traffic
        What arrives.
    requests : int
        Requests of each replication; a trace may hold fewer, [-]
    seed : int, optional
        Seed, [-]; the same seed gives the same bytes.
    replications : int, optional
        Independent repetitions for confidence intervals, [-]
    targets : tuple of Target, optional
        Promise that goodput is counted under.
    warmup : int, optional
        Requests at the start that are not counted, [-]
    records : path, optional
        File for one record of each request of the first replication.
    timeline : bool, optional
        Whether to keep every run of equal steps.
    keep : bool, optional
        Whether to keep the record of each request of the last replication; about 100 bytes a request.
    fast : bool, optional
        Whether to compile the plain loop; by default where it pays and numba is installed.
    reference : bool, optional
        Whether to make every step instead of skipping; for tests.
    progress : callable, optional
        Called with the number of requests that have finished since the last call.
    watch : callable, optional
        Called with the records of a few requests as they finish, and what their first tokens come later by, [s]; what
        it raises ends the run. Other random numbers are drawn than without it.

    Returns
    -------
    Outcome
        Statistics.

    Raises
    ------
    SpecError
        If an argument is out of range, a trace is empty or records cannot be written.

    Notes
    -----
    Not modelled: time on the network between client and server, tokenisation, failures, readers who stop an answer
    midway (to the engine that is a shorter answer).

    Examples
    --------
    >>> from glmplan.serving.engine.settings import EngineSettings, KvPool
    >>> from glmplan.serving.engine.step_table import StepTable
    >>> service = Service(StepTable.affine(base=0.01), KvPool(100_000), EngineSettings())
    >>> outcome = simulate(service, Traffic(kind="closed", users=1, input=100, output=11), requests=5)
    >>> round(outcome.summary["tpot_mean_ms"], 6), round(outcome.summary["e2e_mean_ms"], 6)
    (10.0, 110.0)
    """
    whole_number(requests, "--requests", most=LARGEST if traffic.kind == "trace" else MOST_REQUESTS)
    whole_number(replications, "--replications", most=MOST_REPLICATIONS)
    if traffic.patience is not None and service.settings.prefill_replicas:
        raise SpecError("is not simulated with prefill replicas", field="--patience", value=traffic.patience)
    whole_number(seed, "--seed", least=0, most=LARGEST)
    if whole_number(warmup, "--warmup", least=0) >= requests:
        raise SpecError("must be below the number of requests", field="--warmup", value=warmup)
    started = time.perf_counter()
    service = service.under(traffic)
    settings = service.settings
    summaries: list[dict[str, float]] = []
    rejected: dict[str, int] = {}
    interrupted = False
    meter = _meter(service, targets, warmup)
    kept: list[np.ndarray] = []
    finished: list[dict[str, np.ndarray]] = []
    writer = RecordWriter(records) if records is not None else None
    try:
        for child in np.random.SeedSequence(seed).spawn(replications):
            meter, counts = _meter(service, targets, warmup), dict[str, int]()
            kept.clear()
            finished.clear()
            try:
                flush = _FEW if watch is not None else FLUSH
                generator = np.random.default_rng(child)
                for piece in pieces(
                    service, traffic, requests, generator, counts, fast=fast, reference=reference, flush=flush
                ):
                    if service.front_end:
                        piece.records["arrival"] = piece.records["arrival"] - service.front_end
                    late = lateness(service, traffic, piece.records)
                    if watch is not None:
                        watch(piece.records, late)
                    meter.records(piece.records, late)
                    meter.segments(piece.segments)
                    meter.stalls(piece.stalls)
                    if writer is not None or keep:
                        rows = shifted(piece.records, late)
                    if writer is not None:
                        writer.write(rows)
                    if keep:
                        finished.append(rows)
                    if timeline:
                        kept.append(piece.segments)
                    if progress is not None:
                        progress(len(piece.records["number"]))
            except KeyboardInterrupt:
                interrupted = True
            if writer is not None:
                writer.close()
                writer = None
            left = counts.pop(LEFT, 0) if traffic.patience is not None else None
            for reason, count in counts.items():
                rejected[reason] = rejected.get(reason, 0) + count
            beside = aside(service, traffic, meter.counted)
            summaries.append(meter.summary(sum(counts.values()), settings.prefix_caching, beside, left))
            if interrupted:
                break
    finally:
        if writer is not None:
            writer.close()
    means = {name: float(value) for name, value in summaries[0].items()}
    if len(summaries) > 1:
        means = {name: float(np.mean([s[name] for s in summaries])) for name in means}
    for name in ("requests", "rejected", "preemptions", "left"):
        if name in means and len(summaries) == 1:
            means[name] = int(means[name])
    return Outcome(
        means,
        _intervals(summaries),
        rejected,
        meter.times,
        np.concatenate(kept, axis=1) if kept else None,
        interrupted,
        time.perf_counter() - started,
        {name: np.concatenate([one[name] for one in finished]) for name in finished[0]} if finished else None,
    )


def _meter(service: Service, targets: tuple[Target, ...], warmup: int) -> Meter:
    settings, pool = service.settings, service.pool
    accepted = settings.acceptance.mean if settings.acceptance else 1.0
    tokens = pool.blocks * pool.block_size * settings.replicas
    return Meter(targets, tokens, pool.block_size, settings.replicas, accepted, warmup)


def _intervals(summaries: list[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """Student's 95 % interval of each mean."""
    count = len(summaries)
    if count < 2:
        return {}
    from scipy.special import stdtrit

    width = float(stdtrit(count - 1, 0.975)) / math.sqrt(count)
    intervals = {}
    for name in summaries[0]:
        values = np.array([s[name] for s in summaries])
        half = width * float(values.std(ddof=1))
        intervals[name] = (float(values.mean()) - half, float(values.mean()) + half)
    return intervals
