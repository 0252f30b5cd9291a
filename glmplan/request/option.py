"""One option of a request: its kind, help text, unit, flags and commands, and how a given value is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator

from glmplan.errors import SpecError
from glmplan.units import finite_number, given_text, read_above_zero, read_watts, whole_number

__all__ = [
    "EVERY_COMMAND",
    "MOST_USERS",
    "PLANNED",
    "PLANS",
    "Kind",
    "Option",
    "OptionRecord",
    "options_of",
    "read_counts",
    "read_names",
    "spelled",
]

#: concurrency that a plan is asked for at most [-]
MOST_USERS = 4096

#: kinds of values: each has one reader here, one type in Python, one over HTTP and one way to be swept
Kind = Literal["name", "whole", "number", "flag", "counts", "path", "power", "bytes", "bandwidth", "time", "table"]

#: commands that answer a whole request
PLANS = frozenset({"fit", "report"})
#: further commands that plan a deployment
PLANNED = frozenset({"compare", "sensitivity", "sheet new", "sheet fill", "sheet check"})
#: every command that plans, with those that simulate and the search for machines
EVERY_COMMAND = PLANS | PLANNED | {"simulate", "size"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The declaration of one option."""

    help: str  # sentence of the command line, of OpenAPI and of the reference
    kind: Kind = "name"  # one of `Kind`
    unit: str = ""  # unit of a plain number; empty where it has none
    #: `least`, `most`: smallest and largest whole number
    least: int = 1
    most: int = 1 << 31
    choices: tuple[str, ...] = ()  # values that are understood; empty where all are
    flags: tuple[str, ...] = ()  # spellings on the command line; empty for the name with dashes
    commands: frozenset[str] = EVERY_COMMAND  # commands that take it
    axis: str = ""  # help text as an axis of a sweep, where it takes several values; empty where it is no axis
    point: bool = False  # whether the axis varies the load of one deployment and not the deployment
    #: help text of `size`, where it takes several values and tries each; empty where one value holds for all machines
    tries: str = ""
    #: column, named cell or fact of a workbook that shows it anyway; empty for a column of its own where it is given
    sheet: str = ""
    form: str = "Engine settings"  # heading over its field in the page's form; empty where the form leaves it out
    #: `label`, `vacant`: name of the field, by default the name of the option, and the text of the empty field
    label: str = ""
    vacant: str = ""
    listed: bool = False  # whether the form offers the values of the catalogue
    over_http: bool = True  # whether the service takes it: it never opens a file that a request names
    example: str = ""  # value that OpenAPI shows

    def read(self, given: object, field: str) -> Any:
        """Return a given value in the type of the option; SpecError names the field.

        Examples
        --------
        >>> Option(help="", kind="whole").read("8", "--tp"), Option(help="", kind="power").read("450W", "--power-limit")
        (8, 450.0)
        """
        if self.kind == "whole":
            return whole_number(given, field, least=self.least, most=self.most)
        return _READERS[self.kind](given, field)


def _read_flag(given: object, field: str) -> bool:
    if not isinstance(given, bool):
        raise SpecError("is neither True nor False", field=field, value=given)
    return given


def _read_path(given: object, field: str) -> str:
    path = str(given) if isinstance(given, Path) else given_text(given, field)
    if not path.strip():
        raise SpecError("is empty", field=field, value=path)
    return path


#: rows of a table over users: each takes about 25 ms [-]
_MOST_COUNTS = 64


def read_counts(given: object, field: str) -> tuple[int, ...]:
    """Return several numbers of concurrent users, rising.

    - `given`: Numbers as text with commas, a number, or several of them.

    Examples
    --------
    >>> read_counts("8,1", "--users"), read_counts(4, "--users")
    ((1, 8), (4,))
    """
    if isinstance(given, str):
        counts: list[object] = [*given.split(",")] if given.strip() else []
    else:
        counts = list(given) if isinstance(given, Iterable) and not isinstance(given, bytes | Mapping) else [given]
    if not counts:
        raise SpecError("is empty; write numbers, as in 1,4,8", field=field, value=given)
    if len(counts) > _MOST_COUNTS:
        message = (
            f"has {len(counts):,} numbers, at most {_MOST_COUNTS}: each is a row to predict; glmplan sweep takes more"
        )
        raise SpecError(message, field=field)
    return tuple(sorted({whole_number(count, field, most=MOST_USERS) for count in counts}))


def read_names(given: str | Sequence[str], field: str, choices: Iterable[str] = ()) -> tuple[str, ...]:
    """Return names from text with commas or a list, each once.

    - `choices`: Names that are understood; empty where all are.

    Examples
    --------
    >>> read_names("vllm, sglang,vllm", "--engine")
    ('vllm', 'sglang')
    """
    words = given.split(",") if isinstance(given, str) else given
    found = tuple(dict.fromkeys(word.strip() for word in words if word.strip()))
    if not found:
        raise SpecError("is empty", field=field, value=given)
    known = tuple(choices)
    for name in found if known else ():
        if name not in known:
            raise SpecError(f"is none of {', '.join(known)}", field=field, value=name, choices=known)
    return found


def _as_given(given: object, field: str) -> object:
    """Return the value itself: the traffic model checks it together with the kind of traffic."""
    return given


_READERS: dict[Kind, Callable[[object, str], Any]] = {
    "name": given_text,
    "whole": whole_number,
    "number": finite_number,
    "flag": _read_flag,
    "counts": read_counts,
    "path": _read_path,
    "power": read_watts,
    "bytes": lambda given, field: read_above_zero(given, field, "bytes"),
    "bandwidth": lambda given, field: read_above_zero(given, field, "bytes per second"),
    "time": _as_given,
    "table": given_text,
}


def spelled(name: str) -> str:
    """Return the flag of an option.

    Examples
    --------
    >>> spelled("max_num_seqs")
    '--max-num-seqs'
    """
    return "--" + name.replace("_", "-")


@cache
def options_of(record: type[BaseModel]) -> Mapping[str, Option]:
    """Return the options that a record declares, by name."""
    return {
        name: one for name, field in record.model_fields.items() for one in field.metadata if isinstance(one, Option)
    }


class OptionRecord(BaseModel):
    """A record whose fields are options: a given value is read as its option says, None is left out."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def __repr__(self) -> str:
        """Return the given options only, in one line."""
        given = ", ".join(f"{name}={value!r}" for name, value in self if value is not None)
        return f"{type(self).__name__}({given})"

    def __init__(self, **given: Any) -> None:
        names = type(self).model_fields
        for name in given:
            if name not in names:
                choices = [one for one in names if one not in ("model", "on")]
                raise SpecError("is not an argument of this question", field="argument", value=name, choices=choices)
        try:
            super().__init__(**given)
        except ValidationError as error:
            cause = error.errors()[0].get("ctx", {}).get("error")
            if isinstance(cause, SpecError):
                raise cause from None
            raise

    @field_validator("*", mode="plain")
    @classmethod
    def _read(cls, given: object, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        if given is None and cls.model_fields[name].default is None:
            return None
        return options_of(cls)[name].read(given, "model" if name == "model" else spelled(name))

    def but(self, **changes: object) -> Self:
        """Return the same request with other values."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)
