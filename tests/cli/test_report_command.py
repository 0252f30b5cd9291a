"""`glmplan report`: from a model or from plans, to the form that the ending names."""

from __future__ import annotations

import json

import pytest

from glmplan.cli import main


@pytest.fixture
def glmplan(capsys):
    def run(*words):
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        output = capsys.readouterr()
        return stop.value.code or 0, output.out, output.err

    return run


ASKED = ("llama-3.1-8b", "--users", "1,8", "--input", "512", "--output", "128")


def test_machines_stand_side_by_side_with_what_makes_them_differ(glmplan, tmp_path):
    out = tmp_path / "r.md"
    code, said, _ = glmplan("report", *ASKED, "--on", "1xh100-sxm", "--on", "1xh200-sxm", "--out", out)
    text = out.read_text(encoding="utf-8")
    assert code == 0 and said.strip() == str(out)
    assert "llama-3.1-8b bf16 on 1xh200-sxm compared with llama-3.1-8b bf16 on 1xh100-sxm:" in text
    assert "decode step: " in text


def test_a_plan_of_fit_says_the_same_as_the_question(glmplan, tmp_path):
    plan, one, other = (tmp_path / name for name in ("p.json", "a.md", "b.md"))
    _, said, _ = glmplan("fit", *ASKED, "--on", "1xh100-sxm", "--format", "json")
    plan.write_text(said, encoding="utf-8")
    assert glmplan("report", plan, "--out", one)[0] == 0
    assert glmplan("report", *ASKED, "--on", "1xh100-sxm", "--out", other)[0] == 0
    assert one.read_text(encoding="utf-8") == other.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("llama-3.1-8b", "--on", "1xh100-sxm", "--out", "a.docx"), ".md"),
        (("llama-3.1-8b", "--out", "a.md"), "--on"),
        (("lama-3.1-8b", "--on", "1xh100-sxm", "--out", "a.md"), "nearest: llama-3.1-8b"),
        (("plan.json", "--tp", "2", "--out", "a.md"), "--tp"),
        (("broken.json", "--out", "a.md"), "broken.json"),
        (("half.json", "--out", "a.md"), "half.json"),
    ],
)
def test_bad_input_ends_with_one_message_and_code_two(glmplan, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({"schema": "glmplan.fit/1"}))
    (tmp_path / "broken.json").write_text("{")
    empty = {"question": {}, "users": [], "warnings": [], "changes": [], "assumed": []}
    (tmp_path / "half.json").write_text(json.dumps({"schema": "glmplan.fit/1", **empty}))
    code, out, err = glmplan("report", *words)
    assert code == 2 and said in err and out == "" and "Traceback" not in err
    assert not (tmp_path / "a.md").exists()
