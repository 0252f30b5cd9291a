"""A traffic spec, from a flag such as `poisson:2.5/s` or a TOML file."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from glmplan.catalog.files import read_toml
from glmplan.errors import SpecError
from glmplan.simulation.traffic.load_generators import aiperf_command, load_file
from glmplan.units import finite_number, parse_quantity

__all__ = ["MOST_USERS", "Traffic", "parse_traffic"]

#: users that are simulated at most: each is a request in memory [-]
MOST_USERS = 1_000_000

_KINDS = ("closed", "poisson", "constant", "gamma", "onoff", "daily", "trace", "sessions")

#: Load of each hour of a day relative to its mean: an office-hours profile in round numbers, to be replaced by the
#: user's own with `profile`.
_OFFICE_DAY: tuple[float, ...] = (
    *(0.3, 0.25, 0.2, 0.2, 0.25, 0.3, 0.5, 0.8, 1.3, 1.7, 1.9, 1.9),
    *(1.7, 1.8, 1.9, 1.9, 1.7, 1.4, 1.1, 0.9, 0.7, 0.6, 0.5, 0.4),
)

#: kinds of traffic that use a field, where other kinds have no use for it
_USED_BY = {
    "cv": ("gamma",),
    "on": ("onoff",),
    "off": ("onoff",),
    "profile": ("daily",),
    "speed": ("trace",),
    "file": ("trace",),
    "think": ("closed",),
    "ramp": ("closed", "sessions", "trace"),
    "turns": ("sessions",),
    "tool_wait": ("sessions",),
    "start": ("sessions",),
} | dict.fromkeys(
    ("input", "jitter", "input_cv", "output_cv", "lengths", "shared_prefix"),
    tuple(kind for kind in _KINDS if kind != "trace"),
)
#: fields that a file of lengths replaces
_DRAWN = ("input", "output", "jitter", "input_cv", "output_cv")

#: tokens of a request [token], times [s] and spreads [-] beyond which nothing is meant
_MOST_TOKENS, _LONGEST, _MOST_CV = 1 << 31, 1e9, 100.0


class Traffic(BaseModel):
    """A stream of requests.

    Raises
    ------
    SpecError
        From `parse_traffic`, with the field.

    Examples
    --------
    >>> parse_traffic("gamma:2.5/s,cv=3", input=4096).cv
    3.0
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: `closed` (each user sends the next request when the last is answered), `poisson`, `constant` (equal gaps),
    #: `gamma` (bursts), `onoff`, `daily`, `trace` or `sessions` (multi-turn agents)
    kind: Literal["closed", "poisson", "constant", "gamma", "onoff", "daily", "trace", "sessions"]
    #: users of a closed loop, or agents at work at once, [-]
    users: int | None = Field(default=None, ge=1, le=MOST_USERS)
    #: mean arrivals of requests, or of sessions, [1/s]
    rate: float | None = Field(default=None, ge=1e-9, le=1e9, allow_inf_nan=False)
    #: coefficient of variation of the gaps of `gamma`, [-]
    cv: float = Field(default=2.0, ge=1e-3, le=_MOST_CV, allow_inf_nan=False)
    #: `on`, `off`: mean duration of bursts and of silences of `onoff`, [s]
    on: float = Field(default=10.0, ge=1e-6, le=_LONGEST, allow_inf_nan=False)
    off: float = Field(default=30.0, ge=1e-6, le=_LONGEST, allow_inf_nan=False)
    profile: tuple[float, ...] = _OFFICE_DAY  # relative load of equal parts of a day, [-]
    file: str | None = None  # trace to replay
    #: how much faster than recorded a trace is replayed, [-]
    speed: float = Field(default=1.0, ge=1e-9, le=1e9, allow_inf_nan=False)
    #: `input`, `output`: nominal lengths, [token]
    input: int = Field(default=1024, ge=1, le=_MOST_TOKENS)
    output: int = Field(default=512, ge=1, le=_MOST_TOKENS)
    jitter: float = Field(default=0.0, ge=0, lt=1)  # lengths are uniform between 1 − jitter and 1 times nominal, [-]
    #: `input_cv`, `output_cv`: lengths are log-normal with nominal as mean and this coefficient of variation, [-]
    input_cv: float = Field(default=0.0, ge=0, le=_MOST_CV, allow_inf_nan=False)
    output_cv: float = Field(default=0.0, ge=0, le=_MOST_CV, allow_inf_nan=False)
    lengths: str | None = None  # CSV with `input_tokens` and `output_tokens`, drawn with replacement
    #: mean pause of a user between answer and next request, [s]
    think: float = Field(default=0.0, ge=0, le=_LONGEST, allow_inf_nan=False)
    #: time over which the users of a closed loop start; 0 is the start-up burst of the benchmark protocols, [s]
    ramp: float = Field(default=0.0, ge=0, le=_LONGEST, allow_inf_nan=False)
    #: tokens at the head of each prompt that are the same for all, [token]
    shared_prefix: int = Field(default=0, ge=0, le=_MOST_TOKENS)
    turns: int = Field(default=8, ge=1, le=100_000)  # mean number of turns of a session, [-]
    #: mean pause between the turns of a session, [s]
    tool_wait: float = Field(default=5.0, ge=0, le=_LONGEST, allow_inf_nan=False)
    #: tokens of its own that a session begins with: files, a task, [token]
    start: int = Field(default=0, ge=0, le=_MOST_TOKENS)
    #: share of the requests, or of the sessions, that go before the others where the engine orders by priority, [-]
    urgent: float = Field(default=0.0, ge=0, le=1, allow_inf_nan=False)
    #: Images of a request in the mean: of 0.3 three requests of ten have one. Their tokens count in `input`, [-]
    images: float = Field(default=0.0, ge=0, le=10_000, allow_inf_nan=False)
    #: time after which a client that has no token yet closes its connection; none does by default, [s]
    patience: float | None = Field(default=None, ge=1e-6, le=_LONGEST, allow_inf_nan=False)

    @field_validator("rate", "on", "off", "think", "ramp", "tool_wait", "patience", mode="before")
    @classmethod
    def _with_unit(cls, value: Any) -> Any:
        """Read `2.5/s` for rates and `500 ms` for times beside plain numbers."""
        if not isinstance(value, str):
            return value
        try:
            return finite_number(value.removesuffix("/s"), "rate")
        except SpecError:
            return parse_quantity(value, "seconds")

    @model_validator(mode="after")
    def _complete(self) -> Traffic:
        if self.kind == "closed" and self.users is None:
            raise ValueError("users: a closed loop needs the number of users, as in closed:32")
        if self.kind in ("poisson", "constant", "gamma", "onoff", "daily") and self.rate is None:
            raise ValueError(f"rate: {self.kind} needs a rate, as in {self.kind}:2.5/s")
        if self.kind == "sessions" and (self.users is None) == (self.rate is None):
            raise ValueError("users: sessions need either users (sessions:16) or a rate (sessions:0.5/s)")
        if self.kind == "trace" and self.users is not None and self.rate is not None:
            raise ValueError("users: conversations begin either by users or by a rate")
        if self.kind == "trace" and not self.file:
            raise ValueError("file: a trace needs its file, as in trace:FILE")
        if self.jitter and (self.input_cv or self.output_cv):
            raise ValueError("jitter: lengths are either uniform (jitter) or log-normal (input_cv, output_cv)")
        if not self.profile or any(not math.isfinite(p) or p < 0 for p in self.profile) or sum(self.profile) == 0:
            raise ValueError("profile: must hold numbers of at least 0, not all of them 0")
        if self.kind != "sessions" and self.shared_prefix >= self.input:
            raise ValueError("shared_prefix: must be shorter than the input")
        return self

    @property
    def unused(self) -> tuple[str, str] | None:
        """Return a given field without effect and the reason; None without.

        Examples
        --------
        >>> Traffic(kind="closed", users=2, turns=4).unused
        ('turns', 'has no effect on closed traffic, only on sessions')
        """
        given = [name for name in self.model_fields_set if getattr(self, name) != type(self).model_fields[name].default]
        for name in sorted(given):
            kinds = _USED_BY.get(name, _KINDS)
            if self.kind not in kinds:
                return name, f"has no effect on {self.kind} traffic, only on {', '.join(kinds)}"
            if self.lengths and name in _DRAWN:
                return name, "has no effect beside lengths, whose rows are drawn"
        if self.ramp and self.users is None:
            return "ramp", "has no effect without users: sessions and conversations at a rate begin by themselves"
        return None

    @property
    def plain(self) -> bool:
        """Return True if requests share no content and arrive in order."""
        if self.marked:
            return False
        return self.kind not in ("sessions", "trace") and not (self.think or self.shared_prefix or self.ramp)

    @property
    def uniform(self) -> bool:
        """Return True if requests are plain and all have one length."""
        return self.plain and not (self.lengths or self.jitter or self.input_cv or self.output_cv)

    @property
    def marked(self) -> bool:
        """Return True if requests have a priority, a patient client or images."""
        return bool(self.urgent or self.images) or self.patience is not None

    @property
    def unmarked(self) -> Traffic:
        """Return the traffic without priorities, images and impatient clients."""
        return self.model_copy(update={"urgent": 0.0, "images": 0.0, "patience": None})

    @property
    def peak(self) -> float:
        """Return the busiest rate of a day over its mean, [-]; 1 otherwise."""
        return max(self.profile) * len(self.profile) / sum(self.profile) if self.kind == "daily" else 1.0

    @property
    def busiest(self) -> Traffic:
        """Return the traffic of the busiest part of a day, held constant."""
        if self.kind != "daily":
            return self
        rate = None if self.rate is None else self.rate * self.peak
        return self.model_copy(update={"kind": "poisson", "rate": rate})

    def at_load(self, load: float) -> Traffic:
        """The same traffic with another number of users or another rate.

        `load`: Users, [-], or rate, [1/s]; for a trace, its speed, [-].
        """
        if self.kind == "trace" and self.users is None and self.rate is None:
            return self.model_copy(update={"speed": float(load)})
        if self.users is not None:
            return self.model_copy(update={"users": max(1, round(load))})
        return self.model_copy(update={"rate": float(load)})


def _amount(text: str, field: str) -> float:
    return finite_number(text, field)


def parse_traffic(spec: str, **lengths: Any) -> Traffic:
    """Read a traffic spec.

    - `spec`: `closed:32`, `poisson:2.5/s`, `constant:2.5/s`, `gamma:2.5/s,cv=3`, `onoff:5/s,on=10,off=30`,
      `daily:2/s`, `trace:FILE`, `sessions:16`, `sessions:0.5/s`, the path of a TOML file with the fields of
      `Traffic`, that of a YAML or JSON file of inference-perf or AIPerf, or a command `aiperf profile …`.
    - `**lengths`: Further fields that override the spec; None is ignored.

    Examples
    --------
    >>> parse_traffic("closed:32", jitter=0.2).users
    32
    >>> parse_traffic("closed:0")
    Traceback (most recent call last):
    glmplan.errors.SpecError: --traffic: users: 0 must be greater than or equal to 1
    """
    found, file = _parsed(spec, lengths)
    if unused := found.unused:
        name, message = unused
        raise SpecError(message, file=file or "--traffic", field=name, value=getattr(found, name))
    if found.kind == "sessions" and "output" not in found.model_fields_set:
        # agents read four tokens for each they write
        return found.model_copy(update={"output": max(1, found.input // 4)})
    return found


def _parsed(spec: str, lengths: dict[str, Any]) -> tuple[Traffic, str | None]:
    """Return the traffic of a spec, and the file that it was read from."""
    changes = {key: value for key, value in lengths.items() if value is not None}
    file: str | None = None
    if spec.endswith(".toml") and ":" not in Path(spec).name:
        file, fields = spec, read_toml(spec)
    elif spec.startswith("aiperf "):
        fields = aiperf_command(spec)
    elif spec.endswith((".yaml", ".yml", ".json")) and spec.partition(":")[0] not in _KINDS:
        file, fields = spec, load_file(spec)
    else:
        kind, _, rest = spec.partition(":")
        if kind not in _KINDS:
            raise SpecError("is not a kind of traffic", field="--traffic", value=kind, choices=_KINDS)
        fields = {"kind": kind}
        first, *options = rest.split(",")
        if kind == "trace":
            fields["file"] = first
        elif first.endswith("/s"):
            fields["rate"] = _amount(first[:-2], "--traffic rate")
        elif first:
            number = _amount(first, "--traffic")
            if kind not in ("closed", "sessions"):
                raise SpecError("needs its unit, as in 2.5/s", field="--traffic rate", value=first)
            if not number.is_integer():
                raise SpecError("is not a whole number", field="--traffic users", value=first)
            fields["users"] = int(number)
        for option in options:
            name, equals, value = option.partition("=")
            if name not in Traffic.model_fields or not equals:
                raise SpecError("is not a field", field="--traffic", value=name, choices=Traffic.model_fields)
            fields[name] = value
    fields = fields | changes
    try:
        return Traffic.model_validate(fields), file
    except ValidationError as error:
        first_error = error.errors()[0]
        where = ".".join(str(part) for part in first_error["loc"])
        message = first_error["msg"].removeprefix("Value error, ").replace("Input should be", "must be", 1)
        if first_error["type"] == "extra_forbidden":
            raise SpecError("is not a field", file=file, field="--traffic", value=where,
                            choices=Traffic.model_fields) from None  # fmt: skip
        if not where:
            where, _, message = message.partition(": ")
            raise SpecError(message, file=file or "--traffic", field=where) from None
        raise SpecError(
            message[0].lower() + message[1:],
            file=file or "--traffic",
            field=where,
            # a quantity names its text itself
            value=None if message.startswith(repr(first_error["input"])) else first_error["input"],
        ) from None
