"""Own machines and wanted models: which machine serves which model best.

Each pair of a kind of machine and a model is planned as `fit` plans it. The assignment is an integer programme over the
number of machines of each kind for each model, solved exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from glmplan.catalog.files import read_toml
from glmplan.errors import GlmplanError, SpecError
from glmplan.io.machines.resolve import HostMemory, Machine, resolve_machine
from glmplan.io.models.resolve import resolve_model
from glmplan.planner.make_plan import FitAnswer, fit_answer
from glmplan.planner.question import GGUF_ENGINE
from glmplan.prediction.distribution import probability_asked
from glmplan.purchase.money import Money, watts_of
from glmplan.request.option import MOST_USERS, options_of
from glmplan.request.plan import PlanRequest
from glmplan.units import Ratio, Watts, whole_number

__all__ = [
    "SOLVER",
    "Assignment",
    "Inventory",
    "OwnMachine",
    "Pair",
    "WantedModel",
    "assigned",
    "pair_rows",
    "pairs_of",
    "read_inventory",
]

#: name of the method that assigns the machines
SOLVER = "scipy.optimize.milp (HiGHS, exact)"
#: machines of one kind, and pairs of a file, at most [-]
_MOST, _PAIRS = 10_000, 400
#: share of a demand below which two assignments serve the same [-]
_SAME = 1e-6
#: options of a plan that belong to a machine
_OF_HOST = ("host_memory", "host_memory_bandwidth", "host_cores")
_OF_MACHINE = ("part", *_OF_HOST, "power_limit", "host_bandwidth", "calibration")
#: options of a plan that the file states otherwise
_STATED = ("model", "on", "users", "probability", "replicas", "disaggregated")


@dataclass(frozen=True, slots=True)
class OwnMachine:
    """One kind of own machine."""

    #: as `--on` takes it; files are found beside the inventory
    on: str
    count: int = 1
    name: str = ""
    #: options of a plan that belong to the machine
    options: Mapping[str, Any] = field(default_factory=dict)

    def resolved(self) -> Machine:
        """Return the machine."""
        memory = HostMemory(*(self.options.get(name) for name in _OF_HOST))
        return resolve_machine(self.on, part=self.options.get("part"), memory=memory)


@dataclass(frozen=True, slots=True)
class WantedModel:
    """A model to be served."""

    model: str
    #: concurrency to be served
    users: int = 1
    name: str = ""
    #: further options of a plan
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inventory:
    """Own machines, wanted models and the required probability."""

    machines: tuple[OwnMachine, ...]
    models: tuple[WantedModel, ...]
    probability: Ratio


@dataclass(frozen=True)
class Pair:
    """One machine of a kind with one model."""

    machine: OwnMachine
    model: WantedModel
    #: None if an option is impossible on the machine
    answer: FitAnswer | None
    #: power of the machine at the wall
    watts: Watts | None = None
    #: reason without an answer
    refused: str = ""

    @property
    def verdict(self) -> str:
        """Return the verdict of `fit`; ``refused`` without an answer."""
        return "refused" if self.answer is None else self.answer.verdict

    @property
    def safe(self) -> int:
        """Return the users that meet the SLO at the asked probability."""
        safe = None if self.answer is None else self.answer.safe
        return 0 if safe is None or self.verdict not in ("fits", "tight") else safe.users

    @property
    def rate(self) -> float:
        """Return the decode rate of a single user; 0 if unknown [token/s]."""
        return 0.0 if self.answer is None else float(self.answer.user_rate)

    @property
    def reason(self) -> str:
        """Return the reason why no user is safe, or an empty text."""
        if self.answer is None:
            return self.refused
        if self.verdict not in ("fits", "tight"):
            return self.answer.headline
        safe = self.answer.safe
        if safe is None:
            return "speed unknown: " + ", ".join(self.answer.unknown)
        return "" if safe.users else next(one.words for one in safe.limits if one.name == safe.limit)


@dataclass(frozen=True)
class Assignment:
    """Number of machines of each kind that serve each model."""

    #: by kind of machine and model
    machines: np.ndarray
    #: share of the wanted users of each model, at most 1
    served: np.ndarray


def read_inventory(path: str | Path, said: Mapping[str, Any] | None = None, *, models: bool = True) -> Inventory:
    """Return the inventory of a TOML file.

    - `said`: Options of a plan for every model, which take precedence over those of the file.
    - `models`: The models are read too.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "machines.toml"
    >>> _ = file.write_text('[[machine]]\\non = "1xl40s"\\ncount = 2\\n[[model]]\\nmodel = "llama-3.1-8b"\\nusers = 8')
    >>> found = read_inventory(file)
    >>> found.machines[0].count, found.models[0].users, found.probability
    (2, 8, 0.95)
    """
    path, said = Path(path), dict(said or {})
    content = read_toml(path)
    known = ("probability", "machine", "model")
    for name in content:
        if name not in known:
            raise SpecError("is not a field of an inventory", file=path, value=name, choices=known)
    stated = said.pop("probability", None)
    probability = content.get("probability") if stated is None else stated
    probability = _checked(lambda: probability_asked(probability), "probability", path)
    machines = tuple(_machine(entry, f"machine {place}", path) for place, entry in _entries(content, "machine", path))
    wanted = _entries(content, "model", path) if models else ()
    listed = tuple(_model(entry, f"model {place}", path, said) for place, entry in wanted)
    names = [*(machine.name for machine in machines), *(model.name for model in listed)]
    for name in names:
        if names.count(name) > 1:
            raise SpecError("names two entries: give each a name", file=path, field="name", value=name)
    if len(machines) * len(listed) > _PAIRS:
        pairs = len(machines) * len(listed)
        raise SpecError(f"has {pairs:,} pairs of machine and model, at most {_PAIRS} are planned", file=path)
    return Inventory(machines, listed, probability)


def _entries(content: Mapping[str, Any], table: str, path: Path) -> list[tuple[int, dict[str, Any]]]:
    rows = content.get(table)
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise SpecError(f"needs at least one [[{table}]]", file=path, field=table)
    return [(place, {key.replace("-", "_"): value for key, value in row.items()}) for place, row in enumerate(rows, 1)]


def _machine(entry: dict[str, Any], field: str, path: Path) -> OwnMachine:
    count = _number(entry, "count", _MOST, field, path)
    name, on = str(entry.pop("name", "")), _text(entry, "on", field, path)
    if on.endswith(".toml"):
        on = _beside(on, path)
    options = _options(entry, _OF_MACHINE, ("on", "count", "name"), field, path)
    machine = OwnMachine(on, count, name or on, options)
    _checked(machine.resolved, field, path)
    return machine


def _beside(on: str, path: Path) -> str:
    """Return a machine's file as found beside the inventory."""
    count, times, file = on.partition("x")
    prefix = f"{count}x" if times and count.isdigit() else ""
    file = file if prefix else on
    return prefix + str(path.parent / file)


def _model(entry: dict[str, Any], field: str, path: Path, said: Mapping[str, Any]) -> WantedModel:
    users = _number(entry, "users", MOST_USERS, field, path)
    name, model = str(entry.pop("name", "")), _text(entry, "model", field, path)
    known = tuple(one for one in PlanRequest.model_fields if one not in (*_OF_MACHINE, *_STATED))
    options = _options(entry, known, ("model", "users", "name"), field, path)
    _checked(lambda: resolve_model(model), field, path)
    return WantedModel(model, users, name or model, {**options, **said})


def _number(entry: dict[str, Any], name: str, most: int, field: str, path: Path) -> int:
    value = entry.pop(name, 1)
    return int(_checked(lambda: whole_number(value, name, most=most), f"{field} {name}", path))


def _text(entry: dict[str, Any], name: str, field: str, path: Path) -> str:
    value = entry.pop(name, None)
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"needs {name!r}", file=path, field=field, value=value)
    return value


def _options(
    entry: Mapping[str, Any], known: tuple[str, ...], own: tuple[str, ...], field: str, path: Path
) -> dict[str, Any]:
    found, options = {}, options_of(PlanRequest)
    for name, value in entry.items():
        spelled = name.replace("_", "-")
        if name not in known:
            choices = [one.replace("_", "-") for one in (*own, *known)]
            raise SpecError("is not a field of this table", file=path, field=field, value=spelled, choices=choices)
        found[name] = _checked(partial(options[name].read, value, name), field, path)
    return found


def _checked(read: Callable[[], Any], field: str, path: Path) -> Any:
    """Return the value of a reader; its errors name the table and the file."""
    try:
        return read()
    except SpecError as error:
        if error.file is not None:  # of a machine of its own
            raise SpecError(str(error), file=path, field=field) from None
        raise type(error)(error.message, file=path, field=field, value=error.value, choices=error.choices) from None


def pairs_of(
    inventory: Inventory, money: Money, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Pair, ...]:
    """Return every machine with every model, machine by machine."""
    found: list[Pair] = []
    total = len(inventory.machines) * len(inventory.models)
    for machine in inventory.machines:
        for model in inventory.models:
            found.append(_pair(machine, model, inventory.probability, money))
            progress(len(found), total)
    return tuple(found)


def _pair(machine: OwnMachine, model: WantedModel, probability: Ratio, money: Money) -> Pair:
    options = {**machine.options, **model.options, "probability": probability, "users": (model.users,)}
    limit = machine.options.get("power_limit")
    watts = watts_of(machine.resolved(), money, limit)[0]
    words = PlanRequest(model.model, machine.on, **options)
    try:
        answer = fit_answer(words, changes=False)
    except GlmplanError as error:
        return Pair(machine, model, None, watts, str(error))
    return Pair(machine, model, (_beside_host(words) if answer.verdict == "does_not_fit" else None) or answer, watts)


def _beside_host(words: PlanRequest) -> FitAnswer | None:
    """Return a plan with weights in host memory that fits, or None."""
    if words.engine is not None:
        return None
    try:
        answer = fit_answer(words.but(engine=GGUF_ENGINE), changes=False)
    except GlmplanError:
        return None
    return answer if answer.verdict in ("fits", "tight") else None


def assigned(inventory: Inventory, pairs: tuple[Pair, ...]) -> Assignment:
    """Return the best assignment of machines to models.

    One machine serves one model. The assignment maximises, in this order: the sum over models of the share of the
    wanted users that is safe (at most 1 each), the number of idle machines, the sum of the machines' single-user rates,
    each over the highest rate of its model.

    Examples
    --------
    >>> from datetime import date
    >>> from glmplan.purchase.money import money_of
    >>> wanted = (WantedModel("llama-3.1-8b", 4), WantedModel("qwen3-32b-fp8", 2))
    >>> own = Inventory((OwnMachine("1xrtx-5090"), OwnMachine("1xh100-sxm")), wanted, 0.95)
    >>> found = assigned(own, pairs_of(own, money_of(today=date(2026, 11, 22))))
    >>> found.machines.tolist(), found.served.tolist()
    ([[1, 0], [0, 1]], [1.0, 1.0])
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    kinds, models = len(inventory.machines), len(inventory.models)
    counts = np.array([machine.count for machine in inventory.machines], float)
    safe = np.array([pair.safe for pair in pairs], float).reshape(kinds, models)
    rates = np.array([pair.rate for pair in pairs], float).reshape(kinds, models)
    share = safe / np.array([model.users for model in inventory.models], float)
    # variables: machines of each kind for each model, then the share of each model that is served
    size = kinds * models
    kind_rows = np.hstack([np.kron(np.eye(kinds), np.ones(models)), np.zeros((kinds, models))])
    share_rows = np.hstack([np.hstack([np.diag(row) for row in share]), -np.eye(models)])
    rules = [LinearConstraint(kind_rows, ub=counts), LinearConstraint(share_rows, lb=0.0)]
    most = np.where(safe > 0, counts[:, None], 0.0).ravel()
    bounds = Bounds(0.0, np.concatenate([most, np.ones(models)]))
    whole = np.concatenate([np.ones(size), np.zeros(models)])
    best = rates.max(axis=0)
    relative = np.divide(rates, best, out=np.zeros_like(rates), where=best > 0)
    goals = (
        np.concatenate([np.zeros(size), -np.ones(models)]),
        np.concatenate([np.ones(size), np.zeros(models)]),
        np.concatenate([-relative.ravel(), np.zeros(models)]),
    )
    found = None
    for goal in goals:
        found = milp(goal, constraints=rules, bounds=bounds, integrality=whole, options={"mip_rel_gap": 0.0})
        rules = [*rules, LinearConstraint(goal, ub=float(found.fun) + _SAME)]
    assert found is not None
    machines = np.rint(found.x[:size]).astype(int).reshape(kinds, models)
    return Assignment(machines, np.minimum((machines * share).sum(axis=0), 1.0))


def pair_rows(pairs: tuple[Pair, ...], found: Assignment) -> list[dict[str, Any]]:
    """Return a record of each pair; rates are those of the wanted users."""
    rows = []
    for pair, machines in zip(pairs, found.machines.ravel().tolist(), strict=True):
        answer = pair.answer
        row = None if answer is None or not answer.users else answer.users[-1]
        each, total = (None, None) if row is None else (row.user_rate, row.total_rate)
        plan = None if answer is None or pair.verdict not in ("fits", "tight") else answer
        rows.append(
            {
                "machine": pair.machine.name,
                "count": pair.machine.count,
                "model": pair.model.name,
                "weights": None if plan is None else plan.asked.checkpoint.name,
                "engine": None if plan is None else plan.asked.engine,
                "layout": None if plan is None or plan.holding is None else plan.holding.terms.name,
                "verdict": pair.verdict,
                "users": pair.model.users,
                "safe_users": pair.safe,
                "user_tokens_per_s": each and each.value,
                "user_tokens_per_s_low": each and each.low,
                "user_tokens_per_s_high": each and each.high,
                "output_tokens_per_s": total and total.value,
                "kw": None if pair.watts is None else pair.watts / 1000,
                "machines_assigned": machines,
                "reason": pair.reason,
            }
        )
    return rows
