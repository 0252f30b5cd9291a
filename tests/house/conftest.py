"""The package as text: what the tests of the house read."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Source:
    """One module: its dotted name without `glmplan.`, its file, its text and its syntax tree."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    def public(self) -> list[str]:
        """Return what `__all__` lists; empty without one."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets
            ):
                return list(ast.literal_eval(node.value))
        return []


def _module_name(path: Path) -> str:
    parts = list(path.relative_to(ROOT / "glmplan").with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    """Every module of the package, sorted by name."""
    found = []
    for path in sorted((ROOT / "glmplan").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found.append(Source(_module_name(path), path, text, ast.parse(text, str(path))))
    assert len(found) > 50
    return found
