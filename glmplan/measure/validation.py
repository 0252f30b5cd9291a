"""Options of `glmplan validate`: load steps, deployment to predict."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Any, ParamSpec, TypeVar

from glmplan.catalog.files import read_json
from glmplan.errors import SpecError
from glmplan.io.runs.columns import COLUMNS, column_value, ignored_columns
from glmplan.measure.ladder import LadderPlan
from glmplan.measure.load import Arrival, Lengths
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import Ratio, Seconds, finite_number, whole_number

__all__ = ["DaemonThreads", "deployment_facts", "ignored_in_plan", "ladder_plan", "parse_share", "parse_users"]

#: requests of an open-loop step, at least: fewer give no reliable means
_FEWEST = 20
#: streams of one client, and requests planned before a step begins [-]
_MOST_USERS, _MOST_PLANNED = 10_000, 10_000_000


def parse_users(text: str) -> tuple[int, ...]:
    """Return the load levels, from `1,2,4` or doubling from `1-64`.

    Examples
    --------
    >>> parse_users("4,1,2"), parse_users("1-12")
    ((1, 2, 4), (1, 2, 4, 8, 12))
    """
    try:
        if "-" in text:
            low, high = (whole_number(part, "--users", most=_MOST_USERS) for part in text.split("-"))
            levels = [low]
            while 0 < levels[-1] < high:
                levels.append(min(2 * levels[-1], high))
        else:
            levels = sorted({whole_number(part, "--users", most=_MOST_USERS) for part in text.split(",")})
    except ValueError:
        levels = []
    if not levels or levels[0] < 1:
        message = f"is not a list of whole numbers such as 1,2,4 or 1-64, of {_MOST_USERS:,} at most"
        raise SpecError(message, field="--users", value=text)
    return tuple(levels)


def ladder_plan(
    traffic: Traffic,
    *,
    levels: Sequence[float] = (),
    seconds: Seconds = 20.0,
    requests: int | None = None,
    longest: Seconds = 300.0,
    seed: int = 0,
) -> LadderPlan:
    """Return the load steps of a traffic spec, as understood by `simulate`.

    `levels` are users [-], rates [1/s] or trace speeds [-] (default: that of the spec); `seconds` is the counted time
    of a closed step or the length of an open one, `requests` a count instead.
    """
    lengths = Lengths(traffic.input, traffic.output, 1.0 - traffic.jitter, traffic.shared_prefix)
    if traffic.kind == "closed":
        if traffic.think or traffic.input_cv or traffic.output_cv or traffic.lengths:
            raise SpecError(
                "a live closed loop has users without pauses and uniform lengths", field="--traffic", value="closed"
            )
        users = tuple(int(level) for level in levels) or (traffic.users or 1,)
        return LadderPlan(lengths, users, (), seconds, requests, longest, seed)
    if traffic.kind == "sessions":
        raise SpecError("is not offered to live servers yet: use a trace", field="--traffic", value="sessions")
    if traffic.kind == "trace":
        from glmplan.simulation.traffic.conversations import conversation_form

        if form := conversation_form(traffic.file or ""):
            message = (
                f"holds conversations ({form}), which live servers are not asked yet: use requests with their times"
            )
            raise SpecError(message, field="--traffic", file=str(traffic.file))
    own = traffic.speed if traffic.kind == "trace" else traffic.rate or 1.0
    schedules = tuple(
        (float(level), _schedule(traffic.at_load(level), seconds, requests, seed)) for level in levels or (own,)
    )
    return LadderPlan(lengths, (), schedules, seconds, requests, longest, seed)


def _schedule(traffic: Traffic, seconds: float, requests: int | None, seed: int) -> tuple[Arrival, ...]:
    import numpy as np

    if traffic.kind == "trace":
        from glmplan.simulation.traffic.traces import read_trace

        read = read_trace(traffic.file or "", traffic.speed)
        arrivals = [Arrival(one.arrival, one.input, one.output) for one in islice(read, requests or 100_000)]
        if requests is None:
            arrivals = [one for one in arrivals if one.at <= seconds] or arrivals[:1]
        return tuple(arrivals)
    from glmplan.simulation.traffic.sources import request_chunks

    count = requests or max(round((traffic.rate or 1.0) * seconds), _FEWEST)
    if count > _MOST_PLANNED:
        raise SpecError(f"asks for {count:,} requests in a step: at most {_MOST_PLANNED:,}", field="--rates")
    arrivals = []
    for chunk in request_chunks(traffic, count, np.random.default_rng(seed)):
        assert chunk.arrival is not None
        columns = zip(chunk.arrival.tolist(), chunk.input_tokens.tolist(), chunk.output_tokens.tolist(), strict=True)
        arrivals += [Arrival(at, int(prompt), int(answer)) for at, prompt, answer in columns]
    return tuple(arrivals)


def parse_share(text: str) -> Ratio:
    """Return a share from `20%` or `0.2`.

    Examples
    --------
    >>> parse_share("20%"), parse_share("0.2")
    (0.2, 0.2)
    """
    try:
        share = finite_number(text.removesuffix("%"), "--fail-over") / (100 if text.endswith("%") else 1)
    except SpecError:
        share = -1.0
    if not 0 <= share < float("inf"):
        raise SpecError("is not a share such as 20%", field="--fail-over", value=text)
    return share


def deployment_facts(
    *, model: str | None = None, on: str | None = None, plan: Path | None = None, pairs: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the columns that name the deployment to predict.

    `plan` is a file of `glmplan fit --format json`; of other JSON the first object with `model` and `accelerator`
    counts.

    Examples
    --------
    >>> deployment_facts(model="glm-5.1-nvfp4", on="8xrtx-pro-6000-ws", pairs=["tp=8"])["weights"]
    'nvfp4'
    """
    facts: dict[str, Any] = {}
    if plan is not None:
        facts |= _from_plan(plan)
    if model is not None:
        from glmplan.io.models.resolve import resolve_model

        choice = resolve_model(model)
        # paths stay as they are: files are not in the catalog
        named = {"model": choice.model.name, "weights": choice.checkpoint.name}
        facts |= {"model": model} if os.path.exists(model) else named
    if on is not None:
        from glmplan.measure.memory_comparison import parts_of

        of_file = on == "this-machine" or on.endswith(".toml")
        facts |= {"accelerator": on, "accelerator_count": 1} if of_file else parts_of(on)
    return facts | dict(column_value(pair) for pair in pairs)


def ignored_in_plan(path: Path) -> str:
    """Return the names beside the model in a plan that are no run columns.

    With the nearest known name each; empty for an answer of `glmplan fit`.
    """
    value = _read_plan(path)
    return "" if _of_fit(value) else ignored_columns(_with_model(value, path))


def _read_plan(path: Path) -> Any:
    return read_json(path)


def _of_fit(value: Any) -> bool:
    return isinstance(value, dict) and str(value.get("schema")).startswith("glmplan.fit/")


def _with_model(value: Any, path: Path) -> dict[str, Any]:
    """Return the first object that names a model and its accelerator."""
    waiting = [value]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, dict):
            if one.get("model") and one.get("accelerator"):
                return one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    raise SpecError("names no model with its accelerator", file=path)


def _from_plan(path: Path) -> dict[str, Any]:
    value = _read_plan(path)
    if _of_fit(value):
        return _from_fit(value, path)
    return {k: v for k, v in _with_model(value, path).items() if k in COLUMNS and isinstance(v, str | int | float)}


def _from_fit(value: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the deployment of an answer of `glmplan fit`."""
    asked, plan = value.get("question"), value.get("plan")
    if not isinstance(asked, dict) or not isinstance(plan, dict):
        raise SpecError(f"holds no plan: {value.get('headline') or 'the question or the plan is missing'}", file=path)
    columns = {
        "model": asked.get("model"),
        "weights": asked.get("checkpoint"),
        "accelerator": asked.get("accelerator"),
        "accelerator_count": plan.get("accelerators"),
        "engine": asked.get("engine"),
        "engine_version": asked.get("engine_version"),
        **{name: plan.get(name) for name in ("tp", "pp", "dp", "ep", "dcp")},
        "kv_cache": plan.get("kv"),
        "cuda_graphs": "no" if plan.get("cuda_graphs") in (False, 0) else None,
        "speculative": f"mtp-{plan['mtp']}" if plan.get("mtp") else "none",
    }
    return {name: found for name, found in columns.items() if found is not None}


Words = ParamSpec("Words")
Answer = TypeVar("Answer")


class DaemonThreads(ThreadPoolExecutor):
    """Executor whose threads may outlive it.

    A silent name server holds a look-up for half a minute. The executors of the standard library are joined when the
    event loop and the interpreter end.

    Examples
    --------
    >>> DaemonThreads().submit(sum, [1, 2]).result()
    3
    """

    def submit(self, call: Callable[Words, Answer], /, *words: Words.args, **named: Words.kwargs) -> Future[Answer]:
        """Start a thread for one call."""
        future: Future[Answer] = Future()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(call(*words, **named))
            except BaseException as error:
                future.set_exception(error)

        Thread(target=work, daemon=True).start()
        return future

    def shutdown(self, *unused: Any, **unused_too: Any) -> None:
        """Return at once."""
