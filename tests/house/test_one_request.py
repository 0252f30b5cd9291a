"""Every option of a request is declared once: each way to ask derives from it, and no other record repeats it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

from glmplan.request.keywords import keyword_hints_text
from glmplan.request.plan import PlanRequest

#: names of the request that another record may have
MOST_REPEATED = 8
#: records of other things with these names, and why they have them
OTHER_THINGS = {
    "Conditions": "a plan as the rules of an engine's limitations are matched against it",
    "Deployment": "what is predicted: the layout in full, nothing left open",
    "Run": "a row of a table of measured runs; its names are the columns of the CSV",
    "StartupLog": "what an engine printed at its start",
}

DUMMY = """
import inspect, json
from typing import Annotated
import glmplan.request.plan as plan
from glmplan.request.option import Option

class Wider(plan.PlanRequest):
    dummy_depth: Annotated[
        int | None, Option(kind="whole", help="Depth of the dummy.", axis="Depths of the dummy.")
    ] = None

plan.PlanRequest = Wider

import typer.main
from typer.testing import CliRunner
from glmplan.cli import compare, fit, simulate, sweep
from glmplan.planner.ask import deployment
from glmplan.planner.ask import fit as ask_fit
from glmplan.purchase.axes import STRUCTURE_AXES, read_sweep
from glmplan.request.keywords import Question, keyword_hints_text
from glmplan.service.questions import FitQuestion, SweepQuestion

def helped(module):
    app = typer.Typer(rich_markup_mode=None)
    app.command()(module.command)
    return CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output

axes = read_sweep({"model": "llama-3.1-8b", "on": "1xh100-sxm", "dummy_depth": "1..3"}).axes
print(json.dumps({
    "help": [
        "--dummy-depth" in helped(one) and "of the dummy" in helped(one) for one in (fit, compare, simulate, sweep)
    ],
    "signature": ["dummy_depth" in inspect.signature(one).parameters for one in (ask_fit, deployment)],
    "keywords": ["dummy_depth" in Question.__annotations__, "dummy_depth: int | str | None" in keyword_hints_text()],
    "openapi": [
        one.model_json_schema()["properties"]["dummy_depth"]["description"] for one in (FitQuestion, SweepQuestion)
    ],
    "axes": ["dummy_depth" in STRUCTURE_AXES, axes["dummy_depth"]],
    "read": Wider("llama-3.1-8b", "1xh100-sxm", dummy_depth="4").dummy_depth,
}))
"""


def test_an_option_of_the_request_alone_is_in_every_way_to_ask():
    done = subprocess.run([sys.executable, "-c", DUMMY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "help": [True] * 4,
        "signature": [True, True],
        "keywords": [True, True],
        "openapi": ["Depth of the dummy.", "Depths of the dummy."],
        "axes": [True, [1, 2, 3]],
        "read": 4,
    }


def test_type_checkers_read_the_keyword_arguments_of_the_request(root):
    assert (root / "glmplan/request/keywords.pyi").read_text(encoding="utf-8") == keyword_hints_text()


def fields_of(record):
    """Names that a class declares as fields."""
    return {one.target.id for one in record.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}


def test_no_other_record_repeats_the_options_of_the_request(sources):
    options = set(PlanRequest.model_fields)
    repeated = {
        node.name
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and len(fields_of(node) & options) > MOST_REPEATED
    }
    assert repeated - {"PlanRequest"} == set(OTHER_THINGS)
