"""Every option of a request is declared once: each way to ask derives from it, and no other record repeats it."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys

from keyword_hints import keyword_hints_text

from glmplan.request.option import options_of
from glmplan.request.plan import PlanRequest
from glmplan.service.form import with_fields

#: names of the request that another record may have
MOST_REPEATED = 8
#: records of other things with these names, and why they have them
OTHER_THINGS = {
    "Conditions": "a plan as the rules of an engine's limitations are matched against it",
    "Deployment": "what is predicted: the layout in full, nothing left open",
    "Plan": "layout and settings in the schema of an answer; its names are those of the JSON",
    "Run": "a row of a table of measured runs; its names are the columns of the CSV",
    "StartupLog": "what an engine printed at its start",
}

DUMMY = """
import inspect, json, sys
from typing import Annotated
import glmplan.request.plan as plan
from glmplan.request.option import Option

class Wider(plan.PlanRequest):
    dummy_depth: Annotated[
        int | None, Option(kind="whole", help="Depth of the dummy.", axis="Depths of the dummy.")
    ] = None

plan.PlanRequest = Wider
sys.path.insert(0, "tools")

import typer.main
from typer.testing import CliRunner
from glmplan.cli import compare, fit, simulate, size, sweep
from glmplan.planner.ask import deployment
from glmplan.planner.ask import fit as ask_fit
from glmplan.present.sheets.result_pages import given_columns
from glmplan.purchase.axes import STRUCTURE_AXES, read_sweep
from glmplan.purchase.size_question import read_size
from glmplan.request.keywords import Question
from keyword_hints import keyword_hints_text
from glmplan.service.application import page_assets
from glmplan.service.questions import FitQuestion, SizeQuestion, SweepQuestion

def helped(module):
    app = typer.Typer(rich_markup_mode=None)
    app.command()(module.command)
    return CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output

axes = read_sweep({"model": "llama-3.1-8b", "on": "1xh100-sxm", "dummy_depth": "1..3"}).axes
print(json.dumps({
    "help": [
        "--dummy-depth" in text and "of the dummy" in text
        for text in map(helped, (fit, compare, simulate, size, sweep))
    ],
    "signature": ["dummy_depth" in inspect.signature(one).parameters for one in (ask_fit, deployment)],
    "keywords": ["dummy_depth" in Question.__annotations__, "dummy_depth: int | str | None" in keyword_hints_text()],
    "openapi": [
        one.model_json_schema()["properties"]["dummy_depth"]["description"]
        for one in (FitQuestion, SizeQuestion, SweepQuestion)
    ],
    "size": dict(read_size("llama-3.1-8b", "tpot p95 < 50 ms", users=4, dummy_depth="4").given),
    "sheet": given_columns([Wider("llama-3.1-8b", "1xh100-sxm", dummy_depth=4)]),
    "form": page_assets()["index.html"].content.decode().count('id="dummy_depth"'),
    "axes": ["dummy_depth" in STRUCTURE_AXES, axes["dummy_depth"]],
    "read": Wider("llama-3.1-8b", "1xh100-sxm", dummy_depth="4").dummy_depth,
}))
"""


def test_an_option_of_the_request_alone_is_in_every_way_to_ask():
    done = subprocess.run([sys.executable, "-c", DUMMY], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "help": [True] * 5,
        "signature": [True, True],
        "keywords": [True, True],
        "openapi": ["Depth of the dummy.", "Depth of the dummy.", "Depths of the dummy."],
        "size": {"dummy_depth": 4},
        "sheet": [["dummy depth", ["4"]]],
        "form": 1,
        "axes": [True, [1, 2, 3]],
        "read": 4,
    }


def test_each_option_stands_in_the_form_once_or_is_left_out_by_its_declaration(root):
    page = (root / "glmplan/service/page/index.html").read_text(encoding="utf-8")
    options = options_of(PlanRequest)
    own = {"model", "weights", "users", "part"}  # and the machine, as accelerator (`part`) and count
    fields = re.findall(r'id="([a-z_]+)" name="[a-z_]+" data-option', with_fields(page))
    assert sorted(set(fields) - own) == sorted(name for name, one in options.items() if one.form and one.over_http)
    assert {name for name in options if f'id="{name}"' in page} == own


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
