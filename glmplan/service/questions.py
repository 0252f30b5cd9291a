"""Questions of the HTTP API: the options of the command line as JSON.

Only types and sizes are checked here; the library checks the meaning. A value that names a file is refused: the service
answers for the catalogue and opens no file that a client names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import PydanticCustomError

from glmplan.errors import DoesNotFit, GlmplanError, Infeasible, SpecError, nearest, printable
from glmplan.request.option import Kind, Option, options_of
from glmplan.request.plan import PlanRequest
from glmplan.request.traffic import TrafficSpec

__all__ = [
    "CheckQuestion",
    "CompareQuestion",
    "CostQuestion",
    "ExplainQuestion",
    "FitQuestion",
    "JobQuestion",
    "LinksQuestion",
    "MoneyQuestion",
    "PlanQuestion",
    "PredictQuestion",
    "SafeQuestion",
    "SimulateQuestion",
    "SizeQuestion",
    "SweepQuestion",
    "TableQuestion",
    "ValueQuestion",
    "infeasible_record",
    "invalid_record",
    "refusal_record",
]


_FILE = re.compile(
    r"^\s*[/~\\]|^\s*[A-Za-z]:[\\/]|\.\.[/\\]|(?:^|[\\/])\.{1,2}$|\.(?:toml|json|jsonl|ya?ml|gguf|safetensors|csv|parquet)\s*$"
    r"|\x00",
    re.IGNORECASE,
)
_OF_FILES = re.compile(r"(?:^|,)\s*trace\b|\b(?:file|lengths|profile)\s*=", re.IGNORECASE)


def _named(text: str) -> str:
    if any(_FILE.search(word) for word in text.split(",")):
        raise PydanticCustomError(
            "file", "names a file: the service answers for the catalogue only; use the command line for files"
        )
    return text


def _arriving(text: str) -> str:
    if _OF_FILES.search(text):
        raise PydanticCustomError(
            "file", "is traffic from a file: the service reads none; use the command line for traces"
        )
    return _named(text)


def _price(text: str) -> str:
    if "=" not in text:
        raise PydanticCustomError("price", "is not a price such as rtx-pro-6000-ws=8500")
    return text


def _no_switch(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticCustomError("number", "is true or false, but must be a number")
    return value


def _day(text: str) -> str:
    try:
        date.fromisoformat(text)
    except ValueError:
        raise PydanticCustomError("day", "is not a day such as 2026-11-22") from None
    return text


Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_named)]
Text = Annotated[str, Field(max_length=400), AfterValidator(_named)]
Slo = Annotated[str, Field(max_length=400)]
Arriving = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_arriving)]
#: integers and amounts; the library checks their range
Whole = Annotated[int, Field(ge=0, le=10**12), BeforeValidator(_no_switch)]
Amount = Annotated[float, Field(ge=-1e15, le=1e15, allow_inf_nan=False), BeforeValidator(_no_switch)]
Users = Annotated[list[Whole], Field(min_length=1, max_length=64)]
Quantity = Amount | Annotated[str, Field(max_length=100)]


_Axis = Annotated[list[Whole], Field(max_length=10_000)] | Whole | Text
_Names = Annotated[list[Name], Field(max_length=1000)] | Text
_Amounts = list[Amount] | Amount
_Powers = Annotated[list[Quantity], Field(max_length=1000)] | Amount | Text

#: type of one value of each kind, and of several as an axis
_VALUES: dict[Kind, Any] = {
    "name": Name, "whole": Whole, "number": Amount, "flag": bool, "power": Quantity, "bytes": Quantity,
    "bandwidth": Quantity, "time": Quantity,
}  # fmt: skip
_AXES: dict[Kind, Any] = {"name": _Names, "whole": _Axis, "counts": _Axis, "number": _Amounts, "power": _Powers}


class _Question(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _derived(title: str, options: Mapping[str, Option], required: Sequence[str] = ()) -> type[_Question]:
    """Return a question with one field for each option."""
    fields: dict[str, Any] = {}
    for name, one in options.items():
        examples = [one.example] if one.example else None
        if name in required:
            fields[name] = (_VALUES[one.kind], Field(description=one.help, examples=examples))
        elif one.kind == "flag":
            fields[name] = (bool, Field(False, description=one.help))
        else:
            fields[name] = (_VALUES[one.kind] | None, Field(None, description=one.help, examples=examples))
    return create_model(title, __base__=_Question, **fields)


def _axes(options: Mapping[str, Option]) -> type[_Question]:
    """Return a question with a field per axis; model and machine required."""
    fields: dict[str, Any] = {}
    for name, one in options.items():
        examples = [[one.example]] if one.example else None
        needed = name in _SUBJECT
        kind = _AXES[one.kind] if needed else _AXES[one.kind] | None
        default = ... if needed else None
        fields[name] = (kind, Field(default, description=one.axis, examples=examples))
    loads = {name: one for name, one in options_of(TrafficSpec).items() if one.over_http and "sweep" in one.commands}
    return create_model("_Axes", __base__=_derived("_Loads", loads), **fields)


def _sized() -> type[_Question]:
    """Return a question with one field for each option of `size`."""
    loads = options_of(TrafficSpec).items()
    options = {name: one for name, one in (*_OPTIONS.items(), *loads) if one.over_http and "size" in one.commands}
    tried = {
        name: (_AXES[one.kind] | None, Field(None, description=one.tries)) for name, one in options.items() if one.tries
    }
    base, fields = _derived("_OfSize", options), dict[str, Any](tried)
    return create_model("_Sized", __base__=base, **fields)


_SUBJECT = ("model", "on")
_OPTIONS = {name: one for name, one in options_of(PlanRequest).items() if one.over_http}
_ARRIVALS = {name: one for name, one in options_of(TrafficSpec).items() if one.over_http and name not in _OPTIONS}
if TYPE_CHECKING:

    class _Plan(_Question):
        model: str
        on: str
        input: int | None
        output: int | None
        context: int | None
        power_limit: float | str | None
        probability: float | str | None

    class _Arrivals(_Question): ...

    class _Axes(_Question): ...

    class _Sized(_Question): ...
else:
    # questions with users declare them
    _Plan = _derived("_Plan", {name: one for name, one in _OPTIONS.items() if name != "users"}, _SUBJECT)
    _Arrivals = _derived("_Arrivals", _ARRIVALS)
    _Axes = _axes({name: one for name, one in _OPTIONS.items() if one.axis})
    _Sized = _sized()


class PlanQuestion(_Plan):
    """A model on a machine; the answer states the defaults of omitted fields."""

    def words(self) -> dict[str, Any]:
        """Return the options of the plan as keywords of `glmplan.fit`."""
        names = set(PlanQuestion.model_fields) - {"model", "on"}
        return self.model_dump(include=names, exclude_none=True)


class _ArrivalsQuestion(_Arrivals, PlanQuestion):
    """A plan and its traffic."""

    def arrivals(self) -> dict[str, Any]:
        """Return traffic options and lengths as keywords of `glmplan.simulate`."""
        names = set(_ArrivalsQuestion.model_fields) - set(PlanQuestion.model_fields) | {"input", "output"}
        return self.model_dump(include=names, exclude_none=True)


class ExplainQuestion(_ArrivalsQuestion):
    """`glmplan fit --explain`: the arithmetic of a plan."""

    users: Users | Whole | None = Field(None, description="Concurrencies.", examples=[[1, 8, 32]])
    traffic: Arriving | None = Field(None, description="Traffic as in simulate: the plan is simulated.")
    changes: bool = Field(True, description="Evaluate changes of the plan; false answers sooner.")


class FitQuestion(ExplainQuestion):
    """`glmplan fit`: fit, speed, safe users and useful changes of a plan."""

    deploy: _Names | None = Field(
        None, description="Platforms of deployment files, which are added to the answer.", examples=["kubernetes"]
    )


class ValueQuestion(PlanQuestion):
    """Single values of `glmplan fit` for spreadsheets, by address only."""

    get: Annotated[str, Field(min_length=1, max_length=400)] = Field(
        description="Names of values, separated by commas, see /v1/values.", examples=["tokens_per_s"]
    )
    users: Whole = Field(1, description="Concurrent users.", examples=[32])
    form: Literal["text", "csv"] | None = Field(
        None, description="text, or csv with a header line; by default text for one value, csv for more."
    )
    token: Annotated[str, Field(max_length=400)] | None = Field(None, description="Token, if the service requires one.")


class PredictQuestion(PlanQuestion):
    """Metrics of one plan at each concurrency, with intervals."""

    users: Users | Whole = Field(1, description="Concurrencies.", examples=[[1, 8, 32]])


class TableQuestion(_Question):
    """`glmplan predict`: every row of a table of runs."""

    rows: list[dict[str, str | int | float | bool | None]] = Field(
        min_length=1, description="Rows in the columns of docs/reference/columns.md."
    )


class CheckQuestion(_Question):
    """A record of a benchmark, a startup log or a table of runs."""

    text: Annotated[str, Field(min_length=1, max_length=250_000)] = Field(description="Content of the file.")
    name: Annotated[str, Field(max_length=200)] = Field("", description="Name of the file, for messages.")
    facts: dict[str, str | int | float] = Field(
        {}, description="Columns of docs/reference/columns.md that the file lacks.", examples=[{"model": "qwen3-32b"}]
    )


class SimulateQuestion(_ArrivalsQuestion):
    """`glmplan simulate`: metrics of a plan under traffic."""

    traffic: Arriving = Field(description="closed:USERS, poisson:RATE/s, sessions:USERS …", examples=["poisson:2/s"])
    slo: Slo | None = Field(None, description="SLO for goodput.")
    requests: Whole | None = Field(None, description="Requests; 10 for each user of a closed loop, 1000 otherwise.")
    replications: Whole = Field(1, description="Repetitions for confidence intervals.")
    warmup: Whole | None = Field(
        None, description="Warm-up requests, which are not counted; under an SLO the first of each user, else none."
    )
    seed: Whole = Field(0, description="Seed; the same seed gives the same answer.")
    ranges: bool = Field(True, description="Simulate the interval of the step time too.")


class SafeQuestion(_ArrivalsQuestion):
    """`glmplan safe`: largest load that meets an SLO with a probability."""

    slo: Slo | None = Field(None, description="SLO, such as 'ttft p95 < 2 s'; that of fit by default.")
    traffic: Arriving | None = Field(None, description="Kind of traffic; users and Poisson arrivals by default.")
    most: Amount | None = Field(None, description="Largest load to try.")
    seed: Whole = Field(0, description="Seed.")


class MoneyQuestion(_Question):
    """Prices and terms of a cost."""

    price: Annotated[list[Annotated[str, Field(max_length=200), AfterValidator(_price)]], Field(max_length=50)] = Field(
        [], description="Own prices: PART=8500, PART:rent=2.1, MODEL:output=3, electricity=0.3 …"
    )
    term: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=50)] = Field(
        [], description="Terms of the cost, as in horizon_months=48."
    )
    region: Annotated[str, Field(max_length=100)] | None = Field(None, description="Region of the colocation price.")
    kind: Literal["buy", "rent", "any"] = Field("any", description="Buy, rent or both.")
    rent_term: Annotated[str, Field(max_length=100)] | None = Field(None, description="Term of every rent.")
    rates: Annotated[list[Annotated[str, Field(max_length=20)]], Field(max_length=20)] = Field(
        [], description="USD for one unit of another currency, as in EUR=1.08."
    )
    today: Annotated[str, Field(max_length=10), AfterValidator(_day)] | None = Field(
        None, description="Date of the prices as YYYY-MM-DD; today by default.", examples=["2026-11-22"]
    )


class CostQuestion(PlanQuestion, MoneyQuestion):
    """Costs of a plan, bought and rented, against an API."""

    users: Whole = Field(1, description="Concurrent users.")


class CompareQuestion(MoneyQuestion):
    """`glmplan compare`: plans side by side, with the causes of differences."""

    plans: Annotated[list[PlanQuestion], Field(min_length=2, max_length=4)] = Field(
        description="Two to four plans; the others are compared with the first."
    )
    users: Whole = Field(1, description="Concurrent users.")


class SizeQuestion(_Sized, MoneyQuestion):
    """`glmplan size`: machines to buy or rent for models, a load and an SLO."""

    model: _Names = Field(
        description="Catalogue names, also separated by commas; a format in a name excludes others.",
        examples=["glm-5.1-nvfp4"],
    )
    slo: Slo = Field(description="SLO.", examples=["ttft p95 < 2 s, tpot p95 < 50 ms"])
    users: Whole | None = Field(None, description="Concurrent users.")
    traffic: Arriving | None = Field(None, description="Kind of traffic instead of users.")
    budget: Quantity | None = Field(None, description="Maximum cost, such as 120k.")
    power: Quantity | None = Field(None, description="Maximum power at the outlet, such as 3.6kW.")
    only: _Names | None = Field(None, description="Accelerators and machines to consider, also separated by commas.")
    machines: Whole | None = Field(None, description="Maximum number of machines.")
    probability: Amount | None = Field(None, description="Probability with which the SLO is met.")
    cost_of_miss: Amount | None = Field(None, description="Cost of too few machines over that of too many.")
    growth: Amount | None = Field(None, description="Growth of the load per month.")
    spare: Whole | Text | None = Field(
        None, description="Machines beyond those that meet the SLO: 1 for N+1, N for N+N."
    )
    sites: Whole | None = Field(None, description="Sites, each of which meets the SLO alone.")
    use_case: Text | None = Field(None, description="Lengths of a public trace, such as chat or rag.")
    working_hours: Amount | None = Field(None, description="Hours of a week with this load, none in the others.")
    answers: Annotated[int, Field(ge=1, le=20)] = Field(5, description="Number of answers.")
    acceptance_test: bool = Field(False, description="Add the acceptance test of the first answer, as Markdown.")


class SweepQuestion(_Axes, MoneyQuestion):
    """`glmplan sweep`: every combination as one table."""

    traffic: list[Arriving] | Arriving | None = Field(None, description="Kinds of traffic: all loads are simulated.")
    slo: Slo | None = Field(None, description="SLO of simulated loads; its probability is a column.")
    requests: Whole | None = Field(None, description="Requests of each simulated load.")
    seed: Whole | None = Field(None, description="Seed of simulated loads.")
    exact: bool = Field(False, description="Time every step instead of reading tables of steps.")


class LinksQuestion(_Question):
    """The links of a machine, and their load under a layout."""

    on: Name = Field(description="NxACCELERATOR or a host of the catalogue.", examples=["6xrtx-pro-6000-ws"])
    tp: Whole | None = Field(None, description="Tensor parallel degree.")
    pp: Whole | None = Field(None, description="Pipeline stages.")


class JobQuestion(_Question):
    """A question to be answered by a job."""

    ask: Literal["simulate", "safe", "sweep", "size", "predict-table"] = Field(description="Name of the question.")
    question: dict[str, Any] = Field(description="The question, as its own route takes it.")


#: types that the validator appends to the location of a field with several types
_TYPES = ("int", "float", "str", "bool", "none")


#: kind of a validation error → its words, filled with the limits that it names
_WORDS = {
    "missing": "is missing",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be {ge} or more",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be {le} or less",
    "too_short": "must have {min_length} or more entries",
    "too_long": "must have {max_length} entries or fewer",
    "string_too_short": "must have {min_length} or more characters",
    "string_too_long": "must have {max_length} characters or fewer",
    "literal_error": "must be {expected}",
    "enum": "must be {expected}",
}


def invalid_record(errors: Sequence[Mapping[str, Any]], form: type[BaseModel] | None = None) -> dict[str, Any]:
    """Return the first validation error of a question as a record.

    - `errors`: Errors of pydantic. For a field that may be a number or a list, the error of the number is taken.
    - `form`: Type of the question; the nearest of its fields are named.

    Examples
    --------
    >>> wrong = [{"loc": ("users", 1), "type": "less_than_equal", "ctx": {"le": 4096}, "msg": "", "input": 5000}]
    >>> invalid_record(wrong)["error"]["message"]
    'users, item 2: must be 4096 or less'
    """
    first, places = _first_fault(errors)
    field, given = ".".join(map(str, places)), first.get("input")
    words = _WORDS.get(first["type"], str(first["msg"]).removeprefix("Value error, ").replace("{", "{{"))
    message, close = words.format_map(first.get("ctx") or {}), []
    if first["type"] == "extra_forbidden" and field:
        close = nearest(field.rpartition(".")[2], form.model_fields if form is not None else ())
        message = "is not a field of this question" + (f"; nearest: {', '.join(close)}" if close else "")
    named = "".join(f", item {one + 1}" if isinstance(one, int) else f".{one}" for one in places).lstrip(".")
    value = None if isinstance(given, dict | list) or given is None else printable(given)[:300]
    text = printable(f"{named}: {message}" if named else message)
    record = {"kind": "SpecError", "message": text, "file": None, "field": printable(field), "value": value}
    return {"error": record | {"nearest": close}}


def _first_fault(errors: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], list[Any]]:
    """Return the first error and its place, empty for the whole question."""
    first = errors[0]
    if first["type"] == "list_type":
        same = (error for error in errors[1:] if error["loc"][: len(first["loc"]) - 1] == first["loc"][:-1])
        first = next(same, first)
    places = [part for part in first["loc"] if part not in ("body", "query", "path")]
    return first, [one for n, one in enumerate(places) if isinstance(one, int) or not n or not _is_type(one)]


def _is_type(part: str) -> bool:
    return "[" in part or part.startswith("constrained-") or part in _TYPES


#: an option of the command line in a message
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+)")
#: options that have another name as the field of a question
_FIELDS = {"rate": "rates"}


def _plain(option: object) -> str | None:
    """Return an option as the field name of a question."""
    if option is None:
        return None
    text = printable(option)
    return _field(text[2:]) if text.startswith("--") else text


def _field(option: str) -> str:
    return _FIELDS.get(option, option.replace("-", "_"))


def refusal_record(error: GlmplanError) -> dict[str, Any]:
    """Return an error as a record with its kind and message.

    Further fields, if known: file, field, value and the nearest choices.

    Examples
    --------
    >>> wrong = SpecError("is not a KV cache format", field="--kv", value="fp9", choices=["fp8", "bf16"])
    >>> refusal_record(wrong)["error"]["field"], refusal_record(wrong)["error"]["nearest"]
    ('kv', ['fp8'])
    """
    # options of the command line are fields here, those of a quoted command stay
    parts = printable(error).split("`")
    parts[::2] = [_OPTION.sub(lambda match: f"`{_field(match[1])}`", part) for part in parts[::2]]
    message = re.sub(r"^`(\w+)`: ", r"\1: ", "`".join(parts))
    found: dict[str, Any] = {"kind": type(error).__name__, "message": message}
    if isinstance(error, SpecError):
        value = None if error.value is None else printable(error.value)[:300]
        close = nearest(value, error.choices) if value is not None else []
        if not error.choices and "nearest: " in error.message:
            # for catalogue names the message lists the nearest choices
            close = error.message.rpartition("nearest: ")[2].partition(";")[0].split(", ")
        # questions name no files: an identifier here is the field whose value is wrong
        file = _plain(error.file)
        option = file is not None and file.isidentifier()
        found |= {
            "file": None if option else file,
            "field": file if option else _plain(error.field),
            "value": value,
            "nearest": close or [str(choice) for choice in error.choices[:40]],
        }
    return {"error": found}


def infeasible_record(answer: Infeasible) -> dict[str, Any]:
    """Return the answer for a question that cannot be satisfied.

    Examples
    --------
    >>> infeasible_record(DoesNotFit("12 GiB are short"))
    {'verdict': 'does_not_fit', 'reason': '12 GiB are short'}
    """
    verdict = "does_not_fit" if isinstance(answer, DoesNotFit) else "unknown"
    return {"verdict": verdict, "reason": printable(answer)}
