"""Simulate a service under traffic, and count as it goes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glmplan.catalog.tables import chosen_table, frame_of, frame_of_columns
from glmplan.errors import SpecError
from glmplan.simulation.engine.settings import AS_STEPS_SAY, EngineSettings, FirstTokens, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.statistics import (
    Distribution,
    Meter,
    RecordWriter,
    RequestRows,
    interrupts_held,
    record_columns,
)
from glmplan.simulation.traffic.request import apart
from glmplan.simulation.traffic.slo import Target
from glmplan.simulation.traffic.sources import request_source
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import Ratio, Seconds, SecondsArray, Tokens, whole_number

if TYPE_CHECKING:
    import pandas as pd

    from glmplan.simulation.engine.cluster import Cluster
    from glmplan.simulation.traffic.spec import Traffic

__all__ = [
    "FLUSH",
    "LARGEST",
    "LEFT",
    "MOST_REQUESTS",
    "Outcome",
    "Served",
    "Service",
    "SimulationOptions",
    "alone_on_server",
    "aside",
    "lateness",
    "pieces",
    "shifted",
    "simulate",
    "travel",
]


# The simulated service: step times, KV pool and settings.


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """A simulated service: step times, KV pool and settings of the engine."""

    table: StepTable  # time of a step
    pool: KvPool  # KV pool of each replica
    settings: EngineSettings  # scheduler, limits, replicas
    #: time between the arrival of a request and its arrival at the engine; see `glmplan.simulation.simulate.travel`,
    #: [s]
    front_end: float = 0.0
    #: delay of a request that arrives at an idle engine; it does not advance the engine's clock, [s]
    cold_start: float = 0.0
    first: FirstTokens = AS_STEPS_SAY  # how much later first tokens come than their steps say
    #: takes a number of data-parallel ranks and returns the time of a step of one of these if no other has work;
    #: without it every step takes as long as if all ranks had as much to do
    spread: Callable[[int], StepTable] | None = None
    #: returns the time of a step with as many requests as the settings allow, where `table` holds fewer; it is asked
    #: for where more users come than `table` holds requests, or it is not known how many
    whole: Callable[[], StepTable] | None = None

    def __post_init__(self) -> None:
        at_once = -(-self.settings.max_num_seqs // self.settings.pipeline_stages)
        if at_once > self.table.max_requests and self.whole is None:
            raise SpecError(
                f"exceeds the {self.table.max_requests} requests of the step table",
                field="max_num_seqs",
                value=self.settings.max_num_seqs,
            )

    def scaled(self, factor: Ratio) -> Service:
        """The same service with every step slower or faster.

        The times of the front end and of a cold start follow: a quantile of TTFT is relative to all its parts.
        """
        spread = self.spread
        if spread is not None:
            spread = cache(lambda ranks, of=spread: of(ranks).scaled(factor))
        whole = self.whole
        if whole is not None:
            whole = cache(lambda of=whole: of().scaled(factor))
        front_end, cold_start = factor * self.front_end, factor * self.cold_start
        table = self.table.scaled(factor)
        return replace(self, table=table, spread=spread, whole=whole, front_end=front_end, cold_start=cold_start)

    def with_room(self, room: Ratio, traffic: Traffic, *, least: Tokens = 0.0) -> Service:
        """Return the service with a larger or smaller KV pool.

        - `least`: Tokens that it holds at least; a block in any case.
        - Returns: The service with the other pool. A smaller pool has fewer slots of equal context, not
          shorter ones.
        """
        pool, settings = self.pool, self.settings
        found = replace(pool, tokens=max(int(pool.tokens * room), int(least), pool.block_size))
        if settings.admission == "slot" and found.tokens < pool.tokens:
            each = pool.tokens // settings.max_num_seqs
            if traffic.plain and not (traffic.lengths or traffic.input_cv or traffic.output_cv):
                # in whole blocks: what a slot holds is padded to them
                blocks = math.ceil((traffic.input + traffic.output) / pool.block_size)
                each = min(each, blocks * pool.block_size)
            slots = max(min(settings.max_num_seqs, found.tokens // max(each, 1)), 1)
            settings = replace(settings, max_num_seqs=slots)
        return replace(self, pool=found, settings=settings)

    def under(self, traffic: Traffic) -> Service:
        """The service with the times of steps of as many requests as may run."""
        users = traffic.users
        if self.whole is None or (users is not None and users <= self.table.max_requests):
            return self
        return replace(self, table=self.whole(), whole=None)


# Latencies beside the clock of the engines: front end, cold start, late first tokens.

#: of a time that is written as two others' difference [s]
_AT_ONCE = 1e-9


def travel(front_end: Seconds, traffic: Traffic) -> Seconds:
    """When an engine sees a request after it was sent.

    Notes
    -----
    The time of the front end passes before. For closed-loop clients without think time it is counted aside, and the
    engine sees their requests during the step that follows the answer: `closed_loop_mix` counts so, and the times of
    steps and of the front end were fitted with it.
    """
    return apart(front_end) if _in_step(traffic) else front_end


def aside(service: Service, traffic: Traffic, counted: int) -> Seconds:
    """Return the front-end time between the requests of a user."""
    front_end = service.front_end
    beside = front_end - travel(front_end, traffic) + (service.cold_start if alone_on_server(service, traffic) else 0.0)
    return beside * max(counted / (traffic.users or 1) - 1.0, 0.0)


def lateness(service: Service, traffic: Traffic, records: dict[str, np.ndarray]) -> SecondsArray | Seconds:
    """Return the delay of first tokens after their steps on the clock.

    - `records`: Columns of finished requests with the time of the front end in them, times in [s].
    - Returns: The delay of each request; 0 without a fitted effect.

    Notes
    -----
    A request that arrives at an idle engine waits for its cold start. The factor on TTFT was fitted to closed-loop
    clients without think time, against the steps that `closed_loop_mix` counts for clients in step with each other;
    it holds for such clients only. For other traffic the simulation knows each arrival and the requests before it.
    """
    if not len(records["first"]):
        return 0.0
    waits, scale = records["first"] - records["arrival"], service.first.times
    if _in_step(traffic):
        scale *= service.first.later(float(traffic.users or 1), service.settings.replicas)
    later: np.ndarray = (scale - 1.0) * waits
    cold_start = service.first.times * service.cold_start
    if _in_step(traffic):
        return later + cold_start if alone_on_server(service, traffic) else later
    if not cold_start:
        return later
    # a replica at work begins with a prompt as a step ends, an idle one as it comes
    idle = records["started"] - (records["arrival"] + service.front_end) <= _AT_ONCE
    return later + np.where(idle, cold_start, 0.0)


def _in_step(traffic: Traffic) -> bool:
    """Return True for a closed loop without think time."""
    return traffic.kind == "closed" and not traffic.think


def alone_on_server(service: Service, traffic: Traffic) -> bool:
    """Return True if every user has a server, as predictions count it."""
    servers = service.settings.replicas // service.first.ranks
    return _in_step(traffic) and (traffic.users or 1) <= max(servers, 1)


def shifted(records: dict[str, np.ndarray], late: SecondsArray | Seconds) -> dict[str, np.ndarray]:
    """Records with first tokens, and so ends, as late as users see them.

    - `records`: Columns of finished requests, times in [s].
    - Returns: The columns, times in [s].
    """
    if not np.any(late):
        return records
    return {**records, "first": records["first"] + late, "finish": records["finish"] + late}


# One replication, piece by piece: what has finished is handed out from time to time.

#: requests that are handed out together, and if they are watched, [-]
FLUSH, _FEW = 4096, 32
#: under which name of `rejected` those are counted whose clients left
LEFT = "left"


@dataclass(frozen=True, slots=True, eq=False)
class SimulationOptions:
    """Options of a simulation beside its traffic and number of requests."""

    replications: int = 1  # independent repetitions for confidence intervals, [-]
    targets: tuple[Target, ...] = ()  # SLO that goodput is counted under
    records: str | Path | None = None  # file for one record of each request of the first replication
    timeline: bool = False  # keep every run of equal steps
    keep: bool = False  # keep the record of each request of the last replication; about 100 bytes a request
    reference: bool = False  # make every step instead of skipping; for tests
    #: called with the number of requests that have finished since the last call
    progress: Callable[[int], None] | None = None
    #: called with the records of a few requests as they finish, and the delay of their first tokens, [s]; an exception
    #: that it raises ends the run
    watch: Callable[[dict[str, np.ndarray], np.ndarray | float], None] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """One piece of a run: finished requests, and runs of equal steps."""

    records: dict[str, np.ndarray]  # columns by name
    #: start [s], steps, seconds of the first [s], growth [s], decoding requests, their contexts [token], prompt tokens,
    #: blocks in use
    segments: np.ndarray
    #: gaps between tokens that are not one step long [s], and how many; a negative number takes back what the runs say
    #: of them, [-]
    stalls: np.ndarray


def pieces(
    service: Service,
    traffic: Traffic,
    requests: int,
    generator: np.random.Generator,
    rejected: dict[str, int],
    options: SimulationOptions | None = None,
) -> Iterator[Served]:
    """Run one replication.

    - `service`: The service, as the traffic finds it (`Service.under`).
    - `rejected`: Takes why requests cannot be served, and how many; those whose clients left under `LEFT`.
    - Yields: Requests that finished since the last piece, also before an interrupt is passed on.
    """
    # the engines are imported where something is simulated: a plan needs none
    from glmplan.simulation.engine.cluster import Cluster
    from glmplan.simulation.engine.engine import SkippingEngine
    from glmplan.simulation.engine.reference import SteppingEngine

    lag = travel(service.front_end, traffic)
    if traffic.patience is not None:  # time of the front end that is counted aside passes for clients too
        waits = max(traffic.patience - (service.front_end - lag), lag + 1e-9)
        traffic = traffic.model_copy(update={"patience": waits})
    options = options or SimulationOptions()
    flush = FLUSH if options.watch is None else _FEW
    engine = SteppingEngine if options.reference else SkippingEngine
    cluster = Cluster(service.table, service.pool, service.settings, engine, service.spread)
    settings = service.settings
    ranks = settings.replicas - settings.prefill_replicas if settings.lockstep > 1 else 1
    source = request_source(traffic, requests, generator, settings.acceptance, lag, ranks)
    finished, stream, more = RequestRows(), cluster.run(source.arrivals, source.after), True
    while more:
        try:
            finished.add(islice(stream, flush))
        except KeyboardInterrupt:
            yield _served(cluster, finished)
            raise
        more = len(finished) == flush
        yield _served(cluster, finished)
    rejected.update(cluster.rejected)
    if cluster.left:
        rejected[LEFT] = cluster.left


def _served(cluster: Cluster, finished: RequestRows) -> Served:
    """Return the finished requests and steps, removed from the engines."""
    from glmplan.simulation.engine.engine import SkippingEngine

    rows: list[float] = []
    gaps: list[float] = []
    for engine in cluster.engines:
        if isinstance(engine, SkippingEngine):
            rows += engine.segments
            gaps += engine.stalls
            engine.segments.clear()
            engine.stalls.clear()
    segments = np.fromiter(rows, float, len(rows)).reshape(-1, 8)
    stalls = np.fromiter(gaps, float, len(gaps)).reshape(-1, 2)
    return Served(finished.take(), segments.T.copy(), stalls.T.copy())


#: seeds have 64 bits [-]
LARGEST = (1 << 64) - 1
#: requests that are simulated at most: an hour of the compiled engine; a trace is replayed whole under any number [-]
MOST_REQUESTS = 200_000_000
#: repetitions: a hundred narrow an interval to a tenth [-]
MOST_REPLICATIONS = 10_000


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Outcome:
    """Outcome of a simulation.

    Parameters
    ----------
    summary : dict
        Statistics by name; with several replications their means.
    intervals : dict
        95 % confidence interval of each statistic over the replications; empty with one.
    rejected : dict
        Reasons for which requests were rejected, and how many.
    times : dict of Distribution
        Distributions of the last replication, [s]
    timeline : ndarray or None
        Runs of equal steps of the last replication, if asked for.
    requests : dict of ndarray or None
        Columns of the finished requests of the last replication, if they were kept; times in [s], lengths in [token]
    interrupted : bool
        True if the run was stopped before its end.
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
        """Return a table of the outcome: ``summary`` or kept ``requests``.

        Returns: Statistics with their intervals, or one row a request; units stand in the names.
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
        from glmplan import outcome_text  # `present` is above this package

        return outcome_text(self)


def simulate(
    service: Service, traffic: Traffic, *, requests: int, seed: int = 0, warmup: int = 0,
    options: SimulationOptions | None = None,
) -> Outcome:  # fmt: skip
    """Simulate a service under traffic.

    Parameters
    ----------
    service : Service
        The service.
    traffic : Traffic
        Its requests.
    requests : int
        Requests of each replication; a trace may hold fewer, [-]
    seed : int, optional
        Seed, [-]; the same seed gives the same bytes.
    warmup : int, optional
        Requests at the start that are not counted, [-]
    options : SimulationOptions, optional
        Replications, SLO, and the data to keep.

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
    >>> from glmplan.simulation.engine.settings import EngineSettings, KvPool
    >>> from glmplan.simulation.engine.step_table import StepTable
    >>> service = Service(StepTable.affine(base=0.01), KvPool(100_000), EngineSettings())
    >>> outcome = simulate(service, Traffic(kind="closed", users=1, input=100, output=11), requests=5)
    >>> round(outcome.summary["tpot_mean_ms"], 6), round(outcome.summary["e2e_mean_ms"], 6)
    (10.0, 110.0)
    """
    options = options or SimulationOptions()
    whole_number(requests, "--requests", most=LARGEST if traffic.kind == "trace" else MOST_REQUESTS)
    whole_number(options.replications, "--replications", most=MOST_REPLICATIONS)
    if traffic.patience is not None and service.settings.prefill_replicas:
        raise SpecError("is not simulated with prefill replicas", field="--patience", value=traffic.patience)
    whole_number(seed, "--seed", least=0, most=LARGEST)
    if whole_number(warmup, "--warmup", least=0) >= requests:
        raise SpecError("must be below the number of requests", field="--warmup", value=warmup)
    started = time.perf_counter()
    run = _Run(service.under(traffic), traffic, warmup, options)
    try:
        for child in np.random.SeedSequence(seed).spawn(options.replications):
            run.replicate(requests, np.random.default_rng(child))
            if run.interrupted:
                break
    finally:
        run.close()
    return run.outcome(time.perf_counter() - started)


class _Run:
    """Statistics of replications, and the records of the last one."""

    def __init__(self, service: Service, traffic: Traffic, warmup: int, options: SimulationOptions) -> None:
        self._service, self._traffic, self._warmup, self._options = service, traffic, warmup, options
        self._summaries: list[dict[str, float]] = []
        self._rejected: dict[str, int] = {}
        self._segments: list[np.ndarray] = []
        self._finished: list[dict[str, np.ndarray]] = []
        self._meter = _meter(service, options.targets, warmup)
        self._writer = RecordWriter(options.records) if options.records is not None else None
        self.interrupted = False

    def replicate(self, requests: int, generator: np.random.Generator) -> None:
        """Run one replication; an interrupt ends it early."""
        service, traffic, options = self._service, self._traffic, self._options
        self._meter = _meter(service, options.targets, self._warmup)
        self._segments.clear()
        self._finished.clear()
        rejected: dict[str, int] = {}
        try:
            for piece in pieces(service, traffic, requests, generator, rejected, options):
                with interrupts_held():
                    self._take(piece)
        except KeyboardInterrupt:
            self.interrupted = True
        self.close()  # records are those of the first replication
        left = rejected.pop(LEFT, 0) if traffic.patience is not None else None
        for reason, count in rejected.items():
            self._rejected[reason] = self._rejected.get(reason, 0) + count
        counted_aside = aside(service, traffic, self._meter.counted)
        caching = service.settings.prefix_caching
        self._summaries.append(self._meter.summary(sum(rejected.values()), caching, counted_aside, left))

    def _take(self, piece: Served) -> None:
        """Count a piece of the run, and keep the data of the options."""
        service, options = self._service, self._options
        if service.front_end:
            piece.records["arrival"] = piece.records["arrival"] - service.front_end
        late = lateness(service, self._traffic, piece.records)
        if options.watch is not None:
            options.watch(piece.records, late)
        self._meter.records(piece.records, late)
        self._meter.segments(piece.segments)
        self._meter.stalls(piece.stalls)
        if self._writer is not None or options.keep:
            rows = shifted(piece.records, late)
            if self._writer is not None:
                self._writer.write(rows)
            if options.keep:
                self._finished.append(rows)
        if options.timeline:
            self._segments.append(piece.segments)
        if options.progress is not None:
            options.progress(len(piece.records["number"]))

    def close(self) -> None:
        """Close the file of records."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def outcome(self, wall_seconds: Seconds) -> Outcome:
        """Return the means over the replications and the data of the last one."""
        summaries, finished = self._summaries, self._finished
        means = {name: float(value) for name, value in summaries[0].items()}
        if len(summaries) > 1:
            means = {name: float(np.mean([summary[name] for summary in summaries])) for name in means}
        for name in ("requests", "rejected", "preemptions", "left"):
            if name in means and len(summaries) == 1:
                means[name] = int(means[name])
        return Outcome(
            means,
            _intervals(summaries),
            self._rejected,
            self._meter.times,
            np.concatenate(self._segments, axis=1) if self._segments else None,
            self.interrupted,
            wall_seconds,
            {name: np.concatenate([rows[name] for rows in finished]) for name in finished[0]} if finished else None,
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
