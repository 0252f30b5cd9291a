"""`glmplan fit`: does a model fit a machine, how fast, for how many users, what binds, what to change."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import Form, Section, has_colours, painted, say, width
from glmplan.errors import printable

if TYPE_CHECKING:
    from glmplan.planner import FitAnswer
    from glmplan.simulation.traffic.spec import Traffic

__all__ = ["QuestionOptions", "ViewOptions", "command"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class QuestionOptions:
    """Fields of `glmplan.planner.Words` beside model and machine, as typed: they are read and checked there."""

    weights: Annotated[str | None, typer.Option(help="Checkpoint or format of the weights.")] = None
    kv: o.Kv = None
    engine: Annotated[str | None, typer.Option(help="vllm, sglang, trtllm, llama.cpp, ktransformers or mlx.")] = None
    engine_version: o.EngineVersion = None
    tp: Annotated[str | None, typer.Option(help="Tensor parallel degree.")] = None
    pp: Annotated[str | None, typer.Option(help="Pipeline stages.")] = None
    dp: Annotated[str | None, typer.Option(help="Attention data parallel degree.")] = None
    ep: Annotated[str | None, typer.Option(help="Expert parallel degree.")] = None
    dcp: Annotated[str | None, typer.Option(help="Decode context parallel degree.")] = None
    replicas: Annotated[str | None, typer.Option(help="Servers of that layout behind a router.")] = None
    disaggregated: o.Disaggregated = None
    context: Annotated[str | None, typer.Option(help="Longest sequence that must fit, in tokens.")] = None
    input: Annotated[str | None, typer.Option(help="Prompt of a request, in tokens.")] = None
    output: Annotated[str | None, typer.Option(help="Answer of a request, in tokens.")] = None
    users: Annotated[str | None, typer.Option(help="Numbers of users at once, as in 1,4,8.")] = None
    mtp: Annotated[str | None, typer.Option(help="Drafted tokens for each step.")] = None
    acceptance: Annotated[
        str | None, typer.Option(help="Chance of a drafted token (up to 1), or tokens gained in a step (above 1).")
    ] = None
    eager: o.Eager = False
    launch: o.LaunchOptions = o.LaunchOptions()
    power_limit: o.PowerLimit = None
    host_tokens: o.HostTokens = None
    host_bandwidth: o.HostBandwidth = None
    calibration: o.Calibration = None
    recipe: Annotated[
        str | None,
        typer.Option(help="Campaign or collection of recipes whose launch settings the server has, as vllm-recipes."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ViewOptions:
    """What of the answer is shown, and how."""

    form: o.Format = Form.text
    full: Annotated[bool, typer.Option("--full", help="The whole page instead of the first screen.")] = False
    section: Annotated[
        list[Section] | None,
        typer.Option(help="Parts of the page: memory, users, layouts, changes, warnings, start, basis; repeatable."),
    ] = None
    explain: Annotated[bool, typer.Option("--explain", help="Show the arithmetic.")] = False


@o.with_options(without=("urgent",))  # the order of the engine's queue is told to the simulator alone
def command(
    model: o.AnyModel,
    on: Annotated[str, typer.Option(help="NxACCELERATOR, a host name or a TOML file.")],
    question: QuestionOptions,
    *,
    traffic: Annotated[str | None, typer.Option(help="What arrives, as in simulate: the plan is simulated.")] = None,
    shape: o.ShapeOptions = o.ShapeOptions(),
    view: ViewOptions = ViewOptions(),
) -> None:
    """Say whether a model fits a machine, how fast it is for one and for many, what binds and what to change."""
    import gc

    # nothing is freed in the half second that this takes; collecting costs a tenth of it
    gc.disable()
    from glmplan.planner import Words, fit_answer
    from glmplan.prediction.step_models import measured_elsewhere, site_calibration

    _check(view)
    words = Words(model=model, on=on, **o.given(question))
    answer = fit_answer(words, _traffic(traffic, question, shape))
    with site_calibration(question.calibration):
        elsewhere = measured_elsewhere(answer.deployment) if question.calibration and answer.deployment else ""
    if elsewhere:
        say(f"note: {elsewhere}", err=True)
    say(_written(answer, view), end="")
    if view.explain and view.form in (Form.text, Form.md):
        from glmplan.present.fit_explain import fit_explanation

        say(fit_explanation(answer), end="")


def _traffic(spec: str | None, question: QuestionOptions, shape: o.ShapeOptions) -> Traffic | None:
    """What arrives; its lengths are those of the question."""
    from glmplan.errors import SpecError
    from glmplan.planner.traffic_search import read_traffic

    said = o.given(shape)
    if spec is not None:
        return read_traffic(spec, input=question.input, output=question.output, **said)
    if said:
        raise SpecError("is of traffic: give --traffic too", field="--" + next(iter(said)).replace("_", "-"))
    return None


def _written(answer: FitAnswer, view: ViewOptions) -> str:
    if view.form is Form.json:
        from glmplan.present.json_answers import fit_json

        return fit_json(answer)
    if view.form is not Form.text:
        from glmplan.present.fit_explain import fit_csv, fit_markdown

        return fit_csv(answer) if view.form is Form.csv else fit_markdown(answer)
    from glmplan.planner.answer_text import fit_sections, fit_text

    if view.full:
        return fit_text(answer, width())
    if not view.section:
        from glmplan.planner.first_screen import first_screen

        text = first_screen(answer, width())
        # colours only where nothing out of a file could pass for one
        if has_colours(sys.stdout) and text == printable(text):
            return painted(first_screen(answer, width(), colour=True))
        return text
    found = fit_sections(answer, width())
    none = "not in this answer: {}; it has " + ", ".join(found) + "\n"
    asked = dict.fromkeys(one.value for one in view.section)
    return "\n".join(found.get(name) or none.format(name) for name in asked)


def _check(view: ViewOptions) -> None:
    """Refuse words that cannot both be meant, before anything is computed."""
    from glmplan.errors import SpecError

    for name, given in (("--full", view.full), ("--section", bool(view.section))):
        if given and view.form is not Form.text:
            raise SpecError(f"is of the text only, not of --format {view.form.value}, which is whole", field=name)
    if view.full and view.section:
        raise SpecError("is a part of what --full prints: give one of them", field="--section")
