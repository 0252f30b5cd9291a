"""`glmplan fit`: does a model fit a machine, how fast, for how many users, what binds, what to change."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import Form, Section, has_colours, painted, say, width
from glmplan.errors import printable
from glmplan.request.plan import PlanRequest

if TYPE_CHECKING:
    from glmplan.planner import FitAnswer
    from glmplan.simulation.traffic.spec import Traffic

__all__ = ["ViewOptions", "command"]


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


@o.with_options()
def command(
    model: o.AnyModel,
    on: Annotated[str, typer.Option(help="NxACCELERATOR, a host name or a TOML file.")],
    question: Annotated[o.Given, o.plan("fit")],
    *,
    traffic: Annotated[str | None, typer.Option(help="What arrives, as in simulate: the plan is simulated.")] = None,
    shape: Annotated[o.Given, o.traffic("fit")],
    view: ViewOptions = ViewOptions(),
) -> None:
    """Say whether a model fits a machine, how fast it is for one and for many, what binds and what to change."""
    import gc

    # nothing is freed in the half second that this takes; collecting costs a tenth of it
    gc.disable()
    from glmplan.planner import fit_answer
    from glmplan.prediction.step_models import measured_elsewhere, site_calibration

    _check(view)
    words = PlanRequest(model, on, **question)
    answer = fit_answer(words, _traffic(traffic, question, shape))
    calibration = question.get("calibration")
    with site_calibration(calibration):
        elsewhere = measured_elsewhere(answer.deployment) if calibration and answer.deployment else ""
    if elsewhere:
        say(f"note: {elsewhere}", err=True)
    say(_written(answer, view), end="")
    if view.explain and view.form in (Form.text, Form.md):
        from glmplan.present.fit_explain import fit_explanation

        say(fit_explanation(answer), end="")


def _traffic(spec: str | None, question: o.Given, shape: o.Given) -> Traffic | None:
    """What arrives; its lengths are those of the question."""
    from glmplan.errors import SpecError
    from glmplan.planner.traffic_search import read_traffic

    if spec is not None:
        return read_traffic(spec, input=question.get("input"), output=question.get("output"), **shape)
    if shape:
        raise SpecError("is of traffic: give --traffic too", field="--" + next(iter(shape)).replace("_", "-"))
    return None


def _written(answer: FitAnswer, view: ViewOptions) -> str:
    if view.form is Form.json:
        from glmplan.present.json_answers import fit_json

        return fit_json(answer)
    if view.form is not Form.text:
        from glmplan.present.fit_explain import fit_csv, fit_markdown

        return fit_csv(answer) if view.form is Form.csv else fit_markdown(answer)
    from glmplan.present.answer_text import fit_sections, fit_text

    if view.full:
        return fit_text(answer, width())
    if not view.section:
        from glmplan.present.first_screen import first_screen

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
