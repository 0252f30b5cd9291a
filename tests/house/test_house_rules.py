"""Rules of CONTRIBUTING.md that a machine can read."""

from __future__ import annotations

import ast
import importlib
import io
import subprocess
import sys
import tokenize

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


#: tokens that are no code: what is said about it, and white space
NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def lines_of_code(text):
    """Lines that hold code: without docstrings, comments and blank lines."""
    described = set()
    for node in ast.walk(ast.parse(text)):
        named = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if named and ast.get_docstring(node) is not None:
            described |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    held = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            held |= set(range(token.start[0], token.end[0] + 1))
    return len(held - described)


def test_only_code_counts_as_code():
    said = '"""What it is.\n\nMore."""\n\n# why\n'
    constant, function = "x = (\n    1,  # one\n)\n\n\n", 'def f():\n    """Return."""\n    return """a\nb"""\n'
    assert lines_of_code(said + constant + function) == 3 + 1 + 2


def test_no_file_has_more_than_600_lines_of_code(sources):
    long = {str(source.path): lines_of_code(source.text) for source in sources}
    assert {path: lines for path, lines in long.items() if lines > 600} == {}


def test_no_module_is_named_for_a_pattern(sources):
    assert not [source.name for source in sources if set(source.name.split(".")) & PATTERN_NAMES]


def test_every_module_says_what_it_is(sources):
    assert not [source.name for source in sources if not ast.get_docstring(source.tree)]


def test_every_folder_of_modules_is_a_package_that_says_what_it_is(sources):
    folders = {source.path.parent for source in sources}
    assert not [folder for folder in folders if not (folder / "__init__.py").is_file()]


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


HEAVY = "pandas", "scipy", "altair", "networkx", "httpx", "gguf", "pyarrow", "numpy.ma"


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


ENTERED = """
import sys
from glmplan.cli import main
entered = set()
def see(frame, event, _):
    name = frame.f_globals.get("__name__", "")
    if event == "call" and name.startswith("glmplan") and not frame.f_code.co_name.startswith("<"):
        entered.add(name)
sys.setprofile(see)
try:
    main(["fit", "glm-5.1-nvfp4", "--on", "6xrtx-pro-6000-ws"])
finally:
    sys.setprofile(None)
    print(len(entered), file=sys.stderr)
"""


def test_a_plan_enters_at_most_95_modules():
    """Each takes time of the answer and of its reader; docs/decisions/house.md has the number before."""
    done = subprocess.run([sys.executable, "-c", ENTERED], capture_output=True, text=True, check=True)
    assert 40 < int(done.stderr) <= 95


def _is_gib(node):
    """Whether an expression is 2**30 or 1024**3, or the number itself."""
    if isinstance(node, ast.Constant):
        return node.value == 2**30 and not isinstance(node.value, str)
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)):
        return False
    pair = tuple(one.value if isinstance(one, ast.Constant) else None for one in (node.left, node.right))
    return pair in {(2, 30), (1024, 3)}


def _is_quantile(node):
    """Whether an expression is the normal quantile of a 90 % interval, to however many digits."""
    return isinstance(node, ast.Constant) and isinstance(node.value, float) and abs(abs(node.value) - 1.6449) < 3e-4


def test_a_gib_and_the_quantile_of_an_interval_are_defined_once(sources):
    found = {
        (kind, source.name)
        for source in sources
        for node in ast.walk(source.tree)
        for kind, holds in (("GiB", _is_gib), ("quantile", _is_quantile))
        if holds(node)
    }
    assert found == {("GiB", "units"), ("quantile", "units")}


def test_an_error_of_a_prediction_is_computed_in_one_place(sources):
    """Anything over something measured, less one, is an error of which `comparison.relative_error` decides the sign."""
    names = ("measured", "predicted", "logged", "observed")
    found = []
    for source in sources:
        for node in ast.walk(source.tree):
            less_one = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub)
            if not (less_one and isinstance(node.right, ast.Constant) and node.right.value == 1):
                continue
            if isinstance(node.left, ast.BinOp) and isinstance(node.left.op, ast.Div):
                below = ast.unparse(node.left.right)
                if any(name in below for name in names):
                    found.append(source.name)
    assert found == ["prediction.reproduce"]


def test_nothing_is_left_to_do(sources):
    words = "TODO", "FIXME", "XXX", "NotImplementedError"
    assert not [f"{source.path.name}: {word}" for source in sources for word in words if word in source.text]
