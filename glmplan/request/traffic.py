"""Options of traffic beside its kind; `glmplan.simulation.traffic.spec.Traffic` checks them with the kind."""

# pydantic evaluates the annotations at import, so they stay code: as text each would be compiled first
from typing import Annotated

from glmplan.request.option import Option, OptionRecord

__all__ = ["TrafficSpec"]

#: commands that also have options of the scheduler and of encoders
_SCHEDULED = frozenset({"simulate", "safe"})
_SIMULATED = _SCHEDULED | {"size"}
_LOADS = _SIMULATED | {"fit", "sweep"}
_STARTED = frozenset({"simulate", "fit", "sweep"})


class TrafficSpec(OptionRecord):
    """Lengths, pauses and sessions of traffic; lengths that are left out are those of the planned request."""

    input: Annotated[
        int | None,
        Option(kind="whole", unit="token", help="Nominal prompt length, in tokens.", flags=("--input",),
               commands=_SIMULATED),
    ] = None  # fmt: skip
    output: Annotated[
        int | None,
        Option(kind="whole", unit="token", help="Nominal answer length, in tokens.", flags=("--output",),
               commands=_SIMULATED),
    ] = None  # fmt: skip
    jitter: Annotated[
        float | None,
        Option(kind="number", help="Lengths are uniform in 1 - jitter to 1 times nominal.", commands=_LOADS),
    ] = None
    input_cv: Annotated[
        float | None,
        Option(kind="number", help="Log-normal prompts with this coefficient of variation.", commands=_LOADS),
    ] = None
    output_cv: Annotated[
        float | None,
        Option(kind="number", help="Log-normal answers with this coefficient of variation.", commands=_LOADS),
    ] = None
    lengths: Annotated[
        str | None,
        Option(kind="table", help="CSV with input_tokens and output_tokens to draw from.", commands=_LOADS,
               over_http=False),
    ] = None  # fmt: skip
    think: Annotated[
        float | str | None,
        Option(kind="time", unit="s", help="Mean pause of a user, such as '2 s'.", commands=_LOADS),
    ] = None
    ramp: Annotated[
        float | str | None,
        Option(kind="time", unit="s", help="Time over which users start; all at once by default.", commands=_STARTED),
    ] = None  # fmt: skip
    shared_prefix: Annotated[
        int | None,
        Option(kind="whole", unit="token", least=0, help="Tokens at the head of each prompt that are the same.",
               commands=_LOADS),
    ] = None  # fmt: skip
    turns: Annotated[int | None, Option(kind="whole", help="Mean turns of a session.", commands=_LOADS)] = None
    tool_wait: Annotated[
        float | str | None,
        Option(kind="time", unit="s", help="Mean pause between the turns of a session.", commands=_LOADS),
    ] = None
    start: Annotated[
        int | None,
        Option(kind="whole", unit="token", least=0, help="Tokens of its own that a session begins with.",
               commands=_LOADS),
    ] = None  # fmt: skip
    urgent: Annotated[
        float | None,
        Option(kind="number", help="Share of requests that go first under --order priority.", commands=_SCHEDULED,
               over_http=False),
    ] = None  # fmt: skip
    images: Annotated[
        float | None,
        Option(kind="number", help="Mean images of a request; their tokens count in --input.", commands=_SCHEDULED,
               over_http=False),
    ] = None  # fmt: skip
    patience: Annotated[
        float | str | None,
        Option(kind="time", unit="s", help="Time after which clients without a token yet leave, such as '30 s'.",
               commands=_LOADS),
    ] = None  # fmt: skip
