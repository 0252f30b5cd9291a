"""Rules of CONTRIBUTING.md that a machine can read."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys

PATTERN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc", "manager", "base", "registry", "core"}


def calls(source, *names):
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield node.lineno


def test_the_library_never_prints_and_never_exits(sources):
    guilty = [
        f"{source.path.name}:{line}"
        for source in sources
        if source.name.split(".")[0] != "cli"
        for line in calls(source, "print", "exit", "quit", "input")
    ]
    assert not guilty, "\n".join(["", *guilty])


def test_no_file_has_more_than_400_lines(sources):
    long = {str(source.path): source.text.count("\n") for source in sources}
    assert {path: lines for path, lines in long.items() if lines > 400} == {}


def test_no_module_is_named_for_a_pattern(sources):
    assert not [source.name for source in sources if set(source.name.split(".")) & PATTERN_NAMES]


def test_every_module_says_what_it_is(sources):
    assert not [source.name for source in sources if source.text.strip() and not ast.get_docstring(source.tree)]


def _place(name):
    """Constants, then classes, then functions, each by the alphabet: the order of ruff's RUF022."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_every_module_lists_its_public_names_sorted_and_complete(sources):
    wrong = []
    for source in sources:
        defined = {
            node.name
            for node in source.tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_")
        }
        public = source.public()
        if sorted(public, key=_place) != public:
            wrong.append(f"{source.name}: __all__ is not sorted")
        if len(set(public)) != len(public):
            wrong.append(f"{source.name}: __all__ repeats a name")
        if source.name.split(".")[0] != "cli":  # commands are reached by the command line, not by import
            wrong += [f"{source.name}: {name} is not in __all__" for name in sorted(defined - set(public))]
    assert not wrong, "\n".join(["", *wrong])


def test_every_listed_name_exists(sources):
    missing = []
    for source in sources:
        module = importlib.import_module(f"glmplan.{source.name}" if source.name else "glmplan")
        missing += [f"{source.name}: {name}" for name in source.public() if not hasattr(module, name)]
    assert not missing, "\n".join(["", *missing])


HEAVY = "pandas", "scipy", "altair", "networkx", "httpx", "gguf", "numba", "pyarrow", "numpy.ma"


def loaded_after(code):
    """Heavy libraries that are loaded once the code has run in a fresh interpreter."""
    look = f"\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code + look], capture_output=True, text=True, check=True)
    return done.stderr.strip()


def test_importing_the_command_line_loads_no_heavy_library():
    assert loaded_after("import glmplan, glmplan.cli") == "[]"


def test_a_plan_loads_no_heavy_library():
    words = ["fit", "glm-5.1-nvfp4", "--on", "6xrtx-pro-6000-ws"]
    run = f"from glmplan.cli import main\ntry:\n    main({words!r})\nexcept SystemExit as end:\n    assert not end.code"
    assert loaded_after(run) == "[]"


def test_nothing_is_left_to_do(sources):
    words = "TODO", "FIXME", "XXX", "NotImplementedError"
    assert not [f"{source.path.name}: {word}" for source in sources for word in words if word in source.text]
