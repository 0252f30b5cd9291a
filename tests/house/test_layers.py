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


def test_no_module_imports_itself_by_a_detour(sources):
    names = {source.name for source in sources}
    graph = {source.name: imported(source, names) for source in sources}
    done: set[str] = set()

    def walk(name, path):
        assert name not in path, " → ".join([*path[path.index(name) :], name])
        if name not in done:
            for target in sorted(graph.get(name, ())):
                walk(target, [*path, name])
            done.add(name)

    for name in graph:
        walk(name, [])
    assert done >= names


def test_nothing_imports_the_command_line(sources):
    names = {source.name for source in sources}
    guilty = [
        s.name for s in sources if s.name.split(".")[0] != "cli" for t in imported(s, names) if t.split(".")[0] == "cli"
    ]
    assert not guilty, "\n".join(["", *guilty])
