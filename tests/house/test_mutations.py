"""The formulas that `make mutate` breaks: the list fits the package, and the tool tells a catch from none."""

from __future__ import annotations

import ast
import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("mutate", ROOT / "tools" / "mutate.py")
assert spec is not None and spec.loader is not None
mutate = importlib.util.module_from_spec(spec)
sys.modules["mutate"] = mutate
spec.loader.exec_module(mutate)

MUTATIONS = mutate.mutations()


@pytest.mark.parametrize("one", MUTATIONS, ids=lambda one: one.name)
def test_every_formula_of_the_list_stands_once_in_the_package_and_has_tests_near_it(one):
    source = one.source(ROOT).read_text(encoding="utf-8")
    broken = source.replace(one.find, one.broken)
    # still a program, and another one
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(source))
    assert one.nearest(ROOT)


def test_the_list_holds_the_formulas_that_once_broke_unseen():
    assert len(MUTATIONS) >= 18 and len({one.name for one in MUTATIONS}) == len(MUTATIONS)


def test_a_text_that_is_gone_or_stands_twice_is_refused(tmp_path):
    one = mutate.Mutation("doubled", "2 * shared", "shared", ("test_one.py",))
    (tmp_path / "glmplan" / "network").mkdir(parents=True)
    (tmp_path / "tests").mkdir()
    source = tmp_path / "glmplan" / "network" / "ring.py"
    for text, times in (("moved = shared", 0), ("moved = 2 * shared + 2 * shared", 2)):
        source.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=f"doubled: stands {times} times in the package: 2 \\* shared"):
            one.source(tmp_path)
    source.write_text("moved = 2 * shared", encoding="utf-8")
    assert one.source(tmp_path) == source
    with pytest.raises(ValueError, match=r"doubled: not the name of one test file: test_one\.py"):
        one.nearest(tmp_path)


def test_a_broken_formula_is_caught_and_one_that_only_looks_different_or_cannot_run_is_not():
    ring = next(one for one in MUTATIONS if "ring all-reduce" in one.name)
    before = ring.source(ROOT).read_text(encoding="utf-8")
    assert mutate.judge(ring) == (True, "test_an_all_reduce_of_a_large_message_is_a_reduce_scatter_and_an_all_gather")
    caught, said = mutate.judge(replace(ring, broken=ring.find.replace("2 * shared", "shared * 2")))
    assert not caught and "passed" in said
    caught, said = mutate.judge(replace(ring, broken=ring.find.replace("shared", "nobody")))
    assert not caught and "NameError" in said
    assert ring.source(ROOT).read_text(encoding="utf-8") == before


def test_a_failure_is_read_whole_however_narrow_the_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    (tmp_path / "test_it.py").write_text(
        f"def test_{'long_' * 20}name():\n    assert 1 + 1 == 3, 'twice'\n", encoding="utf-8"
    )
    code, said = mutate.run(tmp_path, ["test_it.py"])
    assert (code, said) == (1, f"test_{'long_' * 20}name - AssertionError: twice assert (1 + 1) == 3")
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass\n", encoding="utf-8")
    code, said = mutate.run(tmp_path, ["test_it.py"])
    assert code == 0 and "1 passed" in said
