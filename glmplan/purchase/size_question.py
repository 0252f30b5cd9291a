"""Question of `size`: model, load, SLO, limits of budget and power."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from glmplan.catalog.entries.accelerators import accelerator_aliases, accelerator_names
from glmplan.catalog.entries.hosts import host_names
from glmplan.catalog.entries.use_cases import use_case
from glmplan.catalog.files import plain_name
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.blocks.stack import checkpoint_bytes
from glmplan.errors import SpecError
from glmplan.io.models.resolve import resolve_model
from glmplan.planner.question import DEFAULT_INPUT, DEFAULT_OUTPUT, named_engine
from glmplan.prediction.distribution import PROBABILITIES, probability_asked
from glmplan.purchase.inventory import OwnMachine, read_inventory
from glmplan.purchase.money import kinds_of, read_rates
from glmplan.request.option import options_of, read_names, spelled
from glmplan.request.plan import PlanRequest
from glmplan.simulation.traffic.slo import parse_slo
from glmplan.simulation.traffic.spec import MOST_USERS, Traffic, parse_traffic
from glmplan.units import Ratio, Usd, Watts, amount_number, finite_number, read_watts, whole_number

__all__ = ["WEEK", "SizeQuestion", "read_amount", "read_size", "read_sizes"]

_AMOUNT = re.compile(r"(?:([A-Za-z]{3})\s*)?([\d_.,]+)\s*([kKM]?)\s*([A-Za-z]{3})?")
_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP"}
_SIGN = re.compile("[$€£]")


@dataclass(frozen=True)
class SizeQuestion:
    """The question of `size`."""

    #: as typed
    model: str
    spec: ModelSpec
    #: formats to try
    weights: tuple[str, ...]
    #: engines to try; None is the choice of the plan
    engines: tuple[str | None, ...]
    #: users or rate, and lengths
    traffic: Traffic
    slo: str
    #: GGUF files that are tried as well, with the engine that reads them
    files: tuple[str, ...] = ()
    #: True if no format was typed
    formats_open: bool = False
    #: ``buy``, ``rent`` or both
    kinds: tuple[str, ...] = ("buy", "rent")
    #: limit of the purchase, or of the rent until the horizon
    budget: Usd | None = None
    #: limit of the power at the wall
    power: Watts | None = None
    #: accelerators and machines to try; all with a price by default
    only: tuple[str, ...] = ()
    #: largest number of machines
    most_machines: int = 8
    rent_term: str | None = None
    #: growth of the load per month
    growth: Ratio = 0.0
    #: required SLO attainment
    probability: Ratio = 0.95
    #: power limits of each accelerator to try; None is its rating
    limits: tuple[Watts | None, ...] = (None,)
    #: ways of drafting to try, as options of a plan
    drafts: tuple[Mapping[str, Any], ...] = ({},)
    #: further options of `glmplan.request.plan.PlanRequest`, for every machine
    given: Mapping[str, Any] = field(default_factory=dict)
    #: machines of a site beyond those that meet the SLO; None: as many again
    spare: int | None = 0
    #: sites, each of which meets the SLO alone
    sites: int = 1
    #: machines of an inventory, instead of those of the catalogue
    own: tuple[OwnMachine, ...] = ()
    #: hours of a week with the load of the question, which is none in the others; None: the profile of a day
    working_hours: float | None = None

    def bought(self, serving: int) -> int:
        """Return the machines of all sites, spare ones included.

        - `serving`: Machines that meet the SLO.

        Examples
        --------
        >>> asked = read_size("llama-3.1-8b", "tpot p95 < 50 ms", users=9, spare=1, sites=2)
        >>> asked.bought(3)
        8
        """
        return self.sites * (2 * serving if self.spare is None else serving + self.spare)

    @property
    def load(self) -> float:
        """Return the users or the rate [1/s] of the whole service."""
        return float(self.traffic.users if self.traffic.users is not None else self.traffic.rate or 0.0)

    @property
    def unit(self) -> str:
        """Return the unit of the load."""
        return "users" if self.traffic.users is not None else "requests/s"


def read_amount(given: object, field: str, rates: Iterable[str] = ()) -> Usd:
    """Return an amount of money from a number or text such as ``120k``.

    - `rates`: As in `glmplan.purchase.money.money_of`.

    Examples
    --------
    >>> read_amount("120k", "--budget")
    120000.0
    >>> read_amount("60k EUR", "--budget", ["EUR=1.1"]), read_amount("€60k", "--budget", ["EUR=1.1"])
    (66000.0, 66000.0)
    """
    rate = 1.0
    if isinstance(given, str):
        match = _AMOUNT.fullmatch(_SIGN.sub(lambda sign: _SIGNS[sign[0]], given.strip()))
        if match is None or (match[1] and match[4]):
            raise SpecError("is not an amount such as 120k", field=field, value=given)
        currency = (match[1] or match[4] or "USD").upper()
        known = {"USD": 1.0} | read_rates(rates)
        if currency not in known:
            raise SpecError(f"is not in USD: set --rate {currency}=NUMBER", field=field, value=given)
        rate = known[currency]
        number = amount_number(match[2], field, large=not match[3])
        number *= {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6}[match[3]]
    else:
        number = finite_number(given, field)
    if number <= 0:
        raise SpecError("must be more than 0", field=field, value=given)
    return number * rate


def read_size(model: str, slo: str, *, users: Any = None, traffic: str | None = None, **said: Any) -> SizeQuestion:
    """Return the question of `size`.

    - `model`: As in `glmplan.fit`; with a format only that one is tried.
    - `traffic`: As in `glmplan.simulate`; a closed loop of the users by default.
    - `**said`: ``inventory`` (file of `glmplan.purchase.inventory.read_inventory`), ``only`` (text with commas or a
      list), ``kind`` of `kinds_of`, ``budget``, ``rates``, ``power``,
      ``machines``, ``rent_term``, ``growth``, ``probability`` or ``cost_of_miss``, ``spare`` (a number of machines, or
      ``N`` for as many again), ``sites``, ``working_hours``, ``use_case``; options of
      `glmplan.request.plan.PlanRequest` (those with `tries` as text with commas or a list); fields of `Traffic`.

    Examples
    --------
    >>> asked = read_size("glm-5.1", "tpot p95 < 60 ms", users=20, budget="120k", input=8000)
    >>> asked.load, asked.unit, asked.budget, asked.weights
    (20.0, 'users', 120000.0, ('bf16', 'fp8', 'nvfp4', 'nvfp4-cortexlm', 'mlx-2.906bpw'))
    """
    found = resolve_model(model)
    parse_slo(slo)
    kinds = kinds_of(said.pop("kind", None))
    budget, power = said.pop("budget", None), said.pop("power", None)
    stated = _list(said.pop("weights", None), "--weights")
    growth = finite_number(said.pop("growth", None) or 0.0, "--growth")
    probability, machines = said.pop("probability", None), said.pop("machines", None)
    wanted = _probability(probability, said.pop("cost_of_miss", None))
    if growth < 0:
        raise SpecError("must not be negative", field="--growth", value=growth)
    engines = tuple(named_engine(engine) for engine in _list(said.pop("engine", None), "--engine"))
    working = _working_hours(said.pop("working_hours", None))
    only, limits = _list(said.pop("only", None), "--only"), _limits(said.pop("power_limit", None))
    spare, sites = _spare(said.pop("spare", None)), _sites(said.pop("sites", None))
    own = _own(said.pop("inventory", None), only=only, limits=limits, both=len(kinds) > 1)
    rent_term, rates = said.pop("rent_term", None), said.pop("rates", None) or ()
    if (case := said.pop("use_case", None)) is not None:
        lengths = {"input": use_case(case).input, "output": use_case(case).output}
        said = lengths | {name: value for name, value in said.items() if value is not None}
    drafts = _drafts(found.model, said)
    given = _given(said)
    formats = stated or ((found.checkpoint.name,) if found.stated else _formats(found.model, engines))
    arrivals = _traffic(users, traffic, said)
    if working is not None and arrivals.kind == "daily":
        raise SpecError("conflicts with --traffic daily, which has the hours of a day", field="--working-hours",
                        value=working)  # fmt: skip
    return SizeQuestion(
        model=model,
        spec=found.model,
        weights=formats,
        formats_open=not (stated or found.stated),
        files=() if stated or found.stated or engines else _files(found.model),
        engines=engines or (None,),
        only=tuple(_known(word) for word in only),
        kinds=("own",) if own else kinds,
        own=own,
        budget=None if budget is None else read_amount(budget, "--budget", rates),
        power=None if power is None else read_watts(power, "--power"),
        most_machines=whole_number(_usual_machines(own) if machines is None else machines, "--machines", most=4096),
        rent_term=rent_term,
        growth=growth,
        probability=wanted,
        limits=limits,
        drafts=drafts,
        spare=spare,
        sites=sites,
        working_hours=working,
        slo=slo,
        given=given,
        traffic=arrivals,
    )


def read_sizes(models: str | Sequence[str], slo: str, **said: Any) -> list[SizeQuestion]:
    """Return the question of `size` for each of several models.

    - `models`: Names as text with commas or a list; a repeated name counts once.
    - `**said`: As in `read_size`.

    Examples
    --------
    >>> [one.spec.name for one in read_sizes("llama-3.1-8b, glm-5.1-fp8", "tpot p95 < 60 ms", users=4)]
    ['llama-3.1-8b', 'glm-5.1']
    """
    return [read_size(model, slo, **said) for model in read_names(models, "--model")]


def _own(file: Any, *, only: tuple[str, ...], limits: tuple[Watts | None, ...], both: bool) -> tuple[OwnMachine, ...]:
    """Return the machines of an inventory; none without a file."""
    if file is None:
        return ()
    others = {"--only": bool(only), "--power-limit": limits != (None,), "--kind": not both}
    for option, given in others.items():
        if given:
            raise SpecError("is given with --inventory, which has the machines", field=option)
    return read_inventory(file, models=False).machines


def _usual_machines(own: tuple[OwnMachine, ...]) -> int:
    return max((machine.count for machine in own), default=8)


def _probability(probability: object, cost_of_miss: object) -> Ratio:
    """Return the required probability, as given or by the cost of a miss.

    Notes
    -----
    The newsvendor quantile: with a cost c of too little over too much capacity, the expected cost is least where the
    probability of enough is c / (1 + c) [1]_.

    References
    ----------
    .. [1] K. J. Arrow, T. Harris, J. Marschak, "Optimal Inventory Policy", Econometrica 19 (1951).
    """
    if cost_of_miss is None:
        return probability_asked(probability)
    if probability is not None:
        raise SpecError(
            "is given with --probability, which it would choose", field="--cost-of-miss", value=cost_of_miss
        )
    ratio = finite_number(cost_of_miss, "--cost-of-miss")
    if ratio <= 0:
        raise SpecError("must be more than 0", field="--cost-of-miss", value=cost_of_miss)
    return min(ratio / (1.0 + ratio), PROBABILITIES[-1])


def _given(said: dict[str, Any]) -> dict[str, Any]:
    """Take the options that hold for every machine out of a question."""
    options = {name: one for name, one in options_of(PlanRequest).items() if "size" in one.commands and not one.tries}
    values = {name: said.pop(name) for name in options if name in said}
    given = {name: one for name, one in values.items() if one is not None and one is not False}
    return {name: options[name].read(one, spelled(name)) for name, one in given.items()}


#: draft tokens of a step that `--drafter best` tries
_DRAFT_TOKENS = (1, 2, 3)


def _drafts(model: ModelSpec, said: dict[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Take `--drafter best` out of a question.

    No drafting comes first, then the drafter of the model. Draft tokens are those of `--mtp`, else `_DRAFT_TOKENS`, or
    the block of a drafter that makes one in a pass.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> [way.get("mtp", 0) for way in _drafts(load_model("glm-5.1"), {"drafter": "best"})]
    [0, 1, 2, 3]
    """
    if said.get("drafter") != "best":
        return ({},)
    if not model.draft_runs:
        message = (
            f"needs a drafter in the catalogue, and {model.name} has none; --drafter names another way of drafting"
        )
        raise SpecError(message, field="--drafter", value=said["drafter"])
    del said["drafter"]
    stated, rate = said.pop("mtp", None), said.pop("acceptance", None)
    counts = (model.draft_block,) if model.draft_block else _DRAFT_TOKENS
    options = options_of(PlanRequest)
    tokens = counts if stated is None else (options["mtp"].read(stated, "--mtp"),)
    more = {} if rate is None else {"acceptance": options["acceptance"].read(rate, "--acceptance")}
    return ({}, *({"mtp": count, **more} for count in tokens if count))


#: sites that a question may have [-]
_MOST_SITES = 64


def _spare(given: object) -> int | None:
    """Return the spare machines of a site; None for as many again."""
    if isinstance(given, str) and given.strip().upper() == "N":
        return None
    return 0 if given is None else whole_number(given, "--spare", least=0, most=4096)


#: hours of a week [h]
WEEK = 168.0


def _working_hours(given: object) -> float | None:
    if given is None:
        return None
    hours = finite_number(given, "--working-hours")
    if not 0 < hours <= WEEK:
        raise SpecError("must be more than 0 and at most the 168 hours of a week", field="--working-hours", value=hours)
    return hours


def _sites(given: object) -> int:
    return 1 if given is None else whole_number(given, "--sites", most=_MOST_SITES)


def _list(given: str | Sequence[str] | None, field: str) -> tuple[str, ...]:
    return () if given is None else read_names(given, field)


def _formats(model: ModelSpec, engines: tuple[str, ...]) -> tuple[str, ...]:
    """Return the first and the smallest checkpoint of each format.

    Formats are those that one of the engines reads.

    llama.cpp reads GGUF files and no other format of the catalogue; without it they are in `_files`.

    Examples
    --------
    >>> from glmplan.catalog.entries.models import load_model
    >>> _formats(load_model("deepseek-r1"), ()), _formats(load_model("deepseek-r1"), ("llama.cpp",))
    (('fp8', 'nvfp4'), ('q4_k_m', 'q8_0'))
    """
    files = _files(model)
    if engines and set(engines) == {_FILE_ENGINE} and files:
        return files
    formats: dict[str, list[Checkpoint]] = {}
    for checkpoint in model.checkpoints:
        if checkpoint.name not in files:
            formats.setdefault(checkpoint.name.split("-")[0], []).append(checkpoint)
    found = [one for every in formats.values() for one in (every[0], min(every, key=partial(checkpoint_bytes, model)))]
    with_files = files if _FILE_ENGINE in engines else ()
    first = tuple(checkpoint.name for checkpoint in model.checkpoints[:1])
    return (*dict.fromkeys(one.name for one in found), *with_files) or first or ("bf16",)


#: engine that reads GGUF files
_FILE_ENGINE = "llama.cpp"


def _files(model: ModelSpec) -> tuple[str, ...]:
    """Return the GGUF files of a model."""
    return tuple(one.name for one in model.checkpoints if one.form == "gguf")


def _limits(given: object) -> tuple[float | None, ...]:
    if given is None:
        return (None,)
    words: Any = given.split(",") if isinstance(given, str) else given if isinstance(given, list | tuple) else [given]
    return tuple(dict.fromkeys(read_watts(word, "--power-limit") for word in words))


def _known(word: str) -> str:
    name = plain_name(word)
    plain = re.sub(r"^\d+x", "", name)
    plain = accelerator_aliases().get(plain, plain)
    if plain not in accelerator_names() and name not in host_names():
        if word.endswith(".toml"):
            message = "is a file: --inventory takes own machines, and glmplan fit --on plans one"
            raise SpecError(message, field="--only", value=word)
        if "+" in word:
            message = "has accelerators of several kinds: glmplan compare plans and prices it"
            raise SpecError(message, field="--only", value=word)
        if re.match(r"\d+x\d+x", name):
            raise SpecError("counts servers: name one, and --machines limits their number", field="--only", value=word)
        choices = (*accelerator_names(), *host_names())
        raise SpecError("is neither a part nor a machine", field="--only", value=word, choices=choices)
    return name if name in host_names() else name.replace(re.sub(r"^\d+x", "", name), plain)


def _traffic(users: Any, spec: str | None, said: dict[str, Any]) -> Traffic:
    count = None if users is None else whole_number(users, "--users", most=MOST_USERS)
    lengths = {name: value for name, value in said.items() if value is not None}
    for name in lengths:
        if name not in Traffic.model_fields:
            raise SpecError("is not an argument of this question", field="argument", value=name)
    if spec is None and count is None:
        raise SpecError("is needed, or --traffic with a load", field="--users")
    found = parse_traffic(spec or f"closed:{count}", **lengths)
    if found.kind == "trace":
        raise SpecError("is a trace with a fixed load: size for sessions or a rate", field="--traffic",
                        value=spec)  # fmt: skip
    if found.kind != "sessions" and not found.lengths:
        # the turns of a session have lengths of their own
        found = parse_traffic(spec or f"closed:{count}", **{"input": DEFAULT_INPUT, "output": DEFAULT_OUTPUT} | lengths)
    if count is not None and found.users is None:
        raise SpecError(f"conflicts with --traffic {spec}, which is a rate", field="--users",
                        value=users)  # fmt: skip
    if count is not None and found.users != count:
        raise SpecError(f"contradicts --traffic {spec}", field="--users", value=users)
    return found
