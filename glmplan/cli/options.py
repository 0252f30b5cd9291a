"""Define options shared by commands.

Options of a request are derived from its record; other shared options are records of this module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from datetime import date
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from glmplan.cli.screen import Form, RecordForm
from glmplan.errors import SpecError
from glmplan.request.option import Option, OptionRecord, options_of, spelled
from glmplan.request.plan import PlanRequest
from glmplan.request.traffic import TrafficSpec

if TYPE_CHECKING:
    from glmplan.purchase.money import Money

__all__ = [
    "Axes",
    "Derived",
    "Given",
    "MoneyOptions",
    "Ways",
    "day_of",
    "given",
    "kind_of",
    "plan",
    "plan_axes",
    "read_money",
    "traffic",
    "with_options",
]


_MODEL = typer.Argument(help="Model: a catalogue name, or name-format.")
AnyModel = Annotated[str, typer.Argument(help="A catalogue name, name-format, config.json, folder or .gguf file.")]
_ON = typer.Option(help="Machine: NxACCELERATOR, a host name or a TOML file.")
Model = Annotated[str | None, _MODEL]
RequiredModel = Annotated[str, _MODEL]
On = Annotated[str | None, _ON]
RequiredOn = Annotated[str, _ON]
_TRAFFIC = typer.Option(
    help="closed:USERS, poisson:RATE/s, constant:RATE/s, gamma:RATE/s,cv=3, onoff:RATE/s,on=10,off=30, daily:RATE/s, "
    "trace:FILE, sessions:USERS, sessions:RATE/s, or a TOML file."
)
EntryForm = Annotated[RecordForm, typer.Option("--format", help="Output format.")]
EntryFileForm = Annotated[RecordForm, typer.Option("--format", help="Output format without --out.")]
OptionalTraffic = Annotated[str | None, _TRAFFIC]

Prices = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        help="A price of your own: PART=8500, PART:rent=2.1, MODEL:output=3, electricity=0.3, a whole machine "
        "(8xh200-sxm=300000), with a currency if not USD, or a CSV file. Repeat it for more.",
    ),
]
CostTerms = Annotated[list[str] | None, typer.Option("--term", help="Term of the cost, as in pue=1.2; repeatable.")]
Region = Annotated[str | None, typer.Option(help="Region of the colocation price; none by default.")]
Today = Annotated[str | None, typer.Option(help="Day of the question as YYYY-MM-DD; today by default.")]

Inventory = Annotated[
    Path | None, typer.Option(help="TOML file of own machines and wanted models, instead of the catalogue.")
]

_SLO = typer.Option(help="SLO, such as 'ttft p95 < 2 s, tpot p95 < 50 ms'.")
Slo = Annotated[str, _SLO]
OptionalSlo = Annotated[str | None, _SLO]
UsersAtOnce = Annotated[int, typer.Option("--users", min=1, help="Concurrency.")]
Charts = Annotated[Path | None, typer.Option("--plot", help="Charts: .html, .png or .svg.")]
Seed = Annotated[int, typer.Option(help="Seed; the same seed gives the same bytes.")]
Format = Annotated[Form, typer.Option("--format", help="Output format.")]


#: options that were given → their values
Given = dict[str, Any]

#: click's name of a value of each kind
_METAVARS = {"whole": "INTEGER", "number": "FLOAT"}


@dataclass(frozen=True, slots=True)
class Derived:
    """Options of a request in the signature of one command."""

    record: type[OptionRecord]  # record that declares the options
    command: str  # name of the command; for `sweep` each option is a list of values

    def options(self) -> dict[str, Option]:
        """Return the options, by name."""
        return {name: one for name, one in options_of(self.record).items() if self.command in one.commands}

    def parameters(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield name, type and default of each."""
        for name, one in self.options().items():
            if self._tried(one):
                yield name, Annotated[list[str] | None, typer.Option(*one.flags, help=one.tries)], None
            elif one.kind == "flag":
                yield name, Annotated[bool, typer.Option(spelled(name), help=one.help)], False
            else:
                option = typer.Option(*one.flags, help=one.help, metavar=_METAVARS.get(one.kind, "TEXT"))
                yield name, Annotated[str | None, option], None

    def gathered(self, values: Mapping[str, Any]) -> Given:
        """Return the given options with parsed values."""
        options = self.options()
        said = {name: values[name] for name in options if values.get(name) not in (None, False, [])}
        return {
            name: ",".join(value) if self._tried(options[name]) else options[name].read(value, spelled(name))
            for name, value in said.items()
        }

    def _tried(self, one: Option) -> bool:
        """Return True if the command tries several values of an option."""
        return self.command == "size" and bool(one.tries)


@dataclass(frozen=True, slots=True)
class Axes(Derived):
    """Options of a request as axes of a sweep, each a list of values."""

    def options(self) -> dict[str, Option]:
        """Return the options that are axes, by name."""
        return {name: one for name, one in options_of(self.record).items() if one.axis}

    def parameters(self) -> Iterator[tuple[str, Any, Any]]:
        """Yield name, type and default of each."""
        for name, one in self.options().items():
            yield name, Annotated[list[str] | None, typer.Option(*one.flags, help=one.axis)], None

    def gathered(self, values: Mapping[str, Any]) -> Given:
        """Return the given options as text."""
        return {name: values[name] for name in self.options() if values.get(name)}


def plan(command: str) -> Derived:
    """Return the options of a plan that a command takes."""
    return Derived(PlanRequest, command)


def traffic(command: str) -> Derived:
    """Return the options of traffic that a command takes."""
    return Derived(TrafficSpec, command)


def plan_axes() -> Derived:
    """Return the options of a plan as axes."""
    return Axes(PlanRequest, "sweep")


class Ways(StrEnum):
    """Values of --kind."""

    buy = "buy"
    rent = "rent"
    any = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneyOptions:
    """Prices and terms of a cost, as given."""

    kind: Annotated[Ways, typer.Option(help="Way to pay: buy, rent or any.")] = Ways.any
    buy: Annotated[bool, typer.Option("--buy", help="The same as --kind buy.")] = False
    rent: Annotated[bool, typer.Option("--rent", help="The same as --kind rent.")] = False
    price: Prices = None
    term: CostTerms = None
    region: Region = None
    rent_term: Annotated[str | None, typer.Option(help="Term of every rent, such as on demand or 3 years.")] = None
    rate: Annotated[
        list[str] | None, typer.Option(help="USD for one unit of another currency, as in EUR=1.08; repeatable.")
    ] = None
    today: Today = None


def given(options: Any) -> dict[str, Any]:
    """Return the given options of a record and of its nested records.

    Examples
    --------
    >>> sorted(given(MoneyOptions(region="oslo")))
    ['buy', 'kind', 'region', 'rent']
    """
    found: dict[str, Any] = {}
    for one in fields(options):
        value = getattr(options, one.name)
        nested = given(value) if is_dataclass(value) else value if isinstance(value, dict) else {one.name: value}
        found |= {name: item for name, item in nested.items() if item is not None}
    return found


def with_options(*, without: tuple[str, ...] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that expands option records in a signature.

    Each field of a record becomes a parameter in place of the record, except the fields named in `without`. All
    parameters of the decorated function can be given by name.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        parameters: dict[str, inspect.Parameter] = {}
        hints = get_type_hints(function, include_extras=True)
        own = inspect.signature(function).parameters
        for name, parameter in own.items():
            for option, hint, default in _spread(name, hints[name], parameter.default):
                if option not in without:
                    kind = inspect.Parameter.KEYWORD_ONLY
                    parameters[option] = inspect.Parameter(option, kind, default=default, annotation=hint)

        @wraps(function)
        def command(**values: Any) -> None:
            function(**{name: _gather(name, hints[name], values) for name in own})

        command.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
        command.__annotations__ = {name: one.annotation for name, one in parameters.items()}
        return command

    return decorate


def _derived(hint: Any) -> Derived | None:
    """Return the options of a request that a parameter stands for."""
    return next((one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Derived)), None)


def _spread(name: str, hint: Any, default: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield name, type and default of a parameter or of its options."""
    derived = _derived(hint)
    if derived is not None:
        yield from derived.parameters()
        return
    if not is_dataclass(hint):
        yield name, hint, default
        return
    hints = get_type_hints(hint, include_extras=True)
    for one in fields(hint):
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        yield from _spread(one.name, hints[one.name], default)


def _gather(name: str, hint: Any, values: dict[str, Any]) -> Any:
    """Return the value of a parameter, or the given values of its options."""
    derived = _derived(hint)
    if derived is not None:
        return derived.gathered(values)
    if not is_dataclass(hint):
        return values[name]
    hints = get_type_hints(hint, include_extras=True)
    whole = {one.name for one in fields(hint) if is_dataclass(hints[one.name]) or _derived(hints[one.name])}
    present = {one.name for one in fields(hint) if one.name in whole or one.name in values}
    return hint(**{one: _gather(one, hints[one], values) for one in present})  # type: ignore[operator]


# Prices and terms of a command.


def day_of(text: str | None) -> date:
    """Return the day of a question; today by default."""
    if text is None:
        return date.today()
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise SpecError("is not a day such as 2026-11-22", field="--today", value=text) from None


def kind_of(options: MoneyOptions) -> str:
    """Return the way to pay of a command; SpecError for a contradiction.

    Examples
    --------
    >>> kind_of(MoneyOptions(rent=True))
    'rent'
    """
    if options.buy and options.rent:
        raise SpecError("is given with --rent: --kind any searches both", field="--buy")
    kind = "buy" if options.buy else "rent" if options.rent else options.kind.value
    if options.kind is not Ways.any and kind != options.kind.value:
        raise SpecError(f"contradicts --{kind}", field="--kind", value=options.kind.value)
    return kind


def read_money(options: MoneyOptions) -> Money:
    """Return the prices and terms of a command."""
    from glmplan.purchase.money import kinds_of, money_of

    money = money_of(
        options.price or (), options.term or (), today=day_of(options.today), region=options.region,
        rent_term=options.rent_term, rates=options.rate or (),
    )  # fmt: skip
    return replace(money, kinds=kinds_of(kind_of(options)))
