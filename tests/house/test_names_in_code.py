"""Facts about one engine, part or model stand in the data folders: code does not decide by their names."""

from __future__ import annotations

import ast
import re

import pytest

from glmplan.catalog.engines.limitations import engine_names
from glmplan.catalog.entries.accelerators import accelerator_aliases, accelerator_names
from glmplan.catalog.entries.hosts import host_names
from glmplan.catalog.entries.models import model_names

#: where code may hold such names → why. `*` stands for all modules of a package.
FORMATS = "reads files and logs that this program or engine writes"
WRITES = "writes the command line of each engine"
TABLES = "names the tables of kernels of another project, and what they stand for here"
ROWS = "tells rows of our own tables of measurements apart"
SCHEDULERS = "schedulers of the simulator have the names of the engines whose they are"
ALLOWED = {
    "io.runs.importers.*": FORMATS,
    "measure.server_facts": FORMATS,
    "io.models.*": FORMATS,
    "planner.launch": WRITES,
    "present.deployment_files": WRITES,
    "catalog.schema.engine": "a form of weight files that has the name of its engine",
    "catalog.schema.model": "a form of weight files that has the name of its engine",
    "calibrate.kernels.tables": TABLES,
    "calibrate.links.observations": ROWS,
    "io.runs.ledger": ROWS,
    "calibrate.links.fit": ROWS,
    "io.runs.protocols": ROWS,
    "io.runs.table": ROWS,
    "calibrate.backtest.accuracy": "names a goal",
    "present.model_page": "chooses which cache formats the page of a model shows",
    "planner.question": "the engine that is taken when none is named; the answer says so",
    "prediction.from_row": "the engine whose rules are taken for one that is not described; the answer says so",
    "costs.memory.pool": "the engine whose logs tell the memory of ROCm's communicators for every engine",
    "purchase.money": "the server from whose price that of other hosts is assumed; the answer says so",
    "purchase.size": "the engine that reads GGUF files",
    "purchase.size_question": "the engine that reads GGUF files",
    "cli.service": "the scheduler that is taken with --step-time when none is named; the answer says so",
    "service.application": "the questions that the OpenAPI document shows",
    "service.questions": "a model in the example of a question",
    "cli.walls": "the engine of an example in the help",
    "prediction.reproduce": "names two groups of the shipped fit",
    "calibrate.backtest.fit_diff": "any engine: whether the file can be read at all",
    "prediction.step_models": "any engine: whether the file can be read at all",
    # to be moved to data with what they belong to
    "simulation.engine.settings": SCHEDULERS,
    "prediction.offloaded_rows": "whose packing a row with weights on a host has that names no engine; the row says so",
    # defaults of arguments
    "costs.blocks.stack": "the engine of an argument that is left out",
    "costs.memory.settings": "the engine of an argument that is left out",
    "costs.step.structure": "the engine of an argument that is left out",
}

#: a pattern that matches one of these is about something else: any word, or versions
OTHERS = ("any-other-name-9", "b6918")


def why_allowed(module):
    for name, reason in ALLOWED.items():
        if name == module or (name.endswith(".*") and module.startswith(name[:-1])):
            return name, reason
    return None


@pytest.fixture(scope="module")
def known():
    parts = {*accelerator_names(), *accelerator_aliases()}
    return {*engine_names(), *parts, *host_names(), *model_names()}


def documentation(tree):
    """Constants that are docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def texts_of(node):
    return [one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)]


def picks_parts(node, known):
    """Texts by which a call picks names: a pattern of `re` or `fnmatch`, or the beginning of a name."""
    word = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
    if word in {"compile", "match", "fullmatch", "search"} and node.args:
        for text in texts_of(node.args[0]):
            try:
                pattern = re.compile(text)
            except re.error:  # a piece of a pattern that is joined
                continue
            if not any(map(pattern.fullmatch, OTHERS)) and any(map(pattern.fullmatch, known)):
                yield text
    if word in {"startswith", "fnmatchcase"}:
        for text in (text for one in node.args for text in texts_of(one)):
            if len(text) > 1 and any(name.startswith(text.rstrip("*")) for name in known):
                yield text


def named(tree, known):
    """Lines of a module that hold a name, or that pick names by their form."""
    skipped = set(map(id, documentation(tree)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from ((node.lineno, text) for text in picks_parts(node, known))
        elif isinstance(node, ast.Constant) and node.value in known and id(node) not in skipped:
            yield node.lineno, node.value


def test_code_does_not_decide_by_the_name_of_an_engine_a_part_or_a_model(sources, known):
    found = [
        f"{source.name}:{line}: {text!r} names an engine, a part or a model: a fact about it belongs to hardware_db"
        for source in sources
        if why_allowed(source.name) is None
        for line, text in named(source.tree, known)
    ]
    assert not found, "\n".join(["", *found])


def test_no_module_is_allowed_names_that_it_does_not_hold(sources, known):
    used = {why_allowed(source.name)[0] for source in sources
            if why_allowed(source.name) is not None and any(named(source.tree, known))}  # fmt: skip
    assert sorted(set(ALLOWED) - used) == []


@pytest.mark.parametrize(
    "line",
    [
        'if engine == "llama.cpp": pass',
        'SPLIT = ("llama.cpp",)',
        'rules.get(engine, rules["vllm"])',
        'OPEN = re.compile(r"rtx-\\d{4}|rtx-pro-6000-ws|r9700|w7900")',
        'small = name.startswith("a100")',
    ],
)
def test_what_once_stood_in_the_code_would_be_found(line, known):
    assert list(named(ast.parse(line), known))
