"""Define `glmplan simulate`: a service under traffic."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glmplan.catalog.tables import csv_lines
from glmplan.cli import options as o
from glmplan.cli.screen import Form, console, say
from glmplan.cli.service import ServiceOptions, TargetOptions, described_services
from glmplan.errors import SpecError
from glmplan.request.option import spelled

if TYPE_CHECKING:
    import numpy as np

    from glmplan.planner.service import Described
    from glmplan.simulation.simulate import Outcome
    from glmplan.simulation.traffic.slo import Target
    from glmplan.simulation.traffic.spec import Traffic

__all__ = ["RunOptions", "command"]

#: time after which a run shows its progress [s]
_PATIENCE = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Size of the simulation, and output."""

    requests: Annotated[
        int | None,
        typer.Option(help="Requests; by default 10 per user of a closed loop, a whole trace or day, else 1000."),
    ] = None
    warmup: Annotated[
        int | None,
        typer.Option(help="Uncounted requests at the start; under an SLO the first of each user, else none."),
    ] = None
    replications: Annotated[int, typer.Option(help="Repetitions for confidence intervals.")] = 1
    seed: o.Seed = 0
    records: Annotated[Path | None, typer.Option(help="Write a record per request, .csv or .parquet.")] = None
    plot: o.Charts = None
    fleet: Annotated[
        Path | None, typer.Option(help="Fleet file (TOML): groups of replicas, gateway, tenants, autoscalers, faults.")
    ] = None
    sweep_rate: Annotated[
        str | None,
        typer.Option(help="Goodput over these request rates instead: LOW:HIGH, LOW:HIGH:POINTS or a list."),
    ] = None
    timeline: Annotated[
        Path | None, typer.Option(help="Write the phases of each request as a .json trace for Perfetto.")
    ] = None
    ranges: Annotated[bool, typer.Option(help="Also simulate other seeds and the bounds of the step time.")] = True
    form: o.Format = Form.text


@o.with_options()
def command(
    target: TargetOptions,
    shape: Annotated[o.Given, o.traffic("simulate")],
    *,
    traffic: o.OptionalTraffic = None,
    slo: o.OptionalSlo = None,
    service: ServiceOptions,
    run: RunOptions,
) -> None:
    """Simulate a service under traffic.

    The answer has latencies, throughput, batch size and KV cache usage.
    """
    from glmplan.simulation.load_trial import default_requests, default_warmup, start_judged
    from glmplan.simulation.simulate import LARGEST, SimulationOptions, simulate
    from glmplan.simulation.traffic.slo import parse_slo

    _check_files(run)
    told = {"MODEL": target.model, "--on": target.on, "--traffic": traffic}
    _check_used(run, told | {spelled(name): value for name, value in (shape | o.given(service)).items()})
    if run.fleet is not None:
        _fleet(run.fleet, run, slo)
        return
    if traffic is None:
        raise SpecError("is needed, as in closed:32 or poisson:2.5/s", field="--traffic")
    targets = parse_slo(slo) if slo else ()
    described, [arriving] = described_services(target, service, shape, traffic, slo=slo)
    title = f"{target.model or 'own step time'} on {target.on or 'own machine'}"
    if run.sweep_rate is not None:
        _sweep(described, arriving, run, slo, title)
        return
    requests = default_requests(arriving) if run.requests is None else run.requests
    warmup = default_warmup(arriving, targets, requests) if run.warmup is None else run.warmup
    ranges: dict[str, tuple[float, float]] = {}
    with _Progress(None if requests == LARGEST else requests * run.replications) as progress:
        outcome = simulate(
            described.service,
            arriving,
            requests=requests,
            seed=run.seed,
            warmup=warmup,
            options=SimulationOptions(
                replications=run.replications,
                targets=targets,
                records=run.records,
                timeline=run.plot is not None,
                keep=run.timeline is not None,
                progress=progress,
            ),
        )
        if run.ranges and not outcome.interrupted and outcome.summary["requests"]:
            ranges = described.ranges(arriving, outcome.summary, requests=requests, warmup=warmup, seed=run.seed)
    if run.plot is not None and not outcome.interrupted:
        _plot(described, arriving, outcome, run.plot, title)
    _write_timeline(outcome.requests, run.timeline)
    _show(outcome, run.form, targets, described.basis, ranges)
    if outcome.interrupted:
        raise typer.Exit(130)
    _notes(described, arriving, outcome)
    if run.warmup is None and (begin := start_judged(arriving, targets, requests)):
        start = f"the {requests:,} requests are of the start, in which all {arriving.users or ''} users begin together"
        say(f"note: {start}: safe and size judge those after the first {begin:,} (--requests)", err=True)


def _check_used(run: RunOptions, service: dict[str, Any]) -> None:
    """Raise for an option that --fleet or --sweep-rate leaves without effect.

    `service`: Options of service and traffic, which the file of a fleet has.
    """
    size = {"--warmup": run.warmup, "--replications": run.replications if run.replications > 1 else None}
    files = {"--records": run.records, "--timeline": run.timeline}
    unused: dict[str, dict[str, Any]] = {}
    if run.fleet is not None:
        unused["--fleet"] = service | size
    if run.sweep_rate is not None:
        unused["--sweep-rate"] = size | files | ({"--requests": run.requests} if run.fleet is None else {})
    for option, names in unused.items():
        for name, value in names.items():
            if value is not None:
                where = ": write it into the file" if option == "--fleet" and name in service else ""
                raise SpecError(f"has no effect with {option}{where}", field=name, value=value)


def _check_files(run: RunOptions) -> None:
    """Raise if a file that is to be written has a wrong name."""
    if run.plot is not None:
        from glmplan.present.charts import check_chart

        check_chart(run.plot)
    if run.timeline is not None:
        from glmplan.present.perfetto import check_timeline

        check_timeline(run.timeline)


def _write_timeline(columns: dict[str, np.ndarray] | None, path: Path | None, replicas: tuple[str, ...] = ()) -> None:
    """Write the phases of requests, if asked for; name `replicas` if given."""
    if path is not None and columns is not None:
        from glmplan.present.perfetto import write_timeline

        if left := write_timeline(columns, path, replicas):
            say(f"note: {path} has the first requests that finished, {left:,} further ones are left out", err=True)


def _sweep(described: Described, arriving: Traffic, run: RunOptions, slo: str | None, title: str) -> None:
    """Print goodput over rates; the SLO of `fit` is the default."""
    from glmplan.cli.fleet import show_goodput, sweep_service
    from glmplan.simulation.goodput import swept_rates
    from glmplan.simulation.traffic.slo import parse_slo

    assert run.sweep_rate is not None
    slo = slo or described.slo
    if not slo:
        raise SpecError("is needed with --sweep-rate and --step-time", field="--slo")
    if arriving.rate is None:
        raise SpecError("needs traffic with a rate, as in poisson:1/s", field="--sweep-rate")
    curve = sweep_service(described, arriving, parse_slo(slo), swept_rates(run.sweep_rate), run.seed)
    show_goodput(curve, run.form, run.plot, f"{title}: {slo}")


def _fleet(path: Path, run: RunOptions, slo: str | None) -> None:
    """Simulate a fleet file."""
    from glmplan.cli.fleet import read_case, show_fleet, show_goodput, sweep_rates
    from glmplan.simulation.fleets.run import FleetOptions
    from glmplan.simulation.goodput import swept_rates

    case, size = read_case(path, slo, run.requests)
    if run.sweep_rate is not None:
        if not any(case.targets):
            raise SpecError("is needed with --sweep-rate", field="--slo")
        curve = sweep_rates(case, swept_rates(run.sweep_rate), size, run.seed)
        show_goodput(curve, run.form, run.plot, path.stem)
        return
    keep = run.plot is not None or run.timeline is not None
    records = str(run.records) if run.records is not None else None
    again = FleetOptions(**size, seed=run.seed)
    result, fixed, ranges = case.run(replace(again, records=records, keep=keep)), {}, {}
    interrupted = result.interrupted
    if run.ranges and not interrupted:
        try:
            fixed, ranges = case.fixed(result, again), case.ranges(result, again)
        except KeyboardInterrupt:
            interrupted = True
    if run.plot is not None:
        from glmplan.present.fleet_charts import fleet_charts

        begun = {group.name: group.replicas for group in case.spec.group}
        fleet_charts(result, run.plot, title=path.stem, begun=begun)
    _write_timeline(result.requests, run.timeline, result.replicas)
    show_fleet(case, result, fixed, ranges, run.form)
    if interrupted:
        what = "these are the requests that had finished" if result.interrupted else "without ranges and fixed sizes"
        say(f"interrupted: {what}", err=True)
        raise typer.Exit(130)


def _notes(described: Described, arriving: Traffic, outcome: Outcome) -> None:
    """Print the conditions of the result.

    Daily traffic depends on the hour; a growing queue depends on the length of the run.
    """
    from glmplan.planner.users import danger_under
    from glmplan.simulation.load_trial import exceeded

    if described.plan is not None and (danger := danger_under(*described.plan)) is not None:
        say(f"note: not safe: {danger.words}", err=True)
    hours = outcome.summary.get("duration_s", 0.0) / 3600.0
    if arriving.kind == "daily" and hours < 24.0:
        most = f"the busiest part of the day has {arriving.peak:.3g} times the mean (--traffic poisson:RATE shows it)"
        say(f"note: these requests are the first {hours:.2g} hours after midnight; {most}", err=True)
    served = exceeded(described.service, arriving, outcome.summary)
    if served is not None:
        what = "sessions" if arriving.kind == "sessions" else "requests"
        grows = "the queue grows as long as they come, and these are the times of the first"
        arrive = f"{arriving.rate:g} {what}/s arrive and no more than {served:.3g} are served"
        say(f"note: {arrive}: {grows} {outcome.summary['requests']:,.0f}", err=True)


class _Progress:
    """Progress bar of long runs on standard error; only on a terminal."""

    def __init__(self, total: int | None) -> None:
        self._total, self._done = total, 0
        self._start = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Any:
        return self._advance if sys.stderr.isatty() else None

    def _advance(self, count: int) -> None:
        self._done += count
        if self._bar is None and time.monotonic() - self._start > _PATIENCE:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task("requests", total=self._total)
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _plot(described: Described, traffic: Traffic, outcome: Outcome, path: Path, title: str) -> None:
    import numpy as np

    from glmplan.present.charts import Curves, curves_of, simulation_charts

    curves: Curves = ([], [], [])
    if traffic.kind != "trace":
        here = float(traffic.users or traffic.rate or 1.0)
        loads = here * np.array([0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0])
        if traffic.users is not None:
            loads = np.unique(np.maximum(1, np.round(loads)))
        curves = curves_of(described.service, traffic, loads, described.ends)
    name = "users" if traffic.users is not None else f"{'sessions' if traffic.kind == 'sessions' else 'requests'}/s"
    size = described.service.pool.block_size
    simulation_charts(outcome, path, title=title, block_size=size, curves=curves, load_name=name)


def _show(
    outcome: Outcome,
    form: Form,
    targets: tuple[Target, ...],
    basis: str,
    ranges: dict[str, tuple[float, float]],
) -> None:
    from glmplan.present.outcome_text import outcome_text

    summary = outcome.summary
    if form is Form.json:
        from glmplan.present.json_answers import simulate_record

        content = simulate_record(outcome, targets=targets, basis=basis, ranges=ranges)
        say(json.dumps(content, indent=2))
        return
    if form is Form.csv:
        cells = ["" if isinstance(one, float) and not math.isfinite(one) else one for one in summary.values()]
        say(csv_lines([summary, cells]), end="")
        return
    say(
        outcome_text(outcome, targets=targets, basis=basis, markdown=form is Form.md, ranges=ranges),
        end="",
    )
    if outcome.interrupted:
        say("interrupted: these are the requests that had finished", err=True)
