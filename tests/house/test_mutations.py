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


def test_mutants_near_changed_files_come_first_and_the_others_in_an_order_of_the_commit(monkeypatch):
    ring = next(one for one in MUTATIONS if "ring all-reduce" in one.name)
    formula, test = ring.source(ROOT).relative_to(ROOT).as_posix(), ring.nearest(ROOT)[0]
    some = [one for one in MUTATIONS if one.source(ROOT) != ring.source(ROOT) and ring.tests != one.tests][:8]
    for changed in (formula, test):
        near, rest = mutate.in_order([*some, ring], {changed, "README.md"})
        assert ring in near and len(near) + len(rest) == 9 and not [one for one in rest if one in near]
    orders = set()
    for commit in "abc":
        monkeypatch.setattr(mutate, "_git", lambda *words, commit=commit: commit)
        orders.add(tuple(one.name for one in mutate.in_order(some, set())[1]))
        assert mutate.in_order(some, set())[1] == mutate.in_order(some, set())[1]
    assert len(orders) > 1
    # a revision that Git does not know says nothing of what changed: all are near
    assert mutate.in_order(some, None) == (some, [])


def test_no_mutant_is_begun_after_the_time_and_the_rest_is_said(monkeypatch, capsys):
    monkeypatch.setattr(mutate, "unbroken", lambda chosen: "")
    monkeypatch.setattr(mutate, "judge", lambda one: (one is not MUTATIONS[1], "test_it"))
    assert mutate.judged(MUTATIONS[:1], 1, 10.0) == 0
    assert mutate.judged(MUTATIONS[:2], 1) == 1
    capsys.readouterr()
    assert mutate.judged(MUTATIONS[:3], 1, 0.0) == 0
    assert capsys.readouterr().out == "0 of 0 caught, 3 left out for time\n"


def test_tests_that_fail_on_the_formulas_as_they_are_fail_the_run_and_are_looked_at_once(monkeypatch, capsys):
    looked = []
    monkeypatch.setattr(mutate, "unbroken", lambda chosen: looked.append(chosen[0].tests) or "test_it - assert False")
    monkeypatch.setattr(mutate, "judge", lambda one: pytest.fail("a mutant of tests that say nothing"))
    twice = [one for one in MUTATIONS if one.tests == ("test_collectives.py",)][:1] * 2
    assert mutate.judged(twice, 2) == 1
    assert looked == [("test_collectives.py",)]
    assert "UNFIT" in (said := capsys.readouterr().out) and said.endswith("0 of 2 caught\n")


def test_changes_are_those_of_the_branch_and_on_main_those_of_the_last_merge(monkeypatch):
    answers = {("rev-parse", "HEAD"): "b\n", ("merge-base", "origin/main", "HEAD"): "a\n"}
    monkeypatch.setattr(mutate, "_git", lambda *words: answers.get(words))
    assert mutate.base() == "a"
    answers["merge-base", "origin/main", "HEAD"] = "b\n"
    assert mutate.base() == "HEAD~1"
    # without Git all are near
    monkeypatch.setattr(mutate, "_git", lambda *words: None)
    assert mutate.changed_since(mutate.base()) is None


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
