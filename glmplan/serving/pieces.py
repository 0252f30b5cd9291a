"""One replication, piece by piece: plain requests by the shortest form that serves them, others by the full engine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

import numpy as np

from glmplan.serving.engine.cluster import Cluster
from glmplan.serving.engine.engine import SkippingEngine
from glmplan.serving.engine.few import FewRequests
from glmplan.serving.engine.few_first import BlocksRunOut
from glmplan.serving.engine.plain import PlainRun, Served, compiled
from glmplan.serving.engine.reference import SteppingEngine
from glmplan.serving.front_end import travel
from glmplan.serving.request_records import RequestRows
from glmplan.serving.service import Service
from glmplan.serving.traffic.arrivals import CHUNK, Chunk, request_chunks
from glmplan.serving.traffic.request import Request, apart
from glmplan.serving.traffic.sources import Source, request_source
from glmplan.serving.traffic.spec import Traffic

__all__ = ["FLUSH", "LEFT", "pieces"]

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

    Parameters
    ----------
    service : Service
        What serves, as the traffic finds it (`Service.under`).
    traffic : Traffic
        What arrives.
    requests : int
        How many, [-]
    generator : Generator
        Source of randomness.
    rejected : dict
        Takes why requests cannot be served, and how many, [-]; those whose clients left under `LEFT`.
    fast : bool, optional
        Whether to compile the plain loop; by default where it pays and numba is installed.
    reference : bool, optional
        Whether to make every step instead of skipping.
    flush : int, optional
        Requests that are handed out at once; fewer of them are also drawn at once, [-]

    Yields
    ------
    Served
        What has finished since the last one, also before an interrupt is passed on.

    Examples
    --------
    >>> from glmplan.serving.engine.settings import EngineSettings, KvPool
    >>> from glmplan.serving.engine.step_table import StepTable
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
    return ~(long | slot | big)


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
