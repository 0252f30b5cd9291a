"""A function does one thing: at most 60 lines of code and 6 parameters, or a reason."""

from __future__ import annotations

import ast
import io
import tokenize

import pytest

LINES, PARAMETERS = 60, 6

ONE_LOOP = "one loop over a state of plain local variables, which the simulator runs millions of times"
QUANTITIES = "quantities of one formula, each of which broadcasts by itself"
ROW = "reads a row column by column: what the row says, what its campaign says, what is assumed"
SETTINGS = "what decides a plan or a load, each by name and with a default"
#: functions that may be longer, or take more → why
LONG = {
    "closed_schedule": ONE_LOOP,
    "SkippingEngine._fill": ONE_LOOP,
    "offload_work": "the parts of one step with weights on a host, summed in one walk over the layers",
}
WIDE = {
    # formulas
    "attention_decode_work": QUANTITIES,
    "attention_prefill_work": QUANTITIES,
    "latent_decode_work": QUANTITIES,
    "expert_work": QUANTITIES,
    "rank_memory": QUANTITIES,
    "static_fraction": QUANTITIES,
    "add_kernel": QUANTITIES,
    "find_kernel_fit": "what decides which of the measured kernels stands for one",
    "_add_reduces": QUANTITIES,
    "_stage": QUANTITIES,
    # what decides is said in many words
    "deploy": SETTINGS,
    "engine_default": "a setting and the conditions under which a default holds",
    "_amount": "a line of a table: what a column is",
    "_text": "a line of a table: what a column is",
    # calls of the library, all but the first by name and with a default
    "simulate": "what a program may say of a run, by name",
    "safe": "what a program may say of a search, by name",
    "kept": "what a program may say of a promise, by name",
    "swept": "what a sweep is told by whoever runs it, by name",
    "safe_of": "what may be asked of a search, by name",
    "ReplicaGroup.__init__": "what a program may say of replicas, by name",
    "loads_at": "what may be asked of a search, by name",
    "described_under": SETTINGS,
    "try_load": "what may be asked of a search, by name",
    "traffic_run": "what is otherwise than in the plan, by name",
    "climb": "what may be asked of a ladder, by name",
    "Loader.__init__": "what the steps of a ladder share, by name",
    "Request.__init__": "fields of a request, written out because a dataclass is slower",
    "predict_start": "what a start was told, and the observed terms that calibration leaves out, by name",
    # reading and drawing
    "import_runs": "the options of a command, each used once",
    "command": "the options of a command, each used once",
    "new": "the options of a command, each used once",
    "fill": "the options of a command, each used once",
    "check": "the options of a command, each used once",
    "experts_block": "names of fields in the configs of many architectures",
    "_read_branch": "the state of a recursive reader",
    "_label": "what is written where and how",
}


def code_lines(source):
    """Lines that hold code: no comment, no docstring, not empty."""
    blank = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type not in blank:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node):
            found.difference_update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return found


def functions(node, prefix=""):
    """Functions and methods with their qualified names, also inside of others."""
    for child in ast.iter_child_nodes(node):
        inner = prefix
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}", child
            inner = f"{prefix}{child.name}."
        elif isinstance(child, ast.ClassDef):
            inner = f"{prefix}{child.name}."
        yield from functions(child, inner)


@pytest.fixture(scope="module")
def sizes(sources):
    """Module, function, lines of code and parameters of every function."""
    return list(measured(sources))


def measured(sources):
    for source in sources:
        lines = code_lines(source)
        for name, node in functions(source.tree):
            args = node.args
            named = [one.arg for one in (*args.posonlyargs, *args.args, *args.kwonlyargs)]
            count = len([one for one in named if one not in ("self", "cls")]) + bool(args.vararg) + bool(args.kwarg)
            yield source.name, name, len(lines & set(range(node.lineno, node.end_lineno + 1))), count


def test_no_function_has_more_than_60_lines_of_code_without_a_reason(sizes):
    long = {(module, name): lines for module, name, lines, _ in sizes if lines > LINES}
    assert {key: lines for key, lines in long.items() if key[1] not in LONG} == {}
    assert set(LONG) - {name for _, name in long} == set(), "these are short enough by now"


def test_no_function_has_more_than_6_parameters_without_a_reason(sizes):
    wide = {(module, name): count for module, name, _, count in sizes if count > PARAMETERS}
    assert {key: count for key, count in wide.items() if key[1] not in WIDE} == {}
    assert set(WIDE) - {name for _, name in wide} == set(), "these are narrow enough by now"
