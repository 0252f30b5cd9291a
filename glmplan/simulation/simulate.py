"""Simulate a service under traffic, and count as it goes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from glmplan.catalog.tables import chosen_table, frame_of, frame_of_columns
from glmplan.errors import SpecError
from glmplan.simulation.engine.cluster import Cluster
from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.few import FewRequests
from glmplan.simulation.engine.few_first import BlocksRunOut
from glmplan.simulation.engine.plain import PlainRun, Served, compiled
from glmplan.simulation.engine.reference import SteppingEngine
from glmplan.simulation.engine.settings import AS_STEPS_SAY, EngineSettings, FirstTokens, KvPool
from glmplan.simulation.engine.step_table import StepTable
from glmplan.simulation.statistics import Distribution, Meter, RecordWriter, RequestRows, outcome_text, record_columns
from glmplan.simulation.traffic.request import Request, apart
from glmplan.simulation.traffic.slo import Target
from glmplan.simulation.traffic.sources import CHUNK, Chunk, Source, request_chunks, request_source
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import Ratio, Seconds, SecondsArray, Tokens, whole_number

if TYPE_CHECKING:
    import pandas as pd

    from glmplan.simulation.traffic.spec import Traffic

__all__ = [
    "FLUSH",
    "LARGEST",
    "LEFT",
    "MOST_REQUESTS",
    "FewRanks",
    "Outcome",
    "Service",
    "aside",
    "lateness",
    "pieces",
    "shifted",
    "simulate",
    "travel",
]


# What is simulated: the step times, the room and the settings of a server.


@dataclass(frozen=True, slots=True, eq=False)
class FewRanks:
    """Step times of a server some of whose data-parallel ranks have no requests.

    Parameters
    ----------
    ranks : int
        Data-parallel ranks of a server, [-]
    table : callable
        Takes how many of them have requests and returns the time of a step of one of these.
    """

    ranks: int
    table: Callable[[float], StepTable]


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """What is simulated: step times, room for keys and values, and the engine's settings.

    Parameters
    ----------
    table : StepTable
        Time of a step.
    pool : KvPool
        Room on each replica.
    settings : EngineSettings
        Scheduler, limits, replicas.
    front_end : float, optional
        Time between the arrival of a request and its arrival at the engine; see `glmplan.simulation.simulate.travel`,
        [s]
    wake : float, optional
        What a request waits longer for that finds nobody there; the engine's clock does not, [s]
    first : FirstTokens, optional
        How much later first tokens come than their steps say.
    few : FewRanks, optional
        Step times where users are fewer than data-parallel ranks.
    whole : callable, optional
        Returns the time of a step with as many requests as the settings allow, where `table` holds fewer; it is asked
        for where more users come than `table` holds requests, or it is not known how many.
    """

    table: StepTable
    pool: KvPool
    settings: EngineSettings
    front_end: float = 0.0
    wake: float = 0.0
    first: FirstTokens = AS_STEPS_SAY
    few: FewRanks | None = None
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
        """The same service with every step slower or faster."""
        few = self.few
        if few is not None:
            few = FewRanks(few.ranks, lambda busy, of=few.table: of(busy).scaled(factor))  # type: ignore[misc]
        whole = self.whole
        if whole is not None:
            whole = cache(lambda of=whole: of().scaled(factor))
        return replace(self, table=self.table.scaled(factor), few=few, whole=whole)

    def with_room(self, room: Ratio, traffic: Traffic, *, least: Tokens = 0.0) -> Service:
        """The same service with more or less room for keys and values.

        - `least`: Tokens that it holds at least; a block in any case.
        - Returns: With the other pool. Slots of equal context are told so that they hold a request: where there is
          less room they are fewer, not shorter.
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
        """The service as traffic finds it.

        Returns: With the step times of as many data-parallel ranks as there are users, where these are fewer, and of
          as many requests as may run at once.

        Notes
        -----
        Every step is that of ranks with as much to do each: of arrivals without a bound all ranks are taken as busy.
        """
        users = traffic.users
        if self.few is not None and users is not None:
            busy = users / min(self.settings.replicas / self.few.ranks, users)
            if busy < self.few.ranks:
                return replace(self, table=self.few.table(busy), few=None, whole=None)
        if self.whole is None or (users is not None and users <= self.table.max_requests):
            return self
        return replace(self, table=self.whole(), whole=None)


# What users see beside the clock of the engines: the time of the front end, engines that wake, late first tokens.

#: of a time that is written as two others' difference [s]
_AT_ONCE = 1e-9


def travel(front_end: Seconds, traffic: Traffic) -> Seconds:
    """When an engine sees a request after it was sent.

    Notes
    -----
    The front end takes its time before. Of users who send the next request as soon as they have the last answer this
    time is counted aside, and the engine sees them during the step that follows the answer: so `closed_loop_mix`
    counts, with which the times of steps and of the front end were learnt.
    """
    return apart(front_end) if _in_step(traffic) else front_end


def aside(service: Service, traffic: Traffic, counted: int) -> Seconds:
    """Time of the front end that passed beside the clock, between the requests of a user."""
    front_end = service.front_end
    beside = front_end - travel(front_end, traffic) + (service.wake if _alone(service, traffic) else 0.0)
    return beside * max(counted / (traffic.users or 1) - 1.0, 0.0)


def lateness(service: Service, traffic: Traffic, records: dict[str, np.ndarray]) -> SecondsArray | Seconds:
    """What first tokens come later by than the steps of the engine's clock say.

    - `records`: Columns of finished requests with the time of the front end in them, times in [s].
    - Returns: Of each request; 0 where nothing was learnt.

    Notes
    -----
    Who finds nobody there waits for the engine to wake. How much later first tokens come for so many in flight was
    learnt from users who send the next request with the last answer, against the steps that `closed_loop_mix` counts
    for users in step with each other; it holds for such users only. Of any other traffic the simulation knows who
    comes when and what is in the way.
    """
    if not len(records["first"]):
        return 0.0
    if _in_step(traffic):
        waits, servers = records["first"] - records["arrival"], service.settings.replicas
        later: np.ndarray = (service.first.later(float(traffic.users or 1), servers) - 1.0) * waits
        return later + service.wake if _alone(service, traffic) else later
    if not service.wake:
        return 0.0
    # a replica at work begins with a prompt as a step ends, an idle one as it comes
    idle = records["started"] - (records["arrival"] + service.front_end) <= _AT_ONCE
    return np.where(idle, service.wake, 0.0)


def _in_step(traffic: Traffic) -> bool:
    """Whether users send the next request with the last answer."""
    return traffic.kind == "closed" and not traffic.think


def _alone(service: Service, traffic: Traffic) -> bool:
    """Whether every user has a server of his own, as predictions count it."""
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


# One replication, piece by piece: plain requests by the shortest form that serves them, others by the full engine.

#: requests that are handed out at once, [-]
FLUSH = 4096
#: under which name of `rejected` those are counted whose clients left
LEFT = "left"
_COMPILE_FROM = 400_000  # requests from which compiling the loop pays


def pieces(
    service: Service,
    traffic: Traffic,
    requests: int,
    generator: np.random.Generator,
    rejected: dict[str, int],
    *,
    fast: bool | None = None,
    reference: bool = False,
    flush: int = FLUSH,
) -> Iterator[Served]:
    """Run one replication.

    - `service`: What serves, as the traffic finds it (`Service.under`).
    - `rejected`: Takes why requests cannot be served, and how many; those whose clients left under `LEFT`.
    - `fast`: Whether to compile the plain loop; by default where it pays and numba is installed.
    - `reference`: Whether to make every step instead of skipping.
    - `flush`: Requests that are handed out at once; fewer of them are also drawn at once.
    - Yields: What has finished since the last one, also before an interrupt is passed on.

    Examples
    --------
    >>> from glmplan.simulation.engine.settings import EngineSettings, KvPool
    >>> from glmplan.simulation.engine.step_table import StepTable
    >>> service = Service(StepTable.affine(base=0.01), KvPool(100_000), EngineSettings())
    >>> traffic = Traffic(kind="closed", users=1, input=100, output=11)
    >>> served = pieces(service, traffic, 5, np.random.default_rng(0), {})
    >>> [len(one.records["number"]) for one in served]
    [5]
    """
    lag = travel(service.front_end, traffic)
    plain = traffic.plain and not reference
    few = plain and not fast and requests <= CHUNK and flush == FLUSH
    if few and FewRequests.serves(service.settings, traffic.kind == "closed"):
        drawn, turned_away = generator.bit_generator.state, dict(rejected)
        try:
            yield from _few(service, traffic, requests, generator, rejected, lag)
            return
        except BlocksRunOut:
            # nothing was handed out: the same requests again, in a form that lets them give blocks back
            generator.bit_generator.state = drawn
            rejected.clear()
            rejected.update(turned_away)
    if plain and service.settings.plain:
        if fast is None:
            fast = requests >= _COMPILE_FROM
        if fast and compiled() is None:
            fast = False
        users = _users(traffic, requests, lag)
        run = PlainRun(service.table, service.pool, service.settings, users, fast, lag)
        # the same chunks for both loops: they decide how random numbers are spent
        size = max(CHUNK, 4 * service.settings.max_num_seqs, 4 * len(users) if users is not None else 0)
        if flush < FLUSH:
            size = flush + (len(users) if users is not None else service.settings.max_num_seqs)
        chunks = request_chunks(traffic, requests, generator, size)
        left = requests
        for chunk in chunks:
            left -= len(chunk.input_tokens)
            fits = _fits(service, chunk, rejected)
            yield run.serve(_late(chunk, lag), left > 0, fits)
            if run.tight:
                cluster = Cluster(service.table, service.pool, service.settings)
                first, arrived = run.hand_over(service.table)
                cluster.engines[0] = cluster.decoders[0] = first
                yield from _served(cluster, _rest(run, arrived, chunks, requests - left, traffic, lag), flush)
                for reason, count in cluster.rejected.items():
                    rejected[reason] = rejected.get(reason, 0) + count
                break
        return
    if traffic.patience is not None:  # time of the front end that is counted aside passes for clients too
        waits = max(traffic.patience - (service.front_end - lag), lag + 1e-9)
        traffic = traffic.model_copy(update={"patience": waits})
    engine = SteppingEngine if reference else SkippingEngine
    cluster = Cluster(service.table, service.pool, service.settings, engine)
    source = request_source(traffic, requests, generator, service.settings.acceptance, lag)
    yield from _served(cluster, source, flush)
    rejected.update(cluster.rejected)
    if cluster.left:
        rejected[LEFT] = cluster.left


def _few(
    service: Service,
    traffic: Traffic,
    requests: int,
    generator: np.random.Generator,
    rejected: dict[str, int],
    lag: float,
) -> Iterator[Served]:
    """As many plain requests as are drawn at once."""
    chunk = _late(next(request_chunks(traffic, requests, generator, requests)), lag)
    fits = _fits(service, chunk, rejected)
    users = _users(traffic, requests, lag)
    if service.settings.plain and not _run_over(service, chunk, users):
        # whose loop is shorter still, as long as blocks suffice
        run = PlainRun(service.table, service.pool, service.settings, users, lag=lag)
        served = run.serve(chunk, False, fits)
        if not run.tight:
            yield served
            return
    arrival = chunk.arrival[fits] if chunk.arrival is not None else None
    chunk = Chunk(arrival, chunk.input_tokens[fits], chunk.output_tokens[fits])
    few = FewRequests(service.table, service.pool, service.settings, chunk, users, lag)
    try:
        few.run()
    except KeyboardInterrupt:
        yield few.served(np.flatnonzero(fits))
        raise
    yield few.served(np.flatnonzero(fits))


def _run_over(service: Service, chunk: Chunk, users: np.ndarray | None) -> bool:
    """Whether blocks will be too few, as far as it is seen from when requests come and how long their answers take."""
    inputs, outputs, pool = chunk.input_tokens, chunk.output_tokens, service.pool
    if not len(inputs):
        return False
    most, each = len(inputs), int((inputs + outputs - 2).min()) // pool.block_size + 1
    if users is not None:
        most = len(users)
    elif chunk.arrival is not None:
        few = max(pool.blocks // each // 2, 1)  # steps take about as long as those of half of those who fit
        step = service.table.seconds(decode_requests=few, decode_context=float((inputs + outputs / 2).mean()))
        ends = np.sort(chunk.arrival + (outputs - 1) * step)
        most = int((np.arange(1, len(inputs) + 1) - np.searchsorted(ends, chunk.arrival)).max())
    return min(most, service.settings.max_num_seqs) * each > pool.blocks


def _users(traffic: Traffic, requests: int, lag: float) -> np.ndarray | None:
    """When the first request of each user of a closed loop arrives; None of other traffic."""
    if traffic.kind != "closed":
        return None
    return lag + apart(lag) * np.arange(min(int(traffic.users or 1), requests))


def _late(chunk: Chunk, lag: float) -> Chunk:
    """The chunk as it arrives at the engine."""
    if not lag or chunk.arrival is None:
        return chunk
    return Chunk(chunk.arrival + lag, chunk.input_tokens, chunk.output_tokens)


def _fits(service: Service, chunk: Chunk, rejected: dict[str, int]) -> np.ndarray:
    """Which requests can be served at all; counts the others."""
    settings, pool = service.settings, service.pool
    tokens = chunk.input_tokens + chunk.output_tokens
    each = pool.tokens // settings.max_num_seqs if settings.admission == "slot" else pool.tokens
    if len(tokens) and tokens.max() <= min(settings.max_model_len, each, pool.blocks * pool.block_size):
        return np.ones(len(tokens), dtype=bool)
    long = tokens > settings.max_model_len
    slot = ~long & (tokens - 1 > pool.tokens // settings.max_num_seqs) & (settings.admission == "slot")
    big = ~long & ~slot & (-(-(tokens - 1) // pool.block_size) > pool.blocks)
    for reason, which in (
        ("longer than the context", long),
        ("longer than the context of a slot", slot),
        ("needs more KV blocks than the pool has", big),
    ):
        if which.any():
            rejected[reason] = rejected.get(reason, 0) + int(which.sum())
    result: np.ndarray = ~(long | slot | big)
    return result


def _rest(
    run: PlainRun, arrived: Iterator[Request], chunks: Iterator[Chunk], number: int, traffic: Traffic, lag: float
) -> Source:
    """What the full engine still has to serve after the plain loop."""

    def later() -> Iterator[Request]:
        nonlocal number
        for chunk in (_late(chunk, lag) for chunk in chunks):
            times = chunk.arrival.tolist() if chunk.arrival is not None else [0.0] * len(chunk.input_tokens)
            for at, inputs, outputs in zip(
                times, chunk.input_tokens.tolist(), chunk.output_tokens.tolist(), strict=True
            ):
                yield Request(number, at, inputs, outputs)
                number += 1

    if traffic.kind != "closed":
        return Source(chain(arrived, later()), None)
    stream = chain((Request(n, 0.0, i, o) for n, i, o in run.unreleased), later())

    last = run.last_released

    def after(_: Request, now: float) -> Request | None:
        nonlocal last
        follow = next(stream, None)
        if follow is not None:
            follow.arrival = last = max(now + lag, last + apart(lag))
        return follow

    return Source(arrived, after)


def _served(cluster: Cluster, source: Source, most: int) -> Iterator[Served]:
    """Run a cluster and hand out what has finished from time to time."""
    finished = RequestRows()

    def flush() -> Served:
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

    stream, more = cluster.run(source.arrivals, source.after), True
    while more:
        try:
            finished.add(islice(stream, most))
        except KeyboardInterrupt:
            yield flush()
            raise
        more = len(finished) == most
        yield flush()


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
    >>> from glmplan.simulation.engine.settings import EngineSettings, KvPool
    >>> from glmplan.simulation.engine.step_table import StepTable
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
