"""The ladder: load steps one after another on one server, with a guard, a journal and a record at the end."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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

__all__ = [
    "LadderPlan",
    "LadderRecord",
    "Promised",
    "StepResult",
    "climb",
    "named_endpoint",
    "promised",
    "promised_targets",
    "record_csv",
    "record_json",
    "record_rows",
    "suited_endpoint",
]


#: time to get to know a server besides its first answers [s]
_MEETING = 900.0
#: answers whose counts cannot be, above which a step says nothing [-]
_DOUBTFUL = 0.01
#: tokens drafted for one step, beyond which a counter is wrong; published drafts and trees have some tens [token]
_DRAFTED = 256
#: mean time per output token below which a stream was held back and came whole: 50,000 tokens a second for one user
#: are far beyond any engine [ms]
_AT_ONCE = 0.02


@dataclass(frozen=True, slots=True)
class LadderPlan:
    """What is offered to the server.

    Parameters
    ----------
    lengths : Lengths
        How long prompts and answers are.
    users : tuple of int, optional
        Steps of a closed loop: requests kept in flight, [-]
    schedules : tuple, optional
        Steps of an open loop: the rate [1/s] and its arrivals.
    seconds : float, optional
        Counted time of each closed step once it is steady, [s]
    requests : int, optional
        Instead of seconds: requests of each closed step, all users starting together, [-]
    longest : float, optional
        Limit of one step, [s]
    seed : int, optional
        Seed of lengths and prompts, [-]
    """

    lengths: Lengths
    users: tuple[int, ...] = ()
    schedules: tuple[tuple[float, tuple[Arrival, ...]], ...] = ()
    seconds: float = 20.0
    requests: int | None = None
    longest: float = 300.0
    seed: int = 0

    def settings(self) -> dict[str, Any]:
        """Return what must be the same for a run to be resumed."""
        kept = dataclasses.asdict(self)
        kept["schedules"] = [[rate, len(arrivals)] for rate, arrivals in self.schedules]
        kept["users"] = list(self.users)
        return kept


@dataclass(slots=True)
class StepResult:
    """One step of the ladder.

    Parameters
    ----------
    level : float
        Users [-] or rate [1/s]
    figures : dict
        Columns of the measurement tables.
    outcomes : dict
        How all requests of the step ended, [-]
    errors : dict
        Standard errors of the figures, in their units [-]
    steady : bool
        Whether it reached a steady state.
    transient, wall : float
        Time before counting and counted time, [s]
    complete : bool
        False where it was cut short.
    server : dict
        Counters of the server over the step.
    cards : dict
        Accelerators of this host over the step.
    notes : list of str
        What to know about it.
    unusable : str
        Why its figures mean nothing; empty where they do.
    quantiles : dict
        Percentiles that a promise may bound, as `ttft_p95_ms`, [ms]
    """

    level: float
    figures: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    steady: bool = True
    transient: float = 0.0
    wall: float = 0.0
    complete: bool = True
    server: dict[str, float] = field(default_factory=dict)
    cards: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unusable: str = ""
    quantiles: dict[str, float] = field(default_factory=dict)

    @property
    def faults(self) -> int:
        """Requests that ended in a fault, [-]"""
        return sum(count for name, count in self.outcomes.items() if Outcome(name).is_fault)


@dataclass(slots=True)
class LadderRecord:
    """Everything a ladder found.

    Parameters
    ----------
    endpoint : Endpoint
        The server as it was spoken to.
    plan : LadderPlan
        What was offered.
    facts : ServerFacts
        What the server told of itself.
    steps : list of StepResult
        The steps, the lowest first.
    overhead : Overhead or None
        What the client adds.
    prompts : str
        How prompt lengths are known.
    stopped : str
        Why it ended early; empty if it did not.
    journal_faults : int
        Failed attempts to write the journal, [-]
    started : str
        Date and time.
    faulty : bool
        Whether faults of the server ended it, or no step measured anything.
    """

    endpoint: Endpoint
    plan: LadderPlan
    facts: ServerFacts = field(default_factory=ServerFacts)
    steps: list[StepResult] = field(default_factory=list)
    overhead: Overhead | None = None
    prompts: str = ""
    stopped: str = ""
    journal_faults: int = 0
    started: str = ""
    faulty: bool = False


def named_endpoint(endpoint: Endpoint, facts: ServerFacts) -> Endpoint:
    """Return the endpoint with a model's name that the server knows.

    `endpoint`: The server; an empty model name asks for the only one there is.
    """
    if not facts.models or endpoint.model in facts.models:
        return endpoint
    if not endpoint.model and len(facts.models) == 1:
        return dataclasses.replace(endpoint, model=facts.models[0])
    raise SpecError("is not served there", field="--model", value=endpoint.model, choices=facts.models)


async def suited_endpoint(client: Client) -> Endpoint:
    """Find out which of the optional fields a server takes, by asking for two tokens.

    Returns: The endpoint without the fields that it rejects.
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
    """Run a ladder against a server.

    - `stop`: Set it to end early; what was measured is returned.
    - `earlier`: Lines of the journal of a run to go on with.
    - `look`: Called with the level and its running figures.
    - Returns: The record; `stopped` says why it ended early.
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
                before = await read_gauges(client)
                measured = await run()
                step = _result(level, measured, plan)
                step.server = changed(before, await read_gauges(client))
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
    """Close a record, however it ended."""
    record.stopped = guard.reason or ("ended by the user" if stop.is_set() else "")
    measured = any(step.figures.get("num_requests") and not step.unusable for step in record.steps)
    record.faulty = guard.by_fault or (not measured and not stop.is_set())
    journal.write("end", stopped=record.stopped)
    journal.sync()
    record.journal_faults = journal.faults
    record.steps.sort(key=lambda step: step.level)
    return record


async def _unless(stop: asyncio.Event, meeting: Coroutine[Any, Any, PromptMaker], client: Client) -> PromptMaker | None:
    """Get to know a server within bounds; None where the user ends it before."""
    patience = client.patience
    limit = _MEETING + 4 * (patience.first_token + patience.stall)
    task, ending = asyncio.create_task(meeting), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((task, ending), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
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
    """Learn what the server is and takes, and what the client adds; the maker of its prompts."""
    plan = record.plan
    record.facts = await read_server(client)
    client.endpoint = endpoint = named_endpoint(record.endpoint, record.facts)
    # a first answer that never ends must not keep us; in the ladder the limit of a step does that
    calm, client.patience = client.patience, _first_answers(client.patience)
    record.endpoint = await suited_endpoint(client)
    if not record.endpoint.ignore_eos:
        journal.write("note", text="the server rejects ignore_eos: answers may be shorter than asked")
    maker = await prepare_prompts(client, tokenizer=tokenizer)
    client.patience = calm
    record.prompts = maker.method
    most = max([*plan.users, 1]) if plan.users else 32
    overhead = await measure_overhead(min(most, 512), chat=endpoint.chat, together=plan.requests is not None)
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
    asked = plan.lengths.output_tokens * plan.lengths.shortest
    if figures["output_tokens"] < 0.98 * asked:
        step.notes.append("answers are shorter than asked: the server stops at the end token")
    for how, count in tally.counted_by.items():
        if how != "usage":
            step.notes.append(f"{count} requests counted by {how}")
    if tally.cached_tokens > 0.05 * max(tally.input_tokens, 1):
        step.notes.append(f"{tally.cached_tokens / tally.input_tokens:.0%} of the prompts came from the prefix cache")
    if tally.chunks and tally.output_tokens > 1.15 * tally.chunks:
        step.notes.append(f"{tally.output_tokens / tally.chunks:.2f} tokens in a chunk: speculation or bundling")
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
            # counts that cannot be say nothing of times per token either: what was measured stays in the journal
            step.unusable = reason
            kept = ("concurrency", "concurrency_effective", "request_rate_per_s", "wall_s", "num_requests")
            step.figures = {name: value for name, value in figures.items() if name in kept}
            step.errors, step.quantiles = {}, {}
    return step


def _tell_of_whole_answers(step: StepResult) -> None:
    """Leave out the times of tokens where answers came whole: a proxy that gathers a stream would make them 0."""
    if step.figures.get("tpot_mean_ms", _AT_ONCE) < _AT_ONCE:
        step.notes.append("answers came whole, so something on the way gathers the stream: times of tokens are unknown")
        for held in (step.figures, step.errors, step.quantiles):
            for name in [one for one in held if one.startswith(("ttft_", "tpot_", "itl_"))]:
                del held[name]


def _tell_from_counters(step: StepResult) -> None:
    """Put into a step what the server's counters say of speculation and of the prefix cache, as far as it can be."""
    gained = step.server
    drafts, accepted, length = gained.get("drafts", 0.0), gained.get("accepted_tokens", 0.0), None
    if drafts > 0:
        # each draft yields its accepted tokens and one more, which the model itself makes
        length = 1.0 + accepted / drafts
    elif gained.get("acceptance_length", 0) > 1:
        length = gained["acceptance_length"]
    if accepted > gained.get("draft_tokens", accepted) or (length or 0.0) > 1.0 + _DRAFTED:
        step.notes.append("the server's counters of drafts cannot be: more tokens accepted than drafted")
    elif length is not None:
        step.figures["acceptance_length"] = length
    hits, asked = gained.get("prefix_hits", 0.0), gained.get("prefix_queries") or gained.get("prompt_tokens") or 0.0
    known = any("prefix cache" in note for note in step.notes)
    if 0.05 * asked < hits <= asked and not known:
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
    """A step as a journal holds it; nobody but a person could have written another one."""
    names = {f.name for f in dataclasses.fields(StepResult)}
    step = StepResult(**{"level": None, **{k: v for k, v in line.items() if k in names}})
    held = (step.figures, step.errors, step.server, step.outcomes, step.quantiles)
    slow = step.cards.get("throttled_share", {}) if isinstance(step.cards, dict) else None
    fits = all(isinstance(one, dict) for one in (*held, slow)) and isinstance(step.notes, list)
    fits = fits and all(isinstance(one, str) for one in (*step.notes, step.unusable))
    numbers = [step.level, step.transient, step.wall, *(slow.values() if fits else ())]
    if fits:
        # what was no number is null in a journal
        step.figures, step.errors = ({k: v for k, v in one.items() if v is not None} for one in held[:2])
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


# What was promised beside what was measured: whether the last step of a ladder keeps every target.


@dataclass(frozen=True, slots=True)
class Promised:
    """One target and what was measured of it.

    Parameters
    ----------
    target : str
        The promise.
    level : float
        Users [-] or rate [1/s] at which it is judged: the last step.
    bound : float
        What is promised, [ms]
    measured : float or None
        What was measured; None where the step was not reached, or is not whole, [ms]
    why : str
        Why it is not kept; empty where it is.

    Examples
    --------
    >>> Promised("ttft p95 < 2000 ms", 12.0, 2000.0, 726.0).kept
    True
    """

    target: str
    level: float
    bound: float
    measured: float | None
    why: str = ""

    @property
    def kept(self) -> bool:
        """Whether it is kept."""
        return not self.why

    @property
    def words(self) -> str:
        """The verdict as a line."""
        figure = "not measured" if self.measured is None else f"{self.measured:,.4g} ms measured"
        return f"{self.target} at {self.level:g}: {figure}, {f'not kept: {self.why}' if self.why else 'kept'}"


def promised_targets(slo: str) -> tuple[Target, ...]:
    """Read a promise that a client can measure.

    Examples
    --------
    >>> [str(one) for one in promised_targets("ttft p95 < 2 s")]
    ['ttft p95 < 2000 ms']
    """
    targets = parse_slo(slo)
    for one in targets:
        if one.metric == "queue":
            raise SpecError("is about what only the server sees: promise ttft", field="--slo", value=str(one))
    return targets


def promised(record: LadderRecord, targets: Sequence[Target]) -> tuple[Promised, ...]:
    """Judge a promise at the last step of a ladder.

    Returns: One for each target. A step that was not reached, was cut short, had failed requests or means nothing
      keeps none.
    """
    levels = [float(level) for level in (*record.plan.users, *(rate for rate, _ in record.plan.schedules))]
    level = max(levels)
    step = next((one for one in record.steps if one.level == level), None)
    if step is None:
        return tuple(Promised(str(one), level, 1e3 * one.bound, None, "the step was not reached") for one in targets)
    whole = "" if step.complete else "the step was cut short"
    whole = whole or step.unusable or (f"{step.faults} requests failed" if step.faults else "")
    rows = []
    for one in targets:
        measured = (step.figures | step.quantiles).get(one.name)
        late = "" if measured is None or measured < 1e3 * one.bound else "it is later"
        why = whole or late or ("nothing says it" if measured is None else "")
        rows.append(Promised(str(one), level, 1e3 * one.bound, measured, why))
    return tuple(rows)


# The record of a ladder as rows of the measurement tables, as JSON, and back from a journal.


def record_rows(record: LadderRecord, facts: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the steps of a ladder as measured runs.

    - `facts`: Columns that neither server nor client knows: `model`, `accelerator`, `weights`, layout.
    - Returns: One row for each step with at least one finished request; `glmplan predict --runs` and `calibrate
      --from` read them.
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
            # counted in the steady state: no start-up burst is in these figures
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
    """Return the record as CSV in the column form of the measurement tables."""
    return table_csv(record_rows(record, facts))


def record_json(record: LadderRecord, compared: Any = None, promise: Sequence[Promised] = ()) -> str:
    """Return everything in a record as JSON.

    - `promise`: What was promised, and whether it was kept.
    - Returns: JSON. It holds no key, no NaN and no infinity.
    """
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
        "slo": [dataclasses.asdict(one) | {"met": one.kept} for one in promise],
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
