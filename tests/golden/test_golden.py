"""Reviewed values that no program may move unseen: values.toml, beside today's answers of the command line."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
spec = importlib.util.spec_from_file_location("golden_show", HERE / "show.py")
assert spec is not None and spec.loader is not None
show = importlib.util.module_from_spec(spec)
sys.modules["golden_show"] = show
spec.loader.exec_module(show)

VALUES = show.values()


def _case(one):
    # strict: who mends it takes the mark away, and the value stands from then on
    marks = [pytest.mark.xfail(reason=one.wrong, strict=True, raises=AssertionError)] if one.wrong else []
    return pytest.param(one, id=one.name, marks=marks)


@pytest.mark.parametrize("one", [_case(one) for one in VALUES])
def test_todays_answer_is_the_reviewed_one(one):
    today = one.today
    assert abs(show.off(today, one.value)) <= one.tolerance, (
        f"{today:.7g} {one.unit}, not {one.value:.7g}; checked then: {one.checked}. "
        "If it should move, look again and change tests/golden/values.toml by hand"
    )


@pytest.mark.parametrize("one", [one for one in VALUES if one.reference], ids=lambda one: one.name)
def test_a_reviewed_value_is_as_near_to_its_reference_as_it_says(one):
    # the last digit of a figure with six of them
    assert abs(show.off(one.value, one.expected)) <= one.within + 1e-9, f"{one.value:.7g}, not {one.expected:.7g}"


def test_the_values_cover_commands_engines_and_machines():
    assert len(VALUES) >= 60 and len({one.name for one in VALUES}) == len(VALUES)
    asked = " ".join(word for one in VALUES for word in one.ask) + " ".join(one.question for one in VALUES)
    for word in ("fit", "safe", "simulate", "vllm", "sglang", "trtllm", "llama.cpp", "ktransformers", "glm-5.1",
                 "deepseek", "llama-3.1", "gpt-oss", "kimi", "nemotron", "rtx-pro-6000", "h200", "b200", "mi300x",
                 "rtx-5090", "workstation-2-switches-8", "strix-halo", "mac-studio"):  # fmt: skip
        assert word in asked, word
    assert {one.kind for one in VALUES} == {"words", *show._KINDS}
    for one in VALUES:
        assert one.checked.split()[0].rstrip(":") and one.unit and one.tolerance <= 0.15, one.name
        assert one.reference or "regression at" in one.checked or one.question in one.checked, one.name
    # most of them somebody can check without this program
    assert sum(bool(one.reference) for one in VALUES) > 0.7 * len(VALUES)


def test_nothing_writes_the_values():
    before = show.VALUES.read_bytes()
    assert show.main(["--moved", "Llama-3.1-8B"]) in (0, 1)
    assert show.VALUES.read_bytes() == before
    # what `make docs` writes lies elsewhere, and no tool nor the package knows of this folder
    tree = ast.parse((show.ROOT / "tools" / "docs.py").read_text(encoding="utf-8"))
    [pages] = [
        ast.literal_eval(ast.List([key for key in node.value.keys if key is not None]))
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict)
    ]
    assert pages and not [page for page in pages if page.startswith("tests")]
    for folder in ("tools", "glmplan"):
        known = [path for path in (show.ROOT / folder).rglob("*.py") if "tests/golden" in path.read_text("utf-8")]
        assert not known


def test_the_table_shows_what_moved(monkeypatch, capsys):
    one = next(one for one in VALUES if not one.wrong)
    other = type(one)(**{name: getattr(one, name) for name in one.__dataclass_fields__} | {"value": one.value * 1.5})
    monkeypatch.setattr(show, "values", lambda: [one, other])
    assert show.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and "MOVED" in lines[2] and "MOVED" not in lines[1] and lines[3] == "1 moved"
    assert show.main(["--moved"]) == 1 and len(capsys.readouterr().out.splitlines()) == 3


def test_a_reference_is_arithmetic_and_nothing_else():
    assert show.arithmetic("61 * (512 + 64) * 2 - -2 ** 3 // 4") == 61 * 576 * 2 + 2
    for text in ("__import__('os')", "x + 1", "'a' * 3", "[1]"):
        with pytest.raises(ValueError, match="is not arithmetic"):
            show.arithmetic(text)


def test_a_path_that_is_not_in_the_answer_names_what_is():
    with pytest.raises(KeyError, match=r"no weight in the answer at weight; there is name, aliases"):
        show._at(show.answer("words", ("models", "show", "llama-3.1-8b")), "weight")
