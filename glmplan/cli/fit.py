"""Define `glmplan fit`: plan a model on a machine."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from glmplan.cli import options as o
from glmplan.cli.screen import Form, has_colours, painted, say, width
from glmplan.errors import printable
from glmplan.request.option import read_names
from glmplan.request.plan import PlanRequest

if TYPE_CHECKING:
    from glmplan.planner import FitAnswer
    from glmplan.simulation.traffic.spec import Traffic

__all__ = ["ViewOptions", "command"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ViewOptions:
    """Format and sections of the answer."""

    form: o.Format = Form.text
    full: Annotated[bool, typer.Option("--full", help="The whole page instead of the first screen.")] = False
    section: Annotated[
        list[str] | None,
        typer.Option(
            help="Parts of the page, with commas: memory, traffic, users, layouts, changes, warnings, start, basis."
        ),
    ] = None
    explain: Annotated[bool, typer.Option("--explain", help="Show the arithmetic.")] = False
    deploy: Annotated[
        list[str] | None,
        typer.Option(
            help="Write deployment files of the plan into --out, with commas for: kubernetes, helm-vllm, llm-d, "
            "dynamo, compose, systemd, slurm."
        ),
    ] = None
    out: Annotated[Path | None, typer.Option(help="Folder of the deployment files.")] = None
    plot: o.Charts = None


@o.with_options()
def command(
    model: o.AnyModel,
    on: Annotated[str, typer.Option(help="NxACCELERATOR, a host name or a TOML file.")],
    question: Annotated[o.Given, o.plan("fit")],
    *,
    traffic: Annotated[str | None, typer.Option(help="Traffic, as in simulate: the plan is simulated.")] = None,
    shape: Annotated[o.Given, o.traffic("fit")],
    view: ViewOptions = ViewOptions(),
) -> None:
    """Plan a model on a machine.

    The answer has the memory, the speed by concurrency, the limiting resource and possible improvements.
    """
    import gc

    # a plan allocates much and frees nothing; garbage collection would cost a tenth of its time
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
    if view.out is not None:
        _deploy(answer, ",".join(view.deploy or ()), view.out, quiet=view.form is not Form.text)
    if view.plot is not None:
        _plot(answer, view.plot)


def _deploy(answer: FitAnswer, platforms: str, folder: Path, *, quiet: bool) -> None:
    """Write deployment files and print their paths; to stderr if quiet."""
    from glmplan.catalog.files import understood, write_atomically
    from glmplan.present.deployment_files import deployment_files

    with understood(str(folder), "folder"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in deployment_files(answer, platforms).items():
            write_atomically(folder / name, text)
            say(str(folder / name), err=quiet)


def _plot(answer: FitAnswer, path: Path) -> None:
    """Write charts of speed and latency over concurrency, with the SLO."""
    from glmplan.errors import SpecError
    from glmplan.present.charts import write_charts
    from glmplan.present.decision_parts import users_charts, users_rows, users_words
    from glmplan.present.json_answers import fit_record

    record = fit_record(answer)
    asked = record["question"]
    name = f"{asked['model']} {asked['checkpoint']} on {asked['on']}"
    if not users_charts([(name, record)]):
        raise SpecError("the plan has no speed to draw", field="--plot")
    users = [row["users"] for row in record["users"]]
    plans = [(name, record | {"users": users_rows(answer, users)})]
    title = f"{name}: {record['answer']['text']}"
    write_charts(users_charts(plans), path, title=title, legend=f"{users_words(plans)}.")


def _traffic(spec: str | None, question: o.Given, shape: o.Given) -> Traffic | None:
    """Return the traffic with the lengths of the question, or None."""
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
        # colours only if no text from a file contains an escape sequence
        if has_colours(sys.stdout) and text == printable(text):
            return painted(first_screen(answer, width(), colour=True))
        return text
    found = fit_sections(answer, width())
    none = "not in this answer: {}; it has " + ", ".join(found) + "\n"
    return "\n".join(found.get(name) or none.format(name) for name in _sections(view))


def _sections(view: ViewOptions) -> tuple[str, ...]:
    from glmplan.present.answer_text import SECTIONS

    return read_names(",".join(view.section or ()), "--section", SECTIONS)


def _check(view: ViewOptions) -> None:
    """Reject contradictory options before the computation starts."""
    from glmplan.errors import SpecError

    if bool(view.deploy) is not (view.out is not None):
        missing = "--out" if view.deploy else "--deploy"
        raise SpecError(f"needs {missing} too", field="--deploy" if view.deploy else "--out")
    for name, given in (("--full", view.full), ("--section", bool(view.section))):
        if given and view.form is not Form.text:
            raise SpecError(f"is of the text only, not of --format {view.form.value}, which is whole", field=name)
    if view.plot is not None:
        from glmplan.present.charts import check_chart

        check_chart(view.plot)
    if view.section:
        _sections(view)
    if view.deploy:
        from glmplan.present.deployment_files import PLATFORMS

        read_names(",".join(view.deploy), "--deploy", PLATFORMS)
    if view.full and view.section:
        raise SpecError("is a part of what --full prints: give one of them", field="--section")
