"""Python API: plan, deployment, memory, step time, prediction, simulation.

The command line uses the same functions; values may be typed (``tp=2``) or text (``tp="2"``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import numpy as np
from numpy.typing import ArrayLike

from glmplan.catalog.entries.accelerators import accelerator_names, load_accelerator
from glmplan.catalog.entries.hosts import host_names, load_host
from glmplan.catalog.entries.models import load_model, model_names
from glmplan.catalog.tables import frame_of, frame_of_columns, table_text
from glmplan.costs.blocks.stack import model_cache_bytes_per_token, model_parameters
from glmplan.costs.points import StepPoints
from glmplan.errors import DoesNotFit, SpecError, UnknownFact
from glmplan.planner.capacity import Holding
from glmplan.planner.formats import best_format
from glmplan.planner.make_plan import FitAnswer, fit_answer
from glmplan.planner.pool import MemoryPlan
from glmplan.planner.question import Asked, read_words, users_at_once
from glmplan.planner.ranking import deployment_of, predicted
from glmplan.planner.service import Described, check_images, chosen, inputs_of, kept_of, safe_of, service_of
from glmplan.planner.simulated import simulated_means
from glmplan.planner.traffic_search import read_traffic, solved_for, traffic_of
from glmplan.planner.users import usual_promise, verdict_under
from glmplan.prediction.deployment import Deployment
from glmplan.prediction.distribution import probability_asked
from glmplan.prediction.predict import Prediction
from glmplan.prediction.step_models import site_calibration, step_model_of
from glmplan.request.derive import with_keywords
from glmplan.request.keywords import Arrivals, Question
from glmplan.request.plan import PlanRequest
from glmplan.request.traffic import TrafficSpec
from glmplan.simulation.engine.settings import EngineSettings
from glmplan.simulation.load_trial import SafeLoad, default_requests, default_warmup
from glmplan.simulation.safe_load import Cutoff, Kept
from glmplan.simulation.simulate import LARGEST, Outcome, SimulationOptions
from glmplan.simulation.simulate import simulate as simulate_service
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import Traffic
from glmplan.units import GIB, given_text, whole_number

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Arrivals",
    "Deployed",
    "Listing",
    "Planned",
    "Question",
    "StepTimes",
    "deployment",
    "fit",
    "hardware",
    "kept",
    "memory",
    "models",
    "predict",
    "safe",
    "simulate",
    "step_time",
]


@dataclass(frozen=True, repr=False, eq=False)
class StepTimes:
    """Times of engine steps.

    Attributes
    ----------
    seconds : (n,) array
        Time of each step, [s]
    shares : dict of str to (n,) array
        Share of each component in it (launch, weights, compute, cache, links …); they add up to 1, [-]
    """

    seconds: np.ndarray
    shares: dict[str, np.ndarray]

    def _columns(self) -> dict[str, np.ndarray]:
        return {
            "step_ms": self.seconds * 1e3,
            **{f"{name.replace(' ', '_')}_share": share for name, share in self.shares.items()},
        }

    def to_frame(self) -> pd.DataFrame:
        """Return one row per step: its milliseconds and component shares."""
        return frame_of_columns(self._columns())

    def __repr__(self) -> str:
        if not len(self.seconds):
            return "<StepTimes of no step>"
        low, high = self.seconds.min() * 1e3, self.seconds.max() * 1e3
        return f"<StepTimes of {len(self.seconds)} steps: {low:,.3g} to {high:,.3g} ms>"

    def __str__(self) -> str:
        columns = {name: values.tolist() for name, values in self._columns().items()}
        return table_text(dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))


class Planned(Protocol):
    """A planned model: a `FitAnswer` or a `Deployed`."""

    @property
    def asked(self) -> Asked:
        """The request, read and completed."""

    @property
    def holding(self) -> Holding | None:
        """The layout and its memory."""

    @property
    def deployment(self) -> Deployment | None:
        """The deployment that is predicted."""


@dataclass(frozen=True, repr=False)
class Deployed:
    """A model on a machine in one layout, with its memory.

    Attributes
    ----------
    asked : Asked
        The request, read and completed.
    holding : Holding
        The layout and its memory.
    deployment : Deployment
        The deployment that is predicted.
    """

    asked: Asked
    holding: Holding
    deployment: Deployment

    @property
    def verdict(self) -> str:
        """``fits`` or ``tight``, as `fit` says of this layout."""
        return verdict_under(self.asked, self.holding)

    def __repr__(self) -> str:
        d = self.deployment
        return (
            f"<Deployed {d.model.name} {d.checkpoint.name} on {d.count} × {d.accelerator.name}, "
            f"{self.holding.terms.name}, {d.engine}, {d.kv} cache: {self.verdict}>"
        )

    def __str__(self) -> str:
        return f"{self!r}\n{memory(self)}"


@contextmanager
def _python_words() -> Iterator[None]:
    """Make errors name the Python argument instead of the command-line option."""
    try:
        yield
    except SpecError as error:
        field, file = error.field, str(error.file) if error.file is not None else None
        if not any(one is not None and one.startswith("--") for one in (field, file)):
            raise
        raise type(error)(
            error.message, file=_plain(file), field=_plain(field), value=error.value, choices=error.choices
        ) from None


def _plain(option: str | None) -> str | None:
    return option[2:].replace("-", "_") if option is not None and option.startswith("--") else option


@with_keywords(PlanRequest, without=("model", "on"))
def fit(model: str, on: str, *, traffic: str | Traffic | None = None, **question: Unpack[Question]) -> FitAnswer:
    """Say if a model fits a machine, its speed, safe users and limits.

    Parameters
    ----------
    model : str
        A catalogue name, name-format, ``config.json``, folder or GGUF file.
    on : str
        ``NxACCELERATOR``, a host name or a TOML file.
    traffic : str or Traffic, optional
        Traffic as in `simulate`: the plan is made for its mean request and simulated under it (``.runs``, with
        changes that would serve it better).
    **question
        Fields of `Question`: engine and its options, layout, lengths [token], users, draft tokens, calibration.

    Returns
    -------
    FitAnswer
        The answer; "does not fit" and "unknown" are answers too. ``print`` shows all of it, ``.to_frame("users")``
        returns one of its tables.

    Raises
    ------
    SpecError
        If an argument is wrong; names it and the nearest valid choice.

    Examples
    --------
    >>> answer = fit("glm-5.1-nvfp4", on="6xrtx-pro-6000-ws", users=(1, 8), tp=2)
    >>> answer.verdict, answer.holding.terms.name
    ('fits', 'TP2×PP3')
    """
    with _python_words():
        words = PlanRequest(model, on, **question)
        if traffic is not None and not isinstance(traffic, Traffic):
            traffic = read_traffic(given_text(traffic, "traffic"), input=words.input, output=words.output)
        return fit_answer(words, traffic)


@with_keywords(PlanRequest, without=("model", "on"))
def deployment(model: str, on: str, **question: Unpack[Question]) -> Deployed:
    """Plan one layout of a model on a machine: as requested, or the best.

    Parameters
    ----------
    model : str
        As in `fit`.
    on : str
        As in `fit`.
    **question
        Fields of `Question`.

    Returns
    -------
    Deployed
        Argument of `memory`, `step_time`, `predict`, `simulate` and `safe`.

    Raises
    ------
    SpecError
        If an argument is wrong.
    DoesNotFit
        If no layout holds one request of the requested length.
    UnknownFact
        If a speed of the machine is not published.

    Examples
    --------
    >>> d = deployment("glm-5.1-nvfp4", on="6xrtx-pro-6000-ws", tp=2, pp=3)
    >>> d.deployment.layout.pp, d.holding.verdict
    (3, 'fits')
    """
    with _python_words():
        asked = best_format(PlanRequest(model, on, **question), read_words)
    with site_calibration(asked.calibration):
        solution = solved_for(asked, sole=True)
        asked, best = solution.asked, chosen(solution.asked, solution)
        return Deployed(asked, best, deployment_of(asked, best.terms))


def _holding(planned: Planned) -> Holding:
    """Return the layout of a plan; raise if there is none."""
    if not isinstance(planned, Deployed | FitAnswer):
        raise SpecError(f"a {type(planned).__name__} is not what `deployment` or `fit` returns", field="planned")
    if planned.holding is None:
        raise UnknownFact("no layout was planned: the answer says what is missing")
    return planned.holding


def _known(planned: Planned) -> tuple[Holding, Deployment]:
    """Return a layout that fits with its deployment; raise if it has no times."""
    holding = _holding(planned)
    if holding.verdict == "does_not_fit":
        raise DoesNotFit("the plan does not fit: its answer says what is short")
    if planned.deployment is None:
        raise UnknownFact("no deployment was planned: the answer says what is missing")
    return holding, planned.deployment


def memory(planned: Planned) -> MemoryPlan:
    """Return the memory of every rank and the KV pool.

    Parameters
    ----------
    planned : Planned
        A `Deployed`, or the answer of `fit`.

    Returns
    -------
    MemoryPlan
        Bytes of each part of each rank [B], pool with its interval [token].

    Raises
    ------
    UnknownFact
        If the plan has no layout or no speed.

    Examples
    --------
    >>> found = memory(deployment("llama-3.1-8b", on="1xh100-sxm"))
    >>> len(found.ranks), found.pool_low < found.pool < found.pool_high
    (1, True)
    """
    holding = _holding(planned)
    return MemoryPlan(
        title=f"{planned.asked.model.name} {planned.asked.checkpoint.name}, {holding.terms.name}",
        ranks=tuple(holding.rows()),
        pool=holding.pool.tokens,
        pool_low=holding.pool.low,
        pool_high=holding.pool.high,
    )


def step_time(
    planned: Planned,
    *,
    decode_requests: ArrayLike = 0.0,
    decode_context: ArrayLike = 0.0,
    prefill_tokens: ArrayLike = 0.0,
    prefill_context: ArrayLike = 0.0,
) -> StepTimes:
    """Return the time of engine steps and its components.

    Parameters
    ----------
    planned : Planned
        A `Deployed`, or the answer of `fit`.
    decode_requests : array_like, optional
        Requests that decode in a step, [-]
    decode_context : array_like, optional
        Tokens that each of them attends to, [token]
    prefill_tokens : array_like, optional
        Prompt tokens in the step, [token]
    prefill_context : array_like, optional
        Tokens that each prompt token attends to on average, [token]

    Returns
    -------
    StepTimes
        Seconds [s] and shares of the components [-], one for each point of the broadcast arguments.

    Raises
    ------
    SpecError
        If an amount is negative, not finite, or of another length than the others.
    UnknownFact
        If the plan has no layout or no speed.
    DoesNotFit
        If the plan does not fit.

    Examples
    --------
    >>> d = deployment("llama-3.1-8b", on="1xh100-sxm")
    >>> seconds = step_time(d, decode_requests=[1, 64], decode_context=2048).seconds
    >>> bool(0 < seconds[0] < seconds[1])
    True
    """
    _, found = _known(planned)
    columns = _columns(
        decode_requests=decode_requests,
        decode_context=decode_context,
        prefill_tokens=prefill_tokens,
        prefill_context=prefill_context,
    )
    with site_calibration(planned.asked.calibration):
        model = step_model_of(found)
        times = model.times(StepPoints(*columns))
    shares = {name: times.shares[:, list(parts)].sum(axis=1) for name, parts in model.components.items()}
    return StepTimes(times.seconds, shares)


def _columns(**amounts: ArrayLike) -> tuple[np.ndarray, ...]:
    """Return amounts as arrays of one length; raise SpecError otherwise."""
    read = {}
    for name, given in amounts.items():
        try:
            column = np.atleast_1d(np.asarray(given, dtype=float))
        except (ValueError, TypeError):
            raise SpecError("is neither a number nor a column of numbers", field=name, value=given) from None
        if column.ndim > 1:
            raise SpecError("has more than one dimension", field=name, value=given)
        if not (np.isfinite(column) & (column >= 0)).all():
            raise SpecError("must be finite and at least 0", field=name, value=given)
        read[name] = column
    try:
        return np.broadcast_arrays(*read.values())
    except ValueError:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in read.items() if len(column) != 1)
        raise SpecError(f"columns differ in length: {lengths}") from None


def predict(planned: Planned, users: int = 1) -> Prediction:
    """Predict a deployment for a number of users in a closed loop.

    Simulated, as in `fit`, where the KV pool does not hold so many or prefill servers are separate.

    Parameters
    ----------
    planned : Planned
        A `Deployed`, or the answer of `fit`; lengths are those of its request.
    users : int, optional
        Concurrent users, each sending its next request after the last answer, [-]

    Returns
    -------
    Prediction
        TTFT, TPOT [s] and rates [token/s], each with its 90 % interval, and their evidence level.

    Raises
    ------
    SpecError
        If `users` is below 1.
    UnknownFact
        If the plan has no layout or no speed.
    DoesNotFit
        If the plan does not fit.

    Examples
    --------
    >>> d = deployment("llama-3.1-8b", on="1xh100-sxm", input=1024, output=256)
    >>> tpot = predict(d, users=8).figures["tpot"]
    >>> tpot.low < tpot.value < tpot.high
    True
    """
    count = users_at_once(users, "users")
    holding, _ = _known(planned)
    with site_calibration(planned.asked.calibration):
        found = predicted(planned.asked, [(holding, count)], statistics=True)[0]
        return simulated_means(planned.asked, holding, count, found)


def _promise(planned: Planned) -> str:
    """Return the default SLO of a plan, as `fit` uses it."""
    holding, _ = _known(planned)
    with site_calibration(planned.asked.calibration):
        return usual_promise(predicted(planned.asked, [(holding, 1)])[0], planned.asked.slo_limits)


def _described(
    planned: Planned, traffic: str | Traffic, arrivals: Mapping[str, Any], settings: Mapping[str, Any] | None
) -> tuple[Described, Traffic]:
    """Return the service that is simulated, and its traffic."""
    if not isinstance(traffic, Traffic):
        _holding(planned)
        for name in arrivals:
            if name not in Arrivals.__annotations__:
                raise SpecError("is not an argument", field="argument", value=name, choices=Arrivals.__annotations__)
        traffic = traffic_of(planned.asked, given_text(traffic, "traffic"), **arrivals)
    check_images(planned.asked.model, traffic)
    holding, found = _known(planned)
    known = tuple(field.name for field in fields(EngineSettings))
    if settings is not None and not isinstance(settings, Mapping):
        raise SpecError("is not a mapping from a setting to its value", field="settings", value=settings)
    for name in settings or ():
        if name not in known:
            raise SpecError("is not an engine setting", field="settings", value=name, choices=known)
    with site_calibration(planned.asked.calibration):
        described = service_of(inputs_of(planned.asked, holding, found), traffic, scheduler=settings)
    return described if settings else replace(described, plan=(planned.asked, holding)), traffic


@with_keywords(TrafficSpec)
def simulate(
    planned: Planned,
    traffic: str | Traffic,
    *,
    requests: int | None = None,
    slo: str = "",
    seed: int = 0,
    keep: bool = False,
    settings: Mapping[str, Any] | None = None,
    **arrivals: Unpack[Arrivals],
) -> Outcome:
    """Simulate a deployment under traffic: latencies, throughput, KV cache.

    Parameters
    ----------
    planned : Planned
        A `Deployed`, or the answer of `fit`.
    traffic : str or Traffic
        ``closed:32``, ``poisson:2.5/s``, ``sessions:20``, ``trace:FILE`` … as `glmplan simulate --traffic` takes it.
    requests : int, optional
        Requests to simulate; as many as `glmplan simulate` by default: 10 for each user of a closed loop, settled
        sessions, every request of a trace, else 1000, [-]
    slo : str, optional
        SLO for goodput, such as ``ttft p95 < 2 s``. The start, in which all users begin together, does not count.
    seed : int, optional
        Seed, [-]; the same seed gives the same answer.
    keep : bool, optional
        Keep a record of each request for ``.to_frame("requests")``.
    settings : mapping, optional
        Fields of `glmplan.simulation.engine.settings.EngineSettings` instead of the engine's own.
    **arrivals
        Fields of `Arrivals`: lengths [token], pauses [s], sessions [-].

    Returns
    -------
    Outcome
        Statistics; ``print`` shows them, ``.to_frame()`` is a frame of them.

    Raises
    ------
    SpecError
        If the traffic, the SLO or an argument is wrong.
    UnknownFact
        If the plan has no layout or no speed.
    DoesNotFit
        If the plan does not fit.

    Examples
    --------
    >>> d = deployment("llama-3.1-8b", on="1xh100-sxm", input=512, output=64)
    >>> found = simulate(d, "poisson:2/s", requests=50)
    >>> found.summary["requests"], found.summary["tpot_mean_ms"] > 0
    (50, True)
    """
    with _python_words():
        described, arriving = _described(planned, traffic, arrivals, settings)
        targets = parse_slo(slo) if slo != "" else ()
        requests = default_requests(arriving) if requests is None else whole_number(requests, "requests", most=LARGEST)
        warmup = default_warmup(arriving, targets, requests)
        options = SimulationOptions(targets=targets, keep=keep)
        return simulate_service(
            described.service, arriving, requests=requests, warmup=warmup, seed=seed, options=options
        )


@with_keywords(TrafficSpec)
def safe(
    planned: Planned,
    slo: str = "",
    *,
    traffic: str | Traffic = "closed:1",
    probability: float | None = None,
    most: float | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    **arrivals: Unpack[Arrivals],
) -> SafeLoad:
    """Return the largest load that meets the SLO at the plan's probability.

    Parameters
    ----------
    planned : Planned
        A `Deployed`, or the answer of `fit`.
    slo : str, optional
        SLO such as ``ttft p95 < 2 s, tpot p95 < 50 ms``; that of `fit` by default.
    traffic : str or Traffic, optional
        Kind of load: closed-loop users by default, ``poisson:1/s`` for a rate.
    probability : float, optional
        Probability of meeting the SLO, up to 0.99; that of the plan by default, [-]
    most : float, optional
        Largest load to try, [-] or [1/s]
    seed : int, optional
        Seed, [-]
    settings : mapping, optional
        As in `simulate`.
    **arrivals
        As in `simulate`.

    Returns
    -------
    SafeLoad
        The load, the target that is missed first, and every load that was tried. Probabilities cover arrival samples
        and the interval of the step time.

    Raises
    ------
    SpecError
        If the SLO, the traffic or an argument is wrong.
    UnknownFact
        If the plan has no layout or no speed.
    DoesNotFit
        If the plan does not fit.

    Examples
    --------
    >>> d = deployment("llama-3.1-8b", on="1xh100-sxm", input=512, output=64)
    >>> safe(d, "tpot p95 < 50 ms", most=4).load
    4
    """
    with _python_words():
        described, arriving = _described(planned, traffic, arrivals, settings)
        targets = parse_slo(slo or _promise(planned))
        with site_calibration(planned.asked.calibration):
            wanted = planned.asked.probability if probability is None else probability_asked(probability, "probability")
            return safe_of(described, arriving, targets, probability=wanted, most=most, seed=seed)


@with_keywords(TrafficSpec)
def kept(
    planned: Planned,
    slo: str,
    traffic: str | Traffic,
    *,
    seed: int = 0,
    least: float = 0.0,
    settings: Mapping[str, Any] | None = None,
    **arrivals: Unpack[Arrivals],
) -> Kept:
    """Return the probability that a deployment meets the SLO.

    Parameters
    ----------
    planned : Planned
        A `Deployed`, or the answer of `fit`.
    slo : str
        SLO such as ``ttft p95 < 2 s, tpot p95 < 50 ms``.
    traffic : str or Traffic
        As in `simulate`.
    seed : int, optional
        Seed, [-]
    least : float, optional
        The search ends at probabilities below this value, [-]
    settings : mapping, optional
        As in `simulate`.
    **arrivals
        As in `simulate`.

    Returns
    -------
    Kept
        Probability over arrival samples and the interval of the step time, and the target that is missed first.

    Raises
    ------
    SpecError
        If the SLO, the traffic or an argument is wrong.
    UnknownFact
        If the plan has no layout or no speed.
    DoesNotFit
        If the plan does not fit.

    Examples
    --------
    >>> d = deployment("llama-3.1-8b", on="1xh100-sxm", input=512, output=64)
    >>> kept(d, "tpot p95 < 50 ms", "closed:4").probability
    1.0
    """
    with _python_words():
        described, arriving = _described(planned, traffic, arrivals, settings)
        with site_calibration(planned.asked.calibration):
            return kept_of(described, arriving, parse_slo(slo), seed=seed, cutoff=Cutoff(least))


@dataclass(frozen=True, repr=False)
class Listing:
    """Entries of a catalogue, one row each.

    Attributes
    ----------
    title : str
        Kind of the entries.
    rows : tuple of dict
        Column → value; every row has a ``name``.
    """

    title: str
    rows: tuple[dict[str, Any], ...]

    def __iter__(self) -> Iterator[str]:
        return (row["name"] for row in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        return any(row["name"] == name for row in self.rows)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per entry."""
        return frame_of(self.rows)

    def __repr__(self) -> str:
        return f"<{len(self.rows)} {self.title}: {', '.join(list(self)[:3])} …>"

    def __str__(self) -> str:
        return table_text(self.rows)


def models() -> Listing:
    """Return the models of the catalogue.

    Returns
    -------
    Listing
        Names, parameters in 10⁹ [-], layers [-], cache of a token in BF16 [B], longest context [token], checkpoints.

    Examples
    --------
    >>> "glm-5.1" in models()
    True
    """
    rows = []
    for name in model_names():
        model = load_model(name)
        count = model_parameters(model)
        rows.append(
            {
                "name": name,
                "total_b": round(count.total / 1e9, 3),
                "active_b": round(count.active / 1e9, 3),
                "layers": len(model.layer_names),
                "kv_bytes_per_token_bf16": model_cache_bytes_per_token(model, "bf16"),
                "max_context": model.max_context,
                "checkpoints": [checkpoint.name for checkpoint in model.checkpoints],
            }
        )
    return Listing("models", tuple(rows))


def hardware() -> Listing:
    """Return the accelerators and hosts of the catalogue.

    Returns
    -------
    Listing
        Names, kind, memory of an accelerator [GiB], its bandwidth [GB/s], number of accelerators [-]; None where it is
        not published.

    Examples
    --------
    >>> "rtx-pro-6000-ws" in hardware(), "hgx-b200-8" in hardware()
    (True, True)
    """
    parts = [load_accelerator(name) for name in accelerator_names()]
    rows = [_row(part.name, "accelerator", part, 1) for part in parts]
    by_name = {part.name: part for part in parts}
    for name in host_names():
        host = load_host(name)
        rows.append(_row(name, "host", by_name[host.accelerator], host.accelerator_count))
    return Listing("parts and hosts", tuple(rows))


def _row(name: str, kind: str, part: Any, count: int) -> dict[str, Any]:
    memory, bandwidth = part.memory, part.memory_bandwidth
    return {
        "name": name,
        "kind": kind,
        "accelerator": part.name,
        "accelerator_count": count,
        "memory_gib": None if memory is None else round(memory / GIB, 1),
        "memory_bandwidth_gb_per_s": None if bandwidth is None else round(bandwidth / 1e9, 1),
    }
