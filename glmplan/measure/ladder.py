"""Run load steps in sequence on one server.

A run has a guard, a journal, a record and an SLO verdict.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from glmplan.errors import NoServer, SpecError
from glmplan.io.runs.columns import COLUMNS
from glmplan.io.runs.importers import table_csv
from glmplan.measure.client import Client, Endpoint, Outcome, Patience
from glmplan.measure.guard import CardWatch, Guard, Limits
from glmplan.measure.journal import Journal
from glmplan.measure.load import Arrival, Lengths, Loader, Measured, Running
from glmplan.measure.overhead import Overhead, measure_overhead
from glmplan.measure.prompts import PromptMaker, prepare_prompts
from glmplan.measure.server_facts import ServerFacts, changed, read_gauges, read_server
from glmplan.simulation.traffic.slo import Target, parse_slo
from glmplan.units import Milliseconds, Seconds

__all__ = [
    "LadderPlan",
    "LadderRecord",
    "SloVerdict",
    "StepResult",
    "climb",
    "named_endpoint",
    "record_csv",
    "record_json",
    "record_rows",
    "slo_targets",
    "slo_verdicts",
    "suited_endpoint",
]


_T = TypeVar("_T")
#: time limit for probing a server, besides its first answers [s]
_MEETING = 900.0
#: time for the counters of a step that a signal ended [s]
_LAST_PAGE = 0.5
#: share of impossible token counts above which a step is unusable [-]
_DOUBTFUL = 0.01
#: draft tokens per step above which a counter is wrong; published drafts and trees have tens [token]
_DRAFTED = 256
#: mean TPOT below which a stream was buffered: 50,000 tokens/s for one user exceed any engine [ms]
_AT_ONCE = 0.02


@dataclass(frozen=True, slots=True)
class LadderPlan:
    """Load steps of a run: concurrency or request rates, in order."""

    lengths: Lengths
    users: tuple[int, ...] = ()  # closed loop: concurrency of each step
    schedules: tuple[tuple[float, tuple[Arrival, ...]], ...] = ()  # open loop: rate [1/s] and arrivals of each step
    seconds: Seconds = 20.0  # counted time of a steady closed step
    requests: int | None = None  # instead of seconds: requests of a closed step, users starting together
    longest: Seconds = 300.0  # limit of one step
    seed: int = 0

    def settings(self) -> dict[str, Any]:
        """Return the settings that a resumed run must share."""
        settings = dataclasses.asdict(self)
        settings["schedules"] = [[rate, len(arrivals)] for rate, arrivals in self.schedules]
        settings["users"] = list(self.users)
        return settings


@dataclass(slots=True)
class StepResult:
    """Results of one load step."""

    level: float  # users [-] or rate [1/s]
    figures: dict[str, float] = field(default_factory=dict)  # metrics by measurement-table column
    outcomes: dict[str, int] = field(default_factory=dict)  # outcome → requests
    errors: dict[str, float] = field(default_factory=dict)  # standard errors of the metrics
    steady: bool = True
    transient: Seconds = 0.0  # uncounted start
    wall: Seconds = 0.0  # counted
    complete: bool = True  # False if cut short
    server: dict[str, float] = field(default_factory=dict)  # server counters
    cards: dict[str, Any] = field(default_factory=dict)  # accelerators of this host
    notes: list[str] = field(default_factory=list)
    unusable: str = ""  # reason why its metrics are invalid
    quantiles: dict[str, float] = field(
        default_factory=dict
    )  # percentiles that an SLO may limit, as `ttft_p95_ms` [ms]

    @property
    def faults(self) -> int:
        """Return the number of failed requests."""
        return sum(count for name, count in self.outcomes.items() if Outcome(name).is_fault)


@dataclass(slots=True)
class LadderRecord:
    """Results of the load steps of a run, in ascending order."""

    endpoint: Endpoint
    plan: LadderPlan
    facts: ServerFacts = field(default_factory=ServerFacts)
    steps: list[StepResult] = field(default_factory=list)
    overhead: Overhead | None = None
    prompts: str = ""  # how prompt lengths are known
    stopped: str = ""  # reason of an early end
    journal_faults: int = 0  # failed writes
    started: str = ""  # date and time
    faulty: bool = False  # ended by server faults, or no step measured anything


def named_endpoint(endpoint: Endpoint, facts: ServerFacts) -> Endpoint:
    """Return the endpoint with a model name that the server has.

    An empty name takes the server's only model.
    """
    if not facts.models or endpoint.model in facts.models:
        return endpoint
    if not endpoint.model and len(facts.models) == 1:
        return dataclasses.replace(endpoint, model=facts.models[0])
    raise SpecError("is not served there", field="--model", value=endpoint.model, choices=facts.models)


async def suited_endpoint(client: Client) -> Endpoint:
    """Return the endpoint without optional fields that the server rejects.

    Found by requests for two tokens.
    """
    endpoint = client.endpoint
    record = None
    for eos, usage in ((True, True), (False, True), (True, False), (False, False)):
        client.endpoint = dataclasses.replace(endpoint, ignore_eos=eos, stream_usage=usage)
        record = await client.send(" the of and", 2)
        if record.outcome is not Outcome.REJECTED:
            break
    assert record is not None
    if record.outcome not in (Outcome.DONE, Outcome.EMPTY):
        raise NoServer(f"gives no answer: {record.outcome}: {record.detail}", field="--url", value=endpoint.url)
    return client.endpoint


async def climb(
    endpoint: Endpoint,
    plan: LadderPlan,
    *,
    journal: Journal,
    stop: asyncio.Event,
    patience: Patience | None = None,
    limits: Limits | None = None,
    tokenizer: str | None = None,
    earlier: Sequence[dict[str, Any]] = (),
    look: Callable[[float, Running], None] = lambda level, running: None,
) -> LadderRecord:
    """Run load steps against a server and return the record.

    Set `stop` to end early with the results so far; `earlier` are journal lines of a run to resume; `look` gets the
    level and its live values.
    """
    guard, cards = Guard(limits), CardWatch()
    record = LadderRecord(endpoint, plan, started=time.strftime("%Y-%m-%d %H:%M:%S"))
    settings = {"url": endpoint.url, "model": endpoint.model, "chat": endpoint.chat, **plan.settings()}
    record.steps = _done_before(earlier, settings)
    async with Client(endpoint, patience) as client:
        maker = await _unless(stop, _meet(client, record, journal, tokenizer, None if earlier else settings), client)
        if maker is None:
            return _ended(record, guard, stop, journal)
        level = 0.0
        loader = Loader(
            client, maker, plan.lengths, guard=guard, journal=journal, stop=stop, seed=plan.seed,
            look=lambda running: look(level, running),
        )  # fmt: skip
        watch = asyncio.create_task(_watch_cards(cards, guard))
        try:
            for level, run in _steps(plan, loader):
                if any(step.level == level for step in record.steps):
                    continue
                if stop.is_set() or guard.reason:
                    break
                guard.next_step()
                before = await _unless(stop, read_gauges(client), client) or {}
                measured = await run()
                step = _result(level, measured, plan)
                step.server = changed(before, await _unless(stop, read_gauges(client), client, _LAST_PAGE) or {})
                _tell_from_counters(step)
                step.cards = cards.summary()
                step.complete = not stop.is_set() and not guard.reason
                if not step.unusable:
                    guard.step(step.figures.get("output_tokens_per_s", 0.0))
                record.steps.append(step)
                journal.write("step", **dataclasses.asdict(step))
                journal.sync()
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
            await loader.leave()
    return _ended(record, guard, stop, journal)


def _ended(record: LadderRecord, guard: Guard, stop: asyncio.Event, journal: Journal) -> LadderRecord:
    """Close a record after any kind of end."""
    record.stopped = guard.reason or ("ended by the user" if stop.is_set() else "")
    measured = any(step.figures.get("num_requests") and not step.unusable for step in record.steps)
    record.faulty = guard.by_fault or (not measured and not stop.is_set())
    journal.write("end", stopped=record.stopped)
    journal.sync()
    record.journal_faults = journal.faults
    record.steps.sort(key=lambda step: step.level)
    return record


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, _T], client: Client, more: Seconds = 0.0) -> _T | None:
    """Return the result of work, or None `more` seconds after `stop`."""
    patience = client.patience
    limit = _MEETING + 4 * (patience.first_token + patience.stall)
    task, ending = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, ending), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if ending.done() and not task.done() and more:
            await asyncio.wait((task,), timeout=more)
        if task.done():
            return task.result()
        if ending.done():
            return None
        raise NoServer(f"tells nothing of use within {limit:.0f} s", field="--url", value=client.endpoint.url)
    finally:
        for one in (task, ending):
            one.cancel()
        await asyncio.gather(task, ending, return_exceptions=True)


async def _meet(
    client: Client, record: LadderRecord, journal: Journal, tokenizer: str | None, begin: dict[str, Any] | None
) -> PromptMaker:
    """Probe server and client overhead; return the prompt maker."""
    plan = record.plan
    record.facts = await read_server(client)
    client.endpoint = endpoint = named_endpoint(record.endpoint, record.facts)
    # a first answer without end must not block; load steps have a limit of their own
    calm, client.patience = client.patience, _first_answers(client.patience)
    record.endpoint = await suited_endpoint(client)
    if not record.endpoint.ignore_eos:
        journal.write("note", text="the server rejects ignore_eos: answers may be shorter than asked")
    maker = await prepare_prompts(client, tokenizer=tokenizer)
    client.patience = calm
    record.prompts = maker.method
    max_users = max([*plan.users, 1]) if plan.users else 32
    overhead = await measure_overhead(min(max_users, 512), chat=endpoint.chat, together=plan.requests is not None)
    record.overhead = overhead
    if begin is not None:
        journal.write("begin", settings=begin, started=record.started)
    journal.write("facts", facts=dataclasses.asdict(record.facts), overhead=dataclasses.asdict(overhead))
    return maker


def _first_answers(patience: Patience) -> Patience:
    return dataclasses.replace(patience, whole=patience.first_token + patience.stall)


def _steps(plan: LadderPlan, loader: Loader) -> list[tuple[float, Callable[[], Any]]]:
    def arriving(arrivals: tuple[Arrival, ...]) -> Callable[[], Any]:
        return lambda: loader.arrivals(arrivals, longest=plan.longest)

    def using(users: int) -> Callable[[], Any]:
        if plan.requests is not None:
            count = plan.requests
            return lambda: loader.requests(users, count=count, longest=plan.longest)
        return lambda: loader.until_steady(users, seconds=plan.seconds, longest=plan.longest)

    if plan.schedules:
        return [(rate, arriving(arrivals)) for rate, arrivals in plan.schedules]
    return [(users, using(users)) for users in sorted(plan.users)]


def _result(level: float, measured: Measured, plan: LadderPlan) -> StepResult:
    tally = measured.tally
    figures: dict[str, float] = {"concurrency_effective": measured.mean_running, "wall_s": measured.wall}
    figures |= {"request_rate_per_s": level} if plan.schedules else {"concurrency": level}
    step = StepResult(level, figures, measured.everything.faults_by_name(), tally.errors(), measured.steady)
    step.errors["output_tokens_per_s"] = measured.output_error
    step.transient, step.wall = measured.transient, measured.wall
    if not tally.done:
        step.steady = False
        step.notes.append("no request of this step ended well")
        return step
    figures |= tally.figures()
    step.quantiles = tally.quantiles()
    figures["num_requests"] = tally.done
    figures["output_tokens_per_s"] = measured.output_rate
    figures["total_tokens_per_s"] = measured.output_rate + measured.input_rate
    if tally.stopped > 0.02 * tally.done:
        stopped = f"{tally.stopped} of {tally.done} answers"
        step.notes.append(f"{stopped} are shorter than asked: the server stops at the end token")
    if tally.hidden_tokens:
        share = tally.hidden_tokens / tally.output_tokens
        step.notes.append(
            f"{share:.0%} of the output tokens are reasoning that is not streamed: TTFT includes it, TPOT does not"
        )
    if tally.other_model:
        step.notes.append(f"the stream names the model {tally.other_model}, not the requested one")
    for how, count in tally.counted_by.items():
        if how != "usage":
            step.notes.append(f"{count} requests counted by {how}")
    if tally.cached_tokens > 0.05 * max(tally.input_tokens, 1):
        step.notes.append(f"{tally.cached_tokens / tally.input_tokens:.0%} of the prompts came from the prefix cache")
    streamed = tally.output_tokens - tally.hidden_tokens
    if tally.chunks and streamed > 1.15 * tally.chunks:
        step.notes.append(f"{streamed / tally.chunks:.2f} tokens in a chunk: speculation or bundling")
    if measured.everything.retries:
        step.notes.append(f"{measured.everything.retries} requests sent again on a closed connection")
    if measured.everything.throttled:
        step.notes.append(f"{measured.everything.throttled} answers were 429 or 503")
    if tally.late_p99() > 0.1:
        step.notes.append(f"the client sent up to {tally.late_p99():.2f} s late")
    if not measured.steady:
        step.notes.append("no steady state within the time")
    _tell_of_whole_answers(step)
    if tally.doubtful:
        reason = f"{tally.doubtful} of {tally.done} answers cannot be: {tally.doubt}"
        step.notes.append(reason)
        if tally.doubtful > _DOUBTFUL * tally.done:
            # impossible counts make times per token invalid, too; the journal keeps the raw values
            step.unusable = reason
            load_columns = ("concurrency", "concurrency_effective", "request_rate_per_s", "wall_s", "num_requests")
            step.figures = {name: value for name, value in figures.items() if name in load_columns}
            step.errors, step.quantiles = {}, {}
    return step


def _tell_of_whole_answers(step: StepResult) -> None:
    """Drop token times of buffered answers: a collecting proxy makes them 0."""
    if step.figures.get("tpot_mean_ms", _AT_ONCE) < _AT_ONCE:
        step.notes.append("answers came whole, so something on the way gathers the stream: times of tokens are unknown")
        for held in (step.figures, step.errors, step.quantiles):
            for name in [one for one in held if one.startswith(("ttft_", "tpot_", "itl_"))]:
                del held[name]


def _tell_from_counters(step: StepResult) -> None:
    """Add plausible server counters of speculation and prefix cache to a step."""
    gained = step.server
    drafts, accepted, length = gained.get("drafts", 0.0), gained.get("accepted_tokens", 0.0), None
    if drafts > 0:
        # each draft yields its accepted tokens and one token of the model
        length = 1.0 + accepted / drafts
    elif gained.get("acceptance_length", 0) > 1:
        length = gained["acceptance_length"]
    if accepted > gained.get("draft_tokens", accepted) or (length or 0.0) > 1.0 + _DRAFTED:
        step.notes.append("the server's counters of drafts cannot be: more tokens accepted than drafted")
    elif length is not None:
        step.figures["acceptance_length"] = length
    hits, asked = gained.get("prefix_hits", 0.0), gained.get("prefix_queries") or gained.get("prompt_tokens") or 0.0
    noted = any("prefix cache" in note for note in step.notes)
    if 0.05 * asked < hits <= asked and not noted:
        step.notes.append(f"{hits / asked:.0%} of the prompt tokens came from the prefix cache")


def _done_before(lines: Sequence[dict[str, Any]], settings: dict[str, Any]) -> list[StepResult]:
    if not lines:
        return []
    begin = next((line.get("settings") for line in lines if line["kind"] == "begin"), None)
    begin = begin if isinstance(begin, dict) else None
    for name, value in settings.items():
        if begin is None or begin.get(name) != value:
            was = None if begin is None else begin.get(name)
            raise SpecError(f"differs from the run to resume, which had {was!r}", field=name, value=value)
    return [_step_of(line) for line in lines if line["kind"] == "step" and line.get("complete") is True]


def _step_of(line: dict[str, Any]) -> StepResult:
    """Return the step of a journal line."""
    names = {f.name for f in dataclasses.fields(StepResult)}
    step = StepResult(**{"level": None, **{k: v for k, v in line.items() if k in names}})
    tables = (step.figures, step.errors, step.server, step.outcomes, step.quantiles)
    slow = step.cards.get("throttled_share", {}) if isinstance(step.cards, dict) else None
    fits = all(isinstance(one, dict) for one in (*tables, slow)) and isinstance(step.notes, list)
    fits = fits and all(isinstance(one, str) for one in (*step.notes, step.unusable))
    numbers = [step.level, step.transient, step.wall, *(slow.values() if fits else ())]
    if fits:
        # NaN is null in a journal
        step.figures, step.errors = ({k: v for k, v in one.items() if v is not None} for one in tables[:2])
        numbers += [v for one in (step.figures, step.errors, step.server, step.outcomes) for v in one.values()]
        numbers += step.quantiles.values()
        fits = set(step.outcomes) <= {str(one) for one in Outcome}
    if not fits or any(type(one) not in (int, float) for one in numbers):
        raise SpecError("holds a step that no run wrote; choose another folder", field="--resume", value=step.level)
    return step


async def _watch_cards(cards: CardWatch, guard: Guard) -> None:
    if not cards.names:
        return
    while True:
        sample = await asyncio.to_thread(cards.sample)
        if sample is not None:
            guard.temperature(sample.temperature)
        await asyncio.sleep(1.0)


@dataclass(frozen=True, slots=True)
class SloVerdict:
    """Verdict on one SLO target at the last step."""

    target: str
    level: float  # users [-] or rate [1/s]
    bound: Milliseconds
    measured: Milliseconds | None  # None if the step was not reached or is incomplete
    why: str = ""  # reason of a missed target; empty if met

    @property
    def met(self) -> bool:
        """Return True if the target is met."""
        return not self.why

    @property
    def text(self) -> str:
        """Return the verdict as a line."""
        value = "not measured" if self.measured is None else f"{self.measured:,.4g} ms measured"
        return f"{self.target} at {self.level:g}: {value}, {f'missed: {self.why}' if self.why else 'met'}"


def slo_targets(slo: str) -> tuple[Target, ...]:
    """Return the targets of an SLO that a client can measure.

    Examples
    --------
    >>> [str(one) for one in slo_targets("ttft p95 < 2 s")]
    ['ttft p95 < 2000 ms']
    """
    targets = parse_slo(slo)
    for one in targets:
        if one.metric == "queue":
            raise SpecError("cannot be measured by a client: use ttft", field="--slo", value=str(one))
    return targets


def slo_verdicts(record: LadderRecord, targets: Sequence[Target]) -> tuple[SloVerdict, ...]:
    """Return the verdict on each SLO target at the last load step.

    A step that was not reached, was cut short, had faults or is unusable meets no target.
    """
    levels = [float(level) for level in (*record.plan.users, *(rate for rate, _ in record.plan.schedules))]
    level = max(levels)
    step = next((one for one in record.steps if one.level == level), None)
    if step is None:
        return tuple(SloVerdict(str(one), level, 1e3 * one.bound, None, "the step was not reached") for one in targets)
    fault = "" if step.complete else "the step was cut short"
    fault = fault or step.unusable or (f"{step.faults} requests failed" if step.faults else "")
    rows = []
    for one in targets:
        measured = (step.figures | step.quantiles).get(one.name)
        late = "" if measured is None or measured < 1e3 * one.bound else "above the limit"
        why = fault or late or ("no measurement" if measured is None else "")
        rows.append(SloVerdict(str(one), level, 1e3 * one.bound, measured, why))
    return tuple(rows)


def record_rows(record: LadderRecord, facts: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the steps with finished requests as measured runs.

    `facts` adds columns unknown to server and client: `model`, `accelerator`, `weights`, layout. Read by `glmplan
    predict --runs` and `calibrate --from`.
    """
    served = record.facts
    about: dict[str, Any] = {
        "campaign": f"validate-{record.started[:10]}",
        "measured_on": record.started[:10] or None,
        "model": record.endpoint.model,
        "checkpoint": served.model,
        "engine": served.engine,
        "engine_version": served.version,
        **served.layout,
        **{key: value for key, value in (facts or {}).items() if value is not None},
    }
    lengths = record.plan.lengths
    rows = []
    outside = record.endpoint.outside
    for step in record.steps:
        if not step.figures.get("num_requests"):
            continue
        name = hashlib.sha256(f"{record.started}{record.endpoint.url}{step.level}".encode()).hexdigest()[:10]
        row = {
            **about,
            **{key: _rounded(value) for key, value in step.figures.items() if key in COLUMNS},
            "id": f"val-{name}",
            "phase": "serving",
            # counted in the steady state, without a start-up burst
            "protocol": None if record.plan.requests is not None or record.plan.schedules else "steady-closed-loop",
            "shared_prompt": "yes" if lengths.shared >= lengths.input_tokens else None,
            "kv_pool_tokens": None if served.kv_tokens is None else _rounded(served.kv_tokens),
            "running_limit": None if served.max_sequences is None else _rounded(served.max_sequences),
            "trust": "B",
            "unusable": step.unusable or None,
            "source": "glmplan validate",
            "notes": _notes(record, step),
        }
        rows.append({column: outside.plain(row[column]) for column in COLUMNS if row.get(column) is not None})
    return rows


def record_csv(record: LadderRecord, facts: Mapping[str, Any] | None = None) -> str:
    """Return the record as CSV in the columns of the measurement tables."""
    return table_csv(record_rows(record, facts))


def record_json(record: LadderRecord, compared: Any = None, verdicts: Sequence[SloVerdict] = ()) -> str:
    """Return record and SLO verdict as JSON, without key, NaN or infinity."""
    value = {
        "started": record.started,
        "endpoint": record.endpoint.told(),
        "plan": record.plan.settings(),
        "facts": dataclasses.asdict(record.facts),
        "overhead": None if record.overhead is None else dataclasses.asdict(record.overhead),
        "prompts": record.prompts,
        "stopped": record.stopped,
        "journal_faults": record.journal_faults,
        "steps": [dataclasses.asdict(step) for step in record.steps],
        "compared": compared,
        "slo": [dataclasses.asdict(one) | {"met": one.met} for one in verdicts],
    }
    return json.dumps(record.endpoint.outside.plain(value), indent=2, allow_nan=False) + "\n"


def _notes(record: LadderRecord, step: Any) -> str:
    faults = ", ".join(f"{count} {name}" for name, count in step.outcomes.items() if name != "done")
    limit = record.facts.max_sequences
    parts = [
        f"max-running {limit:.0f}" if limit and step.level > limit and not record.plan.schedules else "",
        f"steady after {step.transient:.1f} s" if step.transient else "",
        f"not counted as done: {faults}" if faults else "",
        f"prompt lengths by {record.prompts}" if record.prompts else "",
        "cut short" if not step.complete else "",
        *step.notes,
    ]
    return "; ".join(part for part in parts if part)


def _rounded(value: float) -> float | int:
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() else short
