"""Run fleets and sweeps over rates for `glmplan simulate`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from glmplan.cli.screen import Form, say
from glmplan.cli.service import SchedulerOptions, ServiceOptions, TargetOptions, described_services
from glmplan.errors import SpecError

if TYPE_CHECKING:
    from glmplan.planner.service import Described
    from glmplan.simulation.fleets.run import FleetOptions, FleetResult
    from glmplan.simulation.fleets.spec import FleetSpec, GroupSpec
    from glmplan.simulation.goodput import GoodputCurve
    from glmplan.simulation.simulate import Service
    from glmplan.simulation.traffic.slo import Target
    from glmplan.simulation.traffic.spec import Traffic

__all__ = ["FleetCase", "read_case", "show_fleet", "show_goodput", "sweep_rates", "sweep_service"]

#: time during which requests come, if neither a file nor --requests says it [s]
_DURATION = 600.0
#: services of a sweep: so many that the slowest is the one that 5 of 100 are slower than [-]
_SERVICES = 10
#: judged requests of each service at each rate, and those before them [-]
_JUDGED, _BEFORE = 1500, 200
#: metrics of a tenant whose range is stated
_RANGED = ("ttft_p95_ms", "tpot_p95_ms", "e2e_p95_ms", "goodput_share")
#: lower and upper end of metrics by tenant
Ranges = dict[str, dict[str, tuple[float, float]]]
#: options of a group that `ServiceOptions` holds itself
_SERVICE = ("kv_tokens", "block_size", "kv_bytes", "step_time", "transfer", "kv_tiers", "image_time", "experts_apart")


class FleetCase:
    """A fleet file with its services and traffic.

    - `path`: The file.
    - `slo`: SLO of tenants without their own, instead of that of the file.
    """

    def __init__(self, path: Path, slo: str | None) -> None:
        from glmplan.simulation.fleets.spec import read_fleet
        from glmplan.simulation.traffic.slo import parse_slo
        from glmplan.simulation.traffic.spec import parse_traffic

        self.spec: FleetSpec = read_fleet(path)
        self.kinds: list[Traffic] = []
        self.targets: list[tuple[Target, ...]] = []
        for one in self.spec.tenant:
            try:
                self.kinds.append(parse_traffic(one.traffic, **one.shape))
                own = one.slo or slo or self.spec.slo
                self.targets.append(parse_slo(own) if own else ())
            except SpecError as error:
                raise SpecError(f"tenant {one.name}: {error}", file=path) from None
        self.described: list[Described] = [self._described(group) for group in self.spec.group]

    @property
    def services(self) -> list[Service]:
        """One replica of each group."""
        return [one.service for one in self.described]

    @property
    def slos(self) -> dict[str, tuple[Target, ...]]:
        """SLO of each tenant by name."""
        return {one.name: targets for one, targets in zip(self.spec.tenant, self.targets, strict=True)}

    @property
    def bases(self) -> dict[str, str]:
        """Evidence of the step time of each group by name."""
        return {group.name: one.basis for group, one in zip(self.spec.group, self.described, strict=True)}

    def _described(self, group: GroupSpec) -> Described:
        """Return one replica of a group, planned for its first tenant."""
        from glmplan.request.plan import PlanRequest

        told = dict(group.options)
        service = {name: told.pop(name) for name in _SERVICE if name in told}
        rules = {one.name: told.pop(one.name) for one in fields(SchedulerOptions) if one.name in told}
        unknown = [name for name in told if name not in PlanRequest.model_fields]
        if unknown:
            known = (*PlanRequest.model_fields, *_SERVICE, *(one.name for one in fields(SchedulerOptions)))
            choices = [name.replace("_", "-") for name in known]
            name = unknown[0].replace("_", "-")
            raise SpecError("is not an option", field=f"group {group.name}", value=name, choices=choices)
        if "routing" in rules:
            raise SpecError("is of the gateway: write it under [router]", field=f"group {group.name}: routing")
        own = "step_time" in service
        tenants = [one for one in zip(self.kinds, self.spec.tenant, strict=True) if one[1].model in ("", group.model)]
        kind = tenants[0][0] if tenants else self.kinds[0]
        drawn = {"input", "output", "jitter", "input_cv", "output_cv"} if not kind.lengths else {"lengths"}
        shape: dict[str, Any] = kind.model_dump(include=drawn)
        # of any tenant: options of the group that need images or priorities have an effect then
        shape["images"] = max((one.images for one, _ in tenants), default=0.0)
        if rules.get("order") == "priority":
            several = len({tenant.priority for _, tenant in tenants}) > 1
            shape["urgent"] = max((one.urgent for one, _ in tenants), default=0.0) or several / 2
        target = TargetOptions(model=None if own else group.model or None, on=None if own else group.on)
        options = ServiceOptions(deployment=told, scheduler=SchedulerOptions(**rules), **service)
        try:
            described, _ = described_services(target, options, shape, "closed:1", usual=True)
        except SpecError as error:
            raise SpecError(f"group {group.name}: {error}") from None
        return described

    def run(self, options: FleetOptions) -> FleetResult:
        """Simulate the fleet; Ctrl-C ends it early."""
        from glmplan.simulation.fleets.run import simulate_fleet

        return simulate_fleet(self.spec, self.services, self.kinds, self.targets, options)

    def whole(
        self, options: FleetOptions, *, spec: FleetSpec | None = None, services: Sequence[Service] | None = None,
        kinds: Sequence[Traffic] | None = None,
    ) -> FleetResult:  # fmt: skip
        """Simulate a changed fleet; part of a run is no answer."""
        from glmplan.simulation.fleets.run import simulate_fleet

        services, kinds = services or self.services, kinds or self.kinds
        found = simulate_fleet(spec or self.spec, services, kinds, self.targets, options)
        if found.interrupted:
            raise KeyboardInterrupt
        return found

    def in_flight(self, result: FleetResult) -> list[float | None]:
        """Return running requests of a replica by group, in powers of two."""
        from glmplan.planner.service import concurrency_class

        running = [group["batch_mean"] * group["utilisation"] for group in result.groups.values()]
        return [
            None if one.by_users is None else concurrency_class(number * one.service.settings.replicas)
            for number, one in zip(running, self.described, strict=True)
        ]

    def at(self, share: float, users: Sequence[float | None]) -> list[Service]:
        """Return one replica of each group at a quantile of its step time."""
        steps = [one.quantiles(share, there)[0] for one, there in zip(self.described, users, strict=True)]
        return [one.scaled(step) for one, step in zip(self.services, steps, strict=True)]

    def ranges(self, result: FleetResult, options: FleetOptions) -> Ranges:
        """Return 90 % ranges of tenants over predicted step times."""
        if all(one.low == one.high for one in self.described):
            return {}
        users = self.in_flight(result)
        ends = [self.whole(options, services=self.at(share, users)) for share in (0.05, 0.95)]
        found: Ranges = {}
        for name, middle in result.tenants.items():
            every = [middle, *(one.tenants[name] for one in ends)]
            columns = {metric: [one.get(metric, math.nan) for one in every] for metric in _RANGED}
            found[name] = {
                metric: (min(values), max(values)) for metric, values in columns.items() if np.isfinite(values).all()
            }
        return found

    def fixed(self, result: FleetResult, options: FleetOptions) -> dict[str, FleetResult]:
        """Run the same traffic on fleets of the mean size and of the peak size."""
        scaled = [group.name for group in self.spec.group if group.autoscaler is not None]
        found, seen = {}, list[dict[str, int]]()
        for label, size in (("mean size", "replicas_mean"), ("peak size", "replicas_peak")):
            sizes = {name: max(math.ceil(round(result.groups[name][size], 6)), 1) for name in scaled}
            if sizes and sizes not in seen:
                seen.append(sizes)
                text = ", ".join(f"{name} {count}" for name, count in sizes.items())
                found[f"fixed at the {label} ({text})"] = self.whole(options, spec=self.spec.fixed_at(sizes))
        return found


def read_case(path: Path, slo: str | None, requests: int | None) -> tuple[FleetCase, dict[str, Any]]:
    """Return a fleet file and the requests or the duration of its run."""
    case = FleetCase(path, slo)
    size: dict[str, Any] = {"duration": math.inf if case.spec.duration is None else case.spec.duration}
    if requests is not None:
        size["requests"] = requests
    elif case.spec.duration is None and any(kind.kind != "trace" for kind in case.kinds):
        size["duration"] = _DURATION
    return case, size


def show_fleet(case: FleetCase, result: FleetResult, fixed: dict[str, FleetResult], ranges: Ranges, form: Form) -> None:
    """Print the result of a fleet."""
    from glmplan.present.fleet_text import fleet_csv, fleet_record, fleet_text

    if form is Form.json:
        say(json.dumps(fleet_record(result, case.slos, case.bases, fixed=fixed, ranges=ranges), indent=2))
    elif form is Form.csv:
        say(fleet_csv(result), end="")
    else:
        markdown = form is Form.md
        say(fleet_text(result, case.slos, case.bases, fixed=fixed, ranges=ranges, markdown=markdown), end="")


def sweep_service(
    described: Described, traffic: Traffic, targets: tuple[Target, ...], rates: Sequence[float], seed: int
) -> GoodputCurve:
    """Return goodput over the request rate of one service."""
    from glmplan.prediction.distribution import middles
    from glmplan.simulation.goodput import goodput_curve
    from glmplan.simulation.seeds import stream_seed
    from glmplan.simulation.simulate import SimulationOptions, simulate

    def summary(service: Service, rate: float, which: int = 0) -> dict[str, float]:
        outcome = simulate(
            service,
            traffic.at_load(rate),
            requests=_BEFORE + _JUDGED,
            warmup=_BEFORE,
            seed=stream_seed(seed, which),
            options=SimulationOptions(targets=targets),
        )
        if outcome.interrupted:
            raise KeyboardInterrupt
        return outcome.summary

    @cache
    def users(rate: float) -> float | None:
        if described.by_users is None:
            return None
        return described.in_flight(traffic.at_load(rate), summary(described.service, rate))

    def run(rate: float, share: float, which: int) -> tuple[float, float, bool]:
        found = summary(described.at(share, users(rate), traffic), rate, which)
        met = all(found[one.name] <= one.bound * 1000 for one in targets)
        return found["goodput_requests_per_s"], found["goodput_share"], met

    return goodput_curve(run, rates, middles(_SERVICES))


def sweep_rates(case: FleetCase, rates: Sequence[float], size: dict[str, Any], seed: int) -> GoodputCurve:
    """Return goodput over the total rate of all tenants with equal shares."""
    from glmplan.prediction.distribution import middles
    from glmplan.simulation.fleets.run import FleetOptions
    from glmplan.simulation.goodput import goodput_curve
    from glmplan.simulation.seeds import stream_seed

    if any(kind.rate is None for kind in case.kinds):
        raise SpecError("needs tenants with a rate", field="--sweep-rate")
    total = sum(kind.rate or 0.0 for kind in case.kinds)

    def fleet(services: Sequence[Service], rate: float, which: int = 0) -> FleetResult:
        kinds = [kind.at_load((kind.rate or 0.0) * rate / total) for kind in case.kinds]
        return case.whole(FleetOptions(**size, seed=stream_seed(seed, which)), services=services, kinds=kinds)

    @cache
    def users(rate: float) -> list[float | None]:
        """Return the requests that run on a replica of each group."""
        if all(one.by_users is None for one in case.described):
            return [None] * len(case.described)
        return case.in_flight(fleet(case.services, rate))

    def run(rate: float, share: float, which: int) -> tuple[float, float, bool]:
        found = fleet(case.at(share, users(rate)), rate, which)
        met = all(found.tenants[name][one.name] <= one.bound * 1000 for name, slo in case.slos.items() for one in slo)
        good = found.summary.get("goodput_requests_per_s", 0.0), found.summary.get("slo_attainment", 0.0)
        return good[0], good[1], met

    return goodput_curve(run, rates, middles(_SERVICES))


def show_goodput(curve: GoodputCurve, form: Form, plot: Path | None, title: str) -> None:
    """Print goodput over load, and draw it."""
    from glmplan.present.fleet_text import goodput_csv, goodput_record, goodput_text

    if plot is not None:
        from glmplan.present.fleet_charts import goodput_chart

        goodput_chart(curve, plot, title=title)
    shown: dict[Form, Callable[[], str]] = {
        Form.json: lambda: json.dumps(goodput_record(curve), indent=2) + "\n",
        Form.csv: lambda: goodput_csv(curve),
    }
    say(shown.get(form, lambda: goodput_text(curve, markdown=form is Form.md))(), end="")
    if curve.interrupted:
        say("interrupted: these are the rates that had been simulated", err=True)
        raise typer.Exit(130)
