"""Imports point down. The order is the `layers` block of docs/how-it-works.md, so the page cannot be wrong."""

from __future__ import annotations

import ast
import re

import pytest


@pytest.fixture(scope="module")
def layers(root):
    page = (root / "docs/how-it-works.md").read_text(encoding="utf-8")
    block = re.search(r"```layers\n(.*?)```", page, re.DOTALL)
    assert block, "docs/how-it-works.md has no ```layers block"
    return [
        re.split(r"[,\s]+", line.split("#")[0].strip()) for line in block[1].splitlines() if line.split("#")[0].strip()
    ]


@pytest.fixture(scope="module")
def height(layers):
    """Name of a module or of a package → the number of its layer, 0 at the bottom."""
    found = {}
    for number, names in enumerate(layers):
        for name in names:
            assert name not in found, f"{name} stands in two layers"
            found[name] = number
    return found


def layer_of(name, height):
    """The layer of a module: its own entry, else that of the nearest package that has one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in height:
            return height[".".join(parts[:length])]
    return None


def imported(source, names):
    """Modules of glmplan that a module imports anywhere, also inside functions."""
    found = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source.path}: relative import"
            if node.module and node.module.split(".")[0] == "glmplan":
                for alias in node.names:
                    full = f"{node.module}.{alias.name}".removeprefix("glmplan.")
                    found.add(full if full in names else node.module.removeprefix("glmplan").lstrip("."))
        elif isinstance(node, ast.Import):
            found |= {alias.name.removeprefix("glmplan.") for alias in node.names if alias.name.startswith("glmplan.")}
    return found - {""}


def test_every_module_stands_in_a_layer(sources, height):
    homeless = [source.name for source in sources if source.name and layer_of(source.name, height) is None]
    assert not homeless


def test_every_name_in_the_list_of_layers_exists(sources, height):
    names = {source.name for source in sources}
    assert not [name for name in height if name not in names]


def test_imports_point_down(sources, height):
    names = {source.name for source in sources}
    upward = [
        f"{source.name} imports {target}"
        for source in sources
        if source.name
        for target in sorted(imported(source, names))
        if layer_of(target, height) > layer_of(source.name, height)
    ]
    assert not upward, "\n".join(["", *upward])


#: records whose text is above them, for `print(answer)`
UPWARD = {("planner.make_plan", "fit_text"), ("simulation.simulate", "outcome_text")}


def test_only_the_text_of_two_records_is_imported_from_above(sources):
    found = {
        (source.name, alias.name)
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "glmplan"
        for alias in node.names
    }
    assert found == UPWARD


def circle_in(graph):
    """The first circle of a graph as the names on it; empty without one."""
    done: set[str] = set()

    def walk(name, path):
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for target in sorted(graph.get(name, ())):
            if found := walk(target, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in graph if (found := walk(name, []))), [])


def test_a_circle_is_found():
    assert circle_in({"a": {"b", "c"}, "b": {"d"}, "c": {"d"}, "d": set()}) == []
    assert circle_in({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_no_module_imports_itself_by_a_detour(sources):
    names = {source.name for source in sources}
    circle = circle_in({source.name: imported(source, names) for source in sources})
    assert not circle, " → ".join(circle)


def test_no_folder_imports_itself_by_a_detour(sources):
    names = {source.name for source in sources}
    folder = {s.name: s.name if s.path.name == "__init__.py" else s.name.rpartition(".")[0] for s in sources}
    graph: dict[str, set[str]] = {}
    for source in sources:
        if folder[source.name]:  # the public API and what stands beside it are no room
            targets = {folder[target] for target in imported(source, names)} - {"", folder[source.name]}
            graph.setdefault(folder[source.name], set()).update(targets)
    circle = circle_in(graph)
    assert len(graph) > 20 and not circle, " → ".join(circle)


def test_the_list_of_layers_names_all_that_stands_in_the_package(root, height):
    plain = {"__init__", "__pycache__", "_compiled", "py"}  # py.typed
    found = {path.name.partition(".")[0] for path in (root / "glmplan").iterdir()} - plain
    assert found == set(height)


def test_nothing_imports_the_command_line(sources):
    names = {source.name for source in sources}
    guilty = [
        s.name for s in sources if s.name.split(".")[0] != "cli" for t in imported(s, names) if t.split(".")[0] == "cli"
    ]
    assert not guilty, "\n".join(["", *guilty])
