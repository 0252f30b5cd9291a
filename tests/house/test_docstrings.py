"""Docstrings are in numpydoc form, name the parameters that are there, and give every number its unit."""

from __future__ import annotations

import ast
import re

import glmplan

NUMBER = re.compile(r"\b(float|int|array|ndarray|complex)\b")
#: arrays of truth values and of words have no unit
NO_NUMBER = re.compile(r"of (bool|str|object)\b|of int to [A-Z]|^bool|callable")
UNIT = re.compile(r"\[[^\]\n]+\]")
RULE = re.compile(r"-{3,}")
REPEATS = {"Parameters", "Returns", "Raises", "Yields"}
API = set(glmplan.__all__)


def sections(text):
    """Docstring → section title → its lines."""
    lines = text.splitlines()
    found: dict[str, list[str]] = {}
    title = None
    for number, line in enumerate(lines):
        if number + 1 < len(lines) and RULE.fullmatch(lines[number + 1].strip()):
            title = line.strip()
            found[title] = []
        elif title and not RULE.fullmatch(line.strip()):
            found[title].append(line)
    return found


def entries(lines):
    """Lines of a section → (names and type, description)."""
    found: list[list[str]] = []
    for line in lines:
        if line and not line[0].isspace():
            found.append([line, ""])
        elif found:
            found[-1][1] += line.strip() + " "
    return [(head, body) for head, body in found]


def arguments(function):
    spec = function.args
    names = [a.arg for a in spec.posonlyargs + spec.args + spec.kwonlyargs if a.arg not in ("self", "cls")]
    if spec.vararg:
        names.append("*" + spec.vararg.arg)
    if spec.kwarg:
        names.append("**" + spec.kwarg.arg)
    return names


def described(section):
    return [name.strip() for head, _ in entries(section) for name in head.split(" : ")[0].split(",")]


def public_functions(sources):
    """Functions and methods of classes in an `__all__`; commands are described by their help."""
    for source in sources:
        if source.name.split(".")[0] == "cli":
            continue
        public = set(source.public())
        for node in source.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in public:
                yield f"{source.name}.{node.name}", node, False
            elif isinstance(node, ast.ClassDef) and node.name in public:
                for method in node.body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and not method.name.startswith("_"):
                        yield f"{source.name}.{node.name}.{method.name}", method, True


def test_every_public_function_class_and_method_has_a_docstring(sources):
    bare = [name for name, node, _ in public_functions(sources) if not ast.get_docstring(node)]
    for source in sources:
        public = set(source.public())
        classes = [node for node in source.tree.body if isinstance(node, ast.ClassDef) and node.name in public]
        bare += [f"{source.name}.{node.name}" for node in classes if not ast.get_docstring(node)]
    assert not bare, "\n".join(["", *bare])


def test_docstrings_of_the_public_api_name_exactly_the_parameters_of_the_signature(sources):
    wrong = []
    for name, node, is_method in public_functions(sources):
        found = sections(ast.get_docstring(node) or "")
        if is_method or node.name not in API:
            continue
        if sorted(described(found.get("Parameters", []))) != sorted(arguments(node)):
            wrong.append(f"{name}: {arguments(node)} but described {described(found.get('Parameters', []))}")
        if node.returns is not None and not {"Returns", "Yields"} & set(found):
            wrong.append(f"{name}: nothing is said of the value that is returned")
    assert not wrong, "\n".join(["", *wrong])


def test_other_functions_say_types_and_units_in_their_signature(sources):
    """Sections that repeat a signature belong to the public API alone."""
    repeated = [
        f"{source.name}.{node.name}: {', '.join(repeats)}"
        for source in sources
        if source.name not in ("", "units", "errors", "extras", "planner.ask")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in API
        if (repeats := REPEATS & set(sections(ast.get_docstring(node) or "")))
    ]
    assert not repeated, "\n".join(["", *repeated])


def test_every_number_has_its_unit_in_brackets(sources):
    bare = []
    for name, node, _ in public_functions(sources):
        found = sections(ast.get_docstring(node) or "")
        for title in ("Parameters", "Returns", "Yields"):
            for head, body in entries(found.get(title, [])):
                kind = head.partition(" : ")[2] if title == "Parameters" else head
                if NUMBER.search(kind) and not NO_NUMBER.search(kind) and not UNIT.search(body):
                    bare.append(f"{name}: {head}")
    assert not bare, "\n".join(["", *bare])


#: first lines of docstrings over 72 characters, for each package that has some; a number only falls
LONG_LEFT = {"request": 14}


def test_the_first_line_of_a_docstring_has_at_most_72_characters(sources):
    long: dict[str, list[str]] = {}
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = (ast.get_docstring(node) or "").partition("\n")[0]
                if len(first) > 72:
                    area, dot, _ = source.name.partition(".")
                    package = area if dot or source.path.name == "__init__.py" else ""
                    long.setdefault(package, []).append(f"{source.name}: {first}")
    more = {area: lines for area, lines in long.items() if len(lines) > LONG_LEFT.get(area, 0)}
    assert not more, "\n".join(["", *(line for lines in more.values() for line in lines)])
