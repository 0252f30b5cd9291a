"""Simulate a fleet, and count by tenant and by group."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from glmplan.errors import SpecError
from glmplan.simulation.engine.engine import SkippingEngine
from glmplan.simulation.engine.fleet import Fleet, ReplicaGroup
from glmplan.simulation.engine.reference import SteppingEngine
from glmplan.simulation.fleets.control import Change, FleetControl
from glmplan.simulation.fleets.spec import FleetSpec
from glmplan.simulation.simulate import FLUSH, Service
from glmplan.simulation.statistics import Meter, RecordWriter, RequestRows, interrupts_held
from glmplan.simulation.traffic.request import Request, linked, mark, merged, together
from glmplan.simulation.traffic.slo import Target
from glmplan.simulation.traffic.sources import Source, request_source
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import Seconds

__all__ = ["FleetOptions", "FleetResult", "simulate_fleet"]

#: of a time that is written as two others' difference [s]
_AT_ONCE = 1e-9


@dataclass(frozen=True, slots=True)
class FleetOptions:
    """Options of a simulated fleet."""

    requests: int = 1 << 40  # most requests in all, [-]
    duration: Seconds = math.inf  # time during which requests come, [s]
    seed: int = 0  # seed, [-]; the same seed gives the same bytes
    records: str | None = None  # file for one record of each request
    keep: bool = False  # keep the record of each request
    reference: bool = False  # make every step instead of skipping; for tests


@dataclass(frozen=True, slots=True, eq=False)
class FleetResult:
    """Outcome of a simulated fleet."""

    tenants: dict[str, dict[str, float]]  # statistics of each tenant by name, as those of `simulate`
    groups: dict[str, dict[str, float]]  # of each group: requests, utilisation, batch, KV usage, replica-hours and cost
    #: requests, goodput, rejections, lost and retried requests, replica-hours and cost of the whole fleet
    summary: dict[str, float]
    rejected: dict[str, int] = field(default_factory=dict)  # reasons for which requests were not served, and how many
    changes: list[Change] = field(default_factory=list)  # what happened to replicas
    #: columns of the finished requests, if they were kept; times in [s], lengths in [token]
    requests: dict[str, np.ndarray] | None = None
    replicas: tuple[str, ...] = ()  # names of the replicas by number: group, and number within it
    #: True if Ctrl-C ended the run; the statistics are those of the requests that had finished
    interrupted: bool = False


def simulate_fleet(
    spec: FleetSpec,
    services: Sequence[Service],
    kinds: Sequence[Traffic],
    targets: Sequence[tuple[Target, ...]],
    options: FleetOptions | None = None,
) -> FleetResult:
    """Simulate a fleet.

    - `services`: One replica of each group: a server, with all its data-parallel ranks.
    - `kinds`, `targets`: Traffic and SLO of each tenant.

    Notes
    -----
    Not modelled: time between client and gateway and between gateway and replica beside the front end of the engine,
    failures of the gateway, and metrics that arrive late at the autoscaler.

    Examples
    --------
    >>> from glmplan.simulation.engine.settings import EngineSettings, KvPool
    >>> from glmplan.simulation.engine.step_table import StepTable
    >>> from glmplan.simulation.fleets.spec import fleet_of
    >>> group = {"name": "a", "replicas": 2}
    >>> spec = fleet_of({"group": [group], "tenant": [{"name": "t", "traffic": "poisson:5/s"}]})
    >>> service = Service(StepTable.affine(base=0.01), KvPool(100_000), EngineSettings())
    >>> traffic = Traffic(kind="poisson", rate=5.0, input=100, output=11)
    >>> found = simulate_fleet(spec, [service], [traffic], [()], FleetOptions(requests=20))
    >>> found.summary["requests"], round(found.tenants["t"]["tpot_mean_ms"], 6)
    (20, 10.0)
    """
    options = options or FleetOptions()
    run = _FleetRun(spec, services, kinds, targets, options)
    run.go()
    return run.result()


def _checked(spec: FleetSpec, services: Sequence[Service], kinds: Sequence[Traffic]) -> list[Service]:
    """Return the services; raise if they cannot share a fleet."""
    of_groups, of_tenants = spec.models()
    found = []
    for group, service in zip(spec.group, services, strict=True):
        settings = service.settings
        moves = group.autoscaler is not None or any(fault.group == group.name for fault in spec.fault)
        if moves and settings.replicas > 1:
            what = "prefill replicas" if settings.prefill_replicas else "several data-parallel ranks"
            raise SpecError(f"has {what}: autoscaling and faults are not simulated for such", field=group.name)
        found.append(service.under(Traffic(kind="poisson", rate=1.0)))
    for model in set(of_tenants):
        drafts = {repr(s.settings.acceptance) for s, of in zip(services, of_groups, strict=True) if of == model}
        if len(drafts) > 1:
            raise SpecError("of one model must speculate equally", field="group", value=sorted(drafts))
        split = any(s.settings.prefill_replicas for s, of in zip(services, of_groups, strict=True) if of == model)
        if split and any(k.patience is not None for k, of in zip(kinds, of_tenants, strict=True) if of == model):
            raise SpecError("is not simulated with prefill replicas", field="patience")
    return found


class _FleetRun:
    """One run and its counts."""

    def __init__(
        self, spec: FleetSpec, services: Sequence[Service], kinds: Sequence[Traffic],
        targets: Sequence[tuple[Target, ...]], options: FleetOptions,
    ) -> None:  # fmt: skip
        self.spec, self.options = spec, options
        self.services = _checked(spec, services, kinds)
        of_groups, of_tenants = spec.models()
        # requests meet the gateway after the shortest front end; what is longer is added to their latency
        self.lag = min(service.front_end for service in services)
        fleet_seed, *seeds = np.random.SeedSequence(options.seed).spawn(1 + len(kinds))
        self.fleet = Fleet(
            [
                ReplicaGroup(
                    service.table,
                    service.pool,
                    replace(
                        service.settings,
                        replicas=service.settings.replicas * group.most,
                        prefill_replicas=service.settings.prefill_replicas * group.most,
                    ),
                    model,
                    group.weight,
                    service.settings.replicas * group.replicas,
                    service.spread,
                )
                for group, service, model in zip(spec.group, self.services, of_groups, strict=True)
            ],
            spec.router.rules(int(fleet_seed.generate_state(1)[0])),
            SteppingEngine if options.reference else None,
        )
        self.fleet.models = of_tenants
        drafts = {of: service.settings.acceptance for of, service in zip(of_groups, services, strict=True)}
        self.sources = [
            request_source(kind, options.requests, np.random.default_rng(seed), drafts[of], self.lag, self._ranks(of))
            for kind, seed, of in zip(kinds, seeds, of_tenants, strict=True)
        ]
        self.until = options.duration + self.lag
        self.control = FleetControl(spec, self.fleet, np.random.default_rng(fleet_seed), options.duration)
        self.meters = [Meter(one, 1, 1) for one in targets]
        caching = {of for of, one in zip(of_groups, services, strict=True) if one.settings.prefix_caching}
        self._finds = [of in caching for of in of_tenants]  # tenants whose prompts may be found
        self.usage = np.zeros((len(spec.group), 5))  # busy [s], requests · s, blocks · s, most requests, most blocks
        self.served = np.zeros(len(spec.group), dtype=np.int64)
        self.kept: list[dict[str, np.ndarray]] = []
        self.end = 0.0
        self.interrupted = False

    def _ranks(self, model: int) -> int:
        """Return the ranks in lockstep of a model.

        Users who send at the same instant come to them together.
        """
        found = [
            (service.settings, group.replicas)
            for service, group, of in zip(self.services, self.spec.group, self.spec.models()[0], strict=True)
            if of == model
        ]
        if any(settings.lockstep == 1 for settings, _ in found):
            return 1
        return sum((settings.replicas - settings.prefill_replicas) * count for settings, count in found)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _arrivals(self) -> Iterator[Request]:
        priorities = [tenant.priority for tenant in self.spec.tenant]
        streams = [source.arrivals for source in self.sources]
        return islice(merged(streams, priorities, self.until), self.options.requests)

    def _after(self) -> Callable[[Request, float], Request | None] | None:
        if all(source.after is None for source in self.sources):
            return None
        sources, until, count = self.sources, self.until, len(self.sources)
        priorities = [tenant.priority for tenant in self.spec.tenant]

        def after(request: Request, now: float) -> Request | None:
            source: Source = sources[request.tenant]
            follow = source.after(request, now) if source.after is not None and now < math.inf else None
            kept = [one for one in together(follow) if one.arrival <= until]
            return linked([mark(one, request.tenant, count, priorities[request.tenant]) for one in kept])

        return after

    # -- the run ------------------------------------------------------------------------------------------------------

    def go(self) -> None:
        """Serve all requests, or those until Ctrl-C."""
        stream, rows, more = self.fleet.run(self._arrivals(), self._after()), RequestRows(), True
        writer = RecordWriter(self.options.records) if self.options.records is not None else None
        try:
            while more:
                try:
                    rows.add(islice(stream, FLUSH))
                    more = len(rows) == FLUSH
                except KeyboardInterrupt:
                    self.interrupted, more = True, False
                with interrupts_held():
                    columns = self._count(rows.take())
                    self._use()
                    if writer is not None:
                        writer.write(columns)
                    if self.options.keep:
                        self.kept.append(columns)
        except KeyboardInterrupt:  # while requests were counted
            self.interrupted = True
        finally:
            if writer is not None:
                writer.close()
        ended = self.interrupted or self.until == math.inf
        self.control.finish(self.end if ended else max(self.end, self.until))

    def _count(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Count finished requests; return them with the times that clients see."""
        if not len(columns["number"]):
            return columns
        groups = np.array(self.fleet.group_of)[columns["replica"]]
        fronts, wakes = (np.array([getattr(s, name) for s in self.services]) for name in ("front_end", "cold_start"))
        idle = columns["started"] - columns["arrival"] <= _AT_ONCE
        late = np.where(idle, wakes[groups], 0.0) + fronts[groups] - self.lag
        columns |= {
            "arrival": columns["arrival"] - self.lag,
            "first": columns["first"] + late,
            "finish": columns["finish"] + late,
        }
        tenants = columns["number"] % len(self.sources)
        for tenant, meter in enumerate(self.meters):
            own = tenants == tenant
            if own.any():
                meter.records({name: column[own] for name, column in columns.items()})
        self.served += np.bincount(groups, minlength=len(self.served))
        self.end = max(self.end, float(columns["finish"].max()))
        return columns

    def _use(self) -> None:
        """Count what replicas have done, and forget it."""
        fleet = self.fleet
        engines = [*enumerate(fleet.engines), *((engine.replica, engine) for engine in fleet.retired)]
        for number, engine in engines:
            if not isinstance(engine, SkippingEngine) or not engine.segments:
                continue
            rows = np.fromiter(engine.segments, float, len(engine.segments)).reshape(-1, 8)
            _, steps, seconds, slope, n, _, _, blocks = rows.T
            span = steps * (seconds + slope * (steps - 1) / 2)
            row = self.usage[fleet.group_of[number]]
            row[:3] += span.sum(), (n * span).sum(), (blocks * span).sum()
            row[3], row[4] = max(row[3], n.max()), max(row[4], blocks.max())
            engine.segments.clear()
            engine.stalls.clear()
        fleet.retired.clear()

    # -- the result ---------------------------------------------------------------------------------------------------

    def result(self) -> FleetResult:
        """Return the statistics."""
        fleet, control = self.fleet, self.control
        tenants = {}
        for number, (tenant, meter) in enumerate(zip(self.spec.tenant, self.meters, strict=True)):
            found = meter.summary(fleet.turned_away.get(number, 0), found=self._finds[number])
            for name in [n for n in found if n.startswith(("itl", "utilisation", "batch", "kv_"))]:
                del found[name]
            tenants[tenant.name] = found
        groups = {group.name: self._of_group(n) for n, group in enumerate(self.spec.group)}
        costs = [one["usd"] for one in groups.values() if "usd" in one]
        served = sum(found["requests"] for found in tenants.values())
        refused = sum(fleet.rejected.values())
        summary = {
            "requests": served,
            "rejected": refused,
            "left": fleet.left,
            "lost": control.lost,
            "retried": control.retried,
            "preemptions": fleet.preemptions,
            "duration_s": max(found["duration_s"] for found in tenants.values()),
            "replica_hours": sum(one["replica_hours"] for one in groups.values()),
        }
        if any(meter.has_targets for meter in self.meters):
            good = sum(meter.good for meter in self.meters)
            everyone = served + refused + fleet.left
            summary["goodput_requests_per_s"] = good / summary["duration_s"] if served else 0.0
            summary["slo_attainment"] = good / everyone if everyone else math.nan
        if costs:
            summary["usd"] = sum(costs)
        kept = self.kept
        rows = {name: np.concatenate([one[name] for one in kept]) for name in kept[0]} if kept else None
        firsts = [group.first for group in fleet.groups]
        replicas = tuple(f"{self.spec.group[of].name} {n - firsts[of]}" for n, of in enumerate(fleet.group_of))
        return FleetResult(
            tenants, groups, summary, dict(fleet.rejected), control.changes, rows, replicas, self.interrupted
        )

    def _of_group(self, number: int) -> dict[str, float]:
        group, pool = self.spec.group[number], self.services[number].pool
        ranks = self.services[number].settings.replicas
        history = self.control.history[group.name]
        busy, batch, blocks, most, fullest = self.usage[number].tolist()
        paid = history.replica_seconds
        found = {
            "requests": int(self.served[number]),
            "replicas_mean": paid / ranks / max(self.end, 1e-12),
            "replicas_peak": history.peak // ranks,
            "starts": history.starts,
            "deaths": history.deaths,
            "replica_hours": paid / ranks / 3600.0,
            "utilisation": min(busy / paid, 1.0) if paid else 0.0,
            "batch_mean": batch / busy if busy else 0.0,
            "batch_max": most,
            "kv_occupancy_mean": blocks / (paid * pool.blocks) if paid else 0.0,
            "kv_occupancy_max": min(fullest / pool.blocks, 1.0),
        }
        if group.usd_per_hour is not None:
            found["usd"] = found["replica_hours"] * group.usd_per_hour
        return found
