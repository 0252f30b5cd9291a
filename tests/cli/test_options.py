"""Options that several commands have are declared once and mean the same in each."""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from glmplan.cli import fit, hints, main, options, safe, simulate, validate
from glmplan.cli.options import given, with_options
from glmplan.request.option import spelled

OWN = {
    simulate: {
        *("traffic", "slo", "requests", "warmup", "replications", "records", "ramp", "ranges"),
        *("fleet", "sweep_rate", "timeline"),
    },
    safe: {"traffic", "slo", "most", "probability"},
}


def names(command):
    return list(inspect.signature(command.command).parameters)


def test_simulate_and_safe_have_the_same_options_but_for_what_is_their_own():
    shared = [set(names(command)) - own for command, own in OWN.items()]
    assert shared[0] == shared[1]
    assert len(shared[0]) > 35
    assert "ramp" in names(simulate) and "ramp" not in names(safe)


def test_no_option_is_declared_twice_in_the_command_line():
    places = defaultdict(list)
    for path in Path(options.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
                kind, declared = node.slice.elts[:2]
                # `Form` is an enumeration of its own in some modules
                if isinstance(declared, ast.Call) and declared.keywords and ast.unparse(kind) != "Form":
                    places[ast.unparse(node.slice)].append(path.name)
    assert len(places) > 60
    assert {text: names for text, names in places.items() if len(set(names)) > 1} == {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    depth: Annotated[int, typer.Option(min=1, help="How deep.")] = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: Annotated[str | None, typer.Argument(help="Who.")] = None
    inner: Inner = Inner()
    length: Annotated[float | None, typer.Option("--how-long", help="How long.")] = None


@pytest.fixture
def program():
    seen = []
    app = typer.Typer(add_completion=False, rich_markup_mode=None)

    @app.command()
    @with_options()
    def command(outer: Outer, *, loud: Annotated[bool, typer.Option("--loud")] = False) -> None:
        """Say it."""
        seen.append((outer, loud))

    return CliRunner(), app, seen


def test_records_of_options_arrive_filled_also_one_inside_the_other(program):
    runner, app, seen = program
    assert runner.invoke(app, ["ann", "--how-long", "2.5", "--depth", "4", "--loud"]).exit_code == 0
    assert runner.invoke(app, []).exit_code == 0
    full, empty = seen
    assert full == (Outer(name="ann", inner=Inner(depth=4), length=2.5), True)
    assert empty == (Outer(), False)
    assert given(full[0]) == {"name": "ann", "depth": 4, "length": 2.5}


@pytest.mark.parametrize("words", [["--depth", "0"], ["--depth", "deep"], ["--width", "3"], ["--how-long"]])
def test_a_wrong_option_of_a_record_ends_with_exit_code_2(program, words):
    runner, app, seen = program
    assert runner.invoke(app, words).exit_code == 2
    assert not seen


def test_a_command_has_at_most_six_parameters_of_its_own():
    for module in (fit, simulate, safe, validate):
        assert len(inspect.signature(inspect.unwrap(module.command)).parameters) <= 6


def test_every_option_of_a_hint_exists():
    flags = {flag for flag, _ in hints._flags()}
    assert {spelled(name) for name in hints._SAME} <= flags


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("simulate llama-3.1-8b --on 1xh100-sxm --users 8", "--traffic closed:8"),
        ("safe llama-3.1-8b --on 1xh100-sxm --users 8", "--traffic closed:8"),
        ("fit --model llama-3.1-8b --on 1xh100-sxm", "glmplan fit MODEL"),
        ("fit llama-3.1-8b --on 1xh100-sxm --slo x", "glmplan safe --slo"),
        ("size --model llama-3.1-8b --on 1xh100-sxm", "--only"),
        ("sweep --model llama-3.1-8b --only 1xh100-sxm", "--on"),
        ("compare --model llama-3.1-8b --on 1xh100-sxm", "glmplan compare 8xh200-sxm"),
        ("reproduce x --on 1xh100-sxm", "--set host=FILE"),
        ("size -ngl 20", "-ngl. It is --gpu-layers of glmplan compare, fit, report, safe, simulate and sweep."),
        ("sweep --no-kv-offload", "an option of glmplan compare, fit, report, safe and simulate."),
        ("fit llama-3.1-8b --on 1xh100-sxm -np 4", "-np. It is --max-num-seqs here."),
        ("fit llama-3.1-8b --on 1xh100-sxm --tensor-parallel-size 2", "It is --tp here."),
        ("fit llama-3.1-8b --on 1xh100-sxm -ot exps=CPU", "-ot. A plan with llama.cpp leaves experts"),
        ("fit llama-3.1-8b --on 1xh100-sxm -c 8192", "--context is the longest request"),
        ("sheet new -ctk q8_0", "-ctk. It is --kv here."),
        ("models show --fromat json", "The nearest is --format."),
        ("fit llama-3.1-8b --on 1xh100-sxm --zzz", "No such option: --zzz\n"),
    ],
)
def test_an_option_of_another_command_is_answered_with_the_one_of_this(words, hint, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words.split())
    assert stop.value.code == 2 and hint in capsys.readouterr().err
