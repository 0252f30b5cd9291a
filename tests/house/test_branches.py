"""The branches of formulas that `make branches` lists: what is counted, and what a question takes."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("branches", ROOT / "tools" / "branches.py")
assert spec is not None and spec.loader is not None
branches = importlib.util.module_from_spec(spec)
sys.modules["branches"] = branches
spec.loader.exec_module(branches)

FORMULA = """
def cost(engine, values):
    if engine == "none":
        raise ValueError("unknown")
    total = sum(one for one in values if one > 0)
    match engine:
        case "vllm":
            total *= 2
        case "sglang":
            total *= 3
    return total if total < 100 else 100
"""


@pytest.fixture
def formulas(tmp_path, monkeypatch):
    (tmp_path / "formulas").mkdir()
    (tmp_path / "formulas" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "formulas" / "cost.py").write_text(FORMULA, encoding="utf-8")
    monkeypatch.setattr(branches, "ROOT", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.startswith("formulas")]:
        del sys.modules[name]


def test_a_branch_that_nothing_takes_is_listed_and_one_that_refuses_is_not(formulas):
    with branches.counted(("formulas",)) as seen:
        cost = importlib.import_module("formulas.cost").cost
    assert cost("vllm", [1, 2]) == 6
    untaken = [(one.line, one.function, one.text) for one in seen.untaken()]
    assert untaken == [
        (5, "cost", "not (one > 0)"),
        (9, "cost", "case 'sglang'"),
        (11, "cost", "not (total < 100)"),
    ]
    assert cost("sglang", [-1, 50]) == 100
    assert not seen.untaken()


def test_modules_outside_are_left_as_they_are(formulas):
    with branches.counted(("formulas.other",)) as seen:
        assert importlib.import_module("formulas.cost").cost("vllm", [1]) == 2
    assert not seen.all
