"""Define `glmplan validate`: compare a live server with predictions."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from glmplan.cli.options import Given, plan, with_options
from glmplan.cli.screen import console, say

__all__ = ["ladder_bar", "show_ladder"]


# Terminal output of a run: progress bar, then tables.


def ladder_bar(*, hidden: bool) -> Any:
    """Return the progress bar of the load steps, on standard error.

    Texts of the server are shown without markup.
    """
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    return Progress(*columns, console=console(stderr=True), disable=hidden, transient=True)


def show_ladder(record: Any, compared: Any, causes: Any, said: str, out: Path | None) -> None:
    """Print measurements, predictions and likely causes of differences."""
    from rich.table import Table

    from glmplan.io.runs.columns import FIGURES
    from glmplan.present.validation_page import standing

    screen = console()
    facts = record.facts
    server = " ".join(filter(None, (facts.engine or "unknown engine", facts.version)))
    pool = f", KV pool {facts.kv_tokens:,.0f} tokens" if facts.kv_tokens else ""
    screen.print(f"{server}{pool}; prompt lengths by {record.prompts}")
    if record.overhead is not None:
        o = record.overhead
        added = f"{o.ttft * 1e3:.1f} ms to TTFT, {o.tpot * 1e3:.2f} ms to TPOT"
        screen.print(f"the client adds up to {added} at {o.streams} streams ({o.cpu:.0%} of a core)")
    table = Table(box=None)
    names = ("ttft_mean_ms", "tpot_mean_ms", "itl_mean_ms", "e2e_mean_ms", "output_tokens_per_s")
    titles = (FIGURES[name].heading for name in names)
    for title in ("rate" if record.plan.schedules else "users", "done", "failed", *titles):
        table.add_column(title, justify="right")
    table.add_column("to know")
    for step in record.steps:
        f = step.figures
        cells = [f"{f[name]:,.4g}" if name in f else "" for name in names]
        done = str(step.outcomes.get("done", 0))
        table.add_row(f"{step.level:g}", done, str(step.faults or ""), *cells, "; ".join(step.notes))
    screen.print(table)
    screen.print(said)
    if compared:
        table = Table(box=None)
        for title in ("at", "figure", "measured", "predicted", "interval", "difference", "verdict"):
            table.add_column(title, justify="left" if title in ("figure", "verdict") else "right")
        for one in compared:
            interval = "" if one.low is None or one.high is None else f"{one.low:,.4g} - {one.high:,.4g}"
            verdict = one.verdict + ("" if one.inside else ", outside")
            values = (f"{one.measured:,.4g}", f"{one.predicted:,.4g}", interval, f"{one.difference:+.1%}")
            table.add_row(f"{one.level:g}", one.metric, *values, verdict)
        screen.print(table)
        screen.print(standing(compared))
    for number, cause in enumerate(causes, 1):
        screen.print(f"{number}. {cause.what}: {cause.evidence}. Try: {cause.to_try}.")
    if out is not None:
        screen.print(f"record, table, report and journal are in {out}")


#: default concurrencies of the load steps
_USERS = "1,2,4,8"
#: longest prompt and answer of a live server [token], and longest time limit [s]
_MOST_TOKENS, _DAY = 10_000_000, 86_400.0
#: requests a second that one client can offer [1/s]
_MOST_RATE = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedOptions:
    """Server and known facts of its deployment."""

    model: Annotated[str | None, typer.Argument(help="The model to predict, as in `fit`.")] = None
    url: Annotated[str, typer.Option(help="Base address of the server: http://host:8000/v1")] = ""
    served: Annotated[str | None, typer.Option("--model", help="The model's name on the server.")] = None
    on: Annotated[str | None, typer.Option(help="The machine to predict for: a host or 8xACCELERATOR.")] = None
    plan: Annotated[Path | None, typer.Option(help="A plan (JSON) that names model, machine and layout.")] = None
    facts: Annotated[
        list[str] | None, typer.Option("--set", help="More of the deployment, as column=value: --set tp=8.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LadderOptions:
    """Load steps of a run."""

    users: Annotated[str, typer.Option(help="Concurrency of the load steps: 1,2,4 or 1-64 (doubling).")] = _USERS
    traffic: Annotated[
        str | None, typer.Option(help="Traffic as in `simulate`: closed:8, poisson:2/s, trace:FILE.")
    ] = None
    rates: Annotated[str | None, typer.Option(help="Request rates of an open loop [1/s]: 0.5,1,2.")] = None
    input: Annotated[int, typer.Option("--input", min=1, max=_MOST_TOKENS, help="Length of the prompts [token].")] = (
        1024
    )
    output: Annotated[int, typer.Option("--output", min=1, max=_MOST_TOKENS, help="Length of the answers [token].")] = (
        256
    )
    jitter: Annotated[float, typer.Option(min=0, max=0.99, help="Lengths from 1 - jitter to 1 times these.")] = 0.0
    shared_prefix: Annotated[
        int, typer.Option(min=0, max=_MOST_TOKENS, help="Tokens of a prefix shared by all prompts.")
    ] = 0
    seconds: Annotated[
        float, typer.Option("--seconds-per-step", min=0.5, max=_DAY, help="Counted time of a step [s].")
    ] = 20.0
    requests: Annotated[
        int | None, typer.Option(min=1, max=10_000_000, help="Requests of a step, instead of a time.")
    ] = None
    longest: Annotated[float, typer.Option(min=1, max=_DAY, help="Limit of one step [s].")] = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Requests of the client, and its stop conditions."""

    chat: Annotated[bool, typer.Option(help="Chat completions instead of completions.")] = False
    tokenizer: Annotated[str | None, typer.Option(help="Local tokenizer, if the server has none.")] = None
    max_ttft: Annotated[float, typer.Option(min=0, help="Stop when the median TTFT is above this [s].")] = 60.0
    max_errors: Annotated[float, typer.Option(min=0, max=1, help="Stop at this share of failed requests.")] = 0.2
    falling: Annotated[
        float, typer.Option(min=0, max=1, help="Stop when a step has less than this share of the best throughput.")
    ] = 0.7
    timeout: Annotated[float, typer.Option(min=0.1, max=_DAY, help="Longest wait for a first token [s].")] = 300.0
    stall: Annotated[float, typer.Option(min=0.1, max=_DAY, help="Longest wait between tokens [s].")] = 60.0
    insecure: Annotated[bool, typer.Option(help="Do not check the server's certificate.")] = False
    seed: Annotated[int, typer.Option(min=0, help="Seed of prompts, lengths and arrivals.")] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Files, printed output and exit code."""

    out: Annotated[Path | None, typer.Option(help="Folder of the record, the report and the journal.")] = None
    resume: Annotated[bool, typer.Option(help="Continue the run in the folder.")] = False
    calibrate_on: Annotated[
        str | None, typer.Option(help="Steps to calibrate on: 1,4; the others are then predicted.")
    ] = None
    fail_over: Annotated[
        str | None,
        typer.Option(help="Exit with 1 if a metric differs by more: 20%; or `interval`: by more than chance allows."),
    ] = None
    slo: Annotated[
        str | None,
        typer.Option(help="SLO, such as 'ttft p95 < 2 s': exit with 1 if the last step misses it."),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the record as JSON.")] = False
    site: Annotated[Given, plan("validate")] = field(default_factory=dict)


@with_options()
def command(server: ServedOptions, asked: LadderOptions, client: ClientOptions, report: ReportOptions) -> None:
    """Measure a live OpenAI-compatible server and compare predictions.

    The API key is taken from GLMPLAN_API_KEY or OPENAI_API_KEY and never written anywhere.
    """
    from glmplan.measure.client import Endpoint
    from glmplan.measure.explanations import likely_causes
    from glmplan.measure.ladder import record_csv, record_json, slo_targets, slo_verdicts
    from glmplan.measure.predicted_steps import consistent, worst
    from glmplan.measure.validation import deployment_facts, ignored_in_plan, parse_share
    from glmplan.prediction.step_models import site_calibration
    from glmplan.present.validation_page import compared_json, html_page, prepare_plots

    endpoint = Endpoint(server.url, server.served or "", client.chat, verify=not client.insecure)
    by_interval = report.fail_over == "interval"
    bound = parse_share(report.fail_over) if report.fail_over is not None and not by_interval else None
    targets = slo_targets(report.slo) if report.slo is not None else ()
    ladder = _ladder(asked, client.seed)
    known = deployment_facts(model=server.model, on=server.on, plan=server.plan, pairs=server.facts or [])
    ignored = ignored_in_plan(server.plan) if server.plan is not None else ""
    if ignored:
        say(f"warning: {server.plan}: ignored, as no column of a run has this name: {ignored}", err=True)
    if report.out is not None:
        prepare_plots()
    _read_tables(endpoint, ladder, known, report.site.get("calibration"))
    record, journal, ended = _climb(endpoint, ladder, client, report)
    # measurements are on disk before any computation
    files = {"record.json": record_json(record), "runs.csv": record_csv(record, known)}
    kept = report.out is None or _keep(report.out, files)
    with site_calibration(report.site.get("calibration")):
        compared, said, pool = _compared(record, known, report.calibrate_on)
    causes = likely_causes(
        record, compared, predicted_pool=pool, speculative=known.get("speculative", "none") != "none"
    )
    verdicts = slo_verdicts(record, targets)
    text = record_json(record, compared_json(compared, causes, pool), verdicts)
    if report.out is not None:
        page = html_page(record, compared, causes, said, in_time=ended.in_time)
        kept = _keep(report.out, {"record.json": text, "report.html": endpoint.outside.blot(page)}) and kept
    if report.as_json:
        say(text, end="")
    else:
        show_ladder(record, compared, causes, said, report.out if kept else None)
        for one in verdicts:
            say(one.text)
    if report.out is not None and not kept:
        say(f"not every file of the run could be written to {report.out}: see above", err=True)
    if journal.faults:
        say(f"warning: {journal.faults} writes of the journal failed: {journal.last_fault}", err=True)
    if record.stopped:
        say(f"stopped early: {record.stopped}", err=True)
    if ended.by:
        _leave(128 + ended.by)
    if record.faulty:
        say("the run is incomplete: see the faults above" if record.steps else "nothing was measured", err=True)
    if record.faulty or not kept or journal.unwritten:
        raise typer.Exit(1)
    if not all(one.met for one in verdicts):
        raise typer.Exit(1)
    if bound is not None and (not compared or worst(compared) > bound) or by_interval and not consistent(compared):
        raise typer.Exit(1)


def _leave(code: int) -> None:
    """End the process without the interpreter's own end.

    On a busy machine that takes as long as everything else after a signal.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _ladder(asked: LadderOptions, seed: int) -> Any:
    """Return the load steps of a run."""
    from glmplan.measure.validation import ladder_plan, parse_users
    from glmplan.simulation.traffic.spec import parse_traffic

    spec = parse_traffic(
        asked.traffic or f"closed:{parse_users(asked.users)[0]}",
        input=asked.input,
        output=asked.output,
        jitter=asked.jitter or None,
        shared_prefix=asked.shared_prefix or None,
    )
    levels: tuple[float, ...] = ()
    if spec.kind == "closed" and (asked.traffic is None or asked.users != _USERS):
        levels = parse_users(asked.users)
    elif asked.rates is not None:
        levels = _rates(asked.rates)
    return ladder_plan(
        spec, levels=levels, seconds=asked.seconds, requests=asked.requests, longest=asked.longest, seed=seed
    )


def _read_tables(endpoint: Any, ladder: Any, known: dict[str, Any], calibration: Any) -> None:
    """Read the tables of predictions before the load.

    No signal should wait for them at the end of a run.
    """
    from glmplan.errors import GlmplanError
    from glmplan.measure.ladder import LadderRecord
    from glmplan.prediction.step_models import site_calibration

    if all(known.get(name) for name in ("model", "accelerator", "engine")):
        with suppress(GlmplanError), site_calibration(calibration):
            _predicted(LadderRecord(endpoint, ladder), known, ())


def _compared(record: Any, known: dict[str, Any], calibrate_on: str | None) -> tuple[Any, str, Any]:
    """Return measured and predicted metrics, evidence and KV pool."""
    from glmplan.errors import GlmplanError
    from glmplan.measure.predicted_steps import compare
    from glmplan.measure.validation import parse_users

    if not (known.get("model") and known.get("accelerator")):
        return [], "no prediction: give MODEL and --on, or --plan", None
    if not record.steps:
        return [], "no prediction: no step was measured", None
    try:
        steps, assumed, pool = _predicted(record, known, parse_users(calibrate_on) if calibrate_on else ())
        said = f"predicted for {known['model']} on {known['accelerator']}: {'; '.join(assumed)}"
        return compare(record.steps, steps), said, pool
    except GlmplanError as error:
        return [], f"no prediction: {error}", None


def _predicted(record: Any, known: dict[str, Any], calibrate_on: tuple[int, ...]) -> tuple[Any, ...]:
    from glmplan.errors import SpecError
    from glmplan.measure.predicted_steps import fit_site, ladder_cases, predicted_pool, predicted_steps

    served = {**record.facts.layout, "engine": record.facts.engine, "engine_version": record.facts.version}
    about = {**{k: v for k, v in served.items() if v is not None}, **known}
    measured = {step.level: step.figures for step in record.steps}
    cases, assumed = ladder_cases(record.plan, about, served=record.facts, measured=measured)
    site = None
    if calibrate_on:
        told = [case for case in cases if case.level in calibrate_on and case.level in measured]
        if not told:
            levels = [f"{level:g}" for level in measured]
            raise SpecError(
                "is no load step of this run", field="--calibrate-on", value=calibrate_on[0], choices=levels
            )
        site = fit_site(told, [measured[case.level] for case in told])
        cases = [case for case in cases if case not in told]
    pool = predicted_pool(cases[0], record.facts) if cases else None
    steps, rests = predicted_steps(cases, site=site)
    if pool is not None:
        rests.append(f"KV pool {pool[0]:,.0f} tokens predicted ({pool[1]:,.0f} to {pool[2]:,.0f})")
    return steps, [*assumed, *rests], pool


def _rates(text: str) -> tuple[float, ...]:
    from glmplan.errors import SpecError
    from glmplan.units import finite_number

    try:
        found = tuple(sorted(finite_number(part.strip().removesuffix("/s"), "--rates") for part in text.split(",")))
    except SpecError:
        found = ()
    if not found or found[0] <= 0 or found[-1] > _MOST_RATE:
        words = f"is not a list of rates such as 0.5,1,2, of {_MOST_RATE:,} at most"
        raise SpecError(words, field="--rates", value=text)
    return found


#: time after a signal until which plots are drawn, and CPU time of a plot [s]
_PLOTS, _PLOT = 2.0, 0.2


@dataclass(slots=True)
class _Ended:
    """The signal that ended a run."""

    by: int = 0  # number of the signal; 0: none
    wall: float = 0.0  # this and the next: clocks at the signal [s]
    cpu: float = 0.0

    def in_time(self) -> bool:
        """Return True if another plot is drawn in time, at this share of a core."""
        wall, cpu = time.monotonic() - self.wall, time.process_time() - self.cpu
        return not self.by or wall * (1.0 + _PLOT / max(cpu, 1e-3)) < _PLOTS


def _climb(endpoint: Any, ladder: Any, client: ClientOptions, report: ReportOptions) -> Any:
    import asyncio
    import signal

    from glmplan.measure.client import Patience
    from glmplan.measure.guard import Limits
    from glmplan.measure.ladder import climb
    from glmplan.measure.validation import DaemonThreads

    journal, earlier = _journal(endpoint, report)
    ended = _Ended()
    progress = ladder_bar(hidden=report.as_json)

    async def run() -> Any:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(DaemonThreads())

        def end(by: int) -> None:
            # the first signal stops the measurement and keeps the record; a second one ends the program
            ended.by, ended.wall, ended.cpu = by, time.monotonic(), time.process_time()
            journal.flushes = False
            stop.set()
            for one in endings:
                loop.remove_signal_handler(one)

        endings = [one for one in (getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")) if one]
        for one in endings:
            loop.add_signal_handler(one, end, int(one))
        task = progress.add_task("asking the server", total=1.0, figures="")

        def look(level: float, now: Any) -> None:
            unit = "req/s" if ladder.schedules else "users"
            shown = f"{now.rate:,.0f} tok/s  TTFT {now.ttft * 1e3:,.0f} ms  {now.done} done"
            shown += f"  {now.faults} failed" if now.faults else ""
            progress.update(task, description=f"{level:g} {unit}, {now.state}", completed=now.share, figures=shown)

        return await climb(
            endpoint,
            ladder,
            journal=journal,
            stop=stop,
            earlier=earlier,
            look=look,
            patience=Patience(first_token=client.timeout, stall=client.stall),
            limits=Limits(ttft=client.max_ttft, error_rate=client.max_errors, falling=client.falling),
            tokenizer=client.tokenizer,
        )

    try:
        with progress:
            record = asyncio.run(run())
    finally:
        journal.close()
    return record, journal, ended


def _journal(endpoint: Any, report: ReportOptions) -> tuple[Any, list[dict[str, Any]]]:
    """Return the locked journal, and the lines of the run to resume."""
    from glmplan.errors import SpecError
    from glmplan.measure.journal import Journal

    out = report.out
    path = None if out is None else out / "journal.jsonl"
    if report.resume and (path is None or not os.path.exists(path)):
        raise SpecError("has no journal to go on with", field="--resume", value=str(out))
    # it locks the folder, so no other run writes to the lines that are read
    journal = Journal(path, endpoint.outside)
    lines = Journal.read(path) if path is not None and os.path.isfile(path) else []
    if not any(line["kind"] == "begin" for line in lines):
        return journal, []  # killed before it measured: the run starts anew
    if not report.resume:
        journal.close()
        raise SpecError("holds a run already; choose another folder or give --resume", field="--out", value=str(out))
    return journal, lines


def _keep(out: Path, files: dict[str, str]) -> bool:
    """Write files; return True if all could be written."""
    from glmplan.catalog.files import write_atomically
    from glmplan.errors import SpecError

    whole = True
    for name, content in files.items():
        try:
            write_atomically(out / name, content)
        except SpecError as error:
            whole = False
            say(f"warning: {error}", err=True)
            if name == "runs.csv":
                # a full disk must not lose measurements
                say(content, err=True)
    return whole
